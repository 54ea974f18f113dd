//! Sees to it that workspaces keep no more on the disk than their quotas say: one thread knows what each keeps, who holds
//! it to that, and what is said when there is no room.
//!
//! ```text
//! trainyard.toml (edited) ─┐                       ┌─► quotas.json ─► mount
//! counted.json ◄─ mount ───┼─► what each keeps  ───┼─► Event::Full ─► reconciler
//! jobs that run, or ended ─┘   (and its limit)     └─► answers ─► api
//! ```
//! What jobs write does not pass through the mount. Where the kernel does not count it, the directories of runs are measured:
//! when a task starts or ends, and every so often while one runs; for a tenth of the time at most.

mod measuring;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::configuration::{Edited, Heed};
use crate::api::storage::{AskStorage, StorageView};
use crate::assets::enforced;
use crate::config::{InForce, Paths};
use crate::ids::{Bytes, HomeName, JobKey, WorkspaceName};
use crate::reconcile::{Event, Settings};
use crate::report::{Change, JobReport};
use crate::sys::service;
use crate::sys::watch::{FileWatch, Sign, watch};
use crate::workspace::quota::{self, Counts, Held, Quotas, Told};
use measuring::{Measured, Measurer, What};

/// How often what runs is measured, and whether there is room again is looked at.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// How long `trainyard.toml` must stay away to count as removed.
const GONE: Duration = Duration::from_secs(1);
/// There is no room where less than a hundredth is left, and less than this, bytes.
const ROOM: u64 = 16 << 20;

/// What happened to a job, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Its run is not over, and so many tasks of it have ended.
    Open {
        run: u32,
        ended: usize,
    },
    Over {
        run: u32,
    },
    Removed,
}

/// What is seen of jobs whose files are published.
pub(super) fn sights(published: &[(JobKey, Change)]) -> Vec<(JobKey, Sight)> {
    published.iter().filter_map(|(key, change)| Some((key.clone(), Sight::of(change)?))).collect()
}

impl Sight {
    fn of(change: &Change) -> Option<Self> {
        match change {
            Change::Removed(_) => Some(Self::Removed),
            Change::Published(publication) => Self::of_report(&publication.report),
        }
    }

    fn of_report(report: &JobReport) -> Option<Self> {
        let ended = report.tasks.iter().filter(|task| task.ended.is_some()).count();
        match report.run {
            0 => None,
            run if report.state.is_terminal() => Some(Self::Over { run }),
            // It may have begun to write.
            run => (report.attempt > 0).then_some(Self::Open { run, ended }),
        }
    }
}

enum Word {
    /// `trainyard.toml`.
    Config(Sign),
    /// It is to be read again; the service manager waits for that.
    Reload,
    /// The mount has told something.
    Counted,
    /// There may be another workspace.
    Workspaces,
    Jobs(Vec<(JobKey, Sight)>),
    Measured(Measured),
    /// Something was removed from a workspace behind the mount.
    Removed(HomeName),
    /// A model of the job.
    ModelRemoved(JobKey),
    Ask(oneshot::Sender<Vec<StorageView>>),
}

/// The thread, for those who tell it something.
#[derive(Clone)]
pub(super) struct Storage {
    sender: Sender<Word>,
    config: InForce,
}

/// Quotas as they were before a restart, until the thread runs.
pub(super) struct Opened {
    keeper: Keeper,
    words: Receiver<Word>,
    watchers: [FileWatch; 2],
}

impl Storage {
    /// What is known from before, with the workspaces that have no room.
    pub(super) fn open(
        config: InForce,
        settings: Settings,
        events: UnboundedSender<Event>,
    ) -> io::Result<(Self, Opened)> {
        let paths = config.now().paths.clone();
        quota::make_storage_dir(&paths)?;
        let (sender, words) = channel();
        let tell = |word: fn(Sign) -> Word| {
            let sender = sender.clone();
            // The receiver is gone only when the daemon ends.
            move |sign| drop(sender.send(word(sign)))
        };
        let watchers = [
            watch(&paths.config_file(), tell(Word::Config))?,
            watch(&quota::counts_file(&paths), tell(|_| Word::Counted))?,
        ];
        let measurer = Measurer::start(paths.clone(), {
            let sender = sender.clone();
            move |measured| drop(sender.send(Word::Measured(measured)))
        })?;
        let mut keeper = Keeper::new(config.clone(), settings, measurer, events);
        keeper.look_at_workspaces();
        keeper.settle();
        Ok((Self { sender, config }, Opened { keeper, words, watchers }))
    }

