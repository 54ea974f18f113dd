use proptest::prelude::*;

use super::super::{Driver, Facts, Instances, Link, Signs, Topology};
use super::*;

const GIB: u64 = 1 << 30;

fn card(place: usize, name: &str, gib: u64, slices: &[&str]) -> Card {
    let facts = Facts {
        uuid: format!("GPU-{place}").parse().unwrap(),
        name: name.to_owned(),
        minor: Some(u32::try_from(place).unwrap()),
        bus: String::new(),
        numa_node: None,
        cpus: Vec::new(),
        memory: Some(gib * GIB + RESERVE),
    };
    let slice = |(number, profile): (usize, &&str)| Slice {
        uuid: format!("MIG-{place}-{number}").parse().unwrap(),
        profile: (*profile).to_owned(),
        memory: Some(10 * GIB),
        instances: Some(Instances { gpu: u32::try_from(number).unwrap(), compute: 0 }),
        unreachable: None,
    };
    Card {
        facts,
        mig: !slices.is_empty(),
        slices: slices.iter().enumerate().map(slice).collect(),
        signs: Signs::default(),
        findings: Vec::new(),
        usage: None,
    }
}

/// In pairs by NVLink.
fn deck(cards: Vec<Card>) -> Deck {
    let topology = Topology::of(cards.len(), |a, b| if a / 2 == b / 2 { Link::NvLink(4) } else { Link::System });
    let driver = Driver::Loaded { version: "1".to_owned(), cuda: None };
    Deck::of(Arc::new(Inventory { driver, cards, nameless: Vec::new(), topology, at: None, took_ms: 0 }), |_| true)
}

fn whole(tasks: u32, count: u32) -> Wish {
    Wish { tasks, count, part: Part::Whole, kind: None }
}

fn share(tasks: u32, gib: u64) -> Wish {
    Wish { tasks, count: 1, part: Part::Share(gib * GIB), kind: None }
}

fn slices(tasks: u32, count: u32, profile: &str) -> Wish {
    Wish { tasks, count, part: Part::Slice(profile.to_owned()), kind: None }
}

fn of_kind(wish: Wish, kind: &str) -> Wish {
    Wish { kind: Some(kind.to_owned()), ..wish }
}

/// The places of the cards of each task.
fn places(deck: &Deck, wishes: &[Wish]) -> Option<Vec<Vec<usize>>> {
    let chosen = deck.choose(wishes)?;
    Some(chosen.iter().map(|task| task.iter().map(|piece| piece.place).collect()).collect())
}

fn taken(deck: &Deck, wishes: &[Wish]) -> Deck {
    deck.without(deck.choose(wishes).unwrap().iter().flatten())
}

#[test]
fn shares_lie_where_the_least_is_left_and_open_a_card_only_if_they_must() {
    let four = deck((0..4).map(|place| card(place, "A", 80, &[])).collect());
    let first = taken(&four, &[share(1, 20)]);
    assert_eq!(first.room(0), &Room::Rest(60 * GIB));
    // Beside the first, until it is full.
    assert_eq!(places(&first, &[share(3, 20)]), Some(vec![vec![0], vec![0], vec![0]]));
    // The one that is opened next is that whose neighbour is opened already: a pair stays whole.
    assert_eq!(places(&first, &[share(4, 20)]), Some(vec![vec![0], vec![0], vec![0], vec![1]]));
    assert_eq!(places(&first, &[share(1, 70)]), Some(vec![vec![1]]));
    // Of two that are shared the fuller one.
    let two = taken(&first, &[share(1, 70)]);
    assert_eq!((two.room(0), two.room(1)), (&Room::Rest(60 * GIB), &Room::Rest(10 * GIB)));
    assert_eq!(places(&two, &[share(1, 10)]), Some(vec![vec![1]]));
    // What is shared is no whole card, and there are two left.
    assert_eq!(places(&two, &[whole(1, 2)]), Some(vec![vec![2, 3]]));
    assert_eq!(places(&two, &[whole(3, 1)]), None);
    assert_eq!(places(&two, &[share(1, 81)]), None);
    // A job of both.
    assert_eq!(places(&two, &[whole(1, 2), share(2, 30)]), Some(vec![vec![2, 3], vec![0], vec![0]]));
    assert_eq!(places(&two, &[whole(1, 2), share(3, 30)]), None);
    // What was chosen before can still be had where all shares of a card go together.
    let share_of = |place: usize, gib: u64| Piece { place, of: PieceOf::Share { bytes: gib * GIB, of: 80 * GIB } };
    let has = |sizes: [u64; 2]| two.has_all(&sizes.map(|gib| share_of(0, gib)));
    assert_eq!([has([30, 30]), has([30, 31])], [true, false]);
}

