//! The queue where jobs want cards: who is given which, what is told of them, and what is done when they are idle, fail, or are
//! used by more than a share.

use super::shares::share;
use super::*;

impl Daemon {
    /// The cards were looked at; says whether they are to be again.
    pub(super) fn cards(&mut self, seen: Inventory) -> bool {
        self.reconciler.handle(Event::Gpus(Arc::new(seen)), Timestamp(self.now));
        self.looked()
    }

    /// That has been done, whatever came of it.
    fn looked(&mut self) -> bool {
        self.reconciler.handle(Event::Done(Outcome::LookedAtCards), Timestamp(self.now));
        self.asks()
    }

    /// Somebody is to look at the cards.
    fn asks(&mut self) -> bool {
        self.pass().iter().any(|work| matches!(work, Work::LookAtCards))
    }

    /// Leased cards are measured, so long after the last time; each was so busy, in percent.
    fn measured(&mut self, later: u64, busy: &[Option<u32>]) -> Vec<Work> {
        self.now += later;
        let sample = |(index, utilisation): (usize, &Option<u32>)| {
            (gpu(index), Sample { utilisation: *utilisation, ..Sample::default() })
        };
        let cards = busy.iter().enumerate().map(sample).collect();
        let measured = Arc::new(Measured { cards, ..Measured::nothing(Timestamp(self.now)) });
        self.reconciler.handle(Event::Measured(measured), Timestamp(self.now));
        self.pass()
    }

    /// The cards of the newest attempt of a job with one task.
    fn cards_of(&self, key: &str) -> Vec<GpuUuid> {
        let runs = self.store.runs(&key.parse().unwrap(), 0..=u32::MAX, usize::MAX).unwrap();
        let task = &runs.last().unwrap().attempts.last().unwrap().tasks[0];
        task.gpus.iter().map(|lease| lease.uuid.clone()).collect()
    }

    pub(super) fn later(&mut self, ms: u64) -> bool {
        self.now += ms;
        self.reconciler.handle(Event::Tick, Timestamp(self.now));
        self.asks()
    }
}

pub(super) fn gpu(index: usize) -> GpuUuid {
    format!("GPU-{index}").parse().unwrap()
}

/// Of a card, to be shared, bytes.
const MEMORY: u64 = 80 << 30;

/// Cards that nobody uses.
pub(super) fn idle(count: usize, at: u64) -> Inventory {
    let card = |index: usize| Card {
        facts: Facts {
            uuid: gpu(index),
            name: "card".to_owned(),
            minor: Some(index as u32),
            bus: String::new(),
            numa_node: None,
            cpus: Vec::new(),
            memory: Some(MEMORY + deck::RESERVE),
        },
        slices: Vec::new(),
        mig: false,
        signs: Signs::default(),
        findings: Vec::new(),
        usage: Some(Usage { processes: Some(Vec::new()), ..Usage::default() }),
    };
    Inventory {
        driver: Driver::Loaded { version: "1".to_owned(), cuda: None },
        cards: (0..count).map(card).collect(),
        nameless: Vec::new(),
        topology: Topology::of(count, |_, _| Link::System),
        at: Some(Timestamp(at)),
        took_ms: 0,
    }
}

pub(super) fn gpus(count: usize) -> String {
    format!("resources = {{ cpu = 1, memory = \"100MB\", gpu = {count} }}")
}

