//! What `exec` and `cp` have in common: a connection to a command in a task, until that has ended.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::api::frames::{Frame, FrameReader, WINDOW};
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

/// What tells us to end, from its making on.
pub(super) struct Interruptions([(Signal, i32); 3]);

impl Interruptions {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self([
            (signal(SignalKind::interrupt())?, nix::libc::SIGINT),
            (signal(SignalKind::terminate())?, nix::libc::SIGTERM),
            (signal(SignalKind::hangup())?, nix::libc::SIGHUP),
        ]))
    }

    /// The next one's number. A call that is given up loses nothing.
    async fn next(&mut self) -> i32 {
        let [(first, a), (second, b), (third, c)] = &mut self.0;
        tokio::select! {
            _ = first.recv() => *a,
            _ = second.recv() => *b,
            _ = third.recv() => *c,
        }
    }

    /// Waits for a thread of ours; `Err` with the number when we are told to end before.
    pub(super) async fn or<T>(&mut self, thread: Thread<T>) -> Result<anyhow::Result<T>, i32> {
        tokio::select! {
            done = thread.0 => Ok(done.map_err(|_| anyhow::anyhow!("a thread of our own has failed"))),
            number = self.next() => Err(number),
        }
    }
}

/// Sends frames one after the other without holding up who has them to send; ends when it is dropped. What waits in it is
/// bounded by the window.
struct Sender {
    queue: mpsc::UnboundedSender<Frame>,
    _sending: JoinSet<()>,
}

impl Sender {
    fn new(mut to_daemon: impl AsyncWrite + Unpin + Send + 'static) -> Self {
        let (queue, mut frames) = mpsc::unbounded_channel::<Frame>();
        let mut sending = JoinSet::new();
        sending.spawn(async move {
            while let Some(frame) = frames.recv().await {
                // That the daemon takes no more is no failure: the command may have ended, which its next frame tells.
                let _ = to_daemon.write_all(&frame.encode()).await;
            }
        });
        Self { queue, _sending: sending }
    }

    fn send(&self, frame: Frame) {
        // The task ends with us only.
        let _ = self.queue.send(frame);
    }

    fn send_size(&self) {
        if let Some((rows, columns)) = terminal::size(io::stdin()) {
            self.send(Frame::Size { rows, columns });
        }
    }
}

/// Carries input and output until the command has ended. Giving it up ends the command.
pub(super) async fn converse(
    mut from_daemon: FrameReader<impl AsyncRead + Unpin>,
    to_daemon: impl AsyncWrite + Unpin + Send + 'static,
    mut streams: Streams,
    interruptions: &mut Interruptions,
) -> anyhow::Result<End> {
    let mut resized = signal(SignalKind::window_change())?;
    let sender = Sender::new(to_daemon);
    let (mut credit, mut reason) = (WINDOW, None);
    if streams.resize {
        // It may have changed since we asked for a terminal.
        sender.send_size();
    }
    if streams.input.is_none() {
        sender.send(Frame::EndOfStdin);
    }
    loop {
        tokio::select! {
            frame = from_daemon.next() => match frame? {
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
                        number = interruptions.next() => return Ok(End::Signalled(number)),
                    }
                }
                None => anyhow::bail!(reason.unwrap_or_else(|| "the daemon went away, and the command with it".to_owned())),
            },
            chunk = next(&mut streams.input), if credit >= CHUNK => match chunk {
                Some(chunk) => {
                    let chunk = chunk?;
                    credit = credit.saturating_sub(chunk.len());
                    sender.send(Frame::Stdin(chunk));
                }
                None => {
                    streams.input = None;
                    sender.send(Frame::EndOfStdin);
                }
            },
            _ = resized.recv(), if streams.resize => sender.send_size(),
            number = interruptions.next() => return Ok(End::Signalled(number)),
        }
    }
}

async fn next(input: &mut Option<mpsc::Receiver<io::Result<Vec<u8>>>>) -> Option<io::Result<Vec<u8>>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

/// Work on a thread of its own; see [`Interruptions::or`].
pub(super) struct Thread<T>(oneshot::Receiver<T>);

/// Runs `work`, which blocks, on a thread of its own; not waited for when the program ends.
pub(super) fn on_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Thread<T>> {
    let (sender, receiver) = oneshot::channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(Thread(receiver))
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

/// Output that is read as from a file; error output goes to ours, as text: it tells names that others have given.
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
                // Nobody is left to tell when ours is closed.
                Some(Output::Err(bytes)) => drop(io::stderr().write_all(harmless(&bytes).as_bytes())),
                None => return Ok(0),
            }
        }
    }
}

/// With its line ends.
fn harmless(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.split('\n').map(terminal::escape).collect::<Vec<_>>().join("\n")
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::DuplexStream;

    fn converse_with(
        daemon: impl AsyncFnOnce(DuplexStream) -> DuplexStream,
        input: mpsc::Receiver<io::Result<Vec<u8>>>,
    ) -> (anyhow::Result<End>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (there, here) = tokio::io::duplex(1024);
            let (from_daemon, to_daemon) = tokio::io::split(here);
            let (output, mut printed) = mpsc::channel(QUEUE);
            let mut interruptions = Interruptions::new().unwrap();
            let streams = Streams { input: Some(input), output, resize: false };
            let talk = converse(FrameReader::new(from_daemon), to_daemon, streams, &mut interruptions);
            let count = async {
                let mut count = 0;
                while let Some(Output::Out(bytes) | Output::Err(bytes)) = printed.recv().await {
                    count += bytes.len();
                }
                count
            };
            let all = async { tokio::join!(talk, daemon(there), count) };
            // The connection is open as long as the client talks.
            let (end, _connection, count) = tokio::time::timeout(Duration::from_secs(60), all).await.expect("it hangs");
            (end, count)
        })
    }

    #[test]
    fn output_is_taken_while_the_daemon_takes_no_input() {
        let (chunks, input) = Chunks::new();
        std::thread::spawn(move || chunks.copy(io::repeat(b'x')));
        let daemon = async |mut connection: DuplexStream| {
            for _ in 0..100 {
                connection.write_all(&Frame::Stdout(vec![b'o'; 10_000]).encode()).await.unwrap();
            }
            connection.write_all(&Frame::Exit(3).encode()).await.unwrap();
            connection
        };
        let (end, count) = converse_with(daemon, input);
        assert_eq!((end.unwrap(), count), (End::Exited { code: 3, reason: None }, 1_000_000));
    }

    #[test]
    fn a_signal_ends_it_while_the_daemon_takes_no_input() {
        let (chunks, input) = Chunks::new();
        std::thread::spawn(move || chunks.copy(io::repeat(b'x')));
        let daemon = async |connection: DuplexStream| {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).unwrap();
            connection
        };
        let (end, _) = converse_with(daemon, input);
        assert_eq!(end.unwrap(), End::Signalled(nix::libc::SIGTERM));
    }

    #[test]
    fn a_thread_that_panicked_is_no_success() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let waited = runtime.block_on(async {
            let thread = on_thread("panics", || -> io::Result<()> { panic!("as it should") }).unwrap();
            Interruptions::new().unwrap().or(thread).await
        });
        assert!(waited.unwrap().is_err());
    }
}
