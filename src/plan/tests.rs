mod backfill;
mod cards;
mod sharing;
mod world;

use std::cmp::Reverse;

use proptest::prelude::*;

use super::*;
use crate::spec::MinSucceeded;
use crate::spec::Priority;

const RANGE: AddressRange = AddressRange { base: 0x0ad5_0000, prefix: 24 };

fn key(number: u64) -> JobKey {
    format!("j{number}").parse().unwrap()
}

fn waiting(number: u64, cpu: u64, tasks: u32) -> Waiting {
    Waiting {
        key: key(number),
        amount: Amount { cpu, memory: cpu, gpu: 0 },
        wishes: Arc::default(),
        tasks,
        network: Network::Task,
        ports: Vec::new(),
        since: Timestamp(0),
        lasts: None,
        expected: None,
    }
}

fn place(order: u64) -> Place {
    Place { priority: Reverse(Priority::NORMAL), order }
}

fn live(number: u64, cpu: u64) -> Live {
    Live {
        key: key(number),
        amount: Amount { cpu, memory: cpu, gpu: 0 },
        lost: 0,
        pieces: Vec::new(),
        over_share: None,
        block: None,
        ports: Vec::new(),
        tallies: vec![RoleTally {
            name: "main".parse().unwrap(),
            count: 1,
            main: crate::spec::Main::No,
            serves: false,
            min_failed: Some(1),
            min_succeeded: MinSucceeded::All,
            succeeded: 0,
            failed: 0,
            stopped: 0,
            first: None,
        }],
        first_failure: None,
        all_ended: false,
        held_since: Timestamp(1000),
        running_since: Some(Timestamp(1000)),
        kept_until: None,
        max_duration: None,
        expected_duration: None,
        on_overrun: OnOverrun::Alert,
        overrun_told: false,
        idle: None,
        gpu_failure: None,
        wanted_stop: None,
        verdict: None,
        released: false,
        releasing: false,
        attempts_left: 0,
        retried: true,
    }
}

fn run(live: Vec<Live>, queue: &Queue, cpu: u64) -> Plan {
    run_within(live, queue, cpu, &Quotas::new())
}

fn run_within(live: Vec<Live>, queue: &Queue, cpu: u64, quotas: &Quotas) -> Plan {
    let shares = Shares::new(Duration::from_secs(3600));
    let inventory = Amount { cpu, memory: cpu, gpu: 0 };
    plan(&snapshot(5000, inventory, live, queue, (&shares, quotas)))
}

/// When it is told that a run should start.
fn seconds(start: outlook::Start) -> u64 {
    start.at().0 / 1000
}

/// Without cards that are away, and with nobody's place kept.
fn snapshot<'a>(
    now: u64,
    inventory: Amount,
    live: Vec<Live>,
    queue: &'a Queue,
    (shares, quotas): (&'a Shares, &'a Quotas),
) -> Snapshot<'a> {
    Snapshot {
        now: Timestamp(now),
        inventory,
        away: Vec::new(),
        one_by_one: None,
        addresses: RANGE,
        last_block: None,
        live,
        queue,
        reserved: None,
        shares,
        quotas,
    }
}

fn no_queue() -> Queue {
    Queue::default()
}

fn queue<const N: usize>(runs: [(Place, Waiting); N]) -> Queue {
    runs.into_iter().collect()
}

fn started(plan: &Plan) -> Vec<JobKey> {
    let started = plan.steps.iter().filter_map(|step| match step {
        Step::Start { key, .. } => Some(key.clone()),
        _ => None,
    });
    started.collect()
}

