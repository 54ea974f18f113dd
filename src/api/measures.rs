//! Numbers for Prometheus: read when they are asked for, in its text format.
//!
//! Names and labels stay as they are; `docs/API.md` lists them, a test compares. Labels are of bounded sets: states, the
//! machine's cards, and at most [`WORKSPACES_MAX`] workspaces, the rest of which are summed as `(other)`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::error::ApiError;
use super::gpus::{self, GpuList};
use super::server::{Context, ask};
use super::storage::StorageView;
use crate::ids::Timestamp;
use crate::reconcile::{Caller, Listing, Request};
use crate::status::State;

/// Workspaces that have lines of their own.
const WORKSPACES_MAX: usize = 200;
const OTHER: &str = "(other)";
/// Seconds of a round: bounds of the histogram.
const BOUNDS: [f64; 8] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0];

/// Every metric with what it is: name, type, sentence.
pub const METRICS: &[(&str, &str, &str)] = &[
    ("trainyard_build_info", "gauge", "1, with the version as a label."),
    ("trainyard_jobs", "gauge", "Jobs, by workspace and state."),
    ("trainyard_queue_jobs", "gauge", "Jobs that wait for their turn."),
    ("trainyard_queue_oldest_seconds", "gauge", "For how long the job that waits longest has been there."),
    ("trainyard_tasks", "gauge", "Tasks of the newest attempts, by phase."),
    ("trainyard_gpu_leases", "gauge", "Cards that are leased to jobs."),
    ("trainyard_gpus", "gauge", "Cards that the driver tells."),
    (
        "trainyard_gpu_healthy",
        "gauge",
        "1 for a card without findings, 0.5 with a warning, 0 where no job is started on it.",
    ),
    ("trainyard_gpu_leased", "gauge", "1 for a card that a job holds."),
    ("trainyard_gpu_utilisation_ratio", "gauge", "Part of the last moment in which something ran on the card."),
    ("trainyard_gpu_memory_bytes", "gauge", "Memory of the card."),
    ("trainyard_gpu_memory_used_bytes", "gauge", "Memory of the card that is in use."),
    ("trainyard_gpu_temperature_celsius", "gauge", "Temperature of the card."),
    ("trainyard_gpu_power_watts", "gauge", "Power that the card draws."),
    ("trainyard_storage_used_bytes", "gauge", "What a workspace keeps on the disk, where it is counted."),
    ("trainyard_storage_quota_bytes", "gauge", "What a workspace may keep, where there is a quota."),
    ("trainyard_round_seconds", "histogram", "Time of one round: planning and its commit."),
    ("trainyard_api_requests_total", "counter", "Answered requests, by class of status."),
    ("trainyard_api_connections", "gauge", "Open connections to the API."),
    ("process_resident_memory_bytes", "gauge", "Memory of the daemon."),
    ("process_open_fds", "gauge", "Open descriptors of the daemon."),
    ("process_max_fds", "gauge", "Descriptors that the daemon may have open."),
    ("process_threads", "gauge", "Threads of the daemon."),
    ("process_cpu_seconds_total", "counter", "Processor time of the daemon."),
];

/// What is counted as it happens.
#[derive(Debug, Default)]
pub struct Measures {
    /// Rounds by bound; those that took longer are in none.
    rounds: [AtomicU64; BOUNDS.len()],
    rounds_total: AtomicU64,
    rounds_us: AtomicU64,
    /// By hundreds of status, from 1xx.
    answers: [AtomicU64; 5],
}

impl Measures {
    pub fn round(&self, took: Duration) {
        let bound = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound);
        bound.and_then(|bound| self.rounds.get(bound)).map(|count| count.fetch_add(1, Ordering::Relaxed));
        self.rounds_total.fetch_add(1, Ordering::Relaxed);
        self.rounds_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn answered(&self, status: u16) {
        let class = usize::from(status / 100).saturating_sub(1);
        self.answers.get(class).map(|count| count.fetch_add(1, Ordering::Relaxed));
    }
}

/// What the page is made of.
struct Seen {
    jobs: Listing,
    gpus: GpuList,
    storage: Vec<StorageView>,
    now: Timestamp,
}

