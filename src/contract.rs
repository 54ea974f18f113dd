//! What a container sees: its command line, environment, host name and hosts file. Pure functions of the job and
//! its placement; one file a platform whose names a task gets.

pub mod advice;
mod azureml;
pub mod catalogue;
pub mod command;
mod frameworks;
mod google;
pub mod gpus;
mod host;
mod kubeflow;
pub mod layout;
mod modelarts;
pub mod mpi;
mod naming;
pub mod native;
mod openpai;
mod paddle;
pub mod pai;
mod parameters;
pub mod requirements;
mod sagemaker;
mod servers;
mod shell;
pub mod shells;
pub mod shown;
mod tione;
mod topology;
mod uai;
mod volcano;

use std::collections::HashMap;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

pub use layout::{Access, Content, Place};
pub(crate) use naming::hash as hash_of_name;
pub use parameters::with_equals;
pub use shells::Unspeakable;

use crate::ids::JobKey;
use crate::spec::strategy::AGENT;
use crate::spec::{Command, Framework, JobSpec, Platform, Port, Profile, Role};

/// Who and what a task belongs to.
#[derive(Debug, Clone)]
pub struct Identity {
    pub key: JobKey,
    pub run: u32,
    pub attempt: u32,
    /// Login name of the job's owner.
    pub user: String,
    pub uid: u32,
}

/// Where the tasks of an attempt are, by ordinal; chosen once for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub tasks: Vec<TaskPlace>,
    /// Their ports are the machine's own.
    #[serde(default)]
    pub on_machine: bool,
    /// By which the network that all of them share is reached from elsewhere; where each has its own, its own.
    #[serde(default)]
    pub shared_address: Option<Ipv4Addr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlace {
    pub address: Ipv4Addr,
    /// Port numbers by label, in the order of the job file.
    pub ports: Vec<(String, Vec<u16>)>,
    /// Ports of the machine through which they are reached from elsewhere, where that is so; in the same order.
    #[serde(default)]
    pub published: Vec<(String, Vec<u16>)>,
    /// Processor cores that it has for itself.
    #[serde(default)]
    pub cores: Vec<u32>,
    /// Where it has none: those that are near to its cards, and others' as well.
    #[serde(default)]
    pub near: Vec<u32>,
}

impl TaskPlace {
    /// Processor cores that it is kept to; any when empty.
    pub fn kept_to(&self) -> &[u32] {
        if self.cores.is_empty() { &self.near } else { &self.cores }
    }
}

/// What the image brings to a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inside {
    pub env: Vec<(String, String)>,
    /// Run when the job names no command.
    pub command: Vec<String>,
    pub working_directory: Option<String>,
    /// Of the user that the task runs as.
    pub home: String,
    /// The path of its bash, if it has one.
    pub bash: Option<String>,
}

/// One task among its peers.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    pub spec: &'a JobSpec,
    pub identity: &'a Identity,
    pub placement: &'a Placement,
    pub inside: &'a Inside,
    pub unspeakable: &'a Unspeakable,
    pub role: &'a Role,
    pub index: u32,
    pub ordinal: u32,
    /// How often it was started again by itself in this attempt.
    pub again: u32,
}

impl<'a> Task<'a> {
    /// The tasks of an attempt in order.
    pub fn all(
        spec: &'a JobSpec,
        identity: &'a Identity,
        placement: &'a Placement,
        inside: &'a Inside,
        unspeakable: &'a Unspeakable,
    ) -> Vec<Self> {
        let tasks = spec.tasks().zip(0..);
        let task = |((role, index), ordinal): ((&'a Role, u32), u32)| Self {
            spec,
            identity,
            placement,
            inside,
            unspeakable,
            role,
            index,
            ordinal,
            again: 0,
        };
        tasks.map(task).collect()
    }

    /// All tasks of its attempt, with itself.
    pub fn attempt(&self) -> Vec<Self> {
        Self::all(self.spec, self.identity, self.placement, self.inside, self.unspeakable)
    }

    /// Those that are no services.
    fn peers(&self) -> Vec<Self> {
        self.attempt().into_iter().filter(|task| !task.role.is_service).collect()
    }

    /// Its role leads the others by its name.
    fn leads(&self) -> bool {
        ["launcher", "chief", "master"].contains(&self.role.name.as_str().to_lowercase().as_str())
    }

    /// It only waits to be told to start something.
    fn is_idle(&self) -> bool {
        matches!(&self.role.command, Command::Exec(words) if words == &[AGENT])
    }

    /// Where this task is.
    pub fn place(&self) -> Option<&'a TaskPlace> {
        self.placement.tasks.get(self.ordinal as usize)
    }

