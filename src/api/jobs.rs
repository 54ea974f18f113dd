//! Jobs over the API: lists, details, and what is done to them.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use hyper::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Response, StatusCode};

use super::error::ApiError;
use super::flow::Flow;
use super::list::{self, Filter};
use super::listed::Listed;
use super::logs::download::{Download, Turn};
use super::logs::ranges::Asked;
use super::query::Values;
use super::rates::Who;
use super::server::{ANSWER_WITHIN, Body, Context, ask, json, stream};
use super::sight;
use super::tasks::{self, TaskUsage};
use super::wire::{Done, JobList, JobView, LogQuery, Page, PortView, RunView};
use super::{files, logs};
use crate::engine::ListeningPort;
use crate::ids::{JobKey, TaskName};
use crate::reconcile::{Caller, EventPart, JobDetail, Kept, Listing, Refusal, Request, RunPart, Sight, Verb, Whose};
use crate::report::JobLine;
use crate::store::record::RunRecord;
use crate::sys::now;
use crate::sys::rooted::Rooted;

pub(super) fn key(workspace: &str, job: &str) -> Result<JobKey, ApiError> {
    let parsed = workspace.parse().and_then(|workspace| Ok(JobKey::new(workspace, job.parse()?)));
    parsed.map_err(|error| ApiError::Bad(format!("{workspace}/{job} cannot be a job: {error}")))
}

/// A page of those that the caller may see.
pub(super) async fn list(context: &Context, caller: Caller, values: &Values) -> Result<JobList, ApiError> {
    let filter = filter(values).await?;
    let caller = sight::everywhere(context, caller).await?;
    let listing = ask(context, |answer| Request::List { caller, answer }).await?;
    page(listing, values, &filter)
}

/// The same, a line each.
pub(super) async fn lines(context: &Context, caller: Caller, values: &Values) -> Result<JobList<JobLine>, ApiError> {
    let filter = filter(values).await?;
    let caller = sight::everywhere(context, caller).await?;
    let listing = ask(context, |answer| Request::Lines { caller, answer }).await?;
    page(listing, values, &filter)
}

fn page<J: Listed>(listing: Listing<J>, values: &Values, filter: &Filter) -> Result<JobList<J>, ApiError> {
    let Listing { jobs, strays, serial } = listing;
    let Page { items, total, next } = list::page(jobs, values, filter, now()).map_err(ApiError::Bad)?;
    Ok(JobList { jobs: items, strays, total, next, serial })
}

/// What is asked for of any list.
pub(super) async fn filter(values: &Values) -> Result<Filter, ApiError> {
    let mut filter = Filter::read(values);
    if let Some(user) = values.owned("user") {
        filter.owner = Some(uid_of(user).await?);
    }
    Ok(filter)
}

/// A user by name or number; to look names up may take long.
pub(super) async fn uid_of(user: String) -> Result<u32, ApiError> {
    let looked = tokio::task::spawn_blocking(move || {
        let named = nix::unistd::User::from_name(&user).ok().flatten().map(|user| user.uid.as_raw());
        let found = named.or_else(|| user.parse().ok());
        found.ok_or_else(|| ApiError::NotFound(format!("there is no user {user:?} on this machine")))
    });
    looked.await.map_err(|_| ApiError::Ending)?
}

/// So many of a job's runs and events are sent at once: it may have had any number of them.
const RUNS_MAX: usize = 100;
pub(super) const EVENTS_MAX: usize = 1000;

/// Which of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    run: Option<u32>,
    events_from: Option<u64>,
}

impl Part {
    pub(super) fn read(values: &Values) -> Self {
        let run = values.number("run").and_then(|number| u32::try_from(number).ok());
        Self { run, events_from: values.number("events_from") }
    }

    fn runs(self) -> RunPart {
        // What the newest one does is told in any case.
        RunPart { newest: if self.run.is_none() { RUNS_MAX } else { 1 }, also: self.run }
    }

    fn views(self, runs: &[RunRecord]) -> Vec<RunView> {
        let is_meant = |run: &&RunRecord| self.run.is_none_or(|number| run.number == number);
        runs.iter().filter(is_meant).map(RunView::from).collect()
    }

    fn events(self) -> EventPart {
        match self.events_from {
            Some(number) => EventPart::From(number, EVENTS_MAX),
            None => EventPart::Newest(EVENTS_MAX),
        }
    }
}

