//! Job files that people write and take away through the daemon: as them, where the permissions of the directory let them. The
//! files stay the truth: what is answered is what has come of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::ApiError;
use super::server::Context;
use crate::config::Paths;
use crate::ids::JobKey;
use crate::intake::sources::{OVERRIDES_SUFFIX, TEMPLATE_SUFFIX, overrides_of};
use crate::intake::{Arrival, read_text};
use crate::reconcile::Caller;
use crate::spec::{JOB_FILE_MAX_BYTES, ResourceSpecs};
use crate::store::record::Owner;
use crate::sys::file::{
    Durability, Existing, ignore_missing, optional, read_limited, remove_tree, write_new, write_whole,
};
use crate::sys::process::{groups_of, primary_group_of, with_file_rights};
use crate::sys::rooted::Held;

/// Files are opened with the caller's rights. Blocks.
pub(super) fn as_caller<T: Send>(caller: &Caller, work: impl FnOnce() -> T + Send) -> Result<T, ApiError> {
    if caller.uid == 0 {
        return Ok(work());
    }
    let done = with_file_rights(caller.uid, primary_group_of(caller.uid), &groups_of(caller.uid), work);
    done.map_err(|error| ApiError::Failed(format!("cannot take the rights of {}: {error}", caller.name)))
}

fn path_of(paths: &Paths, key: &JobKey) -> Result<PathBuf, ApiError> {
    if key.job.as_str().ends_with(".template") {
        return Err(ApiError::Bad(format!(
            "{key} cannot be a job: files that end with {TEMPLATE_SUFFIX} are templates"
        )));
    }
    check_workspace(key)?;
    Ok(paths.job_files(&key.workspace).join(format!("{}.toml", key.job)))
}

pub(super) fn check_workspace(key: &JobKey) -> Result<(), ApiError> {
    match key.workspace.as_str().ends_with(OVERRIDES_SUFFIX) {
        true => Err(ApiError::Bad(format!("{} is no workspace: it holds the overrides of a job", key.workspace))),
        false => Ok(()),
    }
}

/// A file of `jobs.d` by a way on which lies no link: others may make some there, and the caller may be root.
pub(super) struct Target<'a> {
    _held: Held,
    way: PathBuf,
    shown: &'a Path,
}

impl<'a> Target<'a> {
    pub(super) fn of(paths: &Paths, file: &'a Path) -> io::Result<Self> {
        let directory = file.parent().unwrap_or(file);
        let jobs_d = paths.jobs_d();
        let held = Held::below(&jobs_d, directory.strip_prefix(&jobs_d).unwrap_or(directory))?;
        Ok(Self { way: held.path(file.file_name().unwrap_or_default()), _held: held, shown: file })
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.way)
    }
}

/// A job file that is to be written.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) key: JobKey,
    pub(super) text: Vec<u8>,
    pub(super) place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// There must be none yet.
    New,
    Any,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Written {
    /// There was none before.
    pub(super) is_new: bool,
    /// The jobs that it makes, with what the daemon will keep of it.
    pub(super) jobs: Vec<(JobKey, String)>,
}

/// Writes a job file, whole, if the daemon will take it. Blocks.
pub(super) fn write(
    paths: &Paths,
    specs: &ResourceSpecs,
    caller: &Caller,
    wanted: &Wanted,
) -> Result<Written, ApiError> {
    let file = path_of(paths, &wanted.key)?;
    let owner = Owner { uid: caller.uid, gid: primary_group_of(caller.uid) };
    as_caller(caller, || {
        let target = Target::of(paths, &file).map_err(|error| told(&file, "write", &error))?;
        let read = read_text(&paths.jobs_d(), &file, &wanted.key, &wanted.text, owner, specs);
        let jobs = match read.map_err(ApiError::InvalidJob)? {
            Arrival::Accepted { key, source, .. } => vec![(key, source.text)],
            Arrival::Swept { jobs, .. } => jobs.into_iter().map(|job| (job.key, job.source.text)).collect(),
            Arrival::Refused { diagnostics, .. } => return Err(ApiError::InvalidJob(diagnostics)),
            Arrival::Removed { .. } | Arrival::Stray { .. } => Vec::new(),
        };
        let is_new = put(caller, &target, &wanted.text, wanted.place, &format!("job {}", wanted.key))?;
        Ok(Written { is_new, jobs })
    })?
}

/// Writes the file of `whose`, whole, with the rights of the caller, which this thread has; whether there was none before.
pub(super) fn put(
    caller: &Caller,
    target: &Target<'_>,
    text: &[u8],
    place: Place,
    whose: &str,
) -> Result<bool, ApiError> {
    let (way, file) = (&target.way, target.shown);
    let before = optional(fs::symlink_metadata(way)).map_err(|error| told(file, "look at", &error))?;
    if before.as_ref().is_some_and(|before| caller.uid != 0 && before.uid() != caller.uid) {
        return Err(ApiError::Forbidden(format!("the file of {whose} belongs to another user")));
    }
    // Others must be able to read what runs here, as with files that are dropped.
    let written = match place {
        Place::Any => write_whole(way, text, 0o644, Durability::Machine).map(|()| Existing::None),
        Place::New => write_new(way, text, 0o644, Durability::Machine),
    };
    match written.map_err(|error| told(file, "write", &error))? {
        Existing::None => Ok(before.is_none()),
        Existing::Kept => Err(ApiError::Conflict(format!("there is a file of {whose} already"))),
    }
}

