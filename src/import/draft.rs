//! A job as the readers fill it in, before it is written: what every platform has, in the words of our job language.

use crate::ids::{Bytes, JobName, RoleName};
use crate::spec::keys::{COUNT_MAX, MEMORY_MIN};
use crate::spec::{Command, Diagnostic, Main, MinSucceeded, Port, parse};

use super::command::{self, Container};
use super::fields::{Fields, Source};
use super::node::Place;
use super::{ImportError, Imported, Loss, write};

#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// As in "a Volcano job".
    pub(super) origin: &'static str,
    pub(super) name: String,
    /// Empty for our own.
    pub(super) contract: &'static str,
    pub(super) framework: Option<&'static str>,
    pub(super) description: String,
    pub(super) datasets: Vec<String>,
    pub(super) network: Option<String>,
    pub(super) retries: u32,
    pub(super) max_duration_s: Option<u64>,
    pub(super) priority: Option<&'static str>,
    pub(super) debug: bool,
    /// The value of `state` where it is not "run".
    pub(super) state: Option<String>,
    /// Keys that no other platform has, as they are written.
    pub(super) own: Vec<(String, String)>,
    pub(super) env: Vec<(String, String)>,
    pub(super) extras: Vec<(String, toml::Value)>,
    pub(super) roles: Vec<DraftRole>,
    /// What keys of the job were made of.
    pub(super) sources: Vec<Source>,
    pub(super) losses: Vec<Loss>,
}

#[derive(Debug, Clone)]
pub(super) struct DraftRole {
    pub(super) name: String,
    pub(super) count: u32,
    pub(super) main: Main,
    /// That its end is not the job's, where that goes without saying nowhere.
    pub(super) says_not_main: bool,
    /// Only where it is not what its name says by itself.
    pub(super) serves: Option<bool>,
    /// `None` for never.
    pub(super) min_failed: Option<u32>,
    pub(super) min_succeeded: MinSucceeded,
    pub(super) image: Option<String>,
    pub(super) user: Option<String>,
    /// Keys as they are written.
    pub(super) own: Vec<(String, String)>,
    pub(super) command: Command,
    /// Of which `command` is, where Kubernetes starts it.
    pub(super) container: Option<Container>,
    /// As `params` makes them: `--key=value` or `--key`.
    pub(super) arguments: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) resources: DraftResources,
    pub(super) ports: Vec<Port>,
    /// What its keys were made of; the role itself first.
    pub(super) sources: Vec<Source>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DraftResources {
    /// Cores.
    pub(super) cpu: Option<f64>,
    pub(super) memory: Option<Bytes>,
    pub(super) shm: Option<Bytes>,
    pub(super) gpu: Option<u64>,
    pub(super) gpu_type: Option<String>,
    /// A share of one card.
    pub(super) gpu_memory: Option<Bytes>,
    pub(super) gpu_memory_over: Option<String>,
    /// A profile of MIG, of which `gpu` says how many.
    pub(super) mig: Option<String>,
    /// Processes and threads.
    pub(super) pids: Option<u32>,
}

/// Roles that serve by their name alone, as `spec` has it.
const SERVING: [&str; 4] = ["ps", "scheduler", "server", "tensorboard"];
/// What lays out the files of sshd, where their paths say so.
const OF_FILES: [&str; 10] = ["mkdir", "chmod", "chown", "cp", "mv", "ln", "cat", "echo", "sed", "touch"];
const CPU_MIN: f64 = 0.1;
const RETRIES: &str = "retries";
/// Most retries of a job and of a role.
pub(super) const RETRIES_MAX: u32 = 1000;

impl Draft {
    pub(super) fn new(origin: &'static str, name: String, contract: &'static str) -> Self {
        Self {
            origin,
            name,
            contract,
            framework: None,
            description: String::new(),
            datasets: Vec::new(),
            network: None,
            retries: 0,
            max_duration_s: None,
            priority: None,
            debug: false,
            state: None,
            own: Vec::new(),
            env: Vec::new(),
            extras: Vec::new(),
            roles: Vec::new(),
            sources: Vec::new(),
            losses: Vec::new(),
        }
    }