#[test]
fn an_attempt_goes_from_decided_over_released_to_ended() {
    let mut attempt = live(1, 1);
    assert_eq!(run(vec![attempt.clone()], &no_queue(), 10).steps, []);
    attempt.tallies[0].failed = 1;
    attempt.all_ended = true;
    attempt.first_failure = Some("main-0 exited with code 1".into());
    let verdict = Verdict::Failed { reason: "main-0 exited with code 1".into() };
    let decided = Step::Decide { key: key(1), verdict: verdict.clone(), cause: StopCause::Decided };
    assert_eq!(run(vec![attempt.clone()], &no_queue(), 10).steps, [decided]);
    attempt.verdict = Some(verdict.clone());
    assert_eq!(run(vec![attempt.clone()], &no_queue(), 10).steps, [Step::Release { key: key(1) }]);
    attempt.releasing = true;
    assert_eq!(run(vec![attempt.clone()], &no_queue(), 10).steps, []);
    attempt.released = true;
    assert_eq!(run(vec![attempt.clone()], &no_queue(), 10).steps, [Step::End { key: key(1), verdict }]);
    attempt.attempts_left = 1;
    let spared = Live { retried: false, ..attempt.clone() };
    assert!(matches!(attempt::next_step(&spared, Timestamp(0)), Some(Step::End { .. })), "not this kind");
    assert!(matches!(run(vec![attempt.clone()], &no_queue(), 10).steps[..], [Step::Retry { .. }]));
    attempt.wanted_stop = Some(StopCause::File);
    assert!(matches!(run(vec![attempt], &no_queue(), 10).steps[..], [Step::End { .. }]), "a stop ends the retries");
}

#[test]
fn a_wanted_stop_and_a_passed_limit_decide() {
    let mut attempt = live(1, 1);
    attempt.max_duration = Some(Duration::from_millis(4500));
    let planned = run(vec![attempt.clone()], &no_queue(), 10);
    assert_eq!((planned.steps, planned.wake_at), (vec![], Some(Timestamp(5500))));
    attempt.max_duration = Some(Duration::from_millis(4000));
    let steps = run(vec![attempt.clone()], &no_queue(), 10).steps;
    assert!(matches!(&steps[..], [Step::Decide { cause: StopCause::TimedOut { limit_ms: 4000 }, .. }]), "{steps:?}");
    attempt.max_duration = None;
    attempt.wanted_stop = Some(StopCause::FileRemoved);
    let steps = run(vec![attempt], &no_queue(), 10).steps;
    assert!(matches!(&steps[..], [Step::Decide { verdict: Verdict::Stopped { .. }, .. }]), "{steps:?}");
}

#[test]
fn the_first_that_does_not_fit_is_held_up_and_nobody_who_may_last_for_ever_overtakes_it() {
    let queue = queue([(place(1), waiting(1, 8, 1)), (place(2), waiting(2, 3, 1))]);
    let planned = run(vec![live(9, 4)], &queue, 10);
    assert_eq!(planned.steps, []);
    assert_eq!(planned.held_up, [HeldUp { key: key(1), why: Why::Room }]);
}

#[test]
fn what_can_never_fit_fails_naming_what_is_missing_and_blocks_nobody() {
    let queue = queue([(place(1), waiting(1, 11, 1)), (place(2), waiting(2, 1, 1))]);
    let steps = run(vec![], &queue, 10).steps;
    assert!(matches!(&steps[0], Step::End { verdict: Verdict::Failed { reason }, .. } if reason.contains("cpu")));
    assert!(matches!(&steps[1], Step::Start { .. }));
}

fn overlaps(a: AddressBlock, b: AddressBlock) -> bool {
    let range = |block: AddressBlock| {
        let base = u64::from(u32::from(block.base));
        base..base + (1u64 << (32 - block.prefix))
    };
    let (a, b) = (range(a), range(b));
    a.start < b.end && b.start < a.end
}

