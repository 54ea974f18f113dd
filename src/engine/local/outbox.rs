//! Output on its way to stores of other machines.
//!
//! A run that is to be copied out has a letter here from before its first task starts until everything is in the store. Each
//! letter has a thread, which sends what has changed: every so often while the run goes on, where its job file says so, and
//! at its end. What fails is tried again, less and less often, for as long as it takes; whatever happens, the output itself
//! stays where it is.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::remote::Carrier;
use super::told;
use crate::config::Paths;
use crate::contract::Identity;
use crate::engine::{Delivery, EngineError, Launch};
use crate::ids::JobKey;
use crate::remote::{Errand, Left, Mark, News};
use crate::rundir::{read_json, write_json};
use crate::spec::{RemoteMount, SyncAt};
use crate::store::record::Owner;
use crate::sys::file::{Durability, create_dir, remove_if_there, write_whole};
use crate::sys::process::PidFd;
use crate::sys::rooted::Rooted;

/// Called with what has become of a run's output; from any thread.
pub type Deliveries = Box<dyn Fn(&JobKey, u32, Delivered) + Send + Sync>;

/// What is told of a run's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    /// How far it has come; nothing is on its way any more when absent.
    pub state: Option<String>,
    /// For the job's events.
    pub note: Option<String>,
}

/// What failed is tried again after so long, and twice as long each time.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Copies at once of a workspace: one that hangs holds up no other's.
const AT_ONCE: usize = 4;

pub(super) struct Outbox {
    carrier: Arc<Carrier>,
    paths: Paths,
    deliveries: Deliveries,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    letters: BTreeMap<PathBuf, Slot>,
    /// By workspace.
    sending: BTreeMap<String, usize>,
}

#[derive(Clone)]
struct Slot {
    letter: Letter,
    /// Somebody does not want to wait for its time.
    is_due: bool,
    is_dropped: bool,
    /// What copies just now.
    carrying: Option<Arc<PidFd>>,
}

/// A run whose output is to be copied.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Letter {
    workspace: String,
    job: String,
    run: u32,
    uid: u32,
    gid: u32,
    kind: String,
    pool: String,
    /// Of this run.
    prefix: String,
    /// While the run goes on, ms.
    every_ms: Option<u64>,
    /// The run has ended.
    is_over: bool,
}

impl Letter {
    fn of(launch: &Launch, remote: &RemoteMount) -> Self {
        let key = &launch.identity.key;
        let every = match remote.sync {
            Some(SyncAt::Every(every)) => Some(u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            Some(SyncAt::End) | None => None,
        };
        Self {
            workspace: key.workspace.to_string(),
            job: key.job.to_string(),
            run: launch.identity.run,
            uid: launch.owner.uid,
            gid: launch.owner.gid,
            kind: remote.kind.clone(),
            pool: remote.pool.to_string(),
            prefix: remote.prefix_of(&key.job, launch.identity.run),
            every_ms: every,
            is_over: false,
        }
    }

    fn key(&self) -> Option<JobKey> {
        Some(JobKey::new(self.workspace.parse().ok()?, self.job.parse().ok()?))
    }

    fn remote(&self) -> Option<RemoteMount> {
        let (kind, prefix) = (self.kind.clone(), self.prefix.clone());
        Some(RemoteMount {
            kind,
            pool: self.pool.parse().ok()?,
            prefix,
            target: PathBuf::from("/output"),
            sync: Some(SyncAt::End),
        })
    }
}

/// What a try has come to.
struct Tried {
    progress: String,
    /// What no store takes.
    left: Left,
}

impl Outbox {
    pub(super) fn open(carrier: Arc<Carrier>, paths: Paths, deliveries: Deliveries) -> io::Result<Arc<Self>> {
        create_dir(&paths.outbox(), 0o700)?;
        let state = Mutex::default();
        Ok(Arc::new(Self { carrier, paths, deliveries, state, changed: Condvar::new() }))
    }

    /// Goes on with what an earlier daemon has not sent; `open` are the runs that are not over.
    pub(super) fn resume(self: &Arc<Self>, open: &[Identity]) -> io::Result<()> {
        for entry in fs::read_dir(self.paths.outbox())? {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "json") {
                continue;
            }
            let letter: Option<Letter> = read_json(&path).unwrap_or_else(|error| {
                tracing::warn!(%error, "a note of output that is to be copied cannot be read");
                None
            });
            let Some(mut letter) = letter else { continue };
            let key = letter.key();
            let is_open = open.iter().any(|run| Some(&run.key) == key.as_ref() && run.run == letter.run);
            letter.is_over |= !is_open;
            if let (Some(key), Some(remote), true) = (key, letter.remote(), letter.is_over) {
                let state = format!("the output of run {} is to be copied to {remote}", letter.run);
                (self.deliveries)(&key, letter.run, Delivered { state: Some(state), note: None });
            }
            // Nothing of a past run may keep the daemon from starting; the letter stays.
            if let Err(error) = self.begin(path, letter) {
                tracing::warn!(%error, "output that is to be copied to a store waits for the next start");
            }
        }
        Ok(())
    }

