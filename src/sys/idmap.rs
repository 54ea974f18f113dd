//! User namespaces: which ids inside stand for which ids outside.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::waitpid;
use serde::{Deserialize, Serialize};

use super::process::{Fork, exit_now, fork};

/// Consecutive ids: `inside`, `inside + 1`… stand for `outside`, `outside + 1`….
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// Users and groups of a user namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdMap {
    pub users: Vec<IdRange>,
    pub groups: Vec<IdRange>,
}

/// The id outside, if there is one.
pub fn outside(ranges: &[IdRange], inside: u32) -> Option<u32> {
    let range = ranges.iter().find(|range| inside.checked_sub(range.inside).is_some_and(|at| at < range.count))?;
    Some(range.outside + (inside - range.inside))
}

impl IdMap {
    /// Makes a user namespace with these ids, for id-mapped mounts; it lives as long as the descriptor. The child that is
    /// forked for it makes system calls only, so that a program with threads may call it as well.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        let (ready, tell_ready) = io::pipe()?;
        let (go_on, tell_go_on) = io::pipe()?;
        let child = match fork()? {
            Fork::Child => {
                drop((ready, tell_go_on));
                let unshared = unshare(CloneFlags::CLONE_NEWUSER).is_ok();
                let told = unshared && io::Write::write_all(&mut &tell_ready, b"1").is_ok();
                // That nothing comes must be seen as well.
                drop(tell_ready);
                // Until the parent has opened the namespace.
                let _ = (&go_on).read(&mut [0]);
                exit_now(i32::from(!told));
            }
            Fork::Parent(child) => child,
        };
        drop((tell_ready, go_on));
        let opened = self.open_of(child, ready);
        drop(tell_go_on);
        waitpid(child, None)?;
        opened
    }

    fn open_of(&self, child: nix::unistd::Pid, mut ready: io::PipeReader) -> io::Result<OwnedFd> {
        ready.read_exact(&mut [0]).map_err(|_| io::Error::other("this machine allows no user namespaces"))?;
        fs::write(format!("/proc/{child}/uid_map"), lines(&self.users))?;
        fs::write(format!("/proc/{child}/gid_map"), lines(&self.groups))?;
        Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
    }
}

fn lines(ranges: &[IdRange]) -> String {
    ranges.iter().map(|range| format!("{} {} {}\n", range.inside, range.outside, range.count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_the_range_that_holds_them() {
        let ranges =
            [IdRange { inside: 0, outside: 1000, count: 1 }, IdRange { inside: 1, outside: 500_000, count: 65_535 }];
        let found = [0, 1, 65_535, 65_536].map(|inside| outside(&ranges, inside));
        assert_eq!(found, [Some(1000), Some(500_000), Some(565_534), None]);
    }
}
