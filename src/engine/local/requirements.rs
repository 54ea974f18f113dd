//! Python packages that a job's code lists, or is: installed once for an image, a list and an owner, by the task that needs them
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

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::failed;
use super::root::{Base, Kind};
use super::workdirs::code_name;
use crate::config::Paths;
use crate::contract::Task;
use crate::contract::requirements::{self, Wanted};
use crate::engine::{EngineError, Launch};
use crate::rundir::{Mount, Requirements};
use crate::sys::file::{create_dir, create_dir_for, remove_tree};
use crate::sys::mounts;
use crate::sys::rooted::Rooted;

/// Longest list, bytes.
const LIST_MAX: u64 = 1 << 20;
/// Most lists that are followed; with more, all of the code counts.
const LISTS_MAX: usize = 100;
/// Most files of the code that are read, and most bytes of them; what is beyond is told apart by size and time of change.
const READ_FILES_MAX: usize = 10_000;
const READ_BYTES_MAX: u64 = 64 << 20;
/// How the names of files that pip takes as packages end.
const ARCHIVES: [&str; 8] = [".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz"];

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
    let found =
        Found::read(&run, &code_name(task), wanted).map_err(failed(format!("read {} of the code", wanted.file)))?;
    let Some(found) = found else {
        let nor = wanted.package.map(|_| format!(", nor a {}", requirements::SETUP)).unwrap_or_default();
        return match wanted.must_be_there {
            false => Ok(None),
            true => {
                Err(EngineError(format!("requirements = true: there is no {} in the code's root{nor}", wanted.file)))
            }
        };
    };
    let (name, list, package) = (found.name(), found.list, found.package);
    let place = Environment::of(paths, launch, &found.key(base)).map_err(failed("make room for the requirements"))?;
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
        list: list.map(|file| format!("/code/{file}")),
        package: package.map(str::to_owned),
        name,
        place: requirements::PLACE.to_owned(),
        wheels: requirements::WHEELS.to_owned(),
    };
    Ok(Some(Provided { mounts, install: (!is_complete).then_some(install) }))
}

/// What code has to be installed.
struct Found {
    /// By name, in its root.
    list: Option<&'static str>,
    /// Where the task sees the code, which is a package.
    package: Option<&'static str>,
    /// Of all that decides about what comes of it.
    hash: Sha256,
}

impl Found {
    /// In the directory `code` of `run`; `None` if there is nothing.
    fn read(run: &Path, code: &str, wanted: Wanted) -> io::Result<Option<Self>> {
        let code = Code { root: Rooted::open(run)?, place: Path::new(code) };
        let package = match wanted.package {
            Some(place) if code.is_package()? => Some(place),
            _ => None,
        };
        let name = Path::new(wanted.file);
        let list = code.root.read(&code.place.join(name), LIST_MAX)?;
        let list = list.filter(|_| wanted.list_alone || package.is_some());
        if list.is_none() && package.is_none() {
            return Ok(None);
        }
        if list.as_ref().is_some_and(|list| list.len() as u64 == LIST_MAX) {
            return Err(io::Error::other(format!("it has {LIST_MAX} bytes or more: that is no list of requirements")));
        }
        let mut hash = Sha256::new_with_prefix("2");
        let is_followed = list.as_ref().is_some_and(|list| {
            add(&mut hash, list);
            package.is_none() && code.add_lists(&mut hash, name, list).is_some()
        });
        if let Some(place) = package {
            add(&mut hash, place.as_bytes());
        }
        if !is_followed {
            code.add_all(&mut hash)?;
        }
        Ok(Some(Self { list: list.map(|_| wanted.file), package, hash }))
    }

    /// For messages.
    fn name(&self) -> String {
        let package = self.package.map(|_| format!("the package of the code ({})", requirements::SETUP));
        let parts: Vec<String> = package.into_iter().chain(self.list.map(str::to_owned)).collect();
        parts.join(" with ")
    }

    fn key(self, base: &Base) -> String {
        let mut hash = self.hash;
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

/// The code of a task.
struct Code<'a> {
    root: Rooted,
    /// Below the root.
    place: &'a Path,
}

impl Code<'_> {
    /// As the platform asks: by the names in its root.
    fn is_package(&self) -> io::Result<bool> {
        let root = self.root.handle(self.place)?;
        Ok(fs::symlink_metadata(mounts::path_of(&root).join(requirements::SETUP)).is_ok())
    }

    /// Takes in the lists that `list` at `path` names, and those that they name; `None` where one names more of the code than
    /// lists, or cannot be followed.
    fn add_lists(&self, hash: &mut Sha256, path: &Path, list: &[u8]) -> Option<()> {
        let (mut open, mut known) = (lists_in(list, path)?, BTreeSet::new());
        while let Some(path) = open.pop_last() {
            let list = self.root.read(&self.place.join(&path), LIST_MAX).ok().flatten()?;
            add(hash, path.as_os_str().as_bytes());
            add(hash, &list);
            let others = lists_in(&list, &path)?;
            known.insert(path);
            open.extend(others.into_iter().filter(|other| !known.contains(other)));
            if known.len() + open.len() > LISTS_MAX || list.len() as u64 == LIST_MAX {
                return None;
            }
        }
        Some(())
    }

