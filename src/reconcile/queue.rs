//! The queue as the reconciler keeps it: who is in it, what has been used, what keeps whom, and how that is told.

use std::collections::{BTreeMap, BTreeSet};

use super::world::Job;
use super::{Reconciler, Refusal};
use crate::config::Quota;
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::plan::outlook::{self, Outlook, Standing};
use crate::plan::{self, Amount, HeldUp, Plan, Queue, Snapshot, Why};
use crate::store::Store;
use crate::store::record::UsageRecord;

/// Files that tell of places in the queue are written anew so often at most, ms.
const TOLD_MS: u64 = 1000;
/// More runs than this make a long queue, which is looked at so often at most, ms.
const LONG: usize = 256;
const LONG_SEEN_MS: u64 = 10_000;
/// So many of the first in the queue are looked at when nobody asks; who stands behind them is told that.
pub(super) const SEEN: usize = 1000;

/// Runs that wait, and jobs that may not.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Jobs with a run that is not over and has nothing of the machine.
    of: BTreeMap<WorkspaceName, BTreeSet<JobKey>>,
    /// Jobs whose next run is not begun, since as many wait as their workspace may have, in the order in which they came.
    turned_away: BTreeMap<WorkspaceName, Vec<JobKey>>,
}

impl Waiters {
    fn count(&self, workspace: &WorkspaceName) -> u64 {
        self.of.get(workspace).map_or(0, |jobs| jobs.len() as u64)
    }

    fn set(&mut self, key: &JobKey, waits: bool) {
        let jobs = self.of.entry(key.workspace.clone()).or_default();
        if waits {
            jobs.insert(key.clone());
        } else {
            jobs.remove(key);
        }
    }

    fn take_back(&mut self, key: &JobKey) {
        if let Some(jobs) = self.turned_away.get_mut(&key.workspace) {
            jobs.retain(|other| other != key);
        }
    }

    pub(super) fn is_turned_away(&self, key: &JobKey) -> bool {
        self.turned_away.get(&key.workspace).is_some_and(|jobs| jobs.contains(key))
    }
}

impl<S: Store> Reconciler<S> {
    /// What [`Self::pass`] would plan now; for the benchmark.
    pub fn plan(&self) -> Plan {
        self.with_snapshot(plan::plan)
    }

    fn with_snapshot<T>(&self, look: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        let none = Queue::default();
        look(&Snapshot {
            now: self.now,
            inventory: self.inventory(),
            addresses: self.settings.addresses,
            last_block: self.last_block,
            live: self.live.iter().filter_map(|key| self.jobs.get(key)?.live(key)).collect(),
            queue: if self.draining { &none } else { &self.queue },
            reserved: self.held_up.iter().find(|held_up| held_up.why == Why::Room).map(|held_up| &held_up.key),
            shares: &self.shares,
            quotas: &self.settings.quotas,
        })
    }

    pub(super) fn quota(&self, workspace: &WorkspaceName) -> Option<&Quota> {
        self.settings.quotas.get(workspace)
    }

    /// Why a job of this amount can never start.
    pub(super) fn never_fits(&self, wanted: &Amount, workspace: &WorkspaceName) -> Option<String> {
        plan::never_fits(wanted, &self.all_there_is(), workspace, self.quota(workspace))
    }

    /// Brings the job's place in line with its record.
    pub(super) fn queue_in(&mut self, key: &JobKey) {
        self.queue.remove(key);
        let job = self.jobs.get(key);
        if job.is_none_or(|job| job.next_run().is_none()) {
            // Nobody wants its next run any more.
            self.waiters.take_back(key);
        }
        let open = job.and_then(Job::open_run);
        self.waiters.set(key, open.is_some_and(|run| run.live_attempt().is_none()));
        if let Some((place, waiting)) = self.jobs.get(key).and_then(|job| job.waiting(key, self.now)) {
            self.queue.insert(place, waiting);
        }
    }

    /// Its attempt has begun.
    pub(super) fn leaves_queue(&mut self, key: &JobKey) {
        self.queue.remove(key);
        self.waiters.set(key, false);
    }

    /// Whether another run of the workspace may wait; if not the job is remembered until one may.
    pub(super) fn may_wait(&mut self, key: &JobKey) -> bool {
        let limit = self.quota(&key.workspace).and_then(|quota| quota.waiting);
        let is_full = limit.is_some_and(|limit| self.waiters.count(&key.workspace) >= limit);
        if !is_full {
            self.waiters.take_back(key);
        } else if !self.waiters.is_turned_away(key) {
            self.waiters.turned_away.entry(key.workspace.clone()).or_default().push(key.clone());
            let why = self.why_turned_away(key);
            self.note(key, why);
        }
        !is_full
    }

    /// Begins the runs of those that were turned away, as far as they may wait now.
    pub(super) fn admit(&mut self) {
        let workspaces: Vec<WorkspaceName> = self.waiters.turned_away.keys().cloned().collect();
        for workspace in workspaces {
            let limit = self.quota(&workspace).and_then(|quota| quota.waiting).unwrap_or(u64::MAX);
            while self.waiters.count(&workspace) < limit {
                let first = self.waiters.turned_away.get(&workspace).and_then(|jobs| jobs.first().cloned());
                let Some(key) = first else { break };
                self.waiters.take_back(&key);
                self.settle(&key);
            }
        }
        self.waiters.turned_away.retain(|_, jobs| !jobs.is_empty());
    }

