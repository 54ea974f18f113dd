//! Graphics cards: who holds which, which may be handed out, and why others may not.
//!
//! A lease is part of the record of the attempt's task, so it is written in the commit that lets the task start, and over
//! when the attempt is released: then nothing of it is in its control groups. Before somebody else gets the card, it is
//! looked at once more: what a driver still does for a process that has ended, and what others do there, is seen then. What was
//! seen counts for a few seconds.

mod pieces;
mod sharing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::world::Job;
use super::{Reconciler, Work};
use crate::gpu::deck::{CARD, Part, Piece, Sizes, Wish, is_of_kind};
use crate::gpu::health::{self, Finding, Level};
use crate::gpu::nodes::Missing;
use crate::gpu::{Card, Driver, Inventory, Process, placement};
use crate::ids::{AttemptId, GpuUuid, JobKey, TaskName, Timestamp};
use crate::plan::{Amount, Kept, Want, wishes};
use crate::report::{StrangerReport, listed, same_together};
use crate::spec::{JobSpec, OnGpuFailure};
use crate::store::Store;
use crate::store::record::{AttemptRecord, GpuLease, GpuPartLease, TaskRecord};
use sharing::Sharing;

/// How soon cards that others use are looked at again, and a driver that does not answer is asked again, ms.
const LOOK_AGAIN_MS: u64 = 2000;
/// The same where one was given back as it was looked at, ms.
const LOOK_SOON_MS: u64 = 100;
/// What was seen on a card counts for so long, ms: after that anybody may have come. Of a driver that is silent for longer it is told.
const FRESH_MS: u64 = 5000;

/// What is known of the cards.
#[derive(Debug, Default)]
pub(super) struct Cards {
    seen: Arc<Inventory>,
    users: BTreeMap<GpuUuid, Users>,
    /// When somebody gave it back.
    given_back: BTreeMap<GpuUuid, Timestamp>,
    /// They are being looked at.
    looking: bool,
    /// When they were last asked to be.
    asked_at: Option<Timestamp>,
    /// Since when they are asked to be and nothing new is told.
    silent_since: Option<Timestamp>,
    /// Who waits was told of that.
    silence_told: bool,
    /// What whole cards there are.
    sizes: Sizes,
    /// Who uses more than their share.
    sharing: Sharing,
    /// What the last plan has kept for the first run that does not fit.
    pub(super) kept: Option<Kept>,
    /// Jobs whose run was begun while it was not known which cards there are.
    unjudged: BTreeSet<JobKey>,
}

/// What ran on a card.
#[derive(Debug)]
struct Users {
    /// When that was begun to be looked at.
    at: Timestamp,
    /// When that had been looked at: from then on it counts. All cards together may take longer than what was seen counts.
    until: Timestamp,
    /// Since when there is always some.
    since: Timestamp,
    /// Absent if the driver does not say.
    processes: Option<Vec<Process>>,
}

impl Users {
    fn are_there(&self) -> bool {
        self.processes.as_ref().is_none_or(|processes| processes.iter().any(|process| !process.is_ignored))
    }
}

/// Why nobody is given a card, leases apart.
#[derive(Debug, Clone, Copy)]
enum OutOfUse<'a> {
    Failed(&'a Finding),
    CutUp,
    NoDevice,
    /// A slice whose devices are not there, as is said.
    Unreachable(&'a str),
    /// What runs on it was not looked at lately, or not since it was given back.
    Unseen,
    /// The driver does not say what runs on it.
    Unsaid {
        since: Timestamp,
    },
    Used {
        since: Timestamp,
        by: &'a Process,
        /// So many others do so as well.
        more: usize,
    },
}

/// What of the cards who waits is told of, each sort once: what keeps others is nothing to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sought(BTreeSet<(Form, Option<String>)>);

/// Whole cards and shares are had of the same cards, slices of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Card,
    Slice,
}

