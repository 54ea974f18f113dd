//! What people and programs read of a job: one set of types for `status.json`, the API and the command line.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Bytes, GpuUuid, Timestamp, format_duration};
use crate::spec::Diagnostic;
use crate::status::{State, TaskEnd};
use crate::store::record::{AttemptRecord, EventRecord, JobRecord, RunRecord, TaskPhase, TaskRecord};

/// A job and its newest run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobReport {
    pub workspace: String,
    pub job: String,
    pub state: State,
    /// Why it is in this state, one line.
    pub reason: String,
    pub description: String,
    /// Of a job of a sweep: the keys that are swept, and their values here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweep: Vec<(String, String)>,
    /// User id of the owner.
    pub owner: u32,
    /// 0 before the first run.
    pub run: u32,
    /// 0 before the first attempt.
    pub attempt: u32,
    pub created: String,
    pub started: Option<String>,
    pub ended: Option<String>,
    /// Milliseconds from the start of the newest run to its end, or to when this was asked.
    pub duration_ms: Option<u64>,
    pub tasks: Vec<TaskReport>,
    /// Of a run that is not over, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitReport>,
    /// While it waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitReport>,
    /// What becomes of output that is copied to a store, one line a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sending: Vec<String>,
    /// What is wrong with the job file, or worth knowing.
    pub diagnostics: Vec<Diagnostic>,
}

/// What a line of a table tells of a job and its newest run: a list of thousands of these comes in a fraction of the time that reports
/// take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobLine {
    pub workspace: String,
    pub job: String,
    pub state: State,
    /// Why it is in this state, one line.
    pub reason: String,
    /// User id of the owner.
    pub owner: u32,
    /// 0 before the first run.
    pub run: u32,
    pub created: String,
    /// Milliseconds from the start of the newest run to its end, or to when this was asked.
    pub duration_ms: Option<u64>,
    /// What is wrong with its job file now.
    pub error: Option<Diagnostic>,
    /// By this and what follows lines are chosen and sorted; nobody is told it.
    #[serde(skip)]
    pub description: String,
    #[serde(skip)]
    pub started: Option<Timestamp>,
    #[serde(skip)]
    pub ended: Option<Timestamp>,
}

/// Who has asked that nothing starts, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainOrder {
    pub by: String,
    pub since: String,
}

/// How far a machine is drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainReport {
    /// Jobs start when absent.
    pub order: Option<DrainOrder>,
    /// Jobs that have something of the machine.
    pub running: Vec<String>,
    /// How many wait in the queue.
    pub waiting: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskReport {
    /// `ROLE-I`.
    pub task: String,
    /// launching, running or ended.
    pub phase: String,
    /// How it ended, one line; empty before.
    pub reason: String,
    pub exit_code: Option<i32>,
    pub started: Option<String>,
    pub ended: Option<String>,
    pub memory_peak: Option<u64>,
}

/// What a card of a task did when it was measured last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuReport {
    /// `ROLE-I`.
    pub task: String,
    /// As `trainyard gpu` calls it.
    pub gpu: String,
    #[schemars(with = "String")]
    pub uuid: GpuUuid,
    /// Percent.
    pub utilisation: Option<u32>,
    /// Bytes in use.
    pub memory: Option<u64>,
    /// Thousandths of a watt.
    pub power: Option<u32>,
    /// When that was; absent where it was not measured lately.
    pub at: Option<String>,
}

/// How long an attempt of a run that is not over may take; then it is stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitReport {
    pub limit_ms: u64,
    /// What of it was added by `trainyard extend`.
    pub extended_ms: u64,
    /// When the one that runs is stopped.
    pub until: Option<String>,
}

impl fmt::Display for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ms| format_duration(Duration::from_millis(ms));
        f.write_str(&time(self.limit_ms))?;
        if self.extended_ms > 0 {
            write!(f, " ({} of it added)", time(self.extended_ms))?;
        }
        self.until.as_ref().map_or(Ok(()), |until| write!(f, ", until {until}"))
    }
}

/// What is known of a run that waits in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitReport {
    /// What keeps it: `turn` (others come before it), `room` on the machine, the `quota` of its workspace, a named `port`,
    /// `addresses`, or `gpu` where the machine has too few that can be used.
    pub cause: String,
    /// Its place, from 1, of so many.
    pub place: usize,
    pub of: usize,
    pub needs: AmountReport,
    /// On the machine, or of the quota where that is what keeps it.
    pub free: AmountReport,
    /// Who holds what it needs and is not free: jobs of the own workspace by name, those of others together.
    pub holders: Vec<HolderReport>,
    /// Who uses cards of the machine and is no job of Trainyard: whole ones or slices, as it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<StrangerReport>,
    /// When it should start, by what jobs say of how long they take; absent where they do not.
    pub starts_by: Option<String>,
    /// Of one far behind, instead: when it should start if none of those before it goes first in a gap, which as a rule is later
    /// than it will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_about: Option<String>,
    /// When this was so.
    pub as_of: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AmountReport {
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: u64,
    /// Cards; a share or a slice is part of one.
    pub gpu: f64,
}

