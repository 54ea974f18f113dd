//! The queue where jobs want whole cards, shares of cards and slices, so that cards are looked at one by one: what a pass costs,
//! and who waits how long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trainyard::gpu::deck::{CARD, Deck, Part, Piece, PieceOf, RESERVE, Sizes, Wish, weight_of_slice};
use trainyard::gpu::{Card, Driver, Facts, Instances, Inventory, Link, Signs, Slice, Topology, Usage};
use trainyard::ids::{JobKey, Timestamp};
use trainyard::plan::{Amount, Kept, Live, OneByOne, Place, Plan, Queue, Snapshot, Step, Waiting, Why, plan};

use super::simulation::{Machine, Named, Scheduler, Timed, simulate};
use super::{LOAD, MINUTE, PASSES, Random, WORKSPACES, addresses, live_with, quotas, shares, waiting_with};

const GIB: u64 = 1 << 30;
const PROFILE: &str = "1g.10gb";
const SLICES: u64 = 7;

/// Cards of 80 GiB; each eighth is cut up.
fn inventory(count: usize) -> Arc<Inventory> {
    let slice = |place: usize, number: u64| Slice {
        uuid: format!("MIG-{place}-{number}").parse().unwrap(),
        profile: PROFILE.to_owned(),
        memory: Some(10 * GIB),
        unreachable: None,
        instances: Some(Instances { gpu: number as u32, compute: 0 }),
    };
    let card = |place: usize| {
        let is_cut_up = place % 8 == 7;
        Card {
            facts: Facts {
                uuid: format!("GPU-{place}").parse().unwrap(),
                name: "NVIDIA H100 80GB HBM3".to_owned(),
                minor: Some(place as u32),
                bus: String::new(),
                numa_node: None,
                cpus: Vec::new(),
                memory: Some(80 * GIB + RESERVE),
            },
            mig: is_cut_up,
            slices: (0..SLICES).filter(|_| is_cut_up).map(|number| slice(place, number)).collect(),
            signs: Signs::default(),
            findings: Vec::new(),
            usage: None,
        }
    };
    let topology = Topology::of(count, |_, _| Link::System);
    let driver = Driver::Loaded { version: "1".to_owned(), cuda: None };
    Arc::new(Inventory {
        driver,
        cards: (0..count).map(card).collect(),
        nameless: Vec::new(),
        topology,
        at: None,
        took_ms: 0,
    })
}

/// As they are looked at when nobody uses them.
pub(super) fn unused(count: usize, at: u64) -> Arc<Inventory> {
    let mut seen = Arc::unwrap_or_clone(inventory(count));
    let usage = || Usage { processes: Some(Vec::new()), ..Usage::default() };
    seen.cards.iter_mut().for_each(|card| card.usage = Some(usage()));
    Arc::new(Inventory { at: Some(Timestamp(at)), ..seen })
}

fn deck(count: usize) -> Deck {
    Deck::of(inventory(count), |_| true)
}

#[derive(Debug, Clone)]
struct Job {
    arrives: u64,
    takes: u64,
    says: Option<u64>,
    workspace: usize,
    wish: Wish,
}

fn wish(part: Part, count: u64) -> Wish {
    Wish { tasks: 1, count: count as u32, part, kind: None }
}

fn weight(wish: &Wish, sizes: &Sizes) -> u64 {
    let one = match &wish.part {
        Part::Whole => CARD,
        Part::Share(bytes) => sizes.weight(*bytes, None),
        Part::Slice(profile) => weight_of_slice(profile),
    };
    one * u64::from(wish.count)
}

fn key(number: usize, job: &Job) -> JobKey {
    format!("w{}/j{number}", job.workspace).parse().unwrap()
}

fn amount(wish: &Wish, sizes: &Sizes) -> Amount {
    Amount { cpu: 1, memory: 1, gpu: weight(wish, sizes) }
}

fn waiting(number: usize, job: &Job, sizes: &Sizes) -> (Place, Waiting) {
    let wishes = [job.wish.clone()].into();
    waiting_with(number, key(number, job), (amount(&job.wish, sizes), wishes), (job.arrives, job.says))
}

fn live(number: usize, job: &Job, pieces: Vec<Piece>, now: u64, sizes: &Sizes) -> Live {
    Live { pieces, ..live_with(key(number, job), amount(&job.wish, sizes), job.says, now) }
}

