//! Keeps `trainyard direct` alive beside the mount process; nothing of the mount waits for it.

use std::io;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::MountConfig;
use crate::sys::process::{PidFd, start_companion};

/// First wait before it is started again, doubled up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A process that lived as long was no failure to start.
const HEALTHY: Duration = Duration::from_secs(10);
/// How long it may take to take everything away, before the mount itself is.
const FAREWELL: Duration = Duration::from_secs(2);

/// It ends with this process, whatever becomes of that.
pub(super) struct Companion {
    /// Nothing comes by it: that it is gone tells the thread to end.
    keep: Sender<()>,
    /// Nothing comes by it: that the other end is gone tells that the thread has ended.
    kept: Receiver<()>,
    life: Arc<Mutex<Option<Life>>>,
}

struct Life {
    /// As long as it is there, the process works.
    _stdin: Option<ChildStdin>,
    process: PidFd,
}

impl Companion {
    pub(super) fn start(config: &MountConfig) -> io::Result<Self> {
        let (keep, asked) = channel();
        let (held, kept) = channel();
        let life: Arc<Mutex<Option<Life>>> = Arc::default();
        let root = config.paths.root().into();
        let arguments = ["--root".into(), root, "direct".into(), "--direct".into(), config.direct.name().into()];
        let work = {
            let life = life.clone();
            move || {
                let mut again = FIRST_WAIT;
                while let Some(child) = start(&arguments, &life, &asked)
                    && wait(child, &asked, &mut again)
                {}
                drop::<Sender<()>>(held);
            }
        };
        std::thread::Builder::new().name("direct".to_owned()).spawn(work)?;
        Ok(Self { keep, kept, life })
    }

    /// Has it take everything away, and waits a moment for that.
    pub(super) fn end(self) {
        drop(self.keep);
        drop(self.life.lock().unwrap_or_else(PoisonError::into_inner).take());
        if self.kept.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("what is shown directly is taken away with the mount");
        }
    }

    /// Kills it, so that what it shows stays: the next one finds it there. Fails if it does not end in a moment.
    pub(super) fn abandon(self) -> io::Result<()> {
        drop(self.keep);
        let life = self.life.lock().unwrap_or_else(PoisonError::into_inner).take();
        match life.as_ref().map(|life| life.process.signal(Signal::SIGKILL)) {
            // It has ended by itself, and waits for its next start.
            Some(Err(error)) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            killed => killed.unwrap_or(Ok(()))?,
        }
        match self.kept.recv_timeout(FAREWELL) {
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// `None` when none is wanted any more.
fn start(arguments: &[std::ffi::OsString], life: &Mutex<Option<Life>>, asked: &Receiver<()>) -> Option<Started> {
    let mut life = life.lock().unwrap_or_else(PoisonError::into_inner);
    // Under the lock: whoever takes the life has told before that none is wanted.
    if asked.try_recv() == Err(TryRecvError::Disconnected) {
        return None;
    }
    let started = start_companion(arguments.to_vec()).and_then(|mut child| {
        // Without one it hears that its standard input is closed, and ends.
        let process = PidFd::open(i32::try_from(child.id()).map_err(io::Error::other)?)?;
        *life = Some(Life { _stdin: child.stdin.take(), process });
        Ok(child)
    });
    Some(started)
}

type Started = io::Result<Child>;

/// Until it has ended, and then until it is to be started again; `false` when it is not.
fn wait(child: Started, asked: &Receiver<()>, again: &mut Duration) -> bool {
    let since = Instant::now();
    let ended = child.and_then(|mut child| child.wait());
    if asked.try_recv() == Err(TryRecvError::Disconnected) {
        return false;
    }
    match ended {
        // Nothing is to be shown directly, and what was is taken away.
        Ok(status) if status.success() => return false,
        Ok(status) => tracing::warn!(%status, "what shows directories directly has ended, will start it again"),
        Err(error) => tracing::warn!(%error, "cannot show directories directly, will try again"),
    }
    if since.elapsed() >= HEALTHY {
        *again = FIRST_WAIT;
    }
    let is_due = asked.recv_timeout(*again) == Err(RecvTimeoutError::Timeout);
    *again = (*again * 2).min(LONGEST_WAIT);
    is_due
}