proptest! {
    /// Against a model that adds up what is held: gangs only, in order, never more than there is, no address twice.
    #[test]
    fn starts_are_in_order_within_the_machine_and_with_addresses_of_their_own(
        held in prop::collection::vec((0u64..6, any::<bool>()), 0..5),
        wanted in prop::collection::vec((1u64..9, 1u32..20), 0..12),
    ) {
        let live: Vec<_> = held.iter().zip(100..).map(|((cpu, released), number)| {
            let mut attempt = live(number, *cpu);
            if *released { attempt.verdict = Some(Verdict::Succeeded { tolerated: 0 }); }
            Live { released: *released, ..attempt }
        }).collect();
        let runs: Vec<_> = wanted.iter().zip(0..).map(|((cpu, tasks), n)| (place(n), waiting(n, *cpu, *tasks))).collect();
        let planned = run(live, &runs.iter().cloned().collect(), 10);
        let mut room = 10u64.saturating_sub(held.iter().filter(|(_, released)| !released).map(|(cpu, _)| cpu).sum());
        let mut blocks: Vec<AddressBlock> = Vec::new();
        let mut expected = runs.iter().map(|(_, waiting)| waiting);
        for step in &planned.steps {
            let Step::Start { key, block, .. } = step else { continue };
            // Of those of which it is not known how long they take only what does not delay the first is taken out of order.
            let next = expected.by_ref().find(|next| next.key == *key);
            prop_assert!(next.is_some(), "in the order of the queue");
            let next = next.unwrap();
            prop_assert!(next.amount.cpu <= room);
            room -= next.amount.cpu;
            let block = block.unwrap();
            prop_assert!((1u32 << (32 - block.prefix)) >= next.tasks + 3);
            prop_assert!(blocks.iter().all(|other| !overlaps(*other, block)));
            prop_assert_eq!(u32::from(block.base) % (1 << (32 - block.prefix)), 0);
            blocks.push(block);
        }
        let left = runs.iter().map(|(_, waiting)| waiting).find(|waiting| !started(&planned).contains(&waiting.key));
        let first = planned.held_up.first().map(|held_up| held_up.key.clone());
        prop_assert_eq!(first, left.map(|left| left.key.clone()), "the first that is left is told why");
    }
}

#[test]
fn blocks_are_handed_out_around_the_range() {
    let first = address::allocate(RANGE, &[], None, 1).unwrap();
    let second = address::allocate(RANGE, &[], Some(first), 1).unwrap();
    assert_ne!(first, second, "not at once again");
    let last = AddressBlock { base: "10.213.0.252".parse().unwrap(), prefix: 30 };
    assert_eq!(address::allocate(RANGE, &[first], Some(last), 1), Some(second), "around the end, to what is free");
    assert_eq!(address::allocate(RANGE, &[], Some(last), 254), None);
}

#[test]
fn who_is_held_up_for_room_keeps_the_last_addresses() {
    let half = AddressBlock { base: "10.213.0.0".parse().unwrap(), prefix: 25 };
    let running = Live { block: Some(half), max_duration: Some(Duration::from_secs(100)), ..live(1, 5) };
    let first = waiting(2, 8, 100);
    // It would be over before the first has room.
    let behind = Waiting { lasts: Some(Duration::from_secs(1)), ..waiting(3, 1, 100) };
    let planned = run(vec![running], &queue([(place(1), first), (place(2), behind)]), 10);
    let whys: Vec<_> = planned.held_up.into_iter().map(|held_up| (held_up.key, held_up.why)).collect();
    assert_eq!((planned.steps, whys), (vec![], vec![(key(2), Why::Room), (key(3), Why::Addresses)]));
}

