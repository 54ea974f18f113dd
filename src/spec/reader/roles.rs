//! The roles of a job: how many tasks each has, what ends it, what each task runs and is given.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;

use super::{Reader, in_file_order};
use crate::ids::{Bytes, Cpu, RoleName, role_counts, role_ports, role_variables};
use crate::spec::image::Image;
use crate::spec::job::{Code, Command, Main, MinSucceeded, Network, Param, Resources, Role};
use crate::spec::platform::Platform;
use crate::spec::strategy;
use crate::spec::wire::{WireCommand, WireCount, WireMain, WireMap, WireResources, WireRole};

const DEFAULT_CPU: Cpu = Cpu(1000);
const DEFAULT_MEMORY: Bytes = Bytes(1 << 30);
const DEFAULT_PIDS: u32 = 8192;
/// What OpenPAI gives a task that asks for none.
const OPENPAI_SHM: Bytes = Bytes(64 << 20);
/// Most roles, and most tasks of all of them: each is made, watched and told of.
const ROLES_MAX: usize = 64;
const TASKS_MAX: u32 = 1000;

/// What a role falls back to.
pub(super) struct RoleDefaults {
    pub(super) image: Image,
    pub(super) user: Option<String>,
    pub(super) code: Option<Code>,
    pub(super) command: Option<WireCommand>,
    pub(super) params: Vec<(String, Param)>,
    pub(super) env: Vec<(String, String)>,
    pub(super) resources: WireResources,
}

