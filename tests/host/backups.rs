//! `trainyard backup` and `restore`: with a daemon, and killed in the middle.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{BINARY, Instance, can_run, text, wait_for};

#[test]
fn a_backup_that_is_taken_while_jobs_run_brings_them_back_on_another_root() {
    let test = "a_backup_that_is_taken_while_jobs_run_brings_them_back_on_another_root";
    let Some(instance) = Instance::start(test, "") else { return };
    instance.run_job("done", "command = \"true\"");
    // Ends when it is told to, in whichever life.
    fs::create_dir_all(instance.mount().join("code/c")).unwrap();
    instance.drop_job("runs", "command = \"echo begins; while [ ! -e /code/go ]; do sleep 0.02; done\"\ncode = \"c\"\nretry.on = [\"lost\"]\nretries = 1");
    instance.wait_state("runs", "running");
    instance.drop_job("held", "command = \"true\"\nstate = \"held\"");
    instance.wait_state("held", "held");
    let backups = instance.root().join("backups");
    fs::create_dir(&backups).unwrap();
    let told = instance.ok(&["backup", &backups.display().to_string(), "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let file = text(&told["file"]);
    assert_eq!(fs::read_dir(&backups).unwrap().count(), 1, "{told}");
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let refused = instance.cli(&["restore", &file, "--replace"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the daemon of"), "{refused:?}");

    let Some(mut other) = Instance::prepare(test, "") else { return };
    let refused = other.cli(&["restore", &file]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--replace"), "{refused:?}");
    let told = other.ok(&["restore", &file, "--replace"]);
    assert!(told.contains("restored 3 jobs") && told.contains("2 were not over"), "{told}");
    // As workspaces are brought back by themselves.
    let code = other.root().join("var/lib/trainyard/workspaces/default/code/c");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("go"), "").unwrap();
    other.start_daemon(&[]);
    other.wait_ready();
    assert_eq!(other.state("done"), "succeeded");
    assert_eq!(other.state("held"), "held");
    let report = other.wait_state("runs", "succeeded");
    // Another attempt of the same run: the first is lost.
    assert_eq!((report["run"].as_u64(), report["attempt"].as_u64()), (Some(1), Some(2)), "{report}");
    let events = other.ok(&["events", "runs"]);
    assert!(events.contains("restored from a backup"), "{events}");
    other.shutdown();
    instance.ok(&["stop", "runs"]);
    instance.shutdown();
}

#[test]
fn a_restore_where_newer_runs_are_there_takes_no_number_again() {
    let test = "a_restore_where_newer_runs_are_there_takes_no_number_again";
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.run_job("j", "command = \"echo one > /output/o\"");
    let file = instance.root().join("b.tar.zst").display().to_string();
    instance.ok(&["backup", &file]);
    instance.ok(&["rerun", "j"]);
    instance.wait_end("j", 2);
    instance.run_job("later", "command = \"echo later > /output/o\"");
    instance.kill_daemon();
    let told = instance.ok(&["restore", &file, "--replace", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["newer"].as_array().unwrap().len(), 2, "{told}");
    instance.restart_daemon();
    assert_eq!(instance.report("j").unwrap()["run"], 2);
    assert_eq!(instance.state("later"), "invalid");
    assert!(instance.run_dir("later", 1).join("output/o").exists());
    instance.ok(&["rerun", "j"]);
    instance.wait_end("j", 3);
    instance.drop_job("later", "command = \"true\"");
    assert_eq!(instance.wait_end("later", 2)["state"], "succeeded");
    for (job, run) in [("j", 1), ("j", 2), ("j", 3), ("later", 1)] {
        assert!(instance.run_dir(job, run).join("output/o").exists(), "{job} {run}");
    }
    instance.shutdown();
}

/// What counts of an installation: its state and a file of its configuration, by a backup that is taken offline.
fn content(root: &Path, into: &Path) -> (String, String) {
    let _ = fs::remove_file(into);
    let backup = Command::new(BINARY).arg("--root").arg(root).arg("backup").arg(into).output().unwrap();
    assert!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
    let member = |name: &str| {
        let out = Command::new("tar").args(["--zstd", "-xOf"]).arg(into).arg(name).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    (member("state.jsonl"), member("etc/trainyard.toml"))
}

/// Starts `trainyard ARGUMENTS`, kills it after `delay` unless it has ended; whether it was killed.
fn killed_after(delay: Duration, arguments: &[&Path]) -> bool {
    let started = Instant::now();
    let mut child = Command::new(BINARY).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while started.elapsed() < delay {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap().code().is_none()
}

/// As long as it takes whole, in so many steps and a little more.
const MOMENTS: u32 = 40;

#[test]
fn a_backup_or_restore_that_is_killed_at_any_moment_leaves_the_old_or_the_new() {
    let test = "a_backup_or_restore_that_is_killed_at_any_moment_leaves_the_old_or_the_new";
    if !can_run(test) || !super::support::has_tools(test, &["tar", "zstd"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    instance.run_job("one", "command = \"true\"");
    instance.ok(&["backup", &at("old").display().to_string()]);
    instance.run_job("two", "command = \"true\"");
    fs::write(instance.root().join("etc/trainyard/trainyard.toml"), "# the new one\n").unwrap();
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
    let root = instance.root().to_owned();
    // What runs leave would be told of, with the time of each restore.
    fs::remove_dir_all(root.join("var/lib/trainyard/workspaces/default/jobs")).unwrap();
    let new = content(&root, &at("new"));

    let (flag, backup) = (Path::new("--root"), Path::new("backup"));
    let began = Instant::now();
    assert!(!killed_after(Duration::from_secs(60), &[flag, &root, backup, &at("timed")]));
    let whole = began.elapsed();
    let mut killed = 0;
    for moment in 0..MOMENTS {
        let target = at("cut");
        let _ = fs::remove_file(&target);
        if killed_after(whole * moment / MOMENTS, &[flag, &root, backup, &target]) {
            killed += 1;
        }
        // Nothing, or a whole one; and nothing beside it.
        if target.exists() {
            let test = Command::new("tar").args(["--zstd", "-tf"]).arg(&target).output().unwrap();
            assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stderr));
        }
        let names: Vec<_> = fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| ["old", "new", "timed", "cut"].iter().any(|known| name == known)), "{names:?}");
    }
    // The first one, which is measured, may take longer than those that come after it.
    assert!(killed >= MOMENTS / 4, "{killed} of {MOMENTS} were killed in time");
    assert_eq!(content(&root, &at("again")), new);

    let (restore, replace) = (Path::new("restore"), Path::new("--replace"));
    // Serial numbers of events are further on after a restore.
    assert!(!killed_after(Duration::from_secs(60), &[flag, &root, restore, &at("new"), replace]));
    let new = content(&root, &at("again"));
    let began = Instant::now();
    assert!(!killed_after(Duration::from_secs(60), &[flag, &root, restore, &at("old"), replace]));
    let whole = began.elapsed();
    let old = content(&root, &at("again"));
    assert_ne!(old, new);
    // Turn about, so that what is there always differs from what comes.
    let (mut there, mut killed) = (old.clone(), 0);
    for moment in 0..MOMENTS {
        let (from, wanted) = if there == old { ("new", &new) } else { ("old", &old) };
        if killed_after(whole * moment / MOMENTS, &[flag, &root, restore, &at(from), replace]) {
            killed += 1;
        }
        let found = content(&root, &at("again"));
        assert!(found == there || found == *wanted, "moment {moment}: {found:?}");
        there = found;
    }
    // The first one, which is measured, may take longer than those that come after it.
    assert!(killed >= MOMENTS / 4, "{killed} of {MOMENTS} were killed in time");
    // And the daemon goes on with it.
    instance.start_daemon(&[]);
    instance.wait_ready();
    wait_for("the job", || (instance.state("one") == "succeeded").then_some(()));
    instance.shutdown();
}
