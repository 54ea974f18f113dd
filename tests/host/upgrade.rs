//! The mount goes on while Trainyard is upgraded: another program takes over, and nobody who has something open notices.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::api::get;
use super::support::{BINARY, Instance, has_tools, pids_with, wait_for};

/// A byte of the program's head that means nothing (`e_ident[15]`).
const MARK: u64 = 15;

/// As long as the kernel does not ask again what was not answered, the old program serves on.
fn kernel_asks_again(test: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|text| text.parse::<u32>().ok());
    let does = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    if !does {
        super::support::skip(test, "Linux 6.9");
    }
    does
}

pub(super) fn mount_pid(instance: &Instance) -> i32 {
    // At the moment of an exec it has no command line.
    wait_for("the mount process", || match pids_with(&format!("--root {} mount", instance.root().display()))[..] {
        [(pid, _)] => Some(pid),
        _ => None,
    })
}

fn mark_of(pid: i32) -> Option<u8> {
    let mut mark = [0];
    File::open(format!("/proc/{pid}/exe")).and_then(|program| program.read_exact_at(&mut mark, MARK)).ok()?;
    Some(mark[0])
}

/// The daemon ends and one of another program begins; returns when the mount is that one's as well.
fn upgrade(instance: &mut Instance, mark: u8) {
    let program = instance.root().join(format!("trainyard-{mark}"));
    fs::copy(BINARY, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    OpenOptions::new().write(true).open(&program).unwrap().write_all_at(&[mark], MARK).unwrap();
    let pid = mount_pid(instance);
    instance.kill_daemon();
    instance.program = program;
    instance.restart_daemon();
    wait_for("the new program", || (mark_of(pid) == Some(mark)).then_some(()));
    assert_eq!(mount_pid(instance), pid, "it is the same process");
}

/// A process that answers each line with one.
pub(super) struct Peer {
    child: Child,
    asked: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Peer {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (asked, told) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, asked, told }
    }

    fn ask(&mut self, word: &str) -> String {
        writeln!(self.asked, "{word}").unwrap();
        self.hear()
    }

    pub(super) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// One that would go on for ever.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.asked);
        self.child.wait().unwrap();
    }
}

/// Maps a file, and answers with its first bytes; what it is asked is written there.
const MAPS: &str = "
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    shared = mmap.mmap(file.fileno(), 0)
print('mapped', flush=True)
for line in sys.stdin:
    was = bytes(shared[:4]).decode()
    shared[:4] = line.strip().encode()
    shared.flush()
    print(was, flush=True)
";

fn shell_in(dir: &Path) -> Peer {
    Peer::start(Command::new("sh").current_dir(dir).args(["-c", "while read name; do cat \"$name\"; done"]))
}

pub(super) fn tail(log: &Path) -> Peer {
    Peer::start(Command::new("tail").args(["-n", "+1", "-s", "0.1", "-f"]).arg(log))
}

fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Ends the writers also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each file is made once, written once and kept: a request that is lost or done twice would be seen.
fn make_files(dir: &Path, over: &AtomicBool, made: &AtomicUsize) -> usize {
    fs::create_dir(dir).unwrap();
    let mut log = OpenOptions::new().append(true).create_new(true).open(dir.join("log")).unwrap();
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let name = dir.join(format!("{number}"));
        File::create_new(&name).and_then(|mut file| file.write_all(b"content")).unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"content");
        log.write_all(b"line\n").unwrap();
        number += 1;
        made.fetch_add(1, Ordering::Relaxed);
    }
    number
}

