//! The queue through the reconciler: what is told of those that wait, quotas, and what is accounted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trainyard::config::{AddressRange, Quota, Quotas};
use trainyard::engine::EngineError;
use trainyard::gpu::{
    Card, Driver, Facts, Instances, Inventory, Link, Measured, Process, Sample, Signs, Slice, Topology, Usage, deck,
    health,
};
use trainyard::ids::{GpuUuid, JobKey, TaskId, Timestamp};
use trainyard::intake::{Arrival, Made, Swept};
use trainyard::plan::Amount;
use trainyard::reconcile::{
    Answer, Beside, Caller, Event, EventPart, Happened, Outcome, Recent, Reconciler, Refusal, Removes, Request,
    RunPart, Settings, Sight, TakenIn, Verb, Whose, Work,
};
use trainyard::report::JobReport;
use trainyard::rundir::{Found, KeptRecord};
use trainyard::spec::{Diagnostic, JobSpec};
use trainyard::status::{EndRecord, State, StopHow, TaskEnd};
use trainyard::store::Store;
use trainyard::store::memory::MemoryStore;
use trainyard::store::record::{Owner, SourceRecord, SweepRecord};

use super::simulation;

mod cards;
mod devices;
mod held;
mod lacking;
mod lost;
mod owners;
mod parts;
mod shares;
mod slices;
mod swept;
mod usage;
mod waiting;

const NEWEST_RUN: RunPart = RunPart { newest: 1, also: None };
const HOUR: u64 = 3_600_000;
const STOP: Verb = Verb::Stop { how: StopHow::WithGrace };

/// A process on a card that is no task's.
pub(super) fn stranger() -> Process {
    Process {
        pid: 9,
        uid: Some(0),
        user: Some("root".into()),
        program: None,
        memory: None,
        slice: None,
        task: None,
        is_ignored: false,
    }
}

struct Daemon {
    store: MemoryStore,
    quotas: Quotas,
    reconciler: Reconciler<MemoryStore>,
    now: u64,
}

impl Daemon {
    fn new(quotas: Quotas) -> Self {
        let store = MemoryStore::default();
        let reconciler = open(&store, &quotas, 1000);
        Self { store, quotas, reconciler, now: 1000 }
    }

    fn restart(&mut self) {
        self.reconciler = open(&self.store, &self.quotas, self.now);
        self.pass();
    }

    fn pass(&mut self) -> Vec<Work> {
        let mut all = Vec::new();
        loop {
            let round = self.reconciler.pass(Timestamp(self.now)).unwrap();
            if round.works.is_empty() {
                return all;
            }
            for work in &round.works {
                if let Some(outcome) = outcome(work) {
                    self.reconciler.handle(Event::Done(outcome), Timestamp(self.now));
                }
            }
            all.extend(round.works);
        }
    }

    /// A file that says all of this of a job with one task.
    fn file(&mut self, key: &str, text: &str) {
        self.files(vec![accepted(key, text)]);
    }

    fn files(&mut self, arrivals: Vec<Arrival>) {
        self.reconciler.handle(Event::Files(arrivals), Timestamp(self.now));
        self.pass();
    }

    fn states<const N: usize>(&self, keys: [&str; N]) -> [State; N] {
        keys.map(|key| self.state(key))
    }

    fn report(&self, key: &str) -> JobReport {
        self.reconciler.report(&key.parse().unwrap()).unwrap()
    }

    fn state(&self, key: &str) -> State {
        self.report(key).state
    }

    /// How often its events say so.
    fn told(&self, key: &str, what: &str) -> usize {
        let events = self.store.events(&key.parse().unwrap(), 0, usize::MAX).unwrap();
        events.iter().filter(|event| event.message.contains(what)).count()
    }

    /// Its only task ends well.
    fn end(&mut self, key: &str) {
        self.end_as(key, TaskEnd::Exited { code: 0 });
    }

    fn end_as(&mut self, key: &str, end: TaskEnd) {
        let end = EndRecord { end, at: Timestamp(self.now), memory_peak: None, note: None };
        self.look(key, Ok(Found::Ended(end)));
    }

    /// Its only task has failed, and its container is kept for so long.
    fn keep(&mut self, key: &str, ms: u64) {
        let end =
            EndRecord { end: TaskEnd::Exited { code: 1 }, at: Timestamp(self.now), memory_peak: None, note: None };
        let kept = KeptRecord { end, until: Timestamp(self.now + ms) };
        self.look(key, Ok(Found::Kept { shim: Some(1), kept }));
    }

    /// Its only task could not be looked at.
    fn look_in_vain(&mut self, key: &str) {
        self.look(key, Err(EngineError("the disk hangs".to_owned())));
    }

    fn look(&mut self, key: &str, result: Result<Found, EngineError>) {
        let task = self.task(key);
        let looked = Outcome::Looked { task, after: trainyard::reconcile::Look::Sign, result };
        self.reconciler.handle(Event::Done(looked), Timestamp(self.now));
        self.pass();
    }

