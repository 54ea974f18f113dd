//! Attempts that are lost: how many are made in their place, and what is told of that.

use super::*;

fn lose(daemon: &mut Daemon) {
    daemon.end_as("a/j", TaskEnd::Lost { reason: "its shim is gone".to_owned() });
    daemon.now += HOUR;
    daemon.pass();
}

#[test]
fn a_run_that_is_lost_again_and_again_is_told_the_bound_and_ends_by_it() {
    let mut daemon = Daemon::new(Quotas::default());
    daemon.file("a/j", "retries = 10");
    for (number, left) in [
        (1, "10 more attempt(s) allowed, of which 2"),
        (2, "9 more attempt(s) allowed, of which 1"),
        (3, "8 more attempt(s) allowed, of which 0"),
    ] {
        assert_eq!(daemon.state("a/j"), State::Running);
        lose(&mut daemon);
        let told =
            format!("attempt {number} failed: main-0 lost: its shim is gone; {left} may be lost and be tried again");
        assert_eq!(daemon.told("a/j", &told), 1, "{told}");
    }
    lose(&mut daemon);
    assert_eq!(daemon.state("a/j"), State::Failed);
    let reason = daemon.report("a/j").reason;
    assert!(
        reason.starts_with(
            "main-0 lost: its shim is gone; 3 attempts of this run were lost before it, so no more are made"
        ),
        "{reason}"
    );
    assert!(!reason.contains("`retries` in the job file"), "{reason}");
}

#[test]
fn what_is_lost_when_no_attempt_is_left_is_not_said_to_be_tried_again() {
    let mut daemon = Daemon::new(Quotas::default());
    daemon.file("a/j", "retries = 1");
    lose(&mut daemon);
    assert_eq!(daemon.told("a/j", "1 more attempt(s) allowed, of which 0 may be lost"), 1);
    lose(&mut daemon);
    assert_eq!(daemon.state("a/j"), State::Failed);
}

#[test]
fn who_has_no_retries_is_told_of_them_where_an_attempt_is_lost() {
    for (text, hint) in [("", true), ("retries = 1\nretry.on = [\"oom\"]", false)] {
        let mut daemon = Daemon::new(Quotas::default());
        daemon.file("a/j", text);
        lose(&mut daemon);
        assert_eq!(daemon.state("a/j"), State::Failed);
        let reason = daemon.report("a/j").reason;
        assert_eq!(reason.contains("; `retries` in the job file tries again by itself"), hint, "{reason}");
    }
}