pub(super) async fn detail(context: &Context, caller: Caller, key: JobKey, part: Part) -> Result<JobView, ApiError> {
    let detail = look(context, caller, key.clone(), part.runs(), part.events()).await?;
    let usage = match detail.sight {
        Sight::Told => Vec::new(),
        Sight::Shared | Sight::Own => tasks::look(context, &key, &detail.runs).await,
    };
    Ok(view(context, detail, part, usage))
}

/// How long it may take until a file that was just dropped is a job: files are looked at every 20 s where the kernel tells nothing.
const COMES: Duration = Duration::from_secs(30);

/// As [`detail`], but of a job that is not there yet it waits until it is.
pub(super) async fn detail_when_known(
    context: &Context,
    caller: Caller,
    key: JobKey,
    part: Part,
) -> Result<JobView, ApiError> {
    let mut rounds = context.rounds.clone();
    let known = async {
        loop {
            rounds.mark_unchanged();
            match detail(context, caller.clone(), key.clone(), part).await {
                Err(ApiError::Refused(Refusal::Unknown(_))) => {
                    rounds.changed().await.map_err(|_| ApiError::Ending)?;
                }
                shown => return shown,
            }
        }
    };
    match tokio::time::timeout(COMES, known).await {
        Ok(shown) => shown,
        Err(_) => detail(context, caller.clone(), key.clone(), part).await,
    }
}

/// With its newest run, and one that is asked for; without its events.
pub(super) async fn show(
    context: &Context,
    caller: Caller,
    key: JobKey,
    run: Option<u32>,
) -> Result<JobDetail, ApiError> {
    look(context, caller, key, RunPart { newest: 1, also: run }, EventPart::None).await
}

/// A job as the caller sees it. The file system is asked for those of others alone: who follows their own jobs waits for no disk.
async fn look(
    context: &Context,
    caller: Caller,
    key: JobKey,
    runs: RunPart,
    events: EventPart,
) -> Result<JobDetail, ApiError> {
    let look = async |caller: Caller| {
        let key = key.clone();
        ask(context, |answer| Request::Show { caller, key, runs, events, answer }).await
    };
    match look(caller.clone()).await {
        Err(ApiError::Refused(Refusal::Unknown(_))) if caller.uid != 0 => {
            look(sight::of_job(context, caller, &key).await?).await
        }
        // The run is of a file that was another one's.
        Ok(detail) if detail.sight != Sight::Own => look(sight::of_job(context, caller, &key).await?).await,
        shown => shown,
    }
}

/// The same, of which the caller is to see so much.
pub(super) async fn show_with(
    context: &Context,
    caller: Caller,
    key: JobKey,
    run: Option<u32>,
    kept: Kept,
) -> Result<JobDetail, ApiError> {
    let detail = show(context, caller, key.clone(), run).await?;
    let least = if kept == Kept::Logs { Sight::Shared } else { Sight::Own };
    if detail.sight >= least {
        return Ok(detail);
    }
    let asked = detail.runs.iter().rfind(|known| run.is_none_or(|number| known.number == number));
    let whose = Whose::of(Some(asked.map_or(detail.report.owner, |run| run.source.owner.uid)));
    Err(sight::named(Refusal::NotYours { key, whose, kept }).await.into())
}

pub(super) async fn change(
    context: &Context,
    caller: Caller,
    key: JobKey,
    verb: Verb,
) -> Result<Response<Body>, ApiError> {
    let caller = match verb {
        Verb::Remove | Verb::WouldRemove { .. } => sight::to_remove(context, caller, &key).await?,
        _ => sight::to_change(context, caller, &key).await?,
    };
    changed(context, caller, key, verb).await
}

/// By a caller of whom it is known what they may change.
async fn changed(context: &Context, caller: Caller, key: JobKey, verb: Verb) -> Result<Response<Body>, ApiError> {
    let message = ask(context, |answer| Request::Change { caller, key, verb, answer }).await?;
    Ok(json(StatusCode::OK, &Done { message }))
}

/// How long the daemon may take to see that a file is gone.
const FILE_GONE: Duration = Duration::from_secs(10);

