//! `jobs.d` as the command line sees it: job files and templates by their names, read and written as the calling user.

use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, bail};
use nix::unistd::AccessFlags;

use super::check::is_template;
use super::{NotFound, WrongArgument, no_file, output};
use crate::config::{Config, JobFiles, Paths};
use crate::ids::{JobKey, JobName, WorkspaceName};
use crate::intake::sources::{OVERRIDES_SUFFIX, Reader, TEMPLATE_SUFFIX, Unread, is_mask, overrides_of};
use crate::intake::why_unread;

use crate::spec::near::nearest;
use crate::spec::{Diagnostic, Layer, Stack};
use crate::sys::file::{Durability, Existing, write_new, write_whole};
use crate::sys::rooted::Held;

pub(super) struct Shelf {
    root: PathBuf,
    jobs_d: PathBuf,
}

/// What makes a job.
pub(super) enum Made {
    ByFile(Stack, PathBuf),
    BySweep(Stack),
}

impl Shelf {
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        Ok(Self { root: root.to_owned(), jobs_d: Paths::new(root)?.jobs_d() })
    }

    fn directory(&self, workspace: &WorkspaceName) -> PathBuf {
        JobFiles::directory(&self.jobs_d, workspace)
    }

    pub(super) fn job(&self, key: &JobKey) -> anyhow::Result<PathBuf> {
        if key.job.as_str().ends_with(".template") {
            let why = format!("{key} cannot be a job: files that end with {TEMPLATE_SUFFIX} are templates");
            return Err(WrongArgument(why).into());
        }
        Ok(self.directory(&key.workspace).join(format!("{}.toml", key.job)))
    }

    pub(super) fn template(&self, key: &JobKey) -> PathBuf {
        self.directory(&key.workspace).join(format!("{}{TEMPLATE_SUFFIX}", key.job))
    }

    /// Where the templates of a job file lie: beside it, then those for everybody.
    pub(super) fn templates_of(&self, job: &Path) -> Vec<PathBuf> {
        vec![job.parent().unwrap_or(Path::new("")).to_owned(), self.jobs_d.clone()]
    }

    /// A job file with all that it is made of.
    pub(super) fn stack(&self, path: &Path) -> anyhow::Result<Stack> {
        if is_mask(path) {
            bail!("{} is a link to /dev/null, which masks the job", path.display());
        }
        let (mut stack, _) =
            Reader::Looking.stack(path, &self.templates_of(path)).map_err(|unread| told(path, unread))?;
        self.offer(&mut stack, path)?;
        Ok(stack)
    }

    /// What is to become the job file at `path` with all that it would be made of there.
    pub(super) fn stack_on(&self, job: Layer, overrides: Vec<Layer>, path: &Path) -> anyhow::Result<Stack> {
        let mut stack = Stack::of(job);
        stack.overrides = overrides;
        let own = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        let read = Reader::Looking.lie_on_template(&mut stack, path, own, &self.templates_of(path));
        read.map_err(|unread| told(path, unread))?;
        self.offer(&mut stack, path)?;
        Ok(stack)
    }

    /// The sizes that a job file may name, where it or what it lies on may do so: the configuration may be closed to who asks.
    pub(super) fn offer(&self, stack: &mut Stack, path: &Path) -> anyhow::Result<()> {
        if stack.may_name_specs() {
            let (specs, workspace) = (Config::load(&self.root)?.specs, self.workspace_of(path));
            stack.specs = if is_template(path) { specs.of_template(&workspace) } else { specs.of(&workspace) };
        }
        Ok(())
    }

    /// Whose job files lie beside one; what lies elsewhere is like those of the default workspace.
    pub(super) fn workspace_of(&self, path: &Path) -> WorkspaceName {
        let below = self.below(path);
        let name = below.as_ref().and_then(|below| below.parent()?.to_str()?.parse().ok());
        name.unwrap_or_else(WorkspaceName::default_workspace)
    }

    /// A path as it is below `jobs.d`, if that is where it leads.
    fn below(&self, path: &Path) -> Option<PathBuf> {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = directory.canonicalize().ok()?;
        Some(directory.strip_prefix(self.jobs_d.canonicalize().ok()?).ok()?.join(path.file_name()?))
    }

    /// How the daemon would read a file: by its rules about who may write what, if it lies where it reads files.
    pub(super) fn reader(&self, path: &Path) -> Reader<'static> {
        if self.below(path).is_some() { Reader::Asking } else { Reader::Looking }
    }

    /// Why it would not read one that lies in `jobs.d`.
    pub(super) fn why_unread(&self, path: &Path) -> Option<String> {
        why_unread(&self.jobs_d, &self.jobs_d.join(self.below(path)?))
    }

    /// Why a directory in `jobs.d` is no workspace.
    pub(super) fn why_no_workspace(&self, path: &Path) -> Option<String> {
        let name = self.below(&path.canonicalize().ok()?)?.to_str()?.parse().ok()?;
        JobFiles::why_none(&self.jobs_d, &name)
    }

    /// A job by its name: its file, or that of the sweep that makes it.
    pub(super) fn stack_of(&self, key: &JobKey) -> anyhow::Result<Made> {
        let path = self.job(key)?;
        let name = key.job.as_str();
        let sweeps = if path.exists() { "" } else { name };
        for (at, _) in sweeps.match_indices('~') {
            let Ok(sweep) = name[..at].parse::<JobName>() else { continue };
            let file = self.job(&JobKey::new(key.workspace.clone(), sweep.clone()))?;
            let Ok(stack) = self.stack(&file) else { continue };
            let found = stack.combinations(&sweep).ok().flatten().unwrap_or_default();
            if let Some(one) = found.iter().find(|one| one.name == key.job) {
                return Ok(Made::BySweep(stack.with(one)));
            }
        }
        match path.exists() || path.is_symlink() {
            true => self.stack(&path).map(|stack| Made::ByFile(stack, path)),
            false => Err(self.no_job(key).into()),
        }
    }

    fn no_job(&self, key: &JobKey) -> NotFound {
        let known = jobs_in(&self.directory(&key.workspace), &key.workspace);
        let near = told_near(&key.to_string(), &known.unwrap_or_default());
        NotFound(format!("there is no job file of {key}; {near}`trainyard ps` lists the jobs"))
    }

    /// The text of a template.
    pub(super) fn read_template(&self, key: &JobKey) -> anyhow::Result<Layer> {
        let path = self.template(key);
        match Reader::Looking.layer(&path) {
            Ok((layer, _)) => Ok(layer),
            Err(Unread::Missing) => Err(self.no_template(key).into()),
            Err(unread) => Err(told(&path, unread)),
        }
    }

    fn no_template(&self, key: &JobKey) -> NotFound {
        let near = told_near(&key.to_string(), &self.list_templates().unwrap_or_default());
        NotFound(format!("there is no template {key}; {near}`trainyard template ls` lists the templates"))
    }

    /// The template that jobs of a workspace know by a name.
    pub(super) fn find_template(&self, workspace: &WorkspaceName, name: &str) -> anyhow::Result<Layer> {
        let own: JobKey = JobKey::new(workspace.clone(), name.parse()?);
        let everybody = JobKey::new(WorkspaceName::default_workspace(), name.parse()?);
        let is_own = self.template(&own).exists();
        self.read_template(if is_own { &own } else { &everybody })
    }

    /// All templates, by workspace and name.
    pub(super) fn list_templates(&self) -> anyhow::Result<Vec<JobKey>> {
        let mut found = templates_in(&self.jobs_d, &WorkspaceName::default_workspace())?;
        for entry in listed(&self.jobs_d)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let workspace = name.parse::<WorkspaceName>().ok().filter(|_| !name.ends_with(OVERRIDES_SUFFIX));
            let is_other = |workspace: &WorkspaceName| *workspace != WorkspaceName::default_workspace();
            let is_open = |workspace: &WorkspaceName| JobFiles::are_open(&self.jobs_d, workspace);
            if let Some(workspace) = workspace.filter(is_other).filter(is_open) {
                // Workspaces of others may be closed.
                found.extend(templates_in(&entry.path(), &workspace).unwrap_or_default());
            }
        }
        found.sort();
        Ok(found)
    }

    /// Writes a file of `jobs.d` that is not there yet.
    pub(super) fn put(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        let (_held, way) = self.way_to(path)?;
        put_at(path, &way, text)
    }

    /// Whether [`Self::put`], or [`Self::replace`] of what is there, would write; nothing is written.
    pub(super) fn would_write(&self, path: &Path) -> anyhow::Result<()> {
        let (_held, way) = self.way_to(path)?;
        if way.symlink_metadata().is_ok() {
            replaceable(path, &way)?;
        }
        let directory = way.parent().unwrap_or(&way);
        nix::unistd::eaccess(directory, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|errno| unwritable(path, errno.into()))
    }

    /// Writes over a file, which stays its owner's: that is whose job it is.
    pub(super) fn replace(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        let (_held, way) = self.way_to(path)?;
        replace_at(path, &way, text)
    }

    pub(super) fn remove_template(&self, key: &JobKey) -> anyhow::Result<()> {
        let path = self.template(key);
        let removed = self.way_to(&path).and_then(|(_held, way)| Ok(fs::remove_file(way)?));
        removed.with_context(|| format!("template {key} cannot be removed"))
    }

    /// Copies the overrides of one job file for another, which has none.
    pub(super) fn copy_overrides(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        let (from, to) = (overrides_of(from), overrides_of(to));
        if to.symlink_metadata().is_ok() {
            bail!("{} is there already; nothing was written: take another name", to.display());
        }
        if !from.is_dir() {
            return Ok(());
        }
        let (_held, way) = self.way_to(&to)?;
        fs::create_dir(way).map_err(|error| unwritable(&to, error))?;
        let names = crate::intake::sources::override_names(&from)?;
        names.iter().try_for_each(|name| {
            let text = fs::read_to_string(from.join(name)).with_context(|| format!("cannot read {name}"))?;
            self.put(&to.join(name), &text)
        })
    }

    /// By which a file of `jobs.d` is written: others may make links there, and whoever calls may be root.
    fn way_to(&self, path: &Path) -> anyhow::Result<(Held, PathBuf)> {
        let below = path
            .strip_prefix(&self.jobs_d)
            .with_context(|| format!("{} does not lie in {}", path.display(), self.jobs_d.display()))?;
        let directory = below.parent().unwrap_or(Path::new(""));
        // Overrides in `jobs.d` itself are in a directory of their job's owner.
        let name =
            directory.iter().next().and_then(|name| name.to_str()).filter(|name| !name.ends_with(OVERRIDES_SUFFIX));
        let workspace = name.and_then(|name| name.parse().ok());
        if let Some(why) = workspace.and_then(|workspace| JobFiles::why_none(&self.jobs_d, &workspace)) {
            bail!("cannot write {}: its directory {why}", path.display());
        }
        let held = Held::below(&self.jobs_d, directory).map_err(|error| unwritable(path, error))?;
        let way = held.path(below.file_name().unwrap_or_default());
        Ok((held, way))
    }
}

