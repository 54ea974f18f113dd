//! The operations on a temporary directory, without a kernel, under a tree written by hand.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag};

use super::*;
use crate::attr::Kind;
use crate::caller::Caller;
use crate::host::{Made, Owner};
use crate::kept::{Inherited, KeptPayer};
use crate::tree::{Content, ContentMetadata};
use crate::usage::{Account, Quota};

const ROOT_CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

type Asked = Box<dyn FnOnce() + Send>;

/// `ro` and what is below it is read-only, `hidden` is hidden, `now.txt` in the root is generated. What
/// begins with `sealed` becomes read-only when `seal` is set.
#[derive(Clone, Default)]
struct FakeTree {
    text: Arc<Mutex<Vec<u8>>>,
    seal: Arc<Mutex<bool>>,
    fails: Arc<Mutex<bool>>,
    /// Renaming waits for it.
    waits: Arc<Mutex<()>>,
    /// Pays for what is below `rw`.
    account: Option<Arc<Account>>,
    /// Done once, when it is asked who pays for what is gone from the disk.
    asked: Arc<Mutex<Option<Asked>>>,
    /// Where the backing directory is.
    place: std::path::PathBuf,
}

struct FakeContent(Arc<Mutex<Vec<u8>>>);

impl Content for FakeContent {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        Ok(ContentMetadata { size: lock(&self.0).len() as u64, mtime: UNIX_EPOCH, uid: 7, gid: 8, mode: 0o640 })
    }

    /// One byte at a time, as a content may.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let text = lock(&self.0);
        let rest = text.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len()).min(1);
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

impl Tree for FakeTree {
    fn rule(&self, path: &RelPath) -> Rule {
        let first = path.components().next().map(|name| name.to_string_lossy().into_owned());
        match first.as_deref() {
            Some("ro") => Rule::ReadOnly,
            Some("hidden") => Rule::Hidden,
            Some(name) if name.starts_with("sealed") && *lock(&self.seal) => Rule::ReadOnly,
            _ => Rule::ReadWrite,
        }
    }

    fn generated(&self, dir: &RelPath) -> Vec<OsString> {
        if dir.is_root() { vec!["now.txt".into()] } else { Vec::new() }
    }

    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        if *lock(&self.fails) {
            return Err(io::Error::other("told to fail"));
        }
        let content = || Box::new(FakeContent(Arc::clone(&self.text))) as Box<dyn Content>;
        Ok((path.as_path() == Path::new("now.txt")).then(content))
    }

    fn renaming(&self, _from: &RelPath, _to: &RelPath, _by: u32) -> io::Result<()> {
        drop(lock(&self.waits));
        Ok(())
    }

    fn account(&self, path: &RelPath) -> Option<Arc<Account>> {
        let is_gone = !self.place.join(path.as_path()).exists();
        lock(&self.asked).take_if(|_| is_gone).into_iter().for_each(|asked| asked());
        self.account.clone().filter(|_| path.components().next() == Some(os("rw")))
    }

    fn attr_ttl(&self, _path: &RelPath) -> Duration {
        Duration::ZERO
    }
}

struct Bench {
    dir: tempfile::TempDir,
    tree: FakeTree,
    ops: Ops<FakeTree>,
}

fn bench() -> Bench {
    bench_with(None)
}

fn bench_with(account: Option<Arc<Account>>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    for name in ["ro", "rw", "hidden"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("f"), b"stored").unwrap();
    }
    let tree = FakeTree { account, place: dir.path().to_owned(), ..FakeTree::default() };
    let ops = Ops::new(Host::open(dir.path()).unwrap(), tree.clone()).unwrap();
    Bench { dir, tree, ops }
}

impl Bench {
    fn ino(&self, path: &str) -> u64 {
        self.try_ino(path).unwrap()
    }

    fn try_ino(&self, path: &str) -> Result<u64> {
        let step = |parent, name: &str| Ok(self.ops.lookup(parent, OsStr::new(name))?.ino);
        path.split('/').try_fold(ROOT, step)
    }

    fn read_all(&self, fh: u64) -> Vec<u8> {
        let mut buf = vec![0; 100];
        let count = self.ops.read(fh, 0, &mut buf).unwrap();
        buf.truncate(count);
        buf
    }

    fn open(&self, path: &str, flags: OFlag) -> Result<u64> {
        match self.ops.open(self.try_ino(path)?, Access { flags })? {
            Opened::Stored { fh, .. } | Opened::Frozen { fh } | Opened::Generated { fh } => Ok(fh),
        }
    }

