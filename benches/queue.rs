//! The queue: 100,000 jobs on 8 to 1,024 cards in simulated time, by Trainyard's own plan and, for comparison, by two schedulers
//! that are written here: first come, first served, and EASY backfill. And what a pass costs with many that wait.
//!
//!     cargo bench --bench queue [JOBS]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "queue/shares.rs"]
mod shares_of_cards;
#[path = "queue/simulation.rs"]
mod simulation;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use simulation::{Machine, Named, Scheduler, Timed, simulate};
use trainyard::config::{AddressRange, Quotas};
use trainyard::gpu::deck::{CARD, Part, Wish};
use trainyard::ids::{JobKey, Timestamp};
use trainyard::intake::Arrival;
use trainyard::plan::{Amount, Live, Place, Plan, Queue, Shares, Snapshot, Step, Waiting, Why, plan};
use trainyard::reconcile::{Caller, Event, EventPart, JobDetail, Reconciler, Request, RunPart, Settings};
use trainyard::spec::{Main, MinSucceeded, Network, OnOverrun, Priority, parse};
use trainyard::status::RoleTally;
use trainyard::store::memory::MemoryStore;
use trainyard::store::record::{Owner, SourceRecord};

const JOBS: usize = 100_000;
const CARDS: [u64; 4] = [8, 64, 256, 1024];
const WORKSPACES: usize = 8;
/// What is asked for, as a part of what the machine has.
const LOAD: f64 = 0.6;
/// Of so many jobs in ten it is said how long they take at most: one to three times as long as they do.
const SAID: [u64; 2] = [10, 8];
/// What EASY takes for the others, since it must take something: longer than any takes.
const UNSAID_MS: u64 = 72 * 3_600_000;
const MINUTE: u64 = 60_000;

/// Random numbers that are the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From 0 to 1, without 0.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    arrives: u64,
    cards: u64,
    takes: u64,
    /// How long it says that it takes at most.
    says: Option<u64>,
    workspace: usize,
}

/// Most jobs are small and short; some take a quarter of the machine, a few all of it.
fn workload(cards: u64, count: usize, said: u64) -> Vec<Job> {
    let mut random = Random(cards);
    let mut jobs: Vec<Job> = (0..count)
        .map(|_| {
            let size = match random.below(100) {
                0..40 => 1,
                40..65 => 2,
                65..80 => 4,
                80..90 => 8,
                90..95 => cards / 16,
                95..99 => cards / 4,
                _ => cards,
            };
            // From a minute to a day, as many from 1 to 2 as from 2 to 4 minutes.
            let takes = (MINUTE as f64 * 1440f64.powf(random.part())) as u64;
            let limit = takes + (takes as f64 * 2.0 * random.part()) as u64;
            let says = (random.below(10) < said).then_some(limit);
            Job {
                arrives: 0,
                cards: size.clamp(1, cards),
                takes,
                says,
                workspace: random.below(WORKSPACES as u64) as usize,
            }
        })
        .collect();
    let work: f64 = jobs.iter().map(|job| job.cards as f64 * job.takes as f64).sum();
    let between = work / (cards as f64 * LOAD) / count as f64;
    let mut now = 0.0;
    for job in &mut jobs {
        now += -random.part().ln() * between;
        job.arrives = now as u64;
    }
    jobs
}

impl Timed for Job {
    fn arrives(&self) -> u64 {
        self.arrives
    }

    fn takes(&self) -> u64 {
        self.takes
    }
}

/// Cards that are counted.
struct Cards {
    all: u64,
    free: u64,
}

impl Machine<Job, ()> for Cards {
    fn start(&mut self, _: usize, job: &Job, (): ()) {
        self.free = self.free.checked_sub(job.cards).expect("no more than there is");
    }

    fn end(&mut self, _: usize, job: &Job) {
        self.free += job.cards;
    }

    fn held(&self) -> u64 {
        self.all - self.free
    }

    fn all(&self) -> u64 {
        self.all
    }
}

/// The plan that the daemon uses.
struct Trainyard {
    inventory: Amount,
    queue: Queue,
    live: Vec<Live>,
    shares: Shares,
    quotas: Quotas,
    reserved: Option<JobKey>,
    numbers: HashMap<JobKey, usize>,
    jobs: Vec<Job>,
}

