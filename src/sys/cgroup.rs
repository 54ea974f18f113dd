//! Control groups of a task, on cgroup v2 and on v1 or hybrid machines.
//!
//! A group is named by its path below the hierarchy's root (`/trainyard-1a2b/a17-0`), the same in every v1 hierarchy.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use super::process::PidFd;

const ROOT: &str = "/sys/fs/cgroup";
/// How long killed processes may take to go; one stuck in the kernel must not hold us for ever.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// How this machine's control groups are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One hierarchy with all controllers.
    V2,
    /// A hierarchy for each controller; also when a v2 hierarchy without controllers lies beside.
    V1,
}

/// Looks at what is mounted.
pub fn layout() -> Layout {
    if Path::new(ROOT).join("cgroup.controllers").exists() { Layout::V2 } else { Layout::V1 }
}

/// Whether the kernel has a controller, where we look for it.
pub fn has_controller(controller: &str) -> bool {
    match layout() {
        Layout::V1 => Path::new(ROOT).join(controller).is_dir(),
        Layout::V2 => {
            let known = fs::read_to_string(Path::new(ROOT).join("cgroup.controllers")).unwrap_or_default();
            known.split_whitespace().any(|known| known == controller)
        }
    }
}

pub(super) fn v2_directory(group: &str) -> PathBuf {
    Path::new(ROOT).join(group.trim_start_matches('/'))
}

pub(super) fn v1_directory(controller: &str, group: &str) -> PathBuf {
    Path::new(ROOT).join(controller).join(group.trim_start_matches('/'))
}

/// The group's directory in every hierarchy that counts.
fn directories(group: &str) -> io::Result<Vec<PathBuf>> {
    let group = group.trim_start_matches('/');
    if group.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the root control group is not ours"));
    }
    if layout() == Layout::V2 {
        return Ok(vec![Path::new(ROOT).join(group)]);
    }
    let mut out = Vec::new();
    for entry in fs::read_dir(ROOT)? {
        let entry = entry?;
        // `cpu` and `cpuacct` may be links to one directory.
        if entry.file_type()?.is_dir() {
            out.push(entry.path().join(group));
        }
    }
    Ok(out)
}

fn controller_file(group: &str, v1_controller: &str, v1_file: &str, v2_file: &str) -> PathBuf {
    let group = group.trim_start_matches('/');
    match layout() {
        Layout::V2 => Path::new(ROOT).join(group).join(v2_file),
        Layout::V1 => Path::new(ROOT).join(v1_controller).join(group).join(v1_file),
    }
}

/// How often the kernel killed a process of the group for want of memory.
pub fn oom_kills(group: &str) -> io::Result<u64> {
    let path = controller_file(group, "memory", "memory.oom_control", "memory.events");
    let text = fs::read_to_string(path)?;
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
}