#[test]
fn a_file_waits_for_a_driver_and_for_cards_without_a_name_but_is_refused_where_there_are_fewer() {
    let mut daemon = Daemon::new(Quotas::new());
    let driver = Driver::Missing { reason: "the NVIDIA driver is not loaded".to_owned() };
    daemon.cards(Inventory { driver, ..idle(0, 1000) });
    daemon.file("a/one", &gpus(1));
    let one = daemon.report("a/one");
    assert_eq!(one.state, State::Waiting);
    assert!(one.reason.ends_with("; no GPUs: the NVIDIA driver is not loaded"), "{}", one.reason);
    daemon.now += 1;
    daemon.cards(Inventory { nameless: vec!["card 1 does not answer: lost".to_owned()], ..idle(1, 1001) });
    assert_eq!(daemon.state("a/one"), State::Running);
    daemon.file("a/two", &gpus(2));
    daemon.file("a/three", &gpus(3));
    assert_eq!(daemon.states(["a/two", "a/three"]), [State::Waiting, State::Invalid]);
    let reason = daemon.report("a/two").reason;
    assert!(reason.contains("; card 1 does not answer: lost"), "{reason}");
    let reason = daemon.report("a/three").reason;
    assert!(reason.contains("3 GPU(s) of 2 that this machine can give"), "{reason}");
}

#[test]
fn what_came_before_the_cards_were_known_is_judged_once_when_they_are() {
    let mut daemon = Daemon::new(Quotas::new());
    let driver = || Driver::Missing { reason: "the NVIDIA driver is not loaded".to_owned() };
    daemon.cards(Inventory { driver: driver(), ..idle(0, 1000) });
    let jobs = ["a/one", "a/two", "a/much", "a/none"];
    let wants = [gpus(1), gpus(2), gpus(3), "resources.cpu = 1".to_owned()];
    jobs.iter().zip(&wants).for_each(|(job, wants)| daemon.file(job, wants));
    daemon.file("a/share", "resources = { cpu = 1, gpu_memory = \"81GiB\" }");
    daemon.restart();
    daemon.now += 1;
    daemon.cards(Inventory { driver: driver(), ..idle(0, 1001) });
    assert_eq!(daemon.states(["a/one", "a/two", "a/much", "a/share"]), [State::Waiting; 4]);
    daemon.now += 1;
    daemon.cards(idle(2, 1002));
    let judged = [State::Running, State::Waiting, State::Invalid, State::Running];
    assert_eq!(daemon.states(jobs), judged);
    assert_eq!(daemon.state("a/share"), State::Invalid);
    // As if it came now.
    daemon.file("a/late", &gpus(3));
    let [late, much] = ["a/late", "a/much"].map(|job| daemon.report(job));
    assert!(much.reason.contains("3 GPU(s) of 2 that this machine can give"), "{}", much.reason);
    assert_eq!((late.reason.replace("late", "much"), late.state), (much.reason, much.state));
    // What was judged once waits, whatever comes, also over a restart of the machine; and so does what came when cards were known.
    daemon.file("a/later", &gpus(2));
    daemon.restart();
    assert_eq!(daemon.state("a/much"), State::Invalid);
    daemon.now += 1;
    daemon.cards(idle(1, 1003));
    assert_eq!(daemon.states(["a/two", "a/later", "a/much"]), [State::Waiting, State::Waiting, State::Invalid]);
    // With more cards after a restart it is told of these, and what they are enough for runs.
    daemon.now += 1;
    daemon.cards(idle(3, 1004));
    daemon.restart();
    let again = [accepted("a/much", &gpus(3)), accepted("a/share", "resources = { cpu = 1, gpu_memory = \"81GiB\" }")];
    daemon.files(again.into());
    assert_eq!(daemon.states(["a/much", "a/share"]), [State::Waiting; 2], "it is not known again");
    daemon.now += 1;
    daemon.cards(idle(3, 1005));
    let share = daemon.report("a/share");
    assert!(share.state == State::Invalid && share.reason.contains("has 3 ×"), "{share:?}");
    assert_eq!(daemon.told("a/much", "the job file is valid again"), 1);
    assert!(
        daemon.report("a/much").run == 2 && daemon.state("a/much") != State::Failed,
        "{:?}",
        daemon.report("a/much")
    );
    // A file that is put right runs.
    daemon.file("a/share", "resources.cpu = 1");
    assert_eq!(daemon.state("a/share"), State::Running);
}

