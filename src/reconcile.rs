//! The one place where state changes: takes in what happened, plans, records the intents, hands out the work.
//!
//! A [`Reconciler`] is synchronous and owns everything; `daemon` drives it with events and carries the works to
//! threads. One round is: events → [`Reconciler::pass`] → plan until nothing is left to do → one commit → works.
//! Works are handed out only after the commit that records them, and each may be repeated; so a crash at any instant
//! leaves a store from which ordinary planning goes on. Level-triggered: a lost event delays, never breaks.

mod cards;
mod clock;
mod drain;
mod files;
mod happenings;
mod idle;
mod preparing;
mod publishing;
mod queue;
mod requests;
mod room;
mod standing;
mod sweeps;
mod tasks;
mod waiting;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{AddressRange, Quotas};
use crate::contract::Identity;
use crate::engine::{Delivery, EngineError, GivenUp, Launch, Prepare, Release};
use crate::gpu::deck::Piece;
use crate::gpu::{Inventory, Measured};
use crate::ids::{AttemptId, GpuUuid, JobKey, TaskId, Timestamp, WorkspaceName};
use crate::intake::Arrival;
use crate::plan::outlook::Outlook;
use crate::plan::{Amount, HeldUp, Queue, Shares, Step, Why};
use crate::report::{Change, DrainOrder, JobReport};
use crate::rundir::Found;
use crate::spec::JobSpec;
use crate::status::{StopCause, Verdict};
use crate::store::record::{
    AddressBlock, AttemptRecord, Counters, EventRecord, RunEnd, RunRecord, TaskPhase, TaskRecord, UsageRecord,
};
use crate::store::{Store, StoreError};

use cards::Cards;
pub use happenings::Happened;
use happenings::Happenings;
use idle::Idleness;
use queue::Waiters;
pub use requests::{Answer, Caller, JobDetail, Lease, Listing, Refusal, Request, Used, Verb};
use world::Job;

/// Everything that can wake the daemon.
#[derive(Debug)]
pub enum Event {
    /// Job files came, changed or went.
    Files(Vec<Arrival>),
    /// A task's directory has something new to say.
    News(TaskId),
    /// How far the preparation of a run has come.
    Preparing { key: JobKey, run: u32, what: String },
    /// What becomes of a run's output, which is copied to a store: how far it has come, and what is to be recorded of it.
    Delivering { key: JobKey, run: u32, state: Option<String>, note: Option<String> },
    /// A work is done.
    Done(Outcome),
    /// Somebody asks for something.
    Request(Request),
    /// Workspaces that have no room left by their quota, and what is said of each.
    Full(BTreeMap<WorkspaceName, String>),
    /// Whether anything may be started; `None` if so.
    Drain(Option<DrainOrder>),
    /// `trainyard.toml` was edited.
    Settings(Box<Settings>),
    /// The cards were looked at.
    Gpus(Arc<Inventory>),
    /// Leased cards were measured.
    Measured(Arc<Measured>),
    /// What is to be told of an attempt that was started.
    Remark { attempt: AttemptId, remark: String },
    /// Time has passed.
    Tick,
    /// Stop all jobs, then end.
    Shutdown,
}

/// Something to be done on a thread of its own.
#[derive(Debug, Clone)]
pub enum Work {
    Prepare {
        key: JobKey,
        run: u32,
        prepare: Prepare,
    },
    /// Nobody wants that preparation any more.
    GiveUp(GivenUp),
    Launch(Launch),
    /// What uses the cards; told by [`Event::Gpus`].
    LookAtCards,
    /// What the cards of these tasks do, also to be told to the tasks' shims; told by [`Event::Measured`].
    Measure {
        tasks: Vec<(TaskId, Vec<GpuUuid>)>,
    },
    Stop {
        task: TaskId,
        cause: StopCause,
    },
    Look {
        task: TaskId,
        after: Look,
    },
    Release {
        key: JobKey,
        release: Release,
    },
    Deliver {
        key: JobKey,
        run: u32,
        how: Delivery,
    },
}

/// Why a task is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It, or its shim, gave a sign.
    Sign,
    /// The daemon has just started and knows nothing.
    Restart,
}

