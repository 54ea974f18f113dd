//! Cards one by one.

use super::*;
use crate::gpu::deck::{Part, PieceOf, RESERVE, to_be_shared};
use crate::gpu::{Card, Driver, Facts, Instances, Inventory, Link, Signs, Slice, Topology};

pub(super) const GIB: u64 = 1 << 30;

/// Cards of 80 GiB; the last is cut up.
pub(super) fn deck(whole: usize) -> Deck {
    let card = |place: usize| Card {
        facts: Facts {
            uuid: format!("GPU-{place}").parse().unwrap(),
            name: format!("card {}", if place == 0 { "A" } else { "B" }),
            minor: Some(0),
            bus: String::new(),
            numa_node: None,
            cpus: Vec::new(),
            memory: Some(80 * GIB + RESERVE),
        },
        mig: place == whole,
        slices: (0..2).filter(|_| place == whole).map(slice).collect(),
        signs: Signs::default(),
        findings: Vec::new(),
        usage: None,
    };
    let topology = Topology::of(whole + 1, |_, _| Link::System);
    let driver = Driver::Loaded { version: "1".to_owned(), cuda: None };
    let cards: Vec<Card> = (0..=whole).map(card).collect();
    assert_eq!(to_be_shared(&cards[0]), 80 * GIB);
    Deck::of(Arc::new(Inventory { driver, cards, nameless: Vec::new(), topology, at: None, took_ms: 0 }), |_| true)
}

fn slice(number: u32) -> Slice {
    let instances = Some(Instances { gpu: number, compute: 0 });
    let (uuid, profile) = (format!("MIG-{number}").parse().unwrap(), "1g.10gb".to_owned());
    Slice { uuid, profile, memory: Some(1), instances, unreachable: None }
}

pub(super) fn wish(part: Part) -> Wish {
    Wish { tasks: 1, count: 1, part, kind: None }
}

fn share(gib: u64) -> Wish {
    wish(Part::Share(gib * GIB))
}

/// For so many seconds, or nobody knows how long.
fn wants(number: u64, wishes: &[Wish], lasts: Option<u64>) -> (Place, Waiting) {
    let weight = |wish: &Wish| match &wish.part {
        Part::Whole => CARD * u64::from(wish.count),
        Part::Share(bytes) => bytes * CARD / (80 * GIB),
        Part::Slice(profile) => weight_of_slice(profile),
    };
    let gpu = wishes.iter().map(weight).sum();
    let lasts = lasts.map(Duration::from_secs);
    let run = waiting(number, 1, 1);
    (
        place(number),
        Waiting { amount: Amount { gpu, ..run.amount }, wishes: wishes.into(), lasts, expected: lasts, ..run },
    )
}

/// What an attempt has of one card, until a second if that is known.
fn holds(number: u64, place: usize, bytes: Option<u64>, until: Option<u64>) -> Live {
    let of = bytes.map_or(PieceOf::Whole, |bytes| PieceOf::Share { bytes, of: 80 * GIB });
    let gpu = bytes.map_or(CARD, |bytes| bytes * CARD / (80 * GIB));
    let max_duration = until.map(|until| Duration::from_secs(until - 1));
    Live {
        amount: Amount { cpu: 1, memory: 1, gpu },
        pieces: vec![Piece { place, of }],
        max_duration,
        ..live(number, 1)
    }
}

/// On a machine with two whole cards and one that is cut up in two, at second 5.
fn planned(live: Vec<Live>, away: Vec<(Piece, Timestamp)>, queue: &Queue) -> Plan {
    planned_at(5000, live, OneByOne { all: deck(2), away, kept: None }, queue)
}

fn planned_at(now: u64, live: Vec<Live>, cards: OneByOne, queue: &Queue) -> Plan {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let inventory = Amount { cpu: 100, memory: 100, gpu: 2 * CARD + 284 };
    plan(&Snapshot { one_by_one: Some(cards), ..snapshot(now, inventory, live, queue, (&shares, &quotas)) })
}

