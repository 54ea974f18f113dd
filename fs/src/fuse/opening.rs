//! How what is opened is read and written.

use std::cell::LazyCell;
use std::fs::File;
use std::io;

use fuser::BackingId;
use tracing::debug;

use super::Served;
use super::answer::Route;
use super::iomode::IoMode;
use crate::ops::{Access, Passes, Size};
use crate::tree::Tree;

/// What is known of a file when it is opened.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begun {
    /// It was there.
    Opened { size: Size },
    /// It was made by that, and is expected to come to this.
    Made { expected: Size },
}

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

    /// How `ino` is read and written that was opened as `fh` where it may be changed. What is large the kernel reads and writes by
    /// itself, and what is opened to write alone, but for what is made where the files are small.
    pub(super) fn open_stored(
        &self,
        (ino, begun): (u64, Begun),
        (fh, access): (u64, Access),
        open_backing: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Route {
        let (pays, pays_to_write) = match begun {
            Begun::Opened { size } => (size == Size::Large || self.ops.may_be_mapped(ino), true),
            Begun::Made { expected } => (false, expected == Size::Large),
        };
        let passes = LazyCell::new(|| match self.agreed().passthrough {
            true => self.ops.passes(fh, access),
            false => Passes::Nothing,
        });
        // Before the modes are held: it may wait for a rename.
        let is_passed = match (pays, pays_to_write && access.only_writes()) {
            (true, _) => *passes != Passes::Nothing,
            (false, true) => *passes == Passes::All,
            (false, false) => false,
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
