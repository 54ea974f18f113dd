//! Cards one by one, where some job wants a share of one, a slice, or a certain kind: what the plan is told of them then, and
//! leases of what it has chosen.

use std::collections::BTreeMap;

use super::{OutOfUse, Sought};
use crate::gpu::deck::{Deck, Piece, PieceOf, Sizes, to_be_shared, weight_of_slice};
use crate::gpu::{Card, Process, Slice};
use crate::ids::{AttemptId, Bytes, GpuUuid, JobKey};
use crate::plan::{OneByOne, Want, described, wishes};
use crate::reconcile::Reconciler;
use crate::report::StrangerReport;
use crate::spec::JobSpec;
use crate::status::StopCause;
use crate::store::Store;
use crate::store::record::{GpuLease, GpuPartLease};

/// Who has something of a card.
#[derive(Default)]
struct Parts {
    /// Somebody has all of it.
    is_whole: bool,
    /// Who has parts of it.
    attempts: Vec<AttemptId>,
}

/// Who has something of which card.
type Holders<'a> = BTreeMap<&'a GpuUuid, Parts>;

impl Parts {
    /// Tasks of an attempt may open each other's cards.
    fn are_of(&self, process: &Process) -> bool {
        process.task.is_some_and(|task| self.attempts.contains(&task.attempt))
    }
}

/// Something that nobody has and nobody is given now.
struct Away<'a> {
    piece: Piece,
    card: &'a Card,
    why: OutOfUse<'a>,
}

impl<S: Store> Reconciler<S> {
    /// To count cards is not enough while somebody wants or has something else than whole ones of any kind.
    fn looks_at_each(&self) -> bool {
        self.queue.wants(Want::Certain) || self.live.iter().any(|key| self.has_parts(key))
    }

    fn has_parts(&self, key: &JobKey) -> bool {
        self.held_by(key).any(|lease| lease.part.is_some())
    }

    pub(in crate::reconcile) fn one_by_one(&self) -> Option<OneByOne> {
        if !self.looks_at_each() {
            return None;
        }
        let away = self.pieces_away().into_iter();
        let away = away.filter_map(|away| Some((away.piece, self.cards.away_since(away.why, self.now)?)));
        Some(OneByOne { all: self.deck(), away: away.collect(), kept: self.cards.kept.clone() })
    }

    /// All that can be had sooner or later, as if nobody held any.
    fn deck(&self) -> Deck {
        let (holders, nobody) = (self.holders(), Parts::default());
        let all = Deck::of(self.cards.seen.clone(), |card| {
            let parts = holders.get(&card.facts.uuid).unwrap_or(&nobody);
            let why = self.cards.in_the_way(card, self.now, |process| parts.are_of(process));
            why.is_none_or(|why| self.cards.away_since(why, self.now).is_some())
        });
        let cards = self.cards.seen.cards.iter().enumerate();
        let unreachable: Vec<Piece> =
            cards.flat_map(|(place, card)| unreachable(place, card)).map(|away| away.piece).collect();
        all.without(&unreachable)
    }

