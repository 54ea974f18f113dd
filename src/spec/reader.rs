//! From the wire form of a job to its inner form, with everything that is wrong with its meaning.

mod bounds;
mod git;
mod graphics;
mod mounts;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;

use super::check::FINDINGS_MAX;
use super::diagnostic::{Diagnostic, Source};
use super::image::Image;
use super::job::{
    Code, Command, DataSource, Dataset, DesiredState, JobSpec, Main, MinSucceeded, Network, OnEdit, OnOverrun,
    OutsidePort, Param, Port, Priority, RETRY_ON, Resources, Retry, RetryOn, Role,
};
use super::platform::{Contract, FRAMEWORKS, Framework, Platform, STRATEGIES, Strategy};
use super::strategy::{self, Kinds};
use super::wire::{
    WireCode, WireCommand, WireCount, WireJob, WireMain, WireMap, WirePort, WirePriority, WireResources, WireRetry,
    WireRole,
};
use crate::ids::{AssetName, Bytes, Cpu, JobName, RoleName, parse_duration};

const DEFAULT_CPU: Cpu = Cpu(1000);
const DEFAULT_MEMORY: Bytes = Bytes(1 << 30);
const DEFAULT_PIDS: u32 = 8192;
/// What OpenPAI gives a task that asks for none.
const OPENPAI_SHM: Bytes = Bytes(64 << 20);
/// Ports that every task has there, one of each.
const OPENPAI_PORTS: [&str; 2] = ["http", "ssh"];
/// Most roles, and most tasks of all of them: each is made, watched and told of.
const ROLES_MAX: usize = 64;
const TASKS_MAX: u32 = 1000;

/// Longest string that a program can be started with, a byte for its end included (`MAX_ARG_STRLEN`).
pub(super) const EXEC_STRING_MAX: usize = 128 << 10;

/// Turns the wire form into the inner form, adding what is wrong with its meaning to `found`. `begun`: the roles of which there are
/// tasks already.
pub(super) fn from_wire(
    wire: WireJob,
    source: &Source<'_>,
    begun: Option<&BTreeSet<RoleName>>,
    found: &mut Vec<Diagnostic>,
) -> Option<JobSpec> {
    let mut reader = Reader { source, found, network: Network::Task, kinds: Kinds::default() };
    let contract = reader.contract(wire.contract.as_ref());
    let framework = reader.framework(wire.framework.as_ref());
    let strategy = reader.strategy(wire.strategy.as_ref(), framework);
    reader.kinds = Kinds { contract: contract.unwrap_or(Contract::NATIVE), framework, strategy };
    let retry = reader.retry(&wire.retry);
    let on_gpu_failure = reader.on_gpu_failure(wire.on_gpu_failure.as_ref(), wire.retries);
    let gpu_idle = reader.gpu_idle(&wire.alerts);
    let after = reader.after(&wire.after);
    let datasets = reader.datasets(&wire.datasets);
    let bounds = bounds::Bounds::of(&wire);
    let defaults = RoleDefaults {
        image: reader.image(wire.image.as_ref(), "image").unwrap_or(Image::Host),
        user: reader.user(wire.user.as_ref(), "user"),
        code: wire.code.as_ref().and_then(|code| reader.code(code, "code")),
        command: wire.command,
        params: reader.params(&wire.params, "params"),
        env: reader.env(&wire.env, "env"),
        resources: wire.resources,
    };
    reader.kept_without_init(&wire.init, wire.debug.as_ref());
    reader.requirements(wire.requirements.as_ref(), wire.init);
    let (mounts, remotes) = reader.mounts(&wire.mounts);
    let scalars = reader.scalars(wire.scalars.as_ref(), wire.tensorboard.as_ref());
    reader.not_put_together(wire.template.as_ref(), wire.with.as_ref());
    if let Some(sweep) = &wire.sweep {
        reader.error(sweep.span(), "sweep", "a sweep is many jobs; name one of them");
    }
    let of_file = wire.roles.iter().flat_map(|roles| roles.get_ref());
    let says_main: BTreeSet<String> =
        of_file.filter(|(_, role)| role.get_ref().main.is_some()).map(|(name, _)| name.to_string()).collect();
    let mut roles = reader.roles(wire.roles, &defaults);
    let kinds = reader.kinds;
    strategy::lead(&mut roles, kinds, begun);
    reader.warn_of_no_servers(wire.strategy.as_ref(), &roles);
    reader.bound(&mut roles, &bounds);
    strategy::complete(&mut roles, kinds, &says_main, || reader.plain_role(&defaults));
    reader.network = network(wire.network.as_deref(), &roles);
    let boards = reader.boards(wire.tensorboard.as_ref(), &roles);
    roles.extend(reader.services(&wire.services, boards, &defaults));
    reader.check_roles(&roles);
    reader.graphics_of_nobody(&defaults.resources, &roles);
    reader.too_many_tasks(&roles);
    reader.colliding_roles(&roles);
    reader.colliding_ports(&roles);
    let has_code = roles.iter().any(|(role, _)| role.code.is_some());
    if let Some(asked) = wire.requirements.as_ref().filter(|asked| *asked.get_ref() && !has_code) {
        reader.error(asked.span(), "requirements", "`requirements` are those of the code: name that as well");
    }
    Some(JobSpec {
        description: wire.description,
        init: wire.init.unwrap_or(true),
        debug: wire.debug.is_some_and(Spanned::into_inner),
        stop_grace: wire
            .stop_grace
            .and_then(|text| parse_duration(&text).ok())
            .or(contract.and_then(Contract::stop_grace)),
        contract: contract?,
        framework,
        strategy,
        requirements: wire.requirements.as_ref().map(|flag| *flag.get_ref()),
        datasets,
        mounts,
        remotes,
        scalars,
        network: reader.network,
        max_nodes: bounds.nodes(),
        max_gpu: bounds.gpu(),
        retries: wire.retries,
        retry,
        after,
        priority: priority(wire.priority.as_ref()),
        on_edit: if wire.on_edit.as_deref() == Some("restart") { OnEdit::Restart } else { OnEdit::After },
        extras: wire.extras,
        expected_duration: wire.expected_duration.and_then(|text| parse_duration(&text).ok()),
        on_gpu_failure,
        gpu_idle,
        on_overrun: if wire.on_overrun.as_deref() == Some("stop") { OnOverrun::Stop } else { OnOverrun::Alert },
        max_duration: wire.max_duration.and_then(|text| parse_duration(&text).ok()),
        state: state(wire.state.as_deref()),
        rerun: wire.rerun,
        roles: roles.into_iter().map(|(role, _)| role).collect(),
    })
}

