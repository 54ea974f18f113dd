//! The machine below us: the only unsafe code and the only child processes of the project.
//!
//! Each function is one thing the kernel does, with a typed result. Nothing here knows of jobs.

pub mod bell;
pub mod btrfs;
pub mod cgroup;
pub mod devices;
pub mod file;
pub mod idmap;
pub mod lock;
pub mod measure;
pub mod mounts;
pub mod namespaces;
pub mod netns;
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

use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::Timestamp;

/// The wall clock. Called in the loops and in `main` only; everything else is handed a time.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
