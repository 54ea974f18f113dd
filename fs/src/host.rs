//! Input and output strictly beneath the backing directory.
//!
//! Everything starts at one descriptor of that directory. A path is resolved by `openat2` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`, so no symbolic link that lies in it,
//! however hostile, leads anywhere; the result is a `Pin`, an `O_PATH` descriptor, and what is then done
//! is done to the pinned object itself or to one name in it, never to a path a second time.
//!
//! Limits: `/proc` must be mounted (open files are reached through it); a path below the backing directory is at
//! most `PATH_MAX` (4096) bytes long.

mod pin;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, renameat2};
use nix::libc;
use nix::sys::statvfs::{Statvfs, fstatvfs};

pub(crate) use pin::{Made, Owner, Pin, Times};

use crate::error::{Error, Result};
use crate::tree::RelPath;

#[derive(Debug)]
pub(crate) struct Host {
    root: OwnedFd,
}

impl Host {
    /// Opens the directory `backing`; the only path that is ever resolved with symbolic links followed.
    pub(crate) fn open(backing: &Path) -> std::io::Result<Self> {
        let root = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(backing)?;
        Ok(Self { root: root.into() })
    }

    /// Pins what is at `path`; a symbolic link there is pinned itself.
    pub(crate) fn pin(&self, path: &RelPath) -> Result<Pin> {
        if path.is_root() {
            return Pin::beneath(&self.root, Path::new("."));
        }
        Pin::beneath(&self.root, path.as_path())
    }

    pub(crate) fn statvfs(&self) -> Result<Statvfs> {
        fstatvfs(&self.root).map_err(Error::host("fstatvfs"))
    }
}

/// Renames entry `from` to `to`, each a directory and a name in it.
pub(crate) fn rename(from: (&Pin, &std::ffi::OsStr), to: (&Pin, &std::ffi::OsStr), flags: RenameFlags) -> Result<()> {
    renameat2(from.0, from.1, to.0, to.1, flags).map_err(Error::host("renameat2"))
}

/// An `O_PATH` descriptor of `path` below `dir`, without following a symbolic link anywhere.
fn open_path(dir: impl std::os::fd::AsFd, path: &Path) -> Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(dir, path, how).map_err(|errno| match errno {
        nix::errno::Errno::ENOENT => Error::NotFound,
        source => Error::host("openat2")(source),
    })
}

#[cfg(test)]
mod tests;
