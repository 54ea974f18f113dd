//! What waits to be delivered: bounded, and a file that is written whole at each change.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::ids::{AssetName, JobKey};
use crate::store::record::EventRecord;
use crate::sys::file::{Durability, create_dir, read_limited, write_whole};

/// Most that waits; then the oldest makes room.
const LENGTH_MAX: usize = 1000;
/// Longest file, bytes: messages are lines.
const FILE_MAX: u64 = 64 << 20;

/// What is told; its fields stay, more may come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    /// The event's number among those of all jobs; a delivery that is made twice has the same.
    pub(super) serial: u64,
    pub(super) workspace: String,
    pub(super) job: String,
    pub(super) run: u32,
    pub(super) state: String,
    pub(super) message: String,
    pub(super) at: String,
    /// So many before it were dropped, since more waited than may.
    #[serde(default)]
    pub(super) dropped: u64,
}

impl Notice {
    pub(super) fn of(key: &JobKey, event: &EventRecord) -> Self {
        Self {
            serial: event.serial,
            workspace: key.workspace.to_string(),
            job: key.job.to_string(),
            run: event.run,
            state: event.state.to_string(),
            message: event.message.clone(),
            at: event.at.to_string(),
            dropped: 0,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The last event that was looked at; none before the first look is over.
    seen: Option<u64>,
    dropped: u64,
    waiting: VecDeque<Notice>,
}

#[derive(Debug, Clone)]
pub(super) struct Queue {
    path: PathBuf,
    kept: Arc<Mutex<Kept>>,
}

impl Queue {
    pub(super) fn open(directory: &Path, name: &AssetName) -> io::Result<Self> {
        create_dir(directory, 0o700)?;
        let path = directory.join(format!("{name}.json"));
        let kept = match read_limited(&path, FILE_MAX) {
            Ok((_, bytes)) => match serde_json::from_slice(&bytes) {
                Ok(kept) => kept,
                Err(error) => {
                    let aside = path.with_extension("damaged");
                    tracing::error!(path = %path.display(), aside = %aside.display(), %error, "what waited to be told is damaged and set aside");
                    std::fs::rename(&path, &aside)?;
                    Kept::default()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, kept: Arc::new(Mutex::new(kept)) })
    }

    /// A queue that is new begins behind this event; others have taken in what was.
    pub(super) fn begin_behind(&self, serial: u64) -> io::Result<()> {
        let mut kept = self.lock();
        if kept.seen.is_some() {
            return Ok(());
        }
        kept.seen = Some(serial);
        self.write(&kept)
    }

    /// Nothing is taken in twice, and nothing before the beginning.
    pub(super) fn put(&self, notice: Notice) -> io::Result<()> {
        let mut kept = self.lock();
        if kept.seen.is_none_or(|seen| notice.serial <= seen) {
            return Ok(());
        }
        kept.seen = Some(notice.serial);
        kept.waiting.push_back(notice);
        if kept.waiting.len() > LENGTH_MAX {
            kept.waiting.pop_front();
            kept.dropped += 1;
        }
        self.write(&kept)
    }

    /// The oldest, with how many were dropped before it.
    pub(super) fn first(&self) -> Option<Notice> {
        let kept = self.lock();
        kept.waiting.front().map(|notice| Notice { dropped: kept.dropped, ..notice.clone() })
    }

    pub(super) fn delivered(&self, serial: u64) -> io::Result<()> {
        let mut kept = self.lock();
        // It may have been dropped meanwhile.
        if kept.waiting.front().is_some_and(|notice| notice.serial == serial) {
            kept.waiting.pop_front();
            kept.dropped = 0;
        }
        self.write(&kept)
    }

    fn write(&self, kept: &Kept) -> io::Result<()> {
        let text = serde_json::to_vec(kept).map_err(io::Error::other)?;
        write_whole(&self.path, &text, 0o600, Durability::Machine)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(serial: u64) -> Notice {
        let text = |text: &str| text.to_owned();
        Notice {
            serial,
            workspace: text("w"),
            job: text("j"),
            run: 1,
            state: text("failed"),
            message: text("m"),
            at: text("t"),
            dropped: 0,
        }
    }

    #[test]
    fn what_waits_outlives_its_process_and_is_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let name: AssetName = "ops".parse().unwrap();
        let queue = Queue::open(dir.path(), &name).unwrap();
        queue.put(notice(3)).unwrap();
        assert_eq!(queue.first(), None, "what was before it began");
        queue.begin_behind(5).unwrap();
        for serial in [4, 6, 6, 8] {
            queue.put(notice(serial)).unwrap();
        }
        let again = Queue::open(dir.path(), &name).unwrap();
        again.begin_behind(100).unwrap();
        again.put(notice(8)).unwrap();
        let serials = |queue: &Queue| queue.lock().waiting.iter().map(|notice| notice.serial).collect::<Vec<_>>();
        assert_eq!(serials(&again), [6, 8]);
        again.delivered(6).unwrap();
        assert_eq!(serials(&Queue::open(dir.path(), &name).unwrap()), [8]);
    }

    #[test]
    fn it_is_bounded_and_tells_what_was_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path(), &"ops".parse().unwrap()).unwrap();
        queue.begin_behind(0).unwrap();
        let many = u64::try_from(LENGTH_MAX).unwrap() + 5;
        // As if they had come before: only the last is written to the disk.
        queue.lock().waiting.extend((1..many).map(notice));
        queue.lock().seen = Some(many - 1);
        queue.put(notice(many)).unwrap();
        assert_eq!(queue.lock().waiting.len(), usize::try_from(many).unwrap() - 1);
        assert_eq!(queue.first().unwrap().dropped, 1);
        queue.delivered(2).unwrap();
        assert_eq!(queue.first().unwrap().dropped, 0);
    }
}
