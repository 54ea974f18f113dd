//! `trainyard cp JOB[/ROLE-I]:PATH LOCAL` and `trainyard cp LOCAL JOB[/ROLE-I]:PATH`

use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;

use super::Exit;
use super::output;
use super::session::{Chunks, End, Received, Streams, converse, on_thread};
use crate::api::client::Client;
use crate::api::wire::ExecRequest;
use crate::ids::{JobKey, TaskName};
use crate::transfer::{TransferError, pack, unpack};

pub(super) async fn run(client: &Client, from: &str, to: &str) -> anyhow::Result<Exit> {
    match (Place::of(from), Place::of(to)) {
        (Place::Task { job, path }, Place::Here(local)) => out_of(client, job, path, local).await,
        (Place::Here(local), Place::Task { job, path }) => into(client, local, job, path).await,
        (Place::Here(_), Place::Here(_)) => {
            anyhow::bail!("neither {from} nor {to} is in a task; write that one as JOB:PATH or JOB/ROLE-0:PATH")
        }
        (Place::Task { .. }, Place::Task { .. }) => {
            anyhow::bail!("one of {from} and {to} must be on this machine; a local name with a colon is written ./NAME")
        }
    }
}

enum Place<'a> {
    Task { job: &'a str, path: &'a str },
    Here(&'a str),
}

impl<'a> Place<'a> {
    /// A colon makes it a task's, unless the text begins as a path.
    fn of(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((job, path)) if !job.is_empty() && !job.starts_with(['.', '/']) => Self::Task { job, path },
            _ => Self::Here(text),
        }
    }
}

/// The job, and the task if one is named: `JOB`, `JOB/TASK`, `WORKSPACE/JOB` or `WORKSPACE/JOB/TASK`.
async fn target(client: &Client, text: &str) -> anyhow::Result<(JobKey, Option<String>)> {
    let parsed = |text: &str| text.parse::<JobKey>().with_context(|| format!("{text:?} cannot be a job"));
    let Some((job, task)) = text.rsplit_once('/') else { return Ok((parsed(text)?, None)) };
    if job.contains('/') {
        return Ok((parsed(job)?, Some(task.to_owned())));
    }
    if task.parse::<TaskName>().is_err() {
        return Ok((parsed(text)?, None));
    }
    let jobs = client.jobs().await?.jobs;
    let known =
        |key: &JobKey| jobs.iter().any(|job| job.workspace == key.workspace.as_str() && job.job == key.job.as_str());
    let (whole, first) = (parsed(text), parsed(job)?);
    match whole {
        Ok(whole) if known(&whole) && known(&first) => {
            anyhow::bail!(
                "{text} may be a job of workspace {job}, or a task of job {job}; write {}/{text} for the task",
                first.workspace
            )
        }
        Ok(whole) if known(&whole) => Ok((whole, None)),
        _ => Ok((first, Some(task.to_owned()))),
    }
}

async fn out_of(client: &Client, job: &str, path: &str, local: &str) -> anyhow::Result<Exit> {
    let (key, task) = target(client, job).await?;
    let request = ExecRequest { task, read: Some(path.to_owned()), ..ExecRequest::default() };
    let connection = client.exec(&key, &request).await?;
    let (output, mut received) = Received::new();
    let local = local.to_owned();
    let unpacked = on_thread("unpack", move || {
        let unpacked = unpack(&mut received, Path::new(&local));
        if unpacked.is_ok() {
            // What follows the archive, and what is said on standard error.
            let _ = io::copy(&mut received, &mut io::sink());
        }
        unpacked
    })?;
    let end = converse(connection, Streams { input: None, output, resize: false }).await?;
    let unpacked = match &end {
        End::Signalled(_) => Ok(()),
        _ => unpacked.await.unwrap_or(Ok(())),
    };
    told(end, unpacked, &format!("{job}:"))
}

async fn into(client: &Client, local: &str, job: &str, path: &str) -> anyhow::Result<Exit> {
    // Said before anything is begun over there.
    if !local.is_empty() && local != "." {
        std::fs::symlink_metadata(local.trim_end_matches("/.")).with_context(|| format!("cannot read {local}"))?;
    }
    let (key, task) = target(client, job).await?;
    let request = ExecRequest { task, write: Some(path.to_owned()), ..ExecRequest::default() };
    let connection = client.exec(&key, &request).await?;
    let (mut chunks, input) = Chunks::new();
    let (output, mut received) = Received::new();
    let said = on_thread("said", move || io::copy(&mut received.by_ref(), &mut io::sink()))?;
    let local = local.to_owned();
    let packed = on_thread("pack", move || {
        let packed = pack(Path::new(&local), &mut chunks, &mut |note| output::error(&note));
        if packed.is_err() {
            chunks.fail(io::Error::other("the copy is not complete"));
        }
        packed
    })?;
    let end = converse(connection, Streams { input: Some(input), output, resize: false }).await;
    let end = match end {
        Ok(end) => end,
        // Our own failure says more than the end of the conversation.
        Err(error) => {
            packed.await.unwrap_or(Ok(())).map_err(|error| anyhow::anyhow!(error.told()))?;
            return Err(error);
        }
    };
    if matches!(end, End::Exited { .. }) {
        // Only what is left to be printed.
        let _ = said.await;
    }
    told(end, Ok(()), &format!("{job}:"))
}

fn told(end: End, here: Result<(), TransferError>, place: &str) -> anyhow::Result<Exit> {
    match end {
        End::Exited { code: 0, .. } | End::OutputClosed => {
            here.map_err(|error| anyhow::anyhow!(error.told()))?;
            Ok(Exit::Success)
        }
        End::Exited { code, reason } => {
            let reason = reason.unwrap_or_else(|| format!("the copy ended with code {code}"));
            anyhow::bail!("{place} {reason}")
        }
        End::Signalled(signal) => Ok(Exit::Command(u8::try_from(128 + signal).unwrap_or(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_a_task_of_it_unless_it_begins_as_a_path() {
        assert!(matches!(Place::of("digits:/output"), Place::Task { job: "digits", path: "/output" }));
        assert!(matches!(
            Place::of("vision/resnet/worker-0:a:b"),
            Place::Task { job: "vision/resnet/worker-0", path: "a:b" }
        ));
        for local in ["digits", "./a:b", "/tmp/a:b", ":x", "../a:b"] {
            assert!(matches!(Place::of(local), Place::Here(_)), "{local}");
        }
    }
}
