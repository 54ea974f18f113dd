//! What `top` shows: jobs and cards from the daemon, the machine from the kernel, tasks from `metrics.csv` in the mount.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::api::client::{Client, ClientError};
use crate::api::gpus::GpuList;
use crate::api::tasks::TaskUsage;
use crate::api::wire::JobQuery;
use crate::cli::ps::name;
use crate::cli::pulse;
use crate::config::Paths;
use crate::report::{JobReport, TaskReport};
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

/// A job's workspace and name, its run, the attempt and the task.
type TaskKey = (String, String, u32, u32, String);

pub(super) struct Gatherer {
    client: Client,
    mount: PathBuf,
    workspace: Option<String>,
    /// Busy and all time of the processors when they were last looked at.
    ticks: Option<(u64, u64)>,
    jobs: Vec<JobReport>,
    /// What their tasks used when that was last looked at.
    used: HashMap<TaskKey, TaskUsage>,
    /// When they were looked at, how long that took, and up to which of their events.
    at: Instant,
    took: Duration,
    serial: u64,
}

impl Gatherer {
    pub(super) fn new(client: Client, paths: &Paths, workspace: Option<String>) -> Self {
        let mount = paths.mount_point();
        let (jobs, used, at) = (Vec::new(), HashMap::new(), Instant::now());
        Self { client, mount, workspace, ticks: None, jobs, used, at, took: Duration::ZERO, serial: 0 }
    }

    /// At everything.
    pub(super) async fn look(&mut self) -> Result<Seen, ClientError> {
        self.look_at_jobs().await?;
        let (machine, gpus) = self.look_at_machine().await?;
        Ok(Seen { machine, gpus, jobs: self.jobs_now() })
    }

    pub(super) async fn look_at_jobs(&mut self) -> Result<Vec<JobSeen>, ClientError> {
        let begun = Instant::now();
        let mut list = self.client.jobs(&JobQuery::default()).await?;
        self.took = begun.elapsed();
        list.jobs.retain(|job| self.workspace.as_ref().is_none_or(|workspace| *workspace == job.workspace));
        (self.jobs, self.serial, self.at) = (list.jobs, list.serial, Instant::now());
        Ok(self.jobs_now())
    }

    /// Those that were looked at last, as long as they have run by now, and what their tasks used when that was looked at.
    pub(super) fn jobs_now(&self) -> Vec<JobSeen> {
        self.jobs.iter().map(|job| seen(job, &self.used, self.at.elapsed())).collect()
    }

    /// With what tasks use of it: it takes a file of each.
    pub(super) async fn look_at_machine(&mut self) -> Result<(Machine, GpuList), ClientError> {
        self.used = self.jobs.iter().flat_map(|job| used(&self.mount, job)).collect();
        let gpus = self.client.gpus().await?;
        Ok((self.machine(), gpus))
    }

    /// When jobs should be looked at again.
    pub(super) fn next(&self) -> impl Future<Output = ()> + use<> {
        let (client, serial, took) = (self.client.clone(), self.serial, self.took);
        async move { pulse::next(&client, serial, took).await }
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

fn key(job: &JobReport, task: &TaskReport) -> TaskKey {
    (job.workspace.clone(), job.job.clone(), job.run, job.attempt, task.task.clone())
}

fn runs(task: &TaskReport) -> bool {
    task.phase == "running"
}

/// What the tasks of a job use that run, where it is known.
fn used(mount: &Path, job: &JobReport) -> impl Iterator<Item = (TaskKey, TaskUsage)> {
    let attempt = mount.join(&job.workspace).join("jobs").join(&job.job).join("latest/attempts");
    let attempt = attempt.join(job.attempt.to_string());
    job.tasks.iter().filter(|task| runs(task)).filter_map(move |task| {
        let table = File::open(attempt.join(&task.task).join("metrics.csv")).ok()?;
        Some((key(job, task), TaskUsage::read(&task.task, table)?))
    })
}

fn seen(job: &JobReport, used: &HashMap<TaskKey, TaskUsage>, since: Duration) -> JobSeen {
    let tasks = job.tasks.iter().map(|task| {
        let usage = used.get(&key(job, task)).filter(|_| runs(task));
        let (cpu_percent, memory) = usage.map_or((None, None), |usage| (usage.cpu_percent, usage.memory));
        let (task, phase, reason) = (task.task.clone(), task.phase.clone(), task.reason.clone());
        TaskSeen { task, phase, reason, cpu_percent, memory }
    });
    let more = if job.ended.is_none() { u64::try_from(since.as_millis()).unwrap_or(0) } else { 0 };
    JobSeen {
        name: name(job),
        state: job.state,
        reason: job.reason.clone(),
        run: job.run,
        duration_ms: job.duration_ms.map(|lasted| lasted.saturating_add(more)),
        tasks: tasks.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of events there may be many in a moment.
    #[tokio::test]
    async fn what_tasks_use_is_looked_at_with_the_machine_and_not_with_each_event() {
        let root = tempfile::tempdir().unwrap();
        let mut gatherer =
            Gatherer::new(Client::new(&root.path().join("api.sock")), &Paths::new(root.path()).unwrap(), None);
        let job = serde_json::json!({
            "workspace": "default", "job": "j", "state": "running", "reason": "", "description": "", "owner": 0, "run": 1, "attempt": 1,
            "created": "2026-11-30T02:00:00.000Z", "started": null, "ended": null, "duration_ms": 1, "diagnostics": [],
            "tasks": [{ "task": "main-0", "phase": "running", "reason": "" }]
        });
        gatherer.jobs = vec![serde_json::from_value(job).unwrap()];
        let task = gatherer.mount.join("default/jobs/j/latest/attempts/1/main-0");
        fs::create_dir_all(&task).unwrap();
        let memory = |gatherer: &Gatherer| gatherer.jobs_now()[0].tasks[0].memory;
        for (bytes, before) in [(100, None), (200, Some(100))] {
            fs::write(task.join("metrics.csv"), format!("2026-11-30T02:00:00.000Z,,,5,{bytes}\n")).unwrap();
            assert_eq!(memory(&gatherer), before);
            gatherer.look_at_machine().await.unwrap_err();
            assert_eq!(memory(&gatherer), Some(bytes), "also where no daemon tells of cards");
        }
    }

    #[test]
    fn the_kernel_s_figures_are_read() {
        assert_eq!(ticks("cpu  10 1 5 80 4 0 0 0 7 0\ncpu0 …"), Some((16, 100)));
        assert_eq!(memory("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:  60 kB\n"), (40 << 10, 100 << 10));
        assert_eq!(memory(""), (0, 0));
    }
}
