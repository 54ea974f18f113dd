//! The only door between plan and the world: prepares runs, starts and stops tasks, looks at them, cleans up.
//!
//! Executors are dumb: each function does one thing, may be repeated safely, and holds no policy. They block, so the
//! daemon calls them from threads of their own; what they find out comes back as events.

pub mod local;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::contract::Identity;
use crate::ids::{AttemptId, GpuUuid, JobKey, TaskId, Timestamp};
use crate::rundir::Found;
use crate::spec::JobSpec;
use crate::status::{StopCause, StopHow, Verdict};
use crate::store::record::{AddressBlock, GpuLease, Owner};

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

/// Whether nobody wants a run to be made ready any more: known to who asks for it and to who does it, which is ended then.
#[derive(Clone, Default)]
pub struct GivenUp(Arc<Mutex<Wanted>>);

/// What is under way for it, each with what ends it.
#[derive(Default)]
struct Wanted {
    no_longer: bool,
    ends: BTreeMap<u64, End>,
    /// Numbers that were given to ends.
    numbered: u64,
}

type End = Box<dyn FnOnce() + Send>;

/// While it is there, something is ended when its run is given up.
#[must_use]
pub struct Ending<'a> {
    given_up: &'a GivenUp,
    number: u64,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let end = self.given_up.wanted().ends.remove(&self.number);
        drop(end);
    }
}

impl std::fmt::Debug for GivenUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GivenUp").field(&self.is_set()).finish()
    }
}

impl GivenUp {
    pub fn set(&self) {
        let ends = {
            let mut wanted = self.wanted();
            wanted.no_longer = true;
            std::mem::take(&mut wanted.ends)
        };
        ends.into_values().for_each(|end| end());
    }

    pub fn is_set(&self) -> bool {
        self.wanted().no_longer
    }

    /// `end` is called once if it is given up, or was.
    pub fn ending(&self, end: impl FnOnce() + Send + 'static) -> Ending<'_> {
        let mut wanted = self.wanted();
        wanted.numbered += 1;
        let number = wanted.numbered;
        match wanted.no_longer {
            false => drop(wanted.ends.insert(number, Box::new(end))),
            true => {
                drop(wanted);
                end();
            }
        }
        Ending { given_up: self, number }
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are of the same preparation.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_under_way_is_ended_once_when_it_is_given_up_or_was() {
        let (given_up, ended) = (GivenUp::default(), Arc::new(AtomicU32::new(0)));
        let count = || {
            let ended = ended.clone();
            move || {
                ended.fetch_add(1, Ordering::SeqCst);
            }
        };
        drop(given_up.ending(count()));
        let kept = given_up.ending(count());
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        given_up.clone().set();
        given_up.set();
        assert_eq!(ended.load(Ordering::SeqCst), 1, "what was over is not ended");
        drop(kept);
        drop(given_up.ending(count()));
        assert_eq!(ended.load(Ordering::SeqCst), 2, "it begins too late");
    }
}