fn addresses() -> AddressRange {
    AddressRange { base: 0x0ad5_0000, prefix: 16 }
}

fn shares() -> Shares {
    Shares::new(Duration::from_secs(7 * 24 * 3600))
}

fn quotas() -> Quotas {
    Quotas::new()
}

fn key(number: usize, job: &Job) -> JobKey {
    format!("w{}/j{number}", job.workspace).parse().unwrap()
}

fn amount(cards: u64) -> Amount {
    Amount { cpu: cards * 4000, memory: cards << 34, gpu: cards * CARD }
}

fn wishes(cards: u64) -> Arc<[Wish]> {
    let count = u32::try_from(cards).unwrap();
    [Wish { tasks: 1, count, part: Part::Whole, kind: None }].into()
}

fn waiting(number: usize, job: &Job) -> (Place, Waiting) {
    let wanted = (amount(job.cards), wishes(job.cards));
    waiting_with(number, key(number, job), wanted, (job.arrives, job.says))
}

/// What waits for so much since then, and says how long it takes.
fn waiting_with(
    number: usize,
    key: JobKey,
    (amount, wishes): (Amount, Arc<[Wish]>),
    (since, says): (u64, Option<u64>),
) -> (Place, Waiting) {
    let waiting = Waiting {
        key,
        amount,
        wishes,
        tasks: 1,
        network: Network::Host,
        ports: Vec::new(),
        since: Timestamp(since),
        lasts: says.map(Duration::from_millis),
        expected: None,
    };
    (Place { priority: Reverse(Priority::NORMAL), order: number as u64 }, waiting)
}

fn live(key: JobKey, job: &Job, now: u64) -> Live {
    live_with(key, amount(job.cards), job.says, now)
}

fn live_with(key: JobKey, amount: Amount, says: Option<u64>, now: u64) -> Live {
    let tally = RoleTally {
        name: "main".parse().unwrap(),
        count: 1,
        main: Main::No,
        serves: false,
        min_failed: Some(1),
        min_succeeded: MinSucceeded::All,
        succeeded: 0,
        failed: 0,
        stopped: 0,
        first: None,
    };
    Live {
        key,
        amount,
        lost: 0,
        pieces: Vec::new(),
        over_share: None,
        block: None,
        ports: Vec::new(),
        tallies: vec![tally],
        first_failure: None,
        all_ended: false,
        held_since: Timestamp(now),
        running_since: Some(Timestamp(now)),
        kept_until: None,
        max_duration: says.map(Duration::from_millis),
        expected_duration: None,
        on_overrun: OnOverrun::Alert,
        overrun_told: false,
        idle: None,
        gpu_failure: None,
        wanted_stop: None,
        verdict: None,
        released: false,
        releasing: false,
        attempts_left: 0,
        retried: true,
    }
}

impl Trainyard {
    fn new(cards: u64, jobs: &[Job]) -> Self {
        Self {
            inventory: amount(cards),
            queue: Queue::default(),
            live: Vec::new(),
            shares: shares(),
            quotas: quotas(),
            reserved: None,
            numbers: HashMap::new(),
            jobs: jobs.to_vec(),
        }
    }
}

impl Scheduler<Job, ()> for Trainyard {
    fn arrives(&mut self, number: usize, job: &Job) {
        let (place, waiting) = waiting(number, job);
        self.numbers.insert(waiting.key.clone(), number);
        self.queue.insert(place, waiting);
    }

    fn ends(&mut self, number: usize, now: u64) {
        let ended = key(number, &self.jobs[number]);
        let at = self.live.iter().position(|live| live.key == ended).unwrap();
        let live = self.live.swap_remove(at);
        self.shares.add(&live.key.workspace, &live.amount, live.held_since, Timestamp(now));
    }

    fn decide(&mut self, now: u64) -> Vec<(usize, ())> {
        let snapshot = Snapshot {
            now: Timestamp(now),
            inventory: self.inventory,
            away: Vec::new(),
            one_by_one: None,
            addresses: addresses(),
            last_block: None,
            live: std::mem::take(&mut self.live),
            queue: &self.queue,
            reserved: self.reserved.as_ref(),
            shares: &self.shares,
            quotas: &self.quotas,
        };
        let Plan { steps, held_up, .. } = plan(&snapshot);
        self.live = snapshot.live;
        self.reserved = held_up.into_iter().find(|held_up| held_up.why == Why::Room).map(|held_up| held_up.key);
        let mut started = Vec::new();
        for step in steps {
            let Step::Start { key, .. } = step else { panic!("{step:?}") };
            let number = self.numbers[&key];
            self.queue.remove(&key);
            self.live.push(live(key, &self.jobs[number], now));
            started.push((number, ()));
        }
        started
    }
}

