//! The process that looks at the cards, as the daemon sees it: one that is started again when it ends.
//!
//! Orders go by its standard input, news come by its standard output, a JSON object a line. Whoever asks waits for an answer as long
//! as they have patience, and gets what was found last.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{Held, Inventory, Measured, Sample, Settings};
use crate::ids::{GpuUuid, TaskId, Timestamp};
use crate::sys::now;
use crate::sys::process::{PidFd, start_companion_that_tells};

/// First wait before it is started again, doubled up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A process that lived as long was no failure to start.
const HEALTHY: Duration = Duration::from_secs(10);
/// So many orders may wait for their answers: where more do, it hangs.
const ORDERS_MAX: usize = 64;
/// Room for orders that it has not read yet, bytes: measuring a thousand tasks is one of 150 KB.
const PIPE_SIZE: i32 = 1 << 20;
/// How long its end is waited for; it may hang with the driver.
const FAREWELL: Duration = Duration::from_secs(2);

/// How it begins.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begin {
    pub(super) settings: Settings,
    /// What was found before it was started.
    pub(super) before: Inventory,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Look now, with usage.
    Look(u64),
    /// Nobody waits for an answer longer than the patience.
    Measure { number: u64, wanted: Vec<(TaskId, Held)>, patience: Duration },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum News<I> {
    Found {
        found: I,
        /// There is something else to see than before, use apart.
        differs: bool,
    },
    /// What was found is told already.
    Looked(u64),
    Measured {
        number: u64,
        at: Timestamp,
        cards: BTreeMap<GpuUuid, Sample>,
        parts: Vec<((TaskId, Held), Sample)>,
    },
}

impl<I> News<I> {
    pub(super) fn measured(number: u64, Measured { at, cards, parts }: Measured) -> Self {
        Self::Measured { number, at, cards, parts: parts.into_iter().collect() }
    }
}

/// The cards, as they were found last. Ends the process when it is dropped.
#[derive(Debug)]
pub struct Gpus {
    shared: Arc<Shared>,
    /// Nothing comes by it: that it is gone tells the thread to end.
    keep: Option<Sender<()>>,
    /// Nothing comes by it: that the other end is gone tells that the thread has ended.
    kept: Mutex<Receiver<()>>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    found: Arc<Inventory>,
    life: Option<Life>,
    asked: BTreeMap<u64, Asked>,
    last_number: u64,
}

#[derive(Debug)]
struct Life {
    stdin: ChildStdin,
    process: PidFd,
}

/// A process that was started.
struct Begun {
    child: Child,
    news: BufReader<ChildStdout>,
}

/// Who waits for an answer.
#[derive(Debug)]
enum Asked {
    Look(Sender<()>),
    Measure(Sender<Measured>),
}

impl Gpus {
    /// Begins to look, and tells when there is something else to see than before, use apart. Waits for nothing: the first
    /// inventory says that it has not been looked yet.
    pub fn start(settings: Settings, changed: impl Fn(Arc<Inventory>) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (keep, wanted) = channel();
        let (held, kept) = channel();
        // Now: who asks next is to get an answer.
        let first = shared.begin(&settings);
        let work = {
            let shared = shared.clone();
            move || {
                shared.keep_alive(first, &settings, &wanted, &changed);
                drop::<Sender<()>>(held);
            }
        };
        std::thread::Builder::new().name("gpus".to_owned()).spawn(work)?;
        Ok(Self { shared, keep: Some(keep), kept: Mutex::new(kept) })
    }

    /// What was found last.
    pub fn last(&self) -> Arc<Inventory> {
        self.shared.state().found.clone()
    }

    /// Looks now, with what uses the cards; what was found last if that takes too long. Blocks.
    pub fn look(&self, patience: Duration) -> Arc<Inventory> {
        let (answer, answered) = channel();
        if self.shared.ask(Asked::Look(answer), Order::Look) {
            // An answer, or none: what was found is there.
            let _ = answered.recv_timeout(patience);
        }
        self.last()
    }

