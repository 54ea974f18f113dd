//! Which of the waiting runs start now.
//!
//! The order: the higher priority, then the workspace that has used the least, then the older run. The first run that does
//! not fit has a reservation, on the machine or within the quota of its workspace; later ones start where they do not
//! delay it (`limit`), and take none of its ports and addresses.

use std::cmp::Reverse;
use std::collections::btree_map::Iter;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use super::limit::{Limit, Load};
use super::queue::{Alike, Lane, Shape};
use super::share::Hours;
use super::{
    Amount, Holding, Live, Plan, Snapshot, Step, Waiting, Why, address, attempt, beyond_machine, beyond_quota,
};
use crate::config::Quota;
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::store::record::AddressBlock;

/// Starts what may start.
pub(super) fn fill(snapshot: &Snapshot<'_>, plan: &mut Plan) {
    let mut filling = Filling::new(snapshot);
    for class in snapshot.queue.classes() {
        let mut cursors: Vec<_> =
            class.into_iter().map(|(workspace, lane)| filling.open(workspace, lane, plan)).collect();
        while let Some(waiting) = filling.next(&mut cursors) {
            filling.consider(waiting, plan);
        }
    }
}

/// Nothing that has addresses of its own starts before something ends.
struct NoAddresses;

/// When attempts give back what they hold.
pub(super) type Ends = fn(&Live, Timestamp) -> Option<Timestamp>;

/// A workspace while the machine is filled.
pub(super) struct Side {
    pub(super) limit: Limit,
    pub(super) used: Hours,
}

struct Filling<'a> {
    snapshot: &'a Snapshot<'a>,
    machine: Limit,
    sides: HashMap<&'a WorkspaceName, Side>,
    /// Blocks that are held, or kept for who is held up for room.
    blocks: Vec<AddressBlock>,
    /// Somebody waits for addresses: nobody behind has any.
    out_of_addresses: bool,
    last_block: Option<AddressBlock>,
    /// Named ports of the machine, with who has them or is to have them first.
    ports: BTreeMap<u16, (&'a JobKey, Holding)>,
}

/// What of the machine is held, by the attempts that have not given it back.
pub(super) fn machine(snapshot: &Snapshot<'_>, ends: Ends) -> Limit {
    let mut machine = Limit::new(Load { amount: snapshot.inventory, runs: u64::MAX }, snapshot.now);
    for live in snapshot.live.iter().filter(|live| !live.released) {
        machine.hold(&live.amount, ends(live, snapshot.now));
    }
    machine
}

/// A workspace as its live attempts leave it.
pub(super) fn side<'a>(snapshot: &Snapshot<'a>, workspace: &WorkspaceName, ends: Ends) -> Side {
    let quota = snapshot.quotas.get(workspace).copied().unwrap_or_default();
    let mut limit = Limit::new(capacity(&quota), snapshot.now);
    let own = || snapshot.live.iter().filter(|live| live.key.workspace == *workspace);
    for live in own().filter(|live| !live.released) {
        limit.hold(&live.amount, ends(live, snapshot.now));
    }
    Side { limit, used: snapshot.shares.of(workspace, own(), snapshot.now) }
}

