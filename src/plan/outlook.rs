//! For people: the places of waiting runs in the queue, who holds what they wait for, and when they may start.

mod cards;
mod clock;
mod in_order;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use self::clock::Clock;
use super::attempt::foreseen_end;
use super::cards::Cards;
use super::fill::{is_possible, machine, side};
use super::share::Hours;
use super::{Amount, HeldUp, Snapshot, Waiting, Why};
use crate::gpu::deck::{CARD, Part, Piece, Scarce, Wish};
use crate::ids::{JobKey, Timestamp, WorkspaceName};

/// So often what is free at a time, or a card then, is looked at to foresee starts, each time that one looks ahead; for those that
/// are further behind when that is used up it is told when they start in order.
const LOOKS: usize = 10_000_000;
/// Or so often for each that is looked at, where they are more.
const LOOKS_EACH: usize = 500;
/// So many of the first in the queue are known by their names.
const FIRST: usize = 200;

/// The queue as it stood at one time.
#[derive(Debug, Clone)]
pub struct Outlook {
    pub at: Timestamp,
    pub inventory: Amount,
    /// What of the machine nobody holds.
    pub free: Amount,
    /// How many wait.
    pub waiting: usize,
    standings: BTreeMap<JobKey, Standing>,
    /// The first of them, in the order in which they may start.
    first: Vec<JobKey>,
    holders: Vec<Holder>,
    /// What each workspace holds, and how many jobs of it run.
    held: BTreeMap<WorkspaceName, (Amount, u64)>,
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// From 1.
    pub place: usize,
    pub wanted: Amount,
    /// What its amount of cards is of.
    pub wishes: Arc<[Wish]>,
    pub of_cards: OfCards,
    /// When it starts if what runs and what is before it takes as long as is said, and nothing else comes, nor goes before it in
    /// what the first leaves over.
    pub estimate: Option<Start>,
}

/// When a run should start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Looked for in time, also in gaps before those that come first.
    By(Timestamp),
    /// In the order of the queue, as if nobody went first in a gap: as a rule it is sooner.
    About(Timestamp),
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(at) => write!(f, "by {}", at.to_seconds()),
            Self::About(at) => write!(f, "about {}", at.to_seconds()),
        }
    }
}

impl Start {
    pub fn at(self) -> Timestamp {
        match self {
            Self::By(at) | Self::About(at) => at,
        }
    }
}

/// How a waiting run is looked at.
enum Turn<'a> {
    /// It does not start as the cards and the quota are now, whatever ends.
    Never,
    /// It waits for something else than room.
    Unknown(&'a Waiting),
    Comes(&'a Waiting),
}

impl<'a> Turn<'a> {
    /// That whose turn comes.
    fn waiting(&self) -> Option<&'a Waiting> {
        if let Self::Comes(waiting) = self { Some(waiting) } else { None }
    }
}

/// How the cards are for a run.
#[derive(Debug, Clone, PartialEq)]
pub struct OfCards {
    pub state: CardsFor,
    /// What of cards it could use of the sorts that there is too little of; empty where they are not looked at one by one.
    pub pieces: Arc<[Piece]>,
    /// What nobody holds of what it could use, thousandths of a card.
    pub free: u64,
}

/// Whether the machine has the cards for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardsFor {
    /// They are free, or it wants none.
    Free,
    /// Not now; what too little is free of.
    Held(Arc<[Scarce]>),
    /// Not as the cards are now, whatever ends; what there is too little of.
    Lacking(Arc<[Scarce]>),
}

impl CardsFor {
    pub fn scarce(&self) -> &[Scarce] {
        match self {
            Self::Free => &[],
            Self::Held(scarce) | Self::Lacking(scarce) => scarce,
        }
    }
}

/// An attempt that holds something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub key: JobKey,
    pub amount: Amount,
    /// What of cards it has; empty where they are not looked at one by one.
    pub pieces: Vec<Piece>,
    /// When it should end.
    pub until: Option<Timestamp>,
}

/// Looks at so many of the first in the queue; `held_up` is what the last plan has said.
pub fn outlook<'a>(snapshot: &'a Snapshot<'a>, held_up: &[HeldUp], most: usize) -> Outlook {
    within(snapshot, held_up, most, |seen| LOOKS.max(LOOKS_EACH.saturating_mul(seen)))
}

/// With so many looks for so many.
pub(super) fn within<'a>(
    snapshot: &'a Snapshot<'a>,
    held_up: &[HeldUp],
    most: usize,
    looks: impl Fn(usize) -> usize,
) -> Outlook {
    let of_their_own: BTreeSet<&JobKey> = held_up
        .iter()
        .filter(|held_up| matches!(held_up.why, Why::Port { .. } | Why::Addresses))
        .map(|held_up| &held_up.key)
        .collect();
    let ordered = ordered(snapshot, most);
    let machine = machine(snapshot, snapshot.inventory, foreseen_end);
    let one_by_one = Cards::of(snapshot, foreseen_end);
    let turn = |waiting: &&'a Waiting| match is_possible(snapshot, one_by_one.as_ref(), waiting) {
        false => Turn::Never,
        true if of_their_own.contains(&waiting.key) => Turn::Unknown(waiting),
        true => Turn::Comes(waiting),
    };
    let turns: Vec<Turn<'a>> = ordered.iter().map(turn).collect();
    let starts = Clock::new(snapshot, looks(ordered.len())).starts(&turns);
    // Many want the same.
    let mut known: BTreeMap<&[Wish], OfCards> = BTreeMap::new();
    let mut of_cards = |waiting: &'a Waiting| match &one_by_one {
        Some(cards) => known.entry(&waiting.wishes).or_insert_with(|| looked_at(cards, &waiting.wishes)).clone(),
        None => counted(&waiting.amount, &snapshot.inventory, &machine.room.amount),
    };
    let mut standings = BTreeMap::new();
    for ((place, waiting), estimate) in (1..).zip(&ordered).zip(starts) {
        let (wanted, wishes) = (waiting.amount, waiting.wishes.clone());
        let standing = Standing { place, wanted, wishes, of_cards: of_cards(waiting), estimate };
        standings.insert(waiting.key.clone(), standing);
    }
    let holder = |live: &super::Live| {
        let until = foreseen_end(live, snapshot.now).said();
        Holder { key: live.key.clone(), amount: live.amount, pieces: live.pieces.clone(), until }
    };
    let holders: Vec<Holder> = snapshot.live.iter().filter(|live| !live.released).map(holder).collect();
    let mut held: BTreeMap<WorkspaceName, (Amount, u64)> = BTreeMap::new();
    for holder in &holders {
        let (amount, running) = held.entry(holder.key.workspace.clone()).or_default();
        (*amount, *running) = (amount.plus(&holder.amount), *running + 1);
    }
    Outlook {
        at: snapshot.now,
        inventory: snapshot.inventory,
        free: machine.room.amount,
        waiting: snapshot.queue.len(),
        standings,
        first: ordered.iter().take(FIRST).map(|waiting| waiting.key.clone()).collect(),
        holders,
        held,
    }
}

