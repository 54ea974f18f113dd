//! A job as OpenPAI's v1 JSON. What that format cannot say lies in `extras.trainyard`, from where an import takes it back.

use serde_json::{Map, Value, json};

use super::ImportError;
use super::draft::{Draft, DraftRole};
use super::fields::Fields;
use super::node::Node;
use crate::contract::command;
use crate::ids::Bytes;
use crate::spec::{Command, DesiredState, JobSpec, MinSucceeded, Network, Role};

/// Our own field of `extras`.
pub(super) const KEY: &str = "trainyard";
/// What tasks run that name no command.
const IDLE: &str = "sleep infinity";
const MEBIBYTE: u64 = 1 << 20;

/// The job `name` as a document of OpenPAI.
pub fn export(name: &str, spec: &JobSpec) -> Value {
    let shared = shared_env(spec);
    let mut envs: Map<String, Value> = shared.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    if spec.debug {
        envs.insert("isDebug".to_owned(), json!(true));
    }
    json!({
        "jobName": name,
        "image": spec.image.to_string(),
        "taskRoles": spec.roles.iter().map(task_role).collect::<Vec<_>>(),
        "retryCount": spec.retries,
        "jobEnvs": envs,
        "extras": { KEY: own(spec, &shared) },
    })
}

/// Variables that every role has alike.
fn shared_env(spec: &JobSpec) -> Vec<(String, String)> {
    let first = spec.roles.first().map(|role| role.env.clone()).unwrap_or_default();
    // OpenPAI takes `isDebug` for itself.
    first
        .into_iter()
        .filter(|pair| pair.0 != "isDebug" && spec.roles.iter().all(|role| role.env.contains(pair)))
        .collect()
}

fn task_role(role: &Role) -> Value {
    let wanted = role.resources;
    json!({
        "name": role.name.as_str(),
        "taskNumber": role.count,
        "cpuNumber": wanted.cpu.0.div_ceil(1000),
        "memoryMB": wanted.memory.0.div_ceil(MEBIBYTE),
        "shmMB": wanted.shm.0.div_ceil(MEBIBYTE),
        "gpuNumber": 0,
        "portList": role.ports.iter().map(|port| {
            json!({ "label": port.label, "beginAt": port.begin.unwrap_or(0), "portNumber": port.count })
        }).collect::<Vec<_>>(),
        "command": command_line(role),
        "minFailedTaskCount": role.min_failed,
        "minSucceededTaskCount": min_succeeded(role),
    })
}

/// What OpenPAI's shell is to run, arguments included.
fn command_line(role: &Role) -> String {
    let line = command::line(role, &[]);
    match (&role.command, line.as_slice()) {
        (Command::Default, _) if role.arguments.is_empty() => IDLE.to_owned(),
        (Command::Shell(_), [_, flag, script]) if flag == "-c" => script.clone(),
        _ => command::display(&line),
    }
}

fn min_succeeded(role: &Role) -> Option<u32> {
    match role.min_succeeded {
        MinSucceeded::Count(count) if role.main || count < role.count => Some(count),
        MinSucceeded::All if role.main => Some(role.count),
        _ => None,
    }
}

fn own(spec: &JobSpec, shared: &[(String, String)]) -> Value {
    let network = match spec.network {
        Network::Task => "task",
        Network::Job => "job",
        Network::Host => "host",
    };
    let state = match spec.state {
        DesiredState::Run => "run",
        DesiredState::Held => "held",
        DesiredState::Stopped => "stopped",
    };
    let datasets = spec.datasets.iter().map(|dataset| match &dataset.version {
        Some(version) => format!("{}@{version}", dataset.name),
        None => dataset.name.to_string(),
    });
    json!({
        "description": spec.description,
        "user": spec.user,
        "init": spec.init,
        "stop_grace_ms": spec.stop_grace.map(|grace| grace.as_millis() as u64),
        "code": spec.code.as_ref().map(|code| code.as_str()),
        "datasets": datasets.collect::<Vec<_>>(),
        "network": network,
        "max_duration_ms": spec.max_duration.map(|limit| limit.as_millis() as u64),
        "state": state,
        "rerun": spec.rerun,
        "roles": spec.roles.iter().map(|role| (role.name.to_string(), own_role(role, shared))).collect::<Map<_, _>>(),
    })
}

