//! The queue against a slow model of the same rules, and over time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::limit::{Limit, later};
use super::*;
use crate::config::Quota;

/// What a random run is made of: workspace, priority, cores, and how long it says that it takes, in seconds.
type Shape = (usize, u8, u64, Option<u64>);

const WORKSPACES: [&str; 3] = ["a", "b", "c"];
const MACHINE: u64 = 8000;

fn key_in(workspace: usize, number: u64) -> JobKey {
    format!("{}/j{number}", WORKSPACES[workspace]).parse().unwrap()
}

fn run_of(number: u64, (workspace, priority, cores, lasts): Shape) -> (Place, Waiting) {
    let amount = Amount { cpu: cores * 1000, memory: 1, gpu: 0 };
    let lasts = lasts.map(Duration::from_secs);
    let waiting = Waiting {
        key: key_in(workspace, number),
        amount,
        tasks: 1,
        network: Network::Host,
        ports: Vec::new(),
        since: Timestamp(0),
        lasts,
    };
    (Place { priority: Reverse(Priority(priority)), order: number }, waiting)
}

fn live_of(number: u64, (workspace, _, cores, lasts): Shape) -> Live {
    Live {
        key: key_in(workspace, number),
        amount: Amount { cpu: cores * 1000, memory: 1, gpu: 0 },
        expected_duration: lasts.map(Duration::from_secs),
        ..live(number, 0)
    }
}

fn shapes(priorities: std::ops::Range<u8>, most: usize) -> impl Strategy<Value = Vec<Shape>> {
    prop::collection::vec((0..WORKSPACES.len(), priorities, 1u64..9, prop::option::of(1u64..20)), 0..most)
}

fn quotas() -> impl Strategy<Value = Quotas> {
    let quota = (prop::option::of(1u64..9), prop::option::of(1u64..4)).prop_map(|(cores, running)| Quota {
        cpu: cores.map(|cores| cores * 1000),
        running,
        ..Quota::default()
    });
    prop::collection::btree_map(prop::sample::select(WORKSPACES.to_vec()), quota, 0..=WORKSPACES.len())
        .prop_map(|of| of.into_iter().map(|(name, quota)| (name.parse().unwrap(), quota)).collect())
}

fn snapshot<'a>(live: Vec<Live>, queue: &'a Queue, shares: &'a Shares, quotas: &'a Quotas) -> Snapshot<'a> {
    let inventory = Amount { cpu: MACHINE, memory: 1 << 40, gpu: 0 };
    let (now, reserved) = (Timestamp(5000), None);
    Snapshot { now, inventory, addresses: RANGE, last_block: None, live, queue, reserved, shares, quotas }
}

