//! What to do next. Total, pure, deterministic: no clock, no disk, no log.
//!
//! [`plan`] sees what runs, what waits and what the machine has, and answers with steps in the order in which they
//! are to be taken: what frees comes before what takes. Its cost follows the live attempts, the runs that start and those that
//! wait for a port, not what waits; what is too large is passed over by stretches (`row`).

pub mod address;
mod attempt;
mod cards;
mod fill;
mod limit;
pub mod outlook;
mod queue;
mod row;
mod share;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{AddressRange, Quota, Quotas};
use crate::gpu::deck::{CARD, Deck, Piece, Sizes, Wish, weight_of_slice};
use crate::ids::{Bytes, CardAmount, Cpu, JobKey, Timestamp, WorkspaceName};
use crate::spec::{GpuIdle, GpuPart, JobSpec, Network, OnOverrun, Resources};
use crate::status::{RoleTally, StopCause, Verdict};
use crate::store::record::AddressBlock;
pub use cards::{described, so_many, wishes};
pub use queue::{Place, Queue, Want};
pub use share::Shares;

/// What can be handed out, or is asked for by all tasks of an attempt together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Amount {
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Thousandths of a card.
    pub gpu: u64,
}

/// Of a task. A slice counts by its sevenths of a card, a share by its part of the smallest card that it may be of.
fn cards_of(resources: &Resources, sizes: &Sizes) -> u64 {
    let one = match &resources.gpu_part {
        GpuPart::Whole => CARD,
        GpuPart::Share { memory, .. } => sizes.weight(memory.0, resources.gpu_type.as_deref()),
        GpuPart::Slice(profile) => weight_of_slice(profile),
    };
    one * u64::from(resources.gpu)
}

impl Amount {
    /// What all tasks of one attempt hold, on a machine with such cards.
    pub fn of(spec: &JobSpec, sizes: &Sizes) -> Self {
        spec.roles.iter().fold(Self::default(), |sum, role| Self {
            cpu: sum.cpu.saturating_add(role.resources.cpu.0.saturating_mul(u64::from(role.count))),
            memory: sum.memory.saturating_add(role.resources.memory.0.saturating_mul(u64::from(role.count))),
            gpu: sum.gpu.saturating_add(cards_of(&role.resources, sizes).saturating_mul(u64::from(role.count))),
        })
    }

    pub fn fits(&self, room: &Amount) -> bool {
        self.cpu <= room.cpu && self.memory <= room.memory && self.gpu <= room.gpu
    }

    fn minus(&self, other: &Amount) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
            gpu: self.gpu.saturating_sub(other.gpu),
        }
    }

    pub fn plus(&self, other: &Amount) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            gpu: self.gpu.saturating_add(other.gpu),
        }
    }

    /// What of it is more than there is room for.
    fn missing(&self, room: &Amount) -> Vec<String> {
        let mut missing = Vec::new();
        if self.cpu > room.cpu {
            missing.push(format!("{} cpu of {}", Cpu(self.cpu), Cpu(room.cpu)));
        }
        if self.memory > room.memory {
            missing.push(format!(
                "{} of memory of {}",
                Bytes(self.memory).told(),
                Bytes(room.memory).told_beside(self.memory)
            ));
        }
        if self.gpu > room.gpu {
            missing.push(format!("{} GPU(s) of {}", CardAmount(self.gpu), CardAmount(room.gpu)));
        }
        missing
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = if self.gpu > 0 { format!(", {} GPU(s)", CardAmount(self.gpu)) } else { String::new() };
        write!(f, "{} cpu and {} of memory{cards}", Cpu(self.cpu), Bytes(self.memory).told())
    }
}

/// Why an attempt of `wanted` can never start, whatever ends: there is less on the machine.
pub fn beyond_machine(wanted: &Amount, inventory: &Amount) -> Option<String> {
    let missing = wanted.missing(inventory);
    let missing = (!missing.is_empty()).then(|| missing.join(" and "))?;
    Some(format!("the job needs {missing} that this machine can give; ask for less in `resources` or `count`"))
}

