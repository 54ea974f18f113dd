//! Mounting, serving, unmounting; removing what a dead process left mounted; and going on with what another process served.
//!
//! ```text
//! mount ──────▶ Mounted ──── pause: what was begun is answered, the threads end ────▶ Paused ──▶ keep, and exec another program
//! take_over ──────▲  ▲──────────────────────── resume ─────────────────────────────────┘                    │
//!     ▲─────────────────────── Handed ◀───────────── read ◀─────────────────────────────────────────────────┘
//! ```
//! The kernel's connection stays open over the exec, so nobody notices: what is asked meanwhile waits, and what was taken
//! from the kernel but not begun is asked again (`FUSE_NOTIFY_RESEND`, Linux 6.9). So that nothing is lost when the threads go,
//! all of them read one descriptor: a cloned one would take along what was read from it.
//!
//! The mount is made and removed here with mount(2) and umount2(2), and fuser is given the device only:
//! its own teardown (0.18) may remove somebody else's mount at the same path and gives up on a busy one.
//! Before anything is removed, `/proc/thread-self/mountinfo` must show that the uppermost mount at the place is
//! ours. This process never touches its own mountpoint while serving: it would wait for itself.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvError, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Notifier, Session, SessionACL};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::{getgid, getuid};
use tracing::{info, warn};

use crate::fuse::{Crew, Fuse, Gate, Served};
use crate::host::Host;
use crate::kept::{Handed, Kept};
use crate::mountinfo::{self, MountRow};
use crate::ops::Ops;
use crate::sys;
use crate::tree::Tree;

const DEVICE: &str = "/dev/fuse";

/// Descriptors that looking for threads by their names takes: a directory, and one file at a time.
const SPARE: usize = 2;
/// How long `unmount` waits for the serving threads of a mount that is gone; they need milliseconds.
const FAREWELL: Duration = Duration::from_secs(5);

/// Names of the serving threads begin so; fuser gives them.
const THREADS: &str = "fuser-";
/// How often a thread that reads is interrupted, until it ends.
const NUDGE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that `mount` and `/proc/thread-self/mountinfo` show; `unmount_stale` knows our mounts by it.
    pub fs_name: String,
    /// Threads that read requests, one at least; more work on them where those of one part of the tree take long.
    pub threads: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot open the backing directory {}", path.display())]
    Backing { path: PathBuf, source: io::Error },
    #[error("cannot read attributes of the backing directory {}", path.display())]
    Root { path: PathBuf, source: Errno },
    #[error("cannot use the mountpoint {}", path.display())]
    Mountpoint { path: PathBuf, source: io::Error },
    /// Serving a request would then touch the mountpoint, and wait for itself.
    #[error("the mountpoint {} lies beneath the backing directory", path.display())]
    Nested { path: PathBuf },
    #[error("cannot open {DEVICE}")]
    Device { source: io::Error },
    #[error("cannot mount at {}", path.display())]
    Mount { path: PathBuf, source: Errno },
    #[error("the kernel and this program do not agree on the protocol")]
    Handshake { source: io::Error },
    #[error("cannot start the serving threads")]
    Threads { source: io::Error },
    #[error("cannot take over the connection to the kernel")]
    Connection { source: io::Error },
    #[error("what was mounted at {} by the process before is no longer there", path.display())]
    Gone { path: PathBuf },
}

/// A mount that is being served. Dropping it unmounts.
pub struct Mounted<T: Tree> {
    /// `None` once the mount is known to be gone: its device number may then be another's.
    place: Option<Place>,
    /// `None` before it began.
    running: Option<Running<T>>,
}

impl<T: Tree> std::fmt::Debug for Mounted<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The threads that serve, and what they stand on.
struct Running<T: Tree> {
    served: Arc<Served<T>>,
    threads: usize,
    gate: Arc<Gate>,
    crew: Arc<Crew>,
    device: OwnedFd,
    /// The descriptor that the threads read; it is open as long as `_open` is there.
    read: RawFd,
    _open: Arc<Notifier>,
    /// Hears how serving ended. Behind a lock only so that `Mounted` can be shared.
    ended: Mutex<Receiver<io::Result<()>>>,
}

/// A mount that nobody serves at the moment: whoever asks it for something waits.
pub struct Paused<T: Tree> {
    place: Place,
    served: Arc<Served<T>>,
    threads: usize,
    kept: Kept,
    device: OwnedFd,
}

