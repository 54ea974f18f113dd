//! What a job file says of retries, of other jobs, and of its own edits.

use std::fs;

use super::support::{Instance, text, wait_for};

fn reason(report: &serde_json::Value) -> String {
    text(&report["reason"])
}

#[test]
fn only_the_named_kinds_of_failure_are_tried_again_and_after_the_named_time() {
    let test = "only_the_named_kinds_of_failure_are_tried_again_and_after_the_named_time";
    let Some(instance) = Instance::start(test, "") else { return };
    let report = instance.run_job("spared", "command = 'exit 1'\nretries = 2\nretry.on = [\"lost\"]");
    assert_eq!((text(&report["state"]), &report["attempt"]), ("failed".into(), &1.into()), "{report:#}");
    let hungry =
        "command = \"/usr/bin/python3 -c 'x = bytearray(300 << 20)'\"\nresources.memory = \"128MiB\"\nretries = 1\n";
    let report = instance.run_job("hungry", hungry);
    assert_eq!(report["attempt"], 1, "out of memory is no failure that goes by itself: {report:#}");
    let report = instance.run_job("again", &format!("{hungry}retry.on = [\"oom\"]"));
    assert_eq!(report["attempt"], 2, "{report:#}");
    let slow = "command = 'date +%s%N >> /output/times; exit 1'\nretries = 2\nretry.backoff = \"400ms\"";
    // Longer than anybody looks for it.
    instance.drop_job("waits", "command = 'exit 1'\nretries = 2\nretry.backoff = \"1h\"");
    let waiting = wait_for("the wait between two attempts", || {
        instance.report("waits").filter(|report| text(&report["reason"]).contains("tries again at"))
    });
    assert_eq!(waiting["state"], "waiting");
    let report = instance.run_job("slow", slow);
    assert_eq!(report["attempt"], 3, "{report:#}");
    let times = fs::read_to_string(instance.run_dir("slow", 1).join("output/times")).unwrap();
    let times: Vec<u64> = times.lines().map(|line| line.parse().unwrap()).collect();
    let apart: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000_000).collect();
    assert!(apart[0] >= 400 && apart[1] >= 800, "twice as long each time: {apart:?} ms");
    instance.shutdown();
}

#[test]
fn a_task_that_failed_is_started_again_by_itself_while_the_others_go_on() {
    let test = "a_task_that_failed_is_started_again_by_itself_while_the_others_go_on";
    let Some(mut instance) = Instance::start(test, "") else { return };
    // One waits for the other, which needs three tries and is in its third when it is told to go on.
    let command = "if [ $TRAINYARD_TASK_INDEX = 0 ]; then echo once; until [ -e /output/done ]; do sleep 0.05; done; exit; fi; \
                   echo x >> /output/tries; tries=$(wc -l < /output/tries); echo try $tries, $FC_FRAMEWORK_ATTEMPT_ID.$FC_TASK_ATTEMPT_ID; [ $tries = 3 ] || exit 7; \
                   until [ -e /output/go ]; do sleep 0.05; done; touch /output/done";
    let role = "[roles.w]\ncount = 2\nresources = { cpu = 0.5, memory = \"128MiB\" }\n";
    instance.drop_job("again", &format!("command = {command:?}\n{role}retries = 2\n"));
    wait_for("its third try", || instance.log("again", "w-1").contains("try 3").then_some(()));
    // It is the same attempt, and the daemon knows it again.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(instance.state("again"), "running");
    assert_eq!(instance.ok(&["exec", "again", "w-1", "--", "cat", "/output/tries"]), "x\nx\nx\n");
    fs::write(instance.run_dir("again", 1).join("output/go"), "").unwrap();
    let report = instance.wait_end("again", 1);
    assert_eq!((text(&report["state"]), &report["attempt"]), ("succeeded".into(), &1.into()), "{report:#}");
    assert_eq!(
        (instance.log("again", "w-0"), instance.log("again", "w-1")),
        ("once\n".into(), "try 1, 0.0\ntry 2, 0.1\ntry 3, 0.2\n".into()),
        "as the controller of OpenPAI counts"
    );
    let events = instance.ok(&["events", "again"]);
    for told in
        ["w-1 exited with code 7; it is started again (1 of 2)", "w-1 exited with code 7; it is started again (2 of 2)"]
    {
        assert!(events.contains(told), "{events}");
    }
    // Once too often, and what `retry.on` does not name.
    let failing = "command = \"echo x; exit 7\"\n[roles.w]\nretries = 1\n";
    // In the next attempt of the run a task is counted anew.
    let counted = "command = \"echo $FC_FRAMEWORK_ATTEMPT_ID.$FC_TASK_ATTEMPT_ID >> /output/counted; exit 7\"\n";
    instance.run_job("counted", &format!("retries = 1\nretry.backoff = \"1ms\"\n{counted}[roles.w]\nretries = 1\n"));
    let counted = fs::read_to_string(instance.run_dir("counted", 1).join("output/counted")).unwrap();
    assert_eq!(counted, "0.0\n0.1\n1.0\n1.1\n");
    let report = instance.run_job("often", failing);
    assert!(report["state"] == "failed" && reason(&report).contains("w-0 exited with code 7"), "{report:#}");
    assert_eq!((instance.log("often", "w-0").as_str(), &report["attempt"]), ("x\nx\n", &1.into()));
    let report = instance.run_job("unnamed", &format!("retry.on = [\"lost\"]\n{failing}"));
    assert_eq!((text(&report["state"]), instance.log("unnamed", "w-0").as_str()), ("failed".into(), "x\n"));
    instance.shutdown();
}