impl Outlook {
    pub fn of(&self, key: &JobKey) -> Option<&Standing> {
        self.standings.get(key)
    }

    /// The first of the queue, in the order in which they may start.
    pub fn first(&self) -> &[JobKey] {
        &self.first
    }

    /// How many were looked at.
    pub fn seen(&self) -> usize {
        self.standings.len()
    }

    /// Who holds something of what does not suffice for it.
    pub fn holders_for(&self, standing: &Standing) -> impl Iterator<Item = &Holder> {
        let (wanted, free) = (&standing.wanted, &self.free);
        let OfCards { state, pieces, .. } = &standing.of_cards;
        let gpu = *state != CardsFor::Free;
        let (cpu, memory) = (wanted.cpu > free.cpu, wanted.memory > free.memory);
        self.holders.iter().filter(move |holder| {
            let held = &holder.amount;
            // Where cards are not looked at one by one, any will do.
            let is_such = |held: &Piece| pieces.iter().any(|piece| held.meets(piece));
            let has_such = || holder.pieces.is_empty() || holder.pieces.iter().any(is_such);
            (cpu && held.cpu > 0) || (memory && held.memory > 0) || (gpu && held.gpu > 0 && has_such())
        })
    }

    /// What a workspace holds, and how many jobs of it run.
    pub fn held_in(&self, workspace: &WorkspaceName) -> (Amount, u64) {
        self.held.get(workspace).copied().unwrap_or_default()
    }

    /// Who of a workspace holds anything.
    pub fn holders_in(&self, workspace: &WorkspaceName) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(move |holder| holder.key.workspace == *workspace)
    }
}

fn looked_at(cards: &Cards, wishes: &[Wish]) -> OfCards {
    let state = cards.state_for(wishes);
    let scarce: Vec<Wish> = state.scarce().iter().map(|scarce| scarce.wish.clone()).collect();
    OfCards { pieces: cards.all().all_for(&scarce).into(), free: cards.free_for(wishes), state }
}

/// Where to count cards is enough.
fn counted(wanted: &Amount, inventory: &Amount, free: &Amount) -> OfCards {
    let tasks = u32::try_from(wanted.gpu / CARD).unwrap_or(u32::MAX);
    let scarce = |there: &Amount| -> Arc<[Scarce]> {
        let wish = Wish { tasks, count: 1, part: Part::Whole, kind: None };
        [Scarce { wish, there: there.gpu / CARD }].into()
    };
    let state = match wanted.gpu {
        gpu if gpu > inventory.gpu => CardsFor::Lacking(scarce(inventory)),
        gpu if gpu > free.gpu => CardsFor::Held(scarce(free)),
        _ => CardsFor::Free,
    };
    OfCards { state, pieces: Arc::default(), free: free.gpu / CARD * CARD }
}

/// So many of the first that wait, in the order in which they would start one after the other.
fn ordered<'a>(snapshot: &Snapshot<'a>, most: usize) -> Vec<&'a Waiting> {
    let mut used: BTreeMap<&WorkspaceName, Hours> = BTreeMap::new();
    let reserved = snapshot.reserved.and_then(|key| snapshot.queue.find(key));
    let mut out = Vec::new();
    for class in snapshot.queue.classes() {
        let first = reserved.filter(|(place, _)| place.priority == class.priority);
        out.extend(first.map(|(_, waiting)| waiting));
        let is_other = |order: &u64| first.is_none_or(|(place, _)| place.order != *order);
        let mut open: Vec<_> = class
            .lanes
            .into_iter()
            .map(|(workspace, lane)| {
                let runs = lane.runs.iter().filter(move |(order, _)| is_other(order));
                (workspace, runs.peekable())
            })
            .collect();
        for (workspace, _) in &open {
            used.entry(workspace).or_insert_with(|| side(snapshot, workspace, foreseen_end).used);
        }
        while out.len() < most {
            let heads = open.iter_mut().enumerate().filter_map(|(place, (workspace, runs))| {
                let (order, waiting) = runs.peek()?;
                Some((snapshot.turn(waiting, *used.get(workspace)?), **order, place))
            });
            let Some((_, _, place)) = heads.min() else { break };
            let Some((workspace, runs)) = open.get_mut(place) else { break };
            let Some((_, waiting)) = runs.next() else { break };
            if let Some(used) = used.get_mut(workspace) {
                *used = used.with_start(&waiting.amount);
            }
            out.push(waiting);
        }
    }
    out
}