impl Reader<'_> {
    /// A role as it is when its file says nothing of it, which runs the job's command.
    pub(super) fn plain_role(&mut self, defaults: &RoleDefaults) -> Role {
        let name = strategy::LEADER.parse().unwrap_or_else(|_| RoleName::main_role());
        self.role(name, &WireRole::default(), "", 0..0, defaults)
    }

    pub(super) fn check_roles(&mut self, roles: &[(Role, Range<usize>)]) {
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

    pub(super) fn roles(
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

    pub(super) fn too_many_tasks(&mut self, roles: &[(Role, Range<usize>)]) {
        let mut sum = 0u32;
        for (role, span) in roles {
            sum = sum.saturating_add(role.count);
            if sum > TASKS_MAX {
                let message = format!("a job has {TASKS_MAX} tasks at most, with role {} there are more", role.name);
                return self.error(span.clone(), &format!("roles.{}", role.name), message);
            }
        }
    }

    pub(super) fn role(
        &mut self,
        name: RoleName,
        wire: &WireRole,
        key: &str,
        span: Range<usize>,
        job: &RoleDefaults,
    ) -> Role {
        let count = wire.count.unwrap_or(1);
        let min_failed = self.min_failed(wire.min_failed.as_ref(), count, key);
        let min_succeeded = self.min_succeeded(wire.min_succeeded.as_ref(), count, key);
        if wire.min_failed.is_some() {
            self.warn_low_bounds(min_failed, min_succeeded, count, key, span.clone());
        }
        self.warn_main(wire, key, span);
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
            // Ranks are told of them, also where what runs by itself, which waits for ranks, takes no arguments.
            params: merge(&job.params, &self.params(&wire.params, &format!("{key}.params"))),
            env: merge(&job.env, &self.env(&wire.env, &format!("{key}.env"))),
            resources: self.resources(&job.resources, &wire.resources, key),
            ports: self.with_ports_of_platform(&wire.ports, count, key),
            name,
        }
    }

    pub(super) fn min_failed(&mut self, count: Option<&Spanned<WireCount>>, tasks: u32, key: &str) -> Option<u32> {
        match count.map(|count| (count.get_ref(), count.span())) {
            None => Some(1),
            Some((WireCount::Word(_), _)) => None,
            Some((WireCount::Number(number), span)) => {
                Some(self.within(*number, tasks, span, &format!("{key}.min_failed")))
            }
        }
    }

    pub(super) fn min_succeeded(&mut self, count: Option<&Spanned<WireCount>>, tasks: u32, key: &str) -> MinSucceeded {
        match count.map(|count| (count.get_ref(), count.span())) {
            None => MinSucceeded::All,
            Some((WireCount::Word(word), _)) if word == "never" => MinSucceeded::Never,
            Some((WireCount::Word(_), _)) => MinSucceeded::All,
            Some((WireCount::Number(number), span)) => {
                MinSucceeded::Count(self.within(*number, tasks, span, &format!("{key}.min_succeeded")))
            }
        }
    }

    pub(super) fn within(&mut self, number: u32, tasks: u32, span: Range<usize>, key: &str) -> u32 {
        if number > tasks {
            self.error(span, key, format!("`{key}` is {number}, but the role has only {tasks} task(s)"));
        }
        number
    }

    /// Two low bounds together mean that neither waits for the rest, which is rarely meant.
    pub(super) fn warn_low_bounds(
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

    /// A role that leads decides by its own end, whatever else is said of it.
    fn warn_main(&mut self, wire: &WireRole, key: &str, span: Range<usize>) {
        let (is_whole, led) = match &wire.main {
            Some(WireMain::Flag(true)) => (true, "true"),
            Some(WireMain::Word(_)) => (false, "\"first\""),
            Some(WireMain::Flag(false)) | None => return,
        };
        if let Some(never) =
            wire.min_failed.as_ref().filter(|bound| is_whole && matches!(bound.get_ref(), WireCount::Word(_)))
        {
            let message = format!(
                "`{key}.min_failed` = \"never\" and main = true contradict each other: a main role that fails fails the job, as \
                 main says; leave one of them out, or write main = \"first\", by which its first task alone decides"
            );
            self.found.push(self.source.warning(never.span(), &format!("{key}.min_failed"), message));
        }
        if wire.serves == Some(true) {
            let message = format!(
                "`{key}.serves` = true and main = {led} contradict each other: what only serves is stopped when the others have \
                 ended, but the end of a main role ends the job, as main says; leave one of them out"
            );
            self.found.push(self.source.warning(span, &format!("{key}.serves"), message));
        }
    }

    pub(super) fn default_shm(&self, memory: Bytes) -> Bytes {
        match self.kinds.contract.platform {
            Platform::OpenPai => OPENPAI_SHM.min(memory),
            _ => Bytes(memory.0 / 2),
        }
    }

    pub(super) fn resources(&mut self, job: &WireResources, role: &WireResources, key: &str) -> Resources {
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

    /// Two roles whose names become one variable would hide each other's hosts.
    pub(super) fn colliding_roles(&mut self, roles: &[(Role, Range<usize>)]) {
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let (mut known, mut seen): (BTreeMap<String, &str>, BTreeMap<String, &str>) = Default::default();
        let variables = role_variables(roles.iter().map(|(role, _)| &role.name));
        for ((role, span), variable) in roles.iter().zip(variables) {
            let name = role.name.as_str();
            let ports = role.ports.iter().map(|port| role_ports(&variable, &port.label));
            let mut own = role_counts(&variable).into_iter().chain(ports);
            let role_too = known.insert(variable.clone(), name).map(|other| (other, variable.clone()));
            // Of two of its own ports is told where these are read.
            let taken = |own: String| Some((seen.insert(own.clone(), name).filter(|other| *other != name)?, own));
            let meets = role_too.or_else(|| own.find_map(taken));
            let message = match meets {
                _ if !names.insert(name) => format!("two roles or services are called {name:?}; rename one"),
                Some((other, both)) => {
                    format!("the roles {other:?} and {name:?} would both be {both} in the environment; rename one")
                }
                None => continue,
            };
            self.error(span.clone(), &format!("roles.{name}"), message);
        }
    }
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

fn command(wire: Option<&WireCommand>) -> Command {
    match wire {
        None => Command::Default,
        Some(WireCommand::Shell(line)) => Command::Shell(line.clone()),
        Some(WireCommand::Exec(words)) => Command::Exec(words.clone()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_main_role_that_is_said_to_be_something_else_is_warned_of_by_both_keys() {
        let warned = |role: &str| {
            let (spec, found) = crate::spec::parse("x.toml", &format!("command = 'x'\n[roles.w]\n{role}\n[roles.v]"));
            assert!(spec.is_some(), "{found:?}");
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let never = warned("main = true\nmin_failed = 'never'");
        assert!(
            never[0].starts_with("x.toml:4:14: warning: `roles.w.min_failed` = \"never\" and main = true"),
            "{never:?}"
        );
        for (main, told) in [("true", "true"), ("'first'", "\"first\"")] {
            let serves = warned(&format!("main = {main}\nserves = true"));
            let told = format!("x.toml:2:8: warning: `roles.w.serves` = true and main = {told} contradict");
            assert!(serves.len() == 1 && serves[0].starts_with(&told), "{serves:?}");
        }
        for right in
            ["main = 'first'\nmin_failed = 'never'", "main = false\nserves = true", "main = true\nmin_failed = 1"]
        {
            assert_eq!(warned(right), [""; 0], "{right}");
        }
    }
}
