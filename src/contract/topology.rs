//! The shapes in which platforms tell tasks of one another. Each is one function with the points in which platforms
//! differ as its parameters; the contracts choose them.

use serde_json::{Map, Value, json};

use super::{Task, host, join, parameters};
use crate::spec::Network;

pub(super) type Pairs = Vec<(String, String)>;

pub(super) fn pair(name: impl Into<String>, value: impl ToString) -> (String, String) {
    (name.into(), value.to_string())
}

/// How far apart the ports of two tasks are that share a network. A task of Paddle's may use as many from its first on, and two numbers
/// that a platform fixes in one job never lie a multiple of it apart: none meets another task's.
pub(super) const PORT_STEP: u16 = 20;

/// A port that a platform fixes: as it is where each task has an address of its own, else the tasks' differ.
pub(super) fn port(task: &Task<'_>, base: u16) -> u16 {
    match task.spec.network {
        Network::Task => base,
        Network::Job | Network::Host => {
            base.saturating_add(u16::try_from(task.ordinal).unwrap_or(0).saturating_mul(PORT_STEP))
        }
    }
}

/// `HOST:PORT`.
pub(super) fn endpoint(task: &Task<'_>, base: u16) -> String {
    format!("{}:{}", host::primary(task), port(task, base))
}

/// All that compute, the one that leads first.
pub(super) fn nodes<'a>(task: &Task<'a>) -> Vec<Task<'a>> {
    if task.spec.is_launched() {
        // The ranks are theirs, not the launcher's.
        return mpi_hosts(task);
    }
    let peers = task.peers();
    let all_serve = peers.iter().all(|peer| peer.role.serves);
    let mut nodes: Vec<Task<'a>> = peers.into_iter().filter(|peer| all_serve || !peer.role.serves).collect();
    nodes.sort_by_key(|peer| (!peer.leads(), peer.ordinal));
    nodes
}

/// A task's place among [`nodes`]; those that only serve have none.
pub(super) fn rank(task: &Task<'_>) -> Option<usize> {
    nodes(task).iter().position(|peer| peer.ordinal == task.ordinal)
}

/// Peers whose role is called so, whatever the case.
pub(super) fn called<'a>(task: &Task<'a>, names: &[&str]) -> Vec<Task<'a>> {
    let is = |peer: &Task<'_>| names.contains(&peer.role.name.as_str().to_lowercase().as_str());
    task.peers().into_iter().filter(is).collect()
}

/// What roles of parameter servers are called.
pub(super) const SERVERS: &[&str] = &["ps", "server", "pserver"];

/// How a platform writes `TF_CONFIG`.
#[derive(Debug, Clone, Copy)]
pub(super) struct TfConfig {
    pub(super) worker_port: u16,
    pub(super) ps_port: u16,
    /// The word for the one that leads, where the platform has one of its own.
    pub(super) chief: Option<&'static str>,
    pub(super) environment: Environment,
    pub(super) alone: Alone,
    pub(super) evaluator: Evaluator,
    /// The first node leads where no role does by its name.
    pub(super) first_leads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Environment {
    Cloud,
    Absent,
}

/// Whether a job of one task is told of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alone {
    Told,
    Untold,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evaluator {
    InCluster,
    Apart,
}

/// Kubeflow's, and so that of most.
pub(super) const TF_PLAIN: TfConfig = TfConfig {
    worker_port: 2222,
    ps_port: 2222,
    chief: None,
    environment: Environment::Cloud,
    alone: Alone::Untold,
    evaluator: Evaluator::InCluster,
    first_leads: false,
};

/// What TensorFlow calls the tasks of a role.
fn tf_type(task: &Task<'_>, chief: Option<&'static str>) -> &'static str {
    match task.role.name.as_str().to_lowercase().as_str() {
        "ps" | "server" | "pserver" => "ps",
        "chief" => chief.unwrap_or("chief"),
        "master" => chief.unwrap_or("master"),
        "evaluator" => "evaluator",
        _ => "worker",
    }
}

