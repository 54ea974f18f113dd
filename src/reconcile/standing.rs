//! What is told of a run that waits in the queue: its place, what it needs, what is free, who holds the rest, and when it should
//! start. Of other workspaces no more than their names and how much they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Reconciler;
use super::cards::Sought;
use crate::config::Quota;
use crate::gpu::deck::{CARD, Scarce, Wish};
use crate::ids::{Bytes, CardAmount, Cpu, JobKey, WorkspaceName};
use crate::plan::outlook::{CardsFor, Holder, Outlook, Standing, Start};
use crate::plan::{self, Amount, Holding, Why};
use crate::report::{AmountReport, HolderReport, StrangerReport, WaitReport};
use crate::store::Store;

/// Most jobs of the own workspace that are named.
const NAMED: usize = 3;
/// And that programs are told of.
const TOLD: usize = 20;

/// What those of a list have in common who seek the same.
#[derive(Debug, Default)]
pub(super) struct Listed(Mutex<BTreeMap<Sought, Arc<Told>>>);

/// What is told of cards that nobody is given, to all who seek the same.
#[derive(Debug, Default)]
struct Told {
    why: OnceLock<Arc<str>>,
    strangers: OnceLock<Vec<StrangerReport>>,
}

impl Listed {
    fn of(&self, sought: &Sought) -> Arc<Told> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(sought) {
            Some(told) => told.clone(),
            None => all.entry(sought.clone()).or_default().clone(),
        }
    }
}

/// What keeps a run that comes after others.
enum Behind {
    /// Its workspace has all that it may have.
    Quota,
    /// Too little is free.
    Room,
    /// What is free is kept for those before it.
    Others,
}

impl<S: Store> Reconciler<S> {
    /// Why a run waits that is in the queue, one line.
    pub(super) fn waiting_reason(&self, key: &JobKey) -> String {
        if self.ending {
            return "Trainyard is shutting down".to_owned();
        }
        if let Some(why) = self.why_drained() {
            return why;
        }
        let Some((outlook, standing)) = self.standing(key) else { return self.somewhere(key) };
        let why = match (self.whys.get(key), self.beyond_quota(key, standing)) {
            (Some(Why::Room), _) => self.room_reason(key, outlook, standing),
            (Some(Why::Quota), _) => self.quota_reason(key, outlook, standing),
            (Some(Why::Port { port, holder, how }), _) => port_reason(key, *port, holder, *how),
            (Some(Why::Addresses), _) => "waits for addresses: network.range is used up by running jobs".to_owned(),
            (None, Some(reason)) => {
                format!("waits until its workspace may have more, since its quota was made smaller: {reason}")
            }
            (None, None) if is_lacking(standing) => cards(standing, &self.cards_told_out_of_use(standing)),
            (None, None) => self.turn(key, outlook, standing),
        };
        match standing.estimate {
            Some(start) if start.at() > outlook.at => format!("{why}; should start {start}"),
            _ => why,
        }
    }

    fn room_reason(&self, key: &JobKey, outlook: &Outlook, standing: &Standing) -> String {
        let is_free = standing.of_cards.state == CardsFor::Free;
        let others = if is_free { "".into() } else { self.cards_told_out_of_use(standing) };
        match !is_held(outlook, standing) && !others.is_empty() {
            true => cards(standing, &others),
            false => format!("{}{others}", room(key, outlook, standing)),
        }
    }

    /// What [`Self::cards_out_of_use`] says, of which a list asks for each that waits.
    fn cards_told_out_of_use(&self, standing: &Standing) -> Arc<str> {
        let sought = Sought::of(&standing.wishes);
        let why = || self.cards_out_of_use(&sought).into();
        match &self.listed {
            Some(listed) => listed.of(&sought).why.get_or_init(why).clone(),
            None => why(),
        }
    }

    /// Tells of many while nothing changes: what is the same for all of them is looked at once.
    pub(super) fn as_one_list<T>(&mut self, tell: impl FnOnce(&Self) -> T) -> T {
        self.listed = Some(Listed::default());
        let told = tell(self);
        self.listed = None;
        told
    }

