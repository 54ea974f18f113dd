//! Numbers of the entries that the kernel knows; no input or output.
//!
//! ```text
//!             lookup                       unlink, replaced by a rename,
//!   (unknown) ──────▶ named in a directory ─────────────────────────────▶ nameless
//!                          │    or another identity under its name            │
//!                          └────────── forgotten, and no node below ──────────┴──▶ gone
//! ```
//!
//! A node is what was found under its names: one (parent, name), or several of a file with hard links. A node lives
//! until the kernel has forgotten every lookup of it and no node below it lives; the root is number 1 and lives forever. A
//! number is never used twice, so generations are not needed. What is nameless, or below something nameless, has no path
//! any more.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

use crate::attr::Kind;
use crate::kept::{KeptInodes, KeptNode};
use crate::tree::RelPath;

pub(crate) const ROOT: u64 = 1;

/// What a name led to. Two different ones under one name are two files, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Identity {
    Stored {
        dev: u64,
        ino: u64,
        kind: Kind,
        /// When it was made, ns since 1970, where the file system tells: numbers are given to other files again.
        born: Option<i64>,
    },
    Generated,
}

impl Identity {
    /// Whether names that lead to it lead to one file for sure.
    fn has_links(self) -> bool {
        matches!(self, Self::Stored { kind, born: Some(_), .. } if kind != Kind::Directory)
    }
}

#[derive(Debug)]
pub(crate) struct InodeTable {
    nodes: HashMap<u64, Node>,
    /// Of files that may have several names.
    by_identity: HashMap<Identity, u64>,
    next: u64,
}

type Place = (u64, Box<OsStr>);

/// Parents and names, the one that was looked up last at the end; none of the root and of the nameless. Nearly all have
/// one, for which this is small.
#[derive(Debug)]
enum Places {
    None,
    One(Place),
    Several(Vec<Place>),
}

impl Places {
    fn as_slice(&self) -> &[Place] {
        match self {
            Self::None => &[],
            Self::One(place) => std::slice::from_ref(place),
            Self::Several(places) => places,
        }
    }

    fn last(&self) -> Option<&Place> {
        self.as_slice().last()
    }

    fn push(&mut self, place: Place) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(place),
            Self::One(first) => Self::Several(vec![first, place]),
            Self::Several(mut places) => {
                places.push(place);
                Self::Several(places)
            }
        };
    }

    fn remove(&mut self, parent: u64, name: &OsStr) {
        let is_it = |place: &Place| (place.0, &*place.1) == (parent, name);
        *self = match std::mem::replace(self, Self::None) {
            Self::One(place) if is_it(&place) => Self::None,
            Self::Several(mut places) => {
                places.retain(|place| !is_it(place));
                Self::Several(places)
            }
            other => other,
        };
    }

    /// It was looked up.
    fn touch(&mut self, parent: u64, name: &OsStr) {
        let Self::Several(places) = self else { return };
        if let Some(at) = places.iter().position(|place| (place.0, &*place.1) == (parent, name)) {
            places[at..].rotate_left(1);
        }
    }
}

#[derive(Debug)]
struct Node {
    places: Places,
    identity: Identity,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    /// Of directories that hold something; most nodes are files.
    children: Option<Box<Children>>,
}

type Children = HashMap<Box<OsStr>, u64>;

impl Node {
    fn new(identity: Identity) -> Self {
        Self { places: Places::None, identity, lookups: 0, children: None }
    }

    fn child(&self, name: &OsStr) -> Option<u64> {
        self.children.as_ref()?.get(name).copied()
    }

    fn take_child(&mut self, name: &OsStr) -> Option<u64> {
        let children = self.children.as_mut()?;
        let taken = children.remove(name);
        if children.is_empty() {
            self.children = None;
        }
        taken
    }
}

impl InodeTable {
    pub(crate) fn new(root: Identity) -> Self {
        Self { nodes: HashMap::from([(ROOT, Node::new(root))]), by_identity: HashMap::new(), next: ROOT + 1 }
    }

    /// For the process that goes on with these numbers.
    pub(crate) fn keep(&self) -> KeptInodes {
        let places = |node: &Node| {
            let places = node.places.as_slice().iter();
            places.map(|(parent, name)| (*parent, name.as_bytes().to_vec())).collect()
        };
        let nodes = self.nodes.iter().map(|(ino, node)| KeptNode {
            ino: *ino,
            identity: node.identity,
            lookups: node.lookups,
            places: places(node),
            shared: self.by_identity.get(&node.identity) == Some(ino),
        });
        KeptInodes { next: self.next, nodes: nodes.collect() }
    }