    fn names(&self, directory: u64) -> Vec<String> {
        let fh = self.ops.opendir(directory, ROOT_CALLER).unwrap();
        let rows = self.ops.rows(fh, 0).unwrap();
        let mut names: Vec<_> = rows.from(0).map(|(_, row)| row.name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn backing(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }
}

fn made(mode: u32) -> Made {
    let (uid, gid) = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
    Made { mode, owner: Owner { uid, gid } }
}

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn errno<V>(result: Result<V>) -> Errno {
    result.err().expect("must be refused").errno()
}

#[test]
fn every_change_in_a_read_only_place_is_erofs() {
    let bench = bench();
    let ops = &bench.ops;
    let (ro, rw, file) = (bench.ino("ro"), bench.ino("rw"), bench.ino("ro/f"));
    let to_ro = (ro, os("new"));
    assert_eq!(errno(ops.mkdir(ro, os("d"), &made(0o755))), Errno::EROFS);
    assert_eq!(errno(ops.mknod(ro, os("p"), &made(0o010644), 0)), Errno::EROFS);
    assert_eq!(errno(ops.symlink(ro, os("s"), os("t"), made(0).owner)), Errno::EROFS);
    assert_eq!(errno(ops.link(file, rw, os("l"))), Errno::EROFS);
    assert_eq!(errno(ops.link(bench.ino("rw/f"), ro, os("l"))), Errno::EROFS);
    assert_eq!(errno(ops.unlink(ro, os("f"))), Errno::EROFS);
    assert_eq!(errno(ops.rmdir(ROOT, os("ro"))), Errno::EROFS);
    assert_eq!(errno(ops.rename((rw, os("f")), to_ro, RenameMode::Replace, 0)), Errno::EROFS);
    assert_eq!(errno(ops.rename((ro, os("f")), (rw, os("g")), RenameMode::Replace, 0)), Errno::EROFS);
    assert_eq!(errno(ops.rename((rw, os("f")), (ro, os("f")), RenameMode::Exchange, 0)), Errno::EROFS);
    let access = Access { flags: OFlag::O_WRONLY };
    assert_eq!(errno(ops.create(ro, os("n"), access, &made(0o644))), Errno::EROFS);
    assert_eq!(errno(bench.open("ro/f", OFlag::O_WRONLY)), Errno::EROFS);
    assert_eq!(errno(bench.open("ro/f", OFlag::O_RDONLY | OFlag::O_TRUNC)), Errno::EROFS);
    let changes = Changes { mode: Some(0o777), ..Changes::default() };
    assert_eq!(errno(ops.setattr(file, &changes)), Errno::EROFS);
    assert_eq!(fs::read(bench.backing("ro/f")).unwrap(), b"stored");
    assert_eq!(bench.read_all(bench.open("ro/f", OFlag::O_RDONLY).unwrap()), b"stored");
}

#[test]
fn only_a_reader_in_a_read_only_place_is_frozen() {
    let bench = bench();
    let frozen = |path: &str| {
        let access = Access { flags: OFlag::O_RDONLY };
        let opened = bench.ops.open(bench.ino(path), access).unwrap();
        matches!(opened, Opened::Frozen { .. })
    };
    assert!(frozen("ro/f"));
    assert!(!frozen("rw/f"));
    assert!(!frozen("now.txt"));
}

#[test]
fn what_is_hidden_is_not_there_and_not_listed() {
    let bench = bench();
    assert_eq!(errno(bench.ops.lookup(ROOT, os("hidden"))), Errno::ENOENT);
    assert_eq!(errno(bench.ops.rmdir(ROOT, os("hidden"))), Errno::ENOENT);
    assert_eq!(errno(bench.ops.mkdir(ROOT, os("hidden"), &made(0o755))), Errno::EROFS);
    assert_eq!(bench.names(ROOT), [".", "..", "now.txt", "ro", "rw"]);
}

#[test]
fn what_becomes_read_only_while_open_takes_no_more_bytes() {
    let bench = bench();
    fs::write(bench.backing("sealed"), b"1").unwrap();
    let fh = bench.open("sealed", OFlag::O_RDWR | OFlag::O_APPEND).unwrap();
    bench.ops.append(fh, 1, b"2").unwrap();
    *lock(&bench.tree.seal) = true;
    assert_eq!(errno(bench.ops.write(fh, 0, b"3")), Errno::EROFS);
    assert_eq!(errno(bench.ops.append(fh, 2, b"3")), Errno::EROFS);
    assert_eq!(errno(bench.ops.fallocate(fh, 0, 0, 10)), Errno::EROFS);
    assert_eq!(fs::read(bench.backing("sealed")).unwrap(), b"12");
}

#[test]
fn a_generated_file_grows_under_its_reader() {
    let bench = bench();
    *lock(&bench.tree.text) = b"one".to_vec();
    let entry = bench.ops.lookup(ROOT, os("now.txt")).unwrap();
    assert_eq!((entry.attr.size, entry.attr.mode, entry.attr.uid, entry.attr.gid), (3, 0o640, 7, 8));
    let fh = bench.open("now.txt", OFlag::O_RDONLY).unwrap();
    assert_eq!(bench.read_all(fh), b"one");
    lock(&bench.tree.text).extend(b"two");
    assert_eq!(bench.ops.getattr(entry.ino).unwrap().attr.size, 6);
    assert_eq!(bench.read_all(fh), b"onetwo");
}

#[test]
fn a_generated_file_cannot_be_changed_and_a_stored_one_wins_over_it() {
    let bench = bench();
    let ops = &bench.ops;
    let ino = bench.ino("now.txt");
    let from_rw = (bench.ino("rw"), os("f"));
    let generated = (ROOT, os("now.txt"));
    assert_eq!(errno(bench.open("now.txt", OFlag::O_RDWR)), Errno::EROFS);
    assert_eq!(errno(ops.unlink(ROOT, os("now.txt"))), Errno::EROFS);
    assert_eq!(errno(ops.rename(generated, (ROOT, os("x")), RenameMode::Replace, 0)), Errno::EROFS);
    assert_eq!(errno(ops.rename(from_rw, generated, RenameMode::Replace, 0)), Errno::EROFS);
    assert_eq!(errno(ops.setattr(ino, &Changes { size: Some(0), ..Changes::default() })), Errno::EROFS);
    assert_eq!(errno(ops.mkdir(ROOT, os("now.txt"), &made(0o755))), Errno::EEXIST);
    fs::write(bench.backing("now.txt"), b"stored").unwrap();
    assert_ne!(bench.ino("now.txt"), ino);
    assert_eq!(bench.read_all(bench.open("now.txt", OFlag::O_RDONLY).unwrap()), b"stored");
    assert_eq!(bench.names(ROOT).iter().filter(|name| *name == "now.txt").count(), 1);
    assert_eq!(errno(ops.getattr(ino)), Errno::ESTALE);
}

#[test]
fn a_failing_tree_is_eio_and_nothing_is_counted() {
    let bench = bench();
    *lock(&bench.tree.fails) = true;
    assert_eq!(errno(bench.ops.lookup(ROOT, os("now.txt"))), Errno::EIO);
    assert_eq!(lock(&bench.ops.nodes).table.child(ROOT, os("now.txt")), None);
}

#[test]
fn a_symlink_out_of_the_backing_directory_is_shown_and_never_followed() {
    let bench = bench();
    let ops = &bench.ops;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), b"outside").unwrap();
    symlink(outside.path(), bench.backing("rw/out")).unwrap();
    let entry = ops.lookup(bench.ino("rw"), os("out")).unwrap();
    assert_eq!(entry.attr.kind, Kind::Symlink);
    assert_eq!(ops.readlink(entry.ino).unwrap(), outside.path());
    assert_eq!(errno(ops.lookup(entry.ino, os("f"))), Errno::ELOOP);
    assert_eq!(errno(ops.unlink(entry.ino, os("f"))), Errno::ENOTDIR);
    assert_eq!(errno(ops.mkdir(entry.ino, os("d"), &made(0o755))), Errno::ENOTDIR);
    assert_eq!(errno(ops.open(entry.ino, Access { flags: OFlag::O_RDWR })), Errno::ENXIO);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_directory_swapped_for_a_symlink_behind_the_kernel_leads_nowhere() {
    let bench = bench();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), b"outside").unwrap();
    let (rw, file) = (bench.ino("rw"), bench.ino("rw/f"));
    fs::rename(bench.backing("rw"), bench.backing("was")).unwrap();
    symlink(outside.path(), bench.backing("rw")).unwrap();
    assert_eq!(errno(bench.ops.open(file, Access { flags: OFlag::O_RDWR })), Errno::ELOOP);
    assert_eq!(errno(bench.ops.unlink(rw, os("f"))), Errno::ESTALE);
    let access = Access { flags: OFlag::O_WRONLY };
    assert_eq!(errno(bench.ops.create(rw, os("n"), access, &made(0o644))), Errno::ESTALE);
    assert_eq!(fs::read(outside.path().join("f")).unwrap(), b"outside");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn an_unlinked_open_file_is_read_written_and_changed_through_its_handle() {
    let bench = bench();
    let rw = bench.ino("rw");
    let ino = bench.ino("rw/f");
    let fh = bench.open("rw/f", OFlag::O_RDWR).unwrap();
    bench.ops.unlink(rw, os("f")).unwrap();
    bench.ops.write(fh, 0, b"STORED").unwrap();
    assert_eq!(bench.read_all(fh), b"STORED");
    let entry = bench.ops.getattr(ino).unwrap();
    assert_eq!((entry.attr.nlink, entry.attr.size), (0, 6));
    let changes = Changes { size: Some(2), mode: Some(0o600), ..Changes::default() };
    let entry = bench.ops.setattr(ino, &changes).unwrap();
    assert_eq!((entry.attr.mode, entry.attr.size), (0o600, 2));
    bench.ops.release(fh);
    assert_eq!(bench.ops.getattr(ino).unwrap().attr.size, 2);
    assert_eq!(lock(&bench.ops.nodes).orphans(), 1);
    bench.ops.forget(ino, 2);
    assert_eq!(lock(&bench.ops.nodes).orphans(), 0);
    assert_eq!(errno(bench.ops.getattr(ino)), Errno::ESTALE);
    assert_eq!(errno(bench.ops.write(fh, 0, b"x")), Errno::EBADF);
}

