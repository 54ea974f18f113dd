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
