//! `trainyard mount`: the process that serves the mounted tree. It outlives the daemon, and a crash of it harms no job.

mod companion;
mod daemon;
pub mod direct;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::signal::Signal;
use trainyard_fs::{BACKING, MountError, MountOptions, mount, unmount_stale};

use crate::config::{Config, Direct};
use crate::sys::bell;
use crate::sys::lock::write_own_pid;
use crate::sys::process::{self, raise_open_files};
use crate::sys::signals;
use crate::workspace::quota::Ledger;
use crate::workspace::view::WorkspaceTree;
use companion::Companion;
use daemon::Daemon;

/// What hangs in a slow or dead file system of one workspace must not hold up the others: each request takes a thread until
/// it is answered.
const THREADS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum MountingError {
    #[error("cannot mount the workspaces")]
    Mount(#[from] MountError),
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> MountingError {
    move |source| MountingError::Io { what, source }
}

/// Serves until SIGTERM, or until somebody unmounts. `lock` proves our life to the daemon.
pub fn run(config: &Config, lock: Option<OwnedFd>) -> Result<(), MountingError> {
    // Before any thread starts, so that all of them leave the signals to us.
    let wanted = [Signal::SIGTERM, Signal::SIGINT];
    signals::block(&wanted).map_err(failed("take signals"))?;
    if let Some(lock) = &lock {
        write_own_pid(lock).map_err(failed("write the mount's lock file"))?;
    }
    // Publishing looks for whoever still writes.
    signals::ignore_lease_breaks().map_err(failed("ignore SIGIO"))?;
    raise_open_files().map_err(failed("raise the limit on open files"))?;
    // It would let whoever writes here have more than a quota of the kernel's, and what a disk keeps for root.
    process::give_up_resource_override().map_err(failed("give up CAP_SYS_RESOURCE"))?;
    let paths = &config.paths;
    let options = MountOptions { fs_name: format!("trainyard-{}", paths.instance()), threads: THREADS };
    if unmount_stale(&paths.mount_point(), &options.fs_name).map_err(failed("remove the dead mount"))? {
        tracing::warn!(path = %paths.mount_point().display(), "removed the mount of a process that died");
    }
    let daemon = Arc::new(Daemon::at(paths.api_socket()));
    let ledger = Ledger::keep(paths).map_err(failed("keep the quotas of workspaces"))?;
    let bell = paths.direct_bell();
    let published = Arc::new(move || bell::ring(&bell));
    let tree = WorkspaceTree::open(&paths.workspaces(), daemon, ledger, published);
    let tree = tree.map_err(failed("open the workspaces"))?;
    let mounted = mount(&paths.workspaces(), &paths.mount_point(), tree, &options)?;
    tracing::info!(path = %paths.mount_point().display(), "mounted");
    let companion = (config.direct != Direct::None).then(|| Companion::start(config)).transpose();
    let companion = companion.map_err(failed("start a thread"))?;
    signals::wait_for(&wanted).map_err(failed("wait for a signal"))?;
    if let Some(companion) = companion {
        companion.end();
    }
    mounted.unmount().map_err(failed("unmount"))?;
    drop(lock);
    Ok(())
}
