//! Keeps names where they are while they are used: a lock for each part of the tree, by the first name of a path.
//!
//! What hangs in one part, or takes long there, holds up renames in that part, and so whoever comes after them there; no
//! other part, but for one in 65,536 that has its number by chance.

use std::hash::{BuildHasher, RandomState};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::tree::RelPath;

const PARTS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Namespace {
    parts: Vec<RwLock<()>>,
    by: RandomState,
}

/// Nobody else uses or changes names of these parts.
pub(super) type Changing<'a> = (RwLockWriteGuard<'a, ()>, Option<RwLockWriteGuard<'a, ()>>);

/// Nobody changes names of these parts.
pub(super) type Staying<'a> = (RwLockReadGuard<'a, ()>, Option<RwLockReadGuard<'a, ()>>);

impl Namespace {
    pub(super) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| RwLock::new(())).collect(), by: RandomState::new() }
    }

    /// The part that `path` lies in, a number below [`PARTS`].
    pub(super) fn part(&self, path: &RelPath) -> usize {
        let hash = path.components().next().map_or(0, |first| self.by.hash_one(first));
        usize::try_from(hash % PARTS as u64).unwrap_or(0)
    }

    pub(super) fn stay(&self, part: usize) -> RwLockReadGuard<'_, ()> {
        self.lock_of(part).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::stay`] in two parts, which may be the same one.
    pub(super) fn stay_both(&self, a: usize, b: usize) -> Staying<'_> {
        (self.stay(a.min(b)), (a != b).then(|| self.stay(a.max(b))))
    }

    /// In the order of their numbers, as everybody takes them.
    pub(super) fn change(&self, a: usize, b: usize) -> Changing<'_> {
        let write = |part: usize| self.lock_of(part).write().unwrap_or_else(PoisonError::into_inner);
        (write(a.min(b)), (a != b).then(|| write(a.max(b))))
    }

    #[cfg(test)]
    pub(super) fn is_free(&self, part: usize) -> bool {
        self.lock_of(part).try_read().is_ok()
    }

    fn lock_of(&self, part: usize) -> &RwLock<()> {
        // There are as many as part() counts to.
        &self.parts[part % PARTS]
    }
}
