//! Listing directories.
//!
//! A listing is a snapshot taken when the directory is opened, and again when it is rewound; an offset is
//! an index into it. So an entry that is neither made nor removed meanwhile is listed exactly once,
//! whatever is removed around it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{Ops, ROOT, lock};
use crate::attr::Kind;
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::kept::KeptDirectory;
use crate::tree::{RelPath, Tree};

/// Shown in a listing for what the kernel has not looked up (the kernel's `FUSE_UNKNOWN_INO`).
const UNKNOWN_INO: u64 = 0xffff_ffff;

/// One row of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub name: OsString,
    pub kind: Kind,
    pub ino: u64,
}

#[derive(Debug)]
pub(super) struct OpenDirectory {
    ino: u64,
    by: Caller,
    rows: Mutex<Arc<[Listed]>>,
    /// Was the beginning read since the snapshot? Then reading it again is a rewind.
    begun: AtomicBool,
}

impl OpenDirectory {
    pub(super) fn keep(&self) -> KeptDirectory {
        let row = |row: &Listed| (row.name.as_bytes().to_vec(), row.kind, row.ino);
        let rows = lock(&self.rows).iter().map(row).collect();
        KeptDirectory { ino: self.ino, by: self.by, begun: self.begun.load(Ordering::Relaxed), rows }
    }

    pub(super) fn go_on(kept: KeptDirectory) -> Self {
        let row = |(name, kind, ino)| Listed { name: OsString::from_vec(name), kind, ino };
        let rows = kept.rows.into_iter().map(row).collect();
        Self { ino: kept.ino, by: kept.by, rows: Mutex::new(rows), begun: AtomicBool::new(kept.begun) }
    }
}

impl<T: Tree> Ops<T> {
    pub(crate) fn opendir(&self, ino: u64, by: Caller) -> Result<u64> {
        let rows = Mutex::new(self.snapshot(ino, by)?);
        let directory = OpenDirectory { ino, by, rows, begun: AtomicBool::new(false) };
        Ok(lock(&self.directories).insert(Arc::new(directory)))
    }

    /// The rows of an open directory; reading from 0 again takes a new snapshot.
    pub(crate) fn rows(&self, fh: u64, offset: u64) -> Result<Arc<[Listed]>> {
        let open = lock(&self.directories).get(fh);
        let open = open.ok_or(Error::BadHandle { fh })?;
        if offset == 0 && open.begun.swap(true, Ordering::Relaxed) {
            // A directory that was removed meanwhile keeps its last listing.
            if let Ok(fresh) = self.snapshot(open.ino, open.by) {
                *lock(&open.rows) = fresh;
            }
        }
        Ok(Arc::clone(&lock(&open.rows)))
    }

    pub(crate) fn releasedir(&self, fh: u64) {
        lock(&self.directories).remove(fh);
    }

    pub(crate) fn fsyncdir(&self, ino: u64) -> Result<()> {
        let (pin, _) = self.pin(ino)?;
        pin.sync_directory()
    }

    fn snapshot(&self, ino: u64, by: Caller) -> Result<Arc<[Listed]>> {
        let (pin, path) = self.pin(ino)?;
        let mut entries = pin.list()?;
        self.add_generated(&path, &mut entries);
        entries.retain(|(name, _)| self.is_listed(&path, name));
        if self.tree.lists_what_may_be_entered(&path) {
            let is_closed = |name: &OsString| pin.child(name).is_ok_and(|child| !by.may_enter(&child.attr()));
            entries.retain(|(name, kind)| *kind != Kind::Directory || !is_closed(name));
        }
        let nodes = lock(&self.nodes);
        let up = nodes.table.parent(ino).unwrap_or(ROOT);
        let dots = [(".", ino), ("..", up)].map(|(name, ino)| Listed { name: name.into(), kind: Kind::Directory, ino });
        let rows = entries.into_iter().map(|(name, kind)| Listed {
            ino: nodes.table.child(ino, &name).unwrap_or(UNKNOWN_INO),
            name,
            kind,
        });
        Ok(dots.into_iter().chain(rows).collect())
    }

    fn add_generated(&self, directory: &RelPath, entries: &mut Vec<(OsString, Kind)>) {
        for name in self.tree.generated(directory) {
            if entries.iter().all(|(stored, _)| *stored != name) {
                entries.push((name, Kind::File));
            }
        }
    }

    fn is_listed(&self, directory: &RelPath, name: &OsString) -> bool {
        let path = directory.join(name);
        path.is_ok_and(|path| !self.tree.is_hidden(&path))
    }
}
