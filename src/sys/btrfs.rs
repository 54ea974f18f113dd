//! Subvolumes of btrfs and how much they may hold, which its kernel part keeps, against root too.
//!
//! By its ioctls: no crate wraps them without the C library of btrfs-progs, and three are all that is needed. The structures
//! are those of `linux/btrfs.h`, which never change.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

/// Of every subvolume's own directory.
const FIRST_INODE: u64 = 256;
const QUOTA_TREE: u64 = 8;
const QGROUP_INFO: u32 = 242;
const ENABLE: u64 = 1;
const LIMIT_REFERENCED: u64 = 1;

/// `struct btrfs_ioctl_vol_args`
#[repr(C)]
struct Named {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_ino_lookup_args`
#[repr(C)]
struct InodeLookup {
    tree: u64,
    inode: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_quota_ctl_args`
#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

/// `struct btrfs_ioctl_qgroup_limit_args`
#[repr(C)]
struct GroupLimit {
    group: u64,
    flags: u64,
    referenced: u64,
    exclusive: u64,
    reserved: [u64; 2],
}

/// `struct btrfs_ioctl_search_args`
#[repr(C)]
struct Search {
    tree: u64,
    objects: [u64; 2],
    offsets: [u64; 2],
    transactions: [u64; 2],
    kinds: [u32; 2],
    count: u32,
    unused: u32,
    unused_too: [u64; 4],
    found: [u8; 3992],
}

const MAGIC: u8 = 0x94;
const SUBVOLUME_CREATE: Opcode = opcode::write::<Named>(MAGIC, 14);
const TREE_SEARCH: Opcode = opcode::read_write::<Search>(MAGIC, 17);
const INODE_LOOKUP: Opcode = opcode::read_write::<InodeLookup>(MAGIC, 18);
const QUOTA_CONTROL: Opcode = opcode::read_write::<QuotaControl>(MAGIC, 40);
const GROUP_LIMIT: Opcode = opcode::read::<GroupLimit>(MAGIC, 43);

/// A call of btrfs with `argument`, which it reads and may write to.
#[expect(unsafe_code, reason = "neither nix nor rustix knows these calls")]
fn call<const OPCODE: Opcode, T>(on: &File, argument: &mut T) -> rustix::io::Result<()> {
    // SAFETY: each opcode above is made of the structure that is given with it and has no other user; those structures are
    // plain numbers in the kernel's layout, of which any content is valid.
    let request = unsafe { Updater::<OPCODE, T>::new(argument) };
    // SAFETY: as above; the descriptor lives as long as the borrow, and a file system that is not btrfs refuses the call.
    unsafe { rustix::ioctl::ioctl(on.as_fd(), request) }
}

/// Whether the directory lies on btrfs.
pub fn is_btrfs(directory: &File) -> io::Result<bool> {
    const BTRFS_MAGIC: i64 = 0x9123_683e;
    let stat = nix::sys::statfs::fstatfs(directory)?;
    Ok(stat.filesystem_type().0 == BTRFS_MAGIC)
}

/// Whether the directory is a subvolume of btrfs.
pub fn is_subvolume(directory: &File) -> io::Result<bool> {
    Ok(directory.metadata()?.ino() == FIRST_INODE && is_btrfs(directory)?)
}

/// Makes the subvolume `name` in a directory on btrfs.
pub fn create_subvolume(parent: &File, name: &OsStr) -> io::Result<()> {
    let mut argument = Named { fd: 0, name: [0; 4088] };
    // The last byte stays 0.
    let place = argument.name.get_mut(..name.len()).filter(|place| place.len() < 4088);
    place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name.as_bytes());
    Ok(call::<SUBVOLUME_CREATE, _>(parent, &mut argument)?)
}

/// The number of the subvolume that the directory lies in, and so of the group that is counted for it.
fn group(directory: &File) -> io::Result<u64> {
    let mut argument = InodeLookup { tree: 0, inode: FIRST_INODE, name: [0; 4080] };
    call::<INODE_LOOKUP, _>(directory, &mut argument)?;
    Ok(argument.tree)
}

/// Lets a subvolume hold `bytes` at most. Begins to count, where the file system does not yet; what is there is then counted
/// in the background.
pub fn set_limit(subvolume: &File, bytes: u64) -> io::Result<()> {
    let mut control = QuotaControl { command: ENABLE, status: 0 };
    match call::<QUOTA_CONTROL, _>(subvolume, &mut control) {
        Ok(()) | Err(Errno::EXIST) => limit(subvolume, bytes),
        Err(errno) => Err(errno.into()),
    }
}

/// Lets a subvolume hold as much as it likes.
pub fn clear_limit(subvolume: &File) -> io::Result<()> {
    match limit(subvolume, u64::MAX) {
        // Nothing is counted there at all.
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => Ok(()),
        done => done,
    }
}

fn limit(subvolume: &File, referenced: u64) -> io::Result<()> {
    let group = group(subvolume)?;
    let mut limit = GroupLimit { group, flags: LIMIT_REFERENCED, referenced, exclusive: 0, reserved: [0; 2] };
    Ok(call::<GROUP_LIMIT, _>(subvolume, &mut limit)?)
}

/// Bytes that a subvolume holds, as of the last commit of the file system, which is at most 30 s ago.
pub fn usage(subvolume: &File) -> io::Result<u64> {
    let group = group(subvolume)?;
    let mut search = Search {
        tree: QUOTA_TREE,
        objects: [0; 2],
        offsets: [group; 2],
        transactions: [0, u64::MAX],
        kinds: [QGROUP_INFO; 2],
        count: 1,
        unused: 0,
        unused_too: [0; 4],
        found: [0; 3992],
    };
    call::<TREE_SEARCH, _>(subvolume, &mut search)?;
    // A header of 32 bytes, the generation, and then what is wanted.
    let bytes = search.found.get(40..48).filter(|_| search.count == 1).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_le_bytes).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "btrfs does not count it"))
}

/// Has everything written, so that [`usage`] tells the present.
pub fn commit(subvolume: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(subvolume)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_has_them() {
        assert_eq!(size_of::<Named>(), 4096);
        assert_eq!(size_of::<InodeLookup>(), 4096);
        assert_eq!(size_of::<QuotaControl>(), 16);
        assert_eq!(size_of::<GroupLimit>(), 48);
        assert_eq!(size_of::<Search>(), 4096);
    }

    #[test]
    fn another_file_system_is_told_apart() {
        let proc = File::open("/proc").unwrap();
        assert!(!is_btrfs(&proc).unwrap() && !is_subvolume(&proc).unwrap());
        assert!(usage(&proc).is_err());
    }
}