    /// The run begins: from now on its output is not forgotten.
    pub(super) fn post(self: &Arc<Self>, launch: &Launch) -> Result<(), EngineError> {
        let Some(remote) = launch.spec.copied_out() else { return Ok(()) };
        let path = self.letter(&launch.identity.key, launch.identity.run);
        if lock(&self.state).letters.contains_key(&path) {
            return Ok(());
        }
        let letter = Letter::of(launch, remote);
        write_json(&path, &letter, Durability::Machine).map_err(told)?;
        self.begin(path, letter).map_err(super::failed("begin to copy the output"))
    }

    /// The run is over, or somebody wants its output sent, or no longer sent.
    pub(super) fn deliver(&self, key: &JobKey, run: u32, how: Delivery) {
        let path = self.letter(key, run);
        let mut state = lock(&self.state);
        let Some(slot) = state.letters.get_mut(&path) else {
            drop(state);
            // No task of it was ever started, or all of it is in the store.
            return (self.deliveries)(key, run, Delivered::default());
        };
        match how {
            Delivery::Over => slot.letter.is_over = true,
            Delivery::Now => {}
            Delivery::Never => {
                slot.is_dropped = true;
                if let Some(carrying) = slot.carrying.take() {
                    // It has ended where that fails.
                    let _ = carrying.signal(Signal::SIGKILL);
                }
            }
        }
        slot.is_due = true;
        if let Err(error) = write_json(&path, &slot.letter, Durability::Machine) {
            // The next start knows it by the run.
            tracing::warn!(%error, "cannot note that a run is over");
        }
        self.changed.notify_all();
    }

    fn letter(&self, key: &JobKey, run: u32) -> PathBuf {
        let digest = Sha256::digest(format!("{key}\n{run}").as_bytes());
        let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        self.paths.outbox().join(format!("{name}.json"))
    }

    fn begin(self: &Arc<Self>, path: PathBuf, letter: Letter) -> io::Result<()> {
        let is_due = letter.is_over;
        let slot = Slot { letter, is_due, is_dropped: false, carrying: None };
        lock(&self.state).letters.insert(path.clone(), slot);
        let (this, own) = (self.clone(), path.clone());
        let thread = std::thread::Builder::new().name("outbox".to_owned()).spawn(move || this.keep(&own));
        thread.map(drop).inspect_err(|_| drop(lock(&self.state).letters.remove(&path)))
    }

    fn keep(&self, path: &Path) {
        let mut failures = 0;
        let mut told_failure = None;
        let Some(mut due) = lock(&self.state).letters.get(path).map(|slot| slot.letter.every_ms.map(in_ms)) else {
            return;
        };
        loop {
            let Some((slot, _turn)) = self.wait(path, due) else { return };
            let (Some(key), Some(remote)) = (slot.letter.key(), slot.letter.remote()) else { return };
            let tell = |state: Option<String>, note: Option<String>| {
                (self.deliveries)(&key, slot.letter.run, Delivered { state, note });
            };
            let run = slot.letter.run;
            if slot.is_dropped {
                tell(
                    None,
                    Some(format!("the output of run {run} is no longer copied to {remote}; it stays in output/")),
                );
                return self.forget(path);
            }
            tell(Some(format!("copies its output to {remote}")), None);
            match self.send(path, &slot.letter, &key, &remote, &tell) {
                Ok(tried) if slot.letter.is_over => {
                    tell(
                        None,
                        Some(format!("the output of run {run} is in {remote}: {}{}", tried.progress, tried.left)),
                    );
                    return self.forget(path);
                }
                Ok(_) => {
                    (failures, told_failure) = (0, None);
                    tell(Some(format!("its output is copied to {remote}")), None);
                    due = slot.letter.every_ms.map(in_ms);
                }
                // It was ended for that.
                Err(_) if self.is_dropped(path) => {}
                Err(error) => {
                    let pause = PAUSE_MIN.saturating_mul(2u32.saturating_pow(failures)).min(PAUSE_MAX);
                    failures += 1;
                    let again = crate::ids::format_duration(pause);
                    let what = format!("the output of run {run} could not be copied to {remote}: {error}");
                    let is_new = told_failure.as_ref() != Some(&what);
                    let hint = format!("it is tried again in {again}, or by `trainyard send {key}`");
                    tell(
                        Some(format!("{what}; {hint}")),
                        is_new.then(|| format!("{what}; it stays in output/, and {hint}")),
                    );
                    told_failure = Some(what);
                    due = Some(Instant::now() + pause);
                }
            }
        }
    }

