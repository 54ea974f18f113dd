//! `trainyard cp JOB[/ROLE-I]:PATH LOCAL` and `trainyard cp LOCAL JOB[/ROLE-I]:PATH`

use std::io::{self, Read};
use std::path::Path;

use super::output::{self, Format};
use super::progress::Progress;
use super::session::{Chunks, End, Interruptions, Received, Streams, converse, on_thread};
use super::{Exit, WrongArgument, job_key, unreadable};
use crate::api::client::Client;
use crate::api::wire::{ExecRequest, JobQuery};
use crate::ids::{JobKey, TaskName};
use crate::transfer::{Asked, Counted, TransferError, pack, unpack};

pub(super) async fn run(client: &Client, from: &str, to: &str, format: Format) -> anyhow::Result<Exit> {
    match (Place::of(from), Place::of(to)) {
        (Place::Task { job, path }, Place::Here(local)) => out_of(client, job, path, local, format).await,
        (Place::Here(local), Place::Task { job, path }) => into(client, local, job, path, format).await,
        (Place::Here(_), Place::Here(_)) => {
            let why = format!("neither {from} nor {to} is in a task; write that one as JOB:PATH or JOB/ROLE-0:PATH");
            Err(WrongArgument(why).into())
        }
        (Place::Task { .. }, Place::Task { .. }) => {
            let why =
                format!("one of {from} and {to} must be on this machine; a local name with a colon is written ./NAME");
            Err(WrongArgument(why).into())
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
    let Some((job, task)) = text.rsplit_once('/') else { return Ok((job_key(text)?, None)) };
    if job.contains('/') {
        return Ok((job_key(job)?, Some(task.to_owned())));
    }
    if task.parse::<TaskName>().is_err() {
        return Ok((job_key(text)?, None));
    }
    let jobs = client.job_lines(&JobQuery::default()).await?.jobs;
    let known =
        |key: &JobKey| jobs.iter().any(|job| job.workspace == key.workspace.as_str() && job.job == key.job.as_str());
    let (whole, first) = (job_key(text), job_key(job)?);
    match whole {
        Ok(whole) if known(&whole) && known(&first) => {
            let why = format!(
                "{text} may be a job of workspace {job}, or a task of job {job}; write {}/{text} for the task",
                first.workspace
            );
            Err(WrongArgument(why).into())
        }
        Ok(whole) if known(&whole) => Ok((whole, None)),
        _ => Ok((first, Some(task.to_owned()))),
    }
}

async fn out_of(client: &Client, job: &str, path: &str, local: &str, format: Format) -> anyhow::Result<Exit> {
    let (key, task) = target(client, job).await?;
    let request = ExecRequest { task, read: Some(path.to_owned()), ..ExecRequest::default() };
    let connection = client.exec(&key, &request).await?;
    let mut interruptions = Interruptions::new()?;
    let (output, received) = Received::new();
    let (path, asked, local) = (path.to_owned(), path.to_owned(), local.to_owned());
    let unpacking = on_thread("unpack", move || {
        let mut progress = Progress::new(format);
        let mut received = Counted::new(received, |done| progress.bytes(&path, done, None));
        let unpacked = unpack(&mut received, Path::new(&local), Asked::Source(Path::new(&asked)));
        if unpacked.is_ok() {
            // What follows the archive, and what is said on standard error.
            let _ = io::copy(&mut received, &mut io::sink());
        }
        unpacked
    })?;
    let streams = Streams { input: None, output, resize: false };
    let ended = converse(connection.from_daemon, connection.to_daemon, streams, &mut interruptions).await;
    // After a signal too: no more comes, and what is not whole is removed.
    let unpacked = interruptions.or(unpacking).await;
    let told = |error: TransferError| anyhow::anyhow!(error.told());
    finish(ended, unpacked.map(|done| done.and_then(|unpacked| unpacked.map_err(told))), job)
}

async fn into(client: &Client, local: &str, job: &str, path: &str, format: Format) -> anyhow::Result<Exit> {
    // Said before anything is begun over there.
    let there = std::fs::symlink_metadata(local).map_err(|error| unreadable(Path::new(local), error))?;
    // Of a directory it is known when all of it was read.
    let of = there.is_file().then_some(there.len());
    let (key, task) = target(client, job).await?;
    let request = ExecRequest { task, write: Some(path.to_owned()), ..ExecRequest::default() };
    let connection = client.exec(&key, &request).await?;
    let mut interruptions = Interruptions::new()?;
    let (chunks, input) = Chunks::new();
    let (output, mut received) = Received::new();
    let saying = on_thread("said", move || io::copy(&mut received.by_ref(), &mut io::sink()))?;
    let local = local.to_owned();
    let packing = on_thread("pack", move || {
        let mut progress = Progress::new(format);
        let mut chunks = Counted::new(chunks, |done| progress.bytes(&local, done, of));
        if let Err(error) = pack(Path::new(&local), &mut chunks, &mut |note| output::error(&note)) {
            chunks.inner.fail(io::Error::other(error.told()));
        }
    })?;
    let streams = Streams { input: Some(input), output, resize: false };
    let ended = converse(connection.from_daemon, connection.to_daemon, streams, &mut interruptions).await;
    let here = match interruptions.or(packing).await {
        // Only what is left to be told.
        Ok(Ok(())) => interruptions.or(saying).await.map(|said| said.map(drop)),
        other => other,
    };
    finish(ended, here, job)
}

/// What comes of the other end and of ours, which was cut short by a signal or has failed.
fn finish(ended: anyhow::Result<End>, here: Result<anyhow::Result<()>, i32>, job: &str) -> anyhow::Result<Exit> {
    let signalled = |number: i32| Ok(Exit::Command(u8::try_from(128 + number).unwrap_or(1)));
    let here = match here {
        Ok(here) => here,
        Err(number) => return signalled(number),
    };
    match ended {
        Ok(End::Signalled(number)) => signalled(number),
        Ok(End::Exited { code: 0, .. }) => here.map(|()| Exit::Success),
        Ok(End::Exited { code, reason }) => {
            let reason = reason.unwrap_or_else(|| format!("the copy ended with code {code}"));
            anyhow::bail!("{job}: {reason}")
        }
        Ok(End::OutputClosed) => {
            here?;
            anyhow::bail!("{job}: the copy is not complete")
        }
        // Our end was cut off by that, which tells nothing more.
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_a_success_only_when_both_ends_say_so() {
        let exited = |code| Ok(End::Exited { code, reason: None });
        let broken = || anyhow::anyhow!("no space left");
        assert_eq!(finish(exited(0), Ok(Ok(())), "job").unwrap(), Exit::Success);
        for (ended, here, words) in [
            (exited(0), Ok(Err(broken())), "no space left"),
            (exited(1), Ok(Ok(())), "ended with code 1"),
            (Ok(End::OutputClosed), Ok(Ok(())), "not complete"),
            (Ok(End::OutputClosed), Ok(Err(broken())), "no space left"),
            (Err(broken()), Ok(Ok(())), "no space left"),
        ] {
            let error = finish(ended, here, "job").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(finish(Ok(End::Signalled(2)), Ok(Err(broken())), "job").unwrap(), Exit::Command(130));
        assert_eq!(finish(exited(0), Err(15), "job").unwrap(), Exit::Command(143));
    }

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
