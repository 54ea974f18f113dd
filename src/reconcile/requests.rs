//! What people ask for.

mod caller;
mod changes;
mod refusal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::queue::SEEN;
use super::world::Job;
use super::{Recent, Reconciler, StatesAt};
use crate::contract::Identity;
use crate::ids::{AttemptId, GpuUuid, JobKey, TaskName, Timestamp};
use crate::intake::Made;
use crate::report::{DrainReport, GpuReport, JobLine, JobReport};
use crate::spec::{Dataset, Diagnostic};
use crate::status::StopHow;
use crate::store::record::{EventRecord, GpuLease, GpuPartLease, RunRecord, UsageRecord, UsageSum};
use crate::store::{Store, StoreError};
pub use caller::{Beside, Caller, Removes, Sight};
pub use refusal::{Kept, Refusal, Whose};

/// Where an answer goes; nobody may be left to hear it.
pub type Answer<T> = Box<dyn FnOnce(Result<T, Refusal>) + Send>;

/// Which of a job's runs are told: it may have had any number, and whoever owns the state reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPart {
    /// So many at most.
    pub newest: usize,
    /// And this one, however old it is.
    pub also: Option<u32>,
}

/// And which of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventPart {
    None,
    /// So many at most.
    Newest(usize),
    /// From this number on, so many at most.
    From(u64, usize),
}

/// A request and where its answer goes. Answers to changes go out when the change is recorded.
pub enum Request {
    List {
        caller: Caller,
        answer: Answer<Listing>,
    },
    /// The same, a line each.
    Lines {
        caller: Caller,
        answer: Answer<Listing<JobLine>>,
    },
    Show {
        caller: Caller,
        key: JobKey,
        runs: RunPart,
        events: EventPart,
        answer: Answer<JobDetail>,
    },
    Change {
        caller: Caller,
        key: JobKey,
        verb: Verb,
        answer: Answer<String>,
    },
    /// Who holds which card.
    Leases {
        caller: Caller,
        answer: Answer<Vec<Lease>>,
    },
    /// What attempts have used that had not ended before then; who may see what is for the one who asks to say.
    Usage {
        since: Timestamp,
        answer: Answer<Used>,
    },
    /// What happened to all jobs that the caller may see, behind that serial number: so many at most, in order.
    Events {
        caller: Caller,
        after: u64,
        limit: usize,
        answer: Answer<Recent>,
    },
    /// Which of these jobs the caller may see, with the number of the first event of each; for [`super::Past`].
    FirstEvents {
        caller: Caller,
        jobs: BTreeSet<JobKey>,
        answer: Answer<BTreeMap<JobKey, u64>>,
    },
    /// What all jobs had come to by that serial number; for the daemon itself.
    StatesAt {
        serial: u64,
        answer: Answer<StatesAt>,
    },
    /// Whether anything may start, and what still runs.
    Drain {
        answer: Answer<DrainReport>,
    },
    /// Why nothing is begun, where a disk has no room for it.
    NoRoom {
        answer: Answer<Option<String>>,
    },
    /// What would be said of a job file if it came now.
    Judge {
        file: Arc<Made>,
        answer: Answer<Vec<Diagnostic>>,
    },
    /// What has come of one that was written.
    TakenIn {
        file: Arc<Made>,
        answer: Answer<TakenIn>,
    },
    /// Whether a job file of that name is known to be there.
    HasFile {
        key: JobKey,
        answer: Answer<bool>,
    },
    /// Runs that are not over; for the daemon itself.
    OpenRuns {
        answer: Answer<Vec<Identity>>,
    },
    /// Data that runs are to have which have not chosen theirs yet; for the daemon itself.
    AwaitedData {
        answer: Answer<Vec<(JobKey, Dataset)>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Stop {
        how: StopHow,
    },
    Rerun,
    /// Stops what runs, then as `Rerun`.
    Restart,
    Remove,
    /// Says what `Remove` would do, with the job's file where that is to go as well.
    WouldRemove {
        with_file: bool,
    },
    /// Its newest run may take so much longer.
    Extend {
        by: Duration,
    },
    /// Copies to its store what is there of the output.
    Send,
    /// No longer copies what is not there yet.
    KeepUnsent,
}

impl Verb {
    /// Whether something changes by it, which is recorded before it is answered.
    fn is_recorded(self) -> bool {
        !matches!(self, Self::WouldRemove { .. })
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

/// All jobs that the caller may see.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing<J = JobReport> {
    pub jobs: Vec<J>,
    /// Files that cannot be anybody's job.
    pub strays: Vec<Diagnostic>,
    /// All events up to this serial number have come before.
    pub serial: u64,
}

/// What [`Request::TakenIn`] answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenIn {
    /// Each job that the file makes has it in force.
    Yes,
    /// It is still to be read.
    NotYet,
    /// Another file or the configuration has come before it.
    Refused(Vec<Diagnostic>),
}

/// What was used.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Used {
    /// By attempts that ended since, or run.
    pub attempts: Vec<UsageRecord>,
    /// What is left of older ones, by whole days.
    pub days: Vec<UsageSum>,
}

