//! Graphics cards: who holds which, which may be handed out, and why others may not.
//!
//! A lease is part of the record of the attempt's task, so it is written in the commit that lets the task start, and over
//! when the attempt is released: then nothing of it is in its control groups. Before somebody else gets the card, it is
//! looked at once more: what a driver still does for a process that has ended, and what others do there, is seen then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Reconciler, Work};
use crate::gpu::health::{self, Level};
use crate::gpu::{Card, Driver, Inventory, Process, placement};
use crate::ids::{GpuUuid, JobKey, TaskName, Timestamp};
use crate::plan::Amount;
use crate::spec::JobSpec;
use crate::store::Store;
use crate::store::record::{AttemptRecord, GpuLease, TaskRecord};

/// How soon cards that others use are looked at again, ms.
const LOOK_AGAIN_MS: u64 = 2000;

/// What is known of the cards.
#[derive(Debug)]
pub(super) struct Cards {
    seen: Arc<Inventory>,
    /// What ran on each card, absent if the driver does not say, and when that was looked at.
    users: BTreeMap<GpuUuid, (Timestamp, Option<Vec<Process>>)>,
    /// When somebody gave it back.
    given_back: BTreeMap<GpuUuid, Timestamp>,
    /// They are being looked at.
    looking: bool,
    /// When they were last asked to be.
    asked_at: Timestamp,
}

impl Default for Cards {
    fn default() -> Self {
        Self {
            seen: Arc::default(),
            users: BTreeMap::new(),
            given_back: BTreeMap::new(),
            looking: false,
            asked_at: Timestamp(0),
        }
    }
}

impl Cards {
    /// Why nobody is given the card now, leases apart.
    fn out_of_use(&self, card: &Card, now: Timestamp) -> Option<String> {
        let uuid = &card.facts.uuid;
        if self.seen.is_stale(now) {
            return Some("the driver does not answer".to_owned());
        }
        if health::worst(&card.findings) == Some(Level::Failed) {
            return card.findings.first().map(|finding| format!("{}: {}", finding.rule, finding.says));
        }
        if card.is_cut_up() {
            return Some("is cut up by MIG".to_owned());
        }
        if card.facts.minor.is_none() {
            return Some("the driver does not say which device it is".to_owned());
        }
        match self.users.get(uuid).filter(|(at, _)| self.given_back.get(uuid).is_none_or(|back| at > back)) {
            None => Some("is being looked at".to_owned()),
            Some((_, None)) => Some("the driver does not say what runs on it".to_owned()),
            Some((_, Some(users))) => users.first().map(used_by),
        }
    }
}

fn used_by(process: &Process) -> String {
    let user = |uid: u32| nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    let user = process.uid.map(|uid| user(uid).map_or_else(|| format!("user {uid}"), |user| user.name));
    let program = process.program.as_ref().map_or(String::new(), |program| format!(" ({program})"));
    let memory = process.memory.map_or(String::new(), |bytes| format!(", {} MiB", bytes >> 20));
    let user = user.map_or(String::new(), |user| format!(" of {user}"));
    format!("is used by process {}{program}{user}{memory}", process.pid)
}

/// Cards that the tasks of a job want, in their order.
fn wanted(spec: &JobSpec) -> Vec<usize> {
    spec.tasks().map(|(role, _)| role.resources.gpu as usize).collect()
}

impl<S: Store> Reconciler<S> {
    /// They were looked at.
    pub(super) fn cards_seen(&mut self, seen: Arc<Inventory>) {
        if let Some(at) = seen.at {
            for card in &seen.cards {
                if let Some(usage) = &card.usage {
                    self.cards.users.insert(card.facts.uuid.clone(), (at, usage.processes.clone()));
                }
            }
        }
        let before = std::mem::replace(&mut self.cards.seen, seen);
        self.tell_holders(&before);
        self.queue_changed = true;
    }

    pub(super) fn cards_looked_at(&mut self) {
        self.cards.looking = false;
    }

    /// Jobs on cards that have failed since are told.
    fn tell_holders(&mut self, before: &Inventory) {
        let failed = |found: &Inventory| -> BTreeMap<GpuUuid, String> {
            let cards = found.cards.iter().filter_map(|card| {
                let worst = card.findings.first().filter(|finding| finding.level == Level::Failed)?;
                Some((card.facts.uuid.clone(), worst.says.clone()))
            });
            cards.collect()
        };
        let old = failed(before);
        let new = failed(&self.cards.seen);
        for (uuid, says) in new.iter().filter(|(uuid, _)| !old.contains_key(uuid)) {
            if let Some(key) = self.holder(uuid) {
                self.note(&key, format!("alarm: {} has failed: {says}", self.name_of(uuid)));
            }
        }
    }

    fn name_of(&self, uuid: &GpuUuid) -> String {
        let place = self.cards.seen.cards.iter().position(|card| card.facts.uuid == *uuid);
        place.map_or_else(|| uuid.to_string(), |place| format!("GPU {place}"))
    }

    fn holder(&self, uuid: &GpuUuid) -> Option<JobKey> {
        let holds = |key: &&JobKey| self.leases_of(key).any(|lease| lease.uuid == *uuid);
        self.live.iter().find(holds).cloned()
    }

    fn leases_of(&self, key: &JobKey) -> impl Iterator<Item = &GpuLease> {
        let attempt = self.jobs.get(key).and_then(|job| job.open_run()?.live_attempt());
        let held = attempt.filter(|attempt| !attempt.released).into_iter();
        held.flat_map(|attempt| attempt.tasks.iter().flat_map(|task| &task.gpus))
    }

