//! The serving end.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request as HttpRequest, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::images::ImageService;
use super::sessions::Sessions;
use super::storage::{self, AskStorage};
use super::wire::{
    Done, FOR_USER, Failure, ImageDetail, ImportQuery, JobList, JobView, LogQuery, NameQuery, PortView, RunView,
    unescape,
};
use super::{datasets, exec, files, gpus, logs, state, usage};
use crate::config::Paths;
use crate::engine::ListeningPort;
use crate::engine::local::LocalEngine;
use crate::gpu::Gpus;
use crate::ids::JobKey;
use crate::reconcile::{Caller, Event, JobDetail, Refusal, Request, Verb};
use crate::store::record::RunRecord;
use crate::store::redb::Copier;
use crate::sys::process::peer_uid;

/// What an answer's body is made of.
pub(super) type Body = BoxBody<Bytes, Infallible>;

/// What every connection needs.
#[derive(Clone)]
pub struct Context {
    pub paths: Paths,
    /// For what goes into a running task; everything else is the reconciler's.
    pub engine: Arc<LocalEngine>,
    pub events: mpsc::UnboundedSender<Event>,
    /// Counts rounds of the reconciler: something may have changed.
    pub rounds: watch::Receiver<u64>,
    pub images: ImageService,
    /// Of `exec` and `cp`.
    pub sessions: Sessions,
    pub storage: Arc<dyn AskStorage>,
    pub gpus: Arc<Gpus>,
    /// For backups.
    pub state: Copier,
}

/// Opens the socket at `path`, replacing one that a dead daemon left.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    crate::sys::file::remove_if_there(path)?;
    let listener = UnixListener::bind(path)?;
    // Everybody may knock; what they may do is decided by who they are.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Serves connections for ever.