/// Most memory that the group held at once, in bytes, where the kernel tells.
pub fn memory_peak(group: &str) -> Option<u64> {
    let path = controller_file(group, "memory", "memory.max_usage_in_bytes", "memory.peak");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// What a group uses or has used; `None` where the kernel does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time so far, microseconds.
    pub cpu_usec: Option<u64>,
    /// Bytes, page cache included.
    pub memory: Option<u64>,
    pub memory_peak: Option<u64>,
    /// Bytes from and to block devices so far.
    pub io_read: Option<u64>,
    pub io_written: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// Reads what the kernel counts of the group.
pub fn usage(group: &str) -> Usage {
    let number = |controller, v1_file, v2_file| {
        let path = controller_file(group, controller, v1_file, v2_file);
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    let cpu_usec = match layout() {
        Layout::V1 => number("cpuacct", "cpuacct.usage", "").map(|nanos| nanos / 1000),
        Layout::V2 => {
            fs::read_to_string(controller_file(group, "", "", "cpu.stat")).ok().and_then(|text| cpu_time(&text))
        }
    };
    let io = io_bytes(group);
    Usage {
        cpu_usec,
        memory: number("memory", "memory.usage_in_bytes", "memory.current"),
        memory_peak: memory_peak(group),
        io_read: io.map(|(read, _)| read),
        io_written: io.map(|(_, written)| written),
        pids: number("pids", "pids.current", "pids.current"),
    }
}

fn cpu_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

fn io_bytes(group: &str) -> Option<(u64, u64)> {
    let files: &[&str] = match layout() {
        Layout::V1 => &["blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"],
        Layout::V2 => &["io.stat"],
    };
    let text = files.iter().find_map(|file| fs::read_to_string(controller_file(group, "blkio", file, file)).ok())?;
    Some(sum_io(&text))
}

/// Sums over devices: `8:0 rbytes=1 wbytes=2 …` on v2, `8:0 Read 1` and `8:0 Write 2` on v1.
fn sum_io(text: &str) -> (u64, u64) {
    let (mut read, mut written) = (0, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "Read", count] => read += count.parse().unwrap_or(0),
            [_, "Write", count] => written += count.parse().unwrap_or(0),
            [_, pairs @ ..] => {
                let value = |key: &str| pairs.iter().find_map(|pair| pair.strip_prefix(key)?.parse::<u64>().ok());
                read += value("rbytes=").unwrap_or(0);
                written += value("wbytes=").unwrap_or(0);
            }
            [] => {}
        }
    }
    (read, written)
}

/// The processes in the group, by number.
pub fn processes(group: &str) -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for directory in directories(group)? {
        let text = match fs::read_to_string(directory.join("cgroup.procs")) {
            Ok(text) => text,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        // Processes of another pid namespace read as 0.
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The name of the group directly below `group` that a process is in, or in a group below that; none where it is elsewhere, or
/// gone.
pub fn group_of_process(pid: u32, group: &str) -> Option<String> {
    named_below(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?, group)
}

/// Lines are `NUMBER:CONTROLLERS:PATH`. On v1 all that counts is in the same place in every hierarchy.
fn named_below(lines: &str, group: &str) -> Option<String> {
    let above = group.trim_matches('/');
    let name = |line: &str| {
        let path = line.splitn(3, ':').nth(2)?.trim_start_matches('/');
        let below = path.strip_prefix(above)?.strip_prefix('/')?;
        below.split('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
    };
    lines.lines().find_map(name)
}

/// Hierarchies of v1 that a group of our own needs: those by which its processes are found and killed.
const OWN_V1: [&str; 3] = ["freezer", "memory", "pids"];

/// Makes a group for processes of our own, without limits; one that is there stays.
pub fn make(group: &str) -> io::Result<()> {
    match layout() {
        Layout::V2 => super::file::create_dir(&v2_directory(group), 0o755),
        Layout::V1 => {
            let mut here = OWN_V1.iter().filter(|controller| Path::new(ROOT).join(controller).exists());
            here.try_for_each(|controller| fs::create_dir_all(v1_directory(controller, group)))
        }
    }
}

/// Moves this process into the group, in every hierarchy that has it.
pub fn join(group: &str) -> io::Result<()> {
    let mut joined = false;
    for directory in directories(group)? {
        match fs::write(directory.join("cgroup.procs"), "0") {
            Ok(()) => joined = true,
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if joined { Ok(()) } else { Err(io::Error::new(io::ErrorKind::NotFound, "the control group is gone")) }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ENODEV)
}

/// Kills every process of the group and waits until they are gone. [`io::ErrorKind::TimedOut`] names those that hang in the
/// kernel.
pub fn kill_all(group: &str) -> io::Result<()> {
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        let victims: Vec<PidFd> = processes(group)?.into_iter().filter_map(|pid| PidFd::open(pid).ok()).collect();
        if victims.is_empty() {
            return Ok(());
        }
        kill_at_once(group, &victims)?;
        for victim in &victims {
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_for_end(victim, left)? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, hanging(group)));
            }
        }
    }
}