    /// To be called before [`crate::assets::make_home`].
    pub(super) fn prepare_home(&self, paths: &Paths, workspace: &HomeName) -> io::Result<()> {
        let limit = self.config.now().storage_of(workspace);
        limit.map_or(Ok(()), |_| enforced::prepare(&paths.home(workspace)))
    }

    pub(super) fn workspaces_may_have_come(&self) {
        self.say(Word::Workspaces);
    }

    /// The configuration is read again.
    pub(super) fn reload(&self) {
        service::reloading();
        self.say(Word::Reload);
    }

    pub(super) fn jobs_changed(&self, jobs: Vec<(JobKey, Sight)>) {
        if !jobs.is_empty() {
            self.say(Word::Jobs(jobs));
        }
    }

    fn say(&self, word: Word) {
        // The thread ends only with the daemon.
        let _ = self.sender.send(word);
    }
}

impl AskStorage for Storage {
    fn ask(&self, answer: oneshot::Sender<Vec<StorageView>>) {
        self.say(Word::Ask(answer));
    }

    fn removed(&self, home: &str) {
        if let Ok(workspace) = home.parse() {
            self.say(Word::Removed(workspace));
        }
    }

    fn model_removed(&self, key: JobKey) {
        self.say(Word::ModelRemoved(key));
    }
}

impl Opened {
    /// The workspaces that have no room, for whoever must know before anything starts.
    pub(super) fn full(&self) -> BTreeMap<WorkspaceName, String> {
        of_workspaces(&self.keeper.full)
    }

    /// With what is known of jobs, whose runs and models are measured all at once.
    pub(super) fn begin_with(&mut self, published: &[(JobKey, Change)]) {
        self.keeper.jobs = sights(published).into_iter().collect();
    }

    /// From now on `heed` is told when another configuration is in force.
    pub(super) fn run(self, heed: Heed) -> io::Result<()> {
        let Self { mut keeper, words, watchers } = self;
        keeper.edited.heeded_by(heed);
        let run = move || {
            let _watchers = watchers;
            keeper.run(&words);
        };
        std::thread::Builder::new().name("storage".to_owned()).spawn(run).map(drop)
    }
}

/// A workspace as it is held to its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    limit: Option<u64>,
    held: Held,
    note: Option<String>,
}

struct Keeper {
    paths: Paths,
    config: InForce,
    edited: Edited,
    measurer: Measurer,
    events: UnboundedSender<Event>,
    workspaces: BTreeMap<HomeName, Kept>,
    /// What the mount has counted.
    counts: Counts,
    /// Bytes of runs and models, by their paths in a workspace. Of a workspace that is being measured for the first time: none.
    behind: BTreeMap<HomeName, BTreeMap<PathBuf, u64>>,
    rounds: BTreeMap<HomeName, u64>,
    jobs: BTreeMap<JobKey, Sight>,
    told: Quotas,
    /// As they were before this daemon.
    before: Quotas,
    full: BTreeMap<HomeName, String>,
    measure_at: Option<Instant>,
    config_at: Option<Instant>,
}

