//! What workspaces have used: what is told of it, and whose turn it is by it.

use super::*;

#[test]
fn what_a_workspace_has_used_counts_against_it_also_after_a_restart() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("a/long", &cores(8, ""));
    daemon.file("a/again", &cores(8, ""));
    daemon.now += HOUR;
    daemon.file("b/new", &cores(8, ""));
    daemon.restart();
    daemon.end("a/long");
    assert_eq!(["b/new", "a/again"].map(|key| daemon.state(key)), [State::Running, State::Waiting]);
    daemon.restart();
    daemon.file("b/second", &cores(8, ""));
    daemon.now += HOUR;
    daemon.end("b/new");
    assert_eq!(
        ["a/again", "b/second"].map(|key| daemon.state(key)),
        [State::Running, State::Waiting],
        "an hour of a's counts half by now, and b has used an hour since"
    );
    let used = daemon.store.usage(Timestamp(0)).unwrap();
    let told: Vec<_> = used.iter().map(|used| (used.job.to_string(), used.cpu, used.to.0 - used.from.0)).collect();
    assert_eq!(told, [("long".to_owned(), 8000, HOUR), ("new".to_owned(), 8000, HOUR)]);
}

#[test]
fn of_time_that_lies_ahead_nothing_is_told_to_be_used() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("a/job", "");
    daemon.now += HOUR;
    let mut used_since = |since: u64| {
        let used = daemon.request(|answer| Request::Usage { since: Timestamp(since), answer });
        used.attempts.len()
    };
    assert_eq!([1000, 1000 + HOUR, 1001 + HOUR].map(&mut used_since), [1, 1, 0]);
}

#[test]
fn what_still_counts_for_whose_turn_it_is_stays_as_it_was_however_short_usage_is_kept() {
    const DAY: u64 = 24 * HOUR;
    let day = Duration::from_millis(DAY);
    let mut daemon = Daemon::new(Quotas::new());
    let restart = |daemon: &mut Daemon, later: u64| {
        daemon.now += later;
        let settings = Settings { usage_keep: day, half_life: day, ..settings(&daemon.quotas) };
        daemon.reconciler = Reconciler::open(daemon.store.clone(), settings, Timestamp(daemon.now)).unwrap();
        daemon.pass();
        daemon.store.usage(Timestamp(0)).unwrap().len()
    };
    daemon.file("a/long", &cores(8, ""));
    daemon.now += 10 * HOUR;
    daemon.end("a/long");
    assert_eq!([2 * DAY, 10].map(|later| restart(&mut daemon, later)), [1, 1]);
    daemon.file("c/holds", &cores(8, ""));
    daemon.files(vec![accepted("a/next", &cores(8, "")), accepted("b/next", &cores(8, ""))]);
    let places = ["b/next", "a/next"].map(|key| daemon.report(key).waiting.unwrap().place);
    assert_eq!(places, [1, 2]);
    assert_eq!(restart(&mut daemon, 20 * DAY), 0, "what counts less than a millionth is left as sums");
}
