//! What the kernel does with stored files by itself: where it may, and whom that hides from us.
//!
//! Reads, writes and mappings that go past us are made of the file on the disk. Of an open file we know all the same that it is
//! open; of a mapping nothing, once the file by which it was made is closed. So what may be mapped is noted until the kernel
//! forgets it, which it does not while it is mapped: it is passed as long as that, since a mapping by way of the kernel's cache would
//! show other bytes than one past it, and whether it is written by a mapping the file system is asked (a lease) before it is frozen.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::{EINVAL, S_ISGID, S_ISUID};

use super::files::OpenFile;
use super::{Access, Ops, lock};
use crate::error::{Error, Result};
use crate::kept::Mapping;
use crate::sys;
use crate::tree::{RelPath, Rule, Tree};

/// Bytes from which on it pays to have the kernel read, write and map a file by itself: to register it costs as much as a few requests.
const LARGE: u64 = 1 << 20;

/// Of a file, as far as that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Large,
}

impl Size {
    pub(super) fn of(bytes: u64) -> Self {
        if bytes >= LARGE { Self::Large } else { Self::Small }
    }
}

/// What the kernel may do by itself with a file that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passes {
    Nothing,
    /// Who writes comes to us: the kernel writes with our rights, and so would leave set-id bits as they are.
    Reads,
    All,
}

impl<T: Tree> Ops<T> {
    /// What the kernel may do by itself with the file of `fh` until it is closed: what would freeze it is refused meanwhile.
    pub(crate) fn passes(&self, fh: u64, access: Access) -> Passes {
        // It is among the open files by now, so who freezes its place after this has asked about that sees it.
        let Ok(open) = self.file(fh) else { return Passes::Nothing };
        let Ok((_names_stay, _)) = self.names_stay(open.ino, None) else { return Passes::Nothing };
        let passes = |path: &RelPath| {
            self.tree.rule(path) == Rule::ReadWrite
                && self.tree.passes_writes(path)
                && self.tree.account(path).is_none()
        };
        if !self.paths(open.ino).is_ok_and(|paths| paths.iter().all(passes)) {
            return Passes::Nothing;
        }
        let Ok(file) = open.stored() else { return Passes::Nothing };
        // Where nobody can tell who writes by a mapping, there is to be none past us.
        if !access.only_writes() && sys::has_writer(file).is_err() {
            return Passes::Nothing;
        }
        if has_set_id(file) { Passes::Reads } else { Passes::All }
    }

    /// Lends the real file of `fh` to whoever registers it with the kernel.
    pub(crate) fn lend<R>(&self, fh: u64, register: impl FnOnce(&File) -> io::Result<R>) -> Result<R> {
        register(self.file(fh)?.stored()?).map_err(Error::io("register"))
    }

    /// The kernel is told to read and write by itself what is open as `fh`.
    pub(crate) fn goes_past_us(&self, fh: u64, access: Access) {
        if let Some(open) = lock(&self.files).get(fh) {
            open.past_us.store(true, Ordering::Relaxed);
            self.may_map(open.ino, access);
        }
    }

    /// The kernel is told that what is written by `fh` goes past its cache, and maps the file of the disk.
    pub(crate) fn maps_past_us(&self, fh: u64, access: Access) {
        if let Some(open) = lock(&self.files).get(fh) {
            open.past_cache.store(true, Ordering::Relaxed);
            // What was written by a mapping is counted when it is closed.
            open.past_us.store(!access.only_writes(), Ordering::Relaxed);
            self.may_map(open.ino, access);
        }
    }

    /// The kernel is told that what is written by `fh` goes past its cache.
    pub(crate) fn go_past_cache(&self, fh: u64) {
        if let Some(open) = lock(&self.files).get(fh) {
            open.past_cache.store(true, Ordering::Relaxed);
        }
    }

    fn may_map(&self, ino: u64, access: Access) {
        // What is open to write alone nobody can map.
        if !access.only_writes() {
            lock(&self.nodes).may_map(ino, if access.writes() { Mapping::Written } else { Mapping::Read });
        }
    }

    /// Whether somebody may have mapped `ino` past us.
    pub(crate) fn may_be_mapped(&self, ino: u64) -> bool {
        lock(&self.nodes).may_be_mapped(ino)
    }

    /// What is to be expected of a file that is made in this directory: what lies together is alike, and who makes it does not say.
    pub(crate) fn expected_in(&self, directory: u64) -> Size {
        if lock(&self.nodes).holds_small(directory) { Size::Small } else { Size::Large }
    }

    /// What has been made is closed.
    pub(super) fn learn_size(&self, open: &OpenFile) {
        let Some(directory) = open.made_in else { return };
        if let Some(size) = open.stored().ok().and_then(|file| file.metadata().ok()) {
            lock(&self.nodes).learn(directory, Size::of(size.len()));
        }
    }

    /// What may be mapped, for the process that goes on.
    pub(crate) fn keep_mapped(&self) -> Vec<(u64, Mapping)> {
        lock(&self.nodes).keep_mapped()
    }

    /// Goes on with what may have been mapped of another process.
    pub(crate) fn go_on_mapped(&self, mapped: Vec<(u64, Mapping)>) {
        let mut nodes = lock(&self.nodes);
        mapped.into_iter().for_each(|(ino, mapping)| nodes.may_map(ino, mapping));
    }

    /// Waits a moment for whoever has something open to be written that a rename would freeze: that it was closed the kernel tells
    /// when `close` has returned.
    pub(crate) fn await_writers(&self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        self.writers.wait_while(|| self.would_freeze_writers(from, to));
    }

    pub(super) fn would_freeze_writers(&self, from: (u64, &OsStr), to: (u64, &OsStr)) -> bool {
        let (Ok(from), Ok(to)) = (self.entry(from), self.entry(to)) else { return false };
        // By any of its names, wherever the one that was looked up last is.
        let is_below = |path: &RelPath| path.as_path().starts_with(from.as_path());
        let is_inside = |ino: u64| self.paths(ino).is_ok_and(|paths| paths.iter().any(is_below));
        let is_written_by_mapping = |ino: u64| is_inside(ino) && self.has_writer(ino);
        self.tree.freezes(&from, &to)
            && (self.written().into_iter().any(is_inside)
                || self.written_by_mappings().into_iter().any(is_written_by_mapping))
    }

    /// Those that somebody may write to by a mapping past us.
    fn written_by_mappings(&self) -> Vec<u64> {
        let mapped = self.keep_mapped().into_iter();
        mapped.filter_map(|(ino, mapping)| (mapping == Mapping::Written).then_some(ino)).collect()
    }

    /// For a caller that holds the namespace, or who asks again when it does.
    fn has_writer(&self, ino: u64) -> bool {
        let opened = self.pin_while_names_stay(ino).and_then(|(pin, _)| pin.open(OFlag::O_RDONLY));
        match opened {
            // Where the file system knows no leases, nobody can tell.
            Ok(file) => sys::has_writer(&file).unwrap_or_else(|error| error.raw_os_error() != Some(EINVAL)),
            // Who cannot look, for want of descriptors or memory, does not know that nobody writes.
            Err(error) => !matches!(error.errno(), Errno::ENOENT | Errno::ESTALE),
        }
    }
}

fn has_set_id(file: &File) -> bool {
    file.metadata().map_or(true, |metadata| metadata.mode() & (S_ISUID | S_ISGID) != 0)
}

#[cfg(test)]
mod tests;
