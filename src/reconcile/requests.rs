//! What people ask for, and what they are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::queue::SEEN;
use super::runs::refused_now;
use super::world::Job;
use super::{Recent, Reconciler, StatesAt, Work};
use crate::contract::Identity;
use crate::engine::Delivery;
use crate::ids::{AttemptId, GpuUuid, JobKey, TaskName, Timestamp, WorkspaceName};
use crate::report::{DrainReport, GpuReport, JobReport};
use crate::spec::{Dataset, DesiredState, Diagnostic};
use crate::status::{State, StopCause, StopHow};
use crate::store::record::{EventRecord, GpuLease, GpuPartLease, RunRecord, UsageRecord, UsageSum};
use crate::store::{Store, StoreError};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub name: String,
    /// Only what is of these workspaces; everything when absent.
    pub within: Option<Arc<BTreeSet<WorkspaceName>>>,
}

impl Caller {
    /// A user of this machine. Asks the machine for the name, which may take a moment.
    pub fn of(uid: u32) -> Self {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
        Self { uid, name: user.map_or_else(|| format!("user {uid}"), |user| user.name), within: None }
    }

    /// The daemon itself.
    pub fn root() -> Self {
        Self { uid: 0, name: "root".to_owned(), within: None }
    }

    /// Whether what is of this workspace is there for them at all.
    pub fn reaches(&self, workspace: &str) -> bool {
        self.within.as_ref().is_none_or(|within| within.iter().any(|name| name.as_str() == workspace))
    }
}

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
pub struct Listing {
    pub jobs: Vec<JobReport>,
    /// Files that cannot be anybody's job.
    pub strays: Vec<Diagnostic>,
    /// All events up to this serial number have come before.
    pub serial: u64,
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
    /// Its newest run is not over.
    pub is_open: bool,
    /// What the cards of its tasks do.
    pub gpus: Vec<GpuReport>,
    pub events: Vec<EventRecord>,
    pub runs: Vec<RunRecord>,
    /// The last good version of the job file.
    pub text: Option<String>,
}

/// Why a request is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no job {0}; `trainyard ps` lists the jobs")]
    Unknown(JobKey),
    #[error("{key} is a sweep of {} jobs; name one of them: {}", jobs.len(), jobs.join(", "))]
    Sweep { key: JobKey, jobs: Vec<String> },
    #[error("job {key} belongs to another user; only its owner and root may do that")]
    NotYours { key: JobKey },
    #[error("job {key} is {state} already; `trainyard rerun {key}` starts it again")]
    NotRunning { key: JobKey, state: State },
    #[error("job {key} is {state}; `trainyard stop {key}` first")]
    StillRunning { key: JobKey, state: State },
    #[error("the file of job {key} is still in jobs.d; remove it (`trainyard rm --file` does), then the record goes")]
    FileStillThere { key: JobKey },
    #[error("job {key}: {state}; wait for it, or give up the copy with `trainyard send --drop {key}`")]
    Unsent { key: JobKey, state: String },
    #[error("job {key} copies no output to a store, or all of it is there")]
    NothingToSend { key: JobKey },
    #[error(
        "job {key} may take as long as it takes: its file has neither max_duration nor on_overrun = \"stop\", so there is \
         nothing to extend"
    )]
    NoLimit { key: JobKey },
    #[error("job {key} is ending already, it cannot be extended; `trainyard rerun {key}` runs it again")]
    Ending { key: JobKey },
    #[error("job {key} may be extended by more than nothing, and by 3650d in all")]
    NoSuchExtension { key: JobKey },
    #[error("job {key} has no job file any more; put it back into jobs.d")]
    NoFile { key: JobKey },
    #[error("job {key} has state = \"stopped\" in its file; change that instead")]
    StoppedByFile { key: JobKey },
    #[error("job {key} has never had a valid file: {problem}")]
    NeverValid { key: JobKey, problem: String },
    #[error("job {key}: {problem}")]
    RefusedNow { key: JobKey, problem: String },
    /// Of several jobs, each.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Each(Vec<Refusal>),
    /// The change is made when there is room, or was not taken at all.
    #[error(
        "the disk of the daemon's state is full, so that nothing can be recorded: {}; `trainyard doctor disk` tells where",
        if *is_kept { "this is done as soon as there is room, unless the daemon ends before" } else { "ask again when there is room" }
    )]
    NoRoom { is_kept: bool },
    #[error("the store cannot be read: {0}")]
    Store(String),
}

/// So many holders of what a job waits for are told in a list of all jobs.
const LISTED_HOLDERS: usize = 5;
/// Most that a run is extended by in all.
const EXTENDED_MAX_MS: u64 = 3650 * 24 * 3_600_000;

