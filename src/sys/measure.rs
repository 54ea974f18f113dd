//! What a tree takes of the disk.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, StatxFlags, fstat, openat, statat, statx};
use rustix::io::Errno;

/// Bytes that the trees at `paths` take together, directories included, files with several names once. Follows no link; a
/// tree that is not there takes nothing.
///
/// It may be changed meanwhile, and be nested deeper than a stack or the number of open files allows: what lies in a
/// directory is listed, and one directory is open at a time.
pub fn disk_usage(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<u64> {
    let mut sum = Sum::default();
    for path in paths {
        match statat(CWD, path.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_directory(&stat) => sum.tree(path.as_ref())?,
            Ok(stat) => sum.add(&stat),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(sum.bytes)
}

#[derive(Default)]
struct Sum {
    bytes: u64,
    /// Files with several names that were seen.
    seen: HashSet<(u64, u64)>,
}

/// A directory on the way down.
struct Level {
    /// By which it is known again on the way up.
    identity: (u64, u64),
    /// Directories in it that are still to be looked at.
    left: Vec<CString>,
}

impl Sum {
    fn add(&mut self, stat: &Stat) {
        if stat.st_nlink > 1 && !is_directory(stat) && !self.seen.insert(identity(stat)) {
            return;
        }
        self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
    }

    fn tree(&mut self, top: &Path) -> io::Result<()> {
        let Some(mut at) = open(CWD, top)? else { return Ok(()) };
        let mount = mount_of(&at)?;
        let mut way = vec![self.enter(&at)?];
        while let Some(level) = way.last_mut() {
            if let Some(name) = level.left.pop() {
                // What is mounted there is somebody else's, but not a subvolume; what has gone takes nothing.
                if let Some(inner) = open(&at, name.as_c_str())?
                    && mount_of(&inner)? == mount
                {
                    way.push(self.enter(&inner)?);
                    at = inner;
                }
                continue;
            }
            way.pop();
            let Some(above) = way.last() else { break };
            let parent = open(&at, c"..")?.ok_or_else(moved)?;
            if identity(&fstat(&parent)?) != above.identity {
                return Err(moved());
            }
            at = parent;
        }
        Ok(())
    }

    /// Adds a directory and what in it is none, and lists those in it.
    fn enter(&mut self, directory: &OwnedFd) -> io::Result<Level> {
        let stat = fstat(directory)?;
        self.add(&stat);
        let mut left = Vec::new();
        for entry in Dir::read_from(directory)? {
            super::pause::point();
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if entry.file_type() == FileType::Directory {
                left.push(name.to_owned());
                continue;
            }
            match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Not every file system tells a kind in its list.
                Ok(stat) if is_directory(&stat) => left.push(name.to_owned()),
                Ok(stat) => self.add(&stat),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Level { identity: identity(&stat), left })
    }
}

/// Without following a link; `None` for what has gone or is no directory any more.
fn open(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(at, name, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The number of the mount that a directory is seen by.
fn mount_of(directory: &OwnedFd) -> io::Result<u64> {
    Ok(statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn moved() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "a directory was moved while it was measured")
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn files_with_several_names_count_once_and_depth_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        let empty = disk_usage([&top]).unwrap();
        let own = |path: &Path| fs::symlink_metadata(path).unwrap().blocks() * 512;
        assert_eq!(empty, own(&top) + own(&top.join("a")) + own(&top.join("a/b")));
        fs::write(top.join("a/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(top.join("a/file"), top.join("a/b/again")).unwrap();
        std::os::unix::fs::symlink("/", top.join("a/link")).unwrap();
        let (file, link) = (own(&top.join("a/file")), own(&top.join("a/link")));
        assert_eq!(disk_usage([&top]).unwrap(), empty + file + link);
        assert_eq!(disk_usage([&top.join("a/file"), &top.join("a/b")]).unwrap(), file + own(&top.join("a/b")));
        assert_eq!(disk_usage([&top.join("none")]).unwrap(), 0);
        let mut at = open(CWD, &top).unwrap().unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
            at = open(&at, "deep").unwrap().unwrap();
        }
        openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        assert!(disk_usage([&top]).unwrap() >= empty + file);
        crate::sys::file::remove_tree(&top).unwrap();
    }
}
