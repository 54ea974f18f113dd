//! A process that the kernel does not let go of, killed or not: it waits for the answer of a file system that never comes.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::crash::left_of_attempts;
use super::support::{Instance, pids_with, text, wait_for};

fn silent(beside: i32) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", include_str!("silent.py"), "/tmp/silent", &beside.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "mounted");
    (child, lines)
}

#[test]
fn a_process_that_hangs_in_the_kernel_is_told_and_goes_when_it_can() {
    let test = "a_process_that_hangs_in_the_kernel_is_told_and_goes_when_it_can";
    let Some(instance) = Instance::start(test, "") else { return };
    let script = "until grep -q silent /proc/self/mounts; do sleep 0.02; done; exec cat /tmp/silent/1000.625";
    instance.drop_job("hang", &format!("stop_grace = \"200ms\"\ncommand = {script:?}"));
    instance.wait_state("hang", "running");
    let task = wait_for("its command", || {
        pids_with("1000.625").into_iter().find(|(_, line)| line.starts_with("/bin/sh")).map(|(pid, _)| pid)
    });
    let (mut server, mut questions) = silent(task);
    assert!(questions.next().unwrap().unwrap().parse::<u32>().is_ok(), "the command asks, and waits");
    instance.ok(&["stop", "hang"]);
    let stopping = wait_for("the word on what hangs", || {
        instance.report("hang").filter(|report| text(&report["reason"]).contains("hanging in the kernel"))
    });
    assert_eq!(stopping["state"], "stopping", "over is over: not while something of it is there");
    for reason in [text(&stopping["reason"]), text(&stopping["tasks"][0]["reason"])] {
        assert!(reason.contains("stopped by") && reason.contains(&format!("pid {task} (cat)")), "{reason}");
    }
    assert!(!pids_with("1000.625").is_empty(), "it is still there");
    // Its group and its mounts stay while it does, and others are not held up.
    let after = instance.run_job("after", "command = \"echo free\"");
    assert_eq!(after["state"], "succeeded", "{after:#}");
    server.kill().unwrap();
    server.wait().unwrap();
    let report = instance.wait_end("hang", 1);
    assert_eq!(report["state"], "stopped", "{report:#}");
    assert_eq!(pids_with("1000.625"), []);
    wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
    instance.shutdown();
}
