//! Places of the machine that a job asks to see: looked at with the rights of its owner, who sees no more by a job than
//! without one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::Paths;
use crate::engine::{EngineError, Prepare};
use crate::rundir::Mount;
use crate::spec::HostMount;
use crate::sys::mounts;
use crate::sys::process::with_file_rights;

use super::workdirs::groups_of;

/// What the shim is to show, and where. `below` are the only places of which anything may be shown; all when absent.
pub(super) fn mounts(run: &Prepare, paths: &Paths, below: Option<&[PathBuf]>) -> Result<Vec<Mount>, EngineError> {
    if run.spec.mounts.is_empty() {
        return Ok(Vec::new());
    }
    let served = served_places(paths).map_err(super::failed("list what is mounted"))?;
    let groups = groups_of(run.owner).map_err(super::failed("take the owner's rights"))?;
    // A place in the mount is not looked at: that waits for whoever serves it.
    let find = |source: &Path| match source.starts_with(paths.mount_point()) {
        true => Ok(source.to_owned()),
        false => find(source),
    };
    let found = with_file_rights(run.owner.uid, run.owner.gid, &groups, || {
        run.spec.mounts.iter().map(|mount| (mount, find(&mount.source))).collect::<Vec<_>>()
    });
    let found = found.map_err(super::failed("look at the mounts with the owner's rights"))?;
    let shown = |(mount, source): (&HostMount, io::Result<PathBuf>)| {
        let told = |why: String| EngineError(format!("mounts: {}: {why}", mount.source.display()));
        let is_ours = |ours: &Path| {
            told(format!(
                "{} is Trainyard's own, and shown neither by itself nor with what holds it; jobs see workspaces by `code` and \
                 `datasets`",
                ours.display()
            ))
        };
        let source = source.map_err(|error| told(why_not(&error)))?;
        if let Some(ours) = own_places(paths).iter().find(|ours| overlap(&source, ours)) {
            return Err(is_ours(ours));
        }
        if let Some(ours) = served.iter().find(|ours| source.starts_with(ours) || ours.starts_with(&source)) {
            return Err(is_ours(ours));
        }
        match below {
            Some(below) if !below.iter().any(|place| source.starts_with(place)) => {
                let places: Vec<String> = below.iter().map(|place| place.display().to_string()).collect();
                Err(told(format!(
                    "this machine shows only what lies below {}; its administrator can change that ([mounts] below in trainyard.toml)",
                    if places.is_empty() { "nothing at all".to_owned() } else { places.join(", ") }
                )))
            }
            _ => Ok(Mount {
                source,
                target: mount.target.clone(),
                read_only: mount.read_only,
                scratch: None,
                is_of_machine: true,
            }),
        }
    };
    found.into_iter().map(shown).collect()
}

/// What no job sees of the machine, whoever owns it: by the daemon's socket and by job files it could act as its owner, and
/// by what lies behind the mount change what is published.
fn own_places(paths: &Paths) -> [PathBuf; 3] {
    [paths.run_dir(), paths.state_dir(), paths.jobs_d()].map(|place| place.canonicalize().unwrap_or(place))
}

/// Where the mount is, and what of it is mounted elsewhere. A task that saw it would be at the mercy of the process that serves it,
/// and of a version nobody would know that it is used.
fn served_places(paths: &Paths) -> io::Result<Vec<PathBuf>> {
    let source = paths.mount_source();
    let mounted = mounts::list()?.into_iter().filter(|mount| mount.source == source).map(|mount| mount.target);
    Ok([paths.mount_point()].into_iter().chain(mounted).collect())
}

/// Whether one lies in the other or is the other, also by another name of the same directory: a bind mount of it.
fn overlap(source: &Path, ours: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let holds = |outer: &Path, inner: &Path| {
        inner.starts_with(outer)
            || id(outer).is_some_and(|outer| inner.ancestors().any(|place| id(place) == Some(outer)))
    };
    holds(ours, source) || holds(source, ours)
}

/// Where the path leads, as far as whoever asks may go there.
fn find(path: &Path) -> io::Result<PathBuf> {
    let real = fs::canonicalize(path)?;
    let kind = fs::metadata(&real)?.file_type();
    let is_kernel_s = ["/proc", "/sys", "/dev"].iter().any(|place| real.starts_with(place));
    if is_kernel_s || real == Path::new("/") {
        return Err(io::Error::other(format!("it leads to {}, which cannot be shown", real.display())));
    }
    if !kind.is_dir() && !kind.is_file() {
        return Err(io::Error::other("it is neither a directory nor a file"));
    }
    Ok(real)
}

fn why_not(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such place on this machine".to_owned(),
        io::ErrorKind::PermissionDenied => "the job's owner may not go there".to_owned(),
        _ => error.to_string(),
    }
}
