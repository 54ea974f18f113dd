//! States, ends, and the rules by which an attempt ends. Pure.
//!
//! ```text
//! run:   waiting ──► starting ──► running ──► succeeded | failed | stopped
//!           ▲            │           │
//!           └── retry ◄──┴─ stopping ┘          waiting ──► stopped (never started)
//! ```
//! A job shows the state of its newest run; `invalid` and `held` come from its file.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{RoleName, TaskName, Timestamp};
use crate::spec::{Main, MinSucceeded, Role};

/// What a job or a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The file cannot be used and there is no earlier version of it.
    Invalid,
    /// Kept from starting by its file.
    Held,
    /// Will start when it fits; carries its reason elsewhere.
    Waiting,
    Starting,
    Running,
    /// Its tasks have been told to end.
    Stopping,
    Succeeded,
    Failed,
    Stopped,
}

impl State {
    pub const ALL: [State; 9] = [
        State::Invalid,
        State::Held,
        State::Waiting,
        State::Starting,
        State::Running,
        State::Stopping,
        State::Succeeded,
        State::Failed,
        State::Stopped,
    ];

    pub fn name(self) -> &'static str {
        match self {
            State::Invalid => "invalid",
            State::Held => "held",
            State::Waiting => "waiting",
            State::Starting => "starting",
            State::Running => "running",
            State::Stopping => "stopping",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Stopped => "stopped",
        }
    }

    /// Nothing more will happen to it by itself.
    pub fn is_terminal(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Stopped | State::Invalid)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why something is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum StopCause {
    /// Somebody asked, by command line or API.
    User { name: String },
    /// `state = "stopped"`.
    File,
    /// The job file is gone.
    FileRemoved,
    /// `max_duration` has passed.
    TimedOut { limit_ms: u64 },
    /// It took longer than `expected_duration`, and `on_overrun = "stop"`.
    Overrun { expected_ms: u64 },
    /// A card of it has failed, and its file says `on_gpu_failure`; which one, and how.
    GpuFailed { says: String },
    /// Its cards were idle, and `then = "stop"`.
    GpuIdle { below: u32, lasting_ms: u64 },
    /// One of its tasks went on using more of a card than its share, bytes, and `gpu_memory_over = "stop"`.
    OverShare { task: TaskName, used: u64, share: u64 },
    /// The attempt is decided; what still ran was stopped.
    Decided,
    /// Trainyard itself was asked to stop everything.
    Shutdown,
    /// Its shim got a signal that nobody here had sent: the machine may be going down.
    ShimSignalled,
    /// It made way for a newer version of its file, or for another run.
    Replaced,
    /// A daemon that is newer than the shim, which tasks outlive, has a cause that the shim does not know.
    #[serde(other)]
    Newer,
}

impl StopCause {
    /// How a task has ended that was stopped for this, by what its command exited with, if it did.
    pub fn judge(&self, code: Option<i32>) -> TaskEnd {
        match self {
            // It was ending well by itself when the attempt was decided.
            Self::Decided if code == Some(0) => TaskEnd::Exited { code: 0 },
            Self::TimedOut { limit_ms } => TaskEnd::TimedOut { limit_ms: *limit_ms },
            Self::ShimSignalled => TaskEnd::Stopped { cause: self.clone(), code },
            _ => TaskEnd::Stopped { cause: self.clone(), code: None },
        }
    }
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopCause::User { name } => write!(f, "stopped by {name}"),
            StopCause::File => f.write_str("stopped by state = \"stopped\" in its job file"),
            StopCause::FileRemoved => f.write_str("stopped because its job file was removed"),
            StopCause::TimedOut { limit_ms } => {
                let limit = crate::ids::format_duration(std::time::Duration::from_millis(*limit_ms));
                write!(f, "timed out after its max_duration of {limit}")
            }
            StopCause::Overrun { expected_ms } => {
                let expected = crate::ids::format_duration(std::time::Duration::from_millis(*expected_ms));
                write!(f, "stopped since it took longer than its expected_duration of {expected}")
            }
            StopCause::GpuFailed { says } => write!(f, "stopped since {says} (on_gpu_failure)"),
            StopCause::GpuIdle { below, lasting_ms } => {
                let lasting = crate::ids::format_duration(std::time::Duration::from_millis(*lasting_ms));
                write!(f, "stopped since its GPUs were used less than {below} % for {lasting} (alerts.gpu_idle)")
            }
            StopCause::OverShare { task, used, share } => write!(
                f,
                "stopped since {task} used {} of a GPU, more than its share of {} (resources.gpu_memory)",
                crate::ids::Bytes(*used).roughly(),
                crate::ids::Bytes(*share)
            ),
            StopCause::Decided => f.write_str("stopped because the attempt was decided"),
            StopCause::ShimSignalled => {
                f.write_str("ended because its shim was told to by a signal; the machine may have been going down")
            }
            StopCause::Replaced => f.write_str("replaced by a newer version of its job file, or by a new run"),
            StopCause::Shutdown => f.write_str("stopped by the shutdown of Trainyard"),
            StopCause::Newer => f.write_str("stopped by a newer Trainyard than the one that started the task"),
        }
    }
}

