//! `trainyard show JOB [--effective]`: the file, or all that it comes to. What is shown is what runs.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::Exit;
use super::output::{self, Format};
use super::shelf::{Shelf, tell};
use crate::api::client::Client;
use crate::contract::command;
use crate::ids::JobKey;
use crate::spec::{Command, DesiredState, Image, JobSpec, MinSucceeded, Network, Role, parse};

/// A file that need not be in `jobs.d`, with its overrides and its template.
pub(super) fn run_file(path: &Path, shelf: &Shelf, effective: bool, format: Format) -> anyhow::Result<Exit> {
    let stack = shelf.stack(path)?;
    let expanded = stack.expand();
    match (effective, &expanded.spec) {
        (true, None) => {
            tell(&expanded.diagnostics);
            Ok(Exit::Failure)
        }
        (true, Some(_)) => run(&stack.job.file, &expanded.text, effective, format),
        (false, _) => run(&stack.job.file, &stack.job.text, effective, format),
    }
}

pub(super) async fn ask(client: &Client, job: &str) -> anyhow::Result<String> {
    let key: JobKey = job.parse().with_context(|| format!("{job:?} cannot be a job"))?;
    let view = client.job(&key).await?;
    match view.spec {
        Some(text) => Ok(text),
        None => bail!("job {key} has never had a valid file: {}", view.report.reason),
    }
}

pub(super) fn run(name: &str, text: &str, effective: bool, format: Format) -> anyhow::Result<Exit> {
    if !effective {
        match format {
            Format::Json => output::json(&json!({ "spec": text }))?,
            Format::People => output::line(text.trim_end())?,
        }
        return Ok(Exit::Success);
    }
    let (spec, found) = parse(name, text);
    let Some(spec) = spec else {
        found.iter().for_each(|diagnostic| output::error(&diagnostic.to_string()));
        return Ok(Exit::Failure);
    };
    match format {
        Format::Json => output::json(&as_json(&spec))?,
        Format::People => output::line(as_text(&spec).trim_end())?,
    }
    Ok(Exit::Success)
}

fn network(spec: &JobSpec) -> &'static str {
    match spec.network {
        Network::Task => "task",
        Network::Job => "job",
        Network::Host => "host",
    }
}

fn state(spec: &JobSpec) -> &'static str {
    match spec.state {
        DesiredState::Run => "run",
        DesiredState::Held => "held",
        DesiredState::Stopped => "stopped",
    }
}

/// As they are written: `NAME` or `NAME@VERSION`.
fn datasets(spec: &JobSpec) -> Vec<String> {
    let written = spec.datasets.iter().map(|dataset| match &dataset.version {
        Some(version) => format!("{}@{version}", dataset.name),
        None => dataset.name.to_string(),
    });
    written.collect()
}

fn min_succeeded(role: &Role) -> String {
    match role.min_succeeded {
        MinSucceeded::All => "\"all\"".to_owned(),
        MinSucceeded::Never => "\"never\"".to_owned(),
        MinSucceeded::Count(count) => count.to_string(),
    }
}

fn as_text(spec: &JobSpec) -> String {
    let mut out = format!(
        "description = {:?}\nimage = \"{}\"\nuser = {}\ninit = {}\ndebug = {}\nnetwork = \"{}\"\nretries = {}\nstate = {:?}\nrerun = {}\ndatasets = {:?}\n",
        spec.description,
        spec.image,
        spec.user.as_ref().map_or("\"the image's\"".to_owned(), |user| format!("{user:?}")),
        spec.init,
        spec.debug,
        network(spec),
        spec.retries,
        state(spec),
        spec.rerun,
        datasets(spec)
    );
    if let Some(code) = &spec.code {
        let _ = writeln!(out, "code = {:?}", code.as_str());
    }
    if let Some(limit) = spec.max_duration {
        let _ = writeln!(out, "max_duration = \"{}s\"", limit.as_secs_f64());
    }
    if let Some(grace) = spec.stop_grace {
        let _ = writeln!(out, "stop_grace = \"{}s\"", grace.as_secs_f64());
    }
    for role in &spec.roles {
        let min_failed = role.min_failed.map_or_else(|| "\"never\"".to_owned(), |count| count.to_string());
        let resources = role.resources;
        let _ = writeln!(
            out,
            "\n[roles.{}]\ncount = {}\nmain = {}\nserves = {}\nmin_failed = {min_failed}\nmin_succeeded = {}\n\
             resources = {{ cpu = {}, memory = \"{}\", shm = \"{}\", pids = {} }}",
            role.name,
            role.count,
            role.main,
            role.serves,
            min_succeeded(role),
            resources.cpu,
            resources.memory,
            resources.shm,
            resources.pids
        );
        for port in &role.ports {
            let begin = port.begin.map_or_else(|| "\"allotted\"".to_owned(), |begin| begin.to_string());
            let _ = writeln!(out, "ports.{} = {{ count = {}, begin = {begin} }}", port.label, port.count);
        }
        for (name, value) in &role.env {
            let _ = writeln!(out, "env.{name} = {value:?}");
        }
        for index in 0..role.count {
            let _ = writeln!(out, "# {}-{index} runs: {}", role.name, runs(spec, role));
        }
    }
    out
}

/// The final command line, as far as it is known without the image.
fn runs(spec: &JobSpec, role: &Role) -> String {
    match (&spec.image, &role.command) {
        (Image::Host, _) | (_, Command::Shell(_) | Command::Exec(_)) => command::display(&command::line(role, &[])),
        (_, Command::Default) if role.arguments.is_empty() => "what the image runs by itself".to_owned(),
        (_, Command::Default) => format!("what the image runs by itself, then {}", command::display(&role.arguments)),
    }
}

fn as_json(spec: &JobSpec) -> Value {
    let role = |role: &Role| {
        json!({
            "role": role.name.as_str(), "count": role.count, "main": role.main, "serves": role.serves,
            "min_failed": role.min_failed, "min_succeeded": min_succeeded(role).trim_matches('"'),
            "resources": {
                "cpu": role.resources.cpu.0 as f64 / 1000.0, "memory": role.resources.memory.0,
                "shm": role.resources.shm.0, "pids": role.resources.pids,
            },
            "env": role.env.iter().map(|(name, value)| json!([name, value])).collect::<Vec<_>>(),
            "ports": role.ports.iter().map(|port| json!([port.label, port.count, port.begin])).collect::<Vec<_>>(),
            "args": command::line(role, &[]), "runs": runs(spec, role),
        })
    };
    json!({
        "description": spec.description, "image": spec.image.to_string(), "user": spec.user, "init": spec.init, "debug": spec.debug,
        "stop_grace_s": spec.stop_grace.map(|d| d.as_secs_f64()), "network": network(spec), "retries": spec.retries,
        "state": state(spec), "rerun": spec.rerun, "datasets": datasets(spec),
        "code": spec.code.as_ref().map(|code| code.as_str()), "max_duration_s": spec.max_duration.map(|d| d.as_secs_f64()),
        "roles": spec.roles.iter().map(role).collect::<Vec<_>>(),
    })
}
