//! A store in memory: the model that the one on disk is tested against, and what daemon tests run on.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use super::record::{Counters, EventRecord, JobRecord, RunRecord, UsageRecord, UsageSum};
use super::{Batch, Contents, Store, StoreError, usage};
use crate::ids::{AttemptId, JobKey, Timestamp, WorkspaceName};

/// Clones share the content, as two openings of one file would.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    counters: Counters,
    jobs: BTreeMap<JobKey, JobRecord>,
    runs: BTreeMap<(JobKey, u32), RunRecord>,
    events: BTreeMap<(JobKey, u64), EventRecord>,
    usage: BTreeMap<(Timestamp, AttemptId), UsageRecord>,
    usage_sums: BTreeMap<(Timestamp, WorkspaceName, u32), UsageSum>,
    is_full: bool,
}

impl MemoryStore {
    fn with<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on there is no room for anything, or there is again.
    pub fn set_full(&self, is_full: bool) {
        self.with(|tables| tables.is_full = is_full);
    }

    fn has_room(&self) -> Result<(), StoreError> {
        match self.with(|tables| tables.is_full) {
            true => Err(StoreError::NoRoom { source: "the store was filled".into() }),
            false => Ok(()),
        }
    }
}

impl Store for MemoryStore {
    fn load(&self) -> Result<Contents, StoreError> {
        Ok(self.with(|tables| {
            let newest = |(key, job): (&JobKey, &JobRecord)| {
                let run = tables.runs.get(&(key.clone(), job.last_run))?;
                Some((key.clone(), run.clone()))
            };
            let runs = tables.jobs.iter().filter_map(newest).collect();
            Contents { counters: tables.counters.clone(), jobs: tables.jobs.clone(), runs }
        }))
    }

    fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        self.has_room()?;
        self.with(|tables| {
            // Nothing is forgotten as a rule, and then nothing need be looked at.
            if !batch.forgotten.is_empty() {
                tables.runs.retain(|(key, _), _| !batch.forgotten.contains(key));
                tables.events.retain(|(key, _), _| !batch.forgotten.contains(key));
            }
            if let Some(counters) = &batch.counters {
                tables.counters = counters.clone();
            }
            tables.runs.extend(batch.runs.clone());
            tables.events.extend(batch.events.iter().map(|(key, e)| ((key.clone(), e.number), e.clone())));
            tables.jobs.extend(batch.jobs.clone());
            let sums = batch.usage_sums.iter();
            tables.usage_sums.extend(sums.map(|sum| ((sum.day, sum.workspace.clone(), sum.owner), sum.clone())));
            tables.usage.extend(batch.usage.iter().map(|used| ((used.to, used.attempt), used.clone())));
        });
        Ok(())
    }

    fn events(&self, key: &JobKey, from: u64, most: usize) -> Result<Vec<EventRecord>, StoreError> {
        Ok(self.with(|tables| {
            let range = tables.events.range((key.clone(), from)..=(key.clone(), u64::MAX));
            range.take(most).map(|(_, event)| event.clone()).collect()
        }))
    }

    fn runs(&self, key: &JobKey, numbers: RangeInclusive<u32>, most: usize) -> Result<Vec<RunRecord>, StoreError> {
        Ok(self.with(|tables| {
            let (first, last) = numbers.into_inner();
            let range = tables.runs.range((key.clone(), first)..=(key.clone(), last));
            let mut runs: Vec<RunRecord> = range.rev().take(most).map(|(_, run)| run.clone()).collect();
            runs.reverse();
            runs
        }))
    }

    fn usage(&self, from: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        Ok(self.with(|tables| tables.usage.range((from, AttemptId(0))..).map(|(_, used)| used.clone()).collect()))
    }

    fn usage_sums(&self, from: Timestamp) -> Result<Vec<UsageSum>, StoreError> {
        let lasts = |sum: &&UsageSum| sum.day.0 + usage::DAY_MS > from.0;
        Ok(self.with(|tables| tables.usage_sums.values().filter(lasts).cloned().collect()))
    }

    fn fold_usage(&self, before: Timestamp, most: usize) -> Result<usize, StoreError> {
        self.has_room()?;
        Ok(self.with(|tables| {
            let old = tables.usage.range(..(before, AttemptId(0))).take(most);
            let old: Vec<UsageRecord> = old.map(|(_, used)| used.clone()).collect();
            for used in &old {
                tables.usage.remove(&(used.to, used.attempt));
                for sum in usage::by_day(used) {
                    let key = (sum.day, sum.workspace.clone(), sum.owner);
                    match tables.usage_sums.get_mut(&key) {
                        Some(before) => before.total.add(&sum.total),
                        None => drop(tables.usage_sums.insert(key, sum)),
                    }
                }
            }
            old.len()
        }))
    }
}
