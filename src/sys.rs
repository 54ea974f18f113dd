//! The machine below us: the only unsafe code and the only child processes of the project.
//!
//! Each function is one thing the kernel does, with a typed result. Nothing here knows of jobs.

pub mod answering;
pub mod bell;
pub mod btrfs;
pub mod cgroup;
pub mod devices;
pub mod file;
pub mod given_up;
pub mod idmap;
pub mod ld_cache;
pub mod lock;
pub mod measure;
pub mod mig;
pub mod mounts;
pub mod namespaces;
pub mod netns;
pub mod own;
pub mod passing;
pub mod pause;
pub mod process;
pub mod projects;
pub mod rooted;
pub mod seccomp;
pub mod service;
pub mod session;
pub mod signals;
pub mod stream;
pub mod terminal;
pub mod walk;
pub mod watch;

use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::Timestamp;

/// An error and its causes, one line; no text repeats its source.
pub fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Where the kernel tells it.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Tells this start of the machine from others.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

/// Whether the machine is being switched off or restarted, so far that every process is being ended: systemd has its first one go on
/// as another program then.
pub fn is_going_down() -> bool {
    let first = std::fs::read_to_string("/proc/1/comm").unwrap_or_default();
    // The kernel cuts names off after 15 characters.
    first.starts_with("systemd-shutdow")
}

/// Whether something keeps the machine's clock right.
#[expect(unsafe_code, reason = "no crate of ours has the call")]
pub fn clock_is_synchronized() -> std::io::Result<bool> {
    // SAFETY: all bytes zero are a value of the structure, which has numbers alone.
    let mut asked: nix::libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: needed to ask the kernel; the structure lives through the call, and with no modes set it is only written to.
    let state = nix::errno::Errno::result(unsafe { nix::libc::adjtimex(&raw mut asked) })?;
    Ok(state != nix::libc::TIME_ERROR && asked.status & nix::libc::STA_UNSYNC == 0)
}

/// How far the wall clock, which says `now`, is ahead of the time since the machine's start, ms, sleep included: it changes when somebody
/// sets the clock, and never by itself.
pub fn clock_lead(now: Timestamp) -> i64 {
    let boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map_or(0, |time| time.tv_sec().saturating_mul(1000).saturating_add(time.tv_nsec() / 1_000_000));
    i64::try_from(now.0).unwrap_or(i64::MAX).saturating_sub(boot)
}

/// The wall clock. Called in the loops and in `main` only; everything else is handed a time.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Says that a test is skipped, as the tests of `tests/` tell it.
#[cfg(test)]
pub(crate) fn skip(test: &str, missing: &str) {
    let line = format!("SKIPPED {test}: {missing} is missing on this machine");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("TRAINYARD_SKIPPED") {
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).unwrap();
    }
}
