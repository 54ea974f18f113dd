//! Work on disks that holds still for a moment: while it does, no thread is in the midst of it.
//!
//! A process that goes on as another program waits in the kernel until all its other threads have ended, and one that waits
//! for a disk ends when the disk answers, killed or not. So whatever looks at people's files beside the serving of requests
//! is done in [`work`], comes by a [`point`] at every entry and piece, and is held there before an exec.
//!
//! ```text
//! work ──▶ inside ──── point, or the end ────▶ waits, as long as `Held` is there ──▶ inside
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static STATE: Mutex<State> = Mutex::new(State { is_held: false, inside: 0 });
static CHANGED: Condvar = Condvar::new();
/// As in the state, to be asked at every entry.
static IS_HELD: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct State {
    is_held: bool,
    /// Threads that work.
    inside: usize,
}

fn lock() -> MutexGuard<'static, State> {
    // Each change is one of a number or a flag.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enter() {
    let held = |state: &mut State| state.is_held;
    CHANGED.wait_while(lock(), held).unwrap_or_else(PoisonError::into_inner).inside += 1;
    IS_INSIDE.set(true);
}

fn leave() {
    IS_INSIDE.set(false);
    lock().inside -= 1;
    CHANGED.notify_all();
}

struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
    }
}

/// Does `work`, which may touch disks; it begins when nobody holds it. Not within itself.
pub fn work<T>(work: impl FnOnce() -> T) -> T {
    enter();
    let _inside = Inside;
    work()
}

/// Waits here while work is held; nothing, and cheap, elsewhere.
pub fn point() {
    if IS_HELD.load(Ordering::Relaxed) && IS_INSIDE.get() {
        leave();
        enter();
    }
}

/// Work is held as long as this is there.
#[derive(Debug)]
pub struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        lock().is_held = false;
        IS_HELD.store(false, Ordering::Relaxed);
        CHANGED.notify_all();
    }
}

/// Holds all work; `None`, and it goes on, if some does not come by a point in time. For one caller at a time.
pub fn hold(patience: Duration) -> Option<Held> {
    let mut state = lock();
    state.is_held = true;
    IS_HELD.store(true, Ordering::Relaxed);
    let held = Held(());
    let busy = |state: &mut State| state.inside > 0;
    let waited = CHANGED.wait_timeout_while(state, patience, busy);
    let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
    // `Held` takes the lock when it is dropped.
    drop(state);
    (!timeout.timed_out()).then_some(held)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn work_is_held_at_its_next_point_and_what_does_not_come_by_one_is_not_waited_for() {
        let (go, may_go) = channel::<()>();
        let (tell, told) = channel();
        let (points, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let passed = || points.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let may_go = may_go;
                work(|| {
                    tell.send(()).unwrap();
                    may_go.recv().unwrap();
                    while !is_over.load(Ordering::SeqCst) {
                        point();
                        points.fetch_add(1, Ordering::SeqCst);
                    }
                });
            });
            told.recv_timeout(LONG).unwrap();
            assert!(hold(SHORT).is_none(), "it is in the midst of it");
            go.send(()).unwrap();
            let held = hold(LONG).expect("it comes by a point");
            let before = passed();
            std::thread::yield_now();
            assert!(passed() == before && !worker.is_finished(), "it waits");
            drop(held);
            while passed() == before {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
            worker.join().unwrap();
            assert!(hold(SHORT).is_some(), "nobody works");
        });
    }
}
