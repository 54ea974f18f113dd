//! What a state of the past means now; pure.
//!
//! What ran when the backup was taken is lost; what was still to run is made ready anew, since nothing of it need be there. Numbers
//! that the disk shows as taken are not given again: what was done since the backup stays where it is, and is told of. How a run has
//! ended is believed to the disk: its model, which is published only then, or what its directory says.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{JobKey, Timestamp};
use crate::spec::Diagnostic;
use crate::status::{EndRecord, State, TaskEnd, Verdict};
use crate::store::Batch;
use crate::store::record::{Counters, EventRecord, JobRecord, RunEnd, RunRecord, TaskPhase, Unprepared};

/// More events than there can have been since the backup.
const EVENTS_APART: u64 = 1 << 32;

/// A serial number, or a place in the queue, behind all that can have been given since the backup: who follows events, as alerts do, remembers the last one that
/// it has seen, and would miss what comes under a lower one. The same backup may be restored again and again, so it is that of the clock
/// in microseconds, in each of which there is less than one event.
pub(super) fn serial_behind(known: u64, now: Timestamp) -> u64 {
    let by_clock = now.0.saturating_mul(1000);
    // A clock that was set back to before the backup.
    if by_clock > known { by_clock } else { known.saturating_add(EVENTS_APART) }
}

/// Numbers that are taken on the disk.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) attempt: u64,
    pub(super) jobs: BTreeMap<JobKey, LeftJob>,
    /// How runs have ended that were not over, or are later.
    pub(super) ends: BTreeMap<(JobKey, u32), Verdict>,
}

#[derive(Debug, Default)]
pub(super) struct LeftJob {
    /// The highest run.
    pub(super) run: u32,
    /// The highest attempt of that one.
    pub(super) attempt: u32,
    /// How many events its file has.
    pub(super) events: u64,
}

impl Left {
    pub(super) fn is_empty(&self) -> bool {
        self.attempt == 0 && self.jobs.is_empty()
    }
}

/// A state of which nothing is known but what the disk has.
pub(super) fn anew(left: &Left, now: Timestamp) -> Batch {
    let behind = serial_behind(0, now);
    let counters = Counters { attempt: left.attempt, event: behind, order: behind, ..Counters::default() };
    let record = |key: &JobKey, left: &LeftJob| {
        let why = format!("the state was lost: drop its file again, or `trainyard rm {key}`");
        JobRecord { next_event: left.events, ..of_directories(key, left.run, why, now) }
    };
    Batch {
        counters: Some(counters),
        jobs: left.jobs.iter().map(|(key, left)| (key.clone(), record(key, left))).collect(),
        ..Batch::default()
    }
}

/// A job of which only directories are there: a file of its name begins with the next number.
fn of_directories(key: &JobKey, last_run: u32, why: String, now: Timestamp) -> JobRecord {
    JobRecord {
        file_present: false,
        invalid: vec![Diagnostic::of_file(&format!("{}.toml", key.job), why)],
        last_run,
        unknown_runs: last_run,
        ..JobRecord::new(now)
    }
}

pub(super) struct Adapted {
    pub(super) batch: Batch,
    /// Runs that were not over.
    pub(super) open: usize,
    /// What the disk has that is newer, for people.
    pub(super) newer: Vec<String>,
}

pub(super) fn adapt(mut batch: Batch, left: &Left, taken: Timestamp, now: Timestamp) -> Adapted {
    let mut counters = batch.counters.unwrap_or_default();
    counters.attempt = counters.attempt.max(left.attempt);
    counters.event = serial_behind(counters.event, now);
    // What was set aside since is called by one of them, and may still be there.
    counters.order = serial_behind(counters.order, now);
    batch.counters = Some(counters);
    let mut adapter = Adapter { batch, ends: &left.ends, taken, now, open: 0, newer: Vec::new() };
    let keys: BTreeSet<JobKey> = adapter.batch.jobs.keys().chain(left.jobs.keys()).cloned().collect();
    for key in keys {
        adapter.job(&key, left.jobs.get(&key));
    }
    Adapted { batch: adapter.batch, open: adapter.open, newer: adapter.newer }
}

