//! Python packages that a job's code lists: installed once for an image, a list and an owner, by the task that needs them
//! first, into a virtual environment on top of the image's own packages.
//!
//! ```text
//! requirements/WORKSPACE/UID/KEY/   `env` (the environment), `site` (its packages), `complete`; tasks see it at PLACE
//!                            wheels/  what pip has built and fetched; seen while something is installed
//! ```
//! KEY is a hash of the image, the list and what the list may name. The modification time of KEY is its last use.
//!
//! They are kept apart by owner, not shared in a workspace: what is installed runs as whoever uses it, and pip takes no
//! cache of another user.
//!
//! **Invariant:** once `complete` is there, tasks see it read-only.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::failed;
use super::root::{Base, Kind};
use super::workdirs::code_name;
use crate::config::Paths;
use crate::contract::{Task, requirements};
use crate::engine::{EngineError, Launch};
use crate::rundir::{Mount, Requirements};
use crate::sys::file::{create_dir, create_dir_for, remove_tree};
use crate::sys::mounts;
use crate::sys::rooted::Rooted;

/// Longest list, bytes.
const LIST_MAX: u64 = 1 << 20;
/// Most files beside the list that may be part of what it says.
const BESIDE_MAX: usize = 1000;
/// Most files of directories that it names, and most bytes of them that are read; what is beyond is told apart by its name alone.
const BELOW_MAX: usize = 10_000;
const READ_MAX: u64 = 64 << 20;

/// What a task gets.
pub(super) struct Provided {
    pub(super) mounts: Vec<Mount>,
    /// Unless it is there already.
    pub(super) install: Option<Requirements>,
}

/// `None` for a task whose code lists nothing, or whose list nobody asks for.
pub(super) fn provide(
    paths: &Paths,
    launch: &Launch,
    task: &Task<'_>,
    base: &Base,
) -> Result<Option<Provided>, EngineError> {
    let Some(wanted) = requirements::wanted(task) else { return Ok(None) };
    // The run's directory is its owner's: what of it is a link leads nowhere else.
    let run = paths.run(&launch.identity.key, launch.identity.run);
    let Some(list) =
        List::read(&run, &code_name(task), wanted.file).map_err(failed(format!("read {} of the code", wanted.file)))?
    else {
        return match wanted.must_be_there {
            false => Ok(None),
            true => Err(EngineError(format!("requirements = true: there is no {} in the code's root", wanted.file))),
        };
    };
    let place = Environment::of(paths, launch, &list.key(base)).map_err(failed("make room for the requirements"))?;
    let is_complete = place.is_complete();
    place.touch().map_err(failed("note that requirements are used"))?;
    let mount = |source: &Path, target: &str, read_only| Mount {
        source: source.to_owned(),
        target: PathBuf::from(target),
        read_only,
        scratch: None,
        is_of_machine: false,
    };
    let mut mounts = vec![mount(&place.directory, requirements::PLACE, is_complete)];
    if !is_complete {
        mounts.push(mount(&place.wheels, requirements::WHEELS, false));
    }
    let install = Requirements {
        list: format!("/code/{}", wanted.file),
        name: wanted.file.to_owned(),
        place: requirements::PLACE.to_owned(),
        wheels: requirements::WHEELS.to_owned(),
    };
    Ok(Some(Provided { mounts, install: (!is_complete).then_some(install) }))
}

/// A list of requirements, and what else decides about what is installed.
struct List(Sha256);

impl List {
    /// The file `name` in the directory `code` of `run`; `None` if there is none.
    fn read(run: &Path, code: &str, name: &str) -> io::Result<Option<Self>> {
        let (root, code) = (Rooted::open(run)?, Path::new(code));
        let Some(list) = root.read(&code.join(name), LIST_MAX)? else { return Ok(None) };
        if list.len() as u64 == LIST_MAX {
            return Err(io::Error::other(format!("it has {LIST_MAX} bytes or more: that is no list of requirements")));
        }
        let mut hash = Sha256::new_with_prefix("1");
        add(&mut hash, &list);
        if names_files(&list) {
            let mut others = lists_in(&list).filter_map(|other| root.read(&code.join(other), LIST_MAX).ok().flatten());
            let reach = match names_directories(&list) || others.any(|other| names_directories(&other)) {
                true => Reach::Below,
                false => Reach::Beside,
            };
            let mut left = READ_MAX;
            for path in files_of(&root, code, reach)? {
                // Larger ones, and what is no file, are told apart by their names alone.
                let content = root.read(&code.join(&path), LIST_MAX.min(left)).ok().flatten().unwrap_or_default();
                left -= content.len() as u64;
                add(&mut hash, path.as_os_str().as_bytes());
                add(&mut hash, &content);
            }
        }
        Ok(Some(Self(hash)))
    }

