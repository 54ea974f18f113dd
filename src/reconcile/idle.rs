//! What leased cards do: has them measured every 5 s while tasks with cards run, and sees which jobs leave theirs idle.
//!
//! Idleness is known by samples alone. A stretch of it holds only as long as samples come without a gap, each of all cards of the
//! job: what was not seen is never taken for idle. It is kept in memory, so a daemon that is started anew begins to count anew;
//! what was told is in the record of the attempt, and told once for each stretch.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::world::Job;
use super::{Reconciler, Work};
use crate::gpu::{Held, Measured};
use crate::ids::{AttemptId, JobKey, TaskId, Timestamp};
use crate::plan::Idle;
use crate::report::GpuReport;
use crate::spec::GpuIdle;
use crate::store::Store;
use crate::store::record::{AttemptRecord, GpuLease, GpuPartLease, TaskPhase, TaskRecord};

/// As the other figures of tasks, ms.
const EVERY_MS: u64 = 5000;
/// Samples so far apart, ms, say nothing of what was between them: one may have been late or have failed, two not.
const GAP_MS: u64 = 12_500;
/// Who has not answered for so long, ms, never will.
const GIVEN_UP_MS: u64 = 60_000;

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Idleness {
    last: Option<Arc<Measured>>,
    asked_at: Option<Timestamp>,
    answered: bool,
    /// Of attempts whose cards are idle now.
    stretches: BTreeMap<AttemptId, Stretch>,
}

/// A time in which no sample was at or above a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// Percent.
    below: u32,
    since: Timestamp,
    /// The last sample.
    until: Timestamp,
}

impl Stretch {
    /// With one more sample, of the busiest card of a job; absent where one of its cards does not tell.
    fn after(before: Option<Self>, below: u32, at: Timestamp, busiest: Option<u32>) -> Option<Self> {
        busiest.filter(|busiest| *busiest < below)?;
        let goes_on = |before: &Self| {
            let follows = at >= before.until && at.0 - before.until.0 <= GAP_MS;
            before.below == below && follows
        };
        let since = before.filter(goes_on).map_or(at, |before| before.since);
        Some(Self { below, since, until: at })
    }

    /// It has lasted long enough, and lasts still.
    fn is_full(&self, rule: &GpuIdle, now: Timestamp) -> bool {
        let lasted = u128::from(self.until.0.saturating_sub(self.since.0));
        self.below == rule.below && lasted >= rule.lasting.as_millis() && now.0.abs_diff(self.until.0) <= GAP_MS
    }
}

/// Its tasks that run and have cards.
fn with_cards(attempt: &AttemptRecord) -> impl Iterator<Item = (u32, &TaskRecord)> {
    let runs = |task: &TaskRecord| matches!(task.phase, TaskPhase::Running { .. }) && !task.gpus.is_empty();
    (0..).zip(&attempt.tasks).filter(move |(_, task)| runs(task))
}

/// How busy the busiest of its cards was; absent where one does not tell, or it has none that are used now.
fn busiest(attempt: &AttemptRecord, measured: &Measured) -> Option<u32> {
    attempt.running_since?;
    let of_task = |(ordinal, task): (u32, &TaskRecord)| {
        let id = attempt.task_id(ordinal);
        let busy = |lease: &GpuLease| measured.of(id, &held(lease))?.utilisation;
        task.gpus.iter().map(busy).collect::<Option<Vec<u32>>>()
    };
    let all: Option<Vec<Vec<u32>>> = with_cards(attempt).map(of_task).collect();
    all?.into_iter().flatten().max()
}

fn held(lease: &GpuLease) -> Held {
    let card = lease.uuid.clone();
    match &lease.part {
        None => Held::Whole(card),
        Some(GpuPartLease::Share { .. }) => Held::Share(card),
        Some(GpuPartLease::Slice { uuid, .. }) => Held::Slice { card, slice: uuid.clone() },
    }
}

