//! The first process of a container (pid 1, but where tasks share a process namespace: see `hold`): starts the command, passes signals on to it, reaps what it leaves behind.
//!
//! Runs inside of the container, after libcontainer has dropped every right; it is our own code in the sealed copy
//! of our binary, so nothing need be found in the image. Without it a command would be pid 1 itself and SIGTERM would
//! do nothing to it.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, execve, setpgid};

use super::requirements;
use super::step::{CommandEnd, InitReport};
use crate::rundir::{self, LaunchRecord, Requirements};
use crate::sys::process::{Fork, ProcessEnd, close_all_but, exit_now, fork, reap_any, write_by_number};
use crate::sys::seccomp;
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
/// Longest report, bytes: a pipe takes it whole or not at all.
const REPORT_MAX: usize = 4096;

/// libcontainer's hook for what the container's first process does.
#[derive(Clone)]
pub(super) struct Init {
    report: RawFd,
    stop_signal: i32,
    first: rundir::Init,
    requirements: Option<Requirements>,
    after_failure: AfterFailure,
}

/// What becomes of the container when its command has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterFailure {
    End,
    /// It stays to be looked into until it is told to stop.
    Stay,
}

impl Init {
    /// `report` is the writing end of a pipe on which the end of the command is told; it must stay open until the
    /// container is created.
    pub(super) fn new(report: &OwnedFd, launch: &LaunchRecord) -> Self {
        let after_failure = if launch.keep_failed_ms.is_some() { AfterFailure::Stay } else { AfterFailure::End };
        let (stop_signal, first, requirements) = (launch.stop_signal, launch.init, launch.requirements.clone());
        Self { report: report.as_raw_fd(), stop_signal, first, requirements, after_failure }
    }
}

impl Executor for Init {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let command = Command::of(spec).ok_or(ExecutorError::InvalidArg)?;
        let served = match self.first {
            rundir::Init::Ours => self.serve(&command),
            rundir::Init::Command => close_all_but(&[self.report]).map(|()| execute(&command, self.report)),
        };
        let code = match served {
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

    fn path(&self) -> &[u8] {
        self.env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH=")).unwrap_or_default()
    }
}

impl Init {
    /// Starts the command and stays until it has ended; returns the exit code of the container.
    fn serve(&self, command: &Command) -> io::Result<i32> {
        close_all_but(&[self.report])?;
        // It is not the first process of its namespace where tasks share one.
        nix::sys::prctl::set_child_subreaper(true)?;
        let watched: Vec<Signal> = PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect();
        signals::block(&watched)?;
        if let Some(requirements) = &self.requirements {
            let installed = self.attend(&Step::Install(requirements), command, &watched)?;
            let is_done = installed.end == CommandEnd::Exited(0);
            if !is_done && !installed.asked_to_stop {
                let reason = requirements::reason(requirements, &format!("{:?}", installed.end));
                write_report(self.report, &InitReport::NotExecuted { reason });
            }
            if !is_done || installed.asked_to_stop {
                return self.leave(installed, &watched);
            }
        }
        let attended = self.attend(&Step::Command, command, &watched)?;
        self.leave(attended, &watched)
    }

    /// Starts a process and stays until it has ended.
    fn attend(&self, step: &Step<'_>, command: &Command, watched: &[Signal]) -> io::Result<Attended> {
        let child = match (fork()?, step) {
            (Fork::Child, Step::Install(requirements)) => install(requirements, command, self.report),
            (Fork::Child, Step::Command) => start(command, self.report),
            (Fork::Parent(child), _) => child,
        };
        // Also done by the child; whoever comes first, signals to the group find it.
        let _ = setpgid(child, child);
        let mut asked_to_stop = false;
        let mut ended = None;
        loop {
            match signals::wait_for(watched)? {
                Signal::SIGCHLD => ended = ended.or(reap(child)?),
                signal => {
                    asked_to_stop |= signal == Signal::SIGTERM;
                    let number = if signal == Signal::SIGTERM { self.stop_signal } else { signal as i32 };
                    let _ = signals::send_to_group(child.as_raw(), number);
                }
            }
            // A shell dies of SIGTERM at once; the program that it started may still be saving its work.
            if let Some(end) = ended.filter(|_| !(asked_to_stop && has_children())) {
                return Ok(Attended { end, asked_to_stop });
            }
        }
    }

