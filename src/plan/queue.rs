//! The runs that wait: by priority and workspace, and among those by age and by what they need.
//!
//! Kept by the reconciler as runs come and go, so that a plan looks at what may start and not at all that waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Amount, Waiting};
use crate::gpu::deck::Wish;
use crate::ids::{JobKey, WorkspaceName};
use crate::spec::Priority;

/// A place in the queue: the higher priority first, then, within a workspace, the earlier order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub priority: Reverse<Priority>,
    /// No two runs have the same.
    pub order: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Queue {
    lanes: BTreeMap<(Reverse<Priority>, WorkspaceName), Lane>,
    places: BTreeMap<JobKey, Place>,
}

/// The runs of one priority.
pub(super) struct Class<'a> {
    pub(super) priority: Reverse<Priority>,
    pub(super) lanes: Vec<(&'a WorkspaceName, &'a Lane)>,
}

/// The runs of one priority and one workspace.
#[derive(Debug, Clone, Default)]
pub(super) struct Lane {
    /// By age.
    pub(super) runs: BTreeMap<u64, Waiting>,
    /// The same by what they need.
    pub(super) shapes: BTreeMap<Shape, Alike>,
}

/// What runs need: those of one shape fit or do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) amount: Amount,
    pub(super) wishes: Arc<[Wish]>,
    /// They have addresses of their own.
    pub(super) addressed: bool,
}

impl Shape {
    pub(super) fn of(waiting: &Waiting) -> Self {
        Self { amount: waiting.amount, wishes: waiting.wishes.clone(), addressed: waiting.addresses() > 0 }
    }
}

/// The runs of one shape.
#[derive(Debug, Clone, Default)]
pub(super) struct Alike {
    /// By age, with how long they may take.
    pub(super) orders: BTreeMap<u64, Option<Duration>>,
    /// The same by how long that is; those that nothing stops come last.
    by_length: BTreeSet<(Duration, u64)>,
}

impl Alike {
    fn insert(&mut self, order: u64, lasts: Option<Duration>) {
        self.orders.insert(order, lasts);
        self.by_length.insert((lasts.unwrap_or(Duration::MAX), order));
    }

    fn remove(&mut self, order: u64) {
        if let Some(lasts) = self.orders.remove(&order) {
            self.by_length.remove(&(lasts.unwrap_or(Duration::MAX), order));
        }
    }

    /// How long the shortest of them may take.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.by_length.first().map(|(lasts, _)| *lasts).filter(|lasts| *lasts < Duration::MAX)
    }
}

impl Queue {
    /// Puts a run in its place; a job has one place.
    pub fn insert(&mut self, place: Place, waiting: Waiting) {
        self.remove(&waiting.key);
        self.places.insert(waiting.key.clone(), place);
        let lane = self.lanes.entry((place.priority, waiting.key.workspace.clone())).or_default();
        lane.shapes.entry(Shape::of(&waiting)).or_default().insert(place.order, waiting.lasts);
        lane.runs.insert(place.order, waiting);
    }

    pub fn remove(&mut self, key: &JobKey) {
        let Some(place) = self.places.remove(key) else { return };
        let lane_key = (place.priority, key.workspace.clone());
        let Some(lane) = self.lanes.get_mut(&lane_key) else { return };
        let Some(waiting) = lane.runs.remove(&place.order) else { return };
        let shape = Shape::of(&waiting);
        if let Some(alike) = lane.shapes.get_mut(&shape) {
            alike.remove(place.order);
            if alike.orders.is_empty() {
                lane.shapes.remove(&shape);
            }
        }
        if lane.runs.is_empty() {
            self.lanes.remove(&lane_key);
        }
    }

    pub fn contains(&self, key: &JobKey) -> bool {
        self.places.contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// No run in it needs a card.
    pub fn wants_no_cards(&self) -> bool {
        self.lanes.values().all(|lane| lane.shapes.keys().all(|shape| shape.wishes.is_empty()))
    }

    /// Some run in it needs such cards.
    pub fn wants(&self, such: impl Fn(&Wish) -> bool) -> bool {
        self.lanes.values().any(|lane| lane.shapes.keys().any(|shape| shape.wishes.iter().any(&such)))
    }

    pub fn keys(&self) -> impl Iterator<Item = &JobKey> {
        self.places.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn find(&self, key: &JobKey) -> Option<(Place, &Waiting)> {
        let place = self.places.get(key)?;
        let lane = self.lanes.get(&(place.priority, key.workspace.clone()))?;
        Some((*place, lane.runs.get(&place.order)?))
    }

    /// The highest priority first.
    pub(super) fn classes(&self) -> Vec<Class<'_>> {
        let mut out: Vec<Class<'_>> = Vec::new();
        for ((priority, workspace), lane) in &self.lanes {
            match out.last_mut().filter(|class| class.priority == *priority) {
                Some(class) => class.lanes.push((workspace, lane)),
                None => out.push(Class { priority: *priority, lanes: vec![(workspace, lane)] }),
            }
        }
        out
    }

    /// Runs of several workspaces wait.
    pub(super) fn is_shared(&self) -> bool {
        let mut workspaces = self.lanes.keys().map(|(_, workspace)| workspace);
        workspaces.next().is_some_and(|first| workspaces.any(|other| other != first))
    }
}

impl FromIterator<(Place, Waiting)> for Queue {
    fn from_iter<T: IntoIterator<Item = (Place, Waiting)>>(runs: T) -> Self {
        let mut queue = Self::default();
        runs.into_iter().for_each(|(place, waiting)| queue.insert(place, waiting));
        queue
    }
}