impl Sought {
    pub(super) fn of(wishes: &[Wish]) -> Self {
        let form = |wish: &Wish| match wish.part {
            Part::Slice(_) => Form::Slice,
            Part::Whole | Part::Share(_) => Form::Card,
        };
        let wanted = wishes.iter().filter(|wish| wish.pieces() > 0);
        Self(wanted.map(|wish| (form(wish), wish.kind.clone())).collect())
    }

    fn has(&self, form: Form, card: &Card) -> bool {
        self.0.iter().any(|(sought, kind)| *sought == form && is_of_kind(&card.facts.name, kind.as_deref()))
    }

    /// Why that card as a whole is not had matters to it; of one that is cut up it is told with its parts.
    fn concerns(&self, card: &Card, why: OutOfUse<'_>) -> bool {
        match (self.has(Form::Card, card), self.has(Form::Slice, card)) {
            (is_sought, false) => is_sought,
            // Of one that does not answer nobody knows whether it was cut up.
            (false, true) => card.signs.lost.is_some(),
            (true, true) => !card.is_cut_up() || matches!(why, OutOfUse::CutUp),
        }
    }

    fn concerns_parts(&self, card: &Card) -> bool {
        match (self.has(Form::Card, card), self.has(Form::Slice, card)) {
            (true, true) => true,
            (true, false) => !card.is_cut_up(),
            (false, is_sought) => is_sought && card.is_cut_up(),
        }
    }
}

impl Cards {
    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub(super) fn await_judgement(&mut self, key: &JobKey, awaits: bool) {
        if awaits {
            self.unjudged.insert(key.clone());
        } else {
            self.unjudged.remove(key);
        }
    }

    /// As a whole.
    fn out_of_use<'a>(&'a self, card: &'a Card, now: Timestamp) -> Option<OutOfUse<'a>> {
        match self.in_the_way(card, now, |_| false) {
            Some(OutOfUse::Failed(finding)) => Some(OutOfUse::Failed(finding)),
            _ if card.is_cut_up() => Some(OutOfUse::CutUp),
            why => why,
        }
    }