    /// Tells how it has ended, unless something was told already; the exit code of the container.
    fn leave(&self, attended: Attended, watched: &[Signal]) -> io::Result<i32> {
        let Attended { end, asked_to_stop } = attended;
        tell(self.report, end);
        if self.after_failure == AfterFailure::Stay && end != CommandEnd::Exited(0) && !asked_to_stop {
            stay(watched)?;
        }
        Ok(end.code())
    }
}

/// What is run, one after the other.
enum Step<'a> {
    Install(&'a Requirements),
    Command,
}

/// How a process of ours came to its end.
struct Attended {
    end: CommandEnd,
    asked_to_stop: bool,
}

/// Becomes what installs the requirements, when it is this task's turn and still to be done.
fn install(requirements: &Requirements, command: &Command, report: RawFd) -> ! {
    // Told to stop while it waits for its turn, it ends.
    let turn = signals::restore_for_exec().and_then(|()| requirements::take_turn(requirements));
    match turn {
        Err(error) => fail(report, &format!("cannot wait for others that install requirements: {error}")),
        Ok(false) => exit_now(0),
        Ok(true) => match requirements::installer(requirements, command) {
            Some(installer) => start(&installer, report),
            None => fail(report, "the requirements cannot be installed: their name holds a NUL"),
        },
    }
}

/// Reaps what others start in the container until it is told to stop.
fn stay(watched: &[Signal]) -> io::Result<()> {
    loop {
        match signals::wait_for(watched)? {
            Signal::SIGTERM => return Ok(()),
            Signal::SIGCHLD => drop(reap(Pid::from_raw(0))?),
            _ => {}
        }
    }
}

/// Becomes the command, in a process group of its own.
fn start(command: &Command, report: RawFd) -> ! {
    if let Err(errno) = setpgid(Pid::from_raw(0), Pid::from_raw(0)) {
        fail(report, &format!("cannot make a process group: {errno}"));
    }
    execute(command, report)
}

fn execute(command: &Command, report: RawFd) -> ! {
    if let Err(error) = signals::restore_for_exec() {
        fail(report, &format!("cannot restore the signals: {error}"));
    }
    // The last thing: what comes after must be allowed by it.
    let confined = seccomp::compile().map_err(io::Error::other).and_then(|filter| filter.apply());
    if let Err(error) = confined {
        fail(report, &format!("cannot confine the command: the kernel takes no seccomp filter: {error}"));
    }
    match search_and_execute(command) {
        Ok(never) => match never {},
        Err((errno, tried)) => fail(report, &explain(errno, command, &tried)),
    }
}

fn fail(report: RawFd, reason: &str) -> ! {
    write_report(report, &InitReport::NotExecuted { reason: reason.to_owned() });
    exit_now(127)
}

/// `execvpe` searches the PATH of this process, which is empty: search the command's own. What was tried last that was
/// there, or last at all.
pub(super) fn search_and_execute(command: &Command) -> Result<std::convert::Infallible, (Errno, CString)> {
    let program = command.args.first().cloned().unwrap_or_default();
    if program.as_bytes().is_empty() || program.as_bytes().contains(&b'/') {
        return execve(&program, &command.args, &command.env).map_err(|errno| (errno, program));
    }
    let mut worst = (Errno::ENOENT, program.clone());
    for directory in command.path().split(|byte| *byte == b':').filter(|directory| !directory.is_empty()) {
        let candidate = [directory, b"/", program.as_bytes()].concat();
        let Ok(candidate) = CString::new(candidate) else { continue };
        match execve(&candidate, &command.args, &command.env) {
            Ok(never) => match never {},
            // There, but what it needs is not.
            Err(Errno::ENOENT) if is_there(&candidate) => return Err((Errno::ENOENT, candidate)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => worst = (errno, candidate),
        }
    }
    Err(worst)
}

fn is_there(path: &CStr) -> bool {
    nix::sys::stat::stat(path).is_ok()
}

/// Why the command could not be executed, with what was looked for.
pub(super) fn explain(errno: Errno, command: &Command, tried: &CStr) -> String {
    let path = tried.to_string_lossy();
    let is_path = tried.to_bytes().contains(&b'/');
    match errno {
        Errno::ENOENT if is_path && is_there(tried) => match interpreter(Path::new(&*path)) {
            Some(interpreter) => format!(
                "{path} is there, but {interpreter}, which it is to be run by, is not; the image lacks it, or the first line of the script ends in a carriage return"
            ),
            None => format!("{path} is there, but what it is to be run by is not in the image"),
        },
        Errno::ENOENT if path == "/bin/sh" => {
            "the image has no /bin/sh, which runs a `command` that is a string; write `command` as an array".to_owned()
        }
        Errno::ENOENT | Errno::ENOTDIR if is_path => format!("{path} is not there: no such file in the container"),
        Errno::ENOENT => {
            let searched = String::from_utf8_lossy(command.path()).into_owned();
            format!("there is no program {path:?} in any directory of PATH ({searched})")
        }
        Errno::EACCES => format!(
            "{path} may not be executed by the user of the task: permission denied; check its x bits and those of its directories"
        ),
        Errno::ENOEXEC => {
            format!("{path} is neither a program for this machine nor a script with a #! line: exec format error")
        }
        Errno::E2BIG => format!("the arguments and the environment of {path} are too large"),
        other => format!("cannot execute {path}: {}", other.desc()),
    }
}

/// What the file says it is to be run by: the first line of a script, or the loader that a program asks for.
fn interpreter(path: &Path) -> Option<String> {
    let mut start = [0; 4096];
    let count = std::fs::File::open(path).ok()?.read(&mut start).ok()?;
    let start = start.get(..count)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next()?).into_owned();
        return line.split(' ').find(|word| !word.is_empty()).map(|word| word.escape_debug().to_string());
    }
    // The loader's name lies near the start of a program, as a path that ends in NUL.
    let at = start.windows(4).position(|window| window == b"/lib" || window == b"/nix")?;
    let name = start.get(at..)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Reaps all that has ended; the end of the command itself if it was among them.
fn reap(command: Pid) -> io::Result<Option<CommandEnd>> {
    let mut found = None;
    while let Some((pid, end)) = reap_any()? {
        if pid == command.as_raw() {
            found = Some(match end {
                ProcessEnd::Exited(code) => CommandEnd::Exited(code),
                ProcessEnd::Signalled { signal, core } => CommandEnd::Signalled { signal, core },
            });
        }
    }
    Ok(found)
}

fn has_children() -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(nix::sys::wait::waitid(nix::sys::wait::Id::All, flags), Err(Errno::ECHILD))
}

fn tell(report: RawFd, end: CommandEnd) {
    write_report(report, &InitReport::Ended(end));
}

fn write_report(report: RawFd, value: &InitReport) {
    let Ok(mut bytes) = serde_json::to_vec(value) else { return };
    if bytes.len() >= REPORT_MAX {
        let reason = "cannot execute the command, whose name is too long to be told".to_owned();
        bytes = serde_json::to_vec(&InitReport::NotExecuted { reason }).unwrap_or_default();
    }
    bytes.push(b'\n');
    // Nobody is left to tell of a failure; the exit code still says it.
    let _ = write_by_number(report, &bytes);
}

/// Reads what the init told, if it has told something; the first word counts. Does not wait.
pub(super) fn read_report(report: &OwnedFd) -> Option<InitReport> {
    let mut bytes = [0; REPORT_MAX];
    let count = nix::unistd::read(report, &mut bytes).ok()?;
    let line = bytes.get(..count)?.split(|byte| *byte == b'\n').next()?;
    serde_json::from_slice(line).ok()
}
