//! `trainyard stop [--all] [--now] | restart | rerun | rm | send JOB…`, `extend JOB TIME`: each job is judged by itself, and every refusal is told.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::Exit;
use super::confirm::{Bulk, some_of};
use super::output::{self, Format};
use super::ps::is_own;
use super::wait::of_sweep;
use crate::api::client::{Client, ClientError};
use crate::api::wire::{Done, JobQuery};
use crate::ids::JobKey;
use crate::report::JobLine;
use crate::status::{State, StopHow};

#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Stop { how: StopHow },
    Restart,
    Rerun,
    Extend { by: Duration },
    Remove { with_file: bool },
    Send { drop: bool },
}

impl Change {
    /// For programs.
    fn word(self) -> &'static str {
        match self {
            Self::Stop { .. } => "stop",
            Self::Restart => "restart",
            Self::Rerun => "rerun",
            Self::Extend { .. } => "extend",
            Self::Remove { .. } => "remove",
            Self::Send { drop: false } => "send",
            Self::Send { drop: true } => "drop",
        }
    }
}

pub(super) async fn run(client: &Client, change: Change, keys: &[JobKey], format: Format) -> anyhow::Result<Exit> {
    let mut exit = Exit::Success;
    for key in keys {
        let done = match change {
            Change::Stop { how } => client.stop(key, how).await,
            Change::Restart => client.restart(key).await,
            Change::Rerun => client.rerun(key).await,
            Change::Extend { by } => client.extend(key, by).await,
            Change::Remove { with_file } => client.remove(key, with_file).await,
            Change::Send { drop: false } => client.send_output(key).await,
            Change::Send { drop: true } => client.keep_unsent(key).await,
        };
        tell(done, &json!({ "job": key.to_string(), "done": change.word() }), format, &mut exit)?;
    }
    Ok(exit)
}

#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    what: &'a Value,
    message: &'a str,
}

/// All jobs that are not over and are the caller's to stop; at once, also those that are being stopped.
pub(super) async fn stop_all(client: &Client, how: StopHow, bulk: Bulk, format: Format) -> anyhow::Result<Exit> {
    let open = match how {
        StopHow::WithGrace => open_jobs(client).await?,
        StopHow::AtOnce => jobs_that(client, |state| !state.is_terminal()).await?,
    };
    if open.is_empty() && format == Format::People {
        output::aside("nothing of yours runs or waits");
    }
    if bulk == Bulk::Say {
        say(&open, "would be stopped", format)?;
        return Ok(Exit::Success);
    }
    let names: Vec<String> = open.iter().map(ToString::to_string).collect();
    if !open.is_empty() && !bulk.agreed(&format!("Stop {} job(s): {}?", open.len(), some_of(&names)))? {
        output::error("nothing was stopped");
        return Ok(Exit::Failure);
    }
    run(client, Change::Stop { how }, &open, format).await
}

/// Those that run or wait, and are the caller's.
pub(super) async fn open_jobs(client: &Client) -> anyhow::Result<Vec<JobKey>> {
    jobs_that(client, |state| !state.is_terminal() && state != State::Stopping).await
}

/// Those of the caller's that have a run and such a state.
async fn jobs_that(client: &Client, is_meant: impl Fn(State) -> bool) -> anyhow::Result<Vec<JobKey>> {
    let listed = client.job_lines(&JobQuery::default()).await?.jobs;
    // Others' are seen as well, and stay theirs.
    let meant = listed.iter().filter(|job: &&JobLine| job.run > 0 && is_meant(job.state) && is_own(job.owner));
    Ok(meant.map(|job| format!("{}/{}", job.workspace, job.job).parse()).collect::<Result<Vec<JobKey>, _>>()?)
}

/// What would come of each.
pub(super) fn say(keys: &[JobKey], what: &str, format: Format) -> anyhow::Result<()> {
    keys.iter().try_for_each(|key| match format {
        Format::Json => output::json(&json!({ "job": key.to_string(), "would": what })),
        Format::People => output::line(&format!("{key}: {what}")),
    })
}

/// The records of jobs that are over, or their files as well.
pub(super) async fn remove(
    client: &Client,
    with_file: bool,
    bulk: Bulk,
    keys: &[JobKey],
    format: Format,
) -> anyhow::Result<Exit> {
    if bulk == Bulk::Say {
        let mut exit = Exit::Success;
        for key in keys {
            let what = json!({ "job": key.to_string(), "done": "nothing" });
            tell(client.would_remove(key, with_file).await, &what, format, &mut exit)?;
        }
        return Ok(exit);
    }
    let meant = if with_file && bulk.asks() { each_of(client, keys).await? } else { Vec::new() };
    let names: Vec<String> = meant.iter().map(ToString::to_string).collect();
    let is_bulk = names.len() > 1;
    if is_bulk && !bulk.agreed(&format!("Remove {} jobs with their files: {}?", names.len(), some_of(&names)))? {
        output::error("nothing was removed");
        return Ok(Exit::Failure);
    }
    run(client, Change::Remove { with_file }, keys, format).await
}

/// The jobs; of a sweep all of them.
async fn each_of(client: &Client, keys: &[JobKey]) -> anyhow::Result<Vec<JobKey>> {
    let mut all = Vec::new();
    for key in keys {
        let made = of_sweep(client, key).await?;
        if made.is_empty() { all.push(key.clone()) } else { all.extend(made) }
    }
    Ok(all)
}

/// Tells what came of one of several; a refusal ends no more than that one. `what`: the thing and what was done to it, for programs.
pub(super) fn tell(
    done: Result<Done, ClientError>,
    what: &Value,
    format: Format,
    exit: &mut Exit,
) -> anyhow::Result<()> {
    match done {
        Ok(done) if format == Format::Json => output::json(&Told { what, message: &done.message }),
        Ok(done) => output::line(&done.message),
        Err(ClientError::Refused { status, message }) => {
            output::error(&message);
            *exit = if status == 404 { Exit::NotFound } else { Exit::Failure };
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
