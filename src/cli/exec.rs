//! `trainyard exec [-i] [-t] JOB [ROLE-I] -- COMMAND…`

use std::io;

use tokio::sync::mpsc;

use super::output;
use super::session::{Chunks, End, Interruptions, Streams, converse, on_thread, print};
use super::{Exit, job_key};
use crate::api::client::{Client, ClientError};
use crate::api::wire::{ExecRequest, OWN_FAILURE};
use crate::sys::terminal::{self, RawMode};

pub(super) struct Request {
    pub(super) interactive: bool,
    pub(super) tty: bool,
    pub(super) job: String,
    pub(super) task: Option<String>,
    pub(super) command: Vec<String>,
}

/// What keeps the command from running has a code of its own: all others are the command's.
pub(super) async fn run(client: &Client, request: Request) -> anyhow::Result<Exit> {
    Ok(converse_with(client, request).await.unwrap_or_else(|error| {
        let told = match error.downcast_ref::<ClientError>() {
            Some(error) => error.to_string(),
            None => format!("{error:#}"),
        };
        output::error(&told);
        not_run()
    }))
}

fn not_run() -> Exit {
    Exit::Command(u8::try_from(OWN_FAILURE).unwrap_or(u8::MAX))
}

async fn converse_with(client: &Client, request: Request) -> anyhow::Result<Exit> {
    let key = job_key(&request.job)?;
    let size = terminal::size(io::stdin());
    if request.tty && size.is_none() {
        anyhow::bail!("-t gives the command a terminal like yours, but standard input is none; leave -t out");
    }
    let (rows, columns) = size.unwrap_or_default();
    let wanted = ExecRequest {
        task: request.task,
        command: Some(request.command),
        tty: request.tty,
        rows,
        columns,
        term: std::env::var("TERM").ok().filter(|term| !term.is_empty()),
        ..ExecRequest::default()
    };
    let connection = client.exec(&key, &wanted).await?;
    let mut interruptions = Interruptions::new()?;
    let (sender, receiver) = mpsc::channel(4);
    let printing = on_thread("output", move || print(receiver))?;
    let input = if request.interactive { Some(standard_input()?) } else { None };
    // From here on every way out leads past its end, panics too. Keys that go nowhere must keep their meaning here.
    let raw = if request.tty && request.interactive { Some(RawMode::begin()?) } else { None };
    let streams = Streams { input, output: sender, resize: request.tty };
    let ended = converse(connection.from_daemon, connection.to_daemon, streams, &mut interruptions).await;
    let (ended, printed) = match ended {
        Ok(End::Signalled(number)) => (Ok(End::Signalled(number)), Ok(())),
        // The last of it is still being printed.
        ended => match interruptions.or(printing).await {
            Ok(printed) => (ended, printed.and_then(|printed| Ok(printed?))),
            Err(number) => (Ok(End::Signalled(number)), Ok(())),
        },
    };
    drop(raw);
    Ok(told(ended, printed))
}

fn standard_input() -> io::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (chunks, receiver) = Chunks::new();
    on_thread("input", move || chunks.copy(io::stdin().lock()))?;
    Ok(receiver)
}

fn told(ended: anyhow::Result<End>, printed: anyhow::Result<()>) -> Exit {
    let code = match ended {
        Ok(End::Signalled(signal)) => 128 + signal,
        Ok(End::OutputClosed) => 0,
        Ok(End::Exited { code, reason }) => {
            reason.iter().for_each(|reason| output::error(reason));
            code
        }
        Err(error) => {
            output::error(&format!("{error:#}"));
            OWN_FAILURE
        }
    };
    // Who reads no more has had enough; anything else has cut the output off.
    let cut_off = printed.err().filter(|error| !is_broken_pipe(error));
    if let Some(error) = &cut_off {
        output::error(&format!("cannot write the command's output: {error:#}"));
    }
    let code = if cut_off.is_some() { OWN_FAILURE } else { code };
    Exit::Command(u8::try_from(code).unwrap_or(u8::MAX))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_has_gone_makes_cut_off_output_a_success() {
        let printed = |kind: io::ErrorKind| Err(io::Error::from(kind).into());
        let exited = || Ok(End::Exited { code: 3, reason: None });
        assert_eq!(told(exited(), Ok(())), Exit::Command(3));
        assert_eq!(told(exited(), printed(io::ErrorKind::BrokenPipe)), Exit::Command(3));
        assert_eq!(told(Ok(End::OutputClosed), printed(io::ErrorKind::BrokenPipe)), Exit::Command(0));
        for ended in [exited(), Ok(End::OutputClosed), Ok(End::Exited { code: 0, reason: None })] {
            assert_eq!(told(ended, printed(io::ErrorKind::StorageFull)), Exit::Command(125));
        }
        assert_eq!(told(Err(anyhow::anyhow!("gone")), Ok(())), Exit::Command(125));
        assert_eq!(told(Ok(End::OutputClosed), Err(anyhow::anyhow!("a panic"))), Exit::Command(125));
        assert_eq!(told(Ok(End::Signalled(2)), Ok(())), Exit::Command(130));
    }
}
