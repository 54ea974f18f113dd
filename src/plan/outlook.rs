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
use crate::gpu::deck::{CARD, Piece, Wish};
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
    /// And how many cards of which nobody holds a part.
    pub whole_cards: u64,
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
    /// Whether the machine has the cards for it.
    pub cards: CardsFor,
    /// The cards of which it could use something; empty where they are not looked at one by one.
    pub places: Arc<[usize]>,
    /// When it starts if what runs and what is before it takes as long as is said, and nothing else comes.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardsFor {
    /// They are free, or it wants none.
    Free,
    /// Not now; so many such cards, shares or slices are free.
    Held { free: u64 },
    /// Not as the cards are now, whatever ends; there are so many such.
    Lacking { there: u64 },
}

/// An attempt that holds something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub key: JobKey,
    pub amount: Amount,
    /// The cards of which it has something; empty where they are not looked at one by one.
    pub places: Vec<usize>,
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
    let mut known: BTreeMap<&[Wish], (CardsFor, Arc<[usize]>)> = BTreeMap::new();
    let mut cards_for = |waiting: &'a Waiting| match &one_by_one {
        Some(cards) => known
            .entry(&waiting.wishes)
            .or_insert_with(|| (cards.state_for(&waiting.wishes), places(&cards.all().all_for(&waiting.wishes)).into()))
            .clone(),
        None => (counted(&waiting.amount, &snapshot.inventory, &machine.room.amount), Arc::default()),
    };
    let mut standings = BTreeMap::new();
    for ((place, waiting), estimate) in (1..).zip(&ordered).zip(starts) {
        let (cards, places) = cards_for(waiting);
        standings.insert(
            waiting.key.clone(),
            Standing { place, wanted: waiting.amount, wishes: waiting.wishes.clone(), cards, places, estimate },
        );
    }
    let holder = |live: &super::Live| {
        let until = foreseen_end(live, snapshot.now).said();
        Holder { key: live.key.clone(), amount: live.amount, places: places(&live.pieces), until }
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
        whole_cards: one_by_one.as_ref().map_or(machine.room.amount.gpu / CARD, Cards::whole_free),
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
        let gpu = standing.cards != CardsFor::Free;
        let (cpu, memory) = (wanted.cpu > free.cpu, wanted.memory > free.memory);
        self.holders.iter().filter(move |holder| {
            let held = &holder.amount;
            // Where cards are not looked at one by one, any will do.
            let has_such =
                holder.places.is_empty() || holder.places.iter().any(|place| standing.places.contains(place));
            (cpu && held.cpu > 0) || (memory && held.memory > 0) || (gpu && held.gpu > 0 && has_such)
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

fn places<'p>(pieces: impl IntoIterator<Item = &'p Piece>) -> Vec<usize> {
    pieces.into_iter().map(|piece| piece.place).collect()
}

/// Where to count cards is enough.
fn counted(wanted: &Amount, inventory: &Amount, free: &Amount) -> CardsFor {
    match wanted.gpu {
        gpu if gpu > inventory.gpu => CardsFor::Lacking { there: inventory.gpu / CARD },
        gpu if gpu > free.gpu => CardsFor::Held { free: free.gpu / CARD },
        _ => CardsFor::Free,
    }
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
