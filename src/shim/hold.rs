//! `trainyard hold --dir-fd N --lock-fd N`: the first process of a process namespace that tasks of an attempt share.
//!
//! ```text
//! join its control group ─► user namespace ─► leave the machine's files and network ─► fork into the process namespace
//!                                                      tells the number, ends ◄── parent ┴ child ─► told to stay ─► reaps
//! ```
//! It does nothing but reap what lost its parent there. The kernel ends all that is in the namespace when it ends, and it ends
//! with its control group, when the attempt is cleaned up after. It needs no daemon once it was told to stay.
//!
//! **Invariant:** without a daemon that tells it to stay it ends: nobody else knows of it.
//!
//! **Invariant:** what runs beside it can neither end it nor learn anything of the machine by it. The kernel lets no signal without
//! a handler through to a first process; it cannot be looked into, has no files but its lock, an empty root, a network without
//! links and a command line without paths, since mounts, networks and words of any process are there for all to read in `/proc`.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::sys::signal::Signal;

use crate::rundir::holder::HolderDir;
use crate::sys::process::{Fork, close_all_but, drop_own_capabilities, exit_now, reap_any};
use crate::sys::{cgroup, mounts, namespaces, signals, terminal};

/// Most digits of a process's number.
const NUMBER_MAX: u64 = 16;

/// What could not be done, in the words of a sentence.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct HoldError {
    what: &'static str,
    #[source]
    source: io::Error,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> HoldError {
    move |source| HoldError { what, source }
}

/// Makes the namespaces and tells the number of the process that holds them on standard output; that one waits on standard input
/// for the same number, and ends if none comes. `dir` is what says what is to be held, and `lock` the inherited descriptor that
/// proves its life.
pub fn run(dir: OwnedFd, lock: OwnedFd) -> Result<(), HoldError> {
    nix::unistd::setgroups(&[]).map_err(|errno| failed("leave the daemon's groups")(errno.into()))?;
    close_all_but(&[dir.as_raw_fd(), lock.as_raw_fd()]).map_err(failed("close inherited descriptors"))?;
    let record = HolderDir::at(mounts::path_of(&dir)).read();
    drop(dir);
    let record = record.map_err(io::Error::other).map_err(failed("read what is to be held"))?;
    let record = record.ok_or_else(|| failed("read what is to be held")(io::ErrorKind::NotFound.into()))?;
    let joined = cgroup::make(&record.cgroup).and_then(|()| cgroup::join(&record.cgroup));
    joined.map_err(failed("join a control group of its own"))?;
    let user = record.ids.namespace().map_err(failed("make a user namespace"))?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed("open /dev/null"))?;
    mounts::leave_for_empty_place(&record.place).map_err(failed("leave the machine's files"))?;
    namespaces::leave_network().map_err(failed("leave the machine's network"))?;
    match namespaces::fork_into_new_processes(&user).map_err(failed("make a process namespace"))? {
        Fork::Child => match stay(&lock, null) {
            Ok(never) => match never {},
            Err(_) => exit_now(1),
        },
        Fork::Parent(first) => writeln!(io::stdout(), "{first}").map_err(failed("tell the number of what holds it")),
    }
}

fn stay(lock: &OwnedFd, null: File) -> io::Result<Infallible> {
    signals::block(&[Signal::SIGCHLD])?;
    let mut number = String::new();
    io::stdin().take(NUMBER_MAX).read_to_string(&mut number)?;
    if number.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // In its own namespace it has the number 1.
    File::from(lock.try_clone()?).write_all_at(number.as_bytes(), 0)?;
    drop_own_capabilities()?;
    // Whoever waits for this sees it by the end of our output.
    terminal::use_as_streams(&null, &null)?;
    drop(null);
    close_all_but(&[lock.as_raw_fd()])?;
    loop {
        signals::wait_for(&[Signal::SIGCHLD])?;
        while reap_any()?.is_some() {}
    }
}
