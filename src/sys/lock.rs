//! Lock files that prove a process lives: the kernel drops the lock with the last copy of the descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// A held lock. The lock belongs to the open file, so a child that inherits the descriptor holds it too.
#[derive(Debug)]
pub struct HeldLock(Flock<File>);

impl HeldLock {
    /// Takes the lock at `path`, creating the file; `None` when someone else holds it.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Self(lock))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Writes the holder's process id into the file, for whoever finds the lock held.
    pub fn write_pid(&mut self, pid: i32) -> io::Result<()> {
        let file: &mut File = &mut self.0;
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{pid}")
    }

    /// The locked file, to be handed to a child.
    pub fn file(&self) -> &File {
        &self.0
    }
}

/// The process id written into a lock file; `None` while there is none.
pub fn pid_in(path: &Path) -> io::Result<Option<i32>> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text.trim().parse().ok())
}

/// Waits until nobody holds the lock on `file`.
pub fn wait_until_free(file: File) -> io::Result<()> {
    match Flock::lock(file, FlockArg::LockExclusive) {
        Ok(_released_at_once) => Ok(()),
        Err((_, errno)) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_freed_by_dropping_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut first = HeldLock::try_take(&path).unwrap().unwrap();
        first.write_pid(42).unwrap();
        assert!(HeldLock::try_take(&path).unwrap().is_none());
        assert_eq!(pid_in(&path).unwrap(), Some(42));
        drop(first);
        assert!(HeldLock::try_take(&path).unwrap().is_some());
    }
}