fn kill_at_once(group: &str, victims: &[PidFd]) -> io::Result<()> {
    if layout() == Layout::V2 && fs::write(controller_file(group, "", "", "cgroup.kill"), "1").is_ok() {
        return Ok(());
    }
    // Frozen processes cannot fork away from under the list.
    let freezer = controller_file(group, "freezer", "freezer.state", "cgroup.freeze");
    let (freeze, thaw) = if layout() == Layout::V2 { ("1", "0") } else { ("FROZEN", "THAWED") };
    let frozen = fs::write(&freezer, freeze).is_ok();
    let killed = victims.iter().try_for_each(|victim| match victim.signal(Signal::SIGKILL) {
        Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => Err(error),
        _ => Ok(()),
    });
    if frozen {
        // Only what is thawed can die.
        fs::write(freezer, thaw)?;
    }
    killed
}

/// Whether it ended in time.
fn wait_for_end(process: &PidFd, patience: Duration) -> io::Result<bool> {
    let timeout = u16::try_from(patience.as_millis()).unwrap_or(u16::MAX);
    let mut ready = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut ready, timeout)? > 0)
}

/// Most processes that are named.
const NAMED_MAX: usize = 5;

/// Which killed processes do not go, and what they wait for.
fn hanging(group: &str) -> String {
    let left = processes(group).unwrap_or_default();
    let stat = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let waits_for = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let named: Vec<String> = left.iter().filter_map(|pid| name_of_hanging(*pid, &stat(pid), &waits_for(pid))).collect();
    if named.is_empty() {
        return format!("{} killed process(es) do not go", left.len());
    }
    let more = if named.len() > NAMED_MAX { format!(" and {} more", named.len() - NAMED_MAX) } else { String::new() };
    let named = named.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("killed, but hanging in the kernel (state D): {named}{more}; a file system or a device may not answer")
}

/// `pid 7 (dd) in nfs_wait`, from its `stat` and its `wchan`, if it is one that no signal reaches.
fn name_of_hanging(pid: i32, stat: &str, waits_for: &str) -> Option<String> {
    let (start, rest) = stat.rsplit_once(')')?;
    let name = start.split_once('(')?.1;
    rest.trim_start().starts_with('D').then_some(())?;
    let place = match waits_for.trim() {
        "" | "0" => String::new(),
        function => format!(" in {function}"),
    };
    Some(format!("pid {pid} ({}){place}", name.escape_debug()))
}

/// Kills what is in the group and removes it from every hierarchy, with the groups below it.
pub fn remove(group: &str) -> io::Result<()> {
    kill_all(group)?;
    for directory in directories(group)? {
        remove_directory(&directory)?;
    }
    Ok(())
}

fn remove_directory(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_directory(&entry.path())?;
        }
    }
    super::file::ignore_missing(fs::remove_dir(directory))
}

