//! The inner form of a job: always valid, roles resolved, in the order of the file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::image::Image;
use super::platform::{Contract, Framework, Strategy};
use super::strategy;
use crate::ids::{AssetName, Bytes, Cpu, JobName, RoleName, Whose};

/// A job that may run.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    pub description: String,
    /// Our own process is the first of each container.
    pub init: bool,
    /// A failed container is kept to look into.
    pub debug: bool,
    /// From the stop signal to SIGKILL; the configuration's when absent.
    pub stop_grace: Option<Duration>,
    /// The platform that its scripts were written for.
    pub contract: Contract,
    pub framework: Option<Framework>,
    /// The framework's first one where the file says nothing.
    pub strategy: Option<Strategy>,
    /// Whether Python packages that the code lists are installed first; as its contract says when absent.
    pub requirements: Option<bool>,
    /// Whether the output begins as the last run left it; as its contract says when absent.
    pub resume: Option<bool>,
    pub datasets: Vec<Dataset>,
    /// By target.
    pub mounts: Vec<HostMount>,
    /// By target.
    pub remotes: Vec<RemoteMount>,
    pub scalars: Option<Scalars>,
    pub network: Network,
    /// What the file allows of tasks that compute, and of cards of all tasks; the roles hold to it.
    pub max_nodes: Option<u32>,
    pub max_gpu: Option<u32>,
    pub retries: u32,
    pub retry: Retry,
    /// Jobs of the same workspace that must have succeeded first.
    pub after: Vec<JobName>,
    /// Which of the waiting jobs is started first.
    pub priority: Priority,
    pub on_edit: OnEdit,
    /// Kept and shown.
    pub extras: toml::Table,
    pub max_duration: Option<Duration>,
    /// How long an attempt should take.
    pub expected_duration: Option<Duration>,
    pub on_overrun: OnOverrun,
    pub on_gpu_failure: OnGpuFailure,
    /// When its cards count as idle, if somebody wants to know.
    pub gpu_idle: Option<GpuIdle>,
    pub state: DesiredState,
    /// A changed number asks for a new run.
    pub rerun: u64,
    /// At least one.
    pub roles: Vec<Role>,
}

/// Where a job tells numbers of its training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalars {
    /// Of event files, in the tasks; absolute.
    pub log_dir: Option<String>,
    /// A regular expression for lines of output, whose named groups are tags.
    pub lines: Option<String>,
}

/// From 0 to 100; the higher one is started first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub u8);

impl Priority {
    pub const LOW: Self = Self(25);
    pub const NORMAL: Self = Self(50);
    pub const HIGH: Self = Self(75);
}

impl fmt::Display for Priority {
    /// As a job file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LOW => f.write_str("\"low\""),
            Self::NORMAL => f.write_str("\"normal\""),
            Self::HIGH => f.write_str("\"high\""),
            Self(number) => write!(f, "{number}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// An address for each task.
    Task,
    /// One network namespace and one `/dev/shm` for the attempt.
    Job,
    /// The machine's own.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesiredState {
    Run,
    Held,
    Stopped,
}

/// Where the code of a run comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// A directory of `code/`: `NAME`, or `NAME@VERSION`.
    Named {
        whose: Whose,
        name: AssetName,
        version: Option<AssetName>,
    },
    Git(GitCode),
    /// What a store of another machine has at a place.
    Stored(RemoteMount),
}

/// One commit of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitCode {
    /// http or https.
    pub url: String,
    /// Branch, tag or commit; what the repository gives by itself when absent.
    pub reference: Option<String>,
    pub user: Option<String>,
    /// The name of the workspace's secret.
    pub password: Option<AssetName>,
    pub submodules: Submodules,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submodules {
    Left,
    Fetched,
}

impl Code {
    pub fn stored(&self) -> Option<&RemoteMount> {
        if let Self::Stored(place) = self { Some(place) } else { None }
    }