impl<T: Tree> std::fmt::Debug for Paused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paused").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Why a mount is served on.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    #[error("a request is not answered in time")]
    Busy,
    #[error("this kernel does not ask again what was not answered (Linux 6.9 does)")]
    Kernel,
    #[error("the mount is gone")]
    Gone,
    #[error("cannot stop the serving threads")]
    Threads(#[source] io::Error),
}

/// It is served as before.
pub struct NotPaused<T: Tree> {
    pub mounted: Mounted<T>,
    pub reason: Reason,
}

impl<T: Tree> std::fmt::Debug for NotPaused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotPaused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// Mounts `backing` at the existing directory `mountpoint` and serves it on threads of its own. Needs root.
/// The kernel checks mode bits for everyone (`allow_other`, `default_permissions`).
pub fn mount<T: Tree>(
    backing: &Path,
    mountpoint: &Path,
    tree: T,
    options: &MountOptions,
) -> Result<Mounted<T>, MountError> {
    let ops = open_backing(backing, tree)?;
    let place = Place::prepare(backing, mountpoint)?;
    let device = File::options().read(true).write(true).open(DEVICE);
    let device = device.map_err(|source| MountError::Device { source })?;
    let place = place.attach(&device, &options.fs_name)?;
    info!(path = %place.path.display(), "mounted");
    // From here on a failure drops `mounted`, which unmounts.
    let mut mounted = Mounted { place: Some(place), running: None };
    let threads = options.threads.max(1);
    mounted.running = Some(serve(Arc::new(Served::new(ops)), device.into(), threads, Start::Fresh)?);
    Ok(mounted)
}

/// Goes on with what the process before has served; `backing`, `mountpoint` and `options` are as they were. The mountpoint is not
/// touched. On an error the connection ends, and with it the mount.
pub fn take_over<T: Tree>(
    mut handed: Handed,
    backing: &Path,
    mountpoint: &Path,
    tree: T,
    options: &MountOptions,
) -> Result<Mounted<T>, MountError> {
    let path = || backing.to_path_buf();
    let host = Host::open(backing).map_err(|source| MountError::Backing { path: path(), source })?;
    let Kept { device, place, agreed, modes, ops, payers, frozen, mapped } = handed.kept;
    let device = handed.inherited.take(device).map_err(|source| MountError::Connection { source })?;
    let place = Place::again(mountpoint, place)?;
    let ops = Ops::go_on(host, tree, (ops, &payers, &frozen), &mut handed.inherited);
    let ops = ops.map_err(|error| MountError::Root { path: path(), source: error.errno() })?;
    ops.go_on_mapped(mapped);
    let served = Arc::new(Served::go_on(ops, modes, agreed));
    let running = serve(served, device, options.threads.max(1), Start::Again)?;
    open_left(&running).map_err(|source| MountError::Threads { source })?;
    Ok(Mounted { place: Some(place), running: Some(running) })
}

/// Opens what the process before had open and generated, while it is served: each also when somebody asks for it.
fn open_left<T: Tree>(running: &Running<T>) -> io::Result<()> {
    let left = running.served.ops.left();
    if left.is_empty() {
        return Ok(());
    }
    let (served, gate) = (running.served.clone(), running.gate.clone());
    let open = move || {
        for fh in left {
            // One that hangs is waited for like a request, so that this thread is gone when another program goes on.
            let Some(_turn) = gate.enter() else { return };
            if let Err(error) = served.ops.open_left(fh) {
                warn!(fh, %error, "cannot go on with an open file");
            }
        }
    };
    thread::Builder::new().name("open-again".into()).spawn(open).map(drop)
}

/// Lazily removes mounts that a dead process left at `mountpoint`; `Ok(false)` if none of ours is there.
///
/// Only what has a type beginning with `fuse` and the source `fs_name` is removed, and only when its server
/// is gone (`ENOTCONN`). A mount whose server lives is refused with `ErrorKind::ResourceBusy`; if that server
/// hangs, so does this question. Must not be called by the serving process itself.
pub fn unmount_stale(mountpoint: &Path, fs_name: &str) -> io::Result<bool> {
    let path = canonical_place(mountpoint)?;
    let mut removed = false;
    while mountinfo::top_at(&path)?.is_some_and(|row| is_ours(&row, fs_name)) {
        match statvfs(&path) {
            Err(Errno::ENOTCONN | Errno::ECONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Err(io::ErrorKind::ResourceBusy.into()),
        }
        detach(&path)?;
        info!(path = %path.display(), "removed a mount without a server");
        removed = true;
    }
    Ok(removed)
}

/// What the kernel can do for a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// It reads and writes files of the backing directory without asking us.
    pub passes_through: bool,
    /// It asks again what was not answered, so that another program can go on.
    pub can_be_handed_over: bool,
}

