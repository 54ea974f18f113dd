//! Whole cards, shares of cards and slices within quotas, as time passes: nothing is had twice, no quota is passed, and neither
//! sort of job starves the other.

use super::cards::{GIB, deck, wish};
use super::world::World;
use super::*;
use crate::config::Quota;
use crate::gpu::deck::{Part, PieceOf};

const WORKSPACES: [&str; 2] = ["a", "b"];
/// Whole cards of 80 GiB, beside one that is cut up in two.
const WHOLE: usize = 3;
/// Longest that a job takes, in ms.
const LONGEST: u64 = 20_000;

/// Workspace, what it wants of cards, cores, how long it may take and takes, in seconds.
type Shape = (usize, Wish, u64, Option<u64>, u64);

fn any_wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        3 => (1u64..=80).prop_map(|gib| wish(Part::Share(gib * GIB))),
        2 => (1u32..=2).prop_map(|count| Wish { count, ..wish(Part::Whole) }),
        1 => (1u32..=2).prop_map(|count| Wish { count, ..wish(Part::Slice("1g.10gb".to_owned())) }),
    ]
}

fn shapes(number: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Shape>> {
    let lasts = prop::option::of(1u64..20);
    prop::collection::vec((0..WORKSPACES.len(), any_wish(), 1u64..4, lasts, 1u64..20), number)
}

/// Room for every job that is made here.
fn quotas() -> impl Strategy<Value = Quotas> {
    let some = |range: std::ops::Range<u64>| prop::option::of(range);
    let quota = (some(2..4), some(3..9), some(3..9), some(1..4)).prop_map(|(gpu, cpu, memory, running)| Quota {
        gpu,
        cpu,
        memory,
        running,
        waiting: None,
    });
    prop::collection::btree_map(prop::sample::select(WORKSPACES.to_vec()), quota, 0..=WORKSPACES.len())
        .prop_map(|of| of.into_iter().map(|(name, quota)| (name.parse().unwrap(), quota)).collect())
}

/// In thousandths of a card, as docs/JOBS.md says.
fn weight(of: &PieceOf) -> u64 {
    match of {
        PieceOf::Whole => 1000,
        PieceOf::Share { bytes, .. } => bytes * 1000 / (80 * GIB),
        PieceOf::Slice { .. } => 142,
    }
}

fn run_of(number: u64, priority: u8, (workspace, wish, cores, lasts, _): &Shape) -> (Place, Waiting) {
    let one = match &wish.part {
        Part::Whole => 1000,
        Part::Share(bytes) => bytes * 1000 / (80 * GIB),
        Part::Slice(_) => 142,
    };
    let lasts = lasts.map(Duration::from_secs);
    let run = Waiting {
        key: format!("{}/j{number}", WORKSPACES[*workspace]).parse().unwrap(),
        amount: Amount { cpu: *cores, memory: *cores, gpu: one * u64::from(wish.count) },
        wishes: [wish.clone()].into(),
        network: Network::Host,
        lasts,
        ..waiting(number, *cores, 1)
    };
    (Place { priority: Reverse(Priority(priority)), order: number }, run)
}

/// Jobs of these sorts, numbered as they come.
struct Stream {
    world: World,
    number: u64,
}

impl Stream {
    fn new(quotas: Quotas) -> Self {
        let inventory = Amount { cpu: 12, memory: 12, gpu: WHOLE as u64 * CARD + 284 };
        Self { world: World::new(inventory, Some(deck(WHOLE)), quotas), number: 0 }
    }

    fn drop_in(&mut self, priority: u8, shape: &Shape) -> JobKey {
        self.number += 1;
        let run = run_of(self.number, priority, shape);
        let key = run.1.key.clone();
        self.world.drop_in(run, shape.4);
        key
    }

    fn pass(&mut self) -> Result<(), TestCaseError> {
        let planned = self.world.pass();
        let only_starts = planned.steps.iter().all(|step| matches!(step, Step::Start { pieces: Some(_), .. }));
        prop_assert!(only_starts, "{:?}", planned.steps);
        (0..=WHOLE).try_for_each(|place| check_card(place, &self.world.held_of(place)))?;
        self.world.quotas.iter().try_for_each(|(workspace, quota)| check_quota(quota, &self.world.live_in(workspace)))
    }
}

/// A whole card has one holder, a slice as well, and shares are no more than there is.
fn check_card(place: usize, own: &[&PieceOf]) -> Result<(), TestCaseError> {
    prop_assert!(!own.contains(&&PieceOf::Whole) || own.len() == 1, "card {place} has one holder: {own:?}");
    let bytes = own.iter().map(|of| if let PieceOf::Share { bytes, .. } = of { *bytes } else { 0 });
    prop_assert!(bytes.sum::<u64>() <= 80 * GIB, "card {place} has no more: {own:?}");
    let is_twice = |of: &&PieceOf| own.iter().filter(|other| other == &of).count() > 1;
    let slices = own.iter().filter(|of| matches!(of, PieceOf::Slice { .. }));
    prop_assert!(!slices.copied().any(|of| is_twice(&of)), "a slice of card {place} has one holder: {own:?}");
    prop_assert!(own.iter().all(|of| (place == WHOLE) == matches!(of, PieceOf::Slice { .. })), "{own:?}");
    Ok(())
}

fn check_quota(quota: &Quota, own: &[&Live]) -> Result<(), TestCaseError> {
    let within = |quota: Option<u64>, held: u64| quota.is_none_or(|most| held <= most);
    let cards: u64 = own.iter().flat_map(|live| &live.pieces).map(|piece| weight(&piece.of)).sum();
    prop_assert!(within(quota.gpu.map(|cards| cards * 1000), cards), "{cards} thousandths of {quota:?}");
    prop_assert!(within(quota.cpu, own.iter().map(|live| live.amount.cpu).sum()), "cores of {quota:?}");
    prop_assert!(within(quota.memory, own.iter().map(|live| live.amount.memory).sum()), "memory of {quota:?}");
    prop_assert!(within(quota.running, own.len() as u64), "{} run of {quota:?}", own.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Jobs of all sorts come at every step, and most do not say how long they take. One that comes before them by its priority
    /// waits once for its quota and once for room, each for no longer than what was there before and what was let in beside it.
    #[test]
    fn no_stream_of_parts_of_cards_starves_whole_ones_nor_the_other_way_round(
        before in shapes(1..8),
        stream in shapes(1..30),
        first in (any_wish(), 1u64..4),
        quotas in quotas(),
    ) {
        let mut jobs = Stream::new(quotas);
        before.iter().for_each(|shape| drop(jobs.drop_in(50, shape)));
        jobs.pass()?;
        jobs.world.now += 1;
        let (wish, cores) = first;
        let (came, first) = (jobs.world.now, jobs.drop_in(60, &(0, wish, cores, None, 1)));
        for shape in stream.iter().cycle() {
            jobs.drop_in(50, shape);
            jobs.pass()?;
            if jobs.world.runs(&first) {
                break;
            }
            prop_assert!(jobs.world.now <= came + 5 * LONGEST, "it waits for ever");
            prop_assert!(jobs.world.go_on(), "nothing runs and it does not start");
        }
    }

    /// When no more come, all that wait have started in the end: a job that nobody prefers as well.
    #[test]
    fn everything_that_waits_for_cards_starts_in_the_end(all in shapes(1..40), quotas in quotas()) {
        let mut jobs = Stream::new(quotas);
        for shape in &all {
            jobs.drop_in(50, shape);
            jobs.pass()?;
            jobs.world.go_on_to(jobs.world.now + 500);
        }
        // What ran may have ended since the last of them came.
        jobs.pass()?;
        while !jobs.world.queue.is_empty() {
            prop_assert!(jobs.world.go_on(), "{} wait and nothing runs", jobs.world.queue.len());
            jobs.pass()?;
        }
    }
}