    /// Of one that comes after others: what it lacks, or that what it needs is kept for them.
    fn turn(&self, key: &JobKey, outlook: &Outlook, standing: &Standing) -> String {
        let Some(first) = first_before(key, outlook) else { return "waits for its turn".to_owned() };
        let (place, first) = (standing.place, seen_from(&key.workspace, first));
        let in_place = format!("in place {place} of the queue, which begins with {first}");
        match self.behind(key, outlook, standing) {
            Behind::Quota => format!("{}; {in_place}", self.quota_reason(key, outlook, standing)),
            // Which cards are out of use the first is told, and who waits for nothing else.
            Behind::Room if is_held(outlook, standing) => {
                format!("{}; {in_place}", room(key, outlook, standing))
            }
            Behind::Room => format!("{}; {in_place}", self.room_reason(key, outlook, standing)),
            Behind::Others => {
                format!(
                    "waits in place {place} of the queue: what is free is kept for those before it, first for {first}"
                )
            }
        }
    }

    /// What keeps one that comes after others.
    fn behind(&self, key: &JobKey, outlook: &Outlook, standing: &Standing) -> Behind {
        if first_before(key, outlook).is_none() {
            return Behind::Others;
        }
        let wanted = &standing.wanted;
        if self.beyond_left(key, outlook, standing) != Amount::default() || self.most_run(key, outlook).is_some() {
            return Behind::Quota;
        }
        let has_room = wanted.cpu <= outlook.free.cpu && wanted.memory <= outlook.free.memory;
        if has_room && standing.of_cards.state == CardsFor::Free { Behind::Others } else { Behind::Room }
    }

    /// Of a run that was not looked at, since it is new or far behind.
    fn somewhere(&self, key: &JobKey) -> String {
        let is_first = self.whys.contains_key(key);
        match self.outlook.as_ref().filter(|outlook| !is_first && outlook.seen() < outlook.waiting) {
            Some(outlook) => format!(
                "waits for its turn, behind {} others or more; `trainyard status {key}` tells why",
                outlook.seen()
            ),
            None => "waits for its turn".to_owned(),
        }
    }

    /// The same for programs.
    pub(super) fn wait_report(&self, key: &JobKey) -> Option<WaitReport> {
        let (outlook, standing) = self.standing(key).filter(|_| self.queue.contains(key))?;
        let (cause, free, holders) = match self.whys.get(key) {
            Some(Why::Quota) => ("quota", self.left_by_quota(key, outlook), self.quota_holders(key, outlook, standing)),
            None if self.beyond_quota(key, standing).is_some() => {
                ("quota", self.left_by_quota(key, outlook), Vec::new())
            }
            None if !is_lacking(standing) => match self.behind(key, outlook, standing) {
                Behind::Quota => {
                    ("quota", self.left_by_quota(key, outlook), self.quota_holders(key, outlook, standing))
                }
                Behind::Room => ("room", free_to(outlook, standing), lacking(outlook, standing)),
                Behind::Others => ("turn", free_to(outlook, standing), Vec::new()),
            },
            why => (cause(why), free_to(outlook, standing), lacking(outlook, standing)),
        };
        let (starts_by, starts_about) = match standing.estimate {
            Some(Start::By(start)) => (Some(start), None),
            Some(Start::About(start)) => (None, Some(start)),
            None => (None, None),
        };
        Some(WaitReport {
            cause: cause.to_owned(),
            place: standing.place,
            of: outlook.waiting,
            needs: report(&standing.wanted),
            free: report(&free),
            holders: told(&key.workspace, &holders),
            strangers: self.strangers_before(cause, standing),
            starts_by: starts_by.map(|start| start.to_string()),
            starts_about: starts_about.map(|start| start.to_string()),
            as_of: outlook.at.to_string(),
        })
    }

    /// Why it does not start whatever ends, as long as the quota is what it is.
    fn beyond_quota(&self, key: &JobKey, standing: &Standing) -> Option<String> {
        plan::beyond_quota(&standing.wanted, &key.workspace, self.quota(&key.workspace)?)
    }

