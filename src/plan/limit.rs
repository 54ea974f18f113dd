//! One limit on what runs, the machine's or that of a workspace: its room, and what is kept for the first run that it holds up.
//!
//! Backfill is EASY's: for the first run that does not fit a time is reckoned at which it will, by when what runs is stopped.
//! Later runs start before it only if they are stopped by then, or in what it leaves over; so that time comes no later by them.
//! Of what nothing stops it is guessed when it ends, but what it holds is never taken for left over: a run that may last for ever
//! starts only in what is over for good, so no small job starves a big one.

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
    pub(super) const NOTHING: Self = Self { amount: Amount { cpu: 0, memory: 0, gpu: 0 }, runs: 0 };

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

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self { amount: self.amount.plus(&other.amount), runs: self.runs.saturating_add(other.runs) }
    }
}

/// When an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Then it is stopped.
    Said(Timestamp),
    /// Nothing stops it.
    Guessed(Timestamp),
}

/// What a run that does not fit yet will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reservation {
    /// When it should fit; not known, or now, where absent.
    pub(super) at: Option<Timestamp>,
    /// What nobody needs then, whatever ends later than it is guessed.
    pub(super) spare: Load,
}

impl Reservation {
    /// Whether what ends then, if ever, has ended when the place is needed.
    pub(super) fn is_after(&self, end: Option<Timestamp>) -> bool {
        end.zip(self.at).is_some_and(|(end, at)| end <= at)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Limit {
    now: Timestamp,
    pub(super) capacity: Load,
    held: Vec<(Load, End)>,
    pub(super) room: Load,
    /// Of the first run that this limit holds up, and of a workspace's also that of its run that the machine holds up.
    pub(super) reservations: Vec<Reservation>,
}

impl Limit {
    pub(super) fn new(capacity: Load, now: Timestamp) -> Self {
        Self { now, capacity, held: Vec::new(), room: capacity, reservations: Vec::new() }
    }

    pub(super) fn hold(&mut self, amount: &Amount, end: End) {
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

    /// Something is reserved.
    pub(super) fn is_reserved(&self) -> bool {
        !self.reservations.is_empty()
    }

    /// Whether any attempt of this amount may start from now on; room only shrinks while a plan is made.
    fn may_fit(&self, amount: &Amount) -> bool {
        self.reservations.is_empty() || Load::of(*amount).fits(&self.room)
    }

    fn end_of(&self, lasts: Option<Duration>) -> Option<Timestamp> {
        lasts.map(|lasts| later(self.now, lasts))
    }

    /// An attempt starts.
    pub(super) fn start(&mut self, amount: &Amount, lasts: Option<Duration>) {
        let end = self.end_of(lasts);
        // As of what has not run yet.
        self.hold(amount, end.map_or(End::Guessed(self.now), End::Said));
        for reservation in self.reservations.iter_mut().filter(|reservation| !reservation.is_after(end)) {
            reservation.spare = reservation.spare.minus(&Load::of(*amount));
        }
    }

    fn held(&self, which: impl Fn(&End) -> bool) -> Load {
        self.held.iter().filter(|(_, end)| which(end)).fold(Load::NOTHING, |sum, (load, _)| sum.plus(load))
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

    /// When there should be room, as what runs ends.
    pub(super) fn fits_at(&self, amount: &Amount) -> Option<Timestamp> {
        let wanted = Load::of(*amount);
        let mut held = self.held(|_| true);
        let fits = |(end, load): (Timestamp, &Load)| {
            held = held.minus(load);
            wanted.fits(&self.capacity.minus(&held)).then_some(end)
        };
        self.ends(|end| Some(end.foreseen())).into_iter().find_map(fits)
    }

    /// When there is room, now or as what runs ends.
    pub(super) fn has_room_at(&self, amount: &Amount) -> Option<Timestamp> {
        if Load::of(*amount).fits(&self.room) { Some(self.now) } else { self.fits_at(amount) }
    }

    /// The first run that does not fit is to start as soon as it does, which should be `at`.
    pub(super) fn reserve(&mut self, amount: &Amount, at: Option<Timestamp>) {
        let stays = self.held(|end| end.said().is_none_or(|end| at.is_some_and(|at| end > at)));
        let spare = self.capacity.minus(&stays).minus(&Load::of(*amount));
        self.reservations.push(Reservation { at, spare });
    }

    /// Keeps what a run needs that has room here and waits for something else: nobody else has it from now on.
    pub(super) fn keep(&mut self, amount: &Amount) {
        let spare = self.room.minus(&Load::of(*amount));
        self.reservations.push(Reservation { at: None, spare });
    }
}

impl End {
    pub(super) fn said(&self) -> Option<Timestamp> {
        match self {
            Self::Said(end) => Some(*end),
            Self::Guessed(_) => None,
        }
    }

    pub(super) fn foreseen(&self) -> Timestamp {
        match self {
            Self::Said(end) | Self::Guessed(end) => *end,
        }
    }
}

pub(super) fn later(time: Timestamp, by: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}