    fn task(&self, key: &str) -> TaskId {
        let runs = self.store.runs(&key.parse().unwrap(), 0..=u32::MAX, usize::MAX).unwrap();
        TaskId::first(runs.last().unwrap().attempts.last().unwrap().id, 0)
    }

    /// A file of a job whose image cannot be had at first; it is asked for again in ten minutes.
    fn file_unprepared(&mut self, key: &str) {
        let text = "image = \"registry.example/x:1\"\nretries = 9\nretry = { on = [\"image\"], backoff = \"10m\" }";
        self.reconciler.handle(Event::Files(vec![accepted(key, text)]), Timestamp(self.now));
        let works = self.reconciler.pass(Timestamp(self.now)).unwrap().works;
        let [Work::Prepare { key, run, .. }] = works.as_slice() else { panic!("{works:?}") };
        let result = Err(EngineError("the registry does not answer".to_owned()));
        let prepared = Outcome::Prepared { key: key.clone(), run: *run, result };
        self.reconciler.handle(Event::Done(prepared), Timestamp(self.now));
        self.pass();
    }

    /// How long its attempts have had something of the machine.
    fn used_ms(&mut self, key: &str) -> u64 {
        let key: JobKey = key.parse().unwrap();
        let used = self.request(|answer| Request::Usage { since: Timestamp(0), answer });
        let of_job = used.attempts.iter().filter(|used| used.workspace == key.workspace && used.job == key.job);
        of_job.map(|used| used.to.0 - used.from.0).sum()
    }

    /// What is answered to a request that is not refused.
    fn request<T: Send + 'static>(&mut self, request: impl FnOnce(Answer<T>) -> Request) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        let answer = Box::new(move |result: Result<T, Refusal>| drop(sender.send(result.unwrap())));
        self.reconciler.handle(Event::Request(request(answer)), Timestamp(self.now));
        receiver.recv().unwrap()
    }

    fn ask(&mut self, key: &str, verb: Verb) -> Result<String, Refusal> {
        self.ask_as(key, Caller::named(1000, "ada".to_owned()), verb)
    }

    fn ask_as(&mut self, key: &str, caller: Caller, verb: Verb) -> Result<String, Refusal> {
        let answered = Arc::new(Mutex::new(None));
        let heard = answered.clone();
        let answer = Box::new(move |result| drop(heard.lock().unwrap().replace(result)));
        let request = Request::Change { caller, key: key.parse().unwrap(), verb, answer };
        self.reconciler.handle(Event::Request(request), Timestamp(self.now));
        self.pass();
        answered.lock().unwrap().take().unwrap()
    }
}

fn source(text: &str) -> (SourceRecord, JobSpec) {
    simulation::source(format!("command = \"x\"\nnetwork = \"host\"\n{text}"), 1000)
}

fn accepted(key: &str, text: &str) -> Arrival {
    let (source, spec) = source(text);
    Arrival::Accepted { key: key.parse().unwrap(), source, spec: Box::new(spec) }
}

fn removed(key: &str) -> Arrival {
    Arrival::Removed { key: key.parse().unwrap() }
}

/// Jobs of one sweep.
fn swept(key: &str, jobs: &[&str], text: &str) -> Arrival {
    let key: JobKey = key.parse().unwrap();
    let of = |job: &&str| {
        let (source, spec) = source(text);
        let values = vec![("x".to_owned(), (*job).to_owned())];
        let sweep = Some(SweepRecord { of: key.job.clone(), values });
        Swept { key: job.parse().unwrap(), source: SourceRecord { sweep, ..source }, spec }
    };
    let jobs = jobs.iter().map(of).collect();
    Arrival::Swept { key, jobs }
}

fn settings(quotas: &Quotas) -> Settings {
    Settings {
        inventory: Amount { cpu: 8000, memory: 8 << 30, gpu: 0 },
        addresses: AddressRange { base: 0x0ad5_0000, prefix: 24 },
        stop_grace: Duration::from_secs(1),
        half_life: Duration::from_secs(3600),
        usage_keep: Duration::from_secs(400 * 24 * 3600),
        quotas: quotas.clone(),
        min_free: 0,
    }
}

fn open(store: &MemoryStore, quotas: &Quotas, now: u64) -> Reconciler<MemoryStore> {
    Reconciler::open(store.clone(), settings(quotas), Timestamp(now)).unwrap()
}

/// Everything that is started runs at once.
fn outcome(work: &Work) -> Option<Outcome> {
    match work {
        Work::Prepare { key, run, .. } => Some(Outcome::Prepared { key: key.clone(), run: *run, result: Ok(()) }),
        Work::Launch(launch) => Some(Outcome::Looked {
            task: TaskId::first(launch.attempt, 0),
            after: trainyard::reconcile::Look::Sign,
            result: Ok(Found::Alive { shim: Some(1), running: true }),
        }),
        Work::Look { task, after } => Some(Outcome::Looked {
            task: *task,
            after: *after,
            result: Ok(Found::Alive { shim: Some(1), running: true }),
        }),
        Work::Release { key, release } => {
            Some(Outcome::Released { key: key.clone(), attempt: release.attempt, result: Ok(()) })
        }
        _ => None,
    }
}

