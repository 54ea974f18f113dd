//! Datasets in the mount: drafts, versions, who shares them, who uses them, and how they come in.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::{BINARY, Instance, has_tools, text, wait_for};

fn backing(instance: &Instance) -> PathBuf {
    instance.root().join("var/lib/trainyard/workspaces")
}

/// A new dataset's draft.
pub(super) fn draft(instance: &Instance, name: &str) -> PathBuf {
    let draft = instance.mount().join("datasets").join(name).join("draft");
    fs::create_dir_all(&draft).unwrap();
    draft
}

pub(super) fn wait_published(dataset: &Path, version: &str) -> String {
    let manifest = dataset.join(format!("{version}.MANIFEST"));
    wait_for(&format!("{} to be complete", manifest.display()), || {
        let text = String::from_utf8_lossy(&fs::read(&manifest).ok()?).into_owned();
        let is_latest = || fs::read_link(dataset.join("latest")).is_ok_and(|latest| latest == Path::new(version));
        (text.contains("# state complete\n") && is_latest()).then_some(text)
    })
}

pub(super) fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

pub(super) fn as_user(uid: u32, program: &str, arguments: &[&OsStr]) -> Output {
    Command::new(program).args(arguments).uid(uid).gid(uid).current_dir("/").output().unwrap()
}

