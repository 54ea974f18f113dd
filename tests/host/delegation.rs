//! The daemon as a service: in a control group that was delegated to it, and nowhere else.

use std::fs;
use std::path::{Path, PathBuf};

use trainyard::sys::cgroup::{self, Layout};

use crate::support::{Instance, skip, wait_for};

/// A group as `Delegate=yes` makes one; removed at the end.
struct Unit(PathBuf);

impl Unit {
    fn new() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        fs::write(root.join("cgroup.subtree_control"), "+cpu +memory +pids").unwrap();
        let path = root.join(format!("unit-of-a-test-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn group_of(pid: i32) -> String {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        text.trim().trim_start_matches("0::").to_owned()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        for part in ["tasks", "daemon", ""] {
            let _ = fs::remove_dir(self.0.join(part));
        }
    }
}

#[test]
fn below_a_delegated_group_the_daemon_moves_to_a_leaf_and_tasks_get_groups_beside_it() {
    const TEST: &str = "below_a_delegated_group_the_daemon_moves_to_a_leaf_and_tasks_get_groups_beside_it";
    if cgroup::layout() == Layout::V1 {
        return skip(TEST, "cgroup v2");
    }
    let Some(mut instance) = Instance::prepare(TEST, "") else { return };
    let unit = Unit::new();
    let name = format!("/{}", unit.0.file_name().unwrap().to_string_lossy());
    instance.group = Some(unit.0.clone());
    instance.start_daemon(&[]);
    instance.wait_ready();
    assert_eq!(Unit::group_of(instance.daemon_pid()), format!("{name}/daemon"));
    instance.drop_job("stays", "command = \"cat /proc/self/cgroup; sleep 1000.125\"\nresources.memory = \"128MiB\"");
    instance.wait_state("stays", "running");
    let (pid, _) = wait_for("the command", || {
        crate::support::pids_with("sleep 1000.125").into_iter().find(|(_, line)| line.starts_with("sleep"))
    });
    let group = Unit::group_of(pid);
    assert!(group.starts_with(&format!("{name}/tasks/")), "{group}");
    let limit = fs::read_to_string(format!("/sys/fs/cgroup{group}/memory.max")).unwrap();
    assert_eq!(limit.trim(), (128 << 20).to_string());
    // A service manager starts the next one in the leaf (`DelegateSubgroup=`): a group that has handed out controllers takes
    // no processes.
    instance.kill_daemon();
    instance.group = Some(unit.0.join("daemon"));
    instance.restart_daemon();
    assert_eq!(instance.state("stays"), "running");
    assert_eq!(Unit::group_of(instance.daemon_pid()), format!("{name}/daemon"));
    instance.ok(&["stop", "stays"]);
    instance.wait_end("stays", 1);
    let next = instance.run_job("next", "command = \"cat /proc/self/cgroup\"");
    assert_eq!(next["state"], "succeeded", "{next:#}");
    instance.shutdown();
    assert!(!unit.0.join("tasks").exists(), "what was made in it is taken away");
}
