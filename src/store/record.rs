//! The stored records. They are versioned: a field is only ever added with a default, anything else raises
//! [`VERSION`] and gets a conversion here.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{AttemptId, GpuUuid, JobName, RoleName, TaskId, TaskName, Timestamp, WorkspaceName};
use crate::spec::{Diagnostic, OWNER_ALONE};
use crate::status::{EndRecord, State, StopCause, StopHow, Verdict};

/// The version that is written; older ones are read.
pub const VERSION: u32 = 1;

/// A record as it lies on disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Versioned<T> {
    pub(super) v: u32,
    pub(super) r: T,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// The last attempt number given out.
    pub attempt: u64,
    /// The last place in the queue given out.
    pub order: u64,
    /// The last serial number of an event given out.
    #[serde(default)]
    pub event: u64,
    /// How the clock stood against the machine's own time when stored times were last brought in line with it.
    #[serde(default)]
    pub clock: Option<ClockRecord>,
}

/// Which clock stored times are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Of this start of the machine.
    pub boot: String,
    /// The wall clock's lead over the time since then, ms.
    pub lead: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// A job file that was accepted, put together with its template and overrides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// The file's content; nothing else is needed to run it.
    pub text: String,
    pub meaning: String,
    pub owner: Owner,
    pub warnings: Vec<Diagnostic>,
    /// What of the text the job has not said itself: a template, specs.
    #[serde(default)]
    pub template: Option<TemplateRecord>,
    /// Set when the file makes several jobs.
    #[serde(default)]
    pub sweep: Option<SweepRecord>,
    /// Who might read all of the files that it was put together from when it was accepted: the mode, `0600` to `0644`, of a
    /// file of the owner's. Not there in records of before that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_by: Option<u32>,
}

impl SourceRecord {
    /// A file that stands for itself.
    pub fn new(text: String, meaning: String, owner: Owner) -> Self {
        Self { text, meaning, owner, warnings: Vec::new(), template: None, sweep: None, read_by: None }
    }

    /// The mode of a file of the owner's that shows the text. Of `now`, what the job's files come to now, counts only what says
    /// the same: it may have been closed since.
    pub fn shown_with(&self, now: Option<&Self>) -> u32 {
        let is_same = |now: &&Self| (&now.text, now.owner) == (&self.text, self.owner);
        let known = [self.read_by, now.filter(is_same).and_then(|now| now.read_by)];
        known.into_iter().flatten().reduce(|then, now| then & now).unwrap_or(OWNER_ALONE)
    }

    /// Whether it asks for another run than `run` was. What only a template or a spec has changed does not.
    pub fn differs(&self, run: &Self) -> bool {
        match (&self.template, &run.template) {
            // Both: what only these have changed, or how the hash is made, is no other word of the job's.
            (Some(this), Some(before)) => this.own != before.own && self.meaning != run.meaning,
            _ => self.meaning != run.meaning,
        }
    }

    /// Whether somebody has changed the file, or its template: a newer program may only warn of more, or know more of a price.
    pub fn is_edit_of(&self, before: &Self) -> bool {
        let said = |of: &Self| (of.owner, of.template.as_ref().map(|template| template.own.clone()));
        self.text != before.text || self.meaning != before.meaning || said(self) != said(before)
    }
}

/// Which job of a sweep it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepRecord {
    /// The name of the file.
    pub of: JobName,
    /// The keys that are swept, and their values here.
    pub values: Vec<(String, String)>,
}

/// What a job says beside its template and specs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemplateRecord {
    /// None where there are specs alone.
    pub name: Option<String>,
    /// The hash of what the job file and its overrides say themselves.
    pub own: String,
    /// Keys that act at once which they say themselves.
    #[serde(default)]
    pub own_live: BTreeSet<String>,
    /// Of an hour of its tasks, by the specs that it names.
    #[serde(default)]
    pub price: Option<f64>,
    /// Some of its tasks are of no spec with a price.
    #[serde(default)]
    pub price_is_part: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub created: Timestamp,
    /// The last good version of the file.
    pub source: Option<SourceRecord>,
    /// The file is in `jobs.d`.
    pub file_present: bool,
    /// What is wrong with the file as it is now.
    pub invalid: Vec<Diagnostic>,
    /// Whose it is where no version of it was good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_owner: Option<Owner>,
    /// The number of the newest run; 0 before the first.
    pub last_run: u32,
    /// A new run was asked for, beside what the file says.
    pub rerun_wanted: bool,
    /// The `rerun` number that was acted on.
    pub rerun_number: u64,
    /// The version of the file that was to follow when somebody stopped the job: it begins no run by itself.
    #[serde(default)]
    pub not_begun: Option<SourceRecord>,
    /// Its next run is due and not begun, since as many wait as its workspace may have; by these numbers those are in their order.
    #[serde(default)]
    pub turned_away: Option<u64>,
    /// What was set aside for its next run, which is wanted and cannot begin yet.
    #[serde(default)]
    pub aside: Option<AsideRecord>,
    /// The number of the next event.
    pub next_event: u64,
    /// It was removed; only its numbers are kept, so that a job of that name goes on counting and nothing old is taken
    /// for new.
    #[serde(default)]
    pub removed: bool,
    /// Events before this one belonged to a job that was removed.
    #[serde(default)]
    pub first_event: u64,
    /// Runs up to this one are on the disk alone: no record tells whose they are, and no file of that name makes them
    /// somebody's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown_runs: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl JobRecord {
    /// Of a job whose file has just come, and of which nothing else is known.
    pub fn new(created: Timestamp) -> Self {
        Self {
            created,
            source: None,
            file_present: true,
            invalid: Vec::new(),
            file_owner: None,
            last_run: 0,
            rerun_wanted: false,
            rerun_number: 0,
            not_begun: None,
            turned_away: None,
            aside: None,
            next_event: 0,
            removed: false,
            first_event: 0,
            unknown_runs: 0,
        }
    }

    /// Those that go with it.
    pub fn own_runs(&self) -> RangeInclusive<u32> {
        self.unknown_runs.saturating_add(1)..=self.last_run
    }

    /// Whose job it is: the owner's of the last good version of its file, or of the file where there was none.
    pub fn owner(&self) -> Option<Owner> {
        self.source.as_ref().map(|source| source.owner).or(self.file_owner)
    }
}

