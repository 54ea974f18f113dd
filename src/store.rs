//! What must survive a crash: jobs, runs with their attempts and tasks, what happened to them, and what they have used.
//!
//! One batch is one transaction: all of it is on disk when [`Store::commit`] returns, or nothing is.
//! Written by the reconciler alone. `docs/STATE.md` describes the file.

pub mod copy;
pub mod fault;
pub mod memory;
pub mod record;
pub mod redb;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::ids::{JobKey, Timestamp};
use record::{Counters, EventRecord, JobRecord, RunRecord, UsageRecord, UsageSum};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the store {path}")]
    Open {
        path: std::path::PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot {what} the store")]
    Access {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing was written; it may be tried again.
    #[error("there is no room on the disk for the store")]
    NoRoom {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the record {key} in the store cannot be read")]
    Damaged {
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("the record {key} in the store has version {found}, this program knows up to {known}")]
    Newer { key: String, found: u32, known: u32 },
    #[error("the store was told to fail")]
    Injected,
}

impl StoreError {
    /// The disk is full: what was to be written can be when there is room.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom { .. })
    }
}

/// Everything that is needed to go on after a restart.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    pub counters: Counters,
    pub jobs: BTreeMap<JobKey, JobRecord>,
    /// The newest run of each job.
    pub runs: BTreeMap<JobKey, RunRecord>,
}

/// Changes that belong together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub counters: Option<Counters>,
    /// Jobs whose runs and events so far are removed, before anything else of the batch is written.
    pub forgotten: BTreeSet<JobKey>,
    pub jobs: BTreeMap<JobKey, JobRecord>,
    pub runs: BTreeMap<(JobKey, u32), RunRecord>,
    pub events: Vec<(JobKey, EventRecord)>,
    pub usage: Vec<UsageRecord>,
    /// Of a backup alone: in the place of what is there for their day, workspace and user.
    pub usage_sums: Vec<UsageSum>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the truth is kept.
pub trait Store: Send {
    fn load(&self) -> Result<Contents, StoreError>;
    /// Makes the whole batch durable.
    fn commit(&self, batch: &Batch) -> Result<(), StoreError>;
    /// What happened to a job, from event number `from` on, so many at most.
    fn events(&self, key: &JobKey, from: u64, most: usize) -> Result<Vec<EventRecord>, StoreError>;
    /// The runs of a job that have these numbers, so many of the newest at most; oldest first.
    fn runs(&self, key: &JobKey, numbers: RangeInclusive<u32>, most: usize) -> Result<Vec<RunRecord>, StoreError>;
    /// What attempts have used that ended at `from` or later, in the order of their ends.
    fn usage(&self, from: Timestamp) -> Result<Vec<UsageRecord>, StoreError>;
    /// What is left of older records, of days that had not ended at `from`.
    fn usage_sums(&self, from: Timestamp) -> Result<Vec<UsageSum>, StoreError>;
    /// Leaves sums by day, workspace and user of what ended before that time; so many records at most, and says how many it were.
    fn fold_usage(&self, before: Timestamp, most: usize) -> Result<usize, StoreError>;
}

#[cfg(test)]
mod tests;
