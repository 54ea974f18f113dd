//! The kernel's requests: each handler is one span, one call of `ops`, one reply. Long because fuser's
//! trait is one flat list of them that cannot be divided.
//!
//! What is negotiated and why (measured in the project's facts on FUSE):
//! - `AUTO_INVAL_DATA`: cached pages go when size or time changed behind the mount; live logs need it.
//! - `DIRECT_IO_ALLOW_MMAP`: generated files are read past the cache and may still be mapped.
//! - `PASSTHROUGH`, for files of read-only places that are opened for reading, and where that can be waited for, for large files and
//!   for who opens one to write alone: see `opening` and `iomode`.
//! - no write-back cache (others change the backing files), no `ATOMIC_O_TRUNC` (the kernel truncates
//!   by `setattr`), no `CACHE_SYMLINKS` (links such as `latest` are replaced behind the mount).
//! - `HANDLE_KILLPRIV_V2`: set-id bits of what is written are cleared here, and the kernel does not ask for
//!   `security.capability` before every write, but before the first one by way of its cache. Without it extended
//!   attributes are answered `ENOSYS`.
//! - `flush` and `ioctl` are answered `ENOSYS` or `ENOTTY`: the kernel then answers the first itself.
//! - `poll` never is, since that would be for all files of the mount: who polls a growing log is woken (`growth`).

