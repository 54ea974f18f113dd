//! Alibaba PAI: training jobs of its SDK (`/ml`, `PAI_*`), the distributed DLC, and PAI-TF with its flags.

use serde_json::Value;

use super::command::quote;
use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, parameters};
use crate::spec::{Command, Dataset, Framework, Profile};

/// The SDK's jobs name `$PAI_USER_ARGS` in their command themselves; scripts of PAI-TF read flags.
pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    match task.spec.contract.profile {
        Profile::PaiTf => {
            let mut out = parameters::with_equals(&task.role.params);
            out.extend(["--buckets=/ml/input/data".to_owned(), "--checkpointDir=/ml/output/checkpoints".to_owned()]);
            if task.peers().len() > 1 {
                out.extend(topology::ps_flags(task));
            }
            out
        }
        _ => Vec::new(),
    }
}

pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let hyperparameters = parameters::compact(&parameters::python_texts(&task.role.params));
    let mut out = vec![SeenFile::new("/ml/input/config/hyperparameters.json", hyperparameters)];
    if let Command::Shell(text) = &task.role.command {
        let launch = "cd /ml/usercode\nexec sh /ml/input/config/execution/command.sh\n";
        out.push(SeenFile::program("/ml/input/config/execution/command.sh", format!("{text}\n")));
        out.push(SeenFile::program("/ml/input/config/launch.sh", launch));
    }
    out
}

/// A channel of a single file is told by that file.
pub fn name_single_file(env: &mut Pairs, dataset: &Dataset, file: &str) {
    let (channel, place) = channel(dataset);
    for (_, path) in env.iter_mut().filter(|(name, path)| *name == channel && *path == place) {
        *path = format!("{place}/{file}");
    }
}

fn channel(dataset: &Dataset) -> (String, String) {
    let name = dataset.seen_as();
    (format!("PAI_INPUT_{}", parameters::variable(name.as_str())), format!("/ml/input/data/{name}"))
}

/// Each value is quoted, then the quoted value once more: the command's shell takes one layer away.
fn user_args(task: &Task<'_>) -> String {
    let words = task.role.params.iter().map(|(key, param)| {
        let quoted = quote(&parameters::python_text(param));
        format!("{} {}", quote(&format!("--{key}")), quote(&quoted))
    });
    super::join(words, " ")
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let mut out = vec![
        pair("PAI_WORKING_DIR", "/ml/usercode/"),
        pair("PAI_OUTPUT_MODEL", "/ml/output/model"),
        pair("PAI_OUTPUT_CHECKPOINTS", "/ml/output/checkpoints"),
        pair("PAI_OUTPUT_LOGS", "/ml/output/logs"),
        pair("PAI_HPS", parameters::compact(&parameters::python_texts(&task.role.params))),
        pair("PAI_USER_ARGS", user_args(task)),
        pair("PAI_TRAINING_JOB_ID", &task.identity.key.job),
    ];
    for (key, param) in &task.role.params {
        out.push(pair(format!("PAI_HPS_{}", parameters::variable(key)), parameters::python_text(param)));
    }
    out.extend(task.spec.datasets.iter().map(channel));
    if task.peers().len() > 1 || task.spec.contract.profile == Profile::Dlc {
        out.extend(distributed(task));
    }
    out
}

/// As the DLC tells it: nodes are counted, not processes.
fn distributed(task: &Task<'_>) -> Pairs {
    let mut out = topology::torch(task, 23456);
    out.push(pair("NPROC_PER_NODE", task.role.resources.gpu.max(1)));
    if task.spec.framework == Some(Framework::TensorFlow) {
        out.extend(
            topology::tf_config(task, topology::TF_PLAIN)
                .map(|config| pair("TF_CONFIG", Value::String(config).as_str().unwrap_or_default())),
        );
    }
    out
}