/// What would be said of a job file, without writing it. Blocks.
pub(super) fn check(
    paths: &Paths,
    specs: &ResourceSpecs,
    caller: &Caller,
    key: &JobKey,
    text: &[u8],
) -> Result<Vec<crate::spec::Diagnostic>, ApiError> {
    let file = path_of(paths, key)?;
    let owner = Owner { uid: caller.uid, gid: primary_group_of(caller.uid) };
    let read = as_caller(caller, || read_text(&paths.jobs_d(), &file, key, text, owner, specs))?;
    Ok(match read {
        Ok(Arrival::Accepted { source, .. }) => source.warnings,
        Ok(Arrival::Swept { jobs, .. }) => jobs.into_iter().next().map(|job| job.source.warnings).unwrap_or_default(),
        Ok(Arrival::Refused { diagnostics, .. }) | Err(diagnostics) => diagnostics,
        Ok(Arrival::Removed { .. } | Arrival::Stray { .. }) => Vec::new(),
    })
}

/// The file of a job as it is. Blocks.
pub(super) fn read(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<Vec<u8>, ApiError> {
    let file = path_of(paths, key)?;
    match as_caller(caller, || read_limited(&file, JOB_FILE_MAX_BYTES))? {
        Ok((_, bytes)) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ApiError::NotFound(format!("job {key} has no file of its own")))
        }
        Err(error) => Err(told(&file, "read", &error)),
    }
}

/// Removes the file of a job and its overrides; gone is well.
pub(super) fn remove(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<(), ApiError> {
    let file = path_of(paths, key)?;
    let removed = as_caller(caller, || -> io::Result<()> {
        let Some(target) = optional(Target::of(paths, &file))? else { return Ok(()) };
        // The file first: who may not remove it keeps all of it, and without it the overrides are nobody's.
        ignore_missing(target.remove())?;
        ignore_missing(remove_tree(&overrides_of(&target.way)))
    })?;
    removed.map_err(|error| told(&file, "remove", &error))
}

pub(super) fn told(file: &Path, verb: &str, error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ApiError::Forbidden(format!("you may not {verb} {}: {error}", file.display()))
        }
        io::ErrorKind::NotFound => ApiError::NotFound(format!("there is no workspace for {}", file.display())),
        _ => ApiError::Failed(format!("cannot {verb} {}: {error}", file.display())),
    }
}

/// How long the daemon may take to see that a file has come.
const SEEN_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// Waits until the daemon has taken in what was written; false when it takes longer than that.
pub(super) async fn until_known(context: &Context, caller: &Caller, written: &Written) -> Result<bool, ApiError> {
    let Some((key, text)) = written.jobs.first() else { return Ok(true) };
    let mut rounds = context.rounds.clone();
    let known = async {
        loop {
            rounds.mark_unchanged();
            match super::jobs::show(context, caller.clone(), key.clone(), None).await {
                Ok(detail) if detail.text.as_ref() == Some(text) => return Ok(()),
                Ok(_) | Err(ApiError::Refused(_)) => rounds.changed().await.map_err(|_| ApiError::Ending)?,
                Err(error) => return Err(error),
            }
        }
    };
    match tokio::time::timeout(SEEN_WITHIN, known).await {
        Ok(known) => known.map(|()| true),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_or_removed_for_root_goes_through_no_link() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let victim = root.path().join("victim");
        fs::create_dir_all(paths.jobs_d()).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("a.toml"), "kept").unwrap();
        std::os::unix::fs::symlink(&victim, paths.jobs_d().join("planted")).unwrap();
        let key = |text: &str| text.parse::<JobKey>().unwrap();
        let wanted = |text: &str| Wanted { key: key(text), text: b"command = \"true\"".to_vec(), place: Place::Any };
        let caller = Caller::root();
        for name in ["planted/a", "planted/b"] {
            assert!(write(&paths, &ResourceSpecs::default(), &caller, &wanted(name)).is_err());
            assert!(remove(&paths, &caller, &key(name)).is_err());
        }
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(victim.join("a.toml")).unwrap(), "kept");
        assert!(write(&paths, &ResourceSpecs::default(), &caller, &wanted("a")).unwrap().is_new);
        remove(&paths, &caller, &key("a")).unwrap();
        remove(&paths, &caller, &key("nowhere/a")).unwrap();
        assert!(!paths.jobs_d().join("a.toml").exists());
    }
}
