//! Pipes and terminals that an async task reads and writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that is ours alone; it is made non-blocking.
#[derive(Debug)]
pub struct Stream(AsyncFd<OwnedFd>);

impl Stream {
    #[expect(unsafe_code, reason = "tokio cannot see that the descriptor stays open")]
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        fcntl(&descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // SAFETY: needed to wait for pipes and terminals alike; the descriptor is owned by what is registered, and nothing
        // here replaces it.
        let registered = unsafe { AsyncFd::register(descriptor) };
        Ok(Self(registered?))
    }

    /// Reads what is there, waiting for something; a call that is given up has read nothing.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.async_io(Interest::READABLE, |descriptor| Ok(nix::unistd::read(descriptor, buffer)?)).await
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.0.async_io(Interest::WRITABLE, |descriptor| Ok(nix::unistd::write(descriptor, bytes)?));
            bytes = bytes.get(written.await?..).unwrap_or_default();
        }
        Ok(())
    }

    /// Bytes that can be read now.
    pub fn waiting(&self) -> usize {
        let count = rustix::io::ioctl_fionread(self.0.get_ref()).unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
