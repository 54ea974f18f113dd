use std::cmp::Reverse;

use super::super::Link;
use super::*;

/// 8 cards, all by NVSwitch.
fn switched() -> Topology {
    Topology::of(8, |_, _| Link::NvLink(18))
}

/// 8 cards in pairs by NVLink, two pairs a socket.
fn pairs() -> Topology {
    Topology::of(8, |a, b| match (a, b) {
        (a, b) if a / 2 == b / 2 => Link::NvLink(4),
        (a, b) if a / 4 == b / 4 => Link::HostBridge,
        _ => Link::System,
    })
}

/// 8 cards as in a DGX-1: two fully connected quads, each card joined to one of the other quad, some twice.
fn cube() -> Topology {
    let twice = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
    let once = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
    Topology::of(8, |a, b| match (a, b) {
        pair if twice.contains(&pair) => Link::NvLink(2),
        pair if once.contains(&pair) => Link::NvLink(1),
        (a, b) if a / 4 == b / 4 => Link::Node,
        _ => Link::System,
    })
}

/// 8 cards without NVLink: two sockets, each with two PCIe switches.
fn switches() -> Topology {
    Topology::of(8, |a, b| match (a, b) {
        (a, b) if a / 2 == b / 2 => Link::Switch,
        (a, b) if a / 4 == b / 4 => Link::Node,
        _ => Link::System,
    })
}

/// Cards of several generations, joined as somebody found cables.
fn odd() -> Topology {
    Topology::of(8, |a, b| match (a * 7 + b * 3) % 6 {
        0 => Link::NvLink(u32::try_from(b).unwrap()),
        1 => Link::Switch,
        2 => Link::HostBridge,
        3 => Link::Node,
        4 => Link::Unknown,
        _ => Link::System,
    })
}

/// Every way to give cards to tasks, each task with its number.
fn all_ways(free: &[usize], tasks: &[usize], given: &mut Vec<Vec<usize>>, see: &mut dyn FnMut(&[Vec<usize>])) {
    let Some((card, rest)) = free.split_first() else {
        if given.iter().map(Vec::len).eq(tasks.iter().copied()) {
            see(given);
        }
        return;
    };
    for task in 0..tasks.len() {
        if given[task].len() < tasks[task] {
            given[task].push(*card);
            all_ways(rest, tasks, given, see);
            given[task].pop();
        }
    }
    let wanted: usize = tasks.iter().sum::<usize>() - given.iter().map(Vec::len).sum::<usize>();
    if rest.len() >= wanted {
        all_ways(rest, tasks, given, see);
    }
}

/// What the module's head says counts, said once more: pairs are sorted by who has them.
fn worth_of(topology: &Topology, free: &[usize], given: &[Vec<usize>]) -> (u64, u64, u64, u64, Reverse<u64>) {
    let whose = |card: usize| given.iter().position(|cards| cards.contains(&card));
    let (mut task_worst, mut task_sum, mut job_worst, mut job_sum, mut lost) = (u64::MAX, 0, u64::MAX, 0, 0);
    for (a, b) in free.iter().flat_map(|a| free.iter().map(move |b| (*a, *b))).filter(|(a, b)| a < b) {
        let weight = topology.link(a, b).weight();
        match (whose(a), whose(b)) {
            (None, None) => {}
            (None, _) | (_, None) => lost += weight,
            (one, other) => {
                job_worst = job_worst.min(weight);
                job_sum += weight;
                if one == other {
                    task_worst = task_worst.min(weight);
                    task_sum += weight;
                }
            }
        }
    }
    (task_worst, task_sum, job_worst, job_sum, Reverse(lost))
}

#[test]
fn no_choice_is_better_than_the_one_that_is_made() {
    let shapes: [&[usize]; 11] =
        [&[1], &[2], &[3], &[4], &[5], &[8], &[1, 1], &[2, 2], &[1, 2], &[1, 1, 1, 1], &[3, 1, 2]];
    for topology in [switched(), pairs(), cube(), switches(), odd()] {
        for set in 1..=u8::MAX {
            let free: Vec<usize> = (0..8).filter(|card| set >> card & 1 == 1).collect();
            // All sets for small jobs, one in seven for the others, which have many ways.
            for tasks in shapes.iter().filter(|tasks| tasks.len() < 2 || set % 7 == 3 || set == u8::MAX) {
                let Some(chosen) = place(&topology, &free, tasks) else {
                    assert!(tasks.iter().sum::<usize>() > free.len());
                    continue;
                };
                assert!(chosen.iter().map(Vec::len).eq(tasks.iter().copied()), "{chosen:?}");
                let mut best = None;
                all_ways(&free, tasks, &mut vec![Vec::new(); tasks.len()], &mut |given| {
                    best = best.max(Some(worth_of(&topology, &free, given)));
                });
                assert_eq!(Some(worth_of(&topology, &free, &chosen)), best, "{free:?} {tasks:?} {chosen:?}");
            }
        }
    }
}

