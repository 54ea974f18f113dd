//! `image = "host"`: this machine's own system directories as a root file system.
//!
//! A fresh directory holds what is the task's own (`/tmp`, `/run`, `/root`, `/home`, `/var`); the system directories
//! are laid over it one by one, each an overlay with a scratch layer. So nothing else of the machine can be seen: not
//! homes, not data, not the state directory. They are shown with their true owners, who are nobody inside: a task can read
//! what everybody can, and what the job's owner can. In `/etc`, whatever not everybody may read is hidden by a layer of
//! white-outs as well, since a task of root's could read it.
//!
//! One overlay of `/` would be simpler, but it shows everything, and what must not be seen would have to be listed;
//! here what is seen is listed. It would also lie over its own scratch layer.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::config::Paths;
use crate::rundir::{Mount, Overlay, TaskDir};
use crate::sys::file::{create_dir, create_dir_for};
use crate::sys::mounts;
use crate::sys::rooted::Ids;

const ETC: &str = "/etc";
/// Directories of the machine that tasks see.
const SYSTEM: [&str; 10] = ["usr", "etc", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix"];
/// The task's own directories and their modes.
const OWN: [(&str, u32); 15] = [
    ("proc", 0o755),
    ("sys", 0o755),
    ("dev", 0o755),
    ("tmp", 0o1777),
    ("run", 0o755),
    ("root", 0o700),
    ("home", 0o755),
    ("mnt", 0o755),
    ("media", 0o755),
    ("srv", 0o755),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
];
/// File systems below a system directory that hold no files of the system.
const NOT_FILES: [&str; 8] = ["proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "autofs"];

/// The host image, looked at once when the daemon starts.
#[derive(Debug)]
pub(super) struct HostImage {
    /// Where layers that hide things are kept.
    store: PathBuf,
    /// Hides what of `/etc` not everybody may read.
    hiding: Mutex<PathBuf>,
    directories: Vec<SystemDirectory>,
    /// Links of the root, such as `bin` → `usr/bin`.
    links: Vec<(&'static str, PathBuf)>,
    /// Mounts below system directories.
    mounts: Vec<PathBuf>,
}

#[derive(Debug)]
struct SystemDirectory {
    name: &'static str,
    path: PathBuf,
    /// The scratch space lies below it; an overlay over its own scratch space is better avoided.
    read_only: bool,
}

impl HostImage {
    pub(super) fn prepare(paths: &Paths) -> io::Result<Self> {
        let store = paths.host_layer();
        let hiding = Mutex::new(hiding_layer(Path::new(ETC), &store)?);
        let mut image = Self { store, hiding, directories: Vec::new(), links: Vec::new(), mounts: Vec::new() };
        for name in SYSTEM {
            let path = Path::new("/").join(name);
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => image.add(name, path, paths),
                Ok(metadata) if metadata.is_symlink() => image.links.push((name, fs::read_link(path)?)),
                _ => {}
            }
        }
        image.mounts = mounts_below(&image.directories)?;
        Ok(image)
    }

    fn add(&mut self, name: &'static str, path: PathBuf, paths: &Paths) {
        let read_only = paths.state_dir().starts_with(&path);
        self.directories.push(SystemDirectory { name, path, read_only });
    }

    /// Looks again at what of `/etc` is to be hidden: something may have come since. Takes some milliseconds.
    pub(super) fn refresh(&self) -> io::Result<()> {
        let mut hiding = self.hiding.lock().unwrap_or_else(PoisonError::into_inner);
        *hiding = hiding_layer(Path::new(ETC), &self.store)?;
        Ok(())
    }

    /// Whether tasks would see what lies at `path`.
    pub(super) fn shows(&self, path: &Path) -> bool {
        self.directories.iter().any(|directory| path.starts_with(&directory.path))
    }

    /// The layers that show the machine's accounts, with where they lie in them.
    pub(super) fn accounts(&self) -> (Vec<PathBuf>, &'static Path) {
        (vec![PathBuf::from(ETC)], Path::new(""))
    }

    fn lower(&self, directory: &SystemDirectory) -> Vec<PathBuf> {
        let hiding = self.hiding.lock().unwrap_or_else(PoisonError::into_inner);
        match directory.path == Path::new(ETC) {
            true => vec![hiding.clone(), directory.path.clone()],
            false => vec![directory.path.clone()],
        }
    }

    /// Fills `rootfs/`, owned by `root`, and adds what is to be mounted over it.
    pub(super) fn fill(
        &self,
        dir: &TaskDir,
        root: Ids,
        overlays: &mut Vec<Overlay>,
        mounts: &mut Vec<Mount>,
    ) -> io::Result<()> {
        let top = dir.rootfs();
        create_dir_for(&top, 0o755, root.uid, root.gid)?;
        for (name, mode) in OWN {
            create_dir_for(&top.join(name), mode, root.uid, root.gid)?;
        }
        for (link, target) in self
            .links
            .iter()
            .map(|(link, target)| (*link, target.as_path()))
            .chain([("var/run", Path::new("/run")), ("var/lock", Path::new("/run/lock"))])
        {
            crate::sys::file::replace_symlink(target, &top.join(link))?;
        }
        for directory in &self.directories {
            create_dir_for(&top.join(directory.name), 0o755, root.uid, root.gid)?;
            // Secrets cannot be hidden without an overlay, and nobody keeps a state directory in /etc.
            if directory.read_only && directory.path != Path::new(ETC) {
                mounts.push(read_only(&directory.path));
            } else {
                overlays.push(Overlay {
                    name: directory.name.to_owned(),
                    lower: self.lower(directory),
                    target: PathBuf::from(directory.name),
                });
            }
        }
        mounts.extend(self.mounts.iter().map(|source| read_only(source)));
        Ok(())
    }
}

fn read_only(path: &Path) -> Mount {
    Mount { source: path.to_owned(), target: path.to_owned(), read_only: true, scratch: None, is_of_machine: false }
}

fn mounts_below(directories: &[SystemDirectory]) -> io::Result<Vec<PathBuf>> {
    let is_below = |path: &Path| {
        directories.iter().any(|directory| {
            let top = Path::new("/").join(directory.name);
            path.starts_with(&top) && path != top
        })
    };
    let all = mounts::list()?;
    // What the mount shows is for those who may pass the directories above it, and never looked at from here.
    let shown: Vec<PathBuf> = all.iter().filter(|mount| is_ours(mount)).map(|mount| mount.target.clone()).collect();
    let is_shown = |path: &Path| shown.iter().any(|shown| path.starts_with(shown));
    let found = all.into_iter().filter(|mount| {
        is_below(&mount.target)
            && !is_shown(&mount.target)
            && !NOT_FILES.contains(&mount.file_system.as_str())
            && mount.target.is_dir()
    });
    Ok(found.map(|mount| mount.target).collect::<BTreeSet<_>>().into_iter().collect())
}

/// The mount of an installation of Trainyard.
fn is_ours(mount: &mounts::MountPoint) -> bool {
    mount.file_system == "fuse" && mount.source.starts_with("trainyard-")
}

/// A layer that hides what not everybody may read below `directory`; made anew when that has changed.
fn hiding_layer(directory: &Path, store: &Path) -> io::Result<PathBuf> {
    let mut hidden = Vec::new();
    collect_hidden(directory, Path::new(""), &mut hidden)?;
    // Ours as a whole, whatever of it is hidden by its own mode.
    let own = Path::new("trainyard");
    hidden.retain(|path| !path.starts_with(own));
    hidden.extend(Some(own.to_owned()).filter(|path| directory.join(path).exists()));
    hidden.sort();
    let digest = Sha256::digest(format!("{hidden:?}").as_bytes());
    let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let layer = store.join(name);
    if layer.exists() {
        return Ok(layer);
    }
    let draft = store.join(format!("draft-{}", std::process::id()));
    create_dir(&draft, 0o755)?;
    for path in &hidden {
        let target = draft.join(path);
        if let Some(parent) = target.parent() {
            copy_directories(directory, &draft, parent)?;
        }
        white_out(&target)?;
    }
    fs::rename(&draft, &layer)?;
    Ok(layer)
}

/// Overlay shows the attributes of the topmost directory: give ours those of the machine's.
fn copy_directories(from: &Path, draft: &Path, parent: &Path) -> io::Result<()> {
    let relative = parent.strip_prefix(draft).map_err(io::Error::other)?;
    let mut at = PathBuf::new();
    for part in relative.components() {
        at.push(part);
        let Ok(metadata) = fs::metadata(from.join(&at)) else { return create_dir(&draft.join(relative), 0o755) };
        create_dir_for(&draft.join(&at), metadata.mode() & 0o7777, metadata.uid(), metadata.gid())?;
    }
    Ok(())
}

fn white_out(path: &Path) -> io::Result<()> {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    match mknod(path, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0)) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn collect_hidden(directory: &Path, relative: &Path, hidden: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory.join(relative))? {
        let entry = entry?;
        let path = relative.join(entry.file_name());
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Removed in this moment, as packages do while they are installed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let open_to_all =
            if metadata.is_dir() { metadata.mode() & 0o005 == 0o005 } else { metadata.mode() & 0o004 != 0 };
        if metadata.is_symlink() {
            continue;
        }
        if !open_to_all {
            hidden.push(path);
        } else if metadata.is_dir() {
            collect_hidden(directory, &path, hidden)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_not_everybody_may_read_is_hidden_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in
            [("open", 0o644), ("shadow", 0o640), ("sub/key", 0o600), ("sub/open", 0o644), ("private/x", 0o644)]
        {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(dir.path().join("private"), fs::Permissions::from_mode(0o700)).unwrap();
        let mut hidden = Vec::new();
        collect_hidden(dir.path(), Path::new(""), &mut hidden).unwrap();
        hidden.sort();
        assert_eq!(hidden, ["private", "shadow", "sub/key"].map(PathBuf::from));
    }

    #[test]
    fn our_own_configuration_is_hidden_as_a_whole_with_secrets_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (etc, store) = (dir.path().join("etc"), dir.path().join("store"));
        fs::create_dir_all(etc.join("trainyard/secrets")).unwrap();
        fs::set_permissions(etc.join("trainyard/secrets"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(&store).unwrap();
        let Ok(layer) = hiding_layer(&etc, &store) else {
            assert!(!nix::unistd::Uid::effective().is_root(), "root makes white-outs");
            return;
        };
        let names: Vec<_> = fs::read_dir(layer).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["trainyard"]);
    }
}
