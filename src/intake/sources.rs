//! The files that make up a job: its own, the overrides beside it, and the template that they name.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ids::JobName;
use crate::spec::layers::OVERRIDES_MAX;
use crate::spec::{Diagnostic, JOB_FILE_MAX_BYTES, Layer, OWNER_ALONE, Severity, Stack};
use crate::store::record::Owner;
use crate::sys::file::{is_being_written, optional, read_limited};
use crate::sys::process::{is_group_of_one, name_of};

/// The end of a template's file name.
pub const TEMPLATE_SUFFIX: &str = ".template.toml";
/// The end of the name of a job's directory of overrides, which begins as the job file's.
pub const OVERRIDES_SUFFIX: &str = ".toml.d";

/// How files are read.
#[derive(Debug, Clone, Copy)]
pub enum Reader<'a> {
    /// As the daemon does: with the rules about who may write what, and nothing that is still being written.
    Watching { jobs_d: &'a Path },
    /// By the same rules, for who asks what the daemon would say of a file that lies in `jobs.d`.
    Asking,
    /// As people do, to see what is in them.
    Looking,
}

/// Of a directory in which each file is its owner's to remove.
const STICKY: u32 = 0o1000;

/// The job that a file is part of.
#[derive(Debug, Clone, Copy)]
struct Of<'a> {
    owner: Owner,
    /// Where its job file lies.
    directory: &'a Path,
}

