//! The cards one by one, where to count them does not tell whether a run fits: some tasks want a share of a card, a slice or
//! a certain kind.
//!
//! As with all else (`limit`), the first run that does not fit has something kept for it: the pieces that it would be given
//! when they should be free. Who does not end before that is given none of them.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::guessed_end;
use super::fill::Ends;
use super::limit::{End, later};
use super::outlook::CardsFor;
use super::{Snapshot, Timestamp};
use crate::gpu::deck::{Deck, Part, Piece, Wish};
use crate::ids::Bytes;
use crate::spec::{GpuPart, JobSpec, Role};

/// What the tasks of a job want of cards; nothing where they want none.
pub fn wishes(spec: &JobSpec) -> Arc<[Wish]> {
    let wants_none = spec.roles.iter().all(|role| role.resources.gpu == 0);
    let wish = |role: &Role| {
        let resources = &role.resources;
        let part = match &resources.gpu_part {
            _ if resources.gpu == 0 => Part::Whole,
            GpuPart::Whole => Part::Whole,
            GpuPart::Share { memory, .. } => Part::Share(memory.0),
            GpuPart::Slice(profile) => Part::Slice(profile.clone()),
        };
        let kind = resources.gpu_type.clone().filter(|_| resources.gpu > 0);
        Wish { tasks: role.count, count: resources.gpu, part, kind }
    };
    spec.roles.iter().filter(|_| !wants_none).map(wish).collect()
}

/// The same for people, as `2 GPU(s) of type H100`.
pub fn described(wishes: &[Wish]) -> String {
    let one = |wish: &Wish| {
        let alike = wishes.iter().filter(|other| (&other.part, &other.kind) == (&wish.part, &wish.kind));
        let count: u64 = alike.map(|other| u64::from(other.tasks) * u64::from(other.count)).sum();
        let kind = wish.kind.as_ref().map_or(String::new(), |kind| format!(" of type {kind}"));
        match &wish.part {
            Part::Whole => format!("{count} GPU(s){kind}"),
            Part::Share(bytes) if count == 1 => format!("a share of {} of a GPU{kind}", Bytes(*bytes)),
            Part::Share(bytes) => format!("{count} shares of {} of GPUs{kind}", Bytes(*bytes)),
            Part::Slice(profile) => format!("{count} MIG slice(s) {profile}{kind}"),
        }
    };
    let mut told: Vec<String> = Vec::new();
    for text in wishes.iter().filter(|wish| wish.count > 0).map(one) {
        if !told.contains(&text) {
            told.push(text);
        }
    }
    told.join(" and ")
}

pub(super) struct Cards {
    now: Timestamp,
    /// As if nobody held any.
    all: Deck,
    held: Vec<(Vec<Piece>, End)>,
    room: Deck,
    /// For whom something is kept, when that should start, and what nobody needs then.
    kept: Vec<(Option<Timestamp>, Deck)>,
}

impl Cards {
    /// None where to count is enough.
    pub(super) fn of(snapshot: &Snapshot<'_>, ends: Ends) -> Option<Self> {
        let cards = snapshot.one_by_one.as_ref()?;
        let live = snapshot.live.iter().filter(|live| !live.released && !live.pieces.is_empty());
        let by_attempts = live.map(|live| (live.pieces.clone(), ends(live, snapshot.now)));
        let by_others =
            cards.away.iter().map(|(piece, since)| (vec![piece.clone()], guessed_end(*since, snapshot.now)));
        let held: Vec<_> = by_attempts.chain(by_others).collect();
        let room = without(&cards.all, &held, |_| true);
        Some(Self { now: snapshot.now, all: cards.all.clone(), held, room, kept: Vec::new() })
    }

    pub(super) fn fits(&self, wishes: &[Wish]) -> bool {
        self.room.fits(wishes)
    }

    /// For people: how many there are of what there is too little of.
    pub(super) fn state_for(&self, wishes: &[Wish]) -> CardsFor {
        let count = |deck: &Deck| {
            let scarce = deck.lacking(wishes).or(wishes.first());
            scarce.map_or(0, |wish| deck.count_of(wish))
        };
        match wishes {
            _ if self.fits(wishes) => CardsFor::Free,
            _ if self.all.fits(wishes) => CardsFor::Held { free: count(&self.room) },
            _ => CardsFor::Lacking { there: count(&self.all) },
        }
    }

    /// Whether an attempt may start, as far as what is kept goes. Before anything is, every one may ask.
    pub(super) fn admits(&self, wishes: &[Wish], lasts: Option<Duration>) -> bool {
        wishes.is_empty() || self.kept.is_empty() || self.open_to(lasts).fits(wishes)
    }

    fn end_of(&self, lasts: Option<Duration>) -> Option<Timestamp> {
        lasts.map(|lasts| later(self.now, lasts))
    }

