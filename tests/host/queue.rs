//! The queue as people see it, and what is accounted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::support::{BINARY, Instance, has_tools, text, wait_for};

const STRANGER: u32 = 65534;

#[test]
fn a_job_that_is_not_queued_yet_is_removed_with_its_file_at_once() {
    let test = "a_job_that_is_not_queued_yet_is_removed_with_its_file_at_once";
    let config = "[limits]\ncpu = 1\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n[workspaces.default]\nwaiting = 1\n";
    let Some(instance) = Instance::start(test, config) else { return };
    fs::create_dir(instance.mount().join("code/prog")).unwrap();
    fs::write(instance.mount().join("code/prog/run.sh"), "true\n").unwrap();
    let job = "command = \"sleep 1000\"\nresources = { cpu = 1, memory = \"128MiB\" }\n";
    for (name, state) in [("holder", "running"), ("waits", "waiting"), ("turned-away", "held")] {
        instance.drop_job(name, &format!("code = \"prog\"\n{job}"));
        instance.wait_state(name, state);
    }
    let aside = wait_aside(&instance, "turned-away", 1);
    assert!(instance.ok(&["rm", "--file", "turned-away"]).contains("removed"));
    assert!(!instance.jobs_d().join("turned-away.toml").exists());
    assert!(!instance.ok(&["ps"]).contains("turned-away"));
    let directory = aside.parent().and_then(Path::parent).unwrap();
    wait_for("all of it to go", || (!directory.exists()).then_some(()));
}

