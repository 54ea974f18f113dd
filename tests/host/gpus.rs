//! Machines whose cards are made up, by a library of our own and nodes of devices without a driver: to open one that may be opened
//! fails for want of the device, not for want of rights.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::Value;
use trainyard::gpu::nodes::{self, Places};

use super::nvml::{FakeNvml, card, uuid};
use super::support::{Instance, pids_with, wait_for};

/// An instance that finds its cards in a directory of its own; without a driver until that is installed.
pub(super) fn instance(test: &str) -> Option<(Instance, FakeNvml)> {
    let mut instance = Instance::prepare(test, "")?;
    let fake = FakeNvml::without_driver(instance.root());
    let limits = "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"2s\"\n[network]\nrange = \"10.213.0.0/16\"\n";
    // A real one would make nodes for which there are no cards.
    let maker = asked(&instance).with_file_name("maker");
    std::fs::write(&maker, format!("#!/bin/sh\necho \"$@\" >> {}\n", asked(&instance).display())).unwrap();
    std::fs::set_permissions(&maker, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (library, maker) = (fake.library(), maker.display());
    let config = format!("{limits}[gpu]\nlibrary = \"{}\"\nmodprobe = \"{maker}\"\n", library.display());
    std::fs::write(instance.root().join("etc/trainyard/trainyard.toml"), config).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    Some((instance, fake))
}

/// What nodes of devices were asked for, a line each.
fn asked(instance: &Instance) -> PathBuf {
    instance.root().join("asked")
}

pub(crate) fn list(instance: &Instance) -> Value {
    serde_json::from_str(&instance.ok(&["gpu", "--json"])).unwrap()
}

#[test]
fn a_driver_that_comes_while_the_daemon_runs_is_noticed_and_so_is_a_card_that_goes() {
    let Some((mut instance, fake)) = instance("a_driver_that_comes_while_the_daemon_runs") else { return };
    let missing = format!("no GPUs: {} not found\n", fake.library().display());
    assert_eq!(instance.ok(&["gpu"]), missing);
    let minors = [311, 313];
    let _nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    // Nobody asks.
    instance.wait_for_log("cards=2");
    assert_eq!(list(&instance)["gpus"].as_array().unwrap().len(), 2);
    fake.shows(&cards_at(&minors[..1], |_| String::new()));
    instance.wait_for_log("a card is not well");
    let found = list(&instance);
    assert_eq!((&found["gpus"][0]["health"], &found["gpus"][1]["health"]), (&"ok".into(), &"failed".into()));
    assert_eq!(found["gpus"][1]["findings"][0]["rule"], "lost");
    instance.shutdown();
}

#[test]
fn cards_are_shown_with_health_holders_and_ways_in_80_columns() {
    let Some((instance, fake)) = instance("cards_are_shown_in_80_columns") else { return };
    let own = std::process::id();
    let busy = format!(
        "used = 3221225472\nutilisation = 97\nprocesses = [{{ pid = {own}, bytes = 2147483648 }}]\nthrottle = 0x40\n\
         nvlinks = [\"00000000:1C:00.0\"]\necc = {{ corrected = 5, uncorrected = 0 }}\n\
         fields = {{ 142 = 3, 143 = 1, 144 = 0, 145 = 0 }}"
    );
    let sliced = "nvlinks = [\"00000000:1B:00.0\"]\nmig = [{ uuid = \"MIG-8b1d2f0a-0000-0000-0000-000000000000\", \
                  name = \"NVIDIA H100 80GB HBM3 MIG 1g.10gb\", memory = 10737418240 }]";
    let minors: Vec<u64> = (321..329).collect();
    let _nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |index| match index {
        0 => busy.clone(),
        1 => sliced.to_owned(),
        _ => String::new(),
    }));
    fake.install();
    wait_for("the cards", || (list(&instance)["gpus"].as_array().unwrap().len() == 8).then_some(()));
    let told = list(&instance)["gpus"][0].clone();
    let signs = ["ecc", "retired", "remapped", "slowed_by"].map(|key| told[key].to_string());
    let rows = r#"{"correctable":3,"failed":false,"pending":false,"uncorrectable":1}"#;
    assert_eq!(signs, [r#"{"corrected":5,"uncorrected":0}"#, "null", rows, r#"["heat"]"#]);
    let shown = instance.ok(&["gpu"]);
    let lines: Vec<&str> = shown.lines().collect();
    // What is wrong with a card is said in a sentence.
    let is_sentence = |line: &str| line.starts_with("GPU 0 warning") || line.starts_with("GPU 1 slice");
    let too_wide = lines.iter().filter(|line| line.chars().count() > 80 && !is_sentence(line));
    assert_eq!(too_wide.collect::<Vec<_>>(), Vec::<&&str>::new());
    let program = std::fs::read_to_string(format!("/proc/{own}/comm")).unwrap();
    let wanted = [
        "driver 580.95.05, CUDA 13.0, GPUs: 8".to_owned(),
        "GPU  HEALTH   USE  MEMORY       TEMP  POWER   NAME".to_owned(),
        "0    warning  97%  3.0/80.0GiB  40°C  71/700W  H100 80GB HBM3".to_owned(),
        "1    1g.10gb  10GiB   MIG-8b1d2f0a-0000-0000-0000-000000000000  -".to_owned(),
        format!("0    {own}  root  2048MiB  {}", program.trim_end()),
        "GPU 0 warning: slowed: its clocks are lowered for heat (40 °C)".to_owned(),
        "GPU  0    1    2    3    4    5    6    7    NUMA  CPUS".to_owned(),
        "0    X    NV1  SYS  SYS  SYS  SYS  SYS  SYS  0     0-1".to_owned(),
        format!("0    /dev/nvidia321  00000000:1b:00.0  {}", uuid(0)),
    ];
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all: Vec<String> = lines.iter().map(|line| squeezed(line)).collect();
    for line in wanted {
        assert!(all.contains(&squeezed(&line)), "{line:?} is missing in\n{shown}");
    }
    instance.shutdown();
}

/// Nodes of cards that no machine has, from 200 on, and those that all cards need.
pub(crate) struct Nodes {
    own: Vec<PathBuf>,
    /// Those of all tests that run: who holds this alone is the last one.
    common: File,
}

/// With the minor numbers that they have on real machines.
const COMMON: [(&str, u64, u64); 2] = [("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", NULL.0, NULL.1)];
/// `/dev/null`: what is opened to see whether its module is there has to have one.
const NULL: (u64, u64) = (1, 3);
/// Holds the paths that tests have made of these, and not found.
const COMMON_MADE: &str = "/run/trainyard-tests-nvidia";

const CAPABILITIES: &str = "/dev/nvidia-caps";
/// Of nodes in there: one that no driver has.
const CAPABILITIES_MAJOR: u64 = 300;

fn make_node(path: &Path, major: u64, minor: u64) -> Result<(), Errno> {
    mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    Ok(())
}

impl Nodes {
    pub(crate) fn make(minors: &[u64]) -> Self {
        let mut common = File::options().create(true).append(true).open(COMMON_MADE).unwrap();
        // Nobody removes them meanwhile.
        common.lock_shared().unwrap();
        for (path, major, minor) in COMMON {
            match make_node(Path::new(path), major, minor) {
                Ok(()) => writeln!(common, "{path}").unwrap(),
                Err(Errno::EEXIST) => {}
                Err(error) => panic!("{path}: {error}"),
            }
        }
        let mut nodes = Self { own: Vec::new(), common };
        minors.iter().for_each(|minor| nodes.add(format!("/dev/nvidia{minor}"), 195, *minor));
        nodes
    }

    fn add(&mut self, path: String, major: u64, minor: u64) {
        let path = PathBuf::from(path);
        // Of a test that was killed.
        let _ = std::fs::remove_file(&path);
        make_node(&path, major, minor).unwrap();
        self.own.push(path);
    }

    /// Nodes by which slices of the card with this minor number are reached: of each its instance and the number of its node, whose
    /// compute instance has the next one; from 60000 on, where no driver has any. Daemons of the instance that start from now on are
    /// told so in a `/proc/driver` of their own.
    pub(crate) fn add_slices(&mut self, instance: &mut Instance, card: u64, slices: &[(u32, u64)]) {
        if std::fs::create_dir(CAPABILITIES).is_ok() {
            writeln!(self.common, "{CAPABILITIES}").unwrap();
        }
        let told = instance.root().join("proc-driver");
        for (gpu_instance, number) in slices {
            let own = told.join(format!("nvidia/capabilities/gpu{card}/mig/gi{gpu_instance}"));
            std::fs::create_dir_all(own.join("ci0")).unwrap();
            for (access, minor) in [("access", *number), ("ci0/access", number + 1)] {
                let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
                std::fs::write(own.join(access), text).unwrap();
                self.add(format!("{CAPABILITIES}/nvidia-cap{minor}"), CAPABILITIES_MAJOR, minor);
            }
        }
        // In a user namespace, which tasks have, the kernel mounts a proc only where there is one of which nothing is covered.
        let whole = instance.root().join("proc");
        std::fs::create_dir_all(&whole).unwrap();
        instance.view = Some(format!(
            "mount -t proc proc {}; mount -t tmpfs driver /proc/driver; cp -R {}/. /proc/driver/",
            whole.display(),
            told.display()
        ));
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for path in &self.own {
            let _ = std::fs::remove_file(path);
        }
        if self.common.try_lock().is_ok() {
            let made = std::fs::read_to_string(COMMON_MADE).unwrap_or_default();
            made.lines().for_each(|path| drop(std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path))));
            let _ = self.common.set_len(0);
        }
    }
}

