//! Commands and copies in running tasks: how they end, what they may, what is left of them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize};

use trainyard::sys::cgroup::{self, Layout};

use super::support::{BINARY, Instance, pids_with, wait_for};

const NOBODY: u32 = 65534;
const SLEEPS: &str = "command = ['sleep', '1000']\n[resources]\ncpu = 0.5\nmemory = '256MiB'";

/// Nobody's, and nobody in particular inside.
const THEIRS: &str = "user = '1234:1234'\ncommand = ['sleep', '1000']\n[resources]\ncpu = 0.5\nmemory = '256MiB'";

fn running(test: &str) -> Option<Instance> {
    let instance = Instance::start(test, "")?;
    instance.drop_job("job", SLEEPS);
    instance.wait_state("job", "running");
    // It is running from before the command is executed.
    wait_for("the command", || {
        let commands = members(&instance).into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")));
        commands.flatten().any(|command| command == "sleep\n").then_some(())
    });
    Some(instance)
}

/// Drops a job that belongs to nobody.
fn drop_theirs(instance: &Instance, name: &str, text: &str) {
    let aside = instance.jobs_d().join(format!(".{name}.new"));
    fs::write(&aside, text).unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o644)).unwrap();
    chown(&aside, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::rename(aside, instance.jobs_d().join(format!("{name}.toml"))).unwrap();
    instance.wait_state(name, "running");
}

fn as_nobody(instance: &Instance, arguments: &[&str]) -> Output {
    Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", BINARY, "--root"])
        .arg(instance.root())
        .args(arguments)
        .output()
        .unwrap()
}

fn exec(instance: &Instance, script: &str) -> Output {
    instance.cli(&["exec", "job", "--", "/bin/sh", "-c", script])
}

fn start(instance: &Instance, arguments: &[&str]) -> Child {
    Command::new(BINARY)
        .arg("--root")
        .arg(instance.root())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All processes in the control group of the first attempt's first task.
fn members(instance: &Instance) -> Vec<i32> {
    let init = fs::read_to_string(instance.root().join("var/lib/trainyard/attempts/a1/0/init.pid")).unwrap();
    let groups = fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
    let group = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>()).find(|line| line[2] != "/").unwrap();
    let path = Path::new("/sys/fs/cgroup").join(group[1]).join(group[2].trim_start_matches('/')).join("cgroup.procs");
    let mut pids: Vec<i32> = fs::read_to_string(path).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    pids.sort_unstable();
    pids
}

fn wait_alone(instance: &Instance, before: &[i32]) {
    let mut last = Vec::new();
    let deadline = std::time::Instant::now() + super::support::PATIENCE;
    while last != before {
        assert!(std::time::Instant::now() < deadline, "{before:?} became {last:?}: {:?}", pids_with("trainyard enter"));
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        last = members(instance);
    }
}