#[test]
fn what_was_seen_long_ago_is_looked_at_first_and_a_driver_is_blamed_only_if_it_was_asked() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    assert!(!daemon.later(HOUR), "nobody waits");
    let asked = daemon.now;
    daemon.reconciler.handle(Event::Files(vec![accepted("a/one", &gpus(1))]), Timestamp(asked));
    assert!(daemon.asks());
    let reason = daemon.report("a/one").reason;
    assert_eq!(reason, "waits for 1 GPU(s): this machine has 0 that can be used now; GPU 0 is being looked at");
    assert!(!daemon.later(5000), "it is being done");
    let reason = daemon.report("a/one").reason;
    let silent =
        format!("; GPU 0 is being looked at, but NVML has not answered since {}", Timestamp(asked).to_seconds());
    assert!(reason.ends_with(&silent), "{reason}");
    assert!(daemon.looked(), "it came to nothing");
    // What is older than what is known says nothing.
    let driver = Driver::Missing { reason: "gone".to_owned() };
    assert!(!daemon.looked());
    daemon.reconciler.handle(Event::Gpus(Arc::new(Inventory { driver, ..idle(0, 999) })), Timestamp(daemon.now));
    daemon.pass();
    assert!(daemon.report("a/one").reason.ends_with(&silent));
    assert!(daemon.later(2000));
    daemon.cards(idle(1, daemon.now));
    assert_eq!(daemon.state("a/one"), State::Running);
}

#[test]
fn a_clock_that_is_set_back_locks_no_card() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.now += 2 * HOUR;
    daemon.file("a/one", &gpus(1));
    daemon.cards(idle(1, daemon.now));
    assert_eq!(daemon.state("a/one"), State::Running);
    daemon.file("a/two", &gpus(1));
    daemon.end("a/one");
    assert_eq!(daemon.state("a/two"), State::Waiting, "it was given back since it was looked at");
    daemon.now -= HOUR;
    assert!(!daemon.asks(), "it is not asked for again and again");
    // Neither when it was asked for nor when it was given back counts until then.
    let mut rounds = 0;
    while daemon.state("a/two") != State::Running {
        daemon.later(500);
        daemon.cards(idle(1, daemon.now));
        rounds += 1;
        assert!(rounds < 10, "{}", daemon.report("a/two").reason);
    }
}

#[test]
fn a_job_whose_cards_are_idle_is_told_so_once_or_stopped_and_never_for_what_was_not_seen() {
    let mut daemon = Daemon::new(Quotas::new());
    let file = |rule: &str| format!("alerts.gpu_idle = {{ {rule} }}\n{}", gpus(2));
    daemon.file("a/job", &file("for = '20s'"));
    daemon.cards(idle(2, 1000));
    assert_eq!(daemon.state("a/job"), State::Running);
    let (still, alarm) = ([Some(0), Some(4)], "alarm: its GPUs have been used less than 5 % for 20s");
    let idle_for = |daemon: &mut Daemon, samples: usize| (0..samples).for_each(|_| drop(daemon.measured(5000, &still)));
    // One card is busy, one does not tell, a sample is missing, the clock is set: each begins it anew.
    for (later, busy) in [(5000, [Some(0), Some(5)]), (5000, [Some(0), None]), (12_501, still), (60_000, still)] {
        idle_for(&mut daemon, 3);
        daemon.measured(later, &busy);
        assert_eq!(daemon.told("a/job", alarm), 0, "{busy:?} after {later}");
    }
    daemon.now -= 30_000;
    idle_for(&mut daemon, 4);
    assert_eq!(daemon.told("a/job", alarm), 0);
    idle_for(&mut daemon, 1);
    assert_eq!(daemon.told("a/job", alarm), 1);
    let since = format!("1 of 1 task(s) running, its GPUs idle since {}", Timestamp(daemon.now - 20_000).to_seconds());
    assert_eq!(daemon.report("a/job").reason, since);
    // It is told once, also by a daemon that counts anew.
    idle_for(&mut daemon, 6);
    daemon.restart();
    idle_for(&mut daemon, 6);
    assert_eq!(daemon.told("a/job", alarm), 1);
    assert!(daemon.report("a/job").reason.contains("its GPUs idle since"));
    daemon.measured(5000, &[Some(90), Some(0)]);
    assert_eq!(daemon.report("a/job").reason, "1 of 1 task(s) running");
    // The restarted daemon has seen less than all of it.
    idle_for(&mut daemon, 4);
    daemon.restart();
    idle_for(&mut daemon, 4);
    assert_eq!(daemon.told("a/job", alarm), 1);
    idle_for(&mut daemon, 1);
    assert_eq!(daemon.told("a/job", alarm), 2);
    // A newer word acts at once, and makes no new run.
    daemon.file("a/job", &file("for = '40s', then = 'stop'"));
    idle_for(&mut daemon, 3);
    assert_eq!(daemon.state("a/job"), State::Running);
    let stops = daemon.measured(5000, &still);
    assert!(stops.iter().any(|work| matches!(work, Work::Stop { .. })), "{stops:?}");
    daemon.end("a/job");
    let report = daemon.report("a/job");
    assert_eq!((report.state, report.run), (State::Stopped, 1));
    assert!(report.reason.contains("used less than 5 % for 40s (alerts.gpu_idle)"), "{}", report.reason);
}