    /// `None` if there is no root among them, or a name in what is not there.
    pub(crate) fn go_on(kept: KeptInodes) -> Option<Self> {
        let identities: HashMap<u64, Identity> = kept.nodes.iter().map(|node| (node.ino, node.identity)).collect();
        let mut table = Self::new(*identities.get(&ROOT)?);
        table.next = kept.next;
        for (ino, identity) in identities.iter().filter(|(ino, _)| **ino != ROOT) {
            table.nodes.insert(*ino, Node::new(*identity));
        }
        for node in kept.nodes {
            for (parent, name) in node.places {
                table.nodes.get_mut(&parent)?;
                table.attach(node.ino, (parent, &OsString::from_vec(name)));
            }
            table.nodes.get_mut(&node.ino)?.lookups = node.lookups;
            if node.shared {
                table.by_identity.insert(node.identity, node.ino);
            }
        }
        Some(table)
    }

    /// Files of this identity that are looked up from now on are `ino`.
    pub(crate) fn share(&mut self, ino: u64) {
        if let Some(identity) = self.identity(ino).filter(|identity| identity.has_links()) {
            self.by_identity.insert(identity, ino);
        }
    }

    /// Counts one lookup of `name` in `parent`, which led to `identity`, and returns its number: that of the same file under
    /// another name, if both are shared. An older node of another identity loses the name. `None` if `parent` is unknown.
    pub(crate) fn lookup(&mut self, parent: u64, name: &OsStr, identity: Identity, shared: bool) -> Option<u64> {
        let known = self.child(parent, name);
        let ino = match known.filter(|ino| self.identity(*ino) == Some(identity)) {
            Some(ino) => ino,
            None => self.replace(parent, name, identity, shared && identity.has_links())?,
        };
        let node = self.nodes.get_mut(&ino)?;
        node.lookups += 1;
        node.places.touch(parent, name);
        if shared && identity.has_links() {
            self.by_identity.insert(identity, ino);
        }
        Some(ino)
    }

    /// The number of `name` in `parent`, if the kernel knows it.
    pub(crate) fn child(&self, parent: u64, name: &OsStr) -> Option<u64> {
        self.nodes.get(&parent)?.child(name)
    }

    pub(crate) fn identity(&self, ino: u64) -> Option<Identity> {
        self.nodes.get(&ino).map(|node| node.identity)
    }

    /// The directory that holds `ino`; the root holds itself.
    pub(crate) fn parent(&self, ino: u64) -> Option<u64> {
        if ino == ROOT {
            return Some(ROOT);
        }
        let (parent, _) = self.nodes.get(&ino)?.places.last()?;
        Some(*parent)
    }

    pub(crate) fn is_nameless(&self, ino: u64) -> bool {
        ino != ROOT && self.nodes.get(&ino).is_none_or(|node| node.places.last().is_none())
    }

    /// Where `ino` is, by the name that was looked up last; `None` if it is unknown, nameless, or below something nameless.
    pub(crate) fn path(&self, ino: u64) -> Option<RelPath> {
        self.paths(ino).into_iter().next()
    }

    /// Where it is by all its names, the one that was looked up last first.
    pub(crate) fn paths(&self, ino: u64) -> Vec<RelPath> {
        if ino == ROOT {
            return vec![RelPath::root()];
        }
        let places = self.nodes.get(&ino).map(|node| node.places.as_slice()).unwrap_or_default();
        places.iter().rev().filter_map(|place| self.path_of(place)).collect()
    }

    /// Its names, with the directories that hold them; of a file with links there may be several.
    pub(crate) fn places(&self, ino: u64) -> Vec<(u64, OsString)> {
        let places = self.nodes.get(&ino).map(|node| node.places.as_slice()).unwrap_or_default();
        places.iter().map(|(parent, name)| (*parent, name.to_os_string())).collect()
    }

    fn path_of(&self, (parent, name): &Place) -> Option<RelPath> {
        let mut names = vec![&**name];
        let mut at = *parent;
        while at != ROOT {
            let (parent, name) = self.nodes.get(&at)?.places.last()?;
            names.push(&**name);
            at = *parent;
        }
        let join = |path: RelPath, name: &OsStr| path.join(name).ok();
        names.into_iter().rev().try_fold(RelPath::root(), join)
    }

    /// The kernel has forgotten `count` lookups of `ino`. Returns the numbers that are gone by that.
    pub(crate) fn forget(&mut self, ino: u64, count: u64) -> Vec<u64> {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.reap(ino)
    }

