//! The daemon in a world of its own: a clock, an engine and a store that the test controls. Random histories of drops,
//! edits, stops, task ends, lost shims, failing commits and crashes; the invariants hold after every step, and in the
//! end everything has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use trainyard::config::{AddressRange, Quota, Quotas};
use trainyard::engine::{EngineError, Launch};
use trainyard::gpu::{
    Card, Driver, Facts, Held, Instances, Inventory, Link, Measured, Process, Sample, Signs, Slice, Topology, Usage,
    deck, health,
};
use trainyard::ids::{AttemptId, GpuUuid, JobKey, TaskId, Timestamp, WorkspaceName};
use trainyard::intake::Arrival;
use trainyard::plan::Amount;
use trainyard::reconcile::{Caller, Event, Free, Outcome, Reconciler, Refusal, Request, Settings, Verb, Work};
use trainyard::rundir::{Found, Loss};
use trainyard::spec::{JobSpec, parse};
use trainyard::status::{EndRecord, State, StopCause, StopHow, TaskEnd};
use trainyard::store::Store;
use trainyard::store::fault::{Fault, FaultStore};
use trainyard::store::memory::MemoryStore;
use trainyard::store::record::{GpuLease, GpuPartLease, Owner, RunRecord, SourceRecord};

use super::invariants;
use super::queue::stranger;

mod full_disk;
mod quotas;

const INVENTORY: Amount = Amount { cpu: 4000, memory: 8 << 30, gpu: 0 };
const SPECS: [&str; 17] = [
    "command = 'a'",
    "command = 'b'\nretries = 2\n[roles.w]\ncount = 2",
    "command = 'f'\nretries = 1\n[roles.w]\ncount = 2\nretries = 2\n[roles.ps]\nretries = 1",
    "command = 'c'\n[roles.ps]\n[roles.w]\ncount = 3",
    "command = 'd'\nstate = 'stopped'",
    "command = 'g'\nretries = 1\nresources.gpu = 1",
    "command = 'h'\n[roles.w]\ncount = 2\nretries = 1\nresources.gpu = 1\n[roles.ps]",
    "command = 'i'\nresources.gpu = 3",
    "command = 'j'\nretries = 2\nresources.gpu = 1\non_gpu_failure = 'retry'",
    "command = 'k'\nresources.gpu = 2\non_gpu_failure = 'stop'\nalerts.gpu_idle = { for = '10s', then = 'stop' }",
    "command = 'j'\nretries = 1\nresources.gpu_memory = '30GiB'",
    "command = 'k'\nresources.gpu_memory_over = 'alert'\n[roles.w]\ncount = 2\nresources.gpu_memory = '50GiB'\n[roles.v]\nresources.gpu = 1",
    "command = 'l'\nresources = { mig = '1g.10gb', gpu = 2 }",
    "command = 'm'\nresources = { gpu = 1, gpu_type = 'odd' }",
    "command = 'e'\nmax_duration = '1s'\n[roles.chief]\nmain = true\n[roles.w]\ncount = 2",
    "command = 'n'\ncode = 'c'\ndatasets = ['d']",
    "command = 'o'\ncode = 'c'\ndatasets = ['model:x', 'e@v1']\nretries = 1",
];
const JOBS: usize = 3;
/// Bytes that are free where new runs may start.
const MIN_FREE: u64 = 1 << 30;
const VERBS: [Verb; 4] =
    [Verb::Stop { how: StopHow::WithGrace }, Verb::Rerun, Verb::Remove, Verb::Stop { how: StopHow::AtOnce }];

