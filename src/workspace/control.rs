//! `jobs/JOB/ctl`: a word that is written to it is done by the daemon, with the rights of whoever writes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use trainyard_fs::{Content, ContentMetadata};

use crate::api::client::{Client, ClientError};
use crate::ids::JobKey;
use crate::reconcile::Verb;

/// What may be written, and what a reader finds.
const WORDS: [(&str, Verb); 3] = [("stop", Verb::Stop), ("restart", Verb::Restart), ("rerun", Verb::Rerun)];
/// Longest that a writer waits for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the daemon do something for a user.
pub trait Ask: Send + Sync {
    fn ask(&self, uid: u32, job: &JobKey, verb: Verb) -> io::Result<()>;
}

/// The daemon at its socket; it may have been started anew since.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
}

impl Daemon {
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }
}

impl Ask for Daemon {
    fn ask(&self, uid: u32, job: &JobKey, verb: Verb) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Client::for_user(&self.socket, uid);
        let asked = runtime.block_on(async {
            let answer = async {
                match verb {
                    Verb::Stop => client.stop(job).await,
                    Verb::Restart => client.restart(job).await,
                    Verb::Rerun => client.rerun(job).await,
                    Verb::Remove => client.remove(job).await,
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

/// One open `ctl`.
pub struct Control {
    pub job: JobKey,
    /// The job's owner.
    pub uid: u32,
    pub gid: u32,
    pub ask: Arc<dyn Ask>,
}

impl Content for Control {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        Ok(ContentMetadata {
            size: help().len() as u64,
            mtime: SystemTime::UNIX_EPOCH,
            uid: self.uid,
            gid: self.gid,
            mode: 0o600,
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let help = help();
        let rest = usize::try_from(offset).ok().and_then(|offset| help.as_bytes().get(offset..)).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        Ok(count)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write(&self, uid: u32, data: &[u8]) -> io::Result<()> {
        let text = std::str::from_utf8(data).map_err(|_| Errno::EINVAL)?.trim();
        let verb = WORDS.iter().find(|(word, _)| *word == text).map(|(_, verb)| *verb).ok_or(Errno::EINVAL)?;
        self.ask.ask(uid, &self.job, verb)
    }
}

fn help() -> String {
    WORDS.iter().map(|(word, _)| format!("{word}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Noted(Mutex<Vec<String>>);

    impl Ask for Noted {
        fn ask(&self, uid: u32, job: &JobKey, verb: Verb) -> io::Result<()> {
            self.0.lock().unwrap().push(format!("{uid} {job} {verb:?}"));
            Ok(())
        }
    }

    #[test]
    fn words_are_done_for_whoever_writes_and_nothing_else_is() {
        let asked = Arc::new(Noted(Mutex::default()));
        let control = Control { job: "lab/digits".parse().unwrap(), uid: 5, gid: 6, ask: asked.clone() };
        control.write(7, b"stop\n").unwrap();
        control.write(8, b"  rerun").unwrap();
        for wrong in [&b"stopp"[..], b"", b"\n", b"rm\n", b"stop rerun", b"\xff"] {
            assert_eq!(control.write(7, wrong).unwrap_err().raw_os_error(), Some(Errno::EINVAL as i32));
        }
        assert_eq!(*asked.0.lock().unwrap(), ["7 lab/digits Stop", "8 lab/digits Rerun"]);
        let mut buf = [0; 100];
        let count = control.read_at(0, &mut buf).unwrap();
        assert_eq!(&buf[..count], b"stop\nrestart\nrerun\n");
        assert_eq!(control.read_at(1000, &mut buf).unwrap(), 0);
    }
}
