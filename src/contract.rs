//! What a container sees: its command line, environment, host name and hosts file. Pure functions of the job and
//! its placement; one file a platform whose names a task gets.

pub mod command;
pub mod native;
pub mod openpai;
pub mod volcano;

use std::collections::HashMap;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::ids::JobKey;
use crate::spec::{JobSpec, Role};

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
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlace {
    pub address: Ipv4Addr,
    /// Port numbers by label, in the order of the job file.
    pub ports: Vec<(String, Vec<u16>)>,
    /// Ports of the machine through which they are reached from elsewhere, where that is so; in the same order.
    #[serde(default)]
    pub published: Vec<(String, Vec<u16>)>,
    /// Processor cores that it is kept to; any when empty.
    #[serde(default)]
    pub cores: Vec<u32>,
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
}

/// One task among its peers.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    pub spec: &'a JobSpec,
    pub identity: &'a Identity,
    pub placement: &'a Placement,
    pub inside: &'a Inside,
    pub role: &'a Role,
    pub index: u32,
    pub ordinal: u32,
}

impl<'a> Task<'a> {
    /// The tasks of an attempt in order.
    pub fn all(spec: &'a JobSpec, identity: &'a Identity, placement: &'a Placement, inside: &'a Inside) -> Vec<Self> {
        let tasks = spec.tasks().zip(0..);
        tasks.map(|((role, index), ordinal)| Self { spec, identity, placement, inside, role, index, ordinal }).collect()
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

/// What is given to the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_directory: String,
    pub host_name: String,
    /// Content of `/etc/hosts`.
    pub hosts: String,
}

/// The view of one task. Later entries win: the user's own variables come last.
pub fn view(task: &Task<'_>) -> View {
    let mut env = Environment::default();
    env.extend(native::base(task));
    env.extend(task.inside.env.iter().cloned());
    env.extend(openpai::variables(task));
    env.extend(volcano::variables(task));
    env.extend(native::variables(task));
    env.extend(task.role.env.iter().cloned());
    View {
        args: command::line(task.role, &task.inside.command),
        env: env.entries,
        working_directory: native::working_directory(task),
        host_name: native::host_name(task),
        hosts: native::hosts(task),
    }
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
}

fn join<T: ToString>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests;
