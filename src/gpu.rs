//! Graphics cards: what there is, how each is, how they are connected, which of them to hand out, and what containers need of their
//! driver.
//!
//! The one module that knows NVML. [`Gpus`] has the cards looked at by a process of its own, since NVML may take seconds, hang with a
//! card, or fall; everybody else sees what was found last. What is decided from that, [`health`] and [`placement`], is pure.
//! Nothing here changes a card: no modes, no clocks, no resets.

pub mod cdi;
pub mod deck;
pub mod driver_files;
pub mod elf;
pub mod health;
mod library;
mod measuring;
mod names;
pub mod nodes;
mod nvml;
pub mod placement;
mod process;
mod role;
mod topology;
mod watch;
mod xids;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{GpuUuid, TaskId, Timestamp};
use health::Finding;

pub use crate::sys::mig::Instances;
pub use library::driver_folders;
pub use process::Gpus;
pub use role::run;
pub use topology::{Link, Topology};
pub use watch::Settings;

/// The cards of this machine, as they were when they were looked at last.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Inventory {
    pub driver: Driver,
    /// In the order of their places on the bus, with those that are gone, as they were: a card keeps its number while others fall off.
    pub cards: Vec<Card>,
    /// What is said of cards that do not even tell which they are.
    pub nameless: Vec<String>,
    /// Between the cards, by their places in `cards`.
    pub topology: Topology,
    /// When it was begun to find all of this: what changes meanwhile counts as seen after it.
    pub at: Option<Timestamp>,
    /// How long that took, ms.
    pub took_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// There are no cards for us, and why.
    Missing { reason: String },
    /// Its version, and the newest one of CUDA that it serves.
    Loaded { version: String, cuda: Option<String> },
}

impl Default for Driver {
    fn default() -> Self {
        Self::Missing { reason: "the cards have not been looked at yet".to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub facts: Facts,
    /// It is in the mode in which cards are cut up, be it that nothing has been cut yet.
    pub mig: bool,
    /// What it is cut up into; those that do not tell what they are are left out.
    pub slices: Vec<Slice>,
    pub signs: Signs,
    /// What is wrong with it, the worst first.
    pub findings: Vec<Finding>,
    /// Only if it was asked for.
    pub usage: Option<Usage>,
}

impl Card {
    /// It cannot be used as a whole.
    pub fn is_cut_up(&self) -> bool {
        self.mig || !self.slices.is_empty()
    }
}

/// What does not change while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub uuid: GpuUuid,
    pub name: String,
    /// Of its device, `/dev/nvidiaN`; not its place in NVML's order.
    pub minor: Option<u32>,
    /// `DOMAIN:BUS:DEVICE.FUNCTION`, in small letters; empty where that is not told.
    pub bus: String,
    pub numa_node: Option<u32>,
    /// Processors that are near to it; empty where that is not known.
    pub cpus: Vec<u32>,
    /// Bytes; not told by cards that have none of their own (GB10).
    pub memory: Option<u64>,
}

/// A MIG device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub uuid: GpuUuid,
    /// As `1g.10gb`.
    pub profile: String,
    /// Bytes.
    pub memory: Option<u64>,
    /// By which its devices are found; nobody is given one that does not tell.
    pub instances: Option<Instances>,
    /// Its devices are not there, and what there is to do.
    pub unreachable: Option<String>,
}

/// What its health is judged by. What a card does not tell is absent: older ones know no remapped rows, newer ones no retired pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Signs {
    /// It does not answer, and how.
    pub lost: Option<String>,
    /// Its device is not there, and what there is to do.
    pub no_device: Option<nodes::Missing>,
    /// Not all of its slices have told of themselves: which there are is not known.
    pub slices_untold: bool,
    /// Errors that the driver has reported since it was loaded, and when each came last.
    pub xids: Vec<Xid>,
    pub ecc: Option<Ecc>,
    pub retired: Option<Retired>,
    pub remapped: Option<Remapped>,
    pub recovery: Option<Recovery>,
    pub slowed: Slowed,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    pub number: u64,
    pub at: Timestamp,
}

/// Errors of memory since the driver was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ecc {
    pub corrected: u64,
    pub uncorrected: u64,
}

/// Pages of memory that are no longer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Retired {
    pub single_bit: u32,
    pub double_bit: u32,
    /// Of `double_bit`, those of the last week.
    pub double_bit_lately: u32,
    /// More will be when the card is next reset.
    pub pending: bool,
}

/// Rows of memory in whose place spare ones are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Remapped {
    pub correctable: u64,
    pub uncorrectable: u64,
    /// More will be when the card is next reset.
    pub pending: bool,
    /// There was no spare row.
    pub failed: bool,
}

/// What the driver says has to be done with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recovery {
    Nothing,
    Reset,
    Reboot,
    DrainPeers,
    DrainAndReset,
    /// One that this program does not know.
    Other(u64),
}

/// Why its clocks are lower than they could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Slowed {
    pub by_heat: bool,
    /// The machine's power supply asks for it.
    pub by_power_brake: bool,
}

/// What a task has of a card, by which is measured what it does there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Held {
    Whole(GpuUuid),
    /// A part of this card's memory, of which others have parts as well.
    Share(GpuUuid),
    Slice {
        card: GpuUuid,
        slice: GpuUuid,
    },
}

impl Held {
    pub fn card(&self) -> &GpuUuid {
        match self {
            Self::Whole(card) | Self::Share(card) | Self::Slice { card, .. } => card,
        }
    }
}

/// What cards, and who has parts of some, did at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    pub at: Timestamp,
    /// Those that somebody has whole, without those that did not answer.
    pub cards: BTreeMap<GpuUuid, Sample>,
    /// What each task did with its part.
    pub parts: BTreeMap<(TaskId, Held), Sample>,
}

impl Measured {
    pub fn nothing(at: Timestamp) -> Self {
        Self { at, cards: BTreeMap::new(), parts: BTreeMap::new() }
    }

    /// What is told of a task on what it has.
    pub fn of(&self, task: TaskId, held: &Held) -> Option<Sample> {
        match held {
            Held::Whole(card) => self.cards.get(card).copied(),
            Held::Share(_) | Held::Slice { .. } => self.parts.get(&(task, held.clone())).copied(),
        }
    }
}

/// What a card, or a task on its part of one, did; what the driver does not tell of it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Percent of the last moment in which something ran; absent for cards that are cut up, and where slices do not tell.
    pub utilisation: Option<u32>,
    /// Bytes in use, the driver's own included; of a share, those of the task's own processes.
    pub memory: Option<u64>,
    /// Thousandths of a watt; of a part of a card an estimate, absent where it does not tell who has worked.
    pub power: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of memory in use, the driver's own included.
    pub memory: Option<u64>,
    /// Percent of the last moment in which something ran; absent for cards that are cut up.
    pub utilisation: Option<u32>,
    /// Thousandths of a watt.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// On the card and all its slices; absent if the driver does not say all of them, so that any may be there.
    pub processes: Option<Vec<Process>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Absent if it has ended since.
    pub uid: Option<u32>,
    /// Of one that is of no task; absent also while it is asked for.
    pub user: Option<String>,
    /// The name of its program.
    pub program: Option<String>,
    /// Bytes on the card; not known to every driver.
    pub memory: Option<u64>,
    /// The slice on which it runs.
    pub slice: Option<GpuUuid>,
    /// The task that it is of, by its control group.
    pub task: Option<TaskId>,
    /// It keeps nobody from the card: a display server, or what else the configuration names.
    pub is_ignored: bool,
}
