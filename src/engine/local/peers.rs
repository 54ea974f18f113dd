//! The directory by which the tasks of an attempt start processes on each other: see `contract/mpi.rs`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;

use crate::contract::{Placement, callable};
use crate::engine::Launch;
use crate::sys::file::{create_dir, create_dir_for, replace_symlink};
use crate::sys::mounts;

/// Bytes that what is sent between tasks may take at once: commands, not their output.
const SIZE: u64 = 16 << 20;

/// Makes it below the attempt's directory `objects`: for each task a directory with its inbox, and a link for each of its
/// further names. Again is no harm.
pub(super) fn make(objects: &Path, launch: &Launch, placement: &Placement) -> io::Result<PathBuf> {
    let (uid, gid) = (launch.owner.uid, launch.owner.gid);
    let place = objects.canonicalize()?.join("peers");
    // A file system of its own: the job may write there, and must not fill the machine's /run.
    if !mounts::is_mounted(&place)? {
        create_dir(&place, 0o700)?;
        mounts::mount_shm(&place, SIZE)?;
    }
    let peers = place.join("tasks");
    // Whoever made it before has made it whole: from then on it is the job's.
    if peers.exists() {
        return Ok(peers);
    }
    let draft = place.join("new");
    crate::sys::file::remove_tree(&draft)?;
    create_dir_for(&draft, 0o700, uid, gid)?;
    for (task, names) in callable(&launch.spec, &launch.identity, placement) {
        let own = draft.join(&task);
        create_dir_for(&own, 0o700, uid, gid)?;
        let inbox = own.join("inbox");
        nix::unistd::mkfifo(&inbox, Mode::S_IRUSR | Mode::S_IWUSR)?;
        std::os::unix::fs::chown(&inbox, Some(uid), Some(gid))?;
        for name in names.iter().filter(|name| !name.is_empty() && !name.contains('/')) {
            replace_symlink(Path::new(&task), &draft.join(name))?;
        }
    }
    fs::rename(&draft, &peers)?;
    Ok(peers)
}
