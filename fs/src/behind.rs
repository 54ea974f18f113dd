//! What is changed behind the mount, told to the kernel, which believes what it knows for as long as it was told to.
//!
//! The name is dropped, as one whose time is over would be; who has it open, or is there, goes on with what was there. Each name by
//! itself: `FUSE_NOTIFY_INC_EPOCH` (Linux 6.16) drops all, with whatever is mounted on any of them. The kernel holds the directory
//! for that, so that a thread that answers requests must not tell it: it would wait for itself.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::tree::RelPath;

/// Who knows what the kernel was told.
pub(crate) trait Told: Send + Sync {
    /// What is at `path` may be another by now, and so are the attributes of its directory.
    fn changed(&self, path: &RelPath);

    /// What is at `path` is no more to be changed by whoever has it open, also when the name leads elsewhere.
    fn frozen(&self, path: &RelPath);
}

/// Says to the kernel what was changed behind the mount; all copies do so for one mount.
#[derive(Clone, Default)]
pub struct Behind(Arc<Line>);

#[derive(Default)]
struct Line {
    /// `None` before anybody serves.
    told: Mutex<Option<Weak<dyn Told>>>,
    connected: Condvar,
}

impl std::fmt::Debug for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Behind").finish_non_exhaustive()
    }
}

impl Behind {
    /// What is at `path` has been replaced, or its attributes have changed: nobody is told what was there before when this returns.
    /// Waits until somebody serves: a process that goes on for another one is at work before.
    pub fn changed(&self, path: &RelPath) {
        self.tell(|told| told.changed(path));
    }

    /// What is at `path` will be replaced: what has it open then would change what nobody sees, and is refused that instead.
    pub fn freeze(&self, path: &RelPath) {
        self.tell(|told| told.frozen(path));
    }

    fn tell(&self, word: impl FnOnce(&dyn Told)) {
        let waited = self.0.connected.wait_while(self.0.lock(), |told| told.is_none());
        let told = waited.unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade);
        if let Some(told) = told {
            word(&*told);
        }
    }

    /// Somebody serves.
    pub(crate) fn connect<W: Told + 'static>(&self, told: &Arc<W>) {
        let told: Weak<W> = Arc::downgrade(told);
        *self.0.lock() = Some(told);
        self.0.connected.notify_all();
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Option<Weak<dyn Told>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<RelPath>>);

    impl Told for Seen {
        fn changed(&self, path: &RelPath) {
            self.0.lock().unwrap().push(path.clone());
        }

        fn frozen(&self, _path: &RelPath) {}
    }

    #[test]
    fn what_changes_before_somebody_serves_is_told_then() {
        let (behind, seen) = (Behind::default(), Arc::new(Seen::default()));
        let path = |name: &str| RelPath::new(name).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| behind.changed(&path("a")));
            behind.connect(&seen);
        });
        behind.clone().changed(&path("b"));
        assert_eq!(*seen.0.lock().unwrap(), [path("a"), path("b")]);
        // Who serves no more is told nothing, and not kept.
        drop(seen);
        behind.changed(&path("c"));
    }
}
