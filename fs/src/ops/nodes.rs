//! The table of numbers together with pins of what lost its name through the mount.
//!
//! The kernel may open, stat or change a number for a moment after another process has replaced or
//! removed its name (it has looked the name up, but not opened it yet). Without a pin the answer would be
//! `ESTALE`; the kernel tries again once, so a reader of a file that is replaced again and again would fail. A
//! pin is kept until the kernel forgets the number, which it does soon unless the file is open.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::{RenameMode, Size};
use crate::inode::{Identity, InodeTable};
use crate::kept::{KeptPayer, Mapping};
use crate::tree::RelPath;
use crate::usage::{Account, Removed};

#[derive(Debug)]
pub(super) struct Nodes {
    pub table: InodeTable,
    orphans: HashMap<u64, Orphan>,
    /// Changed by nobody any more when they have no name.
    frozen: HashSet<u64>,
    /// Perhaps mapped past us, by people whom nobody tells us of.
    mapped: HashMap<u64, Mapping>,
    /// Directories in which the file that was made last came to be small.
    hold_small: HashSet<u64>,
}

/// What has lost a name.
#[derive(Debug)]
pub(super) struct Orphan {
    /// It is looked at by whoever asks for it, never under the lock of the table: that may wait for the disk.
    pub handle: OwnedFd,
    pub payer: Option<Payer>,
}

/// Who pays for it.
#[derive(Debug)]
pub(super) struct Payer {
    pub account: Arc<Account>,
    /// Where it was, by which the next process finds the account.
    pub place: RelPath,
    /// That was its last name: it is paid for as this until nobody holds it any more.
    pub removed: Option<Removed>,
}

impl Nodes {
    pub(super) fn new(table: InodeTable) -> Self {
        Self {
            table,
            orphans: HashMap::new(),
            frozen: HashSet::new(),
            mapped: HashMap::new(),
            hold_small: HashSet::new(),
        }
    }

    /// Goes on with what an earlier process has kept.
    pub(super) fn go_on(table: InodeTable, orphans: impl IntoIterator<Item = (u64, Orphan)>, frozen: &[u64]) -> Self {
        let (orphans, frozen) = (orphans.into_iter().collect(), frozen.iter().copied().collect());
        Self { orphans, frozen, ..Self::new(table) }
    }

    /// Handles of what has lost its name.
    pub(super) fn keep_orphans(&self) -> Vec<(u64, RawFd)> {
        self.orphans.iter().map(|(ino, orphan)| (*ino, orphan.handle.as_raw_fd())).collect()
    }

    /// Who pays for them, and how much.
    pub(super) fn keep_payers(&self) -> Vec<KeptPayer> {
        let of = |(ino, orphan): (&u64, &Orphan)| {
            let payer = orphan.payer.as_ref()?;
            let bytes = payer.removed.and_then(|removed| payer.account.bytes_of(removed));
            Some(KeptPayer { ino: *ino, place: payer.place.as_path().as_os_str().as_bytes().to_vec(), bytes })
        };
        self.orphans.iter().filter_map(of).collect()
    }

    /// Returns the numbers that stand for nothing any more, with what nobody can reach by its name either.
    pub(super) fn forget(&mut self, ino: u64, count: u64) -> Vec<(u64, Option<Orphan>)> {
        let gone = self.table.forget(ino, count);
        for gone in &gone {
            self.frozen.remove(gone);
            self.mapped.remove(gone);
            self.hold_small.remove(gone);
        }
        gone.into_iter().map(|gone| (gone, self.orphans.remove(&gone))).collect()
    }

    /// `ino` is changed no more, unless it has a name elsewhere.
    pub(super) fn freeze(&mut self, ino: u64) {
        self.frozen.insert(ino);
    }

    /// It has another name, or nobody has it open: by that it is changed as ever.
    pub(super) fn thaw(&mut self, ino: u64) {
        self.frozen.remove(&ino);
    }

    pub(super) fn keep_frozen(&self) -> Vec<u64> {
        self.frozen.iter().copied().collect()
    }

    pub(super) fn is_frozen(&self, ino: u64) -> bool {
        !self.frozen.is_empty() && self.frozen.contains(&ino) && self.table.is_nameless(ino)
    }

    /// Somebody can map `ino` past us, and may have done so until the kernel forgets it.
    pub(super) fn may_map(&mut self, ino: u64, mapping: Mapping) {
        let known = self.mapped.entry(ino).or_insert(mapping);
        *known = mapping.max(*known);
    }

    pub(super) fn may_be_mapped(&self, ino: u64) -> bool {
        self.mapped.contains_key(&ino)
    }

    /// What was made last in this directory came to be so large.
    pub(super) fn learn(&mut self, directory: u64, came_to: Size) {
        // It may have been removed meanwhile, and nobody would forget it again.
        if self.table.identity(directory).is_none() {
            return;
        }
        match came_to {
            Size::Small => self.hold_small.insert(directory),
            Size::Large => self.hold_small.remove(&directory),
        };
    }

    pub(super) fn holds_small(&self, directory: u64) -> bool {
        self.hold_small.contains(&directory)
    }

    pub(super) fn keep_mapped(&self) -> Vec<(u64, Mapping)> {
        self.mapped.iter().map(|(ino, mapping)| (*ino, *mapping)).collect()
    }

    /// `name` is gone; `was` is what it led to, returned if nobody can reach it any more.
    pub(super) fn unlink(&mut self, parent: u64, name: &OsStr, was: Option<(Identity, Orphan)>) -> Option<Orphan> {
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
        was: Option<(Identity, Orphan)>,
    ) -> Option<Orphan> {
        if mode == RenameMode::Exchange {
            self.table.exchange(from, to);
            return None;
        }
        let ino = self.table.child(to.0, to.1);
        self.table.rename(from, to);
        self.keep(ino, was)
    }

    /// A handle of `ino`, if it lost its name through the mount.
    pub(super) fn orphan(&self, ino: u64) -> Option<io::Result<OwnedFd>> {
        self.orphans.get(&ino).map(|orphan| orphan.handle.try_clone())
    }

    /// Who pays for `ino`, which has lost its name.
    pub(super) fn payer(&self, ino: u64) -> Option<Arc<Account>> {
        Some(self.orphans.get(&ino)?.payer.as_ref()?.account.clone())
    }

    /// As what its account pays for `ino`, which has lost its last name.
    pub(super) fn removed(&self, ino: u64) -> Option<Removed> {
        self.orphans.get(&ino)?.payer.as_ref()?.removed
    }

    /// Keeps what is still known by a number, and returns what is not.
    fn keep(&mut self, ino: Option<u64>, was: Option<(Identity, Orphan)>) -> Option<Orphan> {
        let (identity, was) = was?;
        match ino {
            Some(ino) if self.table.is_nameless(ino) && self.table.identity(ino) == Some(identity) => {
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