/// A process that keeps a card from jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StrangerReport {
    /// As `trainyard gpu` calls it.
    pub gpu: String,
    #[schemars(with = "String")]
    pub uuid: GpuUuid,
    /// The profile of the slice that it uses.
    pub slice: Option<String>,
    pub pid: u32,
    /// Absent if it has ended since.
    pub uid: Option<u32>,
    pub user: Option<String>,
    /// Bytes on the card; not known to every driver.
    pub memory: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HolderReport {
    pub workspace: String,
    /// Of the own workspace.
    pub job: Option<String>,
    pub jobs: usize,
    pub holds: AmountReport,
    /// When it should end.
    pub until: Option<String>,
}

/// What is published of a job in the mount.
#[derive(Debug, Clone)]
pub struct Publication {
    pub report: JobReport,
    /// The last good version of the job file.
    pub source: Option<String>,
    /// User and group id of the owner.
    pub owner: (u32, u32),
    /// What happened since the last publication.
    pub events: Vec<EventRecord>,
    /// The number of the first event that is this job's.
    pub first_event: u64,
    /// The last word on runs that made way for newer ones.
    pub retired: Vec<JobReport>,
    /// Datasets that a run will see which has not chosen its own yet.
    pub awaited: BTreeSet<String>,
}

/// What becomes of a job's published files.
#[derive(Debug, Clone)]
pub enum Change {
    Published(Box<Publication>),
    Removed(Gone),
}

/// A job is gone, with these runs, and with what was set aside for them up to this number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub runs: RangeInclusive<u32>,
    pub last_aside: u64,
}

/// What a line is made from, and a report in part.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub workspace: &'a str,
    pub job: &'a str,
    pub record: &'a JobRecord,
    pub run: Option<&'a RunRecord>,
    pub state: State,
    pub reason: String,
    pub description: &'a str,
    pub now: Timestamp,
}

impl JobLine {
    pub fn of(facts: Facts<'_>) -> Self {
        let started = facts.run.and_then(|run| run.attempts.first()).map(|attempt| attempt.created);
        let ended = facts.run.and_then(|run| run.ended.as_ref()).map(|end| end.at);
        Self {
            workspace: facts.workspace.to_owned(),
            job: facts.job.to_owned(),
            state: facts.state,
            reason: facts.reason,
            owner: facts.record.owner().map_or(0, |owner| owner.uid),
            run: facts.record.last_run,
            created: facts.record.created.to_string(),
            duration_ms: started.map(|from| ended.unwrap_or(facts.now).0.saturating_sub(from.0)),
            error: facts.record.invalid.iter().find(|found| found.is_error()).cloned(),
            description: facts.description.to_owned(),
            started,
            ended,
        }
    }
}

impl JobReport {
    pub fn of(facts: Facts<'_>, limit: Option<LimitReport>, waiting: Option<WaitReport>, sending: Vec<String>) -> Self {
        let attempt = facts.run.and_then(|run| run.attempts.last());
        let source = facts.record.source.as_ref();
        let warnings = source.map(|source| source.warnings.as_slice()).unwrap_or_default();
        let diagnostics = facts.record.invalid.iter().chain(warnings).cloned().collect();
        let line = JobLine::of(facts);
        Self {
            workspace: line.workspace,
            job: line.job,
            state: line.state,
            reason: line.reason,
            description: line.description,
            sweep: source
                .and_then(|source| source.sweep.as_ref())
                .map(|sweep| sweep.values.clone())
                .unwrap_or_default(),
            owner: line.owner,
            run: line.run,
            attempt: attempt.map_or(0, |attempt| attempt.number),
            created: line.created,
            started: line.started.map(|time| time.to_string()),
            ended: line.ended.map(|time| time.to_string()),
            duration_ms: line.duration_ms,
            tasks: attempt.map(tasks).unwrap_or_default(),
            limit,
            waiting,
            sending,
            diagnostics,
        }
    }

    /// `status`: TOML for people, the most wanted first.
    pub fn toml(&self) -> String {
        let mut out = String::new();
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(out, "{key:<9} = {}", quoted(value));
        };
        line("state", self.state.name());
        line("reason", &self.reason);
        line("job", &self.job);
        line("workspace", &self.workspace);
        for (key, value) in [("started", &self.started), ("ended", &self.ended)] {
            if let Some(value) = value {
                line(key, value);
            }
        }
        if let Some(limit) = &self.limit {
            line("limit", &limit.to_string());
        }
        for sending in &self.sending {
            line("sending", sending);
        }
        let _ = writeln!(out, "run       = {}\nattempt   = {}\nowner     = {}", self.run, self.attempt, self.owner);
        if let Some(waiting) = &self.waiting {
            let _ = write!(out, "\n[waiting]\n{}", waiting.toml());
        }
        for task in &self.tasks {
            let _ = write!(out, "\n{}", task.toml());
        }
        out
    }
}

