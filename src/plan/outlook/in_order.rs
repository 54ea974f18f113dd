//! Waiting runs that are too far behind to be looked for in time (`clock`): strictly one after the other.
//!
//! Time goes on once, from end to end. Each starts as soon as all before it have that do not wait for their quota alone, and it has
//! room: nobody goes first in a gap, and cards are given as they come. What is free only becomes more until the next start, so each
//! end and each start is looked at a few times, however many wait, and nothing is looked for that lies ahead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::clock::Placed;
use crate::gpu::deck::{CARD, Deck, Part, Piece, Room, Wish};
use crate::ids::{Timestamp, WorkspaceName};
use crate::plan::attempt::foreseen_end;
use crate::plan::cards::Cards;
use crate::plan::fill::{any_cards, machine, side};
use crate::plan::limit::{Load, later};
use crate::plan::{Amount, Live, Snapshot, Waiting};

pub(super) struct InOrder<'a> {
    snapshot: &'a Snapshot<'a>,
    now: Timestamp,
    machine: Counted,
    sides: BTreeMap<&'a WorkspaceName, Counted>,
    /// Where they are looked at one by one; `machine` does not limit them then.
    cards: Option<Table>,
    ends: BTreeMap<Timestamp, Vec<Hold<'a>>>,
}

/// Those that wait, by their workspaces, each as where it stands among them.
#[derive(Default)]
struct Lanes<'a> {
    of: BTreeMap<&'a WorkspaceName, VecDeque<usize>>,
    /// The first of each workspace that may have more.
    heads: BTreeMap<usize, &'a WorkspaceName>,
}

/// What one has.
struct Hold<'a> {
    workspace: &'a WorkspaceName,
    of_machine: Load,
    of_quota: Load,
    pieces: Vec<Piece>,
}

/// Why the next does not start.
enum Lacks {
    Quota,
    Room,
}

