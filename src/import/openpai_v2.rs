//! OpenPAI's job protocol v2: YAML with parameters, prerequisites and deployments.

use super::draft::{Draft, DraftResources, DraftRole, Holds, RETRIES_MAX};
use super::extras::to_toml;
use super::fields::{Fate, Fates, Fields, LOGIN};
use super::node::{Node, Value};
use super::openpai_v1::{MIN_FAILED, bound, check_bounds, ends_at_once, job_name, set_policy, tell_of_tolerated};
use super::tags::{Scope, render};
use super::{ImportError, Imported, Loss};
use crate::ids::Bytes;
use crate::spec::{Command, OutsidePort, Port};

/// What a container has without `shmMB`.
const SHM_MB: i64 = 512;
/// Keys of resources, by the fields of `resourcePerInstance`.
pub(super) const RESOURCES: &[(&str, &[&str])] = &[
    ("resources.cpu", &["cpu"]),
    ("resources.memory", &["memoryMB"]),
    ("resources.shm", &["shmMB"]),
    ("resources.gpu", &["gpu"]),
    ("ports", &["ports"]),
];
const FILE: Fate = Fate::Nothing("describes the file, not the job");
const GANG: &str = "OpenPAI heeds it only with extras.gangAllocation: false, so it did nothing; write retries in the role if that is wanted";
const WRAPPED: &str = "not the default deployment, which alone is wrapped round the commands";

const JOB: &Fates = &[
    ("protocolVersion", FILE),
    ("type", FILE),
    ("version", FILE),
    ("contributor", FILE),
    ("secrets", Fate::Lost("secrets do not go into a job file; keep them in files and read those in the command")),
];

const PREREQUISITE: &Fates = &[
    ("protocolVersion", FILE),
    ("version", FILE),
    ("contributor", FILE),
    ("description", FILE),
    ("plugin", Fate::Lost("there are no plugins; do it in the command")),
    ("require", Fate::Lost("there are no plugins; do it in the command")),
    ("callbacks", Fate::Lost("write these commands before or after the role's own")),
    ("failurePolicy", Fate::Lost("there are no plugins; do it in the command")),
    ("auth", LOGIN),
];

const ROLE: &Fates = &[("prerequisites", Fate::Nothing("what they stand for is told at the prerequisite itself"))];

const CONTAINER: &Fates = &[("infiniband", Fate::Lost("there is no InfiniBand in containers here"))];

const EXTRAS: &Fates = &[
    ("submitFrom", FILE),
    ("hivedScheduler", Fate::Lost("what there is on one machine is given by resources; see gpu_type")),
    ("jobStatusChangeNotification", Fate::Lost("there are no mails; see `trainyard wait`")),
    ("storages", Fate::Lost("put the files into the workspace's datasets/NAME and write datasets = [\"NAME\"]")),
];

/// Where kinds of prerequisites belong.
const ADVICE: [(&str, &str); 3] = [
    ("data", "put it into the workspace's datasets/NAME and write datasets = [\"NAME\"], unless the commands fetch it"),
    ("script", "put it into the workspace's code/NAME and write code = \"NAME\", unless the commands fetch it"),
    ("output", "what is to be kept is written to /output"),
];

