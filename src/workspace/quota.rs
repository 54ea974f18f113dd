//! How much workspaces may keep on the disk, between the daemon and the mount process.
//!
//! ```text
//! daemon ──  quotas.json  ─► mount    limits, who holds them, what jobs have left behind the mount
//! daemon ◄─  counted.json ── mount    what datasets/ and code/ take, which change through the mount alone
//! who shows directly ── strays.json ─► mount    who still writes past the mount, where `code/` was shown directly before
//! ```
//! Each writes a file of its own in `run/trainyard/storage/` and watches for the other's, so that either may end and begin
//! anew: what was told last stays in force. The sum is the same for both, so `df` shows what `trainyard workspace` does.
//! Copies of both, some seconds old, are in `var/lib/trainyard/storage/`: what was full is full when the machine is started.
//!
//! Where a workspace was made under a quota on a disk whose kernel part keeps such (`assets::enforced`), nothing is counted here.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trainyard_fs::{Account, Quota, RelPath};

use super::pace::Pace;
use crate::assets::Part;
use crate::assets::enforced::{self, Enforcer};
use crate::config::Paths;
use crate::ids::HomeName;
use crate::sys::file::{Durability, create_dir, optional, write_whole};
use crate::sys::measure;
use crate::sys::pause;
use crate::sys::watch::watch;

/// What changes is told this much later, so that a burst of writes costs one file.
const TELL_AFTER: Duration = Duration::from_millis(100);
/// When to count once more what was changed all the while that it was counted.
const COUNT_AGAIN: Duration = Duration::from_secs(10);
/// How often what is counted is written for the time after the machine's next start: that waits for the disk.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// Who sees to it that a workspace keeps no more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Held {
    /// Trainyard: the mount refuses, jobs are measured.
    Counted,
    /// The kernel, for everybody, by subvolumes.
    Btrfs,
    /// The kernel, for everybody, by a project of ext4 or XFS.
    Project,
}

/// What the daemon tells of one workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Bytes.
    pub limit: u64,
    pub held: Held,
    /// Bytes of jobs and models, which change behind the mount.
    pub behind: u64,
    /// Another number than before: something was removed behind the mount, so that it is to be counted anew.
    pub round: u64,
}

pub type Quotas = BTreeMap<HomeName, Told>;
/// Another number than before: something was written to `code/` past the mount, by who was there before the quota.
pub type Strays = BTreeMap<HomeName, u64>;
/// Bytes of `datasets/` and `code/`.
pub type Counts = BTreeMap<HomeName, u64>;

/// Where the two tell each other.
fn storage_dir(paths: &Paths) -> PathBuf {
    paths.run_dir().join("storage")
}

pub fn quotas_file(paths: &Paths) -> PathBuf {
    storage_dir(paths).join("quotas.json")
}

pub fn counts_file(paths: &Paths) -> PathBuf {
    storage_dir(paths).join("counted.json")
}

pub fn strays_file(paths: &Paths) -> PathBuf {
    storage_dir(paths).join("strays.json")
}

/// The copy of such a file that stays when the machine is started anew.
fn kept(paths: &Paths, file: &Path) -> PathBuf {
    paths.storage().join(file.file_name().unwrap_or_default())
}

/// Makes the directory for both; before it is watched.
pub fn make_storage_dir(paths: &Paths) -> io::Result<()> {
    create_dir(&paths.storage(), 0o700)?;
    create_dir(&storage_dir(paths), 0o700)
}

/// What was told last, before the machine was started if nothing was since. What cannot be read is told, and counted anew.
pub fn read_last<T: DeserializeOwned + Default>(paths: &Paths, file: &Path) -> T {
    let file = if file.exists() { file.to_owned() } else { kept(paths, file) };
    read(&file).unwrap_or_else(|error| {
        tracing::warn!(path = %file.display(), %error, "cannot read what workspaces kept; it is counted anew");
        T::default()
    })
}

/// For [`read_last`] after the machine's next start.
pub fn keep<T: Serialize>(paths: &Paths, file: &Path, told: &T) -> io::Result<()> {
    write_whole(&kept(paths, file), &serde_json::to_vec(told)?, 0o600, Durability::Machine)
}

/// Empty where nothing was told yet.
pub fn read<T: DeserializeOwned + Default>(file: &Path) -> io::Result<T> {
    let text = optional(std::fs::read(file))?;
    text.map_or(Ok(T::default()), |text| Ok(serde_json::from_slice(&text)?))
}

