//! From a path below `jobs.d` to what came of it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Arrival;
use crate::ids::{JobKey, JobName, NameError, WorkspaceName};
use crate::spec::{self, Diagnostic, JOB_FILE_MAX_BYTES, JobSpec};
use crate::store::record::{Owner, SourceRecord};
use crate::sys::file::read_limited;

/// What editors and packagers leave beside the files that count.
const IGNORED_SUFFIXES: [&str; 12] =
    [".swp", ".swx", ".bak", ".old", ".new", ".tmp", ".orig", ".rej", ".rpmnew", ".rpmsave", ".rpmorig", "~"];
const IGNORED_PARTS: [&str; 2] = [".dpkg-", ".ucf-"];

/// Whether a name is not a job file's, so that nobody need be told of it.
pub fn is_ignored(name: &str) -> bool {
    let ignored = name.starts_with('.')
        || name.starts_with('#')
        || IGNORED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || IGNORED_PARTS.iter().any(|part| name.contains(part));
    ignored || !name.ends_with(".toml")
}

/// Reads the job file at `path`, below `root`. `None` when it is none of ours to read.
pub fn read_path(root: &Path, path: &Path) -> Option<Arrival> {
    let relative = path.strip_prefix(root).ok()?;
    let file = relative.display().to_string();
    let name = path.file_name()?.to_string_lossy().into_owned();
    if is_ignored(&name) {
        return None;
    }
    let key = match key_of(relative) {
        Ok(key) => key?,
        Err(error) => return Some(stray(path, file, &error)),
    };
    if is_mask(path) {
        return Some(Arrival::Removed { key });
    }
    match read(root, path, &file) {
        Ok(Some((source, spec))) => Some(Arrival::Accepted { key, source, spec: Box::new(spec) }),
        Ok(None) => Some(Arrival::Removed { key }),
        Err(diagnostics) => Some(Arrival::Refused { key, diagnostics }),
    }
}

fn stray(path: &Path, file: String, error: &NameError) -> Arrival {
    let gone = fs::symlink_metadata(path).is_err();
    let message = format!("the file's name cannot name a job: {error}; rename it");
    let diagnostics = if gone { Vec::new() } else { vec![Diagnostic::of_file(&file, message)] };
    Arrival::Stray { file, diagnostics }
}

/// `NAME.toml` or `WORKSPACE/NAME.toml`; deeper ones are not job files.
fn key_of(relative: &Path) -> Result<Option<JobKey>, NameError> {
    let parts: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let (workspace, file) = match parts.as_slice() {
        [file] => (WorkspaceName::default_workspace(), file),
        [workspace, file] => (workspace.parse()?, file),
        _ => return Ok(None),
    };
    let job: JobName = file.strip_suffix(".toml").unwrap_or(file).parse()?;
    Ok(Some(JobKey::new(workspace, job)))
}

/// A link to `/dev/null` masks a job, as systemd's units are masked.
fn is_mask(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

type Read = Option<(SourceRecord, JobSpec)>;

/// `None` when there is no file.
fn read(root: &Path, path: &Path, file: &str) -> Result<Read, Vec<Diagnostic>> {
    let refuse = |message: String| vec![Diagnostic::of_file(file, message)];
    let (opened, bytes) = match read_limited(path, JOB_FILE_MAX_BYTES) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(unreadable(path, &error))),
    };
    let metadata = opened.metadata().map_err(|error| refuse(format!("cannot be examined: {error}")))?;
    if let Some(problem) = wrong_rights(root, path, &metadata) {
        return Err(refuse(problem));
    }
    let (spec, diagnostics) = spec::parse_bytes(file, &bytes);
    match spec {
        Some(spec) => {
            let source = SourceRecord {
                text: String::from_utf8_lossy(&bytes).into_owned(),
                meaning: spec.meaning(),
                owner: Owner { uid: metadata.uid(), gid: metadata.gid() },
                warnings: diagnostics,
            };
            Ok(Some((source, spec)))
        }
        None => Err(diagnostics),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    match error.kind() {
        _ if is_dir => "is a directory, not a job file; rename it or move it away".to_owned(),
        _ if fs::read_link(path).is_ok() => {
            "is a symbolic link; put the file itself here, or link to /dev/null to mask the job".to_owned()
        }
        io::ErrorKind::FileTooLarge => format!("is {error}, too large for a job file"),
        _ => format!("cannot be read: {error}"),
    }
}

