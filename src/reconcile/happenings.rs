//! What happened to all jobs, in order. The last of it is kept in memory, for those who follow; what is older is in the store,
//! and read there by whoever asks (`past`), so that nobody waits for that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
pub enum Recent {
    Told(Happened),
    /// Events up to this serial number are in the store alone: whoever asks reads them there.
    Stored {
        upto: u64,
    },
}

/// Events that the caller may see, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Happened {
    pub events: Vec<(JobKey, EventRecord)>,
    /// Up to this serial number nothing is missing.
    pub upto: u64,
    /// There may be more behind it now.
    pub is_more: bool,
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
    pub(super) fn last(&self) -> u64 {
        self.last.back().map_or(self.after, |(_, event)| event.serial)
    }

    /// Those behind a serial number, in order; `None` where some of them are in the store alone.
    fn behind(&self, serial: u64) -> Option<impl Iterator<Item = &(JobKey, EventRecord)>> {
        let from = self.last.partition_point(|(_, event)| event.serial <= serial);
        (serial >= self.after).then(|| self.last.range(from..))
    }
}

impl<S: Store> Reconciler<S> {
    pub(super) fn happened(&self, caller: &Caller, after: u64, limit: usize) -> Recent {
        let Some(recent) = self.happenings.behind(after) else {
            return Recent::Stored { upto: self.happenings.after };
        };
        let is_seen = |key: &JobKey| self.visible(caller, key).is_some();
        let mut events: Vec<_> = recent.filter(|(key, _)| is_seen(key)).take(limit).cloned().collect();
        events.sort_by_key(|(_, event)| event.serial);
        let last = self.happenings.last().max(after);
        let is_more = events.len() >= limit;
        let upto = events.last().filter(|_| is_more).map_or(last, |(_, event)| event.serial);
        Recent::Told(Happened { events, upto, is_more })
    }

    fn visible(&self, caller: &Caller, key: &JobKey) -> Option<&Job> {
        self.jobs.get(key).filter(|job| !job.record.removed && caller.sees(key, job))
    }

    /// Those of these jobs that the caller may see, each with the number of its first event: earlier ones were another's.
    pub(super) fn first_events(&self, caller: &Caller, jobs: &BTreeSet<JobKey>) -> BTreeMap<JobKey, u64> {
        let first = |key: &JobKey| Some((key.clone(), self.visible(caller, key)?.record.first_event));
        jobs.iter().filter_map(first).collect()
    }

    pub(super) fn states_at(&self, serial: u64) -> Result<StatesAt, Refusal> {
        let mut states = BTreeMap::new();
        for (key, job) in self.jobs.iter().filter(|(_, job)| !job.record.removed) {
            let state = self.state_at(key, job, serial).map_err(|error| Refusal::Store(error.to_string()))?;
            states.extend(state.map(|state| (key.clone(), state)));
        }
        Ok(StatesAt { states, last: self.happenings.last() })
    }

    /// By the last of a job's events up to a serial number. Of the store no more is read than that takes: most jobs have nothing
    /// new.
    fn state_at(&self, key: &JobKey, job: &Job, serial: u64) -> Result<Option<State>, StoreError> {
        let first = job.record.first_event;
        let mut count = 1;
        loop {
            let from = job.record.next_event.saturating_sub(count).max(first);
            let events = self.store.events(key, from, usize::MAX)?;
            let last = events.iter().rev().find(|event| event.serial <= serial);
            if last.is_some() || from == first {
                return Ok(last.map(|event| event.state));
            }
            count = count.saturating_mul(4);
        }
    }
}
