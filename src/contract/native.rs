//! Trainyard's own names: `TRAINYARD_*`, the hosts file, the host name.

use std::fmt::Write;

use super::{Task, host, join, layout};
use crate::ids::{label_variable, role_counts, role_ports, role_variables};
use crate::spec::Network;

/// What our variables begin with.
const PREFIX: &str = "TRAINYARD_";
/// Longest host name that Linux takes, in bytes.
const HOST_NAME_MAX: usize = 63;

/// Where programs are looked for, unless the image says otherwise.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What any program expects to find.
pub(super) fn base(task: &Task<'_>) -> Vec<(String, String)> {
    // Collective libraries guess the interface, and guess wrong where there are several.
    let interface =
        interface(task).into_iter().flat_map(|name| [("GLOO_SOCKET_IFNAME", name), ("NCCL_SOCKET_IFNAME", name)]);
    [
        ("PATH", SEARCH_PATH),
        ("HOME", task.inside.home.as_str()),
        ("USER", task.identity.user.as_str()),
        ("LOGNAME", task.identity.user.as_str()),
        ("LANG", "C.UTF-8"),
        // Otherwise the last lines of a Python program come late or, when it is killed, never.
        ("PYTHONUNBUFFERED", "1"),
    ]
    .into_iter()
    .chain(interface)
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

/// The network interface by which a task's peers are reached, where that is known.
pub(super) fn interface(task: &Task<'_>) -> Option<&'static str> {
    match task.spec.network {
        Network::Task => Some("eth0"),
        Network::Job => Some("lo"),
        Network::Host => None,
    }
}

/// Where a role's name makes one that is the task's own, such as `TASK_COUNT` of a role `task`, the task's own stays.
pub(super) fn variables(task: &Task<'_>) -> Vec<(String, String)> {
    let own = own(task);
    let mut out = of_roles(task);
    out.retain(|(name, _)| own.iter().all(|(known, _)| known != name));
    own.into_iter().chain(out).map(|(name, value)| (format!("{PREFIX}{name}"), value)).collect()
}

fn own(task: &Task<'_>) -> Vec<(String, String)> {
    let identity = task.identity;
    let mut out = Vec::new();
    let mut set = |name: &str, value: String| out.push((name.to_owned(), value));
    set("WORKSPACE", identity.key.workspace.to_string());
    set("JOB", identity.key.job.to_string());
    set("RUN", identity.run.to_string());
    set("ATTEMPT", identity.attempt.to_string());
    set("ROLE", task.role.name.to_string());
    set("TASK_INDEX", task.index.to_string());
    set("TASK_COUNT", task.role.count.to_string());
    set("ROLES", join(task.spec.members().map(|role| &role.name), ","));
    if let Some(place) = task.place() {
        set("ADDRESS", place.address.to_string());
        for (label, ports) in &place.ports {
            set(&format!("PORT_{}", label_variable(label)), join(ports, ","));
        }
        for (label, ports) in &place.published {
            set(&format!("PUBLISHED_PORT_{}", label_variable(label)), join(ports, ","));
        }
    }
    out
}

fn of_roles(task: &Task<'_>) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (role, name) in task.spec.roles.iter().zip(role_variables(task.spec.roles.iter().map(|role| &role.name))) {
        let places = task.places_of(role);
        let [count, hosts] = role_counts(&name);
        out.push((count, role.count.to_string()));
        out.push((hosts, join(places.iter().map(|place| place.address), ",")));
        for port in &role.ports {
            let of_label = places.iter().flat_map(|place| &place.ports).filter(|(label, _)| *label == port.label);
            let firsts = of_label.filter_map(|(_, numbers)| numbers.first());
            out.push((role_ports(&name, &port.label), join(firsts, ",")));
        }
    }
    out
}

/// Relative paths of a program land in its code, where the image wants them, or where its files are kept.
pub(super) fn working_directory(task: &Task<'_>) -> String {
    let of_platform = layout::working_directory(task);
    match &task.inside.working_directory {
        _ if of_platform.is_some() => of_platform.unwrap_or_default(),
        _ if task.role.code.is_some() => "/code".to_owned(),
        Some(directory) => directory.clone(),
        None => "/output".to_owned(),
    }
}

/// `ROLE-I`, or `task-N` where the role's name cannot be a host name.
pub fn host_name(task: &Task<'_>) -> String {
    let name = format!("{}-{}", task.role.name, task.index);
    let fits = name.len() <= HOST_NAME_MAX && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if fits { name } else { format!("task-{}", task.ordinal) }
}

/// Every task by its name, and this one by its host name.
pub(super) fn hosts(task: &Task<'_>) -> String {
    let mut out = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    for peer in task.attempt() {
        let Some(place) = peer.place() else { continue };
        let _ = write!(out, "{} {}-{}", place.address, peer.role.name, peer.index);
        let host_name = host_name(&peer);
        let known = format!("{}-{}", peer.role.name, peer.index);
        let names = host::names(&peer).into_iter().chain([host_name]);
        names.filter(|name| *name != known).for_each(|name| {
            let _ = write!(out, " {name}");
        });
        out.push('\n');
    }
    if task.spec.network != Network::Task {
        // All share one network: the task's own host name is the shared one.
        let _ = writeln!(out, "127.0.0.1 {}", host_name(task));
    }
    out
}
