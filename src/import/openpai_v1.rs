//! OpenPAI's job protocol v1: JSON.

use super::draft::{Draft, DraftResources, DraftRole, Holds};
use super::extras::to_toml;
use super::fields::{Fate, Fates, Fields, LOGIN, Source};
use super::node::{Node, Place};
use super::openpai_export::{KEY, can_name, put_back};
use super::{ImportError, Imported, Loss};
use crate::ids::Bytes;
use crate::spec::{Command, Main, MinSucceeded, OutsidePort, Port};

/// The key that a policy's bound of failures becomes.
pub(super) const MIN_FAILED: &str = "min_failed";
const IS_ENDED: &str = "lets its tasks fail, so that it is not main here, whose failure would be the job's: all of its tasks succeeding does not end the job by itself, as it does there; write main = true in place of min_failed if it is to";
const IS_MAIN: &str = "lets its tasks fail there; here one that fails fails the job and stops the others, since it is main, which ends the job when all of its tasks have succeeded, as there; with min_failed = \"never\" in place of main the job waits for every role";

const DIRECTORY: &str = "an address of the cluster; put the files into the workspace's datasets/NAME and write datasets = [\"NAME\"], seen at /dataset";

const JOB: &Fates = &[
    ("authFile", LOGIN),
    ("dataDir", Fate::Lost(DIRECTORY)),
    ("outputDir", Fate::Lost("results are written to /output, which $PAI_OUTPUT_DIR names")),
    (
        "codeDir",
        Fate::Lost("an address of the cluster; put the files into the workspace's code/NAME and write code = \"NAME\""),
    ),
    ("virtualCluster", Fate::Lost("one machine has none; the directory of the job file says which workspace it is in")),
    (
        "killAllOnCompletedTaskNumber",
        Fate::Lost("obsolete in OpenPAI as well; write min_succeeded for the role that decides"),
    ),
];

const JOB_KEYS: &[(&str, &[&str])] = &[
    ("roles", &["taskRoles"]),
    ("retries", &["retryCount"]),
    ("env", &["jobEnvs"]),
    ("extras", &["extras"]),
    ("image", &["image"]),
    ("resources.gpu_type", &["gpuType"]),
];

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut fields = Fields::of(document, "")?;
    let mut draft = Draft::new("a job of OpenPAI (protocol v1)", job_name(&mut fields, "jobName")?, "openpai");
    let image = fields.needed("image")?;
    if let Some(count) = fields.number("retryCount", -2)? {
        draft.retry("retryCount", count);
    }
    environment(&mut draft, fields.object("jobEnvs")?);
    let gpu_type = fields.text("gpuType")?.filter(|kind| !kind.is_empty());
    for mut role in fields.objects("taskRoles")? {
        draft.roles.push(read_role(&mut draft.losses, &mut role, &image, gpu_type.as_deref())?);
        role.leave(&[], &mut draft.losses);
    }
    draft.came_from(&fields, JOB_KEYS);
    let own = extras(&mut draft, fields.object("extras")?);
    // What we have exported says itself what its roles are.
    if own.is_none() {
        ends_at_once(&mut draft.roles, &mut draft.losses);
    }
    drop_default_cluster(&mut fields)?;
    fields.leave(JOB, &mut draft.losses);
    if let Some(own) = own {
        put_back(&mut draft, own)?;
    }
    draft.finish()
}

/// A name that OpenPAI itself takes.
pub(super) fn job_name(fields: &mut Fields, field: &str) -> Result<String, ImportError> {
    let place = fields.place_of(field);
    let name = fields.needed(field)?;
    if can_name(&name) {
        return Ok(name);
    }
    let message = format!("is {name:?}; OpenPAI takes A to Z, a to z, digits, '-', '.', '_' and '~' in a job's name");
    Err(ImportError::field(&fields.at(field), place, message))
}

