//! The whole state as it is at one instant, for backups.

use std::io::{self, BufWriter, Write};

use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use tokio::runtime::Handle;

use super::error::ApiError;
use super::server::{Body, Context, Cut};
use crate::reconcile::Caller;

/// What is sent at once, bytes.
const CHUNK: usize = 64 << 10;

/// Root alone: it holds every job's environment. A copy that breaks off lacks its last line, and whoever reads it sees that.
pub(super) fn copy(context: &Context, caller: &Caller) -> Result<Body, ApiError> {
    if caller.uid != 0 {
        return Err(ApiError::NotRoot);
    }
    let (sender, channel) = Channel::<Bytes, Cut>::new(4);
    let (state, handle) = (context.state.clone(), Handle::current());
    tokio::task::spawn_blocking(move || {
        let mut out = BufWriter::with_capacity(CHUNK, Sending { sender, handle });
        if let Err(error) = state.copy(&mut out) {
            tracing::warn!(%error, "a copy of the state for a backup was not finished");
        }
    });
    Ok(channel.boxed())
}

/// Waits for the reader: no more than a few chunks are held.
struct Sending {
    sender: Sender<Bytes, Cut>,
    handle: Handle,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.handle.block_on(self.sender.send_data(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