/// Why an attempt of `wanted` cannot start in `workspace` as long as its quota is what it is, whatever ends. Files are refused
/// for it; a run that waits already, when the quota is made smaller, goes on waiting.
pub fn beyond_quota(wanted: &Amount, workspace: &WorkspaceName, quota: &Quota) -> Option<String> {
    if quota.running == Some(0) {
        return Some(format!(
            "no job of workspace {workspace} may run (workspaces.{workspace}.running = 0 in trainyard.toml); whoever administers this machine may raise it"
        ));
    }
    let missing = wanted.missing(&fill::amount_of(quota));
    let missing = (!missing.is_empty()).then(|| missing.join(" and "))?;
    Some(format!(
        "the job needs {missing} that workspace {workspace} may have at a time (workspaces.{workspace} in trainyard.toml); ask \
         for less in `resources` or `count`"
    ))
}

/// A run whose attempt has not been concluded.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    pub key: JobKey,
    pub amount: Amount,
    /// Of its amount of cards, what nobody is given after it: they have failed.
    pub lost: u64,
    /// What its amount of cards is of, one by one.
    pub pieces: Vec<Piece>,
    /// One of its tasks uses more of a card than its share, for so long that it is stopped.
    pub over_share: Option<StopCause>,
    pub block: Option<AddressBlock>,
    /// Ports of the machine that it has taken because its file names them.
    pub ports: Vec<u16>,
    pub tallies: Vec<RoleTally>,
    /// The first failure among its tasks, as people read it.
    pub first_failure: Option<String>,
    /// No task is left running.
    pub all_ended: bool,
    /// Since when it holds its amount.
    pub held_since: Timestamp,
    pub running_since: Option<Timestamp>,
    /// Until when containers of failed tasks are kept.
    pub kept_until: Option<Timestamp>,
    pub max_duration: Option<Duration>,
    pub expected_duration: Option<Duration>,
    pub on_overrun: OnOverrun,
    /// That it takes longer than expected has been told.
    pub overrun_told: bool,
    /// Its cards have been idle for as long as its file says.
    pub idle: Option<Idle>,
    /// One of its cards has failed, of which its file says that it is stopped.
    pub gpu_failure: Option<String>,
    /// Somebody wants the run stopped.
    pub wanted_stop: Option<StopCause>,
    pub verdict: Option<Verdict>,
    /// Its processes, network and scratch space are gone.
    pub released: bool,
    /// Cleaning up is under way.
    pub releasing: bool,
    /// Attempts that the run may still make.
    pub attempts_left: u32,
    /// A failure of this kind is tried again.
    pub retried: bool,
}

impl Live {
    /// What others have when it is over.
    fn gives_back(&self) -> Amount {
        Amount { gpu: self.amount.gpu.saturating_sub(self.lost), ..self.amount }
    }
}

/// That the cards of a job are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    pub rule: GpuIdle,
    pub is_told: bool,
}

/// A run that may start.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub key: JobKey,
    pub amount: Amount,
    /// What its amount of cards is of.
    pub wishes: Arc<[Wish]>,
    pub tasks: u32,
    pub network: Network,
    /// Ports of the machine that its file names.
    pub ports: Vec<u16>,
    /// Since when its run waits.
    pub since: Timestamp,
    /// How long an attempt may take: then it is stopped; nothing stops it when absent.
    pub lasts: Option<Duration>,
    /// How long it should take, for what is foreseen alone; not known when absent.
    pub expected: Option<Duration>,
}

impl Waiting {
    /// Addresses that an attempt has of its own.
    fn addresses(&self) -> u32 {
        addresses(self.network, self.tasks)
    }
}

/// Addresses that so many tasks have of their own.
pub fn addresses(network: Network, tasks: u32) -> u32 {
    match network {
        Network::Task => tasks,
        // They share one.
        Network::Job => 1,
        Network::Host => 0,
    }
}

