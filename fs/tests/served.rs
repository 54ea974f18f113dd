//! The server in a process of its own: what it holds and answers, and what is left when it is stopped or killed. Needs root and
//! /dev/fuse; without them each test says `SKIPPED`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]

#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use support::{is_mounted, until};
use trainyard_fs::unmount_stale;

fn errno<V>(result: io::Result<V>) -> Errno {
    Errno::from_raw(result.err().unwrap().raw_os_error().unwrap())
}

#[test]
fn what_a_killed_server_left_is_removed_and_a_live_mount_is_not() {
    let name = "what_a_killed_server_left_is_removed_and_a_live_mount_is_not";
    if !support::can_mount(name) {
        return;
    }
    let dir = support::prepared();
    let mountpoint = dir.path().join("mnt");
    assert!(!unmount_stale(&mountpoint, "trainyard-test").unwrap());
    let mut server = support::spawn_server(dir.path());
    until(Duration::from_secs(60), || is_mounted(&mountpoint));
    let file = File::open(mountpoint.join("rw")).unwrap();
    let live = unmount_stale(&mountpoint, "trainyard-test").unwrap_err();
    assert_eq!(live.kind(), io::ErrorKind::ResourceBusy);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(errno(fs::read_dir(&mountpoint)), Errno::ENOTCONN);
    assert!(!unmount_stale(&mountpoint, "somebody-else").unwrap());
    assert!(is_mounted(&mountpoint));
    assert!(unmount_stale(&mountpoint, "trainyard-test").unwrap());
    assert!(!is_mounted(&mountpoint));
    drop(file);
}

#[test]
fn a_file_of_a_read_only_place_is_read_without_the_server() {
    let name = "a_file_of_a_read_only_place_is_read_without_the_server";
    if !support::can_mount(name) || !support::kernel_passes_through(name) {
        return;
    }
    let dir = support::prepared();
    let mountpoint = dir.path().join("mnt");
    fs::write(dir.path().join("store/ro/f"), b"text").unwrap();
    let mut server = support::spawn_server(dir.path());
    until(Duration::from_secs(60), || is_mounted(&mountpoint));
    let file = File::open(mountpoint.join("ro/f")).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let mut buf = [0; 4];
    let read = file.read_exact_at(&mut buf, 0);
    drop(file);
    assert!(unmount_stale(&mountpoint, "trainyard-test").unwrap());
    read.unwrap();
    assert_eq!(&buf, b"text");
}

/// A server of `dir` in a process of its own, which goes with it.
struct Served {
    server: std::process::Child,
    dir: tempfile::TempDir,
}

impl Served {
    fn new(test: &str) -> Option<Self> {
        if !support::can_mount(test) {
            return None;
        }
        let dir = support::prepared();
        let server = support::spawn_server(dir.path());
        let served = Self { server, dir };
        until(Duration::from_secs(60), || is_mounted(&served.at("")));
        Some(served)
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        let mountpoint = self.dir.path().join("mnt");
        if path.is_empty() { mountpoint } else { mountpoint.join(path) }
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.server.id() as i32), signal).unwrap();
    }

    /// What of the process is in `/proc`.
    fn of_process(&self, path: &str) -> std::path::PathBuf {
        Path::new("/proc").join(self.server.id().to_string()).join(path)
    }

    /// Requests that were answered so far, and writes to files behind the mount: each is one write of the process.
    fn answered(&self) -> u64 {
        let text = fs::read_to_string(self.of_process("io")).unwrap();
        text.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
    }

    fn python(&self, program: &str) {
        let ran = Command::new("/usr/bin/python3").args(["-c", program]).current_dir(self.at("rw")).status().unwrap();
        assert!(ran.success(), "{program}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = unmount_stale(&self.dir.path().join("mnt"), "trainyard-test");
    }
}

/// Each request is a way to the server and back, and none asks for attributes before a write. Nothing is kept of attributes
/// here, so that the kernel asks for them as well: seven answers make a file, and one write behind the mount.
#[test]
fn making_a_file_takes_eight_writes_of_the_server_and_writing_to_it_two() {
    let Some(served) = Served::new("making_a_file_takes_eight_writes_of_the_server_and_writing_to_it_two") else {
        return;
    };
    // For what Python itself asks, and what others look at meanwhile.
    const BESIDE: u64 = 200;
    let asked = |program: &str| {
        let before = served.answered();
        served.python(program);
        served.answered() - before
    };
    let made = asked(
        "import os\nfor n in range(1000):\n    f = os.open(str(n), os.O_WRONLY | os.O_CREAT | os.O_EXCL)\n    os.write(f, bytes(4096))\n    os.close(f)",
    );
    assert!(made <= 8 * 1000 + BESIDE, "{made} for 1000 files");
    let written =
        asked("import os\nf = os.open('0', os.O_WRONLY)\nfor n in range(1000): os.pwrite(f, b'x' * 512, n * 512)");
    // What is being written goes through the server, which may come to refuse it.
    assert!(written <= 2 * 1000 + BESIDE, "{written} for 1000 writes");
    let appended =
        asked("import os\nf = os.open('1', os.O_WRONLY | os.O_APPEND)\nfor n in range(1000): os.write(f, b'x' * 512)");
    assert!(appended <= 2 * 1000 + BESIDE, "{appended} for 1000 appended pieces");
    if !support::kernel_passes_through("making_a_file_takes_eight_writes_of_the_server_and_writing_to_it_two") {
        return;
    }
    // Where that may be waited for, the kernel writes by itself.
    let passed = asked(
        "import os\nos.mkdir('passed')\nf = os.open('passed/f', os.O_WRONLY | os.O_CREAT)\nfor n in range(1000): os.write(f, b'x' * 512)",
    );
    assert!(passed <= BESIDE, "{passed} for 1000 pieces");
    assert_eq!(fs::metadata(served.at("rw/passed/f")).unwrap().len(), 512_000);
}

