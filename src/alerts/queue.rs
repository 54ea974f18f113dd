//! What waits to be delivered: bounded, and a file that is written whole at each change.
//!
//! Whoever looks sees the memory, at once; what is slow, the disk, is written on threads for that. Each write is of all that was known
//! when it began, so that a later one never brings back what was before.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::ids::{AssetName, JobKey};
use crate::store::record::EventRecord;
use crate::sys::file::{Durability, create_dir, read_limited, write_whole};

/// Most that waits; then the oldest makes room.
const LENGTH_MAX: usize = 1000;
/// Most of what was refused for ever that is kept; then the oldest go.
const SET_ASIDE_MAX: usize = 100;
/// So many events without one of interest, and it is written that they were looked at.
const LOOKED_AT: u64 = 256;
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
    /// So many before it were not delivered, since more waited than may or they were refused for ever.
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
    /// The last event that was looked at; none before it has begun.
    seen: Option<u64>,
    dropped: u64,
    waiting: VecDeque<Notice>,
    /// What was refused for ever, for whoever looks after it.
    #[serde(default)]
    set_aside: VecDeque<SetAside>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SetAside {
    notice: Notice,
    /// Why, for people.
    reason: String,
}

/// What comes to know it shares it.
#[derive(Debug, Clone)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Held for moments, never while the disk is waited for.
    kept: Mutex<Kept>,
    /// Whose turn it is to write.
    writing: Mutex<()>,
    /// The `seen` of the file.
    seen_on_disk: AtomicU64,
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
        let seen_on_disk = AtomicU64::new(kept.seen.unwrap_or(0));
        Ok(Self(Arc::new(Shared { path, kept: Mutex::new(kept), writing: Mutex::new(()), seen_on_disk })))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// The last event that was looked at.
    pub(super) fn seen(&self) -> Option<u64> {
        self.lock().seen
    }

    /// A queue that is new begins behind `last`, the last event that there is: what was before is nobody's. So does one that is of
    /// another state than this, whose numbers have not come so far.
    pub(super) async fn begin(&self, last: u64) -> io::Result<()> {
        {
            let mut kept = self.lock();
            if kept.seen.is_some_and(|seen| seen <= last) {
                return Ok(());
            }
            kept.seen = Some(last);
        }
        self.save().await
    }

    /// Takes in what is to be told of the events up to `upto`, which all have been looked at. Nothing is taken in twice.
    pub(super) async fn take_in(&self, notices: Vec<Notice>, upto: u64) -> io::Result<()> {
        let is_due = self.lock().take_in(notices, upto)
            || upto >= self.0.seen_on_disk.load(Ordering::Acquire).saturating_add(LOOKED_AT);
        if is_due { self.save().await } else { Ok(()) }
    }

    /// The oldest, with how many were dropped before it.
    pub(super) fn first(&self) -> Option<Notice> {
        let kept = self.lock();
        kept.waiting.front().map(|notice| Notice { dropped: kept.dropped, ..notice.clone() })
    }

    pub(super) async fn delivered(&self, notice: &Notice) -> io::Result<()> {
        self.lock().delivered(notice);
        self.save().await
    }

    /// What its receiver will never take makes way for those behind it.
    pub(super) async fn set_aside(&self, notice: &Notice, reason: String) -> io::Result<()> {
        self.lock().set_aside(notice, reason);
        self.save().await
    }

    /// The disk may take long, and makes nobody else wait.
    async fn save(&self) -> io::Result<()> {
        let queue = self.clone();
        let saved = tokio::task::spawn_blocking(move || queue.save_here()).await;
        saved.unwrap_or_else(|_| Err(io::Error::other("its writer panicked")))
    }

    fn save_here(&self) -> io::Result<()> {
        let _turn = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (text, seen) = {
            let kept = self.lock();
            (serde_json::to_vec(&*kept).map_err(io::Error::other)?, kept.seen)
        };
        write_whole(&self.0.path, &text, 0o600, Durability::Machine)?;
        self.0.seen_on_disk.store(seen.unwrap_or(0), Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Whether anything has come.
    fn take_in(&mut self, notices: Vec<Notice>, upto: u64) -> bool {
        let Some(seen) = self.seen else { return false };
        let before = self.waiting.len();
        self.waiting.extend(notices.into_iter().filter(|notice| notice.serial > seen));
        let has_grown = self.waiting.len() > before;
        while self.waiting.len() > LENGTH_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.seen = Some(seen.max(upto));
        has_grown
    }

    fn delivered(&mut self, notice: &Notice) {
        let told = match self.pop(notice) {
            true => notice.dropped,
            // It was dropped meanwhile, and was told all the same.
            false => notice.dropped + 1,
        };
        self.dropped = self.dropped.saturating_sub(told);
    }

    fn set_aside(&mut self, notice: &Notice, reason: String) {
        if self.pop(notice) {
            self.dropped += 1;
        }
        self.set_aside.push_back(SetAside { notice: notice.clone(), reason });
        if self.set_aside.len() > SET_ASIDE_MAX {
            self.set_aside.pop_front();
        }
    }

    /// Takes the first away, if it is that one still.
    fn pop(&mut self, notice: &Notice) -> bool {
        let is_first = self.waiting.front().is_some_and(|first| first.serial == notice.serial);
        if is_first {
            self.waiting.pop_front();
        }
        is_first
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

    fn open(directory: &Path) -> Queue {
        Queue::open(directory, &"ops".parse().unwrap()).unwrap()
    }

    fn serials(queue: &Queue) -> Vec<u64> {
        queue.lock().waiting.iter().map(|notice| notice.serial).collect()
    }

    #[tokio::test]
    async fn what_waits_outlives_its_process_and_is_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path());
        queue.take_in(vec![notice(3)], 3).await.unwrap();
        assert_eq!(queue.first(), None, "what was before it began");
        queue.begin(5).await.unwrap();
        queue.take_in([4, 6].map(notice).into(), 6).await.unwrap();
        queue.take_in([6, 8].map(notice).into(), 8).await.unwrap();
        let again = open(dir.path());
        again.begin(100).await.unwrap();
        again.take_in(vec![notice(8)], 8).await.unwrap();
        assert_eq!(serials(&again), [6, 8]);
        again.delivered(&notice(6)).await.unwrap();
        assert_eq!(serials(&open(dir.path())), [8]);
    }

    #[tokio::test]
    async fn it_is_bounded_and_tells_what_was_dropped_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path());
        queue.begin(0).await.unwrap();
        let many = u64::try_from(LENGTH_MAX).unwrap() + 5;
        queue.take_in((1..=many).map(notice).collect(), many).await.unwrap();
        let queue = open(dir.path());
        assert_eq!(serials(&queue), (6..=many).collect::<Vec<_>>());
        let first = queue.first().unwrap();
        assert_eq!((first.serial, first.dropped), (6, 5));
        // While it is being delivered it is dropped as well.
        queue.take_in(vec![notice(many + 1)], many + 1).await.unwrap();
        queue.delivered(&first).await.unwrap();
        let second = open(dir.path()).first().unwrap();
        assert_eq!((second.serial, second.dropped), (7, 0), "all that was dropped has been told");
    }

    #[tokio::test]
    async fn what_was_looked_at_is_remembered_though_nothing_of_it_was_to_be_told() {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path());
        queue.begin(7).await.unwrap();
        let written = || std::fs::metadata(dir.path().join("ops.json")).unwrap().modified().unwrap();
        let before = written();
        queue.take_in(Vec::new(), 7 + LOOKED_AT - 1).await.unwrap();
        assert_eq!((queue.seen(), open(dir.path()).seen()), (Some(7 + LOOKED_AT - 1), Some(7)), "not at each event");
        assert_eq!(written(), before);
        queue.take_in(Vec::new(), 7 + LOOKED_AT).await.unwrap();
        assert_eq!(open(dir.path()).seen(), Some(7 + LOOKED_AT));
        // As where the state was lost, and began anew.
        let other = open(dir.path());
        other.begin(3).await.unwrap();
        other.take_in(vec![notice(4)], 4).await.unwrap();
        assert_eq!(serials(&open(dir.path())), [4]);
    }

    #[tokio::test]
    async fn what_is_refused_for_ever_is_kept_beside_the_queue() {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path());
        queue.begin(0).await.unwrap();
        queue.take_in([1, 2].map(notice).into(), 2).await.unwrap();
        queue.set_aside(&notice(1), "status 422".to_owned()).await.unwrap();
        let again = open(dir.path());
        assert_eq!(serials(&again), [2]);
        assert_eq!(again.first().unwrap().dropped, 1);
        assert_eq!(again.lock().set_aside, [SetAside { notice: notice(1), reason: "status 422".to_owned() }]);
        for serial in 10..10 + 2 * u64::try_from(SET_ASIDE_MAX).unwrap() {
            queue.lock().set_aside(&notice(serial), String::new());
        }
        assert_eq!(queue.lock().set_aside.len(), SET_ASIDE_MAX);
    }
}