    /// As a job file has it.
    pub fn written(&self) -> String {
        let Self::Git(git) = self else { return toml::Value::String(self.to_string()).to_string() };
        let mut table = toml::Table::new();
        table.insert("git".to_owned(), git.url.clone().into());
        table.extend(git.reference.clone().map(|reference| ("ref".to_owned(), reference.into())));
        table.extend(git.user.clone().map(|user| ("user".to_owned(), user.into())));
        table.extend(git.password.as_ref().map(|name| ("password".to_owned(), format!("secret:{name}").into())));
        if git.submodules == Submodules::Fetched {
            table.insert("submodules".to_owned(), true.into());
        }
        toml::Value::Table(table).to_string()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named { whose, name, version } => {
                write!(f, "{}{name}", whose.prefix())?;
                version.as_ref().map_or(Ok(()), |version| write!(f, "@{version}"))
            }
            Self::Git(code) => {
                f.write_str(&code.url)?;
                code.reference.as_ref().map_or(Ok(()), |reference| write!(f, "@{reference}"))
            }
            Self::Stored(place) => place.fmt(f),
        }
    }
}

/// A place of the machine that tasks see, with the rights of the job's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

/// A place in a store of another machine, copied in before the start, or to which the output is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteMount {
    /// How it is spoken to, as the file has it.
    pub kind: String,
    /// As the configuration calls it.
    pub pool: AssetName,
    /// Below the pool's root; `{job}` and `{run}` stand for those.
    pub prefix: String,
    /// `/code` of what is the code: no mount goes there.
    pub target: PathBuf,
    /// The output is copied there, and when; what lies there is copied in where there is none.
    pub sync: Option<SyncAt>,
}

/// When what a run writes is copied to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncAt {
    End,
    /// And every so often while it runs.
    Every(Duration),
}

impl RemoteMount {
    /// Where tasks see code.
    pub const CODE: &str = "/code";

    /// The key of the job file that names it.
    pub fn key(&self) -> &'static str {
        if self.target == Path::new(Self::CODE) { "code" } else { "mounts" }
    }

    /// The prefix for one run.
    pub fn prefix_of(&self, job: &JobName, run: u32) -> String {
        self.prefix.replace("{job}", job.as_str()).replace("{run}", &run.to_string())
    }
}

impl fmt::Display for SyncAt {
    /// As a job file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("end"),
            Self::Every(every) => f.write_str(&crate::ids::format_duration(*every)),
        }
    }
}

impl fmt::Display for RemoteMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.pool)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// What an edit does to a run that has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEdit {
    /// The next run waits until it has ended.
    After,
    /// It is stopped for the next run.
    Restart,
}

/// What is done about an attempt that takes longer than expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOverrun {
    /// Its owner is told.
    Alert,
    /// It is stopped as well.
    Stop,
}

/// What is done about an attempt one of whose cards has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnGpuFailure {
    /// Its owner is told.
    Alert,
    /// It is stopped as well, and the run has failed.
    Stop,
    /// It is stopped and tried again, on other cards.
    Retry,
}

impl fmt::Display for OnGpuFailure {
    /// As a job file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alert => "alert",
            Self::Stop => "stop",
            Self::Retry => "retry",
        })
    }
}

/// When the cards of a job count as idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuIdle {
    /// Percent.
    pub below: u32,
    /// Without a break.
    pub lasting: Duration,
    pub then: OnIdle,
}

/// What is done about an attempt whose cards are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnIdle {
    /// Its owner is told.
    Alert,
    /// It is stopped as well.
    Stop,
}

impl fmt::Display for GpuIdle {
    /// As a job file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let then = if self.then == OnIdle::Stop { "stop" } else { "alert" };
        let lasting = self.lasting.as_secs_f64();
        write!(f, "{{ below = {}, for = \"{lasting}s\", then = \"{then}\" }}", self.below)
    }
}

/// Which failures are tried again, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub on: Vec<RetryOn>,
    /// Before the second attempt; twice as long before each further one.
    pub backoff: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryOn {
    /// The command failed, was killed or took too long.
    Failure,
    /// Its shim or the machine went away.
    Lost,
    Oom,
    /// Its image could not be had.
    Image,
}

pub(super) const RETRY_ON: &[(&str, RetryOn)] =
    &[("failure", RetryOn::Failure), ("lost", RetryOn::Lost), ("oom", RetryOn::Oom), ("image", RetryOn::Image)];

