//! Asks the daemon in the place of whoever writes to a `ctl` of the mount.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use tokio::sync::Semaphore;

use crate::api::client::{Client, ClientError};
use crate::ids::JobKey;
use crate::status::StopHow;
use crate::workspace::control::{Ask, Word};

/// Writers that may wait for the daemon at once: each takes a thread that others of the mount are waiting for.
const WAITING_MAX: usize = 4;
/// Longest that a writer waits for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The daemon at its socket; it may have been started anew since.
#[derive(Debug)]
pub(super) struct Daemon {
    socket: PathBuf,
    /// Writers that wait for it.
    waiting: Semaphore,
}

impl Daemon {
    pub(super) fn at(socket: PathBuf) -> Self {
        Self { socket, waiting: Semaphore::new(WAITING_MAX) }
    }
}

impl Ask for Daemon {
    fn ask(&self, uid: u32, job: &JobKey, word: Word) -> io::Result<()> {
        let Ok(_turn) = self.waiting.try_acquire() else { return Err(Errno::EAGAIN.into()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Client::for_user(&self.socket, uid);
        let asked = runtime.block_on(async {
            let answer = async {
                match word {
                    Word::Stop => client.stop(job, StopHow::WithGrace).await,
                    Word::StopNow => client.stop(job, StopHow::AtOnce).await,
                    Word::Restart => client.restart(job).await,
                    Word::Rerun => client.rerun(job).await,
                }
            };
            tokio::time::timeout(PATIENCE, answer).await
        });
        match asked {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                tracing::info!(%job, uid, %error, "ctl: refused");
                Err(told(&error).into())
            }
            Err(_) => Err(Errno::ETIMEDOUT.into()),
        }
    }
}

/// All that a writer gets to know is a number.
fn told(error: &ClientError) -> Errno {
    match error {
        ClientError::Refused { status: 403, .. } => Errno::EACCES,
        ClientError::Refused { status: 404, .. } => Errno::ENOENT,
        // It is over already, or its file does not want it.
        ClientError::Refused { status: 409, .. } => Errno::EBUSY,
        ClientError::Refused { status: 429, .. } => Errno::EAGAIN,
        ClientError::NotRunning { .. } => Errno::ECONNREFUSED,
        _ => Errno::EIO,
    }
}
