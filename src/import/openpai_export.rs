//! A job as OpenPAI's v1 JSON. What that format cannot say lies in `extras.trainyard`, from where an import takes it back; what of
//! it OpenPAI cannot run, `openpai_lacks` tells.

use serde_json::{Map, Value, json};

use super::ImportError;
use super::draft::{Draft, DraftRole};
use super::extras::to_toml;
use super::fields::Fields;
use super::node::{self, Node};
use crate::contract::{Sample, Task, command, hash_of_name};
use crate::ids::Bytes;
use crate::spec::{
    Code, Command, DesiredState, GpuPart, HostMount, JobSpec, ListItem, Main, MinSucceeded, Network, OnEdit,
    OnGpuFailure, OnOverrun, Param, Priority, RemoteMount, Resources, Retry, Role,
};

/// Our own field of `extras`.
pub(super) const KEY: &str = "trainyard";
/// What tasks run that name no command.
const IDLE: &str = "sleep infinity";
const MEBIBYTE: u64 = 1 << 20;
/// OpenPAI takes no less.
const MEMORY_MB_MIN: u64 = 100;

/// A job may have this name by OpenPAI's documents.
pub(super) fn can_name(name: &str) -> bool {
    name.chars().all(is_of_name)
}

fn is_of_name(letter: char) -> bool {
    letter == '-' || is_of_part(letter)
}

/// Of the names of roles and of the labels of ports, which have no `-` there.
fn is_of_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._~".contains(letter)
}

/// A job's name, which may be in any script, as OpenPAI takes it: v0.14 refuses also `~`, which stands between user and job there. The
/// digits tell apart what would else be one name, as of `d~1~2` and `d~1-2`.
fn fitted(name: &str) -> String {
    let is_taken = |letter: char| is_of_name(letter) && letter != '~';
    if name.chars().all(is_taken) {
        return name.to_owned();
    }
    let fitting: String = name.chars().map(|letter| if is_taken(letter) { letter } else { '-' }).collect();
    let readable = Some(fitting.trim_matches('-')).filter(|fitting| !fitting.is_empty()).unwrap_or("job");
    format!("{readable}-{}", hash_of_name(name))
}

/// As an earlier version has fitted it.
fn fitted_before(name: &str) -> String {
    name.chars().map(|letter| if is_of_name(letter) { letter } else { '-' }).collect()
}

pub(super) fn fitted_part(name: &str) -> String {
    name.chars().map(|letter| if is_of_part(letter) { letter } else { '_' }).collect()
}

/// The names of the roles as OpenPAI takes them; of those that would be one, the later ones have a number behind it.
pub(super) fn fitted_roles(spec: &JobSpec) -> Vec<String> {
    let own = |name: &str| spec.members().any(|role| role.name.as_str() == name);
    let mut out: Vec<String> = Vec::new();
    for role in spec.members() {
        let fitted = fitted_part(role.name.as_str());
        let is_free = |name: &String| name == role.name.as_str() || !own(name) && !out.contains(name);
        let numbered = (2_u64..).map(|number| format!("{fitted}_{number}"));
        let name = std::iter::once(fitted.clone()).chain(numbered).find(is_free);
        out.extend(name);
    }
    out
}

/// The job `name` as a document of OpenPAI.
pub fn export(name: &str, spec: &JobSpec) -> Value {
    let shared = shared_env(spec);
    let mut envs: Map<String, Value> = shared.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    if spec.debug {
        envs.insert("isDebug".to_owned(), json!(true));
    }
    json!({
        "jobName": fitted(name),
        "image": image(spec),
        "taskRoles": task_roles(name, spec),
        "retryCount": spec.retries,
        "jobEnvs": envs,
        "extras": extras(name, spec, &shared),
    })
}

/// OpenPAI has one for all roles.
pub(super) fn image(spec: &JobSpec) -> String {
    spec.roles.first().map(|role| role.image.to_string()).unwrap_or_default()
}

