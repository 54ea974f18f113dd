//! Network namespaces kept by a path, and doing something inside of one.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// Makes a network namespace that lives at `path` until [`remove`] (and as long as a process is in it).
///
/// The work is done on a thread of its own, since a namespace belongs to a thread and must not leak into the pool.
/// `inside` runs in the new namespace; what it returns is handed back. Only then does the namespace get its path: what is
/// found there is complete.
pub fn create<T: Send>(path: &Path, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    File::create(path)?;
    on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let done = inside()?;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(done)
    })
}

/// Runs `inside` in the namespace kept at `path`.
pub fn enter<T: Send>(path: &Path, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    on_own_thread(|| {
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        inside()
    })
}

/// Moves this (single-threaded) process into the namespace kept at `path`.
pub fn join(path: &Path) -> io::Result<()> {
    Ok(setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?)
}

/// Lets go of the namespace at `path`; that it is not there is no error.
pub fn remove(path: &Path) -> io::Result<()> {
    super::mounts::detach(path)?;
    super::file::remove_if_there(path)
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the thread that made a network namespace panicked"))?
    })
}