/// How a task is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// By its stop signal; it is killed when its grace is over.
    #[default]
    WithGrace,
    /// It is killed, also in the middle of its grace.
    AtOnce,
}

impl StopHow {
    pub fn is_with_grace(&self) -> bool {
        *self == Self::WithGrace
    }
}

/// How a task ended; written once, by its shim, or `Lost` by the daemon when there is no shim to write it. By the shim `Lost` says that the machine went down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskEnd {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
        /// The kernel made a dump of its memory.
        #[serde(default)]
        core: bool,
    },
    /// The kernel killed a process of the task for want of memory.
    Oom {
        limit: u64,
        /// Bytes that it had at most, where the kernel tells.
        #[serde(default)]
        peak: Option<u64>,
        /// What the command itself ended with, if it was not killed.
        #[serde(default)]
        code: Option<i32>,
    },
    /// The command never ran.
    FailedToStart {
        reason: String,
    },
    TimedOut {
        limit_ms: u64,
    },
    Stopped {
        cause: StopCause,
        /// What its command exited with, where its shim could not be told the cause, which the daemon knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
    },
    /// Its shim or the machine went away; how the task ended is not known.
    Lost {
        reason: String,
    },
}

impl TaskEnd {
    pub fn is_success(&self) -> bool {
        matches!(self, TaskEnd::Exited { code: 0 })
    }

    /// The command never ran.
    pub fn is_failed_start(&self) -> bool {
        matches!(self, TaskEnd::FailedToStart { .. })
    }

    /// Counts as failed; a task that we stopped counts as neither.
    pub fn is_failure(&self) -> bool {
        let stopped_by_us = matches!(self, TaskEnd::Stopped { cause, .. } if *cause != StopCause::ShimSignalled);
        !self.is_success() && !stopped_by_us
    }
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskEnd::Exited { code } => write!(f, "exited with code {code}"),
            TaskEnd::Signalled { signal, core } => {
                let dumped = if *core { ", core dumped" } else { "" };
                write!(f, "killed by signal {signal} ({}){dumped}", signal_name(*signal))
            }
            TaskEnd::Oom { limit, peak, code } => {
                let limit = crate::ids::Bytes(*limit);
                write!(f, "out of memory: it needed more than resources.memory = \"{limit}\"")?;
                peak.map_or(Ok(()), |peak| write!(f, " (it had {})", crate::ids::Bytes(peak).roughly()))?;
                code.map_or(Ok(()), |code| write!(f, ", and exited with code {code}"))
            }
            TaskEnd::FailedToStart { reason } => write!(f, "failed to start: {reason}"),
            TaskEnd::TimedOut { limit_ms } => StopCause::TimedOut { limit_ms: *limit_ms }.fmt(f),
            TaskEnd::Stopped { cause, .. } => cause.fmt(f),
            TaskEnd::Lost { reason } => write!(f, "lost: {reason}"),
        }
    }
}

/// As `kill -l` has it.
fn signal_name(signal: i32) -> String {
    match (nix::sys::signal::Signal::try_from(signal), signal) {
        (Ok(signal), _) => signal.as_str().to_owned(),
        (Err(_), 34) => "SIGRTMIN".to_owned(),
        (Err(_), 64) => "SIGRTMAX".to_owned(),
        (Err(_), 35..=49) => format!("SIGRTMIN+{}", signal - 34),
        (Err(_), 50..=63) => format!("SIGRTMAX-{}", 64 - signal),
        (Err(_), _) => "unknown".to_owned(),
    }
}

