//! Processes: their descriptors, how they end, and what this one does to itself. `program` starts them, `rights` are what they may, `writers`
//! who has what open to be written.

mod program;
mod rights;
mod writers;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};

pub use program::{
    Child, Launch, SealedProgram, Streams, begin_anew, run_tool, run_tool_in_group, run_within, start_companion,
    start_companion_that_tells, start_to_write,
};
pub use rights::{
    Kept, become_user, drop_own_capabilities, give_up_resource_override, groups_of, is_group_of_one, name_of,
    primary_group_of, raise_open_files, take_limits_of, with_file_rights,
};
pub use writers::writers_below;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    Exited(i32),
    Signalled {
        signal: i32,
        /// The kernel made a dump of its memory.
        core: bool,
    },
}

/// A process descriptor: names one process for ever, whatever happens to its number.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    #[expect(unsafe_code, reason = "neither std nor nix wraps pidfd_open")]
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: needed for a race-free handle; the call takes two integers and returns a descriptor or -1.
        let result = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(nix::errno::Errno::result(result)?).map_err(io::Error::other)?;
        // SAFETY: the kernel just returned this descriptor to us and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) -> io::Result<()> {
        self.signal_number(signal as i32)
    }

    /// Sends a signal that may be one without a name.
    #[expect(unsafe_code, reason = "neither std nor nix wraps pidfd_send_signal")]
    pub fn signal_number(&self, signal: i32) -> io::Result<()> {
        let no_info: *const nix::libc::siginfo_t = std::ptr::null();
        // SAFETY: needed to signal exactly this process; a null siginfo is allowed and the descriptor is ours.
        let result =
            unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, no_info, 0) };
        nix::errno::Errno::result(result)?;
        Ok(())
    }

    /// Whether it ends within so many milliseconds.
    pub fn has_ended(&self, timeout: u16) -> io::Result<bool> {
        let mut ready = [nix::poll::PollFd::new(self.0.as_fd(), nix::poll::PollFlags::POLLIN)];
        Ok(nix::poll::poll(&mut ready, timeout)? > 0)
    }

    /// Takes the exit status if the process has ended and is our child; `None` while it runs.
    pub fn reap(&self) -> io::Result<Option<ProcessEnd>> {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        // Not by nix: to it an end by a real-time signal is an error.
        let status = waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
        Ok(status.and_then(|status| {
            let killed = status.terminating_signal();
            let killed = killed.map(|signal| ProcessEnd::Signalled { signal, core: status.dumped() });
            killed.or(status.exit_status().map(ProcessEnd::Exited))
        }))
    }
}

/// Whether the kernel says that a process has begun to end, or has ended and its parent has not asked how.
pub fn is_ending(pid: i32) -> bool {
    /// That it is "getting shut down" (proc(5), field `flags`).
    const EXITING: u32 = 0x4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let state = fields.next();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u32>().ok()).unwrap_or(0);
    matches!(state, Some("Z" | "X")) || flags & EXITING != 0
}

/// A child that is gone and reaped when this is dropped.
#[derive(Debug)]
pub struct EndedOnDrop(pub std::sync::Arc<PidFd>);

impl EndedOnDrop {
    /// How it ended; what does not end within so many milliseconds is ended.
    pub fn end(self, within: u16) -> io::Result<Option<ProcessEnd>> {
        self.0.has_ended(within)?;
        self.0.reap()
    }
}

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        // These fail where it has ended and was reaped.
        let _ = self.0.signal(nix::sys::signal::Signal::SIGKILL);
        let _ = self.0.has_ended(u16::MAX);
        let _ = self.0.reap();
    }
}

/// Takes the exit status of any child that has ended, with its number; `None` while there is no such.
pub fn reap_any() -> io::Result<Option<(i32, ProcessEnd)>> {
    use rustix::process::{WaitOptions, wait};
    const DUMPED: i32 = 0x80;
    loop {
        let (pid, status) = match wait(WaitOptions::NOHANG) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(None),
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let killed = status.terminating_signal();
        let killed = killed.map(|signal| ProcessEnd::Signalled { signal, core: status.as_raw() & DUMPED != 0 });
        if let Some(end) = killed.or(status.exit_status().map(ProcessEnd::Exited)) {
            return Ok(Some((pid.as_raw_nonzero().get(), end)));
        }
    }
}

/// Waits until the process has ended.
pub async fn ended(process: std::sync::Arc<PidFd>) -> io::Result<()> {
    let watched = register(process)?;
    let _ready = watched.readable().await?;
    Ok(())
}

struct Registered(std::sync::Arc<PidFd>);

impl AsRawFd for Registered {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

#[expect(unsafe_code, reason = "tokio cannot see that the descriptor stays open")]
fn register(process: std::sync::Arc<PidFd>) -> io::Result<tokio::io::unix::AsyncFd<Registered>> {
    // SAFETY: needed to be told of the end instead of asking; the descriptor is owned through the Arc that is
    // registered, so it is open and the same for as long as the registration.
    let registered =
        unsafe { tokio::io::unix::AsyncFd::register_with_interest(Registered(process), tokio::io::Interest::READABLE) };
    Ok(registered?)
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Moves an inherited descriptor, known by number from our own command line, into an owned one.
#[expect(unsafe_code, reason = "a number from the parent is all that exec carries over")]
pub fn take_inherited(fd: i32) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an inherited descriptor"));
    }
    // SAFETY: our parent opened it for us and tells the number once; fcntl below proves that it is open.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    nix::fcntl::fcntl(&owned, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    Ok(owned)
}

/// A file in memory, for what the next program of this process reads.
pub fn file_in_memory(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC)?))
}