#[test]
fn a_file_replaced_behind_the_mount_is_another_inode_and_the_old_handle_stays_with_the_old() {
    let bench = bench();
    let old = bench.ino("rw/f");
    let fh = bench.open("rw/f", OFlag::O_RDONLY).unwrap();
    fs::write(bench.backing("rw/g"), b"newer").unwrap();
    fs::rename(bench.backing("rw/g"), bench.backing("rw/f")).unwrap();
    assert_eq!(bench.ops.getattr(old).unwrap().attr.size, 6);
    assert_ne!(bench.ino("rw/f"), old);
    assert_eq!(bench.read_all(fh), b"stored");
    assert_eq!(bench.read_all(bench.open("rw/f", OFlag::O_RDONLY).unwrap()), b"newer");
}

#[test]
fn what_was_looked_up_can_be_opened_though_its_name_went_to_another_since() {
    let bench = bench();
    let rw = bench.ino("rw");
    let old = bench.ino("rw/f");
    fs::write(bench.backing("rw/g"), b"newer").unwrap();
    bench.ops.rename((rw, os("g")), (rw, os("f")), RenameMode::Replace, 0).unwrap();
    let access = Access { flags: OFlag::O_RDONLY };
    let Opened::Stored { fh, .. } = bench.ops.open(old, access).unwrap() else {
        panic!("stored, and not frozen");
    };
    assert_eq!(bench.read_all(fh), b"stored");
}

