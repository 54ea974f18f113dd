//! Whether what failed is tried again, and when.

use std::time::Duration;

use super::clock::JUMP_MIN;
use super::world::{Run, earliest_failure};
use crate::ids::Timestamp;
use crate::spec::{JobSpec, OnGpuFailure, RetryOn};
use crate::status::{StopCause, TaskEnd, Verdict};
use crate::store::record::AttemptRecord;

/// Longest time between two attempts, however many have failed.
const BACKOFF_MAX: Duration = Duration::from_secs(3600);
/// Attempts of a run that may be lost: what takes the machine down again and again must not do so for ever.
const LOST_MAX: usize = 3;

impl Run {
    /// When the next attempt may be made, while that is still to come.
    pub(super) fn backs_off_until(&self, now: Timestamp) -> Option<Timestamp> {
        let (ended, due) = self.next_try()?;
        // A clock that was set back makes nobody wait longer than was said; by less than a jump it is not one that was set.
        let is_set_back = now.0.saturating_add(JUMP_MIN) < ended.0;
        (now < due && !is_set_back).then_some(due)
    }

    /// Nobody is making it ready, and nothing was.
    pub(super) fn is_unprepared(&self) -> bool {
        !self.record.prepared && self.refused.is_none() && self.preparation.is_none()
    }

    /// Its image is to be asked for again, when its time has come.
    pub(super) fn awaits_preparation(&self) -> bool {
        !self.record.prepared && self.record.unprepared.is_some() && self.preparation.is_none()
    }

    /// When the last try ended, and when the next one may be.
    pub(super) fn next_try(&self) -> Option<(Timestamp, Timestamp)> {
        let (failed, ended) = match self.record.unprepared.filter(|_| !self.record.prepared) {
            Some(unprepared) => (unprepared.failures, unprepared.at),
            None => {
                (u32::try_from(self.record.attempts.len()).unwrap_or(u32::MAX), self.record.attempts.last()?.ended?)
            }
        };
        let wait =
            self.spec.retry.backoff.saturating_mul(2u32.saturating_pow(failed.saturating_sub(1))).min(BACKOFF_MAX);
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Some((ended, Timestamp(ended.0.saturating_add(wait))))
    }

    /// Whether its image, or its code from a repository, is asked for once more when it could not be had.
    pub(super) fn prepares_again(&self) -> bool {
        let failures = self.record.unprepared.map_or(0, |unprepared| unprepared.failures);
        self.spec.comes_from_elsewhere() && self.spec.retry.on.contains(&RetryOn::Image) && failures < self.spec.retries
    }

    /// Whether another attempt follows this one, which has come to `verdict`.
    pub(super) fn is_tried_again(
        &self,
        attempt: &AttemptRecord,
        verdict: &Verdict,
        on_gpu_failure: OnGpuFailure,
    ) -> bool {
        let is_retried = || self.attempts_left() > 0 && self.is_retried(attempt, on_gpu_failure);
        matches!(verdict, Verdict::Failed { .. }) && is_retried()
    }

    /// Whether a failure like that of this attempt is tried again.
    pub(super) fn is_retried(&self, attempt: &AttemptRecord, on_gpu_failure: OnGpuFailure) -> bool {
        if matches!(attempt.stopping, Some(StopCause::GpuFailed { .. })) {
            return on_gpu_failure == OnGpuFailure::Retry;
        }
        let kind = failure_kind(&self.spec, attempt);
        self.spec.retry.on.contains(&kind) && (kind != RetryOn::Lost || self.lost() <= LOST_MAX)
    }

    /// How many of its attempts were lost.
    fn lost(&self) -> usize {
        let is_lost = |attempt: &&AttemptRecord| failure_kind(&self.spec, attempt) == RetryOn::Lost;
        self.record.attempts.iter().filter(is_lost).count()
    }

    /// What has made the attempt fail, if something has; of a loss also what keeps it from being tried again.
    pub(super) fn first_failure(&self, attempt: &AttemptRecord) -> Option<String> {
        let (task, end) = earliest_failure(&self.spec, attempt)?;
        let is_lost = kind_of(&end.end) == RetryOn::Lost;
        let then = match is_lost && self.spec.retry.on.contains(&RetryOn::Lost) {
            true if self.spec.retries == 0 => "; `retries` in the job file tries again by itself".to_owned(),
            true if self.lost() > LOST_MAX && self.attempts_left() > 0 => {
                format!(
                    "; {LOST_MAX} attempts of this run were lost before it, so no more are made: `trainyard rerun` makes a new run"
                )
            }
            _ => String::new(),
        };
        Some(format!("{} {end}{then}", task.name()))
    }

    /// How many attempts may follow the last one, which has failed.
    pub(super) fn told_left(&self) -> String {
        let left = self.attempts_left();
        let told = format!("{left} more attempt(s) allowed");
        let last = self.record.attempts.last();
        match last.is_some_and(|attempt| failure_kind(&self.spec, attempt) == RetryOn::Lost) {
            // After the last one nothing is tried again.
            true => {
                let may_be = LOST_MAX.saturating_sub(self.lost()).min(left.saturating_sub(1) as usize);
                format!("{told}, of which {may_be} may be lost and be tried again")
            }
            false => told,
        }
    }
}

/// What kind of failure the first failed task is, of those that count.
fn failure_kind(spec: &JobSpec, attempt: &AttemptRecord) -> RetryOn {
    earliest_failure(spec, attempt).map_or(RetryOn::Failure, |(_, end)| kind_of(&end.end))
}

pub(super) fn kind_of(end: &TaskEnd) -> RetryOn {
    match end {
        TaskEnd::Lost { .. } => RetryOn::Lost,
        TaskEnd::Oom { .. } => RetryOn::Oom,
        _ => RetryOn::Failure,
    }
}