/// One thing that the world does.
#[derive(Debug, Clone)]
enum Step {
    Drop {
        job: usize,
        spec: usize,
    },
    RemoveFile {
        job: usize,
    },
    Ask {
        job: usize,
        verb: usize,
    },
    /// Carry out one of the works that wait.
    Work {
        which: usize,
    },
    /// A running task does what tasks do.
    Task {
        which: usize,
        what: usize,
    },
    /// The daemon dies and is started again; works that were under way are lost, some after they were done.
    Crash {
        done: bool,
    },
    /// The daemon's next commit fails, which ends it.
    FailCommit,
    Wait {
        ms: u64,
    },
    /// A stranger takes a port that every job wants, or lets it go.
    Stranger {
        busy: bool,
    },
    /// The workspace has no room any more, or has it again.
    Room {
        full: bool,
    },
    /// The disk is full, so that nothing can be recorded, or has room again.
    Disk {
        full: bool,
    },
    /// Less is free on the disk than new runs need, or enough.
    Free {
        low: bool,
    },
    /// A card fails, is well again, or is used by a stranger, or no longer.
    Card {
        which: usize,
        what: usize,
    },
    /// Who has a share of a card uses more, or no more than that.
    Shares {
        greedy: bool,
    },
    /// The cards are told as they were so long ago, without what uses them.
    Told {
        ago: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..JOBS, 0..SPECS.len()).prop_map(|(job, spec)| Step::Drop { job, spec }),
        1 => (0..JOBS).prop_map(|job| Step::RemoveFile { job }),
        2 => (0..JOBS, 0..3usize).prop_map(|(job, verb)| Step::Ask { job, verb }),
        10 => (0..8usize).prop_map(|which| Step::Work { which }),
        8 => (0..8usize, 0..6usize).prop_map(|(which, what)| Step::Task { which, what }),
        1 => any::<bool>().prop_map(|done| Step::Crash { done }),
        1 => Just(Step::FailCommit),
        2 => (0..1500u64).prop_map(|ms| Step::Wait { ms }),
        1 => (3000..9000u64).prop_map(|ms| Step::Wait { ms }),
        1 => (0..2000u64).prop_map(|ago| Step::Told { ago }),
        1 => any::<bool>().prop_map(|busy| Step::Stranger { busy }),
        1 => any::<bool>().prop_map(|full| Step::Room { full }),
        2 => any::<bool>().prop_map(|full| Step::Disk { full }),
        1 => any::<bool>().prop_map(|low| Step::Free { low }),
        2 => (0..ALL_CARDS, 0..4usize).prop_map(|(which, what)| Step::Card { which, what }),
        1 => any::<bool>().prop_map(|greedy| Step::Shares { greedy }),
    ];
    prop::collection::vec(step, 1..120)
}

#[derive(Debug, Clone, PartialEq)]
enum Fake {
    Alive { running: bool, stop: Option<StopCause> },
    Ended(EndRecord),
    Lost,
}

struct World {
    store: MemoryStore,
    daemon: Option<Reconciler<FaultStore<MemoryStore>>>,
    now: u64,
    works: VecDeque<Work>,
    tasks: BTreeMap<TaskId, Fake>,
    starts: BTreeMap<TaskId, u32>,
    held: BTreeMap<AttemptId, Amount>,
    files: BTreeMap<JobKey, usize>,
    busy: bool,
    full: bool,
    low: bool,
    disk_full: bool,
    /// What was decided while the disk was full may not be recorded yet.
    unrecorded: bool,
    /// When the daemon wants its next round at the latest.
    wake_at: Option<Timestamp>,
    cards: Cards,
    stranger_came: bool,
    quotas: Quotas,
}

/// The cards as they are in truth.
#[derive(Debug, Default)]
struct Cards {
    failed: BTreeSet<GpuUuid>,
    /// Used by somebody else, and since when.
    strange: BTreeMap<GpuUuid, u64>,
    /// What an attempt has left there, which has ended in all other ways, and the last attempt that there was then.
    left: BTreeMap<GpuUuid, u64>,
    held: Vec<(AttemptId, TaskId, GpuLease)>,
    greedy: bool,
    /// Used by somebody else when they were looked at last, and the last attempt that there was then.
    seen_strange: BTreeSet<GpuUuid>,
    seen_after: u64,
}