/// `TF_CONFIG` made of the roles.
pub(super) fn tf_config(task: &Task<'_>, style: TfConfig) -> Option<String> {
    let of_tf = |peer: &Task<'_>| peer.role.name.as_str() != "tensorboard" && peer.role.name.as_str() != "scheduler";
    let peers: Vec<Task<'_>> = task.peers().into_iter().filter(of_tf).collect();
    if (peers.len() < 2 && style.alone == Alone::Untold) || !of_tf(task) {
        return None;
    }
    let mut cluster: Vec<(&'static str, Vec<String>)> = Vec::new();
    let mut own = 0;
    let is_led = peers.iter().any(|peer| ["chief", "master"].contains(&tf_type(peer, None)));
    let first = nodes(task).first().map(|node| node.ordinal).filter(|_| style.first_leads && !is_led);
    let kind_of = |peer: &Task<'_>| match first {
        Some(first) if first == peer.ordinal => style.chief.unwrap_or("chief"),
        _ => tf_type(peer, style.chief),
    };
    for peer in &peers {
        let kind = kind_of(peer);
        let base = if kind == "ps" { style.ps_port } else { style.worker_port };
        let at = cluster.iter().position(|(known, _)| *known == kind).unwrap_or_else(|| {
            cluster.push((kind, Vec::new()));
            cluster.len() - 1
        });
        let Some((_, members)) = cluster.get_mut(at) else { continue };
        if peer.ordinal == task.ordinal {
            own = members.len();
        }
        members.push(endpoint(peer, base));
    }
    if style.evaluator == Evaluator::Apart {
        cluster.retain(|(kind, _)| *kind != "evaluator");
    }
    Some(tf_json(&cluster, (kind_of(task), own), style.environment))
}

