//! What `top` shows: jobs and cards from the daemon, the machine from the kernel, tasks from `metrics.csv` in the mount.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::api::client::{Client, ClientError};
use crate::api::gpus::GpuList;
use crate::api::wire::JobQuery;
use crate::cli::ps::name;
use crate::config::Paths;
use crate::report::JobReport;
use crate::status::State;

#[derive(Debug, Clone, Serialize)]
pub(super) struct Seen {
    pub(super) machine: Machine,
    pub(super) gpus: GpuList,
    pub(super) jobs: Vec<JobSeen>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Machine {
    /// Of all cores, percent; absent at the first look.
    pub(super) cpu_percent: Option<f64>,
    pub(super) cores: usize,
    /// Bytes.
    pub(super) memory_used: u64,
    pub(super) memory: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct JobSeen {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) reason: String,
    pub(super) run: u32,
    pub(super) duration_ms: Option<u64>,
    pub(super) tasks: Vec<TaskSeen>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct TaskSeen {
    pub(super) task: String,
    pub(super) phase: String,
    pub(super) reason: String,
    /// Of one core, percent.
    pub(super) cpu_percent: Option<f64>,
    /// Bytes.
    pub(super) memory: Option<u64>,
}

pub(super) struct Gatherer {
    client: Client,
    mount: PathBuf,
    workspace: Option<String>,
    /// Busy and all time of the processors when they were last looked at.
    ticks: Option<(u64, u64)>,
}

impl Gatherer {
    pub(super) fn new(client: Client, paths: &Paths, workspace: Option<String>) -> Self {
        Self { client, mount: paths.mount_point(), workspace, ticks: None }
    }

    pub(super) async fn look(&mut self) -> Result<Seen, ClientError> {
        let mut jobs = self.client.jobs(&JobQuery::default()).await?.jobs;
        jobs.retain(|job| self.workspace.as_ref().is_none_or(|workspace| *workspace == job.workspace));
        let gpus = self.client.gpus().await?;
        let jobs = jobs.iter().map(|job| seen(&self.mount, job)).collect();
        Ok(Seen { machine: self.machine(), gpus, jobs })
    }

    fn machine(&mut self) -> Machine {
        let now = fs::read_to_string("/proc/stat").ok().and_then(|text| ticks(&text));
        let cpu_percent = now.zip(self.ticks).and_then(|((busy, all), (busy_before, all_before))| {
            let spent = all.saturating_sub(all_before);
            (spent > 0).then(|| 100.0 * busy.saturating_sub(busy_before) as f64 / spent as f64)
        });
        self.ticks = now;
        let (memory_used, memory) = memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Machine { cpu_percent, cores, memory_used, memory }
    }
}

/// Busy and all time: what is idle, or waits for a disk, is not busy.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    let all: u64 = numbers.iter().sum();
    Some((all.checked_sub(numbers.get(3)? + numbers.get(4)?)?, all))
}

/// Used and all, bytes.
fn memory(meminfo: &str) -> (u64, u64) {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
    };
    let all = kib("MemTotal");
    (all.saturating_sub(kib("MemAvailable")), all)
}

fn seen(mount: &Path, job: &JobReport) -> JobSeen {
    let attempt = mount.join(&job.workspace).join("jobs").join(&job.job).join("latest/attempts");
    let attempt = attempt.join(job.attempt.to_string());
    let tasks = job.tasks.iter().map(|task| {
        let running = (task.phase == "running").then(|| usage(&attempt.join(&task.task).join("metrics.csv"))).flatten();
        let (cpu_percent, memory) = running.unwrap_or((None, None));
        let (task, phase, reason) = (task.task.clone(), task.phase.clone(), task.reason.clone());
        TaskSeen { task, phase, reason, cpu_percent, memory }
    });
    JobSeen {
        name: name(job),
        state: job.state,
        reason: job.reason.clone(),
        run: job.run,
        duration_ms: job.duration_ms,
        tasks: tasks.collect(),
    }
}

/// Longer than any row.
const ROW_MAX: u64 = 1024;

/// Of the last whole row: percent of a core, and bytes of memory.
fn usage(metrics: &Path) -> Option<(Option<f64>, Option<u64>)> {
    let mut file = File::open(metrics).ok()?;
    let from = file.metadata().ok()?.len().saturating_sub(ROW_MAX);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    last_row(&text)
}

fn last_row(text: &str) -> Option<(Option<f64>, Option<u64>)> {
    let whole = text.rfind('\n').and_then(|end| text.get(..end))?;
    let fields: Vec<&str> = whole.lines().last()?.split(',').collect();
    Some((fields.get(3)?.parse().ok(), fields.get(4)?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_figures_are_read() {
        assert_eq!(ticks("cpu  10 1 5 80 4 0 0 0 7 0\ncpu0 …"), Some((16, 100)));
        assert_eq!(memory("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:  60 kB\n"), (40 << 10, 100 << 10));
        assert_eq!(memory(""), (0, 0));
    }

    #[test]
    fn of_a_task_the_last_whole_row_counts() {
        let text = "time,elapsed_s,cpu_s,cpu_percent,memory_bytes,x\nt,5,1,20.5,4096,\nt,10,2,31.0,8192,\nt,15";
        assert_eq!(last_row(text), Some((Some(31.0), Some(8192))));
        assert_eq!(last_row("t,5,1,,,\n"), Some((None, None)));
        assert_eq!(last_row("t,5"), None);
    }
}