/// Which cards those that start are given.
fn places(plan: &Plan) -> Vec<(JobKey, Vec<usize>)> {
    let places = plan.steps.iter().filter_map(|step| match step {
        Step::Start { key, pieces: Some(pieces), .. } => {
            Some((key.clone(), pieces.iter().flatten().map(|piece| piece.place).collect()))
        }
        _ => None,
    });
    places.collect()
}

#[test]
fn two_halves_of_two_cards_are_no_card_and_shares_lie_together() {
    let halves = || vec![holds(101, 0, Some(40 * GIB), None), holds(102, 1, Some(40 * GIB), None)];
    let whole = queue([wants(1, &[wish(Part::Whole)], None), wants(2, &[share(10)], None)]);
    let waits = planned(halves(), vec![], &whole);
    // It is not known when a card is free; one is kept for it, and the other has room for a share.
    assert_eq!(
        (places(&waits), waits.held_up),
        (vec![(key(2), vec![1])], vec![HeldUp { key: key(1), why: Why::Room }])
    );
    let shares = queue([wants(1, &[share(30)], None), wants(2, &[share(10)], None), wants(3, &[share(20)], None)]);
    assert_eq!(places(&planned(halves(), vec![], &shares)), [(key(1), vec![0]), (key(2), vec![0]), (key(3), vec![1])]);
    let slices = queue([1, 2, 3].map(|number| wants(number, &[wish(Part::Slice("1g.10gb".to_owned()))], None)));
    let started = planned(halves(), vec![], &slices);
    assert_eq!(places(&started), [(key(1), vec![2]), (key(2), vec![2])]);
    assert_eq!(started.held_up, [HeldUp { key: key(3), why: Why::Room }]);
}

#[test]
fn what_is_kept_for_the_first_that_does_not_fit_is_given_only_to_who_ends_before() {
    // Card 0 is free at second 8, card 1 is half free for ever.
    let live = || vec![holds(101, 0, Some(70 * GIB), Some(8)), holds(102, 1, Some(40 * GIB), None)];
    let first = || wants(1, &[wish(Part::Whole)], None);
    let behind = |gib, lasts| places(&planned(live(), vec![], &queue([first(), wants(2, &[share(gib)], lasts)])));
    // On card 0 until second 8; on card 1 for ever; on card 0, which is to be whole then, for ever.
    assert_eq!(behind(10, Some(3)), [(key(2), vec![0])]);
    assert_eq!(behind(10, None), [(key(2), vec![1])]);
    assert_eq!(behind(10, Some(6)), [(key(2), vec![1])]);
    assert_eq!(behind(50, None), []);
}

#[test]
fn no_stream_of_shares_of_which_nobody_knows_how_long_they_take_starves_a_whole_card() {
    const TAKES: u64 = 40;
    let mut holders = vec![(101, 0, 30), (102, 1, 20), (103, 1, 50)];
    let (mut waiting, mut kept) = (Vec::new(), None);
    let starts = (60..1000).find(|second| {
        holders.retain(|(_, _, began)| began + TAKES > *second);
        if second % 5 == 0 {
            waiting.push(*second);
        }
        let shares = waiting.iter().map(|number| wants(*number, &[share(30)], None));
        let queue: Queue = [wants(1, &[wish(Part::Whole)], None)].into_iter().chain(shares).collect();
        let live = holders.iter().map(|(number, place, began)| Live {
            held_since: Timestamp(began * 1000),
            running_since: Some(Timestamp(began * 1000)),
            ..holds(*number, *place, Some(30 * GIB), None)
        });
        let cards = OneByOne { all: deck(2), away: vec![], kept: kept.take() };
        let plan = planned_at(second * 1000, live.collect(), cards, &queue);
        kept.clone_from(&plan.kept);
        for (job, places) in places(&plan).into_iter().filter(|(job, _)| *job != key(1)) {
            let number = waiting.iter().position(|number| key(*number) == job).map(|at| waiting.remove(at)).unwrap();
            holders.push((number, places[0], *second));
        }
        started(&plan).contains(&key(1))
    });
    assert!(starts.is_some_and(|second| second <= 60 + TAKES), "{starts:?}");
}