    /// Where what was read of `fields` stands, by the keys that it became.
    pub(super) fn came_from(&mut self, fields: &Fields, keys: &[(&'static str, &[&str])]) {
        self.sources.extend(keys.iter().map(|(key, names)| fields.source(key, names)));
    }

    pub(super) fn lose(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.losses.push(Loss { field: field.into(), line: 0, why: why.into() });
    }

    /// Retries as the platforms count them: below 0 is for ever, which is not to be had here.
    pub(super) fn retry(&mut self, field: &str, count: i64) {
        match u32::try_from(count) {
            Ok(count) if count <= RETRIES_MAX => self.retries = count,
            Ok(_) => {
                self.retries = RETRIES_MAX;
                self.lose(field, format!("is {count}; retries is {RETRIES_MAX} at most"));
            }
            Err(_) => {
                let again = if count == -2 { ", even after success" } else { "" };
                self.lose(
                    field,
                    format!("{count} tries again for ever{again}; retries is an upper bound here: set it"),
                );
            }
        }
    }

    /// Checks what no platform may ask for and prints the job.
    pub(super) fn finish(mut self) -> Result<Imported, ImportError> {
        self.check_roles()?;
        let name = self.job_name()?;
        self.fit_resources();
        command::finish(&mut self);
        let toml = write::job_file(&self);
        let toml = self.checked(toml)?;
        Ok(Imported { name, toml, losses: self.losses })
    }

    /// What the job language refuses is refused here, not by the daemon; what it knows and does not act on yet is told.
    fn checked(&mut self, toml: String) -> Result<String, ImportError> {
        let (_, found) = parse(&format!("{}.toml", self.name), &toml);
        let mut lines: Vec<String> = toml.lines().map(str::to_owned).collect();
        let mut is_changed = false;
        for finding in found.into_iter().filter(Diagnostic::is_error) {
            let key = finding.key.clone().unwrap_or_else(|| "the job".to_owned());
            let line = finding.line.checked_sub(1).and_then(|at| lines.get_mut(at));
            match line.filter(|_| finding.message.contains("not supported by this version yet")) {
                Some(line) => {
                    self.losses.push(Loss {
                        field: key,
                        line: 0,
                        why: "this version does not act on it yet".to_owned(),
                    });
                    line.insert_str(0, "# ");
                    is_changed = true;
                }
                None => {
                    let message = format!("cannot be: {}", finding.message);
                    return Err(match self.source(&key) {
                        Some(source) => ImportError::field(&source.field, source.place, message),
                        None => ImportError::field(&key, Place::default(), message),
                    });
                }
            }
        }
        // What was told first may have hidden what else there is.
        if is_changed { self.checked(lines.join("\n") + "\n") } else { Ok(toml) }
    }

    /// What a key of the job file was made of.
    fn source(&self, key: &str) -> Option<&Source> {
        let only = self.roles.len() == 1;
        let of_job = || self.sources.iter().find(|source| is_below(key, source.key));
        let of_role = self.roles.iter().find_map(|role| {
            let own = key.strip_prefix("roles.").and_then(|rest| rest.strip_prefix(role.name.as_str()));
            let own = match own {
                Some("") => "",
                Some(rest) => rest.strip_prefix('.')?,
                // What a single role has is the job's own.
                None => Some(key).filter(|key| only && !key.starts_with("roles."))?,
            };
            let is_of = |source: &&Source| match source.key {
                "" => key.starts_with("roles."),
                known => is_below(own, known),
            };
            role.sources.iter().filter(is_of).max_by_key(|source| source.key.len())
        });
        of_role.or_else(of_job)
    }

    fn check_roles(&self) -> Result<(), ImportError> {
        let refuse = |role: &DraftRole, message: String| {
            Err(match role.sources.first().filter(|source| !source.field.is_empty()) {
                Some(source) => {
                    let message = format!("is role {}, which {message}", role.name);
                    ImportError::field(&source.field, source.place, message)
                }
                None => ImportError::field(&format!("role {}", role.name), Place::default(), message),
            })
        };
        if self.roles.is_empty() {
            let found = self.sources.iter().find(|source| source.key == "roles");
            let (field, place) = found.map_or(("roles", Place::default()), |source| (&source.field, source.place));
            return Err(ImportError::field(field, place, "names no role: a job has one at least"));
        }
        let mut seen: Vec<(String, &str)> = Vec::new();
        for role in &self.roles {
            let name: RoleName = match role.name.parse() {
                Ok(name) => name,
                Err(error) => return refuse(role, format!("cannot be a role's name here: {error}")),
            };
            let variable = name.variable();
            if seen.iter().any(|(_, other)| *other == role.name) {
                return refuse(role, "is there twice; each role has a name of its own".to_owned());
            }
            if let Some((_, other)) =
                seen.iter().find(|(known, other)| *known == variable && role.name.is_ascii() && other.is_ascii())
            {
                return refuse(role, format!("would be {variable} in the environment, as role {other}"));
            }
            seen.push((variable, &role.name));
            if role.count < 1 || i64::from(role.count) > COUNT_MAX {
                return refuse(role, format!("has {} tasks, must have 1 to {COUNT_MAX}", role.count));
            }
            let succeeded = match role.min_succeeded {
                MinSucceeded::Count(count) => count,
                MinSucceeded::All | MinSucceeded::Never => 1,
            };
            if role.min_failed.unwrap_or(1).max(succeeded) > role.count {
                return refuse(role, format!("asks for more failures or successes than its {} task(s)", role.count));
            }
        }
        Ok(())
    }

    /// The name, made to fit where it does not.
    fn job_name(&mut self) -> Result<String, ImportError> {
        if self.name.parse::<JobName>().is_ok() {
            return Ok(self.name.clone());
        }
        let letter = |c: char| if c.is_alphanumeric() || "-_.~".contains(c) { c } else { '-' };
        let fitted: String = self.name.chars().map(letter).collect();
        let fitted: String = fitted.trim_start_matches(|c: char| !c.is_alphanumeric()).chars().take(64).collect();
        match fitted.parse::<JobName>() {
            Ok(_) => {
                self.lose("name", format!("{:?} cannot name a job here; it is {fitted}", self.name));
                Ok(fitted)
            }
            Err(error) => Err(ImportError::field("name", Place::default(), error.to_string())),
        }
    }

    fn fit_resources(&mut self) {
        let mut changed = Vec::new();
        for role in &mut self.roles {
            let wanted = &mut role.resources;
            if let Some(cpu) = wanted.cpu.filter(|cpu| *cpu < CPU_MIN) {
                changed.push((role.name.clone(), format!("{cpu} cores; {CPU_MIN} is the least here")));
                wanted.cpu = Some(CPU_MIN);
            }
            if let Some(memory) = wanted.memory.filter(|memory| memory.0 < MEMORY_MIN) {
                changed
                    .push((role.name.clone(), format!("{memory} of memory; {} is the least here", Bytes(MEMORY_MIN))));
                wanted.memory = Some(Bytes(MEMORY_MIN));
            }
            let memory = wanted.memory.unwrap_or(Bytes(1 << 30));
            if let Some(shm) = wanted.shm.filter(|shm| *shm > memory) {
                changed.push((
                    role.name.clone(),
                    format!("/dev/shm of {shm}; it counts as memory, so it is {memory} here"),
                ));
                wanted.shm = Some(memory);
            }
        }
        for (role, why) in changed {
            self.lose(format!("resources of {role}"), why);
        }
    }
}

impl DraftRole {
    /// Where its tasks only run sshd, so that ranks reach them, they run what stands for it here. What they do before that and is no
    /// preparation of sshd is told.
    pub(super) fn waits_for_ranks(&mut self, losses: &mut Vec<Loss>) {
        let dropped = match &self.command {
            Command::Exec(words) => match words.as_slice() {
                [shell, dash, text] if shell.ends_with("sh") && dash == "-c" => before_sshd(text),
                words => words.first().filter(|word| is_sshd(word)).map(|_| ""),
            },
            Command::Shell(text) => before_sshd(text),
            Command::Default => None,
        };
        let Some(dropped) = dropped.map(str::to_owned) else { return };
        self.command = Command::Default;
        if !dropped.is_empty() {
            let source = self.sources.iter().find(|source| source.key == "command");
            let (field, line) =
                source.map_or((format!("roles.{}", self.name), 0), |at| (at.field.clone(), at.place.line));
            let why = format!(
                "{:?} ran before sshd; here ranks are started without sshd and this role runs no command: put it into the image, or \
                 before the program that the launcher starts",
                dropped
            );
            losses.push(Loss { field, line, why });
        }
    }

    pub(super) fn new(name: String, count: u32) -> Self {
        Self {
            name,
            count,
            main: Main::No,
            says_not_main: false,
            serves: None,
            min_failed: Some(1),
            min_succeeded: MinSucceeded::All,
            image: None,
            user: None,
            own: Vec::new(),
            command: Command::Default,
            container: None,
            arguments: Vec::new(),
            env: Vec::new(),
            resources: DraftResources::default(),
            ports: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// Where what was read of `fields` stands, by the keys that it became.
    pub(super) fn came_from(&mut self, fields: &Fields, keys: &[(&'static str, &[&str])]) {
        if self.sources.is_empty() {
            self.sources.push(fields.source("", &[]));
        }
        self.sources.extend(keys.iter().map(|(key, names)| fields.source(key, names)));
    }

    /// Each of its tasks that failed is started again by itself, so many times at most.
    pub(super) fn try_again(&mut self, most: u32) {
        self.own.push((RETRIES.to_owned(), most.to_string()));
    }

    pub(super) fn tries_again(&self) -> bool {
        self.own.iter().any(|(key, _)| key == RETRIES)
    }

    /// Says whether the role holds the job open, where its name says something else.
    pub(super) fn holds_open(&mut self, holds: Holds) {
        let by_name = SERVING.contains(&self.name.as_str());
        let serves = holds == Holds::No;
        self.serves = (by_name != serves).then_some(serves);
    }
}

fn is_sshd(word: &str) -> bool {
    word == "sshd" || word.ends_with("/sshd")
}

/// What a line that ends in sshd does before, as it stands there; nothing where that only prepares sshd.
fn before_sshd(text: &str) -> Option<&str> {
    const ENDS: [char; 4] = [';', '\n', '&', '|'];
    let text = text.trim_end_matches(|letter: char| letter.is_whitespace() || ENDS.contains(&letter));
    // `2>&1` and `&>` end no command. As long as the text itself.
    let parted = text.replace(">&", "> ").replace("&>", " >");
    let (before, last) = parted.split_at(parted.rfind(ENDS).map_or(0, |end| end + 1));
    let last = last.trim();
    if !last.strip_prefix("exec ").unwrap_or(last).split_whitespace().next().is_some_and(is_sshd) {
        return None;
    }
    let mut commands = before.split(ENDS).map(str::trim).filter(|command| !command.is_empty());
    match commands.all(prepares_sshd) {
        true => Some(""),
        false => text
            .get(..before.len())
            .map(|before| before.trim_matches(|letter: char| letter.is_whitespace() || ENDS.contains(&letter))),
    }
}

/// Its directories, keys and settings, which nobody needs here.
fn prepares_sshd(command: &str) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let is_of_files = OF_FILES.contains(&program) && command.contains("ssh");
    is_of_files || ["ssh-keygen", "set", ":", "true"].contains(&program) || command.starts_with('#')
}

/// Whether the key `own` is `key`, or a part of it.
fn is_below(own: &str, key: &str) -> bool {
    own.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether the job waits for a role to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    Yes,
    No,
}
