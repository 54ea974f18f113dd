//! Subvolumes of btrfs and how much they may hold, which its kernel part keeps, against root too.
//!
//! Several subvolumes are counted together by a *group* of the first of them. By ioctls: no crate was found that wraps them
//! without the C library of btrfs-progs, and a few are all that is needed. The structures
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
const ROOT_TREE: u64 = 1;
const QUOTA_TREE: u64 = 8;
const ROOT_ITEM: u32 = 132;
/// By which a subvolume that has a name is found from below.
const ROOT_BACK_REFERENCE: u32 = 144;
const QGROUP_INFO: u32 = 242;
const QGROUP_RELATION: u32 = 246;
const ENABLE: u64 = 1;
const LIMIT_REFERENCED: u64 = 1;
const INHERIT: u64 = 1 << 2;
const NAME_MAX: usize = 4040;
/// Groups of groups; those of subvolumes are 0.
const LEVEL: u64 = 1 << 48;

/// `struct btrfs_ioctl_vol_args_v2`
#[repr(C)]
struct NewSubvolume {
    fd: i64,
    transaction: u64,
    flags: u64,
    inherit_size: u64,
    inherit: *const Inherit,
    unused: [u64; 2],
    name: [u8; NAME_MAX],
}

/// `struct btrfs_qgroup_inherit`, of one group.
#[repr(C)]
struct Inherit {
    flags: u64,
    groups: u64,
    copies: [u64; 2],
    limits: [u64; 5],
    group: u64,
}

/// `struct btrfs_ioctl_qgroup_create_args`
#[repr(C)]
struct NewGroup {
    create: u64,
    group: u64,
}

/// `struct btrfs_ioctl_qgroup_assign_args`
#[repr(C)]
struct Assignment {
    assign: u64,
    member: u64,
    group: u64,
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

/// Of `struct btrfs_ioctl_search_header`: what stands before each thing that was found.
const HEADER: usize = 32;

impl Search {
    fn of(tree: u64, object: u64, kind: u32, offsets: [u64; 2], count: u32) -> Self {
        Self {
            tree,
            objects: [object; 2],
            offsets,
            transactions: [0, u64::MAX],
            kinds: [kind; 2],
            count,
            unused: 0,
            unused_too: [0; 4],
            found: [0; 3992],
        }
    }

