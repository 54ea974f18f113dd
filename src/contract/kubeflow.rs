//! Kubeflow's training operator (v1.9) and the platforms that stand on it or do as it does.

use serde_json::{Value, json};

use super::topology::{self, Environment, Pairs, TfConfig, pair};
use super::{Task, host, join, naming, paddle, parameters};
use crate::spec::{Command, Framework, Profile, Role};

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let mut out = parameters::with_equals(&task.role.params);
    if task.spec.contract.profile == Profile::PsFlags {
        out.extend(topology::ps_flags(task));
    }
    out
}

fn tf_style(task: &Task<'_>) -> TfConfig {
    match task.spec.contract.profile {
        Profile::Arena => TfConfig { worker_port: 22222, ps_port: 22223, ..topology::TF_PLAIN },
        Profile::Xiaomi => TfConfig { chief: Some("master"), environment: Environment::Absent, ..topology::TF_PLAIN },
        _ => topology::TF_PLAIN,
    }
}

fn tensorflow(task: &Task<'_>) -> Pairs {
    topology::tf_config(task, tf_style(task)).map(|config| pair("TF_CONFIG", config)).into_iter().collect()
}

fn pytorch(task: &Task<'_>) -> Pairs {
    let mut out = topology::torch(task, 23456);
    // Kubeflow names the master by the pod's own name.
    if let (Some(entry), Some(master)) = (out.first_mut(), topology::nodes(task).first()) {
        entry.1 = host::short(master);
    }
    // And counts processes there, where the job says how many a node has.
    let said = task.role.env.iter().find(|(name, _)| name == "PET_NPROC_PER_NODE");
    let processes = said.and_then(|(_, count)| count.parse::<usize>().ok()).unwrap_or(1);
    for entry in out.iter_mut().filter(|(name, _)| name == "WORLD_SIZE") {
        entry.1 = topology::nodes(task).len().saturating_mul(processes).to_string();
    }
    let mut more = topology::torchrun(task, 23456);
    for entry in more.iter_mut().filter(|(name, _)| name == "PET_MASTER_ADDR") {
        entry.1 = out.first().map(|(_, value)| value.clone()).unwrap_or_default();
    }
    out.extend(more);
    out
}

fn xgboost(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let workers: Vec<Task<'_>> = nodes.iter().filter(|node| !node.leads()).copied().collect();
    let mut out = topology::torch(task, 9999);
    if !workers.is_empty() {
        out.push(pair("WORKER_PORT", topology::port(task, 9999)));
        out.push(pair("WORKER_ADDRS", join(workers.iter().map(host::short), ",")));
    }
    out
}

fn mxnet(task: &Task<'_>) -> Pairs {
    let mut out = topology::dmlc(task, 9091);
    out.push(pair("DMLC_USE_KUBERNETES", 1));
    let mut cluster = serde_json::Map::new();
    for (kind, names) in [("scheduler", &["scheduler"][..]), ("server", &["server", "ps"]), ("worker", &["worker"])] {
        let members = topology::called(task, names);
        let members =
            members.iter().map(|peer| json!({ "url": host::primary(peer), "port": topology::port(peer, 9091) }));
        cluster.insert(kind.to_owned(), Value::Array(members.collect()));
    }
    let role = out.first().map(|(_, role)| role.clone()).unwrap_or_default();
    out.push(pair(
        "MX_CONFIG",
        parameters::compact(
            &json!({ "cluster": cluster, "labels": {}, "task": { "type": role, "index": task.index } }),
        ),
    ));
    out
}

/// Where a role serves, every pod is a node that has one server or one trainer; else all are alike.
fn paddle_nodes(task: &Task<'_>) -> Pairs {
    let mut names = vec!["master"];
    names.extend(topology::SERVERS);
    let servers = topology::called(task, &names);
    let Some(first) = servers.first() else { return paddle::launch(task, 36543) };
    let serves = servers.iter().any(|server| server.ordinal == task.ordinal);
    vec![
        pair("PADDLE_MASTER", format!("{}:{}", host::address(first), topology::port(first, 36543))),
        pair("PADDLE_NNODES", task.peers().len()),
        pair(if serves { "PADDLE_SERVER_NUM" } else { "PADDLE_TRAINER_NUM" }, 1),
    ]
}

