//! What a process that enters a task later is held by, as the task's own processes are: the one place for all of it.
//!
//! libcontainer does the same for the first process; what enters later it leaves alone. [`take_limits`] is called outside,
//! where the rights for it are, [`apply`] inside, last.

use std::io;

use libcontainer::capabilities;
use libcontainer::oci_spec::runtime::Process;
use libcontainer::syscall::syscall::create_syscall;
use nix::sys::prctl;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::sys::seccomp;

/// Takes over resource limits and out-of-memory score from the task's first process, `init`.
pub(super) fn take_limits(init: i32) -> io::Result<()> {
    let score = std::fs::read_to_string(format!("/proc/{init}/oom_score_adj"))?;
    let score = score.trim();
    std::fs::write("/proc/self/oom_score_adj", score).map_err(|error| {
        let why = "this machine does not let us lower it (no CAP_SYS_RESOURCE)";
        io::Error::new(error.kind(), format!("the out-of-memory score cannot be {score}: {error}; {why}"))
    })?;
    crate::sys::process::take_limits_of(init)
}

/// Makes this process the task's user, with its capabilities and its filter of system calls, for ever; nothing in the task can
/// look into it until it executes something.
pub(super) fn apply(process: &Process) -> io::Result<()> {
    if let Some(mask) = process.user().umask() {
        umask(Mode::from_bits_truncate(mask));
    }
    become_user(process)?;
    drop_capabilities(process)?;
    if process.no_new_privileges() == Some(true) {
        prctl::set_no_new_privs()?;
    }
    // After everything that it forbids, before anything of a user's runs.
    seccomp::compile().map_err(io::Error::other)?.apply()
}

fn become_user(process: &Process) -> io::Result<()> {
    let user = process.user();
    let groups = user.additional_gids().clone().unwrap_or_default();
    setgroups(&groups.into_iter().map(Gid::from_raw).collect::<Vec<_>>())?;
    let (uid, gid) = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
    // They are dropped one by one below; of what is lost here some may be needed for that.
    prctl::set_keepcaps(true)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    // The change has made others' looks at us possible again, and forgot about our parent.
    prctl::set_dumpable(false)?;
    Ok(prctl::set_keepcaps(false)?)
}

/// By libcontainer's own code, so that it comes out as with the first process.
fn drop_capabilities(process: &Process) -> io::Result<()> {
    let kernel = create_syscall();
    capabilities::reset_effective(kernel.as_ref()).map_err(io::Error::other)?;
    match process.capabilities() {
        Some(wanted) => capabilities::drop_privileges(wanted, kernel.as_ref()).map_err(io::Error::other),
        None => Err(io::Error::other("the container's configuration names no capabilities")),
    }
}