impl Keeper {
    fn new(config: InForce, settings: Settings, measurer: Measurer, events: UnboundedSender<Event>) -> Self {
        let paths = config.now().paths.clone();
        // What cannot be read is told and counted anew.
        let told: Quotas = quota::read(&quota::quotas_file(&paths)).unwrap_or_default();
        let before = quota::read_last(&paths, &quota::quotas_file(&paths));
        let counts = quota::read_last(&paths, &quota::counts_file(&paths));
        let rounds = told.iter().map(|(workspace, told)| (workspace.clone(), told.round)).collect();
        Self {
            paths,
            edited: Edited::new(config.clone(), settings, events.clone()),
            config,
            measurer,
            events,
            workspaces: BTreeMap::new(),
            counts,
            behind: BTreeMap::new(),
            rounds,
            jobs: BTreeMap::new(),
            told,
            before,
            full: BTreeMap::new(),
            measure_at: None,
            config_at: None,
        }
    }

    fn run(&mut self, words: &Receiver<Word>) {
        loop {
            let word = match [self.measure_at, self.config_at].into_iter().flatten().min() {
                None => words.recv().map_err(RecvTimeoutError::from),
                Some(at) => words.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match word {
                Ok(word) => self.take(word),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            if self.config_at.take_if(|at| *at <= now).is_some() {
                self.read_config();
            }
            if self.measure_at.take_if(|at| *at <= now).is_some() {
                self.measure_what_runs();
            }
            self.settle();
        }
    }

    fn take(&mut self, word: Word) {
        match word {
            Word::Config(Sign::Written) => self.config_at = Some(Instant::now()),
            Word::Config(Sign::Gone) => self.config_at = Some(Instant::now() + GONE),
            Word::Reload => {
                // Of an edit that was seen a moment ago as well.
                self.config_at = None;
                self.read_config();
                service::reloaded();
            }
            Word::Counted => match quota::read(&quota::counts_file(&self.paths)) {
                Ok(counts) => self.counts = counts,
                Err(error) => tracing::warn!(%error, "cannot read what the mount has counted"),
            },
            Word::Workspaces => self.look_at_workspaces(),
            Word::Jobs(jobs) => jobs.into_iter().for_each(|(key, sight)| self.job(key, sight)),
            Word::Measured(measured) => self.measured(measured),
            Word::Removed(workspace) => *self.rounds.entry(workspace).or_default() += 1,
            Word::ModelRemoved(key) => self.model_removed(&key),
            Word::Ask(answer) => {
                // Whoever asked may have gone away meanwhile.
                let _ =
                    answer.send(self.workspaces.iter().map(|(workspace, kept)| self.view(workspace, kept)).collect());
            }
        }
    }

    fn read_config(&mut self) {
        match self.edited.read() {
            Ok(before) if before.storage != self.config.now().storage => {
                tracing::info!("the storage of workspaces was edited in trainyard.toml");
                self.look_at_workspaces();
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "trainyard.toml was edited and cannot be used; what was in force stays")
            }
        }
    }

    /// Has each workspace that is there held to its quota.
    fn look_at_workspaces(&mut self) {
        let found = match workspaces(&self.paths) {
            Ok(found) => found,
            Err(error) => return tracing::error!(%error, "cannot list the workspaces"),
        };
        self.workspaces.retain(|workspace, _| found.contains(workspace));
        for workspace in found {
            let limit = self.config.now().storage_of(&workspace);
            if self.workspaces.get(&workspace).is_some_and(|kept| kept.limit == limit) {
                continue;
            }
            match quota::hold(&self.paths, &workspace, limit) {
                Ok((held, note)) => self.hold(workspace, Kept { limit, held, note }),
                // No workspace of ours, and nothing is wanted of it.
                Err(error) if limit.is_none() && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let (workspace, home) = workspace.told();
                    tracing::warn!(workspace, home, %error, "cannot hold a workspace to its quota, the next look tries again")
                }
            }
        }
    }

    fn hold(&mut self, workspace: HomeName, kept: Kept) {
        if let Some(limit) = kept.limit {
            let (limit, note) = (Bytes(limit), kept.note.as_deref().unwrap_or_default());
            let (name, home) = workspace.told();
            tracing::info!(workspace = name, home, %limit, held = ?kept.held, note, "a workspace has a quota");
            if kept.held == Held::Counted && !self.behind.contains_key(&workspace) {
                self.measurer.ask(workspace.clone(), What::All);
            }
        } else {
            self.behind.remove(&workspace);
        }
        self.workspaces.insert(workspace, kept);
    }

