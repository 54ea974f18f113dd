//! Who pays for what a change takes of the disk, where the tree has accounts.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use super::nodes::{Orphan, Payer};
use super::{Ops, RenameMode, lock};
use crate::error::{Error, Result};
use crate::host::Pin;
use crate::inode::Identity;
use crate::kept::KeptPayer;
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
        // Whoever takes its name meanwhile sees it half-changed on the disk, and pays back what was paid.
        self.know(ino, &account, bytes(&before));
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

    /// Notes what is paid for `ino`, if that is not known.
    fn know(&self, ino: u64, account: &Arc<Account>, bytes: i64) {
        let mut paid = lock(&self.paid);
        if paid.get(&ino).and_then(|paid| paid.by(account)).is_none() {
            paid.insert(ino, Paid { counts: account.counts(), bytes, account: account.clone() });
        }
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

    /// Something loses its name at `path` as long as this is there: whoever counts it meanwhile may see it or not, so what is
    /// counted then is counted once more.
    pub(super) fn losing(&self, path: &RelPath) -> Option<Losing> {
        self.tree.account(path).map(Losing::begin)
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

    /// Looks at what has just lost the name `(parent, name)` at `path`, and was this before; for [`Self::orphaned`], while the
    /// table is not held: a disk that hangs would hold up everybody who waits for that.
    pub(super) fn lost(&self, path: &RelPath, (parent, name): (u64, &OsStr), was: Option<Pin>) -> Option<Lost> {
        let was = was?;
        let payer = self.tree.account(path).map(|account| {
            let ino = lock(&self.nodes).table.child(parent, name);
            let known = self.known(ino, &account);
            LostPayer { account, place: path.clone(), known, now: gone(&was) }
        });
        Some(Lost { was, payer })
    }

    /// What has lost a name, and who is told when it is gone. `ino` is its number, if it has one; the caller holds `nodes`, so
    /// that nobody settles a change to it meanwhile.
    pub(super) fn orphaned(&self, ino: Option<u64>, lost: Lost) -> (Identity, Orphan) {
        let Lost { was, payer } = lost;
        let payer = payer.map(|LostPayer { account, place, known: before, now }| {
            let known = self.known(ino, &account);
            // Who has changed it since it was looked at has noted what it came to.
            let changed = known.filter(|known| before != Some(*known));
            // Whoever counts at this moment may have seen it or not.
            let removed = now.map(|now| account.remove(known.unwrap_or(was.bytes()), changed.unwrap_or(now)));
            Payer { account, place, removed }
        });
        (was.identity(), Orphan { handle: was.into_handle(), payer })
    }

    /// Bytes that were paid for what has this number.
    fn known(&self, ino: Option<u64>, account: &Arc<Account>) -> Option<i64> {
        lock(&self.paid).get(&ino?)?.by(account)
    }

    /// Goes on with what another process has paid for.
    pub(super) fn payer_again(tree: &T, kept: &KeptPayer) -> Option<Payer> {
        let place = RelPath::new(OsStr::from_bytes(&kept.place)).ok()?;
        let account = tree.account(&place)?;
        let removed = kept.bytes.map(|bytes| account.removed_before(bytes));
        Some(Payer { account, place, removed })
    }

    /// Nobody holds them any more.
    pub(super) fn freed(&self, orphans: impl IntoIterator<Item = Orphan>) {
        for payer in orphans.into_iter().filter_map(|orphan| orphan.payer) {
            if let Some(removed) = payer.removed {
                payer.account.note_removed(removed, None);
            }
        }
    }

    /// Trees are not moved into an account: what they take is not known.
    pub(super) fn check_accounts(&self, from: &RelPath, to: &RelPath, mode: RenameMode) -> Result<()> {
        let (source, target) = (self.tree.account(from), self.tree.account(to));
        let is_paid = target.is_some() || (mode == RenameMode::Exchange && source.is_some());
        let is_others = is_paid && !is_same(source.as_ref(), target.as_ref());
        let moved_back = if mode == RenameMode::Exchange { to } else { from };
        match is_others || self.tree.are_apart(from, to) {
            true if [from, moved_back].into_iter().all(|path| self.tree.may_be_copied(path)) => {
                Err(Error::host("rename")(Errno::EXDEV))
            }
            true => Err(Error::host("rename")(Errno::EPERM)),
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

    /// Has what lies around `ino` counted, if somebody pays for that.
    pub(super) fn count_again(&self, ino: u64) {
        if let Some(account) = self.account_of(ino) {
            account.want_count();
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

/// A change is under way that takes no room.
#[derive(Debug)]
pub(super) struct Losing(Arc<Account>);

impl Losing {
    fn begin(account: Arc<Account>) -> Self {
        account.begin();
        Self(account)
    }
}

impl Drop for Losing {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What has lost a name, as it was and is.
#[derive(Debug)]
pub(super) struct Lost {
    was: Pin,
    payer: Option<LostPayer>,
}

#[derive(Debug)]
struct LostPayer {
    account: Arc<Account>,
    place: RelPath,
    /// Bytes that were paid for it until it was looked at.
    known: Option<i64>,
    /// Bytes that it takes, if that was its last name.
    now: Option<i64>,
}

/// What it takes, if it has no name any more. An empty directory keeps a count of its own entry on some file systems.
fn gone(pin: &Pin) -> Option<i64> {
    let now = pin.again().ok()?;
    (!now.is_linked() || now.is_directory()).then(|| now.bytes())
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
