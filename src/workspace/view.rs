//! The mount's rules, and the merged `log` of each task. Answers the fs crate's trait.
//!
//! `datasets/` and `code/` are the users' to change, but for published versions; `jobs/` and `models/` only tell. Below
//! `jobs/` what begins with a dot is the daemon's own business and is not shown.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use trainyard_fs::{Account, Behind, Content, ContentMetadata, Quota, Refusal, RelPath, Rule, Tree};

use crate::assets::freeze::{Freezer, Replaced, may_be_version};
use crate::assets::manifest;
use crate::assets::{DRAFT, LATEST, MANIFEST, OWN, Shelf};
use crate::ids::{JobKey, NAME_MAX_BYTES, NAME_MAX_CHARS};
use crate::logs::{INDEX_FILE, LogReader};
use crate::status::State;
use crate::sys::file::optional;
use crate::workspace::control::{Ask, Control};
use crate::workspace::quota::Ledger;

/// Name of the merged log in a task's directory.
const MERGED_LOG: &str = "log";
/// Name of the file by which a job is stopped and started again.
const CONTROL: &str = "ctl";
/// Name of the file that tells what a run, or a task, has come to, and how much of it is looked at, bytes.
const STATUS: &str = "status";
const STATUS_MAX: u64 = 4096;
/// For the directories that lead to what people change, and where that may be done behind the mount.
const ATTR_TTL: Duration = Duration::from_secs(1);
/// Of what lies in drafts and versions: it changes through the mount, and what publishing changes behind it is told; and of what
/// nothing changes any more. That a whole version, model or job is removed is seen by its own name.
const LONG_TTL: Duration = Duration::from_secs(60);

/// The tree below `workspaces/`.
pub struct WorkspaceTree {
    backing: PathBuf,
    shelf: Shelf,
    freezer: Freezer,
    daemon: Arc<dyn Ask>,
    ledger: Arc<Ledger>,
    /// Called when something may be published, or be of others, than before.
    told: Arc<dyn Fn() + Send + Sync>,
    behind: Behind,
}

impl std::fmt::Debug for WorkspaceTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkspaceTree").field("backing", &self.backing).finish_non_exhaustive()
    }
}

impl WorkspaceTree {
    /// Also goes on with publishing that was cut short, and says by `told` when something may have been published, opened,
    /// closed or moved. `daemon` does what is written to `ctl`; `ledger` knows the quotas.
    pub fn open(
        backing: &Path,
        daemon: Arc<dyn Ask>,
        ledger: Arc<Ledger>,
        told: Arc<dyn Fn() + Send + Sync>,
    ) -> io::Result<Self> {
        let settled = {
            let (ledger, told) = (ledger.clone(), told.clone());
            move |dataset: &Path| {
                // What two versions share is stored once from now on.
                ledger.changed_behind(dataset);
                told();
            }
        };
        let behind = Behind::default();
        let replaced = {
            let behind = behind.clone();
            // What is no path of the mount is not known there either.
            move |path: &Path, replaced| {
                RelPath::new(path).iter().for_each(|path| match replaced {
                    Replaced::Soon => behind.freeze(path),
                    Replaced::Now => behind.changed(path),
                })
            }
        };
        let (shelf, freezer) = (Shelf::open(backing)?, Freezer::start(backing, settled, replaced)?);
        Ok(Self { backing: backing.to_owned(), shelf, freezer, daemon, ledger, told, behind })
    }

    /// The `ctl` in the directory of a job that has ever had a valid file.
    fn control(&self, directory: &RelPath) -> io::Result<Option<Control>> {
        let Some(job) = job_of(directory) else { return Ok(None) };
        // It is its owner's.
        let spec = std::fs::symlink_metadata(self.backing.join(directory.as_path()).join("spec.toml"));
        let Some(spec) = optional(spec)? else { return Ok(None) };
        Ok(Some(Control { job, uid: spec.uid(), gid: spec.gid(), ask: Arc::clone(&self.daemon) }))
    }
}