#[test]
fn what_is_open_in_the_mount_goes_on_over_an_upgrade() {
    let test = "what_is_open_in_the_mount_goes_on_over_an_upgrade";
    if !kernel_asks_again(test) || !has_tools(test, &["python3", "tail"]) {
        return;
    }
    // So that the mount process serves all of it.
    let Some(mut instance) = Instance::start(test, "[mount]\ndirect = \"none\"\n") else { return };
    let mount = instance.mount();
    let draft = mount.join("datasets/d/draft");
    fs::create_dir_all(draft.join("many")).unwrap();
    (0..3000).for_each(|number| drop(File::create(draft.join(format!("many/a-rather-long-name-{number}"))).unwrap()));
    fs::create_dir_all(mount.join("datasets/e/draft")).unwrap();
    fs::write(mount.join("datasets/e/draft/f"), b"frozen").unwrap();
    fs::rename(mount.join("datasets/e/draft"), mount.join("datasets/e/v1")).unwrap();
    let manifest = mount.join("datasets/e/v1.MANIFEST");
    wait_for("the version", || fs::read_to_string(&manifest).ok()?.contains("# state complete").then_some(()));
    let script = "for i in 1 2 3; do echo line $i; while [ ! -e /output/$i ]; do sleep 0.02; done; done";
    instance.drop_job("talks", &format!("command = \"{script}\""));
    instance.wait_state("talks", "running");
    let log = mount.join("jobs/talks/latest/attempts/1/main-0/log");
    wait_for("the log", || fs::read_to_string(&log).ok()?.contains("line 1").then_some(()));

    let mut written = File::options().read(true).write(true).create_new(true).open(draft.join("written")).unwrap();
    written.write_all(b"before,").unwrap();
    let mut appended = File::options().append(true).create_new(true).open(draft.join("appended")).unwrap();
    appended.write_all(b"1\n").unwrap();
    let removed = File::options().read(true).write(true).create_new(true).open(draft.join("removed")).unwrap();
    fs::remove_file(draft.join("removed")).unwrap();
    let mut frozen = File::open(mount.join("datasets/e/v1/f")).unwrap();
    let locked = File::create_new(draft.join("locked")).unwrap();
    locked.lock().unwrap();
    fs::write(draft.join("mapped"), b"0000").unwrap();
    let mut maps = Peer::start(Command::new("python3").args(["-c", MAPS]).arg(draft.join("mapped")));
    assert_eq!(maps.hear(), "mapped");
    let mut shell = shell_in(&draft);
    let mut follower = tail(&log);
    assert!(follower.hear().ends_with("line 1"));
    let mut listed = fs::read_dir(draft.join("many")).unwrap();
    let mut seen = (&mut listed).take(100).count();
    let inode = fs::metadata(draft.join("written")).unwrap().ino();

    let (over, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut counts = Vec::new();
    let mut last = "0000".to_owned();
    for mark in 1..=3 {
        over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let dirs = (0..4).map(|worker| draft.join(format!("of-{mark}-{worker}")));
            let workers: Vec<_> = dirs
                .map(|dir| {
                    (
                        dir.clone(),
                        scope.spawn(|| {
                            let dir = dir;
                            make_files(&dir, &over, &made)
                        }),
                    )
                })
                .collect();
            let end = Over(&over);
            upgrade(&mut instance, mark);
            let before = made.load(Ordering::Relaxed);
            wait_for("the writers", || (made.load(Ordering::Relaxed) > before + 20).then_some(()));
            drop(end);
            for (dir, worker) in workers {
                let done = worker.join().unwrap();
                assert_eq!(fs::read_dir(&dir).unwrap().count(), done + 1);
                assert_eq!(fs::metadata(dir.join("log")).unwrap().len(), done as u64 * 5);
            }
        });
        written.write_all(b"after,").unwrap();
        appended.write_all(b"more\n").unwrap();
        removed.write_all_at(&[mark], u64::from(mark)).unwrap();
        assert!(File::open(draft.join("locked")).unwrap().try_lock().is_err(), "the lock is held");
        let word = format!("{mark:04}");
        assert_eq!(maps.ask(&word), last);
        last = word;
        assert_eq!(fs::read_to_string(draft.join("mapped")).unwrap(), last);
        fs::write(draft.join("told"), format!("told {mark}\n")).unwrap();
        assert_eq!(shell.ask("told"), format!("told {mark}"));
        let mut text = String::new();
        frozen.seek(SeekFrom::Start(0)).unwrap();
        frozen.read_to_string(&mut text).unwrap();
        assert_eq!(text, "frozen");
        assert_eq!(fs::read(mount.join("datasets/e/v1/f")).unwrap(), b"frozen");
        seen += (&mut listed).take(700).filter(|entry| entry.as_ref().unwrap().file_name() != ".").count();
        if mark < 3 {
            fs::write(instance.run_dir("talks", 1).join(format!("output/{mark}")), "").unwrap();
            assert!(follower.hear().ends_with(&format!("line {}", mark + 1)), "it follows the log on");
        }
        counts.push(wait_for("what was closed to be let go", || {
            let count = descriptors(mount_pid(&instance));
            (counts.last().is_none_or(|before| count <= *before)).then_some(count)
        }));
    }
    assert_eq!(seen + listed.count(), 3000, "each entry is listed once");
    assert_eq!(fs::read_to_string(draft.join("written")).unwrap(), "before,after,after,after,");
    assert_eq!(fs::read_to_string(draft.join("appended")).unwrap(), "1\nmore\nmore\nmore\n");
    assert_eq!(fs::metadata(draft.join("written")).unwrap().ino(), inode);
    assert_eq!((removed.metadata().unwrap().len(), removed.metadata().unwrap().nlink()), (4, 0));
    maps.end();
    shell.end();
    follower.kill();
    fs::write(instance.run_dir("talks", 1).join("output/3"), "").unwrap();
    drop((written, appended, removed, frozen, locked));
    instance.shutdown();
}