#[test]
fn a_port_that_somebody_holds_is_waited_for_by_name() {
    let live_with_port = || Live { ports: vec![8080], ..live(1, 1) };
    let holder = live_with_port();
    let wanting = |number| Waiting { ports: vec![8081, 8080], ..waiting(number, 1, 1) };
    let planned = run(vec![holder.clone()], &queue([(place(1), wanting(2))]), 10);
    let waits = |holder, how| Why::Port { port: 8080, holder: key(holder), how };
    assert_eq!((planned.steps, &planned.held_up[0].why), (vec![], &waits(1, Holding::Has)));
    let gone = Live { released: true, verdict: Some(Verdict::Succeeded { tolerated: 0 }), ..holder };
    let planned = run(vec![gone], &queue([(place(1), wanting(2)), (place(2), wanting(3))]), 10);
    assert_eq!(started(&planned), [key(2)], "the second of the two waits for the first");
    assert!(matches!(&planned.held_up[0].why, Why::Port { holder, how: Holding::Has, .. } if *holder == key(2)));
    // Others go past them, but nobody gets what an earlier one waits for.
    let queue = queue([
        (place(1), wanting(2)),
        (place(2), waiting(3, 1, 1)),
        (place(3), Waiting { ports: vec![8081], ..waiting(4, 1, 1) }),
    ]);
    let past = run(vec![live_with_port()], &queue, 10);
    assert_eq!(started(&past), [key(3)]);
    assert_eq!(past.held_up[1].why, Why::Port { port: 8081, holder: key(2), how: Holding::First });
}

#[test]
fn an_attempt_that_takes_longer_than_expected_is_told_of_once_and_stopped_only_if_asked() {
    let late = Live { expected_duration: Some(Duration::from_millis(500)), ..live(1, 1) };
    assert_eq!(attempt::overrun(&late, Timestamp(1400)), None, "it runs since 1000");
    assert!(matches!(attempt::overrun(&late, Timestamp(1500)), Some(Step::TellOverrun { .. })));
    assert_eq!(attempt::overrun(&Live { overrun_told: true, ..late.clone() }, Timestamp(1500)), None);
    assert_eq!(attempt::next_step(&late, Timestamp(1500)), None, "it runs on");
    let stopped = Live { on_overrun: OnOverrun::Stop, ..late };
    let Some(Step::Decide { verdict, .. }) = attempt::next_step(&stopped, Timestamp(1500)) else {
        panic!("not stopped")
    };
    assert!(verdict.to_string().contains("expected_duration of 0.5s"), "{verdict}");
}

#[test]
fn the_higher_priority_starts_first_and_of_equal_ones_the_older() {
    let at = |priority, order| Place { priority: Reverse(Priority(priority)), order };
    let queue = [(at(50, 1), 1), (at(75, 3), 3), (at(75, 2), 2), (at(0, 0), 4)];
    let queue = queue.into_iter().map(|(place, number)| (place, waiting(number, 4, 1))).collect();
    let planned = run(vec![], &queue, 10);
    assert_eq!(started(&planned), [key(2), key(3)]);
    assert_eq!(planned.held_up, [HeldUp { key: key(1), why: Why::Room }]);
}

#[test]
fn who_waits_for_cards_that_are_away_for_a_while_is_held_up_with_its_reservation() {
    let gpu = |number, gpu| {
        let amount = Amount { cpu: 1, memory: 1, gpu: gpu * CARD };
        (place(number), Waiting { amount, ..waiting(number, 1, 1) })
    };
    let queue = queue([gpu(1, 4), gpu(2, 1)]);
    let (shares, quotas) = (Shares::new(Duration::from_secs(3600)), Quotas::new());
    let planned = |inventory, away| {
        let now = Timestamp(5000);
        let (last_block, live, reserved) = (None, Vec::new(), None);
        let (queue, shares, quotas, addresses) = (&queue, &shares, &quotas, RANGE);
        let one_by_one = None;
        plan(&Snapshot {
            now,
            inventory,
            away,
            one_by_one,
            addresses,
            last_block,
            live,
            queue,
            reserved,
            shares,
            quotas,
        })
    };
    let has = |gpu| Amount { cpu: 8, memory: 8, gpu: gpu * CARD };
    let held = planned(has(4), vec![Timestamp(5000), Timestamp(1)]);
    assert_eq!((started(&held), held.held_up), (vec![], vec![HeldUp { key: key(1), why: Why::Room }]));
    assert_eq!(started(&planned(has(4), vec![])), [key(1)]);
    // Three are all that there are: it cannot start whatever ends, and holds up nobody.
    assert_eq!(started(&planned(has(3), vec![Timestamp(1)])), [key(2)]);
}