/// Cards whose devices are these.
pub(crate) fn cards_at(minors: &[u64], more: impl Fn(usize) -> String) -> String {
    let one = |(index, minor): (usize, &u64)| {
        card(index, &more(index)).replace(&format!("minor = {}\n", 7 - index), &format!("minor = {minor}\n"))
    };
    let cards: String = minors.iter().enumerate().map(one).collect();
    format!("driver = \"580.95.05\"\ncuda = 13000\n{cards}")
}

/// What becomes of opening each of these devices in the control group of a task, which has `sleep` and this number as its command.
pub(super) fn opened(number: &str, minors: &[u64]) -> String {
    opened_at(number, &minors.iter().map(|minor| format!("/dev/nvidia{minor}")).collect::<Vec<_>>())
}

fn opened_at(number: &str, paths: &[String]) -> String {
    let pid = wait_for("the task's process", || {
        let found = pids_with(number).into_iter().find(|(_, line)| line.starts_with("sleep"));
        found.map(|(pid, _)| pid)
    });
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let of_devices = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_own = controllers == "devices" || (controllers.is_empty() && groups.lines().count() == 1);
        is_own.then(|| format!("/sys/fs/cgroup/{controllers}{path}"))
    };
    let group = groups.lines().find_map(of_devices).unwrap();
    let opens: String = paths.iter().map(|path| format!("(: < {path}) 2>&1 | sed 's/.*: //'\n")).collect();
    let script = format!("echo $$ > {group}/cgroup.procs\n{opens}");
    let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    // A driver of which there is no such card says it in other words than a kernel without one.
    String::from_utf8(output.stdout).unwrap().replace("No such device\n", MAY)
}

