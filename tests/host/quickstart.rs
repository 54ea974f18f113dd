//! The README's first command, as a newcomer runs it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::support::{BINARY, can_run, processes_with, wait_for};

fn quickstart(root: &std::path::Path) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/quickstart");
    let mut command = Command::new("unshare");
    command.args(["--net", script, "--binary", BINARY, "--root"]).arg(root).stdin(Stdio::null());
    command
}

fn assert_nothing_is_left(root: &std::path::Path) {
    let root = root.display().to_string();
    assert_eq!(processes_with(&root), Vec::<String>::new());
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&root));
    let config = trainyard::config::Config::load(std::path::Path::new(&root)).unwrap();
    let group = format!("/trainyard-{}", config.paths.instance());
    assert_eq!(trainyard::sys::cgroup::children(&group).unwrap(), Vec::<String>::new());
}

#[test]
fn it_works_and_works_again_with_the_same_model() {
    if !can_run("it_works_and_works_again_with_the_same_model") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("demo");
    let mut models = Vec::new();
    for run in 1..=2 {
        let output = quickstart(&root).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{told} {}", String::from_utf8_lossy(&output.stderr));
        for word in ["epoch=12/12", "model.json", "shutdown", "default/jobs/digits/status"] {
            assert!(told.contains(word), "{word}: {told}");
        }
        let model =
            std::fs::read(root.join(format!("var/lib/trainyard/workspaces/default/models/digits/{run}/model.json")))
                .unwrap();
        let json: serde_json::Value = serde_json::from_slice(&model).unwrap();
        assert!(json["test_accuracy"].as_f64().unwrap() >= 0.90, "{json}");
        models.push(model);
    }
    assert_eq!(models[0], models[1], "the same seed gives the same model, bit for bit");
    let stopped = Command::new(BINARY).arg("--root").arg(&root).arg("shutdown").output().unwrap();
    assert!(stopped.status.success());
    assert_nothing_is_left(&root);
}

#[test]
fn control_c_leaves_nothing_behind() {
    if !can_run("control_c_leaves_nothing_behind") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("demo");
    let mut script = quickstart(&root).process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let log = root.join("var/lib/trainyard/workspaces/default/jobs/digits/runs/1/attempts/1/worker-0/stdout.log");
    wait_for("the training", || std::fs::metadata(&log).is_ok_and(|log| log.len() > 0).then_some(()));
    // What a terminal does: SIGINT to the whole foreground group.
    let group = nix::unistd::Pid::from_raw(i32::try_from(script.id()).unwrap());
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGINT).unwrap();
    let status = wait_for("the script's end", || script.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
    assert_nothing_is_left(&root);
}
