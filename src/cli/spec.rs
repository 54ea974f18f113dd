//! `trainyard spec ls`: sizes of tasks that job files may name.

use std::path::Path;

use clap::Subcommand;
use serde_json::json;

use super::Exit;
use super::complete::Named;
use super::listing::{Listed, Listing};
use super::output::Format;
use crate::config::Config;
use crate::ids::{AssetName, WorkspaceName};
use crate::spec::ResourceSpec;

#[derive(Debug, Subcommand)]
pub enum SpecVerb {
    /// List the sizes that jobs of a workspace may name, as in `resources.spec = "NAME"`
    Ls {
        /// Of this workspace
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
        #[command(flatten)]
        listed: Listed,
    },
}

impl SpecVerb {
    pub(super) fn workspace(&self) -> &str {
        let Self::Ls { workspace, .. } = self;
        workspace.as_str()
    }
}

pub(super) fn run(root: &Path, verb: &SpecVerb, format: Format) -> anyhow::Result<Exit> {
    let SpecVerb::Ls { workspace, listed } = verb;
    let offer = Config::load(root)?.specs.of(workspace);
    let listing = Listing {
        heads: &["SPEC", "CPU", "MEMORY", "GPU", "SHM", "PRICE/H", "DESCRIPTION"],
        wide: &[],
        cells: row,
        name: |(name, _)| name.to_string(),
        json: |size| Ok(as_json(size)),
        nothing: "no specs; the administrator writes [specs.NAME] or [workspaces.NAME.specs.NAME] into trainyard.toml",
    };
    listing.print(&offer.iter().collect::<Vec<_>>(), listed.form(format))?;
    Ok(Exit::Success)
}

type Size<'a> = (&'a AssetName, &'a ResourceSpec);

fn row((name, spec): &Size<'_>) -> Vec<String> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        name.to_string(),
        spec.cpu.to_string(),
        spec.memory.to_string(),
        spec.gpu.to_string(),
        or_none(spec.shm.map(|shm| shm.to_string())),
        or_none(spec.price.map(|price| price.to_string())),
        spec.description.clone(),
    ]
}

fn as_json((name, spec): &Size<'_>) -> serde_json::Value {
    json!({
        "spec": name.as_str(), "cpu": spec.cpu.0 as f64 / 1000.0, "memory": spec.memory.0, "gpu": spec.gpu,
        "shm": spec.shm.map(|shm| shm.0), "price": spec.price, "description": spec.description,
    })
}