const PRIORITIES: [(&str, &str); 4] = [("crit", "high"), ("prod", "normal"), ("test", "low"), ("oppo", "low")];

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut fields = Fields::of(document, "")?;
    let mut draft = Draft::new("a job of OpenPAI (protocol v2)", job_name(&mut fields, "name")?, "openpai");
    draft.description = fields.text("description")?.unwrap_or_default();
    if let Some(count) = fields.number("jobRetryCount", 0)? {
        draft.retry("jobRetryCount", count);
    }
    let prerequisites = fields.list("prerequisites")?;
    let parameters =
        fields.take("parameters").unwrap_or(Node { value: Value::Map(Vec::new()), place: Default::default() });
    let mut given = fields.object("extras")?;
    let gang = given.flag("gangAllocation")?.unwrap_or(true);
    let mut defaults = fields.object("defaults")?;
    let deployment = defaults.text("deployment")?;
    if let Some(cluster) = defaults.text("virtualCluster")?.filter(|cluster| cluster != "default") {
        draft.lose(
            "defaults.virtualCluster",
            format!("{cluster:?}: one machine has none; the job file's directory is its workspace"),
        );
    }
    defaults.leave(&[], &mut draft.losses);
    let deployment = chosen_deployment(&mut fields, deployment, &mut draft.losses)?;
    let tasks = Tasks { prerequisites: &prerequisites, parameters: &parameters, deployment, gang };
    let typed = tasks.read(fields.object("taskRoles")?, &mut draft)?;
    draft.came_from(&fields, &[("roles", &["taskRoles"]), ("retries", &["jobRetryCount"]), ("extras", &["extras"])]);
    draft.came_from(&fields, &[("description", &["description"])]);
    tell_unused(&parameters, &typed, &mut draft.losses);
    if !gang {
        draft.losses.push(given.loss("gangAllocation", "the tasks of a job start together here"));
    }
    extras(&mut draft, given)?;
    tell_prerequisites(&prerequisites, &mut draft.losses)?;
    fields.leave(JOB, &mut draft.losses);
    draft.finish()
}

/// The task roles of the default deployment.
fn chosen_deployment(
    fields: &mut Fields,
    name: Option<String>,
    losses: &mut Vec<Loss>,
) -> Result<Option<Node>, ImportError> {
    let mut chosen = None;
    for mut deployment in fields.objects("deployments")? {
        let given = deployment.needed("name")?;
        let roles = deployment.take("taskRoles");
        if name.as_ref() == Some(&given) {
            chosen = roles;
        } else {
            losses.push(deployment.loss("taskRoles", format!("{given:?} is {WRAPPED}")));
        }
        deployment.leave(PREREQUISITE, losses);
    }
    match (name, &chosen) {
        (Some(name), None) => Err(fields.refuse("defaults.deployment", format!("names {name:?}, which there is not"))),
        _ => Ok(chosen),
    }
}

struct Tasks<'n> {
    prerequisites: &'n [Node],
    parameters: &'n Node,
    deployment: Option<Node>,
    /// Without `gangAllocation: false`, tasks are not started again one by one.
    gang: bool,
}