/// A card, or a part of one, that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The card.
    pub gpu: GpuUuid,
    /// How much of it; all when absent.
    pub part: Option<GpuPartLease>,
    pub attempt: AttemptId,
    /// The job and its task, or, of a job that the caller may not see, its workspace.
    pub holder: String,
    /// The caller may see the job.
    pub visible: bool,
}

/// One job with its history.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDetail {
    pub report: JobReport,
    /// How much the caller sees of it, and of the run that was asked for.
    pub sight: Sight,
    /// Its newest run is not over.
    pub is_open: bool,
    /// The sweep whose file makes it.
    pub sweep: Option<JobKey>,
    /// What the cards of its tasks do.
    pub gpus: Vec<GpuReport>,
    pub events: Vec<EventRecord>,
    pub runs: Vec<RunRecord>,
    /// The last good version of the job file, for who sees all of it.
    pub text: Option<String>,
}

/// So many holders of what a job waits for are told in a list of all jobs.
const LISTED_HOLDERS: usize = 5;
impl<S: Store> Reconciler<S> {
    pub(super) fn request(&mut self, request: Request) {
        match &request {
            Request::List { .. } | Request::Lines { .. } if !self.queue.is_empty() => self.look_ahead_for_answer(SEEN),
            Request::Show { key, .. } if self.queue.contains(key) => {
                self.look_ahead_for_answer(SEEN);
                // Of one that is asked for by name its place is told, however far behind it is.
                if self.standing(key).is_none() {
                    self.look_ahead_for_answer(usize::MAX);
                }
            }
            _ => {}
        }
        match request {
            Request::List { caller, answer } => {
                answer(Ok(self.as_one_list(|this| this.list(&caller, Self::listed_of))))
            }
            Request::Lines { caller, answer } => answer(Ok(self.as_one_list(|this| this.list(&caller, Self::line_of)))),
            Request::Leases { caller, answer } => answer(Ok(self.leases(&caller))),
            Request::Usage { since, answer } => answer(self.usage_since(since)),
            Request::Events { caller, after, limit, answer } => answer(Ok(self.happened(&caller, after, limit))),
            Request::FirstEvents { caller, jobs, answer } => answer(Ok(self.first_events(&caller, &jobs))),
            Request::StatesAt { serial, answer } => answer(self.states_at(serial)),
            Request::Drain { answer } => answer(Ok(self.drain_report())),
            Request::Judge { file, answer } => answer(Ok(self.judged(&file))),
            Request::TakenIn { file, answer } => answer(Ok(self.taken_in(&file))),
            Request::HasFile { key, answer } => answer(Ok(self.has_file(&key))),
            Request::OpenRuns { answer } => answer(Ok(self.open_runs())),
            Request::AwaitedData { answer } => answer(Ok(self.awaited_data())),
            Request::Show { caller, key, runs, events, answer } => answer(self.show(&caller, &key, runs, events)),
            Request::NoRoom { answer } => answer(Ok(self.why_nothing_is_begun())),
            Request::Change { verb, answer, .. } if self.takes_no_more() && verb.is_recorded() => {
                answer(Err(Refusal::NoRoom { is_kept: false }));
            }
            Request::Change { caller, key, verb, answer } => {
                let result = self.change(&caller, &key, verb);
                if !verb.is_recorded() {
                    return answer(result);
                }
                let tell = move |unrecorded: Option<Refusal>| {
                    answer(result.and_then(|done| unrecorded.map_or(Ok(done), Err)));
                };
                self.answers.push(Box::new(tell));
            }
        }
    }

    fn awaited_data(&self) -> Vec<(JobKey, Dataset)> {
        let of = |(key, job): (&JobKey, &Job)| -> Vec<_> {
            job.awaited_data().into_iter().map(|dataset| (key.clone(), dataset.clone())).collect()
        };
        self.jobs.iter().flat_map(of).collect()
    }

