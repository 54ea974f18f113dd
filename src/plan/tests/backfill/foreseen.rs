//! When those that wait may start, against a plain look at each second; and that of a long queue all are told.

use super::*;
use crate::status::StopCause;

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

/// The machine and the quotas.
#[derive(Clone)]
struct Limits {
    machine: Seconds,
    sides: Vec<Seconds>,
}

impl Limits {
    fn fits(&self, (workspace, _, cores, _): Shape, start: usize, lasts: Option<u64>) -> bool {
        self.machine.fits(cores, start, lasts) && self.sides[workspace].fits(cores, start, lasts)
    }

    fn take(&mut self, (workspace, _, cores, _): Shape, start: usize, lasts: Option<u64>) {
        self.machine.take(cores, start, lasts);
        self.sides[workspace].take(cores, start, lasts);
    }
}

/// A shape, and whether it is only expected to end then.
type Hopeful = (Shape, bool);

/// When it is stopped, if ever.
fn stopped((shape, hopes): Hopeful) -> Option<u64> {
    shape.3.filter(|_| !hopes)
}

/// When each starts, in seconds, one after the other.
fn plainly(running: &[Hopeful], waiting: &[Hopeful], quotas: &Quotas) -> Vec<Option<usize>> {
    let quota = |workspace: usize| quotas.get(&WORKSPACES[workspace].parse().unwrap()).copied().unwrap_or_default();
    let cores = |workspace| quota(workspace).cpu.map(|cores| cores / 1000);
    let sides = (0..WORKSPACES.len()).map(|own| Seconds::of(cores(own), quota(own).running)).collect();
    let mut sure = Limits { machine: Seconds::of(Some(MACHINE / 1000), None), sides };
    let mut expected = sure.clone();
    for one in running {
        // They began at second 1.
        sure.take(one.0, 1, stopped(*one));
        expected.take(one.0, 1, one.0.3);
    }
    let seconds = START..HORIZON - 20;
    let mut in_order = Some(START);
    let mut start_of = |one: &Hopeful| {
        let (shape, lasts) = (one.0, stopped(*one));
        if cores(shape.0).is_some_and(|most| shape.2 > most) {
            return None;
        }
        // Before the others where that is sure to put off nobody, else behind them.
        let fits = |second: &usize| {
            let is_behind = in_order.is_some_and(|in_order| *second >= in_order);
            sure.fits(shape, *second, lasts) || (is_behind && expected.fits(shape, *second, lasts))
        };
        let start = seconds.clone().find(fits);
        let has_quota = |second: usize| expected.sides[shape.0].fits(shape.2, second, lasts);
        // Who waits for the quota alone is in nobody's way.
        in_order = match start {
            Some(start) if start == START || has_quota(start - 1) => in_order.map(|in_order| in_order.max(start)),
            None if seconds.clone().any(has_quota) => None,
            _ => in_order,
        };
        // Of whom nobody knows when it starts, what it needs is nobody else's.
        sure.take(shape, start.unwrap_or(START), lasts.filter(|_| start.is_some()));
        expected.take(shape, start.unwrap_or(START), shape.3.filter(|_| start.is_some()));
        start
    };
    waiting.iter().map(&mut start_of).collect()
}

fn hopeful(shapes: impl Strategy<Value = Vec<Shape>>) -> impl Strategy<Value = Vec<Hopeful>> {
    shapes.prop_flat_map(|shapes| {
        let count = shapes.len();
        prop::collection::vec(prop::bool::weighted(0.3), count)
            .prop_map(move |hopes| shapes.iter().copied().zip(hopes).collect())
    })
}

/// Few of them differ, as in a queue of people.
fn few_shapes() -> impl Strategy<Value = Vec<Shape>> {
    (shapes(50..51, 6), prop::collection::vec(0usize..6, 0..24))
        .prop_map(|(kinds, chosen)| chosen.iter().filter_map(|chosen| kinds.get(*chosen).copied()).collect())
}

fn running() -> impl Strategy<Value = Vec<Shape>> {
    prop::collection::vec((0..WORKSPACES.len(), 50u8..51, 1u64..4, prop::option::of(10u64..20)), 0..3)
}

