//! What is mounted where, and mounting it.

pub mod attached;
pub mod writes;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    pub target: PathBuf,
    pub file_system: String,
    pub source: String,
    /// It goes when the one that it is a copy of does: mounts of the machine, seen in a namespace of our own.
    pub follows: bool,
}

/// All mounts of this mount namespace, in mount order.
pub fn list() -> io::Result<Vec<MountPoint>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?))
}

fn parse(text: &str) -> Vec<MountPoint> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<MountPoint> {
    let (left, right) = line.split_once(" - ")?;
    let target = unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    Some(MountPoint {
        target,
        file_system: right.next()?.to_owned(),
        source: right.next().unwrap_or_default().to_owned(),
        follows: left.split(' ').skip(6).any(|field| field.starts_with("master:")),
    })
}

/// The kernel writes blanks, tabs, newlines and backslashes as `\ooo`.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if *byte == b'\\' => {
                out.push(value);
                at += 4;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Gives this (single-threaded) process a mount namespace that sees the host's mounts but never adds to them.
pub fn enter_private_namespace() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    Ok(())
}

/// Leaves all that is mounted, in a mount namespace of our own, for a root in which there is nothing. `place` is any directory. For
/// processes of one thread.
pub fn leave_for_empty_place(place: &Path) -> io::Result<()> {
    enter_private_namespace()?;
    mount_holder(place)?;
    nix::unistd::chdir(place)?;
    // The old root comes to lie on the new one.
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(nix::unistd::chdir("/")?)
}

/// Lets go of the network namespaces and the shared memory of all attempts, in a mount namespace of our own: where the
/// machine does not share its mounts, they would live as long as we do.
pub fn let_go_of_attempts() -> io::Result<()> {
    let is_theirs = |mount: &MountPoint| match mount.file_system.as_str() {
        "nsfs" => true,
        "tmpfs" => mount.source == SHM && mount.target != Path::new("/dev/shm"),
        _ => false,
    };
    let found = list()?.into_iter().filter(|mount| !mount.follows && is_theirs(mount));
    found.into_iter().try_for_each(|mount| detach(&mount.target))
}

/// What the mounts of shared memory are called.
const SHM: &str = "shm";

/// An overlay: `lower` layers from top to bottom, changes go to `upper`.
#[derive(Debug, Clone)]
pub struct Overlay<'a> {
    pub lower: &'a [PathBuf],
    pub upper: &'a Path,
    pub work: &'a Path,
}

/// Mounts an overlay at `target`, without device nodes taking effect; set-uid programs of a container's users may, as far as
/// its processes may gain rights at all.
///
/// What changes goes with the task, so nobody waits for a disk to have it (`volatile`): else the end of a task would
/// write out all that anybody has changed on that file system.
pub fn mount_overlay(overlay: &Overlay<'_>, target: &Path) -> io::Result<()> {
    // Left by a mount before it, whose changes may not all be there: a task begins anew.
    let unsynced = overlay.work.join("work/incompat");
    if unsynced.exists() {
        fs::remove_dir_all(unsynced)?;
    }
    let mut options = Vec::from(b"lowerdir=".as_slice());
    for (index, layer) in overlay.lower.iter().enumerate() {
        if index > 0 {
            options.push(b':');
        }
        options.extend(escape_option(layer));
    }
    for (name, path) in [(",upperdir=", overlay.upper), (",workdir=", overlay.work)] {
        options.extend(name.as_bytes());
        options.extend(escape_option(path));
    }
    options.extend(b",volatile");
    let flags = MsFlags::MS_NODEV;
    mount(Some("overlay"), target, Some("overlay"), flags, Some(options.as_slice()))?;
    Ok(())
}

/// Overlay options are split at `,` and layers at `:`.
fn escape_option(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if b"\\:,".contains(byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}

/// A mount that is not yet attached anywhere; it vanishes when dropped.
#[derive(Debug)]
pub struct Detached(OwnedFd);

/// What a mount's user may do there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
    /// To open a device, and nothing else.
    Device,
}