pub async fn serve(listener: UnixListener, context: Context) {
    let context = Arc::new(context);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(stream, context.clone()))),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of descriptors: give the others time to end.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, context: Arc<Context>) {
    let Ok(uid) = peer_uid(&stream) else { return };
    let peer = caller_of(uid);
    let service = service_fn(move |request| {
        let (context, peer) = (context.clone(), peer.clone());
        async move {
            let answered = match in_whose_place(&request, peer) {
                Ok(caller) => answer(request, &context, caller).await,
                Err(error) => json(error.status(), &Failure { error: error.to_string() }),
            };
            Ok::<_, Infallible>(answered)
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke off");
    }
}

fn caller_of(uid: u32) -> Caller {
    Caller { uid, name: user_name(uid) }
}

/// A user by name, or by number where it has none here.
pub(super) fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

/// Root may ask for somebody else: the mount does, for whoever writes to it.
fn in_whose_place<B>(request: &HttpRequest<B>, peer: Caller) -> Result<Caller, ApiError> {
    let Some(uid) = request.headers().get(FOR_USER) else { return Ok(peer) };
    let uid = uid.to_str().ok().and_then(|uid| uid.parse().ok());
    let uid: u32 = uid.ok_or_else(|| ApiError::Bad(format!("{FOR_USER} is no number of a user")))?;
    match peer.uid {
        0 => Ok(caller_of(uid)),
        own if own == uid => Ok(peer),
        _ => Err(ApiError::Forbidden("only root may ask for somebody else".to_owned())),
    }
}

/// Why a request gets no other answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Bad(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    TooMany(String),
    /// The machine or the daemon lacks something.
    #[error("{0}")]
    Failed(String),
    #[error("only root may do that")]
    NotRoot,
    #[error("the daemon is ending")]
    Ending,
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            ApiError::Refused(Refusal::Unknown(_)) | ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::Refused(Refusal::NotYours { .. }) | ApiError::NotRoot | ApiError::Forbidden(_) => {
                StatusCode::FORBIDDEN
            }
            ApiError::Refused(Refusal::Each(each)) => {
                let mut each = each.iter().map(|refusal| ApiError::Refused(refusal.clone()).status());
                let first = each.next().unwrap_or(StatusCode::CONFLICT);
                if each.all(|other| other == first) { first } else { StatusCode::CONFLICT }
            }
            ApiError::Refused(Refusal::Store(_)) | ApiError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            ApiError::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Refused(_) | ApiError::Conflict(_) => StatusCode::CONFLICT,
            ApiError::Bad(_) => StatusCode::BAD_REQUEST,
            ApiError::Ending => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

async fn answer(request: HttpRequest<Incoming>, context: &Context, caller: Caller) -> Response<Body> {
    if request.uri().path().starts_with("/v1/images") {
        return match images(request, context, caller).await {
            Ok(response) => response,
            Err(error) => json(error.status(), &Failure { error: error.to_string() }),
        };
    }
    match route(request, context, caller).await {
        Ok(response) => response,
        Err(error) => json(error.status(), &Failure { error: error.to_string() }),
    }
}

async fn route(request: HttpRequest<Incoming>, context: &Context, caller: Caller) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path().to_owned();
    let parts: Option<Vec<String>> = path.trim_matches('/').split('/').map(unescape).collect();
    let parts = parts.ok_or_else(|| ApiError::Bad(format!("{path} is not text")))?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (request.method(), parts.as_slice()) {
        (&Method::GET, ["v1", "jobs"]) => {
            let list = ask(context, |answer| Request::List { caller, answer }).await?;
            Ok(json(StatusCode::OK, &JobList { jobs: list.jobs, strays: list.strays }))
        }
        (&Method::GET, ["v1", "jobs", workspace, job]) => {
            let key = key(workspace, job)?;
            let detail = match request.uri().query() {
                Some("known=wait") => show_when_known(context, caller, key).await?,
                _ => show(context, caller, key).await?,
            };
            Ok(json(StatusCode::OK, &view(context, detail)))
        }
        (&Method::GET, ["v1", "jobs", workspace, job, "logs"]) => {
            let query = LogQuery::decode(request.uri().query().unwrap_or_default()).map_err(ApiError::Bad)?;
            stream_logs(context, caller, key(workspace, job)?, query).await
        }
        (&Method::POST, ["v1", "jobs", workspace, job, "exec"]) => {
            exec::begin(request, context, caller, key(workspace, job)?).await
        }
        (&Method::POST, ["v1", "jobs", workspace, job, "stop"]) => {
            change(context, caller, key(workspace, job)?, Verb::Stop).await
        }
        (&Method::POST, ["v1", "jobs", workspace, job, "rerun"]) => {
            change(context, caller, key(workspace, job)?, Verb::Rerun).await
        }
        (&Method::POST, ["v1", "jobs", workspace, job, "restart"]) => {
            change(context, caller, key(workspace, job)?, Verb::Restart).await
        }
        (&Method::POST, ["v1", "jobs", workspace, job, "extend"]) => {
            let by = extension(request.uri().query().unwrap_or_default())?;
            change(context, caller, key(workspace, job)?, Verb::Extend { by }).await
        }
        (&Method::POST, ["v1", "jobs", workspace, job, "send"]) => {
            change(context, caller, key(workspace, job)?, Verb::Send).await
        }
        (&Method::DELETE, ["v1", "jobs", workspace, job, "send"]) => {
            change(context, caller, key(workspace, job)?, Verb::KeepUnsent).await
        }
        (&Method::DELETE, ["v1", "jobs", workspace, job]) => {
            let (key, with_file) = (key(workspace, job)?, request.uri().query() == Some("file=1"));
            match with_file {
                true => remove_with_file(context, caller, key).await,
                false => change(context, caller, key, Verb::Remove).await,
            }
        }
        (&Method::DELETE, ["v1", "datasets", home, name, version]) => {
            let (paths, names) = (context.paths.clone(), [home, name, version].map(|name| (*name).to_owned()));
            let removed = tokio::task::spawn_blocking(move || {
                let [home, name, version] = names;
                datasets::remove(&paths, &caller, &home, &name, &version)
            });
            let message = removed.await.map_err(|_| ApiError::Ending)??;
            context.storage.removed(home);
            Ok(json(StatusCode::OK, &Done { message }))
        }
        (&Method::GET, ["v1", "gpus"]) => Ok(json(StatusCode::OK, &gpus::list(context, caller).await?)),
        (&Method::GET, ["v1", "usage"]) => {
            let (by, since) = usage::parse(request.uri().query().unwrap_or_default())?;
            Ok(json(StatusCode::OK, &usage::list(context, &caller, by, since).await?))
        }
        (&Method::GET, ["v1", "workspaces"]) => Ok(json(StatusCode::OK, &storage::list(context, &caller).await?)),
        (&Method::GET, ["v1", "workspaces", name]) => {
            Ok(json(StatusCode::OK, &storage::detail(context, &caller, name).await?))
        }
        (&Method::GET, ["v1", "state"]) => stream(state::copy(context, &caller)?),
        (&Method::POST, ["v1", "shutdown"]) => shutdown(context, &caller),
        _ => Err(ApiError::NotFound(format!("there is nothing at {path}"))),
    }
}

async fn images(request: HttpRequest<Incoming>, context: &Context, caller: Caller) -> Result<Response<Body>, ApiError> {
    let service = &context.images;
    let (query, rest) = NameQuery::decode(request.uri().query().unwrap_or_default()).map_err(ApiError::Bad)?;
    let message = |message| json(StatusCode::OK, &Done { message });
    let (method, path) = (request.method().clone(), request.uri().path().trim_end_matches('/').to_owned());
    match (&method, path.as_str()) {
        (&Method::GET, "/v1/images") => Ok(json(StatusCode::OK, &service.list(caller, query).await?)),
        (&Method::DELETE, "/v1/images") => service.remove(caller, query).await.map(message),
        (&Method::GET, "/v1/images/show") => {
            let (image, record) = service.show(caller, query).await?;
            Ok(json(StatusCode::OK, &ImageDetail { image, record }))
        }
        (&Method::POST, "/v1/images/tag") => {
            let new = rest.get("new").cloned().ok_or_else(|| ApiError::Bad("the new name is missing".to_owned()))?;
            service.tag(caller, query, new).await.map(message)
        }
        (&Method::POST, "/v1/images/pull") => stream(service.pull(&caller, query)?),
        (&Method::POST, "/v1/images/import") => {
            let query = ImportQuery { name: query, tag: rest.get("tag").cloned(), format: rest.get("format").cloned() };
            stream(service.import(caller, query, request.into_body()).await?)
        }
        (&Method::POST, "/v1/images/prune") => {
            let seconds = rest.get("unused_s").map(|text| text.parse()).transpose();
            let seconds = seconds.map_err(|_| ApiError::Bad("unused_s is not a number".to_owned()))?;
            Ok(json(StatusCode::OK, &service.prune(caller, seconds.map(Duration::from_secs)).await?))
        }
        _ => Err(ApiError::NotFound(format!("there is nothing at {path}"))),
    }
}

/// An answer that comes line by line.
fn stream(body: Body) -> Result<Response<Body>, ApiError> {
    let response = Response::builder().header("content-type", "application/x-ndjson").body(body);
    response.map_err(|error| ApiError::Bad(error.to_string()))
}

fn key(workspace: &str, job: &str) -> Result<JobKey, ApiError> {
    let parsed = workspace.parse().and_then(|workspace| Ok(JobKey::new(workspace, job.parse()?)));
    parsed.map_err(|error| ApiError::Bad(format!("{workspace}/{job} cannot be a job: {error}")))
}

/// Sends a request to the reconciler and waits for its answer.
pub(super) async fn ask<T: Send + 'static>(
    context: &Context,
    request: impl FnOnce(crate::reconcile::Answer<T>) -> Request,
) -> Result<T, ApiError> {
    let (sender, receiver) = oneshot::channel();
    // Whoever asked may have gone away meanwhile.
    let answer = Box::new(move |result| drop(sender.send(result)));
    context.events.send(Event::Request(request(answer))).map_err(|_| ApiError::Ending)?;
    Ok(receiver.await.map_err(|_| ApiError::Ending)??)
}