/// What is expected to be small costs a request to write it instead of being registered, which is more; that is learned where it lies.
#[test]
fn what_is_made_where_files_are_small_is_written_by_the_server_until_one_is_large() {
    let name = "what_is_made_where_files_are_small_is_written_by_the_server_until_one_is_large";
    let Some(served) = Served::new(name) else { return };
    if !support::kernel_passes_through(name) {
        return;
    }
    fs::create_dir(served.at("rw/passed")).unwrap();
    let mut numbers = 0..;
    let mut writes = |size: usize| {
        let path = served.at("rw/passed").join(numbers.next().unwrap().to_string());
        let mut file = File::create(path).unwrap();
        let before = served.answered();
        (0..64).for_each(|_| file.write_all(&vec![7; size / 64]).unwrap());
        served.answered() - before
    };
    assert!(writes(6400) < 64, "of the first one nothing is known");
    // The server hears of each that it was closed after whoever closed it goes on.
    until(Duration::from_secs(60), || writes(6400) >= 64);
    assert!(writes(2 << 20) >= 64);
    until(Duration::from_secs(60), || writes(2 << 20) < 64);
}

#[test]
fn a_large_file_that_may_be_changed_is_read_and_written_without_the_server() {
    let name = "a_large_file_that_may_be_changed_is_read_and_written_without_the_server";
    let Some(mut served) = Served::new(name) else { return };
    if !support::kernel_passes_through(name) {
        return;
    }
    let stored = served.dir.path().join("store/rw/passed");
    fs::create_dir(&stored).unwrap();
    fs::write(stored.join("large"), vec![7; 1 << 20]).unwrap();
    fs::write(stored.join("small"), vec![7; 1 << 19]).unwrap();
    let open = |path: &str| File::options().read(true).write(true).open(served.at(path)).unwrap();
    let (reader, both) = (File::open(served.at("rw/passed/large")).unwrap(), open("rw/passed/large"));
    let small = File::open(served.at("rw/passed/small")).unwrap();
    served.server.kill().unwrap();
    served.server.wait().unwrap();
    both.write_all_at(b"8", 4096).unwrap();
    let mut byte = [0];
    for file in [&reader, &both] {
        file.read_exact_at(&mut byte, 4096).unwrap();
        assert_eq!(byte, *b"8");
    }
    assert_eq!(errno(small.read_exact_at(&mut byte, 4096)), Errno::ENOTCONN);
}

/// The kernel knows what comes first by then, and asks about nothing that it knows.
#[test]
fn what_was_listed_lately_is_listed_whole_again_and_costs_no_request_a_file() {
    let Some(served) = Served::new("what_was_listed_lately_is_listed_whole_again_and_costs_no_request_a_file") else {
        return;
    };
    let kept = served.at("rw/kept");
    fs::create_dir(&kept).unwrap();
    (0..600).for_each(|number| fs::write(kept.join(number.to_string()), number.to_string()).unwrap());
    let look = || {
        let sizes = fs::read_dir(&kept).unwrap().map(|row| {
            let row = row.unwrap();
            (row.file_name().into_string().unwrap(), row.metadata().unwrap().len())
        });
        let mut sizes: Vec<_> = sizes.collect();
        sizes.sort_unstable();
        sizes
    };
    let answered = || {
        let before = served.answered();
        let all: Vec<(String, u64)> = look();
        (all, served.answered() - before)
    };
    let mut wanted: Vec<(String, u64)> =
        (0..600).map(|number| number.to_string()).map(|name| (name.clone(), name.len() as u64)).collect();
    wanted.sort_unstable();
    let first = answered();
    let again = [answered(), answered()];
    assert!(again.iter().all(|(found, _)| *found == wanted) && first.0 == wanted);
    // Opened, read by a few requests, closed: none for each file.
    assert!(again.iter().all(|(_, requests)| *requests < 50), "{:?}", again.map(|(_, requests)| requests));
    fs::remove_file(kept.join("7")).unwrap();
    fs::write(served.dir.path().join("store/rw/kept/behind"), "behind").unwrap();
    wanted.retain(|(name, _)| name != "7");
    wanted.push(("behind".to_owned(), 6));
    wanted.sort_unstable();
    assert_eq!(look(), wanted, "what is new is asked about");
}