/// Whether file systems mounted below are taken along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    One,
    All,
}

impl Depth {
    fn flags(self) -> OpenTreeFlags {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        match self {
            Self::One => flags,
            Self::All => flags | OpenTreeFlags::AT_RECURSIVE,
        }
    }
}

impl Detached {
    /// A copy of what is seen at `path`.
    pub fn copy(path: &Path, depth: Depth) -> io::Result<Self> {
        Ok(Self(open_tree(rustix::fs::CWD, path, depth.flags())?))
    }

    /// As [`Self::copy`], but no link on the way is followed, nor one of `/proc`'s: a path that somebody else may change below
    /// a certain point leads where it led when it was looked at, or nowhere.
    pub fn copy_without_links(path: &Path, depth: Depth) -> io::Result<Self> {
        use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Self::copy_of(openat2(nix::fcntl::AT_FDCWD, path, how)?, depth)
    }

    /// A copy of what `handle` is of.
    pub fn copy_of(handle: impl AsFd, depth: Depth) -> io::Result<Self> {
        let flags = OpenTreeFlags::AT_EMPTY_PATH | depth.flags();
        Ok(Self(open_tree(handle, "", flags)?))
    }

    /// Without set-uid programs and, but for a device, device nodes taking effect, and read-only if so wanted.
    pub fn restrict(&self, access: Access) -> io::Result<()> {
        self.set_attributes_of(access, 0)
    }

    /// As [`Self::restrict`], and for itself: what is mounted or unmounted where it was copied from does not act here, nor the
    /// other way round.
    pub fn restrict_apart(&self, access: Access) -> io::Result<()> {
        self.set_attributes_of(access, nix::libc::MS_PRIVATE)
    }

    fn set_attributes_of(&self, access: Access, propagation: u64) -> io::Result<()> {
        let mut set = nix::libc::MOUNT_ATTR_NOSUID;
        set |= if access == Access::Device { nix::libc::MOUNT_ATTR_NOEXEC } else { nix::libc::MOUNT_ATTR_NODEV };
        if access == Access::ReadOnly {
            set |= nix::libc::MOUNT_ATTR_RDONLY;
        }
        set_attributes(&self.0, nix::libc::AT_RECURSIVE, set, 0, propagation)
    }

    /// Shows what user id 0, 1… owns as owned by whom these ids stand for in `namespace`.
    pub fn map_ids(&self, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let namespace = u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?;
        set_attributes(&self.0, 0, nix::libc::MOUNT_ATTR_IDMAP, namespace, 0)
    }

    /// Whether it shows a directory, or a single file.
    pub fn is_directory(&self) -> io::Result<bool> {
        let status = nix::sys::stat::fstat(&self.0)?;
        Ok(status.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR)
    }

    /// Attaches it at the place that `target` is a handle of.
    pub fn attach(&self, target: impl AsFd) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(&self.0, "", target, "", flags)?)
    }
}

#[expect(unsafe_code, reason = "neither std, nix nor rustix wraps mount_setattr")]
fn set_attributes(mount: &OwnedFd, flags: i32, set: u64, namespace: u64, propagation: u64) -> io::Result<()> {
    let attributes = nix::libc::mount_attr { attr_set: set, attr_clr: 0, propagation, userns_fd: namespace };
    // SAFETY: needed for id-mapped and recursive read-only mounts; the path is an empty C string, the structure lives
    // through the call and its true size is passed.
    let result = unsafe {
        nix::libc::syscall(
            nix::libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            nix::libc::AT_EMPTY_PATH | flags,
            &raw const attributes,
            size_of::<nix::libc::mount_attr>(),
        )
    };
    nix::errno::Errno::result(result)?;
    Ok(())
}

