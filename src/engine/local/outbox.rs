//! Output on its way to stores of other machines.
//!
//! A run that is to be copied out has a letter here from before its first task starts until everything is in the store. What
//! has changed is sent every so often while the run goes on, where its job file says so, and at its end. What fails is tried
//! again, less and less often, for as long as it takes; whatever happens, the output itself stays where it is.
//!
//! ```text
//! one thread: waits for the next letter's time ──► a thread for each copy under way ──► the letter's next time, or its end
//! ```
//!
//! Letters of a job to one place go in the order of their runs: what is in the store at the end is of the newest one.
//!
//! A letter that is given up while its run goes on stays until the run is over, so that no further attempt writes another.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
use crate::ids::{JobKey, WorkspaceName};
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

/// Jobs and runs of them, in order.
type Address = (JobKey, u32);

#[derive(Default)]
struct State {
    letters: BTreeMap<Address, Slot>,
}

struct Slot {
    letter: Letter,
    path: PathBuf,
    to: RemoteMount,
    /// When it goes, if its turn has come; not by itself when absent.
    due: Option<Instant>,
    is_dropped: bool,
    /// Its owner has been told that it is given up.
    is_drop_told: bool,
    /// A thread has it.
    is_taken: bool,
    /// What copies just now.
    carrying: Option<Arc<PidFd>>,
    /// Since it went the last time.
    failures: u32,
    told_failure: Option<String>,
}

impl Slot {
    fn of(path: PathBuf, letter: Letter, to: RemoteMount) -> Self {
        let is_dropped = letter.is_dropped;
        let due = match letter.is_over {
            true => Some(Instant::now()),
            false => letter.every_ms.filter(|_| !is_dropped).map(in_ms),
        };
        Self {
            letter,
            path,
            to,
            due,
            is_dropped,
            is_drop_told: is_dropped,
            is_taken: false,
            carrying: None,
            failures: 0,
            told_failure: None,
        }
    }

    /// Nothing of it is sent, and nothing under way.
    fn rests(&self) -> bool {
        self.is_dropped && !self.is_taken
    }

    fn may_go(&self, now: Instant) -> bool {
        !self.is_taken && self.due.is_some_and(|due| due <= now)
    }
}

impl State {
    /// A letter whose time has come, and whose turn it is.
    fn next(&self, now: Instant) -> Option<Address> {
        let mut taken: BTreeMap<&WorkspaceName, usize> = BTreeMap::new();
        for ((key, _), _) in self.letters.iter().filter(|(_, slot)| slot.is_taken) {
            *taken.entry(&key.workspace).or_default() += 1;
        }
        let has_turn = |(address, slot): &(&Address, &Slot)| {
            let is_free = taken.get(&address.0.workspace).is_none_or(|taken| *taken < AT_ONCE);
            slot.is_dropped || (is_free && self.older(address, &slot.to).is_none())
        };
        let mut due = self.letters.iter().filter(|(_, slot)| slot.may_go(now)).filter(has_turn);
        due.next().map(|(address, _)| address.clone())
    }

    /// The run before it whose output goes to the same place, and is not there yet.
    fn older(&self, (key, run): &Address, to: &RemoteMount) -> Option<u32> {
        let mut older = self.letters.range((key.clone(), 0)..(key.clone(), *run));
        older.find(|(_, slot)| !slot.rests() && overlap(&slot.to, to)).map(|((_, run), _)| *run)
    }

    /// When the next one's time comes. What is due and has no turn goes when another one has come back.
    fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.letters.values().filter(|slot| !slot.is_taken).filter_map(|slot| slot.due).filter(|due| *due > now).min()
    }
}

