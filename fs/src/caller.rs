//! Who makes a request.

use serde::{Deserialize, Serialize};

use crate::attr::{Attr, Kind};

/// A process, by what the kernel tells of it with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// 0 for one that this process cannot see.
    pub pid: u32,
}

impl Caller {
    /// May it go into the directory? As the kernel decides it, from mode bits. Asks `/proc` for further groups.
    pub(crate) fn may_enter(self, directory: &Attr) -> bool {
        debug_assert_eq!(directory.kind, Kind::Directory, "only directories are entered");
        let class = match () {
            () if self.uid == 0 => return true,
            () if self.uid == directory.uid => 6,
            () if self.gid == directory.gid || further_groups(self.pid).contains(&directory.gid) => 3,
            () => 0,
        };
        directory.mode >> class & 0o1 != 0
    }
}

/// None of a process that has ended or cannot be seen.
fn further_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_class_alone_decides_and_further_groups_count() {
        let me = std::process::id();
        let own = further_groups(me);
        let root = crate::host::Pin::of_file(&std::fs::File::open("/").unwrap()).unwrap().attr();
        let directory = |mode, uid, gid| Attr { mode, uid, gid, ..root.clone() };
        let caller = |uid, gid| Caller { uid, gid, pid: 0 };
        assert!(caller(0, 0).may_enter(&directory(0, 1, 1)));
        assert!(caller(1, 5).may_enter(&directory(0o700, 1, 1)) && !caller(2, 5).may_enter(&directory(0o700, 1, 1)));
        assert!(!caller(1, 5).may_enter(&directory(0o077, 1, 5)), "its own class is the first");
        assert!(caller(2, 5).may_enter(&directory(0o710, 1, 5)) && !caller(2, 6).may_enter(&directory(0o710, 1, 5)));
        assert!(caller(2, 6).may_enter(&directory(0o711, 1, 5)));
        for group in own {
            assert!(Caller { uid: 2, gid: 6, pid: me }.may_enter(&directory(0o710, 1, group)));
        }
    }
}
