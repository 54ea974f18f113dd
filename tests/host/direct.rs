//! What the mount shows directly: published versions and code, by mounts of their directories over those of the mount.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::api::{get, get_at_once};
use super::support::{BINARY, ChildGuard, Instance, pids_with, wait_for};

fn backing(instance: &Instance) -> PathBuf {
    instance.root().join("var/lib/trainyard/workspaces")
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// What is mounted below the mount: at which place, with which options.
fn direct(instance: &Instance) -> BTreeMap<PathBuf, String> {
    let below = instance.root().join("srv/trainyard");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let rows = table.lines().map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (PathBuf::from(fields[4]), fields[5].to_owned())
    });
    rows.filter(|(place, _)| place.starts_with(&below) && *place != below).collect()
}

/// Waits until a place is shown directly, or is not.
fn wait_direct(instance: &Instance, place: &Path) -> String {
    wait_for(&format!("{} to be shown directly", place.display()), || direct(instance).get(place).cloned())
}

fn wait_not_direct(instance: &Instance, place: &Path) {
    wait_for("it to be taken away", || (!direct(instance).contains_key(place)).then_some(()));
}

/// Publishes a version of a file `x` with this content.
fn publish(instance: &Instance, name: &str, version: &str, content: &str) -> PathBuf {
    let dataset = instance.mount().join("datasets").join(name);
    fs::create_dir_all(dataset.join("draft")).unwrap();
    fs::write(dataset.join("draft/x"), content).unwrap();
    fs::rename(dataset.join("draft"), dataset.join(version)).unwrap();
    dataset.join(version)
}

fn mount_process(instance: &Instance) -> Pid {
    let words = format!("--root {} mount", instance.root().display());
    // A child of its own has its words until it begins another program.
    let found = wait_for("the mount process", || Some(pids_with(&words)).filter(|found| found.len() == 1));
    Pid::from_raw(found[0].0)
}

/// Who shows directly.
fn companion(instance: &Instance) -> i32 {
    pids_with(&format!("--root {} direct", instance.root().display()))[0].0
}

