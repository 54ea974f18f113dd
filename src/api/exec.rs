//! `exec` and `cp`, the daemon's side: joins a client's connection with the streams of a command in a task.
//!
//! ```text
//! client ─Stdin, Size─► listen ─input, sizes─► Talk ─► pipes or terminal ─► command
//!        ◄─Stdout, Stderr, Taken, Exit── queue ◄── Talk ◄──
//! ```
//! Everything between is bounded: output waits for the client by the short queue, input for the command by the client's
//! window. When the client goes, the control socket is closed, and `enter` ends the command. The client is listened to until the
//! last of the output is with it: it may not take any while it cannot get rid of its input.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONNECTION, UPGRADE};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, Interest};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::error::ApiError;
use super::frames::{Frame, FrameReader, PROTOCOL, WINDOW};
use super::jobs::{self, show_with};
use super::rates::Who;
use super::server::{Body, Call, Context, in_full, object};
use super::tokens::{Held, Tokens};
use super::wire::ExecRequest;
use crate::engine::local::{Ends, Entered, Pipes};
use crate::ids::{JobKey, TaskId};
use crate::reconcile::{JobDetail, Kept};
use crate::rundir::entry::{HEARD, LINE_MAX, OWN_FAILURE, Order, Report};
use crate::status::State;
use crate::store::record::{AttemptRecord, TaskPhase, TaskRecord};
use crate::sys::stream::Stream;
use crate::sys::{passing, terminal};

/// Frames that wait for the client.
const QUEUE: usize = 8;
/// Most bytes of output in a frame; a pipe holds as many.
const CHUNK: usize = 64 << 10;
/// Most bytes that are still passed on after the command has ended, as many as a pipe can hold: what it has left running may
/// go on printing for ever.
const LEFT_MAX: usize = 1 << 20;
/// How long a client that broke the protocol is given to take the reason.
const FAREWELL: Duration = Duration::from_secs(10);

/// Answers the request; what follows goes on by itself.
pub(super) async fn begin(call: Call, context: &Context) -> Result<Response<Body>, ApiError> {
    let key = jobs::key(call.place(0), call.place(1))?;
    let most = call.body_max();
    let Call { mut request, caller, token, .. } = call;
    if request.headers().get(UPGRADE).is_none_or(|wanted| wanted.as_bytes() != PROTOCOL.as_bytes()) {
        return Err(ApiError::Bad(format!("exec wants the headers Connection: Upgrade and Upgrade: {PROTOCOL}")));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let wanted: ExecRequest = object(request.into_body(), most).await?;
    let order = wanted.order().map_err(ApiError::Bad)?;
    let session = context.sessions.begin(Who::User(caller.uid)).map_err(ApiError::TooMany)?;
    let detail = show_with(context, caller, key.clone(), None, Kept::Inside).await?;
    let task = choose(&key, &detail, wanted.task.as_deref()).map_err(ApiError::Conflict)?;
    let ends = if order.terminal().is_some() { Ends::Terminal } else { Ends::Pipes };
    let engine = context.engine.clone();
    let entered = tokio::task::spawn_blocking(move || engine.enter(task, ends)).await.map_err(|_| ApiError::Ending)?;
    let entered = entered.map_err(|error| ApiError::Failed(format!("cannot start a process for it: {error}")))?;
    let tokens = context.tokens.clone();
    tokio::spawn(async move {
        let _session = session;
        match upgrade.await {
            Ok(connection) => tokio::select! {
                () = serve(TokioIo::new(connection), entered, order) => {}
                () = until_revoked(&tokens, token.as_ref()) => tracing::debug!("a command was ended: its token is revoked"),
            },
            Err(error) => tracing::debug!(%error, "a client left before its command was started"),
        }
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, PROTOCOL)
        .body(in_full(Bytes::new()));
    response.map_err(|error| ApiError::Bad(error.to_string()))
}

async fn until_revoked(tokens: &Tokens, token: Option<&Held>) {
    match token {
        Some(token) => tokens.revoked(token).await,
        None => std::future::pending().await,
    }
}

/// The running task that is meant, or a sentence why there is none.
fn choose(key: &JobKey, detail: &JobDetail, wanted: Option<&str>) -> Result<TaskId, String> {
    let (state, reason) = (detail.report.state, &detail.report.reason);
    let attempt = detail.runs.last().filter(|run| run.ended.is_none()).and_then(|run| run.attempts.last());
    let next = || instead(key, state);
    let attempt = attempt.ok_or_else(|| format!("job {key} does not run: it is {state} ({reason}); {}", next()))?;
    let found = match wanted {
        Some(name) => named(attempt, name)
            .ok_or_else(|| format!("job {key} has no task {name}; there are {}", names(attempt.tasks.iter())))?,
        None => only(key, attempt)?,
    };
    let (ordinal, task) = found;
    match &task.phase {
        TaskPhase::Running { .. } | TaskPhase::Kept { .. } => Ok(attempt.task_id(ordinal)),
        TaskPhase::Launching => {
            Err(format!("task {} of job {key} is still starting: try again in a moment", task.name()))
        }
        TaskPhase::Ended(end) => {
            let task = task.name();
            Err(format!(
                "task {task} of job {key} has ended: {}; `trainyard logs {task} {key}` has its output",
                end.end
            ))
        }
    }
}

/// What to do where nothing runs that a command could be run in.
fn instead(key: &JobKey, state: State) -> String {
    match state {
        State::Waiting => "`trainyard queue` tells when it starts".to_owned(),
        state if state.is_terminal() => {
            format!("`trainyard logs {key}` has its output, and `trainyard rerun {key}` runs it again")
        }
        _ => format!("`trainyard status {key}` tells more"),
    }
}

fn numbered(attempt: &AttemptRecord) -> impl Iterator<Item = (u32, &TaskRecord)> {
    (0..).zip(&attempt.tasks)
}

fn named<'a>(attempt: &'a AttemptRecord, name: &str) -> Option<(u32, &'a TaskRecord)> {
    numbered(attempt).find(|(_, task)| task.name().to_string() == name)
}

fn only<'a>(key: &JobKey, attempt: &'a AttemptRecord) -> Result<(u32, &'a TaskRecord), String> {
    let running: Vec<_> = numbered(attempt)
        .filter(|(_, task)| matches!(task.phase, TaskPhase::Running { .. } | TaskPhase::Kept { .. }))
        .collect();
    match running.as_slice() {
        [one] => Ok(*one),
        [] => numbered(attempt).next().ok_or_else(|| format!("job {key} has no tasks")),
        several => {
            let names = names(several.iter().map(|(_, task)| *task));
            Err(format!("job {key} has several running tasks, name one: {names}"))
        }
    }
}

