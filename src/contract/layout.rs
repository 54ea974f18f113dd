//! Where on each platform the run's code, datasets, output and model are seen. They are seen at Trainyard's own places
//! as well.

use std::path::{Path, PathBuf};

use super::{Task, modelarts};
use crate::ids::AssetName;
use crate::spec::{Contract, Platform, Profile};

/// Something of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Code,
    /// By the name that tasks know it by, of which there is only one.
    Dataset(AssetName),
    Output,
    /// A directory of the output.
    OutputPart(&'static str),
    Model,
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code => f.write_str("the code"),
            Self::Dataset(name) => write!(f, "dataset {name}"),
            Self::Output => f.write_str("the output"),
            Self::OutputPart(part) => write!(f, "{part}/ of the output"),
            Self::Model => f.write_str("the model"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
    /// Changes are the task's own, and go with it.
    Scratch,
}

/// Where a task sees something of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub content: Content,
    /// Absolute.
    pub path: String,
    pub access: Access,
}

fn place(content: Content, path: impl Into<String>, access: Access) -> Place {
    Place { content, path: path.into(), access }
}

/// All of a task's places, so that what lies in another comes after it.
pub(super) fn places(task: &Task<'_>) -> Vec<Place> {
    let mut out = native(task);
    for one in of_platform(task) {
        match out.iter_mut().find(|known| known.path == one.path) {
            // The platform's word counts: its scripts expect it.
            Some(known) => *known = one,
            None => out.push(one),
        }
    }
    if task.role.code.is_none() {
        out.retain(|place| place.content != Content::Code);
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

fn native(task: &Task<'_>) -> Vec<Place> {
    let mut out = vec![
        place(Content::Output, "/output", Access::ReadWrite),
        place(Content::Model, "/model", Access::ReadWrite),
        place(Content::Code, "/code", Access::ReadOnly),
    ];
    for top in ["/dataset", "/input"] {
        match task.spec.datasets.as_slice() {
            [one] => out.push(place(Content::Dataset(one.seen_as().clone()), top, Access::ReadOnly)),
            several => out.extend(channels(several, top)),
        }
    }
    out
}

/// Each dataset in a directory by the name that scripts know it by.
fn channels<'a>(datasets: &'a [crate::spec::Dataset], top: &'a str) -> impl Iterator<Item = Place> + 'a {
    datasets.iter().map(move |dataset| {
        place(Content::Dataset(dataset.seen_as().clone()), format!("{top}/{}", dataset.seen_as()), Access::ReadOnly)
    })
}

/// The only dataset at `top`, or several in it.
fn at_or_in(task: &Task<'_>, top: &str) -> Vec<Place> {
    match task.spec.datasets.as_slice() {
        [one] => vec![place(Content::Dataset(one.seen_as().clone()), top, Access::ReadOnly)],
        several => channels(several, top).collect(),
    }
}

/// Where a platform's scripts start.
pub(super) fn working_directory(task: &Task<'_>) -> Option<String> {
    let has_code = task.role.code.is_some();
    let fixed = match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker | Platform::Tione, _) => Some("/opt/ml/code"),
        (Platform::Pai, _) => Some("/ml/usercode"),
        (Platform::AzureMl, _) => Some("/code"),
        (Platform::ModelArts, _) if has_code => return Some(modelarts::code_place(task)),
        (Platform::Uai, _) => Some("/data"),
        (Platform::Kubeflow, Profile::Arena) => Some("/root"),
        (Platform::Mpi, Profile::Nauta) if has_code => Some("/app"),
        _ => None,
    };
    fixed.map(str::to_owned)
}

/// The most that a platform takes as code.
#[derive(Debug, Clone, Copy)]
pub struct CodeLimit {
    pub bytes: u64,
    /// Files and directories.
    pub entries: u64,
    /// Directories in each other.
    pub depth: u32,
}

/// What the platform itself would refuse.
pub fn code_limit(contract: Contract) -> Option<CodeLimit> {
    match contract.platform {
        Platform::OpenPai => Some(CodeLimit { bytes: 200_000_000, entries: u64::MAX, depth: u32::MAX }),
        Platform::ModelArts => Some(CodeLimit { bytes: 5 << 30, entries: 1000, depth: 32 }),
        _ => None,
    }
}

/// Whether the platform keeps `success` and `failure` in the output.
pub fn has_end_files(contract: Contract) -> bool {
    let Contract { platform, profile } = contract;
    platform == Platform::SageMaker || (platform == Platform::Tione && profile == Profile::Old)
}

/// Where in a run's directory a path of the tasks lies, if it is kept with the run.
pub fn in_run(places: &[Place], path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let holds = |place: &&Place| path.starts_with(&place.path);
    // The innermost one is what is seen.
    let place = places.iter().filter(holds).max_by_key(|place| place.path.len())?;
    let top = match place.content {
        Content::Output => PathBuf::from("output"),
        Content::OutputPart(part) => Path::new("output").join(part),
        Content::Model => PathBuf::from("model"),
        Content::Code | Content::Dataset(_) => return None,
    };
    Some(top.join(path.strip_prefix(&place.path).ok()?))
}

