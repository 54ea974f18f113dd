//! A store that fails, or ends the process, at a chosen commit: how the tests kill the daemon at every recorded step.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::{EventRecord, RunRecord, UsageRecord, UsageSum};
use super::{Batch, Contents, Store, StoreError};
use crate::ids::{JobKey, Timestamp};

/// What happens at the chosen commit, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The commit returns an error and nothing was written.
    Fail(u64),
    /// From this commit on each finds no room at first, and is written when it is tried again.
    NoRoom(u64),
    /// The process ends as by SIGKILL before anything was written.
    DieBefore(u64),
    /// The process ends as by SIGKILL when all was written.
    DieAfter(u64),
}

impl FromStr for Fault {
    type Err = String;
    /// `fail:3`, `no-room:3`, `die-before:3`, `die-after:3`.
    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || format!("{text:?} is not fail:N, no-room:N, die-before:N or die-after:N");
        let (kind, number) = text.split_once(':').ok_or_else(usage)?;
        let number = number.parse().map_err(|_| usage())?;
        match kind {
            "fail" => Ok(Fault::Fail(number)),
            "no-room" => Ok(Fault::NoRoom(number)),
            "die-before" => Ok(Fault::DieBefore(number)),
            "die-after" => Ok(Fault::DieAfter(number)),
            _ => Err(usage()),
        }
    }
}

#[derive(Debug)]
pub struct FaultStore<S> {
    inner: S,
    fault: Fault,
    commits: AtomicU64,
}

impl<S: Store> FaultStore<S> {
    pub fn new(inner: S, fault: Fault) -> Self {
        Self { inner, fault, commits: AtomicU64::new(0) }
    }
}

impl<S: Store + Sync> Store for FaultStore<S> {
    fn load(&self) -> Result<Contents, StoreError> {
        self.inner.load()
    }

    fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        let number = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        match self.fault {
            Fault::Fail(at) if at == number => return Err(StoreError::Injected),
            Fault::NoRoom(at) if number >= at && (number - at).is_multiple_of(2) => {
                return Err(StoreError::NoRoom { source: "the store was told so".into() });
            }
            Fault::DieBefore(at) if at == number => die(),
            _ => {}
        }
        self.inner.commit(batch)?;
        if self.fault == Fault::DieAfter(number) {
            die();
        }
        Ok(())
    }

    fn events(&self, key: &JobKey, from: u64, most: usize) -> Result<Vec<EventRecord>, StoreError> {
        self.inner.events(key, from, most)
    }

    fn runs(&self, key: &JobKey, numbers: RangeInclusive<u32>, most: usize) -> Result<Vec<RunRecord>, StoreError> {
        self.inner.runs(key, numbers, most)
    }

    fn usage(&self, from: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        self.inner.usage(from)
    }

    fn usage_sums(&self, from: Timestamp) -> Result<Vec<UsageSum>, StoreError> {
        self.inner.usage_sums(from)
    }

    fn fold_usage(&self, before: Timestamp, most: usize) -> Result<usize, StoreError> {
        self.inner.fold_usage(before, most)
    }
}

/// No destructor, no flush, no handler: what SIGKILL does.
fn die() -> ! {
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    crate::sys::process::exit_now(137)
}
