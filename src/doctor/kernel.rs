//! What the kernel gives: namespaces, control groups, filters.

use std::fs;
use std::path::Path;

use super::{Machine, Verdict, daemons, failure, needs_root, ok, warning};
use crate::engine::local::try_rules;
use crate::sys::cgroup::{self, Layout};
use crate::sys::idmap::{IdMap, IdRange};
use crate::sys::mounts;

/// Below this nothing is tested.
const OLDEST: (u32, u32) = (5, 15);
/// It maps ids below overlays.
const MAPS_IDS: (u32, u32) = (5, 19);
/// From here on it reads files of the mount past the mount process, and lets an upgrade take the mount over.
const NEWEST_USED: (u32, u32) = (6, 9);

pub(super) fn version(_: &Machine) -> Verdict {
    of_kernel(mounts::kernel())
}

fn of_kernel(version: (u32, u32)) -> Verdict {
    let found = format!("Linux {}.{}", version.0, version.1);
    if version < OLDEST {
        return failure(format!("{found} is too old"), "boot Linux 5.15 or newer");
    }
    if version < MAPS_IDS {
        return warning(
            format!("{found} cannot show layers of images with other owners"),
            "Linux 5.19 or newer saves a copy of each layer for each owner",
        );
    }
    if version < NEWEST_USED {
        return warning(
            format!("{found} reads files of the mount through the mount process, and upgrades leave its old program"),
            "Linux 6.9 or newer is faster there, and lets an upgrade take over the mount",
        );
    }
    ok(found)
}

pub(super) fn seccomp(_: &Machine) -> Verdict {
    let known = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    match known.split_whitespace().any(|action| action == "errno") {
        true => ok("system calls can be filtered"),
        false => failure("the kernel filters no system calls", "boot a kernel with CONFIG_SECCOMP_FILTER"),
    }
}

/// Without these there are no tasks.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn cgroup(_: &Machine) -> Verdict {
    let missing: Vec<&str> = NEEDED.into_iter().filter(|controller| !cgroup::has_controller(controller)).collect();
    let layout = match cgroup::layout() {
        Layout::V1 => "control groups v1, or hybrid",
        Layout::V2 => "control groups v2",
    };
    if !missing.is_empty() {
        return failure(
            format!("{layout} without {}", missing.join(", ")),
            "take cgroup_disable=… off the kernel's command line, or boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    match cgroup::has_controller("cpuset") {
        true => ok(layout),
        false => warning(
            format!("{layout} without cpuset: whole cores are not kept to one task"),
            "boot a kernel with CONFIG_CPUSETS",
        ),
    }
}

pub(super) fn delegation(machine: &Machine) -> Verdict {
    if cgroup::layout() == Layout::V1 {
        return ok("control groups v1 need none");
    }
    daemons(machine, "cgroup").map_or_else(|verdict| verdict, |own| of_daemon(own.as_deref()))
}

/// By what `/proc/PID/cgroup` says of the daemon, if one runs.
fn of_daemon(own: Option<&str>) -> Verdict {
    let group = own.and_then(|own| own.lines().find_map(|line| line.strip_prefix("0::")));
    let Some(group) = group else { return ok("no daemon runs") };
    match group.strip_suffix("/daemon").filter(|base| !base.is_empty()) {
        Some(base) => ok(format!("{base} was delegated to the daemon; tasks are in it")),
        // systemd before 254 cannot start it in a leaf, and what was started by hand has no group of its own.
        None => ok(format!("the daemon is in {group}; tasks are in a group of their own beside it")),
    }
}

pub(super) fn user_namespaces(machine: &Machine) -> Verdict {
    if !machine.is_root {
        return needs_root();
    }
    let one = IdRange { inside: 0, outside: 0, count: 1 };
    match (IdMap { users: vec![one], groups: vec![one] }).namespace() {
        Ok(_) => ok("user namespaces can be made"),
        Err(error) => failure(
            format!("no user namespace can be made: {error}"),
            "raise the sysctl user.max_user_namespaces; in a container, let it make user namespaces",
        ),
    }
}

pub(super) fn nftables(machine: &Machine) -> Verdict {
    if !machine.is_root {
        return needs_root();
    }
    if !machine.config.network.masquerade {
        return ok("not used for ways out: network.masquerade = false");
    }
    match try_rules(&machine.paths.instance(), &machine.config.network) {
        Ok(()) if Path::new("/proc/sys/net/ipv4/ip_forward").exists() => {
            ok("nft takes the rules of the tasks' networks")
        }
        Ok(()) => failure("the kernel forwards no IPv4", "boot a kernel with CONFIG_IP_ADVANCED_ROUTER"),
        Err(error) => warning(
            format!("tasks have no way out of this machine: {error}"),
            "install nftables, and load the kernel modules nf_tables and nft_masq; jobs with network = \"host\" do without",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn an_old_kernel_is_told_by_what_it_lacks() {
        for (version, level) in [
            ((4, 18), Level::Failed),
            ((5, 15), Level::Warning),
            ((6, 1), Level::Warning),
            ((6, 9), Level::Ok),
            ((7, 0), Level::Ok),
        ] {
            assert_eq!(of_kernel(version).level, level, "{version:?}");
        }
    }

    #[test]
    fn whose_group_it_is_is_told_from_the_daemon_s_own() {
        let found = |own| of_daemon(own).found;
        assert_eq!(found(None), "no daemon runs");
        let own = found(Some("0::/system.slice/trainyard.service/daemon\n"));
        assert_eq!(own, "/system.slice/trainyard.service was delegated to the daemon; tasks are in it");
        assert!(found(Some("0::/system.slice/trainyard.service\n")).ends_with("beside it"));
    }
}