impl WaitReport {
    /// What is said of it, by what it is.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut out = vec![
            ("place", format!("{} of {}", self.place, self.of)),
            ("needs", self.needs.to_string()),
            ("free", format!("{}{}", self.free, if self.cause == "quota" { ", by the quota" } else { "" })),
        ];
        out.extend(self.holders.iter().map(|holder| ("held by", holder.to_string())));
        out.extend(self.starts_by.clone().map(|start| ("starts by", start)));
        out.extend(self.starts_about.clone().map(|start| ("starts about", start)));
        out
    }

    fn toml(&self) -> String {
        let mut out = String::new();
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(out, "{key:<9} = {}", quoted(value));
        };
        line("cause", &self.cause);
        for (key, value) in self.facts().into_iter().filter(|(key, _)| *key != "held by") {
            line(&key.replace(' ', "_"), &value);
        }
        line("as_of", &self.as_of);
        let holders: Vec<String> = self.holders.iter().map(|holder| quoted(&holder.to_string())).collect();
        let _ = writeln!(out, "held_by   = [{}]", holders.join(", "));
        out
    }
}

impl fmt::Display for AmountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = if self.gpu > 0.0 { format!(", {} GPU(s)", self.gpu) } else { String::new() };
        write!(f, "{} cpu and {} of memory{cards}", self.cpu, Bytes(self.memory).told())
    }
}

impl fmt::Display for HolderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            Some(job) => write!(f, "{job}: {}", self.holds)?,
            None => write!(f, "{} job(s) of workspace {}: {}", self.jobs, self.workspace, self.holds)?,
        }
        self.until.as_ref().map_or(Ok(()), |until| write!(f, ", should end by {until}"))
    }
}

impl TaskReport {
    /// `status` of a task's directory.
    pub fn toml(&self) -> String {
        let mut out = format!("[tasks.{}]\nphase     = {}\n", quoted(&self.task), quoted(&self.phase));
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(out, "{key:<9} = {}", quoted(value));
        };
        for (key, value) in [("started", &self.started), ("ended", &self.ended)] {
            if let Some(value) = value {
                line(key, value);
            }
        }
        if !self.reason.is_empty() {
            line("reason", &self.reason);
        }
        if let Some(code) = self.exit_code {
            let _ = writeln!(out, "exit_code = {code}");
        }
        if let Some(peak) = self.memory_peak {
            let _ = writeln!(out, "memory    = {}", quoted(&Bytes(peak).to_string()));
        }
        out
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// How its tasks are, or how they ended.
pub fn tasks(attempt: &AttemptRecord) -> Vec<TaskReport> {
    attempt.tasks.iter().map(|record| task(attempt, record)).collect()
}

fn task(attempt: &AttemptRecord, record: &TaskRecord) -> TaskReport {
    let (phase, started, end) = match &record.phase {
        TaskPhase::Launching => ("launching", None, None),
        TaskPhase::Running { since } => ("running", Some(*since), None),
        TaskPhase::Kept { end, .. } => ("kept", Some(attempt.created), Some(end)),
        TaskPhase::Ended(end) => ("ended", Some(attempt.created), Some(end)),
    };
    let exit_code = end.and_then(|end| match end.end {
        TaskEnd::Exited { code } => Some(code),
        TaskEnd::Oom { code, .. } => code,
        _ => None,
    });
    TaskReport {
        task: record.name().to_string(),
        phase: phase.to_owned(),
        reason: end.map(ToString::to_string).unwrap_or_default(),
        exit_code,
        started: started.map(|time| time.to_string()),
        ended: end.map(|end| end.at.to_string()),
        memory_peak: end.and_then(|end| end.memory_peak),
    }
}

/// What is said of things by their places, each sentence once, with all of which it is said.
pub fn same_together(said: impl Iterator<Item = (usize, String)>) -> Vec<(Vec<usize>, String)> {
    let mut groups: Vec<(Vec<usize>, String)> = Vec::new();
    for (place, says) in said {
        match groups.iter_mut().find(|(_, known)| *known == says) {
            Some((places, _)) if places.contains(&place) => {}
            Some((places, _)) => places.push(place),
            None => groups.push((vec![place], says)),
        }
    }
    groups
}

/// Ascending places, as `0, 2 and 4 to 7`.
pub fn listed(places: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for place in places {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *place => *last = *place,
            _ => runs.push((*place, *place)),
        }
    }
    let run = |(first, last): &(usize, usize)| match last - first {
        0 => vec![first.to_string()],
        1 => vec![first.to_string(), last.to_string()],
        _ => vec![format!("{first} to {last}")],
    };
    let runs: Vec<String> = runs.iter().flat_map(run).collect();
    match runs.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => runs.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_several_is_said_once_with_their_places() {
        let said = [(0, "a"), (1, "b"), (2, "a"), (3, "a"), (4, "a"), (4, "b"), (4, "b")];
        let told: Vec<String> = same_together(said.into_iter().map(|(place, says)| (place, says.to_owned())))
            .into_iter()
            .map(|(places, says)| format!("{} {says}", listed(&places)))
            .collect();
        assert_eq!(told, ["0 and 2 to 4 a", "1 and 4 b"]);
    }
}