fn cores(cores: u64, rest: &str) -> String {
    format!("resources = {{ cpu = {cores}, memory = \"1GiB\" }}\n{rest}")
}

fn quota(workspace: &str, quota: Quota) -> Quotas {
    Quotas::from([(workspace.parse().unwrap(), quota)])
}

#[test]
fn a_workspace_has_no_more_than_its_quota_and_says_so() {
    let mut daemon = Daemon::new(quota("a", Quota { cpu: Some(3000), running: Some(2), ..Quota::default() }));
    daemon.file("a/giant", &cores(4, ""));
    let giant = daemon.report("a/giant");
    assert_eq!(giant.state, State::Invalid);
    assert!(giant.reason.contains("4 cpu of 3 that workspace a may have at a time (workspaces.a"), "{}", giant.reason);
    daemon.file("a/one", &cores(2, ""));
    daemon.file("a/two", &cores(2, ""));
    daemon.file("b/other", &cores(2, ""));
    assert_eq!(
        ["a/one", "a/two", "b/other"].map(|key| daemon.state(key)),
        [State::Running, State::Waiting, State::Running]
    );
    let two = daemon.report("a/two");
    assert_eq!(two.reason, "waits for 2 cpu: 1 of 3 left by workspaces.a.cpu; the rest is held by a/one");
    assert_eq!(two.waiting.map(|waiting| (waiting.cause, waiting.free.cpu)), Some(("quota".to_owned(), 1.0)));
    daemon.end("a/one");
    assert_eq!(daemon.state("a/two"), State::Running);
    daemon.file("a/small", &cores(1, ""));
    daemon.file("a/third", "resources = { cpu = 0.1, memory = \"100MB\" }");
    assert_eq!(daemon.state("a/small"), State::Running);
    let third = daemon.report("a/third").reason;
    assert!(third.contains("waits for one of a/small and a/two to end: 2 job(s) of workspace a may run"), "{third}");
}

const ALL: [&str; 3] = ["a/one", "a/two", "a/three"];

/// Another workspace has the machine, one job of `a` waits, and the others may not.
fn full_queue() -> Daemon {
    let mut daemon = Daemon::new(quota("a", Quota { waiting: Some(1), ..Quota::default() }));
    daemon.file("b/holder", &cores(8, ""));
    ALL.into_iter().for_each(|job| daemon.file(job, &cores(8, "")));
    assert_eq!(daemon.states(ALL), [State::Waiting, State::Held, State::Held]);
    daemon
}

#[test]
fn no_more_runs_wait_than_a_workspace_may_have_waiting_and_the_others_follow_in_their_order() {
    let mut daemon = full_queue();
    let two = daemon.report("a/two");
    assert!(
        two.reason.contains("1 job(s) of workspace a wait, as many as may (workspaces.a.waiting)"),
        "{}",
        two.reason
    );
    assert_eq!(two.run, 0);
    daemon.restart();
    assert_eq!(daemon.state("a/two"), State::Held, "also after a restart");
    daemon.end("b/holder");
    assert_eq!(daemon.states(ALL), [State::Running, State::Waiting, State::Held], "by age, not by name");
    // One that comes just when another goes waits behind those that have waited.
    daemon.files(vec![removed("a/two"), accepted("a/later", &cores(8, ""))]);
    assert_eq!(daemon.states(["a/three", "a/later"]), [State::Waiting, State::Held]);
    // One that is no longer wanted is forgotten.
    daemon.files(vec![removed("a/later")]);
    daemon.end("a/one");
    assert_eq!(daemon.state("a/three"), State::Running);
    let later = daemon.report("a/later");
    assert_eq!((later.run, later.reason.as_str()), (0, "its job file was removed before a run was queued"));
    daemon.ask("a/one", Verb::Rerun).unwrap();
    assert_eq!((daemon.state("a/one"), daemon.report("a/one").run), (State::Waiting, 2), "the queue has room for it");
}

#[test]
fn a_job_that_waits_keeps_its_place_among_those_that_may_when_it_is_edited() {
    let mut daemon = full_queue();
    daemon.file("a/one", &cores(7, ""));
    assert_eq!((daemon.states(ALL), daemon.report("a/one").run), ([State::Waiting, State::Held, State::Held], 2));
    daemon.file("a/two", &cores(7, ""));
    daemon.end("b/holder");
    assert_eq!(daemon.states(ALL), [State::Running, State::Waiting, State::Held], "so does one that may not");
}

