//! The cards one by one, where to count them does not tell whether a run fits: some tasks want a share of a card, a slice or
//! a certain kind.
//!
//! As with all else (`limit`), the first run that does not fit has something kept for it: the pieces that it would be given
//! when they should be free. Who does not end before that is given none of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::guessed_end;
use super::fill::Ends;
use super::limit::{End, later};
use super::outlook::CardsFor;
use super::{Snapshot, Timestamp};
use crate::gpu::deck::{Deck, Part, Piece, Sort, Wish, sorts};
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
    sorts(wishes).iter().map(|sort| so_many(sort, sort.pieces())).collect::<Vec<_>>().join(" and ")
}

/// So many of the sort of a wish.
pub fn so_many(wish: &Wish, count: u64) -> String {
    let kind = wish.kind.as_ref().map_or(String::new(), |kind| format!(" of type {kind}"));
    match &wish.part {
        Part::Whole => format!("{count} GPU(s){kind}"),
        Part::Share(bytes) if count == 1 => format!("a share of {} of a GPU{kind}", Bytes(*bytes)),
        Part::Share(bytes) => format!("{count} shares of {} of GPUs{kind}", Bytes(*bytes)),
        Part::Slice(profile) => format!("{count} MIG slice(s) {profile}{kind}"),
    }
}

/// Later than all that happens.
const NEVER: Timestamp = Timestamp(u64::MAX);

pub(super) struct Cards {
    pub(super) now: Timestamp,
    /// As if nobody held any.
    all: Offer,
    held: Vec<(Vec<Piece>, End)>,
    /// For whom something is kept: first what is kept at all times, then by when they should start.
    kept: Vec<Reserved>,
    /// What is to be had now: by whom nothing that is kept keeps from it, then by whom the first that is kept does, the first two…
    open: Vec<Offer>,
}

/// What is kept for a run.
struct Reserved {
    /// When it should start; not known where absent.
    at: Option<Timestamp>,
    /// What nobody needs then.
    spare: Deck,
}

/// Cards that are asked for again and again.
struct Offer {
    deck: Deck,
    /// How much there is of what was asked for, so that each card is looked at once for each sort.
    known: RefCell<BTreeMap<Sort, u64>>,
}

impl Offer {
    fn of(deck: Deck) -> Self {
        Self { deck, known: RefCell::default() }
    }

    fn most(&self, sort: &Sort) -> u64 {
        let known = self.known.borrow().get(sort).copied();
        known.unwrap_or_else(|| {
            let most = self.deck.most(sort);
            self.known.borrow_mut().insert(sort.clone(), most);
            most
        })
    }

