//! Who tells that a shim has ended: of our own children and of those that an earlier daemon has started.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{LocalEngine, failed, lock, told};
use crate::engine::EngineError;
use crate::ids::TaskId;
use crate::rundir::TaskDir;
use crate::sys::cgroup;
use crate::sys::process::{PidFd, ended};

impl LocalEngine {
    /// Tells when the shim has ended; the child is reaped if it is ours.
    pub(super) fn watch(&self, task: TaskId, pidfd: PidFd) -> io::Result<()> {
        let pidfd = Arc::new(pidfd);
        if lock(&self.shims).insert(task, pidfd.clone()).is_some() {
            return Ok(());
        }
        let (notify, shims) = (self.notify.clone(), self.shims.clone());
        self.runtime.spawn(async move {
            if let Err(error) = ended(pidfd.clone()).await {
                tracing::error!(%task, %error, "cannot watch a shim");
            }
            // ECHILD: it was started by a daemon before us, and init reaps it.
            let _ = pidfd.reap();
            lock(&shims).remove(&task);
            notify(task);
        });
        Ok(())
    }

    /// Watches a shim that an earlier daemon started. Fails while the shim is gone and what it was just making holds its lock.
    pub(super) fn adopt(&self, task: TaskId, dir: &TaskDir, shim: Option<i32>) -> Result<(), EngineError> {
        if lock(&self.shims).contains_key(&task) {
            return Ok(());
        }
        // The number may be another's by now: it is the shim's if its command line names the task and, now that we hold the
        // process, the lock is still held.
        let opened = shim.map(|pid| open_shim(pid, dir)).transpose().map_err(failed("look at a shim"))?.flatten();
        let alive = dir.try_lock().map_err(told)?.is_none();
        match opened.filter(|_| alive) {
            Some(pidfd) => self.watch(task, pidfd).map_err(failed("watch a shim")),
            // Nobody will ever start that. It may be about to enter the control group: then the next look finds it there.
            None if shim.is_some() && alive => {
                cgroup::kill_all(&self.group_of(task)).map_err(failed("empty the task's control group"))?;
                Err(EngineError("its shim is gone, and what that was making has not ended yet".to_owned()))
            }
            None => self.watch_lock(task, dir),
        }
    }

    /// For the moment in which a shim has not yet written its number: waits for the lock itself.
    fn watch_lock(&self, task: TaskId, dir: &TaskDir) -> Result<(), EngineError> {
        let notify = self.notify.clone();
        let path = dir.path().join("lock");
        let wait = move || {
            if let Err(error) = File::open(&path).and_then(crate::sys::lock::wait_until_free) {
                tracing::warn!(%task, %error, "cannot wait for a shim");
            }
            notify(task);
        };
        std::thread::Builder::new()
            .name(format!("wait-{task}"))
            .spawn(wait)
            .map(drop)
            .map_err(failed("wait for a shim"))
    }
}

/// The process, if it is the task's shim. What cannot be told is an error and no absence: its task would be killed.
fn open_shim(pid: i32, dir: &TaskDir) -> io::Result<Option<PidFd>> {
    let is_gone = |error: &io::Error| error.raw_os_error() == Some(nix::libc::ESRCH);
    let process = match PidFd::open(pid) {
        Err(error) if is_gone(&error) => return Ok(None),
        other => other?,
    };
    let words = match fs::read(format!("/proc/{pid}/cmdline")) {
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    // Without the root, which may be spelled in several ways: `attempts/a7/0`.
    let parts: Vec<_> = dir.path().components().rev().take(3).collect();
    let name: PathBuf = parts.into_iter().rev().collect();
    let is_name = |word: &[u8]| Path::new(std::ffi::OsStr::from_bytes(word)).ends_with(&name);
    Ok(words.split(|byte| *byte == 0).any(is_name).then_some(process))
}
