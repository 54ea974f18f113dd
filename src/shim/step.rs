//! What a shim does at each event. Pure: a table of states and events.
//!
//! ```text
//! Running ──StopRequested──► Stopping ──GraceOver──► Killed
//!    └────────┬─────────────────┴─────────┬────────────┘
//!         InitEnded                  StreamClosed (both)     both seen, or Hanging: ended
//! ```

use serde::{Deserialize, Serialize};

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
    /// The command has failed, and the container stays to be looked into.
    Kept,
    /// What was killed hangs in the kernel: its end cannot be waited for.
    Hanging,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// SIGTERM to the container's first process.
    Terminate,
    SetGrace,
    /// SIGKILL to the whole control group.
    KillAll,
    /// Write down that the container is kept, and set the time at which that ends.
    Keep,
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
    /// The command has ended, only the container has not.
    kept: bool,
    /// Killed, and does not go.
    hangs: bool,
}

impl Progress {
    pub fn running(open_streams: usize) -> Self {
        Self { phase: Phase::Running, cause: None, init: None, open_streams, kept: false, hangs: false }
    }

    /// How the container's first process ended, once all output is in as well; what was killed and hangs is as good as dead.
    pub fn ended(&self) -> Option<ProcessEnd> {
        let killed = ProcessEnd::Signalled { signal: nix::libc::SIGKILL, core: false };
        match self.hangs {
            true => Some(self.init.unwrap_or(killed)),
            false => self.init.filter(|_| self.open_streams == 0),
        }
    }

    /// The container's first process has not ended yet.
    pub fn init_lives(&self) -> bool {
        self.init.is_none()
    }

    /// Why it was stopped, if that is how it ended.
    pub fn cause(&self) -> Option<&StopCause> {
        self.cause.as_ref().filter(|_| !self.kept)
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
        (Event::Kept, _) if progress.init.is_none() => {
            progress.kept = true;
            vec![Action::Keep]
        }
        (Event::Kept, _) => Vec::new(),
        // It was kept for as long as it may be.
        (Event::GraceOver, Phase::Running) if progress.kept && progress.init.is_none() => {
            progress.phase = Phase::Stopping;
            vec![Action::Terminate, Action::SetGrace]
        }
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
        (Event::Hanging, _) => {
            progress.hangs = true;
            Vec::new()
        }
        (Event::StreamClosed, _) => {
            progress.open_streams = progress.open_streams.saturating_sub(1);
            Vec::new()
        }
    };
    (progress, actions)
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandEnd {
    Exited(i32),
    Signalled { signal: i32, core: bool },
}

impl CommandEnd {
    /// As a shell would tell it.
    pub fn code(self) -> i32 {
        match self {
            CommandEnd::Exited(code) => code,
            CommandEnd::Signalled { signal, .. } => 128 + signal,
        }
    }
}

impl From<ProcessEnd> for CommandEnd {
    fn from(end: ProcessEnd) -> Self {
        match end {
            ProcessEnd::Exited(code) => Self::Exited(code),
            ProcessEnd::Signalled { signal, core } => Self::Signalled { signal, core },
        }
    }
}

/// What the container's init told before it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitReport {
    Ended(CommandEnd),
    /// The command could not be executed, and why.
    NotExecuted {
        reason: String,
    },
}

/// What the kernel did to a task for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryWant {
    /// Bytes that the task may have.
    pub limit: u64,
    /// Bytes that it had at most, where the kernel tells.
    pub peak: Option<u64>,
    /// Processes of the task that were killed.
    pub kills: u64,
}

