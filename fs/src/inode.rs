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
use std::hash::{BuildHasher, RandomState};
use std::num::NonZero;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};

use crate::attr::Kind;
use crate::kept::{KeptInodes, KeptNode};
use crate::tree::RelPath;

pub(crate) const ROOT: u64 = 1;

/// What a name led to. Two different ones under one name are two files, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Identity {
    Stored {
        dev: Device,
        ino: u64,
        kind: Kind,
        /// When it was made, ns since 1970, where the file system tells: numbers are given to other files again.
        born: Option<NonZero<i64>>,
    },
    Generated,
}

/// The number of a device as the kernel has it, in 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Device(u32);

impl Device {
    const MINOR_BITS: u32 = 20;

    /// As the C library has it.
    pub(crate) fn full(self) -> u64 {
        let minor = self.0 & ((1 << Self::MINOR_BITS) - 1);
        nix::sys::stat::makedev((self.0 >> Self::MINOR_BITS).into(), minor.into())
    }
}

impl From<u64> for Device {
    fn from(full: u64) -> Self {
        let (major, minor) = (nix::sys::stat::major(full), nix::sys::stat::minor(full));
        // The kernel has 12 bits for the one and 20 for the other.
        Self((major << Self::MINOR_BITS | minor) as u32)
    }
}

impl Identity {
    pub(crate) fn stored(dev: u64, ino: u64, kind: Kind, born: Option<i64>) -> Self {
        Self::Stored { dev: dev.into(), ino, kind, born: born.and_then(NonZero::new) }
    }

    /// Whether names that lead to it lead to one file for sure.
    pub(crate) fn has_links(self) -> bool {
        matches!(self, Self::Stored { kind, born: Some(_), .. } if kind != Kind::Directory)
    }
}

#[derive(Debug)]
pub(crate) struct InodeTable {
    /// Boxed, since a table is half empty at times.
    nodes: HashMap<u64, Box<Node>>,
    by: RandomState,
    /// Of files that may have several names.
    by_identity: HashMap<Identity, u64>,
    next: u64,
    has_shrunk: bool,
}

type Place = (u64, Box<OsStr>);

/// Parents and names, the one that was looked up last at the end; none of the root and of the nameless. Nearly all have
/// one, for which this is small.
#[derive(Debug)]
enum Places {
    One(Place),
    /// None, or more than one.
    Several(Box<[Place]>),
}

impl Default for Places {
    fn default() -> Self {
        Self::Several(Box::default())
    }
}

impl Places {
    fn as_slice(&self) -> &[Place] {
        match self {
            Self::One(place) => std::slice::from_ref(place),
            Self::Several(places) => places,
        }
    }

    fn into_vec(self) -> Vec<Place> {
        match self {
            Self::One(place) => vec![place],
            Self::Several(places) => places.into_vec(),
        }
    }

    /// Changes the list of them.
    fn change(&mut self, change: impl FnOnce(&mut Vec<Place>)) {
        let mut places = std::mem::take(self).into_vec();
        change(&mut places);
        *self = match <[Place; 1]>::try_from(places) {
            Ok([place]) => Self::One(place),
            Err(places) => Self::Several(places.into()),
        };
    }

    fn last(&self) -> Option<&Place> {
        self.as_slice().last()
    }

    fn push(&mut self, place: Place) {
        match self {
            Self::Several(places) if places.is_empty() => *self = Self::One(place),
            _ => self.change(|places| places.push(place)),
        }
    }