/// Whether what is sent to one of them may lie in the other.
fn overlap(one: &RemoteMount, other: &RemoteMount) -> bool {
    let (first, second) = (Path::new(&one.prefix), Path::new(&other.prefix));
    one.pool == other.pool && (first.starts_with(second) || second.starts_with(first))
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
    /// Nobody wants it copied any more.
    #[serde(default)]
    is_dropped: bool,
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
            is_dropped: false,
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
        let outbox = Arc::new(Self { carrier, paths, deliveries, state, changed: Condvar::new() });
        let this = outbox.clone();
        std::thread::Builder::new().name("outbox".to_owned()).spawn(move || this.hand_out())?;
        Ok(outbox)
    }

    /// Goes on with what an earlier daemon has not sent; `open` are the runs that are not over.
    pub(super) fn resume(self: &Arc<Self>, open: &[Identity]) -> io::Result<()> {
        let mut found = Vec::new();
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
            let (Some(key), Some(to)) = (letter.key(), letter.remote()) else {
                tracing::warn!(path = %path.display(), "a note of output that is to be copied is of no job");
                continue;
            };
            let is_open = open.iter().any(|identity| identity.key == key && identity.run == letter.run);
            letter.is_over |= !is_open;
            if letter.is_over {
                let state = format!("the output of run {} is to be copied to {to}", letter.run);
                (self.deliveries)(&key, letter.run, Delivered { state: Some(state), note: None });
            }
            found.push(((key, letter.run), Slot::of(path, letter, to)));
        }
        // All at once: whoever hands them out must see which are older.
        lock(&self.state).letters.extend(found);
        self.changed.notify_all();
        Ok(())
    }

    /// The run begins: from now on its output is not forgotten.
    pub(super) fn post(self: &Arc<Self>, launch: &Launch) -> Result<(), EngineError> {
        let Some(remote) = launch.spec.copied_out() else { return Ok(()) };
        let (key, run) = (&launch.identity.key, launch.identity.run);
        if lock(&self.state).letters.contains_key(&(key.clone(), run)) {
            return Ok(());
        }
        let (path, letter) = (self.letter(key, run), Letter::of(launch, remote));
        write_json(&path, &letter, Durability::Machine).map_err(told)?;
        let to = letter.remote().ok_or_else(|| EngineError(format!("mounts: {remote} cannot be noted")))?;
        lock(&self.state).letters.insert((key.clone(), run), Slot::of(path, letter, to));
        self.changed.notify_all();
        Ok(())
    }

    /// The run is over, or somebody wants its output sent, or no longer sent.
    pub(super) fn deliver(&self, key: &JobKey, run: u32, how: Delivery) {
        let mut state = lock(&self.state);
        let Some(slot) = state.letters.get_mut(&(key.clone(), run)) else {
            drop(state);
            // No task of it was ever started, or all of it is in the store.
            return (self.deliveries)(key, run, Delivered::default());
        };
        match how {
            Delivery::Over => slot.letter.is_over = true,
            Delivery::Now => {
                (slot.is_dropped, slot.letter.is_dropped, slot.is_drop_told) = (false, false, false);
            }
            Delivery::Never => {
                (slot.is_dropped, slot.letter.is_dropped) = (true, true);
                if let Some(carrying) = slot.carrying.take() {
                    // It has ended where that fails.
                    let _ = carrying.signal(Signal::SIGKILL);
                }
            }
        }
        if let Err(error) = write_json(&slot.path, &slot.letter, Durability::Machine) {
            // The next start knows it by the run.
            tracing::warn!(%error, "cannot note that a run is over");
        }
        let (to, is_dropped) = (slot.to.clone(), slot.is_dropped);
        // Those before it to the same place go first, so they wait no longer either.
        let upto = state.letters.range_mut((key.clone(), 0)..=(key.clone(), run));
        for (_, slot) in upto.filter(|(_, slot)| overlap(&slot.to, &to)) {
            slot.due = Some(Instant::now());
        }
        let older = state.older(&(key.clone(), run), &to).filter(|_| !is_dropped);
        drop(state);
        self.changed.notify_all();
        if let Some(older) = older {
            let state = format!("its output goes to {to} when that of run {older} is there");
            (self.deliveries)(key, run, Delivered { state: Some(state), note: None });
        }
    }

    fn letter(&self, key: &JobKey, run: u32) -> PathBuf {
        let digest = Sha256::digest(format!("{key}\n{run}").as_bytes());
        let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        self.paths.outbox().join(format!("{name}.json"))
    }

    /// Gives each letter, when its time and its turn have come, to a thread.
    fn hand_out(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            if let Some(address) = state.next(now) {
                self.hand(&mut state, address);
                continue;
            }
            let left = state.wake_at(now).map_or(PAUSE_MAX, |at| at.saturating_duration_since(now));
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn hand(self: &Arc<Self>, state: &mut State, address: Address) {
        let Some(slot) = state.letters.get_mut(&address) else { return };
        slot.is_taken = true;
        slot.due = None;
        let (this, address) = (self.clone(), address);
        let own = address.clone();
        if let Err(error) = std::thread::Builder::new().name("send".to_owned()).spawn(move || this.take(&own)) {
            tracing::warn!(job = %address.0, %error, "cannot start a thread for a copy, will try again");
            slot.is_taken = false;
            slot.due = Some(Instant::now() + PAUSE_MIN);
        }
    }

    /// Sends what there is, and sets when it goes again.
    fn take(&self, address: &Address) {
        let copied = catch_unwind(AssertUnwindSafe(|| self.copy(address)));
        let after = copied.unwrap_or_else(|_| {
            tracing::error!(job = %address.0, run = address.1, "an error of Trainyard's own while output was copied");
            After::Again(PAUSE_MAX)
        });
        let mut state = lock(&self.state);
        match after {
            After::Never => self.forget(&mut state, address),
            After::Again(pause) => {
                if let Some(slot) = state.letters.get_mut(address) {
                    slot.is_taken = false;
                    // Unless somebody wanted it meanwhile.
                    slot.due = slot.due.or_else(|| Instant::now().checked_add(pause));
                }
            }
            After::WhenAsked => {
                if let Some(slot) = state.letters.get_mut(address) {
                    slot.is_taken = false;
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn copy(&self, address: &Address) -> After {
        let (key, run) = (&address.0, address.1);
        let tell = |state: Option<String>, note: Option<String>| (self.deliveries)(key, run, Delivered { state, note });
        let known = lock(&self.state).letters.get(address).map(|slot| (slot.letter.clone(), slot.to.clone()));
        let Some((letter, remote)) = known else { return After::Never };
        if self.is_dropped(address) {
            let note = format!("the output of run {run} is no longer copied to {remote}; it stays in output/");
            tell(None, Some(note).filter(|_| self.is_drop_new(address)));
            return if letter.is_over { After::Never } else { After::WhenAsked };
        }
        tell(Some(format!("copies its output to {remote}")), None);
        match self.send(address, &letter, &remote, &tell) {
            Ok(tried) if letter.is_over => {
                let note = format!("the output of run {run} is in {remote}: {}{}", tried.progress, tried.left);
                tell(None, Some(note));
                After::Never
            }
            Ok(_) => {
                self.note_failure(address, None);
                tell(Some(format!("its output is copied to {remote}")), None);
                letter.every_ms.map_or(After::WhenAsked, |every| After::Again(Duration::from_millis(every)))
            }
            // It was ended for that: the next turn says so.
            Err(_) if self.is_dropped(address) => After::Again(Duration::ZERO),
            Err(error) => {
                let what = format!("the output of run {run} could not be copied to {remote}: {error}");
                let (pause, is_new) = self.note_failure(address, Some(&what));
                let again = crate::ids::format_duration(pause);
                let hint = format!("it is tried again in {again}, or by `trainyard send {key}`");
                let note = is_new.then(|| format!("{what}; it stays in output/, and {hint}"));
                tell(Some(format!("{what}; {hint}")), note);
                After::Again(pause)
            }
        }
    }

    /// How long to wait after a failure, and whether its owner has not been told of it; `None` is a success.
    fn note_failure(&self, address: &Address, what: Option<&str>) -> (Duration, bool) {
        let mut state = lock(&self.state);
        let Some(slot) = state.letters.get_mut(address) else { return (PAUSE_MAX, false) };
        let pause = PAUSE_MIN.saturating_mul(2u32.saturating_pow(slot.failures)).min(PAUSE_MAX);
        slot.failures = if what.is_some() { slot.failures.saturating_add(1) } else { 0 };
        let is_new = slot.told_failure.as_deref() != what;
        slot.told_failure = what.map(str::to_owned);
        (pause, is_new)
    }

    fn is_dropped(&self, address: &Address) -> bool {
        lock(&self.state).letters.get(address).is_some_and(|slot| slot.is_dropped)
    }

    /// Whether its owner has not been told yet that it is given up; says so once.
    fn is_drop_new(&self, address: &Address) -> bool {
        let mut state = lock(&self.state);
        state.letters.get_mut(address).is_some_and(|slot| !std::mem::replace(&mut slot.is_drop_told, true))
    }

    /// Under the lock, so that nobody writes the letter again.
    fn forget(&self, state: &mut State, address: &Address) {
        let Some(slot) = state.letters.remove(address) else { return };
        for path in [sent_file(&slot.path), slot.path] {
            if let Err(error) = remove_if_there(&path) {
                tracing::warn!(path = %path.display(), %error, "a note of output that was copied stays");
            }
        }
    }

    fn set_carrying(&self, address: &Address, process: Option<Arc<PidFd>>) {
        let mut state = lock(&self.state);
        let Some(slot) = state.letters.get_mut(address) else { return };
        if let (true, Some(process)) = (slot.is_dropped, &process) {
            // It was given up while the process was started; it has ended where that fails.
            let _ = process.signal(Signal::SIGKILL);
        }
        slot.carrying = process;
    }

    fn send(
        &self,
        address: &Address,
        letter: &Letter,
        remote: &RemoteMount,
        tell: &dyn Fn(Option<String>, Option<String>),
    ) -> Result<Tried, EngineError> {
        let key = &address.0;
        let run = self.paths.run(key, letter.run);
        let opened = Rooted::open(&run).and_then(|run| run.directory_for_reading(Path::new("output")));
        let directory = match opened {
            // Nobody can bring it back; what comes after it is not to wait for ever.
            Err(error) if error.kind() == io::ErrorKind::NotFound && letter.is_over => {
                return Ok(Tried { progress: "nothing of it is left here".to_owned(), left: Left::default() });
            }
            opened => opened.map_err(super::failed("open the output"))?,
        };
        let (sent, mut log) =
            read_sent(&sent_file(&self.letter(key, letter.run))).map_err(super::failed("read what was sent"))?;
        let mut hear = |news: &News| match news {
            News::Progress(progress) => tell(Some(format!("copies its output to {remote}: {progress}")), None),
            News::Again { why } => tell(Some(format!("copies its output to {remote}: {why}")), None),
            News::Sent { path, mark } => {
                // What is not noted is only sent once more.
                let line = serde_json::to_string(&(path, mark)).map(|line| format!("{line}\n"));
                let _ = line.map(|line| log.write_all(line.as_bytes()));
            }
            News::Brought { .. } | News::AllSent { .. } | News::Failed { .. } | News::Alive => {}
        };
        let begun = |process: Arc<PidFd>| self.set_carrying(address, Some(process));
        let owner = Owner { uid: letter.uid, gid: letter.gid };
        let errand = Errand::Send { prefix: letter.prefix.clone(), sent };
        let carried = self.carrier.carry(remote, (&key.workspace, owner), (&directory, errand), &begun, &mut hear);
        self.set_carrying(address, None);
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

/// When a letter goes again.
enum After {
    Never,
    Again(Duration),
    /// When the run is over, or somebody asks for it.
    WhenAsked,
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
