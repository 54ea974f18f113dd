//! One object of the backing directory, held fast by an `O_PATH` descriptor.
//!
//! Whatever happens to its name meanwhile, an operation on a pin reaches the object that was pinned.
//! Regular files are opened through `/proc/self/fd`, which leads to the pinned object and nothing else;
//! that way a pipe or a device can be refused before opening it has an effect.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::libc;
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, mkdirat, mknodat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, fsync, linkat, symlinkat, truncate, unlinkat};
use rustix::fs::{AtFlags as RustixAtFlags, FileType, RawDir, Statx, StatxFlags, statx};

use crate::attr::{Attr, Kind};
use crate::error::{Error, Result};
use crate::inode::Identity;

/// Of a listing, by one call: bytes.
const LISTED_AT_ONCE: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Pin {
    fd: OwnedFd,
    seen: Statx,
}

/// What `name` in `dir` is, or `dir` itself where the name is empty.
fn seen(dir: impl AsFd, name: &OsStr) -> Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let flags = RustixAtFlags::SYMLINK_NOFOLLOW | RustixAtFlags::NO_AUTOMOUNT | RustixAtFlags::EMPTY_PATH;
    statx(dir, name, flags, wanted).map_err(|errno| match from_rustix(errno) {
        // Whoever lists goes on without it, or makes up what is not stored.
        nix::errno::Errno::ENOENT => Error::NotFound,
        errno => Error::host("statx")(errno),
    })
}

fn from_rustix(errno: rustix::io::Errno) -> nix::errno::Errno {
    nix::errno::Errno::from_raw(errno.raw_os_error())
}

fn identity_of(seen: &Statx) -> Identity {
    let dev = nix::sys::stat::makedev(seen.stx_dev_major.into(), seen.stx_dev_minor.into());
    Identity::stored(dev, seen.stx_ino, Kind::from_mode(seen.stx_mode.into()), born_of(seen))
}

/// When the file was made, ns since 1970, where its file system tells.
fn born_of(seen: &Statx) -> Option<i64> {
    let told = StatxFlags::from_bits_retain(seen.stx_mask).contains(StatxFlags::BTIME);
    let seconds = seen.stx_btime.tv_sec.checked_mul(1_000_000_000).filter(|_| told)?;
    seconds.checked_add(seen.stx_btime.tv_nsec.into())
}

/// Who owns what is made; the group of a set-group-id directory wins over `gid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// New times; `TimeSpec::UTIME_OMIT` leaves one, `UTIME_NOW` is the present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub atime: TimeSpec,
    pub mtime: TimeSpec,
}

impl AsFd for Pin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Pin {
    pub(super) fn beneath(dir: impl AsFd, path: &Path) -> Result<Self> {
        Self::hold(super::open_path(dir, path)?)
    }

    /// Pins what an open file is, whatever its name.
    pub(crate) fn of_file(file: &File) -> Result<Self> {
        let fd = file.try_clone().map_err(Error::io("dup"))?;
        Self::hold(fd.into())
    }

    /// What a handle has pinned before, as it is now.
    pub(crate) fn of_handle(fd: OwnedFd) -> Result<Self> {
        Self::hold(fd)
    }

    /// Without what was seen, which does not stay true.
    pub(crate) fn into_handle(self) -> OwnedFd {
        self.fd
    }

    /// The same object, as it is now.
    pub(crate) fn again(&self) -> Result<Self> {
        Self::hold(self.fd.try_clone().map_err(Error::io("dup"))?)
    }

    fn hold(fd: OwnedFd) -> Result<Self> {
        Ok(Self { seen: seen(&fd, OsStr::new(""))?, fd })
    }

    pub(crate) fn child(&self, name: &OsStr) -> Result<Self> {
        Self::beneath(&self.fd, Path::new(name))
    }

    /// What is at `name` in this directory, without holding it fast.
    pub(crate) fn look(&self, name: &OsStr) -> Result<(Identity, Attr)> {
        let seen = seen(&self.fd, name)?;
        Ok((identity_of(&seen), Attr::of_seen(&seen)))
    }

