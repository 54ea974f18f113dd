//! `trainyard spec ls`: sizes of tasks that job files may name.

use std::path::Path;

use clap::Subcommand;
use serde_json::json;

use super::Exit;
use super::output::{self, Format};
use crate::config::Config;
use crate::ids::{AssetName, WorkspaceName};
use crate::spec::ResourceSpec;

#[derive(Debug, Subcommand)]
pub enum SpecVerb {
    /// List the sizes that jobs of a workspace may name, as in `resources.spec = "NAME"`
    Ls {
        /// Of this workspace
        #[arg(short, long, default_value = "default")]
        workspace: WorkspaceName,
    },
}

impl SpecVerb {
    pub(super) fn workspace(&self) -> &str {
        let Self::Ls { workspace } = self;
        workspace.as_str()
    }
}

pub(super) fn run(root: &Path, verb: &SpecVerb, format: Format) -> anyhow::Result<Exit> {
    let SpecVerb::Ls { workspace } = verb;
    let offer = Config::load(root)?.specs.of(workspace);
    if format == Format::Json {
        offer.iter().try_for_each(|(name, spec)| output::json(&as_json(name, spec)))?;
    } else if offer.is_empty() {
        output::line(
            "no specs; the administrator writes [specs.NAME] or [workspaces.NAME.specs.NAME] into trainyard.toml",
        )?;
    } else {
        let rows: Vec<_> = offer.iter().map(|(name, spec)| row(name, spec)).collect();
        output::table(&["SPEC", "CPU", "MEMORY", "GPU", "SHM", "PRICE/H", "DESCRIPTION"], &rows)?;
    }
    Ok(Exit::Success)
}

fn row(name: &AssetName, spec: &ResourceSpec) -> Vec<String> {
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

fn as_json(name: &AssetName, spec: &ResourceSpec) -> serde_json::Value {
    json!({
        "spec": name.as_str(), "cpu": spec.cpu.0 as f64 / 1000.0, "memory": spec.memory.0, "gpu": spec.gpu,
        "shm": spec.shm.map(|shm| shm.0), "price": spec.price, "description": spec.description,
    })
}