    /// What a workspace may still have, and how many jobs of it run.
    fn left_of_quota(&self, workspace: &WorkspaceName, outlook: &Outlook) -> (Amount, u64) {
        let quota = self.quota(workspace).copied().unwrap_or_default();
        let (held, running) = outlook.held_in(workspace);
        let machine = &outlook.inventory;
        let left = |limit: Option<u64>, held: u64, there: u64| limit.unwrap_or(there).saturating_sub(held);
        let free = Amount {
            cpu: left(quota.cpu, held.cpu, machine.cpu),
            memory: left(quota.memory, held.memory, machine.memory),
            gpu: left(quota.gpu.map(|cards| cards.saturating_mul(CARD)), held.gpu, machine.gpu),
        };
        (free, running)
    }

    fn left_by_quota(&self, key: &JobKey, outlook: &Outlook) -> Amount {
        self.left_of_quota(&key.workspace, outlook).0
    }

    /// What it wants of which its quota leaves too little, and nothing else.
    fn beyond_left(&self, key: &JobKey, outlook: &Outlook, standing: &Standing) -> Amount {
        let quota = self.quota(&key.workspace).copied().unwrap_or_default();
        let (wanted, left) = (&standing.wanted, self.left_by_quota(key, outlook));
        let beyond = |limit: Option<u64>, wanted: u64, left: u64| match limit {
            Some(_) if wanted > left => wanted,
            _ => 0,
        };
        Amount {
            cpu: beyond(quota.cpu, wanted.cpu, left.cpu),
            memory: beyond(quota.memory, wanted.memory, left.memory),
            gpu: beyond(quota.gpu, wanted.gpu, left.gpu),
        }
    }

    /// As many of its workspace run as may.
    fn most_run(&self, key: &JobKey, outlook: &Outlook) -> Option<u64> {
        let running = self.left_of_quota(&key.workspace, outlook).1;
        self.quota(&key.workspace)?.running.filter(|most| running >= *most)
    }

    /// Who of its workspace has what its quota leaves too little of.
    fn quota_holders<'a>(&self, key: &JobKey, outlook: &'a Outlook, standing: &Standing) -> Vec<&'a Holder> {
        let beyond = self.beyond_left(key, outlook, standing);
        // More has changed than has been looked at, or how many run is what keeps it.
        let is_any = beyond == Amount::default() || self.most_run(key, outlook).is_some();
        let has_such = |held: &Amount| {
            (beyond.cpu > 0 && held.cpu > 0)
                || (beyond.memory > 0 && held.memory > 0)
                || (beyond.gpu > 0 && held.gpu > 0)
        };
        outlook.holders_in(&key.workspace).filter(|holder| is_any || has_such(&holder.amount)).collect()
    }

    fn quota_reason(&self, key: &JobKey, outlook: &Outlook, standing: &Standing) -> String {
        let workspace = &key.workspace;
        let held = named(workspace, &self.quota_holders(key, outlook, standing));
        if let Some(most) = self.most_run(key, outlook) {
            return format!(
                "waits for one of {held} to end: {most} job(s) of workspace {workspace} may run at a time \
                 (workspaces.{workspace}.running)"
            );
        }
        let beyond = self.beyond_left(key, outlook, standing);
        let quota = self.quota(workspace).copied().unwrap_or_default();
        let (wanted, left) = left_told(workspace, &beyond, &self.left_by_quota(key, outlook), &quota);
        // More has changed than has been looked at.
        let wanted = if wanted.is_empty() { standing.wanted.to_string() } else { wanted.join(" and ") };
        let left = if left.is_empty() { format!("workspaces.{workspace} leaves less") } else { left.join(", ") };
        format!("waits for {wanted}: {left}; the rest is held by {held}")
    }

    /// Who uses cards and is no job, where it is cards that it waits for.
    fn strangers_before(&self, cause: &str, standing: &Standing) -> Vec<StrangerReport> {
        if cause == "quota" || standing.of_cards.state == CardsFor::Free {
            return Vec::new();
        }
        let sought = Sought::of(&standing.wishes);
        match &self.listed {
            Some(listed) => listed.of(&sought).strangers.get_or_init(|| self.strangers(&sought)).clone(),
            None => self.strangers(&sought),
        }
    }
}