/// The owner is who the job runs as, so nobody else may be able to change the file.
fn wrong_rights(root: &Path, path: &Path, metadata: &fs::Metadata) -> Option<String> {
    const OTHERS_WRITE: u32 = 0o002;
    const GROUP_WRITE: u32 = 0o020;
    let mode = metadata.mode() & 0o7777;
    let workspace = path.parent().filter(|parent| *parent != root).and_then(|parent| fs::metadata(parent).ok());
    let group_is_workspace = workspace.is_some_and(|parent| parent.gid() == metadata.gid());
    if mode & OTHERS_WRITE != 0 {
        return Some(format!(
            "everybody may write it (mode {mode:o}), so anybody could run jobs as its owner; `chmod o-w` it"
        ));
    }
    // A group of one's own, as most systems give each user, is nobody else.
    if mode & GROUP_WRITE != 0 && !group_is_workspace && metadata.gid() != metadata.uid() {
        return Some(format!("its group may write it (mode {mode:o}) and is not the workspace's; `chmod g-w` it"));
    }
    None
}

/// All job files there are now.
#[derive(Debug, Default)]
pub struct Scan {
    pub paths: Vec<PathBuf>,
    /// Jobs whose file is there, whatever its content.
    pub keys: BTreeSet<JobKey>,
}

impl Scan {
    /// Lists `root` and the workspaces in it.
    pub fn of(root: &Path) -> io::Result<Self> {
        let mut scan = Self::default();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_workspace = entry.file_type()?.is_dir() && !name.starts_with('.') && !name.ends_with(".toml");
            match is_workspace.then(|| fs::read_dir(entry.path())) {
                Some(Ok(entries)) => entries.flatten().for_each(|entry| scan.add(root, entry.path())),
                // Removed in this moment.
                Some(Err(_)) => {}
                None => scan.add(root, entry.path()),
            }
        }
        Ok(scan)
    }

    fn add(&mut self, root: &Path, path: PathBuf) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if is_ignored(&name) {
            return;
        }
        if let Ok(Some(key)) = key_of(path.strip_prefix(root).unwrap_or(&path)) {
            self.keys.insert(key);
        }
        self.paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn refusal(arrival: Option<Arrival>) -> String {
        match arrival {
            Some(Arrival::Refused { diagnostics, .. } | Arrival::Stray { diagnostics, .. }) => {
                diagnostics[0].to_string()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_editors_and_packagers_leave_is_ignored() {
        let names = [
            ".a.toml",
            "#a.toml#",
            "a.toml~",
            "a.toml.swp",
            "a.toml.dpkg-new",
            "a.toml.rpmsave",
            "a.txt",
            "a.toml.bak",
        ];
        for name in names {
            assert!(is_ignored(name), "{name}");
        }
        assert!(!is_ignored("a.toml"));
    }

    #[test]
    fn each_kind_of_bad_file_is_refused_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let put = |name: &str, content: &[u8]| {
            fs::write(root.join(name), content).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o644)).unwrap();
            root.join(name)
        };
        let cases = [
            (put("large.toml", &vec![b'x'; 1 << 20]), "too large"),
            (put("binary.toml", &[0xff; 64]), "not UTF-8"),
            (put("a b.toml", b""), "cannot name a job"),
            (put(&format!("{}.toml", "x".repeat(65)), b""), "at most 64"),
            (put("by-state.toml", b""), "kept for Trainyard"),
        ];
        for (path, word) in cases {
            let text = refusal(read_path(root, &path));
            assert!(text.contains(word), "{text}");
        }
        fs::create_dir(root.join("x.toml")).unwrap();
        assert!(refusal(read_path(root, &root.join("x.toml"))).contains("directory"));
        std::os::unix::fs::symlink("large.toml", root.join("link.toml")).unwrap();
        assert!(refusal(read_path(root, &root.join("link.toml"))).contains("symbolic link"));
        let open = put("open.toml", b"");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(refusal(read_path(root, &open)).contains("everybody may write"));
    }

    #[test]
    fn a_link_to_dev_null_masks_and_a_missing_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let key: JobKey = "m".parse().unwrap();
        let path = dir.path().join("m.toml");
        assert_eq!(read_path(dir.path(), &path), Some(Arrival::Removed { key: key.clone() }));
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(read_path(dir.path(), &path), Some(Arrival::Removed { key }));
    }
}
