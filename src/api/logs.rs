//! Sends a run's logs line by line, merged by time over its tasks, and goes on as they grow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http_body_util::channel::Sender;
use hyper::body::Bytes;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};

use super::wire::{LogLine, LogQuery};
use crate::config::Paths;
use crate::ids::{JobKey, TaskName, Timestamp};
use crate::logs::{Cursor, Dropped, LogReader, Record, Stream};
use crate::reconcile::JobDetail;
use crate::store::record::{AttemptRecord, RunRecord};

/// Parts that wait for a client that does not read: each has about [`BATCH`] bytes, and there may be a thousand clients.
pub(super) const QUEUE: usize = 2;
/// Bytes read of one task at once.
const CHUNK: usize = 32 << 10;
/// Bytes that are sent at once, about.
const BATCH: usize = 64 << 10;
/// A line that is longer is sent in parts, so that a task without newlines is seen as well.
const LINE_MAX: usize = 64 << 10;

/// Whether the query names a run and a task that there are.
pub(super) fn check(key: &JobKey, detail: &JobDetail, query: &LogQuery) -> Result<(), String> {
    let Some(run) = select(detail, query) else {
        return match query.run {
            Some(run) => Err(format!("job {key} has no run {run}; its newest is {}", detail.report.run)),
            None if query.follow => Ok(()),
            None => Err(format!("job {key} has not run yet: {}", detail.report.reason)),
        };
    };
    if let Some(attempt) = query.attempt.filter(|wanted| run.attempts.iter().all(|attempt| attempt.number != *wanted)) {
        let made = run.attempts.len();
        return Err(format!("run {} of job {key} has no attempt {attempt}; it has made {made}", run.number));
    }
    let all = run.attempts.iter().flat_map(|attempt| &attempt.tasks).map(|task| task.name().to_string());
    let tasks = all.fold(Vec::new(), |mut tasks, task| {
        if !tasks.contains(&task) {
            tasks.push(task);
        }
        tasks
    });
    match &query.task {
        Some(task) if !tasks.is_empty() && !tasks.contains(task) => {
            Err(format!("run {} of job {key} has no task {task:?}; its tasks are {}", run.number, tasks.join(", ")))
        }
        _ => Ok(()),
    }
}

fn select<'a>(detail: &'a JobDetail, query: &LogQuery) -> Option<&'a RunRecord> {
    match query.run {
        Some(number) => detail.runs.iter().find(|run| run.number == number),
        None => detail.runs.last(),
    }
}

/// Directories of logs, watched by one watcher of the kernel's for all who follow: of those a user may have few.
#[derive(Debug, Clone)]
pub struct Growth {
    followers: Arc<Mutex<Followers>>,
    watcher: Arc<Mutex<RecommendedWatcher>>,
}

#[derive(Debug, Default)]
struct Followers {
    by_directory: BTreeMap<PathBuf, BTreeMap<u64, Arc<Notify>>>,
    next: u64,
}

/// One of them, until it is dropped.
struct Following {
    growth: Growth,
    directory: PathBuf,
    number: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Growth {
    pub fn start() -> io::Result<Self> {
        let followers = Arc::new(Mutex::new(Followers::default()));
        let told = followers.clone();
        let seen = move |event: notify::Result<notify::Event>| lock(&told).tell(event.ok().as_ref());
        let watcher = notify::recommended_watcher(seen).map_err(io::Error::other)?;
        Ok(Self { followers, watcher: Arc::new(Mutex::new(watcher)) })
    }

    /// `grown` is told of everything that changes in the directory.
    fn follow(&self, directory: &Path, grown: &Arc<Notify>) -> io::Result<Following> {
        // The watcher is locked throughout: who comes must not meet who goes.
        let mut watcher = lock(&self.watcher);
        let number = {
            let mut followers = lock(&self.followers);
            followers.next += 1;
            let number = followers.next;
            followers.by_directory.entry(directory.to_owned()).or_default().insert(number, grown.clone());
            number
        };
        let following = Following { growth: self.clone(), directory: directory.to_owned(), number };
        let is_first = lock(&self.followers).by_directory.get(directory).is_some_and(|all| all.len() == 1);
        let watched = if is_first { watcher.watch(directory, RecursiveMode::NonRecursive) } else { Ok(()) };
        drop(watcher);
        watched.map(|()| following).map_err(io::Error::other)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut watcher = lock(&self.growth.watcher);
        let is_last = lock(&self.growth.followers).leave(&self.directory, self.number);
        if is_last {
            // The directory may be gone, and the watch with it.
            let _ = watcher.unwatch(&self.directory);
        }
    }
}

impl Followers {
    /// Everybody, when it is not known whom it concerns.
    fn tell(&self, event: Option<&notify::Event>) {
        let known = event.filter(|event| !event.need_rescan() && !event.paths.is_empty());
        match known {
            None => self.by_directory.values().flat_map(BTreeMap::values).for_each(|grown| grown.notify_one()),
            Some(event) => {
                for path in &event.paths {
                    let concerned = [Some(path.as_path()), path.parent()].into_iter().flatten();
                    let all = concerned.filter_map(|directory| self.by_directory.get(directory));
                    all.flat_map(BTreeMap::values).for_each(|grown| grown.notify_one());
                }
            }
        }
    }

