//! Huawei ModelArts: `MA_*` and `VC_*`, `--data_url` and `--train_url`; the first version with `DLS_*` and `BATCH_*`.

use super::topology::{self, Pairs, pair};
use super::{Task, host, join, parameters};
use crate::spec::{Code, Dataset, Framework, Profile, Strategy};

const OUTPUT: &str = "/home/ma-user/modelarts/outputs/train_url_0";
const HOME: &str = "/home/ma-user";

/// The inputs as scripts are told of them: the parameter, and where it leads. Its name is the user's; the platform's own word
/// for the first.
pub(super) fn inputs(task: &Task<'_>) -> Vec<(String, String)> {
    let one = |(number, dataset): (usize, &Dataset)| match &dataset.channel {
        // As the numbered ones are called.
        Some(channel) if channel.as_str() == "data_url" => {
            (channel.to_string(), format!("{HOME}/modelarts/inputs/data_url_{number}"))
        }
        Some(channel) => (channel.to_string(), format!("{HOME}/modelarts/inputs/{channel}_0")),
        None => ("data_url".to_owned(), format!("{HOME}/modelarts/inputs/data_url_{number}")),
    };
    task.spec.datasets.iter().enumerate().map(one).collect()
}

/// The last part of the code's path, by which its directory is called.
pub(super) fn code_name<'a>(task: &Task<'a>) -> &'a str {
    match &task.role.code {
        Some(Code::Named { name, .. }) => name.as_str(),
        Some(Code::Git(git)) => {
            let name = git.url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            Some(name.strip_suffix(".git").unwrap_or(name))
                .filter(|name| !["", ".", ".."].contains(name))
                .unwrap_or("code")
        }
        None => "code",
    }
}

/// Where the platform's scripts find the code.
pub(super) fn code_place(task: &Task<'_>) -> String {
    let top = if is_old(task) { "/home/work" } else { "/home/ma-user/modelarts" };
    format!("{top}/user-job-dir/{}", code_name(task))
}

fn is_old(task: &Task<'_>) -> bool {
    task.spec.contract.profile == Profile::Old
}

/// Added for parameter servers and their workers only: most scripts parse strictly.
fn names_its_task(task: &Task<'_>) -> bool {
    task.spec.framework == Some(Framework::TensorFlow)
        && task.spec.strategy == Some(Strategy::Ps)
        && !topology::called(task, topology::SERVERS).is_empty()
}

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let mut out = parameters::with_equals(&task.role.params);
    let has = |key: &str| task.role.params.iter().any(|(known, _)| known == key);
    let (data, train) = match is_old(task) {
        true if task.spec.datasets.is_empty() => (Vec::new(), "/output"),
        true => (vec![("data_url".to_owned(), "/home/work/data".to_owned())], "/output"),
        false => (inputs(task), OUTPUT),
    };
    let mut told: Vec<&str> = Vec::new();
    for (name, path) in &data {
        // What has no name of its own is told once.
        if !has(name) && !told.contains(&name.as_str()) {
            out.push(format!("--{name}={path}"));
            told.push(name);
        }
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
        pair("WORKSPACE", code_place(task)),
        pair("MA_SCRIPT_INTERPRETER", ""),
        pair("PYTHONPATH", code_place(task)),
        pair("train_url", OUTPUT),
    ];
    for (name, path) in inputs(task) {
        if !out.iter().any(|(known, _)| *known == name) {
            out.push((name, path));
        }
    }
    out.extend(tensorflow(task));
    out
}

fn first(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let mut out = vec![
        pair("DLS_TASK_INDEX", topology::rank(task).unwrap_or(0)),
        pair("DLS_TASK_NUMBER", nodes.len()),
        pair("DLS_APP_URL", code_place(task)),
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
