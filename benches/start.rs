//! From `rename()` into `jobs.d` to the first instruction of the user's program, and to the end of `/bin/true`, beside
//! what else starts it: `runc run` of the same bundle (an image of several layers, with a user namespace), bare
//! `unshare`, `podman run --rootfs`. Interleaved; median and 95th percentile in ms.
//!
//!     TMPDIR=/dev/shm cargo bench --bench start [-- ROUNDS]
//!
//! On a file system in memory: a disk that is told of what was deleted (`discard`) is slower after each run, for whichever
//! build; how long it takes to write the daemon's records there is not what is compared.
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
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use support::{Instance, wait_for};

/// What is started, and which moment of it counts.
#[derive(Debug, Clone, Copy)]
enum Measure {
    /// The program prints the time at which it runs, ns since 1970.
    FirstInstruction,
    /// Everybody knows of its end.
    End,
}

impl Measure {
    fn program(self) -> &'static [&'static str] {
        match self {
            Self::FirstInstruction => &["/bin/date", "+%s%N"],
            Self::End => &["/bin/true"],
        }
    }
}

/// Where runc has its control groups.
const GROUP: &str = "trainyard-bench";

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
    // Three layers, a user namespace.
    let image = format!("image = \"oci:{}:py\"\n", support::images::debian().display());
    let bundle = Bundle::like_ours(&instance, &image);
    for (measure, title) in [
        (Measure::FirstInstruction, "to the first instruction of /bin/date, ms"),
        (Measure::End, "to the end of /bin/true, ms"),
    ] {
        compare(&instance, &bundle, &image, measure, title, rounds);
    }
    bundle.unmount();
    remove_groups();
}

/// What runc leaves: it removes its own group, not the one above.
fn remove_groups() {
    let roots = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for root in std::iter::once(PathBuf::from("/sys/fs/cgroup")).chain(roots) {
        // Only an empty one can be removed.
        let _ = fs::remove_dir(root.join(GROUP));
    }
}

fn compare(instance: &Instance, bundle: &Bundle, image: &str, measure: Measure, title: &str, rounds: u32) {
    let mut results: Vec<(&str, Vec<f64>)> =
        ["trainyard", "trainyard, host image and network", "runc run", "unshare", "podman run --rootfs"]
            .map(|name| (name, Vec::new()))
            .into();
    bundle.set_program(measure);
    for round in 0..rounds {
        let bare = ["-m", "-u", "-i", "-n", "-p", "-C", "-f", "--mount-proc"];
        let measured = [
            ours(instance, &format!("{measure:?}-t{round}"), image, measure),
            ours(instance, &format!("{measure:?}-h{round}"), "network = \"host\"\n", measure),
            output_of(
                Command::new("runc").args(["run", "--bundle"]).arg(&bundle.path).arg(format!("{measure:?}{round}")),
                measure,
            ),
            output_of(Command::new("unshare").args(bare).args(measure.program()), measure),
            bundle.podman(measure),
        ];
        for (result, time) in results.iter_mut().zip(measured) {
            result.1.extend(time);
        }
    }
    println!("{title:<44}{:>8}{:>8}{:>8}", "median", "p95", "runs");
    for (name, mut times) in results {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied();
        match (at(0.5), at(0.95)) {
            (Some(median), Some(p95)) => println!("{name:<44}{median:>8.1}{p95:>8.1}{:>8}", times.len()),
            _ => println!("{name:<44}  SKIPPED: it is not installed or does not run here"),
        }
    }
}

fn memory_mib(pid: u32, field: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}

