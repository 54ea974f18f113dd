//! Which of the free cards a job's tasks get. Pure: the same cards, the same answer.
//!
//! What counts, in this order: the worst way within a task, since a collective goes at its speed; all ways within tasks;
//! the worst way within the job, then all of them; that cards which are left lose little of their ways to each other, so
//! that a job of one card takes the one whose neighbours are taken; and at last the lower places.
//!
//! With 8 cards every choice is compared. Where there are so many that this would take long, tasks get their cards one
//! after the other, and the cards of a task are found one by one.

use std::cmp::Reverse;

use super::Topology;

/// Most choices that are made, those of some of the tasks included.
const CHOICES_MAX: usize = 20_000;

/// The places of the cards for each task, which wants so many; `None` where there are not enough.
pub fn place(topology: &Topology, free: &[usize], tasks: &[usize]) -> Option<Vec<Vec<usize>>> {
    let mut free: Vec<usize> = free.to_vec();
    free.sort_unstable();
    free.dedup();
    if tasks.iter().sum::<usize>() > free.len() {
        return None;
    }
    let ground = Ground { topology, free: &free };
    let mut search = Search { ground: &ground, tasks, best: None, left: CHOICES_MAX };
    search.go_on(&mut Vec::new());
    match search {
        Search { left: 0, .. } => Some(ground.one_by_one(tasks)),
        Search { best, .. } => best.map(|(_, chosen)| chosen),
    }
}

/// How good a choice is; the greater the better.
type Worth = (u64, u64, u64, u64, Reverse<u64>);

struct Ground<'a> {
    topology: &'a Topology,
    free: &'a [usize],
}

impl Ground<'_> {
    fn weight(&self, a: usize, b: usize) -> u64 {
        self.topology.link(a, b).weight()
    }

    fn weights<'a>(&'a self, cards: &'a [usize]) -> impl Iterator<Item = u64> + 'a {
        cards.iter().enumerate().flat_map(move |(at, a)| cards.iter().skip(at + 1).map(|b| self.weight(*a, *b)))
    }

    fn worth(&self, chosen: &[Vec<usize>]) -> Worth {
        let all: Vec<usize> = chosen.concat();
        // A card alone is as close to itself as can be.
        let worst = |weights: &mut dyn Iterator<Item = u64>| weights.min().unwrap_or(u64::MAX);
        let within = || chosen.iter().flat_map(|cards| self.weights(cards));
        let rest = self.free.iter().filter(|card| !all.contains(card));
        let lost = rest.flat_map(|card| all.iter().map(|taken| self.weight(*card, *taken))).sum();
        let (tasks, job) = (worst(&mut within()), worst(&mut self.weights(&all)));
        (tasks, within().sum(), job, self.weights(&all).sum(), Reverse(lost))
    }

    /// For many cards: each task in turn, the largest first, takes the card that is nearest to what it has.
    fn one_by_one(&self, tasks: &[usize]) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|task| Reverse(tasks.get(*task).copied()));
        let mut chosen = vec![Vec::new(); tasks.len()];
        let mut left = self.free.to_vec();
        for task in order {
            let taken: Vec<usize> = chosen.concat();
            let cards =
                Ground { topology: self.topology, free: &left }.grow(tasks.get(task).copied().unwrap_or(0), &taken);
            left.retain(|card| !cards.contains(card));
            if let Some(place) = chosen.get_mut(task) {
                *place = cards;
            }
        }
        chosen
    }

    /// The best of the sets that begin with each of the cards and grow by the nearest one.
    fn grow(&self, count: usize, near: &[usize]) -> Vec<usize> {
        let worth = |cards: &[usize]| {
            let (worst, within, .., lost) = self.worth(&[cards.to_vec()]);
            let to_job: u64 = near.iter().flat_map(|a| cards.iter().map(|b| self.weight(*a, *b))).sum();
            (worst, within, to_job, lost)
        };
        let from = |first: &usize| {
            let mut cards = vec![*first];
            while cards.len() < count {
                let nearness = |card: &&usize| {
                    let weights = || cards.iter().map(|other| self.weight(**card, *other));
                    (weights().min(), weights().sum::<u64>())
                };
                let rest = self.free.iter().filter(|card| !cards.contains(card));
                // The first of equals: the last one that `max_by_key` meets.
                let Some(next) = rest.rev().max_by_key(nearness) else { break };
                cards.push(*next);
            }
            cards.sort_unstable();
            cards
        };
        match count {
            0 => Vec::new(),
            _ => self.free.iter().rev().map(from).max_by_key(|cards| worth(cards)).unwrap_or_default(),
        }
    }
}

/// All choices, from the lower places to the higher; tasks that want as many as the one before take higher ones, since
/// to exchange them makes no other choice. Each choice for some of the tasks is part of one for all.
struct Search<'a> {
    ground: &'a Ground<'a>,
    tasks: &'a [usize],
    best: Option<(Worth, Vec<Vec<usize>>)>,
    /// Choices that may still be made.
    left: usize,
}

impl Search<'_> {
    fn go_on(&mut self, chosen: &mut Vec<Vec<usize>>) {
        let Some(wanted) = self.tasks.get(chosen.len()).copied() else { return self.weigh(chosen) };
        for set in self.sets(chosen, wanted) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            chosen.push(set);
            self.go_on(chosen);
            chosen.pop();
        }
    }

    /// What the next task may get, such that enough is left for those after it that are alike.
    fn sets(&self, chosen: &[Vec<usize>], wanted: usize) -> Vec<Vec<usize>> {
        if wanted == 0 {
            return vec![Vec::new()];
        }
        let taken = chosen.concat();
        let above = chosen.last().filter(|before| before.len() == wanted).and_then(|before| before.first());
        let is_open = |card: &&usize| !taken.contains(card) && above.is_none_or(|above| *card > above);
        let open: Vec<usize> = self.ground.free.iter().filter(is_open).copied().collect();
        let alike = self.tasks.iter().skip(chosen.len()).take_while(|task| **task == wanted).count();
        let Some(spare) = open.len().checked_sub(alike * wanted) else { return Vec::new() };
        let mut sets = Vec::new();
        for (at, first) in open.iter().enumerate().take(spare + 1) {
            let after = open.get(at + 1..).unwrap_or_default();
            subsets(after, wanted, self.left, &mut vec![*first], &mut sets);
        }
        sets
    }

    fn weigh(&mut self, chosen: &[Vec<usize>]) {
        let worth = self.ground.worth(chosen);
        // The first of equals has the lower places.
        if self.best.as_ref().is_none_or(|(best, _)| worth > *best) {
            self.best = Some((worth, chosen.to_vec()));
        }
    }
}

/// The subsets of so many, in order; no more than `limit`.
fn subsets(of: &[usize], count: usize, limit: usize, begun: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
    if begun.len() == count {
        if found.len() < limit {
            found.push(begun.clone());
        }
        return;
    }
    for (at, card) in of.iter().enumerate() {
        if found.len() >= limit || of.len() - at + begun.len() < count {
            return;
        }
        begun.push(*card);
        subsets(of.get(at + 1..).unwrap_or_default(), count, limit, begun, found);
        begun.pop();
    }
}

#[cfg(test)]
mod tests;
