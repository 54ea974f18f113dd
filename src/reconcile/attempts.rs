//! What becomes of an attempt: started, decided, cleaned up after, over or made again; and of the output that it leaves.

use std::time::Duration;

use super::runs::refused_now;
use super::world;
use super::world::Job;
use super::{Reconciler, Work};
use crate::engine::{Delivery, EngineError, Launch, Release};
use crate::gpu::deck::Piece;
use crate::ids::{AttemptId, JobKey};
use crate::spec::JobSpec;
use crate::status::{StopCause, Verdict};
use crate::store::Store;
use crate::store::record::{AddressBlock, AttemptRecord, RunEnd, TaskPhase, TaskRecord};

impl<S: Store> Reconciler<S> {
    pub(super) fn decide(&mut self, key: &JobKey, verdict: Verdict, cause: StopCause) {
        let Some(attempt) = self.attempt_mut(key) else { return };
        attempt.stopping = Some(cause.clone());
        attempt.verdict = Some(verdict.clone());
        let open = attempt.tasks.iter().filter(|task| task.phase.outcome().is_none()).count();
        self.stop_open_tasks(key, &cause);
        if open > 0 {
            self.note(key, format!("stopping {open} task(s): {verdict}"));
        }
    }

    pub(super) fn tell_overrun(&mut self, key: &JobKey, expected: Duration) {
        let Some(attempt) = self.attempt_mut(key) else { return };
        attempt.overrun_told = true;
        let expected = crate::ids::format_duration(expected);
        self.alarm(key, &format!("it takes longer than its expected_duration of {expected}"));
    }

    pub(super) fn stop_open_tasks(&mut self, key: &JobKey, cause: &StopCause) {
        let how = self.stop_how(key);
        let Some(attempt) = self.attempt_mut(key) else { return };
        // What is kept to be looked into stays when the others are stopped for it; if all is well it is of no interest.
        let spares_kept = *cause == StopCause::Decided && !matches!(attempt.verdict, Some(Verdict::Succeeded { .. }));
        let wanted =
            |task: &TaskRecord| if spares_kept { task.phase.outcome().is_none() } else { task.phase.end().is_none() };
        let open = (0..).zip(&attempt.tasks).filter(|(_, task)| wanted(task));
        let stop = |ordinal: u32| Work::Stop { task: attempt.task_id(ordinal), cause: cause.clone(), how };
        let works: Vec<Work> = open.map(|(ordinal, _)| stop(ordinal)).collect();
        self.works.extend(works);
    }

    pub(super) fn release(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_stopped = job.wanted_stop().is_some();
        let on_gpu_failure = job.on_gpu_failure();
        let now_says = job.record.source.clone();
        let Some(run) = job.open_run_mut() else { return };
        let Some(attempt) = run.live_attempt() else { return };
        let Some(verdict) = attempt.verdict.clone() else { return };
        let source = &run.record.source;
        let release = Release {
            attempt: attempt.id,
            identity: run.identity(key, attempt.number),
            spec: JobSpec::clone(&run.spec),
            text: source.text.clone(),
            read_by: source.shown_with(now_says.as_ref()),
            started: attempt.created,
            ended: attempt.tasks.iter().filter_map(|task| Some(task.phase.end()?.at)).max().unwrap_or(self.now),
            is_last: is_stopped || !run.is_tried_again(attempt, &verdict, on_gpu_failure),
            verdict,
            owner: source.owner,
            gpus: attempt.tasks.iter().flat_map(|task| &task.gpus).map(|lease| lease.device().clone()).collect(),
        };
        run.releasing = true;
        self.works.push(Work::Release { key: key.clone(), release });
    }

    pub(super) fn retry(&mut self, key: &JobKey, reason: &str) {
        let now = self.now;
        let Some(attempt) = self.attempt_mut(key) else { return };
        let number = attempt.number;
        attempt.ended = Some(now);
        self.conclude_attempt(key);
        let left = self.jobs.get(key).and_then(Job::open_run).map(world::Run::told_left).unwrap_or_default();
        self.note(key, format!("attempt {number} failed: {reason}; {left}"));
        self.settle(key);
    }

