//! The runs that wait: by priority and workspace, and among those by age and by what they need.
//!
//! Kept by the reconciler as runs come and go, so that a plan looks at what may start and not at all that waits.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Waiting;
use super::row::{Need, Row};
use crate::gpu::deck::{Part, Sort, Wish};
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
    /// How many runs in it want what, by [`Want`].
    wanted: [usize; 4],
}

/// What a run may want of cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    Any,
    /// Parts of cards, or cards of a kind: to count cards is not enough.
    Certain,
    Shares,
    Slices,
}

impl Want {
    const ALL: [Self; 4] = [Self::Any, Self::Certain, Self::Shares, Self::Slices];

    fn is_of(self, wishes: &[Wish]) -> bool {
        match self {
            Self::Any => !wishes.is_empty(),
            Self::Certain => wishes.iter().any(|wish| !wish.is_plain()),
            Self::Shares => wishes.iter().any(|wish| matches!(wish.part, Part::Share(_))),
            Self::Slices => wishes.iter().any(|wish| matches!(wish.part, Part::Slice(_))),
        }
    }
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
    /// The same by what they need; none is empty.
    pub(super) rows: BTreeMap<Shape, Row>,
}

/// What runs need, but for how much.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) cards: Sort,
    /// They have addresses of their own.
    pub(super) addressed: bool,
}

impl Shape {
    /// With how much of it.
    pub(super) fn of(waiting: &Waiting) -> (Self, Need) {
        let (sort, cards) = Sort::of(&waiting.wishes);
        let need = Need { amount: waiting.amount, cards, lasts: waiting.lasts };
        (Self { cards: sort, addressed: waiting.addresses() > 0 }, need)
    }
}

impl Queue {
    /// Puts a run in its place; a job has one place.
    pub fn insert(&mut self, place: Place, waiting: Waiting) {
        self.remove(&waiting.key);
        self.places.insert(waiting.key.clone(), place);
        let lane = self.lanes.entry((place.priority, waiting.key.workspace.clone())).or_default();
        let (shape, need) = Shape::of(&waiting);
        lane.rows.entry(shape).or_default().insert(place.order, need);
        wants_of(&mut self.wanted, &waiting).for_each(|count| *count += 1);
        lane.runs.insert(place.order, waiting);
    }

    pub fn remove(&mut self, key: &JobKey) {
        let Some(place) = self.places.remove(key) else { return };
        let lane_key = (place.priority, key.workspace.clone());
        let Some(lane) = self.lanes.get_mut(&lane_key) else { return };
        let Some(waiting) = lane.runs.remove(&place.order) else { return };
        wants_of(&mut self.wanted, &waiting).for_each(|count| *count -= 1);
        let (shape, _) = Shape::of(&waiting);
        if let Some(row) = lane.rows.get_mut(&shape) {
            row.remove(place.order);
            if row.is_empty() {
                lane.rows.remove(&shape);
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

    /// Some run in it needs such cards.
    pub fn wants(&self, want: Want) -> bool {
        Want::ALL.iter().zip(self.wanted).any(|(one, count)| *one == want && count > 0)
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

/// The counts of what a run wants.
fn wants_of<'a>(wanted: &'a mut [usize; 4], waiting: &'a Waiting) -> impl Iterator<Item = &'a mut usize> {
    Want::ALL.into_iter().zip(wanted).filter(|(want, _)| want.is_of(&waiting.wishes)).map(|(_, count)| count)
}

impl FromIterator<(Place, Waiting)> for Queue {
    fn from_iter<T: IntoIterator<Item = (Place, Waiting)>>(runs: T) -> Self {
        let mut queue = Self::default();
        runs.into_iter().for_each(|(place, waiting)| queue.insert(place, waiting));
        queue
    }
}
