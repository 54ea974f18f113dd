//! Whole files and trees: written so that a reader or a crash sees the old or the new, never a part.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How much a written file must outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The process: enough for what is derived and written again after a crash.
    Process,
    /// The machine: the file and its directory are synced.
    Machine,
}

/// Writes `content` to `path` by temporary file and rename.
pub fn write_whole(path: &Path, content: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let temporary = temporary_beside(path);
    let result = write_and_rename(&temporary, path, content, mode, durability);
    if result.is_err() {
        // The temporary file is of no use to anyone; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn write_and_rename(
    temporary: &Path,
    path: &Path,
    content: &[u8],
    mode: u32,
    durability: Durability,
) -> io::Result<()> {
    // Exclusively: in a directory that others may write, a link of that name must not lead us elsewhere.
    remove_if_there(temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    if durability == Durability::Machine {
        file.sync_data()?;
    }
    fs::rename(temporary, path)?;
    match (durability, path.parent()) {
        (Durability::Machine, Some(parent)) => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// `.NAME.PID-N.tmp`: hidden, skipped by every reader of directories, and nobody else's.
fn temporary_beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Points the symbolic link `link` at `target`, whatever it was before.
pub fn replace_symlink(target: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let temporary = temporary_beside(link);
    remove_if_there(&temporary)?;
    std::os::unix::fs::symlink(target, &temporary)?;
    fs::rename(&temporary, link)
}

/// Creates `path` and its parents; `path` itself gets exactly `mode`.
pub fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// As [`create_dir`], and gives it to `uid`:`gid`.
pub fn create_dir_for(path: &Path, mode: u32, uid: u32, gid: u32) -> io::Result<()> {
    create_dir(path, mode)?;
    chown(path, Some(uid), Some(gid))
}

/// Removes a file; that it is not there is no error.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_file(path))
}

/// Removes a tree without following links; that it is not there is no error.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_dir_all(path))
}

/// What is there, or that it is not.
pub fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns "not there" into success.
pub fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether somebody has the file open for writing. Needs `signals::ignore_lease_breaks` once in the process.
#[expect(unsafe_code, reason = "nix does not wrap leases")]
pub fn is_being_written(path: &Path) -> bool {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    // SAFETY: needed since inotify does not tell who still writes; a read lease is refused while there is a writer, and
    // it ends with the descriptor at the end of this function.
    let result = unsafe { nix::libc::fcntl(file.as_raw_fd(), nix::libc::F_SETLEASE, nix::libc::F_RDLCK) };
    result == -1 && nix::errno::Errno::last() == nix::errno::Errno::EAGAIN
}

/// Bytes that may still be written on the file system of `path`.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let status = nix::sys::statvfs::statvfs(path)?;
    Ok(status.blocks_available() * status.fragment_size())
}

/// Writes out everything that is not yet on the disk of `path`.
pub fn sync_file_system(path: &Path) -> io::Result<()> {
    Ok(nix::unistd::syncfs(File::open(path)?)?)
}

/// Whether an overlay's layer hides what lower layers have in this directory.
pub fn is_opaque(directory: &Path) -> io::Result<bool> {
    let mut value = [0; 8];
    match rustix::fs::lgetxattr(directory, "trusted.overlay.opaque", &mut value) {
        Ok(count) => Ok(value.get(..count) == Some(b"y")),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads at most `limit` bytes of a regular file, without following a link or waiting on a fifo.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<(File, Vec<u8>)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    (&file).take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok((file, content))
}

/// Copies the tree `from` to `to` (which must not exist) as a snapshot: plain files (by reflink where the file system
/// can), directories, and links as links; owners and modes stay. Sockets, fifos and devices are left out.
///
/// Walks by directory descriptors and follows no link, so whoever may write in `from` cannot lead it elsewhere.
pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let flags = nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC;
    let source = OpenOptions::new().read(true).custom_flags(flags).open(from)?;
    copy_directory(source, to)
}

fn copy_directory(source: File, to: &Path) -> io::Result<()> {
    use nix::dir::{Dir, Type};
    use nix::fcntl::{OFlag, openat, readlinkat};
    use nix::sys::stat::Mode;
    let metadata = source.metadata()?;
    create_dir(to, 0o700)?;
    let mut directory = Dir::from_fd(source.try_clone()?.into())?;
    for entry in directory.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let target = to.join(OsStr::from_bytes(name.to_bytes()));
        if entry.file_type() == Some(Type::Symlink) {
            std::os::unix::fs::symlink(readlinkat(&source, name)?, &target)?;
            continue;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = match openat(&source, name, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            // Replaced by a link, removed, or a socket.
            Err(nix::errno::Errno::ELOOP | nix::errno::Errno::ENOENT | nix::errno::Errno::ENXIO) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let kind = opened.metadata()?.file_type();
        if kind.is_dir() {
            copy_directory(opened, &target)?;
        } else if kind.is_file() {
            copy_file(opened, &target)?;
        }
    }
    keep_rights(&metadata, to)
}

fn copy_file(mut source: File, to: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut source, &mut target)?;
    keep_rights(&source.metadata()?, to)
}

fn keep_rights(of: &fs::Metadata, on: &Path) -> io::Result<()> {
    chown(on, Some(of.uid()), Some(of.gid()))?;
    fs::set_permissions(on, fs::Permissions::from_mode(of.mode() & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_write_replaces_and_leaves_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        for content in ["one", "two"] {
            write_whole(&path, content.as_bytes(), 0o640, Durability::Machine).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn limited_reads_refuse_links_directories_and_large_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("large"), vec![b'x'; 11]).unwrap();
        std::os::unix::fs::symlink("large", dir.path().join("link")).unwrap();
        assert!(read_limited(&dir.path().join("large"), 10).is_err());
        assert!(read_limited(&dir.path().join("link"), 100).is_err());
        assert!(read_limited(dir.path(), 100).is_err());
        assert_eq!(read_limited(&dir.path().join("large"), 11).unwrap().1.len(), 11);
    }

    #[test]
    fn a_snapshot_keeps_links_as_links_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/run.sh"), "x").unwrap();
        fs::set_permissions(from.join("sub/run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
        std::os::unix::fs::symlink("/etc/shadow", from.join("link")).unwrap();
        nix::unistd::mkfifo(&from.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let to = dir.path().join("to");
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::metadata(to.join("sub/run.sh")).unwrap().permissions().mode() & 0o777, 0o751);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/shadow"));
        assert!(!to.join("fifo").exists());
        std::os::unix::fs::symlink(&from, dir.path().join("from-link")).unwrap();
        assert!(copy_tree(&dir.path().join("from-link"), &dir.path().join("other")).is_err());
    }
}