    fn holders(&self) -> Holders<'_> {
        let mut holders = Holders::new();
        for key in &self.live {
            let Some(attempt) = self.live_attempt(key) else { continue };
            for lease in self.held_by(key) {
                let of_card = holders.entry(&lease.uuid).or_default();
                match &lease.part {
                    None => of_card.is_whole = true,
                    Some(_) => of_card.attempts.push(attempt.id),
                }
            }
        }
        holders
    }

    fn pieces_away(&self) -> Vec<Away<'_>> {
        let (holders, nobody) = (self.holders(), Parts::default());
        let cards = self.cards.seen.cards.iter().enumerate();
        let cards = cards.map(|(place, card)| (place, card, holders.get(&card.facts.uuid).unwrap_or(&nobody)));
        let open = cards.filter(|(_, _, parts)| !parts.is_whole);
        open.flat_map(|(place, card, parts)| self.away_of(place, card, parts)).collect()
    }

    /// Of a card that is cut up a stranger has only the slice that it uses.
    fn away_of<'a>(&'a self, place: usize, card: &'a Card, parts: &Parts) -> Vec<Away<'a>> {
        let whole = |why| vec![Away { piece: Piece { place, of: PieceOf::Whole }, card, why }];
        match self.cards.in_the_way(card, self.now, |process| parts.are_of(process)) {
            None => unreachable(place, card),
            Some(OutOfUse::Used { since, .. }) => {
                let away = self.cards.strangers_on(card, |process| parts.are_of(process)).map(|by| {
                    let slice = by.slice.as_ref().and_then(|uuid| card.slices.iter().find(|slice| slice.uuid == *uuid));
                    let of = slice.map_or(PieceOf::Whole, |slice| PieceOf::Slice {
                        uuid: slice.uuid.clone(),
                        profile: slice.profile.clone(),
                    });
                    Away { piece: Piece { place, of }, card, why: OutOfUse::Used { since, by, more: 0 } }
                });
                away.chain(unreachable(place, card)).collect()
            }
            Some(why) => whole(why),
        }
    }

    /// Parts of cards that others have the rest of, and slices, which are told of only where somebody waits for such.
    fn parts_away(&self) -> Vec<Away<'_>> {
        let slices = self.queue.wants(Want::Slices);
        let shares = self.queue.wants(Want::Shares);
        if !slices && !shares {
            return Vec::new();
        }
        let leased = self.leased();
        let is_wanted = |away: &Away<'_>| match away.card.is_cut_up() {
            true => slices,
            false => shares && leased.contains(&away.card.facts.uuid),
        };
        self.pieces_away().into_iter().filter(is_wanted).collect()
    }

    pub(super) fn parts_are_to_be_looked_at(&self) -> bool {
        self.parts_away().into_iter().any(|away| self.cards.away_since(away.why, self.now).is_some())
    }

    pub(super) fn parts_out_of_use(&self, sought: &Sought) -> Vec<String> {
        let told = |away: Away<'_>| {
            let says = self.cards.says(away.why, self.now);
            match &away.piece.of {
                PieceOf::Slice { profile, .. } => format!("; a slice {profile} of GPU {} {says}", away.piece.place),
                _ if away.card.is_cut_up() => format!("; GPU {}, cut up, {says}", away.piece.place),
                _ => format!("; GPU {}, which is shared, {says}", away.piece.place),
            }
        };
        self.parts_away().into_iter().filter(|away| sought.concerns_parts(away.card)).map(told).collect()
    }

    pub(super) fn strangers_on_parts(
        &self,
        sought: &Sought,
        told: impl Fn(usize, &Card, Option<&str>, &Process) -> StrangerReport,
    ) -> Vec<StrangerReport> {
        let of = |away: Away<'_>| {
            let OutOfUse::Used { by, .. } = away.why else { return None };
            let slice = if let PieceOf::Slice { profile, .. } = &away.piece.of { Some(profile.as_str()) } else { None };
            Some(told(away.piece.place, away.card, slice, by))
        };
        self.parts_away().into_iter().filter(|away| sought.concerns_parts(away.card)).filter_map(of).collect()
    }

    /// What slices count, in thousandths of a card, where cards are looked at one by one.
    pub(super) fn slices_there_are(&self) -> u64 {
        if !self.looks_at_each() {
            return 0;
        }
        let is_had = |card: &&Card| {
            let why = self.cards.in_the_way(card, self.now, |_| true);
            card.is_cut_up() && why.is_none_or(|why| self.cards.away_since(why, self.now).is_some())
        };
        // One of which something is leased is counted as a whole card already.
        let leased = self.leased();
        let cut_up = self.cards.seen.cards.iter().filter(is_had);
        let free = cut_up.filter(|card| !leased.contains(&card.facts.uuid));
        let slices = free.flat_map(|card| &card.slices).filter(|slice| slice.unreachable.is_none());
        slices.map(|slice| weight_of_slice(&slice.profile)).sum()
    }

    /// Why an attempt of the job is to be stopped, by what it uses of its shares.
    pub(in crate::reconcile) fn over_share(&self, key: &JobKey) -> Option<StopCause> {
        self.cards.sharing.cause(self.live_attempt(key)?.id)
    }

    /// What it holds of which cards.
    pub(in crate::reconcile) fn pieces_of(&self, key: &JobKey) -> Vec<Piece> {
        self.held_by(key).filter_map(|lease| self.piece_of(lease)).collect()
    }

    fn piece_of(&self, lease: &GpuLease) -> Option<Piece> {
        let place = self.cards.seen.cards.iter().position(|card| card.facts.uuid == lease.uuid)?;
        let of = match &lease.part {
            None => PieceOf::Whole,
            Some(GpuPartLease::Share { bytes, of }) => PieceOf::Share { bytes: *bytes, of: *of },
            Some(GpuPartLease::Slice { uuid, profile, .. }) => {
                PieceOf::Slice { uuid: uuid.clone(), profile: profile.clone() }
            }
        };
        Some(Piece { place, of })
    }

    /// Leases of these pieces, if all of them can still be had.
    pub(super) fn lease_pieces(&self, pieces: &[Vec<Piece>]) -> Option<Vec<Vec<GpuLease>>> {
        let held = self.live.iter().flat_map(|key| self.held_by(key)).filter_map(|lease| self.piece_of(lease));
        let held: Vec<Piece> = held.chain(self.pieces_away().into_iter().map(|away| away.piece)).collect();
        let mut free = self.deck().without(&held);
        let mut lease = |piece: &Piece| {
            if !free.has(piece) {
                return None;
            }
            free.take(piece);
            let card = self.cards.seen.cards.get(piece.place)?;
            let facts = &card.facts;
            let part = match &piece.of {
                PieceOf::Whole => None,
                PieceOf::Share { bytes, of } => Some(GpuPartLease::Share { bytes: *bytes, of: *of }),
                PieceOf::Slice { uuid, profile } => {
                    let instances = card.slices.iter().find(|slice| slice.uuid == *uuid)?.instances?;
                    Some(GpuPartLease::Slice {
                        uuid: uuid.clone(),
                        profile: profile.clone(),
                        gpu_instance: instances.gpu,
                        compute_instance: instances.compute,
                    })
                }
            };
            Some(GpuLease { uuid: facts.uuid.clone(), minor: facts.minor?, part })
        };
        pieces.iter().map(|task| task.iter().map(&mut lease).collect()).collect()
    }

    /// Why there can never be such cards, as far as it is known what there is.
    pub(in crate::reconcile) fn no_such_cards(&self, spec: &JobSpec) -> Option<String> {
        let (seen, wishes) = (&self.cards.seen, wishes(spec));
        let are_told = seen.cards.iter().all(|card| !card.signs.slices_untold);
        let is_known = self.are_known() && seen.nameless.is_empty() && are_told;
        if !is_known || wishes.iter().all(|wish| wish.is_plain()) {
            return None;
        }
        let all = Deck::of(seen.clone(), |_| true);
        // What is found no place for on cards that nobody holds would wait for ever.
        (!all.fits(&wishes)).then(|| {
            format!(
                "the job needs {}, and this machine has {}; ask for less, for fewer different sizes, or for another kind, in `resources` or `count`",
                described(&wishes),
                there_is(&seen.cards)
            )
        })
    }

    /// What there is in the place of cards that are cut up; empty where none is.
    pub(in crate::reconcile) fn cut_up_instead(&self) -> String {
        let cards = self.cards.seen.cards.iter().filter(|card| card.is_cut_up());
        let cards: Vec<Card> = cards.cloned().collect();
        match cards.is_empty() {
            true => String::new(),
            false => format!("; cards that are cut up by MIG are had in slices (`mig`): {}", there_is(&cards)),
        }
    }

    /// What shares come to depends on what cards there are.
    pub(super) fn reckon_shares_anew(&mut self) {
        let sizes = Sizes::of(&self.cards.seen);
        if sizes == self.cards.sizes {
            return;
        }
        self.cards.sizes = sizes;
        if self.queue.wants(Want::Shares) {
            let keys: Vec<JobKey> = self.queue.keys().cloned().collect();
            keys.iter().for_each(|key| self.queue_in(key));
        }
    }
}

