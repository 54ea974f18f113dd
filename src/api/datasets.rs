//! Datasets over the API: what only the daemon may do with them.

use super::error::ApiError;
use crate::assets::freeze::{self, RemoveError};
use crate::assets::{Shelf, manifest_of};
use crate::config::Paths;
use crate::ids::JobKey;
use crate::reconcile::Caller;

impl From<RemoveError> for ApiError {
    fn from(error: RemoveError) -> Self {
        use std::error::Error as _;
        match &error {
            RemoveError::NotYours { .. } => ApiError::Forbidden(error.to_string()),
            RemoveError::Unknown { .. } => ApiError::NotFound(error.to_string()),
            RemoveError::InUse { .. } | RemoveError::Pending { .. } => ApiError::Conflict(error.to_string()),
            RemoveError::Io { .. } => {
                let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                ApiError::Failed(format!("{error}{why}"))
            }
        }
    }
}

/// Removes a published version: its owner may, the dataset's owner, and root. Blocks.
pub(super) fn remove(
    paths: &Paths,
    caller: &Caller,
    home: &str,
    name: &str,
    version: &str,
) -> Result<String, ApiError> {
    for (what, text) in [("workspace", home), ("dataset", name), ("version", version)] {
        if text.parse::<crate::ids::AssetName>().is_err() {
            return Err(ApiError::Bad(format!("{text:?} is no name of a {what}")));
        }
    }
    let cannot = |error: std::io::Error| ApiError::Failed(format!("cannot open the workspaces: {error}"));
    let shelf = Shelf::open(&paths.workspaces()).map_err(cannot)?;
    if !caller.reaches(home) {
        return Err(ApiError::Forbidden(format!("this token does not reach workspace {home}")));
    }
    let may_be_named =
        |job: &JobKey| caller.uid == 0 || super::may_submit(&paths.jobs_d(), job.workspace.as_str(), caller.uid);
    let removed = freeze::remove(&shelf, home, name, version, caller.uid, may_be_named);
    // It was out of sight for a moment, also where it stays.
    crate::sys::bell::ring(&paths.direct_bell());
    removed?;
    tracing::info!(dataset = name, version, home, by = caller.name, "a version was removed");
    let manifest = manifest_of(version.as_ref());
    Ok(format!("removed {name}@{version} and {}", manifest.display()))
}
