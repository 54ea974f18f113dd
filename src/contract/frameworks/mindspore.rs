//! MindSpore: its dynamic cluster, with a scheduler that is a task of its own or the first worker.

use crate::contract::topology::{self, Pairs, pair};
use crate::contract::{Task, host};

pub(in crate::contract) fn variables(task: &Task<'_>) -> Pairs {
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
