//! TensorFlow: `TF_CONFIG` for parameter servers, for workers alone, with a chief and an evaluator.

use crate::contract::Task;
use crate::contract::topology::{self, Pairs, TfConfig, pair};
use crate::spec::Strategy;

pub(in crate::contract) fn variables(task: &Task<'_>) -> Pairs {
    let config = match task.spec.strategy {
        Some(Strategy::AllReduce) => topology::tf_workers(task, 2222),
        _ => topology::tf_config(task, TfConfig { ..topology::TF_PLAIN }),
    };
    config.map(|config| pair("TF_CONFIG", config)).into_iter().collect()
}
