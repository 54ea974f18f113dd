//! Datasets over the API: what only the daemon may do with them.

use super::error::ApiError;
use std::io;
use std::path::Path;

use super::awaited::Awaited;
use crate::assets::removal::{self, RemoveError, Remover};
use crate::assets::{LATEST, Part, Shelf, manifest_of};
use crate::config::Paths;
use crate::ids::{AssetName, JobKey};
use crate::reconcile::Caller;
use crate::spec::DataSource;

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
    awaited: &Awaited,
    (home, name, version): (&str, &str, &str),
) -> Result<String, ApiError> {
    for (what, text) in [("workspace", home), ("dataset", name), ("version", version)] {
        if text.parse::<AssetName>().is_err() {
            return Err(ApiError::Bad(format!("{text:?} is no name of a {what}")));
        }
    }
    let cannot = |error: io::Error| ApiError::Failed(format!("cannot open the workspaces: {error}"));
    let shelf = Shelf::open(&paths.workspaces()).map_err(cannot)?;
    if !caller.reaches(home) {
        return Err(ApiError::Forbidden(format!("this token does not reach workspace {home}")));
    }
    let may_be_named =
        |job: &JobKey| caller.uid == 0 || super::may_submit(&paths.jobs_d(), job.workspace.as_str(), caller.uid);
    let awaited_by = awaiting(&shelf, awaited, (home, name, version));
    let by = Remover { uid: caller.uid, may_be_named: &may_be_named, awaited_by: &awaited_by };
    let removed = removal::remove(&shelf, home, name, version, &by);
    // It was out of sight for a moment, also where it stays.
    crate::sys::bell::ring(&paths.direct_bell());
    removed?;
    tracing::info!(dataset = name, version, home, by = caller.name, "a version was removed");
    let manifest = manifest_of(version.as_ref());
    Ok(format!("removed {name}@{version} and {}", manifest.display()))
}

/// Who will choose the version; asked anew each time.
fn awaiting<'a>(
    shelf: &'a Shelf,
    awaited: &'a Awaited,
    (home, name, version): (&'a str, &'a str, &'a str),
) -> impl Fn() -> io::Result<Option<JobKey>> + 'a {
    // By now: the second time it is out of sight.
    let is_newest = shelf.newest(&Path::new(home).join(Part::Datasets.as_str()).join(name));
    let is_newest = is_newest.is_ok_and(|newest| newest.as_deref() == Some(version));
    move || {
        awaited.by(|key, dataset| {
            let asked = dataset.version.as_ref().map(AssetName::as_str).filter(|asked| *asked != LATEST);
            let is_version = asked.map_or(is_newest, |asked| asked == version);
            let is_named = dataset.source == DataSource::Dataset && dataset.name.as_str() == name && is_version;
            is_named && shelf.home(&key.workspace, Part::Datasets, &dataset.name).is_ok_and(|found| found == home)
        })
    }
}
