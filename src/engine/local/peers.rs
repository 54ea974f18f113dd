//! The directory by which the tasks of an attempt start processes on each other: see `contract/mpi.rs`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;

use crate::contract::{Placement, callable};
use crate::engine::Launch;
use crate::sys::file::{create_dir_for, replace_symlink};

/// Makes it below the attempt's directory `objects`: for each task a directory with its inbox, and a link for each of its
/// further names. Again is no harm.
pub(super) fn make(objects: &Path, launch: &Launch, placement: &Placement) -> io::Result<PathBuf> {
    let (uid, gid) = (launch.owner.uid, launch.owner.gid);
    let peers = objects.canonicalize()?.join("peers");
    // Whoever made it before has made it whole: from then on it is the job's.
    if peers.exists() {
        return Ok(peers);
    }
    let draft = peers.with_extension("new");
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
