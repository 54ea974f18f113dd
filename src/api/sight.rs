//! What the file system leaves to somebody of jobs that are not theirs: looked at here, for each request anew, and decided upon by
//! the reconciler, which touches no disk. Nothing is looked at for root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use super::error::ApiError;
use super::jobs;
use super::rights_to;
use super::server::{Context, blocking};
use crate::config::Paths;
use crate::ids::{JobKey, WorkspaceName};
use crate::reconcile::{Beside, Caller, Refusal, Whose};
use crate::sys::process::groups_of;

/// What every workspace may tell them.
pub(super) async fn everywhere(context: &Context, caller: Caller) -> Result<Caller, ApiError> {
    looked(context, caller, |paths, caller| {
        let enters = workspaces(paths).into_iter().filter(|workspace| may_enter(paths, workspace, caller)).collect();
        Beside { enters, ..Beside::default() }
    })
    .await
}

/// What the job may tell them.
pub(super) async fn of_job(context: &Context, caller: Caller, key: &JobKey) -> Result<Caller, ApiError> {
    let key = key.clone();
    looked(context, caller, move |paths, caller| seen(paths, caller, &key)).await
}

/// And whether it is theirs to change.
pub(super) async fn to_change(context: &Context, caller: Caller, key: &JobKey) -> Result<Caller, ApiError> {
    let key = key.clone();
    looked(context, caller, move |paths, caller| {
        let removes = file_that_may_go(paths, &key, caller.uid);
        Beside { removes, ..seen(paths, caller, &key) }
    })
    .await
}

async fn looked(
    context: &Context,
    caller: Caller,
    look: impl FnOnce(&Paths, &Caller) -> Beside + Send + 'static,
) -> Result<Caller, ApiError> {
    if caller.uid == 0 {
        return Ok(caller);
    }
    let paths = context.paths.clone();
    blocking(move || {
        let beside = Beside { groups: groups_of(caller.uid).into_iter().collect(), ..look(&paths, &caller) };
        Ok(Caller { beside: Some(beside.into()), ..caller })
    })
    .await
}

fn seen(paths: &Paths, caller: &Caller, key: &JobKey) -> Beside {
    let enters = may_enter(paths, &key.workspace, caller).then(|| key.workspace.clone());
    Beside { enters: enters.into_iter().collect(), ..Beside::default() }
}

/// All that there are, and have been: `jobs.d`, which has them as well, may hold thousands of files.
fn workspaces(paths: &Paths) -> Vec<WorkspaceName> {
    let all = fs::read_dir(paths.workspaces()).into_iter().flatten().flatten();
    let named = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    named.chain([WorkspaceName::default_workspace()]).collect()
}

/// As the mount has it: by the directory of its job files, of which `workspaces/` has the rights; by these where that is gone.
pub(super) fn may_enter(paths: &Paths, workspace: &WorkspaceName, caller: &Caller) -> bool {
    if !caller.reaches(workspace.as_str()) {
        return false;
    }
    let rights = |path: &Path| rights_to(path, caller.uid);
    let rights = rights(&paths.job_files(workspace)).or_else(|| rights(&paths.workspace(workspace)));
    rights.is_some_and(|rights| caller.uid == 0 || rights & 0o1 != 0)
}

/// Refuses a workspace that is closed to the caller in the words of one that there is not: they learn nothing of it. Blocks.
pub(super) fn enter(paths: &Paths, caller: &Caller, workspace: &WorkspaceName) -> Result<(), ApiError> {
    match may_enter(paths, workspace, caller) {
        true => Ok(()),
        false => Err(closed(workspace.as_str())),
    }
}

pub(super) fn closed(workspace: &str) -> ApiError {
    ApiError::NotFound(format!(
        "there is no workspace {workspace} that you may enter; `trainyard workspace` lists those"
    ))
}

/// The job, or the sweep that makes it, if its file is there and the user may remove it. Where an access list grants that, they have
/// to remove it themselves: the kernel alone weighs these.
fn file_that_may_go(paths: &Paths, key: &JobKey, uid: u32) -> Option<JobKey> {
    let directory = paths.job_files(&key.workspace);
    let sweep = jobs::name_of_sweep(&directory, key.job.as_str()).parse().ok();
    let sweep = sweep.map(|sweep| JobKey::new(key.workspace.clone(), sweep));
    let (file, found) = [Some(key.clone()), sweep].into_iter().flatten().find_map(|file| {
        let found = fs::symlink_metadata(directory.join(format!("{}.toml", file.job))).ok()?;
        Some((file, found))
    })?;
    let above = fs::metadata(&directory).ok()?;
    let is_sticky = above.mode() & 0o1000 != 0;
    let is_kept = is_sticky && ![found.uid(), above.uid()].contains(&uid);
    let may = |directory: &Path, wanted: u32| rights_to(directory, uid).is_some_and(|rights| rights & wanted == wanted);
    let may_write = may(&directory, 0o3) && may(&paths.jobs_d(), 0o1);
    (may_write && !is_kept && !has_access_list(&directory)).then_some(file)
}

fn has_access_list(directory: &Path) -> bool {
    let found = rustix::fs::getxattr(directory, c"system.posix_acl_access", &mut [0; 0][..]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// With the names of those whose jobs they are, which may take a moment.
pub(super) async fn named(refusal: Refusal) -> Refusal {
    if !names_somebody(&refusal) {
        return refusal;
    }
    let unnamed = refusal.clone();
    tokio::task::spawn_blocking(move || with_names(refusal)).await.unwrap_or(unnamed)
}

fn names_somebody(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::NotYours { .. } => true,
        Refusal::Each(each) => each.iter().any(names_somebody),
        _ => false,
    }
}

fn with_names(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::NotYours { key, whose, kept } => {
            let name = whose.uid.map(|uid| Caller::of(uid).name);
            Refusal::NotYours { key, whose: Whose { name, ..whose }, kept }
        }
        Refusal::Each(each) => Refusal::Each(each.into_iter().map(with_names).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_file_may_go_by_its_directory_and_where_that_is_sticky_by_its_owner() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let lab = paths.jobs_d().join("lab");
        fs::create_dir_all(&lab).unwrap();
        let (ann, bob) = (4_000_001, 4_000_002);
        for name in ["anns.toml", "sw.toml", "sw~x.toml"] {
            fs::write(lab.join(name), "").unwrap();
            chown(lab.join(name), Some(ann), Some(ann)).unwrap();
        }
        let may = |name: &str, uid| {
            file_that_may_go(&paths, &format!("lab/{name}").parse().unwrap(), uid).map(|file| file.job.to_string())
        };
        let some = |name: &str| Some(name.to_owned());
        let mode = |mode| fs::set_permissions(&lab, Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        assert_eq!([may("anns", ann), may("anns", bob)], [None, None]);
        mode(0o777);
        assert_eq!([may("anns", ann), may("anns", bob), may("none", bob)], [some("anns"), some("anns"), None]);
        assert_eq!([may("sw~1", bob), may("anns~1", bob), may("none~1", bob)], [some("sw"), some("anns"), None]);
        assert_eq!(may("sw~x~1", bob), some("sw~x"));
        mode(0o1777);
        assert_eq!([may("anns", ann), may("anns", bob), may("sw~1", bob)], [some("anns"), None, None]);
        mode(0o776);
        assert_eq!(may("anns", bob), None, "who may not go there");
        chown(&lab, Some(bob), None).unwrap();
        mode(0o1755);
        assert_eq!([may("anns", bob), may("anns", ann)], [some("anns"), None], "whose directory it is");
    }
}
