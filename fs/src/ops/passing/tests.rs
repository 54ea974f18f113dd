use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::host::{Host, Made, Owner};
use crate::inode::ROOT;
use crate::ops::Opened;
use crate::tree::Content;
use crate::usage::Account;

/// What is below `ro` is read-only; the kernel may read and write by itself what is there and below `passed`.
struct FakeTree {
    account: Option<Arc<Account>>,
}

impl Tree for FakeTree {
    fn rule(&self, path: &RelPath) -> Rule {
        if path.components().next() == Some("ro".as_ref()) { Rule::ReadOnly } else { Rule::ReadWrite }
    }

    fn passes_writes(&self, path: &RelPath) -> bool {
        path.components().next() != Some("kept".as_ref())
    }

    fn generated(&self, _dir: &RelPath) -> Vec<OsString> {
        Vec::new()
    }

    fn open_generated(&self, _path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        Ok(None)
    }

    fn account(&self, _path: &RelPath) -> Option<Arc<Account>> {
        self.account.clone()
    }

    fn attr_ttl(&self, _path: &RelPath) -> Duration {
        Duration::ZERO
    }
}

struct Bench {
    dir: tempfile::TempDir,
    ops: Ops<FakeTree>,
}

const READ: Access = Access { flags: OFlag::O_RDONLY };
const WRITE: Access = Access { flags: OFlag::O_WRONLY };
const BOTH: Access = Access { flags: OFlag::O_RDWR };

impl Bench {
    fn new(account: Option<Arc<Account>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ro", "passed", "kept"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("f"), b"stored").unwrap();
        }
        let ops = Ops::new(Host::open(dir.path()).unwrap(), FakeTree { account }).unwrap();
        Self { dir, ops }
    }

    fn ino(&self, path: &str) -> u64 {
        path.split('/').fold(ROOT, |parent, name| self.ops.lookup(parent, OsStr::new(name)).unwrap().ino)
    }

    fn open(&self, path: &str, access: Access) -> u64 {
        match self.ops.open(self.ino(path), access).unwrap() {
            Opened::Stored { fh, .. } | Opened::Frozen { fh } | Opened::Generated { fh } => fh,
        }
    }

    fn passes(&self, path: &str, access: Access) -> Passes {
        let fh = self.open(path, access);
        let passes = self.ops.passes(fh, access);
        self.ops.release(fh);
        passes
    }

    /// Makes a file of so many bytes in `passed`, and closes it.
    fn make(&self, name: &str, access: Access, size: u64) {
        let owner = Owner { uid: nix::unistd::getuid().as_raw(), gid: nix::unistd::getgid().as_raw() };
        let made = Made { mode: 0o644, owner };
        let (_, fh) = self.ops.create(self.ino("passed"), OsStr::new(name), access, &made).unwrap();
        self.ops.lend(fh, |file| file.set_len(size)).unwrap();
        self.ops.release(fh);
    }
}

#[test]
fn the_kernel_reads_and_writes_by_itself_where_nothing_is_counted_or_asked() {
    let bench = Bench::new(None);
    for access in [READ, WRITE, BOTH] {
        assert_eq!(bench.passes("passed/f", access), Passes::All);
        assert_eq!(bench.passes("kept/f", access), Passes::Nothing);
    }
    assert_eq!(bench.passes("ro/f", READ), Passes::Nothing);
    fs::set_permissions(bench.dir.path().join("passed/f"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(bench.passes("passed/f", READ), Passes::Reads);
    // It has a name elsewhere as well.
    fs::write(bench.dir.path().join("passed/g"), b"stored").unwrap();
    fs::hard_link(bench.dir.path().join("passed/g"), bench.dir.path().join("kept/g")).unwrap();
    bench.ino("kept/g");
    assert_eq!(bench.passes("passed/g", READ), Passes::Nothing);
    let counted = Bench::new(Some(Arc::new(Account::new(1 << 20, 0, || {}))));
    for access in [READ, WRITE, BOTH] {
        assert_eq!(counted.passes("passed/f", access), Passes::Nothing);
    }
}

#[test]
fn what_may_be_mapped_is_known_until_it_is_forgotten_and_to_the_process_that_goes_on() {
    let bench = Bench::new(None);
    let ino = bench.ino("passed/f");
    let open = |access| {
        let fh = bench.open("passed/f", access);
        bench.ops.goes_past_us(fh, access);
        bench.ops.release(fh);
        bench.ops.keep_mapped()
    };
    assert_eq!(open(WRITE), [], "nobody maps what is open to write alone");
    assert_eq!(open(READ), [(ino, Mapping::Read)]);
    assert_eq!(open(BOTH), [(ino, Mapping::Written)]);
    assert_eq!(open(READ), [(ino, Mapping::Written)]);
    let next = Bench::new(None);
    assert!(!next.ops.may_be_mapped(ino));
    next.ops.go_on_mapped(bench.ops.keep_mapped());
    assert!(next.ops.may_be_mapped(ino));
    bench.ops.forget(ino, 5);
    assert!(!bench.ops.may_be_mapped(ino));
}

#[test]
fn what_is_made_is_expected_to_come_to_what_was_made_there_before() {
    let bench = Bench::new(None);
    let passed = bench.ino("passed");
    assert_eq!(bench.ops.expected_in(passed), Size::Large, "nothing is known");
    bench.make("a", WRITE, LARGE - 1);
    assert_eq!(bench.ops.expected_in(passed), Size::Small);
    assert_eq!(bench.ops.expected_in(bench.ino("kept")), Size::Large, "elsewhere");
    bench.make("b", BOTH, LARGE);
    assert_eq!(bench.ops.expected_in(passed), Size::Small, "that is not passed as it is made");
    bench.make("c", WRITE, LARGE);
    assert_eq!(bench.ops.expected_in(passed), Size::Large);
}
