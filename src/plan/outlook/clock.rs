//! Waiting runs as time goes on: each in order begins where there is room for all that it may take, and ends when it should.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cards::CardsAhead;
use crate::gpu::deck::Piece;
use crate::ids::{Timestamp, WorkspaceName};
use crate::plan::attempt::foreseen_end;
use crate::plan::cards::Cards;
use crate::plan::fill::{any_cards, machine, side};
use crate::plan::limit::{Limit, Load, later};
use crate::plan::{Snapshot, Waiting};

/// The machine, the quotas and the cards one by one, from now on.
pub(super) struct Clock<'a> {
    snapshot: &'a Snapshot<'a>,
    machine: Timeline,
    sides: BTreeMap<&'a WorkspaceName, Timeline>,
    /// Where they are looked at one by one; `machine` does not limit them then.
    cards: Option<CardsAhead>,
}

impl<'a> Clock<'a> {
    pub(super) fn new(snapshot: &'a Snapshot<'a>, one_by_one: Option<&Cards>) -> Self {
        let has = if one_by_one.is_some() { any_cards(snapshot) } else { snapshot.inventory };
        Self {
            snapshot,
            machine: Timeline::of(&machine(snapshot, has, foreseen_end)),
            sides: BTreeMap::new(),
            cards: one_by_one.map(CardsAhead::of),
        }
    }

    fn side(&mut self, workspace: &'a WorkspaceName) -> &mut Timeline {
        let snapshot = self.snapshot;
        self.sides.entry(workspace).or_insert_with(|| Timeline::of(&side(snapshot, workspace, foreseen_end).limit))
    }

    pub(super) fn start_of(&mut self, waiting: &'a Waiting) -> Option<Timestamp> {
        let Some((start, pieces)) = self.find(waiting) else { return self.no_start_of(waiting) };
        self.take(waiting, start, waiting.expected);
        if let Some(cards) = &mut self.cards {
            cards.give(&pieces, start, waiting.expected);
        }
        Some(start)
    }

    /// When it starts cannot be said: of those behind it only what it leaves over is told.
    pub(super) fn no_start_of(&mut self, waiting: &'a Waiting) -> Option<Timestamp> {
        self.take(waiting, self.snapshot.now, None);
        let kept = self.snapshot.one_by_one.as_ref().and_then(|cards| cards.kept.as_ref());
        if let Some(cards) = &mut self.cards {
            cards.keep_for(waiting, kept);
        }
        None
    }

    fn take(&mut self, waiting: &'a Waiting, start: Timestamp, lasts: Option<Duration>) {
        let load = Load::of(waiting.amount);
        self.machine.take(start, &load, lasts);
        self.side(&waiting.key.workspace).take(start, &load, lasts);
    }

    /// The first time at which all have room, and the pieces of cards that it is given then.
    fn find(&mut self, waiting: &'a Waiting) -> Option<(Timestamp, Vec<Piece>)> {
        let load = Load::of(waiting.amount);
        let mut at = self.snapshot.now;
        // Each step goes on in time, to a point of one of them.
        loop {
            let machine = self.machine.earliest(at, &load, waiting.lasts)?;
            let side = self.side(&waiting.key.workspace).earliest(machine, &load, waiting.lasts)?;
            let (all, pieces) = match &mut self.cards {
                Some(cards) => cards.earliest(waiting, side)?,
                None => (side, Vec::new()),
            };
            if all == machine {
                return Some((all, pieces));
            }
            at = all;
        }
    }
}

/// What is free from which time on, until the next.
struct Timeline(Vec<(Timestamp, Load)>);

impl Timeline {
    fn of(limit: &Limit) -> Self {
        Self(limit.free_over_time())
    }

    /// The first time from which on it fits for as long as it lasts.
    fn earliest(&self, from: Timestamp, load: &Load, lasts: Option<Duration>) -> Option<Timestamp> {
        let mut start = None;
        let mut points = self.0.iter().peekable();
        while let Some((at, free)) = points.next() {
            let next = points.peek().map(|(next, _)| *next);
            if next.is_some_and(|next| next <= from) {
                continue;
            }
            if !load.fits(free) {
                start = None;
                continue;
            }
            let begin = *start.get_or_insert((*at).max(from));
            if let (Some(lasts), Some(next)) = (lasts, next)
                && later(begin, lasts) <= next
            {
                return Some(begin);
            }
        }
        start
    }

    fn take(&mut self, start: Timestamp, load: &Load, lasts: Option<Duration>) {
        self.cut(start);
        let end = lasts.map(|lasts| later(start, lasts));
        end.into_iter().for_each(|end| self.cut(end));
        let within = self.0.iter_mut().filter(|(at, _)| *at >= start && end.is_none_or(|end| *at < end));
        within.for_each(|(_, free)| *free = free.minus(load));
    }

    /// Makes a point of a time, so that what is free may change there.
    fn cut(&mut self, time: Timestamp) {
        let next = self.0.partition_point(|(at, _)| *at <= time);
        let Some((at, free)) = next.checked_sub(1).and_then(|before| self.0.get(before)).copied() else { return };
        if at < time {
            self.0.insert(next, (time, free));
        }
    }
}
