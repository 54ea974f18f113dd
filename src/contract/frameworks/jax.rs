//! JAX: its coordinator, under the names of JAX itself and of Kubeflow.

use super::MEETING_PORT;
use crate::contract::topology::{self, Pairs, pair};
use crate::contract::{Task, host};

pub(in crate::contract) fn variables(task: &Task<'_>) -> Pairs {
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
