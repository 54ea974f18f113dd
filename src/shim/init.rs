//! The first process of a container: starts the command, passes signals on to it, reaps what it leaves behind.
//!
//! Runs inside of the container, after libcontainer has dropped every right; it is our own code in the sealed copy
//! of our binary, so nothing need be found in the image. Without it a command would be pid 1 itself and SIGTERM would
//! do nothing to it.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, execvpe, setpgid};

use super::step::InitReport;
use crate::sys::process::{Fork, ProcessEnd, close_all_but, exit_now, fork, write_by_number};
use crate::sys::signals;

/// What a stop can come as; passed on to the command's process group.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];
const NOT_EXECUTED: u32 = 3;
const SIGNALLED: u32 = 2;
const EXITED: u32 = 1;

/// libcontainer's hook for what the container's first process does.
#[derive(Clone)]
pub(super) struct Init {
    report: RawFd,
}

impl Init {
    /// `report` is the writing end of a pipe on which the end of the command is told; it must stay open until the
    /// container is created.
    pub(super) fn new(report: &OwnedFd) -> Self {
        Self { report: report.as_raw_fd() }
    }
}

impl Executor for Init {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let command = Command::of(spec).ok_or(ExecutorError::InvalidArg)?;
        let code = match serve(&command, self.report) {
            Ok(code) => code,
            Err(error) => {
                // All that is left to tell it to is the log of the task.
                let _ = writeln!(io::stderr(), "trainyard: the container's init failed: {error}");
                125
            }
        };
        exit_now(code)
    }

    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        // Whether the command can be executed is known by executing it.
        Ok(())
    }

    fn setup_envs(&self, _envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        // The command gets its environment from the configuration; this process needs none.
        Ok(())
    }
}

pub(super) struct Command {
    pub(super) args: Vec<CString>,
    pub(super) env: Vec<CString>,
}

impl Command {
    fn of(spec: &Spec) -> Option<Self> {
        let process = spec.process().as_ref()?;
        let strings =
            |items: &Vec<String>| items.iter().filter_map(|item| CString::new(item.as_bytes()).ok()).collect();
        Some(Self { args: process.args().as_ref().map(strings)?, env: process.env().as_ref().map(strings)? })
    }
}

/// Starts the command and stays until it has ended; returns the exit code of the container.
fn serve(command: &Command, report: RawFd) -> io::Result<i32> {
    close_all_but(&[report])?;
    let watched: Vec<Signal> = PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect();
    signals::block(&watched)?;
    let child = match fork()? {
        Fork::Child => execute(command, report),
        Fork::Parent(child) => child,
    };
    // Also done by the child; whoever comes first, signals to the group find it.
    let _ = setpgid(child, child);
    let mut asked_to_stop = false;
    let mut ended = None;
    loop {
        match signals::wait_for(&watched)? {
            Signal::SIGCHLD => ended = ended.or(reap(child)?),
            signal => {
                asked_to_stop |= signal == Signal::SIGTERM;
                let _ = kill(Pid::from_raw(-child.as_raw()), signal);
            }
        }
        // A shell dies of SIGTERM at once; the program that it started may still be saving its work.
        if let Some(end) = ended.filter(|_| !(asked_to_stop && has_children())) {
            return Ok(tell(report, end));
        }
    }
}

fn execute(command: &Command, report: RawFd) -> ! {
    let prepared = signals::restore_for_exec().and_then(|()| Ok(setpgid(Pid::from_raw(0), Pid::from_raw(0))?));
    let error = match (prepared, command.args.first()) {
        (Ok(()), Some(program)) => match search_and_execute(program, command) {
            Ok(never) => match never {},
            Err(errno) => errno as i32,
        },
        (Err(error), _) => error.raw_os_error().unwrap_or(0),
        (_, None) => nix::libc::ENOENT,
    };
    write_report(report, NOT_EXECUTED, error);
    exit_now(127)
}

/// `execvpe` searches the PATH of this process, which is empty: search the command's own.
pub(super) fn search_and_execute(program: &CString, command: &Command) -> nix::Result<std::convert::Infallible> {
    if program.as_bytes().contains(&b'/') {
        return execvpe(program, &command.args, &command.env);
    }
    let path = command.env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
    let mut worst = nix::errno::Errno::ENOENT;
    for directory in path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty()) {
        let candidate = [directory, b"/", program.as_bytes()].concat();
        let Ok(candidate) = CString::new(candidate) else { continue };
        match execvpe(&candidate, &command.args, &command.env) {
            Ok(never) => match never {},
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => {}
            Err(errno) => worst = errno,
        }
    }
    Err(worst)
}

/// Reaps all that has ended; the end of the command itself if it was among them.
fn reap(command: Pid) -> io::Result<Option<ProcessEnd>> {
    let mut found = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => found = Some(ProcessEnd::Exited(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                found = Some(ProcessEnd::Signalled(signal as i32));
            }
            Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(found),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn has_children() -> bool {
    !matches!(
        nix::sys::wait::waitid(
            nix::sys::wait::Id::All,
            WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT
        ),
        Err(nix::errno::Errno::ECHILD)
    )
}

fn tell(report: RawFd, end: ProcessEnd) -> i32 {
    match end {
        ProcessEnd::Exited(code) => {
            write_report(report, EXITED, code);
            code
        }
        ProcessEnd::Signalled(signal) => {
            write_report(report, SIGNALLED, signal);
            128 + signal
        }
    }
}

fn write_report(report: RawFd, kind: u32, value: i32) {
    let mut bytes = Vec::from(kind.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    // Nobody is left to tell of a failure; the exit code still says it.
    let _ = write_by_number(report, &bytes);
}

/// Reads what the init told; the first word counts.
pub(super) fn read_report(report: OwnedFd) -> Option<InitReport> {
    let mut bytes = [0; 8];
    std::fs::File::from(report).read_exact(&mut bytes).ok()?;
    let (kind, value) = bytes.split_at(4);
    let value = i32::from_le_bytes(value.try_into().ok()?);
    match u32::from_le_bytes(kind.try_into().ok()?) {
        EXITED => Some(InitReport::Ended(ProcessEnd::Exited(value))),
        SIGNALLED => Some(InitReport::Ended(ProcessEnd::Signalled(value))),
        NOT_EXECUTED => Some(InitReport::NotExecuted { errno: value }),
        _ => None,
    }
}
