//! The watch itself: which paths are ready to be read, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::Arrival;
use super::read::{Look, Part, Scan, is_workspace_name, part_of, read_path};
use super::sources::OVERRIDES_SUFFIX;
use crate::config::JobFiles;
use crate::ids::{JobKey, WorkspaceName};
use crate::spec::ResourceSpecs;

/// How long a file that nobody has closed must be quiet before it is read.
const QUIET: Duration = Duration::from_millis(200);
/// How long a vanished file must stay away.
const GONE: Duration = Duration::from_millis(1000);
const RESCAN: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
#[error("cannot watch {path}")]
pub struct IntakeError {
    path: PathBuf,
    #[source]
    source: notify::Error,
}

/// Says which specs jobs may name now.
pub type AskSpecs = Box<dyn Fn() -> ResourceSpecs + Send>;

/// A thread that watches `jobs.d`.
pub struct Intake {
    root: PathBuf,
    watcher: RecommendedWatcher,
    changes: Receiver<notify::Result<notify::Event>>,
    /// Paths to read, and when.
    due: BTreeMap<PathBuf, Instant>,
    watched: BTreeSet<PathBuf>,
    /// Jobs whose file was there at the last look.
    present: BTreeSet<JobKey>,
    /// Files that are nobody's job, as they were told.
    strays: BTreeSet<PathBuf>,
    /// Mode, owner and group of each workspace's directory.
    rights: BTreeMap<WorkspaceName, (u32, u32, u32)>,
    next_scan: Instant,
    /// What jobs may name now.
    specs: AskSpecs,
}

impl Intake {
    /// Starts to watch `root`. `known` are the jobs whose files were there before; jobs may name `specs`.
    pub fn open(root: &Path, known: Vec<JobKey>, specs: AskSpecs) -> Result<Self, IntakeError> {
        let (sender, changes) = channel();
        let failed = |source| IntakeError { path: root.to_owned(), source };
        let watcher = notify::recommended_watcher(move |change| {
            // The receiver is gone only when the daemon ends.
            let _ = sender.send(change);
        })
        .map_err(failed)?;
        let mut intake = Self {
            root: root.to_owned(),
            watcher,
            changes,
            due: BTreeMap::new(),
            watched: BTreeSet::new(),
            present: known.into_iter().collect(),
            strays: BTreeSet::new(),
            rights: BTreeMap::new(),
            next_scan: Instant::now(),
            specs,
        };
        intake.watch(root.to_owned()).map_err(failed)?;
        Ok(intake)
    }

    fn watch(&mut self, directory: PathBuf) -> notify::Result<()> {
        self.watcher.watch(&directory, RecursiveMode::NonRecursive)?;
        self.watched.insert(directory);
        Ok(())
    }

    /// Watches until `deliver` refuses; runs on a thread of its own. The first delivery is the first scan. `open_to` is told
    /// of each workspace that is new, or that is open to others than it was.
    pub fn run(
        mut self,
        mut deliver: impl FnMut(Vec<Arrival>) -> bool,
        mut open_to: impl FnMut(&WorkspaceName) -> bool,
    ) {
        loop {
            let mut arrivals = Vec::new();
            if Instant::now() >= self.next_scan {
                self.look_at_rights(&mut open_to);
                arrivals.extend(self.scan());
            }
            arrivals.extend(self.read_due());
            if !arrivals.is_empty() && !deliver(arrivals) {
                return;
            }
            if !self.wait() {
                return;
            }
        }
    }

    /// Looks at everything; what did not change is recognised by whoever gets it.
    fn scan(&mut self) -> Vec<Arrival> {
        self.next_scan = Instant::now() + RESCAN;
        self.watch_directories();
        let scan = match Scan::of(&self.root) {
            Ok(scan) => scan,
            Err(error) => {
                tracing::error!(path = %self.root.display(), %error, "cannot list the job files");
                return Vec::new();
            }
        };
        let gone: Vec<JobKey> = self.present.difference(&scan.keys).cloned().collect();
        for key in gone {
            self.due.entry(self.path_of(&key)).or_insert_with(|| Instant::now() + GONE);
        }
        let gone = self.strays.iter().filter(|stray| !scan.paths.contains(stray));
        self.due.extend(gone.map(|stray| (stray.clone(), Instant::now())));
        // A path that is still being written keeps its time.
        let ready: Vec<_> = scan.paths.into_iter().filter(|path| !self.due.contains_key(path)).collect();
        ready.iter().filter_map(|path| self.read(path)).collect()
    }

    fn look_at_rights(&mut self, open_to: &mut impl FnMut(&WorkspaceName) -> bool) {
        let found: BTreeMap<_, _> = workspaces_below(&self.root).collect();
        self.rights.retain(|workspace, _| found.contains_key(workspace));
        for (workspace, rights) in found {
            // What could not be done is tried again at the next look.
            if self.rights.get(&workspace) != Some(&rights) && open_to(&workspace) {
                self.rights.insert(workspace, rights);
            }
        }
    }

    fn path_of(&self, key: &JobKey) -> PathBuf {
        JobFiles::directory(&self.root, &key.workspace).join(format!("{}.toml", key.job))
    }

