//! What is shown directly, against what is to be.
//!
//! A mount lies on the directory that the mount process shows of it, so it goes where people move that; what it is of is told
//! by device and inode, never by a path. The kernel takes it away by itself when its place is looked up and is another one,
//! or none.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::Mode;

use crate::assets::manifest::{State, state};
use crate::assets::{Part, SHARED, Shelf, is_absent, manifest_of};
use crate::config::{Config, Direct};
use crate::ids::WorkspaceName;
use crate::mounting::BACKING;
use crate::sys::mounts::attached::Attached;
use crate::sys::mounts::{Access, Depth, Detached, path_of};
use crate::sys::rooted::open_resolved;

/// Most versions that are shown directly: every process that gets mounts of its own copies them all (1 µs each), and
/// whoever reads which there are reads so many lines more.
const MOST: usize = 256;

/// Device and inode.
type Identity = (u64, u64);

/// A directory to be shown directly; `path` is below `workspaces/` and below the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    path: PathBuf,
    access: Access,
}

pub(super) struct Bound {
    config: Config,
    shelf: Shelf,
    mounts: BTreeMap<Identity, Attached>,
    /// That something fails is told once.
    is_told: bool,
}

impl Bound {
    pub(super) fn open(config: &Config) -> io::Result<Self> {
        let shelf = Shelf::open(&config.paths.workspaces())?;
        Ok(Self { config: config.clone(), shelf, mounts: BTreeMap::new(), is_told: false })
    }

    /// Takes away what is not to be there, then shows what is; `false` when something failed.
    pub(super) fn settle(&mut self) -> bool {
        // Who has a quota may have changed; a file that cannot be used changes nothing.
        if let Ok(config) = Config::load(self.config.paths.root()) {
            self.config.storage = config.storage;
        }
        let done = self.wanted().and_then(|wanted| {
            self.release(&wanted);
            self.show(wanted)
        });
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
        self.mounts.retain(|_, mount| there.contains(&mount.id()));
        self.mounts.len() < before
    }

    pub(super) fn clear(&mut self) {
        self.release(&BTreeMap::new());
    }

    fn release(&mut self, wanted: &BTreeMap<Identity, Wanted>) {
        let gone: Vec<Identity> =
            self.mounts.keys().filter(|identity| !wanted.contains_key(identity)).copied().collect();
        for mount in gone.iter().filter_map(|identity| self.mounts.remove(identity)) {
            let id = mount.id();
            if let Err(error) = mount.detach() {
                tracing::warn!(id, %error, "cannot take away what was shown directly");
            }
        }
    }

    /// One that fails keeps no other from it; the first error is told.
    fn show(&mut self, wanted: BTreeMap<Identity, Wanted>) -> io::Result<()> {
        let mut first_error = None;
        for (identity, wanted) in wanted {
            if self.mounts.contains_key(&identity) {
                continue;
            }
            match self.bind(identity, &wanted) {
                Ok(mount) => drop(self.mounts.insert(identity, mount)),
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
        mount.restrict(wanted.access)?;
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

    fn wanted(&self) -> io::Result<BTreeMap<Identity, Wanted>> {
        let mut wanted = self.code()?;
        for version in self.newest_versions()? {
            match self.published(&version) {
                Ok(Some(identity)) => {
                    wanted.insert(identity, Wanted { path: version.directory(), access: Access::ReadOnly });
                }
                Ok(None) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(wanted)
    }

    fn homes(&self) -> io::Result<Vec<String>> {
        let mut homes = self.shelf.names(Path::new(""))?;
        let mut first_error = None;
        homes.retain(|home| {
            self.may_be_named(Path::new(home)).unwrap_or_else(|error| {
                first_error.get_or_insert(error);
                false
            })
        });
        first_error.map_or(Ok(homes), Err)
    }

    /// Whether everybody may read its name in the machine's table of mounts: those who may go there see it anyway.
    fn may_be_named(&self, directory: &Path) -> io::Result<bool> {
        match (self.config.direct, self.shelf.directory(directory)) {
            (_, Err(error)) if is_absent(&error) => Ok(false),
            (_, Err(error)) => Err(error),
            (Direct::All, Ok(_)) => Ok(true),
            (_, Ok(directory)) => Ok(directory.metadata()?.mode() & 0o001 != 0),
        }
    }

    /// `code/` of every workspace.
    fn code(&self) -> io::Result<BTreeMap<Identity, Wanted>> {
        let mut wanted = BTreeMap::new();
        for home in self.homes()?.into_iter().filter(|home| wants_code_direct(&self.config, home)) {
            let path = Path::new(&home).join(Part::Code.as_str());
            match self.shelf.directory(&path) {
                Ok(directory) => {
                    wanted.insert(identity_of(&directory)?, Wanted { path, access: Access::ReadWrite });
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(wanted)
    }

    /// Those whose manifests were written last, published or not yet.
    fn newest_versions(&self) -> io::Result<Vec<Version>> {
        let mut found = Vec::new();
        for home in self.homes()? {
            let datasets = Path::new(&home).join(Part::Datasets.as_str());
            for name in unless_absent(self.shelf.names(&datasets))? {
                let dataset = datasets.join(name);
                if !self.may_be_named(&dataset)? {
                    continue;
                }
                for name in unless_absent(self.shelf.versions(&dataset))? {
                    found.extend(self.version(&dataset, name));
                }
            }
        }
        found.sort();
        found.reverse();
        found.truncate(MOST);
        Ok(found)
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

/// Whether people write to `code/` of a workspace without a word of ours: where they have a quota the mount holds them to it,
/// and shows it as the size.
fn wants_code_direct(config: &Config, home: &str) -> bool {
    home.parse::<WorkspaceName>().is_ok_and(|home| config.storage.of(&home).is_none()) || SHARED.contains(&home)
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

fn unless_absent(names: io::Result<Vec<String>>) -> io::Result<Vec<String>> {
    match names {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        names => names,
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