/// The first in the queue, if it is another; where it is not, more has changed than has been looked at.
fn first_before<'a>(key: &JobKey, outlook: &'a Outlook) -> Option<&'a JobKey> {
    outlook.first().first().filter(|first| *first != key)
}

/// What is wanted beyond a quota, and what of the quota is left of each.
fn left_told(workspace: &WorkspaceName, beyond: &Amount, left: &Amount, quota: &Quota) -> (Vec<String>, Vec<String>) {
    let of =
        |what: &str, left: String, limit: String| format!("{left} of {limit} left by workspaces.{workspace}.{what}");
    let cards = quota.gpu.filter(|_| beyond.gpu > 0).map(|limit| {
        let wanted = format!("{} GPU(s)", CardAmount(beyond.gpu));
        (wanted, of("gpu", CardAmount(left.gpu).to_string(), limit.to_string()))
    });
    let cpu = quota.cpu.filter(|_| beyond.cpu > 0).map(|limit| {
        (format!("{} cpu", Cpu(beyond.cpu)), of("cpu", Cpu(left.cpu).to_string(), Cpu(limit).to_string()))
    });
    let memory = quota.memory.filter(|_| beyond.memory > 0).map(|limit| {
        let wanted = format!("{} of memory", Bytes(beyond.memory).told());
        (wanted, of("memory", Bytes(left.memory).told_beside(beyond.memory), Bytes(limit).told()))
    });
    [cards, cpu, memory].into_iter().flatten().unzip()
}

fn cause(why: Option<&Why>) -> &'static str {
    match why {
        Some(Why::Room) => "room",
        Some(Why::Quota) => "quota",
        Some(Why::Port { .. }) => "port",
        Some(Why::Addresses) => "addresses",
        None => "gpu",
    }
}

fn is_lacking(standing: &Standing) -> bool {
    matches!(standing.of_cards.state, CardsFor::Lacking(_))
}

/// Somebody holds what it lacks.
fn is_held(outlook: &Outlook, standing: &Standing) -> bool {
    outlook.holders_for(standing).next().is_some()
}

fn lacking<'a>(outlook: &'a Outlook, standing: &Standing) -> Vec<&'a Holder> {
    outlook.holders_for(standing).collect()
}

fn cards(standing: &Standing, others: &str) -> String {
    let scarce = standing.of_cards.state.scarce();
    let (has, but) = match scarce {
        [one] if one.wish.is_plain() => (one.there.to_string(), ""),
        [one] => (format!("{} such", one.there), ""),
        several => (there_are(several), not_together(several)),
    };
    format!("waits for {}: this machine has {has} that can be used now{but}{others}", wanted_of(scarce))
}

/// What is wanted of the sorts that there is too little of.
fn wanted_of(scarce: &[Scarce]) -> String {
    let wishes: Vec<Wish> = scarce.iter().map(|one| one.wish.clone()).collect();
    plan::described(&wishes)
}

/// How many of each sort.
fn there_are(scarce: &[Scarce]) -> String {
    let told: Vec<String> = scarce.iter().map(|one| plan::so_many(&one.wish, one.there)).collect();
    told.join(" and ")
}

/// Of each there is enough for itself alone.
fn not_together(scarce: &[Scarce]) -> &'static str {
    if scarce.iter().all(Scarce::is_there) { ", but not all of them together" } else { "" }
}

/// What there is too little of and who has it come first: a list of many shows only the beginning.
fn room(key: &JobKey, outlook: &Outlook, standing: &Standing) -> String {
    let holders = lacking(outlook, standing);
    let held = if holders.is_empty() { "jobs that are starting".to_owned() } else { named(&key.workspace, &holders) };
    format!("waits for {}, held by {held}; free: {}", scarce(outlook, standing), free(outlook, standing))
}

fn scarce(outlook: &Outlook, standing: &Standing) -> String {
    let (wanted, free) = (&standing.wanted, &outlook.free);
    let cpu = (wanted.cpu > free.cpu).then(|| format!("{} cpu", Cpu(wanted.cpu)));
    let memory = (wanted.memory > free.memory).then(|| format!("{} of memory", Bytes(wanted.memory).told()));
    let of_cards = standing.of_cards.state.scarce();
    let cards = (!of_cards.is_empty()).then(|| wanted_of(of_cards));
    let scarce: Vec<String> = [cards, cpu, memory].into_iter().flatten().collect();
    // More has changed than has been looked at.
    if scarce.is_empty() { standing.wanted.to_string() } else { scarce.join(" and ") }
}

