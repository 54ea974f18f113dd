//! Secrets of workspaces: files that root alone may read, `etc/trainyard/secrets/WORKSPACE/NAME`. Here they are written, listed
//! and removed, for the command line and for the API alike, and read for what a run needs. What is in one is never logged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::ids::{AssetName, WorkspaceName};
use crate::images::registry::{AuthFileError, credentials_in};
use crate::sys::file::{Durability, create_dir, read_limited, remove_for_good, write_whole};

/// Longest secret, bytes: logins and keys.
pub const SECRET_MAX: usize = 64 << 10;

/// The secret that holds the logins for registries.
pub const LOGINS: &str = "registry.json";

/// All of them.
#[derive(Debug, Clone)]
pub struct Secrets(PathBuf);

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("a secret has at most {SECRET_MAX} bytes")]
    TooLong,
    #[error("a secret has one byte at least")]
    Empty,
    /// Else it would be found wrong when an image is wanted.
    #[error("{LOGINS} holds no logins for registries: {0}; `podman login --authfile FILE REGISTRY` writes such a file")]
    NoLogins(AuthFileError),
    #[error("workspace {workspace} has no secret {name}; `trainyard secret ls` lists them")]
    Missing { workspace: WorkspaceName, name: AssetName },
    #[error("cannot {verb} {}", .path.display())]
    Io {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SecretError {
    let path = path.to_owned();
    move |source| SecretError::Io { verb, path, source }
}

impl Secrets {
    pub fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Where one lies, or would.
    pub fn path(&self, workspace: &WorkspaceName, name: &AssetName) -> PathBuf {
        self.0.join(workspace.as_str()).join(name.as_str())
    }

    /// Writes one, whole or not at all, in place of what was there.
    pub fn put(&self, workspace: &WorkspaceName, name: &AssetName, content: &[u8]) -> Result<(), SecretError> {
        match content.len() {
            0 => return Err(SecretError::Empty),
            SECRET_MAX.. if content.len() > SECRET_MAX => return Err(SecretError::TooLong),
            _ => {}
        }
        if name.as_str() == LOGINS
            && let Err(error @ AuthFileError::Syntax { .. }) = credentials_in(content, "", "")
        {
            return Err(SecretError::NoLogins(error));
        }
        // Both levels are root's alone, whoever made them.
        for directory in [self.0.clone(), self.0.join(workspace.as_str())] {
            create_dir(&directory, 0o700).map_err(failed("make", &directory))?;
        }
        let path = self.path(workspace, name);
        write_whole(&path, content, 0o600, Durability::Machine).map_err(failed("write", &path))
    }

    pub fn remove(&self, workspace: &WorkspaceName, name: &AssetName) -> Result<(), SecretError> {
        let path = self.path(workspace, name);
        match remove_for_good(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(SecretError::Missing { workspace: workspace.clone(), name: name.clone() })
            }
            other => other.map_err(failed("remove", &path)),
        }
    }

    /// What is in one.
    pub fn read(&self, workspace: &WorkspaceName, name: &AssetName) -> io::Result<Vec<u8>> {
        Ok(read_limited(&self.path(workspace, name), SECRET_MAX as u64)?.1)
    }

    /// The names of those of a workspace, or of all; sorted.
    pub fn list(&self, workspace: Option<&WorkspaceName>) -> Result<Vec<(WorkspaceName, AssetName)>, SecretError> {
        let workspaces = match workspace {
            Some(workspace) => vec![workspace.clone()],
            None => names(&self.0)?,
        };
        let mut found = Vec::new();
        for workspace in workspaces {
            let own = names::<AssetName>(&self.0.join(workspace.as_str()))?;
            found.extend(own.into_iter().map(|name| (workspace.clone(), name)));
        }
        found.sort();
        Ok(found)
    }
}

/// What in a directory has a good name; what it lacks, or is a file itself, has none. Files that are being written have names
/// that are not good ones.
fn names<T: std::str::FromStr>(directory: &Path) -> Result<Vec<T>, SecretError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed("list", directory)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("list", directory))?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::sys::file::tests::was_synced;

    #[test]
    fn a_secret_is_for_root_alone_has_a_bound_and_goes_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::new(dir.path().join("secrets"));
        let (lab, git): (WorkspaceName, AssetName) = ("lab".parse().unwrap(), "git".parse().unwrap());
        assert!(secrets.list(None).unwrap().is_empty());
        secrets.put(&lab, &git, b"token\n").unwrap();
        let path = secrets.path(&lab, &git);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let home = path.parent().unwrap();
        assert_eq!((mode(&path), mode(home), mode(home.parent().unwrap())), (0o600, 0o700, 0o700));
        assert!(matches!(secrets.put(&lab, &git, b""), Err(SecretError::Empty)));
        let logins = LOGINS.parse().unwrap();
        assert!(matches!(secrets.put(&lab, &logins, b"user:password"), Err(SecretError::NoLogins(_))));
        assert!(!secrets.path(&lab, &logins).exists());
        secrets.put(&lab, &logins, br#"{"auths": {}}"#).unwrap();
        secrets.remove(&lab, &logins).unwrap();
        assert!(matches!(secrets.put(&lab, &git, &vec![b'x'; SECRET_MAX + 1]), Err(SecretError::TooLong)));
        assert_eq!(secrets.read(&lab, &git).unwrap(), b"token\n");
        // What is just being written, and a secret of no workspace, are not listed.
        fs::write(home.join(".git.1-1.tmp"), "").unwrap();
        fs::write(home.parent().unwrap().join("hook"), "of all").unwrap();
        assert_eq!(secrets.list(None).unwrap(), [(lab.clone(), git.clone())]);
        assert_eq!(secrets.list(Some(&lab)).unwrap().len(), 1);
        was_synced(&path);
        secrets.remove(&lab, &git).unwrap();
        assert!(was_synced(&path));
        assert!(matches!(secrets.remove(&lab, &git), Err(SecretError::Missing { .. })));
        secrets.put(&lab, &git, &vec![b'x'; SECRET_MAX]).unwrap();
    }
}
