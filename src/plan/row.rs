//! Runs that wait for the same sort of thing, by age. They lie in stretches that know the least that any of theirs needs, so that
//! the next that may start is found without a look at those that are too large: also where no two need the same.

use std::time::Duration;

use super::Amount;

/// A stretch is cut in two when it has more. What ends leaves stretches short, but none empty: there are never more of
/// them than runs, nor than the most that ever waited would fill by halves.
const STRETCH_MAX: usize = 128;

/// How much a run needs. Whoever needs less of everything starts wherever this one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) amount: Amount,
    /// Of cards, as its sort counts them.
    pub(super) cards: u64,
    /// How long it may take; nothing stops it when absent.
    pub(super) lasts: Option<Duration>,
}

impl Need {
    /// What both need at least.
    fn least(self, other: &Self) -> Self {
        let (a, b) = (self.amount, other.amount);
        Self {
            amount: Amount { cpu: a.cpu.min(b.cpu), memory: a.memory.min(b.memory), gpu: a.gpu.min(b.gpu) },
            cards: self.cards.min(other.cards),
            lasts: match (self.lasts, other.lasts) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (one, other) => one.or(other),
            },
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Row(Vec<Stretch>);

/// Neighbours by age; one at least.
#[derive(Debug, Clone)]
struct Stretch {
    least: Need,
    runs: Vec<(u64, Need)>,
}

impl Stretch {
    fn of(runs: Vec<(u64, Need)>) -> Option<Self> {
        let least = runs.iter().map(|(_, need)| *need).reduce(|least, need| least.least(&need))?;
        Some(Self { least, runs })
    }

    fn last(&self) -> Option<u64> {
        self.runs.last().map(|(order, _)| *order)
    }
}

impl Row {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the run is, or would be: the first stretch that does not end before it.
    fn stretch_of(&self, order: u64) -> usize {
        self.0.partition_point(|stretch| stretch.last() < Some(order))
    }

    pub(super) fn insert(&mut self, order: u64, need: Need) {
        // Behind all it goes into the last.
        let at = self.stretch_of(order).min(self.0.len().saturating_sub(1));
        let mut runs = if self.is_empty() { Vec::new() } else { self.0.remove(at).runs };
        let place = runs.partition_point(|(other, _)| *other < order);
        runs.insert(place, (order, need));
        let behind = if runs.len() > STRETCH_MAX { runs.split_off(runs.len() / 2) } else { Vec::new() };
        self.0.splice(at..at, Stretch::of(runs).into_iter().chain(Stretch::of(behind)));
    }

    pub(super) fn remove(&mut self, order: u64) {
        let at = self.stretch_of(order);
        if at == self.0.len() {
            return;
        }
        let mut runs = self.0.remove(at).runs;
        runs.retain(|(other, _)| *other != order);
        self.0.splice(at..at, Stretch::of(runs));
    }

    pub(super) fn get(&self, order: u64) -> Option<&Need> {
        let runs = &self.0.get(self.stretch_of(order))?.runs;
        let place = runs.binary_search_by_key(&order, |(order, _)| *order).ok()?;
        runs.get(place).map(|(_, need)| need)
    }

    /// The first run behind that place which is admitted. Where some need is not, no larger one may be.
    pub(super) fn next(&self, behind: Option<u64>, admits: impl Fn(&Need) -> bool) -> Option<u64> {
        let from = behind.map_or(0, |order| self.stretch_of(order));
        let stretches = self.0.get(from..)?.iter().filter(|stretch| admits(&stretch.least));
        let runs = stretches.flat_map(|stretch| &stretch.runs);
        runs.map(|(order, need)| (*order, need))
            .find(|(order, need)| Some(*order) > behind && admits(need))
            .map(|(order, _)| order)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn need() -> impl Strategy<Value = Need> {
        (0..4u64, 0..4u64, 0..4u64, 0..4u64, prop::option::of(0..4u64)).prop_map(|(cpu, memory, gpu, cards, lasts)| {
            Need { amount: Amount { cpu, memory, gpu }, cards, lasts: lasts.map(Duration::from_secs) }
        })
    }

    fn admits(limit: &Need, need: &Need) -> bool {
        let ends = need.lasts.is_some_and(|lasts| limit.lasts.is_none_or(|limit| lasts <= limit));
        need.amount.fits(&limit.amount) && need.cards <= limit.cards && (limit.lasts.is_none() || ends)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]
        #[test]
        fn the_next_that_is_admitted_is_found_as_by_a_look_at_each(
            changes in prop::collection::vec((0..600u64, prop::option::weighted(0.7, need())), 300..900),
            limits in prop::collection::vec(need(), 4),
        ) {
            let (mut row, mut plain) = (Row::default(), BTreeMap::new());
            for (order, change) in changes {
                row.remove(order);
                plain.remove(&order);
                if let Some(need) = change {
                    row.insert(order, need);
                    plain.insert(order, need);
                }
            }
            prop_assert_eq!(row.is_empty(), plain.is_empty());
            prop_assert!((0..600).all(|order| row.get(order) == plain.get(&order)));
            for limit in limits {
                let admitted = plain.iter().filter(|(_, need)| admits(&limit, need)).map(|(order, _)| *order);
                let mut behind = None;
                for expected in admitted {
                    prop_assert_eq!(row.next(behind, |need| admits(&limit, need)), Some(expected));
                    behind = Some(expected);
                }
                prop_assert_eq!(row.next(behind, |need| admits(&limit, need)), None);
            }
        }
    }
}