/// What a plan is made from.
#[derive(Debug, Clone)]
pub struct Snapshot<'a> {
    pub now: Timestamp,
    pub inventory: Amount,
    /// Cards of it that no attempt has and that cannot be had now, since others use them or they are looked at: since when each.
    pub away: Vec<Timestamp>,
    /// The same one by one, where to count them is not enough.
    pub one_by_one: Option<OneByOne>,
    pub addresses: AddressRange,
    /// The block that was handed out last.
    pub last_block: Option<AddressBlock>,
    pub live: Vec<Live>,
    pub queue: &'a Queue,
    /// The run that was the first that did not fit in the last plan.
    pub reserved: Option<&'a JobKey>,
    /// What workspaces have used before.
    pub shares: &'a Shares,
    pub quotas: &'a Quotas,
}

/// Cards one by one.
#[derive(Debug, Clone)]
pub struct OneByOne {
    /// All that can be had sooner or later, as if nobody held any.
    pub all: Deck,
    /// What of it no attempt has and cannot be had now, and since when.
    pub away: Vec<(Piece, Timestamp)>,
    /// What the last plan has kept.
    pub kept: Option<Kept>,
}

/// What is kept for the first run that does not fit, task by task.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    pub key: JobKey,
    pub wishes: Arc<[Wish]>,
    pub pieces: Vec<Vec<Piece>>,
}

/// One thing to do. Each may be repeated safely.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The attempt is decided; what still runs is told to stop for `cause`.
    Decide { key: JobKey, verdict: Verdict, cause: StopCause },
    /// The attempt takes longer than expected: tell its owner, once.
    TellOverrun { key: JobKey, expected: Duration },
    /// The cards of the attempt are idle: tell its owner, once.
    TellIdle { key: JobKey, rule: GpuIdle },
    /// All its tasks have ended: clean up after it.
    Release { key: JobKey },
    /// The run makes another attempt when it fits.
    Retry { key: JobKey, reason: String },
    /// The run is over.
    End { key: JobKey, verdict: Verdict },
    /// Start all tasks of a new attempt. With these pieces of cards, task by task; where that is open, with any that are free.
    Start { key: JobKey, block: Option<AddressBlock>, pieces: Option<Vec<Vec<Piece>>> },
}

/// How a port that somebody waits for is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    Has,
    /// It waits, and is to have it first.
    First,
}

/// What keeps a run from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The machine has no room; it is the first that does not fit.
    Room,
    /// Its workspace has all that it may; it is the first of it that does not fit.
    Quota,
    Port {
        port: u16,
        holder: JobKey,
        how: Holding,
    },
    /// Running jobs use up the addresses.
    Addresses,
}

/// A run whose turn it is, and that cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldUp {
    pub key: JobKey,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// In the order of the queue.
    pub held_up: Vec<HeldUp>,
    /// For the next plan.
    pub kept: Option<Kept>,
    /// When to plan again even if nothing happens.
    pub wake_at: Option<Timestamp>,
}

impl Plan {
    fn fail(&mut self, waiting: &Waiting, reason: &str) {
        let verdict = Verdict::Failed { reason: reason.to_owned() };
        self.steps.push(Step::End { key: waiting.key.clone(), verdict });
    }

    fn hold_up(&mut self, waiting: &Waiting, why: Why) {
        self.held_up.push(HeldUp { key: waiting.key.clone(), why });
    }
}

/// How often the order is looked at anew where it changes by itself, by what workspaces have used.
const REORDER_EVERY: Duration = Duration::from_secs(60);

/// Decides what to do now.
pub fn plan(snapshot: &Snapshot<'_>) -> Plan {
    let mut plan = Plan::default();
    for live in &snapshot.live {
        plan.steps.extend(attempt::next_step(live, snapshot.now));
        plan.steps.extend(attempt::overrun(live, snapshot.now));
        plan.steps.extend(attempt::idle(live));
        let next = earliest(
            attempt::deadline(live),
            attempt::expected_end(live).filter(|_| {
                // Told already, it may still be stopped by a newer word of its file.
                !live.overrun_told || live.on_overrun == OnOverrun::Stop
            }),
        );
        plan.wake_at = earliest(plan.wake_at, next.filter(|_| live.verdict.is_none()));
    }
    fill::fill(snapshot, &mut plan);
    if snapshot.queue.is_shared() && !plan.held_up.is_empty() {
        plan.wake_at = earliest(plan.wake_at, Some(limit::later(snapshot.now, REORDER_EVERY)));
    }
    plan
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests;