    /// Cut up or not; processes that `are_known` are those of who has a part of it.
    fn in_the_way<'a>(
        &'a self,
        card: &'a Card,
        now: Timestamp,
        are_known: impl Fn(&Process) -> bool,
    ) -> Option<OutOfUse<'a>> {
        if let Some(finding) = card.findings.first().filter(|worst| worst.level >= Level::Unusable) {
            return Some(OutOfUse::Failed(finding));
        }
        if card.facts.minor.is_none() {
            return Some(OutOfUse::NoDevice);
        }
        match self.users.get(&card.facts.uuid).filter(|users| now.0.abs_diff(users.until.0) <= FRESH_MS) {
            None => Some(OutOfUse::Unseen),
            Some(users) => match &users.processes {
                None => Some(OutOfUse::Unsaid { since: users.since }),
                Some(processes) => {
                    let mut strangers = strangers_among(processes, are_known);
                    strangers.next().map(|by| OutOfUse::Used { since: users.since, by, more: strangers.count() })
                }
            },
        }
    }

    /// Who is on a card, and is none of those that `are_known`.
    fn strangers_on<'a>(
        &'a self,
        card: &Card,
        are_known: impl Fn(&Process) -> bool,
    ) -> impl Iterator<Item = &'a Process> {
        let users = self.users.get(&card.facts.uuid).and_then(|users| users.processes.as_deref());
        strangers_among(users.unwrap_or_default(), are_known)
    }

    /// Since when it is out of use, where that ends by itself; what is wrong with a card lasts.
    fn away_since(&self, why: OutOfUse<'_>, now: Timestamp) -> Option<Timestamp> {
        match why {
            OutOfUse::Failed(_) | OutOfUse::CutUp | OutOfUse::NoDevice | OutOfUse::Unreachable(_) => None,
            OutOfUse::Unseen => Some(self.silent_since.unwrap_or(now)),
            OutOfUse::Used { since, .. } | OutOfUse::Unsaid { since } => Some(since),
        }
    }

    fn says(&self, why: OutOfUse<'_>, now: Timestamp) -> String {
        match why {
            OutOfUse::Failed(finding) => format!("{}: {}", finding.rule, finding.says),
            OutOfUse::CutUp => "is cut up by MIG".to_owned(),
            OutOfUse::NoDevice => "the driver does not say which device it is".to_owned(),
            OutOfUse::Unreachable(said) => format!("cannot be reached: {said}"),
            OutOfUse::Unseen => match self.silent_since.filter(|_| self.silent_for(now) >= FRESH_MS) {
                Some(since) => {
                    format!("is being looked at, but NVML has not answered since {}", since.to_seconds())
                }
                None => "is being looked at".to_owned(),
            },
            OutOfUse::Unsaid { .. } => "the driver does not say what runs on it".to_owned(),
            OutOfUse::Used { by, more: 0, .. } => used_by(by),
            OutOfUse::Used { by, more, .. } => format!("{}, and by {more} more", used_by(by)),
        }
    }

    fn silent_for(&self, now: Timestamp) -> u64 {
        self.silent_since.map_or(0, |since| now.0.saturating_sub(since.0))
    }

    /// What was seen before what is known is none, unless the clock was set back.
    fn is_news(&self, seen: &Inventory, now: Timestamp) -> bool {
        match (self.seen.at, seen.at) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(before), Some(at)) => at >= before || before > now,
        }
    }

    fn see_users(&mut self, seen: &Inventory) {
        let Some((at, until)) = seen.at.zip(seen.until()) else { return };
        if self.seen.at != Some(at) {
            (self.silent_since, self.silence_told) = (None, false);
        }
        for card in &seen.cards {
            let (uuid, Some(usage)) = (&card.facts.uuid, &card.usage) else { continue };
            let is_before = self.given_back.get(uuid).is_some_and(|back| at <= *back);
            if !is_before {
                let were = self.users.get(uuid).filter(|users| users.are_there());
                let since = were.map_or(at, |users| users.since);
                self.users.insert(uuid.clone(), Users { at, until, since, processes: usage.processes.clone() });
            }
        }
    }

    /// Where the clock was set back, what lies ahead was just now: it locks nothing until then.
    fn keep_time(&mut self, now: Timestamp) {
        let times = self.given_back.values_mut().chain(&mut self.asked_at).chain(&mut self.silent_since);
        times.for_each(|time| *time = (*time).min(now));
    }

    /// When they may be asked to be looked at again.
    fn may_ask_at(&self) -> Option<Timestamp> {
        let asked = self.asked_at?;
        let is_news = self.given_back.values().any(|back| *back >= asked);
        Some(Timestamp(asked.0 + if is_news { LOOK_SOON_MS } else { LOOK_AGAIN_MS }))
    }
}

/// Cards by their places and what is said of each: in one sentence those of which the same is said.
fn together(said: impl Iterator<Item = (usize, String)>) -> Vec<String> {
    let sentence = |(places, says): (Vec<usize>, String)| match places.as_slice() {
        [place] => format!("; GPU {place} {says}"),
        places => format!("; GPU {}: {says}", listed(places)),
    };
    same_together(said).into_iter().map(sentence).collect()
}

/// Where to find it whatever its number is.
fn on_bus(card: &Card) -> String {
    if card.facts.bus.is_empty() { String::new() } else { format!(" ({})", card.facts.bus) }
}

fn strangers_among(processes: &[Process], are_known: impl Fn(&Process) -> bool) -> impl Iterator<Item = &Process> {
    processes.iter().filter(move |process| !process.is_ignored && !are_known(process))
}

/// What it runs is not told: whoever waits may see nothing of other users' processes but what they hold.
fn used_by(process: &Process) -> String {
    let user = process.user.clone().or_else(|| process.uid.map(|uid| format!("user {uid}")));
    let user = user.map_or(String::new(), |user| format!(" of {user}"));
    let memory = process.memory.map_or(String::new(), |bytes| format!(", {} MiB", bytes >> 20));
    format!("is used by process {}{user}{memory}", process.pid)
}

