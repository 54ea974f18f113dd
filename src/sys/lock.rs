//! Lock files that prove a process lives: the kernel drops the lock with the last copy of the descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Most characters of a process's number.
const NUMBER_MAX: usize = 20;

/// A held lock. It belongs to the open file: a child that inherits the descriptor holds it too, and it is free when
/// the last copy is closed. (`nix::fcntl::Flock` unlocks when dropped, which would take it from the child.)
#[derive(Debug)]
pub struct HeldLock(File);

impl HeldLock {
    /// Takes the lock at `path`, creating the file; `None` when someone else holds it.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, nix::libc::LOCK_EX | nix::libc::LOCK_NB) {
            Ok(()) => Ok(Some(Self(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the holder's process id into the file, for whoever finds the lock held.
    pub fn write_pid(&mut self, pid: i32) -> io::Result<()> {
        write_number(&self.0, &pid.to_string())
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

/// Whether somebody holds the lock at `path`. Others who ask at the same time do not count, as they would if each took it.
pub fn is_held(path: &Path) -> io::Result<bool> {
    match flock(&File::open(path)?, nix::libc::LOCK_SH | nix::libc::LOCK_NB) {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

/// Writes our process id into a lock file that we inherited with its lock.
pub fn write_own_pid(lock: &OwnedFd) -> io::Result<()> {
    write_number(&File::from(lock.try_clone()?), &std::process::id().to_string())
}

/// In the place of what is there, which on a full disk others could take if it were given up first. With blanks behind it until
/// it is cut, so that of a longer one before nothing is taken for a part of it.
fn write_number(file: &File, number: &str) -> io::Result<()> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0).min(NUMBER_MAX);
    file.write_all_at(format!("{number:<length$}").as_bytes(), 0)?;
    file.set_len(number.len() as u64)
}

/// Waits until nobody holds the lock on `file`.
pub fn wait_until_free(file: File) -> io::Result<()> {
    wait_until_taken(&file)
}

/// Waits until the lock on `file` is ours.
pub fn wait_until_taken(file: &File) -> io::Result<()> {
    flock(file, nix::libc::LOCK_EX)
}

#[expect(unsafe_code, reason = "nix wraps flock only with an unlock at the end")]
fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: needed for a lock that is inherited; the descriptor is open for the length of the call.
    let result = unsafe { nix::libc::flock(file.as_raw_fd(), operation) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_freed_by_dropping_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut first = HeldLock::try_take(&path).unwrap().unwrap();
        first.write_pid(12345).unwrap();
        first.write_pid(42).unwrap();
        assert!(HeldLock::try_take(&path).unwrap().is_none());
        assert_eq!(pid_in(&path).unwrap(), Some(42));
        drop(first);
        assert!(HeldLock::try_take(&path).unwrap().is_some());
    }

    #[test]
    fn who_asks_for_a_lock_holds_it_for_nobody_else_who_asks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(is_held(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let held = HeldLock::try_take(&path).unwrap();
        assert!(is_held(&path).unwrap());
        drop(held);
        let asks = File::open(&path).unwrap();
        flock(&asks, nix::libc::LOCK_SH | nix::libc::LOCK_NB).unwrap();
        assert!(!is_held(&path).unwrap(), "another one asks as well");
    }

    #[test]
    fn a_copy_of_the_descriptor_keeps_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = HeldLock::try_take(&path).unwrap().unwrap();
        let inherited = first.file().try_clone().unwrap();
        drop(first);
        assert!(HeldLock::try_take(&path).unwrap().is_none());
        drop(inherited);
        assert!(HeldLock::try_take(&path).unwrap().is_some());
    }
}