impl Of<'_> {
    fn is_strangers(self, uid: u32) -> bool {
        uid != self.owner.uid && uid != 0
    }
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
        let (job, owner) = self.layer(path)?;
        Ok((self.stack_on(job, path, owner, templates)?, owner))
    }

    /// The same for what is to become the file at `path`.
    pub fn stack_on(self, job: Layer, path: &Path, owner: Owner, templates: &[PathBuf]) -> Result<Stack, Unread> {
        let mut stack = Stack::of(job);
        let of = Of { owner, directory: directory_of(path) };
        let (overrides, passed_over) = self.overrides(&overrides_of(path), of)?;
        (stack.overrides, stack.passed_over) = (overrides, passed_over);
        self.add_template(&mut stack, templates, of)?;
        Ok(stack)
    }

    /// Puts the template that they name below what is to become the job file at `path`, of that user, and its overrides.
    pub fn lie_on_template(
        self,
        stack: &mut Stack,
        path: &Path,
        (uid, gid): (u32, u32),
        templates: &[PathBuf],
    ) -> Result<(), Unread> {
        self.add_template(stack, templates, Of { owner: Owner { uid, gid }, directory: directory_of(path) })
    }

    fn add_template(self, stack: &mut Stack, templates: &[PathBuf], of: Of<'_>) -> Result<(), Unread> {
        if let Some(wanted) = stack.wanted().and_then(|name| name.parse::<JobName>().ok()) {
            stack.template = self.template(&wanted, templates, of, &mut stack.passed_over)?;
            if stack.template.is_none() {
                let names = templates.iter().flat_map(|directory| template_names(directory));
                // One of this name was passed over.
                stack.templates = names.filter(|name| name != wanted.as_str()).collect();
            }
        }
        Ok(())
    }

    fn template(
        self,
        name: &JobName,
        directories: &[PathBuf],
        of: Of<'_>,
        passed_over: &mut Vec<Diagnostic>,
    ) -> Result<Option<Layer>, Unread> {
        for directory in directories {
            let path = directory.join(format!("{name}{TEMPLATE_SUFFIX}"));
            if let Some(told) = self.passes_over(&path, directory, of) {
                // The two directories are one in the default workspace.
                passed_over.retain(|known| *known != told);
                passed_over.push(told);
                continue;
            }
            match self.part(&path, Some(of)) {
                Err(Unread::Missing) => {}
                other => return other.map(|(layer, _)| Some(layer)),
            }
        }
        Ok(None)
    }

    /// What somebody else has put beside the files of a job in a directory that keeps its owner from taking it away: it must not stop
    /// the job for good. Elsewhere it is refused, so that its owner takes it away.
    fn passes_over(self, path: &Path, directory: &Path, of: Of<'_>) -> Option<Diagnostic> {
        let found = fs::symlink_metadata(path).ok().filter(|found| of.is_strangers(found.uid()))?;
        let is_kept = fs::metadata(shown(directory)).is_ok_and(|directory| directory.mode() & STICKY != 0);
        let message = format!(
            "belongs to {}, and neither to the owner of the job file nor to root: it is passed over; they or root can remove it",
            name_of(found.uid())
        );
        is_kept.then(|| Diagnostic { severity: Severity::Warning, ..Diagnostic::of_file(&self.label(path), message) })
    }

    /// With what is passed over of them.
    fn overrides(self, directory: &Path, of: Of<'_>) -> Result<(Vec<Layer>, Vec<Diagnostic>), Unread> {
        if let Some(told) = self.passes_over(directory, of.directory, of) {
            return Ok((Vec::new(), vec![told]));
        }
        let label = self.label(directory);
        let bad = |message: String| Unread::Bad(vec![Diagnostic::of_file(&label, message)]);
        let metadata = match optional(fs::symlink_metadata(directory)) {
            Ok(None) => return Ok((Vec::new(), Vec::new())),
            Ok(Some(metadata)) if metadata.is_dir() => metadata,
            Ok(Some(_)) => return Err(bad("is not a directory of overrides; move it away".to_owned())),
            Err(error) => return Err(bad(format!("cannot be examined: {error}"))),
        };
        if let Some(problem) = self.wrong_rights(directory, &metadata, Some(of)) {
            return Err(bad(problem));
        }
        let names = override_names(directory).map_err(|error| bad(format!("cannot be listed: {error}")))?;
        let passed = |name: &String| self.passes_over(&directory.join(name), of.directory, of).ok_or(name.clone());
        let (passed_over, names): (Vec<_>, Vec<_>) = names.iter().map(passed).partition(Result::is_ok);
        let names: Vec<String> = names.into_iter().filter_map(Result::err).collect();
        if names.len() > OVERRIDES_MAX {
            return Err(bad(format!("holds {} overrides; a job has at most {OVERRIDES_MAX}", names.len())));
        }
        let mut layers = Vec::new();
        for name in names {
            match self.part(&directory.join(name), Some(of)) {
                // Removed in this moment.
                Err(Unread::Missing) => {}
                other => layers.push(other?.0),
            }
        }
        let reached_by = read_by(&metadata, of.owner, SEARCH);
        layers.iter_mut().for_each(|layer| layer.read_by &= reached_by);
        Ok((layers, passed_over.into_iter().flatten().collect()))
    }

    /// One file by itself.
    pub fn layer(self, path: &Path) -> Result<(Layer, Owner), Unread> {
        self.part(path, None)
    }

    /// An override or a template belongs to the owner of the job that it is part of, or to root.
    fn part(self, path: &Path, job: Option<Of<'_>>) -> Result<(Layer, Owner), Unread> {
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
        let owner = Owner { uid: metadata.uid(), gid: metadata.gid() };
        let mut layer = Layer::from_bytes(&file, bytes).map_err(|diagnostic| Unread::Bad(vec![diagnostic]))?;
        layer.read_by = read_by(&metadata, job.map_or(owner, |of| of.owner), READ);
        Ok((layer, owner))
    }

    fn label(self, path: &Path) -> String {
        let shown = match self {
            Reader::Watching { jobs_d } => path.strip_prefix(jobs_d).unwrap_or(path),
            Reader::Asking | Reader::Looking => path,
        };
        shown.display().to_string()
    }

    /// The owner is who the job runs as, so nobody else may be able to change what it is made of.
    fn wrong_rights(self, path: &Path, metadata: &fs::Metadata, job: Option<Of<'_>>) -> Option<String> {
        const OTHERS_WRITE: u32 = 0o002;
        const GROUP_WRITE: u32 = 0o020;
        if matches!(self, Reader::Looking) {
            return None;
        }
        let mode = metadata.mode() & 0o7777;
        if job.is_some_and(|of| of.is_strangers(metadata.uid())) {
            return Some("belongs neither to the owner of the job file nor to root; `chown` it".to_owned());
        }
        if mode & OTHERS_WRITE != 0 {
            return Some(format!(
                "everybody may write it (mode {mode:o}), so anybody could run jobs as its owner; `chmod o-w` it"
            ));
        }
        // Of a template for all that of the job's workspace counts: others are not to run as its members.
        let directory = job.map_or_else(|| directory_of(path), |of| of.directory);
        // Where each file is its owner's, its members are not to write in those of others.
        let is_shared = |workspace: &fs::Metadata| workspace.gid() == metadata.gid() && workspace.mode() & STICKY == 0;
        let is_workspace_s = fs::metadata(shown(directory)).is_ok_and(|workspace| is_shared(&workspace));
        if mode & GROUP_WRITE != 0 && !is_workspace_s && !is_group_of_one(metadata.uid(), metadata.gid()) {
            return Some(format!(
                "its group may write it (mode {mode:o}), so everybody in that could run jobs as its owner; `chmod g-w` it"
            ));
        }
        None
    }
}

/// Bits of a mode, those of all others.
const READ: u32 = 0o004;
const SEARCH: u32 = 0o001;

/// Whom a file or a directory lets do what `bit` says, as who may read a file of the job's owner and of its group.
fn read_by(metadata: &fs::Metadata, owner: Owner, bit: u32) -> u32 {
    let others = metadata.mode() & bit != 0;
    let group = if metadata.gid() == owner.gid { metadata.mode() & (bit << 3) != 0 } else { others };
    OWNER_ALONE | if group { 0o040 } else { 0 } | if others { 0o004 } else { 0 }
}

/// Where a job file or a template lies.
fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// A directory that is named by nothing is the one that one is in.
fn shown(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() { Path::new(".") } else { directory }
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