#[test]
fn a_back_off_goes_on_after_a_restart_of_the_daemon() {
    let Some(mut instance) = Instance::start("a_back_off_goes_on_after_a_restart_of_the_daemon", "") else { return };
    instance.drop_job("slow", "command = 'exit 1'\nretries = 1\nretry.backoff = \"5s\"");
    wait_for("the wait between two attempts", || {
        instance.report("slow").filter(|report| text(&report["reason"]).contains("tries again at"))
    });
    instance.kill_daemon();
    instance.restart_daemon();
    let report = instance.wait_end("slow", 1);
    assert_eq!((text(&report["state"]), &report["attempt"]), ("failed".into(), &2.into()), "{report:#}");
    instance.shutdown();
}

#[test]
fn a_job_that_comes_after_another_waits_for_its_success() {
    let Some(mut instance) = Instance::start("a_job_that_comes_after_another_waits_for_its_success", "") else {
        return;
    };
    instance.drop_job("second", "command = 'echo second'\nafter = [\"first\"]");
    let waiting = instance.wait_state("second", "waiting");
    assert!(reason(&waiting).contains("waits for job first, which does not exist yet"), "{waiting:#}");
    instance.drop_job("first", "command = 'exit 4'");
    instance.wait_end("first", 1);
    wait_for("the word on the first", || {
        instance.report("second").filter(|report| text(&report["reason"]).contains("exited with code 4"))
    });
    // It is not forgotten with a daemon.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(instance.state("second"), "waiting");
    instance.drop_job("first", "command = 'sleep 0.1'");
    let report = instance.wait_end("second", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let first = instance.report("first").unwrap();
    assert!(text(&first["ended"]) <= text(&report["started"]), "{first:#} {report:#}");
    instance.drop_job("own", "command = 'true'\nafter = [\"own\"]");
    let refused = instance.wait_state("own", "invalid");
    assert!(reason(&refused).contains("names the job itself"), "{refused:#}");
    // Nor do several ever start that wait for each other; each is told, until one of them waits no more.
    for (job, other) in [("a", "b"), ("b", "c"), ("c", "a")] {
        instance.drop_job(job, &format!("command = 'true'\nafter = [\"{other}\"]"));
    }
    for (job, way) in
        [("a", "a, then b, then c, then a"), ("b", "b, then c, then a, then b"), ("c", "c, then a, then b")]
    {
        wait_for("the ring", || reason(&instance.report(job)?).contains(way).then_some(()));
    }
    instance.drop_job("c", "command = 'true'");
    assert_eq!(instance.wait_end("a", 1)["state"], "succeeded");
    instance.shutdown();
}

#[test]
fn an_edit_waits_or_restarts_as_the_file_says_and_live_keys_do_neither() {
    let test = "an_edit_waits_or_restarts_as_the_file_says_and_live_keys_do_neither";
    let Some(instance) = Instance::start(test, "") else { return };
    instance.drop_job("job", "command = 'sleep 1000.96875'\non_edit = \"restart\"");
    instance.wait_state("job", "running");
    instance.drop_job(
        "job",
        "description = \"told\"\ncommand = 'sleep 1000.96875'\non_edit = \"restart\"\nextras.ticket = 12",
    );
    wait_for("the description", || (instance.report("job")?["description"] == "told").then_some(()));
    assert_eq!(instance.report("job").unwrap()["run"], 1, "what is only told runs nothing");
    let shown: serde_json::Value =
        serde_json::from_str(&instance.ok(&["show", "job", "--effective", "--json"])).unwrap();
    assert_eq!(shown["extras"]["ticket"], 12);
    instance.drop_job("job", "command = 'echo new'\non_edit = \"restart\"");
    let report = instance.wait_end("job", 2);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert!(
        instance.ok(&["events", "job"]).contains("replaced by a newer version"),
        "{}",
        instance.ok(&["events", "job"])
    );
    instance.drop_job("patient", "command = 'while [ ! -e /output/go ]; do sleep 0.02; done'");
    instance.wait_state("patient", "running");
    instance.drop_job("patient", "command = 'echo new'");
    assert_eq!(instance.report("patient").unwrap()["run"], 1);
    fs::write(instance.run_dir("patient", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("patient", 2)["state"], "succeeded");
    instance.shutdown();
}

#[test]
fn the_higher_priority_starts_first_and_an_edit_of_it_counts_at_once() {
    let test = "the_higher_priority_starts_first_and_an_edit_of_it_counts_at_once";
    let Some(instance) = Instance::start(test, "") else { return };
    let big = |rest: &str| format!("resources = {{ cpu = 16, memory = \"100MB\" }}\n{rest}\n");
    let going = big("command = 'while [ ! -e /output/go ]; do sleep 0.02; done'");
    instance.drop_job("first", &going);
    instance.wait_state("first", "running");
    let place = |job: &str| reason(&instance.wait_state(job, "waiting"));
    let waits_behind = |job: &str, other: &str| {
        wait_for(&format!("{job} to wait behind {other}"), || {
            place(job).ends_with(&format!("of the queue, which begins with {other}")).then_some(())
        });
    };
    instance.drop_job("old", &big("command = 'true'"));
    wait_for("it to be the first that waits", || place("old").contains("waits for 16 cpu").then_some(()));
    instance.drop_job("urgent", &big("priority = \"high\"\ncommand = 'true'"));
    waits_behind("old", "urgent");
    instance.drop_job("old", &big("priority = 100\ncommand = 'true'"));
    waits_behind("urgent", "old");
    assert_eq!(instance.report("old").unwrap()["run"], 1, "no new run");
    fs::write(instance.run_dir("first", 1).join("output/go"), "").unwrap();
    let (old, urgent) = (instance.wait_end("old", 1), instance.wait_end("urgent", 1));
    assert!(text(&old["ended"]) <= text(&urgent["started"]), "{old:#} {urgent:#}");
    instance.shutdown();
}

#[test]
fn a_job_that_takes_longer_than_expected_raises_one_alarm_and_stops_only_if_asked() {
    let test = "a_job_that_takes_longer_than_expected_raises_one_alarm_and_stops_only_if_asked";
    let Some(instance) = Instance::start(test, "") else { return };
    let text = "command = 'while [ ! -e /output/go ]; do sleep 0.02; done'\nexpected_duration = \"1s\"\n";
    instance.drop_job("late", text);
    wait_for("the alarm", || instance.report("late").filter(|report| reason(report).contains("longer than expected")));
    fs::write(instance.run_dir("late", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("late", 1)["state"], "succeeded");
    assert_eq!(instance.ok(&["events", "late"]).matches("alarm: ").count(), 1);
    let report = instance.run_job("stopped", &format!("{text}on_overrun = \"stop\""));
    assert_eq!(report["state"], "stopped", "{report:#}");
    assert!(reason(&report).contains("expected_duration of 1.0s"), "{report:#}");
    instance.shutdown();
}

#[test]
fn an_image_that_cannot_be_had_is_asked_for_again_where_the_file_says_so() {
    let test = "an_image_that_cannot_be_had_is_asked_for_again_where_the_file_says_so";
    let Some(instance) = Instance::start(test, "") else { return };
    let missing = "image = \"oci:/no/such/layout:x\"\ncommand = 'true'\nretries = 2\n";
    let report = instance.run_job("once", missing);
    assert_eq!(report["state"], "failed", "{report:#}");
    assert!(!instance.ok(&["events", "once"]).contains("tries again"));
    let report = instance.run_job("thrice", &format!("{missing}retry.on = [\"image\"]"));
    assert_eq!(report["state"], "failed", "{report:#}");
    let events = instance.ok(&["events", "thrice"]);
    assert_eq!(events.matches("it cannot be made ready, tries again").count(), 2, "{events}");
    instance.shutdown();
}

#[test]
fn a_stop_also_stops_the_run_that_was_to_follow() {
    let test = "a_stop_also_stops_the_run_that_was_to_follow";
    let Some(mut instance) = Instance::start(test, "") else { return };
    let slow = |word: &str| {
        let command = format!("trap '' TERM; echo {word}; until [ -e /output/go ]; do sleep 0.05; done");
        format!("stop_grace = \"100s\"\ncommand = {command:?}")
    };
    // However slow the machine is, it ends when it is let go, and not before.
    let let_go = |instance: &Instance, job: &str, run: u32| {
        fs::write(instance.run_dir(job, run).join("output/go"), "").unwrap();
    };
    let begun = |instance: &Instance, job: &str, run: u64| {
        let report = instance.wait_state(job, "running");
        assert_eq!(report["run"], run, "{report:#}");
        report
    };
    for (job, first) in [("edited", None), ("rerun", Some("rerun")), ("restarted", Some("restart"))] {
        instance.drop_job(job, &slow("one"));
        begun(&instance, job, 1);
        match first {
            None => instance.drop_job(job, &slow("two")),
            Some(verb) => drop(instance.ok(&[verb, job])),
        }
        let reason = wait_for("the run that follows", || {
            Some(text(&instance.report(job)?["reason"])).filter(|reason| reason.contains("run 2 follows"))
        });
        assert!(instance.ok(&["ps"]).contains("run 2 follows"), "{reason}");
        let said = instance.ok(&["stop", job]);
        assert!(said.contains("run 2 does not follow, `trainyard rerun"), "{said}");
        let_go(&instance, job, 1);
        let ended = instance.wait_end(job, 1);
        assert_eq!((ended["state"].as_str(), ended["run"].as_u64()), (Some("stopped"), Some(1)), "{ended:#}");
    }
    // Also over a restart of the daemon, and though the file is written again as it is.
    instance.kill_daemon();
    instance.restart_daemon();
    instance.drop_job("edited", &format!("{}\n# the same", slow("two")));
    wait_for("the edit", || (instance.ok(&["show", "edited"]).contains("# the same")).then_some(()));
    assert_eq!(instance.report("edited").unwrap()["run"], 1);
    assert!(instance.ok(&["events", "edited"]).contains("run 2 follows"));
    // Another word of its owner's is another run; so is an old one that comes back.
    instance.drop_job("edited", &slow("three"));
    begun(&instance, "edited", 2);
    instance.ok(&["stop", "edited"]);
    let_go(&instance, "edited", 2);
    instance.wait_end("edited", 2);
    instance.drop_job("edited", &slow("two"));
    begun(&instance, "edited", 3);
    instance.ok(&["rerun", "restarted"]);
    begun(&instance, "restarted", 2);
    let_go(&instance, "edited", 3);
    let_go(&instance, "restarted", 2);
    instance.shutdown();
}