fn names<'a>(tasks: impl Iterator<Item = &'a TaskRecord>) -> String {
    tasks.map(|task| task.name().to_string()).collect::<Vec<_>>().join(", ")
}

/// Carries frames until the command has ended or the client has gone.
async fn serve<C: AsyncRead + AsyncWrite + Send + 'static>(connection: C, entered: Entered, order: Order) {
    let (from_client, to_client) = tokio::io::split(connection);
    let (frames, queue) = mpsc::channel(QUEUE);
    let mut writer = JoinSet::new();
    writer.spawn(write(to_client, queue));
    // The client's window is as large: writing never waits, and short frames take no more than their bytes.
    let (input, to_command) = tokio::io::duplex(WINDOW);
    let (sizes, new_sizes) = watch::channel(None);
    let window = Arc::new(AtomicUsize::new(0));
    let talk = Talk { frames: frames.clone(), input: to_command, sizes: new_sizes, window: window.clone() };
    let mut listening = std::pin::pin!(listen(from_client, input, sizes, window));
    let last = tokio::select! {
        report = talk.hold(entered, order) => Ok(last_words(report)),
        wrong = &mut listening => Err(wrong),
    };
    match last {
        Ok(words) => tokio::select! {
            () = finish(words, frames, writer) => {}
            never = for_ever(listening) => match never {},
        },
        Err(Some(reason)) => {
            // It may take nothing any more.
            let _ = tokio::time::timeout(FAREWELL, finish((Some(reason), OWN_FAILURE), frames, writer)).await;
        }
        // A client that has gone needs no answer.
        Err(None) => {}
    }
}

/// Returns when the client has got all, or has gone.
async fn finish((reason, code): (Option<String>, i32), frames: mpsc::Sender<Frame>, mut writer: JoinSet<()>) {
    for frame in reason.map(Frame::Error).into_iter().chain([Frame::Exit(code)]) {
        let _ = frames.send(frame).await;
    }
    drop(frames);
    let _ = writer.join_next().await;
}

async fn for_ever<T>(work: impl Future<Output = T>) -> std::convert::Infallible {
    work.await;
    std::future::pending().await
}