#[test]
fn a_rename_carries_open_files_and_whole_subtrees() {
    let bench = bench();
    let (rw, file) = (bench.ino("rw"), bench.ino("rw/f"));
    let fh = bench.open("rw/f", OFlag::O_RDWR).unwrap();
    bench.ops.rename((ROOT, os("rw")), (ROOT, os("moved")), RenameMode::Replace, 0).unwrap();
    assert_eq!(bench.ops.getattr(file).unwrap().attr.size, 6);
    assert_eq!(bench.ino("moved"), rw);
    bench.ops.write(fh, 0, b"S").unwrap();
    assert_eq!(fs::read(bench.backing("moved/f")).unwrap(), b"Stored");
}

#[test]
fn a_directory_is_found_at_every_moment_of_its_renaming() {
    let bench = bench();
    let rw = bench.ino("rw");
    let (here, there) = ((ROOT, os("rw")), (ROOT, os("there")));
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for _ in 0..2000 {
                let renamed = bench.ops.rename(here, there, RenameMode::Replace, 0);
                renamed.and_then(|()| bench.ops.rename(there, here, RenameMode::Replace, 0)).unwrap();
            }
        });
        while !mover.is_finished() {
            bench.ops.getattr(rw).unwrap();
        }
    });
}

#[test]
fn an_exchange_swaps_and_a_refusing_rename_refuses() {
    let bench = bench();
    let rw = bench.ino("rw");
    fs::write(bench.backing("rw/g"), b"other").unwrap();
    let (f, g) = (bench.ino("rw/f"), bench.ino("rw/g"));
    let (at_f, at_g) = ((rw, os("f")), (rw, os("g")));
    assert_eq!(errno(bench.ops.rename(at_f, at_g, RenameMode::Refuse, 0)), Errno::EEXIST);
    bench.ops.rename(at_f, at_g, RenameMode::Exchange, 0).unwrap();
    assert_eq!((bench.ino("rw/f"), bench.ino("rw/g")), (g, f));
    assert_eq!(fs::read(bench.backing("rw/f")).unwrap(), b"other");
}

#[test]
fn appending_goes_to_the_true_end_and_write_back_to_its_offset() {
    let bench = bench();
    let fh = bench.open("rw/f", OFlag::O_RDWR | OFlag::O_APPEND).unwrap();
    fs::write(bench.backing("rw/f"), b"longer than it was").unwrap();
    bench.ops.append(fh, 6, b"!").unwrap();
    bench.ops.write(fh, 0, b"L").unwrap();
    assert_eq!(fs::read(bench.backing("rw/f")).unwrap(), b"Longer than it was!");
}

#[test]
fn creating_what_exists_by_now_makes_the_kernel_check_it() {
    let bench = bench();
    let rw = bench.ino("rw");
    let create = |flags| bench.ops.create(rw, os("f"), Access { flags }, &made(0o644));
    assert_eq!(errno(create(OFlag::O_WRONLY)), Errno::ESTALE);
    assert_eq!(errno(create(OFlag::O_WRONLY | OFlag::O_EXCL)), Errno::EEXIST);
    assert_eq!(fs::read(bench.backing("rw/f")).unwrap(), b"stored");
}

