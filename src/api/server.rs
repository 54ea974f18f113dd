//! The serving end: connections, who is at their other end, and what they may.
//!
//! Connections come by the unix socket, where the kernel tells the user, and over the network, where a token does. What is
//! asked for is looked up in [`routes`]: everything that can be refused without knowing more is refused here.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use super::error::ApiError;
use super::health::MountAsker;
use super::images::ImageService;
use super::logs::Growth;
use super::looks::Looks;
use super::measures::Measures;
use super::patience;
use super::peers::{Peer, asker, caller_of, check_reach, plain};
use super::query::Values;
use super::rates::Rates;
use super::router;
use super::routes::{self, Found, ROUTES, Route, Takes};
use super::sessions::Sessions;
use super::sight;
use super::storage::AskStorage;
use super::tls::Credentials;
use super::tokens::{Held, Tokens};
use crate::config::{InForce, Paths};
use crate::engine::local::LocalEngine;
use crate::gpu::Gpus;
use crate::ids::AssetName;
use crate::reconcile::{Caller, Event, Past, Request};
use crate::store::redb::Reader;
use crate::sys::process::peer_uid;

/// What an answer's body is made of.
pub(super) type Body = BoxBody<Bytes, Cut>;

/// Why a body breaks off: its connection is closed in the middle of it, so that nobody takes it for whole.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Cut(pub(super) String);

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
    /// Of logs, for `HEAD` or a range.
    pub counts: Sessions,
    pub connections: Sessions,
    pub network: Sessions,
    pub rates: Arc<Rates>,
    pub tokens: Tokens,
    pub storage: Arc<dyn AskStorage>,
    pub gpus: Arc<Gpus>,
    /// Which logs have grown.
    pub growth: Growth,
    pub measures: Arc<Measures>,
    /// What is in force.
    pub config: InForce,
    /// Why there is no mount process; nothing as long as there is one.
    pub mount: watch::Receiver<Option<String>>,
    /// Whether that answers.
    pub mount_asker: Arc<Mutex<MountAsker>>,
    /// Who looks at what is free has it meanwhile.
    pub disks: Arc<Mutex<()>>,
    /// For backups.
    pub state: Reader,
    /// What happened to all jobs.
    pub past: Past,
    /// At what workspaces let people do.
    pub looks: Looks,
}

/// How long the head of a request may take, the wait for the next one on the same connection included.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// And its body, where it is read whole.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// And an answer that is not a stream: to measure a workspace takes longest.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(120);
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Longest head, bytes; as many wait for a client that does not read.
const HEAD_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;

/// Opens the socket at `path`, replacing one that a dead daemon left.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    crate::sys::file::remove_if_there(path)?;
    let listener = UnixListener::bind(path)?;
    // Everybody may knock; what they may do is decided by who they are.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Serves connections of this machine for ever.
pub async fn serve(listener: UnixListener, context: Context) {
    let context = Arc::new(context);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(uid) = peer_uid(&stream) {
                    let context = context.clone();
                    tokio::spawn(async move {
                        let peer = Peer::Local(caller_of(uid).await);
                        connection(stream, peer, context).await;
                    });
                }
            }
            Err(error) => rest(&error).await,
        }
    }
}

/// Serves connections over the network for ever.
pub async fn serve_network(listener: TcpListener, identity: Option<Credentials>, context: Context) {
    let context = Arc::new(context);
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let stream = patience::over_network(stream);
                let (context, acceptor) = (context.clone(), identity.as_ref().map(Credentials::acceptor));
                tokio::spawn(async move {
                    let peer = Peer::Remote(plain(address));
                    let Some(acceptor) = acceptor else { return connection(stream, peer, context).await };
                    let Ok(session) = context.network.begin(peer.who()) else { return };
                    match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            drop(session);
                            connection(stream, peer, context).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "a client does not agree on encryption"),
                        Err(_) => tracing::debug!("a client was too slow to agree on encryption"),
                    }
                });
            }
            Err(error) => rest(&error).await,
        }
    }
}

