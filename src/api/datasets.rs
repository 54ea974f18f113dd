//! Datasets over the API: what only the daemon may do with them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::server::ApiError;
use crate::assets::freeze::{self, RemoveError};
use crate::assets::{Part, Shelf, manifest_of};
use crate::config::Paths;
use crate::ids::JobKey;
use crate::reconcile::Caller;

impl From<RemoveError> for ApiError {
    fn from(error: RemoveError) -> Self {
        use std::error::Error as _;
        match &error {
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
    let dataset = Path::new(home).join(Part::Datasets.as_str()).join(name);
    let owner = |path: &Path| shelf.directory(path).and_then(|directory| Ok(directory.metadata()?.uid()));
    let owners = [owner(&dataset), owner(&dataset.join(version))];
    let is_owner = owners.iter().any(|owner| owner.as_ref().is_ok_and(|uid| *uid == caller.uid));
    // Whether it is there at all may be no business of theirs, but the mount shows that to everybody.
    if caller.uid != 0 && !is_owner && shelf.is_published(&dataset, version.as_ref()) {
        return Err(ApiError::Forbidden(format!("{name}@{version} is not yours: its owner may remove it, and root")));
    }
    let may_be_named =
        |job: &JobKey| caller.uid == 0 || super::may_submit(&paths.jobs_d(), job.workspace.as_str(), caller.uid);
    freeze::remove(&shelf, home, name, version, may_be_named)?;
    tracing::info!(dataset = name, version, home, by = caller.name, "a version was removed");
    let manifest = manifest_of(version.as_ref());
    Ok(format!("removed {name}@{version} and {}", manifest.display()))
}
