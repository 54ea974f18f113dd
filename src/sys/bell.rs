//! A bell: whoever rings it says that there is something to look at, no more, and waits for nobody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::file::remove_if_there;

/// Readable when it has been rung.
#[derive(Debug)]
pub struct Bell(UnixDatagram);

impl Bell {
    /// In place of an older one at `path`; root may ring it.
    pub fn hang(path: &Path) -> io::Result<Self> {
        remove_if_there(path)?;
        let socket = UnixDatagram::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Takes note of it, however often it has been rung.
    pub fn quiet(&self) {
        while self.0.recv(&mut [0]).is_ok() {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Rings the bell at `path`. Where none hangs, nobody looks; where it has been rung enough, somebody will.
pub fn ring(path: &Path) {
    let rung = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(&[0], path)
    });
    if let Err(error) = rung {
        tracing::debug!(path = %path.display(), %error, "a bell was not rung");
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn nobody_who_rings_waits_and_all_rings_are_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bell");
        ring(&path);
        let bell = Bell::hang(&path).unwrap();
        let has_rung = || poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], 0_u8).unwrap() == 1;
        assert!(!has_rung());
        // More than the queue holds.
        (0..10_000).for_each(|_| ring(&path));
        assert!(has_rung());
        bell.quiet();
        assert!(!has_rung());
        drop(bell);
        let again = Bell::hang(&path).unwrap();
        ring(&path);
        assert_eq!(poll(&mut [PollFd::new(again.as_fd(), PollFlags::POLLIN)], 0_u8), Ok(1));
    }
}
