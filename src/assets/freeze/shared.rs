//! What the version before has already is not stored again: a file of the new one becomes another name of it.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::fstatat;
use nix::unistd::linkat;

use super::{Replaced, Version};
use crate::assets::manifest::{Before, Entry, Kind, hash_of};
use crate::assets::{OWN, manifest_of};
use crate::sys::file::have_same_user_attributes;
use crate::sys::pause;
use crate::sys::walk::{self, Item};

/// The version before.
pub(super) struct Shared {
    version: String,
    tree: PathBuf,
    manifest: Before<BufReader<File>>,
    shelf: File,
    /// Something of it is not what its manifest says, and that has been told.
    is_damaged: bool,
}

/// Whether people's own attributes (labels, where from) are those of the item as well; not where that cannot be seen.
fn has_the_same_attributes(theirs: &File, item: &Item<'_>) -> bool {
    let own = walk::open(item.directory, item.name, OFlag::empty());
    own.and_then(|own| have_same_user_attributes(theirs, &own)).unwrap_or(false)
}

impl Shared {
    pub(super) fn open(this: &Version<'_>, before: &str) -> io::Result<Self> {
        let manifest = this.shelf.file(&this.dataset.join(manifest_of(before.as_ref())))?;
        let tree = this.dataset.join(before);
        let (shelf, manifest) = (this.shelf.directory(&tree)?, Before::new(BufReader::new(manifest))?);
        Ok(Self { version: before.to_owned(), tree, manifest, shelf, is_damaged: false })
    }

    /// The item is that version's own file.
    pub(super) fn is_the_same(&self, item: &Item<'_>) -> bool {
        let theirs = fstatat(&self.shelf, item.path, AtFlags::AT_SYMLINK_NOFOLLOW);
        theirs.is_ok_and(|theirs| (theirs.st_dev, theirs.st_ino) == (item.status.st_dev, item.status.st_ino))
    }

    /// Gives the item that version's file, if it is the same and has the same rights.
    pub(super) fn share(&mut self, this: &Version<'_>, item: &Item<'_>, entry: &Entry) -> io::Result<()> {
        let Kind::File { size: 1.., .. } = entry.kind else { return Ok(()) };
        if !self.manifest.had(entry)? {
            return Ok(());
        }
        let Ok(theirs) = this.shelf.file(&self.tree.join(item.path)) else { return Ok(()) };
        let (theirs_is, own) = (theirs.metadata()?, &item.status);
        let is_alike = theirs_is.is_file()
            && (theirs_is.uid(), theirs_is.gid(), theirs_is.mode()) == (own.st_uid, own.st_gid, own.st_mode)
            && theirs_is.ino() != own.st_ino;
        if !is_alike || !has_the_same_attributes(&theirs, item) || !self.is_whole(this, &theirs, entry) {
            return Ok(());
        }
        let aside = format!("{OWN}{}.link", this.version);
        let path = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        match linkat(nix::fcntl::AT_FDCWD, path.as_str(), this.directory, aside.as_str(), AtFlags::AT_SYMLINK_FOLLOW) {
            Ok(()) => {}
            // Its count of names is used up, or the file system has no links: it stays a file of its own.
            Err(_) => return Ok(()),
        }
        this.replace(item, &aside)?;
        // It has one name more.
        (this.replaced)(&self.tree.join(item.path), Replaced::Now);
        Ok(())
    }

    /// Whether the file is still what both manifests say: a disk, or somebody past the mount, may have damaged it since, and the
    /// new version is how that is put right.
    fn is_whole(&mut self, this: &Version<'_>, theirs: &File, entry: &Entry) -> bool {
        let Kind::File { size, hash } = entry.kind else { return false };
        let read = theirs.try_clone().and_then(|file| hash_of(file, &mut |_| pause::point()));
        if matches!(read, Ok(read) if read == (size, hash)) {
            return true;
        }
        if !std::mem::replace(&mut self.is_damaged, true) {
            let (dataset, version) = (this.dataset.display(), self.version.as_str());
            tracing::warn!(
                %dataset, version, path = %entry.path.display(), error = ?read.err(), by = this.version,
                "a file of a published version is damaged, so the version after it keeps its own; \
                 `trainyard dataset verify` names all that is"
            );
        }
        false
    }
}