fn ours(instance: &Instance, job: &str, extra: &str, measure: Measure) -> Option<f64> {
    let aside = instance.jobs_d().join(format!(".{job}"));
    fs::write(&aside, format!("{extra}command = {:?}\n", measure.program())).unwrap();
    let log = instance.run_dir(job, 1).join("attempts/1/main-0/stdout.log");
    let from = now();
    fs::rename(aside, instance.jobs_d().join(format!("{job}.toml"))).unwrap();
    // Nothing of this start may run beside the next competitor. The end is when the daemon has the job's success on disk.
    match measure {
        Measure::FirstInstruction => {
            let printed = wait_for("the output", || fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n')));
            instance.wait_end(job, 1);
            millis(from, &printed)
        }
        Measure::End => {
            // Asked rarely: whoever asks takes from what is measured.
            let report = wait_for("the end", || {
                std::thread::park_timeout(Duration::from_millis(200));
                instance.report(job).filter(|report| report["ended"].is_string())
            });
            let ended: jiff::Timestamp = report["ended"].as_str().unwrap().parse().unwrap();
            Some(ended.as_millisecond() as f64 - from as f64 / 1e6)
        }
    }
}

fn output_of(command: &mut Command, measure: Measure) -> Option<f64> {
    let from = now();
    let output = command.output().ok().filter(|output| output.status.success())?;
    match measure {
        Measure::FirstInstruction => millis(from, &String::from_utf8_lossy(&output.stdout)),
        Measure::End => Some(now().saturating_sub(from) as f64 / 1e6),
    }
}

/// The bundle of one of our tasks, with its root file system mounted beforehand.
struct Bundle {
    path: PathBuf,
    rootfs: PathBuf,
}

impl Bundle {
    fn like_ours(instance: &Instance, image: &str) -> Self {
        instance.drop_job("model", &format!("{image}command = \"sleep 1000\""));
        instance.wait_state("model", "running");
        let attempts = instance.root().join("var/lib/trainyard/attempts");
        let attempt = fs::read_dir(attempts).unwrap().next().unwrap().unwrap().path();
        let task = attempt.join("0");
        let shim: u32 = fs::read_to_string(task.join("lock")).unwrap().parse().unwrap();
        let (own, private) = (memory_mib(shim, "Anonymous:"), memory_mib(shim, "Private_Dirty:"));
        println!(
            "a shim beside its running task: {own:.1} MiB of its own; {private:.1} MiB with what all shims share of the"
        );
        println!("program, which lies in memory and counts as private dirty while there is only one");
        let path = instance.root().join("bundle");
        let rootfs = path.join("rootfs");
        fs::create_dir_all(&rootfs).unwrap();
        let launch: Value = serde_json::from_slice(&fs::read(task.join("task.json")).unwrap()).unwrap();
        for overlay in launch["root"]["overlays"].as_array().unwrap() {
            mount(overlay, &path, &rootfs);
        }
        let config: Value = serde_json::from_slice(&fs::read(task.join("config.json")).unwrap()).unwrap();
        fs::write(path.join("config.json"), for_runc(config, &launch, &rootfs).to_string()).unwrap();
        instance.ok(&["stop", "model"]);
        instance.wait_end("model", 1);
        Self { path, rootfs }
    }

    fn set_program(&self, measure: Measure) {
        let path = self.path.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["process"]["args"] = json!(measure.program());
        fs::write(path, config.to_string()).unwrap();
    }

    fn podman(&self, measure: Measure) -> Option<f64> {
        // crun, its default, runs on no machine with both versions of control groups.
        let words = ["--runtime=runc", "--cgroup-manager=cgroupfs", "run", "--rm", "--network=none"];
        let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--rootfs"];
        let mut command = Command::new("podman");
        output_of(command.args(words).args(limits).arg(&self.rootfs).args(measure.program()), measure)
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

/// Our configuration with what our shim does beforehand put back: the user namespace, `/dev`, `/sys`, a network.
fn for_runc(mut config: Value, launch: &Value, rootfs: &Path) -> Value {
    let mappings = |kind: &str| {
        let ranges = launch["ids"][kind].as_array().unwrap().iter();
        let one = |range: &Value| json!({ "containerID": range["inside"], "hostID": range["outside"], "size": range["count"] });
        ranges.map(one).collect::<Vec<_>>()
    };
    config["root"]["path"] = json!(rootfs);
    config["linux"]["cgroupsPath"] = json!(format!("/{GROUP}/runc"));
    config["linux"]["uidMappings"] = json!(mappings("users"));
    config["linux"]["gidMappings"] = json!(mappings("groups"));
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    for namespace in namespaces.iter_mut() {
        namespace.as_object_mut().unwrap().remove("path");
    }
    namespaces.push(json!({ "type": "network" }));
    let mount = |target: &str, kind: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": kind, "options": options });
    let mounts = config["mounts"].as_array_mut().unwrap();
    mounts.insert(1, mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]));
    mounts.push(mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777"]));
    mounts.push(mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]));
    config
}

fn mount(overlay: &Value, bundle: &Path, rootfs: &Path) {
    let name = overlay["name"].as_str().unwrap();
    let lower: Vec<&str> = overlay["lower"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let (upper, work) = (bundle.join("upper").join(name), bundle.join("work").join(name));
    fs::create_dir_all(&upper).unwrap();
    fs::create_dir_all(&work).unwrap();
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.join(":"), upper.display(), work.display());
    let done = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(rootfs.join(overlay["target"].as_str().unwrap()))
        .status()
        .unwrap();
    assert!(done.success());
}
