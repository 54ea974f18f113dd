//! Waiting runs as time goes on: each in order begins where there is room for all that it may take, and ends when it should.
//!
//! What is free at a time only becomes less while one after the other is given its part, so a run starts no sooner than the one
//! before it that wants the same, and is looked for from there on: of a long queue each looks at a short time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::cards::{CardsAhead, Found};
use super::in_order::InOrder;
use super::{Start, Turn};
use crate::gpu::deck::{Piece, Wish};
use crate::ids::{Timestamp, WorkspaceName};
use crate::plan::attempt::{foreseen_end, sure_end};
use crate::plan::cards::Cards;
use crate::plan::fill::{Ends, any_cards, machine, side};
use crate::plan::limit::{Limit, Load, later};
use crate::plan::{Amount, Snapshot, Waiting};

/// How often what is free at a time, or a card then, is still looked at. When it is used up starts are told in order alone.
pub(super) struct Looks(usize);

/// It has been looked enough.
pub(super) struct Enough;

impl Looks {
    pub(super) fn pay(&mut self, looks: usize) -> Result<(), Enough> {
        self.0 = self.0.saturating_sub(looks);
        if self.0 == 0 { Err(Enough) } else { Ok(()) }
    }
}

/// What has its place in time.
pub(super) struct Placed<'a> {
    pub(super) waiting: &'a Waiting,
    /// Absent where it cannot be said: then that is nobody else's from now on.
    pub(super) start: Option<Timestamp>,
    /// As it is expected that all end.
    pub(super) pieces: Vec<Piece>,
}

/// What is wanted, by whom and for how long.
type Alike<'a> = (&'a WorkspaceName, Amount, Arc<[Wish]>, Option<Duration>);

/// The machine, the quotas and the cards, as it is sure that all end and as it is expected.
///
/// Whoever starts before those that come first, in the plan must not put them off even if nothing ends before it is stopped: so
/// it needs room by what is sure. When they have started it needs room alone.
pub(super) struct Clock<'a> {
    snapshot: &'a Snapshot<'a>,
    now: Timestamp,
    sure: Ahead<'a>,
    expected: Ahead<'a>,
    placed: Vec<Placed<'a>>,
    /// When all before it have started that wait for the machine, if it is known.
    in_order: Option<Timestamp>,
    looks: Looks,
}

impl<'a> Clock<'a> {
    pub(super) fn new(snapshot: &'a Snapshot<'a>, looks: usize) -> Self {
        Self {
            snapshot,
            now: snapshot.now,
            placed: Vec::new(),
            sure: Ahead::new(snapshot, sure_end),
            expected: Ahead::new(snapshot, foreseen_end),
            in_order: Some(snapshot.now),
            looks: Looks(looks),
        }
    }

    /// When each of these starts, in their order, where that can be said.
    pub(super) fn starts(mut self, turns: &[Turn<'a>]) -> Vec<Option<Start>> {
        let mut starts = Vec::with_capacity(turns.len());
        for (place, turn) in turns.iter().enumerate() {
            let start = match turn {
                Turn::Never => Ok(None),
                Turn::Unknown(waiting) => self.keep_for(waiting).map(|()| None),
                Turn::Comes(waiting) => self.start_of(waiting),
            };
            match start {
                Ok(start) => starts.push(start.map(Start::By)),
                Err(Enough) => {
                    starts.extend(self.in_order(turns.get(place..).unwrap_or_default()));
                    break;
                }
            }
        }
        starts
    }

    /// The same of all that are left, as if none of them went before another in a gap: not known where it is not known when all
    /// before them have started.
    fn in_order(mut self, turns: &[Turn<'a>]) -> Vec<Option<Start>> {
        let Some(from) = self.in_order else { return vec![None; turns.len()] };
        for turn in turns {
            if let Turn::Unknown(waiting) = turn {
                let pieces = self.expected.cards.as_mut().map(|cards| cards.promise(waiting)).unwrap_or_default();
                self.placed.push(Placed { waiting, start: None, pieces });
            }
        }
        // Those before that wait for their quota alone come again, since they have their turn when they may have more.
        let put_off = self.placed.iter().filter(|one| one.start.is_some_and(|start| start > from));
        let mut waiting: Vec<&Waiting> = put_off.map(|one| one.waiting).collect();
        let first = waiting.len();
        waiting.extend(turns.iter().filter_map(Turn::waiting));
        let mut starts = InOrder::from(self.snapshot, from, &self.placed).starts(&waiting).into_iter().skip(first);
        let told = turns.iter().map(|turn| turn.waiting().and_then(|_| starts.next().flatten()).map(Start::About));
        told.collect()
    }

    /// When it starts, where that can be said; it has its part from then on.
    fn start_of(&mut self, waiting: &'a Waiting) -> Result<Option<Timestamp>, Enough> {
        let looks = &mut self.looks;
        let before = self.sure.find(waiting, self.now, looks)?;
        let found = match (before, self.in_order) {
            (Some(found), Some(in_order)) if found.0 > in_order => self.expected.find(waiting, in_order, looks)?,
            (None, Some(in_order)) => self.expected.find(waiting, in_order, looks)?,
            (before, _) => before,
        };
        let Some((start, pieces)) = found else {
            if self.expected.has_quota_since(waiting, self.now, looks)?.is_some() {
                self.in_order = None;
            }
            self.keep_for(waiting)?;
            return Ok(None);
        };
        let just_before = Timestamp(start.0.saturating_sub(1).max(self.now.0));
        if self.expected.has_quota_since(waiting, just_before, looks)? == Some(just_before) {
            self.in_order = self.in_order.map(|in_order| in_order.max(start));
        }
        self.sure.take(waiting, &pieces, (start, waiting.lasts), looks)?;
        self.expected.take(waiting, &pieces, (start, waiting.expected), looks)?;
        self.placed.push(Placed { waiting, start: Some(start), pieces });
        Ok(Some(start))
    }

    /// When it starts cannot be said: of those behind it only what it leaves over is told.
    fn keep_for(&mut self, waiting: &'a Waiting) -> Result<(), Enough> {
        self.sure.keep_for(waiting, &mut self.looks)?;
        let pieces = self.expected.keep_for(waiting, &mut self.looks)?;
        self.placed.push(Placed { waiting, start: None, pieces });
        Ok(())
    }
}

/// The machine, the quotas and the cards one by one, from now on, where all that runs ends in one way.
struct Ahead<'a> {
    snapshot: &'a Snapshot<'a>,
    ends: Ends,
    machine: Timeline,
    sides: BTreeMap<&'a WorkspaceName, Timeline>,
    /// Where they are looked at one by one; `machine` does not limit them then.
    cards: Option<CardsAhead>,
    /// From when on to look for those who want the same; `None`: never.
    sooner: BTreeMap<Alike<'a>, Option<Timestamp>>,
}

impl<'a> Ahead<'a> {
    fn new(snapshot: &'a Snapshot<'a>, ends: Ends) -> Self {
        let cards = Cards::of(snapshot, ends);
        let has = if cards.is_some() { any_cards(snapshot) } else { snapshot.inventory };
        Self {
            snapshot,
            ends,
            machine: Timeline::of(&machine(snapshot, has, ends)),
            sides: BTreeMap::new(),
            cards: cards.as_ref().map(CardsAhead::of),
            sooner: BTreeMap::new(),
        }
    }