/// `default` says nothing.
pub(super) fn drop_default_cluster(fields: &mut Fields) -> Result<(), ImportError> {
    match fields.take("virtualCluster") {
        Some(node) if node.scalar().as_deref() != Some("default") => fields.keep("virtualCluster", node),
        _ => {}
    }
    Ok(())
}

fn environment(draft: &mut Draft, mut envs: Fields) {
    draft.debug = envs.take("isDebug").and_then(|node| node.scalar()).is_some_and(|text| text == "true");
    let path = envs.path().to_owned();
    for (name, node) in envs.rest() {
        let field = format!("{path}.{name}");
        match node.scalar() {
            _ if name == "paiAzRDMA" => draft.lose(field, "RDMA of Azure; there is none here"),
            Some(value) => draft.env.push((name, value)),
            None => draft.lose(field, "is no text"),
        }
    }
}

fn extras(draft: &mut Draft, mut extras: Fields) -> Option<Node> {
    let own = extras.take(KEY);
    let path = extras.path().to_owned();
    for (name, node) in extras.rest() {
        if let Some(value) = to_toml(&node, &format!("{path}.{name}"), &mut draft.losses) {
            draft.extras.push((name, value));
        }
    }
    own
}

fn read_role(
    losses: &mut Vec<Loss>,
    fields: &mut Fields,
    image: &str,
    gpu_type: Option<&str>,
) -> Result<DraftRole, ImportError> {
    let count = fields.number("taskNumber", 1)?.unwrap_or(1);
    let count = u32::try_from(count).map_err(|_| fields.refuse("taskNumber", "is too large"))?;
    let mut role = DraftRole::new(fields.needed("name")?, count);
    role.holds_open(Holds::Yes);
    role.image = Some(image.to_owned());
    role.command = Command::Shell(fields.needed("command")?);
    // null is "never", absent is 1.
    let failed = if fields.is_written("minFailedTaskCount") { bound(fields, "minFailedTaskCount")? } else { Some(1) };
    set_policy(&mut role, failed, bound(fields, "minSucceededTaskCount")?);
    role.came_from(fields, &[(MIN_FAILED, &["minFailedTaskCount"])]);
    check_bounds(&role, fields)?;
    tell_of_tolerated(&role, fields.at("minFailedTaskCount"), losses);
    let megabytes = |number: Option<i64>, default: u64| Bytes::mib(number.map_or(default, i64::unsigned_abs));
    let gpu = fields.number("gpuNumber", 0)?.unwrap_or(0).unsigned_abs();
    role.resources = DraftResources {
        cpu: Some(fields.number("cpuNumber", 1)?.unwrap_or(1) as f64),
        memory: Some(megabytes(fields.number("memoryMB", 100)?, 100)),
        shm: Some(megabytes(fields.number("shmMB", 1)?, 64)),
        gpu: Some(gpu).filter(|gpu| *gpu > 0),
        gpu_type: gpu_type.filter(|_| gpu > 0).map(str::to_owned),
        pids: None,
        ..DraftResources::default()
    };
    role.ports = ports(fields, losses)?;
    role.came_from(
        fields,
        &[
            ("count", &["taskNumber"]),
            ("command", &["command"]),
            ("ports", &["portList"]),
            ("resources.cpu", &["cpuNumber"]),
            ("resources.memory", &["memoryMB"]),
            ("resources.shm", &["shmMB"]),
            ("resources.gpu", &["gpuNumber"]),
        ],
    );
    Ok(role)
}

/// `portList` of a role.
pub(super) fn ports(fields: &mut Fields, losses: &mut Vec<Loss>) -> Result<Vec<Port>, ImportError> {
    let mut ports = Vec::new();
    for mut port in fields.objects("portList")? {
        let label = port.needed("label")?;
        if ports.iter().any(|other: &Port| other.label == label) {
            return Err(port.refuse("label", format!("is {label:?} a second time")));
        }
        let count = port_number(&mut port, "portNumber")?.unwrap_or(1);
        let begin = port_number(&mut port, "beginAt")?.filter(|begin| *begin != 0);
        ports.push(Port { label, count, begin, outside: OutsidePort::Same });
        port.leave(&[], losses);
    }
    Ok(ports)
}

