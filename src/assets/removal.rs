//! How published versions go: never what a job uses, or will.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::freeze::{ignore_absent, newest, point_latest, remove_below, reopened};
use super::manifest::{State, state};
use super::{LATEST, OWN, Part, SHARED, Shelf, flag, is_absent, manifest_of};
use crate::ids::JobKey;
use crate::sys::file::optional;

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
        "there is no published version {version} of {dataset}; `trainyard dataset show {dataset}{}` lists what there is",
        flag(.home)
    )]
    Unknown { home: String, dataset: String, version: String },
    #[error(
        "there is no published version {version} of {dataset} in workspace {home}; in {shared} there is: `--{shared}` names that one"
    )]
    Shared { home: String, dataset: String, version: String, shared: &'static str },
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
    let unknown = || match shared_with(shelf, home, name, &version) {
        None => RemoveError::Unknown { home: home.to_owned(), dataset: dataset.clone(), version: version.clone() },
        Some(shared) => {
            RemoveError::Shared { home: home.to_owned(), dataset: dataset.clone(), version: version.clone(), shared }
        }
    };
    let path = dataset_at(home, name);
    // Asked of what is removed, not of what is called so a moment later.
    let directory = match shelf.directory(&path) {
        Err(error) if is_absent(&error) => return Err(unknown()),
        directory => directory.map_err(io)?,
    };
    // Before anything is looked at: who waited for it finds what is there now.
    let held = hold(shelf, &path, &directory).map_err(io)?;
    let file = optional(shelf.file(&path.join(manifest_of(OsStr::new(&version))))).map_err(io)?;
    let whole = file.zip(tree_at(&directory, &version).map_err(io)?);
    let left = if whole.is_none() { tree_at(&directory, &gone(&version)).map_err(io)? } else { None };
    let Some(tree) = whole.as_ref().map(|(_, tree)| tree).or(left.as_ref()) else { return Err(unknown()) };
    let owners = [directory.metadata().map_err(io)?.uid(), tree.metadata().map_err(io)?.uid()];
    if by.uid != 0 && !owners.contains(&by.uid) {
        return Err(RemoveError::NotYours { dataset: dataset.clone(), version: version.clone() });
    }
    let Some((file, _)) = whole else {
        // It is out of sight already, by a removal that was cut short.
        let _held = held.ok_or_else(|| RemoveError::Pending { dataset: dataset.clone(), version: version.clone() })?;
        return finish(shelf, &path, &directory, &version).map_err(io);
    };
    // What cannot be completed can be removed.
    if matches!(state(BufReader::new(file)).map_err(io)?, State::Pending { .. }) {
        return Err(RemoveError::Pending { dataset: dataset.clone(), version: version.clone() });
    }
    let unused = || match shelf.user_of(home, name, Some(&version)).and_then(|job| by.user(job)).map_err(io)? {
        None => Ok(()),
        Some(by) => Err(RemoveError::InUse { dataset: dataset.clone(), version: version.clone(), by }),
    };
    let Some(_held) = held else {
        unused()?;
        return Err(RemoveError::Pending { dataset: dataset.clone(), version: version.clone() });
    };
    // Of one that was called so before.
    remove_below(&directory, &gone(&version)).map_err(io)?;
    put_aside(&directory, &version, unused, io)?;
    finish(shelf, &path, &directory, &version).map_err(io)
}

/// What who has just published a version has still to do under the lock takes no longer.
const SOON: Duration = Duration::from_secs(2);

/// The lock of a dataset; nothing while the mount process publishes a version of it, or another removal takes long.
fn hold(shelf: &Shelf, dataset: &Path, directory: &File) -> io::Result<Option<Flock<File>>> {
    let directory = match Flock::lock(reopened(directory)?, FlockArg::LockExclusiveNonblock) {
        Ok(held) => return Ok(Some(held)),
        Err((directory, Errno::EWOULDBLOCK)) => directory,
        Err((_, errno)) => return Err(errno.into()),
    };
    for version in shelf.versions(dataset)? {
        let manifest = optional(shelf.file(&dataset.join(manifest_of(OsStr::new(&version)))))?;
        if manifest.is_some_and(|file| !matches!(state(BufReader::new(file)), Ok(State::Complete))) {
            return Ok(None);
        }
    }
    let (sender, held) = channel();
    // The kernel tells of a lock, and knows no bound; one that comes too late is let go of at once.
    let wait = move || drop(sender.send(Flock::lock(directory, FlockArg::LockExclusive)));
    std::thread::Builder::new().name("remove".to_owned()).spawn(wait)?;
    match held.recv_timeout(SOON) {
        Ok(held) => held.map(Some).map_err(|(_, errno)| errno.into()),
        Err(_) => Ok(None),
    }
}

fn dataset_at(home: &str, name: &str) -> PathBuf {
    Path::new(home).join(Part::Datasets.as_str()).join(name)
}

/// The directory `name` itself, if there is one.
fn tree_at(directory: &File, name: &str) -> io::Result<Option<File>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(tree) => Ok(Some(File::from(tree))),
        // A link or a file of that name is none: `latest`, a manifest.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Which of the places that every workspace sees has the version that a workspace has not.
