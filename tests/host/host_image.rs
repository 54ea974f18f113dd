//! `image = "host"`: the machine's own system directories, seen by jobs of people who are not its root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::support::{Instance, text};

const OWNER: u32 = 4321;

/// Runs a job that belongs to somebody who is not root, to its end.
fn run_theirs(instance: &Instance, name: &str, text: &str) -> serde_json::Value {
    let aside = instance.jobs_d().join(format!(".{name}.new"));
    fs::write(&aside, text).unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o644)).unwrap();
    chown(&aside, Some(OWNER), Some(OWNER)).unwrap();
    fs::rename(aside, instance.jobs_d().join(format!("{name}.toml"))).unwrap();
    instance.wait_end(name, 1)
}

fn write_private(path: &Path, owner: u32) {
    fs::write(path, "a secret of the machine\n").unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn private_files_of_the_machine_stay_private_whoever_a_task_runs_as() {
    let test = "private_files_of_the_machine_stay_private_whoever_a_task_runs_as";
    let Some(instance) = Instance::start(test, "") else { return };
    let readable = |below: &str| {
        let dir = tempfile::Builder::new().prefix("trainyard-test").tempdir_in(below).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    };
    // Made after the daemon has started, so that nothing hides the one in /etc from a job of theirs.
    let (opt, etc) = (readable("/opt"), readable("/etc"));
    for dir in [&opt, &etc] {
        write_private(&dir.path().join("root-s"), 0);
        write_private(&dir.path().join("daemon-s"), 1);
        fs::write(dir.path().join("open"), "open to all\n").unwrap();
        fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let (opt, etc) = (opt.path().display(), etc.path().display());
    let script =
        format!("id -u; cat {opt}/* {etc}/* /etc/shadow 2>/dev/null; echo x > {opt}/root-s; chmod 777 {opt}/*; true");
    for (job, user) in [("root", ""), ("daemon", "user = \"daemon\"\n"), ("user", "user = \"1000\"\n")] {
        let report = run_theirs(&instance, job, &format!("{user}command = \"{script}\""));
        let log = instance.log(job, "main-0");
        assert_eq!(report["state"], "succeeded", "{report} {log}");
        assert_eq!(log.matches("open to all").count(), 2, "{job}: what everybody may read can be read: {log}");
        assert!(!log.contains("secret") && !log.contains("root:"), "{job}: {log}");
    }
    instance.shutdown();
}

#[test]
fn ordinary_programs_work_in_jobs_of_people_who_are_not_root() {
    let test = "ordinary_programs_work_in_jobs_of_people_who_are_not_root";
    let Some(instance) = Instance::start(test, "") else { return };
    let script = "set -e; cd /tmp; /usr/bin/python3 -c 'import json, ssl, tempfile; print(tempfile.mkdtemp()[:4])'; \
        ls -l /usr /etc >/dev/null; getent passwd daemon | cut -d: -f1; printf 'b\\\\na\\\\n' | sort | head -1; \
        mkdir d; echo x > d/f; tar cf t.tar d; tar tf t.tar | wc -l; touch /output/mine; \
        grep ^Groups: /proc/self/status | wc -w; echo to-out > /dev/stdout; echo to-err > /dev/stderr";
    for (job, user) in [("root", ""), ("user", "user = \"1000:1000\"\n")] {
        let report = run_theirs(&instance, job, &format!("{user}command = \"{script}\""));
        let log = instance.log(job, "main-0");
        assert_eq!(report["state"], "succeeded", "{job}: {report:#} {log}");
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_unstable();
        // Of the daemon's own groups none is left.
        assert_eq!(lines, ["/tmp", "1", "2", "a", "daemon", "to-err", "to-out"], "{job}");
        assert_eq!(fs::metadata(instance.run_dir(job, 1).join("output/mine")).unwrap().uid(), OWNER);
    }
    let first = "init = false\nuser = \"1000\"\ncommand = [\"/bin/sh\", \"-c\", \"echo first > /dev/stdout\"]";
    let report = run_theirs(&instance, "first", first);
    assert_eq!((report["state"].as_str(), instance.log("first", "main-0").as_str()), (Some("succeeded"), "first\n"));
    instance.shutdown();
}

#[test]
fn a_link_in_place_of_a_run_s_directory_leads_a_task_nowhere() {
    let test = "a_link_in_place_of_a_run_s_directory_leads_a_task_nowhere";
    let Some(instance) = Instance::start(test, "") else { return };
    let aside = instance.root().join("aside");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("secret"), "a secret").unwrap();
    let draft = instance.mount().join("datasets/d/draft");
    fs::create_dir_all(&draft).unwrap();
    fs::write(draft.join("x"), "").unwrap();
    instance.ok(&["dataset", "publish", "d", "v1"]);
    let datasets = instance.root().join("var/lib/trainyard/workspaces/default/datasets");
    std::os::unix::fs::symlink(&aside, datasets.join("d/v2")).unwrap();
    let job = |version: &str| format!("datasets = [\"d@{version}\"]\ncommand = \"ls /dataset\"");
    assert_eq!(instance.run_job("plain", &job("v1"))["state"], "succeeded");
    let refused = text(&instance.run_job("link", &job("v2"))["reason"]);
    assert!(refused.contains("dataset d has no version v2"), "{refused}");
    // What the daemon has made for the run is not what it was when the next attempt starts.
    let swapped = "retries = 1\ncommand = \"[ $TRAINYARD_ATTEMPT = 2 ] && cat /output/secret; touch /output/up; while [ ! -e /output/go ]; do sleep 0.05; done; exit 1\"";
    instance.drop_job("swapped", swapped);
    let run = instance.run_dir("swapped", 1);
    super::support::wait_for("the task", || run.join("output/up").exists().then_some(()));
    fs::rename(run.join("output"), run.join("other")).unwrap();
    std::os::unix::fs::symlink(&aside, run.join("output")).unwrap();
    fs::write(run.join("other/go"), "").unwrap();
    let report = instance.wait_end("swapped", 1);
    assert_eq!(report["state"], "failed", "{report:#}");
    assert!(!instance.log("swapped", "main-0").contains("secret") && !aside.join("up").exists(), "{report:#}");
    instance.shutdown();
}