mod agree;
mod answer;
mod convert;
mod crew;
mod gate;
mod growth;
mod iomode;
mod opening;
mod write;

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use fuser::{
    BackingId, BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    Notifier, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tracing::{debug, trace_span, warn};

use crate::behind::Told;
use crate::error::{Error, Result};
use crate::kept::{Agreed, KeptMode};
use crate::ops::{Changes, Entry, Home, Listed, Listing, Opened, Ops};
use crate::sys;
use crate::tree::{RelPath, Tree};

pub(crate) use crew::Crew;
pub(crate) use gate::Gate;

use agree::agree;
use answer::{Answer, Cache, GENERATION, Route, refused};
use convert::{access, caller, device, file_attr, file_type, made, owner, rename_mode, times, whence};
use crew::Kind;
use growth::Growth;
use iomode::{IoMode, IoModes};
use opening::Begun;
use write::Write;

const READABLE: PollEvents = PollEvents::POLLIN.union(PollEvents::POLLRDNORM);
const WRITABLE: PollEvents = PollEvents::POLLOUT.union(PollEvents::POLLWRNORM);

/// One session's handlers.
pub(crate) struct Fuse<T> {
    served: Arc<Served<T>>,
    gate: Arc<Gate>,
    crew: Arc<Crew>,
}

/// What is served; it outlives a session that was paused.
pub(crate) struct Served<T> {
    pub ops: Ops<T>,
    modes: Mutex<IoModes<BackingId>>,
    agreed: OnceLock<Agreed>,
    /// Begins with the first who polls; `None` where that failed.
    growth: OnceLock<Option<Growth>>,
    /// To tell the kernel what it does not ask; gone when nobody serves.
    notifier: Mutex<Weak<Notifier>>,
}

impl<T: Tree> Told for Served<T> {
    fn changed(&self, path: &RelPath) {
        let Some((directory, ino)) = self.ops.known_at(path) else { return };
        // Who has it open asks what has become of it.
        if let Some(ino) = ino {
            self.ops.replaced(ino);
            self.forget_attributes(ino);
        }
        let name = path.name().unwrap_or_default();
        self.tell(|notifier| notifier.inval_entry(INodeNo(directory), name));
    }

    fn frozen(&self, path: &RelPath) {
        self.ops.freeze(path);
    }
}

impl<T> Deref for Fuse<T> {
    type Target = Served<T>;

    fn deref(&self) -> &Served<T> {
        &self.served
    }
}

impl<T: Tree> Fuse<T> {
    /// For a session in which so many threads read requests.
    pub(crate) fn new(served: Arc<Served<T>>, gate: Arc<Gate>, readers: usize) -> Self {
        Self { served, gate, crew: Crew::new(readers) }
    }

    /// Has a request about `ino` worked on.
    fn work<A: Answer>(&self, ino: INodeNo, job: impl FnOnce(&Served<T>) -> A + Send + 'static) {
        self.begin(self.ops.home(ino.0, None), job);
    }

    /// Has a request about `name` in `parent` worked on.
    fn work_in<A: Answer>(
        &self,
        (parent, name): (INodeNo, &OsStr),
        job: impl FnOnce(&Served<T>, &OsStr) -> A + Send + 'static,
    ) {
        let owned = name.to_owned();
        self.begin(self.ops.home(parent.0, Some(name)), move |served| job(served, &owned));
    }

    /// Has a request of which nothing but its name need be kept worked on.
    fn begin<A: Answer>(&self, home: Home, job: impl FnOnce(&Served<T>) -> A + Send + 'static) {
        self.begin_as(Kind::Asks { bytes: 0 }, home, job);
    }

    /// One that is left unanswered is asked again of whoever serves next.
    fn begin_as<A: Answer>(&self, kind: Kind, home: Home, job: impl FnOnce(&Served<T>) -> A + Send + 'static) {
        match self.crew.here(home) {
            Some(here) => {
                let Some(_turn) = self.gate.enter() else { return };
                // This thread reads others as well. A request whose handling panics has been answered by an error, and told.
                let _ = catch_unwind(AssertUnwindSafe(|| here.work(|| job(&self.served))));
            }
            None => self.hand_over(kind, home, job),
        }
    }

    fn hand_over<A: Answer>(&self, kind: Kind, home: Home, job: impl FnOnce(&Served<T>) -> A + Send + 'static) {
        let (served, gate) = (self.served.clone(), self.gate.clone());
        let work = move || {
            let Some(_turn) = gate.enter() else { return };
            job(&served).give();
        };
        self.crew.hand_over(home, kind, Box::new(work));
    }

    /// Who works on its requests, so that it can be waited for.
    pub(crate) fn crew(&self) -> Arc<Crew> {
        self.crew.clone()
    }
}

impl<T: Tree> Served<T> {
    pub(crate) fn new(ops: Ops<T>) -> Self {
        Self::with(ops, IoModes::new(), OnceLock::new())
    }

    /// On a connection whose other side has agreed already.
    pub(crate) fn go_on(ops: Ops<T>, modes: Vec<KeptMode>, agreed: Agreed) -> Self {
        Self::with(ops, IoModes::go_on(modes), OnceLock::from(agreed))
    }

    fn with(ops: Ops<T>, modes: IoModes<BackingId>, agreed: OnceLock<Agreed>) -> Self {
        Self { ops, modes: Mutex::new(modes), agreed, growth: OnceLock::new(), notifier: Mutex::default() }
    }

    /// The kernel is told by it from now on.
    pub(crate) fn tell_by(&self, notifier: &Arc<Notifier>) {
        *self.notifier.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(notifier);
    }

    /// The kernel asks for the attributes of `ino` again, if it knows it.
    fn forget_attributes(&self, ino: u64) {
        // An offset below zero leaves its pages alone: they go where size or time is another.
        self.tell(|notifier| notifier.inval_inode(INodeNo(ino), -1, 0));
    }

    fn tell(&self, word: impl FnOnce(&Notifier) -> io::Result<()>) {
        let notifier = self.notifier.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Err(error) = notifier.map_or(Ok(()), |notifier| word(&notifier)) {
            debug!(%error, "the kernel goes on with what it was told before");
        }
    }

    /// Nothing before there is a session.
    pub(crate) fn agreed(&self) -> Agreed {
        self.agreed.get().copied().unwrap_or_default()
    }

    /// For whoever goes on; while nobody serves.
    pub(crate) fn give_modes_away(&self) -> Vec<KeptMode> {
        self.modes().give_away(BackingId::into_raw)
    }

    /// Goes on with them.
    pub(crate) fn take_modes(&self, modes: Vec<KeptMode>) {
        *self.modes() = IoModes::go_on(modes);
    }

    fn modes(&self) -> MutexGuard<'_, IoModes<BackingId>> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something to read of an open file, or its end; `wait` is told when there is. Where nobody could be told,
    /// there always is.
    fn is_readable(&self, fh: u64, wait: Option<PollNotifier>) -> Result<bool> {
        let (Some(path), Some(who)) = (self.ops.waits_for(fh)?, wait) else {
            return Ok(self.ops.waits_for(fh)?.is_none());
        };
        let growth =
            self.growth.get_or_init(|| Growth::start().inspect_err(|error| warn!(%error, "no file is polled")).ok());
        let waits = growth.as_ref().is_some_and(|growth| growth.wait(&path, who).is_ok());
        // It may have grown before it was watched.
        Ok(!waits || self.ops.waits_for(fh)?.is_none())
    }

    /// Whoever polls asks again, when somebody serves again.
    pub(crate) fn wake_pollers(&self) {
        if let Some(Some(growth)) = self.growth.get() {
            growth.wake_all();
        }
    }

    /// The entry of one row; `None` for what is gone since the listing was taken. Another error must not make a listing that
    /// seems whole.
    fn entry_of<'a>(&'a self, ino: u64, held: &mut Option<Listing<'a>>, row: &Listed<'_>) -> Result<Option<Entry>> {
        let entry = match (is_dot(row), held.as_ref()) {
            (true, _) => self.ops.getattr(row.ino),
            (false, Some(listing)) => self.ops.lookup_in(listing, row.name),
            (false, None) => {
                let listing = held.insert(self.ops.listing(ino)?);
                self.ops.lookup_in(listing, row.name)
            }
        };
        match entry {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::NotFound | Error::Stale { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<T: Tree> Filesystem for Fuse<T> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.agreed.get_or_init(|| agree(config));
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.work_in((parent, name), move |served, name| {
            let _span = trace_span!("lookup", parent = parent.0, ?name).entered();
            answer::entry(reply, served.ops.lookup(parent.0, name))
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let (served, home) = (self.served.clone(), self.served.ops.home(ino.0, None));
        let gate = self.gate.clone();
        // The kernel says it once, so it is heard while the gate is closed as well. What waits is not inside: it waits for requests
        // that wait at the gate.
        let job = move || {
            let _turn = gate.pass();
            served.ops.forget(ino.0, nlookup);
        };
        match self.crew.here(home) {
            Some(_here) => job(),
            None => self.crew.hand_over(home, Kind::Tells, Box::new(job)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.work(ino, move |served| {
            let _span = trace_span!("getattr", ino = ino.0).entered();
            answer::attr(reply, served.ops.getattr(ino.0))
        });
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.work(ino, move |served| {
            let _span = trace_span!("setattr", ino = ino.0).entered();
            let times = times(atime, mtime);
            let changes = Changes { mode, uid, gid, size, times };
            answer::attr(reply, served.ops.setattr(ino.0, &changes))
        });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.work(ino, move |served| {
            let _span = trace_span!("readlink", ino = ino.0).entered();
            match served.ops.readlink(ino.0) {
                Ok(target) => reply.data(target.as_encoded_bytes()),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = made(req, mode);
        self.work_in((parent, name), move |served, name| {
            let _span = trace_span!("mknod", parent = parent.0, ?name).entered();
            answer::entry(reply, served.ops.mknod(parent.0, name, &made, device(rdev)))
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let made = made(req, mode);
        self.work_in((parent, name), move |served, name| {
            let _span = trace_span!("mkdir", parent = parent.0, ?name).entered();
            answer::entry(reply, served.ops.mkdir(parent.0, name, &made))
        });
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.work_in((parent, name), move |served, name| {
            let _span = trace_span!("unlink", parent = parent.0, ?name).entered();
            answer::empty(reply, served.ops.unlink(parent.0, name))
        });
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.work_in((parent, name), move |served, name| {
            let _span = trace_span!("rmdir", parent = parent.0, ?name).entered();
            answer::empty(reply, served.ops.rmdir(parent.0, name))
        });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let owner = owner(req);
        let (target, link_name) = (target.as_os_str().to_owned(), link_name.to_owned());
        let home = self.ops.home(parent.0, Some(&link_name));
        self.begin_as(Kind::Asks { bytes: target.len() }, home, move |served| {
            let _span = trace_span!("symlink", parent = parent.0, name = ?link_name).entered();
            let made = served.ops.symlink(parent.0, &link_name, &target, owner);
            answer::entry(reply, made)
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, newname, by) = (name.to_owned(), newname.to_owned(), req.uid());
        let homes = [self.ops.home(parent.0, Some(&name)), self.ops.home(newparent.0, Some(&newname))];
        let (served, gate, home) = (self.served.clone(), self.gate.clone(), Home::both(homes));
        let job = move || {
            let (from, to) = ((parent.0, &*name), (newparent.0, &*newname));
            // Before the gate: that a file is closed is heard behind it.
            served.ops.await_writers(from, to);
            let Some(_turn) = gate.enter() else { return };
            let _span = trace_span!("rename", parent = parent.0, ?name, ?newname).entered();
            let renamed = rename_mode(flags).and_then(|mode| served.ops.rename(from, to, mode, by));
            answer::empty(reply, renamed).give();
        };
        match self.crew.here(home) {
            Some(_here) => drop(catch_unwind(AssertUnwindSafe(job))),
            None => self.crew.hand_over(home, Kind::Asks { bytes: 0 }, Box::new(job)),
        }
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let newname = newname.to_owned();
        let homes = [self.ops.home(ino.0, None), self.ops.home(newparent.0, Some(&newname))];
        self.begin(Home::both(homes), move |served| {
            let _span = trace_span!("link", ino = ino.0, name = ?newname).entered();
            let linked = served.ops.link(ino.0, newparent.0, &newname);
            // Where names are inodes of their own, the others are not what they were either.
            if linked.as_ref().is_ok_and(|entry| entry.ino != ino.0) {
                served.forget_attributes(ino.0);
            }
            answer::entry(reply, linked)
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.work(ino, move |served| {
            let _span = trace_span!("open", ino = ino.0, flags = flags.0).entered();
            let access = access(flags.0);
            served.modes().adopt(|number| sys::known_backing(&reply, number));
            match served.ops.open(ino.0, access) {
                Ok(Opened::Stored { fh, size }) => {
                    let begun = Begun::Opened { size };
                    let route = served.open_stored((ino.0, begun), (fh, access), |file| reply.open_backing(file));
                    answer::opened(reply, fh, access, route, Cache::Kept);
                }
                Ok(Opened::Frozen { fh }) => {
                    let register = || served.register(fh, |file| reply.open_backing(file));
                    let route = match served.modes().open(ino.0, register) {
                        IoMode::Passthrough(id) => Route::Passed(id),
                        IoMode::Cached => Route::Cached,
                    };
                    answer::opened(reply, fh, access, route, Cache::Dropped);
                }
                Ok(Opened::Generated { fh }) => answer::opened_generated(reply, fh),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = made(req, mode);
        self.work_in((parent, name), move |served, name| {
            let _span = trace_span!("create", parent = parent.0, ?name, flags).entered();
            let access = access(flags);
            let created = served.ops.create(parent.0, name, access, &made).map(|(entry, fh)| {
                let begun = Begun::Made { expected: served.ops.expected_in(parent.0) };
                let route = served.open_stored((entry.ino, begun), (fh, access), |file| reply.open_backing(file));
                let past_cache = answer::goes_past_cache(access, served.agreed());
                if past_cache && matches!(route, Route::Cached) {
                    served.ops.go_past_cache(fh);
                }
                (entry, fh, past_cache, route)
            });
            answer::created(reply, created)
        });
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.work(ino, move |served| {
            let _span = trace_span!("read", ino = ino.0, fh = fh.0, offset, size).entered();
            let mut buf = vec![0; size as usize];
            match served.ops.read(fh.0, offset, &mut buf) {
                Ok(count) => reply.data(buf.get(..count).unwrap_or(&buf)),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = Write { uid: req.uid(), ino, fh, offset, write_flags, flags };
        let home = self.ops.home(ino.0, None);
        if let Some(here) = self.crew.here(home) {
            let Some(_turn) = self.gate.enter() else { return };
            return here.work(|| write.work(&self.served, data, reply));
        }
        let data = data.to_vec();
        // The kernel has given up the pages that it writes back, and bounds them itself: nothing of that is refused.
        let is_written_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kind = if is_written_back { Kind::Tells } else { Kind::Asks { bytes: data.len() } };
        self.hand_over(kind, home, move |served| write.work(served, &data, reply));
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let Some(_turn) = self.gate.enter() else { return };
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // The kernel does nothing upon a refusal, and the file would stay open.
        self.begin_as(Kind::Tells, self.ops.home(ino.0, None), move |served| {
            served.modes().release(ino.0);
            served.ops.release(fh.0);
            move || reply.ok()
        });
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.work(ino, move |served| {
            let _span = trace_span!("fsync", ino = ino.0, fh = fh.0).entered();
            answer::empty(reply, served.ops.fsync(fh.0))
        });
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let by = caller(req);
        self.work(ino, move |served| {
            let _span = trace_span!("opendir", ino = ino.0).entered();
            match served.ops.opendir(ino.0, by) {
                Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.work(ino, move |served| {
            let _span = trace_span!("readdir", ino = ino.0, fh = fh.0, offset).entered();
            let rows = match served.ops.rows(fh.0, offset) {
                Ok(rows) => rows,
                Err(error) => return reply.error(refused(&error)),
            };
            for (next, row) in rows.from(offset) {
                if reply.add(INodeNo(row.ino), next, file_type(row.kind), row.name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.work(ino, move |served| {
            let _span = trace_span!("readdirplus", ino = ino.0, fh = fh.0, offset).entered();
            let rows = match served.ops.rows(fh.0, offset) {
                Ok(rows) => rows,
                Err(error) => return reply.error(refused(&error)),
            };
            // The dots come first, and are asked for before names are held.
            let mut listing = None;
            let mut told = false;
            // The kernel begins so whether it knows them or not, and goes on without attributes where it does.
            let knows_all = offset == 0 && served.ops.was_told_lately(ino.0) && rows.begin_with_known();
            let mut shortest = None;
            for (next, row) in rows.from(offset) {
                if knows_all && !is_dot(&row) {
                    return reply.ok();
                }
                let entry = match served.entry_of(ino.0, &mut listing, &row) {
                    Ok(Some(entry)) => entry,
                    Ok(None) => continue,
                    // The rows before it are told first; then it is met again.
                    Err(_) if told => break,
                    Err(error) => return reply.error(refused(&error)),
                };
                let (number, attr) = (INodeNo(entry.ino), file_attr(&entry));
                if reply.add(number, next, row.name, &entry.ttl, &attr, GENERATION) {
                    // The kernel will not see this row, so it will not forget its lookup either; it counts
                    // none for the dots.
                    if !is_dot(&row) {
                        served.ops.forget(entry.ino, 1);
                    }
                    break;
                }
                told = true;
                shortest = Some(shortest.map_or(entry.ttl, |before: Duration| before.min(entry.ttl)));
            }
            if let Some(shortest) = shortest.filter(|_| offset == 0) {
                served.ops.tell_of(ino.0, shortest);
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let Some(_turn) = self.gate.enter() else { return };
        self.ops.releasedir(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.work(ino, move |served| {
            let _span = trace_span!("fsyncdir", ino = ino.0).entered();
            answer::empty(reply, served.ops.fsyncdir(ino.0))
        });
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let by = caller(req);
        self.work(ino, move |served| {
            let _span = trace_span!("statfs", ino = ino.0).entered();
            match served.ops.statfs(ino.0, by) {
                Ok((stat, (blocks, free, available))) => reply.statfs(
                    blocks,
                    free,
                    available,
                    stat.files(),
                    stat.files_free(),
                    u32::try_from(stat.block_size()).unwrap_or(4096),
                    u32::try_from(stat.name_max()).unwrap_or(255),
                    u32::try_from(stat.fragment_size()).unwrap_or(4096),
                ),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let uid = req.uid();
        self.work(ino, move |served| {
            let _span = trace_span!("fallocate", ino = ino.0, fh = fh.0, offset, length).entered();
            let allocated = served.ops.fallocate(fh.0, mode, offset, length);
            answer::empty(reply, allocated.and_then(|()| served.written_by(uid, fh)))
        });
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.work(ino, move |served| {
            let _span = trace_span!("lseek", ino = ino.0, fh = fh.0, offset, whence).entered();
            let moved = self::whence(whence).and_then(|to| served.ops.lseek(fh.0, offset, to));
            match moved {
                Ok(offset) => reply.offset(offset),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_owned();
        self.work(ino, move |served| {
            let _span = trace_span!("getxattr", ino = ino.0, ?name).entered();
            match served.agreed().keeps_xattrs {
                true => answer::xattr(reply, size, served.ops.getxattr(ino.0, &name)),
                false => reply.error(Errno::ENOSYS),
            }
        });
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.work(ino, move |served| {
            let _span = trace_span!("listxattr", ino = ino.0).entered();
            match served.agreed().keeps_xattrs {
                true => answer::xattr(reply, size, served.ops.listxattr(ino.0)),
                false => reply.error(Errno::ENOSYS),
            }
        });
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.begin_as(Kind::Asks { bytes: value.len() }, self.ops.home(ino.0, None), move |served| {
            let _span = trace_span!("setxattr", ino = ino.0, ?name).entered();
            match served.agreed().keeps_xattrs {
                true => answer::empty(reply, served.ops.setxattr(ino.0, &name, &value, flags)).give(),
                false => reply.error(Errno::ENOSYS),
            }
        });
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.work(ino, move |served| {
            let _span = trace_span!("removexattr", ino = ino.0, ?name).entered();
            match served.agreed().keeps_xattrs {
                true => answer::empty(reply, served.ops.removexattr(ino.0, &name)).give(),
                false => reply.error(Errno::ENOSYS),
            }
        });
    }

    fn poll(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        who: PollNotifier,
        events: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.work(ino, move |served| {
            let _span = trace_span!("poll", ino = ino.0, fh = fh.0).entered();
            let wait = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY).then_some(who);
            match served.is_readable(fh.0, wait) {
                Ok(true) => reply.poll(events & (READABLE | WRITABLE)),
                Ok(false) => reply.poll(events & WRITABLE),
                Err(error) => reply.error(refused(&error)),
            }
        });
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let Some(_turn) = self.gate.enter() else { return };
        reply.error(Errno::ENOTTY);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let uid = req.uid();
        let homes = [self.ops.home(ino_in.0, None), self.ops.home(ino_out.0, None)];
        self.begin(Home::both(homes), move |served| {
            let _span = trace_span!("copy_file_range", from = ino_in.0, to = ino_out.0, len).entered();
            let copied = served.ops.copy((fh_in.0, offset_in), (fh_out.0, offset_out), len);
            answer::written(reply, copied.and_then(|count| served.written_by(uid, fh_out).map(|()| count)))
        });
    }
}

fn is_dot(row: &Listed<'_>) -> bool {
    row.name == "." || row.name == ".."
}