    fn fits(&self, wishes: &[Wish]) -> bool {
        let (sort, wanted) = Sort::of(wishes);
        wanted <= self.most(&sort)
    }
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
        let open = vec![Offer::of(without(&cards.all, &held, |_| true))];
        Some(Self { now: snapshot.now, all: Offer::of(cards.all.clone()), held, kept: Vec::new(), open })
    }

    /// What nobody holds.
    fn room(&self) -> &Offer {
        self.open.first().expect("there is one more of them than of those for whom something is kept")
    }

    pub(super) fn fits(&self, wishes: &[Wish]) -> bool {
        self.room().fits(wishes)
    }

    /// Whether there are such cards at all.
    pub(super) fn exist_for(&self, wishes: &[Wish]) -> bool {
        self.all.fits(wishes)
    }

    /// For people: what nobody holds of what could be something for these, thousandths of a card.
    pub(super) fn free_for(&self, wishes: &[Wish]) -> u64 {
        self.room().deck.weight_for(wishes)
    }

    /// For people: what of these there is too little of.
    pub(super) fn state_for(&self, wishes: &[Wish]) -> CardsFor {
        match wishes {
            _ if self.fits(wishes) => CardsFor::Free,
            _ if self.exist_for(wishes) => CardsFor::Held(self.room().deck.scarce(wishes).into()),
            _ => CardsFor::Lacking(self.all.deck.scarce(wishes).into()),
        }
    }

    /// How much of a sort an attempt may have, as far as what is kept goes, by how many of those for whom something is kept keep
    /// it from it. Before anything is, every one may ask.
    pub(super) fn most(&self, sort: &Sort) -> Vec<u64> {
        match self.kept.is_empty() {
            true => vec![u64::MAX],
            false => self.open.iter().map(|open| open.most(sort)).collect(),
        }
    }

    fn end_of(&self, lasts: Option<Duration>) -> Option<Timestamp> {
        lasts.map(|lasts| later(self.now, lasts))
    }

    /// So many of those for whom something is kept keep it from an attempt that takes so long.
    pub(super) fn kept_from(&self, lasts: Option<Duration>) -> usize {
        let end = self.end_of(lasts);
        self.kept.partition_point(|kept| !is_before(end, kept.at))
    }

    /// An attempt starts: what it is given.
    pub(super) fn start(&mut self, wishes: &[Wish], lasts: Option<Duration>) -> Option<Vec<Vec<Piece>>> {
        if wishes.is_empty() {
            return None;
        }
        let kept_from = self.kept_from(lasts);
        let chosen = self.open.get(kept_from)?.deck.choose(wishes)?;
        let pieces = || chosen.iter().flatten();
        let room = self.room().deck.without(pieces());
        for kept in self.kept.iter_mut().take(kept_from) {
            kept.spare = kept.spare.without(pieces());
        }
        self.open_up(room);
        let end = self.end_of(lasts).map_or(End::Guessed(self.now), End::Said);
        self.held.push((pieces().cloned().collect(), end));
        Some(chosen)
    }

    /// Looks anew at what is to be had of what nobody holds.
    fn open_up(&mut self, room: Deck) {
        let narrower = |open: &mut Deck, kept: &Reserved| {
            *open = open.and(&kept.spare);
            Some(open.clone())
        };
        let narrowed = self.kept.iter().scan(room.clone(), narrower);
        self.open = std::iter::once(room.clone()).chain(narrowed).map(Offer::of).collect();
    }

    /// When all of it should be free.
    pub(super) fn fits_at(&self, wishes: &[Wish]) -> Option<Timestamp> {
        if wishes.is_empty() || self.fits(wishes) {
            return Some(self.now);
        }
        first(self.held.iter().map(|(_, end)| end.foreseen()), |at| self.left_at(at).fits(wishes))
    }

    /// When all of it is free by what is said, if that is so at any time.
    pub(super) fn free_at(&self, wishes: &[Wish]) -> Option<Timestamp> {
        let ends = self.held.iter().filter_map(|(_, end)| end.said()).chain([self.now]);
        first(ends, |at| self.surely_left_at(at).fits(wishes))
    }

    /// As if nobody held any.
    pub(super) fn all(&self) -> &Deck {
        &self.all.deck
    }

    /// What is free from which time on, as what runs ends; what does not say when never does.
    pub(super) fn free_over_time(&self) -> Vec<(Timestamp, Deck)> {
        let mut ends: BTreeMap<Timestamp, Vec<&Piece>> = BTreeMap::from([(self.now, Vec::new())]);
        for (pieces, end) in &self.held {
            let end = end.said().map_or(NEVER, |end| end.max(self.now));
            ends.entry(end).or_default().extend(pieces);
        }
        // From the end back to now: more and more is held.
        let mut free = self.all.deck.clone();
        let mut out: Vec<_> = Vec::new();
        for (at, given_back) in ends.iter().rev() {
            out.push((*at, free.clone()));
            free = free.without(given_back.iter().copied());
        }
        out.retain(|(at, _)| *at < NEVER);
        out.reverse();
        out
    }

    /// What is free then by what is said.
    fn surely_left_at(&self, at: Timestamp) -> Deck {
        without(&self.all.deck, &self.held, |end| end.said().is_none_or(|end| end > at))
    }

    fn left_at(&self, at: Timestamp) -> Deck {
        without(&self.all.deck, &self.held, |end| end.foreseen() > at)
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
        let pieces = pieces.concat();
        first(self.held.iter().map(|(_, end)| end.foreseen()).chain([self.now]), |at| self.left_at(at).has_all(&pieces))
    }

    /// Keeps for the first run that does not fit what it is to be given then.
    pub(super) fn reserve(&mut self, chosen: &[Vec<Piece>], at: Option<Timestamp>) {
        // What nothing stops may be there for ever.
        let stays = |end: &End| end.said().is_none_or(|end| at.is_some_and(|at| end > at));
        let spare = without(&self.all.deck, &self.held, stays).without(chosen.iter().flatten());
        let place = self.kept.partition_point(|kept| kept.at <= at);
        self.kept.insert(place, Reserved { at, spare });
        self.open_up(self.room().deck.clone());
    }
}

/// The first of these times at which something is so that is so at all later ones: as what runs ends, more and more is free.
fn first(times: impl Iterator<Item = Timestamp>, is_so: impl Fn(Timestamp) -> bool) -> Option<Timestamp> {
    let mut times: Vec<Timestamp> = times.collect();
    times.sort_unstable();
    times.dedup();
    times.get(times.partition_point(|at| !is_so(*at))).copied()
}

fn without(all: &Deck, held: &[(Vec<Piece>, End)], which: impl Fn(&End) -> bool) -> Deck {
    all.without(held.iter().filter(|(_, end)| which(end)).flat_map(|(pieces, _)| pieces))
}

/// Whether what ends then, if ever, has ended when the place is needed.
fn is_before(end: Option<Timestamp>, at: Option<Timestamp>) -> bool {
    end.zip(at).is_some_and(|(end, at)| end <= at)
}
