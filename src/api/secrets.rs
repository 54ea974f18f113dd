//! Secrets of workspaces over the API: written and removed, never read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::rights::check_there;
use crate::config::Paths;
use crate::ids::{AssetName, WorkspaceName};
use crate::reconcile::Caller;
use crate::secrets::{SecretError, Secrets};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretView {
    pub workspace: String,
    pub secret: String,
}

fn workspace_of(text: &str) -> Result<WorkspaceName, ApiError> {
    text.parse().map_err(|error| ApiError::Bad(format!("{text}: {error}")))
}

fn name_of(text: &str) -> Result<AssetName, ApiError> {
    text.parse().map_err(|error| ApiError::Bad(format!("{text}: {error}")))
}

/// Their names alone. Blocks.
pub(super) fn list(paths: &Paths, workspace: &str) -> Result<Vec<SecretView>, ApiError> {
    let workspace = workspace_of(workspace)?;
    check_there(paths, &workspace)?;
    let found = Secrets::new(paths.secrets()).list(Some(&workspace)).map_err(told)?;
    let view = |(workspace, secret): (WorkspaceName, AssetName)| SecretView {
        workspace: workspace.to_string(),
        secret: secret.to_string(),
    };
    Ok(found.into_iter().map(view).collect())
}

/// Blocks.
pub(super) fn put(
    paths: &Paths,
    caller: &Caller,
    workspace: &str,
    secret: &str,
    content: &[u8],
) -> Result<String, ApiError> {
    let whose = workspace_of(workspace)?;
    check_there(paths, &whose)?;
    Secrets::new(paths.secrets()).put(&whose, &name_of(secret)?, content).map_err(told)?;
    tracing::info!(workspace, secret, by = caller.name, "a secret was written");
    Ok(format!("secret {secret} of workspace {workspace}: written"))
}

/// Blocks.
pub(super) fn remove(paths: &Paths, caller: &Caller, workspace: &str, secret: &str) -> Result<String, ApiError> {
    Secrets::new(paths.secrets()).remove(&workspace_of(workspace)?, &name_of(secret)?).map_err(told)?;
    tracing::info!(workspace, secret, by = caller.name, "a secret was removed");
    Ok(format!("secret {secret} of workspace {workspace}: removed"))
}

fn told(error: SecretError) -> ApiError {
    match &error {
        SecretError::TooLong | SecretError::Empty | SecretError::NoLogins(_) => ApiError::Bad(error.to_string()),
        SecretError::Missing { .. } => ApiError::NotFound(error.to_string()),
        SecretError::Io { source, .. } => ApiError::Failed(format!("{error}: {source}")),
    }
}