#[test]
fn descriptors_of_the_server_do_not_grow_with_what_is_known() {
    let Some(served) = Served::new("descriptors_of_the_server_do_not_grow_with_what_is_known") else { return };
    let many = served.dir.path().join("store/rw/many");
    for directory in 0..50 {
        let directory = many.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        (0..100).for_each(|number| drop(File::create(directory.join(number.to_string())).unwrap()));
    }
    let open = || fs::read_dir(served.of_process("fd")).unwrap().count();
    let before = open();
    let found =
        Command::new("find").arg(served.at("rw/many")).args(["-type", "f", "-size", "0", "-printf", "."]).output();
    assert_eq!(found.unwrap().stdout.len(), 5000);
    assert!(open() <= before + 64, "{} descriptors, {before} before 5,050 were known", open());
}

/// It would wait for itself: at its start for the mount that it makes, later with all its threads.
#[test]
fn the_server_has_nothing_open_of_what_it_shows() {
    let Some(served) = Served::new("the_server_has_nothing_open_of_what_it_shows") else { return };
    let mountpoint = served.at("");
    let shown = served.at("rw/f");
    fs::write(&shown, "text").unwrap();
    let files: Vec<File> = (0..20).map(|_| File::open(&shown).unwrap()).collect();
    let listing = fs::read_dir(served.at("rw")).unwrap();
    let links = fs::read_dir(served.of_process("fd")).unwrap().map(|entry| entry.unwrap().path());
    for link in links.chain(["cwd", "root", "exe"].map(|name| served.of_process(name))) {
        // It may be gone by now.
        let Ok(target) = fs::read_link(&link) else { continue };
        assert!(!target.starts_with(&mountpoint), "{} is {}", link.display(), target.display());
    }
    let maps = fs::read_to_string(served.of_process("maps")).unwrap();
    assert!(!maps.contains(mountpoint.to_str().unwrap()), "{maps}");
    drop((files, listing));
}

/// Who waits for a server that does not answer can be killed, and none is left waiting when the server is killed.
#[test]
fn who_waits_for_a_server_that_is_stopped_can_be_killed_and_all_go_when_it_is() {
    use nix::sys::signal::Signal;
    let test = "who_waits_for_a_server_that_is_stopped_can_be_killed_and_all_go_when_it_is";
    let Some(mut served) = Served::new(test) else { return };
    for number in 0..6 {
        fs::create_dir(served.at(&format!("rw/{number}"))).unwrap();
    }
    let (mut kept, path) = (File::create(served.at("rw/kept")).unwrap(), served.at("rw"));
    Write::write_all(&mut kept, b"kept").unwrap();
    // Each in a directory of its own: who waits holds that up for others.
    let asks = ["exec stat 0/x", "exec ls 1", "exec mkdir 2/x", "echo x > 3/x", "exec cat ../now.txt", "exec rmdir 4"];
    let mut callers: Vec<_> = asks
        .iter()
        .map(|ask| {
            let mut sh = Command::new("sh");
            sh.args(["-c", &format!("read go; {ask}")]).current_dir(&path);
            sh.stdin(Stdio::piped()).stdout(Stdio::null());
            sh.stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    served.signal(Signal::SIGSTOP);
    // A thread that is not stopped yet would take a request along, and who asked could not be killed before the answer.
    let is_stopped = |thread: &Path| fs::read_to_string(thread.join("stat")).unwrap().contains(") T ");
    let threads = served.of_process("task");
    let all_are = || fs::read_dir(&threads).unwrap().all(|thread| is_stopped(&thread.unwrap().path()));
    until(Duration::from_secs(60), all_are);
    for caller in &mut callers {
        Write::write_all(caller.stdin.as_mut().unwrap(), b"go\n").unwrap();
    }
    let waits = |pid: u32| {
        let channel = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        channel.contains("request_wait_answer")
    };
    let pids: Vec<u32> = callers.iter().map(std::process::Child::id).collect();
    until(Duration::from_secs(60), || pids.iter().all(|pid| waits(*pid)));
    // One of them is killed while nobody answers.
    let mut first = callers.remove(0);
    first.kill().unwrap();
    until(Duration::from_secs(60), || first.try_wait().unwrap().is_some());
    served.server.kill().unwrap();
    served.server.wait().unwrap();
    for mut caller in callers {
        until(Duration::from_secs(60), || caller.try_wait().unwrap().is_some());
        let output = caller.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_told =
            told.contains("Transport endpoint is not connected") || told.contains("Software caused connection abort");
        assert!(!output.status.success() && is_told, "{told}");
    }
    assert_eq!(errno(fs::metadata(served.at("rw/kept"))), Errno::ENOTCONN);
    assert_eq!(fs::read(served.dir.path().join("store/rw/kept")).unwrap(), b"kept");
}

/// Not a test: the server that the tests above kill.
#[test]
fn serve_until_killed() {
    let Some(dir) = std::env::var_os("TRAINYARD_FS_SERVE") else {
        return;
    };
    let mounted = support::mount_in(Path::new(&dir), support::TestTree::default());
    mounted.wait().unwrap();
}
