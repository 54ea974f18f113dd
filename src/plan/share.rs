//! Fair share: who has used how much of the machine, the longer ago the less it counts.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::limit::later;
use super::{Amount, Live, Waiting};
use crate::ids::{Timestamp, WorkspaceName};

/// What runs counts as if it went on for so long: else whoever comes first would have the whole of an idle machine.
const AHEAD_H: f64 = 1.0;
const MS_PER_H: f64 = 3_600_000.0;

/// A run that has waited for so long comes before those whose workspaces have used less: else a big job of a workspace that goes on
/// with small ones would never have its turn.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Whose turn it is among the oldest runs of workspaces: the smaller.
pub(super) fn rank(waiting: &Waiting, share: f64, now: Timestamp) -> (bool, f64) {
    let is_late = later(waiting.since, PATIENCE) <= now;
    (!is_late, if is_late { 0.0 } else { share })
}

/// The order of ranks, and among equal ones of ages.
pub(super) fn earlier(a: ((bool, f64), u64), b: ((bool, f64), u64)) -> Ordering {
    let ((late_a, share_a), (late_b, share_b)) = (a.0, b.0);
    late_a.cmp(&late_b).then(share_a.total_cmp(&share_b)).then(a.1.cmp(&b.1))
}

/// What workspaces have used by attempts that are over. Cards are counted where the machine has some, else cores.
#[derive(Debug, Clone)]
pub struct Shares {
    half_life_h: f64,
    /// Hours of cards and of cores, as they counted at that time.
    used: BTreeMap<WorkspaceName, (Hours, Timestamp)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Hours {
    gpu: f64,
    cpu: f64,
}

impl Hours {
    fn scaled(self, by: f64) -> Self {
        Self { gpu: self.gpu * by, cpu: self.cpu * by }
    }

    fn plus(self, other: Self) -> Self {
        Self { gpu: self.gpu + other.gpu, cpu: self.cpu + other.cpu }
    }

    fn weight(self, inventory: &Amount) -> f64 {
        if inventory.gpu > 0 { self.gpu } else { self.cpu }
    }
}

/// What an amount comes to in an hour.
fn hourly(amount: &Amount) -> Hours {
    Hours { gpu: amount.gpu as f64, cpu: amount.cpu as f64 / 1000.0 }
}

fn hours(from: Timestamp, to: Timestamp) -> f64 {
    to.0.saturating_sub(from.0) as f64 / MS_PER_H
}

impl Shares {
    pub fn new(half_life: Duration) -> Self {
        Self { half_life_h: half_life.as_millis() as f64 / MS_PER_H, used: BTreeMap::new() }
    }

    /// What of an hour still counts after a time.
    fn left_after(&self, hours: f64) -> f64 {
        (-hours / self.half_life_h).exp2()
    }

    /// What was held from one time to another, as it counts at the later one.
    fn held(&self, amount: &Amount, from: Timestamp, to: Timestamp) -> Hours {
        let counted = self.half_life_h / std::f64::consts::LN_2 * (1.0 - self.left_after(hours(from, to)));
        hourly(amount).scaled(counted)
    }

    /// An attempt is over.
    pub fn add(&mut self, workspace: &WorkspaceName, amount: &Amount, from: Timestamp, to: Timestamp) {
        let new = self.held(amount, from, to);
        let (before, at) = self.used.get(workspace).copied().unwrap_or((Hours::default(), to));
        // Of two times the later one: what ended before it is brought up to it.
        let latest = at.max(to);
        let brought_up = |hours_used: Hours, at| hours_used.scaled(self.left_after(hours(at, latest)));
        let sum = brought_up(before, at).plus(brought_up(new, to));
        self.used.insert(workspace.clone(), (sum, latest));
    }

    /// What a workspace has used until `now`, with its attempts that are not accounted yet. The one with the least comes first.
    pub(super) fn of<'a>(
        &self,
        workspace: &WorkspaceName,
        live: impl Iterator<Item = &'a Live>,
        inventory: &Amount,
        now: Timestamp,
    ) -> f64 {
        let before = self.used.get(workspace).map_or(Hours::default(), |(sum, at)| {
            // A clock that was set back makes nothing count more.
            sum.scaled(self.left_after(hours(*at, now)))
        });
        let running = live.map(|live| {
            let ahead = if live.released { 0.0 } else { AHEAD_H };
            self.held(&live.amount, live.held_since, now).plus(hourly(&live.amount).scaled(ahead))
        });
        running.fold(before, Hours::plus).weight(inventory)
    }

    /// By how much the share grows when an attempt is started.
    pub(super) fn of_start(amount: &Amount, inventory: &Amount) -> f64 {
        hourly(amount).scaled(AHEAD_H).weight(inventory)
    }

    /// How far back usage is worth to be read: what is older counts less than a thousandth.
    pub fn matters_since(&self, now: Timestamp) -> Timestamp {
        let back = (self.half_life_h * 10.0 * MS_PER_H).min(u64::MAX as f64) as u64;
        Timestamp(now.0.saturating_sub(back))
    }
}
