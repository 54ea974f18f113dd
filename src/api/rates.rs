//! How many requests one caller may make: a bucket each, which fills again with time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::ApiError;

/// Requests at once after a rest.
pub const BURST: u32 = 1000;
/// And then in each second.
pub const PER_SECOND: u32 = 100;
/// Callers that are remembered; those that have rested are forgotten first.
const REMEMBERED: usize = 10_000;

/// Whose requests are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    User(u32),
    /// Of whom nothing else is known.
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { left: f64::from(BURST), at: now }
    }

    fn refill(&mut self, now: Instant) {
        let rested = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + rested * f64::from(PER_SECOND)).min(f64::from(BURST));
        self.at = now;
    }

    /// How long to wait when there is nothing left.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.refill(now);
        if self.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.left) / f64::from(PER_SECOND)));
        }
        self.left -= 1.0;
        Ok(())
    }
}

#[derive(Debug, Default)]
pub struct Rates(Mutex<BTreeMap<Who, Bucket>>);

impl Rates {
    pub(super) fn take(&self, who: Who) -> Result<(), ApiError> {
        self.take_at(who, Instant::now()).map_err(|wait| ApiError::TooFast { after_s: wait.as_secs() + 1 })
    }

    fn take_at(&self, who: Who, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= REMEMBERED && !buckets.contains_key(&who) {
            make_room(&mut buckets, now);
        }
        buckets.entry(who).or_insert_with(|| Bucket::full(now)).take(now)
    }
}

/// Forgets who has rested, and of the others those that have asked least: half of all places are free then, so that strangers
/// who come one after another do not have them looked at each time.
fn make_room(buckets: &mut BTreeMap<Who, Bucket>, now: Instant) {
    buckets.values_mut().for_each(|bucket| bucket.refill(now));
    buckets.retain(|_, bucket| bucket.left < f64::from(BURST));
    let Some(last) = buckets.len().checked_sub(REMEMBERED / 2 + 1) else { return };
    let mut left: Vec<f64> = buckets.values().map(|bucket| bucket.left).collect();
    let (_, least, _) = left.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
    let (least, mut going) = (*least, last + 1);
    buckets.retain(|_, bucket| {
        let goes = going > 0 && bucket.left >= least;
        going -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_held_to_the_rate_and_others_are_not() {
        let (rates, now) = (Rates::default(), Instant::now());
        for _ in 0..BURST {
            assert!(rates.take_at(Who::User(7), now).is_ok());
        }
        let wait = rates.take_at(Who::User(7), now).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(10), "{wait:?}");
        assert!(rates.take_at(Who::User(8), now).is_ok());
        let later = now + Duration::from_secs(1);
        let taken = (0..BURST).filter(|_| rates.take_at(Who::User(7), later).is_ok()).count();
        assert_eq!(taken, PER_SECOND as usize);
    }

    #[test]
    fn so_many_callers_take_no_more_room() {
        let (rates, now) = (Rates::default(), Instant::now());
        let busy = Who::User(7);
        (0..BURST).for_each(|_| rates.take_at(busy, now).unwrap());
        for address in 0..50_000_u32 {
            assert!(rates.take_at(Who::Address(IpAddr::from(address.to_be_bytes())), now).is_ok());
        }
        let buckets = rates.0.lock().unwrap();
        assert!(buckets.len() <= REMEMBERED);
        assert_eq!(buckets.get(&busy).map(|bucket| bucket.left), Some(0.0), "who has asked most is remembered");
    }
}
