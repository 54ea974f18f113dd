//! Who pays for what a change takes of the disk, where the tree has accounts.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use super::nodes::Orphan;
use super::{Ops, RenameMode, lock};
use crate::error::{Error, Result};
use crate::host::Pin;
use crate::tree::{RelPath, Tree};
use crate::usage::{Account, BLOCK, CameTo};

/// What was paid for a file when it was changed last.
#[derive(Debug)]
pub(super) struct Paid {
    account: Arc<Account>,
    /// How often the account was counted until then.
    counts: u64,
    bytes: i64,
}

impl Paid {
    /// Bytes, if they are still part of what the account has counted.
    fn by(&self, account: &Arc<Account>) -> Option<i64> {
        (Arc::ptr_eq(&self.account, account) && self.counts == account.counts()).then_some(self.bytes)
    }
}

impl<T: Tree> Ops<T> {
    /// Makes a change to `object`, which is `ino` and may come to take as much more as `most` says.
    pub(super) fn charged<R>(
        &self,
        ino: u64,
        object: impl AsFd,
        most: impl FnOnce(&FileStat) -> u64,
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some(account) = self.account_of(ino) else { return change() };
        let _turn = account.turn(ino);
        let stat = || fstat(&object).map_err(Error::host("fstat"));
        let before = stat()?;
        let taken = account.take(most(&before))?;
        let done = change();
        // It may have failed half-way.
        let after = bytes(&stat()?);
        // While nobody takes its name: what has none is paid for apart.
        let nodes = lock(&self.nodes);
        let paid = self.paid_before(ino, &account, bytes(&before), after);
        taken.settle(match nodes.removed(ino) {
            Some(removed) => CameTo::Removed(removed, after),
            None => CameTo::Named(after - paid),
        });
        drop(nodes);
        done
    }

    /// What was paid for `ino` before it came to `after`: `before`, if nobody has noted otherwise.
    fn paid_before(&self, ino: u64, account: &Arc<Account>, before: i64, after: i64) -> i64 {
        let paid = Paid { counts: account.counts(), bytes: after, account: account.clone() };
        lock(&self.paid).insert(ino, paid).and_then(|paid| paid.by(account)).unwrap_or(before)
    }

    /// Pays for what the file system has come to by itself since `ino` was changed: it allocates late, and more or less than
    /// it has said.
    pub(super) fn settle_late(&self, ino: u64) {
        // Most files are only read.
        let Some(account) = lock(&self.paid).get(&ino).map(|paid| paid.account.clone()) else { return };
        // Before its turn: whoever changes a file holds its name already when they wait for theirs.
        let Ok(pin) = self.pin_even_nameless(ino) else { return };
        let _turn = account.turn(ino);
        let Ok(now) = pin.again().map(|pin| pin.bytes()) else { return };
        let nodes = lock(&self.nodes);
        let mut paid = lock(&self.paid);
        let Some(paid) = paid.get_mut(&ino) else { return };
        match (nodes.removed(ino), paid.by(&account)) {
            (Some(removed), _) => account.note_removed(removed, Some(now)),
            (None, Some(before)) => account.note(now - before),
            // It is part of what was counted meanwhile.
            (None, None) => return,
        }
        paid.bytes = now;
    }

    /// Makes an entry in `directory`, which is `parent`, by `make`; `made` finds it there afterwards.
    pub(super) fn charged_entry<R>(
        &self,
        path: &RelPath,
        (parent, directory): (u64, &Pin),
        make: impl FnOnce() -> Result<R>,
        made: impl FnOnce() -> Result<Pin>,
    ) -> Result<R> {
        let Some(account) = self.tree.account(path) else { return make() };
        let _turn = account.turn(parent);
        let before = directory.again()?.bytes();
        let taken = account.take(BLOCK)?;
        let done = make()?;
        let after = directory.again().map_or(before, |now| now.bytes());
        let grown = after - self.paid_before(parent, &account, before, after);
        // A further name of a file costs nothing.
        let own = made().map_or(0, |made| if made.attr().nlink == 1 || made.is_directory() { made.bytes() } else { 0 });
        taken.settle(CameTo::Named(grown + own));
        Ok(done)
    }

