//! The child that `enter` forks: in the task's namespaces, on its way to being one of the task's processes.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use libcontainer::oci_spec::runtime::Process;
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::super::confine;
use super::super::init::{Command, explain, search_and_execute};
use super::{Control, EnterError, Watcher, failed};
use crate::rundir::entry::{OWN_FAILURE, Order, Report, Terminal};
use crate::sys::process::exit_now;
use crate::sys::signals;
use crate::sys::terminal::{self, Pair};
use crate::transfer::{self, Asked};

/// Exit codes of shells.
const NOT_THERE: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

pub(super) struct Inside<'a> {
    pub(super) order: Order,
    pub(super) process: &'a Process,
    pub(super) control: &'a Control,
    pub(super) parent: &'a Watcher,
}

/// How it could not be done.
struct Failure {
    code: i32,
    reason: String,
}

impl From<EnterError> for Failure {
    fn from(error: EnterError) -> Self {
        Self { code: OWN_FAILURE, reason: error.to_string() }
    }
}

impl Inside<'_> {
    /// What the parent holds of the machine's own must have been closed: in `/proc/self/fd` it would be a way out of the task.
    pub(super) fn run(self) -> ! {
        let code = match self.go() {
            Ok(()) => 0,
            Err(Failure { code, reason }) => {
                // Nobody is left to tell when the daemon has gone.
                let _ = self.control.tell(&Report::Failed { code, reason }, None);
                code
            }
        };
        exit_now(code)
    }

    fn go(&self) -> Result<(), Failure> {
        let os = |errno: Errno| io::Error::from(errno);
        nix::unistd::setsid().map_err(os).map_err(failed("begin a session"))?;
        let directory = self.process.cwd();
        // As root of the task, then once more as its user: it may be let in only as one of them.
        let entered = nix::unistd::chdir(directory);
        confine::apply(self.process).map_err(failed("take on the task's limits"))?;
        // After the last change of credentials, which would reset it.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(os).map_err(failed("end with our parent"))?;
        self.parent.must_live().map_err(failed("end with our parent"))?;
        let place = format!("enter the working directory {}", directory.display());
        entered.or_else(|_| nix::unistd::chdir(directory)).map_err(os).map_err(failed(&place))?;
        // A link could have led to a directory of the machine that some process still holds.
        nix::unistd::getcwd().map_err(os).and_then(inside).map_err(failed(&place))?;
        match &self.order {
            Order::Run { command, terminal } => self.execute(command, terminal.as_ref()),
            Order::Read(path) => {
                // Nobody may be left to tell.
                let mut note = |text: String| drop(writeln!(io::stderr(), "trainyard: {text}"));
                transfer::pack(Path::new(path), io::stdout().lock(), &mut note).map_err(copying)
            }
            Order::Write(path) => {
                // When the client goes, the end of the stream tells: what is half written is removed then.
                signals::block(&[Signal::SIGHUP]).map_err(failed("keep what is there whole"))?;
                transfer::unpack(io::stdin().lock(), Path::new(path), Asked::Anything).map_err(copying)
            }
        }
    }

    fn execute(&self, command: &[String], terminal: Option<&Terminal>) -> Result<(), Failure> {
        let mut env = self.process.env().clone().unwrap_or_default();
        if let Some(wanted) = terminal {
            self.open_terminal(wanted).map_err(failed("make a terminal"))?;
            if !env.iter().any(|entry| entry.starts_with("TERM=")) {
                env.push(format!("TERM={}", wanted.kind));
            }
        }
        signals::restore_for_exec().map_err(failed("reset the signals"))?;
        let bad = |_| Failure { code: NOT_EXECUTABLE, reason: "an argument holds a zero byte".to_owned() };
        let strings =
            |items: &[String]| items.iter().map(|item| CString::new(item.as_bytes())).collect::<Result<_, _>>();
        let command = Command { args: strings(command).map_err(bad)?, env: strings(&env).map_err(bad)? };
        match search_and_execute(&command) {
            Ok(never) => match never {},
            Err((errno, tried)) => {
                let code = if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) { NOT_THERE } else { NOT_EXECUTABLE };
                Err(Failure { code, reason: explain(errno, &command, &tried) })
            }
        }
    }

    /// The daemon gets the other end.
    fn open_terminal(&self, wanted: &Terminal) -> io::Result<()> {
        let pair = Pair::open(wanted.rows, wanted.columns)?;
        terminal::make_ours(&pair.slave)?;
        self.control.tell(&Report::Terminal, Some(pair.master.as_fd()))
    }
}

fn inside(directory: std::path::PathBuf) -> io::Result<()> {
    if directory.is_absolute() { Ok(()) } else { Err(io::Error::other("it lies outside of the task")) }
}

fn copying(error: transfer::TransferError) -> Failure {
    Failure { code: 1, reason: error.told() }
}
