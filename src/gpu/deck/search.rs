//! Finds pieces for tasks that want different things: one after the other, what fewest is to be had of first, back and forth where
//! that leads nowhere.

use super::{Deck, Piece, PieceOf, Room, Wish, tasks};

/// Most choices that are tried where tasks of one job want different things.
const TRIES_MAX: usize = 4000;

impl Deck {
    /// Pieces for each task, wherever they are; `None` where none were found in so many tries.
    pub(super) fn search(&self, wishes: &[Wish]) -> Option<Vec<Vec<Piece>>> {
        let mut search = Search { deck: self.clone(), units: Vec::new(), left: TRIES_MAX };
        for (task, wish) in tasks(wishes).enumerate() {
            let rank = self.count_of(wish);
            let unit = |rest| Unit { task, rest, wish: wish.clone(), rank };
            search.units.extend((0..wish.count).rev().map(|rest| unit(rest + 1)));
        }
        // What fewest is to be had of comes first, of shares the largest.
        search.units.sort_by_key(|unit| unit.rank);
        // Where all want the same nothing is ever tried twice.
        search.left = search.left.max(search.units.len() + 1);
        let mut chosen = Vec::new();
        if !search.go_on(&mut chosen) {
            return None;
        }
        let mut found = vec![Vec::new(); tasks(wishes).count()];
        for (unit, piece) in search.units.iter().zip(chosen) {
            found.get_mut(unit.task)?.push(piece);
        }
        Some(found)
    }
}

/// One piece that is wanted.
struct Unit {
    task: usize,
    /// Pieces that the task still wants, this one included.
    rest: u32,
    wish: Wish,
    rank: u64,
}

struct Search {
    deck: Deck,
    units: Vec<Unit>,
    /// Choices that may still be made.
    left: usize,
}

impl Search {
    fn go_on(&mut self, chosen: &mut Vec<Piece>) -> bool {
        let Some(unit) = self.units.get(chosen.len()) else { return true };
        for piece in self.pieces(unit, chosen) {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let before = self.deck.room(piece.place).clone();
            self.deck.take(&piece);
            let place = piece.place;
            chosen.push(piece);
            if self.go_on(chosen) {
                return true;
            }
            chosen.pop();
            if let Some(room) = self.deck.rooms.get_mut(place) {
                *room = before;
            }
        }
        false
    }

    /// From the best on; of cards that are alike only the first.
    fn pieces(&self, unit: &Unit, chosen: &[Piece]) -> Vec<Piece> {
        let deck = &self.deck;
        let found = (0..deck.rooms.len()).filter_map(|place| deck.piece(place, &unit.wish));
        let has = |place: usize| {
            let own = self.units.iter().zip(chosen);
            !own.into_iter().any(|(other, piece)| other.task == unit.task && piece.place == place)
        };
        let order = |piece: &Piece| {
            let place = piece.place;
            match (&piece.of, deck.room(place)) {
                (PieceOf::Share { .. }, Room::Rest(left)) => (false, false, *left, 0, place),
                (PieceOf::Share { of, .. }, _) => (true, false, *of, deck.loss(place), place),
                (PieceOf::Slice { .. }, _) => {
                    let left = deck.count(place, &unit.wish);
                    (left < u64::from(unit.rest), has(place), left, 0, place)
                }
                (PieceOf::Whole, _) => (false, false, 0, deck.loss(place), place),
            }
        };
        let mut found: Vec<Piece> = found.collect();
        found.sort_by_cached_key(order);
        let mut sorts = Vec::new();
        found.retain(|piece| {
            let sort = deck.sort_of(piece.place);
            let is_new = !sorts.contains(&sort);
            if is_new {
                sorts.push(sort);
            }
            is_new
        });
        found
    }
}
