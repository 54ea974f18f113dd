//! Tasks with cards whose networks are their own share a process namespace: within the attempt alone, whoever is killed when, and
//! the end of one is not that of others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::crash::left_of_attempts;
use super::gpus::{MAY, MAY_NOT, Nodes, cards_at, instance, opened};
use super::nvml::{FakeNvml, uuid};
use super::support::{Instance, pids_with, text, wait_for};

const TWO: &str = "image = \"host\"\nnetwork = \"task\"\nresources.cpu = 1\nresources.memory = \"256MiB\"\n";

/// An instance with cards that have these minor numbers; of a job that is called `pair` the command of both tasks and more.
fn with_cards(test: &str, minors: &[u64]) -> Option<(Instance, FakeNvml, Nodes)> {
    let (instance, fake) = instance(test)?;
    let nodes = Nodes::make(minors);
    fake.shows(&cards_at(minors, |_| String::new()));
    fake.install();
    Some((instance, fake, nodes))
}

/// The process of which this is the whole command line.
fn process(line: &str) -> i32 {
    wait_for(line, || pids_with(line).into_iter().find(|(_, found)| found.trim() == line).map(|(pid, _)| pid))
}

fn namespace(pid: i32, kind: &str) -> u64 {
    fs::metadata(format!("/proc/{pid}/ns/{kind}")).unwrap().ino()
}

/// One that has ended may be there until the machine's first process has seen it.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The number of what holds the process namespace of the only attempt, told by its lock.
fn holder(instance: &Instance) -> i32 {
    let attempts = instance.root().join("var/lib/trainyard/attempts");
    wait_for("a holder", || {
        let locks = fs::read_dir(&attempts).unwrap().flatten().map(|attempt| attempt.path().join("holder/lock"));
        locks.filter_map(|lock| fs::read_to_string(lock).ok()?.parse().ok()).find(|pid| lives(*pid))
    })
}

fn inside(instance: &Instance, task: &str, script: &str) -> String {
    let output = instance.cli(&["exec", "pair", task, "--", "/bin/sh", "-c", script]);
    String::from_utf8(output.stdout).unwrap()
}

fn children(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().trim().to_owned()
}

