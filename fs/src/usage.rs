//! What a part of the tree takes of the disk, and how much it may take.
//!
//! An [`Account`] is counted once, and then kept by what changes through the mount. A change takes the most that it may come
//! to, is made, and is settled by what it came to; so the cost follows what changes, and two writers cannot share one last
//! block. What is removed counts until its last reader has let go of it, as on the disk.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// The least that file systems hand out, bytes; and what a new entry may cost.
pub(crate) const BLOCK: u64 = 4096;
/// Files that are changed at the same time take turns by their number; more than serving threads.
const TURNS: usize = 64;
/// Counting begins anew so often when something is changed meanwhile.
const TRIES: usize = 3;

/// Who pays for a part of the tree.
pub struct Account {
    /// Bytes; `u64::MAX` for no limit.
    limit: AtomicU64,
    /// Bytes of what changes behind the mount, as somebody else measures it.
    elsewhere: AtomicU64,
    /// Bytes; below nothing for a moment while it is counted anew.
    counted: AtomicI64,
    /// How often something was taken or settled.
    changes: AtomicU64,
    /// How often it was counted.
    counts: AtomicU64,
    wants_count: AtomicBool,
    turns: Vec<Mutex<()>>,
    /// Told of every change; must not block.
    changed: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("limit", &self.limit).field("counted", &self.counted).finish_non_exhaustive()
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
            counted: AtomicI64::new(signed(counted)),
            changes: AtomicU64::new(0),
            counts: AtomicU64::new(0),
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
        u64::try_from(self.counted.load(Ordering::Relaxed)).unwrap_or(0)
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
            let (changes, before) = (self.changes.load(Ordering::SeqCst), self.counted.load(Ordering::SeqCst));
            let measured = signed(measure()?);
            is_exact = self.changes.load(Ordering::SeqCst) == changes;
            if attempt == TRIES || is_exact {
                // By the difference: what is being changed at this moment is settled afterwards.
                self.counted.fetch_add(measured - before, Ordering::SeqCst);
                self.counts.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        (self.changed)();
        Ok(is_exact)
    }

    /// What was paid before another count is part of that.
    pub(crate) fn counts(&self) -> u64 {
        self.counts.load(Ordering::SeqCst)
    }

    /// Nobody else changes the file with this number meanwhile, so that what a change came to can be seen from outside.
    pub(crate) fn turn(&self, ino: u64) -> MutexGuard<'_, ()> {
        let turn = usize::try_from(ino % TURNS as u64).unwrap_or(0);
        // There are as many as the remainder counts to.
        self.turns[turn].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a change; what takes none is possible also where there is none.
    pub(crate) fn take(&self, bytes: u64) -> Result<Taken<'_>> {
        let fits = |counted: i64| {
            let quota = Quota { used: self.with_elsewhere(counted), ..self.quota() };
            let fits = bytes == 0 || quota.used.saturating_add(bytes) <= quota.limit;
            fits.then(|| counted.saturating_add(signed(bytes)))
        };
        let taken = self.counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits);
        self.changes.fetch_add(1, Ordering::SeqCst);
        match taken {
            Ok(_) => Ok(Taken { account: self, bytes: signed(bytes), came_to: 0 }),
            Err(_) => Err(Error::Quota),
        }
    }

    fn with_elsewhere(&self, counted: i64) -> u64 {
        u64::try_from(counted).unwrap_or(0).saturating_add(self.elsewhere.load(Ordering::Relaxed))
    }

    /// A change that was made.
    pub(crate) fn note(&self, bytes: i64) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if bytes != 0 {
            self.counted.fetch_add(bytes, Ordering::SeqCst);
            (self.changed)();
        }
    }
}

/// Room that was taken for a change; given back when dropped, but for what the change came to.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    account: &'a Account,
    bytes: i64,
    came_to: i64,
}

impl Taken<'_> {
    pub(crate) fn settle(mut self, came_to: i64) {
        self.came_to = came_to;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let account = self.account;
        // In one step: between two, somebody else would have room that is taken.
        account.note(self.came_to - self.bytes);
        if self.came_to != 0 {
            (account.changed)();
        }
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
        account.take(60).unwrap().settle(50);
        assert_eq!(account.counted(), 50);
        assert!(matches!(account.take(51), Err(Error::Quota)));
        drop(account.take(50).unwrap());
        account.set_elsewhere(40);
        assert!(matches!(account.take(11), Err(Error::Quota)));
        account.take(10).unwrap().settle(10);
        account.take(0).unwrap().settle(-30);
        assert_eq!(account.quota(), Quota { limit: 100, used: 70 });
        account.set_limit(10);
        account.take(0).unwrap().settle(-5);
        assert!(account.take(1).is_err());
    }

    #[test]
    fn two_writers_never_share_the_last_room() {
        let account = Arc::new(account(64_000));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let account = account.clone();
                std::thread::spawn(move || {
                    let take = |_: &i32| account.take(7).map(|taken| taken.settle(7)).is_ok();
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
                account.take(10).unwrap().settle(10);
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
            account.take(10).unwrap().settle(10);
            Ok(500)
        };
        assert!(!account.count(measure).unwrap());
        assert!((500..=510).contains(&account.counted()), "{}", account.counted());
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
