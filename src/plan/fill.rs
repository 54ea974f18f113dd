//! Which of the waiting runs start now.
//!
//! The order: the higher priority, then the workspace that has used the least, then the older run. The first run that does
//! not fit has a reservation, on the machine or within the quota of its workspace; later ones start where they do not
//! delay it (`limit`).

use std::cmp::Reverse;
use std::collections::btree_map::Iter;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use super::limit::{Limit, Load};
use super::queue::Lane;
use super::share::Shares;
use super::{Amount, Holding, Plan, Snapshot, Step, Waiting, Why, address, attempt, never_fits};
use crate::config::Quota;
use crate::ids::{JobKey, WorkspaceName};
use crate::spec::Network;
use crate::status::Verdict;
use crate::store::record::AddressBlock;

/// Starts what may start.
pub(super) fn fill(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    let mut filling = Filling::new(snapshot);
    for class in snapshot.queue.classes() {
        let mut cursors: Vec<_> =
            class.into_iter().map(|(workspace, lane)| filling.open(workspace, lane, plan)).collect();
        while let Some(waiting) = filling.next(&mut cursors) {
            if filling.consider(waiting, plan) == Considered::NoAddresses {
                return;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Considered {
    Done,
    /// Nothing else starts before something ends.
    NoAddresses,
}

/// A workspace while the machine is filled.
pub(super) struct Side {
    pub(super) limit: Limit,
    /// What it has used; the one with the least comes first.
    pub(super) share: f64,
}

struct Filling<'a> {
    snapshot: &'a Snapshot<'a>,
    machine: Limit,
    sides: HashMap<&'a WorkspaceName, Side>,
    blocks: Vec<AddressBlock>,
    last_block: Option<AddressBlock>,
    /// Named ports of the machine, with who has them or is to have them first.
    ports: BTreeMap<u16, (&'a JobKey, Holding)>,
}

/// What of the machine is held, by the attempts that have not given it back.
pub(super) fn machine(snapshot: &Snapshot<'_>) -> Limit {
    let mut machine = Limit::new(Load { amount: snapshot.inventory, runs: u64::MAX }, snapshot.now);
    for live in snapshot.live.iter().filter(|live| !live.released) {
        machine.hold(&live.amount, attempt::foreseen_end(live, snapshot.now));
    }
    machine
}

/// A workspace as its live attempts leave it.
pub(super) fn side<'a>(snapshot: &Snapshot<'a>, workspace: &WorkspaceName) -> Side {
    let quota = snapshot.quotas.get(workspace).copied().unwrap_or_default();
    let mut limit = Limit::new(capacity(&quota), snapshot.now);
    let own = || snapshot.live.iter().filter(|live| live.key.workspace == *workspace);
    for live in own().filter(|live| !live.released) {
        limit.hold(&live.amount, attempt::foreseen_end(live, snapshot.now));
    }
    let share = snapshot.shares.of(workspace, own(), &snapshot.inventory, snapshot.now);
    Side { limit, share }
}

fn capacity(quota: &Quota) -> Load {
    Load { amount: amount_of(quota), runs: quota.running.unwrap_or(u64::MAX) }
}

pub(super) fn amount_of(quota: &Quota) -> Amount {
    let or_all = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    Amount { cpu: or_all(quota.cpu), memory: or_all(quota.memory), gpu: or_all(quota.gpu) }
}

impl<'a> Filling<'a> {
    fn new(snapshot: &'a Snapshot<'a>) -> Self {
        let held = || snapshot.live.iter().filter(|live| !live.released);
        let ports = held().flat_map(|live| live.ports.iter().map(|port| (*port, (&live.key, Holding::Has))));
        Self {
            snapshot,
            machine: machine(snapshot),
            sides: HashMap::new(),
            blocks: held().filter_map(|live| live.block).collect(),
            last_block: snapshot.last_block,
            ports: ports.collect(),
        }
    }

    /// Begins with a lane. What can never fit is ended at once.
    fn open(&mut self, workspace: &'a WorkspaceName, lane: &'a Lane, plan: &mut Plan) -> Cursor<'a> {
        self.sides.entry(workspace).or_insert_with(|| side(self.snapshot, workspace));
        let quota = self.snapshot.quotas.get(workspace);
        let mut cursor = Cursor { workspace, lane, shapes: Vec::new(), heads: BinaryHeap::new() };
        for (amount, orders) in &lane.shapes {
            // Cards come and go by themselves; what the file was accepted for is waited for.
            let cards_gone = Amount { gpu: amount.gpu.max(self.snapshot.inventory.gpu), ..self.snapshot.inventory };
            if let Some(reason) = never_fits(amount, &cards_gone, workspace, quota) {
                let runs = orders.keys().filter_map(|order| lane.runs.get(order));
                let verdict = Verdict::Failed { reason };
                plan.steps.extend(runs.map(|run| Step::End { key: run.key.clone(), verdict: verdict.clone() }));
            } else if amount.gpu <= self.snapshot.inventory.gpu {
                cursor.add(amount, orders);
            }
        }
        cursor
    }

    /// The next run in order that what is reserved admits.
    fn next(&self, cursors: &mut Vec<Cursor<'a>>) -> Option<&'a Waiting> {
        cursors.retain_mut(|cursor| cursor.skip(&[&self.machine, &self.sides[cursor.workspace].limit]));
        let share = |cursor: &Cursor<'a>| self.sides[cursor.workspace].share;
        let first =
            cursors.iter_mut().min_by(|a, b| share(a).total_cmp(&share(b)).then_with(|| a.order().cmp(&b.order())))?;
        first.take()
    }

    fn consider(&mut self, waiting: &'a Waiting, plan: &mut Plan) -> Considered {
        let load = Load::of(waiting.amount);
        let side = self.sides.get_mut(&waiting.key.workspace).expect("its lane was opened");
        if !load.fits(&side.limit.room) {
            side.limit.reserve(&waiting.amount);
            plan.hold_up(waiting, Why::Quota);
        } else if !load.fits(&self.machine.room) {
            self.machine.reserve(&waiting.amount);
            plan.hold_up(waiting, Why::Room);
        } else if let Some((port, holder, how)) = self.port(waiting) {
            plan.hold_up(waiting, Why::Port { port, holder, how });
            // What is free for others it does not need: nobody waits behind it but for its ports.
            self.claim(waiting, Holding::First);
        } else {
            return self.start(waiting, plan);
        }
        Considered::Done
    }

    fn start(&mut self, waiting: &'a Waiting, plan: &mut Plan) -> Considered {
        let block = match waiting.network {
            // Tasks that share a network have one address.
            Network::Task | Network::Job => match self.allocate(waiting) {
                Some(block) => Some(block),
                None => {
                    plan.hold_up(waiting, Why::Addresses);
                    return Considered::NoAddresses;
                }
            },
            Network::Host => None,
        };
        self.blocks.extend(block);
        self.last_block = block.or(self.last_block);
        self.machine.start(&waiting.amount, waiting.lasts);
        if let Some(side) = self.sides.get_mut(&waiting.key.workspace) {
            side.limit.start(&waiting.amount, waiting.lasts);
            side.share += Shares::of_start(&waiting.amount, &self.snapshot.inventory);
        }
        self.claim(waiting, Holding::Has);
        plan.steps.push(Step::Start { key: waiting.key.clone(), block });
        Considered::Done
    }

    fn allocate(&self, waiting: &Waiting) -> Option<AddressBlock> {
        let addresses = if waiting.network == Network::Task { waiting.tasks } else { 1 };
        address::allocate(self.snapshot.addresses, &self.blocks, self.last_block, addresses)
    }

    /// A port that the file names and that cannot be had now.
    fn port(&self, waiting: &Waiting) -> Option<(u16, JobKey, Holding)> {
        waiting.ports.iter().find_map(|port| {
            let (holder, how) = self.ports.get(port)?;
            Some((*port, (*holder).clone(), *how))
        })
    }

    fn claim(&mut self, waiting: &'a Waiting, how: Holding) {
        for port in &waiting.ports {
            self.ports.entry(*port).or_insert((&waiting.key, how));
        }
    }
}

/// How far a lane has been gone through.
struct Cursor<'a> {
    workspace: &'a WorkspaceName,
    lane: &'a Lane,
    shapes: Vec<(&'a Amount, Iter<'a, u64, Option<Duration>>)>,
    /// The next run of each shape: its order, how long it takes, and which shape it is of.
    heads: BinaryHeap<Reverse<(u64, Option<Duration>, usize)>>,
}

impl<'a> Cursor<'a> {
    fn add(&mut self, amount: &'a Amount, orders: &'a BTreeMap<u64, Option<Duration>>) {
        let mut rest = orders.iter();
        if let Some((order, lasts)) = rest.next() {
            self.heads.push(Reverse((*order, *lasts, self.shapes.len())));
            self.shapes.push((amount, rest));
        }
    }

    fn order(&self) -> Option<u64> {
        self.heads.peek().map(|Reverse((order, ..))| *order)
    }

    /// Goes past what the limits do not admit; false when nothing is left.
    fn skip(&mut self, limits: &[&Limit; 2]) -> bool {
        while let Some(Reverse((_, lasts, shape))) = self.heads.peek().copied() {
            let Some((amount, rest)) = self.shapes.get_mut(shape) else { return false };
            if limits.iter().all(|limit| limit.admits(amount, lasts)) {
                return true;
            }
            self.heads.pop();
            if limits.iter().all(|limit| limit.may_fit(amount)) {
                let next = rest.find(|(_, lasts)| limits.iter().all(|limit| limit.admits(amount, **lasts)));
                self.heads.extend(next.map(|(order, lasts)| Reverse((*order, *lasts, shape))));
            }
        }
        false
    }

    fn take(&mut self) -> Option<&'a Waiting> {
        let Reverse((order, _, shape)) = self.heads.pop()?;
        let next = self.shapes.get_mut(shape).and_then(|(_, rest)| rest.next());
        self.heads.extend(next.map(|(order, lasts)| Reverse((*order, *lasts, shape))));
        self.lane.runs.get(&order)
    }
}