fn network(word: Option<&str>, roles: &[(Role, Range<usize>)]) -> Network {
    match word {
        Some("job") => Network::Job,
        Some("host") => Network::Host,
        Some(_) => Network::Task,
        None => default_network(roles),
    }
}

/// Cards of several tasks reach each other only where the tasks share one network and one /dev/shm; a launcher tells its
/// hosts apart by their addresses.
fn default_network(roles: &[(Role, Range<usize>)]) -> Network {
    let with_cards: u64 =
        roles.iter().filter(|(role, _)| role.resources.whole_cards() > 0).map(|(role, _)| u64::from(role.count)).sum();
    let is_launched = roles.iter().any(|(role, _)| role.command == strategy::idle());
    if with_cards > 1 && !is_launched { Network::Job } else { Network::Task }
}

fn priority(wire: Option<&WirePriority>) -> Priority {
    match wire {
        Some(WirePriority::Number(number)) => Priority(*number),
        Some(WirePriority::Word(word)) if word == "low" => Priority::LOW,
        Some(WirePriority::Word(word)) if word == "high" => Priority::HIGH,
        _ => Priority::NORMAL,
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
    image: Image,
    user: Option<String>,
    code: Option<Code>,
    command: Option<WireCommand>,
    params: Vec<(String, Param)>,
    env: Vec<(String, String)>,
    resources: WireResources,
}

struct Reader<'a> {
    source: &'a Source<'a>,
    found: &'a mut Vec<Diagnostic>,
    network: Network,
    kinds: Kinds,
}

