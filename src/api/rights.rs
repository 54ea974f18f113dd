//! What the mode bits of workspaces' directories leave to somebody. Blocks.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::ApiError;
use crate::config::{JobFiles, Paths};
use crate::ids::WorkspaceName;
use crate::reconcile::Caller;
use crate::sys::file::class_mode;
use crate::sys::process::groups_of;

/// Whether a user may write in the directory of a workspace's job files. What cannot be looked at lets nobody write.
pub(super) fn may_submit(jobs_d: &Path, workspace: &str, uid: u32) -> bool {
    workspace.parse().is_ok_and(|workspace| submits(jobs_d, &workspace, uid).unwrap_or(false))
}

/// The same, or that it cannot be looked at.
pub(super) fn submits(jobs_d: &Path, workspace: &WorkspaceName, uid: u32) -> io::Result<bool> {
    let JobFiles::Open(_) = JobFiles::of(jobs_d, workspace)? else { return Ok(false) };
    let directory = JobFiles::directory(jobs_d, workspace);
    let has = |directory: &Path, wanted: u32| {
        Ok::<_, io::Error>(rights_to(directory, uid)?.is_some_and(|rights| rights & wanted == wanted))
    };
    Ok(has(&directory, 0o3)? && (directory == jobs_d || has(jobs_d, 0o1)?))
}

/// Whether a user has all of these rights to a directory.
pub(super) fn may(directory: &Path, uid: u32, wanted: u32) -> bool {
    rights_to(directory, uid).is_ok_and(|rights| rights.is_some_and(|rights| rights & wanted == wanted))
}

/// Refuses a workspace that there is not.
pub(super) fn check_there(paths: &Paths, workspace: &WorkspaceName) -> Result<(), ApiError> {
    match paths.has_workspace(workspace) {
        true => Ok(()),
        false => Err(ApiError::NotFound(format!(
            "there is no workspace {workspace}; `trainyard workspace` lists them, and a directory in jobs.d makes one"
        ))),
    }
}

/// The rights of a user to a directory (`rwx` as 4, 2 and 1), as the kernel decides it: by one class alone. Whom an access list names
/// beside its owner and its group is left to the kernel. `None` where there is no directory, or none that can be looked at.
fn rights_to(directory: &Path, uid: u32) -> io::Result<Option<u32>> {
    rights_in(directory, uid, |group| Ok(groups_of(uid)?.contains(&group)))
}

/// The same for a user of whom somebody knows which groups they are in: to ask the machine takes longer than the rest.
fn rights_in(directory: &Path, uid: u32, is_in: impl FnOnce(u32) -> io::Result<bool>) -> io::Result<Option<u32>> {
    let found = std::fs::symlink_metadata(directory).ok().filter(std::fs::Metadata::is_dir);
    let Some(found) = found else { return Ok(None) };
    let class = match found.uid() == uid {
        true => 6,
        false if is_in(found.gid())? => 3,
        false => 0,
    };
    Ok(class_mode(directory, &found).ok().map(|mode| mode >> class & 0o7))
}

/// As the mount has it: by the directory of its job files, of which `workspaces/` has the rights; by these where that is gone.
pub(super) fn may_enter(paths: &Paths, workspace: &WorkspaceName, caller: &Caller) -> Result<bool, ApiError> {
    if !caller.reaches(workspace.as_str()) {
        return Ok(false);
    }
    let rights = rights_of(paths, workspace, |at| rights_to(at, caller.uid));
    let rights = rights.map_err(|error| unseen(&error))?;
    Ok(rights.is_some_and(|rights| caller.uid == 0 || rights & 0o1 != 0))
}

/// Whether a user who is in these groups may.
pub(super) fn enters(paths: &Paths, workspace: &WorkspaceName, uid: u32, is_in: impl Fn(u32) -> bool) -> bool {
    let rights = rights_of(paths, workspace, |at| rights_in(at, uid, |group| Ok(is_in(group))));
    rights.is_ok_and(|rights| rights.is_some_and(|rights| rights & 0o1 != 0))
}

fn rights_of(
    paths: &Paths,
    workspace: &WorkspaceName,
    rights_to: impl Fn(&Path) -> io::Result<Option<u32>>,
) -> io::Result<Option<u32>> {
    // A stranger's directory opens nothing of what a workspace of its name has left.
    let opens = matches!(JobFiles::of(&paths.jobs_d(), workspace)?, JobFiles::Open(_));
    match opens.then(|| rights_to(&paths.job_files(workspace))).transpose()?.flatten() {
        Some(rights) => Ok(Some(rights)),
        None => rights_to(&paths.workspace(workspace)),
    }
}

/// Nobody loses what they may by it: they ask again.
pub(super) fn unseen(error: &io::Error) -> ApiError {
    ApiError::Failed(format!("cannot look at what you may see: {error}"))
}

/// Refuses a workspace that is closed to the caller in the words of one that there is not: they learn nothing of it.
pub(super) fn enter(paths: &Paths, caller: &Caller, workspace: &WorkspaceName) -> Result<(), ApiError> {
    match may_enter(paths, workspace, caller)? {
        true => Ok(()),
        false => Err(closed(workspace.as_str())),
    }
}

pub(super) fn closed(workspace: &str) -> ApiError {
    ApiError::NotFound(format!(
        "there is no workspace {workspace} that you may enter; `trainyard workspace` lists those"
    ))
}