#[test]
fn where_no_limit_is_any_more_after_a_restart_those_that_were_turned_away_are_queued() {
    let mut daemon = full_queue();
    daemon.quotas = Quotas::new();
    daemon.restart();
    assert_eq!(daemon.states(ALL), [State::Waiting; 3]);
}

#[test]
fn a_job_that_is_not_queued_yet_is_stopped_and_begins_nothing_by_itself() {
    let mut daemon = full_queue();
    assert!(daemon.ask("a/two", STOP).unwrap().contains("run 1 is not queued any more"));
    let two = daemon.report("a/two");
    assert_eq!(two.state, State::Stopped);
    assert!(two.reason.contains("stopped before its run was queued"), "{}", two.reason);
    assert!(matches!(daemon.ask("a/two", STOP), Err(Refusal::NotRunning { .. })));
    daemon.restart();
    daemon.file("a/two", &cores(8, ""));
    daemon.end("b/holder");
    assert_eq!(daemon.states(ALL), [State::Running, State::Stopped, State::Waiting]);
    let said = daemon.ask("a/two", Verb::Rerun).unwrap();
    assert!(said.contains("not queued yet: 1 job(s)"), "{said}");
    daemon.ask("a/two", STOP).unwrap();
    daemon.file("a/two", &cores(7, ""));
    assert_eq!(daemon.state("a/two"), State::Held, "a newer version is wanted");
    daemon.end("a/one");
    assert_eq!(daemon.states(ALL), [State::Succeeded, State::Waiting, State::Running]);
    let said = daemon.ask("a/one", Verb::Rerun).unwrap();
    assert!(said.contains("not queued yet: 1 job(s)"), "{said}");
    assert!(daemon.ask("a/one", STOP).unwrap().contains("run 2 is not queued any more"));
    daemon.end("a/three");
    daemon.end("a/two");
    assert_eq!((daemon.state("a/one"), daemon.report("a/one").run), (State::Succeeded, 1));
}

#[test]
fn to_stop_a_sweep_is_to_stop_those_of_its_jobs_that_are_not_queued_yet_as_well() {
    let mut daemon = full_queue();
    let jobs = ["a/grid~1", "a/grid~2"];
    daemon.files(vec![removed("a/one"), removed("a/two"), removed("a/three")]);
    daemon.files(vec![swept("a/grid", &jobs, &cores(8, ""))]);
    assert_eq!(daemon.states(jobs), [State::Waiting, State::Held]);
    daemon.ask("a/grid", STOP).unwrap();
    daemon.end("b/holder");
    assert_eq!(daemon.states(jobs), [State::Stopped, State::Stopped]);
}

#[test]
fn a_job_that_waits_when_its_quota_is_made_smaller_waits_until_it_is_larger_again_and_says_so() {
    let mut daemon = Daemon::new(quota("a", Quota { cpu: Some(4000), ..Quota::default() }));
    daemon.file("a/first", &cores(4, ""));
    daemon.file("a/second", &cores(4, ""));
    let before = daemon.quotas.clone();
    daemon.quotas = quota("a", Quota { cpu: Some(3000), ..Quota::default() });
    daemon.restart();
    // The first look at jobs.d.
    daemon.files(vec![accepted("a/first", &cores(4, "")), accepted("a/second", &cores(4, ""))]);
    daemon.end("a/first");
    daemon.file("a/small", &cores(2, ""));
    let second = daemon.report("a/second");
    assert_eq!(daemon.states(["a/second", "a/small"]), [State::Waiting, State::Running]);
    assert!(second.reason.contains("its quota was made smaller: the job needs 4 cpu of 3 that"), "{}", second.reason);
    let waiting = second.waiting.unwrap();
    assert_eq!((waiting.cause.as_str(), waiting.free.cpu, waiting.starts_by), ("quota", 1.0, None));
    daemon.end("a/small");
    daemon.quotas = before;
    daemon.restart();
    assert_eq!(daemon.state("a/second"), State::Running);
}

#[test]
fn a_job_that_only_expects_to_end_in_time_does_not_go_before_a_big_one() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("a/holder", &cores(6, "max_duration = \"1h\""));
    daemon.file("a/big", &cores(8, ""));
    daemon.file("a/hopes", &cores(2, "expected_duration = \"10m\"\nmax_duration = \"10h\""));
    assert_eq!(daemon.states(["a/big", "a/hopes"]), [State::Waiting, State::Waiting]);
    daemon.file("a/stops", &cores(2, "expected_duration = \"10m\"\nmax_duration = \"10h\"\non_overrun = \"stop\""));
    assert_eq!(daemon.state("a/stops"), State::Running);
    daemon.end("a/stops");
    daemon.file("a/limited", &cores(2, "max_duration = \"1h\""));
    assert_eq!(daemon.state("a/limited"), State::Running);
}