#[test]
fn leased_cards_alone_are_measured_and_only_while_tasks_run_on_them() {
    let mut daemon = Daemon::new(Quotas::new());
    let measured = |works: &[Work]| {
        let cards = works.iter().filter_map(|work| match work {
            Work::Measure { tasks } => {
                Some(tasks.iter().flat_map(|(_, held)| held.iter().map(|held| held.card().clone())).collect::<Vec<_>>())
            }
            _ => None,
        });
        cards.collect::<Vec<_>>()
    };
    daemon.file("a/none", &cores(1, ""));
    daemon.reconciler.handle(Event::Gpus(Arc::new(idle(3, 1000))), Timestamp(1000));
    assert_eq!(measured(&daemon.pass()), [[]; 0]);
    daemon.reconciler.handle(Event::Files(vec![accepted("a/one", &gpus(1))]), Timestamp(1000));
    assert_eq!(measured(&daemon.pass()), [[gpu(0)]]);
    daemon.now += 5000;
    assert_eq!(measured(&daemon.pass()), [[]; 0], "it is being done");
    assert_eq!(measured(&daemon.measured(0, &[Some(1)])), [[gpu(0)]]);
    assert_eq!(measured(&daemon.measured(4999, &[Some(1)])), [[]; 0]);
    // What was measured long ago says nothing of now.
    let shown = |daemon: &mut Daemon| {
        let (caller, key, events) = (Caller::root(), "a/one".parse().unwrap(), EventPart::None);
        daemon.request(|answer| Request::Show { caller, key, runs: NEWEST_RUN, events, answer }).gpus[0].utilisation
    };
    daemon.now += 1;
    assert_eq!((measured(&daemon.pass()), shown(&mut daemon)), (vec![vec![gpu(0)]], Some(1)));
    daemon.now += 12_499;
    assert_eq!(shown(&mut daemon), Some(1));
    daemon.now += 1;
    assert_eq!(shown(&mut daemon), None);
    daemon.end("a/one");
    assert_eq!(measured(&daemon.measured(60_000, &[])), [[]; 0]);
}