/// Of cards where these are what it waits for, also if there are none.
fn free(outlook: &Outlook, standing: &Standing) -> String {
    let rest = Amount { gpu: 0, ..outlook.free };
    match &standing.of_cards.state {
        CardsFor::Held(scarce) => match scarce.as_ref() {
            [one] if one.wish.is_plain() => format!("{rest}, {} GPU(s)", one.there),
            [one] => format!("{rest}, {} of these", one.there),
            several => format!("{rest}, {}{}", there_are(several), not_together(several)),
        },
        CardsFor::Free | CardsFor::Lacking(_) => rest.to_string(),
    }
}

/// As [`free`], as an amount, of cards what it could use: to whoever wants whole ones parts of them are none.
fn free_to(outlook: &Outlook, standing: &Standing) -> Amount {
    let gpu = if standing.wishes.is_empty() { outlook.free.gpu } else { standing.of_cards.free };
    Amount { gpu, ..outlook.free }
}

fn port_reason(key: &JobKey, port: u16, holder: &JobKey, how: Holding) -> String {
    let holder = seen_from(&key.workspace, holder);
    let how = match how {
        Holding::Has => "holds",
        Holding::First => "is to have first",
    };
    format!("waits for port {port} of this machine, which {holder} {how}; leave `begin` out to be given a free one")
}

/// A job by its name, or by its workspace where that is another one.
fn seen_from(workspace: &WorkspaceName, job: &JobKey) -> String {
    match job.workspace == *workspace {
        true => job.to_string(),
        false => format!("a job of workspace {}", job.workspace),
    }
}

/// What other workspaces hold, each together.
fn of_others<'a>(own: &WorkspaceName, holders: &[&'a Holder]) -> BTreeMap<&'a WorkspaceName, (usize, Amount)> {
    let mut out: BTreeMap<&WorkspaceName, (usize, Amount)> = BTreeMap::new();
    for holder in holders.iter().filter(|holder| holder.key.workspace != *own) {
        let (jobs, amount) = out.entry(&holder.key.workspace).or_default();
        *jobs += 1;
        *amount = amount.plus(&holder.amount);
    }
    out
}

fn named(own: &WorkspaceName, holders: &[&Holder]) -> String {
    let mut jobs = holders.iter().filter(|holder| holder.key.workspace == *own);
    let mut parts: Vec<String> = jobs.by_ref().take(NAMED).map(|holder| holder.key.to_string()).collect();
    let more = jobs.count();
    if more > 0 {
        parts.push(format!("{more} more of workspace {own}"));
    }
    for (workspace, (jobs, amount)) in of_others(own, holders) {
        parts.push(format!("{jobs} job(s) of workspace {workspace} ({})", short(&amount)));
    }
    match parts.as_slice() {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The cards where there are some, else the cores.
fn short(amount: &Amount) -> String {
    match amount.gpu {
        0 => format!("{} cpu", Cpu(amount.cpu)),
        gpu => format!("{} GPU(s)", CardAmount(gpu)),
    }
}

fn told(own: &WorkspaceName, holders: &[&Holder]) -> Vec<HolderReport> {
    let by_name = holders.iter().filter(|holder| holder.key.workspace == *own).take(TOLD).map(|holder| HolderReport {
        workspace: own.to_string(),
        job: Some(holder.key.job.to_string()),
        jobs: 1,
        holds: report(&holder.amount),
        until: holder.until.map(|until| until.to_string()),
    });
    let others = of_others(own, holders).into_iter().map(|(workspace, (jobs, amount))| HolderReport {
        workspace: workspace.to_string(),
        job: None,
        jobs,
        holds: report(&amount),
        until: None,
    });
    by_name.chain(others).collect()
}

fn report(amount: &Amount) -> AmountReport {
    AmountReport { cpu: amount.cpu as f64 / 1000.0, memory: amount.memory, gpu: amount.gpu as f64 / 1000.0 }
}