#[test]
fn what_keeps_a_job_is_told_as_it_is_also_where_a_long_queue_was_looked_at_before() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("a/holder", &cores(8, ""));
    let many = (0..300).map(|number| accepted(&format!("a/j{number}"), &cores(8, "")));
    daemon.files(many.collect());
    daemon.now += 10_000;
    daemon.pass();
    assert!(daemon.report("a/j0").reason.starts_with("waits for 8 cpu"), "{}", daemon.report("a/j0").reason);
    daemon.file("a/urgent", &cores(8, "priority = \"high\""));
    assert_eq!(daemon.report("a/j0").reason, "waits for its turn");
    assert_eq!(daemon.report("a/j0").waiting.unwrap().cause, "turn");
    daemon.files(vec![removed("a/urgent"), removed("a/j0")]);
    assert!(daemon.report("a/j1").reason.starts_with("waits for 8 cpu"), "{}", daemon.report("a/j1").reason);
}

#[test]
fn an_extended_run_may_take_longer_also_after_a_restart_and_says_so() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("job", "max_duration = \"1h\"\nretries = 1");
    daemon.file("free", "");
    daemon.file("late", "expected_duration = \"1h\"\non_overrun = \"stop\"");
    let by = |hours| Verb::Extend { by: Duration::from_millis(hours * HOUR) };
    assert!(matches!(daemon.ask("free", by(1)), Err(Refusal::NoLimit { .. })));
    assert!(matches!(daemon.ask("job", by(0)), Err(Refusal::NoSuchExtension { .. })));
    assert!(matches!(daemon.ask("job", by(24 * 3651)), Err(Refusal::NoSuchExtension { .. })));
    let said = daemon.ask("job", by(2)).unwrap();
    assert_eq!(said, "job: an attempt may take 3h0m (2h0m of it added), until 1970-01-01T03:00:01.000Z");
    daemon.ask("late", by(1)).unwrap();
    daemon.restart();
    assert!(
        daemon.report("job").toml().contains("limit     = \"3h0m (2h0m of it added), until 1970-01-01T03:00:01.000Z\"")
    );
    let events = daemon.store.events(&"job".parse().unwrap(), 0, usize::MAX).unwrap();
    assert!(events.iter().any(|event| event.message.contains("ada has extended it by 2h0m")), "{events:?}");
    daemon.now = 1000 + 2 * HOUR - 1;
    assert_eq!(daemon.pass().len(), 0, "an hour has passed and nothing is stopped");
    daemon.now += 1;
    let stopped = |works: &[Work]| works.iter().filter(|work| matches!(work, Work::Stop { .. })).count();
    assert_eq!(stopped(&daemon.pass()), 1, "late");
    assert!(matches!(daemon.ask("late", by(1)), Err(Refusal::Ending { .. })));
    daemon.now = 1000 + 3 * HOUR;
    assert_eq!(stopped(&daemon.pass()), 1, "job");
    assert_eq!(daemon.state("job"), State::Stopping);
    assert_eq!(daemon.state("free"), State::Running);
}

#[test]
fn a_stop_at_once_ends_a_grace_that_runs_and_is_not_forgotten_by_a_restart() {
    let mut daemon = Daemon::new(Quotas::default());
    daemon.file("job", "retries = 3");
    let at_once = Verb::Stop { how: StopHow::AtOnce };
    let kills = |works: &[Work]| {
        let how = works.iter().filter_map(|work| match work {
            Work::Stop { how, .. } => Some(*how),
            _ => None,
        });
        how.collect::<Vec<_>>()
    };
    assert!(daemon.ask("job", STOP).unwrap().ends_with("job: stopping"));
    assert_eq!(daemon.ask("job", at_once).unwrap(), "job: killing what runs of it");
    daemon.ask("job", at_once).unwrap();
    assert_eq!(daemon.told("job", "its tasks get no grace: ada wants it stopped at once"), 1);
    daemon.restart();
    let task = daemon.task("job");
    let alive = Ok(Found::Alive { shim: Some(1), running: true });
    let looked = Outcome::Looked { task, after: trainyard::reconcile::Look::Sign, result: alive };
    daemon.reconciler.handle(Event::Done(looked), Timestamp(daemon.now));
    assert_eq!(kills(&daemon.pass()), [StopHow::AtOnce]);
    // What is not running has nothing to kill.
    daemon.file("held", "state = 'held'");
    assert_eq!(daemon.ask("held", at_once).unwrap(), "held: stopping");
    assert!(matches!(daemon.ask("held", at_once), Err(Refusal::NotRunning { .. })));
}

