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

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::remote::Carrier;
use super::told;
use crate::config::Paths;
use crate::contract::Identity;
use crate::engine::{Delivery, EngineError, Launch};
use crate::ids::JobKey;
use crate::remote::{Errand, Mark, News};
use crate::rundir::{read_json, write_json};
use crate::spec::{RemoteMount, SyncAt};
use crate::store::record::Owner;
use crate::sys::file::{Durability, create_dir, remove_if_there};
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
/// Most files that are named one by one.
const NAMED_MAX: usize = 5;
/// Copies at once.
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
    sending: usize,
}

#[derive(Clone)]
struct Slot {
    letter: Letter,
    /// Somebody does not want to wait for its time.
    is_due: bool,
    is_dropped: bool,
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
    left: Vec<(String, String)>,
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
            self.begin(path, letter)?;
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
            Delivery::Never => slot.is_dropped = true,
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
        lock(&self.state).letters.insert(path.clone(), Slot { letter, is_due, is_dropped: false });
        let this = self.clone();
        std::thread::Builder::new().name("outbox".to_owned()).spawn(move || this.keep(&path)).map(drop)
    }

    fn keep(&self, path: &Path) {
        let mut failures = 0;
        let mut told_failure = None;
        let Some(mut due) = lock(&self.state).letters.get(path).map(|slot| slot.letter.every_ms.map(in_ms)) else {
            return;
        };
        loop {
            let Some(slot) = self.wait(path, due) else { return };
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
                        Some(format!("the output of run {run} is in {remote}: {}{}", tried.progress, left(&tried))),
                    );
                    return self.forget(path);
                }
                Ok(_) => {
                    (failures, told_failure) = (0, None);
                    tell(Some(format!("its output is copied to {remote}")), None);
                    due = slot.letter.every_ms.map(in_ms);
                }
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
    fn wait(&self, path: &Path, due: Option<Instant>) -> Option<Slot> {
        let mut state = lock(&self.state);
        loop {
            let may = state.sending < AT_ONCE;
            let slot = state.letters.get_mut(path)?;
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if may && (slot.is_due || left.is_some_and(|left| left.is_zero())) {
                slot.is_due = false;
                return Some(slot.clone());
            }
            let left = left.filter(|left| !left.is_zero()).unwrap_or(PAUSE_MAX);
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn forget(&self, path: &Path) {
        for path in [path.to_owned(), sent_file(path)] {
            if let Err(error) = remove_if_there(&path) {
                tracing::warn!(path = %path.display(), %error, "a note of output that was copied stays");
            }
        }
        lock(&self.state).letters.remove(path);
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
        let mut left = Vec::new();
        let mut hear = |news: &News| match news {
            News::Progress(progress) => tell(Some(format!("copies its output to {remote}: {progress}")), None),
            News::Left { path, why } => left.push((path.clone(), why.clone())),
            News::Sent { path, mark } => {
                // What is not noted is only sent once more.
                let line = serde_json::to_string(&(path, mark)).map(|line| format!("{line}\n"));
                let _ = line.map(|line| log.write_all(line.as_bytes()));
            }
            News::Brought { .. } | News::AllSent { .. } | News::Failed { .. } => {}
        };
        let _turn = self.turn();
        let owner = Owner { uid: letter.uid, gid: letter.gid };
        let errand = Errand::Send { prefix: letter.prefix.clone(), sent };
        match self.carrier.carry(remote, (&key.workspace, owner), (&directory, errand), &mut hear)? {
            News::AllSent { progress } => Ok(Tried { progress: progress.to_string(), left }),
            News::Failed { message, .. } => Err(EngineError(message)),
            _ => Err(EngineError("it was not copied".to_owned())),
        }
    }

    fn turn(&self) -> Turn<'_> {
        lock(&self.state).sending += 1;
        Turn(self)
    }
}

struct Turn<'a>(&'a Outbox);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).sending -= 1;
        self.0.changed.notify_all();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

fn left(tried: &Tried) -> String {
    if tried.left.is_empty() {
        return String::new();
    }
    let named = tried.left.iter().take(NAMED_MAX).map(|(path, why)| format!("{path} ({why})"));
    let more = tried.left.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; not sent: {}{more}", named.collect::<Vec<_>>().join(", "))
}

fn sent_file(letter: &Path) -> PathBuf {
    letter.with_extension("sent")
}

/// What is in the store already, and the file to note more of it.
fn read_sent(path: &Path) -> io::Result<(BTreeMap<PathBuf, Mark>, File)> {
    let mut log = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    // Lines that a crash cut short are none; what follows begins a new one.
    let lines = io::BufReader::new(File::open(path)?).lines().map_while(Result::ok);
    let sent = lines.filter_map(|line| serde_json::from_str(&line).ok()).collect();
    log.write_all(b"\n")?;
    Ok((sent, log))
}
