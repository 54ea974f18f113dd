//! Cards one by one as time goes on: what of each is free from when on, and who is given it then.

use super::clock::{During, Enough, Looks, Points};
use crate::gpu::deck::{Deck, Piece};
use crate::ids::Timestamp;
use crate::plan::cards::Cards;
use crate::plan::limit::later;
use crate::plan::{Kept, Waiting};

/// Pieces that can be had from a time on.
pub(super) type Found = Option<(Timestamp, Vec<Piece>)>;

pub(super) struct CardsAhead {
    free: Points<Deck>,
    /// All but what is left to runs of which nobody knows when they start.
    unpromised: Deck,
}

impl CardsAhead {
    pub(super) fn of(cards: &Cards) -> Self {
        Self { free: Points::of(cards.free_over_time()), unpromised: cards.all().clone() }
    }

    /// The first time from then on at which there are pieces that it can have for as long as it lasts, and which.
    pub(super) fn earliest(&self, waiting: &Waiting, from: Timestamp, looks: &mut Looks) -> Result<Found, Enough> {
        if waiting.wishes.is_empty() {
            return Ok(Some((from, Vec::new())));
        }
        let mut points = self.free.since(from);
        while let [(at, free), then @ ..] = points {
            let start = (*at).max(from);
            looks.pay(free.places())?;
            if free.fits(&waiting.wishes)
                && let Some(pieces) = pieces_from(start, free, then, waiting, looks)?
            {
                return Ok(Some((start, pieces)));
            }
            points = then;
        }
        Ok(None)
    }

    /// They are somebody's for so long.
    pub(super) fn give(&mut self, pieces: &[Piece], during: During, looks: &mut Looks) -> Result<(), Enough> {
        if pieces.is_empty() {
            return Ok(());
        }
        let points = self.free.between(during);
        looks.pay(points.len() * pieces.len())?;
        points.iter_mut().for_each(|(_, free)| pieces.iter().for_each(|piece| free.take(piece)));
        Ok(())
    }

    /// The same without a look at times: what it could be given if all ended.
    pub(super) fn promise(&mut self, waiting: &Waiting) -> Vec<Piece> {
        let chosen = self.unpromised.choose(&waiting.wishes).map(|tasks| tasks.concat());
        let pieces = chosen.unwrap_or_else(|| self.unpromised.all_for(&waiting.wishes));
        pieces.iter().for_each(|piece| self.unpromised.take(piece));
        pieces
    }

    /// When it starts cannot be said. What is kept for it, or else what it could be given if all ended, is nobody else's from now
    /// on, nor where there is no such thing whatever it could use.
    pub(super) fn keep_for(&mut self, waiting: &Waiting, kept: Option<&Kept>) -> Vec<Piece> {
        let kept = kept.filter(|kept| (&kept.key, &kept.wishes) == (&waiting.key, &waiting.wishes));
        let kept = kept.map(|kept| kept.pieces.concat()).filter(|pieces| self.unpromised.has_all(pieces));
        let at_last = self.free.last().and_then(|free| free.choose(&waiting.wishes));
        let chosen = kept.or_else(|| Some(at_last.or_else(|| self.unpromised.choose(&waiting.wishes))?.concat()));
        let pieces = chosen.unwrap_or_else(|| self.unpromised.all_for(&waiting.wishes));
        pieces.iter().for_each(|piece| self.unpromised.take(piece));
        pieces
    }
}

/// Pieces that are free from the start on, and stay so for as long as it lasts.
fn pieces_from(
    start: Timestamp,
    now: &Deck,
    points: &[(Timestamp, Deck)],
    waiting: &Waiting,
    looks: &mut Looks,
) -> Result<Option<Vec<Piece>>, Enough> {
    let end = waiting.lasts.map(|lasts| later(start, lasts));
    let during = end.map_or(points.len(), |end| points.partition_point(|(at, _)| *at < end));
    let then = points.get(..during).unwrap_or_default();
    let chosen = |deck: &Deck| deck.choose(&waiting.wishes).map(|tasks| tasks.concat());
    looks.pay(now.places() * now.places() + then.len())?;
    let pieces = chosen(now);
    // As a rule: more and more is free. Else others may be, that are so all the time.
    if pieces.as_ref().is_none_or(|pieces| then.iter().all(|(_, free)| free.has_all(pieces))) {
        return Ok(pieces);
    }
    looks.pay(now.places() * (now.places() + then.len()))?;
    Ok(chosen(&then.iter().fold(now.clone(), |both, (_, free)| both.and(free))))
}
