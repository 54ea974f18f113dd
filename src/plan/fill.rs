//! Which of the waiting runs start now.
//!
//! The order: the higher priority, then who has waited for a day, then the workspace that has used the least, then the older
//! run. The first run that does not fit has a reservation, on the machine or within the quota of its workspace; later ones
//! start where they do not delay it (`limit`), and take none of its ports and addresses. Who has the machine's keeps it until it
//! starts, though its workspace may have used more than another by then: else what was let run empty for one would be filled
//! up for the next, and neither would start.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Bound;

use super::cards::Cards;
use super::limit::{End, Limit, Load};
use super::queue::{Lane, Place, Shape};
use super::row::{Need, Row};
use super::share::Hours;
use super::{
    Amount, Holding, Kept, Live, Plan, Snapshot, Step, Waiting, Why, address, attempt, beyond_machine, beyond_quota,
};
use crate::config::Quota;
use crate::gpu::deck::CARD;
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::spec::Priority;
use crate::store::record::AddressBlock;

/// Starts what may start.
pub(super) fn fill<'a>(snapshot: &'a Snapshot<'a>, plan: &mut Plan) {
    let mut filling = Filling::new(snapshot);
    for class in snapshot.queue.classes() {
        let first = filling.first_of(class.priority);
        let mut cursors: Vec<_> =
            class.lanes.into_iter().map(|(workspace, lane)| filling.open(workspace, lane)).collect();
        let mut next = first.or_else(|| filling.next(&mut cursors));
        while let Some(waiting) = next {
            filling.consider(waiting, plan);
            next = filling.next(&mut cursors);
        }
    }
}

/// Nothing that has addresses of its own starts before something ends.
struct NoAddresses;

/// When attempts give back what they hold.
pub(super) type Ends = fn(&Live, Timestamp) -> End;

/// A workspace while the machine is filled.
pub(super) struct Side {
    pub(super) limit: Limit,
    pub(super) used: Hours,
}

