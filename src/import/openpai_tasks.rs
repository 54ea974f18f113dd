//! The form that OpenPAI had before its protocol v2 (0.8 to 0.14, `protocol_version: v2` with `tasks`): YAML, which its server turned into
//! protocol v1 (`middlewares/jobV2.js`). Here it becomes what that became.

use super::draft::{Draft, DraftResources, DraftRole, Holds};
use super::fields::{Fate, Fates, Fields};
use super::node::{Node, Value};
use super::openpai_v1::{
    MIN_FAILED, bound, check_bounds, drop_default_cluster, ends_at_once, job_name, ports, set_policy, tell_of_tolerated,
};
use super::openpai_v2;
use super::{ImportError, Imported, Loss};
use crate::ids::Bytes;
use crate::spec::Command;

const FILE: Fate = Fate::Nothing("describes the file, not the job");

const JOB: &Fates = &[
    ("protocol_version", FILE),
    ("type", FILE),
    ("version", FILE),
    ("contributor", FILE),
    ("experiment", FILE),
    ("parameters", Fate::Nothing("they stand where they are used; those that are not are told")),
    ("virtualCluster", Fate::Lost("one machine has none; the directory of the job file says which workspace it is in")),
];

const ROLE: &Fates =
    &[("type", FILE), ("parameters", Fate::Nothing("they stand where they are used; those that are not are told"))];

const PREREQUISITE: &Fates = &[
    ("protocol_version", FILE),
    ("version", FILE),
    ("contributor", FILE),
    ("description", FILE),
    ("usage", Fate::Nothing("an example for people")),
];

/// Runs before everything else there.
const FIRST: &str = "export PAI_CURRENT_DIR=`pwd`";
const IMAGE: &str = "dockerimage";

pub(super) fn knows(document: &Node) -> bool {
    let is_job = document.get("type").and_then(Node::scalar).is_some_and(|kind| kind == "job");
    document.get("protocol_version").is_some() && document.get("tasks").is_some() && is_job
}

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut names = Names::default();
    let document = names.in_place(document, None);
    let mut fields = Fields::of(document, "")?;
    let mut draft = Draft::new("a job of OpenPAI (before protocol v2)", job_name(&mut fields, "name")?, "openpai");
    draft.description = fields.text("description")?.unwrap_or_default();
    draft.retry("retryCount", fields.number("retryCount", -2)?.unwrap_or(1));
    let gpu_type = fields.text("gpuType")?.filter(|kind| !kind.is_empty());
    let prerequisites = Prerequisites::read(&mut fields, &mut draft.losses)?;
    for mut task in fields.objects("tasks")? {
        draft.roles.push(role(&mut draft.losses, &mut task, &prerequisites, gpu_type.as_deref())?);
        task.leave(ROLE, &mut draft.losses);
    }
    draft.came_from(&fields, &[("roles", &["tasks"]), ("retries", &["retryCount"])]);
    ends_at_once(&mut draft.roles, &mut draft.losses);
    drop_default_cluster(&mut fields)?;
    fields.leave(JOB, &mut draft.losses);
    draft.losses.extend(names.losses());
    draft.finish()
}

fn role(
    losses: &mut Vec<Loss>,
    fields: &mut Fields,
    prerequisites: &Prerequisites,
    gpu_type: Option<&str>,
) -> Result<DraftRole, ImportError> {
    let mut resource = fields.object("resource")?;
    let count = resource.number("instances", 1)?.unwrap_or(1);
    let count = u32::try_from(count).map_err(|_| resource.refuse("instances", "is too large"))?;
    let mut role = DraftRole::new(fields.needed("role")?, count);
    role.came_from(fields, &[("command", &["command"])]);
    role.came_from(&resource, &[("count", &["instances"]), ("ports", &["portList"])]);
    role.holds_open(Holds::Yes);
    role.image = Some(prerequisites.of(fields, IMAGE)?.ok_or_else(|| fields.refuse(IMAGE, "is missing"))?.uri.clone());
    let mut lines = vec![FIRST.to_owned()];
    for kind in ["data", "script"] {
        if let Some(wanted) = prerequisites.of(fields, kind)? {
            lines.extend(fetch(wanted));
        }
    }
    let own = fields.texts("command")?;
    if own.is_empty() {
        return Err(fields.refuse("command", "is missing"));
    }
    lines.extend(own);
    role.command = Command::Shell(lines.join("\n"));
    let failed = if fields.is_written("minFailedTaskCount") { bound(fields, "minFailedTaskCount")? } else { Some(1) };
    set_policy(&mut role, failed, bound(fields, "minSucceededTaskCount")?);
    role.came_from(fields, &[(MIN_FAILED, &["minFailedTaskCount"])]);
    check_bounds(&role, fields)?;
    tell_of_tolerated(&role, fields.at("minFailedTaskCount"), losses);
    resources(&mut role, &mut resource, gpu_type, losses)?;
    role.ports = ports(&mut resource, losses)?;
    resource.leave(&[], losses);
    Ok(role)
}

