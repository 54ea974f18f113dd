//! What is set aside for a run that is wanted and cannot begin yet, since another one is not over or as many wait as may: its
//! code and the versions of its data, as they are when it is wanted. It sees these, whatever becomes of them until it begins.

use std::collections::BTreeMap;

use super::world::Job;
use super::{Reconciler, Spec, Work, identity_of};
use crate::engine::{EngineError, Prepare};
use crate::ids::JobKey;
use crate::spec::JobSpec;
use crate::store::Store;
use crate::store::record::{AsideRecord, SourceRecord};
use crate::sys::given_up::GivenUp;

/// What is under way of that, by its numbers; it is done again by a daemon that starts.
#[derive(Debug, Default)]
pub(super) struct Asides {
    asked: Option<u64>,
    under_way: BTreeMap<u64, GivenUp>,
}

impl Asides {
    pub(super) fn under_way(&self, number: u64) -> Option<GivenUp> {
        self.under_way.get(&number).cloned()
    }
}

impl Job {
    /// The version of which a run is wanted that cannot begin yet, where there is something to be set aside for it.
    fn put_off(&self) -> Option<(&SourceRecord, &Spec)> {
        let is_put_off = self.follows().is_some() || self.record.turned_away.is_some();
        let next = self.record.source.as_ref().zip(self.spec.as_ref()).filter(|_| is_put_off);
        next.filter(|(_, spec)| spec.names_what_may_change())
    }

    /// The open run is to be made of what is not there yet.
    pub(super) fn is_being_set_aside(&self) -> bool {
        let aside = self.open_run().and_then(|run| run.record.aside);
        aside.is_some_and(|number| self.asides.under_way.contains_key(&number))
    }

    /// What is set aside for the next run was asked for, and is not put off until there is room.
    pub(super) fn has_asked_for_aside(&self) -> bool {
        self.record.aside.as_ref().is_some_and(|aside| self.asides.asked == Some(aside.number))
    }

    fn has_aside(&self, number: u64) -> bool {
        let of_run = self.open_run().filter(|run| !run.record.prepared).and_then(|run| run.record.aside);
        self.record.aside.as_ref().map(|aside| aside.number).into_iter().chain(of_run).any(|has| has == number)
    }
}

fn is_of(aside: &AsideRecord, source: &SourceRecord) -> bool {
    aside.meaning == source.meaning && aside.owner == source.owner
}

impl<S: Store> Reconciler<S> {
    /// Brings what is set aside for a job's next run in line with its record.
    pub(super) fn set_aside(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get(key) else { return };
        let wanted = job.put_off().map(|(source, _)| (source.meaning.clone(), source.owner));
        let has = job.record.aside.as_ref().map(|aside| (aside.meaning.clone(), aside.owner));
        if has != wanted {
            self.let_aside_go(key);
            if let Some((meaning, owner)) = wanted {
                self.counters.order += 1;
                self.counters_changed = true;
                let aside = AsideRecord { number: self.counters.order, meaning, owner };
                self.jobs.get_mut(key).into_iter().for_each(|job| job.record.aside = Some(aside.clone()));
                self.dirty.insert(key.clone());
            }
        }
        self.ask_for_aside(key);
    }

    /// Not while there is little room, which it takes as well.
    fn ask_for_aside(&mut self, key: &JobKey) {
        if self.is_low_on_disk() {
            return;
        }
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(number) = job.record.aside.as_ref().map(|aside| aside.number) else { return };
        let run = job.record.last_run + 1;
        let Some((source, spec)) = job.put_off().filter(|_| job.asides.asked != Some(number)) else { return };
        let given_up = GivenUp::default();
        let prepare = Prepare {
            identity: identity_of(key, run, source.owner.uid, 0),
            owner: source.owner,
            spec: JobSpec::clone(spec),
            text: source.text.clone(),
            given_up: given_up.clone(),
            aside: None,
        };
        job.asides.asked = Some(number);
        job.asides.under_way.insert(number, given_up);
        self.works.push(Work::SetAside { key: key.clone(), number, prepare });
    }

    pub(super) fn aside_set(&mut self, key: &JobKey, run: u32, number: u64, result: Result<(), EngineError>) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.asides.under_way.remove(&number);
        if !job.has_aside(number) {
            self.works.push(Work::DropAside { key: key.clone(), run, number });
            return;
        }
        if let Err(error) = result {
            self.note(key, format!("run {run} sees code and data as they are when it begins: {error}"));
        }
        if self
            .jobs
            .get(key)
            .and_then(Job::open_run)
            .is_some_and(|run| run.is_unprepared() && !run.awaits_preparation())
        {
            self.prepare(key);
        }
    }

    /// The number of what the run that begins now is made of, if it is of the same version.
    pub(super) fn take_aside(&mut self, key: &JobKey, source: &SourceRecord) -> Option<u64> {
        let job = self.jobs.get_mut(key)?;
        match job.record.aside.take_if(|aside| is_of(aside, source)) {
            Some(aside) => Some(aside.number),
            None => {
                self.let_aside_go(key);
                None
            }
        }
    }

    pub(super) fn let_aside_go(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(AsideRecord { number, .. }) = job.record.aside.take() else { return };
        self.dirty.insert(key.clone());
        let run = job.record.last_run + 1;
        match job.asides.under_way.get(&number) {
            // What is there all the same goes when that is over.
            Some(given_up) => self.works.push(Work::GiveUp(given_up.clone())),
            None => self.works.push(Work::DropAside { key: key.clone(), run, number }),
        }
    }
}
