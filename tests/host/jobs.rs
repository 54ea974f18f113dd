//! Jobs over time: gangs, retries, edits, stops, records.

use std::fs;

use super::support::{Instance, text, wait_for};

#[test]
fn a_gang_starts_whole_or_waits_with_its_reason() {
    let config = "[limits]\ncpu = 2\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n";
    let Some(instance) = Instance::start("a_gang_starts_whole_or_waits_with_its_reason", config) else { return };
    let small = "[resources]\ncpu = 1\nmemory = \"128MiB\"\n";
    instance.drop_job("holder", &format!("command = \"sleep 1000\"\n{small}"));
    instance.wait_state("holder", "running");
    instance.drop_job("gang", &format!("command = \"true\"\n{small}[roles.w]\ncount = 2\n"));
    let report = instance.wait_state("gang", "waiting");
    assert!(text(&report["reason"]).contains("held by holder"), "{report}");
    instance.drop_job("behind", &format!("command = \"true\"\n{small}"));
    let report = instance.wait_state("behind", "waiting");
    assert_eq!(
        text(&report["reason"]),
        "waits in place 2 of the queue: what is free is kept for those before it, first for gang"
    );
    assert!(report["tasks"].as_array().unwrap().is_empty(), "no part of it has started");
    instance.drop_job("giant", &format!("command = \"true\"\n{small}[roles.w]\ncount = 3\n"));
    let report = instance.wait_state("giant", "invalid");
    assert!(text(&report["reason"]).contains("needs 3 cpu of 2"), "{report}");
    instance.ok(&["stop", "holder"]);
    for job in ["gang", "behind"] {
        assert_eq!(instance.wait_end(job, 1)["state"], "succeeded");
    }
}

