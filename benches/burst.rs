//! Many one-task jobs of `/bin/true` dropped at once: all succeed, none is stuck; jobs a second and the daemon's peak
//! memory.
//!
//!     cargo bench --bench burst [-- JOBS]
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
use std::time::Instant;

use support::{Instance, wait_at_most};

fn peak_memory(pid: i32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().to_owned()
}

fn main() {
    let jobs: usize = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(500);
    let Some(instance) = Instance::start("bench burst", "") else { return };
    let before = peak_memory(instance.daemon_pid());
    let from = Instant::now();
    for number in 0..jobs {
        instance.drop_job(&format!("j{number}"), "command = [\"/bin/true\"]\n");
    }
    let succeeded = instance.mount().join("jobs/by-state/succeeded");
    wait_at_most(std::time::Duration::from_secs(300), "all jobs to succeed", || {
        let count = fs::read_dir(&succeeded).map_or(0, Iterator::count);
        (count == jobs).then_some(())
    });
    let seconds = from.elapsed().as_secs_f64();
    println!("{jobs} jobs of /bin/true: {seconds:.1} s, {:.1} jobs/s", jobs as f64 / seconds);
    println!("peak memory of the daemon: {} ({before} before the first job)", peak_memory(instance.daemon_pid()));
    let listed = Instant::now();
    assert_eq!(instance.ok(&["ps"]).lines().count(), jobs + 1);
    println!("`trainyard ps` of them: {:.1} ms", listed.elapsed().as_secs_f64() * 1e3);
}
