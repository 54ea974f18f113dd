//! The directory of what holds the process namespace that tasks of an attempt share (`trainyard hold`).
//!
//! ```text
//! attempts/a17/holder/holder.json   what it is to make                                    daemon, before the start
//!                     lock          held from before the start until it ends; says its number once it stays   holder
//! ```
//! The namespaces are found by the number of the holder, which is its own as long as the lock is held. Files of a process are
//! closed before the kernel ends what is in its namespace: whoever has seen a task die of the holder's end finds the lock free.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{RunDirError, read_json, write_json};
use crate::sys::file::{Durability, optional};
use crate::sys::idmap::IdMap;
use crate::sys::lock::{HeldLock, is_held, pid_in};

/// What the holder is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRecord {
    /// Of the user namespace, to which the process namespace belongs.
    pub ids: IdMap,
    /// Its own control group.
    pub cgroup: String,
    /// A directory of the machine that it covers, in a mount namespace of its own, to stand in.
    pub place: PathBuf,
}

/// What the holder holds.
#[derive(Debug)]
pub struct Held {
    pub user: OwnedFd,
    pub processes: OwnedFd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderDir(PathBuf);

impl HolderDir {
    pub fn of(attempt: &Path) -> Self {
        Self(attempt.join("holder"))
    }

    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn record_file(&self) -> PathBuf {
        self.0.join("holder.json")
    }

    /// Takes the lock that proves the holder's life; `None` when it lives.
    pub fn try_lock(&self) -> io::Result<Option<HeldLock>> {
        HeldLock::try_take(&self.lock_file())
    }

    pub fn write(&self, record: &HolderRecord) -> Result<(), RunDirError> {
        write_json(&self.record_file(), record, Durability::Process)
    }

    /// `None` where there was never to be one.
    pub fn read(&self) -> Result<Option<HolderRecord>, RunDirError> {
        read_json(&self.record_file())
    }

    /// `None` when the holder has ended, or does not stay yet.
    pub fn held(&self) -> io::Result<Option<Held>> {
        let Some(pid) = optional(pid_in(&self.lock_file()))?.flatten() else { return Ok(None) };
        let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}")).map(OwnedFd::from);
        let opened = (open("user"), open("pid"));
        // Only now is it known that the number was its own.
        if !is_held(&self.lock_file())? {
            return Ok(None);
        }
        let (user, processes) = opened;
        Ok(Some(Held { user: user?, processes: processes? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_holder_holds_is_found_while_its_lock_is_held_and_says_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let holder = HolderDir::of(dir.path());
        std::fs::create_dir(holder.path()).unwrap();
        assert!(holder.held().unwrap().is_none(), "nobody was ever started");
        let mut lock = holder.try_lock().unwrap().unwrap();
        assert!(holder.held().unwrap().is_none(), "it does not stay yet");
        lock.write_pid(nix::unistd::getpid().as_raw()).unwrap();
        let held = holder.held().unwrap().unwrap();
        let own = |kind: &str| std::fs::metadata(format!("/proc/self/ns/{kind}")).unwrap();
        let inode = |file: OwnedFd| nix::sys::stat::fstat(&file).unwrap().st_ino;
        use std::os::unix::fs::MetadataExt;
        assert_eq!((inode(held.user), inode(held.processes)), (own("user").ino(), own("pid").ino()));
        drop(lock);
        assert!(holder.held().unwrap().is_none(), "its number may be another's");
    }
}