    fn number_at(&self, place: usize) -> Option<u64> {
        let bytes = self.found.get(place..place.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Whether a tree has something of this kind for `object`.
fn has(on: &File, tree: u64, object: u64, kind: u32) -> io::Result<bool> {
    let mut search = Search::of(tree, object, kind, [0, u64::MAX], 1);
    call::<TREE_SEARCH, _>(on, &mut search)?;
    Ok(search.count > 0)
}

const MAGIC: u8 = 0x94;
const SUBVOLUME_CREATE: Opcode = opcode::write::<NewSubvolume>(MAGIC, 24);
const TREE_SEARCH: Opcode = opcode::read_write::<Search>(MAGIC, 17);
const INODE_LOOKUP: Opcode = opcode::read_write::<InodeLookup>(MAGIC, 18);
const QUOTA_CONTROL: Opcode = opcode::read_write::<QuotaControl>(MAGIC, 40);
const GROUP_ASSIGN: Opcode = opcode::write::<Assignment>(MAGIC, 41);
const GROUP_CREATE: Opcode = opcode::write::<NewGroup>(MAGIC, 42);
const GROUP_LIMIT: Opcode = opcode::read::<GroupLimit>(MAGIC, 43);

/// A call of btrfs with `argument`, which it reads and may write to.
#[expect(unsafe_code, reason = "neither nix nor rustix knows these calls")]
fn call<const OPCODE: Opcode, T>(on: &File, argument: &mut T) -> rustix::io::Result<()> {
    // SAFETY: each opcode above is made of the structure that is given with it and has no other user; those structures are
    // plain numbers in the kernel's layout, of which any content is valid; the one pointer among them leads to what its
    // caller keeps until the call is done.
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

/// Subvolumes that are counted together, by the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(u64);

impl Group {
    /// That of the subvolume `first`, whether or not it is there yet.
    pub fn of(first: &File) -> io::Result<Self> {
        Ok(Self(LEVEL | number(first)?))
    }

    /// Begins to count `members` together. `on` is a directory of the same file system and of none of them. Where that has not
    /// counted at all yet, what is there is counted in the background.
    pub fn begin(self, on: &File, members: &[File]) -> io::Result<()> {
        let mut control = QuotaControl { command: ENABLE, status: 0 };
        there_already(call::<QUOTA_CONTROL, _>(on, &mut control))?;
        there_already(call::<GROUP_CREATE, _>(on, &mut NewGroup { create: 1, group: self.0 }))?;
        for member in members {
            let mut assignment = Assignment { assign: 1, member: number(member)?, group: self.0 };
            there_already(call::<GROUP_ASSIGN, _>(on, &mut assignment))?;
        }
        Ok(())
    }

    /// Lets all of them together hold `bytes` at most, as many as they like when `None`. `on` is as for [`Self::begin`].
    pub fn set_limit(self, on: &File, bytes: Option<u64>) -> io::Result<()> {
        let referenced = bytes.unwrap_or(u64::MAX);
        let mut limit =
            GroupLimit { group: self.0, flags: LIMIT_REFERENCED, referenced, exclusive: 0, reserved: [0; 2] };
        match call::<GROUP_LIMIT, _>(on, &mut limit) {
            // Nothing is counted there at all.
            Err(Errno::NOTCONN | Errno::NOENT) if bytes.is_none() => Ok(()),
            done => Ok(done?),
        }
    }

    /// Bytes that all of them hold, as of the last commit of the file system, which is at most 30 s ago.
    pub fn usage(self, on: &File) -> io::Result<u64> {
        let mut search = Search::of(QUOTA_TREE, 0, QGROUP_INFO, [self.0; 2], 1);
        call::<TREE_SEARCH, _>(on, &mut search)?;
        // The generation comes first.
        let bytes = search.number_at(HEADER + 8).filter(|_| search.count == 1);
        bytes.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "btrfs does not count it"))
    }

    /// Lets go of the counts of subvolumes that were removed, which kernels before 6.11 keep for ever. Says whether some are
    /// still being removed. `on` is as for [`Self::begin`].
    pub fn forget_removed(self, on: &File) -> io::Result<bool> {
        let mut is_waiting = false;
        for member in self.members(on)? {
            if has(on, ROOT_TREE, member, ROOT_BACK_REFERENCE)? {
                continue;
            }
            if has(on, ROOT_TREE, member, ROOT_ITEM)? {
                is_waiting = true;
                continue;
            }
            match call::<GROUP_CREATE, _>(on, &mut NewGroup { create: 0, group: member }) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::BUSY) => is_waiting = true,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(is_waiting)
    }

    /// The numbers of the subvolumes that are counted in it.
    fn members(self, on: &File) -> io::Result<Vec<u64>> {
        let mut members = Vec::new();
        let mut from = 0;
        loop {
            let mut search = Search::of(QUOTA_TREE, self.0, QGROUP_RELATION, [from, u64::MAX], u32::MAX);
            match call::<TREE_SEARCH, _>(on, &mut search) {
                // Nothing is counted there at all.
                Err(Errno::NOENT) => return Ok(members),
                done => done?,
            }
            let found: Vec<u64> = (0..usize::try_from(search.count).unwrap_or(0))
                // Each is a header alone; its key has the transaction and the group before the member.
                .map_while(|number| search.number_at(number * HEADER + 16))
                .collect();
            let Some(last) = found.last() else { return Ok(members) };
            from = last.saturating_add(1);
            members.extend(found.into_iter().filter(|member| *member < LEVEL));
        }
    }
}

fn there_already(done: rustix::io::Result<()>) -> io::Result<()> {
    match done {
        Err(Errno::EXIST) => Ok(()),
        done => Ok(done?),
    }
}

/// Makes the subvolume `name` in a directory on btrfs, counted in `group` if that is there.
pub fn create_subvolume(parent: &File, name: &OsStr, group: Option<Group>) -> io::Result<()> {
    let inherit = group.map(|group| Inherit { flags: 0, groups: 1, copies: [0; 2], limits: [0; 5], group: group.0 });
    let mut new = NewSubvolume {
        fd: 0,
        transaction: 0,
        flags: if inherit.is_some() { INHERIT } else { 0 },
        inherit_size: inherit.as_ref().map_or(0, |inherit| size_of_val(inherit) as u64),
        inherit: inherit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
        unused: [0; 2],
        name: [0; NAME_MAX],
    };
    // The last byte stays 0.
    let place = new.name.get_mut(..name.len()).filter(|place| place.len() < NAME_MAX);
    place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name.as_bytes());
    Ok(call::<SUBVOLUME_CREATE, _>(parent, &mut new)?)
}

/// The number of the subvolume that the directory lies in.
fn number(directory: &File) -> io::Result<u64> {
    let mut argument = InodeLookup { tree: 0, inode: FIRST_INODE, name: [0; 4080] };
    call::<INODE_LOOKUP, _>(directory, &mut argument)?;
    Ok(argument.tree)
}

/// Has everything written, so that [`Group::usage`] tells the present.
pub fn commit(subvolume: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(subvolume)?)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a file system is made and mounted by the machine's own tools")]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_has_them() {
        assert_eq!(size_of::<NewSubvolume>(), 4096);
        assert_eq!(size_of::<Inherit>(), 80);
        assert_eq!((size_of::<NewGroup>(), size_of::<Assignment>()), (16, 24));
        assert_eq!(size_of::<InodeLookup>(), 4096);
        assert_eq!(size_of::<QuotaControl>(), 16);
        assert_eq!(size_of::<GroupLimit>(), 48);
        assert_eq!(size_of::<Search>(), 4096);
    }