/// Whole ones, the last of a kind of its own; one more is cut up.
const CARDS: usize = 3;
const ALL_CARDS: usize = CARDS + 1;
/// Of the whole ones, bytes.
const MEMORY: u64 = 80 << 30;
/// So long what was seen on a card counts, ms.
const FRESH: u64 = 5000;

fn card(index: usize) -> GpuUuid {
    format!("GPU-{index}").parse().unwrap()
}

impl Cards {
    fn inventory(&self, at: Timestamp, usage: bool) -> Arc<Inventory> {
        let cards = (0..ALL_CARDS).map(|index| self.card(index, usage)).collect();
        let topology = Topology::of(ALL_CARDS, |_, _| Link::System);
        let driver = Driver::Loaded { version: "1".to_owned(), cuda: None };
        Arc::new(Inventory { driver, cards, nameless: Vec::new(), topology, at: Some(at), took_ms: 0 })
    }

    fn card(&self, index: usize, usage: bool) -> Card {
        let uuid = card(index);
        let lost = self.failed.contains(&uuid).then(|| "gone".to_owned());
        let signs = Signs { lost, ..Signs::default() };
        let in_use = self.strange.contains_key(&uuid) || self.left.contains_key(&uuid);
        let process = stranger();
        let own = self.held.iter().filter(|(_, _, lease)| lease.uuid == uuid).map(|(_, task, _)| Process {
            task: Some(*task),
            memory: Some(if self.greedy { MEMORY } else { 1 << 30 }),
            ..process.clone()
        });
        let processes = in_use.then(|| process.clone()).into_iter().chain(own).collect();
        let slice = |number: u32| Slice {
            uuid: format!("MIG-{number}").parse().unwrap(),
            profile: "1g.10gb".to_owned(),
            memory: Some(10 << 30),
            instances: Some(Instances { gpu: number, compute: 0 }),
            unreachable: None,
        };
        let slices: Vec<Slice> = (0..3).filter(|_| index == CARDS).map(slice).collect();
        let facts = Facts {
            uuid,
            name: if index + 1 == CARDS { "Odd card" } else { "card" }.to_owned(),
            minor: Some(index as u32),
            bus: String::new(),
            numa_node: None,
            cpus: Vec::new(),
            memory: Some(MEMORY + deck::RESERVE),
        };
        Card {
            facts,
            mig: index == CARDS,
            slices,
            findings: health::judge(&signs, None),
            signs,
            usage: usage.then(|| Usage { processes: Some(processes), ..Usage::default() }),
        }
    }

    /// The attempt uses its cards from now on.
    fn take(&mut self, launch: &Launch, created: u64) {
        for (ordinal, lease) in
            (0..).zip(&launch.gpus).flat_map(|(task, leases)| leases.iter().map(move |one| (task, one)))
        {
            self.held.push((launch.attempt, TaskId::first(launch.attempt, ordinal), lease.clone()));
            self.check_card(&lease.uuid);
            // Who had a share meanwhile goes on with it.
            let left = self.left.get(&lease.uuid).copied();
            let is_before = left.is_none_or(|last| launch.attempt.0 <= last);
            assert!(is_before, "{} was looked at before it is used again", lease.uuid);
            // What had its lease before goes on with it.
            let is_later = launch.attempt.0 > self.seen_after;
            assert!(!is_later || !self.seen_strange.contains(&lease.uuid), "{} was seen in use", lease.uuid);
            let since = self.strange.get(&lease.uuid).copied().unwrap_or(u64::MAX);
            assert!(since.saturating_add(FRESH) >= created, "{} was looked at lately", lease.uuid);
        }
    }
}

