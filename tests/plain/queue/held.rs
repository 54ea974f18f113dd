//! Jobs that are held, those that wait for them, and preparations that nobody wants any more.

use trainyard::sys::given_up::GivenUp;

use super::*;

impl Daemon {
    /// What comes of a file, as far as it is asked for: nothing of it is done.
    fn works_of(&mut self, arrival: Arrival) -> Vec<Work> {
        self.reconciler.handle(Event::Files(vec![arrival]), Timestamp(self.now));
        self.reconciler.pass(Timestamp(self.now)).unwrap().works
    }
}

#[test]
fn a_job_that_is_held_after_an_attempt_starts_no_other_until_it_is_released() {
    let mut daemon = Daemon::new(Quotas::new());
    let text = |state: &str| format!("retries = 5\nretry.backoff = \"6s\"\n{state}");
    daemon.file("job", &text(""));
    daemon.end_as("job", TaskEnd::Exited { code: 1 });
    assert!(daemon.report("job").reason.starts_with("tries again at"), "{}", daemon.report("job").reason);
    daemon.file("job", &text("state = \"held\""));
    for _ in 0..3 {
        daemon.later(HOUR);
        daemon.pass();
    }
    assert_eq!((daemon.state("job"), daemon.told("job", "attempt 2 starts")), (State::Held, 0));
    daemon.restart();
    assert_eq!(daemon.state("job"), State::Held);
    daemon.file("job", &text(""));
    assert_eq!((daemon.state("job"), daemon.told("job", "attempt 2 starts")), (State::Running, 1));
    // While an attempt runs it is left alone; the next one is held again.
    daemon.file("job", &text("state = \"held\""));
    assert_eq!(daemon.state("job"), State::Running);
    daemon.end_as("job", TaskEnd::Exited { code: 1 });
    daemon.later(HOUR);
    daemon.pass();
    assert_eq!((daemon.state("job"), daemon.told("job", "attempt 3 starts")), (State::Held, 0));
}

#[test]
fn a_run_that_is_asked_for_of_a_held_job_takes_the_place_of_the_one_that_is_held() {
    for verb in [Verb::Rerun, Verb::Restart] {
        let mut daemon = Daemon::new(Quotas::new());
        daemon.file("job", "state = \"held\"");
        let said = daemon.ask("job", verb).unwrap();
        assert_eq!(said, "job: run 2, in place of run 1, which was held as this one is");
        assert_eq!((daemon.state("job"), daemon.report("job").run), (State::Held, 2));
        assert_eq!(daemon.told("job", "replaced by a new run that was asked for"), 1);
        daemon.file("job", "");
        assert_eq!(daemon.report("job").run, 2);
        daemon.end("job");
        assert_eq!((daemon.state("job"), daemon.report("job").run), (State::Succeeded, 2), "and no other follows");
    }
    // So does one that a changed number in the file asks for.
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("job", "state = \"held\"");
    daemon.file("job", "state = \"held\"\nrerun = 1");
    assert_eq!((daemon.state("job"), daemon.report("job").run), (State::Held, 2));
    daemon.file("job", "rerun = 1");
    daemon.end("job");
    assert_eq!((daemon.state("job"), daemon.report("job").run), (State::Succeeded, 2));
}

#[test]
fn who_waits_for_a_job_is_told_that_it_is_held_or_that_its_file_is_invalid() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.file("second", "after = [\"first\"]");
    let reason = |daemon: &Daemon| daemon.report("second").reason;
    let wrong = || vec![Diagnostic::of_file("first.toml", "no such key")];
    let bad = || Arrival::Refused { key: "first".parse().unwrap(), owner: None, diagnostics: wrong() };
    daemon.files(vec![bad()]);
    let invalid = "waits for job first to succeed; its file is invalid: first.toml: no such key";
    assert_eq!(reason(&daemon), invalid);
    daemon.file("first", "state = \"held\"");
    assert_eq!(reason(&daemon), "waits for job first to succeed; it is held by state = \"held\" in its job file");
    daemon.file("first", "");
    assert_eq!(reason(&daemon), "waits for job first to succeed");
    // A version before may run all the same.
    daemon.files(vec![bad()]);
    assert_eq!(reason(&daemon), invalid);
    daemon.end_as("first", TaskEnd::Exited { code: 4 });
    assert!(
        reason(&daemon).contains("exited with code 4; its file is invalid: first.toml: no such key"),
        "{}",
        reason(&daemon)
    );
    daemon.file("first", "description = \"right\"");
    assert!(reason(&daemon).ends_with("`trainyard rerun first` runs it again"), "{}", reason(&daemon));
}

#[test]
fn what_is_under_way_for_a_run_is_given_up_with_it_and_so_is_what_is_set_aside() {
    let git = "code = { git = \"http://127.0.0.1/x\" }";
    let given_up = |works: &[Work], of: &GivenUp| {
        works.iter().any(|work| matches!(work, Work::GiveUp(given_up) if given_up.is_of(of)))
    };
    let mut daemon = Daemon::new(Quotas::new());
    let works = daemon.works_of(accepted("job", git));
    let [Work::Prepare { prepare, .. }] = works.as_slice() else { panic!("{works:?}") };
    assert!(given_up(&daemon.works_of(removed("job")), &prepare.given_up));
    // Of the run that follows one that runs, its code is being set aside.
    let aside = |daemon: &mut Daemon, key: &str| {
        daemon.file(key, "");
        let works = daemon.works_of(accepted(key, git));
        let [Work::SetAside { prepare, .. }] = works.as_slice() else { panic!("{works:?}") };
        prepare.given_up.clone()
    };
    let wanted = aside(&mut daemon, "next");
    assert!(given_up(&daemon.works_of(accepted("next", "")), &wanted), "it is as it runs");
    // It is the newest run's by now, which does not begin before it is there.
    let wanted = aside(&mut daemon, "begun");
    daemon.end("begun");
    assert_eq!(daemon.report("begun").run, 2);
    assert!(given_up(&daemon.works_of(removed("begun")), &wanted));
}
