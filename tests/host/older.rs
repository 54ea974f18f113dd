//! Tasks outlive the program that has started them: what shims of an older one wrote, and how they go on under this daemon.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::api::get;
use super::support::{ChildGuard, Instance, has_tools, skip, text, wait_for};
use super::upgrade::{mount_pid, tail};

const SHIM: &str = include_str!("older_shim.py");

/// The directory of the first task of a job's attempt.
fn task_directory(instance: &Instance, title: &str) -> PathBuf {
    let attempts = fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().flatten();
    let directories = attempts.map(|attempt| attempt.path().join("0"));
    let mut own = directories.filter(|directory| record(directory).is_some_and(|record| record["title"] == title));
    own.next().unwrap_or_else(|| panic!("{title} has no directory"))
}

fn record(directory: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(directory.join("task.json")).ok()?).ok()
}

fn number_in(path: &Path) -> i32 {
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn is_alive(pid: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// A record of what a shim is told, with the keys that there were then alone.
fn as_it_was(record: &Value) -> Value {
    const KEYS: [&str; 13] = [
        "task",
        "title",
        "cgroup",
        "log_dir",
        "root",
        "ids",
        "network",
        "stop_signal",
        "init",
        "requirements",
        "logs",
        "memory",
        "stop_grace_ms",
    ];
    let mut was: serde_json::Map<String, Value> =
        KEYS.iter().map(|key| ((*key).to_owned(), record[key].clone())).collect();
    was.insert("news_socket".to_owned(), record["news_socket"].clone());
    was.insert("keep_failed".to_owned(), json!(false));
    let root = was["root"].as_object_mut().unwrap();
    root.retain(|key, _| !["devices", "driver"].contains(&key.as_str()));
    for mount in root["mounts"].as_array_mut().unwrap() {
        mount.as_object_mut().unwrap().remove("is_of_machine");
    }
    was.into()
}

struct StandIn {
    child: ChildGuard,
    /// Its command ends with it.
    stdin: Option<ChildStdin>,
}

impl StandIn {
    /// In the place of the shim and the command of a task, which are killed; there must be no daemon, which would see that.
    fn take_over(directory: &Path) -> Self {
        for file in ["lock", "init.pid"] {
            let pid = number_in(&directory.join(file));
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            wait_for("its end", || (!is_alive(pid)).then_some(()));
        }
        let record = as_it_was(&record(directory).unwrap());
        fs::write(directory.join("task.json"), record.to_string()).unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", SHIM]).arg(directory).stdin(Stdio::piped());
        let mut child = ChildGuard::ready(&mut command, "stands in");
        Self { stdin: child.0.stdin.take(), child }
    }
}

#[test]
fn tasks_of_shims_that_write_as_they_first_did_go_on_end_and_are_stopped() {
    let test = "tasks_of_shims_that_write_as_they_first_did_go_on_end_and_are_stopped";
    if !has_tools(test, &["python3"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let jobs = ["ends", "ends-alone", "stopped"];
    let job = "command = \"echo begun; sleep infinity\"\nresources = { cpu = 0.1, memory = \"100MB\" }\n";
    jobs.iter().for_each(|name| instance.drop_job(name, job));
    for name in jobs {
        instance.wait_state(name, "running");
        wait_for("its first line", || instance.log(name, "main-0").contains("begun").then_some(()));
    }
    instance.kill_daemon();
    let [mut ends, mut alone, _stopped] =
        jobs.map(|name| StandIn::take_over(&task_directory(&instance, &format!("{name}/main-0"))));
    instance.restart_daemon();
    for name in jobs {
        let report = instance.wait_state(name, "running");
        assert_eq!((&report["run"], &report["attempt"]), (&json!(1), &json!(1)), "{report:#}");
    }
    drop(ends.stdin.take());
    assert_eq!(instance.wait_end("ends", 1)["state"], "succeeded");
    instance.ok(&["stop", "stopped"]);
    let report = instance.wait_end("stopped", 1);
    assert_eq!(
        (&report["state"], text(&report["tasks"][0]["reason"])),
        (&json!("stopped"), "stopped by root".to_owned()),
        "{report:#}"
    );
    // While there is no daemon, nobody hears of it.
    instance.kill_daemon();
    drop(alone.stdin.take());
    alone.child.0.wait().unwrap();
    instance.restart_daemon();
    let report = instance.wait_end("ends-alone", 1);
    assert_eq!((&report["state"], &report["attempt"]), (&json!("succeeded"), &json!(1)), "{report:#}");
    for name in jobs {
        assert!(instance.log(name, "main-0").contains("begun"), "{name}");
        assert!(!instance.ok(&["events", name]).contains("lost"), "{name}");
    }
    instance.shutdown();
}

fn older_program(test: &str) -> Option<PathBuf> {
    let older = std::env::var_os("TRAINYARD_OLDER").map(PathBuf::from);
    if older.is_none() {
        skip(test, "an older program ($TRAINYARD_OLDER; `tests/run --upgrade` builds one)");
    }
    older
}

#[test]
fn an_older_program_refuses_the_state_of_this_one_by_a_sentence_or_goes_on_with_it_and_loses_nothing() {
    let test = "an_older_program_refuses_the_state_of_this_one_by_a_sentence_or_goes_on_with_it_and_loses_nothing";
    let Some(older) = older_program(test) else { return };
    let Some(mut instance) = Instance::start(test, "") else { return };
    assert_eq!(instance.run_job("over", "command = \"echo done\"")["state"], "succeeded");
    instance.drop_job("runs", "command = \"sleep infinity\"\nresources = { cpu = 0.1, memory = \"100MB\" }\n");
    instance.wait_state("runs", "running");
    let pid = number_in(&task_directory(&instance, "runs/main-0").join("lock"));
    instance.kill_daemon();
    let program = std::mem::replace(&mut instance.program, older);
    instance.start_daemon(&[]);
    let socket = instance.root().join("run/trainyard/api.sock");
    let is_refused = wait_for("the older program to begin or to refuse", || {
        let ended = instance.daemon_has_ended();
        let answers = !ended && UnixStream::connect(&socket).is_ok() && get(&instance, "/healthz").status == 200;
        (ended || answers).then_some(ended)
    });
    if is_refused {
        let said = wait_for("why", || Some(instance.journal()).filter(|said| !said.is_empty()));
        let is_sentence = said.contains("this program knows up to") || said.contains("a later Trainyard");
        assert!(is_sentence, "{said}");
    } else {
        assert_eq!([instance.state("over"), instance.state("runs")], ["succeeded", "running"]);
        instance.kill_daemon();
    }
    assert!(is_alive(pid), "its task goes on in any case");
    instance.program = program;
    instance.restart_daemon();
    for (name, state) in [("over", "succeeded"), ("runs", "running")] {
        let report = instance.wait_state(name, state);
        assert_eq!((&report["run"], &report["attempt"]), (&json!(1), &json!(1)), "{report:#}");
    }
    assert!(instance.log("over", "main-0").contains("done"));
    instance.ok(&["stop", "runs"]);
    assert_eq!(instance.wait_end("runs", 1)["state"], "stopped");
    instance.shutdown();
}

#[test]
fn tasks_of_an_older_program_go_on_under_this_one() {
    let test = "tasks_of_an_older_program_go_on_under_this_one";
    let Some(older) = older_program(test) else { return };
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    let program = std::mem::replace(&mut instance.program, older);
    instance.start_daemon(&[]);
    instance.wait_ready();
    let resources = "resources = { cpu = 0.1, memory = \"100MB\" }\n";
    // So little is refused now: what was accepted once goes on all the same.
    let little = "resources = { cpu = 0.1, memory = \"64MiB\" }\n";
    let waits = "echo begun; while [ ! -e /output/end ]; do sleep 0.05; done; echo over; echo 1 > /model/m";
    instance.drop_job("ends", &format!("command = \"{waits}\"\n{little}"));
    wait_for("the older program's word", || match instance.state("ends").as_str() {
        "" => None,
        // That one knows the bound as well.
        "invalid" => {
            instance.drop_job("ends", &format!("command = \"{waits}\"\n{resources}"));
            Some(())
        }
        _ => Some(()),
    });
    instance.drop_job("stopped", &format!("command = \"echo begun; sleep infinity\"\n{resources}"));
    let log = |name: &str| instance.run_dir(name, 1).join("attempts/1/main-0/stdout.log");
    for name in ["ends", "stopped"] {
        wait_for("its first line", || fs::read_to_string(log(name)).ok()?.contains("begun").then_some(()));
    }
    let shims = ["ends", "stopped"].map(|name| task_directory(&instance, &format!("{name}/main-0")).join("lock"));
    let pids = shims.each_ref().map(|lock| number_in(lock));
    // Who has something open in the mount, or follows a log there, notices nothing.
    let draft = instance.mount().join("datasets/d/draft");
    fs::create_dir_all(&draft).unwrap();
    let mut open = File::create(draft.join("open")).unwrap();
    open.write_all(b"before,").unwrap();
    let mut follower = tail(&instance.mount().join("jobs/ends/latest/attempts/1/main-0/log"));
    assert!(follower.hear().ends_with("begun"));
    let mount = mount_pid(&instance);
    instance.kill_daemon();
    instance.program = program;
    instance.restart_daemon();
    open.write_all(b"after").unwrap();
    assert_eq!(fs::read_to_string(draft.join("open")).unwrap(), "before,after");
    assert_eq!(mount_pid(&instance), mount, "it is the same process");
    for name in ["ends", "stopped"] {
        let report = instance.wait_state(name, "running");
        assert_eq!((&report["run"], &report["attempt"]), (&json!(1), &json!(1)), "{report:#}");
    }
    assert_eq!(shims.each_ref().map(|lock| number_in(lock)), pids, "its shims are the same");
    assert_eq!(instance.ok(&["exec", "ends", "--", "cat", "/proc/sys/kernel/ostype"]), "Linux\n");
    fs::write(instance.run_dir("ends", 1).join("output/end"), "").unwrap();
    assert_eq!(instance.wait_end("ends", 1)["state"], "succeeded");
    assert!(instance.log("ends", "main-0").contains("over"));
    assert!(follower.hear().ends_with("over"));
    follower.kill();
    drop(open);
    wait_for("its model", || instance.mount().join("models/ends/1/m").exists().then_some(()));
    instance.ok(&["stop", "stopped"]);
    let report = instance.wait_end("stopped", 1);
    assert_eq!(report["state"], "stopped", "{report:#}");
    instance.shutdown();
}
