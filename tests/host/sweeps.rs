//! Files that make a job for each combination of values.

use std::fs;

use super::support::{Instance, text, wait_for};

const GRID: &str = "command = \"echo\"\n[sweep]\nlr = [0.1, 0.2]\n";

fn jobs(instance: &Instance) -> Vec<String> {
    let listed = instance.ok(&["--json", "ps"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let names = listed["jobs"].as_array().unwrap().iter().map(|job| text(&job["job"]));
    names.collect()
}

fn runs(instance: &Instance, job: &str) -> Option<u64> {
    instance.report(job)?["run"].as_u64()
}

fn refusal(instance: &Instance, arguments: &[&str]) -> String {
    let output = instance.cli(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_sweep_runs_a_job_for_each_combination_and_follows_its_file() {
    let test = "a_sweep_runs_a_job_for_each_combination_and_follows_its_file";
    let Some(mut instance) = Instance::start(test, "") else { return };
    instance.drop_job("next", "command = 'true'\nafter = [\"grid\"]");
    instance.drop_job("grid", GRID);
    for (job, value) in [("grid~0.1", "--lr=0.1"), ("grid~0.2", "--lr=0.2")] {
        assert_eq!(instance.wait_end(job, 1)["state"], "succeeded");
        assert_eq!(instance.log(job, "main-0").trim(), value);
    }
    assert_eq!(instance.wait_end("next", 1)["state"], "succeeded", "when both have succeeded");
    assert_eq!(jobs(&instance), ["grid~0.1", "grid~0.2", "next"]);
    let waited = instance.ok(&["wait", "grid", "next"]);
    let ended: Vec<&str> = waited.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(ended, ["grid~0.1", "grid~0.2", "next"], "a sweep is all of its jobs");
    assert_eq!(instance.ok(&["wait", "--any", "grid"]).lines().count(), 1);
    assert!(instance.ok(&["status", "grid~0.2"]).contains("lr = 0.2"));
    let told = refusal(&instance, &["show", "grid"]);
    assert!(told.contains("grid is a sweep of 2 jobs; name one of them: grid~0.1, grid~0.2"), "{told}");
    // More values add jobs, and run nothing again.
    instance.drop_job("grid", &GRID.replace("0.2]", "0.2, 0.3]"));
    assert_eq!(instance.wait_end("grid~0.3", 1)["state"], "succeeded");
    assert_eq!((runs(&instance, "grid~0.1"), runs(&instance, "grid~0.2")), (Some(1), Some(1)));
    // Fewer take them away.
    instance.drop_job("grid", &GRID.replace("0.1, ", ""));
    wait_for("the file's word", || instance.ok(&["events", "grid~0.3"]).contains("was removed").then_some(()));
    assert!(refusal(&instance, &["rerun", "grid~0.1"]).contains("has no job file any more"));
    // What is asked of all of them is done by those that can, and the others are told; if none can, all are.
    let removed = instance.ok(&["rm", "grid"]);
    assert!(
        removed.contains("grid~0.1: removed") && removed.contains("not done: the file of job grid~0.2"),
        "{removed}"
    );
    instance.drop_job("grid", GRID);
    instance.wait_end("grid~0.1", 2);
    let refused = refusal(&instance, &["rm", "grid"]);
    assert!(refused.contains("job grid~0.1 is still") && refused.contains("job grid~0.2 is still"), "{refused}");
    // One of them becomes a job or a template of its own.
    instance.ok(&["clone", "grid~0.2", "alone"]);
    assert_eq!(instance.wait_end("alone", 1)["state"], "succeeded");
    assert_eq!(instance.log("alone", "main-0").trim(), "--lr=0.2");
    instance.ok(&["template", "save", "grid~0.1", "as-template"]);
    let saved = fs::read_to_string(instance.jobs_d().join("as-template.template.toml")).unwrap();
    assert!(saved.contains("lr = 0.1") && !saved.contains("sweep"), "{saved}");
    instance.ok(&["rm", "--file", "alone"]);
    let refused = refusal(&instance, &["rm", "--file", "grid~0.1"]);
    assert!(refused.contains("`trainyard rm --file grid`"), "{refused}");
    instance.drop_job("grid", &GRID.replace("0.1, ", ""));
    wait_for("the file's word", || {
        let events = instance.ok(&["events", "grid~0.1"]);
        (events.lines().last()?.contains("was removed")).then_some(())
    });
    assert_eq!(instance.ok(&["rerun", "grid"]).trim(), "grid~0.2: run 2");
    instance.wait_end("grid~0.2", 2);
    // A broken file is told under its own name, and its jobs stay.
    instance.drop_job("grid", &GRID.replace("command", "comand"));
    wait_for("the error", || (instance.report("grid")?["state"] == "invalid").then_some(()));
    assert_eq!(runs(&instance, "grid~0.2"), Some(2));
    instance.drop_job("grid", GRID);
    wait_for("the error to go", || instance.report("grid").is_none().then_some(()));
    // A file that goes while nobody looks.
    instance.kill_daemon();
    fs::remove_file(instance.jobs_d().join("grid.toml")).unwrap();
    instance.restart_daemon();
    wait_for("its jobs to be without a file", || {
        instance.ok(&["events", "grid~0.2"]).contains("the job file was removed").then_some(())
    });
    assert!(refusal(&instance, &["rerun", "grid"]).contains("has no job file any more"));
    let removed = instance.ok(&["rm", "grid"]);
    assert_eq!(removed.lines().collect::<Vec<_>>(), ["grid~0.1: removed", "grid~0.2: removed"]);
    assert_eq!(jobs(&instance), ["next"]);
    instance.shutdown();
}

#[test]
fn a_job_becomes_a_sweep_and_back_and_nobody_takes_a_name_from_another() {
    let test = "a_job_becomes_a_sweep_and_back_and_nobody_takes_a_name_from_another";
    let Some(instance) = Instance::start(test, "") else { return };
    instance.drop_job("grid", "command = 'sleep 600'");
    instance.wait_state("grid", "running");
    instance.drop_job("grid", "command = ['sh', '-c', 'sleep 600']\nsweep.lr = [1, 2]");
    assert_eq!(instance.wait_end("grid", 1)["state"], "stopped");
    instance.wait_state("grid~1", "running");
    // A file of its own for what a sweep makes.
    instance.drop_job("grid~1", "command = 'true'");
    wait_for("the file to be told of", || {
        let told = String::from_utf8_lossy(&instance.cli(&["ps"]).stderr).into_owned();
        told.contains("grid~1.toml: its name is that of a job of grid.toml").then_some(())
    });
    let checked = instance.cli(&["check", &instance.jobs_d().join("grid~1.toml").display().to_string()]);
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(told.contains("which is a sweep; rename it") && !told.contains("room"), "{told}");
    assert_eq!(checked.status.code(), Some(1));
    fs::remove_file(instance.jobs_d().join("grid~1.toml")).unwrap();
    instance.drop_job("taken~1", "command = 'sleep 600'");
    instance.wait_state("taken~1", "running");
    instance.drop_job("taken", "command = 'true'\nsweep.lr = [1, 2]");
    let report = instance.wait_state("taken", "invalid");
    assert!(text(&report["reason"]).contains("one of its jobs would be taken~1"), "{report}");
    assert_eq!((instance.state("taken~1"), instance.state("grid~1")), ("running".into(), "running".into()));
    // Stopped together; as one job again, it runs as one.
    assert_eq!(instance.ok(&["stop", "grid"]).lines().count(), 2);
    instance.wait_end("grid~1", 1);
    instance.drop_job("grid", "command = 'true'");
    assert_eq!(instance.wait_end("grid", 2)["state"], "succeeded");
    assert!(refusal(&instance, &["rerun", "grid~2"]).contains("has no job file any more"));
    instance.ok(&["stop", "taken~1"]);
    instance.wait_end("taken~1", 1);
    instance.shutdown();
}
