//! What people complain about on other platforms, each as a small input: the number is that of the public issue.

use std::fs;

use super::support::{Instance, text, wait_for};

fn reason(report: &serde_json::Value) -> String {
    text(&report["reason"])
}

/// microsoft/pai#5615: a killed task was tried again for ever although nothing allowed it.
#[test]
fn pai_5615_a_killed_task_is_tried_as_often_as_allowed_and_no_more() {
    let Some(instance) = Instance::start("pai_5615_a_killed_task_is_tried_as_often_as_allowed_and_no_more", "") else {
        return;
    };
    let report = instance.run_job("once", "command = 'kill -9 $$'");
    assert_eq!((report["state"].as_str(), report["attempt"].as_u64()), (Some("failed"), Some(1)), "{report:#}");
    assert!(reason(&report).contains("signal 9"), "{report:#}");
    let report = instance.run_job("code", "command = 'exit 137'\nretries = 1");
    assert_eq!(report["attempt"], 2, "{report:#}");
    assert!(reason(&report).contains("code 137"), "a code is never replaced: {report:#}");
    instance.shutdown();
}

/// microsoft/pai#3547: success though all tasks had failed.
#[test]
fn pai_3547_a_job_whose_tasks_have_all_failed_succeeds_only_where_its_file_says_so() {
    let test = "pai_3547_a_job_whose_tasks_have_all_failed_succeeds_only_where_its_file_says_so";
    let Some(instance) = Instance::start(test, "") else { return };
    let failing = "command = 'exit 1'\n[roles.w]\ncount = 2\n";
    let report = instance.run_job("strict", &format!("{failing}min_failed = 2"));
    assert_eq!(report["state"], "failed", "{report:#}");
    let report = instance.run_job("lenient", &format!("{failing}min_failed = \"never\""));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert!(reason(&report).contains("2 task(s) failed"), "{report:#}");
    instance.shutdown();
}

/// microsoft/pai#4947: bounds that hardly anybody means.
#[test]
fn pai_4947_low_bounds_are_warned_of_and_impossible_ones_refused() {
    let bounds = |succeeded| {
        let text = format!("command = 'true'\n[roles.w]\ncount = 4\nmin_failed = 2\nmin_succeeded = {succeeded}");
        let (spec, found) = trainyard::spec::parse("a.toml", &text);
        (spec.is_some(), found.iter().map(ToString::to_string).collect::<String>())
    };
    let (runs, told) = bounds(2);
    assert!(runs && told.contains("min_succeeded = 2 and min_failed = 2 of 4 tasks"), "{told}");
    let (runs, told) = bounds(5);
    assert!(!runs && told.contains("is 5, but the role has only 4"), "{told}");
}

/// microsoft/pai#1895: a role could not read the ports of the others.
#[test]
fn pai_1895_every_role_sees_the_hosts_and_ports_of_all() {
    let Some(instance) = Instance::start("pai_1895_every_role_sees_the_hosts_and_ports_of_all", "") else { return };
    let job = "contract = \"openpai\"\ncommand = 'env; sleep 0.2'\n[roles.woker0]\nports = { tensorflow0 = 1 }\n\
        [roles.woker1]\nports = { tensorflow1 = 2 }\n[roles.client]\n";
    let report = instance.run_job("ports", job);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let log = instance.log("ports", "client-0");
    let value = |name: &str| {
        let found = log.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name}: {log}")).to_owned()
    };
    assert_eq!(value("PAI_PORT_LIST_woker0_0_tensorflow0").split(',').count(), 1);
    assert_eq!(value("PAI_PORT_LIST_woker1_0_tensorflow1").split(',').count(), 2);
    assert!(value("PAI_HOST_IP_woker0_0").starts_with("10.213."));
    instance.shutdown();
}

/// microsoft/pai#4306: lines of a command ran into each other.
#[test]
fn pai_4306_the_lines_of_a_command_run_one_after_the_other() {
    let Some(instance) = Instance::start("pai_4306_the_lines_of_a_command_run_one_after_the_other", "") else { return };
    let job = "command = '''\nprintf '%s\\n' one\nprintf '%s\\n' two\necho a \\\nb\n'''\n";
    let report = instance.run_job("lines", job);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("lines", "main-0"), "one\ntwo\na b\n");
    instance.shutdown();
}