impl Tasks<'_> {
    /// Returns the commands of all roles as typed.
    fn read(&self, roles: Fields, draft: &mut Draft) -> Result<String, ImportError> {
        let mut typed = String::new();
        let path = roles.path().to_owned();
        for (name, node) in roles.rest() {
            let fields = Fields::of(node, &format!("{path}.{name}"))?;
            let role = self.role(name, fields, &mut typed, &mut draft.losses)?;
            draft.roles.push(role);
        }
        ends_at_once(&mut draft.roles, &mut draft.losses);
        Ok(typed)
    }

    fn role(
        &self,
        name: String,
        mut fields: Fields,
        typed: &mut String,
        losses: &mut Vec<Loss>,
    ) -> Result<DraftRole, ImportError> {
        let count = fields.number("instances", 1)?.unwrap_or(1);
        let count = u32::try_from(count).map_err(|_| fields.refuse("instances", "is too large"))?;
        let mut role = DraftRole::new(name, count);
        role.came_from(&fields, &[("count", &["instances"]), ("image", &["dockerImage"]), ("command", &["commands"])]);
        role.holds_open(Holds::Yes);
        self.completion(&mut role, fields.object("completion")?, losses)?;
        let image = fields.needed("dockerImage")?;
        role.image = Some(self.image(&image, &fields)?);
        role.command = self.commands(&role.name, &mut fields, typed, losses)?;
        resources(&mut role, &mut fields, losses)?;
        match fields.whole("taskRetryCount")?.map(u32::try_from) {
            None | Some(Ok(0)) => {}
            Some(_) if self.gang => losses.push(fields.loss("taskRetryCount", GANG)),
            Some(Ok(count)) if count <= RETRIES_MAX => role.try_again(count),
            Some(_) => {
                losses.push(fields.loss("taskRetryCount", "retries of a role is 1000 at most, and never for ever"))
            }
        }
        fields.leave(ROLE, losses);
        Ok(role)
    }

    /// Absent, a role ends the job once all of its tasks have succeeded.
    fn completion(&self, role: &mut DraftRole, mut fields: Fields, losses: &mut Vec<Loss>) -> Result<(), ImportError> {
        let failed = if fields.has("minFailedInstances") { bound(&mut fields, "minFailedInstances")? } else { Some(1) };
        let given = fields.has("minSucceededInstances");
        let succeeded = bound(&mut fields, "minSucceededInstances")?;
        set_policy(role, failed, if given { succeeded } else { Some(role.count) });
        role.came_from(&fields, &[(MIN_FAILED, &["minFailedInstances"])]);
        check_bounds(role, &fields)?;
        tell_of_tolerated(role, fields.at("minFailedInstances"), losses);
        fields.leave(&[], losses);
        Ok(())
    }

    fn prerequisite(&self, name: &str) -> Option<&Node> {
        self.prerequisites.iter().find(|node| node.get("name").and_then(Node::scalar).as_deref() == Some(name))
    }

    fn image(&self, name: &str, fields: &Fields) -> Result<String, ImportError> {
        let found = self.prerequisite(name).and_then(|node| node.get("uri")).and_then(Node::scalar);
        found
            .ok_or_else(|| fields.refuse("dockerImage", format!("names {name:?}, which is no prerequisite with a uri")))
    }

    /// The deployment's and the role's commands, line by line as typed.
    fn commands(
        &self,
        role: &str,
        fields: &mut Fields,
        typed: &mut String,
        losses: &mut Vec<Loss>,
    ) -> Result<Command, ImportError> {
        let mut names = vec![("parameters", self.parameters)];
        for name in ["data", "script", "output"] {
            let Some(used) = fields.text(name)? else { continue };
            match self.prerequisite(&used) {
                Some(node) => names.push((name, node)),
                None => losses.push(fields.loss(name, format!("{used:?} is no prerequisite of this file"))),
            }
        }
        let around = self.deployment.as_ref().and_then(|roles| roles.get(role)).cloned();
        let empty = Node { value: Value::Null, place: Default::default() };
        let mut around = Fields::of(around.unwrap_or(empty), &format!("deployments.taskRoles.{role}"))?;
        let mut lines = around.texts("preCommands")?;
        let own = fields.texts("commands")?;
        if own.is_empty() {
            return Err(fields.refuse("commands", "is missing"));
        }
        lines.extend(own);
        lines.extend(around.texts("postCommands")?);
        around.leave(&[], losses);
        let text = lines.iter().map(|line| line.trim_end_matches('\n')).collect::<Vec<_>>().join("\n");
        typed.push_str(&text);
        let (text, unresolved) = render(&text, &Scope { names });
        for tag in unresolved {
            losses.push(fields.loss("commands", unresolved_tag(&tag)));
        }
        Ok(Command::Shell(text))
    }
}

fn unresolved_tag(tag: &str) -> String {
    match tag.contains("$secrets") {
        true => format!("{tag} is a secret and stands there as it is; read it from a file in the command"),
        false => format!("{tag} stands for nothing in this file and is left as it is"),
    }
}