fn resources(
    role: &mut DraftRole,
    resource: &mut Fields,
    gpu_type: Option<&str>,
    losses: &mut Vec<Loss>,
) -> Result<(), ImportError> {
    let mut asked = resource.object("resourcePerInstance")?;
    let megabytes = |number: Option<i64>, default: u64| Bytes::mib(number.map_or(default, i64::unsigned_abs));
    let gpu = asked.number("gpu", 0)?.unwrap_or(0).unsigned_abs();
    role.resources = DraftResources {
        cpu: Some(asked.number("cpu", 1)?.unwrap_or(1) as f64),
        memory: Some(megabytes(asked.number("memoryMB", 100)?, 100)),
        shm: Some(megabytes(asked.number("shmMB", 1)?, 64)),
        gpu: Some(gpu).filter(|gpu| *gpu > 0),
        gpu_type: gpu_type.filter(|_| gpu > 0).map(str::to_owned),
        ..DraftResources::default()
    };
    role.came_from(&asked, openpai_v2::RESOURCES);
    asked.leave(&[], losses);
    Ok(())
}

struct Prerequisite {
    kind: String,
    name: String,
    uri: String,
}

struct Prerequisites(Vec<Prerequisite>);

impl Prerequisites {
    fn read(fields: &mut Fields, losses: &mut Vec<Loss>) -> Result<Self, ImportError> {
        let mut all = Vec::new();
        for mut one in fields.objects("prerequisites")? {
            let (kind, name, uri) = (one.needed("type")?, one.needed("name")?, one.needed("uri")?);
            if ![IMAGE, "data", "script"].contains(&kind.as_str()) {
                return Err(one.refuse("type", format!("is {kind:?}, must be data, script or {IMAGE}")));
            }
            // They become words of commands.
            if kind != IMAGE && !(is_plain(&name) && uri.split(',').all(is_plain)) {
                return Err(one.refuse("uri", "or its name holds what a shell would take for something else"));
            }
            one.leave(PREREQUISITE, losses);
            all.push(Prerequisite { kind, name, uri });
        }
        Ok(Self(all))
    }

    /// The one that a role names.
    fn of(&self, fields: &mut Fields, kind: &str) -> Result<Option<&Prerequisite>, ImportError> {
        let Some(name) = fields.text(kind)?.filter(|name| !name.is_empty()) else { return Ok(None) };
        let found = self.0.iter().find(|one| one.kind == kind && one.name == name);
        let unknown = || fields.refuse(kind, format!("names {name:?}, which is no prerequisite of that type"));
        found.map(Some).ok_or_else(unknown)
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._~/:@%+=?".contains(c))
}

/// How OpenPAI brought data and scripts into a container: by its image's own git and wget.
fn fetch(wanted: &Prerequisite) -> Vec<String> {
    let uris: Vec<&str> = wanted.uri.split(',').collect();
    let mut lines = Vec::new();
    if uris.len() > 1 {
        lines.push(format!("mkdir {}", wanted.name));
    }
    for uri in uris {
        let name = if uri.contains("github") {
            clone(uri, &mut lines)
        } else if wanted.uri.starts_with("http") {
            download(uri, &wanted.name, &mut lines)
        } else {
            // Nothing was done with other addresses there either.
            continue;
        };
        if name != wanted.name {
            lines.push(format!("mv {name} {}", wanted.name));
        }
    }
    lines
}

/// The directory that it makes.
fn clone(uri: &str, lines: &mut Vec<String>) -> String {
    let (address, version) = uri.split_once('@').map_or((uri, None), |(address, version)| (address, Some(version)));
    let name = address.rsplit('/').next().unwrap_or_default().to_owned();
    lines.push(format!("git clone {address}"));
    lines.extend(version.map(|version| format!("cd {name}; git checkout {version}; cd ..")));
    name
}

/// The file or directory that it makes.
fn download(uri: &str, directory: &str, lines: &mut Vec<String>) -> String {
    let mut name = uri.rsplit('/').next().unwrap_or_default();
    lines.push(format!("wget {uri}"));
    if let Some(packed) = name.strip_suffix(".gz") {
        lines.push(format!("gunzip {name}"));
        name = packed;
    }
    if name.contains(".tar") {
        lines.push(format!("mkdir {directory}"));
        lines.push(format!("tar xvf {name} -C {directory} --strip-components 1"));
        return directory.to_owned();
    }
    if let Some(unpacked) = name.strip_suffix(".zip") {
        lines.push(format!("unzip {name}"));
        name = unpacked;
    }
    name.to_owned()
}

/// Most bytes that parameters become, all places together: a file of nothing but names would have no end.
const ROOM: usize = 1 << 20;

/// `$$NAME$$`, which stands for a parameter: of the nearest object around it that has any.
#[derive(Default)]
struct Names {
    /// Bytes that parameters have become.
    written: usize,
    declared: Vec<(String, usize)>,
    used: Vec<String>,
    unknown: Vec<(String, usize)>,
}

impl Names {
    fn in_place(&mut self, node: Node, parameters: Option<&Node>) -> Node {
        let place = node.place;
        let value = match node.value {
            Value::Text(text) => return self.text(&text, parameters, Node { value: Value::Text(text.clone()), place }),
            Value::List(items) => Value::List(items.into_iter().map(|item| self.in_place(item, parameters)).collect()),
            Value::Map(entries) => return self.object(Node { value: Value::Map(entries), place }, parameters),
            plain => plain,
        };
        Node { value, place }
    }

