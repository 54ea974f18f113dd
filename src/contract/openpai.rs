//! `PAI_*`: the variables of OpenPAI (job tutorial of v0.x, with the names that v1.x kept).

use super::{Task, TaskPlace, join, naming};
use crate::ids::Bytes;
use crate::spec::{MinSucceeded, Role};

pub(super) fn variables(task: &Task<'_>) -> Vec<(String, String)> {
    let mut out = job(task);
    out.extend(current(task));
    for role in task.spec.members() {
        out.extend(of_role(task, role));
    }
    let mut out: Pairs = out.into_iter().map(|(name, value)| (format!("PAI_{name}"), value)).collect();
    out.extend(controller(task));
    out
}

/// The names of the controller below OpenPAI, which counts from 0: attempts of the whole, and in each of them those of a task.
fn controller(task: &Task<'_>) -> Pairs {
    vec![
        pair("FC_FRAMEWORK_NAME", naming::job_name(task)),
        pair("FC_FRAMEWORK_ATTEMPT_ID", task.identity.attempt.saturating_sub(1)),
        pair("FC_TASKROLE_NAME", &task.role.name),
        pair("FC_TASK_INDEX", task.index),
        pair("FC_TASK_ATTEMPT_ID", task.again),
    ]
}

type Pairs = Vec<(String, String)>;

fn pair(name: impl Into<String>, value: impl ToString) -> (String, String) {
    (name.into(), value.to_string())
}

fn job(task: &Task<'_>) -> Pairs {
    let roles: Vec<&Role> = task.spec.members().collect();
    let tasks: u32 = roles.iter().map(|role| role.count).sum();
    let list = join(roles.iter().map(|role| &role.name), ",");
    let user = &task.identity.user;
    let instances = task.peers().into_iter().map(|peer| format!("{}:{}", peer.role.name, peer.index));
    let mut out = vec![
        pair("TASK_ROLE_INSTANCES", join(instances, ",")),
        pair("JOB_NAME", naming::job_name(task)),
        pair("JOB_VC_NAME", &task.identity.key.workspace),
        pair("VIRTUAL_CLUSTER", &task.identity.key.workspace),
        pair("FRAMEWORK_NAME", naming::job_name(task)),
        pair("DEFAULT_FS_URI", ""),
        pair("DATA_DIR", "/dataset"),
        pair("OUTPUT_DIR", "/output"),
        pair("CODE_DIR", "/code"),
        pair("WORK_DIR", super::native::working_directory(task)),
    ];
    out.extend(["USER_NAME", "USERNAME"].map(|name| pair(name, user)));
    out.extend(["TASK_ROLE_COUNT", "TASK_ROLES_NUM", "JOB_TASK_ROLE_COUNT"].map(|name| pair(name, roles.len())));
    out.extend(["TASK_ROLE_LIST", "JOB_TASK_ROLE_LIST"].map(|name| pair(name, &list)));
    out.extend(["TASKS_NUM", "JOB_TASK_COUNT"].map(|name| pair(name, tasks)));
    out
}

/// Own role, own resources, own ports.
fn current(task: &Task<'_>) -> Pairs {
    let role = task.role;
    let own = "CURRENT_TASK_ROLE";
    let mut out = vec![
        pair(format!("{own}_NAME"), &role.name),
        pair("TASK_ROLE_NAME", &role.name),
        pair("CONTAINER_ID", container_id(task)),
        pair(format!("{own}_CURRENT_TASK_INDEX"), task.index),
        pair("TASK_INDEX", task.index),
        pair("TASK_ROLE_INDEX", task.index),
        pair(format!("{own}_TASK_COUNT"), role.count),
        pair("TASK_ROLE_NUM", role.count),
        pair(format!("{own}_CPU_COUNT"), cores(role)),
        pair("TASK_CPU_NUM", cores(role)),
        pair(format!("{own}_MEM_MB"), mebibytes(role.resources.memory)),
        pair("TASK_MEM_MB", mebibytes(role.resources.memory)),
        pair(format!("{own}_SHM_MB"), mebibytes(role.resources.shm)),
        pair(format!("{own}_GPU_COUNT"), role.resources.gpu),
        pair("TASK_GPU_NUM", role.resources.gpu),
        pair(format!("{own}_MIN_FAILED_TASK_COUNT"), min_failed(role)),
        pair(format!("{own}_MIN_SUCCEEDED_TASK_COUNT"), min_succeeded(role)),
    ];
    if let Some(place) = task.place() {
        out.extend(own_ports(place));
    }
    out
}

