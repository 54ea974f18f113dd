//! Keeps the mount process alive: starts it, takes over one that an earlier daemon started, starts it again when it
//! dies. Jobs do not notice: they read and write the backing directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::watch as channel;

use crate::config::{Config, Direct, Paths};
use crate::mounting::HAND_OVER;
use crate::sys::file::optional;
use crate::sys::lock::{HeldLock, pid_in};
use crate::sys::process::{Launch, PidFd, ProcessEnd, SealedProgram, ended};
use crate::sys::service;
use crate::sys::signals::is_blocked_in;
use crate::sys::watch::{FileWatch, watch};

/// First wait after a mount process that died at once, doubled up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A process that lived as long was no failure to start.
const HEALTHY: Duration = Duration::from_secs(10);

pub(super) struct Keeper {
    stop: channel::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    _refusals: FileWatch,
}

impl Keeper {
    /// `away` is told why there is no mount process, as long as there is none.
    pub(super) fn start(config: &Config, away: channel::Sender<Option<String>>) -> io::Result<Self> {
        let (stop, stopped) = channel::channel(false);
        let program = SealedProgram::of_this_program()?;
        let refusals = hear_refusals(&config.paths)?;
        let server = Server { paths: config.paths.clone(), direct: config.direct, program };
        let task = tokio::spawn(keep(server, away, stopped));
        Ok(Self { stop, task, _refusals: refusals })
    }

    /// Unmounts and waits until the process has gone.
    pub(super) async fn end(self) -> io::Result<()> {
        self.stop.send_replace(true);
        self.task.await.map_err(io::Error::other)
    }
}

/// The mount process may have another journal than ours, or none.
fn hear_refusals(paths: &Paths) -> io::Result<FileWatch> {
    let file = paths.mount_refusal();
    watch(&file.clone(), move |_| match optional(std::fs::read_to_string(&file)) {
        Ok(None) => {}
        Ok(Some(reason)) => tracing::error!(reason = reason.trim_end(), "the mount is served on by its old program"),
        Err(error) => {
            tracing::error!(%error, "the mount is served on by its old program, and its reason cannot be read")
        }
    })
}

/// What a mount process is started as. It is told what it needs of the configuration: a mistake in the file is no reason for it to stay
/// away.
struct Server {
    paths: Paths,
    direct: Direct,
    program: SealedProgram,
}

async fn keep(server: Server, away: channel::Sender<Option<String>>, mut stopped: channel::Receiver<bool>) {
    let mut wait = FIRST_WAIT;
    loop {
        let since = tokio::time::Instant::now();
        let why = match obtain(&server) {
            Ok(process) => {
                let process = Arc::new(process);
                away.send_replace(None);
                let result = tokio::select! {
                    result = ended(process.clone()) => result,
                    () = asked(&mut stopped) => return end(process).await,
                };
                // It is no child of ours where an earlier daemon has started it.
                told_end(result, process.reap().ok().flatten())
            }
            Err(error) => format!("the mount process cannot be started: {error}"),
        };
        if since.elapsed() >= HEALTHY {
            wait = FIRST_WAIT;
        }
        tracing::warn!(
            why,
            again_in_ms = wait.as_millis(),
            "the mount is away, it is started again; what it said itself is above"
        );
        away.send_replace(Some(why));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = asked(&mut stopped) => return end_any(&server.paths).await,
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// A process that could not be taken over, because it had not yet written its number.
async fn end_any(paths: &Paths) {
    while let Ok(None) = HeldLock::try_take(&paths.mount_lock()) {
        match running(paths) {
            Ok((_, process)) => end(Arc::new(process)).await,
            Err(_) => tokio::time::sleep(FIRST_WAIT).await,
        }
    }
}

/// Ends when the mount is to be taken away.
async fn asked(stopped: &mut channel::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        // The daemon goes and the mount stays.
        std::future::pending::<()>().await;
    }
}

fn told_end(result: io::Result<()>, end: Option<ProcessEnd>) -> String {
    match (result, end) {
        (Err(error), _) => format!("the mount process cannot be watched: {error}"),
        (Ok(()), Some(ProcessEnd::Exited(status))) => format!("the mount process has ended with status {status}"),
        (Ok(()), Some(ProcessEnd::Signalled { signal, .. })) => {
            format!("the mount process was ended by signal {signal}")
        }
        (Ok(()), None) => "the mount process has ended".to_owned(),
    }
}

async fn end(process: Arc<PidFd>) {
    if let Err(error) = process.signal(Signal::SIGTERM) {
        tracing::warn!(%error, "cannot end the mount process");
    }
    if let Err(error) = ended(process.clone()).await {
        tracing::warn!(%error, "cannot wait for the mount process");
    }
    let _ = process.reap();
}

/// The running mount process, or a new one. Its lock is held across the exec, as a shim's is.
fn obtain(Server { paths, direct, program }: &Server) -> io::Result<PidFd> {
    let Some(lock) = HeldLock::try_take(&paths.mount_lock())? else {
        tracing::info!("taking over the mount");
        let (pid, process) = running(paths)?;
        if let Err(error) = renew(pid, &process, program) {
            tracing::warn!(pid, %error, "cannot have the mount go on as this program");
        }
        return Ok(process);
    };
    // The number of one that died would mislead.
    lock.file().set_len(0)?;
    let log = std::fs::File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let child = program.spawn(Launch {
        arguments: vec![
            "--root".into(),
            paths.root().into(),
            "mount".into(),
            "--lock-fd".into(),
            lock.file().as_raw_fd().to_string().into(),
            "--direct".into(),
            direct.name().into(),
        ],
        environment: service::journal(),
        inherit: vec![lock.file().as_fd()],
        log: &log,
    })?;
    Ok(child.pidfd)
}

/// Has a mount process of another program go on as ours; it says in the journal what comes of it.
fn renew(pid: i32, process: &PidFd, program: &SealedProgram) -> io::Result<()> {
    if program.is_run_by(pid)? {
        return Ok(());
    }
    if !is_blocked_in(pid, HAND_OVER)? {
        tracing::warn!(
            pid,
            "the mount is served on by its old program, which cannot hand it over; kill it to have it mounted anew"
        );
        return Ok(());
    }
    tracing::info!(pid, "the mount is to go on as this program");
    process.signal(HAND_OVER)
}

/// The process that holds the mount's lock.
fn running(paths: &Paths) -> io::Result<(i32, PidFd)> {
    let pid = pid_in(&paths.mount_lock())?;
    let pid = pid.ok_or_else(|| io::Error::other("the mount process has only just begun"))?;
    Ok((pid, PidFd::open(pid)?))
}
