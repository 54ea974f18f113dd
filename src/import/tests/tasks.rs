//! Jobs in the form that OpenPAI had before its protocol v2.

use super::*;

const JOB: &str = r#"
protocol_version: v2
name: digits_ps
type: job
version: 1.0.0
contributor: ada
description: two workers and a server
retryCount: 0
parameters:
  lr: 0.5
  workers: 2
  rate: fast
  idle: 1
tasks:
  - role: worker
    data: digits
    script: trainer
    dockerimage: torch
    resource:
      instances: $$workers$$
      resourcePerInstance: { cpu: 2, memoryMB: 4096, gpu: 1, shmMB: 128 }
      portList: [{ label: board, beginAt: 0, portNumber: 2 }]
    minSucceededTaskCount: 1
    command:
      - python trainer/train.py --lr $$lr$$ --data $$data$$ --pid $$
      - echo done
    parameters:
      # Those of the job are not looked for where a task has its own.
      lr: $$lr$$
      workers: $$workers$$
      data: digits
      rate: $$rate$$
  - role: server
    dockerimage: plain
    resource:
      instances: 1
      resourcePerInstance: { cpu: 1, memoryMB: 1024 }
    minFailedTaskCount: null
    command: ["python serve.py --lr $$lr$$ --x $$unknown$$"]
prerequisites:
  - { protocol_version: v2, name: digits, type: data, uri: "https://lab.example/files/digits-1.tar.gz" }
  - { name: trainer, type: script, uri: "https://github.com/lab/train@6a33b4a", usage: { roles: [] } }
  - { name: torch, type: dockerimage, uri: "lab/torch:1" }
  - { name: plain, type: dockerimage, uri: "lab/plain:1" }
"#;

#[test]
fn a_job_of_openpai_before_v2_becomes_what_its_server_made_of_it() {
    let job = only(JOB);
    let spec = spec_of(&job);
    let worker = role(&spec, "worker");
    let lines = [
        "export PAI_CURRENT_DIR=`pwd`",
        "wget https://lab.example/files/digits-1.tar.gz",
        "gunzip digits-1.tar.gz",
        "mkdir digits",
        "tar xvf digits-1.tar -C digits --strip-components 1",
        "git clone https://github.com/lab/train",
        "cd train; git checkout 6a33b4a; cd ..",
        "mv train trainer",
        "python trainer/train.py --lr 0.5 --data digits --pid $$",
        "echo done",
    ];
    assert_eq!(worker.command, Command::Shell(lines.join("\n")));
    assert_eq!((worker.count, worker.min_succeeded), (2, MinSucceeded::Count(1)));
    assert_eq!((worker.resources.gpu, worker.resources.shm), (1, crate::ids::Bytes::mib(128)));
    assert_eq!((worker.ports[0].label.as_str(), worker.ports[0].count), ("board", 2));
    let server = role(&spec, "server");
    assert_eq!(server.min_failed, None);
    let command = "export PAI_CURRENT_DIR=`pwd`\npython serve.py --lr 0.5 --x $$unknown$$";
    assert_eq!(server.command, Command::Shell(command.to_owned()));
    assert!(job.toml.contains("contract = \"openpai\"") && job.toml.contains("lab/plain:1"), "{}", job.toml);
    assert_eq!(job.name, "digits_ps");
    assert_eq!(fields(&job), ["$$unknown$$", "parameters.idle"]);
}

#[test]
fn what_openpai_s_server_refused_before_v2_is_refused_by_its_own_field() {
    for (from, to, told) in [
        ("script: trainer", "script: trainer2", "`tasks[0].script` names \"trainer2\""),
        ("dockerimage: plain", "dockerimage: plain\n    data: x", "`tasks[1].data` names \"x\""),
        ("    dockerimage: plain\n", "", "`tasks[1].dockerimage` is missing"),
        ("instances: 1\n", "instances: 0\n", "`tasks[1].resource.instances` is 0"),
        ("minSucceededTaskCount: 1", "minSucceededTaskCount: 3", "waits for 3 succeeded tasks"),
        ("type: data", "type: datum", "`prerequisites[0].type` is \"datum\""),
        ("train@6a33b4a", "train@$(id)", "`prerequisites[1].uri` or its name holds what a shell"),
        ("name: digits,", "name: \"a;b\",", "`prerequisites[0].uri` or its name holds what a shell"),
    ] {
        let told_of = refusal(&JOB.replacen(from, to, 1));
        assert!(told_of.contains(told), "{told_of}");
    }
}

#[test]
fn names_that_stand_for_each_other_without_end_are_left() {
    let long = "x".repeat(200_000);
    let many = "$$lr$$ ".repeat(1000);
    let text = JOB.replacen("lr: 0.5", &format!("lr: {long}"), 1).replacen("echo done", &many, 1);
    let told = import(&text).map(|contents| contents.jobs[0].losses.len());
    assert!(told.is_err() || told.is_ok_and(|losses| losses > 900));
}
