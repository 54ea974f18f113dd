//! Whose subordinate ids are whose after a restore: `OWNER:FIRST:COUNT` lines of the backup and of this machine, put together.
//!
//! Files bear these ids, so that what has been given to a user stays given. Where both differ, the backup's line counts if nothing on
//! this machine bears the ids of the other one; else nothing is restored, and it is told which files they are.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::BackupError;
use super::left::entries;
use crate::config::Paths;
use crate::sys::file::optional;
use crate::sys::walk::walk_what_can_be;

/// Below the state's directory what is made anew or swept by the next start, whoever it belongs to.
const MADE_ANEW: [&str; 3] = ["images", "attempts", ".restore"];

/// How much is told of a path that may be as deep as somebody likes.
const PARTS_TOLD: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    owner: u32,
    ids: (u32, u32),
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':').map(|part| part.parse().ok());
        let (owner, first, count) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(Self { owner, ids: (first, count) })
    }

    fn range(&self) -> Range<u64> {
        let first = u64::from(self.ids.0);
        first..first + u64::from(self.ids.1)
    }

    /// Whether not both of them can count: ids of two users, or two ranges of one.
    fn conflicts(&self, other: &Self) -> bool {
        let overlap = self.range().start < other.range().end && other.range().start < self.range().end;
        self != other && (self.owner == other.owner || overlap)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.owner, self.ids.0, self.ids.1)
    }
}

/// Lines of both.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) text: String,
    /// What of this machine's has made way, for people.
    pub(super) gone: Vec<String>,
}

pub(super) fn merge(paths: &Paths, backup: &str, here: &str) -> Result<Merged, BackupError> {
    let lines = |text: &str| text.lines().filter_map(Line::parse).collect::<BTreeSet<_>>();
    let (backup, mut here) = (lines(backup), lines(here));
    let mut gone = Vec::new();
    for own in here.clone() {
        let Some(other) = backup.iter().find(|line| line.conflicts(&own)) else { continue };
        let state = paths.state_dir();
        let found = bearer(&state, &own.range()).map_err(super::failed("look whose files are in", &state))?;
        if let Some(bearer) = found {
            return Err(BackupError::Subordinates {
                file: paths.subordinate_ids(),
                line: own.to_string(),
                other: other.to_string(),
                bearer,
            });
        }
        gone.push(format!(
            "{own} of {} has made way for {other}: nothing here bears its ids",
            paths.subordinate_ids().display()
        ));
        here.remove(&own);
    }
    let text = backup.union(&here).map(|line| format!("{line}\n")).collect();
    Ok(Merged { text, gone })
}

/// Something that belongs to one of these ids.
fn bearer(state: &Path, ids: &Range<u64>) -> io::Result<Option<PathBuf>> {
    let bears = |uid: u32, gid: u32| ids.contains(&u64::from(uid)) || ids.contains(&u64::from(gid));
    for place in entries(state)? {
        let is_made_anew = MADE_ANEW.iter().any(|name| place.file_name() == Some(OsStr::new(name)));
        // Followed where it is a link, as to a larger disk: the directory is root's. One that leads nowhere holds nothing.
        if is_made_anew || !optional(place.metadata())?.is_some_and(|status| status.is_dir()) {
            continue;
        }
        let (mut found, mut broken) = (None, None);
        let walked = walk_what_can_be(
            &File::open(&place)?,
            &mut |item| {
                if !bears(item.status.st_uid, item.status.st_gid) {
                    return Ok(());
                }
                found = Some(place.join(item.path));
                // One is enough.
                Err(io::ErrorKind::Interrupted.into())
            },
            &mut |path, error| {
                // The deepest one comes first.
                broken.get_or_insert_with(|| place.join(path));
                Err(error)
            },
        );
        match found {
            Some(found) => return Ok(Some(found)),
            None => walked.map_err(|error| unseen(broken.as_deref().unwrap_or(&place), &error))?,
        }
    }
    Ok(None)
}

/// Whose it is that lies there is not known.
fn unseen(path: &Path, error: &io::Error) -> io::Error {
    let near: PathBuf = path.components().take(PARTS_TOLD).collect();
    let below = if near == path { "" } else { "something below " };
    let told = format!(
        "{below}{}: {error}; move it out of the way, or restore into another --root, and restore again",
        near.display()
    );
    io::Error::new(error.kind(), told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn ids_that_were_given_to_users_stay_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path()).unwrap();
        let merged = |backup: &str, here: &str| merge(&paths, backup, here);
        let both = merged("1000:70:5\n1001:75:5\n", "1000:70:5\n1002:80:5\n").unwrap();
        assert_eq!(both, Merged { text: "1000:70:5\n1001:75:5\n1002:80:5\n".to_owned(), gone: Vec::new() });
        // Another user was the first here, and has left nothing that bears the ids.
        fs::create_dir_all(paths.workspaces().join("lab/jobs")).unwrap();
        for (backup, here) in [("1000:70:5", "1001:70:5"), ("1000:70:5", "1000:75:5"), ("1000:70:5", "1001:72:5")] {
            let told = merged(backup, here).unwrap();
            assert_eq!((told.text.as_str(), told.gone.len()), (format!("{backup}\n").as_str(), 1));
            assert!(told.gone[0].starts_with(here), "{told:?}");
        }
    }

    #[test]
    fn a_line_whose_ids_files_bear_is_refused_with_line_file_and_what_to_do() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path()).unwrap();
        let file = paths.workspaces().join("lab/jobs/j/runs/1/output/o");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(1_879_048_199), None).unwrap();
        let error = merge(&paths, "1000:1879048192:65536\n", "1001:1879048192:65536\n").unwrap_err().to_string();
        for part in ["1001:1879048192:65536", "1000:1879048192:65536", "subordinate-ids", "output/o", "chown"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // Only of the group, and of the last id.
        std::os::unix::fs::chown(&file, Some(0), Some(1_879_048_192 + 65_535)).unwrap();
        merge(&paths, "1000:1879048192:65536\n", "1001:1879048192:65536\n").unwrap_err();
        // Also on another disk.
        let disk = dir.path().join("disk");
        fs::rename(paths.workspaces(), &disk).unwrap();
        std::os::unix::fs::symlink(&disk, paths.workspaces()).unwrap();
        merge(&paths, "1000:1879048192:65536\n", "1001:1879048192:65536\n").unwrap_err();
        std::os::unix::fs::chown(&file, Some(0), Some(1_879_048_192 + 65_536)).unwrap();
        merge(&paths, "1000:1879048192:65536\n", "1001:1879048192:65536\n").unwrap();
    }

    #[test]
    fn what_is_too_deep_to_be_looked_at_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path()).unwrap();
        let output = paths.workspaces().join("lab/jobs/j/runs/1/output");
        fs::create_dir_all(output.join("d/".repeat(300))).unwrap();
        let error = merge(&paths, "1000:70:5\n", "1001:70:5\n").unwrap_err();
        let told = std::error::Error::source(&error).unwrap().to_string();
        for part in ["something below", output.join("d").to_str().unwrap(), "256 directories", "restore again"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(told.len() < 600, "{told}");
    }
}
