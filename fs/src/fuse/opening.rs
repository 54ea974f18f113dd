//! How what is opened is read and written.

use std::cell::LazyCell;
use std::fs::File;
use std::io;

use fuser::BackingId;
use tracing::debug;

use super::Served;
use super::answer::Route;
use super::iomode::IoMode;
use crate::ops::{Access, Passes};
use crate::tree::Tree;

/// Bytes from which on it pays to have the kernel read and map a file by itself: an open costs more then, and of a small one more
/// than all its reads by the kernel's pages.
const LARGE: u64 = 1 << 20;

impl<T: Tree> Served<T> {
    /// Registers the file of `fh` with the kernel; `None`, and so cached, where that is not possible.
    pub(super) fn register(
        &self,
        fh: u64,
        open_backing: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Option<BackingId> {
        let registered = self.agreed().passthrough.then(|| self.ops.lend(fh, open_backing))?;
        registered.inspect_err(|error| debug!(%error, "no passthrough")).ok()
    }

    /// How `ino`, of so many bytes, is read and written that was opened as `fh` where it may be changed. What is large the kernel
    /// reads and writes by itself, and so does who writes alone.
    pub(super) fn open_stored(
        &self,
        (ino, size): (u64, u64),
        (fh, access): (u64, Access),
        open_backing: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Route {
        let pays = size >= LARGE || self.ops.may_be_mapped(ino);
        let passes = LazyCell::new(|| match self.agreed().passthrough {
            true => self.ops.passes(fh, access),
            false => Passes::Nothing,
        });
        // Before the modes are held: it may wait for a rename.
        let is_passed = match pays || access.only_writes() {
            true => *passes == Passes::All || (pays && *passes == Passes::Reads),
            false => false,
        };
        let mode = self.modes().open(ino, || is_passed.then(|| self.register(fh, open_backing)).flatten());
        match mode {
            IoMode::Passthrough(id) if !access.writes() || *passes == Passes::All => {
                self.ops.goes_past_us(fh, access);
                Route::Passed(id)
            }
            IoMode::Passthrough(id) => {
                self.ops.maps_past_us(fh, access);
                Route::ToUs(id)
            }
            IoMode::Cached => Route::Cached,
        }
    }
}
