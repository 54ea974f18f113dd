//! Who works on a request, so that what hangs in one part of the tree holds up no other. No input or output.
//!
//! ```text
//!            another thread reads
//!   read ──────────────────────────▶ here, by the thread that has read it
//!     │  otherwise ─▶ a worker: as many as it takes, up to SHARE of a part
//!     └─ as many of that part are under way ─▶ waits until one of them is answered
//! ```
//!
//! One thread at least goes on reading, whatever hangs. What waits takes memory but no thread, and of that only so much a part.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::answer::Answer;
use crate::ops::Home;

/// Requests of one part of the tree that are worked on at once: each takes a thread.
pub(crate) const SHARE: usize = 64;
/// Bytes of those of one part that wait for their turn, at most. What comes then is refused.
const HELD: usize = 64 << 20;
/// What a request takes beside its data, bytes.
const REQUEST: usize = 1 << 10;
/// How long a worker waits for more, until it ends.
const REST: Duration = Duration::from_secs(10);

/// Does its work, and answers; one that is dropped is answered by an error.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Whether a request may be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is answered; so many bytes come with it.
    Asks { bytes: usize },
    /// There is no answer to it, or none upon which anything is done: it is heard in any case.
    Tells,
}

pub(crate) struct Crew {
    state: Mutex<State>,
    called: Condvar,
    /// Nothing is under way, and nothing waits.
    rested: Condvar,
    /// Threads that read requests.
    readers: usize,
}

#[derive(Default)]
struct State {
    /// Readers that work on a request.
    working: usize,
    parts: HashMap<Home, Part>,
    /// What may be begun, for the next worker.
    ready: VecDeque<(Home, Job)>,
    /// Workers without work.
    idle: usize,
    /// Somebody waits until nothing is under way: to tell nobody costs a call of the kernel at nearly every request.
    is_awaited: bool,
}

/// There is one as long as something of it is under way.
#[derive(Default)]
struct Part {
    under_way: usize,
    waiting: VecDeque<(Job, usize)>,
    held: usize,
}

/// A reader works on a request as long as this is there.
pub(super) struct Here<'a> {
    crew: &'a Arc<Crew>,
    home: Home,
}

impl Here<'_> {
    /// Does `job`, and answers when that is counted no more: whom the answer wakes may keep this thread from its processor, and the
    /// next request is not to take it for one that hangs.
    pub(super) fn work<A: Answer>(self, job: impl FnOnce() -> A) {
        let answer = job();
        drop(self);
        answer.give();
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.crew.lock().working -= 1;
        if let Some(job) = self.crew.leave(self.home) {
            self.crew.begin(self.crew.lock(), self.home, job);
        }
    }
}