/// Directories that scripts write into without making them.
pub(super) fn directories(task: &Task<'_>) -> Vec<String> {
    let all: &[&str] = match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker | Platform::Tione, _) => {
            &["/opt/ml/input/data", "/opt/ml/output/data", "/opt/ml/output/intermediate"]
        }
        (Platform::Pai, _) => &["/ml/input/data", "/ml/output/checkpoints", "/ml/output/logs"],
        (Platform::Google, _) => &["/gcs/job/checkpoints", "/gcs/job/logs"],
        (Platform::ModelArts, Profile::Old) => &["/cache"],
        (Platform::ModelArts, _) => {
            &["/cache", "/home/ma-user", "/home/ma-user/modelarts", "/home/ma-user/modelarts/user-job-dir"]
        }
        (Platform::Kubeflow, Profile::Swarm | Profile::Aihc | Profile::Arena) => &["/output/training_logs"],
        (Platform::Mpi, Profile::Nauta) => &["/mnt/input/root/public"],
        _ => &[],
    };
    let named = task.spec.roles.iter().flat_map(|role| super::azureml::outputs(role, task.spec.contract.platform));
    all.iter().map(|path| (*path).to_owned()).chain(named).collect()
}

fn of_platform(task: &Task<'_>) -> Vec<Place> {
    use Access::{ReadOnly, ReadWrite, Scratch};
    let fixed: &[(Content, &str, Access)] = match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker, _) | (Platform::Tione, _) => &[
            (Content::Code, "/opt/ml/code", Scratch),
            (Content::Model, "/opt/ml/model", ReadWrite),
            (Content::Output, "/opt/ml/output", ReadWrite),
            (Content::OutputPart("checkpoints"), "/opt/ml/checkpoints", ReadWrite),
        ],
        (Platform::Pai, _) => &[
            (Content::Code, "/ml/usercode", Scratch),
            (Content::Output, "/ml/output", ReadWrite),
            (Content::Model, "/ml/output/model", ReadWrite),
        ],
        (Platform::Google, _) => &[
            (Content::Code, "/code", Scratch),
            (Content::Output, "/gcs/job", ReadWrite),
            (Content::Model, "/gcs/job/model", ReadWrite),
        ],
        (Platform::AzureMl, _) => &[
            (Content::Code, "/code", Scratch),
            (Content::OutputPart("outputs"), "/code/outputs", ReadWrite),
            (Content::OutputPart("logs"), "/code/logs", ReadWrite),
        ],
        (Platform::ModelArts, Profile::Old) => &[],
        (Platform::ModelArts, _) => &[
            (Content::Output, "/home/ma-user/modelarts/outputs/train_url_0", ReadWrite),
            (Content::OutputPart("log"), "/home/ma-user/modelarts/log", ReadWrite),
        ],
        (Platform::Uai, _) => &[(Content::Code, "/data", Scratch), (Content::Output, "/data/output", ReadWrite)],
        // What it is given, and the copy of it that the command starts in.
        (Platform::OpenPai, _) => &[(Content::Code, "/code", Scratch), (Content::Code, "/pai/code", ReadOnly)],
        (Platform::Kubeflow, Profile::Arena) => &[
            (Content::Code, "/root/code", Scratch),
            (Content::OutputPart("training_logs"), "/training_logs", ReadWrite),
        ],
        (Platform::Mpi, Profile::Nauta) => &[
            (Content::Code, "/app", Scratch),
            (Content::Output, "/mnt/output/experiment", ReadWrite),
            (Content::OutputPart("home"), "/mnt/output/home", ReadWrite),
            (Content::OutputPart("public"), "/mnt/output/root/public", ReadWrite),
        ],
        // There it is a part of the image, in which everybody may write.
        (Platform::Paddle | Platform::Volcano | Platform::Kubeflow | Platform::Mpi, _) => {
            &[(Content::Code, "/code", Scratch)]
        }
        _ => &[],
    };
    let mut out: Vec<Place> =
        fixed.iter().map(|(content, path, access)| place(content.clone(), *path, *access)).collect();
    if task.spec.contract.platform == Platform::ModelArts {
        out.push(place(Content::Code, modelarts::code_place(task), Scratch));
    }
    out.extend(datasets_of_platform(task));
    out
}

fn datasets_of_platform(task: &Task<'_>) -> Vec<Place> {
    let datasets = &task.spec.datasets;
    match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker | Platform::Tione, _) => channels(datasets, "/opt/ml/input/data").collect(),
        (Platform::Pai, _) => channels(datasets, "/ml/input/data").collect(),
        (Platform::Google, _) => channels(datasets, "/gcs").collect(),
        (Platform::ModelArts, Profile::Old) => at_or_in(task, "/home/work/data"),
        (Platform::ModelArts, _) => {
            let paths = modelarts::inputs(task).into_iter().map(|input| input.path);
            let one = |(dataset, path): (&crate::spec::Dataset, String)| {
                place(Content::Dataset(dataset.seen_as().clone()), path, Access::ReadOnly)
            };
            datasets.iter().zip(paths).map(one).collect()
        }
        (Platform::Uai, _) => at_or_in(task, "/data/data"),
        (Platform::Mpi, Profile::Nauta) => at_or_in(task, "/mnt/input/home"),
        _ => Vec::new(),
    }
}
