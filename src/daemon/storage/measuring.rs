//! A thread that measures what runs and models take of the disk, one after the other, and rests nine times as long: it is
//! the jobs' disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::config::Paths;
use crate::ids::WorkspaceName;
use crate::sys::btrfs;
use crate::sys::file::optional;
use crate::sys::measure::disk_usage;
use crate::workspace::pace::Pace;
use crate::workspace::quota;

/// What is to be done in a workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// All runs and models are measured.
    All,
    /// What is at a path in the workspace is.
    Place(PathBuf),
    /// Btrfs writes what it has, and so knows how much that is.
    Commit,
    /// Btrfs forgets what it has counted of runs that were removed.
    Forget,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Measured {
    pub workspace: WorkspaceName,
    /// Paths in the workspace, and bytes; 0 for what is not there.
    pub places: Vec<(PathBuf, u64)>,
    /// There are no others.
    pub is_all: bool,
}

pub(super) struct Measurer(Sender<(WorkspaceName, What)>);

impl Measurer {
    pub(super) fn start(paths: Paths, found: impl Fn(Measured) + Send + 'static) -> io::Result<Self> {
        let (sender, asked) = channel();
        let run = move || run(&paths, &asked, &found);
        std::thread::Builder::new().name("measure".to_owned()).spawn(run)?;
        Ok(Self(sender))
    }

    /// What is asked for again and again is done once, when the workspace has rested.
    pub(super) fn ask(&self, workspace: WorkspaceName, what: What) {
        // The thread ends only with us.
        let _ = self.0.send((workspace, what));
    }
}

fn run(paths: &Paths, asked: &Receiver<(WorkspaceName, What)>, found: &dyn Fn(Measured)) {
    let mut pace = Pace::default();
    let mut wanted: BTreeMap<WorkspaceName, BTreeSet<What>> = BTreeMap::new();
    loop {
        let first = match pace.next() {
            None => asked.recv().map_err(RecvTimeoutError::from),
            Some(at) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        if first == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        for (workspace, what) in first.into_iter().chain(asked.try_iter()) {
            pace.want(workspace.clone(), Instant::now());
            wanted.entry(workspace).or_default().insert(what);
        }
        let began = Instant::now();
        let Some(workspace) = pace.take(began) else { continue };
        let mut again = BTreeSet::new();
        for what in wanted.remove(&workspace).unwrap_or_default() {
            match what {
                What::Forget if is_still_removed(paths, &workspace) => drop(again.insert(what)),
                What::Forget => {}
                What::Commit => commit(paths, &workspace, found),
                What::All => measure(paths, &workspace, None, found),
                What::Place(place) => measure(paths, &workspace, Some(place), found),
            }
        }
        let now = Instant::now();
        pace.done(workspace.clone(), now, now - began);
        if !again.is_empty() {
            wanted.insert(workspace.clone(), again);
            pace.want(workspace, now + FORGET_AGAIN);
        }
    }
}

/// When btrfs is looked at again, which removes what large runs have left for a while.
const FORGET_AGAIN: Duration = Duration::from_secs(30);

fn is_still_removed(paths: &Paths, workspace: &WorkspaceName) -> bool {
    let forgotten = quota::forget_removed(&paths.workspace(workspace));
    forgotten.unwrap_or_else(|error| {
        tracing::warn!(%workspace, %error, "btrfs goes on counting runs that were removed, the next removal tries again");
        false
    })
}

fn commit(paths: &Paths, workspace: &WorkspaceName, found: &dyn Fn(Measured)) {
    match File::open(paths.workspace(workspace)).and_then(|home| btrfs::commit(&home)) {
        // Whoever hears of it looks what btrfs tells.
        Ok(()) => found(Measured { workspace: workspace.clone(), places: Vec::new(), is_all: false }),
        Err(error) => tracing::warn!(%workspace, %error, "cannot have btrfs count what it keeps"),
    }
}

/// All runs and models when no `place` is named.
fn measure(paths: &Paths, workspace: &WorkspaceName, place: Option<PathBuf>, found: &dyn Fn(Measured)) {
    let home = paths.workspace(workspace);
    let is_all = place.is_none();
    let places = place.map_or_else(|| all_places(&home), |place| Ok(vec![place]));
    let bytes = |place: PathBuf| Ok((place.clone(), disk_usage([home.join(place)])?));
    match places.and_then(|places| places.into_iter().map(bytes).collect::<io::Result<Vec<_>>>()) {
        Ok(places) => found(Measured { workspace: workspace.clone(), places, is_all }),
        // What is known stays.
        Err(error) => tracing::warn!(%workspace, %error, "cannot measure what jobs keep, the next look tries again"),
    }
}

/// Every run and every job's models, by their paths in the workspace.
fn all_places(home: &Path) -> io::Result<Vec<PathBuf>> {
    let mut places = Vec::new();
    for job in names(home, Path::new("jobs"))? {
        places.extend(names(home, &job.join("runs"))?);
    }
    places.extend(names(home, Path::new("models"))?);
    Ok(places)
}

fn names(home: &Path, directory: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = optional(std::fs::read_dir(home.join(directory)))?;
    listed.into_iter().flatten().map(|entry| Ok(directory.join(entry?.file_name()))).collect()
}