    /// After a restart: whose run was not begun.
    pub(super) fn remember_turned_away(&mut self, key: &JobKey) {
        let is_due = self.jobs.get(key).is_some_and(|job| job.next_run().is_some());
        if is_due && self.quota(&key.workspace).is_some_and(|quota| quota.waiting.is_some()) {
            self.waiters.turned_away.entry(key.workspace.clone()).or_default().push(key.clone());
        }
    }

    pub(super) fn why_turned_away(&self, key: &JobKey) -> String {
        let workspace = &key.workspace;
        let limit = self.quota(workspace).and_then(|quota| quota.waiting).unwrap_or(0);
        format!(
            "not queued yet: {limit} job(s) of workspace {workspace} wait, as many as may \
             (workspaces.{workspace}.waiting); it is queued when one of them has started"
        )
    }

    /// An attempt is over: what it had is accounted, in the commit that records its end.
    pub(super) fn account(&mut self, key: &JobKey) {
        let Some(used) = self.jobs.get(key).and_then(|job| used(key, job, self.now)) else { return };
        let amount = Amount { cpu: used.cpu, memory: used.memory, gpu: used.gpu };
        self.shares.add(&key.workspace, &amount, used.from, used.to);
        self.usage.push(used);
    }

    /// What attempts have used since then, those that run until now.
    pub(super) fn usage_since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, Refusal> {
        let mut all = self.store.usage(since).map_err(|error| Refusal::Store(error.to_string()))?;
        all.extend(self.usage.iter().filter(|used| used.to >= since).cloned());
        all.extend(self.live.iter().filter_map(|key| used(key, self.jobs.get(key)?, self.now)));
        Ok(all)
    }

    pub(super) fn set_held_up(&mut self, held_up: Vec<HeldUp>) {
        if self.held_up == held_up {
            return;
        }
        let before = std::mem::replace(&mut self.held_up, held_up);
        let touched: Vec<JobKey> = before.iter().chain(&self.held_up).map(|held_up| held_up.key.clone()).collect();
        self.shown.extend(touched.into_iter().filter(|key| self.jobs.contains_key(key)));
        self.queue_changed = true;
    }

    /// Looks at the queue anew if it has changed, and has what is told of it written anew; says when to do so if not now.
    pub(super) fn look_ahead(&mut self) -> Option<Timestamp> {
        self.queue_changed |= !self.dirty.is_empty();
        if self.queue.is_empty() {
            return None;
        }
        let seen = self.outlook.as_ref().map(|outlook| outlook.at);
        let look_at = seen.filter(|_| self.queue.len() > LONG).map(|at| Timestamp(at.0.saturating_add(LONG_SEEN_MS)));
        if self.queue_changed && self.is_due(look_at, LONG_SEEN_MS) {
            self.refresh_outlook(SEEN);
        }
        let tell_at = Timestamp(self.told_at.0.saturating_add(TOLD_MS));
        if !self.moved.is_empty() && self.is_due(Some(tell_at), TOLD_MS) {
            self.told_at = self.now;
            self.shown.append(&mut self.moved);
        }
        let tell_at = (!self.moved.is_empty()).then_some(tell_at);
        look_at.filter(|_| self.queue_changed).into_iter().chain(tell_at).min()
    }

    /// Whether a time has come; a clock that was set back makes nobody wait longer than so many ms.
    fn is_due(&self, at: Option<Timestamp>, within: u64) -> bool {
        at.is_none_or(|at| self.now >= at || at.0 > self.now.0.saturating_add(within))
    }

    /// For those who ask: as it is now, or was a moment ago where it is long.
    pub(super) fn look_ahead_for_answer(&mut self) {
        let age = self.outlook.as_ref().map_or(u64::MAX, |outlook| self.now.0.abs_diff(outlook.at.0));
        if self.queue.len() <= LONG || age >= TOLD_MS {
            self.refresh_outlook(usize::MAX);
        }
    }

    /// Looks at so many of the first.
    pub(super) fn refresh_outlook(&mut self, most: usize) {
        let outlook = self.with_snapshot(|snapshot| outlook::outlook(snapshot, &self.held_up, most));
        let before = self.outlook.as_ref();
        let has_moved = |key: &&JobKey| {
            let standing = outlook.of(key);
            standing.is_some_and(|standing| standing.why.is_some())
                || before.and_then(|before| before.of(key)) != standing
        };
        self.moved.extend(outlook.first().iter().filter(has_moved).cloned());
        self.outlook = Some(outlook);
        self.queue_changed = false;
    }

    /// Where a waiting run stands, as far as that has been looked at.
    pub(super) fn standing(&self, key: &JobKey) -> Option<(&Outlook, &Standing)> {
        let outlook = self.outlook.as_ref()?;
        Some((outlook, outlook.of(key)?))
    }
}

/// What the newest attempt of a job has had, until its end or until `now`.
fn used(key: &JobKey, job: &Job, now: Timestamp) -> Option<UsageRecord> {
    let run = job.run.as_ref()?;
    let attempt = run.record.attempts.last()?;
    let amount = Amount::of(&run.spec);
    Some(UsageRecord {
        attempt: attempt.id,
        workspace: key.workspace.clone(),
        job: key.job.clone(),
        run: run.record.number,
        owner: run.record.source.owner.uid,
        from: attempt.created,
        to: attempt.ended.unwrap_or(now),
        cpu: amount.cpu,
        memory: amount.memory,
        gpu: amount.gpu,
        price: run.record.source.template.as_ref().and_then(|template| template.price),
    })
}
