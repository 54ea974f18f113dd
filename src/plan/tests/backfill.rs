//! The queue against a slow model of the same rules, and over time.

use std::collections::BTreeMap;

use proptest::prelude::*;

mod foreseen;

use super::super::limit::{Limit, later};
use super::world::World;
use super::*;
use crate::config::Quota;
use crate::ids::AttemptId;
use crate::store::record::UsageRecord;

/// What a random run is made of: workspace, priority, cores, and how long it may take, in seconds.
type Shape = (usize, u8, u64, Option<u64>);

const WORKSPACES: [&str; 3] = ["a", "b", "c"];
const MACHINE: u64 = 8000;
/// Ms.
const NOW: u64 = 5000;

fn key_in(workspace: usize, number: u64) -> JobKey {
    format!("{}/j{number}", WORKSPACES[workspace]).parse().unwrap()
}

fn run_of(number: u64, (workspace, priority, cores, lasts): Shape) -> (Place, Waiting) {
    let amount = Amount { cpu: cores * 1000, memory: 1, gpu: 0 };
    let lasts = lasts.map(Duration::from_secs);
    let waiting = Waiting {
        key: key_in(workspace, number),
        amount,
        wishes: Arc::default(),
        tasks: 1,
        network: Network::Host,
        ports: Vec::new(),
        since: Timestamp(0),
        lasts,
        expected: lasts,
    };
    (Place { priority: Reverse(Priority(priority)), order: number }, waiting)
}

