//! The OCI configuration of one task (OCI runtime specification 1.0.2, `config.json`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::cores;
use super::owners::InsideUser;
use crate::contract::View;
use crate::rundir::Root;
use crate::spec::Resources;
use crate::sys::cgroup::{self, Layout};
use crate::sys::idmap::IdMap;

/// What a configuration is made from.
pub(super) struct Bundle<'a> {
    pub(super) resources: Resources,
    pub(super) view: &'a View,
    pub(super) user: &'a InsideUser,
    pub(super) ids: &'a IdMap,
    /// Where the shim puts the root file system together.
    pub(super) holder: &'a Path,
    pub(super) group: &'a str,
    /// Processor cores to be kept to; any when empty.
    pub(super) cores: &'a [u32],
    /// Its processes are in a namespace that tasks of the attempt share.
    pub(super) shares_processes: bool,
    /// The container stays when its command has failed.
    pub(super) keep_failed: bool,
    /// Directories of the machine that must not be seen.
    pub(super) hidden: Vec<PathBuf>,
}

/// Docker's default set without `CAP_MKNOD`.
const CAPABILITIES: [&str; 13] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
/// Places of /proc and /sys that tell of, or act on, the whole machine.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// Period in which a task may use its share of the processors, µs; the kernel's own default.
const CPU_PERIOD: u64 = 100_000;
/// The kernel's smallest quota, µs.
const CPU_QUOTA_MIN: u64 = 1_000;

/// The configuration as JSON. The shim puts the root file system together, with all that comes from the machine;
/// left to libcontainer are the kernel's file systems that belong to the container's own namespaces.
pub(super) fn config(bundle: &Bundle<'_>) -> Vec<u8> {
    let view = bundle.view;
    let env: Vec<String> = view.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    // Without set-user-id programs, nobody but root can make use of them.
    let held: &[&str] = if bundle.user.uid == 0 { &CAPABILITIES } else { &[] };
    let value = json!({
        "ociVersion": "1.0.2",
        "hostname": view.host_name,
        "root": { "path": Root::place(bundle.holder), "readonly": false },
        "process": {
            "terminal": false,
            "user": { "uid": bundle.user.uid, "gid": bundle.user.gid, "additionalGids": groups(bundle) },
            "args": view.args,
            "env": env,
            "cwd": view.working_directory,
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": CAPABILITIES, "effective": held, "permitted": held, "inheritable": [], "ambient": [],
            },
        },
        "mounts": [
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
            mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        ],
        "linux": linux(bundle),
    });
    value.to_string().into_bytes()
}

/// Those that the image gives, and the owner's own further ones, which lie above them.
fn groups(bundle: &Bundle<'_>) -> Vec<u32> {
    let owners = bundle.ids.groups.iter().map(|range| range.inside).filter(|inside| *inside >= 65_536);
    bundle.user.groups.iter().copied().chain(owners).collect()
}

fn mount(target: &str, kind: &str, options: &[&str]) -> Value {
    json!({ "destination": target, "type": kind, "source": kind, "options": options })
}

fn linux(bundle: &Bundle<'_>) -> Value {
    let resources = &bundle.resources;
    let quota = (resources.cpu.0.saturating_mul(CPU_PERIOD) / 1000).max(CPU_QUOTA_MIN);
    // Made by the shim: for more than one range libcontainer would need `newuidmap` and `/etc/subuid`.
    let user = json!({ "type": "user", "path": Root::user_namespace(bundle.holder) });
    let processes = match bundle.shares_processes {
        true => json!({ "type": "pid", "path": Root::process_namespace(bundle.holder) }),
        false => json!({ "type": "pid" }),
    };
    let own = ["mount", "ipc", "uts", "cgroup"].iter().map(|kind| json!({ "type": kind }));
    let namespaces: Vec<Value> = [user, processes].into_iter().chain(own).collect();
    let mut cpu = json!({ "quota": quota, "period": CPU_PERIOD, "shares": shares(resources.cpu.0) });
    if !bundle.cores.is_empty() {
        cpu["cpus"] = json!(cores::list(bundle.cores));
    }
    let (mut memory, mut unified) = (json!({ "limit": resources.memory.0 }), json!({}));
    match (cgroup::layout(), counts_swap(bundle.group)) {
        // A limit on memory and swap together.
        (Layout::V1, true) => memory["swap"] = json!(resources.memory.0),
        // Not by `swap`: of a difference of nothing libcgroups sets nothing.
        (Layout::V2, true) => unified["memory.swap.max"] = json!("0"),
        (Layout::V1 | Layout::V2, false) => {}
    }
    // One process that is killed for want of memory ends the task: half a program trains nothing.
    if cgroup::layout() == Layout::V2 && !bundle.keep_failed {
        unified["memory.oom.group"] = json!("1");
    }
    json!({
        "namespaces": namespaces,
        "cgroupsPath": bundle.group,
        "rootfsPropagation": "private",
        "maskedPaths": MASKED.iter().map(PathBuf::from).chain(bundle.hidden.iter().cloned()).collect::<Vec<_>>(),
        "readonlyPaths": READ_ONLY,
        "resources": {
            "memory": memory,
            "cpu": cpu,
            "pids": { "limit": resources.pids },
            "unified": unified,
        },
    })
}

/// Whether the kernel accounts for swap, so that it can be forbidden.
fn counts_swap(group: &str) -> bool {
    match cgroup::layout() {
        Layout::V2 => {
            let parent = Path::new(group.trim_start_matches('/')).parent().unwrap_or(Path::new(""));
            Path::new("/sys/fs/cgroup").join(parent).join("memory.swap.max").exists()
        }
        Layout::V1 => Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists(),
    }
}

/// Weight under contention, in proportion to the cores asked for; 1024 a core.
fn shares(millis: u64) -> u64 {
    (millis.saturating_mul(1024) / 1000).clamp(2, 262_144)
}