/// Removes the file of a job, or of a sweep, that is over, and then the record, once the file is known to be gone.
pub(super) async fn remove_with_file(
    context: &Context,
    caller: Caller,
    key: JobKey,
) -> Result<Response<Body>, ApiError> {
    let is_over = is_over(context, &caller, &key).await?;
    // Once the file is gone nobody can tell any more who might have removed it.
    let caller = sight::to_remove(context, caller, &key).await?;
    match changed(context, caller.clone(), key.clone(), Verb::WouldRemove { with_file: true }).await {
        Err(error) if error.code() == "not_yours" => return Err(error),
        _ => {}
    }
    if is_over {
        let (paths, by, of) = (context.paths.clone(), caller.clone(), key.clone());
        let removed = tokio::task::spawn_blocking(move || files::remove(&paths, &by, &of));
        removed.await.map_err(|_| ApiError::Ending)??;
    }
    let mut rounds = context.rounds.clone();
    let retried = async {
        loop {
            rounds.mark_unchanged();
            match changed(context, caller.clone(), key.clone(), Verb::Remove).await {
                Err(ApiError::Refused(refusal)) if waits_for_file(&refusal) => {
                    rounds.changed().await.map_err(|_| ApiError::Ending)?;
                }
                // Of one that was never valid there is no record, once its file has gone.
                Err(ApiError::Refused(Refusal::Unknown(_))) if is_over => {
                    return Ok(json(StatusCode::OK, &Done { message: format!("{key}: its file is removed") }));
                }
                done => return done,
            }
        }
    };
    let slow = || ApiError::Failed(format!("the file of {key} is removed, its record not yet: `trainyard rm {key}`"));
    tokio::time::timeout(FILE_GONE, retried).await.unwrap_or_else(|_| Err(slow()))
}

/// What a removal would do, or why it is refused; nothing is done.
pub(super) async fn would_remove(
    context: &Context,
    caller: Caller,
    key: JobKey,
    with_file: bool,
) -> Result<Response<Body>, ApiError> {
    if with_file {
        // Refuses one of a sweep, whose file is not its own.
        is_over(context, &caller, &key).await?;
        let may_write = super::rights::may_submit(&context.paths.jobs_d(), key.workspace.as_str(), caller.uid);
        if caller.uid != 0 && !may_write {
            return Err(ApiError::Forbidden(format!(
                "you may not remove files from the directory of workspace {}",
                key.workspace
            )));
        }
    }
    change(context, caller, key, Verb::WouldRemove { with_file }).await
}

fn waits_for_file(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::FileStillThere { .. } => true,
        Refusal::Each(each) => each.iter().all(waits_for_file),
        _ => false,
    }
}

