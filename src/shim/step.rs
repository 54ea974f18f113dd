//! What a shim does at each event. Pure: a table of states and events.
//!
//! ```text
//! Running ──StopRequested──► Stopping ──GraceOver──► Killed
//!    └────────┬─────────────────┴─────────┬────────────┘
//!         InitEnded                  StreamClosed (both)     both seen: ended
//! ```

use crate::status::{StopCause, TaskEnd};
use crate::sys::process::ProcessEnd;

/// What can happen to a running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    StopRequested(StopCause),
    /// The time between SIGTERM and SIGKILL is over.
    GraceOver,
    /// The container's first process has ended, and with it its pid namespace.
    InitEnded(ProcessEnd),
    /// No more output will come from one of the streams.
    StreamClosed,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// SIGTERM to the container's first process.
    Terminate,
    SetGrace,
    /// SIGKILL to the whole control group.
    KillAll,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Running,
    /// SIGTERM was sent.
    Stopping,
    /// SIGKILL was sent.
    Killed,
}

/// How far a task has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    phase: Phase,
    cause: Option<StopCause>,
    init: Option<ProcessEnd>,
    open_streams: usize,
}

impl Progress {
    pub fn running(open_streams: usize) -> Self {
        Self { phase: Phase::Running, cause: None, init: None, open_streams }
    }

    /// How the container's first process ended, once all output is in as well.
    pub fn ended(&self) -> Option<ProcessEnd> {
        self.init.filter(|_| self.open_streams == 0)
    }

    /// The container's first process has not ended yet.
    pub fn init_lives(&self) -> bool {
        self.init.is_none()
    }

    /// Why it was stopped, if it was.
    pub fn cause(&self) -> Option<&StopCause> {
        self.cause.as_ref()
    }
}

/// The next state and what to do.
pub fn step(mut progress: Progress, event: Event) -> (Progress, Vec<Action>) {
    let actions = match (event, &progress.phase) {
        (Event::StopRequested(cause), Phase::Running) if progress.init.is_none() => {
            progress.cause = Some(cause);
            progress.phase = Phase::Stopping;
            vec![Action::Terminate, Action::SetGrace]
        }
        // Asked again, or too late.
        (Event::StopRequested(_), _) => Vec::new(),
        (Event::GraceOver, Phase::Stopping) if progress.init.is_none() => {
            progress.phase = Phase::Killed;
            vec![Action::KillAll]
        }
        (Event::GraceOver, _) => Vec::new(),
        (Event::InitEnded(end), _) => {
            progress.init = Some(end);
            // Nothing may live on in the group, and nobody may keep the streams open.
            vec![Action::KillAll]
        }
        (Event::StreamClosed, _) => {
            progress.open_streams = progress.open_streams.saturating_sub(1);
            Vec::new()
        }
    };
    (progress, actions)
}

/// What the container's init told before it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitReport {
    /// How the command ended.
    Ended(ProcessEnd),
    /// The command could not be executed: the error number.
    NotExecuted { errno: i32 },
}

/// The end to record. `oom_kills` counts processes of the task that the kernel killed for want of memory.
pub fn judge_end(
    init: ProcessEnd,
    report: Option<InitReport>,
    cause: Option<&StopCause>,
    oom_kills: u64,
    memory: u64,
) -> TaskEnd {
    let end = match report {
        Some(InitReport::NotExecuted { errno }) => {
            return TaskEnd::FailedToStart { reason: execution_error(errno) };
        }
        Some(InitReport::Ended(end)) => end,
        None => init,
    };
    let succeeded = end == ProcessEnd::Exited(0);
    match cause {
        // It was ending well by itself when the attempt was decided.
        Some(StopCause::Decided) if succeeded => TaskEnd::Exited { code: 0 },
        Some(StopCause::TimedOut { limit_ms }) => TaskEnd::TimedOut { limit_ms: *limit_ms },
        Some(cause) => TaskEnd::Stopped { cause: cause.clone() },
        None if oom_kills > 0 && !succeeded => {
            let code = match end {
                ProcessEnd::Exited(code) => Some(code),
                ProcessEnd::Signalled(_) => None,
            };
            TaskEnd::Oom { limit: memory, code }
        }
        None => match end {
            ProcessEnd::Exited(code) => TaskEnd::Exited { code },
            ProcessEnd::Signalled(signal) => TaskEnd::Signalled { signal },
        },
    }
}

