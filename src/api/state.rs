//! The whole state as it is at one instant, for backups.

use std::io::{self, BufWriter, Write};

use hyper::body::Bytes;
use tokio::runtime::Handle;

use super::error::ApiError;
use super::flow::Flow;
use super::server::{Body, Context};
use crate::reconcile::Caller;
use crate::store::copy::CopyError;

/// What is sent at once, bytes.
const CHUNK: usize = 64 << 10;

/// Root alone: it holds every job's environment. A copy that breaks off ends with its connection cut, as whoever reads it sees; it
/// lacks its last line besides.
pub(super) fn copy(context: &Context, caller: &Caller) -> Result<Body, ApiError> {
    if caller.uid != 0 {
        return Err(ApiError::NotRoot);
    }
    let (flow, body) = Flow::new(4);
    let (state, handle) = (context.state.clone(), Handle::current());
    tokio::task::spawn_blocking(move || send(flow, handle, |out| state.copy(out)));
    Ok(body)
}

/// What could not be copied wholly must not look as if it were.
fn send(flow: Flow, handle: Handle, copy: impl FnOnce(&mut BufWriter<Sending>) -> Result<(), CopyError>) {
    let mut out = BufWriter::with_capacity(CHUNK, Sending { flow, handle });
    let copied = copy(&mut out).and_then(|()| out.flush().map_err(CopyError::Write));
    let (Sending { flow, .. }, _) = out.into_parts();
    match copied {
        Ok(()) => flow.end(),
        Err(error) => {
            tracing::warn!(%error, "a copy of the state for a backup was not finished");
            flow.cut(error.to_string());
        }
    }
}

/// Waits for the reader: no more than a few chunks are held.
struct Sending {
    flow: Flow,
    handle: Handle,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.handle.block_on(self.flow.send(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::tests::told;
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_copy_of_the_state_that_fails_midway_does_not_look_whole() {
        let handle = Handle::current();
        let copied = |fails: bool| {
            let handle = handle.clone();
            move |flow: Flow| {
                let copying = std::thread::spawn(move || {
                    send(flow, handle, |out| {
                        out.write_all(b"{\"job\": 1}\n").map_err(CopyError::Write)?;
                        if fails { Err(CopyError::Read(io::Error::other("the disk is gone"))) } else { Ok(()) }
                    });
                });
                copying.join().unwrap();
            }
        };
        let (whole, is_whole) = told(copied(false)).await;
        assert!(is_whole && whole.contains("job"), "{whole}");
        assert!(!told(copied(true)).await.1);
    }
}