/// Half of the jobs want a share, a few a slice, the others whole cards, a few of them nearly all.
fn workload(cards: usize, count: usize) -> Vec<Job> {
    let mut random = Random(cards as u64);
    let whole = (cards - cards / 8) as u64;
    let mut jobs: Vec<Job> = (0..count)
        .map(|_| {
            let wish = match random.below(100) {
                0..50 => wish(Part::Share((4 + random.below(36)) * GIB), 1),
                50..60 => wish(Part::Slice(PROFILE.to_owned()), 1 + random.below(2)),
                60..85 => wish(Part::Whole, 1),
                85..95 => wish(Part::Whole, 2),
                95..99 => wish(Part::Whole, (whole / 4).max(1)),
                _ => wish(Part::Whole, whole),
            };
            let takes = (MINUTE as f64 * 1440f64.powf(random.part())) as u64;
            let limit = takes + (takes as f64 * 2.0 * random.part()) as u64;
            let says = (random.below(10) < 8).then_some(limit);
            Job { arrives: 0, takes, says, workspace: random.below(WORKSPACES as u64) as usize, wish }
        })
        .collect();
    let sizes = Sizes::of(&inventory(cards));
    let work: f64 = jobs.iter().map(|job| weight(&job.wish, &sizes) as f64 * job.takes as f64).sum();
    let between = work / (cards as f64 * CARD as f64 * LOAD) / count as f64;
    let mut now = 0.0;
    for job in &mut jobs {
        now += -random.part().ln() * between;
        job.arrives = now as u64;
    }
    jobs
}

/// What a plan costs, with a card of eight free: the first in the queue wants more, the others mostly a share.
pub(super) fn pass_of_the_plan(count: usize, all_differ: bool) -> Duration {
    let deck = deck(8);
    let sizes = Sizes::of(&inventory(8));
    let mut jobs = workload(8, count);
    jobs[0].wish = wish(Part::Whole, 4);
    jobs.iter_mut().for_each(|job| job.arrives = 0);
    let queue: Queue = jobs
        .iter_mut()
        .enumerate()
        .map(|(number, job)| {
            if let Part::Share(bytes) = &mut job.wish.part
                && all_differ
            {
                *bytes += number as u64;
            }
            waiting(number, job, &sizes)
        })
        .collect();
    let one =
        |bytes| Job { arrives: 0, takes: 0, says: Some(3_600_000), workspace: 0, wish: wish(Part::Share(bytes), 1) };
    let held = (0..6).flat_map(|place| (0..4).map(move |part| (place, part)));
    let lives = held.map(|(place, part)| {
        let piece = Piece { place, of: PieceOf::Share { bytes: 20 * GIB, of: 80 * GIB } };
        live(1_000_000 + place * 4 + part, &one(20 * GIB), vec![piece], 0, &sizes)
    });
    let (shares, quotas) = (shares(), quotas());
    let snapshot = Snapshot {
        now: Timestamp(1),
        inventory: Amount { cpu: 1 << 40, memory: 1 << 40, gpu: 8 * CARD },
        away: Vec::new(),
        one_by_one: Some(OneByOne { all: deck, away: Vec::new(), kept: None }),
        addresses: addresses(),
        last_block: None,
        live: lives.collect(),
        queue: &queue,
        reserved: None,
        shares: &shares,
        quotas: &quotas,
    };
    let first = plan(&snapshot);
    assert!(first.kept.is_some() && !first.steps.is_empty(), "something is kept, and others start beside it");
    let from = Instant::now();
    for _ in 0..PASSES {
        std::hint::black_box(plan(std::hint::black_box(&snapshot)));
    }
    from.elapsed() / PASSES
}

impl Timed for Job {
    fn arrives(&self) -> u64 {
        self.arrives
    }

    fn takes(&self) -> u64 {
        self.takes
    }
}

struct Trainyard {
    all: Deck,
    sizes: Sizes,
    queue: Queue,
    live: BTreeMap<usize, Live>,
    shares: trainyard::plan::Shares,
    reserved: Option<JobKey>,
    kept: Option<Kept>,
    jobs: Vec<Job>,
}

impl Scheduler<Job, Vec<Piece>> for Trainyard {
    fn arrives(&mut self, number: usize, job: &Job) {
        let (place, waiting) = waiting(number, job, &self.sizes);
        self.queue.insert(place, waiting);
    }

    fn ends(&mut self, number: usize, now: u64) {
        let live = self.live.remove(&number).unwrap();
        self.shares.add(&live.key.workspace, &live.amount, live.held_since, Timestamp(now));
    }

    fn decide(&mut self, now: u64) -> Vec<(usize, Vec<Piece>)> {
        let quotas = quotas();
        let snapshot = Snapshot {
            now: Timestamp(now),
            inventory: Amount { cpu: 1 << 40, memory: 1 << 40, gpu: u64::MAX },
            away: Vec::new(),
            one_by_one: Some(OneByOne { all: self.all.clone(), away: Vec::new(), kept: self.kept.take() }),
            addresses: addresses(),
            last_block: None,
            live: self.live.values().cloned().collect(),
            queue: &self.queue,
            reserved: self.reserved.as_ref(),
            shares: &self.shares,
            quotas: &quotas,
        };
        let Plan { steps, held_up, kept, .. } = plan(&snapshot);
        self.kept = kept;
        self.reserved = held_up.into_iter().find(|held_up| held_up.why == Why::Room).map(|held_up| held_up.key);
        let mut started = Vec::new();
        for step in steps {
            let Step::Start { key, pieces: Some(pieces), .. } = step else { panic!("{step:?}") };
            let number: usize = key.job.as_str()[1..].parse().unwrap();
            let pieces: Vec<Piece> = pieces.into_iter().flatten().collect();
            self.queue.remove(&key);
            self.live.insert(number, live(number, &self.jobs[number], pieces.clone(), now, &self.sizes));
            started.push((number, pieces));
        }
        started
    }
}

