//! The operations of the file system with plain results; knows no kernel protocol.
//!
//! An operation on a number asks the table for its path, the tree for the rule of that path, and the host
//! for a pin of it; the pin's identity must be the one that the number stands for, else the name was
//! given to another file behind the mount, and the answer is `ESTALE`, on which the kernel looks again.
//! What has lost its name but is still known is reached by a pin (`nodes`) or its open file.
//!
//! Locks: `namespace` is held shared from asking for a path until it is pinned, and exclusively by a
//! rename, so that a path never goes stale between the two (a reader would get a false `ENOENT`); each part of the tree has
//! its own. The table and the handles have a lock each, held for moments and never while the disk is touched.

mod charges;
mod directories;
mod entries;
mod files;
mod namespace;
mod nodes;
mod passing;
mod writers;
pub(crate) mod xattrs;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLockReadGuard};
use std::time::{Duration, Instant};

use nix::sys::stat::FileStat;
use nix::sys::statvfs::Statvfs;
use tracing::warn;

pub(crate) use directories::Listed;
pub(crate) use entries::RenameMode;
pub(crate) use files::{Access, Opened};
pub(crate) use passing::{Passes, Size};

use crate::attr::{Attr, Kind};
use crate::behind::Behind;
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::handle::HandleTable;
use crate::host::{Host, Pin, Times};
use crate::inode::{Identity, InodeTable, ROOT};
use crate::kept::{Inherited, KeptOps, KeptPayer};
use crate::sys;
use crate::tree::{RelPath, Rule, Tree};
use crate::usage;

use charges::Paid;
use directories::OpenDirectory;
use files::OpenFile;
use namespace::Namespace;
use nodes::{Nodes, Orphan};
use writers::Writers;

pub(crate) struct Ops<T> {
    host: Host,
    tree: T,
    namespace: Namespace,
    homes: RandomState,
    nodes: Mutex<Nodes>,
    /// What was paid for files that were changed, by their numbers, until they are forgotten.
    paid: Mutex<HashMap<u64, Paid>>,
    files: Mutex<HandleTable<OpenFile>>,
    /// Those past us.
    writers: Writers,
    directories: Mutex<HandleTable<OpenDirectory>>,
    /// Directories of which the kernel knows what comes first, with its attributes, until when.
    told: Mutex<HashMap<u64, Instant>>,
}

/// The part of the tree that a request is about: what lies below one entry of the root, and so on disks that may hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Home(pub u64);

impl Home {
    /// That of a request about both: another than either, for it waits for whichever hangs.
    pub(crate) fn both([one, other]: [Self; 2]) -> Self {
        if one == other { one } else { Self(one.0.rotate_left(1) ^ other.0) }
    }
}

/// An entry as the kernel is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub ino: u64,
    pub attr: Attr,
    /// How long the kernel may believe the attributes and the name.
    pub ttl: Duration,
}

/// A directory while its path stays what it is.
pub(crate) struct Listing<'a> {
    ino: u64,
    pin: Pin,
    path: RelPath,
    _names_stay: RwLockReadGuard<'a, ()>,
}

/// New attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub times: Option<Times>,
}

impl<T: Tree> Ops<T> {
    pub(crate) fn new(host: Host, tree: T) -> Result<Self> {
        let root = host.pin(&RelPath::root())?;
        Ok(Self {
            host,
            tree,
            namespace: Namespace::new(),
            homes: RandomState::new(),
            nodes: Mutex::new(Nodes::new(InodeTable::new(root.identity()))),
            paid: Mutex::default(),
            files: Mutex::new(HandleTable::new()),
            writers: Writers::default(),
            directories: Mutex::new(HandleTable::new()),
            told: Mutex::default(),
        })
    }

