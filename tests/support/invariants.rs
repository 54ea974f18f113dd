//! What must be true of Trainyard at any time, whatever is killed. Asserted by the simulated daemon (`tests/plain`) and,
//! in the words of one job, by the crash tests (`tests/host/crash.rs`).

use std::collections::BTreeMap;

use trainyard::ids::{AttemptId, TaskId};
use trainyard::plan::Amount;
use trainyard::store::record::{EventRecord, RunRecord};

/// No task is started twice, crash or not.
pub(crate) fn nothing_starts_twice(starts: &BTreeMap<TaskId, u32>) {
    for (task, count) in starts {
        assert!(*count <= 1, "{task} was started {count} times");
    }
}

/// Attempts that hold something of the machine hold no more than there is.
pub(crate) fn nothing_is_leased_twice(held: &BTreeMap<AttemptId, Amount>, inventory: Amount) {
    let cpu: u64 = held.values().map(|amount| amount.cpu).sum();
    let memory: u64 = held.values().map(|amount| amount.memory).sum();
    assert!(cpu <= inventory.cpu && memory <= inventory.memory, "{held:?} of {inventory:?}");
}

/// No process without a recorded intent.
pub(crate) fn every_start_was_recorded(attempt: AttemptId, recorded: &[RunRecord]) {
    let known = recorded.iter().flat_map(|run| &run.attempts).any(|record| record.id == attempt);
    assert!(known, "{attempt} starts and the store does not know of it");
}

/// Every task of an ended run has one end, and the run one verdict.
pub(crate) fn every_task_ended_once(run: &RunRecord) {
    assert!(run.ended.is_some(), "run {} never ended", run.number);
    for attempt in &run.attempts {
        assert!(attempt.ended.is_some() && attempt.released, "{} was not cleaned up", attempt.id);
        assert!(attempt.tasks.iter().all(|task| task.phase.end().is_some()), "{} has open tasks", attempt.id);
    }
}

/// Events are numbered without gaps from `first`, each once.
pub(crate) fn no_event_is_lost_or_doubled(first: u64, events: &[EventRecord]) {
    for (expected, event) in (first..).zip(events) {
        assert_eq!(event.number, expected, "{events:?}");
    }
}
