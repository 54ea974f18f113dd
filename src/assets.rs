//! Datasets and code on disk: where they lie, which versions are published, who uses them.
//!
//! ```text
//! workspaces/HOME/datasets/NAME/draft/        being made
//!                              /v1/           published: nobody changes it any more
//!                              /v1.MANIFEST   what it holds; that it is there makes `v1` published
//!                              /latest        → v1
//! workspaces/HOME/code/NAME/                  ordinary files
//! ```
//! HOME is a workspace, or `preset` (the administrator's) or `public` (anybody's), which every workspace sees. A dataset
//! without a draft and without versions is an ordinary directory as well.
//!
//! Whoever may write there is not trusted: every path is opened beneath `workspaces/` and through no link.

mod chosen;
pub mod enforced;
pub mod freeze;
pub mod manifest;
pub mod models;
pub mod removal;
mod users;

use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag, open};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use crate::config::{JobFiles, Paths};
use crate::ids::{AssetName, Whose, WorkspaceName};
use crate::sys::file::{class_mode, create_dir, optional};
use crate::sys::process::name_of;
use crate::sys::rooted::open_resolved;

/// The version that is being made.
pub const DRAFT: &str = "draft";
/// The link to the newest version.
pub const LATEST: &str = "latest";
/// After the name of a version.
pub const MANIFEST: &str = ".MANIFEST";
/// Begins names that are our own and shown to nobody.
pub const OWN: &str = ".trainyard-";
/// In `jobs/JOB/`, names of datasets, with what says whose they are, a line each, that a run of the job will see which has not chosen its own yet.
pub const AWAITED: &str = ".awaited";
/// What every workspace sees: first the administrator's.
pub const SHARED: [&str; 2] = [PRESET, "public"];
const PRESET: &str = "preset";

/// What names a home on the command line, where it is not the default workspace.
pub fn flag(home: &str) -> String {
    match home {
        "default" => String::new(),
        shared if SHARED.contains(&shared) => format!(" --{shared}"),
        workspace => format!(" -w {workspace}"),
    }
}

/// A part of a workspace with things that have names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Datasets,
    Code,
}

impl Part {
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Datasets => "datasets",
            Part::Code => "code",
        }
    }

    /// What one of them is.
    fn one(self) -> &'static str {
        match self {
            Part::Datasets => "dataset",
            Part::Code => "code",
        }
    }
}

/// The directory below which all workspaces lie.
#[derive(Debug)]
pub struct Shelf(OwnedFd);

/// Makes the directories of a workspace below `workspaces/`. Whoever may go to its job files may go there, nobody else;
/// whoever may drop job files there may put data and code into it as well: owner, group and rights of `datasets/` and
/// `code/` are those of the directory of its job files.
pub fn make_home(paths: &Paths, workspace: &WorkspaceName) -> io::Result<()> {
    let (home, job_files) = (&paths.workspace(workspace), &paths.job_files(workspace));
    // Closed, until it is known to whom it is open.
    create_dir(home, 0o700)?;
    for part in ["models", "jobs"] {
        create_dir(&home.join(part), 0o755)?;
    }
    let JobFiles::Open(like) = JobFiles::of(&paths.jobs_d(), workspace)? else {
        // A job of a workspace whose directory has been removed meanwhile, or is another's: it is no more open than it was.
        return [Part::Datasets, Part::Code].iter().try_for_each(|part| create_dir(&home.join(part.as_str()), 0o755));
    };
    let (ids, mode) = ((like.uid(), like.gid()), class_mode(job_files, &like)?);
    make_parts(home, mode & 0o7777, ids)?;
    fit(&Shelf::open(home)?.directory(Path::new("."))?, home_mode(mode), ids)
}

/// Of a workspace, by that of its job files: to look and to go there. What lies in it is the daemon's to make.
fn home_mode(job_files: u32) -> u32 {
    0o700 | (job_files & 0o055)
}

/// Makes what every workspace sees: the administrator's, and what anybody may put there who then alone may change it.
pub fn make_shared(workspaces: &Path) -> io::Result<()> {
    for (home, mode) in SHARED.into_iter().zip([0o755, 0o1777]) {
        create_dir(&workspaces.join(home), 0o755)?;
        make_parts(&workspaces.join(home), mode, (0, 0))?;
        // Where the kernel holds its quota, it was made closed.
        fit(&Shelf::open(&workspaces.join(home))?.directory(Path::new("."))?, 0o755, (0, 0))?;
    }
    Ok(())
}

