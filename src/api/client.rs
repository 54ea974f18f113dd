//! The asking end: what the command line uses.

use std::io;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::UnixStream;

use super::frames::{FrameReader, PROTOCOL};
use super::wire::{Done, ExecRequest, Failure, JobList, JobView, LogLine, LogQuery, escape};
use crate::ids::JobKey;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "the daemon does not answer at {path}; start it with `trainyard --root DIR daemon`, and name its directory with --root"
    )]
    NotRunning {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the connection to the daemon broke off")]
    Broken(#[from] hyper::Error),
    #[error("{message}")]
    Refused { status: u16, message: String },
    #[error("the daemon answered something unexpected")]
    Unexpected(#[from] serde_json::Error),
    #[error("cannot make the request")]
    Request(#[from] hyper::http::Error),
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
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    async fn call(&self, method: Method, path: &str) -> Result<Response<Incoming>, ClientError> {
        let not_running = |source| ClientError::NotRunning { path: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(not_running)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The connection ends with the answer; its errors show there.
        tokio::spawn(connection);
        let request =
            Request::builder().method(method).uri(path).header("host", "trainyard").body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Self::refused(response).await?)
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

    pub async fn jobs(&self) -> Result<JobList, ClientError> {
        self.read(Method::GET, "/v1/jobs").await
    }

    pub async fn job(&self, key: &JobKey) -> Result<JobView, ClientError> {
        self.read(Method::GET, &path(key, "")).await
    }

    pub async fn stop(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::POST, &path(key, "/stop")).await
    }

    pub async fn rerun(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::POST, &path(key, "/rerun")).await
    }

    pub async fn remove(&self, key: &JobKey) -> Result<Done, ClientError> {
        self.read(Method::DELETE, &path(key, "")).await
    }

    pub async fn shutdown(&self) -> Result<Done, ClientError> {
        self.read(Method::POST, "/v1/shutdown").await
    }

    /// Starts a command in a task, or a copy.
    pub async fn exec(&self, key: &JobKey, request: &ExecRequest) -> Result<ExecConnection, ClientError> {
        let not_running = |source| ClientError::NotRunning { path: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(not_running)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::builder()
            .method(Method::POST)
            .uri(path(key, "/exec"))
            .header("host", "trainyard")
            .header("connection", "Upgrade")
            .header("upgrade", PROTOCOL)
            .body(Full::new(Bytes::from(serde_json::to_vec(request)?)))?;
        let response = sender.send_request(request).await?;
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
        mut each: impl FnMut(LogLine) -> bool,
    ) -> Result<(), ClientError> {
        let response = self.call(Method::GET, &path(key, &format!("/logs?{}", query.encode()))).await?;
        let mut body = response.into_body();
        let mut begun = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            begun.extend_from_slice(&data);
            let complete = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let rest = begun.split_off(complete);
            for line in begun.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                if !each(serde_json::from_slice(line)?) {
                    return Ok(());
                }
            }
            begun = rest;
        }
        Ok(())
    }
}

fn path(key: &JobKey, rest: &str) -> String {
    format!("/v1/jobs/{}/{}{rest}", escape(key.workspace.as_str()), escape(key.job.as_str()))
}