    /// Takes entries out of directories, or puts what is there already into them, by `change`: what they grow or shrink by is
    /// noted, and refused to nobody, since it is how room is made.
    pub(super) fn noted_in<R>(
        &self,
        path: &RelPath,
        directories: &[(u64, &Pin)],
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some(account) = self.tree.account(path) else { return change() };
        let inos: Vec<u64> = directories.iter().map(|(ino, _)| *ino).collect();
        let _turns = account.turns(&inos);
        let bytes = |directory: &Pin| directory.again().map(|now| now.bytes());
        let before: Vec<Result<i64>> = directories.iter().map(|(_, directory)| bytes(directory)).collect();
        let done = change()?;
        for ((ino, directory), before) in directories.iter().zip(before) {
            if let (Ok(before), Ok(after)) = (before, bytes(directory)) {
                account.note(after - self.paid_before(*ino, &account, before, after));
            }
        }
        Ok(done)
    }

    /// What has just lost a name at `path`, and who is told when it is gone. `ino` is its number, if it has one; the caller
    /// holds `nodes`, so that nobody settles a change to it meanwhile.
    pub(super) fn orphaned(&self, path: &RelPath, ino: Option<u64>, was: Option<Pin>) -> Option<Orphan> {
        let pin = was?;
        let account = self.tree.account(path);
        // Whoever counts at this moment may have seen it or not.
        let remove = |account: &Arc<Account>| {
            let known = ino.and_then(|ino| lock(&self.paid).get(&ino).and_then(|paid| paid.by(account)));
            let now = pin.again().map_or(0, |now| now.bytes());
            account.remove(known.unwrap_or(pin.bytes()), now)
        };
        let removed = account.as_ref().filter(|_| is_gone(&pin)).map(remove);
        Some(Orphan { pin, account, removed })
    }

    /// Nobody holds them any more.
    pub(super) fn freed(&self, orphans: impl IntoIterator<Item = Orphan>) {
        for orphan in orphans {
            if let (Some(account), Some(removed)) = (orphan.account, orphan.removed) {
                account.note_removed(removed, None);
            }
        }
    }

    /// Trees are not moved into an account: what they take is not known.
    pub(super) fn check_accounts(&self, from: &RelPath, to: &RelPath, mode: RenameMode) -> Result<()> {
        let (source, target) = (self.tree.account(from), self.tree.account(to));
        let is_paid = target.is_some() || (mode == RenameMode::Exchange && source.is_some());
        let is_others = is_paid && !is_same(source.as_ref(), target.as_ref());
        match is_others || self.tree.are_apart(from, to) {
            true => Err(Error::host("rename")(Errno::EXDEV)),
            false => Ok(()),
        }
    }

    /// Something may have been moved out of an account.
    pub(super) fn moved(&self, from: &RelPath, to: &RelPath) {
        let (source, target) = (self.tree.account(from), self.tree.account(to));
        if let Some(source) = source.as_ref().filter(|_| !is_same(source.as_ref(), target.as_ref())) {
            source.want_count();
        }
    }

    pub(super) fn has_account(&self, ino: u64) -> bool {
        self.account_of(ino).is_some()
    }

    fn account_of(&self, ino: u64) -> Option<Arc<Account>> {
        match self.path(ino) {
            Ok(path) => self.tree.account(&path),
            Err(_) => lock(&self.nodes).payer(ino),
        }
    }
}

fn is_same(a: Option<&Arc<Account>>, b: Option<&Arc<Account>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// It has no name any more. An empty directory keeps a count of its own entry on some file systems.
fn is_gone(pin: &Pin) -> bool {
    pin.again().is_ok_and(|now| !now.is_linked() || now.is_directory())
}

pub(super) fn allocated(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

pub(super) fn size(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn bytes(stat: &FileStat) -> i64 {
    stat.st_blocks.saturating_mul(512)
}