/// What came of a work.
#[derive(Debug)]
pub enum Outcome {
    Prepared {
        key: JobKey,
        run: u32,
        result: Result<(), EngineError>,
    },
    Launched {
        attempt: AttemptId,
        failures: Vec<(TaskId, EngineError)>,
    },
    /// Nothing of these tasks was started or made: something of the machine is in use, and will be free again.
    NotYet {
        attempt: AttemptId,
        tasks: Vec<TaskId>,
        reason: String,
    },
    Stopped {
        task: TaskId,
        result: Result<(), EngineError>,
    },
    Looked {
        task: TaskId,
        after: Look,
        result: Result<Found, EngineError>,
    },
    Released {
        key: JobKey,
        attempt: AttemptId,
        result: Result<(), EngineError>,
    },
    LookedAtCards,
    /// It was passed on: what becomes of it, if anything, is told by itself.
    Told,
}

/// What a machine has and how it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub inventory: Amount,
    pub addresses: AddressRange,
    pub stop_grace: Duration,
    /// After this time what a workspace has used counts half.
    pub half_life: Duration,
    /// After this time sums are left of what attempts have used.
    pub usage_keep: Duration,
    pub quotas: Quotas,
}

/// The result of a round.
#[derive(Debug, Default)]
pub struct Round {
    pub works: Vec<Work>,
    /// Jobs whose published files are to be written again, or removed.
    pub published: Vec<(JobKey, Change)>,
    pub wake_at: Option<Timestamp>,
}

pub struct Reconciler<S> {
    store: S,
    settings: Settings,
    counters: Counters,
    jobs: BTreeMap<JobKey, Job>,
    queue: Queue,
    waiters: Waiters,
    /// What workspaces have used.
    shares: Shares,
    /// Jobs with an attempt that is not concluded.
    live: BTreeSet<JobKey>,
    attempts: BTreeMap<AttemptId, JobKey>,
    /// Whose turn it was in the last plan, and what keeps them.
    held_up: Vec<HeldUp>,
    /// The same by job.
    whys: BTreeMap<JobKey, Why>,
    /// The queue as it was looked at last, for what is told.
    outlook: Option<Outlook>,
    /// It may have changed since.
    queue_changed: bool,
    /// Jobs that stand elsewhere in it than was told, and when that was.
    moved: BTreeSet<JobKey>,
    told_at: Timestamp,
    last_block: Option<AddressBlock>,
    cards: Cards,
    idleness: Idleness,
    /// Files without a name that could be a job's, and what is wrong with them.
    strays: BTreeMap<String, Vec<crate::spec::Diagnostic>>,
    /// Everything is being stopped; then the daemon ends.
    ending: bool,
    drain: Option<DrainOrder>,
    /// Tasks whose last look failed.
    look_again: BTreeMap<TaskId, Look>,
    stop_again: BTreeMap<TaskId, StopCause>,
    /// Jobs whose next attempt is put off, and until when.
    backing_off: BTreeMap<JobKey, Timestamp>,
    /// Jobs that wait for the success of another, by that one.
    awaiting: BTreeMap<JobKey, BTreeSet<JobKey>>,
    /// Jobs whose turn had come, but something of the machine was in use.
    held_back: BTreeSet<JobKey>,
    /// Workspaces without room: nothing is started there.
    full: BTreeMap<WorkspaceName, String>,
    // What this round has changed.
    dirty: BTreeSet<JobKey>,
    /// Jobs of which only what is shown has changed, not what is stored.
    shown: BTreeSet<JobKey>,
    /// And how many runs they had.
    removed: BTreeMap<JobKey, u32>,
    counters_changed: bool,
    /// Runs that made way for newer ones.
    retired: Vec<(JobKey, RunRecord)>,
    /// And how they ended, to be published.
    last_words: Vec<(JobKey, JobReport)>,
    events: Vec<(JobKey, EventRecord)>,
    /// The last ones that are recorded, of all jobs.
    happenings: Happenings,
    /// Of attempts that are over.
    usage: Vec<UsageRecord>,
    /// When old records of that are looked for next.
    fold_usage_at: Timestamp,
    works: Vec<Work>,
    answers: Vec<Box<dyn FnOnce() + Send>>,
    retry_at: Option<Timestamp>,
    now: Timestamp,
}

