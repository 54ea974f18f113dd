//! The only door between plan and the world: prepares runs, starts and stops tasks, looks at them, cleans up.
//!
//! Executors are dumb: each function does one thing, may be repeated safely, and holds no policy. They block, so the
//! daemon calls them from threads of their own; what they find out comes back as events.

pub mod local;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::contract::Identity;
use crate::ids::{AttemptId, GpuUuid, JobKey, TaskId, Timestamp};
use crate::rundir::Found;
use crate::spec::JobSpec;
use crate::status::{StopCause, StopHow, Verdict};
use crate::store::record::{AddressBlock, GpuLease, Owner};
use crate::sys::given_up::GivenUp;

/// One attempt to be started, or gone on with after a crash.
#[derive(Debug, Clone)]
pub struct Launch {
    pub attempt: AttemptId,
    pub identity: Identity,
    pub owner: Owner,
    pub spec: JobSpec,
    pub block: Option<AddressBlock>,
    /// The job file as it is run.
    pub text: String,
    pub stop_grace: Duration,
    /// The cards of each task of the attempt, by its place.
    pub gpus: Vec<Vec<GpuLease>>,
    /// Processor cores near to the cards of each task, by its place; empty where that is not known.
    pub near: Vec<BTreeSet<u32>>,
    /// Tasks to start; the others have ended.
    pub tasks: Vec<TaskId>,
}

/// A run whose directories and code are to be made ready.
#[derive(Debug, Clone)]
pub struct Prepare {
    pub identity: Identity,
    pub owner: Owner,
    pub spec: JobSpec,
    /// The job file as it is run.
    pub text: String,
    pub given_up: GivenUp,
    /// The number of what was set aside for it.
    pub aside: Option<u64>,
}

impl Prepare {
    /// It may wait for a registry, for hours.
    pub fn may_take_long(&self) -> bool {
        self.spec.comes_from_elsewhere()
    }
}

/// An attempt to clean up after.
#[derive(Debug, Clone)]
pub struct Release {
    pub attempt: AttemptId,
    pub identity: Identity,
    pub spec: JobSpec,
    /// The job file as it was run.
    pub text: String,
    /// The mode of what shows it.
    pub read_by: u32,
    /// When its tasks were to be started, and when the last of them ended.
    pub started: Timestamp,
    pub ended: Timestamp,
    /// The run ends with this attempt.
    pub is_last: bool,
    pub verdict: Verdict,
    pub owner: Owner,
    /// Cards that its tasks had.
    pub gpus: Vec<GpuUuid>,
}

/// A port that a task listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningPort {
    /// The task's place in its attempt.
    pub ordinal: u32,
    pub label: String,
    /// The task's own.
    pub address: Ipv4Addr,
    pub port: u16,
    /// The port of the machine that leads there, if one does.
    pub published: Option<u16>,
}

/// Why something could not be done; told to the job's owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

impl EngineError {
    /// In one line that gives no orders to a terminal: parts of it may come from servers and archives.
    pub fn plain(self) -> Self {
        Self(crate::sys::terminal::escape(&self.0))
    }
}

/// What came of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launched {
    /// The tasks that could not be started; the others are. And what is to be told of the attempt.
    Tried { failures: Vec<(TaskId, EngineError)>, remarks: Vec<String> },
    /// Nothing was started or made: something of the machine is in use, and will be free again.
    NotYet { reason: String },
}

/// What is to become of a run's output, where it is copied to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The run has ended: all of it is sent.
    Over,
    /// What there is is sent now.
    Now,
    /// What is not sent yet stays.
    Never,
}

/// A word of a run's preparation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// How far it has come; stands in the job's state until the next one.
    State(String),
    /// What is to be found among its events afterwards.
    Noted(String),
}

pub trait Engine: Send + Sync + 'static {
    /// Makes a run's directories, takes its snapshot of the code and gets its image; tells how far it has come.
    fn prepare(&self, run: &Prepare, tell: &(dyn Fn(Told) + Sync)) -> Result<(), EngineError>;
    /// Sets aside for a run that cannot begin yet what may change until then: its code, and which versions it sees.
    fn set_aside(&self, run: &Prepare, number: u64) -> Result<(), EngineError>;
    /// Removes what was set aside for a run that nobody wants any more.
    fn drop_aside(&self, key: &JobKey, run: u32, number: u64) -> Result<(), EngineError>;
    /// Ends a preparation that nobody wants any more, as soon as that can be done; it fails then.
    fn give_up(&self, preparation: &GivenUp);
    /// Makes the run ready, if it is not, and starts the tasks that have never run.
    fn launch(&self, attempt: &Launch) -> Launched;
    /// Tells a task to stop, or kills it.
    fn stop(&self, task: TaskId, cause: &StopCause, how: StopHow) -> Result<(), EngineError>;
    /// What has become of a task. From the first look on, a live task reports its end by itself.
    fn look(&self, task: TaskId) -> Result<Found, EngineError>;
    /// Sees to the output of a run that is copied to a store, if it is.
    fn deliver(&self, key: &JobKey, run: u32, how: Delivery);
    /// Removes what an ended attempt held, and publishes the model of a successful one.
    fn release(&self, attempt: &Release) -> Result<(), EngineError>;
}