#[test]
fn a_file_that_is_put_right_and_one_with_a_warning_are_told_with_what_comes_of_them() {
    let mut daemon = Daemon::new(Quotas::default());
    let refused = Diagnostic::of_file("job.toml", "no".to_owned());
    let key: JobKey = "job".parse().unwrap();
    daemon.files(vec![Arrival::Refused { key: key.clone(), owner: None, diagnostics: vec![refused] }]);
    daemon.file("job", "env.A = 'x'");
    let Arrival::Accepted { key: warned, mut source, spec } = accepted("warned", "env.A = 'x'") else { panic!() };
    source.warnings.push(Diagnostic::of_file("warned.toml", "mind".to_owned()));
    daemon.files(vec![Arrival::Accepted { key: warned.clone(), source, spec }]);
    for (key, what) in [(key, "valid again"), (warned, "mind")] {
        let events = daemon.store.events(&key, 0, usize::MAX).unwrap();
        let told = events.iter().find(|event| event.message.contains(what)).unwrap();
        assert_eq!((told.run, told.state), (1, State::Waiting), "{events:#?}");
        assert!(events.iter().all(|event| event.state != State::Stopped), "{events:#?}");
    }
}

fn ada() -> Caller {
    Caller::named(1000, "ada".to_owned())
}

/// All jobs, told at once.
fn list(daemon: &mut Daemon) -> Vec<JobReport> {
    let heard = Arc::new(Mutex::new(None));
    let answered = heard.clone();
    let answer = Box::new(move |listing| drop(answered.lock().unwrap().replace(listing)));
    daemon.reconciler.handle(Event::Request(Request::List { caller: ada(), answer }), Timestamp(daemon.now));
    heard.lock().unwrap().take().unwrap().unwrap().jobs
}

#[test]
fn a_list_costs_the_first_places_of_a_long_queue_and_one_job_is_told_its_own_however_far_behind() {
    let mut daemon = Daemon::new(Quotas::new());
    let file = |index: u32| accepted(&format!("a/j{index:04}"), "resources = { cpu = 8, memory = \"100MB\" }");
    daemon.files((0..1200).map(file).collect());
    daemon.now += HOUR;
    let jobs = list(&mut daemon);
    let place = |report: &JobReport| report.waiting.as_ref().map(|waiting| waiting.place);
    assert_eq!(
        (jobs.len(), place(&jobs[1]), place(&jobs[1000]), place(&jobs[1199])),
        (1200, Some(1), Some(1000), None)
    );
    assert_eq!(
        jobs[1199].reason,
        "waits for its turn, behind 1000 others or more; `trainyard status a/j1199` tells why"
    );
    let shown = Arc::new(Mutex::new(None));
    let answered = shown.clone();
    let answer = Box::new(move |detail| drop(answered.lock().unwrap().replace(detail)));
    let key = "a/j1199".parse().unwrap();
    let request = Request::Show { caller: ada(), key, runs: NEWEST_RUN, events: EventPart::None, answer };
    daemon.reconciler.handle(Event::Request(request), Timestamp(daemon.now));
    let detail = shown.lock().unwrap().take().unwrap().unwrap();
    assert_eq!(place(&detail.report), Some(1199));
}

#[test]
fn who_has_followed_up_to_an_event_goes_on_there_after_a_restart() {
    let mut daemon = Daemon::new(Quotas::default());
    for text in ["description = '1'", "description = '2'", "description = '3'", "description = '4'"] {
        for job in 0..5 {
            daemon.now += 1;
            daemon.file(&format!("a/j{job}"), text);
            daemon.end(&format!("a/j{job}"));
        }
    }
    daemon.file("a/once", "");
    let asked = |answer| Request::Events { caller: Caller::root(), after: 0, limit: 500, answer };
    let Recent::Told(Happened { events: all, upto, .. }) = daemon.request(asked) else { panic!("all are in memory") };
    assert!(all.len() > 20, "{}", all.len());
    daemon.restart();
    for seen in 0..=all.len() {
        let serial = seen.checked_sub(1).map_or(0, |last| all[last].1.serial);
        let mut states = BTreeMap::new();
        states.extend(all[..seen].iter().map(|(key, event)| (key.clone(), event.state)));
        let at = daemon.request(|answer| Request::StatesAt { serial, answer });
        assert_eq!((at.states, at.last), (states, upto), "at {serial}");
    }
}

/// The wall clock is set, while the machine's own time goes on.
struct Clock {
    lead: i64,
}

impl Clock {
    fn set(&mut self, daemon: &mut Daemon, by: i64) {
        self.lead += by;
        daemon.now = daemon.now.saturating_add_signed(by);
        daemon.reconciler.clock("this boot", self.lead, Timestamp(daemon.now));
        daemon.later(0);
    }
}

const MINUTE: u64 = 60_000;