fn listed(directory: &Path) -> anyhow::Result<fs::ReadDir> {
    fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))
}

fn templates_in(directory: &Path, workspace: &WorkspaceName) -> anyhow::Result<Vec<JobKey>> {
    keys_in(directory, workspace, TEMPLATE_SUFFIX)
}

fn jobs_in(directory: &Path, workspace: &WorkspaceName) -> anyhow::Result<Vec<JobKey>> {
    let mut jobs = keys_in(directory, workspace, ".toml")?;
    jobs.retain(|key| !key.job.as_str().ends_with(".template"));
    Ok(jobs)
}

/// By the names of files that end so.
fn keys_in(directory: &Path, workspace: &WorkspaceName, ending: &str) -> anyhow::Result<Vec<JobKey>> {
    let key = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.strip_suffix(ending)?.parse().ok()?;
        Some(JobKey::new(workspace.clone(), name))
    };
    Ok(listed(directory)?.flatten().filter_map(key).collect())
}

/// The name that may be meant, where one is near.
fn told_near(name: &str, known: &[JobKey]) -> String {
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    let near = nearest(name, known.iter().map(String::as_str));
    near.map(|near| format!("did you mean {near}? ")).unwrap_or_default()
}

fn told(path: &Path, unread: Unread) -> anyhow::Error {
    match unread {
        Unread::Missing => NotFound(no_file(path)).into(),
        Unread::Unfinished => anyhow::anyhow!("{} is still being written; try again when that is done", path.display()),
        Unread::Bad(found) => anyhow::anyhow!(lines(&found)),
    }
}