pub fn write<T: Serialize>(file: &Path, told: &T) -> io::Result<()> {
    write_whole(file, &serde_json::to_vec(told)?, 0o600, Durability::Process)
}

/// Has the workspace keep `limit` bytes at most, as many as it likes when `None`. Says who holds it to that, and what is to
/// be known of it.
pub fn hold(paths: &Paths, workspace: &HomeName, limit: Option<u64>) -> io::Result<(Held, Option<String>)> {
    let home = paths.home(workspace);
    let Some(enforcer) = Enforcer::of(&home)? else { return Ok((Held::Counted, enforced::why_not(&home)?)) };
    match enforcer.limit(&home, limit) {
        Ok(()) => Ok((held_by(enforcer), None)),
        Err(error) => Ok((Held::Counted, Some(format!("the kernel does not take its quota: {error}")))),
    }
}

fn held_by(enforcer: Enforcer) -> Held {
    match enforcer {
        Enforcer::Subvolumes(_) => Held::Btrfs,
        Enforcer::Project(_) => Held::Project,
    }
}

/// Has the kernel no longer count runs that were removed; says whether some are still being removed.
pub fn forget_removed(home: &Path) -> io::Result<bool> {
    Enforcer::of(home)?.map_or(Ok(false), |enforcer| enforcer.forget_removed(home))
}

/// Bytes that the kernel has counted of the workspace at `home`.
pub fn usage_by_kernel(home: &Path) -> io::Result<u64> {
    Enforcer::of(home)?.ok_or(io::ErrorKind::NotFound)?.usage(home)
}

/// What the mount knows of the quotas of workspaces.
#[derive(Debug, Default)]
pub struct Ledger {
    workspaces: PathBuf,
    pages: RwLock<BTreeMap<HomeName, Page>>,
}

#[derive(Debug, Clone)]
enum Page {
    Counted { account: Arc<Account>, round: u64 },
    Enforced { limit: u64 },
}

impl Ledger {
    /// With what is in force, and kept so for ever.
    pub fn keep(paths: &Paths) -> io::Result<Arc<Self>> {
        make_storage_dir(paths)?;
        let ledger = Arc::new(Self { workspaces: paths.workspaces(), pages: RwLock::default() });
        let (sender, words) = channel();
        let told = sender.clone();
        // The receiver is gone only when this process ends.
        let quotas = watch(&quotas_file(paths), move |_| drop(told.send(Word::Told)))?;
        let strayed = sender.clone();
        let strays = watch(&strays_file(paths), move |_| drop(strayed.send(Word::Strayed)))?;
        let counter = Counter::start(&ledger)?;
        let mut keeper = Keeper::new(paths, ledger.clone(), sender, counter);
        keeper.take_over();
        let keep = move || {
            let _watchers = (quotas, strays);
            keeper.run(&words);
        };
        std::thread::Builder::new().name("quotas".to_owned()).spawn(keep)?;
        Ok(ledger)
    }

    pub fn account(&self, path: &RelPath) -> Option<Arc<Account>> {
        match self.page(path)? {
            Page::Counted { account, .. } => Some(account),
            Page::Enforced { .. } => None,
        }
    }

    /// Whether the kernel counts what lies there: files that leave it would be counted on (projects), or cannot (subvolumes).
    pub fn is_enforced(&self, path: &RelPath) -> bool {
        matches!(self.page(path), Some(Page::Enforced { .. }))
    }

    /// For `statfs`.
    pub fn quota(&self, path: &RelPath) -> Option<Quota> {
        match self.page(path)? {
            Page::Counted { account, .. } => Some(account.quota()),
            Page::Enforced { limit } => {
                let used = usage_by_kernel(&self.workspaces.join(path.components().next()?)).ok()?;
                Some(Quota { limit, used })
            }
        }
    }

    /// Something has changed behind the mount, below `HOME/…`.
    pub fn changed_behind(&self, path: &Path) {
        if let Some(account) = RelPath::new(path).ok().and_then(|path| self.account(&path)) {
            account.want_count();
        }
    }

    fn page(&self, path: &RelPath) -> Option<Page> {
        let pages = self.pages();
        // Most installations have no quotas, and this is asked at every change.
        if pages.is_empty() {
            return None;
        }
        let home: HomeName = path.components().next()?.to_str()?.parse().ok()?;
        pages.get(&home).cloned()
    }

    /// Each change is one call of its own.
    fn pages(&self) -> RwLockReadGuard<'_, BTreeMap<HomeName, Page>> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Word {
    /// The daemon has told something.
    Told,
    /// Somebody writes past the mount.
    Strayed,
    /// An account has changed.
    Changed,
}

