//! Jobs in memory: the stored records with what is derived from them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::aside::Asides;
use super::{Spec, identity};
use crate::contract::Identity;
use crate::gpu::deck::{self, Sizes};
use crate::ids::{JobKey, RoleName, Timestamp};
use crate::plan::{self, Amount, Live, Place, Waiting};
use crate::report::LimitReport;
use crate::spec::{DataSource, Dataset, DesiredState, GpuIdle, JobSpec, Main, OnEdit, OnGpuFailure, OnOverrun, Role};
use crate::status::{EndRecord, RoleTally, StopCause, Verdict};
use crate::store::record::{
    AttemptRecord, GpuLease, GpuPartLease, JobRecord, RunRecord, SourceRecord, TaskPhase, TaskRecord, TemplateRecord,
};
use crate::sys::given_up::GivenUp;

pub(super) struct Job {
    pub(super) record: JobRecord,
    /// The last good version of the file.
    pub(super) spec: Option<Spec>,
    /// What this version refuses in that, which an earlier one has accepted: no run is begun of it.
    pub(super) refused: Option<String>,
    /// The newest run.
    pub(super) run: Option<Run>,
    /// Of runs whose output is on its way to a store: how far it has come.
    pub(super) delivering: BTreeMap<u32, String>,
    pub(super) asides: Asides,
}

pub(super) struct Run {
    pub(super) record: RunRecord,
    pub(super) spec: Spec,
    /// What this version refuses in its file: what runs of it goes on, and nothing more is started.
    pub(super) refused: Option<String>,
    pub(super) releasing: bool,
    /// Cleaning up failed; not before the next try.
    pub(super) release_failed: bool,
    /// What of the machine is in use that it must have; until the next try.
    pub(super) held_back: Option<String>,
    /// What its owner has been told of that.
    pub(super) held_back_told: Option<String>,
    /// Where there is no room for what it may write.
    pub(super) no_room: Option<NoRoom>,
    /// The job that must have succeeded first, and what keeps it from that.
    pub(super) awaited: Option<(JobKey, String)>,
    /// Its preparation, while that is under way.
    pub(super) preparation: Option<GivenUp>,
    /// How far its preparation has come.
    pub(super) preparing: Option<String>,
    /// Its owner has been told of that.
    pub(super) release_told: bool,
}

/// Where a run that waits has no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// In its workspace, and what is said of that.
    Workspace(String),
    /// On the disk, of which the same is to be said of all.
    Disk,
}

impl Job {
    pub(super) fn new(record: JobRecord) -> Self {
        Self { record, spec: None, refused: None, run: None, delivering: BTreeMap::new(), asides: Asides::default() }
    }

    /// The sweep whose file makes the job.
    pub(super) fn sweep(&self, key: &JobKey) -> Option<JobKey> {
        let sweep = self.record.source.as_ref()?.sweep.as_ref()?;
        Some(JobKey::new(key.workspace.clone(), sweep.of.clone()))
    }

    /// The newest run while it is not over.
    pub(super) fn open_run(&self) -> Option<&Run> {
        self.run.as_ref().filter(|run| run.record.ended.is_none())
    }

    pub(super) fn open_run_mut(&mut self) -> Option<&mut Run> {
        self.run.as_mut().filter(|run| run.record.ended.is_none())
    }

    /// Its run has begun, and starts no attempt until it is released.
    pub(super) fn is_held_between_attempts(&self) -> bool {
        let run = self.open_run().filter(|run| !run.record.attempts.is_empty());
        self.desired() == DesiredState::Held && run.is_some_and(|run| run.live_attempt().is_none())
    }

    pub(super) fn desired(&self) -> DesiredState {
        self.spec.as_ref().map_or(DesiredState::Held, |spec| spec.state)
    }

    /// Why the newest run is to be stopped, if it is.
    pub(super) fn wanted_stop(&self) -> Option<StopCause> {
        let run = self.open_run()?;
        let makes_way = self.live_word(run, "on_edit").on_edit == OnEdit::Restart && self.is_outdated();
        let by_file = match (self.record.file_present, self.desired()) {
            (false, _) => Some(StopCause::FileRemoved),
            (true, DesiredState::Stopped) => Some(StopCause::File),
            _ => makes_way.then_some(StopCause::Replaced),
        };
        run.record.stop.clone().or(by_file)
    }