fn shared_with(shelf: &Shelf, home: &str, name: &str, version: &str) -> Option<&'static str> {
    let has = |shared: &&str| shelf.file(&dataset_at(shared, name).join(manifest_of(OsStr::new(version)))).is_ok();
    SHARED.into_iter().filter(|_| !SHARED.contains(&home)).find(has)
}

/// Ends the removal of a version that was [put aside](put_aside): its manifest and the link to it go before it. Whoever calls holds
/// the lock on the dataset's directory.
pub(super) fn finish(shelf: &Shelf, dataset: &Path, directory: &File, version: &str) -> io::Result<()> {
    let manifest = manifest_of(OsStr::new(version));
    let is_again = match optional(shelf.file(&dataset.join(&manifest)))? {
        // Another one is called so by now, or is about to be.
        Some(file) => {
            shelf.is_directory(&dataset.join(version))?
                || !matches!(state(BufReader::new(file)), Ok(State::Complete | State::Failing(_)))
        }
        None => false,
    };
    if !is_again {
        ignore_absent(unlinkat(directory, &manifest, UnlinkatFlags::NoRemoveDir))?;
        match newest(shelf, dataset)? {
            Some(newest) => point_latest(directory, &newest)?,
            None => ignore_absent(unlinkat(directory, LATEST, UnlinkatFlags::NoRemoveDir))?,
        }
        directory.sync_all()?;
    }
    remove_below(directory, &gone(version))
}

/// Ends removals in `home` that were cut short; those of one dataset that cannot be ended keep no others from it.
pub fn clear_all(shelf: &Shelf, home: &str) -> io::Result<()> {
    let datasets = Path::new(home).join(Part::Datasets.as_str());
    let names = shelf.names(&datasets)?;
    names.into_iter().map(|name| clear_dataset(shelf, &datasets.join(name))).fold(Ok(()), io::Result::and)
}

