//! Workspaces over the API: what each keeps on the disk, how much it may, and what of it is large.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};

use super::error::ApiError;
use super::rights::{closed, may, may_enter};
use super::server::{Context, ask, blocking};
use crate::ids::{HomeName, JobKey};
use crate::reconcile::{Caller, Request};
use crate::status::State;
use crate::sys::measure::disk_usage;

/// What the daemon knows of the storage of workspaces.
pub trait AskStorage: Send + Sync {
    fn ask(&self, answer: oneshot::Sender<Vec<StorageView>>);

    /// Something was removed from the datasets of a workspace, or of what all share, behind the mount.
    fn removed(&self, home: &str);

    /// A model of the job was.
    fn model_removed(&self, key: JobKey);
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StorageView {
    /// Or `preset` or `public`, which all see, where these have a quota.
    #[schemars(with = "String")]
    pub workspace: HomeName,
    /// Bytes that it keeps; not counted for a workspace without a quota.
    pub used: Option<u64>,
    /// Bytes that it may keep.
    pub quota: Option<u64>,
    /// `counted` by Trainyard, or by the kernel: by `btrfs`, or as a `project` of ext4 or XFS.
    pub held: Option<String>,
    /// What is to be known of it.
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkspaceView {
    #[serde(flatten)]
    pub storage: StorageView,
    /// Jobs that have something running, and that wait for their turn.
    pub running: usize,
    pub waiting: usize,
}

/// With what takes the room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkspaceDetail {
    #[serde(flatten)]
    pub workspace: WorkspaceView,
    pub parts: Vec<PartView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartView {
    pub part: String,
    pub bytes: u64,
    /// The largest first; none for who may not list them.
    pub entries: Vec<EntryView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntryView {
    pub name: String,
    pub bytes: u64,
}

const PARTS: [&str; 4] = ["datasets", "code", "models", "jobs"];
/// Of what all see.
const SHARED_PARTS: [&str; 2] = ["datasets", "code"];
/// Workspaces that are measured at once for those who ask: the disk is for the jobs.
static MEASURING: Semaphore = Semaphore::const_new(1);

/// Those that the caller may enter, and what all see where it has a quota.
pub(super) async fn list(context: &Context, caller: &Caller) -> Result<Vec<WorkspaceView>, ApiError> {
    let (sender, receiver) = oneshot::channel();
    context.storage.ask(sender);
    let storage = receiver.await.map_err(|_| ApiError::Ending)?;
    let jobs = jobs(context).await?;
    let (paths, caller) = (context.paths.clone(), caller.clone());
    let seen = blocking(move || {
        let is_seen = |storage: &StorageView| match storage.workspace.workspace() {
            Some(workspace) => may_enter(&paths, &workspace, &caller),
            None => Ok(storage.quota.is_some() && caller.reaches(storage.workspace.as_str())),
        };
        let seen = storage.into_iter().map(|storage| Ok(is_seen(&storage)?.then_some(storage)));
        seen.filter_map(Result::transpose).collect::<Result<Vec<_>, ApiError>>()
    });
    let view = |storage: StorageView| {
        let (running, waiting) = jobs.get(storage.workspace.as_str()).copied().unwrap_or_default();
        WorkspaceView { storage, running, waiting }
    };
    Ok(seen.await?.into_iter().map(view).collect())
}

/// One of them, with what takes the room: it is measured now.
pub(super) async fn detail(context: &Context, caller: &Caller, name: &str) -> Result<WorkspaceDetail, ApiError> {
    let mut all = list(context, caller).await?.into_iter();
    let found = all.find(|view| view.storage.workspace.as_str() == name).or_else(|| shared(caller, name));
    let mut workspace = found.ok_or_else(|| closed(name))?;
    let turn = MEASURING.acquire().await.map_err(|_| ApiError::Ending)?;
    let home = context.paths.home(&workspace.storage.workspace);
    let parts = if workspace.storage.workspace.workspace().is_some() { &PARTS[..] } else { &SHARED_PARTS[..] };
    let uid = caller.uid;
    let measured = tokio::task::spawn_blocking(move || {
        // Also when whoever asked has gone meanwhile.
        let _turn = turn;
        parts.iter().map(|part| measure(&home, part, uid)).collect()
    });
    let parts: io::Result<Vec<PartView>> = measured.await.map_err(|_| ApiError::Ending)?;
    let parts = parts.map_err(|error| ApiError::Failed(format!("cannot measure workspace {name}: {error}")))?;
    let sum = parts.iter().map(|part| part.bytes).sum();
    workspace.storage.used.get_or_insert(sum);
    Ok(WorkspaceDetail { workspace, parts })
}

/// What all see and has no quota: it is in no list, and can be looked at.
fn shared(caller: &Caller, name: &str) -> Option<WorkspaceView> {
    let workspace: HomeName = name.parse().ok()?;
    let is_shared = workspace.workspace().is_none() && caller.reaches(name);
    let storage = StorageView { workspace, used: None, quota: None, held: None, note: None };
    is_shared.then_some(WorkspaceView { storage, running: 0, waiting: 0 })
}

fn measure(home: &Path, part: &str, uid: u32) -> io::Result<PartView> {
    let directory = home.join(part);
    let mut entries = Vec::new();
    let listed = if may_list(&directory, uid)? { Some(std::fs::read_dir(&directory)?) } else { None };
    for entry in listed.into_iter().flatten() {
        let name = entry?.file_name();
        // Links to jobs, not jobs.
        if part == "jobs" && (name == "by-state" || name == "by-user") {
            continue;
        }
        let bytes = disk_usage([directory.join(&name)])?;
        entries.push(EntryView { name: name.to_string_lossy().into_owned(), bytes });
    }
    entries.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    // Not the sum of its entries: files may have names in several.
    Ok(PartView { part: part.to_owned(), bytes: disk_usage([&directory])?, entries })
}

/// Jobs of each workspace that run, and that wait.
async fn jobs(context: &Context) -> Result<BTreeMap<String, (usize, usize)>, ApiError> {
    let everybody = Caller::root();
    let list = ask(context, |answer| Request::Lines { caller: everybody, answer }).await?;
    let mut jobs: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for job in list.jobs {
        let count = jobs.entry(job.workspace).or_default();
        match job.state {
            State::Starting | State::Running | State::Stopping => count.0 += 1,
            State::Waiting => count.1 += 1,
            _ => {}
        }
    }
    Ok(jobs)
}

/// Whether the caller may know what is in a directory that they can reach.
fn may_list(directory: &Path, uid: u32) -> io::Result<bool> {
    std::fs::metadata(directory)?;
    Ok(uid == 0 || may(directory, uid, 0o4))
}