/// Whether nothing of the job runs, or of any job of a sweep; of one of a sweep the file is not its own.
async fn is_over(context: &Context, caller: &Caller, key: &JobKey) -> Result<bool, ApiError> {
    let detail = match show(context, caller.clone(), key.clone(), None).await {
        Err(ApiError::Refused(Refusal::Sweep { jobs, .. })) => {
            for job in jobs {
                let job = job.parse().map_err(|_| ApiError::NotFound(format!("there is no job {job}")))?;
                if show(context, caller.clone(), job, None).await?.is_open {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        detail => detail?,
    };
    if let Some(sweep) = &detail.sweep {
        let message = format!(
            "job {key} is one of a sweep, whose file makes others as well; `trainyard rm --file {}`",
            sweep.job
        );
        return Err(ApiError::Conflict(message));
    }
    Ok(!detail.is_open)
}

/// What the tasks printed, line by line or as one file.
pub(super) async fn logs(
    context: &Context,
    caller: Caller,
    key: JobKey,
    query: LogQuery,
    asked: &Asked,
) -> Result<Response<Body>, ApiError> {
    let detail = show_with(context, caller.clone(), key.clone(), query.run, Kept::Logs).await?;
    logs::check(&key, &detail, &query).map_err(ApiError::NotFound)?;
    let name = format!("{}-{}.log", key.job, query.run.unwrap_or(detail.report.run));
    if query.as_text && !query.follow {
        return download(context, &caller, query, detail, asked, &name).await;
    }
    let (flow, body) = Flow::new(logs::QUEUE);
    let own = context.clone();
    let fetch = move |run| {
        let (context, caller, key) = (own.clone(), caller.clone(), key.clone());
        async move { follow_on(&context, caller, key, run).await }
    };
    let as_text = query.as_text;
    let follower = logs::Follower::new(context.paths.clone(), query, context.rounds.clone(), context.growth.clone());
    tokio::spawn(follower.run(flow, fetch));
    match as_text {
        false => stream(body, "application/x-ndjson"),
        true => Ok(as_file(stream(body, TEXT)?, &name)),
    }
}

/// A job whose log is followed. What is closed to the caller meanwhile has not gone, and its log does not end by that.
async fn follow_on(context: &Context, caller: Caller, key: JobKey, run: Option<u32>) -> Result<JobDetail, ApiError> {
    let revoked = || ApiError::Revoked(format!("the logs of job {key}"));
    match show_with(context, caller, key.clone(), run, Kept::Logs).await {
        Err(ApiError::Refused(Refusal::NotYours { .. })) => Err(revoked()),
        Err(ApiError::Refused(Refusal::Unknown(_))) => {
            let everybody = Caller::root();
            show(context, everybody, key.clone(), run).await.and_then(|_| Err(revoked()))
        }
        shown => shown,
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// A log as it is asked for, before it is sent.
struct Opened {
    file: Download,
    tag: String,
    /// What is wanted of it, with how long it is where that had to be known.
    part: Option<Range<u64>>,
    total: Option<u64>,
}

async fn open(context: &Context, query: LogQuery, detail: JobDetail) -> Result<Download, ApiError> {
    let (paths, growth) = (context.paths.clone(), context.growth.clone());
    let opened = tokio::task::spawn_blocking(move || Download::open(paths, growth, query, &detail)).await;
    opened.map_err(|_| ApiError::Ending)
}

/// In its turn: it may have to be read to its end for that.
async fn open_counted(
    context: &Context,
    caller: &Caller,
    query: LogQuery,
    detail: JobDetail,
    asked: &Asked,
) -> Result<Opened, ApiError> {
    let _session = context.counts.begin(Who::User(caller.uid)).map_err(ApiError::TooMany)?;
    let turn = Turn::wait().await.ok_or(ApiError::Ending)?;
    let file = open(context, query, detail).await?;
    let tag = file.tag();
    let range = asked.range(&tag);
    if !asked.is_head && range.is_none() {
        return Ok(Opened { file, tag, part: None, total: None });
    }
    let measured = file.measure(range, &turn).await;
    let (file, total) = measured.ok_or_else(|| ApiError::Failed("the log cannot be read".to_owned()))?;
    let part = range.map(|range| range.within(total).ok_or(ApiError::NoSuchRange { total })).transpose()?;
    Ok(Opened { file, tag, part, total: Some(total) })
}

/// The log as one file: whole, a part of it, or only what there is to say about it.
async fn download(
    context: &Context,
    caller: &Caller,
    query: LogQuery,
    detail: JobDetail,
    asked: &Asked,
    name: &str,
) -> Result<Response<Body>, ApiError> {
    let Opened { file, tag, part, total } = if asked.may_need_length() {
        let opened = tokio::time::timeout(ANSWER_WITHIN, open_counted(context, caller, query, detail, asked)).await;
        opened.unwrap_or(Err(ApiError::TimedOut))?
    } else {
        let file = open(context, query, detail).await?;
        Opened { tag: file.tag(), file, part: None, total: None }
    };
    let (flow, body) = Flow::new(logs::QUEUE);
    let mut response = as_file(stream(body, TEXT)?, name);
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    insert(headers, ETAG, &tag);
    if let Some(total) = total {
        let length = part.as_ref().map_or(total, |part| part.end - part.start);
        headers.insert(CONTENT_LENGTH, length.into());
        if let Some(part) = &part {
            insert(headers, CONTENT_RANGE, &format!("bytes {}-{}/{total}", part.start, part.end - 1));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
    }
    if !asked.is_head {
        tokio::spawn(file.send(flow, part));
    }
    Ok(response)
}

/// What the shim of a task writes beside its logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// What it has used of the machine.
    Metrics,
    /// What it has told of its training.
    Scalars,
}

impl Table {
    fn file(self) -> &'static str {
        match self {
            Self::Metrics => "metrics.csv",
            Self::Scalars => "scalars.csv",
        }
    }

    /// Nothing that leads out of the task's directory is followed: the file is its owner's.
    pub(super) fn open(self, directory: &Path) -> io::Result<File> {
        Rooted::open(directory)?.file_for_reading(Path::new(self.file()))
    }

    fn is_missing(self, key: &JobKey, task: &TaskName) -> ApiError {
        ApiError::NotFound(match self {
            Self::Metrics => format!("nothing was measured of task {task} of job {key} yet"),
            Self::Scalars => format!(
                "task {task} of job {key} has told no numbers of its training yet; `scalars` and `tensorboard` in the job \
                 file say where they come from"
            ),
        })
    }
}

/// A table of a task, as its shim wrote it.
pub(super) async fn table(
    context: &Context,
    caller: Caller,
    key: JobKey,
    values: &Values,
    table: Table,
) -> Result<Response<Body>, ApiError> {
    let small = |name| values.number(name).and_then(|number| u32::try_from(number).ok());
    let detail = show_with(context, caller, key.clone(), small("run"), Kept::Logs).await?;
    let task = values.needed("task")?;
    let wanted =
        LogQuery { task: Some(task.to_owned()), run: small("run"), attempt: small("attempt"), ..LogQuery::default() };
    logs::check(&key, &detail, &wanted).map_err(ApiError::NotFound)?;
    let task: TaskName =
        task.parse().map_err(|error| ApiError::NotFound(format!("job {key} has no task {task:?}: {error}")))?;
    let run = detail.runs.iter().rfind(|run| wanted.run.is_none_or(|number| number == run.number));
    let run = run.ok_or_else(|| ApiError::NotFound(format!("job {key} has not run yet")))?;
    let last = run.attempts.last().map_or(0, |attempt| attempt.number);
    let directory = context.paths.task(&key, run.number, wanted.attempt.unwrap_or(last), &task);
    let opened = tokio::task::spawn_blocking(move || table.open(&directory)).await;
    let file = opened.map_err(|_| ApiError::Ending)?.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => table.is_missing(&key, &task),
        _ => ApiError::Failed(format!("{} of task {task} of job {key} cannot be read: {error}", table.file())),
    })?;
    stream(send_file(file), "text/csv")
}

/// Bytes of a file that are sent at once.
const PART: u64 = 64 << 10;

/// A file as it is, part by part.
fn send_file(mut file: File) -> Body {
    let (mut flow, body) = Flow::new(logs::QUEUE);
    tokio::spawn(async move {
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let mut part = Vec::new();
                let read = file.by_ref().take(PART).read_to_end(&mut part);
                read.map(|_| (file, part))
            });
            let (same, part) = match read.await {
                Ok(Ok(read)) => read,
                Ok(Err(error)) => return flow.cut(error.to_string()),
                Err(error) => return flow.cut(error.to_string()),
            };
            if part.is_empty() {
                return flow.end();
            }
            if flow.send(part).await.is_err() {
                return;
            }
            file = same;
        }
    });
    body
}

