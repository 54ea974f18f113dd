//! That one daemon alone runs for an installation.

use std::path::Path;

use super::{DaemonError, failed};
use crate::sys::lock::{HeldLock, pid_in, wait_until_free};
use crate::sys::process::{PidFd, is_ending};

/// So long the daemon before us is waited for whether it ends, ms: whoever starts a second one by mistake is told soon.
const ENDING_MS: u16 = 500;
/// And so long if it does, ms.
const ENDING_MAX_MS: u16 = 5000;

/// Also after one that was killed just now, which takes a moment to give it back.
pub(super) fn take(path: &Path, root: &Path) -> Result<HeldLock, DaemonError> {
    loop {
        if let Some(mut lock) = HeldLock::try_take(path).map_err(failed("lock the state directory"))? {
            lock.write_pid(nix::unistd::getpid().as_raw()).map_err(failed("write the lock"))?;
            return Ok(lock);
        }
        let pid = pid_in(path).map_err(failed("read the lock"))?.unwrap_or(0);
        if PidFd::open(pid).is_ok_and(|holder| lives_on(&holder, pid)) {
            return Err(DaemonError::AlreadyRunning { root: root.to_owned(), pid });
        }
        // It was killed while it started a child, which lets go of the lock when it is executed.
        let lock = std::fs::File::open(path).map_err(failed("open the lock"))?;
        wait_until_free(lock).map_err(failed("wait for the lock"))?;
    }
}

/// Whether a process is there to stay: one that was killed ends within a moment, or the kernel says that it is about to.
fn lives_on(holder: &PidFd, pid: i32) -> bool {
    let ends = |within| holder.has_ended(within).unwrap_or(false);
    let has_ended = ends(ENDING_MS) || is_ending(pid) && ends(ENDING_MAX_MS);
    !has_ended
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test starts who has the lock")]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// A process that has the lock until its input ends, as a daemon does of that number.
    fn holder(path: &Path, command: &str) -> Child {
        let mut lock = HeldLock::try_take(path).unwrap().unwrap();
        let child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(lock.file().try_clone().unwrap())
            .spawn()
            .unwrap();
        lock.write_pid(i32::try_from(child.id()).unwrap()).unwrap();
        child
    }

    #[test]
    fn the_lock_of_a_daemon_that_ends_is_had_and_of_one_that_lives_it_is_told_soon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut ends = holder(&path, "sleep 0.2");
        drop(take(&path, dir.path()).unwrap());
        ends.wait().unwrap();
        let mut lives = holder(&path, "exec cat");
        let from = Instant::now();
        let error = take(&path, dir.path()).unwrap_err();
        assert!(from.elapsed().as_millis() < 1000 + u128::from(ENDING_MS), "{:?}", from.elapsed());
        assert!(
            matches!(error, DaemonError::AlreadyRunning { pid, .. } if pid.unsigned_abs() == lives.id()),
            "{error}"
        );
        drop(lives.stdin.take());
        drop(take(&path, dir.path()).unwrap());
        lives.wait().unwrap();
    }
}
