//! A directory whose content is not trusted: paths in it are resolved as if it were the root of the file system, so no
//! link leads out of it, and no magic link anywhere.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fchownat, symlinkat, unlinkat};

/// Who is to own what is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug)]
pub struct Rooted {
    root: OwnedFd,
    /// The mounts, by the kernel's numbers, on which something may be made; any when absent.
    made_on: RefCell<Option<BTreeSet<u64>>>,
}

impl Rooted {
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(Self { root: open(path, flags, Mode::empty())?, made_on: RefCell::new(None) })
    }

    /// From the first call on something is made only on mounts that were named so.
    pub fn allow_making_on(&self, place: impl AsFd) -> io::Result<()> {
        let mount = mount_of(place)?;
        self.made_on.borrow_mut().get_or_insert_default().insert(mount);
        Ok(())
    }

    fn check_making_in(&self, directory: &OwnedFd, path: &Path) -> io::Result<()> {
        let made_on = self.made_on.borrow();
        let Some(allowed) = made_on.as_ref() else { return Ok(()) };
        if allowed.contains(&mount_of(directory)?) {
            return Ok(());
        }
        let why = format!(
            "/{} is not there, and nothing is made in what is shown of the machine: make it there",
            path.display()
        );
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why))
    }

    /// What `path` leads to, as a bare handle (`O_PATH`).
    pub fn handle(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlag::O_PATH, Mode::empty())
    }

    fn resolve(&self, path: &Path, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
        open_resolved(&self.root, &relative(path), flags, mode, ResolveFlag::RESOLVE_IN_ROOT)
    }

    /// The directory at `path`; what is missing of it is made, `0755` and owned by `ids`. Others may make it at the same time, as
    /// tasks of a gang do in what they share.
    pub fn directory(&self, path: &Path, ids: Ids) -> io::Result<OwnedFd> {
        let mut at = PathBuf::new();
        let opened = |at: &Path| self.resolve(at, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty());
        for part in relative(path).components() {
            let parent = self.resolve(&at, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
            at.push(part);
            match opened(&at) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.check_making_in(&parent, &at)?;
                    match make(&parent, part.as_os_str(), ids) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                            opened(&at).map_err(|error| in_image(&at, of_link(error)))?;
                        }
                        made => made.map_err(|error| in_image(&at, error))?,
                    }
                }
                Err(error) => return Err(in_image(&at, error)),
                Ok(_) => {}
            }
        }
        opened(&at)
    }

    /// The file at `path`, made empty if it is missing: a place to mount a file on. What another one makes there meanwhile stays, since
    /// something may be mounted on it already.
    pub fn file(&self, path: &Path, ids: Ids) -> io::Result<OwnedFd> {
        let is_missing =
            |found: &io::Result<OwnedFd>| matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound);
        let found = self.handle(path);
        if !is_missing(&found) {
            return found;
        }
        match self.make_file(path, b"", 0o644, ids) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.and_then(|()| self.handle(path)),
        }
        let found = self.handle(path);
        if !is_missing(&found) {
            return found;
        }
        // A link that leads nowhere.
        self.write(path, b"", 0o644, ids)?;
        self.handle(path)
    }

    /// Writes a file in place of whatever lies there; a link is replaced, not followed.
    pub fn write(&self, path: &Path, content: &[u8], mode: u32, ids: Ids) -> io::Result<()> {
        let (parent, name) = self.parent(path, ids)?;
        match unlinkat(&parent, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(in_image(&relative(path), errno.into())),
        }
        self.make_file(path, content, mode, ids)
    }

    /// The directory in which `path` lies, made if it is missing, and its name there.
    fn parent(&self, path: &Path, ids: Ids) -> io::Result<(OwnedFd, std::ffi::OsString)> {
        let path = relative(path);
        let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let above = path.parent().unwrap_or(Path::new(""));
        self.directory(above, ids)?;
        let parent = self.resolve(above, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
        self.check_making_in(&parent, &path)?;
        Ok((parent, name.to_owned()))
    }

    /// Where nothing lies.
    fn make_file(&self, path: &Path, content: &[u8], mode: u32, ids: Ids) -> io::Result<()> {
        let (parent, name) = self.parent(path, ids)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&parent, name.as_os_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(content)?;
        fchown(&file, Some(ids.uid), Some(ids.gid))?;
        Ok(fchmod(&file, Mode::from_bits_truncate(mode))?)
    }

    /// Makes a symbolic link in place of whatever file or link lies there.
    pub fn link(&self, path: &Path, leads_to: &Path, ids: Ids) -> io::Result<()> {
        let (parent, name) = self.parent(path, ids)?;
        let name = name.as_os_str();
        match unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(in_image(&relative(path), errno.into())),
        }
        symlinkat(leads_to, &parent, name)?;
        Ok(fchownat(&parent, name, Some(ids.uid.into()), Some(ids.gid.into()), AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// Opens a directory to be listed.
    pub fn directory_for_reading(&self, path: &Path) -> io::Result<File> {
        Ok(File::from(self.resolve(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?))
    }

    /// Opens a regular file to be read.
    pub fn file_for_reading(&self, path: &Path) -> io::Result<File> {
        let file =
            File::from(self.resolve(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }

    /// Reads a regular file of at most `limit` bytes; `None` when nothing is there.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.resolve(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(limit).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Whether a white-out of an overlay's layer lies at `path`: what is below it in lower layers is gone.
    pub fn is_white_out(&self, path: &Path) -> bool {
        let path = relative(path);
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return false };
        let Ok(parent) = self.handle(parent) else { return false };
        let Ok(status) = fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return false };
        SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFCHR && status.st_rdev == 0
    }
}

/// A directory that was reached through no link, and stays the same one whatever becomes of its name.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// The one at `path` below `base`, whose own way is trusted.
    pub fn below(base: &Path, path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let base = open(base, flags | OFlag::O_CLOEXEC, Mode::empty())?;
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        match open_resolved(&base, &relative(path), flags, Mode::empty(), resolve) {
            Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
                Err(io::Error::other("a link lies on the way, through which nothing is written"))
            }
            opened => opened.map(Self),
        }
    }

    /// A path to what is called `name` in it, good as long as this is there.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()).join(name)
    }
}

