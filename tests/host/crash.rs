//! Kills: the daemon at every recorded step and at random, shims, and what must be true afterwards.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::{Instance, has_tools, pids_with, text, wait_for};

/// Leaves one line for each time that it is started, talks for a while, ends with a code that must arrive.
const WITNESS: &str = r#"
[roles.w]
count = 2
command = "echo $TRAINYARD_TASK_INDEX >> /output/started; echo w > /model/$TRAINYARD_TASK_INDEX; for i in $(seq 1 30); do echo line $i; sleep 0.02; done; exit 0"
"#;

/// Every task started once, every line there once and in order, the end told.
fn assert_witness(instance: &Instance, job: &str, after: &str) {
    let report = instance.wait_end(job, 1);
    assert_eq!(
        (text(&report["state"]), report["attempt"].as_u64()),
        ("succeeded".into(), Some(1)),
        "{after}: {report}"
    );
    let run = instance.run_dir(job, 1);
    let mut started: Vec<_> =
        fs::read_to_string(run.join("output/started")).unwrap().lines().map(str::to_owned).collect();
    started.sort();
    assert_eq!(started, ["0", "1"], "{after}: each task starts once");
    let model = run.ancestors().nth(4).unwrap().join("models").join(job).join("1");
    assert!(model.join("0").exists() && model.join("MODEL.toml").exists(), "{after}: the model is published");
    let expected: String = (1..=30).map(|n| format!("line {n}\n")).collect();
    for task in ["w-0", "w-1"] {
        let log = fs::read_to_string(run.join("attempts/1").join(task).join("stdout.log")).unwrap();
        assert_eq!(log, expected, "{after}: {task}");
    }
    let told = fs::read_to_string(run.parent().unwrap().parent().unwrap().join("events")).unwrap();
    let stored = instance.ok(&["events", job]);
    wait_for("the events file", || {
        (fs::read_to_string(run.parent().unwrap().parent().unwrap().join("events")).unwrap().lines().count()
            == stored.lines().count())
        .then_some(())
    });
    assert_eq!(stored.matches("attempt 1 starts").count(), 1, "{after}: {told}");
}

/// Kills the daemon at its N-th commit for every N there is, before and after it is written.
fn kill_at_every_commit(test: &str, kind: &str) {
    for number in 1.. {
        let Some(mut instance) = Instance::prepare(test, "") else { return };
        instance.drop_job("witness", WITNESS);
        let fault = format!("{kind}:{number}");
        instance.start_daemon(&[("TRAINYARD_TEST_FAULT", &fault)]);
        let died = wait_for("the daemon to die or the job to end", || {
            if instance.daemon_has_ended() {
                return Some(true);
            }
            (instance.state("witness") == "succeeded").then_some(false)
        });
        if !died {
            assert!(number > 4, "{kind} never took effect: there were only {number} commits");
            return;
        }
        instance.wait_daemon_end();
        instance.restart_daemon();
        assert_witness(&instance, "witness", &fault);
        instance.shutdown();
    }
}

#[test]
fn a_daemon_killed_before_any_commit_loses_and_doubles_nothing() {
    kill_at_every_commit("a_daemon_killed_before_any_commit_loses_and_doubles_nothing", "die-before");
}

#[test]
fn a_daemon_killed_after_any_commit_loses_and_doubles_nothing() {
    kill_at_every_commit("a_daemon_killed_after_any_commit_loses_and_doubles_nothing", "die-after");
}

#[test]
fn a_daemon_killed_again_and_again_at_any_moment_loses_and_doubles_nothing() {
    let test = "a_daemon_killed_again_and_again_at_any_moment_loses_and_doubles_nothing";
    let Some(mut instance) = Instance::start(test, "") else { return };
    let jobs: Vec<String> = (0..6).map(|number| format!("w{number}")).collect();
    // Spread over the life of the jobs; the seed is fixed, the machine's pace is not.
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    for job in &jobs {
        instance.drop_job(job, WITNESS);
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        std::thread::park_timeout(Duration::from_millis(seed % 120));
        instance.kill_daemon();
        instance.start_daemon(&[]);
    }
    instance.wait_ready();
    for job in &jobs {
        assert_witness(&instance, job, "random kills");
    }
    instance.shutdown();
}

#[test]
fn a_daemon_that_is_told_to_end_leaves_jobs_and_mount_alone() {
    let Some(mut instance) = Instance::start("a_daemon_that_is_told_to_end_leaves_jobs_and_mount_alone", "") else {
        return;
    };
    instance.drop_job("stay", "command = \"while [ ! -e /output/go ]; do sleep 0.02; done; exit 6\"");
    instance.wait_state("stay", "running");
    let mount = instance.mount();
    kill(Pid::from_raw(instance.daemon_pid()), Signal::SIGTERM).unwrap();
    instance.wait_daemon_end();
    let listed = fs::read_dir(mount.join("jobs/stay"));
    assert!(listed.is_ok(), "the mount goes on: {listed:?}");
    fs::write(instance.run_dir("stay", 1).join("output/go"), "").unwrap();
    wait_for("the task's end without a daemon", || {
        pids_with(&format!("{}/var", instance.root().display())).is_empty().then_some(())
    });
    instance.restart_daemon();
    let report = instance.wait_end("stay", 1);
    assert_eq!(text(&report["reason"]), "main-0 exited with code 6");
    instance.shutdown();
}

