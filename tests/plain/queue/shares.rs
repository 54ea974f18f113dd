//! Jobs that have shares of a card: who is given which, and what is done when a task uses more than its own.

use super::cards::{gpus, idle, lost};
use super::*;

/// One that has been looked at, with what tasks use of it.
pub(super) fn used_by(daemon: &Daemon, used: &[(&str, u64)]) -> Inventory {
    let mut seen = idle(1, daemon.now);
    let process = |(key, memory): &(&str, u64)| {
        let runs = daemon.store.runs(&key.parse().unwrap(), 0..=u32::MAX, usize::MAX).unwrap();
        let task = runs.last().and_then(|run| Some(TaskId::first(run.attempts.last()?.id, 0)));
        Process { pid: 7, uid: Some(1000), user: None, memory: Some(memory << 30), task, ..stranger() }
    };
    let processes = used.iter().map(process).collect();
    seen.cards[0].usage = Some(Usage { processes: Some(processes), ..Usage::default() });
    seen
}

pub(super) fn share(gib: u64, rest: &str) -> String {
    format!("resources = {{ cpu = 1, memory = \"100MB\", gpu_memory = \"{gib}GiB\"{rest} }}")
}

#[test]
fn several_jobs_have_shares_of_one_card_and_who_waits_is_told_of_what() {
    let mut daemon = Daemon::new(quota("b", Quota { gpu: Some(0), ..Quota::default() }));
    daemon.cards(idle(1, 1000));
    daemon.file("a/one", &share(40, ""));
    daemon.file("a/two", &share(20, ""));
    assert_eq!(daemon.states(["a/one", "a/two"]), [State::Running; 2]);
    daemon.file("a/big", &share(30, ""));
    daemon.file("a/whole", &gpus(1));
    assert_eq!(daemon.states(["a/big", "a/whole"]), [State::Waiting; 2]);
    let reason = daemon.report("a/big").reason;
    let wanted = "waits for a share of 30GiB of a GPU, held by a/one and a/two; free: ";
    assert!(reason.starts_with(wanted) && reason.contains(", 0 of these"), "{reason}");
    // What processes of our own use of a card does not keep others from their shares, what those of strangers use does.
    daemon.end("a/one");
    // Of who had a share as well, until the driver has let it go.
    daemon.now += 100;
    daemon.cards(used_by(&daemon, &[("a/one", 1), ("a/two", 3)]));
    assert_eq!(daemon.state("a/big"), State::Waiting);
    let seen = used_by(&daemon, &[("a/two", 3)]);
    daemon.now += 100;
    let mut strange = Inventory { at: Some(Timestamp(daemon.now)), ..seen.clone() };
    strange.cards[0].usage.as_mut().unwrap().processes.as_mut().unwrap().push(stranger());
    daemon.cards(strange);
    let reason = daemon.report("a/big").reason;
    assert!(reason.ends_with("; GPU 0, which is shared, is used by process 9 of root"), "{reason}");
    daemon.now += 100;
    daemon.cards(Inventory { at: Some(Timestamp(daemon.now)), ..seen });
    assert_eq!(daemon.states(["a/big", "a/whole"]), [State::Running, State::Waiting]);
    // Usage is by parts of a card: half of one, a quarter, three eighths.
    assert_eq!(daemon.report("a/whole").waiting.unwrap().holders.iter().map(|one| one.holds.gpu).sum::<f64>(), 0.625);
    let used = daemon.request(|answer| Request::Usage { since: Timestamp(0), answer });
    let mut parts: Vec<u64> = used.attempts.iter().map(|used| used.gpu * 1000 + used.gpu_part).collect();
    parts.sort_unstable();
    assert_eq!(parts, [250, 375, 500]);
    daemon.restart();
    daemon.cards(idle(1, daemon.now));
    assert_eq!(daemon.states(["a/two", "a/big", "a/whole"]), [State::Running, State::Running, State::Waiting]);
    daemon.file("b/much", &format!("{}\n[roles.w]\ncount = 2", share(30, "")));
    let reason = daemon.report("b/much").reason;
    assert!(reason.contains("0.75 GPU(s) of 0 that workspace b may have"), "{reason}");
}

