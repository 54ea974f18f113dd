//! Job files that people write and take away through the daemon: as them, where the permissions of the directory let them. The
//! files stay the truth: what is answered is what has come of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;

use super::error::ApiError;
use super::rights::{self, may_enter, may_submit};
use super::server::{Context, ask, blocking};
use crate::config::{JobFiles, Paths};
use crate::ids::JobKey;
use crate::intake::sources::{OVERRIDES_SUFFIX, TEMPLATE_SUFFIX, overrides_of};
use crate::intake::{Made, read_text, read_whole};
use crate::reconcile::{Caller, Request, TakenIn, Whose};
use crate::spec::{Diagnostic, JOB_FILE_MAX_BYTES, ResourceSpecs};
use crate::store::record::Owner;
use crate::sys::file::{Durability, Existing, optional, read_limited, remove_tree, write_new, write_whole};
use crate::sys::process::{groups_of, primary_group_of, with_file_rights};
use crate::sys::rooted::Held;

/// Files are opened with the caller's rights. Blocks.
pub(super) fn as_caller<T: Send>(caller: &Caller, work: impl FnOnce() -> T + Send) -> Result<T, ApiError> {
    if caller.uid == 0 {
        return Ok(work());
    }
    let groups = groups_of(caller.uid);
    let done = groups.and_then(|groups| with_file_rights(caller.uid, primary_group_of(caller.uid), &groups, work));
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

/// Refuses files of a workspace that is closed to the caller, and of a directory that is a stranger's and so no workspace.
pub(super) fn enter(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<(), ApiError> {
    rights::enter(paths, caller, &key.workspace)?;
    let jobs_d = paths.jobs_d();
    let why = JobFiles::why_none(&jobs_d, &key.workspace);
    let told = |why| format!("{} {why}", JobFiles::directory(&jobs_d, &key.workspace).display());
    why.map_or(Ok(()), |why| Err(ApiError::Forbidden(told(why))))
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
    /// The daemon has taken it in.
    pub(super) is_known: bool,
}

/// Writes a job file, whole, if the daemon will take it, and waits until it has.
pub(super) async fn submit(context: &Context, caller: &Caller, wanted: Wanted) -> Result<Written, ApiError> {
    let specs = context.config.now().specs.clone();
    let (paths, by) = (context.paths.clone(), caller.clone());
    let (file, wanted) = blocking(move || Ok((Arc::new(made(&paths, &specs, &by, &wanted)?), wanted))).await?;
    let refused = judged(context, caller, &file).await?;
    if !refused.is_empty() {
        return Err(ApiError::InvalidJob(refused));
    }
    let (paths, by) = (context.paths.clone(), caller.clone());
    let is_new = blocking(move || write(&paths, &by, &wanted)).await?;
    Ok(Written { is_new, is_known: until_known(context, &file).await? })
}

/// What comes of the text, as a file of the caller's. Blocks.
fn made(paths: &Paths, specs: &ResourceSpecs, caller: &Caller, wanted: &Wanted) -> Result<Made, ApiError> {
    let file = path_of(paths, &wanted.key)?;
    let owner = Owner { uid: caller.uid, gid: primary_group_of(caller.uid) };
    enter(paths, caller, &wanted.key)?;
    as_caller(caller, || {
        Target::of(paths, &file).map_err(|error| told(&file, "write", &error))?;
        read_text(&paths.jobs_d(), &file, &wanted.key, &wanted.text, owner, specs).map_err(ApiError::InvalidJob)
    })?
}

/// Writes a job file, whole; whether there was none. Blocks.
fn write(paths: &Paths, caller: &Caller, wanted: &Wanted) -> Result<bool, ApiError> {
    let file = path_of(paths, &wanted.key)?;
    as_caller(caller, || {
        let target = Target::of(paths, &file).map_err(|error| told(&file, "write", &error))?;
        put(caller, &target, &wanted.text, wanted.place, &format!("job {}", wanted.key))
    })?
}

/// Why the daemon would refuse it, now. Who may write no job files there is told of none of the jobs and quotas of the workspace.
async fn judged(context: &Context, caller: &Caller, file: &Arc<Made>) -> Result<Vec<Diagnostic>, ApiError> {
    let (jobs_d, workspace, uid) = (context.paths.jobs_d(), file.key.workspace.clone(), caller.uid);
    let may_ask = blocking(move || Ok(uid == 0 || may_submit(&jobs_d, workspace.as_str(), uid))).await?;
    if !may_ask {
        return Ok(Vec::new());
    }
    let file = file.clone();
    ask(context, |answer| Request::Judge { file, answer }).await
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
        let owner = owner_of(before.map_or(0, |before| before.uid()));
        let message = format!("the file of {whose} belongs to {owner}: {}, or give yours another name", owner.ask());
        return Err(ApiError::Forbidden(message));
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

/// What of a job a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Its file: templates and overrides belong to it.
    File,
    /// All that it is made of.
    Whole,
}

/// What would be said of a job file, without writing it.
pub(super) async fn check(
    context: &Context,
    caller: Caller,
    key: JobKey,
    (text, part): (Bytes, Part),
) -> Result<Vec<Diagnostic>, ApiError> {
    let (paths, specs) = (context.paths.clone(), context.config.now().specs.clone());
    let by = caller.clone();
    let read = blocking(move || {
        let file = path_of(&paths, &key)?;
        enter(&paths, &by, &key)?;
        let owner = Owner { uid: by.uid, gid: primary_group_of(by.uid) };
        as_caller(&by, || match part {
            Part::File => read_text(&paths.jobs_d(), &file, &key, &text, owner, &specs),
            Part::Whole => read_whole(&key, &text, owner, &specs),
        })
    });
    let file = match read.await? {
        Ok(file) => Arc::new(file),
        Err(diagnostics) => return Ok(diagnostics),
    };
    let mut found = judged(context, &caller, &file).await?;
    found.extend(file.jobs.first().into_iter().flat_map(|job| job.source.warnings.iter().cloned()));
    Ok(found)
}

/// The file of a job as it is. Blocks.
pub(super) fn read(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<Vec<u8>, ApiError> {
    let file = path_of(paths, key)?;
    enter(paths, caller, key)?;
    match as_caller(caller, || read_limited(&file, JOB_FILE_MAX_BYTES))? {
        Ok((_, bytes)) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(no_file(key)),
        Err(error) => Err(refused(paths, caller, key, (&file, "read", &error))),
    }
}

fn owner_of(uid: u32) -> Whose {
    Whose { uid: Some(uid), name: Some(Caller::of(uid).name) }
}

fn no_file(key: &JobKey) -> ApiError {
    ApiError::NotFound(format!("job {key} has no file of its own"))
}

/// As [`told`]; who may enter the workspace is told as well whose the file is.
fn refused(paths: &Paths, caller: &Caller, key: &JobKey, what: (&Path, &str, &io::Error)) -> ApiError {
    let (file, verb, error) = what;
    let is_denied =
        error.kind() == io::ErrorKind::PermissionDenied && may_enter(paths, &key.workspace, caller).unwrap_or(false);
    match fs::symlink_metadata(file).ok().filter(|found| is_denied && found.uid() != caller.uid) {
        Some(found) => {
            let (owner, file) = (owner_of(found.uid()), file.display());
            ApiError::Forbidden(format!("you may not {verb} {file}, which belongs to {owner}: {}", owner.ask()))
        }
        None => told(file, verb, error),
    }
}

/// Removes the file of a job and its overrides; whether there was any of it. Gone is well: who asks may need no more.
pub(super) fn remove(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<bool, ApiError> {
    let file = path_of(paths, key)?;
    let removed = as_caller(caller, || -> io::Result<_> {
        let Some(target) = optional(Target::of(paths, &file))? else { return Ok(None) };
        let found = optional(fs::symlink_metadata(&target.way))?;
        // The file first: who may not remove it keeps all of it, and without it the overrides are nobody's.
        let was_there = optional(target.remove())?.is_some();
        let whose = found.filter(|_| was_there).map(|found| found.uid());
        Ok(Some((was_there, remove_overrides(&overrides_of(&target.way), whose))))
    })?;
    let removed = removed.map_err(|error| refused(paths, caller, key, (&file, "remove", &error)))?;
    let Some((was_there, overrides)) = removed else { return Ok(false) };
    let told = |error: io::Error| refused(paths, caller, key, (&overrides_of(&file), "remove the overrides", &error));
    Ok(overrides.map_err(told)? || was_there)
}

/// Whether there were any. What a stranger has put there, whom a sticky directory keeps it for, was none to the job, and stays.
fn remove_overrides(overrides: &Path, whose: Option<u32>) -> io::Result<bool> {
    let Some(found) = optional(fs::symlink_metadata(overrides))? else { return Ok(false) };
    let is_strangers = found.uid() != 0 && whose.is_some_and(|whose| whose != found.uid());
    match remove_tree(overrides) {
        Err(error) if is_strangers && error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        removed => removed.map(|()| true),
    }
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

/// How long the daemon may take to see that a file has come or gone.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// And how long it may tell nothing before it is asked again.
const QUIET: Duration = Duration::from_millis(250);

/// Waits until something is so, by each round of the daemon; false when that takes too long.
async fn until<F: Future<Output = Result<bool, ApiError>>>(
    context: &Context,
    is_so: impl Fn() -> F,
) -> Result<bool, ApiError> {
    let mut rounds = context.rounds.clone();
    let seen = async {
        loop {
            rounds.mark_unchanged();
            if is_so().await? {
                return Ok(());
            }
            // A round in which nothing is published, as of a file that is no job's, tells nobody.
            if let Ok(round) = tokio::time::timeout(QUIET, rounds.changed()).await {
                round.map_err(|_| ApiError::Ending)?;
            }
        }
    };
    match tokio::time::timeout(SEEN_WITHIN, seen).await {
        Ok(seen) => seen.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Waits until the daemon has taken in what was written, whatever jobs it makes. What it refuses after all, since another file or the
/// configuration has come before it, it says of that very text.
async fn until_known(context: &Context, file: &Arc<Made>) -> Result<bool, ApiError> {
    let is_known = async || {
        let file = file.clone();
        match ask(context, |answer| Request::TakenIn { file, answer }).await? {
            TakenIn::Yes => Ok(true),
            TakenIn::NotYet => Ok(false),
            TakenIn::Refused(refused) => Err(ApiError::InvalidJob(refused)),
        }
    };
    until(context, is_known).await
}

/// Removes the file of a job and its overrides, and waits until the daemon knows; false when that takes too long. One that there is
/// not cannot be removed.
pub(super) async fn take_away(context: &Context, caller: Caller, key: JobKey) -> Result<bool, ApiError> {
    let (paths, of) = (context.paths.clone(), key.clone());
    let removes = move || {
        enter(&paths, &caller, &of)?;
        if remove(&paths, &caller, &of)? { Ok(()) } else { Err(no_file(&of)) }
    };
    blocking(removes).await?;
    let is_gone = async || {
        let key = key.clone();
        ask(context, |answer| Request::HasFile { key, answer }).await.map(|is_there| !is_there)
    };
    until(context, is_gone).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_has_put_beside_a_job_file_keeps_nobody_from_removing_that() {
        use std::os::unix::fs::{PermissionsExt, chown};
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let (jobs_d, file) = (paths.jobs_d(), paths.jobs_d().join("a.toml"));
        fs::create_dir_all(&jobs_d).unwrap();
        fs::set_permissions(&jobs_d, fs::Permissions::from_mode(0o1777)).unwrap();
        let (eve, ann) = (4_000_001, 4_000_002);
        let of = |path: &Path, uid| chown(path, Some(uid), Some(uid)).unwrap();
        let begin = || {
            fs::write(&file, "").unwrap();
            of(&file, eve);
        };
        begin();
        let overrides = jobs_d.join("a.toml.d");
        fs::create_dir(&overrides).unwrap();
        of(&overrides, ann);
        let remove = |uid| remove(&paths, &Caller::of(uid), &"a".parse().unwrap());
        let refused = remove(ann).unwrap_err().to_string();
        assert!(refused.contains("a.toml, which belongs to user 4000001") && file.exists(), "{refused}");
        assert!(remove(eve).unwrap() && !file.exists() && overrides.exists(), "they were none of the job's");
        // Her own, in which there is something of another's.
        begin();
        of(&overrides, eve);
        fs::create_dir_all(overrides.join("deep/er")).unwrap();
        of(&overrides.join("deep"), ann);
        let refused = remove(eve).unwrap_err().to_string();
        assert!(refused.contains("you may not remove the overrides ") && refused.contains("a.toml.d"), "{refused}");
        assert!(remove(0).unwrap() && !overrides.exists());
    }

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
            assert!(write(&paths, &caller, &wanted(name)).is_err());
            assert!(remove(&paths, &caller, &key(name)).is_err());
        }
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(victim.join("a.toml")).unwrap(), "kept");
        assert!(write(&paths, &caller, &wanted("a")).unwrap());
        let removed = ["a", "a", "nowhere/a"].map(|name| remove(&paths, &caller, &key(name)).unwrap());
        assert_eq!(removed, [true, false, false]);
        assert!(!paths.jobs_d().join("a.toml").exists());
    }
}