impl<S: Store> Reconciler<S> {
    pub(super) fn request(&mut self, request: Request) {
        match &request {
            Request::List { .. } if !self.queue.is_empty() => self.look_ahead_for_answer(SEEN),
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
            Request::List { caller, answer } => answer(Ok(self.list(&caller))),
            Request::Leases { caller, answer } => answer(Ok(self.leases(&caller))),
            Request::Usage { since, answer } => answer(self.usage_since(since)),
            Request::Events { caller, after, limit, answer } => answer(Ok(self.happened(&caller, after, limit))),
            Request::FirstEvents { caller, jobs, answer } => answer(Ok(self.first_events(&caller, &jobs))),
            Request::StatesAt { serial, answer } => answer(self.states_at(serial)),
            Request::Drain { answer } => answer(Ok(self.drain_report())),
            Request::OpenRuns { answer } => answer(Ok(self.open_runs())),
            Request::AwaitedData { answer } => answer(Ok(self.awaited_data())),
            Request::Show { caller, key, runs, events, answer } => answer(self.show(&caller, &key, runs, events)),
            Request::NoRoom { answer } => answer(Ok(self.why_nothing_is_begun())),
            Request::Change { verb, answer, .. } if self.takes_no_more() && verb.is_recorded() => {
                answer(Err(Refusal::NoRoom { is_kept: false }));
            }
            Request::Change { caller, key, verb, answer } => {
                let result = match verb {
                    Verb::Stop { how } => self.of_each(&key, &caller, |this, caller, key| this.stop(caller, key, how)),
                    Verb::Rerun => self.of_each(&key, &caller, Self::rerun),
                    Verb::Restart => self.of_each(&key, &caller, Self::restart),
                    Verb::Extend { by } => {
                        self.of_each(&key, &caller, |this, caller, key| this.extend(caller, key, by))
                    }
                    Verb::Remove => self.of_each(&key, &caller, Self::remove),
                    Verb::WouldRemove { with_file } => {
                        self.of_each(&key, &caller, |this, caller, key| this.would_remove(caller, key, with_file))
                    }
                    Verb::Send => {
                        self.of_each(&key, &caller, |this, caller, key| this.send(caller, key, Delivery::Now))
                    }
                    Verb::KeepUnsent => {
                        self.of_each(&key, &caller, |this, caller, key| this.send(caller, key, Delivery::Never))
                    }
                };
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

    fn list(&self, caller: &Caller) -> Listing {
        let visible = self.jobs.iter().filter(|(key, job)| may(caller, key, job));
        let report = |(key, job): (&JobKey, &Job)| {
            let mut report = self.report_of(key, job)?;
            // Of many jobs a few names are enough; all are told of one.
            report.waiting.iter_mut().for_each(|waiting| waiting.holders.truncate(LISTED_HOLDERS));
            Some(report)
        };
        let jobs = visible.filter_map(report).collect();
        let strays = if caller.uid == 0 && caller.within.is_none() {
            self.strays.values().flatten().cloned().collect()
        } else {
            Vec::new()
        };
        Listing { jobs, strays, serial: self.happenings.last() }
    }

    fn leases(&self, caller: &Caller) -> Vec<Lease> {
        let lease = |(lease, key, task, attempt): (GpuLease, JobKey, TaskName, AttemptId)| {
            let visible = self.jobs.get(&key).is_some_and(|job| may(caller, &key, job));
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

    /// The job, if the caller may act on it.
    fn job_of(&self, caller: &Caller, key: &JobKey) -> Result<&Job, Refusal> {
        let job = self.jobs.get(key).filter(|job| !job.record.removed).ok_or_else(|| self.unknown(caller, key))?;
        if may(caller, key, job) { Ok(job) } else { Err(Refusal::NotYours { key: key.clone() }) }
    }

    fn show(&self, caller: &Caller, key: &JobKey, runs: RunPart, events: EventPart) -> Result<JobDetail, Refusal> {
        let job = self.job_of(caller, key)?;
        let stored = |error: StoreError| Refusal::Store(error.to_string());
        let events = self.events_of(key, job, events).map_err(stored)?;
        let runs = self.runs_of(key, runs).map_err(stored)?;
        let report = self.report(key).ok_or_else(|| Refusal::Unknown(key.clone()))?;
        let text = job.record.source.as_ref().map(|source| source.text.clone());
        let (is_open, gpus) = (job.open_run().is_some(), self.card_reports(job));
        Ok(JobDetail { report, is_open, gpus, events, runs, text })
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
        let after = job.open_run().is_some();
        if let Some(job) = self.jobs.get_mut(key) {
            job.record.rerun_wanted = true;
        }
        self.settle(key);
        let is_aside = self.jobs.get(key).is_some_and(|job| job.record.aside.is_some());
        let aside = if is_aside { ", with code and data as they are now" } else { "" };
        if self.is_turned_away(key) {
            return Ok(format!("{key}: {}{aside}", self.why_turned_away(key)));
        }
        let record = self.jobs.get(key).map(|job| &job.record);
        let number = record.map_or(0, |record| record.last_run);
        let is_old = record.is_some_and(|record| !record.invalid.is_empty());
        let which = if is_old { ", of the last good version of its file, which is invalid now" } else { "" };
        Ok(match after {
            true => format!("{key}: run {} starts when run {number} has ended{which}{aside}", number + 1),
            false => format!("{key}: run {number}{which}"),
        })
    }

    fn restart(&mut self, caller: &Caller, key: &JobKey) -> Result<String, Refusal> {
        let runs = self.job_of(caller, key)?.open_run().is_some();
        let done = self.rerun(caller, key)?;
        if runs {
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
        self.works.extend(runs.into_iter().map(|run| Work::Deliver { key: key.clone(), run, how }));
        Ok(match how {
            Delivery::Never => format!("{key}: what is not in the store yet stays in output/ alone"),
            Delivery::Now | Delivery::Over => format!("{key}: copying; `trainyard status {key}` tells how far"),
        })
    }

    fn remove(&mut self, caller: &Caller, key: &JobKey) -> Result<String, Refusal> {
        self.removable(caller, key, false)?;
        self.forget(key);
        Ok(format!("{key}: removed"))
    }

    /// A job of which nothing runs or is on its way, and whose file is gone or goes with it.
    fn removable(&self, caller: &Caller, key: &JobKey, with_file: bool) -> Result<&Job, Refusal> {
        let job = self.job_of(caller, key)?;
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

/// The one rule of who may see a job and act on it.
pub(super) fn may(caller: &Caller, key: &JobKey, job: &Job) -> bool {
    caller.reaches(key.workspace.as_str()) && owns(caller, job)
}

fn owns(caller: &Caller, job: &Job) -> bool {
    caller.uid == 0 || job.record.source.as_ref().is_some_and(|source| source.owner.uid == caller.uid)
}