impl Cards {
    /// A whole card has one holder, a slice as well, and shares are no more than there is.
    fn check_card(&self, uuid: &GpuUuid) {
        let leases: Vec<&GpuLease> =
            self.held.iter().map(|(_, _, lease)| lease).filter(|lease| lease.uuid == *uuid).collect();
        let is_whole = leases.iter().any(|lease| lease.part.is_none());
        assert!(!is_whole || leases.len() == 1, "{uuid} has one holder: {leases:?}");
        let shares = leases.iter().filter_map(|lease| match lease.part {
            Some(GpuPartLease::Share { bytes, .. }) => Some(bytes),
            _ => None,
        });
        assert!(shares.sum::<u64>() <= MEMORY, "{leases:?}");
        let slices: Vec<&GpuUuid> =
            leases.iter().map(|lease| lease.device()).filter(|device| device.as_str().starts_with("MIG")).collect();
        let distinct: BTreeSet<_> = slices.iter().collect();
        assert_eq!(slices.len(), distinct.len(), "{leases:?}");
        let is_cut_up = *uuid == card(CARDS);
        assert_eq!(slices.len(), if is_cut_up { leases.len() } else { 0 }, "{leases:?}");
    }
}

fn key(job: usize) -> JobKey {
    format!("j{job}").parse().unwrap()
}

fn arrival(key: &JobKey, spec: usize) -> Arrival {
    let (source, spec) = source(SPECS[spec].to_owned(), 0);
    Arrival::Accepted { key: key.clone(), source, spec: Box::new(spec) }
}

/// A job file of a user's.
pub(super) fn source(text: String, user: u32) -> (SourceRecord, JobSpec) {
    let (spec, found) = parse("job.toml", &text);
    let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
    let source = SourceRecord::new(text, spec.meaning(), Owner { uid: user, gid: user });
    (source, spec)
}