    /// The first time from then on at which all have room, and the pieces of cards that it is given then.
    fn find(&mut self, waiting: &'a Waiting, from: Timestamp, looks: &mut Looks) -> Result<Found, Enough> {
        let alike = (&waiting.key.workspace, waiting.amount, waiting.wishes.clone(), waiting.lasts);
        let Some(sooner) = self.sooner.get(&alike).copied().unwrap_or(Some(from)) else { return Ok(None) };
        let found = self.look(waiting, from.max(sooner), looks)?;
        self.sooner.insert(alike, found.as_ref().map(|(start, _)| *start));
        Ok(found)
    }

    fn look(&mut self, waiting: &'a Waiting, from: Timestamp, looks: &mut Looks) -> Result<Found, Enough> {
        let load = Load::of(waiting.amount);
        let mut at = from;
        // Each step goes on in time, to a point of one of them.
        loop {
            let Some(first) = self.machine.earliest(at, &load, waiting.lasts, looks)? else { return Ok(None) };
            let Some(second) = self.has_quota_since(waiting, first, looks)? else { return Ok(None) };
            let found = match &self.cards {
                Some(cards) => cards.earliest(waiting, second, looks)?,
                None => Some((second, Vec::new())),
            };
            match found {
                Some((all, _)) if all > first => at = all,
                found => return Ok(found),
            }
        }
    }

    /// The first time from then on at which its workspace may have it.
    fn has_quota_since(
        &mut self,
        waiting: &'a Waiting,
        from: Timestamp,
        looks: &mut Looks,
    ) -> Result<Option<Timestamp>, Enough> {
        self.side(waiting).earliest(from, &Load::of(waiting.amount), waiting.lasts, looks)
    }

    fn side(&mut self, waiting: &'a Waiting) -> &mut Timeline {
        let (snapshot, ends, workspace) = (self.snapshot, self.ends, &waiting.key.workspace);
        self.sides.entry(workspace).or_insert_with(|| Timeline::of(&side(snapshot, workspace, ends).limit))
    }

    fn take(
        &mut self,
        waiting: &'a Waiting,
        pieces: &[Piece],
        during: During,
        looks: &mut Looks,
    ) -> Result<(), Enough> {
        let load = Load::of(waiting.amount);
        self.machine.take(during, &load, looks)?;
        self.side(waiting).take(during, &load, looks)?;
        self.cards.iter_mut().try_for_each(|cards| cards.give(pieces, during, looks))
    }

    fn keep_for(&mut self, waiting: &'a Waiting, looks: &mut Looks) -> Result<Vec<Piece>, Enough> {
        let kept = self.snapshot.one_by_one.as_ref().and_then(|cards| cards.kept.as_ref());
        let pieces = self.cards.as_mut().map(|cards| cards.keep_for(waiting, kept)).unwrap_or_default();
        self.take(waiting, &pieces, (self.snapshot.now, None), looks)?;
        Ok(pieces)
    }
}

/// From when on, and for how long.
pub(super) type During = (Timestamp, Option<Duration>);

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
    pub(super) fn between(&mut self, (start, lasts): During) -> &mut [(Timestamp, T)] {
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

    fn take(&mut self, during: During, load: &Load, looks: &mut Looks) -> Result<(), Enough> {
        let points = self.0.between(during);
        points.iter_mut().for_each(|(_, free)| *free = free.minus(load));
        looks.pay(points.len())
    }
}
