//! What can be done only at the end of a layer, by path, in an order that brings neighbours together.

use std::collections::{BTreeMap, BTreeSet};

use nix::sys::time::TimeSpec;

/// Half a million directories of usual names; more is no image.
pub(super) const MOST_NAMES: usize = 64 << 20;
/// What a tree's node costs beside the name.
const OVERHEAD: usize = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing of lower layers is to be seen here: a white-out, or an opaque directory if this layer has one here.
    WhiteOut,
    /// A directory that hides what lower layers have below it.
    Opaque,
}

#[derive(Default)]
pub(super) struct Remembered {
    /// Making an entry changes the time of its directory, so directories get theirs last.
    pub(super) times: BTreeMap<Box<[u8]>, TimeSpec>,
    /// A mark must not hide what this layer itself has, before or after it in the archive.
    pub(super) marks: BTreeMap<Box<[u8]>, Mark>,
    pub(super) implied: BTreeSet<Box<[u8]>>,
    bytes: usize,
}

impl Remembered {
    pub(super) fn directory(&mut self, path: &[u8], time: TimeSpec) {
        self.implied.remove(path);
        if self.times.insert(path.into(), time).is_none() {
            self.bytes += path.len() + OVERHEAD;
        }
    }

    pub(super) fn implied(&mut self, path: &[u8]) {
        self.bytes += path.len() + OVERHEAD;
        self.implied.insert(path.into());
    }

    pub(super) fn mark(&mut self, path: &[u8], mark: Mark) {
        if self.marks.insert(path.into(), mark).is_none() {
            self.bytes += path.len() + OVERHEAD;
        }
    }

    /// Whether more is remembered than a layer can need.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > MOST_NAMES
    }

    /// What was at `path` is gone, with all below it; that lower layers are hidden there stays true.
    pub(super) fn forget(&mut self, path: &[u8]) {
        self.times.remove(path);
        self.implied.remove(path);
        let (from, to): (Box<[u8]>, Box<[u8]>) = ([path, b"/"].concat().into(), [path, b"0"].concat().into());
        self.times.extract_if(from.clone()..to.clone(), |_, _| true).for_each(drop);
        self.marks.extract_if(from.clone()..to.clone(), |_, _| true).for_each(drop);
        self.implied.extract_if(from..to, |_| true).for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_forgotten_with_all_below_and_nothing_beside() {
        let mut remembered = Remembered::default();
        for path in ["a", "a/b", "a/b/c", "a-b", "ab", "b"] {
            remembered.directory(path.as_bytes(), TimeSpec::new(1, 0));
            remembered.mark(path.as_bytes(), Mark::WhiteOut);
            remembered.implied(path.as_bytes());
        }
        remembered.forget(b"a");
        let left = |keys: Vec<&Box<[u8]>>| {
            keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(left(remembered.times.keys().collect()), ["a-b", "ab", "b"]);
        assert_eq!(left(remembered.marks.keys().collect()), ["a", "a-b", "ab", "b"]);
        assert_eq!(left(remembered.implied.iter().collect()), ["a-b", "ab", "b"]);
    }
}