fn port_number(fields: &mut Fields, name: &str) -> Result<Option<u16>, ImportError> {
    let number = fields.number(name, 0)?;
    number.map(|number| u16::try_from(number).map_err(|_| fields.refuse(name, "is no port"))).transpose()
}

/// A bound of a policy; `None` for "never", which OpenPAI writes as null or -1.
pub(super) fn bound(fields: &mut Fields, name: &str) -> Result<Option<u32>, ImportError> {
    match fields.whole(name)? {
        None | Some(-1) => Ok(None),
        Some(number) if number >= 1 => u32::try_from(number).map(Some).map_err(|_| fields.refuse(name, "is too large")),
        Some(number) => Err(fields.refuse(name, format!("is {number}, must be -1, null or from 1"))),
    }
}

pub(super) fn set_policy(role: &mut DraftRole, failed: Option<u32>, succeeded: Option<u32>) {
    role.min_failed = failed;
    role.min_succeeded = succeeded.map_or(MinSucceeded::All, MinSucceeded::Count);
}

pub(super) fn check_bounds(role: &DraftRole, fields: &Fields) -> Result<(), ImportError> {
    let succeeded = if let MinSucceeded::Count(count) = role.min_succeeded { Some(count) } else { None };
    for (word, bound) in [("failed", role.min_failed), ("succeeded", succeeded)] {
        if let Some(bound) = bound.filter(|bound| *bound > role.count) {
            let message = format!("waits for {bound} {word} tasks and has only {}", role.count);
            return Err(fields.refuse("", message));
        }
    }
    Ok(())
}

/// In OpenPAI a job whose tasks have all ended has succeeded, however many failed.
pub(super) fn tell_of_tolerated(role: &DraftRole, field: String, losses: &mut Vec<Loss>) {
    if let Some(bound) = role.min_failed.filter(|bound| *bound > 1) {
        let why = format!(
            "up to {} failed task(s) do not stop the job, as there, but it ends as failed; \"never\" lets it succeed",
            bound - 1
        );
        losses.push(Loss { field, line: 0, why });
    }
}

/// Of several roles, one all of whose tasks are waited for ends the job by itself in OpenPAI; ours does that if it is `main`.
pub(super) fn ends_at_once(roles: &mut [DraftRole], losses: &mut Vec<Loss>) {
    let several = roles.len() > 1;
    let is_of_all = |role: &DraftRole| role.min_succeeded == MinSucceeded::Count(role.count);
    let ends_it = |role: &DraftRole| matches!(role.min_succeeded, MinSucceeded::Count(_));
    let is_ended = roles.iter().any(|role| ends_it(role) && !(is_of_all(role) && role.min_failed.is_none()));
    for role in roles {
        if is_of_all(role) {
            role.min_succeeded = MinSucceeded::All;
            role.main = if several { leads(role, is_ended, losses) } else { Main::No };
        }
    }
}

/// A `main` role that fails fails the job. One that may fail is `main` only where no other role would end the job: without it those
/// that never end would hold it open.
fn leads(role: &mut DraftRole, is_ended: bool, losses: &mut Vec<Loss>) -> Main {
    if role.min_failed.is_some() {
        return Main::Role;
    }
    let (main, why) = if is_ended { (Main::No, IS_ENDED) } else { (Main::Role, IS_MAIN) };
    if main == Main::Role {
        role.min_failed = Some(1);
    }
    let of_role = Source { key: "", field: format!("roles.{}", role.name), place: Place::default() };
    let source = role.sources.iter().find(|source| source.key == MIN_FAILED).unwrap_or(&of_role);
    losses.push(Loss { field: source.field.clone(), line: source.place.line, why: why.to_owned() });
    main
}