#[test]
fn what_an_attempt_had_is_nobody_else_s_before_all_that_is_left_of_it_has_gone() {
    let mut daemon = Daemon::new(quota("q", Quota { cpu: Some(4000), ..Quota::default() }));
    daemon.cards(idle(1, 1000));
    let wants = |cpu: u64| format!("resources = {{ cpu = {cpu}, memory = \"100MB\", gpu_memory = \"50GiB\" }}");
    daemon.file("q/has", &wants(4));
    daemon.file("b/has", &cores(3, ""));
    daemon.file("q/quota", &cores(1, ""));
    daemon.file("c/share", &wants(1));
    daemon.file("c/cores", &cores(2, ""));
    let waiting = ["q/quota", "c/share", "c/cores"];
    assert_eq!(daemon.states(waiting), [State::Waiting; 3]);
    let release = daemon.end_and_leave("q/has");
    daemon.now += 100;
    daemon.cards(used_by(&daemon, &[("q/has", 70)]));
    assert_eq!(daemon.states(waiting), [State::Waiting; 3]);
    assert_eq!(daemon.told("q/has", "alarm"), 0, "its tasks are over");
    daemon.reconciler.handle(Event::Done(release), Timestamp(daemon.now));
    daemon.pass();
    assert_eq!(daemon.states(waiting), [State::Running, State::Waiting, State::Running], "the card is looked at first");
    daemon.now += 100;
    daemon.cards(idle(1, daemon.now));
    assert_eq!(daemon.state("c/share"), State::Running);
}

impl Daemon {
    /// Its only task ends well; what comes of it once what is left of it has been cleared away.
    fn end_and_leave(&mut self, key: &str) -> Outcome {
        let end =
            EndRecord { end: TaskEnd::Exited { code: 0 }, at: Timestamp(self.now), memory_peak: None, note: None };
        let after = trainyard::reconcile::Look::Sign;
        let looked = Outcome::Looked { task: self.task(key), after, result: Ok(Found::Ended(end)) };
        self.reconciler.handle(Event::Done(looked), Timestamp(self.now));
        let works = self.reconciler.pass(Timestamp(self.now)).unwrap().works;
        works.iter().find(|work| matches!(work, Work::Release { .. })).and_then(outcome).unwrap()
    }
}

#[test]
fn a_card_that_somebody_has_is_not_told_to_be_shared_with_its_own_processes() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/whole", &gpus(1));
    daemon.now += 10;
    daemon.cards(used_by(&daemon, &[("a/whole", 60)]));
    daemon.file("a/share", &share(10, ""));
    let report = daemon.report("a/share");
    let wanted = "waits for a share of 10GiB of a GPU, held by a/whole; free: ";
    assert!(report.reason.starts_with(wanted) && !report.reason.contains("; GPU 0"), "{}", report.reason);
    assert_eq!(report.waiting.unwrap().strangers.len(), 0);
}

#[test]
fn shares_of_a_card_that_has_failed_make_what_was_used_of_the_others_count_no_less() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(2, 1000));
    ["a/one", "a/two"].iter().for_each(|job| daemon.file(job, &share(40, "")));
    daemon.file("b/cores", &cores(3, ""));
    daemon.file("c/holds", &gpus(1));
    assert_eq!(daemon.states(["a/one", "a/two", "b/cores", "c/holds"]), [State::Running; 4]);
    daemon.now += HOUR;
    daemon.cards(lost(2, &[0], daemon.now));
    // Half of the cards is more than three of eight cores.
    daemon.files(vec![accepted("a/next", &gpus(1)), accepted("b/next", &gpus(1))]);
    let places = ["b/next", "a/next"].map(|key| daemon.report(key).waiting.unwrap().place);
    assert_eq!(places, [1, 2]);
}

#[test]
fn a_process_whose_memory_the_driver_does_not_tell_is_told_of_once_and_the_others_are_watched() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/one", &share(20, ""));
    let look = |daemon: &mut Daemon, known: u64| {
        daemon.later(10_000);
        let mut seen = used_by(daemon, &[("a/one", known), ("a/one", 0)]);
        let processes = seen.cards[0].usage.as_mut().and_then(|usage| usage.processes.as_mut()).unwrap();
        (processes[1].pid, processes[1].memory) = (8, None);
        daemon.cards(seen);
    };
    look(&mut daemon, 10);
    look(&mut daemon, 10);
    daemon.restart();
    look(&mut daemon, 25);
    let alarm =
        "alarm: the driver does not tell how much memory of GPU 0 process 8 of main-0 uses: that its share of 20GiB is";
    assert_eq!(daemon.told("a/one", alarm), 1);
    assert_eq!(daemon.told("a/one", "alarm: main-0 uses 25GiB of GPU 0, more than its share"), 1);
}

