//! An answer that comes as it is made: nobody must take a part of it for the whole.
//!
//! Whoever makes it says when it is whole. However else that ends, by an error, a panic or the end of the daemon, the body breaks off and
//! its connection is closed in the middle of it: `curl` ends with 18, and our clients say that the connection broke off.

use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;

use super::error::ApiError;
use super::server::{Body, Cut};

/// The end at which an answer is made.
pub(super) struct Flow {
    /// Absent once it has ended.
    sender: Option<Sender<Bytes, Cut>>,
}

/// Nobody takes the answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NobodyListens;

impl Flow {
    /// With the body that is sent; so many parts wait for a client that does not read.
    pub(super) fn new(parts: usize) -> (Self, Body) {
        let (sender, channel) = Channel::<Bytes, Cut>::new(parts);
        (Self { sender: Some(sender) }, channel.boxed())
    }

    /// Waits for the reader. What is empty asks whether there is one.
    pub(super) async fn send(&mut self, bytes: impl Into<Bytes>) -> Result<(), NobodyListens> {
        let sender = self.sender.as_mut().ok_or(NobodyListens)?;
        sender.send_data(bytes.into()).await.map_err(|_| NobodyListens)
    }

    /// The answer is whole.
    pub(super) fn end(mut self) {
        self.sender = None;
    }

    /// It is lines of JSON, and the last one says why no more come.
    pub(super) async fn end_by(mut self, why: &ApiError) {
        if self.send(why.last_line()).await.is_ok() {
            self.end();
        }
    }

    /// It breaks off, for the journal of whoever serves it.
    pub(super) fn cut(mut self, reason: String) {
        if let Some(sender) = self.sender.take() {
            sender.abort(Cut(reason));
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.abort(Cut("it was given up before its end".to_owned()));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use hyper::Response;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What a client gets of an answer of which `{}\n` was sent and that then ends by `ended`, and whether it looks whole.
    pub(in crate::api) async fn told(ended: impl FnOnce(Flow)) -> (String, bool) {
        let (mut flow, body) = Flow::new(2);
        flow.send("{}\n").await.unwrap();
        let answer = Mutex::new(Some(Response::new(body)));
        let (mut client, server) = tokio::io::duplex(4096);
        let service = service_fn(|_| std::future::ready(answer.lock().unwrap().take().ok_or("asked twice")));
        let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut told = String::new();
        let reads = async {
            while !told.contains("{}\n") {
                told.push(client.read_u8().await.unwrap().into());
            }
            ended(flow);
            client.read_to_string(&mut told).await.unwrap();
        };
        let (served, ()) = tokio::join!(served, reads);
        let is_whole = told.ends_with("\r\n0\r\n\r\n");
        assert_eq!(served.is_ok(), is_whole, "{told}");
        (told, is_whole)
    }

    #[tokio::test]
    async fn only_an_answer_that_was_said_to_be_whole_looks_whole() {
        assert!(told(Flow::end).await.1);
        assert!(!told(drop).await.1);
        assert!(!told(|flow| flow.cut("the disk is gone".to_owned())).await.1);
        let panics = |flow: Flow| {
            drop(
                std::thread::spawn(move || {
                    let _flow = flow;
                    panic!("as it should")
                })
                .join(),
            )
        };
        assert!(!told(panics).await.1);
    }
}
