//! Opening, reading and writing files.
//!
//! Bytes go to and come from the real file of the handle, wherever its name went meanwhile. A write that comes here asks
//! the rule again: a file whose path became read-only while it was open takes no more bytes, those of a
//! shared mapping included (they fail at `msync`). What the kernel writes by itself is in no place that becomes read-only
//! meanwhile: the rename that would make it so is refused.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::stat::FileStat;
use nix::unistd::{Whence, lseek};
use rustix::fs::copy_file_range;

use super::charges::{allocated, size};
use super::{Entry, Ops, Size, check_unlinked, lock};
use crate::attr::Attr;
use crate::error::{Error, Result};
use crate::host::{Made, Pin};
use crate::inode::Identity;
use crate::kept::{Inherited, KeptFile, KeptSource};
use crate::tree::{Content, RelPath, Rule, Tree};
use crate::usage::most_of_write;

/// So much is copied at a request, bytes: who copies more asks again, and others get their turn.
const COPY_MAX: usize = 32 << 20;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// Access mode and `O_APPEND`, `O_EXCL`, `O_TRUNC`, `O_DSYNC`; others are ignored.
    pub flags: OFlag,
}

impl Access {
    pub(crate) fn only_writes(self) -> bool {
        self.flags & OFlag::O_ACCMODE == OFlag::O_WRONLY
    }

    /// Whether what is so opened can be written to.
    fn has_write_mode(self) -> bool {
        self.flags & OFlag::O_ACCMODE != OFlag::O_RDONLY
    }

    /// What is written is to be on disk when that is answered.
    pub(crate) fn is_synchronous(self) -> bool {
        self.flags.contains(OFlag::O_DSYNC)
    }

    pub(crate) fn writes(self) -> bool {
        self.has_write_mode() || self.flags.contains(OFlag::O_TRUNC)
    }
}

/// What was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    Stored {
        fh: u64,
        size: Size,
    },
    /// Stored, and opened for reading in a read-only place: the kernel may read it by itself.
    Frozen {
        fh: u64,
    },
    Generated {
        fh: u64,
    },
}

pub(super) struct OpenFile {
    pub(super) ino: u64,
    source: Source,
    /// Open to be written.
    is_written: bool,
    /// The directory in which it was made by this open, to write alone.
    pub(super) made_in: Option<u64>,
    /// Up to where it was read last.
    read_to: AtomicU64,
    /// The kernel sends here what is written, past its cache.
    pub(super) past_cache: AtomicBool,
    /// The kernel reads or writes by itself.
    pub(super) past_us: AtomicBool,
}

enum Source {
    Stored {
        file: File,
        /// The same file open for appending. Separate, because the kernel's own write-back of a mapping
        /// goes to an offset even in a file opened with `O_APPEND`.
        append: Option<File>,
    },
    Generated(Box<dyn Content>),
    /// As another process has left it: opened when it is asked for.
    Left {
        place: Vec<u8>,
    },
}

impl OpenFile {
    fn new(ino: u64, source: Source) -> Self {
        Self {
            ino,
            source,
            is_written: false,
            made_in: None,
            read_to: AtomicU64::new(0),
            past_cache: AtomicBool::new(false),
            past_us: AtomicBool::new(false),
        }
    }

    pub(super) fn stored(&self) -> Result<&File> {
        match &self.source {
            Source::Stored { file, .. } => Ok(file),
            Source::Generated(_) | Source::Left { .. } => Err(Error::Generated),
        }
    }

    pub(super) fn keep(&self) -> KeptFile {
        let source = match &self.source {
            Source::Stored { file, append } => {
                KeptSource::Stored { file: file.as_raw_fd(), append: append.as_ref().map(AsRawFd::as_raw_fd) }
            }
            Source::Generated(content) => KeptSource::Generated { place: content.place() },
            Source::Left { place } => KeptSource::Generated { place: place.clone() },
        };
        KeptFile {
            ino: self.ino,
            read_to: self.read_to.load(Ordering::Relaxed),
            source,
            past_cache: self.past_cache.load(Ordering::Relaxed),
        }
    }
}

