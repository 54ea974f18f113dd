//! What becomes of tasks: started, put back, running, kept, ended.

use super::retries::kind_of;
use super::world::Job;
use super::{Look, Reconciler, Work};
use crate::engine::EngineError;
use crate::ids::{AttemptId, JobKey, TaskId, Timestamp};
use crate::rundir::{Found, KeptRecord, Loss, MACHINE_RESTARTED};
use crate::status::{EndRecord, StopCause, StopHow, TaskEnd, Verdict};
use crate::store::Store;
use crate::store::record::{TaskPhase, TaskRecord};

/// How soon what failed is tried again, ms.
const RETRY_MS: u64 = 1000;
/// How soon it is tried again to have what a stranger on the machine has, ms.
const HELD_BACK_MS: u64 = 5000;

impl<S: Store> Reconciler<S> {
    /// Nothing was started: the run waits on, as if its turn had not come, and tries again.
    pub(super) fn put_back(&mut self, id: AttemptId, tasks: &[TaskId], reason: String) {
        let Some(key) = self.attempts.get(&id).cloned() else { return };
        let Some(attempt) = self.attempt_mut(&key) else { return };
        if attempt.stopping.is_some() {
            let error = EngineError(reason);
            return self.launched(id, tasks.iter().map(|task| (*task, error.clone())).collect());
        }
        let is_whole = attempt.tasks.len() == tasks.len();
        if !is_whole || attempt.tasks.iter().any(|task| task.phase != TaskPhase::Launching) {
            // After a restart tasks are started one by one: this one alone tries again.
            self.look_again.extend(tasks.iter().map(|task| (*task, Look::Restart)));
            return self.retry_soon();
        }
        self.live.remove(&key);
        self.attempts.remove(&id);
        if let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) {
            run.record.attempts.pop();
            let is_new = run.held_back_told.as_ref() != Some(&reason);
            run.held_back = Some(reason.clone());
            run.held_back_told = Some(reason.clone());
            if is_new {
                self.note(&key, reason);
            }
        }
        self.wait_a_while(&key);
    }

    /// Its turn had come, but something is lacking that the plan counted on: it waits on and tries again.
    pub(super) fn hold_back(&mut self, key: &JobKey, why: &str) {
        if let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) {
            run.held_back = Some(why.to_owned());
        }
        self.wait_a_while(key);
    }

    pub(super) fn retry_what_failed(&mut self) {
        // Also when the clock was set back: nothing waits longer than it was meant to.
        let due = |at: Timestamp| self.now >= at || at.0 > self.now.0 + HELD_BACK_MS;
        if !self.retry_at.is_some_and(due) {
            return;
        }
        self.retry_at = None;
        for (task, after) in std::mem::take(&mut self.look_again) {
            self.works.push(Work::Look { task, after });
        }
        for (task, cause) in std::mem::take(&mut self.stop_again) {
            let how = self.attempts.get(&task.attempt).map_or(StopHow::WithGrace, |key| self.stop_how(key));
            self.works.push(Work::Stop { task, cause, how });
        }
        for key in std::mem::take(&mut self.held_back) {
            if let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) {
                run.held_back = None;
            }
            self.settle(&key);
        }
        for key in self.live.clone() {
            if let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) {
                run.release_failed = false;
            }
        }
    }

    pub(super) fn retry_soon(&mut self) {
        self.retry_within(RETRY_MS);
    }

    pub(super) fn retry_within(&mut self, ms: u64) {
        let at = Timestamp(self.now.0 + ms);
        self.retry_at = Some(self.retry_at.map_or(at, |before| before.min(at)));
    }

    fn wait_a_while(&mut self, key: &JobKey) {
        self.held_back.insert(key.clone());
        self.retry_within(HELD_BACK_MS);
        self.settle(key);
    }

    pub(super) fn launched(&mut self, attempt: AttemptId, failures: Vec<(TaskId, EngineError)>) {
        for (task, error) in failures {
            let end = TaskEnd::FailedToStart { reason: error.to_string() };
            let end = EndRecord { end, at: self.now, memory_peak: None, note: None };
            self.task_ended(task, end);
        }
        // A stop that came while the tasks were being started may not have reached all of them.
        let Some(key) = self.attempts.get(&attempt).cloned() else { return };
        let stopping = self.attempt_mut(&key).and_then(|attempt| attempt.stopping.clone());
        if let Some(cause) = stopping {
            self.stop_open_tasks(&key, &cause);
        }
    }

    /// Something that its owner should know of an attempt that was started.
    pub(super) fn remark(&mut self, attempt: AttemptId, remark: String) {
        if let Some(key) = self.attempts.get(&attempt).cloned() {
            self.note(&key, remark);
        }
    }

    pub(super) fn looked(&mut self, task: TaskId, after: Look, result: Result<Found, EngineError>) {
        if !self.is_current(task) {
            return;
        }
        let end = |end| EndRecord { end, at: self.now, memory_peak: None, note: None };
        match result {
            Err(error) => {
                tracing::warn!(%task, %error, "cannot look at a task, will try again");
                self.look_again.insert(task, after);
                self.retry_soon();
            }
            Ok(Found::Alive { running: false, .. }) => {}
            Ok(Found::Alive { running: true, .. }) => self.task_runs(task),
            Ok(Found::Kept { kept, .. }) => self.task_kept(task, kept),
            Ok(Found::Ended(record)) => self.task_ended(task, record),
            Ok(Found::Lost(loss)) => {
                let reason = match loss {
                    Loss::MachineRestarted => MACHINE_RESTARTED,
                    Loss::Shim => "its shim is gone and left no word; it was killed, or the machine went down",
                };
                self.task_ended(task, end(TaskEnd::Lost { reason: reason.to_owned() }));
            }
            Ok(Found::NeverStarted) => self.never_started(task, after),
        }
        self.stop_if_stopping(task);
    }

    /// Whether it has not been started again since.
    fn is_current(&self, task: TaskId) -> bool {
        self.task_attempt(task).is_none_or(|attempt| attempt.task_id(task.ordinal) == task)
    }

    /// A stop that was recorded may not have reached the task: before a restart, or while its shim was only beginning.
    pub(super) fn stop_if_stopping(&mut self, task: TaskId) {
        let stopping = self.task_attempt(task).and_then(|attempt| {
            let open = attempt.tasks.get(task.ordinal as usize).is_some_and(|task| task.phase.outcome().is_none());
            attempt.stopping.clone().filter(|_| open)
        });
        if let (Some(cause), Some(key)) = (stopping, self.attempts.get(&task.attempt)) {
            self.works.push(Work::Stop { task, cause, how: self.stop_how(key) });
        }
    }

    fn never_started(&mut self, task: TaskId, after: Look) {
        let Some(key) = self.attempts.get(&task.attempt).cloned() else { return };
        let stopping = self.task_attempt(task).and_then(|attempt| attempt.stopping.clone());
        let end = match (stopping, after) {
            (Some(cause), _) => cause.judge(None),
            (None, Look::Restart) => return self.launch(&key, vec![task.ordinal]),
            (None, Look::Sign) => TaskEnd::FailedToStart { reason: "its shim ended before the command ran".to_owned() },
        };
        self.task_ended(task, EndRecord { end, at: self.now, memory_peak: None, note: None });
    }

    fn task_runs(&mut self, task: TaskId) {
        let now = self.now;
        let Some(key) = self.attempts.get(&task.attempt).cloned() else { return };
        let Some(attempt) = self.attempt_mut(&key) else { return };
        let Some(record) = attempt.tasks.get_mut(task.ordinal as usize) else { return };
        if record.phase != TaskPhase::Launching {
            return;
        }
        record.phase = TaskPhase::Running { since: now };
        self.note_all_run(&key);
    }

    /// It has failed, and its container stays: told at once, and stopped when somebody stops the job.
    fn task_kept(&mut self, task: TaskId, kept: KeptRecord) {
        let Some(key) = self.attempts.get(&task.attempt).cloned() else { return };
        let Some(attempt) = self.attempt_mut(&key) else { return };
        let Some(record) = attempt.tasks.get_mut(task.ordinal as usize) else { return };
        if record.phase.outcome().is_some() {
            return self.let_kept_go(&key);
        }
        let message = format!("{} {}; its container is kept until {}", record.name(), kept.end, kept.until);
        record.phase = TaskPhase::Kept { end: kept.end, until: kept.until };
        if matches!(attempt.verdict, Some(Verdict::Succeeded { .. })) {
            self.works.push(Work::Stop { task, cause: StopCause::Decided, how: StopHow::WithGrace });
        }
        self.note(&key, message);
        self.note_all_run(&key);
    }

    /// From the moment at which every task has begun, whether or not it has ended since, the attempt counts as running.
    fn note_all_run(&mut self, key: &JobKey) {
        let now = self.now;
        let Some(attempt) = self.attempt_mut(key) else { return };
        if attempt.running_since.is_some() || attempt.tasks.iter().any(|task| task.phase == TaskPhase::Launching) {
            return;
        }
        let has_failed = |task: &&TaskRecord| matches!(task.phase.end(), Some(end) if end.end.is_failed_start());
        match (attempt.tasks.iter().filter(has_failed).count(), attempt.tasks.len()) {
            (failed, all) if failed == all => {}
            (0, _) => self.all_run(key, now, "all tasks run"),
            _ => self.all_run(key, now, "all tasks run that could be started"),
        }
    }

    fn all_run(&mut self, key: &JobKey, now: Timestamp, told: &str) {
        if let Some(attempt) = self.attempt_mut(key) {
            attempt.running_since = Some(now);
            self.note(key, told.to_owned());
        }
    }

    fn task_ended(&mut self, task: TaskId, mut end: EndRecord) {
        if !self.is_current(task) || self.started_again(task, &end) {
            return;
        }
        let Some(key) = self.attempts.get(&task.attempt).cloned() else { return };
        let Some(attempt) = self.attempt_mut(&key) else { return };
        let Some(record) = attempt.tasks.get_mut(task.ordinal as usize) else { return };
        if record.phase.end().is_some() {
            return;
        }
        // On a full disk its shim could not be told why.
        if let (TaskEnd::Stopped { cause: StopCause::ShimSignalled, code }, Some(stopping)) =
            (&end.end, &attempt.stopping)
        {
            end.end = stopping.judge(*code);
        }
        let message = format!("{} {end}", record.name());
        record.phase = TaskPhase::Ended(end);
        self.note(&key, message);
        self.note_all_run(&key);
    }

    /// Starts a task once more if its role forgives failures like this one, as often as that may be. Nothing else of the
    /// attempt is touched.
    fn started_again(&mut self, task: TaskId, end: &EndRecord) -> bool {
        let Some(key) = self.attempts.get(&task.attempt).cloned() else { return false };
        let failed: Vec<_> = self.failures_of(&key).into_keys().collect();
        let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) else { return false };
        let (spec, is_refused) = (run.spec.clone(), run.refused.is_some());
        let Some(attempt) = run.live_attempt_mut() else { return false };
        let is_over = attempt.verdict.is_some() || attempt.stopping.is_some() || self.ending || is_refused;
        let Some(record) = attempt.tasks.get_mut(task.ordinal as usize) else { return false };
        let retries = spec.roles.iter().find(|role| role.name == record.role).map_or(0, |role| role.retries);
        // In its place it would have the same card again.
        let lacks_card =
            record.gpus.iter().any(|lease| failed.contains(&lease.uuid) || failed.contains(lease.device()));
        let is_forgiven = !lacks_card && end.end.is_failure() && spec.retry.on.contains(&kind_of(&end.end));
        if is_over || record.phase.end().is_some() || !is_forgiven || record.again >= retries {
            return false;
        }
        record.again += 1;
        record.over_share = None;
        record.phase = TaskPhase::Launching;
        let message = format!("{} {end}; it is started again ({} of {retries})", record.name(), record.again);
        self.note(&key, message);
        self.launch(&key, vec![task.ordinal]);
        true
    }
}
