//! Replies: results of `ops` in the shape the kernel gets.

use std::sync::Arc;

use fuser::{
    BackingId, Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, ReplyXattr,
};
use tracing::debug;

use super::convert::file_attr;
use crate::error::{Error, Result};
use crate::kept::Agreed;
use crate::ops::{Access, Entry};

/// What is left of a request when its work is done: to tell the kernel.
pub(super) trait Answer {
    fn give(self);
}

/// It was given with the work.
impl Answer for () {
    fn give(self) {}
}

impl<F: FnOnce()> Answer for F {
    fn give(self) {
        self();
    }
}

/// Numbers are never used twice, so their generation never changes.
pub(super) const GENERATION: Generation = Generation(0);

pub(super) fn entry(reply: ReplyEntry, result: Result<Entry>) -> impl FnOnce() {
    move || match result {
        Ok(entry) => reply.entry(&entry.ttl, &file_attr(&entry), GENERATION),
        Err(error) => reply.error(refused(&error)),
    }
}

pub(super) fn attr(reply: ReplyAttr, result: Result<Entry>) -> impl FnOnce() {
    move || match result {
        Ok(entry) => reply.attr(&entry.ttl, &file_attr(&entry)),
        Err(error) => reply.error(refused(&error)),
    }
}

pub(super) fn empty(reply: ReplyEmpty, result: Result<()>) -> impl FnOnce() {
    move || match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(refused(&error)),
    }
}

/// So many bytes, of a request of 1 MiB or, where it copies, 1 GiB at most.
pub(super) fn written(reply: ReplyWrite, result: Result<usize>) -> impl FnOnce() {
    move || match result {
        Ok(count) => reply.written(u32::try_from(count).unwrap_or(u32::MAX)),
        Err(error) => reply.error(refused(&error)),
    }
}

/// A value or list; only its length where `size` is zero.
pub(super) fn xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>>) {
    match result {
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(refused(&error)),
    }
}

/// What becomes of the pages that the kernel has of a file when it is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    /// They stay good: a change behind the mount shows in the attributes, which are asked for again in time.
    Kept,
    /// They may hold what could not be written back, because the place has become read-only meanwhile.
    Dropped,
}

/// How what is read and written by one who has opened a file goes.
#[derive(Debug)]
pub(super) enum Route {
    /// By the kernel's cache.
    Cached,
    /// The kernel does it by itself, by this backing number.
    Passed(Arc<BackingId>),
    /// What is written comes here, past the cache, since others let the kernel read or write by itself.
    ToUs(Arc<BackingId>),
}

/// A stored file. One opened only for reading has nothing to write back, nor has what the kernel writes by itself, so its `close`
/// needs no word of ours.
pub(super) fn opened(reply: ReplyOpen, fh: u64, access: Access, route: Route, cache: Cache) {
    let fh = FileHandle(fh);
    let kept = if cache == Cache::Kept { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
    match route {
        Route::Cached if access.writes() => reply.opened(fh, kept),
        Route::Cached => reply.opened(fh, FopenFlags::FOPEN_NOFLUSH | kept),
        Route::Passed(id) => reply.opened_passthrough(fh, FopenFlags::FOPEN_NOFLUSH, &id),
        Route::ToUs(id) => reply.opened_passthrough(fh, FopenFlags::FOPEN_DIRECT_IO, &id),
    }
}

/// A generated file is read past the cache, because it grows.
pub(super) fn opened_generated(reply: ReplyOpen, fh: u64) {
    let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
    reply.opened(FileHandle(fh), flags);
}

/// Who only writes to what he has made does so past the cache, as each write comes here anyway: the bytes are copied once less, and
/// the kernel does not ask for `security.capability` before the first one. Not so who opens what is there: others may have mapped
/// it, and see by the cache at once what is written. Before Linux 6.6 who maps it later would not see what is written so.
pub(super) fn goes_past_cache(access: Access, agreed: Agreed) -> bool {
    // Linux 6.9.
    access.only_writes() && agreed.passthrough
}

/// What was made, how it is read and written, and whether past the cache.
pub(super) fn created(reply: ReplyCreate, result: Result<(Entry, u64, bool, Route)>) -> impl FnOnce() {
    move || match result {
        Ok((entry, fh, past_cache, route)) => made(reply, &entry, fh, past_cache, route),
        Err(error) => reply.error(refused(&error)),
    }
}

fn made(reply: ReplyCreate, entry: &Entry, fh: u64, past_cache: bool, route: Route) {
    let (attr, fh) = (file_attr(entry), FileHandle(fh));
    let flags = if past_cache { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
    match route {
        Route::Cached => reply.created(&entry.ttl, &attr, GENERATION, fh, flags),
        Route::Passed(id) => {
            reply.created_passthrough(&entry.ttl, &attr, GENERATION, fh, FopenFlags::FOPEN_NOFLUSH, &id);
        }
        Route::ToUs(id) => {
            reply.created_passthrough(&entry.ttl, &attr, GENERATION, fh, FopenFlags::FOPEN_DIRECT_IO, &id);
        }
    }
}

pub(super) fn refused(error: &Error) -> Errno {
    let errno = error.errno();
    debug!(%errno, %error, "refused");
    Errno::from_i32(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;

    #[test]
    fn only_writers_go_past_the_cache_and_only_where_mappings_of_others_see_it() {
        let agreed = |passthrough| Agreed { passthrough, ..Agreed::default() };
        let goes = |flags, newer| goes_past_cache(Access { flags }, agreed(newer));
        assert!(goes(OFlag::O_WRONLY, true) && !goes(OFlag::O_RDWR, true));
        assert!(!goes(OFlag::O_WRONLY, false), "an older kernel");
    }
}
