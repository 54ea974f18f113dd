//! Publishing: `mv draft v1` freezes a version at once, its manifest is made afterwards, and what a crash cut short goes on.
//!
//! ```text
//! v1.MANIFEST "pending"   made before the rename, durable: from here on nobody may change v1; its time stays that of this moment
//! draft → v1              the rename itself
//! v1.MANIFEST "complete"  when all is on disk and read; `latest` follows
//! ```
//! A manifest without its version is one whose rename never happened, and goes.

mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use shared::Shared;

use super::manifest::{Entry, Kind, State, Writer, by_line, entry_of, failing, pending, publisher, state};
use super::removal::{finish, gone};
use super::{DRAFT, LATEST, MANIFEST, OWN, Part, SHARED, Shelf, is_absent, manifest_of};
use crate::sys::file::{copy_content, has_writer};
use crate::sys::given_up::GivenUp;
use crate::sys::pause;
use crate::sys::walk::{Item, open, walk};

/// How often the manifest tells how far it is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// When to try again what failed, for instance because the disk is full.
const AGAIN: Duration = Duration::from_secs(60);

/// Versions that are not complete, by their manifests.
type Begun = Arc<Mutex<BTreeMap<PathBuf, Stage>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The rename is under way.
    Named,
    /// Files of it may be replaced.
    Read,
}

/// Completes manifests, on a thread for each workspace: what one of them publishes holds up no other.
#[derive(Debug)]
pub struct Freezer {
    asked: Sender<PathBuf>,
    begun: Begun,
}

/// Told of a path below `workspaces/`.
type Tell = Arc<dyn Fn(&Path) + Send + Sync>;

/// Told of a file below `workspaces/` before and after its name is given another one.
type TellReplaced = Arc<dyn Fn(&Path, Replaced) + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// It will be: who has it open is to change it no more.
    Soon,
    /// Its name leads to another one, or its attributes are others.
    Now,
}

/// Who is told what.
#[derive(Clone)]
struct Told {
    /// Of `HOME/datasets/NAME`, when something may have been published or removed there.
    settled: Tell,
    replaced: TellReplaced,
}

impl Freezer {
    /// Begins with what was cut short. `settled` is told of each dataset in which something may have changed, `replaced` of each
    /// file, below `workspaces`, that is given another inode.
    pub fn start(
        workspaces: &Path,
        settled: impl Fn(&Path) + Send + Sync + 'static,
        replaced: impl Fn(&Path, Replaced) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (sender, asked) = channel();
        let freezer = Self { asked: sender, begun: Begun::default() };
        let threads = Threads {
            workspaces: workspaces.to_owned(),
            by_home: BTreeMap::new(),
            begun: freezer.begun.clone(),
            told: Told { settled: Arc::new(settled), replaced: Arc::new(replaced) },
        };
        std::thread::Builder::new().name("publishing".to_owned()).spawn(move || threads.hand_out(&asked))?;
        match Shelf::open(workspaces)?.names(Path::new("")) {
            // What lies in them is looked for by the thread of each: one whose disk hangs holds up no other, nor the mount.
            Ok(homes) => homes.into_iter().for_each(|home| freezer.ask(home.into())),
            Err(error) => tracing::error!(%error, "cannot look for datasets whose publishing was cut short"),
        }
        Ok(freezer)
    }

    /// Has `HOME/datasets/NAME` settled, or all datasets of `HOME`.
    fn ask(&self, place: PathBuf) {
        // The thread ends only with us.
        let _ = self.asked.send(place);
    }

    /// Freezes what the user `by` is about to call `version` of `HOME/datasets/NAME`.
    pub fn begin(&self, shelf: &Shelf, dataset: &Path, version: &OsStr, by: u32) -> io::Result<()> {
        let manifest = dataset.join(manifest_of(version));
        lock(&self.begun).insert(manifest.clone(), Stage::Named);
        begin(shelf, dataset, version, by).inspect_err(|_| {
            lock(&self.begun).remove(&manifest);
        })
    }

    /// The rename has been done, or failed.
    pub fn renamed(&self, shelf: &Shelf, dataset: &Path, version: &OsStr, done: bool) {
        if !done && let Err(error) = abandon(shelf, dataset, version) {
            tracing::warn!(dataset = %dataset.display(), %error, "a version was not published; what is left of it goes later");
        }
        let manifest = dataset.join(manifest_of(version));
        match done {
            true => lock(&self.begun).insert(manifest, Stage::Read),
            false => lock(&self.begun).remove(&manifest),
        };
        self.ask(dataset.to_owned());
    }

