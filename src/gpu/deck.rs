//! What of the cards is to be had, piece by piece: whole cards, shares of their memory, slices of those that MIG has cut up.
//! Pure: the same cards, the same answer.
//!
//! Where all tasks want whole cards of any kind, to count cards is enough, and nobody needs a deck. Else a number does not tell
//! whether a job fits: two halves of two cards are no card, nor is there room for a share of 20 GiB in twice 10.
//!
//! A share goes where the least is left after it, so to a card that is shared already if there is room on one; a card
//! is opened for it only if not, and then one whose ways to the others are the least loss. Slices of a task come from one
//! card where that is possible, and from the one that has the fewest left. Whole cards are chosen by [`placement`].

mod most;
mod search;

use std::cmp::Reverse;
use std::sync::Arc;

use super::{Card, Inventory, Slice, placement};
use crate::ids::GpuUuid;
pub use most::Sort;

/// What of a card's memory is nobody's share, bytes: the driver's own, and what it keeps for those who share.
pub const RESERVE: u64 = 512 << 20;
/// What a whole card counts.
pub const CARD: u64 = 1000;

/// What tasks want, each of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wish {
    /// How many tasks, one after the other in the order of the job.
    pub tasks: u32,
    /// Cards or slices for each; 1 where it is a share.
    pub count: u32,
    pub part: Part,
    /// What the name of the card must have in it, in large letters or small.
    pub kind: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Whole,
    /// Bytes.
    Share(u64),
    /// The profile, in small letters.
    Slice(String),
}

impl Wish {
    /// To count cards is enough for it.
    pub fn is_plain(&self) -> bool {
        self.part == Part::Whole && self.kind.is_none()
    }

    /// How many it comes to.
    pub fn pieces(&self) -> u64 {
        u64::from(self.tasks) * u64::from(self.count)
    }

    fn is_for(&self, card: &Card) -> bool {
        is_of_kind(&card.facts.name, self.kind.as_deref())
    }
}

/// Each sort of what is wanted once, as single pieces.
pub fn sorts(wishes: &[Wish]) -> Vec<Wish> {
    let mut sorts: Vec<Wish> = Vec::new();
    for wish in wishes.iter().filter(|wish| wish.pieces() > 0) {
        let pieces = u32::try_from(wish.pieces()).unwrap_or(u32::MAX);
        match sorts.iter_mut().find(|sort| (&sort.part, &sort.kind) == (&wish.part, &wish.kind)) {
            Some(sort) => sort.tasks = sort.tasks.saturating_add(pieces),
            None => sorts.push(Wish { tasks: pieces, count: 1, ..wish.clone() }),
        }
    }
    sorts
}

/// What is wanted, of a sort that there is too little of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scarce {
    /// All pieces of the sort.
    pub wish: Wish,
    /// How many there are.
    pub there: u64,
}

impl Scarce {
    /// There would be enough of it, if it were not for the others.
    pub fn is_there(&self) -> bool {
        self.there >= self.wish.pieces()
    }
}

/// Labels of Kubernetes have "-" where names have " ".
pub fn is_of_kind(name: &str, kind: Option<&str>) -> bool {
    let plain = |text: &str| text.to_lowercase().replace(['-', '_'], " ");
    kind.is_none_or(|kind| plain(name).contains(&plain(kind)))
}

/// A piece of a card, by the card's place in the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub place: usize,
    pub of: PieceOf,
}

