//! Word of what is written by way of a mount, also when that was taken away and somebody still works there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

use super::attached::Attached;
use super::path_of;

/// Readable when something was written.
#[derive(Debug)]
pub struct Writes(Fanotify);

impl Writes {
    /// What is written from now on by way of `mount`: at each write, and when what was mapped is closed.
    pub fn by(mount: &Attached) -> io::Result<Self> {
        let how = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let opened = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_NONBLOCK;
        let group = Fanotify::init(how, opened)?;
        let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_MOUNT;
        let wanted = MaskFlags::FAN_MODIFY | MaskFlags::FAN_CLOSE_WRITE;
        group.mark(flags, wanted, AT_FDCWD, Some(&path_of(&mount.handle())))?;
        Ok(Self(group))
    }

    /// Takes note of what was written, however much; whether there was something.
    pub fn take(&self) -> bool {
        /// As many as the kernel keeps are read by so many turns: whoever writes without end holds nobody up.
        const TURNS: usize = 256;
        let has_some = || match self.0.read_events() {
            Ok(events) => !events.is_empty(),
            Err(nix::errno::Errno::EAGAIN) => false,
            // What was written has gone, or cannot be opened.
            Err(_) => true,
        };
        (0..TURNS).take_while(|_| has_some()).count() > 0
    }
}

impl AsFd for Writes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
