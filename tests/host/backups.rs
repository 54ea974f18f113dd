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
    instance.ok(&["token", "new", "ci"]);
    let backups = instance.root().join("backups");
    fs::create_dir(&backups).unwrap();
    let told = instance.ok(&["backup", &backups.display().to_string(), "--json"]);
    // A directory that is not there becomes no file, which would be in the way of each later backup.
    let missing = instance.root().join("nightly");
    let refused = instance.cli(&["backup", &missing.display().to_string()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("there is no directory") && !missing.exists(), "{said}");
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
    let said = other.cli(&["restore", &file, "--replace"]);
    let (told, aside) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(told.contains("restored 3 job(s)") && told.contains("2 were not over"), "{said:?}");
    assert!(aside.contains("the tokens 0.ci. Make new ones, or restore again with --with-tokens"), "{aside}");
    let said = other.cli(&["restore", &file, "--replace", "--with-tokens"]);
    let aside = String::from_utf8_lossy(&said.stderr);
    assert!(aside.contains("\n  trainyard token rm ci --user 0\n"), "{aside}");
    // As workspaces are brought back by themselves.
    let code = other.root().join("var/lib/trainyard/workspaces/default/code/c");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("go"), "").unwrap();
    other.start_daemon(&[]);
    other.wait_ready();
    other.ok(&["token", "rm", "ci", "--user", "0"]);
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
    let status = instance.run_dir("j", 2).join("status");
    wait_for("its status", || fs::read_to_string(&status).ok()?.contains("\"succeeded\"").then_some(()));
    instance.run_job("later", "command = \"echo later > /output/o\"");
    instance.kill_daemon();
    let told = instance.ok(&["restore", &file, "--replace", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["newer"].as_array().unwrap().len(), 2, "{told}");
    instance.restart_daemon();
    let report = instance.report("j").unwrap();
    assert_eq!((&report["run"], text(&report["state"])), (&2.into(), "succeeded".into()), "as its directory says");
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

#[test]
fn where_the_state_was_lost_runs_go_on_counting_and_nothing_that_is_there_is_mixed() {
    let test = "where_the_state_was_lost_runs_go_on_counting_and_nothing_that_is_there_is_mixed";
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.run_job("a", "command = \"echo $TRAINYARD_RUN > /model/m; echo $TRAINYARD_RUN > /output/o\"");
    instance.run_job("b", "command = \"echo of run $TRAINYARD_RUN; exit 3\"");
    instance.run_job("gone", "command = \"true\"");
    instance.kill_daemon();
    fs::remove_file(instance.jobs_d().join("gone.toml")).unwrap();
    let state = instance.root().join("var/lib/trainyard/state.redb");
    // What is empty was not moved away by anybody.
    fs::write(&state, "").unwrap();
    // One that is not refused would go on for ever, and what it starts keep a pipe open.
    let said = instance.root().join("said");
    let daemon = || {
        let mut command = Command::new("timeout");
        command.args(["60", BINARY, "--root"]).arg(instance.root()).arg("daemon");
        let status = command.stderr(fs::File::create(&said).unwrap()).status().unwrap();
        (status.success(), fs::read_to_string(&said).unwrap())
    };
    let (is_taken, told) = daemon();
    assert!(!is_taken && told.contains("state.redb is empty"), "{told}");
    fs::remove_file(&state).unwrap();
    std::os::unix::fs::symlink("/nowhere/state.redb", &state).unwrap();
    let (_, told) = daemon();
    assert!(told.contains("a link that leads to nothing"), "{told}");
    fs::remove_file(&state).unwrap();
    // There is nothing to back up, and no empty state is made that the next start would go on with.
    let backup = instance.root().join("b.tar.zst");
    let refused = instance.cli(&["backup", &backup.display().to_string()]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("there is nothing to back up"), "{told}");
    assert!(!backup.exists() && !state.exists());
    instance.restart_daemon();
    assert_eq!(instance.wait_end("a", 2)["state"], "succeeded");
    assert_eq!(instance.wait_end("b", 2)["state"], "failed");
    for run in [1, 2] {
        let written = |path: &str| fs::read_to_string(instance.mount().join(path)).unwrap();
        assert_eq!(written(&format!("models/a/{run}/m")), format!("{run}\n"));
        assert_eq!(written(&format!("jobs/a/runs/{run}/output/o")), format!("{run}\n"));
        let log = fs::read_to_string(instance.run_dir("b", run).join("attempts/1/main-0/stdout.log")).unwrap();
        assert_eq!(log, format!("of run {run}\n"));
    }
    let events = instance.mount().join("jobs/b/events");
    let events = || fs::read_to_string(&events).unwrap();
    wait_for("the events of both runs", || (events().matches(" failed ").count() == 2).then_some(()));
    assert_eq!(instance.state("gone"), "invalid");
    assert!(text(&instance.report("gone").unwrap()["reason"]).contains("the state was lost"));
    instance.shutdown();
}

#[test]
fn a_restore_over_a_mount_point_is_refused_before_anything_is_changed() {
    let test = "a_restore_over_a_mount_point_is_refused_before_anything_is_changed";
    if !can_run(test) {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let root = work.path().canonicalize().unwrap();
    let config = root.join("etc/trainyard");
    fs::create_dir_all(config.join("jobs.d")).unwrap();
    fs::create_dir_all(root.join("var/lib/trainyard")).unwrap();
    fs::write(config.join("trainyard.toml"), "# as it was\n").unwrap();
    let run = |script: &str| {
        // What is mounted is seen by this one alone, and gone with it.
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-ec", script, BINARY]).arg(&root);
        command.output().unwrap()
    };
    let backed_up = run("exec \"$0\" --root \"$1\" backup \"$1/b.tar.zst\"");
    assert!(backed_up.status.success(), "{}", String::from_utf8_lossy(&backed_up.stderr));
    for place in ["etc/trainyard", "etc/trainyard/jobs.d"] {
        let mounted = format!(
            "mount --bind \"$1/{place}\" \"$1/{place}\"; exec \"$0\" --root \"$1\" restore \"$1/b.tar.zst\" --replace"
        );
        let refused = run(&mounted);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let mount = root.join(place).display().to_string();
        assert!(!refused.status.success() && said.contains(&format!("{mount} is a mount point")), "{said}");
        assert!(said.contains("nothing was changed") && said.contains("nmount"), "{said}");
        assert_eq!(fs::read_to_string(config.join("trainyard.toml")).unwrap(), "# as it was\n");
        let names = fs::read_dir(root.join("etc")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["trainyard"], "no draft, and nothing set aside");
    }
    let restored = run("exec \"$0\" --root \"$1\" restore \"$1/b.tar.zst\" --replace");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
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
    let state = member("state.jsonl");
    let (counters, rest) = state.split_once('\n').unwrap();
    let mut counters: serde_json::Value = serde_json::from_str(counters).unwrap();
    // Each restore goes on with numbers of its own, by the clock.
    for number in ["event", "order"] {
        counters["r"]["counters"][number] = serde_json::Value::Null;
    }
    (format!("{counters}\n{rest}"), member("etc/trainyard.toml"))
}

/// When it is killed: at moments of the time that it takes whole, which is the shortest seen: a busy machine takes longer now and then.
struct Kills {
    whole: Duration,
    moment: u32,
    killed: u32,
}

impl Kills {
    /// As long as it takes whole once.
    fn of(arguments: &[&Path]) -> Self {
        let began = Instant::now();
        assert!(!killed_after(super::support::PATIENCE, arguments));
        Self { whole: began.elapsed(), moment: 0, killed: 0 }
    }

    /// Enough of them, at all moments. More tries than that do not end in a kill only where each is quicker than all before.
    fn are_done(&self) -> bool {
        assert!(self.moment < 4 * MOMENTS, "{} of {} were killed in time", self.killed, self.moment);
        self.moment >= MOMENTS && self.killed >= MOMENTS / 2
    }

    fn next(&mut self, arguments: &[&Path]) {
        let began = Instant::now();
        match killed_after(self.whole * (self.moment % MOMENTS) / MOMENTS, arguments) {
            true => self.killed += 1,
            false => self.whole = self.whole.min(began.elapsed()),
        }
        self.moment += 1;
    }
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
    let at = |name: &str| work.path().join(format!("{name}.tar.zst"));
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
    let mut kills = Kills::of(&[flag, &root, backup, &at("timed")]);
    while !kills.are_done() {
        let target = at("cut");
        let _ = fs::remove_file(&target);
        kills.next(&[flag, &root, backup, &target]);
        // Nothing, or a whole one; and nothing beside it.
        if target.exists() {
            let test = Command::new("tar").args(["--zstd", "-tf"]).arg(&target).output().unwrap();
            assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stderr));
        }
        let names: Vec<_> = fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(
            names
                .iter()
                .all(|name| ["old", "new", "timed", "cut"].iter().any(|known| *name == *format!("{known}.tar.zst"))),
            "{names:?}"
        );
    }
    assert_eq!(content(&root, &at("again")), new);

    let (restore, replace) = (Path::new("restore"), Path::new("--replace"));
    assert!(!killed_after(super::support::PATIENCE, &[flag, &root, restore, &at("new"), replace]));
    let new = content(&root, &at("again"));
    let mut kills = Kills::of(&[flag, &root, restore, &at("old"), replace]);
    let old = content(&root, &at("again"));
    assert_ne!(old, new);
    // Turn about, so that what is there always differs from what comes.
    let mut there = old.clone();
    while !kills.are_done() {
        let (from, wanted) = if there == old { ("new", &new) } else { ("old", &old) };
        kills.next(&[flag, &root, restore, &at(from), replace]);
        let found = content(&root, &at("again"));
        assert!(found == there || found == *wanted, "moment {}: {found:?}", kills.moment);
        there = found;
    }
    // And the daemon goes on with it.
    instance.start_daemon(&[]);
    instance.wait_ready();
    wait_for("the job", || (instance.state("one") == "succeeded").then_some(()));
    instance.shutdown();
}
