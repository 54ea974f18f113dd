//! Whose a run is when somebody else's file has come in the place of its own.

use super::*;

const ADA: u32 = 1000;
const BOB: u32 = 1001;

fn of(uid: u32, text: &str) -> Arrival {
    let (source, spec) = simulation::source(format!("command = \"x\"\nnetwork = \"host\"\n{text}"), uid);
    Arrival::Accepted { key: "a/j".parse().unwrap(), source, spec: Box::new(spec) }
}

fn sight(daemon: &mut Daemon, uid: u32, run: Option<u32>) -> (Sight, bool) {
    let caller = Caller {
        beside: Some(Arc::new(Beside { enters: ["a".parse().unwrap()].into(), ..Beside::default() })),
        ..Caller::named(uid, "somebody".to_owned())
    };
    let (key, runs) = ("a/j".parse().unwrap(), RunPart { newest: 1, also: run });
    let shown = daemon.request(|answer| Request::Show { caller, key, runs, events: EventPart::None, answer });
    (shown.sight, shown.text.is_some())
}

#[test]
fn a_run_stays_its_own_file_s_owner_s_whoever_puts_another_file_in_its_place() {
    let mut daemon = Daemon::new(Quotas::default());
    daemon.files(vec![of(ADA, "")]);
    assert_eq!(daemon.state("a/j"), State::Running);
    assert_eq!([ADA, BOB].map(|uid| sight(&mut daemon, uid, None)), [(Sight::Own, true), (Sight::Told, false)]);
    // The run goes on; the next one is of the new file.
    daemon.files(vec![of(BOB, "env.A = \"b\"")]);
    assert_eq!((daemon.state("a/j"), daemon.report("a/j").run), (State::Running, 1));
    assert_eq!([ADA, BOB].map(|uid| sight(&mut daemon, uid, None)), [(Sight::Own, false), (Sight::Told, true)]);
    daemon.end("a/j");
    assert_eq!(daemon.report("a/j").run, 2);
    assert_eq!([ADA, BOB].map(|uid| sight(&mut daemon, uid, None).0), [Sight::Told, Sight::Own]);
    assert_eq!([ADA, BOB].map(|uid| sight(&mut daemon, uid, Some(1)).0), [Sight::Own, Sight::Told]);
}

/// Somebody who may remove the job file: their own, or whosever it is.
fn remover(uid: u32, removes: Removes) -> Caller {
    let beside = Beside {
        enters: ["a".parse().unwrap()].into(),
        removes: [("a/j".parse().unwrap(), removes)].into(),
        ..Beside::default()
    };
    Caller { beside: Some(Arc::new(beside)), ..Caller::named(uid, "somebody".to_owned()) }
}

fn asked(daemon: &mut Daemon, caller: Caller, verb: Verb) -> Result<String, Refusal> {
    daemon.ask_as("a/j", caller, verb)
}