proptest! {
    #[test]
    fn starts_are_those_that_a_look_at_each_second_tells(
        running in hopeful(running()),
        waiting in hopeful(prop_oneof![shapes(50..51, 12), few_shapes()].boxed()),
        quotas in quotas(),
    ) {
        let live = (100..).zip(&running).map(|(number, one)| hopeful_live(number, *one)).collect();
        let queue: Queue = (1..).zip(&waiting).map(|(number, one)| hopeful_run(number, *one)).collect();
        let shares = Shares::new(Duration::from_secs(3600));
        let outlook = outlook::outlook(&snapshot(live, &queue, &shares, &quotas), &[], usize::MAX);
        let mut told: Vec<_> = (1..)
            .zip(&waiting)
            .map(|(number, one)| (outlook.of(&key_in(one.0.0, number)).unwrap(), *one))
            .collect();
        told.sort_by_key(|(standing, _)| standing.place);
        let in_order: Vec<_> = told.iter().map(|(_, one)| *one).collect();
        let starts: Vec<_> =
            told.iter().map(|(standing, _)| standing.estimate.map(|start| seconds(start) as usize)).collect();
        prop_assert_eq!(starts, plainly(&running, &in_order, &quotas));
    }
}

/// All say how long they take.
fn said(shapes: impl Strategy<Value = Vec<Shape>>) -> impl Strategy<Value = Vec<Hopeful>> {
    let said = |shapes: Vec<Shape>| shapes.into_iter().map(|shape| (shape.0, shape.1, shape.2, shape.3.or(Some(7))));
    hopeful(shapes.prop_map(move |shapes| said(shapes).collect()))
}

proptest! {
    #[test]
    fn whoever_is_too_far_behind_is_told_when_it_starts_in_order(
        running in said(running()),
        waiting in said(prop_oneof![shapes(50..51, 12), few_shapes()].boxed()),
        quotas in quotas(),
        looks in 0..400_usize,
    ) {
        let live: Vec<Live> = (100..).zip(&running).map(|(number, one)| hopeful_live(number, *one)).collect();
        let queue: Queue = (1..).zip(&waiting).map(|(number, one)| hopeful_run(number, *one)).collect();
        let shares = Shares::new(Duration::from_secs(3600));
        let told = |quotas: &Quotas, looks| {
            let seen = snapshot(live.clone(), &queue, &shares, quotas);
            let outlook = outlook::within(&seen, &[], usize::MAX, |_| looks);
            let mut told: Vec<_> = (1..)
                .zip(&waiting)
                .map(|(number, (shape, _))| (outlook.of(&key_in(shape.0, number)).unwrap().clone(), shape.0))
                .collect();
            told.sort_by_key(|(standing, _)| standing.place);
            told.into_iter().map(|(standing, workspace)| (standing.estimate, workspace)).collect::<Vec<_>>()
        };
        let at = |start: Option<outlook::Start>| start.map(outlook::Start::at);
        let is_about = |start: &Option<outlook::Start>| matches!(start, Some(outlook::Start::About(_)));
        // Nobody waits for a quota alone: a gap is never later than the place behind all others.
        let (all, some) = (told(&Quotas::new(), usize::MAX), told(&Quotas::new(), looks));
        let mut before = None;
        for ((start, _), (exact, _)) in some.iter().zip(&all) {
            prop_assert!(start.is_some() && !is_about(exact));
            if is_about(start) {
                prop_assert!(at(*start) >= at(*exact), "{start:?} {exact:?}");
                prop_assert!(at(*start) >= before, "{some:?}");
            } else {
                prop_assert_eq!(start, exact);
            }
            before = before.max(at(*start));
        }
        // With quotas: those are told that are with many looks, and those of a workspace one after the other.
        let (all, some) = (told(&quotas, usize::MAX), told(&quotas, looks));
        for (place, ((start, workspace), (exact, _))) in some.iter().zip(&all).enumerate() {
            prop_assert_eq!(start.is_some(), exact.is_some(), "{:?} {:?}", some, all);
            let is_before = |(other, of): &&(Option<outlook::Start>, usize)| of == workspace && is_about(other);
            let before = some[..place].iter().filter(is_before).filter_map(|(other, _)| at(*other)).max();
            prop_assert!(!is_about(start) || at(*start) >= before, "{some:?}");
        }
    }
}

#[test]
fn who_waits_for_a_quota_alone_makes_nobody_later_who_is_told_in_order() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), quota_of_one_run());
    // The first workspace may have one at a time, which takes ten seconds; the second has the rest of the machine.
    let own = (1..=5).map(|number| run_of(number, (0, 50, 1, Some(10))));
    let waits: Queue = own.chain((6..=10).map(|number| run_of(number, (1, 50, 7, Some(3))))).collect();
    let outlook = outlook::within(&snapshot(vec![], &waits, &shares, &quotas), &[], usize::MAX, |_| 1);
    let starts = |workspace, numbers: std::ops::RangeInclusive<u64>| -> Vec<_> {
        numbers.map(|number| outlook.of(&key_in(workspace, number)).unwrap().estimate.unwrap()).collect()
    };
    let about = |second: u64| outlook::Start::About(Timestamp(second * 1000));
    assert_eq!(starts(0, 1..=5), [5, 15, 25, 35, 45].map(about));
    assert_eq!(starts(1, 6..=10), [5, 8, 11, 14, 17].map(about));
}

