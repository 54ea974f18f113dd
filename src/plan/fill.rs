//! Which of the waiting runs start now.
//!
//! The order: the higher priority, then who has waited for a day, then the workspace that has used the least, then the older run. The first run that does
//! not fit has a reservation, on the machine or within the quota of its workspace; later ones start where they do not
//! delay it (`limit`). Who has the machine's keeps it until it starts, though its workspace may have used more than another by
//! then: else what was let run empty for one would be filled up for the next, and neither would start.

use std::cmp::Reverse;
use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Bound;
use std::time::Duration;

use super::limit::{Limit, Load};
use super::queue::{Lane, Place};
use super::share::{Shares, earlier, rank};
use super::{Amount, Holding, Plan, Snapshot, Step, Waiting, Why, address, attempt, never_fits};
use crate::config::Quota;
use crate::ids::{JobKey, WorkspaceName};
use crate::spec::Network;
use crate::status::Verdict;
use crate::store::record::AddressBlock;

/// Starts what may start.
pub(super) fn fill<'a>(snapshot: &'a Snapshot<'a>, plan: &mut Plan) {
    let mut filling = Filling::new(snapshot);
    for class in snapshot.queue.classes() {
        let first = filling.reserved.filter(|(place, _)| place.priority == class.priority).map(|(_, waiting)| waiting);
        let mut cursors: Vec<_> =
            class.lanes.into_iter().map(|(workspace, lane)| filling.open(workspace, lane)).collect();
        let mut next = first.or_else(|| filling.next(&mut cursors));
        while let Some(waiting) = next {
            if filling.consider(waiting, plan) == Considered::NoAddresses {
                return;
            }
            next = filling.next(&mut cursors);
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
    /// The run that had the machine's reservation before, while it waits.
    reserved: Option<(Place, &'a Waiting)>,
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
            reserved: snapshot.reserved.and_then(|key| snapshot.queue.find(key)),
            machine: machine(snapshot),
            sides: HashMap::new(),
            blocks: held().filter_map(|live| live.block).collect(),
            last_block: snapshot.last_block,
            ports: ports.collect(),
        }
    }

    fn open(&mut self, workspace: &'a WorkspaceName, lane: &'a Lane) -> Cursor<'a> {
        self.sides.entry(workspace).or_insert_with(|| side(self.snapshot, workspace));
        let taken = self.reserved.map(|(place, _)| place.order);
        Cursor { workspace, lane, taken, last: None, heads: None }
    }

    /// The next run in order that what is reserved admits.
    fn next(&self, cursors: &mut Vec<Cursor<'a>>) -> Option<&'a Waiting> {
        cursors.retain_mut(|cursor| cursor.skip(&[&self.machine, &self.sides[cursor.workspace].limit]));
        let place = |(at, cursor): (usize, &Cursor<'a>)| {
            let order = cursor.order()?;
            let waiting = cursor.lane.runs.get(&order)?;
            Some(((rank(waiting, self.sides[cursor.workspace].share, self.snapshot.now), order), at))
        };
        let (_, first) = cursors.iter().enumerate().filter_map(place).min_by(|(a, _), (b, _)| earlier(*a, *b))?;
        cursors.get_mut(first)?.take()
    }

    fn consider(&mut self, waiting: &'a Waiting, plan: &mut Plan) -> Considered {
        if self.never(waiting, plan) {
            return Considered::Done;
        }
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

    /// What can never fit is over. Only cards come and go by themselves: what its file was accepted for is waited for.
    fn never(&self, waiting: &Waiting, plan: &mut Plan) -> bool {
        let (workspace, inventory) = (&waiting.key.workspace, &self.snapshot.inventory);
        let with_cards = Amount { gpu: waiting.amount.gpu.max(inventory.gpu), ..*inventory };
        let quota = self.snapshot.quotas.get(workspace);
        if let Some(reason) = never_fits(&waiting.amount, &with_cards, workspace, quota) {
            let verdict = Verdict::Failed { reason };
            plan.steps.push(Step::End { key: waiting.key.clone(), verdict });
            return true;
        }
        waiting.amount.gpu > inventory.gpu
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

/// How far a lane has been gone through: by age until something is reserved, then by what still may fit.
struct Cursor<'a> {
    workspace: &'a WorkspaceName,
    lane: &'a Lane,
    /// One that was considered before all others.
    taken: Option<u64>,
    /// The last that was considered.
    last: Option<u64>,
    heads: Option<Heads<'a>>,
}

/// The next run of each shape that may fit: its order, how long it takes, and which shape it is of.
struct Heads<'a> {
    taken: Option<u64>,
    shapes: Vec<(&'a Amount, Range<'a, u64, Option<Duration>>)>,
    next: BinaryHeap<Reverse<(u64, Option<Duration>, usize)>>,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> (Bound<u64>, Bound<u64>) {
        (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }

    fn order(&self) -> Option<u64> {
        match &self.heads {
            Some(heads) => heads.next.peek().map(|Reverse((order, ..))| *order),
            None => self.lane.runs.range(self.rest()).map(|(order, _)| *order).find(|order| Some(*order) != self.taken),
        }
    }

    /// Goes past what the limits do not admit; false when nothing is left.
    fn skip(&mut self, limits: &[&Limit; 2]) -> bool {
        if limits.iter().all(|limit| limit.reservation.is_none()) {
            return self.order().is_some();
        }
        let (lane, rest, taken) = (self.lane, self.rest(), self.taken);
        self.heads.get_or_insert_with(|| Heads::of(lane, rest, taken, limits)).skip(limits)
    }

    fn take(&mut self) -> Option<&'a Waiting> {
        let order = self.order()?;
        self.heads.iter_mut().for_each(Heads::go_on);
        self.last = Some(order);
        self.lane.runs.get(&order)
    }
}

impl<'a> Heads<'a> {
    fn of(lane: &'a Lane, rest: (Bound<u64>, Bound<u64>), taken: Option<u64>, limits: &[&Limit; 2]) -> Self {
        let (mut shapes, mut next) = (Vec::new(), Vec::new());
        let may_fit = |amount: &Amount| limits.iter().all(|limit| limit.may_fit(amount));
        for (amount, orders) in lane.shapes.iter().filter(|(amount, _)| may_fit(amount)) {
            let mut orders = orders.range(rest);
            if let Some((order, lasts)) = orders.find(|(order, _)| Some(**order) != taken) {
                next.push(Reverse((*order, *lasts, shapes.len())));
                shapes.push((amount, orders));
            }
        }
        Self { taken, shapes, next: next.into() }
    }

    fn skip(&mut self, limits: &[&Limit; 2]) -> bool {
        while let Some(Reverse((_, lasts, shape))) = self.next.peek().copied() {
            let Some(amount) = self.shapes.get(shape).map(|(amount, _)| *amount) else { return false };
            let admits = |lasts: Option<Duration>| limits.iter().all(|limit| limit.admits(amount, lasts));
            if admits(lasts) {
                return true;
            }
            self.next.pop();
            if limits.iter().all(|limit| limit.may_fit(amount)) {
                self.push_next(shape, admits);
            }
        }
        false
    }

    /// The first one is considered.
    fn go_on(&mut self) {
        if let Some(Reverse((_, _, shape))) = self.next.pop() {
            self.push_next(shape, |_| true);
        }
    }

    fn push_next(&mut self, shape: usize, wanted: impl Fn(Option<Duration>) -> bool) {
        let taken = self.taken;
        let Some((_, rest)) = self.shapes.get_mut(shape) else { return };
        let next = rest.find(|(order, lasts)| Some(**order) != taken && wanted(**lasts));
        self.next.extend(next.map(|(order, lasts)| Reverse((*order, *lasts, shape))));
    }
}
