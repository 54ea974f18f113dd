//! A wall clock that is set: what is waited for comes neither sooner nor later by that, and nothing has taken longer or shorter. Times are
//! stored as the wall clock had them, which is what people read; where the clock jumps against the time since the machine's start, the
//! times of each open run and of its attempts jump along. Runs that are over stay as they were, and what has been used counts as used by
//! now at the latest. After a restart of the machine its wall clock is what there is.

use super::Reconciler;
use super::world::{Job, Run};
use crate::ids::{JobKey, Timestamp};
use crate::store::Store;
use crate::store::record::{ClockRecord, TaskPhase};

/// Two clocks are not read at one instant; what they differ by less than this is no jump, ms.
pub(super) const JUMP_MIN: u64 = 1000;

impl<S: Store> Reconciler<S> {
    /// Takes note of how the clock stands; call it before anything is handed the time that this clock says.
    pub fn clock(&mut self, boot: &str, lead: i64, now: Timestamp) {
        self.now = now;
        let jump = match &self.counters.clock {
            Some(known) if known.boot == boot => lead.saturating_sub(known.lead),
            _ => 0,
        };
        let is_known = self.counters.clock.as_ref().is_some_and(|known| known.boot == boot);
        if is_known && jump.unsigned_abs() < JUMP_MIN {
            return;
        }
        self.counters.clock = Some(ClockRecord { boot: boot.to_owned(), lead });
        self.counters_changed = true;
        if jump != 0 {
            tracing::warn!(by_ms = jump, "the clock was set: what is waited for comes as if it had not been");
            self.jump_along(jump);
        }
    }

    fn jump_along(&mut self, jump: i64) {
        let open: Vec<JobKey> =
            self.jobs.iter().filter(|(_, job)| job.open_run().is_some()).map(|(key, _)| key.clone()).collect();
        for key in open {
            if let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) {
                run.jump_along(jump);
            }
            self.settle(&key);
        }
        self.retry_at = self.retry_at.map(|at| moved(at, jump));
        self.shares.used_by(self.now);
    }
}

impl Run {
    /// What its waits, its durations and what it uses are reckoned from.
    fn jump_along(&mut self, jump: i64) {
        let jumps = |at: &mut Timestamp| *at = moved(*at, jump);
        jumps(&mut self.record.created);
        if let Some(unprepared) = &mut self.record.unprepared {
            jumps(&mut unprepared.at);
        }
        for attempt in &mut self.record.attempts {
            jumps(&mut attempt.created);
            [&mut attempt.ended, &mut attempt.running_since].into_iter().flatten().for_each(jumps);
            attempt.tasks.iter_mut().for_each(|task| match &mut task.phase {
                TaskPhase::Launching => {}
                TaskPhase::Running { since } => jumps(since),
                TaskPhase::Kept { end, until } => [&mut end.at, until].into_iter().for_each(jumps),
                TaskPhase::Ended(end) => jumps(&mut end.at),
            });
        }
    }
}

fn moved(at: Timestamp, by: i64) -> Timestamp {
    Timestamp(at.0.saturating_add_signed(by))
}
