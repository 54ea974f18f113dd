//! Tencent TI-ONE: the first generation (智能钛 SDK, package ti-containers) with `TM_*` and the tree below `/opt/ml`, the
//! second with `NODE_LIST` and one rank a node.

use serde_json::{Value, json};

use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, command, host, join, parameters, sagemaker, servers};
use crate::spec::{Framework, Param};

/// Keys that the platform keeps for itself.
const RESERVED: &str = "ti_";

fn own(task: &Task<'_>) -> Vec<(String, Param)> {
    task.role.params.iter().filter(|(key, _)| !key.starts_with(RESERVED)).cloned().collect()
}

/// As its launcher has them: each value is what `json.loads` makes of it, as `str` writes that; a flag alone only where that is blank.
pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let one = |(key, param): (String, Param)| {
        let value = parameters::python_str(&parameters::decoded(&param));
        [Some(format!("--{key}")), Some(value).filter(|value| !value.trim().is_empty())]
    };
    own(task).into_iter().flat_map(one).flatten().collect()
}

fn hosts(task: &Task<'_>) -> Vec<String> {
    topology::nodes(task).iter().map(host::primary).collect()
}

fn spaced(value: &Value) -> String {
    parameters::json(value, parameters::SPACED)
}

pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let file =
        |name: &str, value: Value| SeenFile::new(format!("/opt/ml/input/config/{name}"), parameters::compact(&value));
    vec![
        file("hyperparameters.json", parameters::texts(&task.role.params)),
        file("inputdataconfig.json", sagemaker::input_config(task)),
        file("resourceconfig.json", json!({ "hosts": hosts(task), "current_host": host::primary(task) })),
    ]
}

/// The script that the job names.
pub(super) fn program(task: &Task<'_>) -> Option<String> {
    let param = task.role.params.iter().find(|(key, _)| key == "ti_program");
    param.map(|(_, param)| parameters::text(param)).filter(|program| !program.is_empty())
}

pub(super) fn first(task: &Task<'_>) -> Pairs {
    let channels: Vec<String> = task.spec.datasets.iter().map(|dataset| dataset.seen_as().to_string()).collect();
    let hps: Value = own(task).iter().map(|(key, param)| (key.clone(), parameters::decoded(param))).collect();
    let framework = match task.spec.framework {
        Some(Framework::TensorFlow) => "tensorflow",
        Some(Framework::PyTorch) => "pytorch",
        Some(Framework::MxNet) => "mxnet",
        _ => "sklearn",
    };
    let mut out = vec![
        pair("TI_TRAINING_FRAMEWORK", framework),
        pair("TM_NETWORK_INTERFACE_NAME", super::native::interface(task).unwrap_or("eth0")),
        pair("TM_USER_ENTRY_POINT", program(task).or_else(|| command::script(task)).unwrap_or_default()),
        pair("TM_HPS", spaced(&hps)),
        pair("TM_CHANNELS", spaced(&json!(channels))),
        pair("TM_NUM_CPUS", task.role.resources.cpu.0.div_ceil(1000)),
        pair("TM_NUM_GPUS", task.role.resources.gpu),
        pair("TM_LOG_LEVEL", 20),
        pair("TM_MODEL_DIR", "/opt/ml/model"),
        pair("TM_OUTPUT_DATA_DIR", "/opt/ml/output/data"),
        pair("TM_INPUT_CONFIG_DIR", "/opt/ml/input/config"),
        pair("TM_HOSTS", spaced(&json!(hosts(task)))),
        pair("TM_CURRENT_HOST", host::primary(task)),
    ];
    for channel in &channels {
        out.push(pair(format!("TM_CHANNEL_{}", channel.to_uppercase()), format!("/opt/ml/input/data/{channel}")));
    }
    out.extend(of_framework(task));
    out
}

fn of_framework(task: &Task<'_>) -> Pairs {
    match task.spec.framework {
        Some(Framework::TensorFlow) => {
            let config = topology::tf_config_by_nodes(task, 5555, 5556, &servers::nodes(task));
            config.map(|config| pair("TF_CONFIG", config)).into_iter().collect()
        }
        Some(Framework::PyTorch) => {
            let mut out = topology::torch(task, 6666);
            // This generation sets no more than the place of the first.
            out.retain(|(name, _)| name.starts_with("MASTER_"));
            out
        }
        Some(Framework::MxNet) => {
            let mut out = topology::dmlc(task, 7777);
            out.push(pair("PS_VERBOSE", 0));
            out
        }
        _ => Vec::new(),
    }
}

pub(super) fn second(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let cards = |node: &Task<'_>| node.role.resources.gpu;
    let list = nodes.iter().map(|node| format!("{}:{}", host::primary(node), cards(node)));
    let mut out = topology::torch(task, 23456);
    out.extend([
        pair("NODE_LIST", join(list, ",")),
        pair("INDEX", topology::rank(task).unwrap_or(0)),
        pair("GPU_NUM", nodes.iter().map(cards).sum::<u32>()),
        pair("GPU_NUM_PER_NODE", task.role.resources.gpu),
    ]);
    if task.spec.framework == Some(Framework::TensorFlow) {
        out.extend(topology::tf_config(task, topology::TF_PLAIN).map(|config| pair("TF_CONFIG", config)));
    }
    out
}
