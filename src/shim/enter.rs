//! `trainyard enter DIR --control-fd N`: one process an `exec` or `cp`, single-threaded, started by the daemon.
//!
//! ```text
//! order ─► find the task's first process ─► join its control groups ─► enter its namespaces ─► fork ─► inside
//!                                                                                     └─► watch ─► report
//! ```
//! It brings a command into a running task, under all that holds the task's own processes ([`super::confine`]), and tells the
//! daemon how it ended. It is a member of the task's control groups, so it ends with the task whatever happens.
//!
//! **Invariant:** when the daemon's end of the control socket closes, the command's session gets SIGHUP, and after [`GRACE`]
//! SIGKILL. If this process itself is killed, the command alone is, and the rest of its session ends with the task.
//!
//! **Invariant:** the child holds nothing of the machine's own: its standard streams, the control socket, and for a moment a
//! handle of this process.

mod inside;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libcontainer::oci_spec::runtime::{Process, Spec};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::confine;
use crate::rundir::entry::{HEARD, LINE_MAX, OWN_FAILURE, Order, Report};
use crate::rundir::{LaunchRecord, TaskDir};
use crate::sys::idmap::outside;
use crate::sys::process::{Fork, PidFd, ProcessEnd, close_all_but, exit_now, fork};
use crate::sys::session::Processes;
use crate::sys::{cgroup, namespaces, passing, terminal};
use inside::Inside;

/// From SIGHUP to SIGKILL, when the client has gone.
const GRACE: Duration = Duration::from_secs(10);
/// How long after a command was killed its task may take to be seen ending, ms.
const TASK_ENDS: u16 = 500;

/// What could not be done, in the words of a sentence.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
struct EnterError {
    what: String,
    #[source]
    source: io::Error,
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> EnterError {
    move |source| EnterError { what: what.to_owned(), source }
}

/// Carries out the order that comes over `control` in the task of `dir`.
pub fn run(dir: PathBuf, control: OwnedFd) -> io::Result<()> {
    close_all_but(&[control.as_raw_fd()])?;
    let control = Control(control.into());
    match enter(&TaskDir::at(dir), &control) {
        Ok(()) => Ok(()),
        Err(error) => control.tell(&Report::Failed { code: OWN_FAILURE, reason: error.to_string() }, None),
    }
}

/// Our end of the control socket.
struct Control(UnixStream);

impl Control {
    fn order(&self) -> io::Result<Order> {
        let mut line = String::new();
        BufReader::new((&self.0).take(LINE_MAX)).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn tell(&self, report: &Report, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        passing::send(&self.0, &line, descriptor)
    }

    /// Tells the last thing; whether the daemon has heard it.
    fn tell_last(&self, report: &Report) -> bool {
        let mut answer = [0];
        self.tell(report, None).is_ok() && (&self.0).read_exact(&mut answer).is_ok() && answer == [HEARD]
    }

    /// Whether the daemon has gone; called when the socket has something to say.
    fn is_closed(&self) -> bool {
        let read = (&self.0).read(&mut [0; 64]);
        !matches!(read, Ok(1..)) && !read.is_err_and(|error| error.kind() == io::ErrorKind::Interrupted)
    }
}

fn enter(dir: &TaskDir, control: &Control) -> Result<(), EnterError> {
    let order = control.order().map_err(failed("read what is to be done"))?;
    let launch = dir.read_launch().map_err(|error| failed("read the task's directory")(io::Error::other(error)))?;
    let spec = Spec::load(dir.oci_config())
        .map_err(|error| failed("read the container's configuration")(io::Error::other(error)))?;
    let process = spec.process().as_ref().ok_or_else(|| missing("the container's configuration has no process"))?;
    let init = FirstProcess::find(dir, &launch)?;
    let outside = Outside::take(&init, &launch, process)?;
    cgroup::join(&launch.cgroup).map_err(failed("join the task's control group"))?;
    // Only now is it sure that whoever ends the task ends us as well.
    if init.has_ended(0).map_err(failed("look at the task"))? {
        return Err(missing("the task has ended"));
    }
    namespaces::enter_all(&init.process, init.pid).map_err(failed("enter the task's namespaces"))?;
    // Between becoming the task's user and executing, what runs in the task could look into us.
    nix::sys::prctl::set_dumpable(false).map_err(|errno| failed("shut others out")(errno.into()))?;
    let parent = Watcher::of_this_process().map_err(failed("look at ourselves"))?;
    match fork().map_err(failed("start a process in the task"))? {
        Fork::Child => match close_all_but(&[control.0.as_raw_fd(), parent.0.as_raw_fd()]) {
            Ok(()) => Inside { order, process, control, parent: &parent }.run(),
            Err(_) => exit_now(OWN_FAILURE),
        },
        Fork::Parent(child) => outside.watch(control, &init, child).map_err(failed("wait for the command")),
    }
}

/// The process that watches the child, as the child sees it: in its pid namespace the parent has no number.
struct Watcher(PidFd);

impl Watcher {
    fn of_this_process() -> io::Result<Self> {
        Ok(Self(PidFd::open(nix::unistd::getpid().as_raw())?))
    }

