//! Jobs in memory: the stored records with what is derived from them.

use std::sync::Arc;
use std::time::Duration;

use super::{Spec, identity};
use crate::contract::Identity;
use crate::ids::JobKey;
use crate::plan::{Amount, Live, Waiting};
use crate::spec::{DesiredState, JobSpec};
use crate::status::{RoleTally, StopCause, Verdict};
use crate::store::record::{AttemptRecord, JobRecord, RunRecord, SourceRecord};

pub(super) struct Job {
    pub(super) record: JobRecord,
    /// The last good version of the file.
    pub(super) spec: Option<Spec>,
    /// The newest run.
    pub(super) run: Option<Run>,
}

pub(super) struct Run {
    pub(super) record: RunRecord,
    pub(super) spec: Spec,
    pub(super) releasing: bool,
    /// Cleaning up failed; not before the next try.
    pub(super) release_failed: bool,
    /// What of the machine is in use that it must have; until the next try.
    pub(super) held_back: Option<String>,
    /// What its owner has been told of that.
    pub(super) held_back_told: Option<String>,
    /// How far its preparation has come.
    pub(super) preparing: Option<String>,
    /// Its owner has been told of that.
    pub(super) release_told: bool,
}

fn parse(source: &SourceRecord) -> Option<Spec> {
    crate::spec::parse("spec.toml", &source.text).0.map(Arc::new)
}

impl Job {
    pub(super) fn load(mut record: JobRecord, run: Option<RunRecord>) -> Self {
        let spec = record.source.as_ref().and_then(parse);
        // What a text means is this program's word, not that of the one that stored it: an upgrade reruns nothing.
        if let (Some(source), Some(spec)) = (&mut record.source, &spec) {
            source.meaning = spec.meaning();
        }
        let run = run.and_then(|mut run| {
            let spec = match (&spec, &record.source) {
                (Some(spec), Some(source)) if source.text == run.source.text => Some(spec.clone()),
                _ => parse(&run.source),
            };
            let spec = spec?;
            run.source.meaning = spec.meaning();
            Some(Run::new(run, spec))
        });
        Self { record, spec, run }
    }

    pub(super) fn new(record: JobRecord) -> Self {
        Self { record, spec: None, run: None }
    }

    /// The newest run while it is not over.
    pub(super) fn open_run(&self) -> Option<&Run> {
        self.run.as_ref().filter(|run| run.record.ended.is_none())
    }

    pub(super) fn open_run_mut(&mut self) -> Option<&mut Run> {
        self.run.as_mut().filter(|run| run.record.ended.is_none())
    }

    pub(super) fn desired(&self) -> DesiredState {
        self.spec.as_ref().map_or(DesiredState::Held, |spec| spec.state)
    }

    /// Why the newest run is to be stopped, if it is.
    pub(super) fn wanted_stop(&self) -> Option<StopCause> {
        let run = self.open_run()?;
        let by_file = match (self.record.file_present, self.desired()) {
            (false, _) => Some(StopCause::FileRemoved),
            (true, DesiredState::Stopped) => Some(StopCause::File),
            _ => None,
        };
        run.record.stop.clone().or(by_file)
    }

    /// Why the containers of its failed tasks are no longer kept, if they are not.
    pub(super) fn no_longer_kept(&self) -> Option<StopCause> {
        let again = self.is_outdated() || self.record.rerun_wanted;
        self.wanted_stop().or(again.then_some(StopCause::Replaced))
    }

    /// The newest run is of an older version of the file.
    pub(super) fn is_outdated(&self) -> bool {
        match (&self.record.source, &self.run) {
            (Some(source), Some(run)) => source.differs(&run.record.source),
            _ => false,
        }
    }

    /// The version that a new run is to be made of, if one is due now.
    pub(super) fn next_run(&self) -> Option<(SourceRecord, Spec)> {
        let (source, spec) = (self.record.source.as_ref()?, self.spec.as_ref()?);
        let may = self.record.file_present && self.desired() != DesiredState::Stopped && self.open_run().is_none();
        let due = match &self.run {
            None => true,
            Some(run) => {
                self.is_outdated()
                    || self.record.rerun_wanted
                    || spec.rerun != self.record.rerun_number
                    || was_stopped_by_file(run)
            }
        };
        (may && due).then(|| (source.clone(), spec.clone()))
    }