#[test]
fn tasks_with_cards_and_networks_of_their_own_share_processes_and_memory_within_their_attempt_alone() {
    let minors = [231, 233, 235];
    let test = "tasks_with_cards_share_processes_within_their_attempt";
    let Some((instance, _fake, _nodes)) = with_cards(test, &minors) else { return };
    instance.drop_job("other", &format!("{TWO}command = \"exec sleep 22391\"\nresources.gpu = 1\n"));
    instance.wait_state("other", "running");
    let pair = "resources.shm = \"16MiB\"\n[roles.w]\ncount = 2\nresources.gpu = 1\n\
                command = \"env; ls /dev; exec sleep 2239$TRAINYARD_TASK_INDEX.5\"\n\
                [roles.plain]\nmain = false\ncommand = \"env; ls /dev; exec sleep 22397\"\n";
    instance.drop_job("pair", &format!("{TWO}{pair}"));
    instance.wait_state("pair", "running");
    let [one, two, plain, other] = ["sleep 22390.5", "sleep 22391.5", "sleep 22397", "sleep 22391"].map(process);
    let own = i32::try_from(std::process::id()).unwrap();
    for kind in ["pid", "user"] {
        let [one, two, plain, other, own] = [one, two, plain, other, own].map(|pid| namespace(pid, kind));
        assert_eq!(one, two, "{kind}");
        assert!([plain, other, own].iter().all(|others| *others != one), "{kind}");
    }
    for kind in ["net", "ipc", "mnt", "uts"] {
        assert_ne!(namespace(one, kind), namespace(two, kind), "{kind}");
    }
    // The cards of the attempt, and which are one's own.
    assert_eq!(opened("22390.5", &minors), [MAY_NOT, MAY, MAY].concat());
    assert_eq!(opened("22391.5", &minors), [MAY_NOT, MAY, MAY].concat());
    assert_eq!(opened("22397", &minors), [MAY_NOT; 3].concat());
    assert_eq!(opened("22391", &minors), [MAY, MAY_NOT, MAY_NOT].concat());
    let seen = |task: &str| {
        wait_for("what it sees", || {
            let log = instance.log("pair", task);
            log.contains("zero").then_some(log)
        })
    };
    let said = |log: &str, name: &str| log.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    let logs = [seen("w-0"), seen("w-1")];
    let first = &logs[0];
    assert_eq!(said(first, "NCCL_CUMEM_ENABLE=").unwrap(), "NCCL_CUMEM_ENABLE=0");
    assert_eq!(said(first, "CUDA_VISIBLE_DEVICES=").unwrap(), format!("CUDA_VISIBLE_DEVICES={}", uuid(1)));
    assert!(said(first, "NCCL_HOSTID=").is_some() && said(&logs[1], "NCCL_HOSTID=") == said(first, "NCCL_HOSTID="));
    assert!(!seen("plain-0").contains("NCCL_HOSTID"));
    // They see each other's processes and memory, and nobody else's.
    let lines = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
    let all = inside(&instance, "w-0", lines);
    assert!(all.contains("sleep 22390.5") && all.contains("sleep 22391.5") && !all.contains("sleep 22391 "), "{all}");
    assert!(!all.contains("sleep 22397"), "{all}");
    let words = inside(&instance, "w-0", "tr '\\0' ' ' < /proc/1/cmdline");
    let root = instance.root().display().to_string();
    assert!(words.contains(" hold --dir-fd ") && !words.contains(&root), "it says no path of the machine: {words}");
    let alone = inside(&instance, "plain-0", lines);
    assert!(alone.contains("sleep 22397") && !alone.contains("22390"), "{alone}");
    inside(&instance, "w-0", "echo x > /dev/shm/note");
    let memory =
        |task: &str| inside(&instance, task, "ls /dev/shm; df -k --output=size /dev/shm | tail -1 | tr -d ' '");
    assert_eq!([memory("w-1"), memory("plain-0")], ["note\n32768\n", "16384\n"]);
    // By the first process nothing of the machine is seen, and nothing ends it.
    let holder = holder(&instance);
    assert_eq!(namespace(holder, "pid"), namespace(one, "pid"));
    let mounts = inside(&instance, "w-0", "wc -l < /proc/1/mountinfo; tail -n +3 /proc/1/net/dev | wc -l");
    assert_eq!(mounts.split_whitespace().collect::<Vec<_>>(), ["1", "1"], "its own root, and its own lo");
    let looks = "ls /proc/1/root/ /proc/1/cwd/ 2>&1; cat /proc/1/environ /proc/1/fd/* 2>&1; kill -9 1; kill -TERM 1";
    let looked = inside(&instance, "w-0", looks);
    let refused = looked.lines().filter(|line| line.contains("ermission denied")).count();
    assert!(refused == looked.lines().count() && refused > 6, "three places, its streams and its lock: {looked}");
    let machine = inside(&instance, "w-0", "cat /proc/1/mounts /proc/1/cgroup");
    assert!(!machine.contains("/etc") && !machine.contains("/var"), "{machine}");
    assert!(lives(holder) && lives(one) && lives(two));
    instance.ok(&["stop", "pair", "other"]);
    instance.wait_end("pair", 1);
    instance.wait_end("other", 1);
    wait_for("all of it to be gone", || left_of_attempts(&instance).is_empty().then_some(()));
    assert!(!lives(holder));
    instance.shutdown();
}

/// What it does when it is started for the first time, and then.
fn first_then(index: u32, first: &str, then: &str) -> String {
    format!(
        "if [ $TRAINYARD_TASK_INDEX = {index} ] && [ ! -e /output/begun ]; then touch /output/begun; {first}; fi; {then}"
    )
}