    /// Takes in all that lies in the code, in the order of its names.
    fn add_all(&self, hash: &mut Sha256) -> io::Result<()> {
        let (mut files, mut bytes) = (READ_FILES_MAX, READ_BYTES_MAX);
        let mut open = vec![PathBuf::new()];
        while let Some(directory) = open.pop() {
            let handle = self.root.handle(&self.place.join(&directory))?;
            let mut entries: Vec<_> = fs::read_dir(mounts::path_of(&handle))?.collect::<io::Result<_>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = directory.join(entry.file_name());
                let metadata = entry.metadata()?;
                add(hash, path.as_os_str().as_bytes());
                if metadata.is_dir() {
                    open.push(path);
                } else if metadata.is_symlink() {
                    add(hash, fs::read_link(entry.path())?.as_os_str().as_bytes());
                } else if metadata.is_file() && files > 0 && metadata.len() <= bytes {
                    (files, bytes) = (files - 1, bytes - metadata.len());
                    self.add_file(hash, &path, metadata.len())?;
                } else {
                    let of = [metadata.len().cast_signed(), metadata.mtime(), metadata.mtime_nsec()];
                    of.iter().for_each(|number| hash.update(number.to_le_bytes()));
                }
            }
        }
        Ok(())
    }

    fn add_file(&self, hash: &mut Sha256, path: &Path, length: u64) -> io::Result<()> {
        let mut file = BufReader::new(self.root.file_for_reading(&self.place.join(path))?.take(length));
        hash.update(length.to_le_bytes());
        loop {
            let piece = file.fill_buf()?;
            if piece.is_empty() {
                return Ok(());
            }
            hash.update(piece);
            let count = piece.len();
            file.consume(count);
        }
    }
}

/// The other lists that one at `path` takes in, by their paths in the code; `None` where it names more of the code than lists.
fn lists_in(list: &[u8], path: &Path) -> Option<BTreeSet<PathBuf>> {
    let mut lists = BTreeSet::new();
    for line in String::from_utf8_lossy(list).trim_start_matches('\u{feff}').lines() {
        let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        let line = words.collect::<Vec<_>>().join(" ");
        let value_of = |options: [&str; 4]| {
            let value = options.iter().find_map(|option| line.strip_prefix(option));
            value.map(|value| value.trim_start_matches(['=', ' '])).filter(|value| is_here(value))
        };
        if let Some(other) = value_of(["--requirement", "--constraint", "-r", "-c"]) {
            // An absolute one is how a task sees it.
            let beside = path.parent().filter(|_| !other.starts_with('/') && !other.contains("file:"))?;
            lists.insert(beside.join(other));
        } else if value_of(["--editable", "--find-links", "-e", "-f"]).is_some() || names_path(&line) {
            return None;
        }
    }
    Some(lists)
}

/// Not at an address elsewhere.
fn is_here(value: &str) -> bool {
    !value.contains("://") || value.contains("file:")
}