struct Adapter<'a> {
    batch: Batch,
    ends: &'a BTreeMap<(JobKey, u32), Verdict>,
    taken: Timestamp,
    now: Timestamp,
    open: usize,
    newer: Vec<String>,
}

impl Adapter<'_> {
    fn job(&mut self, key: &JobKey, left: Option<&LeftJob>) {
        let (highest, attempt) = left.map_or((0, 0), |left| (left.run, left.attempt));
        // What its file tells already is not written again under other words.
        if let Some((job, left)) = self.batch.jobs.get_mut(key).filter(|job| !job.removed).zip(left) {
            job.next_event = job.next_event.max(job.first_event.saturating_add(left.events));
        }
        match self.batch.jobs.get(key).map(|job| (job.removed || job.source.is_none(), job.last_run)) {
            Some((false, last)) => self.known(key, last, (highest, attempt)),
            // As it was: its numbers go on counting.
            Some((true, last)) if last >= highest => {}
            None if left.is_none() => {}
            _ => self.unknown(key, highest, left.map_or(0, |left| left.events)),
        }
    }

    /// A job that the backup knows. `attempt` is of the highest run: what an earlier run left tells nothing of one that still waits.
    fn known(&mut self, key: &JobKey, last: u32, (highest, attempt): (u32, u32)) {
        let run = self.batch.runs.get(&(key.clone(), last));
        let open = run.is_some_and(|run| run.ended.is_none());
        let attempts = run.map_or(0, |run| run.attempts.len());
        if highest > last {
            let what = format!(
                "{key}: its runs {} to {highest} are later than the backup; what they left is in runs/ and models/",
                last + 1
            );
            if open {
                self.conclude(key, last);
            }
            self.later_run(key, (highest, attempt), &what);
            self.newer.push(what);
        } else if open && let Some(verdict) = self.end(key, last) {
            let what = format!("{key}: run {last} ended after the backup: {verdict}");
            self.conclude(key, last);
            self.note(key, last, state_after(&verdict), format!("restored from a backup of {}: {what}", self.taken));
            self.newer.push(what);
        } else if open && highest == last && attempt as usize > attempts {
            self.conclude(key, last);
            self.newer
                .push(format!("{key}: run {last} went on after the backup; what its attempts left is in runs/{last}"));
        } else if open {
            self.open += 1;
            self.go_on(key, last);
        }
    }

    /// What ran is lost; by the job's own rules it is tried again, or the run is over.
    fn go_on(&mut self, key: &JobKey, number: u32) {
        let (now, taken) = (self.now, self.taken);
        let Some(run) = self.batch.runs.get_mut(&(key.clone(), number)) else { return };
        run.prepared = false;
        // Preparations of runs without a live attempt are begun by the start.
        let is_live = run.attempts.last().is_some_and(|attempt| attempt.ended.is_none());
        run.unprepared = is_live.then_some(Unprepared { failures: 0, at: now });
        lose_tasks(run, taken, now);
        // Of one that was not running nothing has happened that there would be to tell.
        if is_live {
            let message = format!("restored from a backup of {taken}: what its tasks did since then is not known");
            self.note(key, number, State::Waiting, message);
        }
    }

    fn end(&self, key: &JobKey, number: u32) -> Option<Verdict> {
        self.ends.get(&(key.clone(), number)).cloned()
    }

    /// The run does not go on: it has ended, or there are later attempts or runs.
    fn conclude(&mut self, key: &JobKey, number: u32) {
        let verdict = self.end(key, number).unwrap_or_else(|| Verdict::Failed {
            reason: format!(
                "lost: the state was restored from a backup of {}, and what was done later is there",
                self.taken
            ),
        });
        let (now, taken) = (self.now, self.taken);
        let Some(run) = self.batch.runs.get_mut(&(key.clone(), number)) else { return };
        lose_tasks(run, taken, now);
        if let Some(attempt) = run.attempts.last_mut().filter(|attempt| attempt.ended.is_none()) {
            // What it had of the machine is swept by the start, as of any attempt that is not live.
            (attempt.verdict, attempt.ended, attempt.released) = (Some(verdict.clone()), Some(now), true);
        }
        run.ended = Some(RunEnd { verdict, at: now });
    }

    /// The newest run of a job, of which no more is known than that it was there, and perhaps how it ended.
    fn later_run(&mut self, key: &JobKey, (number, attempt): (u32, u32), what: &str) {
        let Some(job) = self.batch.jobs.get_mut(key) else { return };
        let Some(source) = job.source.clone() else { return };
        job.last_run = number;
        // What was asked for may have been done.
        (job.rerun_wanted, job.turned_away) = (false, None);
        let known = if attempt == 0 { "it had not begun, as far as is known" } else { "how it ended is not known" };
        let verdict = self.ends.get(&(key.clone(), number)).cloned().unwrap_or_else(|| Verdict::Failed {
            reason: format!("{known}: it is later than the backup of {} that was restored", self.taken),
        });
        let state = state_after(&verdict);
        let run = RunRecord {
            prepared: true,
            ended: Some(RunEnd { verdict, at: self.now }),
            ..RunRecord::new(number, self.now, 0, source)
        };
        self.batch.runs.insert((key.clone(), number), run);
        self.note(key, number, state, format!("restored from a backup of {}: {what}", self.taken));
    }

    /// A job of which the backup has nothing, or that it has as removed.
    fn unknown(&mut self, key: &JobKey, highest: u32, events: u64) {
        let what = match highest {
            0 => format!("{key} is later than the backup, and has not run"),
            _ => format!("{key} is later than the backup; what its runs up to {highest} left is in runs/ and models/"),
        };
        let before = self.batch.jobs.get(key);
        let next_event = before.map_or(0, |job| job.next_event).max(events);
        let why = format!(
            "the job is later than the backup of {} that was restored: drop its file again, or `trainyard rm {key}`",
            self.taken
        );
        let record = JobRecord {
            rerun_number: before.map_or(0, |job| job.rerun_number),
            next_event,
            first_event: before.map_or(0, |job| job.first_event),
            ..of_directories(key, highest, why, self.now)
        };
        self.batch.jobs.insert(key.clone(), record);
        self.newer.push(what);
    }

    fn note(&mut self, key: &JobKey, run: u32, state: State, message: String) {
        let Some(job) = self.batch.jobs.get_mut(key) else { return };
        let number = job.next_event;
        job.next_event += 1;
        let counters = self.batch.counters.get_or_insert_default();
        counters.event += 1;
        let (serial, at) = (counters.event, self.now);
        self.batch.events.push((key.clone(), EventRecord { number, serial, at, run, state, message }));
    }
}

fn state_after(verdict: &Verdict) -> State {
    match verdict {
        Verdict::Succeeded { .. } => State::Succeeded,
        Verdict::Failed { .. } => State::Failed,
        Verdict::Stopped { .. } => State::Stopped,
    }
}

fn lose_tasks(run: &mut RunRecord, taken: Timestamp, now: Timestamp) {
    let live = run.attempts.iter_mut().filter(|attempt| attempt.ended.is_none());
    for task in live.flat_map(|attempt| &mut attempt.tasks).filter(|task| task.phase.outcome().is_none()) {
        let reason = format!("it ran when the backup of {taken} was taken, which has been restored");
        task.phase =
            TaskPhase::Ended(EndRecord { end: TaskEnd::Lost { reason }, at: now, memory_peak: None, note: None });
    }
}
