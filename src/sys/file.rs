//! Whole files and trees: written so that a reader or a crash sees the old or the new, never a part.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::given_up::GivenUp;

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
    let fit = |file: &File| file.set_permissions(fs::Permissions::from_mode(mode));
    write_fitted(path, content, fit, durability)
}

/// As [`write_whole`], of a file that is `uid`:`gid`'s from the moment on that it is there.
pub fn write_whole_for(
    path: &Path,
    content: &[u8],
    (mode, uid, gid): (u32, u32, u32),
    durability: Durability,
) -> io::Result<()> {
    let fit = |file: &File| {
        fchown(file, Some(uid), Some(gid))?;
        file.set_permissions(fs::Permissions::from_mode(mode))
    };
    write_fitted(path, content, fit, durability)
}

fn write_fitted(
    path: &Path,
    content: &[u8],
    fit: impl FnOnce(&File) -> io::Result<()>,
    durability: Durability,
) -> io::Result<()> {
    let temporary = temporary_beside(path);
    let result = write_and_rename(&temporary, path, content, fit, durability);
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
    fit: impl FnOnce(&File) -> io::Result<()>,
    durability: Durability,
) -> io::Result<()> {
    // Exclusively: in a directory that others may write, a link of that name must not lead us elsewhere.
    remove_if_there(temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    fit(&file)?;
    file.write_all(content)?;
    if durability == Durability::Machine {
        file.sync_data()?;
    }
    fs::rename(temporary, path)?;
    sync_place_of(path, durability)
}

/// Makes it last that a name has come to a directory, or has gone from it.
fn sync_place_of(path: &Path, durability: Durability) -> io::Result<()> {
    let Some(parent) = path.parent().filter(|_| durability == Durability::Machine) else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    told_to_tests(path);
    File::open(parent)?.sync_all()
}

/// What was there before a file was to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    None,
    /// Something, which was left alone.
    Kept,
}

/// As [`write_whole`], but leaves alone what is there.
pub fn write_new(path: &Path, content: &[u8], mode: u32, durability: Durability) -> io::Result<Existing> {
    let temporary = temporary_beside(path);
    let written = write_whole(&temporary, content, mode, durability);
    let renamed = written.and_then(|()| match renameat_with(CWD, &temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(Existing::None),
        Err(Errno::EXIST) => Ok(Existing::Kept),
        Err(errno) => Err(errno.into()),
    });
    if !matches!(renamed, Ok(Existing::None)) {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
        return renamed;
    }
    sync_place_of(path, durability)?;
    renamed
}

/// `.NAME.PID-N.tmp`: hidden, skipped by every reader of directories, and nobody else's.
fn temporary_beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// A file that has no name until it is whole: it is gone with the process, however that ends.
#[derive(Debug)]
pub struct UnnamedFile {
    file: File,
    /// Where the file system knows no files without names.
    temporary: Option<PathBuf>,
}

impl UnnamedFile {
    /// For its owner alone to read, in the file system of `directory`.
    pub fn in_directory(directory: &Path) -> io::Result<Self> {
        let unnamed =
            OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(nix::libc::O_TMPFILE).open(directory);
        match unnamed.map_err(|error| (error.raw_os_error(), error)) {
            Ok(file) => Ok(Self { file, temporary: None }),
            Err((Some(nix::libc::EOPNOTSUPP | nix::libc::EISDIR | nix::libc::ENOENT), _)) => {
                let temporary = temporary_beside(&directory.join("unnamed"));
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
                Ok(Self { file, temporary: Some(temporary) })
            }
            Err((_, error)) => Err(error),
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Makes it durable as `path`, where nothing may be yet.
    pub fn name(mut self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        match self.temporary.take() {
            None => {
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Some(temporary) => {
                let renamed = match renameat_with(CWD, &temporary, CWD, path, RenameFlags::NOREPLACE) {
                    // NFS knows no such renames; a link replaces nothing either.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        rustix::fs::linkat(CWD, &temporary, CWD, path, AtFlags::empty())
                            .and_then(|()| rustix::fs::unlink(&temporary))
                    }
                    other => other,
                };
                if renamed.is_err() {
                    self.temporary = Some(temporary);
                }
                renamed?;
            }
        }
        sync_place_of(path, Durability::Machine)
    }
}

impl Drop for UnnamedFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // It is of no use to anyone.
            let _ = fs::remove_file(temporary);
        }
    }
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

