//! The OCI configuration of one task (OCI runtime specification 1.0.2, `config.json`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::contract::{Task, view};
use crate::store::record::Owner;

/// What a configuration is made from.
pub(super) struct Bundle<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) owner: Owner,
    /// The owner's further groups.
    pub(super) supplementary: Vec<u32>,
    pub(super) group: &'a str,
    /// A prepared network namespace; the machine's own when absent.
    pub(super) namespace: Option<&'a Path>,
    /// A `/dev/shm` shared by the attempt; one of its own when absent.
    pub(super) shm: Option<&'a Path>,
    pub(super) binds: Vec<Bind>,
    /// The root of this installation.
    pub(super) installation: Option<&'a Path>,
}

/// A directory of the machine that the task sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bind {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
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

/// The configuration as JSON.
pub(super) fn config(bundle: &Bundle<'_>) -> Vec<u8> {
    let view = view(bundle.task);
    let env: Vec<String> = view.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    // The job's owner runs as themselves; only root has rights to drop.
    let capabilities: &[&str] = if bundle.owner.uid == 0 { &CAPABILITIES } else { &[] };
    let value = json!({
        "ociVersion": "1.0.2",
        "hostname": view.host_name,
        "root": { "path": "rootfs", "readonly": false },
        "process": {
            "terminal": false,
            "user": { "uid": bundle.owner.uid, "gid": bundle.owner.gid, "additionalGids": bundle.supplementary },
            "args": view.args,
            "env": env,
            "cwd": view.working_directory,
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                "inheritable": [], "ambient": [],
            },
        },
        "mounts": mounts(bundle),
        "linux": linux(bundle),
    });
    value.to_string().into_bytes()
}

fn mount(target: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({ "destination": target, "type": kind, "source": source, "options": options })
}

fn mounts(bundle: &Bundle<'_>) -> Vec<Value> {
    let shm_size = format!("size={}", bundle.task.role.resources.shm.0);
    let mut out = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ];
    out.push(match bundle.shm {
        None => mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm_size]),
        Some(shared) => bind(shared, "/dev/shm", Access::ReadWrite),
    });
    out.extend(bundle.binds.iter().map(|b| bind(&b.source, &b.target, b.access)));
    out
}

fn bind(source: &Path, target: &str, access: Access) -> Value {
    let access = match access {
        Access::ReadOnly => "ro",
        Access::ReadWrite => "rw",
    };
    json!({ "destination": target, "type": "bind", "source": source, "options": ["rbind", "nosuid", "nodev", access] })
}

fn linux(bundle: &Bundle<'_>) -> Value {
    let resources = bundle.task.role.resources;
    let quota = (resources.cpu.0.saturating_mul(CPU_PERIOD) / 1000).max(CPU_QUOTA_MIN);
    let mut namespaces: Vec<Value> =
        ["pid", "mount", "ipc", "uts", "cgroup"].iter().map(|kind| json!({ "type": kind })).collect();
    if let Some(path) = bundle.namespace {
        namespaces.push(json!({ "type": "network", "path": path }));
    }
    let mut memory = json!({ "limit": resources.memory.0 });
    if let Some(swap) = swap_limit(bundle.group, resources.memory.0) {
        memory["swap"] = json!(swap);
    }
    json!({
        "namespaces": namespaces,
        "cgroupsPath": bundle.group,
        "rootfsPropagation": "private",
        "maskedPaths": masked(bundle),
        "readonlyPaths": READ_ONLY,
        "resources": {
            "memory": memory,
            "cpu": { "quota": quota, "period": CPU_PERIOD, "shares": shares(resources.cpu.0) },
            "pids": { "limit": resources.pids },
            "devices": [{ "allow": false, "access": "rwm" }],
        },
    })
}

/// An installation below a system directory would be seen with it.
fn masked(bundle: &Bundle<'_>) -> Vec<String> {
    let installation = bundle.installation.filter(|root| *root != Path::new("/"));
    let installation = installation.map(|root| root.display().to_string());
    MASKED.iter().map(|path| (*path).to_owned()).chain(installation).collect()
}

/// A limit on memory and swap together equal to the memory: no swap. Only where the kernel accounts for swap.
fn swap_limit(group: &str, memory: u64) -> Option<u64> {
    let accounted = match crate::sys::cgroup::layout() {
        crate::sys::cgroup::Layout::V2 => {
            let parent = Path::new(group.trim_start_matches('/')).parent().unwrap_or(Path::new(""));
            Path::new("/sys/fs/cgroup").join(parent).join("memory.swap.max").exists()
        }
        crate::sys::cgroup::Layout::V1 => Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists(),
    };
    accounted.then_some(memory)
}

/// Weight under contention, in proportion to the cores asked for; 1024 a core.
fn shares(millis: u64) -> u64 {
    (millis.saturating_mul(1024) / 1000).clamp(2, 262_144)
}
