//! The queue as the reconciler keeps it: who is in it, what has been used, what keeps whom, and how that is told.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Job, amount_of};
use super::{Reconciler, Refusal, Used};
use crate::config::Quota;
use crate::gpu::deck::CARD;
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::plan::outlook::{self, Outlook, Standing};
use crate::plan::{self, Amount, HeldUp, Live, Plan, Queue, Snapshot, Why};
use crate::spec::JobSpec;
use crate::store::record::UsageRecord;
use crate::store::usage::DAY_MS;
use crate::store::{Store, StoreError};

/// Files that tell of places in the queue are written anew so often at most, ms.
const TOLD_MS: u64 = 1000;
/// More runs than this make a long queue, which is looked at so often at most, ms.
const LONG: usize = 256;
const LONG_SEEN_MS: u64 = 10_000;
/// So many of the first in the queue are looked at when nobody asks; who stands behind them is told that.
pub(super) const SEEN: usize = 1000;

/// So many records of usage are made sums of at once, and the next ones so much later, ms: everybody else waits meanwhile.
const FOLDED_AT_ONCE: usize = 1000;
const FOLD_PAUSE_MS: u64 = 1000;

/// Runs that wait, and jobs that may not.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Jobs with a run that is not over and has nothing of the machine.
    of: BTreeMap<WorkspaceName, BTreeSet<JobKey>>,
    /// Jobs whose next run is not begun, since as many wait as their workspace may have, by the numbers in their records.
    turned_away: BTreeMap<WorkspaceName, BTreeMap<u64, JobKey>>,
}

impl Waiters {
    fn count(&self, workspace: &WorkspaceName) -> u64 {
        self.of.get(workspace).map_or(0, |jobs| jobs.len() as u64)
    }

    fn contains(&self, key: &JobKey) -> bool {
        self.of.get(&key.workspace).is_some_and(|jobs| jobs.contains(key))
    }

    fn set(&mut self, key: &JobKey, waits: bool) {
        let jobs = self.of.entry(key.workspace.clone()).or_default();
        if waits {
            jobs.insert(key.clone());
        } else {
            jobs.remove(key);
        }
    }

    fn turn_away(&mut self, number: u64, key: &JobKey) {
        self.turned_away.entry(key.workspace.clone()).or_default().insert(number, key.clone());
    }

    fn first_turned_away(&self, workspace: &WorkspaceName) -> Option<(u64, JobKey)> {
        self.turned_away.get(workspace)?.first_key_value().map(|(number, key)| (*number, key.clone()))
    }
}

impl<S: Store> Reconciler<S> {
    /// What [`Self::pass`] would plan now; for the benchmark.
    pub fn plan(&self) -> Plan {
        self.with_snapshot(plan::plan)
    }

    fn with_snapshot<T>(&self, look: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        let none = Queue::default();
        let one_by_one = self.one_by_one();
        let live = |key: &JobKey| match one_by_one {
            Some(_) => Some(Live { pieces: self.pieces_of(key), ..self.live_of(key)? }),
            None => self.live_of(key),
        };
        look(&Snapshot {
            now: self.now,
            inventory: self.inventory(),
            away: self.cards_away(),
            addresses: self.settings.addresses,
            last_block: self.last_block,
            live: self.live.iter().filter_map(live).collect(),
            one_by_one: one_by_one.clone(),
            queue: if self.starts_nothing() { &none } else { &self.queue },
            reserved: self.held_up.iter().find(|held_up| held_up.why == Why::Room).map(|held_up| &held_up.key),
            shares: &self.shares,
            quotas: &self.settings.quotas,
        })
    }

    fn live_of(&self, key: &JobKey) -> Option<Live> {
        let live = self.jobs.get(key)?.live(key)?;
        let (idle, gpu_failure) = (self.idle(key), self.failure_to_stop_for(key));
        Some(Live { idle, gpu_failure, over_share: self.over_share(key), lost: self.lost_by(key), ..live })
    }

    pub(super) fn quota(&self, workspace: &WorkspaceName) -> Option<&Quota> {
        self.settings.quotas.get(workspace)
    }

