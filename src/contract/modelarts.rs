//! Huawei ModelArts: `MA_*` and `VC_*`, `--data_url` and `--train_url`; the first version with `DLS_*` and `BATCH_*`.

use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, host, join, naming, parameters};
use crate::spec::{Code, Dataset, Framework, Profile, Strategy};

const OUTPUT: &str = "/home/ma-user/modelarts/outputs/train_url_0";
const HOME: &str = "/home/ma-user";

/// By which scripts are told of the output: no input is called so.
pub(super) const OUTPUT_NAME: &str = "train_url";
/// The platform's own word for an input.
const INPUT_NAME: &str = "data_url";

/// One dataset as scripts find it.
pub(super) struct Input {
    /// Of its argument; none where it is told by none.
    name: Option<String>,
    pub(super) path: String,
}

/// The argument's name is the user's; the first that has none takes the platform's own word, unless another has that.
pub(super) fn inputs(task: &Task<'_>) -> Vec<Input> {
    let datasets = &task.spec.datasets;
    let is_called = |dataset: &Dataset| dataset.channel.as_ref().is_some_and(|channel| channel.as_str() == INPUT_NAME);
    let first = datasets.iter().position(|dataset| dataset.channel.is_none());
    let first = first.filter(|_| !datasets.iter().any(is_called));
    let one = |(number, dataset): (usize, &Dataset)| match &dataset.channel {
        // As the numbered ones are called.
        Some(channel) if is_called(dataset) => Input::of(channel.to_string(), number),
        Some(channel) => Input::of(channel.to_string(), 0),
        None if first == Some(number) => Input::of(INPUT_NAME.to_owned(), number),
        None => Input { name: None, ..Input::of(INPUT_NAME.to_owned(), number) },
    };
    datasets.iter().enumerate().map(one).collect()
}

impl Input {
    fn of(name: String, number: usize) -> Self {
        let path = format!("{HOME}/modelarts/inputs/{name}_{number}");
        Self { name: Some(name), path }
    }
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
        Some(Code::Stored(place)) => {
            place.prefix.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(place.pool.as_str())
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
        true => (vec![Input { name: Some(INPUT_NAME.to_owned()), path: "/home/work/data".to_owned() }], "/output"),
        false => (inputs(task), OUTPUT),
    };
    let told = data.into_iter().filter_map(|input| Some((input.name?, input.path)));
    out.extend(told.filter(|(name, _)| !has(name)).map(|(name, path)| format!("--{name}={path}")));
    if !has(OUTPUT_NAME) {
        out.push(format!("--{OUTPUT_NAME}={train}"));
    }
    if names_its_task(task) && task.peers().len() > 1 {
        out.extend([format!("--task_name={}", task_name(task)), format!("--task_index={}", task.index)]);
    }
    out
}

fn task_name(task: &Task<'_>) -> &'static str {
    if task.role.name.as_str().eq_ignore_ascii_case("ps") { "ps" } else { "worker" }
}

/// Commands of the first version are begun by a program of its images, which brings the code and runs the rest.
pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let begins = || SeenFile::program("/home/work/run_train.sh", "#!/bin/sh\nexec \"$@\"\n");
    is_old(task).then(begins).into_iter().collect()
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    if is_old(task) { first(task) } else { second(task) }
}

fn second(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let index = topology::rank(task).unwrap_or(task.index as usize);
    let mut out = vec![
        pair("MA_NUM_HOSTS", nodes.len()),
        pair("VC_WORKER_NUM", nodes.len()),
        pair("VC_TASK_INDEX", index),
        pair("VC_WORKER_HOSTS", join(nodes.iter().map(host::primary), ",")),
        pair("MA_VJ_NAME", host::job(task)),
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
        pair(OUTPUT_NAME, OUTPUT),
    ];
    out.extend(inputs(task).into_iter().filter_map(|input| Some((input.name?, input.path))));
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
        [one] => out.push(pair(format!("BATCH_{}.0_HOSTS", naming::job_name(task)), topology::endpoint(one, 6666))),
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