#[test]
fn mv_makes_a_version_that_nobody_changes_and_a_manifest_that_sha256sum_reads() {
    let test = "mv_makes_a_version_that_nobody_changes_and_a_manifest_that_sha256sum_reads";
    let Some(instance) = Instance::start(test, "") else { return };
    let draft = draft(&instance, "mnist");
    let dataset = draft.parent().unwrap().to_owned();
    fs::create_dir_all(draft.join("train/empty")).unwrap();
    fs::write(draft.join("train/a.bin"), vec![7; 100_000]).unwrap();
    fs::write(draft.join(OsStr::from_bytes(b"b\xff\n\\x")), "odd").unwrap();
    fs::write(draft.join("train.txt"), "").unwrap();
    fs::set_permissions(draft.join("train.txt"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(draft.join("train.txt"), Some(12_001), Some(12_002)).unwrap();
    symlink("train/a.bin", draft.join("again")).unwrap();
    // One that has a name elsewhere as well, by which it was looked up last.
    fs::write(draft.join("train/linked.bin"), vec![7; 4096]).unwrap();
    let open = File::options().read(true).write(true).open(draft.join("train/a.bin")).unwrap();
    // A mapping to be written, made before, and written to before as well.
    let script = "import mmap, sys\nfiles = [open(name, 'r+b') for name in sys.argv[1:]]\n\
        m, linked = [mmap.mmap(f.fileno(), 4096) for f in files]\nm[8] = linked[8] = 9\nprint('mapped', flush=True)\n\
        sys.stdin.readline()";
    let mut mapped = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .args(["train/a.bin", "train/linked.bin"].map(|name| draft.join(name)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 7];
    mapped.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    fs::hard_link(draft.join("train/linked.bin"), dataset.join("linked.bin")).unwrap();
    assert_eq!(fs::metadata(dataset.join("linked.bin")).unwrap().nlink(), 2);
    // What is half-written is not published, and whose it is is told.
    let busy = fs::rename(&draft, dataset.join("v1"));
    assert_eq!(errno(busy), Some(libc::EBUSY));
    let told = instance.cli(&["dataset", "publish", "mnist", "v1"]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    for part in ["train/a.bin", "is open to be written", "python3", &mapped.id().to_string()] {
        assert!(told.contains(part), "{part}: {told}");
    }
    drop((open, mapped.stdin.take()));
    assert!(mapped.wait().unwrap().success());
    // Names that no job file could say are no versions'.
    for name in ["with space", "-x", ".hid", "a@b"].map(OsStr::new).into_iter().chain([OsStr::from_bytes(b"\xff")]) {
        assert_eq!(errno(fs::rename(&draft, dataset.join(name))), Some(libc::EPERM), "{name:?}");
    }
    for long in ["v".repeat(65), "\u{20000}".repeat(50)] {
        assert_eq!(errno(fs::rename(&draft, dataset.join(&long))), Some(libc::ENAMETOOLONG), "{long}");
    }
    assert_eq!(errno(fs::rename(&draft, dataset.join("v1.MANIFEST"))), Some(libc::EROFS));
    let moved = Command::new("mv").arg(&draft).arg(dataset.join("v1")).output().unwrap();
    assert!(moved.status.success(), "{moved:?}");
    let elsewhere = instance.mount().join("code/file");
    fs::write(&elsewhere, "").unwrap();
    // At once, root or not.
    let version = dataset.join("v1");
    let file = version.join("train/a.bin");
    let changes: [(&str, Option<i32>); 13] = [
        ("open to write", errno(File::options().write(true).open(&file))),
        ("open to append", errno(File::options().append(true).open(&file))),
        ("truncate", errno(File::options().write(true).truncate(true).open(&file))),
        ("create", errno(File::create(version.join("new")))),
        ("mkdir", errno(fs::create_dir(version.join("new")))),
        ("unlink", errno(fs::remove_file(&file))),
        ("rmdir", errno(fs::remove_dir(version.join("train/empty")))),
        ("rename in it", errno(fs::rename(&file, version.join("c.bin")))),
        ("rename out of it", errno(fs::rename(&file, dataset.join("c.bin")))),
        ("rename into it", errno(fs::rename(&elsewhere, version.join("c")))),
        ("link out of it", errno(fs::hard_link(&file, dataset.join("c.bin")))),
        ("chmod", errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o777)))),
        ("chown", errno(std::os::unix::fs::chown(&version, Some(1), None))),
    ];
    // As soon as it is shown directly, it is a file system of its own.
    let across = ["rename out of it", "rename into it", "link out of it"];
    for (what, found) in changes {
        let is_refused = found == Some(libc::EROFS) || found == Some(libc::EXDEV) && across.contains(&what);
        assert!(is_refused, "{what}: {found:?}");
    }
    assert_eq!(errno(File::open(&file).unwrap().set_modified(std::time::SystemTime::now())), Some(libc::EROFS));
    super::frozen::nobody_changes(&version, "train/a.bin");
    // The manifest tells of everything, and other programs understand it.
    let manifest = wait_published(&dataset, "v1");
    assert_eq!(fs::read(&file).unwrap()[..10], [7, 7, 7, 7, 7, 7, 7, 7, 9, 7], "what was stored before is part of it");
    assert_eq!(fs::read(version.join("train/linked.bin")).unwrap()[..10], [7, 7, 7, 7, 7, 7, 7, 7, 9, 7]);
    for (from, to) in [("v1", "v2"), ("v1", "draft"), ("v1.MANIFEST", "x"), ("latest", "x")] {
        let found = errno(fs::rename(dataset.join(from), dataset.join(to)));
        assert!(found == Some(libc::EROFS) || found == Some(libc::EBUSY) && from == "v1", "{from} to {to}: {found:?}");
    }
    assert_eq!(errno(fs::write(dataset.join("v9.MANIFEST"), "forged")), Some(libc::EROFS));
    for line in [
        "# size 100000\n",
        "# link again\n# target train/a.bin\n",
        "# directory train/empty\n",
        "# total 4 files, 104099 bytes\n",
    ] {
        assert!(manifest.contains(line), "{line:?}: {manifest}");
    }
    let summed =
        Command::new("sha256sum").args(["--check", "--strict", "../v1.MANIFEST"]).current_dir(&version).output();
    let summed = summed.unwrap();
    assert!(summed.status.success(), "{summed:?}");
    assert_eq!(String::from_utf8_lossy(&summed.stdout).matches(": OK").count(), 4, "{summed:?}");
    assert_eq!(instance.ok(&["dataset", "verify", "mnist"]), "mnist@v1 is as it was published: 4 file(s), 104099B\n");
    let kept = fs::metadata(version.join("train.txt")).unwrap();
    assert_eq!((kept.uid(), kept.gid(), kept.mode() & 0o7777), (12_001, 12_002, 0o640), "owner and mode stay");
    // Damage behind the mount is found.
    fs::write(backing(&instance).join("default/datasets/mnist/v1/train/a.bin"), vec![8; 100_000]).unwrap();
    fs::remove_file(backing(&instance).join("default/datasets/mnist/v1/again")).unwrap();
    fs::write(backing(&instance).join("default/datasets/mnist/v1/z"), "").unwrap();
    let found = instance.cli(&["dataset", "verify", "mnist@v1"]);
    assert_eq!(found.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&found.stdout), "missing: again\nchanged: train/a.bin\nextra: z\n");
    for (arguments, told) in [
        (["dataset", "verify", "nonex"], "there is no dataset nonex"),
        (["dataset", "verify", "mnist@v9"], "no published version v9 of mnist"),
    ] {
        let unknown = instance.cli(&arguments);
        assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
        assert!(String::from_utf8_lossy(&unknown.stderr).contains(told), "{unknown:?}");
    }
    for source in ["s3:lab/x", "ftp://lab/x"] {
        let refused = instance.cli(&["dataset", "import", source, "mnist"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("http:// or https:// address"), "{refused:?}");
    }
    instance.shutdown();
}

#[test]
fn a_version_costs_only_what_changed_and_no_other_name_of_a_file_reaches_it() {
    let test = "a_version_costs_only_what_changed_and_no_other_name_of_a_file_reaches_it";
    let Some(instance) = Instance::start(test, "") else { return };
    let first = draft(&instance, "d");
    let dataset = first.parent().unwrap().to_owned();
    fs::write(first.join("same"), "same").unwrap();
    fs::write(first.join("other"), "one").unwrap();
    fs::write(first.join("rights"), "rights").unwrap();
    fs::write(first.join("linked"), "before").unwrap();
    fs::create_dir(instance.mount().join("datasets/c")).unwrap();
    let elsewhere = instance.mount().join("datasets/c/linked");
    fs::hard_link(first.join("linked"), &elsewhere).unwrap();
    // Open to be written, and to be read, under names that are no more.
    fs::write(first.join("writer"), "writer").unwrap();
    fs::write(first.join("reader"), "reader").unwrap();
    let writer = File::options().write(true).open(first.join("writer")).unwrap();
    let reader = File::open(first.join("reader")).unwrap();
    for name in ["writer", "reader"] {
        fs::hard_link(first.join(name), first.join(format!("{name}.new"))).unwrap();
        fs::remove_file(first.join(name)).unwrap();
    }
    let busy = instance.cli(&["dataset", "publish", "d", "v1"]);
    assert!(String::from_utf8_lossy(&busy.stderr).contains("is open to be written"), "{busy:?}");
    drop(writer);
    let told = instance.ok(&["dataset", "publish", "d", "v1"]);
    let reopened = File::options().write(true).open(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    assert_eq!(errno(reopened), Some(libc::EROFS));
    assert_eq!(errno(reader.set_permissions(fs::Permissions::from_mode(0o777))), Some(libc::EROFS));
    for name in ["writer", "reader"] {
        assert_eq!(fs::read_to_string(dataset.join("v1").join(format!("{name}.new"))).unwrap(), name);
    }
    assert_eq!(told, "published d@v1: 6 file(s), 31B\n");
    fs::write(&elsewhere, "after").unwrap();
    assert_eq!(fs::read_to_string(dataset.join("v1/linked")).unwrap(), "before");
    assert!(instance.ok(&["dataset", "verify", "d"]).contains("as it was published"));
    let copied = Command::new("cp").args(["-r"]).arg(dataset.join("v1")).arg(dataset.join("draft")).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    fs::write(dataset.join("draft/other"), "two").unwrap();
    fs::set_permissions(dataset.join("draft/rights"), fs::Permissions::from_mode(0o600)).unwrap();
    instance.ok(&["dataset", "publish", "d", "v2"]);
    assert_eq!(fs::read_link(dataset.join("latest")).unwrap(), Path::new("v2"));
    let inode = |path: &str| fs::metadata(backing(&instance).join("default/datasets/d").join(path)).unwrap().ino();
    assert_eq!(inode("v1/same"), inode("v2/same"), "stored once");
    assert_ne!(inode("v1/other"), inode("v2/other"));
    assert_ne!(inode("v1/rights"), inode("v2/rights"), "what others may do with it is part of it");
    let read = |path: &str| fs::read_to_string(dataset.join(path)).unwrap();
    assert_eq!((read("v1/other"), read("v2/other")), ("one".to_owned(), "two".to_owned()));
    let again = instance.cli(&["dataset", "publish", "d", "v2"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("has a version v2 already"), "{again:?}");
    for name in ["latest", "draft", "x.MANIFEST", "a b"] {
        fs::create_dir_all(dataset.join("draft")).unwrap();
        assert!(errno(fs::rename(dataset.join("draft"), dataset.join(name))).is_some() || name == "draft", "{name}");
    }
    let shown = instance.ok(&["dataset", "show", "d"]);
    assert!(shown.contains("v2 (latest)") && shown.contains("by root") && shown.contains("and a draft"), "{shown}");
    let listed = instance.ok(&["dataset", "ls"]);
    assert!(
        listed.lines().any(|line| line.split_whitespace().eq(["d", "mine", "v2", "v1", "v2", "draft"])),
        "{listed}"
    );
    // No way around: the whole dataset to where everything may be written, or one that only looks published.
    assert_eq!(errno(fs::rename(&dataset, instance.mount().join("datasets/c/d"))), Some(libc::EROFS));
    // What is shown directly is another file system.
    let elsewhere = errno(fs::rename(&dataset, instance.mount().join("code/d")));
    assert!([Some(libc::EROFS), Some(libc::EXDEV)].contains(&elsewhere), "{elsewhere:?}");
    instance.shutdown();
}

/// The kernel keeps names and attributes of drafts for a minute; what publishing changes behind it is told.
#[test]
fn what_publishing_gives_another_inode_is_seen_at_once_by_whoever_knew_it() {
    let test = "what_publishing_gives_another_inode_is_seen_at_once_by_whoever_knew_it";
    let Some(instance) = Instance::start(test, "[mount]\ndirect = \"none\"\n") else { return };
    let first = draft(&instance, "d");
    let dataset = first.parent().unwrap().to_owned();
    fs::create_dir(first.join("sub")).unwrap();
    fs::write(first.join("sub/same"), "same").unwrap();
    instance.ok(&["dataset", "publish", "d", "v1"]);
    let second = draft(&instance, "d");
    fs::create_dir(second.join("sub")).unwrap();
    for (name, text) in [("same", "same"), ("linked", "linked"), ("written", "written")] {
        fs::write(second.join("sub").join(name), text).unwrap();
    }
    // A later one than that of the version before.
    fs::write(second.join("sub/same"), "same").unwrap();
    fs::hard_link(second.join("sub/linked"), dataset.join("elsewhere")).unwrap();
    // Past the mount, as what a mount process has left that was killed: one in the mount would keep it from being published.
    let written = backing(&instance).join("default/datasets/d/draft/sub/written");
    let writer = File::options().read(true).write(true).open(written).unwrap();
    let reader = File::open(second.join("sub/same")).unwrap();
    // From within, by names that are in use, and known for long.
    let program = "import os, sys\nnames = ['same', 'linked', 'written', '.']\n\
        def look():\n    seen = [os.stat(name) for name in names]\n    \
        print([(s.st_size, s.st_nlink, s.st_mtime_ns, s.st_ctime_ns) for s in seen], flush=True)\n\
        kept = [open(name) for name in names[:3]]\nlook()\nsys.stdin.readline()\nlook()";
    let look = |directory: &Path| {
        Command::new("/usr/bin/python3")
            .args(["-c", program])
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut inside = look(&second.join("sub"));
    let mut answers = BufReader::new(inside.stdout.take().unwrap()).lines().map(Result::unwrap);
    let before = answers.next().unwrap();
    fs::rename(&second, dataset.join("v2")).unwrap();
    wait_published(&dataset, "v2");
    inside.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let after = answers.next().unwrap();
    let stored = look(&backing(&instance).join("default/datasets/d/v2/sub")).wait_with_output().unwrap();
    let stored = String::from_utf8(stored.stdout).unwrap();
    assert_eq!(after, stored.lines().next().unwrap(), "{before} before");
    assert_ne!(after, before);
    assert!(inside.wait().unwrap().success());
    let version = dataset.join("v2/sub");
    let seen =
        |path: PathBuf| fs::metadata(path).map(|file| (file.mtime_nsec(), file.ctime_nsec(), file.nlink())).unwrap();
    assert_eq!(
        seen(version.join("same")),
        seen(dataset.join("v1/sub/same")),
        "stored once, also for the version before"
    );
    assert_eq!(seen(version.join("same")).2, 2);
    // Who has them open goes on with what they were, which is no part of the version any more.
    assert_eq!(fs::read_to_string(version.join("written")).unwrap(), "written");
    assert_eq!((writer.metadata().unwrap().nlink(), reader.metadata().unwrap().nlink()), (0, 0));
    fs::write(dataset.join("elsewhere"), "longer than before").unwrap();
    assert_eq!(fs::read_to_string(version.join("linked")).unwrap(), "linked");
    instance.shutdown();
}

#[test]
fn what_is_done_by_one_name_of_a_file_in_a_draft_is_seen_by_the_other_at_once() {
    let test = "what_is_done_by_one_name_of_a_file_in_a_draft_is_seen_by_the_other_at_once";
    let Some(instance) = Instance::start(test, "") else { return };
    let draft = draft(&instance, "d");
    let (a, b) = (draft.join("a"), draft.join("b"));
    fs::write(&a, "one").unwrap();
    let open = File::open(&a).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().nlink(), 1, "known for a minute");
    fs::hard_link(&a, &b).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().ino(), fs::metadata(&b).unwrap().ino());
    // Locks are the file's, and so are stores by mappings of either name.
    let both = "import fcntl, mmap, sys\nfiles = [open(name, 'r+b') for name in 'ab']\n\
        fcntl.flock(files[0], fcntl.LOCK_EX)\ntry:\n    fcntl.flock(files[1], fcntl.LOCK_EX | fcntl.LOCK_NB)\n    \
        sys.exit('locked twice')\nexcept BlockingIOError:\n    pass\n\
        maps = [mmap.mmap(file.fileno(), 2) for file in files]\n\
        maps[0][0:1], maps[1][1:2] = b'P', b'Q'\nfor m in maps: m.flush()\nassert open('a', 'rb').read() == b'PQe'";
    let stored = Command::new("/usr/bin/python3").args(["-c", both]).current_dir(&draft).output().unwrap();
    assert!(stored.status.success(), "{stored:?}");
    assert_eq!((fs::metadata(&a).unwrap().nlink(), open.metadata().unwrap().nlink()), (2, 2));
    for text in ["longer", "x", "longer again"] {
        fs::write(&b, text).unwrap();
        assert_eq!(fs::metadata(&a).unwrap().len(), text.len() as u64);
        assert_eq!(fs::read_to_string(&a).unwrap(), text);
        fs::set_permissions(&a, fs::Permissions::from_mode(0o600 + text.len() as u32 % 8)).unwrap();
        assert_eq!(fs::metadata(&a).unwrap().mode(), fs::metadata(&b).unwrap().mode());
    }
    fs::remove_file(&a).unwrap();
    assert_eq!((fs::metadata(&b).unwrap().nlink(), open.metadata().unwrap().nlink()), (1, 1));
    instance.shutdown();
}

#[test]
fn a_run_keeps_the_version_that_it_began_with_and_what_it_uses_cannot_go() {
    let test = "a_run_keeps_the_version_that_it_began_with_and_what_it_uses_cannot_go";
    let Some(instance) = Instance::start(test, "") else { return };
    let first = draft(&instance, "d");
    let dataset = first.parent().unwrap().to_owned();
    fs::write(first.join("x"), "one").unwrap();
    let report = instance.run_job("early", "datasets = [\"d\"]\ncommand = \"true\"");
    assert!(text(&report["reason"]).contains("dataset d has a draft and no version yet: `mv draft v1`"), "{report:#}");
    let report = instance.run_job("daring", "datasets = [\"d@draft\"]\ncommand = \"cat /dataset/x\"");
    assert_eq!((text(&report["state"]), instance.log("daring", "main-0")), ("succeeded".into(), "one\n".into()));
    let waits = "while [ ! -e /output/go ]; do sleep 0.02; done; cat /dataset/x";
    instance.drop_job("drafted", &format!("datasets = [\"d@draft\"]\ncommand = \"{waits}\""));
    instance.wait_state("drafted", "running");
    instance.ok(&["dataset", "publish", "d", "v1"]);
    wait_for("its links", || instance.mount().join("jobs/by-state/running/drafted").exists().then_some(()));
    let refused = instance.cli(&["dataset", "rm", "d@v1"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("d@v1 is used, or will be, by a job that is not over (job drafted)"), "{why}");
    fs::write(instance.run_dir("drafted", 1).join("output/go"), "").unwrap();
    instance.wait_end("drafted", 1);
    assert_eq!(instance.log("drafted", "main-0"), "one\n");
    let script = "cat /dataset/x; while [ ! -e /output/go ]; do sleep 0.02; done; touch /dataset/y; cp /dataset/x /model/; exit $((2 - TRAINYARD_ATTEMPT))";
    instance.drop_job("user", &format!("datasets = [\"d\"]\nretries = 1\ncommand = \"{script}\""));
    wait_for("its first line", || {
        (instance.state("user") == "running" && instance.log("user", "main-0") == "one\n").then_some(())
    });
    let second = draft(&instance, "d");
    fs::write(second.join("x"), "two").unwrap();
    instance.ok(&["dataset", "publish", "d", "v2"]);
    wait_for("its links", || instance.mount().join("jobs/by-state/running/user").exists().then_some(()));
    for (what, found) in [
        ("rmdir", errno(fs::remove_dir(dataset.join("v1")))),
        ("rename", errno(fs::rename(dataset.join("v1"), dataset.join("old")))),
        ("rename of the whole", errno(fs::rename(&dataset, instance.mount().join("datasets/e")))),
    ] {
        assert_eq!(found, Some(libc::EBUSY), "{what}");
    }
    // By the mount itself, until it is shown directly, in use is told apart.
    let within = errno(fs::remove_file(dataset.join("v1/x")));
    assert!([Some(libc::EBUSY), Some(libc::EROFS)].contains(&within), "{within:?}");
    assert_eq!(errno(fs::remove_file(dataset.join("v2/x"))), Some(libc::EROFS), "nobody uses that one");
    let refused = instance.cli(&["dataset", "rm", "d@v1"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("d@v1 is used, or will be, by a job that is not over (job user)"), "{why}");
    fs::write(instance.run_dir("user", 1).join("output/go"), "").unwrap();
    let report = instance.wait_end("user", 1);
    assert_eq!((text(&report["state"]), report["attempt"].as_u64()), ("succeeded".into(), Some(2)), "{report:#}");
    let log = instance.log("user", "main-0");
    assert!(log.contains("one") && log.contains("Read-only file system"), "the second attempt sees the same: {log}");
    let about = fs::read_to_string(instance.mount().join("models/user/1/MODEL.toml")).unwrap();
    assert!(about.contains("datasets = [\"d@v1\"]"), "{about}");
    instance.ok(&["rerun", "user"]);
    wait_for("the next run's first line", || (instance.log("user", "main-0") == "two\n").then_some(()));
    instance.ok(&["stop", "user"]);
    instance.wait_end("user", 2);
    // A job that waits keeps what was the newest when it came.
    let waits = "after = [\"gate\"]\ndatasets = [\"d\"]\ncommand = \"cat /dataset/x\"";
    instance.drop_job("waiter", waits);
    wait_for("its links", || instance.mount().join("jobs/by-state/waiting/waiter").exists().then_some(()));
    wait_for("its choice", || backing(&instance).join("default/jobs/waiter/runs/.1.data").exists().then_some(()));
    let refused = instance.cli(&["dataset", "rm", "d@v2"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("d@v2 is used, or will be, by a job that is not over (job waiter)"), "{why}");
    let third = draft(&instance, "d");
    fs::write(third.join("x"), "three").unwrap();
    instance.ok(&["dataset", "publish", "d", "v3"]);
    assert_eq!(instance.run_job("gate", "command = \"true\"")["state"], "succeeded");
    instance.wait_end("waiter", 1);
    assert_eq!(instance.log("waiter", "main-0"), "two\n");
    instance.ok(&["dataset", "rm", "d@v3"]);
    // What nobody uses goes, and `latest` leads to what is left.
    instance.ok(&["dataset", "rm", "d@v2"]);
    assert_eq!(fs::read_link(dataset.join("latest")).unwrap(), Path::new("v1"));
    wait_for("it to be gone", || (!dataset.join("v2").exists() && !dataset.join("v2.MANIFEST").exists()).then_some(()));
    let unknown = instance.cli(&["dataset", "rm", "d@v2"]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    instance.ok(&["dataset", "rm", "d@v1"]);
    assert!(fs::symlink_metadata(dataset.join("latest")).is_err());
    let report = instance.run_job("late", "datasets = [\"d@v1\"]\ncommand = \"true\"");
    assert!(text(&report["reason"]).contains("dataset d has no version v1; it has none"), "{report:#}");
    // And what is left of it is no dataset.
    let report = instance.run_job("last", "datasets = [\"d\"]\ncommand = \"true\"");
    assert!(text(&report["reason"]).contains("dataset d holds nothing"), "{report:#}");
    instance.shutdown();
}

#[test]
fn presets_and_public_things_are_seen_by_every_workspace_and_changed_by_their_owners() {
    let test = "presets_and_public_things_are_seen_by_every_workspace_and_changed_by_their_owners";
    let Some(instance) = Instance::prepare(test, "").map(|mut instance| {
        // A workspace is the group's whose directory of job files it is.
        instance.make_workspace("vision", 12_345, 0o2775);
        instance.start_daemon(&[]);
        instance.wait_ready();
        instance
    }) else {
        return;
    };
    let top = instance.mount().parent().unwrap().to_owned();
    let make = |uid: u32, place: &str| {
        let place = top.join(place);
        let script = "mkdir -p \"$0\" && echo \"$1\" > \"$0/x\"";
        let content = place.iter().rev().nth(2).unwrap().to_owned();
        as_user(uid, "sh", &["-c".as_ref(), script.as_ref(), place.as_os_str(), content.as_ref()]).status.success()
    };
    assert!(make(12_345, "vision/datasets/mine/draft") && !make(12_346, "vision/datasets/other/draft"));
    assert!(!make(12_345, "preset/datasets/p/draft") && make(0, "preset/datasets/p/draft"));
    assert!(make(12_346, "public/datasets/q/draft") && make(12_346, "public/code/c") && make(0, "preset/code/c"));
    let taken =
        as_user(12_345, "mv", &[top.join("public/datasets/q").as_os_str(), top.join("public/datasets/r").as_os_str()]);
    assert!(!taken.status.success(), "only its owner and root");
    let publish = |uid: u32, arguments: &[&str]| {
        let mut all: Vec<&OsStr> = vec!["--root".as_ref(), instance.root().as_os_str(), "dataset".as_ref()];
        all.extend(arguments.iter().map(OsStr::new));
        as_user(uid, BINARY, &all)
    };
    for (uid, arguments) in [
        (12_345, ["publish", "mine", "v1", "-w", "vision"].as_slice()),
        (12_346, &["publish", "q", "v1", "--public"]),
        (0, &["publish", "p", "v1", "--preset"]),
    ] {
        let done = publish(uid, arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    assert!(!publish(12_345, &["rm", "q@v1", "--public"]).status.success());
    let listed = instance.ok(&["dataset", "ls", "-w", "vision"]);
    for row in [["mine", "mine", "v1", "v1"], ["p", "preset", "v1", "v1"], ["q", "public", "v1", "v1"]] {
        assert!(listed.lines().any(|line| line.split_whitespace().eq(row)), "{row:?}: {listed}");
    }
    instance.drop_job(
        "vision/all",
        "code = \"c\"\ndatasets = [\"mine\", \"p\", \"q\"]\ncommand = \"cat /dataset/*/x x; cp x /model/\"",
    );
    let report = wait_for("its end", || {
        instance.report("vision/all").filter(|report| report["state"] != "running" && !report["ended"].is_null())
    });
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(
        instance.ok(&["logs", "main-0", "vision/all"]),
        "datasets\ndatasets\ndatasets\npreset\n",
        "a preset goes before what is public"
    );
    let about = fs::read_to_string(top.join("vision/models/all/1/MODEL.toml")).unwrap();
    assert!(about.contains("datasets = [\"mine@v1\", \"preset/p@v1\", \"public/q@v1\"]"), "{about}");
    // Who may not look into it by themselves does not by a job.
    let own = top.join("vision/datasets/own");
    assert!(make(12_345, "vision/datasets/own"));
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    let file = instance.jobs_d().join("vision/spy.toml");
    fs::write(instance.jobs_d().join("vision/.spy"), "datasets = [\"own\"]\ncommand = \"cat /dataset/x\"").unwrap();
    std::os::unix::fs::chown(instance.jobs_d().join("vision/.spy"), Some(12_346), Some(12_346)).unwrap();
    fs::rename(instance.jobs_d().join("vision/.spy"), &file).unwrap();
    let report = wait_for("its end", || instance.report("vision/spy").filter(|report| !report["ended"].is_null()));
    assert!(text(&report["reason"]).contains("the job's owner may not look into vision/datasets/own"), "{report:#}");
    // And who has lost the right has lost it for the next attempt.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    let script = "while [ ! -e /output/go ]; do sleep 0.02; done; exit 1";
    let text_of_job = format!("datasets = [\"own\"]\nretries = 1\ncommand = \"{script}\"");
    fs::write(instance.jobs_d().join("vision/.spy"), text_of_job).unwrap();
    std::os::unix::fs::chown(instance.jobs_d().join("vision/.spy"), Some(12_346), Some(12_346)).unwrap();
    fs::rename(instance.jobs_d().join("vision/.spy"), instance.jobs_d().join("vision/revoked.toml")).unwrap();
    wait_for("it to run", || (text(&instance.report("vision/revoked")?["state"]) == "running").then_some(()));
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(backing(&instance).join("vision/jobs/revoked/runs/1/output/go"), "").unwrap();
    let report = wait_for("its end", || instance.report("vision/revoked").filter(|report| !report["ended"].is_null()));
    assert_eq!(report["attempt"].as_u64(), Some(2), "{report:#}");
    assert!(report.to_string().contains("the job's owner may not look into vision/datasets/own"), "{report:#}");
    // Nobody's workspace is called like what all of them see.
    fs::create_dir(instance.jobs_d().join("public")).unwrap();
    fs::write(instance.jobs_d().join("public/x.toml"), "command = \"true\"").unwrap();
    wait_for("it to be told", || {
        String::from_utf8_lossy(&instance.cli(&["ps"]).stderr).contains("public/x.toml").then_some(())
    });
    instance.shutdown();
}

fn mount_process(instance: &Instance) -> Pid {
    let lock = instance.root().join("run/trainyard/mount.lock");
    Pid::from_raw(wait_for("the mount process", || fs::read_to_string(&lock).ok()?.trim().parse().ok()))
}

#[test]
fn publishing_that_was_cut_short_goes_on_and_is_frozen_meanwhile() {
    let test = "publishing_that_was_cut_short_goes_on_and_is_frozen_meanwhile";
    let Some(mut instance) = Instance::start(test, "") else { return };
    for round in 0..6_u64 {
        let name = format!("d{round}");
        let draft = draft(&instance, &name);
        let dataset = draft.parent().unwrap().to_owned();
        let big = File::create(draft.join("big")).unwrap();
        big.set_len(100 << 20).unwrap();
        fs::write(draft.join("small"), "small").unwrap();
        drop(big);
        fs::rename(&draft, dataset.join("v1")).unwrap();
        std::thread::park_timeout(std::time::Duration::from_millis(round * 30));
        kill(mount_process(&instance), Signal::SIGKILL).unwrap();
        let at = backing(&instance).join("default/datasets").join(&name);
        assert!(at.join("v1").is_dir() && at.join("v1.MANIFEST").exists(), "frozen before it is renamed");
        wait_for("the mount to be back", || dataset.join("v1/small").exists().then_some(()));
        assert_eq!(errno(fs::write(dataset.join("v1/small"), "x")), Some(libc::EROFS));
        let manifest = wait_published(&dataset, "v1");
        assert!(manifest.contains("# total 2 files, 104857605 bytes\n"), "{manifest}");
        let left = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["latest", "v1", "v1.MANIFEST"]);
    }
    // What cannot be read is told, not waited for.
    let deep = draft(&instance, "deep");
    let mut at = deep.clone();
    for _ in 0..300 {
        at.push("d");
        fs::create_dir(&at).unwrap();
    }
    let told = instance.cli(&["dataset", "publish", "deep", "v1"]);
    let why = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.status.success() && why.contains("more than 256 directories within each other"), "{why}");
    // A manifest without its version, and a version half removed, are what a crash left of nothing.
    let at = backing(&instance).join("default/datasets/d0");
    fs::write(at.join("v2.MANIFEST"), "# trainyard manifest 1\n# state pending\n# read 0 of 0 bytes\n").unwrap();
    fs::create_dir_all(at.join(".trainyard-gone-v0/x")).unwrap();
    kill(mount_process(&instance), Signal::SIGKILL).unwrap();
    wait_for("what is left to go", || {
        (!at.join("v2.MANIFEST").exists() && !at.join(".trainyard-gone-v0").exists()).then_some(())
    });
    // A removal was the daemon's, so its next start ends it as well.
    instance.kill_daemon();
    fs::create_dir_all(at.join(".trainyard-gone-v0/x")).unwrap();
    instance.restart_daemon();
    wait_for("what is left to go", || (!at.join(".trainyard-gone-v0").exists()).then_some(()));
    instance.shutdown();
}

#[test]
fn versions_published_one_after_the_other_are_all_frozen() {
    let test = "versions_published_one_after_the_other_are_all_frozen";
    let Some(instance) = Instance::start(test, "") else { return };
    let dataset = draft(&instance, "d").parent().unwrap().to_owned();
    // While one is read, the next one is begun.
    for number in 0..40 {
        let draft = draft(&instance, "d");
        fs::write(draft.join("x"), format!("{number}")).unwrap();
        fs::rename(&draft, dataset.join(format!("v{number}"))).unwrap();
        assert_eq!(errno(fs::write(dataset.join(format!("v{number}/x")), "y")), Some(libc::EROFS), "{number}");
    }
    wait_published(&dataset, "v39");
    for number in 0..40 {
        assert!(instance.ok(&["dataset", "verify", &format!("d@v{number}")]).contains("as it was published"));
    }
    instance.shutdown();
}

#[test]
fn what_one_workspace_publishes_holds_up_no_other() {
    let test = "what_one_workspace_publishes_holds_up_no_other";
    let Some(instance) = Instance::start(test, "") else { return };
    let huge = draft(&instance, "huge");
    File::create(huge.join("x")).unwrap().set_len(10 << 40).unwrap();
    fs::rename(&huge, huge.with_file_name("v1")).unwrap();
    let public = instance.mount().parent().unwrap().join("public/datasets/d");
    fs::create_dir_all(public.join("draft")).unwrap();
    fs::write(public.join("draft/x"), "small").unwrap();
    fs::rename(public.join("draft"), public.join("v1")).unwrap();
    wait_published(&public, "v1");
    let manifest = fs::read_to_string(huge.with_file_name("v1.MANIFEST")).unwrap();
    assert!(manifest.contains("# state pending"), "{manifest}");
    for named in ["huge", "huge@v1"] {
        let told = instance.cli(&["dataset", "verify", named]);
        let why = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(!told.status.success() && why.contains("the version is still being published"), "{named}: {why}");
    }
    instance.shutdown();
}

#[test]
fn an_import_goes_on_where_it_broke_off() {
    let test = "an_import_goes_on_where_it_broke_off";
    if !has_tools(test, &["script"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("sub")).unwrap();
    fs::write(source.path().join("sub/a"), "abcdef").unwrap();
    fs::write(source.path().join("b"), "b").unwrap();
    symlink("b", source.path().join("c")).unwrap();
    let draft = draft(&instance, "d");
    // As a call that was killed has left it, of the same file.
    fs::create_dir(draft.join("sub")).unwrap();
    let is = fs::metadata(source.path().join("sub/a")).unwrap();
    let state = format!("{} {} {} {:?}", is.dev(), is.ino(), is.len(), is.modified().unwrap());
    fs::write(draft.join("sub/.a.trainyard-mark"), state).unwrap();
    fs::write(draft.join("sub/.a.trainyard-part"), "ABC").unwrap();
    // And of another one.
    fs::write(draft.join(".b.trainyard-mark"), "1 2 3").unwrap();
    fs::write(draft.join(".b.trainyard-part"), "other").unwrap();
    let refused = instance.cli(&["dataset", "publish", "d", "v1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has not come whole"), "{refused:?}");
    let path = source.path().display().to_string();
    let told = instance.ok(&["dataset", "import", &path, "d"]);
    assert!(told.starts_with("2 file(s), 7B brought into"), "{told}");
    assert_eq!(fs::read_to_string(draft.join("sub/a")).unwrap(), "ABCdef", "what was there was not read again");
    assert_eq!(fs::read_to_string(draft.join("b")).unwrap(), "b");
    assert_eq!(fs::read_link(draft.join("c")).unwrap(), Path::new("b"));
    let again = instance.ok(&["dataset", "import", &path, "d"]);
    assert!(again.starts_with("0 file(s), 0B") && again.contains("2 were there already"), "{again}");
    // A terminal is told how far it has come, on one line that is written over.
    let line = format!("{BINARY} --root {} dataset import {path} shown", instance.root().display());
    let shown = Command::new("script").args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let parts: Vec<&str> = shown.split("\r\u{1b}[K").collect();
    assert!(parts.len() > 2 && parts[1].contains(" file(s), "), "{shown:?}");
    let long = "n".repeat(255);
    fs::write(source.path().join("sub").join(&long), "long").unwrap();
    // Links that somebody has made in a draft, or instead of a dataset, lead root nowhere.
    let victim = tempfile::tempdir().unwrap();
    fs::create_dir(victim.path().join("draft")).unwrap();
    fs::write(victim.path().join("draft/file"), "kept").unwrap();
    let planted = self::draft(&instance, "planted");
    symlink(victim.path(), planted.join("sub")).unwrap();
    symlink(victim.path().join("draft/file"), planted.join(".b.trainyard-part")).unwrap();
    symlink(victim.path(), instance.mount().join("datasets/linked")).unwrap();
    for arguments in [["import", &path, "planted"], ["import", &path, "linked"], ["publish", "linked", "v1"]] {
        let refused = instance.cli(&[&["dataset"][..], &arguments[..]].concat());
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("where a directory is to be; move it away"), "{arguments:?}: {why}");
    }
    fs::remove_file(planted.join("sub")).unwrap();
    instance.ok(&["dataset", "import", &path, "planted"]);
    assert_eq!(fs::read_to_string(planted.join("b")).unwrap(), "b");
    assert_eq!(fs::read_to_string(planted.join("sub").join(long)).unwrap(), "long");
    assert_eq!(fs::read_to_string(victim.path().join("draft/file")).unwrap(), "kept");
    assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 1);
    let address = half_a_server(b"0123456789");
    let broken =
        instance.cli(&["dataset", "import", &format!("http://u:secret@{address}/data/f%20g.bin?token=secret"), "d"]);
    let why = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(why.contains("f g.bin broke off after 4 bytes") && !why.contains("secret"), "{why}");
    instance.ok(&["dataset", "import", &format!("http://{address}/data/f%20g.bin"), "d"]);
    assert_eq!(fs::read(draft.join("f g.bin")).unwrap(), b"0123456789");
    for (address, why) in [
        (format!("http://u:secret@{address}/data/?token=secret"), "/data/ names no file"),
        ("http://u:secret@host:port/file?token=secret".to_owned(), "no http(s) address"),
    ] {
        let refused = instance.cli(&["dataset", "import", &address, "d"]);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(told.contains(why) && !told.contains("secret"), "{told}");
    }
    let missing = instance.cli(&["dataset", "import", &format!("http://{address}/missing"), "d"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("404"), "{missing:?}");
    let nothing = instance.cli(&["dataset", "import", "/nope", "e"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("there is no file /nope"), "{nothing:?}");
    assert!(!instance.mount().join("datasets/e").exists(), "nothing came, so there is no dataset");
    fs::create_dir_all(instance.mount().join("datasets/e/draft")).unwrap();
    let empty = instance.cli(&["dataset", "publish", "e", "v1"]);
    assert!(String::from_utf8_lossy(&empty.stderr).contains("the draft of e is empty"), "{empty:?}");
    assert_eq!(instance.ok(&["dataset", "publish", "d", "v1"]), "published d@v1: 3 file(s), 17B\n");
    instance.shutdown();
}

/// Gives four bytes and hangs up; then, asked for the rest of the same state of the file, the rest.
fn half_a_server(content: &'static [u8]) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let has = |wanted: &str| head.iter().any(|line| line.eq_ignore_ascii_case(wanted));
            let answer = match head.first().is_some_and(|line| line.contains("/data/f%20g.bin")) {
                false => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
                true if has("range: bytes=4-") && has("if-range: \"state\"") => {
                    let mut answer = format!(
                        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes 4-{}/{}\r\netag: \"state\"\r\nconnection: close\r\n\r\n",
                        content.len() - 4, content.len() - 1, content.len()
                    ).into_bytes();
                    answer.extend(&content[4..]);
                    answer
                }
                true => {
                    let mut answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: \"state\"\r\nconnection: close\r\n\r\n",
                        content.len()
                    )
                    .into_bytes();
                    answer.extend(&content[..4]);
                    answer
                }
            };
            stream.write_all(&answer).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 16]);
        }
    });
    address
}

#[test]
fn data_comes_into_a_new_workspace_by_tar_and_by_rsync_as_it_was() {
    let test = "data_comes_into_a_new_workspace_by_tar_and_by_rsync_as_it_was";
    if !has_tools(test, &["tar", "rsync", "diff"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let source = tempfile::tempdir().unwrap();
    let sh = |script: &str| {
        let output = Command::new("sh").args(["-euc", script]).current_dir(source.path()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    sh("mkdir -p a/b; seq 50000 > a/b/numbers; : > a/empty; ln -s b/numbers a/link; truncate -s 5M a/hole; chmod 640 a/empty
        printf x > \"$(printf 'a/caf\\351')\"; for i in $(seq 300); do echo $i > a/b/$i; done
        find a -exec touch -h -d 2001-02-03 {} +");
    // The workspace begins with its directory of job files.
    fs::create_dir(instance.jobs_d().join("lab")).unwrap();
    instance.run_job("lab/first", "command = \"true\"");
    let datasets = instance.mount().with_file_name("lab").join("datasets");
    wait_for("the workspace", || datasets.is_dir().then_some(()));
    for name in ["tar", "rsync"] {
        fs::create_dir_all(datasets.join(name).join("draft")).unwrap();
    }
    sh(&format!("tar -C a -cf - . | tar -C {} -xpf -", datasets.join("tar/draft").display()));
    let rsync = format!("rsync -aH --itemize-changes a/ {}/", datasets.join("rsync/draft").display());
    assert!(!sh(&rsync).is_empty());
    assert_eq!(sh(&rsync), "", "a second time there is nothing to do");
    for name in ["tar", "rsync"] {
        let dataset = datasets.join(name);
        fs::rename(dataset.join("draft"), dataset.join("v1")).unwrap();
        wait_published(&dataset, "v1");
        sh(&format!("diff -r --no-dereference a {}", dataset.join("v1").display()));
        // Links, modes, times and holes as well.
        let listed = |place: &str| sh(&format!("cd {place} && find . -type f -printf '%P %m %s %T@ %l\\n' | sort"));
        assert_eq!(listed("a"), listed(dataset.join("v1").to_str().unwrap()), "{name}");
    }
    let job = "datasets = [\"rsync\"]\ncommand = \"tail -n 1 /dataset/b/numbers\"";
    assert_eq!(instance.run_job("lab/reads", job)["state"], "succeeded");
    assert_eq!(instance.log("lab/reads", "main-0"), "50000\n");
    instance.shutdown();
}