/// As browsers and `curl -OJ` keep it.
fn as_file(mut response: Response<Body>, name: &str) -> Response<Body> {
    let name = format!("attachment; filename*=UTF-8''{}", super::wire::escape(name));
    insert(response.headers_mut(), CONTENT_DISPOSITION, &name);
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn view(context: &Context, detail: JobDetail, part: Part, usage: Vec<TaskUsage>) -> JobView {
    let is_told = detail.sight == Sight::Told;
    JobView {
        ports: if is_told { Vec::new() } else { ports(context, &detail.runs) },
        gpus: if is_told { Vec::new() } else { detail.gpus },
        usage,
        report: detail.report,
        events: detail.events.into_iter().map(Into::into).collect(),
        runs: part.views(&detail.runs),
        spec: detail.text,
        seen: detail.sight.into(),
    }
}

/// Those of the newest attempt, while it runs.
fn ports(context: &Context, runs: &[RunRecord]) -> Vec<PortView> {
    let attempt = runs.last().and_then(|run| run.attempts.last()).filter(|attempt| attempt.ended.is_none());
    let Some(attempt) = attempt else { return Vec::new() };
    let of_task = |port: ListeningPort| {
        let task = attempt.tasks.get(port.ordinal as usize).filter(|task| task.phase.end().is_none())?;
        let (task, address) = (task.name().to_string(), port.address.to_string());
        Some(PortView { task, label: port.label, address, port: port.port, published: port.published })
    };
    context.engine.listening(attempt.id).into_iter().filter_map(of_task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_files_of_the_task_s_own_directory() {
        let dir = tempfile::tempdir().unwrap();
        let task = dir.path().join("task");
        std::fs::create_dir(&task).unwrap();
        assert_eq!(Table::Metrics.open(&task).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(dir.path().join("shadow"), "secret").unwrap();
        let file = task.join("metrics.csv");
        for target in ["../shadow", &dir.path().join("shadow").display().to_string()] {
            std::os::unix::fs::symlink(target, &file).unwrap();
            assert_eq!(Table::Metrics.open(&task).unwrap_err().kind(), io::ErrorKind::NotFound, "{target}");
            std::fs::remove_file(&file).unwrap();
        }
        // Whoever opened that would wait for a writer.
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(Table::Metrics.open(&task).is_err());
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "time,cpu\n").unwrap();
        let mut text = String::new();
        Table::Metrics.open(&task).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "time,cpu\n");
    }
}