/// The code of the job itself, as services have it, or that of all roles if they have the same.
fn shared_code(spec: &JobSpec) -> Option<&Code> {
    let is_service = |role: &&Role| role.is_service;
    if let Some(service) = spec.roles.iter().find(is_service) {
        return service.code.as_ref();
    }
    let first = spec.roles.first()?.code.as_ref();
    first.filter(|_| spec.roles.iter().all(|role| role.code.as_ref() == first))
}

/// As a job file has it: OpenPAI knows nothing of the kind.
fn service(role: &Role) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut parts = vec![format!("image = {}", quoted(&role.image.to_string()))];
    parts.extend(match &role.command {
        Command::Shell(line) => Some(format!("command = {}", quoted(line))),
        Command::Exec(words) => Some(format!("command = {}", toml::Value::from(words.clone()))),
        Command::Default => None,
    });
    parts.extend(role.ports.iter().find_map(|port| port.begin).map(|port| format!("port = {port}")));
    parts.extend(role.user.as_ref().map(|user| format!("user = {}", quoted(user))));
    let env = role.env.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)));
    parts.push(format!("env = {{ {} }}", env.collect::<Vec<_>>().join(", ")));
    let wanted = &role.resources;
    parts.push(format!(
        "resources = {{ cpu = {}, memory = \"{}B\", shm = \"{}B\", pids = {}, gpu = {}{} }}",
        wanted.cpu,
        wanted.memory.0,
        wanted.shm.0,
        wanted.pids,
        wanted.gpu,
        cards(wanted).iter().map(|(key, value)| format!(", {key} = {value}")).collect::<String>()
    ));
    format!("{{ {} }}", parts.join(", "))
}

/// What is said of cards beside their number, as a job file has it.
fn cards(wanted: &Resources) -> Vec<(&'static str, String)> {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut out: Vec<_> = wanted.gpu_type.iter().map(|kind| ("gpu_type", quoted(kind))).collect();
    match &wanted.gpu_part {
        GpuPart::Whole => {}
        GpuPart::Share { memory, over } => {
            out.push(("gpu_memory", format!("\"{}B\"", memory.0)));
            out.push(("gpu_memory_over", quoted(over.word())));
        }
        GpuPart::Slice(profile) => out.push(("mig", quoted(profile))),
    }
    out
}

/// The job's own notes, and ours.
fn extras(name: &str, spec: &JobSpec, shared: &[(String, String)]) -> Value {
    let mut out = spec.extras_as_json();
    if let Some(out) = out.as_object_mut() {
        let theirs = out.remove(KEY);
        let mut own = own(name, spec, shared);
        own["theirs"] = theirs.unwrap_or_default();
        out.insert(KEY.to_owned(), own);
    }
    out
}

fn task_roles(name: &str, spec: &JobSpec) -> Vec<Value> {
    let sample = Sample::of(name, spec);
    let of_role = |(role, there): (&Role, String)| {
        sample.tasks(spec).find(|task| task.role.name == role.name).map(|task| task_role(&task, &there))
    };
    spec.members().zip(fitted_roles(spec)).filter_map(of_role).collect()
}

/// Variables that every role has alike.
fn shared_env(spec: &JobSpec) -> Vec<(String, String)> {
    let first = spec.roles.first().map(|role| role.env.clone()).unwrap_or_default();
    // OpenPAI takes these for itself.
    first
        .into_iter()
        .filter(|pair| !["isDebug", "paiAzRDMA"].contains(&pair.0.as_str()) && is_of_all(spec, pair))
        .collect()
}

/// A variable that every role has alike.
pub(super) fn is_of_all(spec: &JobSpec, pair: &(String, String)) -> bool {
    spec.roles.iter().all(|role| role.env.contains(pair))
}

