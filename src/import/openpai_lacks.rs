//! What OpenPAI cannot run of a job as it is exported: told to who takes it there. The document keeps it, for the way back.

use super::Loss;
use super::openpai_export::{fitted_part, fitted_roles, image, is_of_all};
use crate::spec::{Command, DesiredState, GpuPart, Image, JobSpec, Main, OnOverrun, Platform, Priority, Retry, Role};

/// By the keys of the job file.
pub fn lacks(spec: &JobSpec) -> Vec<Loss> {
    let mut out = of_job(spec);
    for (role, there) in spec.members().zip(fitted_roles(spec)) {
        let key = |name: &str| format!("roles.{}.{name}", role.name);
        let told = of_role(role, spec).into_iter().map(|(name, why)| loss(key(name), why));
        out.extend(told);
        for (label, there) in role.ports.iter().map(|port| (&port.label, fitted_part(&port.label))) {
            if there != *label {
                let why = format!("is called {there} there, also in variables: its names have no '-'");
                out.push(loss(key(&format!("ports.{label}")), why));
            }
        }
        if there != role.name.as_str() {
            let why = format!(
                "is called {there} there, also in variables: OpenPAI's names of roles are of A to Z, a to z, digits, '.', '_' and '~'"
            );
            out.push(loss(format!("roles.{}", role.name), why));
        }
    }
    out
}

fn loss(field: String, why: impl Into<String>) -> Loss {
    Loss { field, line: 0, why: why.into() }
}

fn of_job(spec: &JobSpec) -> Vec<Loss> {
    let has_code = spec.members().any(|role| role.code.is_some());
    let is_framework =
        spec.framework.is_some() || ![Platform::Native, Platform::OpenPai].contains(&spec.contract.platform);
    let rules = [
        (has_code, "code", "is not brought there: put it into the image, or let the command fetch it"),
        (!spec.datasets.is_empty(), "datasets", "are not there: let the command fetch them"),
        (!spec.mounts.is_empty() || !spec.remotes.is_empty(), "mounts", "are not there: let the command fetch them"),
        (spec.roles.iter().any(|role| role.is_service), "services", "are not started there"),
        (is_framework, "framework", "and contract are not known there: tasks find OpenPAI's own variables only"),
        (
            spec.state == DesiredState::Held,
            "state",
            "\"held\" is not known there: it starts as soon as it is submitted",
        ),
        (
            spec.state == DesiredState::Stopped,
            "state",
            "\"stopped\" is not known there: it starts when it is submitted",
        ),
        (
            !spec.after.is_empty(),
            "after",
            "is not known there: it waits for no other job, so submit it when these have ended",
        ),
        (spec.max_duration.is_some(), "max_duration", "is not known there: it runs as long as it takes"),
        (
            spec.on_overrun == OnOverrun::Stop,
            "on_overrun",
            "\"stop\" is not known there, nor is expected_duration: it runs as long as it takes",
        ),
        (
            spec.retry.on != Retry::default().on,
            "retry.on",
            "is not known there: OpenPAI tries again after any failure, up to retryCount",
        ),
        (
            spec.priority != Priority::NORMAL,
            "priority",
            "is not known there in v1: choose a virtual cluster that has it",
        ),
        (
            spec.stop_grace != spec.contract.stop_grace(),
            "stop_grace",
            "is not known there: tasks have the time that the cluster gives them",
        ),
    ];
    rules.into_iter().filter(|(is_so, ..)| *is_so).map(|(_, key, why)| loss(key.to_owned(), why)).collect()
}

fn of_role(role: &Role, spec: &JobSpec) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    match &role.image {
        Image::Host => {
            out.push(("image", "\"host\" is this machine's own system: name an image of a registry".to_owned()))
        }
        Image::Named(own) if *own != image(spec) => {
            out.push(("image", format!("one image is for all roles there, {}; the role has {own} here", image(spec))));
        }
        Image::Named(_) => {}
        local => out.push(("image", format!("{local} is a file of this machine: name an image of a registry"))),
    }
    let own_env: Vec<&str> =
        role.env.iter().filter(|pair| !is_of_all(spec, pair)).map(|(name, _)| name.as_str()).collect();
    let names = own_env.join(", ");
    let decides = spec.members().any(|role| role.main == Main::Role);
    let rules = [
        (
            role.command == Command::Default && role.params.is_empty(),
            "command",
            "is the image's own, which OpenPAI does not know: `sleep infinity` stands in its place".to_owned(),
        ),
        (
            role.main == Main::FirstTask,
            "main",
            "\"first\": no task ends the job there by itself; it goes on until all tasks of all roles have ended"
                .to_owned(),
        ),
        (
            role.serves && !decides,
            "serves",
            "OpenPAI waits for this role as well: write main = true for the one whose end is the job's".to_owned(),
        ),
        (
            !own_env.is_empty(),
            "env",
            format!("a role has no variables of its own there, so {names} is not set: let the command set it"),
        ),
        (
            role.resources.gpu_part != GpuPart::Whole,
            "resources",
            "parts of cards are not known there: it gets whole ones".to_owned(),
        ),
        (role.user.is_some(), "user", "tasks run as the image's user there".to_owned()),
    ];
    out.extend(rules.into_iter().filter(|(is_so, ..)| *is_so).map(|(_, key, why)| (key, why)));
    out
}