/// Cards that the tasks of a job want, in their order.
fn wanted(spec: &JobSpec) -> Vec<usize> {
    spec.tasks().map(|(role, _)| role.resources.gpu as usize).collect()
}

impl<S: Store> Reconciler<S> {
    /// They were looked at.
    pub(super) fn cards_seen(&mut self, seen: Arc<Inventory>) {
        self.cards.keep_time(self.now);
        if !self.cards.is_news(&seen, self.now) {
            return;
        }
        self.cards.see_users(&seen);
        self.cards.seen = seen;
        self.tell_holders();
        self.reckon_shares_anew();
        self.judge_those_that_came_before();
        self.watch_shares();
        self.queue_changed = true;
    }

    /// Once, when it is known which cards there are: what came before and can never have its cards is refused as if it came now.
    fn judge_those_that_came_before(&mut self) {
        let seen = &self.cards.seen;
        if !self.are_known() || (seen.cards.is_empty() && seen.nameless.is_empty()) {
            return;
        }
        for key in std::mem::take(&mut self.cards.unjudged) {
            let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) else { continue };
            run.record.cards_unknown = false;
            let spec = run.spec.clone();
            let waits = run.record.attempts.is_empty();
            self.dirty.insert(key.clone());
            if let Some(reason) = self.beyond_cards(&spec).filter(|_| waits) {
                self.refuse_at_last(&key, reason);
            }
        }
    }

    pub(super) fn cards_looked_at(&mut self) {
        self.cards.looking = false;
    }

    /// Jobs on cards that have failed are told, once of each time that it does.
    fn tell_holders(&mut self) {
        // Where it is the driver that does not answer, the cards may well be what they were.
        if !self.are_known() {
            return;
        }
        for key in self.live.clone() {
            let told = self.live_attempt(&key).map(|attempt| attempt.failed_gpus.clone()).unwrap_or_default();
            let well: Vec<&GpuUuid> = told.iter().filter(|uuid| self.is_well(uuid)).collect();
            for uuid in well {
                let name = self.live_attempt(&key).map(|attempt| self.name_in(attempt, uuid)).unwrap_or_default();
                self.note(&key, format!("{name} is well again"));
                self.attempt_mut(&key).into_iter().for_each(|attempt| _ = attempt.failed_gpus.remove(uuid));
            }
            for (uuid, says) in self.failures_of(&key).into_iter().filter(|(uuid, _)| !told.contains(uuid)) {
                self.alarm(&key, &says);
                self.attempt_mut(&key).into_iter().for_each(|attempt| attempt.failed_gpus.extend([uuid.clone()]));
            }
        }
    }

    /// The card, or the slice of one, is seen, and has not failed.
    fn is_well(&self, uuid: &GpuUuid) -> bool {
        let is_it = |card: &&Card| card.facts.uuid == *uuid || card.slices.iter().any(|slice| slice.uuid == *uuid);
        let card = self.cards.seen.cards.iter().find(is_it);
        card.is_some_and(|card| health::worst(&card.findings) != Some(Level::Failed))
    }

    /// Cards of a job that have failed as they were seen last, slices of cards that are gone, and what is said of each, once though
    /// tasks share it.
    pub(super) fn failures_of(&self, key: &JobKey) -> BTreeMap<GpuUuid, String> {
        let failure = |(_, lease): (&TaskRecord, &GpuLease)| {
            let Some(card) = self.cards.seen.cards.iter().find(|card| card.facts.uuid == lease.uuid) else {
                // It went while nobody looked; one that does not tell its name may be it.
                let is_gone = self.are_known() && self.cards.seen.nameless.is_empty();
                let says = || format!("GPU {} has failed: the driver no longer has it", lease.uuid);
                return is_gone.then(|| (lease.uuid.clone(), says()));
            };
            let Some(worst) = card.findings.first().filter(|finding| finding.level == Level::Failed) else {
                return self.lost_slice(card, lease);
            };
            Some((
                lease.uuid.clone(),
                format!("{}{} has failed: {}", self.name_of(&lease.uuid), on_bus(card), worst.says),
            ))
        };
        self.leases_of(key).filter_map(failure).collect()
    }

    /// That the card no longer has the slice.
    fn lost_slice(&self, card: &Card, lease: &GpuLease) -> Option<(GpuUuid, String)> {
        let Some(GpuPartLease::Slice { uuid, profile, .. }) = &lease.part else { return None };
        let is_told = self.are_known() && !card.signs.slices_untold;
        if !is_told || card.slices.iter().any(|slice| slice.uuid == *uuid) {
            return None;
        }
        let how = match card.is_cut_up() {
            true => "the driver no longer has it",
            false => "the card is no longer cut up by MIG",
        };
        let (name, bus) = (self.name_of(&lease.uuid), on_bus(card));
        Some((uuid.clone(), format!("slice {profile} of {name}{bus} has failed: {how}")))
    }

    /// A failed card for which the job's file wants it stopped.
    pub(super) fn failure_to_stop_for(&self, key: &JobKey) -> Option<String> {
        // Where it is the driver that does not answer, tasks may well go on.
        let is_stopped = self.are_known() && self.jobs.get(key)?.on_gpu_failure() != OnGpuFailure::Alert;
        is_stopped.then(|| self.failures_of(key)).into_iter().flatten().map(|(_, says)| says).next()
    }

    /// Processor cores near to these cards, as far as the cards were seen.
    pub(super) fn near(&self, leases: &[GpuLease]) -> BTreeSet<u32> {
        let is_held = |card: &&Card| {
            let of = |lease: &GpuLease| {
                card.facts.uuid == lease.uuid || card.slices.iter().any(|slice| slice.uuid == lease.uuid)
            };
            leases.iter().any(of)
        };
        self.cards.seen.cards.iter().filter(is_held).flat_map(|card| card.facts.cpus.iter().copied()).collect()
    }

    pub(super) fn name_of(&self, uuid: &GpuUuid) -> String {
        let place = self.cards.seen.cards.iter().position(|card| card.facts.uuid == *uuid);
        place.map_or_else(|| uuid.to_string(), |place| format!("GPU {place}"))
    }

    /// The same of a card of an attempt, or of a slice.
    pub(super) fn name_in(&self, attempt: &AttemptRecord, uuid: &GpuUuid) -> String {
        let mut leases = attempt.tasks.iter().flat_map(|task| &task.gpus);
        let slice = leases.find_map(|lease| match &lease.part {
            Some(GpuPartLease::Slice { uuid: own, profile, .. }) if own == uuid => {
                Some(format!("slice {profile} of {}", self.name_of(&lease.uuid)))
            }
            _ => None,
        });
        slice.unwrap_or_else(|| self.name_of(uuid))
    }

    fn live_attempt(&self, key: &JobKey) -> Option<&AttemptRecord> {
        self.jobs.get(key)?.open_run()?.live_attempt()
    }

    /// With its tasks, in their order.
    fn leases_of(&self, key: &JobKey) -> impl Iterator<Item = (&TaskRecord, &GpuLease)> {
        let held = self.live_attempt(key).filter(|attempt| !attempt.released).into_iter();
        held.flat_map(|attempt| &attempt.tasks).flat_map(|task| task.gpus.iter().map(move |lease| (task, lease)))
    }

    fn held_by(&self, key: &JobKey) -> impl Iterator<Item = &GpuLease> {
        self.leases_of(key).map(|(_, lease)| lease)
    }

    fn leased(&self) -> BTreeSet<&GpuUuid> {
        self.live.iter().flat_map(|key| self.leases_of(key)).map(|(_, lease)| &lease.uuid).collect()
    }

    /// Who holds what.
    pub(super) fn lease_holders(&self) -> Vec<(GpuLease, JobKey, TaskName, AttemptId)> {
        let of_job = |key: &JobKey| {
            let id = self.live_attempt(key).map(|attempt| attempt.id);
            let held =
                self.leases_of(key).filter_map(|(task, lease)| Some((lease.clone(), key.clone(), task.name(), id?)));
            held.collect::<Vec<_>>()
        };
        self.live.iter().flat_map(of_job).collect()
    }

    /// By their places in what was seen, and why nobody is given them now.
    fn unleased(&self) -> impl Iterator<Item = (usize, &Card, Option<OutOfUse<'_>>)> {
        let leased = self.leased();
        let cards = self.cards.seen.cards.iter().enumerate();
        let cards = cards.filter(move |(_, card)| !leased.contains(&card.facts.uuid));
        cards.map(|(place, card)| (place, card, self.cards.out_of_use(card, self.now)))
    }

    /// Cards that nobody is given now and that will be had again: since when each.
    pub(super) fn cards_away(&self) -> Vec<Timestamp> {
        self.unleased().filter_map(|(_, _, why)| self.cards.away_since(why?, self.now)).collect()
    }

    /// What the machine has, with all cards that can be had sooner or later: what is only being looked at, or used by others,
    /// goes on being reckoned with, so that who waits for it keeps its place.
    pub(super) fn inventory(&self) -> Amount {
        let unleased = self.unleased();
        let is_had = |why: Option<OutOfUse<'_>>| why.is_none_or(|why| self.cards.away_since(why, self.now).is_some());
        let whole = self.leased().len() + unleased.filter(|(_, _, why)| is_had(*why)).count();
        let lost: u64 = self.live.iter().map(|key| self.lost_by(key)).sum();
        let gpu = (whole as u64 * CARD).saturating_sub(lost).saturating_add(self.slices_there_are());
        Amount { gpu, ..self.settings.inventory }
    }

    /// A card that somebody has and nobody is given after that. One that is not seen may be one that does not tell its name.
    fn is_lost(&self, uuid: &GpuUuid) -> bool {
        let is_failed = |card: &Card| {
            let why = self.cards.in_the_way(card, self.now, |_| true);
            why.is_some_and(|why| self.cards.away_since(why, self.now).is_none())
        };
        let card = self.cards.seen.cards.iter().find(|card| card.facts.uuid == *uuid);
        self.are_known() && card.map_or(self.cards.seen.nameless.is_empty(), is_failed)
    }

    /// Whole cards that the job's attempt has and that are lost; parts of cards are looked at one by one.
    pub(super) fn lost_by(&self, key: &JobKey) -> u64 {
        let whole = self.held_by(key).filter(|lease| lease.part.is_none());
        whole.filter(|lease| self.is_lost(&lease.uuid)).count() as u64 * CARD
    }

    /// What the machine has, with all cards that may be there. That is any number before they have been looked at, and while
    /// there is no driver; and for a job that wants certain cards, or parts of cards, these are looked at one by one.
    pub(super) fn all_there_is(&self, spec: &JobSpec) -> Amount {
        let seen = &self.cards.seen;
        let whole = seen.cards.iter().filter(|card| !card.is_cut_up()).count() + seen.nameless.len();
        let is_known = self.are_known() && wishes(spec).iter().all(|wish| wish.is_plain());
        Amount { gpu: if is_known { whole as u64 * CARD } else { u64::MAX }, ..self.settings.inventory }
    }

    pub(super) fn are_known(&self) -> bool {
        self.cards.seen.at.is_some() && matches!(self.cards.seen.driver, Driver::Loaded { .. })
    }

    fn free_cards(&self) -> Vec<usize> {
        self.unleased().filter(|(_, _, why)| why.is_none()).map(|(place, ..)| place).collect()
    }

    /// Cards for each task, in order; `None` if there are not as many as the plan was made with.
    pub(super) fn lease(&self, spec: &JobSpec, pieces: Option<Vec<Vec<Piece>>>) -> Option<Vec<Vec<GpuLease>>> {
        if let Some(pieces) = pieces {
            return self.lease_pieces(&pieces);
        }
        // Parts of cards, and kinds, are the plan's to choose.
        if !wishes(spec).iter().all(|wish| wish.is_plain()) {
            return None;
        }
        let wanted = wanted(spec);
        if wanted.iter().all(|count| *count == 0) {
            return Some(vec![Vec::new(); wanted.len()]);
        }
        let seen = &self.cards.seen;
        let chosen = placement::place(&seen.topology, &self.free_cards(), &wanted)?;
        let lease = |place: &usize| {
            let facts = &seen.cards.get(*place)?.facts;
            Some(GpuLease { uuid: facts.uuid.clone(), minor: facts.minor?, part: None })
        };
        chosen.iter().map(|cards| cards.iter().map(lease).collect()).collect()
    }

    /// The cards of an attempt's tasks, by the devices that they have now: a driver that was loaded anew may number them otherwise.
    /// Who starts a task opens none that is lost.
    pub(super) fn devices_now(&self, attempt: &AttemptRecord) -> Vec<Vec<GpuLease>> {
        let there =
            |lease: &GpuLease| self.cards.seen.cards.iter().find(|card| card.facts.uuid == lease.uuid)?.facts.minor;
        let now = |lease: &GpuLease| GpuLease { minor: there(lease).unwrap_or(lease.minor), ..lease.clone() };
        attempt.tasks.iter().map(|task| task.gpus.iter().map(now).collect()).collect()
    }

    /// Before others get them they are looked at once more.
    pub(super) fn give_back(&mut self, attempt: &AttemptRecord) {
        for lease in attempt.tasks.iter().flat_map(|task| &task.gpus) {
            self.cards.users.remove(&lease.uuid);
            self.cards.given_back.insert(lease.uuid.clone(), self.now);
        }
    }

    /// Has the cards looked at while somebody waits for one of which it is not known whether it can be had; when to come again.
    pub(super) fn look_at_cards(&mut self) -> Option<Timestamp> {
        self.cards.keep_time(self.now);
        let is_watched = self.shares_are_to_be_looked_at();
        if (self.starts_nothing() || !self.queue.wants(Want::Any)) && !is_watched {
            if !self.cards.looking {
                // Nobody asks any more: that nothing is told is no silence.
                (self.cards.silent_since, self.cards.silence_told) = (None, false);
            }
            return None;
        }
        let silence = self.tell_silence();
        // What is lost or failed is told when it is well again.
        let is_wanted = is_watched
            || self.cards.seen.at.is_none()
            || !self.cards_away().is_empty()
            || self.parts_are_to_be_looked_at();
        if self.cards.looking || !is_wanted {
            return silence;
        }
        match self.cards.may_ask_at().filter(|at| *at > self.now) {
            Some(at) => Some(silence.map_or(at, |silence| silence.min(at))),
            None => {
                self.cards.looking = true;
                self.cards.asked_at = Some(self.now);
                self.cards.silent_since.get_or_insert(self.now);
                self.works.push(Work::LookAtCards);
                self.tell_silence()
            }
        }
    }

    /// Who waits is told when NVML does not answer; when that will be so.
    fn tell_silence(&mut self) -> Option<Timestamp> {
        if self.cards.silent_since.is_none() || self.cards.silence_told {
            return None;
        }
        match FRESH_MS.saturating_sub(self.cards.silent_for(self.now)) {
            0 => {
                self.cards.silence_told = true;
                self.queue_changed = true;
                None
            }
            left => Some(Timestamp(self.now.0 + left)),
        }
    }

    /// Whole cards that somebody has and nobody is given after that, by their places, and why.
    fn lost_of_holders(&self) -> Vec<(usize, OutOfUse<'_>)> {
        let held = self.live.iter().flat_map(|key| self.held_by(key)).filter(|lease| lease.part.is_none());
        let held: BTreeSet<&GpuUuid> = held.map(|lease| &lease.uuid).collect();
        let cards = self.cards.seen.cards.iter().enumerate();
        let why = |card| self.cards.in_the_way(card, self.now, |_| true);
        let lost = cards.filter(|(_, card)| self.are_known() && held.contains(&card.facts.uuid));
        let lost = lost.filter_map(|(place, card)| Some((place, why(card)?)));
        lost.filter(|(_, why)| self.cards.away_since(*why, self.now).is_none()).collect()
    }

    /// What is said of each card whose own node is not there, where that is so of several, and what of all of them.
    fn nodes_lacking<'a>(&'a self, out: &[(usize, OutOfUse<'a>)]) -> Option<(Vec<&'a str>, String)> {
        let lacks = |(place, why): &(usize, OutOfUse<'a>)| {
            let card = self.cards.seen.cards.get(*place)?;
            let minor = card.facts.minor?;
            let missing = card.signs.no_device.as_ref().filter(|missing| missing.is_of_card(minor))?;
            // Worse may be said of it.
            matches!(why, OutOfUse::Failed(finding) if finding.says == missing.says).then_some(missing)
        };
        let missing: Vec<&Missing> = out.iter().filter_map(lacks).collect();
        let together = Missing::together(&missing)?;
        Some((missing.iter().map(|missing| missing.says.as_str()).collect(), together))
    }

    /// Who uses cards, or parts of them, and is no job.
    pub(super) fn strangers(&self, sought: &Sought) -> Vec<StrangerReport> {
        let told = |place: usize, card: &Card, slice: Option<&str>, by: &Process| StrangerReport {
            gpu: format!("GPU {place}"),
            uuid: card.facts.uuid.clone(),
            slice: slice.map(str::to_owned),
            pid: by.pid,
            uid: by.uid,
            user: by.user.clone(),
            memory: by.memory,
        };
        let is_meant = |card, why| matches!(why, OutOfUse::Used { .. }) && sought.concerns(card, why);
        let whole = self.unleased().filter(|(_, card, why)| why.is_some_and(|why| is_meant(card, why)));
        let whole = whole.flat_map(|(place, card, _)| {
            self.cards.strangers_on(card, |_| false).map(move |by| told(place, card, None, by))
        });
        whole.chain(self.strangers_on_parts(sought, told)).collect()
    }

    /// Cards that nobody is given, and why, one line; empty where there are none such.
    pub(super) fn cards_out_of_use(&self, sought: &Sought) -> String {
        let free = self.unleased().filter_map(|(place, _, why)| Some((place, why?)));
        let concerns = |(place, why): &(usize, OutOfUse<'_>)| {
            self.cards.seen.cards.get(*place).is_some_and(|card| sought.concerns(card, *why))
        };
        let mut out: Vec<(usize, OutOfUse<'_>)> = free.chain(self.lost_of_holders()).filter(concerns).collect();
        out.sort_by_key(|(place, _)| *place);
        let lacking = self.nodes_lacking(&out);
        let says = |why: OutOfUse<'_>| match (why, &lacking) {
            (OutOfUse::Failed(Finding { rule, says, .. }), Some((each, all))) if each.contains(&says.as_str()) => {
                format!("{rule}: {all}")
            }
            _ => self.cards.says(why, self.now),
        };
        let out = out.into_iter().map(|(place, why)| (place, says(why)));
        let told = together(out).into_iter().chain(self.parts_out_of_use(sought));
        let seen = &self.cards.seen;
        let told: String = told.chain(seen.nameless.iter().map(|said| format!("; {said}"))).collect();
        match &seen.driver {
            Driver::Missing { reason } if told.is_empty() => format!("; no GPUs: {reason}"),
            _ => told,
        }
    }
}