/// As [`create_dir`], and gives it to `uid`:`gid`. A link in its place is refused: nobody is to be given what it leads to.
pub fn create_dir_for(path: &Path, mode: u32, uid: u32, gid: u32) -> io::Result<()> {
    create_dir(path, mode)?;
    fchown(open_directory(CWD, path)?, Some(uid), Some(gid))
}

/// Removes what writers that were killed have left in a directory; nobody may be writing there.
pub fn remove_temporaries(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") && name.as_encoded_bytes().ends_with(b".tmp") {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file, so that a crash does not bring it back.
pub fn remove_for_good(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_place_of(path, Durability::Machine)
}

/// Removes a file; that it is not there is no error.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_file(path))
}

/// Removes a tree without following links; that it is not there is no error.
///
/// What a job leaves may be nested deeper than a stack or the number of open files allows, and deeper than a path can
/// tell: what lies below [`REMOVAL_DEPTH`] is moved up to the top, to be removed by another round.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open_directory(CWD, path) {
        Ok(top) => top,
        // A link or a file.
        Err(Errno::NOTDIR | Errno::LOOP) => return remove_if_there(path),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let mut removal = Removal { top: &top, moved: 0 };
    loop {
        let moved_before = removal.moved;
        removal.empty(&top, 0)?;
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && removal.moved > moved_before => {}
            other => return ignore_missing(other),
        }
    }
}

const REMOVAL_DEPTH: usize = 64;

fn open_directory(at: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

struct Removal<'a> {
    top: &'a OwnedFd,
    /// Directories that were moved to the top so far.
    moved: u64,
}

impl Removal<'_> {
    /// Removes what is in `directory`, which lies `depth` below the top.
    fn empty(&mut self, directory: &OwnedFd, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            super::pause::point();
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Directory => true,
                _ => match unlinkat(directory, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => false,
                    // The file system does not tell what is a directory.
                    Err(Errno::ISDIR | Errno::PERM) => true,
                    Err(errno) => return Err(errno.into()),
                },
            };
            if is_directory {
                self.remove_directory(directory, name, depth)?;
            }
        }
        Ok(())
    }

    fn remove_directory(&mut self, parent: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        if depth >= REMOVAL_DEPTH {
            return self.move_up(parent, name);
        }
        // Somebody else may be removing it as well.
        let directory = match open_directory(parent, name) {
            Err(Errno::NOENT) => return Ok(()),
            directory => directory?,
        };
        self.empty(&directory, depth + 1)?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn move_up(&mut self, parent: &OwnedFd, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let place = format!(".removing-{}", self.moved);
            match renameat_with(parent, name, self.top, place.as_str(), RenameFlags::NOREPLACE) {
                // The tree has something of that name itself.
                Err(Errno::EXIST) => {}
                other => return Ok(other?),
            }
        }
    }
}

/// Whether a descriptor is a pipe, or a socket, whose other end somebody holds.
pub fn is_pipe(fd: impl AsFd) -> bool {
    use nix::sys::stat::{SFlag, fstat};
    let kind = fstat(fd).map(|status| SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT);
    kind.is_ok_and(|kind| kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK)
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
pub fn is_being_written(path: &Path) -> bool {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    has_writer(&file).unwrap_or(false)
}

/// As [`is_being_written`], of a file that is open for reading; an error where the file system cannot tell.
#[expect(unsafe_code, reason = "nix does not wrap leases")]
pub fn has_writer(file: &File) -> io::Result<bool> {
    // SAFETY: needed since inotify does not tell who still writes; a read lease is refused while there is a writer.
    let lease = |kind: nix::libc::c_int| unsafe { nix::libc::fcntl(file.as_raw_fd(), nix::libc::F_SETLEASE, kind) };
    match nix::errno::Errno::result(lease(nix::libc::F_RDLCK)) {
        Err(nix::errno::Errno::EAGAIN) => Ok(true),
        Err(errno) => Err(errno.into()),
        Ok(_) => {
            nix::errno::Errno::result(lease(nix::libc::F_UNLCK))?;
            Ok(false)
        }
    }
}

/// Bytes that may still be written on the file system of `path`.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let status = nix::sys::statvfs::statvfs(path)?;
    Ok(status.blocks_available() * status.fragment_size())
}

