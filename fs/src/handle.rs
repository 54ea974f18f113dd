//! Numbers of open files and directories; no input or output.
//!
//! A number is never used twice on a mount: the kernel may still send requests with an old one, and
//! an old number that named a new file would hand one reader another's bytes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kept::KeptHandles;

#[derive(Debug)]
pub(crate) struct HandleTable<T> {
    open: HashMap<u64, Arc<T>>,
    next: u64,
}

impl<T> HandleTable<T> {
    pub(crate) fn new() -> Self {
        Self { open: HashMap::new(), next: 1 }
    }

    /// Goes on with numbers of an earlier process: none that was given is given again.
    pub(crate) fn go_on(next: u64, open: impl IntoIterator<Item = (u64, T)>) -> Self {
        Self { open: open.into_iter().map(|(fh, value)| (fh, Arc::new(value))).collect(), next }
    }

    /// What is open, for the process that goes on with these numbers.
    pub(crate) fn keep<K>(&self, keep: impl Fn(&T) -> K) -> KeptHandles<K> {
        KeptHandles { next: self.next, open: self.open.iter().map(|(fh, value)| (*fh, keep(value))).collect() }
    }

    pub(crate) fn insert(&mut self, value: Arc<T>) -> u64 {
        let fh = self.next;
        self.next += 1;
        self.open.insert(fh, value);
        fh
    }

    pub(crate) fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.open.get(&fh).cloned()
    }

    /// Puts `value` in the place of what is open as `fh`, if `wanted` accepts that; returns what is open then.
    pub(crate) fn replace(&mut self, fh: u64, wanted: impl Fn(&T) -> bool, value: Arc<T>) -> Option<Arc<T>> {
        let open = self.open.get_mut(&fh)?;
        if wanted(open) {
            *open = value;
        }
        Some(open.clone())
    }

    pub(crate) fn remove(&mut self, fh: u64) -> Option<Arc<T>> {
        self.open.remove(&fh)
    }

    /// All whose value `wanted` accepts; looks at all of them as well.
    pub(crate) fn numbers(&self, wanted: impl Fn(&T) -> bool) -> Vec<u64> {
        self.open.iter().filter(|(_, value)| wanted(value)).map(|(fh, _)| *fh).collect()
    }

    /// What `tell` tells of the values; looks at all of them as well.
    pub(crate) fn all<R>(&self, tell: impl Fn(&T) -> Option<R>) -> Vec<R> {
        self.open.values().filter_map(|value| tell(value)).collect()
    }

    /// Any open value that `wanted` accepts; looks at all of them, so only for rare questions.
    pub(crate) fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.open.values().find(|value| wanted(value)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// `Some(v)` opens `v`, `None` closes the oldest open one.
        #[test]
        fn numbers_lead_to_their_value_and_are_never_used_again(steps in prop::collection::vec(prop::option::weighted(0.6, any::<u8>()), 0..100)) {
            let mut table = HandleTable::new();
            let mut model = BTreeMap::new();
            let mut used = Vec::new();
            for step in steps {
                match step {
                    Some(value) => {
                        let fh = table.insert(Arc::new(value));
                        prop_assert!(!used.contains(&fh));
                        used.push(fh);
                        model.insert(fh, value);
                    }
                    None => {
                        if let Some((fh, value)) = model.pop_first() {
                            prop_assert_eq!(table.remove(fh).map(|v| *v), Some(value));
                        }
                    }
                }
                for fh in &used {
                    let value = table.get(*fh).map(|value| *value);
                    prop_assert_eq!(value, model.get(fh).copied());
                }
            }
        }
    }

    #[test]
    fn finds_by_value() {
        let mut table = HandleTable::new();
        table.insert(Arc::new(7));
        assert_eq!(table.find(|v| *v == 7).as_deref(), Some(&7));
        assert_eq!(table.find(|v| *v == 8), None);
    }
}
