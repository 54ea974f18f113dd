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
mod sight;
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

/// Whether a user may write in the directory of a workspace's job files.
fn may_submit(jobs_d: &Path, workspace: &str, uid: u32) -> bool {
    let own = jobs_d.join(workspace);
    let directory = if workspace == WorkspaceName::default_workspace().as_str() { jobs_d } else { &own };
    let Ok(metadata) = std::fs::metadata(directory) else { return false };
    metadata.mode() >> class_of(&metadata, uid) & 0o2 != 0
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

/// Where in the mode of a directory the rights of a user begin: as the kernel decides it, by one class alone.
fn class_of(directory: &std::fs::Metadata, uid: u32) -> u32 {
    match directory.uid() == uid {
        true => 6,
        false if crate::sys::process::groups_of(uid).contains(&directory.gid()) => 3,
        false => 0,
    }
}