fn mount_ids(place: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here = mounts.lines().filter(|line| line.split(' ').nth(4) == place.to_str());
    here.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn what_is_shown_directly_stays_over_an_upgrade_and_a_failed_one_changes_nothing() {
    let test = "what_is_shown_directly_stays_over_an_upgrade_and_a_failed_one_changes_nothing";
    if !kernel_asks_again(test) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let code: PathBuf = instance.mount().join("code");
    let id = wait_for("code to be shown directly", || mount_ids(&code).pop());
    fs::write(code.join("f"), "here\n").unwrap();
    let mut shell = shell_in(&code);
    upgrade(&mut instance, 1);
    assert_eq!(shell.ask("f"), "here");
    assert_eq!(mount_ids(&code), std::slice::from_ref(&id));
    // Again, with nobody to tell which program it is.
    let pid = mount_pid(&instance);
    instance.kill_daemon();
    let lock = instance.root().join("run/trainyard/daemon.lock");
    fs::write(lock, "").unwrap();
    let direct = || pids_with(&format!("--root {} direct", instance.root().display())).first().map(|found| found.0);
    let before = wait_for("what shows directly", direct);
    kill(Pid::from_raw(pid), Signal::SIGUSR2).unwrap();
    let refusal = instance.root().join("run/trainyard/mount.refusal");
    let why = wait_for("the refusal", || fs::read_to_string(&refusal).ok());
    assert!(why.contains("cannot find the daemon's program: no daemon has written its number"), "{why}");
    assert_eq!((mark_of(pid), direct()), (Some(1), Some(before)));
    assert_eq!(fs::read_to_string(code.join("f")).unwrap(), "here\n");
    assert_eq!(mount_ids(&code), [id]);
    // And the next daemon finds all as it was.
    instance.restart_daemon();
    assert_eq!(mount_pid(&instance), pid);
    shell.end();
    instance.shutdown();
}

#[test]
fn a_state_that_is_not_understood_is_refused_with_its_reason() {
    let test = "a_state_that_is_not_understood_is_refused_with_its_reason";
    let Some(instance) = Instance::start(test, "") else { return };
    let state = instance.root().join("state");
    for (bytes, reason) in
        [(&b"TYMOUNT\n\x63\0\0\0"[..], "version 99"), (b"something else", "not the state of a mount")]
    {
        fs::write(&state, bytes).unwrap();
        let script = "exec \"$0\" --root \"$1\" mount --kept-fd 9 9< \"$2\"";
        let output = Command::new("sh").args(["-c", script, BINARY]).args([instance.root(), &state]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(reason), "{told}");
    }
    assert!(instance.mount().join("code").is_dir(), "the mount is served on");
    instance.shutdown();
}

/// As programs say which states of a mount they read.
const STATES: &[u8] = b"states of a mount: 1\n";

#[test]
fn a_program_that_does_not_read_the_state_is_not_handed_the_mount_and_that_is_told() {
    let test = "a_program_that_does_not_read_the_state_is_not_handed_the_mount_and_that_is_told";
    let Some(mut instance) = Instance::start(test, "[mount]\ndirect = \"none\"\n") else { return };
    let draft = instance.mount().join("datasets/d/draft");
    fs::create_dir_all(&draft).unwrap();
    let mut open = File::create_new(draft.join("open")).unwrap();
    let pid = mount_pid(&instance);
    // One that is like ours, but for what it reads.
    let mut program = fs::read(BINARY).unwrap();
    let places: Vec<usize> =
        program.windows(STATES.len()).enumerate().filter(|(_, part)| *part == STATES).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        program[at + STATES.len() - 2] = b'9';
    }
    instance.program = instance.root().join("trainyard-other");
    fs::write(&instance.program, program).unwrap();
    fs::set_permissions(&instance.program, fs::Permissions::from_mode(0o755)).unwrap();
    instance.kill_daemon();
    instance.start_daemon(&[]);
    let line = instance.wait_for_log("served on by its old program");
    assert!(
        line.contains("reads [9]") && line.contains("has version 1") && line.contains(&format!("kill {pid}")),
        "{line}"
    );
    assert_eq!(mount_pid(&instance), pid);
    open.write_all(b"served on").unwrap();
    assert_eq!(fs::read(draft.join("open")).unwrap(), b"served on");
    // As it says.
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    wait_for("another mount", || (mount_pid(&instance) != pid).then_some(()));
    wait_for("the workspace", || fs::read(draft.join("open")).ok());
    assert!(!instance.root().join("run/trainyard/mount.refusal").exists(), "it is over");
    drop(open);
    instance.shutdown();
}

