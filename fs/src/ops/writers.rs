//! Waits for those who write past us. No input or output.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The kernel tells of a file that was closed within milliseconds, when nothing hangs.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Writers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often there came to be one less.
    fewer: u64,
    /// Who waits: to tell nobody costs a call of the kernel at each file that is closed.
    waiting: usize,
}

impl Writers {
    pub(super) fn one_less(&self) {
        let mut state = self.lock();
        state.fewer += 1;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Until `busy` says no, [`PATIENCE`] at most.
    pub(super) fn wait_while(&self, busy: impl Fn() -> bool) {
        self.lock().waiting += 1;
        self.wait_until(Instant::now() + PATIENCE, busy);
        self.lock().waiting -= 1;
    }

    fn wait_until(&self, end: Instant, busy: impl Fn() -> bool) {
        let mut seen = self.lock().fewer;
        while busy() {
            let rest = end.saturating_duration_since(Instant::now());
            let waited = self.changed.wait_timeout_while(self.lock(), rest, |now| now.fewer == seen);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return;
            }
            seen = now.fewer;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn whoever_waits_goes_on_with_the_last_writer_or_when_patience_ends() {
        let (writers, left) = (Writers::default(), AtomicUsize::new(2));
        let busy = || left.load(Ordering::SeqCst) > 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    left.fetch_sub(1, Ordering::SeqCst);
                    writers.one_less();
                }
            });
            writers.wait_while(busy);
        });
        let begun = Instant::now();
        writers.wait_while(|| true);
        assert!(begun.elapsed() >= PATIENCE);
    }
}
