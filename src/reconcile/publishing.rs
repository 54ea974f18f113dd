//! What a round has changed: into the store in one commit, then to be published.

use std::collections::{BTreeMap, BTreeSet};

use super::world::Job;
use super::{Reconciler, Refusal, Round, Work};
use crate::ids::{JobKey, Timestamp};
use crate::report::{Change, Gone, JobReport, Publication};
use crate::store::record::EventRecord;
use crate::store::{Batch, Store, StoreError};

/// While what was decided cannot be recorded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unrecorded {
    /// From the last try to the next, if nothing happens before.
    pause_ms: u64,
}

/// Nobody tells when a disk has room again.
const RETRY_MS: u64 = 50;
const RETRY_MAX_MS: u64 = 2000;
/// So many events may wait to be recorded.
const UNRECORDED_MAX: usize = 10_000;

impl<S: Store> Reconciler<S> {
    /// What it could not record stays, and goes with the next one.
    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        let batch = self.batch();
        if !batch.is_empty() {
            self.store.commit(&batch)?;
        }
        self.counters_changed = false;
        self.usage.clear();
        self.retired.clear();
        Ok(())
    }

    fn batch(&self) -> Batch {
        let mut batch = Batch {
            counters: self.counters_changed.then(|| self.counters.clone()),
            events: self.events.clone(),
            usage: self.usage.clone(),
            forgotten: self.removed.keys().cloned().collect(),
            ..Batch::default()
        };
        for (key, run) in &self.retired {
            batch.runs.insert((key.clone(), run.number), run.clone());
        }
        for key in &self.dirty {
            let Some(job) = self.jobs.get(key) else { continue };
            batch.jobs.insert(key.clone(), job.record.clone());
            if let Some(run) = &job.run {
                batch.runs.insert((key.clone(), run.record.number), run.record.clone());
            }
        }
        batch
    }

    /// The disk is full: nothing of what was decided is done, told or published before it is recorded, which is tried again.
    pub(super) fn put_off(&mut self, error: &StoreError) -> Round {
        if self.unrecorded.is_none() {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            tracing::error!(%error, cause, "nothing is begun, stopped or published until there is room; it is tried again by itself");
        }
        let pause_ms = self.unrecorded.map_or(RETRY_MS, |before| (before.pause_ms * 2).min(RETRY_MAX_MS));
        self.unrecorded = Some(Unrecorded { pause_ms });
        self.look_once();
        self.answers.drain(..).for_each(|answer| answer(Some(Refusal::NoRoom { is_kept: true })));
        Round { wake_at: Some(Timestamp(self.now.0.saturating_add(pause_ms))), ..Round::default() }
    }

    /// However often a task gives a sign before works are handed out again.
    fn look_once(&mut self) {
        let mut looks = BTreeSet::new();
        self.works.retain(|work| match work {
            Work::Look { task, after } => looks.insert((*task, *after)),
            _ => true,
        });
    }

    pub(super) fn recorded(&mut self) {
        if self.unrecorded.take().is_some() {
            tracing::info!("there is room again: what was decided meanwhile is recorded and done");
        }
    }

    /// So much waits to be recorded that nothing more is taken.
    pub(super) fn takes_no_more(&self) -> bool {
        self.unrecorded.is_some() && self.events.len() >= UNRECORDED_MAX
    }

    pub(super) fn publications(&mut self) -> Vec<(JobKey, Change)> {
        let mut events: BTreeMap<JobKey, Vec<EventRecord>> = BTreeMap::new();
        for (key, event) in std::mem::take(&mut self.events) {
            self.happenings.add(&key, &event);
            events.entry(key).or_default().push(event);
        }
        let mut retired: BTreeMap<JobKey, Vec<JobReport>> = BTreeMap::new();
        for (key, report) in std::mem::take(&mut self.last_words) {
            retired.entry(key).or_default().push(report);
        }
        // Removals first: a job of the same name may have come since.
        let removed = std::mem::take(&mut self.removed).into_iter();
        let mut out: Vec<_> = removed.map(|(key, gone)| (key, Change::Removed(gone))).collect();
        let mut changed = std::mem::take(&mut self.dirty);
        changed.append(&mut self.shown);
        out.extend(self.as_one_list(|this| {
            let publish = |key: JobKey| {
                let events = events.remove(&key).unwrap_or_default();
                let retired = retired.remove(&key).unwrap_or_default();
                let publication = this.publication(&key, events, retired)?;
                Some((key, Change::Published(Box::new(publication))))
            };
            changed.into_iter().filter_map(publish).collect::<Vec<_>>()
        }));
        out
    }

    fn publication(&self, key: &JobKey, events: Vec<EventRecord>, retired: Vec<JobReport>) -> Option<Publication> {
        let job = self.jobs.get(key)?;
        let source = job.record.source.as_ref();
        Some(Publication {
            report: self.report(key)?,
            source: source.map(|source| source.text.clone()),
            owner: job.record.owner().map_or((0, 0), |owner| (owner.uid, owner.gid)),
            events,
            first_event: job.record.first_event,
            retired,
            awaited: job.awaited_datasets(),
        })
    }

    /// Every job as it is to be published, with all of its events; for the start.
    pub fn all_publications(&self) -> Result<Vec<(JobKey, Change)>, StoreError> {
        let last_aside = self.counters.order;
        let publish = |(key, job): (&JobKey, &Job)| {
            if job.record.removed {
                return Ok(Some((key.clone(), Change::Removed(Gone { runs: job.record.own_runs(), last_aside }))));
            }
            let events = self.store.events(key, job.record.first_event, usize::MAX)?;
            let publication = self.publication(key, events, Vec::new());
            Ok(publication.map(|publication| (key.clone(), Change::Published(Box::new(publication)))))
        };
        self.jobs.iter().filter_map(|entry| publish(entry).transpose()).collect()
    }
}