fn task_role(task: &Task<'_>, there: &str) -> Value {
    let role = task.role;
    let wanted = &role.resources;
    json!({
        "name": there,
        "taskNumber": role.count,
        "cpuNumber": wanted.cpu.0.div_ceil(1000),
        "memoryMB": mebibytes(wanted.memory, MEMORY_MB_MIN),
        "shmMB": mebibytes(wanted.shm, 1),
        "gpuNumber": wanted.gpu,
        "portList": role.ports.iter().filter(|port| !is_given(task, port)).map(|port| {
            json!({ "label": fitted_part(&port.label), "beginAt": port.begin.unwrap_or(0), "portNumber": port.count })
        }).collect::<Vec<_>>(),
        "command": command_line(task),
        "minFailedTaskCount": role.min_failed,
        "minSucceededTaskCount": min_succeeded(role),
    })
}

/// Under its contract OpenPAI gives it to every task; a job of another one asks for it by itself.
fn is_given(task: &Task<'_>, port: &crate::spec::Port) -> bool {
    task.spec.contract.platform == crate::spec::Platform::OpenPai
        && ["http", "ssh"].contains(&port.label.as_str())
        && port.count == 1
        && port.begin.is_none()
}

/// What OpenPAI's shell is to run, arguments included.
fn command_line(task: &Task<'_>) -> String {
    let line = command::line(task);
    match (&task.role.command, line.as_slice()) {
        (Command::Default, _) if task.role.params.is_empty() => IDLE.to_owned(),
        (Command::Shell(_), [_, flag, script]) if flag == "-c" => script.clone(),
        _ => command::display(&line),
    }
}

fn min_succeeded(role: &Role) -> Option<u32> {
    match role.min_succeeded {
        MinSucceeded::Count(count) if role.main == Main::Role || count < role.count => Some(count),
        MinSucceeded::All if role.main == Main::Role => Some(role.count),
        _ => None,
    }
}

/// Keys of ours that are one line of a file, where they are not as they are by themselves.
fn lines(spec: &JobSpec) -> Vec<(&'static str, String)> {
    let quoted = |text: &dyn ToString| toml::Value::String(text.to_string()).to_string();
    let list = |items: Vec<String>| toml::Value::from(items).to_string();
    let mut out = Vec::new();
    if !spec.contract.is_native() {
        out.push(("contract", quoted(&spec.contract)));
    }
    out.extend(shared_code(spec).map(|shared| ("code", shared.written())));
    out.extend(spec.framework.map(|framework| ("framework", quoted(&framework))));
    out.extend(spec.strategy.map(|strategy| ("strategy", quoted(&strategy))));
    if !spec.mounts.is_empty() || !spec.remotes.is_empty() {
        let mount = |mount: &HostMount| {
            let (source, target) = (mount.source.display().to_string(), mount.target.display().to_string());
            format!("{{ source = {}, target = {}, read_only = {} }}", quoted(&source), quoted(&target), mount.read_only)
        };
        let remote = |remote: &RemoteMount| {
            let sync = remote.sync.map(|at| format!(", sync = {}", quoted(&at))).unwrap_or_default();
            format!("{{ source = {}, target = {}{sync} }}", quoted(remote), quoted(&remote.target.display()))
        };
        let all = spec.mounts.iter().map(mount).chain(spec.remotes.iter().map(remote));
        out.push(("mounts", format!("[{}]", all.collect::<Vec<_>>().join(", "))));
    }
    if let Some(scalars) = &spec.scalars {
        let keys = [("log_dir", &scalars.log_dir), ("lines", &scalars.lines)];
        let keys = keys.iter().filter_map(|(key, text)| Some(format!("{key} = {}", quoted(text.as_ref()?))));
        out.push(("scalars", format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))));
    }
    let services = spec.roles.iter().filter(|role| role.is_service);
    let services: Vec<String> = services.map(|role| format!("{} = {}", quoted(&role.name), service(role))).collect();
    if !services.is_empty() {
        out.push(("services", format!("{{ {} }}", services.join(", "))));
    }
    for (key, most) in [("max_nodes", spec.max_nodes), ("max_gpu", spec.max_gpu)] {
        out.extend(most.map(|most| (key, most.to_string())));
    }
    out.extend(spec.requirements.map(|wanted| ("requirements", wanted.to_string())));
    out.extend(spec.resume.map(|wanted| ("resume", wanted.to_string())));
    if !spec.description.is_empty() {
        out.push(("description", quoted(&spec.description)));
    }
    out.extend(spec.expected_duration.map(|limit| ("expected_duration", format!("\"{}ms\"", limit.as_millis()))));
    if spec.on_overrun == OnOverrun::Stop {
        out.push(("on_overrun", quoted(&"stop")));
    }
    if spec.on_gpu_failure != OnGpuFailure::Alert {
        out.push(("on_gpu_failure", quoted(&spec.on_gpu_failure)));
    }
    out.extend(spec.gpu_idle.map(|idle| ("alerts", format!("{{ gpu_idle = {idle} }}"))));
    if spec.priority != Priority::NORMAL {
        out.push(("priority", spec.priority.to_string()));
    }
    if spec.on_edit == OnEdit::Restart {
        out.push(("on_edit", quoted(&"restart")));
    }
    if !spec.after.is_empty() {
        out.push(("after", list(spec.after.iter().map(ToString::to_string).collect())));
    }
    if spec.retry != Retry::default() {
        let on = spec.retry.on.iter().map(ToString::to_string).collect::<Vec<_>>();
        out.push(("retry", format!("{{ on = {on:?}, backoff = \"{}ms\" }}", spec.retry.backoff.as_millis())));
    }
    out
}