impl<T: Tree> Ops<T> {
    pub(crate) fn open(&self, ino: u64, access: Access) -> Result<Opened> {
        if lock(&self.nodes).table.identity(ino) == Some(Identity::Generated) {
            return self.open_generated(ino, access);
        }
        self.check_names(ino)?;
        let rule = self.check_open(ino, access)?;
        let mut pin = self.pin_even_nameless(ino)?;
        if rule.is_none() && access.writes() {
            pin = check_unlinked(pin)?;
        }
        let fh = self.keep_stored(ino, &pin, access)?;
        if access.flags.contains(OFlag::O_TRUNC) {
            self.charged(ino, &pin, |_| 0, || pin.set_size(0))?;
        }
        match rule {
            Some(Rule::ReadOnly) => Ok(Opened::Frozen { fh }),
            Some(Rule::ReadWrite | Rule::Hidden) | None => Ok(Opened::Stored { fh, size: Size::of(pin.attr().size) }),
        }
    }

    /// Makes `name` in `parent` and opens it. If it exists by now, the kernel has not checked the caller's
    /// rights on it, so it is told to look again unless the caller wanted a new file only.
    pub(crate) fn create(&self, parent: u64, name: &OsStr, access: Access, made: &Made) -> Result<(Entry, u64)> {
        let again = |error: Error| match error.errno() {
            Errno::EEXIST if !access.flags.contains(OFlag::O_EXCL) => Error::Stale { ino: parent },
            _ => error,
        };
        let make = |directory: &Pin| directory.create_file(name, access.flags & OFlag::O_ACCMODE, made);
        let (_names_stay, directory) = self.names_stay(parent, Some(name))?;
        let path = directory.join(name).map_err(Error::Name)?;
        let made = self.make(parent, name, make).map_err(again)?;
        self.keep_created((parent, name), &path, access, made).inspect_err(|_| {
            drop(self.pin_while_names_stay(parent).and_then(|(directory, _)| directory.remove_file(name)));
        })
    }

