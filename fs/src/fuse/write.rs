//! A request to write, carried out.

use fuser::{FileHandle, INodeNo, OpenFlags, ReplyWrite, WriteFlags};
use nix::fcntl::OFlag;
use tracing::trace_span;

use super::Served;
use super::answer;
use super::convert::access;
use crate::error::Result;
use crate::tree::Tree;

/// A request to write, but for its data.
pub(super) struct Write {
    pub(super) uid: u32,
    pub(super) ino: INodeNo,
    pub(super) fh: FileHandle,
    pub(super) offset: u64,
    pub(super) write_flags: WriteFlags,
    pub(super) flags: OpenFlags,
}

impl Write {
    pub(super) fn work<T: Tree>(&self, served: &Served<T>, data: &[u8], reply: ReplyWrite) -> impl FnOnce() + use<T> {
        let Self { ino, fh, offset, .. } = *self;
        let _span = trace_span!("write", ino = ino.0, fh = fh.0, offset, size = data.len()).entered();
        let written = match served.ops.tell(fh.0, self.uid, data) {
            Ok(None) => self.write(served, data),
            told => told.map(|count| count.unwrap_or(data.len())),
        };
        answer::written(reply, written)
    }

    fn write<T: Tree>(&self, served: &Served<T>, data: &[u8]) -> Result<usize> {
        let (fh, offset) = (self.fh.0, self.offset);
        let is_cache = self.write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let count = match self.flags.0 & OFlag::O_APPEND.bits() != 0 && !is_cache {
            true => served.ops.append(fh, offset, data)?,
            false => served.ops.write(fh, offset, data)?,
        };
        if self.write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            served.ops.clear_set_id(fh)?;
        }
        // Past its cache the kernel leaves that to us; by way of it, it asks for it.
        if access(self.flags.0).is_synchronous() && !is_cache && served.ops.goes_past_cache(fh)? {
            served.ops.fsync(fh)?;
        }
        Ok(count)
    }
}

impl<T: Tree> Served<T> {
    /// What was changed by other calls than `write`, of which the kernel does not tell whether set-id bits are to go: they do, but
    /// for root, as on other file systems.
    pub(super) fn written_by(&self, uid: u32, fh: FileHandle) -> Result<()> {
        if uid == 0 { Ok(()) } else { self.ops.clear_set_id(fh.0) }
    }
}