    fn watch_directories(&mut self) {
        for workspace in self.watch_below(&self.root.clone()) {
            self.watch_below(&workspace);
        }
    }

    /// Watches directories of overrides, and workspaces, which it returns.
    fn watch_below(&mut self, directory: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
        let mut workspaces = Vec::new();
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_workspace = directory == self.root && is_workspace_name(&name);
            let is_strangers = is_workspace && name.parse().is_ok_and(|name| !JobFiles::are_open(directory, &name));
            if is_strangers || !is_workspace && !name.ends_with(OVERRIDES_SUFFIX) {
                continue;
            }
            if !self.watched.contains(&path)
                && let Err(error) = self.watch(path.clone())
            {
                tracing::warn!(path = %path.display(), %error, "cannot watch a directory, it is scanned instead");
            }
            workspaces.extend(is_workspace.then_some(path));
        }
        workspaces
    }

    fn read(&mut self, path: &Path) -> Option<Arrival> {
        let arrival = match read_path(&self.root, path, &(self.specs)()) {
            Look::Nothing => return None,
            Look::Unfinished => {
                self.due.insert(path.to_owned(), Instant::now() + QUIET);
                return None;
            }
            Look::Arrived(arrival) => arrival,
        };
        match &arrival {
            Arrival::Accepted { key, .. } | Arrival::Swept { key, .. } | Arrival::Refused { key, .. } => {
                self.present.insert(key.clone());
            }
            Arrival::Removed { key } => drop(self.present.remove(key)),
            Arrival::Stray { diagnostics, .. } if diagnostics.is_empty() => drop(self.strays.remove(path)),
            Arrival::Stray { .. } => drop(self.strays.insert(path.to_owned())),
        }
        Some(arrival)
    }

    fn read_due(&mut self) -> Vec<Arrival> {
        let now = Instant::now();
        let due: Vec<PathBuf> = self.due.iter().filter(|(_, at)| **at <= now).map(|(path, _)| path.clone()).collect();
        let mut arrivals = Vec::new();
        for path in due {
            self.due.remove(&path);
            arrivals.extend(self.read(&path));
            if matches!(part_of(&self.root, &path), Some(Part::Template(_))) {
                // Jobs that lie on top of it are looked at again.
                self.next_scan = Instant::now();
            }
        }
        arrivals
    }

    /// Waits for the next change, due path or scan, and takes in all changes that are there; false at the end.
    fn wait(&mut self) -> bool {
        let until = self.due.values().copied().min().map_or(self.next_scan, |due| due.min(self.next_scan));
        match self.changes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(change) => self.take(change),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        while let Ok(change) = self.changes.try_recv() {
            self.take(change);
        }
        true
    }

    fn take(&mut self, change: notify::Result<notify::Event>) {
        let event = match change {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "the watch of the job files failed, looking at all of them");
                self.next_scan = Instant::now();
                return;
            }
        };
        if event.need_rescan() {
            self.next_scan = Instant::now();
        }
        let Some(patience) = patience(event.kind) else { return };
        let at = Instant::now() + patience;
        for path in event.paths {
            let is_workspace = path == self.root || path.parent() == Some(&self.root);
            if path.is_dir() && (is_workspace || is_overrides(&path)) {
                // A new workspace or directory of overrides: its files may have come before the watch. Or other rights.
                self.next_scan = Instant::now();
            }
            self.watched.retain(|watched| *watched != path || path.is_dir());
            if let Some(Part::Job(path) | Part::Template(path)) = part_of(&self.root, &path) {
                self.due.insert(path, at);
            }
        }
    }
}

/// With mode, owner and group of their directories; those of strangers are none.
fn workspaces_below(root: &Path) -> impl Iterator<Item = (WorkspaceName, (u32, u32, u32))> {
    let below = std::fs::read_dir(root).into_iter().flatten().flatten().filter_map(|entry| {
        let name: WorkspaceName = entry.file_name().to_str().filter(|name| is_workspace_name(name))?.parse().ok()?;
        // Its files are those of the root itself, and no link makes a workspace.
        let is_one = name != WorkspaceName::default_workspace() && entry.file_type().ok()?.is_dir();
        is_one.then_some(name)
    });
    std::iter::once(WorkspaceName::default_workspace()).chain(below).filter_map(|name| {
        let Ok(JobFiles::Open(found)) = JobFiles::of(root, &name) else { return None };
        Some((name, (found.mode(), found.uid(), found.gid())))
    })
}

fn is_overrides(path: &Path) -> bool {
    path.to_string_lossy().ends_with(OVERRIDES_SUFFIX)
}

/// How long after a change its path is to be read; `None` if the change means nothing.
fn patience(kind: EventKind) -> Option<Duration> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Duration::ZERO),
        EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(Duration::ZERO),
        // Sums up the two halves, which come by themselves.
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => None,
        EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => Some(GONE),
        // Links arrive whole but unannounced; a plain write is followed by a close.
        EventKind::Create(_) | EventKind::Modify(_) => Some(QUIET),
        EventKind::Access(_) | EventKind::Any | EventKind::Other => None,
    }
}
