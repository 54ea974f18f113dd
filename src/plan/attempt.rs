//! One attempt: whether it is decided, over its time, to be cleaned up, retried or concluded.

use super::limit::{End, later};
use super::{Live, Step};
use crate::ids::{RoleName, Timestamp};
use crate::spec::{OnIdle, OnOverrun};
use crate::status::{Decision, StopCause, Verdict, judge};

/// What to do about a live attempt now, if anything.
pub(super) fn next_step(live: &Live, now: Timestamp) -> Option<Step> {
    let Some(verdict) = &live.verdict else { return decide(live, now) };
    if live.released {
        return Some(conclude(live, verdict));
    }
    (live.all_ended && !live.releasing).then(|| Step::Release { key: live.key.clone() })
}

/// When the attempt must have ended.
pub(super) fn deadline(live: &Live) -> Option<Timestamp> {
    let limit = u64::try_from(live.max_duration?.as_millis()).unwrap_or(u64::MAX);
    Some(Timestamp(live.running_since?.0.saturating_add(limit)))
}

/// When the attempt should have ended.
pub(super) fn expected_end(live: &Live) -> Option<Timestamp> {
    let expected = u64::try_from(live.expected_duration?.as_millis()).unwrap_or(u64::MAX);
    Some(Timestamp(live.running_since?.0.saturating_add(expected)))
}

/// When the attempt gives back what it holds at the latest: when it is stopped if it has not ended. What a file only expects may
/// be wrong, and a big job would wait for ever behind hopes: it makes a guess, and where there is none, or that has passed, it is
/// guessed that the attempt goes on for as long again as it has run.
pub(super) fn sure_end(live: &Live, now: Timestamp) -> End {
    if is_ending(live) {
        return End::Said(live.kept_until.unwrap_or(now).max(now));
    }
    let since = live.running_since.unwrap_or(now);
    let is_limit = live.on_overrun == OnOverrun::Stop;
    let limit = live.expected_duration.filter(|_| is_limit).into_iter().chain(live.max_duration).min();
    let guess = || expected_end(live).filter(|end| *end > now).map_or_else(|| guessed_end(since, now), End::Guessed);
    limit.map_or_else(guess, |limit| End::Said(later(since, limit).max(now)))
}

/// It goes on for as long again.
pub(super) fn guessed_end(since: Timestamp, now: Timestamp) -> End {
    End::Guessed(Timestamp(now.0.saturating_add(now.0.saturating_sub(since.0))))
}

/// When it should give it back: by what its file expects, and once that has passed by what is enforced. For people.
pub(super) fn foreseen_end(live: &Live, now: Timestamp) -> End {
    let sure = sure_end(live, now);
    let expected = expected_end(live).filter(|end| *end > now && !is_ending(live));
    expected.into_iter().chain(sure.said()).min().map_or(sure, End::Said)
}

fn is_ending(live: &Live) -> bool {
    live.verdict.is_some() || live.wanted_stop.is_some()
}

/// That the attempt takes longer than expected, the first time that it is seen.
pub(super) fn overrun(live: &Live, now: Timestamp) -> Option<Step> {
    let is_new = live.verdict.is_none() && !live.overrun_told && expected_end(live).is_some_and(|end| now >= end);
    let expected = live.expected_duration.filter(|_| is_new)?;
    Some(Step::TellOverrun { key: live.key.clone(), expected })
}

/// That its cards are idle, the first time that it is seen.
pub(super) fn idle(live: &Live) -> Option<Step> {
    let idle = live.idle.filter(|idle| live.verdict.is_none() && !idle.is_told)?;
    Some(Step::TellIdle { key: live.key.clone(), rule: idle.rule })
}

fn decide(live: &Live, now: Timestamp) -> Option<Step> {
    let (verdict, cause) = if let Some(decision) = judge(&live.tallies) {
        (verdict_of(live, decision), StopCause::Decided)
    } else if let Some(cause) = &live.wanted_stop {
        (Verdict::Stopped { cause: cause.clone() }, cause.clone())
    } else if let Some(says) = &live.gpu_failure {
        let cause = StopCause::GpuFailed { says: says.clone() };
        (Verdict::Failed { reason: cause.to_string() }, cause)
    } else if deadline(live).is_some_and(|deadline| now >= deadline) {
        let limit_ms = live.max_duration.map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let cause = StopCause::TimedOut { limit_ms };
        (Verdict::Failed { reason: cause.to_string() }, cause)
    } else if let Some(cause) = &live.over_share {
        (Verdict::Failed { reason: cause.to_string() }, cause.clone())
    } else if live.on_overrun == OnOverrun::Stop && expected_end(live).is_some_and(|end| now >= end) {
        let expected_ms = live.expected_duration.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let cause = StopCause::Overrun { expected_ms };
        (Verdict::Stopped { cause: cause.clone() }, cause)
    } else if let Some(idle) = live.idle.filter(|idle| idle.rule.then == OnIdle::Stop) {
        let lasting_ms = u64::try_from(idle.rule.lasting.as_millis()).unwrap_or(u64::MAX);
        let cause = StopCause::GpuIdle { below: idle.rule.below, lasting_ms };
        (Verdict::Stopped { cause: cause.clone() }, cause)
    } else {
        return None;
    };
    Some(Step::Decide { key: live.key.clone(), verdict, cause })
}

fn verdict_of(live: &Live, decision: Decision) -> Verdict {
    match decision {
        // Tasks that ended because they were told to: nothing was decided by themselves.
        Decision::Succeeded { .. }
            if live.wanted_stop.is_some() && live.tallies.iter().any(|role| role.stopped > 0) =>
        {
            let cause = live.wanted_stop.clone().unwrap_or(StopCause::Decided);
            Verdict::Stopped { cause }
        }
        Decision::Succeeded { tolerated } => Verdict::Succeeded { tolerated },
        Decision::Failed { role } => Verdict::Failed { reason: failure(live, &role) },
    }
}

fn failure(live: &Live, role: &RoleName) -> String {
    match &live.first_failure {
        Some(failure) => failure.clone(),
        None => format!("role {role} failed"),
    }
}

fn conclude(live: &Live, verdict: &Verdict) -> Step {
    match verdict {
        Verdict::Failed { reason } if live.attempts_left > 0 && live.retried && live.wanted_stop.is_none() => {
            Step::Retry { key: live.key.clone(), reason: reason.clone() }
        }
        _ => Step::End { key: live.key.clone(), verdict: verdict.clone() },
    }
}