/// First come, first served: nobody overtakes anybody.
struct Fifo {
    free: u64,
    jobs: Vec<Job>,
    queue: std::collections::VecDeque<usize>,
}

impl Scheduler<Job, ()> for Fifo {
    fn arrives(&mut self, number: usize, _: &Job) {
        self.queue.push_back(number);
    }

    fn ends(&mut self, number: usize, _: u64) {
        self.free += self.jobs[number].cards;
    }

    fn decide(&mut self, _: u64) -> Vec<(usize, ())> {
        let mut started = Vec::new();
        while let Some(first) = self.queue.front().copied().filter(|first| self.jobs[*first].cards <= self.free) {
            self.queue.pop_front();
            self.free -= self.jobs[first].cards;
            started.push((first, ()));
        }
        started
    }
}

/// EASY backfill as the literature has it, over one queue: everybody is taken at their word, and who says nothing for the longest.
struct Easy {
    free: u64,
    jobs: Vec<Job>,
    queue: Vec<usize>,
    /// When each that runs should end.
    running: BTreeMap<usize, u64>,
}

impl Easy {
    fn says(&self, number: usize) -> u64 {
        self.jobs[number].says.unwrap_or(UNSAID_MS)
    }

    fn start(&mut self, number: usize, now: u64) {
        self.free -= self.jobs[number].cards;
        self.running.insert(number, now + self.says(number));
    }

    /// When the first fits, and what is over then.
    fn shadow(&self, first: usize) -> (u64, u64) {
        let mut ends: Vec<(u64, u64)> =
            self.running.iter().map(|(number, end)| (*end, self.jobs[*number].cards)).collect();
        ends.sort_unstable();
        let mut free = self.free;
        for (end, cards) in ends {
            free += cards;
            if free >= self.jobs[first].cards {
                return (end, free - self.jobs[first].cards);
            }
        }
        unreachable!("it fits when nothing runs")
    }
}

impl Scheduler<Job, ()> for Easy {
    fn arrives(&mut self, number: usize, _: &Job) {
        self.queue.push(number);
    }

    fn ends(&mut self, number: usize, _: u64) {
        self.free += self.jobs[number].cards;
        self.running.remove(&number);
    }

    fn decide(&mut self, now: u64) -> Vec<(usize, ())> {
        let mut started = Vec::new();
        let mut queue = std::mem::take(&mut self.queue).into_iter().peekable();
        while let Some(first) = queue.next_if(|first| self.jobs[*first].cards <= self.free) {
            self.start(first, now);
            started.push((first, ()));
        }
        if let Some(first) = queue.next() {
            let (at, mut spare) = self.shadow(first);
            self.queue.push(first);
            for number in queue {
                let cards = self.jobs[number].cards;
                let in_time = now + self.says(number) <= at;
                if cards <= self.free && (in_time || cards <= spare) {
                    spare -= if in_time { 0 } else { cards };
                    self.start(number, now);
                    started.push((number, ()));
                } else {
                    self.queue.push(number);
                }
            }
        }
        started
    }
}

fn compare(count: usize, said: u64) {
    println!("\n{count} jobs, {said} of 10 of which say how long they take at most; load {LOAD}");
    println!(
        "{:<7}{:<12}{:>13}{:>13}{:>12}{:>12}{:>14}",
        "cards", "scheduler", "decisions/s", "utilisation", "mean wait", "p95 wait", "longest wait"
    );
    for cards in CARDS {
        let jobs = workload(cards, count, said);
        let fifo = Fifo { free: cards, jobs: jobs.clone(), queue: Default::default() };
        let easy = Easy { free: cards, jobs: jobs.clone(), queue: Vec::new(), running: BTreeMap::new() };
        let schedulers: [Named<Job, ()>; 3] =
            [("fifo", Box::new(fifo)), ("easy", Box::new(easy)), ("trainyard", Box::new(Trainyard::new(cards, &jobs)))];
        for (name, mut scheduler) in schedulers {
            let mut outcome = simulate(&jobs, scheduler.as_mut(), &mut Cards { all: cards, free: cards });
            outcome.waits.sort_unstable();
            let waits = &outcome.waits;
            let hours = |ms: u64| format!("{:.2} h", ms as f64 / 3_600_000.0);
            println!(
                "{cards:<7}{name:<12}{:>13.0}{:>12.1}%{:>12}{:>12}{:>14}",
                outcome.decisions_per_s,
                100.0 * outcome.utilisation,
                hours(outcome.mean_wait().as_millis() as u64),
                hours(waits[waits.len() * 95 / 100]),
                hours(*waits.last().unwrap())
            );
        }
    }
}