    /// To be asked once its end is told by a signal: before that it may have gone unnoticed.
    fn must_live(&self) -> io::Result<()> {
        match self.0.has_ended(0)? {
            false => Ok(()),
            true => Err(io::Error::other("it has gone")),
        }
    }
}

fn missing(why: &str) -> EnterError {
    failed("enter the task")(io::Error::other(why.to_owned()))
}

/// The first process of the task's container.
struct FirstProcess {
    pid: i32,
    process: PidFd,
}

impl FirstProcess {
    /// Its number may be another's by now: then it is not in the task's control group, or the shim has gone.
    fn find(dir: &TaskDir, launch: &LaunchRecord) -> Result<Self, EnterError> {
        let told = |error| failed("read the task's directory")(io::Error::other(error));
        let pid = dir.read_init().map_err(told)?.ok_or_else(|| missing("it has not started yet"))?;
        let process = PidFd::open(pid).map_err(|_| missing("it has ended"))?;
        let members = cgroup::processes(&launch.cgroup).map_err(failed("look into the task's control group"))?;
        let shim_lives = dir.try_lock().map_err(told)?.is_none();
        if !members.contains(&pid) || !shim_lives {
            return Err(missing("it has ended"));
        }
        Ok(Self { pid, process })
    }

    fn has_ended(&self, timeout: u16) -> io::Result<bool> {
        self.process.has_ended(timeout)
    }
}

/// What is held of the machine's own after the namespaces were entered.
struct Outside {
    processes: Processes,
    null: File,
}

impl Outside {
    /// Does all that needs the machine's root.
    fn take(init: &FirstProcess, launch: &LaunchRecord, process: &Process) -> Result<Self, EnterError> {
        let user = process.user();
        let (uid, gid) = (outside(&launch.ids.users, user.uid()), outside(&launch.ids.groups, user.gid()));
        // So that /dev/stdout and the like can be opened.
        let give = || {
            fchown(io::stdin(), uid, gid)?;
            fchown(io::stdout(), uid, gid)?;
            fchown(io::stderr(), uid, gid)
        };
        // With a terminal they are the machine's /dev/null, which is to stay as it is.
        if is_pipe() {
            give().map_err(failed("hand over the streams"))?;
        }
        confine::take_limits(init.pid).map_err(failed("take over the task's limits"))?;
        Ok(Self {
            processes: Processes::open().map_err(failed("open /proc"))?,
            null: OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed("open /dev/null"))?,
        })
    }

