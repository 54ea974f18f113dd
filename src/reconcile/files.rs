//! What job files do to jobs, and what state a job is in.

use super::world::Job;
use super::{PREPARES, Reconciler};
use crate::ids::JobKey;
use crate::intake::Arrival;
use crate::report::{Facts, Gone, JobLine, JobReport};
use crate::spec::{DesiredState, Diagnostic, JobSpec};
use crate::status::{State, Verdict};
use crate::store::Store;
use crate::store::record::{AttemptRecord, JobRecord, Owner, RunEnd, SourceRecord, TaskPhase};

impl<S: Store> Reconciler<S> {
    pub(super) fn file(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Accepted { key, source, spec } => self.plain_file(&key, source, *spec),
            Arrival::Swept { key, jobs } => self.swept(&key, jobs),
            Arrival::Refused { key, owner, diagnostics } => self.plain_file_refused(&key, owner, diagnostics),
            Arrival::Removed { key } => self.plain_file_removed(&key),
            Arrival::Stray { file, diagnostics } if diagnostics.is_empty() => drop(self.strays.remove(&file)),
            Arrival::Stray { file, diagnostics } => self.stray(file, diagnostics),
        }
    }

    pub(super) fn stray(&mut self, file: String, diagnostics: Vec<Diagnostic>) {
        if self.strays.get(&file) != Some(&diagnostics) {
            let error = diagnostics.first().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%error, "a file in jobs.d is ignored");
            self.strays.insert(file, diagnostics);
        }
    }

    pub(super) fn accepted(&mut self, key: &JobKey, source: SourceRecord, spec: JobSpec) {
        if self.is_in_force(key, &source) {
            return;
        }
        if let Some(reason) = self.why_never(key, &spec) {
            return self.refused(key, Some(source.owner), vec![reason]);
        }
        let job = self.job_entry(key);
        if job.record.source.is_none() {
            job.record.rerun_number = spec.rerun;
        }
        let was_edited =
            job.open_run().is_some() && job.record.source.as_ref().is_some_and(|before| source.is_edit_of(before));
        let known = job.record.source.as_ref().map(|before| before.warnings.as_slice()).unwrap_or_default();
        let news: Vec<String> =
            source.warnings.iter().filter(|told| !known.contains(told)).map(ToString::to_string).collect();
        job.record.not_begun.take_if(|old| source.differs(old));
        (job.record.source, job.record.file_owner) = (Some(source), None);
        job.record.file_present = true;
        let repaired = !std::mem::take(&mut job.record.invalid).is_empty();
        (job.spec, job.refused) = (Some(std::sync::Arc::new(spec)), None);
        if was_edited {
            self.tell_of_edit(key);
        }
        self.settle(key);
        self.tell_those_awaiting(key);
        // What is told has the state that comes of the file: before, a job without a run would be told as stopped.
        if repaired {
            self.note(key, "the job file is valid again".to_owned());
        }
        news.into_iter().for_each(|warning| self.note(key, warning));
    }

    /// Whatever limits have become smaller since: it was accepted.
    fn is_in_force(&self, key: &JobKey, source: &SourceRecord) -> bool {
        let known = self.jobs.get(key).map(|job| &job.record);
        known.is_some_and(|job| job.source.as_ref() == Some(source) && job.file_present && job.invalid.is_empty())
    }

    /// Why a job whose file is one by itself could never start here.
    fn why_never(&self, key: &JobKey, spec: &JobSpec) -> Option<Diagnostic> {
        let reason = self.never_fits(spec, &key.workspace)?;
        Some(self.never(key, reason))
    }

    fn never(&self, key: &JobKey, reason: String) -> Diagnostic {
        Diagnostic::of_file(&format!("{key}.toml"), reason)
    }

    /// What it wants was not known to be there when its file came, and is not: it is as if it came now, but for the run that has
    /// waited, which is over.
    pub(super) fn refuse_at_last(&mut self, key: &JobKey, reason: String) {
        let (now, why) = (self.now, self.never(key, reason));
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(run) = job.open_run_mut() else { return };
        run.record.ended = Some(RunEnd { verdict: Verdict::Failed { reason: why.to_string() }, at: now });
        run.record.refused_at_last = true;
        let (is_first, owner) = (run.record.number == 1, run.record.source.owner);
        if is_first {
            (job.record.source, job.spec) = (None, None);
        }
        self.give_up(key);
        self.deliver(key);
        self.refused(key, Some(owner), vec![why]);
        self.settle(key);
        self.tell_those_awaiting(key);
    }

    /// Why it would be refused if it came now.
    pub(super) fn why_refused(&self, key: &JobKey, source: &SourceRecord, spec: &JobSpec) -> Option<Diagnostic> {
        if self.is_in_force(key, source) { None } else { self.why_never(key, spec) }
    }

    fn tell_of_edit(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get(key) else { return };
        let message = match job.follows() {
            Some(number) => format!("the job file was edited: run {number} follows"),
            None => "the job file was edited: no new run for that, what acts at once does".to_owned(),
        };
        self.note(key, message);
    }

    /// Of a file of the owner's, where that is known.
    pub(super) fn refused(&mut self, key: &JobKey, owner: Option<Owner>, mut diagnostics: Vec<Diagnostic>) {
        // The first is told as the reason.
        diagnostics.sort_by_key(|found| !found.is_error());
        let known = self.jobs.get(key).map(|job| &job.record);
        let whose = |job: &JobRecord| if job.source.is_some() { job.file_owner } else { owner };
        if known.is_some_and(|job| job.file_present && job.invalid == diagnostics && job.file_owner == whose(job)) {
            return;
        }
        let job = self.job_entry(key);
        job.record.file_owner = whose(&job.record);
        job.record.file_present = true;
        let first = diagnostics.first().map(ToString::to_string).unwrap_or_default();
        job.record.invalid = diagnostics;
        let kept = if job.record.source.is_some() { "; its last good version stays in force" } else { "" };
        self.note(key, format!("the job file cannot be used: {first}{kept}"));
        // They tell so.
        self.tell_those_awaiting(key);
    }

    pub(super) fn file_removed(&mut self, key: &JobKey) {
        let present = |job: &&mut Job| job.record.file_present && !job.record.removed;
        let Some(job) = self.jobs.get_mut(key).filter(present) else { return };
        job.record.file_present = false;
        job.record.invalid.clear();
        if job.record.source.is_none() {
            // Only ever a broken file: nothing is lost with it.
            return self.forget(key);
        }
        self.note(key, "the job file was removed".to_owned());
        self.settle(key);
    }

    /// Removes a job; its numbers stay.
    pub(super) fn forget(&mut self, key: &JobKey) {
        self.take_back(key);
        let Some(job) = self.jobs.get_mut(key) else { return };
        let (old, sweep) = (&job.record, job.sweep(key));
        let (last_run, next_event, unknown_runs) = (old.last_run, old.next_event, old.unknown_runs);
        let runs = old.own_runs();
        let record = JobRecord { removed: true, first_event: next_event, ..JobRecord::new(old.created) };
        *job = Job::new(JobRecord { last_run, next_event, unknown_runs, ..record });
        self.queue_in(key);
        self.dirty.insert(key.clone());
        self.events.retain(|(other, _)| other != key);
        self.happenings.forget(key);
        self.retired.retain(|(other, _)| other != key);
        self.last_words.retain(|(other, _)| other != key);
        self.removed.insert(key.clone(), Gone { runs, last_aside: self.counters.order });
        self.tell_those_awaiting_either(key, sweep);
    }

    fn job_entry(&mut self, key: &JobKey) -> &mut Job {
        let now = self.now;
        self.dirty.insert(key.clone());
        let job = self.jobs.entry(key.clone()).or_insert_with(|| Job::new(JobRecord::new(now)));
        if std::mem::take(&mut job.record.removed) {
            job.record.created = now;
        }
        job
    }

    /// A job's state, and why it is in it.
    pub(super) fn state(&self, key: &JobKey) -> (State, String) {
        let job = self.jobs.get(key);
        job.map_or_else(|| (State::Stopped, String::new()), |job| self.state_of(key, job))
    }

    fn state_of(&self, key: &JobKey, job: &Job) -> (State, String) {
        let Some(run) = &job.run else {
            return match job.record.turned_away.is_some() {
                true => (State::Held, self.why_turned_away(key)),
                false => state_without_run(job),
            };
        };
        if let Some(why) = job.record.invalid.first().filter(|_| run.record.refused_at_last) {
            return (State::Invalid, why.to_string());
        }
        if let Some(end) = &run.record.ended {
            let state = match end.verdict {
                Verdict::Succeeded { .. } => State::Succeeded,
                Verdict::Failed { .. } => State::Failed,
                Verdict::Stopped { .. } => State::Stopped,
            };
            return (state, end.verdict.to_string());
        }
        match run.live_attempt() {
            Some(attempt) => self.attempt_state(attempt),
            None if job.waiting(key, self.now, self.cards.sizes()).is_some() => {
                (State::Waiting, self.waiting_reason(key))
            }
            None if job.desired() == DesiredState::Held => {
                (State::Held, "held by state = \"held\" in its job file".to_owned())
            }
            None if run.awaited.is_some() => (State::Waiting, self.why_awaiting(key).unwrap_or_default()),
            None if run.backs_off_until(self.now).is_some() => {
                let until = run.backs_off_until(self.now).unwrap_or(self.now);
                (State::Waiting, format!("tries again at {until} (retry.backoff)"))
            }
            None if run.no_room.is_some() => (State::Waiting, self.why_no_room(key).unwrap_or_default()),
            None if run.held_back.is_some() => (State::Waiting, run.held_back.clone().unwrap_or_default()),
            None => (State::Waiting, run.preparing.clone().unwrap_or_else(|| PREPARES.to_owned())),
        }
    }

    /// What people read of a job.
    pub fn report(&self, key: &JobKey) -> Option<JobReport> {
        self.report_of(key, self.jobs.get(key)?)
    }

    /// The same for who has found it already: in a list of thousands of jobs each look-up counts.
    pub(super) fn report_of(&self, key: &JobKey, job: &Job) -> Option<JobReport> {
        let facts = self.facts_of(key, job)?;
        let sending = job.delivering.values().cloned().collect();
        Some(JobReport::of(facts, job.limit_report(), self.wait_report(key), sending))
    }

    /// What a line tells of it.
    pub(super) fn line_of(&self, key: &JobKey, job: &Job) -> Option<JobLine> {
        self.facts_of(key, job).map(JobLine::of)
    }

    fn facts_of<'a>(&'a self, key: &'a JobKey, job: &'a Job) -> Option<Facts<'a>> {
        if job.record.removed {
            return None;
        }
        let (state, mut reason) = self.state_of(key, job);
        if let Some(number) = job.follows().filter(|_| job.is_begun()) {
            reason = format!("{reason}; run {number} follows");
        }
        if job.run.is_some() && job.record.turned_away.is_some() {
            reason = format!("{reason}; its next run is {}", self.why_turned_away(key));
        }
        if let Some(said) = self.full.get(&key.workspace).filter(|_| self.live.contains(key)) {
            reason = format!("{reason}; no room: {said}");
        } else if let Some(said) = self.held_up_by_the_disk().filter(|_| self.live.contains(key)) {
            reason = format!("{reason}; {said}");
        }
        Some(Facts {
            workspace: key.workspace.as_str(),
            job: key.job.as_str(),
            record: &job.record,
            run: job.run.as_ref().map(|run| &run.record),
            state,
            reason,
            description: job.spec.as_ref().map_or("", |spec| &spec.description),
            now: self.now,
        })
    }

    fn attempt_state(&self, attempt: &AttemptRecord) -> (State, String) {
        if let Some(verdict) = &attempt.verdict {
            let kept = attempt.tasks.iter().find_map(|task| match &task.phase {
                TaskPhase::Kept { until, .. } => Some(until),
                _ => None,
            });
            let reason = match kept {
                Some(until) => {
                    format!("{verdict}; kept to be looked into (`trainyard exec`) until {until} or `trainyard stop`")
                }
                None => format!("ending: {verdict}{}", what_holds_it_up(attempt)),
            };
            return (State::Stopping, reason);
        }
        if attempt.running_since.is_some() {
            let running = attempt.tasks.iter().filter(|task| task.phase.end().is_none()).count();
            return (
                State::Running,
                format!("{running} of {} task(s) running{}", attempt.tasks.len(), self.alarms(attempt)),
            );
        }
        (State::Starting, format!("starting {} task(s)", attempt.tasks.len()))
    }

    /// What its owner was told of, and still holds.
    fn alarms(&self, attempt: &AttemptRecord) -> String {
        let late = if attempt.overrun_told { ", longer than expected" } else { "" };
        let idle =
            attempt.idle_since.map_or(String::new(), |since| format!(", its GPUs idle since {}", since.to_seconds()));
        let failed: String =
            attempt.failed_gpus.iter().map(|uuid| format!(", {} has failed", self.name_in(attempt, uuid))).collect();
        let over = attempt.tasks.iter().filter(|task| task.over_share.is_some() && task.phase.end().is_none());
        let over: String = over.map(|task| format!(", {} uses more of a GPU than its share", task.name())).collect();
        format!("{late}{idle}{failed}{over}")
    }
}

fn state_without_run(job: &Job) -> (State, String) {
    match job.record.invalid.first() {
        Some(diagnostic) => (State::Invalid, diagnostic.to_string()),
        None if job.desired() != DesiredState::Stopped && job.record.file_present => {
            (State::Stopped, "stopped before its run was queued; `trainyard rerun` queues it".to_owned())
        }
        None if !job.record.file_present => {
            (State::Stopped, "its job file was removed before a run was queued".to_owned())
        }
        None => (State::Stopped, "state = \"stopped\" in its job file".to_owned()),
    }
}

/// What was seen at the ends of its tasks, such as a process that does not go: it is what an attempt that is over waits for.
fn what_holds_it_up(attempt: &AttemptRecord) -> String {
    let notes = attempt.tasks.iter().filter_map(|task| Some((task, task.phase.end()?.note.as_ref()?)));
    notes.map(|(task, note)| format!("; {}: {note}", task.name())).collect()
}