/// An end with its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    pub end: TaskEnd,
    pub at: Timestamp,
    /// Most memory the task held at once, in bytes, where the kernel told.
    #[serde(default)]
    pub memory_peak: Option<u64>,
    /// What else was seen that may explain it.
    #[serde(default)]
    pub note: Option<String>,
}

impl fmt::Display for EndRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.end.fmt(f)?;
        self.note.as_ref().map_or(Ok(()), |note| write!(f, "; {note}"))
    }
}

/// How an attempt ended, and so how its run may end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// `tolerated` tasks failed in roles that may fail.
    Succeeded {
        tolerated: u32,
    },
    Failed {
        reason: String,
    },
    Stopped {
        cause: StopCause,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Succeeded { tolerated: 0 } => f.write_str("every task that counts has succeeded"),
            Verdict::Succeeded { tolerated } => write!(f, "succeeded ({tolerated} task(s) failed, as allowed)"),
            Verdict::Failed { reason } => f.write_str(reason),
            Verdict::Stopped { cause } => cause.fmt(f),
        }
    }
}

/// What completion is judged by: one role's bounds and counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleTally {
    pub name: RoleName,
    pub count: u32,
    pub main: Main,
    pub serves: bool,
    pub min_failed: Option<u32>,
    pub min_succeeded: MinSucceeded,
    pub succeeded: u32,
    pub failed: u32,
    /// Ended because we stopped it.
    pub stopped: u32,
    /// How its first task ended, if it has ended by itself.
    pub first: Option<FirstEnd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstEnd {
    Succeeded,
    Failed,
}

impl RoleTally {
    pub fn of(role: &Role) -> Self {
        Self {
            name: role.name.clone(),
            count: role.count,
            main: role.main,
            serves: role.serves,
            min_failed: role.min_failed,
            min_succeeded: role.min_succeeded,
            succeeded: 0,
            failed: 0,
            stopped: 0,
            first: None,
        }
    }

    /// Counts the end of one of its tasks.
    pub fn count(&mut self, index: u32, end: &TaskEnd) {
        let first = if end.is_success() {
            self.succeeded += 1;
            FirstEnd::Succeeded
        } else if end.is_failure() {
            self.failed += 1;
            FirstEnd::Failed
        } else {
            self.stopped += 1;
            return;
        };
        if index == 0 {
            self.first = Some(first);
        }
    }

    fn has_ended(&self) -> bool {
        self.succeeded + self.failed + self.stopped >= self.count
    }

    /// Rule 1 and 3: the role's own success, which ends the job.
    fn ends_in_success(&self) -> bool {
        if self.main == Main::FirstTask && self.first == Some(FirstEnd::Succeeded) {
            return true;
        }
        let is_main = self.main == Main::Role;
        match self.min_succeeded {
            MinSucceeded::Count(wanted) => (is_main || wanted < self.count) && self.succeeded >= wanted,
            MinSucceeded::All => is_main && self.succeeded >= self.count,
            MinSucceeded::Never => false,
        }
    }

    /// Rule 1 and 2: the role's own failure, which ends the attempt.
    fn ends_in_failure(&self) -> bool {
        if self.main == Main::FirstTask && self.first == Some(FirstEnd::Failed) {
            return true;
        }
        match self.min_failed {
            Some(bound) => self.failed >= bound,
            None => self.main == Main::Role && self.has_ended() && self.failed > 0,
        }
    }
}

/// What the counts decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Succeeded {
        tolerated: u32,
    },
    /// The role whose failure decided it.
    Failed {
        role: RoleName,
    },
}