/// The job whose directory this is: `WS/jobs/JOB`.
fn job_of(path: &RelPath) -> Option<JobKey> {
    match path.components().map(OsStr::to_str).collect::<Option<Vec<_>>>()?.as_slice() {
        [workspace, "jobs", job] => Some(JobKey::new(workspace.parse().ok()?, job.parse().ok()?)),
        _ => None,
    }
}

/// Which part of a workspace a path lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The root, a workspace, or one of its parts itself.
    Above,
    Datasets,
    Code,
    Models,
    Jobs,
    Other,
}

fn part_of(path: &RelPath) -> Part {
    let mut names = path.components().skip(1);
    let part = names.next();
    if names.next().is_none() {
        return Part::Above;
    }
    match part.and_then(|part| part.to_str()) {
        Some("datasets") => Part::Datasets,
        Some("code") => Part::Code,
        Some("models") => Part::Models,
        Some("jobs") => Part::Jobs,
        _ => Part::Other,
    }
}

/// A path in `HOME/datasets/NAME/`.
struct InDataset<'a> {
    /// `HOME/datasets/NAME`.
    dataset: PathBuf,
    version: &'a OsStr,
    /// It is the version itself.
    is_top: bool,
}

fn in_dataset(path: &RelPath) -> Option<InDataset<'_>> {
    let names: Vec<_> = path.components().collect();
    match names.as_slice() {
        [home, datasets, name, version, rest @ ..] if *datasets == "datasets" => {
            Some(InDataset { dataset: Path::new(home).join(datasets).join(name), version, is_top: rest.is_empty() })
        }
        _ => None,
    }
}

/// `HOME/datasets/NAME` itself.
fn dataset_of(path: &RelPath) -> Option<(&str, &str)> {
    match path.components().collect::<Vec<_>>().as_slice() {
        [home, datasets, name] if *datasets == "datasets" => Some((home.to_str()?, name.to_str()?)),
        _ => None,
    }
}

fn errno(errno: Errno) -> io::Error {
    errno.into()
}

impl WorkspaceTree {
    /// The rule for what lies in `HOME/datasets/NAME/`.
    fn dataset_rule(&self, path: &RelPath) -> Rule {
        let Some(at) = in_dataset(path) else { return Rule::ReadWrite };
        if is_own(at.version) {
            return Rule::Hidden;
        }
        match is_told(at.version) || self.shelf.is_published(&at.dataset, at.version) {
            true => Rule::ReadOnly,
            false => Rule::ReadWrite,
        }
    }

    /// It is of an attempt of a run that has ended, whose status is the last thing that is written of it.
    fn is_of_the_past(&self, path: &RelPath) -> bool {
        let Some(status) = run_of_attempt(path).map(|run| run.join(STATUS)) else { return false };
        let mut text = String::new();
        let read = self.shelf.file(&status).and_then(|file| file.take(STATUS_MAX).read_to_string(&mut text));
        let mut keys = text.lines().filter_map(|line| line.split_once('='));
        let state = keys.find(|(key, _)| key.trim() == "state").map(|(_, state)| state.trim());
        let ended = [State::Succeeded, State::Failed, State::Stopped].map(|state| format!("\"{state}\""));
        read.is_ok() && state.is_some_and(|state| ended.iter().any(|ended| ended == state))
    }

    /// `mv draft v1`: from here on nobody changes it.
    fn publish(&self, at: &InDataset<'_>, to: &InDataset<'_>, by: u32) -> io::Result<()> {
        // `EINVAL` would be told by mv as a move into itself.
        if at.dataset != to.dataset || !to.is_top {
            return Err(errno(Errno::EPERM));
        }
        match to.version.to_str() {
            Some(name) if name.chars().count() > NAME_MAX_CHARS || name.len() > NAME_MAX_BYTES => {
                return Err(errno(Errno::ENAMETOOLONG));
            }
            Some(name) if may_be_version(name) => {}
            _ => return Err(errno(Errno::EPERM)),
        }
        if self.shelf.directory(&at.dataset.join(at.version)).is_err() {
            // A file called draft is nothing to publish, nor is a link.
            return Err(errno(Errno::ENOTDIR));
        }
        match self.shelf.directory(&to.dataset.join(to.version)) {
            Ok(_) => Err(errno(Errno::EEXIST)),
            Err(_) => self.freezer.begin(&self.shelf, &to.dataset, to.version, by),
        }
    }

