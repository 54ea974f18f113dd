//! Which run a job has: what its file and people want of it, brought in line with its record.

use super::world::Job;
use super::{Reconciler, world};
use crate::ids::JobKey;
use crate::plan;
use crate::spec::DesiredState;
use crate::status::{StopCause, StopHow, Verdict};
use crate::store::Store;
use crate::store::record::{RunEnd, RunRecord, TaskPhase, TaskRecord};

impl<S: Store> Reconciler<S> {
    /// Asks for the newest run to be stopped.
    pub(super) fn want_stop(&mut self, key: &JobKey, cause: StopCause) {
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        if run.record.stop.is_some() {
            return;
        }
        run.record.stop = Some(cause);
        self.dirty.insert(key.clone());
        self.settle(key);
    }

    /// What is being stopped of the newest run, or will be, gets no grace, and none any longer.
    pub(super) fn stop_at_once(&mut self, key: &JobKey) {
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        run.record.stop_how = StopHow::AtOnce;
        self.dirty.insert(key.clone());
        let stopping = self.attempt_mut(key).and_then(|attempt| attempt.stopping.clone());
        if let Some(cause) = stopping {
            self.stop_open_tasks(key, &cause);
        }
    }

    pub(super) fn stop_how(&self, key: &JobKey) -> StopHow {
        self.jobs.get(key).and_then(Job::open_run).map_or(StopHow::WithGrace, |run| run.record.stop_how)
    }

    /// What is only kept to be looked into goes when somebody stops the job or wants it to run again.
    pub(super) fn let_kept_go(&mut self, key: &JobKey) {
        let Some(cause) = self.jobs.get(key).and_then(Job::no_longer_kept) else { return };
        let Some(attempt) = self.attempt_mut(key) else { return };
        let is_kept = |task: &TaskRecord| matches!(task.phase, TaskPhase::Kept { .. });
        if attempt.verdict.is_some() && attempt.tasks.iter().any(is_kept) {
            self.stop_open_tasks(key, &cause);
        }
    }

    /// Brings a job's place in the queue, a stop before its start, and its next run in line with its record.
    pub(super) fn settle(&mut self, key: &JobKey) {
        self.dirty.insert(key.clone());
        self.let_kept_go(key);
        self.stop_before_start(key);
        self.replace_outdated(key);
        self.end_refused(key);
        self.begin_run(key);
        self.await_others(key);
        self.await_room(key);
        self.wait_for_its_time(key);
        self.queue_in(key);
        self.set_aside(key);
    }

    pub(super) fn stop_before_start(&mut self, key: &JobKey) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(cause) = job.wanted_stop() else { return };
        let Some(run) = job.open_run_mut().filter(|run| run.live_attempt().is_none()) else { return };
        let verdict = Verdict::Stopped { cause };
        let message = format!("{verdict}, before it started");
        run.record.ended = Some(RunEnd { verdict, at: now });
        self.give_up(key);
        // An earlier attempt may have written something.
        self.deliver(key);
        self.note(key, message);
        self.tell_those_awaiting(key);
    }

    /// A run that has never started makes way for the newer version of its file, and one that is held for another that is asked for.
    pub(super) fn replace_outdated(&mut self, key: &JobKey) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_outdated = job.is_outdated();
        let is_replaced = job.desired() == DesiredState::Held && job.follows().is_some();
        if !(is_outdated || is_replaced) {
            return;
        }
        let Some(run) = job.open_run_mut().filter(|run| run.record.attempts.is_empty()) else { return };
        run.record.ended = Some(RunEnd { verdict: Verdict::Stopped { cause: StopCause::Replaced }, at: now });
        self.give_up(key);
        self.deliver(key);
        let by = if is_outdated { "a newer version of its file" } else { "a new run that was asked for" };
        self.note(key, format!("replaced by {by} before it started"));
    }

    /// A run that waits, of a file that this version refuses, would start as something else: it is over.
    fn end_refused(&mut self, key: &JobKey) {
        let now = self.now;
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        let Some(refused) = run.refused.clone().filter(|_| run.live_attempt().is_none()) else { return };
        let verdict = Verdict::Failed { reason: refused_now(&refused) };
        run.record.ended = Some(RunEnd { verdict: verdict.clone(), at: now });
        self.deliver(key);
        self.note(key, verdict.to_string());
        self.tell_those_awaiting(key);
    }

    pub(super) fn begin_run(&mut self, key: &JobKey) {
        if self.jobs.get(key).is_none_or(|job| job.next_run().is_none()) || !self.may_wait(key) {
            return;
        }
        let order = self.counters.order + 1;
        let now = self.now;
        let last_word = self.jobs.get(key).filter(|job| job.run.is_some()).and_then(|_| self.report(key));
        let Some((source, spec)) = self.jobs.get(key).and_then(Job::next_run) else { return };
        let aside = self.take_aside(key, &source);
        let cards_unknown = !self.are_known() && !plan::wishes(&spec).is_empty();
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.record.last_run += 1;
        job.record.rerun_wanted = false;
        job.record.rerun_number = spec.rerun;
        job.record.not_begun = None;
        let number = job.record.last_run;
        let prepared = !spec.needs_preparation();
        let record = RunRecord { aside, prepared, cards_unknown, ..RunRecord::new(number, now, order, source) };
        let before = job.run.replace(world::Run::new(record, spec));
        // Its end may be as new as this begin.
        self.retired.extend(before.map(|run| (key.clone(), run.record)));
        self.last_words.extend(last_word.map(|report| (key.clone(), report)));
        self.counters.order = order;
        self.counters_changed = true;
        self.note(key, format!("run {number} is waiting to start"));
        self.tell_those_awaiting(key);
        if !prepared {
            self.prepare(key);
        }
    }
}

/// Why nothing is begun of a file that an earlier version has accepted.
pub(super) fn refused_now(refused: &str) -> String {
    format!("this version of Trainyard refuses its job file: {refused}; correct the file, and a new run begins")
}