fn shim_of(instance: &Instance) -> i32 {
    // What is left of the attempt before goes a moment later.
    wait_for("one shim", || {
        let attempts = fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().flatten();
        let told = attempts.filter_map(|attempt| fs::read_to_string(attempt.path().join("0/lock")).ok());
        let [told] = <[String; 1]>::try_from(told.collect::<Vec<_>>()).ok()?;
        told.parse().ok()
    })
}

fn alive(marker: &str) -> bool {
    !pids_with(marker).is_empty()
}

#[test]
fn a_killed_shim_means_a_lost_task_an_empty_cgroup_and_another_attempt() {
    let Some(instance) = Instance::start("a_killed_shim_means_a_lost_task_an_empty_cgroup_and_another_attempt", "")
    else {
        return;
    };
    instance.drop_job("victim", "retries = 1\ncommand = \"sleep 1000.25\"");
    instance.wait_state("victim", "running");
    wait_for("the command", || alive("sleep 1000.25").then_some(()));
    kill(Pid::from_raw(shim_of(&instance)), Signal::SIGKILL).unwrap();
    wait_for("the second attempt", || {
        let report = instance.report("victim")?;
        (report["attempt"] == 2 && report["state"] == "running").then_some(())
    });
    let sleepers = || pids_with("sleep 1000.25").iter().filter(|(_, line)| line.starts_with("sleep")).count();
    wait_for("the second one's program, and no other", || (sleepers() == 1).then_some(()));
    kill(Pid::from_raw(shim_of(&instance)), Signal::SIGKILL).unwrap();
    let report = instance.wait_end("victim", 1);
    assert_eq!(report["state"], "failed");
    assert!(text(&report["reason"]).contains("main-0 lost: its shim is gone"), "{report}");
    assert!(!alive("sleep 1000.25"));
    instance.shutdown();
}

#[test]
fn a_signalled_shim_is_no_success() {
    let Some(instance) = Instance::start("a_signalled_shim_is_no_success", "") else { return };
    instance
        .drop_job("going", "command = \"trap 'exit 0' TERM; echo half > /model/half; while :; do sleep 0.02; done\"");
    instance.wait_state("going", "running");
    wait_for("its work", || instance.run_dir("going", 1).join("model/half").exists().then_some(()));
    // As every process gets it when the machine is rebooted.
    kill(Pid::from_raw(shim_of(&instance)), Signal::SIGTERM).unwrap();
    let report = instance.wait_end("going", 1);
    assert_eq!(report["state"], "failed", "{report}");
    assert!(text(&report["reason"]).contains("signal"), "{report}");
    assert!(!instance.mount().join("models/going").exists(), "what is half done is no model");
}

#[test]
fn a_shim_killed_while_there_is_no_daemon_is_noticed_at_the_next_start() {
    let Some(mut instance) = Instance::start("a_shim_killed_while_there_is_no_daemon_is_noticed_at_the_next_start", "")
    else {
        return;
    };
    instance.drop_job("orphan", "command = \"sleep 1000.5\"");
    instance.wait_state("orphan", "running");
    instance.kill_daemon();
    kill(Pid::from_raw(shim_of(&instance)), Signal::SIGKILL).unwrap();
    instance.restart_daemon();
    let report = instance.wait_end("orphan", 1);
    assert!(text(&report["reason"]).contains("lost"), "{report}");
    assert_eq!(pids_with("sleep 1000.5"), []);
    assert!(!Path::new(&format!("{}/var/lib/trainyard/attempts/a1", instance.root().display())).exists());
    instance.shutdown();
}

/// Kernel objects of an instance that outlive a process: mounts, bridges and their ports, control groups, directories.
pub(crate) fn left_of_attempts(instance: &Instance) -> Vec<String> {
    let root = instance.root().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let attempts = format!("{root}/run/trainyard/attempts");
    let mounts = mounts.lines().filter(|line| line.contains(attempts.as_str())).map(str::to_owned);
    let links = crate::support::images::in_network(instance.network_holder(), "ip", &["-o", "link"]);
    let links: Vec<_> =
        links.lines().filter(|line| line.contains(": ty") || line.contains(": tv")).map(str::to_owned).collect();
    let tasks = format!("trainyard-{}", trainyard::config::Paths::new(instance.root()).unwrap().instance());
    let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path().join(&tasks));
    let parents = hierarchies.chain([Path::new("/sys/fs/cgroup").join(&tasks)]);
    let groups = parents.filter_map(|parent| fs::read_dir(parent).ok()).flatten().map(|entry| entry.unwrap());
    let groups =
        groups.filter(|entry| entry.file_type().unwrap().is_dir()).map(|entry| entry.path().display().to_string());
    let groups: Vec<_> = groups.collect();
    let names = |directory: String| {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().path().display().to_string()).collect::<Vec<_>>()
    };
    let below_run = names(attempts.clone());
    let scratch = names(format!("{root}/var/lib/trainyard/attempts"));
    mounts.chain(links).chain(groups).chain(scratch).chain(below_run).collect()
}

