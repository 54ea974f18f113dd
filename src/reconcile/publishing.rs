//! What a round has changed: into the store in one commit, then to be published.

use std::collections::BTreeMap;

use super::Reconciler;
use super::world::Job;
use crate::ids::JobKey;
use crate::report::{Change, JobReport, Publication};
use crate::store::record::EventRecord;
use crate::store::{Batch, Store, StoreError};

impl<S: Store> Reconciler<S> {
    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        let mut batch = Batch {
            counters: std::mem::take(&mut self.counters_changed).then(|| self.counters.clone()),
            events: self.events.clone(),
            usage: std::mem::take(&mut self.usage),
            forgotten: self.removed.keys().cloned().collect(),
            ..Batch::default()
        };
        for (key, run) in self.retired.drain(..) {
            batch.runs.insert((key, run.number), run);
        }
        for key in &self.dirty {
            let Some(job) = self.jobs.get(key) else { continue };
            batch.jobs.insert(key.clone(), job.record.clone());
            if let Some(run) = &job.run {
                batch.runs.insert((key.clone(), run.record.number), run.record.clone());
            }
        }
        if batch.is_empty() { Ok(()) } else { self.store.commit(&batch) }
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
        let mut out: Vec<_> = removed.map(|(key, last_run)| (key, Change::Removed { last_run })).collect();
        let mut changed = std::mem::take(&mut self.dirty);
        changed.append(&mut self.shown);
        for key in changed {
            let events = events.remove(&key).unwrap_or_default();
            let retired = retired.remove(&key).unwrap_or_default();
            if let Some(publication) = self.publication(&key, events, retired) {
                out.push((key, Change::Published(Box::new(publication))));
            }
        }
        out
    }

    fn publication(&self, key: &JobKey, events: Vec<EventRecord>, retired: Vec<JobReport>) -> Option<Publication> {
        let job = self.jobs.get(key)?;
        let source = job.record.source.as_ref();
        Some(Publication {
            report: self.report(key)?,
            source: source.map(|source| source.text.clone()),
            owner: source.map_or((0, 0), |source| (source.owner.uid, source.owner.gid)),
            events,
            first_event: job.record.first_event,
            retired,
        })
    }

    /// Every job as it is to be published, with all of its events; for the start.
    pub fn all_publications(&self) -> Result<Vec<(JobKey, Change)>, StoreError> {
        let publish = |(key, job): (&JobKey, &Job)| {
            if job.record.removed {
                return Ok(Some((key.clone(), Change::Removed { last_run: job.record.last_run })));
            }
            let events = self.store.events(key, job.record.first_event)?;
            let publication = self.publication(key, events, Vec::new());
            Ok(publication.map(|publication| (key.clone(), Change::Published(Box::new(publication)))))
        };
        self.jobs.iter().filter_map(|entry| publish(entry).transpose()).collect()
    }
}