impl<'a> InOrder<'a> {
    /// As it is when all have started that are placed before then, and nobody else has.
    pub(super) fn from(snapshot: &'a Snapshot<'a>, now: Timestamp, placed: &[Placed<'a>]) -> Self {
        let cards = Cards::of(snapshot, foreseen_end);
        let has = if cards.is_some() { any_cards(snapshot) } else { snapshot.inventory };
        let capacity = machine(snapshot, has, foreseen_end).capacity;
        let cards = cards.map(|cards| Table::of(cards.all()));
        let mut this = Self {
            snapshot,
            now,
            machine: Counted::of(capacity),
            sides: BTreeMap::new(),
            cards,
            ends: BTreeMap::new(),
        };
        for live in snapshot.live.iter().filter(|live| !live.released) {
            this.hold(Hold::of_live(live), foreseen_end(live, snapshot.now).said());
        }
        this.leave_to_others();
        for one in placed.iter().filter(|one| one.start.is_none_or(|start| start <= now)) {
            let end = one.start.zip(one.waiting.expected).map(|(start, lasts)| later(start, lasts));
            this.hold(Hold::of_run(one.waiting, one.pieces.clone()), end);
        }
        this
    }

    /// Cards that others use, of which nobody knows for how long.
    fn leave_to_others(&mut self) {
        let cards = Amount { gpu: CARD, ..Amount::default() };
        self.snapshot
            .away
            .iter()
            .for_each(|_| self.machine.held = self.machine.held.plus(&Load { amount: cards, runs: 0 }));
        let away = self.snapshot.one_by_one.iter().flat_map(|cards| &cards.away);
        self.cards.iter_mut().zip(away).for_each(|(table, (piece, _))| table.take(piece));
    }

    /// It has that until then, if it has not ended yet.
    fn hold(&mut self, hold: Hold<'a>, end: Option<Timestamp>) {
        if end.is_some_and(|end| end <= self.now) {
            return;
        }
        self.cards.iter_mut().for_each(|table| hold.pieces.iter().for_each(|piece| table.take(piece)));
        self.has_until(hold, end);
    }

    /// Its pieces are taken.
    fn has_until(&mut self, hold: Hold<'a>, end: Option<Timestamp>) {
        self.machine.held = self.machine.held.plus(&hold.of_machine);
        let side = self.side(hold.workspace);
        side.held = side.held.plus(&hold.of_quota);
        if let Some(end) = end {
            self.ends.entry(end).or_default().push(hold);
        }
    }

    fn side(&mut self, workspace: &'a WorkspaceName) -> &mut Counted {
        let snapshot = self.snapshot;
        self.sides
            .entry(workspace)
            .or_insert_with(|| Counted::of(side(snapshot, workspace, foreseen_end).limit.capacity))
    }

    /// When each of these starts, where that can be said.
    pub(super) fn starts(mut self, waiting: &[&'a Waiting]) -> Vec<Option<Timestamp>> {
        let mut starts = vec![None; waiting.len()];
        let mut lanes = Lanes::of(waiting);
        while !lanes.of.is_empty() {
            self.start_all(waiting, &mut lanes, &mut starts);
            let Some((at, ended)) = self.ends.pop_first() else { break };
            self.now = at;
            for hold in ended {
                self.give_back(&hold);
                // It may have more.
                lanes.open(hold.workspace);
            }
        }
        starts
    }

    /// Whoever may, now.
    fn start_all(&mut self, waiting: &[&'a Waiting], lanes: &mut Lanes<'a>, starts: &mut [Option<Timestamp>]) {
        while let Some((place, workspace)) = lanes.heads.first_key_value().map(|(place, of)| (*place, *of)) {
            let (Some(run), Some(start)) = (waiting.get(place), starts.get_mut(place)) else { return };
            match self.start(run) {
                Ok(()) => {
                    *start = Some(self.now);
                    lanes.go_on(workspace);
                }
                Err(Lacks::Quota) => {
                    lanes.heads.remove(&place);
                }
                Err(Lacks::Room) => return,
            }
        }
    }

    fn start(&mut self, waiting: &'a Waiting) -> Result<(), Lacks> {
        let load = Load::of(waiting.amount);
        if !self.side(&waiting.key.workspace).fits(&load) {
            return Err(Lacks::Quota);
        }
        if !self.machine.fits(&load) {
            return Err(Lacks::Room);
        }
        let nothing_ends = self.ends.is_empty();
        let pieces = match &mut self.cards {
            Some(table) => table.take_for(&waiting.wishes, nothing_ends).ok_or(Lacks::Room)?,
            None => Vec::new(),
        };
        let end = waiting.expected.map(|lasts| later(self.now, lasts));
        self.has_until(Hold::of_run(waiting, pieces), end);
        Ok(())
    }

    fn give_back(&mut self, hold: &Hold<'a>) {
        self.machine.held = self.machine.held.minus(&hold.of_machine);
        let side = self.side(hold.workspace);
        side.held = side.held.minus(&hold.of_quota);
        self.cards.iter_mut().for_each(|table| hold.pieces.iter().for_each(|piece| table.give_back(piece)));
    }
}

impl<'a> Lanes<'a> {
    fn of(waiting: &[&'a Waiting]) -> Self {
        let mut of: BTreeMap<&WorkspaceName, VecDeque<usize>> = BTreeMap::new();
        for (place, waiting) in waiting.iter().enumerate() {
            of.entry(&waiting.key.workspace).or_default().push_back(place);
        }
        let heads = of.iter().filter_map(|(workspace, lane)| Some((*lane.front()?, *workspace))).collect();
        Self { of, heads }
    }

    /// The first of it has started.
    fn go_on(&mut self, workspace: &'a WorkspaceName) {
        if let Some(started) = self.of.get_mut(workspace).and_then(VecDeque::pop_front) {
            self.heads.remove(&started);
        }
        if self.of.get(workspace).is_some_and(VecDeque::is_empty) {
            self.of.remove(workspace);
        }
        self.open(workspace);
    }

    fn open(&mut self, workspace: &'a WorkspaceName) {
        let head = self.of.get(workspace).and_then(VecDeque::front);
        self.heads.extend(head.map(|place| (*place, workspace)));
    }
}

impl<'a> Hold<'a> {
    fn of_live(live: &'a Live) -> Self {
        let (of_machine, of_quota) = (Load::of(live.gives_back()), Load::of(live.amount));
        Self { workspace: &live.key.workspace, of_machine, of_quota, pieces: live.pieces.clone() }
    }

    fn of_run(waiting: &'a Waiting, pieces: Vec<Piece>) -> Self {
        let load = Load::of(waiting.amount);
        Self { workspace: &waiting.key.workspace, of_machine: load, of_quota: load, pieces }
    }
}

/// A limit, and what is held of it now.
struct Counted {
    capacity: Load,
    held: Load,
}

impl Counted {
    fn of(capacity: Load) -> Self {
        Self { capacity, held: Load::NOTHING }
    }

    fn fits(&self, load: &Load) -> bool {
        load.fits(&self.capacity.minus(&self.held))
    }
}

/// The cards, and what is held of each now.
struct Table {
    all: Deck,
    free: Deck,
    held: Vec<Vec<Piece>>,
}

impl Table {
    fn of(all: &Deck) -> Self {
        Self { all: all.clone(), free: all.clone(), held: vec![Vec::new(); all.places()] }
    }

    fn take(&mut self, piece: &Piece) {
        self.free.take(piece);
        self.held.get_mut(piece.place).into_iter().for_each(|held| held.push(piece.clone()));
    }

    fn give_back(&mut self, piece: &Piece) {
        let Some(held) = self.held.get_mut(piece.place) else { return };
        if let Some(at) = held.iter().position(|held| held == piece) {
            held.swap_remove(at);
        }
        self.free.open_anew(piece.place, &self.all, held);
    }

    /// Takes what comes first for each wish; where nothing more is given back, whatever there is of it together.
    fn take_for(&mut self, wishes: &[Wish], nothing_ends: bool) -> Option<Vec<Piece>> {
        if self.free.lacking(wishes).is_some() {
            return None;
        }
        let mut pieces = Vec::new();
        let has_all = by_size(wishes).into_iter().all(|wish| self.take_first(wish, &mut pieces));
        if has_all {
            return Some(pieces);
        }
        pieces.iter().for_each(|piece| self.give_back(piece));
        let chosen = self.free.choose(wishes).filter(|_| nothing_ends)?.concat();
        chosen.iter().for_each(|piece| self.take(piece));
        Some(chosen)
    }

    /// What others have begun comes first; false where there is too little.
    fn take_first(&mut self, wish: &Wish, pieces: &mut Vec<Piece>) -> bool {
        let mut wanted = wish.pieces();
        for is_whole in [false, true] {
            for place in 0..self.free.places() {
                if wanted == 0 {
                    return true;
                }
                if (*self.free.room(place) == Room::All) != is_whole {
                    continue;
                }
                while wanted > 0
                    && let Some(piece) = self.free.piece(place, wish)
                {
                    self.take(&piece);
                    pieces.push(piece);
                    wanted -= 1;
                }
            }
        }
        wanted == 0
    }
}

/// What leaves the most to the others comes last.
fn by_size(wishes: &[Wish]) -> Vec<&Wish> {
    let mut wishes: Vec<&Wish> = wishes.iter().collect();
    wishes.sort_by_key(|wish| match wish.part {
        Part::Share(bytes) => (true, Reverse(bytes), wish.kind.is_none()),
        Part::Whole | Part::Slice(_) => (false, Reverse(0), wish.kind.is_none()),
    });
    wishes
}
