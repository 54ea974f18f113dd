//! How published versions go: never what a job uses, or will.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::freeze::{ignore_absent, newest, point_latest, remove_below, reopened};
use super::manifest::{State, state};
use super::{LATEST, OWN, Part, Shelf, is_absent, manifest_of};
use crate::ids::JobKey;

/// Whoever wants something gone.
pub struct Remover<'a> {
    pub uid: u32,
    /// Whether they may be told of a job.
    pub may_be_named: &'a dyn Fn(&JobKey) -> bool,
    /// A job that has not chosen yet, and will have what is to go.
    pub awaited_by: &'a dyn Fn() -> io::Result<Option<JobKey>>,
}

impl Remover<'_> {
    /// How the job is called to them that uses it, or will; empty where they may not know.
    pub(super) fn user(&self, chosen_by: Option<JobKey>) -> io::Result<Option<String>> {
        let job = match chosen_by {
            Some(job) => Some(job),
            None => (self.awaited_by)()?,
        };
        Ok(job.map(|job| if (self.may_be_named)(&job) { format!("job {job}") } else { String::new() }))
    }
}

/// Why a version is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error(
        "there is no published version {version} of {dataset}; `trainyard dataset show {dataset}` lists those that there are"
    )]
    Unknown { dataset: String, version: String },
    #[error("{dataset}@{version} is used, or will be, by a job that is not over{}: stop that, or take it out of its file", told(.by))]
    InUse { dataset: String, version: String, by: String },
    #[error("{dataset}@{version} is not yours: its owner may remove it, and root")]
    NotYours { dataset: String, version: String },
    #[error("{dataset} is being published: try again when that is done")]
    Pending { dataset: String, version: String },
    #[error("cannot remove {dataset}@{version}")]
    Io {
        dataset: String,
        version: String,
        #[source]
        source: io::Error,
    },
}

/// By whom, where that may be said.
pub(super) fn told(by: &str) -> String {
    if by.is_empty() { String::new() } else { format!(" ({by})") }
}

/// Removes a published version that no job uses, for its owner, the dataset's owner or root.
pub fn remove(shelf: &Shelf, home: &str, name: &str, version: &str, by: &Remover<'_>) -> Result<(), RemoveError> {
    let (dataset, version) = (name.to_owned(), version.to_owned());
    let io = |source| RemoveError::Io { dataset: dataset.clone(), version: version.clone(), source };
    let unknown = || RemoveError::Unknown { dataset: dataset.clone(), version: version.clone() };
    let path = Path::new(home).join(Part::Datasets.as_str()).join(name);
    let manifest = path.join(manifest_of(OsStr::new(&version)));
    let file = match shelf.file(&manifest) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Err(unknown()),
        Err(error) => return Err(io(error)),
    };
    // Asked of what is removed, not of what is called so a moment later.
    let directory = shelf.directory(&path).map_err(io)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let tree = match openat(&directory, version.as_str(), flags, Mode::empty()) {
        Ok(tree) => File::from(tree),
        Err(Errno::ENOENT) => return Err(unknown()),
        Err(errno) => return Err(io(errno.into())),
    };
    let owners = [directory.metadata().map_err(io)?.uid(), tree.metadata().map_err(io)?.uid()];
    if by.uid != 0 && !owners.contains(&by.uid) {
        return Err(RemoveError::NotYours { dataset: dataset.clone(), version: version.clone() });
    }
    // What cannot be completed can be removed.
    if matches!(state(BufReader::new(file)).map_err(io)?, State::Pending { .. }) {
        return Err(RemoveError::Pending { dataset: dataset.clone(), version: version.clone() });
    }
    let unused = || match shelf.user_of(home, name, Some(&version)).and_then(|job| by.user(job)).map_err(io)? {
        None => Ok(()),
        Some(by) => Err(RemoveError::InUse { dataset: dataset.clone(), version: version.clone(), by }),
    };
    // The mount process may be publishing another version, and clean up.
    let held = Flock::lock(reopened(&directory).map_err(io)?, FlockArg::LockExclusiveNonblock);
    let Ok(_held) = held else {
        unused()?;
        return Err(RemoveError::Pending { dataset: dataset.clone(), version: version.clone() });
    };
    let gone = put_aside(&directory, &version, unused, io)?;
    let taken_out = || -> io::Result<()> {
        unlinkat(&directory, &manifest_of(OsStr::new(&version)), UnlinkatFlags::NoRemoveDir)?;
        match newest(shelf, &path)? {
            Some(newest) => point_latest(&directory, &newest)?,
            None => ignore_absent(unlinkat(&directory, LATEST, UnlinkatFlags::NoRemoveDir))?,
        }
        directory.sync_all()?;
        remove_below(&directory, &gone)
    };
    taken_out().map_err(io)
}

/// What is called so while it is being removed.
pub(super) fn gone(name: &str) -> String {
    format!("{OWN}gone-{name}")
}

/// Takes what is to be removed out of sight, unless `unused` refuses. Returns how it is called then.
pub(super) fn put_aside<E>(
    directory: &File,
    name: &str,
    unused: impl Fn() -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
) -> Result<String, E> {
    unused()?;
    let gone = gone(name);
    renameat(directory, name, directory, gone.as_str()).map_err(|errno| io(errno.into()))?;
    // A job may have chosen it meanwhile; the next one finds it gone.
    if let Err(error) = unused() {
        renameat(directory, gone.as_str(), directory, name).map_err(|errno| io(errno.into()))?;
        return Err(error);
    }
    Ok(gone)
}
