//! The inner form of a job: always valid, roles resolved, in the order of the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use sha2::{Digest, Sha256};
use toml::Spanned;

use super::diagnostic::{Diagnostic, Source};
use super::image::Image;
use super::wire::{WireCommand, WireCount, WireJob, WireMap, WirePort, WireResources, WireRole};
use crate::ids::{AssetName, Bytes, Cpu, RoleName, parse_duration};

/// A job that may run.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    pub description: String,
    pub image: Image,
    /// Whom the tasks run as inside; the image's choice when absent.
    pub user: Option<String>,
    /// Our own process is the first of each container.
    pub init: bool,
    /// A failed container is kept to look into.
    pub debug: bool,
    /// From the stop signal to SIGKILL; the configuration's when absent.
    pub stop_grace: Option<Duration>,
    pub code: Option<AssetName>,
    pub datasets: Vec<Dataset>,
    pub network: Network,
    pub retries: u32,
    pub max_duration: Option<Duration>,
    pub state: DesiredState,
    /// A changed number asks for a new run.
    pub rerun: u64,
    /// At least one.
    pub roles: Vec<Role>,
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

/// A dataset as the job names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    pub name: AssetName,
    pub version: Option<AssetName>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    pub name: RoleName,
    /// From 1.
    pub count: u32,
    pub main: bool,
    /// Only serves the others; never holds the job open.
    pub serves: bool,
    /// Failed tasks that fail the attempt; `None` for never.
    pub min_failed: Option<u32>,
    pub min_succeeded: MinSucceeded,
    pub command: Command,
    /// `--key=value` arguments in file order.
    pub arguments: Vec<String>,
    pub env: Vec<(String, String)>,
    pub resources: Resources,
    pub ports: Vec<Port>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    pub cpu: Cpu,
    pub memory: Bytes,
    pub shm: Bytes,
    /// Processes and threads.
    pub pids: u32,
}

/// A labelled group of consecutive ports of each task of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    pub label: String,
    pub count: u16,
    /// The first port; allotted when absent.
    pub begin: Option<u16>,
}

/// Roles that serve unless they say otherwise.
const SERVING_ROLES: [&str; 4] = ["ps", "scheduler", "server", "tensorboard"];
const DEFAULT_CPU: Cpu = Cpu(1000);
const DEFAULT_MEMORY: Bytes = Bytes(1 << 30);
const DEFAULT_PIDS: u32 = 8192;