struct Filling<'a> {
    snapshot: &'a Snapshot<'a>,
    /// The run that had the machine's reservation before, while it waits.
    reserved: Option<(Place, &'a Waiting)>,
    machine: Limit,
    /// Where cards are looked at one by one; `machine` does not limit them then.
    cards: Option<Cards>,
    sides: HashMap<&'a WorkspaceName, Side>,
    /// Blocks that are held, or kept for who is held up for room.
    blocks: Vec<AddressBlock>,
    /// Somebody waits for addresses: nobody behind has any.
    out_of_addresses: bool,
    last_block: Option<AddressBlock>,
    /// Named ports of the machine, with who has them or is to have them first.
    ports: BTreeMap<u16, (&'a JobKey, Holding)>,
}

/// What of the machine, which has so much, is held, by the attempts that have not given it back and of cards also by others.
pub(super) fn machine(snapshot: &Snapshot<'_>, has: Amount, ends: Ends) -> Limit {
    let mut machine = Limit::new(Load { amount: has, runs: u64::MAX }, snapshot.now);
    for live in snapshot.live.iter().filter(|live| !live.released) {
        machine.hold(&live.gives_back(), ends(live, snapshot.now));
    }
    for since in &snapshot.away {
        machine.hold(&Amount { gpu: CARD, ..Amount::default() }, attempt::guessed_end(*since, snapshot.now));
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

/// Whether a run may start at all, as the cards and the quota are now. Cards come and go by themselves, and quotas are changed:
/// what a file was accepted for waits for that, and holds up nobody.
pub(super) fn is_possible(snapshot: &Snapshot<'_>, cards: Option<&Cards>, waiting: &Waiting) -> bool {
    let (amount, workspace) = (&waiting.amount, &waiting.key.workspace);
    let quota = snapshot.quotas.get(workspace);
    let has_cards = match cards {
        None => amount.gpu <= snapshot.inventory.gpu,
        Some(cards) => cards.exist_for(&waiting.wishes),
    };
    has_cards && quota.is_none_or(|quota| beyond_quota(amount, workspace, quota).is_none())
}

/// As if cards were no limit, where they are looked at one by one.
pub(super) fn any_cards(snapshot: &Snapshot<'_>) -> Amount {
    Amount { gpu: u64::MAX, ..snapshot.inventory }
}

/// Why a run is over, since all that the machine has but for cards is too little for it.
fn never(snapshot: &Snapshot<'_>, waiting: &Waiting) -> Option<String> {
    beyond_machine(&waiting.amount, &any_cards(snapshot))
        .or_else(|| address::never_fits(snapshot.addresses, waiting.addresses()))
}

fn capacity(quota: &Quota) -> Load {
    Load { amount: amount_of(quota), runs: quota.running.unwrap_or(u64::MAX) }
}

pub(super) fn amount_of(quota: &Quota) -> Amount {
    let or_all = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    Amount {
        cpu: or_all(quota.cpu),
        memory: or_all(quota.memory),
        gpu: or_all(quota.gpu.map(|cards| cards.saturating_mul(CARD))),
    }
}

impl<'a> Filling<'a> {
    fn new(snapshot: &'a Snapshot<'a>) -> Self {
        let held = || snapshot.live.iter().filter(|live| !live.released);
        let cards = Cards::of(snapshot, attempt::sure_end);
        let has = if cards.is_some() { any_cards(snapshot) } else { snapshot.inventory };
        let ports = held().flat_map(|live| live.ports.iter().map(|port| (*port, (&live.key, Holding::Has))));
        Self {
            snapshot,
            reserved: snapshot.reserved.and_then(|key| snapshot.queue.find(key)),
            machine: machine(snapshot, has, attempt::sure_end),
            cards,
            sides: HashMap::new(),
            blocks: held().filter_map(|live| live.block).collect(),
            out_of_addresses: false,
            last_block: snapshot.last_block,
            ports: ports.collect(),
        }
    }

    /// The run that had the machine's reservation before, if it is of this priority and no higher one has the place now, or what
    /// it needs of the quota.
    fn first_of(&mut self, priority: Reverse<Priority>) -> Option<&'a Waiting> {
        let (_, waiting) = self.reserved.filter(|(place, _)| place.priority == priority)?;
        self.open_side(&waiting.key.workspace);
        let (shape, need) = Shape::of(waiting);
        let is_admitted = self.gate(&waiting.key.workspace).of(&shape).admits(&need);
        self.reserved = self.reserved.filter(|_| is_admitted);
        is_admitted.then_some(waiting)
    }

    fn open_side(&mut self, workspace: &'a WorkspaceName) {
        self.sides.entry(workspace).or_insert_with(|| side(self.snapshot, workspace, attempt::sure_end));
    }

    fn gate(&self, workspace: &WorkspaceName) -> Gate<'_> {
        let limits = [&self.machine, &self.sides[workspace].limit];
        Gate { limits, cards: self.cards.as_ref(), out_of_addresses: self.out_of_addresses }
    }

    fn open(&mut self, workspace: &'a WorkspaceName, lane: &'a Lane) -> Cursor<'a> {
        self.open_side(workspace);
        let taken = self.reserved.map(|(place, _)| place.order);
        Cursor { workspace, lane, taken, last: None, heads: None }
    }

    /// The next run in order that what is reserved admits.
    fn next(&self, cursors: &mut Vec<Cursor<'a>>) -> Option<&'a Waiting> {
        cursors.retain_mut(|cursor| cursor.skip(&self.gate(cursor.workspace)));
        let place = |(at, cursor): (usize, &Cursor<'a>)| {
            let order = cursor.order()?;
            let used = self.sides[cursor.workspace].used;
            Some((self.snapshot.turn(cursor.lane.runs.get(&order)?, used), order, at))
        };
        let (_, _, first) = cursors.iter().enumerate().filter_map(place).min()?;
        cursors.get_mut(first)?.take()
    }

    fn consider(&mut self, waiting: &'a Waiting, plan: &mut Plan) {
        if let Some(reason) = never(self.snapshot, waiting) {
            return plan.fail(waiting, &reason);
        }
        if !is_possible(self.snapshot, self.cards.as_ref(), waiting) {
            return;
        }
        let load = Load::of(waiting.amount);
        let side = self.sides.get_mut(&waiting.key.workspace).expect("its lane was opened");
        if !load.fits(&side.limit.room) {
            let at = side.limit.fits_at(&waiting.amount);
            side.limit.reserve(&waiting.amount, at);
            plan.hold_up(waiting, Why::Quota);
        } else if !load.fits(&self.machine.room) || !self.has_cards(waiting) {
            plan.kept = self.reserve(waiting);
            self.keep_for(waiting);
            self.claim_block(waiting);
            plan.hold_up(waiting, Why::Room);
        } else if let Some((port, holder, how)) = self.port(waiting) {
            self.keep_for(waiting);
            plan.hold_up(waiting, Why::Port { port, holder, how });
        } else {
            match self.block(waiting) {
                Ok(block) => self.start(waiting, block, plan),
                Err(NoAddresses) => {
                    self.out_of_addresses = true;
                    self.keep_for(waiting);
                    plan.hold_up(waiting, Why::Addresses);
                }
            }
        }
    }

    fn has_cards(&self, waiting: &Waiting) -> bool {
        self.cards.as_ref().is_none_or(|cards| cards.fits(&waiting.wishes))
    }

    /// It is to start as soon as both the machine and, where they are looked at one by one, its cards have room.
    fn reserve(&mut self, waiting: &Waiting) -> Option<Kept> {
        let Some(cards) = &mut self.cards else {
            let at = self.machine.fits_at(&waiting.amount);
            self.machine.reserve(&waiting.amount, at);
            return None;
        };
        let before = self.snapshot.one_by_one.as_ref().and_then(|cards| cards.kept.as_ref());
        let before = before.filter(|kept| (&kept.key, &kept.wishes) == (&waiting.key, &waiting.wishes));
        let foreseen = cards.foresee(&waiting.wishes, before.map(|kept| kept.pieces.as_slice()));
        let (cards_at, pieces) = foreseen.map_or((None, Vec::new()), |(at, pieces)| (Some(at), pieces));
        let at = self.machine.has_room_at(&waiting.amount).zip(cards_at).map(|(machine, cards)| machine.max(cards));
        self.machine.reserve(&waiting.amount, at);
        cards.reserve(&pieces, at);
        Some(Kept { key: waiting.key.clone(), wishes: waiting.wishes.clone(), pieces })
    }

    /// Nobody behind it gets its ports, nor others of its workspace what it needs of the quota when it starts: else they might
    /// have the one whenever the other is free. What is free of the machine is theirs, unless it waits for that.
    fn keep_for(&mut self, waiting: &'a Waiting) {
        if let Some(side) = self.sides.get_mut(&waiting.key.workspace) {
            side.limit.keep(&waiting.amount);
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
        let pieces = self.cards.as_mut().and_then(|cards| cards.start(&waiting.wishes, waiting.lasts));
        plan.steps.push(Step::Start { key: waiting.key.clone(), block, pieces });
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

/// What the limits and the addresses let pass. It only ever becomes narrower while a plan is made.
struct Gate<'b> {
    limits: [&'b Limit; 2],
    cards: Option<&'b Cards>,
    out_of_addresses: bool,
}

impl Gate<'_> {
    /// Nothing is reserved: every run may ask.
    fn is_open(&self) -> bool {
        !self.out_of_addresses && !self.limits.iter().any(|limit| limit.is_reserved())
    }

    fn of(&self, shape: &Shape) -> Pass<'_> {
        let is_open = !(shape.addressed && self.out_of_addresses);
        let most = self.cards.map(|cards| cards.most(&shape.cards));
        Pass { gate: self, is_open, most: most.unwrap_or_default() }
    }
}

/// What a gate lets pass of one shape: whoever needs less of everything passes wherever a run does.
struct Pass<'b> {
    gate: &'b Gate<'b>,
    is_open: bool,
    /// Of cards, where they are looked at one by one.
    most: Vec<u64>,
}

impl Pass<'_> {
    fn admits(&self, need: &Need) -> bool {
        let has_cards = |cards: &Cards| {
            let most = self.most.get(cards.kept_from(need.lasts));
            most.is_some_and(|most| need.cards <= *most)
        };
        self.is_open
            && self.gate.limits.iter().all(|limit| limit.admits(&need.amount, need.lasts))
            && self.gate.cards.is_none_or(has_cards)
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

/// What of a lane may start once something is reserved.
struct Heads<'a> {
    taken: Option<u64>,
    rows: Vec<(&'a Shape, &'a Row)>,
    /// The next run of each row: its order, and which row it is of.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> (Bound<u64>, Bound<u64>) {
        (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }

    fn order(&self) -> Option<u64> {
        match &self.heads {
            Some(heads) => heads.next.peek().map(|Reverse((order, _))| *order),
            None => self.lane.runs.range(self.rest()).map(|(order, _)| *order).find(|order| Some(*order) != self.taken),
        }
    }

    /// Goes past what is not admitted; false when nothing is left.
    fn skip(&mut self, gate: &Gate<'_>) -> bool {
        if gate.is_open() {
            return self.order().is_some();
        }
        let (lane, last, taken) = (self.lane, self.last, self.taken);
        self.heads.get_or_insert_with(|| Heads::of(lane, last, taken)).skip(gate)
    }

    fn take(&mut self) -> Option<&'a Waiting> {
        let order = self.order()?;
        self.heads.iter_mut().for_each(Heads::go_on);
        self.last = Some(order);
        self.lane.runs.get(&order)
    }
}

