//! How much of one sort a deck has. By that number all who want more or less of the same are told at once, however many they are.

use super::{Deck, Part, Room, Wish, is_uniform, to_be_shared};

/// What wishes are of, but for how much they want of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sort {
    Nothing,
    /// They differ in how many.
    Whole {
        kind: Option<String>,
    },
    /// They differ in how many.
    Slices {
        profile: String,
        kind: Option<String>,
    },
    /// So many of one size, in bytes, in which they differ.
    Shares {
        pieces: u64,
        kind: Option<String>,
    },
    /// Different things together: each of its own sort.
    Mixed(Vec<Wish>),
}

impl Sort {
    /// With how much is wanted of it.
    pub fn of(wishes: &[Wish]) -> (Self, u64) {
        let Some(first) = wishes.iter().find(|wish| wish.pieces() > 0) else { return (Self::Nothing, 0) };
        if !is_uniform(wishes) {
            return (Self::Mixed(wishes.to_vec()), 1);
        }
        let (pieces, kind) = (wishes.iter().map(Wish::pieces).sum(), first.kind.clone());
        match &first.part {
            Part::Whole => (Self::Whole { kind }, pieces),
            Part::Slice(profile) => (Self::Slices { profile: profile.clone(), kind }, pieces),
            Part::Share(bytes) => (Self::Shares { pieces, kind }, (*bytes).max(1)),
        }
    }
}

impl Deck {
    /// How much of it is to be had at most: whoever wants no more of this sort has room, and nobody else.
    pub fn most(&self, sort: &Sort) -> u64 {
        let count =
            |part: Part, kind: &Option<String>| self.count_of(&Wish { tasks: 1, count: 1, part, kind: kind.clone() });
        match sort {
            Sort::Nothing => 0,
            Sort::Whole { kind } => count(Part::Whole, kind),
            Sort::Slices { profile, kind } => count(Part::Slice(profile.clone()), kind),
            Sort::Shares { pieces, kind } => self.largest_share(*pieces, kind.as_deref()),
            Sort::Mixed(wishes) => u64::from(self.fits(wishes)),
        }
    }

    /// Of what size so many shares are to be had at most, bytes.
    fn largest_share(&self, pieces: u64, kind: Option<&str>) -> u64 {
        let left: Vec<u64> = self.to_share(kind).collect();
        let most = left.iter().copied().max().unwrap_or(0);
        // The smaller, the more of them.
        let (mut fits, mut too_large) = (0, most + 1);
        while pieces > 1 && too_large - fits > 1 {
            let size = fits + (too_large - fits) / 2;
            let is_enough = left.iter().map(|bytes| bytes / size).sum::<u64>() >= pieces;
            *(if is_enough { &mut fits } else { &mut too_large }) = size;
        }
        if pieces > 1 { fits } else { most }
    }

    /// What each card of the kind has left to be shared.
    fn to_share(&self, kind: Option<&str>) -> impl Iterator<Item = u64> {
        let cards = self.seen.cards.iter().zip(&self.rooms);
        let of_kind = cards.filter(move |(card, _)| super::is_of_kind(&card.facts.name, kind));
        of_kind.filter_map(|(card, room)| match room {
            Room::All => Some(to_be_shared(card)),
            Room::Rest(left) => Some(*left),
            Room::Slices(_) | Room::Nothing => None,
        })
    }
}