#[test]
fn a_job_is_told_once_that_its_card_has_failed_and_is_stopped_or_tried_again_elsewhere_if_its_file_says_so() {
    let mut daemon = Daemon::new(Quotas::new());
    let file = |policy: &str| format!("retries = 1\non_gpu_failure = '{policy}'\n{}", gpus(1));
    for policy in ["alert", "stop", "retry"] {
        daemon.file(&format!("a/{policy}"), &file(policy));
    }
    daemon.cards(idle(4, 1000));
    let all = ["a/alert", "a/stop", "a/retry"];
    assert_eq!(daemon.states(all), [State::Running; 3]);
    let failed = |at: u64| {
        let mut seen = idle(4, at);
        for card in &mut seen.cards[..3] {
            card.signs.lost = Some("fell off the bus".to_owned());
            card.findings = health::judge(&card.signs, None);
        }
        seen
    };
    daemon.now += 10;
    daemon.cards(failed(daemon.now));
    assert_eq!(daemon.states(all), [State::Running, State::Stopping, State::Stopping]);
    for key in all {
        assert_eq!(
            daemon.told(key, "has failed: does not answer (fell off the bus)"),
            if key == all[0] { 1 } else { 2 }
        );
        assert_eq!(daemon.told(key, "alarm: GPU "), 1, "{key}");
    }
    let told = daemon.report("a/alert").reason;
    let place = (0..4).find(|index| gpu(*index) == daemon.cards_of("a/alert")[0]).unwrap();
    assert!(told.contains(&format!(", GPU {place} has failed")), "{told}");
    daemon.end("a/stop");
    daemon.end("a/retry");
    let stopped = daemon.report("a/stop");
    assert_eq!((stopped.state, stopped.attempt), (State::Failed, 1));
    assert!(
        stopped.reason.starts_with("stopped since GPU ") && stopped.reason.ends_with("(on_gpu_failure)"),
        "{stopped:?}"
    );
    daemon.now += 10;
    daemon.cards(failed(daemon.now));
    let retried = daemon.report("a/retry");
    assert_eq!((retried.state, retried.attempt), (State::Running, 2));
    assert_eq!(daemon.cards_of("a/retry"), [gpu(3)]);
    // Whoever is started anew tells nothing twice.
    daemon.restart();
    daemon.now += 10;
    daemon.cards(failed(daemon.now));
    assert_eq!(daemon.told("a/alert", "alarm: GPU "), 1);
    // A newer word acts at once, as long as the card has not come back.
    daemon.file("a/alert", &file("stop"));
    assert_eq!(daemon.state("a/alert"), State::Stopping);
}

#[test]
fn a_failed_card_that_somebody_has_is_nothing_to_wait_for() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(4, 1000));
    daemon.file("a/has", &format!("max_duration = '2h'\n{}", gpus(2)));
    assert_eq!(daemon.cards_of("a/has"), [gpu(0), gpu(1)]);
    daemon.now += 10;
    let one_failed = |at: u64| {
        let mut seen = idle(4, at);
        seen.cards[0].signs.lost = Some("fell off the bus".to_owned());
        seen.cards[0].findings = health::judge(&seen.cards[0].signs, None);
        seen
    };
    daemon.cards(one_failed(daemon.now));
    // More than will ever be good again: who comes later does not wait for it.
    daemon.file("a/four", &gpus(4));
    daemon.file("a/one", &gpus(1));
    assert_eq!(daemon.states(["a/has", "a/four", "a/one"]), [State::Running, State::Waiting, State::Running]);
    let reason = daemon.report("a/four").reason;
    assert!(reason.starts_with("waits for 4 GPU(s): this machine has 3 that can be used now"), "{reason}");
    // As many as will be good: it waits for the one of the two that comes back.
    daemon.file("a/three", &gpus(3));
    daemon.file("a/last", &gpus(1));
    assert_eq!(daemon.states(["a/three", "a/last"]), [State::Waiting; 2]);
    daemon.end("a/one");
    daemon.end("a/has");
    daemon.now += 10;
    daemon.cards(one_failed(daemon.now));
    assert_eq!(daemon.cards_of("a/three"), [gpu(1), gpu(2), gpu(3)]);
}