fn last_words(report: io::Result<Option<Report>>) -> (Option<String>, i32) {
    match report {
        Ok(Some(Report::Exited(code))) => (None, code),
        Ok(Some(Report::Signalled(signal))) => (None, 128 + signal),
        Ok(Some(Report::Failed { code, reason })) => (Some(reason), code),
        Ok(Some(Report::Terminal)) => (Some("a terminal came twice".to_owned()), OWN_FAILURE),
        // It was killed together with its task.
        Ok(None) => (Some("the task has ended, and the command with it".to_owned()), 128 + nix::libc::SIGKILL),
        Err(error) => (Some(format!("lost the command: {error}")), OWN_FAILURE),
    }
}

async fn write(mut client: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Frame>) {
    while let Some(frame) = queue.recv().await {
        if client.write_all(&frame.encode()).await.is_err() {
            return;
        }
    }
    let _ = client.flush().await;
    let _ = client.shutdown().await;
}

/// What comes from the client; never waits for the command. Returns when the client has gone, or with what it did wrong.
async fn listen(
    client: impl AsyncRead + Unpin,
    mut command: DuplexStream,
    sizes: watch::Sender<Option<(u16, u16)>>,
    window: Arc<AtomicUsize>,
) -> Option<String> {
    let mut reader = FrameReader::new(client);
    loop {
        match reader.next().await {
            Ok(Some(Frame::Stdin(bytes))) => {
                if window.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > WINDOW {
                    return Some(format!("more than {WINDOW} bytes of standard input are on the way"));
                }
                // What comes after the command has let go of its input is dropped.
                let _ = command.write_all(&bytes).await;
            }
            Ok(Some(Frame::EndOfStdin)) => {
                drop(command);
                return rest(reader, sizes).await;
            }
            Ok(Some(Frame::Size { rows, columns })) => drop(sizes.send_replace(Some((rows, columns)))),
            Ok(Some(_)) => return Some("a client cannot send frames of this kind".to_owned()),
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

/// Only sizes and the end can follow.
async fn rest<R: AsyncRead + Unpin>(
    mut reader: FrameReader<R>,
    sizes: watch::Sender<Option<(u16, u16)>>,
) -> Option<String> {
    loop {
        match reader.next().await {
            Ok(Some(Frame::Size { rows, columns })) => drop(sizes.send_replace(Some((rows, columns)))),
            Ok(Some(_)) => return Some("standard input had ended".to_owned()),
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

/// The conversation with `enter` and its command.
struct Talk {
    frames: mpsc::Sender<Frame>,
    /// Standard input.
    input: DuplexStream,
    sizes: watch::Receiver<Option<(u16, u16)>>,
    /// Bytes of standard input that were not taken.
    window: Arc<AtomicUsize>,
}

impl Talk {
    /// Gives the order and stays until the command has ended and all its output is on the way.
    async fn hold(self, entered: Entered, order: Order) -> io::Result<Option<Report>> {
        let mut control = Control::new(entered.control)?;
        control.give(&order).await?;
        match entered.pipes {
            Some(pipes) => self.by_pipes(control, pipes).await,
            None => match control.report().await? {
                (Some(Report::Terminal), Some(master)) => self.by_terminal(control, master).await,
                // It is lost on the way when there is no room for it here.
                (Some(Report::Terminal), None) => {
                    Err(io::Error::other("its terminal cannot be opened: too many files are"))
                }
                (report, _) => Ok(report),
            },
        }
    }

    async fn by_pipes(self, mut control: Control, pipes: Pipes) -> io::Result<Option<Report>> {
        let (stdout, stderr) = (Stream::new(pipes.stdout)?, Stream::new(pipes.stderr)?);
        let stdin = Stream::new(pipes.stdin)?;
        let (over, ended) = watch::channel(false);
        let (frames, more_frames) = (self.frames.clone(), self.frames.clone());
        let until_end = async {
            let report = control.last_report().await;
            over.send_replace(true);
            report
        };
        let outputs = async {
            tokio::join!(
                until_end,
                pump(&stdout, Frame::Stdout, frames, ended.clone()),
                pump(&stderr, Frame::Stderr, more_frames, ended.clone()),
            )
            .0
        };
        tokio::select! {
            report = outputs => report,
            never = feed(Some(stdin), None, self.input, self.frames, self.window) => match never {},
        }
    }

    async fn by_terminal(self, mut control: Control, master: OwnedFd) -> io::Result<Option<Report>> {
        let master = Stream::new(master)?;
        let (over, ended) = watch::channel(false);
        let frames = self.frames.clone();
        let until_end = async {
            let report = control.last_report().await;
            over.send_replace(true);
            report
        };
        let outputs = async { tokio::join!(until_end, pump(&master, Frame::Stdout, frames, ended)).0 };
        tokio::select! {
            report = outputs => report,
            never = feed(None, Some(&master), self.input, self.frames, self.window) => match never {},
            never = resize(&master, self.sizes) => match never {},
        }
    }
}

/// Standard input of the command: a pipe that is closed at the end, or a terminal, which has none.
async fn feed(
    mut pipe: Option<Stream>,
    terminal: Option<&Stream>,
    mut input: DuplexStream,
    frames: mpsc::Sender<Frame>,
    window: Arc<AtomicUsize>,
) -> std::convert::Infallible {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = input.read(&mut buffer).await {
        let Some(sink) = pipe.as_ref().or(terminal) else { break };
        // It has closed its input: what is on the way is not taken, and no more comes.
        if sink.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
            break;
        }
        window.fetch_sub(count, Ordering::Relaxed);
        let _ = frames.send(Frame::Taken(u32::try_from(count).unwrap_or(u32::MAX))).await;
    }
    drop((pipe.take(), input));
    std::future::pending().await
}

async fn resize(master: &Stream, mut sizes: watch::Receiver<Option<(u16, u16)>>) -> std::convert::Infallible {
    while sizes.changed().await.is_ok() {
        let size = *sizes.borrow_and_update();
        if let Some((rows, columns)) = size
            && let Err(error) = terminal::set_size(master, rows, columns)
        {
            tracing::debug!(%error, "cannot resize a terminal");
        }
    }
    std::future::pending().await
}

/// Passes output on until its end; once the command has ended, only what is there: others may hold the other end open. What
/// was written before is there by then, in a terminal too: its kernel part is flushed before a read finds it empty.
async fn pump(
    source: &Stream,
    frame: fn(Vec<u8>) -> Frame,
    frames: mpsc::Sender<Frame>,
    mut ended: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            read = source.read(&mut buffer) => read,
        };
        if !pass_on(count, &buffer, frame, &frames).await {
            return;
        }
    }
    let mut left = LEFT_MAX;
    while left > 0 {
        let part = buffer.len().min(left);
        let count = source.read_now(buffer.get_mut(..part).unwrap_or_default());
        left -= count.as_ref().map_or(0, |count| (*count).min(left));
        if !pass_on(count, &buffer, frame, &frames).await {
            return;
        }
    }
}

/// False at the end of the output, or of the client.
async fn pass_on(
    count: io::Result<usize>,
    buffer: &[u8],
    frame: fn(Vec<u8>) -> Frame,
    frames: &mpsc::Sender<Frame>,
) -> bool {
    match count {
        // EIO: nobody holds the terminal any more. EAGAIN: nothing is left.
        Ok(0) | Err(_) => false,
        Ok(count) => frames.send(frame(buffer.get(..count).unwrap_or_default().to_vec())).await.is_ok(),
    }
}

/// Our end of the control socket.
struct Control {
    socket: UnixStream,
    begun: Vec<u8>,
}

impl Control {
    fn new(socket: StdUnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixStream::from_std(socket)?, begun: Vec::new() })
    }

    async fn give(&mut self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.socket.write_all(&line).await
    }

    /// How it ended; the other side is told that it was heard, for it would take us for gone.
    async fn last_report(&mut self) -> io::Result<Option<Report>> {
        let (report, _) = self.report().await?;
        // It may not wait for that: a failure is told by what could not become the command.
        let _ = self.socket.write_all(&[HEARD]).await;
        Ok(report)
    }

    /// The next report, with the descriptor that came by then; none when the other side is gone.
    async fn report(&mut self) -> io::Result<(Option<Report>, Option<OwnedFd>)> {
        let mut descriptor = None;
        loop {
            if let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.begun.drain(..=end).collect();
                return Ok((Some(serde_json::from_slice(&line)?), descriptor));
            }
            let mut buffer = [0; 4096];
            let receive = || passing::receive(&self.socket, &mut buffer);
            let received = self.socket.async_io(Interest::READABLE, receive).await;
            let (count, came) = match received {
                // It had more to say when it was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => (0, None),
                other => other?,
            };
            descriptor = came.or(descriptor);
            if count == 0 || self.begun.len() as u64 > LINE_MAX {
                return Ok((None, None));
            }
            self.begun.extend_from_slice(buffer.get(..count).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await.expect("it never ended") })
    }

    /// Pumps until the end of a command that has ended already; what came.
    async fn pumped(source: OwnedFd) -> Vec<u8> {
        let source = Stream::new(source).unwrap();
        let (frames, mut queue) = mpsc::channel(QUEUE);
        let (_over, ended) = watch::channel(true);
        let collect = async {
            let mut all = Vec::new();
            while let Some(frame) = queue.recv().await {
                let Frame::Stdout(bytes) = frame else { panic!("{frame:?}") };
                all.extend(bytes);
            }
            all
        };
        tokio::join!(pump(&source, Frame::Stdout, frames, ended), collect).1
    }

    #[test]
    fn what_a_command_leaves_behind_in_its_pipe_comes_though_others_hold_it_open() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"last words").unwrap();
        assert_eq!(block_on(pumped(reader.into())), b"last words");
        // Somebody else has taken what was there.
        let (reader, _writer) = io::pipe().unwrap();
        assert_eq!(block_on(pumped(reader.into())), b"");
    }

    #[test]
    fn a_terminal_that_others_print_on_for_ever_is_left_when_its_command_has_ended() {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let mut printer = std::fs::File::from(slave);
        printer.write_all(b"first").unwrap();
        // Ends with the terminal.
        std::thread::spawn(move || while printer.write_all(&[b'x'; 1024]).is_ok() {});
        let came = block_on(pumped(master));
        assert!(came.starts_with(b"first") && came.len() <= LEFT_MAX, "{} bytes", came.len());
    }

    #[test]
    fn a_client_that_first_sends_and_then_takes_holds_nothing_up() {
        let (control, mut enter) = StdUnixStream::pair().unwrap();
        let (stdin, our_in) = io::pipe().unwrap();
        let (our_out, stdout) = io::pipe().unwrap();
        let (our_err, _) = io::pipe().unwrap();
        let pipes = Pipes { stdin: our_in.into(), stdout: our_out.into(), stderr: our_err.into() };
        let entered = Entered { control, pipes: Some(pipes) };
        // A command that reads nothing, prints, and has ended before anything of it is taken.
        std::fs::File::from(OwnedFd::from(stdout)).write_all(&[b'o'; 50_000]).unwrap();
        enter.write_all(b"{\"exited\":7}\n").unwrap();
        block_on(async {
            let (daemon, client) = tokio::io::duplex(1024);
            let order = Order::Run { command: vec!["true".to_owned()], terminal: None };
            let served = tokio::spawn(serve(daemon, entered, order));
            let (from_daemon, mut to_daemon) = tokio::io::split(client);
            let part = Frame::Stdin(vec![b'i'; 1000]).encode();
            for _ in 0..WINDOW / 1000 {
                to_daemon.write_all(&part).await.unwrap();
            }
            let (mut reader, mut came, mut code) = (FrameReader::new(from_daemon), 0, None);
            while let Some(frame) = reader.next().await.unwrap() {
                match frame {
                    Frame::Stdout(bytes) => came += bytes.len(),
                    Frame::Exit(exit) => code = Some(exit),
                    Frame::Taken(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((came, code), (50_000, Some(7)));
            served.await.unwrap();
        });
        drop(stdin);
    }

    #[test]
    fn short_frames_are_bounded_by_their_bytes_and_the_client_is_heard_while_nothing_is_taken() {
        let bytes = Frame::Stdin(vec![b'x']).encode().repeat(WINDOW);
        block_on(async {
            let (command, mut taken) = tokio::io::duplex(WINDOW);
            let (sizes, mut new_sizes) = watch::channel(None);
            let window = Arc::new(AtomicUsize::new(0));
            let size = Frame::Size { rows: 7, columns: 9 }.encode();
            let sent = [bytes, size, Frame::EndOfStdin.encode()].concat();
            assert_eq!(listen(sent.as_slice(), command, sizes, window.clone()).await, None);
            assert_eq!(*new_sizes.borrow_and_update(), Some((7, 9)));
            let mut input = Vec::new();
            taken.read_to_end(&mut input).await.unwrap();
            assert_eq!((input.len(), window.load(Ordering::Relaxed)), (WINDOW, WINDOW));
            let (command, _taken) = tokio::io::duplex(WINDOW);
            let (sizes, _new_sizes) = watch::channel(None);
            let more = Frame::Stdin(vec![b'x']).encode();
            let wrong = listen(more.as_slice(), command, sizes, window).await.unwrap();
            assert!(wrong.contains("more than"), "{wrong}");
        });
    }
}