    /// Fills `buf` from `offset` as far as the file goes and returns how far.
    pub(crate) fn read(&self, fh: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let open = self.file(fh)?;
        let count = read_fully(offset, buf, |offset, buf| match &open.source {
            Source::Stored { file, .. } => file.read_at(buf, offset),
            Source::Generated(content) => content.read_at(offset, buf),
            Source::Left { .. } => Err(Errno::EBADF.into()),
        })?;
        open.read_to.store(offset + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// `None` where there is something to read, or its end; else the file of the disk that changes when there is.
    pub(crate) fn waits_for(&self, fh: u64) -> Result<Option<PathBuf>> {
        let open = self.file(fh)?;
        let Source::Generated(content) = &open.source else { return Ok(None) };
        let Some(path) = content.grows_with() else { return Ok(None) };
        let size = content.metadata().map_err(Error::io("metadata"))?.size;
        // A log that was cut is read again from its beginning.
        Ok((size == open.read_to.load(Ordering::Relaxed)).then_some(path))
    }

    /// Writes at `offset`, whatever the file was opened for. Returns how many bytes: fewer where the disk is full.
    pub(crate) fn write(&self, fh: u64, offset: u64, data: &[u8]) -> Result<usize> {
        let open = self.writable_file(fh)?;
        let file = open.stored()?;
        let most = |stat: &FileStat| most_of_write(size(stat), allocated(stat), offset, data.len() as u64);
        let write = || write_fully(data, |done, rest| file.write_at(rest, offset + done)).map_err(Error::io("pwrite"));
        self.charged(open.ino, file, most, write)
    }

    /// Writes at the true end, also where the file has grown behind the mount. A file that was made
    /// appending only after it was opened (`F_SETFL`) is written at `offset`, the end the kernel knows.
    pub(crate) fn append(&self, fh: u64, offset: u64, data: &[u8]) -> Result<usize> {
        let open = self.writable_file(fh)?;
        match &open.source {
            Source::Stored { append: Some(file), .. } => {
                let most = |stat: &FileStat| most_of_write(size(stat), allocated(stat), size(stat), data.len() as u64);
                self.charged(open.ino, file, most, || {
                    write_fully(data, |done, rest| file.write_at(rest, offset + done)).map_err(Error::io("append"))
                })
            }
            _ => self.write(fh, offset, data),
        }
    }

    /// What writing by an ordinary user does to set-id bits, which the kernel leaves to us.
    pub(crate) fn clear_set_id(&self, fh: u64) -> Result<()> {
        Pin::of_file(self.writable_file(fh)?.stored()?)?.clear_set_id()
    }

    /// Copies within the backing file system, which may share the blocks. Returns how many bytes.
    pub(crate) fn copy(&self, from: (u64, u64), to: (u64, u64), length: u64) -> Result<usize> {
        let (source, target) = (self.file(from.0)?, self.writable_file(to.0)?);
        let (mut read, mut written) = (from.1, to.1);
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(COPY_MAX);
        let (source, file) = (source.stored()?, target.stored()?);
        let length = length.min(usize::try_from(left(source, from.1)?).unwrap_or(usize::MAX));
        let most = |stat: &FileStat| most_of_write(size(stat), allocated(stat), to.1, length as u64);
        self.charged(target.ino, file, most, || {
            let copied = copy_file_range(source, Some(&mut read), file, Some(&mut written), length);
            copied.map_err(|errno| Error::host("copy_file_range")(Errno::from_raw(errno.raw_os_error())))
        })
    }

    pub(crate) fn goes_past_cache(&self, fh: u64) -> Result<bool> {
        Ok(self.file(fh)?.past_cache.load(Ordering::Relaxed))
    }

    pub(crate) fn fsync(&self, fh: u64) -> Result<()> {
        match &self.file(fh)?.source {
            Source::Stored { file, .. } => file.sync_all().map_err(Error::io("fsync")),
            Source::Generated(_) | Source::Left { .. } => Ok(()),
        }
    }

    pub(crate) fn fallocate(&self, fh: u64, mode: i32, offset: u64, length: u64) -> Result<()> {
        let open = self.writable_file(fh)?;
        let mode = FallocateFlags::from_bits(mode).ok_or(Error::Generated)?;
        let file = open.stored()?;
        // Those make room, or holes.
        let takes_none = FallocateFlags::FALLOC_FL_PUNCH_HOLE
            | FallocateFlags::FALLOC_FL_COLLAPSE_RANGE
            | FallocateFlags::FALLOC_FL_INSERT_RANGE;
        let most = |stat: &FileStat| match mode.intersects(takes_none) {
            true => 0,
            false => most_of_write(size(stat), allocated(stat), offset, length),
        };
        let (from, count) = (signed(offset)?, signed(length)?);
        if !mode.intersects(takes_none) && mode.contains(FallocateFlags::FALLOC_FL_KEEP_SIZE) {
            self.check_within(open.ino, file, offset.saturating_add(length))?;
        }
        self.charged(open.ino, file, most, || fallocate(file, mode, from, count).map_err(Error::host("fallocate")))
    }

    /// Where there is an account, nothing lies beyond a file's end: by what a file takes and its size nobody could tell any
    /// more whether it has holes, which is what filling them is paid by.
    fn check_within(&self, ino: u64, file: &File, end: u64) -> Result<()> {
        let size = file.metadata().map_err(Error::io("metadata"))?.len();
        match end > size && self.has_account(ino) {
            true => Err(Error::host("fallocate")(Errno::EOPNOTSUPP)),
            false => Ok(()),
        }
    }

    /// The next data or hole; other moves are the kernel's own.
    pub(crate) fn lseek(&self, fh: u64, offset: i64, whence: Whence) -> Result<i64> {
        let open = self.file(fh)?;
        let Source::Generated(content) = &open.source else {
            return lseek(open.stored()?, offset, whence).map_err(Error::host("lseek"));
        };
        // Data from end to end.
        let size = content.metadata().map_err(Error::io("metadata"))?.size;
        match (whence, u64::try_from(offset)) {
            (_, Ok(at)) if at >= size => Err(Error::host("lseek")(Errno::ENXIO)),
            (Whence::SeekHole, Ok(_)) => signed(size),
            (_, Ok(_)) => Ok(offset),
            (_, Err(_)) => Err(Error::host("lseek")(Errno::ENXIO)),
        }
    }

    pub(crate) fn release(&self, fh: u64) {
        let Some(open) = lock(&self.files).remove(fh) else { return };
        let (ino, was_written) = (open.ino, open.is_written);
        self.learn_size(&open);
        // Who pays for it may have come to do so while it was written past us.
        if was_written && open.past_us.load(Ordering::Relaxed) {
            self.count_again(ino);
        }
        // Some file systems take back then what they have allocated ahead.
        drop(open);
        self.settle_late(ino);
        if was_written {
            self.writers.one_less();
        }
    }

    /// What was open as `kept`. Generated files are not looked for yet: one that lies on a disk that hangs is not to hold up the
    /// others.
    pub(super) fn open_kept(kept: KeptFile, inherited: &mut Inherited) -> Result<OpenFile> {
        let ino = kept.ino;
        let mut take = |number| inherited.take(number).map(File::from).map_err(Error::io("inherit"));
        let source = match kept.source {
            KeptSource::Stored { file, append } => {
                Source::Stored { file: take(file)?, append: append.map(take).transpose()? }
            }
            KeptSource::Generated { place } => Source::Left { place },
        };
        let is_written = matches!(&source, Source::Stored { file, .. } if is_open_to_write(file));
        let (read_to, past_cache) = (kept.read_to.into(), kept.past_cache.into());
        Ok(OpenFile { is_written, read_to, past_cache, ..OpenFile::new(ino, source) })
    }

    /// Those that somebody has open to be written.
    pub(super) fn written(&self) -> Vec<u64> {
        lock(&self.files).all(|open| open.is_written.then_some(open.ino))
    }

    /// Open files that another process has left and nobody has asked for yet.
    pub(crate) fn left(&self) -> Vec<u64> {
        lock(&self.files).numbers(|open| matches!(open.source, Source::Left { .. }))
    }

    /// Opens one of them, before what it shows changes, unless it has been closed meanwhile.
    pub(crate) fn open_left(&self, fh: u64) -> Result<()> {
        match self.file(fh) {
            Err(Error::BadHandle { .. }) => Ok(()),
            opened => opened.map(drop),
        }
    }

    /// What the generated file `ino` was open as, for whoever has it open.
    fn content_again(&self, ino: u64, place: &[u8]) -> Result<Box<dyn Content>> {
        let again = self.tree.open_again(&self.path(ino)?, place);
        again.map_err(Error::io("open_again"))?.ok_or(Error::Stale { ino })
    }

    /// Attributes of an open generated file that is no longer reached by its name.
    pub(super) fn attr_of_generated(&self, ino: u64) -> Option<Result<Attr>> {
        let open = lock(&self.files).find(|open| open.ino == ino)?;
        let metadata = match &open.source {
            Source::Stored { .. } => return None,
            Source::Generated(content) => content.metadata().map_err(Error::io("metadata")),
            Source::Left { place } => {
                self.content_again(ino, place).and_then(|content| content.metadata().map_err(Error::io("metadata")))
            }
        };
        Some(metadata.map(|metadata| Attr::of_generated(&metadata)))
    }

    pub(super) fn pin_of_open(&self, ino: u64) -> Option<Result<Pin>> {
        let open = lock(&self.files).find(|open| open.ino == ino)?;
        Some(open.stored().and_then(Pin::of_file))
    }

    /// Refuses what the rule of `ino` does not allow, and returns that rule. What has lost its name has none.
    fn check_open(&self, ino: u64, access: Access) -> Result<Option<Rule>> {
        let Ok((_names_stay, path)) = self.names_stay(ino, None) else {
            return if access.writes() { self.check_not_frozen(ino).map(|()| None) } else { Ok(None) };
        };
        let rule = self.tree.rule(&path);
        if rule == Rule::Hidden {
            return Err(Error::NotFound);
        }
        if access.writes() {
            self.check_writable_by_all(ino)?;
        }
        Ok(Some(rule))
    }

    fn open_generated(&self, ino: u64, access: Access) -> Result<Opened> {
        let content = self.content(ino)?;
        if access.writes() && !content.is_writable() {
            return Err(Error::ReadOnly);
        }
        let fh = self.keep_open(OpenFile::new(ino, Source::Generated(content)));
        Ok(Opened::Generated { fh })
    }

    /// What the generated file `ino` holds now.
    pub(super) fn content(&self, ino: u64) -> Result<Box<dyn Content>> {
        let path = self.path(ino)?;
        self.check_visible(&path)?;
        let opened = self.tree.open_generated(&path);
        opened.map_err(Error::io("open_generated"))?.ok_or(Error::Stale { ino })
    }

    /// What the user `uid` writes to a generated file; `None` where the file is stored.
    pub(crate) fn tell(&self, fh: u64, uid: u32, data: &[u8]) -> Result<Option<usize>> {
        let open = self.file(fh)?;
        match &open.source {
            Source::Stored { .. } | Source::Left { .. } => Ok(None),
            Source::Generated(content) => {
                content.write(uid, data).map_err(Error::io("write"))?;
                Ok(Some(data.len()))
            }
        }
    }

    fn keep_stored(&self, ino: u64, pin: &Pin, access: Access) -> Result<u64> {
        let file = pin.open(access.flags & OFlag::O_ACCMODE)?;
        let append = append_file(pin, access)?;
        let open = OpenFile::new(ino, Source::Stored { file, append });
        Ok(self.keep_open(OpenFile { is_written: access.has_write_mode(), ..open }))
    }

    fn keep_created(
        &self,
        (parent, name): (u64, &OsStr),
        path: &RelPath,
        access: Access,
        (file, is): (File, (Identity, Attr)),
    ) -> Result<(Entry, u64)> {
        let append = match appends(access) {
            true => append_file(&Pin::of_file(&file)?, access)?,
            false => None,
        };
        let entry = self.found(parent, path, name, is)?;
        let open = OpenFile::new(entry.ino, Source::Stored { file, append });
        let made_in = access.only_writes().then_some(parent);
        let fh = self.keep_open(OpenFile { is_written: access.has_write_mode(), made_in, ..open });
        Ok((entry, fh))
    }

    fn keep_open(&self, open: OpenFile) -> u64 {
        lock(&self.files).insert(Arc::new(open))
    }

    pub(super) fn file(&self, fh: u64) -> Result<Arc<OpenFile>> {
        let open = lock(&self.files).get(fh).ok_or(Error::BadHandle { fh })?;
        let Source::Left { place } = &open.source else { return Ok(open) };
        let read_to = open.read_to.load(Ordering::Relaxed).into();
        let source = Source::Generated(self.content_again(open.ino, place)?);
        // Somebody else may have opened it meanwhile, and read on.
        let is_left = |open: &OpenFile| matches!(open.source, Source::Left { .. });
        let again = OpenFile { read_to, ..OpenFile::new(open.ino, source) };
        let opened = lock(&self.files).replace(fh, is_left, Arc::new(again));
        opened.ok_or(Error::BadHandle { fh })
    }

    /// The open file, unless its path is read-only by now. What has no path any more may be written.
    fn writable_file(&self, fh: u64) -> Result<Arc<OpenFile>> {
        let open = self.file(fh)?;
        self.check_not_frozen(open.ino)?;
        let paths = self.paths(open.ino).unwrap_or_default();
        if paths.iter().any(|path| self.tree.rule(path) != Rule::ReadWrite) {
            // What has no name by now may be written.
            let Ok(_names_stay) = self.names_stay(open.ino, None) else { return Ok(open) };
            self.check_writable_by_all(open.ino)?;
        }
        Ok(open)
    }
}

fn is_open_to_write(file: &File) -> bool {
    let flags = fcntl(file, FcntlArg::F_GETFL);
    flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE.bits() != OFlag::O_RDONLY.bits())
}

fn appends(access: Access) -> bool {
    access.writes() && access.flags.contains(OFlag::O_APPEND)
}

fn append_file(pin: &Pin, access: Access) -> Result<Option<File>> {
    if !appends(access) {
        return Ok(None);
    }
    pin.open(OFlag::O_WRONLY | OFlag::O_APPEND).map(Some)
}

/// The kernel takes a short answer for the end of the file, so short reads are continued.
fn read_fully(offset: u64, buf: &mut [u8], read: impl Fn(u64, &mut [u8]) -> std::io::Result<usize>) -> Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match read(offset + filled as u64, rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) if filled > 0 => break,
            Err(error) => return Err(Error::io("read")(error)),
        }
    }
    Ok(filled.min(buf.len()))
}

/// What was written before an error is told instead of it: the next write meets it again.
pub(super) fn write_fully(data: &[u8], write: impl Fn(u64, &[u8]) -> std::io::Result<usize>) -> std::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match write(done as u64, rest) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done.min(data.len()))
}

/// Bytes of a file from `offset` on.
fn left(file: &File, offset: u64) -> Result<u64> {
    Ok(file.metadata().map_err(Error::io("fstat"))?.len().saturating_sub(offset))
}

fn signed(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| Error::Range)
}