#[test]
fn a_card_that_somebody_has_and_that_is_not_seen_may_be_one_without_a_name() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(2, 1000));
    daemon.file("a/has", &gpus(1));
    assert_eq!(daemon.cards_of("a/has"), [gpu(0)]);
    daemon.file("a/two", &gpus(2));
    let missing = |nameless: &[&str], at: u64| {
        let mut seen = idle(2, at);
        seen.cards.remove(0);
        Inventory { nameless: nameless.iter().map(|said| (*said).to_owned()).collect(), ..seen }
    };
    let reason = |daemon: &mut Daemon, nameless: &[&str]| {
        daemon.now += 10;
        daemon.cards(missing(nameless, daemon.now));
        daemon.report("a/two").reason
    };
    let may_come_back = reason(&mut daemon, &["card 0 does not answer: lost"]);
    assert_eq!(daemon.told("a/has", "has failed"), 0);
    assert!(may_come_back.starts_with("waits for 2 GPU(s), held by a/has; "), "{may_come_back}");
    let is_gone = reason(&mut daemon, &[]);
    assert_eq!(daemon.told("a/has", "alarm: GPU GPU-0 has failed: the driver no longer has it"), 1);
    assert!(is_gone.starts_with("waits for 2 GPU(s): this machine has 1 that can be used now"), "{is_gone}");
}

#[test]
fn cards_that_there_are_none_of_are_refused_saying_what_there_is_once_that_is_known() {
    let mut daemon = Daemon::new(Quotas::new());
    let wants = |what: &str| format!("resources = {{ cpu = 1, memory = \"100MB\", {what} }}");
    daemon.file("a/early", &wants("gpu = 1, gpu_type = \"H100\""));
    assert_eq!(daemon.state("a/early"), State::Waiting);
    daemon.cards(idle(2, 1000));
    assert_eq!(daemon.state("a/early"), State::Invalid, "it is known now");
    let refused = [
        ("gpu = 1, gpu_type = \"H100\"", "the job needs 1 GPU(s) of type H100, and this machine has 2 × card (80GiB)"),
        ("gpu_memory = \"81GiB\"", "the job needs a share of 81GiB of a GPU, and this machine has 2 × card (80GiB)"),
        ("mig = \"1g.10gb\"", "the job needs 1 MIG slice(s) 1g.10gb, and this machine has 2 × card (80GiB)"),
        ("gpu = 3, gpu_type = \"Card\"", "the job needs 3 GPU(s) of type Card, and this machine has 2 × card (80GiB)"),
    ];
    for (what, why) in refused {
        daemon.file("a/late", &wants(what));
        assert_eq!(daemon.state("a/late"), State::Invalid, "{what}");
        assert!(daemon.report("a/late").reason.contains(why), "{}", daemon.report("a/late").reason);
    }
    daemon.file("a/fits", &wants("gpu = 2, gpu_type = \"CARD\""));
    assert_eq!(daemon.state("a/fits"), State::Running);
    // One that does not tell its name may be of any kind.
    daemon.now += 10;
    daemon.cards(Inventory { nameless: vec!["card 2 does not answer".to_owned()], ..idle(2, daemon.now) });
    daemon.file("a/late", &wants("gpu = 1, gpu_type = \"A100\""));
    assert_eq!(daemon.state("a/late"), State::Waiting);
}

/// The same, of which those at these places do not answer.
pub(super) fn lost(count: usize, places: &[usize], at: u64) -> Inventory {
    let mut seen = idle(count, at);
    for place in places {
        let card = &mut seen.cards[*place];
        card.facts.bus = format!("00000000:{:02x}:00.0", 0x1b + place);
        card.signs.lost = Some("fell off".to_owned());
        card.findings = health::judge(&card.signs, None);
    }
    seen
}

#[test]
fn a_job_whose_tasks_share_a_card_is_told_once_that_it_has_failed() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/job", &format!("roles.w.count = 2\n{}", share(1, "")));
    assert_eq!(daemon.cards_of("a/job"), [gpu(0)]);
    daemon.now += 10;
    daemon.cards(lost(1, &[0], daemon.now));
    assert_eq!(daemon.told("a/job", "alarm: GPU 0"), 1);
}