#[test]
fn a_card_of_a_kind_that_is_not_there_holds_up_nobody_and_one_that_is_away_does() {
    let kind = |kind: &str| Wish { kind: Some(kind.to_owned()), ..wish(Part::Whole) };
    let any = || wants(2, &[wish(Part::Whole)], None);
    let none = planned(vec![], vec![], &queue([wants(1, &[kind("h100")], None), any()]));
    assert_eq!((places(&none).len(), none.held_up), (1, vec![]));
    let away = vec![(Piece { place: 0, of: PieceOf::Whole }, Timestamp(4000))];
    let waits = planned(vec![], away, &queue([wants(1, &[kind("CARD A")], None), any()]));
    // The other card is of no use to it.
    assert_eq!(
        (places(&waits), waits.held_up),
        (vec![(key(2), vec![1])], vec![HeldUp { key: key(1), why: Why::Room }])
    );
}

#[test]
fn who_uses_more_than_its_share_for_too_long_has_failed() {
    let cause = StopCause::OverShare { task: "main-0".parse().unwrap(), used: 25 * GIB, share: 20 * GIB };
    let over = Live { over_share: Some(cause.clone()), ..holds(1, 0, Some(20 * GIB), None) };
    let reason = "stopped since main-0 used 25GiB of a GPU, more than its share of 20GiB (resources.gpu_memory)";
    let decided = Step::Decide { key: key(1), verdict: Verdict::Failed { reason: reason.to_owned() }, cause };
    assert_eq!(planned(vec![over], vec![], &no_queue()).steps, [decided]);
}

/// When those that wait may start, in seconds, as told at second 5.
fn starts<const N: usize>(live: &[Live], waits: [(Place, Waiting); N]) -> Vec<Option<u64>> {
    let outlook = foreseen(live, waits);
    let numbers = 1..=outlook.waiting as u64;
    numbers.map(|number| outlook.of(&key(number)).unwrap().estimate.map(seconds)).collect()
}

/// How many cards are told to be free as a whole.
fn whole_cards(live: &[Live]) -> u64 {
    foreseen(live, [wants(1, &[wish(Part::Whole)], None)]).of(&key(1)).unwrap().of_cards.free / CARD
}

fn foreseen(live: &[Live], waits: impl IntoIterator<Item = (Place, Waiting)>) -> outlook::Outlook {
    foreseen_within(live, waits, usize::MAX)
}

/// With so many looks.
fn foreseen_within(live: &[Live], waits: impl IntoIterator<Item = (Place, Waiting)>, looks: usize) -> outlook::Outlook {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let waits: Queue = waits.into_iter().collect();
    let inventory = Amount { cpu: 100, memory: 100, gpu: 2 * CARD + 284 };
    let cards = |kept| Some(OneByOne { all: deck(2), away: vec![], kept });
    let before = snapshot(5000, inventory, live.to_vec(), &waits, (&shares, &quotas));
    let planned = plan(&Snapshot { one_by_one: cards(None), ..before.clone() });
    let seen = Snapshot { one_by_one: cards(planned.kept.clone()), ..before };
    outlook::within(&seen, &planned.held_up, usize::MAX, |_| looks)
}

#[test]
fn starts_are_foreseen_card_by_card_with_shares_and_slices() {
    let whole = || wish(Part::Whole);
    let slice = || wish(Part::Slice("1g.10gb".to_owned()));
    // Card 0 is free at second 8, card 1 is half free for ever.
    let live = [holds(101, 0, Some(70 * GIB), Some(8)), holds(102, 1, Some(40 * GIB), None)];
    let waits = [
        wants(1, &[whole()], Some(2)),
        wants(2, &[share(50)], Some(3)),
        wants(3, &[share(30)], Some(9)),
        wants(4, &[slice()], None),
        wants(5, &[whole()], None),
        wants(6, &[Wish { kind: Some("card A".to_owned()), ..whole() }], Some(1)),
        wants(7, &[share(10)], None),
        wants(8, &[slice(), share(10)], Some(1)),
        wants(9, &[slice()], None),
    ];
    // The second comes after the first; the third and the seventh lie on card 1. The fifth has card 0 for ever, and the eighth has
    // its slice now and its share when the third has ended: both at once. Then nobody knows of a slice for ever.
    let told = [Some(8), Some(10), Some(5), Some(5), Some(13), None, Some(5), Some(14), Some(15)];
    assert_eq!(starts(&live, waits), told);
    assert_eq!(whole_cards(&live), 0, "parts of two cards are no card");
    assert_eq!(whole_cards(&live[..1]), 1);
    // Nobody has one card all the time where two have it one after the other.
    let live = [holds(101, 0, None, Some(8)), holds(102, 1, None, Some(12))];
    let pair = Wish { count: 2, ..whole() };
    let waits = [
        wants(1, &[pair], Some(5)),
        wants(2, &[whole()], Some(4)),
        wants(3, &[whole()], Some(5)),
        wants(4, &[slice()], None),
    ];
    assert_eq!(starts(&live, waits), [Some(12), Some(8), Some(17), Some(5)]);
}