impl Crew {
    pub(super) fn new(readers: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), called: Condvar::new(), rested: Condvar::new(), readers })
    }

    /// Waits until nothing is under way and nothing waits; `false` where that takes longer than `patience`. While nobody reads
    /// requests nothing comes after that.
    pub(crate) fn rests_within(&self, patience: Duration) -> bool {
        let busy = |state: &mut State| !state.parts.is_empty();
        let mut state = self.lock();
        state.is_awaited = true;
        let waited = self.rested.wait_timeout_while(state, patience, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The thread that has read a request of `home` works on it itself; `None`: it is [handed over](Self::hand_over).
    pub(super) fn here(self: &Arc<Self>, home: Home) -> Option<Here<'_>> {
        let mut state = self.lock();
        if state.working + 1 >= self.readers {
            return None;
        }
        state.working += 1;
        state.parts.entry(home).or_default().under_way += 1;
        Some(Here { crew: self, home })
    }

    /// `job` is begun by another thread, when there is room for it among those of `home`.
    pub(super) fn hand_over(self: &Arc<Self>, home: Home, kind: Kind, job: Job) {
        let mut state = self.lock();
        let part = state.parts.entry(home).or_default();
        if part.under_way < SHARE {
            part.under_way += 1;
            return self.begin(state, home, job);
        }
        let size = match kind {
            Kind::Asks { bytes } => bytes + REQUEST,
            Kind::Tells => 0,
        };
        if size > 0 && part.held + size > HELD {
            drop(state);
            return warn!("too much waits for a file system that does not answer: a request is refused");
        }
        part.held += size;
        part.waiting.push_back((job, size));
    }

    /// Has a worker do it; it is among those that are under way.
    fn begin(self: &Arc<Self>, mut state: MutexGuard<'_, State>, home: Home, job: Job) {
        state.ready.push_back((home, job));
        let is_called = state.ready.len() <= state.idle;
        drop(state);
        if is_called {
            return self.called.notify_one();
        }
        if let Err(error) = self.engage() {
            warn!(%error, "cannot start a thread that serves; one that reads does its work");
            let left = self.lock().ready.pop_front();
            left.into_iter().for_each(|(home, job)| self.finish(home, job));
        }
    }

    fn engage(self: &Arc<Self>) -> io::Result<()> {
        let crew = self.clone();
        thread::Builder::new().name("fuse-worker".into()).spawn(move || crew.work()).map(drop)
    }

    fn work(&self) {
        while let Some((home, job)) = self.next() {
            self.finish(home, job);
        }
    }

    /// Does `job`, and what waits for its turn in `home`.
    fn finish(&self, home: Home, job: Job) {
        let mut job = Some(job);
        while let Some(now) = job {
            // One that panics has been answered by an error, and told.
            let _ = catch_unwind(AssertUnwindSafe(now));
            job = self.leave(home);
        }
    }

    /// What is to be done next; `None` if there is nothing for a while.
    fn next(&self) -> Option<(Home, Job)> {
        let mut state = self.lock();
        state.idle += 1;
        let nothing = |state: &mut State| state.ready.is_empty();
        let waited = self.called.wait_timeout_while(state, REST, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        state.ready.pop_front()
    }

    /// One of `home` has been done. Returns the next that has waited, which is under way from now on.
    fn leave(&self, home: Home) -> Option<Job> {
        let mut state = self.lock();
        let part = state.parts.get_mut(&home)?;
        if let Some((job, size)) = part.waiting.pop_front() {
            part.held -= size;
            return Some(job);
        }
        part.under_way -= 1;
        if part.under_way == 0 {
            state.parts.remove(&home);
            if state.parts.is_empty() && state.is_awaited {
                self.rested.notify_all();
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::Gate;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const ASKS: Kind = Kind::Asks { bytes: 0 };

    /// Jobs that tell when they are begun, and wait for a word.
    struct Hanging {
        begun: (Sender<usize>, Receiver<usize>),
        words: (Sender<()>, Arc<Mutex<Receiver<()>>>),
    }

    impl Hanging {
        fn new() -> Self {
            let (say, hear) = channel();
            Self { begun: channel(), words: (say, Arc::new(Mutex::new(hear))) }
        }

        fn job(&self, number: usize) -> Job {
            let (begun, words) = (self.begun.0.clone(), self.words.1.clone());
            Box::new(move || {
                begun.send(number).unwrap();
                // One at a time: all others wait for the lock.
                words.lock().unwrap().recv().unwrap();
            })
        }

        fn begun(&self) -> usize {
            self.begun.1.recv_timeout(LONG).unwrap()
        }
    }

    #[test]
    fn one_thread_goes_on_reading_whatever_the_others_do() {
        let crew = Crew::new(4);
        let [first, second, third] = [1, 1, 2].map(|part| crew.here(Home(part)));
        assert!(first.is_some() && second.is_some() && third.is_some());
        assert!(crew.here(Home(3)).is_none(), "the last one");
        drop(first);
        assert!(crew.here(Home(3)).is_some());
        drop((second, third));
        assert!(crew.lock().parts.is_empty(), "nothing is kept of what is over");
    }

    #[test]
    fn who_answers_is_at_work_no_more() {
        let crew = Crew::new(2);
        let is_free = || crew.here(Home(1)).is_some();
        let (answered, told) = channel();
        crew.here(Home(1)).unwrap().work(|| {
            assert!(!is_free());
            move || answered.send(is_free()).unwrap()
        });
        assert_eq!(told.recv(), Ok(true));
    }

    #[test]
    fn what_hangs_in_one_part_takes_its_share_and_all_of_it_is_done_in_the_end() {
        let (crew, hanging) = (Crew::new(2), Hanging::new());
        let all = SHARE * 3;
        for number in 0..all {
            crew.hand_over(Home(1), ASKS, hanging.job(number));
        }
        let mut begun: Vec<usize> = (0..SHARE).map(|_| hanging.begun()).collect();
        assert_eq!(crew.lock().parts[&Home(1)].waiting.len(), all - SHARE);
        let other = Hanging::new();
        crew.hand_over(Home(2), ASKS, other.job(0));
        assert_eq!(other.begun(), 0, "another part's is begun at once");
        assert!(hanging.begun.1.try_recv().is_err(), "no more than its share");
        other.words.0.send(()).unwrap();
        (0..all).for_each(|_| hanging.words.0.send(()).unwrap());
        begun.extend((SHARE..all).map(|_| hanging.begun()));
        begun.sort_unstable();
        assert_eq!(begun, (0..all).collect::<Vec<_>>(), "each once");
    }

    #[test]
    fn what_waits_is_bounded_but_what_is_told_is_heard() {
        let (crew, hanging) = (Crew::new(2), Hanging::new());
        (0..SHARE).for_each(|number| crew.hand_over(Home(1), ASKS, hanging.job(number)));
        let large = Kind::Asks { bytes: HELD / 2 };
        (0..3).for_each(|_| crew.hand_over(Home(1), large, hanging.job(SHARE)));
        crew.hand_over(Home(1), Kind::Tells, hanging.job(SHARE + 1));
        let state = crew.lock();
        assert_eq!(state.parts[&Home(1)].waiting.len(), 2, "one that asks, and what is told");
        assert!(state.parts[&Home(1)].held <= HELD);
        drop(state);
        (0..SHARE + 2).for_each(|_| hanging.words.0.send(()).unwrap());
        let begun: Vec<usize> = (0..SHARE + 2).map(|_| hanging.begun()).collect();
        assert_eq!(begun.iter().filter(|number| **number >= SHARE).count(), 2);
        assert!(hanging.begun.1.try_recv().is_err());
    }

    #[test]
    fn what_waits_behind_a_closed_gate_lets_it_close_and_is_waited_for() {
        let (crew, gate, heard) = (Crew::new(2), Arc::new(Gate::default()), Hanging::new());
        assert!(crew.rests_within(Duration::ZERO));
        assert!(gate.close(LONG));
        for _ in 0..SHARE {
            let gate = gate.clone();
            crew.hand_over(Home(1), ASKS, Box::new(move || drop(gate.enter())));
        }
        let (at, job) = (gate.clone(), heard.job(1));
        let told = move || {
            let _turn = at.pass();
            job();
        };
        crew.hand_over(Home(1), Kind::Tells, Box::new(told));
        assert!(gate.close(LONG), "what waits is not inside");
        gate.end();
        assert_eq!(heard.begun(), 1, "it is heard though all is over");
        assert!(!crew.rests_within(Duration::ZERO), "it is under way");
        heard.words.0.send(()).unwrap();
        assert!(crew.rests_within(LONG));
    }

    fn panics() {
        panic!("as a test wants it");
    }

    #[test]
    fn a_job_that_panics_gives_its_turn_back() {
        let (crew, hanging) = (Crew::new(2), Hanging::new());
        crew.hand_over(Home(1), ASKS, Box::new(panics));
        (0..SHARE).for_each(|number| crew.hand_over(Home(1), ASKS, hanging.job(number)));
        (0..SHARE).for_each(|_| _ = hanging.begun());
        (0..SHARE).for_each(|_| hanging.words.0.send(()).unwrap());
    }
}
