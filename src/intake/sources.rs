//! The files that make up a job: its own, the overrides beside it, and the template that they name.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ids::JobName;
use crate::spec::layers::OVERRIDES_MAX;
use crate::spec::{Diagnostic, JOB_FILE_MAX_BYTES, Layer, Stack};
use crate::store::record::Owner;
use crate::sys::file::{is_being_written, optional, read_limited};

/// The end of a template's file name.
pub const TEMPLATE_SUFFIX: &str = ".template.toml";
/// The end of the name of a job's directory of overrides, which begins as the job file's.
pub const OVERRIDES_SUFFIX: &str = ".toml.d";

/// How files are read.
#[derive(Debug, Clone, Copy)]
pub enum Reader<'a> {
    /// As the daemon does: with the rules about who may write what, and nothing that is still being written.
    Watching { jobs_d: &'a Path },
    /// As people do, to see what is in them.
    Looking,
}

/// Why there is no job in files.
#[derive(Debug)]
pub enum Unread {
    /// There is no job file.
    Missing,
    /// One of the files is still being written.
    Unfinished,
    Bad(Vec<Diagnostic>),
}

impl Reader<'_> {
    /// Reads the job file `path`, its overrides and its template, which is looked for in `templates`, in this order.
    pub fn stack(self, path: &Path, templates: &[PathBuf]) -> Result<(Stack, Owner), Unread> {
        let (job, owner) = self.layer(path, None)?;
        Ok((self.stack_on(job, path, owner, templates)?, owner))
    }

    /// The same for what is to become the file at `path`.
    pub fn stack_on(self, job: Layer, path: &Path, owner: Owner, templates: &[PathBuf]) -> Result<Stack, Unread> {
        let mut stack = Stack::of(job);
        stack.overrides = self.overrides(&overrides_of(path), owner)?;
        self.add_template(&mut stack, templates, Some(owner))?;
        Ok(stack)
    }

    /// Puts the template that they name below a job file and its overrides, as people see it.
    pub fn lie_on_template(self, stack: &mut Stack, templates: &[PathBuf]) -> Result<(), Unread> {
        self.add_template(stack, templates, None)
    }

    fn add_template(self, stack: &mut Stack, templates: &[PathBuf], owner: Option<Owner>) -> Result<(), Unread> {
        if let Some(wanted) = stack.wanted().and_then(|name| name.parse::<JobName>().ok()) {
            stack.template = self.template(&wanted, templates, owner)?;
            if stack.template.is_none() {
                stack.templates = templates.iter().flat_map(|directory| template_names(directory)).collect();
            }
        }
        Ok(())
    }

    fn template(self, name: &JobName, directories: &[PathBuf], owner: Option<Owner>) -> Result<Option<Layer>, Unread> {
        for directory in directories {
            match self.layer(&directory.join(format!("{name}{TEMPLATE_SUFFIX}")), owner) {
                Err(Unread::Missing) => {}
                other => return other.map(|(layer, _)| Some(layer)),
            }
        }
        Ok(None)
    }

    fn overrides(self, directory: &Path, owner: Owner) -> Result<Vec<Layer>, Unread> {
        let label = self.label(directory);
        let bad = |message: String| Unread::Bad(vec![Diagnostic::of_file(&label, message)]);
        let metadata = match optional(fs::symlink_metadata(directory)) {
            Ok(None) => return Ok(Vec::new()),
            Ok(Some(metadata)) if metadata.is_dir() => metadata,
            Ok(Some(_)) => return Err(bad("is not a directory of overrides; move it away".to_owned())),
            Err(error) => return Err(bad(format!("cannot be examined: {error}"))),
        };
        if let Some(problem) = self.wrong_rights(directory, &metadata, Some(owner)) {
            return Err(bad(problem));
        }
        let names = override_names(directory).map_err(|error| bad(format!("cannot be listed: {error}")))?;
        if names.len() > OVERRIDES_MAX {
            return Err(bad(format!("holds {} overrides; a job has at most {OVERRIDES_MAX}", names.len())));
        }
        let mut layers = Vec::new();
        for name in names {
            match self.layer(&directory.join(name), Some(owner)) {
                // Removed in this moment.
                Err(Unread::Missing) => {}
                other => layers.push(other?.0),
            }
        }
        Ok(layers)
    }

    /// One file. An override belongs to the owner of its job, or to root.
    pub fn layer(self, path: &Path, job: Option<Owner>) -> Result<(Layer, Owner), Unread> {
        let file = self.label(path);
        let bad = |message: String| Unread::Bad(vec![Diagnostic::of_file(&file, message)]);
        if matches!(self, Reader::Watching { .. }) && is_being_written(path) {
            return Err(Unread::Unfinished);
        }
        let (opened, bytes) = match read_limited(path, JOB_FILE_MAX_BYTES) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unread::Missing),
            Err(error) => return Err(bad(unreadable(path, &error))),
        };
        let metadata = opened.metadata().map_err(|error| bad(format!("cannot be examined: {error}")))?;
        if let Some(problem) = self.wrong_rights(path, &metadata, job) {
            return Err(bad(problem));
        }
        let layer = Layer::from_bytes(&file, bytes).map_err(|diagnostic| Unread::Bad(vec![diagnostic]))?;
        Ok((layer, Owner { uid: metadata.uid(), gid: metadata.gid() }))
    }

    fn label(self, path: &Path) -> String {
        let shown = match self {
            Reader::Watching { jobs_d } => path.strip_prefix(jobs_d).unwrap_or(path),
            Reader::Looking => path,
        };
        shown.display().to_string()
    }

    /// The owner is who the job runs as, so nobody else may be able to change what it is made of.
    fn wrong_rights(self, path: &Path, metadata: &fs::Metadata, job: Option<Owner>) -> Option<String> {
        const OTHERS_WRITE: u32 = 0o002;
        const GROUP_WRITE: u32 = 0o020;
        let Reader::Watching { jobs_d } = self else { return None };
        let mode = metadata.mode() & 0o7777;
        if job.is_some_and(|owner| metadata.uid() != owner.uid && metadata.uid() != 0) {
            return Some("belongs neither to the owner of the job file nor to root; `chown` it".to_owned());
        }
        if mode & OTHERS_WRITE != 0 {
            return Some(format!(
                "everybody may write it (mode {mode:o}), so anybody could run jobs as its owner; `chmod o-w` it"
            ));
        }
        let workspace = workspace_of(path, jobs_d).and_then(|workspace| fs::metadata(workspace).ok());
        let group_is_workspace = workspace.is_some_and(|workspace| workspace.gid() == metadata.gid());
        // A group of one's own, as most systems give each user, is nobody else.
        if mode & GROUP_WRITE != 0 && !group_is_workspace && metadata.gid() != metadata.uid() {
            return Some(format!("its group may write it (mode {mode:o}) and is not the workspace's; `chmod g-w` it"));
        }
        None
    }
}

/// The directory of the workspace that a path below `jobs_d` belongs to, unless it is `jobs_d` itself.
fn workspace_of(path: &Path, jobs_d: &Path) -> Option<PathBuf> {
    let parts: Vec<_> = path.strip_prefix(jobs_d).ok()?.components().collect();
    let first = jobs_d.join(parts.first()?);
    (parts.len() > 1 && !first.to_string_lossy().ends_with(OVERRIDES_SUFFIX)).then_some(first)
}

/// A link to `/dev/null` masks a job, as systemd's units are masked.
pub fn is_mask(job: &Path) -> bool {
    fs::read_link(job).is_ok_and(|target| target == Path::new("/dev/null"))
}

/// The directory of overrides of a job file.
pub fn overrides_of(job: &Path) -> PathBuf {
    let mut name = job.as_os_str().to_owned();
    name.push(".d");
    PathBuf::from(name)
}

/// Those that a directory has; none where it cannot be listed.
fn template_names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    names.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(TEMPLATE_SUFFIX)?.to_owned())).collect()
}

/// In the order in which they lie on top of each other.
pub fn override_names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !super::is_ignored(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
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
