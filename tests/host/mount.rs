//! What the mount shows of jobs.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::api::get;
use super::support::{Instance, pids_with, text, wait_for};

#[test]
fn a_log_grows_under_its_reader() {
    let Some(instance) = Instance::start("a_log_grows_under_its_reader", "") else { return };
    let script = "for i in 1 2 3; do echo line $i; while [ ! -e /output/$i ]; do sleep 0.02; done; done";
    instance.drop_job("grow", &format!("command = \"{script}\""));
    instance.wait_state("grow", "running");
    let mount = instance.mount();
    for name in ["log", "stdout.log"] {
        let path = mount.join("jobs/grow/latest/attempts/1/main-0").join(name);
        let mut file = wait_for("the log", || fs::File::open(&path).ok());
        let mut seen = String::new();
        for number in 1..=3 {
            let wanted = format!("line {number}\n");
            wait_for(&wanted, || {
                // As tail does: the size first, then what is new.
                let size = file.metadata().unwrap().len();
                file.seek(SeekFrom::Start(seen.len() as u64)).unwrap();
                if size > seen.len() as u64 {
                    file.read_to_string(&mut seen).unwrap();
                }
                seen.ends_with(&wanted).then_some(())
            });
            if name == "stdout.log" {
                fs::write(instance.run_dir("grow", 1).join(format!("output/{number}")), "").unwrap();
            } else {
                break;
            }
        }
    }
    instance.wait_end("grow", 1);
}

/// The directories below this one and itself, by the shell's own tool; those that go meanwhile are left out.
fn directories(top: &Path) -> Vec<std::path::PathBuf> {
    let found = Command::new("find").arg(top).args(["-type", "d", "-print0"]).output().unwrap().stdout;
    let found = found.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    found.map(|path| std::path::PathBuf::from(std::ffi::OsStr::from_bytes(path))).collect()
}

#[test]
fn whoever_lists_with_attributes_finds_all_that_there_is() {
    let test = "whoever_lists_with_attributes_finds_all_that_there_is";
    let Some(instance) = Instance::start(test, "") else { return };
    instance.drop_job("ended", "command = \"echo said; echo x > /output/y; echo z > /model/z\"");
    assert_eq!(instance.wait_end("ended", 1)["state"], "succeeded");
    fs::create_dir_all(instance.mount().join("datasets/d/draft")).unwrap();
    fs::write(instance.mount().join("datasets/d/draft/f"), "text").unwrap();
    instance.ok(&["dataset", "publish", "d", "v1"]);
    let names = |dir: &Path, options: &str| {
        let listed = Command::new("ls").arg(options).arg(dir).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).unwrap()
    };
    let all = directories(&instance.mount());
    assert!(all.len() > 20, "{all:?}");
    for dir in &all {
        let plain = names(dir, "-1");
        let with_attributes = names(dir, "-l");
        // Below a line of its own, each name once; what a link leads to stands after it.
        let told: Vec<&str> = with_attributes.lines().skip(1).collect();
        assert_eq!(told.len(), plain.lines().count(), "{}: {plain}{with_attributes}", dir.display());
    }
    let log = instance.mount().join("jobs/ended/latest/attempts/1/main-0");
    assert!(names(&log, "-l").contains(" log\n"));
    instance.shutdown();
}