/// The kernel's number of the mount that a file is seen by.
pub(super) fn mount_of(file: impl AsFd) -> io::Result<u64> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let status = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    match status.stx_mask & StatxFlags::MNT_ID.bits() {
        0 => Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel does not tell mounts apart (Linux 5.8 does)")),
        _ => Ok(status.stx_mnt_id),
    }
}

/// Opens `path` from `dir`, through no magic link anywhere: what is in `/proc/PID/fd` and the like leads to what some process
/// holds, which may lie outside of all that is to be reached.
pub fn open_resolved(
    dir: impl AsFd,
    path: &Path,
    flags: OFlag,
    mode: Mode,
    resolve: ResolveFlag,
) -> io::Result<OwnedFd> {
    let resolve = resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
    loop {
        match openat2(dir.as_fd(), path, how) {
            // Something in the tree was renamed meanwhile.
            Err(Errno::EAGAIN) => {}
            other => return Ok(other?),
        }
    }
}

impl AsFd for Rooted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// `/a/./b` as `a/b`; an empty path is the root itself.
fn relative(path: &Path) -> PathBuf {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    let relative: PathBuf = parts.collect();
    if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
}

fn make(parent: &OwnedFd, name: &OsStr, ids: Ids) -> io::Result<()> {
    mkdirat(parent, name, Mode::from_bits_truncate(0o755))?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty())?;
    fchown(&made, Some(ids.uid), Some(ids.gid))?;
    Ok(fchmod(&made, Mode::from_bits_truncate(0o755))?)
}

/// Of a name that is there and leads to nothing.
fn of_link(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::NotFound, "it is a link that leads nowhere"),
        _ => error,
    }
}