#[test]
fn what_was_shown_directly_goes_with_an_upgrade_after_which_nothing_is() {
    let test = "what_was_shown_directly_goes_with_an_upgrade_after_which_nothing_is";
    if !kernel_asks_again(test) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let code: PathBuf = instance.mount().join("code");
    wait_for("code to be shown directly", || mount_ids(&code).pop());
    let mut open = File::create_new(code.join("f")).unwrap();
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}[mount]\ndirect = \"none\"\n")).unwrap();
    upgrade(&mut instance, 1);
    wait_for("it to be taken away", || mount_ids(&code).is_empty().then_some(()));
    let direct = || pids_with(&format!("--root {} direct", instance.root().display()));
    wait_for("whoever did it to end", || direct().is_empty().then_some(()));
    open.write_all(b"here").unwrap();
    assert_eq!(fs::read(code.join("f")).unwrap(), b"here", "the mount shows the same");
    drop(open);
    instance.shutdown();
}

/// A file system that never answers. Ends it also when a test fails: nobody else lets go of who waits for it.
struct Silent(Peer);

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.0.child.kill();
        let _ = self.0.child.wait();
    }
}

/// Threads of a process whose names begin so and that wait for the answer of such a file system.
fn hanging_threads(pid: i32, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |task: &Path, file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
    // Not those that wait for requests themselves.
    let reads = |wchan: &str| wchan.contains("fuse_dev");
    let waits = |wchan: &str| !reads(wchan) && (wchan.contains("fuse") || wchan.contains("request_wait"));
    tasks
        .map(|task| task.path())
        .filter(|task| read(task, "comm").trim().starts_with(name) && waits(&read(task, "wchan")))
        .count()
}