#[test]
fn exec_ends_as_its_command_does() {
    let Some(instance) = running("exec_ends_as_its_command_does") else { return };
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)]
    {
        assert_eq!(exec(&instance, script).status.code(), Some(code), "{script}");
    }
    let missing = instance.cli(&["exec", "job", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(err(&missing).contains("no-such-program") && err(&missing).contains("/usr/bin"), "{}", err(&missing));
    let missing = instance.cli(&["exec", "job", "main-0", "--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(err(&missing).contains("/no/such/program is not there"), "{}", err(&missing));
    let refused = instance.cli(&["exec", "job", "--", "/etc/hostname"]);
    assert_eq!(refused.status.code(), Some(126), "{}", err(&refused));
    // What it leaves running does not hold it up, and ends with the task.
    let left = exec(&instance, "sleep 31337.5 & echo said");
    assert_eq!((left.status.code(), out(&left).as_str()), (Some(0), "said\n"));
    assert_eq!(pids_with("sleep 31337.5").len(), 1);
    instance.shutdown();
    assert_eq!(pids_with("sleep 31337.5").len(), 0);
}

#[test]
fn streams_of_exec_stay_apart_and_lose_nothing() {
    let Some(instance) = running("streams_of_exec_stay_apart_and_lose_nothing") else { return };
    drop_theirs(&instance, "theirs", THEIRS);
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // By path as well: the streams belong to the task's user.
    for (job, command) in [("job", "tee /dev/stderr"), ("theirs", "cat | tee /dev/stderr > /dev/stdout")] {
        let mut client = start(&instance, &["exec", "-i", job, "--", "sh", "-c", command]);
        let mut stdin = client.stdin.take().unwrap();
        let input = sent.clone();
        let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
        let output = client.wait_with_output().unwrap();
        writer.join().unwrap();
        assert_eq!(output.status.code(), Some(0), "{job}");
        assert!(output.stdout == sent, "{job}: {} bytes of stdout", output.stdout.len());
        assert!(output.stderr == sent, "{job}: {} bytes of stderr", output.stderr.len());
    }
    let mut client = start(&instance, &["exec", "job", "--", "cat"]);
    let _ = client.stdin.take().unwrap().write_all(b"not passed on without -i");
    assert_eq!(out(&client.wait_with_output().unwrap()), "");
    instance.shutdown();
}

/// The facts by which a process is held, printed by the process itself.
const FACTS: &str = r#"grep -E "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Umask|SigIgn|SigBlk)" /proc/self/status; cat /proc/self/cgroup /proc/self/limits /proc/self/oom_score_adj; readlink /proc/self/ns/*; id; pwd; env | grep -v ^_= | sort; ls /proc/self/fd | wc -l"#;

#[test]
fn what_is_executed_is_held_by_all_that_holds_the_task() {
    let Some(instance) = Instance::start("what_is_executed_is_held_by_all_that_holds_the_task", "") else { return };
    let job =
        format!("command = '''{{ {FACTS}; }} > /output/facts < /dev/null 2>&1; touch /output/done; sleep 1000'''");
    instance.drop_job("job", &job);
    drop_theirs(&instance, "theirs", &job);
    drop_theirs(&instance, "user", &format!("user = '1234:50'\ninit = false\n{job}"));
    let network = format!("network = 'host'\n{job}");
    instance.drop_job("host", &network);
    for name in ["job", "theirs", "user", "host"] {
        let output = instance.run_dir(name, 1).join("output");
        wait_for("the task's own facts", || output.join("done").exists().then_some(()));
        let own = fs::read_to_string(output.join("facts")).unwrap();
        assert!(own.contains("Seccomp:") && own.contains("CapBnd:") && own.contains("pid:["), "{own}");
        let entered = instance.cli(&["exec", name, "--", "/bin/sh", "-c", &format!("{{ {FACTS}; }} 2>&1")]);
        assert_eq!(out(&entered), own, "{name}: {}", err(&entered));
    }
    instance.shutdown();
}

#[test]
fn the_memory_limit_of_a_task_covers_what_is_executed_in_it() {
    let Some(instance) = running("the_memory_limit_of_a_task_covers_what_is_executed_in_it") else { return };
    let fits = instance.cli(&["exec", "job", "--", "python3", "-c", "x = bytearray(100 << 20)"]);
    assert_eq!(fits.status.code(), Some(0), "{}", err(&fits));
    let hungry = instance.cli(&["exec", "job", "--", "python3", "-c", "x = bytearray(500 << 20)"]);
    assert_eq!(hungry.status.code(), Some(137), "{}", err(&hungry));
    match cgroup::layout() {
        // The kernel kills the one that asked for it.
        Layout::V1 => assert_eq!(instance.state("job"), "running"),
        // All of a group or none (memory.oom.group).
        Layout::V2 => {
            let end = instance.wait_end("job", 1);
            assert!(end["reason"].as_str().is_some_and(|reason| reason.contains("out of memory")), "{end}");
        }
    }
    instance.shutdown();
}

#[test]
fn exec_says_why_it_cannot() {
    let Some(instance) = running("exec_says_why_it_cannot") else { return };
    instance.drop_job("two", "[roles.a]\ncommand = 'sleep 1000'\n[roles.b]\ncount = 2\ncommand = 'sleep 1000'");
    instance.wait_state("two", "running");
    instance.run_job("over", "command = 'exit 3'");
    drop_theirs(&instance, "theirs", THEIRS);
    instance.drop_job("late", "command = 'true'\nresources = { cpu = 15 }");
    instance.wait_state("late", "waiting");
    // None of these is a code of the command.
    for (target, words) in [
        (vec!["unknown"], "there is no job unknown"),
        (vec!["over"], "job over does not run: it is failed"),
        (vec!["late"], "job late does not run: it is waiting"),
        (vec!["two"], "name one: a-0, b-0, b-1"),
        (vec!["two", "c-0"], "has no task c-0; there are a-0, b-0, b-1"),
    ] {
        let refused = instance.cli(&[vec!["exec"], target.clone(), vec!["--", "true"]].concat());
        assert_eq!(refused.status.code(), Some(125), "{target:?}");
        assert!(err(&refused).contains(words), "{target:?}: {}", err(&refused));
    }
    let named = instance.cli(&["exec", "two", "b-1", "--", "hostname"]);
    assert_eq!(out(&named), "b-1\n");
    let no_terminal = instance.cli(&["exec", "-t", "job", "--", "true"]);
    assert_eq!(no_terminal.status.code(), Some(125));
    assert!(err(&no_terminal).contains("standard input is none"), "{}", err(&no_terminal));
    let refused = as_nobody(&instance, &["exec", "job", "--", "id"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(err(&refused).contains("belongs to root") && out(&refused).is_empty(), "{}", err(&refused));
    let refused = as_nobody(&instance, &["cp", "job:/etc/hostname", "not-theirs"]);
    assert!(err(&refused).contains("belongs to root"), "{}", err(&refused));
    let own = as_nobody(&instance, &["exec", "theirs", "--", "id", "-u"]);
    assert_eq!(out(&own), "1234\n", "{}", err(&own));
    instance.shutdown();
}

/// A terminal with a client of ours at it.
struct Seat {
    master: OwnedFd,
    slave: OwnedFd,
    client: Child,
    seen: String,
}

impl Seat {
    fn take(instance: &Instance, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let mut seat = Self { client: Self::client(instance, arguments, &slave), master, slave, seen: String::new() };
        seat.resize(33, 111);
        seat
    }

    fn client(instance: &Instance, arguments: &[&str], slave: &OwnedFd) -> Child {
        rustix::termios::tcsetwinsize(slave, Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        Command::new("setsid")
            .args(["--ctty", BINARY, "--root"])
            .arg(instance.root())
            .args(arguments)
            .env("TERM", "vt100")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap()
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.master, size).unwrap();
    }

    fn type_in(&mut self, text: &str) {
        File::from(self.master.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
    }

    fn wait_to_see(&mut self, part: &str) {
        let from = std::time::Instant::now();
        while !self.seen.contains(part) {
            assert!(from.elapsed() < super::support::PATIENCE, "waited in vain for {part:?}: {:?}", self.seen);
            self.look();
        }
    }

    /// Takes what comes within a moment.
    fn look(&mut self) {
        let mut ready = [nix::poll::PollFd::new(self.master.as_fd(), nix::poll::PollFlags::POLLIN)];
        if nix::poll::poll(&mut ready, 100u16).unwrap() > 0 {
            let mut buffer = [0; 4096];
            let count = File::from(self.master.try_clone().unwrap()).read(&mut buffer).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }

    fn is_raw(&self) -> bool {
        !rustix::termios::tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn a_terminal_has_its_size_keeps_it_and_is_given_back() {
    let test = "a_terminal_has_its_size_keeps_it_and_is_given_back";
    let Some(instance) = running(test) else { return };
    drop_theirs(&instance, "theirs", THEIRS);
    for job in ["job", "theirs"] {
        let mut seat = Seat::take(&instance, &["exec", "-it", job, "--", "sh"]);
        seat.type_in(
            "tty; stty size; echo $TERM; echo mine > $(tty); cat /proc/self/stat | cut -d' ' -f7; echo begun\n",
        );
        seat.wait_to_see("/dev/pts/");
        seat.wait_to_see("33 111");
        seat.wait_to_see("vt100");
        seat.wait_to_see("mine\r\n");
        seat.wait_to_see("\nbegun");
        assert!(seat.is_raw(), "keys go to the other terminal");
        seat.resize(44, 155);
        // Until the new size has come. Then it starts no other program: one that it is just starting would lose the Ctrl-C.
        seat.type_in("trap 'echo inter''rupted; stop=1' INT; until [ \"$(stty size)\" = '44 155' ]; do sleep 0.05; done; echo re''sized; until [ \"$stop\" ]; do :; done; echo go''es on\n");
        seat.wait_to_see("resized");
        // Once, and it is for the command.
        seat.type_in("\u{3}");
        seat.wait_to_see("interrupted");
        seat.wait_to_see("goes on");
        seat.type_in("exit 9\n");
        let end = wait_for("the client's end", || seat.client.try_wait().unwrap());
        assert_eq!(end.code(), Some(9), "{}", seat.seen);
        assert!(!seat.is_raw(), "the terminal is as it was");
    }
    let mut seat = Seat::take(&instance, &["exec", "-it", "job", "--", "sh", "-c", "echo begun; sleep 31337.25"]);
    seat.wait_to_see("begun");
    kill(Pid::from_raw(i32::try_from(seat.client.id()).unwrap()), Signal::SIGTERM).unwrap();
    let end = wait_for("the client's end", || seat.client.try_wait().unwrap());
    assert_eq!(end.code(), Some(143));
    assert!(!seat.is_raw(), "the terminal is as it was, after a signal too");
    wait_for("the command's end", || pids_with("sleep 31337.25").is_empty().then_some(()));
    instance.shutdown();
}

#[test]
fn a_terminal_without_input_leaves_keys_their_meaning_and_does_not_wait_for_what_prints_on() {
    let test = "a_terminal_without_input_leaves_keys_their_meaning_and_does_not_wait_for_what_prints_on";
    let Some(instance) = running(test) else { return };
    let mut seat = Seat::take(&instance, &["exec", "-t", "job", "--", "sh", "-c", "echo begun; sleep 31341.5"]);
    seat.wait_to_see("begun");
    assert!(!seat.is_raw(), "keys go nowhere else");
    seat.type_in("\u{3}");
    let end = wait_for("the client's end", || seat.client.try_wait().unwrap());
    assert_eq!(end.code(), Some(130), "{}", seat.seen);
    wait_for("the command's end", || pids_with("sleep 31341.5").is_empty().then_some(()));
    // In a session of its own, by the terminal's name: the hang-up does not reach it.
    let prints = "T=$(tty); setsid sh -c 'while echo noise > \"$0\"; do : > /tmp/begun; done' \"$T\" & \
        until [ -e /tmp/begun ]; do :; done; exit 4";
    let mut seat = Seat::take(&instance, &["exec", "-t", "job", "--", "sh", "-c", prints]);
    let end = wait_for("the client's end", || {
        seat.look();
        seat.client.try_wait().unwrap()
    });
    assert_eq!(end.code(), Some(4));
    seat.wait_to_see("noise");
    instance.shutdown();
}

#[test]
fn output_that_is_cut_off_is_no_success() {
    let Some(instance) = running("output_that_is_cut_off_is_no_success") else { return };
    let into = |stdout: Stdio, script: &str| {
        let mut command = Command::new(BINARY);
        command.arg("--root").arg(instance.root()).args(["exec", "job", "--", "sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).output().unwrap()
    };
    for script in ["echo some", "seq 1000000"] {
        let full = into(File::options().write(true).open("/dev/full").unwrap().into(), script);
        assert_eq!(full.status.code(), Some(125), "{script}");
        assert!(err(&full).contains("No space left"), "{script}: {}", err(&full));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let had_enough = into(writer.into(), "seq 1000000");
    assert_eq!((had_enough.status.code(), err(&had_enough).as_str()), (Some(0), ""));
    instance.shutdown();
}

#[test]
fn what_enters_a_task_holds_nothing_by_which_it_could_be_left() {
    let Some(instance) = running("what_enters_a_task_holds_nothing_by_which_it_could_be_left") else { return };
    drop_theirs(&instance, "theirs", THEIRS);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(dir.path().join("secret"), "the machine's").unwrap();
    let (outside, copy) = (dir.path().display(), dir.path().join("copy").display().to_string());
    for job in ["job", "theirs"] {
        for number in 3..10 {
            let way = format!("/proc/self/fd/{number}/..");
            let planted = format!("/tmp/planted{number}");
            instance.ok(&["exec", job, "--", "ln", "-s", &way, &planted]);
            for way in [&way, &planted] {
                let program = instance.cli(&["exec", job, "--", &format!("{way}/usr/bin/true")]);
                assert!(matches!(program.status.code(), Some(126 | 127)), "{job} {way}: {:?}", program.status);
                for file in [format!("{way}/etc/hostname"), format!("{way}/{outside}/secret")] {
                    let got = instance.cli(&["cp", &format!("{job}:{file}"), &copy]);
                    assert_eq!(got.status.code(), Some(1), "{job} {file}: {}", err(&got));
                }
                let put = instance.cli(&["cp", &format!("{outside}/secret"), &format!("{job}:{way}/{outside}/evil")]);
                assert_eq!(put.status.code(), Some(1), "{job} {way}: {}", err(&put));
            }
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["secret"]);
    instance.shutdown();
}

#[test]
fn nothing_stays_of_an_exec_whose_client_is_gone() {
    let Some(instance) = running("nothing_stays_of_an_exec_whose_client_is_gone") else { return };
    let before = members(&instance);
    let marker = "31338.5";
    let stubborn = format!("trap '' HUP TERM; (sleep {marker}; :) & echo up; while :; do sleep {marker}; done");
    let talks = format!("echo up; sleep {marker} & while :; do echo more; done");
    for script in [format!("echo up; sleep {marker}"), talks, stubborn] {
        let mut client = start(&instance, &["exec", "-i", "job", "--", "sh", "-c", &script]);
        let mut stdin = client.stdin.take().unwrap();
        // More than is ever taken: the client is stuck in the middle of its input.
        let feeding = std::thread::spawn(move || while stdin.write_all(&[b'x'; 4096]).is_ok() {});
        client.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
        assert!(members(&instance).len() >= before.len() + 2);
        client.kill().unwrap();
        client.wait().unwrap();
        feeding.join().unwrap();
        wait_alone(&instance, &before);
    }
    instance.shutdown();
}

#[test]
fn a_killed_daemon_ends_what_is_executed_but_not_the_task() {
    let Some(mut instance) = running("a_killed_daemon_ends_what_is_executed_but_not_the_task") else { return };
    let before = members(&instance);
    let mut client = start(&instance, &["exec", "job", "--", "sh", "-c", "echo up; sleep 31339.5"]);
    client.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    instance.kill_daemon();
    let end = client.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(125), "{}", err(&end));
    assert!(err(&end).contains("daemon went away") || err(&end).contains("broke off"), "{}", err(&end));
    wait_alone(&instance, &before);
    instance.restart_daemon();
    assert_eq!(instance.state("job"), "running");
    assert_eq!(out(&exec(&instance, "echo again")), "again\n");
    instance.shutdown();
}

#[test]
fn the_end_of_a_task_is_told_to_whoever_executes_in_it() {
    let Some(instance) = running("the_end_of_a_task_is_told_to_whoever_executes_in_it") else { return };
    let mut client = start(&instance, &["exec", "job", "--", "sh", "-c", "echo up; trap '' TERM HUP; sleep 31340.5"]);
    client.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    instance.ok(&["stop", "job"]);
    let end = client.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(137));
    assert!(err(&end).contains("the task has ended"), "{}", err(&end));
    assert_eq!(instance.wait_end("job", 1)["state"], "stopped");
    instance.shutdown();
}

fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("sub/run.sh"), "echo run").unwrap();
    fs::set_permissions(root.join("sub/run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("/etc/shadow", root.join("link")).unwrap();
    symlink("sub", root.join("to-sub")).unwrap();
    let large: Vec<u8> = (0..50u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
    fs::write(root.join("large"), large).unwrap();
    fs::write(root.join("训练"), "name").unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123);
    for path in ["sub/run.sh", "large", "sub/empty", "sub"] {
        File::open(root.join(path)).unwrap().set_modified(old).unwrap();
    }
    fs::set_permissions(root.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
}

fn assert_same(one: &Path, other: &Path) {
    let (a, b) = (fs::symlink_metadata(one).unwrap(), fs::symlink_metadata(other).unwrap());
    assert_eq!((a.file_type(), a.mode()), (b.file_type(), b.mode()), "{}", other.display());
    assert_eq!((a.mtime(), a.mtime_nsec()), (b.mtime(), b.mtime_nsec()), "{}", other.display());
    if a.is_symlink() {
        assert_eq!(fs::read_link(one).unwrap(), fs::read_link(other).unwrap());
    } else if a.is_file() {
        assert!(fs::read(one).unwrap() == fs::read(other).unwrap(), "{} differs", other.display());
    } else {
        let names = |path: &Path| {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(one), names(other));
        names(one).iter().for_each(|name| assert_same(&one.join(name), &other.join(name)));
    }
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let Some(instance) = running("a_tree_goes_in_and_comes_out_as_it_was") else { return };
    drop_theirs(&instance, "theirs", THEIRS);
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path).display().to_string();
    make_tree(&dir.path().join("tree"));
    for job in ["job", "theirs/main-0"] {
        instance.ok(&["cp", &at("tree"), &format!("{job}:/output/new")]);
        let name = job.trim_end_matches("/main-0");
        let arrived = instance.run_dir(name, 1).join("output/new");
        assert_same(&dir.path().join("tree"), &arrived);
        let owner = if name == "theirs" { NOBODY } else { 0 };
        for path in ["", "sub/run.sh", "link"] {
            assert_eq!(fs::symlink_metadata(arrived.join(path)).unwrap().uid(), owner, "{path}");
        }
        // Into a directory that is there, relative to where the task works, and back again.
        instance.ok(&["cp", &at("tree"), &format!("{job}:new")]);
        assert_same(&dir.path().join("tree"), &arrived.join("tree"));
        let back = at(&format!("back-{name}"));
        instance.ok(&["cp", &format!("{job}:new/tree/."), &back]);
        assert_same(&dir.path().join("tree"), Path::new(&back));
        assert_eq!(fs::metadata(Path::new(&back).join("large")).unwrap().uid(), 0, "it belongs to the caller");
    }
    instance.ok(&["cp", "job:/etc/hostname", &at("name")]);
    assert_eq!(fs::read_to_string(at("name")).unwrap(), "main-0\n");
    instance.ok(&["cp", "job:/etc/hostname", &at("tree/sub/")]);
    assert_eq!(fs::read_to_string(at("tree/sub/hostname")).unwrap(), "main-0\n");
    for (from, to, words) in [
        ("job:/no/such/file", at("x"), "job: cannot read /no/such/file: there is no such file"),
        ("job:/etc/hostname", at("no/such/place"), "no/such/place"),
        (at("absent").as_str(), "job:/tmp/".to_owned(), "absent"),
        (at("name").as_str(), "job:/no/such/place".to_owned(), "job: cannot write /no/such/place"),
        (at("name").as_str(), "job:/proc/uptime".to_owned(), "job: cannot write"),
        (at("name").as_str(), "job:/dev/null".to_owned(), "neither file nor directory"),
        (at("name").as_str(), at("other"), "neither"),
    ] {
        let refused = instance.cli(&["cp", from, &to]);
        let code = if words == "neither" { 2 } else { 1 };
        assert_eq!(refused.status.code(), Some(code), "{from} {to}");
        assert!(err(&refused).contains(words), "{from} {to}: {}", err(&refused));
    }
    assert_eq!(exec(&instance, "test -c /dev/null").status.code(), Some(0), "the device is still there");
    // What the kernel makes up, and names that would order a terminal about.
    instance.ok(&["cp", "job:/proc/self/status", &at("status")]);
    assert!(fs::read_to_string(at("status")).unwrap().contains("Seccomp:"));
    exec(&instance, "mkdir /tmp/odd; mkfifo \"$(printf '/tmp/odd/a\\033[2Jb')\"");
    let told = instance.cli(&["cp", "job:/tmp/odd", &at("odd")]);
    assert_eq!(told.status.code(), Some(0), "{}", err(&told));
    assert!(err(&told).contains("a\\u{1b}[2Jb is left out"), "{}", err(&told));
    instance.shutdown();
}