    fn job(&mut self, key: JobKey, sight: Sight) {
        let of = |run: u32| PathBuf::from(format!("jobs/{}/runs/{run}", key.job));
        let home = HomeName::from(&key.workspace);
        if self.jobs.insert(key.clone(), sight) == Some(sight) {
            return;
        }
        match sight {
            Sight::Open { run, .. } => self.measure(&home, vec![of(run)]),
            Sight::Over { run } => {
                let model = PathBuf::from(format!("models/{}", key.job));
                self.measure(&home, vec![of(run), model]);
            }
            Sight::Removed => {
                self.jobs.remove(&key);
                self.forget_removed(&home);
                let runs = format!("jobs/{}/runs", key.job);
                if let Some(places) = self.behind.get_mut(&home) {
                    places.retain(|place, _| !place.starts_with(&runs));
                } else if self.is_counted(&home) {
                    // All is being measured, and may have found it there.
                    self.measurer.ask(home, What::All);
                }
            }
        }
    }

    fn model_removed(&self, key: &JobKey) {
        let home = HomeName::from(&key.workspace);
        self.forget_removed(&home);
        self.measure(&home, vec![PathBuf::from(format!("models/{}", key.job))]);
        if !self.behind.contains_key(&home) && self.is_counted(&home) {
            // All is being measured, and may have found it there.
            self.measurer.ask(home, What::All);
        }
    }

    fn forget_removed(&self, workspace: &HomeName) {
        if self.workspaces.get(workspace).is_some_and(|kept| kept.held == Held::Btrfs) {
            self.measurer.ask(workspace.clone(), What::Forget);
        }
    }

    /// Asks for places to be measured, where that is ours to do.
    fn measure(&self, workspace: &HomeName, places: Vec<PathBuf>) {
        if self.is_counted(workspace) {
            places.into_iter().for_each(|place| self.measurer.ask(workspace.clone(), What::Place(place)));
        }
    }

    fn is_counted(&self, workspace: &HomeName) -> bool {
        self.workspaces.get(workspace).is_some_and(|kept| kept.limit.is_some() && kept.held == Held::Counted)
    }

    fn measure_what_runs(&mut self) {
        for (key, sight) in &self.jobs {
            if let Sight::Open { run, .. } = sight {
                let home = HomeName::from(&key.workspace);
                self.measure(&home, vec![PathBuf::from(format!("jobs/{}/runs/{run}", key.job))]);
            }
        }
        // Whether there is room again is known when btrfs has written what was removed.
        for workspace in self.full.keys() {
            if self.workspaces.get(workspace).is_some_and(|kept| kept.held == Held::Btrfs) {
                self.measurer.ask(workspace.clone(), What::Commit);
            }
        }
    }

    fn measured(&mut self, measured: Measured) {
        let Measured { workspace, mut places, is_all } = measured;
        if !self.is_counted(&workspace) {
            return;
        }
        // Until all has been measured once, a part would be taken for the whole.
        if !is_all && !self.behind.contains_key(&workspace) {
            return;
        }
        // What is removed may have been measured just before.
        places.retain(|(place, _)| is_all || self.is_known(&workspace, place));
        let known = self.behind.entry(workspace).or_default();
        if is_all {
            known.clear();
        }
        for (place, bytes) in places {
            match bytes {
                0 => drop(known.remove(&place)),
                bytes => drop(known.insert(place, bytes)),
            }
        }
    }

    /// Whether the place is not that of a job that has been removed.
    fn is_known(&self, workspace: &HomeName, place: &Path) -> bool {
        let mut parts = place.iter().map(|part| part.to_str().unwrap_or_default());
        match (parts.next(), parts.next().and_then(|job| job.parse().ok())) {
            (Some("jobs"), Some(job)) => {
                workspace.workspace().is_none_or(|workspace| self.jobs.contains_key(&JobKey::new(workspace, job)))
            }
            _ => true,
        }
    }

