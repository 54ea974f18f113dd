//! Mounting, serving, unmounting; and removing what a dead process left mounted.
//!
//! The mount is made and removed here with mount(2) and umount2(2), and fuser is given the device only:
//! its own teardown (0.18) may remove somebody else's mount at the same path and gives up on a busy one.
//! Before anything is removed, `/proc/self/mountinfo` must show that the uppermost mount at the place is
//! ours. This process never touches its own mountpoint while serving: it would wait for itself.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvError, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fuser::{Config, Session, SessionACL};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::{getgid, getuid};
use tracing::{info, warn};

use crate::fuse::Fuse;
use crate::host::Host;
use crate::mountinfo::{self, MountRow};
use crate::ops::Ops;
use crate::tree::Tree;

const DEVICE: &str = "/dev/fuse";

/// How long `unmount` waits for the serving threads of a mount that is gone; they need milliseconds.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that `mount` and `/proc/self/mountinfo` show; `unmount_stale` knows our mounts by it.
    pub fs_name: String,
    /// Threads that serve requests; at least one.
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
}

/// A mount that is being served. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    /// `None` once the mount is known to be gone: its device number may then be another's.
    place: Option<Place>,
    /// Hears how serving ended; `None` before it began. Behind a lock only so that `Mounted` can be shared.
    ended: Option<Mutex<Receiver<io::Result<()>>>>,
}

/// Mounts `backing` at the existing directory `mountpoint` and serves it on threads of its own. Needs root.
/// The kernel checks mode bits for everyone (`allow_other`, `default_permissions`).
pub fn mount(
    backing: &Path,
    mountpoint: &Path,
    tree: impl Tree,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    let ops = open_backing(backing, tree)?;
    let place = Place::prepare(backing, mountpoint)?;
    let device = File::options().read(true).write(true).open(DEVICE);
    let device = device.map_err(|source| MountError::Device { source })?;
    let place = place.attach(&device, &options.fs_name)?;
    info!(path = %place.path.display(), "mounted");
    // From here on a failure drops `mounted`, which unmounts.
    let mut mounted = Mounted { place: Some(place), ended: None };
    let ended = serve(Fuse::new(ops), device.into(), options.threads)?;
    mounted.ended = Some(Mutex::new(ended));
    Ok(mounted)
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

impl Mounted {
    /// Waits until the mount is removed from outside.
    pub fn wait(mut self) -> io::Result<()> {
        let ended = self.take_ended().map(|ended| ended.recv());
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(panicked)?;
        self.place = None;
        Ok(())
    }

    /// Unmounts and waits a moment for the serving threads. While files are open in the mount it is only
    /// taken out of sight: they are served until they are closed or this process ends, and this returns at
    /// once. So it is while another mount namespace holds a copy of the mount, after that moment.
    pub fn unmount(mut self) -> io::Result<()> {
        let removed = self.place.take().map_or(Ok(Removed::Gone), |place| place.remove())?;
        let ended = self.take_ended().filter(|_| removed == Removed::Gone);
        match ended.map(|ended| ended.recv_timeout(FAREWELL)) {
            None | Some(Err(RecvTimeoutError::Timeout)) => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(RecvTimeoutError::Disconnected)) => panicked(RecvError),
        }
    }

    fn take_ended(&mut self) -> Option<Receiver<io::Result<()>>> {
        let ended = self.ended.take()?;
        Some(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

fn panicked(_: RecvError) -> io::Result<()> {
    Err(io::Error::other("a serving thread panicked"))
}

impl Drop for Mounted {
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

fn serve<T: Tree>(fuse: Fuse<T>, device: OwnedFd, threads: usize) -> Result<Receiver<io::Result<()>>, MountError> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(threads.max(1));
    config.clone_fd = threads > 1;
    let session =
        Session::from_fd(fuse, device, SessionACL::All, config).map_err(|source| MountError::Handshake { source })?;
    let (sender, ended) = mpsc::channel();
    thread::Builder::new()
        .name("fuse-session".into())
        // Nobody hears it if the mount was only taken out of sight.
        .spawn(move || drop(sender.send(session.run())))
        .map_err(|source| MountError::Threads { source })?;
    Ok(ended)
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
