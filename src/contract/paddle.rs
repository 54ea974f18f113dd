//! PaddlePaddle's own operator (PaddlePaddle/PaddleCloud), and its platform of 2018.

use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, host, join, naming, parameters};
use crate::spec::{Platform, Profile, Strategy};

const PORT: u16 = 2379;
/// Ports that a task may use from the first on.
const PORTS: u16 = topology::PORT_STEP;
const OLD_PORT: u16 = 7164;

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    parameters::with_equals(&task.role.params)
}

fn is_old(task: &Task<'_>) -> bool {
    task.spec.contract.profile == Profile::Old
}

fn servers<'a>(task: &Task<'a>) -> Vec<Task<'a>> {
    topology::called(task, &["ps", "pserver", "server"])
}

/// A server that is to end by itself is a node as well, but trains nothing.
fn trainers<'a>(task: &Task<'a>) -> Vec<Task<'a>> {
    let servers = servers(task);
    topology::nodes(task).into_iter().filter(|node| number(node, &servers).is_none()).collect()
}

/// Where the task stands among others.
fn number(task: &Task<'_>, among: &[Task<'_>]) -> Option<usize> {
    among.iter().position(|one| one.ordinal == task.ordinal)
}

pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    if !is_old(task) {
        return Vec::new();
    }
    let trainers = trainers(task);
    vec![
        SeenFile::new("/trainer_id", number(task, &trainers).unwrap_or(0).to_string()),
        SeenFile::new("/trainer_count", trainers.len().to_string()),
    ]
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    if is_old(task) { old(task) } else { modern(task) }
}

fn modern(task: &Task<'_>) -> Pairs {
    let servers = servers(task);
    let trainers = trainers(task);
    let serves = number(task, &servers).is_some();
    let role = if serves { "PSERVER" } else { "TRAINER" };
    let mut out = vec![
        pair("TRAINING_ROLE", role),
        pair("PADDLE_TRAINING_ROLE", role),
        pair("PADDLE_TRAINER_ID", number(task, &trainers).unwrap_or(task.index as usize)),
        pair("PADDLE_TRAINER_ENDPOINTS", endpoints(&trainers)),
        pair("PADDLE_TRAINERS", join(trainers.iter().map(host::address), ",")),
        pair("PADDLE_TRAINERS_NUM", trainers.len()),
        pair("POD_IP", host::address(task)),
        // Its launcher gives each process its own; where there is no launcher, a task is one process.
        pair("PADDLE_CURRENT_ENDPOINT", endpoint(task, PORT)),
        pair("PADDLE_PORT", topology::port(task, PORT)),
        pair("TRAINER_PORTS_NUM", PORTS),
        pair("PADDLE_JOB_ID", naming::job_name(task)),
    ];
    if task.spec.strategy == Some(Strategy::Ps) || !servers.is_empty() {
        out.push(pair("PADDLE_PSERVERS_IP_PORT_LIST", endpoints(&servers)));
    }
    if let Some(first) = servers.first().or(trainers.first()) {
        out.extend([
            pair("PADDLE_WITH_GLOO", 1),
            pair("PADDLE_GLOO_RENDEZVOUS", 3),
            pair("PADDLE_GLOO_HTTP_ENDPOINT", endpoint(first, PORT + PORTS - 2)),
        ]);
    }
    out.extend(launched(&trainers, PORT + PORTS - 3));
    if servers.is_empty() && task.spec.strategy != Some(Strategy::Ps) && trainers.len() > 1 {
        out.extend(of_one_process(task));
    }
    if task.spec.contract.platform == Platform::Native {
        // It would make `log` where it stands, in the code, which nobody writes to.
        out.push(pair("PADDLE_LOG_DIR", format!("/output/log/{}-{}", task.role.name, task.index)));
    }
    out
}

/// What `init_parallel_env` wants to know of a task that is one process: its launcher tells the same to each that it starts. Without
/// the backend Paddle (3.3) makes no group for processors or waits for ever, and without the card it ends.
fn of_one_process(task: &Task<'_>) -> Option<(String, String)> {
    match task.role.resources.gpu {
        0 => Some(pair("PADDLE_DISTRI_BACKEND", "gloo")),
        1 => Some(pair("FLAGS_selected_gpus", 0)),
        // A process for each is the launcher's to start.
        _ => None,
    }
}

/// By its address under every contract: Paddle looks for its own address, `POD_IP`, among these, and serves only as what it finds there.
fn endpoint(task: &Task<'_>, base: u16) -> String {
    format!("{}:{}", host::address(task), topology::port(task, base))
}

fn endpoints(tasks: &[Task<'_>]) -> String {
    join(tasks.iter().map(|task| endpoint(task, PORT)), ",")
}

/// What `paddle.distributed.launch` takes where it is given no arguments.
pub(super) fn launch(task: &Task<'_>, base: u16) -> Pairs {
    launched(&topology::nodes(task), base)
}

fn launched(nodes: &[Task<'_>], base: u16) -> Pairs {
    let Some(master) = nodes.first().filter(|_| nodes.len() > 1) else { return Vec::new() };
    vec![
        // The master itself takes the port at its own address.
        pair("PADDLE_MASTER", endpoint(master, base)),
        pair("PADDLE_NNODES", nodes.len()),
    ]
}

fn old(task: &Task<'_>) -> Pairs {
    let (servers, trainers) = (servers(task), trainers(task));
    vec![
        pair("PADDLE_INIT_PSERVERS", join(servers.iter().map(host::address), ",")),
        pair("PADDLE_INIT_PORT", OLD_PORT),
        pair("PADDLE_INIT_TRAINER_ID", number(task, &trainers).unwrap_or(0)),
        pair("PADDLE_INIT_NUM_GRADIENT_SERVERS", trainers.len()),
        pair("PADDLE_INIT_TRAINER_COUNT", task.role.resources.gpu.max(1)),
        pair("PADDLE_INIT_NUM_PASSES", 1),
        pair("PADDLE_INIT_USE_GPU", u8::from(task.role.resources.gpu > 0)),
        pair("PADDLE_JOB_NAME", naming::job_name(task)),
        pair("TRAINERS", trainers.len()),
        pair("PSERVERS", servers.len()),
        pair("TRAINER_PACKAGE", "/code"),
    ]
}