    fn skip(missing: &str) {
        crate::sys::skip("the_counts_of_what_is_there_stay_and_those_of_what_was_removed_go", missing);
    }

    /// A small file system on a loop device; `None` where the machine cannot.
    struct Disk(tempfile::TempDir);

    impl Disk {
        fn make() -> Option<Self> {
            let tools =
                ["/usr/sbin/mkfs.btrfs", "/sbin/mkfs.btrfs"].iter().any(|tool| std::path::Path::new(tool).exists());
            if !tools || !nix::unistd::Uid::effective().is_root() {
                skip("mkfs.btrfs or root");
                return None;
            }
            let disk = Self(tempfile::tempdir().unwrap());
            let image = disk.0.path().join("image");
            File::create(&image).unwrap().set_len(256 << 20).unwrap();
            std::fs::create_dir(disk.top()).unwrap();
            let run = |program: &str, arguments: &[&OsStr]| {
                let output = std::process::Command::new(program).args(arguments).output().unwrap();
                assert!(output.status.success(), "{output:?}");
            };
            run("mkfs.btrfs", &[OsStr::new("--quiet"), image.as_os_str()]);
            run("mount", &[OsStr::new("-oloop"), image.as_os_str(), disk.top().as_os_str()]);
            Some(disk)
        }

        fn top(&self) -> std::path::PathBuf {
            self.0.path().join("top")
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            // The loop device goes with it.
            let _ = std::process::Command::new("umount").arg(self.top()).status();
        }
    }

    #[test]
    fn the_counts_of_what_is_there_stay_and_those_of_what_was_removed_go() {
        let Some(disk) = Disk::make() else { return };
        let top = File::open(disk.top()).unwrap();
        create_subvolume(&top, OsStr::new("first"), None).unwrap();
        let first = File::open(disk.top().join("first")).unwrap();
        let group = Group::of(&first).unwrap();
        group.begin(&top, std::slice::from_ref(&first)).unwrap();
        for number in 0..200 {
            create_subvolume(&top, OsStr::new(&format!("s{number}")), Some(group)).unwrap();
        }
        assert!(!group.forget_removed(&top).unwrap());
        assert_eq!(group.members(&top).unwrap().len(), 201);
        std::fs::remove_dir(disk.top().join("s7")).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while group.forget_removed(&top).unwrap() {
            assert!(std::time::Instant::now() < deadline, "it is never removed");
            commit(&top).unwrap();
            // The kernel's cleaner does it when it wakes.
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        assert_eq!(group.members(&top).unwrap().len(), 200);
    }

    #[test]
    fn another_file_system_is_told_apart() {
        let proc = File::open("/proc").unwrap();
        assert!(!is_btrfs(&proc).unwrap() && !is_subvolume(&proc).unwrap());
        assert!(Group::of(&proc).is_err());
    }
}
