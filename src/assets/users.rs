//! Which jobs use a dataset, or will: by what lies on disk, so that the mount process knows without a daemon.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::{AWAITED, MissingError, Part, Place, Shelf, aside_of, is_absent, seen_file};
use crate::ids::JobKey;
use crate::sys::file::optional;

impl Shelf {
    /// A job that is not over and sees the dataset, or only one `version` of it.
    pub fn user_of(&self, home: &str, name: &str, version: Option<&str>) -> io::Result<Option<JobKey>> {
        for workspace in self.names(Path::new(""))? {
            for job in self.open_jobs(&workspace)? {
                let place = Path::new(&workspace).join("jobs").join(&job);
                let seen: BTreeMap<String, Place> = self.of_newest_run(&place, seen_file)?;
                let is_seen = |place: &&Place| {
                    place.home == home
                        && place.name.as_str() == name
                        && (version.is_none() || place.version.as_deref() == version)
                };
                if seen.values().find(is_seen).is_some() {
                    return key_of(&workspace, &job).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// A job of which a run will see the dataset that has not chosen yet, as the daemon has told last.
    pub fn awaiter_of(&self, home: &str, name: &str) -> io::Result<Option<JobKey>> {
        for workspace in self.names(Path::new(""))? {
            for job in self.open_jobs(&workspace)? {
                let Some(file) = optional(self.file(&Path::new(&workspace).join("jobs").join(&job).join(AWAITED)))?
                else {
                    continue;
                };
                if !io::read_to_string(file)?.lines().any(|awaited| awaited == name) {
                    continue;
                }
                let key = key_of(&workspace, &job)?;
                let Ok(asset) = name.parse() else { continue };
                // Where it cannot be looked, it may be this one.
                match self.home(&key.workspace, Part::Datasets, &asset) {
                    Err(MissingError::Nothing { .. }) => {}
                    Ok(found) if found != home => {}
                    _ => return Ok(Some(key)),
                }
            }
        }
        Ok(None)
    }

    /// Jobs of a workspace that are not over.
    pub(super) fn open_jobs(&self, workspace: &str) -> io::Result<Vec<String>> {
        let by_state = Path::new(workspace).join("jobs/by-state");
        let mut open = Vec::new();
        for state in ["held", "waiting", "starting", "running", "stopping"] {
            let linked = self.names(&by_state.join(state));
            open.extend(linked.or_else(|error| if is_absent(&error) { Ok(Vec::new()) } else { Err(error) })?);
        }
        Ok(open)
    }

    /// What `file` tells of each choice that was made for a run of a job, whose directory is `job`, that has not begun.
    pub fn set_aside<T: serde::de::DeserializeOwned>(&self, job: &Path, file: &str) -> io::Result<Vec<T>> {
        let runs = job.join("runs");
        let names = match self.names(&runs) {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            names => names?,
        };
        let mut found = Vec::new();
        for name in names.iter().filter(|name| aside_of(name).is_some()) {
            match self.file(&runs.join(name).join(file)) {
                Ok(file) => found.push(serde_json::from_reader(file)?),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// What `file`, by the number of a run, tells of the newest run of the job whose directory is `job`.
    pub(super) fn of_newest_run<T: serde::de::DeserializeOwned + Default>(
        &self,
        job: &Path,
        file: impl Fn(u32) -> String,
    ) -> io::Result<T> {
        let read = || -> io::Result<T> {
            let runs = job.join("runs");
            // A run has chosen before its directory, or the link to it, is there.
            let Some(newest) = self.names(&runs)?.iter().filter_map(|name| number_of(name)).max() else {
                return Ok(T::default());
            };
            Ok(serde_json::from_reader(self.file(&runs.join(file(newest)))?)?)
        };
        read().or_else(|error| if is_absent(&error) { Ok(T::default()) } else { Err(error) })
    }
}

pub(super) fn key_of(workspace: &str, job: &str) -> io::Result<JobKey> {
    let key = format!("{workspace}/{job}").parse();
    key.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{error}")))
}

/// Which run `name`, an entry of `jobs/JOB/runs/`, belongs to.
fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix('.').and_then(|name| name.strip_suffix(".data")).unwrap_or(name).parse().ok()
}
