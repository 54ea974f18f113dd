//! Entering the namespaces of another process, and making some.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use nix::sched::{CloneFlags, setns, unshare};

use super::process::{Fork, PidFd, fork};

const ALL: [(&str, CloneFlags); 7] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("net", CloneFlags::CLONE_NEWNET),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];

/// Moves this (single-threaded) process into all namespaces of `process` that it does not share; a child forked from now on
/// is in its pid namespace.
///
/// All at once: rights over a network namespace come from the user namespace that made it, which is not the one entered.
/// `pid` is the number of `process`, which the caller knows to be alive.
pub fn enter_all(process: &PidFd, pid: i32) -> io::Result<()> {
    let mut others = CloneFlags::empty();
    for (name, flag) in ALL {
        // The kernel refuses to enter a user namespace that one is in.
        if identity(&pid.to_string(), name)? != identity("self", name)? {
            others |= flag;
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    Ok(setns(process, others)?)
}

/// Moves this (single-threaded) process into a network namespace of its own, with no link up.
pub fn leave_network() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNET)?)
}

/// Enters the user namespace and forks: the child is the first process of a process namespace that belongs to it. Neither can be
/// looked into by what is in these namespaces. For processes of one thread.
pub fn fork_into_new_processes(user: &OwnedFd) -> io::Result<Fork> {
    setns(user, CloneFlags::CLONE_NEWUSER)?;
    // The change of rights may have made it possible.
    nix::sys::prctl::set_dumpable(false)?;
    unshare(CloneFlags::CLONE_NEWPID)?;
    fork()
}

fn identity(process: &str, name: &str) -> io::Result<(u64, u64)> {
    let namespace = std::fs::metadata(format!("/proc/{process}/ns/{name}"))?;
    Ok((namespace.dev(), namespace.ino()))
}
