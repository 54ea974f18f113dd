//! Listing directories.
//!
//! A listing is a snapshot taken when the directory is opened, and again when it is rewound; an offset is
//! an index into it. So an entry that is neither made nor removed meanwhile is listed exactly once,
//! whatever is removed around it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Ops, ROOT, lock};
use crate::attr::Kind;
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::inode::InodeTable;
use crate::kept::KeptDirectory;
use crate::tree::{RelPath, Tree};

/// Shown in a listing for what the kernel has not looked up (the kernel's `FUSE_UNKNOWN_INO`).
const UNKNOWN_INO: u64 = 0xffff_ffff;
/// So many rows with short names, or more, answer the first request of a listing.
const BEGINNING: usize = 192;

/// One row of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed<'a> {
    pub name: &'a OsStr,
    pub kind: Kind,
    pub ino: u64,
}

/// The rows of a listing, their names one behind the other: an allocation for each would cost as much as reading it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    names: Vec<u8>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    /// Of its name, which begins where that of the row before ends.
    end: usize,
    kind: Kind,
    ino: u64,
}

impl Rows {
    fn push(&mut self, name: impl AsRef<OsStr>, kind: Kind, ino: u64) {
        self.names.extend_from_slice(name.as_ref().as_bytes());
        self.rows.push(Row { end: self.names.len(), kind, ino });
    }

    /// The rows from `offset` on, each with the offset of the next.
    pub(crate) fn from(&self, offset: u64) -> impl Iterator<Item = (u64, Listed<'_>)> {
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let begin = skip.checked_sub(1).and_then(|before| self.rows.get(before)).map_or(0, |row| row.end);
        let rows = self.rows.get(skip..).unwrap_or_default();
        (offset + 1..).zip(rows).scan(begin, |begin, (next, row)| {
            let name = OsStr::from_bytes(self.names.get(*begin..row.end)?);
            *begin = row.end;
            Some((next, Listed { name, kind: row.kind, ino: row.ino }))
        })
    }

    /// Whether the kernel knows those that come first, as of when they were listed.
    pub(crate) fn begin_with_known(&self) -> bool {
        self.rows.iter().take(BEGINNING).all(|row| row.ino != UNKNOWN_INO)
    }

    /// Of those that the kernel knows in `directory`, their numbers.
    fn number(&mut self, known: &InodeTable, directory: u64) {
        let (number_of, mut begin) = (known.numbers_in(directory), 0);
        for row in &mut self.rows {
            let name = self.names.get(begin..row.end).unwrap_or_default();
            begin = row.end;
            row.ino = number_of(OsStr::from_bytes(name)).unwrap_or(row.ino);
        }
    }
}

#[derive(Debug)]
pub(super) struct OpenDirectory {
    ino: u64,
    by: Caller,
    rows: Mutex<Arc<Rows>>,
    /// Was the beginning read since the snapshot? Then reading it again is a rewind.
    begun: AtomicBool,
}

impl OpenDirectory {
    pub(super) fn keep(&self) -> KeptDirectory {
        let rows = Arc::clone(&lock(&self.rows));
        let rows = rows.from(0).map(|(_, row)| (row.name.as_bytes().to_vec(), row.kind, row.ino)).collect();
        KeptDirectory { ino: self.ino, by: self.by, begun: self.begun.load(Ordering::Relaxed), rows }
    }

    pub(super) fn go_on(kept: KeptDirectory) -> Self {
        let mut rows = Rows::default();
        kept.rows.into_iter().for_each(|(name, kind, ino)| rows.push(OsString::from_vec(name), kind, ino));
        Self { ino: kept.ino, by: kept.by, rows: Mutex::new(Arc::new(rows)), begun: AtomicBool::new(kept.begun) }
    }
}

impl<T: Tree> Ops<T> {
    pub(crate) fn opendir(&self, ino: u64, by: Caller) -> Result<u64> {
        let rows = Mutex::new(self.snapshot(ino, by)?);
        let directory = OpenDirectory { ino, by, rows, begun: AtomicBool::new(false) };
        Ok(lock(&self.directories).insert(Arc::new(directory)))
    }

    /// The rows of an open directory; reading from 0 again takes a new snapshot.
    pub(crate) fn rows(&self, fh: u64, offset: u64) -> Result<Arc<Rows>> {
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

    /// The kernel has been told of attributes of what comes first in a directory, and may keep them so long.
    pub(crate) fn tell_of(&self, directory: u64, ttl: Duration) {
        // Half of it: whoever looks them up after the listing is to find them.
        if let Some(until) = Instant::now().checked_add(ttl / 2).filter(|_| !ttl.is_zero()) {
            lock(&self.told).insert(directory, until);
        }
    }

    pub(crate) fn was_told_lately(&self, directory: u64) -> bool {
        lock(&self.told).get(&directory).is_some_and(|until| Instant::now() < *until)
    }

    pub(crate) fn releasedir(&self, fh: u64) {
        lock(&self.directories).remove(fh);
    }

    pub(crate) fn fsyncdir(&self, ino: u64) -> Result<()> {
        let (pin, _) = self.pin(ino)?;
        pin.sync_directory()
    }

    fn snapshot(&self, ino: u64, by: Caller) -> Result<Arc<Rows>> {
        let (pin, path) = self.pin(ino)?;
        let up = lock(&self.nodes).table.parent(ino).unwrap_or(ROOT);
        let mut rows = Rows::default();
        rows.push(".", Kind::Directory, ino);
        rows.push("..", Kind::Directory, up);
        let mut generated = self.tree.generated(&path);
        let may_hide = self.tree.may_hide_in(&path);
        let leaves_out_closed = self.tree.lists_what_may_be_entered(&path);
        let is_closed = |name: &OsStr| pin.child(name).is_ok_and(|child| !by.may_enter(&child.attr()));
        pin.list(|name, kind| {
            generated.retain(|generated| generated != name);
            let is_hidden = may_hide && self.is_hidden(&path, name);
            if !(is_hidden || leaves_out_closed && kind == Kind::Directory && is_closed(name)) {
                rows.push(name, kind, UNKNOWN_INO);
            }
        })?;
        generated.retain(|name| !self.is_hidden(&path, name));
        generated.iter().for_each(|name| rows.push(name, Kind::File, UNKNOWN_INO));
        rows.number(&lock(&self.nodes).table, ino);
        Ok(Arc::new(rows))
    }

    fn is_hidden(&self, directory: &RelPath, name: &OsStr) -> bool {
        directory.join(name).is_ok_and(|path| self.tree.is_hidden(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_begins_with_known_names_where_none_of_the_first_is_unknown() {
        let mut rows = Rows::default();
        (0..BEGINNING).for_each(|number| rows.push(number.to_string(), Kind::File, 7));
        assert!(rows.begin_with_known());
        rows.push("later", Kind::File, UNKNOWN_INO);
        assert!(rows.begin_with_known(), "it is asked about by itself");
        rows.rows[3].ino = UNKNOWN_INO;
        assert!(!rows.begin_with_known());
    }
}
