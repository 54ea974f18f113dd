//! Copies of what Trainyard alone knows, taken while it runs, and put back.
//!
//! ```text
//! backup:   store (one read transaction) ─► state.jsonl ┐
//!           etc/trainyard, subordinate-ids ────────────┴─► FILE, whole or not there
//! restore:  FILE ─► read and checked to its end ─► drafts beside their places ─► restore.json ─► renames
//! ```
//! A restore that was cut short before `restore.json` has changed nothing; after it, [`finish`] goes on, which the next
//! `restore`, `backup` and start of the daemon call. Nothing is removed: what was there is set aside under a name with the time.
//! Called by the command line, as root, and by the start of the daemon. Never holds what people can have elsewhere, or what is
//! made anew: datasets, code, models, what runs have left, images.

mod archive;
mod left;
mod restored;
mod subordinates;
mod swap;
mod tokens;

use std::fs::{self, File};
use std::io::{self, BufReader, Seek, Write};
use std::path::{Path, PathBuf};

use crate::config::Paths;
use crate::ids::Timestamp;
use crate::rundir::{Found, TaskDir};
use crate::store::copy::{self, CopyError};
use crate::store::redb::RedbStore;
use crate::store::{Batch, Store, StoreError};
use crate::sys::file::{create_dir, remove_if_there, remove_tree, sync_file_system};
use crate::sys::lock::{HeldLock, pid_in};
use crate::transfer::TransferError;

pub use archive::Manifest;
use left::entries;
pub use tokens::{Tokens, TokensTold};

/// What a backup does not hold, for people.
pub const LACKS: &str =
    "datasets, code, models, and what runs have left (var/lib/trainyard/workspaces), images, copies from stores";

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("cannot {what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("{path} is no backup of Trainyard, or a damaged one: {what}; nothing was changed")]
    Damaged { path: PathBuf, what: String },
    #[error("{path} is a backup in format {found}, this program reads up to {known}; use the newer Trainyard")]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error(
        "{path} is empty, and runs have left something on this disk: the state was lost. Restore a backup (`trainyard restore FILE \
         --replace`); or move the file away to begin anew, when all job files are taken in as new jobs"
    )]
    Emptied { path: PathBuf },
    #[error(
        "{path} is missing, and runs have left something on this disk: the state was lost, and there is nothing to back up. Restore a \
         backup (`trainyard restore FILE --replace`); or start the daemon, which goes on from what is on the disk, and back up then"
    )]
    Lost { path: PathBuf },
    #[error("{path} is a link that leads to nothing: is the disk mounted where the state is?")]
    Astray { path: PathBuf },
    #[error(
        "the daemon of {root} runs (process {pid}); end it first: `systemctl stop trainyard`, or `trainyard --root {root} shutdown`"
    )]
    DaemonRuns { root: PathBuf, pid: i32 },
    #[error(
        "task {task} still runs, and a restored state would not know how it ends: start the daemon, `trainyard shutdown`, then restore"
    )]
    TaskRuns { task: String },
    #[error(
        "there is an installation at {root} already; with --replace its configuration, job files and state are set aside and the backup's put in their place"
    )]
    Exists { root: PathBuf },
    #[error(
        "the line {line} of {file} and {other} of the backup give users different ids, and files here bear the former, as {bearer}; nothing was changed. Restore into another --root; or give these files other owners (chown) or move them away, and restore again: a line whose ids nothing here bears makes way"
    )]
    Subordinates { file: PathBuf, line: String, other: String, bearer: PathBuf },
    #[error(
        "{mount} is a mount point, and a restore puts another {place} in the place of what is there, by a rename; nothing was changed. Unmount it, restore, mount it elsewhere and copy {place} onto it, then mount it at its place again"
    )]
    MountPoint { mount: PathBuf, place: PathBuf },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { what, path, source }
}