#[test]
fn a_card_that_is_well_again_is_told_so_and_anew_when_it_fails_again_but_a_silent_driver_fails_none() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/job", &gpus(1));
    assert_eq!(daemon.state("a/job"), State::Running);
    // An upgrade of the driver while jobs run.
    let driver = Driver::Missing { reason: "the driver in the kernel is of another version".to_owned() };
    daemon.now += 10;
    daemon.cards(Inventory { driver, ..lost(1, &[0], daemon.now) });
    assert_eq!(daemon.told("a/job", "has failed"), 0);
    let alarm = "alarm: GPU 0 (00000000:1b:00.0) has failed: does not answer (fell off)";
    for round in 1..3 {
        daemon.now += 10;
        daemon.cards(lost(1, &[0], daemon.now));
        assert_eq!(daemon.told("a/job", alarm), round);
        assert!(daemon.report("a/job").reason.ends_with(", GPU 0 has failed"));
        daemon.now += 10;
        daemon.cards(idle(1, daemon.now));
        assert_eq!(daemon.told("a/job", "GPU 0 is well again"), round);
        assert_eq!(daemon.report("a/job").reason, "1 of 1 task(s) running");
    }
}

#[test]
fn cards_of_which_the_same_is_said_are_told_in_one_sentence_and_so_are_lost_ones_that_somebody_has() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(8, 1000));
    daemon.file("a/has", &gpus(1));
    assert_eq!(daemon.cards_of("a/has"), [gpu(0)]);
    daemon.now += 10;
    daemon.cards(lost(8, &[0, 2, 4, 5, 6, 7], daemon.now));
    daemon.file("a/all", &gpus(8));
    let reason = daemon.report("a/all").reason;
    assert!(reason.contains("; GPU 0, 2 and 4 to 7: lost: does not answer (fell off); "), "{reason}");
    assert_eq!(reason.matches("does not answer").count(), 1, "{reason}");
    // One alone is told as ever.
    daemon.now += 10;
    daemon.cards(lost(8, &[0], daemon.now));
    let reason = daemon.report("a/all").reason;
    assert!(reason.contains("; GPU 0 lost: does not answer (fell off); "), "{reason}");
}

#[test]
fn what_was_seen_counts_from_when_the_look_was_over_however_long_it_took() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.now += 20_000;
    let slow = |begun: u64, took_ms: u64| Inventory { took_ms, ..idle(1, begun) };
    daemon.cards(slow(daemon.now - 12_000, 6000));
    daemon.file("a/one", &gpus(1));
    assert_eq!(daemon.state("a/one"), State::Waiting, "that is 6 s ago");
    daemon.cards(slow(daemon.now - 6000, 6000));
    assert_eq!(daemon.state("a/one"), State::Running);
    // What was given back while it was looked at counts as seen before that.
    daemon.file("a/two", &gpus(1));
    daemon.end("a/one");
    for (begun, took_ms) in [(daemon.now - 1, 1), (daemon.now, 0)] {
        daemon.cards(slow(begun, took_ms));
        assert_eq!(daemon.state("a/two"), State::Waiting, "{took_ms}");
    }
    daemon.now += 1;
    daemon.cards(slow(daemon.now, 0));
    assert_eq!(daemon.state("a/two"), State::Running);
}

#[test]
fn of_a_card_that_does_not_tell_its_memory_all_is_had_and_no_share() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(1, 1000);
    seen.cards[0].facts.memory = None;
    daemon.cards(seen);
    daemon.file("a/share", "resources = { cpu = 1, memory = '100MB', gpu_memory = '1GiB' }");
    daemon.file("a/whole", &gpus(1));
    assert_eq!(daemon.states(["a/share", "a/whole"]), [State::Invalid, State::Running]);
    let reason = daemon.report("a/share").reason;
    assert!(reason.contains("this machine has 1 × card (it does not tell its memory)"), "{reason}");
}

