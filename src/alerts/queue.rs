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
use crate::sys::file::{Durability, create_dir, optional, read_limited, write_whole};

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

    /// By all that is told of it: serial numbers come again after a restore.
    fn is_of_event_of(&self, other: &Self) -> bool {
        Self { dropped: 0, ..self.clone() } == Self { dropped: 0, ..other.clone() }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The last event that was looked at; none before it has begun.
    seen: Option<u64>,
    dropped: u64,
    waiting: VecDeque<Notice>,
    /// Of an earlier version, which kept here what was refused for ever.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    set_aside: Vec<SetAside>,
}

/// What was refused for ever, in a file of its own for whoever looks after it: whoever removes that has done so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SetAside {
    notice: Notice,
    /// Why, for people.
    reason: String,
}

/// Where that of an alert lies: apart from the queues, since an alert may have any name.
pub(super) fn aside_of(directory: &Path, name: &AssetName) -> PathBuf {
    directory.join("set-aside").join(format!("{name}.json"))
}

/// How many were set aside.
pub(super) fn count_aside(path: &Path) -> io::Result<usize> {
    read_aside(path).map(|all| all.len())
}

fn read_aside(path: &Path) -> io::Result<Vec<SetAside>> {
    let Some((_, bytes)) = optional(read_limited(path, FILE_MAX))? else { return Ok(Vec::new()) };
    serde_json::from_slice(&bytes).map_err(io::Error::from)
}

/// Adds to what was set aside; the oldest go. None is there twice, however often it is told.
fn put_aside(path: &Path, more: Vec<SetAside>) -> io::Result<()> {
    let mut all = read_aside(path).unwrap_or_else(|error| {
        tracing::error!(path = %path.display(), %error, "what was set aside cannot be read, and is written anew");
        Vec::new()
    });
    all.extend(
        more.into_iter()
            .filter(|one| all.iter().all(|known| !known.notice.is_of_event_of(&one.notice)))
            .collect::<Vec<_>>(),
    );
    all.drain(..all.len().saturating_sub(SET_ASIDE_MAX));
    if let Some(directory) = path.parent() {
        create_dir(directory, 0o700)?;
    }
    write_whole(path, &serde_json::to_vec(&all).map_err(io::Error::other)?, 0o600, Durability::Machine)
}

/// What comes to know it shares it.
#[derive(Debug, Clone)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    aside: PathBuf,
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
        let aside = aside_of(directory, name);
        let mut kept = match read_limited(&path, FILE_MAX) {
            Ok((_, bytes)) => match serde_json::from_slice(&bytes) {
                Ok(kept) => kept,
                Err(error) => {
                    let damaged = path.with_extension("damaged");
                    tracing::error!(path = %path.display(), aside = %damaged.display(), %error, "what waited to be told is damaged and set aside");
                    std::fs::rename(&path, &damaged)?;
                    Kept::default()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::default(),
            Err(error) => return Err(error),
        };
        if !kept.set_aside.is_empty() {
            // Written before the queue is without it: what is in both is there once.
            put_aside(&aside, std::mem::take(&mut kept.set_aside))?;
        }
        let seen_on_disk = AtomicU64::new(kept.seen.unwrap_or(0));
        Ok(Self(Arc::new(Shared { path, aside, kept: Mutex::new(kept), writing: Mutex::new(()), seen_on_disk })))
    }

    /// Where it lies.
    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Where lies what was set aside.
    pub(super) fn aside(&self) -> &Path {
        &self.0.aside
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
        let (queue, one) = (self.clone(), SetAside { notice: notice.clone(), reason });
        let put = tokio::task::spawn_blocking(move || put_aside(&queue.0.aside, vec![one])).await;
        // What cannot be kept for people must not hold up what is behind it.
        let put = put.unwrap_or_else(|_| Err(io::Error::other("its writer panicked")));
        self.lock().give_up(notice);
        self.save().await.and(put)
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

    fn give_up(&mut self, notice: &Notice) {
        if self.pop(notice) {
            self.dropped += 1;
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
        assert_eq!(read_aside(again.aside()).unwrap(), [aside(1)]);
        put_aside(again.aside(), vec![aside(1), aside(2)]).unwrap();
        assert_eq!(count_aside(again.aside()).unwrap(), 2, "none is there twice");
        let restored = SetAside { notice: Notice { job: "other".to_owned(), ..notice(1) }, ..aside(1) };
        put_aside(again.aside(), vec![restored]).unwrap();
        assert_eq!(count_aside(again.aside()).unwrap(), 3, "after a restore a number is another event's");
        put_aside(again.aside(), (10..10 + 2 * u64::try_from(SET_ASIDE_MAX).unwrap()).map(aside).collect()).unwrap();
        assert_eq!(count_aside(again.aside()).unwrap(), SET_ASIDE_MAX);
        // Whoever has looked after it removes the file.
        std::fs::remove_file(again.aside()).unwrap();
        again.set_aside(&notice(2), "status 422".to_owned()).await.unwrap();
        assert_eq!((serials(&again), read_aside(again.aside()).unwrap()), (vec![], vec![aside(2)]));
    }

    #[tokio::test]
    async fn no_name_of_an_alert_leads_to_what_another_has_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let queue = open(dir.path());
        for name in ["ops.set-aside", "set-aside", "set-aside.ops"] {
            let other = Queue::open(dir.path(), &name.parse().unwrap()).unwrap();
            other.begin(0).await.unwrap();
            queue.set_aside(&notice(1), "status 422".to_owned()).await.unwrap();
            assert_eq!(Queue::open(dir.path(), &name.parse().unwrap()).unwrap().seen(), Some(0), "{name}");
        }
        assert_eq!(read_aside(queue.aside()).unwrap(), [aside(1)]);
    }

    fn aside(serial: u64) -> SetAside {
        SetAside { notice: notice(serial), reason: "status 422".to_owned() }
    }

    #[tokio::test]
    async fn what_an_earlier_version_has_set_aside_within_the_queue_is_taken_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).begin(3).await.unwrap();
        let path = dir.path().join("ops.json");
        let mut kept: Kept = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        kept.set_aside = vec![aside(1), aside(2)];
        std::fs::write(&path, serde_json::to_vec(&kept).unwrap()).unwrap();
        for _ in 0..2 {
            assert_eq!(count_aside(open(dir.path()).aside()).unwrap(), 2);
        }
        open(dir.path()).take_in(vec![notice(4)], 4).await.unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("set_aside"));
    }
}