impl<S: Store> Reconciler<S> {
    /// Goes on from what the store says. The first round's works look at every task that may live.
    pub fn open(store: S, settings: Settings, now: Timestamp) -> Result<Self, StoreError> {
        let contents = store.load()?;
        let last_event = contents.counters.event;
        let mut shares = Shares::new(settings.half_life);
        for used in store.usage(shares.matters_since(now))? {
            shares.account(&used);
        }
        let mut this = Self {
            store,
            settings,
            counters: contents.counters,
            jobs: BTreeMap::new(),
            queue: Queue::default(),
            waiters: Waiters::default(),
            shares,
            live: BTreeSet::new(),
            attempts: BTreeMap::new(),
            held_up: Vec::new(),
            whys: BTreeMap::new(),
            outlook: None,
            queue_changed: true,
            moved: BTreeSet::new(),
            told_at: Timestamp(0),
            last_block: None,
            cards: Cards::default(),
            idleness: Idleness::default(),
            strays: BTreeMap::new(),
            ending: false,
            drain: None,
            look_again: BTreeMap::new(),
            stop_again: BTreeMap::new(),
            backing_off: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            held_back: BTreeSet::new(),
            full: BTreeMap::new(),
            dirty: BTreeSet::new(),
            shown: BTreeSet::new(),
            removed: BTreeMap::new(),
            counters_changed: false,
            retired: Vec::new(),
            last_words: Vec::new(),
            events: Vec::new(),
            happenings: Happenings::after(last_event),
            usage: Vec::new(),
            fold_usage_at: now,
            works: Vec::new(),
            answers: Vec::new(),
            retry_at: None,
            now,
        };
        let mut runs = contents.runs;
        for (key, record) in contents.jobs {
            let run = runs.remove(&key);
            this.jobs.insert(key.clone(), Job::load(record, run));
            this.resume(&key);
        }
        // Some were looked at before those that they wait for were there.
        for key in this.awaiting.keys().cloned().collect::<Vec<_>>() {
            this.tell_those_awaiting(&key);
        }
        this.refresh_outlook(queue::SEEN);
        Ok(this)
    }

    /// After a restart: look at what may live, go on with what was not finished.
    fn resume(&mut self, key: &JobKey) {
        let Some(run) = self.jobs.get(key).and_then(Job::open_run) else { return self.remember_turned_away(key) };
        if let Some(attempt) = run.live_attempt() {
            let (id, count) = (attempt.id, attempt.tasks.len());
            let open = (0..).zip(&attempt.tasks).filter(|(_, task)| task.phase.end().is_none());
            let open: Vec<TaskId> = open.map(|(ordinal, _)| attempt.task_id(ordinal)).collect();
            self.attempts.insert(id, key.clone());
            self.live.insert(key.clone());
            tracing::info!(job = %key, attempt = %id, tasks = count, open = open.len(), "going on with an attempt");
            for task in open {
                self.works.push(Work::Look { task, after: Look::Restart });
            }
            return;
        }
        if !run.record.prepared && run.record.unprepared.is_none() {
            self.prepare(key);
        }
        self.settle(key);
    }

    /// Attempts that may hold something of the machine.
    pub fn live_attempts(&self) -> BTreeSet<AttemptId> {
        self.attempts.keys().copied().collect()
    }

    /// The files in `jobs.d` of the jobs that the store knows.
    pub fn known_files(&self) -> Vec<JobKey> {
        let present = self.jobs.iter().filter(|(_, job)| job.record.file_present && !job.record.removed);
        let file = |(key, job): (&JobKey, &Job)| job.sweep(key).unwrap_or_else(|| key.clone());
        present.map(file).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Takes in what happened at `now`.
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        self.now = now;
        match event {
            Event::Files(arrivals) => arrivals.into_iter().for_each(|arrival| self.file(arrival)),
            Event::News(task) => self.works.push(Work::Look { task, after: Look::Sign }),
            Event::Preparing { key, run, what } => self.preparing(&key, run, what),
            Event::Delivering { key, run, state, note } => self.delivering(&key, run, state, note),
            Event::Done(outcome) => self.done(outcome),
            Event::Request(request) => self.request(request),
            Event::Full(full) => self.full(full),
            Event::Drain(order) => self.set_drain(order),
            Event::Settings(settings) => self.configure(*settings),
            Event::Gpus(seen) => self.cards_seen(seen),
            Event::Measured(measured) => self.measured(measured),
            Event::Remark { attempt, remark } => self.remark(attempt, remark),
            Event::Tick => self.try_again(),
            Event::Shutdown => self.stop_everything(),
        }
    }