#[test]
fn a_failed_attempt_is_retried_as_often_as_allowed_with_its_output_kept() {
    let Some(instance) = Instance::start("a_failed_attempt_is_retried_as_often_as_allowed_with_its_output_kept", "")
    else {
        return;
    };
    let third = "retries = 5\ncommand = \"echo x >> /output/tries; echo try $(wc -l < /output/tries); [ $(wc -l < /output/tries) -ge 3 ]\"";
    let report = instance.run_job("third", third);
    assert_eq!((text(&report["state"]), report["attempt"].as_u64()), ("succeeded".into(), Some(3)), "{report}");
    let first = fs::read_to_string(instance.run_dir("third", 1).join("attempts/1/main-0/stdout.log")).unwrap();
    assert_eq!(first, "try 1\n", "logs of every attempt stay");
    // And are told: the newest one's, one by its number, all; the task may stand before the job or behind it.
    assert_eq!(instance.ok(&["logs", "main-0", "third"]), "try 3\n");
    assert_eq!(instance.ok(&["logs", "third", "main-0", "--attempt", "2"]), "try 2\n");
    let all = instance.cli(&["logs", "main-0", "third", "--run", "1"]);
    assert_eq!(all.stdout, b"try 1\ntry 2\ntry 3\n");
    assert_eq!(all.stderr, b"--- attempt 2 ---\n--- attempt 3 ---\n");
    let none = instance.cli(&["logs", "third", "--attempt", "4"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("has no attempt 4; it has made 3"));
    let none = instance.cli(&["logs", "main-9", "third"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("its tasks are main-0\n"), "each once");
    // As are their ends.
    let status = instance.ok(&["status", "third"]);
    assert_eq!(status.matches("main-0 exited with code 1").count(), 2, "the two before: {status}");
    let run = instance.ok(&["status", "third", "--run", "1"]);
    assert_eq!(run.matches("\nattempt ").count(), 3, "{run}");
    let runs: serde_json::Value = serde_json::from_str(&instance.ok(&["status", "third", "--json"])).unwrap();
    assert_eq!(runs["runs"][0]["attempts"][1]["tasks"][0]["exit_code"], 1);
    let report = instance.run_job("never", "retries = 1\ncommand = \"exit 9\"");
    assert_eq!((text(&report["state"]), report["attempt"].as_u64()), ("failed".into(), Some(2)));
    assert!(text(&report["reason"]).contains("main-0 exited with code 9"));
}

#[test]
fn a_failed_task_stops_its_gang_and_the_main_role_decides() {
    let Some(instance) = Instance::start("a_failed_task_stops_its_gang_and_the_main_role_decides", "") else { return };
    let report = instance.run_job(
        "gang",
        "[roles.a]\ncommand = \"sleep 0.2; exit 4\"\n[roles.b]\ncount = 2\ncommand = \"sleep 1000\"\n",
    );
    assert_eq!(report["state"], "failed");
    assert_eq!(text(&report["reason"]), "a-0 exited with code 4", "the first cause is told");
    assert_eq!(text(&report["tasks"][1]["reason"]), "stopped because the attempt was decided");
    let report = instance.run_job(
        "cause",
        "[roles.a]\nmin_failed = \"never\"\ncommand = \"exit 3\"\n[roles.b]\ncommand = \"sleep 0.3; exit 4\"\n",
    );
    assert_eq!(text(&report["reason"]), "b-0 exited with code 4", "what may fail is no cause");
    let report = instance
        .run_job("main", "[roles.chief]\nmain = true\ncommand = \"sleep 0.2\"\n[roles.b]\ncommand = \"sleep 1000\"\n");
    assert_eq!(report["state"], "succeeded", "{report}");
}

#[test]
fn edits_stops_and_removals_of_files_act_on_jobs() {
    let Some(instance) = Instance::start("edits_stops_and_removals_of_files_act_on_jobs", "") else { return };
    instance.run_job("job", "command = \"echo one\"");
    instance.drop_job("job", "# a comment\ncommand   = \"echo one\"");
    instance.drop_job("other", "command = \"true\"");
    instance.wait_end("other", 1);
    assert_eq!(instance.report("job").unwrap()["run"], 1, "the same meaning is nothing new");
    instance.drop_job("job", "command = \"echo two; sleep 1000\"");
    wait_for("run 2", || (instance.report("job")?["state"] == "running").then_some(()));
    instance.drop_job("job", "command = \"echo three\"");
    wait_for("the new version", || instance.ok(&["show", "job"]).contains("three").then_some(()));
    assert_eq!(instance.report("job").unwrap()["run"], 2, "beside a running one it waits");
    instance.ok(&["restart", "job"]);
    assert_eq!(instance.wait_end("job", 3)["state"], "succeeded");
    instance.drop_job("job", "command = \"sleep 1000\"");
    wait_for("run 4", || (instance.report("job")?["state"] == "running").then_some(()));
    instance.drop_job("job", "command = \"sleep 1000\"\nstate = \"stopped\"");
    assert_eq!(text(&instance.wait_end("job", 4)["reason"]), "stopped by state = \"stopped\" in its job file");
    instance.drop_job("job", "command = \"sleep 1000\"");
    wait_for("run 5", || (instance.report("job")?["run"] == 5).then_some(()));
    instance.wait_state("job", "running");
    let refused = instance.cli(&["rm", "job"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`trainyard stop job` first"));
    // Of several each is judged by itself, and every refusal is told.
    let several = instance.cli(&["rm", "--file", "job", "none", "other"]);
    let (done, refused) = (String::from_utf8_lossy(&several.stdout), String::from_utf8_lossy(&several.stderr));
    assert!(!several.status.success() && done.lines().count() == 1 && done.starts_with("other: removed"), "{done}");
    assert!(refused.contains("`trainyard stop job` first") && refused.contains("no job none"), "{refused}");
    assert!(!instance.jobs_d().join("other.toml").exists() && instance.jobs_d().join("job.toml").exists());
    assert_eq!(instance.report("job").unwrap()["state"], "running");
    fs::remove_file(instance.jobs_d().join("job.toml")).unwrap();
    assert_eq!(text(&instance.wait_end("job", 5)["reason"]), "stopped because its job file was removed");
    assert_eq!(instance.ok(&["rm", "job"]), "job: removed\n");
    assert_eq!(instance.cli(&["status", "job"]).status.code(), Some(4));
    // A job of the same name is a new one, and goes on counting.
    instance.drop_job("job", "command = \"echo anew\"");
    let report = instance.wait_end("job", 6);
    assert_eq!(report["state"], "succeeded", "{report}");
    assert_eq!(instance.ok(&["events", "job"]).matches("is waiting to start").count(), 1, "nothing of the old one");
    assert!(!instance.run_dir("job", 5).exists() && instance.run_dir("job", 6).exists());
    instance.drop_job("held", "state = \"held\"\ncommand = \"true\"");
    instance.wait_state("held", "held");
    instance.drop_job("held", "command = \"true\"");
    assert_eq!(instance.wait_end("held", 1)["state"], "succeeded");
    let rerun = instance.ok(&["rerun", "held"]);
    assert_eq!(rerun, "held: run 2\n");
    assert_eq!(instance.wait_end("held", 2)["state"], "succeeded");
}

#[test]
fn an_editor_that_replaces_the_file_does_not_stop_the_job() {
    let Some(instance) = Instance::start("an_editor_that_replaces_the_file_does_not_stop_the_job", "") else { return };
    instance.drop_job("edited", "command = \"sleep 1000\"");
    instance.wait_state("edited", "running");
    let file = instance.jobs_d().join("edited.toml");
    // As vim does with backupcopy=no: away, then written anew.
    fs::rename(&file, instance.jobs_d().join("edited.toml~")).unwrap();
    fs::write(&file, "command = \"sleep 1000\"\n").unwrap();
    fs::remove_file(instance.jobs_d().join("edited.toml~")).unwrap();
    instance.run_job("later", "command = \"sleep 1.5\"");
    let report = instance.report("edited").unwrap();
    assert_eq!((text(&report["state"]), report["run"].as_u64()), ("running".into(), Some(1)), "{report}");
}

#[test]
fn following_logs_and_waiting_end_with_the_run() {
    let Some(instance) = Instance::start("following_logs_and_waiting_end_with_the_run", "") else { return };
    instance.drop_job("f", "command = \"for i in 1 2 3 4 5; do echo tick $i; sleep 0.1; done; exit 3\"");
    wait_for("the job", || instance.report("f"));
    let followed = instance.ok(&["logs", "-f", "f"]);
    assert_eq!(
        followed,
        (1..=5).map(|n| format!("main-0 | tick {n}\n")).collect::<String>(),
        "each line once, in order"
    );
    assert_eq!(instance.cli(&["wait", "f"]).status.code(), Some(5));
    instance.run_job("well", "command = \"true\"");
    assert_eq!(instance.cli(&["wait", "--timeout", "1h", "well", "f", "well"]).status.code(), Some(5), "the highest");
    let lines = instance.ok(&["logs", "--json", "f"]);
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (text(&line["task"]), text(&line["stream"]), text(&line["text"])),
        ("main-0".into(), "stdout".into(), "tick 1".into())
    );
    assert_eq!(instance.ok(&["logs", "--since", "1h", "f"]).lines().count(), 5);
    let unknown = instance.cli(&["logs", "worker-9", "f"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("its tasks are main-0"));
}

#[test]
fn the_list_is_searched_by_text_state_user_and_time() {
    let Some(instance) = Instance::start("the_list_is_searched_by_text_state_user_and_time", "") else { return };
    instance.run_job("digits", "command = \"true\"\ndescription = \"Handwritten numbers\"");
    let file = instance.jobs_d().join(".words.new");
    fs::write(&file, "command = \"exit 1\"").unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4321)).unwrap();
    fs::rename(file, instance.jobs_d().join("words.toml")).unwrap();
    instance.wait_end("words", 1);
    let listed = |arguments: &[&str]| {
        let out = instance.ok(&[&["ps"], arguments].concat());
        out.lines().skip(1).map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["digits", "words"]);
    assert_eq!((listed(&["WRITTEN"]), listed(&["ord"])), (vec!["digits".to_owned()], vec!["words".to_owned()]));
    assert_eq!(
        (listed(&["--user", "4321"]), listed(&["--user", "root"])),
        (vec!["words".into()], vec!["digits".into()])
    );
    assert_eq!((listed(&["--state", "failed"]), listed(&["--since", "1h"]).len()), (vec!["words".to_owned()], 2));
    assert!(instance.ok(&["ps", "--since", "1ms"]).contains("no such jobs"));
    let long = instance.ok(&["ps", "--long"]);
    assert!(
        long.lines().next().unwrap().contains("SUBMITTED") && long.contains("4321") && long.contains("root"),
        "{long}"
    );
    for wrong in [["--state", "gone"], ["--user", "nobody-here"], ["--since", "soon"]] {
        assert!(!instance.cli(&["ps", wrong[0], wrong[1]]).status.success());
    }
    instance.shutdown();
}
