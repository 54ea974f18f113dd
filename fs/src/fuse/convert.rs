//! Between the kernel's types, as fuser names them, and ours.

use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, RenameFlags, Request, TimeOrNow};
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::time::TimeSpec;
use nix::unistd::Whence;

use crate::attr::Kind;
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::host::{Made, Owner, Times};
use crate::ops::{Access, Entry, RenameMode};

pub(super) fn file_attr(entry: &Entry) -> FileAttr {
    let attr = &entry.attr;
    FileAttr {
        ino: INodeNo(entry.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: packed(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn access(flags: i32) -> Access {
    Access { flags: OFlag::from_bits_truncate(flags) }
}

pub(super) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

pub(super) fn owner(req: &Request) -> Owner {
    Owner { uid: req.uid(), gid: req.gid() }
}

/// A device's number as the kernel packs it into 32 bits (`new_encode_dev`).
pub(super) fn device(packed: u32) -> u64 {
    let packed = u64::from(packed);
    nix::sys::stat::makedev((packed & 0xf_ff00) >> 8, (packed & 0xff) | ((packed >> 12) & 0xf_ff00))
}

/// And back.
pub(super) fn packed(device: u64) -> u32 {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    u32::try_from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)).unwrap_or(0)
}

/// The kernel has applied the umask to `mode`.
pub(super) fn made(req: &Request, mode: u32) -> Made {
    Made { mode, owner: owner(req) }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode> {
    match flags {
        _ if flags.is_empty() => Ok(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Ok(RenameMode::Refuse),
        RenameFlags::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Error::Flags),
    }
}

pub(super) fn whence(whence: i32) -> Result<Whence> {
    match whence {
        libc::SEEK_DATA => Ok(Whence::SeekData),
        libc::SEEK_HOLE => Ok(Whence::SeekHole),
        _ => Err(Error::Flags),
    }
}

pub(super) fn times(atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>) -> Option<Times> {
    if atime.is_none() && mtime.is_none() {
        return None;
    }
    Some(Times { atime: time_spec(atime), mtime: time_spec(mtime) })
}

fn time_spec(time: Option<TimeOrNow>) -> TimeSpec {
    match time {
        None => TimeSpec::UTIME_OMIT,
        Some(TimeOrNow::Now) => TimeSpec::UTIME_NOW,
        Some(TimeOrNow::SpecificTime(time)) => since_epoch(time),
    }
}

fn since_epoch(time: SystemTime) -> TimeSpec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => TimeSpec::from_duration(after),
        // Whole seconds: fuser 0.18 hands fractions before 1970 over wrongly anyway.
        Err(before) => {
            let seconds = i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX);
            TimeSpec::new(-seconds, 0)
        }
    }
}
