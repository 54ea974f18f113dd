//! What to do next. Total, pure, deterministic: no clock, no disk, no log.
//!
//! [`plan`] sees what runs, what waits and what the machine has, and answers with steps in the order in which they
//! are to be taken: what frees comes before what takes. Its cost follows the live attempts and the runs that start;
//! runs that wait behind the first one that does not fit are not looked at.

pub mod address;
mod attempt;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::config::AddressRange;
use crate::ids::{Bytes, Cpu, JobKey, Timestamp};
use crate::spec::{JobSpec, Network, OnOverrun, Priority};
use crate::status::{RoleTally, StopCause, Verdict};
use crate::store::record::AddressBlock;

/// What can be handed out, or is asked for by all tasks of an attempt together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Cards.
    pub gpu: u64,
}

impl Amount {
    /// What all tasks of one attempt hold.
    pub fn of(spec: &JobSpec) -> Self {
        spec.roles.iter().fold(Self::default(), |sum, role| Self {
            cpu: sum.cpu.saturating_add(role.resources.cpu.0.saturating_mul(u64::from(role.count))),
            memory: sum.memory.saturating_add(role.resources.memory.0.saturating_mul(u64::from(role.count))),
            gpu: sum.gpu.saturating_add(u64::from(role.resources.gpu) * u64::from(role.count)),
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
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = if self.gpu > 0 { format!(", {} GPU(s)", self.gpu) } else { String::new() };
        write!(f, "{} cpu and {} of memory{cards}", Cpu(self.cpu), Bytes(self.memory))
    }
}

/// Why an attempt of `wanted` can never start on a machine that has `inventory`.
pub fn never_fits(wanted: &Amount, inventory: &Amount) -> Option<String> {
    let mut missing = Vec::new();
    if wanted.cpu > inventory.cpu {
        missing.push(format!("{} cpu of {}", Cpu(wanted.cpu), Cpu(inventory.cpu)));
    }
    if wanted.memory > inventory.memory {
        missing.push(format!("{} of memory of {}", Bytes(wanted.memory), Bytes(inventory.memory)));
    }
    if wanted.gpu > inventory.gpu {
        missing.push(format!("{} GPU(s) of {}", wanted.gpu, inventory.gpu));
    }
    let missing = (!missing.is_empty()).then(|| missing.join(" and "))?;
    Some(format!("the job needs {missing} that this machine can give; ask for less in `resources` or `count`"))
}

/// A run whose attempt has not been concluded.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    pub key: JobKey,
    pub amount: Amount,
    pub block: Option<AddressBlock>,
    /// Ports of the machine that it has taken because its file names them.
    pub ports: Vec<u16>,
    pub tallies: Vec<RoleTally>,
    /// The first failure among its tasks, as people read it.
    pub first_failure: Option<String>,
    /// No task is left running.
    pub all_ended: bool,
    pub running_since: Option<Timestamp>,
    pub max_duration: Option<Duration>,
    pub expected_duration: Option<Duration>,
    pub on_overrun: OnOverrun,
    /// That it takes longer than expected has been told.
    pub overrun_told: bool,
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

/// A place in the queue: the higher priority first, then the earlier order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub priority: Reverse<Priority>,
    pub order: u64,
}

/// A run that may start.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub key: JobKey,
    pub amount: Amount,
    pub tasks: u32,
    pub network: Network,
    /// Ports of the machine that its file names.
    pub ports: Vec<u16>,
}

/// What a plan is made from.
#[derive(Debug, Clone)]
pub struct Snapshot<'a> {
    pub now: Timestamp,
    pub inventory: Amount,
    pub addresses: AddressRange,
    /// The block that was handed out last.
    pub last_block: Option<AddressBlock>,
    pub live: Vec<Live>,
    /// By place in the queue.
    pub queue: &'a BTreeMap<Place, Waiting>,
}

/// One thing to do. Each may be repeated safely.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The attempt is decided; what still runs is told to stop for `cause`.
    Decide { key: JobKey, verdict: Verdict, cause: StopCause },
    /// The attempt takes longer than expected: tell its owner, once.
    TellOverrun { key: JobKey, expected: Duration },
    /// All its tasks have ended: clean up after it.
    Release { key: JobKey },
    /// The run makes another attempt when it fits.
    Retry { key: JobKey, reason: String },
    /// The run is over.
    End { key: JobKey, verdict: Verdict },
    /// Start all tasks of a new attempt.
    Start { key: JobKey, block: Option<AddressBlock> },
}

/// Why the first of the queue does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub key: JobKey,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub blocked: Option<Blocked>,
    /// Runs that wait for a port of the machine that they name, in order; others start before them.
    pub passed_over: Vec<Blocked>,
    /// When to plan again even if nothing happens.
    pub wake_at: Option<Timestamp>,
}