pub(super) async fn show(context: &Context, caller: Caller, key: JobKey) -> Result<JobDetail, ApiError> {
    ask(context, |answer| Request::Show { caller, key, answer }).await
}

/// How long it may take until a file that was just dropped is a job: files are looked at every 20 s where the kernel tells nothing.
const COMES: Duration = Duration::from_secs(30);

/// As [`show`], but of a job that is not there yet it waits until it is.
async fn show_when_known(context: &Context, caller: Caller, key: JobKey) -> Result<JobDetail, ApiError> {
    let mut rounds = context.rounds.clone();
    let known = async {
        loop {
            rounds.mark_unchanged();
            match show(context, caller.clone(), key.clone()).await {
                Err(ApiError::Refused(Refusal::Unknown(_))) => {
                    rounds.changed().await.map_err(|_| ApiError::Ending)?;
                }
                shown => return shown,
            }
        }
    };
    match tokio::time::timeout(COMES, known).await {
        Ok(shown) => shown,
        Err(_) => show(context, caller.clone(), key.clone()).await,
    }
}

async fn change(context: &Context, caller: Caller, key: JobKey, verb: Verb) -> Result<Response<Body>, ApiError> {
    let message = ask(context, |answer| Request::Change { caller, key, verb, answer }).await?;
    Ok(json(StatusCode::OK, &Done { message }))
}