pub(super) fn lines(found: &[Diagnostic]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

pub(super) fn tell(found: &[Diagnostic]) {
    output::error(&lines(found));
}

/// Writes a file that is not there yet.
pub(super) fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    put_at(path, path, text)
}

/// The same by another way to it.
fn put_at(path: &Path, way: &Path, text: &str) -> anyhow::Result<()> {
    match write_new(way, text.as_bytes(), 0o644, Durability::Process).map_err(|error| unwritable(path, error))? {
        Existing::None => Ok(()),
        Existing::Kept => bail!("{} is there already; nothing was written: take another name", path.display()),
    }
}

fn replace_at(path: &Path, way: &Path, text: &str) -> anyhow::Result<()> {
    let there = replaceable(path, way)?;
    write_whole(way, text.as_bytes(), there.mode() & 0o777, Durability::Process)
        .map_err(|error| unwritable(path, error))?;
    if fs::symlink_metadata(way).map_err(|error| unwritable(path, error))?.gid() != there.gid() {
        let told = || format!("{} was written, but has not the group {} that it had", path.display(), there.gid());
        lchown(way, None, Some(there.gid())).with_context(told)?;
    }
    Ok(())
}

/// What is written over: a file of who calls.
fn replaceable(path: &Path, way: &Path) -> anyhow::Result<fs::Metadata> {
    let there = fs::symlink_metadata(way).map_err(|error| unwritable(path, error))?;
    if !there.is_file() {
        bail!("{} is a link or no file; nothing was written", path.display());
    }
    if there.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{} belongs to user {}, whose job it is; nothing was written", path.display(), there.uid());
    }
    Ok(there)
}