    /// A dataset with published versions keeps what makes it one, and stays where jobs look for it.
    fn move_dataset(&self, from: &RelPath, to: &RelPath) -> io::Result<()> {
        let Ok(versions) = self.shelf.versions(from.as_path()) else { return Ok(()) };
        if versions.is_empty() {
            return Ok(());
        }
        let Some((home, name)) = dataset_of(from).filter(|_| dataset_of(to).is_some()) else {
            return Err(errno(Errno::EROFS));
        };
        let pending = |version: &String| {
            let manifest = from.as_path().join(format!("{version}{MANIFEST}"));
            let state = self.shelf.file(&manifest).and_then(|file| manifest::state(io::BufReader::new(file)));
            !matches!(state, Ok(manifest::State::Complete))
        };
        // In this order: a run that chooses meanwhile is found the second time.
        let is_used = || {
            let awaiter = self.shelf.awaiter_of(home, name)?;
            io::Result::Ok(awaiter.is_some() || self.shelf.user_of(home, name, None)?.is_some())
        };
        match versions.iter().any(pending) || is_used()? {
            true => Err(errno(Errno::EBUSY)),
            false => Ok(()),
        }
    }
}

/// What tells of versions, and is ours to change.
fn is_told(name: &OsStr) -> bool {
    name == LATEST || name.as_encoded_bytes().ends_with(MANIFEST.as_bytes())
}

/// Ours alone, while a version is made or removed.
fn is_own(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(OWN.as_bytes())
}

fn is_draft(at: &InDataset<'_>) -> bool {
    at.is_top && at.version == DRAFT
}

/// The workspace in whose `code/` it lies.
fn code_of(path: &RelPath) -> Option<&OsStr> {
    let mut names = path.components();
    let home = names.next()?;
    (names.next()? == "code").then_some(home)
}

/// `WS/jobs/JOB/runs/N/attempts/K/TASK`.
fn is_task_directory(path: &RelPath) -> bool {
    let names: Vec<_> = path.components().collect();
    matches!(names.as_slice(), [_, jobs, _, runs, _, attempts, _, _]
        if *jobs == "jobs" && *runs == "runs" && *attempts == "attempts")
}

impl Tree for WorkspaceTree {
    fn rule(&self, path: &RelPath) -> Rule {
        match part_of(path) {
            Part::Datasets => self.dataset_rule(path),
            Part::Code => Rule::ReadWrite,
            Part::Jobs if is_internal(path) => Rule::Hidden,
            // Being removed.
            Part::Models if path.components().nth(3).is_some_and(is_own) => Rule::Hidden,
            Part::Above | Part::Models | Part::Jobs => Rule::ReadOnly,
            Part::Other => Rule::Hidden,
        }
    }

    fn is_hidden(&self, path: &RelPath) -> bool {
        match part_of(path) {
            // Whether a version is published is not asked for each of its files.
            Part::Datasets => in_dataset(path).is_some_and(|at| is_own(at.version)),
            _ => self.rule(path) == Rule::Hidden,
        }
    }

    fn may_hide_in(&self, dir: &RelPath) -> bool {
        match part_of(dir) {
            Part::Code => false,
            // What is in a version is there with it.
            Part::Datasets => in_dataset(dir).is_none(),
            _ => true,
        }
    }

    /// Other people's workspaces are nobody's business.
    fn lists_what_may_be_entered(&self, dir: &RelPath) -> bool {
        dir.is_root()
    }

    fn freezes(&self, from: &RelPath, to: &RelPath) -> bool {
        let (draft, version) = (in_dataset(from).filter(is_draft), in_dataset(to));
        draft.zip(version).is_some_and(|(draft, version)| draft.dataset == version.dataset && version.is_top)
    }