#[test]
fn who_was_looked_for_and_waits_for_a_quota_alone_comes_before_those_that_are_told_in_order() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), quota_of_one_run());
    let own = (1..=3).map(|number| run_of(number, (0, 60, 7, Some(10))));
    let waits: Queue = own.chain((4..=5).map(|number| run_of(number, (1, 50, 7, Some(3))))).collect();
    let told = |looks: usize| {
        let outlook = outlook::within(&snapshot(vec![], &waits, &shares, &quotas), &[], usize::MAX, |_| looks);
        let of = |number: u64| outlook.of(&key_in(usize::from(number > 3), number)).unwrap().estimate.unwrap();
        [1, 2, 3, 4, 5].map(of)
    };
    let by = |start: &&outlook::Start| matches!(start, outlook::Start::By(_));
    let starts = (1..1000).map(told).find(|starts| starts.iter().filter(by).count() == 3).unwrap();
    assert_eq!(starts.map(|start| start.at().0 / 1000), [5, 15, 25, 35, 38]);
}

fn quota_of_one_run() -> Quotas {
    [("a".parse().unwrap(), Quota { running: Some(1), ..Quota::default() })].into()
}

fn hopeful_live(number: u64, one: Hopeful) -> Live {
    Live {
        max_duration: stopped(one).map(Duration::from_secs),
        expected_duration: one.0.3.map(Duration::from_secs),
        ..live_of(number, one.0)
    }
}

fn hopeful_run(number: u64, one: Hopeful) -> (Place, Waiting) {
    let (place, run) = run_of(number, one.0);
    (place, Waiting { lasts: stopped(one).map(Duration::from_secs), ..run })
}

#[test]
fn nobody_is_told_to_start_before_the_first_who_could_only_if_what_runs_ends_as_expected() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    // Seven cores until second 15, as is expected; what nothing stops is not passed by who lasts for ever.
    let running = Live { expected_duration: Some(Duration::from_secs(14)), ..live_of(100, (1, 50, 7, None)) };
    let waits = queue([run_of(1, (0, 50, 7, None)), run_of(2, (0, 50, 1, None))]);
    let snapshot = snapshot(vec![running], &waits, &shares, &quotas);
    assert_eq!(started(&plan(&snapshot)), []);
    assert_eq!(estimates(&snapshot, [1, 2]), [Some(15), Some(15)]);
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
        let start = outlook.of(&key_in(0, number)).unwrap().estimate.map(seconds);
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
    let estimates: Vec<_> = [1, 2, 3, 4].map(|n| outlook.of(&key_in(0, n)).unwrap().estimate.map(seconds)).into();
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
    runs.map(|number| outlook.of(&key_in(0, number)).unwrap().estimate.map(seconds))
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
fn what_is_being_stopped_is_foreseen_to_end_now_whatever_it_was_expected_to_take() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let waits = queue([run_of(1, (0, 50, 8, Some(1)))]);
    let start = |wanted_stop: Option<StopCause>, kept_until: Option<u64>| {
        let kept_until = kept_until.map(|second| Timestamp(second * 1000));
        let running = Live { wanted_stop, kept_until, ..hopeful_live(100, ((1, 50, 7, Some(14)), true)) };
        estimates(&snapshot(vec![running], &waits, &shares, &quotas), [1])
    };
    let stops = || Some(StopCause::Decided);
    // What is kept of it holds what it has until then.
    assert_eq!(
        [start(None, None), start(stops(), None), start(stops(), Some(100))],
        [[Some(15)], [Some(5)], [Some(100)]]
    );
}

#[test]
fn behind_one_whose_start_is_not_known_a_start_is_told_only_if_it_is_sure() {
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    // All of the memory is never free; beside what the first keeps, six cores are, when the seven of one have ended.
    let (place, mut first) = run_of(1, (0, 50, 1, Some(1)));
    first.amount.memory = 1 << 40;
    let (behind, mut second) = run_of(2, (0, 50, 6, Some(1)));
    second.amount.memory = 0;
    let waits = queue([(place, first), (behind, second)]);
    let beside = |hopes: bool| {
        let running = vec![hopeful_live(100, ((1, 50, 7, Some(14)), hopes)), live_of(101, (1, 50, 1, None))];
        estimates(&snapshot(running, &waits, &shares, &quotas), [1, 2])
    };
    assert_eq!([false, true].map(beside), [[None, Some(15)], [None, None]]);
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
