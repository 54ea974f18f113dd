//! Waiting runs as time goes on: each in order begins where there is room for all that it may take, and ends when it should.
//!
//! What is free at a time only becomes less while one after the other is given its part, so a run starts no sooner than the one
//! before it that wants the same, and is looked for from there on: of a long queue each looks at a short time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::cards::{CardsAhead, Found};
use crate::gpu::deck::Wish;
use crate::ids::{Timestamp, WorkspaceName};
use crate::plan::attempt::foreseen_end;
use crate::plan::cards::Cards;
use crate::plan::fill::{self, any_cards};
use crate::plan::limit::{Limit, Load, later};
use crate::plan::{Amount, Snapshot, Waiting};

/// How often what is free at a time, or a card then, is still looked at. When it is used up no more starts are told.
pub(super) struct Looks(usize);

/// It has been looked enough.
pub(super) struct Enough;

impl Looks {
    pub(super) fn pay(&mut self, looks: usize) -> Result<(), Enough> {
        self.0 = self.0.saturating_sub(looks);
        if self.0 == 0 { Err(Enough) } else { Ok(()) }
    }
}

/// What is wanted, by whom and for how long.
type Alike<'a> = (&'a WorkspaceName, Amount, Arc<[Wish]>, Option<Duration>);

/// The machine, the quotas and the cards one by one, from now on.
pub(super) struct Clock<'a> {
    snapshot: &'a Snapshot<'a>,
    machine: Timeline,
    sides: BTreeMap<&'a WorkspaceName, Timeline>,
    /// Where they are looked at one by one; `machine` does not limit them then.
    cards: Option<CardsAhead>,
    /// When the last that wanted the same starts; `None`: nobody knows.
    last: BTreeMap<Alike<'a>, Option<Timestamp>>,
    looks: Looks,
}

impl<'a> Clock<'a> {
    pub(super) fn new(snapshot: &'a Snapshot<'a>, one_by_one: Option<&Cards>, looks: usize) -> Self {
        let has = if one_by_one.is_some() { any_cards(snapshot) } else { snapshot.inventory };
        Self {
            snapshot,
            machine: Timeline::of(&fill::machine(snapshot, has, foreseen_end)),
            sides: BTreeMap::new(),
            cards: one_by_one.map(CardsAhead::of),
            last: BTreeMap::new(),
            looks: Looks(looks),
        }
    }

    /// When it starts, where that can be said; it has its part from then on.
    pub(super) fn start_of(&mut self, waiting: &'a Waiting) -> Result<Option<Timestamp>, Enough> {
        let alike = (&waiting.key.workspace, waiting.amount, waiting.wishes.clone(), waiting.lasts);
        let found = match self.last.get(&alike).copied().unwrap_or(Some(self.snapshot.now)) {
            Some(from) => self.find(waiting, from)?,
            None => None,
        };
        self.last.insert(alike, found.as_ref().map(|(start, _)| *start));
        let Some((start, pieces)) = found else { return self.no_start_of(waiting) };
        self.take(waiting, start, waiting.expected)?;
        if let Some(cards) = &mut self.cards {
            cards.give(&pieces, start, waiting.expected, &mut self.looks)?;
        }
        Ok(Some(start))
    }

    /// When it starts cannot be said: of those behind it only what it leaves over is told.
    pub(super) fn no_start_of(&mut self, waiting: &'a Waiting) -> Result<Option<Timestamp>, Enough> {
        self.take(waiting, self.snapshot.now, None)?;
        let kept = self.snapshot.one_by_one.as_ref().and_then(|cards| cards.kept.as_ref());
        if let Some(cards) = &mut self.cards {
            cards.keep_for(waiting, kept, &mut self.looks)?;
        }
        Ok(None)
    }

    fn take(&mut self, waiting: &'a Waiting, start: Timestamp, lasts: Option<Duration>) -> Result<(), Enough> {
        let load = Load::of(waiting.amount);
        let Self { machine, sides, looks, .. } = self;
        let limits = [machine, side(sides, self.snapshot, &waiting.key.workspace)];
        limits.into_iter().try_for_each(|limit| limit.take(start, &load, lasts, looks))
    }