impl JobSpec {
    /// What a file means as far as it makes a new run: comments, spacing, the order of tables, and the keys that act
    /// at once (`description`, `state`, `max_duration`, `rerun`) do not count.
    pub fn meaning(&self) -> String {
        let ran =
            Self { description: String::new(), state: DesiredState::Run, max_duration: None, rerun: 0, ..self.clone() };
        let digest = Sha256::digest(format!("{ran:?}").as_bytes());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Code is to be copied or an image to be got before a run may start.
    pub fn needs_preparation(&self) -> bool {
        self.code.is_some() || self.image != Image::Host
    }

    /// Ports of the machine that an attempt takes for itself, since the file names them. Of several tasks of a role, each has
    /// its own stretch: `begin + index × count`.
    pub fn fixed_ports(&self) -> Vec<u16> {
        if self.network == Network::Job {
            return Vec::new();
        }
        let of_task = |(role, index): (&Role, u32)| {
            let numbers = role.ports.iter().flat_map(move |port| {
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

/// Turns the wire form into the inner form, adding what is wrong with its meaning to `found`.
pub(super) fn from_wire(wire: WireJob, source: &Source<'_>, found: &mut Vec<Diagnostic>) -> Option<JobSpec> {
    let mut reader = Reader { source, found, network: network(wire.network.as_deref()) };
    let image = reader.image(wire.image.as_ref());
    let user = reader.user(wire.user.as_ref());
    let code = wire.code.as_ref().and_then(|code| reader.asset(code, "code"));
    let datasets = reader.datasets(&wire.datasets);
    let defaults = RoleDefaults {
        command: wire.command,
        arguments: reader.params(&wire.params),
        env: reader.env(&wire.env, "env"),
        resources: wire.resources,
    };
    reader.kept_without_init(&wire.init, wire.debug.as_ref());
    reader.not_put_together(wire.template.as_ref(), wire.with.as_ref());
    let roles = reader.roles(wire.roles, &defaults);
    reader.colliding_roles(&roles);
    reader.colliding_ports(&roles);
    Some(JobSpec {
        description: wire.description,
        image: image?,
        user,
        init: wire.init.unwrap_or(true),
        debug: wire.debug.is_some_and(Spanned::into_inner),
        stop_grace: wire.stop_grace.and_then(|text| parse_duration(&text).ok()),
        code,
        datasets,
        network: reader.network,
        retries: wire.retries,
        max_duration: wire.max_duration.and_then(|text| parse_duration(&text).ok()),
        state: state(wire.state.as_deref()),
        rerun: wire.rerun,
        roles: roles.into_iter().map(|(role, _)| role).collect(),
    })
}

fn network(word: Option<&str>) -> Network {
    match word {
        Some("job") => Network::Job,
        Some("host") => Network::Host,
        _ => Network::Task,
    }
}

fn state(word: Option<&str>) -> DesiredState {
    match word {
        Some("held") => DesiredState::Held,
        Some("stopped") => DesiredState::Stopped,
        _ => DesiredState::Run,
    }
}

/// What a role falls back to.
struct RoleDefaults {
    command: Option<WireCommand>,
    arguments: Vec<(String, Vec<String>)>,
    env: Vec<(String, String)>,
    resources: WireResources,
}

struct Reader<'a> {
    source: &'a Source<'a>,
    found: &'a mut Vec<Diagnostic>,
    network: Network,
}

impl Reader<'_> {
    fn error(&mut self, span: Range<usize>, key: &str, message: impl Into<String>) {
        self.found.push(self.source.error(span, key, message));
    }

    fn image(&mut self, image: Option<&Spanned<String>>) -> Option<Image> {
        let Some(name) = image else { return Some(Image::Host) };
        match Image::parse(name.get_ref()) {
            Ok(image) => Some(image),
            Err(message) => {
                self.error(name.span(), "image", format!("`image`: {message}"));
                None
            }
        }
    }

    /// `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; whether it exists is for the image to say.
    fn user(&mut self, user: Option<&Spanned<String>>) -> Option<String> {
        let user = user?;
        let text = user.get_ref();
        let part = |part: &str| {
            !part.is_empty() && part.len() <= 64 && part.chars().all(|c| !c.is_control() && !":/".contains(c))
        };
        let (name, group) = text.split_once(':').unwrap_or((text, "0"));
        if part(name) && part(group) {
            return Some(text.clone());
        }
        self.error(user.span(), "user", format!("`user`: {text:?} is no user; write NAME, UID, NAME:GROUP or UID:GID"));
        None
    }

    /// It is our process that stays when the command has failed.
    fn kept_without_init(&mut self, init: &Option<bool>, debug: Option<&Spanned<bool>>) {
        if let Some(debug) = debug.filter(|debug| *debug.get_ref() && *init == Some(false)) {
            let message =
                "`debug` keeps a container by Trainyard's own first process: it cannot be had with init = false";
            self.error(debug.span(), "debug", message);
        }
    }

    /// A template is put in before a job is read.
    fn not_put_together(&mut self, template: Option<&Spanned<String>>, with: Option<&Spanned<toml::Table>>) {
        if let Some(template) = template {
            let message = format!("there is no template {:?} here", template.get_ref());
            self.error(template.span(), "template", message);
        } else if let Some(with) = with {
            self.error(with.span(), "with", super::layers::WITH_ALONE);
        }
    }

    fn asset(&mut self, name: &Spanned<String>, key: &str) -> Option<AssetName> {
        match name.get_ref().parse() {
            Ok(name) => Some(name),
            Err(error) => {
                self.error(name.span(), key, format!("`{key}`: {:?} is not a name: {error}", name.get_ref()));
                None
            }
        }
    }

    fn datasets(&mut self, names: &[Spanned<String>]) -> Vec<Dataset> {
        let mut datasets: Vec<Dataset> = Vec::new();
        for written in names {
            let (name, version) = match written.get_ref().split_once('@') {
                Some((name, version)) => (name, Some(version)),
                None => (written.get_ref().as_str(), None),
            };
            let part = |text: &str| Spanned::new(written.span(), text.to_owned());
            let name = self.asset(&part(name), "datasets");
            let version = version.map(|version| self.asset(&part(version), "datasets"));
            match (name, version) {
                (Some(name), _) if datasets.iter().any(|other| other.name == name) => {
                    self.error(written.span(), "datasets", format!("`datasets` names {:?} twice", name.as_str()));
                }
                (Some(name), None) => datasets.push(Dataset { name, version: None }),
                (Some(name), Some(Some(version))) => datasets.push(Dataset { name, version: Some(version) }),
                _ => {}
            }
        }
        datasets
    }

    /// Arguments by key, in file order.
    fn params(&self, params: &WireMap<toml::Value>) -> Vec<(String, Vec<String>)> {
        in_file_order(params)
            .map(|(key, value)| {
                let values = match value.get_ref() {
                    toml::Value::Array(items) => items.iter().map(|item| flag(key.get_ref(), &scalar(item))).collect(),
                    toml::Value::Boolean(true) => vec![format!("--{}", key.get_ref())],
                    other => vec![flag(key.get_ref(), &self.as_written(other, value.span()))],
                };
                (key.get_ref().clone(), values)
            })
            .collect()
    }

    /// Numbers keep the form of the file: `1e-4` stays `1e-4`.
    fn as_written(&self, value: &toml::Value, span: Range<usize>) -> String {
        match value {
            toml::Value::Float(_) => self.source.slice(span).replace('_', ""),
            other => scalar(other),
        }
    }

    fn env(&mut self, env: &WireMap<toml::Value>, key: &str) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for (name, value) in in_file_order(env) {
            let text = name.get_ref();
            if text.is_empty() || text.contains(['=', '\0']) {
                self.error(name.span(), key, format!("`{key}`: {text:?} cannot be the name of a variable"));
            }
            out.push((text.clone(), self.as_written(value.get_ref(), value.span())));
        }
        out
    }

    fn roles(
        &mut self,
        roles: Option<Spanned<WireMap<WireRole>>>,
        defaults: &RoleDefaults,
    ) -> Vec<(Role, Range<usize>)> {
        let Some(roles) = roles else {
            let role = self.role(RoleName::main_role(), &WireRole::default(), "", 0..0, defaults);
            return vec![(role, 0..0)];
        };
        if roles.get_ref().is_empty() {
            self.error(roles.span(), "roles", "`roles` is empty; leave it out for a job of one task");
        }
        let mut out = Vec::new();
        for (name, role) in in_file_order(roles.get_ref()) {
            let key = format!("roles.{}", name.get_ref());
            match name.get_ref().parse::<RoleName>() {
                Ok(role_name) => {
                    let inner = self.role(role_name, role.get_ref(), &key, name.span(), defaults);
                    out.push((inner, name.span()));
                }
                Err(error) => {
                    self.error(name.span(), &key, format!("{:?} is not a role name: {error}", name.get_ref()))
                }
            }
        }
        out
    }

    fn role(&mut self, name: RoleName, wire: &WireRole, key: &str, span: Range<usize>, job: &RoleDefaults) -> Role {
        let count = wire.count.unwrap_or(1);
        let role_arguments = self.params(&wire.params);
        let min_failed = self.min_failed(wire.min_failed.as_ref(), count, key);
        let min_succeeded = self.min_succeeded(wire.min_succeeded.as_ref(), count, key);
        self.warn_low_bounds(min_failed, min_succeeded, count, key, span);
        Role {
            serves: wire.serves.unwrap_or_else(|| SERVING_ROLES.contains(&name.as_str())),
            count,
            main: wire.main,
            min_failed,
            min_succeeded,
            command: command(wire.command.as_ref().or(job.command.as_ref())),
            arguments: merge(&job.arguments, &role_arguments).into_iter().flat_map(|(_, values)| values).collect(),
            env: merge(&job.env, &self.env(&wire.env, &format!("{key}.env"))),
            resources: self.resources(&job.resources, &wire.resources, key),
            ports: self.ports(&wire.ports, count, key),
            name,
        }
    }

    fn min_failed(&mut self, count: Option<&Spanned<WireCount>>, tasks: u32, key: &str) -> Option<u32> {
        match count.map(|count| (count.get_ref(), count.span())) {
            None => Some(1),
            Some((WireCount::Word(_), _)) => None,
            Some((WireCount::Number(number), span)) => {
                Some(self.within(*number, tasks, span, &format!("{key}.min_failed")))
            }
        }
    }

    fn min_succeeded(&mut self, count: Option<&Spanned<WireCount>>, tasks: u32, key: &str) -> MinSucceeded {
        match count.map(|count| (count.get_ref(), count.span())) {
            None => MinSucceeded::All,
            Some((WireCount::Word(word), _)) if word == "never" => MinSucceeded::Never,
            Some((WireCount::Word(_), _)) => MinSucceeded::All,
            Some((WireCount::Number(number), span)) => {
                MinSucceeded::Count(self.within(*number, tasks, span, &format!("{key}.min_succeeded")))
            }
        }
    }

    fn within(&mut self, number: u32, tasks: u32, span: Range<usize>, key: &str) -> u32 {
        if number > tasks {
            self.error(span, key, format!("`{key}` is {number}, but the role has only {tasks} task(s)"));
        }
        number
    }

    /// Two low bounds together mean that neither waits for the rest, which is rarely meant.
    fn warn_low_bounds(
        &mut self,
        failed: Option<u32>,
        succeeded: MinSucceeded,
        count: u32,
        key: &str,
        span: Range<usize>,
    ) {
        let (Some(failed), MinSucceeded::Count(succeeded)) = (failed, succeeded) else { return };
        if succeeded.saturating_add(failed) <= count / 2 {
            let message = format!(
                "min_succeeded = {succeeded} and min_failed = {failed} of {count} tasks: whichever comes first ends the job \
                 while most tasks still run"
            );
            self.found.push(self.source.warning(span, key, message));
        }
    }

    fn resources(&mut self, job: &WireResources, role: &WireResources, key: &str) -> Resources {
        let size = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<Bytes>().ok());
        let memory = size(&role.memory).or(size(&job.memory)).unwrap_or(DEFAULT_MEMORY);
        let shm = role.shm.as_ref().or(job.shm.as_ref());
        let asked = shm.and_then(|text| text.get_ref().parse::<Bytes>().ok());
        if let (Some(text), Some(asked)) = (shm, asked)
            && asked > memory
        {
            let key = format!("{key}.resources.shm");
            let key = key.trim_start_matches('.');
            self.error(text.span(), key, format!("`{key}` is {asked}, more than the task's memory of {memory}"));
        }
        Resources {
            cpu: role.cpu.or(job.cpu).map_or(DEFAULT_CPU, |cores| Cpu((cores * 1000.0).round() as u64)),
            memory,
            shm: asked.unwrap_or(Bytes(memory.0 / 2)),
            pids: role.pids.or(job.pids).unwrap_or(DEFAULT_PIDS),
        }
    }

    fn ports(&mut self, ports: &WireMap<WirePort>, tasks: u32, key: &str) -> Vec<Port> {
        let mut out: Vec<Port> = Vec::new();
        for (label, port) in in_file_order(ports) {
            let key = format!("{key}.ports.{}", label.get_ref());
            let (count, begin) = match port.get_ref() {
                WirePort::Count(count) => (*count, None),
                WirePort::Table { count, begin } => (count.unwrap_or(1), *begin),
            };
            if !is_label(label.get_ref()) {
                self.error(label.span(), &key, "a port label holds letters, digits, '-' and '_'");
            }
            // Each task of the role has its own stretch: on the machine or, sharing a network, inside.
            let stretches = u64::from(tasks.max(1));
            if begin.is_some_and(|begin| u64::from(begin) + u64::from(count) * stretches > 65_536) {
                let of =
                    if stretches > 1 { format!(" for {stretches} tasks, one after another,") } else { String::new() };
                self.error(port.span(), &key, format!("`{key}`{of} reaches beyond port 65535"));
            }
            let taken = out.iter().find(|other| overlaps(other, begin, count));
            if let Some(other) = taken {
                let message = format!("`{key}` overlaps the ports of {:?}", other.label);
                self.error(port.span(), &key, message);
            }
            out.push(Port { label: label.get_ref().clone(), count, begin });
        }
        out
    }

    /// Tasks that share a network cannot listen on the same port.
    fn colliding_ports(&mut self, roles: &[(Role, Range<usize>)]) {
        if self.network == Network::Task {
            return;
        }
        let mut seen: Vec<(String, Range<u32>)> = Vec::new();
        for (role, span) in roles {
            for (label, ports) in named_ports(role) {
                let name = format!("roles.{}.ports.{label}", role.name);
                let meets = |(_, other): &&(String, Range<u32>)| ports.start < other.end && other.start < ports.end;
                if let Some((other, _)) = seen.iter().find(meets) {
                    let message = format!(
                        "`{name}` and `{other}` name the same ports, and their tasks share one network; a role's task I has \
                         those from begin + I × count on"
                    );
                    self.error(span.clone(), &name, message);
                }
                seen.push((name, ports));
            }
        }
    }

    /// Two roles whose names become one variable would hide each other's hosts.
    fn colliding_roles(&mut self, roles: &[(Role, Range<usize>)]) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (role, span) in roles {
            if let Some(other) = seen.insert(role.name.variable(), role.name.as_str()) {
                let message = format!(
                    "the roles {other:?} and {:?} would both be {} in the environment; rename one",
                    role.name.as_str(),
                    role.name.variable()
                );
                self.error(span.clone(), &format!("roles.{}", role.name), message);
            }
        }
    }
}

/// Ports of a network that a role names, from the first to behind the last.
fn named_ports(role: &Role) -> impl Iterator<Item = (&str, Range<u32>)> {
    let all = |port: &Port| {
        let begin = u32::from(port.begin?);
        Some(begin..begin.saturating_add(u32::from(port.count).saturating_mul(role.count)))
    };
    role.ports.iter().filter_map(move |port| Some((port.label.as_str(), all(port)?)))
}

fn overlaps(other: &Port, begin: Option<u16>, count: u16) -> bool {
    match (other.begin, begin) {
        (Some(a), Some(b)) => {
            let (a, b) = (u32::from(a), u32::from(b));
            a < b + u32::from(count) && b < a + u32::from(other.count)
        }
        _ => false,
    }
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn in_file_order<T>(map: &WireMap<T>) -> impl Iterator<Item = (&Spanned<String>, &Spanned<T>)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter()
}

/// The job's entries with the role's over them, new ones at the end.
fn merge<T: Clone>(job: &[(String, T)], role: &[(String, T)]) -> Vec<(String, T)> {
    let mut out = job.to_vec();
    for (key, value) in role {
        match out.iter_mut().find(|(known, _)| known == key) {
            Some(entry) => entry.1 = value.clone(),
            None => out.push((key.clone(), value.clone())),
        }
    }
    out
}

fn flag(key: &str, value: &str) -> String {
    format!("--{key}={value}")
}

fn scalar(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn command(wire: Option<&WireCommand>) -> Command {
    match wire {
        None => Command::Default,
        Some(WireCommand::Shell(line)) => Command::Shell(line.clone()),
        Some(WireCommand::Exec(words)) => Command::Exec(words.clone()),
    }
}
