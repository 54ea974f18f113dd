//! Models that runs have left, and how they go.
//!
//! ```text
//! workspaces/WS/models/JOB/RUN/                  a model
//!                         /latest                → RUN, the newest
//!                         /.trainyard-gone-RUN/  one whose removal has begun
//! workspaces/WS/jobs/JOB/runs/.N.models          which models run N sees
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::freeze::{ignore_absent, point_latest, remove_below, reopened};
use super::removal::{Remover, gone, put_aside, told};
use super::{LATEST, Shelf, flag, is_absent};
use crate::ids::{JobKey, JobName, WorkspaceName};

/// In `jobs/JOB/runs/`, which models and outputs run `number` sees: the run of each, by [`newest_of`] and [`one_of`].
pub fn models_file(number: impl std::fmt::Display) -> String {
    format!(".{number}.models")
}

/// Of the model of a job that was the newest when it was chosen.
pub fn newest_of(job: &str) -> String {
    job.to_owned()
}

/// Of the model of a run that the job file names.
pub fn one_of(job: &str, run: impl std::fmt::Display) -> String {
    format!("model:{job}@{run}")
}

/// A model by whose it is.
#[derive(Debug, Clone)]
pub struct Model {
    pub workspace: WorkspaceName,
    pub job: JobName,
    pub run: u32,
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.job, self.run)
    }
}

impl Model {
    /// The models of its job, below `workspaces/`.
    pub fn home(&self) -> PathBuf {
        Path::new(self.workspace.as_str()).join("models").join(self.job.as_str())
    }
}

/// Why a model is not removed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model {model}; `trainyard model ls{of}` lists them", model = .0, of = flag(.0.workspace.as_str()))]
    Unknown(Model),
    #[error("model {model} is used, or will be, by a job that is not over{}: stop that, or take it out of its file", told(.by))]
    InUse { model: Model, by: String },
    #[error("model {0} is not yours: its owner may remove it, and root")]
    NotYours(Model),
    #[error("cannot remove model {model}")]
    Io {
        model: Model,
        #[source]
        source: io::Error,
    },
}

impl Shelf {
    /// A job that is not over and sees the model.
    fn user_of_model(&self, model: &Model) -> io::Result<Option<JobKey>> {
        let workspace = model.workspace.as_str();
        let keys = [newest_of(model.job.as_str()), one_of(model.job.as_str(), model.run)];
        for job in self.open_jobs(workspace)? {
            let place = Path::new(workspace).join("jobs").join(&job);
            let seen: BTreeMap<String, u32> = self.of_newest_run(&place, models_file)?;
            if keys.iter().any(|key| seen.get(key) == Some(&model.run)) {
                return super::users::key_of(workspace, &job).map(Some);
            }
        }
        Ok(None)
    }

    /// The newest model of a job.
    pub fn newest_model(&self, home: &Path) -> io::Result<Option<u32>> {
        Ok(self.names(home)?.iter().filter_map(|name| name.parse().ok()).max())
    }
}

/// Removes a model that no job uses, for its owner or root.
pub fn remove(shelf: &Shelf, model: &Model, by: &Remover<'_>) -> Result<(), ModelError> {
    let io = |source| ModelError::Io { model: model.clone(), source };
    let directory = match shelf.directory(&model.home()) {
        Ok(directory) => directory,
        Err(error) if is_absent(&error) => return Err(ModelError::Unknown(model.clone())),
        Err(error) => return Err(io(error)),
    };
    // One after the other: what one has begun the next one clears away.
    let held = Flock::lock(reopened(&directory).map_err(io)?, FlockArg::LockExclusive);
    let _held = held.map_err(|(_, errno)| io(errno.into()))?;
    let number = model.run.to_string();
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let tree = match openat(&directory, number.as_str(), flags, Mode::empty()) {
        Ok(tree) => File::from(tree),
        Err(Errno::ENOENT) => return Err(ModelError::Unknown(model.clone())),
        Err(errno) => return Err(io(errno.into())),
    };
    if by.uid != 0 && tree.metadata().map_err(io)?.uid() != by.uid {
        return Err(ModelError::NotYours(model.clone()));
    }
    let unused = || match shelf.user_of_model(model).and_then(|job| by.user(job)).map_err(io)? {
        None => Ok(()),
        Some(by) => Err(ModelError::InUse { model: model.clone(), by }),
    };
    clear(shelf, &model.home(), &directory).map_err(io)?;
    put_aside(&directory, &number, unused, io)?;
    clear(shelf, &model.home(), &directory).map_err(io)
}

/// Ends removals in a workspace that were cut short; those of one job that cannot be ended keep no others from it.
pub fn clear_all(shelf: &Shelf, workspace: &str) -> io::Result<()> {
    let models = Path::new(workspace).join("models");
    let jobs = shelf.names(&models)?;
    jobs.into_iter().map(|job| clear_job(shelf, &models.join(job))).fold(Ok(()), io::Result::and)
}