    /// `name` in `parent` is gone: its node, if any, is nameless until forgotten.
    pub(crate) fn unlink(&mut self, parent: u64, name: &OsStr) {
        if let Some(ino) = self.detach(parent, name) {
            self.reap(ino);
            self.reap(parent);
        }
    }

    /// `from` is now called `to`; what was called `to` is nameless. A node beneath itself would have no
    /// path: if the disk was changed behind the kernel such that it seems so, the node is made nameless.
    pub(crate) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let moved = self.child(from.0, from.1);
        // Between two names of one file a rename does nothing.
        if from == to || (moved.is_some() && moved == self.child(to.0, to.1)) {
            return;
        }
        let replaced = self.detach(to.0, to.1);
        if let Some(ino) = self.detach(from.0, from.1) {
            self.attach(ino, to);
        }
        replaced.into_iter().for_each(|ino| drop(self.reap(ino)));
        self.reap(from.0);
        self.reap(to.0);
    }

    /// `a` and `b` have exchanged their names.
    pub(crate) fn exchange(&mut self, a: (u64, &OsStr), b: (u64, &OsStr)) {
        if a == b {
            return;
        }
        let was_a = self.detach(a.0, a.1);
        let was_b = self.detach(b.0, b.1);
        was_a.into_iter().for_each(|ino| self.attach(ino, b));
        was_b.into_iter().for_each(|ino| self.attach(ino, a));
        self.reap(a.0);
        self.reap(b.0);
    }

    fn replace(&mut self, parent: u64, name: &OsStr, identity: Identity, shared: bool) -> Option<u64> {
        // A file holds nothing.
        self.nodes.get(&parent).filter(|holder| !holder.identity.has_links())?;
        let replaced = self.detach(parent, name);
        let known = self.by_identity.get(&identity).copied().filter(|_| shared);
        let ino = known.unwrap_or_else(|| self.add(identity, shared));
        self.attach(ino, (parent, name));
        replaced.into_iter().for_each(|ino| drop(self.reap(ino)));
        Some(ino)
    }

    fn add(&mut self, identity: Identity, shared: bool) -> u64 {
        let ino = self.next;
        self.next += 1;
        self.nodes.insert(ino, Node::new(identity));
        if shared {
            self.by_identity.insert(identity, ino);
        }
        ino
    }

    fn detach(&mut self, parent: u64, name: &OsStr) -> Option<u64> {
        let ino = self.nodes.get_mut(&parent)?.take_child(name)?;
        self.nodes.get_mut(&ino)?.places.remove(parent, name);
        Some(ino)
    }

    /// Gives `ino` a name, unless that place is beneath itself or unknown.
    fn attach(&mut self, ino: u64, (parent, name): (u64, &OsStr)) {
        let beneath_itself = self.is_within(parent, ino);
        match self.nodes.get_mut(&parent).filter(|_| !beneath_itself) {
            Some(holder) => holder.children.get_or_insert_default().insert(name.into(), ino),
            None => return drop(self.reap(ino)),
        };
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.places.push((parent, name.into()));
        }
    }

    /// Is `ino` the node `above`, or below it?
    fn is_within(&self, ino: u64, above: u64) -> bool {
        let mut at = Some(ino);
        while let Some(here) = at.filter(|here| *here != above) {
            let place = self.nodes.get(&here).and_then(|node| node.places.last());
            at = place.map(|(parent, _)| *parent);
        }
        at.is_some()
    }

    /// Removes `ino` if nothing needs it any more, and then perhaps what held it.
    fn reap(&mut self, ino: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        let mut perhaps = vec![ino];
        while let Some(ino) = perhaps.pop() {
            if !self.is_idle(ino) {
                continue;
            }
            let Some(node) = self.nodes.remove(&ino) else { continue };
            gone.push(ino);
            if self.by_identity.get(&node.identity) == Some(&ino) {
                self.by_identity.remove(&node.identity);
            }
            for (parent, name) in node.places.as_slice() {
                if let Some(holder) = self.nodes.get_mut(parent) {
                    holder.take_child(name);
                }
                perhaps.push(*parent);
            }
        }
        self.give_back();
        gone
    }

    /// A table that was large once is not large for ever.
    fn give_back(&mut self) {
        if self.nodes.capacity() > 4096 && self.nodes.len() < self.nodes.capacity() / 4 {
            self.nodes.shrink_to(self.nodes.len() * 2);
        }
    }

    fn is_idle(&self, ino: u64) -> bool {
        let idle = |node: &Node| node.lookups == 0 && node.children.is_none();
        ino != ROOT && self.nodes.get(&ino).is_some_and(idle)
    }
}

#[cfg(test)]
mod tests;