/// What a process has had of the processors.
fn processor_time(pid: i32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Has whoever shows directly look.
fn ring(bell: &Path) {
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    socket.set_nonblocking(true).unwrap();
    // It has been rung enough already, if it cannot be rung.
    let _ = socket.send_to(&[0], bell);
}

/// Tells of what is made in a directory.
struct Inotify(ChildGuard);

impl Inotify {
    fn of(directory: &Path) -> Self {
        let script = "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\nf = libc.inotify_init1(0)\n\
            assert libc.inotify_add_watch(f, sys.argv[1].encode(), 0x100) > 0\nprint('watches', flush=True)\nprint(os.read(f, 4096), flush=True)";
        let mut python = Command::new("/usr/bin/python3");
        let child = python.args(["-c", script]).arg(directory).stdout(Stdio::piped()).spawn().unwrap();
        let mut watch = Self(ChildGuard(child));
        assert!(watch.next().contains("watches"));
        watch
    }

    fn next(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while self.0.0.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8(line).unwrap()
    }
}

fn is_of(place: &Path, stored: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    identity(place).is_some() && identity(place) == identity(stored)
}

/// Also what is not open to everybody.
const ALL: &str = "[mount]\ndirect = \"all\"\n[limits]\ncpu = 16\nmemory = \"16GiB\"\n";

#[test]
fn a_published_version_is_shown_directly_and_nobody_changes_it() {
    let test = "a_published_version_is_shown_directly_and_nobody_changes_it";
    let Some(instance) = Instance::start(test, "") else { return };
    let dataset = instance.mount().join("datasets/d");
    fs::create_dir_all(dataset.join("draft/sub")).unwrap();
    fs::write(dataset.join("draft/x"), "as it was").unwrap();
    fs::write(dataset.join("draft/run"), "#!/bin/sh\necho runs\n").unwrap();
    fs::set_permissions(dataset.join("draft/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("x", dataset.join("draft/link")).unwrap();
    let early = File::open(dataset.join("draft/x")).unwrap();
    fs::rename(dataset.join("draft"), dataset.join("v1")).unwrap();
    let version = dataset.join("v1");
    let options = wait_direct(&instance, &version);
    for option in ["ro", "nosuid", "nodev"] {
        assert!(options.split(',').any(|one| one == option), "{options}");
    }
    let stored = backing(&instance).join("default/datasets/d/v1");
    assert!(is_of(&version.join("x"), &stored.join("x")), "no file system between them");
    assert_eq!(fs::read_to_string(version.join("link")).unwrap(), "as it was");
    assert_eq!(Command::new(version.join("run")).output().unwrap().stdout, b"runs\n");
    // Who had it open before sees it, and changes it no more.
    let mut seen = [0; 9];
    early.read_exact_at(&mut seen, 0).unwrap();
    let to_write = File::options().write(true).open(format!("/proc/self/fd/{}", early.as_raw_fd()));
    assert_eq!((&seen, errno(to_write)), (b"as it was", Some(libc::EROFS)));
    let file = version.join("x");
    fs::create_dir(instance.mount().join("datasets/e")).unwrap();
    let elsewhere = instance.mount().join("datasets/e/y");
    fs::write(&elsewhere, "").unwrap();
    let open = File::open(&file).unwrap();
    for (what, found) in [
        ("write", errno(File::options().write(true).open(&file))),
        ("truncate", errno(File::options().write(true).truncate(true).open(&file))),
        ("create", errno(File::create(version.join("new")))),
        ("mkdir", errno(fs::create_dir(version.join("new")))),
        ("unlink", errno(fs::remove_file(&file))),
        ("rmdir", errno(fs::remove_dir(version.join("sub")))),
        ("rename", errno(fs::rename(&file, version.join("z")))),
        ("link", errno(fs::hard_link(&file, version.join("z")))),
        ("symlink", errno(symlink("x", version.join("z")))),
        ("chmod", errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o777)))),
        ("chown", errno(std::os::unix::fs::chown(&file, Some(1), None))),
        ("times", errno(open.set_modified(std::time::SystemTime::UNIX_EPOCH))),
        (
            "by /proc",
            errno(File::options().write(true).open(format!("/proc/self/fd/{}", {
                use std::os::fd::AsRawFd;
                open.as_raw_fd()
            }))),
        ),
    ] {
        assert_eq!(found, Some(libc::EROFS), "{what}");
    }
    super::frozen::nobody_changes(&version, "x");
    let mapped = "import mmap, os, sys\nf = os.open(sys.argv[1], os.O_RDONLY)\ntry: mmap.mmap(f, 4, mmap.MAP_SHARED, mmap.PROT_WRITE)\nexcept OSError as e: print(e.errno)";
    let mapped = Command::new("/usr/bin/python3").args(["-c", mapped]).arg(&file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&mapped.stdout), format!("{}\n", libc::EACCES), "open to be read only");
    // Beyond its edge it is another file system: what is moved there would have to be copied and removed.
    assert_eq!(errno(fs::rename(&file, dataset.join("z"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::rename(&elsewhere, version.join("z"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::hard_link(&file, dataset.join("z"))), Some(libc::EXDEV));
    let moved = Command::new("mv").arg(&file).arg(dataset.join("z")).output().unwrap();
    assert!(String::from_utf8_lossy(&moved.stderr).contains("Read-only file system"), "{moved:?}");
    fs::remove_file(dataset.join("z")).unwrap();
    // The version as a whole.
    for (what, found) in [
        ("rename", errno(fs::rename(&version, dataset.join("v2")))),
        ("rmdir", errno(fs::remove_dir(&version))),
        ("over it", errno(fs::rename(instance.mount().join("datasets/e"), &version))),
    ] {
        assert_eq!(found, Some(libc::EBUSY), "{what}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "as it was");
    assert_eq!(fs::read_dir(&version).unwrap().count(), 4);
    instance.shutdown();
}

#[test]
fn what_is_shown_directly_stays_when_the_kernel_forgets_and_is_shown_again_when_it_was_taken_away() {
    let test = "what_is_shown_directly_stays_when_the_kernel_forgets_and_is_shown_again_when_it_was_taken_away";
    let Some(instance) = Instance::start(test, "") else { return };
    let versions: Vec<_> = (0..3).map(|number| publish(&instance, &format!("d{number}"), "v1", "x")).collect();
    versions.iter().for_each(|version| drop(wait_direct(&instance, version)));
    let before = direct(&instance);
    // Names are good for a second, and those of a version for a minute; all of what can be forgotten is.
    for _ in 0..3 {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        std::thread::park_timeout(Duration::from_millis(1100));
        versions.iter().for_each(|version| drop(fs::read(version.join("x")).unwrap()));
        assert_eq!(direct(&instance), before);
    }
    // Somebody takes it away, and the kernel does, since a name of the way leads nowhere for a moment.
    nix::mount::umount2(&versions[0], nix::mount::MntFlags::MNT_DETACH).unwrap();
    let stored = backing(&instance).join("default/datasets");
    fs::rename(stored.join("d1"), stored.join("away")).unwrap();
    wait_for("the name to be gone", || fs::metadata(&versions[1]).is_err().then_some(()));
    assert!(!direct(&instance).contains_key(&versions[1]));
    fs::rename(stored.join("away"), stored.join("d1")).unwrap();
    versions.iter().for_each(|version| drop(wait_direct(&instance, version)));
    instance.shutdown();
}

#[test]
fn what_is_shown_directly_is_so_after_a_restart_of_the_daemon_and_a_kill_of_the_mount() {
    let test = "what_is_shown_directly_is_so_after_a_restart_of_the_daemon_and_a_kill_of_the_mount";
    let Some(mut instance) = Instance::start(test, "") else { return };
    let version = publish(&instance, "d", "v1", "x");
    wait_direct(&instance, &version);
    instance.kill_daemon();
    assert!(direct(&instance).contains_key(&version));
    instance.restart_daemon();
    assert!(direct(&instance).contains_key(&version), "the mount has gone on");
    // Who has a place in it open goes on, whatever becomes of the mount.
    let open = File::open(version.join("x")).unwrap();
    let mut within = Command::new("sh");
    within.args(["-c", "read go; exec cat x"]).current_dir(&version).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut within = within.spawn().unwrap();
    for _ in 0..2 {
        let killed = mount_process(&instance);
        kill(killed, Signal::SIGKILL).unwrap();
        // It may be back before anybody has seen it away.
        wait_for("another mount process", || (mount_process(&instance) != killed).then_some(()));
        wait_for("it to be back", || {
            // By what is shown directly a dead mount is passed as long as the kernel keeps its names.
            fs::read_dir(version.parent()?).ok()?;
            (fs::read(version.join("x")).ok()? == b"x" && direct(&instance).contains_key(&version)).then_some(())
        });
        assert_eq!(errno(File::create(version.join("y"))), Some(libc::EROFS));
    }
    let mut seen = [0; 1];
    open.read_exact_at(&mut seen, 0).unwrap();
    drop(within.stdin.take());
    assert_eq!(within.wait_with_output().unwrap().stdout, b"x");
    // The process that shows directories directly is killed alone: what it has shown stays, and is taken over.
    let companion = format!("--root {} direct", instance.root().display());
    // That of the mount process before may not have ended yet.
    let found = wait_for("the one", || Some(pids_with(&companion)).filter(|found| found.len() == 1));
    kill(Pid::from_raw(found[0].0), Signal::SIGKILL).unwrap();
    let before = direct(&instance);
    wait_for("another one", || pids_with(&companion).iter().any(|(pid, _)| *pid != found[0].0).then_some(()));
    let other = publish(&instance, "e", "v1", "y");
    wait_direct(&instance, &other);
    assert!(before.keys().all(|place| direct(&instance).contains_key(place)));
    instance.ok(&["dataset", "rm", "d@v1"]);
    wait_not_direct(&instance, &version);
    instance.shutdown();
}

#[test]
fn what_is_shown_directly_goes_with_its_dataset_and_with_its_version() {
    let test = "what_is_shown_directly_goes_with_its_dataset_and_with_its_version";
    let Some(instance) = Instance::start(test, "") else { return };
    let (first, stored) = (publish(&instance, "a", "v1", "one"), backing(&instance));
    wait_direct(&instance, &first);
    let open = File::open(first.join("x")).unwrap();
    // Moved: to another name, and to where everybody sees it.
    let top = instance.root().join("srv/trainyard");
    for (from, to) in [("default/datasets/a", "default/datasets/b"), ("default/datasets/b", "public/datasets/c")] {
        fs::rename(top.join(from), top.join(to)).unwrap();
        let version = top.join(to).join("v1");
        assert!(direct(&instance).contains_key(&version), "it goes along");
        assert!(is_of(&version.join("x"), &stored.join(to).join("v1/x")));
        assert!(fs::metadata(top.join(from)).is_err());
    }
    let version = top.join("public/datasets/c/v1");
    // Another one takes the name that it had.
    let second = publish(&instance, "a", "v1", "two");
    wait_direct(&instance, &second);
    assert_eq!(fs::read_to_string(second.join("x")).unwrap(), "two");
    assert_eq!(fs::read_to_string(version.join("x")).unwrap(), "one");
    // Removed: by its name, and then it is gone, but for who has something of it open.
    let within = Command::new("sleep").arg("1000.03125").current_dir(&second).spawn();
    let mut within = within.unwrap();
    instance.ok(&["dataset", "rm", "a@v1"]);
    wait_not_direct(&instance, &second);
    wait_for("the name to be gone", || fs::metadata(&second).is_err().then_some(()));
    assert!(!stored.join("default/datasets/a/v1").exists());
    within.kill().unwrap();
    within.wait().unwrap();
    let third = publish(&instance, "a", "v1", "three");
    wait_direct(&instance, &third);
    assert_eq!(fs::read_to_string(third.join("x")).unwrap(), "three");
    instance.ok(&["dataset", "rm", "c@v1", "--public"]);
    wait_not_direct(&instance, &version);
    let mut seen = [0; 3];
    open.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"one");
    instance.shutdown();
}

#[test]
fn what_is_moved_about_while_it_is_shown_directly_shows_nothing_of_another_place() {
    let test = "what_is_moved_about_while_it_is_shown_directly_shows_nothing_of_another_place";
    let Some(instance) = Instance::start(test, "") else { return };
    let versions = ["a", "b"].map(|name| publish(&instance, name, "v1", name));
    versions.iter().for_each(|version| drop(wait_direct(&instance, version)));
    let bell = instance.root().join("run/trainyard/direct.sock");
    let [a, b] = versions.each_ref().map(|version| version.parent().unwrap());
    let began = std::time::Instant::now();
    let (mut taken, mut turns) = (0, 0);
    // As long as it takes on a machine that is busy with other things.
    while began.elapsed() < Duration::from_secs(6) || (taken <= 10 && began.elapsed() < super::support::PATIENCE) {
        for version in &versions {
            taken += i32::from(nix::mount::umount2(version, nix::mount::MntFlags::MNT_DETACH).is_ok());
        }
        ring(&bell);
        // While places are looked up and covered, they exchange their names.
        for _ in 0..20 {
            rustix::fs::renameat_with(rustix::fs::CWD, a, rustix::fs::CWD, b, rustix::fs::RenameFlags::EXCHANGE)
                .unwrap();
            turns += 1;
            let seen = versions.each_ref().map(|version| fs::read_to_string(version.join("x")).unwrap());
            let expected = if turns % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
            assert_eq!(seen, expected, "after {turns} turns");
        }
    }
    let stored = backing(&instance).join("default/datasets");
    for (name, version) in ["a", "b"].into_iter().zip(&versions) {
        wait_direct(&instance, version);
        assert!(is_of(&version.join("x"), &stored.join(name).join("v1/x")), "{name}");
    }
    assert!(taken > 10, "{taken}");
    instance.shutdown();
}

#[test]
fn who_may_not_pass_the_directories_above_reaches_nothing_that_is_shown_directly() {
    let test = "who_may_not_pass_the_directories_above_reaches_nothing_that_is_shown_directly";
    let Some(instance) = Instance::prepare(test, "").map(|mut instance| {
        instance.make_workspace("secret", 12_345, 0o2770);
        let config = instance.root().join("etc/trainyard/trainyard.toml");
        let before = fs::read_to_string(&config).unwrap();
        fs::write(&config, format!("{before}[mount]\ndirect = \"all\"\n")).unwrap();
        instance.start_daemon(&[]);
        instance.wait_ready();
        instance
    }) else {
        return;
    };
    let top = instance.mount().parent().unwrap().to_owned();
    let as_user = |uid: u32, program: &str, path: &Path| {
        use std::os::unix::process::CommandExt;
        Command::new(program).arg(path).uid(uid).gid(uid).current_dir("/").output().unwrap().status.success()
    };
    let secret = top.join("secret/datasets/d");
    fs::create_dir_all(secret.join("draft")).unwrap();
    fs::write(secret.join("draft/x"), "secret").unwrap();
    fs::rename(secret.join("draft"), secret.join("v1")).unwrap();
    let open = publish(&instance, "d", "v1", "open");
    wait_direct(&instance, &secret.join("v1"));
    wait_direct(&instance, &open);
    assert!(as_user(12_345, "cat", &secret.join("v1/x")) && !as_user(12_346, "cat", &secret.join("v1/x")));
    assert!(as_user(12_346, "cat", &open.join("x")));
    // A dataset is closed by whoever owns it, above its versions.
    fs::set_permissions(open.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    wait_for("it to be closed", || (!as_user(12_346, "cat", &open.join("x"))).then_some(()));
    assert!(direct(&instance).contains_key(&open));
    instance.shutdown();
}

#[test]
fn nobody_reads_in_the_table_of_mounts_what_is_called_where_they_may_not_go() {
    let test = "nobody_reads_in_the_table_of_mounts_what_is_called_where_they_may_not_go";
    let Some(mut instance) = Instance::start(test, "") else { return };
    fs::create_dir(instance.jobs_d().join("secret")).unwrap();
    let top = instance.mount().parent().unwrap().to_owned();
    let home = top.join("secret");
    wait_for("the workspace", || home.join("datasets").is_dir().then_some(()));
    fs::set_permissions(instance.jobs_d().join("secret"), fs::Permissions::from_mode(0o2770)).unwrap();
    wait_for("it to be closed", || (fs::metadata(&home).unwrap().permissions().mode() & 0o007 == 0).then_some(()));
    let secret = home.join("datasets/hush");
    fs::create_dir_all(secret.join("draft")).unwrap();
    fs::write(secret.join("draft/x"), "secret").unwrap();
    fs::rename(secret.join("draft"), secret.join("v1")).unwrap();
    wait_for("its manifest", || {
        fs::read_to_string(secret.join("v1.MANIFEST")).ok()?.contains("state complete").then_some(())
    });
    let open = publish(&instance, "d", "v1", "open");
    wait_direct(&instance, &open);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains("hush"));
    assert_eq!(fs::read_to_string(secret.join("v1/x")).unwrap(), "secret");
    // One that is closed later is no longer named there, and one that is opened is shown.
    let dataset = open.parent().unwrap();
    fs::set_permissions(dataset, fs::Permissions::from_mode(0o750)).unwrap();
    wait_not_direct(&instance, &open);
    fs::set_permissions(dataset, fs::Permissions::from_mode(0o755)).unwrap();
    wait_direct(&instance, &open);
    fs::rename(&secret, top.join("public/datasets/told")).unwrap();
    wait_direct(&instance, &top.join("public/datasets/told/v1"));
    // With a quota, code/ is written by the mount, which holds to it; from the moment that it is in the file.
    wait_direct(&instance, &top.join("default/code"));
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}[workspaces.default]\nstorage = \"1GiB\"\n")).unwrap();
    wait_for("code/ to be the mount's", || (!direct(&instance).contains_key(&top.join("default/code"))).then_some(()));
    assert!(direct(&instance).contains_key(&open));
    fs::write(&config, before).unwrap();
    wait_direct(&instance, &top.join("default/code"));
    instance.kill_daemon();
    instance.restart_daemon();
    instance.shutdown();
}

#[test]
fn a_hanging_mount_holds_up_neither_the_daemon_nor_who_shows_directly_for_ever() {
    let test = "a_hanging_mount_holds_up_neither_the_daemon_nor_who_shows_directly_for_ever";
    let Some(mut instance) = Instance::start(test, "") else { return };
    let version = publish(&instance, "d", "v1", "x");
    wait_direct(&instance, &version);
    let (mount, stored) = (mount_process(&instance), backing(&instance).join("default/datasets"));
    let bell = instance.root().join("run/trainyard/direct.sock");
    let more = |name: &str| {
        let copied = Command::new("cp").arg("-a").arg(stored.join("d")).arg(stored.join(name)).status().unwrap();
        assert!(copied.success());
        ring(&bell);
        version.parent().unwrap().with_file_name(name).join("v1")
    };
    // Who asks is told, and what to do.
    kill(mount, Signal::SIGSTOP).unwrap();
    let shown = instance.root().join("srv/trainyard").display().to_string();
    let found = format!("{shown} has not answered for 5 s: the mount process {mount} is stopped");
    let advice = format!("`kill -CONT {mount}` has it go on");
    let mut doctor = Command::new(BINARY);
    doctor.arg("--root").arg(instance.root()).args(["doctor", "mount"]).stdout(Stdio::piped());
    let doctor = doctor.spawn().unwrap();
    let began = std::time::Instant::now();
    for ready in get_at_once(&instance, "/readyz", 8) {
        let says = &ready.json()["checks"][3]["says"];
        assert_eq!((ready.status, says.as_str()), (503, Some(&*format!("{found}; {advice}"))));
    }
    // One after another they would take 5 s each.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let doctor = doctor.wait_with_output().unwrap();
    let said = String::from_utf8(doctor.stdout).unwrap();
    assert!(!doctor.status.success() && said.contains(&found) && said.contains(&advice), "{said}");
    kill(mount, Signal::SIGCONT).unwrap();
    wait_for("readiness", || (get(&instance, "/readyz").status == 200).then_some(()));
    assert!(get_at_once(&instance, "/readyz", 8).iter().all(|ready| ready.status == 200));
    let doctor = instance.ok(&["doctor", "mount"]);
    assert!(doctor.contains(&format!("the workspaces are shown at {shown}, and answer")), "{doctor}");
    kill(mount, Signal::SIGSTOP).unwrap();
    let second = more("e");
    let companion = companion(&instance);
    wait_for("it to wait for the mount", || {
        let waits = fs::read_to_string(format!("/proc/{companion}/wchan")).unwrap_or_default();
        (waits.contains("fuse") || waits.contains("request_wait")).then_some(())
    });
    let third = more("f");
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(instance.run_job("meanwhile", "command = \"true\"")["state"], "succeeded");
    kill(mount, Signal::SIGCONT).unwrap();
    for version in [&second, &third] {
        wait_direct(&instance, version);
    }
    // What is removed meanwhile is taken away without a word of the mount.
    kill(mount, Signal::SIGSTOP).unwrap();
    instance.ok(&["dataset", "rm", "f@v1"]);
    wait_not_direct(&instance, &third);
    // And a mount that is killed while it hangs lets go of whoever waits for it.
    let fourth = more("g");
    kill(mount, Signal::SIGKILL).unwrap();
    wait_for("another mount", || fs::read_dir(version.parent()?).ok());
    for version in [&version, &second, &fourth] {
        wait_direct(&instance, version);
        assert_eq!(fs::read(version.join("x")).unwrap(), b"x");
    }
    instance.shutdown();
}

#[test]
fn of_many_versions_the_newest_are_shown_directly_and_all_are_shown() {
    let test = "of_many_versions_the_newest_are_shown_directly_and_all_are_shown";
    const MOST: usize = 256;
    let Some(instance) = Instance::start(test, "") else { return };
    let newest = publish(&instance, "d", "v999", "x");
    wait_direct(&instance, &newest);
    let dataset = newest.parent().unwrap();
    let stored = backing(&instance).join("default/datasets/d");
    // Another workspace has its share, though what it has is older than all of them.
    let shared = instance.root().join("srv/trainyard/public/datasets/p");
    fs::create_dir_all(shared.join("draft")).unwrap();
    fs::write(shared.join("draft/x"), "shared").unwrap();
    fs::rename(shared.join("draft"), shared.join("v1")).unwrap();
    wait_direct(&instance, &shared.join("v1"));
    let old = File::options().write(true).open(backing(&instance).join("public/datasets/p/v1.MANIFEST")).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let manifest = fs::read(stored.join("v999.MANIFEST")).unwrap();
    let past = fs::metadata(stored.join("v999.MANIFEST")).unwrap().modified().unwrap() - Duration::from_secs(1000);
    for number in 0..MOST + 20 {
        fs::create_dir(stored.join(format!("v{number}"))).unwrap();
        fs::write(stored.join(format!("v{number}/x")), format!("{number}")).unwrap();
        let path = stored.join(format!("v{number}.MANIFEST"));
        fs::write(&path, &manifest).unwrap();
        let age = Duration::from_secs(number as u64);
        File::options().write(true).open(path).unwrap().set_modified(past + age).unwrap();
    }
    publish(&instance, "e", "v1", "x");
    let versions = || direct(&instance).keys().filter(|place| place.starts_with(dataset)).count();
    wait_for("as many as there may be", || (versions() == MOST - 2).then_some(()));
    let is_direct = |number: usize| direct(&instance).contains_key(&dataset.join(format!("v{number}")));
    assert!(is_direct(999) && is_direct(MOST + 19) && is_direct(23) && !is_direct(22) && !is_direct(0));
    assert!(direct(&instance).contains_key(&shared.join("v1")));
    for number in [0, 22, 23, MOST + 19] {
        assert_eq!(fs::read_to_string(dataset.join(format!("v{number}/x"))).unwrap(), format!("{number}"));
        assert_eq!(errno(File::create(dataset.join(format!("v{number}/y")))), Some(libc::EROFS), "{number}");
    }
    // One goes, the next one comes.
    instance.ok(&["dataset", "rm", "d@v100"]);
    wait_for("the next one", || is_direct(22).then_some(()));
    assert!(!is_direct(100) && !is_direct(21));
    // However often it is rung, it looks for a tenth of the time.
    let (bell, companion) = (instance.root().join("run/trainyard/direct.sock"), companion(&instance));
    let (used, began) = (processor_time(companion), std::time::Instant::now());
    while began.elapsed() < Duration::from_secs(4) {
        ring(&bell);
    }
    let (used, took) = (processor_time(companion) - used, began.elapsed());
    assert!(used < took / 4, "{used:?} of {took:?}");
    instance.shutdown();
}

#[test]
fn where_nothing_can_be_shown_directly_the_mount_shows_the_same() {
    let test = "where_nothing_can_be_shown_directly_the_mount_shows_the_same";
    // It is not wanted, or whoever does it cannot even begin.
    for config in ["[mount]\ndirect = \"none\"\n", "[mount]\ndirect = \"all\"\n"] {
        let Some(mut instance) = Instance::prepare(test, config) else { return };
        fs::create_dir_all(instance.root().join("run/trainyard/direct.sock/in-the-way")).unwrap();
        instance.start_daemon(&[]);
        instance.wait_ready();
        if config.contains("true") {
            instance.wait_for_log("direct");
        }
        let version = publish(&instance, "d", "v1", "x");
        let manifest = version.with_file_name("v1.MANIFEST");
        wait_for("it to be published", || {
            fs::read_to_string(&manifest).is_ok_and(|text| text.contains("# state complete")).then_some(())
        });
        assert_eq!(fs::read(version.join("x")).unwrap(), b"x");
        assert_eq!(errno(File::create(version.join("y"))), Some(libc::EROFS));
        // Whoever has published it is not quite done when the manifest is.
        wait_for("it to be removed", || instance.cli(&["dataset", "rm", "d@v1"]).status.success().then_some(()));
        wait_for("it to be gone", || fs::metadata(&version).is_err().then_some(()));
        assert_eq!(direct(&instance), BTreeMap::new());
        instance.shutdown();
    }
}

#[test]
fn code_is_written_directly_by_whom_its_rights_allow() {
    use std::os::unix::process::CommandExt;
    let test = "code_is_written_directly_by_whom_its_rights_allow";
    let Some(instance) = Instance::start(test, ALL) else { return };
    let (mount, stored) = (instance.mount(), backing(&instance));
    let top = mount.parent().unwrap().to_owned();
    for home in ["default", "preset", "public"] {
        let options = wait_direct(&instance, &top.join(home).join("code"));
        for option in ["rw", "nosuid", "nodev"] {
            assert!(options.split(',').any(|one| one == option), "{home}: {options}");
        }
    }
    // One file system, and not the mount's.
    let code = mount.join("code");
    fs::create_dir(code.join("a")).unwrap();
    fs::write(code.join("a/x"), "x").unwrap();
    assert!(is_of(&code.join("a/x"), &stored.join("default/code/a/x")));
    fs::hard_link(code.join("a/x"), code.join("y")).unwrap();
    fs::rename(code.join("a"), code.join("b")).unwrap();
    assert_eq!(errno(fs::rename(code.join("y"), mount.join("y"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::hard_link(code.join("y"), top.join("public/code/y"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::remove_dir(&code)), Some(libc::EBUSY), "not the place itself");
    let moved = errno(fs::rename(&code, mount.join("datasets/code")));
    assert_eq!(moved, Some(libc::EBUSY), "nor to another");
    let found = Command::new("find").arg(&mount).args(["-xdev", "-name", "x"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "nobody goes into it who does not want to");
    // Locks and attributes are those of the file system.
    let locked = Flock::lock(File::open(code.join("y")).unwrap(), FlockArg::LockExclusive).unwrap();
    let other = Flock::lock(File::open(stored.join("default/code/y")).unwrap(), FlockArg::LockExclusiveNonblock);
    assert!(other.is_err());
    drop(locked);
    rustix::fs::setxattr(code.join("y"), "trusted.any", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    let mut told = Inotify::of(&code);
    fs::write(stored.join("default/code/behind"), "").unwrap();
    assert!(told.next().contains("behind"));
    // Programs run, and none as another; devices are none.
    fs::copy("/usr/bin/id", code.join("id")).unwrap();
    fs::set_permissions(code.join("id"), fs::Permissions::from_mode(0o4755)).unwrap();
    let by = |uid: u32, program: &Path, arguments: &[&Path]| {
        Command::new(program).args(arguments).uid(uid).gid(uid).current_dir("/").output().unwrap()
    };
    let said = by(12_001, &code.join("id"), &[Path::new("-u")]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "12001\n", "{said:?}");
    let made = Command::new("mknod").arg(code.join("null")).args(["c", "1", "3"]).status().unwrap();
    assert!(made.success());
    assert_eq!(errno(File::open(code.join("null"))), Some(libc::EACCES));
    // Whose it is decides, and in `public/` everybody's is their own.
    let touch = |uid: u32, path: &Path| by(uid, Path::new("touch"), &[path]).status.success();
    assert!(!touch(12_001, &code.join("z")) && !touch(12_001, &top.join("preset/code/z")));
    assert!(touch(12_001, &top.join("public/code/z")) && !touch(12_002, &top.join("public/code/z")));
    // A new workspace, open to a group.
    instance.make_workspace("vision", 12_345, 0o2770);
    let vision = top.join("vision/code");
    wait_direct(&instance, &vision);
    wait_for("its rights", || touch(12_345, &vision.join("z")).then_some(()));
    assert!(!touch(12_346, &vision.join("y")));
    // A job takes a copy of it.
    fs::write(code.join("b/run.sh"), "cat x\n").unwrap();
    assert_eq!(instance.run_job("copies", "code = \"b\"\ncommand = \"sh run.sh\"")["state"], "succeeded");
    assert_eq!(instance.log("copies", "main-0"), "x\n");
    instance.shutdown();
}

#[test]
fn who_works_in_code_does_not_notice_that_the_mount_is_killed() {
    let test = "who_works_in_code_does_not_notice_that_the_mount_is_killed";
    let Some(instance) = Instance::start(test, "") else { return };
    let code = instance.mount().join("code");
    wait_direct(&instance, &code);
    let script = "while read line; do echo $line >> lines; mkdir $line; echo done; done";
    let mut works = Command::new("sh");
    works.args(["-euc", script]).current_dir(&code).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut works = works.spawn().unwrap();
    let mut said = BufReader::new(works.stdout.take().unwrap()).lines();
    let mut tell = |word: &str| {
        writeln!(works.stdin.as_mut().unwrap(), "{word}").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "done");
    };
    tell("before");
    kill(mount_process(&instance), Signal::SIGKILL).unwrap();
    tell("meanwhile");
    wait_for("another mount", || fs::read_dir(code.parent()?).ok());
    tell("after");
    drop(works.stdin.take());
    assert!(works.wait().unwrap().success());
    wait_direct(&instance, &code);
    assert_eq!(fs::read_to_string(code.join("lines")).unwrap(), "before\nmeanwhile\nafter\n");
    instance.shutdown();
}

#[test]
fn what_is_mounted_behind_the_mount_is_shown_directly_as_well() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let test = "what_is_mounted_behind_the_mount_is_shown_directly_as_well";
    let Some(mut instance) = Instance::start(test, "") else { return };
    let code = instance.mount().join("code");
    wait_direct(&instance, &code);
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
    assert_eq!(direct(&instance), BTreeMap::new());
    let disk = backing(&instance).join("default/code/disk");
    fs::create_dir(&disk).unwrap();
    mount(Some("disk"), &disk, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::write(disk.join("x"), "on the disk").unwrap();
    instance.restart_daemon();
    let shown = code.join("disk");
    let options = wait_direct(&instance, &shown);
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    assert_eq!(fs::read_to_string(shown.join("x")).unwrap(), "on the disk");
    fs::write(shown.join("y"), "").unwrap();
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
    assert_eq!(direct(&instance), BTreeMap::new());
    assert!(disk.join("y").exists(), "what is mounted behind stays");
    umount2(&disk, MntFlags::empty()).unwrap();
    instance.restart_daemon();
    instance.shutdown();
}

#[test]
fn nothing_goes_from_code_to_a_version_by_its_name() {
    let test = "nothing_goes_from_code_to_a_version_by_its_name";
    for config in [ALL, "[mount]\ndirect = \"none\"\n[limits]\ncpu = 16\nmemory = \"16GiB\"\n"] {
        let Some(instance) = Instance::start(test, config) else { return };
        let mount = instance.mount();
        let draft = mount.join("datasets/d/draft");
        fs::create_dir_all(&draft).unwrap();
        fs::create_dir_all(mount.join("code/x")).unwrap();
        fs::write(mount.join("code/x/f"), "code").unwrap();
        fs::write(draft.join("g"), "data").unwrap();
        let refused = Some(libc::EXDEV);
        assert_eq!(errno(fs::rename(mount.join("code/x"), draft.join("x"))), refused, "{config}");
        assert_eq!(errno(fs::hard_link(mount.join("code/x/f"), draft.join("f"))), refused);
        assert_eq!(errno(fs::rename(draft.join("g"), mount.join("code/g"))), refused);
        assert_eq!(errno(fs::rename(mount.join("code/x"), mount.parent().unwrap().join("public/code/x"))), refused);
        fs::rename(mount.join("code/x"), mount.join("code/y")).unwrap();
        instance.shutdown();
    }
}
