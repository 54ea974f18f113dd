//! UCloud UAI-Train (ucloud/uai-sdk): everything below `/data`, told by arguments.

use super::topology::{self, Pairs, pair};
use super::{Task, host, join, parameters, servers};
use crate::spec::Framework;

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let mut out = parameters::with_equals(&task.role.params);
    if task.role.resources.gpu > 0 {
        out.push(format!("--num_gpus={}", task.role.resources.gpu));
    }
    let fixed = ["--work_dir=/data", "--data_dir=/data/data", "--output_dir=/data/output", "--log_dir=/data/output"];
    out.extend(fixed.map(str::to_owned));
    out
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let mut out = vec![pair("UAI_HOSTS", join(nodes.iter().map(host::primary), ","))];
    match task.spec.framework {
        // Every node is asked for parameters as well, on a port of its own.
        Some(Framework::TensorFlow) => {
            let config = topology::tf_config_by_nodes(task, 2222, 2223, &servers::nodes(task));
            out.extend(config.map(|config| pair("TF_CONFIG", config)));
        }
        Some(Framework::MxNet) => {
            out.extend(topology::dmlc(task, 9091));
            out.push(pair("PS_VERBOSE", 1));
        }
        _ => {}
    }
    out
}