/// The same for others than root, and for root, who may have what the file system keeps back; none where it does not count blocks.
pub fn free_for_all_and_root(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let status = nix::sys::statvfs::statvfs(path)?;
    let bytes = |blocks: u64| blocks * status.fragment_size();
    Ok((status.blocks() > 0).then(|| (bytes(status.blocks_available()), bytes(status.blocks_free()))))
}

/// Whether root may still write so many bytes there, as far as it is known.
pub fn has_room_for_root(path: &Path, bytes: u64) -> bool {
    !matches!(free_for_all_and_root(path), Ok(Some((_, free))) if free < bytes)
}

/// Whether root may still make so many files there, as far as it is known: some file systems do not count them.
pub fn has_files_for_root(path: &Path, count: u64) -> bool {
    !matches!(nix::sys::statvfs::statvfs(path), Ok(status) if status.files() > 0 && status.files_free() < count)
}

/// That a disk, or a quota, is full: it can be tried again when there is room.
pub fn has_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes out everything that is not yet on the disk of `path`.
pub fn sync_file_system(path: &Path) -> io::Result<()> {
    Ok(nix::unistd::syncfs(File::open(path)?)?)
}

/// The mode of what is at `path`, with the rights of its group as they are: where there is an access list, the mode has the most that
/// the list gives to anybody who is named in it in their place.
pub fn class_mode(path: &Path, found: &Metadata) -> io::Result<u32> {
    let read = |list: &mut [u8]| rustix::fs::getxattr(path, c"system.posix_acl_access", list);
    // Most have none.
    match read(&mut []) {
        Ok(_) => {}
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(found.mode()),
        Err(errno) => return Err(errno.into()),
    }
    let mut list = vec![0; ACCESS_LIST_MAX];
    let length = match read(&mut list) {
        Ok(length) => length,
        // Removed meanwhile.
        Err(Errno::NODATA) => return Ok(found.mode()),
        Err(errno) => return Err(errno.into()),
    };
    // A version, and then entries of a tag, rights and an id.
    let entries = list.get(4..length).unwrap_or_default().chunks_exact(8);
    let rights_of = |wanted: u8| entries.clone().find(|entry| entry.starts_with(&[wanted, 0])).map(|entry| entry[2]);
    let (own, most) = (rights_of(OWN_GROUP).unwrap_or(0), rights_of(MASK).unwrap_or(0o7));
    Ok(found.mode() & !0o070 | u32::from(own & most & 0o7) << 3)
}

/// The kernel's limit of an attribute, bytes.
const ACCESS_LIST_MAX: usize = 64 << 10;
/// Tags of an access list's entries.
const OWN_GROUP: u8 = 0x04;
const MASK: u8 = 0x10;

