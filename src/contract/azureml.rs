//! Azure Machine Learning: a command with `${{inputs.NAME}}`, processes counted, `./outputs` and `./logs` kept.

use super::topology::{self, Alone, Pairs, TfConfig, pair};
use super::{Task, host, join, parameters};
use crate::spec::{Command, Framework, Platform, Role};

const INPUT: &str = "${{inputs.";
const OUTPUT: &str = "${{outputs.";

/// A command that names its inputs gets its parameters by them.
pub(super) fn arguments(task: &Task<'_>, command: &str) -> Vec<String> {
    if command.contains(INPUT) { Vec::new() } else { parameters::with_spaces(&task.role.params) }
}

/// Puts parameters and paths in the place of their names.
pub(super) fn substitute(task: &Task<'_>, command: &str) -> String {
    let mut out = command.to_owned();
    for (key, param) in &task.role.params {
        out = out.replace(&format!("{INPUT}{key}}}}}"), &super::command::quote(&parameters::text(param)));
    }
    let several = task.spec.datasets.len() > 1;
    for dataset in &task.spec.datasets {
        let name = dataset.seen_as();
        let path = if several { format!("/dataset/{name}") } else { "/dataset".to_owned() };
        out = out.replace(&format!("{INPUT}{name}}}}}"), &path);
    }
    // What is left names outputs, each a directory of the run's.
    while let Some((before, rest)) = out.split_once(OUTPUT) {
        let Some((name, after)) = rest.split_once("}}") else { break };
        out = format!("{before}/output/{name}{after}");
    }
    out
}

/// Directories of the outputs that a command names.
pub(super) fn outputs(role: &Role, platform: Platform) -> Vec<String> {
    let text = match &role.command {
        Command::Shell(text) => text.clone(),
        Command::Exec(words) => words.join(" "),
        Command::Default => return Vec::new(),
    };
    let names = text.split(OUTPUT).skip(1).filter_map(|rest| rest.split("}}").next());
    let plain = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    names.filter(|_| platform == Platform::AzureMl).filter(plain).map(|name| format!("/output/{name}")).collect()
}

/// The parameters and datasets that a command asks for and nobody gives.
pub(super) fn unknown_inputs(task: &Task<'_>, command: &str) -> Vec<String> {
    let left = substitute(task, command);
    left.split(INPUT).skip(1).filter_map(|rest| rest.split("}}").next()).map(str::to_owned).collect()
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let job = &task.identity.key.job;
    let id = format!("{job}-{}", task.identity.run);
    let nodes = topology::nodes(task);
    let mut out = vec![
        pair("AZUREML_RUN_ID", &id),
        pair("AZUREML_ROOT_RUN_ID", &id),
        pair("AZUREML_EXPERIMENT_ID", job),
        // A run of MLflow's that nobody has begun could not be written to: scripts begin their own, in files of the run's.
        pair("MLFLOW_TRACKING_URI", "file:///output/mlruns"),
        pair("MLFLOW_ALLOW_FILE_STORE", true),
        pair("MLFLOW_EXPERIMENT_NAME", job),
        pair("AZUREML_CR_EXECUTION_WORKING_DIR_PATH", "/code"),
        pair("AZ_BATCH_HOST_LIST", join(nodes.iter().map(host::primary), ",")),
    ];
    // Tasks that only serve have no rank.
    out.extend(topology::rank(task).into_iter().flat_map(|rank| {
        [
            pair("AZUREML_CR_NODE_RANK", rank),
            pair("AZUREML_PROCESS_NAME", format!("rank_{rank}")),
            pair("NODE_RANK", rank),
        ]
    }));
    out.extend(nodes.first().into_iter().flat_map(|master| {
        [
            pair("AZ_BATCH_MASTER_NODE", topology::endpoint(master, 6105)),
            pair("AZ_BATCHAI_MPI_MASTER_NODE", host::primary(master)),
        ]
    }));
    for (key, param) in &task.role.params {
        out.push(pair(format!("AZUREML_PARAMETER_{key}"), parameters::text(param)));
    }
    match task.spec.framework {
        Some(Framework::TensorFlow) => {
            let style = TfConfig { alone: Alone::Told, ..topology::TF_PLAIN };
            out.extend(topology::tf_config(task, style).map(|config| pair("TF_CONFIG", config)));
        }
        Some(Framework::PyTorch | Framework::DeepSpeed) => {
            out.extend(topology::torch(task, 6105));
            // One process a node: its rank on the node is 0. `torchrun` makes more of them, with their own numbers.
            out.push(pair("LOCAL_RANK", 0));
            out.extend(topology::torchrun(task, 6105));
        }
        _ => {}
    }
    out
}