    /// Goes on where the process before has stopped. What it was paid is not known, as at any start.
    pub(crate) fn go_on(
        host: Host,
        tree: T,
        (kept, payers, frozen): (KeptOps, &[KeptPayer], &[u64]),
        inherited: &mut Inherited,
    ) -> Result<Self> {
        let table = InodeTable::go_on(kept.inodes).ok_or(Error::Kept)?;
        if table.identity(ROOT) != Some(host.pin(&RelPath::root())?.identity()) {
            return Err(Error::Stale { ino: ROOT });
        }
        // One that cannot be gone on with is nobody else's trouble: whoever holds it is told by an error.
        let payers: HashMap<u64, &KeptPayer> = payers.iter().map(|payer| (payer.ino, payer)).collect();
        let mut orphans = Vec::new();
        for (ino, number) in kept.orphans {
            // It is not looked at: what lies on a disk that hangs is not to hold up the others.
            let handle = inherited.take(number).map_err(Error::io("inherit"))?;
            let payer = payers.get(&ino).and_then(|kept| Self::payer_again(&tree, kept));
            orphans.push((ino, Orphan { handle, payer }));
        }
        let directories = kept.directories.open.into_iter().map(|(fh, kept)| (fh, OpenDirectory::go_on(kept)));
        let ops = Self {
            host,
            tree,
            namespace: Namespace::new(),
            homes: RandomState::new(),
            nodes: Mutex::new(Nodes::go_on(table, orphans, frozen)),
            paid: Mutex::default(),
            files: Mutex::new(HandleTable::new()),
            writers: Writers::default(),
            directories: Mutex::new(HandleTable::go_on(kept.directories.next, directories)),
            told: Mutex::default(),
        };
        let mut files = Vec::new();
        for (fh, kept) in kept.files.open {
            let ino = kept.ino;
            match Self::open_kept(kept, inherited) {
                Ok(open) => files.push((fh, open)),
                Err(error) => warn!(ino, %error, "cannot go on with an open file"),
            }
        }
        *lock(&ops.files) = HandleTable::go_on(kept.files.next, files);
        Ok(ops)
    }

    /// By whom changes behind the mount are told.
    pub(crate) fn behind(&self) -> Behind {
        self.tree.behind()
    }

    /// Who pays for what has lost its name, for the process that goes on.
    pub(crate) fn keep_payers(&self) -> Vec<KeptPayer> {
        lock(&self.nodes).keep_payers()
    }

    /// What is changed no more without a name, for the process that goes on.
    pub(crate) fn keep_frozen(&self) -> Vec<u64> {
        lock(&self.nodes).keep_frozen()
    }

    /// For the process that goes on; while nobody serves.
    pub(crate) fn keep(&self) -> KeptOps {
        let nodes = lock(&self.nodes);
        KeptOps {
            inodes: nodes.table.keep(),
            orphans: nodes.keep_orphans(),
            files: lock(&self.files).keep(OpenFile::keep),
            directories: lock(&self.directories).keep(OpenDirectory::keep),
        }
    }

    /// Where a request about `ino`, or `name` in it, belongs. The disk is not asked.
    pub(crate) fn home(&self, ino: u64, name: Option<&OsStr>) -> Home {
        let nodes = lock(&self.nodes);
        let top = if ino == ROOT { name } else { nodes.table.top(ino) };
        Home(match (top, nodes.table.identity(ino)) {
            (Some(top), _) => self.homes.hash_one(top),
            // It has lost its name, but not its disk.
            (None, Some(Identity::Stored { dev, .. })) => self.homes.hash_one(dev),
            (None, _) => 0,
        })
    }

    /// Looks `name` up in directory `parent` and counts the lookup: one `forget` is owed for it.
    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> Result<Entry> {
        let (_names_stay, directory) = self.names_stay(parent, Some(name))?;
        let path = directory.join(name).map_err(Error::Name)?;
        let found = self.find(&path)?;
        self.found(parent, &path, name, found)
    }