fn execution_error(errno: i32) -> String {
    use nix::errno::Errno;
    let hint = match Errno::from_raw(errno) {
        Errno::ENOENT => {
            "the program of `command` is not there, or not in PATH; with an image of \"host\" it must lie in this machine's /usr, /opt or in /code"
        }
        Errno::EACCES => "the program of `command` may not be executed; check its x bits and those of its directory",
        Errno::ENOEXEC => "the program of `command` is neither a binary for this machine nor a script with a #! line",
        Errno::E2BIG => "the arguments and environment of `command` are too large",
        other => return format!("cannot execute `command`: {}", other.desc()),
    };
    hint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stop() -> Event {
        Event::StopRequested(StopCause::Shutdown)
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(stop()),
            Just(Event::GraceOver),
            Just(Event::InitEnded(ProcessEnd::Exited(0))),
            Just(Event::StreamClosed),
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_a_task_is_terminated_once_killed_after_and_ends_exactly_when_all_is_in(
            events in prop::collection::vec(any_event(), 0..12)
        ) {
            let (mut progress, mut terminated, mut closed, mut init) = (Progress::running(2), 0, 0, false);
            for event in events {
                let was_stopping = progress.cause().is_some();
                closed += usize::from(event == Event::StreamClosed);
                init |= matches!(event, Event::InitEnded(_));
                let (next, actions) = step(progress, event.clone());
                terminated += actions.iter().filter(|action| **action == Action::Terminate).count();
                if actions.contains(&Action::KillAll) {
                    prop_assert!(was_stopping || matches!(event, Event::InitEnded(_)));
                }
                progress = next;
                prop_assert_eq!(progress.ended().is_some(), init && closed >= 2);
            }
            prop_assert!(terminated <= 1);
            prop_assert_eq!(terminated == 1, progress.cause().is_some());
        }
    }

    #[test]
    fn ends_are_told_as_they_were() {
        let user = StopCause::User { name: "ada".into() };
        let nine = Some(InitReport::Ended(ProcessEnd::Signalled(9)));
        let seven = Some(InitReport::Ended(ProcessEnd::Exited(7)));
        let zero = Some(InitReport::Ended(ProcessEnd::Exited(0)));
        let init = ProcessEnd::Exited(137);
        let end = |report: &Option<InitReport>, cause, oom| judge_end(init, report.clone(), cause, oom, 64);
        assert_eq!(end(&seven, None, 0), TaskEnd::Exited { code: 7 });
        assert_eq!(end(&nine, None, 0), TaskEnd::Signalled { signal: 9 });
        assert_eq!(end(&None, None, 0), TaskEnd::Exited { code: 137 });
        assert_eq!(end(&nine, None, 1), TaskEnd::Oom { limit: 64, code: None });
        assert_eq!(end(&seven, None, 1), TaskEnd::Oom { limit: 64, code: Some(7) });
        assert_eq!(end(&zero, None, 1), TaskEnd::Exited { code: 0 });
        assert_eq!(end(&nine, Some(&user), 0), TaskEnd::Stopped { cause: user.clone() });
        assert_eq!(end(&zero, Some(&StopCause::Decided), 0), TaskEnd::Exited { code: 0 });
        assert_eq!(end(&nine, Some(&StopCause::TimedOut { limit_ms: 5 }), 0), TaskEnd::TimedOut { limit_ms: 5 });
        let missing = Some(InitReport::NotExecuted { errno: nix::libc::ENOENT });
        assert!(matches!(end(&missing, None, 0), TaskEnd::FailedToStart { .. }));
    }
}