    /// What makes it the same one under another name.
    pub(crate) fn identity(&self) -> Identity {
        identity_of(&self.seen)
    }

    /// As of when it was pinned.
    pub(crate) fn attr(&self) -> Attr {
        Attr::of_seen(&self.seen)
    }

    /// It has a name somewhere, as of when it was pinned.
    pub(crate) fn is_linked(&self) -> bool {
        self.seen.stx_nlink > 0
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attr().kind == Kind::Directory
    }

    /// What it takes of the disk, as of when it was pinned.
    pub(crate) fn bytes(&self) -> i64 {
        i64::try_from(self.seen.stx_blocks).unwrap_or(i64::MAX).saturating_mul(512)
    }

    /// Opens a regular file with an access mode only; whatever else is refused unopened.
    pub(crate) fn open(&self, access: OFlag) -> Result<File> {
        if self.attr().kind != Kind::File {
            return Err(Error::NotRegular);
        }
        let mode = access & OFlag::O_ACCMODE;
        OpenOptions::new()
            .read(mode != OFlag::O_WRONLY)
            .write(mode != OFlag::O_RDONLY)
            .custom_flags((access & OFlag::O_APPEND).bits())
            .open(self.magic_link())
            .map_err(Error::io("open"))
    }

    pub(crate) fn read_link(&self) -> Result<OsString> {
        readlinkat(&self.fd, "").map_err(Error::host("readlinkat"))
    }

