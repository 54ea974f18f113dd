//! How each open inode does its reads and writes: through this process and the kernel's page cache, or by
//! kernel passthrough straight to the backing file. No input or output.
//!
//! ```text
//!            first open: of a read-only place, of what is large or to write alone where that may pass, kernel willing
//!   closed ─────────────────────────────────────────▶ passthrough ── last close ──▶ closed
//!      └── first open, anything else ───────────────▶ cached ─────── last close ──▶ closed
//! ```
//!
//! The kernel answers an `open` with `EIO` if one inode is open in both ways, or by passthrough with two
//! backing numbers. So the first open decides and all later ones follow it until the last is closed. The
//! kernel forgets its side before it sends the release, so following an inode longer than the kernel does
//! is harmless; forgetting it earlier would not be.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kept::KeptMode;

/// The way of one inode; `I` is the kernel's number of the backing file.
#[derive(Debug)]
pub(super) enum IoMode<I> {
    Cached,
    Passthrough(Arc<I>),
}

#[derive(Debug)]
pub(crate) struct IoModes<I> {
    open: HashMap<u64, Open<I>>,
    /// Backing numbers that an earlier process has left, by inode: they are made good before the next open, since it takes
    /// an open for that.
    inherited: Vec<(u64, u32)>,
}

#[derive(Debug)]
struct Open<I> {
    backing: Option<Arc<I>>,
    /// Handles of this inode that were opened and not released.
    handles: u64,
}

impl<I> IoModes<I> {
    pub(super) fn new() -> Self {
        Self { open: HashMap::new(), inherited: Vec::new() }
    }

    /// What is open, for whoever goes on with it; nothing is left here. `raw` takes a backing number out of our hands.
    pub(crate) fn give_away(&mut self, raw: impl Fn(I) -> u32) -> Vec<KeptMode> {
        let mut inherited: HashMap<u64, u32> = self.inherited.drain(..).collect();
        let open = self.open.drain().map(|(ino, open)| {
            let own = open.backing.and_then(Arc::into_inner).map(&raw);
            KeptMode { ino, backing: own.or(inherited.remove(&ino)), handles: open.handles }
        });
        let open: Vec<_> = open.collect();
        // Of what was closed meanwhile.
        let closed = inherited.into_iter().map(|(ino, number)| KeptMode { ino, backing: Some(number), handles: 0 });
        open.into_iter().chain(closed).collect()
    }

    pub(crate) fn go_on(kept: Vec<KeptMode>) -> Self {
        let inherited = kept.iter().filter_map(|mode| Some((mode.ino, mode.backing?))).collect();
        let open = kept.into_iter().filter(|mode| mode.handles > 0);
        let open = open.map(|mode| (mode.ino, Open { backing: None, handles: mode.handles })).collect();
        Self { open, inherited }
    }

    /// Makes inherited backing numbers ours; those of closed inodes are dropped.
    pub(super) fn adopt(&mut self, own: impl Fn(u32) -> I) {
        for (ino, number) in self.inherited.drain(..) {
            let number = own(number);
            if let Some(open) = self.open.get_mut(&ino) {
                open.backing = Some(Arc::new(number));
            }
        }
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
    fn whoever_goes_on_uses_the_same_numbers_and_lets_those_of_closed_inodes_go() {
        let mut modes = IoModes::new();
        for (ino, number) in [(5, Some(7)), (6, None), (8, Some(9))] {
            modes.open(ino, || number);
        }
        modes.open(5, || None);
        // Twice, since the second may take over before anything is opened.
        let mut modes = IoModes::go_on(modes.give_away(|number: u32| number));
        modes.release(8);
        let mut modes = IoModes::go_on(modes.give_away(|number: u32| number));
        let mut wrapped = std::cell::RefCell::new(Vec::new());
        modes.adopt(|number| {
            wrapped.borrow_mut().push(number);
            number
        });
        wrapped.get_mut().sort_unstable();
        assert_eq!(*wrapped.get_mut(), [7, 9]);
        assert_eq!(number(modes.open(5, || Some(1))), Some(7));
        assert_eq!(number(modes.open(6, || Some(2))), None);
        assert_eq!(number(modes.open(8, || Some(3))), Some(3));
        for _ in 0..3 {
            modes.release(5);
        }
        assert_eq!(number(modes.open(5, || Some(4))), Some(4));
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