#[test]
fn what_is_made_has_its_mode_and_the_group_of_a_setgid_directory() {
    let bench = bench();
    let rw = bench.ino("rw");
    fs::set_permissions(bench.backing("rw"), fs::Permissions::from_mode(0o2770)).unwrap();
    let entry = bench.ops.mkdir(rw, os("d"), &made(0o750)).unwrap();
    assert_eq!(entry.attr.mode, 0o2750);
    let access = Access { flags: OFlag::O_RDWR };
    let (entry, _) = bench.ops.create(rw, os("n"), access, &made(0o604)).unwrap();
    assert_eq!(entry.attr.mode, 0o604);
    assert_eq!(entry.attr.gid, fs::metadata(bench.backing("rw")).unwrap().gid());
}

#[test]
fn removing_while_listing_skips_nothing_and_a_rewind_shows_the_present() {
    let bench = bench();
    let rw = bench.ino("rw");
    let fh = bench.ops.opendir(rw, ROOT_CALLER).unwrap();
    let first = bench.ops.rows(fh, 0).unwrap();
    bench.ops.unlink(rw, os("f")).unwrap();
    assert_eq!(bench.ops.rows(fh, 2).unwrap(), first);
    assert_eq!(first.from(0).count(), 3);
    assert_eq!(bench.ops.rows(fh, 0).unwrap().from(0).count(), 2);
}

#[test]
fn names_need_be_no_utf8_but_must_be_names() {
    use std::os::unix::ffi::OsStrExt;
    let bench = bench();
    let rw = bench.ino("rw");
    let odd = OsStr::from_bytes(b"\xff\xfe");
    bench.ops.mkdir(rw, odd, &made(0o755)).unwrap();
    assert!(bench.backing("rw").join(odd).is_dir());
    assert_eq!(errno(bench.ops.mkdir(rw, os(".."), &made(0o755))), Errno::EINVAL);
    assert_eq!(errno(bench.ops.lookup(rw, os("../ro"))), Errno::EINVAL);
}

#[test]
fn what_takes_long_in_one_part_of_the_tree_holds_up_no_other() {
    let bench = bench();
    let part = |name: &str| bench.ops.namespace.part(&RelPath::new(name).unwrap());
    // One that has not the same number by chance.
    let other = (0..).map(|number| format!("other{number}")).find(|name| part(name) != part("rw")).unwrap();
    fs::create_dir(bench.dir.path().join(&other)).unwrap();
    fs::write(bench.dir.path().join(&other).join("f"), "x").unwrap();
    let (rw, elsewhere) = (bench.ino("rw"), bench.ino(&other));
    let held = lock(&bench.tree.waits);
    std::thread::scope(|scope| {
        let rename = scope.spawn(|| {
            bench.ops.rename((rw, OsStr::new("f")), (rw, OsStr::new("g")), RenameMode::Replace, 0).unwrap();
        });
        while bench.ops.namespace.is_free(part("rw")) {
            std::thread::yield_now();
        }
        bench.ino(&format!("{other}/f"));
        bench
            .ops
            .rename((elsewhere, OsStr::new("none")), (elsewhere, OsStr::new("g")), RenameMode::Replace, 0)
            .unwrap_err();
        assert!(!rename.is_finished());
        drop(held);
    });
    bench.ino("rw/g");
}