    /// Tells the names and kinds in this directory, without `.` and `..`.
    pub(crate) fn list(&self, mut tell: impl FnMut(&OsStr, Kind)) -> Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, ".", flags, Mode::empty()).map_err(Error::host("openat"))?;
        let mut buffer = Vec::with_capacity(LISTED_AT_ONCE);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| Error::host("getdents64")(from_rustix(errno)))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match entry.file_type() {
                // A file system that does not tell kinds in its listing.
                FileType::Unknown => match self.child(name) {
                    Ok(child) => tell(name, child.attr().kind),
                    Err(Error::NotFound) => {}
                    Err(error) => return Err(error),
                },
                kind => tell(name, Kind::from_mode(kind.as_raw_mode())),
            }
        }
        Ok(())
    }

    pub(crate) fn sync_directory(&self) -> Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, ".", flags, Mode::empty()).map_err(Error::host("openat"))?;
        fsync(fd).map_err(Error::host("fsync"))
    }

    pub(crate) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        fchownat(&self.fd, "", uid, gid, AtFlags::AT_EMPTY_PATH).map_err(Error::host("fchownat"))
    }

    pub(crate) fn set_mode(&self, mode: u32) -> Result<()> {
        let mode = Mode::from_bits_truncate(mode & 0o7777);
        fchmodat(&self.fd, &self.magic_link(), mode, FchmodatFlags::FollowSymlink).map_err(Error::host("fchmodat"))
    }

    pub(crate) fn set_times(&self, times: Times) -> Result<()> {
        let follow = UtimensatFlags::FollowSymlink;
        utimensat(&self.fd, &self.magic_link(), &times.atime, &times.mtime, follow).map_err(Error::host("utimensat"))
    }

    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        if self.attr().kind != Kind::File {
            return Err(Error::NotRegular);
        }
        let size = i64::try_from(size).map_err(|_| Error::Range)?;
        truncate(&self.magic_link(), size).map_err(Error::host("truncate"))
    }

    /// Makes and opens a file that did not exist, and tells what it is: the kernel has checked no rights on one that did.
    pub(crate) fn create_file(&self, name: &OsStr, access: OFlag, made: &Made) -> Result<(File, (Identity, Attr))> {
        let flags = (access & (OFlag::O_ACCMODE | OFlag::O_APPEND))
            | OFlag::O_CREAT
            | OFlag::O_EXCL
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name, flags, first_mode(made.mode)).map_err(Error::host("openat"))?;
        let is = self.hand_over(&fd, made).inspect_err(|_| drop(self.remove_file(name)))?;
        Ok((fd.into(), (identity_of(&is), Attr::of_seen(&is))))
    }

    pub(crate) fn make_dir(&self, name: &OsStr, made: &Made) -> Result<()> {
        mkdirat(&self.fd, name, first_mode(made.mode)).map_err(Error::host("mkdirat"))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty()).map_err(Error::host("openat"))?;
        let inherited = u32::from(self.seen.stx_mode) & libc::S_ISGID;
        let mode = made.mode | inherited;
        self.hand_over(&fd, &Made { mode, ..*made }).map(drop).inspect_err(|_| drop(self.remove_dir(name)))
    }

    /// Makes a pipe, a socket or a device node; `device` is meant for device nodes, 0 otherwise.
    pub(crate) fn make_node(&self, name: &OsStr, kind: SFlag, device: u64, made: &Made) -> Result<()> {
        mknodat(&self.fd, name, kind, Mode::S_IRUSR, device).map_err(Error::host("mknodat"))?;
        let node = self.child(name)?;
        node.set_owner(Some(made.owner.uid), self.group_for(made.owner))?;
        node.set_mode(made.mode)
    }

    pub(crate) fn make_symlink(&self, name: &OsStr, target: &OsStr, owner: Owner) -> Result<()> {
        symlinkat(target, &self.fd, name).map_err(Error::host("symlinkat"))?;
        let link = self.child(name)?;
        link.set_owner(Some(owner.uid), self.group_for(owner))
    }

    /// Gives `target` the further name `name` in this directory.
    pub(crate) fn make_link(&self, name: &OsStr, target: &Pin) -> Result<()> {
        linkat(&target.fd, "", &self.fd, name, AtFlags::AT_EMPTY_PATH).map_err(Error::host("linkat"))
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> Result<()> {
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir).map_err(Error::host("unlinkat"))
    }

    pub(crate) fn remove_dir(&self, name: &OsStr) -> Result<()> {
        unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir).map_err(Error::host("unlinkat"))
    }

    /// Gives it owner and mode, where it has not been made with them, each of which costs as much as the making, and returns what it
    /// is then. Owner first: changing it clears the set-id bits.
    fn hand_over(&self, fd: &OwnedFd, made: &Made) -> Result<Statx> {
        let is = seen(fd, OsStr::new(""))?;
        let (gid, mode) = (self.group_for(made.owner), made.mode & 0o7777);
        let is_owned = is.stx_uid == made.owner.uid && gid.is_none_or(|gid| gid == is.stx_gid);
        let has_mode = u32::from(is.stx_mode) & 0o7777 == mode;
        if is_owned && has_mode {
            return Ok(is);
        }
        if !is_owned {
            let (uid, gid) = (Some(Uid::from_raw(made.owner.uid)), gid.map(Gid::from_raw));
            fchown(fd, uid, gid).map_err(Error::host("fchown"))?;
        }
        if !has_mode {
            fchmod(fd, Mode::from_bits_truncate(mode)).map_err(Error::host("fchmod"))?;
        }
        seen(fd, OsStr::new(""))
    }

    /// `None` where the directory hands its own group down.
    fn group_for(&self, owner: Owner) -> Option<u32> {
        (u32::from(self.seen.stx_mode) & libc::S_ISGID == 0).then_some(owner.gid)
    }

    /// As writing does: what runs as somebody else must not be changed into another program.
    pub(crate) fn clear_set_id(&self) -> Result<()> {
        let mode = u32::from(self.seen.stx_mode) & 0o7777;
        let group = if mode & 0o010 != 0 { libc::S_ISGID } else { 0 };
        let cleared = mode & !(libc::S_ISUID | group);
        if self.attr().kind == Kind::File && cleared != mode { self.set_mode(cleared) } else { Ok(()) }
    }

    pub(crate) fn magic_link(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}

/// Mode (umask already applied) and owner of what is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub mode: u32,
    pub owner: Owner,
}

/// Of what is made, until it is its owner's: without bits that would have it run as us.
fn first_mode(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode & 0o777)
}
