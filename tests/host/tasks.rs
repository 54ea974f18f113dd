//! One task: what it sees, how it ends, what it may use, where its output goes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::support::{Instance, text, wait_for};

#[test]
fn a_task_sees_the_system_and_nothing_else_of_the_machine() {
    let Some(instance) = Instance::start("a_task_sees_the_system_and_nothing_else_of_the_machine", "") else { return };
    fs::write("/tmp/trainyard-host-secret", "x").unwrap();
    let secret = tempfile::Builder::new().prefix("trainyard-test").tempdir_in("/etc").unwrap();
    fs::set_permissions(secret.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let state = instance.root().join("var/lib/trainyard").display().to_string();
    let script = format!(
        "for p in /etc/shadow /etc/gshadow /tmp/trainyard-host-secret /root/.profile {} {state} /dev/vda /dev/mem /dev/fuse; do \
           if [ -e $p ]; then echo SEES $p; fi; done; \
         [ -z \"$(ls -A /root /home /srv /mnt /media 2>/dev/null | grep -v :)\" ] && echo homes-empty; \
         [ -x /usr/bin/env ] && echo has-usr; echo x > /usr/local/mine && echo scratch-ok; \
         echo x > /tmp/mine && echo tmp-ok; mount -t tmpfs x /mnt 2>/dev/null || echo no-mount; \
         mknod /tmp/n b 8 0 2>/dev/null || echo no-mknod; echo pid=$$; ls /proc | grep -c '^[0-9]*$'; \
         cat /proc/1/comm; grep NoNewPrivs /proc/self/status; hostname; \
         dd if=/dev/zero of=/proc/sys/kernel/hostname count=0 2>/dev/null || echo proc-sys-ro; \
         df -B1 --output=size /dev/shm | tail -1; exit 0",
        secret.path().display()
    );
    let report = instance.run_job("look", &format!("command = '''{script}'''\n[resources]\nshm = \"64MiB\""));
    let log = instance.log("look", "main-0");
    assert_eq!(report["state"], "succeeded", "{report} {log}");
    assert!(!log.contains("SEES"), "{log}");
    for word in [
        "homes-empty",
        "has-usr",
        "scratch-ok",
        "tmp-ok",
        "no-mount",
        "no-mknod",
        "NoNewPrivs:\t1",
        "main-0",
        "67108864",
    ] {
        assert!(log.contains(word), "{word}: {log}");
    }
    assert!(!std::path::Path::new("/usr/local/mine").exists(), "the scratch layer is the task's own");
    fs::remove_file("/tmp/trainyard-host-secret").unwrap();
}

#[test]
fn every_kind_of_end_is_told_truly() {
    let Some(instance) = Instance::start("every_kind_of_end_is_told_truly", "") else { return };
    let small = "[resources]\ncpu = 0.5\nmemory = \"64MiB\"";
    let hungry = r#"command = ["/usr/bin/python3", "-c", "x = bytearray(300 << 20)"]"#;
    let cases = [
        ("code7", "command = 'exit 7'".to_owned(), "exited with code 7"),
        ("killed", "command = 'kill -9 $$'".to_owned(), "killed by signal 9 (SIGKILL)"),
        ("self137", "command = 'exit 137'".to_owned(), "exited with code 137"),
        ("hungry", format!("{hungry}\n{small}"), "out of memory: it needed more than resources.memory = \"64MiB\""),
        (
            "missing",
            "command = ['/no/such/program']".to_owned(),
            "failed to start: the program of `command` is not there",
        ),
        (
            "notexec",
            "command = ['/etc/hostname']".to_owned(),
            "failed to start: the program of `command` may not be executed",
        ),
        ("late", "command = 'sleep 100'\nmax_duration = '1s'".to_owned(), "timed out after its max_duration of 1.0s"),
    ];
    for (name, text, _) in &cases {
        instance.drop_job(name, text);
    }
    for (name, _, expected) in &cases {
        let report = instance.wait_end(name, 1);
        let reason = text(&report["tasks"][0]["reason"]);
        assert!(reason.starts_with(expected), "{name}: {reason}");
        assert_eq!(report["state"], "failed", "{name}");
        let told = text(&report["reason"]);
        assert!(told.contains(expected) || *name == "late", "{told}");
    }
}

#[test]
fn a_stop_is_a_term_that_may_be_answered_then_a_kill_of_everything() {
    let Some(instance) = Instance::start("a_stop_is_a_term_that_may_be_answered_then_a_kill_of_everything", "") else {
        return;
    };
    // The program saves its work on SIGTERM, though the shell before it dies at once.
    let polite = "command = \"\"\"sh -c 'trap \"sleep 0.3; echo saved; exit 0\" TERM; echo up; while :; do sleep 0.05; done'; echo never\"\"\"";
    let stubborn = "command = \"trap '' TERM; echo up; (setsid sleep 1000 &) ; while :; do sleep 0.05; done\"";
    instance.drop_job("polite", polite);
    instance.drop_job("stubborn", stubborn);
    for job in ["polite", "stubborn"] {
        instance.wait_state(job, "running");
        wait_for("the task to be up", || instance.log(job, "main-0").contains("up").then_some(()));
        assert!(instance.ok(&["stop", job]).contains("stopping"));
        let report = instance.wait_end(job, 1);
        assert_eq!(report["state"], "stopped", "{report}");
        assert_eq!(text(&report["tasks"][0]["reason"]), "stopped by root");
    }
    assert!(instance.log("polite", "main-0").contains("saved"));
    let refused = instance.cli(&["stop", "polite"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stopped already; `trainyard rerun polite`"));
    instance.shutdown();
}

#[test]
fn limits_are_enforced() {
    let Some(instance) = Instance::start("limits_are_enforced", "") else { return };
    let pids = r#"
command = ["/usr/bin/python3", "-c", """
import os
children = 0
try:
    while children < 200:
        if os.fork() == 0:
            os.pause() if hasattr(os, 'pause') else __import__('signal').pause()
        children += 1
except BlockingIOError:
    print('stopped at', children)
"""]
[resources]
pids = 32
"#;
    let cpu = r#"
command = ["/usr/bin/python3", "-c", """
import time
wall, cpu = time.monotonic(), time.process_time()
while time.monotonic() - wall < 1.5:
    pass
print('share', round((time.process_time() - cpu) / (time.monotonic() - wall), 2))
"""]
[resources]
cpu = 0.2
"#;
    instance.run_job("pids", pids);
    let log = instance.log("pids", "main-0");
    let count: u32 = log.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((25..32).contains(&count), "{log}");
    instance.run_job("cpu", cpu);
    let log = instance.log("cpu", "main-0");
    let share: f64 = log.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((0.1..0.3).contains(&share), "{log}");
}

#[test]
fn no_byte_of_output_is_lost_and_streams_stay_apart() {
    let Some(instance) = Instance::start("no_byte_of_output_is_lost_and_streams_stay_apart", "") else { return };
    let script = "seq 1 200000; seq 1 3000 >&2; printf 'no newline'";
    let report = instance.run_job("talk", &format!("command = \"{script}\""));
    assert_eq!(report["state"], "succeeded", "{report}");
    let dir = instance.run_dir("talk", 1).join("attempts/1/main-0");
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect::<String>() + "no newline";
    assert_eq!(fs::read_to_string(dir.join("stdout.log")).unwrap(), expected);
    let errors: String = (1..=3000).map(|n| format!("{n}\n")).collect();
    assert_eq!(fs::read_to_string(dir.join("stderr.log")).unwrap(), errors);
    let merged = instance.log("talk", "main-0");
    assert_eq!(merged.lines().count(), 203_001);
    assert!(merged.ends_with("no newline\n"));
    assert_eq!(instance.ok(&["logs", "-n", "2", "main-0", "talk"]).lines().count(), 2);
    let through_mount = fs::read(instance.mount().join("jobs/talk/latest/attempts/1/main-0/log")).unwrap();
    // A stamp of 30 bytes before each line; a line of the one stream may be cut by the other.
    let lines = through_mount.split_inclusive(|byte| *byte == b'\n').count();
    let broken = through_mount.iter().filter(|byte| **byte == b'\n').count() - 203_000;
    assert_eq!(through_mount.len(), expected.len() + errors.len() + 30 * lines + broken);
}

#[test]
fn code_is_a_snapshot_data_is_read_only_and_the_model_appears_whole() {
    let Some(instance) = Instance::start("code_is_a_snapshot_data_is_read_only_and_the_model_appears_whole", "") else {
        return;
    };
    let mount = instance.mount();
    fs::create_dir(mount.join("code/prog")).unwrap();
    fs::write(
        mount.join("code/prog/run.sh"),
        "echo version 1; cat /dataset/a /input/a; cat /proc/self/cwd/run.sh >/dev/null; \
        touch /code/x 2>/dev/null || echo code-ro; touch /dataset/x 2>/dev/null || echo data-ro; \
        echo kept > /output/kept; echo weights > /model/weights; while [ ! -e /output/go ]; do sleep 0.05; done",
    )
    .unwrap();
    fs::create_dir(mount.join("datasets/d")).unwrap();
    fs::write(mount.join("datasets/d/a"), "row\n").unwrap();
    instance.drop_job("snap", "code = \"prog\"\ndatasets = [\"d\"]\ncommand = \"sh run.sh\"");
    instance.wait_state("snap", "running");
    fs::write(mount.join("code/prog/run.sh"), "echo version 2").unwrap();
    wait_for("the model file", || instance.run_dir("snap", 1).join("model/weights").exists().then_some(()));
    assert!(!mount.join("models/snap/1").exists(), "not before the run has succeeded");
    fs::write(instance.run_dir("snap", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("snap", 1)["state"], "succeeded");
    let log = instance.log("snap", "main-0");
    for word in ["version 1", "row\nrow", "code-ro", "data-ro"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    assert_eq!(fs::read_to_string(mount.join("models/snap/1/weights")).unwrap(), "weights\n");
    assert!(fs::read_to_string(mount.join("models/snap/1/MODEL.toml")).unwrap().contains("run = 1"));
    assert_eq!(fs::read_to_string(mount.join("jobs/snap/latest/output/kept")).unwrap(), "kept\n");
    instance.ok(&["rerun", "snap"]);
    instance.wait_end("snap", 2);
    assert!(instance.log("snap", "main-0").contains("version 2"));
    let failed = instance.run_job("nocode", "code = \"absent\"\ncommand = \"true\"");
    assert!(text(&failed["reason"]).contains("there is no directory code/absent in workspace default"), "{failed}");
}

#[test]
fn a_job_cannot_lead_the_publishing_of_its_model_elsewhere() {
    let Some(instance) = Instance::start("a_job_cannot_lead_the_publishing_of_its_model_elsewhere", "") else { return };
    let victim = instance.root().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let pid = instance.daemon_pid();
    let traps = format!(
        "for n in $(seq 0 300); do ln -s {} /model/.MODEL.toml.{pid}-$n.tmp; done; mkdir /model/MODEL.toml; echo w > /model/w",
        victim.display()
    );
    let report = instance.run_job("trap", &format!("command = \"{traps}\""));
    assert_eq!(report["state"], "succeeded", "{report}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    let about = instance.mount().join("models/trap/1/MODEL.toml");
    assert!(fs::read_to_string(about).unwrap().contains("job = \"trap\""));
}

#[test]
fn a_job_runs_as_the_owner_of_its_file() {
    const NOBODY: u32 = 65534;
    let Some(instance) = Instance::start("a_job_runs_as_the_owner_of_its_file", "") else { return };
    let path = instance.jobs_d().join(".theirs.new");
    fs::write(&path, "command = \"id -u; touch /output/mine; cat /etc/shadow; grep CapEff /proc/self/status\"")
        .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::rename(&path, instance.jobs_d().join("theirs.toml")).unwrap();
    instance.wait_end("theirs", 1);
    let log = instance.log("theirs", "main-0");
    assert!(log.contains("65534") && log.contains("CapEff:\t0000000000000000"), "{log}");
    assert_eq!(fs::metadata(instance.run_dir("theirs", 1).join("output/mine")).unwrap().uid(), NOBODY);
    let own_log = instance.run_dir("theirs", 1).join("attempts/1/main-0/stdout.log");
    assert_eq!(fs::metadata(own_log).unwrap().uid(), NOBODY, "its owner can read the log");
    instance.run_job("roots", "command = \"true\"");
    let as_nobody = |arguments: &str| {
        let line = format!("{} --root {} {arguments}", super::support::BINARY, instance.root().display());
        let output = std::process::Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", &line])
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (_, listed, error) = as_nobody("ps");
    assert!(listed.contains("theirs") && !listed.contains("roots"), "{listed} {error}");
    let (code, _, error) = as_nobody("rerun roots");
    assert!(code == Some(1) && error.contains("belongs to another user"), "{error}");
    let (code, _, error) = as_nobody("logs roots");
    assert!(code == Some(1) && error.contains("belongs to another user"), "{error}");
}
