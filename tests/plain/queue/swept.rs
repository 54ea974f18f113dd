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
