//! A wall clock that is set: what is waited for comes neither sooner nor later by that. Times are stored as the wall clock had them, which
//! is what people read; where the clock jumps against the time since the machine's start, the times that waits are reckoned from jump
//! along. After a restart of the machine its wall clock is what there is.

use super::Reconciler;
use super::world::{Job, Run};
use crate::ids::{JobKey, Timestamp};
use crate::store::Store;
use crate::store::record::{ClockRecord, TaskPhase};

/// Two clocks are not read at one instant; what they differ by less than this is no jump, ms.
const JUMP_MIN: u64 = 1000;

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
    }
}

impl Run {
    /// What its waits are reckoned from: the end of the last try, the time since which its tasks run, and until when they are kept.
    fn jump_along(&mut self, jump: i64) {
        if let Some(unprepared) = &mut self.record.unprepared {
            unprepared.at = moved(unprepared.at, jump);
        }
        let Some(attempt) = self.record.attempts.last_mut() else { return };
        for at in [&mut attempt.ended, &mut attempt.running_since].into_iter().flatten() {
            *at = moved(*at, jump);
        }
        for task in &mut attempt.tasks {
            if let TaskPhase::Kept { until, .. } = &mut task.phase {
                *until = moved(*until, jump);
            }
        }
    }
}

fn moved(at: Timestamp, by: i64) -> Timestamp {
    Timestamp(at.0.saturating_add_signed(by))
}