    /// Why the containers of its failed tasks are no longer kept, if they are not.
    pub(super) fn no_longer_kept(&self) -> Option<StopCause> {
        let again = self.is_outdated() || self.record.rerun_wanted;
        self.wanted_stop().or(again.then_some(StopCause::Replaced))
    }

    /// The newest run is of an older version of the file, and nobody has stopped the job since.
    pub(super) fn is_outdated(&self) -> bool {
        match (&self.record.source, &self.run) {
            (Some(source), Some(run)) => {
                // Of what was refused the meaning is a makeshift, which what is right now may happen to share.
                let is_put_right = run.refused.is_some() && self.refused.is_none() && run.live_attempt().is_none();
                (source.differs(&run.record.source) || is_put_right) && !self.is_not_begun(source)
            }
            _ => false,
        }
    }

    /// Somebody has stopped the job before a run of this version was begun.
    fn is_not_begun(&self, source: &SourceRecord) -> bool {
        self.record.not_begun.as_ref().is_some_and(|old| !source.differs(old))
    }

    /// The number of the run that begins when the open one has ended.
    pub(super) fn follows(&self) -> Option<u32> {
        let open = self.open_run()?;
        let may = self.record.file_present && self.desired() != DesiredState::Stopped && self.refused.is_none();
        (may && self.is_due()).then(|| open.record.number + 1)
    }

    /// An attempt of the open run has been made: it does not make way for another version.
    pub(super) fn is_begun(&self) -> bool {
        self.open_run().is_some_and(|run| !run.record.attempts.is_empty())
    }

    fn is_due(&self) -> bool {
        let rerun = self.spec.as_ref().map(|spec| spec.rerun);
        self.is_outdated() || self.record.rerun_wanted || rerun.is_some_and(|rerun| rerun != self.record.rerun_number)
    }

    /// No run follows the open one by itself, whatever was asked for before.
    pub(super) fn begin_no_more(&mut self) -> Option<u32> {
        let followed = self.follows();
        self.record.rerun_wanted = false;
        self.record.rerun_number = self.spec.as_ref().map_or(self.record.rerun_number, |spec| spec.rerun);
        self.record.not_begun = self.record.source.clone();
        followed
    }

    /// The version that a new run is to be made of, if one is due now.
    pub(super) fn next_run(&self) -> Option<(SourceRecord, Spec)> {
        let (source, spec) = (self.record.source.as_ref()?, self.spec.as_ref()?);
        let is_wanted = self.record.file_present && self.desired() != DesiredState::Stopped;
        let may = is_wanted && self.refused.is_none() && self.open_run().is_none();
        let is_accepted_now = |run: &Run| run.record.refused_at_last && self.record.invalid.is_empty();
        let begins = |run: &Run| was_stopped_by_file(run) || is_accepted_now(run);
        let begins_by_itself = self.run.as_ref().is_none_or(begins) && !self.is_not_begun(source);
        (may && (self.is_due() || begins_by_itself)).then(|| (source.clone(), spec.clone()))
    }

    /// What a run that is to begin names, and one that has begun and not chosen yet.
    pub(super) fn awaited_data(&self) -> Vec<&Dataset> {
        let next = self.spec.as_ref().filter(|_| self.follows().is_some() || self.next_run().is_some());
        let chooses = self.open_run().filter(|run| !run.record.prepared).map(|run| &run.spec);
        // Models of jobs that are awaited are chosen when the first attempt begins.
        let awaits = |run: &&Run| run.record.prepared && run.record.attempts.is_empty() && !run.spec.after.is_empty();
        let later = self.open_run().filter(awaits).into_iter().flat_map(|run| &run.spec.datasets);
        let later = later.filter(|dataset| dataset.source == DataSource::Model);
        next.into_iter().chain(chooses).flat_map(|spec| &spec.datasets).chain(later).collect()
    }

    /// Names of the datasets among them.
    pub(super) fn awaited_datasets(&self) -> BTreeSet<String> {
        let data = self.awaited_data().into_iter().filter(|data| data.source == DataSource::Dataset);
        data.map(|data| format!("{}{}", data.whose.prefix(), data.name)).collect()
    }