#[test]
fn cards_of_a_kind_are_told_by_any_part_of_their_names() {
    let mixed = deck(vec![
        card(0, "NVIDIA A100-SXM4-40GB", 40, &[]),
        card(1, "NVIDIA A100-SXM4-80GB", 80, &[]),
        card(2, "NVIDIA H100 80GB HBM3", 80, &[]),
    ]);
    let of = |kind: &str| places(&mixed, &[of_kind(whole(1, 1), kind)]);
    assert_eq!([of("h100"), of("nvidia-a100-sxm4-80"), of("V100")], [Some(vec![vec![2]]), Some(vec![vec![1]]), None]);
    assert_eq!(places(&mixed, &[of_kind(whole(2, 1), "A100")]), Some(vec![vec![0], vec![1]]));
    assert!(!mixed.fits(&[of_kind(whole(3, 1), "A100")]));
    // Who may have any leaves those that another task must have.
    let both = [whole(1, 1), of_kind(whole(1, 1), "A100"), of_kind(whole(1, 1), "A100-SXM4-80GB")];
    assert_eq!(places(&mixed, &both), Some(vec![vec![2], vec![0], vec![1]]));
    // A share of the smaller card as long as it holds it.
    assert_eq!(places(&mixed, &[of_kind(share(1, 30), "A100")]), Some(vec![vec![0]]));
    assert_eq!(places(&mixed, &[of_kind(share(1, 50), "A100")]), Some(vec![vec![1]]));
    assert!(!mixed.fits(&[of_kind(share(2, 50), "A100")]));
}

#[test]
fn slices_of_a_task_come_from_one_card_and_the_one_with_the_fewest_left() {
    let cut = deck(vec![
        card(0, "A", 80, &["1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb"]),
        card(1, "B", 80, &["1g.10gb", "1g.10gb"]),
        card(2, "A", 80, &[]),
    ]);
    assert_eq!(places(&cut, &[slices(1, 1, "1G.10GB")]), Some(vec![vec![1]]));
    assert_eq!(places(&cut, &[slices(1, 3, "1g.10gb")]), Some(vec![vec![0, 0, 0]]));
    assert_eq!(places(&cut, &[slices(1, 4, "1g.10gb")]).map(|tasks| tasks[0].len()), Some(4));
    assert_eq!(places(&cut, &[slices(6, 1, "1g.10gb")]), None);
    assert_eq!(places(&cut, &[of_kind(slices(1, 1, "1g.10gb"), "a")]), Some(vec![vec![0]]));
    // What is cut up is had neither as a whole nor in shares.
    assert_eq!((places(&cut, &[whole(1, 1)]), places(&cut, &[whole(1, 2)])), (Some(vec![vec![2]]), None));
    assert_eq!(places(&cut, &[share(3, 20)]), Some(vec![vec![2]; 3]));
    assert!(!cut.fits(&[share(1, 20), whole(1, 1)]));
    // Each is had once.
    let mut left = cut.clone();
    for count in (0..5).rev() {
        left = taken(&left, &[slices(1, 1, "1g.10gb")]);
        assert_eq!(left.count_of(&slices(1, 1, "1g.10gb")), count);
    }
    assert!(left.fits(&[slices(1, 1, "3g.40gb")]));
}

#[test]
fn what_is_held_does_not_go_with_a_card_that_has_changed() {
    let two = deck(vec![card(0, "A", 80, &[]), card(1, "A", 80, &["1g.10gb"])]);
    let slice = |place| Piece { place, of: PieceOf::Slice { uuid: "MIG-x".parse().unwrap(), profile: String::new() } };
    let of = |place| Piece { place, of: PieceOf::Share { bytes: 1, of: 2 } };
    assert_eq!(two.without(&[slice(0), of(1)]).rooms, [Room::Nothing, Room::Nothing]);
    // Of a card that is gone nothing is known.
    assert_eq!(two.without(&[of(7)]), two);
}

#[test]
fn parts_of_cards_have_their_weight() {
    assert_eq!(
        ["1g.10gb", "2g.20gb", "7g.80gb", "1c.3g.40gb", "2c.3g.40gb", "1g.10gb+me"].map(weight_of_slice),
        [142, 285, 1000, 142, 285, 142]
    );
    let seen = Inventory { cards: vec![card(0, "A 80", 80, &[]), card(1, "B 40", 40, &[])], ..Inventory::default() };
    let sizes = Sizes::of(&seen);
    let weight = |gib, kind| sizes.weight(gib * GIB, kind);
    assert_eq!([weight(20, None), weight(20, Some("a")), weight(50, None), weight(90, None)], [500, 250, 625, 0]);
    assert_eq!(Sizes::default().weight(GIB, None), 0);
}

