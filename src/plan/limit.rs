//! One limit on what runs, the machine's or that of a workspace: its room, and what is kept for the first run that it holds up.
//!
//! Backfill is EASY's: for the first run that does not fit a time is reckoned at which it will, from how long what runs
//! takes. Later runs start before it only if they end by then, or in what it leaves over. A run of which it is not known how
//! long it takes never ends in this reckoning, so it starts only in what is left over for good: no small job starves a big one.

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

/// What the first run that does not fit will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reservation {
    /// When it fits; not known where what is in its way has no end that is known.
    pub(super) at: Option<Timestamp>,
    /// What nobody needs then.
    spare: Load,
}

#[derive(Debug, Clone)]
pub(super) struct Limit {
    now: Timestamp,
    pub(super) capacity: Load,
    /// With when it ends, if that is known.
    held: Vec<(Load, Option<Timestamp>)>,
    pub(super) room: Load,
    pub(super) reservation: Option<Reservation>,
}

impl Limit {
    pub(super) fn new(capacity: Load, now: Timestamp) -> Self {
        Self { now, capacity, held: Vec::new(), room: capacity, reservation: None }
    }

    pub(super) fn hold(&mut self, amount: &Amount, end: Option<Timestamp>) {
        let load = Load::of(*amount);
        self.room = self.room.minus(&load);
        self.held.push((load, end));
    }

    /// Whether an attempt may start, as far as what is reserved goes. Before anything is, every one may ask.
    pub(super) fn admits(&self, amount: &Amount, lasts: Option<Duration>) -> bool {
        self.may_fit(amount) && (self.ends_in_time(lasts) || self.is_spare(amount))
    }

    /// Whether any attempt of this amount may start from now on; room only shrinks while a plan is made.
    pub(super) fn may_fit(&self, amount: &Amount) -> bool {
        self.reservation.is_none() || Load::of(*amount).fits(&self.room)
    }

    pub(super) fn is_spare(&self, amount: &Amount) -> bool {
        self.reservation.is_none_or(|reservation| Load::of(*amount).fits(&reservation.spare))
    }

    pub(super) fn ends_in_time(&self, lasts: Option<Duration>) -> bool {
        let Some(reservation) = &self.reservation else { return true };
        let end = lasts.map(|lasts| later(self.now, lasts));
        end.zip(reservation.at).is_some_and(|(end, at)| end <= at)
    }

    /// An attempt starts.
    pub(super) fn start(&mut self, amount: &Amount, lasts: Option<Duration>) {
        let in_time = self.ends_in_time(lasts);
        self.hold(amount, lasts.map(|lasts| later(self.now, lasts)));
        if let Some(reservation) = self.reservation.as_mut().filter(|_| !in_time) {
            reservation.spare = reservation.spare.minus(&Load::of(*amount));
        }
    }

    /// What is held, and what of it ends when.
    fn ends(&self) -> (Load, Vec<(Timestamp, &Load)>) {
        let nothing = Load { amount: Amount::default(), runs: 0 };
        let held = self.held.iter().fold(nothing, |sum, (load, _)| sum.plus(load));
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

    /// The first run that does not fit is to start as soon as it does.
    pub(super) fn reserve(&mut self, amount: &Amount) {
        let wanted = Load::of(*amount);
        let (mut held, ends) = self.ends();
        let mut at = None;
        for (end, load) in ends {
            if at.is_some_and(|at| end > at) {
                break;
            }
            held = held.minus(load);
            // What ends at the same time is free as well.
            at = at.or(wanted.fits(&self.capacity.minus(&held)).then_some(end));
        }
        self.reservation = Some(Reservation { at, spare: self.capacity.minus(&held).minus(&wanted) });
    }
}

pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}
