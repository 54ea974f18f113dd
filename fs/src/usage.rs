//! What a part of the tree takes of the disk, and how much it may take.
//!
//! An [`Account`] is counted once, and then kept by what changes through the mount. A change takes the most that it may come
//! to, is made, and is settled by what it came to; so the cost follows what changes, and two writers cannot share one last
//! block. What is removed counts until its last reader has let go of it, as on the disk.
//!
//! ```text
//! used = counted (what a walk finds by its names) + taken (for changes under way) + removed (but open) + elsewhere
//! ```
//! A count replaces the first of these alone.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// The least that file systems hand out, bytes; and what a new entry may cost.
pub(crate) const BLOCK: u64 = 4096;
/// Files that are changed at the same time take turns by their number: those of one number wait for each other.
const TURNS: usize = 64;
/// Counting begins anew so often when something is changed meanwhile.
const TRIES: usize = 3;

/// Who pays for a part of the tree.
pub struct Account {
    /// Bytes; `u64::MAX` for no limit.
    limit: AtomicU64,
    /// Bytes of what changes behind the mount, as somebody else measures it.
    elsewhere: AtomicU64,
    sums: Mutex<Sums>,
    wants_count: AtomicBool,
    turns: Vec<Mutex<()>>,
    /// Told of every change; must not block.
    changed: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
struct Sums {
    /// Bytes of what has a name; below nothing for a moment while it is counted anew.
    counted: i64,
    /// Bytes that changes under way may come to.
    taken: i64,
    /// How many changes are under way.
    under_way: usize,
    /// What has no name any more, with its bytes.
    removed: HashMap<Removed, i64>,
    /// Of all those together.
    removed_bytes: i64,
    last_removed: u64,
    /// How often something was taken, settled or removed.
    changes: u64,
    /// How often it was counted.
    counts: u64,
}

/// What an account still pays for, though it has no name any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Removed(u64);

impl Sums {
    fn used(&self) -> u64 {
        u64::try_from(self.counted.saturating_add(self.taken).saturating_add(self.removed_bytes)).unwrap_or(0)
    }

    fn remove(&mut self, paid: i64, bytes: i64) -> Removed {
        self.last_removed += 1;
        let removed = Removed(self.last_removed);
        self.counted -= paid;
        self.set_removed(removed, Some(bytes));
        removed
    }

    fn set_removed(&mut self, which: Removed, bytes: Option<i64>) {
        let before = match bytes {
            Some(bytes) => self.removed.insert(which, bytes),
            None => self.removed.remove(&which),
        };
        self.removed_bytes += bytes.unwrap_or(0) - before.unwrap_or(0);
        self.changes += 1;
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("limit", &self.limit).field("sums", &self.sums()).finish_non_exhaustive()
    }
}

/// How much may be kept, and how much is, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub used: u64,
}

