//! Entering the namespaces of another process.

use std::io;
use std::os::unix::fs::MetadataExt;

use nix::sched::{CloneFlags, setns};

use super::process::PidFd;

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

fn identity(process: &str, name: &str) -> io::Result<(u64, u64)> {
    let namespace = std::fs::metadata(format!("/proc/{process}/ns/{name}"))?;
    Ok((namespace.dev(), namespace.ino()))
}
