//! Quotas that the kernel keeps for a workspace: groups of subvolumes of btrfs, projects of ext4 and XFS.
//!
//! What people and jobs write, `datasets/`, `code/`, and the output and model of each run, is counted together. What Trainyard
//! writes itself, such as logs, is not held up where there is no room.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Part;
use crate::sys::btrfs;
use crate::sys::file::{create_dir, remove_tree};
use crate::sys::projects::{self, Project};

/// What of the kernel holds a workspace to its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcer {
    Subvolumes(btrfs::Group),
    Project(Project),
}

const PARTS: [Part; 2] = [Part::Datasets, Part::Code];

fn parts(home: &Path) -> io::Result<Vec<File>> {
    PARTS.map(|part| File::open(home.join(part.as_str()))).into_iter().collect()
}

/// Makes the directory of a new workspace so that the kernel can hold its quota, where it can. Anybody else may go there
/// only when its rights are known.
pub fn prepare(home: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (home.parent(), home.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let disk = File::open(above)?;
    let is_btrfs = btrfs::is_btrfs(&disk)?;
    if home.symlink_metadata().is_ok() || !(is_btrfs || projects::are_kept(&disk)) {
        return Ok(());
    }
    // Under another name until it has both: one that was cut short would be counted for ever.
    let draft = above.join(format!(".{}.new", name.to_string_lossy()));
    remove_tree(&draft)?;
    create_dir(&draft, 0o700)?;
    if is_btrfs {
        let parts = File::open(&draft)?;
        PARTS.iter().try_for_each(|part| btrfs::create_subvolume(&parts, part.as_str().as_ref(), None))?;
    } else {
        let project = Project::unused(&disk);
        let made =
            project.and_then(|project| PARTS.iter().try_for_each(|part| make_in(project, &draft.join(part.as_str()))));
        if let Err(error) = made {
            tracing::warn!(path = %home.display(), %error, "its disk gives it no project: what it keeps is counted");
            return remove_tree(&draft);
        }
    }
    fs::rename(draft, home)?;
    disk.sync_all()
}

/// Under another name until it belongs to the project: one that was cut short would be counted by nobody.
fn make_in(project: Project, path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let draft = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
    remove_tree(&draft)?;
    create_dir(&draft, 0o755)?;
    project.take(&File::open(&draft)?)?;
    fs::rename(draft, path)
}

impl Enforcer {
    /// That of the workspace at `home`, if it was made for one.
    pub fn of(home: &Path) -> io::Result<Option<Self>> {
        let parts = parts(home)?;
        let Some(first) = parts.first() else { return Ok(None) };
        if parts.iter().map(btrfs::is_subvolume).collect::<io::Result<Vec<_>>>()?.into_iter().all(|is| is) {
            return Ok(Some(Self::Subvolumes(btrfs::Group::of(first)?)));
        }
        let all = parts.iter().map(Project::of).collect::<io::Result<Vec<_>>>()?;
        let project = all.first().copied().flatten().filter(|_| projects::are_kept(first));
        Ok(project.filter(|project| all.iter().all(|other| *other == Some(*project))).map(Self::Project))
    }

    /// Has the workspace at `home` keep `limit` bytes at most, as many as it likes when `None`.
    pub fn limit(self, home: &Path, limit: Option<u64>) -> io::Result<()> {
        // By the workspace's own directory: where there is no room left, btrfs would refuse by the others even to be given more.
        let on = File::open(home)?;
        match self {
            Self::Subvolumes(group) => {
                if limit.is_some() {
                    group.begin(&on, &parts(home)?)?;
                }
                group.set_limit(&on, limit)
            }
            Self::Project(project) => project.set_limit(&on, limit),
        }
    }

    /// Bytes that the kernel has counted of the workspace at `home`.
    pub fn usage(self, home: &Path) -> io::Result<u64> {
        let first = File::open(home.join(Part::Datasets.as_str()))?;
        match self {
            Self::Subvolumes(group) => group.usage(&first),
            Self::Project(project) => project.usage(&first),
        }
    }

    /// Has the kernel no longer count runs that were removed; says whether some are still being removed.
    pub fn forget_removed(self, home: &Path) -> io::Result<bool> {
        match self {
            Self::Subvolumes(group) => group.forget_removed(&File::open(home)?),
            // Files alone are counted there.
            Self::Project(_) => Ok(false),
        }
    }

    /// Makes a directory that is counted with the rest of the workspace.
    pub fn make_directory(self, path: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        match self {
            Self::Subvolumes(group) => {
                let parent = File::open(parent)?;
                match btrfs::create_subvolume(&parent, name, Some(group)) {
                    // There is no such group: nobody counts it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        btrfs::create_subvolume(&parent, name, None)?;
                    }
                    made => made?,
                }
            }
            Self::Project(project) => make_in(project, path)?,
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o750))
    }
}

/// Why the kernel does not hold a workspace on a disk where it could.
pub fn why_not(home: &Path) -> io::Result<Option<String>> {
    let disk = File::open(home)?;
    let lacks = match btrfs::is_btrfs(&disk)? {
        true => "it lies on btrfs, but had no quota when it was made, so it has no subvolumes",
        false if projects::are_kept(&disk) => {
            "its disk keeps quotas of projects, but it had no quota when it was made, so it has no project"
        }
        false => return Ok(None),
    };
    Ok(Some(lacks.to_owned()))
}