fn live_of(number: u64, (workspace, _, cores, lasts): Shape) -> Live {
    Live {
        key: key_in(workspace, number),
        amount: Amount { cpu: cores * 1000, memory: 1, gpu: 0 },
        max_duration: lasts.map(Duration::from_secs),
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
    super::snapshot(NOW, inventory, live, queue, (shares, quotas))
}

/// Some cores, until when in ms, and whether that is sure.
type Held = (u64, u64, bool);

/// A limit as plainly as can be: what is held, and what is promised for when.
struct Plain {
    cores: u64,
    runs: u64,
    held: Vec<Held>,
    promised: Vec<(u64, Option<u64>)>,
    kept: Vec<u64>,
}

impl Plain {
    fn new(cores: Option<u64>, runs: Option<u64>) -> Self {
        let all = |limit: Option<u64>| limit.unwrap_or(1 << 40);
        Self { cores: all(cores), runs: all(runs), held: Vec::new(), promised: Vec::new(), kept: Vec::new() }
    }

    /// Whether so much has room beside what of that is held of which this is true.
    fn fits(&self, wanted: &[u64], is_there: impl Fn(&Held) -> bool) -> bool {
        let held: Vec<u64> = self.held.iter().filter(|held| is_there(held)).map(|(cores, ..)| *cores).collect();
        let all = [held.as_slice(), wanted].concat();
        all.iter().sum::<u64>() <= self.cores && all.len() as u64 <= self.runs
    }

    fn has_room(&self, cores: u64) -> bool {
        self.fits(&[cores], |_| true)
    }

    /// Nothing that is promised comes later by it, whatever guess is wrong.
    fn admits(&self, cores: u64, end: Option<u64>) -> bool {
        let harms_none = |(wanted, at): &(u64, Option<u64>)| {
            let is_over = end.zip(*at).is_some_and(|(end, at)| end <= at);
            let stays = |(_, end, is_sure): &Held| !is_sure || at.is_some_and(|at| *end > at);
            is_over || self.fits(&[*wanted, cores], stays)
        };
        let is_beside = |kept: &u64| self.fits(&[*kept, cores], |_| true);
        let may_ask = (self.promised.is_empty() && self.kept.is_empty()) || self.has_room(cores);
        may_ask && self.promised.iter().all(harms_none) && self.kept.iter().all(is_beside)
    }

    /// For when all that is in the way should have ended.
    fn promise(&mut self, cores: u64) {
        let ends = self.held.iter().map(|(_, end, _)| *end);
        let at = ends.filter(|at| self.fits(&[cores], |(_, end, _)| end > at)).min();
        self.promised.push((cores, at));
    }
}

/// The rules once more: all that wait are looked at again for each one that starts.
fn model(snapshot: &Snapshot<'_>, runs: &[(Place, Waiting)]) -> Vec<JobKey> {
    let quota = |workspace: &WorkspaceName| snapshot.quotas.get(workspace).copied().unwrap_or_default();
    let mut machine = Plain::new(Some(MACHINE), None);
    let mut sides: BTreeMap<&WorkspaceName, (Plain, share::Hours)> = BTreeMap::new();
    for (_, waiting) in runs {
        let workspace = &waiting.key.workspace;
        let used = fill::side(snapshot, workspace, attempt::sure_end).used;
        sides.insert(workspace, (Plain::new(quota(workspace).cpu, quota(workspace).running), used));
    }
    let mut ports: Vec<u16> = Vec::new();
    for live in &snapshot.live {
        // It runs since second 1.
        let end = live.max_duration.map_or(2 * NOW - 1000, |lasts| 1000 + lasts.as_millis() as u64);
        let held = (live.amount.cpu, end.max(NOW), live.max_duration.is_some());
        machine.held.push(held);
        sides.entry(&live.key.workspace).and_modify(|(side, _)| side.held.push(held));
        ports.extend(&live.ports);
    }
    let never = |waiting: &Waiting| quota(&waiting.key.workspace).cpu.is_some_and(|cores| waiting.amount.cpu > cores);
    let end = |waiting: &Waiting| waiting.lasts.map(|lasts| NOW + lasts.as_millis() as u64);
    let mut left: Vec<&(Place, Waiting)> = runs.iter().filter(|(_, waiting)| !never(waiting)).collect();
    let mut started = Vec::new();
    loop {
        left.retain(|(_, waiting)| {
            let limits = [&machine, &sides[&waiting.key.workspace].0];
            limits.iter().all(|limit| limit.admits(waiting.amount.cpu, end(waiting)))
        });
        let share = |waiting: &Waiting| {
            let (_, used) = &sides[&waiting.key.workspace];
            snapshot.shares.share(*used, &snapshot.inventory)
        };
        let Some((at, (_, waiting))) =
            left.iter().enumerate().min_by_key(|(_, (place, of))| (place.priority, share(of), place.order))
        else {
            return started;
        };
        let (side, used) = sides.get_mut(&waiting.key.workspace).unwrap();
        let cores = waiting.amount.cpu;
        if !side.has_room(cores) {
            side.promise(cores);
        } else if !machine.has_room(cores) {
            machine.promise(cores);
            side.kept.push(cores);
            ports.extend(&waiting.ports);
        } else if waiting.ports.iter().any(|port| ports.contains(port)) {
            side.kept.push(cores);
        } else {
            let held = (cores, end(waiting).unwrap_or(NOW), waiting.lasts.is_some());
            machine.held.push(held);
            side.held.push(held);
            *used = used.with_start(&waiting.amount);
            ports.extend(&waiting.ports);
            started.push(waiting.key.clone());
        }
        left.remove(at);
    }
}

/// Ports that some of a few runs name.
fn ports(runs: usize) -> impl Strategy<Value = Vec<Vec<u16>>> {
    let some = prop_oneof![4 => Just(vec![]), 1 => Just(vec![8080]), 1 => Just(vec![8081])];
    prop::collection::vec(some, runs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_starts_is_what_the_plain_rules_say_within_machine_and_quotas(
        running in shapes(50..51, 4),
        wanted in shapes(49..52, 12),
        quotas in quotas(),
        ports in ports(16),
    ) {
        let mut room = MACHINE;
        let fits = |shape: &Shape| room.checked_sub(shape.2 * 1000).map(|left| room = left).is_some();
        let running: Vec<Shape> = running.into_iter().filter(fits).collect();
        let mut live: Vec<Live> = (100..).zip(running).map(|(number, shape)| live_of(number, shape)).collect();
        let mut runs: Vec<_> = (0..).zip(wanted).map(|(number, shape)| run_of(number, shape)).collect();
        let of_all = live.iter_mut().map(|live| &mut live.ports).chain(runs.iter_mut().map(|(_, run)| &mut run.ports));
        of_all.zip(ports).for_each(|(own, ports)| *own = ports);
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

/// What keeps `big`, and when at the latest there is room for it, where it waits for that.
fn kept_by(planned: &Plan, world: &World, big: &JobKey) -> Option<(Why, Option<Timestamp>)> {
    let why = planned.held_up.iter().find(|held_up| held_up.key == *big)?.why.clone();
    let snapshot = world.snapshot();
    let machine = fill::machine(&snapshot, snapshot.inventory, attempt::sure_end);
    let at = machine.fits_at(&world.queue.find(big).unwrap().1.amount).filter(|_| why == Why::Room);
    Some((why, at))
}

/// Longest that a job takes, in ms.
const LONGEST: u64 = 20_000;

/// A job of a stream: workspace, cores, how long it should take, may take and takes, in seconds, and its ports.
type Small = (usize, u64, u64, Option<u64>, u64, Vec<u16>);

fn smalls(number: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Small>> {
    let port = ports(1).prop_map(|mut of_one| of_one.pop().unwrap());
    let small = (0..WORKSPACES.len(), 1u64..5, 1u64..10, prop::option::of(1u64..20), 1u64..20, port);
    prop::collection::vec(small, number)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Small jobs of all workspaces come at every step, most take longer than expected, and some want its port. The big one is the
    /// first in the order: it waits once for its quota, once for its port and once for room, each for twice as long as a job takes
    /// at most; and where it is known when there is room, that comes no later than was said.
    #[test]
    fn no_stream_of_small_jobs_starves_a_big_one(
        before in smalls(1..8),
        stream in smalls(1..30),
        cores in 5u64..9,
        quotas in quotas(),
        its_ports in ports(1),
    ) {
        let mut world = World::new(Amount { cpu: MACHINE, memory: 1 << 40, gpu: 0 }, None, quotas);
        if let Some(most) = world.quotas.get_mut(&key_in(0, 0).workspace).and_then(|quota| quota.cpu.as_mut()) {
            *most = (*most).max(cores * 1000);
        }
        let mut number = 1;
        let mut drop_in = |world: &mut World, (workspace, cores, expected, may, takes, ports): Small| {
            number += 1;
            let (place, waiting) = run_of(number, (workspace, 50, cores, may));
            let expected = Some(Duration::from_secs(expected));
            world.drop_in((place, Waiting { ports, expected, ..waiting }), takes);
        };
        let (place, big) = run_of(0, (0, 60, cores, Some(1)));
        let big = Waiting { ports: its_ports.concat(), ..big };
        before.into_iter().for_each(|job| drop_in(&mut world, job));
        world.pass();
        world.now += 1;
        world.drop_in((place, big.clone()), 1);
        let mut promised: Option<Timestamp> = None;
        let mut past_quota = None;
        for job in stream.iter().cycle() {
            drop_in(&mut world, job.clone());
            let planned = world.pass();
            let Some((why, at)) = kept_by(&planned, &world, &big.key) else { break };
            prop_assert!(world.now <= NOW + 5 * LONGEST, "it waits for ever, now for {why:?}");
            if why == Why::Quota {
                prop_assert!(past_quota.is_none(), "others have its part of the quota");
            } else {
                past_quota.get_or_insert(world.now);
            }
            if let Why::Port { holder, .. } = &why {
                let (holder, _) = world.live.iter().find(|(live, _)| live.key == *holder).unwrap();
                prop_assert!(Some(holder.held_since.0) < past_quota, "others have its port");
            }
            if let (Some(before), Why::Room) = (promised, why) {
                prop_assert!(at.is_some_and(|at| at <= before), "what was promised for {before} is put off to {at:?}");
            }
            // Where everything that runs is stopped at some time, a promise is kept.
            promised = at.filter(|_| world.live.iter().all(|(live, _)| live.max_duration.is_some()));
            prop_assert!(world.go_on(), "nothing runs and it does not start");
        }
        prop_assert!(world.runs(&big.key));
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
        let reserved_at = limit.fits_at(&amount(wanted));
        limit.reserve(&amount(wanted), reserved_at);
        let reservation = limit.reservations[0];
        let at = (1..6).find(|time| wanted + left_at(*time, true) <= 10);
        prop_assert_eq!((reserved_at, reservation.at), (at.map(Timestamp), at.map(Timestamp)));
        let spare = 10u64.saturating_sub(left_at(at.unwrap_or(6), false)).saturating_sub(wanted);
        for cpu in 0..11 {
            let one = limit::Load { runs: 0, ..limit::Load::of(amount(cpu)) };
            prop_assert_eq!(one.fits(&reservation.spare), cpu <= spare);
            prop_assert_eq!(reservation.is_after(Some(Timestamp(cpu))), at.is_some_and(|at| cpu <= at));
        }
        prop_assert!(!reservation.is_after(None));
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
    let inventory = Amount { cpu: MACHINE, memory: 1 << 40, gpu: 0 };
    let hour = Duration::from_secs(3600);
    let (a, b): (WorkspaceName, WorkspaceName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let core = Amount { cpu: 1000, memory: 1, gpu: 0 };
    let mut shares = Shares::new(hour);
    let (begin, end) = (Timestamp(0), later(Timestamp(0), hour));
    shares.add(&a, &core, begin, end);
    shares.add(&b, &Amount { cpu: 1500, ..core }, begin, end);
    // An hour of all eight cores in steps.
    let machine_h = 131_072.0;
    let of = |shares: &Shares, workspace, now| {
        let used = shares.of(workspace, std::iter::empty(), now);
        shares.share(used, &inventory) as f64 / machine_h * 8.0
    };
    let at_end = of(&shares, &a, end);
    assert!((at_end - 0.721).abs() < 0.001, "an hour of one core, of which the first part is half forgotten: {at_end}");
    assert!((of(&shares, &a, later(end, hour)) - at_end / 2.0).abs() < 1e-4);
    // In whatever order it is told.
    let mut other = Shares::new(hour);
    other.add(&a, &core, later(begin, hour), later(end, hour));
    other.add(&a, &core, begin, end);
    let both = of(&other, &a, later(end, hour));
    assert!((both - at_end * 1.5).abs() < 1e-4, "{both}");
    // Before the clock was set back by five hours: as if it had ended now.
    let record = UsageRecord {
        attempt: AttemptId(1),
        workspace: a.clone(),
        job: "j".parse().unwrap(),
        run: 1,
        owner: 1000,
        from: later(begin, 5 * hour),
        to: later(end, 5 * hour),
        cpu: core.cpu,
        memory: core.memory,
        gpu: 0,
        gpu_part: 0,
        price: None,
        price_is_part: false,
    };
    let mut read = Shares::new(hour);
    read.account(&record, end);
    let mut running_on = Shares::new(hour);
    running_on.account(&record, record.to);
    running_on.used_by(end);
    for set_back in [&read, &running_on] {
        assert!((of(set_back, &a, end) - at_end).abs() < 1e-4);
        assert!((of(set_back, &a, later(end, hour)) - at_end / 2.0).abs() < 1e-4);
    }

    let order = |shares: &Shares| {
        let runs = [(1, 1), (1, 2), (1, 3), (0, 4), (0, 5)].map(|(workspace, n)| run_of(n, (workspace, 50, 4, None)));
        let (queue, quotas) = (runs.into_iter().collect(), Quotas::new());
        started(&plan(&Snapshot { now: end, ..snapshot(vec![], &queue, shares, &quotas) }))
    };
    assert_eq!(order(&shares), [key_in(0, 4), key_in(1, 1)], "a, then b: what starts counts as well");
    assert_eq!(order(&Shares::new(hour)), [key_in(1, 1), key_in(0, 4)]);
}

#[test]
fn what_was_used_counts_by_that_of_which_it_was_the_largest_part_of_the_machine() {
    let inventory = Amount { cpu: 8000, memory: 64, gpu: 4 };
    let shares = Shares::new(Duration::from_secs(3600));
    let share =
        |cpu, memory, gpu| shares.share(share::Hours::default().with_start(&Amount { cpu, memory, gpu }), &inventory);
    let half = share(0, 0, 2);
    assert!(half > 0);
    assert_eq!([share(4000, 8, 1), share(1000, 32, 0), share(4000, 0, 0)], [half; 3], "cores and memory cost as well");
    let no_cards = Amount { gpu: 0, ..inventory };
    assert_eq!(
        shares.share(share::Hours::default().with_start(&Amount { cpu: 4000, memory: 1, gpu: 3 }), &no_cards),
        half
    );
}

#[test]
fn what_is_too_old_to_be_read_at_a_restart_changes_the_order_of_nobody() {
    let workspace: WorkspaceName = "a".parse().unwrap();
    let inventory = Amount { cpu: MACHINE, memory: 1, gpu: 0 };
    let (half_life, hour) = (Duration::from_secs(168 * 3600), 3_600_000);
    let now = Timestamp(168 * hour * 40);
    let share = |shares: &Shares| shares.share(shares.of(&workspace, std::iter::empty(), now), &inventory);
    // The whole machine until so many half-lives ago, for as long as can be.
    for ago in 0..30 {
        let end = Timestamp(now.0 - 168 * hour * ago);
        let mut running_on = Shares::new(half_life);
        running_on.add(&workspace, &Amount { cpu: MACHINE, memory: 0, gpu: 0 }, Timestamp(0), end);
        let is_read = end >= running_on.matters_since(now);
        assert!(is_read || share(&running_on) == share(&Shares::new(half_life)), "{ago}: {}", share(&running_on));
    }
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
fn who_has_a_place_gives_it_up_to_a_higher_priority() {
    let queue = queue([run_of(1, (0, 50, 7, Some(5))), run_of(2, (1, 60, 8, Some(5))), run_of(3, (2, 50, 1, None))]);
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let held = key_in(0, 1);
    let running = vec![live_of(100, (2, 50, 6, Some(14)))];
    let planned = plan(&Snapshot { reserved: Some(&held), ..snapshot(running, &queue, &shares, &quotas) });
    assert_eq!(planned.held_up, [HeldUp { key: key_in(1, 2), why: Why::Room }]);
    assert_eq!(started(&planned), []);
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
    assert_eq!(planned.steps.len(), 1, "j1 waits until a may have more again");
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
fn what_is_held_up_for_room_keeps_its_part_of_the_quota_and_its_ports() {
    let quota = |cores| Quotas::from([("a".parse().unwrap(), Quota { cpu: Some(cores), ..Quota::default() })]);
    let shares = Shares::new(Duration::from_secs(3600));
    // Two cores are free. The big one needs four, and its workspace may have as many.
    let running = || vec![live_of(100, (1, 50, 6, Some(14)))];
    let (place, big) = run_of(1, (0, 50, 4, None));
    let big = Waiting { ports: vec![8080], ..big };
    let small = |lasts, ports: &[u16]| {
        let (place, small) = run_of(2, (0, 50, 2, lasts));
        (place, Waiting { ports: ports.to_vec(), ..small })
    };
    let with = |cores, small| {
        let (queue, quotas) = (queue([(place, big.clone()), small]), quota(cores));
        started(&plan(&snapshot(running(), &queue, &shares, &quotas)))
    };
    assert_eq!(with(4000, small(None, &[])), [], "then the big one would have two of the quota");
    assert_eq!(with(4000, small(Some(10), &[])), [], "and there may be room before it is stopped");
    assert_eq!(with(6000, small(None, &[])), [key_in(0, 2)]);
    assert_eq!(with(6000, small(None, &[8080])), [], "it has the port of the big one");
    assert_eq!(with(6000, small(None, &[8081])), [key_in(0, 2)]);
}

#[test]
fn where_addresses_are_used_up_those_that_need_none_go_past_and_what_is_too_large_for_all_is_ended() {
    let tasks = |number, network, tasks| {
        let (place, run) = run_of(number, (0, 50, 1, None));
        (place, Waiting { network, tasks, ..run })
    };
    let mut holder = live_of(100, (1, 50, 1, None));
    holder.block = Some(AddressBlock { base: "10.213.0.0".parse().unwrap(), prefix: 25 });
    let queue = queue([
        tasks(1, Network::Task, 254),
        tasks(2, Network::Task, 200),
        tasks(3, Network::Job, 200),
        tasks(4, Network::Host, 200),
    ]);
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let planned = plan(&snapshot(vec![holder], &queue, &shares, &quotas));
    let Step::End { key, verdict: Verdict::Failed { reason } } = &planned.steps[0] else { panic!("{planned:?}") };
    assert_eq!(*key, key_in(0, 1));
    assert!(reason.contains("254 task(s)") && reason.contains("network.range (256 addresses)"), "{reason}");
    assert_eq!(planned.held_up, [HeldUp { key: key_in(0, 2), why: Why::Addresses }]);
    assert_eq!(started(&planned), [key_in(0, 4)], "the third would take addresses that the second waits for");
}