pub(super) const MAY: &str = "No such device or address\n";
pub(super) const MAY_NOT: &str = "Operation not permitted\n";

#[test]
fn a_job_has_cards_of_its_own_and_can_open_no_others_and_the_next_one_gets_them_when_they_are_free() {
    let Some((mut instance, fake)) = instance("a_job_has_cards_of_its_own") else { return };
    let minors = [201, 203];
    let _nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    let job = |number: &str, cards: u32| {
        format!("image = \"host\"\ncommand = \"env; ls /dev; exec sleep {number}\"\nresources.gpu = {cards}\n")
    };
    instance.drop_job("none", &job("1110", 0));
    instance.drop_job("first", &job("1111", 1));
    instance.wait_state("first", "running");
    instance.drop_job("second", &job("1112", 1));
    for name in ["none", "second"] {
        instance.wait_state(name, "running");
    }
    assert_eq!(opened("1110", &minors), [MAY_NOT, MAY_NOT].concat());
    assert_eq!(opened("1111", &minors), [MAY, MAY_NOT].concat());
    assert_eq!(opened("1112", &minors), [MAY_NOT, MAY].concat());
    let seen = |job: &str| {
        wait_for("what it sees", || {
            let log = instance.log(job, "main-0");
            log.contains("zero").then_some(log)
        })
    };
    let first = seen("first");
    assert!(first.contains(&format!("NVIDIA_VISIBLE_DEVICES={}\n", uuid(0))), "{first}");
    assert!(first.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID\n") && !first.contains("CUDA_VISIBLE_DEVICES"), "{first}");
    assert!(first.contains("nvidia201\n") && !first.contains("nvidia203"), "{first}");
    let none = seen("none");
    assert!(!none.contains("NVIDIA") && !none.contains("nvidia20"), "{none}");
    instance.drop_job("third", &job("1113", 1));
    let waiting = || instance.report("third").map(|report| report["reason"].as_str().unwrap().to_owned());
    wait_for("it to wait", || waiting().filter(|why| why.contains("held by first and second")));
    let holder = |index: usize| list(&instance)["gpus"][index]["leased_by"].as_str().map(str::to_owned);
    assert_eq!([holder(0), holder(1)], [Some("first main-0".to_owned()), Some("second main-0".to_owned())]);
    assert!(instance.ok(&["gpu"]).contains("GPU  LEASED BY\n0    first main-0\n1    second main-0\n"));
    // The leases outlive the daemon.
    instance.kill_daemon();
    instance.restart_daemon();
    wait_for("the cards to be seen", || (list(&instance)["gpus"].as_array().unwrap().len() == 2).then_some(()));
    assert_eq!(instance.state("third"), "waiting");
    instance.ok(&["stop", "first"]);
    instance.wait_state("third", "running");
    assert_eq!(opened("1113", &minors), [MAY, MAY_NOT].concat());
    assert_eq!(opened("1112", &minors), [MAY_NOT, MAY].concat());
    instance.shutdown();
}

#[test]
fn cards_that_others_use_or_that_have_failed_are_waited_for_by_name() {
    let Some((instance, fake)) = instance("cards_that_others_use_are_waited_for") else { return };
    let minors = [211, 213, 215, 217];
    let _nodes = Nodes::make(&minors);
    let own = std::process::id();
    let busy = |index| match index {
        0 => format!("processes = [{{ pid = {own}, bytes = 2147483648 }}]"),
        1 => "fields = { 230 = 2 }".to_owned(),
        2 => "mig_mode = 1".to_owned(),
        _ => "errors.nvmlDeviceGetComputeRunningProcesses_v3 = \"UNKNOWN\"".to_owned(),
    };
    fake.shows(&cards_at(&minors, busy));
    fake.install();
    wait_for("the cards", || (list(&instance)["gpus"].as_array().unwrap().len() == 4).then_some(()));
    instance.drop_job("waits", "image = \"host\"\ncommand = \"echo m > /model/m\"\nresources.gpu = 1\n");
    let wanted = [
        "waits for 1 GPU(s): this machine has 0 that can be used now; GPU 0 is used by process ".to_owned(),
        format!("process {own} of root, 2048 MiB; GPU 1"),
        "; GPU 1 needs-reboot: the driver asks for a reboot of the machine".to_owned(),
        "; GPU 2 is cut up by MIG; GPU 3 the driver does not say what runs on it".to_owned(),
    ];
    wait_for("it to wait", || {
        let why = instance.report("waits")?["reason"].as_str().unwrap().to_owned();
        wanted.iter().all(|part| why.contains(part)).then_some(())
    });
    fake.shows(&cards_at(&minors, |index| if index == 0 { String::new() } else { busy(index) }));
    assert_eq!(instance.wait_end("waits", 1)["state"], "succeeded");
    let model = instance.root().join("var/lib/trainyard/workspaces/default/models/waits/1/MODEL.toml");
    let about = std::fs::read_to_string(model).unwrap();
    assert!(about.contains(&format!("gpus = [\"{}\"]", uuid(0))), "{about}");
    // More than there are is refused at once.
    instance.drop_job("much", "image = \"host\"\ncommand = \"true\"\nresources.gpu = 4\n");
    let invalid = instance.wait_state("much", "invalid");
    assert!(invalid["reason"].as_str().unwrap().contains("4 GPU(s) of 3 that this machine can give"), "{invalid}");
    instance.shutdown();
}

#[test]
fn tasks_of_one_job_may_open_each_other_s_cards_where_they_share_a_network() {
    let Some((instance, fake)) = instance("tasks_of_one_job_may_open_each_other_s_cards") else { return };
    let minors = [221, 223, 225];
    let _nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    let job = "image = \"host\"\ncommand = \"env; ls /dev; exec sleep 222$TRAINYARD_TASK_INDEX\"\nresources.gpu = 1\n\
               [roles.w]\ncount = 2\n";
    instance.drop_job("pair", job);
    instance.wait_state("pair", "running");
    assert_eq!(opened("2220", &minors), [MAY, MAY, MAY_NOT].concat());
    assert_eq!(opened("2221", &minors), [MAY, MAY, MAY_NOT].concat());
    let seen = |job: &str, task: &str| {
        wait_for("what it sees", || {
            let log = instance.log(job, task);
            log.contains("zero").then_some(log)
        })
    };
    let (one, other) = (seen("pair", "w-0"), seen("pair", "w-1"));
    assert!(one.contains(&format!("\nCUDA_VISIBLE_DEVICES={}\n", uuid(0))), "{one}");
    assert!(other.contains(&format!("\nCUDA_VISIBLE_DEVICES={}\n", uuid(1))), "{other}");
    let host = |log: &str| log.lines().find(|line| line.starts_with("NCCL_HOSTID=")).unwrap().to_owned();
    assert_eq!(host(&one), host(&other));
    instance.ok(&["stop", "pair"]);
    instance.wait_end("pair", 1);
    instance.drop_job("hosts", &format!("network = \"host\"\nenv.CUDA_VISIBLE_DEVICES = \"0\"\n{job}"));
    instance.wait_state("hosts", "running");
    let second = seen("hosts", "w-1");
    assert!(second.contains(&format!("\nCUDA_VISIBLE_DEVICES={}\n", uuid(1))), "a number is one of its own: {second}");
    assert_eq!(opened("2220", &minors), [MAY, MAY, MAY_NOT].concat());
    instance.ok(&["exec", "hosts", "w-0", "--", "touch", "/dev/shm/note"]);
    assert_eq!(instance.ok(&["exec", "hosts", "w-1", "--", "ls", "/dev/shm"]), "note\n");
    instance.shutdown();
}

/// The last core of this machine that is ours.
fn last_core() -> usize {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    (0..nix::sched::CpuSet::count()).filter(|core| set.is_set(*core).unwrap()).max().unwrap()
}

#[test]
fn a_task_is_kept_to_cores_near_to_its_cards_but_to_no_fewer_than_it_asks_for() {
    let Some((instance, fake)) = instance("a_task_is_kept_to_cores_near_to_its_cards") else { return };
    let minors = [231];
    let _nodes = Nodes::make(&minors);
    let near = last_core();
    fake.shows(&cards_at(&minors, |_| String::new()).replace("cpus = [0, 1]", &format!("cpus = [{near}]")));
    fake.install();
    let job = |cpu: &str| {
        format!(
            "image = \"host\"\ncommand = \"grep Cpus_allowed_list /proc/self/status\"\nresources = {{ cpu = {cpu}, gpu = 1 }}\n"
        )
    };
    for (name, cpu) in [("whole", "1"), ("part", "0.5")] {
        instance.drop_job(name, &job(cpu));
        assert_eq!(instance.wait_end(name, 1)["state"], "succeeded");
        assert_eq!(instance.log(name, "main-0"), format!("Cpus_allowed_list:\t{near}\n"), "{name}");
        assert!(!instance.ok(&["events", name]).contains("near to its GPUs"), "{name}");
    }
    instance.drop_job("more", &job("2"));
    assert_eq!(instance.wait_end("more", 1)["state"], "succeeded");
    assert_ne!(instance.log("more", "main-0"), format!("Cpus_allowed_list:\t{near}\n"));
    let events = instance.ok(&["events", "more"]);
    assert!(events.contains("main-0 asks for 2 core(s), and 1 near to its GPUs can be had: "), "{events}");
    instance.shutdown();
}

/// The process of a task, which has `sleep` and this number as its command.
fn sleeper(number: &str) -> i32 {
    wait_for("the task's process", || {
        let found = pids_with(number).into_iter().find(|(_, line)| line.starts_with("sleep"));
        found.map(|(pid, _)| pid)
    })
}

#[test]
fn several_jobs_have_shares_of_one_card_and_who_uses_more_than_its_own_is_told() {
    let Some((mut instance, fake)) = instance("several_jobs_have_shares_of_one_card") else { return };
    let minors = [271];
    let _nodes = Nodes::make(&minors);
    let shows = |processes: &[(i32, u64)]| {
        let processes: Vec<String> =
            processes.iter().map(|(pid, gib)| format!("{{ pid = {pid}, bytes = {} }}", gib << 30)).collect();
        fake.shows(&cards_at(&minors, |_| format!("processes = [{}]", processes.join(", "))));
    };
    shows(&[]);
    fake.install();
    let job = |number: &str, gib: u32| {
        format!("image = \"host\"\ncommand = \"env; exec sleep {number}\"\nresources.gpu_memory = \"{gib}GiB\"\n")
    };
    instance.drop_job("one", &job("2311", 20));
    instance.drop_job("two", &job("2312", 30));
    for name in ["one", "two"] {
        instance.wait_state(name, "running");
    }
    assert_eq!([opened("2311", &minors), opened("2312", &minors)], [MAY, MAY]);
    let log =
        wait_for("what it is told", || Some(instance.log("one", "main-0")).filter(|log| log.contains("PCI_BUS_ID")));
    assert!(log.contains("TRAINYARD_GPU_MEMORY=21474836480\n") && log.contains(&uuid(0)), "{log}");
    // Our own processes keep nobody from a share, and they are known by their control groups.
    shows(&[(sleeper("2311"), 25), (sleeper("2312"), 1)]);
    instance.drop_job("three", &job("2313", 20));
    instance.wait_state("three", "running");
    let alarm = "alarm: main-0 uses 25GiB of GPU 0, more than its share of 20GiB; the job is stopped if it is still so";
    wait_for("the alarm", || instance.ok(&["events", "one"]).contains(alarm).then_some(()));
    let shares = || list(&instance)["gpus"][0]["shares"].as_array().unwrap().len();
    assert_eq!(shares(), 3);
    assert!(
        instance.ok(&["gpu"]).contains(
            "GPU  SHARE  HELD BY\n0    20GiB  one main-0\n0    20GiB  three main-0\n0    30GiB  two main-0\n"
        )
    );
    let [wide, csv] = ["wide", "csv"].map(|form| instance.ok(&["gpu", "-o", form]));
    assert!(wide.lines().any(|line| line.ends_with(" UUID  BUS") || line.contains(" UUID ")), "{wide}");
    let row = format!("{},00000000:1b:00.0,,20GiB one main-0; 20GiB three main-0; 30GiB two main-0,", uuid(0));
    assert!(csv.starts_with("gpu,health,use,memory,temp,power,name,uuid,bus,leased_by,shares,slices\n"), "{csv}");
    assert!(csv.contains(&row), "{csv}");
    // A whole card is not to be had, nor more than is left; a daemon that is killed changes nothing of that.
    shows(&[(sleeper("2311"), 15), (sleeper("2312"), 1)]);
    instance.drop_job("four", &job("2314", 20));
    instance.wait_state("four", "waiting");
    instance.drop_job("whole", "image = \"host\"\ncommand = \"true\"\nresources.gpu = 1\n");
    instance.wait_state("whole", "waiting");
    let free = wait_for("what is free", || instance.report("whole")?["waiting"]["free"]["gpu"].as_f64());
    assert_eq!(free, 0.0, "what is left of a card is no whole card");
    instance.kill_daemon();
    instance.restart_daemon();
    wait_for("the card to be seen", || (list(&instance)["gpus"].as_array().unwrap().len() == 1).then_some(()));
    let why = wait_for("it to wait", || {
        let why = instance.report("four")?["reason"].as_str()?.to_owned();
        why.contains("a share of 20GiB of a GPU").then_some(why)
    });
    assert!(why.contains("held by one, three and two"), "{why}");
    assert_eq!([instance.state("whole"), instance.state("two")], ["waiting", "running"]);
    shows(&[(sleeper("2311"), 15)]);
    instance.ok(&["stop", "two"]);
    instance.wait_state("four", "running");
    assert_eq!(instance.state("whole"), "waiting");
    instance.shutdown();
}

#[test]
fn of_a_card_that_is_shared_each_task_is_told_what_its_own_processes_do_and_what_is_not_known_of_them() {
    let Some((instance, fake)) = instance("of_a_card_that_is_shared_each_task_is_told") else { return };
    let minors = [273];
    let _nodes = Nodes::make(&minors);
    let shows = |processes: &str| {
        let card = format!("used = 42949672960\nutilisation = 90\nprocesses = [{processes}]");
        fake.shows(&cards_at(&minors, |_| card.clone()));
    };
    shows("");
    fake.install();
    for (name, number) in [("one", "2731"), ("two", "2732")] {
        let job = format!("image = \"host\"\ncommand = \"exec sleep {number}\"\nresources.gpu_memory = \"20GiB\"\n");
        instance.drop_job(name, &job);
        instance.wait_state(name, "running");
    }
    let row = |name: &str, end: &str| {
        let path = instance.run_dir(name, 1).join("attempts/1/main-0/metrics.csv");
        wait_for(&format!("a row of {name} that ends with {end}"), || {
            std::fs::read_to_string(&path).unwrap_or_default().lines().any(|line| line.ends_with(end)).then_some(())
        });
    };
    let (one, two) = (sleeper("2731"), sleeper("2732"));
    let other = format!("{{ pid = {two}, bytes = 1073741824, busy = 41 }}");
    shows(&format!("{{ pid = {one}, bytes = 3221225472, busy = 30 }}, {other}"));
    // The card's 71 W, by what they do.
    row("one", ",30,3221225472,30.0");
    row("two", ",41,1073741824,41.0");
    let shown = "\nmain-0  GPU 0  30%  3GiB    30W\n";
    wait_for("what is shown of it", || instance.ok(&["status", "one"]).contains(shown).then_some(()));
    // One process of which nothing is known makes nothing known of the task's memory, and is told of.
    shows(&format!("{{ pid = {one}, busy = 30 }}, {other}"));
    row("one", ",30,,30.0");
    let alarm = format!("alarm: the driver does not tell how much memory of GPU 0 process {one} of main-0 uses");
    wait_for("the alarm", || instance.ok(&["events", "one"]).contains(&alarm).then_some(()));
    assert!(!instance.ok(&["events", "two"]).contains("alarm: "));
    instance.shutdown();
}

#[test]
fn what_cards_do_is_in_the_metrics_and_the_status_of_their_task_and_idle_ones_end_it() {
    let Some((mut instance, fake)) = instance("what_cards_do_is_in_the_metrics") else { return };
    let minors = [241];
    let _nodes = Nodes::make(&minors);
    let shows =
        |percent: u32| fake.shows(&cards_at(&minors, |_| format!("used = 3221225472\nutilisation = {percent}")));
    shows(97);
    fake.install();
    let rule = "alerts.gpu_idle = { for = \"10s\", then = \"stop\" }";
    instance.drop_job("busy", &format!("image = \"host\"\ncommand = \"exec sleep 1241\"\nresources.gpu = 1\n{rule}\n"));
    instance.wait_state("busy", "running");
    let path = instance.run_dir("busy", 1).join("attempts/1/main-0/metrics.csv");
    let rows = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let told = wait_for("a row with what the card does", || {
        rows().into_iter().find(|row| row.ends_with(",97,3221225472,71.0"))
    });
    let header = rows().remove(0);
    assert!(header.ends_with(",pids,gpu0_percent,gpu0_memory_bytes,gpu0_power_w"), "{header}");
    assert_eq!(told.split(',').count(), header.split(',').count());
    let status = instance.ok(&["status", "busy"]);
    assert!(status.contains("TASK    GPU    USE  MEMORY  POWER\nmain-0  GPU 0  97%  3GiB    71W\n"), "{status}");
    // A daemon that is started anew goes on with it.
    instance.kill_daemon();
    shows(98);
    instance.restart_daemon();
    wait_for("what is measured after a restart", || {
        rows().into_iter().find(|row| row.ends_with(",98,3221225472,71.0"))
    });
    shows(0);
    let end = instance.wait_end("busy", 1);
    assert_eq!(end["state"], "stopped");
    assert!(end["reason"].as_str().unwrap().contains("used less than 5 % for 10s (alerts.gpu_idle)"), "{end}");
    let idle = rows().iter().filter(|row| row.contains(",0,3221225472,")).count();
    assert!(idle >= 1, "{:?}", rows());
    instance.shutdown();
}

#[test]
fn a_job_whose_card_fails_goes_on_with_another_one_if_its_file_says_so() {
    let Some((instance, fake)) = instance("a_job_whose_card_fails_goes_on_with_another_one") else { return };
    let minors = [251, 253];
    let _nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    let policy = "retries = 1\non_gpu_failure = \"retry\"";
    instance
        .drop_job("moves", &format!("image = \"host\"\ncommand = \"exec sleep 1251\"\nresources.gpu = 1\n{policy}\n"));
    instance.wait_state("moves", "running");
    let holder = |index: usize| list(&instance)["gpus"][index]["leased_by"].as_str().map(str::to_owned);
    assert_eq!([holder(0), holder(1)], [Some("moves main-0".to_owned()), None]);
    fake.shows(&cards_at(&minors, |index| if index == 0 { "fields = { 230 = 2 }".to_owned() } else { String::new() }));
    wait_for("the second attempt", || {
        (holder(1) == Some("moves main-0".to_owned()) && holder(0).is_none()).then_some(())
    });
    let events = instance.ok(&["events", "moves"]);
    assert!(events.contains("alarm: GPU 0 (00000000:1b:00.0) has failed: the driver asks for a reboot"), "{events}");
    instance.shutdown();
}

#[test]
fn a_slice_that_cannot_be_reached_is_told_by_its_name_and_a_kind_that_is_not_there_is_refused() {
    let Some((instance, fake)) = instance("a_slice_that_cannot_be_reached") else { return };
    let minors = [281];
    let _nodes = Nodes::make(&minors);
    let slice = "mig = [{ uuid = \"MIG-a\", name = \"NVIDIA H100 80GB HBM3 MIG 1g.10gb\", memory = 10737418240, gpu_instance = 9 }]";
    fake.shows(&cards_at(&minors, |_| slice.to_owned()));
    fake.install();
    wait_for("the card", || (list(&instance)["gpus"].as_array().unwrap().len() == 1).then_some(()));
    // This machine's driver, if it has one, knows nothing of it.
    instance.drop_job("slice", "image = \"host\"\ncommand = \"true\"\nresources.mig = \"1g.10gb\"\n");
    let why = wait_for("it to wait", || {
        let why = instance.report("slice")?["reason"].as_str()?.to_owned();
        why.contains("; a slice 1g.10gb of GPU 0 cannot be reached: ").then_some(why)
    });
    assert!(why.contains("gpu281/mig/gi9/access, by which slice MIG-a is reached, cannot be read"), "{why}");
    assert_eq!(instance.state("slice"), "waiting");
    assert!(instance.ok(&["gpu"]).contains("\nGPU 0 slice 1g.10gb unusable: no-device: /proc/driver/nvidia/"));
    instance.drop_job("other", "image = \"host\"\ncommand = \"true\"\nresources = { gpu = 1, gpu_type = \"A100\" }\n");
    let why = instance.wait_state("other", "invalid")["reason"].as_str().unwrap().to_owned();
    let said = "the job needs 1 GPU(s) of type A100, and this machine has 1 × slice 1g.10gb of NVIDIA H100 80GB HBM3";
    assert!(why.contains(said), "{why}");
    instance.shutdown();
}

#[test]
fn jobs_have_slices_of_one_card_each_by_its_own_devices_alone() {
    const TEST: &str = "jobs_have_slices_of_one_card";
    let Some(mut instance) = Instance::prepare(TEST, "") else { return };
    let fake = FakeNvml::without_driver(instance.root());
    let config = format!(
        "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"2s\"\n[network]\nrange = \"10.213.0.0/16\"\n[gpu]\nlibrary = \"{}\"\nmodprobe = \"\"\n",
        fake.library().display()
    );
    std::fs::write(instance.root().join("etc/trainyard/trainyard.toml"), config).unwrap();
    // Of the second card nothing is had.
    let minors = [283, 285];
    let mut nodes = Nodes::make(&minors);
    nodes.add_slices(&mut instance, 283, &[(7, 60_283), (9, 60_293)]);
    let slice = |name: char, gpu_instance: u32, used: u64, busy: f64| {
        format!(
            "{{ uuid = \"MIG-{name}\", name = \"NVIDIA H100 80GB HBM3 MIG 1g.10gb\", memory = 10737418240, used = {used}, \
             gpu_instance = {gpu_instance}, busy = {busy:?} }}"
        )
    };
    let cut_up = format!("mig = [{}, {}]", slice('a', 7, 4321, 40.0), slice('b', 9, 8765, 31.0));
    fake.shows(&cards_at(&minors, |index| if index == 0 { cut_up.clone() } else { String::new() }));
    fake.install();
    instance.start_daemon(&[]);
    instance.wait_ready();
    let job = |number: &str| {
        let command = format!("env; find /dev -name 'nvidia*[0-9]' | sort; exec sleep {number}");
        format!("image = \"host\"\ncommand = {command:?}\nresources.mig = \"1g.10gb\"\n")
    };
    for (name, number) in [("first", "2831"), ("second", "2832")] {
        instance.drop_job(name, &job(number));
        instance.wait_state(name, "running");
    }
    let of_slices = [60_283, 60_284, 60_293, 60_294].map(|minor| format!("{CAPABILITIES}/nvidia-cap{minor}"));
    let all = [["/dev/nvidia283", "/dev/nvidia285"].map(String::from).as_slice(), &of_slices].concat();
    assert_eq!(opened_at("2831", &all), [MAY, MAY_NOT, MAY, MAY, MAY_NOT, MAY_NOT].concat());
    assert_eq!(opened_at("2832", &all), [MAY, MAY_NOT, MAY_NOT, MAY_NOT, MAY, MAY].concat());
    for (name, slice, own, used) in
        [("first", "MIG-a", &of_slices[..2], ",40,4321,40.0"), ("second", "MIG-b", &of_slices[2..], ",31,8765,31.0")]
    {
        let log = wait_for("what it sees", || {
            Some(instance.log(name, "main-0")).filter(|log| log.ends_with("\n/dev/nvidia283\n"))
        });
        assert!(log.contains(&format!("\nCUDA_VISIBLE_DEVICES={slice}\n")), "{log}");
        let seen: Vec<&str> = log.lines().filter(|line| line.starts_with("/dev/nvidia")).collect();
        assert_eq!(seen, [own, &all[..1]].concat());
        // Its own memory and work, and what it takes by that of the card's 71 W.
        let path = instance.run_dir(name, 1).join("attempts/1/main-0/metrics.csv");
        wait_for("what it uses", || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            text.lines().any(|line| line.ends_with(used)).then_some(())
        });
    }
    instance.drop_job("third", &job("2833"));
    wait_for("it to wait", || instance.report("third")?["reason"].as_str()?.contains("first and second").then_some(()));
    instance.ok(&["stop", "first"]);
    instance.wait_state("third", "running");
    assert_eq!(opened_at("2833", &all), [MAY, MAY_NOT, MAY, MAY, MAY_NOT, MAY_NOT].concat());
    instance.shutdown();
}

