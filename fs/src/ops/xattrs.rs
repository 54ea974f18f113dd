//! Extended attributes of people's own (`user.*`), kept by the backing file system.
//!
//! Others are not shown: `security.*` and `system.*` of backing files mean something to the kernel for these files
//! alone, and `trusted.*` is the daemon's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::Ops;
use crate::attr::Kind;
use crate::error::{Error, Result};
use crate::host::Pin;
use crate::inode::Identity;
use crate::tree::Tree;
use crate::usage::BLOCK;

const OWN: &[u8] = b"user.";
/// The attribute that tells root, and nobody else, which file of the backing directory is shown: `DEVICE:INODE`, in decimal. The
/// kernel hands no name that begins with `trusted.` on for others. It is not listed, and nobody sets it.
pub const BACKING: &str = "trusted.backing";
/// The kernel's own bound for a value, and for all names together, bytes.
const MAX: usize = 64 << 10;

impl<T: Tree> Ops<T> {
    pub(crate) fn getxattr(&self, ino: u64, name: &OsStr) -> Result<Vec<u8>> {
        if name == BACKING {
            return match self.bearer(ino, Errno::NODATA)?.identity() {
                Identity::Stored { dev, ino, .. } => Ok(format!("{}:{ino}", dev.full()).into_bytes()),
                Identity::Generated => Err(told("getxattr")(Errno::NODATA)),
            };
        }
        check_name(name, Errno::NODATA)?;
        let pin = self.bearer(ino, Errno::NODATA)?;
        let mut value = vec![0; MAX];
        let length = getxattr(pin.magic_link(), name, &mut value).map_err(told("getxattr"))?;
        value.truncate(length);
        Ok(value)
    }

    /// Names, each behind a NUL byte, as the kernel hands them out.
    pub(crate) fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        let Ok(pin) = self.bearer(ino, Errno::NODATA) else { return Ok(Vec::new()) };
        let mut names = vec![0; MAX];
        let length = listxattr(pin.magic_link(), &mut names).map_err(told("listxattr"))?;
        names.truncate(length);
        let own = names.split_inclusive(|byte| *byte == 0).filter(|name| name.starts_with(OWN));
        Ok(own.flatten().copied().collect())
    }

    pub(crate) fn setxattr(&self, ino: u64, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        check_name(name, Errno::OPNOTSUPP)?;
        let flags = XattrFlags::from_bits(flags.cast_unsigned()).ok_or(Error::Flags)?;
        self.changing(ino, |_| BLOCK, |pin| setxattr(pin.magic_link(), name, value, flags).map_err(told("setxattr")))
    }

    pub(crate) fn removexattr(&self, ino: u64, name: &OsStr) -> Result<()> {
        check_name(name, Errno::OPNOTSUPP)?;
        self.changing(ino, |_| 0, |pin| removexattr(pin.magic_link(), name).map_err(told("removexattr")))
    }

    /// Only files and directories bear attributes of people's own.
    fn bearer(&self, ino: u64, otherwise: Errno) -> Result<Pin> {
        let pin = match self.pin_even_nameless(ino) {
            // Generated, so without any.
            Err(Error::Stale { .. } | Error::Generated) => return Err(told("getxattr")(otherwise)),
            pin => pin?,
        };
        match pin.attr().kind {
            Kind::File | Kind::Directory => Ok(pin),
            _ => Err(told("getxattr")(otherwise)),
        }
    }
}

fn told(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::host(call)(nix::errno::Errno::from_raw(errno.raw_os_error()))
}

fn check_name(name: &OsStr, otherwise: Errno) -> Result<()> {
    match name.as_bytes().starts_with(OWN) {
        true => Ok(()),
        false => Err(told("xattr")(otherwise)),
    }
}
