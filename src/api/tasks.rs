//! What tasks that run use of the machine now: the last row of their `metrics.csv`, which their shims write every 5 s out of what the
//! kernel counts of their control groups. The answer of a job has it, and `trainyard top`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::jobs::Table;
use super::server::Context;
use crate::config::Paths;
use crate::ids::{JobKey, Timestamp};
use crate::store::record::{RunRecord, TaskPhase};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskUsage {
    /// `ROLE-I`.
    pub task: String,
    /// Of one core, in the 5 s before; absent where the kernel does not tell, as all that follows.
    pub cpu_percent: Option<f64>,
    /// Bytes, page cache included.
    pub memory: Option<u64>,
    pub at: String,
}

/// Longer than any row.
const ROW_MAX: u64 = 4096;
/// What is older is not what a task uses now: its shim can write nothing, or has just ended.
const FRESH_MS: u64 = 30_000;
/// Longer nobody waits for the disk for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Jobs whose tables are read at once: a disk that hangs may hold up no more threads.
static READING: Semaphore = Semaphore::const_new(4);

impl TaskUsage {
    /// By the last whole row of a table.
    pub fn read(task: &str, mut table: File) -> Option<Self> {
        let from = table.metadata().ok()?.len().saturating_sub(ROW_MAX);
        table.seek(SeekFrom::Start(from)).ok()?;
        let mut text = Vec::new();
        table.take(ROW_MAX).read_to_end(&mut text).ok()?;
        Self::of_last_row(task, &String::from_utf8_lossy(&text))
    }

    fn of_last_row(task: &str, text: &str) -> Option<Self> {
        let whole = text.get(..text.rfind('\n')?)?;
        let row: Vec<&str> = whole.lines().last()?.split(',').collect();
        // Not the head of the table.
        let at = row.first().filter(|at| at.starts_with(|letter: char| letter.is_ascii_digit()))?;
        let (cpu_percent, memory) = (row.get(3)?.parse().ok(), row.get(4)?.parse().ok());
        Some(Self { task: task.to_owned(), cpu_percent, memory, at: (*at).to_owned() })
    }
}

/// Of the tasks of the newest attempt that run, where it is known lately.
pub(super) async fn look(context: &Context, key: &JobKey, runs: &[RunRecord]) -> Vec<TaskUsage> {
    let running = running(&context.paths, key, runs);
    if running.is_empty() {
        return Vec::new();
    }
    let read = async {
        let turn = READING.acquire().await.ok()?;
        let oldest = Timestamp(crate::sys::now().0.saturating_sub(FRESH_MS)).to_string();
        let work = move || {
            let _turn = turn;
            let of_task = |(task, directory): (String, PathBuf)| {
                let usage = TaskUsage::read(&task, Table::Metrics.open(&directory).ok()?)?;
                // Times are written so that they sort as text does.
                (usage.at >= oldest).then_some(usage)
            };
            running.into_iter().filter_map(of_task).collect()
        };
        tokio::task::spawn_blocking(work).await.ok()
    };
    tokio::time::timeout(PATIENCE, read).await.ok().flatten().unwrap_or_default()
}

fn running(paths: &Paths, key: &JobKey, runs: &[RunRecord]) -> Vec<(String, PathBuf)> {
    let Some((run, attempt)) = runs.last().and_then(|run| Some((run, run.attempts.last()?))) else { return Vec::new() };
    let runs = attempt.tasks.iter().filter(|task| matches!(task.phase, TaskPhase::Running { .. }));
    runs.map(|task| (task.name().to_string(), paths.task(key, run.number, attempt.number, &task.name()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_task_the_last_whole_row_counts() {
        let of = |text: &str| {
            TaskUsage::of_last_row("main-0", text).map(|usage| (usage.cpu_percent, usage.memory, usage.at))
        };
        let (head, at) = ("time,elapsed_s,cpu_s,cpu_percent,memory_bytes,x\n", "2026-11-28T06:05:48.123Z");
        let row = |rest: &str| format!("{head}2026-11-28T06:05:43.123Z,5,1,20.5,4096,\n{at}{rest}");
        assert_eq!(of(&row(",10,2,31.0,8192,\n2026-11-28T06")), Some((Some(31.0), Some(8192), at.to_owned())));
        assert_eq!(of(&row(",5,1,,,\n")), Some((None, None, at.to_owned())));
        assert_eq!((of(head), of("2026-11-28,5"), of("")), (None, None, None));
        let mut file = tempfile::tempfile().unwrap();
        let old = format!("{},5,1,20.5,4096,\n", "2".repeat(24)).repeat(1000);
        std::io::Write::write_all(&mut file, format!("{head}{old}{at},10,2,31.0,8192,\n").as_bytes()).unwrap();
        assert_eq!(TaskUsage::read("main-0", file).unwrap().memory, Some(8192), "of a long table its end is read");
    }
}