    /// Its place in the queue, if it may start.
    pub(super) fn waiting(&self, key: &JobKey, now: Timestamp, sizes: &Sizes) -> Option<(Place, Waiting)> {
        let run = self.open_run()?;
        let held = self.desired() == DesiredState::Held;
        let not_yet = run.held_back.is_some()
            || run.no_room.is_some()
            || run.awaited.is_some()
            || run.backs_off_until(now).is_some();
        if !run.record.prepared || run.live_attempt().is_some() || held || not_yet {
            return None;
        }
        let waiting = Waiting {
            key: key.clone(),
            amount: Amount::of(&run.spec, sizes),
            wishes: plan::wishes(&run.spec),
            tasks: u32::try_from(run.spec.tasks().count()).unwrap_or(u32::MAX),
            network: run.spec.network,
            ports: run.spec.fixed_ports(),
            since: run.record.created,
            lasts: self.limit_of(run),
            expected: self.expected_duration(run).into_iter().chain(self.max_duration(run)).min(),
        };
        let priority = Reverse(self.live_word(run, "priority").priority);
        Some((Place { priority, order: run.record.order }, waiting))
    }

    /// How long an attempt may take, with what was added to it.
    fn max_duration(&self, run: &Run) -> Option<Duration> {
        Some(self.live_word(run, "max_duration").max_duration?.saturating_add(run.extended()))
    }

    /// How long an attempt should take. Where it is stopped for taking longer, what was added counts here as well.
    fn expected_duration(&self, run: &Run) -> Option<Duration> {
        let is_limit = self.live_word(run, "on_overrun").on_overrun == OnOverrun::Stop;
        let expected = self.live_word(run, "expected_duration").expected_duration?;
        Some(expected.saturating_add(if is_limit { run.extended() } else { Duration::ZERO }))
    }

    /// When its cards count as idle, if somebody wants to know.
    pub(super) fn gpu_idle(&self) -> Option<GpuIdle> {
        self.live_word(self.open_run()?, "alerts").gpu_idle
    }

    /// What is done when a card of its open run fails.
    pub(super) fn on_gpu_failure(&self) -> OnGpuFailure {
        let run = self.open_run();
        run.map_or(OnGpuFailure::Alert, |run| self.live_word(run, "on_gpu_failure").on_gpu_failure)
    }

    /// When an attempt of the newest run is stopped if it has not ended: how long it may take.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        self.limit_of(self.open_run()?)
    }

    fn limit_of(&self, run: &Run) -> Option<Duration> {
        let is_limit = self.live_word(run, "on_overrun").on_overrun == OnOverrun::Stop;
        let expected = self.expected_duration(run).filter(|_| is_limit);
        expected.into_iter().chain(self.max_duration(run)).min()
    }

    /// The same for people.
    pub(super) fn limit_report(&self) -> Option<LimitReport> {
        let (run, limit) = (self.open_run()?, self.time_limit()?);
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let since = run.live_attempt().and_then(|attempt| attempt.running_since);
        Some(LimitReport {
            limit_ms,
            extended_ms: run.record.extended_ms,
            until: since.map(|since| Timestamp(since.0.saturating_add(limit_ms)).to_string()),
        })
    }

    /// Where to look for a key that acts at once: the file's newest word counts, but a template's only for later runs.
    fn live_word<'a>(&'a self, run: &'a Run, key: &str) -> &'a Spec {
        let template = self.record.source.as_ref().and_then(|source| source.template.as_ref());
        // Also one that it no longer says: then what is left counts.
        let before = run.record.source.template.as_ref();
        let said = |template: &TemplateRecord| template.own_live.contains(key);
        let is_own = template.is_none_or(said) || before.is_some_and(said);
        self.spec.as_ref().filter(|_| is_own).unwrap_or(&run.spec)
    }

    /// Its live attempt as the plan sees it.
    pub(super) fn live(&self, key: &JobKey) -> Option<Live> {
        let run = self.open_run()?;
        let attempt = run.live_attempt()?;
        Some(Live {
            key: key.clone(),
            amount: amount_of(&run.spec, attempt),
            // Where the cards are now, and how they are, is for the reconciler to say.
            lost: 0,
            pieces: Vec::new(),
            over_share: None,
            block: attempt.block,
            ports: run.spec.fixed_ports(),
            tallies: tallies(&run.spec, attempt),
            first_failure: run.first_failure(attempt),
            all_ended: attempt.tasks.iter().all(|task| task.phase.end().is_some()),
            held_since: attempt.created,
            running_since: attempt.running_since,
            kept_until: attempt.tasks.iter().filter_map(kept_until).max(),
            max_duration: self.max_duration(run),
            expected_duration: self.expected_duration(run),
            on_overrun: self.live_word(run, "on_overrun").on_overrun,
            overrun_told: attempt.overrun_told,
            idle: None,
            gpu_failure: None,
            wanted_stop: self.wanted_stop(),
            verdict: attempt.verdict.clone(),
            released: attempt.released,
            releasing: run.releasing || run.release_failed,
            attempts_left: run.attempts_left(),
            retried: run.is_retried(attempt, self.on_gpu_failure()),
        })
    }
}