/// The rules once more, as plainly as can be: all that wait are looked at again for each one that starts.
fn model(snapshot: &Snapshot<'_>, runs: &[(Place, Waiting)]) -> Vec<JobKey> {
    let mut machine = fill::machine(snapshot);
    let mut sides: BTreeMap<&WorkspaceName, (Limit, f64)> = BTreeMap::new();
    for (_, waiting) in runs {
        let side = fill::side(snapshot, &waiting.key.workspace);
        sides.insert(&waiting.key.workspace, (side.limit, side.share));
    }
    let never = |waiting: &Waiting| {
        let workspace = &waiting.key.workspace;
        never_fits(&waiting.amount, &snapshot.inventory, workspace, snapshot.quotas.get(workspace)).is_some()
    };
    let mut left: Vec<&(Place, Waiting)> = runs.iter().filter(|(_, waiting)| !never(waiting)).collect();
    let mut started = Vec::new();
    loop {
        left.retain(|(_, waiting)| {
            let limits = [&machine, &sides[&waiting.key.workspace].0];
            limits.iter().all(|limit| limit.admits(&waiting.amount, waiting.lasts))
        });
        let share = |waiting: &Waiting| sides[&waiting.key.workspace].1;
        let first = left.iter().enumerate().min_by(|(_, (a, of_a)), (_, (b, of_b))| {
            let by_share = share(of_a).total_cmp(&share(of_b));
            a.priority.cmp(&b.priority).then(by_share).then(a.order.cmp(&b.order))
        });
        let Some((at, (_, waiting))) = first else { return started };
        let (side, share) = sides.get_mut(&waiting.key.workspace).unwrap();
        let load = limit::Load::of(waiting.amount);
        if !load.fits(&side.room) {
            side.reserve(&waiting.amount);
        } else if !load.fits(&machine.room) {
            machine.reserve(&waiting.amount);
        } else {
            machine.start(&waiting.amount, waiting.lasts);
            side.start(&waiting.amount, waiting.lasts);
            *share += waiting.amount.cpu as f64 / 1000.0;
            started.push(waiting.key.clone());
        }
        left.remove(at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_starts_is_what_the_plain_rules_say_within_machine_and_quotas(
        running in shapes(50..51, 4),
        wanted in shapes(49..52, 12),
        quotas in quotas(),
    ) {
        let mut room = MACHINE;
        let fits = |shape: &Shape| room.checked_sub(shape.2 * 1000).map(|left| room = left).is_some();
        let running: Vec<Shape> = running.into_iter().filter(fits).collect();
        let live: Vec<Live> = (100..).zip(running).map(|(number, shape)| live_of(number, shape)).collect();
        let runs: Vec<_> = (0..).zip(wanted).map(|(number, shape)| run_of(number, shape)).collect();
        let queue: Queue = runs.iter().cloned().collect();
        let shares = Shares::new(Duration::from_secs(3600));
        let snapshot = snapshot(live, &queue, &shares, &quotas);
        let starts = started(&plan(&snapshot));
        prop_assert_eq!(&starts, &model(&snapshot, &runs));
        // Reckoned without any of the above.
        let now_running = runs.iter().map(|(_, run)| run).filter(|run| starts.contains(&run.key));
        let held = || snapshot.live.iter().map(|live| (&live.key, live.amount.cpu))
            .chain(now_running.clone().map(|run| (&run.key, run.amount.cpu)));
        prop_assert!(held().map(|(_, cpu)| cpu).sum::<u64>() <= MACHINE);
        for (workspace, quota) in &quotas {
            let started_here = starts.iter().any(|key| key.workspace == *workspace);
            let own = || held().filter(|(key, _)| key.workspace == *workspace);
            prop_assert!(!started_here || own().map(|(_, cpu)| cpu).sum::<u64>() <= quota.cpu.unwrap_or(u64::MAX));
            prop_assert!(!started_here || own().count() as u64 <= quota.running.unwrap_or(u64::MAX));
        }
    }
}

/// Jobs that come and go as time passes. How long a job takes is what it says, where it says something.
struct World {
    now: u64,
    live: Vec<(Live, u64)>,
    queue: Queue,
    lengths: BTreeMap<JobKey, u64>,
    shares: Shares,
    quotas: Quotas,
    reserved: Option<JobKey>,
}

impl World {
    fn snapshot(&self) -> Snapshot<'_> {
        let live = self.live.iter().map(|(live, _)| live.clone()).collect();
        let reserved = self.reserved.as_ref();
        Snapshot { now: Timestamp(self.now), reserved, ..snapshot(live, &self.queue, &self.shares, &self.quotas) }
    }

    /// The first that is held up for want of room, and when it is to start.
    fn pass(&mut self) -> Option<(JobKey, Option<Timestamp>)> {
        let planned = plan(&self.snapshot());
        let starts = started(&planned);
        for key in &starts {
            let waiting = self.queue.find(key).unwrap().1.clone();
            let mut attempt = live(0, 0);
            attempt.key = key.clone();
            attempt.amount = waiting.amount;
            attempt.expected_duration = waiting.lasts;
            attempt.held_since = Timestamp(self.now);
            attempt.running_since = Some(Timestamp(self.now));
            self.queue.remove(key);
            self.live.push((attempt, self.now + self.lengths[key]));
        }
        self.reserved =
            planned.held_up.iter().find(|held_up| held_up.why == Why::Room).map(|held_up| held_up.key.clone());
        let first = self.reserved.clone()?;
        let snapshot = self.snapshot();
        let mut machine = fill::machine(&snapshot);
        machine.reserve(&self.queue.find(&first).unwrap().1.amount);
        Some((first, machine.reservation.and_then(|reservation| reservation.at)))
    }

    /// Time goes on to the next end; false if nothing runs.
    fn go_on(&mut self) -> bool {
        let Some(next) = self.live.iter().map(|(_, end)| *end).min() else { return false };
        self.now = next;
        self.live.retain(|(live, end)| {
            if *end <= next {
                self.shares.add(&live.key.workspace, &live.amount, live.held_since, Timestamp(next));
            }
            *end > next
        });
        true
    }
}

/// Longest that a job takes, in ms.
const LONGEST: u64 = 20_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Small jobs come at every step. The big one that waits starts when it was said to, or, where something runs of which nobody
    /// knows how long, when that has ended and what was known then.
    #[test]
    fn no_stream_of_small_jobs_starves_a_big_one(
        before in prop::collection::vec((1u64..5, prop::option::of(1u64..20), 1u64..20), 1..8),
        stream in prop::collection::vec((1u64..4, prop::option::of(1u64..20), 1u64..20), 1..30),
        big in 5u64..9,
    ) {
        let mut world = World {
            now: 5000,
            live: Vec::new(),
            queue: Queue::default(),
            lengths: BTreeMap::new(),
            shares: Shares::new(Duration::from_secs(3600)),
            quotas: Quotas::new(),
            reserved: None,
        };
        let mut number = 0;
        let mut drop_in = |world: &mut World, (cores, says, takes): (u64, Option<u64>, u64)| {
            number += 1;
            let (place, waiting) = run_of(number, (0, 50, cores, says));
            world.lengths.insert(waiting.key.clone(), says.unwrap_or(takes) * 1000);
            world.queue.insert(place, waiting);
            key_in(0, number)
        };
        for job in before {
            drop_in(&mut world, job);
        }
        world.pass();
        let big = drop_in(&mut world, (big, Some(1), 1));
        let mut promised: Option<Timestamp> = None;
        let mut first_since = None;
        for job in stream.iter().cycle() {
            drop_in(&mut world, *job);
            let reserved = world.pass();
            if world.live.iter().any(|(live, _)| live.key == big) {
                break;
            }
            if let Some((first, at)) = reserved && first == big {
                let since = *first_since.get_or_insert(world.now);
                prop_assert!(world.now <= since + 2 * LONGEST, "it waits for ever");
                // Where all that runs says how long, a promise is kept.
                let said = world.live.iter().all(|(live, _)| live.expected_duration.is_some());
                if let (Some(before), Some(at)) = (promised, at) {
                    prop_assert!(at <= before, "what was promised for {before} is put off to {at}");
                }
                promised = at.filter(|_| said);
            }
            prop_assert!(world.go_on(), "nothing runs and it does not start");
        }
        prop_assert!(promised.is_none_or(|promised| Timestamp(world.now) <= promised));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Also where more is held than there is, as after a card has gone.
    #[test]
    fn a_place_is_kept_at_the_first_time_at_which_it_fits_and_what_is_over_then_is_free_for_others(
        held in prop::collection::vec((1u64..6, 1u64..6, any::<bool>()), 0..6),
        wanted in 1u64..11,
    ) {
        let amount = |cpu| Amount { cpu, memory: 0, gpu: 0 };
        let mut limit = Limit::new(limit::Load { amount: amount(10), runs: u64::MAX }, Timestamp(0));
        for (cpu, end, says) in &held {
            let end = Timestamp(*end);
            limit.hold(&amount(*cpu), if *says { limit::End::Said(end) } else { limit::End::Guessed(end) });
        }
        let left_at = |time: u64, trusting: bool| -> u64 {
            held.iter().filter(|(_, end, says)| *end > time || !(trusting || *says)).map(|(cpu, ..)| cpu).sum()
        };
        prop_assume!(wanted + left_at(0, true) > 10);
        limit.reserve(&amount(wanted));
        let at = (1..6).find(|time| wanted + left_at(*time, true) <= 10);
        prop_assert_eq!(limit.reservation.unwrap().at, at.map(Timestamp));
        let spare = 10u64.saturating_sub(left_at(at.unwrap_or(6), false)).saturating_sub(wanted);
        for cpu in 0..11 {
            prop_assert_eq!(limit.is_spare(&amount(cpu)), cpu <= spare);
            let lasts = Duration::from_millis(cpu);
            prop_assert_eq!(limit.ends_in_time(Some(lasts)), at.is_some_and(|at| cpu <= at));
        }
        prop_assert!(!limit.ends_in_time(None));
    }
}

#[test]
fn a_small_job_goes_first_only_if_it_ends_before_the_big_one_may_start_or_does_not_need_what_that_needs() {
    // 6 of 8 cores until second 15; the big one needs 7, so one is left over.
    let running = live_of(100, (0, 50, 6, Some(14)));
    let with = |small: Shape| {
        let queue = queue([run_of(1, (0, 50, 7, Some(5))), run_of(2, small)]);
        let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
        started(&plan(&snapshot(vec![running.clone()], &queue, &shares, &quotas)))
    };
    assert_eq!(with((0, 50, 2, Some(10))), [key_in(0, 2)], "at 5 s, it ends just in time");
    assert_eq!(with((0, 50, 2, Some(11))), []);
    assert_eq!(with((0, 50, 2, None)), []);
    assert_eq!(with((0, 50, 1, None)), [key_in(0, 2)], "the big one leaves one core");
}

#[test]
fn what_does_not_say_how_long_it_takes_is_guessed_to_go_on_as_long_again_and_leaves_nothing_over() {
    // It has run for 4 seconds.
    let running = live_of(100, (0, 50, 2, None));
    let with = |big: u64, small: Shape| {
        let queue = queue([run_of(1, (0, 50, big, None)), run_of(2, small)]);
        let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
        started(&plan(&snapshot(vec![running.clone()], &queue, &shares, &quotas)))
    };
    assert_eq!(with(7, (0, 50, 1, Some(4))), [key_in(0, 2)]);
    assert_eq!(with(7, (0, 50, 1, Some(5))), []);
    assert_eq!(with(7, (0, 50, 1, None)), [], "8 of 8 cores, should it end; but it may not");
    assert_eq!(with(6, (0, 50, 1, None)), [key_in(0, 1)]);
}

#[test]
fn who_has_used_less_comes_first_and_the_older_of_those_who_have_used_as_much() {
    let inventory = Amount { cpu: MACHINE, memory: 1, gpu: 0 };
    let hour = Duration::from_secs(3600);
    let (a, b): (WorkspaceName, WorkspaceName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let core = Amount { cpu: 1000, memory: 1, gpu: 0 };
    let mut shares = Shares::new(hour);
    let (begin, end) = (Timestamp(0), later(Timestamp(0), hour));
    shares.add(&a, &core, begin, end);
    shares.add(&b, &Amount { cpu: 1500, ..core }, begin, end);
    let of = |shares: &Shares, workspace, now| shares.of(workspace, std::iter::empty(), &inventory, now);
    let at_end = of(&shares, &a, end);
    assert!((at_end - 0.721).abs() < 0.001, "an hour of one core, of which the first part is half forgotten: {at_end}");
    assert!((of(&shares, &a, later(end, hour)) - at_end / 2.0).abs() < 1e-9);
    // In whatever order it is told.
    let mut other = Shares::new(hour);
    other.add(&a, &core, later(begin, hour), later(end, hour));
    other.add(&a, &core, begin, end);
    let both = of(&other, &a, later(end, hour));
    assert!((both - at_end * 1.5).abs() < 1e-9, "{both}");

    let order = |shares: &Shares| {
        let runs = [(1, 1), (1, 2), (1, 3), (0, 4), (0, 5)].map(|(workspace, n)| run_of(n, (workspace, 50, 4, None)));
        let (queue, quotas) = (runs.into_iter().collect(), Quotas::new());
        started(&plan(&Snapshot { now: end, ..snapshot(vec![], &queue, shares, &quotas) }))
    };
    assert_eq!(order(&shares), [key_in(0, 4), key_in(1, 1)], "a, then b: what starts counts as well");
    assert_eq!(order(&Shares::new(hour)), [key_in(1, 1), key_in(0, 4)]);
}

#[test]
fn who_has_a_place_keeps_it_though_another_workspace_has_used_less_by_now() {
    let big = run_of(1, (0, 50, 7, Some(5)));
    let queue = queue([big.clone(), run_of(2, (1, 50, 2, None))]);
    let (mut shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    shares.add(&"a".parse().unwrap(), &big.1.amount, Timestamp(0), Timestamp(5000));
    let running = live_of(100, (2, 50, 6, Some(14)));
    let starts = |reserved| {
        let snapshot = Snapshot { reserved, ..snapshot(vec![running.clone()], &queue, &shares, &quotas) };
        let planned = plan(&snapshot);
        let outlook = outlook::outlook(&snapshot, &planned.held_up, 1);
        (started(&planned), outlook.first().to_vec())
    };
    let (a, b) = (key_in(0, 1), key_in(1, 2));
    assert_eq!(starts(None), (vec![b.clone()], vec![b.clone()]));
    assert_eq!(starts(Some(&a)), (vec![], vec![a.clone()]));
    assert_eq!(starts(Some(&key_in(0, 9))), (vec![b.clone()], vec![b]), "it does not wait any more");
}

#[test]
fn who_has_waited_for_a_day_comes_first_whatever_its_workspace_has_used() {
    let queue = queue([run_of(1, (0, 50, 8, None)), run_of(2, (1, 50, 8, None))]);
    let (mut shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let first = |shares: &Shares, now| {
        let snapshot = Snapshot { now, ..snapshot(vec![], &queue, shares, &quotas) };
        let outlook = outlook::outlook(&snapshot, &[], 1);
        assert_eq!(outlook.first(), started(&plan(&snapshot)), "what is told is what is done");
        outlook.first().to_vec()
    };
    let day = later(Timestamp(0), Duration::from_secs(24 * 3600));
    shares.add(&"a".parse().unwrap(), &Amount { cpu: 8000, memory: 1, gpu: 0 }, Timestamp(0), day);
    assert_eq!(first(&shares, Timestamp(day.0 - 1)), [key_in(1, 2)]);
    assert_eq!(first(&shares, day), [key_in(0, 1)]);
}

#[test]
fn a_workspace_at_its_quota_holds_up_nobody_else() {
    let a: WorkspaceName = "a".parse().unwrap();
    let quotas = Quotas::from([(a.clone(), Quota { cpu: Some(3000), ..Quota::default() })]);
    let queue = queue([
        run_of(1, (0, 60, 4, None)),
        run_of(2, (0, 60, 2, None)),
        run_of(3, (0, 50, 1, None)),
        run_of(4, (1, 40, 3, None)),
    ]);
    let shares = Shares::new(Duration::from_secs(3600));
    let running = live_of(100, (0, 50, 2, None));
    let planned = plan(&snapshot(vec![running], &queue, &shares, &quotas));
    let Step::End { verdict: Verdict::Failed { reason }, .. } = &planned.steps[0] else { panic!("{planned:?}") };
    assert!(reason.contains("4 cpu of 3 that workspace a may have") && reason.contains("workspaces.a"), "{reason}");
    assert_eq!(started(&planned), [key_in(1, 4)], "j3 would put off j2, which is of its own workspace");
    assert_eq!(planned.held_up, [HeldUp { key: key_in(0, 2), why: Why::Quota }]);
}

#[test]
fn a_run_waits_for_cards_that_have_gone_and_holds_up_nobody() {
    let with_cards = |number, gpu| {
        let (place, mut run) = run_of(number, (0, 50, 1, None));
        run.amount.gpu = gpu;
        (place, run)
    };
    let queue = queue([with_cards(1, 2), with_cards(2, 0)]);
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let planned = plan(&snapshot(vec![], &queue, &shares, &quotas));
    assert_eq!((started(&planned), planned.steps.len()), (vec![key_in(0, 2)], 1));
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
    let wanted = Amount { cpu: 8000, memory: 1, gpu: 0 };
    let holders: Vec<_> = outlook.holders_of(&wanted, &outlook.free).map(|holder| &holder.key).collect();
    assert_eq!(holders, [&key_in(1, 100)]);
}