const PASSES: u32 = 50;

/// One job of many has ended and a card is free; everybody wants one or more. The worst case is that all want something else.
fn pass_of_the_plan(count: usize, shapes: u64) -> Duration {
    let jobs = workload(64, count, 8);
    let queue: Queue = jobs
        .iter()
        .enumerate()
        .map(|(number, job)| {
            let (place, mut waiting) = waiting(number, job);
            waiting.amount.memory += number as u64 % shapes;
            (place, waiting)
        })
        .collect();
    let running = Job { arrives: 0, cards: 1, takes: 0, says: Some(3_600_000), workspace: 0 };
    let lives = (0..64).map(|number| live(key(1_000_000 + number, &running), &running, 0)).collect();
    let (shares, quotas) = (shares(), quotas());
    // The first in the queue takes more than is free.
    let snapshot = Snapshot {
        now: Timestamp(1),
        inventory: amount(65),
        away: Vec::new(),
        one_by_one: None,
        addresses: addresses(),
        last_block: None,
        live: lives,
        queue: &queue,
        reserved: None,
        shares: &shares,
        quotas: &quotas,
    };
    let from = Instant::now();
    for _ in 0..PASSES {
        std::hint::black_box(plan(std::hint::black_box(&snapshot)));
    }
    from.elapsed() / PASSES
}

/// What jobs want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Memory,
    /// Of cards.
    Shares,
}

fn key_of(number: usize) -> JobKey {
    format!("w{}/job{number}", number % WORKSPACES).parse().unwrap()
}

fn arrival(number: usize, of: Of) -> Arrival {
    let resources = match of {
        Of::Memory => format!("resources.memory = \"{}MiB\"", 96 + number % 100),
        Of::Shares => format!("resources.gpu_memory = \"{}MiB\"", 8000 + number % 100),
    };
    let minutes = 10 + number % 50;
    let text = format!("command = \"true\"\nnetwork = \"host\"\nmax_duration = \"{minutes}m\"\n{resources}\n");
    let spec = parse("job.toml", &text).0.unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let source = SourceRecord::new(text, spec.meaning(), owner);
    let key = key_of(number);
    Arrival::Accepted { key, source, spec: Box::new(spec) }
}

/// What the daemon takes, but for the store and the files, while so many wait.
struct Daemon {
    /// A file is dropped.
    usual: Duration,
    /// The same, once in ten seconds, when the places of the first are looked at.
    looking: Duration,
    /// Somebody asks for the last in the queue by its name: its place, and when it may start.
    asked: Duration,
    /// `ps` of somebody who may see none of the jobs, and of root, who sees all.
    list_of_none: Duration,
    list_of_all: Duration,
}

fn list(reconciler: &mut Reconciler<MemoryStore>, uid: u32, now: u64) -> Duration {
    let caller = Caller::named(uid, String::new());
    let answer = Box::new(|listing| drop(std::hint::black_box(listing)));
    let from = Instant::now();
    reconciler.handle(Event::Request(Request::List { caller, answer }), Timestamp(now));
    from.elapsed()
}

fn ask_for_the_last(reconciler: &mut Reconciler<MemoryStore>, number: usize, of: Of, now: u64) -> Duration {
    let caller = Caller::root();
    let (told, heard) = std::sync::mpsc::channel();
    let answer = Box::new(move |detail| told.send(detail).unwrap());
    let (key, runs, events) = (key_of(number), RunPart { newest: 1, also: None }, EventPart::None);
    let from = Instant::now();
    reconciler.handle(Event::Request(Request::Show { caller, key, runs, events, answer }), Timestamp(now));
    let took = from.elapsed();
    let detail: JobDetail = heard.recv().unwrap().unwrap();
    let waiting = detail.report.waiting.unwrap();
    // Where hardly two want the same of the cards, those at the end are told about when.
    assert!(waiting.starts_by.is_some() || (of == Of::Shares && waiting.starts_about.is_some()), "{waiting:?}");
    took
}