    /// Waits for the child and tells how it ended; ends it when the daemon has gone.
    fn watch(&self, control: &Control, init: &FirstProcess, child: Pid) -> io::Result<()> {
        // The streams are the child's alone: their ends must be seen.
        terminal::use_as_streams(&self.null, &self.null)?;
        let process = PidFd::open(child.as_raw())?;
        loop {
            let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut ready = [watched(process.as_fd()), watched(control.0.as_fd())];
            match poll(&mut ready, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let [ended, spoken] = ready.map(|fd| fd.any() == Some(true));
            let end = if ended { process.reap()? } else { None };
            match end {
                // A command that ends as its streams are closed, ends since the client has gone.
                Some(end) if control.tell_last(&report(end, init)?) => return Ok(()),
                None if !spoken || !control.is_closed() => {}
                _ => return self.hang_up(&process, child),
            }
        }
    }

    /// Nobody listens any more: asks the command to end, then ends all of its session.
    fn hang_up(&self, process: &PidFd, leader: Pid) -> io::Result<()> {
        for member in self.members(process, leader)? {
            // It may have gone by itself; what is stopped hears of nothing until it goes on.
            let _ = member.signal(Signal::SIGHUP);
            let _ = member.signal(Signal::SIGCONT);
        }
        if !self.wait_for_session(process, leader, None)? {
            self.wait_for_session(process, leader, Some(Signal::SIGKILL))?;
        }
        Ok(())
    }

    /// What lives of the command's session; the child is part of it also before it has begun the session.
    fn members(&self, child: &PidFd, leader: Pid) -> io::Result<Vec<PidFd>> {
        let mut members = self.processes.of_session(leader.as_raw())?;
        // Fails when it was reaped already: all that is left is what it started. Else the number is still its own.
        if matches!(child.reap(), Ok(None)) {
            members.push(PidFd::open(leader.as_raw())?);
        }
        Ok(members)
    }

    /// False when some of the session still lives after the grace. `signal` goes to whatever is found, again and again: what
    /// forks while the list is made is not in it.
    fn wait_for_session(&self, process: &PidFd, leader: Pid, signal: Option<Signal>) -> io::Result<bool> {
        let deadline = Instant::now() + GRACE;
        loop {
            let members = self.members(process, leader)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if members.is_empty() || left.is_zero() {
                return Ok(members.is_empty());
            }
            for (member, signal) in members.iter().zip(std::iter::repeat(signal)) {
                // It may have gone by itself.
                let _ = signal.map(|signal| member.signal(signal));
            }
            let mut ready: Vec<_> =
                members.iter().map(|member| PollFd::new(member.as_fd(), PollFlags::POLLIN)).collect();
            let timeout = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
            match poll(&mut ready, timeout) {
                Err(Errno::EINTR) | Ok(_) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn is_pipe() -> bool {
    rustix::fs::fstat(io::stdout())
        .is_ok_and(|status| rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Fifo)
}

fn report(end: ProcessEnd, init: &FirstProcess) -> io::Result<Report> {
    match end {
        ProcessEnd::Exited(code) => Ok(Report::Exited(code)),
        // The end of a first process kills all others, and is itself seen once they are gone.
        ProcessEnd::Signalled { signal: nix::libc::SIGKILL, .. } if init.has_ended(TASK_ENDS)? => {
            Ok(Report::Failed { code: 128 + nix::libc::SIGKILL, reason: "the task has ended".to_owned() })
        }
        ProcessEnd::Signalled { signal, .. } => Ok(Report::Signalled(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_has_not_begun_its_session_is_ended_as_well() {
        #[expect(
            clippy::disallowed_methods,
            clippy::zombie_processes,
            reason = "a plain child, reaped by what is tested"
        )]
        let child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert_ne!(nix::unistd::getsid(Some(pid)).unwrap(), pid);
        let null = File::open("/dev/null").unwrap();
        let outside = Outside { processes: Processes::open().unwrap(), null };
        outside.hang_up(&PidFd::open(pid.as_raw()).unwrap(), pid).unwrap();
        assert_eq!(nix::sys::signal::kill(pid, None), Err(Errno::ESRCH), "it has ended and was reaped");
    }

    #[test]
    fn a_watcher_that_has_gone_is_noticed() {
        Watcher::of_this_process().unwrap().must_live().unwrap();
        #[expect(clippy::disallowed_methods, reason = "a plain child")]
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let watcher = Watcher(PidFd::open(i32::try_from(child.id()).unwrap()).unwrap());
        watcher.must_live().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watcher.must_live().is_err());
    }
}
