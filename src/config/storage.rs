//! How much may be kept on the disk: by workspaces (`[limits] workspace_storage`, and `storage` of `[workspaces.NAME]`), and of what
//! they all see (`[limits] public_storage`, `preset_storage`).

use std::collections::BTreeMap;

use super::WireWorkspace;
use super::limits::WireLimits;
use crate::ids::{Bytes, HomeName, NameError, QuantityError, WorkspaceName};

/// How much workspaces may keep on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageConfig {
    /// By workspace, bytes; `None` for as much as there is room for.
    of: BTreeMap<WorkspaceName, Option<u64>>,
    /// Of all others.
    others: Option<u64>,
    /// Of what all workspaces see.
    public: Option<u64>,
    preset: Option<u64>,
}

impl StorageConfig {
    /// Bytes that may be kept there; as much as there is room for when `None`.
    pub fn of(&self, home: &HomeName) -> Option<u64> {
        match home.workspace() {
            Some(workspace) => self.of.get(&workspace).copied().unwrap_or(self.others),
            None if home.as_str() == "public" => self.public,
            None => self.preset,
        }
    }
}

/// Less would not hold what Trainyard itself writes of a few jobs.
const STORAGE_MIN: u64 = 1 << 20;

pub(super) fn read(
    limits: &WireLimits,
    workspaces: &BTreeMap<String, WireWorkspace>,
) -> Result<StorageConfig, (String, String)> {
    let mut of = BTreeMap::new();
    for (name, keys) in workspaces {
        let workspace: WorkspaceName = name.parse().map_err(|error: NameError| {
            let hint = "a quota is of a workspace; of `public` and `preset` it is public_storage and preset_storage in [limits]";
            (format!("workspaces.{name}"), format!("{error}; {hint}"))
        })?;
        if let Some(text) = &keys.storage {
            let key = format!("workspaces.{name}.storage");
            of.insert(workspace, quota(text).map_err(|message| (key, message))?);
        }
    }
    let limit = |key: &str, text: &Option<String>| {
        let bytes = text.as_ref().map(|text| quota(text)).transpose();
        bytes.map(Option::flatten).map_err(|message| (format!("limits.{key}"), message))
    };
    let others = limit("workspace_storage", &limits.workspace_storage)?;
    let public = limit("public_storage", &limits.public_storage)?;
    let preset = limit("preset_storage", &limits.preset_storage)?;
    Ok(StorageConfig { of, others, public, preset })
}

/// A size, or `unlimited`.
fn quota(text: &str) -> Result<Option<u64>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    let bytes: Bytes = text.parse().map_err(|error: QuantityError| format!("{error}, or \"unlimited\""))?;
    if bytes.0 < STORAGE_MIN {
        return Err(format!("must be at least {}, or \"unlimited\"", Bytes(STORAGE_MIN)));
    }
    Ok(Some(bytes.0))
}
