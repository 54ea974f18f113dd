//! Datasets, code and models over the API: what there is, as far as the caller may look.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::awaited::Awaited;
use super::error::ApiError;
use super::files::as_caller;
use super::rights;
use crate::assets::models::{Model, ModelError, newest_of};
use crate::assets::removal::Remover;
use crate::assets::{ASIDE_MODELS, DRAFT, LATEST, OWN, SHARED, Shelf};
use crate::config::Paths;
use crate::ids::{AssetName, JobKey, WorkspaceName};
use crate::reconcile::Caller;
use crate::spec::DataSource;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetView {
    /// The workspace whose it is, or `preset` or `public`.
    pub home: String,
    pub dataset: String,
    /// Published ones, in order of their names.
    pub versions: Vec<String>,
    pub latest: Option<String>,
    /// A version is being made.
    pub has_draft: bool,
}

/// What a run has left in its model directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelView {
    pub workspace: String,
    pub job: String,
    pub run: u32,
    /// Names of its files and directories.
    pub files: Vec<String>,
}

/// Those that jobs of a workspace may name. Blocks.
pub(super) fn datasets(paths: &Paths, caller: &Caller, workspace: &str) -> Result<Vec<DatasetView>, ApiError> {
    let shelf = entered(paths, caller, workspace)?;
    as_caller(caller, || {
        let mut found = Vec::new();
        for home in [workspace].into_iter().chain(SHARED) {
            let directory = Path::new(home).join("datasets");
            for dataset in named(&shelf, &directory) {
                let path = directory.join(&dataset);
                let Ok(versions) = shelf.versions(&path) else { continue };
                let has_draft = shelf.directory(&path.join(DRAFT)).is_ok();
                found.push(DatasetView {
                    home: home.to_owned(),
                    dataset,
                    versions,
                    latest: shelf.latest(&path),
                    has_draft,
                });
            }
        }
        found
    })
}

/// Those of a workspace. Blocks.
pub(super) fn models(paths: &Paths, caller: &Caller, workspace: &str) -> Result<Vec<ModelView>, ApiError> {
    let shelf = entered(paths, caller, workspace)?;
    as_caller(caller, || {
        let models = Path::new(workspace).join("models");
        let mut found = Vec::new();
        for job in named(&shelf, &models) {
            let runs = named(&shelf, &models.join(&job));
            for run in runs.iter().filter_map(|run| run.parse::<u32>().ok()) {
                let path = models.join(&job).join(run.to_string());
                if shelf.directory(&path).is_ok() {
                    let files = named(&shelf, &path);
                    found.push(ModelView { workspace: workspace.to_owned(), job: job.clone(), run, files });
                }
            }
        }
        found.sort_by(|a, b| (&a.job, a.run).cmp(&(&b.job, b.run)));
        found
    })
}

impl From<ModelError> for ApiError {
    fn from(error: ModelError) -> Self {
        use std::error::Error as _;
        match &error {
            ModelError::NotYours(_) => ApiError::Forbidden(error.to_string()),
            ModelError::Unknown(_) => ApiError::NotFound(error.to_string()),
            ModelError::InUse { .. } => ApiError::Conflict(error.to_string()),
            ModelError::Io { .. } => {
                let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                ApiError::Failed(format!("{error}{why}"))
            }
        }
    }
}

/// Removes what a run has left in its model directory: its owner may, and root. Blocks.
pub(super) fn remove_model(
    paths: &Paths,
    caller: &Caller,
    awaited: &Awaited,
    key: &JobKey,
    run: &str,
) -> Result<String, ApiError> {
    let shelf = entered(paths, caller, key.workspace.as_str())?;
    let run = run.parse().map_err(|_| ApiError::Bad(format!("{run:?} is no number of a run")))?;
    let model = Model { workspace: key.workspace.clone(), job: key.job.clone(), run };
    let may_be_named =
        |job: &JobKey| caller.uid == 0 || rights::may_submit(&paths.jobs_d(), job.workspace.as_str(), caller.uid);
    let cannot = |error: io::Error| ApiError::Failed(format!("cannot look into the workspaces: {error}"));
    let awaited_by = awaiting(&shelf, awaited, &model).map_err(cannot)?;
    let by = Remover { uid: caller.uid, may_be_named: &may_be_named, awaited_by: &awaited_by };
    crate::assets::models::remove(&shelf, &model, &by)?;
    tracing::info!(job = %key, run, by = caller.name, "a model was removed");
    Ok(format!("removed model {model}"))
}

/// Who will choose the model; asked anew each time.
fn awaiting<'a>(
    shelf: &'a Shelf,
    awaited: &'a Awaited,
    model: &'a Model,
) -> io::Result<impl Fn() -> io::Result<Option<JobKey>> + 'a> {
    // By now: the second time it is out of sight.
    let is_newest = shelf.newest_model(&model.home());
    let is_newest = super::datasets::or_absent(is_newest)? == Some(model.run);
    Ok(move || {
        awaited.by(|key, dataset| {
            let is_job = key.workspace == model.workspace && dataset.name.as_str() == model.job.as_str();
            if dataset.source != DataSource::Model || !is_job {
                return false;
            }
            // What was set aside for it is its choice.
            let aside: Vec<BTreeMap<String, u32>> =
                match shelf.set_aside(&super::datasets::job_place(key), ASIDE_MODELS) {
                    Ok(aside) => aside,
                    Err(_) => return true,
                };
            let newest = newest_of(model.job.as_str());
            let mut chosen = aside.iter().filter_map(|aside| aside.get(&newest)).peekable();
            let asked = dataset.version.as_ref().map(AssetName::as_str).filter(|asked| *asked != LATEST);
            if asked.is_none() && chosen.peek().is_some() {
                return chosen.any(|run| *run == model.run);
            }
            asked.map_or(is_newest, |asked| asked == model.run.to_string())
        })
    })
}

fn entered(paths: &Paths, caller: &Caller, workspace: &str) -> Result<Shelf, ApiError> {
    let name: WorkspaceName = workspace.parse().map_err(|_| rights::closed(workspace))?;
    rights::enter(paths, caller, &name)?;
    let cannot = |error: io::Error| ApiError::Failed(format!("cannot open the workspaces: {error}"));
    Shelf::open(&paths.workspaces()).map_err(cannot)
}

/// What is not there, or closed to the caller, has nothing in it.
fn named(shelf: &Shelf, directory: &Path) -> Vec<String> {
    let mut names = shelf.names(directory).unwrap_or_default();
    names.retain(|name| !name.starts_with(OWN));
    names
}
