//! HTTP over a unix socket: the daemon's door to people and programs.
//!
//! `GET /v1/jobs` · `GET /v1/jobs/WS/JOB` · `GET /v1/jobs/WS/JOB/logs` (a line of JSON for each line of output, going
//! on with `follow`) · `POST /v1/jobs/WS/JOB/exec` ([`frames`] after an upgrade) · `POST /v1/jobs/WS/JOB/stop`,
//! `…/rerun`, `…/restart` · `DELETE /v1/jobs/WS/JOB` · `GET`, `DELETE /v1/images` · `GET /v1/images/show` ·
//! `POST /v1/images/pull`, `…/import`, `…/tag`, `…/prune` · `DELETE /v1/datasets/HOME/NAME/VERSION` ·
//! `GET /v1/gpus` · `GET /v1/workspaces` · `GET /v1/workspaces/WS` · `GET /v1/state` (for backups, to root) ·
//! `POST /v1/shutdown`.
//! Errors are `{"error": "…"}` with a fitting status. Who asks is who the kernel says is at the other end; root may ask in
//! the place of somebody else by the header `trainyard-for-user: UID`.

pub mod client;
mod datasets;
mod exec;
mod files;
pub mod frames;
pub mod gpus;
pub mod images;
mod logs;
pub mod server;
pub mod sessions;
mod state;
pub mod storage;
pub mod usage;
pub mod wire;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::ids::WorkspaceName;

/// Whether a user may write in the directory of a workspace's job files.
fn may_submit(jobs_d: &Path, workspace: &str, uid: u32) -> bool {
    let own = jobs_d.join(workspace);
    let directory = if workspace == WorkspaceName::default_workspace().as_str() { jobs_d } else { &own };
    let Ok(metadata) = std::fs::metadata(directory) else { return false };
    metadata.mode() >> class_of(&metadata, uid) & 0o2 != 0
}

/// Where in the mode of a directory the rights of a user begin: as the kernel decides it, by one class alone.
fn class_of(directory: &std::fs::Metadata, uid: u32) -> u32 {
    match directory.uid() == uid {
        true => 6,
        false if crate::sys::process::groups_of(uid).contains(&directory.gid()) => 3,
        false => 0,
    }
}