#[test]
fn a_task_that_ends_leaves_nothing_in_the_common_processes_and_is_started_again_beside_the_others() {
    let minors = [237, 239, 247];
    let Some((mut instance, fake, _nodes)) = with_cards("a_task_that_ends_leaves_nothing", &minors) else { return };
    // What it leaves hears of nothing, and its parents have ended.
    let first = "(trap '' TERM HUP; setsid sh -c 'sleep 22419 & sleep 22418 &'); while [ ! -e /output/fail ]; do sleep 0.05; done; exit 3";
    let command = first_then(0, first, "exec sleep 2241$TRAINYARD_TASK_INDEX");
    let job = format!("{TWO}command = {command:?}\n[roles.w]\ncount = 2\nretries = 2\nresources.gpu = 1\n");
    instance.drop_job("pair", &job);
    let (left, other) = (["sleep 22418", "sleep 22419"].map(process), process("sleep 22411"));
    let (holder, processes) = (holder(&instance), namespace(other, "pid"));
    let init =
        |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().split(' ').nth(3).unwrap().to_owned();
    let parents = left.map(init);
    assert!(
        parents[0] == parents[1] && parents[0] != holder.to_string(),
        "its own first process takes over what it left"
    );
    assert_eq!(opened("22411", &minors), [MAY, MAY, MAY_NOT].concat());
    // Whoever starts the task once more finds the namespace that an earlier daemon has made, and the cards by the devices that they
    // have by then.
    instance.kill_daemon();
    fake.shows(&cards_at(&[247, 239, 237], |_| String::new()));
    instance.restart_daemon();
    wait_for("the cards", || instance.ok(&["gpu", "--json"]).contains("247").then_some(()));
    fs::write(instance.run_dir("pair", 1).join("output/fail"), "").unwrap();
    let again = process("sleep 22410");
    wait_for("what it left to be gone", || (!left.iter().any(|pid| lives(*pid))).then_some(()));
    assert_eq!((namespace(again, "pid"), namespace(again, "user")), (processes, namespace(other, "user")));
    assert!(lives(other) && lives(holder));
    assert_eq!(opened("22410", &minors), [MAY_NOT, MAY, MAY].concat());
    let is_known = |task: &serde_json::Value| task["task"] == "w-0" && task["phase"] == "running";
    wait_for("it to be known", || instance.report("pair")?["tasks"].as_array()?.iter().any(is_known).then_some(()));
    // A command that enters ends with its task, and what it leaves with it; whoever lost its parent is reaped.
    inside(&instance, "w-0", "setsid sleep 22417 > /dev/null 2>&1 & setsid sh -c 'sleep 0.01 &'");
    let entered = process("sleep 22417");
    wait_for("all that ended to be reaped", || (children(holder) == entered.to_string()).then_some(()));
    kill(Pid::from_raw(again), Signal::SIGKILL).unwrap();
    wait_for("another one", || pids_with("sleep 22410").iter().any(|(pid, _)| *pid != again).then_some(()));
    wait_for("what was entered to be gone", || (!lives(entered)).then_some(()));
    assert!(lives(other) && lives(holder) && namespace(process("sleep 22410"), "pid") == processes);
    instance.ok(&["stop", "pair"]);
    instance.wait_end("pair", 1);
    wait_for("all of it to be gone", || left_of_attempts(&instance).is_empty().then_some(()));
    assert!(!lives(holder) && !lives(other));
    instance.shutdown();
}

