//! What `stat` shows of an entry, apart from its number.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::libc;
use rustix::fs::{Statx, StatxTimestamp};
use serde::{Deserialize, Serialize};

use crate::tree::ContentMetadata;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl Kind {
    /// From the format bits of `st_mode`; what is unknown shows as a file.
    pub(crate) fn from_mode(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFBLK => Self::BlockDevice,
            _ => Self::File,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attr {
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    pub atime: SystemTime,
    pub mtime: SystemTime,
    pub ctime: SystemTime,
    /// The lower 12 bits of the mode.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// As the C library has it.
    pub rdev: u64,
    pub blksize: u32,
}

impl Attr {
    pub(crate) fn of_seen(seen: &Statx) -> Self {
        let mode = u32::from(seen.stx_mode);
        let at = |stamp: &StatxTimestamp| time(stamp.tv_sec, stamp.tv_nsec.into());
        Self {
            kind: Kind::from_mode(mode),
            size: seen.stx_size,
            blocks: seen.stx_blocks,
            atime: at(&seen.stx_atime),
            mtime: at(&seen.stx_mtime),
            ctime: at(&seen.stx_ctime),
            mode: permissions(mode),
            nlink: seen.stx_nlink,
            uid: seen.stx_uid,
            gid: seen.stx_gid,
            rdev: nix::sys::stat::makedev(seen.stx_rdev_major.into(), seen.stx_rdev_minor.into()),
            blksize: seen.stx_blksize,
        }
    }

    pub(crate) fn of_generated(content: &ContentMetadata) -> Self {
        Self {
            kind: Kind::File,
            size: content.size,
            blocks: content.size.div_ceil(512),
            atime: content.mtime,
            mtime: content.mtime,
            ctime: content.mtime,
            mode: permissions(content.mode),
            nlink: 1,
            uid: content.uid,
            gid: content.gid,
            rdev: 0,
            blksize: 4096,
        }
    }
}

fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).expect("12 bits fit into 16")
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let within = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.and_then(|start| start.checked_add(within)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let half = Duration::from_millis(500);
        assert_eq!(time(1, 500_000_000), UNIX_EPOCH + Duration::from_secs(1) + half);
        assert_eq!(time(-1, 500_000_000), UNIX_EPOCH - half);
    }
}