    fn object(&mut self, node: Node, parameters: Option<&Node>) -> Node {
        let own = node.get("parameters").filter(|own| matches!(own.value, Value::Map(_))).cloned();
        let own = own.map(|own| self.in_place(own, parameters));
        if let Some(Value::Map(entries)) = own.as_ref().map(|own| &own.value) {
            self.declared.extend(entries.iter().map(|(name, node)| (name.clone(), node.place.line)));
        }
        let Value::Map(entries) = node.value else { return node };
        let entries = entries.into_iter().map(|(name, entry)| {
            let entry = match name.as_str() {
                "prerequisites" => entry,
                "parameters" => own.clone().unwrap_or(entry),
                _ => self.in_place(entry, own.as_ref().or(parameters)),
            };
            (name, entry)
        });
        let entries = entries.collect();
        Node { value: Value::Map(entries), place: node.place }
    }

    fn text(&mut self, text: &str, parameters: Option<&Node>, node: Node) -> Node {
        let (mut out, mut rest) = (String::new(), text);
        while let Some((before, tail)) = rest.split_once("$$") {
            out.push_str(before);
            let Some((name, after)) = tail.split_once("$$").filter(|(name, _)| is_name(name)) else {
                // To a shell it is a number.
                out.push_str("$$");
                rest = tail;
                continue;
            };
            rest = after;
            let found = parameters.and_then(|parameters| parameters.get(name));
            let Some((found, value)) = found.and_then(|found| Some((found, self.room_for(found.scalar()?)?))) else {
                self.unknown.push((name.to_owned(), node.place.line));
                out.push_str(&format!("$${name}$$"));
                continue;
            };
            self.used.push(name.to_owned());
            if out.is_empty() && rest.is_empty() {
                return Node { value: found.value.clone(), place: node.place };
            }
            out.push_str(&value);
        }
        out.push_str(rest);
        Node { value: Value::Text(out), place: node.place }
    }

    fn room_for(&mut self, value: String) -> Option<String> {
        self.written = self.written.saturating_add(value.len());
        (self.written <= ROOM).then_some(value)
    }

    fn losses(&self) -> Vec<Loss> {
        let loss = |field: String, line: usize, why: &str| Loss { field, line, why: why.to_owned() };
        let mut losses: Vec<Loss> = Vec::new();
        for (name, line) in &self.unknown {
            losses.push(loss(
                format!("$${name}$$"),
                *line,
                "is no parameter of the object around it, or the file grows too long by it; it is left as it is",
            ));
        }
        for (name, line) in self.declared.iter().filter(|(name, _)| !self.used.contains(name)) {
            losses.push(loss(format!("parameters.{name}"), *line, "nothing uses it"));
        }
        losses
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_')
}