/// First come, first served: nobody overtakes anybody.
struct Fifo {
    all: Deck,
    held: BTreeMap<usize, Vec<Piece>>,
    queue: VecDeque<(usize, Wish)>,
}

impl Scheduler<Job, Vec<Piece>> for Fifo {
    fn arrives(&mut self, number: usize, job: &Job) {
        self.queue.push_back((number, job.wish.clone()));
    }

    fn ends(&mut self, number: usize, _: u64) {
        self.held.remove(&number);
    }

    fn decide(&mut self, _: u64) -> Vec<(usize, Vec<Piece>)> {
        let mut started = Vec::new();
        while let Some((number, wish)) = self.queue.front().cloned() {
            let left = self.all.without(self.held.values().flatten());
            let Some(chosen) = left.choose(&[wish]) else { break };
            let pieces: Vec<Piece> = chosen.into_iter().flatten().collect();
            self.queue.pop_front();
            self.held.insert(number, pieces.clone());
            started.push((number, pieces));
        }
        started
    }
}

/// What is held of each card, as plainly as can be.
struct Ledger {
    sizes: Sizes,
    cards: usize,
    holders: BTreeMap<usize, Vec<(usize, PieceOf)>>,
    held: u64,
}

impl Machine<Job, Vec<Piece>> for Ledger {
    fn start(&mut self, number: usize, job: &Job, pieces: Vec<Piece>) {
        self.held += weight(&job.wish, &self.sizes);
        for Piece { place, of } in pieces {
            let holders = self.holders.entry(place).or_default();
            let is_twice = matches!(of, PieceOf::Slice { .. }) && holders.iter().any(|(_, other)| *other == of);
            assert!(!is_twice, "a slice has one holder: {holders:?}");
            holders.push((number, of));
            let is_whole = holders.iter().any(|(_, of)| *of == PieceOf::Whole);
            assert!(!is_whole || holders.len() == 1, "a whole card has one holder: {holders:?}");
            let bytes = holders.iter().map(|(_, of)| if let PieceOf::Share { bytes, .. } = of { *bytes } else { 0 });
            assert!(bytes.sum::<u64>() <= 80 * GIB, "no more than the card has: {holders:?}");
        }
    }

    fn end(&mut self, number: usize, job: &Job) {
        self.held -= weight(&job.wish, &self.sizes);
        self.holders.values_mut().for_each(|holders| holders.retain(|(holder, _)| *holder != number));
    }

    fn held(&self) -> u64 {
        self.held
    }

    fn all(&self) -> u64 {
        self.cards as u64 * CARD
    }
}

fn sort_of(wish: &Wish) -> usize {
    match wish.part {
        Part::Whole if wish.count > 2 => 2,
        Part::Whole => 1,
        Part::Share(_) | Part::Slice(_) => 0,
    }
}

/// Nobody is starved: neither shares by whole cards, nor whole cards by shares.
pub(super) fn compare(count: usize) {
    println!(
        "\n{count} jobs, half of which want a share of a card, a tenth slices; 8 of 10 say how long they take; load {LOAD}"
    );
    println!(
        "{:<7}{:<12}{:>13}{:>13}{:>12}{:>30}",
        "cards", "scheduler", "decisions/s", "utilisation", "mean wait", "longest: part, 1 or 2, more"
    );
    for cards in [8, 64] {
        let jobs = workload(cards, count);
        let fifo = Fifo { all: deck(cards), held: BTreeMap::new(), queue: VecDeque::new() };
        let trainyard = Trainyard {
            all: deck(cards),
            sizes: Sizes::of(&inventory(cards)),
            queue: Queue::default(),
            live: BTreeMap::new(),
            shares: shares(),
            reserved: None,
            kept: None,
            jobs: jobs.clone(),
        };
        let schedulers: [Named<Job, Vec<Piece>>; 2] = [("fifo", Box::new(fifo)), ("trainyard", Box::new(trainyard))];
        for (name, mut scheduler) in schedulers {
            let sizes = Sizes::of(&inventory(cards));
            let mut ledger = Ledger { sizes, cards, holders: BTreeMap::new(), held: 0 };
            let outcome = simulate(&jobs, scheduler.as_mut(), &mut ledger);
            let hours = |wait: Duration| format!("{:.1} h", wait.as_secs_f64() / 3600.0);
            // Of those that want a share or a slice, one or two cards, and more.
            let longest = [0, 1, 2].map(|sort| {
                let own = jobs.iter().zip(&outcome.waits).filter(|(job, _)| sort_of(&job.wish) == sort);
                hours(Duration::from_millis(own.map(|(_, wait)| *wait).max().unwrap_or(0)))
            });
            let (per_s, utilisation) = (outcome.decisions_per_s, 100.0 * outcome.utilisation);
            let (mean, longest) = (hours(outcome.mean_wait()), longest.join(", "));
            println!("{cards:<7}{name:<12}{per_s:>13.0}{utilisation:>12.1}%{mean:>12}{longest:>30}");
        }
    }
}