#[test]
fn who_has_cards_that_are_of_no_use_to_a_run_is_no_holder_of_what_it_waits_for() {
    let live = [holds(101, 0, None, None), holds(102, 1, None, None)];
    let kind = |kind: &str| Wish { kind: Some(kind.to_owned()), ..wish(Part::Whole) };
    let waits = [kind("card B"), wish(Part::Whole), kind("card Z")];
    let waits = (1..).zip(&waits).map(|(number, wish)| wants(number, std::slice::from_ref(wish), None));
    let outlook = foreseen(&live, waits);
    let holders = |number| {
        let standing = outlook.of(&key(number)).unwrap();
        outlook.holders_for(standing).map(|holder| holder.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(holders(1), [key(102)]);
    assert_eq!(holders(2), [key(101), key(102)]);
    assert_eq!(holders(3), [], "there is no such card");
}

#[test]
fn all_of_a_long_queue_are_told_when_they_start_card_by_card() {
    const LONG: u64 = 2000;
    // On two cards: two shares lie beside each other on one, and each second asks for a whole one.
    let wanted = |number: u64| if number.is_multiple_of(2) { wish(Part::Whole) } else { share(36) };
    let outlook = foreseen(&[], (1..=LONG).map(|number| wants(number, &[wanted(number)], Some(10))));
    for (place, number) in (1..=LONG).enumerate() {
        let start = outlook.of(&key(number)).unwrap().estimate.map(seconds);
        // Eight take half a minute.
        let of_eight = [0, 0, 0, 10, 10, 20, 10, 20][place % 8];
        assert_eq!(start, Some(5 + 30 * (place as u64 / 8) + of_eight), "{number}");
    }
}

#[test]
fn those_far_behind_are_told_when_they_start_card_by_card_in_order() {
    const LONG: u64 = 2000;
    // No two want the same, of shares, a slice and whole cards; the first card is somebody's until second 8.
    let wanted = |number: u64| match number % 4 {
        0 => vec![wish(Part::Whole)],
        1 => vec![wish(Part::Slice("1g.10gb".to_owned())), share(5)],
        2 => vec![share(36 + number % 7), share(1)],
        _ => vec![share(10 + number % 64)],
    };
    let live = [holds(101, 0, Some(70 * GIB), Some(8)), holds(102, 1, Some(4 * GIB), None)];
    let waits = || (1..=LONG).map(|number| wants(number, &wanted(number), Some(1 + number % 10)));
    let far = |looks| {
        let outlook = foreseen_within(&live, waits(), looks);
        (1..=LONG).map(|number| outlook.of(&key(number)).unwrap().estimate).collect::<Vec<_>>()
    };
    let (near, all) = (far(1 << 15), far(usize::MAX));
    assert!(all.iter().all(|start| matches!(start, Some(outlook::Start::By(_)))));
    let known = near.iter().take_while(|start| matches!(start, Some(outlook::Start::By(_)))).count();
    assert!(known > 20 && known < 1900, "{known}");
    assert_eq!(near[..known], all[..known]);
    let told: Vec<u64> = near[known..].iter().map(|start| seconds(start.unwrap())).collect();
    assert!(told.is_sorted(), "{told:?}");
    let (last, exact) = (told.last().unwrap(), seconds(all.last().unwrap().unwrap()));
    // Half of the time is no gap that others would have.
    assert!((exact..2 * exact).contains(last), "{last} {exact}");
}

/// When so many that wait should start, in seconds, where these cards are others' and that is kept; the first waits for a port.
fn starts_beside<const N: usize>(
    away: &[Piece],
    kept: Option<Kept>,
    waits: [(Place, Waiting); N],
    looks: usize,
) -> Vec<Option<u64>> {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let waits: Queue = waits.into_iter().collect();
    let inventory = Amount { cpu: 100, memory: 100, gpu: 2 * CARD + 284 };
    let away = away.iter().map(|piece| (piece.clone(), Timestamp(1000))).collect();
    let one_by_one = Some(OneByOne { all: deck(2), away, kept });
    let seen = Snapshot { one_by_one, ..snapshot(5000, inventory, vec![], &waits, (&shares, &quotas)) };
    let why = Why::Port { port: 8080, holder: key(101), how: Holding::Has };
    let outlook = outlook::within(&seen, &[HeldUp { key: key(1), why }], usize::MAX, |_| looks);
    (1..=N as u64).map(|number| outlook.of(&key(number)).unwrap().estimate.map(seconds)).collect()
}

#[test]
fn what_is_kept_for_a_run_whose_start_is_not_known_is_what_it_was_told_to_get() {
    let first = || wants(1, &[wish(Part::Whole)], None);
    let on_a = || wants(2, &[Wish { kind: Some("card A".to_owned()), ..wish(Part::Whole) }], Some(3));
    let kept = |place| {
        let pieces = vec![vec![Piece { place, of: PieceOf::Whole }]];
        Some(Kept { key: key(1), wishes: [wish(Part::Whole)].into(), pieces })
    };
    assert_eq!(starts_beside(&[], kept(1), [first(), on_a()], usize::MAX), [None, Some(5)]);
    assert_eq!(starts_beside(&[], kept(0), [first(), on_a()], usize::MAX), [None, None]);
}

#[test]
fn who_is_far_behind_has_no_card_that_others_use_or_wait_for() {
    let whole = |number| wants(number, &[wish(Part::Whole)], Some(3));
    let away = [Piece { place: 0, of: PieceOf::Whole }];
    // One card is the first one's, since nobody knows when it has its port.
    assert_eq!(starts_beside(&[], None, [whole(1), whole(2), whole(3)], 1), [None, Some(5), Some(8)]);
    let others = [wants(1, &[wish(Part::Slice("1g.10gb".to_owned()))], None), whole(2), whole(3)];
    assert_eq!(starts_beside(&away, None, others, 1), [None, Some(5), Some(8)]);
}

#[test]
fn shares_of_those_far_behind_lie_together() {
    let part = |number| wants(number, &[share(20)], Some(10));
    let outlook = foreseen_within(&[], [part(1), part(2), wants(3, &[wish(Part::Whole)], Some(1))], 1);
    let starts = [1, 2, 3].map(|number| outlook.of(&key(number)).unwrap().estimate.map(seconds));
    assert_eq!(starts, [Some(5); 3]);
}

#[test]
fn a_card_that_is_somebody_s_in_a_while_is_passed_over_for_one_that_is_not() {
    let slices = (0..2).map(|number| {
        let (uuid, profile) = (format!("MIG-{number}").parse().unwrap(), "1g.10gb".to_owned());
        Piece { place: 2, of: PieceOf::Slice { uuid, profile } }
    });
    let live = Live { pieces: slices.collect(), ..holds(101, 2, Some(1), Some(8)) };
    let on_a = Wish { kind: Some("card A".to_owned()), ..wish(Part::Whole) };
    let first = wants(1, &[on_a, wish(Part::Slice("1g.10gb".to_owned()))], Some(5));
    assert_eq!(starts(&[live], [first, wants(2, &[wish(Part::Whole)], Some(5))]), [Some(8), Some(5)]);
}

#[test]
fn nobody_behind_one_that_says_nothing_is_told_when_it_starts_in_order_unless_it_has_room_beside_it() {
    let whole = |number, lasts| wants(number, &[wish(Part::Whole)], lasts);
    let outlook = foreseen_within(
        &[],
        [whole(1, None), whole(2, Some(3)), whole(3, Some(3)), whole(4, None), whole(5, Some(1))],
        1,
    );
    let starts = [1, 2, 3, 4, 5].map(|number| outlook.of(&key(number)).unwrap().estimate.map(seconds));
    assert_eq!(starts, [Some(5), Some(5), Some(8), Some(11), None]);
}

#[test]
fn cards_of_runs_of_which_nobody_knows_when_they_start_are_foreseen_for_nobody_else() {
    let live = [holds(101, 0, None, Some(8)), holds(102, 1, Some(40 * GIB), None)];
    let pair = || Wish { count: 2, ..wish(Part::Whole) };
    let behind = |first| {
        let waits = [first, wants(2, &[share(20)], Some(1)), wants(3, &[wish(Part::Whole)], Some(1))];
        starts(&live, waits)
    };
    assert_eq!(behind(wants(1, &[pair()], Some(1))), [None; 3], "it waits for both cards");
    let half = || wants(1, &[Wish { kind: Some("card B".to_owned()), ..wish(Part::Whole) }], None);
    let whole = |number| wants(number, &[wish(Part::Whole)], Some(1));
    assert_eq!(starts(&live, [half(), whole(2)]), [None, Some(8)]);
    // Both of them can never be had beside what the first waits for: whatever it could use is left to it.
    assert_eq!(starts(&live, [half(), wants(2, &[pair()], Some(1)), whole(3)]), [None; 3]);
    // What waits for a port has its share where there is room for it, card 1, and the others do without that.
    let mut live = live.clone();
    live[1].ports = vec![8080];
    let (place, first) = wants(1, &[share(30)], Some(1));
    let waits = [
        (place, Waiting { ports: vec![8080], ..first }),
        wants(2, &[share(20)], Some(1)),
        wants(3, &[wish(Part::Whole)], Some(1)),
        wants(4, &[share(10)], None),
    ];
    assert_eq!(starts(&live, waits), [None, Some(8), Some(9), Some(5)]);
}

/// What may be held of card 0 and card 1, and what may be wanted.
fn some_held() -> impl Strategy<Value = Vec<Live>> {
    let until = || proptest::option::weighted(0.8, 6..20_u64);
    let part = prop_oneof![Just(None), Just(Some(20)), Just(Some(40))];
    proptest::collection::vec((0..2_usize, part, until()), 0..5).prop_map(|held| {
        let mut left = [80_u64; 2];
        let mut live = Vec::new();
        for (number, (place, gib, until)) in (101..).zip(held) {
            let takes = gib.unwrap_or(80);
            if takes <= left[place] {
                left[place] -= takes;
                live.push(holds(number, place, gib.map(|gib| gib * GIB), until));
            }
        }
        live
    })
}

fn some_wanted() -> impl Strategy<Value = Vec<Wish>> {
    let part = prop_oneof![
        Just(Part::Whole),
        (1..=80_u64).prop_map(|gib| Part::Share(gib * GIB)),
        Just(Part::Slice("1g.10gb".to_owned()))
    ];
    proptest::collection::vec(part.prop_map(wish), 1..3)
}

proptest! {
    #[test]
    fn the_first_starts_when_it_was_told_and_not_sooner(live in some_held(), wanted in some_wanted(), behind in some_wanted()) {
        let waits = || [wants(1, &wanted, Some(3)), wants(2, &behind, None)];
        let told = starts(&live, waits())[0];
        let is_started = |second: u64| {
            let lives = live.iter().filter(|live| live.max_duration.is_none_or(|lasts| 1 + lasts.as_secs() > second));
            let cards = OneByOne { all: deck(2), away: vec![], kept: None };
            started(&planned_at(second * 1000, lives.cloned().collect(), cards, &queue(waits()))).contains(&key(1))
        };
        match told {
            Some(second) => prop_assert!(is_started(second) && (second == 5 || !is_started(second - 1)), "{second}"),
            None => prop_assert!(!is_started(1000), "there was room"),
        }
    }
}