fn make_parts(home: &Path, mode: u32, ids: (u32, u32)) -> io::Result<()> {
    for part in [Part::Datasets, Part::Code] {
        create_dir(&home.join(part.as_str()), mode)?;
        fit(&Shelf::open(home)?.directory(Path::new(part.as_str()))?, mode, ids)?;
    }
    Ok(())
}

fn fit(directory: &File, mode: u32, (uid, gid): (u32, u32)) -> io::Result<()> {
    let is = directory.metadata()?;
    if (is.uid(), is.gid()) != (uid, gid) {
        fchown(directory, Some(uid), Some(gid))?;
    }
    if is.mode() & 0o7777 != mode {
        directory.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Where a thing lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// A workspace, or one of [`SHARED`].
    pub home: String,
    pub name: AssetName,
    /// A directory without versions has none.
    pub version: Option<String>,
}

impl Place {
    /// Below `workspaces/`.
    pub fn path(&self, part: Part) -> PathBuf {
        let path = PathBuf::from(&self.home).join(part.as_str());
        match (&self.version, part) {
            (None, _) => path.join(self.name.as_str()),
            (Some(version), Part::Datasets) => path.join(self.name.as_str()).join(version),
            // Directories of their own, side by side.
            (Some(version), Part::Code) => path.join(format!("{}@{version}", self.name)),
        }
    }

    /// As people of `workspace` name it.
    pub fn told(&self, workspace: &WorkspaceName) -> String {
        let home = if self.home == workspace.as_str() { String::new() } else { format!("{}/", self.home) };
        let version = self.version.as_ref().map(|version| format!("@{version}")).unwrap_or_default();
        format!("{home}{}{version}", self.name)
    }
}

/// A thing as a job names it.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The job's.
    pub workspace: &'a WorkspaceName,
    pub whose: Whose,
    pub name: &'a AssetName,
}

impl<'a> Named<'a> {
    /// Where it is looked for, in their order.
    fn homes(self) -> Vec<&'a str> {
        let [preset, public] = SHARED;
        match self.whose {
            Whose::Nearest => vec![self.workspace.as_str(), preset, public],
            Whose::Mine => vec![self.workspace.as_str()],
            Whose::Preset => vec![preset],
            Whose::Public => vec![public],
        }
    }

    fn nothing(self, part: Part) -> MissingError {
        let name = self.name.clone();
        match *self.homes() {
            [home] => MissingError::NotThere { part, name, home: home.to_owned() },
            _ => MissingError::Nothing { part, name, workspace: self.workspace.clone() },
        }
    }

    fn unseen(self, part: Part, source: io::Error) -> MissingError {
        MissingError::Io { part, name: self.name.clone(), source }
    }
}

/// What a job gets by a name.
#[derive(Debug)]
pub struct Chosen {
    pub place: Place,
    /// What comes first by that name and is not to be trusted; for the job's owner to know.
    pub passed_over: Option<PassedOver>,
}

/// A thing of another user's in the job's workspace, where root has given something of that name to all: whoever may put
/// something there could take the place of what the job has had so far, and it would run with the rights of the job's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    part: Part,
    place: Place,
    /// Whose it is, user id.
    uid: u32,
    /// Where the one lies that root has given.
    shared: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (part, shared) = (self.part.as_str(), &self.shared);
        let Place { home, name, .. } = &self.place;
        let whose = name_of(self.uid);
        write!(
            f,
            "{part}/{name} of workspace {home} is {whose}'s and is passed over for {shared}/{part}/{name}, which is the administrator's: \
             write \"mine:{name}\" or \"{shared}:{name}\" to say which is meant"
        )
    }
}

/// What there is of a name, in the order in which it is looked for, each with the user id of its owner.
struct Found(Vec<(Place, u32)>);

impl Found {
    fn first(&self) -> Option<&Place> {
        Some(&self.0.first()?.0)
    }

    /// What those get in place of the first whose it is not. Whatever lies in preset the administrator has put there, also where
    /// it belongs to who has made it.
    fn instead(&self) -> Option<&Place> {
        let (first, others) = self.0.split_first()?;
        let is_members = first.1 != 0 && !SHARED.contains(&first.0.home.as_str());
        let given = others.iter().filter(|_| is_members);
        given
            .map(|(place, uid)| (place, *uid))
            .find(|(place, uid)| place.home == PRESET || *uid == 0)
            .map(|(place, _)| place)
    }