/// What came of a restore.
#[derive(Debug)]
pub struct Restored {
    pub manifest: Manifest,
    pub jobs: usize,
    /// Runs that were not over when the backup was taken.
    pub open: usize,
    /// What of the machine is newer than the backup, one line each.
    pub newer: Vec<String>,
    /// What has come without its access lists, one line each.
    pub without_lists: Vec<String>,
    /// Where what was there before lies now.
    pub aside: Vec<PathBuf>,
    pub tokens: TokensTold,
    /// Lines of this machine's subordinate ids that have made way.
    pub ids_gone: Vec<String>,
}

/// What of a backup is wanted, and where.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub replace: Replace,
    pub tokens: Tokens,
}

/// Nobody else may change the installation while this is held.
pub struct Offline(#[expect(dead_code, reason = "held until it is dropped")] HeldLock);

/// Keeps the daemon away; finishes a restore that was cut short.
pub fn offline(paths: &Paths) -> Result<Offline, BackupError> {
    let path = paths.daemon_lock();
    create_dir(&paths.run_dir(), 0o755).map_err(failed("make the directory", &paths.run_dir()))?;
    let lock = HeldLock::try_take(&path).map_err(failed("lock", &path))?;
    let Some(mut lock) = lock else {
        let pid = pid_in(&path).map_err(failed("read", &path))?.unwrap_or(0);
        return Err(BackupError::DaemonRuns { root: paths.root().to_owned(), pid });
    };
    lock.write_pid(nix::unistd::getpid().as_raw()).map_err(failed("write", &path))?;
    swap::finish(paths)?;
    Ok(Offline(lock))
}

/// Finishes a restore that was cut short, if there is one and nobody is at it. For the start of the daemon.
pub fn finish(paths: &Paths) -> Result<(), BackupError> {
    if !swap::is_unfinished(paths) {
        return Ok(());
    }
    match offline(paths) {
        // Whoever holds the lock is told of by the daemon's own start.
        Ok(_) | Err(BackupError::DaemonRuns { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the store where there is none though runs have left something, since the state was lost: their numbers are not given again.
/// For the start of the daemon, which holds the lock. Says of how many jobs something is there.
pub fn begin_anew(paths: &Paths, now: Timestamp) -> Result<usize, BackupError> {
    let Some(left) = lost(paths)? else { return Ok(0) };
    let file = paths.store_file();
    // Whole or not there, whenever this is killed.
    let draft = file.with_extension("draft");
    remove_if_there(&draft).map_err(failed("remove", &draft))?;
    RedbStore::open(&draft)?.commit(&restored::anew(&left, now))?;
    sync_file_system(&draft).map_err(failed("sync", &draft))?;
    fs::rename(&draft, &file).map_err(failed("rename", &draft))?;
    sync_file_system(&file).map_err(failed("sync", &file))?;
    Ok(left.jobs.len())
}

/// What runs have left where there is no state of them.
fn lost(paths: &Paths) -> Result<Option<restored::Left>, BackupError> {
    let file = paths.store_file();
    let is_there = match file.metadata() {
        Ok(found) if found.len() > 0 => return Ok(None),
        Ok(_) => true,
        Err(_) if file.is_symlink() => return Err(BackupError::Astray { path: file }),
        Err(_) => false,
    };
    let left = left::left_in(paths, &Batch::default())
        .map_err(failed("look at what runs have left in", &paths.workspaces()))?;
    match left.is_empty() {
        true => Ok(None),
        false if is_there => Err(BackupError::Emptied { path: file }),
        false => Ok(Some(left)),
    }
}

/// Copies the state of an installation whose daemon does not run.
pub fn copy_state(paths: &Paths, _: &Offline, out: &mut dyn Write) -> Result<(), BackupError> {
    // Else an empty store would be made, and taken for the state by the next start and by whoever restores the backup.
    if lost(paths)?.is_some() {
        return Err(BackupError::Lost { path: paths.store_file() });
    }
    Ok(RedbStore::open(&paths.store_file())?.reader().copy(out)?)
}

/// Is told how many bytes have been written, or read, so far.
pub type Told<'a> = &'a mut dyn FnMut(u64);

/// Writes the backup to `out`; `state` is what [`copy_state`], or the daemon, has written. Tells what was left out.
pub fn write(
    paths: &Paths,
    state: &mut File,
    out: &File,
    now: Timestamp,
    told: Told<'_>,
) -> Result<Vec<String>, BackupError> {
    state.rewind().map_err(failed("read", &paths.store_file()))?;
    // A copy that cannot be read is none.
    copy::read(BufReader::new(&*state))?;
    state.rewind().map_err(failed("read", &paths.store_file()))?;
    archive::write(paths, state, out, now, told)
}

/// Puts the backup `from` in the place of what is there.
pub fn restore(
    paths: &Paths,
    from: &Path,
    wanted: Wanted,
    now: Timestamp,
    told: Told<'_>,
) -> Result<Restored, BackupError> {
    let _offline = offline(paths)?;
    if wanted.replace == Replace::Nothing && (paths.store_file().exists() || paths.config_dir().exists()) {
        return Err(BackupError::Exists { root: paths.root().to_owned() });
    }
    refuse_if_tasks_run(paths)?;
    swap::refuse_mount_points(paths)?;
    create_dir(&paths.state_dir(), 0o700).map_err(failed("make the directory", &paths.state_dir()))?;
    let restored = put_back(paths, from, wanted, now, told);
    if restored.is_err() {
        // The error tells more than one of this; whatever comes next tries it again.
        let _ = swap::discard_drafts(paths);
    }
    restored
}

fn put_back(
    paths: &Paths,
    from: &Path,
    wanted: Wanted,
    now: Timestamp,
    told: Told<'_>,
) -> Result<Restored, BackupError> {
    let drafts = swap::Drafts::make(paths)?;
    let read = archive::read(from, &drafts, told)?;
    let left =
        left::left_in(paths, &read.state).map_err(failed("look at what runs have left in", &paths.workspaces()))?;
    let archive::Content { manifest, state, without_lists } = read;
    let restored::Adapted { batch, open, newer } = restored::adapt(state, &left, manifest.taken, now);
    let ids_gone = drafts.merge_subordinates(paths)?;
    let tokens = wanted.tokens.choose(paths, &drafts)?;
    let store = RedbStore::open(&drafts.store())?;
    let jobs = batch.jobs.values().filter(|job| !job.removed).count();
    store.commit(&batch)?;
    drop(store);
    sync_file_system(&drafts.store()).map_err(failed("sync", &drafts.store()))?;
    sync_file_system(&drafts.config()).map_err(failed("sync", &drafts.config()))?;
    let aside = drafts.put_in_place(paths, now)?;
    Ok(Restored { manifest, jobs, open, newer, without_lists, aside, tokens, ids_gone })
}

/// Whether a restore may take the place of what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    Nothing,
    Everything,
}

fn refuse_if_tasks_run(paths: &Paths) -> Result<(), BackupError> {
    let attempts = paths.attempts();
    for attempt in entries(&attempts).map_err(failed("read", &attempts))? {
        for task in entries(&attempt).map_err(failed("read", &attempt))?.into_iter().filter(|path| path.is_dir()) {
            // What cannot be judged has no shim either.
            if let Ok(Found::Alive { .. } | Found::Kept { .. }) = TaskDir::at(task.clone()).look() {
                let of = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                return Err(BackupError::TaskRuns { task: format!("{} of attempt {}", of(&task), of(&attempt)) });
            }
        }
    }
    Ok(())
}

/// Of an earlier try that was killed.
fn remove_drafts(path: &Path) -> Result<(), BackupError> {
    remove_tree(path).map_err(failed("remove", path))
}

#[cfg(test)]
mod tests;