/// `TF_CONFIG` where every node both computes and may hold parameters: node 0 is the master, the others are workers, and the
/// platform starts the parameter servers beside them.
pub(super) fn tf_config_by_nodes(
    task: &Task<'_>,
    worker_port: u16,
    ps_port: u16,
    with_ps: &[Task<'_>],
) -> Option<String> {
    let (nodes, own_servers) = (nodes(task), called(task, SERVERS));
    // Where the file has servers of its own, these are meant.
    let servers = if own_servers.is_empty() { with_ps } else { own_servers.as_slice() };
    let serves = own_servers.iter().position(|server| server.ordinal == task.ordinal);
    let own = match (serves, rank(task).filter(|_| nodes.len() > 1)) {
        (Some(index), _) => ("ps", index),
        (None, Some(0)) => ("master", 0),
        (None, Some(rank)) => ("worker", rank - 1),
        (None, None) => return None,
    };
    let (master, workers) = nodes.split_first()?;
    let mut cluster = vec![("master", vec![endpoint(master, worker_port)])];
    if !servers.is_empty() {
        cluster.push(("ps", servers.iter().map(|node| endpoint(node, ps_port)).collect()));
    }
    cluster.push(("worker", workers.iter().map(|node| endpoint(node, worker_port)).collect()));
    Some(tf_json(&cluster, own, Environment::Cloud))
}

/// `TF_CONFIG` of nodes that are all alike.
pub(super) fn tf_workers(task: &Task<'_>, base: u16) -> Option<String> {
    let nodes = nodes(task);
    let rank = rank(task).filter(|_| nodes.len() > 1)?;
    let workers = nodes.iter().map(|node| endpoint(node, base)).collect();
    Some(tf_json(&[("worker", workers)], ("worker", rank), Environment::Cloud))
}

pub(super) fn tf_json(
    cluster: &[(&'static str, Vec<String>)],
    (kind, index): (&str, usize),
    environment: Environment,
) -> String {
    let members: Map<String, Value> =
        cluster.iter().map(|(kind, members)| ((*kind).to_owned(), json!(members))).collect();
    let mut out = json!({ "cluster": members, "task": { "type": kind, "index": index } });
    if let (Environment::Cloud, Some(out)) = (environment, out.as_object_mut()) {
        out.insert("environment".to_owned(), json!("cloud"));
    }
    parameters::compact(&out)
}

/// `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, `RANK`: one for each node.
pub(super) fn torch(task: &Task<'_>, base: u16) -> Pairs {
    let nodes = nodes(task);
    let (Some(rank), Some(master)) = (rank(task), nodes.first()) else { return Vec::new() };
    vec![
        pair("MASTER_ADDR", host::primary(master)),
        pair("MASTER_PORT", port(master, base)),
        pair("WORLD_SIZE", nodes.len()),
        pair("RANK", rank),
    ]
}

/// What `torchrun` takes for its arguments where it is given none, and makes the processes' own variables of.
pub(super) fn torchrun(task: &Task<'_>, base: u16) -> Pairs {
    let nodes = nodes(task);
    let (Some(rank), Some(master)) = (rank(task), nodes.first()) else { return Vec::new() };
    vec![
        pair("PET_NNODES", nodes.len()),
        pair("PET_NODE_RANK", rank),
        pair("PET_NPROC_PER_NODE", task.role.resources.gpu.max(1)),
        pair("PET_MASTER_ADDR", host::primary(master)),
        pair("PET_MASTER_PORT", port(master, base)),
    ]
}

/// `DMLC_*` of MXNet's parameter servers and of BytePS.
pub(super) fn dmlc(task: &Task<'_>, base: u16) -> Pairs {
    let (schedulers, servers) = (called(task, &["scheduler"]), called(task, &["server", "ps"]));
    let workers: Vec<_> = nodes(task);
    let Some(root) = schedulers.first().or(workers.first()) else { return Vec::new() };
    let role = match task.role.name.as_str().to_lowercase().as_str() {
        "scheduler" => "scheduler",
        "server" | "ps" => "server",
        _ => "worker",
    };
    let mut out = vec![
        pair("DMLC_ROLE", role),
        pair("DMLC_PS_ROOT_URI", host::address(root)),
        pair("DMLC_PS_ROOT_PORT", port(root, base)),
        pair("DMLC_NUM_SERVER", servers.len() + super::servers::nodes(task).len()),
        pair("DMLC_NUM_WORKER", workers.len()),
    ];
    if role == "worker" {
        out.push(pair("DMLC_WORKER_ID", rank(task).unwrap_or(0)));
    }
    out
}

/// Which host runs how many ranks of MPI: those that wait for them or, where there are none, all.
pub(super) fn mpi_hosts<'a>(task: &Task<'a>) -> Vec<Task<'a>> {
    if !task.spec.is_launched() {
        return nodes(task);
    }
    let peers = task.peers();
    let waiting: Vec<Task<'a>> = peers.iter().filter(|peer| peer.role.serves && !peer.leads()).copied().collect();
    if waiting.is_empty() { peers } else { waiting }
}

/// Ranks of a host: as the file says, or one for each card, or for each whole core.
pub(super) fn slots(task: &Task<'_>) -> u64 {
    if let Some(slots) = task.role.slots {
        return u64::from(slots);
    }
    match task.role.resources.gpu {
        0 => (task.role.resources.cpu.0 / 1000).max(1),
        cards => u64::from(cards),
    }
}

/// Endpoints with commas between them.
pub(super) fn endpoints(tasks: &[Task<'_>], base: u16) -> String {
    join(tasks.iter().map(|task| endpoint(task, base)), ",")
}

/// Flags of TensorFlow's first generation: `--job_name`, `--task_index`, `--ps_hosts`, `--worker_hosts`.
pub(super) fn ps_flags(task: &Task<'_>) -> Vec<String> {
    let (ps, workers) = (called(task, SERVERS), nodes(task));
    let kind = if tf_type(task, None) == "ps" { "ps" } else { "worker" };
    let index = if kind == "ps" { task.index as usize } else { rank(task).unwrap_or(0) };
    vec![
        format!("--job_name={kind}"),
        format!("--task_index={index}"),
        format!("--ps_hosts={}", endpoints(&ps, 2222)),
        format!("--worker_hosts={}", endpoints(&workers, 2222)),
    ]
}