/// Whether there is something to read within so many milliseconds.
fn is_readable(file: &fs::File, longest: u16) -> bool {
    use std::os::fd::AsFd;
    let mut polled = [nix::poll::PollFd::new(file.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut polled, longest).unwrap() == 1
}

#[test]
fn who_polls_a_log_is_woken_when_it_grows() {
    let Some(instance) = Instance::start("who_polls_a_log_is_woken_when_it_grows", "") else { return };
    let script = "for i in 1 2 3; do echo line $i; while [ ! -e /output/$i ]; do sleep 0.02; done; done";
    instance.drop_job("grow", &format!("command = \"{script}\""));
    instance.wait_state("grow", "running");
    let task = instance.mount().join("jobs/grow/latest/attempts/1/main-0");
    let mut log = wait_for("the log", || fs::File::open(task.join("log")).ok());
    let stored = fs::File::open(task.join("stdout.log")).unwrap();
    for number in 1..=3 {
        let mut text = String::new();
        while !text.ends_with(&format!("line {number}\n")) {
            assert!(is_readable(&log, 10_000), "line {number} comes");
            log.read_to_string(&mut text).unwrap();
        }
        assert!(!is_readable(&log, 50), "nothing comes meanwhile");
        assert!(is_readable(&stored, 0), "any other file is always readable");
        fs::write(instance.run_dir("grow", 1).join(format!("output/{number}")), "").unwrap();
    }
    instance.wait_end("grow", 1);
}

#[test]
fn status_links_and_rights_are_as_described() {
    let Some(instance) = Instance::start("status_links_and_rights_are_as_described", "") else { return };
    instance.run_job("good", "description = \"a good one\"\ncommand = \"true\"");
    instance.run_job("bad", "command = \"exit 1\"");
    let jobs = instance.mount().join("jobs");
    wait_for("the link", || jobs.join("by-state/succeeded/good").exists().then_some(()));
    wait_for("the link", || jobs.join("by-state/failed/bad").exists().then_some(()));
    assert!(!jobs.join("by-state/running/good").exists());
    assert!(jobs.join("by-user/root/good/status").exists());
    // Another owner's job is another user's.
    std::os::unix::fs::chown(instance.jobs_d().join("good.toml"), Some(12_001), None).unwrap();
    instance.drop_job("bad", "command = \"exit 1\" # touched");
    wait_for("the new owner", || jobs.join("by-user/12001/good").exists().then_some(()));
    assert!(!jobs.join("by-user/root/good").exists() && jobs.join("by-user/root/bad").exists());
    let status = fs::read_to_string(jobs.join("good/status")).unwrap();
    let parsed: toml::Table = status.parse().unwrap();
    assert_eq!(parsed["state"].as_str(), Some("succeeded"), "{status}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(jobs.join("good/status.json")).unwrap()).unwrap();
    assert_eq!(text(&json["description"]), "a good one");
    let events = fs::read_to_string(jobs.join("bad/events")).unwrap();
    assert!(events.contains("main-0 exited with code 1"), "{events}");
    assert_eq!(fs::read_link(jobs.join("good/latest")).unwrap().to_str(), Some("runs/1"));
    for path in ["good/status", "good/events", "by-state/failed/bad/status"] {
        let error = fs::OpenOptions::new().append(true).open(jobs.join(path)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS), "{path}");
    }
    assert_eq!(fs::remove_dir_all(jobs.join("good")).unwrap_err().raw_os_error(), Some(nix::libc::EROFS));
    let names: Vec<_> =
        fs::read_dir(jobs.join("good/latest/attempts/1/main-0")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(names.iter().any(|name| name == "log") && !names.iter().any(|name| name == ".log.index"), "{names:?}");
    let mut file = fs::File::create(instance.mount().join("code/note")).unwrap();
    file.write_all(b"mine to change").unwrap();
}

#[test]
fn a_killed_mount_is_back_within_two_seconds_and_jobs_do_not_notice() {
    let Some(instance) = Instance::start("a_killed_mount_is_back_within_two_seconds_and_jobs_do_not_notice", "") else {
        return;
    };
    let mount = instance.mount();
    instance.drop_job("steady", "command = \"while [ ! -e /output/go ]; do sleep 0.02; done; echo through\"");
    instance.wait_state("steady", "running");
    // On a machine that is busy with other things it takes longer: the best of some counts.
    let back_after = (0..10).map(|_| {
        let root = format!("--root {} mount", instance.root().display());
        // A child of its own has its words until it begins another program.
        let servers = || Some(pids_with(&root)).filter(|found| found.len() == 1);
        let killed = wait_for("the mount process", servers)[0].0;
        let gone = Instant::now();
        kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
        // It may be back before anybody has seen it away.
        wait_for("another mount process", || servers().filter(|found| found[0].0 != killed));
        wait_for("the mount to be back", || fs::read_dir(mount.join("jobs/steady")).ok());
        gone.elapsed()
    });
    // Twice at least: it is kept for good, not once.
    let quick = back_after.filter(|took| *took < Duration::from_secs(2)).take(2).count();
    assert_eq!(quick, 2, "it nearly always takes longer");
    assert_eq!(instance.state("steady"), "running");
    fs::write(instance.run_dir("steady", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("steady", 1)["state"], "succeeded");
    assert!(instance.log("steady", "main-0").contains("through"));
    instance.shutdown();
}

#[test]
fn a_daemon_whose_journal_nobody_reads_works_on_and_so_does_its_mount() {
    let test = "a_daemon_whose_journal_nobody_reads_works_on_and_so_does_its_mount";
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    instance.start_daemon(&[("TRAINYARD_LOG", "debug")]);
    // The pipe breaks at the next line, for the daemon and for the mount process that it starts.
    instance.forget_journal();
    let report = instance.run_job("unheard", "command = \"echo heard\"");
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(
        fs::read_to_string(instance.mount().join("jobs/unheard/latest/attempts/1/main-0/stdout.log")).unwrap(),
        "heard\n"
    );
    assert!(!instance.daemon_has_ended());
    instance.shutdown();
}

#[test]
fn a_daemon_starts_over_a_mount_that_is_dead_and_puts_a_new_one_in_its_place() {
    let test = "a_daemon_starts_over_a_mount_that_is_dead_and_puts_a_new_one_in_its_place";
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.run_job("before", "command = \"true\"");
    let mount = instance.mount();
    instance.kill_daemon();
    let lock = fs::read_to_string(instance.root().join("run/trainyard/mount.lock")).unwrap();
    kill(Pid::from_raw(lock.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    wait_for("the mount's death", || {
        let seen = fs::metadata(&mount).err().and_then(|error| error.raw_os_error());
        (seen == Some(nix::libc::ENOTCONN)).then_some(())
    });
    instance.restart_daemon();
    let is_back = || mount.join("jobs/before/status").exists().then_some(());
    wait_for("a live mount", is_back);
    // A mistake in the configuration keeps no mount away.
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let good = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{good}\n[nonsense]\n")).unwrap();
    let lock = instance.root().join("run/trainyard/mount.lock");
    let server = || fs::read_to_string(&lock).unwrap().trim().parse::<i32>().ok();
    let killed = server().unwrap();
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    wait_for("another mount process", || server().filter(|pid| *pid != killed));
    wait_for("another mount", is_back);
    fs::write(&config, good).unwrap();
    // What does keep it away is told, until it is gone.
    instance.kill_daemon();
    kill(Pid::from_raw(server().unwrap()), Signal::SIGKILL).unwrap();
    let top = mount.parent().unwrap();
    assert!(Command::new("umount").arg("-l").arg(top).status().unwrap().success());
    fs::remove_dir(top).unwrap();
    fs::write(top, "in the way").unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    let seen =
        |status| wait_for("readiness", || Some(get(&instance, "/readyz")).filter(|ready| ready.status == status));
    let away = seen(503).json();
    assert_eq!((&away["checks"][3]["check"], &away["checks"][3]["ok"]), (&"mount".into(), &false.into()), "{away:#}");
    // Somebody has put something there; the journal tells what the mount hides.
    let hides = instance.root().join("hides");
    fs::create_dir(&hides).unwrap();
    fs::write(hides.join("data"), "").unwrap();
    fs::remove_file(top).unwrap();
    fs::rename(&hides, top).unwrap();
    wait_for("a mount where one can be", is_back);
    seen(200);
    instance.wait_for_log("the mount point is not empty");
    instance.shutdown();
}

#[test]
fn a_word_that_is_written_to_ctl_is_done_with_the_rights_of_whoever_writes() {
    let test = "a_word_that_is_written_to_ctl_is_done_with_the_rights_of_whoever_writes";
    let Some(mut instance) = Instance::start(test, "") else { return };
    let file = instance.jobs_d().join(".new");
    fs::write(&file, "command = \"sleep 1000.0625\"").unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4322)).unwrap();
    fs::rename(file, instance.jobs_d().join("long.toml")).unwrap();
    instance.wait_state("long", "running");
    let ctl = instance.mount().join("jobs/long/ctl");
    wait_for("ctl", || ctl.exists().then_some(()));
    let metadata = fs::metadata(&ctl).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (4321, 0o600));
    assert!(fs::read_dir(ctl.parent().unwrap()).unwrap().any(|entry| entry.unwrap().file_name() == "ctl"));
    assert_eq!(fs::read_to_string(&ctl).unwrap(), "stop\nstop now\nrestart\nrerun\n");
    let by = |uid: u32, text: &str| {
        let script = format!("{text} > {}", ctl.display());
        let id = uid.to_string();
        let options = ["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", &script];
        let output = Command::new("setpriv").args(options).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (done, said) = by(4444, "/bin/echo stop");
    assert!(!done && said.contains("Permission denied"), "{said}");
    // An open file that somebody else was given does not make the other's rights theirs.
    let open = fs::OpenOptions::new().write(true).open(&ctl).unwrap();
    let options = ["--reuid", "4444", "--clear-groups", "sh", "-c", "echo stop"];
    let passed = Command::new("setpriv").args(options).stdout(open).status().unwrap();
    assert!(!passed.success(), "{passed:?}");
    assert_eq!(instance.state("long"), "running");
    let (done, said) = by(4321, "/bin/echo perhaps");
    assert!(!done && said.contains("Invalid argument"), "{said}");
    assert!(by(4321, "/usr/bin/printf restart").0);
    let runs = |number: u64| {
        wait_for("the next run", || {
            (instance.report("long")?["run"] == number && instance.state("long") == "running").then_some(())
        });
    };
    runs(2);
    assert!(by(4321, "/bin/echo stop").0);
    assert_eq!(instance.wait_end("long", 2)["state"], "stopped");
    let (done, said) = by(4321, "/bin/echo stop");
    assert!(!done && said.contains("busy"), "it is over: {said}");
    instance.kill_daemon();
    let (done, said) = by(4321, "/bin/echo rerun");
    assert!(!done && said.contains("refused"), "{said}");
    instance.restart_daemon();
    assert!(by(0, "/bin/echo rerun").0, "root may");
    instance.wait_state("long", "running");
    instance.ok(&["restart", "long"]);
    wait_for("the run after it", || {
        (instance.report("long")?["run"] == 4 && instance.state("long") == "running").then_some(())
    });
    instance.shutdown();
}

/// What a directory shows, shown at another place as well.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(shown: &Path) -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        assert!(Command::new("mount").arg("--bind").arg(shown).arg(copy.0.path()).status().unwrap().success());
        copy
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// An administrator takes the mount away while people work in it; that somebody has a copy of it elsewhere changes nothing.
#[test]
fn a_mount_that_an_administrator_takes_away_is_back_and_jobs_do_not_notice() {
    let test = "a_mount_that_an_administrator_takes_away_is_back_and_jobs_do_not_notice";
    let Some(instance) = Instance::start(test, "") else { return };
    let mount = instance.mount();
    instance.drop_job("steady", "command = \"while [ ! -e /output/go ]; do sleep 0.02; done; echo through\"");
    instance.wait_state("steady", "running");
    let draft = mount.join("datasets/d/draft");
    fs::create_dir_all(&draft).unwrap();
    fs::write(draft.join("f"), "before").unwrap();
    let mut open = fs::OpenOptions::new().read(true).append(true).open(draft.join("f")).unwrap();
    let _copy = Copy::of(mount.parent().unwrap());
    let gone = Command::new("umount").arg("-l").arg(mount.parent().unwrap()).status().unwrap();
    assert!(gone.success());
    wait_for("the mount to be back", || fs::read_dir(mount.join("jobs/steady")).ok());
    assert_eq!(fs::read(draft.join("f")).unwrap(), b"before");
    // What was open is not on the new mount: it is written to the same file, or told that its mount is gone.
    match open.write_all(b", after") {
        Ok(()) => assert_eq!(fs::read(draft.join("f")).unwrap(), b"before, after"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(nix::libc::ENOTCONN), "{error}"),
    }
    drop(open);
    assert_eq!(instance.state("steady"), "running");
    fs::write(instance.run_dir("steady", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("steady", 1)["state"], "succeeded");
    instance.shutdown();
}