/// The page that Prometheus reads.
pub(super) async fn page(context: &Context) -> Result<String, ApiError> {
    let (sender, receiver) = oneshot::channel();
    context.storage.ask(sender);
    let seen = Seen {
        jobs: ask(context, |answer| Request::List { caller: Caller::root(), answer }).await?,
        gpus: gpus::last(context).await?,
        storage: receiver.await.map_err(|_| ApiError::Ending)?,
        now: crate::sys::now(),
    };
    let mut page = Page::default();
    page.jobs(&seen);
    page.gpus(&seen.gpus);
    page.storage(&seen);
    page.measures(&context.measures, context.connections.count() + context.network.count());
    page.process();
    Ok(page.finish())
}

/// Lines by metric.
#[derive(Default)]
struct Page(BTreeMap<&'static str, Vec<String>>);

impl Page {
    fn put(&mut self, name: &'static str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.put_as(name, name, labels, value);
    }

    /// A histogram has lines of several names.
    fn put_as(&mut self, name: &'static str, own: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", quoted(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.0.entry(name).or_default().push(format!("{own}{labels} {value}"));
    }

    fn jobs(&mut self, seen: &Seen) {
        self.put("trainyard_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        let known = first_workspaces(seen.jobs.jobs.iter().map(|job| job.workspace.as_str()));
        let (mut jobs, mut tasks) = (BTreeMap::new(), BTreeMap::new());
        let (mut waiting, mut oldest) = (0, 0);
        // `created` is written so that it sorts as text does.
        for job in &seen.jobs.jobs {
            *jobs.entry((named(&known, &job.workspace), job.state)).or_insert(0_u64) += 1;
            for task in &job.tasks {
                *tasks.entry(task.phase.as_str()).or_insert(0_u64) += 1;
            }
            if job.state == State::Waiting {
                waiting += 1;
                let since = job.created.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond);
                oldest = oldest.max(seen.now.0.saturating_sub(u64::try_from(since).unwrap_or(0)));
            }
        }
        for ((workspace, state), count) in jobs {
            self.put("trainyard_jobs", &[("workspace", workspace), ("state", state.name())], count);
        }
        for (phase, count) in tasks {
            self.put("trainyard_tasks", &[("phase", phase)], count);
        }
        self.put("trainyard_queue_jobs", &[], waiting);
        self.put("trainyard_queue_oldest_seconds", &[], oldest / 1000);
    }

    fn gpus(&mut self, seen: &GpuList) {
        self.put("trainyard_gpus", &[], seen.gpus.len());
        self.put("trainyard_gpu_leases", &[], seen.gpus.iter().filter(|gpu| gpu.leased_by.is_some()).count());
        for gpu in &seen.gpus {
            let (index, uuid) = (gpu.index.to_string(), gpu.uuid.to_string());
            let labels = [("gpu", index.as_str()), ("uuid", uuid.as_str())];
            let health = match gpu.health.as_str() {
                "ok" => 1.0,
                "warning" => 0.5,
                _ => 0.0,
            };
            self.put("trainyard_gpu_healthy", &labels, health);
            self.put("trainyard_gpu_leased", &labels, u8::from(gpu.leased_by.is_some()));
            let told = [
                ("trainyard_gpu_utilisation_ratio", gpu.utilisation.map(|percent| f64::from(percent) / 100.0)),
                ("trainyard_gpu_memory_bytes", gpu.memory.map(|bytes| bytes as f64)),
                ("trainyard_gpu_memory_used_bytes", gpu.memory_used.map(|bytes| bytes as f64)),
                ("trainyard_gpu_temperature_celsius", gpu.temperature.map(f64::from)),
                ("trainyard_gpu_power_watts", gpu.power.map(|milliwatts| f64::from(milliwatts) / 1000.0)),
            ];
            for (name, value) in told {
                value.into_iter().for_each(|value| self.put(name, &labels, value));
            }
        }
    }

    fn storage(&mut self, seen: &Seen) {
        let known = first_workspaces(seen.storage.iter().map(|view| view.workspace.as_str()));
        let mut sums: BTreeMap<(&'static str, &str), u64> = BTreeMap::new();
        for view in &seen.storage {
            let workspace = named(&known, view.workspace.as_str());
            let told = [("trainyard_storage_used_bytes", view.used), ("trainyard_storage_quota_bytes", view.quota)];
            for (name, bytes) in told {
                bytes.into_iter().for_each(|bytes| *sums.entry((name, workspace)).or_default() += bytes);
            }
        }
        for ((name, workspace), bytes) in sums {
            self.put(name, &[("workspace", workspace)], bytes);
        }
    }

    fn measures(&mut self, measures: &Measures, connections: usize) {
        const ROUND: &str = "trainyard_round_seconds";
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(&measures.rounds) {
            below += read(count);
            self.put_as(ROUND, "trainyard_round_seconds_bucket", &[("le", &bound.to_string())], below);
        }
        let total = read(&measures.rounds_total);
        self.put_as(ROUND, "trainyard_round_seconds_bucket", &[("le", "+Inf")], total);
        self.put_as(ROUND, "trainyard_round_seconds_sum", &[], read(&measures.rounds_us) as f64 / 1e6);
        self.put_as(ROUND, "trainyard_round_seconds_count", &[], total);
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().zip(&measures.answers) {
            self.put("trainyard_api_requests_total", &[("status", class)], read(count));
        }
        self.put("trainyard_api_connections", &[], connections);
    }

    fn process(&mut self) {
        let Ok(own) = crate::sys::own::own_use() else { return };
        self.put("process_resident_memory_bytes", &[], own.resident);
        self.put("process_open_fds", &[], own.descriptors);
        self.put("process_max_fds", &[], own.descriptors_max);
        self.put("process_threads", &[], own.threads);
        self.put("process_cpu_seconds_total", &[], own.cpu_s);
    }

    fn finish(self) -> String {
        let mut out = String::new();
        for (name, kind, does) in METRICS {
            let Some(lines) = self.0.get(name) else { continue };
            let _ = write!(out, "# HELP {name} {does}\n# TYPE {name} {kind}\n");
            lines.iter().for_each(|line| out += &format!("{line}\n"));
        }
        out
    }
}

/// The first of them by name have lines of their own.
fn first_workspaces<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = all.collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(WORKSPACES_MAX);
    names
}

fn named<'a>(known: &[&'a str], name: &str) -> &'a str {
    known.binary_search(&name).ok().and_then(|at| known.get(at)).copied().unwrap_or(OTHER)
}

