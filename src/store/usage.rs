//! What is left of old records of usage: sums by day, workspace and user. Pure.

use super::record::{UsageRecord, UsageSum, UsageTotal};
use crate::ids::Timestamp;

pub const DAY_MS: u64 = 24 * 3_600_000;
const MS_PER_H: f64 = 3_600_000.0;

/// The first millisecond of the day of a time, in UTC.
pub fn day_of(time: Timestamp) -> Timestamp {
    Timestamp(time.0 - time.0 % DAY_MS)
}

/// What an attempt had, day by day; it is counted in the one in which it ended.
pub fn by_day(used: &UsageRecord) -> Vec<UsageSum> {
    let last = day_of(used.to);
    let first = day_of(used.from).min(last);
    let days = (first.0..=last.0).step_by(usize::try_from(DAY_MS).unwrap_or(usize::MAX)).map(Timestamp);
    days.map(|day| of_day(used, day, day == last)).collect()
}

fn of_day(used: &UsageRecord, day: Timestamp, ends: bool) -> UsageSum {
    let (from, to) = (used.from.0.max(day.0), used.to.0.min(day.0 + DAY_MS));
    let hours = to.saturating_sub(from) as f64 / MS_PER_H;
    let mut total = UsageTotal::default();
    total.take(used, hours);
    if !ends {
        (total.attempts, total.unpriced) = (0, 0);
    }
    UsageSum { day, workspace: used.workspace.clone(), owner: used.owner, total }
}

impl UsageTotal {
    /// What an attempt had for so long.
    pub fn take(&mut self, used: &UsageRecord, hours: f64) {
        self.attempts += 1;
        self.gpu_hours += (used.gpu as f64 + used.gpu_part as f64 / 1000.0) * hours;
        self.cpu_hours += used.cpu as f64 / 1000.0 * hours;
        self.memory_gib_hours += used.memory as f64 / f64::from(1 << 30) * hours;
        match used.price {
            Some(price) => self.price = Some(self.price.unwrap_or(0.0) + price * hours),
            None => self.unpriced += 1,
        }
        self.unpriced += u64::from(used.price.is_some() && used.price_is_part);
    }

    pub fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.gpu_hours += other.gpu_hours;
        self.cpu_hours += other.cpu_hours;
        self.memory_gib_hours += other.memory_gib_hours;
        self.price = other.price.map_or(self.price, |price| Some(self.price.unwrap_or(0.0) + price));
        self.unpriced += other.unpriced;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AttemptId;

    #[test]
    fn an_attempt_of_several_days_is_counted_once_and_has_each_day_what_it_had_then() {
        let used = UsageRecord {
            attempt: AttemptId(1),
            workspace: "w".parse().unwrap(),
            job: "j".parse().unwrap(),
            run: 1,
            owner: 1000,
            from: Timestamp(DAY_MS - 3_600_000),
            to: Timestamp(2 * DAY_MS + 7_200_000),
            cpu: 1000,
            memory: 1 << 30,
            gpu: 2,
            gpu_part: 500,
            price: None,
            price_is_part: false,
        };
        let days = by_day(&used);
        let told: Vec<_> = days
            .iter()
            .map(|sum| (sum.day.0 / DAY_MS, sum.total.attempts, sum.total.unpriced, sum.total.gpu_hours))
            .collect();
        assert_eq!(told, [(0, 0, 0, 2.5), (1, 0, 0, 60.0), (2, 1, 1, 5.0)]);
    }
}
