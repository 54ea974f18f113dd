//! What each of those who have parts of a card takes of its power: an estimate, since a card has one meter for all of it. Pure.
//!
//! Work is what power goes to, so who works takes it, by how much of the card they kept busy in the same sample; what the card would
//! draw at rest is in that, since nothing tells how much it is. While nobody works all of it is what the card draws at rest, which
//! hangs on nobody's memory: those who hold the card take it by the size of what they hold, and shares are all of one size. So the
//! tasks of a card, and strangers who work there, add up to what it draws.

/// A part of a card in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// In what it can keep busy, beside the others.
    pub(super) size: u64,
    /// Percent of that.
    pub(super) busy: u32,
}

/// Thousandths of a watt of each of `holders`, beside `others` that work on the card and are nobody's.
pub(super) fn divided(power: u32, holders: &[Part], others: &[Part]) -> Vec<u32> {
    let work = |part: &Part| u128::from(part.size) * u128::from(part.busy);
    let of_others: u128 = others.iter().map(work).sum();
    let mut weights: Vec<u128> = holders.iter().map(work).collect();
    if of_others + weights.iter().sum::<u128>() == 0 {
        weights = holders.iter().map(|part| u128::from(part.size)).collect();
    }
    let all = of_others + weights.iter().sum::<u128>();
    // Each takes what lies between the sum of those before it and its own: rounding loses nothing.
    let up_to = |sum: u128| u32::try_from((u128::from(power) * sum).checked_div(all).unwrap_or(0)).unwrap_or(power);
    let mut before = 0;
    let take = |weight: u128| {
        let from = before;
        before += weight;
        up_to(before) - up_to(from)
    };
    weights.into_iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(most: usize) -> impl Strategy<Value = Vec<Part>> {
        let part = (1..=1000u64, prop_oneof![Just(0), 0..=100u32]).prop_map(|(size, busy)| Part { size, busy });
        prop::collection::vec(part, 0..most)
    }

    proptest! {
        #[test]
        fn the_tasks_of_a_card_and_strangers_add_up_to_what_it_draws(
            power in prop_oneof![0..2_000_000u32, Just(u32::MAX)],
            holders in parts(12),
            others in parts(3),
        ) {
            let taken = divided(power, &holders, &others);
            prop_assert_eq!(taken.len(), holders.len());
            let works = |parts: &[Part]| parts.iter().any(|part| part.busy > 0);
            // Nobody's part is what is left.
            let everybody: Vec<Part> = holders.iter().chain(&others).copied().collect();
            let sum = |parts: &[u32]| parts.iter().map(|part| u64::from(*part)).sum::<u64>();
            if works(&everybody) {
                prop_assert_eq!(sum(&divided(power, &everybody, &[])), u64::from(power));
                prop_assert!(sum(&taken) <= u64::from(power));
            }
            if !works(&others) && !holders.is_empty() {
                prop_assert_eq!(sum(&taken), u64::from(power));
            }
            // By the work that each has done, within what rounding takes.
            let work = |part: &Part| u128::from(part.size) * u128::from(part.busy);
            let all: u128 = everybody.iter().map(work).sum();
            for (part, taken) in holders.iter().zip(&taken).filter(|_| all > 0) {
                let exact = u128::from(power) * work(part) / all;
                prop_assert!(exact.abs_diff(u128::from(*taken)) <= 1, "{} of {}", taken, exact);
            }
        }
    }

    #[test]
    fn who_works_takes_it_and_while_nobody_does_all_who_hold_the_card_do() {
        let busy = |busy| Part { size: 1, busy };
        assert_eq!(divided(300_000, &[busy(90), busy(0)], &[]), [300_000, 0]);
        assert_eq!(divided(300_000, &[busy(60), busy(20)], &[busy(20)]), [180_000, 60_000]);
        assert_eq!(divided(70_001, &[busy(0), busy(0)], &[busy(0)]), [35_000, 35_001]);
        assert_eq!(divided(90_000, &[Part { size: 428, busy: 0 }, Part { size: 142, busy: 0 }], &[]), [67_578, 22_422]);
        assert_eq!(divided(70_000, &[], &[busy(5)]), [0; 0]);
    }
}
