//! Sessions: all processes that came from one leader and have not made a session of their own.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use super::process::PidFd;

/// The machine's processes, also for who has entered a mount namespace in which they are not seen.
#[derive(Debug)]
pub struct Processes(OwnedFd);

impl Processes {
    pub fn open() -> io::Result<Self> {
        Ok(Self(open("/proc", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?))
    }

    /// What lives of the session that `leader` leads or led.
    pub fn of_session(&self, leader: i32) -> io::Result<Vec<PidFd>> {
        let mut directory = nix::dir::Dir::openat(
            &self.0,
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let names = directory.iter().filter_map(Result::ok);
        let pids = names.filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
        Ok(pids.filter(|pid| self.lives_in(*pid, leader)).filter_map(|pid| self.take(pid, leader)).collect())
    }

    fn take(&self, pid: i32, leader: i32) -> Option<PidFd> {
        let process = PidFd::open(pid).ok()?;
        // The number may have become another's before we held the process.
        self.lives_in(pid, leader).then_some(process)
    }

    fn lives_in(&self, pid: i32, leader: i32) -> bool {
        let mut text = Vec::new();
        let file = openat(&self.0, format!("{pid}/stat").as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
        let read = file.map_err(io::Error::from).and_then(|file| File::from(file).read_to_end(&mut text));
        read.is_ok() && is_member(&String::from_utf8_lossy(&text), leader)
    }
}

/// `PID (NAME) STATE PPID PGRP SESSION …`, the 20th is the count of threads; a name may hold anything.
fn is_member(stat: &str, leader: i32) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().take(18).collect();
    let [state, _, _, session, ..] = fields.as_slice() else { return false };
    // Of a process whose first thread has ended the others may live.
    let threads = fields.get(17).and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
    let lives = !matches!(*state, "Z" | "X") || threads > 1;
    lives && session.parse() == Ok(leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_read_whatever_a_process_calls_itself() {
        assert!(is_member("7 (a) R 1 2) S 1 7 42 0 -1", 42));
        assert!(!is_member("7 (sh) S 1 7 41 0 -1", 42));
        assert!(!is_member("7 (sh) Z 1 7 42 0 -1", 42));
        let ended = |threads: u32| format!("7 (sh) Z 1 7 42 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 99");
        assert!(!is_member(&ended(1), 42) && is_member(&ended(2), 42), "other threads live on");
        assert!(!is_member("nonsense", 42));
        let own = nix::unistd::getsid(None).unwrap().as_raw();
        assert!(!Processes::open().unwrap().of_session(own).unwrap().is_empty());
    }
}
