//! Huawei ModelArts: `MA_*` and `VC_*`, `--data_url` and `--train_url`; the first version with `DLS_*` and `BATCH_*`.

use super::topology::{self, Pairs, pair};
use super::{Task, host, join, parameters};
use crate::spec::{Framework, Profile, Strategy};

const OUTPUT: &str = "/home/ma-user/modelarts/outputs/train_url_0";
const HOME: &str = "/home/ma-user";

fn input(number: usize) -> String {
    format!("/home/ma-user/modelarts/inputs/data_url_{number}")
}

fn is_old(task: &Task<'_>) -> bool {
    task.spec.contract.profile == Profile::Old
}

/// Added for parameter servers and their workers only: most scripts parse strictly.
fn names_its_task(task: &Task<'_>) -> bool {
    task.spec.framework == Some(Framework::TensorFlow) && task.spec.strategy == Some(Strategy::Ps)
}

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let mut out = parameters::with_equals(&task.role.params);
    let has = |key: &str| task.role.params.iter().any(|(known, _)| known == key);
    let (data, train) = if is_old(task) { ("/home/work/data".to_owned(), "/output") } else { (input(0), OUTPUT) };
    if !task.spec.datasets.is_empty() && !has("data_url") {
        out.push(format!("--data_url={data}"));
    }
    if !has("train_url") {
        out.push(format!("--train_url={train}"));
    }
    if names_its_task(task) && task.peers().len() > 1 {
        out.extend([format!("--task_name={}", task_name(task)), format!("--task_index={}", task.index)]);
    }
    out
}

fn task_name(task: &Task<'_>) -> &'static str {
    if task.role.name.as_str().eq_ignore_ascii_case("ps") { "ps" } else { "worker" }
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    if is_old(task) { first(task) } else { second(task) }
}

fn second(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let job = host::dns(task.identity.key.job.as_str());
    let index = topology::rank(task).unwrap_or(task.index as usize);
    let mut out = vec![
        pair("MA_NUM_HOSTS", nodes.len()),
        pair("VC_WORKER_NUM", nodes.len()),
        pair("VC_TASK_INDEX", index),
        pair("VC_WORKER_HOSTS", join(nodes.iter().map(host::primary), ",")),
        pair("MA_VJ_NAME", &job),
        pair("MA_TASK_NAME", task_name(task)),
        pair("MA_CURRENT_INSTANCE_NAME", host::short(task)),
        pair("MA_CURRENT_HOST_IP", host::address(task)),
        pair("MA_CURRENT_IP", host::address(task)),
        pair("MA_NUM_GPUS", task.role.resources.gpu),
        pair("MA_HOME", HOME),
        pair("MA_JOB_DIR", format!("{HOME}/modelarts/user-job-dir")),
        pair("MA_MOUNT_PATH", format!("{HOME}/modelarts")),
        pair("MA_LOG_DIR", format!("{HOME}/modelarts/log")),
        pair("WORKSPACE", format!("{HOME}/modelarts/user-job-dir/code")),
        pair("MA_SCRIPT_INTERPRETER", ""),
        pair("PYTHONPATH", format!("{HOME}/modelarts/user-job-dir/code")),
        pair("train_url", OUTPUT),
    ];
    if !task.spec.datasets.is_empty() {
        out.push(pair("data_url", input(0)));
    }
    out.extend(tensorflow(task));
    out
}

fn first(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let mut out = vec![
        pair("DLS_TASK_INDEX", topology::rank(task).unwrap_or(0)),
        pair("DLS_TASK_NUMBER", nodes.len()),
        pair("DLS_APP_URL", "/home/work/user-job-dir/code"),
        pair("DLS_DATA_URL", "/home/work/data"),
        pair("DLS_TRAIN_URL", "/output"),
    ];
    match nodes.as_slice() {
        [one] => out.push(pair(format!("BATCH_{}.0_HOSTS", task.identity.key.job), topology::endpoint(one, 6666))),
        several => {
            let each = several.iter().enumerate();
            out.extend(
                each.map(|(number, node)| pair(format!("BATCH_CUSTOM{number}_HOSTS"), topology::endpoint(node, 6666))),
            );
        }
    }
    out.extend(tensorflow(task));
    out
}

fn tensorflow(task: &Task<'_>) -> Option<(String, String)> {
    let wanted = task.spec.framework == Some(Framework::TensorFlow);
    let config = wanted.then(|| topology::tf_config(task, topology::TF_PLAIN)).flatten();
    config.map(|config| pair("TF_CONFIG", config))
}
