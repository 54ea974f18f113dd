//! One limit on what runs, the machine's or that of a workspace: its room, and what is kept for the first run that it holds up.
//!
//! Backfill is EASY's: for the first run that does not fit a time is reckoned at which it will, from how long what runs
//! may take. Later runs start before it only if they are stopped by then, or in what it leaves over; so that time comes no
//! later by them. A run that nothing stops never ends in this reckoning, so it starts only in what is left over for good: no
//! small job starves a big one.

use std::time::Duration;

use super::Amount;
use crate::ids::Timestamp;

/// What attempts hold of a limit, or may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) amount: Amount,
    /// Jobs that run.
    pub(super) runs: u64,
}

impl Load {
    const NOTHING: Self = Self { amount: Amount { cpu: 0, memory: 0, gpu: 0 }, runs: 0 };

    /// That of one attempt.
    pub(super) fn of(amount: Amount) -> Self {
        Self { amount, runs: 1 }
    }

    pub(super) fn fits(&self, room: &Self) -> bool {
        self.amount.fits(&room.amount) && self.runs <= room.runs
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        Self { amount: self.amount.minus(&other.amount), runs: self.runs.saturating_sub(other.runs) }
    }

    fn plus(&self, other: &Self) -> Self {
        Self { amount: self.amount.plus(&other.amount), runs: self.runs.saturating_add(other.runs) }
    }
}

/// What a run that does not fit yet will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reservation {
    /// When it fits; not known where what is in its way has no end that is known.
    at: Option<Timestamp>,
    /// What nobody needs then.
    spare: Load,
}

impl Reservation {
    /// Whether what ends then, if ever, has ended when the place is needed.
    fn is_after(&self, end: Option<Timestamp>) -> bool {
        end.zip(self.at).is_some_and(|(end, at)| end <= at)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Limit {
    now: Timestamp,
    pub(super) capacity: Load,
    /// With when it ends, if that is known.
    held: Vec<(Load, Option<Timestamp>)>,
    pub(super) room: Load,
    /// Of the first run that this limit holds up, and of a workspace's also that of its run that the machine holds up.
    reservations: Vec<Reservation>,
}

impl Limit {
    pub(super) fn new(capacity: Load, now: Timestamp) -> Self {
        Self { now, capacity, held: Vec::new(), room: capacity, reservations: Vec::new() }
    }

    pub(super) fn hold(&mut self, amount: &Amount, end: Option<Timestamp>) {
        let load = Load::of(*amount);
        self.room = self.room.minus(&load);
        self.held.push((load, end));
    }

    /// Whether an attempt may start, as far as what is reserved goes. Before anything is, every one may ask.
    pub(super) fn admits(&self, amount: &Amount, lasts: Option<Duration>) -> bool {
        let (load, end) = (Load::of(*amount), self.end_of(lasts));
        let spares = |reservation: &Reservation| reservation.is_after(end) || load.fits(&reservation.spare);
        self.may_fit(amount) && self.reservations.iter().all(spares)
    }

    /// Whether any attempt of this amount may start from now on; room only shrinks while a plan is made.
    pub(super) fn may_fit(&self, amount: &Amount) -> bool {
        self.reservations.is_empty() || Load::of(*amount).fits(&self.room)
    }

    fn end_of(&self, lasts: Option<Duration>) -> Option<Timestamp> {
        lasts.map(|lasts| later(self.now, lasts))
    }

    /// An attempt starts.
    pub(super) fn start(&mut self, amount: &Amount, lasts: Option<Duration>) {
        let end = self.end_of(lasts);
        self.hold(amount, end);
        for reservation in self.reservations.iter_mut().filter(|reservation| !reservation.is_after(end)) {
            reservation.spare = reservation.spare.minus(&Load::of(*amount));
        }
    }

    /// What is held, and what of it ends when.
    fn ends(&self) -> (Load, Vec<(Timestamp, &Load)>) {
        let held = self.held.iter().fold(Load::NOTHING, |sum, (load, _)| sum.plus(load));
        let mut ends: Vec<_> = self.held.iter().filter_map(|(load, end)| Some(((*end)?, load))).collect();
        ends.sort_by_key(|(end, _)| *end);
        (held, ends)
    }

    /// What is free from which time on, as what runs ends.
    pub(super) fn free_over_time(&self) -> Vec<(Timestamp, Load)> {
        let (mut held, ends) = self.ends();
        let mut out = vec![(self.now, self.capacity.minus(&held))];
        for (end, load) in ends {
            held = held.minus(load);
            let free = self.capacity.minus(&held);
            match out.last_mut() {
                Some((at, last)) if *at >= end => *last = free,
                _ => out.push((end, free)),
            }
        }
        out
    }

    /// When there is room, as what runs ends.
    pub(super) fn fits_at(&self, amount: &Amount) -> Option<Timestamp> {
        let wanted = Load::of(*amount);
        self.free_over_time().into_iter().find(|(_, free)| wanted.fits(free)).map(|(at, _)| at)
    }

    /// The first run that does not fit is to start as soon as it does; says when that is.
    pub(super) fn reserve(&mut self, amount: &Amount) -> Option<Timestamp> {
        let at = self.fits_at(amount);
        self.keep(amount, at);
        at
    }

    /// Keeps room for a run that starts then; when is not known where absent.
    pub(super) fn keep(&mut self, amount: &Amount, at: Option<Timestamp>) {
        let lives_on = |end: Option<Timestamp>| end.is_none_or(|end| at.is_some_and(|at| end > at));
        let held =
            self.held.iter().filter(|(_, end)| lives_on(*end)).fold(Load::NOTHING, |sum, (load, _)| sum.plus(load));
        let spare = self.capacity.minus(&held).minus(&Load::of(*amount));
        self.reservations.push(Reservation { at, spare });
    }
}

pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}