fn clear_dataset(shelf: &Shelf, dataset: &Path) -> io::Result<()> {
    let left = || -> io::Result<Vec<String>> {
        Ok(shelf.names(dataset)?.iter().filter_map(|name| name.strip_prefix(&gone(""))).map(str::to_owned).collect())
    };
    let cleared = || -> io::Result<()> {
        if left()?.is_empty() {
            return Ok(());
        }
        let directory = shelf.directory(dataset)?;
        // One that is being removed now may come back, and one that is published waits for nobody.
        let _held = Flock::lock(reopened(&directory)?, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        left()?.iter().try_for_each(|version| finish(shelf, dataset, &directory, version))
    };
    match cleared() {
        // Just a file, or gone meanwhile.
        Err(error) if is_absent(&error) => Ok(()),
        cleared => cleared,
    }
}

/// What is called so while it is being removed.
pub(super) fn gone(name: &str) -> String {
    format!("{OWN}gone-{name}")
}

/// Takes what is to be removed out of sight, unless `unused` refuses. It is called [`gone`] then.
pub(super) fn put_aside<E>(
    directory: &File,
    name: &str,
    unused: impl Fn() -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    unused()?;
    let gone = gone(name);
    renameat(directory, name, directory, gone.as_str()).map_err(|errno| io(errno.into()))?;
    // A job may have chosen it meanwhile; the next one finds it gone.
    if let Err(error) = unused() {
        renameat(directory, gone.as_str(), directory, name).map_err(|errno| io(errno.into()))?;
        return Err(error);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::manifest::{failing, pending};
    use std::fs;
    use std::os::unix::fs::symlink;

    /// As a removal of `v2` leaves it that is cut short after so many steps.
    fn cut_short(dataset: &Path, steps: usize) {
        for version in ["v1", "v2"] {
            fs::create_dir_all(dataset.join(version)).unwrap();
            let complete = pending(0, 0).replace("pending", "complete");
            fs::write(dataset.join(format!("{version}.MANIFEST")), complete).unwrap();
        }
        symlink("v2", dataset.join(LATEST)).unwrap();
        fs::rename(dataset.join("v2"), dataset.join(".trainyard-gone-v2")).unwrap();
        if steps > 1 {
            fs::remove_file(dataset.join("v2.MANIFEST")).unwrap();
        }
        if steps > 2 {
            fs::remove_file(dataset.join(LATEST)).unwrap();
            symlink("v1", dataset.join(LATEST)).unwrap();
        }
    }

    fn names(dataset: &Path) -> Vec<String> {
        let names = fs::read_dir(dataset).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_removal_that_was_cut_short_is_ended_by_the_next_one_and_at_a_start() {
        let nobody = Remover { uid: 0, may_be_named: &|_| true, awaited_by: &|| Ok(None) };
        let stranger = Remover { uid: 12_345, ..nobody };
        for steps in 1..=3 {
            let dir = tempfile::tempdir().unwrap();
            let [by_name, at_start] = ["a", "b"].map(|name| dir.path().join("default/datasets").join(name));
            let shelf = Shelf::open(dir.path()).unwrap();
            for dataset in [&by_name, &at_start] {
                cut_short(dataset, steps);
            }
            let refused = remove(&shelf, "default", "a", "v2", &stranger);
            assert!(matches!(refused, Err(RemoveError::NotYours { .. })), "{steps}: {refused:?}");
            remove(&shelf, "default", "a", "v2", &nobody).unwrap();
            assert_eq!(names(&by_name), ["latest", "v1", "v1.MANIFEST"], "{steps}");
            assert_eq!(fs::read_link(by_name.join(LATEST)).unwrap(), Path::new("v1"), "{steps}");
            let again = remove(&shelf, "default", "a", "v2", &nobody);
            assert!(matches!(again, Err(RemoveError::Unknown { .. })), "{steps}: {again:?}");
            for no_version in [LATEST, "v1.MANIFEST"] {
                let unknown = remove(&shelf, "default", "a", no_version, &nobody);
                assert!(matches!(unknown, Err(RemoveError::Unknown { .. })), "{steps}: {unknown:?}");
            }
            fs::write(dir.path().join("default/datasets/file"), "").unwrap();
            clear_all(&shelf, "default").unwrap();
            assert_eq!(names(&at_start), ["latest", "v1", "v1.MANIFEST"], "{steps}");
            assert_eq!(fs::read_link(at_start.join(LATEST)).unwrap(), Path::new("v1"), "{steps}");
        }
    }

    #[test]
    fn what_is_called_so_by_now_is_not_taken_for_what_was_being_removed() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        let dataset = dir.path().join("default/datasets/d");
        cut_short(&dataset, 3);
        // It is about to get its name.
        fs::write(dataset.join("v2.MANIFEST"), pending(0, 0)).unwrap();
        clear_all(&shelf, "default").unwrap();
        assert_eq!(names(&dataset), ["latest", "v1", "v1.MANIFEST", "v2.MANIFEST"]);
    }

    #[test]
    fn who_removes_right_after_a_version_was_published_waits_for_the_last_of_it_and_for_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        let dataset = dir.path().join("default/datasets/d");
        let nobody = || Remover { uid: 0, may_be_named: &|_| true, awaited_by: &|| Ok(None) };
        fs::create_dir_all(dataset.join("v1")).unwrap();
        fs::write(dataset.join("v1.MANIFEST"), pending(0, 0).replace("pending", "complete")).unwrap();
        let publishes = || Flock::lock(File::open(&dataset).unwrap(), FlockArg::LockExclusive).unwrap();
        let other = dataset.join("v2.MANIFEST");
        for text in [pending(1, 2), failing("a disk"), String::new()] {
            fs::write(&other, &text).unwrap();
            let _held = publishes();
            let refused = remove(&shelf, "default", "d", "v1", &nobody());
            assert!(matches!(refused, Err(RemoveError::Pending { .. })), "{text}: {refused:?}");
        }
        fs::remove_file(&other).unwrap();
        let held = publishes();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| remove(&shelf, "default", "d", "v1", &nobody()));
            // It waits for the lock, which the kernel tells.
            let inode = fs::metadata(&dataset).unwrap().ino();
            let waits = |line: &str| line.contains("-> FLOCK") && line.contains(&format!(":{inode} "));
            while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
                assert!(!removing.is_finished(), "{:?}", removing.join());
                std::thread::yield_now();
            }
            assert!(dataset.join("v1").exists());
            drop(held);
            removing.join().unwrap().unwrap();
        });
        assert_eq!(names(&dataset), Vec::<String>::new());
    }

    #[test]
    fn of_several_who_remove_a_version_at_once_one_does_and_the_others_find_none() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        let dataset = dir.path().join("default/datasets/d");
        for _ in 0..50 {
            fs::create_dir_all(dataset.join("v1/below")).unwrap();
            fs::write(dataset.join("v1.MANIFEST"), pending(0, 0).replace("pending", "complete")).unwrap();
            let start = std::sync::Barrier::new(4);
            let remove = || {
                start.wait();
                remove(
                    &shelf,
                    "default",
                    "d",
                    "v1",
                    &Remover { uid: 0, may_be_named: &|_| true, awaited_by: &|| Ok(None) },
                )
            };
            let done: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(remove)).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
            let is_told = |done: &Result<(), RemoveError>| matches!(done, Ok(()) | Err(RemoveError::Unknown { .. }));
            assert!(done.iter().all(is_told), "{done:?}");
        }
    }

    #[test]
    fn who_removes_beside_a_removal_that_takes_long_does_not_wait_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        let dataset = dir.path().join("default/datasets/d");
        fs::create_dir_all(dataset.join("v1")).unwrap();
        fs::write(dataset.join("v1.MANIFEST"), pending(0, 0).replace("pending", "complete")).unwrap();
        let _held = Flock::lock(File::open(&dataset).unwrap(), FlockArg::LockExclusive).unwrap();
        let nobody = Remover { uid: 0, may_be_named: &|_| true, awaited_by: &|| Ok(None) };
        let refused = remove(&shelf, "default", "d", "v1", &nobody);
        assert!(matches!(refused, Err(RemoveError::Pending { .. })), "{refused:?}");
    }
}
