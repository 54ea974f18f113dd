//! What a command shows on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};

use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};

/// All that a command has written to a terminal so wide, which is all that it has, and how it has ended.
pub(crate) fn on_terminal(command: &mut Command, columns: u16) -> (String, ExitStatus) {
    typed_on_terminal(command, columns, "")
}

/// The same, of one that asks, and is answered line by line.
pub(crate) fn typed_on_terminal(command: &mut Command, columns: u16, lines: &str) -> (String, ExitStatus) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let end = || Stdio::from(slave.try_clone().unwrap());
    command.env("TERM", "xterm").env("NO_COLOR", "1").env_remove("COLUMNS");
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    // What holds the other end: the command alone is to.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(slave);
    let (mut master, mut lines, mut seen, mut chunk) =
        (File::from(master), lines.lines().peekable(), Vec::new(), [0; 4096]);
    // It ends by an error (EIO) when the last who holds the other end has gone.
    while let Ok(count @ 1..) = master.read(&mut chunk) {
        seen.extend_from_slice(&chunk[..count]);
        // Errors come in pieces, of which one may end so as well.
        let is_asked = seen.ends_with(b"]: ") || seen.ends_with(b"nothing: ");
        if let Some(line) = lines.next_if(|_| is_asked) {
            master.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    }
    (String::from_utf8(seen).unwrap().replace("\r\n", "\n"), child.wait().unwrap())
}

/// The line that was drawn first of how far it is, and what is left on the terminal in the end: how often the line is drawn anew
/// differs from time to time.
pub(crate) fn drawn_and_left(shown: &str) -> String {
    let mut drawn = shown.split("\r\x1b[K");
    let (before, line, left) = (drawn.next().unwrap(), drawn.next(), drawn.last());
    match (line, left) {
        (Some(line), Some(left)) => format!("{before}--- drawn\n{line}\n--- left\n{left}"),
        (line, _) => format!("{before}--- drawn, and not taken away\n{}", line.unwrap_or("nothing\n")),
    }
}
