//! `trainyard model ls|show|rm`: what runs have left as models. All but `rm` work on the mounted tree, with the rights of whoever calls.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::complete::Named;
use super::listing::{Form, Listed, Listing};
use super::output::{self, Format};
use super::whose;
use super::{Exit, WrongArgument, change};
use crate::api::client::Client;
use crate::assets::{LATEST, flag};
use crate::ids::{JobKey, JobName, Timestamp, WorkspaceName};

#[derive(Debug, Subcommand)]
pub enum ModelVerb {
    /// List models by the jobs that left them, the newest run first
    Ls {
        /// Only of jobs whose name has this text in it
        text: Option<String>,
        /// Of this workspace
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
        #[command(flatten)]
        listed: Listed,
    },
    /// Print where a model comes from: its MODEL.toml, and where it lies
    Show {
        /// JOB, or JOB@RUN
        #[arg(add = Named::Models.completer())]
        model: String,
        /// Of this workspace
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
    },
    /// Remove models that no job uses; `latest` leads to the newest that is left
    Rm {
        /// JOB@RUN
        #[arg(required = true, add = Named::Models.completer())]
        models: Vec<String>,
        /// Of this workspace
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
    },
}

/// What tells where a model comes from.
const RECORD: &str = "MODEL.toml";

pub(super) async fn run(
    root: &Path,
    client: impl FnOnce() -> anyhow::Result<Client>,
    verb: &ModelVerb,
    format: Format,
) -> anyhow::Result<Exit> {
    match verb {
        ModelVerb::Ls { text, workspace, listed } => {
            list(&models(root, workspace)?, text.as_deref().unwrap_or_default(), listed.form(format))?;
        }
        ModelVerb::Show { model, workspace } => return show(root, workspace, model, format),
        ModelVerb::Rm { models, workspace } => return remove(&client()?, workspace, models, format).await,
    }
    Ok(Exit::Success)
}

/// In the mounted tree.
fn models(root: &Path, workspace: &WorkspaceName) -> anyhow::Result<PathBuf> {
    whose::place(root, workspace.as_str(), "models")
}

struct Model {
    job: String,
    run: u32,
    time: String,
    path: PathBuf,
}

fn list(place: &Path, text: &str, form: Form) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for job in names(place)?.into_iter().filter(|job| job.contains(text)) {
        // Somebody's own that others may not look into has no rows.
        for run in runs(&place.join(&job)).unwrap_or_default() {
            let path = place.join(&job).join(run.to_string());
            let Ok(status) = fs::metadata(&path) else { continue };
            let ms = u64::try_from(status.mtime()).unwrap_or(0).saturating_mul(1000);
            found.push(Model { job: job.clone(), run, time: Timestamp(ms).to_seconds(), path });
        }
    }
    let listing = Listing {
        heads: &["MODEL", "APPEARED", "PATH"],
        wide: &["PATH"],
        cells: |model: &Model| vec![model.name(), model.time.clone(), model.path.display().to_string()],
        name: Model::name,
        json: |Model { job, run, time, path }| Ok(json!({ "job": job, "run": run, "time": time, "path": path })),
        nothing: "no models; what a job leaves in /model appears when its run has succeeded",
    };
    listing.print(&found, form)
}

impl Model {
    fn name(&self) -> String {
        format!("{}@{}", self.job, self.run)
    }
}

/// JOB[@RUN]; of the newest run without one.
fn split(model: &str, workspace: &WorkspaceName) -> Result<(JobName, Option<u32>), WrongArgument> {
    let (job, run) = model.split_once('@').map_or((model, None), |(job, run)| (job, Some(run)));
    let run = run.filter(|run| *run != LATEST).map(|run| match run.parse::<u32>() {
        Ok(run) => Ok(run),
        Err(_) => Err(WrongArgument(format!(
            "{model}: {run:?} is no number of a run, as in {job}@1; `trainyard model ls{}` lists them",
            flag(workspace.as_str())
        ))),
    });
    let named = job.parse().map_err(|error| WrongArgument(format!("{job:?} cannot be a job: {error}")))?;
    Ok((named, run.transpose()?))
}

/// Each is judged by itself, and every refusal is told.
async fn remove(client: &Client, workspace: &WorkspaceName, models: &[String], format: Format) -> anyhow::Result<Exit> {
    let named = models.iter().map(|model| match split(model, workspace)? {
        (job, Some(run)) => Ok((JobKey::new(workspace.clone(), job), run)),
        (job, None) => Err(WrongArgument(format!(
            "{model}: say of which run, as in {job}@1; `latest` leads to another one when that has gone"
        ))),
    });
    let mut exit = Exit::Success;
    for (key, run) in named.collect::<Result<Vec<_>, _>>()? {
        let done = client.model_remove(&key, run).await;
        let what = json!({ "job": key.job, "run": run, "done": "remove" });
        change::tell(done, &what, format, &mut exit)?;
    }
    Ok(exit)
}

fn show(root: &Path, workspace: &WorkspaceName, model: &str, format: Format) -> anyhow::Result<Exit> {
    let place = models(root, workspace)?;
    let (job, run) = split(model, workspace)?;
    let home = place.join(job.as_str());
    let known = runs(&home).unwrap_or_default();
    let Some(run) = run.or_else(|| known.first().copied()).filter(|run| known.contains(run)) else {
        output::error(&format!(
            "there is no model {model}; `trainyard model ls{}` lists them",
            flag(workspace.as_str())
        ));
        return Ok(Exit::NotFound);
    };
    let path = home.join(run.to_string());
    let record = fs::read_to_string(path.join(RECORD));
    let record = record.with_context(|| format!("cannot read {}", path.join(RECORD).display()))?;
    match format {
        Format::People => {
            output::line(record.trim_end())?;
            output::aside(&format!("it lies in {}", path.display()));
        }
        Format::Json => match record.parse::<toml::Table>() {
            Ok(table) => output::json(&json!({ "job": job, "run": run, "path": path, "record": table }))?,
            Err(error) => bail!("{} is no TOML: {error}", path.join(RECORD).display()),
        },
    }
    Ok(Exit::Success)
}

fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<_> = entries.iter().filter_map(|entry| entry.file_name().to_str().map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}

/// The newest first.
fn runs(job: &Path) -> anyhow::Result<Vec<u32>> {
    let mut runs: Vec<u32> = names(job)?.iter().filter_map(|name| name.parse().ok()).collect();
    runs.sort_unstable_by(|one, other| other.cmp(one));
    Ok(runs)
}
