//! Why a layer was not unpacked.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;

/// Paths are those of the archive, cut where they are absurdly long.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("cannot open the directory {path:?} to unpack into")]
    Target {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The archive is hostile or made by a broken tool.
    #[error("entry {path:?} is refused: {why}")]
    Name { path: PathBuf, why: &'static str },
    #[error("entry {path:?} lies below something that is no directory")]
    BelowFile { path: PathBuf },
    #[error("entry {path:?} is a hard link to {target:?}, which cannot be linked")]
    HardLink {
        path: PathBuf,
        target: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the content is larger than {limit} bytes, at entry {path:?}")]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("there are more than {limit} entries, at entry {path:?}")]
    TooMany { path: PathBuf, limit: u64 },
    /// Directories and white-outs are remembered until the end.
    #[error("the names of directories and white-outs take more than {limit} bytes, at entry {path:?}")]
    TooManyNames { path: PathBuf, limit: usize },
    #[error("no space is left for entry {path:?}")]
    NoSpace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the file system is read-only, at entry {path:?}")]
    ReadOnly {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Fetching the blob again may help.
    #[error("the archive is damaged near entry {near:?}: {what}")]
    Damaged {
        near: PathBuf,
        what: &'static str,
        #[source]
        source: Option<io::Error>,
    },
    #[error("entry {path:?} is not supported: {what}")]
    Unsupported { path: PathBuf, what: &'static str },
    /// The system failed to deliver the archive, whatever is in it.
    #[error("cannot read the archive near entry {near:?}")]
    Read {
        near: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {action} entry {path:?}")]
    Write {
        path: PathBuf,
        action: &'static str,
        #[source]
        source: io::Error,
    },
}

impl UnpackError {
    /// What the file system said about an entry.
    pub(super) fn on(path: &[u8], action: &'static str, errno: Errno) -> Self {
        let (path, source) = (shown(path), errno.into());
        match errno {
            Errno::ENOSPC | Errno::EDQUOT => Self::NoSpace { path, source },
            Errno::EROFS => Self::ReadOnly { path, source },
            _ => Self::Write { path, action, source },
        }
    }

    /// What the reader said: decoders report broken input as errors that are none of the system.
    pub(super) fn reading(near: &[u8], source: io::Error) -> Self {
        let near = shown(near);
        match source.raw_os_error() {
            Some(_) => Self::Read { near, source },
            None => Self::Damaged { near, what: "it cannot be decoded", source: Some(source) },
        }
    }

    pub(super) fn damaged(near: &[u8], what: &'static str) -> Self {
        Self::Damaged { near: shown(near), what, source: None }
    }
}

/// A name as errors tell it.
pub(super) fn shown(name: &[u8]) -> PathBuf {
    const LONGEST: usize = 4096;
    PathBuf::from(OsStr::from_bytes(&name[..name.len().min(LONGEST)]))
}
