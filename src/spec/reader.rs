//! From the wire form of a job to its inner form, with everything that is wrong with its meaning.

mod bounds;
mod data;
mod durations;
mod git;
mod graphics;
mod mounts;
mod ports;
mod roles;
mod services;

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;

use super::check::FINDINGS_MAX;
use super::diagnostic::{Diagnostic, Source};
use super::image::Image;
use super::job::{DesiredState, JobSpec, ListItem, Network, OnEdit, Param, Priority, RETRY_ON, Retry, RetryOn, Role};
use super::platform::{Contract, FRAMEWORKS, Framework, STRATEGIES, Strategy};
use super::strategy::{self, Kinds};
use super::tree;
use super::wire::{WireJob, WireMap, WirePriority, WireRetry};
use crate::ids::{Bytes, JobName, RoleName, parse_duration};
use roles::RoleDefaults;

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
    let gpu_idle = graphics::gpu_idle(&wire.alerts);
    let durations = reader.durations(&wire);
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
    reader.network = network(wire.network.as_deref(), kinds.contract, &roles);
    let boards = reader.boards(wire.tensorboard.as_ref(), &roles);
    roles.extend(reader.services(&wire.services, boards, &defaults));
    reader.check_roles(&roles);
    reader.graphics_of_nobody(&defaults.resources, &roles);
    reader.warn_of_idle_nothing(&wire.alerts, &roles);
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
        resume: wire.resume,
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
        expected_duration: durations.expected,
        on_gpu_failure,
        gpu_idle,
        on_overrun: durations.on_overrun,
        max_duration: durations.max,
        state: state(wire.state.as_deref()),
        rerun: wire.rerun,
        roles: roles.into_iter().map(|(role, _)| role).collect(),
    })
}

fn network(word: Option<&str>, contract: Contract, roles: &[(Role, Range<usize>)]) -> Network {
    match word {
        Some("job") => Network::Job,
        Some("host") => Network::Host,
        Some(_) => Network::Task,
        None => default_network(contract, roles),
    }
}

/// Tasks with cards share one network, by which NCCL works as it comes. A launcher tells its hosts apart by their addresses, and scripts of
/// other platforms listen on the same port in each task.
fn default_network(contract: Contract, roles: &[(Role, Range<usize>)]) -> Network {
    let with_cards: u64 =
        roles.iter().filter(|(role, _)| role.resources.whole_cards() > 0).map(|(role, _)| u64::from(role.count)).sum();
    let is_launched = roles.iter().any(|(role, _)| role.command == strategy::idle());
    if with_cards > 1 && !is_launched && contract.tells_ports() { Network::Job } else { Network::Task }
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

    /// A template is put in before a job is read.
    fn not_put_together(&mut self, template: Option<&Spanned<String>>, with: Option<&Spanned<toml::Table>>) {
        if let Some(template) = template {
            let message = format!("there is no template {:?} here", template.get_ref());
            self.error(template.span(), "template", message);
        } else if let Some(with) = with {
            self.error(with.span(), "with", super::layers::WITH_ALONE);
        }
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
                    toml::Value::Array(items) => Param::List(self.list(items, value.span())),
                    toml::Value::Boolean(true) => Param::Flag,
                    toml::Value::String(text) => Param::Value(text.clone()),
                    other => Param::Plain(self.as_written(other, value.span())),
                };
                let longest = match &param {
                    Param::Flag => 0,
                    Param::Value(text) | Param::Plain(text) => text.len(),
                    Param::List(items) => items.iter().map(|item| item.as_str().len()).max().unwrap_or(0),
                };
                let what = format!("the argument --{}", key.get_ref());
                self.fits_exec("--=".len() + key.get_ref().len() + longest, &what, value.span(), path);
                (key.get_ref().clone(), param)
            })
            .collect()
    }

    /// Those in it as well.
    fn list(&self, items: &[toml::Value], span: Range<usize>) -> Vec<ListItem> {
        let forms = tree::forms_of_list(self.source.slice(span));
        let written = |(place, item): (usize, &toml::Value)| match item {
            toml::Value::String(text) => ListItem::Text(text.clone()),
            toml::Value::Float(_) => ListItem::Plain(forms.get(place).cloned().unwrap_or_else(|| item.to_string())),
            other => ListItem::Plain(other.to_string()),
        };
        items.iter().enumerate().map(written).collect()
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
}

fn in_file_order<T>(map: &WireMap<T>) -> impl Iterator<Item = (&Spanned<String>, &Spanned<T>)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter()
}

fn scalar(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
