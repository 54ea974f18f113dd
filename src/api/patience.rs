//! Clients over the network that have gone without a word, or take nothing of what is sent to them: each would keep a place, and
//! what waits for it, for ever. By the socket nobody is hurried: a pager may wait for its reader, who is a user of this machine
//! and has so many connections and no more.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How long a client may take nothing while something waits for it.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_secs(60);
/// Who says nothing for so long, and is sent nothing, is asked by the kernel whether they are there;
const ASKED_AFTER: Duration = Duration::from_secs(60);
/// again after this,
const ASKED_EVERY: Duration = Duration::from_secs(20);
/// so often.
const ASKED_TIMES: u32 = 3;

/// A connection over the network as it is served.
pub(super) fn over_network(stream: TcpStream) -> Impatient<TcpStream> {
    // Frames of a terminal are short, and waited for.
    let _ = stream.set_nodelay(true);
    if let Err(error) = ask_at_times(&stream) {
        tracing::debug!(%error, "the kernel does not ask whether a client is there");
    }
    Impatient::new(stream, TAKEN_WITHIN)
}

fn ask_at_times(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ASKED_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASKED_TIMES)
}

/// A stream that fails when nothing of what is written has been taken for so long. Who has nothing to write may wait for ever.
#[derive(Debug)]
pub(super) struct Impatient<S> {
    stream: S,
    patience: Duration,
    /// Runs while something waits to be taken.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stalled: None }
    }

    fn hurried<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.patience)));
        let why = || io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what is sent to it");
        stalled.as_mut().poll(context).map(|()| Err(why()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.hurried(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.hurried(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Flushing takes nothing from the stall of a write before it: a socket is always flushed.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::pin::pin;

    use http_body_util::channel::Channel;
    use hyper::body::Bytes;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Both ends of a connection of which the kernel keeps little.
    async fn narrow() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        sockopt::set_socket_send_buffer_size(&server, 4096).unwrap();
        (client, server)
    }

    /// What comes of it at once.
    async fn tried<F: Future>(future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (_client, server) = narrow().await;
        let mut stream = Impatient::new(server, Duration::from_millis(20));
        let error = loop {
            if let Err(error) = stream.write_all(&[0; 4096]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn time_runs_only_while_something_waits_to_be_taken() {
        let (mut client, server) = narrow().await;
        let mut stream = Impatient::new(server, LONG);
        assert!(tried(stream.read(&mut [0; 1])).await.is_none());
        assert!(stream.stalled.is_none(), "who waits for a request is in no hurry");
        while tried(stream.write(&[0; 4096])).await.is_some() {
            assert!(stream.stalled.is_none());
        }
        assert!(stream.stalled.is_some());
        let mut taken = vec![0; 1 << 20];
        let written = async {
            stream.write_all(&[0; 4096]).await.unwrap();
            stream.stalled.is_none()
        };
        tokio::select! {
            is_over = written => assert!(is_over, "each byte that is taken begins it anew"),
            () = async { while client.read(&mut taken).await.unwrap() > 0 {} } => panic!("the connection has ended"),
        }
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends_with_its_connection() {
        let (mut client, server) = narrow().await;
        let (ended, mut over) = tokio::sync::mpsc::channel::<()>(1);
        let service = service_fn(move |_: Request<hyper::body::Incoming>| {
            let ended = ended.clone();
            async move {
                let (mut sender, body) = Channel::<Bytes, Infallible>::new(2);
                tokio::spawn(async move {
                    while sender.send_data(Bytes::from_static(&[b'x'; 4096])).await.is_ok() {}
                    drop(ended);
                });
                Ok::<_, Infallible>(Response::new(body))
            }
        });
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let stream = TokioIo::new(Impatient::new(server, Duration::from_millis(20)));
        let served = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
        assert!(served.is_err());
        assert_eq!(over.recv().await, None, "what makes the answer has ended as well");
    }

    #[tokio::test]
    async fn who_has_gone_without_a_word_is_asked_for() {
        let (_client, server) = narrow().await;
        let served = over_network(server).stream;
        assert!(sockopt::socket_keepalive(&served).unwrap() && served.nodelay().unwrap());
        assert_eq!(sockopt::tcp_keepidle(&served).unwrap(), ASKED_AFTER);
        assert_eq!(sockopt::tcp_keepintvl(&served).unwrap(), ASKED_EVERY);
        assert_eq!(sockopt::tcp_keepcnt(&served).unwrap(), ASKED_TIMES);
    }
}