/// One that no other task has, of whatever attempt: all that scripts make of it is a name of their own.
fn container_id(task: &Task<'_>) -> String {
    let identity = task.identity;
    let (space, job) = (&identity.key.workspace, naming::job_name(task));
    format!("container_{space}_{job}_{}_{}_{}", identity.run, identity.attempt, task.ordinal)
}

fn own_ports(place: &TaskPlace) -> Pairs {
    let lists = place.ports.iter().map(|(label, ports)| format!("{label}:{};", join(ports, ",")));
    let mut out = vec![
        pair("CONTAINER_HOST_IP", place.address),
        pair("CURRENT_CONTAINER_IP", place.address),
        pair("CONTAINER_HOST_PORT_LIST", lists.collect::<String>()),
    ];
    for (label, ports) in &place.ports {
        out.push(pair(format!("CONTAINER_HOST_{label}_PORT_LIST"), join(ports, ",")));
    }
    if let Some(port) = first_port(place, "http") {
        out.extend(["CONTAINER_HOST_PORT", "CURRENT_CONTAINER_PORT"].map(|name| pair(name, port)));
    }
    if let Some(port) = first_port(place, "ssh") {
        out.push(pair("CONTAINER_SSH_PORT", port));
    }
    out
}

fn of_role(task: &Task<'_>, role: &Role) -> Pairs {
    let name = &role.name;
    let places = task.places_of(role);
    let gpu = role.resources.gpu;
    let resources =
        format!("{gpu},{},{},{}", cores(role), mebibytes(role.resources.memory), mebibytes(role.resources.shm));
    let mut out = vec![
        pair(format!("TASK_ROLE_TASK_COUNT_{name}"), role.count),
        pair(format!("RESOURCE_{name}"), resources),
        pair(format!("MIN_FAILED_TASK_COUNT_{name}"), min_failed(role)),
        pair(format!("MIN_SUCCEEDED_TASK_COUNT_{name}"), min_succeeded(role)),
    ];
    let with_http =
        places.iter().filter_map(|place| first_port(place, "http").map(|port| format!("{}:{port}", place.address)));
    out.push(pair(format!("TASK_ROLE_{name}_HOST_LIST"), join(with_http, ",")));
    for (index, place) in places.iter().enumerate() {
        out.push(pair(format!("HOST_IP_{name}_{index}"), place.address));
        for (label, ports) in &place.ports {
            let list = join(ports, ",");
            out.push(pair(format!("PORT_LIST_{name}_{index}_{label}"), &list));
            out.push(pair(format!("{name}_{index}_{label}_PORT"), list));
        }
    }
    out
}

fn first_port(place: &TaskPlace, label: &str) -> Option<u16> {
    let (_, ports) = place.ports.iter().find(|(known, _)| known == label)?;
    ports.first().copied()
}

/// OpenPAI counts whole cores; a fraction is told as the next whole one.
fn cores(role: &Role) -> u64 {
    role.resources.cpu.0.div_ceil(1000)
}

fn mebibytes(size: Bytes) -> u64 {
    size.0 >> 20
}

/// Empty for never, as v0.x told it.
fn min_failed(role: &Role) -> String {
    role.min_failed.map(|count| count.to_string()).unwrap_or_default()
}

fn min_succeeded(role: &Role) -> String {
    match role.min_succeeded {
        MinSucceeded::Count(count) => count.to_string(),
        MinSucceeded::All => role.count.to_string(),
        MinSucceeded::Never => String::new(),
    }
}
