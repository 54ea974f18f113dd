//! What the file system leaves to somebody of jobs that are not theirs: looked at here, for each request anew, and decided upon by
//! the reconciler, which touches no disk. Nothing is looked at for root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::io::Errno;

use super::error::ApiError;
use super::server::{Context, blocking};
use super::{rights_in, rights_to};
use crate::config::Paths;
use crate::ids::{JobKey, WorkspaceName};
use crate::reconcile::{Beside, Caller, Refusal, Removes, Whose};
use crate::sys::process::groups_of;

/// What every workspace may tell them.
pub(super) async fn everywhere(context: &Context, caller: Caller) -> Result<Caller, ApiError> {
    if caller.uid == 0 {
        return Ok(caller);
    }
    let (paths, uid) = (context.paths.clone(), caller.uid);
    let beside = context.looks.seen(uid, move || all(&paths, uid)).await?;
    Ok(Caller { beside: Some(beside), ..caller })
}

/// Looks at all workspaces, of each user one at a time: of thousands who follow what happens as one user and ask at once, the second
/// that looks does so for all others.
#[derive(Debug, Clone, Default)]
pub struct Looks(Arc<Mutex<BTreeMap<u32, Arc<Turn>>>>);

type Turn = tokio::sync::Mutex<Option<Look>>;

/// What was seen, and since when it is known to be so.
#[derive(Debug, Clone)]
struct Look {
    begun: Instant,
    beside: Arc<Beside>,
}

impl Looks {
    /// As it is now, or was at some time after this was called.
    async fn seen(&self, uid: u32, look: impl FnOnce() -> Beside + Send + 'static) -> Result<Arc<Beside>, ApiError> {
        let asked = Instant::now();
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_default().clone();
        let mut last = turn.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.begun > asked) {
            return Ok(look.beside.clone());
        }
        let look = blocking(move || Ok(Look { begun: Instant::now(), beside: look().into() })).await?;
        Ok(last.insert(look).beside.clone())
    }
}

fn all(paths: &Paths, uid: u32) -> Beside {
    let groups: BTreeSet<u32> = groups_of(uid).into_iter().collect();
    let rights = |at: &Path| rights_in(at, uid, |group| groups.contains(&group));
    let enters = workspaces(paths).into_iter().filter(|workspace| enters(paths, workspace, rights)).collect();
    Beside { enters, groups, ..Beside::default() }
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
    if caller.uid == 0 {
        return rights_of(paths, workspace, |at| rights_to(at, 0)).is_some();
    }
    enters(paths, workspace, |at| rights_to(at, caller.uid))
}

fn enters(paths: &Paths, workspace: &WorkspaceName, rights_to: impl Fn(&Path) -> Option<u32>) -> bool {
    rights_of(paths, workspace, rights_to).is_some_and(|rights| rights & 0o1 != 0)
}

fn rights_of(paths: &Paths, workspace: &WorkspaceName, rights_to: impl Fn(&Path) -> Option<u32>) -> Option<u32> {
    rights_to(&paths.job_files(workspace)).or_else(|| rights_to(&paths.workspace(workspace)))
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

/// Of the files that may make the job, its own and those of sweeps, the ones that are there and that the user may remove. Where an
/// access list grants that, they have to remove it themselves: the kernel alone weighs these.
fn files_that_may_go(paths: &Paths, key: &JobKey, uid: u32) -> BTreeMap<JobKey, Removes> {
    let directory = paths.job_files(&key.workspace);
    let may = |directory: &Path, wanted: u32| rights_to(directory, uid).is_some_and(|rights| rights & wanted == wanted);
    let Ok(above) = fs::metadata(&directory) else { return BTreeMap::new() };
    if !may(&directory, 0o3) || !may(&paths.jobs_d(), 0o1) || has_access_list(&directory) {
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thousand_who_ask_at_once_as_one_user_are_told_by_a_few_looks_and_who_asks_later_by_another() {
        let looks = Looks::default();
        let [count, asked] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let ask = |uid| {
            let (looks, count, asked) = (looks.clone(), count.clone(), asked.clone());
            async move {
                let all = asked.clone();
                let look = move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    // Until the others have asked as well.
                    while all.load(Ordering::Relaxed) < 1000 {
                        std::thread::yield_now();
                    }
                    Beside::default()
                };
                asked.fetch_add(1, Ordering::Relaxed);
                looks.seen(uid, look).await.unwrap()
            }
        };
        let all: Vec<_> = (0..1000).map(|number| tokio::spawn(ask(number % 2))).collect();
        for one in all {
            one.await.unwrap();
        }
        let looked = count.load(Ordering::Relaxed);
        // The first of each user, who has asked before the others, and the next; a thread may be late.
        assert!((2..20).contains(&looked), "{looked}");
        ask(0).await;
        assert_eq!(count.load(Ordering::Relaxed), looked + 1, "what was seen before one asks is old");
    }

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
        chown(&lab, Some(bob), None).unwrap();
        mode(0o1755);
        assert_eq!([may("anns", bob), may("anns", ann)], [any(&["anns"]), any(&[])], "whose directory it is");
    }
}
