//! What those that wait are told.

use super::*;

#[test]
fn who_waits_is_told_the_place_what_is_free_and_who_holds_the_rest_of_other_workspaces_only_how_much() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("a/own", &cores(3, "max_duration = \"1h\""));
    daemon.file("b/secret", &cores(2, "expected_duration = \"30m\""));
    daemon.file("b/hidden", &cores(1, "expected_duration = \"30m\""));
    daemon.file("a/big", &cores(8, "max_duration = \"10m\""));
    daemon.file("a/next", &cores(2, "priority = \"low\""));
    daemon.file("b/last", &cores(7, "priority = 0"));
    let big = daemon.report("a/big");
    assert_eq!(
        big.reason,
        "waits for 8 cpu, held by a/own and 2 job(s) of workspace b (3 cpu); free: 2 cpu and 5GiB of memory; should start by \
         1970-01-01T01:00:01Z"
    );
    let waiting = big.waiting.unwrap();
    assert_eq!((waiting.cause.as_str(), waiting.place, waiting.of), ("room", 1, 3));
    assert_eq!(waiting.starts_by.as_deref(), Some("1970-01-01T01:00:01.000Z"));
    let holders: Vec<_> = waiting.holders.iter().map(|holder| (holder.job.as_deref(), holder.jobs)).collect();
    assert_eq!(holders, [(Some("own"), 1), (None, 2)]);
    let next = daemon.report("a/next");
    assert_eq!(
        next.reason,
        "waits in place 2 of the queue: what is free is kept for those before it, first for a/big; should start by \
         1970-01-01T01:10:01Z"
    );
    assert_eq!(next.waiting.map(|waiting| waiting.cause).as_deref(), Some("turn"));
    let last = daemon.report("b/last");
    assert_eq!(
        last.reason,
        "waits for 7 cpu, held by b/hidden, b/secret and 1 job(s) of workspace a (3 cpu); free: 2 cpu and 5GiB of memory; in \
         place 3 of the queue, which begins with a job of workspace a"
    );
    assert!(last.waiting.as_ref().unwrap().starts_by.is_none(), "it is not known how long a/next takes");
    let shown = last.toml();
    assert!(shown.contains("place     = \"3 of 3\"") && !shown.contains("a/own") && !shown.contains("big"), "{shown}");
    daemon.now += HOUR;
    daemon.end("a/own");
    daemon.end("b/secret");
    daemon.end("b/hidden");
    assert_eq!(daemon.state("a/big"), State::Running);
    assert_eq!(daemon.report("a/big").waiting, None);
}

#[test]
fn who_comes_after_others_is_told_what_it_lacks_itself() {
    let mut daemon = Daemon::new(quota("a", Quota { running: Some(2), ..Quota::default() }));
    for job in ["a/one", "a/two"] {
        daemon.file(job, &cores(1, ""));
    }
    daemon.file("a/three", &cores(1, ""));
    daemon.file("a/four", &cores(1, ""));
    daemon.file("b/first", &cores(8, "priority = \"high\""));
    let four = daemon.report("a/four");
    assert_eq!(
        four.reason,
        "waits for one of a/one and a/two to end: 2 job(s) of workspace a may run at a time (workspaces.a.running); in place 3 of \
         the queue, which begins with a job of workspace b"
    );
    let waiting = four.waiting.unwrap();
    let holders: Vec<_> = waiting.holders.iter().map(|holder| holder.job.as_deref()).collect();
    assert_eq!((waiting.cause.as_str(), holders), ("quota", vec![Some("one"), Some("two")]));
}
