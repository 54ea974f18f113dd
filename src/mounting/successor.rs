//! Goes on as the program of the daemon, which may be a newer one, without the mount being taken away.
//!
//! ```text
//! SIGUSR2 ─▶ the program says that it reads our state ─▶ counting and publishing hold still
//!         ─▶ what shows directly is killed, its mounts stay ─▶ nothing is begun, what was begun is answered ─▶ exec
//!                                                        │ not in time, no such program, another state
//!            again in a while, a few times ◀── serves on, ◀─┘
//!            or told to the daemon             shows directly again
//! ```
//! The process stays the same, with its number and its lock, so the daemon goes on watching it. The new program reads what was
//! kept; where it cannot all the same, it ends, and the daemon mounts anew, as after a crash.
//!
//! An exec waits for all other threads. Those that serve have ended, those that look at people's files hold still (`pause`), and
//! what is left waits for nothing but signals and sockets: none of them can keep it waiting for a disk.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use trainyard_fs::{MountError, Mounted, NotPaused, Paused, Reason, STATE_VERSION};

use super::MountConfig;
use crate::sys::lock::{HeldLock, pid_in};
use crate::sys::pause;
use crate::sys::process::{SealedProgram, file_in_memory};
use crate::workspace::view::WorkspaceTree;

/// So long everything waits for what is being answered.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long a program may take to say which states it reads.
const ANSWER: Duration = Duration::from_secs(10);
/// And then goes on, until it is tried again.
const REST: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 6;

type Served = Mounted<WorkspaceTree>;

/// A request to hand over that is not done yet.
#[derive(Debug)]
pub(super) struct Attempts {
    left: u32,
    due: Instant,
}

impl Attempts {
    pub(super) fn first() -> Self {
        Self { left: ATTEMPTS, due: Instant::now() }
    }

    /// Until the next one.
    pub(super) fn wait(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// One has failed; `None` if that was the last.
    pub(super) fn next(self) -> Option<Self> {
        let left = self.left - 1;
        (left > 0).then(|| Self { left, due: Instant::now() + REST })
    }
}

/// Why the program stays the old one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot find the daemon's program")]
    Program(#[source] io::Error),
    #[error("the daemon's program does not say which states of a mount it reads, as older ones do not")]
    Silent(#[source] io::Error),
    #[error("the daemon's program reads {reads:?} of the states of a mount, this one has version {STATE_VERSION}")]
    State { reads: Vec<u32> },
    #[error("a workspace that is counted or published waits for its disk")]
    Disk,
    #[error("the mount cannot be paused")]
    Pause(#[source] Reason),
    #[error("cannot keep what the next program needs")]
    Keep(#[source] io::Error),
    #[error("cannot execute the daemon's program")]
    Exec(#[source] io::Error),
}

impl Failure {
    /// Whether it may be otherwise in a while.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Self::Disk | Self::Pause(Reason::Busy | Reason::Threads(_)))
    }

    /// Whether it is the same whenever it is tried with that program.
    pub(super) fn is_of_program(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::State { .. })
    }
}

/// The program to go on as, and nobody in the midst of a disk.
#[derive(Debug)]
pub(super) struct Ready {
    program: SealedProgram,
    _held: pause::Held,
}

pub(super) fn prepare(config: &MountConfig) -> Result<Ready, Failure> {
    let program = program(config)?;
    let held = pause::hold(PATIENCE).ok_or(Failure::Disk)?;
    Ok(Ready { program, _held: held })
}

/// The daemon's program, which reads our state.
fn program(config: &MountConfig) -> Result<SealedProgram, Failure> {
    let program = daemons_program(config).map_err(Failure::Program)?;
    let told = program.output(&["mount".into(), "--state-versions".into()], ANSWER).map_err(Failure::Silent)?;
    let reads = state_versions(&told).ok_or_else(|| Failure::Silent(io::ErrorKind::InvalidData.into()))?;
    match reads.contains(&STATE_VERSION) {
        true => Ok(program),
        false => Err(Failure::State { reads }),
    }
}

/// What [`trainyard_fs::STATES_READ`] of a program tells.
fn state_versions(told: &str) -> Option<Vec<u32>> {
    let numbers = told.lines().find_map(|line| line.strip_prefix("states of a mount: "))?;
    numbers.split(' ').map(|number| number.parse().ok()).collect()
}

/// Returns only if that fails, with the mount, which is served on.
pub(super) fn hand_over(
    mounted: Served,
    ready: Ready,
    config: &MountConfig,
    lock: Option<&OwnedFd>,
) -> Result<(Served, Failure), MountError> {
    match mounted.pause(PATIENCE) {
        Err(not_paused) => {
            let NotPaused { mounted, reason } = *not_paused;
            Ok((mounted, Failure::Pause(reason)))
        }
        Ok(paused) => {
            let failure = execute(&ready.program, &paused, config, lock);
            Ok((paused.resume()?, failure))
        }
    }
}

fn daemons_program(config: &MountConfig) -> io::Result<SealedProgram> {
    let lock = config.paths.daemon_lock();
    let pid = pid_in(&lock)?.ok_or_else(|| io::Error::other("no daemon has written its number"))?;
    let program = SealedProgram::of_process(pid)?;
    // The number of a daemon that has ended may be anybody's by now, and what we execute is root.
    match HeldLock::try_take(&lock)?.is_none() && pid_in(&lock)? == Some(pid) {
        true => Ok(program),
        false => Err(io::Error::other("no daemon runs")),
    }
}

fn execute(
    program: &SealedProgram,
    paused: &Paused<WorkspaceTree>,
    config: &MountConfig,
    lock: Option<&OwnedFd>,
) -> Failure {
    let file = match file_in_memory("kept") {
        Ok(file) => file,
        Err(error) => return Failure::Keep(error),
    };
    let mut inherit = match paused.keep(&file) {
        Ok(descriptors) => descriptors,
        Err(error) => return Failure::Keep(error),
    };
    let mut arguments = vec!["--root".into(), config.paths.root().into(), "mount".into()];
    let options = lock.map(|lock| ("--lock-fd", lock.as_raw_fd())).into_iter();
    for (option, number) in options.chain([("--kept-fd", file.as_raw_fd())]) {
        arguments.extend([option.into(), number.to_string().into()]);
        inherit.push(number);
    }
    Failure::Exec(program.replace_this_process(&arguments, &inherit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_which_states_it_reads_and_ours_is_among_them() {
        let reads = state_versions(trainyard_fs::STATES_READ).expect("it is understood");
        assert!(reads.contains(&STATE_VERSION), "{reads:?}");
        assert_eq!(state_versions("states of a mount: 3 4\n"), Some(vec![3, 4]));
        assert_eq!(state_versions("error: unexpected argument"), None);
        assert_eq!(state_versions("states of a mount: all"), None);
    }
}
