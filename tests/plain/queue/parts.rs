//! Of what a job has much of, parts are sent.

use super::*;

#[test]
fn of_many_events_the_newest_are_sent_and_all_can_be_had_in_parts() {
    let mut daemon = Daemon::new(Quotas::default());
    let ended = |daemon: &mut Daemon, text: &str| {
        daemon.now += 1;
        daemon.file("a/job", text);
        daemon.end("a/job");
    };
    // A job of before had this name: its events are not told, and the first one has not the number 0.
    ended(&mut daemon, "env.A = 'before'");
    daemon.files(vec![removed("a/job")]);
    daemon.ask("a/job", Verb::Remove).unwrap();
    (0..10).for_each(|time| ended(&mut daemon, &format!("env.A = '{time}'")));
    let mut told = |events| {
        let key = "a/job".parse().unwrap();
        let shown =
            daemon.request(|answer| Request::Show { caller: Caller::root(), key, runs: NEWEST_RUN, events, answer });
        shown.events.iter().map(|event| event.number).collect::<Vec<_>>()
    };
    let all = told(EventPart::From(0, usize::MAX));
    let (first, last) = (all[0], *all.last().unwrap());
    assert!(first > 0 && all.len() > 20, "{all:?}");
    assert_eq!(all, (first..=last).collect::<Vec<_>>());
    assert_eq!(told(EventPart::Newest(7)), all[all.len() - 7..]);
    assert_eq!(told(EventPart::Newest(1000)), all);
    let mut parts: Vec<u64> = Vec::new();
    loop {
        let part = told(EventPart::From(parts.last().map_or(0, |last| last + 1), 7));
        parts.extend(&part);
        if part.len() < 7 {
            break;
        }
    }
    assert_eq!(parts, all);
    assert!(told(EventPart::From(last + 1, 7)).is_empty());
    assert!(told(EventPart::None).is_empty());
}

#[test]
fn of_many_runs_the_newest_are_sent_and_any_can_be_had() {
    let mut daemon = Daemon::new(Quotas::default());
    for time in 0..6 {
        daemon.now += 1;
        daemon.file("a/job", &format!("env.A = '{time}'"));
        daemon.end("a/job");
    }
    let mut told = |newest, also| {
        let (key, runs) = ("a/job".parse().unwrap(), RunPart { newest, also });
        let caller = Caller::root();
        let shown = daemon.request(|answer| Request::Show { caller, key, runs, events: EventPart::None, answer });
        shown.runs.iter().map(|run| run.number).collect::<Vec<_>>()
    };
    assert_eq!(told(100, None), [1, 2, 3, 4, 5, 6]);
    assert_eq!(told(2, None), [5, 6]);
    assert_eq!(told(2, Some(1)), [1, 5, 6]);
    assert_eq!(told(2, Some(6)), [5, 6]);
    assert_eq!(told(1, Some(7)), [6]);
}
