//! `trainyard exec [-i] [-t] JOB [ROLE-I] -- COMMAND…`

use std::io::{self, IsTerminal};

use anyhow::Context;
use tokio::sync::mpsc;

use super::Exit;
use super::output;
use super::session::{Chunks, End, Streams, converse, on_thread, print};
use crate::api::client::Client;
use crate::api::wire::ExecRequest;
use crate::ids::JobKey;
use crate::sys::terminal::{self, RawMode};

/// Exit code when the end of the command is not known.
const OWN_FAILURE: u8 = 125;

pub(super) struct Request {
    pub(super) interactive: bool,
    pub(super) tty: bool,
    /// `JOB [TASK]`.
    pub(super) target: Vec<String>,
    pub(super) command: Vec<String>,
}

pub(super) async fn run(client: &Client, request: Request) -> anyhow::Result<Exit> {
    let (job, task) = match request.target.as_slice() {
        [job, task] => (job, Some(task.clone())),
        [job] => (job, None),
        _ => anyhow::bail!("name a job, or a job and one of its tasks"),
    };
    let key: JobKey = job.parse().with_context(|| format!("{job:?} cannot be a job"))?;
    let size = terminal::size(io::stdin()).filter(|_| io::stdin().is_terminal());
    if request.tty && size.is_none() {
        anyhow::bail!("-t gives the command a terminal like yours, but standard input is none; leave -t out");
    }
    let (rows, columns) = size.unwrap_or_default();
    let wanted = ExecRequest {
        task,
        command: Some(request.command),
        tty: request.tty,
        rows,
        columns,
        term: std::env::var("TERM").ok().filter(|term| !term.is_empty()),
        ..ExecRequest::default()
    };
    let connection = client.exec(&key, &wanted).await?;
    let (sender, receiver) = mpsc::channel(4);
    let printed = on_thread("output", move || print(receiver))?;
    let input = if request.interactive { Some(standard_input()?) } else { None };
    // From here on every way out leads past its end, panics too.
    let raw = if request.tty { Some(RawMode::begin()?) } else { None };
    let ended = converse(connection, Streams { input, output: sender, resize: request.tty }).await;
    let printed = match ended {
        // The last of it is still being printed.
        Ok(End::Exited { .. }) => printed.await.unwrap_or(Ok(())),
        _ => Ok(()),
    };
    drop(raw);
    match ended {
        Ok(end) => told(end, printed),
        Err(error) => {
            output::error(&format!("{error:#}"));
            Ok(Exit::Command(OWN_FAILURE))
        }
    }
}

fn standard_input() -> io::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (chunks, receiver) = Chunks::new();
    on_thread("input", move || chunks.copy(io::stdin().lock()))?;
    Ok(receiver)
}

fn told(end: End, printed: io::Result<()>) -> anyhow::Result<Exit> {
    match end {
        End::Exited { code, reason } => {
            if let Some(reason) = reason {
                output::error(&reason);
            }
            match printed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
                _ => Ok(Exit::Command(u8::try_from(code).unwrap_or(OWN_FAILURE))),
            }
        }
        End::Signalled(signal) => Ok(Exit::Command(u8::try_from(128 + signal).unwrap_or(OWN_FAILURE))),
        End::OutputClosed => Ok(Exit::Success),
    }
}