    fn key(self, base: &Base) -> String {
        let Self(mut hash) = self;
        match &base.kind {
            Kind::Host => add(&mut hash, python_of_machine().as_bytes()),
            Kind::Image(image) => add(&mut hash, image.record.digest.to_string().as_bytes()),
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

fn add(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_le_bytes());
    hash.update(part);
}

/// Lines such as `-r other.txt`, `-c limits.txt`, `-e .` or `./package`.
fn names_files(list: &[u8]) -> bool {
    let mut lines = list.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| line.starts_with(b"-") || line.starts_with(b".") || line.starts_with(b"/") || line.contains(&b'@'))
}

/// Lines such as `.`, `./package`, `-e .` or `name @ file:///opt/ml/code`: all that is in there makes the package.
fn names_directories(list: &[u8]) -> bool {
    let mut lines = list.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let begins = |line: &[u8]| [&b"."[..], b"/", b"-e", b"--editable"].iter().any(|word| line.starts_with(word));
    lines.any(|line| begins(line) || line.windows(5).any(|word| word == b"file:"))
}

/// Other lists that this one takes in.
fn lists_in(list: &[u8]) -> impl Iterator<Item = String> {
    let lines = list.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line).trim().to_owned());
    lines.filter_map(|line| {
        let other = line.strip_prefix("--requirement").or_else(|| line.strip_prefix("-r"))?;
        Some(other.trim_start_matches(['=', ' ', '\t']).to_owned())
    })
}

/// How far files of the code are part of a list that names some.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Beside,
    Below,
}