/// `.`, `src/package`, `package.whl`, `name @ file:///opt/ml/code`.
fn names_path(line: &str) -> bool {
    let requirement = line.split(';').next().unwrap_or(line);
    let is_archive = |name: &str| ARCHIVES.iter().any(|end| name.ends_with(end));
    let is_path = requirement.starts_with('.')
        || requirement.contains('/')
        || requirement.split(['[', ' ']).next().is_some_and(is_archive);
    line.contains("file:") || is_path && is_here(requirement)
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

    const LIST: Wanted = Wanted { file: "r.txt", package: None, list_alone: true, must_be_there: false };

    /// The hash of the list at `code/r.txt`.
    fn hash_of(run: &Path) -> Vec<u8> {
        Found::read(run, "code", LIST).unwrap().unwrap().hash.finalize().to_vec()
    }

    #[test]
    fn the_key_follows_the_list_and_what_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = dir.path().join("code").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let hash = |list: &str, other: &str| {
            write("r.txt", list);
            write("other.txt", other);
            hash_of(dir.path())
        };
        assert_eq!(hash("numpy==1\n", "a"), hash("numpy==1\n", "b"), "what it does not name is nothing to it");
        assert_ne!(hash("numpy==1\n", "a"), hash("numpy==2\n", "a"));
        for list in ["-r other.txt\n", "-cother.txt  # why\n", "--requirement=lists/../other.txt"] {
            write("lists/base.txt", "");
            assert_ne!(hash(list, "a"), hash(list, "b"), "{list}");
            assert_eq!(hash(list, "a"), hash(list, "a"), "{list}");
        }
        // Those that a list names are beside that list, and may lead back.
        write("lists/base.txt", "-r more/last.txt\n-r base.txt");
        let nested = ["a", "b"].map(|last| {
            write("lists/more/last.txt", last);
            hash("-r lists/base.txt", "")
        });
        assert_ne!(nested[0], nested[1]);
        assert_eq!(hash("-r lists/base.txt", "a"), hash("-r lists/base.txt", "b"));
        // Of a package that is made of the code all of it counts, wherever it lies, also by way of other lists.
        let package = |list: &str, other: &str, content: &str| {
            write("src/own/part.py", content);
            hash(list, other)
        };
        for list in [".", "-e ./src", "src/own", "x @ file:///code", "-r /code/lists/base.txt", "-r none.txt"] {
            assert_ne!(package(list, "", "1"), package(list, "", "2"), "{list}");
            assert_ne!(package("-r other.txt", list, "1"), package("-r other.txt", list, "2"), "{list}");
            write("lists/more/last.txt", list);
            assert_ne!(package("-r lists/base.txt", "", "1"), package("-r lists/base.txt", "", "2"), "{list}");
        }
        assert_eq!(package("-r other.txt\n", "numpy\n", "1"), package("-r other.txt\n", "numpy\n", "2"));
        assert!(Found::read(dir.path(), "code", Wanted { file: "none.txt", ..LIST }).unwrap().is_none());
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("code/link.txt")).unwrap();
        let link = Wanted { file: "link.txt", ..LIST };
        assert!(Found::read(dir.path(), "code", link).unwrap().is_none(), "links lead nowhere else");
    }

    #[test]
    fn code_that_is_a_package_counts_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let code = dir.path().join("code");
        fs::create_dir(&code).unwrap();
        let write = |name: &str, text: &str| fs::write(code.join(name), text).unwrap();
        let wanted = Wanted { package: Some("/opt/ml/code"), list_alone: false, ..LIST };
        let read = |wanted: Wanted| Found::read(dir.path(), "code", wanted).unwrap();
        let hash = |found: Option<Found>| found.unwrap().hash.finalize().to_vec();
        write("r.txt", "numpy\n");
        assert!(read(wanted).is_none(), "a list that counts beside a package only");
        assert_eq!(read(Wanted { list_alone: true, ..wanted }).unwrap().name(), "r.txt");
        write("setup.py", "");
        let found = read(wanted).unwrap();
        assert_eq!((found.list, found.package), (Some("r.txt"), wanted.package));
        assert_eq!(found.name(), "the package of the code (setup.py) with r.txt");
        assert_eq!(read(LIST).unwrap().name(), "r.txt", "of another platform it is none");
        let with_list = hash(read(wanted));
        write("train.py", "1");
        let edited = hash(read(wanted));
        assert_ne!(with_list, edited);
        fs::remove_file(code.join("r.txt")).unwrap();
        assert_eq!(read(wanted).unwrap().name(), "the package of the code (setup.py)");
        assert_ne!(hash(read(wanted)), edited);
    }

    #[test]
    fn what_is_beyond_the_bounds_counts_by_size_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let code = dir.path().join("code");
        fs::create_dir_all(code.join("many")).unwrap();
        fs::write(code.join("r.txt"), ".").unwrap();
        // More bytes than are read, and more files: the last ones in the order of names.
        fs::File::create(code.join("large")).unwrap().set_len(READ_BYTES_MAX + 1).unwrap();
        (0..=READ_FILES_MAX).for_each(|number| fs::write(code.join(format!("many/{number:05}")), "1").unwrap());
        let before = hash_of(dir.path());
        assert_eq!(before, hash_of(dir.path()));
        let last = code.join(format!("many/{READ_FILES_MAX}"));
        fs::File::open(code.join("many/00000")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(before, hash_of(dir.path()), "of what is read the content counts");
        for (path, content) in [(code.join("large"), None), (last, Some("2"))] {
            let before = hash_of(dir.path());
            content.into_iter().for_each(|content| fs::write(&path, content).unwrap());
            fs::File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
            assert_ne!(before, hash_of(dir.path()), "{}", path.display());
        }
        assert_ne!(before, hash_of(dir.path()));
    }

    #[test]
    fn lines_that_name_files_are_known() {
        let named = |list: &str| lists_in(list.as_bytes(), Path::new("lists/r.txt"));
        for list in [
            "./wheels/x.whl",
            "x.whl[dev]",
            "src/pkg ; python_version < '3'",
            "x @ file:///code/x",
            "/abs/x.whl",
            "-e .",
            "\u{feff}-e pkg",
            "--find-links wheels",
            "-r /code/x.txt",
            "-i file:///code/simple",
        ] {
            assert_eq!(named(list), None, "{list}");
        }
        for list in [
            "",
            "numpy>=1.2 # -r\n#./x",
            "a[b]==1 ; python_version < '3'",
            "numpy==1 \\\n    --hash=sha256:00",
            "x @ https://host.lab/x.whl",
            "-e git+https://host.lab/x.git@v1#egg=x",
            "--extra-index-url https://host.lab/simple",
            "-r https://host.lab/r.txt",
        ] {
            assert_eq!(named(list), Some(BTreeSet::new()), "{list}");
        }
        let others = ["lists/more.txt", "lists/limits.txt"].map(PathBuf::from);
        assert_eq!(named("numpy\n  -r more.txt # why\n--constraint limits.txt"), Some(BTreeSet::from(others)));
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
