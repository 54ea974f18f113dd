//! What the file system leaves to somebody of jobs that are not theirs: looked at here, for each request anew, and decided upon by
//! the reconciler, which touches no disk. Nothing is looked at for root.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use rustix::io::Errno;

use super::error::ApiError;
use super::rights::{enters, may, may_enter, unseen};
use super::server::{Context, blocking};
use crate::config::{JobFiles, Paths};
use crate::ids::{JobKey, JobName, WorkspaceName};
use crate::reconcile::{Beside, Caller, Refusal, Removes, Whose};
use crate::sys::file::optional;
use crate::sys::process::groups_of;

/// What every workspace may tell them.
pub(super) async fn everywhere(context: &Context, caller: Caller) -> Result<Caller, ApiError> {
    if caller.uid == 0 {
        return Ok(caller);
    }
    let (paths, uid) = (context.paths.clone(), caller.uid);
    let beside = context.looks.seen(uid, move || all(&paths, uid).map_err(|error| unseen(&error))).await?;
    Ok(Caller { beside: Some(beside), ..caller })
}

fn all(paths: &Paths, uid: u32) -> io::Result<Beside> {
    let groups: BTreeSet<u32> = groups_of(uid)?.into_iter().collect();
    let mut all = workspaces(paths)?;
    all.retain(|workspace| enters(paths, workspace, uid, |group| groups.contains(&group)));
    Ok(Beside { enters: all.into_iter().collect(), groups, ..Beside::default() })
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
        let removes = files_that_may_go(paths, &key, caller.uid);
        Ok(Beside { removes, ..seen(paths, caller, &key)? })
    })
    .await
}

/// And whose the runs are that the disk has.
pub(super) async fn to_remove(context: &Context, caller: Caller, key: &JobKey) -> Result<Caller, ApiError> {
    let key = key.clone();
    looked(context, caller, move |paths, caller| {
        let removes = files_that_may_go(paths, &key, caller.uid);
        let runs = runs_of(paths, &key).map_err(|error| unseen(&error))?;
        Ok(Beside { removes, runs, ..seen(paths, caller, &key)? })
    })
    .await
}

/// Of the job, and of the jobs of a sweep of that name: the directory of a run belongs to the owner of its file, and lies in one of the
/// daemon's, so that nobody has put it there who is not.
fn runs_of(paths: &Paths, key: &JobKey) -> io::Result<BTreeMap<JobKey, BTreeMap<u32, u32>>> {
    let jobs = paths.workspace(&key.workspace).join("jobs");
    let mut all = BTreeMap::new();
    for entry in optional(fs::read_dir(jobs))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        // There may be thousands of others.
        let rest = name.to_str().and_then(|name| name.strip_prefix(key.job.as_str()));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('~'))
            && let Some(job) = name.to_str().and_then(|name| name.parse::<JobName>().ok())
        {
            let runs = owners_of_runs(&entry.path().join("runs"))?;
            all.insert(JobKey::new(key.workspace.clone(), job), runs);
        }
    }
    Ok(all)
}

fn owners_of_runs(runs: &Path) -> io::Result<BTreeMap<u32, u32>> {
    let mut owners = BTreeMap::new();
    for entry in optional(fs::read_dir(runs))?.into_iter().flatten() {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(found) = optional(entry.metadata())? {
            owners.insert(number, found.uid());
        }
    }
    Ok(owners)
}

async fn looked(
    context: &Context,
    caller: Caller,
    look: impl FnOnce(&Paths, &Caller) -> Result<Beside, ApiError> + Send + 'static,
) -> Result<Caller, ApiError> {
    if caller.uid == 0 {
        return Ok(caller);
    }
    let paths = context.paths.clone();
    blocking(move || {
        let groups = groups_of(caller.uid).map_err(|error| unseen(&error))?;
        let beside = Beside { groups: groups.into_iter().collect(), ..look(&paths, &caller)? };
        Ok(Caller { beside: Some(beside.into()), ..caller })
    })
    .await
}

