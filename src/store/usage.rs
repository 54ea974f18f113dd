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