#[test]
fn how_long_a_card_is_used_by_others_counts_from_when_somebody_came_who_is_not_to_be_ignored() {
    let mut daemon = Daemon::new(Quotas::new());
    let used = |is_ignored: bool, at: u64| {
        let mut seen = idle(1, at);
        let process = Process { is_ignored, ..stranger() };
        seen.cards[0].usage.as_mut().unwrap().processes = Some(vec![process]);
        seen
    };
    daemon.cards(used(true, 1000));
    daemon.now += 2 * HOUR;
    daemon.cards(used(false, daemon.now));
    daemon.file("a/big", "resources = { cpu = 8, memory = \"100MB\", gpu = 1 }");
    // Who has just come is guessed to go soon: that is no time for half an hour of something else.
    daemon.file("a/small", "max_duration = '30m'\nresources = { cpu = 1, memory = \"100MB\" }");
    assert_eq!(daemon.states(["a/big", "a/small"]), [State::Waiting; 2]);
    daemon.now += HOUR;
    daemon.cards(used(false, daemon.now));
    assert_eq!(daemon.states(["a/big", "a/small"]), [State::Waiting, State::Running]);
}

#[test]
fn a_process_that_is_to_be_ignored_keeps_nobody_from_a_share_beside_another() {
    let mut daemon = Daemon::new(Quotas::new());
    let wants = "resources = { cpu = 1, memory = \"100MB\", gpu_memory = \"10GiB\" }";
    daemon.cards(idle(1, 1000));
    daemon.file("a/one", wants);
    daemon.now += 10;
    let process = Process { is_ignored: true, ..stranger() };
    let mut seen = idle(1, daemon.now);
    seen.cards[0].usage.as_mut().unwrap().processes = Some(vec![process]);
    daemon.cards(seen);
    daemon.file("a/two", wants);
    assert_eq!(daemon.states(["a/one", "a/two"]), [State::Running; 2]);
}

#[test]
fn who_waits_for_a_card_that_is_held_is_told_by_whom_and_which_is_out_of_use() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(2, 1000);
    seen.cards[1].findings =
        vec![health::Finding { rule: "xid-79".to_owned(), level: health::Level::Failed, says: "it fell".to_owned() }];
    daemon.cards(seen);
    ["a/one", "a/two"].iter().for_each(|job| daemon.file(job, &gpus(1)));
    let reason = daemon.report("a/two").reason;
    assert!(reason.starts_with("waits for 1 GPU(s), held by a/one; free: "), "{reason}");
    assert!(reason.ends_with("; GPU 1 xid-79: it fell"), "{reason}");
}

#[test]
fn a_card_of_which_the_driver_does_not_say_what_runs_on_it_is_nobody_s() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(2, 1000);
    seen.cards[0].usage.as_mut().unwrap().processes = None;
    daemon.cards(seen);
    daemon.file("a/one", &gpus(1));
    assert_eq!(daemon.cards_of("a/one"), [gpu(1)]);
    daemon.file("a/two", &gpus(1));
    daemon.file("a/share", &share(10, ""));
    assert_eq!(daemon.states(["a/two", "a/share"]), [State::Waiting; 2]);
    let reason = daemon.report("a/two").reason;
    assert!(reason.contains("; GPU 0 the driver does not say what runs on it"), "{reason}");
}

#[test]
fn a_process_that_is_to_be_ignored_keeps_nobody_from_a_card() {
    let mut daemon = Daemon::new(Quotas::new());
    let used = |at: u64, is_ignored: bool| {
        let mut seen = idle(1, at);
        let process = Process { is_ignored, ..stranger() };
        seen.cards[0].usage.as_mut().unwrap().processes = Some(vec![process]);
        seen
    };
    daemon.cards(used(1000, false));
    daemon.file("a/job", &gpus(1));
    assert_eq!(daemon.state("a/job"), State::Waiting);
    daemon.now += 10;
    daemon.cards(used(daemon.now, true));
    assert_eq!(daemon.state("a/job"), State::Running);
}
