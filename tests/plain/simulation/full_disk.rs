//! What is decided, asked and looked at while the disk is full or has little room.

use super::*;

#[test]
fn what_is_decided_on_a_full_disk_is_done_once_there_is_room_and_its_asker_is_told_so() {
    let mut world = World::new(Quota::default());
    world.step(&Step::Drop { job: 0, spec: 0 });
    while !world.works.is_empty() {
        world.work(0);
    }
    world.task(0, 1);
    while !world.works.is_empty() {
        world.work(0);
    }
    assert_eq!(world.state(0), State::Running);
    world.step(&Step::Disk { full: true });
    let stored = world.store.load().unwrap();
    let (told, heard) = std::sync::mpsc::channel();
    let answer = Box::new(move |result: Result<String, Refusal>| drop(told.send(result)));
    let stop = Request::Change { caller: Caller::root(), key: key(0), verb: VERBS[0], answer };
    world.handle(Event::Request(stop));
    assert_eq!(heard.try_recv().unwrap(), Err(Refusal::NoRoom { is_kept: true }));
    assert!(world.works.is_empty() && world.store.load().unwrap() == stored, "nothing is done that is not recorded");
    assert!(world.daemon.as_ref().unwrap().summary().contains("the disk is full"));
    world.step(&Step::Disk { full: false });
    assert!(world.works.iter().any(|work| matches!(work, Work::Stop { .. })), "{:?}", world.works);
    world.settle();
    world.check_end();
    assert_eq!(world.state(0), State::Stopped);
    // A run that comes when there is little room waits, says why, and begins by itself.
    world.step(&Step::Free { low: true });
    world.step(&Step::Drop { job: 1, spec: 0 });
    let report = world.daemon.as_ref().unwrap().report(&key(1)).unwrap();
    assert!(report.reason.starts_with("waits for room: ") && report.reason.contains("1GiB"), "{}", report.reason);
    assert!(world.works.is_empty());
    world.step(&Step::Free { low: false });
    world.settle();
    assert_eq!(world.state(1), State::Succeeded);
}

#[test]
fn what_could_not_be_made_ready_is_tried_again_when_its_time_has_come_and_there_is_room_and_takes_no_round_before() {
    let mut world = World::new(Quota::default());
    let text = "command = 'a'\nimage = 'registry.example/x'\nretries = 5\nretry = { on = ['image'], backoff = '10s' }";
    let (source, spec) = source(text.to_owned(), 0);
    world.handle(Event::Files(vec![Arrival::Accepted { key: key(0), source, spec: Box::new(spec) }]));
    let Some(Work::Prepare { key: job, run, .. }) = world.works.pop_front() else { panic!("it is made ready") };
    let result = Err(EngineError("the registry is away".to_owned()));
    world.handle(Event::Done(Outcome::Prepared { key: job, run, result }));
    let stored = |world: &World| (world.store.load().unwrap(), world.store.events(&key(0), 0, usize::MAX).unwrap());
    let before = stored(&world);
    // That there is room again does not make it due.
    for low in [true, false, true] {
        world.step(&Step::Free { low });
        assert!(world.works.is_empty(), "{:?}", world.works);
    }
    for _ in 0..3 {
        world.step(&Step::Wait { ms: 11_000 });
        assert!(world.works.is_empty(), "{:?}", world.works);
        assert!(world.wake_at.is_none_or(|at| at.0 > world.now), "{:?} at {}", world.wake_at, world.now);
    }
    let report = world.daemon.as_ref().unwrap().report(&key(0)).unwrap();
    assert!(report.reason.starts_with("waits for room: "), "{}", report.reason);
    assert_eq!(stored(&world), before, "of a disk that has little room nothing is recorded for each job");
    world.step(&Step::Free { low: false });
    assert!(matches!(world.works.front(), Some(Work::Prepare { .. })), "{:?}", world.works);
}

#[test]
fn what_is_asked_and_looked_at_while_nothing_can_be_recorded_is_answered_and_does_not_pile_up() {
    let mut world = World::new(Quota::default());
    world.step(&Step::Drop { job: 0, spec: 0 });
    world.settle();
    world.step(&Step::Drop { job: 1, spec: 5 });
    world.work_without_looks();
    world.look_at_cards();
    world.work_without_looks();
    world.task(0, 1);
    world.work_without_looks();
    assert_eq!(world.state(1), State::Running);
    let task = *world.tasks.keys().next_back().unwrap();
    world.works.clear();
    world.step(&Step::Disk { full: true });
    world.step(&Step::Drop { job: 2, spec: 0 });
    for _ in 0..20 {
        world.step(&Step::Wait { ms: 6000 });
        world.handle(Event::News(task));
    }
    // Nothing is recorded of what would be done.
    let (told, heard) = std::sync::mpsc::channel();
    let answer = Box::new(move |result: Result<String, Refusal>| drop(told.send(result)));
    let verb = Verb::WouldRemove { with_file: true };
    world.handle(Event::Request(Request::Change { caller: Caller::root(), key: key(0), verb, answer }));
    assert!(heard.try_recv().unwrap().unwrap().contains("would be removed"));
    world.step(&Step::Disk { full: false });
    let count = |is_one: fn(&Work) -> bool| world.works.iter().filter(|work| is_one(work)).count();
    assert_eq!(count(|work| matches!(work, Work::Measure { .. })), 1, "{:?}", world.works);
    assert_eq!(count(|work| matches!(work, Work::Look { .. })), 1, "{:?}", world.works);
    world.settle();
    world.check_end();
}

#[test]
fn a_task_whose_shim_could_not_be_told_why_it_is_stopped_ends_as_any_other() {
    let mut world = World::new(Quota::default());
    world.step(&Step::Drop { job: 0, spec: 14 });
    world.work_without_looks();
    while world.state(0) != State::Running {
        for which in 0..3 {
            world.task(which, 1);
        }
        world.work_without_looks();
    }
    world.step(&Step::Wait { ms: 1500 });
    world.work_without_looks();
    world.disk_full = true;
    world.task(0, 2);
    world.work_without_looks();
    let attempt = world.store.load().unwrap().runs[&key(0)].attempts[0].clone();
    let end = attempt.tasks.iter().find_map(|task| task.phase.end()).unwrap();
    assert_eq!(end.end, TaskEnd::TimedOut { limit_ms: 1000 });
    world.settle();
    world.check_end();
}