    /// What is to be had now by who takes so long.
    fn open_to(&self, lasts: Option<Duration>) -> Deck {
        let end = self.end_of(lasts);
        let kept = self.kept.iter().filter(|(at, _)| !is_before(end, *at));
        kept.fold(self.room.clone(), |open, (_, spare)| open.and(spare))
    }

    /// An attempt starts: what it is given.
    pub(super) fn start(&mut self, wishes: &[Wish], lasts: Option<Duration>) -> Option<Vec<Vec<Piece>>> {
        if wishes.is_empty() {
            return None;
        }
        let chosen = self.open_to(lasts).choose(wishes)?;
        let end = self.end_of(lasts);
        let pieces = || chosen.iter().flatten();
        self.room = self.room.without(pieces());
        for (_, spare) in self.kept.iter_mut().filter(|(at, _)| !is_before(end, *at)) {
            *spare = spare.without(pieces());
        }
        self.held.push((pieces().cloned().collect(), end.map_or(End::Guessed(self.now), End::Said)));
        Some(chosen)
    }

    /// When all of it should be free.
    pub(super) fn fits_at(&self, wishes: &[Wish]) -> Option<Timestamp> {
        if wishes.is_empty() || self.fits(wishes) {
            return Some(self.now);
        }
        let mut ends: Vec<Timestamp> = self.held.iter().map(|(_, end)| end.foreseen()).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.into_iter().find(|at| self.left_at(*at).fits(wishes))
    }

    /// When all of it is free by what is said, if that is so at any time.
    pub(super) fn free_at(&self, wishes: &[Wish]) -> Option<Timestamp> {
        let mut ends: Vec<Timestamp> = self.held.iter().filter_map(|(_, end)| end.said()).chain([self.now]).collect();
        ends.sort_unstable();
        ends.into_iter().find(|at| self.surely_left_at(*at).fits(wishes))
    }

    /// What is free then by what is said.
    fn surely_left_at(&self, at: Timestamp) -> Deck {
        without(&self.all, &self.held, |end| end.said().is_none_or(|end| end > at))
    }

    fn left_at(&self, at: Timestamp) -> Deck {
        without(&self.all, &self.held, |end| end.foreseen() > at)
    }

    /// What the first run that does not fit is to be given, and when that should be free. What was chosen before stays so, unless
    /// something else is sure to be free sooner: of two attempts of which nobody knows when they end, the one that began last
    /// looks nearer to its end, and a choice that went by that would go from card to card and let others in behind it.
    pub(super) fn foresee(
        &self,
        wishes: &[Wish],
        before: Option<&[Vec<Piece>]>,
    ) -> Option<(Timestamp, Vec<Vec<Piece>>)> {
        let sure = self.free_at(wishes);
        let stays = before.and_then(|pieces| Some((self.free_of(pieces)?, pieces)));
        match (stays, sure) {
            (Some((at, pieces)), None) => Some((at, pieces.to_vec())),
            (Some((at, pieces)), Some(sure)) if at <= sure => Some((at, pieces.to_vec())),
            (Some(_), Some(sure)) => Some((sure, self.surely_left_at(sure).choose(wishes)?)),
            (None, _) => self.fits_at(wishes).and_then(|at| Some((at, self.left_at(at).choose(wishes)?))),
        }
    }

    /// When these pieces should be free, where they still can be had.
    fn free_of(&self, pieces: &[Vec<Piece>]) -> Option<Timestamp> {
        let has = |deck: Deck| {
            let mut left = deck;
            pieces.iter().flatten().all(|piece| {
                let is_there = left.has(piece);
                left.take(piece);
                is_there
            })
        };
        let mut ends: Vec<Timestamp> = self.held.iter().map(|(_, end)| end.foreseen()).chain([self.now]).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.into_iter().find(|at| has(self.left_at(*at)))
    }

    /// Keeps for the first run that does not fit what it is to be given then.
    pub(super) fn reserve(&mut self, chosen: &[Vec<Piece>], at: Option<Timestamp>) {
        // What nothing stops may be there for ever.
        let stays = |end: &End| end.said().is_none_or(|end| at.is_some_and(|at| end > at));
        let spare = without(&self.all, &self.held, stays).without(chosen.iter().flatten());
        self.kept.push((at, spare));
    }
}

fn without(all: &Deck, held: &[(Vec<Piece>, End)], which: impl Fn(&End) -> bool) -> Deck {
    all.without(held.iter().filter(|(_, end)| which(end)).flat_map(|(pieces, _)| pieces))
}

/// Whether what ends then, if ever, has ended when the place is needed.
fn is_before(end: Option<Timestamp>, at: Option<Timestamp>) -> bool {
    end.zip(at).is_some_and(|(end, at)| end <= at)
}
