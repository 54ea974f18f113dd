//! The mount held against what others have written to test file systems, and programs whose habits are hard on them.
//! `tests/run --conformance` brings what is looked for in `TRAINYARD_TOOLS`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{Instance, has_tools, skip};

/// A program in `TRAINYARD_TOOLS`, or the test is skipped.
fn tool(test: &str, name: &str) -> Option<PathBuf> {
    let found = std::env::var_os("TRAINYARD_TOOLS").map(|place| PathBuf::from(place).join(name));
    let found = found.filter(|path| path.is_file());
    if found.is_none() {
        skip(test, &format!("{name} in TRAINYARD_TOOLS"));
    }
    found
}

/// All of it by the mount's own hands: shown directly, it would be the file system of the machine that is tested.
const THROUGH: &str = "[mount]\ndirect = \"none\"\n[limits]\ncpu = 16\nmemory = \"16GiB\"\n";

/// In a draft, or in `code/`.
fn place(instance: &Instance, part: &str, name: &str) -> PathBuf {
    let place = instance.mount().join(part).join(name);
    fs::create_dir_all(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    place
}

const PARTS: [&str; 2] = ["code", "datasets/d/draft"];

/// A shell in the place; it must succeed.
fn sh(place: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-euc", script]).current_dir(place).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn pjdfstest_finds_nothing() {
    let test = "pjdfstest_finds_nothing";
    let Some(pjdfstest) = tool(test, "pjdfstest") else { return };
    let Some(instance) = Instance::start(test, THROUGH) else { return };
    let config = instance.root().join("pjdfstest.toml");
    let groups = "[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    // Short sleeps longer than the kernel's tick.
    fs::write(&config, format!("[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutimensat = {{}}\nutime_now = {{}}\n[settings]\nnaptime = 0.02\n{groups}")).unwrap();
    for part in PARTS {
        let place = place(&instance, part, "pjd");
        // At a path of one length, in a mount namespace: it binds sockets, whose addresses are short, and makes paths as long as may be.
        let seen_at = instance.root().join("where-the-part-is-seen");
        fs::create_dir_all(&seen_at).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-euc", "mount --bind \"$0\" \"$1\"; shift; exec \"$@\""])
            .arg(&place)
            .arg(&seen_at);
        command.arg(&pjdfstest).arg("-c").arg(&config).args(["-s", "/dev/shm"]);
        let ran = command.arg("-p").arg(&seen_at).output();
        let said = String::from_utf8_lossy(&ran.unwrap().stdout).into_owned();
        let count = |end: &str| said.lines().filter(|line| line.ends_with(end)).count();
        let failed: Vec<&str> = said.lines().filter(|line| line.ends_with("FAILED")).collect();
        assert_eq!(failed, Vec::<&str>::new(), "{part}: {said}");
        assert_eq!(count(" ok"), 384, "{part}: {said}");
        println!("pjdfstest in {part}: {} well, {} skipped", count(" ok"), count("skipped"));
    }
    instance.shutdown();
}

#[test]
fn a_million_operations_of_fsx_read_what_was_written() {
    let test = "a_million_operations_of_fsx_read_what_was_written";
    let Some(fsx) = tool(test, "fsx") else { return };
    let Some(instance) = Instance::start(test, THROUGH) else { return };
    let places = PARTS.map(|part| place(&instance, part, "fsx"));
    // More than it does by itself, mappings included. In forty parts, each with a seed and a file of its own: it never lets go
    // of mappings that it has read, and the kernel looks at all of them whenever the file is cut or written out.

    let config = instance.root().join("fsx.toml");
    let more = "[weights]\nclose_open = 0.2\nmapread = 1\nmapwrite = 1\nread = 1\nwrite = 1\ntruncate = 1\nfsync = 0.05\nposix_fallocate = 0.3\npunch_hole = 0.3\ncopy_file_range = 0.5\n";
    fs::write(&config, more).unwrap();
    for (seed, place) in (1..=40).zip(places.iter().cycle()) {
        let mut command = Command::new(&fsx);
        command.arg("-f").arg(&config).args(["-N", "25000", "-S", &seed.to_string(), "-q", "-P"]).arg(instance.root());
        let output = command.arg(place.join(format!("f{seed}"))).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "seed {seed}: {said}");
    }

    instance.shutdown();
}

#[test]
fn git_sqlite_and_rsync_find_nothing_amiss() {
    let test = "git_sqlite_and_rsync_find_nothing_amiss";
    if !has_tools(test, &["git", "sqlite3", "rsync"]) {
        return;
    }
    let Some(instance) = Instance::start(test, THROUGH) else { return };
    let place = place(&instance, PARTS[1], "tools");
    let git = "export GIT_CONFIG_GLOBAL=/dev/null HOME=$PWD; git init -q a; cd a; git config user.email a@b; git config user.name a
        for i in $(seq 50); do mkdir -p d$i; seq $i 2000 > d$i/f; done; git add .; git commit -qm one; git mv d1 e1; git commit -qm two
        cd ..; git clone -q a b; git clone -q --no-hardlinks a c; for i in a b c; do git -C $i fsck --strict; git -C $i status --porcelain; done; git -C a gc -q; git -C a fsck";
    assert_eq!(sh(&place, git), "");
    let sqlite = "sqlite3 x.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);'
        for i in 1 2 3 4; do (for j in $(seq 25); do sqlite3 -cmd '.timeout 20000' x.db \"INSERT INTO t(b) VALUES('$i-$j');\"; done) & done; wait
        sqlite3 x.db 'PRAGMA integrity_check; SELECT count(*) FROM t; PRAGMA journal_mode;'";
    assert_eq!(sh(&place, sqlite), "wal\nok\n100\nwal\n");
    // Hard links, sparse files, times, modes, attributes, links and names that are no text.
    let tree = "mkdir from; cd from; seq 1000 > a; ln a b; mkdir d; ln a d/c; ln -s a l; truncate -s 3M hole; touch -d 2001-02-03 d/old; chmod 4750 d/old
        printf 'x' > \"$(printf 'caf\\351')\"; python3 -c 'import os; os.setxattr(\"a\", \"user.k\", b\"v\")'";
    sh(&place, tree);
    assert!(!sh(&place, "rsync -aHAX --itemize-changes from/ to/").is_empty());
    assert_eq!(sh(&place, "rsync -aHAX --itemize-changes --checksum from/ to/"), "", "nothing is left to do");
    assert_eq!(
        sh(
            &place,
            "rsync -aHAX --itemize-changes --checksum to/ /dev/shm/trainyard-rsync-$$/ >/dev/null && rsync -aHAXni --checksum /dev/shm/trainyard-rsync-$$/ to/; rm -r /dev/shm/trainyard-rsync-$$"
        ),
        ""
    );
    let inode = |name: &str| fs::metadata(place.join("to").join(name)).map(|file| (file.ino(), file.nlink())).unwrap();
    assert_eq!(inode("a"), inode("b"));
    assert_eq!((inode("a"), inode("a").1), (inode("d/c"), 3));
    instance.shutdown();
}