/// What an attempt holds: of cards what its leases say.
pub(super) fn amount_of(spec: &JobSpec, attempt: &AttemptRecord) -> Amount {
    let leases = attempt.tasks.iter().flat_map(|task| &task.gpus);
    let weight = |lease: &GpuLease| match &lease.part {
        None => deck::CARD,
        Some(GpuPartLease::Share { bytes, of }) => deck::weight_of_share(*bytes, *of),
        Some(GpuPartLease::Slice { profile, .. }) => deck::weight_of_slice(profile),
    };
    Amount { gpu: leases.map(weight).sum(), ..Amount::of(spec, &Sizes::default()) }
}

fn kept_until(task: &TaskRecord) -> Option<Timestamp> {
    match &task.phase {
        TaskPhase::Kept { until, .. } => Some(*until),
        _ => None,
    }
}

fn was_stopped_by_file(run: &Run) -> bool {
    let verdict = run.record.ended.as_ref().map(|end| &end.verdict);
    matches!(verdict, Some(Verdict::Stopped { cause: StopCause::File | StopCause::FileRemoved }))
}

impl Run {
    /// What was added to how long its attempts may take.
    fn extended(&self) -> Duration {
        Duration::from_millis(self.record.extended_ms)
    }

    pub(super) fn new(record: RunRecord, spec: Spec) -> Self {
        Self {
            record,
            spec,
            refused: None,
            releasing: false,
            release_failed: false,
            release_told: false,
            preparing: None,
            held_back: None,
            held_back_told: None,
            no_room: None,
            awaited: None,
            preparation: None,
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
        if self.refused.is_some() {
            return 0;
        }
        let made = u32::try_from(self.record.attempts.len()).unwrap_or(u32::MAX);
        self.spec.retries.saturating_add(1).saturating_sub(made)
    }
}

pub(super) fn tallies(spec: &JobSpec, attempt: &AttemptRecord) -> Vec<RoleTally> {
    let begun: BTreeSet<&RoleName> = attempt.tasks.iter().map(|task| &task.role).collect();
    // Nobody would ever tell how a task ended that was never begun.
    let roles = spec.roles.iter().filter(|role| begun.contains(&role.name));
    let mut tallies: Vec<RoleTally> = roles.map(RoleTally::of).collect();
    for task in &attempt.tasks {
        // What people only look at neither succeeds nor fails.
        let is_service = spec.roles.iter().any(|role| role.is_service && role.name == task.role);
        let Some(tally) = tallies.iter_mut().find(|tally| tally.name == task.role && !is_service) else { continue };
        if let Some(end) = task.phase.outcome() {
            tally.count(task.index, &end.end);
        }
    }
    tallies
}

/// The earliest failure is the cause, of those that count; later ones are often its consequence.
pub(super) fn earliest_failure<'a>(
    spec: &JobSpec,
    attempt: &'a AttemptRecord,
) -> Option<(&'a TaskRecord, &'a EndRecord)> {
    let counts = |role: &&Role| role.min_failed.is_some() || role.main != Main::No;
    let counting: Vec<_> = spec.roles.iter().filter(counts).map(|role| &role.name).collect();
    let ended = attempt.tasks.iter().filter(|task| counting.contains(&&task.role));
    let failed = ended.filter_map(|task| Some((task, task.phase.outcome().filter(|end| end.end.is_failure())?)));
    failed.min_by_key(|(_, end)| end.at)
}