/// `by_ms=N`.
fn extension(query: &str) -> Result<Duration, ApiError> {
    let ms = query.strip_prefix("by_ms=").and_then(|ms| ms.parse().ok());
    ms.map(Duration::from_millis).ok_or_else(|| ApiError::Bad("by_ms, a number of milliseconds, is missing".to_owned()))
}

/// How long the daemon may take to see that a file is gone.
const FILE_GONE: Duration = Duration::from_secs(10);

/// Removes the file of a job, or of a sweep, that is over, and then the record, once the file is known to be gone.
async fn remove_with_file(context: &Context, caller: Caller, key: JobKey) -> Result<Response<Body>, ApiError> {
    if is_over(context, &caller, &key).await? {
        let (paths, by, of) = (context.paths.clone(), caller.clone(), key.clone());
        let removed = tokio::task::spawn_blocking(move || files::remove(&paths, &by, &of));
        removed.await.map_err(|_| ApiError::Ending)??;
    }
    let mut rounds = context.rounds.clone();
    let retried = async {
        loop {
            rounds.mark_unchanged();
            match change(context, caller.clone(), key.clone(), Verb::Remove).await {
                Err(ApiError::Refused(refusal)) if waits_for_file(&refusal) => {
                    rounds.changed().await.map_err(|_| ApiError::Ending)?;
                }
                done => return done,
            }
        }
    };
    let slow = || ApiError::Failed(format!("the file of {key} is removed, its record not yet: `trainyard rm {key}`"));
    tokio::time::timeout(FILE_GONE, retried).await.unwrap_or_else(|_| Err(slow()))
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
    let detail = match show(context, caller.clone(), key.clone()).await {
        Err(ApiError::Refused(Refusal::Sweep { jobs, .. })) => {
            for job in jobs {
                let job = job.parse().map_err(|_| ApiError::NotFound(format!("there is no job {job}")))?;
                if show(context, caller.clone(), job).await?.is_open {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        detail => detail?,
    };
    if let Some(sweep) = detail.report.sweep.first().and_then(|_| key.job.as_str().split_once('~')) {
        let sweep = sweep.0;
        let message =
            format!("job {key} is one of a sweep, whose file makes others as well; `trainyard rm --file {sweep}`");
        return Err(ApiError::Conflict(message));
    }
    Ok(!detail.is_open)
}

fn shutdown(context: &Context, caller: &Caller) -> Result<Response<Body>, ApiError> {
    if caller.uid != 0 {
        return Err(ApiError::NotRoot);
    }
    tracing::info!(caller = %caller.name, "shutting down on request");
    context.events.send(Event::Shutdown).map_err(|_| ApiError::Ending)?;
    Ok(json(StatusCode::ACCEPTED, &Done { message: "stopping all jobs".to_owned() }))
}

async fn stream_logs(
    context: &Context,
    caller: Caller,
    key: JobKey,
    query: LogQuery,
) -> Result<Response<Body>, ApiError> {
    let detail = show(context, caller.clone(), key.clone()).await?;
    logs::check(&key, &detail, &query).map_err(ApiError::Bad)?;
    let (sender, channel) = http_body_util::channel::Channel::<Bytes, Infallible>::new(16);
    let own = context.clone();
    let fetch = move || {
        let (context, caller, key) = (own.clone(), caller.clone(), key.clone());
        async move { show(&context, caller, key).await.ok() }
    };
    let follower = logs::Follower::new(context.paths.clone(), query, context.rounds.clone());
    tokio::spawn(follower.run(sender, fetch));
    stream(channel.boxed())
}

fn view(context: &Context, detail: JobDetail) -> JobView {
    JobView {
        ports: ports(context, &detail.runs),
        gpus: detail.gpus,
        report: detail.report,
        events: detail.events.into_iter().map(Into::into).collect(),
        runs: detail.runs.iter().map(RunView::from).collect(),
        spec: detail.text,
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

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}").into_bytes());
    bytes.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(bytes)).boxed());
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}