/// Judges an attempt by its roles' counts; `None` while it is open. Success is judged before failure.
pub fn judge(roles: &[RoleTally]) -> Option<Decision> {
    let tolerated = roles.iter().map(|role| role.failed).sum();
    if roles.iter().any(RoleTally::ends_in_success) {
        return Some(Decision::Succeeded { tolerated });
    }
    if let Some(role) = roles.iter().find(|role| role.ends_in_failure()) {
        return Some(Decision::Failed { role: role.name.clone() });
    }
    // Serving roles do not hold the job open, unless there is nothing else.
    let all_serve = roles.iter().all(|role| role.serves);
    if !roles.iter().filter(|role| all_serve || !role.serves).all(RoleTally::has_ended) {
        return None;
    }
    match roles.iter().find(|role| role.min_failed.is_some() && role.failed > 0) {
        Some(role) => Some(Decision::Failed { role: role.name.clone() }),
        None => Some(Decision::Succeeded { tolerated }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, count: u32) -> RoleTally {
        RoleTally {
            name: name.parse().unwrap(),
            count,
            main: Main::No,
            serves: false,
            min_failed: Some(1),
            min_succeeded: MinSucceeded::All,
            succeeded: 0,
            failed: 0,
            stopped: 0,
            first: None,
        }
    }

    fn failed(name: &str) -> Option<Decision> {
        Some(Decision::Failed { role: name.parse().unwrap() })
    }

    const DONE: Option<Decision> = Some(Decision::Succeeded { tolerated: 0 });

    #[test]
    fn a_plain_job_waits_for_all_and_fails_at_the_first_failure() {
        let open = RoleTally { succeeded: 1, ..role("w", 2) };
        assert_eq!(judge(std::slice::from_ref(&open)), None);
        assert_eq!(judge(&[RoleTally { succeeded: 2, ..open.clone() }]), DONE);
        assert_eq!(judge(&[RoleTally { failed: 1, ..open }]), failed("w"));
    }

    #[test]
    fn the_main_role_decides_both_ways() {
        let main = RoleTally { main: Main::Role, ..role("m", 1) };
        let other = role("w", 2);
        assert_eq!(judge(&[RoleTally { succeeded: 1, ..main.clone() }, other.clone()]), DONE);
        assert_eq!(judge(&[RoleTally { failed: 1, ..main.clone() }, other.clone()]), failed("m"));
        let shielded = RoleTally { min_failed: None, failed: 1, ..main };
        assert_eq!(judge(&[shielded, other]), failed("m"));
    }

    #[test]
    fn a_first_task_that_decides_decides_alone() {
        let workers = RoleTally { main: Main::FirstTask, min_failed: None, ..role("w", 3) };
        let end = |index, end: &TaskEnd| {
            let mut tally = workers.clone();
            tally.count(index, end);
            judge(&[tally, role("other", 1)])
        };
        let (good, bad) = (TaskEnd::Exited { code: 0 }, TaskEnd::Exited { code: 1 });
        assert_eq!(end(0, &good), DONE);
        assert_eq!(end(0, &bad), failed("w"));
        assert_eq!((end(1, &good), end(2, &bad)), (None, None));
    }

    #[test]
    fn serving_roles_do_not_hold_the_job_open() {
        let ps = RoleTally { serves: true, ..role("ps", 1) };
        let workers = RoleTally { succeeded: 2, ..role("w", 2) };
        assert_eq!(judge(&[ps.clone(), workers.clone()]), DONE);
        assert_eq!(
            judge(&[RoleTally { failed: 1, ..ps.clone() }, RoleTally { succeeded: 1, ..workers }]),
            failed("ps")
        );
        assert_eq!(judge(&[ps]), None);
    }

    #[test]
    fn success_comes_before_failure_in_one_observation() {
        let any = RoleTally { min_succeeded: MinSucceeded::Count(1), succeeded: 1, failed: 1, ..role("w", 2) };
        assert_eq!(judge(&[any]), Some(Decision::Succeeded { tolerated: 1 }));
    }

    #[test]
    fn failures_of_a_role_that_never_fails_are_tolerated_and_counted() {
        let role = RoleTally { min_failed: None, succeeded: 1, failed: 1, ..role("w", 2) };
        assert_eq!(judge(&[role]), Some(Decision::Succeeded { tolerated: 1 }));
    }

    #[test]
    fn a_bound_below_the_count_waits_and_then_fails_at_the_end() {
        let two = RoleTally { min_failed: Some(2), failed: 1, ..role("w", 2) };
        assert_eq!(judge(std::slice::from_ref(&two)), None);
        assert_eq!(judge(&[RoleTally { succeeded: 1, ..two }]), failed("w"));
    }

    /// The rules as docs/JOBS.md has them, told task by task.
    fn by_the_book(roles: &[RoleTally]) -> &'static str {
        // 1. A main role: its success ends the job at once. 3. So does a lower bound of successes that is reached.
        for role in roles {
            // Of one whose first task decides, that task does.
            if role.main == Main::FirstTask && role.first == Some(FirstEnd::Succeeded) {
                return "succeeded";
            }
            let bound = match role.min_succeeded {
                MinSucceeded::Never => continue,
                MinSucceeded::All => role.count,
                MinSucceeded::Count(bound) => bound,
            };
            let counts = role.main == Main::Role || (role.min_succeeded != MinSucceeded::All && bound < role.count);
            if counts && role.succeeded >= bound {
                return "succeeded";
            }
        }
        // 1. The failure of a main role fails the job; 2. so does a bound of failures that is reached.
        for role in roles {
            if role.main == Main::FirstTask && role.first == Some(FirstEnd::Failed) {
                return "failed";
            }
            let over = role.succeeded + role.failed == role.count;
            let fails = match role.min_failed {
                Some(bound) => role.failed >= bound,
                None => role.main == Main::Role && over && role.failed > 0,
            };
            if fails {
                return "failed";
            }
        }
        // 4. Otherwise when every task that counts has ended; those that serve count only among themselves.
        let counted: Vec<_> = roles.iter().filter(|role| !role.serves).collect();
        let counted = if counted.is_empty() { roles.iter().collect() } else { counted };
        if counted.iter().any(|role| role.succeeded + role.failed < role.count) {
            return "open";
        }
        if roles.iter().any(|role| role.failed > 0 && role.min_failed.is_some()) { "failed" } else { "succeeded" }
    }

    /// Every role of up to `most` tasks with every policy and every state.
    fn all_roles(name: &str, most: u32) -> Vec<RoleTally> {
        let mut out = Vec::new();
        for count in 1..=most {
            let bounds = || std::iter::once(None).chain((1..=count).map(Some));
            let successes = (1..=count).map(MinSucceeded::Count).chain([MinSucceeded::All, MinSucceeded::Never]);
            for min_succeeded in successes {
                for min_failed in bounds() {
                    for (main, serves) in [Main::No, Main::Role, Main::FirstTask]
                        .into_iter()
                        .flat_map(|main| [(main, false), (main, true)])
                    {
                        let policy = RoleTally { main, serves, min_failed, min_succeeded, ..role(name, count) };
                        out.extend(all_states(&policy));
                    }
                }
            }
        }
        out
    }

    /// How many of its tasks may have ended and how; where its first task decides, also how that has.
    fn all_states(policy: &RoleTally) -> Vec<RoleTally> {
        let counts = (0..=policy.count)
            .flat_map(|succeeded| (0..=policy.count - succeeded).map(move |failed| (succeeded, failed)));
        let states = counts.flat_map(|(succeeded, failed)| {
            let first = [
                (succeeded > 0).then_some(Some(FirstEnd::Succeeded)),
                (failed > 0).then_some(Some(FirstEnd::Failed)),
                (succeeded + failed < policy.count).then_some(None),
            ];
            let first = first.into_iter().flatten().filter(|_| policy.main == Main::FirstTask);
            let firsts: Vec<_> = first.chain((policy.main != Main::FirstTask).then_some(None)).collect();
            firsts.into_iter().map(move |first| (succeeded, failed, first))
        });
        states.map(|(succeeded, failed, first)| RoleTally { succeeded, failed, first, ..policy.clone() }).collect()
    }

    #[track_caller]
    fn assert_as_by_the_book(roles: &[RoleTally]) {
        let judged = match judge(roles) {
            None => "open",
            Some(Decision::Succeeded { .. }) => "succeeded",
            Some(Decision::Failed { .. }) => "failed",
        };
        assert_eq!(judged, by_the_book(roles), "{roles:#?}");
    }

    #[test]
    fn every_combination_of_policies_over_one_to_three_roles_is_judged_by_the_book() {
        let (many, one) = (all_roles("a", 3), all_roles("c", 1));
        let second = all_roles("b", 2);
        for a in &many {
            assert_as_by_the_book(std::slice::from_ref(a));
            for b in &second {
                assert_as_by_the_book(&[a.clone(), b.clone()]);
            }
        }
        for a in &one {
            for b in &one {
                for c in &one {
                    assert_as_by_the_book(&[a.clone(), b.clone(), c.clone()]);
                }
            }
        }
    }
}