impl World {
    fn new(quota: Quota) -> Self {
        let mut world = Self {
            quotas: Quotas::from([(WorkspaceName::default_workspace(), quota)]),
            store: MemoryStore::default(),
            daemon: None,
            now: 1_000_000,
            works: VecDeque::new(),
            tasks: BTreeMap::new(),
            busy: false,
            stranger_came: false,
            full: false,
            low: false,
            disk_full: false,
            unrecorded: false,
            wake_at: None,
            cards: Cards::default(),
            starts: BTreeMap::new(),
            held: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        world.start_daemon(Fault::Fail(0));
        world
    }

    fn settings(&self) -> Settings {
        Settings {
            inventory: INVENTORY,
            addresses: AddressRange { base: 0x0ad5_0000, prefix: 24 },
            stop_grace: Duration::from_secs(1),
            half_life: Duration::from_secs(3600),
            usage_keep: Duration::from_secs(400 * 24 * 3600),
            quotas: self.quotas.clone(),
            min_free: MIN_FREE,
        }
    }

    fn start_daemon(&mut self, fault: Fault) {
        let store = FaultStore::new(self.store.clone(), fault);
        self.works.clear();
        let mut daemon = Reconciler::open(store, self.settings(), Timestamp(self.now)).unwrap();
        daemon.handle(Event::Full(self.full_workspaces()), Timestamp(self.now));
        daemon.handle(Event::Free(self.free()), Timestamp(self.now));
        // The first scan of jobs.d.
        let mut arrivals: Vec<Arrival> = self.files.iter().map(|(key, spec)| arrival(key, *spec)).collect();
        let gone = daemon.known_files().into_iter().filter(|key| !self.files.contains_key(key));
        arrivals.extend(gone.map(|key| Arrival::Removed { key }));
        daemon.handle(Event::Files(arrivals), Timestamp(self.now));
        self.daemon = Some(daemon);
        self.round();
    }

    fn full_workspaces(&self) -> BTreeMap<WorkspaceName, String> {
        let default = WorkspaceName::default_workspace();
        self.full.then(|| (default, "it keeps all that it may".to_owned())).into_iter().collect()
    }

    fn free(&self) -> Free {
        let bytes = if self.low { MIN_FREE - 1 } else { 2 * MIN_FREE };
        Free { place: "/var".into(), bytes }
    }

    fn handle(&mut self, event: Event) {
        let free = self.free();
        if let Some(daemon) = &mut self.daemon {
            daemon.handle(Event::Free(free), Timestamp(self.now));
            daemon.handle(event, Timestamp(self.now));
        }
        self.round();
    }

    /// One round of the daemon; a failed commit is its end.
    fn round(&mut self) {
        let before = ((self.full || self.low) && !self.unrecorded).then(|| self.last_attempt());
        let Some(daemon) = &mut self.daemon else { return };
        match daemon.pass(Timestamp(self.now)) {
            Ok(round) => {
                self.works.extend(round.works);
                self.wake_at = round.wake_at;
            }
            Err(_) => self.start_daemon(Fault::Fail(0)),
        }
        self.unrecorded = self.disk_full;
        assert!(before.is_none_or(|last| last == self.last_attempt()), "nothing starts where there is no room");
        invariants::nothing_starts_twice(&self.starts);
        invariants::nothing_is_leased_twice(&self.held, INVENTORY);
        self.check_quota();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Drop { job, spec } => {
                self.files.insert(key(*job), *spec);
                self.handle(Event::Files(vec![arrival(&key(*job), *spec)]));
            }
            Step::RemoveFile { job } => {
                self.files.remove(&key(*job));
                self.handle(Event::Files(vec![Arrival::Removed { key: key(*job) }]));
            }
            Step::Ask { job, verb } => self.ask(key(*job), VERBS[*verb]),
            Step::Work { which } => self.work(*which),
            Step::Task { which, what } => self.task(*which, *what),
            Step::Crash { done } => {
                if *done {
                    for work in std::mem::take(&mut self.works) {
                        // Done, but nobody is left to hear of it.
                        let _ = self.carry_out(work);
                    }
                }
                self.start_daemon(Fault::Fail(0));
            }
            Step::FailCommit => self.start_daemon(Fault::Fail(2)),
            Step::Stranger { busy } => {
                self.busy = *busy;
                self.stranger_came |= *busy;
            }
            Step::Room { full } => {
                self.full = *full;
                self.handle(Event::Full(self.full_workspaces()));
            }
            Step::Disk { full } => {
                self.disk_full = *full;
                self.store.set_full(*full);
                self.handle(Event::Tick);
            }
            Step::Free { low } => {
                self.low = *low;
                self.handle(Event::Tick);
            }
            Step::Shares { greedy } => self.cards.greedy = *greedy,
            Step::Card { which, what } => self.card(&card(*which), *what),
            Step::Told { ago } => self.handle(Event::Gpus(self.cards.inventory(Timestamp(self.now - ago), false))),
            Step::Wait { ms } => {
                self.now += ms;
                self.handle(Event::Tick);
            }
        }
    }

    fn ask(&mut self, key: JobKey, verb: Verb) {
        let caller = Caller::root();
        self.handle(Event::Request(Request::Change { caller, key, verb, answer: Box::new(drop) }));
    }

    fn work(&mut self, which: usize) {
        if self.works.is_empty() {
            return;
        }
        let work = self.works.remove(which % self.works.len()).unwrap();
        self.see_cards(&work);
        let outcome = self.carry_out(work);
        self.handle(Event::Done(outcome));
    }

    /// All that there is to do but to look at the cards.
    fn work_without_looks(&mut self) {
        let is_other = |work: &Work| !matches!(work, Work::LookAtCards);
        while let Some(which) = self.works.iter().position(is_other) {
            self.work(which);
        }
    }

    fn look_at_cards(&mut self) {
        let which = self.works.iter().position(|work| matches!(work, Work::LookAtCards)).expect("a look is asked for");
        self.work(which);
    }