    /// True when nobody is left.
    fn leave(&mut self, directory: &Path, number: u64) -> bool {
        let Some(all) = self.by_directory.get_mut(directory) else { return false };
        all.remove(&number);
        let is_empty = all.is_empty();
        if is_empty {
            self.by_directory.remove(directory);
        }
        is_empty
    }
}

/// One task's log in one attempt.
struct Source {
    task: TaskName,
    attempt: u32,
    dir: PathBuf,
    reader: Option<LogReader>,
    following: Option<Following>,
    cursor: Cursor,
    /// To be sent before anything else: what was dropped.
    markers: Vec<LogLine>,
    /// Begun lines of both streams.
    partial: [Vec<u8>; 2],
    /// So many pieces were there when it was opened: what comes later is not waited for. Absent when following.
    end: Option<u64>,
}

pub(super) struct Follower {
    paths: Paths,
    query: LogQuery,
    rounds: watch::Receiver<u64>,
    sources: Vec<Source>,
    grown: Arc<Notify>,
    growth: Growth,
    /// The run that is followed, once known.
    run: Option<u32>,
}

impl Follower {
    pub(super) fn new(paths: Paths, query: LogQuery, rounds: watch::Receiver<u64>, growth: Growth) -> Self {
        let run = query.run;
        Self { paths, query, rounds, sources: Vec::new(), grown: Arc::default(), growth, run }
    }