impl<S: Store> Reconciler<S> {
    /// Has leased cards measured when that is due; when it is next, while there are any.
    pub(super) fn measure_cards(&mut self) -> Option<Timestamp> {
        let live = self.live.iter().filter_map(|key| self.jobs.get(key)?.open_run()?.live_attempt());
        let of_attempt = |attempt: &AttemptRecord| {
            let task =
                |(ordinal, task): (u32, &TaskRecord)| (attempt.task_id(ordinal), task.gpus.iter().map(held).collect());
            with_cards(attempt).map(task).collect::<Vec<(TaskId, Vec<Held>)>>()
        };
        let tasks: Vec<_> = live.flat_map(of_attempt).collect();
        if tasks.is_empty() {
            return None;
        }
        let now = self.now;
        let idleness = &mut self.idleness;
        // Where the clock was set back, what lies ahead was just now.
        let asked = idleness.asked_at.map(|at| at.min(now));
        let wait = if idleness.answered { EVERY_MS } else { GIVEN_UP_MS };
        let due = asked.map(|at| Timestamp(at.0.saturating_add(wait)));
        if let Some(due) = due.filter(|due| *due > now) {
            idleness.asked_at = asked;
            return Some(due);
        }
        (idleness.asked_at, idleness.answered) = (Some(now), false);
        self.works.push(Work::Measure { tasks });
        Some(Timestamp(now.0.saturating_add(EVERY_MS)))
    }

    /// Leased cards were measured.
    pub(super) fn measured(&mut self, measured: Arc<Measured>) {
        self.idleness.answered = true;
        self.idleness.last = Some(measured.clone());
        self.idleness.stretches.retain(|attempt, _| self.attempts.contains_key(attempt));
        for key in self.live.clone() {
            self.see_idleness(&key, &measured);
        }
    }

    fn see_idleness(&mut self, key: &JobKey, measured: &Measured) {
        let Some((attempt, rule)) = self.watched(key) else { return };
        let (id, busiest) = (attempt.id, busiest(attempt, measured));
        let Some(rule) = rule else {
            self.idleness.stretches.remove(&id);
            return self.forget_idle(key);
        };
        let before = self.idleness.stretches.get(&id).copied();
        match Stretch::after(before, rule.below, measured.at, busiest) {
            Some(stretch) => drop(self.idleness.stretches.insert(id, stretch)),
            None => drop(self.idleness.stretches.remove(&id)),
        }
        if busiest.is_some_and(|busiest| busiest >= rule.below) {
            self.forget_idle(key);
        }
    }

    fn watched(&self, key: &JobKey) -> Option<(&AttemptRecord, Option<GpuIdle>)> {
        let job = self.jobs.get(key)?;
        Some((job.open_run()?.live_attempt()?, job.gpu_idle()))
    }

    /// It is busy again, or nobody wants to know: the next time is told again.
    fn forget_idle(&mut self, key: &JobKey) {
        let told = self.watched(key).is_some_and(|(attempt, _)| attempt.idle_since.is_some());
        if let Some(attempt) = told.then(|| self.attempt_mut(key)).flatten() {
            attempt.idle_since = None;
        }
    }

    /// That its cards have been idle for as long as its file says.
    pub(super) fn idle(&self, key: &JobKey) -> Option<Idle> {
        let (attempt, rule) = self.watched(key)?;
        let (stretch, rule) = (self.idleness.stretches.get(&attempt.id)?, rule?);
        let is_told = attempt.idle_since.is_some();
        stretch.is_full(&rule, self.now).then_some(Idle { rule, is_told })
    }

    pub(super) fn tell_idle(&mut self, key: &JobKey, rule: &GpuIdle) {
        let since = self.watched(key).and_then(|(attempt, _)| self.idleness.stretches.get(&attempt.id)).copied();
        let Some(since) = since.map(|stretch| stretch.since) else { return };
        let Some(attempt) = self.attempt_mut(key) else { return };
        attempt.idle_since = Some(since);
        let lasting = crate::ids::format_duration(rule.lasting);
        self.alarm(key, &format!("its GPUs have been used less than {} % for {lasting}", rule.below));
    }