/// Cards and what is held of them.
fn cards() -> impl Strategy<Value = Vec<(u8, u64)>> {
    prop::collection::vec((0..4u8, 0..8u64), 1..5)
}

fn wish() -> impl Strategy<Value = Wish> {
    let part = prop_oneof![
        Just(Part::Whole),
        (1..6u64).prop_map(|tens| Part::Share(tens * 10 * GIB)),
        Just(Part::Slice("1g.10gb".to_owned())),
    ];
    let kind = prop_oneof![2 => Just(None), 1 => Just(Some("a".to_owned())), 1 => Just(Some("b".to_owned()))];
    (0..3u32, 1..3u32, part, kind).prop_map(|(tasks, count, part, kind)| {
        let count = if matches!(part, Part::Share(_)) { 1 } else { count };
        Wish { tasks, count, part, kind }
    })
}

/// Whether there is any way at all, said once more: one piece after the other, on every card.
fn any_way(cards: &[Card], left: &mut [(u64, usize)], units: &[&Wish]) -> bool {
    let Some((wish, rest)) = units.split_first() else { return true };
    for place in 0..cards.len() {
        let card = &cards[place];
        let is_such = wish.kind.as_ref().is_none_or(|kind| card.facts.name.to_lowercase().contains(kind));
        let before = left[place];
        let all = to_be_shared(card);
        let (memory, slices) = before;
        left[place] = match &wish.part {
            _ if !is_such => continue,
            Part::Whole if !card.mig && memory == all => (0, 0),
            Part::Share(bytes) if !card.mig && memory >= *bytes => (memory - bytes, 0),
            Part::Slice(_) if slices > 0 => (memory, slices - 1),
            _ => continue,
        };
        let found = any_way(cards, left, rest);
        left[place] = before;
        if found {
            return true;
        }
    }
    false
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    #[test]
    fn what_fits_in_any_way_is_placed_and_nothing_is_given_twice(
        made in cards(),
        wishes in prop::collection::vec(wish(), 1..4),
    ) {
        let cards: Vec<Card> = made.iter().enumerate().map(|(place, (sort, _))| match sort {
            0 => card(place, "A", 80, &[]),
            1 => card(place, "B", 40, &[]),
            2 => card(place, "A", 80, &["1g.10gb", "1g.10gb"]),
            _ => card(place, "AB", 80, &[]),
        }).collect();
        let whole = deck(cards.clone());
        // Something is held already.
        let held = |place: usize, tens: u64| Piece { place, of: PieceOf::Share { bytes: tens * 10 * GIB, of: 1 } };
        let shared = made.iter().enumerate().filter(|(place, (_, tens))| *tens > 3 && !cards[*place].mig);
        let held: Vec<Piece> = shared.map(|(place, (_, tens))| held(place, tens - 3)).collect();
        let deck = whole.without(&held);
        let mut left: Vec<(u64, usize)> = cards.iter().enumerate().map(|(place, card)| match deck.room(place) {
            Room::All => (to_be_shared(card), 0),
            Room::Rest(left) => (*left, 0),
            Room::Slices(slices) => (0, slices.len()),
            Room::Nothing => (0, 0),
        }).collect();
        // Those that are full are no whole cards either, of whatever size.
        let units: Vec<&Wish> = tasks(&wishes).flat_map(|wish| std::iter::repeat_n(wish, wish.count as usize)).collect();
        let is_possible = any_way(&cards, &mut left, &units);
        prop_assert_eq!(deck.fits(&wishes), is_possible, "{:?}", deck.rooms);
        let (sort, wanted) = Sort::of(&wishes);
        prop_assert_eq!(wanted <= deck.most(&sort), is_possible, "{:?}", sort);
        let chosen = deck.choose(&wishes);
        prop_assert_eq!(chosen.is_some(), is_possible);
        let Some(chosen) = chosen else { return Ok(()) };
        prop_assert_eq!(chosen.len(), tasks(&wishes).count());
        let mut free = deck.clone();
        for (task, wish) in chosen.iter().zip(tasks(&wishes)) {
            prop_assert_eq!(task.len(), wish.count as usize);
            for piece in task {
                prop_assert!(wish.is_for(free.card(piece.place).unwrap()));
                prop_assert!(free.has(piece), "{:?} of {:?}", piece, free.rooms);
                // A share opens a card only if none that is shared has room for it.
                if let (PieceOf::Share { bytes, .. }, Room::All) = (&piece.of, free.room(piece.place)) {
                    let is_alone = is_uniform(&wishes);
                    let others = (0..cards.len()).filter(|other| wish.is_for(&cards[*other]));
                    let has_room = |other: usize| matches!(free.room(other), Room::Rest(left) if left >= bytes);
                    prop_assert!(!is_alone || !others.into_iter().any(has_room));
                }
                free.take(piece);
            }
        }
    }
}