#[test]
fn choices_are_those_that_a_person_would_make() {
    let (all, pairs, cube, switches) = ([0, 1, 2, 3, 4, 5, 6, 7], pairs(), cube(), switches());
    /// Of these cards, free are those, and tasks want so many: they get those.
    type Case<'a> = (&'a Topology, &'a [usize], &'a [usize], &'a [&'a [usize]]);
    let cases: [Case<'_>; 13] = [
        // The first of equals.
        (&pairs, &all, &[1], &[&[0]]),
        // One whose neighbour is taken, rather than one of a pair.
        (&pairs, &[1, 2, 3], &[1], &[&[1]]),
        (&pairs, &[1, 2, 3, 4], &[2], &[&[2, 3]]),
        (&pairs, &all, &[4], &[&[0, 1, 2, 3]]),
        (&pairs, &[1, 3, 4, 5, 6, 7], &[4], &[&[4, 5, 6, 7]]),
        (&pairs, &all, &[2, 2], &[&[0, 1], &[2, 3]]),
        // Tasks of one job are near to each other.
        (&pairs, &[0, 2, 6, 7], &[1, 1], &[&[6], &[7]]),
        (&cube, &all, &[2], &[&[0, 3]]),
        (&cube, &all, &[4, 4], &[&[0, 1, 2, 3], &[4, 5, 6, 7]]),
        (&switches, &[0, 2, 4, 5], &[2], &[&[4, 5]]),
        (&switches, &[0, 2, 4, 6], &[2], &[&[0, 2]]),
        (&switches, &[0, 4, 5, 6, 7], &[1], &[&[0]]),
        (&switches, &[3], &[1], &[&[3]]),
    ];
    for (topology, free, tasks, wanted) in cases {
        assert_eq!(place(topology, free, tasks).unwrap(), wanted, "{free:?} {tasks:?}");
    }
    assert_eq!(place(&pairs, &[0, 1], &[2, 1]), None);
    assert_eq!(place(&pairs, &[], &[]), Some(Vec::new()));
    assert_eq!(place(&pairs, &[5], &[0]), Some(vec![Vec::new()]));
}

#[test]
fn many_cards_are_placed_as_well() {
    // 64 cards, 8 to a box of NVLink: more choices than could be compared.
    let boxes = Topology::of(64, |a, b| if a / 8 == b / 8 { Link::NvLink(18) } else { Link::System });
    let free: Vec<usize> = (0..64).filter(|card| card % 8 != 3 || *card > 40).collect();
    let chosen = place(&boxes, &free, &[8, 1, 8, 4]).unwrap();
    assert!(chosen.iter().map(Vec::len).eq([8, 1, 8, 4]));
    for cards in &chosen {
        assert!(cards.iter().all(|card| card / 8 == cards[0] / 8 && free.contains(card)), "{cards:?}");
    }
    let mut all = chosen.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 21);
    assert_eq!(place(&boxes, &free, &[8, 1, 8, 4]), Some(chosen));
    assert_eq!((free.len(), place(&boxes, &free, &[29, 31])), (59, None));
}

#[test]
fn many_tasks_that_are_alike_are_placed_at_once() {
    let mixed = Topology::of(32, |a, b| if a / 8 == b / 8 { Link::NvLink(18) } else { Link::System });
    // Of each such job, how many choices are made: one each where all cards are wanted, else no more than may be.
    for (free, tasks, choices) in [(32, vec![1; 32], 32), (24, vec![1; 24], 24), (20, vec![1; 10], CHOICES_MAX)] {
        let free: Vec<usize> = (0..free).collect();
        let ground = Ground { topology: &mixed, free: &free };
        let mut search = Search { ground: &ground, tasks: &tasks, best: None, left: CHOICES_MAX };
        search.go_on(&mut Vec::new());
        assert_eq!(CHOICES_MAX - search.left, choices, "{tasks:?}");
        let chosen = place(&mixed, &free, &tasks).unwrap();
        assert!(chosen.iter().map(Vec::len).eq(tasks.iter().copied()), "{tasks:?}");
        let mut all = chosen.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), tasks.iter().sum::<usize>());
    }
}
