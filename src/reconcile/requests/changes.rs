//! What people do to jobs: stop, rerun, restart, extend, send, remove.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Caller, Refusal, Verb, Whose};
use crate::engine::Delivery;
use crate::ids::JobKey;
use crate::reconcile::runs::refused_now;
use crate::reconcile::world::Job;
use crate::reconcile::{Reconciler, Work};
use crate::spec::DesiredState;
use crate::status::{StopCause, StopHow};
use crate::store::Store;
use crate::store::record::RunRecord;

/// Most runs that are in memory while it is looked whose they are.
const RUNS_AT_ONCE: usize = 64;
/// Most that a run is extended by in all.
const EXTENDED_MAX_MS: u64 = 3650 * 24 * 3_600_000;

impl<S: Store> Reconciler<S> {
    /// Carries a change out; what is to be recorded is by whoever calls.
    pub(super) fn change(&mut self, caller: &Caller, key: &JobKey, verb: Verb) -> Result<String, Refusal> {
        match verb {
            Verb::Stop { how } => self.of_each(key, caller, |this, caller, key| this.stop(caller, key, how)),
            Verb::Rerun => self.of_each(key, caller, Self::rerun),
            Verb::Restart => self.of_each(key, caller, Self::restart),
            Verb::Extend { by } => self.of_each(key, caller, |this, caller, key| this.extend(caller, key, by)),
            Verb::Remove => self.of_each(key, caller, Self::remove),
            Verb::WouldRemove { with_file } => {
                self.of_each(key, caller, |this, caller, key| this.would_remove(caller, key, with_file))
            }
            Verb::Send => self.of_each(key, caller, |this, caller, key| this.send(caller, key, Delivery::Now)),
            Verb::KeepUnsent => self.of_each(key, caller, |this, caller, key| this.send(caller, key, Delivery::Never)),
        }
    }

    fn stop(&mut self, caller: &Caller, key: &JobKey, how: StopHow) -> Result<String, Refusal> {
        let job = self.job_of(caller, key)?;
        if self.is_turned_away(key) {
            return Ok(self.stop_before_queued(caller, key));
        }
        if job.open_run().is_none() {
            return Err(self.not_running(key, job));
        }
        let followed = self.jobs.get_mut(key).and_then(Job::begin_no_more);
        let stopping = match how {
            StopHow::WithGrace => "stopping",
            StopHow::AtOnce => self.give_no_grace(caller, key),
        };
        self.want_stop(key, StopCause::User { name: caller.name.clone() });
        Ok(match followed {
            Some(number) => {
                self.note(key, format!("run {number} does not follow: {} has stopped the job", caller.name));
                format!("{key}: {stopping}; run {number} does not follow, `trainyard rerun {key}` starts it")
            }
            None => format!("{key}: {stopping}"),
        })
    }