    /// Tells the mount and the reconciler what has changed for them, and sets the time of the next measurement.
    fn settle(&mut self) {
        let quotas: Quotas =
            self.workspaces.iter().filter_map(|(name, kept)| Some((name.clone(), self.tell(name, kept)?))).collect();
        if quotas != self.told {
            match quota::write(&quota::quotas_file(&self.paths), &quotas) {
                Ok(()) => {
                    self.told = quotas;
                    if let Err(error) = quota::keep(&self.paths, &quota::quotas_file(&self.paths), &self.told) {
                        tracing::warn!(%error, "cannot keep what jobs have left for the time after the machine's next start");
                    }
                    // Where there is a quota, code/ is not written past the mount.
                    crate::sys::bell::ring(&self.paths.direct_bell());
                }
                Err(error) => tracing::warn!(%error, "cannot tell the mount the quotas; the next change tries again"),
            }
        }
        let full: BTreeMap<_, _> =
            self.workspaces.iter().filter_map(|(name, kept)| Some((name.clone(), self.no_room(name, kept)?))).collect();
        if full != self.full {
            self.report_room(&full);
            self.full = full;
            // The receiver is gone only when the daemon ends.
            let _ = self.events.send(Event::Full(of_workspaces(&self.full)));
        }
        let is_watched = |workspace: &HomeName| self.workspaces.get(workspace).is_some_and(|kept| kept.limit.is_some());
        let wanted = !self.full.is_empty()
            || self
                .jobs
                .iter()
                .any(|(key, sight)| matches!(sight, Sight::Open { .. }) && is_watched(&HomeName::from(&key.workspace)));
        self.measure_at = wanted.then(|| self.measure_at.unwrap_or_else(|| Instant::now() + MEASURE_EVERY));
    }

    fn report_room(&self, full: &BTreeMap<HomeName, String>) {
        for (workspace, said) in full.iter().filter(|(workspace, _)| !self.full.contains_key(workspace)) {
            match workspace.told() {
                (None, home) => tracing::warn!(home, reason = said, "no room: nothing is put there until there is"),
                (workspace, _) => {
                    tracing::warn!(
                        workspace,
                        reason = said,
                        "no room: nothing is started in this workspace until there is"
                    );
                }
            }
        }
        for workspace in self.full.keys().filter(|workspace| !full.contains_key(workspace)) {
            let (workspace, home) = workspace.told();
            tracing::info!(workspace, home, "there is room again");
        }
    }

    fn tell(&self, workspace: &HomeName, kept: &Kept) -> Option<Told> {
        let round = self.rounds.get(workspace).copied().unwrap_or(0);
        Some(Told { limit: kept.limit?, held: kept.held, behind: self.behind(workspace), round })
    }

    fn behind(&self, workspace: &HomeName) -> u64 {
        match self.behind.get(workspace) {
            Some(places) => places.values().sum(),
            // Until it is measured, as it was.
            None => self.before.get(workspace).map_or(0, |before| before.behind),
        }
    }

    /// Bytes that a workspace with a quota keeps.
    fn used(&self, workspace: &HomeName, kept: &Kept) -> Option<u64> {
        kept.limit?;
        match kept.held {
            Held::Counted => {
                Some(self.counts.get(workspace).copied().unwrap_or(0).saturating_add(self.behind(workspace)))
            }
            Held::Btrfs | Held::Project => quota::usage_by_kernel(&self.paths.home(workspace)).ok(),
        }
    }

    fn no_room(&self, workspace: &HomeName, kept: &Kept) -> Option<String> {
        let (limit, used) = (kept.limit?, self.used(workspace, kept)?);
        let is_full = limit.saturating_sub(used) < ROOM.min(limit / 100);
        is_full.then(|| {
            let what = if workspace.workspace().is_some() { "workspace " } else { "" };
            format!("{what}{workspace} keeps {} of the {} that it may", Bytes(used).roughly(), Bytes(limit))
        })
    }

