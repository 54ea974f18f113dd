//! `trainyard mount`: the process that serves the mounted tree. It outlives the daemon, and a crash of it harms no job.

mod companion;
mod daemon;
pub mod direct;
mod successor;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::signal::Signal;
pub use trainyard_fs::STATES_READ;
use trainyard_fs::{
    BACKING, Handed, KeptError, MountError, MountOptions, Mounted, Reason, mount, take_over, unmount_stale,
};

use crate::config::{Config, ConfigError, Direct, Paths};
use crate::sys::file::{Durability, remove_if_there, write_whole};
use crate::sys::lock::write_own_pid;
use crate::sys::mounts::attached::MountTable;
use crate::sys::process::{self, raise_open_files};
use crate::sys::signals::{self, SignalQueue};
use crate::sys::{bell, told};
use crate::workspace::quota::Ledger;
use crate::workspace::view::WorkspaceTree;
use companion::Companion;
use daemon::Daemon;
use successor::{Attempts, Failure};

/// Threads that read requests: few that are at work, and one that goes on reading. The kernel gives each request to the one that has
/// waited longest, so more of them have it wake a core that sleeps (of 16 cores, 16 threads: 241 µs for a file that is made, four: 140;
/// fewer make less where many clients ask at once); what hangs or takes long has others.
fn readers() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    cores.clamp(2, 3) + 1
}

/// What is to be known of the configuration: a mistake that comes into its file later takes no mount away.
#[derive(Debug, Clone)]
pub struct MountConfig {
    pub paths: Paths,
    /// What of the mount is shown by mounts of its directories.
    pub direct: Direct,
}

