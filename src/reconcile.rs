//! The one place where state changes: takes in what happened, plans, records the intents, hands out the work.
//!
//! A [`Reconciler`] is synchronous and owns everything; `daemon` drives it with events and carries the works to
//! threads. One round is: events → [`Reconciler::pass`] → plan until nothing is left to do → one commit → works.
//! Works are handed out only after the commit that records them, and each may be repeated; so a crash at any instant
//! leaves a store from which ordinary planning goes on. Level-triggered: a lost event delays, never breaks.

mod aside;
mod attempts;
mod cards;
mod clock;
mod drain;
mod event;
mod files;
mod happenings;
mod idle;
mod past;
mod preparing;
mod publishing;
mod queue;
mod requests;
mod retries;
mod room;
mod runs;
mod standing;
mod stored;
mod sweeps;
mod tasks;
mod waiting;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::contract::Identity;
use crate::engine::EngineError;
use crate::ids::{AttemptId, JobKey, TaskId, Timestamp, WorkspaceName};
use crate::plan::outlook::Outlook;
use crate::plan::{HeldUp, Queue, Shares, Step, Why};
use crate::report::{DrainOrder, Gone, JobReport};
use crate::spec::JobSpec;
use crate::status::StopCause;
use crate::store::record::{AddressBlock, AttemptRecord, Counters, EventRecord, RunRecord, UsageRecord};
use crate::store::{Store, StoreError};

use cards::Cards;
pub use event::{Event, Free, Look, Outcome, Round, Settings, Work};
use happenings::Happenings;
pub use happenings::{Happened, Recent, StatesAt};
use idle::Idleness;
pub use past::Past;
pub use preparing::PREPARES;
use publishing::Unrecorded;
use queue::Waiters;
pub use requests::{
    Answer, Beside, Caller, EventPart, JobDetail, Kept, Lease, Listing, Refusal, Removes, Request, RunPart, Sight,
    TakenIn, Used, Verb, Whose,
};
use world::Job;

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
    /// While it is told of many jobs at once.
    listed: Option<standing::Listed>,
    /// Workspaces without room: nothing is started there.
    full: BTreeMap<WorkspaceName, String>,
    /// Less is free than new runs need: nothing is started at all.
    low: Option<Free>,
    /// What was decided cannot be recorded, for want of room.
    unrecorded: Option<Unrecorded>,
    // What this round has changed.
    dirty: BTreeSet<JobKey>,
    /// Jobs of which only what is shown has changed, not what is stored.
    shown: BTreeSet<JobKey>,
    /// With what goes of them.
    removed: BTreeMap<JobKey, Gone>,
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
    /// To changes; each with why it is not recorded yet, if so.
    answers: Vec<Box<dyn FnOnce(Option<Refusal>) + Send>>,
    retry_at: Option<Timestamp>,
    now: Timestamp,
}

/// What workspaces have used, by what the store has of it.
fn shares(store: &impl Store, half_life: Duration, now: Timestamp) -> Result<Shares, StoreError> {
    let mut shares = Shares::new(half_life);
    for used in store.usage(shares.matters_since(now))? {
        shares.account(&used, now);
    }
    Ok(shares)
}

impl<S: Store> Reconciler<S> {
    /// Goes on from what the store says. The first round's works look at every task that may live.
    pub fn open(store: S, settings: Settings, now: Timestamp) -> Result<Self, StoreError> {
        let contents = store.load()?;
        let last_event = contents.counters.event;
        let shares = shares(&store, settings.half_life, now)?;
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
            listed: None,
            full: BTreeMap::new(),
            low: None,
            unrecorded: None,
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
            let is_open = run.as_ref().is_some_and(|run| run.ended.is_none());
            let job = Job::load(record, run);
            if is_open && job.run.is_none() {
                tracing::error!(job = %key, "this version cannot read the job file of a run that is not over, and ends its tasks");
            }
            this.jobs.insert(key.clone(), job);
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
        self.remember_turned_away(key);
        self.set_aside(key);
        let Some(run) = self.jobs.get(key).and_then(Job::open_run) else { return };
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
        if run.is_unprepared() && run.record.unprepared.is_none() {
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
            Event::Preparing { key, run, told } => self.preparing(&key, run, told),
            Event::Delivering { key, run, state, note } => self.delivering(&key, run, state, note),
            Event::Done(outcome) => self.done(outcome),
            Event::Request(request) => self.request(request),
            Event::Full(full) => self.full(full),
            Event::Free(free) => self.free(free),
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
        let look_again = self.look_ahead();
        match self.commit() {
            Ok(()) => self.recorded(),
            Err(error) if error.is_no_room() => return Ok(self.put_off(&error)),
            Err(error) => return Err(error),
        }
        // Only now: while nothing can be recorded nothing is handed out, and each sample asked for meanwhile would lie here.
        let measure_at = self.measure_cards();
        let fold_more_at = self.fold_usage();
        self.answers.drain(..).for_each(|answer| answer(None));
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

    fn done(&mut self, outcome: Outcome) {
        let plain = EngineError::plain;
        match outcome {
            Outcome::Prepared { key, run, result } => self.prepared(&key, run, result.map_err(plain)),
            Outcome::SetAside { key, run, number, result } => {
                self.aside_set(&key, run, number, result.map_err(plain));
            }
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

    fn attempt_mut(&mut self, key: &JobKey) -> Option<&mut AttemptRecord> {
        self.dirty.insert(key.clone());
        self.jobs.get_mut(key)?.open_run_mut()?.live_attempt_mut()
    }

    fn task_attempt(&self, task: TaskId) -> Option<&AttemptRecord> {
        let key = self.attempts.get(&task.attempt)?;
        self.jobs.get(key)?.open_run()?.live_attempt()
    }

    /// Records what people should look at, though the job goes on.
    fn alarm(&mut self, key: &JobKey, what: &str) {
        self.note(key, EventRecord::alarm(what));
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
    identity_of(key, run.number, run.source.owner.uid, attempt)
}

fn identity_of(key: &JobKey, run: u32, uid: u32, attempt: u32) -> Identity {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    let user = user.map_or_else(|| uid.to_string(), |user| user.name);
    Identity { key: key.clone(), run, attempt, user, uid }
}

type Spec = Arc<JobSpec>;

#[cfg(test)]
mod tests;