impl<T: Tree> Mounted<T> {
    /// Nothing before the kernel and we have agreed, which is before anything is answered.
    pub fn abilities(&self) -> Abilities {
        let agreed = self.running.as_ref().map(|running| running.served.agreed()).unwrap_or_default();
        Abilities { passes_through: agreed.passthrough, can_be_handed_over: agreed.asks_again }
    }

    /// Waits until the mount is removed from outside.
    pub fn wait(mut self) -> io::Result<()> {
        let ended = self.running.take().map(|running| running.ended().recv());
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(panicked)?;
        self.place = None;
        Ok(())
    }

    /// Whether the mount is still attached at its mount point: who has a file of it open, or a copy of it elsewhere, is served
    /// also when somebody has taken it away there.
    pub fn is_attached(&self) -> io::Result<bool> {
        self.place.as_ref().map_or(Ok(false), |place| mountinfo::has(&place.device, &place.path))
    }

    /// Unmounts and waits a moment for the serving threads. While files are open in the mount it is only
    /// taken out of sight: they are served until they are closed or this process ends, and this returns at
    /// once. So it is while another mount namespace holds a copy of the mount, after that moment.
    pub fn unmount(mut self) -> io::Result<()> {
        let removed = self.place.take().map_or(Ok(Removed::Gone), |place| place.remove())?;
        let running = self.running.take().filter(|_| removed == Removed::Gone);
        match running.map(|running| running.ended().recv_timeout(FAREWELL)) {
            None | Some(Err(RecvTimeoutError::Timeout)) => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(RecvTimeoutError::Disconnected)) => panicked(RecvError),
        }
    }

    /// Answers what was begun, for as long as `patience`, and stops serving. The mount stays, and whoever asks it for something
    /// waits until it is served again, by [`Paused::resume`] or by another program.
    pub fn pause(mut self, patience: Duration) -> Result<Paused<T>, Box<NotPaused<T>>> {
        let (Some(place), Some(running)) = (self.place.take(), self.running.take()) else {
            return Err(Box::new(NotPaused { mounted: self, reason: Reason::Gone }));
        };
        let spare = match running.may_stop(patience) {
            Ok(spare) => spare,
            Err(reason) => {
                let mounted = Self { place: Some(place), running: Some(running) };
                return Err(Box::new(NotPaused { mounted, reason }));
            }
        };
        let stopped = running.stop(spare);
        let paused = Paused::new(place, running);
        match stopped {
            Ok(()) => Ok(paused),
            // What could not be ended reads from nowhere.
            Err(error) => Err(Box::new(paused.serve_on(Reason::Threads(error)))),
        }
    }
}

