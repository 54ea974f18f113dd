//! A thread that measures what runs and models take of the disk, one after the other, and rests nine times as long: it is
//! the jobs' disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::config::Paths;
use crate::ids::HomeName;
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
    pub workspace: HomeName,
    /// Paths in the workspace, and bytes; 0 for what is not there.
    pub places: Vec<(PathBuf, u64)>,
    /// There are no others.
    pub is_all: bool,
}

pub(super) struct Measurer(Sender<(HomeName, What)>);

#[cfg(test)]
impl Measurer {
    /// One that measures nothing, and what it is asked for.
    pub(super) fn idle() -> (Self, Receiver<(HomeName, What)>) {
        let (sender, asked) = channel();
        (Self(sender), asked)
    }
}

impl Measurer {
    pub(super) fn start(paths: Paths, found: impl Fn(Measured) + Send + 'static) -> io::Result<Self> {
        let (sender, asked) = channel();
        let run = move || run(&paths, &asked, &found);
        std::thread::Builder::new().name("measure".to_owned()).spawn(run)?;
        Ok(Self(sender))
    }

    /// What is asked for again and again is done once, when the workspace has rested.
    pub(super) fn ask(&self, workspace: HomeName, what: What) {
        // The thread ends only with us.
        let _ = self.0.send((workspace, what));
    }
}

fn run(paths: &Paths, asked: &Receiver<(HomeName, What)>, found: &dyn Fn(Measured)) {
    let mut pace = Pace::default();
    let mut wanted: BTreeMap<HomeName, BTreeSet<What>> = BTreeMap::new();
    let mut failures: BTreeMap<HomeName, u32> = BTreeMap::new();
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
        let mut again = BTreeMap::new();
        for what in wanted.remove(&workspace).unwrap_or_default() {
            match what {
                What::Forget if is_still_removed(paths, &workspace) => drop(again.insert(what, FORGET_AGAIN)),
                What::Forget => {}
                What::Commit => commit(paths, &workspace, found),
                What::All if measure(paths, &workspace, None, found) => drop(failures.remove(&workspace)),
                // Nobody asks for it a second time.
                What::All => {
                    let failures = failures.entry(workspace.clone()).or_default();
                    again.insert(What::All, pause_after(*failures));
                    *failures = failures.saturating_add(1);
                }
                What::Place(place) => drop(measure(paths, &workspace, Some(place), found)),
            }
        }
        let now = Instant::now();
        pace.done(workspace.clone(), now, now - began);
        for (what, pause) in again {
            wanted.entry(workspace.clone()).or_default().insert(what);
            pace.want(workspace.clone(), now + pause);
        }
    }
}

/// First wait before all of a workspace is measured again when that has failed, doubled up to the longest.
const ALL_AGAIN: Duration = Duration::from_secs(1);
const ALL_AGAIN_MAX: Duration = Duration::from_secs(600);

fn pause_after(failures: u32) -> Duration {
    ALL_AGAIN.saturating_mul(2u32.saturating_pow(failures)).min(ALL_AGAIN_MAX)
}

/// When btrfs is looked at again, which removes what large runs have left for a while.
const FORGET_AGAIN: Duration = Duration::from_secs(30);

fn is_still_removed(paths: &Paths, workspace: &HomeName) -> bool {
    let forgotten = quota::forget_removed(&paths.home(workspace));
    forgotten.unwrap_or_else(|error| {
        let (workspace, home) = workspace.told();
        tracing::warn!(workspace, home, %error, "btrfs goes on counting runs that were removed, the next removal tries again");
        false
    })
}

fn commit(paths: &Paths, workspace: &HomeName, found: &dyn Fn(Measured)) {
    match File::open(paths.home(workspace)).and_then(|home| btrfs::commit(&home)) {
        // Whoever hears of it looks what btrfs tells.
        Ok(()) => found(Measured { workspace: workspace.clone(), places: Vec::new(), is_all: false }),
        Err(error) => {
            let (workspace, home) = workspace.told();
            tracing::warn!(workspace, home, %error, "cannot have btrfs count what it keeps");
        }
    }
}

/// All runs and models when no `place` is named; `false` if that fails.
fn measure(paths: &Paths, workspace: &HomeName, place: Option<PathBuf>, found: &dyn Fn(Measured)) -> bool {
    let home = paths.home(workspace);
    let is_all = place.is_none();
    let places = place.map_or_else(|| all_places(&home), |place| Ok(vec![place]));
    let bytes = |place: PathBuf| Ok((place.clone(), disk_usage([home.join(place)])?));
    let measured = places.and_then(|places| places.into_iter().map(bytes).collect::<io::Result<Vec<_>>>());
    let is_done = measured.is_ok();
    match measured {
        Ok(places) => found(Measured { workspace: workspace.clone(), places, is_all }),
        // What is known stays.
        Err(error) => {
            let (workspace, home) = workspace.told();
            tracing::warn!(workspace, home, %error, "cannot measure what jobs keep, will try again");
        }
    }
    is_done
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_measured_is_measured_again_by_itself() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let workspace: HomeName = "default".parse().unwrap();
        let home = paths.home(&workspace);
        std::fs::create_dir_all(&home).unwrap();
        // In the place of a directory.
        std::fs::write(home.join("jobs"), "").unwrap();
        let (sender, found) = channel();
        let measurer = Measurer::start(paths, move |measured| sender.send(measured).unwrap()).unwrap();
        measurer.ask(workspace.clone(), What::All);
        measurer.ask(workspace.clone(), What::Place(PathBuf::from("models")));
        // In its turn, so all has been tried and has failed before.
        assert!(!found.recv_timeout(Duration::from_secs(30)).unwrap().is_all);
        std::fs::remove_file(home.join("jobs")).unwrap();
        std::fs::create_dir_all(home.join("jobs/train/runs/1")).unwrap();
        let all = found.recv_timeout(Duration::from_secs(30)).expect("it is tried again");
        assert!(all.is_all && all.places.iter().any(|(place, _)| place == Path::new("jobs/train/runs/1")), "{all:?}");
    }

    #[test]
    fn what_fails_again_and_again_is_tried_less_and_less_often() {
        assert_eq!([0, 1, 5, 40].map(|failures| pause_after(failures).as_secs()), [1, 2, 32, 600]);
    }
}