fn resources(role: &mut DraftRole, fields: &mut Fields, losses: &mut Vec<Loss>) -> Result<(), ImportError> {
    let mut container = fields.object("extraContainerOptions")?;
    let written = container.number("shmMB", 1)?;
    container.leave(CONTAINER, losses);
    let mut asked = fields.object("resourcePerInstance")?;
    let memory = asked.number("memoryMB", 1)?;
    // What OpenPAI gives unasked must fit in as well; what somebody has written is told if it does not.
    let shm = written.unwrap_or_else(|| SHM_MB.min(memory.unwrap_or(SHM_MB)));
    role.resources = DraftResources {
        cpu: asked.number("cpu", 0)?.map(|cores| cores as f64),
        memory: memory.map(|number| Bytes::mib(number.unsigned_abs())),
        shm: Some(Bytes::mib(shm.unsigned_abs())),
        gpu: asked.number("gpu", 0)?.map(i64::unsigned_abs).filter(|gpu| *gpu > 0),
        pids: None,
        ..DraftResources::default()
    };
    let ports = asked.object("ports")?;
    for label in ports.names() {
        role.ports.push(Port { label, count: 1, begin: None, outside: OutsidePort::Same });
    }
    for ((_, node), port) in ports.rest().into_iter().zip(&mut role.ports) {
        let count = node.scalar().and_then(|text| text.parse().ok()).filter(|count| (1..=100).contains(count));
        port.count = count.ok_or_else(|| asked.refuse("ports", "counts from 1 to 100 ports for each label"))?;
    }
    role.came_from(&asked, RESOURCES);
    asked.leave(&[], losses);
    Ok(())
}

fn extras(draft: &mut Draft, mut extras: Fields) -> Result<(), ImportError> {
    if let Some(node) = extras.take("hivedScheduler") {
        let class = node.get("jobPriorityClass").and_then(Node::scalar).unwrap_or_default();
        draft.priority = PRIORITIES.iter().find(|(name, _)| *name == class).map(|(_, priority)| *priority);
        extras.keep("hivedScheduler", node);
    }
    for mut plugin in extras.objects("com.microsoft.pai.runtimeplugin")? {
        let name = plugin.text("plugin")?.unwrap_or_default();
        let asks = |what: &str| plugin_asks(&mut plugin, what);
        if name == "ssh" && !["jobssh", "sshbarrier", "userssh"].map(asks).contains(&true) {
            continue;
        }
        let why = format!("the plugin {name:?} does not exist here; do what it does in the command");
        draft.losses.push(plugin.loss("parameters", why));
    }
    let path = extras.path().to_owned();
    let known = |name: &str| EXTRAS.iter().any(|(known, _)| *known == name);
    for name in extras.names().into_iter().filter(|name| !known(name)) {
        let Some(node) = extras.take(&name) else { continue };
        if let Some(value) = to_toml(&node, &format!("{path}.{name}"), &mut draft.losses) {
            draft.extras.push((name, value));
        }
    }
    extras.leave(EXTRAS, &mut draft.losses);
    Ok(())
}

fn tell_unused(parameters: &Node, typed: &str, losses: &mut Vec<Loss>) {
    let Value::Map(entries) = &parameters.value else { return };
    for (name, node) in entries.iter().filter(|(name, _)| !typed.contains(&format!("$parameters.{name}"))) {
        let why = "no command uses it".to_owned();
        losses.push(Loss { field: format!("parameters.{name}"), line: node.place.line, why });
    }
}

/// A parameter of the plugin says more than no.
fn plugin_asks(plugin: &mut Fields, what: &str) -> bool {
    let Some(parameters) = plugin.take("parameters") else { return false };
    let asks = parameters.get(what).is_some_and(|node| !node.is_null() && node.value != Value::Bool(false));
    plugin.keep("parameters", parameters);
    asks
}

fn tell_prerequisites(prerequisites: &[Node], losses: &mut Vec<Loss>) -> Result<(), ImportError> {
    for node in prerequisites {
        let name = node.get("name").and_then(Node::scalar).unwrap_or_default();
        let mut fields = Fields::of(node.clone(), &format!("prerequisites.{name}"))?;
        fields.needed("name")?;
        let kind = fields.needed("type")?;
        if let Some((_, advice)) = ADVICE.iter().find(|(known, _)| *known == kind) {
            losses.push(fields.loss("uri", *advice));
        } else if kind != "dockerimage" {
            losses.push(fields.loss("type", format!("{kind:?} is no kind of prerequisite that is known here")));
        }
        fields.take("uri");
        fields.leave(PREREQUISITE, losses);
    }
    Ok(())
}