impl Account {
    /// `counted` is what was known before; `changed` is called at every change and must not block.
    pub fn new(limit: u64, counted: u64, changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            limit: AtomicU64::new(limit),
            elsewhere: AtomicU64::new(0),
            sums: Mutex::new(Sums { counted: signed(counted), ..Sums::default() }),
            wants_count: AtomicBool::new(false),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            changed: Box::new(changed),
        }
    }

    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// What takes room behind the mount.
    pub fn set_elsewhere(&self, bytes: u64) {
        self.elsewhere.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of what changes through the mount.
    pub fn counted(&self) -> u64 {
        self.sums().used()
    }

    /// Each use leaves them whole.
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn quota(&self) -> Quota {
        let used = self.counted().saturating_add(self.elsewhere.load(Ordering::Relaxed));
        Quota { limit: self.limit.load(Ordering::Relaxed), used }
    }

    /// Something was moved by whole trees, so that only counting anew tells what is left.
    pub fn want_count(&self) {
        self.wants_count.store(true, Ordering::Relaxed);
        (self.changed)();
    }

    /// Whether it is to be counted anew; says so once.
    pub fn take_wanted_count(&self) -> bool {
        self.wants_count.swap(false, Ordering::Relaxed)
    }

    /// Counts anew by `measure`, which may take long: what changes meanwhile is counted too. Says whether it is exact: where
    /// something goes on changing, some of that is counted twice, and it is to be counted once more later.
    pub fn count(&self, measure: impl Fn() -> io::Result<u64>) -> io::Result<bool> {
        let mut is_exact = false;
        for attempt in 1..=TRIES {
            let (changes, before, under_way) = {
                let sums = self.sums();
                (sums.changes, sums.counted, sums.under_way)
            };
            let measured = signed(measure()?);
            let mut sums = self.sums();
            is_exact = sums.changes == changes && under_way == 0;
            if attempt == TRIES || is_exact {
                // By the difference: what is being changed at this moment is settled afterwards.
                sums.counted += measured - before;
                sums.counts += 1;
                break;
            }
        }
        (self.changed)();
        Ok(is_exact)
    }

    /// What was paid before another count is part of that.
    pub(crate) fn counts(&self) -> u64 {
        self.sums().counts
    }

    /// Nobody else changes the file with this number meanwhile, so that what a change came to can be seen from outside.
    pub(crate) fn turn(&self, ino: u64) -> MutexGuard<'_, ()> {
        let turn = usize::try_from(ino % TURNS as u64).unwrap_or(0);
        // There are as many as the remainder counts to.
        self.turns[turn].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::turn`], of several at once.
    pub(crate) fn turns(&self, inos: &[u64]) -> Vec<MutexGuard<'_, ()>> {
        // In one order for everybody, each once.
        let turns: BTreeSet<u64> = inos.iter().map(|ino| ino % TURNS as u64).collect();
        turns.into_iter().map(|turn| self.turn(turn)).collect()
    }

    /// Takes room for a change; what takes none is possible also where there is none.
    pub(crate) fn take(&self, bytes: u64) -> Result<Taken<'_>> {
        let mut sums = self.sums();
        let used = sums.used().saturating_add(self.elsewhere.load(Ordering::Relaxed));
        if bytes > 0 && used.saturating_add(bytes) > self.limit.load(Ordering::Relaxed) {
            return Err(Error::Quota);
        }
        sums.taken = sums.taken.saturating_add(signed(bytes));
        sums.under_way += 1;
        sums.changes += 1;
        Ok(Taken { account: self, bytes: signed(bytes), came_to: CameTo::Named(0) })
    }

    /// A change begins that takes no room, and is noted when it is made.
    pub(crate) fn begin(&self) {
        let mut sums = self.sums();
        sums.under_way += 1;
        sums.changes += 1;
    }

    /// It is noted.
    pub(crate) fn end(&self) {
        let mut sums = self.sums();
        sums.under_way -= 1;
        sums.changes += 1;
    }

    /// A change that was made to what has a name.
    pub(crate) fn note(&self, bytes: i64) {
        let mut sums = self.sums();
        sums.changes += 1;
        sums.counted += bytes;
        drop(sums);
        if bytes != 0 {
            (self.changed)();
        }
    }

    /// What `paid` bytes were counted of has lost its last name, and takes so many until it is let go of.
    pub(crate) fn remove(&self, paid: i64, bytes: i64) -> Removed {
        self.sums().remove(paid, bytes)
    }

    /// As [`Self::remove`], of what an earlier process has removed: it is part of what was known, until that is counted.
    pub(crate) fn removed_before(&self, bytes: i64) -> Removed {
        let mut sums = self.sums();
        let known = if sums.counts == 0 { bytes } else { 0 };
        sums.remove(known, bytes)
    }

    /// What is paid for it.
    pub(crate) fn bytes_of(&self, which: Removed) -> Option<i64> {
        self.sums().removed.get(&which).copied()
    }

    /// What has no name takes so many bytes now; it is gone when `None`.
    pub(crate) fn note_removed(&self, which: Removed, bytes: Option<i64>) {
        self.sums().set_removed(which, bytes);
        (self.changed)();
    }
}

/// Room that was taken for a change; given back when dropped, but for what the change came to.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    account: &'a Account,
    bytes: i64,
    came_to: CameTo,
}

/// What a change came to, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CameTo {
    /// So many more of what has a name.
    Named(i64),
    /// So many of what has none.
    Removed(Removed, i64),
}

impl Taken<'_> {
    pub(crate) fn settle(mut self, came_to: CameTo) {
        self.came_to = came_to;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // In one step: between two, somebody else would have room that is taken.
        let mut sums = self.account.sums();
        sums.taken -= self.bytes;
        sums.under_way -= 1;
        sums.changes += 1;
        match self.came_to {
            CameTo::Named(bytes) => sums.counted += bytes,
            CameTo::Removed(which, bytes) => sums.set_removed(which, Some(bytes)),
        }
        drop(sums);
        (self.account.changed)();
    }
}

/// What a write of `length` bytes at `offset` may add to a file of which `size` bytes are seen and `allocated` taken.
pub(crate) fn most_of_write(size: u64, allocated: u64, offset: u64, length: u64) -> u64 {
    let up = |bytes: u64| bytes.saturating_add(BLOCK - 1) / BLOCK * BLOCK;
    let end = up(offset.saturating_add(length));
    let begin = offset / BLOCK * BLOCK;
    // With holes, any of it may fall into one.
    let has_holes = allocated < size;
    let taken = if has_holes { begin } else { begin.max(up(size).max(allocated)) };
    end.saturating_sub(taken)
}

/// Size, free and available blocks of `block` bytes as `statfs` shows them under a quota. What is available is never more
/// than `available` on the disk; what is free is what is left of the quota, so that the difference to the size is what is used.
pub(crate) fn shown(quota: Quota, block: u64, available: u64) -> (u64, u64, u64) {
    let blocks = |bytes: u64| bytes / block.max(1);
    let (size, used) = (blocks(quota.limit.max(quota.used)), blocks(quota.used));
    let left = size.saturating_sub(used);
    (size, left, left.min(available))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;

    fn account(limit: u64) -> Account {
        Account::new(limit, 0, || {})
    }

    #[test]
    fn room_is_taken_settled_and_given_back() {
        let account = account(100);
        account.take(60).unwrap().settle(CameTo::Named(50));
        assert_eq!(account.counted(), 50);
        assert!(matches!(account.take(51), Err(Error::Quota)));
        drop(account.take(50).unwrap());
        account.set_elsewhere(40);
        assert!(matches!(account.take(11), Err(Error::Quota)));
        account.take(10).unwrap().settle(CameTo::Named(10));
        account.take(0).unwrap().settle(CameTo::Named(-30));
        assert_eq!(account.quota(), Quota { limit: 100, used: 70 });
        account.set_limit(10);
        account.take(0).unwrap().settle(CameTo::Named(-5));
        assert!(account.take(1).is_err());
    }

    #[test]
    fn two_writers_never_share_the_last_room() {
        let account = Arc::new(account(64_000));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let account = account.clone();
                std::thread::spawn(move || {
                    let take = |_: &i32| account.take(7).map(|taken| taken.settle(CameTo::Named(7))).is_ok();
                    (0..2000).filter(take).count()
                })
            })
            .collect();
        let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(taken, 64_000 / 7);
        assert_eq!(account.counted(), 64_000 / 7 * 7);
    }

    #[test]
    fn counting_begins_anew_when_something_changed_meanwhile() {
        let account = account(1000);
        let rounds = Cell::new(0);
        let measure = || {
            rounds.set(rounds.get() + 1);
            if rounds.get() == 1 {
                account.take(10).unwrap().settle(CameTo::Named(10));
            }
            Ok(if rounds.get() == 1 { 500 } else { 510 })
        };
        assert!(account.count(measure).unwrap());
        assert_eq!((rounds.get(), account.counted()), (2, 510));
    }

    #[test]
    fn counting_what_never_rests_ends_and_is_not_exact() {
        let account = account(1 << 20);
        let measure = || {
            account.take(10).unwrap().settle(CameTo::Named(10));
            Ok(500)
        };
        assert!(!account.count(measure).unwrap());
        assert!((500..=510).contains(&account.counted()), "{}", account.counted());
    }

    #[test]
    fn what_is_under_way_or_removed_while_it_is_counted_counts_all_the_same() {
        let account = account(1000);
        let taken = account.take(60).unwrap();
        let removed = account.remove(0, 30);
        assert!(!account.count(|| Ok(500)).unwrap(), "the change may have been seen or not");
        assert_eq!(account.counted(), 590);
        taken.settle(CameTo::Named(60));
        assert_eq!(account.counted(), 590);
        account.take(20).unwrap().settle(CameTo::Removed(removed, 50));
        assert_eq!(account.counted(), 610);
        assert!(account.count(|| Ok(560)).unwrap());
        account.note_removed(removed, None);
        assert_eq!(account.counted(), 560);
    }

    #[test]
    fn a_write_takes_what_lies_beyond_the_file_and_all_of_it_where_there_are_holes() {
        assert_eq!(most_of_write(0, 0, 0, 1), 4096);
        assert_eq!(most_of_write(100, 4096, 100, 50), 0);
        assert_eq!(most_of_write(8192, 8192, 0, 8192), 0);
        assert_eq!(most_of_write(8192, 8192, 4096, 8192), 4096);
        assert_eq!(most_of_write(8192, 16384, 8192, 8192), 0, "it was allocated before");
        assert_eq!(most_of_write(1 << 20, 4096, 4096, 8192), 8192, "a hole");
        assert_eq!(most_of_write(0, 0, 1 << 30, 1), 4096, "the hole before it costs nothing");
    }

    #[test]
    fn what_is_shown_of_a_quota_is_never_more_than_the_disk_has() {
        let quota = |limit, used| Quota { limit, used };
        assert_eq!(shown(quota(100 * 4096, 30 * 4096), 4096, 1000), (100, 70, 70));
        assert_eq!(shown(quota(100 * 4096, 30 * 4096), 4096, 20), (100, 70, 20));
        assert_eq!(shown(quota(100 * 4096, 120 * 4096), 4096, 20), (120, 0, 0));
    }
}
