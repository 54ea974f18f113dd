//! Cluster variables of frameworks, made from the roles of a job that was written for no other platform.

use super::topology::{self, Pairs, TfConfig, pair};
use super::{Task, host, paddle};
use crate::spec::{Framework, Strategy};

/// The port at which the first of the cluster is met.
const MEETING_PORT: u16 = 29500;

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    match task.spec.framework {
        Some(Framework::PyTorch | Framework::DeepSpeed) => pytorch(task),
        Some(Framework::TensorFlow) => tensorflow(task),
        Some(Framework::MxNet) => topology::dmlc(task, 9091),
        Some(Framework::XgBoost) => xgboost(task),
        Some(Framework::Paddle) => paddle::variables(task),
        Some(Framework::MindSpore) => mindspore(task),
        Some(Framework::Jax) => jax(task),
        Some(Framework::Mpi | Framework::Horovod) => super::mpi::variables(task),
        None => Vec::new(),
    }
}

/// A task is one process of the group unless `torchrun` makes more of it: then `WORLD_SIZE` and `RANK` are its own.
fn pytorch(task: &Task<'_>) -> Pairs {
    let mut out = topology::torch(task, MEETING_PORT);
    out.extend(topology::torchrun(task, MEETING_PORT));
    if let Some(rank) = topology::rank(task) {
        out.extend([pair("NODE_RANK", rank), pair("NNODES", topology::nodes(task).len()), pair("LOCAL_RANK", 0)]);
    }
    out
}

fn tensorflow(task: &Task<'_>) -> Pairs {
    let config = match task.spec.strategy {
        Some(Strategy::AllReduce) => topology::tf_workers(task, 2222),
        _ => topology::tf_config(task, TfConfig { ..topology::TF_PLAIN }),
    };
    config.map(|config| pair("TF_CONFIG", config)).into_iter().collect()
}

/// The tracker belongs to the first, which starts it (`xgboost.tracker.RabitTracker`).
fn xgboost(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let (Some(rank), Some(first)) = (topology::rank(task), nodes.first()) else { return Vec::new() };
    let mut out = topology::torch(task, MEETING_PORT);
    out.extend([
        pair("DMLC_TRACKER_URI", host::address(first)),
        pair("DMLC_TRACKER_PORT", topology::port(first, 9091)),
        pair("DMLC_TASK_ID", rank),
        pair("DMLC_NUM_WORKER", nodes.len()),
        pair("DMLC_NUM_SERVER", 0),
    ]);
    out
}

pub(super) fn mindspore(task: &Task<'_>) -> Pairs {
    let (schedulers, servers) = (topology::called(task, &["scheduler"]), topology::called(task, &["ps", "server"]));
    let workers = topology::nodes(task);
    let Some(scheduler) = schedulers.first().or(workers.first()) else { return Vec::new() };
    let is = |all: &[Task<'_>]| all.iter().any(|peer| peer.ordinal == task.ordinal);
    let role = match () {
        () if is(&schedulers) => "MS_SCHED",
        () if is(&servers) => "MS_PSERVER",
        () => "MS_WORKER",
    };
    vec![
        pair("MS_ROLE", role),
        pair("MS_SCHED_HOST", host::address(scheduler)),
        pair("MS_SCHED_PORT", topology::port(scheduler, 8118)),
        pair("MS_WORKER_NUM", workers.len()),
        pair("MS_SERVER_NUM", servers.len()),
        pair("MS_NODE_ID", topology::rank(task).unwrap_or(task.index as usize)),
        pair("MS_WORKER_IP", host::address(task)),
    ]
}

fn jax(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let (Some(rank), Some(first)) = (topology::rank(task), nodes.first()) else { return Vec::new() };
    vec![
        pair("JAX_COORDINATOR_ADDRESS", topology::endpoint(first, MEETING_PORT)),
        pair("JAX_NUM_PROCESSES", nodes.len()),
        pair("JAX_PROCESS_ID", rank),
        pair("COORDINATOR_ADDRESS", host::primary(first)),
        pair("COORDINATOR_PORT", topology::port(first, MEETING_PORT)),
        pair("NUM_PROCESSES", nodes.len()),
        pair("PROCESS_ID", rank),
    ]
}
