//! Which directories in `jobs.d` are workspaces: those that the administrator has made. Others may be let write there, to drop job
//! files of `default`, and could make directories as well: with the name of a workspace that has left data behind, or one that has
//! secrets, or one beside the quotas. So whose a directory is says whether it is one, and who leads it its group and mode.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ids::WorkspaceName;

/// What there is in the place of a workspace's job files.
#[derive(Debug)]
pub enum JobFiles {
    /// Nothing, or something that is no directory.
    Absent,
    /// A directory of somebody who makes no workspaces: nothing of it counts, as if there were none.
    Strangers {
        uid: u32,
    },
    Open(Metadata),
}

impl JobFiles {
    /// As it is now. Through no link, but for `jobs.d` itself, which is root's to make.
    pub fn of(jobs_d: &Path, workspace: &WorkspaceName) -> io::Result<Self> {
        let Some(above) = directory(fs::metadata(jobs_d))? else { return Ok(Self::Absent) };
        if *workspace == WorkspaceName::default_workspace() {
            return Ok(Self::Open(above));
        }
        Ok(match directory(fs::symlink_metadata(jobs_d.join(workspace.as_str())))? {
            None => Self::Absent,
            Some(found) if found.uid() != 0 && found.uid() != above.uid() => Self::Strangers { uid: found.uid() },
            Some(found) => Self::Open(found),
        })
    }

    /// Whether it is a workspace's. What cannot be looked at is none.
    pub fn are_open(jobs_d: &Path, workspace: &WorkspaceName) -> bool {
        matches!(Self::of(jobs_d, workspace), Ok(Self::Open(_)))
    }

    /// Why a directory in `jobs.d` is no workspace, and what to do about it, where it is a stranger's.
    pub fn why_none(jobs_d: &Path, workspace: &WorkspaceName) -> Option<String> {
        let Ok(Self::Strangers { uid }) = Self::of(jobs_d, workspace) else { return None };
        let whose = crate::sys::process::name_of(uid);
        let path = Self::directory(jobs_d, workspace);
        Some(format!(
            "belongs to {whose}, and a directory in jobs.d makes a workspace only where it belongs to root or to the owner of jobs.d: \
             nothing in it is read; `chown root {0}` by the administrator makes it one, else remove it",
            path.display()
        ))
    }

    /// Where they lie; those of `default` in `jobs.d` itself.
    pub fn directory(jobs_d: &Path, workspace: &WorkspaceName) -> PathBuf {
        let is_default = *workspace == WorkspaceName::default_workspace();
        if is_default { jobs_d.to_owned() } else { jobs_d.join(workspace.as_str()) }
    }
}

fn directory(found: io::Result<Metadata>) -> io::Result<Option<Metadata>> {
    match found {
        Ok(found) => Ok(found.is_dir().then_some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_workspace_is_made_by_root_or_the_owner_of_jobs_d_alone() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let jobs_d = root.path();
        for name in ["lab", "file", "target"] {
            fs::create_dir(jobs_d.join(name)).unwrap();
        }
        fs::remove_dir(jobs_d.join("file")).unwrap();
        fs::write(jobs_d.join("file"), "").unwrap();
        symlink("target", jobs_d.join("link")).unwrap();
        let open = |name: &str| JobFiles::are_open(jobs_d, &name.parse().unwrap());
        assert_eq!(["default", "lab", "file", "link", "none"].map(open), [true, true, false, false, false]);
        let why = || JobFiles::why_none(jobs_d, &"lab".parse().unwrap()).unwrap_or_default();
        for (of_lab, of_jobs_d, is_open) in [(4_000_001, 0, false), (4_000_001, 4_000_001, true), (0, 4_000_001, true)]
        {
            chown(jobs_d.join("lab"), Some(of_lab), None).unwrap();
            chown(jobs_d, Some(of_jobs_d), None).unwrap();
            assert_eq!((open("lab"), why().is_empty()), (is_open, is_open), "{of_lab} {of_jobs_d}");
            assert!(
                is_open || why().contains("belongs to user 4000001") && why().contains("`chown root "),
                "{}",
                why()
            );
            assert!(open("default"));
        }
    }
}