    fn view(&self, workspace: &HomeName, kept: &Kept) -> StorageView {
        StorageView {
            workspace: workspace.clone(),
            used: self.used(workspace, kept),
            quota: kept.limit,
            held: kept.limit.map(|_| match kept.held {
                Held::Counted => "counted".to_owned(),
                Held::Btrfs => "btrfs".to_owned(),
                Held::Project => "project".to_owned(),
            }),
            note: self
                .no_room(workspace, kept)
                .map(|said| format!("no room: {said}"))
                .or_else(|| kept.note.clone().filter(|_| kept.limit.is_some())),
        }
    }
}

fn of_workspaces(full: &BTreeMap<HomeName, String>) -> BTreeMap<WorkspaceName, String> {
    full.iter().filter_map(|(home, said)| Some((home.workspace()?, said.clone()))).collect()
}

/// Those that have a directory, and what all of them see.
fn workspaces(paths: &Paths) -> io::Result<BTreeSet<HomeName>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(paths.workspaces())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse().ok()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A keeper of the workspace `default`, which is counted, and what it asks to be measured.
    fn keeper(root: &Path) -> (Keeper, Receiver<(HomeName, What)>) {
        std::fs::create_dir_all(root.join("etc/trainyard")).unwrap();
        std::fs::write(root.join("etc/trainyard/trainyard.toml"), "[workspaces.default]\nstorage = \"1GiB\"\n")
            .unwrap();
        let config = Config::load(root).unwrap();
        for part in ["datasets", "code"] {
            std::fs::create_dir_all(config.paths.home(&workspace()).join(part)).unwrap();
        }
        let (measurer, asked) = Measurer::idle();
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        let settings = crate::daemon::settings(&config).unwrap();
        let mut keeper = Keeper::new(InForce::new(config), settings, measurer, events);
        keeper.look_at_workspaces();
        (keeper, asked)
    }

    fn workspace() -> HomeName {
        "default".parse().unwrap()
    }

    fn found(places: &[(&str, u64)], is_all: bool) -> Measured {
        let places = places.iter().map(|(place, bytes)| (PathBuf::from(place), *bytes)).collect();
        Measured { workspace: workspace(), places, is_all }
    }

    #[test]
    fn a_part_is_not_taken_for_the_whole_before_all_was_measured() {
        let root = tempfile::tempdir().unwrap();
        let (mut keeper, asked) = keeper(root.path());
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [(workspace(), What::All)]);
        keeper.before.insert(workspace(), Told { limit: 1 << 30, held: Held::Counted, behind: 700, round: 0 });
        keeper.measured(found(&[("models/train", 20)], false));
        assert_eq!(keeper.behind(&workspace()), 700, "what was known before is in force until then");
        keeper.measured(found(&[("models/train", 20), ("models/old", 300)], true));
        keeper.measured(found(&[("models/train", 30)], false));
        assert_eq!(keeper.behind(&workspace()), 330);
    }

    #[test]
    fn what_is_removed_while_all_is_measured_has_all_measured_once_more() {
        let root = tempfile::tempdir().unwrap();
        let (mut keeper, asked) = keeper(root.path());
        let job = |name: &str| JobKey::new(workspace().workspace().unwrap(), name.parse().unwrap());
        let key = job("train");
        keeper.job(key.clone(), Sight::Over { run: 1 });
        asked.try_iter().for_each(drop);
        keeper.job(key.clone(), Sight::Removed);
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [(workspace(), What::All)]);
        // What the first has found of it, and the second has not.
        keeper.measured(found(&[("jobs/train/runs/1", 500), ("models/other", 40)], true));
        keeper.measured(found(&[("models/other", 40)], true));
        assert_eq!(keeper.behind(&workspace()), 40);
        keeper.job(key, Sight::Removed);
        assert_eq!(asked.try_iter().count(), 0, "then it is known what goes");
        // Of models it is looked how much is left.
        keeper.take(Word::ModelRemoved(job("other")));
        let place = What::Place(PathBuf::from("models/other"));
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [(workspace(), place)]);
        keeper.measured(found(&[("models/other", 0)], false));
        assert_eq!(keeper.behind(&workspace()), 0);
    }
}