    fn state(&self, job: usize) -> State {
        self.daemon.as_ref().unwrap().report(&key(job)).unwrap().state
    }

    fn card(&mut self, uuid: &GpuUuid, what: usize) {
        match what {
            0 => drop(self.cards.failed.insert(uuid.clone())),
            1 => drop(self.cards.failed.remove(uuid)),
            2 => drop(self.cards.strange.entry(uuid.clone()).or_insert(self.now)),
            _ => drop((self.cards.strange.remove(uuid), self.cards.left.remove(uuid))),
        }
        if what < 2 {
            self.handle(Event::Gpus(self.cards.inventory(Timestamp(self.now), false)));
        }
    }

    fn see_cards(&mut self, work: &Work) {
        if let Work::Measure { tasks } = work {
            // Busy at odd times; those that have failed do not tell.
            let sample = Sample { utilisation: Some((self.now % 2) as u32 * 50), ..Sample::default() };
            let at = Timestamp(self.now);
            let mut measured = Measured::nothing(at);
            for (task, held) in tasks.iter().flat_map(|(task, held)| held.iter().map(move |held| (*task, held))) {
                match held {
                    held if self.cards.failed.contains(held.card()) => {}
                    Held::Whole(card) => drop(measured.cards.insert(card.clone(), sample)),
                    part => drop(measured.parts.insert((task, part.clone()), sample)),
                }
            }
            self.handle(Event::Measured(Arc::new(measured)));
        }
        if matches!(work, Work::LookAtCards) {
            self.cards.seen_strange = self.cards.strange.keys().cloned().collect();
            self.cards.seen_after = self.last_attempt();
            self.handle(Event::Gpus(self.cards.inventory(Timestamp(self.now), true)));
        }
    }

    fn carry_out(&mut self, work: Work) -> Outcome {
        match work {
            Work::Prepare { key, run, .. } => Outcome::Prepared { key, run, result: Ok(()) },
            Work::SetAside { key, number, prepare } => {
                Outcome::SetAside { key, run: prepare.identity.run, number, result: Ok(()) }
            }
            Work::Launch(launch) => {
                let runs = self.store.runs(&launch.identity.key, 0..=u32::MAX, usize::MAX).unwrap();
                invariants::every_start_was_recorded(launch.attempt, &runs);
                if self.busy && !self.held.contains_key(&launch.attempt) {
                    let (attempt, reason) = (launch.attempt, "a port is in use".to_owned());
                    return Outcome::NotYet { attempt, tasks: launch.tasks, reason };
                }
                // What is gone on with after a crash has them.
                if !self.held.contains_key(&launch.attempt) {
                    let attempt = runs.iter().flat_map(|run| &run.attempts).find(|one| one.id == launch.attempt);
                    self.cards.take(&launch, attempt.unwrap().created.0);
                }
                self.held.insert(launch.attempt, Amount::of(&launch.spec, &deck::Sizes::default()));
                for task in launch.tasks {
                    if !self.tasks.contains_key(&task) {
                        *self.starts.entry(task).or_default() += 1;
                        self.tasks.insert(task, Fake::Alive { running: false, stop: None });
                    }
                }
                Outcome::Launched { attempt: launch.attempt, failures: Vec::new() }
            }
            Work::Stop { task, cause, .. } => {
                if let Some(Fake::Alive { stop, .. }) = self.tasks.get_mut(&task) {
                    *stop = Some(cause);
                }
                Outcome::Stopped { task, result: Ok(()) }
            }
            Work::Look { task, after } => Outcome::Looked { task, after, result: Ok(self.look(task)) },
            Work::Release { key, release } => {
                let alive = self
                    .tasks
                    .iter()
                    .any(|(task, fake)| task.attempt == release.attempt && matches!(fake, Fake::Alive { .. }));
                assert!(!alive, "{} is released while its tasks live", release.attempt);
                // Sometimes it fails the first time.
                let result = match self.now % 7 {
                    0 => Err(EngineError("busy".to_owned())),
                    _ => {
                        self.held.remove(&release.attempt);
                        let own = self.cards.held.extract_if(.., |(holder, _, _)| *holder == release.attempt);
                        let own: Vec<GpuUuid> = own.map(|(_, _, lease)| lease.uuid).collect();
                        if self.now % 2 == 1 {
                            let last = self.last_attempt();
                            for uuid in own {
                                self.cards.left.entry(uuid).or_insert(last);
                            }
                        }
                        Ok(())
                    }
                };
                Outcome::Released { key, attempt: release.attempt, result }
            }
            Work::LookAtCards => Outcome::LookedAtCards,
            // As told by `see_cards`.
            Work::Measure { .. } => Outcome::Told,
            Work::Deliver { .. } | Work::GiveUp(_) | Work::DropAside { .. } => Outcome::Told,
        }
    }