    /// Whether files of it may be given other inodes.
    pub fn is_reading(&self, dataset: &Path, version: &OsStr) -> bool {
        let begun = lock(&self.begun);
        // Nearly always nothing is published.
        !begun.is_empty() && begun.contains_key(&dataset.join(manifest_of(version)))
    }
}

struct Threads {
    workspaces: PathBuf,
    by_home: BTreeMap<OsString, Sender<PathBuf>>,
    begun: Begun,
    told: Told,
}

impl Threads {
    fn hand_out(mut self, asked: &Receiver<PathBuf>) {
        let mut due = BTreeSet::new();
        while next(asked, &mut due) {
            // Those for which no thread could be started stay, and are tried again.
            due.retain(|dataset| match self.hand(dataset) {
                Ok(()) => false,
                Err(error) => {
                    tracing::error!(dataset = %dataset.display(), %error, "cannot publish yet, will try again");
                    true
                }
            });
        }
    }

    fn hand(&mut self, dataset: &Path) -> io::Result<()> {
        let home = dataset.iter().next().unwrap_or_default();
        let dataset = dataset.to_owned();
        let thread = self.by_home.get(home);
        let Err(SendError(dataset)) = thread.map_or(Err(SendError(dataset.clone())), |thread| thread.send(dataset))
        else {
            return Ok(());
        };
        // The first of this workspace, or its thread has panicked.
        let (sender, asked) = channel();
        let (shelf, due, begun) = (Shelf::open(&self.workspaces)?, BTreeSet::from([dataset]), self.begun.clone());
        let told = self.told.clone();
        let work = move || complete_all(&shelf, due, &asked, &begun, &told);
        std::thread::Builder::new().name("publish".to_owned()).spawn(work)?;
        self.by_home.insert(home.to_owned(), sender);
        Ok(())
    }
}

/// Waits for what is asked for, or until it is time to try again what is due; `false` when nobody can ask any more.
fn next(asked: &Receiver<PathBuf>, due: &mut BTreeSet<PathBuf>) -> bool {
    let next = if due.is_empty() { asked.recv().map_err(RecvTimeoutError::from) } else { asked.recv_timeout(AGAIN) };
    match next {
        Ok(dataset) => {
            due.insert(dataset);
            true
        }
        Err(RecvTimeoutError::Timeout) => true,
        Err(RecvTimeoutError::Disconnected) => false,
    }
}

/// Settles what is due, and what is asked for; again later what fails.
fn complete_all(shelf: &Shelf, mut due: BTreeSet<PathBuf>, asked: &Receiver<PathBuf>, begun: &Begun, told: &Told) {
    loop {
        let mut again = BTreeSet::new();
        for place in std::mem::take(&mut due) {
            match datasets_at(shelf, &place) {
                Ok(datasets) => {
                    again.extend(datasets.into_iter().filter(|dataset| !is_settled(shelf, dataset, begun, told)))
                }
                Err(error) => {
                    tracing::warn!(path = %place.display(), %error, "cannot look for datasets, will try again");
                    again.insert(place);
                }
            }
        }
        due = again;
        if !next(asked, &mut due) {
            return;
        }
    }
}

/// `false` if it is to be tried again.
fn is_settled(shelf: &Shelf, dataset: &Path, begun: &Begun, told: &Told) -> bool {
    let done = settle(shelf, dataset, begun, &told.replaced);
    // Whatever came of it: some of it may be done.
    (told.settled)(dataset);
    match done {
        Ok(()) => true,
        Err(error) if is_absent(&error) => true,
        Err(error) => {
            tracing::warn!(dataset = %dataset.display(), %error, "cannot publish yet, will try again");
            false
        }
    }
}

/// Each change of the set is one call of its own.
fn lock(begun: &Begun) -> MutexGuard<'_, BTreeMap<PathBuf, Stage>> {
    begun.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The dataset `HOME/datasets/NAME` itself, all of them for `HOME`.
