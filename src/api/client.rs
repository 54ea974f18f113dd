//! The asking end: what the command line uses.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::UnixStream;

use super::frames::{FrameReader, PROTOCOL};
use super::gpus::GpuList;
use super::jobs::EVENTS_MAX;
use super::list;
use super::listed::Listed;
use super::params::PAGE_MAX;
use super::query::NUMBER_MAX;
use super::storage::{WorkspaceDetail, WorkspaceView};
use super::tokens::{NewToken, TokenRequest, TokenView};
use super::usage::{By, UsageView};
use super::wire::{
    Checked, Done, EventQuery, EventView, ExecRequest, FOR_USER, Failure, HappeningView, ImageDetail, ImageStep,
    ImageView, ImportQuery, JobList, JobQuery, JobView, LogLine, LogQuery, NameQuery, Page, escape,
};
use crate::ids::{HomeName, JobKey};
use crate::images::Pruned;
use crate::report::{DrainReport, JobLine};
use crate::status::StopHow;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "the daemon does not answer at {path}; start it with `systemctl start trainyard`, or with `trainyard --root DIR daemon`, whose directory is named with --root"
    )]
    NotRunning {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the connection to the daemon broke off: what came is not whole; the daemon has ended, or its journal tells why"
    )]
    Broken(#[from] hyper::Error),
    #[error("{message}")]
    Refused { status: u16, message: String },
    /// What was followed is not theirs to see any more.
    #[error("{0}")]
    Revoked(String),
    #[error("the daemon answered something unexpected")]
    Unexpected(#[from] serde_json::Error),
    #[error("cannot read the archive")]
    Source(#[source] io::Error),
    #[error("cannot write what the daemon sends")]
    Target(#[source] io::Error),
    #[error("cannot make the request")]
    Request(#[from] hyper::http::Error),
}

impl ClientError {
    /// Nobody answers, or who does is about to go, or too busy (503).
    pub fn is_away(&self) -> bool {
        matches!(self, Self::NotRunning { .. } | Self::Broken(_) | Self::Refused { status: 503, .. })
    }
}

/// The connection of an `exec`, for [`super::frames`].
#[derive(Debug)]
pub struct ExecConnection {
    pub from_daemon: FrameReader<ReadHalf<TokioIo<Upgraded>>>,
    pub to_daemon: WriteHalf<TokioIo<Upgraded>>,
}

/// A client of the daemon at one socket; each call is a connection.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    /// In whose place it asks.
    user: Option<u32>,
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), user: None }
    }

    /// For root, which asks in the place of the user `uid`.
    pub fn for_user(socket: &Path, uid: u32) -> Self {
        Self { socket: socket.to_owned(), user: Some(uid) }
    }

    async fn call(&self, method: Method, path: &str) -> Result<Response<Incoming>, ClientError> {
        self.call_with(method, path, Empty::new().map_err(|never| match never {}).boxed()).await
    }

    async fn call_with(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<Response<Incoming>, ClientError> {
        let response = self.send(Request::builder().method(method).uri(path).body(body)?).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Self::refused(response).await?)
    }

    /// Sends a request over a connection of its own.
    async fn send(&self, mut request: Request<RequestBody>) -> Result<Response<Incoming>, ClientError> {
        let not_running = |source| ClientError::NotRunning { path: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(not_running)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The connection ends with the answer, or with what it was upgraded to; its errors show there.
        tokio::spawn(connection.with_upgrades());
        request.headers_mut().insert(HOST, HeaderValue::from_static("trainyard"));
        if let Some(uid) = self.user {
            request.headers_mut().insert(FOR_USER, HeaderValue::from(uid));
        }
        Ok(sender.send_request(request).await?)
    }

    async fn refused(response: Response<Incoming>) -> Result<ClientError, ClientError> {
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let failure: Result<Failure, _> = serde_json::from_slice(&bytes);
        let message = failure.map_or_else(|_| String::from_utf8_lossy(&bytes).into_owned(), |failure| failure.error);
        Ok(ClientError::Refused { status, message })
    }

    async fn read<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, ClientError> {
        let response = self.call(method, path).await?;
        Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
    }

    /// All jobs that are as is asked for, page by page, each of `limit` jobs.
    pub async fn jobs(&self, query: &JobQuery) -> Result<JobList, ClientError> {
        self.all_jobs("/v1/jobs", query).await
    }

    /// The same, a line each.
    pub async fn job_lines(&self, query: &JobQuery) -> Result<JobList<JobLine>, ClientError> {
        self.all_jobs("/v1/jobs/lines", query).await
    }

    async fn all_jobs<J: Listed + DeserializeOwned>(
        &self,
        list: &str,
        query: &JobQuery,
    ) -> Result<JobList<J>, ClientError> {
        let mut query = JobQuery { limit: Some(query.limit.unwrap_or(PAGE_MAX)), ..query.clone() };
        let page = async |query: &JobQuery| self.read(Method::GET, &format!("{list}?{}", query.encode())).await;
        let mut all: JobList<J> = page(&query).await?;
        // Pages are of one list only where nothing changes its order meanwhile.
        let order = query.sort.clone().filter(|order| all.next.is_some() && moves(order));
        if order.is_some() {
            query.sort = Some("name".to_owned());
            all = page(&query).await?;
        }
        while let Some(next) = all.next.take() {
            query.after = Some(next);
            let more: JobList<J> = page(&query).await?;
            all.jobs.extend(more.jobs);
            all.next = more.next;
        }
        if let Some(order) = order {
            all.jobs = list::sorted_by(all.jobs, &order, crate::sys::now());
        }
        Ok(all)
    }

    /// All of another list, page by page.
    async fn all<T: DeserializeOwned>(&self, list: &str, query: &str) -> Result<Vec<T>, ClientError> {
        let begin = format!("/v1/{list}?{query}{}limit={PAGE_MAX}", if query.is_empty() { "" } else { "&" });
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page: Page<T> = self.read(Method::GET, &format!("{begin}{after}")).await?;
            all.extend(page.items);
            let Some(next) = page.next else { return Ok(all) };
            after = format!("&after={}", escape(&next));
        }
    }

    pub async fn job(&self, key: &JobKey) -> Result<JobView, ClientError> {
        self.read(Method::GET, &path(key, "")).await
    }

    /// With this run alone, however old it is.
    pub async fn job_with_run(&self, key: &JobKey, run: u32) -> Result<JobView, ClientError> {
        self.read(Method::GET, &path(key, &format!("?run={run}"))).await
    }

    /// All events of a job, part by part.
    pub async fn job_events(&self, key: &JobKey) -> Result<Vec<EventView>, ClientError> {
        let mut all: Vec<EventView> = Vec::new();
        loop {
            let from = all.last().map_or(0, |event| event.number.saturating_add(1));
            let part: JobView = self.read(Method::GET, &path(key, &format!("?events_from={from}"))).await?;
            let is_last = part.events.len() < EVENTS_MAX;
            all.extend(part.events);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Of a job whose file was just dropped: waits until the daemon has read it, for 30 s at most.
    pub async fn job_when_known(&self, key: &JobKey) -> Result<JobView, ClientError> {
        self.read(Method::GET, &path(key, "?known=wait")).await
    }

    pub async fn gpus(&self) -> Result<GpuList, ClientError> {
        self.read(Method::GET, "/v1/gpus").await
    }

    pub async fn workspaces(&self) -> Result<Vec<WorkspaceView>, ClientError> {
        self.all("workspaces", "").await
    }

    pub async fn workspace(&self, name: &HomeName) -> Result<WorkspaceDetail, ClientError> {
        self.read(Method::GET, &format!("/v1/workspaces/{}", escape(name.as_str()))).await
    }

    /// What has been used since a time, ms since 1970, who has used most first. It is asked for by name: what runs uses more from page to page.
    pub async fn usage(&self, by: By, workspace: Option<&str>, since: u64) -> Result<Vec<UsageView>, ClientError> {
        let of = workspace.map(|workspace| format!("&workspace={}", escape(workspace))).unwrap_or_default();
        let used = self.all("usage", &format!("by={}&since={since}&sort=name{of}", by.name())).await?;
        Ok(list::sorted(used))
    }

    pub async fn stop(&self, key: &JobKey, how: StopHow) -> Result<Done, ClientError> {
        let now = if how == StopHow::AtOnce { "?now=1" } else { "" };
        self.read(Method::POST, &path(key, &format!("/stop{now}"))).await
    }

    pub async fn restart(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::POST, &path(key, "/restart")).await
    }

    pub async fn extend(&self, key: &JobKey, by: Duration) -> Result<Done, ClientError> {
        // What is more than any number that may be said is refused as too long, in words.
        let by_ms = by.as_millis().min(u128::from(NUMBER_MAX));
        self.read(Method::POST, &path(key, &format!("/extend?by_ms={by_ms}"))).await
    }

    pub async fn send_output(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::POST, &path(key, "/send")).await
    }

    pub async fn keep_unsent(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::DELETE, &path(key, "/send")).await
    }

    pub async fn rerun(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::POST, &path(key, "/rerun")).await
    }

    /// With its file in `jobs.d`, or the record alone.
    pub async fn remove(&self, key: &JobKey, with_file: bool) -> Result<Done, ClientError> {
        self.read(Method::DELETE, &path(key, if with_file { "?file=1" } else { "" })).await
    }

    /// What [`Self::remove`] would do, or is refused; nothing is done.
    pub async fn would_remove(&self, key: &JobKey, with_file: bool) -> Result<Done, ClientError> {
        let file = if with_file { "&file=1" } else { "" };
        self.read(Method::DELETE, &path(key, &format!("?dry_run=1{file}"))).await
    }

    /// Writes the whole state, as it is now, to `out`; `store::copy` reads it and tells whether all of it came.
    pub async fn copy_state(&self, out: &mut impl io::Write) -> Result<(), ClientError> {
        let mut body = self.call(Method::GET, "/v1/state").await?.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            out.write_all(&data).map_err(ClientError::Target)?;
        }
        Ok(())
    }

    pub async fn drain(&self) -> Result<DrainReport, ClientError> {
        self.read(Method::POST, "/v1/drain").await
    }

    /// Whether jobs may start, and what runs.
    pub async fn drain_report(&self) -> Result<DrainReport, ClientError> {
        self.read(Method::GET, "/v1/drain").await
    }

    /// Comes when nothing runs any more.
    pub async fn drained(&self) -> Result<DrainReport, ClientError> {
        self.read(Method::GET, "/v1/drain?wait=1").await
    }

    pub async fn undo_drain(&self) -> Result<DrainReport, ClientError> {
        self.read(Method::DELETE, "/v1/drain").await
    }

    pub async fn tokens(&self) -> Result<Vec<TokenView>, ClientError> {
        self.all("tokens", "").await
    }

    pub async fn token_new(&self, wanted: &TokenRequest) -> Result<NewToken, ClientError> {
        let body = Full::new(Bytes::from(serde_json::to_vec(wanted)?)).map_err(|never| match never {});
        let response = self.call_with(Method::POST, "/v1/tokens", body.boxed()).await?;
        Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
    }

    /// Of the one who asks, or of `user`.
    pub async fn token_remove(&self, name: &str, user: Option<&str>) -> Result<Done, ClientError> {
        let whose = user.map(|user| format!("?user={}", escape(user))).unwrap_or_default();
        self.read(Method::DELETE, &format!("/v1/tokens/{}{whose}", escape(name))).await
    }

    /// Calls `each` with every event that is asked for, until there are no more or it returns false.
    pub async fn events(&self, query: &EventQuery, each: impl FnMut(HappeningView) -> bool) -> Result<(), ClientError> {
        let response = self.call(Method::GET, &format!("/v1/events?{}", query.encode())).await?;
        lines(response, each).await
    }

    /// Comes when something has happened behind a serial number that the caller may see.
    pub async fn happened_behind(&self, serial: u64) -> Result<(), ClientError> {
        let query = EventQuery { after: serial, follow: true, ..EventQuery::default() };
        self.events(&query, |_| false).await
    }

    /// What the daemon would say of a job, of which the text is all.
    pub async fn check(&self, key: &JobKey, text: &str) -> Result<Checked, ClientError> {
        let [workspace, job] = [key.workspace.as_str(), key.job.as_str()].map(escape);
        let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed();
        let address = format!("/v1/check?workspace={workspace}&job={job}&whole=1");
        let response = self.call_with(Method::POST, &address, body).await?;
        Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
    }

    pub async fn shutdown(&self) -> Result<Done, ClientError> {
        self.read(Method::POST, "/v1/shutdown").await
    }

    /// Starts a command in a task, or a copy.
    pub async fn exec(&self, key: &JobKey, request: &ExecRequest) -> Result<ExecConnection, ClientError> {
        let body = Full::new(Bytes::from(serde_json::to_vec(request)?)).map_err(|never| match never {});
        let request = Request::builder()
            .method(Method::POST)
            .uri(path(key, "/exec"))
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, PROTOCOL)
            .body(body.boxed())?;
        let response = self.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Self::refused(response).await?);
        }
        let (from_daemon, to_daemon) = tokio::io::split(TokioIo::new(hyper::upgrade::on(response).await?));
        Ok(ExecConnection { from_daemon: FrameReader::new(from_daemon), to_daemon })
    }

    /// Calls `each` with every line of the logs, until there are no more or it returns false.
    pub async fn logs(
        &self,
        key: &JobKey,
        query: &LogQuery,
        each: impl FnMut(LogLine) -> bool,
    ) -> Result<(), ClientError> {
        let response = self.call(Method::GET, &path(key, &format!("/logs?{}", query.encode()))).await?;
        lines(response, each).await
    }

    pub async fn images(&self, workspace: Option<&str>) -> Result<Vec<ImageView>, ClientError> {
        let query = NameQuery { workspace: workspace.map(str::to_owned), ..NameQuery::default() };
        self.all("images", &query.encode()).await
    }

    pub async fn image(&self, query: &NameQuery) -> Result<ImageDetail, ClientError> {
        self.read(Method::GET, &format!("/v1/images/show?{}", query.encode())).await
    }

    pub async fn image_tag(&self, query: &NameQuery, new: &str) -> Result<Done, ClientError> {
        self.read(Method::POST, &format!("/v1/images/tag?{}&new={}", query.encode(), escape(new))).await
    }

    pub async fn image_remove(&self, query: &NameQuery) -> Result<Done, ClientError> {
        self.read(Method::DELETE, &format!("/v1/images?{}", query.encode())).await
    }

    /// Removes a published version of a dataset of workspace `home`, or of what all workspaces see.
    pub async fn dataset_remove(&self, home: &str, name: &str, version: &str) -> Result<Done, ClientError> {
        let [home, name, version] = [home, name, version].map(escape);
        self.read(Method::DELETE, &format!("/v1/datasets/{home}/{name}/{version}")).await
    }

    /// Removes the model that a run has left.
    pub async fn model_remove(&self, key: &JobKey, run: u32) -> Result<Done, ClientError> {
        let [workspace, job] = [key.workspace.as_str(), key.job.as_str()].map(escape);
        self.read(Method::DELETE, &format!("/v1/models/{workspace}/{job}/{run}")).await
    }

    pub async fn image_prune(&self, unused: Option<Duration>) -> Result<Pruned, ClientError> {
        let unused = unused.map_or(String::new(), |unused| format!("?unused_s={}", unused.as_secs()));
        self.read(Method::POST, &format!("/v1/images/prune{unused}")).await
    }

    /// Calls `each` with every step of the pull.
    pub async fn image_pull(&self, query: &NameQuery, mut each: impl FnMut(ImageStep)) -> Result<(), ClientError> {
        let response = self.call(Method::POST, &format!("/v1/images/pull?{}", query.encode())).await?;
        let each = |step| {
            each(step);
            true
        };
        lines(response, each).await
    }

    /// Sends what `write` writes as an archive, and calls `each` with every step of the import.
    pub async fn image_import(
        &self,
        query: &ImportQuery,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()> + Send + 'static,
        mut each: impl FnMut(ImageStep),
    ) -> Result<(), ClientError> {
        let (sender, body) = http_body_util::channel::Channel::<Bytes, io::Error>::new(8);
        let handle = tokio::runtime::Handle::current();
        let sending = std::thread::spawn(move || send(sender, &handle, write));
        let part = |key: &str, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!("&{key}={}", escape(value)))
        };
        let (tag, format) = (part("tag", &query.tag), part("format", &query.format));
        let address = format!("/v1/images/import?{}{tag}{format}", query.name.encode());
        let answered = self.call_with(Method::POST, &address, body.boxed()).await;
        // A broken archive breaks the request off: its own reason says more.
        if let Ok(Err(source)) = tokio::task::spawn_blocking(move || sending.join().unwrap_or(Ok(()))).await {
            return Err(ClientError::Source(source));
        }
        let each = |step| {
            each(step);
            true
        };
        lines(answered?, each).await
    }
}