fn seen(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<Beside, ApiError> {
    let enters = may_enter(paths, &key.workspace, caller)?.then(|| key.workspace.clone());
    Ok(Beside { enters: enters.into_iter().collect(), ..Beside::default() })
}

/// All that there are, and have been: `jobs.d`, which has them as well, may hold thousands of files.
fn workspaces(paths: &Paths) -> io::Result<Vec<WorkspaceName>> {
    let mut all = vec![WorkspaceName::default_workspace()];
    for entry in optional(fs::read_dir(paths.workspaces()))?.into_iter().flatten() {
        all.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
    }
    Ok(all)
}

/// Of the files that may make the job, its own and those of sweeps, the ones that are there and that the user may remove. Where an
/// access list grants that, they have to remove it themselves: the kernel alone weighs these.
fn files_that_may_go(paths: &Paths, key: &JobKey, uid: u32) -> BTreeMap<JobKey, Removes> {
    let directory = paths.job_files(&key.workspace);
    let Ok(JobFiles::Open(above)) = JobFiles::of(&paths.jobs_d(), &key.workspace) else { return BTreeMap::new() };
    if !may(&directory, uid, 0o3) || !may(&paths.jobs_d(), uid, 0o1) || has_access_list(&directory) {
        return BTreeMap::new();
    }
    let keeps_files = above.mode() & 0o1000 != 0 && above.uid() != uid;
    let removes = |file: &JobKey| {
        let found = fs::symlink_metadata(directory.join(format!("{}.toml", file.job))).ok()?;
        match keeps_files {
            false => Some(Removes::Any),
            true => (found.uid() == uid).then_some(Removes::Own),
        }
    };
    let sweeps = key.job.as_str().match_indices('~').filter_map(|(end, _)| key.job.as_str().get(..end)?.parse().ok());
    let files = sweeps.chain([key.job.clone()]).map(|job| JobKey::new(key.workspace.clone(), job));
    files.filter_map(|file| Some((file.clone(), removes(&file)?))).collect()
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
        Refusal::NotYours { .. } | Refusal::NotYourRuns { .. } | Refusal::UnknownRuns { .. } => true,
        Refusal::Each(each) => each.iter().any(names_somebody),
        _ => false,
    }
}

fn with_names(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::NotYours { key, whose, kept } => Refusal::NotYours { key, whose: by_name(whose), kept },
        Refusal::NotYourRuns { key, whose } => {
            Refusal::NotYourRuns { key, whose: whose.into_iter().map(by_name).collect() }
        }
        Refusal::UnknownRuns { key, whose } => {
            Refusal::UnknownRuns { key, whose: whose.into_iter().map(by_name).collect() }
        }
        Refusal::Each(each) => Refusal::Each(each.into_iter().map(with_names).collect()),
        other => other,
    }
}

fn by_name(whose: Whose) -> Whose {
    Whose { name: whose.uid.map(|uid| Caller::of(uid).name), ..whose }
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
            let files = files_that_may_go(&paths, &format!("lab/{name}").parse().unwrap(), uid);
            files.into_iter().map(|(file, removes)| (file.job.to_string(), removes)).collect::<Vec<_>>()
        };
        let any = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Removes::Any)).collect::<Vec<_>>();
        let own = |name: &str| vec![(name.to_owned(), Removes::Own)];
        let mode = |mode| fs::set_permissions(&lab, Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        assert_eq!([may("anns", ann), may("anns", bob)], [any(&[]), any(&[])]);
        mode(0o777);
        assert_eq!([may("anns", ann), may("anns", bob), may("none", bob)], [any(&["anns"]), any(&["anns"]), any(&[])]);
        assert_eq!(
            [may("sw~1", bob), may("anns~1", bob), may("none~1", bob)],
            [any(&["sw"]), any(&["anns"]), any(&[])]
        );
        assert_eq!(may("sw~x~1", bob), any(&["sw", "sw~x"]));
        mode(0o1777);
        assert_eq!([may("anns", ann), may("anns", bob), may("sw~1", bob)], [own("anns"), any(&[]), any(&[])]);
        // A file of one's own beside the sweep of another.
        fs::write(lab.join("sw~1.toml"), "").unwrap();
        chown(lab.join("sw~1.toml"), Some(bob), Some(bob)).unwrap();
        assert_eq!([may("sw~1", bob), may("sw~1", ann)], [own("sw~1"), own("sw")]);
        mode(0o776);
        assert_eq!(may("anns", bob), any(&[]), "who may not go there");
        mode(0o1755);
        chown(&lab, Some(bob), None).unwrap();
        assert_eq!(
            [may("anns", bob), may("anns", ann)],
            [any(&[]), any(&[])],
            "a stranger's directory is no workspace"
        );
        chown(paths.jobs_d(), Some(bob), None).unwrap();
        assert_eq!([may("anns", bob), may("anns", ann)], [any(&["anns"]), any(&[])], "whose directory it is");
    }
}
