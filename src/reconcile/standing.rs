//! What is told of a run that waits in the queue: its place, what it needs, what is free, who holds the rest, and when it should
//! start. Of other workspaces no more than their names and how much they hold.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::Reconciler;
use super::cards::Sought;
use crate::gpu::deck::{CARD, Part, Wish};
use crate::ids::{Bytes, CardAmount, Cpu, JobKey, WorkspaceName};
use crate::plan::outlook::{CardsFor, Holder, Outlook, Standing, Start};
use crate::plan::{self, Amount, Holding, Why};
use crate::report::{AmountReport, HolderReport, WaitReport};
use crate::store::Store;

/// Most jobs of the own workspace that are named.
const NAMED: usize = 3;
/// And that programs are told of.
const TOLD: usize = 20;

/// What all of a list have in common.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Which nobody is given, by what is sought.
    cards: OnceLock<String>,
    slices: OnceLock<String>,
    both: OnceLock<String>,
}

impl Listed {
    fn of(&self, sought: Sought) -> &OnceLock<String> {
        match sought {
            Sought::Cards => &self.cards,
            Sought::Slices => &self.slices,
            Sought::Both => &self.both,
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
        let is_free = standing.cards == CardsFor::Free;
        let others = if is_free { Cow::default() } else { self.cards_told_out_of_use(standing) };
        match !is_held(outlook, standing) && !others.is_empty() {
            true => cards(standing, &others),
            false => format!("{}{others}", room(key, outlook, standing)),
        }
    }

    /// What [`Self::cards_out_of_use`] says, of which a list asks for each that waits.
    fn cards_told_out_of_use(&self, standing: &Standing) -> Cow<'_, str> {
        let sought = Sought::of(&standing.wishes);
        match &self.listed {
            Some(listed) => Cow::Borrowed(listed.of(sought).get_or_init(|| self.cards_out_of_use(sought))),
            None => Cow::Owned(self.cards_out_of_use(sought)),
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
        let quota = self.quota(&key.workspace).copied().unwrap_or_default();
        let (left, running) = self.left_of_quota(&key.workspace, outlook);
        let wanted = &standing.wanted;
        let is_beyond = |limit: Option<u64>, wanted: u64, left: u64| limit.is_some() && wanted > left;
        if is_beyond(quota.cpu, wanted.cpu, left.cpu)
            || is_beyond(quota.memory, wanted.memory, left.memory)
            || is_beyond(quota.gpu, wanted.gpu, left.gpu)
            || quota.running.is_some_and(|most| running >= most)
        {
            return Behind::Quota;
        }
        let has_room = wanted.cpu <= outlook.free.cpu && wanted.memory <= outlook.free.memory;
        if has_room && standing.cards == CardsFor::Free { Behind::Others } else { Behind::Room }
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
            Some(Why::Quota) => {
                let (free, _) = self.left_of_quota(&key.workspace, outlook);
                ("quota", free, outlook.holders_in(&key.workspace).collect())
            }
            None if self.beyond_quota(key, standing).is_some() => {
                ("quota", self.left_of_quota(&key.workspace, outlook).0, Vec::new())
            }
            None if !is_lacking(standing) => match self.behind(key, outlook, standing) {
                Behind::Quota => {
                    let (free, _) = self.left_of_quota(&key.workspace, outlook);
                    ("quota", free, outlook.holders_in(&key.workspace).collect())
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

    fn quota_reason(&self, key: &JobKey, outlook: &Outlook, standing: &Standing) -> String {
        let workspace = &key.workspace;
        let (free, running) = self.left_of_quota(workspace, outlook);
        let quota = self.quota(workspace).copied().unwrap_or_default();
        let holders: Vec<&Holder> = outlook.holders_in(workspace).collect();
        let held = named(workspace, &holders);
        if let Some(limit) = quota.running.filter(|limit| running >= *limit) {
            return format!(
                "waits for one of {held} to end: {limit} job(s) of workspace {workspace} may run at a time \
                 (workspaces.{workspace}.running)"
            );
        }
        format!(
            "waits for {}; by its quota workspace {workspace} may have {free} more (workspaces.{workspace}); the rest is \
             held by {held}",
            standing.wanted
        )
    }
}

/// The first in the queue, if it is another; where it is not, more has changed than has been looked at.
fn first_before<'a>(key: &JobKey, outlook: &'a Outlook) -> Option<&'a JobKey> {
    outlook.first().first().filter(|first| *first != key)
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
    matches!(standing.cards, CardsFor::Lacking { .. })
}

/// Somebody holds what it lacks.
fn is_held(outlook: &Outlook, standing: &Standing) -> bool {
    outlook.holders_for(standing).next().is_some()
}

fn lacking<'a>(outlook: &'a Outlook, standing: &Standing) -> Vec<&'a Holder> {
    outlook.holders_for(standing).collect()
}

fn cards(standing: &Standing, others: &str) -> String {
    let has = match standing.cards {
        CardsFor::Lacking { there } => there,
        CardsFor::Held { free } => free,
        CardsFor::Free => 0,
    };
    let such = if is_plain(&standing.wishes) { "" } else { " such" };
    format!(
        "waits for {}: this machine has {has}{such} that can be used now{others}",
        plan::described(&standing.wishes)
    )
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
    let cards = (standing.cards != CardsFor::Free).then(|| plan::described(&standing.wishes));
    let scarce: Vec<String> = [cards, cpu, memory].into_iter().flatten().collect();
    // More has changed than has been looked at.
    if scarce.is_empty() { standing.wanted.to_string() } else { scarce.join(" and ") }
}

/// Of cards where these are what it waits for, also if there are none.
fn free(outlook: &Outlook, standing: &Standing) -> String {
    let rest = Amount { gpu: 0, ..outlook.free };
    match standing.cards {
        CardsFor::Held { free } if is_plain(&standing.wishes) => format!("{rest}, {free} GPU(s)"),
        CardsFor::Held { free } => format!("{rest}, {free} of these"),
        CardsFor::Free | CardsFor::Lacking { .. } => rest.to_string(),
    }
}

/// As [`free`], as an amount: to whoever wants whole cards parts of them are none.
fn free_to(outlook: &Outlook, standing: &Standing) -> Amount {
    let wants_whole = !standing.wishes.is_empty() && standing.wishes.iter().all(|wish| wish.part == Part::Whole);
    let cards = match standing.cards {
        CardsFor::Held { free } => free,
        CardsFor::Free | CardsFor::Lacking { .. } => outlook.whole_cards,
    };
    if wants_whole { Amount { gpu: cards.saturating_mul(CARD), ..outlook.free } } else { outlook.free }
}

/// It wants whole cards, of whatever kind.
fn is_plain(wishes: &[Wish]) -> bool {
    wishes.iter().all(Wish::is_plain)
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
