//! What is shown directly, against what is to be.
//!
//! A mount lies on the directory that the mount process shows of it, so it goes where people move that; what it is of is told
//! by device and inode, never by a path. The kernel takes it away by itself when its place is looked up and is another one,
//! or none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::Mode;

use super::strayed::Strayed;
use crate::assets::manifest::{State, state};
use crate::assets::{Part, Shelf, is_absent, manifest_of};
use crate::config::Direct;
use crate::ids::HomeName;
use crate::mounting::BACKING;
use crate::mounting::MountConfig;
use crate::sys::mounts::attached::Attached;
use crate::sys::mounts::{Access, Depth, Detached, path_of};
use crate::sys::rooted::open_resolved;
use crate::workspace::quota::{self, Quotas};

/// Most versions that are shown directly, of all workspaces: every process that gets mounts of its own copies them all (1 µs each), and
/// whoever reads which there are reads so many lines more.
const MOST: usize = 256;

/// Device and inode.
type Identity = (u64, u64);

/// A directory to be shown directly; `path` is below `workspaces/` and below the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    path: PathBuf,
    access: Access,
    code_of: Option<HomeName>,
}

struct Shown {
    mount: Attached,
    /// Whose `code/` it is.
    code_of: Option<HomeName>,
    /// What is written by way of it is heard of already: it could not be taken away when that began.
    is_heard: bool,
}

impl Shown {
    fn new(mount: Attached, code_of: Option<HomeName>) -> Self {
        Self { mount, code_of, is_heard: false }
    }

    /// Once, however often it is tried to take it away: the kernel keeps each watch until the mount has gone.
    fn hear(&mut self, limited: &BTreeSet<HomeName>, strays: &mut Strayed) {
        let limited = self.code_of.as_ref().filter(|home| limited.contains(*home));
        self.is_heard = limited.is_some_and(|home| self.is_heard || strays.watch(home, &self.mount));
    }
}

pub(super) struct Bound {
    config: MountConfig,
    shelf: Shelf,
    mounts: BTreeMap<Identity, Shown>,
    /// Workspaces with a quota, as of the last look.
    limited: BTreeSet<HomeName>,
    strays: Strayed,
    /// That something fails is told once.
    is_told: bool,
}

impl Bound {
    pub(super) fn open(config: &MountConfig) -> io::Result<Self> {
        let shelf = Shelf::open(&config.paths.workspaces())?;
        let strays = Strayed::open(&config.paths);
        let mut bound = Self {
            config: config.clone(),
            shelf,
            mounts: BTreeMap::new(),
            limited: BTreeSet::new(),
            strays,
            is_told: false,
        };
        bound.adopt_left();
        Ok(bound)
    }

    /// Takes over what one like us that was killed has left: what is not to be there any more goes with the first look.
    fn adopt_left(&mut self) {
        let names = |shelf: &Shelf, directory: &Path| shelf.names(directory).unwrap_or_default();
        for home in names(&self.shelf, Path::new("")) {
            self.adopt_if_mounted(&Path::new(&home).join(Part::Code.as_str()), home.parse().ok());
            let datasets = Path::new(&home).join(Part::Datasets.as_str());
            for dataset in names(&self.shelf, &datasets) {
                let dataset = datasets.join(dataset);
                for version in self.shelf.versions(&dataset).unwrap_or_default() {
                    self.adopt_if_mounted(&dataset.join(version), None);
                }
            }
        }
    }

    fn adopt_if_mounted(&mut self, path: &Path, code_of: Option<HomeName>) {
        let is_mounted = self
            .place(path, ResolveFlag::RESOLVE_NO_XDEV)
            .is_err_and(|error| error.raw_os_error() == Some(Errno::EXDEV as i32));
        if !is_mounted {
            return;
        }
        let there = self.place(path, ResolveFlag::empty());
        let adopted = there.and_then(|there| {
            let identity = identity_of(&there)?;
            // Whatever else is mounted there is an administrator's.
            let is_ours = self.shelf.directory(path).and_then(identity_of)? == identity;
            Ok(if is_ours { Some((identity, Attached::of(there)?)) } else { None })
        });
        match adopted {
            Ok(Some((identity, mount))) => drop(self.mounts.insert(identity, Shown::new(mount, code_of))),
            Ok(None) => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot take over what was shown directly"),
        }
    }

    /// Takes away what is not to be there, then shows what is; `false` when something failed.
    pub(super) fn settle(&mut self) -> bool {
        // What cannot be looked at is not shown directly, and keeps nothing else from it.
        let mut failed = None;
        let wanted = self.wanted(&mut failed);
        self.strays.watch_no_more_but(&self.limited);
        let released = self.release(&wanted);
        let done = self.show(wanted).and(released).and(failed.map_or(Ok(()), Err));
        match done {
            Ok(()) => {
                self.is_told = false;
                return true;
            }
            // It has gone, or been moved, since it was looked for.
            Err(error) if self.is_told || is_absent(&error) => tracing::debug!(%error, "still not shown directly"),
            Err(error) => {
                self.is_told = true;
                tracing::warn!(%error, "cannot show everything directly: the mount shows it, slower; will be tried again");
            }
        }
        false
    }