    pub(super) fn end(&mut self, key: &JobKey, verdict: Verdict) {
        let now = self.now;
        if let Some(attempt) = self.attempt_mut(key) {
            attempt.ended = Some(now);
        }
        self.conclude_attempt(key);
        if let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) {
            run.record.ended = Some(RunEnd { verdict: verdict.clone(), at: now });
        }
        self.deliver(key);
        self.note(key, verdict.to_string());
        self.settle(key);
        self.tell_those_awaiting(key);
    }

    pub(super) fn conclude_attempt(&mut self, key: &JobKey) {
        if self.live.remove(key) {
            self.account(key);
        }
        if let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) {
            run.releasing = false;
            if let Some(attempt) = run.record.attempts.last() {
                self.attempts.remove(&attempt.id);
            }
        }
    }

    pub(super) fn start(&mut self, key: &JobKey, block: Option<AddressBlock>, pieces: Option<Vec<Vec<Piece>>>) {
        let id = AttemptId(self.counters.attempt + 1);
        let now = self.now;
        let Some(spec) = self.jobs.get(key).and_then(Job::open_run).map(|run| run.spec.clone()) else { return };
        let Some(gpus) = self.lease(&spec, pieces) else {
            return self.hold_back(key, "waits for GPUs that were just lost");
        };
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        let tasks = spec.tasks().zip(gpus).map(|((role, index), gpus)| TaskRecord {
            role: role.name.clone(),
            index,
            phase: TaskPhase::Launching,
            again: 0,
            over_share: None,
            gpus,
        });
        let number = u32::try_from(run.record.attempts.len()).unwrap_or(u32::MAX).saturating_add(1);
        let attempt = AttemptRecord { block, ..AttemptRecord::new(id, number, now, tasks.collect()) };
        let (number, count) = (attempt.number, attempt.tasks.len());
        let is_retold = run.held_back_told.is_some();
        run.record.attempts.push(attempt);
        let ordinals = (0..u32::try_from(count).unwrap_or(u32::MAX)).collect();
        self.last_block = block.or(self.last_block);
        self.counters.attempt = id.0;
        self.counters_changed = true;
        self.leaves_queue(key);
        self.live.insert(key.clone());
        self.attempts.insert(id, key.clone());
        self.launch(key, ordinals);
        // One that was held back tries again and again: its owner knows.
        if !is_retold {
            self.note(key, format!("attempt {number} starts {count} task(s)"));
        }
        self.dirty.insert(key.clone());
    }

    /// Starts the tasks of these places.
    pub(super) fn launch(&mut self, key: &JobKey, ordinals: Vec<u32>) {
        let Some(run) = self.jobs.get(key).and_then(Job::open_run) else { return };
        let Some(attempt) = run.live_attempt() else { return };
        if let Some(refused) = &run.refused {
            let error = EngineError(refused_now(refused));
            let failures = ordinals.into_iter().map(|ordinal| (attempt.task_id(ordinal), error.clone())).collect();
            return self.launched(attempt.id, failures);
        }
        self.works.push(Work::Launch(Launch {
            attempt: attempt.id,
            identity: run.identity(key, attempt.number),
            owner: run.record.source.owner,
            spec: JobSpec::clone(&run.spec),
            block: attempt.block,
            text: run.record.source.text.clone(),
            stop_grace: run.spec.stop_grace.unwrap_or(self.settings.stop_grace),
            gpus: self.devices_now(attempt),
            near: attempt.tasks.iter().map(|task| self.near(&task.gpus)).collect(),
            tasks: ordinals.into_iter().map(|ordinal| attempt.task_id(ordinal)).collect(),
        }));
    }

    /// The output of a run that has ended goes on its way, if its job file wants it.
    pub(super) fn deliver(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(run) = &job.run else { return };
        if let Some(remote) = run.spec.copied_out() {
            let number = run.record.number;
            job.delivering.insert(number, format!("the output of run {number} is to be copied to {remote}"));
            self.works.push(Work::Deliver { key: key.clone(), run: number, how: Delivery::Over });
        }
    }

    pub(super) fn delivering(&mut self, key: &JobKey, run: u32, state: Option<String>, note: Option<String>) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        match state {
            Some(state) => drop(job.delivering.insert(run, state)),
            None => drop(job.delivering.remove(&run)),
        }
        self.shown.insert(key.clone());
        if let Some(note) = note {
            self.note(key, note);
        }
    }

    pub(super) fn released(&mut self, key: &JobKey, attempt: AttemptId, result: Result<(), EngineError>) {
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        run.releasing = false;
        if let Err(error) = result {
            tracing::warn!(job = %key, %attempt, %error, "cannot clean up after an attempt, will try again");
            let told_before = std::mem::replace(&mut run.release_told, true);
            run.release_failed = true;
            if !told_before {
                self.note(key, format!("cannot clean up yet, tries again every second: {error}"));
            }
            return self.retry_soon();
        }
        if let Some(record) = run.record.attempts.last_mut().filter(|record| record.id == attempt) {
            record.released = true;
            let record = record.clone();
            self.give_back(&record);
        }
        self.dirty.insert(key.clone());
    }
}