impl Reader<'_> {
    /// More than enough is not told; an error has been by then.
    fn error(&mut self, span: Range<usize>, key: &str, message: impl Into<String>) {
        if self.found.iter().filter(|found| found.is_error()).count() < FINDINGS_MAX {
            self.found.push(self.source.error(span, key, message));
        }
    }

    /// What is said of it at `key`, if that is something and right.
    fn image(&mut self, image: Option<&Spanned<String>>, key: &str) -> Option<Image> {
        let name = image?;
        match Image::parse(name.get_ref()) {
            Ok(image) => Some(image),
            Err(message) => {
                self.error(name.span(), key, format!("`{key}`: {message}"));
                None
            }
        }
    }

    /// `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; whether it exists is for the image to say.
    fn user(&mut self, user: Option<&Spanned<String>>, key: &str) -> Option<String> {
        let user = user?;
        let text = user.get_ref();
        let part = |part: &str| {
            !part.is_empty() && part.len() <= 64 && part.chars().all(|c| !c.is_control() && !":/".contains(c))
        };
        let (name, group) = text.split_once(':').unwrap_or((text, "0"));
        if part(name) && part(group) {
            return Some(text.clone());
        }
        let message = format!("`{key}`: {text:?} is no user; write NAME, UID, NAME:GROUP or UID:GID");
        self.error(user.span(), key, message);
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

    /// It is our process that installs them.
    fn requirements(&mut self, asked: Option<&Spanned<bool>>, init: Option<bool>) {
        if let Some(asked) = asked.filter(|asked| *asked.get_ref() && init == Some(false)) {
            let message =
                "`requirements` are installed by Trainyard's own first process: they cannot be had with init = false";
            self.error(asked.span(), "requirements", message);
        }
    }

    fn contract(&mut self, name: Option<&Spanned<String>>) -> Option<Contract> {
        let Some(name) = name else { return Some(Contract::NATIVE) };
        match name.get_ref().parse() {
            Ok(contract) => Some(contract),
            Err(message) => {
                self.error(name.span(), "contract", format!("`contract`: {message}"));
                None
            }
        }
    }

    fn code(&mut self, code: &Spanned<WireCode>, key: &str) -> Option<Code> {
        match code.get_ref() {
            WireCode::Name(text) if mounts::store_of(text).is_some() => match mounts::code(text) {
                Ok(place) => Some(Code::Stored(place)),
                Err(message) => {
                    self.error(code.span(), key, format!("`{key}`: {message}"));
                    None
                }
            },
            WireCode::Name(text) => {
                let (name, version) = match text.split_once('@') {
                    Some((name, version)) => (name, Some(version)),
                    None => (text.as_str(), None),
                };
                let mut asset = |text: &str| self.asset(&Spanned::new(code.span(), text.to_owned()), key);
                let (name, version) = (asset(name), version.map(asset));
                let version = version.map_or(Some(None), |version| version.map(Some));
                Some(Code::Named { name: name?, version: version? })
            }
            WireCode::Git(git) => match git::code(git) {
                Ok(git) => Some(Code::Git(git)),
                Err((part, message)) => {
                    let key = format!("{}{part}", key.trim_end_matches("code"));
                    self.error(code.span(), &key, format!("`{key}`: {message}"));
                    None
                }
            },
        }
    }

    /// The key table has seen to it that the word is one of the list.
    fn framework(&mut self, word: Option<&Spanned<String>>) -> Option<Framework> {
        FRAMEWORKS.iter().find(|(name, _)| Some(*name) == word.map(|word| word.get_ref().as_str())).map(|found| found.1)
    }

    fn strategy(&mut self, word: Option<&Spanned<String>>, framework: Option<Framework>) -> Option<Strategy> {
        let Some(word) = word else { return framework.and_then(|framework| framework.strategies().first().copied()) };
        let found = STRATEGIES.iter().find(|(name, _)| name == word.get_ref()).map(|found| found.1)?;
        let message = match framework {
            None => "`strategy` says how the roles of a `framework` work together: name that as well".to_owned(),
            Some(framework) if framework.strategies().contains(&found) => return Some(found),
            Some(framework) => {
                let known: Vec<_> =
                    framework.strategies().iter().map(|strategy| format!("{:?}", strategy.to_string())).collect();
                format!("`strategy`: {framework} is trained by {}", known.join(" or "))
            }
        };
        self.error(word.span(), "strategy", message);
        None
    }

    /// TensorFlow's workers can do without servers; where the file itself asks for them, it has forgotten a role.
    fn warn_of_no_servers(&mut self, word: Option<&Spanned<String>>, roles: &[(Role, Range<usize>)]) {
        let Some(word) = word.filter(|word| word.get_ref() == "ps") else { return };
        let is_server = |role: &Role| ["ps", "pserver", "server"].contains(&role.name.as_str().to_lowercase().as_str());
        let tasks: u32 = roles.iter().map(|(role, _)| role.count).sum();
        let of_tensorflow = self.kinds.framework == Some(Framework::TensorFlow);
        if of_tensorflow
            && tasks > 1
            && !strategy::starts_servers(self.kinds.contract)
            && !roles.iter().any(|(role, _)| is_server(role))
        {
            let message = "strategy \"ps\" keeps parameters on servers, and no role is one: add [roles.ps]";
            self.found.push(self.source.warning(word.span(), "strategy", message));
        }
    }

    fn retry(&mut self, wire: &WireRetry) -> Retry {
        let default = Retry::default();
        let words = wire.on.as_ref().map(|words| {
            let known =
                |word: &Spanned<String>| RETRY_ON.iter().find(|(name, _)| name == word.get_ref()).map(|found| found.1);
            words.iter().filter_map(|word| known(word).or_else(|| self.unknown_failure(word))).collect()
        });
        Retry {
            on: words.unwrap_or(default.on),
            backoff: wire.backoff.as_ref().and_then(|text| parse_duration(text).ok()).unwrap_or(default.backoff),
        }
    }

    fn unknown_failure(&mut self, word: &Spanned<String>) -> Option<RetryOn> {
        let known: Vec<_> = RETRY_ON.iter().map(|(name, _)| format!("{name:?}")).collect();
        let message = format!("`retry.on`: {:?} is no kind of failure; these are {}", word.get_ref(), known.join(", "));
        self.error(word.span(), "retry.on", message);
        None
    }

    fn after(&mut self, names: &[Spanned<String>]) -> Vec<JobName> {
        let mut out = Vec::new();
        for name in names {
            match name.get_ref().parse() {
                Ok(name) => out.push(name),
                Err(error) => {
                    let message = format!("`after`: {:?} cannot be a job of this workspace: {error}", name.get_ref());
                    self.error(name.span(), "after", message);
                }
            }
        }
        out
    }

    /// A role as it is when its file says nothing of it, which runs the job's command.
    fn plain_role(&mut self, defaults: &RoleDefaults) -> Role {
        let name = strategy::LEADER.parse().unwrap_or_else(|_| RoleName::main_role());
        self.role(name, &WireRole::default(), "", 0..0, defaults)
    }

    fn check_roles(&mut self, roles: &[(Role, Range<usize>)]) {
        if let Some((span, key, message)) = strategy::problem(roles, self.kinds) {
            self.error(span, &key, message);
        }
        let waiting = roles.iter().find(|(role, _)| role.command == strategy::idle());
        if let Some((role, span)) = waiting.filter(|_| self.network != Network::Task) {
            let message = format!(
                "tasks of {} wait for ranks, and a launcher tells hosts apart by their addresses: use network = \"task\"",
                role.name
            );
            self.error(span.clone(), "network", message);
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
            let (channel, rest) = match written.get_ref().split_once('=') {
                Some((channel, rest)) => (Some(channel), rest),
                None => (None, written.get_ref().as_str()),
            };
            let (source, rest) = DataSource::PREFIXED
                .into_iter()
                .find_map(|source| Some((source, rest.strip_prefix(source.prefix())?)))
                .unwrap_or((DataSource::Dataset, rest));
            let (name, version) = match rest.split_once('@') {
                Some((name, version)) => (name, Some(version)),
                None => (rest, None),
            };
            let part = |text: &str| Spanned::new(written.span(), text.to_owned());
            let name = self.asset(&part(name), "datasets");
            let channel = channel.map(|channel| self.asset(&part(channel), "datasets"));
            let (Some(name), channel) = (name, channel.flatten()) else { continue };
            let seen_as = channel.as_ref().unwrap_or(&name);
            if datasets.iter().any(|other| other.seen_as() == seen_as) {
                let message = format!("`datasets` has two that tasks would see as {:?}", seen_as.as_str());
                self.error(written.span(), "datasets", message);
                continue;
            }
            let is_run = |version: &str| version == "latest" || version.parse::<u32>().is_ok();
            if source != DataSource::Dataset && version.is_some_and(|version| !is_run(version)) {
                let written_as = source.prefix();
                let message = format!(
                    "`datasets`: the versions of {written_as}{name} are the numbers of its job's runs, or latest"
                );
                self.error(written.span(), "datasets", message);
                continue;
            }
            let version = version.map(|version| self.asset(&part(version), "datasets"));
            match version {
                None => datasets.push(Dataset { source, channel, name, version: None }),
                Some(Some(version)) => datasets.push(Dataset { source, channel, name, version: Some(version) }),
                Some(None) => {}
            }
        }
        datasets
    }

    /// By key, in file order.
    fn params(&mut self, params: &WireMap<toml::Value>, key: &str) -> Vec<(String, Param)> {
        for (name, _) in in_file_order(params) {
            let text = name.get_ref();
            if text.is_empty() || text.starts_with('-') || text.contains(|c: char| c == '=' || c.is_control()) {
                let message =
                    format!("`{key}`: {text:?} cannot be the name of an argument, which is written as --NAME=VALUE");
                self.error(name.span(), key, message);
            }
        }
        let path = key;
        in_file_order(params)
            .map(|(key, value)| {
                let param = match value.get_ref() {
                    toml::Value::Array(items) => Param::List(items.iter().map(scalar).collect()),
                    toml::Value::Boolean(true) => Param::Flag,
                    other => Param::Value(self.as_written(other, value.span())),
                };
                let longest = match &param {
                    Param::Flag => 0,
                    Param::Value(text) => text.len(),
                    Param::List(items) => items.iter().map(String::len).max().unwrap_or(0),
                };
                let what = format!("the argument --{}", key.get_ref());
                self.fits_exec("--=".len() + key.get_ref().len() + longest, &what, value.span(), path);
                (key.get_ref().clone(), param)
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
            let written = self.as_written(value.get_ref(), value.span());
            self.fits_exec(text.len() + 1 + written.len(), &format!("the variable {text}"), value.span(), key);
            out.push((text.clone(), written));
        }
        out
    }

    /// The kernel starts no program with a longer string.
    fn fits_exec(&mut self, length: usize, what: &str, span: Range<usize>, key: &str) {
        if length < EXEC_STRING_MAX {
            return;
        }
        let message = format!(
            "`{key}`: {what} has {}, but the kernel starts no program with a string of {} or more; put it into a file, and its \
             path here",
            Bytes(length as u64).told(),
            Bytes(EXEC_STRING_MAX as u64)
        );
        self.error(span, key, message);
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
        if roles.get_ref().len() > ROLES_MAX {
            let message = format!("a job has {ROLES_MAX} roles at most, this one {}", roles.get_ref().len());
            self.error(roles.span(), "roles", message);
        }
        let mut out = Vec::new();
        for (name, role) in in_file_order(roles.get_ref()).take(ROLES_MAX) {
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

    fn too_many_tasks(&mut self, roles: &[(Role, Range<usize>)]) {
        let mut sum = 0u32;
        for (role, span) in roles {
            sum = sum.saturating_add(role.count);
            if sum > TASKS_MAX {
                let message = format!("a job has {TASKS_MAX} tasks at most, with role {} there are more", role.name);
                return self.error(span.clone(), &format!("roles.{}", role.name), message);
            }
        }
    }

    fn role(&mut self, name: RoleName, wire: &WireRole, key: &str, span: Range<usize>, job: &RoleDefaults) -> Role {
        let count = wire.count.unwrap_or(1);
        let min_failed = self.min_failed(wire.min_failed.as_ref(), count, key);
        let min_succeeded = self.min_succeeded(wire.min_succeeded.as_ref(), count, key);
        if wire.min_failed.is_some() {
            self.warn_low_bounds(min_failed, min_succeeded, count, key, span);
        }
        let at = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        Role {
            image: self.image(wire.image.as_ref(), &at("image")).unwrap_or_else(|| job.image.clone()),
            user: self.user(wire.user.as_ref(), &at("user")).or_else(|| job.user.clone()),
            code: wire.code.as_ref().and_then(|code| self.code(code, &at("code"))).or_else(|| job.code.clone()),
            is_service: false,
            serves: wire.serves.unwrap_or_else(|| strategy::serves(&name, self.kinds, wire.command.is_some())),
            count,
            main: match &wire.main {
                None => strategy::main(&name, self.kinds),
                Some(WireMain::Flag(true)) => Main::Role,
                Some(WireMain::Flag(false)) => Main::No,
                Some(WireMain::Word(_)) => Main::FirstTask,
            },
            min_failed,
            min_succeeded,
            retries: wire.retries.unwrap_or(0),
            slots: wire.slots,
            command: match &wire.command {
                None if strategy::idles(&name, self.kinds) => strategy::idle(),
                own => command(own.as_ref().or(job.command.as_ref())),
            },
            params: match &wire.command {
                None if strategy::idles(&name, self.kinds) => Vec::new(),
                _ => merge(&job.params, &self.params(&wire.params, &format!("{key}.params"))),
            },
            env: merge(&job.env, &self.env(&wire.env, &format!("{key}.env"))),
            resources: self.resources(&job.resources, &wire.resources, key),
            ports: self.with_ports_of_platform(&wire.ports, count, key),
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
        if succeeded.saturating_add(failed) <= count {
            let message = format!(
                "min_succeeded = {succeeded} and min_failed = {failed} of {count} tasks: whichever comes first ends the job \
                 while most tasks still run"
            );
            self.found.push(self.source.warning(span, key, message));
        }
    }

    fn default_shm(&self, memory: Bytes) -> Bytes {
        match self.kinds.contract.platform {
            Platform::OpenPai => OPENPAI_SHM.min(memory),
            _ => Bytes(memory.0 / 2),
        }
    }

    fn resources(&mut self, job: &WireResources, role: &WireResources, key: &str) -> Resources {
        if let Some(spec) = &role.spec {
            let key = format!("{key}.resources.spec");
            let key = key.trim_start_matches('.');
            self.error(spec.span(), key, format!("`{key}`: there is no spec {:?} here", spec.get_ref()));
        }
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
        let (gpu, gpu_part, gpu_type) = self.graphics(job, role, key);
        Resources {
            cpu: role.cpu.or(job.cpu).map_or(DEFAULT_CPU, |cores| Cpu((cores * 1000.0).round() as u64)),
            memory,
            shm: asked.unwrap_or_else(|| self.default_shm(memory)),
            pids: role.pids.or(job.pids).unwrap_or(DEFAULT_PIDS),
            gpu,
            gpu_part,
            gpu_type,
        }
    }

    fn with_ports_of_platform(&mut self, ports: &WireMap<WirePort>, tasks: u32, key: &str) -> Vec<Port> {
        let mut ports = self.ports(ports, tasks, key);
        if self.kinds.contract.platform == Platform::OpenPai {
            let missing =
                OPENPAI_PORTS.iter().filter(|label| ports.iter().all(|port| variable(&port.label) != variable(label)));
            let one =
                |label: &&str| Port { label: (*label).to_owned(), count: 1, begin: None, outside: OutsidePort::Same };
            let missing: Vec<Port> = missing.map(one).collect();
            ports.extend(missing);
        }
        ports
    }

    fn ports(&mut self, ports: &WireMap<WirePort>, tasks: u32, key: &str) -> Vec<Port> {
        let mut out: Vec<Port> = Vec::new();
        for (label, port) in in_file_order(ports) {
            let key = format!("{key}.ports.{}", label.get_ref());
            let (count, begin) = match port.get_ref() {
                WirePort::Count(count) => (*count, None),
                WirePort::Table { count, begin } => (count.unwrap_or(1), begin.filter(|begin| *begin > 0)),
            };
            if !is_label(label.get_ref()) {
                self.error(label.span(), &key, "a port label holds letters, digits, '-', '_', '.' and '~'");
            }
            // Each task of the role has its own stretch: on the machine or, sharing a network, inside.
            let stretches = u64::from(tasks.max(1));
            if begin.is_some_and(|begin| u64::from(begin) + u64::from(count) * stretches > 65_536) {
                let of =
                    if stretches > 1 { format!(" for {stretches} tasks, one after another,") } else { String::new() };
                self.error(port.span(), &key, format!("`{key}`{of} reaches beyond port 65535"));
            }
            if let Some(other) = out.iter().find(|other| variable(&other.label) == variable(label.get_ref())) {
                let message = format!(
                    "the ports {:?} and {:?} would both be {} in the environment; rename one",
                    other.label,
                    label.get_ref(),
                    variable(label.get_ref())
                );
                self.error(label.span(), &key, message);
            }
            let taken = out.iter().find(|other| overlaps(other, begin, count));
            if let Some(other) = taken {
                let message = format!("`{key}` overlaps the ports of {:?}", other.label);
                self.error(port.span(), &key, message);
            }
            out.push(Port { label: label.get_ref().clone(), count, begin, outside: OutsidePort::Same });
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
                let name = match role.is_service {
                    true => format!("services.{}.port", role.name),
                    false => format!("roles.{}.ports.{label}", role.name),
                };
                let meets = |(_, other): &&(String, Range<u32>)| ports.start < other.end && other.start < ports.end;
                if let Some((other, _)) = seen.iter().find(meets) {
                    let message = format!(
                        "`{name}` and `{other}` name the same ports, and their tasks share one network; a role's task I has \
                         those from begin + I × count on; network = \"task\" gives each task a network of its own"
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
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.~".contains(c))
}

/// As labels stand in variables.
fn variable(label: &str) -> String {
    label.to_ascii_uppercase().replace(['-', '.', '~'], "_")
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