/// Writes to a descriptor that is known by its number only, because it came through a clone.
#[expect(unsafe_code, reason = "a number is all that crosses libcontainer's clone")]
pub fn write_by_number(fd: i32, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: needed to report from the container's first process, which kept this descriptor open for that; it is not
    // closed or used elsewhere while it is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    nix::unistd::write(fd, bytes)?;
    Ok(())
}

/// Closes every descriptor above standard error except `keep`; for single-threaded processes only.
pub fn close_all_but(keep: &[i32]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep {
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX)
}

#[expect(unsafe_code, reason = "neither std nor nix wraps close_range")]
fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: needed to drop what a parent leaked; the caller keeps what it still uses, and is single-threaded.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, first, last, 0) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

/// The two sides of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    Child,
    Parent(nix::unistd::Pid),
}

/// Forks. In a program with threads the child may only make system calls: memory may be locked by a thread that it does not
/// have.
#[expect(unsafe_code, reason = "fork is unsafe in programs with threads")]
pub fn fork() -> io::Result<Fork> {
    // SAFETY: needed for the first processes of containers and of process namespaces, for what enters one, and for user
    // namespaces. All but the last are forked by programs that have one thread, so that the child may do all that the parent
    // could; the last by programs with threads as well, and it closes pipes, unshares, reads, writes and ends, and takes no memory.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => Ok(Fork::Child),
        nix::unistd::ForkResult::Parent { child } => Ok(Fork::Parent(child)),
    }
}

/// Ends the process at once, running no destructors and flushing nothing.
#[expect(unsafe_code, reason = "std's exit runs handlers that belong to the parent")]
pub fn exit_now(code: i32) -> ! {
    // SAFETY: needed after a fork; ends the process, so nothing can be left inconsistent in it.
    unsafe { nix::libc::_exit(code) }
}

/// Does `work` with this out-of-memory score where our own is lower: whoever is forked meanwhile has it, and the service that we are of
/// may be protected.
pub fn with_oom_score<T>(score: i32, work: impl FnOnce() -> T) -> io::Result<T> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own = std::fs::read_to_string(FILE)?;
    if own.trim().parse::<i32>().is_ok_and(|own| own >= score) {
        return Ok(work());
    }
    std::fs::write(FILE, score.to_string())?;
    let done = work();
    if let Err(error) = std::fs::write(FILE, own.trim()) {
        tracing::warn!(%error, "this process stays as likely to be killed for want of memory as what it has started");
    }
    Ok(done)
}

/// Processor cores that this process may use.
pub fn own_cores() -> io::Result<std::collections::BTreeSet<u32>> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    let may = |core: &u32| usize::try_from(*core).is_ok_and(|core| set.is_set(core).unwrap_or(false));
    Ok((0..u32::try_from(nix::sched::CpuSet::count()).unwrap_or(1024)).filter(may).collect())
}

/// From so many bytes on memory is the machine's again when it is let go of; with which glibc begins.
#[cfg(target_env = "gnu")]
const LARGE: i32 = 128 << 10;

/// Hands free memory of the heap back to the machine: of a process that has done its work and now only waits, and of the daemon.
#[expect(unsafe_code, reason = "glibc's own call")]
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: needed since a shim lives as long as its task, and the daemon after its bursts; the call takes a number and touches only free memory.
    unsafe {
        nix::libc::malloc_trim(0)
    };
}

/// The same, once in two seconds at most: it looks through all of the heap.
pub fn give_memory_back_at_times() {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(2)) {
        *last = Some(Instant::now());
        drop(last);
        give_memory_back();
    }
}

/// Has all threads take their memory from one heap, before there is a second thread. glibc gives threads that meet heaps of their own,
/// and what is free in one serves none of the others. What is large never lies there: by itself glibc would put into the heap whatever is
/// no larger than the largest that was given back so far, and keep as much free at its end.
#[expect(unsafe_code, reason = "glibc's own call")]
pub fn have_one_heap() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [(nix::libc::M_ARENA_MAX, 1), (nix::libc::M_MMAP_THRESHOLD, LARGE)] {
        // SAFETY: needed since the daemon's threads would keep megabytes free in four heaps; the call takes two numbers and touches only
        // settings of glibc's own.
        unsafe { nix::libc::mallopt(setting, value) };
    }
}

/// Goes on as the first process of a process namespace: whatever is started from now on ends with it, and it ends with the
/// process that it was, which waits for it. For processes of one thread.
pub fn go_on_in_own_processes() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID)?;
    match fork()? {
        Fork::Child => {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            // From outside of the namespace it has the number 0; gone, it has none of ours either: then the pipe is closed.
            Ok(())
        }
        Fork::Parent(child) => {
            let ended = nix::sys::wait::waitpid(child, None);
            exit_now(if matches!(ended, Ok(nix::sys::wait::WaitStatus::Exited(_, 0))) { 0 } else { 1 })
        }
    }
}

/// The peer's uid of a connected unix socket.
pub fn peer_uid(socket: &impl AsFd) -> io::Result<u32> {
    let credentials = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(credentials.uid())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pidfd_tells_how_its_child_ended() {
        #[expect(
            clippy::disallowed_methods,
            clippy::zombie_processes,
            reason = "a plain child, reaped by what is tested"
        )]
        let child = Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pidfd = PidFd::open(i32::try_from(child.id()).unwrap()).unwrap();
        let mut poll = [nix::poll::PollFd::new(pidfd.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut poll, 10_000u16).unwrap();
        assert_eq!(pidfd.reap().unwrap(), Some(ProcessEnd::Exited(7)));
    }
}