    /// The first time from then on at which all have room, and the pieces of cards that it is given then.
    fn find(&mut self, waiting: &'a Waiting, from: Timestamp) -> Result<Found, Enough> {
        let load = Load::of(waiting.amount);
        let Self { machine, sides, cards, looks, .. } = self;
        let side = side(sides, self.snapshot, &waiting.key.workspace);
        let mut at = from;
        // Each step goes on in time, to a point of one of them.
        loop {
            let Some(first) = machine.earliest(at, &load, waiting.lasts, looks)? else { return Ok(None) };
            let Some(second) = side.earliest(first, &load, waiting.lasts, looks)? else { return Ok(None) };
            let found = match cards {
                Some(cards) => cards.earliest(waiting, second, looks)?,
                None => Some((second, Vec::new())),
            };
            match found {
                Some((all, _)) if all > first => at = all,
                found => return Ok(found),
            }
        }
    }
}

/// What the quota of a workspace leaves.
fn side<'t, 'a>(
    sides: &'t mut BTreeMap<&'a WorkspaceName, Timeline>,
    snapshot: &Snapshot<'_>,
    workspace: &'a WorkspaceName,
) -> &'t mut Timeline {
    sides.entry(workspace).or_insert_with(|| Timeline::of(&fill::side(snapshot, workspace, foreseen_end).limit))
}

/// What holds from which time on, until the next.
pub(super) struct Points<T>(Vec<(Timestamp, T)>);

impl<T: Clone> Points<T> {
    pub(super) fn of(points: Vec<(Timestamp, T)>) -> Self {
        Self(points)
    }

    /// From the one that holds then.
    pub(super) fn since(&self, time: Timestamp) -> &[(Timestamp, T)] {
        self.0.get(self.place_at(time)..).unwrap_or_default()
    }

    pub(super) fn last(&self) -> Option<&T> {
        self.0.last().map(|(_, last)| last)
    }

    /// Those from then until the end, so that what holds may change at both; for ever where there is no end.
    pub(super) fn between(&mut self, start: Timestamp, lasts: Option<Duration>) -> &mut [(Timestamp, T)] {
        let first = self.cut(start);
        let end = lasts.map_or(self.0.len(), |lasts| self.cut(later(start, lasts)));
        self.0.get_mut(first..end.max(first)).unwrap_or_default()
    }

    fn place_at(&self, time: Timestamp) -> usize {
        self.0.partition_point(|(at, _)| *at <= time).saturating_sub(1)
    }

    /// Makes a point of a time, and says which; a time before all is the first.
    fn cut(&mut self, time: Timestamp) -> usize {
        let place = self.place_at(time);
        let Some((at, holds)) = self.0.get(place) else { return place };
        if *at >= time {
            return place;
        }
        let holds = holds.clone();
        self.0.insert(place + 1, (time, holds));
        place + 1
    }
}

/// What is free of a limit from which time on.
struct Timeline(Points<Load>);

impl Timeline {
    fn of(limit: &Limit) -> Self {
        Self(Points::of(limit.free_over_time()))
    }

    /// The first time from which on it fits for as long as it lasts.
    fn earliest(
        &self,
        from: Timestamp,
        load: &Load,
        lasts: Option<Duration>,
        looks: &mut Looks,
    ) -> Result<Option<Timestamp>, Enough> {
        let points = self.0.since(from);
        let mut start = None;
        for (looked, (at, free)) in points.iter().enumerate() {
            if let Some((begin, lasts)) = start.zip(lasts)
                && later(begin, lasts) <= *at
            {
                looks.pay(looked)?;
                return Ok(start);
            }
            start = load.fits(free).then(|| start.unwrap_or((*at).max(from)));
        }
        looks.pay(points.len())?;
        Ok(start)
    }

    fn take(
        &mut self,
        start: Timestamp,
        load: &Load,
        lasts: Option<Duration>,
        looks: &mut Looks,
    ) -> Result<(), Enough> {
        let points = self.0.between(start, lasts);
        points.iter_mut().for_each(|(_, free)| *free = free.minus(load));
        looks.pay(points.len())
    }
}
