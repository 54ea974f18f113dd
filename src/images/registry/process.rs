//! The process that speaks with a registry, as the daemon sees it: one for each question.
//!
//! What a registry says is read by nobody's rights and in a bounded memory: the daemon is root, and a registry is whatever a
//! job file names. The order goes by standard input, which stays open for as long as the answer is wanted; news come by
//! standard output, one JSON object a line, with a blob's bytes between them.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;

use super::errors::RegistryError;
use super::{Credentials, DOCUMENT_MAX, Fetched, LayerBlob, Source};
use crate::sys::process::{EndedOnDrop, ProcessEnd, SealedProgram, Streams, ended};

/// Address space of the process, bytes.
pub(super) const MEMORY_MAX: u64 = 1 << 30;
/// Longest line that it tells: both documents in base64.
const LINE_MAX: u64 = 3 * DOCUMENT_MAX;
/// Most bytes of a blob that it sends at once.
pub(super) const PIECE_MAX: usize = 1 << 20;

/// What is asked, of whom, and how.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    /// The whole name of the image.
    pub(super) image: String,
    pub(super) credentials: Option<Credentials>,
    pub(super) is_plain: bool,
    pub(super) connect: Duration,
    pub(super) stall: Duration,
    /// To trust beside the machine's, as DER.
    pub(super) certificates: Vec<Vec<u8>>,
    /// Through which the registry is reached.
    pub(super) https_proxy: Option<String>,
    pub(super) http_proxy: Option<String>,
    pub(super) errand: Errand,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Errand {
    /// What the name stands for on this machine.
    Describe,
    /// The bytes of a layer, after so many that are here.
    Blob { layer: LayerBlob, from: u64 },
}

/// One line of news. [`Self::Described`], [`Self::End`] and [`Self::Failed`] are last words.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum News {
    Described(Box<Fetched>),
    /// A blob begins: where it was asked to, or at its first byte; so many bytes are promised.
    Begins {
        is_part: bool,
        length: Option<u64>,
    },
    /// So many bytes of it follow the line.
    Bytes(usize),
    End,
    Failed(RegistryError),
}

/// A question that has been asked. Dropped, the process is gone.
pub(super) struct Asking<'a> {
    source: Source<'a>,
    /// In words, for sentences.
    what: String,
    /// Without a word for so long it hangs, or was stopped.
    silence: Duration,
    news: BufReader<pipe::Receiver>,
    process: EndedOnDrop,
    /// Says by being open that the answer is wanted.
    _orders: pipe::Sender,
}

impl<'a> Asking<'a> {
    pub(super) async fn start(
        program: &SealedProgram,
        source: Source<'a>,
        what: String,
        order: &Order,
    ) -> Result<Self, RegistryError> {
        let started = async {
            let (stdin, orders) = io::pipe()?;
            let (news, stdout) = io::pipe()?;
            let stderr = io::stderr().as_fd().try_clone_to_owned()?;
            let streams = Streams { stdin: stdin.into(), stdout: stdout.into(), stderr };
            let child = program.spawn_with_streams(vec!["registry".into()], environment(), &[], Some(streams))?;
            let process = EndedOnDrop(Arc::new(child.pidfd));
            let mut orders = pipe::Sender::from_owned_fd(OwnedFd::from(orders))?;
            let mut line = serde_json::to_vec(order)?;
            line.push(b'\n');
            orders.write_all(&line).await?;
            let news = BufReader::with_capacity(PIECE_MAX, pipe::Receiver::from_owned_fd(news.into())?);
            let silence = order.connect + 3 * order.stall;
            io::Result::Ok(Self { source, what, silence, news, process, _orders: orders })
        };
        started.await.map_err(|error| RegistryError::Setup { why: format!("the process that asks: {error}") })
    }

    /// What it tells next; its failure as an error.
    pub(super) async fn next(&mut self) -> Result<News, RegistryError> {
        let Ok(line) = tokio::time::timeout(self.silence, self.line()).await else {
            return Err(self.source.stalled(&self.what, self.silence));
        };
        let line = line.map_err(|error| self.source.broke_off(&self.what, &error.to_string()))?;
        if line.last() != Some(&b'\n') {
            return Err(self.without_a_word().await);
        }
        let told = serde_json::from_slice(&line);
        match told.map_err(|error| self.source.damaged(&self.what, error.to_string()))? {
            News::Failed(error) => Err(error),
            News::Bytes(count) if count > PIECE_MAX => Err(self.strange()),
            news => Ok(news),
        }
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        (&mut self.news).take(LINE_MAX).read_until(b'\n', &mut line).await?;
        Ok(line)
    }

    /// The bytes that [`News::Bytes`] has announced, behind those that are in `into`.
    pub(super) async fn bytes(&mut self, count: usize, into: &mut Vec<u8>) -> Result<(), RegistryError> {
        let mut announced = (&mut self.news).take(count as u64);
        let Ok(read) = tokio::time::timeout(self.silence, announced.read_to_end(into)).await else {
            return Err(self.source.stalled(&self.what, self.silence));
        };
        match read.map_err(|error| self.source.broke_off(&self.what, &error.to_string()))? {
            read if read == count => Ok(()),
            _ => Err(self.without_a_word().await),
        }
    }

    /// It said something else than was asked.
    pub(super) fn strange(&self) -> RegistryError {
        self.source.damaged(&self.what, "the process that asks has said something else than was asked")
    }

    /// It ended, and did not say why.
    async fn without_a_word(&self) -> RegistryError {
        const OUT_OF_MEMORY: i32 = nix::libc::SIGABRT;
        let end = async {
            ended(self.process.0.clone()).await?;
            self.process.0.reap()
        };
        match tokio::time::timeout(self.silence, end).await.unwrap_or(Ok(None)) {
            Ok(Some(ProcessEnd::Signalled { signal: OUT_OF_MEMORY, .. })) => {
                self.source.too_large("an answer", MEMORY_MAX)
            }
            Ok(Some(ProcessEnd::Signalled { signal, .. })) => {
                let why = format!("the process that asks was ended by signal {signal}");
                self.source.broke_off(&self.what, &why)
            }
            _ => RegistryError::Setup {
                why: "the process that asks ended without a word; the journal may tell more".into(),
            },
        }
    }
}

/// Where the machine keeps the certificates that it trusts, if it is told so.
fn environment() -> Vec<(OsString, OsString)> {
    let names = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter();
    names.filter_map(|name| Some((name.into(), std::env::var_os(name)?))).collect()
}
