//! The daemon under a service manager, drained, stopped as a whole; and the machine as the doctor sees it.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::api::get;
use super::support::{BINARY, Instance, PATIENCE, pids_with, text, wait_for};

/// What a service manager hears. It listens all the time, as systemd does: who tells it something waits while nobody does.
struct Manager {
    path: PathBuf,
    words: Receiver<String>,
    heard: Vec<String>,
}

impl Manager {
    fn of(instance: &Instance) -> Self {
        let path = instance.root().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let (sender, words) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = socket.recv(&mut buffer) {
                if sender.send(String::from_utf8_lossy(&buffer[..count]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { path, words, heard: Vec::new() }
    }

    fn environment(&self) -> [(&str, &str); 2] {
        [("NOTIFY_SOCKET", self.path.to_str().unwrap()), ("WATCHDOG_USEC", "600000")]
    }

    /// Waits for a word with this line, and returns the whole of it.
    fn hear(&mut self, line: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let word = self.words.recv_timeout(until.saturating_duration_since(Instant::now()));
            let word = word.unwrap_or_else(|error| panic!("{line:?} is not said ({error}), but: {:#?}", self.heard));
            self.heard.push(word.clone());
            if word.lines().any(|said| said == line) {
                return word;
            }
        }
    }
}

const QUIET: &str = "command = [\"sleep\", \"1000.375\"]\nresources = { cpu = 0.1, memory = \"100MB\" }\n";

#[test]
fn the_service_manager_is_told_what_the_daemon_does_and_that_it_lives() {
    let test = "the_service_manager_is_told_what_the_daemon_does_and_that_it_lives";
    let config = |running: u32| format!("[limits]\ncpu = 4\n[workspaces.default]\nrunning = {running}\n");
    let Some(mut instance) = Instance::prepare(test, &config(1)) else { return };
    let mut manager = Manager::of(&instance);
    instance.start_daemon(&manager.environment());
    let ready = manager.hear("READY=1");
    assert!(ready.contains("STATUS=0 running, 0 waiting"), "{ready}");
    manager.hear("WATCHDOG=1");
    instance.drop_job("one", QUIET);
    instance.wait_state("one", "running");
    instance.drop_job("two", QUIET);
    manager.hear("STATUS=1 running, 1 waiting");
    // The other's turn comes with an edited quota, without a restart.
    let file = instance.root().join("etc/trainyard/trainyard.toml");
    fs::write(&file, config(2)).unwrap();
    instance.wait_state("two", "running");
    // A reload says when it is done, also when nothing has changed.
    let daemon = Pid::from_raw(instance.daemon_pid());
    kill(daemon, Signal::SIGHUP).unwrap();
    assert!(manager.hear("RELOADING=1").contains("MONOTONIC_USEC="));
    manager.hear("READY=1");
    // A spec that is offered from now on is named by a job at once, and what waits for a restart is told by its key.
    let more = "[specs.small]\ncpu = 0.1\nmemory = \"100MB\"\n[mount]\ndirect = \"none\"\n";
    fs::write(&file, format!("{}{more}", config(2))).unwrap();
    kill(daemon, Signal::SIGHUP).unwrap();
    manager.hear("READY=1");
    instance.wait_for_log("act when the daemon is restarted");
    instance.drop_job("small", "command = \"true\"\nresources.spec = \"small\"\n");
    instance.wait_state("small", "waiting");
    // What is wrong changes nothing.
    fs::write(&file, "[limits]\ncpus = 1\n").unwrap();
    kill(daemon, Signal::SIGHUP).unwrap();
    manager.hear("READY=1");
    instance.wait_for_log("cannot be used; what was in force stays");
    assert_eq!(instance.state("two"), "running");
    fs::write(&file, config(2)).unwrap();
    kill(daemon, Signal::SIGTERM).unwrap();
    assert!(manager.hear("STOPPING=1").contains("tasks and the mount go on"));
    instance.wait_daemon_end();
    instance.restart_daemon();
    assert_eq!(instance.state("two"), "running");
    instance.shutdown();
}

#[test]
fn a_drained_machine_lets_what_runs_go_on_and_starts_nothing_until_that_is_undone() {
    let test = "a_drained_machine_lets_what_runs_go_on_and_starts_nothing_until_that_is_undone";
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.drop_job("runs", QUIET);
    instance.wait_state("runs", "running");
    let said = instance.ok(&["drain"]);
    assert!(said.contains("1 job runs on: runs; 0 waiting"), "{said}");
    let ready = get(&instance, "/readyz");
    assert_eq!((ready.status, &ready.json()["checks"][1]["check"]), (503, &"drain".into()), "{:#}", ready.json());
    instance.drop_job("later", "command = \"true\"\nresources = { cpu = 0.1, memory = \"100MB\" }");
    let drained = |instance: &Instance| {
        let told =
            || instance.report("later").filter(|report| text(&report["reason"]).contains("has drained this machine"));
        wait_for("the reason", told)
    };
    assert_eq!(drained(&instance)["state"], "waiting");
    // It outlives the daemon.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(drained(&instance)["state"], "waiting");
    assert_eq!(instance.state("runs"), "running");
    // Who waits for the end hears of it.
    let mut waiter = Command::new(BINARY);
    waiter.arg("--root").arg(instance.root()).args(["drain", "--wait", "--json"]).stdout(Stdio::piped());
    let waiter = waiter.spawn().unwrap();
    instance.ok(&["stop", "runs"]);
    let waited = waiter.wait_with_output().unwrap();
    assert!(waited.status.success());
    let report: Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!((&report["running"], &report["waiting"]), (&Value::Array(Vec::new()), &1.into()), "{report:#}");
    assert_eq!(report["order"]["by"], "root");
    instance.ok(&["drain", "--undo"]);
    assert_eq!(get(&instance, "/readyz").status, 200);
    assert_eq!(instance.wait_end("later", 1)["state"], "succeeded");
    // An order of before the machine's start is over, also where its file is still there.
    instance.ok(&["drain"]);
    instance.kill_daemon();
    let file = instance.root().join("run/trainyard/drained.json");
    let order = fs::read_to_string(&file).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(order.contains(boot.trim()), "{order}");
    fs::write(&file, order.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")).unwrap();
    instance.restart_daemon();
    wait_for("it to start jobs", || (get(&instance, "/readyz").status == 200).then_some(()));
    instance.shutdown();
}

#[test]
fn all_jobs_are_stopped_by_one_word_also_those_that_wait() {
    let test = "all_jobs_are_stopped_by_one_word_also_those_that_wait";
    let Some(instance) = Instance::start(test, "[limits]\ncpu = 4\n[workspaces.default]\nrunning = 1\n") else {
        return;
    };
    instance.run_job("over", "command = \"true\"");
    instance.drop_job("runs", QUIET);
    instance.wait_state("runs", "running");
    instance.drop_job("waits", QUIET);
    instance.wait_state("waits", "waiting");
    let said = instance.ok(&["stop", "--all"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    for job in ["runs", "waits"] {
        assert_eq!(instance.wait_end(job, 1)["state"], "stopped");
    }
    assert_eq!(instance.state("over"), "succeeded");
    let output = instance.cli(&["stop", "--all"]);
    assert!(output.status.success() && output.stdout.is_empty());
    instance.shutdown();
}

#[test]
fn what_ran_when_the_machine_went_down_is_lost_for_that_reason_and_tried_again() {
    let test = "what_ran_when_the_machine_went_down_is_lost_for_that_reason_and_tried_again";
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.drop_job("again", &format!("{QUIET}retries = 1\n"));
    instance.drop_job("once", QUIET);
    for job in ["again", "once"] {
        instance.wait_state(job, "running");
    }
    instance.kill_daemon();
    // As a machine leaves it that was switched off: no process, and another start since.
    let root = instance.root().display().to_string();
    for (pid, line) in pids_with(&root) {
        if line.contains(" shim ") {
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        }
    }
    wait_for("the shims to go", || pids_with(&root).iter().all(|(_, line)| !line.contains(" shim ")).then_some(()));
    let attempts = instance.root().join("var/lib/trainyard/attempts");
    let tasks =
        fs::read_dir(attempts).unwrap().flatten().flat_map(|attempt| fs::read_dir(attempt.path()).unwrap().flatten());
    let begun: Vec<PathBuf> =
        tasks.map(|task| task.path().join("started")).filter(|started| started.exists()).collect();
    assert_eq!(begun.len(), 2);
    begun.iter().for_each(|started| fs::write(started, "\"another start of the machine\"").unwrap());
    instance.restart_daemon();
    let once = instance.wait_end("once", 1);
    assert_eq!(once["state"], "failed");
    assert!(text(&once["reason"]).contains("lost: the machine restarted"), "{once:#}");
    let again = wait_for("the second attempt", || {
        instance.report("again").filter(|report| report["attempt"] == 2 && report["state"] == "running")
    });
    assert!(instance.ok(&["events", "again"]).contains("lost: the machine restarted"), "{again:#}");
    instance.shutdown();
}

#[test]
fn the_doctor_looks_at_everything_and_leaves_nothing() {
    let test = "the_doctor_looks_at_everything_and_leaves_nothing";
    let Some(instance) = Instance::start(test, "") else { return };
    let state = instance.root().join("var/lib/trainyard");
    let listed = || {
        let mut names: Vec<_> = fs::read_dir(&state).unwrap().flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    let before = listed();
    let output = instance.cli(&["doctor", "--json"]);
    let lines: Vec<Value> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert!(lines.len() >= 15, "{lines:#?}");
    let has_failed = lines.iter().any(|line| line["level"] == "failed");
    assert_eq!(output.status.code(), Some(i32::from(has_failed)), "{lines:#?}");
    for line in &lines {
        assert_eq!(line["level"] == "ok", line["advice"].is_null(), "what is not well has an advice: {line}");
    }
    // This daemon makes all of these.
    for check in ["config", "root", "cgroup", "user-namespaces", "overlay", "fuse"] {
        let line = lines.iter().find(|line| line["check"] == check).unwrap();
        assert_ne!(line["level"], "failed", "{line}");
    }
    assert_eq!(listed(), before);
    // Other tests mount as well.
    let own = format!("{}/.doctor-", state.display());
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&own));
    let output = instance.cli(&["doctor", "quota", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no check \"nonsense\"; there are config, root"));
    instance.shutdown();
}

#[test]
fn who_waits_for_a_job_hears_its_end_over_restarts_of_the_daemon() {
    let Some(mut instance) = Instance::start("who_waits_for_a_job_hears_its_end_over_restarts", "") else { return };
    let job = "image = \"host\"\ncommand = \"while [ ! -e /output/go ]; do sleep 0.1; done; exit 7\"\n";
    instance.drop_job("job", job);
    instance.wait_state("job", "running");
    let mut wait = Command::new(BINARY);
    wait.arg("--root").arg(instance.root()).args(["wait", "--exit-code", "job"]).env_remove("TRAINYARD_ROOT");
    let mut waiting = wait.stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..2 {
        let is_connected = |pid: u32| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
            let mut opened = open.filter_map(|fd| fs::read_link(fd.path()).ok());
            opened.any(|path| path.to_string_lossy().starts_with("socket:")).then_some(())
        };
        // It asks how the job is, and then listens for long.
        let mut times = 0;
        wait_for("it to listen", || {
            assert!(waiting.try_wait().unwrap().is_none());
            times = is_connected(waiting.id()).map_or(0, |()| times + 1);
            (times > 20).then_some(())
        });
        instance.kill_daemon();
        instance.start_daemon(&[]);
        instance.wait_ready();
    }
    fs::write(instance.run_dir("job", 1).join("output/go"), "").unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(7));
    instance.shutdown();
}