#[test]
fn a_clock_that_is_set_neither_ends_a_wait_nor_makes_it_longer() {
    let failing = "retries = 9\nretry = { on = [\"failure\"], backoff = \"10m\" }";
    for jump in [HOUR as i64, -(HOUR as i64), -20_000] {
        let mut daemon = Daemon::new(Quotas::new());
        daemon.now = 100 * HOUR;
        let mut clock = Clock { lead: 0 };
        clock.set(&mut daemon, 0);
        daemon.file("a/fails", failing);
        daemon.file("a/long", "max_duration = \"30m\"");
        daemon.file("a/slow", "expected_duration = \"20m\"");
        daemon.file("a/kept", "debug = true");
        daemon.file_unprepared("a/unready");
        daemon.end_as("a/fails", TaskEnd::Exited { code: 1 });
        daemon.keep("a/kept", 25 * MINUTE);
        daemon.later(5 * MINUTE);
        clock.set(&mut daemon, jump);
        daemon.later(4 * MINUTE);
        let waits = ["a/fails", "a/unready", "a/long", "a/slow"];
        let waiting = [State::Waiting, State::Waiting, State::Running, State::Running];
        assert_eq!(daemon.states(waits), waiting, "set by {jump}");
        // Also while no daemon is there that could see it.
        daemon.reconciler = open(&daemon.store, &daemon.quotas, daemon.now.saturating_add_signed(jump));
        clock.set(&mut daemon, jump);
        assert_eq!(daemon.states(waits), waiting, "set by {jump} meanwhile");
        let kept = daemon.report("a/kept").reason;
        let until = Timestamp(daemon.now + 16 * MINUTE).to_string();
        assert!(kept.contains(&format!("until {until}")), "set by {jump}: {kept}, not {until}");
        daemon.later(MINUTE);
        assert_eq!(daemon.states(["a/fails", "a/unready"]), [State::Running; 2], "set by {jump}");
        assert_eq!(daemon.report("a/long").duration_ms, Some(10 * MINUTE), "set by {jump}");
        assert_eq!(daemon.used_ms("a/long"), 10 * MINUTE, "set by {jump}");
        daemon.later(10 * MINUTE - 1000);
        assert_eq!(daemon.told("a/slow", "longer than its expected_duration"), 0, "set by {jump}");
        daemon.later(1000);
        assert_eq!(daemon.told("a/slow", "longer than its expected_duration"), 1, "set by {jump}");
        daemon.later(10 * MINUTE - 1000);
        assert_eq!(daemon.state("a/long"), State::Running, "set by {jump}");
        daemon.later(1000);
        assert_eq!(daemon.state("a/long"), State::Stopping, "set by {jump}: {}", daemon.report("a/long").reason);
        // What could not be looked at is looked at again in a second.
        daemon.look_in_vain("a/slow");
        clock.set(&mut daemon, jump);
        let round = daemon.reconciler.pass(Timestamp(daemon.now)).unwrap();
        assert_eq!((round.works.len(), round.wake_at), (0, Some(Timestamp(daemon.now + 1000))), "set by {jump}");
    }
    // Of another start of the machine nothing is known but its clock.
    let mut daemon = Daemon::new(Quotas::new());
    daemon.now = HOUR;
    let mut clock = Clock { lead: 0 };
    clock.set(&mut daemon, 0);
    daemon.file("a/fails", failing);
    daemon.end_as("a/fails", TaskEnd::Exited { code: 1 });
    clock.set(&mut daemon, -900);
    assert_eq!(daemon.state("a/fails"), State::Waiting, "by so little clocks are put right all the time");
    daemon.now += 11 * MINUTE;
    daemon.reconciler.clock("another boot", 5 * HOUR as i64, Timestamp(daemon.now));
    daemon.later(0);
    assert_eq!(daemon.state("a/fails"), State::Running);
}

#[test]
fn of_a_file_that_is_refused_since_an_upgrade_what_runs_goes_on_and_nothing_new_is_begun() {
    let mut daemon = Daemon::new(Quotas::new());
    let fails_once = "retries = 9\nretry = { on = [\"failure\"], backoff = \"10m\" }";
    // As an earlier version would have taken them in, for which that is the name of an image.
    let accepted_before = |key: &str| {
        let (source, spec) = source(fails_once);
        let source = SourceRecord { text: format!("image = \"an image\"\n{}", source.text), ..source };
        Arrival::Accepted { key: key.parse().unwrap(), source, spec: Box::new(spec) }
    };
    daemon.files(vec![accepted_before("a/runs"), accepted_before("a/tries")]);
    daemon.end_as("a/tries", TaskEnd::Exited { code: 1 });
    assert_eq!(daemon.states(["a/runs", "a/tries"]), [State::Running, State::Waiting]);
    daemon.restart();
    assert_eq!(daemon.states(["a/runs", "a/tries"]), [State::Running, State::Failed]);
    let reason = daemon.report("a/tries").reason;
    assert!(reason.contains("refuses its job file: spec.toml:1:9: `image`: "), "{reason}");
    for key in ["a/runs", "a/tries"] {
        let refused = daemon.ask(key, Verb::Rerun).unwrap_err();
        assert!(
            matches!(refused, Refusal::RefusedNow { .. }) && refused.to_string().contains("spec.toml:1:9"),
            "{key}: {refused}"
        );
    }
    daemon.end_as("a/runs", TaskEnd::Exited { code: 1 });
    daemon.later(HOUR);
    assert_eq!(daemon.states(["a/runs", "a/tries"]), [State::Failed, State::Failed]);
    assert_eq!((daemon.report("a/runs").run, daemon.report("a/runs").attempt), (1, 1), "it is not tried again");
    daemon.files(vec![accepted("a/runs", fails_once), accepted("a/tries", fails_once)]);
    assert_eq!(daemon.states(["a/runs", "a/tries"]), [State::Running, State::Running], "of files that are put right");
    assert_eq!(daemon.report("a/runs").run, 2);
}