    fn leased(&self) -> BTreeSet<&GpuUuid> {
        self.live.iter().flat_map(|key| self.leases_of(key)).map(|lease| &lease.uuid).collect()
    }

    /// Who holds which, as `WORKSPACE/JOB ROLE-I`.
    pub(super) fn lease_holders(&self) -> Vec<(GpuUuid, JobKey, TaskName)> {
        let of_job = |key: &JobKey| {
            let attempt = self.jobs.get(key).and_then(|job| job.open_run()?.live_attempt());
            let tasks = attempt.filter(|attempt| !attempt.released).map_or(&[][..], |attempt| &attempt.tasks);
            let of_task = |task: &TaskRecord| {
                task.gpus.iter().map(|lease| (lease.uuid.clone(), key.clone(), task.name())).collect::<Vec<_>>()
            };
            tasks.iter().flat_map(of_task).collect::<Vec<_>>()
        };
        self.live.iter().flat_map(of_job).collect()
    }

    /// What the machine has, with the cards that are held or can be handed out now.
    pub(super) fn inventory(&self) -> Amount {
        let leased = self.leased();
        let free = self.free_cards(&leased).len();
        Amount { gpu: (leased.len() + free) as u64, ..self.settings.inventory }
    }

    /// What the machine has, with all cards that are known. Before they have been looked at that may be any number.
    pub(super) fn all_there_is(&self) -> Amount {
        let whole = self.cards.seen.cards.iter().filter(|card| !card.is_cut_up()).count();
        let gpu = if self.cards.seen.at.is_none() { u64::MAX } else { whole as u64 };
        Amount { gpu, ..self.settings.inventory }
    }

    /// By their places in what was seen.
    fn free_cards(&self, leased: &BTreeSet<&GpuUuid>) -> Vec<usize> {
        let cards = self.cards.seen.cards.iter().enumerate();
        let is_free =
            |card: &Card| !leased.contains(&card.facts.uuid) && self.cards.out_of_use(card, self.now).is_none();
        cards.filter(|(_, card)| is_free(card)).map(|(place, _)| place).collect()
    }

    /// Cards for each task, in order; `None` if there are not as many as the plan was made with.
    pub(super) fn lease(&self, spec: &JobSpec) -> Option<Vec<Vec<GpuLease>>> {
        let wanted = wanted(spec);
        if wanted.iter().all(|count| *count == 0) {
            return Some(vec![Vec::new(); wanted.len()]);
        }
        let seen = &self.cards.seen;
        let chosen = placement::place(&seen.topology, &self.free_cards(&self.leased()), &wanted)?;
        let lease = |place: &usize| {
            let facts = &seen.cards.get(*place)?.facts;
            Some(GpuLease { uuid: facts.uuid.clone(), minor: facts.minor? })
        };
        chosen.iter().map(|cards| cards.iter().map(lease).collect()).collect()
    }

    /// Before others get them they are looked at once more.
    pub(super) fn give_back(&mut self, attempt: &AttemptRecord) {
        for lease in attempt.tasks.iter().flat_map(|task| &task.gpus) {
            self.cards.given_back.insert(lease.uuid.clone(), self.now);
        }
    }

    /// Has the cards looked at while somebody waits for one of which it is not known whether it can be had.
    pub(super) fn look_at_cards(&mut self) {
        if self.cards.looking || self.draining || self.queue.wants_no_cards() {
            return;
        }
        let leased = self.leased();
        // What is lost or failed is told when it is well again.
        let may_be_had =
            |card: &&Card| !leased.contains(&card.facts.uuid) && health::worst(&card.findings) != Some(Level::Failed);
        let uuids = || self.cards.seen.cards.iter().filter(may_be_had).map(|card| &card.facts.uuid);
        let is_used = uuids().any(|uuid| self.cards.is_used(uuid));
        let is_new = !uuids().any(|uuid| self.cards.is_old(uuid, self.now));
        let is_stale = self.cards.seen.is_stale(self.now);
        // A driver that hangs is asked again some time later.
        let is_time = self.now.0 >= self.cards.asked_at.0 + LOOK_AGAIN_MS;
        if !is_new || (is_stale && is_time) {
            self.cards.looking = true;
            self.cards.asked_at = self.now;
            self.works.push(Work::LookAtCards);
        } else if is_used || is_stale {
            // Others may let go of it.
            self.retry_within(LOOK_AGAIN_MS);
        }
    }

    /// Cards that nobody is given, and why, one line; empty where there are none such.
    pub(super) fn cards_out_of_use(&self) -> String {
        let leased = self.leased();
        let cards = self.cards.seen.cards.iter().filter(|card| !leased.contains(&card.facts.uuid));
        let told = cards.filter_map(|card| {
            let why = self.cards.out_of_use(card, self.now)?;
            Some(format!("; {} {why}", self.name_of(&card.facts.uuid)))
        });
        let told: String = told.collect();
        match &self.cards.seen.driver {
            Driver::Missing { reason } if told.is_empty() => format!("; no GPUs: {reason}"),
            _ => told,
        }
    }
}

impl Cards {
    fn is_used(&self, uuid: &GpuUuid) -> bool {
        self.users.get(uuid).is_some_and(|(_, users)| users.as_ref().is_none_or(|users| !users.is_empty()))
    }

    /// What runs on it was not looked at since it was given back, or was in use and may no longer be.
    fn is_old(&self, uuid: &GpuUuid, now: Timestamp) -> bool {
        let Some((at, users)) = self.users.get(uuid) else { return true };
        let before = self.given_back.get(uuid).is_some_and(|back| at <= back);
        let is_unused = users.as_ref().is_some_and(Vec::is_empty);
        before || (!is_unused && now.0 >= at.0 + LOOK_AGAIN_MS)
    }
}
