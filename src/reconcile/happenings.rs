//! What happened to all jobs, in order. The last of it is kept in memory, for those who follow; what is older is in the store.

use std::collections::{BTreeMap, VecDeque};

use super::requests::may;
use super::world::Job;
use super::{Caller, Reconciler, Refusal};
use crate::ids::JobKey;
use crate::status::State;
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

/// What [`super::Request::StatesAt`] answers: from where somebody goes on who has looked at all events up to a serial number.
#[derive(Debug, Clone, PartialEq)]
pub struct StatesAt {
    /// What each job had come to by then.
    pub states: BTreeMap<JobKey, State>,
    /// The serial number of the last event of all.
    pub last: u64,
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

    /// The serial number of the last one.
    fn last(&self) -> u64 {
        self.last.back().map_or(self.after, |(_, event)| event.serial)
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
        let last = self.happenings.last().max(after);
        let upto = events.last().filter(|_| events.len() >= limit).map_or(last, |(_, event)| event.serial);
        Ok(Happened { events, upto })
    }

    fn stored(&self, caller: &Caller, after: u64, limit: usize) -> Result<Happened, StoreError> {
        let mut first: BTreeMap<u64, (JobKey, EventRecord)> = BTreeMap::new();
        let mut is_full = false;
        for (key, job) in self.jobs.iter().filter(|(key, job)| !job.record.removed && may(caller, key, job)) {
            for event in self.around(key, job, after)?.1 {
                first.insert(event.serial, (key.clone(), event));
                if first.len() > limit {
                    is_full = true;
                    first.pop_last();
                }
            }
        }
        let last = self.happenings.last().max(after);
        let upto = first.last_key_value().filter(|_| is_full).map_or(last, |(serial, _)| *serial);
        Ok(Happened { events: first.into_values().collect(), upto })
    }

    pub(super) fn states_at(&self, serial: u64) -> Result<StatesAt, Refusal> {
        let mut states = BTreeMap::new();
        for (key, job) in self.jobs.iter().filter(|(_, job)| !job.record.removed) {
            let before = self.around(key, job, serial).map_err(|error| Refusal::Store(error.to_string()))?.0;
            states.extend(before.map(|event| (key.clone(), event.state)));
        }
        Ok(StatesAt { states, last: self.happenings.last() })
    }

    /// The last of a job's events up to a serial number, and those behind it. Of the store no more is read than that takes: most
    /// jobs have nothing new.
    fn around(
        &self,
        key: &JobKey,
        job: &Job,
        serial: u64,
    ) -> Result<(Option<EventRecord>, Vec<EventRecord>), StoreError> {
        let first = job.record.first_event;
        let mut count = 1;
        loop {
            let from = job.record.next_event.saturating_sub(count).max(first);
            let mut events = self.store.events(key, from)?;
            let upto = events.partition_point(|event| event.serial <= serial);
            if upto > 0 || from == first {
                let behind = events.split_off(upto);
                return Ok((events.pop(), behind));
            }
            count = count.saturating_mul(4);
        }
    }
}