#[test]
fn whoever_is_killed_the_common_processes_end_with_their_attempt_and_it_is_told_why() {
    let minors = [241, 243];
    let Some((mut instance, _fake, _nodes)) = with_cards("whoever_is_killed_the_common_processes_end", &minors) else {
        return;
    };
    let job = |number: u32| {
        format!(
            "{TWO}retries = 1\n[roles.w]\ncount = 2\nresources.gpu = 1\ncommand = \"exec sleep {number}$TRAINYARD_TASK_INDEX\"\n"
        )
    };
    // The holder: all tasks end, it is said why, and the next attempt has another one.
    instance.drop_job("pair", &job(2245));
    let tasks = [process("sleep 22450"), process("sleep 22451")];
    let first = holder(&instance);
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    wait_for("both to end", || (!tasks.iter().any(|pid| lives(*pid))).then_some(()));
    wait_for("another attempt", || {
        let found = pids_with("sleep 2245");
        let both =
            ["sleep 22450", "sleep 22451"].iter().all(|line| found.iter().any(|(_, known)| known.trim() == *line));
        both.then_some(())
    });
    let second = holder(&instance);
    assert_ne!(first, second);
    let report = instance.report("pair").unwrap().to_string();
    assert!(report.contains("(trainyard hold) has ended"), "{report}");
    // The daemon, then the holder while nobody looks: the end is told by the shims.
    instance.kill_daemon();
    kill(Pid::from_raw(second), Signal::SIGKILL).unwrap();
    wait_for("nothing to run", || {
        (!pids_with("sleep 2245").iter().any(|(_, line)| line.starts_with("sleep"))).then_some(())
    });
    instance.restart_daemon();
    let report = instance.wait_end("pair", 1);
    assert!(report["state"] == "failed" && report.to_string().contains("(trainyard hold) has ended"), "{report:#}");
    wait_for("all of it to be gone", || left_of_attempts(&instance).is_empty().then_some(()));
    // A shim: its task alone is lost, then the attempt is begun anew, and nothing of the first one is left.
    // Another command is another run, without a word: one beside it might come before the file is read.
    instance.drop_job("pair", &job(2246));
    let tasks = [process("sleep 22460"), process("sleep 22461")];
    let third = holder(&instance);
    let shim = pids_with("shim")
        .into_iter()
        .find(|(_, line)| line.contains(&instance.root().display().to_string()) && line.contains("pair/w-0"));
    kill(Pid::from_raw(shim.unwrap().0), Signal::SIGKILL).unwrap();
    wait_for("another attempt", || {
        let lines = ["sleep 22460", "sleep 22461"];
        let found = pids_with("sleep 2246");
        let is_new = |line: &str| found.iter().any(|(pid, known)| known.trim() == line && !tasks.contains(pid));
        lines.iter().all(|line| is_new(line)).then_some(())
    });
    assert!(!lives(third) && !tasks.iter().any(|pid| lives(*pid)));
    // All of them, so that nobody tells anything; then a daemon comes.
    let fourth = holder(&instance);
    instance.kill_daemon();
    kill(Pid::from_raw(fourth), Signal::SIGKILL).unwrap();
    for (pid, line) in pids_with(" shim ") {
        if line.contains(&instance.root().display().to_string()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    instance.restart_daemon();
    let report = wait_for("a further attempt, or the end", || {
        let report = instance.report("pair")?;
        (report["state"] != "running" || holder_or_none(&instance).is_some_and(|pid| pid != fourth)).then_some(report)
    });
    assert!(!text(&report["state"]).is_empty());
    instance.cli(&["stop", "pair"]);
    wait_for("all of it to be gone", || left_of_attempts(&instance).is_empty().then_some(()));
    instance.shutdown();
}

fn holder_or_none(instance: &Instance) -> Option<i32> {
    let attempts = fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).ok()?;
    let told = |attempt: fs::DirEntry| fs::read_to_string(attempt.path().join("holder/lock")).ok()?.parse().ok();
    attempts.flatten().filter_map(told).find(|pid| lives(*pid))
}

/// A daemon that was killed between the making of a holder and the order to stay leaves none.
#[test]
fn a_holder_that_nobody_tells_to_stay_ends_and_one_that_is_told_outlives_who_told_it() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    use trainyard::rundir::holder::{HolderDir, HolderRecord};
    use trainyard::sys::idmap::{IdMap, IdRange};

    if !super::support::can_run("a_holder_that_nobody_tells_to_stay_ends") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dir = HolderDir::of(place.path());
    fs::create_dir(dir.path()).unwrap();
    let range = vec![IdRange { inside: 0, outside: 1_879_048_192, count: 65_536 }];
    let group = format!("/trainyard-test-{}/a1-holder", std::process::id());
    let record = HolderRecord {
        ids: IdMap { users: range.clone(), groups: range },
        cgroup: group.clone(),
        place: "/mnt".into(),
    };
    dir.write(&record).unwrap();
    if trainyard::sys::cgroup::layout() == trainyard::sys::cgroup::Layout::V2 {
        fs::create_dir(Path::new("/sys/fs/cgroup").join(group.trim_start_matches('/')).parent().unwrap()).unwrap();
    }
    for is_told in [false, true] {
        let lock = dir.try_lock().unwrap().unwrap();
        lock.file().set_len(0).unwrap();
        let opened = fs::File::open(dir.path()).unwrap();
        for inherited in [&opened, lock.file()] {
            nix::fcntl::fcntl(inherited, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
        }
        let mut maker = Command::new(super::support::BINARY)
            .args(["hold", "--dir-fd", &opened.as_raw_fd().to_string()])
            .args(["--lock-fd", &lock.file().as_raw_fd().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stay, mut told) = (maker.stdin.take().unwrap(), BufReader::new(maker.stdout.take().unwrap()));
        assert!(maker.wait().unwrap().success());
        drop(lock);
        let mut number = String::new();
        told.read_line(&mut number).unwrap();
        let pid: i32 = number.trim().parse().unwrap();
        assert!(dir.held().unwrap().is_none() && lives(pid), "it waits, and nobody takes it for one that stays");
        if is_told {
            stay.write_all(number.trim().as_bytes()).unwrap();
        }
        drop(stay);
        told.read_to_string(&mut String::new()).unwrap();
        match is_told {
            true => {
                assert_eq!(holder_of(&dir), Some(pid));
                assert_eq!(trainyard::sys::cgroup::processes(&group).unwrap(), [pid]);
                trainyard::sys::cgroup::remove(&group).unwrap();
            }
            false => trainyard::sys::lock::wait_until_free(fs::File::open(dir.lock_file()).unwrap()).unwrap(),
        }
        assert!(dir.held().unwrap().is_none());
    }
    trainyard::sys::cgroup::remove(Path::new(&group).parent().unwrap().to_str().unwrap()).unwrap();
}

fn holder_of(dir: &trainyard::rundir::holder::HolderDir) -> Option<i32> {
    dir.held().unwrap()?;
    fs::read_to_string(dir.lock_file()).ok()?.parse().ok()
}