/// microsoft/openpai-runtime#47: roles whose names are alike once a platform has normalised them.
#[test]
fn runtime_47_roles_with_like_names_run_or_are_refused_naming_both() {
    let test = "runtime_47_roles_with_like_names_run_or_are_refused_naming_both";
    let Some(instance) = Instance::start(test, "") else { return };
    let report =
        instance.run_job("like", "command = 'true'\n[roles.taskrole]\n[roles.taskrole_1]\n[roles.a_b]\n[roles.ab]\n");
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let (spec, found) = trainyard::spec::parse("a.toml", "command = 'true'\n[roles.a-b]\n[roles.a_b]\n");
    let told: String = found.iter().map(ToString::to_string).collect();
    assert!(spec.is_none() && told.contains("\"a-b\"") && told.contains("\"a_b\""), "{told}");
    instance.shutdown();
}

/// volcano-sh/volcano#1046: one of each was a success.
#[test]
fn volcano_1046_one_success_and_one_failure_are_no_success() {
    let Some(instance) = Instance::start("volcano_1046_one_success_and_one_failure_are_no_success", "") else { return };
    let report = instance.run_job("mixed", "command = 'exit $TRAINYARD_TASK_INDEX'\n[roles.w]\ncount = 2");
    assert_eq!(report["state"], "failed", "{report:#}");
    assert!(reason(&report).contains("w-1 exited with code 1"), "{report:#}");
    instance.shutdown();
}

/// kubeflow/trainer#1579: when a worker failed the master ran on for ever.
#[test]
fn trainer_1579_a_failed_worker_stops_its_master_and_is_told_as_the_cause() {
    let test = "trainer_1579_a_failed_worker_stops_its_master_and_is_told_as_the_cause";
    let Some(instance) = Instance::start(test, "") else { return };
    let job = "[roles.master]\ncommand = 'sleep 1000.875'\n[roles.worker]\ncommand = 'sleep 0.1; exit 3'\n";
    let report = instance.run_job("gang", job);
    assert_eq!(report["state"], "failed", "{report:#}");
    assert!(reason(&report).contains("worker-0 exited with code 3"), "{report:#}");
    instance.shutdown();
}

/// dstackai/dstack#4285: the end of the log was lost when a task was stopped.
#[test]
fn dstack_4285_the_end_of_the_log_is_there_after_a_stop() {
    let Some(instance) = Instance::start("dstack_4285_the_end_of_the_log_is_there_after_a_stop", "") else { return };
    let script =
        "nohup sleep 1000.9375 & e=0; while e=$((e + 1)); do printf '%07d\\n' $e; echo $e >> /output/all; done";
    instance.drop_job("tail", &format!("stop_grace = \"300ms\"\ncommand = {script:?}"));
    wait_for("some output", || (instance.log("tail", "main-0").lines().count() > 500).then_some(()));
    instance.ok(&["stop", "tail"]);
    instance.wait_end("tail", 1);
    let all = fs::read_to_string(instance.run_dir("tail", 1).join("output/all")).unwrap();
    let last: u64 = all.lines().filter_map(|line| line.parse().ok()).next_back().unwrap();
    let log = instance.log("tail", "main-0");
    let numbers: Vec<u64> = log.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "none is missing");
    // It may have been killed between the two writes.
    let end = *numbers.last().unwrap();
    assert!(end == last || end == last + 1, "the log ends at {end}, the task at {last}");
    instance.shutdown();
}

/// microsoft/pai#1178, and its rule of 200 MB: no code is no error, too much of it is one.
#[test]
fn pai_1178_empty_code_runs_and_too_much_of_it_is_refused_with_its_size() {
    let test = "pai_1178_empty_code_runs_and_too_much_of_it_is_refused_with_its_size";
    let Some(instance) = Instance::start(test, "") else { return };
    let code = instance.root().join("var/lib/trainyard/workspaces/default/code");
    for name in ["empty", "large"] {
        fs::create_dir_all(code.join(name)).unwrap();
    }
    fs::File::create(code.join("large/weights")).unwrap().set_len(200_000_001).unwrap();
    let job =
        |name: &str, contract: &str| format!("contract = {contract:?}\ncode = {name:?}\ncommand = 'ls /code | wc -l'");
    let report = instance.run_job("empty", &job("empty", "openpai"));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let report = instance.run_job("large", &job("large", "openpai"));
    assert!(reason(&report).contains("200000001 bytes"), "{report:#}");
    assert_eq!(instance.run_job("elsewhere", &job("large", "native"))["state"], "succeeded", "its rule is its own");
    instance.shutdown();
}
