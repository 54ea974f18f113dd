//! Volcano's plugins (`svc`, `env`, `tensorflow`, `pytorch`, `mpi`), and OpenI Octopus which stands on it.

use super::topology::{self, Environment, Pairs, TfConfig, pair};
use super::{SeenFile, Task, host, join, parameters};
use crate::ids::role_variables;
use crate::spec::{Contract, Framework, Platform, Profile, Role};

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    parameters::with_equals(&task.role.params)
}

fn is_octopus(task: &Task<'_>) -> bool {
    task.spec.contract == Contract { platform: Platform::Volcano, profile: Profile::Octopus }
}

/// Octopus numbers its sub-tasks itself, whatever people call them.
fn system_name(task: &Task<'_>, role: &Role) -> String {
    let number = task.spec.roles.iter().position(|other| other.name == role.name).unwrap_or(0);
    format!("task{number}")
}

/// What Octopus calls a task: `task0-1` is the second of the first role. Where a role of the file is called so, its tasks are meant.
pub(super) fn replica(task: &Task<'_>) -> Option<String> {
    let name = system_name(task, task.role);
    let is_taken = task.spec.roles.iter().any(|role| role.name.as_str() == name);
    (!task.role.is_service && !is_taken).then(|| format!("{name}-{}", task.index))
}

/// Every role by the names that its variables have, with its tasks.
fn roles<'a>(task: &Task<'a>) -> Vec<(String, Vec<Task<'a>>)> {
    let all = task.peers();
    let mut out = Vec::new();
    // Services are behind all members.
    let variables = role_variables(task.spec.roles.iter().map(|role| &role.name));
    for (role, variable) in task.spec.members().zip(variables) {
        let tasks: Vec<Task<'a>> = all.iter().filter(|peer| peer.role.name == role.name).copied().collect();
        if is_octopus(task) {
            out.push((parameters::variable(&system_name(task, role)), tasks.clone()));
        }
        // A role that is called like another one's number is found by its own number.
        let is_number =
            role.name.as_str().to_lowercase().strip_prefix("task").is_some_and(|rest| rest.parse::<u32>().is_ok());
        if !(is_octopus(task) && is_number) {
            out.push((variable, tasks));
        }
    }
    out
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let name = if is_octopus(task) { system_name(task, task.role) } else { task.role.name.to_string() };
    let mut out = vec![
        pair("TASKROLE_NAME", name),
        pair("TASKROLE_REPLICA_INDEX", task.index),
        pair("VC_TASK_INDEX", task.index),
        pair("VK_TASK_INDEX", task.index),
    ];
    for (name, tasks) in roles(task) {
        // Names, as Volcano gives them; the hosts file resolves them. Octopus gives addresses.
        out.push(pair(format!("VC_{name}_HOSTS"), join(tasks.iter().map(host::primary), ",")));
        out.push(pair(format!("VC_{name}_NUM"), tasks.len()));
    }
    if task.spec.contract.platform == Platform::Volcano && !is_octopus(task) {
        out.extend(of_framework(task));
    }
    out
}

fn of_framework(task: &Task<'_>) -> Pairs {
    match task.spec.framework {
        Some(Framework::TensorFlow) => {
            let style = TfConfig { environment: Environment::Absent, ..topology::TF_PLAIN };
            topology::tf_config(task, style).map(|config| pair("TF_CONFIG", config)).into_iter().collect()
        }
        Some(Framework::PyTorch) => topology::torch(task, 23456),
        Some(Framework::Mpi | Framework::Horovod) if task.leads() => {
            vec![pair("MPI_HOST", join(topology::mpi_hosts(task).iter().map(host::primary), ","))]
        }
        Some(Framework::MxNet) => topology::dmlc(task, 9000),
        _ => Vec::new(),
    }
}

/// `/etc/volcano/ROLE.host`: the hosts, one a line, without a line's end after the last.
pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let one = |(name, tasks): (String, Vec<Task<'_>>)| {
        let hosts = join(tasks.iter().map(host::primary), "\n");
        SeenFile::new(format!("/etc/volcano/{}.host", name.to_lowercase()), hosts)
    };
    roles(task).into_iter().map(one).collect()
}
