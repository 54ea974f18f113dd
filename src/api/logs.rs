//! Sends a run's logs line by line, merged by time over its tasks, and goes on as they grow.

pub(super) mod download;
mod growth;
pub(super) mod ranges;
mod source;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

pub use growth::Growth;
use source::{Form, Source};

use super::error::ApiError;
use super::flow::{Flow, NobodyListens};
use super::wire::LogQuery;
use crate::config::Paths;
use crate::ids::{JobKey, Timestamp};
use crate::reconcile::{JobDetail, Refusal};
use crate::store::record::{AttemptRecord, RunRecord};

/// Parts that wait for a client that does not read: each has about [`BATCH`] bytes, and there may be a thousand clients.
pub(super) const QUEUE: usize = 2;
/// Bytes that are sent at once, about.
const BATCH: usize = 64 << 10;

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

/// Why a log is not sent to its end.
#[derive(Debug)]
enum Broken {
    NobodyListens,
    /// It cannot be read on.
    Unread(String),
    /// It is not the reader's any more.
    Revoked(ApiError),
}

impl From<NobodyListens> for Broken {
    fn from(NobodyListens: NobodyListens) -> Self {
        Self::NobodyListens
    }
}

fn panicked() -> Broken {
    Broken::Unread("a thread that read it has failed".to_owned())
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

    /// Sends until all is sent and, when following, the run has ended; or until nobody listens. What cannot be read on breaks off;
    /// who may not read on is told.
    pub(super) async fn run<F, D>(self, mut flow: Flow, fetch: F)
    where
        F: Fn(Option<u32>) -> D,
        D: Future<Output = Result<JobDetail, ApiError>>,
    {
        let is_text = self.query.as_text;
        match self.send_to_end(&mut flow, fetch).await {
            Ok(()) => flow.end(),
            Err(Broken::NobodyListens) => {}
            // A file of the tasks' own lines has no place for it.
            Err(Broken::Revoked(why)) if is_text => flow.cut(why.to_string()),
            Err(Broken::Revoked(why)) => flow.end_by(&why).await,
            Err(Broken::Unread(reason)) => {
                tracing::warn!(reason, "a log that is sent breaks off");
                flow.cut(reason);
            }
        }
    }

    async fn send_to_end<F, D>(mut self, flow: &mut Flow, fetch: F) -> Result<(), Broken>
    where
        F: Fn(Option<u32>) -> D,
        D: Future<Output = Result<JobDetail, ApiError>>,
    {
        loop {
            // Marked before looking, so that what happens meanwhile wakes us.
            self.rounds.mark_unchanged();
            let grown = self.grown.clone();
            let grown = grown.notified();
            // That run alone: a job may have begun the next one by now.
            let detail = match fetch(self.run).await {
                Ok(detail) => detail,
                // It was removed, as only what is over can be: nothing more comes.
                Err(ApiError::Refused(Refusal::Unknown(_))) => return Ok(()),
                Err(why @ ApiError::Revoked(_)) => return Err(Broken::Revoked(why)),
                Err(error) => return Err(Broken::Unread(error.to_string())),
            };
            // Fails when nobody listens any more.
            flow.send("").await?;
            let (follower, ended) = self.on_thread(move |own| own.take_sources(&detail)).await.ok_or_else(panicked)?;
            self = follower.send_all(flow).await?;
            if ended || !self.query.follow {
                let (_, lines) = self.on_thread(Self::partial_lines).await.ok_or_else(panicked)?;
                return Ok(flow.send(lines).await?);
            }
            tokio::select! {
                () = grown => {}
                changed = self.rounds.changed() => if changed.is_err() {
                    return Err(Broken::Unread(ApiError::Ending.to_string()));
                },
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

    /// Sends what is there.
    async fn send_all(mut self, flow: &mut Flow) -> Result<Self, Broken> {
        loop {
            let (follower, lines) = self.on_thread(Self::next_lines).await.ok_or_else(panicked)?;
            self = follower;
            if lines.is_empty() {
                return self.unread().map_or(Ok(self), |reason| Err(Broken::Unread(reason)));
            }
            flow.send(lines).await?;
        }
    }

    /// Why something of it cannot be read, if it cannot.
    fn unread(&self) -> Option<String> {
        self.sources.iter().find_map(Source::unread)
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
                let known = self.sources.iter().any(|source| source.is_of(attempt.number, &name));
                if wanted && !known {
                    let dir = self.paths.task(&key, run.number, attempt.number, &name);
                    self.sources.push(Source::new(attempt.id, attempt.number, name, dir));
                }
            }
        }
        self.open_readers();
        run.ended.is_some()
    }

    fn open_readers(&mut self) {
        for source in self.sources.iter_mut().filter(|source| !source.is_open()) {
            if !source.open(&self.query) || !self.query.follow {
                continue;
            }
            if let Err(error) = source.watch(&self.growth, &self.grown) {
                tracing::warn!(%error, "cannot watch a log");
            }
            // What came between the reading and the watch.
            self.grown.notify_one();
        }
    }

    fn form(&self) -> Form {
        if self.query.as_text { Form::Text } else { Form::Json }
    }

    /// A part of what is there, the earliest of all tasks first; nothing at the end.
    fn next_lines(&mut self) -> Vec<u8> {
        let (mut out, form) = (Vec::new(), self.form());
        let until = self.query.until.map(Timestamp);
        while out.len() < BATCH {
            for source in &mut self.sources {
                source.put_markers(&mut out, form);
            }
            let next = self.sources.iter_mut().enumerate().filter_map(|(index, source)| {
                let part = source.next_piece().filter(|part| until.is_none_or(|until| part.time <= until))?;
                Some((part.time, index, part))
            });
            let Some((_, index, part)) = next.min_by_key(|(time, index, _)| (*time, *index)) else { break };
            let read = self.sources.get_mut(index).and_then(|source| source.put_lines(&mut out, form, &part));
            if read.is_none() {
                break;
            }
        }
        out
    }

    fn partial_lines(&mut self) -> Vec<u8> {
        let (mut out, form) = (Vec::new(), self.form());
        for source in &mut self.sources {
            source.finish(&mut out, form);
        }
        out
    }
}