#[test]
fn a_card_whose_device_is_missing_is_waited_for_and_had_as_soon_as_it_is_there() {
    let Some((instance, fake)) = instance("a_card_whose_device_is_missing_is_waited_for") else { return };
    let minors = [331];
    let _common = Nodes::make(&[]);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    wait_for("the card", || (list(&instance)["gpus"].as_array().unwrap().len() == 1).then_some(()));
    instance.drop_job("job", "image = \"host\"\ncommand = \"ls /dev\"\nresources.gpu = 1\n");
    let said =
        format!("no-device: /dev/nvidia331 is missing, the device of {}; `nvidia-modprobe -c 331` makes it", uuid(0));
    let mut last = String::new();
    wait_for("it to wait", || {
        let why = instance.report("job")?["reason"].as_str()?.to_owned();
        if why != last {
            eprintln!("{why}");
            last.clone_from(&why);
        }
        why.ends_with(&format!("; GPU 0 {said}")).then_some(())
    });
    assert!(instance.ok(&["gpu"]).contains(&format!("\nGPU 0 unusable: {said}\n")));
    assert!(std::fs::read_to_string(asked(&instance)).unwrap().lines().any(|words| words == "-c 331"));
    let _nodes = Nodes::make(&minors);
    let end = instance.wait_end("job", 1);
    assert_eq!((&end["state"], &end["attempt"]), (&"succeeded".into(), &1.into()));
    assert!(instance.log("job", "main-0").contains("nvidia331\n"));
    instance.shutdown();
}

