//! Cards one by one as time goes on: what of each is free from when on, and who is given it then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::gpu::deck::{Deck, Piece, Wish};
use crate::ids::Timestamp;
use crate::plan::cards::Cards;
use crate::plan::limit::later;
use crate::plan::{Kept, Waiting};

/// So often a card is looked at, each time that one looks ahead; what is not found by then is not told. With up to 64 cards that is
/// enough for all, and where a machine had a thousand for the first few.
const LOOKS: usize = 2_000_000;

/// What is wanted, and for how long.
type Alike = (Arc<[Wish]>, Option<Duration>);

pub(super) struct CardsAhead {
    now: Timestamp,
    /// What is free from which time on, until the next.
    points: Vec<(Timestamp, Deck)>,
    /// All but what is left to runs of which nobody knows when they start.
    unpromised: Deck,
    /// From when on to look for those who want the same for as long, since what is free only becomes less; `None`: never.
    sooner: BTreeMap<Alike, Option<Timestamp>>,
    looks_left: usize,
}

/// It has been looked enough.
struct Enough;

impl CardsAhead {
    pub(super) fn of(cards: &Cards) -> Self {
        Self {
            now: cards.now,
            points: cards.free_over_time(),
            unpromised: cards.all().clone(),
            sooner: BTreeMap::new(),
            looks_left: LOOKS,
        }
    }

    /// The first time from then on at which there are pieces that it can have for as long as it lasts, and which.
    pub(super) fn earliest(&mut self, waiting: &Waiting, from: Timestamp) -> Option<(Timestamp, Vec<Piece>)> {
        if waiting.wishes.is_empty() {
            return Some((from, Vec::new()));
        }
        let alike = (waiting.wishes.clone(), waiting.lasts);
        let sooner = self.sooner.get(&alike).copied().unwrap_or(Some(self.now))?;
        let found = self.look(waiting, from.max(sooner)).ok()?;
        // Nothing before it was passed over.
        if from <= sooner {
            self.sooner.insert(alike, found.as_ref().map(|(start, _)| *start));
        }
        found
    }

    fn look(&mut self, waiting: &Waiting, from: Timestamp) -> Result<Option<(Timestamp, Vec<Piece>)>, Enough> {
        for place in self.place_at(from)..self.points.len() {
            let Some((at, free)) = self.points.get(place) else { break };
            let (start, cards) = ((*at).max(from), free.places());
            let is_room = free.fits(&waiting.wishes);
            self.pay(cards)?;
            if is_room && let Some(pieces) = self.pieces_at(place, start, waiting)? {
                return Ok(Some((start, pieces)));
            }
        }
        Ok(None)
    }

    /// Pieces that are free then, and stay so for as long as it lasts.
    fn pieces_at(&mut self, place: usize, start: Timestamp, waiting: &Waiting) -> Result<Option<Vec<Piece>>, Enough> {
        let end = waiting.lasts.map_or(self.points.len(), |lasts| self.first_since(later(start, lasts)));
        let Some(((_, now), then)) = self.points.get(place..end.max(place + 1)).and_then(<[_]>::split_first) else {
            return Ok(None);
        };
        let chosen = |deck: &Deck| deck.choose(&waiting.wishes).map(|tasks| tasks.concat());
        let mut cost = now.places() * now.places();
        let mut pieces = chosen(now);
        // As a rule: more and more is free. Else others may be, that are so all the time.
        if pieces.as_ref().is_some_and(|pieces| !then.iter().all(|(_, free)| free.has_all(pieces))) {
            cost += now.places() * (now.places() + then.len());
            pieces = chosen(&then.iter().fold(now.clone(), |both, (_, free)| both.and(free)));
        }
        self.pay(cost)?;
        Ok(pieces)
    }

    fn pay(&mut self, looks: usize) -> Result<(), Enough> {
        self.looks_left = self.looks_left.saturating_sub(looks);
        if self.looks_left == 0 { Err(Enough) } else { Ok(()) }
    }

    /// It has them from its start until it should end.
    pub(super) fn give(&mut self, pieces: &[Piece], start: Timestamp, lasts: Option<Duration>) {
        if pieces.is_empty() {
            return;
        }
        self.cut(start);
        let end = lasts.map(|lasts| later(start, lasts));
        end.into_iter().for_each(|end| self.cut(end));
        let within = self.points.iter_mut().filter(|(at, _)| *at >= start && end.is_none_or(|end| *at < end));
        within.for_each(|(_, free)| pieces.iter().for_each(|piece| free.take(piece)));
    }

    /// When it starts cannot be said. What is kept for it, or else what it could be given if all ended, is nobody else's from now
    /// on, nor where there is no such thing whatever it could use.
    pub(super) fn keep_for(&mut self, waiting: &Waiting, kept: Option<&Kept>) {
        let kept = kept.filter(|kept| (&kept.key, &kept.wishes) == (&waiting.key, &waiting.wishes));
        let kept = kept.map(|kept| kept.pieces.concat()).filter(|pieces| self.unpromised.has_all(pieces));
        let at_last = self.points.last().and_then(|(_, free)| free.choose(&waiting.wishes));
        let chosen = kept.or_else(|| Some(at_last.or_else(|| self.unpromised.choose(&waiting.wishes))?.concat()));
        let pieces = chosen.unwrap_or_else(|| self.unpromised.all_for(&waiting.wishes));
        pieces.iter().for_each(|piece| self.unpromised.take(piece));
        self.give(&pieces, self.now, None);
    }

    /// The point that holds then.
    fn place_at(&self, time: Timestamp) -> usize {
        self.points.partition_point(|(at, _)| *at <= time).saturating_sub(1)
    }

    fn first_since(&self, time: Timestamp) -> usize {
        self.points.partition_point(|(at, _)| *at < time)
    }

    /// Makes a point of a time, so that what is free may change there.
    fn cut(&mut self, time: Timestamp) {
        let place = self.place_at(time);
        let Some((at, free)) = self.points.get(place).cloned() else { return };
        if at < time {
            self.points.insert(place + 1, (time, free));
        }
    }
}