/// By their paths in the code, sorted.
fn files_of(root: &Rooted, code: &Path, reach: Reach) -> io::Result<Vec<PathBuf>> {
    let most = if reach == Reach::Below { BELOW_MAX } else { BESIDE_MAX };
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(directory) = open.pop() {
        let handle = root.handle(&code.join(&directory))?;
        for entry in fs::read_dir(mounts::path_of(&handle))?.flatten().take(most.saturating_sub(found.len())) {
            let path = directory.join(entry.file_name());
            if reach == Reach::Below && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// An upgrade of the machine's Python makes what was installed for the old one useless.
fn python_of_machine() -> String {
    let python = fs::canonicalize("/usr/bin/python3").unwrap_or_default();
    let changed = fs::metadata(&python).map(|metadata| (metadata.ino(), metadata.mtime())).unwrap_or_default();
    format!("host {} {changed:?}", python.display())
}

struct Environment {
    directory: PathBuf,
    wheels: PathBuf,
}

impl Environment {
    fn of(paths: &Paths, launch: &Launch, key: &str) -> io::Result<Self> {
        let (uid, gid) = (launch.owner.uid, launch.owner.gid);
        let workspace = paths.requirements().join(launch.identity.key.workspace.as_str());
        create_dir(&paths.requirements(), 0o711)?;
        create_dir(&workspace, 0o711)?;
        // Its owner's, but what is in it is made by us alone.
        let own = workspace.join(uid.to_string());
        create_dir(&own, 0o711)?;
        let (directory, wheels) = (own.join(key), own.join("wheels"));
        create_dir_for(&directory, 0o700, uid, gid)?;
        create_dir_for(&wheels, 0o700, uid, gid)?;
        let real = own.canonicalize()?;
        Ok(Self { directory: real.join(key), wheels: real.join("wheels") })
    }

    /// Its modification time is its last use.
    fn touch(&self) -> io::Result<()> {
        fs::File::open(&self.directory)?.set_modified(SystemTime::now())
    }

    fn is_complete(&self) -> bool {
        fs::symlink_metadata(self.directory.join(Requirements::COMPLETE)).is_ok_and(|metadata| metadata.is_file())
    }
}

/// Removes environments that nobody has used for `unused`, but not those of `in_use`.
pub(super) fn prune(paths: &Paths, unused: Duration, in_use: &[PathBuf]) -> io::Result<()> {
    let now = SystemTime::now();
    for directory in
        below(&[paths.requirements()]).and_then(|workspaces| below(&workspaces)).and_then(|all| below(&all))?
    {
        let used = fs::symlink_metadata(&directory)?.modified()?;
        let is_old = now.duration_since(used).is_ok_and(|age| age > unused);
        let is_wheels = directory.ends_with("wheels");
        if is_old && !is_wheels && !in_use.iter().any(|used| used.starts_with(&directory)) {
            remove_tree(&directory)?;
        }
    }
    Ok(())
}

fn below(directories: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in directories {
        match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            entries => {
                for entry in entries? {
                    let entry = entry?;
                    found.extend(entry.file_type()?.is_dir().then(|| entry.path()));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_follows_the_list_and_what_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let hash = |list: &str, other: &str| {
            fs::create_dir_all(dir.path().join("code")).unwrap();
            fs::write(dir.path().join("code/r.txt"), list).unwrap();
            fs::write(dir.path().join("code/other.txt"), other).unwrap();
            let List(hash) = List::read(dir.path(), "code", "r.txt").unwrap().unwrap();
            hash.finalize().to_vec()
        };
        assert_eq!(hash("numpy==1\n", "a"), hash("numpy==1\n", "b"), "what it does not name is nothing to it");
        assert_ne!(hash("numpy==1\n", "a"), hash("numpy==2\n", "a"));
        assert_ne!(hash("-r other.txt\n", "a"), hash("-r other.txt\n", "b"));
        // Of a package that is made of the code all of it counts, wherever it lies, also by way of another list.
        let package = |list: &str, other: &str, content: &str| {
            fs::create_dir_all(dir.path().join("code/src/own")).unwrap();
            fs::write(dir.path().join("code/src/own/part.py"), content).unwrap();
            hash(list, other)
        };
        for (list, other) in [(".\n", ""), ("-e ./src\n", ""), ("x @ file:///code\n", ""), ("-r other.txt\n", ".\n")] {
            assert_ne!(package(list, other, "1"), package(list, other, "2"), "{list}");
        }
        assert_eq!(package("-r other.txt\n", "numpy\n", "1"), package("-r other.txt\n", "numpy\n", "2"));
        assert!(List::read(dir.path(), "code", "none.txt").unwrap().is_none());
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("code/link.txt")).unwrap();
        assert!(List::read(dir.path(), "code", "link.txt").unwrap().is_none(), "links lead nowhere else");
    }

    #[test]
    fn lines_that_name_files_are_known() {
        for list in ["numpy\n  -r more.txt", "./wheels/x.whl", "x @ file:///code/x", "/abs/x.whl", "-e ."] {
            assert!(names_files(list.as_bytes()), "{list}");
        }
        for list in ["", "numpy>=1.2 # -r\n", "a[b]==1 ; python_version < '3'"] {
            assert!(!names_files(list.as_bytes()), "{list}");
        }
    }

    #[test]
    fn what_nobody_has_used_for_long_goes_and_what_is_in_use_stays() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path()).unwrap();
        let own = paths.requirements().join("default/0");
        for name in ["old", "new", "used", "wheels"] {
            fs::create_dir_all(own.join(name).join("env")).unwrap();
        }
        let before = SystemTime::now() - Duration::from_secs(1000);
        for name in ["old", "used", "wheels"] {
            fs::File::open(own.join(name)).unwrap().set_modified(before).unwrap();
        }
        prune(&paths, Duration::from_secs(500), &[own.join("used")]).unwrap();
        let left = |name: &str| own.join(name).exists();
        assert_eq!(["old", "new", "used", "wheels"].map(left), [false, true, true, true]);
    }
}