/// Slices of a card whose devices are not there.
fn unreachable(place: usize, card: &Card) -> Vec<Away<'_>> {
    let away = |slice: &'_ Slice| PieceOf::Slice { uuid: slice.uuid.clone(), profile: slice.profile.clone() };
    let slices = card.slices.iter().filter_map(|slice| Some((away(slice), slice.unreachable.as_deref()?)));
    slices.map(|(of, said)| Away { piece: Piece { place, of }, card, why: OutOfUse::Unreachable(said) }).collect()
}

/// As `2 NVIDIA A100-SXM4-40GB and 7 slices 1g.10gb of NVIDIA H100 80GB HBM3`.
fn there_is(cards: &[Card]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    let mut add = |name: String| match counts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, count)) => *count += 1,
        None => counts.push((name, 1)),
    };
    for card in cards {
        let name = &card.facts.name;
        match card.is_cut_up() {
            false if card.facts.memory.is_none() => add(format!("{name} (it does not tell its memory)")),
            false => add(format!("{name} ({})", Bytes(to_be_shared(card)).roughly())),
            true => card.slices.iter().for_each(|slice| add(format!("slice {} of {name}", slice.profile))),
        }
    }
    let told: Vec<String> = counts.iter().map(|(name, count)| format!("{count} × {name}")).collect();
    if told.is_empty() { "no GPU".to_owned() } else { told.join(", ") }
}