/// Code and data of a run that cannot begin yet, as they were when it was wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsideRecord {
    /// By which they are found; none is given twice.
    pub number: u64,
    /// Of the file of which that run is to be, and whose it is.
    pub meaning: String,
    pub owner: Owner,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub number: u32,
    pub created: Timestamp,
    /// Place in the queue.
    pub order: u64,
    pub source: SourceRecord,
    /// The number of what was set aside for it before it began.
    #[serde(default)]
    pub aside: Option<u64>,
    /// Code has been copied and the directories are there.
    pub prepared: bool,
    /// How often that has failed, and when it last did.
    #[serde(default)]
    pub unprepared: Option<Unprepared>,
    /// Somebody wants it stopped.
    pub stop: Option<StopCause>,
    /// Whether its tasks get their grace then.
    #[serde(default, skip_serializing_if = "StopHow::is_with_grace")]
    pub stop_how: StopHow,
    /// What was added to how long its attempts may take, ms.
    #[serde(default)]
    pub extended_ms: u64,
    /// It wants cards and was begun while it was not known which there are: it is looked at once more when they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cards_unknown: bool,
    /// When they were, its file was refused: it has never been a run for anybody, but for its number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused_at_last: bool,
    pub attempts: Vec<AttemptRecord>,
    /// Set once, at the end.
    pub ended: Option<RunEnd>,
}