    /// Of a job whose tasks live; of another one there is nothing to kill.
    fn give_no_grace(&mut self, caller: &Caller, key: &JobKey) -> &'static str {
        if self.jobs.get(key).and_then(Job::open_run).is_none_or(|run| run.live_attempt().is_none()) {
            return "stopping";
        }
        if self.stop_how(key) == StopHow::WithGrace {
            self.note(key, format!("its tasks get no grace: {} wants it stopped at once", caller.name));
        }
        self.stop_at_once(key);
        "killing what runs of it"
    }

    /// What cannot run again either is told why.
    fn not_running(&self, key: &JobKey, job: &Job) -> Refusal {
        match job.record.source {
            None => never_valid(key, job),
            Some(_) => Refusal::NotRunning { key: key.clone(), state: self.state(key).0 },
        }
    }

    /// Its next run was turned away, and is not begun any more.
    fn stop_before_queued(&mut self, caller: &Caller, key: &JobKey) -> String {
        let Some(job) = self.jobs.get_mut(key) else { return String::new() };
        job.begin_no_more();
        let number = job.record.last_run + 1;
        self.settle(key);
        self.note(key, format!("run {number} is not queued any more: {} has stopped the job", caller.name));
        format!("{key}: run {number} is not queued any more, `trainyard rerun {key}` queues it")
    }

    fn rerun(&mut self, caller: &Caller, key: &JobKey) -> Result<String, Refusal> {
        let job = self.job_of(caller, key)?;
        if job.record.source.is_none() {
            return Err(never_valid(key, job));
        }
        if !job.record.file_present {
            return Err(Refusal::NoFile { key: key.clone() });
        }
        if job.desired() == DesiredState::Stopped {
            return Err(Refusal::StoppedByFile { key: key.clone() });
        }
        if let Some(refused) = &job.refused {
            return Err(Refusal::RefusedNow { key: key.clone(), problem: refused_now(refused) });
        }
        let before = job.open_run().map(|run| run.record.number);
        if let Some(job) = self.jobs.get_mut(key) {
            job.record.rerun_wanted = true;
        }
        // It is wanted as things are now, not as they were when it was wanted before.
        self.let_aside_go(key);
        self.settle(key);
        let is_aside = self.jobs.get(key).is_some_and(Job::has_asked_for_aside);
        let aside = if is_aside { ", with code and data as they are now" } else { "" };
        if self.is_turned_away(key) {
            return Ok(format!("{key}: {}{aside}", self.why_turned_away(key)));
        }
        let record = self.jobs.get(key).map(|job| &job.record);
        let number = record.map_or(0, |record| record.last_run);
        let is_old = record.is_some_and(|record| !record.invalid.is_empty());
        let is_held = self.jobs.get(key).is_some_and(Job::is_held_between_attempts);
        let which = if is_old { ", of the last good version of its file, which is invalid now" } else { "" };
        Ok(match before {
            Some(before) if before == number && is_held => format!(
                "{key}: run {number} is held between its attempts and goes on when that is taken out of its file; run {} follows it{which}{aside}; \
                 `trainyard restart {key}` ends it",
                number + 1
            ),
            Some(before) if before == number => {
                format!("{key}: run {} starts when run {number} has ended{which}{aside}", number + 1)
            }
            Some(before) => {
                format!("{key}: run {number}, in place of run {before}, which was held as this one is{which}")
            }
            None => format!("{key}: run {number}{which}"),
        })
    }

    fn restart(&mut self, caller: &Caller, key: &JobKey) -> Result<String, Refusal> {
        let open = |job: &Job| job.open_run().map(|run| run.record.number);
        let before = open(self.job_of(caller, key)?);
        let done = self.rerun(caller, key)?;
        // One that was held has made way.
        if before.is_some() && before == self.jobs.get(key).and_then(open) {
            self.want_stop(key, StopCause::User { name: caller.name.clone() });
        }
        Ok(done)
    }

    fn extend(&mut self, caller: &Caller, key: &JobKey, by: Duration) -> Result<String, Refusal> {
        let job = self.job_of(caller, key)?;
        let Some(run) = job.open_run() else { return Err(self.not_running(key, job)) };
        if job.time_limit().is_none() {
            return Err(Refusal::NoLimit { key: key.clone() });
        }
        let is_decided = run.live_attempt().is_some_and(|attempt| attempt.verdict.is_some());
        if is_decided || job.wanted_stop().is_some() {
            return Err(Refusal::Ending { key: key.clone() });
        }
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        let extended_ms = run.record.extended_ms.saturating_add(by_ms);
        if by_ms == 0 || extended_ms > EXTENDED_MAX_MS {
            return Err(Refusal::NoSuchExtension { key: key.clone() });
        }
        if let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) {
            run.record.extended_ms = extended_ms;
        }
        // The queue reckons with how long it takes.
        self.settle(key);
        let limit = self.jobs.get(key).and_then(Job::limit_report).map(|limit| limit.to_string()).unwrap_or_default();
        let by = crate::ids::format_duration(by);
        self.note(key, format!("{} has extended it by {by}: an attempt may take {limit}", caller.name));
        Ok(format!("{key}: an attempt may take {limit}"))
    }

    fn send(&mut self, caller: &Caller, key: &JobKey, how: Delivery) -> Result<String, Refusal> {
        let job = self.job_of(caller, key)?;
        let open = job.open_run().filter(|run| run.spec.copied_out().is_some()).map(|run| run.record.number);
        let runs: BTreeSet<u32> = job.delivering.keys().copied().chain(open).collect();
        if runs.is_empty() {
            return Err(Refusal::NothingToSend { key: key.clone() });
        }
        self.check_runs(caller, key, |number| runs.contains(&number))?;
        self.works.extend(runs.into_iter().map(|run| Work::Deliver { key: key.clone(), run, how }));
        Ok(match how {
            Delivery::Never => format!("{key}: what is not in the store yet stays in output/ alone"),
            Delivery::Now | Delivery::Over => format!("{key}: copying; `trainyard status {key}` tells how far"),
        })
    }

    fn remove(&mut self, caller: &Caller, key: &JobKey) -> Result<String, Refusal> {
        self.removable(caller, key, false)?;
        // Who may remove it has been asked about these as well.
        self.jobs.get_mut(key).into_iter().for_each(|job| job.record.unknown_runs = 0);
        self.forget(key);
        Ok(format!("{key}: removed"))
    }

    /// A job of which nothing runs or is on its way, and whose file is gone or goes with it.
    fn removable(&self, caller: &Caller, key: &JobKey, with_file: bool) -> Result<&Job, Refusal> {
        let job = self.job_of(caller, key)?;
        self.check_runs(caller, key, |_| true)?;
        if job.open_run().is_some() {
            return Err(Refusal::StillRunning { key: key.clone(), state: self.state(key).0 });
        }
        if job.record.file_present && !with_file {
            return Err(Refusal::FileStillThere { key: key.clone() });
        }
        match job.delivering.values().next() {
            Some(state) => Err(Refusal::Unsent { key: key.clone(), state: state.clone() }),
            None => Ok(job),
        }
    }

    /// Refuses who would do away with what the runs of another's file have left, that had this name before: a file of one's own makes
    /// the job one's own, and not those runs. All of them are read, in parts, where it is somebody's to whom that may matter.
    fn check_runs(&self, caller: &Caller, key: &JobKey, concerns: impl Fn(u32) -> bool) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get(key).filter(|_| caller.uid != 0) else { return Ok(()) };
        let mut owners = BTreeMap::new();
        let mut note = |run: &RunRecord| owners.extend([(run.number, run.source.owner.uid)]);
        let unrecorded = self.retired.iter().filter(|(other, _)| other == key).map(|(_, run)| run);
        unrecorded.chain(job.run.as_ref().map(|run| &run.record)).for_each(&mut note);
        let mut last = Some(u32::MAX);
        while let Some(end) = last {
            let runs =
                self.store.runs(key, 0..=end, RUNS_AT_ONCE).map_err(|error| Refusal::Store(error.to_string()))?;
            runs.iter().for_each(&mut note);
            last = runs.first().filter(|_| runs.len() == RUNS_AT_ONCE).and_then(|run| run.number.checked_sub(1));
        }
        // On the disk lies what no record tells of as well, where one was lost: nobody but root can say that it is to go.
        let is_unknown = |(run, uid): &(u32, u32)| *run <= job.record.last_run && owners.get(run) != Some(uid);
        let unknown = caller.runs_on_disk(key).filter(is_unknown);
        let others = |runs: &mut dyn Iterator<Item = (u32, u32)>| -> BTreeSet<u32> {
            runs.filter(|(run, uid)| *uid != caller.uid && concerns(*run)).map(|(_, uid)| uid).collect()
        };
        let (unknown, known) = (others(&mut { unknown }), others(&mut owners.iter().map(|(run, uid)| (*run, *uid))));
        let whose = |of: BTreeSet<u32>| of.into_iter().map(|uid| Whose::of(Some(uid))).collect();
        match (unknown.is_empty(), known.is_empty() || caller.may_remove_others(key, job)) {
            (false, _) => Err(Refusal::UnknownRuns { key: key.clone(), whose: whose(unknown) }),
            (true, false) => Err(Refusal::NotYourRuns { key: key.clone(), whose: whose(known) }),
            (true, true) => Ok(()),
        }
    }

    fn would_remove(&mut self, caller: &Caller, key: &JobKey, with_file: bool) -> Result<String, Refusal> {
        let job = self.removable(caller, key, with_file)?;
        let file = if job.record.file_present { "its file, and " } else { "" };
        let runs = job.record.last_run;
        Ok(format!("{key}: {file}its record with {runs} run(s) and their logs would be removed; models stay"))
    }
}

fn never_valid(key: &JobKey, job: &Job) -> Refusal {
    let problem = job.record.invalid.first().map(ToString::to_string).unwrap_or_default();
    Refusal::NeverValid { key: key.clone(), problem }
}
