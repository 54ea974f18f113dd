//! The process that looks at the cards, as the daemon sees it: one that is started again when it ends.
//!
//! Orders go by its standard input, news come by its standard output, a JSON object a line. Whoever asks waits for an answer as long
//! as they have patience, and gets what was found last.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{Driver, Held, Inventory, Measured, Sample, Settings};
use crate::ids::{GpuUuid, TaskId, Timestamp};
use crate::sys::now;
use crate::sys::process::{PidFd, start_companion_that_tells};

/// First wait before it is started again, doubled up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A process that lived as long was no failure to start.
const HEALTHY: Duration = Duration::from_secs(10);
/// So many orders may wait for their answers: where more do, it hangs for now.
const ORDERS_MAX: usize = 64;
/// Who leaves an order for so long hangs for good. To come up takes a driver half a minute where it has many cards.
const HANGS: Duration = Duration::from_secs(120);
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
struct Shared {
    state: Mutex<State>,
    /// Told when something was found.
    seen: Condvar,
}

#[derive(Debug, Default)]
struct State {
    found: Arc<Inventory>,
    life: Option<Life>,
    /// With when it was.
    asked: BTreeMap<u64, (Instant, Asked)>,
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

    /// What was found last, once something was; what there is to say of why nothing was if that takes too long. Blocks.
    pub fn first(&self, patience: Duration) -> Arc<Inventory> {
        let is_missing = |state: &mut State| state.found.at.is_none();
        let waited = self.shared.seen.wait_timeout_while(self.shared.state(), patience, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.found.clone()
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the order of this number; `false` where there is nobody to take it.
    fn ask(&self, asked: Asked, order: impl FnOnce(u64) -> Order) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let Some(life) = &mut state.life else { return false };
        if state.asked.first_key_value().is_some_and(|(_, (since, _))| since.elapsed() >= HANGS) {
            tracing::warn!(
                "the process that looks at the cards has not answered for {} s, and is ended",
                HANGS.as_secs()
            );
            life.kill();
            // It may not end as long as the kernel holds it, and is waited for.
            state.life = None;
            return false;
        }
        // What it has not read is in its memory.
        if state.asked.len() >= ORDERS_MAX {
            return false;
        }
        state.last_number += 1;
        let number = state.last_number;
        match life.tell(&order(number)) {
            Ok(()) => {
                state.asked.insert(number, (Instant::now(), asked));
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
                Ok(how) => {
                    tracing::warn!(%how, "the process that looks at the cards has ended, will start it again");
                    self.say_why_nothing_is_found(
                        format!("the process that looks at the cards has ended ({how})"),
                        changed,
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, "cards cannot be looked at, will try again");
                    self.say_why_nothing_is_found(format!("the cards cannot be looked at: {error}"), changed);
                }
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

    /// What was found stays.
    fn say_why_nothing_is_found(&self, reason: String, changed: &dyn Fn(Arc<Inventory>)) {
        let mut state = self.state();
        if state.found.at.is_some() {
            return;
        }
        let nothing = Arc::new(Inventory { driver: Driver::Missing { reason }, ..Inventory::default() });
        state.found = nothing.clone();
        drop(state);
        changed(nothing);
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
                    self.seen.notify_all();
                    if differs {
                        changed(found);
                    }
                }
                // Who has lost patience no longer hears.
                News::Looked(number) => match self.state().asked.remove(&number) {
                    Some((_, Asked::Look(answer))) => drop(answer.send(())),
                    _ => return Err(io::Error::other("it answers what nobody has asked")),
                },
                News::Measured { number, at, cards, parts } => {
                    let measured = Measured { at, cards, parts: parts.into_iter().collect() };
                    match self.state().asked.remove(&number) {
                        Some((_, Asked::Measure(answer))) => drop(answer.send(measured)),
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// The process is this script; what is told.
    fn start(dir: &Path, script: &str) -> (Gpus, Receiver<Arc<Inventory>>) {
        let program = dir.join("cards");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (tell, told) = channel();
        let settings = Settings { program, ..Settings::default() };
        (Gpus::start(settings, move |seen| tell.send(seen).unwrap_or_default()).unwrap(), told)
    }

    fn why(told: &Receiver<Arc<Inventory>>) -> String {
        match &told.recv_timeout(SOON).unwrap().driver {
            Driver::Missing { reason } => reason.clone(),
            Driver::Loaded { .. } => panic!("nothing was found"),
        }
    }

    #[test]
    fn why_nothing_can_be_found_is_told_where_what_looks_falls_or_speaks_of_something_else() {
        for (script, told) in [
            ("read -r begin; exit 3", "the process that looks at the cards has ended (exit status: 3)"),
            ("read -r begin; kill -ABRT $$", "the process that looks at the cards has ended (signal: 6 (SIGABRT))"),
            ("read -r begin; echo none of ours", "the cards cannot be looked at: expected"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (gpus, news) = start(dir.path(), script);
            let why = why(&news);
            assert!(why.starts_with(told), "{why}");
            // Who waits for the first look does so beyond that, and then hears it.
            let seen = gpus.first(Duration::from_millis(10));
            assert!(matches!(&seen.driver, Driver::Missing { reason } if *reason == why), "{seen:?}");
        }
    }

    #[test]
    fn what_has_not_answered_for_long_is_ended_when_it_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let (gpus, news) = start(dir.path(), "exec sleep 1000");
        let ask = || gpus.look(Duration::ZERO);
        ask();
        ask();
        let long_ago = Instant::now().checked_sub(HANGS).unwrap();
        gpus.shared.state().asked.values_mut().for_each(|(since, _)| *since = long_ago);
        ask();
        assert_eq!(why(&news), "the process that looks at the cards has ended (signal: 9 (SIGKILL))");
    }
}