fn clear_job(shelf: &Shelf, home: &Path) -> io::Result<()> {
    let cleared = shelf.directory(home).and_then(|directory| {
        if !has_gone(shelf, home)? {
            return Ok(());
        }
        // One that is being removed now comes back if a job has chosen it.
        let _held = Flock::lock(reopened(&directory)?, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        clear(shelf, home, &directory)
    });
    match cleared {
        Err(error) if is_absent(&error) => Ok(()),
        cleared => cleared,
    }
}

fn has_gone(shelf: &Shelf, home: &Path) -> io::Result<bool> {
    Ok(shelf.names(home)?.iter().any(|name| name.starts_with(&gone(""))))
}

/// `latest` leads to the newest that is left; what is being removed goes, and the links to it before.
fn clear(shelf: &Shelf, home: &Path, directory: &File) -> io::Result<()> {
    loop {
        let newest = shelf.newest_model(home)?;
        match newest {
            Some(newest) => point_latest(directory, &newest.to_string())?,
            None => ignore_absent(unlinkat(directory, LATEST, UnlinkatFlags::NoRemoveDir))?,
        }
        // A run may have left one meanwhile.
        if shelf.newest_model(home)? == newest {
            break;
        }
    }
    directory.sync_all()?;
    let mut done = Ok(());
    for name in shelf.names(home)? {
        let Some(run) = name.strip_prefix(&gone("")) else { continue };
        done = done.and(unlink_from_run(shelf, home, run).and_then(|()| remove_below(directory, &name)));
    }
    done?;
    // Not while there are others.
    let above = shelf.directory(home.parent().unwrap_or(Path::new("")))?;
    let _ = unlinkat(&above, home.file_name().unwrap_or_default(), UnlinkatFlags::RemoveDir);
    Ok(())
}

/// In the directory of its run a link leads to it. `home` is `WS/models/JOB`.
fn unlink_from_run(shelf: &Shelf, home: &Path, run: &str) -> io::Result<()> {
    let (workspace, job) = (home.iter().next().unwrap_or_default(), home.file_name().unwrap_or_default());
    let run = Path::new(workspace).join("jobs").join(job).join("runs").join(run);
    let run = match shelf.directory(&run) {
        Ok(run) => run,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    match readlinkat(&run, "model") {
        Ok(_) => ignore_absent(unlinkat(&run, OsStr::new("model"), UnlinkatFlags::NoRemoveDir)),
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn model(run: u32) -> Model {
        Model { workspace: "default".parse().unwrap(), job: "train".parse().unwrap(), run }
    }

    #[test]
    fn a_removal_that_cannot_be_ended_keeps_no_other_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let models = dir.path().join("default/models");
        for job in ["a", "b", "c"] {
            fs::create_dir_all(models.join(job).join(".trainyard-gone-1")).unwrap();
        }
        // No link, which could be taken away.
        fs::create_dir(models.join("b/latest")).unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        assert!(clear_all(&shelf, "default").is_err());
        let left: Vec<_> = ["a", "b", "c"].map(|job| models.join(job).exists()).into();
        assert_eq!(left, [false, true, false]);
    }

    #[test]
    fn what_no_job_sees_goes_for_its_owner_and_latest_leads_to_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("default/models/train");
        let jobs = dir.path().join("default/jobs");
        for run in 1..=4 {
            fs::create_dir_all(home.join(run.to_string())).unwrap();
            fs::write(home.join(run.to_string()).join("weights"), "x").unwrap();
            fs::create_dir_all(jobs.join(format!("train/runs/{run}"))).unwrap();
            symlink(format!("../../../../models/train/{run}"), jobs.join(format!("train/runs/{run}/model"))).unwrap();
        }
        symlink("4", home.join("latest")).unwrap();
        for (job, seen) in [("tune", "{\"train\":4}"), ("serve", "{\"model:train@2\":2,\"output:train\":3}")] {
            fs::create_dir_all(jobs.join(job).join("runs/7")).unwrap();
            fs::write(jobs.join(job).join("runs").join(models_file(7)), seen).unwrap();
            fs::create_dir_all(jobs.join("by-state/waiting")).unwrap();
            symlink(format!("../../{job}"), jobs.join("by-state/waiting").join(job)).unwrap();
        }
        let shelf = Shelf::open(dir.path()).unwrap();
        let remove = |run, uid| {
            let by = Remover { uid, may_be_named: &|_| true, awaited_by: &|| Ok(None) };
            remove(&shelf, &model(run), &by).map_err(|error| error.to_string())
        };
        assert!(remove(4, 0).unwrap_err().contains("used, or will be, by a job that is not over (job tune)"));
        assert!(remove(2, 0).unwrap_err().contains("(job serve)"));
        assert!(remove(9, 0).unwrap_err().contains("there is no model train@9"));
        let other = nix::unistd::geteuid().as_raw() + 1;
        assert!(remove(3, other).unwrap_err().contains("not yours"));
        let latest = || fs::read_link(home.join("latest")).ok().map(|latest| latest.display().to_string());
        remove(3, 0).unwrap();
        assert!(!home.join("3").exists() && jobs.join("train/runs/3/model").symlink_metadata().is_err());
        assert_eq!(latest().as_deref(), Some("4"));
        // When they are over.
        fs::remove_dir_all(jobs.join("by-state")).unwrap();
        remove(4, 0).unwrap();
        assert_eq!(latest().as_deref(), Some("2"));
        // A removal that was cut short.
        fs::rename(home.join("2"), home.join(".trainyard-gone-2")).unwrap();
        assert!(jobs.join("train/runs/2/model").symlink_metadata().is_ok());
        clear_all(&shelf, "default").unwrap();
        assert!(jobs.join("train/runs/2/model").symlink_metadata().is_err(), "no link leads to nothing");
        assert_eq!((latest().as_deref(), fs::read_dir(&home).unwrap().count()), (Some("1"), 2));
        remove(1, 0).unwrap();
        assert!(!home.exists(), "nothing is left of them");
        assert!(remove(1, 0).unwrap_err().contains("there is no model train@1"));
    }
}
