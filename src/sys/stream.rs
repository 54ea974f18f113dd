//! Pipes and terminals that an async task reads and writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
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
        self.0.async_io(Interest::READABLE, |descriptor| uninterrupted(|| nix::unistd::read(descriptor, buffer))).await
    }

    /// Reads what is there; fails with `WouldBlock` when that is nothing.
    pub fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| nix::unistd::read(self.0.get_ref(), buffer))
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let write = |descriptor: &OwnedFd| uninterrupted(|| nix::unistd::write(descriptor, bytes));
            let written = self.0.async_io(Interest::WRITABLE, write).await?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }
}

fn uninterrupted(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
