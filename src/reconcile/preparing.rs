//! What is made ready before a run is queued: its code, its images, and what stores have.

use super::world::Job;
use super::{Reconciler, Work};
use crate::engine::{EngineError, Prepare, Told};
use crate::ids::JobKey;
use crate::spec::JobSpec;
use crate::status::Verdict;
use crate::store::Store;
use crate::store::record::{RunEnd, Unprepared};
use crate::sys::given_up::GivenUp;

/// What is said of a run that is made ready until more is known.
pub const PREPARES: &str = "its code and image are made ready";

impl<S: Store> Reconciler<S> {
    /// Not while there is little room, which it takes as well; when there is more, what waits for it is gone through.
    pub(super) fn prepare(&mut self, key: &JobKey) {
        if self.is_low_on_disk() {
            return;
        }
        // It is made of that.
        if self.jobs.get(key).is_none_or(Job::is_being_set_aside) {
            return;
        }
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        let given_up = GivenUp::default();
        run.preparation = Some(given_up.clone());
        let prepare = Prepare {
            identity: run.identity(key, 0),
            owner: run.record.source.owner,
            spec: JobSpec::clone(&run.spec),
            text: run.record.source.text.clone(),
            given_up,
            aside: run.record.aside,
        };
        self.works.push(Work::Prepare { key: key.clone(), run: run.record.number, prepare });
    }

    /// What is under way for the run that is over now, or what is set aside for it.
    pub(super) fn give_up(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(run) = job.run.as_mut() else { return };
        let aside = run.record.aside.and_then(|number| job.asides.under_way(number));
        self.works.extend(run.preparation.take().into_iter().chain(aside).map(Work::GiveUp));
    }

    pub(super) fn preparing(&mut self, key: &JobKey, number: u32, told: Told) {
        let run = self.jobs.get_mut(key).and_then(Job::open_run_mut).filter(|run| run.record.number == number);
        let Some(run) = run.filter(|run| !run.record.prepared) else { return };
        match told {
            Told::State(what) => {
                run.preparing = Some(what);
                self.shown.insert(key.clone());
            }
            Told::Noted(what) => self.note(key, what),
        }
    }

    pub(super) fn prepared(&mut self, key: &JobKey, number: u32, result: Result<(), EngineError>) {
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        if run.record.number != number {
            return;
        }
        run.preparation = None;
        match result {
            Ok(()) => run.record.prepared = true,
            Err(error) if run.prepares_again() => {
                let failures = run.record.unprepared.as_ref().map_or(0, |unprepared| unprepared.failures) + 1;
                run.record.unprepared = Some(Unprepared { failures, at: self.now });
                self.note(key, format!("it cannot be made ready, tries again: {error}"));
            }
            Err(error) => {
                let reason = format!("failed to start: {error}");
                run.record.ended = Some(RunEnd { verdict: Verdict::Failed { reason: reason.clone() }, at: self.now });
                self.note(key, reason);
                self.tell_those_awaiting(key);
            }
        }
        self.settle(key);
    }
}