fn own(name: &str, spec: &JobSpec, shared: &[(String, String)]) -> Value {
    let sample = Sample::of(name, spec);
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
    let datasets = spec.datasets.iter().map(ToString::to_string);
    let roles = spec.members().zip(fitted_roles(spec)).filter_map(|(role, there)| {
        let task = sample.tasks(spec).find(|task| task.role.name == role.name)?;
        Some((there, own_role(&task, spec, shared)))
    });
    let lines: Map<String, Value> =
        lines(spec).into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    json!({
        "name": Some(name).filter(|name| fitted(name) != **name),
        "init": spec.init,
        "stop_grace_ms": spec.stop_grace.map(|grace| grace.as_millis() as u64),
        "lines": lines,
        "env": shared.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "dated": dated(spec),
        "datasets": datasets.collect::<Vec<_>>(),
        "network": network,
        "max_duration_ms": spec.max_duration.map(|limit| limit.as_millis() as u64),
        "state": state,
        "rerun": spec.rerun,
        "roles": roles.collect::<Map<_, _>>(),
    })
}

/// Notes with dates and infinite numbers, which JSON has not, as a job file has them.
fn dated(spec: &JobSpec) -> Map<String, Value> {
    let dated = spec.extras.iter().filter(|(_, value)| without_dates(value) != **value);
    dated.map(|(name, value)| (name.clone(), json!(value.to_string()))).collect()
}

/// As JSON can say it and it comes back from there: dates and infinite numbers are texts.
pub fn without_dates(value: &toml::Value) -> toml::Value {
    match value {
        toml::Value::Datetime(date) => toml::Value::String(date.to_string()),
        toml::Value::Float(number) if !number.is_finite() => toml::Value::String(number.to_string()),
        toml::Value::Array(items) => toml::Value::Array(items.iter().map(without_dates).collect()),
        toml::Value::Table(table) => {
            toml::Value::Table(table.iter().map(|(name, value)| (name.clone(), without_dates(value))).collect())
        }
        other => other.clone(),
    }
}