impl fmt::Display for RetryOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = RETRY_ON.iter().find(|(_, on)| on == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { on: vec![RetryOn::Failure, RetryOn::Lost], backoff: Duration::ZERO }
    }
}

/// A dataset as the job names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    pub source: DataSource,
    /// Of what lies in `datasets/`; what jobs have left is the workspace's.
    pub whose: Whose,
    /// What the script calls it, where that differs from its name.
    pub channel: Option<AssetName>,
    pub name: AssetName,
    pub version: Option<AssetName>,
}

/// What data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSource {
    /// A directory of `datasets/`.
    Dataset,
    /// What a job's runs have left in `models/`; its versions are their numbers, without one it is the newest.
    Model,
    /// What a job's runs have written to `/output`, whether they have ended or not and however they did; versions as
    /// those of models. Of the job itself the newest is that of the run before.
    Output,
}

impl DataSource {
    /// Every one that is told by what stands before the name.
    pub(super) const PREFIXED: [Self; 2] = [Self::Model, Self::Output];

    pub fn prefix(self) -> &'static str {
        match self {
            Self::Dataset => "",
            Self::Model => "model:",
            Self::Output => "output:",
        }
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.as_ref().map_or(Ok(()), |channel| write!(f, "{channel}="))?;
        write!(f, "{}{}{}", self.source.prefix(), self.whose.prefix(), self.name)?;
        self.version.as_ref().map_or(Ok(()), |version| write!(f, "@{version}"))
    }
}

impl Dataset {
    /// The name by which tasks know it.
    pub fn seen_as(&self) -> &AssetName {
        self.channel.as_ref().unwrap_or(&self.name)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    pub name: RoleName,
    /// From 1.
    pub count: u32,
    pub main: Main,
    /// Only serves the others; never holds the job open.
    pub serves: bool,
    /// For people, not for the other tasks: no part of the cluster that these are told of.
    pub is_service: bool,
    /// Failed tasks that fail the attempt; `None` for never.
    pub min_failed: Option<u32>,
    pub min_succeeded: MinSucceeded,
    /// How often each of its tasks is started again within an attempt before it counts as failed.
    pub retries: u32,
    /// Ranks of MPI that one task takes; by its cards or cores when absent.
    pub slots: Option<u32>,
    pub image: Image,
    /// Whom its tasks run as inside; the image's choice when absent.
    pub user: Option<String>,
    pub code: Option<Code>,
    pub command: Command,
    /// In file order; how they become arguments is the contract's.
    pub params: Vec<(String, Param)>,
    pub env: Vec<(String, String)>,
    pub resources: Resources,
    pub ports: Vec<Port>,
}

/// Whether the end of a role is the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Main {
    No,
    Role,
    /// The end of its first task is.
    FirstTask,
}

/// The value of a parameter, numbers as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Param {
    /// `true` alone.
    Flag,
    /// A text.
    Value(String),
    /// A number or `false`, as it is written: platforms that make JSON or Python of it tell it from a text.
    Plain(String),
    /// Once for each.
    List(Vec<ListItem>),
}

/// An item of a list, which platforms that write JSON tell apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListItem {
    Text(String),
    /// A number, or whether something is so.
    Plain(String),
}

impl Role {
    fn with_plain_lists(&self) -> Self {
        let params = self.params.iter().map(|(name, param)| (name.clone(), param.with_plain_lists()));
        Self { params: params.collect(), ..self.clone() }
    }
}

impl Param {
    /// Numbers of lists in one form, whatever they are written like: earlier versions have not kept that of the file, and none of
    /// their jobs is another one for it.
    fn with_plain_lists(&self) -> Self {
        let plain = |item: &ListItem| match item {
            ListItem::Plain(text) if !text.bytes().all(|byte| byte.is_ascii_digit()) => {
                let number = text.parse().ok().filter(|_| text.parse::<i64>().is_err());
                ListItem::Plain(number.map_or_else(|| text.clone(), |number| toml::Value::Float(number).to_string()))
            }
            other => other.clone(),
        };
        match self {
            Self::List(items) => Self::List(items.iter().map(plain).collect()),
            other => other.clone(),
        }
    }
}

