//! How what is opened is read and written.

use std::fs::File;
use std::io;

use fuser::BackingId;
use tracing::debug;

use super::Served;
use super::answer::Route;
use super::iomode::IoMode;
use crate::ops::Access;
use crate::tree::Tree;

impl<T: Tree> Served<T> {
    /// Registers the file of `fh` with the kernel; `None`, and so cached, where that is not possible.
    pub(super) fn register(
        &self,
        fh: u64,
        open_backing: impl FnOnce(File) -> io::Result<BackingId>,
    ) -> Option<BackingId> {
        let file = self.agreed().passthrough.then(|| self.ops.duplicate(fh).ok())??;
        let registered = open_backing(file);
        registered.inspect_err(|error| debug!(%error, "no passthrough")).ok()
    }

    /// How `ino` is read and written that was opened as `fh` where it may be changed. Who writes alone lets the kernel do so by
    /// itself: nothing of that can be mapped, so it ends when it is closed.
    pub(super) fn open_stored(
        &self,
        ino: u64,
        (fh, access): (u64, Access),
        open_backing: impl FnOnce(File) -> io::Result<BackingId>,
    ) -> Route {
        let is_passed = access.only_writes() && self.agreed().passthrough && self.ops.passes_writes(fh);
        match self.modes().open(ino, || is_passed.then(|| self.register(fh, open_backing)).flatten()) {
            IoMode::Passthrough(id) if is_passed || !access.writes() => {
                self.ops.goes_past_us(fh);
                Route::Passed(id)
            }
            IoMode::Passthrough(id) => {
                self.ops.go_past_cache(fh);
                Route::ToUs(id)
            }
            IoMode::Cached => Route::Cached,
        }
    }
}