    fn list<J>(&self, caller: &Caller, tell: fn(&Self, &JobKey, &Job) -> Option<J>) -> Listing<J> {
        let visible = self.jobs.iter().filter(|(key, job)| caller.sees(key, job));
        let jobs = visible.filter_map(|(key, job)| tell(self, key, job)).collect();
        let strays = if caller.uid == 0 && caller.within.is_none() {
            self.strays.values().flatten().cloned().collect()
        } else {
            Vec::new()
        };
        Listing { jobs, strays, serial: self.happenings.last() }
    }

    fn listed_of(&self, key: &JobKey, job: &Job) -> Option<JobReport> {
        let mut report = self.report_of(key, job)?;
        // Of many jobs a few names are enough; all are told of one.
        report.waiting.iter_mut().for_each(|waiting| waiting.holders.truncate(LISTED_HOLDERS));
        Some(report)
    }

    fn leases(&self, caller: &Caller) -> Vec<Lease> {
        let lease = |(lease, key, task, attempt): (GpuLease, JobKey, TaskName, AttemptId)| {
            let visible = self.jobs.get(&key).is_some_and(|job| caller.sees(&key, job));
            let holder =
                if visible { format!("{key} {task}") } else { format!("a job of workspace {}", key.workspace) };
            Lease { gpu: lease.uuid, part: lease.part, attempt, holder, visible }
        };
        self.lease_holders().into_iter().map(lease).collect()
    }

    /// Runs that are not over.
    pub fn open_runs(&self) -> Vec<Identity> {
        let runs = self.jobs.iter().filter_map(|(key, job)| Some((key, job.open_run()?)));
        runs.map(|(key, run)| run.identity(key, 0)).collect()
    }

    /// The job, if it is there for the caller.
    fn seen(&self, caller: &Caller, key: &JobKey) -> Result<(&Job, Sight), Refusal> {
        let known = self.jobs.get(key).filter(|job| !job.record.removed);
        let seen = known.and_then(|job| Some((job, caller.sight(key, job)?)));
        seen.ok_or_else(|| self.unknown(caller, key))
    }

    /// The job, if the caller may act on it.
    fn job_of(&self, caller: &Caller, key: &JobKey) -> Result<&Job, Refusal> {
        let (job, _) = self.seen(caller, key)?;
        caller.check_change(key, job).map(|()| job)
    }

    fn show(&self, caller: &Caller, key: &JobKey, runs: RunPart, events: EventPart) -> Result<JobDetail, Refusal> {
        let (job, sight) = self.seen(caller, key)?;
        let stored = |error: StoreError| Refusal::Store(error.to_string());
        let asked = runs.also;
        let events = self.events_of(key, job, events).map_err(stored)?;
        let runs = self.runs_of(key, runs).map_err(stored)?;
        let report = self.report(key).ok_or_else(|| Refusal::Unknown(key.clone()))?;
        // As in the mount, where it is for its owner alone.
        let source = job.record.source.as_ref().filter(|_| sight == Sight::Own);
        let text = source.map(|source| source.text.clone());
        let run = runs.iter().rfind(|run| asked.is_none_or(|number| run.number == number));
        let sight = run.map_or(sight, |run| caller.sight_of_run(run.source.owner));
        let (is_open, gpus) = (job.open_run().is_some(), self.card_reports(job));
        Ok(JobDetail { report, sight, is_open, sweep: job.sweep(key), gpus, events, runs, text })
    }

    /// Of the store no more is read than is told.
    fn runs_of(&self, key: &JobKey, part: RunPart) -> Result<Vec<RunRecord>, StoreError> {
        let newest = self.store.runs(key, 0..=u32::MAX, part.newest)?;
        let is_there = |number: &u32| newest.iter().any(|run| run.number == *number);
        let mut runs = match part.also.filter(|number| !is_there(number)) {
            Some(number) => self.store.runs(key, number..=number, 1)?,
            None => Vec::new(),
        };
        runs.extend(newest);
        Ok(runs)
    }

    /// The same of its events.
    fn events_of(&self, key: &JobKey, job: &Job, part: EventPart) -> Result<Vec<EventRecord>, StoreError> {
        let (from, most) = match part {
            EventPart::None => return Ok(Vec::new()),
            // Numbers have no gaps.
            EventPart::Newest(most) => {
                (job.record.next_event.saturating_sub(u64::try_from(most).unwrap_or(u64::MAX)), most)
            }
            EventPart::From(number, most) => (number, most),
        };
        let from = from.max(job.record.first_event);
        let mut events = self.store.events(key, from, most)?;
        let unrecorded = self.events.iter().filter(|(other, event)| other == key && event.number >= from);
        events.extend(unrecorded.map(|(_, event)| event.clone()));
        events.truncate(most);
        Ok(events)
    }
}
