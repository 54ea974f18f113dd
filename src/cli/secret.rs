//! `trainyard secret ls|set|rm`: what workspaces log in with; of root, and never shown.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::Exit;
use super::complete::Named;
use super::listing::{Form, Listed, Listing};
use super::output::{self, Format};
use crate::config::Paths;
use crate::ids::{AssetName, WorkspaceName};
use crate::secrets::{SECRET_MAX, SecretError, Secrets};

#[derive(Debug, Subcommand)]
pub enum SecretVerb {
    /// List the names of secrets
    Ls {
        /// Of this workspace; of all when absent
        #[arg(short, long, add = Named::Workspaces.completer())]
        workspace: Option<WorkspaceName>,
        #[command(flatten)]
        listed: Listed,
    },
    /// Store what comes on standard input as a secret, as in `trainyard secret set git < token`
    Set {
        /// As in `secret:NAME`; `registry.json` holds logins for registries
        #[arg(add = Named::Secrets.completer())]
        name: AssetName,
        /// Whose it is
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
    },
    /// Remove secrets
    Rm {
        /// Their names
        #[arg(required = true, add = Named::Secrets.completer())]
        names: Vec<AssetName>,
        /// Whose they are
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
    },
}

impl SecretVerb {
    /// The workspace that has to be there. What one that has gone has left can be removed.
    pub(super) fn workspace(&self) -> Option<&str> {
        match self {
            Self::Ls { workspace, .. } => workspace.as_ref().map(WorkspaceName::as_str),
            Self::Set { workspace, .. } => Some(workspace.as_str()),
            Self::Rm { .. } => None,
        }
    }
}

pub(super) fn run(root: &Path, verb: SecretVerb, format: Format) -> anyhow::Result<Exit> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("only root may see or change secrets: use sudo");
    }
    let secrets = Secrets::new(Paths::new(root)?.secrets());
    match verb {
        SecretVerb::Ls { workspace, listed } => list(&secrets, workspace.as_ref(), listed.form(format))?,
        SecretVerb::Set { name, workspace } => {
            let content = read(&name, &mut io::stdin().lock())?;
            secrets.put(&workspace, &name, &content)?;
            tell(
                &format!("secret {name} of workspace {workspace} is stored; job files name it as secret:{name}"),
                format,
            )?;
        }
        SecretVerb::Rm { names, workspace } => {
            for name in names {
                match secrets.remove(&workspace, &name) {
                    Err(missing @ SecretError::Missing { .. }) => {
                        output::error(&missing.to_string());
                        return Ok(Exit::NotFound);
                    }
                    other => other?,
                }
                tell(&format!("secret {name} of workspace {workspace} is removed"), format)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn tell(message: &str, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(&json!({ "message": message })),
        Format::People => output::line(message),
    }
}

/// What is to be kept: no more is taken from standard input than a secret may have, and a byte.
fn read(name: &AssetName, from: &mut impl Read) -> anyhow::Result<Vec<u8>> {
    let mut content = Vec::new();
    from.take(SECRET_MAX as u64 + 1).read_to_end(&mut content).context("cannot read standard input")?;
    if content.is_empty() {
        bail!("nothing came on standard input; `trainyard secret set {name} < FILE` stores what is in FILE");
    }
    Ok(content)
}

fn list(secrets: &Secrets, workspace: Option<&WorkspaceName>, form: Form) -> anyhow::Result<()> {
    let listing = Listing {
        heads: &["WORKSPACE", "NAME"],
        wide: &[],
        cells: |(owner, name): &(WorkspaceName, AssetName)| vec![owner.to_string(), name.to_string()],
        name: |(_, name)| name.to_string(),
        json: |(owner, name)| Ok(json!({ "workspace": owner, "name": name })),
        nothing: "no secrets; `trainyard secret set NAME < FILE` stores one",
    };
    listing.print(&secrets.list(workspace)?.into_iter().collect::<Vec<_>>(), form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_of_standard_input_has_a_bound() {
        let name = "git".parse().unwrap();
        assert_eq!(read(&name, &mut &b"token\n"[..]).unwrap(), b"token\n");
        assert!(read(&name, &mut &b""[..]).is_err());
        assert_eq!(read(&name, &mut io::repeat(b'x')).unwrap().len(), SECRET_MAX + 1, "one more, to be refused");
    }
}