#[test]
fn of_a_file_that_cannot_be_read_at_all_since_an_upgrade_what_runs_goes_on_and_nothing_new_is_begun() {
    let mut daemon = Daemon::new(Quotas::new());
    let words = "retries = 9\nretry = { on = [\"failure\"], backoff = \"10m\" }";
    // As an earlier version would have taken them in, for which one had a key, and the other was not even TOML.
    let accepted_before = |key: &str, instead: fn(&str) -> String| {
        let (source, spec) = source(words);
        let source = SourceRecord { text: instead(&source.text), ..source };
        Arrival::Accepted { key: key.parse().unwrap(), source, spec: Box::new(spec) }
    };
    let with_key = |text: &str| format!("of_the_past = 1\n{text}");
    daemon.files(vec![
        accepted_before("a/runs", with_key),
        accepted_before("a/other", |_| "{ \"words\": 1 }".to_owned()),
        accepted_before("a/tries", with_key),
    ]);
    daemon.end_as("a/tries", TaskEnd::Exited { code: 1 });
    let all = ["a/runs", "a/other", "a/tries"];
    assert_eq!(daemon.states(all), [State::Running, State::Running, State::Waiting]);
    for _ in 0..2 {
        daemon.restart();
        assert_eq!(daemon.states(all), [State::Running, State::Running, State::Failed]);
    }
    let told = daemon.report("a/runs").diagnostics.iter().map(ToString::to_string).collect::<String>();
    assert!(told.contains("spec.toml:1:1: unknown key `of_the_past`"), "{told}");
    let reason = daemon.report("a/tries").reason;
    assert!(reason.contains("refuses its job file: spec.toml:1:1: unknown key `of_the_past`"), "{reason}");
    for key in all {
        assert!(matches!(daemon.ask(key, Verb::Rerun).unwrap_err(), Refusal::RefusedNow { .. }), "{key}");
    }
    daemon.end_as("a/runs", TaskEnd::Exited { code: 1 });
    daemon.end_as("a/other", TaskEnd::Exited { code: 0 });
    daemon.later(HOUR);
    assert_eq!(daemon.states(all), [State::Failed, State::Succeeded, State::Failed], "each as it has ended");
    assert_eq!((daemon.report("a/runs").run, daemon.report("a/runs").attempt), (1, 1), "it is not tried again");
    daemon.files(all.map(|key| accepted(key, words)).into());
    assert_eq!(daemon.states(["a/runs", "a/tries"]), [State::Running; 2], "of files that are put right");
}

#[test]
fn what_is_lost_again_and_again_is_not_tried_for_ever() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("a/lost", "retries = 9\nretry = { on = [\"lost\"], backoff = \"1s\" }");
    for attempt in 1..=4 {
        assert_eq!(daemon.state("a/lost"), State::Running, "attempt {attempt}");
        daemon.end_as("a/lost", TaskEnd::Lost { reason: "the machine restarted".to_owned() });
        daemon.later(HOUR);
    }
    assert_eq!(daemon.state("a/lost"), State::Failed, "three that are lost are made up for, of nine that may be tried");
    assert_eq!(daemon.report("a/lost").attempt, 4);
}

#[test]
fn a_task_that_never_started_does_not_run_and_its_reason_gives_no_orders_to_a_terminal() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.reconciler.handle(Event::Files(vec![accepted("a/unstarted", "")]), Timestamp(1000));
    let works = daemon.reconciler.pass(Timestamp(1000)).unwrap().works;
    let launch = works.iter().find_map(|work| match work {
        Work::Launch(launch) => Some(launch.clone()),
        _ => None,
    });
    let launch = launch.unwrap();
    // Part of it is what a server or an archive said.
    let error = EngineError("no image: \x1b[31mforged\n2026-01-01 all is well".to_owned());
    let failures = vec![(TaskId::first(launch.attempt, 0), error)];
    daemon.reconciler.handle(Event::Done(Outcome::Launched { attempt: launch.attempt, failures }), Timestamp(1000));
    daemon.pass();
    let report = daemon.report("a/unstarted");
    assert_eq!(report.state, State::Failed);
    let told = format!("{} {}", report.reason, report.tasks[0].reason);
    assert_eq!(daemon.told("a/unstarted", "all tasks run"), 0);
    assert!(!told.contains(char::is_control) && told.contains("\\u{1b}[31mforged"), "{told}");
}