    /// Forgets mounts that have gone; whether there were such.
    pub(super) fn forget_all_but(&mut self, there: &BTreeSet<u64>) -> bool {
        let before = self.mounts.len();
        self.mounts.retain(|_, shown| there.contains(&shown.mount.id()));
        self.mounts.len() < before
    }

    /// Readable when somebody writes past the mount who was there before a quota.
    pub(super) fn strays(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.strays.watched.iter().map(|(_, writes)| writes.as_fd())
    }

    /// Has what they have written counted.
    pub(super) fn note_strays(&mut self) {
        self.strays.note();
    }

    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.release(&BTreeMap::new())
    }

    /// What does not go stays known, for the next look. The first error is told.
    fn release(&mut self, wanted: &BTreeMap<Identity, Wanted>) -> io::Result<()> {
        let mut first_error = None;
        self.mounts.retain(|identity, shown| {
            if wanted.contains_key(identity) {
                // Who was heard of has been forgotten with the quota.
                shown.is_heard = false;
                return true;
            }
            shown.hear(&self.limited, &mut self.strays);
            let detached = shown.mount.detach();
            let is_there = detached.is_err();
            if let Err(error) = detached {
                let told = format!("cannot take away what was shown directly, mount {}: {error}", shown.mount.id());
                first_error.get_or_insert(io::Error::new(error.kind(), told));
            }
            is_there
        });
        self.strays.tell();
        first_error.map_or(Ok(()), Err)
    }

    /// One that fails keeps no other from it; the first error is told.
    fn show(&mut self, wanted: BTreeMap<Identity, Wanted>) -> io::Result<()> {
        let mut first_error = None;
        for (identity, wanted) in wanted {
            if self.mounts.contains_key(&identity) {
                continue;
            }
            match self.bind(identity, &wanted) {
                Ok(mount) => drop(self.mounts.insert(identity, Shown::new(mount, wanted.code_of))),
                Err(error) => {
                    let told = io::Error::new(error.kind(), format!("{}: {error}", wanted.path.display()));
                    first_error.get_or_insert(told);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn bind(&self, identity: Identity, wanted: &Wanted) -> io::Result<Attached> {
        let source = self.shelf.directory(&wanted.path)?;
        if identity_of(&source)? != identity {
            return Err(moved());
        }
        let place = match self.place(&wanted.path, ResolveFlag::RESOLVE_NO_XDEV) {
            // Something is mounted there: by one like us that was killed.
            Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => return self.adopt(identity, wanted),
            place => place?,
        };
        // What people rename meanwhile must not show one directory with the rights of another's place.
        if shown_at(&place)? != identity {
            return Err(moved());
        }
        let mount = Detached::copy_of(&source, Depth::All)?;
        mount.restrict_apart(wanted.access)?;
        mount.attach_for_good(&place)
    }

    fn adopt(&self, identity: Identity, wanted: &Wanted) -> io::Result<Attached> {
        let there = self.place(&wanted.path, ResolveFlag::empty())?;
        match identity_of(&there)? == identity {
            true => Attached::of(there),
            false => Err(io::Error::other("something else is mounted there")),
        }
    }

    /// A handle of what the mount shows at `path`.
    fn place(&self, path: &Path, resolve: ResolveFlag) -> io::Result<OwnedFd> {
        // Not held for long: whoever holds it keeps the mount from being taken away.
        let top = nix::fcntl::open(&self.config.paths.mount_point(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let resolve = resolve | ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        open_resolved(&top, path, flags, Mode::empty(), resolve)
    }

    fn wanted(&mut self, failed: &mut Option<io::Error>) -> BTreeMap<Identity, Wanted> {
        let homes = self.homes(failed);
        let mut wanted = self.code(&homes, failed);
        for version in self.newest_versions(&homes, failed) {
            if let Some(Some(identity)) = or_later(self.published(&version), failed) {
                let (path, access) = (version.directory(), Access::ReadOnly);
                wanted.insert(identity, Wanted { path, access, code_of: None });
            }
        }
        wanted
    }

    /// Workspaces whose names everybody may read in the machine's table of mounts.
    fn homes(&self, failed: &mut Option<io::Error>) -> Vec<String> {
        let mut homes = or_later(self.shelf.names(Path::new("")), failed).unwrap_or_default();
        homes.retain(|home| self.may_be_named(Path::new(home), failed));
        homes
    }

    /// Whether everybody may read what lies in the directory, and go there: they see its names anyway.
    fn may_be_named(&self, directory: &Path, failed: &mut Option<io::Error>) -> bool {
        let metadata = self.shelf.directory(directory).and_then(|directory| directory.metadata());
        let Some(metadata) = or_later(metadata, failed) else { return false };
        self.config.direct == Direct::All || metadata.mode() & 0o005 == 0o005
    }

    /// `code/` of every workspace.
    fn code(&mut self, homes: &[String], failed: &mut Option<io::Error>) -> BTreeMap<Identity, Wanted> {
        let mut wanted = BTreeMap::new();
        // Nobody writes past a quota of which nothing is known.
        let quotas: Quotas = match quota::read(&quota::quotas_file(&self.config.paths)) {
            Ok(quotas) => quotas,
            Err(error) => {
                failed.get_or_insert(error);
                return wanted;
            }
        };
        self.limited = quotas.into_keys().collect();
        for home in homes {
            let code_of: Option<HomeName> = home.parse().ok();
            if code_of.as_ref().is_some_and(|home| self.limited.contains(home)) {
                continue;
            }
            let path = Path::new(home).join(Part::Code.as_str());
            let identity = self.shelf.directory(&path).and_then(identity_of);
            if let Some(identity) = or_later(identity, failed) {
                wanted.insert(identity, Wanted { path, access: Access::ReadWrite, code_of });
            }
        }
        wanted
    }

    /// Those whose manifests were written last, published or not yet; of each workspace as many as of any other that has them.
    fn newest_versions(&self, homes: &[String], failed: &mut Option<io::Error>) -> Vec<Version> {
        let mut found: Vec<(usize, Reverse<Version>)> = Vec::new();
        for home in homes {
            let mut versions: Vec<_> = self.versions_of(home, failed).into_iter().map(Reverse).collect();
            versions.sort();
            found.extend(versions.into_iter().enumerate());
        }
        found.sort();
        found.truncate(MOST);
        found.into_iter().map(|(_, Reverse(version))| version).collect()
    }

    fn versions_of(&self, home: &str, failed: &mut Option<io::Error>) -> Vec<Version> {
        let datasets = Path::new(home).join(Part::Datasets.as_str());
        if !self.may_be_named(&datasets, failed) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for name in or_later(self.shelf.names(&datasets), failed).unwrap_or_default() {
            let dataset = datasets.join(name);
            if self.may_be_named(&dataset, failed) {
                let names = or_later(self.shelf.versions(&dataset), failed).unwrap_or_default();
                found.extend(names.into_iter().filter_map(|name| self.version(&dataset, name)));
            }
        }
        found
    }

    fn version(&self, dataset: &Path, name: String) -> Option<Version> {
        let manifest = dataset.join(manifest_of(OsStr::new(&name)));
        let written = self.shelf.file(&manifest).and_then(|file| file.metadata()?.modified()).ok()?;
        Some(Version { written, dataset: dataset.to_owned(), name, manifest })
    }

    /// Which directory it is, if the manifest is complete: until then files in it are replaced.
    fn published(&self, version: &Version) -> io::Result<Option<Identity>> {
        let identity = identity_of(&self.shelf.directory(&version.directory())?)?;
        if self.mounts.contains_key(&identity) {
            return Ok(Some(identity));
        }
        let manifest = BufReader::new(self.shelf.file(&version.manifest)?);
        Ok(matches!(state(manifest), Ok(State::Complete)).then_some(identity))
    }
}

/// A version that has a manifest; the newest is the greatest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    written: SystemTime,
    dataset: PathBuf,
    name: String,
    manifest: PathBuf,
}

impl Version {
    fn directory(&self) -> PathBuf {
        self.dataset.join(&self.name)
    }
}

/// What there is of it; that it cannot be looked at is a reason to look again later, that it is not there is none.
fn or_later<T>(looked: io::Result<T>, failed: &mut Option<io::Error>) -> Option<T> {
    match looked {
        Ok(found) => Some(found),
        Err(error) => {
            if !is_absent(&error) {
                failed.get_or_insert(error);
            }
            None
        }
    }
}

fn moved() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it was moved meanwhile")
}

fn identity_of(handle: impl AsFd) -> io::Result<Identity> {
    let metadata = File::from(handle.as_fd().try_clone_to_owned()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The directory that the mount process shows at `place`, in its own words.
fn shown_at(place: &OwnedFd) -> io::Result<Identity> {
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(path_of(place), BACKING, &mut value)?;
    let text = value.get(..length).and_then(|value| std::str::from_utf8(value).ok());
    let parsed = text
        .and_then(|text| text.split_once(':'))
        .and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the mount does not tell what it shows"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Paths;

    #[test]
    fn what_cannot_be_taken_away_is_heard_of_once_however_often_it_is_tried() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        std::fs::create_dir_all(paths.run_dir()).unwrap();
        let home: HomeName = "default".parse().unwrap();
        let limited = BTreeSet::from([home.clone()]);
        let mut strays = Strayed::open(&paths);
        let mount = Attached::of(File::open(root.path()).unwrap().into()).unwrap();
        let mut shown = Shown::new(mount, Some(home));
        for _ in 0..3 {
            shown.hear(&limited, &mut strays);
            assert_eq!(strays.watched.len(), 1);
        }
        // The quota goes, and comes again.
        strays.watch_no_more_but(&BTreeSet::new());
        shown.hear(&BTreeSet::new(), &mut strays);
        assert!(strays.watched.is_empty() && !shown.is_heard);
        shown.hear(&limited, &mut strays);
        assert_eq!(strays.watched.len(), 1);
    }
}