    /// What a job of user `owner` gets.
    fn of(self, part: Part, owner: u32) -> Option<Chosen> {
        let instead = self.instead().cloned();
        let (first, uid) = self.0.into_iter().next()?;
        Some(match instead.filter(|_| uid != owner) {
            None => Chosen { place: first, passed_over: None },
            Some(place) => {
                let passed_over = PassedOver { part, place: first, uid, shared: place.home.clone() };
                Chosen { place, passed_over: Some(passed_over) }
            }
        })
    }
}

/// Why a job does not get what it names.
#[derive(Debug, thiserror::Error)]
pub enum MissingError {
    #[error("there is no directory {part}/{name} in workspace {workspace}, nor in preset or public", part = .part.as_str())]
    Nothing { part: Part, name: AssetName, workspace: WorkspaceName },
    #[error("there is no directory {part}/{name} in {home}", part = .part.as_str())]
    NotThere { part: Part, name: AssetName, home: String },
    #[error("{why}; {passed_over}")]
    WherePassedOver { why: Box<MissingError>, passed_over: PassedOver },
    #[error("{} {name} has no version {version}; it has {}", .part.one(), list(.has))]
    Version { part: Part, name: AssetName, version: AssetName, has: Vec<String> },
    #[error(
        "{version} of dataset {name} is a directory that was never published, so it may change and go while a job reads it: `mv -T {version} draft` and then `mv -T draft {version}` in {name}/ makes a version of it, where there is no draft"
    )]
    Unpublished { name: AssetName, version: AssetName },
    #[error(
        "dataset {name} has a draft and no version yet: `mv draft v1` in it, or `trainyard dataset publish {name} v1`, makes one; {name}@draft is the draft as it is"
    )]
    OnlyDraft { name: AssetName },
    #[error(
        "dataset {name} holds nothing: its versions have been removed, or files are still to be put there; `trainyard dataset import PATH {name}` brings some in"
    )]
    Empty { name: AssetName },
    #[error("the job's owner may not look into {}", .0.display())]
    Rights(PathBuf),
    #[error("cannot look for {name} in {part}/", part = .part.as_str())]
    Io {
        part: Part,
        name: AssetName,
        #[source]
        source: io::Error,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Shelf {
    pub fn open(workspaces: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(workspaces, flags, Mode::empty())?))
    }

    fn at(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        // A pipe is not waited for. With O_PATH nothing is opened, and the kernel takes no such flags.
        let opening = if flags.contains(OFlag::O_PATH) { OFlag::empty() } else { OFlag::O_NONBLOCK | OFlag::O_NOCTTY };
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        open_resolved(&self.0, path, flags | opening, Mode::empty(), resolve)
    }

    /// The directory at `path` below `workspaces/`.
    pub fn directory(&self, path: &Path) -> io::Result<File> {
        Ok(self.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?.into())
    }

    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        match self.at(path, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether nobody may change the version any more. `dataset` is `HOME/datasets/NAME`.
    pub fn is_published(&self, dataset: &Path, version: &OsStr) -> bool {
        // No version is called so, and nothing is asked about as often.
        if version == DRAFT {
            return false;
        }
        match self.at(&dataset.join(manifest_of(version)), OFlag::O_PATH) {
            Ok(_) => true,
            // Who cannot look, for want of descriptors or memory, does not say that it may be changed.
            Err(error) => !is_absent(&error),
        }
    }

    /// The file at `path`, to be read.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        Ok(self.at(path, OFlag::O_RDONLY)?.into())
    }

    /// Names in a directory that are text, in order.
    pub fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut directory = nix::dir::Dir::from_fd(self.directory(path)?.into())?;
        let mut names = Vec::new();
        for entry in directory.iter() {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }

    /// The published versions of `HOME/datasets/NAME`, in order of their names.
    pub fn versions(&self, dataset: &Path) -> io::Result<Vec<String>> {
        let names = self.names(dataset)?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(MANIFEST)).map(str::to_owned).collect())
    }

    /// The version to which `latest` leads.
    pub fn latest(&self, dataset: &Path) -> Option<String> {
        let directory = self.at(dataset, OFlag::O_PATH | OFlag::O_DIRECTORY).ok()?;
        let target = nix::fcntl::readlinkat(&directory, LATEST).ok()?.into_string().ok()?;
        self.is_published(dataset, OsStr::new(&target)).then_some(target)
    }

    /// Whether a job may find there what it names, whoever it runs as: also where that cannot be looked at.
    pub fn may_lie_in(&self, home: &str, named: Named<'_>) -> bool {
        let Ok(found) = self.found(Part::Datasets, named, None) else { return true };
        [found.first(), found.instead()].into_iter().flatten().any(|place| place.home == home)
    }

    fn found(&self, part: Part, named: Named<'_>, version: Option<&AssetName>) -> Result<Found, MissingError> {
        let mut found = Vec::new();
        for home in named.homes() {
            let version = version.map(AssetName::to_string);
            let place = Place { home: home.to_owned(), name: named.name.clone(), version };
            // Whose it is, is asked of what was found: another one may have its name in the next moment.
            let uid = match self.at(&place.path(part), OFlag::O_PATH | OFlag::O_DIRECTORY) {
                Ok(there) => File::from(there).metadata().map(|there| there.uid()),
                Err(error) if is_absent(&error) => continue,
                Err(error) => Err(error),
            };
            found.push((place, uid.map_err(|source| named.unseen(part, source))?));
        }
        Ok(Found(found))
    }

    /// The code that a job of user `owner` gets by a name: in `code/NAME`, or `code/NAME@VERSION`.
    pub fn code(&self, named: Named<'_>, version: Option<&AssetName>, owner: u32) -> Result<Chosen, MissingError> {
        let part = Part::Code;
        match (self.found(part, named, version)?.of(part, owner), version) {
            (Some(chosen), _) => Ok(chosen),
            (None, None) => Err(named.nothing(part)),
            (None, Some(version)) => {
                let has = self.versions_of_code(named)?;
                Err(MissingError::Version { part, name: named.name.clone(), version: version.clone(), has })
            }
        }
    }

    fn versions_of_code(&self, named: Named<'_>) -> Result<Vec<String>, MissingError> {
        let mut has = Vec::new();
        for home in named.homes() {
            let names = self.names(&Path::new(home).join(Part::Code.as_str()));
            let names = optional(names).map_err(|source| named.unseen(Part::Code, source))?;
            let version = |text: &String| text.strip_prefix(named.name.as_str())?.strip_prefix('@').map(str::to_owned);
            has.extend(names.unwrap_or_default().iter().filter_map(version));
        }
        has.sort();
        Ok(has)
    }

    /// Whether a user may look into the directory at `path`, a way below `workspaces/`: as if the path began at its third
    /// part (HOME and the part of it are what the daemon shows to them). For a thread that has their rights.
    pub fn may_enter(&self, path: &Path) -> io::Result<bool> {
        let mut at: Option<OwnedFd> = None;
        let top: PathBuf = path.iter().take(3).collect();
        for part in std::iter::once(top.as_path()).chain(path.iter().skip(3).map(Path::new)) {
            let from = at.as_ref().map_or(self.0.as_fd(), OwnedFd::as_fd);
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
            let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
            at = Some(match open_resolved(from, part, flags, Mode::empty(), resolve) {
                Ok(opened) => opened,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
                Err(error) => return Err(error),
            });
        }
        let Some(directory) = at else { return Ok(true) };
        match nix::unistd::faccessat(&directory, ".", nix::unistd::AccessFlags::X_OK, nix::fcntl::AtFlags::AT_EACCESS) {
            Ok(()) => Ok(true),
            Err(Errno::EACCES) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// In `jobs/JOB/runs/`, what run `number` sees, by the names of the job file; written once, so that all its attempts see the same.
pub fn seen_file(number: impl fmt::Display) -> String {
    format!(".{number}.data")
}

/// In `jobs/JOB/runs/`, what was set aside for run `run` before it began; `number` tells it from what is set aside later.
pub fn aside_name(run: u32, number: u64) -> String {
    format!(".{run}.aside-{number}")
}

/// And for which run an entry there is that, and its number.
pub fn aside_of(name: &str) -> Option<(u32, u64)> {
    let (run, number) = name.strip_prefix('.')?.split_once(".aside-")?;
    Some((run.parse().ok()?, number.parse().ok()?))
}

/// As [`aside_of`], also of what is not whole, and of what is being fetched for it.
pub fn aside_begun(name: &str) -> Option<(u32, u64)> {
    let draft = name.strip_suffix(".fetch").and_then(|name| name.strip_prefix('.')).unwrap_or(name);
    aside_of(draft.strip_suffix(".new").unwrap_or(draft))
}

/// In it, what [`seen_file`] and [`models::models_file`] are of a run.
pub const ASIDE_DATA: &str = "data";
pub const ASIDE_MODELS: &str = "models";

pub fn manifest_of(version: &OsStr) -> PathBuf {
    let mut name = version.to_owned();
    name.push(MANIFEST);
    name.into()
}

pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(nix::libc::ELOOP)
}
