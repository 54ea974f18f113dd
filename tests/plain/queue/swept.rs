//! Jobs of sweeps under names that an earlier version has given them.

use super::*;

#[test]
fn a_job_of_a_sweep_keeps_its_name_while_its_values_are_in_the_file() {
    let mut daemon = Daemon::new(Quotas::default());
    let of = |jobs: &[(&str, &str)]| {
        let Arrival::Swept { key, jobs: made } = swept("a/grid", &jobs.iter().map(|job| job.0).collect::<Vec<_>>(), "")
        else {
            panic!("a sweep")
        };
        let with_values = |(mut swept, (_, value)): (Swept, &(&str, &str))| {
            let values = vec![("MODEL".to_owned(), (*value).to_owned())];
            swept.source.sweep = Some(SweepRecord { of: key.job.clone(), values });
            swept
        };
        Arrival::Swept { key: key.clone(), jobs: made.into_iter().zip(jobs).map(with_values).collect() }
    };
    daemon.files(vec![of(&[("a/grid~org-a", "org/a"), ("a/grid~b", "b")])]);
    // The next version would call the first one otherwise, and there is one more.
    let now = of(&[("a/grid~org-a-123456", "org/a"), ("a/grid~b", "b"), ("a/grid~c-d-654321", "c/d")]);
    daemon.files(vec![now]);
    let jobs = ["a/grid~org-a", "a/grid~b", "a/grid~c-d-654321"];
    assert_eq!(daemon.states(jobs), [State::Running; 3]);
    assert_eq!(jobs.map(|job| daemon.report(job).run), [1; 3], "none began again");
    assert!(daemon.reconciler.report(&"a/grid~org-a-123456".parse().unwrap()).is_none());
}

#[test]
fn a_file_that_was_written_is_taken_in_when_all_jobs_of_it_are_under_whatever_names() {
    let mut daemon = Daemon::new(Quotas::default());
    let sweep = |jobs: &[(&str, &str)], text: &str| {
        let of = |(name, value): &(&str, &str)| {
            let (source, spec) = source(text);
            let values = vec![("MODEL".to_owned(), (*value).to_owned())];
            let sweep = Some(SweepRecord { of: "grid".parse().unwrap(), values });
            Swept { key: name.parse().unwrap(), source: SourceRecord { sweep, ..source }, spec }
        };
        Made { key: "a/grid".parse().unwrap(), jobs: jobs.iter().map(of).collect() }
    };
    let asked = |daemon: &mut Daemon, file: &Made| {
        let file = Arc::new(file.clone());
        daemon.request(|answer| Request::TakenIn { file, answer })
    };
    let before = sweep(&[("a/grid~org-a", "org/a"), ("a/grid~b", "b")], "");
    assert_eq!(asked(&mut daemon, &before), TakenIn::NotYet);
    daemon.files(vec![before.clone().into()]);
    assert_eq!(asked(&mut daemon, &before), TakenIn::Yes);
    // The first keeps its name, the last is new: that the others are as they were is not enough.
    let more = sweep(&[("a/grid~org-a-123456", "org/a"), ("a/grid~b", "b"), ("a/grid~c", "c")], "");
    assert_eq!(asked(&mut daemon, &more), TakenIn::NotYet);
    daemon.files(vec![more.clone().into()]);
    assert_eq!(asked(&mut daemon, &more), TakenIn::Yes);
    // A file of another job has come before it.
    daemon.file("a/grid~d", "");
    let refused = sweep(&[("a/grid~b", "b"), ("a/grid~d", "d")], "");
    assert!(matches!(asked(&mut daemon, &refused), TakenIn::Refused(found) if found[0].message.contains("a/grid~d")));
    // The text is known, but what lies there now cannot be used: it is still to be read.
    let (source, spec) = source("");
    let plain = Made { key: "a/p".parse().unwrap(), jobs: vec![Swept { key: "a/p".parse().unwrap(), source, spec }] };
    daemon.files(vec![plain.clone().into()]);
    assert_eq!(asked(&mut daemon, &plain), TakenIn::Yes);
    let diagnostics = vec![Diagnostic::of_file("p.toml", "bad".to_owned())];
    daemon.files(vec![Arrival::Refused { key: plain.key.clone(), diagnostics }]);
    assert_eq!(asked(&mut daemon, &plain), TakenIn::NotYet);
    daemon.files(vec![removed("a/p")]);
    assert_eq!(asked(&mut daemon, &plain), TakenIn::NotYet);
}