/// A shim that has begun, as soon as there is one.
fn next_shim(instance: &Instance) -> i32 {
    let attempts = instance.root().join("var/lib/trainyard/attempts");
    wait_for("a shim", || {
        let locks = fs::read_dir(&attempts).unwrap().flatten().map(|attempt| attempt.path().join("0/lock"));
        locks.filter_map(|lock| fs::read_to_string(lock).ok()?.parse().ok()).next()
    })
}

#[test]
fn a_shim_killed_at_any_moment_leaves_nothing_and_its_end_is_told() {
    const TEST: &str = "a_shim_killed_at_any_moment_leaves_nothing_and_its_end_is_told";
    if !has_tools(TEST, &["umoci", "busybox", "ip"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = crate::support::images::small(dir.path(), &[], |_| {});
    let mut ends = std::collections::BTreeSet::new();
    for step in 0..30u64 {
        let job = format!("k{step}");
        // Every third with the command at work, so that the kill comes in the midst of a stop.
        let seconds = if step % 3 == 2 { "1000.75" } else { "0.01" };
        let words = ["/bin/busybox", "sleep", seconds];
        instance.drop_job(
            &job,
            &format!("image = {image:?}\ncommand = {words:?}\n[roles.a]\n[roles.b]\nmin_failed = \"never\""),
        );
        let shim = if step % 3 == 2 {
            instance.wait_state(&job, "running");
            let shim = next_shim(&instance);
            instance.ok(&["stop", &job]);
            shim
        } else {
            next_shim(&instance)
        };
        // From its first instruction to its last: it lives for some 30 ms.
        std::thread::park_timeout(Duration::from_micros(step / 3 * 4000));
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(shim), Signal::SIGKILL);
        let report = instance.wait_end(&job, 1);
        ends.insert(report["state"].as_str().unwrap().to_owned());
        for task in report["tasks"].as_array().unwrap() {
            assert_eq!(task["phase"], "ended", "{report:#}");
        }
        wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
    }
    assert!(ends.contains("failed"), "some were killed before they had ended: {ends:?}");
    assert!(!alive("sleep 1000.75"));
    instance.shutdown();
}

#[test]
fn a_daemon_killed_at_any_moment_of_a_stop_finishes_it_after_its_next_start() {
    const TEST: &str = "a_daemon_killed_at_any_moment_of_a_stop_finishes_it_after_its_next_start";
    if !has_tools(TEST, &["umoci", "busybox", "ip"]) {
        return;
    }
    let Some(mut instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = crate::support::images::small(dir.path(), &[], |_| {});
    for step in 0..12u64 {
        let job = format!("s{step}");
        // Takes a while to end, so that some kills come while it does.
        let script = "trap '/bin/busybox sleep 0.02; exit 7' TERM; echo up; while :; do /bin/busybox sleep 0.01; done";
        let words = ["/bin/busybox", "sh", "-c", script];
        instance.drop_job(&job, &format!("image = {image:?}\ncommand = {words:?}\n[roles.a]\n[roles.b]\n"));
        instance.wait_state(&job, "running");
        wait_for("the command", || instance.log(&job, "a-0").contains("up").then_some(()));
        instance.ok(&["stop", &job]);
        std::thread::park_timeout(Duration::from_millis(step * 6));
        instance.kill_daemon();
        instance.restart_daemon();
        let report = instance.wait_end(&job, 1);
        assert_eq!(report["state"], "stopped", "{report:#}");
        wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
    }
    instance.shutdown();
}

/// A child between fork and exec holds for a moment what the killed daemon held.
#[test]
fn a_start_waits_for_what_a_killed_daemon_was_starting() {
    let test = "a_start_waits_for_what_a_killed_daemon_was_starting";
    if !has_tools(test, &["flock"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.kill_daemon();
    let mut holders: Vec<_> = ["var/lib/trainyard/state.redb", "run/trainyard/daemon.lock"]
        .into_iter()
        .map(|held| instance.root().join(held))
        .filter(|held| held.exists())
        .map(|held| {
            let mut holder = std::process::Command::new("flock")
                .args([held.as_os_str(), "sh".as_ref(), "-c".as_ref(), "echo held; exec sleep 1".as_ref()])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = [0; 5];
            std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut said).unwrap();
            holder
        })
        .collect();
    assert!(!holders.is_empty());
    instance.restart_daemon();
    assert_eq!(instance.run_job("after", "command = \"true\"")["state"], "succeeded");
    holders.iter_mut().for_each(|holder| assert!(holder.wait().unwrap().success()));
    instance.shutdown();
}