    /// Counts a lookup of `name` in `parent`, which is at `path` and has led to this.
    fn found(&self, parent: u64, path: &RelPath, name: &OsStr, (identity, attr): (Identity, Attr)) -> Result<Entry> {
        let shared = attr.nlink > 1 && self.tree.shares_links(path);
        let ino = lock(&self.nodes).table.lookup(parent, name, identity, shared);
        let ino = ino.ok_or(Error::Stale { ino: parent })?;
        let ttl = self.ttl(path, identity, &attr);
        Ok(Entry { ino, attr, ttl })
    }

    /// Names of one file that are inodes of their own change each other behind the kernel's back.
    fn ttl(&self, path: &RelPath, identity: Identity, attr: &Attr) -> Duration {
        let has_others = attr.nlink > 1 && attr.kind != Kind::Directory;
        let is_apart = has_others && !(identity.has_links() && self.tree.shares_links(path));
        if is_apart { Duration::ZERO } else { self.tree.attr_ttl(path) }
    }

    /// The numbers by which the kernel knows the directory of what is at `path`, and that itself.
    pub(crate) fn known_at(&self, path: &RelPath) -> Option<(u64, Option<u64>)> {
        let (directory, name) = path.split()?;
        // Whoever renames what lies above is told of by the disk before the table is.
        let _names_stay = self.namespace.stay(self.namespace.part(path));
        let nodes = lock(&self.nodes);
        let directory = directory.components().try_fold(ROOT, |at, name| nodes.table.child(at, name))?;
        Some((directory, nodes.table.child(directory, name)))
    }

    /// What is at `path` is changed no more by those who have it open, when the name leads elsewhere.
    pub(crate) fn freeze(&self, path: &RelPath) {
        if let Some((_, Some(ino))) = self.known_at(path) {
            lock(&self.nodes).freeze(ino);
        }
    }

    /// The name leads elsewhere by now.
    pub(crate) fn replaced(&self, ino: u64) {
        let is_nobodys = self.pin_of_open(ino).and_then(Result::ok).is_some_and(|pin| !pin.is_linked());
        if !is_nobodys {
            lock(&self.nodes).thaw(ino);
        }
    }