fn in_image(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("/{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const ME: Ids = Ids { uid: 0, gid: 0 };

    #[test]
    fn links_do_not_lead_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink("/usr/share", root.join("share")).unwrap();
        let rooted = Rooted::open(&root).unwrap();
        let ids = Ids { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        assert!(rooted.directory(Path::new("absolute/x"), ids).is_err());
        assert!(rooted.directory(Path::new("relative/x"), ids).is_err());
        rooted.directory(Path::new("/usr/share"), ids).unwrap();
        rooted.write(Path::new("share/file"), b"inside", 0o644, ids).unwrap();
        assert_eq!(std::fs::read(root.join("usr/share/file")).unwrap(), b"inside");
        rooted.write(Path::new("../../../up"), b"still inside", 0o644, ids).unwrap();
        assert!(root.join("up").exists());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        // A link is made inside as well, and takes the place of one.
        assert!(rooted.link(Path::new("absolute/lib.so"), Path::new("lib.so.1"), ids).is_err());
        rooted.link(Path::new("relative"), Path::new("/etc"), ids).unwrap();
        rooted.link(Path::new("share/lib.so"), Path::new("lib.so.1"), ids).unwrap();
        assert_eq!(std::fs::read_link(root.join("relative")).unwrap(), Path::new("/etc"));
        assert_eq!(std::fs::read_link(root.join("usr/share/lib.so")).unwrap(), Path::new("lib.so.1"));
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn a_held_directory_is_reached_through_no_link_and_keeps_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("base/own/deep")).unwrap();
        std::fs::create_dir(at("elsewhere")).unwrap();
        symlink("../elsewhere", at("base/link")).unwrap();
        symlink(at("base"), at("way")).unwrap();
        for path in ["link", "link/deep", "../elsewhere"] {
            assert!(Held::below(&at("base"), Path::new(path)).is_err(), "{path}");
        }
        let held = Held::below(&at("way"), Path::new("own/deep")).unwrap();
        std::fs::rename(at("base/own"), at("base/moved")).unwrap();
        symlink("../elsewhere", at("base/own")).unwrap();
        std::fs::write(held.path("file"), "x").unwrap();
        assert!(at("base/moved/deep/file").exists());
        assert!(Held::below(&at("base"), Path::new("")).unwrap().path("moved").is_dir());
    }

    #[test]
    fn a_link_is_replaced_by_a_written_file_and_reads_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let ids = Ids { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        std::fs::write(dir.path().join("target"), "old").unwrap();
        symlink("target", dir.path().join("hosts")).unwrap();
        let rooted = Rooted::open(dir.path()).unwrap();
        rooted.write(Path::new("hosts"), b"new", 0o600, ids).unwrap();
        assert_eq!(std::fs::read(dir.path().join("target")).unwrap(), b"old");
        assert_eq!(rooted.read(Path::new("hosts"), 2).unwrap().unwrap(), b"ne");
        assert_eq!(rooted.read(Path::new("absent"), 2).unwrap(), None);
        assert!(ME.uid == 0 && !rooted.is_white_out(Path::new("hosts")));
    }

    #[test]
    fn what_several_make_at_once_is_made_once_for_all_of_them() {
        let ids = Ids { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        for _ in 0..200 {
            let dir = tempfile::tempdir().unwrap();
            let start = std::sync::Barrier::new(4);
            let inodes = |make: fn(&Rooted, Ids) -> io::Result<OwnedFd>| {
                std::thread::scope(|scope| {
                    let one = || {
                        let rooted = Rooted::open(dir.path()).unwrap();
                        start.wait();
                        nix::sys::stat::fstat(make(&rooted, ids).unwrap()).unwrap().st_ino
                    };
                    let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                    all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
                })
            };
            let made = inodes(|rooted, ids| rooted.directory(Path::new("/output/a/b"), ids));
            assert!(made.iter().all(|inode| *inode == made[0]), "{made:?}");
            let made = inodes(|rooted, ids| rooted.file(Path::new("/output/a/b/file"), ids));
            assert!(made.iter().all(|inode| *inode == made[0]), "{made:?}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_told_and_give_way_to_files() {
        let dir = tempfile::tempdir().unwrap();
        let ids = Ids { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        symlink("nowhere", dir.path().join("link")).unwrap();
        let rooted = Rooted::open(dir.path()).unwrap();
        let refused = rooted.directory(Path::new("link/below"), ids).unwrap_err();
        assert_eq!(refused.to_string(), "/link: it is a link that leads nowhere");
        rooted.file(Path::new("link"), ids).unwrap();
        assert!(dir.path().join("link").symlink_metadata().unwrap().is_file());
    }
}