    /// A draft becomes read-only by its rename alone, code never does.
    fn passes_writes(&self, path: &RelPath) -> bool {
        matches!(part_of(path), Part::Datasets | Part::Code)
    }

    fn renaming(&self, from: &RelPath, to: &RelPath, by: u32) -> io::Result<()> {
        if dataset_of(from).is_some() || dataset_of(to).is_some() {
            return self.move_dataset(from, to);
        }
        match (in_dataset(from).filter(is_draft), in_dataset(to)) {
            (Some(at), Some(to)) if at.dataset == to.dataset => self.publish(&at, &to, by),
            // Beside another dataset's versions it would look like one of them.
            (Some(_), Some(to)) if to.is_top && to.version != DRAFT => Err(errno(Errno::EPERM)),
            // Out of the dataset it goes as a directory like any other.
            _ => Ok(()),
        }
    }

    /// `code/` is written past the mount where it is shown directly: who has something of it open there can change it for ever,
    /// also what would lie in a published version by then.
    fn are_apart(&self, one: &RelPath, other: &RelPath) -> bool {
        let homes = [one, other].map(|path| path.components().next());
        let leaves_project = homes[0] != homes[1] && [one, other].iter().any(|path| self.ledger.is_enforced(path));
        code_of(one) != code_of(other) || leaves_project
    }

    /// A copy of published versions would be none: it ends halfway, as directories that anybody may change.
    fn may_be_copied(&self, path: &RelPath) -> bool {
        let versions = dataset_of(path).map(|_| self.shelf.versions(path.as_path()));
        !versions.is_some_and(|versions| versions.is_ok_and(|versions| !versions.is_empty()))
    }

    fn rights_changed(&self, path: &RelPath) {
        if dataset_of(path).is_some() {
            (self.told)();
        }
    }

    fn renamed(&self, from: &RelPath, to: &RelPath, done: bool) {
        if done && (dataset_of(from).is_some() || dataset_of(to).is_some()) {
            (self.told)();
        }
        let (Some(at), Some(to)) = (in_dataset(from).filter(is_draft), in_dataset(to)) else { return };
        if at.dataset != to.dataset {
            return;
        }
        self.freezer.renamed(&self.shelf, &to.dataset, to.version, done);
    }

    fn refusal(&self, path: &RelPath) -> Refusal {
        let Some(at) = in_dataset(path) else { return Refusal::ReadOnly };
        let names: Vec<_> = at.dataset.iter().filter_map(|part| part.to_str()).collect();
        let (&[home, _, name], Some(version)) = (names.as_slice(), at.version.to_str()) else {
            return Refusal::ReadOnly;
        };
        match self.shelf.user_of(home, name, Some(version)) {
            Ok(Some(_)) => Refusal::Busy,
            Ok(None) | Err(_) => Refusal::ReadOnly,
        }
    }