    /// Places of one role's tasks, by index.
    fn places_of(&self, role: &Role) -> Vec<&'a TaskPlace> {
        let places = self.spec.tasks().zip(&self.placement.tasks);
        places.filter(|((other, _), _)| other.name == role.name).map(|(_, place)| place).collect()
    }
}

/// A job as it would be placed, for showing what its tasks see before they run.
#[derive(Debug, Clone)]
pub struct Sample {
    identity: Identity,
    placement: Placement,
    inside: Inside,
    unspeakable: Unspeakable,
}

impl Sample {
    /// `file` is the job's name or that of its file: a directory below `jobs.d` is its workspace's.
    pub fn of(file: &str, spec: &JobSpec) -> Self {
        let stem = file.strip_suffix(".toml");
        let mut parts = stem.unwrap_or(file).rsplit('/');
        let name = match (parts.next(), parts.next(), parts.next(), stem) {
            (Some(job), Some(workspace), Some("jobs.d"), _) | (Some(job), Some(workspace), None, None) => {
                format!("{workspace}/{job}")
            }
            (job, ..) => job.unwrap_or(file).to_owned(),
        };
        let key = name.parse().or_else(|_| "job".parse::<JobKey>()).expect("a plain word is a name");
        let mut next = SAMPLE_PORT;
        let place = |(role, number): (&Role, u8)| TaskPlace {
            address: Ipv4Addr::new(10, 0, 0, number),
            ports: sample_ports(role, &mut next),
            published: Vec::new(),
            cores: Vec::new(),
            near: Vec::new(),
        };
        let tasks = spec.tasks().zip((1..=254).cycle()).map(|((role, _), number)| (role, number)).map(place).collect();
        let identity = Identity { key, run: 1, attempt: 1, user: "you".into(), uid: 1000 };
        let placement = Placement { tasks, on_machine: false, shared_address: None };
        let inside = Inside { home: "/root".to_owned(), bash: Some(BASH.to_owned()), ..Inside::default() };
        let unspeakable = Unspeakable::of(spec, &identity, &placement);
        Self { identity, placement, inside, unspeakable }
    }

    pub fn tasks<'a>(&'a self, spec: &'a JobSpec) -> impl Iterator<Item = Task<'a>> {
        Task::all(spec, &self.identity, &self.placement, &self.inside, &self.unspeakable).into_iter()
    }
}

/// Most images have it there; which have none is seen at the start.
const BASH: &str = "/bin/bash";

/// The first that tasks of a sample are allotted.
const SAMPLE_PORT: u16 = 20_000;

/// What the file names, and others in a row from `next` on.
fn sample_ports(role: &Role, next: &mut u16) -> Vec<(String, Vec<u16>)> {
    let mut of = |port: &Port| {
        let first = port.begin.unwrap_or(*next);
        let end = first.saturating_add(port.count);
        if port.begin.is_none() {
            *next = end;
        }
        (port.label.clone(), (first..end).collect())
    };
    role.ports.iter().map(&mut of).collect()
}

/// What is given to the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_directory: String,
    pub host_name: String,
    /// Content of `/etc/hosts`.
    pub hosts: String,
    /// Files that the platform puts where its scripts look for them.
    pub files: Vec<SeenFile>,
    pub places: Vec<Place>,
    /// Directories that are there though nothing of the run is in them.
    pub directories: Vec<String>,
}

/// A text file in a task's own root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenFile {
    pub path: String,
    pub content: String,
    pub kind: FileKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Data,
    Program,
}

impl SeenFile {
    fn new(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self { path: path.into(), content: content.into(), kind: FileKind::Data }
    }

    fn program(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self { kind: FileKind::Program, ..Self::new(path, content) }
    }
}

/// Every task with all names by which a peer may call it.
pub fn callable(spec: &JobSpec, identity: &Identity, placement: &Placement) -> Vec<(String, Vec<String>)> {
    let (inside, unspeakable) = (Inside::default(), Unspeakable::default());
    let tasks = Task::all(spec, identity, placement, &inside, &unspeakable);
    let own = |task: &Task<'_>| {
        let name = format!("{}-{}", task.role.name, task.index);
        let others = host::names(task).into_iter().chain([native::host_name(task), host::address(task).to_string()]);
        (name.clone(), others.filter(|other| *other != name).collect())
    };
    tasks.iter().map(own).collect()
}

