//! Waits for those who write past us. No input or output.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The kernel tells of a file that was closed within milliseconds, when nothing hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts how often there came to be one less.
#[derive(Debug, Default)]
pub(super) struct Writers {
    fewer: Mutex<u64>,
    changed: Condvar,
}

impl Writers {
    pub(super) fn one_less(&self) {
        *self.fewer.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Until `busy` says no, [`PATIENCE`] at most.
    pub(super) fn wait_while(&self, busy: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        let fewer = || self.fewer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = *fewer();
        while busy() {
            let rest = until.saturating_duration_since(Instant::now());
            let waited = self.changed.wait_timeout_while(fewer(), rest, |now| *now == seen);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return;
            }
            seen = *now;
        }
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
