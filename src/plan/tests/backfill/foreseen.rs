//! When those that wait may start, against a plain look at each second; and that of a long queue all are told.

use super::*;

/// Seconds that are looked at: all have ended by then that say when.
const HORIZON: usize = 600;
const START: usize = (NOW / 1000) as usize;

/// What is free of a limit in each second: cores, and how many may run.
#[derive(Clone)]
struct Seconds(Vec<(u64, u64)>);

impl Seconds {
    fn of(cores: Option<u64>, runs: Option<u64>) -> Self {
        Self(vec![(cores.unwrap_or(u64::MAX), runs.unwrap_or(u64::MAX)); HORIZON])
    }

    fn within(start: usize, lasts: Option<u64>) -> std::ops::Range<usize> {
        start..lasts.map_or(HORIZON, |lasts| start + lasts as usize)
    }

    fn fits(&self, cores: u64, start: usize, lasts: Option<u64>) -> bool {
        self.0[Self::within(start, lasts)].iter().all(|(free, runs)| cores <= *free && *runs > 0)
    }

    fn take(&mut self, cores: u64, start: usize, lasts: Option<u64>) {
        for (free, runs) in &mut self.0[Self::within(start, lasts)] {
            (*free, *runs) = (free.saturating_sub(cores), runs.saturating_sub(1));
        }
    }
}

/// When each starts, in seconds, one after the other.
fn plainly(running: &[Shape], waiting: &[Shape], quotas: &Quotas) -> Vec<Option<usize>> {
    let quota = |workspace: usize| quotas.get(&WORKSPACES[workspace].parse().unwrap()).copied().unwrap_or_default();
    let cores = |workspace| quota(workspace).cpu.map(|cores| cores / 1000);
    let mut machine = Seconds::of(Some(MACHINE / 1000), None);
    let mut sides: Vec<_> = (0..WORKSPACES.len()).map(|own| Seconds::of(cores(own), quota(own).running)).collect();
    for (workspace, _, wanted, lasts) in running {
        // They began at second 1.
        machine.take(*wanted, 1, *lasts);
        sides[*workspace].take(*wanted, 1, *lasts);
    }
    let mut start_of = |(workspace, _, wanted, lasts): &Shape| {
        if cores(*workspace).is_some_and(|most| *wanted > most) {
            return None;
        }
        let side = &mut sides[*workspace];
        let latest = HORIZON - 20;
        let start =
            (START..latest).find(|start| machine.fits(*wanted, *start, *lasts) && side.fits(*wanted, *start, *lasts));
        // Of whom nobody knows when it starts, what it needs is nobody else's.
        let (from, until) = start.map_or((START, None), |start| (start, *lasts));
        machine.take(*wanted, from, until);
        side.take(*wanted, from, until);
        start
    };
    waiting.iter().map(&mut start_of).collect()
}

/// Few of them differ, as in a queue of people.
fn few_shapes() -> impl Strategy<Value = Vec<Shape>> {
    (shapes(50..51, 6), prop::collection::vec(0usize..6, 0..24))
        .prop_map(|(kinds, chosen)| chosen.iter().filter_map(|chosen| kinds.get(*chosen).copied()).collect())
}

proptest! {
    #[test]
    fn starts_are_those_that_a_look_at_each_second_tells(
        running in prop::collection::vec((0..WORKSPACES.len(), 50u8..51, 1u64..4, prop::option::of(10u64..20)), 0..3),
        waiting in prop_oneof![shapes(50..51, 12), few_shapes()],
        quotas in quotas(),
    ) {
        let live = (100..).zip(&running).map(|(number, shape)| live_of(number, *shape)).collect();
        let queue: Queue = (1..).zip(&waiting).map(|(number, shape)| run_of(number, *shape)).collect();
        let shares = Shares::new(Duration::from_secs(3600));
        let outlook = outlook::outlook(&snapshot(live, &queue, &shares, &quotas), &[], usize::MAX);
        let mut told: Vec<_> = (1..)
            .zip(&waiting)
            .map(|(number, shape)| (outlook.of(&key_in(shape.0, number)).unwrap(), *shape))
            .collect();
        told.sort_by_key(|(standing, _)| standing.place);
        let in_order: Vec<_> = told.iter().map(|(_, shape)| *shape).collect();
        let starts: Vec<_> =
            told.iter().map(|(standing, _)| standing.estimate.map(|at| (at.0 / 1000) as usize)).collect();
        prop_assert_eq!(starts, plainly(&running, &in_order, &quotas));
    }
}