impl Piece {
    /// Who has the one keeps others from the other: of a card that is cut up only if it is the same slice.
    pub fn meets(&self, other: &Self) -> bool {
        let is_same = match (&self.of, &other.of) {
            (PieceOf::Slice { uuid, .. }, PieceOf::Slice { uuid: other, .. }) => uuid == other,
            _ => true,
        };
        self.place == other.place && is_same
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PieceOf {
    Whole,
    /// So many bytes, of as many as there are to be shared.
    Share {
        bytes: u64,
        of: u64,
    },
    Slice {
        uuid: GpuUuid,
        profile: String,
    },
}

/// What is to be had of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    All,
    /// It is shared, and so many bytes are left.
    Rest(u64),
    /// It is cut up, and these are left.
    Slices(Vec<Slice>),
    Nothing,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Deck {
    seen: Arc<Inventory>,
    /// In the order of the inventory.
    rooms: Vec<Room>,
}

/// What of a card's memory there is to be shared; nothing of one that does not tell how much it has.
pub fn to_be_shared(card: &Card) -> u64 {
    card.facts.memory.map_or(0, |memory| memory.saturating_sub(RESERVE))
}

/// A slice as part of a card, in thousandths: by its sevenths of what computes, as its profile says; of a compute instance, as
/// `2c.3g.40gb`, by those that it has of its GPU instance.
pub fn weight_of_slice(profile: &str) -> u64 {
    let number = |unit: char| profile.split(['.', '+']).find_map(|part| part.strip_suffix(unit)?.parse::<u64>().ok());
    let sevenths = number('c').or_else(|| number('g'));
    (sevenths.unwrap_or(1).saturating_mul(CARD) / 7).clamp(1, CARD)
}

/// A share as part of a card, in thousandths.
pub fn weight_of_share(bytes: u64, of: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(CARD) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(CARD).clamp(1, CARD)
}

impl Deck {
    /// With every card that `is_had`, as if nobody held any.
    pub fn of(seen: Arc<Inventory>, is_had: impl Fn(&Card) -> bool) -> Self {
        let room = |card: &Card| match (is_had(card), card.is_cut_up()) {
            (false, _) => Room::Nothing,
            (true, false) => Room::All,
            (true, true) => {
                Room::Slices(card.slices.iter().filter(|slice| slice.instances.is_some()).cloned().collect())
            }
        };
        let rooms = seen.cards.iter().map(room).collect();
        Self { seen, rooms }
    }

    pub fn room(&self, place: usize) -> &Room {
        self.rooms.get(place).unwrap_or(&Room::Nothing)
    }

    /// How many cards it knows of.
    pub fn places(&self) -> usize {
        self.rooms.len()
    }

    fn card(&self, place: usize) -> Option<&Card> {
        self.seen.cards.get(place)
    }

    /// Whether all of this piece is to be had.
    pub fn has(&self, piece: &Piece) -> bool {
        match (self.room(piece.place), &piece.of) {
            (Room::All, PieceOf::Whole) => true,
            (Room::All, PieceOf::Share { bytes, .. }) => {
                self.card(piece.place).is_some_and(|card| *bytes <= to_be_shared(card))
            }
            (Room::Rest(left), PieceOf::Share { bytes, .. }) => bytes <= left,
            (Room::Slices(left), PieceOf::Slice { uuid, .. }) => left.iter().any(|slice| slice.uuid == *uuid),
            _ => false,
        }
    }

    /// Whether all of these are to be had together.
    pub fn has_all(&self, pieces: &[Piece]) -> bool {
        let share = |piece: &Piece| if let PieceOf::Share { bytes, .. } = piece.of { bytes } else { 0 };
        pieces.iter().all(|piece| match piece.of {
            PieceOf::Share { of, .. } => {
                let beside = pieces.iter().filter(|other| other.place == piece.place);
                let bytes = beside.map(share).fold(0, u64::saturating_add);
                self.has(&Piece { place: piece.place, of: PieceOf::Share { bytes, of } })
            }
            PieceOf::Whole | PieceOf::Slice { .. } => self.has(piece),
        })
    }

    /// All of every card, and every slice, of which there could be something for one of these.
    pub fn all_for(&self, wishes: &[Wish]) -> Vec<Piece> {
        let is_wished = |place: &usize| wishes.iter().any(|wish| self.count(*place, wish) > 0);
        let is_of = |slice: &Slice| {
            let is_it =
                |wish: &Wish| matches!(&wish.part, Part::Slice(name) if slice.profile.eq_ignore_ascii_case(name));
            wishes.iter().any(is_it)
        };
        let slice = |slice: &Slice| PieceOf::Slice { uuid: slice.uuid.clone(), profile: slice.profile.clone() };
        let all = |place: usize| -> Vec<PieceOf> {
            match self.room(place) {
                Room::Slices(left) => left.iter().filter(|slice| is_of(slice)).map(slice).collect(),
                Room::All | Room::Rest(_) => vec![PieceOf::Whole],
                Room::Nothing => Vec::new(),
            }
        };
        let wished = (0..self.places()).filter(is_wished);
        wished.flat_map(|place| all(place).into_iter().map(move |of| Piece { place, of })).collect()
    }

    /// Nobody else is given this. What does not go with how the card is now leaves nothing of it.
    pub fn take(&mut self, piece: &Piece) {
        let all = self.card(piece.place).map_or(0, to_be_shared);
        let Some(room) = self.rooms.get_mut(piece.place) else { return };
        *room = match (std::mem::replace(room, Room::Nothing), &piece.of) {
            (Room::All, PieceOf::Share { bytes, .. }) => Room::Rest(all.saturating_sub(*bytes)),
            (Room::Rest(left), PieceOf::Share { bytes, .. }) => Room::Rest(left.saturating_sub(*bytes)),
            (Room::Slices(mut left), PieceOf::Slice { uuid, .. }) => {
                left.retain(|slice| slice.uuid != *uuid);
                Room::Slices(left)
            }
            _ => Room::Nothing,
        };
    }

    /// Of this card there is what all had of it, but for what is held.
    pub fn open_anew(&mut self, place: usize, all: &Self, held: &[Piece]) {
        let Some(room) = self.rooms.get_mut(place) else { return };
        *room = all.room(place).clone();
        held.iter().for_each(|piece| self.take(piece));
    }

    pub fn without<'a>(&self, pieces: impl IntoIterator<Item = &'a Piece>) -> Self {
        let mut left = self.clone();
        pieces.into_iter().for_each(|piece| left.take(piece));
        left
    }

    /// What both have.
    pub fn and(&self, other: &Self) -> Self {
        let both = |(a, b): (&Room, &Room)| match (a, b) {
            (Room::All, room) | (room, Room::All) if !matches!(room, Room::Slices(_)) => room.clone(),
            (Room::Rest(a), Room::Rest(b)) => Room::Rest(*a.min(b)),
            (Room::Slices(a), Room::Slices(b)) => {
                Room::Slices(a.iter().filter(|slice| b.contains(slice)).cloned().collect())
            }
            _ => Room::Nothing,
        };
        Self { seen: self.seen.clone(), rooms: self.rooms.iter().zip(&other.rooms).map(both).collect() }
    }

    /// Whether one more piece could be had of it for that wish, so many of them.
    fn count(&self, place: usize, wish: &Wish) -> u64 {
        let Some(card) = self.card(place) else { return 0 };
        let count = match (self.room(place), &wish.part) {
            (Room::All, Part::Whole) => 1,
            (Room::All, Part::Share(bytes)) => to_be_shared(card) / (*bytes).max(1),
            (Room::Rest(left), Part::Share(bytes)) => left / (*bytes).max(1),
            (Room::Slices(left), Part::Slice(profile)) => {
                left.iter().filter(|slice| slice.profile.eq_ignore_ascii_case(profile)).count() as u64
            }
            _ => 0,
        };
        // To compare names takes the longest.
        if count > 0 && wish.is_for(card) { count } else { 0 }
    }

    /// How many such pieces could be had, if nobody wanted anything else.
    pub fn count_of(&self, wish: &Wish) -> u64 {
        (0..self.rooms.len()).map(|place| self.count(place, wish)).sum()
    }

    /// Of what is wanted, the first that there is too little of for it alone.
    pub fn lacking<'a>(&self, wishes: &'a [Wish]) -> Option<&'a Wish> {
        let alike = |wish: &Wish| {
            let same = wishes.iter().filter(|other| other.part == wish.part && other.kind == wish.kind);
            same.map(Wish::pieces).sum::<u64>()
        };
        wishes.iter().find(|wish| alike(wish) > self.count_of(wish))
    }

    /// The sorts of what is wanted that there is too little of; all of them where each alone could be had, and not all together.
    pub fn scarce(&self, wishes: &[Wish]) -> Vec<Scarce> {
        let of = |wish: Wish| Scarce { there: self.count_of(&wish), wish };
        let all: Vec<Scarce> = sorts(wishes).into_iter().map(of).collect();
        let scarce: Vec<Scarce> = all.iter().filter(|one| !one.is_there()).cloned().collect();
        if scarce.is_empty() { all } else { scarce }
    }

    /// What is to be had of which one of these could be given something, thousandths of a card.
    pub fn weight_for(&self, wishes: &[Wish]) -> u64 {
        let weight = |piece: &Piece| match (&piece.of, self.room(piece.place), self.card(piece.place)) {
            (PieceOf::Slice { profile, .. }, ..) => weight_of_slice(profile),
            (_, Room::Rest(left), Some(card)) => weight_of_share(*left, to_be_shared(card)),
            _ => CARD,
        };
        self.all_for(wishes).iter().map(weight).sum()
    }

    /// Whether all of it is to be had together.
    pub fn fits(&self, wishes: &[Wish]) -> bool {
        let is_found = || self.has_memory_for(wishes) && self.search(wishes).is_some();
        self.lacking(wishes).is_none() && (is_uniform(wishes) || is_found())
    }

    /// Whether all shares together are no more than there is beside the whole cards: soon told, where to search is not.
    fn has_memory_for(&self, wishes: &[Wish]) -> bool {
        let to_share = |place: usize| self.card(place).map_or(0, to_be_shared);
        let mut whole: Vec<u64> =
            (0..self.rooms.len()).filter(|place| *self.room(*place) == Room::All).map(to_share).collect();
        whole.sort_unstable_by_key(|bytes| Reverse(*bytes));
        let taken: u64 = wishes.iter().filter(|wish| wish.part == Part::Whole).map(Wish::pieces).sum();
        whole.truncate(whole.len().saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX)));
        let rests = self.rooms.iter().filter_map(|room| if let Room::Rest(left) = room { Some(*left) } else { None });
        let there_is = whole.into_iter().chain(rests).map(u128::from).sum::<u128>();
        let wanted = wishes.iter().map(|wish| match wish.part {
            Part::Share(bytes) => u128::from(bytes) * u128::from(wish.pieces()),
            _ => 0,
        });
        wanted.sum::<u128>() <= there_is
    }

    /// Pieces for each task, in the order of the job; `None` where they are not to be had.
    pub fn choose(&self, wishes: &[Wish]) -> Option<Vec<Vec<Piece>>> {
        if self.lacking(wishes).is_some() {
            return None;
        }
        let found = self.search(wishes)?;
        Some(self.placed(wishes, &found).unwrap_or(found))
    }

    /// The same, with the whole cards so that they are close together.
    fn placed(&self, wishes: &[Wish], found: &[Vec<Piece>]) -> Option<Vec<Vec<Piece>>> {
        let others = found.iter().flatten().filter(|piece| piece.of != PieceOf::Whole);
        let mut left = self.without(others);
        let mut chosen = found.to_vec();
        let mut kinds: Vec<&Wish> = wishes.iter().filter(|wish| wish.part == Part::Whole && wish.count > 0).collect();
        kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
        kinds.dedup_by(|a, b| a.kind == b.kind);
        // Those that fewer cards are for come first.
        kinds.sort_by_key(|wish| self.count_of(wish));
        for wish in kinds {
            let free: Vec<usize> = (0..left.rooms.len()).filter(|place| left.count(*place, wish) > 0).collect();
            let is_such = |other: &Wish| other.part == Part::Whole && other.kind == wish.kind;
            let counts: Vec<usize> =
                tasks(wishes).map(|other| if is_such(other) { other.count as usize } else { 0 }).collect();
            let places = placement::place(&self.seen.topology, &free, &counts)?;
            for ((task, places), other) in chosen.iter_mut().zip(places).zip(tasks(wishes)) {
                if is_such(other) {
                    *task = places.into_iter().map(|place| Piece { place, of: PieceOf::Whole }).collect();
                    task.iter().for_each(|piece| left.take(piece));
                }
            }
        }
        Some(chosen)
    }

    /// What there would be on this card for the wish.
    pub fn piece(&self, place: usize, wish: &Wish) -> Option<Piece> {
        if self.count(place, wish) == 0 {
            return None;
        }
        let of = match (&wish.part, self.room(place)) {
            (Part::Whole, _) => PieceOf::Whole,
            (Part::Share(bytes), _) => PieceOf::Share { bytes: *bytes, of: to_be_shared(self.card(place)?) },
            (Part::Slice(profile), Room::Slices(left)) => {
                let slice = left.iter().find(|slice| slice.profile.eq_ignore_ascii_case(profile))?;
                PieceOf::Slice { uuid: slice.uuid.clone(), profile: slice.profile.clone() }
            }
            (Part::Slice(_), _) => return None,
        };
        Some(Piece { place, of })
    }

    /// What the others that are whole lose by one that no longer is.
    fn loss(&self, place: usize) -> u64 {
        let whole = (0..self.rooms.len()).filter(|other| *other != place && *self.room(*other) == Room::All);
        whole.map(|other| self.seen.topology.link(place, other).weight()).sum()
    }

    /// Two cards with the same answer are as good as each other for what comes after.
    fn sort_of(&self, place: usize) -> (&Room, &str, Option<u64>) {
        let facts = self.card(place).map(|card| (card.facts.name.as_str(), card.facts.memory));
        let (name, memory) = facts.unwrap_or_default();
        (self.room(place), name, memory)
    }
}

