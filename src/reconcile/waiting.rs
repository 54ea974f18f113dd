//! What a run waits for beside its place in the queue: its time after a failure, the success of other jobs, and
//! (`room`) that its workspace may keep more.

use super::Reconciler;
use super::world::Job;
use crate::ids::{JobKey, Timestamp};
use crate::spec::DesiredState;
use crate::status::Verdict;
use crate::store::Store;

impl<S: Store> Reconciler<S> {
    /// When a tick is to see to the job again. What waits to be prepared is due also when its time has come already, but not while
    /// there is little room: then it is seen to when there is more.
    fn put_off_until(&self, key: &JobKey) -> Option<Timestamp> {
        let run = self.jobs.get(key).and_then(Job::open_run)?;
        if run.awaits_preparation() {
            let due = run.next_try().map(|(_, due)| due);
            return due.filter(|due| *due > self.now || !self.is_low_on_disk());
        }
        run.backs_off_until(self.now)
    }

    pub(super) fn wait_for_its_time(&mut self, key: &JobKey) {
        match self.put_off_until(key) {
            Some(until) => drop(self.backing_off.insert(key.clone(), until)),
            None => drop(self.backing_off.remove(key)),
        }
    }

    /// Looks whether the jobs that come before this one have succeeded.
    pub(super) fn await_others(&mut self, key: &JobKey) {
        let unmet =
            self.jobs.get(key).and_then(Job::open_run).filter(|run| run.record.attempts.is_empty()).and_then(|run| {
                let keys = run.spec.after.iter().map(|job| JobKey::new(key.workspace.clone(), job.clone()));
                keys.into_iter().find_map(|other| Some((other.clone(), self.why_not_succeeded(&other)?)))
            });
        // The reason of each is another one from now on.
        let broken = self.ring_of(key);
        let before = self.jobs.get(key).and_then(|job| job.run.as_ref()).and_then(|run| run.awaited.clone());
        if let Some((other, _)) = before {
            self.no_longer_awaits(key, &other);
        }
        if let Some((other, _)) = &unmet {
            self.awaiting.entry(other.clone()).or_default().insert(key.clone());
        }
        if let Some(run) = self.jobs.get_mut(key).and_then(|job| job.run.as_mut()) {
            run.awaited = unmet;
        }
        let made = self.ring_of(key);
        self.dirty.extend(broken.into_iter().chain(made));
    }

    /// Jobs that wait for each other, from this one on; none where the last of them does not wait for the first.
    fn ring_of(&self, key: &JobKey) -> Vec<JobKey> {
        let mut ring = vec![key.clone()];
        while let Some(next) = ring.last().and_then(|last| self.awaited_by(last)) {
            if next == key {
                return ring;
            }
            if ring.contains(next) {
                break;
            }
            ring.push(next.clone());
        }
        Vec::new()
    }

    fn awaited_by(&self, key: &JobKey) -> Option<&JobKey> {
        let run = self.jobs.get(key)?.open_run()?;
        run.awaited.as_ref().map(|(other, _)| other)
    }

    /// Why a job waits that comes after others.
    pub(super) fn why_awaiting(&self, key: &JobKey) -> Option<String> {
        let (_, why) = self.jobs.get(key)?.open_run()?.awaited.as_ref()?;
        let ring = self.ring_of(key);
        if ring.is_empty() {
            return Some(why.clone());
        }
        let way: Vec<String> = ring.iter().chain(ring.first()).map(ToString::to_string).collect();
        Some(format!("waits for itself, by `after`: {}; take one of them out", way.join(", then ")))
    }

    pub(super) fn no_longer_awaits(&mut self, key: &JobKey, other: &JobKey) {
        if let Some(waiting) = self.awaiting.get_mut(other) {
            waiting.remove(key);
            if waiting.is_empty() {
                self.awaiting.remove(other);
            }
        }
    }

    pub(super) fn why_not_succeeded(&self, key: &JobKey) -> Option<String> {
        let jobs: Vec<JobKey> = self.jobs_of_sweep(key).collect();
        if !jobs.is_empty() {
            return jobs.iter().find_map(|job| self.why_not_succeeded(job));
        }
        let Some(job) = self.jobs.get(key).filter(|job| !job.record.removed) else {
            return Some(format!("waits for job {key}, which does not exist yet"));
        };
        let end = job.run.as_ref().and_then(|run| run.record.ended.as_ref());
        let invalid = job.record.invalid.first().map(|why| format!("its file is invalid: {why}"));
        match end.map(|end| &end.verdict) {
            Some(Verdict::Succeeded { .. }) => None,
            Some(verdict) => {
                let helps = invalid.unwrap_or_else(|| format!("`trainyard rerun {key}` runs it again"));
                Some(format!("waits for job {key} to succeed; its newest run did not: {verdict}; {helps}"))
            }
            None => {
                let held = "it is held by state = \"held\" in its job file".to_owned();
                let is_at_work = job.open_run().is_some_and(|run| run.live_attempt().is_some());
                let is_held = job.desired() == DesiredState::Held && !is_at_work;
                let why = invalid.or(is_held.then_some(held));
                let why = why.map(|why| format!("; {why}")).unwrap_or_default();
                Some(format!("waits for job {key} to succeed{why}"))
            }
        }
    }

    /// Those that wait for a job, or for the sweep that it is of, look at it again.
    pub(super) fn tell_those_awaiting(&mut self, key: &JobKey) {
        let sweep = self.jobs.get(key).and_then(|job| job.sweep(key));
        self.tell_those_awaiting_either(key, sweep);
    }

    pub(super) fn tell_those_awaiting_either(&mut self, key: &JobKey, sweep: Option<JobKey>) {
        let awaiting = [Some(key.clone()), sweep].into_iter().flatten().filter_map(|key| self.awaiting.remove(&key));
        for other in awaiting.flatten().collect::<Vec<_>>() {
            self.settle(&other);
        }
    }
}