/// With what to do about it, where that is known.
fn unwritable(path: &Path, error: io::Error) -> anyhow::Error {
    let directory = path.parent().unwrap_or(path);
    let advice = match error.kind() {
        _ if !directory.is_dir() => "; its workspace has no directory in jobs.d".to_owned(),
        io::ErrorKind::PermissionDenied => format!("; the permissions of {} say who may", directory.display()),
        _ => String::new(),
    };
    anyhow::Error::new(error).context(format!("cannot write {}{advice}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_job_file_or_template_is_written_or_removed_through_a_link_in_the_place_of_a_workspace() {
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(root.path()).unwrap();
        let victim = root.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::create_dir_all(shelf.jobs_d.join("own")).unwrap();
        std::os::unix::fs::symlink(&victim, shelf.jobs_d.join("planted")).unwrap();
        fs::write(victim.join("there.template.toml"), "kept").unwrap();
        let key = |text: &str| text.parse::<JobKey>().unwrap();
        for path in [shelf.template(&key("planted/new")), shelf.job(&key("planted/new")).unwrap()] {
            assert!(format!("{:#}", shelf.put(&path, "x").unwrap_err()).contains("a link lies on the way"));
            assert!(shelf.replace(&path, "x").is_err());
            assert!(format!("{:#}", shelf.would_write(&path).unwrap_err()).contains("a link lies on the way"));
        }
        assert!(shelf.remove_template(&key("planted/there")).is_err());
        let (own, planted) = (shelf.job(&key("own/a")).unwrap(), shelf.job(&key("planted/a")).unwrap());
        fs::create_dir(overrides_of(&own)).unwrap();
        assert!(shelf.copy_overrides(&own, &planted).is_err());
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
        for key in ["own/a", "b"].map(key) {
            let path = shelf.job(&key).unwrap();
            shelf.would_write(&path).unwrap();
            assert!(!path.exists());
            shelf.put(&path, "x").unwrap();
            shelf.would_write(&path).unwrap();
            shelf.replace(&path, "y").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "y");
        }
        let link = shelf.job(&key("link")).unwrap();
        std::os::unix::fs::symlink(shelf.job(&key("b")).unwrap(), &link).unwrap();
        for path in [link, shelf.job(&key("nowhere/a")).unwrap()] {
            let said = shelf.would_write(&path).unwrap_err().to_string();
            assert!(said.contains("is a link or no file") || said.contains("has no directory in jobs.d"), "{said}");
        }
    }
}