/// Decides what to do now.
pub fn plan(snapshot: &Snapshot<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut room = snapshot.inventory;
    for live in &snapshot.live {
        plan.steps.extend(attempt::next_step(live, snapshot.now));
        if !live.released {
            room = room.minus(&live.amount);
        }
        plan.steps.extend(attempt::overrun(live, snapshot.now));
        let next = earliest(
            attempt::deadline(live),
            attempt::expected_end(live).filter(|_| {
                // Told already, it may still be stopped by a newer word of its file.
                !live.overrun_told || live.on_overrun == OnOverrun::Stop
            }),
        );
        plan.wake_at = earliest(plan.wake_at, next.filter(|_| live.verdict.is_none()));
    }
    fill(snapshot, room, &mut plan);
    plan
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

/// Starts runs in the order of the queue until one does not fit: a small job never overtakes a big one for ever.
fn fill(snapshot: &Snapshot<'_>, mut room: Amount, plan: &mut Plan) {
    let held = snapshot.live.iter().filter(|live| !live.released).filter_map(|live| live.block);
    let mut blocks: Vec<AddressBlock> = held.collect();
    let mut last = snapshot.last_block;
    let (mut started, mut passed_over): (Vec<&Waiting>, Vec<&Waiting>) = Default::default();
    for waiting in snapshot.queue.values() {
        if let Some(reason) = never_fits(&waiting.amount, &snapshot.inventory) {
            let verdict = Verdict::Failed { reason };
            plan.steps.push(Step::End { key: waiting.key.clone(), verdict });
            continue;
        }
        if !waiting.amount.fits(&room) {
            let reason = resource_reason(snapshot, waiting, &room);
            plan.blocked = Some(Blocked { key: waiting.key.clone(), reason });
            return;
        }
        if let Some(reason) = port_reason(snapshot, &started, &passed_over, waiting) {
            // What is free for others it does not need: nobody waits behind it.
            plan.passed_over.push(Blocked { key: waiting.key.clone(), reason });
            passed_over.push(waiting);
            continue;
        }
        let block = match waiting.network {
            // Tasks that share a network have one address.
            Network::Task | Network::Job => match allocate(snapshot, &blocks, last, waiting) {
                Some(block) => Some(block),
                None => {
                    let reason = "waits for addresses: network.range is used up by running jobs".to_owned();
                    plan.blocked = Some(Blocked { key: waiting.key.clone(), reason });
                    return;
                }
            },
            Network::Host => None,
        };
        blocks.extend(block);
        last = block.or(last);
        room = room.minus(&waiting.amount);
        started.push(waiting);
        plan.steps.push(Step::Start { key: waiting.key.clone(), block });
    }
}

fn allocate(
    snapshot: &Snapshot<'_>,
    used: &[AddressBlock],
    last: Option<AddressBlock>,
    waiting: &Waiting,
) -> Option<AddressBlock> {
    let addresses = if waiting.network == Network::Task { waiting.tasks } else { 1 };
    address::allocate(snapshot.addresses, used, last, addresses)
}

/// Why the ports that the file names cannot be had now.
fn port_reason(
    snapshot: &Snapshot<'_>,
    started: &[&Waiting],
    passed_over: &[&Waiting],
    waiting: &Waiting,
) -> Option<String> {
    let running = snapshot.live.iter().filter(|live| !live.released).map(|live| (&live.key, &live.ports));
    let held = running.chain(started.iter().map(|other| (&other.key, &other.ports)));
    let held = held.map(|(key, ports)| (key, ports, "holds"));
    let mut all = held.chain(passed_over.iter().map(|other| (&other.key, &other.ports, "is to have first")));
    all.find_map(|(key, ports, how)| {
        let port = waiting.ports.iter().find(|port| ports.contains(port))?;
        Some(format!(
            "waits for port {port} of this machine, which {key} {how}; leave `begin` out to be given a free one"
        ))
    })
}

/// Most holders named in a reason.
const NAMED_HOLDERS: usize = 3;

fn resource_reason(snapshot: &Snapshot<'_>, waiting: &Waiting, room: &Amount) -> String {
    let holders: Vec<_> = snapshot.live.iter().filter(|live| !live.released).map(|live| live.key.to_string()).collect();
    let named = holders.iter().take(NAMED_HOLDERS).cloned().collect::<Vec<_>>().join(", ");
    let more = match holders.len().saturating_sub(NAMED_HOLDERS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let held = if named.is_empty() { "by jobs that are starting".to_owned() } else { format!("by {named}{more}") };
    format!("waits for {}; free: {room}; the rest is held {held}", waiting.amount)
}

#[cfg(test)]
mod tests;