    /// What the cards of a job did when they were measured last, for who asks.
    pub(super) fn card_reports(&self, job: &Job) -> Vec<GpuReport> {
        let Some(attempt) = job.open_run().and_then(|run| run.live_attempt()) else { return Vec::new() };
        let of_task = |(ordinal, task): (u32, &TaskRecord)| {
            let id = attempt.task_id(ordinal);
            let of_card = |lease: &GpuLease| {
                let last = self.last_measured();
                let sample = last.and_then(|last| last.of(id, &held(lease)));
                GpuReport {
                    task: task.name().to_string(),
                    gpu: self.name_of(&lease.uuid),
                    uuid: lease.uuid.clone(),
                    utilisation: sample.and_then(|sample| sample.utilisation),
                    memory: sample.and_then(|sample| sample.memory),
                    power: sample.and_then(|sample| sample.power),
                    at: last.filter(|_| sample.is_some()).map(|last| last.at.to_string()),
                }
            };
            task.gpus.iter().map(of_card).collect::<Vec<_>>()
        };
        with_cards(attempt).flat_map(of_task).collect()
    }

    /// What is older says nothing of now.
    fn last_measured(&self) -> Option<&Measured> {
        self.idleness.last.as_deref().filter(|last| self.now.0.abs_diff(last.at.0) <= GAP_MS)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::spec::OnIdle;

    const RULE: GpuIdle = GpuIdle { below: 5, lasting: Duration::from_secs(60), then: OnIdle::Alert };

    /// Samples and how long after the one before each comes, ms.
    fn histories() -> impl Strategy<Value = Vec<(u64, Option<u32>)>> {
        let gap = prop_oneof![8 => Just(5000u64), 2 => 0..12_500u64, 1 => 12_501..40_000u64];
        let busy = prop_oneof![12 => (0..5u32).prop_map(Some), 1 => (5..101u32).prop_map(Some), 1 => Just(None)];
        prop::collection::vec((gap, busy), 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_job_is_idle_only_when_samples_without_a_gap_have_all_said_so_for_the_whole_time(history in histories()) {
            let mut stretch = None;
            let mut seen: Vec<(u64, Option<u32>)> = Vec::new();
            let mut now = 1_000_000;
            for (later, busiest) in history {
                now += later;
                seen.push((now, busiest));
                stretch = Stretch::after(stretch, RULE.below, Timestamp(now), busiest);
                // The longest tail of what was seen in which all is idle and nothing is missing.
                let mut from = now;
                for (at, busiest) in seen.iter().rev() {
                    if busiest.is_none_or(|busiest| busiest >= RULE.below) || from - at > GAP_MS {
                        break;
                    }
                    from = *at;
                }
                let is_idle = busiest.is_some_and(|busiest| busiest < RULE.below) && now - from >= 60_000;
                prop_assert_eq!(stretch.is_some_and(|stretch| stretch.is_full(&RULE, Timestamp(now))), is_idle);
            }
        }
    }

    #[test]
    fn what_was_idle_long_ago_or_by_another_bound_or_by_a_clock_that_was_set_is_not_idle_now() {
        let samples = |below: u32, times: &[u64]| {
            times.iter().fold(None, |stretch, at| Stretch::after(stretch, below, Timestamp(*at), Some(0)))
        };
        let minute: Vec<u64> = (0..=12).map(|at| at * 5000).collect();
        let idle = samples(5, &minute).unwrap();
        assert!(idle.is_full(&RULE, Timestamp(60_000 + GAP_MS)));
        assert!(!idle.is_full(&RULE, Timestamp(60_001 + GAP_MS)));
        assert!(!idle.is_full(&GpuIdle { below: 6, ..RULE }, Timestamp(60_000)));
        assert_eq!(Stretch::after(Some(idle), 6, Timestamp(65_000), Some(0)).unwrap().since, Timestamp(65_000));
        for jump in [59_000, 90_000] {
            let jumped = Stretch::after(Some(idle), 5, Timestamp(jump), Some(0)).unwrap();
            assert_eq!(jumped.since, Timestamp(jump));
        }
    }
}
