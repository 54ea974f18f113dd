//! What wakes the reconciler, and what it has others do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Request;
use crate::config::{AddressRange, Quotas};
use crate::engine::{Delivery, EngineError, Launch, Prepare, Release, Told};
use crate::gpu::{Held, Inventory, Measured};
use crate::ids::{AttemptId, JobKey, TaskId, Timestamp, WorkspaceName};
use crate::intake::Arrival;
use crate::plan::Amount;
use crate::report::{Change, DrainOrder};
use crate::rundir::Found;
use crate::status::{StopCause, StopHow};
use crate::sys::given_up::GivenUp;

/// Everything that can wake the daemon.
#[derive(Debug)]
pub enum Event {
    /// Job files came, changed or went.
    Files(Vec<Arrival>),
    /// A task's directory has something new to say.
    News(TaskId),
    /// How far the preparation of a run has come.
    Preparing { key: JobKey, run: u32, told: Told },
    /// What becomes of a run's output, which is copied to a store: how far it has come, and what is to be recorded of it.
    Delivering { key: JobKey, run: u32, state: Option<String>, note: Option<String> },
    /// A work is done.
    Done(Outcome),
    /// Somebody asks for something.
    Request(Request),
    /// Workspaces that have no room left by their quota, and what is said of each.
    Full(BTreeMap<WorkspaceName, String>),
    /// What is free where the daemon and its jobs write.
    Free(Free),
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
    /// Code and data are set aside for a run that cannot begin yet.
    SetAside {
        key: JobKey,
        number: u64,
        prepare: Prepare,
    },
    /// What was set aside for a run that nobody wants any more goes.
    DropAside {
        key: JobKey,
        run: u32,
        number: u64,
    },
    /// Nobody wants that preparation any more.
    GiveUp(GivenUp),
    Launch(Launch),
    /// What uses the cards; told by [`Event::Gpus`].
    LookAtCards,
    /// What the cards of these tasks do, also to be told to the tasks' shims; told by [`Event::Measured`].
    Measure {
        tasks: Vec<(TaskId, Vec<Held>)>,
    },
    Stop {
        task: TaskId,
        cause: StopCause,
        how: StopHow,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    SetAside {
        key: JobKey,
        /// For which it was done.
        run: u32,
        number: u64,
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
    /// New runs start where at least so many bytes are free.
    pub min_free: u64,
}

/// Of the places where the daemon and its jobs write, the one with the least room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Free {
    pub place: PathBuf,
    pub bytes: u64,
}

impl Free {
    /// Where it was low some more than the floor is needed, so that what is begun does not hold up the next at once, and over again.
    pub fn is_low(&self, floor: u64, was_low: bool) -> bool {
        self.bytes < if was_low { floor.saturating_add(floor / 8) } else { floor }
    }
}

/// The result of a round.
#[derive(Debug, Default)]
pub struct Round {
    pub works: Vec<Work>,
    /// Jobs whose published files are to be written again, or removed.
    pub published: Vec<(JobKey, Change)>,
    pub wake_at: Option<Timestamp>,
}