async fn rest(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    // Out of descriptors: give the others time to end.
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: Peer, context: Arc<Context>) {
    let connections = match &peer {
        Peer::Local(_) => &context.connections,
        Peer::Remote(_) => &context.network,
    };
    let _session = match connections.begin(peer.who()) {
        Ok(session) => session,
        Err(reason) => return turn_away(stream, &reason).await,
    };
    // By which token its last request came: when that is revoked, whatever still goes on over the connection ends.
    let (shown, mut used) = watch::channel(None::<Held>);
    let (shown, tokens) = (Arc::new(shown), context.tokens.clone());
    let service = service_fn(move |request| {
        let (context, peer, shown) = (context.clone(), peer.clone(), shown.clone());
        async move {
            let answered = respond(request, &context, &peer, &shown).await;
            let response = answered.unwrap_or_else(|error| error.response());
            context.measures.answered(response.status().as_u16());
            Ok::<_, Infallible>(response)
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let cut_off = async {
        loop {
            let held = used.borrow_and_update().clone();
            let revoked = async {
                match &held {
                    Some(held) => tokens.revoked(held).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = revoked => return,
                // It is gone only when the connection is.
                changed = used.changed() => if changed.is_err() { std::future::pending::<()>().await },
            }
        }
    };
    tokio::select! {
        served = served => if let Err(error) = served {
            tracing::debug!(%error, "a connection broke off");
        },
        () = cut_off => tracing::debug!("a connection was cut off: its token is revoked"),
    }
}

/// Says so to whoever has too many connections; they need not listen.
async fn turn_away(mut stream: impl AsyncWrite + Unpin, reason: &str) {
    let body = format!("{}\n", serde_json::json!({ "code": "too_many_requests", "error": reason }));
    let head =
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: 1";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer.as_bytes())).await;
}

/// A request of which everything is known that can be without asking anybody.
pub(super) struct Call {
    pub(super) route: &'static Route,
    /// What the path names, in its order.
    pub(super) places: Vec<String>,
    pub(super) query: Values,
    pub(super) caller: Caller,
    /// The token by which it came.
    pub(super) token: Option<Held>,
    pub(super) request: HttpRequest<Incoming>,
}

impl Call {
    /// Most bytes of its body, where that is read whole.
    pub(super) fn body_max(&self) -> usize {
        match self.route.takes {
            Takes::Json(_, most) | Takes::Text(_, most) => most,
            Takes::Nothing | Takes::Stream(_) => 0,
        }
    }

    pub(super) fn place(&self, index: usize) -> &str {
        self.places.get(index).map(String::as_str).unwrap_or_default()
    }
}

async fn respond(
    request: HttpRequest<Incoming>,
    context: &Context,
    peer: &Peer,
    shown: &watch::Sender<Option<Held>>,
) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path();
    let (route, places) = match routes::find(request.method().as_str(), path) {
        Found::Route(index, places) => (ROUTES.get(index).ok_or(ApiError::Ending)?, places),
        Found::Other(allowed) => return Err(ApiError::Method { path: path.to_owned(), allowed }),
        Found::Nothing => return Err(ApiError::NoRoute(path.to_owned())),
        Found::Malformed => return Err(ApiError::Bad(format!("{path} is not text"))),
    };
    let (caller, token) = asker(&request, context, peer, route, shown).await?;
    for (name, value) in route.places().zip(&places) {
        let checked = value.parse::<AssetName>();
        checked.map_err(|error| ApiError::Bad(format!("{value} cannot be a {name}: {error}")))?;
    }
    let query = Values::read(request.uri().query().unwrap_or_default(), route.query).map_err(ApiError::Bad)?;
    check_reach(&caller, route, &places, &query)?;
    let call = Call { route, places, query, caller, token, request };
    if matches!(route.takes, Takes::Json(..) | Takes::Text(..)) && is_asked_first(&call.request) {
        let most = call.body_max();
        // Before it is sent.
        if call.request.body().size_hint().lower() > most as u64 {
            return Err(ApiError::TooLarge(most));
        }
    }
    if !route.is_short() {
        return router::carry_out(call, context).await;
    }
    let answered = tokio::time::timeout(ANSWER_WITHIN, router::carry_out(call, context)).await;
    answered.unwrap_or(Err(ApiError::TimedOut))
}

/// The whole body of a request that is not too long and not too slow.
pub(super) async fn whole(body: Incoming, most: usize) -> Result<Bytes, ApiError> {
    let read = tokio::time::timeout(BODY_WITHIN, Limited::new(body, most).collect()).await;
    match read.map_err(|_| ApiError::Slow)? {
        Ok(body) => {
            let body = body.to_bytes();
            if body.is_empty() { Err(ApiError::Bad("the request has no body".to_owned())) } else { Ok(body) }
        }
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::TooLarge(most)),
        Err(error) => Err(ApiError::Bad(format!("the request cannot be read: {error}"))),
    }
}

/// What a body says that is to be one object of JSON. An array of its values in their order, which serde would take as well,
/// is none, and stands in no document.
pub(super) async fn object<T: DeserializeOwned>(body: Incoming, most: usize) -> Result<T, ApiError> {
    let body = whole(body, most).await?;
    match body.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(&body).map_err(|error| ApiError::Bad(error.to_string())),
        _ => Err(ApiError::Bad("the body is to be one object of JSON, {…}".to_owned())),
    }
}

/// Whether somebody waits for a word before they send the body. They hear that as soon as it is read.
pub(super) fn is_asked_first<T>(request: &HttpRequest<T>) -> bool {
    request.headers().contains_key(EXPECT)
}

/// An answer that comes as it is made.
pub(super) fn stream(body: Body, kind: &'static str) -> Result<Response<Body>, ApiError> {
    let response = Response::builder().header(CONTENT_TYPE, kind).body(body);
    response.map_err(|error| ApiError::Bad(error.to_string()))
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
    match receiver.await.map_err(|_| ApiError::Ending)? {
        Ok(answer) => Ok(answer),
        Err(refusal) => Err(sight::named(refusal).await.into()),
    }
}

/// Runs what blocks on a thread that may.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::Ending)?
}

/// A body that is there as a whole.
pub(super) fn in_full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}").into_bytes());
    bytes.push(b'\n');
    let mut response = Response::new(in_full(bytes));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    // What it says is the caller's, and of this moment.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
