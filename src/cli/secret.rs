//! `trainyard secret ls|set|rm`: what workspaces log in with; of root, and never shown.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::Exit;
use super::output::{self, Format};
use crate::config::Paths;
use crate::ids::{AssetName, WorkspaceName};
use crate::sys::file::{Durability, create_dir, remove_if_there, write_whole};

/// Largest secret, bytes: logins and keys.
const SECRET_MAX: u64 = 64 << 10;

#[derive(Debug, Subcommand)]
pub enum SecretVerb {
    /// List the names of secrets
    Ls {
        /// Of this workspace; of all when absent
        #[arg(short, long)]
        workspace: Option<WorkspaceName>,
    },
    /// Store what comes on standard input as a secret, as in `trainyard secret set git < token`
    Set {
        /// As in `secret:NAME`; `registry.json` holds logins for registries
        name: AssetName,
        /// Whose it is
        #[arg(short, long, default_value = "default")]
        workspace: WorkspaceName,
    },
    /// Remove secrets
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<AssetName>,
        /// Whose they are
        #[arg(short, long, default_value = "default")]
        workspace: WorkspaceName,
    },
}

impl SecretVerb {
    pub(super) fn workspace(&self) -> Option<&str> {
        match self {
            Self::Ls { workspace } => workspace.as_ref().map(WorkspaceName::as_str),
            Self::Set { workspace, .. } | Self::Rm { workspace, .. } => Some(workspace.as_str()),
        }
    }
}

pub(super) fn run(root: &Path, verb: SecretVerb, format: Format) -> anyhow::Result<Exit> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("only root may see or change secrets: use sudo");
    }
    let secrets = Paths::new(root)?.secrets();
    match verb {
        SecretVerb::Ls { workspace } => list(&secrets, workspace.as_ref(), format)?,
        SecretVerb::Set { name, workspace } => {
            store(&secrets.join(workspace.as_str()), &name, &mut io::stdin().lock())?;
            tell(
                &format!("secret {name} of workspace {workspace} is stored; job files name it as secret:{name}"),
                format,
            )?;
        }
        SecretVerb::Rm { names, workspace } => {
            for name in names {
                let path = secrets.join(workspace.as_str()).join(name.as_str());
                if path.symlink_metadata().is_err() {
                    output::error(&format!(
                        "workspace {workspace} has no secret {name}; `trainyard secret ls` lists them"
                    ));
                    return Ok(Exit::NotFound);
                }
                remove_if_there(&path).with_context(|| format!("cannot remove {}", path.display()))?;
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

fn store(directory: &Path, name: &AssetName, from: &mut impl Read) -> anyhow::Result<()> {
    let mut content = Vec::new();
    from.take(SECRET_MAX + 1).read_to_end(&mut content).context("cannot read standard input")?;
    if content.len() as u64 > SECRET_MAX {
        bail!("a secret has at most {SECRET_MAX} bytes");
    }
    if content.is_empty() {
        bail!("nothing came on standard input; `trainyard secret set {name} < FILE` stores what is in FILE");
    }
    // Both levels are root's alone, whoever made them.
    for path in directory.parent().into_iter().chain([directory]) {
        create_dir(path, 0o700).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let path = directory.join(name.as_str());
    write_whole(&path, &content, 0o600, Durability::Machine).with_context(|| format!("cannot write {}", path.display()))
}

fn list(secrets: &Path, workspace: Option<&WorkspaceName>, format: Format) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for directory in entries(secrets)?.into_iter().filter(|path| path.is_dir()) {
        let owner = file_name(&directory);
        if workspace.is_some_and(|wanted| wanted.as_str() != owner) {
            continue;
        }
        rows.extend(entries(&directory)?.iter().map(|secret| vec![owner.clone(), file_name(secret)]));
    }
    rows.sort();
    match format {
        Format::Json => rows.iter().try_for_each(|row| output::json(&json!({ "workspace": row[0], "name": row[1] }))),
        Format::People if rows.is_empty() => output::line("no secrets; `trainyard secret set NAME < FILE` stores one"),
        Format::People => output::table(&["WORKSPACE", "NAME"], &rows),
    }
}

fn file_name(path: &Path) -> String {
    crate::sys::terminal::escape(&path.file_name().unwrap_or_default().to_string_lossy())
}

fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot look into {}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_for_root_alone_and_has_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let (home, name) = (dir.path().join("secrets/lab"), "git".parse().unwrap());
        store(&home, &name, &mut &b"token\n"[..]).unwrap();
        assert_eq!(fs::read(home.join("git")).unwrap(), b"token\n");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&home.join("git")), mode(&home), mode(home.parent().unwrap())), (0o600, 0o700, 0o700));
        assert!(store(&home, &name, &mut &b""[..]).is_err());
        assert!(store(&home, &name, &mut io::repeat(b'x')).is_err());
        assert_eq!(fs::read(home.join("git")).unwrap(), b"token\n");
    }
}
