//! From `rename()` into `jobs.d` to the first instruction of the user's program, beside what else starts it:
//! `runc run` of the same bundle, bare `unshare`, `podman run --rootfs`. Interleaved; median and 95th percentile in ms.
//!
//!     cargo bench --bench start [-- ROUNDS]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark drives processes"
)]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use support::{Instance, wait_for};

/// Prints the time at which it runs, ns since 1970.
const PROGRAM: [&str; 2] = ["/bin/date", "+%s%N"];

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

fn millis(from: u128, printed: &str) -> Option<f64> {
    let ran: u128 = printed.trim().parse().ok()?;
    Some(ran.saturating_sub(from) as f64 / 1e6)
}

fn main() {
    let rounds: u32 = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(50);
    let Some(instance) = Instance::start("bench start", "") else { return };
    let bundle = Bundle::like_ours(&instance);
    let mut results: Vec<(&str, Vec<f64>)> =
        ["trainyard", "trainyard, network host", "runc run", "unshare", "podman run --rootfs"]
            .map(|name| (name, Vec::new()))
            .into();
    for round in 0..rounds {
        let measured = [
            ours(&instance, &format!("t{round}"), ""),
            ours(&instance, &format!("h{round}"), "network = \"host\"\n"),
            bundle.runc(round),
            output_of(
                Command::new("unshare").args(["-m", "-u", "-i", "-n", "-p", "-C", "-f", "--mount-proc"]).args(PROGRAM),
            ),
            bundle.podman(),
        ];
        for (result, time) in results.iter_mut().zip(measured) {
            result.1.extend(time);
        }
    }
    println!("{:<26}{:>8}{:>8}{:>8}", "start of /bin/date, ms", "median", "p95", "runs");
    for (name, mut times) in results {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied();
        match (at(0.5), at(0.95)) {
            (Some(median), Some(p95)) => println!("{name:<26}{median:>8.1}{p95:>8.1}{:>8}", times.len()),
            _ => println!("{name:<26}  SKIPPED: it is not installed or does not run here"),
        }
    }
    bundle.unmount();
}

fn ours(instance: &Instance, job: &str, extra: &str) -> Option<f64> {
    let aside = instance.jobs_d().join(format!(".{job}"));
    fs::write(&aside, format!("{extra}command = {PROGRAM:?}\n")).unwrap();
    let log = instance.run_dir(job, 1).join("attempts/1/main-0/stdout.log");
    let from = now();
    fs::rename(aside, instance.jobs_d().join(format!("{job}.toml"))).unwrap();
    let printed = wait_for("the output", || fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n')));
    // Nothing of this start may run beside the next competitor.
    instance.wait_end(job, 1);
    millis(from, &printed)
}

fn output_of(command: &mut Command) -> Option<f64> {
    let from = now();
    let output = command.output().ok().filter(|output| output.status.success())?;
    millis(from, &String::from_utf8_lossy(&output.stdout))
}

/// The bundle of one of our tasks, with its root file system mounted beforehand.
struct Bundle {
    path: PathBuf,
    rootfs: PathBuf,
}

impl Bundle {
    fn like_ours(instance: &Instance) -> Self {
        instance.drop_job("model", "command = \"sleep 1000\"");
        instance.wait_state("model", "running");
        let task = instance.root().join("var/lib/trainyard/attempts/a1/0");
        let path = instance.root().join("bundle");
        let rootfs = path.join("rootfs");
        fs::create_dir_all(&path).unwrap();
        let copied = Command::new("cp").arg("-a").arg(task.join("rootfs")).arg(&rootfs).status().unwrap();
        assert!(copied.success());
        let launch: Value = serde_json::from_slice(&fs::read(task.join("task.json")).unwrap()).unwrap();
        for layer in launch["layers"].as_array().unwrap() {
            mount(layer, &path, &rootfs);
        }
        let mut config: Value = serde_json::from_slice(&fs::read(task.join("config.json")).unwrap()).unwrap();
        config["process"]["args"] = json!(PROGRAM);
        config["linux"]["cgroupsPath"] = json!("/trainyard-bench/runc");
        for namespace in config["linux"]["namespaces"].as_array_mut().unwrap() {
            namespace.as_object_mut().unwrap().remove("path");
        }
        // runc allows the standard devices by itself only when nothing is said of devices.
        config["linux"]["resources"].as_object_mut().unwrap().remove("devices");
        fs::write(path.join("config.json"), config.to_string()).unwrap();
        instance.ok(&["stop", "model"]);
        instance.wait_end("model", 1);
        let output = instance.root().join("var/lib/trainyard/workspaces/default/jobs/model/runs/1");
        assert!(output.exists());
        Self { path, rootfs }
    }

    fn runc(&self, round: u32) -> Option<f64> {
        output_of(Command::new("runc").args(["run", "--bundle"]).arg(&self.path).arg(format!("bench{round}")))
    }

    fn podman(&self) -> Option<f64> {
        output_of(
            Command::new("podman")
                .args([
                    "--cgroup-manager=cgroupfs",
                    "run",
                    "--rm",
                    "--network=none",
                    "--ulimit=nofile=1024:1024",
                    "--ulimit=nproc=4096:4096",
                    "--rootfs",
                ])
                .arg(&self.rootfs)
                .args(PROGRAM),
        )
    }

    fn unmount(&self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = self.rootfs.display().to_string();
        for target in
            mounts.lines().rev().filter_map(|line| line.split(' ').nth(4)).filter(|target| target.starts_with(&ours))
        {
            let _ = Command::new("umount").args(["-l", target]).status();
        }
    }
}

fn mount(layer: &Value, bundle: &Path, rootfs: &Path) {
    let Some(overlay) = layer.get("overlay") else { return };
    let name = overlay["name"].as_str().unwrap();
    let lower: Vec<&str> = overlay["lower"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let (upper, work) = (bundle.join("upper").join(name), bundle.join("work").join(name));
    fs::create_dir_all(&upper).unwrap();
    fs::create_dir_all(&work).unwrap();
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.join(":"), upper.display(), work.display());
    let done = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(rootfs.join(name))
        .status()
        .unwrap();
    assert!(done.success());
}
