//! HTTP: the daemon's door to people and programs, by its unix socket and, if configured, over the network.
//!
//! [`routes`] is what there is. Everything below `/v1` keeps what it means: fields, parameters and routes are added, never
//! changed. Errors are `{"code": "…", "error": "…"}` with a fitting status ([`error`]). Who asks is who the kernel says is at the
//! other end of the socket, or whose token is shown ([`tokens`]); root may ask in the place of somebody else by the header
//! `trainyard-for-user: UID`. What they may see and do of jobs is the reconciler's to say, by one function for both.

pub mod assets;
mod awaited;
pub mod client;
mod datasets;
pub mod drain;
pub mod error;
mod exec;
mod files;
mod flow;
pub mod frames;
pub mod gpus;
mod happenings;
pub mod health;
pub mod images;
mod jobs;
mod list;
mod listed;
pub mod logs;
pub mod measures;
pub mod openapi;
pub mod params;
mod patience;
mod peers;
pub mod query;
pub mod rates;
mod router;
pub mod routes;
pub mod secrets;
pub mod server;
pub mod sessions;
pub mod sight;
mod state;
pub mod storage;
pub mod tasks;
pub mod templates;
pub mod tls;
pub mod tokens;
pub mod usage;
pub mod wire;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use self::error::ApiError;
use crate::config::Paths;
use crate::ids::WorkspaceName;
use crate::sys::file::class_mode;

/// Whether a user may write in the directory of a workspace's job files.
fn may_submit(jobs_d: &Path, workspace: &str, uid: u32) -> bool {
    let own = jobs_d.join(workspace);
    let directory = if workspace == WorkspaceName::default_workspace().as_str() { jobs_d } else { &own };
    let may = |directory: &Path, wanted: u32| rights_to(directory, uid).is_some_and(|rights| rights & wanted == wanted);
    may(directory, 0o3) && (directory == jobs_d || may(jobs_d, 0o1))
}

/// Refuses a workspace that there is not. Blocks.
fn check_there(paths: &Paths, workspace: &WorkspaceName) -> Result<(), ApiError> {
    match paths.has_workspace(workspace) {
        true => Ok(()),
        false => Err(ApiError::NotFound(format!(
            "there is no workspace {workspace}; `trainyard workspace` lists them, and a directory in jobs.d makes one"
        ))),
    }
}

/// The rights of a user to a directory (`rwx` as 4, 2 and 1), as the kernel decides it: by one class alone. Whom an access list names
/// beside its owner and its group is left to the kernel. `None` where there is no directory.
fn rights_to(directory: &Path, uid: u32) -> Option<u32> {
    rights_in(directory, uid, |group| crate::sys::process::groups_of(uid).contains(&group))
}

/// The same for a user of whom somebody knows which groups they are in: to ask the machine takes longer than the rest.
fn rights_in(directory: &Path, uid: u32, is_in: impl FnOnce(u32) -> bool) -> Option<u32> {
    let found = std::fs::symlink_metadata(directory).ok().filter(std::fs::Metadata::is_dir)?;
    let class = match found.uid() == uid {
        true => 6,
        false if is_in(found.gid()) => 3,
        false => 0,
    };
    Some(class_mode(directory, &found).ok()? >> class & 0o7)
}
