//! One task: what it sees, how it ends, what it may use, where its output goes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use trainyard::sys::cgroup::{self, Layout};

use super::support::{Instance, skip, text, wait_for};

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
    assert!(!Path::new("/usr/local/mine").exists(), "the scratch layer is the task's own");
    fs::remove_file("/tmp/trainyard-host-secret").unwrap();
}

#[test]
fn every_kind_of_end_is_told_truly() {
    let Some(instance) = Instance::start("every_kind_of_end_is_told_truly", "") else { return };
    let small = "[resources]\ncpu = 0.5\nmemory = \"128MiB\"";
    let hungry = r#"command = ["/usr/bin/python3", "-c", "x = bytearray(300 << 20)"]"#;
    let cases = [
        ("code7", "command = 'exit 7'".to_owned(), "exited with code 7"),
        ("killed", "command = 'kill -9 $$'".to_owned(), "killed by signal 9 (SIGKILL)"),
        ("self137", "command = 'exit 137'".to_owned(), "exited with code 137"),
        ("hungry", format!("{hungry}\n{small}"), "out of memory: it needed more than resources.memory = \"128MiB\""),
        ("missing", "command = ['/no/such/program']".to_owned(), "failed to start: /no/such/program is not there"),
        ("notexec", "command = ['/etc/hostname']".to_owned(), "failed to start: /etc/hostname may not be executed"),
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
    let stubborn = "command = \"trap '' TERM; echo up; (setsid sleep 1000.0625 &) ; while :; do sleep 0.05; done\"";
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
    assert_eq!(
        crate::support::processes_with("sleep 1000.0625"),
        Vec::<String>::new(),
        "a session of its own is no refuge"
    );
    assert!(instance.log("polite", "main-0").contains("saved"));
    let refused = instance.cli(&["stop", "polite"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stopped already; `trainyard rerun polite`"));
    instance.shutdown();
}

#[test]
fn limits_stand_in_the_control_group_as_the_file_says() {
    let Some(instance) = Instance::start("limits_stand_in_the_control_group_as_the_file_says", "") else { return };
    instance.drop_job("held", "command = \"sleep 1000\"\nresources = { cpu = 0.5, memory = \"128MiB\", pids = 77 }");
    instance.wait_state("held", "running");
    let name = format!("trainyard-{}/a1-0", trainyard::config::Paths::new(instance.root()).unwrap().instance());
    let read = |file: &str| {
        let found = match cgroup::layout() {
            Layout::V1 => {
                let controller = file.split('.').next().unwrap();
                fs::read_to_string(format!("/sys/fs/cgroup/{controller}/{name}/{file}"))
            }
            Layout::V2 => fs::read_to_string(format!("/sys/fs/cgroup/{name}/{file}")),
        };
        found.ok().map(|text| text.trim().to_owned())
    };
    let memory = (128 << 20).to_string();
    let wanted = match cgroup::layout() {
        Layout::V1 => [("memory.limit_in_bytes", memory.as_str()), ("pids.max", "77"), ("cpu.shares", "512")].to_vec(),
        // Half a core is half of what a task of one core weighs.
        Layout::V2 => [("memory.max", memory.as_str()), ("pids.max", "77"), ("memory.oom.group", "1")].to_vec(),
    };
    for (file, value) in wanted {
        assert_eq!(read(file).as_deref(), Some(value), "{file}");
    }
    let (quota, period) = match cgroup::layout() {
        Layout::V1 => (read("cpu.cfs_quota_us").unwrap(), read("cpu.cfs_period_us").unwrap()),
        Layout::V2 => {
            let text = read("cpu.max").unwrap();
            let (quota, period) = text.split_once(' ').unwrap();
            (quota.to_owned(), period.to_owned())
        }
    };
    assert_eq!(quota.parse::<u64>().unwrap() * 2, period.parse::<u64>().unwrap());
    // No swap, where the kernel counts it: on v1 the limit is on both together.
    let swap = match cgroup::layout() {
        Layout::V1 => read("memory.memsw.limit_in_bytes").is_none_or(|limit| limit == memory),
        Layout::V2 => read("memory.swap.max").is_none_or(|limit| limit == "0"),
    };
    assert!(swap);
    if cgroup::layout() == Layout::V2 {
        let weight: u64 = read("cpu.weight").unwrap().parse().unwrap();
        assert!((1..100).contains(&weight), "less than a whole core's: {weight}");
    }
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
    // No more; how much less is a matter of what else the machine does.
    assert!(share < 0.3, "{log}");
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
    fs::write(&path, "command = \"id -u; touch /output/mine; cat /etc/shadow; cat /proc/self/uid_map\"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::rename(&path, instance.jobs_d().join("theirs.toml")).unwrap();
    instance.wait_end("theirs", 1);
    let log = instance.log("theirs", "main-0");
    // Root inside, and nobody but the owner outside.
    assert!(log.contains("         0      65534          1"), "{log}");
    assert!(!log.contains("root:"), "{log}");
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
    // Of others they are told how they are, since everybody may enter this workspace.
    let (_, listed, error) = as_nobody("ps");
    assert!(["theirs", "roots", "USER", "nobody"].iter().all(|part| listed.contains(part)), "{listed} {error}");
    for mine in ["ps --mine", "ps -u me", "ps --user nobody"] {
        let (_, listed, error) = as_nobody(mine);
        assert!(listed.contains("theirs") && !listed.contains("roots") && !listed.contains("USER"), "{listed} {error}");
    }
    assert!(as_nobody("events roots").1.contains("succeeded"));
    // All of theirs is nothing of what runs of others.
    instance.drop_job("going", "command = \"sleep infinity\"");
    instance.wait_state("going", "running");
    assert!(as_nobody("stop --all").2.contains("nothing of yours"));
    for kept in ["rerun roots", "logs roots", "show roots"] {
        let (code, _, error) = as_nobody(kept);
        assert!(code == Some(1) && error.contains("belongs to root"), "{kept}: {error}");
        assert!(!error.contains("root or root"), "{kept}: {error}");
    }
    // What is root's alone is said with what to do.
    for (verb, told) in [
        ("drain", "only root may do that: use sudo"),
        ("shutdown -y", "only root may end the daemon: use sudo"),
        ("dataset import /etc/hostname d", "who may write job files of a workspace makes datasets in it"),
    ] {
        let (code, _, error) = as_nobody(verb);
        assert!(code == Some(1) && error.contains(told), "{verb}: {error}");
    }
}

#[test]
fn a_failed_container_is_kept_to_be_looked_into_and_goes_when_told() {
    let Some(mut instance) = Instance::start("a_failed_container_is_kept_to_be_looked_into_and_goes_when_told", "")
    else {
        return;
    };
    instance.drop_job("kept", "debug = true\ncommand = \"echo clue > /tmp/clue; exit 3\"");
    let report = instance.wait_state("kept", "stopping");
    let reason = text(&report["reason"]);
    assert!(reason.contains("exited with code 3") && reason.contains("kept"), "{reason}");
    assert_eq!(report["tasks"][0]["phase"], "kept");
    assert_eq!(instance.ok(&["exec", "kept", "--", "cat", "/tmp/clue"]), "clue\n");
    // Also by a daemon that was not there when it failed.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(instance.ok(&["exec", "kept", "--", "cat", "/tmp/clue"]), "clue\n");
    instance.ok(&["stop", "kept"]);
    let report = instance.wait_end("kept", 1);
    assert_eq!(report["state"], "failed", "{report:#}");
    assert_eq!(report["tasks"][0]["exit_code"], 3, "its own end is told, not that it was stopped");
    // A command that could not start can be looked into as well, and does not run for ever.
    instance.drop_job("missing", "debug = true\ncommand = [\"/no/such/program\"]");
    let reason = text(&instance.wait_state("missing", "stopping")["reason"]);
    assert!(reason.contains("/no/such/program is not there") && reason.contains("kept"), "{reason}");
    assert_eq!(instance.ok(&["exec", "missing", "--", "echo", "inside"]), "inside\n");
    instance.ok(&["stop", "missing"]);
    let report = instance.wait_end("missing", 1);
    assert!(report["state"] == "failed" && text_of_task(&report).contains("failed to start"), "{report:#}");
    // A good end keeps nothing.
    assert_eq!(instance.run_job("good", "debug = true\ncommand = \"true\"")["state"], "succeeded");
    instance.shutdown();
}

#[test]
fn a_kept_container_goes_by_itself_when_its_time_is_over() {
    let name = "a_kept_container_goes_by_itself_when_its_time_is_over";
    let Some(instance) = Instance::start(name, "[limits]\ndebug_keep = \"2s\"\n") else {
        return;
    };
    instance.drop_job("kept", "debug = true\ncommand = \"exit 3\"");
    let report = instance.wait_end("kept", 1);
    assert!(report["state"] == "failed" && report["tasks"][0]["exit_code"] == 3, "{report:#}");
    let events = instance.ok(&["events", "kept"]);
    assert!(events.contains("kept"), "{events}");
    instance.shutdown();
}

/// A small file system over a directory, until dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn over(directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=4m,mode=700", "small"];
        assert!(std::process::Command::new("mount").args(options).arg(directory).status().unwrap().success());
        Self(directory.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_does_not_cost_a_kept_task_its_status() {
    let Some(mut instance) = Instance::prepare("a_full_disk_does_not_cost_a_kept_task_its_status", "") else { return };
    let small = Small::over(&instance.root().join("var/lib/trainyard/attempts"));
    instance.start_daemon(&[]);
    instance.wait_ready();
    let script = "while [ ! -e /output/go ]; do sleep 0.05; done; touch /output/over; exit 3";
    instance.drop_job("full", &format!("debug = true\ncommand = \"{script}\""));
    instance.wait_state("full", "running");
    let filler = small.0.join("filler");
    fs::write(&filler, vec![0; 8 << 20]).unwrap_err();
    let output = instance.run_dir("full", 1).join("output");
    fs::write(output.join("go"), "").unwrap();
    wait_for("the command to be over", || output.join("over").exists().then_some(()));
    assert_eq!(instance.state("full"), "running", "that it is kept cannot be written down");
    fs::remove_file(filler).unwrap();
    let report = instance.wait_state("full", "stopping");
    assert!(text(&report["reason"]).contains("exited with code 3"), "{report:#}");
    instance.ok(&["stop", "full"]);
    assert_eq!(instance.wait_end("full", 1)["tasks"][0]["exit_code"], 3);
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
}

#[test]
fn only_the_standard_devices_can_be_opened_in_a_task_s_control_group() {
    let Some(instance) = Instance::start("only_the_standard_devices_can_be_opened_in_a_task_s_control_group", "")
    else {
        return;
    };
    instance.drop_job("quiet", "command = \"sleep 600.4375\"");
    instance.wait_state("quiet", "running");
    let pid = wait_for("the task's process", || {
        let found = super::support::pids_with("sleep 600.4375").into_iter().find(|(_, line)| line.starts_with("sleep"));
        found.map(|(pid, _)| pid)
    });
    // A process of the machine's root that joins the task's control groups is held by its list of devices alone.
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let mut script = String::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
        let directory =
            if controllers.is_empty() { "/sys/fs/cgroup".to_owned() } else { format!("/sys/fs/cgroup/{controllers}") };
        let is_ours = controllers == "devices" || (controllers.is_empty() && groups.lines().count() == 1);
        if is_ours {
            script.push_str(&format!("echo $$ > {directory}{path}/cgroup.procs\n"));
        }
    }
    script.push_str("for d in null zero urandom fuse kmsg; do (: < /dev/$d) 2>/dev/null && echo $d; done\n");
    script.push_str("mknod /tmp/trainyard-node-$$ c 1 3 2>/dev/null && echo made && rm /tmp/trainyard-node-$$\n");
    let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    let opened = String::from_utf8(output.stdout).unwrap();
    assert_eq!(opened, "null\nzero\nurandom\n", "{script} {}", String::from_utf8_lossy(&output.stderr));
    let inside = instance.ok(&[
        "exec",
        "quiet",
        "--",
        "sh",
        "-c",
        "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; mknod /tmp/x c 1 3 2>&1; unshare -m true 2>&1; true",
    ]);
    assert!(inside.contains("Seccomp:\t2") && inside.contains("NoNewPrivs:\t1"), "{inside}");
    assert_eq!(inside.matches("not permitted").count(), 2, "{inside}");
    instance.shutdown();
}

#[test]
fn a_task_does_not_hold_what_belongs_to_another() {
    let Some(instance) = Instance::start("a_task_does_not_hold_what_belongs_to_another", "") else { return };
    for (job, network) in [("first", "task"), ("shared", "job"), ("last", "task")] {
        instance.drop_job(job, &format!("network = \"{network}\"\ncommand = \"sleep 600\"\n"));
        instance.wait_state(job, "running");
    }
    let root = instance.root().display().to_string();
    let processes = super::support::pids_with(":last/main-0");
    let is_shim = |line: &str| line.contains(" shim ") && line.contains(&root);
    let (pid, line) = processes.iter().find(|(_, line)| is_shim(line)).unwrap();
    let kept = instance.root().join("run/trainyard/attempts").display().to_string();
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    // Where mounts are shared, they go from here when they go on the machine.
    let held: Vec<_> = mounts.lines().filter(|line| line.contains(&kept) && !line.contains(" master:")).collect();
    assert!(held.is_empty(), "{line}: {held:#?}");
    instance.shutdown();
}

#[test]
fn whole_cores_are_a_task_s_own_and_parts_of_one_are_not() {
    let Some(instance) = Instance::start("whole_cores_are_a_task_s_own_and_parts_of_one_are_not", "") else { return };
    let own: Vec<String> = fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("Cpus_allowed_list:").map(|list| list.trim().to_owned()))
        .collect();
    if !own[0].contains([',', '-']) {
        skip("whole_cores_are_a_task_s_own_and_parts_of_one_are_not", "a second processor core");
        return;
    }
    let v2 = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    if !v2.split_whitespace().any(|name| name == "cpuset") && !Path::new("/sys/fs/cgroup/cpuset").exists() {
        skip("whole_cores_are_a_task_s_own_and_parts_of_one_are_not", "the cpuset controller");
        return;
    }
    let list = "command = \"grep Cpus_allowed_list /proc/self/status; sleep 600\"\n";
    let cores_of = |job: &str| {
        let log = wait_for("the task's cores", || Some(instance.log(job, "main-0")).filter(|log| log.ends_with('\n')));
        log.split_whitespace().nth(1).unwrap().to_owned()
    };
    for (job, cpu) in [("one", "1"), ("two", "1"), ("part", "0.5")] {
        instance.drop_job(job, &format!("{list}resources.cpu = {cpu}\n"));
    }
    let (one, two) = (cores_of("one"), cores_of("two"));
    assert!(one.parse::<u32>().is_ok() && two.parse::<u32>().is_ok() && one != two, "{one} {two}");
    assert_eq!(cores_of("part"), own[0], "a part of a core may be had anywhere");
    instance.ok(&["stop", "one"]);
    instance.wait_end("one", 1);
    wait_for("the core", || {
        let attempts = fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().count();
        (attempts == 2).then_some(())
    });
    instance.drop_job("next", &format!("{list}resources.cpu = 1\n"));
    assert_eq!(cores_of("next"), one, "what is free is given again");
    instance.shutdown();
}

#[test]
fn a_task_of_root_has_docker_s_rights_without_devices_and_no_others_any() {
    let test = "a_task_of_root_has_docker_s_rights_without_devices_and_no_others_any";
    let Some(instance) = Instance::start(test, "") else { return };
    let look = "grep -E '^Cap(Bnd|Eff):' /proc/self/status; wc -c < /proc/timer_list; wc -c < /proc/keys; ls /sys/firmware | wc -l; \
        for f in kernel/hostname vm/drop_caches; do (echo 1 > /proc/sys/$f) 2>/dev/null && echo wrote $f; done; \
        (echo h > /proc/sysrq-trigger) 2>/dev/null && echo wrote sysrq; ls /sys/fs/cgroup | wc -l";
    let root = instance.run_job("root", &format!("command = {look:?}"));
    // Docker's set is a80425fb; bit 27 of it is CAP_MKNOD.
    let expected = "CapEff:\t00000000a00425fb\nCapBnd:\t00000000a00425fb\n0\n0\n0\n0\n";
    assert_eq!(instance.log("root", "main-0"), expected, "{root:#}");
    let nobody = format!("user = \"nobody\"\ncommand = {look:?}");
    instance.run_job("nobody", &nobody);
    let log = instance.log("nobody", "main-0");
    assert!(log.starts_with("CapEff:\t0000000000000000\nCapBnd:\t00000000a00425fb\n"), "{log}");
    let socket = instance.root().join("run/trainyard/api.sock");
    assert!(socket.exists());
    instance.run_job("socket", &format!("command = \"ls -d {} {0} 2>&1 | wc -l; ls {0}\"", socket.display()));
    assert!(instance.log("socket", "main-0").contains("No such file"), "{}", instance.log("socket", "main-0"));
    instance.shutdown();
}

#[test]
fn the_first_process_reaps_or_is_the_command_itself() {
    let Some(instance) = Instance::start("the_first_process_reaps_or_is_the_command_itself", "") else { return };
    let orphans = r#"
command = ["/usr/bin/python3", "-c", """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
def state(pid):
    try:
        return open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0]
    except OSError:
        return None
def states():
    return [s for s in map(state, filter(str.isdigit, os.listdir('/proc'))) if s]
for _ in range(500):
    if len(states()) == 2:
        break
    time.sleep(0.02)
print('Z' in states(), len(states()), os.getpid() != 1)
"""]
"#;
    instance.run_job("orphans", orphans);
    assert_eq!(instance.log("orphans", "main-0"), "False 2 True\n");
    let own = r#"
init = false
command = ["/usr/bin/python3", "-c", """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(7)))
print(os.getpid(), flush=True)
time.sleep(600)
"""]
"#;
    instance.drop_job("own", own);
    wait_for("the command", || (instance.log("own", "main-0") == "1\n").then_some(()));
    instance.ok(&["stop", "own"]);
    instance.wait_end("own", 1);
    assert_eq!(instance.log("own", "main-0"), "1\ntold\n", "the signal is its own");
    let missing = instance.run_job("missing", "init = false\ncommand = [\"/no/such/program\"]");
    assert!(text(&missing["reason"]).contains("/no/such/program is not there"), "{missing:#}");
    instance.shutdown();
}

#[test]
fn ends_are_told_with_what_else_was_seen() {
    let config = "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"10m\"\n";
    let name = "ends_are_told_with_what_else_was_seen";
    let Some(instance) = Instance::start(name, config) else { return };
    let why = |job: &str, text: &str| text_of_task(&instance.run_job(job, text));
    let code = instance.root().join("var/lib/trainyard/workspaces/default/code/garbage");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("program"), [0x7f, b'E', b'L', b'F', 9, 9, 9]).unwrap();
    fs::set_permissions(code.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    let format = why("format", "code = \"garbage\"\ncommand = [\"/code/program\"]");
    assert!(format.contains("exec format error") && format.contains("/code/program"), "{format}");
    let shm = r#"
resources = { cpu = 0.5, memory = "128MiB", shm = "1MiB" }
command = ["/usr/bin/python3", "-c", """
import mmap, os
f = open('/dev/shm/x', 'wb+')
f.truncate(8 << 20)
m = mmap.mmap(f.fileno(), 8 << 20)
m[:] = b'x' * (8 << 20)
"""]
"#;
    let full = why("shm", shm);
    assert!(
        full.contains("SIGBUS") && full.contains("/dev/shm of 1MiB was full") && full.contains("resources.shm"),
        "{full}"
    );
    // A file without a name, as PyTorch has them: it is gone when the task is.
    let nameless = r#"
resources = { cpu = 0.5, memory = "128MiB", shm = "1MiB" }
command = ["/usr/bin/python3", "-c", """
import os, time
f = open('/dev/shm/x', 'wb', 0)
os.unlink('/dev/shm/x')
try:
    while True: f.write(b'x' * 4096)
except OSError:
    time.sleep(6)
    raise
"""]
"#;
    let full = why("nameless", nameless);
    assert!(full.contains("exited with code 1") && full.contains("/dev/shm of 1MiB was full"), "{full}");
    // Killed from outside, by whom nobody says.
    instance.drop_job("shot", "command = [\"sleep\", \"86399.25\"]");
    instance.wait_state("shot", "running");
    let command = wait_for("its process", || {
        let processes =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_it =
            |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x0086399.25\0");
        processes.into_iter().find(is_it)
    });
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(command), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(text_of_task(&instance.wait_end("shot", 1)).contains("killed by signal 9 (SIGKILL)"));
    let dumped = why("dumped", "command = 'cd /tmp; ulimit -c unlimited; kill -SEGV $$'");
    assert!(dumped.contains("killed by signal 11 (SIGSEGV)"), "{dumped}");
    // Into the task's own directory; elsewhere it is the machine's choice whether one is written.
    match fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap().starts_with(['/', '|']) {
        true => skip(name, "core dumps in the working directory (kernel.core_pattern)"),
        false => assert!(dumped.contains("(SIGSEGV), core dumped"), "{dumped} {}", instance.ok(&["logs", "dumped"])),
    }
    let real_time = why("realtime", "command = 'kill -36 $$'");
    assert!(real_time.contains("killed by signal 36 (SIGRTMIN+2)"), "{real_time}");
    // A child is killed, and the command does not mind (on cgroup v2 the whole task goes with it): told all the same.
    let child = "resources = { cpu = 0.5, memory = \"128MiB\" }\ncommand = \"/usr/bin/python3 -c 'x = bytearray(300 << 20)'; exit 0\"";
    let mild = why("mild", child);
    assert!(mild.contains("out of memory: it needed more than resources.memory = \"128MiB\" (it had "), "{mild}");
    assert_eq!(instance.report("mild").unwrap()["state"], "failed");
    instance.drop_job("deaf", "stop_grace = \"200ms\"\ncommand = \"trap '' TERM; echo up; while :; do sleep 1; done\"");
    wait_for("the command", || (instance.log("deaf", "main-0") == "up\n").then_some(()));
    instance.ok(&["stop", "deaf"]);
    assert_eq!(instance.wait_end("deaf", 1)["state"], "stopped", "its own grace counts, not the machine's ten minutes");
    let mute = "command = \"trap '' TERM; echo up; while :; do sleep 1; done\"";
    for (job, is_stopped_before) in [("mute", true), ("shut", false)] {
        instance.drop_job(job, mute);
        wait_for("the command", || (instance.log(job, "main-0") == "up\n").then_some(()));
        if is_stopped_before {
            instance.ok(&["stop", job]);
        }
        let said = instance.ok(&["stop", "--now", job]);
        assert!(said.contains("killing what runs of it"), "{said}");
        let report = instance.wait_end(job, 1);
        assert_eq!(report["state"], "stopped", "without the machine's ten minutes: {report:#}");
        assert!(text_of_task(&report).contains("stopped by root"), "{report:#}");
    }
    instance.shutdown();
}

fn text_of_task(report: &serde_json::Value) -> String {
    text(&report["tasks"][0]["reason"])
}

#[test]
fn the_machine_s_network_and_its_low_ports_are_not_for_everybody() {
    let test = "the_machine_s_network_and_its_low_ports_are_not_for_everybody";
    let config = "[limits]\ncpu = 16\nmemory = \"16GiB\"\n[network]\nhost_workspaces = [\"open\"]\n";
    let Some(instance) = Instance::start(test, config) else { return };
    let theirs = |job: &str, text: &str| {
        let path = instance.jobs_d().join(format!("{job}.toml"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let aside = path.with_extension("new");
        fs::write(&aside, text).unwrap();
        std::os::unix::fs::chown(&aside, Some(65534), Some(65534)).unwrap();
        fs::rename(&aside, &path).unwrap();
        instance.wait_end(job, 1)
    };
    let host = "network = \"host\"\ncommand = \"true\"";
    let refused = text(&theirs("closed", host)["reason"]);
    assert!(refused.contains("not allowed in workspace default") && refused.contains("host_workspaces"), "{refused}");
    assert_eq!(theirs("open/allowed", host)["state"], "succeeded");
    let low = theirs("low", "command = \"true\"\n[roles.main]\nports = { ssh = { begin = 22 } }");
    let reason = text(&low["reason"]);
    // Without nft no port of the machine leads anywhere.
    match ["/usr/sbin/nft", "/usr/bin/nft", "/sbin/nft"].iter().any(|nft| Path::new(nft).exists()) {
        true => assert!(reason.contains("port 22") && reason.contains("1024"), "{reason}"),
        false => assert_eq!(low["state"], "succeeded", "{low:#}"),
    }
    instance.shutdown();
}