fn own_role(role: &Role, shared: &[(String, String)]) -> Value {
    let command = match &role.command {
        Command::Default => Value::Null,
        Command::Shell(line) => json!(line),
        Command::Exec(words) => json!(words),
    };
    let min_succeeded = match role.min_succeeded {
        MinSucceeded::All => json!("all"),
        MinSucceeded::Never => json!("never"),
        MinSucceeded::Count(count) => json!(count),
    };
    let env = role.env.iter().filter(|pair| !shared.contains(pair));
    json!({
        "main": role.main,
        "serves": role.serves,
        "min_succeeded": min_succeeded,
        "command": command,
        "shown": command_line(role),
        "arguments": role.arguments,
        "env": env.map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>(),
        "millicores": role.resources.cpu.0,
        "memory": role.resources.memory.0,
        "shm": role.resources.shm.0,
        "pids": role.resources.pids,
    })
}

/// Takes what `export` wrote into `extras.trainyard` over into the draft. What of it the document itself says, and somebody
/// has changed there, is the document's: a command that is no longer the exported one stays.
pub(super) fn put_back(draft: &mut Draft, own: Node) -> Result<(), ImportError> {
    let mut own = Fields::of(own, "extras.trainyard")?;
    draft.contract = "";
    draft.description = own.text("description")?.unwrap_or_default();
    draft.code = own.text("code")?;
    draft.datasets = own.texts("datasets")?;
    draft.network = own.text("network")?.filter(|network| network != "task");
    draft.state = own.text("state")?.filter(|state| state != "run");
    if own.flag("init")? == Some(false) {
        draft.own.push(("init".to_owned(), "false".to_owned()));
    }
    for (key, field) in [("stop_grace", "stop_grace_ms"), ("max_duration", "max_duration_ms")] {
        if let Some(limit) = own.number(field, 0)? {
            draft.own.push((key.to_owned(), format!("\"{limit}ms\"")));
        }
    }
    if let Some(rerun) = own.number("rerun", 1).ok().flatten() {
        draft.own.push(("rerun".to_owned(), rerun.to_string()));
    }
    let user = own.text("user")?;
    let mut roles = own.object("roles")?;
    for role in &mut draft.roles {
        role.user.clone_from(&user);
        role_back(role, roles.object(&role.name)?)?;
    }
    roles.leave(&[], &mut draft.losses);
    own.leave(&[], &mut draft.losses);
    Ok(())
}

fn role_back(role: &mut DraftRole, mut own: Fields) -> Result<(), ImportError> {
    role.main = own.flag("main")? == Some(true);
    role.serves = own.flag("serves")?;
    role.min_succeeded = match own.text("min_succeeded")?.as_deref() {
        Some("never") => MinSucceeded::Never,
        Some(count) => count.parse().map_or(MinSucceeded::All, MinSucceeded::Count),
        None => MinSucceeded::All,
    };
    let arguments = own.texts("arguments")?;
    let command = match own.take("command") {
        None => Command::Default,
        Some(node) => match node.scalar() {
            Some(line) => Command::Shell(line),
            None => {
                own.keep("command", node);
                Command::Exec(own.texts("command")?)
            }
        },
    };
    if own.text("shown")?.map(Command::Shell).as_ref() == Some(&role.command) {
        role.command = command;
        role.arguments = arguments;
    }
    for (name, node) in own.object("env")?.rest() {
        role.env.push((name, node.scalar().unwrap_or_default()));
    }
    if let Some(cores) = own.number("millicores", 1)?.map(|cores| cores as f64 / 1000.0)
        && role.resources.cpu == Some(cores.ceil())
    {
        role.resources.cpu = Some(cores);
    }
    exactly(&mut role.resources.memory, own.number("memory", 1)?);
    exactly(&mut role.resources.shm, own.number("shm", 1)?);
    role.resources.pids = own.number("pids", 1)?.and_then(|pids| u32::try_from(pids).ok());
    Ok(())
}

/// A size that OpenPAI rounds up to mebibytes.
fn exactly(size: &mut Option<Bytes>, bytes: Option<i64>) {
    let Some(bytes) = bytes.map(i64::unsigned_abs) else { return };
    if *size == Some(Bytes(bytes.div_ceil(MEBIBYTE) * MEBIBYTE)) {
        *size = Some(Bytes(bytes));
    }
}