fn of_the_daemon(count: usize, of: Of) -> Daemon {
    let cpu = if of == Of::Memory { 1000 } else { 1 << 40 };
    let inventory = Amount { cpu, memory: 1 << 40, gpu: 0 };
    let settings = Settings {
        inventory,
        addresses: addresses(),
        stop_grace: Duration::from_secs(10),
        half_life: Duration::from_secs(7 * 24 * 3600),
        usage_keep: Duration::from_secs(400 * 24 * 3600),
        min_free: 0,
        quotas: quotas(),
    };
    let mut reconciler = Reconciler::open(MemoryStore::default(), settings, Timestamp(0)).unwrap();
    let see_cards = |reconciler: &mut Reconciler<MemoryStore>, now: u64| {
        if of == Of::Shares {
            reconciler.handle(Event::Gpus(shares_of_cards::unused(8, now)), Timestamp(now));
        }
    };
    see_cards(&mut reconciler, 20_000);
    reconciler.handle(Event::Files((0..=count).map(|number| arrival(number, of)).collect()), Timestamp(20_000));
    reconciler.pass(Timestamp(20_000)).unwrap();
    let timed = |reconciler: &mut Reconciler<MemoryStore>, number: usize, now: u64| {
        see_cards(reconciler, now);
        let arrived = Event::Files(vec![arrival(number, of)]);
        let from = Instant::now();
        reconciler.handle(arrived, Timestamp(now));
        std::hint::black_box(reconciler.pass(Timestamp(now)).unwrap());
        from.elapsed()
    };
    let mut all: Vec<Duration> =
        (1..=PASSES).map(|more| timed(&mut reconciler, count + more as usize, 20_001 + u64::from(more))).collect();
    all.sort_unstable();
    Daemon {
        usual: all[all.len() / 2],
        looking: timed(&mut reconciler, count + 1000, 40_000),
        asked: ask_for_the_last(&mut reconciler, count + 1000, of, 45_000),
        list_of_none: list(&mut reconciler, 1000, 50_000),
        list_of_all: list(&mut reconciler, 0, 60_000),
    }
}

const WAITING: [usize; 3] = [1000, 10_000, 100_000];

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(JOBS);
    println!(
        "{:<10}{:>16}{:>18}{:>20}{:>20}{:>20}{:>20}{:>20}",
        "waiting",
        "plan, alike",
        "plan, all differ",
        "daemon, a new job",
        "with places",
        "the last by name",
        "ps of no job",
        "ps of all jobs"
    );
    for waiting in WAITING {
        let Daemon { usual, looking, asked, list_of_none, list_of_all } = of_the_daemon(waiting, Of::Memory);
        let (alike, all_differ) = (pass_of_the_plan(waiting, 1), pass_of_the_plan(waiting, u64::MAX));
        println!(
            "{waiting:<10}{alike:>16.1?}{all_differ:>18.1?}{usual:>20.1?}{looking:>20.1?}{asked:>20.1?}{list_of_none:>20.1?}{list_of_all:>20.1?}"
        );
    }
    println!("\nwith shares of cards, slices and whole cards");
    println!(
        "{:<10}{:>16}{:>18}{:>20}{:>20}{:>20}{:>20}",
        "waiting",
        "plan, few sizes",
        "plan, all differ",
        "daemon, a new job",
        "with places",
        "the last by name",
        "ps of all jobs"
    );
    for waiting in WAITING {
        let Daemon { usual, looking, asked, list_of_all, .. } = of_the_daemon(waiting, Of::Shares);
        let [few, differ] = [false, true].map(|differ| shares_of_cards::pass_of_the_plan(waiting, differ));
        println!(
            "{waiting:<10}{few:>16.1?}{differ:>18.1?}{usual:>20.1?}{looking:>20.1?}{asked:>20.1?}{list_of_all:>20.1?}"
        );
    }
    SAID.into_iter().for_each(|said| compare(count, said));
    shares_of_cards::compare(count / 5);
}
