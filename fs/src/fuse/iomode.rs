//! How each open inode does its reads and writes: through this process and the kernel's page cache, or by
//! kernel passthrough straight to the backing file. No input or output.
//!
//! ```text
//!            first open, read-only place, kernel willing      last close
//!   closed ─────────────────────────────────────────▶ passthrough ─────────▶ closed
//!      └── first open, anything else ───────────────▶ cached ──────────────▶ closed
//! ```
//!
//! The kernel answers an `open` with `EIO` if one inode is open in both ways, or by passthrough with two
//! backing numbers. So the first open decides and all later ones follow it until the last is closed. The
//! kernel forgets its side before it sends the release, so following an inode longer than the kernel does
//! is harmless; forgetting it earlier would not be.

use std::collections::HashMap;
use std::sync::Arc;

/// The way of one inode; `I` is the kernel's number of the backing file.
#[derive(Debug)]
pub(super) enum IoMode<I> {
    Cached,
    Passthrough(Arc<I>),
}

#[derive(Debug)]
pub(super) struct IoModes<I> {
    open: HashMap<u64, Open<I>>,
}

#[derive(Debug)]
struct Open<I> {
    backing: Option<Arc<I>>,
    /// Handles of this inode that were opened and not released.
    handles: u64,
}

impl<I> IoModes<I> {
    pub(super) fn new() -> Self {
        Self { open: HashMap::new() }
    }

    /// Counts an open of `ino` and returns its way. Only the first open of a closed inode calls
    /// `register`, which makes a backing number, or returns `None` to have the inode cached.
    pub(super) fn open(&mut self, ino: u64, register: impl FnOnce() -> Option<I>) -> IoMode<I> {
        let open = self.open.entry(ino).or_insert_with(|| Open { backing: register().map(Arc::new), handles: 0 });
        open.handles += 1;
        match &open.backing {
            Some(backing) => IoMode::Passthrough(Arc::clone(backing)),
            None => IoMode::Cached,
        }
    }

    /// Counts a release; the last one lets the backing number go. Unknown inodes are generated files.
    pub(super) fn release(&mut self, ino: u64) {
        let Some(open) = self.open.get_mut(&ino) else {
            return;
        };
        open.handles -= 1;
        if open.handles == 0 {
            self.open.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(mode: IoMode<u32>) -> Option<u32> {
        match mode {
            IoMode::Cached => None,
            IoMode::Passthrough(id) => Some(*id),
        }
    }

    #[test]
    fn the_first_open_decides_until_the_last_release() {
        let mut modes = IoModes::new();
        assert_eq!(number(modes.open(5, || Some(1))), Some(1));
        assert_eq!(number(modes.open(5, || Some(2))), Some(1));
        assert_eq!(number(modes.open(5, || None)), Some(1));
        modes.release(5);
        modes.release(5);
        assert_eq!(number(modes.open(5, || Some(3))), Some(1));
        modes.release(5);
        modes.release(5);
        assert_eq!(number(modes.open(5, || None)), None);
        assert_eq!(number(modes.open(5, || Some(4))), None);
        modes.release(5);
        modes.release(5);
        assert_eq!(number(modes.open(5, || Some(5))), Some(5));
    }

    #[test]
    fn a_backing_number_goes_with_its_last_handle() {
        let mut modes = IoModes::new();
        let id = Arc::new(());
        drop(modes.open(5, || Some(Arc::clone(&id))));
        drop(modes.open(5, || None));
        modes.release(5);
        assert_eq!(Arc::strong_count(&id), 2);
        modes.release(5);
        assert_eq!(Arc::strong_count(&id), 1);
        modes.release(5);
    }
}
