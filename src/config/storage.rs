//! How much workspaces may keep on the disk: `[limits] workspace_storage` and `storage` of `[workspaces.NAME]`.

use std::collections::BTreeMap;

use super::WireWorkspace;
use super::limits::WireLimits;
use crate::ids::{Bytes, NameError, QuantityError, WorkspaceName};

/// How much workspaces may keep on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageConfig {
    /// By workspace, bytes; `None` for as much as there is room for.
    of: BTreeMap<WorkspaceName, Option<u64>>,
    /// Of all others.
    others: Option<u64>,
}

impl StorageConfig {
    /// Bytes that the workspace may keep; as much as there is room for when `None`.
    pub fn of(&self, workspace: &WorkspaceName) -> Option<u64> {
        self.of.get(workspace).copied().unwrap_or(self.others)
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
            (format!("workspaces.{name}"), format!("{error}; a quota is of a workspace"))
        })?;
        if let Some(text) = &keys.storage {
            let key = format!("workspaces.{name}.storage");
            of.insert(workspace, quota(text).map_err(|message| (key, message))?);
        }
    }
    let others = limits.workspace_storage.as_ref().map(|text| quota(text)).transpose();
    let others = others.map_err(|message| ("limits.workspace_storage".to_owned(), message))?.flatten();
    Ok(StorageConfig { of, others })
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
