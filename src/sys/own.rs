//! What this process has of the machine, for those who watch it.

use std::io;

/// What this process has of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnUse {
    /// Bytes.
    pub resident: u64,
    pub descriptors: usize,
    pub descriptors_max: u64,
    pub threads: u64,
    pub cpu_s: f64,
}

pub fn own_use() -> io::Result<OwnUse> {
    use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
    let status = std::fs::read_to_string("/proc/self/status")?;
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let used = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(OwnUse {
        resident: number("VmRSS") * 1024,
        // One of them is that of the listing itself.
        descriptors: std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1),
        descriptors_max: getrlimit(Resource::RLIMIT_NOFILE)?.0,
        threads: number("Threads"),
        cpu_s: seconds(used.user_time()) + seconds(used.system_time()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_own_size_and_descriptors() {
        let before = own_use().unwrap();
        let files: Vec<_> = (0..10).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = own_use().unwrap();
        assert!(after.descriptors >= before.descriptors.saturating_sub(5) + files.len() - 5, "{before:?} {after:?}");
        assert!(after.resident > 1 << 20 && after.threads >= 1 && after.descriptors_max >= 64, "{after:?}");
    }
}
