//! The table of numbers together with pins of what lost its name through the mount.
//!
//! The kernel may open, stat or change a number for a moment after another process has replaced or
//! removed its name (it has looked the name up, but not opened it yet). Without a pin the answer would be
//! `ESTALE`; the kernel tries again once, so a reader of a file that is replaced again and again would fail. A
//! pin is kept until the kernel forgets the number, which it does soon unless the file is open.

use std::collections::HashMap;
use std::ffi::OsStr;

use super::RenameMode;
use crate::host::Pin;
use crate::inode::InodeTable;

#[derive(Debug)]
pub(super) struct Nodes {
    pub table: InodeTable,
    orphans: HashMap<u64, Pin>,
}

impl Nodes {
    pub(super) fn new(table: InodeTable) -> Self {
        Self { table, orphans: HashMap::new() }
    }

    pub(super) fn forget(&mut self, ino: u64, count: u64) {
        for gone in self.table.forget(ino, count) {
            self.orphans.remove(&gone);
        }
    }

    /// `name` is gone; `was` is what it led to.
    pub(super) fn unlink(&mut self, parent: u64, name: &OsStr, was: Option<Pin>) {
        let ino = self.table.child(parent, name);
        self.table.unlink(parent, name);
        self.keep(ino, was);
    }

    /// `was` is what `to` led to.
    pub(super) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), mode: RenameMode, was: Option<Pin>) {
        if mode == RenameMode::Exchange {
            return self.table.exchange(from, to);
        }
        let ino = self.table.child(to.0, to.1);
        self.table.rename(from, to);
        self.keep(ino, was);
    }

    /// What `ino` is, if it lost its name through the mount.
    pub(super) fn orphan(&self, ino: u64) -> Option<&Pin> {
        self.orphans.get(&ino)
    }

    fn keep(&mut self, ino: Option<u64>, was: Option<Pin>) {
        if let (Some(ino), Some(was)) = (ino, was)
            && self.table.is_nameless(ino)
            && self.table.identity(ino) == Some(was.identity())
        {
            self.orphans.insert(ino, was);
        }
    }

    #[cfg(test)]
    pub(super) fn orphans(&self) -> usize {
        self.orphans.len()
    }
}
