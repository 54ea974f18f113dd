//! A thread that measures what runs and models take of the disk, one after the other.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::config::Paths;
use crate::ids::WorkspaceName;
use crate::sys::file::optional;
use crate::sys::measure::disk_usage;

/// What is to be measured of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub workspace: WorkspaceName,
    /// Paths in it; all runs and models when absent.
    pub places: Option<Vec<PathBuf>>,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Measured {
    pub workspace: WorkspaceName,
    /// Paths in the workspace, and bytes; 0 for what is not there.
    pub places: Vec<(PathBuf, u64)>,
    /// There are no others.
    pub is_all: bool,
    pub took: Duration,
}

pub(super) struct Measurer(Sender<Wanted>);

impl Measurer {
    pub(super) fn start(paths: Paths, found: impl Fn(Measured) + Send + 'static) -> io::Result<Self> {
        let (sender, asked) = channel();
        let run = move || run(&paths, &asked, &found);
        std::thread::Builder::new().name("measure".to_owned()).spawn(run)?;
        Ok(Self(sender))
    }

    pub(super) fn ask(&self, wanted: Wanted) {
        // The thread ends only with us.
        let _ = self.0.send(wanted);
    }
}

fn run(paths: &Paths, asked: &Receiver<Wanted>, found: &dyn Fn(Measured)) {
    while let Ok(first) = asked.recv() {
        // What is asked for again and again while it takes long is measured once.
        let mut seen = BTreeSet::new();
        for wanted in std::iter::once(first).chain(asked.try_iter()) {
            if seen.insert(wanted.clone()) {
                measure(paths, wanted, found);
            }
        }
    }
}

fn measure(paths: &Paths, wanted: Wanted, found: &dyn Fn(Measured)) {
    let Wanted { workspace, places } = wanted;
    let home = paths.workspace(&workspace);
    let (began, is_all) = (Instant::now(), places.is_none());
    let places = places.map_or_else(|| all_places(&home), Ok);
    let bytes = |place: PathBuf| Ok((place.clone(), disk_usage([home.join(place)])?));
    match places.and_then(|places| places.into_iter().map(bytes).collect::<io::Result<Vec<_>>>()) {
        Ok(places) => found(Measured { workspace, places, is_all, took: began.elapsed() }),
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
