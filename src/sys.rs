//! The machine below us: the only unsafe code and the only child processes of the project.
//!
//! Each function is one thing the kernel does, with a typed result. Nothing here knows of jobs.

pub mod bell;
pub mod btrfs;
pub mod cgroup;
pub mod devices;
pub mod file;
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

/// The wall clock. Called in the loops and in `main` only; everything else is handed a time.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