impl RunRecord {
    /// One that has just begun and is not prepared.
    pub fn new(number: u32, created: Timestamp, order: u64, source: SourceRecord) -> Self {
        Self {
            number,
            created,
            order,
            source,
            aside: None,
            prepared: false,
            unprepared: None,
            stop: None,
            stop_how: StopHow::default(),
            extended_ms: 0,
            cards_unknown: false,
            refused_at_last: false,
            attempts: Vec::new(),
            ended: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unprepared {
    pub failures: u32,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    pub verdict: Verdict,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub id: AttemptId,
    /// From 1 within the run.
    pub number: u32,
    pub created: Timestamp,
    /// The addresses that this attempt holds.
    pub block: Option<AddressBlock>,
    /// When all tasks ran for the first time.
    pub running_since: Option<Timestamp>,
    /// That it takes longer than expected has been told.
    #[serde(default)]
    pub overrun_told: bool,
    /// That its cards are idle has been told, and since when they were; absent again once they are busy.
    #[serde(default)]
    pub idle_since: Option<Timestamp>,
    /// Cards of it of which it was told that they have failed.
    #[serde(default)]
    pub failed_gpus: BTreeSet<GpuUuid>,
    /// Cards that it shares, of which it was told that the driver does not say what its processes use of them.
    #[serde(default)]
    pub unwatched_gpus: BTreeSet<GpuUuid>,
    /// Why its tasks are being stopped.
    pub stopping: Option<StopCause>,
    /// What ended it; known before its last tasks have gone.
    pub verdict: Option<Verdict>,
    pub ended: Option<Timestamp>,
    /// Its processes, network and scratch space are gone.
    pub released: bool,
    pub tasks: Vec<TaskRecord>,
}

impl AttemptRecord {
    /// One that has just been made.
    pub fn new(id: AttemptId, number: u32, created: Timestamp, tasks: Vec<TaskRecord>) -> Self {
        Self {
            id,
            number,
            created,
            block: None,
            running_since: None,
            overrun_told: false,
            idle_since: None,
            failed_gpus: BTreeSet::new(),
            unwatched_gpus: BTreeSet::new(),
            stopping: None,
            verdict: None,
            ended: None,
            released: false,
            tasks,
        }
    }

    /// The task of this place, as it is now.
    pub fn task_id(&self, ordinal: u32) -> TaskId {
        let again = self.tasks.get(ordinal as usize).map_or(0, |task| task.again);
        TaskId { attempt: self.id, ordinal, again }
    }
}

/// A block of the private range: one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressBlock {
    pub base: Ipv4Addr,
    pub prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub role: RoleName,
    pub index: u32,
    pub phase: TaskPhase,
    /// How often it has been started again, after failures that its role forgives.
    #[serde(default)]
    pub again: u32,
    /// It uses more of a card than its share, of which its owner was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_share: Option<OverShare>,
    /// Cards that nobody else has before the attempt is released.
    #[serde(default)]
    pub gpus: Vec<GpuLease>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLease {
    /// Of the card.
    pub uuid: GpuUuid,
    /// Of its device, `/dev/nvidiaN`.
    pub minor: u32,
    /// How much of it; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<GpuPartLease>,
}

/// That a task uses more than its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverShare {
    /// Since when it was so each time that was looked; absent while it is just within it again.
    pub since: Option<Timestamp>,
    /// When it was looked at last.
    pub last: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum GpuPartLease {
    /// So many bytes of its memory, of as many as there are to be shared.
    Share { bytes: u64, of: u64 },
    /// One of those that MIG has cut it up into.
    /// With the numbers of its instances, by which its devices are found.
    Slice { uuid: GpuUuid, profile: String, gpu_instance: u32, compute_instance: u32 },
}

impl GpuLease {
    /// What the task knows it by.
    pub fn device(&self) -> &GpuUuid {
        match &self.part {
            Some(GpuPartLease::Slice { uuid, .. }) => uuid,
            Some(GpuPartLease::Share { .. }) | None => &self.uuid,
        }
    }
}

impl TaskRecord {
    pub fn name(&self) -> TaskName {
        TaskName { role: self.role.clone(), index: self.index }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum TaskPhase {
    /// It is to be started; whether it was is for its directory to say.
    Launching,
    Running {
        since: Timestamp,
    },
    /// It has failed; its container is kept to be looked into, and goes on holding what it was given.
    Kept {
        end: EndRecord,
        until: Timestamp,
    },
    Ended(EndRecord),
}

impl TaskPhase {
    /// How its command ended, whether or not its container is still kept.
    pub fn outcome(&self) -> Option<&EndRecord> {
        match self {
            TaskPhase::Ended(end) | TaskPhase::Kept { end, .. } => Some(end),
            TaskPhase::Launching | TaskPhase::Running { .. } => None,
        }
    }

    pub fn end(&self) -> Option<&EndRecord> {
        match self {
            TaskPhase::Ended(end) => Some(end),
            _ => None,
        }
    }
}

/// What an attempt had of the machine, from when it was given until all of it was free again. Written with the attempt's end; it
/// stays when the job is removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageRecord {
    pub attempt: AttemptId,
    pub workspace: WorkspaceName,
    pub job: JobName,
    pub run: u32,
    /// User id of the job's owner.
    pub owner: u32,
    pub from: Timestamp,
    pub to: Timestamp,
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Whole cards, without what is beside them.
    pub gpu: u64,
    /// Thousandths of a card beside those, by shares and slices.
    #[serde(default)]
    pub gpu_part: u64,
    /// Of an hour, by the specs that its tasks are of; absent where none has a price.
    pub price: Option<f64>,
    /// Some of its tasks are of no spec with a price.
    #[serde(default)]
    pub price_is_part: bool,
}

/// What attempts have used, added up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UsageTotal {
    /// That ended in the time that it is of, or run.
    pub attempts: u64,
    pub gpu_hours: f64,
    pub cpu_hours: f64,
    /// GiB times hours.
    pub memory_gib_hours: f64,
    /// By the specs of the jobs, in whatever the administrator reckons in; none where no attempt has a price.
    pub price: Option<f64>,
    /// Attempts that have none, or tasks without one.
    pub unpriced: u64,
}

/// What attempts of a user in a workspace had in one day, once the records of these attempts are old.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageSum {
    /// Its first millisecond, in UTC.
    pub day: Timestamp,
    pub workspace: WorkspaceName,
    /// User id.
    pub owner: u32,
    #[serde(flatten)]
    pub total: UsageTotal,
}

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// From 0, without gaps.
    pub number: u64,
    /// Its place among the events of all jobs, from 1; 0 in stores of before that was kept.
    #[serde(default)]
    pub serial: u64,
    pub at: Timestamp,
    pub run: u32,
    pub state: State,
    /// What happened and why, one line.
    pub message: String,
}

/// How messages of alarms begin.
const ALARM: &str = "alarm: ";

impl EventRecord {
    /// The message of an alarm: something that people should look at, though the job goes on.
    pub fn alarm(what: &str) -> String {
        format!("{ALARM}{what}")
    }

    pub fn is_alarm(&self) -> bool {
        is_alarm(&self.message)
    }
}

/// Whether an event's message is that of an alarm.
pub fn is_alarm(message: &str) -> bool {
    message.starts_with(ALARM)
}
