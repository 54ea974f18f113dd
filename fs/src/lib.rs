//! A FUSE filesystem that shows one backing directory under its user's policy, plus generated files.
//!
//! Three layers, each ignorant of the one above it: `fuse` speaks the kernel's protocol and nothing
//! else, `ops` are the operations with plain results, `host` touches the disk.
//!
//! - `tree`: the seam to the user: paths, rules, generated files.
//! - `session`: mounts, unmounts, and removes what a dead process left mounted.
//! - `mountinfo`: which mount lies on top at a path, read without touching it.
//! - `fuse`: the kernel's requests, each one call of `ops` and one reply.
//! - `ops`: lookup, read, write, rename and the rest, without a kernel.
//! - `inode`: numbers of the entries that the kernel knows; pure.
//! - `handle`: numbers of open files and directories; pure.
//! - `host`: input and output strictly beneath the backing directory.
//! - `behind`: what is changed behind the mount, told to the kernel.
//! - `attr`: what `stat` shows.
//! - `caller`: who asks, and what they may enter.
//! - `usage`: what a part of the tree takes of the disk, and may.
//! - `kept`: what one process of a mount keeps for the next.
//! - `error`: every way an operation fails, and its errno.
//! - `sys`: what is done by numbers of descriptors and threads; the only unsafe code.

#![deny(unsafe_code)]

mod attr;
mod behind;
mod caller;
mod error;
mod fuse;
mod handle;
mod host;
mod inode;
mod kept;
mod mountinfo;
mod ops;
mod session;
mod sys;
mod tree;
mod usage;

pub use behind::Behind;
pub use kept::{Handed, KeptError, STATES_READ, VERSION as STATE_VERSION};
pub use ops::xattrs::BACKING;
pub use session::{
    Abilities, MountError, MountOptions, Mounted, NotPaused, Paused, Reason, mount, take_over, unmount_stale,
};
pub use tree::{BadPath, Content, ContentMetadata, Refusal, RelPath, Rule, Tree};
pub use usage::{Account, Quota};