impl MountConfig {
    /// `direct` as whoever starts us has it in force. A program that goes on for another one is not told, and reads it in the file, as
    /// the daemon that has it go on has just done; where that cannot be used meanwhile, all is shown by the mount itself.
    pub fn new(root: &Path, direct: Option<Direct>) -> Result<Self, ConfigError> {
        let paths = Paths::new(root)?;
        let in_file = || {
            let read = Config::load(root).map(|config| config.direct);
            read.unwrap_or_else(|error| {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(error, "nothing is shown directly until the mount begins anew");
                Direct::None
            })
        };
        Ok(Self { direct: direct.unwrap_or_else(in_file), paths })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MountingError {
    #[error("cannot mount the workspaces")]
    Mount(#[from] MountError),
    #[error("cannot go on with the mount of the program before")]
    Kept(#[from] KeptError),
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

/// What ends it, and what has it go on as another program.
const AWAITED: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, HAND_OVER];
/// Said by a daemon whose program is another one. One that does not wait for it would end of it.
pub const HAND_OVER: Signal = Signal::SIGUSR2;

/// Serves until SIGTERM, or until somebody unmounts. `lock` proves our life to the daemon. `kept` comes from the program that was
/// this process before.
pub fn run(config: &MountConfig, lock: Option<OwnedFd>, kept: Option<OwnedFd>) -> Result<(), MountingError> {
    let began = Instant::now();
    // Before any thread starts, so that all of them leave the signals to us.
    let words = SignalQueue::open(&AWAITED).map_err(failed("take signals"))?;
    let handed = kept.map(|kept| Handed::read(kept.into())).transpose()?;
    if let Some(lock) = &lock {
        write_own_pid(lock).map_err(failed("write the mount's lock file"))?;
    }
    // Publishing looks for whoever still writes.
    signals::ignore_lease_breaks().map_err(failed("ignore SIGIO"))?;
    raise_open_files().map_err(failed("raise the limit on open files"))?;
    // It would let whoever writes here have more than a quota of the kernel's, and what a disk keeps for root.
    process::give_up_resource_override().map_err(failed("give up CAP_SYS_RESOURCE"))?;
    // What kept an earlier program is over.
    if let Err(error) = remove_if_there(&config.paths.mount_refusal()) {
        tracing::warn!(%error, "why the program before was kept stays to be read");
    }
    let (mounted, left) = match handed {
        Some(handed) => (go_on(config, handed, began)?, Left::Something),
        None => (begin(config)?, Left::Nothing),
    };
    serve(mounted, config, left, lock, &words)
}

/// What another program may have left that is shown directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Something,
}

/// Why nothing is served any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Asked,
    TakenAway,
}

fn options(config: &MountConfig) -> MountOptions {
    MountOptions { fs_name: config.paths.mount_source(), threads: readers() }
}

fn begin(config: &MountConfig) -> Result<Mounted<WorkspaceTree>, MountingError> {
    let (place, options) = (config.paths.mount_point(), options(config));
    if unmount_stale(&place, &options.fs_name).map_err(failed("remove the dead mount"))? {
        tracing::warn!(path = %place.display(), "removed the mount of a process that died");
    }
    if std::fs::read_dir(&place).is_ok_and(|mut hidden| hidden.next().is_some()) {
        tracing::warn!(
            path = %place.display(),
            "the mount point is not empty: what somebody has put there while nothing was mounted is hidden by the mount; to have it, \
             `trainyard shutdown`, move it elsewhere, and start again"
        );
    }
    let mounted = mount(&config.paths.workspaces(), &place, open_tree(config)?, &options)?;
    tracing::info!(path = %place.display(), "mounted");
    Ok(mounted)
}

/// With what the program before has served.
fn go_on(config: &MountConfig, handed: Handed, began: Instant) -> Result<Mounted<WorkspaceTree>, MountingError> {
    let (place, (entries, files)) = (config.paths.mount_point(), handed.counts());
    let mounted = take_over(handed, &config.paths.workspaces(), &place, open_tree(config)?, &options(config))?;
    let ms = began.elapsed().as_millis();
    tracing::info!(path = %place.display(), entries, files, ms, "the mount is served on by another program");
    Ok(mounted)
}

fn open_tree(config: &MountConfig) -> Result<WorkspaceTree, MountingError> {
    let paths = &config.paths;
    let daemon = Arc::new(Daemon::at(paths.api_socket()));
    let ledger = Ledger::keep(paths).map_err(failed("keep the quotas of workspaces"))?;
    let bell = paths.direct_bell();
    let published = Arc::new(move || bell::ring(&bell));
    WorkspaceTree::open(&paths.workspaces(), daemon, ledger, published).map_err(failed("open the workspaces"))
}

/// Where nothing is to be shown directly, it takes away what was, and ends.
fn accompany(config: &MountConfig, left: Left) -> Result<Option<Companion>, MountingError> {
    let is_wanted = config.direct != Direct::None || left == Left::Something;
    is_wanted.then(|| Companion::start(config)).transpose().map_err(failed("start a thread"))
}

fn serve(
    mut mounted: Mounted<WorkspaceTree>,
    config: &MountConfig,
    left: Left,
    lock: Option<OwnedFd>,
    words: &SignalQueue,
) -> Result<(), MountingError> {
    let mut companion = accompany(config, left)?;
    let mut asked: Option<Attempts> = None;
    let table = MountTable::open().map_err(failed("watch the machine's mounts"))?;
    let ended = loop {
        // The kernel does not tell the one that serves it as long as something of it is open; nor does the table tell of what was
        // before it was opened.
        if !mounted.is_attached().map_err(failed("look for the mount"))? {
            tracing::warn!("the mount was taken away from outside; the daemon mounts anew");
            break Ended::TakenAway;
        }
        let Some(attempts) = asked.take_if(|attempts| attempts.wait().is_zero()) else {
            // `None`: it is time for the next attempt, or mounts have come or gone.
            match words.wait_beside(&table, asked.as_ref().map(Attempts::wait)).map_err(failed("wait for a signal"))? {
                Some(HAND_OVER) => asked = Some(Attempts::first()),
                Some(_) => break Ended::Asked,
                None => {}
            }
            continue;
        };
        // Before anything is disturbed.
        let ready = match successor::prepare(config) {
            Ok(ready) => ready,
            Err(failure) => {
                asked = again(attempts, &failure);
                tell(config, &failure, asked.is_some());
                continue;
            }
        };
        if let Some(Err(error)) = companion.take().map(Companion::abandon) {
            // It is killed, and ends when what it waits for lets it.
            tracing::warn!(%error, "what shows directories directly does not end");
        }
        let (served, failure) = successor::hand_over(mounted, ready, config, lock.as_ref())?;
        mounted = served;
        if matches!(failure, Failure::Pause(Reason::Gone)) {
            // Nobody serves it any more: the daemon mounts anew when we have ended.
            return Err(failed("serve the mount on")(io::Error::other(failure)));
        }
        companion = accompany(config, Left::Something)?;
        asked = again(attempts, &failure);
        tell(config, &failure, asked.is_some());
    };
    if let Some(companion) = companion {
        companion.end();
    }
    match ended {
        Ended::Asked => mounted.unmount().map_err(failed("unmount"))?,
        // The threads serve on as long as something of it is open; with this process that ends, and the daemon waits for it.
        Ended::TakenAway => drop(mounted),
    }
    drop(lock);
    Ok(())
}

fn again(attempts: Attempts, failure: &Failure) -> Option<Attempts> {
    Some(attempts).filter(|_| failure.passes()).and_then(Attempts::next)
}

/// What comes of it in the end is the daemon's to tell: the journal of the one that has started us may be nobody's by now.
fn tell(config: &MountConfig, failure: &Failure, again: bool) {
    let error: &(dyn std::error::Error + 'static) = failure;
    if again {
        return tracing::warn!(error, "cannot hand the mount over, serve it on; will be tried again");
    }
    let help = match failure.is_of_program() {
        true => format!(
            "a daemon of a program that does is handed it at its start; or have the workspaces mounted anew by `kill {}`: \
             what is open in them is lost then",
            std::process::id()
        ),
        false => "a restart of the daemon tries again".to_owned(),
    };
    let (refusal, told) = (config.paths.mount_refusal(), format!("{}; {help}\n", told(error)));
    if let Err(failed) = write_whole(&refusal, told.as_bytes(), 0o600, Durability::Process) {
        tracing::error!(error, help, path = %refusal.display(), %failed, "the mount is served on by the old program");
    }
}
