//! When a file that was written has been taken in, with all jobs that it makes.

use super::*;

#[test]
fn a_file_that_was_written_is_taken_in_when_all_jobs_of_it_are() {
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
    // The last is new: that the others are as they were is not enough.
    let more = sweep(&[("a/grid~org-a", "org/a"), ("a/grid~b", "b"), ("a/grid~c", "c")], "");
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
    daemon.files(vec![Arrival::Refused { key: plain.key.clone(), owner: None, diagnostics }]);
    assert_eq!(asked(&mut daemon, &plain), TakenIn::NotYet);
    daemon.files(vec![removed("a/p")]);
    assert_eq!(asked(&mut daemon, &plain), TakenIn::NotYet);
}