/// Whether a stream goes on with what will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    Yes,
    No,
}

/// What a request carries.
type RequestBody = http_body_util::combinators::BoxBody<Bytes, io::Error>;

/// Writes into the body of a request, from a thread that may wait.
struct BodyWriter<'a> {
    sender: http_body_util::channel::Sender<Bytes, io::Error>,
    handle: &'a tokio::runtime::Handle,
}

impl io::Write for BodyWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.handle.block_on(self.sender.send_data(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn send(
    sender: http_body_util::channel::Sender<Bytes, io::Error>,
    handle: &tokio::runtime::Handle,
    write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = io::BufWriter::with_capacity(128 << 10, BodyWriter { sender, handle });
    match write(&mut writer).and_then(|()| io::Write::flush(&mut writer)) {
        // The daemon has refused before all was sent; it says why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let (writer, _) = writer.into_parts();
            writer.sender.abort(io::Error::new(error.kind(), error.to_string()));
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Calls `each` with every line of an answer, until there are no more or it returns false.
async fn lines<T: DeserializeOwned>(
    response: Response<Incoming>,
    mut each: impl FnMut(T) -> bool,
) -> Result<(), ClientError> {
    let mut body = response.into_body();
    let mut begun = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        begun.extend_from_slice(&data);
        let complete = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = begun.split_off(complete);
        for line in begun.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if !each(serde_json::from_slice(line).map_err(|error| last_word(line, error))?) {
                return Ok(());
            }
        }
        begun = rest;
    }
    Ok(())
}

/// A line that is none of those that were asked for says why no more come.
fn last_word(line: &[u8], error: serde_json::Error) -> ClientError {
    match serde_json::from_slice::<Failure>(line) {
        Ok(failure) => ClientError::Revoked(failure.error),
        Err(_) => ClientError::Unexpected(error),
    }
}

/// Whether what jobs are sorted by may change from page to page.
fn moves(order: &str) -> bool {
    ["state", "duration"].contains(&order.trim_start_matches('-'))
}

fn path(key: &JobKey, rest: &str) -> String {
    format!("/v1/jobs/{}/{}{rest}", escape(key.workspace.as_str()), escape(key.job.as_str()))
}
