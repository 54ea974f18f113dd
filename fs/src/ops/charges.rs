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
use crate::usage::{Account, BLOCK};

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
        let paid = Paid { counts: account.counts(), bytes: after, account: account.clone() };
        let before = lock(&self.paid).insert(ino, paid).and_then(|paid| paid.by(&account)).unwrap_or(bytes(&before));
        taken.settle(after - before);
        done
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
        let mut paid = lock(&self.paid);
        if let Some(paid) = paid.get_mut(&ino)
            && let Some(before) = paid.by(&account)
        {
            paid.bytes = now;
            account.note(now - before);
        }
    }

    /// Makes an entry in `directory` by `make`; `made` finds it there afterwards.
    pub(super) fn charged_entry<R>(
        &self,
        path: &RelPath,
        directory: &Pin,
        make: impl FnOnce() -> Result<R>,
        made: impl FnOnce() -> Result<Pin>,
    ) -> Result<R> {
        let Some(account) = self.tree.account(path) else { return make() };
        let taken = account.take(BLOCK)?;
        let done = make()?;
        let grown = directory.again().map_or(0, |now| now.bytes() - directory.bytes());
        // A further name of a file costs nothing.
        let own = made().map_or(0, |made| if made.attr().nlink == 1 || made.is_directory() { made.bytes() } else { 0 });
        taken.settle(grown + own);
        Ok(done)
    }

    /// What has just lost a name at `path`, and who is told when it is gone.
    pub(super) fn orphaned(&self, path: &RelPath, was: Option<Pin>) -> Option<Orphan> {
        let pin = was?;
        let account = self.tree.account(path);
        let is_gone = is_gone(&pin);
        let counts = account.as_ref().map_or(0, |account| account.counts());
        // Whoever counts at this moment may have seen it or not.
        account.iter().for_each(|account| account.note(0));
        Some(Orphan { pin, account, is_gone, counts })
    }

    /// Nobody holds them any more.
    pub(super) fn freed(&self, orphans: impl IntoIterator<Item = Orphan>) {
        for Orphan { pin, account, is_gone, counts } in orphans {
            let account = account.filter(|account| is_gone && account.counts() == counts);
            if let (Some(account), Ok(now)) = (account, pin.again()) {
                account.note(-now.bytes());
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
