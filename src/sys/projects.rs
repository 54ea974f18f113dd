//! Projects of ext4 and XFS: files that are counted together by the number of their project, and how much they may hold.
//!
//! What is made in a directory of a project belongs to it as well. The kernel keeps the limit against everybody who has no
//! `CAP_SYS_RESOURCE` (XFS: against everybody). By calls of the kernel itself: no crate was found that knows projects. The
//! structures are those of `linux/quota.h`, `linux/dqblk_xfs.h` and `linux/fs.h`, which never change.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::ioctl::{Opcode, Updater, opcode};

/// `struct fsxattr`
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copied_extent_size: u32,
    unused: [u8; 8],
}

/// `struct if_dqblk`
#[repr(C)]
#[derive(Default)]
struct Account {
    /// In blocks of 1 KiB; 0 is as many as they like.
    most: u64,
    warn: u64,
    /// Bytes.
    used: u64,
    most_files: u64,
    warn_files: u64,
    files: u64,
    until: u64,
    until_files: u64,
    valid: u32,
}

/// `struct fs_quota_statv`
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    unused: u8,
    flags: u16,
    rest: [u32; 19],
    more: [u64; 10],
}

const MAGIC: u8 = b'X';
const GET_ATTRIBUTES: Opcode = opcode::read::<Attributes>(MAGIC, 31);
const SET_ATTRIBUTES: Opcode = opcode::write::<Attributes>(MAGIC, 32);
/// `FS_XFLAG_PROJINHERIT`
const INHERITED: u32 = 0x200;

/// `QCMD(…, PRJQUOTA)`
const fn of_projects(command: u32) -> u32 {
    command << 8 | 2
}
const GET: u32 = of_projects(0x80_0007);
const SET: u32 = of_projects(0x80_0008);
const STATE: u32 = of_projects((b'X' as u32) << 8 | 8);
/// `FS_QUOTA_PDQ_ENFD`: limits of projects are kept.
const KEPT: u16 = 1 << 5;
/// `QIF_BLIMITS`
const LIMITS_OF_BLOCKS: u32 = 1;
const BLOCK: u64 = 1024;

/// Numbers from here on are ours, where nobody else has them.
const FIRST: u32 = 0x5452_0000;
/// So many are looked at.
const NUMBERS: u32 = 100_000;

/// Asks the part of the kernel that keeps quotas on the file system of `on`.
#[expect(unsafe_code, reason = "neither nix nor rustix knows quotactl_fd")]
fn quota<T>(on: &File, command: u32, project: u32, argument: &mut T) -> io::Result<()> {
    // SAFETY: each command above reads or writes the one structure that is given with it, whose layout is the kernel's and of
    // which any content is valid; both borrows live through the call.
    let result = unsafe {
        nix::libc::syscall(nix::libc::SYS_quotactl_fd, on.as_raw_fd(), command, project, std::ptr::from_mut(argument))
    };
    nix::errno::Errno::result(result)?;
    Ok(())
}

#[expect(unsafe_code, reason = "neither nix nor rustix knows these calls")]
fn attributes<const OPCODE: Opcode>(on: &File, argument: &mut Attributes) -> io::Result<()> {
    // SAFETY: both opcodes above are made of this structure, which is plain numbers in the kernel's layout.
    let request = unsafe { Updater::<OPCODE, Attributes>::new(argument) };
    // SAFETY: as above; a file system that knows no projects refuses the call.
    Ok(unsafe { rustix::ioctl::ioctl(on.as_fd(), request) }?)
}

/// Whether limits of projects are kept on the file system of `on`.
pub fn are_kept(on: &File) -> bool {
    let mut state = State { version: 1, ..State::default() };
    // A kernel or a file system without such quotas says so in many ways.
    quota(on, STATE, 0, &mut state).is_ok() && state.flags & KEPT != 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Project(u32);

impl Project {
    /// That of ours to which belongs whatever is made in the directory.
    pub fn of(directory: &File) -> io::Result<Option<Self>> {
        let mut found = Attributes::default();
        match attributes::<GET_ATTRIBUTES>(directory, &mut found) {
            Err(error) if is_unknown(&error) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => {
                // Those of an administrator are none of our business.
                let is_ours = (FIRST..FIRST + NUMBERS).contains(&found.project);
                Ok((found.flags & INHERITED != 0 && is_ours).then_some(Self(found.project)))
            }
        }
    }

    /// One that nobody has on the file system of `on`.
    pub fn unused(on: &File) -> io::Result<Self> {
        for number in FIRST..FIRST + NUMBERS {
            let account = Self(number).account(on)?;
            if account.files == 0 && account.most == 0 {
                return Ok(Self(number));
            }
        }
        Err(io::Error::other("all numbers of projects are taken"))
    }

    /// Takes a new directory in, and all that is made in it.
    pub fn take(self, directory: &File) -> io::Result<()> {
        let mut changed = Attributes::default();
        attributes::<GET_ATTRIBUTES>(directory, &mut changed)?;
        changed.project = self.0;
        changed.flags |= INHERITED;
        attributes::<SET_ATTRIBUTES>(directory, &mut changed)
    }

    /// Lets all of it hold `bytes` at most, as many as they like when `None`.
    pub fn set_limit(self, on: &File, bytes: Option<u64>) -> io::Result<()> {
        // No limit at all is written as none.
        let most = bytes.map_or(0, |bytes| (bytes / BLOCK).max(1));
        quota(on, SET, self.0, &mut Account { most, valid: LIMITS_OF_BLOCKS, ..Account::default() })
    }

    /// Bytes that all of it holds.
    pub fn usage(self, on: &File) -> io::Result<u64> {
        Ok(self.account(on)?.used)
    }

    fn account(self, on: &File) -> io::Result<Account> {
        let mut account = Account::default();
        match quota(on, GET, self.0, &mut account) {
            // XFS knows only those that hold something.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Account::default()),
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(Account::default()),
            done => done.map(|()| account),
        }
    }
}

fn is_unknown(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, ENOTTY, EOPNOTSUPP};
    matches!(error.raw_os_error(), Some(EINVAL | ENOTTY | EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_has_them() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!(size_of::<Account>(), 72);
        assert_eq!(size_of::<State>(), 160);
    }

    #[test]
    fn a_file_system_without_projects_has_none() {
        let proc = File::open("/proc").unwrap();
        assert!(!are_kept(&proc) && Project::of(&proc).unwrap().is_none());
        assert!(Project(FIRST).take(&proc).is_err());
    }
}
