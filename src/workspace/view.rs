//! The mount's rules, and the merged `log` of each task. Answers the fs crate's trait.
//!
//! `datasets/` and `code/` are the users' to change; `jobs/` and `models/` only tell. Below `jobs/` what begins with
//! a dot is the daemon's own business and is not shown.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trainyard_fs::{Content, ContentMetadata, RelPath, Rule, Tree};

use crate::logs::LogReader;

/// Name of the merged log in a task's directory.
const MERGED_LOG: &str = "log";
/// For what changes through the mount only.
const ATTR_TTL: Duration = Duration::from_secs(1);

/// The tree below `workspaces/`.
#[derive(Debug)]
pub struct WorkspaceTree {
    backing: PathBuf,
}

impl WorkspaceTree {
    pub fn new(backing: &Path) -> Self {
        Self { backing: backing.to_owned() }
    }
}

/// Which part of a workspace a path lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The root, a workspace, or one of its parts itself.
    Above,
    Datasets,
    Code,
    Models,
    Jobs,
    Other,
}

fn part_of(path: &RelPath) -> Part {
    let mut names = path.components().skip(1);
    let part = names.next();
    if names.next().is_none() {
        return Part::Above;
    }
    match part.and_then(|part| part.to_str()) {
        Some("datasets") => Part::Datasets,
        Some("code") => Part::Code,
        Some("models") => Part::Models,
        Some("jobs") => Part::Jobs,
        _ => Part::Other,
    }
}

/// `WS/jobs/JOB/runs/N/attempts/K/TASK`.
fn is_task_directory(path: &RelPath) -> bool {
    let names: Vec<_> = path.components().collect();
    matches!(names.as_slice(), [_, jobs, _, runs, _, attempts, _, _]
        if *jobs == "jobs" && *runs == "runs" && *attempts == "attempts")
}

impl Tree for WorkspaceTree {
    fn rule(&self, path: &RelPath) -> Rule {
        match part_of(path) {
            Part::Datasets | Part::Code => Rule::ReadWrite,
            Part::Jobs if is_internal(path) => Rule::Hidden,
            Part::Above | Part::Models | Part::Jobs => Rule::ReadOnly,
            Part::Other => Rule::Hidden,
        }
    }

    fn generated(&self, dir: &RelPath) -> Vec<OsString> {
        let has_log = is_task_directory(dir) && LogReader::open(&self.backing.join(dir.as_path())).is_ok();
        if has_log { vec![MERGED_LOG.into()] } else { Vec::new() }
    }

    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        let is_log = path.name().is_some_and(|name| name == MERGED_LOG);
        let Some(dir) = path.parent().filter(|dir| is_log && is_task_directory(dir)) else { return Ok(None) };
        match LogReader::open(&self.backing.join(dir.as_path())) {
            Ok(reader) => Ok(Some(Box::new(MergedLog(reader)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn attr_ttl(&self, path: &RelPath) -> Duration {
        // Jobs, and what appears in models, change behind the mount.
        match part_of(path) {
            Part::Datasets | Part::Code => ATTR_TTL,
            _ => Duration::ZERO,
        }
    }
}

/// The daemon's own files: dot files of a job's directory, but not those of its code or output.
fn is_internal(path: &RelPath) -> bool {
    let names: Vec<_> = path.components().collect();
    let users_own = matches!(names.get(5), Some(name) if *name == "code" || *name == "output" || *name == "model");
    !users_own && names.iter().any(|name| name.as_encoded_bytes().starts_with(b"."))
}

struct MergedLog(LogReader);

impl Content for MergedLog {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        let directory = std::fs::metadata(self.0.dir())?;
        let modified = self.0.modified()?.map(|time| UNIX_EPOCH + Duration::from_millis(time.0));
        Ok(ContentMetadata {
            size: self.0.len()?,
            mtime: modified.unwrap_or(SystemTime::UNIX_EPOCH),
            uid: directory.uid(),
            gid: directory.gid(),
            mode: 0o640,
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_change_code_and_datasets_and_nothing_else() {
        let tree = WorkspaceTree::new(Path::new("/nowhere"));
        let rule = |path: &str| tree.rule(&RelPath::new(path).unwrap());
        for path in
            ["", "ws", "ws/code", "ws/jobs", "ws/jobs/j/status", "ws/models/j/1/x", "new", "ws/jobs/j/runs/1/output/.x"]
        {
            assert_eq!(rule(path), Rule::ReadOnly, "{path}");
        }
        for path in ["ws/code/x", "ws/datasets/a/b", "ws/code/.git"] {
            assert_eq!(rule(path), Rule::ReadWrite, "{path}");
        }
        for path in ["ws/jobs/j/.status.1.tmp", "ws/jobs/j/runs/1/attempts/1/main-0/.log.index", "ws/other/x"] {
            assert_eq!(rule(path), Rule::Hidden, "{path}");
        }
    }
}