#[test]
fn what_was_written_before_an_error_is_told() {
    use super::files::write_fully;
    let full = |room: usize| {
        move |done: u64, rest: &[u8]| match room.saturating_sub(done as usize) {
            0 => Err(io::Error::from(io::ErrorKind::StorageFull)),
            room => Ok(rest.len().min(room).min(3)),
        }
    };
    assert_eq!(write_fully(b"0123456789", full(100)).unwrap(), 10);
    assert_eq!(write_fully(b"0123456789", full(4)).unwrap(), 4);
    assert_eq!(write_fully(b"0123456789", full(0)).unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_generated_file_is_data_from_end_to_end() {
    use nix::unistd::Whence;
    let bench = bench();
    *lock(&bench.tree.text) = b"text".to_vec();
    let fh = bench.open("now.txt", OFlag::O_RDONLY).unwrap();
    assert_eq!(bench.ops.lseek(fh, 1, Whence::SeekData).unwrap(), 1);
    assert_eq!(bench.ops.lseek(fh, 1, Whence::SeekHole).unwrap(), 4);
    assert_eq!(errno(bench.ops.lseek(fh, 4, Whence::SeekData)), Errno::ENXIO);
}

/// A bench with an account for `rw` that has room for `room` bytes, and what is taken so far.
fn paid_bench(room: u64) -> (Bench, Arc<Account>) {
    let account = Arc::new(Account::new(room, 0, || {}));
    (bench_with(Some(account.clone())), account)
}

#[test]
fn what_would_take_more_than_its_account_has_is_edquot() {
    let (bench, account) = paid_bench(64 << 10);
    let fh = bench.open("rw/f", OFlag::O_RDWR).unwrap();
    let ino = bench.ino("rw/f");
    assert_eq!(bench.ops.write(fh, 0, &[1; 48 << 10]).unwrap(), 48 << 10);
    // One block was there before it was counted.
    assert_eq!(account.counted(), 44 << 10);
    assert_eq!(errno(bench.ops.write(fh, 48 << 10, &[1; 24 << 10])), Errno::EDQUOT);
    assert_eq!(errno(bench.ops.append(fh, 48 << 10, &[1; 24 << 10])), Errno::EDQUOT);
    assert_eq!(errno(bench.ops.fallocate(fh, 0, 48 << 10, 24 << 10)), Errno::EDQUOT);
    // Blocks beyond the end would be taken for those that fill its holes.
    let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE.bits();
    assert_eq!(errno(bench.ops.fallocate(fh, keep, 48 << 10, 4 << 10)), Errno::EOPNOTSUPP);
    bench.ops.fallocate(fh, keep, 0, 48 << 10).unwrap();
    let grow = |size| bench.ops.setattr(ino, &Changes { size: Some(size), ..Changes::default() });
    assert_eq!(errno(grow(96 << 10)), Errno::EDQUOT);
    assert_eq!(bench.ops.write(fh, 4096, &[2; 40 << 10]).unwrap(), 40 << 10, "over what is there");
    let other = bench.ops.create(bench.ino("rw"), os("g"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap().1;
    assert_eq!(errno(bench.ops.copy((fh, 0), (other, 0), 48 << 10)), Errno::EDQUOT);
    assert_eq!(bench.ops.copy((fh, 0), (other, 0), 8 << 10).unwrap(), 8 << 10);
    assert_eq!(account.quota(), Quota { limit: 64 << 10, used: 52 << 10 });
    grow(56 << 10).unwrap();
    assert_eq!(account.counted(), 52 << 10, "a hole costs nothing");
    grow(0).unwrap();
    assert_eq!(account.counted(), 4 << 10, "also the block that was there before");
    account.set_limit(1 << 20);
    assert_eq!(bench.ops.write(fh, 0, &[1; 256 << 10]).unwrap(), 256 << 10);
    let elsewhere = bench.open("ro/f", OFlag::O_RDONLY).unwrap();
    assert_eq!(bench.read_all(elsewhere), b"stored");
}

#[test]
fn what_is_removed_is_paid_until_the_last_name_and_the_last_reader_have_gone() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    let (entry, fh) = bench.ops.create(rw, os("g"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
    bench.ops.write(fh, 0, &[1; 100 << 10]).unwrap();
    let written = account.counted();
    assert_eq!(written, 100 << 10);
    bench.ops.link(entry.ino, rw, os("h")).unwrap();
    bench.ops.unlink(rw, os("g")).unwrap();
    assert_eq!(account.counted(), written);
    bench.ops.unlink(rw, os("h")).unwrap();
    assert_eq!(account.counted(), written, "it is still open");
    bench.ops.write(fh, 100 << 10, &[1; 100 << 10]).unwrap();
    assert_eq!(account.counted(), 2 * written, "and still grows");
    assert_eq!(errno(bench.ops.write(fh, 0, &[1; 2 << 20])), Errno::EDQUOT);
    bench.ops.release(fh);
    // One for being made, one for its other name.
    bench.ops.forget(entry.ino, 2);
    assert_eq!(account.counted(), 0);
    bench.ops.mkdir(rw, os("d"), &made(0o755)).unwrap();
    let directory = fs::metadata(bench.backing("rw/d")).unwrap().blocks() * 512;
    assert_eq!(account.counted(), directory);
    let ino = bench.ino("rw/d");
    bench.ops.rmdir(rw, os("d")).unwrap();
    bench.ops.forget(ino, 2);
    assert_eq!(account.counted(), 0);
    let (entry, fh) = bench.ops.create(rw, os("new"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
    bench.ops.write(fh, 0, &[1; 8 << 10]).unwrap();
    let old = bench.ino("rw/f");
    bench.ops.rename((rw, os("new")), (rw, os("f")), RenameMode::Replace, 0).unwrap();
    bench.ops.forget(old, 1);
    assert_eq!((account.counted(), entry.attr.nlink), (4 << 10, 1), "less by the block of what it has replaced");
}

#[test]
fn directories_are_paid_for_as_they_grow_whoever_puts_entries_there() {
    let (bench, account) = paid_bench(64 << 20);
    let rw = bench.ino("rw");
    let du = || {
        let bytes = |path: &str| fs::symlink_metadata(bench.backing(path)).unwrap().blocks() * 512;
        bytes("rw") + bytes("rw/from") + bytes("rw/to")
    };
    for name in ["from", "to"] {
        bench.ops.mkdir(rw, os(name), &made(0o755)).unwrap();
    }
    let (from, to) = (bench.ino("rw/from"), bench.ino("rw/to"));
    let apart = du() - account.counted();
    let names: Vec<String> = (0..600).map(|number| format!("{number:0>200}")).collect();
    for name in &names {
        bench.ops.symlink(from, os(name), os("x"), Owner { uid: 0, gid: 0 }).unwrap();
    }
    assert_eq!(du() - account.counted(), apart);
    let before = du();
    for name in &names {
        bench.ops.rename((from, os(name)), (to, os(name)), RenameMode::Replace, 0).unwrap();
    }
    assert!(du() > before, "the directory has grown");
    assert_eq!(du() - account.counted(), apart);
    names.iter().for_each(|name| bench.ops.unlink(to, os(name)).unwrap());
    assert_eq!(du() - account.counted(), apart);
}

#[test]
fn nothing_is_moved_into_an_account_and_moving_out_of_one_has_it_counted_anew() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    fs::create_dir(bench.backing("other")).unwrap();
    fs::write(bench.backing("other/x"), "x").unwrap();
    let other = bench.ino("other");
    assert_eq!(errno(bench.ops.rename((other, os("x")), (rw, os("x")), RenameMode::Replace, 0)), Errno::EXDEV);
    assert_eq!(errno(bench.ops.rename((rw, os("f")), (other, os("x")), RenameMode::Exchange, 0)), Errno::EXDEV);
    assert_eq!(errno(bench.ops.link(bench.ino("other/x"), rw, os("x"))), Errno::EXDEV);
    assert_eq!(errno(bench.ops.link(bench.ino("rw/f"), other, os("y"))), Errno::EXDEV);
    assert!(!account.take_wanted_count());
    bench.ops.rename((rw, os("f")), (other, os("f")), RenameMode::Replace, 0).unwrap();
    assert!(account.take_wanted_count());
    account.count(|| Ok(4096)).unwrap();
    let (stat, (blocks, free, available)) = bench.ops.statfs(rw, ROOT_CALLER).unwrap();
    let in_bytes = |blocks: u64| blocks * stat.fragment_size();
    assert_eq!((in_bytes(blocks), in_bytes(free)), (1 << 20, (1 << 20) - 4096));
    assert!(available <= free);
    assert!(bench.ops.statfs(other, ROOT_CALLER).unwrap().1.0 == stat.blocks());
}

#[test]
fn what_was_removed_before_a_count_is_not_paid_back_after_it() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    let (entry, fh) = bench.ops.create(rw, os("g"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
    bench.ops.write(fh, 0, &[1; 64 << 10]).unwrap();
    bench.ops.unlink(rw, os("g")).unwrap();
    account.count(|| Ok(4096)).unwrap();
    assert_eq!(account.counted(), 68 << 10, "who has it open keeps it on the disk");
    bench.ops.write(fh, 64 << 10, &[1; 4 << 10]).unwrap();
    account.count(|| Ok(4096)).unwrap();
    assert_eq!(account.counted(), 72 << 10);
    bench.ops.release(fh);
    bench.ops.forget(entry.ino, 1);
    assert_eq!(account.counted(), 4096);
}

/// The operations of the process that goes on, with `account` for `rw`.
fn next(bench: &Bench, account: &Arc<Account>, payers: &[KeptPayer]) -> Ops<FakeTree> {
    let kept = bench.ops.keep();
    let mut inherited = Inherited::reopened(&kept);
    let tree = FakeTree { account: Some(account.clone()), ..bench.tree.clone() };
    Ops::go_on(Host::open(bench.dir.path()).unwrap(), tree, (kept, payers, &[]), &mut inherited).unwrap()
}

#[test]
fn what_was_removed_and_is_open_is_paid_for_by_the_next_process_as_well() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    let (entry, fh) = bench.ops.create(rw, os("g"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
    bench.ops.write(fh, 0, &[1; 64 << 10]).unwrap();
    bench.ops.unlink(rw, os("g")).unwrap();
    let payers = bench.ops.keep_payers();
    for is_counted_before in [false, true] {
        // What was known is in force until it is counted, and holds what was removed.
        let account = Arc::new(Account::new(1 << 20, account.counted(), || {}));
        if is_counted_before {
            account.count(|| Ok(4096)).unwrap();
        }
        let ops = next(&bench, &account, &payers);
        assert_eq!(account.counted(), if is_counted_before { 68 << 10 } else { 64 << 10 });
        account.count(|| Ok(4096)).unwrap();
        assert_eq!(account.counted(), 68 << 10, "a count does not see it, and it takes room");
        let grown = if is_counted_before { 8 } else { 4 };
        ops.write(fh, 64 << 10, &vec![1; grown << 10]).unwrap();
        assert_eq!(account.counted(), (68 + grown as u64) << 10);
        ops.release(fh);
        ops.forget(entry.ino, 1);
        assert_eq!(account.counted(), 4096);
    }
    // One that does not tell goes on as well.
    let account = Arc::new(Account::new(1 << 20, 0, || {}));
    next(&bench, &account, &[]);
    account.count(|| Ok(4096)).unwrap();
    assert_eq!(account.counted(), 4096);
}

#[test]
fn what_is_written_while_it_loses_its_name_is_paid_for_once() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    let (entry, fh) = bench.ops.create(rw, os("g"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
    bench.ops.write(fh, 0, &[1; 64 << 10]).unwrap();
    let (directory, path) = bench.ops.pin(rw).unwrap();
    let was = directory.child(os("g")).unwrap();
    directory.remove_file(os("g")).unwrap();
    let lost = bench.ops.lost(&path.join("g").unwrap(), (rw, os("g")), Some(was)).unwrap();
    // Nobody holds the table meanwhile.
    bench.ops.write(fh, 64 << 10, &[1; 16 << 10]).unwrap();
    let mut nodes = lock(&bench.ops.nodes);
    let ino = nodes.table.child(rw, os("g"));
    let gone = nodes.unlink(rw, os("g"), Some(bench.ops.orphaned(ino, lost)));
    drop(nodes);
    assert!(gone.is_none(), "it is open");
    assert_eq!(account.counted(), 80 << 10);
    bench.ops.release(fh);
    bench.ops.forget(entry.ino, 1);
    assert_eq!(account.counted(), 0);
}

#[test]
fn what_was_open_and_generated_is_looked_for_when_it_is_asked_for() {
    let (bench, account) = paid_bench(1 << 20);
    *lock(&bench.tree.text) = b"text".to_vec();
    let (first, second) =
        (bench.open("now.txt", OFlag::O_RDONLY).unwrap(), bench.open("now.txt", OFlag::O_RDONLY).unwrap());
    *lock(&bench.tree.fails) = true;
    let ops = next(&bench, &account, &[]);
    let mut left = ops.left();
    left.sort_unstable();
    assert_eq!(left, [first, second], "one that cannot be looked at holds up nobody");
    assert!(ops.open_left(first).is_err());
    assert_eq!(ops.left().len(), 2);
    *lock(&bench.tree.fails) = false;
    ops.open_left(first).unwrap();
    assert_eq!(ops.left(), [second]);
    let mut buf = [0; 8];
    for fh in [first, second] {
        assert_eq!(ops.read(fh, 0, &mut buf).unwrap(), 4);
    }
    assert!(ops.left().is_empty());
    ops.release(second);
    assert_eq!(errno(ops.read(second, 0, &mut buf)), Errno::EBADF);
    assert!(ops.open_left(second).is_ok(), "nobody misses it");
}

#[test]
fn what_loses_its_name_while_it_is_written_pays_back_what_was_paid_for_it() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    let (entry, fh) = bench.ops.create(rw, os("g"), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
    bench.ops.write(fh, 0, &[1; 64 << 10]).unwrap();
    // What was paid until now is part of what is counted.
    assert!(account.count(|| Ok(68 << 10)).unwrap());
    let file = bench.ops.lend(fh, fs::File::try_clone).unwrap();
    bench
        .ops
        .charged(
            entry.ino,
            &file,
            |_| 64 << 10,
            || {
                use std::os::unix::fs::FileExt;
                file.write_all_at(&[1; 32 << 10], 64 << 10).unwrap();
                bench.ops.unlink(rw, os("g"))?;
                file.write_all_at(&[1; 32 << 10], 96 << 10).unwrap();
                Ok(())
            },
        )
        .unwrap();
    assert_eq!(account.counted(), 132 << 10);
    bench.ops.release(fh);
    bench.ops.forget(entry.ino, 1);
    assert_eq!(account.counted(), 4 << 10);
}

#[test]
fn what_is_counted_between_a_removal_and_its_note_is_counted_once_more() {
    let (bench, account) = paid_bench(1 << 20);
    let rw = bench.ino("rw");
    let counted = Arc::new(Mutex::new(Vec::new()));
    let count = || {
        let (account, counted) = (account.clone(), counted.clone());
        // The disk shows it no more, and the account has it still.
        *lock(&bench.tree.asked) = Some(Box::new(move || lock(&counted).push(account.count(|| Ok(4096)).unwrap())));
    };
    for name in ["g", "h"] {
        let (_, fh) = bench.ops.create(rw, os(name), Access { flags: OFlag::O_RDWR }, &made(0o644)).unwrap();
        bench.ops.write(fh, 0, &[1; 64 << 10]).unwrap();
        bench.ops.release(fh);
    }
    count();
    bench.ops.rename((rw, os("g")), (rw, os("h")), RenameMode::Replace, 0).unwrap();
    count();
    bench.ops.unlink(rw, os("h")).unwrap();
    assert_eq!(*lock(&counted), [false, false], "neither is exact");
    assert!(account.count(|| Ok(4096)).unwrap(), "nothing is under way any more");
}

#[test]
fn what_was_told_of_a_directory_counts_as_long_as_it_may_be_kept_and_is_known() {
    let bench = bench();
    let directory = bench.ino("rw");
    for not_kept in [Duration::ZERO, Duration::from_nanos(2)] {
        bench.ops.tell_of(directory, not_kept);
        assert!(!bench.ops.was_told_lately(directory), "{not_kept:?}");
    }
    bench.ops.tell_of(directory, Duration::from_secs(3600));
    assert!(bench.ops.was_told_lately(directory));
    bench.ops.forget(directory, 1);
    assert!(!bench.ops.was_told_lately(directory));
}
