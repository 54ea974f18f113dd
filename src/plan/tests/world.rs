//! A machine on which jobs come and go as time passes, by what the plan says.

use std::collections::BTreeMap;

use super::*;
use crate::gpu::deck::PieceOf;

pub(super) struct World {
    pub(super) now: u64,
    inventory: Amount,
    /// Where they are looked at one by one.
    cards: Option<Deck>,
    /// With when they end.
    pub(super) live: Vec<(Live, u64)>,
    pub(super) queue: Queue,
    /// How long jobs take, ms.
    lengths: BTreeMap<JobKey, u64>,
    shares: Shares,
    pub(super) quotas: Quotas,
    reserved: Option<JobKey>,
    kept: Option<Kept>,
}

impl World {
    pub(super) fn new(inventory: Amount, cards: Option<Deck>, quotas: Quotas) -> Self {
        Self {
            now: 5000,
            inventory,
            cards,
            live: Vec::new(),
            queue: Queue::default(),
            lengths: BTreeMap::new(),
            shares: Shares::new(Duration::from_secs(3600)),
            quotas,
            reserved: None,
            kept: None,
        }
    }

    /// A job comes that takes so many seconds, if it may.
    pub(super) fn drop_in(&mut self, (place, waiting): (Place, Waiting), takes: u64) {
        let takes = Duration::from_secs(takes);
        let takes = waiting.lasts.map_or(takes, |lasts| lasts.min(takes));
        self.lengths.insert(waiting.key.clone(), takes.as_millis() as u64);
        self.queue.insert(place, waiting);
    }

    pub(super) fn snapshot(&self) -> Snapshot<'_> {
        let live = self.live.iter().map(|(live, _)| live.clone()).collect();
        let one_by_one = |all: &Deck| OneByOne { all: all.clone(), away: Vec::new(), kept: self.kept.clone() };
        Snapshot {
            one_by_one: self.cards.as_ref().map(one_by_one),
            reserved: self.reserved.as_ref(),
            ..snapshot(self.now, self.inventory, live, &self.queue, (&self.shares, &self.quotas))
        }
    }

    /// Starts what may start.
    pub(super) fn pass(&mut self) -> Plan {
        let mut planned = plan(&self.snapshot());
        for step in &planned.steps {
            let Step::Start { key, pieces, .. } = step else { continue };
            let waiting = self.queue.find(key).unwrap().1.clone();
            self.queue.remove(key);
            let attempt = Live {
                key: key.clone(),
                amount: waiting.amount,
                lost: 0,
                pieces: pieces.iter().flatten().flatten().cloned().collect(),
                ports: waiting.ports,
                expected_duration: waiting.expected,
                max_duration: waiting.lasts,
                held_since: Timestamp(self.now),
                running_since: Some(Timestamp(self.now)),
                ..live(0, 0)
            };
            self.live.push((attempt, self.now + self.lengths[key]));
        }
        let for_room = planned.held_up.iter().find(|held_up| held_up.why == Why::Room);
        self.reserved = for_room.map(|held_up| held_up.key.clone());
        self.kept = planned.kept.take();
        planned
    }

    pub(super) fn runs(&self, key: &JobKey) -> bool {
        self.live.iter().any(|(live, _)| live.key == *key)
    }

    /// What of this card is held.
    pub(super) fn held_of(&self, place: usize) -> Vec<&PieceOf> {
        let pieces = self.live.iter().flat_map(|(live, _)| &live.pieces);
        pieces.filter(|piece| piece.place == place).map(|piece| &piece.of).collect()
    }

    pub(super) fn live_in(&self, workspace: &WorkspaceName) -> Vec<&Live> {
        self.live.iter().map(|(live, _)| live).filter(|live| live.key.workspace == *workspace).collect()
    }

    /// Time goes on to the next end; false if nothing runs.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(next) = self.live.iter().map(|(_, end)| *end).min() else { return false };
        self.go_on_to(next);
        true
    }

    pub(super) fn go_on_to(&mut self, now: u64) {
        self.now = now;
        let shares = &mut self.shares;
        self.live.retain(|(live, end)| {
            if *end <= now {
                shares.add(&live.key.workspace, &live.amount, live.held_since, Timestamp(now));
            }
            *end > now
        });
    }
}