    /// Until the letter's time has come, and its turn; nothing when it is gone.
    fn wait(&self, path: &Path, due: Option<Instant>) -> Option<(Slot, Turn<'_>)> {
        let mut state = lock(&self.state);
        loop {
            let workspace = state.letters.get(path)?.letter.workspace.clone();
            let may = state.sending.get(&workspace).is_none_or(|sending| *sending < AT_ONCE);
            let slot = state.letters.get_mut(path)?;
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if slot.is_dropped || (may && (slot.is_due || left.is_some_and(|left| left.is_zero()))) {
                slot.is_due = false;
                let slot = slot.clone();
                *state.sending.entry(workspace.clone()).or_default() += 1;
                return Some((slot, Turn { outbox: self, workspace }));
            }
            let left = left.filter(|left| !left.is_zero()).unwrap_or(PAUSE_MAX);
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_dropped(&self, path: &Path) -> bool {
        lock(&self.state).letters.get(path).is_some_and(|slot| slot.is_dropped)
    }

    /// Under the lock, so that nobody writes the letter again.
    fn forget(&self, path: &Path) {
        let mut state = lock(&self.state);
        for path in [path.to_owned(), sent_file(path)] {
            if let Err(error) = remove_if_there(&path) {
                tracing::warn!(path = %path.display(), %error, "a note of output that was copied stays");
            }
        }
        state.letters.remove(path);
    }

    fn send(
        &self,
        path: &Path,
        letter: &Letter,
        key: &JobKey,
        remote: &RemoteMount,
        tell: &dyn Fn(Option<String>, Option<String>),
    ) -> Result<Tried, EngineError> {
        let run = self.paths.run(key, letter.run);
        let opened = Rooted::open(&run).and_then(|run| run.directory_for_reading(Path::new("output")));
        let directory = opened.map_err(super::failed("open the output"))?;
        let (sent, mut log) = read_sent(&sent_file(path)).map_err(super::failed("read what was sent"))?;
        let mut hear = |news: &News| match news {
            News::Progress(progress) => tell(Some(format!("copies its output to {remote}: {progress}")), None),
            News::Sent { path, mark } => {
                // What is not noted is only sent once more.
                let line = serde_json::to_string(&(path, mark)).map(|line| format!("{line}\n"));
                let _ = line.map(|line| log.write_all(line.as_bytes()));
            }
            News::Brought { .. } | News::AllSent { .. } | News::Failed { .. } | News::Alive => {}
        };
        let begun = |process: Arc<PidFd>| {
            if let Some(slot) = lock(&self.state).letters.get_mut(path) {
                slot.carrying = Some(process);
            }
        };
        let owner = Owner { uid: letter.uid, gid: letter.gid };
        let errand = Errand::Send { prefix: letter.prefix.clone(), sent };
        let carried = self.carrier.carry(remote, (&key.workspace, owner), (&directory, errand), &begun, &mut hear);
        if let Some(slot) = lock(&self.state).letters.get_mut(path) {
            slot.carrying = None;
        }
        match carried? {
            News::AllSent { changed, .. } if changed > 0 && letter.is_over => {
                Err(EngineError(format!("{changed} files were changed while they were sent")))
            }
            News::AllSent { progress, left, .. } => Ok(Tried { progress: progress.to_string(), left }),
            News::Failed { message, .. } => Err(EngineError(message)),
            _ => Err(EngineError("it was not copied".to_owned())),
        }
    }
}

/// One of the copies that a workspace may make at once.
struct Turn<'a> {
    outbox: &'a Outbox,
    workspace: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.outbox.state);
        if let Some(sending) = state.sending.get_mut(&self.workspace) {
            *sending -= 1;
            if *sending == 0 {
                state.sending.remove(&self.workspace);
            }
        }
        self.outbox.changed.notify_all();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

fn sent_file(letter: &Path) -> PathBuf {
    letter.with_extension("sent")
}

/// What is in the store already, and the file to note more of it, with no more lines than it needs.
fn read_sent(path: &Path) -> io::Result<(BTreeMap<PathBuf, Mark>, File)> {
    let mut sent: BTreeMap<PathBuf, Mark> = BTreeMap::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        file => {
            // Lines that a crash cut short are none.
            let lines = io::BufReader::new(file?).lines().map_while(Result::ok);
            sent.extend(lines.filter_map(|line| serde_json::from_str::<(PathBuf, Mark)>(&line).ok()));
        }
    }
    let mut text = Vec::new();
    for entry in &sent {
        serde_json::to_writer(&mut text, &entry)?;
        text.push(b'\n');
    }
    write_whole(path, &text, 0o600, Durability::Process)?;
    Ok((sent, OpenOptions::new().append(true).open(path)?))
}
