//! When what takes long to look at is looked at: however often it is wanted, for a tenth of the time at most, each by itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After a look it rests so many times as long.
const REST: u32 = 9;

/// What is wanted, and when it may be looked at. Nobody else looks meanwhile: whoever takes one says when it is done.
#[derive(Debug)]
pub struct Pace<K> {
    wanted: BTreeMap<K, Instant>,
    rests_until: BTreeMap<K, Instant>,
}

impl<K> Default for Pace<K> {
    fn default() -> Self {
        Self { wanted: BTreeMap::new(), rests_until: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Pace<K> {
    /// It is to be looked at, not before `at`.
    pub fn want(&mut self, key: K, at: Instant) {
        let at = self.rests_until.get(&key).map_or(at, |rested| at.max(*rested));
        let wanted = self.wanted.entry(key).or_insert(at);
        *wanted = at.min(*wanted);
    }

    /// When the next look is due.
    pub fn next(&self) -> Option<Instant> {
        self.wanted.values().min().copied()
    }

    /// The one that has been due for longest.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        let (key, _) = self.wanted.iter().filter(|(_, at)| **at <= now).min_by_key(|(_, at)| **at)?;
        let key = key.clone();
        self.wanted.remove(&key);
        Some(key)
    }

    /// A look at it is done, and took so long.
    pub fn done(&mut self, key: K, now: Instant, took: Duration) {
        self.rests_until.retain(|_, until| *until > now);
        let until = now + took.saturating_mul(REST);
        if let Some(wanted) = self.wanted.get_mut(&key) {
            *wanted = until.max(*wanted);
        }
        self.rests_until.insert(key, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_all_the_time_is_looked_at_for_a_tenth_of_it_and_holds_up_no_other() {
        let begin = Instant::now();
        let (mut now, mut looks, mut pace) = (begin, 0u32, Pace::default());
        let took = Duration::from_secs(2);
        while now < begin + Duration::from_secs(95) {
            pace.want("busy", now);
            match pace.take(now) {
                Some(key) => {
                    looks += 1;
                    now += took;
                    pace.done(key, now, took);
                }
                None => now += Duration::from_millis(100),
            }
        }
        assert_eq!(looks, 5);
        pace.want("other", now);
        assert_eq!((pace.take(now), pace.take(now)), (Some("other"), None));
        assert_eq!(pace.next(), Some(begin + Duration::from_secs(100)));
    }

    #[test]
    fn the_first_wish_counts_and_none_is_forgotten() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let mut pace = Pace::default();
        pace.want(1, later);
        assert_eq!(pace.take(now), None);
        pace.want(1, now);
        pace.want(1, later);
        assert_eq!(pace.take(now), Some(1));
        // Wanted once more while it is looked at.
        pace.want(1, now);
        pace.done(1, now, Duration::from_secs(1));
        assert_eq!((pace.take(now), pace.next()), (None, Some(now + Duration::from_secs(9))));
    }
}