impl ListItem {
    /// As arguments have it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Plain(text) => text,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinSucceeded {
    /// Every task, together with all other roles.
    All,
    /// The role never ends the job.
    Never,
    Count(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Run by `/bin/sh -c`.
    Shell(String),
    /// Run as it is.
    Exec(Vec<String>),
    /// What the image runs by itself or, if that is nothing, `sleep infinity`.
    Default,
}

/// What one task may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    pub cpu: Cpu,
    pub memory: Bytes,
    pub shm: Bytes,
    /// Processes and threads.
    pub pids: u32,
    /// Cards, shares of cards or slices of them, as `gpu_part` says.
    pub gpu: u32,
    pub gpu_part: GpuPart,
    /// What the name of a card must have in it, in large letters or small.
    pub gpu_type: Option<String>,
}

/// How much of a card one of `gpu` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuPart {
    Whole,
    /// So much of its memory, beside others; then `gpu` is 1.
    Share {
        memory: Bytes,
        over: ShareOver,
    },
    /// What MIG has cut it up into, by its profile, in small letters.
    Slice(String),
}

/// What is done about a task that uses more of a card than its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareOver {
    /// It is told.
    Alert,
    /// The job is stopped as well, if that goes on.
    Stop,
}

impl Resources {
    /// Cards that it has for itself; parts of cards do not reach each other.
    pub fn whole_cards(&self) -> u32 {
        if self.gpu_part == GpuPart::Whole { self.gpu } else { 0 }
    }
}

impl ShareOver {
    /// As a job file has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::Stop => "stop",
        }
    }
}

/// A labelled group of consecutive ports of each task of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    pub label: String,
    pub count: u16,
    /// The first port; allotted when absent.
    pub begin: Option<u16>,
    pub outside: OutsidePort,
}

/// Which port of the machine leads to a port that the file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsidePort {
    /// The same one.
    Same,
    /// Any that is free.
    Any,
}

impl JobSpec {
    /// What a file means as far as it makes a new run: comments, spacing, the order of tables, and the keys that act
    /// at once (`description`, `state`, `priority`, `max_duration`, `rerun`…) do not count.
    pub fn meaning(&self) -> String {
        let ran = Self {
            description: String::new(),
            state: DesiredState::Run,
            max_duration: None,
            expected_duration: None,
            on_overrun: OnOverrun::Alert,
            on_gpu_failure: OnGpuFailure::Alert,
            gpu_idle: None,
            priority: Priority::NORMAL,
            rerun: 0,
            extras: toml::Table::new(),
            on_edit: OnEdit::After,
            roles: self.roles.iter().map(Role::with_plain_lists).collect(),
            ..self.clone()
        };
        let digest = Sha256::digest(format!("{ran:?}").as_bytes());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// One of its tasks starts processes on the others.
    pub fn is_launched(&self) -> bool {
        self.roles.iter().any(|role| matches!(&role.command, Command::Exec(words) if words == &[strategy::AGENT]))
    }

    /// What of the output a run finds as the last one of the job left it, below the output; all of it is the empty path.
    pub fn resumed(&self) -> Option<&'static str> {
        let of_platform = self.contract.resumed();
        match self.resume {
            Some(true) => of_platform.or(Some("")),
            Some(false) => None,
            None => of_platform,
        }
    }

    /// Code is to be copied, an image to be got, or a version of a dataset to be chosen before a run may start.
    pub fn needs_preparation(&self) -> bool {
        let is_resumed = self.resumed().is_some();
        let has_data = !self.remotes.is_empty() || !self.datasets.is_empty();
        is_resumed || has_data || self.roles.iter().any(|role| role.code.is_some() || role.image != Image::Host)
    }

    /// A run of it sees code or data that others may change, or newer versions of which may come.
    pub fn names_what_may_change(&self) -> bool {
        let is_code = self.roles.iter().filter_map(|role| role.code.as_ref()).any(|code| code.stored().is_none());
        is_code || self.datasets.iter().any(|dataset| dataset.source != DataSource::Output)
    }