#[test]
fn what_a_run_that_has_not_begun_will_use_cannot_go() {
    let test = "what_a_run_that_has_not_begun_will_use_cannot_go";
    let config = "[limits]\ncpu = 1.5\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n[workspaces.default]\nwaiting = 1\n";
    let Some(mut instance) = Instance::start(test, config) else { return };
    let train = "[ $TRAINYARD_RUN = 1 ] || until [ -e /output/go ]; do sleep 0.05; done; echo > /model/w";
    let train = format!("command = \"{train}\"\nresources = {{ cpu = 0.25, memory = \"128MiB\" }}\n");
    assert_eq!(instance.run_job("train", &train)["state"], "succeeded");
    for (name, version) in [("d", "v1"), ("d", "v2"), ("d", "v3"), ("seen-again", "v1")] {
        let draft = instance.mount().join("datasets").join(name).join("draft");
        fs::create_dir_all(&draft).unwrap();
        fs::write(draft.join("x"), version).unwrap();
        instance.ok(&["dataset", "publish", name, version]);
    }
    instance.run_job("over", "datasets = [\"seen-again\"]\ncommand = \"true\"");
    instance.ok(&["rerun", "train"]);
    wait_for("the second run", || instance.run_dir("train", 2).join("output").exists().then_some(()));
    instance.wait_state("train", "running");
    let job = |data: &str| {
        format!("datasets = [{data}]\ncommand = \"sleep 1000\"\nresources = {{ cpu = 1, memory = \"128MiB\" }}\n")
    };
    let turned_away = job("\"d@v1\", \"model:train@1\"");
    for (name, text, state) in
        [("holder", &job(""), "running"), ("waits", &job(""), "waiting"), ("turned-away", &turned_away, "held")]
    {
        instance.drop_job(name, text);
        instance.wait_state(name, state);
    }
    // The newest is that of when it is wanted.
    instance.drop_job("youngest", &job("\"model:train@latest\""));
    wait_aside(&instance, "youngest", 1);
    fs::write(instance.run_dir("train", 2).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("train", 2)["state"], "succeeded");
    instance.ok(&["rerun", "over"]);
    instance.drop_job("holder", &job("\"d@v2\""));
    wait_for("the file to be read", || instance.ok(&["events", "holder"]).contains("run 2 follows").then_some(()));
    for (arguments, by) in [
        (["dataset", "rm", "d@v1"], "turned-away"),
        (["model", "rm", "train@1"], "turned-away"),
        (["dataset", "rm", "d@v2"], "holder"),
    ] {
        let refused = instance.cli(&arguments);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        let told = format!("used, or will be, by a job that is not over (job {by})");
        assert!(refused.status.code() == Some(1) && why.contains(&told), "{arguments:?}: {why}");
    }
    let datasets = instance.mount().join("datasets");
    let moved = |name: &str| {
        let moved = fs::rename(datasets.join(name), datasets.join(format!("{name}-elsewhere")));
        moved.err().and_then(|error| error.raw_os_error())
    };
    let moves = || moved("d");
    assert_eq!(moves(), Some(nix::libc::EBUSY));
    assert_eq!(moved("seen-again"), Some(nix::libc::EBUSY), "its job has ended, and is to run again");
    instance.ok(&["dataset", "rm", "d@v3"]);
    instance.ok(&["stop", "turned-away"]);
    instance.ok(&["dataset", "rm", "d@v1"]);
    let refused = instance.cli(&["model", "rm", "train@1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("(job youngest)"), "{refused:?}");
    instance.ok(&["stop", "youngest"]);
    instance.ok(&["model", "rm", "train@1"]);
    // Nor as a whole, whether a daemon is there to be asked or not.
    instance.kill_daemon();
    assert_eq!(moves(), Some(nix::libc::EBUSY));
    assert_eq!(moved("seen-again"), Some(nix::libc::EBUSY));
    instance.restart_daemon();
    instance.ok(&["stop", "over"]);
    wait_for("the other dataset to be nobody's", || moved("seen-again").is_none().then_some(()));
    instance.ok(&["stop", "holder"]);
    instance.wait_state("holder", "stopped");
    wait_for("the dataset to be nobody's", || moves().is_none().then_some(()));
    instance.shutdown();
}

/// What is set aside for run `run` of a job, when it is there.
fn wait_aside(instance: &Instance, job: &str, run: u32) -> PathBuf {
    let runs = instance.run_dir(job, run).parent().unwrap().to_owned();
    let is_whole = |name: &str| name.starts_with(&format!(".{run}.aside-")) && !name.ends_with(".new");
    wait_for("what is set aside", || {
        let names = fs::read_dir(&runs).ok()?.map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.into_string().ok()).find(|name| is_whole(name)).map(|name| runs.join(name))
    })
}

#[test]
fn a_run_sees_code_and_data_as_they_were_when_it_was_wanted_however_late_it_begins() {
    let test = "a_run_sees_code_and_data_as_they_were_when_it_was_wanted_however_late_it_begins";
    let config = "[limits]\ncpu = 1\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n[workspaces.default]\nwaiting = 1\n";
    let Some(mut instance) = Instance::start(test, config) else { return };
    let publish = |instance: &Instance, version: &str| {
        fs::create_dir_all(instance.mount().join("datasets/d/draft")).unwrap();
        fs::write(instance.mount().join("datasets/d/draft/x"), format!("data {version}\n")).unwrap();
        instance.ok(&["dataset", "publish", "d", version]);
    };
    let script = |instance: &Instance, which: &str| {
        let text = format!("echo code {which}; cat /dataset/x; until [ -e /output/go ]; do sleep 0.05; done\n");
        fs::write(instance.mount().join("code/prog/run.sh"), text).unwrap();
    };
    let job = |word: &str| {
        format!(
            "code = \"prog\"\ndatasets = [\"d\"]\ncommand = \"sh run.sh {word}\"\nresources = {{ cpu = 0.25, memory = \"128MiB\" }}\n"
        )
    };
    fs::create_dir(instance.mount().join("code/prog")).unwrap();
    publish(&instance, "v1");
    script(&instance, "1");
    for name in ["edited", "again"] {
        instance.drop_job(name, &job("one"));
        instance.wait_state(name, "running");
    }
    let rerun = |instance: &Instance| {
        let said = instance.ok(&["rerun", "again"]);
        let told = "run 2 starts when run 1 has ended, with code and data as they are now";
        assert!(said.contains(told), "{said}");
    };
    script(&instance, "of the first rerun");
    rerun(&instance);
    let first = wait_aside(&instance, "again", 2);
    script(&instance, "2");
    publish(&instance, "v2");
    // As many as may wait.
    instance.drop_job("waits", "command = \"true\"\nstate = \"held\"");
    instance.wait_state("waits", "held");
    instance.drop_job("late", &job("one"));
    instance.drop_job("edited", &job("two"));
    rerun(&instance);
    wait_for("what was set aside before to go", || (!first.exists()).then_some(()));
    wait_aside(&instance, "edited", 2);
    wait_aside(&instance, "again", 2);
    let late = wait_aside(&instance, "late", 1);
    assert_eq!(fs::metadata(&late).unwrap().permissions().mode() & 0o777, 0o700, "nobody changes it");
    script(&instance, "3");
    publish(&instance, "v3");
    instance.kill_daemon();
    instance.restart_daemon();
    let refused = instance.cli(&["dataset", "rm", "d@v2"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("used, or will be, by a job"), "{refused:?}");
    // What nobody wants any more goes, and what is wanted later is of then.
    instance.ok(&["stop", "late"]);
    wait_for("what was set aside to go", || (!late.exists()).then_some(()));
    instance.ok(&["rerun", "late"]);
    wait_aside(&instance, "late", 1);
    script(&instance, "4");
    publish(&instance, "v4");
    for name in ["edited", "again"] {
        fs::write(instance.run_dir(name, 1).join("output/go"), "").unwrap();
        instance.wait_end(name, 1);
    }
    instance.ok(&["stop", "waits"]);
    for (name, run, log) in
        [("edited", 2, "code 2\ndata v2\n"), ("again", 2, "code 2\ndata v2\n"), ("late", 1, "code 3\ndata v3\n")]
    {
        wait_for("the run that was put off", || instance.run_dir(name, run).join("output").exists().then_some(()));
        fs::write(instance.run_dir(name, run).join("output/go"), "").unwrap();
        instance.wait_end(name, u64::from(run));
        assert_eq!(instance.log(name, "main-0"), log, "{name}");
        let runs = fs::read_dir(instance.run_dir(name, run).parent().unwrap()).unwrap();
        let names: Vec<_> = runs.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(!names.iter().any(|name| name.contains("aside")), "{names:?}");
    }
    instance.shutdown();
}

/// What the user 65534 is told.
fn as_stranger(instance: &Instance, arguments: &[&str]) -> String {
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", BINARY, "--root"])
        .arg(instance.root())
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The rows by their names.
fn usage(told: &str) -> Vec<(String, Value)> {
    let rows: Vec<Value> = serde_json::from_str(told).unwrap();
    rows.into_iter().map(|row| (text(&row["name"]), row)).collect()
}

fn row<'a>(rows: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    rows.iter().find(|(other, _)| other == name).map(|(_, row)| row)
}

#[test]
fn what_was_used_is_told_by_job_user_and_workspace_to_those_who_may_see_it() {
    let test = "what_was_used_is_told_by_job_user_and_workspace_to_those_who_may_see_it";
    if !has_tools(test, &["setpriv"]) {
        return;
    }
    // A second of one core costs one.
    let config = "[limits]\ncpu = 4\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n\
                  [specs.small]\ncpu = 1\nmemory = \"128MiB\"\nprice = 3600.0\n";
    let Some(mut instance) = Instance::start(test, config) else { return };
    let vision = instance.jobs_d().join("vision");
    fs::create_dir(&vision).unwrap();
    fs::set_permissions(&vision, fs::Permissions::from_mode(0o700)).unwrap();
    instance.run_job("vision/secret", "command = \"sleep 0.1\"\nresources = { cpu = 2, memory = \"128MiB\" }\n");
    let aside = instance.jobs_d().join(".mine");
    fs::write(&aside, "command = \"sleep 0.1\"\nresources.spec = \"small\"\n[roles.w]\ncount = 2\n").unwrap();
    chown(&aside, Some(STRANGER), Some(STRANGER)).unwrap();
    fs::rename(&aside, instance.jobs_d().join("mine.toml")).unwrap();
    instance.wait_end("mine", 1);
    instance.drop_job("long", "command = \"sleep 1000\"\nresources = { cpu = 0.5, memory = \"128MiB\" }\n");
    instance.wait_state("long", "running");
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();

    let by_job = |instance: &Instance| usage(&instance.ok(&["usage", "--by", "job", "--json"]));
    let rows = by_job(&instance);
    let mine = row(&rows, "mine").unwrap();
    let seconds = number(mine, "cpu_hours") * 3600.0;
    assert!(seconds >= 0.2, "two cores for a tenth of a second at least: {mine}");
    assert!((number(mine, "price") - seconds).abs() < 1e-6, "{mine}");
    let secret = row(&rows, "vision/secret").unwrap();
    assert!(secret["price"].is_null() && secret["unpriced"] == 1, "{secret}");
    assert!(number(row(&rows, "long").unwrap(), "cpu_hours") > 0.0, "what runs counts");

    instance.kill_daemon();
    instance.restart_daemon();
    fs::remove_file(instance.jobs_d().join("mine.toml")).unwrap();
    wait_for("the file to be gone", || instance.cli(&["rm", "mine"]).status.success().then_some(()));
    let rows = by_job(&instance);
    assert_eq!(row(&rows, "mine").map(|row| number(row, "cpu_hours") * 3600.0), Some(seconds), "also of a removed job");

    let own = usage(&as_stranger(&instance, &["usage", "--by", "job", "--json"]));
    assert_eq!(own.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["mine"]);
    let workspaces = usage(&as_stranger(&instance, &["usage", "--json"]));
    assert!(row(&workspaces, "default").is_some() && row(&workspaces, "vision").is_none(), "{workspaces:?}");
    let table = instance.ok(&["usage", "--by", "user"]);
    assert!(table.starts_with("USER") && table.contains("root") && table.contains("nobody"), "{table}");
    let csv = instance.ok(&["usage", "--by", "job", "--csv", "--since", "1h"]);
    assert!(csv.starts_with("job,attempts,gpu_hours,cpu_hours,memory_gib_hours,price,unpriced\n"), "{csv}");
    assert!(csv.lines().any(|line| line.starts_with("vision/secret,1,0,")), "{csv}");
    let bad = instance.cli(&["usage", "--by", "planet"]);
    assert_eq!(bad.status.code(), Some(2), "{}", String::from_utf8_lossy(&bad.stderr));
    instance.shutdown();
}

#[test]
fn who_waits_is_told_in_the_mount_as_well_and_a_job_is_extended_from_the_command_line() {
    let test = "who_waits_is_told_in_the_mount_as_well_and_a_job_is_extended_from_the_command_line";
    let config = "[limits]\ncpu = 2\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n[workspaces.default]\nrunning = 2\n";
    let Some(mut instance) = Instance::start(test, config) else { return };
    let small =
        |rest: &str| format!("command = \"sleep 1000\"\nresources = {{ cpu = 1, memory = \"128MiB\" }}\n{rest}");
    instance.drop_job("holder", &small("max_duration = \"1h\"\n"));
    instance.drop_job("free", &small(""));
    for job in ["holder", "free"] {
        instance.wait_state(job, "running");
    }
    instance.drop_job("next", &small(""));
    instance.wait_state("next", "waiting");
    instance.drop_job("last", &small(""));
    let shown = |job: &str, file: &str| {
        fs::read_to_string(instance.mount().join("jobs").join(job).join(file)).unwrap_or_default()
    };
    wait_for("its place in the mount", || shown("last", "status").contains("place     = \"2 of 2\"").then_some(()));
    let json: Value = serde_json::from_str(&shown("next", "status.json")).unwrap();
    assert_eq!(
        (&json["waiting"]["cause"], &json["waiting"]["needs"]["cpu"]),
        (&"quota".into(), &1.0.into()),
        "{json:#}"
    );
    assert!(json["waiting"]["starts_by"].as_str().is_some(), "when holder has had its hour: {json:#}");
    let status = instance.ok(&["status", "next"]);
    assert!(status.contains("place     1 of 2") && status.contains("held by   holder: 1 cpu"), "{status}");

    let refused = instance.cli(&["extend", "free", "2h"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("neither max_duration"));
    let refused = instance.cli(&["extend", "holder", "99999999999d"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("by more than nothing, and by 3650d in all"),
        "{refused:?}"
    );
    assert!(instance.ok(&["extend", "holder", "2h"]).contains("may take 3h0m (2h0m of it added), until "));
    instance.kill_daemon();
    instance.restart_daemon();
    assert!(instance.ok(&["status", "holder"]).contains("limit     3h0m (2h0m of it added), until "));
    assert!(instance.ok(&["events", "holder"]).contains("root has extended it by 2h0m"));
    instance.ok(&["stop", "free"]);
    instance.wait_state("next", "running");
    wait_for("the other to move up", || {
        let place = |json: &Value| json["waiting"]["place"] == 1 && json["waiting"]["of"] == 1;
        let status = fs::read(instance.mount().join("jobs/last/status.json")).ok()?;
        serde_json::from_slice(&status).is_ok_and(|json| place(&json)).then_some(())
    });
    instance.shutdown();
}