/// The view of one task. Later entries win: the user's own variables come last.
pub fn view(task: &Task<'_>) -> View {
    let mut env = Environment::default();
    env.extend(native::base(task));
    env.extend(task.inside.env.iter().cloned());
    env.extend(told(task));
    if task.spec.is_launched() {
        env.prepend("PATH", mpi::SSH_PLACE);
    }
    View {
        args: command::line(task),
        env: env.entries,
        working_directory: native::working_directory(task),
        host_name: native::host_name(task),
        hosts: native::hosts(task),
        files: files(task),
        places: layout::places(task),
        directories: layout::directories(task),
    }
}

/// Variables by which a task is told of its job; the user's own come last.
fn told(task: &Task<'_>) -> Vec<(String, String)> {
    let mut out = Vec::new();
    // Where no other platform's names could be meant: some of them mean other things elsewhere.
    let platform = task.spec.contract.platform;
    if matches!(platform, Platform::Native | Platform::OpenPai) {
        out.extend(openpai::variables(task));
    }
    if matches!(platform, Platform::Native | Platform::Volcano) {
        out.extend(volcano::variables(task));
    }
    if says_nothing_of_frameworks(task) {
        out.extend(frameworks::variables(task));
    }
    if task.spec.is_launched() {
        out.extend(mpi::variables(task));
    }
    out.extend(of_platform(task));
    out.extend(native::variables(task));
    out.extend(task.role.env.iter().cloned());
    out
}

/// Others have variables of their own for each framework, which mean what they mean there: a rank may be a node's or a
/// process's.
fn says_nothing_of_frameworks(task: &Task<'_>) -> bool {
    match task.spec.contract.platform {
        Platform::Native | Platform::OpenPai => true,
        Platform::Volcano => task.spec.contract.profile == Profile::Octopus,
        _ => false,
    }
}

/// Variables that a platform's scripts look for.
fn of_platform(task: &Task<'_>) -> Vec<(String, String)> {
    match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker, _) => sagemaker::variables(task),
        (Platform::Tione, Profile::Old) => tione::first(task),
        (Platform::Tione, _) => tione::second(task),
        (Platform::Pai, _) => pai::variables(task),
        (Platform::Google, _) => google::variables(task),
        (Platform::AzureMl, _) => azureml::variables(task),
        (Platform::ModelArts, _) => modelarts::variables(task),
        (Platform::Uai, _) => uai::variables(task),
        (Platform::Paddle, _) => paddle::variables(task),
        (Platform::Kubeflow, _) => kubeflow::variables(task),
        (Platform::Mpi, _) => mpi::variables(task),
        // Theirs are given above.
        (Platform::Native | Platform::OpenPai | Platform::Volcano, _) => Vec::new(),
    }
}

fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let mut out = match task.spec.contract.platform {
        Platform::SageMaker => sagemaker::files(task),
        Platform::Tione => tione::files(task),
        Platform::Pai => pai::files(task),
        Platform::ModelArts => modelarts::files(task),
        Platform::Paddle => paddle::files(task),
        Platform::Volcano => volcano::files(task),
        _ => Vec::new(),
    };
    let starts_ranks = matches!(task.spec.framework, Some(Framework::Mpi | Framework::Horovod | Framework::DeepSpeed));
    if starts_ranks || task.spec.contract.platform == Platform::Mpi {
        out.extend(mpi::files(task));
    }
    if task.spec.is_launched() {
        out.extend(mpi::programs(task));
    }
    out.extend(servers::program(task));
    out
}

/// Variables in the order of their first mention, each with its last value.
#[derive(Debug, Default)]
struct Environment {
    entries: Vec<(String, String)>,
    /// Where each lies.
    known: HashMap<String, usize>,
}

impl Environment {
    fn extend(&mut self, entries: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in entries {
            match self.known.get(&name).and_then(|at| self.entries.get_mut(*at)) {
                Some(entry) => entry.1 = value,
                None => {
                    self.known.insert(name.clone(), self.entries.len());
                    self.entries.push((name, value));
                }
            }
        }
    }

    /// Puts a place before those that the variable lists.
    fn prepend(&mut self, name: &str, place: &str) {
        if let Some(entry) = self.known.get(name).and_then(|at| self.entries.get_mut(*at)) {
            entry.1 = format!("{place}:{}", entry.1);
        }
    }
}

fn join<T: ToString>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests;