    /// Why an attempt of such a job can never start.
    pub(super) fn never_fits(&self, spec: &JobSpec, workspace: &WorkspaceName) -> Option<String> {
        let wanted = Amount::of(spec, self.cards.sizes());
        let tasks = u32::try_from(spec.tasks().count()).unwrap_or(u32::MAX);
        self.beyond_cards(spec)
            .or_else(|| plan::beyond_quota(&wanted, workspace, self.quota(workspace)?))
            .or_else(|| plan::address::never_fits(self.settings.addresses, plan::addresses(spec.network, tasks)))
    }

    /// Why there is too little of the machine for it, whatever ends.
    pub(super) fn beyond_cards(&self, spec: &JobSpec) -> Option<String> {
        let wanted = Amount::of(spec, self.cards.sizes());
        let room = self.all_there_is(spec);
        let too_much = plan::beyond_machine(&wanted, &room);
        let too_much = too_much.map(|why| if wanted.gpu > room.gpu { why + &self.cut_up_instead() } else { why });
        too_much.or_else(|| self.no_such_cards(spec))
    }

    /// Brings the job's place in line with its record.
    pub(super) fn queue_in(&mut self, key: &JobKey) {
        self.queue.remove(key);
        let job = self.jobs.get(key);
        if job.is_none_or(|job| job.next_run().is_none()) {
            // Nobody wants its next run any more.
            self.take_back(key);
        }
        let open = self.jobs.get(key).and_then(Job::open_run);
        self.waiters.set(key, open.is_some_and(|run| run.live_attempt().is_none()));
        self.cards.await_judgement(key, open.is_some_and(|run| run.record.cards_unknown));
        if let Some((place, waiting)) =
            self.jobs.get(key).and_then(|job| job.waiting(key, self.now, self.cards.sizes()))
        {
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
        let Some(limit) = self.quota(&key.workspace).and_then(|quota| quota.waiting) else {
            self.take_back(key);
            return true;
        };
        // Its run has just made way for this one.
        if self.waiters.contains(key) {
            return true;
        }
        let number = self.jobs.get(key).and_then(|job| job.record.turned_away);
        let first = self.waiters.first_turned_away(&key.workspace);
        let is_its_turn = first.is_none_or(|(first, _)| Some(first) == number);
        let may = is_its_turn && self.waiters.count(&key.workspace) < limit;
        if may {
            self.take_back(key);
        } else if number.is_none() {
            self.turn_away(key);
        }
        may
    }

    fn turn_away(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        self.counters.order += 1;
        self.counters_changed = true;
        job.record.turned_away = Some(self.counters.order);
        self.waiters.turn_away(self.counters.order, key);
        let why = self.why_turned_away(key);
        self.note(key, why);
    }

    pub(super) fn is_turned_away(&self, key: &JobKey) -> bool {
        self.jobs.get(key).is_some_and(|job| job.record.turned_away.is_some())
    }

    /// Its next run is begun, or nobody wants it any more.
    pub(super) fn take_back(&mut self, key: &JobKey) {
        let Some(number) = self.jobs.get_mut(key).and_then(|job| job.record.turned_away.take()) else { return };
        self.dirty.insert(key.clone());
        if let Some(jobs) = self.waiters.turned_away.get_mut(&key.workspace) {
            jobs.remove(&number);
        }
    }

    /// Begins the runs of those that were turned away, as far as they may wait now.
    pub(super) fn admit(&mut self) {
        let workspaces: Vec<WorkspaceName> = self.waiters.turned_away.keys().cloned().collect();
        for workspace in workspaces {
            let limit = self.quota(&workspace).and_then(|quota| quota.waiting).unwrap_or(u64::MAX);
            while self.waiters.count(&workspace) < limit {
                let Some((_, key)) = self.waiters.first_turned_away(&workspace) else { break };
                self.settle(&key);
                self.take_back(&key);
            }
        }
        self.waiters.turned_away.retain(|_, jobs| !jobs.is_empty());
    }

    /// After a restart: whose run was not begun, whatever the quota is now.
    pub(super) fn remember_turned_away(&mut self, key: &JobKey) {
        if let Some(number) = self.jobs.get(key).and_then(|job| job.record.turned_away) {
            self.waiters.turn_away(number, key);
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
        self.shares.account(&used, self.now);
        self.usage.push(used);
    }

    /// What attempts have used since then, those that run until now.
    pub(super) fn usage_since(&self, since: Timestamp) -> Result<Used, Refusal> {
        let stored = |error: StoreError| Refusal::Store(error.to_string());
        let mut attempts = self.store.usage(since).map_err(stored)?;
        attempts.extend(self.usage.iter().filter(|used| used.to >= since).cloned());
        let live = self.live.iter().filter_map(|key| used(key, self.jobs.get(key)?, self.now));
        attempts.extend(live.filter(|used| used.to >= since));
        Ok(Used { attempts, days: self.store.usage_sums(since).map_err(stored)? })
    }

    /// Now and then leaves sums of what attempts have used that ended long ago, as far as it no longer matters for whose turn it
    /// is; says when to go on if there is more.
    pub(super) fn fold_usage(&mut self) -> Option<Timestamp> {
        if self.is_due(Some(self.fold_usage_at), DAY_MS) {
            self.fold_some_usage();
        }
        let is_soon = self.fold_usage_at.0.saturating_sub(self.now.0) <= FOLD_PAUSE_MS;
        is_soon.then_some(self.fold_usage_at)
    }

    fn fold_some_usage(&mut self) {
        let keep = u64::try_from(self.settings.usage_keep.as_millis()).unwrap_or(u64::MAX);
        let before = Timestamp(self.now.0.saturating_sub(keep)).min(self.shares.matters_since(self.now));
        let pause = match self.store.fold_usage(before, FOLDED_AT_ONCE) {
            Ok(count) if count < FOLDED_AT_ONCE => DAY_MS,
            Ok(_) => FOLD_PAUSE_MS,
            Err(error) => {
                tracing::warn!(%error, "old records of usage stay, will be tried again tomorrow");
                DAY_MS
            }
        };
        self.fold_usage_at = Timestamp(self.now.0.saturating_add(pause));
    }

    pub(super) fn set_held_up(&mut self, held_up: Vec<HeldUp>) {
        if self.held_up == held_up {
            return;
        }
        let before = std::mem::replace(&mut self.held_up, held_up);
        let touched: Vec<JobKey> = before.iter().chain(&self.held_up).map(|held_up| held_up.key.clone()).collect();
        self.whys = self.held_up.iter().map(|held_up| (held_up.key.clone(), held_up.why.clone())).collect();
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

    /// For those who ask: so many of the first, as they are now, or were a moment ago where the queue is long.
    pub(super) fn look_ahead_for_answer(&mut self, most: usize) {
        let seen = self.outlook.as_ref();
        let age = seen.map_or(u64::MAX, |outlook| self.now.0.abs_diff(outlook.at.0));
        let is_short = seen.is_some_and(|outlook| outlook.seen() < most.min(outlook.waiting));
        let has_changed = self.queue_changed || !self.dirty.is_empty();
        if age >= TOLD_MS || is_short || (has_changed && self.queue.len() <= LONG) {
            self.refresh_outlook(most);
        }
    }

    /// Looks at so many of the first.
    pub(super) fn refresh_outlook(&mut self, most: usize) {
        let outlook = self.with_snapshot(|snapshot| outlook::outlook(snapshot, &self.held_up, most));
        let before = self.outlook.as_ref();
        let has_moved =
            |key: &&JobKey| self.whys.contains_key(*key) || before.and_then(|before| before.of(key)) != outlook.of(key);
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
    let (amount, template) = (amount_of(&run.spec, attempt), run.record.source.template.as_ref());
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
        gpu: amount.gpu / CARD,
        gpu_part: amount.gpu % CARD,
        price: template.and_then(|template| template.price),
        price_is_part: template.is_some_and(|template| template.price_is_part),
    })
}