impl<T: Tree> Running<T> {
    fn ended(self) -> Receiver<io::Result<()>> {
        self.ended.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// From then on nothing is begun, and nothing is taken from the kernel. Returns descriptors that [`Self::stop`] can do
    /// without: users may have taken all others, and in its midst there is no way back.
    fn may_stop(&self, patience: Duration) -> Result<[File; SPARE], Reason> {
        if !self.served.agreed().asks_again {
            return Err(Reason::Kernel);
        }
        sys::prepare_to_interrupt().map_err(Reason::Threads)?;
        // It ends whoever reads it, and swallows what is said to it.
        let nowhere = || File::options().read(true).write(true).open("/dev/null").map_err(Reason::Threads);
        let (first, spare) = (nowhere()?, [nowhere()?, nowhere()?]);
        if !self.gate.close(patience) {
            return Err(Reason::Busy);
        }
        self.served.wake_pollers();
        if let Err(error) = sys::redirect(self.read, first.as_fd()) {
            self.gate.open();
            return Err(Reason::Threads(error));
        }
        Ok(spare)
    }

    /// Ends the threads, and waits for what they have handed over. What they have taken and not begun stays unanswered, but for what
    /// the kernel says once: that is heard.
    fn stop(&self, spare: [File; SPARE]) -> io::Result<()> {
        self.gate.end();
        drop(spare);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline {
            sys::interrupt(THREADS)?;
            // That the session has ended with an error is as it should be: it has read from nowhere.
            if !matches!(ended.recv_timeout(NUDGE), Err(RecvTimeoutError::Timeout)) {
                let rests = self.crew.rests_within(deadline.saturating_duration_since(Instant::now()));
                return if rests { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) };
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl<T: Tree> Paused<T> {
    fn new(place: Place, running: Running<T>) -> Self {
        let Running { served, threads, device, .. } = running;
        let kept = Kept {
            device: device.as_raw_fd(),
            place: place.device.clone(),
            agreed: served.agreed(),
            modes: served.give_modes_away(),
            ops: served.ops.keep(),
            payers: served.ops.keep_payers(),
            frozen: served.ops.keep_frozen(),
            mapped: served.ops.keep_mapped(),
        };
        Self { place, served, threads, kept, device }
    }

    /// Serves it on.
    pub fn resume(self) -> Result<Mounted<T>, MountError> {
        self.served.take_modes(self.kept.modes);
        let running = serve(self.served, self.device, self.threads, Start::Again)?;
        Ok(Mounted { place: Some(self.place), running: Some(running) })
    }

    /// Writes down what another program needs to go on, by [`Handed::read`] and [`take_over`]. Returns the descriptors that it
    /// must inherit under the same numbers.
    pub fn keep(&self, file: &File) -> io::Result<Vec<RawFd>> {
        self.kept.write(file)?;
        Ok(self.kept.descriptors())
    }

    fn serve_on(self, reason: Reason) -> NotPaused<T> {
        match self.resume() {
            Ok(mounted) => NotPaused { mounted, reason },
            Err(error) => {
                warn!(%error, "cannot serve the mount on");
                NotPaused { mounted: Mounted { place: None, running: None }, reason: Reason::Gone }
            }
        }
    }
}

fn panicked(_: RecvError) -> io::Result<()> {
    Err(io::Error::other("a serving thread panicked"))
}

impl<T: Tree> Drop for Mounted<T> {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        if let Err(error) = place.remove() {
            warn!(%error, path = %place.path.display(), "cannot unmount");
        }
    }
}

#[derive(Debug)]
struct Place {
    /// Canonical.
    path: PathBuf,
    /// Device number of our mount; empty before it is made.
    device: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Removed {
    /// The connection ends.
    Gone,
    /// Out of sight, but files are open.
    Hidden,
}

impl Place {
    fn prepare(backing: &Path, mountpoint: &Path) -> Result<Self, MountError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| MountError::Mountpoint { path, source }
        };
        let path = mountpoint.canonicalize().map_err(failed(mountpoint))?;
        let backing = backing.canonicalize().map_err(failed(backing))?;
        if path != backing && path.starts_with(&backing) {
            return Err(MountError::Nested { path });
        }
        let device = String::new();
        Ok(Self { path, device })
    }

    /// Where the process before has mounted; a path is not asked for, since nobody would answer.
    fn again(mountpoint: &Path, device: String) -> Result<Self, MountError> {
        let failed = |source| MountError::Mountpoint { path: mountpoint.to_path_buf(), source };
        let path = canonical_place(mountpoint).map_err(failed)?;
        match mountinfo::top_at(&path).map_err(failed)? {
            Some(row) if row.device == device => Ok(Self { path, device }),
            _ => Err(MountError::Gone { path }),
        }
    }

    fn attach(self, device: &File, fs_name: &str) -> Result<Self, MountError> {
        let path = self.path;
        let options = format!(
            "fd={},rootmode=40000,user_id={},group_id={},allow_other,default_permissions",
            device.as_raw_fd(),
            getuid(),
            getgid(),
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
        let done = nix::mount::mount(Some(fs_name), &path, Some("fuse"), flags, Some(options.as_str()));
        if let Err(source) = done {
            return Err(MountError::Mount { path, source });
        }
        match mountinfo::top_at(&path) {
            Ok(Some(row)) => Ok(Self { path, device: row.device }),
            looked => {
                let source = looked.err().unwrap_or(io::ErrorKind::NotFound.into());
                // Nothing can have come between, so what is there is ours.
                drop(detach(&path));
                Err(MountError::Mountpoint { path, source })
            }
        }
    }

    /// Unmounts if our mount is still there and uppermost.
    fn remove(&self) -> io::Result<Removed> {
        let top = mountinfo::top_at(&self.path)?;
        if top.is_none_or(|row| row.device != self.device) {
            return Ok(Removed::Gone);
        }
        match umount2(&self.path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => Ok(Removed::Gone),
            Err(Errno::EBUSY) => {
                detach(&self.path)?;
                warn!(path = %self.path.display(), "unmounted while files are open");
                Ok(Removed::Hidden)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

fn open_backing<T: Tree>(backing: &Path, tree: T) -> Result<Ops<T>, MountError> {
    let path = || backing.to_path_buf();
    let host = Host::open(backing).map_err(|source| MountError::Backing { path: path(), source })?;
    Ops::new(host, tree).map_err(|error| MountError::Root { path: path(), source: error.errno() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The kernel begins with a handshake.
    Fresh,
    /// It was begun by another session, and something may be left unanswered.
    Again,
}

fn serve<T: Tree>(
    served: Arc<Served<T>>,
    device: OwnedFd,
    threads: usize,
    start: Start,
) -> Result<Running<T>, MountError> {
    let gate = Arc::new(Gate::default());
    let fuse = Fuse::new(served.clone(), gate.clone(), threads);
    let crew = fuse.crew();
    let copied = device.try_clone().map_err(|source| MountError::Connection { source })?;
    let session = match start {
        Start::Fresh => session(fuse, copied, threads)?,
        Start::Again => {
            let (ours, _other) = handshake().map_err(|source| MountError::Handshake { source })?;
            let session = session(fuse, ours, threads)?;
            let read = session.as_fd().as_raw_fd();
            let connected = sys::redirect(read, copied.as_fd()).and_then(|()| ask_again(&device));
            connected.map_err(|source| MountError::Connection { source })?;
            session
        }
    };
    let (read, open) = (session.as_fd().as_raw_fd(), Arc::new(session.notifier()));
    served.tell_by(&open);
    let (sender, ended) = mpsc::channel();
    thread::Builder::new()
        .name("fuse-session".into())
        // Nobody hears it if the mount was only taken out of sight.
        .spawn(move || drop(sender.send(session.run())))
        .map_err(|source| MountError::Threads { source })?;
    served.ops.behind().connect(&served);
    Ok(Running { served, threads, gate, crew, device, read, _open: open, ended: Mutex::new(ended) })
}

fn session<T: Tree>(fuse: Fuse<T>, device: OwnedFd, threads: usize) -> Result<Session<Fuse<T>>, MountError> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    Session::from_fd(fuse, device, SessionACL::All, config).map_err(|source| MountError::Handshake { source })
}

/// One end of a pair whose other end has said what a kernel says first, and takes the answer: a session of fuser (0.18) begins
/// with nothing else.
fn handshake() -> io::Result<(OwnedFd, UnixDatagram)> {
    const INIT: u32 = 26;
    /// Bytes of `fuse_in_header`, and of `fuse_init_in` behind it.
    const LENGTHS: (u32, u32) = (40, 64);
    const ABI: (u32, u32) = (7, 40);
    let (ours, other) = UnixDatagram::pair()?;
    let mut request = vec![0; (LENGTHS.0 + LENGTHS.1) as usize];
    let mut put = |at: usize, value: u32| request[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(0, LENGTHS.0 + LENGTHS.1);
    put(4, INIT);
    // `unique`: any but 0.
    put(8, 1);
    put(40, ABI.0);
    put(44, ABI.1);
    // `max_readahead`; the kernel has its own already.
    put(48, 128 << 10);
    other.send(&request)?;
    Ok((ours.into(), other))
}

/// Has the kernel ask again what was asked and not answered.
fn ask_again(device: &OwnedFd) -> io::Result<()> {
    /// `FUSE_NOTIFY_RESEND`.
    const RESEND: u32 = 7;
    let mut word = [0; 16];
    word[..4].copy_from_slice(&16u32.to_ne_bytes());
    word[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    nix::unistd::write(device, &word)?;
    Ok(())
}

/// Canonical without touching the last component, which may be a mount without a server.
fn canonical_place(mountpoint: &Path) -> io::Result<PathBuf> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let name: &OsStr = mountpoint.file_name().ok_or_else(invalid)?;
    let parent = match mountpoint.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok(parent.canonicalize()?.join(name))
}

fn is_ours(row: &MountRow, fs_name: &str) -> bool {
    row.fs_type.as_encoded_bytes().starts_with(b"fuse") && row.source == fs_name
}

fn detach(path: &Path) -> io::Result<()> {
    let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
    Ok(umount2(path, flags)?)
}