/// Whether runs of this amount may start at all, as the machine and the quota are now. Cards come and go by themselves, and
/// quotas are changed: what a file was accepted for waits for that, and holds up nobody.
pub(super) fn may_ever_fit(snapshot: &Snapshot<'_>, amount: &Amount, workspace: &WorkspaceName) -> bool {
    let quota = snapshot.quotas.get(workspace);
    amount.gpu <= snapshot.inventory.gpu && quota.is_none_or(|quota| beyond_quota(amount, workspace, quota).is_none())
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
            machine: machine(snapshot, attempt::sure_end),
            sides: HashMap::new(),
            blocks: held().filter_map(|live| live.block).collect(),
            out_of_addresses: false,
            last_block: snapshot.last_block,
            ports: ports.collect(),
        }
    }

    /// Begins with a lane. What the machine can never give is ended at once.
    fn open(&mut self, workspace: &'a WorkspaceName, lane: &'a Lane, plan: &mut Plan) -> Cursor<'a> {
        let snapshot = self.snapshot;
        self.sides.entry(workspace).or_insert_with(|| side(snapshot, workspace, attempt::sure_end));
        let mut cursor = Cursor { workspace, lane, shapes: Vec::new(), heads: BinaryHeap::new() };
        for (shape, alike) in &lane.shapes {
            let any_cards = Amount { gpu: u64::MAX, ..snapshot.inventory };
            if let Some(reason) = beyond_machine(&shape.amount, &any_cards) {
                let runs = alike.orders.keys().filter_map(|order| lane.runs.get(order));
                runs.for_each(|run| plan.fail(run, &reason));
            } else if may_ever_fit(snapshot, &shape.amount, workspace) {
                cursor.add(shape, alike);
            }
        }
        cursor
    }

    /// The next run in order that what is reserved admits.
    fn next(&self, cursors: &mut Vec<Cursor<'a>>) -> Option<&'a Waiting> {
        let admits = |workspace: &WorkspaceName, shape: &Shape, lasts: Option<Duration>| {
            let limits = [&self.machine, &self.sides[workspace].limit];
            !(shape.addressed && self.out_of_addresses) && limits.iter().all(|limit| limit.admits(&shape.amount, lasts))
        };
        cursors.retain_mut(|cursor| cursor.skip(|shape, lasts| admits(cursor.workspace, shape, lasts)));
        let share = |cursor: &Cursor<'a>| {
            self.snapshot.shares.share(self.sides[cursor.workspace].used, &self.snapshot.inventory)
        };
        cursors.iter_mut().min_by_key(|cursor| (share(cursor), cursor.order()))?.take()
    }

    fn consider(&mut self, waiting: &'a Waiting, plan: &mut Plan) {
        let load = Load::of(waiting.amount);
        let side = self.sides.get_mut(&waiting.key.workspace).expect("its lane was opened");
        if let Some(reason) = address::never_fits(self.snapshot.addresses, waiting.addresses()) {
            plan.fail(waiting, &reason);
        } else if !load.fits(&side.limit.room) {
            side.limit.reserve(&waiting.amount);
            plan.hold_up(waiting, Why::Quota);
        } else if !load.fits(&self.machine.room) {
            let at = self.machine.reserve(&waiting.amount);
            self.keep_for(waiting, at);
            self.claim_block(waiting);
            plan.hold_up(waiting, Why::Room);
        } else if let Some((port, holder, how)) = self.port(waiting) {
            self.keep_for(waiting, None);
            plan.hold_up(waiting, Why::Port { port, holder, how });
        } else {
            match self.block(waiting) {
                Ok(block) => self.start(waiting, block, plan),
                Err(NoAddresses) => {
                    self.out_of_addresses = true;
                    self.keep_for(waiting, None);
                    plan.hold_up(waiting, Why::Addresses);
                }
            }
        }
    }

    /// Nobody behind it gets its ports, nor others of its workspace what it needs of the quota when it starts: else they might
    /// have the one whenever the other is free. What is free of the machine is theirs, unless it waits for that.
    fn keep_for(&mut self, waiting: &'a Waiting, at: Option<Timestamp>) {
        if let Some(side) = self.sides.get_mut(&waiting.key.workspace) {
            side.limit.keep(&waiting.amount, at);
        }
        self.claim(waiting, Holding::First);
    }

    fn start(&mut self, waiting: &'a Waiting, block: Option<AddressBlock>, plan: &mut Plan) {
        self.blocks.extend(block);
        self.last_block = block.or(self.last_block);
        self.machine.start(&waiting.amount, waiting.lasts);
        if let Some(side) = self.sides.get_mut(&waiting.key.workspace) {
            side.limit.start(&waiting.amount, waiting.lasts);
            side.used = side.used.with_start(&waiting.amount);
        }
        self.claim(waiting, Holding::Has);
        plan.steps.push(Step::Start { key: waiting.key.clone(), block });
    }

    /// The addresses of an attempt, if it has any of its own.
    fn block(&self, waiting: &Waiting) -> Result<Option<AddressBlock>, NoAddresses> {
        match waiting.addresses() {
            0 => Ok(None),
            some => match address::allocate(self.snapshot.addresses, &self.blocks, self.last_block, some) {
                Some(block) => Ok(Some(block)),
                None => Err(NoAddresses),
            },
        }
    }

    /// Nobody behind it gets the last addresses.
    fn claim_block(&mut self, waiting: &Waiting) {
        match self.block(waiting) {
            Ok(block) => self.blocks.extend(block),
            Err(NoAddresses) => self.out_of_addresses = true,
        }
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
    shapes: Vec<(&'a Shape, &'a Alike, Iter<'a, u64, Option<Duration>>)>,
    /// The next run of each shape: its order, how long it may take, and which shape it is of.
    heads: BinaryHeap<Reverse<(u64, Option<Duration>, usize)>>,
}

impl<'a> Cursor<'a> {
    fn add(&mut self, shape: &'a Shape, alike: &'a Alike) {
        let mut rest = alike.orders.iter();
        if let Some((order, lasts)) = rest.next() {
            self.heads.push(Reverse((*order, *lasts, self.shapes.len())));
            self.shapes.push((shape, alike, rest));
        }
    }

    fn order(&self) -> Option<u64> {
        self.heads.peek().map(|Reverse((order, ..))| *order)
    }

    /// Goes past what is not admitted; false when nothing is left.
    fn skip(&mut self, admits: impl Fn(&Shape, Option<Duration>) -> bool) -> bool {
        while let Some(Reverse((_, lasts, at))) = self.heads.peek().copied() {
            let Some((shape, alike, rest)) = self.shapes.get_mut(at) else { return false };
            if admits(shape, lasts) {
                return true;
            }
            self.heads.pop();
            // Where the shortest is not admitted none is.
            if admits(shape, alike.shortest()) {
                let next = rest.find(|(_, lasts)| admits(shape, **lasts));
                self.heads.extend(next.map(|(order, lasts)| Reverse((*order, *lasts, at))));
            }
        }
        false
    }

    fn take(&mut self) -> Option<&'a Waiting> {
        let Reverse((order, _, at)) = self.heads.pop()?;
        let next = self.shapes.get_mut(at).and_then(|(.., rest)| rest.next());
        self.heads.extend(next.map(|(order, lasts)| Reverse((*order, *lasts, at))));
        self.lane.runs.get(&order)
    }
}