#[test]
fn a_file_of_one_s_own_under_an_old_name_gives_nobody_the_runs_of_another() {
    let mut daemon = Daemon::new(Quotas::default());
    // More than are looked at at once.
    for number in 0..70 {
        daemon.files(vec![of(ADA, &format!("rerun = {number}"))]);
        daemon.end("a/j");
    }
    assert_eq!(daemon.report("a/j").run, 70);
    let gone = || Arrival::Removed { key: "a/j".parse().unwrap() };
    let would = || Verb::WouldRemove { with_file: true };
    daemon.files(vec![gone()]);
    daemon.files(vec![of(BOB, "state = 'stopped'")]);
    for number in 0..70 {
        daemon.files(vec![of(BOB, &format!("rerun = {}", 100 + number))]);
        daemon.end("a/j");
    }
    daemon.restart();
    let refused = asked(&mut daemon, remover(BOB, Removes::Own), would()).unwrap_err();
    assert!(matches!(&refused, Refusal::NotYourRuns { whose, .. } if whose[..] == [Whose::of(Some(ADA))]), "{refused}");
    assert!(refused.to_string().contains("has runs of user 1000, whose file had this name before"), "{refused}");
    daemon.files(vec![gone()]);
    let refused = asked(&mut daemon, remover(BOB, Removes::Own), Verb::Remove).unwrap_err();
    assert!(matches!(refused, Refusal::NotYourRuns { .. }), "{refused}");
    assert_eq!(daemon.report("a/j").run, 140, "all of it is there");
    // Neither is it the other's, whose file it no longer is.
    let refused = asked(&mut daemon, remover(ADA, Removes::Own), Verb::Remove).unwrap_err();
    assert!(matches!(refused, Refusal::NotYours { .. }), "{refused}");
    daemon.files(vec![of(BOB, "state = 'stopped'")]);
    asked(&mut daemon, remover(BOB, Removes::Any), would()).unwrap();
    daemon.files(vec![gone()]);
    asked(&mut daemon, Caller::root(), Verb::Remove).unwrap();
    // What is of that name then is nobody else's any more.
    daemon.files(vec![of(BOB, "")]);
    daemon.end("a/j");
    daemon.files(vec![gone()]);
    asked(&mut daemon, remover(BOB, Removes::Own), Verb::Remove).unwrap();
}

#[test]
fn runs_that_no_record_tells_of_are_root_s_to_remove_whoever_may_remove_the_file() {
    let mut daemon = Daemon::new(Quotas::default());
    for number in 0..2 {
        daemon.files(vec![of(BOB, &format!("rerun = {number}"))]);
        daemon.end("a/j");
    }
    daemon.files(vec![Arrival::Removed { key: "a/j".parse().unwrap() }]);
    let with = |runs: &[(u32, u32)], removes| {
        let caller = remover(BOB, removes);
        let runs = [("a/j".parse().unwrap(), runs.iter().copied().collect())].into();
        let beside = Beside { runs, ..Beside::clone(caller.beside.as_ref().unwrap()) };
        Caller { beside: Some(Arc::new(beside)), ..caller }
    };
    for removes in [Removes::Own, Removes::Any] {
        let refused = asked(&mut daemon, with(&[(1, ADA), (2, BOB)], removes), Verb::Remove).unwrap_err();
        let whose = [Whose::of(Some(ADA))];
        assert!(matches!(&refused, Refusal::UnknownRuns { whose: of, .. } if of[..] == whose), "{refused}");
    }
    // One that is later than all that goes with the job stays anyway.
    asked(&mut daemon, with(&[(1, BOB), (2, BOB), (3, ADA)], Removes::Own), Verb::Remove).unwrap();
}

#[test]
fn a_job_whose_file_was_never_good_is_the_file_s_owner_s() {
    let mut daemon = Daemon::new(Quotas::default());
    let refused = |uid, what: &str| Arrival::Refused {
        key: "a/j".parse().unwrap(),
        owner: Some(Owner { uid, gid: uid }),
        diagnostics: vec![Diagnostic::of_file("a/j.toml", what.to_owned())],
    };
    daemon.files(vec![refused(BOB, "no")]);
    daemon.restart();
    assert_eq!((daemon.report("a/j").owner, daemon.state("a/j")), (BOB, State::Invalid));
    assert_eq!([ADA, BOB].map(|uid| sight(&mut daemon, uid, None).0), [Sight::Told, Sight::Own]);
    // The same of another's.
    daemon.files(vec![refused(ADA, "no")]);
    assert_eq!(daemon.report("a/j").owner, ADA);
    // What is wrong with it later is wrong with the job of the last good one.
    daemon.files(vec![of(ADA, "")]);
    daemon.files(vec![refused(BOB, "no")]);
    assert_eq!(daemon.report("a/j").owner, ADA);
    assert_eq!([ADA, BOB].map(|uid| sight(&mut daemon, uid, None).0), [Sight::Own, Sight::Told]);
}
