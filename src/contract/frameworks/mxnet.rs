//! MXNet and BytePS: `DMLC_*` of ps-lite.

use crate::contract::Task;
use crate::contract::topology::{self, Pairs};

/// Where the scheduler of ps-lite listens.
const ROOT_PORT: u16 = 9091;

pub(in crate::contract) fn variables(task: &Task<'_>) -> Pairs {
    topology::dmlc(task, ROOT_PORT)
}