    fn check_not_frozen(&self, ino: u64) -> Result<()> {
        if lock(&self.nodes).is_frozen(ino) { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Directory `ino` held in its place, to look many of its entries up.
    pub(crate) fn listing(&self, ino: u64) -> Result<Listing<'_>> {
        let (names_stay, _) = self.names_stay(ino, None)?;
        let (pin, path) = self.pin_while_names_stay(ino)?;
        Ok(Listing { ino, pin, path, _names_stay: names_stay })
    }

    /// As [`Self::lookup`].
    pub(crate) fn lookup_in(&self, listing: &Listing<'_>, name: &OsStr) -> Result<Entry> {
        let path = listing.path.join(name).map_err(Error::Name)?;
        self.check_visible(&path)?;
        let found = match listing.pin.look(name) {
            Err(Error::NotFound) => (Identity::Generated, self.generated_attr(&path)?),
            seen => seen?,
        };
        self.found(listing.ino, &path, name, found)
    }

    pub(crate) fn forget(&self, ino: u64, count: u64) {
        self.settle_late(ino);
        let (gone, has_shrunk) = {
            let mut nodes = lock(&self.nodes);
            (nodes.forget(ino, count), nodes.table.has_shrunk())
        };
        if has_shrunk {
            sys::give_memory_back();
        }
        let mut paid = lock(&self.paid);
        gone.iter().for_each(|(gone, _)| drop(paid.remove(gone)));
        drop(paid);
        let mut told = lock(&self.told);
        for (gone, _) in &gone {
            told.remove(gone);
        }
        drop(told);
        self.freed(gone.into_iter().filter_map(|(_, orphan)| orphan));
    }

    pub(crate) fn getattr(&self, ino: u64) -> Result<Entry> {
        match self.named(ino) {
            Ok(entry) => Ok(entry),
            Err(error) => self.nameless(ino).ok_or(error)?,
        }
    }

    /// Changes what `ino` is, by its name or, if it has none, by its pin or open file.
    pub(crate) fn setattr(&self, ino: u64, changes: &Changes) -> Result<Entry> {
        self.apply(ino, changes)?;
        self.getattr(ino)
    }

    fn apply(&self, ino: u64, changes: &Changes) -> Result<()> {
        let is_cut_alone = changes.mode.is_none() && changes.uid.is_none() && changes.gid.is_none();
        // A shell cuts what it redirects to.
        if is_cut_alone
            && lock(&self.nodes).table.identity(ino) == Some(Identity::Generated)
            && self.content(ino)?.is_writable()
        {
            return Ok(());
        }
        // A hole costs nothing, but there must be room for what it may be filled with.
        let grown = |size: u64| changes.size.map_or(0, |wanted| wanted.saturating_sub(size));
        self.changing(ino, |stat| grown(charges::size(stat)), |pin| apply(pin, changes))?;
        if changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() {
            self.path(ino).iter().for_each(|path| self.tree.rights_changed(path));
        }
        Ok(())
    }

    /// Changes `ino` by its name, while no rename can put another rule in force there, or, if it has none, by its pin or
    /// open file. It may come to take as much more of the disk as `most` says.
    fn changing<R>(
        &self,
        ino: u64,
        most: impl FnOnce(&FileStat) -> u64,
        change: impl FnOnce(&Pin) -> Result<R>,
    ) -> Result<R> {
        self.check_not_frozen(ino)?;
        let named = self.names_stay(ino, None);
        let pin = match named.as_ref().map_or(Err(Error::Stale { ino }), |_| self.pin_for_change(ino)) {
            Err(error @ Error::Stale { .. }) => check_unlinked(self.pin_nameless(ino).ok_or(error)??)?,
            pinned => pinned?,
        };
        self.charged(ino, &pin, most, || change(&pin))
    }

    pub(crate) fn readlink(&self, ino: u64) -> Result<OsString> {
        self.pin_even_nameless(ino)?.read_link()
    }

    /// Of the disk, with its size, free and available blocks as they are where `ino` lies, as far as that is the caller's business.
    pub(crate) fn statfs(&self, ino: u64, by: Caller) -> Result<(Statvfs, (u64, u64, u64))> {
        let stat = self.host.statvfs()?;
        let path = self.path(ino).ok().filter(|path| self.may_know_of(path, by));
        let quota = path.and_then(|path| self.tree.quota(&path));
        let blocks = match quota {
            Some(quota) => usage::shown(quota, stat.fragment_size(), stat.blocks_available()),
            None => (stat.blocks(), stat.blocks_free(), stat.blocks_available()),
        };
        Ok((stat, blocks))
    }

    /// Whether how much is kept at `path` is the caller's business: not below a directory that is not even listed for them.
    fn may_know_of(&self, path: &RelPath, by: Caller) -> bool {
        if !self.tree.lists_what_may_be_entered(&RelPath::root()) {
            return true;
        }
        let top = path.components().next().and_then(|top| RelPath::root().join(top).ok());
        let Some(top) = top.and_then(|top| self.host.pin(&top).ok()) else { return true };
        !top.is_directory() || by.may_enter(&top.attr())
    }

    /// What `path` leads to now: what is stored, else what is generated.
    fn find(&self, path: &RelPath) -> Result<(Identity, Attr)> {
        self.check_visible(path)?;
        match self.host.pin(path) {
            Ok(pin) => Ok((pin.identity(), pin.attr())),
            Err(Error::NotFound) => Ok((Identity::Generated, self.generated_attr(path)?)),
            Err(error) => Err(error),
        }
    }

    fn generated_attr(&self, path: &RelPath) -> Result<Attr> {
        let opened = self.tree.open_generated(path);
        let content = opened.map_err(Error::io("open_generated"))?;
        let content = content.ok_or(Error::NotFound)?;
        let metadata = content.metadata().map_err(Error::io("metadata"))?;
        Ok(Attr::of_generated(&metadata))
    }

    /// The entry `ino` by its name, if that still leads to it.
    fn named(&self, ino: u64) -> Result<Entry> {
        let (_names_stay, _) = self.names_stay(ino, None)?;
        let wanted = lock(&self.nodes).table.identity(ino);
        for path in self.paths(ino)? {
            match self.find(&path) {
                Ok((identity, attr)) if Some(identity) == wanted => {
                    let ttl = self.ttl(&path, identity, &attr);
                    return Ok(Entry { ino, attr, ttl });
                }
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Stale { ino })
    }

    /// Pins the stored entry `ino` by its name.
    fn pin(&self, ino: u64) -> Result<(Pin, RelPath)> {
        let _names_stay = self.names_stay(ino, None)?;
        self.pin_while_names_stay(ino)
    }

    /// As `pin`, for a caller that holds the namespace.
    fn pin_while_names_stay(&self, ino: u64) -> Result<(Pin, RelPath)> {
        let wanted = lock(&self.nodes).table.identity(ino);
        for path in self.paths(ino)? {
            match self.host.pin(&path) {
                Ok(pin) if Some(pin.identity()) == wanted => return Ok((pin, path)),
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Stale { ino })
    }

    fn pin_even_nameless(&self, ino: u64) -> Result<Pin> {
        match self.pin(ino) {
            Err(error @ Error::Stale { .. }) => self.pin_nameless(ino).ok_or(error)?,
            pinned => Ok(pinned?.0),
        }
    }

    /// What has lost its name: by its pin, or through an open file if it was replaced behind the mount.
    fn pin_nameless(&self, ino: u64) -> Option<Result<Pin>> {
        let orphan = lock(&self.nodes).orphan(ino);
        let pinned = orphan.map(|handle| Pin::of_handle(handle.map_err(Error::io("dup"))?));
        pinned.or_else(|| self.pin_of_open(ino))
    }

    fn nameless(&self, ino: u64) -> Option<Result<Entry>> {
        let attr = match self.pin_nameless(ino)? {
            Err(Error::Generated) => self.attr_of_generated(ino)?,
            pinned => pinned.map(|pin| pin.attr()),
        };
        let ttl = Duration::ZERO;
        Some(attr.map(|attr| Entry { ino, attr, ttl }))
    }

    /// For a caller that holds the namespace until the change is made: a rename may put another rule in force.
    fn pin_for_change(&self, ino: u64) -> Result<Pin> {
        self.check_visible(&self.path(ino)?)?;
        self.check_writable_by_all(ino)?;
        if lock(&self.nodes).table.identity(ino) == Some(Identity::Generated) {
            return Err(Error::ReadOnly);
        }
        Ok(self.pin_while_names_stay(ino)?.0)
    }

    /// Where `ino` is by its names, the one that was looked up last before the others.
    fn paths(&self, ino: u64) -> Result<Vec<RelPath>> {
        let paths = lock(&self.nodes).table.paths(ino);
        if paths.is_empty() { Err(Error::Stale { ino }) } else { Ok(paths) }
    }

    fn path(&self, ino: u64) -> Result<RelPath> {
        lock(&self.nodes).table.path(ino).ok_or(Error::Stale { ino })
    }

    /// Of a file with several names, lets go of those that lead elsewhere by now, as publishing makes them: the kernel, which
    /// does not tell by which name it opens, looks again.
    fn check_names(&self, ino: u64) -> Result<()> {
        let places = lock(&self.nodes).table.places(ino);
        if places.len() < 2 {
            return Ok(());
        }
        let (_names_stay, _) = self.names_stay(ino, None)?;
        let mut all_lead_there = true;
        for place in &places {
            all_lead_there &= self.leads_to(place, ino) || !self.let_go(place, ino);
        }
        if all_lead_there { Ok(()) } else { Err(Error::Stale { ino }) }
    }

    /// Refuses to change `ino` where one of its names lies in a read-only place: by whatever name it is changed, it is
    /// changed by all of them. Names that lead elsewhere by now do not count, but for the last one: who has it open is told
    /// that the place is closed. For a caller that holds the namespace.
    fn check_writable_by_all(&self, ino: u64) -> Result<()> {
        if ino == ROOT {
            return self.check_writable(&RelPath::root());
        }
        let places = lock(&self.nodes).table.places(ino);
        let mut left = places.len();
        for place in &places {
            let Ok(path) = self.path(place.0).and_then(|path| path.join(&place.1).map_err(Error::Name)) else {
                continue;
            };
            if self.tree.rule(&path) == Rule::ReadWrite {
                continue;
            }
            if left == 1 || self.leads_to(place, ino) || !self.let_go(place, ino) {
                return Err(Error::ReadOnly);
            }
            left -= 1;
        }
        Ok(())
    }

    /// Whether the name still leads to `ino`; what cannot be looked at does.
    fn leads_to(&self, (parent, name): &(u64, OsString), ino: u64) -> bool {
        let wanted = lock(&self.nodes).table.identity(ino);
        let Ok(path) = self.path(*parent).and_then(|path| path.join(name).map_err(Error::Name)) else { return false };
        match self.host.pin(&path) {
            Ok(pin) => Some(pin.identity()) == wanted,
            Err(Error::NotFound) => wanted == Some(Identity::Generated),
            Err(_) => true,
        }
    }

    /// Takes a name from `ino`, if it still has it.
    fn let_go(&self, (parent, name): &(u64, OsString), ino: u64) -> bool {
        let mut nodes = lock(&self.nodes);
        let has_it = nodes.table.child(*parent, name) == Some(ino);
        if has_it {
            nodes.table.unlink(*parent, name);
        }
        has_it
    }

    fn check_visible(&self, path: &RelPath) -> Result<()> {
        match self.tree.rule(path) {
            Rule::Hidden => Err(Error::NotFound),
            Rule::ReadOnly | Rule::ReadWrite => Ok(()),
        }
    }

    fn check_writable(&self, path: &RelPath) -> Result<()> {
        match self.tree.rule(path) {
            Rule::ReadWrite => Ok(()),
            Rule::ReadOnly | Rule::Hidden => Err(Error::ReadOnly),
        }
    }

    /// The path of `ino`, which stays as it is as long as the guard is held; with `name`, what is so called in it.
    fn names_stay(&self, ino: u64, name: Option<&OsStr>) -> Result<(RwLockReadGuard<'_, ()>, RelPath)> {
        let part = |path: &RelPath| match name {
            Some(name) => Ok(self.namespace.part(&path.join(name).map_err(Error::Name)?)),
            None => Ok(self.namespace.part(path)),
        };
        loop {
            let wanted = part(&self.path(ino)?)?;
            let held = self.namespace.stay(wanted);
            // It may have been taken to another part meanwhile.
            let path = self.path(ino)?;
            if part(&path)? == wanted {
                return Ok((held, path));
            }
        }
    }
}

/// A thread that panicked in a request has left no half-made change in these tables: each is changed by
/// one call of its own, so the others serve on.
fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What has lost the name under which it was known, and has another one, may lie in a read-only place by that.
fn check_unlinked(pin: Pin) -> Result<Pin> {
    if pin.is_linked() { Err(Error::ReadOnly) } else { Ok(pin) }
}

/// Owner before mode, because changing it clears set-id bits; times last, because the others touch them.
fn apply(pin: &Pin, changes: &Changes) -> Result<()> {
    if let Some(size) = changes.size {
        pin.set_size(size)?;
        // Whoever does it: fuser does not tell whether the kernel asks for that.
        pin.clear_set_id()?;
    }
    if changes.uid.is_some() || changes.gid.is_some() {
        pin.set_owner(changes.uid, changes.gid)?;
    }
    if let Some(mode) = changes.mode {
        pin.set_mode(mode)?;
    }
    if let Some(times) = changes.times {
        pin.set_times(times)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