#[test]
fn all_of_a_long_queue_are_told_when_they_start() {
    const LONG: u64 = 5000;
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    // Of four cores each two go at a time; by threes they say five, six and seven seconds.
    let waits: Queue = (1..=LONG).map(|number| run_of(number, (0, 50, 4, Some(5 + number % 3)))).collect();
    let outlook = outlook::outlook(&snapshot(vec![], &waits, &shares, &quotas), &[], usize::MAX);
    let mut free = [START as u64; 2];
    for number in 1..=LONG {
        free.sort_unstable();
        let start = outlook.of(&key_in(0, number)).unwrap().estimate.map(|at| at.0 / 1000);
        assert_eq!(start, Some(free[0]), "{number}");
        free[0] += 5 + number % 3;
    }
}

#[test]
fn starts_are_foreseen_where_it_is_known_how_long_things_take() {
    let queue = queue([
        run_of(1, (0, 50, 8, Some(10))),
        run_of(2, (0, 50, 8, None)),
        run_of(3, (0, 50, 2, Some(9))),
        run_of(4, (0, 50, 2, None)),
    ]);
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let snapshot = snapshot(vec![live_of(100, (1, 50, 6, Some(14)))], &queue, &shares, &quotas);
    let planned = plan(&snapshot);
    let outlook = outlook::outlook(&snapshot, &planned.held_up, usize::MAX);
    let estimates: Vec<_> =
        [1, 2, 3, 4].map(|n| outlook.of(&key_in(0, n)).unwrap().estimate.map(|at| at.0 / 1000)).into();
    // The running one began at second 1; it is second 5 now.
    assert_eq!(estimates, [Some(15), Some(25), Some(5), None]);
    assert_eq!(outlook.free, Amount { cpu: 2000, memory: (1 << 40) - 1, gpu: 0 });
    let first = outlook.of(&key_in(0, 1)).unwrap();
    let holders: Vec<_> = outlook.holders_for(first).map(|holder| &holder.key).collect();
    assert_eq!(holders, [&key_in(1, 100)]);
}

/// When so many runs are said to start, in seconds.
fn estimates<const N: usize>(snapshot: &Snapshot<'_>, runs: [u64; N]) -> [Option<u64>; N] {
    let outlook = outlook::outlook(snapshot, &plan(snapshot).held_up, usize::MAX);
    runs.map(|number| outlook.of(&key_in(0, number)).unwrap().estimate.map(|at| at.0 / 1000))
}

#[test]
fn no_start_is_foreseen_that_those_whose_start_is_not_known_may_put_off() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    // Four cores for ever, two until second 15; nobody knows when six are free.
    let running = || vec![live_of(100, (1, 50, 4, None)), live_of(101, (1, 50, 2, Some(14)))];
    let waits = queue([run_of(1, (0, 50, 6, Some(1))), run_of(2, (0, 50, 3, Some(1))), run_of(3, (0, 50, 1, Some(5)))]);
    assert_eq!(estimates(&snapshot(running(), &waits, &shares, &quotas), [1, 2, 3]), [None; 3]);
    // One that waits for a port takes its cores when it has it.
    let mut holder = live_of(101, (1, 50, 4, Some(14)));
    holder.ports = vec![8080];
    let (place, mut first) = run_of(1, (0, 50, 3, Some(1)));
    first.ports = vec![8080];
    let waits = queue([(place, first), run_of(2, (0, 50, 4, Some(1))), run_of(3, (0, 50, 6, Some(1)))]);
    let running = vec![holder, live_of(102, (1, 50, 1, Some(9)))];
    assert_eq!(estimates(&snapshot(running, &waits, &shares, &quotas), [1, 2, 3]), [None, Some(15), None]);
}

#[test]
fn a_start_is_foreseen_before_that_of_an_earlier_run_only_if_what_stops_it_is_in_time() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let (place, hopeful) = run_of(2, (0, 50, 2, None));
    let hopeful = Waiting { expected: Some(Duration::from_secs(5)), ..hopeful };
    let waits = queue([run_of(1, (0, 50, 8, Some(10))), (place, hopeful)]);
    let running = vec![live_of(100, (1, 50, 6, Some(14)))];
    assert_eq!(estimates(&snapshot(running, &waits, &shares, &quotas), [1, 2]), [Some(15), Some(25)]);
}
