//! What `exec` and `cp` have in common: a connection to a command in a task, until that has ended.

use std::io::{self, Read, Write};

use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::api::client::ExecConnection;
use crate::api::frames::{Frame, WINDOW};
use crate::sys::terminal;

/// Most bytes of input in a frame.
const CHUNK: usize = 32 << 10;
/// Chunks that wait for whoever takes them.
const QUEUE: usize = 4;

/// What the command says.
pub(super) enum Output {
    Out(Vec<u8>),
    Err(Vec<u8>),
}

/// How the conversation has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The command's exit code, and why it could not be done if it could not.
    Exited { code: i32, reason: Option<String> },
    /// We were told to end, by this signal.
    Signalled(i32),
    /// Nobody takes the output any more.
    OutputClosed,
}

/// The two ends of the conversation here.
pub(super) struct Streams {
    /// Input in chunks; it ends when the sender is dropped. None at all: the command's input ends at once.
    pub(super) input: Option<mpsc::Receiver<io::Result<Vec<u8>>>>,
    pub(super) output: mpsc::Sender<Output>,
    /// The size of our terminal is passed on when it changes.
    pub(super) resize: bool,
}

/// Carries input and output until the command has ended. Dropping it ends the command.
pub(super) async fn converse(mut connection: ExecConnection, mut streams: Streams) -> anyhow::Result<End> {
    let mut ends = [
        (signal(SignalKind::interrupt())?, nix::libc::SIGINT),
        (signal(SignalKind::terminate())?, nix::libc::SIGTERM),
        (signal(SignalKind::hangup())?, nix::libc::SIGHUP),
    ];
    let mut resized = signal(SignalKind::window_change())?;
    let (mut credit, mut reason) = (WINDOW, None);
    if streams.input.is_none() {
        send(&mut connection, &Frame::EndOfStdin).await;
    }
    loop {
        tokio::select! {
            frame = connection.from_daemon.next() => match frame? {
                Some(Frame::Exit(code)) => return Ok(End::Exited { code, reason }),
                Some(Frame::Error(text)) => reason = Some(text),
                Some(Frame::Taken(count)) => credit += count as usize,
                Some(frame) => {
                    let output = match frame {
                        Frame::Stdout(bytes) => Output::Out(bytes),
                        Frame::Stderr(bytes) => Output::Err(bytes),
                        other => anyhow::bail!("the daemon sent something unexpected: {other:?}"),
                    };
                    tokio::select! {
                        sent = streams.output.send(output) => if sent.is_err() {
                            return Ok(End::OutputClosed);
                        },
                        number = any_of(&mut ends) => return Ok(End::Signalled(number)),
                    }
                }
                None => anyhow::bail!(reason.unwrap_or_else(|| "the daemon went away, and the command with it".to_owned())),
            },
            chunk = next(&mut streams.input), if credit >= CHUNK => {
                let frame = match chunk {
                    Some(chunk) => Frame::Stdin(chunk?),
                    None => Frame::EndOfStdin,
                };
                match &frame {
                    Frame::Stdin(bytes) => credit = credit.saturating_sub(bytes.len()),
                    _ => streams.input = None,
                }
                send(&mut connection, &frame).await;
            }
            _ = resized.recv(), if streams.resize => {
                if let Some((rows, columns)) = terminal::size(io::stdin()) {
                    send(&mut connection, &Frame::Size { rows, columns }).await;
                }
            }
            number = any_of(&mut ends) => return Ok(End::Signalled(number)),
        }
    }
}

/// That the daemon takes no more is no failure: the command may have ended, which the next frame tells.
async fn send(connection: &mut ExecConnection, frame: &Frame) {
    let _ = connection.to_daemon.write_all(&frame.encode()).await;
}

async fn any_of(signals: &mut [(Signal, i32); 3]) -> i32 {
    let [(first, a), (second, b), (third, c)] = signals;
    tokio::select! {
        _ = first.recv() => *a,
        _ = second.recv() => *b,
        _ = third.recv() => *c,
    }
}

async fn next(input: &mut Option<mpsc::Receiver<io::Result<Vec<u8>>>>) -> Option<io::Result<Vec<u8>>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

/// Runs `work`, which blocks, on a thread of its own; not waited for when the program ends.
pub(super) fn on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(receiver)
}

/// Input that is written as to a file; a [`Streams::input`].
pub(super) struct Chunks {
    sender: mpsc::Sender<io::Result<Vec<u8>>>,
    begun: Vec<u8>,
}

impl Chunks {
    pub(super) fn new() -> (Self, mpsc::Receiver<io::Result<Vec<u8>>>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, begun: Vec::new() }, receiver)
    }

    /// Ends the conversation with an error.
    pub(super) fn fail(&self, error: io::Error) {
        // The conversation may have ended by itself.
        let _ = self.sender.blocking_send(Err(error));
    }

    /// Passes on what comes, as it comes, to its end.
    pub(super) fn copy(self, mut source: impl Read) {
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = match source.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(buffer.get(..count).unwrap_or_default().to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = chunk.is_err();
            if self.sender.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK - self.begun.len();
        let part = bytes.get(..room).unwrap_or(bytes);
        self.begun.extend_from_slice(part);
        if self.begun.len() == CHUNK {
            self.flush()?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = std::mem::take(&mut self.begun);
        if chunk.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Output that is read as from a file; error output goes to ours.
pub(super) struct Received {
    receiver: mpsc::Receiver<Output>,
    chunk: io::Cursor<Vec<u8>>,
}

impl Received {
    pub(super) fn new() -> (mpsc::Sender<Output>, Self) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (sender, Self { receiver, chunk: io::Cursor::default() })
    }
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.chunk.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            match self.receiver.blocking_recv() {
                Some(Output::Out(bytes)) => self.chunk = io::Cursor::new(bytes),
                Some(Output::Err(bytes)) => io::stderr().write_all(&bytes)?,
                None => return Ok(0),
            }
        }
    }
}

/// Writes output to our own streams until there is no more, or nobody takes it.
pub(super) fn print(mut output: mpsc::Receiver<Output>) -> io::Result<()> {
    while let Some(part) = output.blocking_recv() {
        match part {
            Output::Out(bytes) => {
                io::stdout().write_all(&bytes)?;
                io::stdout().flush()?;
            }
            Output::Err(bytes) => io::stderr().write_all(&bytes)?,
        }
    }
    Ok(())
}