    /// What tasks do now with what they have, and nothing else, so that it costs little; nothing if that takes too long. Blocks.
    pub fn measure(&self, wanted: Vec<(TaskId, Held)>, patience: Duration) -> Measured {
        let (answer, answered) = channel();
        let order = |number| Order::Measure { number, wanted, patience };
        let is_asked = self.shared.ask(Asked::Measure(answer), order);
        let measured = is_asked.then(|| answered.recv_timeout(patience).ok()).flatten();
        measured.unwrap_or_else(|| Measured::nothing(now()))
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        drop(self.keep.take());
        self.shared.end_life();
        // It has ended, or hangs.
        let _ = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAREWELL);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the order of this number; `false` where there is nobody to take it.
    fn ask(&self, asked: Asked, order: impl FnOnce(u64) -> Order) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(life) = &mut state.life else { return false };
        // It hangs, and what it has not read is in its memory.
        if state.asked.len() >= ORDERS_MAX {
            return false;
        }
        state.last_number += 1;
        let number = state.last_number;
        match life.tell(&order(number)) {
            Ok(()) => {
                state.asked.insert(number, asked);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the process that looks at the cards takes no orders, and is ended");
                // A part of a line may have come.
                life.kill();
                state.life = None;
                false
            }
        }
    }

    fn end_life(&self) {
        if let Some(life) = self.state().life.take() {
            life.kill();
        }
    }

    /// Has a process run until nobody wants any.
    fn keep_alive(
        &self,
        first: io::Result<Begun>,
        settings: &Settings,
        wanted: &Receiver<()>,
        changed: &dyn Fn(Arc<Inventory>),
    ) {
        let (mut next, mut again) = (first, FIRST_WAIT);
        loop {
            let since = Instant::now();
            if !is_wanted(wanted) {
                // Who has told so may have looked for a life before this one.
                self.end_life();
            }
            let ended = next.and_then(|begun| self.live(begun, changed));
            if !is_wanted(wanted) {
                return;
            }
            match ended {
                Ok(how) => tracing::warn!(%how, "the process that looks at the cards has ended, will start it again"),
                Err(error) => tracing::warn!(%error, "cards cannot be looked at, will try again"),
            }
            if since.elapsed() >= HEALTHY {
                again = FIRST_WAIT;
            }
            if wanted.recv_timeout(again) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            again = (again * 2).min(LONGEST_WAIT);
            next = self.begin(settings);
        }
    }

    /// Starts a process, and tells it what there is to know.
    fn begin(&self, settings: &Settings) -> io::Result<Begun> {
        let mut child = start_companion_that_tells(&settings.program, vec!["cards".into()], environment())?;
        let begun = self.tell_of_begin(&mut child, settings);
        if begun.is_err() {
            child.kill()?;
            child.wait()?;
        }
        Ok(Begun { news: begun?, child })
    }

    fn tell_of_begin(&self, child: &mut Child, settings: &Settings) -> io::Result<BufReader<ChildStdout>> {
        let process = PidFd::open(i32::try_from(child.id()).map_err(io::Error::other)?)?;
        let missing = || io::Error::other("it has no standard streams");
        let (stdin, stdout) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        // As much as this user may have.
        let _ = fcntl(&stdin, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
        // Who asks does not wait for it: one that does not read is ended.
        fcntl(&stdin, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut life = Life { stdin, process };
        let mut state = self.state();
        life.tell(&Begin { settings: settings.clone(), before: Inventory::clone(&state.found) })?;
        state.life = Some(life);
        Ok(BufReader::new(stdout))
    }

    /// Hears one process until it ends; how it ended.
    fn live(&self, begun: Begun, changed: &dyn Fn(Arc<Inventory>)) -> io::Result<ExitStatus> {
        let Begun { mut child, news } = begun;
        let heard = self.hear(news, changed);
        if heard.is_err() {
            // What it says is none of what we understand: it says nothing more.
            child.kill()?;
        }
        let mut state = self.state();
        state.life = None;
        // They hear that nobody will answer.
        state.asked.clear();
        drop(state);
        let status = child.wait()?;
        heard.map(|()| status)
    }

    /// What it tells, until it ends.
    fn hear(&self, news: BufReader<ChildStdout>, changed: &dyn Fn(Arc<Inventory>)) -> io::Result<()> {
        for line in news.lines() {
            match serde_json::from_str(&line?)? {
                News::Found { found, differs } => {
                    let found: Arc<Inventory> = Arc::new(found);
                    self.state().found = found.clone();
                    if differs {
                        changed(found);
                    }
                }
                // Who has lost patience no longer hears.
                News::Looked(number) => match self.state().asked.remove(&number) {
                    Some(Asked::Look(answer)) => drop(answer.send(())),
                    _ => return Err(io::Error::other("it answers what nobody has asked")),
                },
                News::Measured { number, at, cards, parts } => {
                    let measured = Measured { at, cards, parts: parts.into_iter().collect() };
                    match self.state().asked.remove(&number) {
                        Some(Asked::Measure(answer)) => drop(answer.send(measured)),
                        _ => return Err(io::Error::other("it answers what nobody has asked")),
                    }
                }
            }
        }
        Ok(())
    }
}

impl Life {
    fn tell<T: Serialize>(&mut self, what: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.stdin.write_all(&line)
    }

    fn kill(&self) {
        // It may have ended by itself.
        let _ = self.process.signal(Signal::SIGKILL);
    }
}

fn is_wanted(wanted: &Receiver<()>) -> bool {
    wanted.try_recv() != Err(TryRecvError::Disconnected)
}

/// Where the loader looks for the driver's library; where this process says nothing itself it says nothing either.
fn environment() -> Vec<(OsString, OsString)> {
    const LIBRARIES: &str = "LD_LIBRARY_PATH";
    let libraries = std::env::var_os(LIBRARIES).map(|value| (LIBRARIES.into(), value));
    let says_nothing = !tracing::enabled!(tracing::Level::ERROR);
    libraries.into_iter().chain(says_nothing.then(|| ("TRAINYARD_LOG".into(), "off".into()))).collect()
}