    /// Sends until all is sent and, when following, the run has ended; or until nobody listens.
    pub(super) async fn run<F, D>(mut self, mut sender: Sender<Bytes, Infallible>, fetch: F)
    where
        F: Fn() -> D,
        D: Future<Output = Option<JobDetail>>,
    {
        loop {
            // Marked before looking, so that what happens meanwhile wakes us.
            self.rounds.mark_unchanged();
            let grown = self.grown.clone();
            let grown = grown.notified();
            let Some(detail) = fetch().await else { return };
            // Fails when nobody listens any more.
            if sender.send_data(Bytes::new()).await.is_err() {
                return;
            }
            let Some((follower, ended)) = self.on_thread(move |own| own.take_sources(&detail)).await else { return };
            let Some(follower) = follower.send_all(&mut sender).await else { return };
            self = follower;
            if ended || !self.query.follow {
                let Some((_, lines)) = self.on_thread(Self::partial_lines).await else { return };
                let _ = sender.send_data(lines.into()).await;
                return;
            }
            tokio::select! {
                () = grown => {}
                changed = self.rounds.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Does what reads files where it may wait. `None` when it failed.
    async fn on_thread<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> Option<(Self, T)> {
        let work = move || {
            let done = work(&mut self);
            (self, done)
        };
        tokio::task::spawn_blocking(work).await.ok()
    }

    /// Sends what is there; `None` when nobody listens.
    async fn send_all(mut self, sender: &mut Sender<Bytes, Infallible>) -> Option<Self> {
        loop {
            let (follower, lines) = self.on_thread(Self::next_lines).await?;
            self = follower;
            if lines.is_empty() {
                return Some(self);
            }
            sender.send_data(lines.into()).await.ok()?;
        }
    }

    /// Opens the logs of attempts that have come; true when the run has ended, so that no more will come.
    fn take_sources(&mut self, detail: &JobDetail) -> bool {
        let query = LogQuery { run: self.run, ..self.query.clone() };
        let Some(run) = select(detail, &query) else { return false };
        self.run = Some(run.number);
        let Ok(key) = format!("{}/{}", detail.report.workspace, detail.report.job).parse::<JobKey>() else {
            return true;
        };
        let first =
            if self.query.follow || self.query.run.is_some() { 0 } else { run.attempts.len().saturating_sub(1) };
        let is_wanted = |attempt: &&AttemptRecord| match self.query.attempt {
            Some(number) => attempt.number == number,
            None => attempt.number as usize > first,
        };
        for attempt in run.attempts.iter().filter(is_wanted) {
            for task in &attempt.tasks {
                let name = task.name();
                let wanted = self.query.task.as_ref().is_none_or(|task| *task == name.to_string());
                let known = self.sources.iter().any(|s| s.attempt == attempt.number && s.task == name);
                if wanted && !known {
                    let dir = self.paths.task(&key, run.number, attempt.number, &name);
                    self.sources.push(Source {
                        task: name,
                        attempt: attempt.number,
                        dir,
                        reader: None,
                        following: None,
                        cursor: Cursor::default(),
                        markers: Vec::new(),
                        partial: [Vec::new(), Vec::new()],
                        end: None,
                    });
                }
            }
        }
        self.open_readers();
        run.ended.is_some()
    }

    fn open_readers(&mut self) {
        for source in self.sources.iter_mut().filter(|source| source.reader.is_none()) {
            let Ok(mut reader) = LogReader::open_whole(&source.dir) else { continue };
            source.cursor = start(&mut reader, &self.query).unwrap_or_default();
            if source.cursor == Cursor::default() {
                source.markers = reader.dropped().iter().map(|dropped| source.marker(dropped)).collect();
            }
            // A program may write faster than anybody reads.
            source.end = (!self.query.follow).then(|| reader.pieces().unwrap_or_default());
            source.reader = Some(reader);
            if self.query.follow {
                match self.growth.follow(&source.dir, &self.grown) {
                    Ok(following) => source.following = Some(following),
                    Err(error) => tracing::warn!(%error, "cannot watch a log"),
                }
                // What came between the reading and the watch.
                self.grown.notify_one();
            }
        }
    }

    /// A part of what is there, the earliest of all tasks first; nothing at the end.
    fn next_lines(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < BATCH {
            for source in &mut self.sources {
                encode(&mut out, source.take_markers(), self.query.as_text);
            }
            let until = self.query.until.map(Timestamp);
            let next = self.sources.iter_mut().enumerate().filter_map(|(index, source)| {
                let part = source.reader.as_ref()?.piece_at(&mut source.cursor).ok()??;
                let is_later = source.end.is_some_and(|end| source.cursor.is_behind(end));
                let is_wanted = !is_later && until.is_none_or(|until| part.time <= until);
                is_wanted.then_some((part.time, index, part))
            });
            let Some((_, index, part)) = next.min_by_key(|(time, index, _)| (*time, *index)) else { break };
            let Some(lines) = self.sources.get_mut(index).and_then(|source| source.read(&part)) else { break };
            encode(&mut out, lines, self.query.as_text);
        }
        out
    }

    fn partial_lines(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for source in &mut self.sources {
            let now = source.reader.as_ref().and_then(|reader| reader.modified().ok().flatten());
            encode(&mut out, source.finish(now.unwrap_or(Timestamp(0))), self.query.as_text);
        }
        out
    }
}

fn start(reader: &mut LogReader, query: &LogQuery) -> io::Result<Cursor> {
    let since = query.since.map(|since| reader.since(Timestamp(since))).transpose()?.unwrap_or_default();
    let lines = query.lines.map(|lines| reader.last_lines(lines)).transpose()?.unwrap_or_default();
    Ok(since.max(lines))
}

impl Source {
    /// What has to be said before the next piece; goes on to the next log when this one was rotated.
    fn take_markers(&mut self) -> Vec<LogLine> {
        let mut lines = std::mem::take(&mut self.markers);
        let Some(reader) = self.reader.as_mut().filter(|_| self.end.is_none()) else { return lines };
        // Fails when the log was removed meanwhile: what is open is read to its end.
        let lost = reader.follow(&mut self.cursor).unwrap_or_default();
        for dropped in lost {
            let begun = std::mem::take(&mut self.partial[dropped.stream.slot()]);
            lines.extend((!begun.is_empty()).then(|| self.line(dropped.stream, dropped.at, &begun)));
            lines.push(self.marker(&dropped));
        }
        lines
    }

    fn marker(&self, dropped: &Dropped) -> LogLine {
        let time = dropped.at;
        LogLine { stream: "log".to_owned(), text: dropped.text(), ..self.line(dropped.stream, time, b"") }
    }

    /// Reads on within `part`; complete lines are returned. `None` when nothing can be read.
    fn read(&mut self, part: &Record) -> Option<Vec<LogLine>> {
        let mut buffer = vec![0; CHUNK];
        let count = self.reader.as_mut()?.read_on(part, &mut self.cursor, &mut buffer).ok()?;
        if count == 0 {
            return None;
        }
        let slot = part.stream.slot();
        let mut begun = std::mem::take(&mut self.partial[slot]);
        begun.extend_from_slice(&buffer[..count]);
        let complete = match begun.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if begun.len() > LINE_MAX => begun.len(),
            None => 0,
        };
        self.partial[slot] = begun.split_off(complete);
        let text = begun.strip_suffix(b"\n").unwrap_or(&begun);
        if complete == 0 {
            return Some(Vec::new());
        }
        Some(text.split(|byte| *byte == b'\n').map(|line| self.line(part.stream, part.time, line)).collect())
    }

    /// What was begun and never ended with a newline.
    fn finish(&mut self, time: Timestamp) -> Vec<LogLine> {
        let partial = std::mem::take(&mut self.partial);
        let begun = Stream::BOTH.into_iter().zip(&partial).filter(|(_, text)| !text.is_empty());
        begun.map(|(stream, text)| self.line(stream, time, text)).collect()
    }

    fn line(&self, stream: Stream, time: Timestamp, text: &[u8]) -> LogLine {
        LogLine {
            task: self.task.to_string(),
            attempt: self.attempt,
            stream: stream.name().to_owned(),
            time: time.to_string(),
            text: String::from_utf8_lossy(text).into_owned(),
        }
    }
}

fn encode(out: &mut Vec<u8>, lines: Vec<LogLine>, as_text: bool) {
    for line in lines {
        match as_text {
            true => out.extend(line.text.as_bytes()),
            false => out.extend(serde_json::to_vec(&line).expect("a line is text and numbers")),
        }
        out.push(b'\n');
    }
}