    fn look(&self, task: TaskId) -> Found {
        match self.tasks.get(&task) {
            None => Found::NeverStarted,
            Some(Fake::Alive { running, .. }) => Found::Alive { shim: Some(1), running: *running },
            Some(Fake::Ended(end)) => Found::Ended(end.clone()),
            Some(Fake::Lost) => Found::Lost(Loss::Shim),
        }
    }

    fn task(&mut self, which: usize, what: usize) {
        let alive: Vec<TaskId> =
            self.tasks.iter().filter(|(_, fake)| matches!(fake, Fake::Alive { .. })).map(|(task, _)| *task).collect();
        if alive.is_empty() {
            return;
        }
        let task = alive[which % alive.len()];
        let Some(Fake::Alive { stop, running }) = self.tasks.get(&task).cloned() else { return };
        let end = |end| Fake::Ended(EndRecord { end, at: Timestamp(self.now), memory_peak: None, note: None });
        let next = match (stop, what) {
            // Its shim cannot be told why.
            (Some(_), _) if self.disk_full => end(TaskEnd::Stopped { cause: StopCause::ShimSignalled, code: Some(0) }),
            (Some(cause), _) => end(cause.judge(None)),
            (None, 0 | 1) => Fake::Alive { running: true, stop: None },
            (None, 2 | 3) if running => end(TaskEnd::Exited { code: 0 }),
            (None, 4) if running => end(TaskEnd::Exited { code: 3 }),
            (None, 5) if running => Fake::Lost,
            _ => return,
        };
        self.tasks.insert(task, next);
        self.handle(Event::News(task));
    }

    /// Lets everything come to its end, as it would if nobody did anything more.
    fn settle(&mut self) {
        self.busy = false;
        (self.full, self.low) = (false, false);
        self.step(&Step::Disk { full: false });
        self.handle(Event::Full(self.full_workspaces()));
        self.cards.strange.clear();
        self.cards.failed.clear();
        self.cards.greedy = false;
        self.handle(Event::Gpus(self.cards.inventory(Timestamp(self.now), false)));
        // A file that was accepted before it was known what cards there are may ask for more than its workspace may have: it waits
        // until that is more, and everybody else comes to an end before.
        self.come_to_rest(Self::is_over_or_beyond_quota);
        self.quotas.clear();
        self.handle(Event::Settings(Box::new(self.settings())));
        self.come_to_rest(|_, run| run.ended.is_some());
    }

