//! Templates over the API: read, written and taken away where they lie, with the rights of whoever asks.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::files::{self, Place, Target};
use crate::config::{JobFiles, Paths};
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::intake::sources::{OVERRIDES_SUFFIX, Reader, TEMPLATE_SUFFIX, Unread};
use crate::reconcile::Caller;

use crate::spec::template::{Param, Template};
use crate::spec::{Layer, ResourceSpecs, Stack};

/// A template: it may be broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateView {
    /// `NAME`, or `WORKSPACE/NAME`.
    pub template: String,
    pub description: String,
    pub params: Vec<ParamView>,
    /// User id.
    pub owner: u32,
    pub changed: String,
    /// What is wrong with it.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParamView {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// It must be given when absent.
    pub default: Option<String>,
    pub bounds: String,
    pub help: String,
}

/// With its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateDetail {
    #[serde(flatten)]
    pub template: TemplateView,
    pub text: String,
}

impl From<&Param> for ParamView {
    fn from(param: &Param) -> Self {
        Self {
            name: param.name.clone(),
            kind: param.kind.name().to_owned(),
            default: param.default().map(str::to_owned),
            bounds: param.bounds(),
            help: param.help.clone(),
        }
    }
}

impl TemplateDetail {
    /// None where the file is not there.
    pub fn read(path: &Path, key: &JobKey) -> Option<Self> {
        let file = fs::symlink_metadata(path).ok()?;
        let changed = u64::try_from(file.mtime() * 1000 + file.mtime_nsec() / 1_000_000).unwrap_or(0);
        let layer = Reader::Looking.layer(path).map(|(layer, _)| layer).map_err(|unread| match unread {
            Unread::Bad(found) => found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            Unread::Missing => "has gone".to_owned(),
            Unread::Unfinished => "is still being written".to_owned(),
        });
        let read = layer.as_ref().map_err(String::clone).and_then(|layer| {
            Template::read(layer).map_err(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        });
        let (description, params, error) = match read {
            Ok(template) => (template.description, template.params.iter().map(Into::into).collect(), None),
            Err(error) => (String::new(), Vec::new(), Some(error)),
        };
        let (owner, changed) = (file.uid(), Timestamp(changed).to_string());
        let template = TemplateView { template: key.to_string(), description, params, owner, changed, error };
        Some(Self { template, text: layer.map(|layer| layer.text).unwrap_or_default() })
    }
}

fn path(paths: &Paths, key: &JobKey) -> PathBuf {
    paths.job_files(&key.workspace).join(format!("{}{TEMPLATE_SUFFIX}", key.job))
}

/// Those that the caller may read, of one workspace or of all. Blocks.
pub(super) fn list(
    paths: &Paths,
    caller: &Caller,
    workspace: Option<&WorkspaceName>,
) -> Result<Vec<TemplateView>, ApiError> {
    files::as_caller(caller, || {
        let workspaces = match workspace {
            Some(workspace) => vec![workspace.clone()],
            None => workspaces(&paths.jobs_d())?,
        };
        let mut found = Vec::new();
        let is_open = |workspace: &&WorkspaceName| JobFiles::are_open(&paths.jobs_d(), workspace);
        for workspace in workspaces.iter().filter(|workspace| caller.reaches(workspace.as_str())).filter(is_open) {
            // Workspaces of others may be closed.
            let names = names(&paths.job_files(workspace)).unwrap_or_default();
            let keys = names.iter().filter_map(|name| Some(JobKey::new(workspace.clone(), name.parse().ok()?)));
            found.extend(keys.filter_map(|key| Some(TemplateDetail::read(&path(paths, &key), &key)?.template)));
        }
        Ok(found)
    })?
    .map_err(|error: io::Error| ApiError::Failed(format!("cannot list templates: {error}")))
}

pub(super) fn show(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<TemplateDetail, ApiError> {
    let is_open = JobFiles::are_open(&paths.jobs_d(), &key.workspace);
    let found = files::as_caller(caller, || TemplateDetail::read(&path(paths, key), key).filter(|_| is_open))?;
    found.ok_or_else(|| ApiError::NotFound(format!("there is no template {key} that you may read")))
}

/// Writes a template, whole, if jobs can be made of it; whether there was none before. Blocks.
pub(super) fn write(
    (paths, specs): (&Paths, &ResourceSpecs),
    caller: &Caller,
    key: &JobKey,
    text: Vec<u8>,
    place: Place,
) -> Result<bool, ApiError> {
    files::check_workspace(key)?;
    files::enter(paths, caller, key)?;
    let name = format!("{}{TEMPLATE_SUFFIX}", key.job);
    let layer = Layer::from_bytes(&name, text).map_err(|found| ApiError::InvalidTemplate(vec![found]))?;
    let text = layer.text.clone();
    let mut stack = Stack::of_template(layer);
    stack.specs = specs.of_template(&key.workspace);
    let problems = stack.problems_of_template();
    if !problems.is_empty() {
        return Err(ApiError::InvalidTemplate(problems));
    }
    let file = path(paths, key);
    files::as_caller(caller, || {
        let target = Target::of(paths, &file).map_err(|error| files::told(&file, "write", &error))?;
        files::put(caller, &target, text.as_bytes(), place, &format!("template {key}"))
    })?
}

/// Removes a template; jobs that were made of it go on. Blocks.
pub(super) fn remove(paths: &Paths, caller: &Caller, key: &JobKey) -> Result<(), ApiError> {
    let file = path(paths, key);
    files::enter(paths, caller, key)?;
    match files::as_caller(caller, || Target::of(paths, &file)?.remove())? {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ApiError::NotFound(format!("there is no template {key}")))
        }
        Err(error) => Err(files::told(&file, "remove", &error)),
    }
}

fn workspaces(jobs_d: &Path) -> io::Result<Vec<WorkspaceName>> {
    let mut found = vec![WorkspaceName::default_workspace()];
    for entry in fs::read_dir(jobs_d)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_workspace = entry.file_type()?.is_dir() && !name.ends_with(OVERRIDES_SUFFIX);
        found.extend(name.parse().ok().filter(|_| is_workspace));
    }
    found.sort();
    // A directory of this name has no files of the workspace.
    found.dedup();
    Ok(found)
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(directory)?.flatten();
    let mut names: Vec<String> =
        names.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(TEMPLATE_SUFFIX)?.to_owned())).collect();
    names.sort();
    Ok(names)
}