fn jax(task: &Task<'_>) -> Pairs {
    let nodes = topology::nodes(task);
    let (Some(rank), Some(first)) = (topology::rank(task), nodes.first()) else { return Vec::new() };
    vec![
        pair("COORDINATOR_ADDRESS", host::short(first)),
        pair("COORDINATOR_PORT", topology::port(first, 6666)),
        pair("NUM_PROCESSES", nodes.len()),
        pair("PROCESS_ID", rank),
    ]
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let mut out = match task.spec.framework {
        Some(Framework::TensorFlow) => tensorflow(task),
        Some(Framework::PyTorch | Framework::DeepSpeed) => pytorch(task),
        Some(Framework::XgBoost) => xgboost(task),
        Some(Framework::MxNet) => mxnet(task),
        Some(Framework::Jax) => jax(task),
        Some(Framework::Paddle) => {
            let mut out = paddle_nodes(task);
            out.push(pair("PADDLE_JOB_ID", naming::job_name(task)));
            out
        }
        Some(Framework::Mpi | Framework::Horovod) => super::mpi::variables(task),
        Some(Framework::MindSpore) => super::frameworks::mindspore::variables(task),
        // Nothing is said: what the two most scripts look for.
        None => tensorflow(task).into_iter().chain(pytorch(task)).collect(),
    };
    out.extend(of_profile(task));
    out
}

/// Where the job's TensorBoard looks or, where each task has one of its own, the task's.
fn board_log_dir<'a>(task: &Task<'a>) -> Option<&'a str> {
    let looks_at = |role: &'a Role| match &role.command {
        Command::Exec(words) => match words.as_slice() {
            [program, flag, place, ..] if program == "tensorboard" && flag == "--logdir" => Some(place.as_str()),
            _ => None,
        },
        _ => None,
    };
    let boards = task.spec.roles.iter().filter(|role| role.is_service);
    let own = format!("/{}-{}", task.role.name, task.index);
    let is_for = |(role, place): &(&Role, &str)| role.name.as_str() == "tensorboard" || place.ends_with(&own);
    boards.filter_map(|role| Some((role, looks_at(role)?))).find(is_for).map(|(_, place)| place)
}

fn of_profile(task: &Task<'_>) -> Pairs {
    match task.spec.contract.profile {
        Profile::Arena if task.role.resources.gpu == 0 => vec![pair("NVIDIA_VISIBLE_DEVICES", "void")],
        Profile::Caicloud => vec![
            pair("TF_MAX_STEPS", 1),
            pair("TF_LOGDIR", "/output"),
            pair("TF_SAVE_CHECKPOINTS_SECS", 600),
            pair("TF_SAVE_SUMMARIES_STEPS", 100),
        ],
        // How hosts reached the script in 2017 is not documented, and a script that parses strictly ends at a flag that
        // it does not know: a command that wants flags makes them of these.
        Profile::Swarm if !topology::called(task, topology::SERVERS).is_empty() => {
            let flags = topology::ps_flags(task);
            let variable = |flag: &String| {
                let (name, value) = flag.trim_start_matches('-').split_once('=')?;
                Some((name.to_uppercase(), value.to_owned()))
            };
            flags.iter().filter_map(variable).collect()
        }
        Profile::Aihc => {
            let mut out = topology::torch(task, 23456);
            out.extend([
                pair("AIHC_JOB_NAME", naming::job_name(task)),
                pair("NPROC_PER_NODE", task.role.resources.gpu.max(1)),
            ]);
            out.extend(board_log_dir(task).map(|place| pair("AIHC_TENSORBOARD_LOG_PATH", place)));
            out
        }
        _ => Vec::new(),
    }
}