    /// Its place in the queue, if it may start.
    pub(super) fn waiting(&self, key: &JobKey) -> Option<(u64, Waiting)> {
        let run = self.open_run()?;
        let held = self.desired() == DesiredState::Held && run.record.attempts.is_empty();
        if !run.record.prepared || run.live_attempt().is_some() || held || run.held_back.is_some() {
            return None;
        }
        let waiting = Waiting {
            key: key.clone(),
            amount: Amount::of(&run.spec),
            tasks: u32::try_from(run.spec.tasks().count()).unwrap_or(u32::MAX),
            network: run.spec.network,
            ports: run.spec.fixed_ports(),
        };
        Some((run.record.order, waiting))
    }

    /// A live key: the file's newest word counts, but a template's only for later runs.
    fn max_duration(&self, run: &Run) -> Option<Duration> {
        let template = self.record.source.as_ref().and_then(|source| source.template.as_ref());
        match &self.spec {
            Some(spec) if template.is_none_or(|template| template.own_max_duration) => spec.max_duration,
            _ => run.spec.max_duration,
        }
    }

    /// Its live attempt as the plan sees it.
    pub(super) fn live(&self, key: &JobKey) -> Option<Live> {
        let run = self.open_run()?;
        let attempt = run.live_attempt()?;
        Some(Live {
            key: key.clone(),
            amount: Amount::of(&run.spec),
            block: attempt.block,
            ports: run.spec.fixed_ports(),
            tallies: tallies(&run.spec, attempt),
            first_failure: first_failure(attempt),
            all_ended: attempt.tasks.iter().all(|task| task.phase.end().is_some()),
            running_since: attempt.running_since,
            max_duration: self.max_duration(run),
            wanted_stop: self.wanted_stop(),
            verdict: attempt.verdict.clone(),
            released: attempt.released,
            releasing: run.releasing || run.release_failed,
            attempts_left: run.attempts_left(),
        })
    }
}

fn was_stopped_by_file(run: &Run) -> bool {
    let verdict = run.record.ended.as_ref().map(|end| &end.verdict);
    matches!(verdict, Some(Verdict::Stopped { cause: StopCause::File | StopCause::FileRemoved }))
}

impl Run {
    pub(super) fn new(record: RunRecord, spec: Spec) -> Self {
        Self {
            record,
            spec,
            releasing: false,
            release_failed: false,
            release_told: false,
            preparing: None,
            held_back: None,
            held_back_told: None,
        }
    }

    pub(super) fn identity(&self, key: &JobKey, attempt: u32) -> Identity {
        identity(key, &self.record, attempt)
    }

    /// The attempt that is not concluded.
    pub(super) fn live_attempt(&self) -> Option<&AttemptRecord> {
        self.record.attempts.last().filter(|attempt| attempt.ended.is_none())
    }

    pub(super) fn live_attempt_mut(&mut self) -> Option<&mut AttemptRecord> {
        self.record.attempts.last_mut().filter(|attempt| attempt.ended.is_none())
    }

    pub(super) fn attempts_left(&self) -> u32 {
        let made = u32::try_from(self.record.attempts.len()).unwrap_or(u32::MAX);
        self.spec.retries.saturating_add(1).saturating_sub(made)
    }
}

fn tallies(spec: &JobSpec, attempt: &AttemptRecord) -> Vec<RoleTally> {
    let mut tallies: Vec<RoleTally> = spec.roles.iter().map(RoleTally::of).collect();
    for task in &attempt.tasks {
        let Some(tally) = tallies.iter_mut().find(|tally| tally.name == task.role) else { continue };
        match task.phase.outcome().map(|end| &end.end) {
            Some(end) if end.is_success() => tally.succeeded += 1,
            Some(end) if end.is_failure() => tally.failed += 1,
            Some(_) => tally.stopped += 1,
            None => {}
        }
    }
    tallies
}

/// The earliest failure is the cause; later ones are often its consequence.
fn first_failure(attempt: &AttemptRecord) -> Option<String> {
    let failed = attempt.tasks.iter().filter_map(|task| {
        let end = task.phase.outcome().filter(|end| end.end.is_failure())?;
        Some((end.at, task, end))
    });
    failed.min_by_key(|(at, ..)| *at).map(|(_, task, end)| format!("{} {}", task.name(), end))
}