/// A label's value.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The table of `docs/API.md`.
pub fn markdown() -> String {
    let row = |(name, kind, does): &(&str, &str, &str)| format!("| `{name}` | {kind} | {does} |\n");
    format!("| metric | type | says |\n|---|---|---|\n{}", METRICS.iter().map(row).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_workspaces_have_lines_of_their_own_and_the_rest_one() {
        let names: Vec<String> = (0..1000).map(|number| format!("w{number:04}")).collect();
        let known = first_workspaces(names.iter().map(String::as_str));
        assert_eq!(known.len(), WORKSPACES_MAX);
        assert_eq!((named(&known, "w0000"), named(&known, "w0999")), ("w0000", OTHER));
    }

    #[test]
    fn the_histogram_adds_up_and_labels_are_quoted() {
        let measures = Measures::default();
        for ms in [0, 3, 30, 30_000] {
            measures.round(Duration::from_millis(ms));
        }
        measures.answered(200);
        measures.answered(101);
        let mut page = Page::default();
        page.measures(&measures, 3);
        page.put("trainyard_jobs", &[("workspace", "a\"b\\c\nd")], 1);
        let text = page.finish();
        for line in [
            "trainyard_round_seconds_bucket{le=\"0.001\"} 1",
            "trainyard_round_seconds_bucket{le=\"0.005\"} 2",
            "trainyard_round_seconds_bucket{le=\"10\"} 3",
            "trainyard_round_seconds_bucket{le=\"+Inf\"} 4",
            "trainyard_round_seconds_count 4",
            "trainyard_round_seconds_sum 30.033",
            "trainyard_api_requests_total{status=\"2xx\"} 1",
            "trainyard_api_connections 3",
            "trainyard_jobs{workspace=\"a\\\"b\\\\c\\nd\"} 1",
            "# TYPE trainyard_round_seconds histogram",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
