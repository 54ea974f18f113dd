//! Terminals: made for a command, and the one that a person sits at.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, Termios, Winsize};

/// Both ends of a pseudo-terminal.
#[derive(Debug)]
pub struct Pair {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

impl Pair {
    /// Makes a terminal in the `/dev/pts` of our mount namespace; it belongs to our user.
    pub fn open(rows: u16, columns: u16) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let master = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
        let status = rustix::fs::fstat(&master)?;
        let number = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
        // Whoever is root inside may have put something else there.
        if FileType::from_raw_mode(status.st_mode) != FileType::CharacterDevice || number != (5, 2) {
            return Err(io::Error::other("/dev/pts/ptmx is not the kernel's"));
        }
        rustix::pty::unlockpt(&master)?;
        set_size(&master, rows, columns)?;
        // By descriptor: a path could be anything by now.
        let slave =
            rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        Ok(Self { master, slave })
    }
}

/// Makes the terminal that of this session, whose leader we must be, and our standard streams.
pub fn make_ours(slave: &OwnedFd) -> io::Result<()> {
    rustix::process::ioctl_tiocsctty(slave)?;
    use_as_streams(slave, slave)
}

/// Puts descriptors in the places of standard input, and of output and error.
pub fn use_as_streams(input: impl AsFd, output: impl AsFd) -> io::Result<()> {
    nix::unistd::dup2_stdin(input)?;
    nix::unistd::dup2_stdout(&output)?;
    Ok(nix::unistd::dup2_stderr(output)?)
}

pub fn set_size(terminal: impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
    Ok(rustix::termios::tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// Rows and columns; `None` for what is no terminal.
pub fn size(terminal: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some((size.ws_row, size.ws_col))
}

/// Text from others in one line that gives no orders to a terminal: its control characters are written out.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => out.extend(letter.escape_default()),
            false => out.push(letter),
        }
    }
    out
}

/// While it lives, standard input is a terminal that passes on every key as it is.
#[derive(Debug)]
pub struct RawMode(Termios);

impl RawMode {
    pub fn begin() -> io::Result<Self> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Nothing more can be done for a terminal that has gone away.
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_named_gives_no_orders() {
        assert_eq!(escape("größer 训练.txt"), "größer 训练.txt");
        assert_eq!(escape("a\x1b[2Jb\r\n\u{9b}c"), "a\\u{1b}[2Jb\\r\\n\\u{9b}c");
    }
}
