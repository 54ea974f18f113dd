//! What the most is that a deck has for anybody. By that most who ask are told at once, however many cards there are.

use super::{Deck, Part, Room, Wish, to_be_shared};

/// How much can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Most {
    /// Whole cards.
    whole: u64,
    /// Bytes of the largest share.
    share: u64,
    /// Slices of any profile.
    slices: u64,
}

impl Deck {
    pub fn most(&self) -> Most {
        let mut most = Most::default();
        for (place, room) in self.rooms.iter().enumerate() {
            match room {
                Room::All => {
                    most.whole += 1;
                    most.share = most.share.max(self.card(place).map_or(0, to_be_shared));
                }
                Room::Rest(left) => most.share = most.share.max(*left),
                Room::Slices(left) => most.slices += left.len() as u64,
                Room::Nothing => {}
            }
        }
        most
    }
}

impl Most {
    /// Whether all of it is to be had together, where these numbers tell; else it is for the deck to say.
    pub fn tells(&self, wishes: &[Wish]) -> Option<bool> {
        let (mut whole, mut slices) = (0, 0);
        for wish in wishes {
            match &wish.part {
                Part::Whole => whole += wish.pieces(),
                Part::Slice(_) => slices += wish.pieces(),
                Part::Share(bytes) if wish.pieces() > 0 && *bytes > self.share => return Some(false),
                Part::Share(_) => {}
            }
        }
        let is_one_share = |wish: &Wish| matches!(wish.part, Part::Share(_)) && wish.pieces() == 1;
        match wishes {
            _ if whole > self.whole || slices > self.slices => Some(false),
            [wish] if wish.kind.is_none() && is_one_share(wish) => Some(true),
            _ => wishes.iter().all(Wish::is_plain).then_some(true),
        }
    }
}