    fn come_to_rest(&mut self, is_done: impl Fn(&Self, &RunRecord) -> bool) {
        for round in 0..2000 {
            self.now += 400;
            // What is left of an attempt goes some time later.
            if round % 5 == 0 {
                self.cards.left.clear();
            }
            self.handle(Event::Tick);
            if let Some(work) = self.works.pop_front() {
                self.see_cards(&work);
                let outcome = self.carry_out(work);
                self.handle(Event::Done(outcome));
            }
            self.task(round, 1);
            self.task(round, 2);
            let busy = self.tasks.values().any(|fake| matches!(fake, Fake::Alive { .. }));
            if !busy && self.works.is_empty() && self.store.load().unwrap().runs.values().all(|run| is_done(self, run))
            {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.store.load().unwrap());
    }

    /// The number of the last attempt that was made.
    fn last_attempt(&self) -> u64 {
        self.store.load().unwrap().counters.attempt
    }

    fn check_end(&self) {
        assert_eq!(self.held, BTreeMap::new(), "everything was given back");
        assert_eq!(self.cards.held, [], "every card was given back");
        for (key, job) in &self.store.load().unwrap().jobs {
            self.store.runs(key, 0..=u32::MAX, usize::MAX).unwrap().iter().for_each(invariants::every_task_ended_once);
            invariants::no_event_is_lost_or_doubled(job.first_event, &self.store.events(key, 0, usize::MAX).unwrap());
            let report = self.daemon.as_ref().unwrap().report(key);
            assert_eq!(report.is_none(), job.removed);
            assert!(report.is_none_or(|report| report.state.is_terminal()), "{key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_nothing_starts_twice_and_everything_ends(
        steps in steps(),
        quota in quotas::any(),
    ) {
        let mut world = World::new(quota);
        for step in &steps {
            world.step(step);
        }
        world.settle();
        world.check_end();
    }
}

#[test]
fn a_quiet_history_ends_as_it_should() {
    let mut world = World::new(Quota::default());
    world.step(&Step::Drop { job: 0, spec: 1 });
    world.settle();
    world.check_end();
    let report = world.daemon.as_ref().unwrap().report(&key(0)).unwrap();
    assert_eq!((report.state, report.run, report.attempt), (State::Succeeded, 1, 1));
    assert_eq!(world.starts.len(), 2);
    // The same file again, after a restart as well, is nothing new.
    world.step(&Step::Drop { job: 0, spec: 1 });
    world.step(&Step::Crash { done: false });
    assert_eq!(world.starts.len(), 2);
}

#[test]
fn a_big_job_keeps_its_place_while_cards_are_looked_at_or_used_by_others() {
    let (small, big) = (5, 7);
    let mut world = World::new(Quota::default());
    world.step(&Step::Drop { job: 0, spec: small });
    world.work_without_looks();
    world.look_at_cards();
    world.work_without_looks();
    assert_eq!(world.state(0), State::Starting);
    // It waits for all three.
    world.step(&Step::Drop { job: 1, spec: big });
    world.work_without_looks();
    world.step(&Step::Drop { job: 2, spec: small });
    world.task(0, 1);
    world.work_without_looks();
    assert_eq!([world.state(0), world.state(1), world.state(2)], [State::Running, State::Waiting, State::Waiting]);
    // A card is given back, and the others were not looked at for long.
    world.step(&Step::Wait { ms: 60_000 });
    world.card(&card(2), 2);
    world.task(0, 2);
    world.work_without_looks();
    assert_eq!([world.state(0), world.state(1), world.state(2)], [State::Succeeded, State::Waiting, State::Waiting]);
    // A stranger has the third.
    world.step(&Step::Wait { ms: 100 });
    world.look_at_cards();
    world.work_without_looks();
    assert_eq!([world.state(1), world.state(2)], [State::Waiting, State::Waiting]);
    let report = world.daemon.as_ref().unwrap().report(&key(1)).unwrap();
    let why = "waits for 3 GPU(s): this machine has 2 that can be used now; GPU 2 is used by process 9 of root";
    assert!(report.reason.starts_with(why), "{}", report.reason);
    assert_eq!(report.waiting.unwrap().cause, "room");
    world.card(&card(2), 3);
    world.step(&Step::Wait { ms: 2000 });
    world.look_at_cards();
    world.work_without_looks();
    assert_eq!([world.state(1), world.state(2)], [State::Starting, State::Waiting]);
    world.settle();
    world.check_end();
}