    fn remove(&mut self, parent: u64, name: &OsStr) {
        self.change(|places| places.retain(|place| (place.0, &*place.1) != (parent, name)));
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

/// By the hash of their names, which they know themselves: a name is kept once.
type Children = HashTable<Child>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Child {
    hash: u64,
    ino: u64,
}

impl Node {
    fn new(identity: Identity) -> Self {
        Self { places: Places::default(), identity, lookups: 0, children: None }
    }

    fn is_called(&self, parent: u64, name: &OsStr) -> bool {
        self.places.as_slice().iter().any(|place| (place.0, &*place.1) == (parent, name))
    }

    fn add_child(&mut self, child: Child) {
        self.children.get_or_insert_default().insert_unique(child.hash, child, |child| child.hash);
    }

    fn take_child(&mut self, child: Child) {
        let Some(children) = self.children.as_mut() else { return };
        if let Ok(found) = children.find_entry(child.hash, |other| *other == child) {
            found.remove();
        }
        if children.is_empty() {
            self.children = None;
        } else if children.capacity() > 64 && children.len() < children.capacity() / 4 {
            children.shrink_to(children.len() * 2, |child| child.hash);
        }
    }
}

impl InodeTable {
    pub(crate) fn new(root: Identity) -> Self {
        let nodes = HashMap::from([(ROOT, Box::new(Node::new(root)))]);
        Self { nodes, by: RandomState::new(), by_identity: HashMap::new(), next: ROOT + 1, has_shrunk: false }
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
            table.nodes.insert(*ino, Box::new(Node::new(*identity)));
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
        let (hash, children) = (self.by.hash_one(name), self.nodes.get(&parent)?.children.as_ref()?);
        let is_it = |child: &Child| {
            child.hash == hash && self.nodes.get(&child.ino).is_some_and(|node| node.is_called(parent, name))
        };
        children.find(hash, is_it).map(|child| child.ino)
    }

    /// The numbers of names in `parent` that the kernel knows, for a listing: by their hashes alone, so that not each name's node
    /// is gone to. That two names have the same happens once in 2^64.
    pub(crate) fn numbers_in(&self, parent: u64) -> impl Fn(&OsStr) -> Option<u64> + '_ {
        let children = self.nodes.get(&parent).and_then(|node| node.children.as_deref());
        move |name| {
            let hash = children.map(|_| self.by.hash_one(name))?;
            children?.find(hash, |child| child.hash == hash).map(|child| child.ino)
        }
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

    /// The name in the root of what `ino` is, or lies in; `None` for the root, and for what has no path.
    pub(crate) fn top(&self, ino: u64) -> Option<&OsStr> {
        let mut at = ino;
        loop {
            match self.nodes.get(&at)?.places.last()? {
                (ROOT, name) => return Some(name),
                (parent, _) => at = *parent,
            }
        }
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
        self.nodes.insert(ino, Box::new(Node::new(identity)));
        if shared {
            self.by_identity.insert(identity, ino);
        }
        ino
    }

    fn detach(&mut self, parent: u64, name: &OsStr) -> Option<u64> {
        let ino = self.child(parent, name)?;
        let child = Child { hash: self.by.hash_one(name), ino };
        self.nodes.get_mut(&parent)?.take_child(child);
        self.nodes.get_mut(&ino)?.places.remove(parent, name);
        Some(ino)
    }

    /// Gives `ino` a name, unless that place is beneath itself or unknown.
    fn attach(&mut self, ino: u64, (parent, name): (u64, &OsStr)) {
        let beneath_itself = self.is_within(parent, ino);
        let child = Child { hash: self.by.hash_one(name), ino };
        match self.nodes.get_mut(&parent).filter(|_| !beneath_itself) {
            Some(holder) => holder.add_child(child),
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
                let child = Child { hash: self.by.hash_one(&**name), ino };
                if let Some(holder) = self.nodes.get_mut(parent) {
                    holder.take_child(child);
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
            self.has_shrunk = true;
        }
    }

    /// Whether much has been forgotten since this was asked.
    pub(crate) fn has_shrunk(&mut self) -> bool {
        std::mem::take(&mut self.has_shrunk)
    }

    fn is_idle(&self, ino: u64) -> bool {
        ino != ROOT && self.nodes.get(&ino).is_some_and(|node| node.lookups == 0 && node.children.is_none())
    }
}

#[cfg(test)]
mod tests;