/// Gives notes back their dates, as long as nobody has changed them since.
fn date_again(draft: &mut Draft, dated: Fields) {
    for (name, node) in dated.rest() {
        let text = format!("value = {}", node.scalar().unwrap_or_default());
        let value = text.parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
        let note = draft.extras.iter_mut().find(|(known, _)| *known == name);
        if let (Some(value), Some((_, note))) = (value, note)
            && without_dates(&value) == *note
        {
            *note = value;
        }
    }
}

fn own_role(task: &Task<'_>, spec: &JobSpec, shared: &[(String, String)]) -> Value {
    let role = task.role;
    let own_code = role.code.as_ref().filter(|own| shared_code(spec) != Some(*own));
    let mut lines: Map<String, Value> =
        own_code.map(|own| ("code".to_owned(), json!(own.written()))).into_iter().collect();
    if role.retries > 0 {
        lines.insert("retries".to_owned(), json!(role.retries.to_string()));
    }
    if let Some(slots) = role.slots {
        lines.insert("slots".to_owned(), json!(slots.to_string()));
    }
    let own_image = Some(role.image.to_string()).filter(|own| *own != image(spec));
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
    let (share, over, mig) = match &role.resources.gpu_part {
        GpuPart::Whole => (None, None, None),
        GpuPart::Share { memory, over } => (Some(memory.0), Some(over.word()), None),
        GpuPart::Slice(profile) => (None, None, Some(profile)),
    };
    let labels = role.ports.iter().map(|port| (fitted_part(&port.label), json!(port.label)));
    json!({
        "name": Some(role.name.as_str()).filter(|name| !name.chars().all(is_of_part)),
        "labels": labels.filter(|(there, own)| there != own).collect::<Map<_, _>>(),
        "main": role.main == Main::Role,
        "first": role.main == Main::FirstTask,
        "serves": role.serves,
        "image": own_image,
        "user": role.user,
        "lines": lines,
        "min_succeeded": min_succeeded,
        "command": command,
        "shown": command_line(task),
        "params": params(&role.params),
        "env": env.map(|(name, value)| json!([name, value])).collect::<Vec<_>>(),
        "millicores": role.resources.cpu.0,
        "memory": role.resources.memory.0,
        "shm": role.resources.shm.0,
        "pids": role.resources.pids,
        "gpu_type": role.resources.gpu_type,
        "gpu_memory": share,
        "gpu_memory_over": over,
        "mig": mig,
    })
}