#[test]
fn who_uses_more_than_its_share_is_told_once_and_stopped_if_it_goes_on_for_a_minute() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/stops", &share(20, ""));
    daemon.file("a/alerts", &share(40, ", gpu_memory_over = \"alert\""));
    let told = |daemon: &Daemon, key: &str| {
        let events = daemon.store.events(&key.parse().unwrap(), 0, usize::MAX).unwrap();
        events
            .iter()
            .filter(|event| event.message.starts_with("alarm: "))
            .map(|event| event.message.clone())
            .collect::<Vec<_>>()
    };
    let look = |daemon: &mut Daemon, stops: u64, alerts: u64| {
        assert!(daemon.later(10_000), "they are looked at while somebody has a share");
        daemon.cards(used_by(daemon, &[("a/stops", stops), ("a/alerts", alerts)]));
    };
    look(&mut daemon, 20, 40);
    assert_eq!((told(&daemon, "a/stops").len(), told(&daemon, "a/alerts").len()), (0, 0));
    // Just within it is not within it again.
    for stops in [25, 20, 25, 20, 25] {
        look(&mut daemon, stops, 50);
    }
    let alarm = "alarm: main-0 uses 25GiB of GPU 0, more than its share of 20GiB; the job is stopped if it is still so in a \
                 minute (resources.gpu_memory_over)";
    assert_eq!(told(&daemon, "a/stops"), [alarm]);
    assert_eq!(told(&daemon, "a/alerts"), ["alarm: main-0 uses 50GiB of GPU 0, more than its share of 40GiB"]);
    look(&mut daemon, 10, 50);
    for _ in 0..6 {
        look(&mut daemon, 25, 50);
        assert_eq!(daemon.state("a/stops"), State::Running);
    }
    assert_eq!(told(&daemon, "a/stops").len(), 2, "it was within it in between");
    look(&mut daemon, 25, 50);
    assert_eq!(daemon.states(["a/stops", "a/alerts"]), [State::Stopping, State::Running]);
    let reason = daemon.report("a/stops").reason;
    assert!(reason.contains("main-0 used 25GiB of a GPU, more than its share of 20GiB"), "{reason}");
}

#[test]
fn what_was_not_looked_at_for_long_is_not_held_against_a_share_and_a_card_that_does_not_answer_is_not_asked_for() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/job", &share(20, ""));
    let look = |daemon: &mut Daemon, later: u64| {
        assert!(daemon.later(later), "it is looked at while somebody has a share");
        daemon.cards(used_by(daemon, &[("a/job", 25)]));
        daemon.state("a/job")
    };
    for later in [10_000, 50_000, 30_001, 30_000] {
        assert_eq!(look(&mut daemon, later), State::Running, "{later}");
    }
    daemon.now += 10;
    daemon.cards(lost(1, &[0], daemon.now));
    assert!(!daemon.later(20_000));
    daemon.cards(idle(1, daemon.now));
    // Nor does it wait for a clock that was set back.
    daemon.now -= 60_000;
    assert!(!daemon.later(1), "it is not asked for again and again");
    for later in [2000, 30_000, 29_999] {
        assert_eq!(look(&mut daemon, later), State::Running, "{later}");
    }
    assert_eq!(look(&mut daemon, 10_000), State::Stopping);
}

#[test]
fn that_a_task_uses_more_than_its_share_is_in_its_status_and_goes_on_where_the_daemon_is_killed() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/job", &share(20, ""));
    let look = |daemon: &mut Daemon, used: u64| {
        daemon.later(10_000);
        daemon.cards(used_by(daemon, &[("a/job", used)]));
        daemon.report("a/job").reason
    };
    let alarm = "alarm: main-0 uses 25GiB of GPU 0, more than its share";
    let over = "1 of 1 task(s) running, main-0 uses more of a GPU than its share";
    assert_eq!(look(&mut daemon, 25), over);
    (0..3).for_each(|_| assert_eq!(look(&mut daemon, 25), over));
    daemon.restart();
    assert_eq!(daemon.report("a/job").reason, over);
    (0..2).for_each(|_| assert_eq!(look(&mut daemon, 25), over));
    assert!(
        look(&mut daemon, 25).contains("main-0 used 25GiB of a GPU, more than its share"),
        "a minute after the first"
    );
    assert_eq!(daemon.told("a/job", alarm), 1);
    // What is over is told no more.
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(idle(1, 1000));
    daemon.file("a/job", &share(20, ""));
    look(&mut daemon, 25);
    assert_eq!(look(&mut daemon, 20), over, "just within it is not within it again");
    assert_eq!(look(&mut daemon, 10), "1 of 1 task(s) running");
}