/// Whether an overlay's layer hides what lower layers have in this directory.
pub fn is_opaque(directory: &Path) -> io::Result<bool> {
    let mut value = [0; 8];
    match rustix::fs::lgetxattr(directory, "trusted.overlay.opaque", &mut value) {
        Ok(count) => Ok(value.get(..count) == Some(b"y")),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
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
pub fn copy_tree(from: &Path, to: &Path, given_up: &GivenUp) -> io::Result<()> {
    let flags = nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC;
    let source = OpenOptions::new().read(true).custom_flags(flags).open(from)?;
    copy_directory(source, to, 0, given_up)
}

/// Most directories within each other that are copied: each takes some of the stack, and two open files.
const COPY_DEPTH: usize = 256;

fn copy_directory(source: File, to: &Path, depth: usize, given_up: &GivenUp) -> io::Result<()> {
    use nix::dir::{Dir, Type};
    use nix::fcntl::{OFlag, openat, readlinkat};
    use nix::sys::stat::Mode;
    if depth > COPY_DEPTH {
        let why = format!("it has more than {COPY_DEPTH} directories within each other");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let metadata = source.metadata()?;
    create_dir(to, 0o700)?;
    let mut directory = Dir::from_fd(source.try_clone()?.into())?;
    for entry in directory.iter() {
        given_up.check()?;
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
            copy_directory(opened, &target, depth + 1, given_up)?;
        } else if kind.is_file() {
            copy_file(opened, &target, given_up)?;
        }
    }
    keep_rights(&metadata, to)
}

fn copy_file(source: File, to: &Path, given_up: &GivenUp) -> io::Result<()> {
    let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    copy_content(&source, &target, given_up)?;
    let metadata = source.metadata()?;
    keep_rights(&metadata, to)?;
    target.set_modified(metadata.modified()?)
}

/// Makes the empty `target` a file like `source`, with its holes and the attributes that users have given it: by reflink
/// where the file system can, else what is data is copied.
pub fn copy_content(source: &File, target: &File, given_up: &GivenUp) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(target, source).is_err() {
        copy_data(source, target, 0, &mut |_| given_up.check())?;
    }
    copy_user_attributes(source, target)
}

/// So many bytes are copied before it may be held.
const PIECE: u64 = 64 << 20;

/// Copies from byte `at` on; holes stay holes. `came` is told of bytes, also of those in holes, and may end it.
pub fn copy_data(
    source: &File,
    target: &File,
    mut at: u64,
    came: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    use rustix::fs::{SeekFrom, seek};
    let (mut source_at, mut target_at) = (source, target);
    loop {
        let (start, end) = match seek(source, SeekFrom::Data(at)) {
            Ok(start) => (start, seek(source, SeekFrom::Hole(start)).unwrap_or(u64::MAX)),
            // Nothing but a hole is left.
            Err(Errno::NXIO) => {
                let length = source.metadata()?.len().max(at);
                came(length - at)?;
                return target.set_len(length);
            }
            // A file system without such places: up to its end.
            Err(Errno::INVAL | Errno::NOTSUP) => (at, u64::MAX),
            Err(errno) => return Err(errno.into()),
        };
        super::pause::point();
        let most = (end - start).min(PIECE);
        seek(source, SeekFrom::Start(start))?;
        seek(target, SeekFrom::Start(start))?;
        let copied = io::copy(&mut Read::by_ref(&mut source_at).take(most), &mut target_at)?;
        came(start + copied - at)?;
        at = start + copied;
        if copied < most {
            // Its end, also where it has been cut meanwhile.
            return target.set_len(at);
        }
    }
}

/// What people have noted of a file or directory themselves (`user.*`).
pub fn copy_user_attributes(source: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let mut value = vec![0; ATTRIBUTES_MAX];
    for name in user_attributes(&source)? {
        if let Some(count) = user_attribute(&source, &name, &mut value)? {
            fsetxattr_if_any(&target, &name, value.get(..count).unwrap_or_default())?;
        }
    }
    Ok(())
}

/// Whether both have the same of what [`copy_user_attributes`] takes along.
pub fn have_same_user_attributes(one: impl AsFd, other: impl AsFd) -> io::Result<bool> {
    let names = user_attributes(&one)?;
    if names != user_attributes(&other)? {
        return Ok(false);
    }
    let mut values = [vec![0; ATTRIBUTES_MAX], vec![0; ATTRIBUTES_MAX]];
    for name in names {
        let [first, second] = &mut values;
        let counts = [user_attribute(&one, &name, first)?, user_attribute(&other, &name, second)?];
        let [Some(of_first), Some(of_second)] = counts else { return Ok(false) };
        if first.get(..of_first) != second.get(..of_second) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Bytes of one value, and of all names, that the kernel takes.
const ATTRIBUTES_MAX: usize = 64 << 10;

/// Their names; none where the file system has none.
fn user_attributes(of: impl AsFd) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut names = vec![0; ATTRIBUTES_MAX];
    let length = match rustix::fs::flistxattr(&of, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let names = names.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    Ok(names.filter(|name| name.starts_with(b"user.")).map(<[u8]>::to_vec).collect())
}

/// How many bytes it has, unless it was taken away meanwhile.
fn user_attribute(of: impl AsFd, name: &[u8], value: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::fs::fgetxattr(&of, name, value) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A file system may have none: the content is what counts.
fn fsetxattr_if_any(target: impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    match rustix::fs::fsetxattr(target, name, value, rustix::fs::XattrFlags::empty()) {
        Ok(()) | Err(Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn keep_rights(of: &Metadata, on: &Path) -> io::Result<()> {
    chown(on, Some(of.uid()), Some(of.gid()))?;
    fs::set_permissions(on, fs::Permissions::from_mode(of.mode() & 0o777))
}

#[cfg(not(test))]
fn told_to_tests(_made_to_last: &Path) {}

#[cfg(test)]
use tests::told_to_tests;

#[cfg(test)]
pub(crate) mod tests;
