//! Secrets of workspaces over the API: written and removed, never read. They are files that root alone may read.

use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use crate::config::Paths;
use crate::ids::{AssetName, WorkspaceName};
use crate::reconcile::Caller;
use crate::sys::file::{Durability, create_dir, write_whole};

/// Longest secret, bytes.
pub const SECRET_MAX: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretView {
    pub workspace: String,
    pub secret: String,
}

fn directory(paths: &Paths, workspace: &str) -> Result<PathBuf, ApiError> {
    let name: WorkspaceName = workspace.parse().map_err(|error| ApiError::Bad(format!("{workspace}: {error}")))?;
    Ok(paths.secrets().join(name.as_str()))
}

fn file(directory: &Path, secret: &str) -> Result<PathBuf, ApiError> {
    let name: AssetName = secret.parse().map_err(|error| ApiError::Bad(format!("{secret}: {error}")))?;
    Ok(directory.join(name.as_str()))
}

/// Their names alone. Blocks.
pub(super) fn list(paths: &Paths, workspace: &str) -> Result<Vec<SecretView>, ApiError> {
    let directory = directory(paths, workspace)?;
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list the secrets", &error)),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.parse::<AssetName>().is_ok()).collect();
    names.sort();
    Ok(names.into_iter().map(|secret| SecretView { workspace: workspace.to_owned(), secret }).collect())
}

/// Blocks.
pub(super) fn put(
    paths: &Paths,
    caller: &Caller,
    workspace: &str,
    secret: &str,
    content: &[u8],
) -> Result<String, ApiError> {
    let directory = directory(paths, workspace)?;
    let file = file(&directory, secret)?;
    create_dir(&paths.secrets(), 0o700).map_err(|error| failed("make the directory of secrets", &error))?;
    create_dir(&directory, 0o700).map_err(|error| failed("make the directory of secrets", &error))?;
    write_whole(&file, content, 0o600, Durability::Machine).map_err(|error| failed("write the secret", &error))?;
    tracing::info!(workspace, secret, by = caller.name, "a secret was written");
    Ok(format!("secret {secret} of workspace {workspace}: written"))
}

/// Blocks.
pub(super) fn remove(paths: &Paths, caller: &Caller, workspace: &str, secret: &str) -> Result<String, ApiError> {
    let file = file(&directory(paths, workspace)?, secret)?;
    match std::fs::remove_file(&file) {
        Ok(()) => {
            tracing::info!(workspace, secret, by = caller.name, "a secret was removed");
            Ok(format!("secret {secret} of workspace {workspace}: removed"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ApiError::NotFound(format!("workspace {workspace} has no secret {secret}")))
        }
        Err(error) => Err(failed("remove the secret", &error)),
    }
}

fn failed(what: &str, error: &io::Error) -> ApiError {
    ApiError::Failed(format!("cannot {what}: {error}"))
}