/// The end to record.
pub fn judge_end(
    init: ProcessEnd,
    report: Option<InitReport>,
    cause: Option<&StopCause>,
    memory: MemoryWant,
) -> TaskEnd {
    let end = match report {
        Some(InitReport::NotExecuted { reason }) => return TaskEnd::FailedToStart { reason },
        Some(InitReport::Ended(end)) => end,
        None => init.into(),
    };
    let code = match end {
        CommandEnd::Exited(code) => Some(code),
        CommandEnd::Signalled { .. } => None,
    };
    match cause {
        Some(cause) => cause.judge(code),
        // Whatever the command made of it: its work is not what it would have been.
        None if memory.kills > 0 => TaskEnd::Oom { limit: memory.limit, peak: memory.peak, code },
        None => match end {
            CommandEnd::Exited(code) => TaskEnd::Exited { code },
            CommandEnd::Signalled { signal, core } => TaskEnd::Signalled { signal, core },
        },
    }
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
    fn what_is_kept_ends_when_told_or_when_its_time_is_over_and_keeps_its_own_end() {
        for last in [stop(), Event::GraceOver] {
            let (progress, actions) = step(Progress::running(0), Event::Kept);
            assert_eq!(actions, [Action::Keep]);
            let (progress, actions) = step(progress, last);
            assert_eq!(actions, [Action::Terminate, Action::SetGrace]);
            let (progress, actions) = step(progress, Event::GraceOver);
            assert_eq!(actions, [Action::KillAll]);
            assert_eq!(progress.cause(), None, "it had failed before");
        }
    }

    #[test]
    fn what_hangs_after_its_kill_is_not_waited_for() {
        let mut progress = Progress::running(2);
        for event in [stop(), Event::GraceOver] {
            progress = step(progress, event).0;
        }
        assert_eq!(progress.ended(), None);
        let (progress, actions) = step(progress, Event::Hanging);
        assert_eq!(progress.ended(), Some(ProcessEnd::Signalled { signal: 9, core: false }));
        assert!(actions.is_empty() && progress.cause().is_some());
    }

    #[test]
    fn ends_are_told_as_they_were() {
        let user = StopCause::User { name: "ada".into() };
        let signalled = |core| Some(InitReport::Ended(CommandEnd::Signalled { signal: 9, core }));
        let exited = |code| Some(InitReport::Ended(CommandEnd::Exited(code)));
        let (nine, seven, zero) = (signalled(false), exited(7), exited(0));
        let init = ProcessEnd::Exited(137);
        let end = |report: &Option<InitReport>, cause, kills| {
            judge_end(init, report.clone(), cause, MemoryWant { limit: 64, peak: Some(63), kills })
        };
        let oom = |code| TaskEnd::Oom { limit: 64, peak: Some(63), code };
        assert_eq!(end(&seven, None, 0), TaskEnd::Exited { code: 7 });
        assert_eq!(end(&nine, None, 0), TaskEnd::Signalled { signal: 9, core: false });
        assert_eq!(end(&signalled(true), None, 0), TaskEnd::Signalled { signal: 9, core: true });
        assert_eq!(end(&None, None, 0), TaskEnd::Exited { code: 137 });
        assert_eq!(end(&nine, None, 1), oom(None));
        assert_eq!(end(&seven, None, 1), oom(Some(7)));
        assert_eq!(end(&zero, None, 1), oom(Some(0)));
        assert_eq!(end(&zero, Some(&StopCause::Decided), 1), TaskEnd::Exited { code: 0 });
        assert_eq!(end(&nine, Some(&user), 0), TaskEnd::Stopped { cause: user.clone(), code: None });
        let untold = Some(&StopCause::ShimSignalled);
        assert_eq!(end(&zero, untold, 0), TaskEnd::Stopped { cause: StopCause::ShimSignalled, code: Some(0) });
        assert_eq!(end(&nine, untold, 0), TaskEnd::Stopped { cause: StopCause::ShimSignalled, code: None });
        assert_eq!(end(&zero, Some(&StopCause::Decided), 0), TaskEnd::Exited { code: 0 });
        assert_eq!(end(&nine, Some(&StopCause::TimedOut { limit_ms: 5 }), 0), TaskEnd::TimedOut { limit_ms: 5 });
        let judge = |code| StopCause::Decided.judge(code);
        assert_eq!(judge(Some(0)), TaskEnd::Exited { code: 0 });
        assert_eq!(judge(Some(1)), TaskEnd::Stopped { cause: StopCause::Decided, code: None });
        let missing = Some(InitReport::NotExecuted { reason: "it is not there".into() });
        assert!(matches!(end(&missing, None, 0), TaskEnd::FailedToStart { .. }));
    }
}
