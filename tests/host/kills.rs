//! The daemon and shims killed at each step that can be told from outside, from the first byte of a pull to the mounts of
//! a task: after the next start nothing is half, nothing is left, and every end is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::crash::left_of_attempts;
use super::images::whole_layers;
use super::support::images::{Registry, in_network, small};
use super::support::{Instance, PATIENCE, has_tools, text, wait_for};

/// Layers of the image, with the one of directories that no upper layer describes.
const LAYERS: usize = 4;

/// Looks without a pause: what is waited for may be over in a millisecond.
fn watch_for(mut look: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if look() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Three layers, of which the upper two only imply a directory that the first has with a mode of its own.
fn layered(dir: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let image = small(dir, &[], |root| {
        fs::create_dir(root.join("data")).unwrap();
        fs::set_permissions(root.join("data"), fs::Permissions::from_mode(0o751)).unwrap();
        fs::create_dir(root.join("tmp")).unwrap();
    });
    let (oci, _) = image.strip_prefix("oci:").unwrap().rsplit_once(':').unwrap();
    for layer in ["one", "two"] {
        let files = dir.join(layer);
        fs::create_dir_all(files.join("data")).unwrap();
        let noise = Command::new("head").args(["-c", "6000000", "/dev/urandom"]).output().unwrap().stdout;
        fs::write(files.join("data").join(layer), noise).unwrap();
        let tar = dir.join(format!("{layer}.tar"));
        let made = Command::new("tar").arg("-C").arg(&files).arg("-cf").arg(&tar).arg(format!("data/{layer}")).status();
        assert!(made.unwrap().success());
        let added = Command::new("umoci").args(["raw", "add-layer", "--image", &format!("{oci}:t")]).arg(&tar).status();
        assert!(added.unwrap().success());
    }
    image
}

/// What can be seen of a job's way to its first instruction.
struct Way<'a> {
    instance: &'a Instance,
    store: PathBuf,
    job: String,
}

impl Way<'_> {
    fn stored(&self, part: &str) -> usize {
        fs::read_dir(self.store.join(part)).map_or(0, Iterator::count)
    }

    /// The directory of the attempt's first task.
    fn task(&self) -> Option<PathBuf> {
        let attempts = fs::read_dir(self.instance.root().join("var/lib/trainyard/attempts")).ok()?;
        attempts.flatten().map(|attempt| attempt.path().join("0")).next()
    }

    fn has(&self, file: &str) -> bool {
        self.task().is_some_and(|task| task.join(file).exists())
    }

    fn has_network(&self, kind: &str) -> bool {
        let links = fs::read_to_string(format!("/proc/{}/net/dev", self.instance.network_holder())).unwrap();
        links.lines().any(|line| line.trim_start().starts_with(kind))
    }

    fn is_given_its_image(&self) -> bool {
        self.instance.run_dir(&self.job, 1).with_file_name(".1.image").exists()
    }

    fn shim(&self) -> Option<i32> {
        fs::read_to_string(self.task()?.join("lock")).ok()?.parse().ok()
    }

    /// The processes that ask the registry.
    fn asking(&self) -> Vec<i32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.instance.daemon_pid())).into_iter().flatten().flatten();
        let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let all = lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>());
        all.filter(|pid| is_asking(*pid)).collect()
    }

    fn has_output(&self) -> bool {
        self.instance.run_dir(&self.job, 1).join("output/started").exists()
    }
}

fn is_asking(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == b"trainyard\0registry\0")
}

type Step = (&'static str, fn(&Way<'_>) -> bool);

/// In the order in which they come.
const STEPS: [Step; 20] = [
    ("a question to the registry", |way| !way.asking().is_empty()),
    ("the first byte of a download", |way| way.stored("downloads") > 0),
    ("the second download", |way| way.stored("downloads") > 1),
    ("all downloads", |way| way.stored("downloads") > 2),
    ("the first draft of a layer", |way| way.stored("drafts") > 0),
    ("the first layer", |way| way.stored("layers") > 0),
    ("the second layer", |way| way.stored("layers") > 1),
    ("all layers", |way| way.stored("layers") > 2),
    ("the layer on top", |way| way.stored("layers") >= LAYERS),
    ("the image's record", |way| way.stored("manifests") > 0),
    ("the image's name", |way| way.stored("names/workspace-default") > 0),
    ("the run's own note of its image", |way| way.is_given_its_image()),
    ("the attempt's bridge", |way| way.has_network("ty")),
    ("a task's directory", |way| way.task().is_some()),
    ("a task's link", |way| way.has_network("tv")),
    ("the container's configuration", |way| way.has("config.json")),
    ("the order to the shim", |way| way.has("task.json")),
    ("the shim", |way| way.shim().is_some()),
    ("the command at work", |way| way.has_output()),
    ("the end of a task", |way| way.has("exit.json")),
];