/// Whether what lies at `path` can be shown with other owners, below an overlay (Linux 5.19 and later).
pub fn can_map_ids(path: &Path) -> io::Result<bool> {
    let one = |inside, outside| super::idmap::IdRange { inside, outside, count: 1 };
    let ids = super::idmap::IdMap { users: vec![one(0, 1)], groups: vec![one(0, 1)] };
    let mapped = Detached::copy(path, Depth::One)?.map_ids(ids.namespace()?.as_fd());
    match mapped {
        Ok(()) => Ok(kernel() >= (5, 19)),
        Err(error) if is_not_supported(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file system, or the kernel, knows no id-mapped mounts, or whoever has set up the machine forbids them (file systems
/// that belong to another user namespace).
fn is_not_supported(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM};
    matches!(error.raw_os_error(), Some(EINVAL | ENOSYS | EOPNOTSUPP | EPERM))
}

/// Version and patch level of the kernel.
pub fn kernel() -> (u32, u32) {
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let release = release.unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A path that leads to what the handle is of, for calls that take paths only.
pub fn path_of(handle: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// Keeps a namespace at `target`, a file.
pub fn keep_namespace(namespace: &OwnedFd, target: &Path) -> io::Result<()> {
    mount(Some(&path_of(namespace)), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}

/// Mounts a tmpfs that holds mount points only.
pub fn mount_holder(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("trainyard"), target, Some("tmpfs"), flags, Some("mode=755,size=1m"))?;
    Ok(())
}

/// Mounts a kernel file system (`sysfs`, `tmpfs`) at `target`.
pub fn mount_kernel(kind: &str, target: &Path, flags: MsFlags, options: &str) -> io::Result<()> {
    mount(Some(kind), target, Some(kind), flags, Some(options))?;
    Ok(())
}

/// Mounts a tmpfs for a few small files.
pub fn mount_small(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_kernel("tmpfs", target, flags, "size=64k,mode=0755")
}

/// Mounts a tmpfs of `size` bytes, writable by everyone as `/dev/shm` is.
pub fn mount_shm(target: &Path, size: u64) -> io::Result<()> {
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some(SHM), target, Some("tmpfs"), flags, Some(format!("mode=1777,size={size}").as_str()))?;
    Ok(())
}

/// Whether something is mounted at `target`.
pub fn is_mounted(target: &Path) -> io::Result<bool> {
    Ok(list()?.iter().any(|mount| mount.target == target))
}

/// Detaches whatever is mounted at `target`; that nothing is mounted there is no error.
pub fn detach(target: &Path) -> io::Result<()> {
    match umount2(target, MntFlags::MNT_DETACH) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_their_escapes() {
        let line = r"36 35 98:0 /mnt1 /mnt/a\040b rw,noatime shared:1 - fuse.trainyard trainyard rw";
        let found = parse(line);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].target, Path::new("/mnt/a b"));
        assert_eq!((found[0].file_system.as_str(), found[0].source.as_str()), ("fuse.trainyard", "trainyard"));
        assert!(parse("garbage").is_empty() && !found[0].follows);
        let copied = "36 35 98:0 / /run/net rw,noatime shared:7 master:1 - nsfs nsfs rw";
        assert!(parse(copied)[0].follows);
    }

    #[test]
    fn links_on_the_way_are_refused_where_that_is_asked() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        fs::create_dir_all(place.join("real/below")).unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        let copy = |path: &str| Detached::copy_without_links(&place.join(path), Depth::All);
        assert!(copy("real/below").unwrap().is_directory().unwrap());
        for path in ["link", "link/below"] {
            assert_eq!(copy(path).unwrap_err().raw_os_error(), Some(nix::libc::ELOOP), "{path}");
        }
        assert!(Detached::copy_without_links(Path::new("/proc/self/root/etc"), Depth::One).is_err());
    }

    #[test]
    fn separators_in_layer_paths_are_escaped() {
        assert_eq!(escape_option(Path::new("/a:b,c")), b"/a\\:b\\,c");
    }
}