/// Names of the groups directly below `group`.
pub fn children(group: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for directory in directories(group)? {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Finds or makes the group below which tasks get theirs.
///
/// On v2 a group with processes cannot hand out controllers, and one that has handed some out takes no processes. A service
/// manager that starts us in a leaf (`DelegateSubgroup=daemon`, systemd 254) leaves us the rest of our group. An older one starts us
/// in the group itself, also the next time: were tasks in there, it could not. Then they are in `fallback`, beside it, as
/// they are for a daemon that was started by hand and shares its group with a shell. One that is alone in a group that nobody else
/// starts it in moves to a leaf by itself.
pub fn prepare_tasks_group(fallback: &str) -> io::Result<String> {
    if layout() == Layout::V1 {
        return Ok(fallback.to_owned());
    }
    let own = own_group()?;
    let base = match own.strip_suffix(LEAF).filter(|base| !base.is_empty()) {
        Some(base) => base.to_owned(),
        None if is_ours_alone(&own) && !super::service::is_ours() => {
            let leaf = v2_directory(&own).join(LEAF.trim_start_matches('/'));
            super::file::create_dir(&leaf, 0o755)?;
            fs::write(leaf.join("cgroup.procs"), std::process::id().to_string())?;
            own
        }
        None => return prepare_group(fallback),
    };
    hand_out_controllers(&v2_directory(&base))?;
    prepare_group(&format!("{base}/tasks"))
}

/// Where the daemon is below a group that was delegated to it.
const LEAF: &str = "/daemon";

fn is_ours_alone(group: &str) -> bool {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    group != "/" && processes(group).is_ok_and(|pids| pids == [own])
}

fn prepare_group(group: &str) -> io::Result<String> {
    hand_out_controllers(Path::new(ROOT))?;
    let directory = Path::new(ROOT).join(group.trim_start_matches('/'));
    super::file::create_dir(&directory, 0o755)?;
    hand_out_controllers(&directory)?;
    Ok(group.to_owned())
}

fn hand_out_controllers(directory: &Path) -> io::Result<()> {
    let control = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control)?;
    for controller in ["cpu", "memory", "pids"] {
        if !enabled.split_whitespace().any(|known| known == controller) {
            fs::write(&control, format!("+{controller}"))?;
        }
    }
    // Tasks run without these as well.
    let available = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    for controller in ["io", "cpuset"] {
        let has = |list: &str| list.split_whitespace().any(|known| known == controller);
        if has(&available) && !has(&enabled) {
            let _ = fs::write(&control, format!("+{controller}"));
        }
    }
    Ok(())
}

/// Whether groups below `group` can be kept to certain processor cores.
pub fn knows_cores(group: &str) -> bool {
    match layout() {
        Layout::V1 => Path::new(ROOT).join("cpuset/cpuset.cpus").exists(),
        Layout::V2 => {
            let enabled = fs::read_to_string(v2_directory(group).join("cgroup.subtree_control")).unwrap_or_default();
            enabled.split_whitespace().any(|known| known == "cpuset")
        }
    }
}

fn own_group() -> io::Result<String> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::"));
    own.map(str::to_owned).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no v2 control group of our own"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_in_the_kernel_is_named() {
        let named = |stat, place| name_of_hanging(7, stat, place);
        assert_eq!(named("7 (d) d) D 1 7 7 0", "nfs_wait_on_request").unwrap(), "pid 7 (d) d) in nfs_wait_on_request");
        assert_eq!(named("7 (dd) D 1 7 7 0", "0").unwrap(), "pid 7 (dd)");
        assert_eq!(named("7 (dd) Z 1 7 7 0", ""), None);
        assert_eq!(named("", ""), None);
    }

    #[test]
    fn usage_is_read_as_both_kernels_write_it() {
        let v2 = "8:0 rbytes=4096 wbytes=100 rios=1 wios=1 dbytes=0 dios=0\n259:0 rbytes=1 wbytes=2 rios=1\n";
        assert_eq!(sum_io(v2), (4097, 102));
        let v1 = "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\n8:16 Read 1\nTotal 31\n";
        assert_eq!(sum_io(v1), (11, 20));
        assert_eq!(sum_io("Total 0\n"), (0, 0));
        assert_eq!(cpu_time("usage_usec 12345\nuser_usec 1\n"), Some(12345));
        assert_eq!(usage("/trainyard-there-is-no-such-group"), Usage::default());
    }

    #[test]
    fn a_process_is_in_the_group_below_which_it_lies_and_in_no_other_of_that_name() {
        let v1 = "9:name=systemd:/user.slice/a9-0\n8:memory:/trainyard-1/a7-0/inner\n7:cpu:/trainyard-1/a7-0\n";
        assert_eq!(named_below(v1, "/trainyard-1").as_deref(), Some("a7-0"));
        assert_eq!(named_below("0::/trainyard-1/a7-0.1\n", "trainyard-1/").as_deref(), Some("a7-0.1"));
        for other in ["0::/trainyard-12/a7-0\n", "0::/x/trainyard-1/a7-0\n", "0::/trainyard-1\n", "0::/\n", ""] {
            assert_eq!(named_below(other, "/trainyard-1"), None, "{other}");
        }
        assert_eq!(group_of_process(u32::MAX, "/"), None);
    }
}
