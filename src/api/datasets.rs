//! Datasets over the API: what only the daemon may do with them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::awaited::Awaited;
use super::error::ApiError;
use super::rights;
use crate::assets::removal::{self, RemoveError, Remover};
use crate::assets::{ASIDE_DATA, LATEST, Named, Part, Place, SHARED, Shelf, manifest_of};
use crate::config::Paths;
use crate::ids::{AssetName, JobKey};
use crate::reconcile::Caller;
use crate::spec::DataSource;

impl From<RemoveError> for ApiError {
    fn from(error: RemoveError) -> Self {
        use std::error::Error as _;
        match &error {
            RemoveError::NotYours { .. } => ApiError::Forbidden(error.to_string()),
            RemoveError::Unknown { .. } | RemoveError::Shared { .. } => ApiError::NotFound(error.to_string()),
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
    let cannot = |error: io::Error| ApiError::Failed(format!("cannot look into the workspaces: {error}"));
    let shelf = Shelf::open(&paths.workspaces()).map_err(cannot)?;
    if !caller.reaches(home) {
        return Err(ApiError::Forbidden(format!("this token does not reach workspace {home}")));
    }
    if !SHARED.contains(&home) {
        let workspace = home.parse().map_err(|_| rights::closed(home))?;
        rights::enter(paths, caller, &workspace)?;
    }
    let may_be_named =
        |job: &JobKey| caller.uid == 0 || rights::may_submit(&paths.jobs_d(), job.workspace.as_str(), caller.uid);
    let awaited_by = awaiting(&shelf, awaited, (home, name, version)).map_err(cannot)?;
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
) -> io::Result<impl Fn() -> io::Result<Option<JobKey>> + 'a> {
    // By now: the second time it is out of sight.
    let newest = shelf.newest(&Path::new(home).join(Part::Datasets.as_str()).join(name));
    let is_newest = or_absent(newest)?.as_deref() == Some(version);
    Ok(move || {
        awaited.by(|key, dataset| {
            if dataset.source != DataSource::Dataset {
                return false;
            }
            // What was set aside for it is its choice.
            let aside: Vec<BTreeMap<String, Place>> = match shelf.set_aside(&job_place(key), ASIDE_DATA) {
                Ok(aside) => aside,
                Err(_) => return true,
            };
            let mut chosen = aside.iter().filter_map(|aside| aside.get(&dataset.to_string())).peekable();
            if chosen.peek().is_some() {
                return chosen.any(|place| {
                    place.home == home && place.name.as_str() == name && place.version.as_deref() == Some(version)
                });
            }
            let asked = dataset.version.as_ref().map(AssetName::as_str).filter(|asked| *asked != LATEST);
            let is_version = asked.map_or(is_newest, |asked| asked == version);
            let is_named = dataset.name.as_str() == name && is_version;
            let named = Named { workspace: &key.workspace, whose: dataset.whose, name: &dataset.name };
            is_named && shelf.may_lie_in(home, named)
        })
    })
}

/// The directory of a job, below `workspaces/`.
pub(super) fn job_place(key: &JobKey) -> PathBuf {
    Path::new(key.workspace.as_str()).join("jobs").join(key.job.as_str())
}

/// Of what is not there nothing is the newest.
pub(super) fn or_absent<T>(looked: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match looked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        looked => looked,
    }
}
