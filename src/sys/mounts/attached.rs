//! Mounts that stay known wherever the directory below them is moved to, and word of those that have gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::{Detached, path_of};
use crate::sys::rooted::mount_of;

/// An attached mount, by a handle of what it shows. Dropping it leaves the mount where it is.
#[derive(Debug)]
pub struct Attached {
    handle: OwnedFd,
    id: u64,
}

impl Attached {
    /// The mount by which `handle` is seen.
    pub fn of(handle: OwnedFd) -> io::Result<Self> {
        Ok(Self { id: mount_of(&handle)?, handle })
    }

    /// The kernel's number of it, which no other mount has as long as this is held.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Of what it shows.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Takes it away, without a look at the place where it is; that it has gone already is no error.
    pub fn detach(&self) -> io::Result<()> {
        match umount2(&path_of(&self.handle), MntFlags::MNT_DETACH) {
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Detached {
    /// Attaches it at the place that `target` is a handle of.
    pub fn attach_for_good(self, target: impl AsFd) -> io::Result<Attached> {
        self.attach(target)?;
        Attached::of(self.0)
    }
}

/// The mounts of this namespace; `POLLPRI` tells that some have come or gone since it was polled.
#[derive(Debug)]
pub struct MountTable(File);

impl MountTable {
    pub fn open() -> io::Result<Self> {
        Ok(Self(File::open("/proc/self/mountinfo")?))
    }

    /// The kernel's numbers of all mounts.
    pub fn ids(&self) -> io::Result<BTreeSet<u64>> {
        let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.0.read_at(&mut buffer, text.len() as u64)? {
                0 => break,
                count => text.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            }
        }
        let number = |line: &[u8]| std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?.parse().ok();
        Ok(text.split(|byte| *byte == b'\n').filter_map(number).collect())
    }
}

impl AsFd for MountTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
