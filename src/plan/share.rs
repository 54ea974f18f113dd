//! Fair share: who has used how much of the machine, the longer ago the less it counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::limit::later;
use super::{Amount, Live, Snapshot, Waiting};
use crate::gpu::deck::CARD;
use crate::ids::{Timestamp, WorkspaceName};
use crate::store::record::UsageRecord;

/// What runs counts as if it went on for so long: else whoever comes first would have the whole of an idle machine.
const AHEAD_H: f64 = 1.0;
const MS_PER_H: f64 = 3_600_000.0;

/// So many half-lives of usage count: what is older counts less than a millionth.
const HALF_LIVES: f64 = 20.0;
/// What is used is compared in steps of this part of the half-life, in hours of the whole machine. Larger than all that is too
/// old to be read by who forgets and reads again: a restart changes the order of nobody.
const STEP: f64 = 1.0 / 131_072.0;
/// A run that has waited for so long comes before those whose workspaces have used less: else a big job of a workspace that goes on
/// with small ones would never have its turn.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

impl Snapshot<'_> {
    /// Whose turn it is among the oldest runs of workspaces: the smaller. `used` is what its workspace has used.
    pub(super) fn turn(&self, waiting: &Waiting, used: Hours) -> (bool, u64) {
        let is_late = later(waiting.since, PATIENCE) <= self.now;
        (!is_late, if is_late { 0 } else { self.shares.share(used, &self.inventory) })
    }
}

/// What workspaces have used by attempts that are over.
#[derive(Debug, Clone)]
pub struct Shares {
    half_life_h: f64,
    /// As it counted at that time.
    used: BTreeMap<WorkspaceName, (Hours, Timestamp)>,
}

/// Hours of cards, of thousandths of a core and of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Hours {
    gpu: f64,
    cpu: f64,
    memory: f64,
}

impl Hours {
    fn scaled(self, by: f64) -> Self {
        Self { gpu: self.gpu * by, cpu: self.cpu * by, memory: self.memory * by }
    }

    fn plus(self, other: Self) -> Self {
        Self { gpu: self.gpu + other.gpu, cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }

    /// With an attempt that is started now.
    pub(super) fn with_start(self, amount: &Amount) -> Self {
        self.plus(hourly(amount).scaled(AHEAD_H))
    }

    /// Hours of the whole machine, by that of which it was the largest part.
    fn of_machine(self, inventory: &Amount) -> f64 {
        let part = |used: f64, there: u64| if there > 0 { used / there as f64 } else { 0.0 };
        part(self.gpu, inventory.gpu).max(part(self.cpu, inventory.cpu)).max(part(self.memory, inventory.memory))
    }
}

/// What an amount comes to in an hour.
fn hourly(amount: &Amount) -> Hours {
    Hours { gpu: amount.gpu as f64, cpu: amount.cpu as f64, memory: amount.memory as f64 }
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

    /// An attempt is over, of which this was recorded.
    pub fn account(&mut self, used: &UsageRecord, now: Timestamp) {
        let amount = Amount { cpu: used.cpu, memory: used.memory, gpu: used.gpu * CARD + used.gpu_part };
        // Before the clock was set back: of what ends in the future all would count until then, and what comes after it less.
        let ahead = used.to.0.saturating_sub(now.0);
        let back = |at: Timestamp| Timestamp(at.0.saturating_sub(ahead));
        self.add(&used.workspace, &amount, back(used.from), back(used.to));
    }

    /// The clock was set: nothing was used later than now.
    pub fn used_by(&mut self, now: Timestamp) {
        self.used.values_mut().for_each(|(_, at)| *at = now.min(*at));
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

    /// What a workspace has used until `now`, with its attempts that are not accounted yet.
    pub(super) fn of<'a>(
        &self,
        workspace: &WorkspaceName,
        live: impl Iterator<Item = &'a Live>,
        now: Timestamp,
    ) -> Hours {
        let before = self.used.get(workspace).map_or(Hours::default(), |(sum, at)| {
            // A clock that was set back makes nothing count more.
            sum.scaled(self.left_after(hours(*at, now)))
        });
        let running = live.map(|live| {
            let ahead = if live.released { 0.0 } else { AHEAD_H };
            self.held(&live.amount, live.held_since, now).plus(hourly(&live.amount).scaled(ahead))
        });
        running.fold(before, Hours::plus)
    }

    /// What that comes to, in steps. The workspace with the least comes first.
    pub(super) fn share(&self, used: Hours, inventory: &Amount) -> u64 {
        (used.of_machine(inventory) / (self.half_life_h * STEP)).round() as u64
    }

    /// How far back usage is worth to be read.
    pub fn matters_since(&self, now: Timestamp) -> Timestamp {
        let back = (self.half_life_h * HALF_LIVES * MS_PER_H).min(u64::MAX as f64) as u64;
        Timestamp(now.0.saturating_sub(back))
    }
}
