//! Which jobs use a dataset, or will: by what lies on disk, so that the mount process knows without a daemon.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::{ASIDE_DATA, AWAITED, DRAFT, Named, Part, Place, Shelf, aside_of, is_absent, seen_file};
use crate::ids::{JobKey, Whose};

impl Shelf {
    /// A job that is not over and sees the dataset, or only one `version` of it: by its name, or as the draft of which it was made.
    pub fn user_of(&self, home: &str, name: &str, version: Option<&str>) -> io::Result<Option<JobKey>> {
        for workspace in self.names(Path::new(""))? {
            for job in self.open_jobs(&workspace)? {
                let place = Path::new(&workspace).join("jobs").join(&job);
                let Some((seen, chosen)) = self.seen_by_newest_run(&place)? else { continue };
                for place in seen.values().filter(|place| place.home == home && place.name.as_str() == name) {
                    if version.map_or(Ok(true), |version| self.is_seen_in(place, chosen, version))? {
                        return key_of(&workspace, &job).map(Some);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a run that has chosen `place` at that time may see the version. A draft that it was given has become one of those that
    /// were made since: which one, nobody has noted, so each of them counts.
    fn is_seen_in(&self, place: &Place, chosen: SystemTime, version: &str) -> io::Result<bool> {
        match place.version.as_deref() {
            Some(DRAFT) if version != DRAFT => {
                let dataset = Path::new(&place.home).join(Part::Datasets.as_str()).join(place.name.as_str());
                match self.frozen_at(&dataset, version) {
                    Err(error) if is_absent(&error) => Ok(false),
                    frozen => Ok(frozen? >= chosen),
                }
            }
            seen => Ok(seen == Some(version)),
        }
    }

    /// What the newest run of the job whose directory is `job` sees, and when it has chosen that.
    fn seen_by_newest_run(&self, job: &Path) -> io::Result<Option<(BTreeMap<String, Place>, SystemTime)>> {
        let read = || -> io::Result<_> {
            let Some(file) = self.file_of_newest_run(job, seen_file)? else { return Ok(None) };
            let chosen = file.metadata()?.modified()?;
            Ok(Some((serde_json::from_reader(file)?, chosen)))
        };
        read().or_else(|error| if is_absent(&error) { Ok(None) } else { Err(error) })
    }

    /// A job of which a run will see the dataset that has not chosen yet, or for which it was chosen before it begins, as the daemon
    /// has told last. The run before may be over.
    pub fn awaiter_of(&self, home: &str, name: &str) -> io::Result<Option<JobKey>> {
        for workspace in self.names(Path::new(""))? {
            let jobs = Path::new(&workspace).join("jobs");
            for job in self.names_if_there(&jobs)? {
                let place = jobs.join(&job);
                let file = match self.file(&place.join(AWAITED)) {
                    Err(error) if is_absent(&error) => continue,
                    file => file?,
                };
                let lines = io::read_to_string(file)?;
                let mut awaited = lines.lines().map(Whose::of).filter(|(_, awaited)| *awaited == name).peekable();
                if awaited.peek().is_none() {
                    continue;
                }
                let key = key_of(&workspace, &job)?;
                let Ok(asset) = name.parse() else { continue };
                if awaited
                    .any(|(whose, _)| self.may_lie_in(home, Named { workspace: &key.workspace, whose, name: &asset }))
                {
                    return Ok(Some(key));
                }
                let aside: Vec<BTreeMap<String, Place>> = self.set_aside(&place, ASIDE_DATA)?;
                if aside.iter().flat_map(BTreeMap::values).any(|seen| seen.home == home && seen.name == asset) {
                    return Ok(Some(key));
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
            open.extend(self.names_if_there(&by_state.join(state))?);
        }
        Ok(open)
    }

    fn names_if_there(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.names(directory).or_else(|error| if is_absent(&error) { Ok(Vec::new()) } else { Err(error) })
    }

    /// What `file` tells of each choice that was made for a run of a job, whose directory is `job`, that has not begun.
    pub fn set_aside<T: serde::de::DeserializeOwned>(&self, job: &Path, file: &str) -> io::Result<Vec<T>> {
        let runs = job.join("runs");
        let mut found = Vec::new();
        for name in self.names_if_there(&runs)?.iter().filter(|name| aside_of(name).is_some()) {
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
            Ok(self.file_of_newest_run(job, file)?.map(serde_json::from_reader).transpose()?.unwrap_or_default())
        };
        read().or_else(|error| if is_absent(&error) { Ok(T::default()) } else { Err(error) })
    }

    fn file_of_newest_run(&self, job: &Path, file: impl Fn(u32) -> String) -> io::Result<Option<File>> {
        let runs = job.join("runs");
        // A run has chosen before its directory, or the link to it, is there.
        let newest = self.names(&runs)?.iter().filter_map(|name| number_of(name)).max();
        newest.map(|newest| self.file(&runs.join(file(newest)))).transpose()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn who_sees_a_draft_uses_each_version_that_was_made_since() {
        let dir = tempfile::tempdir().unwrap();
        let place = |path: &str| dir.path().join(path);
        for path in ["w/jobs/by-state/running", "w/jobs/train/runs/1", "w/datasets/d"] {
            fs::create_dir_all(place(path)).unwrap();
        }
        std::os::unix::fs::symlink("../../train", place("w/jobs/by-state/running/train")).unwrap();
        let chosen = r#"{ "d@draft": { "home": "w", "name": "d", "version": "draft" } }"#;
        fs::write(place("w/jobs/train/runs/.1.data"), chosen).unwrap();
        let at = |path: &str, second: u64| {
            let file = File::options().write(true).create(true).truncate(false).open(place(path)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        };
        at("w/jobs/train/runs/.1.data", 5);
        for (version, second) in [("before", 4), ("then", 5), ("after", 6)] {
            at(&format!("w/datasets/d/{version}.MANIFEST"), second);
        }
        let shelf = Shelf::open(dir.path()).unwrap();
        let is_used = |version| shelf.user_of("w", "d", version).unwrap().is_some();
        assert_eq!(
            ["before", "then", "after", "none"].map(|version| is_used(Some(version))),
            [false, true, true, false]
        );
        assert!(is_used(None) && is_used(Some("draft")));
    }

    #[test]
    fn a_dataset_is_awaited_by_a_job_that_is_over_and_by_one_that_it_was_set_aside_for() {
        let dir = tempfile::tempdir().unwrap();
        let place = |path: &str| dir.path().join(path);
        for path in ["w/jobs/by-state/succeeded", "w/jobs/again/runs/.2.aside-7", "w/datasets", "public/datasets/d"] {
            fs::create_dir_all(place(path)).unwrap();
        }
        std::os::unix::fs::symlink("../../again", place("w/jobs/by-state/succeeded/again")).unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        let awaiter = |home, name| shelf.awaiter_of(home, name).unwrap().map(|key| key.to_string());
        assert_eq!(awaiter("public", "d"), None);
        fs::write(place("w/jobs/again/.awaited"), "d\n").unwrap();
        assert_eq!((awaiter("public", "d").as_deref(), awaiter("public", "e")), (Some("w/again"), None));
        // What comes first by its name changes nothing of what was chosen.
        fs::create_dir(place("w/datasets/d")).unwrap();
        assert_eq!((awaiter("public", "d"), awaiter("w", "d").as_deref()), (None, Some("w/again")));
        let chosen = r#"{ "seen=d": { "home": "public", "name": "d", "version": "v1" } }"#;
        fs::write(place("w/jobs/again/runs/.2.aside-7/data"), chosen).unwrap();
        assert_eq!(awaiter("public", "d").as_deref(), Some("w/again"));
    }
}
