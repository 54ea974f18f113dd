//! Every way in which an operation fails, and the errno that the kernel gets for it.
//!
//! The table in [`Error::errno`] has no `_`: a new variant does not compile until its errno is chosen.

use std::io;

use nix::errno::Errno;

use crate::tree::BadPath;

pub(crate) type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no such entry")]
    NotFound,
    /// The kernel looks the name up again on `ESTALE`, so a replaced file costs a round, not a failure.
    #[error("inode {ino} is no longer what its name leads to")]
    Stale { ino: u64 },
    #[error("the place is read-only")]
    ReadOnly,
    #[error("the place is in use")]
    Busy,
    #[error("it would take more of the disk than its account may")]
    Quota,
    #[error("no open file has the handle {fh}")]
    BadHandle { fh: u64 },
    #[error("the entries that the process before has kept make no tree")]
    Kept,
    #[error("an open generated file takes no such operation")]
    Generated,
    #[error("only a regular file can be opened")]
    NotRegular,
    #[error("name not allowed")]
    Name(#[source] BadPath),
    #[error("flags not allowed")]
    Flags,
    #[error("offset or length out of range")]
    Range,
    #[error("{call} failed")]
    Host {
        call: &'static str,
        #[source]
        source: Errno,
    },
    #[error("{call} failed")]
    Io {
        call: &'static str,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::ENOENT,
            Self::Stale { .. } => Errno::ESTALE,
            Self::ReadOnly => Errno::EROFS,
            Self::Busy => Errno::EBUSY,
            Self::Quota => Errno::EDQUOT,
            Self::BadHandle { .. } => Errno::EBADF,
            Self::Kept => Errno::EINVAL,
            Self::Generated => Errno::EOPNOTSUPP,
            Self::NotRegular => Errno::ENXIO,
            Self::Name(_) | Self::Flags | Self::Range => Errno::EINVAL,
            Self::Host { source, .. } => *source,
            Self::Io { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        }
    }

    /// For `map_err` on a call of `nix`.
    pub(crate) fn host(call: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::Host { call, source }
    }

    /// For `map_err` on a call of `std` or of the user's tree.
    pub(crate) fn io(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { call, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_an_errno_is_eio() {
        let odd = Error::io("read_at")(io::Error::other("odd"));
        assert_eq!(odd.errno(), Errno::EIO);
        let full = Error::io("pwrite")(io::Error::from_raw_os_error(28));
        assert_eq!(full.errno(), Errno::ENOSPC);
    }
}