impl<'a> Heads<'a> {
    /// Behind the last that was considered.
    fn of(lane: &'a Lane, last: Option<u64>, taken: Option<u64>) -> Self {
        let mut heads = Self { taken, rows: lane.rows.iter().collect(), next: BinaryHeap::new() };
        (0..heads.rows.len()).for_each(|row| heads.push_next(row, last, |_| true));
        heads
    }

    /// Until one that is admitted is the first. What is not admitted never will be.
    fn skip(&mut self, gate: &Gate<'_>) -> bool {
        while let Some(Reverse((order, at))) = self.next.peek().copied() {
            let Some((shape, row)) = self.rows.get(at).copied() else { return false };
            let pass = gate.of(shape);
            if row.get(order).is_some_and(|need| pass.admits(need)) {
                return true;
            }
            self.next.pop();
            self.push_next(at, Some(order), |need| pass.admits(need));
        }
        false
    }

    /// The first one is considered.
    fn go_on(&mut self) {
        if let Some(Reverse((order, row))) = self.next.pop() {
            self.push_next(row, Some(order), |_| true);
        }
    }

    fn push_next(&mut self, at: usize, behind: Option<u64>, admits: impl Fn(&Need) -> bool) {
        let Some((_, row)) = self.rows.get(at) else { return };
        let next = row.next(behind, &admits);
        // One that was considered before all others is passed over.
        let next =
            next.and_then(|next| if Some(next) == self.taken { row.next(self.taken, &admits) } else { Some(next) });
        self.next.extend(next.map(|order| Reverse((order, at))));
    }
}