fn datasets_at(shelf: &Shelf, place: &Path) -> io::Result<Vec<PathBuf>> {
    if place.iter().nth(1).is_some() {
        return Ok(vec![place.to_owned()]);
    }
    let datasets = place.join(Part::Datasets.as_str());
    match pause::work(|| shelf.names(&datasets)) {
        Ok(names) => Ok(names.into_iter().map(|name| datasets.join(name)).collect()),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn begin(shelf: &Shelf, dataset: &Path, version: &OsStr, by: u32) -> io::Result<()> {
    let (directory, frozen) = (shelf.directory(dataset)?, after_all(shelf, dataset)?);
    let name = manifest_of(version);
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(&directory, &name, flags, Mode::from_bits_truncate(0o644))?);
    let text = pending(0, 0) + &by_line(Some(by));
    let written = file.write_all(text.as_bytes()).and_then(|()| file.set_modified(frozen));
    let written = written.and_then(|()| file.sync_all());
    written.and_then(|()| directory.sync_all()).inspect_err(|_| {
        // The first error is the one to tell; what stays is taken away when it is settled.
        let _ = unlinkat(&directory, &name, UnlinkatFlags::NoRemoveDir);
    })
}

/// Now, by our own clock: that of a file system is coarser than two renames may be apart. Later than all versions that are there,
/// also where a clock was ahead when they were frozen.
fn after_all(shelf: &Shelf, dataset: &Path) -> io::Result<SystemTime> {
    let mut frozen = SystemTime::now();
    for version in shelf.versions(dataset)? {
        match shelf.frozen_at(dataset, &version) {
            Ok(at) => frozen = frozen.max(at + Duration::from_nanos(1)),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(frozen)
}

/// Takes back [`begin`], whose rename failed.
fn abandon(shelf: &Shelf, dataset: &Path, version: &OsStr) -> io::Result<()> {
    let directory = shelf.directory(dataset)?;
    Ok(unlinkat(&directory, &manifest_of(version), UnlinkatFlags::NoRemoveDir)?)
}

/// Completes what is pending of a dataset, and removes what a crash has left.
fn settle(shelf: &Shelf, dataset: &Path, begun: &Begun, replaced: &TellReplaced) -> io::Result<()> {
    let (directory, to_lock) = match pause::work(|| {
        let directory = shelf.directory(dataset)?;
        let to_lock = reopened(&directory)?;
        Ok((directory, to_lock))
    }) {
        Ok(opened) => opened,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    // A removal by the daemon is not cut short as long as it holds this. Outside of work: who waits here is held by nobody.
    let _held = Flock::lock(to_lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    pause::work(|| {
        remove_own(shelf, dataset, &directory)?;
        let mut first_error = None;
        for version in shelf.versions(dataset)? {
            let this = Version { shelf, dataset, directory: &directory, version: &version, replaced, by: None };
            // One that cannot be published keeps no other from it.
            if let Err(error) = settle_version(&this, begun) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    })
}

fn settle_version(this: &Version<'_>, begun: &Begun) -> io::Result<()> {
    let Version { shelf, dataset, directory, version, .. } = *this;
    let manifest = dataset.join(manifest_of(OsStr::new(version)));
    // Asked before its directory: whoever is not among them has been renamed already.
    if lock(begun).get(&manifest) == Some(&Stage::Named) {
        return Ok(());
    }
    if !shelf.is_directory(&dataset.join(version))? {
        tracing::info!(dataset = %dataset.display(), version, "was never published");
        unlinkat(directory, &manifest_of(OsStr::new(version)), UnlinkatFlags::NoRemoveDir)?;
        return Ok(());
    }
    match state(BufReader::new(shelf.file(&manifest)?)) {
        Ok(State::Complete) => {
            lock(begun).remove(&manifest);
            return Ok(());
        }
        Ok(State::Pending { .. } | State::Failing(_)) => {}
        // Empty after a loss of power: only we write there, so it was not complete.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
        Err(error) => return Err(error),
    }
    lock(begun).insert(manifest.clone(), Stage::Read);
    let this = &Version { by: publisher(BufReader::new(shelf.file(&manifest)?)).unwrap_or_default(), ..*this };
    complete(this).inspect_err(|error| {
        // On a full disk nobody is told there; the journal is.
        let _ = this.tell(&failing(&error.to_string()));
    })?;
    lock(begun).remove(&manifest);
    tracing::info!(dataset = %dataset.display(), version, "published");
    Ok(())
}

/// Drafts of our own, and versions whose removal was cut short.
fn remove_own(shelf: &Shelf, dataset: &Path, directory: &File) -> io::Result<()> {
    for name in shelf.names(dataset)?.iter().filter(|name| name.starts_with(OWN)) {
        match name.strip_prefix(&gone("")) {
            Some(version) => finish(shelf, dataset, directory, version)?,
            None => remove_below(directory, name)?,
        }
    }
    Ok(())
}

/// By a path through the open directory, which nobody can replace by a link.
pub(super) fn remove_below(directory: &File, name: &str) -> io::Result<()> {
    crate::sys::file::remove_tree(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

struct Version<'a> {
    shelf: &'a Shelf,
    dataset: &'a Path,
    directory: &'a File,
    version: &'a str,
    replaced: &'a TellReplaced,
    /// Who has published it, where that was noted.
    by: Option<u32>,
}

fn complete(this: &Version<'_>) -> io::Result<()> {
    let tree = this.shelf.directory(&this.dataset.join(this.version))?;
    let mut sum = 0;
    walk(&tree, &mut |item| {
        sum += if item.kind() == SFlag::S_IFREG { item.status.st_size.unsigned_abs() } else { 0 };
        Ok(())
    })?;
    let mut progress = Progress { this, done: 0, of: sum, told: Instant::now() };
    let before = this.shelf.latest(this.dataset).filter(|before| before != this.version);
    let mut before = before.and_then(|before| Shared::open(this, &before).ok());
    let draft = format!("{OWN}{}.manifest", this.version);
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = File::from(openat(this.directory, draft.as_str(), flags, Mode::from_bits_truncate(0o644))?);
    let by = this.by.map_or_else(|| tree.metadata().map(|tree| tree.uid()), Ok)?;
    let user = nix::unistd::User::from_uid(by.into()).ok().flatten();
    let by = user.map_or_else(|| format!("user {by}"), |user| user.name);
    let mut writer = Writer::new(BufWriter::new(file), &format!("{} by {by}", crate::sys::now()))?;
    walk(&tree, &mut |item| {
        let own = make_own(this, item, before.as_ref())?;
        let read = &mut |count| progress.add(count);
        let entry = match own {
            None => entry_of(item, read)?,
            Some(file) => {
                let (size, hash) = super::manifest::hash_of(file, read)?;
                Some(Entry { path: item.path.to_owned(), kind: Kind::File { size, hash } })
            }
        };
        let Some(entry) = entry else { return Ok(()) };
        if let Some(before) = &mut before {
            before.share(this, item, &entry)?;
        }
        writer.add(&entry)
    })?;
    let file = writer.end()?.into_inner().map_err(|error| error.into_error())?;
    file.set_modified(this.frozen_at()?)?;
    // What the manifest tells of is on disk before it.
    nix::unistd::syncfs(&tree)?;
    file.sync_all()?;
    renameat(this.directory, draft.as_str(), this.directory, &manifest_of(OsStr::new(this.version)))?;
    if !this.is_older_than_latest()? {
        point_latest(this.directory, this.version)?;
    }
    this.directory.sync_all()
}

pub(super) fn point_latest(directory: &File, version: &str) -> io::Result<()> {
    let link = format!("{OWN}{LATEST}");
    ignore_absent(unlinkat(directory, link.as_str(), UnlinkatFlags::NoRemoveDir))?;
    symlinkat(version, directory, link.as_str())?;
    Ok(renameat(directory, link.as_str(), directory, LATEST)?)
}

struct Progress<'a> {
    this: &'a Version<'a>,
    done: u64,
    of: u64,
    told: Instant,
}

impl Progress<'_> {
    fn add(&mut self, count: u64) {
        pause::point();
        self.done += count;
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            // Told again in a second.
            let _ = self.this.tell(&pending(self.done, self.of));
        }
    }
}

impl Version<'_> {
    /// Gives the item another file, which lies `aside`.
    fn replace(&self, item: &Item<'_>, aside: &str) -> io::Result<()> {
        let path = self.dataset.join(self.version).join(item.path);
        (self.replaced)(&path, Replaced::Soon);
        renameat(self.directory, aside, item.directory, item.name)?;
        (self.replaced)(&path, Replaced::Now);
        Ok(())
    }

    fn frozen_at(&self) -> io::Result<SystemTime> {
        self.shelf.frozen_at(self.dataset, self.version)
    }

    /// Whether one that was frozen later has been completed before it.
    fn is_older_than_latest(&self) -> io::Result<bool> {
        let Some(latest) = self.shelf.latest(self.dataset) else { return Ok(false) };
        match self.shelf.frozen_at(self.dataset, &latest) {
            Ok(latest) => Ok(self.frozen_at()? < latest),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What the manifest says until it is complete.
    fn tell(&self, text: &str) -> io::Result<()> {
        let Version { directory, version, .. } = self;
        let aside = format!("{OWN}{version}.told");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(*directory, aside.as_str(), flags, Mode::from_bits_truncate(0o644))?);
        file.write_all((text.to_owned() + &by_line(self.by)).as_bytes())?;
        file.set_modified(self.frozen_at()?)?;
        Ok(renameat(*directory, aside.as_str(), *directory, &manifest_of(OsStr::new(version)))?)
    }
}

/// A file that has further names, or is still open to be written under a name that it had, could be changed in spite of
/// all: it is replaced by a copy, which nobody knows.
fn make_own(this: &Version<'_>, item: &Item<'_>, before: Option<&Shared>) -> io::Result<Option<File>> {
    if item.kind() != SFlag::S_IFREG || before.is_some_and(|before| before.is_the_same(item)) {
        return Ok(None);
    }
    let source = open(item.directory, item.name, OFlag::empty())?;
    if item.status.st_nlink == 1 && !has_writer(&source).unwrap_or(true) {
        return Ok(None);
    }
    let aside = format!("{OWN}{}.copy", this.version);
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let copy = File::from(openat(this.directory, aside.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    copy_content(&source, &copy, &GivenUp::default())?;
    let status = &item.status;
    fchown(&copy, Some(status.st_uid), Some(status.st_gid))?;
    fchmod(&copy, Mode::from_bits_truncate(status.st_mode & 0o7777))?;
    let times =
        (TimeSpec::new(status.st_atime, status.st_atime_nsec), TimeSpec::new(status.st_mtime, status.st_mtime_nsec));
    futimens(&copy, &times.0, &times.1)?;
    this.replace(item, &aside)?;
    open(item.directory, item.name, OFlag::empty()).map(Some)
}

pub(super) fn ignore_absent(done: nix::Result<()>) -> io::Result<()> {
    match done {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Another open file of the same directory.
pub(super) fn reopened(directory: &File) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(File::from(openat(directory, ".", flags, Mode::empty())?))
}

/// Of the versions that are complete the one that was frozen last.
pub(super) fn newest(shelf: &Shelf, dataset: &Path) -> io::Result<Option<String>> {
    let mut newest = None;
    for version in shelf.versions(dataset)? {
        if shelf.is_complete(dataset, &version) {
            newest = newest.max(Some((shelf.frozen_at(dataset, &version)?, version)));
        }
    }
    Ok(newest.map(|(_, version)| version))
}

/// Whether `name` may be that of a version.
pub fn may_be_version(name: &str) -> bool {
    let is_taken = [DRAFT, LATEST].contains(&name) || name.ends_with(MANIFEST);
    !is_taken && name.parse::<crate::ids::AssetName>().is_ok()
}

/// Whether `home` is no workspace, but seen by all of them.
pub fn is_shared(home: &str) -> bool {
    SHARED.contains(&home)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::manifest::{Difference, verify};
    use crate::assets::removal::{Remover, remove};
    use std::fs;

    #[test]
    fn what_has_been_damaged_in_the_version_before_is_not_what_the_next_one_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default/datasets/d");
        fs::create_dir_all(&path).unwrap();
        let (shelf, dataset) = (Shelf::open(dir.path()).unwrap(), Path::new("default/datasets/d"));
        let replaced: TellReplaced = Arc::new(|_, _| ());
        let differs = |version: &str| {
            let manifest = BufReader::new(File::open(path.join(format!("{version}.MANIFEST"))).unwrap());
            let mut found = Vec::new();
            let tree = File::open(path.join(version)).unwrap();
            verify(&tree, manifest, &mut |_| {}, &mut |difference| found.push(difference)).unwrap();
            found
        };
        for version in ["v1", "v2"] {
            begin(&shelf, dataset, OsStr::new(version), 0).unwrap();
            fs::create_dir(path.join(version)).unwrap();
            for name in ["changed", "shorter", "whole"] {
                fs::write(path.join(version).join(name), format!("what is in {name}")).unwrap();
            }
            settle(&shelf, dataset, &Begun::default(), &replaced).unwrap();
            assert_eq!(differs(version), []);
            // Past the mount, or by the disk.
            fs::write(path.join("v1/changed"), "what is im changed").unwrap();
            fs::write(path.join("v1/shorter"), "what").unwrap();
        }
        assert_eq!(differs("v1"), ["changed", "shorter"].map(|name| Difference::Changed(name.into())));
        let inode = |name: &str| fs::metadata(path.join(name)).unwrap().ino();
        assert_eq!(inode("v1/whole"), inode("v2/whole"), "what is whole is stored once");
    }

    #[test]
    fn whoever_has_renamed_a_draft_has_published_it_whose_it_was_and_whatever_comes_between() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default/datasets/d");
        fs::create_dir_all(&path).unwrap();
        let (shelf, dataset) = (Shelf::open(dir.path()).unwrap(), Path::new("default/datasets/d"));
        let (directory, replaced): (_, TellReplaced) = (shelf.directory(dataset).unwrap(), Arc::new(|_, _| ()));
        for version in ["v1", "v2", "old"] {
            begin(&shelf, dataset, OsStr::new(version), 12_345).unwrap();
            fs::create_dir(path.join(version)).unwrap();
        }
        let by = Some(12_345);
        let told = Version { shelf: &shelf, dataset, directory: &directory, version: "v2", replaced: &replaced, by };
        told.tell(&pending(1, 2)).unwrap();
        told.tell(&failing("a disk")).unwrap();
        // As older programs have begun it.
        fs::write(path.join("old.MANIFEST"), pending(0, 0)).unwrap();
        settle(&shelf, dataset, &Begun::default(), &replaced).unwrap();
        let published = |version: &str| {
            let text = fs::read_to_string(path.join(format!("{version}.MANIFEST"))).unwrap();
            text.lines().nth(2).unwrap().rsplit(" by ").next().unwrap().to_owned()
        };
        let me = fs::metadata(path.join("old")).unwrap().uid();
        let owner = nix::unistd::User::from_uid(me.into()).unwrap().map_or(format!("user {me}"), |user| user.name);
        assert_eq!(["v1", "v2", "old"].map(published), ["user 12345".to_owned(), "user 12345".to_owned(), owner]);
    }

    #[test]
    fn latest_leads_to_what_was_frozen_last_in_whichever_order_manifests_are_completed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default/datasets/d");
        fs::create_dir_all(&path).unwrap();
        let (shelf, dataset) = (Shelf::open(dir.path()).unwrap(), Path::new("default/datasets/d"));
        let frozen_at = |version: &str| shelf.frozen_at(dataset, version).unwrap();
        // As a restart finds them; `v10` is settled before `v9`.
        for version in ["v9", "v10", "v8"] {
            begin(&shelf, dataset, OsStr::new(version), 0).unwrap();
            fs::create_dir(path.join(version)).unwrap();
            fs::write(path.join(version).join("file"), version).unwrap();
        }
        let before = ["v9", "v10", "v8"].map(frozen_at);
        assert!(before.is_sorted());
        let (directory, replaced): (_, TellReplaced) = (shelf.directory(dataset).unwrap(), Arc::new(|_, _| ()));
        let told =
            Version { shelf: &shelf, dataset, directory: &directory, version: "v9", replaced: &replaced, by: None };
        told.tell(&pending(1, 2)).unwrap();
        told.tell(&failing("a disk")).unwrap();
        settle(&shelf, dataset, &Begun::default(), &replaced).unwrap();
        assert_eq!(["v9", "v10", "v8"].map(frozen_at), before, "they keep the time through all of it");
        assert_eq!(fs::read_link(path.join(LATEST)).unwrap(), Path::new("v8"));
        let nobody = Remover { uid: 0, may_be_named: &|_| true, awaited_by: &|| Ok(None) };
        remove(&shelf, "default", "d", "v8", &nobody).unwrap();
        assert_eq!(fs::read_link(path.join(LATEST)).unwrap(), Path::new("v10"));
        // A clock that was ahead keeps what comes after it from being the newest no more than order does.
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        File::options().write(true).open(path.join("v10.MANIFEST")).unwrap().set_modified(ahead).unwrap();
        begin(&shelf, dataset, OsStr::new("v11"), 0).unwrap();
        assert!(frozen_at("v11") > ahead);
    }
}