    fn try_again(&mut self) {
        let now = self.now;
        // A clock that was set back: the job itself knows best.
        let due: Vec<JobKey> =
            self.backing_off.keys().filter(|key| self.backs_off(key, now).is_none()).cloned().collect();
        for key in due {
            self.backing_off.remove(&key);
            if self.jobs.get(&key).and_then(Job::open_run).is_some_and(world::Run::awaits_preparation) {
                self.prepare(&key);
            }
            self.settle(&key);
        }
        self.retry_what_failed();
    }

    fn backs_off(&self, key: &JobKey, now: Timestamp) -> Option<Timestamp> {
        self.jobs.get(key).and_then(Job::open_run)?.backs_off_until(now)
    }

    /// Plans, records, and hands out what is to be done.
    pub fn pass(&mut self, now: Timestamp) -> Result<Round, StoreError> {
        self.now = now;
        self.admit();
        let mut wake_at;
        loop {
            let planned = self.plan();
            wake_at = planned.wake_at;
            self.set_held_up(planned.held_up);
            self.cards.kept = planned.kept;
            if planned.steps.is_empty() {
                break;
            }
            for step in planned.steps {
                self.apply(step);
            }
            self.admit();
        }
        let look_at_cards = self.look_at_cards();
        let measure_at = self.measure_cards();
        let look_again = self.look_ahead();
        self.commit()?;
        let fold_more_at = self.fold_usage();
        self.answers.drain(..).for_each(|answer| answer());
        let published = self.publications();
        let next = self.backing_off.values().min().copied();
        let wake_at = [wake_at, self.retry_at, next, look_again, look_at_cards, measure_at, fold_more_at];
        let wake_at = wake_at.into_iter().flatten().min();
        Ok(Round { works: std::mem::take(&mut self.works), published, wake_at })
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Decide { key, verdict, cause } => self.decide(&key, verdict, cause),
            Step::TellOverrun { key, expected } => self.tell_overrun(&key, expected),
            Step::TellIdle { key, rule } => self.tell_idle(&key, &rule),
            Step::Release { key } => self.release(&key),
            Step::Retry { key, reason } => self.retry(&key, &reason),
            Step::End { key, verdict } => self.end(&key, verdict),
            Step::Start { key, block, pieces } => self.start(&key, block, pieces),
        }
    }

    fn decide(&mut self, key: &JobKey, verdict: Verdict, cause: StopCause) {
        let Some(attempt) = self.attempt_mut(key) else { return };
        attempt.stopping = Some(cause.clone());
        attempt.verdict = Some(verdict.clone());
        let open = attempt.tasks.iter().filter(|task| task.phase.outcome().is_none()).count();
        self.stop_open_tasks(key, &cause);
        if open > 0 {
            self.note(key, format!("stopping {open} task(s): {verdict}"));
        }
    }

    fn tell_overrun(&mut self, key: &JobKey, expected: Duration) {
        let Some(attempt) = self.attempt_mut(key) else { return };
        attempt.overrun_told = true;
        let expected = crate::ids::format_duration(expected);
        self.note(key, format!("alarm: it takes longer than its expected_duration of {expected}"));
    }

    fn stop_open_tasks(&mut self, key: &JobKey, cause: &StopCause) {
        let Some(attempt) = self.attempt_mut(key) else { return };
        // What is kept to be looked into stays when the others are stopped for it; if all is well it is of no interest.
        let spares_kept = *cause == StopCause::Decided && !matches!(attempt.verdict, Some(Verdict::Succeeded { .. }));
        let wanted =
            |task: &TaskRecord| if spares_kept { task.phase.outcome().is_none() } else { task.phase.end().is_none() };
        let open = (0..).zip(&attempt.tasks).filter(|(_, task)| wanted(task));
        let works: Vec<Work> =
            open.map(|(ordinal, _)| Work::Stop { task: attempt.task_id(ordinal), cause: cause.clone() }).collect();
        self.works.extend(works);
    }

    fn release(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_stopped = job.wanted_stop().is_some();
        let on_gpu_failure = job.on_gpu_failure();
        let Some(run) = job.open_run_mut() else { return };
        let Some(attempt) = run.live_attempt() else { return };
        let Some(verdict) = attempt.verdict.clone() else { return };
        let release = Release {
            attempt: attempt.id,
            identity: run.identity(key, attempt.number),
            spec: JobSpec::clone(&run.spec),
            text: run.record.source.text.clone(),
            started: attempt.created,
            ended: attempt.tasks.iter().filter_map(|task| Some(task.phase.end()?.at)).max().unwrap_or(self.now),
            is_last: is_stopped || !run.is_tried_again(attempt, &verdict, on_gpu_failure),
            verdict,
            owner: run.record.source.owner,
            gpus: attempt.tasks.iter().flat_map(|task| &task.gpus).map(|lease| lease.device().clone()).collect(),
        };
        run.releasing = true;
        self.works.push(Work::Release { key: key.clone(), release });
    }

    fn retry(&mut self, key: &JobKey, reason: &str) {
        let now = self.now;
        let Some(attempt) = self.attempt_mut(key) else { return };
        let number = attempt.number;
        attempt.ended = Some(now);
        self.conclude_attempt(key);
        let left = self.jobs.get(key).and_then(Job::open_run).map_or(0, world::Run::attempts_left);
        self.note(key, format!("attempt {number} failed: {reason}; {left} more attempt(s) allowed"));
        self.settle(key);
    }

    fn end(&mut self, key: &JobKey, verdict: Verdict) {
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

    fn conclude_attempt(&mut self, key: &JobKey) {
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

    fn start(&mut self, key: &JobKey, block: Option<AddressBlock>, pieces: Option<Vec<Vec<Piece>>>) {
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
            gpus,
        });
        let attempt = AttemptRecord {
            id,
            number: u32::try_from(run.record.attempts.len()).unwrap_or(u32::MAX).saturating_add(1),
            created: now,
            block,
            running_since: None,
            overrun_told: false,
            idle_since: None,
            failed_gpus: BTreeSet::new(),
            stopping: None,
            verdict: None,
            ended: None,
            released: false,
            tasks: tasks.collect(),
        };
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
    fn launch(&mut self, key: &JobKey, ordinals: Vec<u32>) {
        let Some(run) = self.jobs.get(key).and_then(Job::open_run) else { return };
        let Some(attempt) = run.live_attempt() else { return };
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

    fn done(&mut self, outcome: Outcome) {
        let plain = EngineError::plain;
        match outcome {
            Outcome::Prepared { key, run, result } => self.prepared(&key, run, result.map_err(plain)),
            Outcome::Launched { attempt, failures } => {
                let failures = failures.into_iter().map(|(task, error)| (task, error.plain())).collect();
                self.launched(attempt, failures);
            }
            Outcome::NotYet { attempt, tasks, reason } => self.put_back(attempt, &tasks, reason),
            Outcome::Looked { task, after, result } => self.looked(task, after, result.map_err(plain)),
            Outcome::Released { key, attempt, result } => self.released(&key, attempt, result.map_err(plain)),
            Outcome::LookedAtCards => self.cards_looked_at(),
            Outcome::Told => {}
            Outcome::Stopped { task, result } => {
                if let Err(error) = result {
                    tracing::warn!(%task, %error, "cannot stop a task, will try again");
                    let cause = self.task_attempt(task).and_then(|attempt| attempt.stopping.clone());
                    self.stop_again.extend(cause.map(|cause| (task, cause)));
                    self.retry_soon();
                }
            }
        }
    }

    /// The output of a run that has ended goes on its way, if its job file wants it.
    fn deliver(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(run) = &job.run else { return };
        if let Some(remote) = run.spec.copied_out() {
            let number = run.record.number;
            job.delivering.insert(number, format!("the output of run {number} is to be copied to {remote}"));
            self.works.push(Work::Deliver { key: key.clone(), run: number, how: Delivery::Over });
        }
    }

    fn delivering(&mut self, key: &JobKey, run: u32, state: Option<String>, note: Option<String>) {
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

    fn released(&mut self, key: &JobKey, attempt: AttemptId, result: Result<(), EngineError>) {
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

    /// Asks for the newest run to be stopped.
    fn want_stop(&mut self, key: &JobKey, cause: StopCause) {
        let Some(run) = self.jobs.get_mut(key).and_then(Job::open_run_mut) else { return };
        if run.record.stop.is_some() {
            return;
        }
        run.record.stop = Some(cause);
        self.dirty.insert(key.clone());
        self.settle(key);
    }

    /// What is only kept to be looked into goes when somebody stops the job or wants it to run again.
    fn let_kept_go(&mut self, key: &JobKey) {
        let Some(cause) = self.jobs.get(key).and_then(Job::no_longer_kept) else { return };
        let Some(attempt) = self.attempt_mut(key) else { return };
        let is_kept = |task: &TaskRecord| matches!(task.phase, TaskPhase::Kept { .. });
        if attempt.verdict.is_some() && attempt.tasks.iter().any(is_kept) {
            self.stop_open_tasks(key, &cause);
        }
    }

    /// Brings a job's place in the queue, a stop before its start, and its next run in line with its record.
    fn settle(&mut self, key: &JobKey) {
        self.dirty.insert(key.clone());
        self.let_kept_go(key);
        self.stop_before_start(key);
        self.replace_outdated(key);
        self.begin_run(key);
        self.await_others(key);
        self.await_room(key);
        self.backing_off.remove(key);
        if let Some(until) = self.put_off_until(key) {
            self.backing_off.insert(key.clone(), until);
        }
        self.queue_in(key);
    }

    fn stop_before_start(&mut self, key: &JobKey) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(cause) = job.wanted_stop() else { return };
        let Some(run) = job.open_run_mut().filter(|run| run.live_attempt().is_none()) else { return };
        let verdict = Verdict::Stopped { cause };
        let message = format!("{verdict}, before it started");
        run.record.ended = Some(RunEnd { verdict, at: now });
        self.works.extend(run.preparation.take().map(Work::GiveUp));
        // An earlier attempt may have written something.
        self.deliver(key);
        self.note(key, message);
        self.tell_those_awaiting(key);
    }

    /// A run that has never started makes way for the newer version of its file.
    fn replace_outdated(&mut self, key: &JobKey) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(key) else { return };
        if !job.is_outdated() {
            return;
        }
        let Some(run) = job.open_run_mut().filter(|run| run.record.attempts.is_empty()) else { return };
        run.record.ended = Some(RunEnd { verdict: Verdict::Stopped { cause: StopCause::Replaced }, at: now });
        self.works.extend(run.preparation.take().map(Work::GiveUp));
        self.deliver(key);
        self.note(key, "replaced by a newer version of its file before it started".to_owned());
    }

    fn begin_run(&mut self, key: &JobKey) {
        if self.jobs.get(key).is_none_or(|job| job.next_run().is_none()) || !self.may_wait(key) {
            return;
        }
        let order = self.counters.order + 1;
        let now = self.now;
        let last_word = self.jobs.get(key).filter(|job| job.run.is_some()).and_then(|_| self.report(key));
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some((source, spec)) = job.next_run() else { return };
        job.record.last_run += 1;
        job.record.rerun_wanted = false;
        job.record.rerun_number = spec.rerun;
        job.record.not_begun = None;
        let number = job.record.last_run;
        let prepared = !spec.needs_preparation();
        let record = RunRecord {
            number,
            created: now,
            order,
            source,
            prepared,
            unprepared: None,
            stop: None,
            extended_ms: 0,
            attempts: Vec::new(),
            ended: None,
        };
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

    fn attempt_mut(&mut self, key: &JobKey) -> Option<&mut AttemptRecord> {
        self.dirty.insert(key.clone());
        self.jobs.get_mut(key)?.open_run_mut()?.live_attempt_mut()
    }

    fn task_attempt(&self, task: TaskId) -> Option<&AttemptRecord> {
        let key = self.attempts.get(&task.attempt)?;
        self.jobs.get(key)?.open_run()?.live_attempt()
    }

    /// Records what happened to a job, for its owner and the journal.
    fn note(&mut self, key: &JobKey, message: String) {
        // Some of it is a task's own word, or a server's.
        let message = crate::sys::terminal::escape(&message);
        let (state, _) = self.state(key);
        let now = self.now;
        let Some(job) = self.jobs.get_mut(key) else { return };
        let (run, number) = (job.record.last_run, job.record.next_event);
        tracing::info!(job = %key, run, state = %state, reason = %message, "job");
        job.record.next_event += 1;
        self.counters.event += 1;
        self.counters_changed = true;
        let serial = self.counters.event;
        self.events.push((key.clone(), EventRecord { number, serial, at: now, run, state, message }));
        self.dirty.insert(key.clone());
    }
}

/// What a task belongs to.
fn identity(key: &JobKey, run: &RunRecord, attempt: u32) -> Identity {
    let uid = run.source.owner.uid;
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    let user = user.map_or_else(|| uid.to_string(), |user| user.name);
    Identity { key: key.clone(), run: run.number, attempt, user, uid }
}

type Spec = Arc<JobSpec>;

#[cfg(test)]
mod tests;