    fn generated(&self, dir: &RelPath) -> Vec<OsString> {
        if let Ok(Some(_)) = self.control(dir) {
            return vec![CONTROL.into()];
        }
        let has_log = is_task_directory(dir) && LogReader::open(&self.backing.join(dir.as_path())).is_ok();
        if has_log { vec![MERGED_LOG.into()] } else { Vec::new() }
    }

    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        if path.name().is_some_and(|name| name == CONTROL)
            && let Some(directory) = path.parent()
            && let Some(control) = self.control(&directory)?
        {
            return Ok(Some(Box::new(control)));
        }
        let is_log = path.name().is_some_and(|name| name == MERGED_LOG);
        let Some(dir) = path.parent().filter(|dir| is_log && is_task_directory(dir)) else { return Ok(None) };
        match LogReader::open(&self.backing.join(dir.as_path())) {
            Ok(reader) => Ok(Some(Box::new(MergedLog::new(reader)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_again(&self, path: &RelPath, place: &[u8]) -> io::Result<Option<Box<dyn Content>>> {
        let is_log = path.name().is_some_and(|name| name == MERGED_LOG);
        let Some(place) = Place::of(place).filter(|_| is_log) else { return self.open_generated(path) };
        let Some(dir) = path.parent().filter(is_task_directory) else { return Ok(None) };
        let log = optional(LogReader::open_whole(&self.backing.join(dir.as_path())))?;
        Ok(log.map(|log| Box::new(MergedLog::go_on(log, place)) as Box<dyn Content>))
    }

    fn account(&self, path: &RelPath) -> Option<Arc<Account>> {
        self.ledger.account(path)
    }

    fn quota(&self, path: &RelPath) -> Option<Quota> {
        self.ledger.quota(path)
    }

    fn attr_ttl(&self, path: &RelPath) -> Duration {
        // Jobs, and what appears in models, change behind the mount.
        match part_of(path) {
            Part::Models if is_in_model(path) => LONG_TTL,
            Part::Jobs if self.is_of_the_past(path) => LONG_TTL,
            Part::Datasets => match in_dataset(path) {
                // They change when publishing is done.
                Some(at) if is_told(at.version) => Duration::ZERO,
                Some(at) if at.is_top => ATTR_TTL,
                // What is asked about meanwhile may be answered when it has been replaced.
                Some(at) if self.freezer.is_reading(&at.dataset, at.version) => Duration::ZERO,
                Some(_) => LONG_TTL,
                None => ATTR_TTL,
            },
            Part::Above | Part::Code => ATTR_TTL,
            _ => Duration::ZERO,
        }
    }

    fn behind(&self) -> Behind {
        self.behind.clone()
    }
}

/// `WS/models/JOB/RUN/…`, which appears whole and stays as it is.
fn is_in_model(path: &RelPath) -> bool {
    path.components().nth(4).is_some()
}

/// `WS/jobs/JOB/runs/N`, of what lies in its `attempts/`; but not of what is written anew by another version of the program.
fn run_of_attempt(path: &RelPath) -> Option<PathBuf> {
    let names: Vec<_> = path.components().collect();
    match names.as_slice() {
        [_, jobs, _, runs, _, attempts, ..] if *jobs == "jobs" && *runs == "runs" && *attempts == "attempts" => {
            (names.last() != Some(&OsStr::new(STATUS))).then(|| names.iter().take(5).collect())
        }
        _ => None,
    }
}

/// The daemon's own files: dot files of a job's directory, but not those of its code or output.
fn is_internal(path: &RelPath) -> bool {
    let names: Vec<_> = path.components().collect();
    let of_users = |name: &&OsStr| {
        ["code", "output", "model", "model.partial"].iter().any(|own| name == own)
            || name.as_encoded_bytes().starts_with(b"code.")
    };
    let users_own = names.len() > 6 && names.get(5).is_some_and(of_users);
    !users_own && names.iter().any(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// The stamped log as one open sees it: without a gap when it is rotated meanwhile.
struct MergedLog {
    dir: PathBuf,
    reading: Mutex<Reading>,
}

struct Reading {
    log: LogReader,
    /// Its files are open; not for a `stat`.
    whole: bool,
    /// Byte `seam` of this open is byte `resumed` of `log`; what is before it belongs to a log that was rotated.
    seam: u64,
    resumed: u64,
}

/// Where somebody reads in a log, as another process is told.
struct Place {
    seam: u64,
    resumed: u64,
    /// Of the log's index.
    identity: (u64, u64),
}

impl Place {
    fn of(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        Some(Self { seam: number(0)?, resumed: number(8)?, identity: (number(16)?, number(24)?) })
    }

    fn bytes(&self) -> Vec<u8> {
        let numbers = [self.seam, self.resumed, self.identity.0, self.identity.1];
        numbers.into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

impl MergedLog {
    /// Where the log was rotated at that very moment, what was kept by the open of another process is gone: it begins anew.
    fn go_on(log: LogReader, place: Place) -> Self {
        let Place { seam, resumed, .. } = place;
        match log.identity() == place.identity {
            true => {
                Self { dir: log.dir().to_owned(), reading: Mutex::new(Reading { log, whole: true, seam, resumed }) }
            }
            false => Self::new(log),
        }
    }

    fn new(log: LogReader) -> Self {
        Self { dir: log.dir().to_owned(), reading: Mutex::new(Reading { log, whole: false, seam: 0, resumed: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    fn read_at(&mut self, dir: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.whole || offset < self.seam {
            let log = LogReader::open_whole(dir)?;
            *self = Self { log, whole: true, seam: 0, resumed: 0 };
        }
        let place = |reading: &Self| offset - reading.seam + reading.resumed;
        let count = self.log.read_at(place(self), buffer)?;
        if count > 0 || !self.log.is_replaced()? {
            return Ok(count);
        }
        // Now that nothing is added to it any more, its end is the end.
        if place(self) < self.log.len()? {
            return self.log.read_at(place(self), buffer);
        }
        (self.resumed, self.seam) = (self.log.follow_view()?, offset);
        self.log.read_at(self.resumed, buffer)
    }
}

impl Content for MergedLog {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        let directory = std::fs::metadata(&self.dir)?;
        let reading = self.lock();
        let modified = reading.log.modified()?.map(|time| UNIX_EPOCH + Duration::from_millis(time.0));
        Ok(ContentMetadata {
            size: reading.log.len()?,
            mtime: modified.unwrap_or(SystemTime::UNIX_EPOCH),
            uid: directory.uid(),
            gid: directory.gid(),
            mode: 0o640,
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.lock().read_at(&self.dir, offset, buf)
    }

    fn grows_with(&self) -> Option<PathBuf> {
        Some(self.dir.join(INDEX_FILE))
    }

    fn place(&self) -> Vec<u8> {
        let reading = self.lock();
        Place { seam: reading.seam, resumed: reading.resumed, identity: reading.log.identity() }.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Ask for Nobody {
        fn ask(&self, _: u32, _: &JobKey, _: crate::workspace::control::Word) -> io::Result<()> {
            Err(errno(Errno::EACCES))
        }
    }

    #[test]
    fn users_change_code_and_datasets_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let tree = WorkspaceTree::open(dir.path(), Arc::new(Nobody), Arc::default(), Arc::new(|| {})).unwrap();
        let rule = |path: &str| tree.rule(&RelPath::new(path).unwrap());
        for path in [
            "",
            "ws",
            "ws/code",
            "ws/jobs",
            "ws/jobs/j/status",
            "ws/models/j/1/x",
            "new",
            "ws/jobs/j/runs/1/output/.x",
            "ws/jobs/j/runs/1/model.partial/.hydra/c",
            "ws/jobs/j/runs/1/code.worker/.git/x",
        ] {
            assert_eq!(rule(path), Rule::ReadOnly, "{path}");
        }
        for path in ["ws/code/x", "ws/datasets/a/b", "ws/code/.git"] {
            assert_eq!(rule(path), Rule::ReadWrite, "{path}");
        }
        assert!(tree.is_hidden(&RelPath::new("ws/datasets/d/.trainyard-x/f").unwrap()), "{OWN}");
        for path in ["ws/jobs/j/.status.1.tmp", "ws/jobs/j/runs/1/attempts/1/main-0/.log.index", "ws/other/x"] {
            assert_eq!(rule(path), Rule::Hidden, "{path}");
        }
        // Of a listing each row is asked about where something may be hidden, and nowhere else.
        let may_hide_in = |path: &str| tree.may_hide_in(&RelPath::new(path).unwrap());
        for path in ["ws/datasets/d", "ws/jobs/j", "ws/models/j/1", "ws", ""] {
            assert!(may_hide_in(path), "{path}");
        }
        for path in ["ws/datasets/d/draft", "ws/datasets/d/v1/x", "ws/code/x"] {
            assert!(!may_hide_in(path), "{path}");
        }
    }

    #[test]
    fn the_kernel_keeps_what_nothing_changes_any_more_and_nothing_of_what_runs() {
        let dir = tempfile::tempdir().unwrap();
        let tree = WorkspaceTree::open(dir.path(), Arc::new(Nobody), Arc::default(), Arc::new(|| {})).unwrap();
        let ttl = |path: &str| tree.attr_ttl(&RelPath::new(path).unwrap());
        let run = dir.path().join("ws/jobs/j/runs/1");
        let of_attempt = ["attempts", "attempts/1", "attempts/1/main-0", "attempts/1/main-0/stdout.log"];
        std::fs::create_dir_all(&run).unwrap();
        for (status, kept) in [
            (None, Duration::ZERO),
            (Some("state = \"running\"\nreason = \"state = succeeded\"\n"), Duration::ZERO),
            (Some("job       = \"j\"\nstate     = \"stopping\"\n"), Duration::ZERO),
            (Some("job       = \"j\"\nstate     = \"failed\"\n"), LONG_TTL),
        ] {
            if let Some(status) = status {
                std::fs::write(run.join("status"), status).unwrap();
            }
            for path in of_attempt {
                assert_eq!(ttl(&format!("ws/jobs/j/runs/1/{path}")), kept, "{path} {status:?}");
            }
            // By these it is seen at once that all of it has gone.
            for path in
                ["", "/runs", "/runs/1", "/runs/1/status", "/runs/1/attempts/1/main-0/status", "/runs/2/attempts"]
            {
                assert_eq!(ttl(&format!("ws/jobs/j{path}")), Duration::ZERO, "{path}");
            }
        }
        assert_eq!(["ws/models/j/1/w", "ws/models/j/1/a/b"].map(ttl), [LONG_TTL; 2]);
        assert_eq!(["ws/models/j", "ws/models/j/1", "ws/models/j/latest"].map(ttl), [Duration::ZERO; 3]);
    }

    #[test]
    fn an_open_log_goes_on_without_a_gap_when_it_is_rotated_and_a_new_one_begins_with_what_is_kept() {
        use crate::ids::{LogLimits, Timestamp};
        use crate::logs::{LogWriter, Stream};
        let dir = tempfile::tempdir().unwrap();
        let task = dir.path().join("ws/jobs/j/runs/1/attempts/1/main-0");
        std::fs::create_dir_all(&task).unwrap();
        let tree = WorkspaceTree::open(dir.path(), Arc::new(Nobody), Arc::default(), Arc::new(|| {})).unwrap();
        let path = RelPath::new("ws/jobs/j/runs/1/attempts/1/main-0/log").unwrap();
        let mut writer = LogWriter::open(&task, LogLimits { part_size: 100, parts: 3 }).unwrap();
        let open = || tree.open_generated(&path).unwrap().unwrap();
        let mut write = |number: u64| {
            let line = format!("line {number:04}\n");
            writer.append(Stream::Stdout, &mut line.as_bytes(), Timestamp(1000 * number)).unwrap();
        };
        (0..3).for_each(&mut write);
        let early = open();
        let (mut seen, mut buffer) = (Vec::new(), [0; 64]);
        for number in 3..60 {
            let count = early.read_at(seen.len() as u64, &mut buffer).unwrap();
            seen.extend(&buffer[..count]);
            write(number);
        }
        loop {
            let count = early.read_at(seen.len() as u64, &mut buffer).unwrap();
            if count == 0 {
                break;
            }
            seen.extend(&buffer[..count]);
        }
        let seen = String::from_utf8(seen).unwrap();
        let numbers: Vec<&str> = seen.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        let all: Vec<String> = (0..60).map(|number| format!("{number:04}")).collect();
        assert_eq!(numbers, all, "{seen}");
        let size = usize::try_from(open().metadata().unwrap().size).unwrap();
        let mut kept = vec![0; size + 1];
        assert_eq!(open().read_at(0, &mut kept).unwrap(), size);
        let kept = String::from_utf8_lossy(&kept).into_owned();
        assert!(
            kept.lines().next().unwrap().ends_with("log| --- 480 bytes of older stdout were dropped ---"),
            "{kept}"
        );
        // Whoever begins anew sees the present.
        let count = early.read_at(0, &mut buffer).unwrap();
        assert!(kept.as_bytes().starts_with(&buffer[..count]));
    }
}
