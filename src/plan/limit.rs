//! One limit on what runs, the machine's or that of a workspace: its room, and what is kept for the first run that it holds up.
//!
//! Backfill is EASY's. For the first run that does not fit a time is reckoned at which it will, from how long what runs takes.
//! Later runs start before it only if they end by then, or in what it leaves over. Of what does not say how long it takes it is
//! guessed that it goes on for as long again as it has run, but what it holds is never taken for left over: a run that may last
//! for ever starts only in what is over for good, so no small job starves a big one.

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

/// When an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By what its file says.
    Said(Timestamp),
    /// It says nothing.
    Guessed(Timestamp),
}

/// What the first run that does not fit will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reservation {
    /// When it should fit; none where it does not fit even when nothing runs.
    pub(super) at: Option<Timestamp>,
    /// What nobody needs then, whatever ends later than it is guessed.
    spare: Load,
}

#[derive(Debug, Clone)]
pub(super) struct Limit {
    now: Timestamp,
    pub(super) capacity: Load,
    held: Vec<(Load, End)>,
    pub(super) room: Load,
    pub(super) reservation: Option<Reservation>,
}

impl Limit {
    pub(super) fn new(capacity: Load, now: Timestamp) -> Self {
        Self { now, capacity, held: Vec::new(), room: capacity, reservation: None }
    }

    pub(super) fn hold(&mut self, amount: &Amount, end: End) {
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
        // As of what has not run yet.
        let end = lasts.map_or(End::Guessed(self.now), |lasts| End::Said(later(self.now, lasts)));
        self.hold(amount, end);
        if let Some(reservation) = self.reservation.as_mut().filter(|_| !in_time) {
            reservation.spare = reservation.spare.minus(&Load::of(*amount));
        }
    }

    fn held(&self, which: impl Fn(&End) -> bool) -> Load {
        let nothing = Load { amount: Amount::default(), runs: 0 };
        self.held.iter().filter(|(_, end)| which(end)).fold(nothing, |sum, (load, _)| sum.plus(load))
    }

    fn ends(&self, of: impl Fn(&End) -> Option<Timestamp>) -> Vec<(Timestamp, &Load)> {
        let mut ends: Vec<_> = self.held.iter().filter_map(|(load, end)| Some((of(end)?, load))).collect();
        ends.sort_by_key(|(end, _)| *end);
        ends
    }

    /// What is free from which time on, as what runs ends; what does not say when never does.
    pub(super) fn free_over_time(&self) -> Vec<(Timestamp, Load)> {
        let mut held = self.held(|_| true);
        let mut out = vec![(self.now, self.capacity.minus(&held))];
        for (end, load) in self.ends(End::said) {
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
        let mut held = self.held(|_| true);
        let fits = |(end, load): (Timestamp, &Load)| {
            held = held.minus(load);
            wanted.fits(&self.capacity.minus(&held)).then_some(end)
        };
        let at = self.ends(|end| Some(end.foreseen())).into_iter().find_map(fits);
        let stays = self.held(|end| end.said().is_none_or(|end| at.is_some_and(|at| end > at)));
        self.reservation = Some(Reservation { at, spare: self.capacity.minus(&stays).minus(&wanted) });
    }
}

impl End {
    pub(super) fn said(&self) -> Option<Timestamp> {
        match self {
            Self::Said(end) => Some(*end),
            Self::Guessed(_) => None,
        }
    }

    fn foreseen(&self) -> Timestamp {
        match self {
            Self::Said(end) | Self::Guessed(end) => *end,
        }
    }
}

pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}
