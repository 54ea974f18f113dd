//! Whether requests are worked on. No input or output.
//!
//! ```text
//!            close                        end
//!   open ───────────▶ closed (they wait) ─────▶ over (they are left to whoever serves next)
//!     ◀── not in time ──┘
//! ```
//!
//! A request that was taken from the kernel before the gate was closed is answered; one that comes later waits, and is not
//! begun if another process goes on: the kernel then asks that one again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    door: Door,
    /// Requests that are worked on.
    inside: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Door {
    #[default]
    Open,
    Closed,
    Over,
}

/// A request is worked on as long as this is there.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Gate>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.inside -= 1;
        if state.inside == 0 && state.door != Door::Open {
            self.0.changed.notify_all();
        }
    }
}

impl Gate {
    /// For a request that is answered; waits while the gate is closed. `None`: it must be left unanswered.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Turn> {
        let closed = |state: &mut State| state.door == Door::Closed;
        let mut state = self.changed.wait_while(self.lock(), closed).unwrap_or_else(PoisonError::into_inner);
        if state.door == Door::Over {
            return None;
        }
        state.inside += 1;
        drop(state);
        Some(Turn(self.clone()))
    }

    /// For a word to which there is no answer: the kernel says it once, so it is always heard.
    pub(super) fn pass(self: &Arc<Self>) -> Turn {
        self.lock().inside += 1;
        Turn(self.clone())
    }

    /// Closes it and waits until nothing is worked on; `false`, and open again, if that takes longer than `patience`.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        state.door = Door::Closed;
        let busy = |state: &mut State| state.inside > 0;
        let waited = self.changed.wait_timeout_while(state, patience, busy);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        if timeout.timed_out() {
            self.open();
        }
        !timeout.timed_out()
    }

    /// What waits at it is begun.
    pub(crate) fn open(&self) {
        self.lock().door = Door::Open;
        self.changed.notify_all();
    }

    /// What waits at the closed gate is never begun.
    pub(crate) fn end(&self) {
        self.lock().door = Door::Over;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn what_has_begun_is_waited_for_and_what_comes_later_waits() {
        let gate = Arc::new(Gate::default());
        let turn = gate.enter().unwrap();
        assert!(!gate.close(SHORT), "somebody is inside");
        drop(gate.enter().expect("it is open again"));
        let (sender, entered) = channel();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| gate.close(LONG));
            drop(turn);
            assert!(closing.join().unwrap());
            scope.spawn(|| sender.send(gate.enter().is_some()));
            assert!(entered.recv_timeout(SHORT).is_err(), "it is closed");
            drop(gate.pass());
            gate.end();
            assert_eq!(entered.recv_timeout(LONG), Ok(false));
        });
    }
}