#[test]
fn a_daemon_killed_at_each_step_from_a_pull_to_the_end_leaves_nothing_half_and_starts_nothing_twice() {
    const TEST: &str =
        "a_daemon_killed_at_each_step_from_a_pull_to_the_end_leaves_nothing_half_and_starts_nothing_twice";
    if !has_tools(TEST, &["umoci", "busybox", "skopeo", "docker-registry", "ip"]) {
        return;
    }
    let config = "[limits]\ncpu = 16\nmemory = \"16GiB\"\n[network]\nrange = \"10.213.0.0/16\"\n\
        [images]\nplain_http = [\"127.0.0.1:5000\"]\n";
    let Some(mut instance) = Instance::start(TEST, config) else { return };
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(dir.path(), instance.network_holder(), None, 5000);
    let name = format!("{}/team/layered:1", registry.address);
    let copy = ["copy", "--quiet", "--dest-tls-verify=false", &layered(dir.path()), &format!("docker://{name}")];
    in_network(instance.network_holder(), "skopeo", &copy);
    let store = instance.root().join("var/lib/trainyard/images");
    let mut in_time = 0;
    for (number, (step, is_there)) in STEPS.into_iter().enumerate() {
        let job = format!("k{number}");
        let words = ["/bin/busybox", "sh", "-c", "echo s >> /output/started; /bin/busybox sleep 0.2; exit 3"];
        instance.drop_job(&job, &format!("image = {name:?}\ncommand = {words:?}\n[roles.a]\n[roles.b]\n"));
        let way = Way { instance: &instance, store: store.clone(), job: job.clone() };
        assert!(watch_for(|| is_there(&way) || way.has("exit.json")), "{step} never came");
        let asking = way.asking();
        in_time += usize::from(!way.has("exit.json"));
        instance.kill_daemon();
        wait_for("nobody to ask for it any more", || (!asking.iter().any(|pid| is_asking(*pid))).then_some(()));
        whole_layers(&store);
        instance.restart_daemon();
        whole_layers(&store);
        let report = instance.wait_end(&job, 1);
        assert_eq!((text(&report["state"]), &report["attempt"]), ("failed".into(), &1.into()), "{step}: {report:#}");
        let reason = text(&report["reason"]);
        assert!(reason.contains("exited with code 3"), "{step}: {reason}");
        let started = fs::read_to_string(instance.run_dir(&job, 1).join("output/started")).unwrap();
        assert!(started.lines().count() <= 2, "{step}: each task starts once: {started}");
        wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
        let way = Way { instance: &instance, store: store.clone(), job };
        assert_eq!((way.stored("drafts"), way.stored("downloads")), (0, 0), "{step}");
        assert_eq!(whole_layers(&store), LAYERS, "{step}");
        // The next one fetches it anew.
        fs::remove_file(instance.jobs_d().join(format!("{}.toml", way.job))).unwrap();
        wait_for("the record to go", || instance.cli(&["rm", &way.job]).status.success().then_some(()));
        instance.ok(&["image", "rm", &name]);
        instance.ok(&["image", "prune"]);
        assert_eq!((whole_layers(&store), way.stored("manifests")), (0, 0), "{step}");
    }
    assert!(in_time >= STEPS.len() / 2, "{in_time} of the kills came before a task had ended");
    instance.shutdown();
}

/// Mounts that a process sees.
fn mounts_of(pid: i32) -> usize {
    fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_or(0, |text| text.lines().count())
}

#[test]
fn a_shim_killed_between_any_two_of_its_mounts_leaves_none() {
    const TEST: &str = "a_shim_killed_between_any_two_of_its_mounts_leaves_none";
    if !has_tools(TEST, &["umoci", "busybox", "ip"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = layered(dir.path());
    let own = mounts_of(nix::unistd::getpid().as_raw());
    let mut counts = std::collections::BTreeSet::new();
    for number in 0..40usize {
        let job = format!("m{number}");
        let words = ["/bin/busybox", "sleep", "0.2"];
        instance.drop_job(&job, &format!("image = {image:?}\ncommand = {words:?}\n"));
        let way = Way { instance: &instance, store: PathBuf::new(), job: job.clone() };
        let mut shim = 0;
        assert!(watch_for(|| way.shim().is_some_and(|pid| {
            shim = pid;
            true
        })));
        // A shim takes apart and puts together: each change of what it sees is a step.
        let (mut seen, mut steps) = (mounts_of(shim), 0);
        watch_for(|| {
            let now = mounts_of(shim);
            steps += usize::from(now != seen);
            seen = now;
            steps >= number || now == 0 || way.has_output()
        });
        let _ = kill(Pid::from_raw(shim), Signal::SIGKILL);
        counts.insert(seen.abs_diff(own));
        let report = instance.wait_end(&job, 1);
        assert_eq!(report["tasks"][0]["phase"], "ended", "{report:#}");
        wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
        if seen == 0 {
            // It has ended by itself before so many steps.
            break;
        }
    }
    assert!(counts.len() > 1, "kills came at different steps: {counts:?}");
    instance.shutdown();
}
