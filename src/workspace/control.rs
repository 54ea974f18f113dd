//! `jobs/JOB/ctl`: a word that is written to it is done by the daemon, with the rights of whoever writes.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use nix::errno::Errno;
use trainyard_fs::{Content, ContentMetadata};

use crate::ids::JobKey;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    Stop,
    /// Without its grace.
    StopNow,
    /// Stops what runs, then as `Rerun`.
    Restart,
    Rerun,
}

/// What may be written, and what a reader finds.
const WORDS: [(&str, Word); 4] =
    [("stop", Word::Stop), ("stop now", Word::StopNow), ("restart", Word::Restart), ("rerun", Word::Rerun)];

/// Has the daemon do something for a user.
pub trait Ask: Send + Sync {
    fn ask(&self, uid: u32, job: &JobKey, word: Word) -> io::Result<()>;
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
        let word = WORDS.iter().find(|(known, _)| *known == text).map(|(_, word)| *word).ok_or(Errno::EINVAL)?;
        self.ask.ask(uid, &self.job, word)
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
        fn ask(&self, uid: u32, job: &JobKey, word: Word) -> io::Result<()> {
            self.0.lock().unwrap().push(format!("{uid} {job} {word:?}"));
            Ok(())
        }
    }

    #[test]
    fn words_are_done_for_whoever_writes_and_nothing_else_is() {
        let asked = Arc::new(Noted(Mutex::default()));
        let control = Control { job: "lab/digits".parse().unwrap(), uid: 5, gid: 6, ask: asked.clone() };
        control.write(7, b"stop\n").unwrap();
        control.write(8, b"  rerun").unwrap();
        control.write(9, b"stop now\n").unwrap();
        for wrong in [&b"stopp"[..], b"", b"\n", b"rm\n", b"stop rerun", b"\xff"] {
            assert_eq!(control.write(7, wrong).unwrap_err().raw_os_error(), Some(Errno::EINVAL as i32));
        }
        assert_eq!(*asked.0.lock().unwrap(), ["7 lab/digits Stop", "8 lab/digits Rerun", "9 lab/digits StopNow"]);
        let mut buf = [0; 100];
        let count = control.read_at(0, &mut buf).unwrap();
        assert_eq!(&buf[..count], b"stop\nstop now\nrestart\nrerun\n");
        assert_eq!(control.read_at(1000, &mut buf).unwrap(), 0);
    }
}