fn is_uniform(wishes: &[Wish]) -> bool {
    let mut some = wishes.iter().filter(|wish| wish.count > 0 && wish.tasks > 0);
    let first = some.next();
    some.all(|wish| first.is_some_and(|first| wish.part == first.part && wish.kind == first.kind))
}

/// What each task wants.
fn tasks(wishes: &[Wish]) -> impl Iterator<Item = &Wish> {
    wishes.iter().flat_map(|wish| std::iter::repeat_n(wish, wish.tasks as usize))
}

/// What cards there are, for what shares of them come to before it is known of which card they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sizes(Vec<(String, u64)>);

impl Sizes {
    pub fn of(seen: &Inventory) -> Self {
        let whole = seen.cards.iter().filter(|card| !card.is_cut_up());
        let mut sizes: Vec<_> = whole.map(|card| (card.facts.name.clone(), to_be_shared(card))).collect();
        sizes.sort_by_key(|(name, size)| (*size, Reverse(name.clone())));
        sizes.dedup();
        Self(sizes)
    }

    /// Thousandths of the smallest card that it may be of: it is never more in the end. Nothing where there is none, since then
    /// it does not start.
    pub fn weight(&self, bytes: u64, kind: Option<&str>) -> u64 {
        let found = self.0.iter().find(|(name, size)| *size >= bytes && is_of_kind(name, kind));
        found.map_or(0, |(_, size)| weight_of_share(bytes, *size))
    }
}

#[cfg(test)]
mod tests;