#[test]
fn a_start_whose_device_has_gone_since_it_was_looked_at_is_no_attempt_and_waits() {
    let Some((instance, fake)) = instance("a_start_whose_device_has_gone_is_no_attempt") else { return };
    let minors = [351, 352];
    let mut nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    wait_for("the cards", || (list(&instance)["gpus"].as_array().unwrap().len() == 2).then_some(()));
    // Cards are looked at every few seconds while this one waits, and what was seen counts until then.
    instance.drop_job("holds", "image = \"host\"\ncommand = \"sleep 1000\"\nresources.gpu = 1\n");
    instance.wait_state("holds", "running");
    instance.drop_job("both", "image = \"host\"\ncommand = \"true\"\nresources.gpu = 2\n");
    instance.wait_state("both", "waiting");
    let free = list(&instance)["gpus"].as_array().unwrap().iter().position(|gpu| gpu["leased_by"].is_null()).unwrap();
    let path = PathBuf::from(format!("/dev/nvidia{}", minors[free]));
    let before = list(&instance)["at"].clone();
    wait_for("the next look", || (list(&instance)["at"] != before).then_some(()));
    std::fs::remove_file(&path).unwrap();
    instance.drop_job("first", "image = \"host\"\ncommand = \"true\"\nresources.gpu = 1\npriority = \"high\"\n");
    wait_for("it to wait", || {
        let report = instance.report("first")?;
        assert_ne!(report["state"], "failed", "{report:#}");
        (report["state"] == "waiting" && report["reason"].as_str()?.contains("no-device: /dev/nvidia35")).then_some(())
    });
    nodes.add(path.display().to_string(), 195, minors[free]);
    let end = instance.wait_end("first", 1);
    assert_eq!((&end["state"], &end["attempt"]), (&"succeeded".into(), &1.into()));
    instance.shutdown();
}

