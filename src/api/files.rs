//! Job files that people take away through the daemon: as them, where the permissions of the directory let them.

use std::io;

use super::server::ApiError;
use crate::config::Paths;
use crate::ids::JobKey;
use crate::intake::sources::overrides_of;
use crate::reconcile::Caller;
use crate::sys::file::{ignore_missing, remove_tree};
use crate::sys::process::{groups_of, primary_group_of, with_file_rights};

/// Removes the file of a job and its overrides; gone is well.
pub(super) fn remove(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<(), ApiError> {
    let file = paths.job_files(&key.workspace).join(format!("{}.toml", key.job));
    let (gid, groups) = (primary_group_of(caller.uid), groups_of(caller.uid));
    let remove = || -> io::Result<()> {
        // The file first: who may not remove it keeps all of it, and without it the overrides are nobody's.
        ignore_missing(std::fs::remove_file(&file))?;
        ignore_missing(remove_tree(&overrides_of(&file)))
    };
    let removed = match caller.uid {
        0 => remove(),
        uid => with_file_rights(uid, gid, &groups, remove).and_then(|removed| removed),
    };
    removed.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ApiError::Forbidden(format!("you may not remove {}: {error}", file.display()))
        }
        _ => ApiError::Failed(format!("cannot remove {}: {error}", file.display())),
    })
}
