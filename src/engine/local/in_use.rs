//! What runs and tasks still use of what is kept for all of them, and what goes when nobody has used it for long.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::{LocalEngine, requirements, workdirs};
use crate::contract::Identity;
use crate::images::Digest;
use crate::rundir::{Root, TaskDir};

impl LocalEngine {
    /// Images that these runs have been given.
    pub fn images_of(&self, runs: &[Identity]) -> io::Result<BTreeSet<Digest>> {
        let mut images = BTreeSet::new();
        for run in runs {
            images.extend(workdirs::images_given(&self.paths, run).map_err(io::Error::other)?);
        }
        Ok(images)
    }

    /// Layers of attempts that have not been cleaned up after.
    pub fn layers_in_use(&self) -> io::Result<BTreeSet<PathBuf>> {
        let roots = self.roots_in_use()?.into_iter();
        Ok(roots.flat_map(|root| root.overlays).flat_map(|overlay| overlay.lower).collect())
    }

    /// Removes installed requirements, and copies of what stores have, that neither a task nor a run has used for so long;
    /// `open` tells which runs are not over.
    pub fn prune(&self, unused: Duration, open: &dyn Fn() -> io::Result<Vec<Identity>>) -> io::Result<()> {
        let used = || {
            // First the runs: one of them may become a task meanwhile, and none the other way round.
            let mut used = self.carrier.snapshots_of(&open()?)?;
            let mounts = self.roots_in_use()?.into_iter().flat_map(|root| root.mounts);
            used.extend(mounts.map(|mount| mount.source));
            Ok(used)
        };
        self.carrier.prune(unused, &used)?;
        requirements::prune(&self.paths, unused, &used()?)
    }

    /// What tasks are made of.
    fn roots_in_use(&self) -> io::Result<Vec<Root>> {
        let mut roots = Vec::new();
        for attempt in fs::read_dir(self.paths.attempts())? {
            let Ok(tasks) = fs::read_dir(attempt?.path()) else { continue };
            for task in tasks {
                // What has no record yet is being started, which keeps all layers.
                let Ok(launch) = TaskDir::at(task?.path()).read_launch() else { continue };
                roots.push(launch.root);
            }
        }
        Ok(roots)
    }
}