#[test]
fn a_node_behind_which_no_module_is_loaded_is_as_good_as_missing() {
    let Some((instance, _fake)) = instance("a_node_behind_which_no_module_is_loaded") else { return };
    let place = |name: &str| {
        let directory = instance.root().join(name);
        std::fs::create_dir(&directory).unwrap();
        directory.join("nvidia-uvm")
    };
    let (loaded, stale) = (place("loaded"), place("stale"));
    make_node(&loaded, NULL.0, NULL.1).unwrap();
    // Of a major number that nothing has.
    make_node(&stale, 510, 0).unwrap();
    let look = |path: &Path| {
        let directory = path.parent().unwrap();
        let places = Places { devices: directory, driver: directory };
        let [_, uvm] = nodes::of_all(places);
        uvm.check(nodes::look).map_err(|missing| missing.says)
    };
    assert_eq!(look(&loaded), Ok(()));
    let says = format!(
        "{} is there, which every card needs, but its kernel module is not loaded; `nvidia-modprobe -c 0 -u` loads it",
        stale.display()
    );
    assert_eq!(look(&stale), Err(says));
    instance.shutdown();
}

#[test]
fn a_card_is_had_though_to_look_at_it_takes_longer_than_what_was_seen_counts() {
    let Some((instance, fake)) = instance("a_card_is_had_though_to_look_at_it_takes_long") else { return };
    let minors = [341];
    let _nodes = Nodes::make(&minors);
    fake.shows(&format!("slow.nvmlDeviceGetTemperature = 6000\n{}", cards_at(&minors, |_| String::new())));
    fake.install();
    instance.drop_job("job", "image = \"host\"\ncommand = \"true\"\nresources.gpu = 1\n");
    assert_eq!(instance.wait_end("job", 1)["state"], "succeeded");
    instance.shutdown();
}