    /// Something of a run comes from another machine, or may: it can take long, and fail for a while.
    pub fn comes_from_elsewhere(&self) -> bool {
        let is_resumed = self.resumed().is_some();
        let is_brought =
            |role: &Role| role.image != Image::Host || matches!(role.code, Some(Code::Git(_) | Code::Stored(_)));
        is_resumed || self.copied_in().next().is_some() || self.roles.iter().any(is_brought)
    }

    /// Every place of a store that it names.
    pub fn stores(&self) -> impl Iterator<Item = &RemoteMount> {
        let codes = self.roles.iter().filter_map(|role| role.code.as_ref()?.stored());
        self.remotes.iter().chain(codes)
    }

    /// What is copied in before the start.
    pub fn copied_in(&self) -> impl Iterator<Item = &RemoteMount> {
        self.remotes.iter().filter(|remote| remote.sync.is_none())
    }

    /// Where the output is copied to.
    pub fn copied_out(&self) -> Option<&RemoteMount> {
        self.remotes.iter().find(|remote| remote.sync.is_some())
    }

    /// What `extras` holds, for programs: dates as they are written.
    pub fn extras_as_json(&self) -> serde_json::Value {
        self.extras.iter().map(|(name, value)| (name.clone(), as_json(value))).collect()
    }

    /// The roles that the job is made of, without its services.
    pub fn members(&self) -> impl Iterator<Item = &Role> {
        self.roles.iter().filter(|role| !role.is_service)
    }

    /// The images of its roles, each once.
    pub fn images(&self) -> Vec<&Image> {
        distinct(self.roles.iter().map(|role| &role.image))
    }

    /// The codes of its roles, each once, with the name of the directory in a run that holds the snapshot: `code` or, of
    /// those that only some roles have, `code.ROLE`.
    pub fn codes(&self) -> Vec<(&Code, String)> {
        let codes = distinct(self.roles.iter().filter_map(|role| role.code.as_ref()));
        let first = |code: &Code| self.roles.iter().find(|role| role.code.as_ref() == Some(code));
        let name = |(place, code): (usize, &Code)| match (place, first(code)) {
            (1.., Some(role)) => format!("code.{}", role.name),
            _ => "code".to_owned(),
        };
        codes.iter().enumerate().map(|(place, code)| (*code, name((place, code)))).collect()
    }

    /// Ports of the machine that an attempt takes for itself, since the file names them. Of several tasks of a role, each has
    /// its own stretch: `begin + index × count`.
    pub fn fixed_ports(&self) -> Vec<u16> {
        if self.network == Network::Job {
            return Vec::new();
        }
        let of_task = |(role, index): (&Role, u32)| {
            let named =
                role.ports.iter().filter(|port| self.network == Network::Host || port.outside == OutsidePort::Same);
            let numbers = named.flat_map(move |port| {
                let first = port.begin.map(|begin| u32::from(begin) + index * u32::from(port.count));
                first.into_iter().flat_map(move |first| first..first + u32::from(port.count))
            });
            numbers.filter_map(|number| u16::try_from(number).ok()).collect::<Vec<_>>()
        };
        self.tasks().flat_map(of_task).collect()
    }

    /// All tasks of an attempt, by role in file order.
    pub fn tasks(&self) -> impl Iterator<Item = (&Role, u32)> {
        self.roles.iter().flat_map(|role| (0..role.count).map(move |index| (role, index)))
    }
}

fn distinct<'a, T: PartialEq>(items: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
    items.fold(Vec::new(), |mut found, item| {
        if !found.contains(&item) {
            found.push(item);
        }
        found
    })
}

fn as_json(value: &toml::Value) -> serde_json::Value {
    match value {
        toml::Value::Datetime(date) => date.to_string().into(),
        toml::Value::Array(items) => items.iter().map(as_json).collect(),
        toml::Value::Table(table) => table.iter().map(|(name, value)| (name.clone(), as_json(value))).collect(),
        toml::Value::String(text) => text.clone().into(),
        toml::Value::Boolean(flag) => (*flag).into(),
        toml::Value::Integer(number) => (*number).into(),
        // JSON has no infinite numbers.
        toml::Value::Float(number) if !number.is_finite() => number.to_string().into(),
        toml::Value::Float(number) => (*number).into(),
    }
}
