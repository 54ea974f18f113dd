//! XGBoost: where its tracker is, and who is who.

use super::MEETING_PORT;
use crate::contract::topology::{self, Pairs, pair};
use crate::contract::{Task, host};

/// The tracker belongs to the first, which starts it (`xgboost.tracker.RabitTracker`).
pub(in crate::contract) fn variables(task: &Task<'_>) -> Pairs {
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
