//! What happened to all jobs, in order. The last of it is kept in memory, for those who follow; what is older is in the store.

use std::collections::{BTreeMap, VecDeque};

use super::requests::may;
use super::{Caller, Reconciler, Refusal};
use crate::ids::JobKey;
use crate::store::record::EventRecord;
use crate::store::{Store, StoreError};

/// So many are kept in memory.
const KEPT: usize = 4096;

/// Recorded events by serial number.
#[derive(Debug)]
pub(super) struct Happenings {
    last: VecDeque<(JobKey, EventRecord)>,
    /// All events behind this serial number are there, but those of jobs that are gone.
    after: u64,
}

/// What [`super::Request::Events`] answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Happened {
    pub events: Vec<(JobKey, EventRecord)>,
    /// Up to this serial number nothing is missing.
    pub upto: u64,
}

impl Happenings {
    pub(super) fn after(serial: u64) -> Self {
        Self { last: VecDeque::new(), after: serial }
    }

    pub(super) fn add(&mut self, key: &JobKey, event: &EventRecord) {
        self.last.push_back((key.clone(), event.clone()));
        if self.last.len() > KEPT
            && let Some((_, event)) = self.last.pop_front()
        {
            self.after = event.serial;
        }
    }

    /// A later job of that name may be somebody else's.
    pub(super) fn forget(&mut self, key: &JobKey) {
        self.last.retain(|(other, _)| other != key);
    }

    /// Those behind a serial number, in order; `None` where some of them are in the store alone.
    fn behind(&self, serial: u64) -> Option<impl Iterator<Item = &(JobKey, EventRecord)>> {
        let from = self.last.partition_point(|(_, event)| event.serial <= serial);
        (serial >= self.after).then(|| self.last.range(from..))
    }
}

impl<S: Store> Reconciler<S> {
    pub(super) fn happened(&self, caller: &Caller, after: u64, limit: usize) -> Result<Happened, Refusal> {
        let is_seen = |key: &JobKey| self.jobs.get(key).is_some_and(|job| !job.record.removed && may(caller, key, job));
        let Some(recent) = self.happenings.behind(after) else {
            return self.stored(caller, after, limit).map_err(|error| Refusal::Store(error.to_string()));
        };
        let mut events: Vec<_> = recent.filter(|(key, _)| is_seen(key)).take(limit).cloned().collect();
        events.sort_by_key(|(_, event)| event.serial);
        let last = self.happenings.last.back().map_or(after, |(_, event)| event.serial).max(after);
        let upto = events.last().filter(|_| events.len() >= limit).map_or(last, |(_, event)| event.serial);
        Ok(Happened { events, upto })
    }

    fn stored(&self, caller: &Caller, after: u64, limit: usize) -> Result<Happened, StoreError> {
        let mut first: BTreeMap<u64, (JobKey, EventRecord)> = BTreeMap::new();
        let (mut is_full, mut last) = (false, after);
        for (key, job) in self.jobs.iter().filter(|(key, job)| !job.record.removed && may(caller, key, job)) {
            for event in self.store.events(key, job.record.first_event)? {
                if event.serial > after {
                    last = last.max(event.serial);
                    first.insert(event.serial, (key.clone(), event));
                }
                if first.len() > limit {
                    is_full = true;
                    first.pop_last();
                }
            }
        }
        let upto = first.last_key_value().filter(|_| is_full).map_or(last, |(serial, _)| *serial);
        Ok(Happened { events: first.into_values().collect(), upto })
    }
}