/// Takes over what the daemon tells, and tells it what is counted.
struct Keeper {
    paths: Paths,
    ledger: Arc<Ledger>,
    sender: Sender<Word>,
    counter: Counter,
    /// That something changed has been said already.
    dirty: Arc<AtomicBool>,
    /// What was kept for the time after the machine's next start, and when.
    kept: Option<(Counts, Instant)>,
    strays: Strays,
}

impl Keeper {
    fn new(paths: &Paths, ledger: Arc<Ledger>, sender: Sender<Word>, counter: Counter) -> Self {
        let (dirty, strays) = (Arc::default(), Strays::new());
        Self { paths: paths.clone(), ledger, sender, counter, dirty, kept: None, strays }
    }

    fn run(&mut self, words: &Receiver<Word>) {
        let mut tell_at: Option<Instant> = None;
        let mut keep_at: Option<Instant> = None;
        loop {
            let word = match tell_at.into_iter().chain(keep_at).min() {
                None => words.recv().map_err(RecvTimeoutError::from),
                Some(at) => words.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match word {
                Ok(Word::Told) => self.take_over(),
                Ok(Word::Strayed) => self.count_strays(),
                Ok(Word::Changed) => tell_at = tell_at.or_else(|| Some(Instant::now() + TELL_AFTER)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            if tell_at.take_if(|at| *at <= now).is_some() {
                self.tell();
                keep_at = keep_at.or_else(|| Some(self.kept.as_ref().map_or(now, |(_, kept)| *kept + KEEP_EVERY)));
            }
            if keep_at.take_if(|at| *at <= now).is_some() {
                // It waits for the disk.
                pause::work(|| self.keep());
            }
        }
    }

    fn take_over(&mut self) {
        let file = quotas_file(&self.paths);
        match read::<Quotas>(&file) {
            Ok(quotas) => self.apply(&quotas),
            Err(error) => tracing::warn!(path = %file.display(), %error, "cannot read the quotas; those before stay"),
        }
    }

    fn count_strays(&mut self) {
        let strays: Strays = match read(&strays_file(&self.paths)) {
            Ok(strays) => strays,
            Err(error) => return tracing::warn!(%error, "cannot read who writes past the mount"),
        };
        for (workspace, _) in strays.iter().filter(|(workspace, number)| self.strays.get(workspace) != Some(number)) {
            if let Some(Page::Counted { account, .. }) = self.ledger.pages().get(workspace) {
                account.want_count();
            }
        }
        self.strays = strays;
    }

    fn apply(&mut self, quotas: &Quotas) {
        let known: Counts = read_last(&self.paths, &counts_file(&self.paths));
        let before = self.ledger.pages().clone();
        let page = |(workspace, told): (&HomeName, &Told)| {
            let page = match (told.held, before.get(workspace)) {
                (Held::Btrfs | Held::Project, _) => Page::Enforced { limit: told.limit },
                (Held::Counted, Some(Page::Counted { account, round })) => {
                    if *round != told.round {
                        account.want_count();
                    }
                    Page::Counted { account: account.clone(), round: told.round }
                }
                (Held::Counted, _) => {
                    let account = self.account(known.get(workspace).copied().unwrap_or(0));
                    account.want_count();
                    Page::Counted { account, round: told.round }
                }
            };
            if let Page::Counted { account, .. } = &page {
                account.set_limit(told.limit);
                account.set_elsewhere(told.behind);
            }
            (workspace.clone(), page)
        };
        let pages = quotas.iter().map(page).collect();
        *self.ledger.pages.write().unwrap_or_else(PoisonError::into_inner) = pages;
    }

    fn account(&self, counted: u64) -> Arc<Account> {
        let (sender, dirty) = (self.sender.clone(), self.dirty.clone());
        let changed = move || {
            if !dirty.swap(true, Ordering::SeqCst) {
                // The receiver is gone only when this process ends.
                let _ = sender.send(Word::Changed);
            }
        };
        Arc::new(Account::new(u64::MAX, counted, changed))
    }

    fn counts(&self) -> Counts {
        let pages = self.ledger.pages();
        let counted = pages.iter().filter_map(|(workspace, page)| match page {
            Page::Counted { account, .. } => Some((workspace.clone(), account.counted())),
            Page::Enforced { .. } => None,
        });
        counted.collect()
    }

    fn keep(&mut self) {
        let counts = self.counts();
        if self.kept.as_ref().is_none_or(|(kept, _)| *kept != counts)
            && let Err(error) = keep(&self.paths, &counts_file(&self.paths), &counts)
        {
            tracing::warn!(%error, "cannot keep what workspaces keep for the time after the machine's next start");
        }
        self.kept = Some((counts, Instant::now()));
    }

    fn tell(&self) {
        self.dirty.store(false, Ordering::SeqCst);
        for (workspace, page) in self.ledger.pages().iter() {
            if let Page::Counted { account, .. } = page
                && account.take_wanted_count()
            {
                self.counter.ask(workspace);
            }
        }
        let file = counts_file(&self.paths);
        if let Err(error) = write(&file, &self.counts()) {
            tracing::warn!(path = %file.display(), %error, "cannot tell what workspaces keep; the next change tries again");
        }
    }
}

/// A thread that counts workspaces anew, one after the other, each for a tenth of the time at most.
struct Counter(Sender<HomeName>);

impl Counter {
    fn start(ledger: &Arc<Ledger>) -> io::Result<Self> {
        let (sender, asked) = channel::<HomeName>();
        let ledger = ledger.clone();
        let count = move || {
            let mut pace = Pace::default();
            loop {
                let word = match pace.next() {
                    None => asked.recv().map_err(RecvTimeoutError::from),
                    Some(at) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
                };
                match word {
                    Ok(workspace) => pace.want(workspace, Instant::now()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                asked.try_iter().for_each(|workspace| pace.want(workspace, Instant::now()));
                let began = Instant::now();
                let Some(workspace) = pace.take(began) else { continue };
                let again = count(&ledger, &workspace);
                let now = Instant::now();
                pace.done(workspace.clone(), now, now - began);
                again.into_iter().for_each(|wait| pace.want(workspace.clone(), now + wait));
            }
        };
        std::thread::Builder::new().name("count".to_owned()).spawn(count)?;
        Ok(Self(sender))
    }

    fn ask(&self, workspace: &HomeName) {
        // The thread ends only with us.
        let _ = self.0.send(workspace.clone());
    }
}

/// Returns how long to wait before it is to be counted once more.
fn count(ledger: &Ledger, workspace: &HomeName) -> Option<Duration> {
    let Some(Page::Counted { account, .. }) = ledger.pages().get(workspace).cloned() else { return None };
    let home = ledger.workspaces.join(workspace.as_str());
    let began = Instant::now();
    let parts = [Part::Datasets, Part::Code].map(|part| home.join(part.as_str()));
    match pause::work(|| account.count(|| measure::disk_usage(&parts))) {
        Ok(is_exact) => {
            let (bytes, took) = (account.counted(), began.elapsed());
            tracing::debug!(%workspace, bytes, ?took, is_exact, "counted what it keeps");
            (!is_exact).then_some(COUNT_AGAIN)
        }
        // What is known stays, and goes on with what changes.
        Err(error) => {
            tracing::warn!(%workspace, %error, "cannot count what it keeps, will try again");
            Some(COUNT_AGAIN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_full_is_full_when_the_machine_is_started_before_anything_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        std::fs::create_dir_all(paths.state_dir()).unwrap();
        std::fs::create_dir_all(paths.run_dir()).unwrap();
        make_storage_dir(&paths).unwrap();
        let workspace: HomeName = "default".parse().unwrap();
        keep(&paths, &counts_file(&paths), &Counts::from([(workspace.clone(), 990)])).unwrap();
        let told = Told { limit: 1000, held: Held::Counted, behind: 5, round: 0 };
        write(&quotas_file(&paths), &Quotas::from([(workspace, told)])).unwrap();
        let ledger = Arc::new(Ledger { workspaces: paths.workspaces(), pages: RwLock::default() });
        let (sender, _words) = channel();
        // Nobody counts.
        let counter = Counter(channel().0);
        let mut keeper = Keeper::new(&paths, ledger, sender, counter);
        keeper.take_over();
        let quota = |keeper: &Keeper| keeper.ledger.quota(&RelPath::new("default/code").unwrap()).unwrap();
        assert_eq!(quota(&keeper), Quota { limit: 1000, used: 995 });
        // What was told since then goes before.
        write(&counts_file(&paths), &Counts::from([("default".parse().unwrap(), 10)])).unwrap();
        keeper.ledger.pages.write().unwrap().clear();
        keeper.take_over();
        assert_eq!(quota(&keeper).used, 15);
        keeper.keep();
        std::fs::remove_file(counts_file(&paths)).unwrap();
        assert_eq!(read_last::<Counts>(&paths, &counts_file(&paths)).into_values().collect::<Vec<_>>(), [10]);
    }
}
