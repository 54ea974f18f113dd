//! The table of numbers together with pins of what lost its name through the mount.
//!
//! The kernel may open, stat or change a number for a moment after another process has replaced or
//! removed its name (it has looked the name up, but not opened it yet). Without a pin the answer would be
//! `ESTALE`; the kernel tries again once, so a reader of a file that is replaced again and again would fail. A
//! pin is kept until the kernel forgets the number, which it does soon unless the file is open.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use super::RenameMode;
use crate::host::Pin;
use crate::inode::InodeTable;
use crate::usage::{Account, Removed};

#[derive(Debug)]
pub(super) struct Nodes {
    pub table: InodeTable,
    orphans: HashMap<u64, Orphan>,
}

/// What has lost a name.
#[derive(Debug)]
pub(super) struct Orphan {
    pub pin: Pin,
    /// Who pays for it.
    pub account: Option<Arc<Account>>,
    /// That was its last name: it is paid for as this until nobody holds it any more.
    pub removed: Option<Removed>,
}

impl Nodes {
    pub(super) fn new(table: InodeTable) -> Self {
        Self { table, orphans: HashMap::new() }
    }

    /// Goes on with what an earlier process has kept. What has no name is paid for no more: a start counts anew, and does not see
    /// it.
    pub(super) fn go_on(table: InodeTable, pins: impl IntoIterator<Item = (u64, Pin)>) -> Self {
        let orphan = |pin| Orphan { pin, account: None, removed: None };
        Self { table, orphans: pins.into_iter().map(|(ino, pin)| (ino, orphan(pin))).collect() }
    }

    /// Pins of what has lost its name.
    pub(super) fn keep_orphans(&self) -> Vec<(u64, RawFd)> {
        self.orphans.iter().map(|(ino, orphan)| (*ino, orphan.pin.as_fd().as_raw_fd())).collect()
    }

    /// Returns the numbers that stand for nothing any more, with what nobody can reach by its name either.
    pub(super) fn forget(&mut self, ino: u64, count: u64) -> Vec<(u64, Option<Orphan>)> {
        self.table.forget(ino, count).into_iter().map(|gone| (gone, self.orphans.remove(&gone))).collect()
    }

    /// `name` is gone; `was` is what it led to, returned if nobody can reach it any more.
    pub(super) fn unlink(&mut self, parent: u64, name: &OsStr, was: Option<Orphan>) -> Option<Orphan> {
        let ino = self.table.child(parent, name);
        self.table.unlink(parent, name);
        self.keep(ino, was)
    }

    /// `was` is what `to` led to, returned if nobody can reach it any more.
    pub(super) fn rename(
        &mut self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        mode: RenameMode,
        was: Option<Orphan>,
    ) -> Option<Orphan> {
        if mode == RenameMode::Exchange {
            self.table.exchange(from, to);
            return None;
        }
        let ino = self.table.child(to.0, to.1);
        self.table.rename(from, to);
        self.keep(ino, was)
    }

    /// What `ino` is, if it lost its name through the mount.
    pub(super) fn orphan(&self, ino: u64) -> Option<&Pin> {
        self.orphans.get(&ino).map(|orphan| &orphan.pin)
    }

    /// Who pays for `ino`, which has lost its name.
    pub(super) fn payer(&self, ino: u64) -> Option<Arc<Account>> {
        self.orphans.get(&ino)?.account.clone()
    }

    /// As what its account pays for `ino`, which has lost its last name.
    pub(super) fn removed(&self, ino: u64) -> Option<Removed> {
        self.orphans.get(&ino)?.removed
    }

    /// Keeps what is still known by a number, and returns what is not.
    fn keep(&mut self, ino: Option<u64>, was: Option<Orphan>) -> Option<Orphan> {
        let was = was?;
        match ino {
            Some(ino) if self.table.is_nameless(ino) && self.table.identity(ino) == Some(was.pin.identity()) => {
                self.orphans.insert(ino, was)
            }
            _ => Some(was),
        }
    }

    #[cfg(test)]
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }
}
