//! Copies of layers with other owners, for file systems and kernels that cannot show a layer so (id-mapped mounts).
//!
//! ```text
//! images/shifted/KEY/HEX/fs      layer HEX as the user namespace KEY has it
//! ```
//! Each is made once, whole or not at all, and goes with the next pruning in which no task has it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::digest::Digest;
use crate::sys::file::{create_dir, remove_tree, sync_file_system};
use crate::sys::idmap::{IdMap, IdRange, outside};
use crate::sys::process::run_tool;

/// Whom an id belongs to that the namespace does not have: nobody, as id-mapped mounts show it.
const NOBODY: u32 = 65_534;
/// The attribute that a change of owner takes away.
const CAPABILITY: &str = "security.capability";

#[derive(Debug)]
pub(super) struct Shifted {
    root: PathBuf,
    drafts: PathBuf,
    /// One copy at a time: it is the disk that is waited for.
    making: Mutex<u64>,
}

impl Shifted {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.join("shifted"), drafts: root.join("drafts"), making: Mutex::new(0) }
    }

    /// The files of `layer`, which lie at `files`, with the owners that `ids` gives them.
    pub(super) fn copy(&self, files: &Path, layer: &str, ids: &IdMap) -> io::Result<PathBuf> {
        let key = Digest::of(format!("{ids:?}").as_bytes());
        let target = self.root.join(key.short()).join(layer);
        let mut number = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if target.exists() {
            return Ok(target.join("fs"));
        }
        *number += 1;
        let draft = self.drafts.join(format!("shifted-{number}"));
        let copied = fill(files, &draft, ids).and_then(|()| {
            create_dir(target.parent().unwrap_or(&self.root), 0o700)?;
            fs::rename(&draft, &target)
        });
        if copied.is_err() {
            // The reason counts, not that its remains stay until the next start.
            let _ = remove_tree(&draft);
        }
        copied.map(|()| target.join("fs"))
    }

    /// Takes copies that are not `needed` out of sight; where they are now, to be removed. A crash leaves no half of one where
    /// it would be taken for whole.
    pub(super) fn bury(&self, needed: &dyn Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
        let mut graves = Vec::new();
        let Some(keys) = crate::sys::file::optional(fs::read_dir(&self.root))? else { return Ok(graves) };
        let mut number = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            for layer in fs::read_dir(key?.path())? {
                let path = layer?.path();
                if !needed(&path) {
                    *number += 1;
                    let grave = self.drafts.join(format!("dead-copy-{number}"));
                    fs::rename(&path, &grave)?;
                    graves.push(grave);
                }
            }
        }
        Ok(graves)
    }
}

fn fill(files: &Path, draft: &Path, ids: &IdMap) -> io::Result<()> {
    create_dir(draft, 0o700)?;
    let (from, to) = (files.display().to_string(), draft.join("fs"));
    // Hard links, holes, devices and attributes: all that `cp` has learned.
    let output = run_tool("cp", &["-a", "--reflink=auto", "--", &from, &to.display().to_string()], "")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // It speaks the daemon's language, which is none.
        let is_full = ["No space left on device", "Disk quota exceeded"].iter().any(|words| said.contains(words));
        let kind = if is_full { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
        return Err(io::Error::new(kind, said));
    }
    shift(&to, ids, &mut BTreeSet::new())?;
    sync_file_system(draft)
}

/// Gives a tree its new owners. It is ours alone, so paths in it lead nowhere else. `met` are files that have several
/// names, by inode.
fn shift(path: &Path, ids: &IdMap, met: &mut BTreeSet<u64>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            shift(&entry?.path(), ids, met)?;
        }
    } else if metadata.nlink() > 1 && !met.insert(metadata.ino()) {
        return Ok(());
    }
    let new = |ranges: &[IdRange], id| outside(ranges, id).unwrap_or(NOBODY);
    let (uid, gid) = (new(&ids.users, metadata.uid()), new(&ids.groups, metadata.gid()));
    let capability = read_attribute(path)?;
    lchown(path, Some(uid), Some(gid))?;
    if metadata.is_symlink() {
        return Ok(());
    }
    // A change of owner clears both.
    fs::set_permissions(path, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    match capability {
        Some(value) => Ok(rustix::fs::lsetxattr(path, CAPABILITY, &value, rustix::fs::XattrFlags::empty())?),
        None => Ok(()),
    }
}

fn read_attribute(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 256];
    match rustix::fs::lgetxattr(path, CAPABILITY, &mut value) {
        Ok(count) => {
            value.truncate(count);
            Ok(Some(value))
        }
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_other_owners_and_all_else_as_it_was() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("layer");
        fs::create_dir_all(files.join("sub")).unwrap();
        for (name, uid, mode) in [("a", 0, 0o4755), ("sub/b", 33, 0o640), ("c", 70_000, 0o600)] {
            fs::write(files.join(name), name).unwrap();
            lchown(files.join(name), Some(uid), Some(uid)).unwrap();
            fs::set_permissions(files.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::hard_link(files.join("sub/b"), files.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", files.join("symlink")).unwrap();
        let range = |inside, outside, count| IdRange { inside, outside, count };
        let ranges = vec![range(0, 1000, 1), range(1, 500_000, 65_535)];
        let ids = IdMap { users: ranges.clone(), groups: ranges };
        create_dir(&dir.path().join("drafts"), 0o700).unwrap();
        let shifted = Shifted::new(dir.path());
        let copy = shifted.copy(&files, "layer", &ids).unwrap();
        assert_eq!(shifted.copy(&files, "layer", &ids).unwrap(), copy, "made once");
        let of = |name: &str| {
            let metadata = fs::symlink_metadata(copy.join(name)).unwrap();
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777, metadata.nlink())
        };
        assert_eq!(of("a"), (1000, 1000, 0o4755, 1));
        assert_eq!((of("sub/b"), of("link")), ((500_032, 500_032, 0o640, 2), (500_032, 500_032, 0o640, 2)));
        assert_eq!(of("c"), (NOBODY, NOBODY, 0o600, 1));
        assert_eq!(of("symlink").0, 1000);
        assert_ne!(fs::metadata("/etc/passwd").unwrap().uid(), 1000, "a link is not followed");
        assert_eq!(shifted.bury(&|path| path.join("fs") == copy).unwrap(), Vec::<PathBuf>::new());
        assert!(copy.exists());
        assert_eq!(shifted.bury(&|_| false).unwrap().len(), 1);
        assert!(!copy.exists());
    }
}
