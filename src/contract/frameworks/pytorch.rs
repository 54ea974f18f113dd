//! PyTorch and DeepSpeed: plain processes, and `torchrun`, which makes more of each.

use super::MEETING_PORT;
use crate::contract::Task;
use crate::contract::topology::{self, Pairs, pair};

/// A task is one process of the group unless `torchrun` makes more of it: then `WORLD_SIZE` and `RANK` are its own.
pub(in crate::contract) fn variables(task: &Task<'_>) -> Pairs {
    let mut out = topology::torch(task, MEETING_PORT);
    out.extend(topology::torchrun(task, MEETING_PORT));
    if let Some(rank) = topology::rank(task) {
        out.extend([pair("NODE_RANK", rank), pair("NNODES", topology::nodes(task).len()), pair("LOCAL_RANK", 0)]);
    }
    out
}