/// As a job file has them.
fn params(params: &[(String, Param)]) -> String {
    let value = |param: &Param| match param {
        Param::Flag => "true".to_owned(),
        Param::Value(value) => toml::Value::String(value.clone()).to_string(),
        Param::Plain(value) => value.clone(),
        Param::List(items) => {
            let items = items.iter().map(|item| match item {
                ListItem::Text(text) => toml::Value::String(text.clone()).to_string(),
                ListItem::Plain(text) => text.clone(),
            });
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
    };
    let pair = |(name, param): &(String, Param)| format!("{} = {}", toml::Value::String(name.clone()), value(param));
    if params.is_empty() {
        return String::new();
    }
    format!("{{ {} }}", params.iter().map(pair).collect::<Vec<_>>().join(", "))
}

/// Takes what `export` wrote into `extras.trainyard` over into the draft. What of it the document itself says, and somebody
/// has changed there, is the document's: a command that is no longer the exported one stays.
pub(super) fn put_back(draft: &mut Draft, own: Node) -> Result<(), ImportError> {
    let mut own = Fields::of(own, "extras.trainyard")?;
    draft.contract = "";
    if let Some(name) = own.text("name")?.filter(|name| [fitted(name), fitted_before(name)].contains(&draft.name)) {
        draft.name = name;
    }
    for (key, node) in own.object("lines")?.rest() {
        draft.own.push((key, node.scalar().unwrap_or_default()));
    }
    draft.description = String::new();
    draft.datasets = own.texts("datasets")?;
    draft.network = own.text("network")?;
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
    let order = own.texts("env")?;
    draft.env.sort_by_key(|(name, _)| order.iter().position(|known| known == name).unwrap_or(usize::MAX));
    if let Some(theirs) = own.take("theirs").filter(|theirs| !theirs.is_null()) {
        let value = to_toml(&theirs, "extras.trainyard.theirs", &mut draft.losses);
        draft.extras.extend(value.map(|value| (KEY.to_owned(), value)));
    }
    date_again(draft, own.object("dated")?);
    let mut roles = own.object("roles")?;
    for role in &mut draft.roles {
        role_back(role, roles.object(&role.name)?)?;
    }
    roles.leave(&[], &mut draft.losses);
    own.leave(&[], &mut draft.losses);
    Ok(())
}

fn role_back(role: &mut DraftRole, mut own: Fields) -> Result<(), ImportError> {
    role.name = own.text("name")?.unwrap_or_else(|| role.name.clone());
    let mut labels = own.object("labels")?;
    for port in &mut role.ports {
        port.label = labels.text(&port.label)?.unwrap_or_else(|| port.label.clone());
    }
    role.main = match (own.flag("main")?, own.flag("first")?) {
        (_, Some(true)) => Main::FirstTask,
        (Some(true), _) => Main::Role,
        _ => Main::No,
    };
    role.serves = own.flag("serves")?;
    role.image = own.text("image")?.or(role.image.take());
    role.user = own.text("user")?;
    for (key, node) in own.object("lines")?.rest() {
        role.own.push((key, node.scalar().unwrap_or_default()));
    }
    role.min_succeeded = match own.text("min_succeeded")?.as_deref() {
        Some("never") => MinSucceeded::Never,
        Some(count) => count.parse().map_or(MinSucceeded::All, MinSucceeded::Count),
        None => MinSucceeded::All,
    };
    let params = own.text("params")?.filter(|params| !params.is_empty());
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
        role.own.extend(params.map(|params| ("params".to_owned(), params)));
    }
    if let Some(node) = own.take("env") {
        role.env.extend(pairs(&node));
    }
    if let Some(cores) = own.number("millicores", 1)?.map(|cores| cores as f64 / 1000.0)
        && role.resources.cpu == Some(cores.ceil())
    {
        role.resources.cpu = Some(cores);
    }
    exactly(&mut role.resources.memory, own.number("memory", 1)?, MEMORY_MB_MIN);
    exactly(&mut role.resources.shm, own.number("shm", 1)?, 1);
    role.resources.pids = own.number("pids", 1)?.and_then(|pids| u32::try_from(pids).ok());
    role.resources.gpu_type = own.text("gpu_type")?.or(role.resources.gpu_type.take());
    role.resources.gpu_memory = own.number("gpu_memory", 1)?.map(|bytes| Bytes(bytes.unsigned_abs()));
    role.resources.gpu_memory_over = own.text("gpu_memory_over")?;
    role.resources.mig = own.text("mig")?;
    Ok(())
}

fn pairs(node: &Node) -> Vec<(String, String)> {
    let node::Value::List(items) = &node.value else { return Vec::new() };
    let pair = |item: &Node| match &item.value {
        node::Value::List(pair) => Some((pair.first()?.scalar()?, pair.get(1)?.scalar()?)),
        _ => None,
    };
    items.iter().filter_map(pair).collect()
}

/// As OpenPAI counts it, whole and not less than `least`.
fn mebibytes(size: Bytes, least: u64) -> u64 {
    size.0.div_ceil(MEBIBYTE).max(least)
}

/// A size that OpenPAI rounds up, unless somebody has changed it there.
fn exactly(size: &mut Option<Bytes>, bytes: Option<i64>, least: u64) {
    let Some(bytes) = bytes.map(|bytes| Bytes(bytes.unsigned_abs())) else { return };
    if *size == Some(Bytes::mib(mebibytes(bytes, least))) {
        *size = Some(bytes);
    }
}