#[test]
fn a_workspace_whose_disk_hangs_holds_up_no_other_and_no_upgrade_is_begun_that_would_wait_for_it() {
    let test = "a_workspace_whose_disk_hangs_holds_up_no_other_and_no_upgrade_is_begun_that_would_wait_for_it";
    if !kernel_asks_again(test) || !has_tools(test, &["python3"]) {
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "[mount]\ndirect = \"none\"\n[limits]\ncpu = 4\n") else { return };
    fs::create_dir(instance.jobs_d().join("slow")).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    let draft = instance.mount().join("datasets/d/draft");
    fs::create_dir_all(&draft).unwrap();
    let mut open = File::create_new(draft.join("open")).unwrap();
    let slow = instance.root().join("var/lib/trainyard/workspaces/slow/datasets");
    wait_for("the other workspace", || slow.is_dir().then_some(()));
    let mut silent = Silent(Peer::start(Command::new("python3").args(["-c", include_str!("silent.py")]).arg(&slow)));
    assert_eq!(silent.0.hear(), "mounted");
    // The same program once more: it looks through all workspaces.
    let pid = mount_pid(&instance);
    let hand_over = || kill(Pid::from_raw(pid), Signal::SIGUSR2).unwrap();
    hand_over();
    instance.wait_for_log("served on by another program");
    wait_for("the one to hang", || (hanging_threads(pid, "publish") == 1).then_some(()));
    open.write_all(b"goes on").unwrap();
    assert_eq!(fs::read(draft.join("open")).unwrap(), b"goes on");
    // An exec would wait for that thread, and everybody for the exec.
    hand_over();
    let line = instance.wait_for_log("serve it on; will be tried again");
    assert!(line.contains("waits for its disk"), "{line}");
    fs::write(draft.join("more"), "served").unwrap();
    // When the disk answers, be it by an error, it goes on by itself.
    drop(silent);
    instance.wait_for_log("served on by another program");
    assert_eq!(mount_pid(&instance), pid);
    assert_eq!(fs::read(draft.join("more")).unwrap(), b"served");
    drop(open);
    nix::mount::umount2(&slow, nix::mount::MntFlags::MNT_DETACH).unwrap();
    instance.shutdown();
}

/// More than the mount process has threads for one workspace, and than it has had for all of them.
const MANY: usize = 100;
/// So many requests of one workspace are worked on at once (`fs/src/fuse/crew.rs`).
const SHARE: usize = 64;

#[test]
fn a_hundred_requests_that_hang_hold_up_nobody_in_another_workspace() {
    let test = "a_hundred_requests_that_hang_hold_up_nobody_in_another_workspace";
    if !has_tools(test, &["python3"]) {
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "[mount]\ndirect = \"none\"\n") else { return };
    fs::create_dir(instance.jobs_d().join("slow")).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    let other = instance.mount().join("datasets/d/draft");
    fs::create_dir_all(&other).unwrap();
    let slow = instance.root().join("var/lib/trainyard/workspaces/slow/datasets");
    let shown = instance.mount().parent().unwrap().join("slow/datasets");
    wait_for("the slow workspace", || shown.is_dir().then_some(()));
    let pid = mount_pid(&instance);
    std::thread::scope(|scope| {
        // Dropped in here, for only then do they go on.
        let mut silent =
            Silent(Peer::start(Command::new("python3").args(["-c", include_str!("silent.py")]).arg(&slow)));
        assert_eq!(silent.0.hear(), "mounted");
        let hanging: Vec<_> = (0..MANY)
            .map(|number| shown.join(number.to_string()))
            .map(|path| scope.spawn(move || fs::metadata(path)))
            .collect();
        let at_work = || ["fuser-", "fuse-worker"].iter().map(|name| hanging_threads(pid, name)).sum::<usize>();
        wait_for("the share of the slow workspace", || (at_work() == SHARE).then_some(()));
        let file = other.join("f");
        fs::write(&file, vec![7; 4 << 20]).unwrap();
        // What is read ahead is asked for in the background.
        assert_eq!(fs::read(&file).unwrap(), vec![7; 4 << 20]);
        for number in 0..MANY {
            fs::create_dir(other.join(number.to_string())).unwrap();
        }
        fs::rename(&file, other.join("0/g")).unwrap();
        assert_eq!(fs::read_dir(&other).unwrap().count(), MANY);
        assert_eq!(at_work(), SHARE, "no more than its share");
        assert!(hanging.iter().all(|thread| !thread.is_finished()));
        let ready = get(&instance, "/readyz");
        let says = ready.json()["checks"][3]["says"].as_str().unwrap().to_owned();
        // The list of the workspace is made by a look at each.
        let place = shown.parent().unwrap().display();
        let told = format!("{place} has not answered for 5 s: its disk hangs, or the mount process {pid} does");
        assert!(ready.status == 503 && says.contains(&told), "{says}");
        drop(silent);
        for thread in hanging {
            thread.join().unwrap().expect_err("its file system is gone");
        }
    });
    wait_for("the threads to rest", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        (tasks.count() < SHARE).then_some(())
    });
    nix::mount::umount2(&slow, nix::mount::MntFlags::MNT_DETACH).unwrap();
    instance.shutdown();
}
