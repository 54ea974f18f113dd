//! Processes: starting our own binary from a sealed copy, process descriptors, how a process ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};

/// A sealed in-memory copy of this program.
///
/// A container must not reach the program on disk through `/proc/PID/exe` (CVE-2019-5736), and a running shim must
/// not depend on a file that an upgrade replaces. One copy serves every child of a daemon.
#[derive(Debug)]
pub struct SealedProgram(File);

impl SealedProgram {
    pub fn of_this_program() -> io::Result<Self> {
        Self::of(std::path::Path::new("/proc/self/exe"))
    }

    /// A copy of the program of the process `pid`.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        Self::of(std::path::Path::new(&format!("/proc/{pid}/exe")))
    }

    pub fn of(path: &std::path::Path) -> io::Result<Self> {
        let mut copy = File::from(memfd_create("trainyard", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        let program = File::open(path)?;
        // It stays in memory: what is only for debuggers is left out, which may be the most of it.
        let length = loaded_length(&program)?;
        io::copy(&mut program.take(length), &mut copy)?;
        copy.flush()?;
        copy.rewind()?;
        let seals = nix::fcntl::SealFlag::F_SEAL_SHRINK
            | nix::fcntl::SealFlag::F_SEAL_GROW
            | nix::fcntl::SealFlag::F_SEAL_WRITE
            | nix::fcntl::SealFlag::F_SEAL_SEAL;
        nix::fcntl::fcntl(&copy, nix::fcntl::FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(copy))
    }

    /// Whether the process `pid` runs this very program.
    pub fn is_run_by(&self, pid: i32) -> io::Result<bool> {
        let other = File::open(format!("/proc/{pid}/exe"))?;
        let length = self.0.metadata()?.len();
        if loaded_length(&other)? != length {
            return Ok(false);
        }
        let mut place = 0;
        let (mut own, mut others) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        while place < length {
            let count = usize::try_from(length - place).unwrap_or(usize::MAX).min(own.len());
            self.0.read_exact_at(&mut own[..count], place)?;
            other.read_exact_at(&mut others[..count], place)?;
            if own[..count] != others[..count] {
                return Ok(false);
            }
            place += count as u64;
        }
        Ok(true)
    }

    /// Goes on in this process as this program, with `inherit` descriptors under their numbers; returns only if that fails. Blocked
    /// signals stay blocked.
    pub fn replace_this_process(&self, arguments: &[OsString], inherit: &[i32]) -> io::Error {
        let done = self.replace(arguments, inherit);
        // They are ours as before.
        inherit.iter().for_each(|fd| drop(set_close_on_exec(*fd, nix::fcntl::FdFlag::FD_CLOEXEC)));
        done.map_or_else(|error| error, |never| match never {})
    }

    fn replace(&self, arguments: &[OsString], inherit: &[i32]) -> io::Result<std::convert::Infallible> {
        let arguments = std::iter::once("trainyard".as_ref()).chain(arguments.iter().map(OsString::as_os_str));
        let arguments = arguments.map(|argument| std::ffi::CString::new(argument.as_encoded_bytes()));
        let arguments: Vec<_> = arguments.collect::<Result<_, _>>()?;
        for fd in inherit {
            clear_close_on_exec(*fd)?;
        }
        let environment: [&std::ffi::CStr; 0] = [];
        Ok(nix::unistd::fexecve(&self.0, &arguments, &environment)?)
    }

    /// Starts the program with `arguments`, an empty environment but for `environment`, in `/`, in a session of its own.
    ///
    /// `inherit` descriptors keep their numbers in the child; standard output and error go to `log`.
    pub fn spawn(&self, launch: Launch<'_>) -> io::Result<Child> {
        let mut command = self.command();
        command
            .args(launch.arguments)
            .envs(launch.environment)
            .stdin(Stdio::null())
            .stdout(launch.log.try_clone()?)
            .stderr(launch.log.try_clone()?);
        Self::start(command, &launch.inherit)
    }

    /// As [`Self::spawn`], with these standard streams; `/dev/null` where there are none.
    pub fn spawn_with_streams(
        &self,
        arguments: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
        inherit: &[BorrowedFd<'_>],
        streams: Option<Streams>,
    ) -> io::Result<Child> {
        let mut command = self.command();
        command.args(arguments).envs(environment);
        match streams {
            Some(streams) => command.stdin(streams.stdin).stdout(streams.stdout).stderr(streams.stderr),
            None => command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()),
        };
        Self::start(command, inherit)
    }

    /// What the program writes to its standard output with `arguments`; an error if it fails, or has not ended in time. Not for much
    /// output: it is read when the program has ended.
    pub fn output(&self, arguments: &[OsString], patience: std::time::Duration) -> io::Result<String> {
        let (mut told, writer) = io::pipe()?;
        let (null, unread) = (File::open("/dev/null")?, File::options().write(true).open("/dev/null")?);
        let streams = Streams { stdin: null.into(), stdout: writer.into(), stderr: unread.into() };
        let child = self.spawn_with_streams(arguments.to_vec(), Vec::new(), &[], Some(streams))?;
        let child = EndedOnDrop(std::sync::Arc::new(child.pidfd));
        match child.end(u16::try_from(patience.as_millis()).unwrap_or(u16::MAX))? {
            Some(ProcessEnd::Exited(0)) => {}
            Some(end) => return Err(io::Error::other(format!("the program has ended with {end:?}"))),
            None => return Err(io::ErrorKind::TimedOut.into()),
        }
        let mut text = String::new();
        told.read_to_string(&mut text)?;
        Ok(text)
    }

    fn command(&self) -> Command {
        let mut command = new_command(&format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        command.arg0("trainyard");
        command
    }

    fn start(mut command: Command, inherit: &[BorrowedFd<'_>]) -> io::Result<Child> {
        let inherit: Vec<i32> = inherit.iter().map(AsRawFd::as_raw_fd).collect();
        in_own_session(&mut command, inherit);
        let mut child = command.spawn()?;
        let opened = i32::try_from(child.id()).map_err(io::Error::other).and_then(|pid| Ok((pid, PidFd::open(pid)?)));
        match opened {
            Ok((pid, pidfd)) => Ok(Child { pid, pidfd }),
            Err(error) => {
                // Out of descriptors: nobody could end it or reap it later.
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }
}

/// Up to where the file of a program (ELF, 64 bits, of this machine) is looked at when it is executed: the end of its last
/// loaded segment.
fn loaded_length(program: &File) -> io::Result<u64> {
    const PT_LOAD: u32 = 1;
    let number = |at: u64| -> io::Result<u64> {
        let mut bytes = [0; 8];
        program.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    // `e_phoff`, `e_phentsize`, `e_phnum`; of each header `p_type`, `p_offset`, `p_filesz`.
    let (headers, sizes) = (number(0x20)?, number(0x36)?);
    let (size, count) = (sizes & 0xffff, (sizes >> 16) & 0xffff);
    let mut end = headers + size * count;
    for header in (0..count).map(|index| headers + size * index) {
        if number(header)? as u32 == PT_LOAD {
            end = end.max(number(header + 0x08)? + number(header + 0x20)?);
        }
    }
    Ok(end.min(program.metadata()?.len()))
}

/// What [`SealedProgram::spawn`] starts.
#[derive(Debug)]
pub struct Launch<'a> {
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub inherit: Vec<BorrowedFd<'a>>,
    pub log: &'a File,
}

/// Standard input, output and error.
#[derive(Debug)]
pub struct Streams {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A started child; it is reaped by [`PidFd::reap`].
#[derive(Debug)]
pub struct Child {
    pub pid: i32,
    pub pidfd: PidFd,
}

/// A command with an empty environment and `/` as its working directory.
#[expect(clippy::disallowed_methods, reason = "the one place where commands are made")]
fn new_command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir("/");
    command
}

#[expect(unsafe_code, reason = "std offers no safe hook between fork and exec")]
fn in_own_session(command: &mut Command, inherit: Vec<i32>) {
    let prepare = move || {
        nix::unistd::setsid()?;
        for fd in &inherit {
            clear_close_on_exec(*fd)?;
        }
        Ok(())
    };
    // SAFETY: needed to start a session and keep descriptors; the closure makes only async-signal-safe calls
    // (setsid, fcntl) and does not allocate.
    unsafe { command.pre_exec(prepare) };
}

fn clear_close_on_exec(fd: i32) -> io::Result<()> {
    set_close_on_exec(fd, nix::fcntl::FdFlag::empty())
}

#[expect(unsafe_code, reason = "the descriptor is known by number only")]
fn set_close_on_exec(fd: i32, flag: nix::fcntl::FdFlag) -> io::Result<()> {
    // SAFETY: whoever gives the number keeps the descriptor open: the parent across a fork, the caller across an exec.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(flag))?;
    Ok(())
}

/// Runs a program with `input` on its standard input, for so long at most: then it is killed, with what it has started in its
/// process group.
pub fn run_within(
    program: &str,
    arguments: &[&str],
    input: &str,
    patience: std::time::Duration,
) -> io::Result<std::process::ExitStatus> {
    use nix::sys::signal::{Signal, killpg};
    use std::os::unix::process::CommandExt;
    let mut child = new_command(program)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let ended = std::thread::scope(|scope| {
        let stdin = child.stdin.take();
        // It need not read what it is given; a killed one has no reader any more.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        let ended =
            PidFd::open(pid).and_then(|pidfd| pidfd.has_ended(u16::try_from(patience.as_millis()).unwrap_or(u16::MAX)));
        if !matches!(ended, Ok(true)) {
            // It is not reaped yet, so the number is its own.
            let _ = killpg(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
        }
        ended
    });
    let status = child.wait()?;
    if ended? { Ok(status) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Runs a system tool (such as `nft`) with `input` on its standard input and waits for it.
pub fn run_tool(program: &str, arguments: &[&str], input: &str) -> io::Result<Output> {
    let mut child = new_command(program)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    child.wait_with_output()
}

/// Starts this very program with `arguments`, in a session of its own. Its standard input is the other end of a pipe: it hears by
/// that when we end.
pub fn start_companion(arguments: Vec<OsString>) -> io::Result<std::process::Child> {
    let mut command = new_command("/proc/self/exe");
    command.arg0("trainyard").args(arguments).envs(super::service::journal()).stdin(Stdio::piped());
    in_own_session(&mut command, Vec::new());
    command.spawn()
}

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
            close_range(from, fd - 1, 0)?;
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX, 0)
}

/// Gives this thread, and those that it starts from now on, descriptors of their own, which are the standard streams alone. One
/// that hangs in the kernel keeps no lock and no socket then of a process that has been killed. It uses nothing that others have
/// opened, nor they what it opens: no channels that wake by a descriptor.
pub fn take_own_descriptors() -> io::Result<()> {
    close_range(3, u32::MAX, nix::libc::CLOSE_RANGE_UNSHARE)
}

#[expect(unsafe_code, reason = "neither std nor nix wraps close_range")]
fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    // SAFETY: needed to drop what a parent leaked, or other threads have; the caller keeps what it still uses, and is
    // single-threaded or closes but its own copies.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, first, last, flags) };
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

/// Lifts the soft limit on open files to the hard one: each task and each open file of the mount takes some.
pub fn raise_open_files() -> io::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Gives up what would let this process, and threads that it starts from now on, have more than a quota.
pub fn give_up_resource_override() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    Ok(set_capabilities(None, sets)?)
}

/// Processor cores that this process may use.
pub fn own_cores() -> io::Result<std::collections::BTreeSet<u32>> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    let may = |core: &u32| usize::try_from(*core).is_ok_and(|core| set.is_set(core).unwrap_or(false));
    Ok((0..u32::try_from(nix::sched::CpuSet::count()).unwrap_or(1024)).filter(may).collect())
}

/// Hands free memory of the heap back to the machine: a process that has done its work and now only waits.
#[expect(unsafe_code, reason = "glibc's own call")]
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: needed since a shim lives as long as its task; the call takes a number and touches only free memory.
    unsafe {
        nix::libc::malloc_trim(0)
    };
}

/// The group that a user's processes have at first; nobody's of somebody who is not known.
pub fn primary_group_of(uid: u32) -> u32 {
    nix::unistd::User::from_uid(uid.into()).ok().flatten().map_or(65534, |user| user.gid.as_raw())
}

/// Every group that a user is a member of.
pub fn groups_of(uid: u32) -> Vec<u32> {
    let Some(user) = nix::unistd::User::from_uid(uid.into()).ok().flatten() else { return Vec::new() };
    let Ok(name) = std::ffi::CString::new(user.name) else { return Vec::new() };
    let groups = nix::unistd::getgrouplist(&name, user.gid).unwrap_or_default();
    groups.into_iter().map(nix::unistd::Gid::as_raw).collect()
}

/// Kinds of resource limits, by their numbers (Linux, all architectures but old ones).
const LIMITS: [&str; 16] = [
    "cpu",
    "fsize",
    "data",
    "stack",
    "core",
    "rss",
    "nproc",
    "nofile",
    "memlock",
    "as",
    "locks",
    "sigpending",
    "msgqueue",
    "nice",
    "rtprio",
    "rttime",
];

/// Takes over all resource limits of another process; raising our own needs the machine's root.
pub fn take_limits_of(pid: i32) -> io::Result<()> {
    (0..).zip(LIMITS).try_for_each(|(resource, name)| {
        let limit = limit_of(pid, resource)?;
        set_own_limit(resource, &limit).map_err(|error| {
            let why = "this machine does not let us raise it (no CAP_SYS_RESOURCE)";
            io::Error::new(error.kind(), format!("the limit {name} cannot be {}: {error}; {why}", limit.rlim_max))
        })
    })
}

#[expect(unsafe_code, reason = "neither std nor nix wraps prlimit")]
fn limit_of(pid: i32, resource: u32) -> io::Result<nix::libc::rlimit> {
    let mut limit = nix::libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: needed to read another's limits; a null new limit is allowed, the old one is ours and of the right type.
    let result = unsafe { nix::libc::prlimit(pid, resource, std::ptr::null(), &raw mut limit) };
    nix::errno::Errno::result(result)?;
    Ok(limit)
}

#[expect(unsafe_code, reason = "nix's setrlimit knows a limit by name only")]
fn set_own_limit(resource: u32, limit: &nix::libc::rlimit) -> io::Result<()> {
    // SAFETY: needed to set a limit known by number; the limit lives through the call.
    let result = unsafe { nix::libc::setrlimit(resource, limit) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

/// Runs `work` on a thread of its own that opens files with the rights of this user, as far as it is not root.
pub fn with_file_rights<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("as-owner".to_owned()).spawn_scoped(scope, || {
            if uid != 0 {
                set_own_groups(groups)?;
                // They tell nothing of a failure: asking again shows the id in force. Leaving root takes the
                // capabilities of file access from this thread.
                nix::unistd::setfsgid(gid.into());
                nix::unistd::setfsuid(uid.into());
                let in_force = nix::unistd::setfsuid(uid.into());
                if in_force.as_raw() != uid {
                    return Err(io::Error::from(io::ErrorKind::PermissionDenied));
                }
                // The others would let it through the links of /proc to what processes of other users see.
                drop_own_capabilities()?;
            }
            Ok(work())
        })?;
        thread.join().map_err(|_| io::Error::other("a thread with a user's rights panicked"))?
    })
}

/// What a process keeps of root's capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// To read what it may not read as its user.
    Reading,
}

/// Becomes this user for good, without further capabilities, in so much address space, and unseen by the user's other
/// processes. For processes of one thread.
pub fn become_user(uid: u32, gid: u32, groups: &[u32], memory: u64, kept: Kept) -> io::Result<()> {
    use nix::sys::resource::{Resource, setrlimit};
    use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
    setrlimit(Resource::RLIMIT_AS, memory, memory)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // Who is not root is a test's, and has nobody else to become.
    if Uid::effective().is_root() {
        setgroups(&groups)?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
    }
    let kept = match kept {
        Kept::Nothing => rustix::thread::CapabilitySet::empty(),
        Kept::Reading => rustix::thread::CapabilitySet::DAC_READ_SEARCH,
    };
    set_own_capabilities(kept)?;
    nix::sys::prctl::set_no_new_privs()?;
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Of this thread alone, and for good.
pub fn drop_own_capabilities() -> io::Result<()> {
    set_own_capabilities(rustix::thread::CapabilitySet::empty())
}

fn set_own_capabilities(kept: rustix::thread::CapabilitySet) -> io::Result<()> {
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
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

#[expect(unsafe_code, reason = "libc's setgroups changes every thread of the process")]
fn set_own_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: needed so that only this thread has these groups; the list lives through the call and its length is true.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    nix::errno::Errno::result(result)?;
    Ok(())
}

/// The peer's uid of a connected unix socket.
pub fn peer_uid(socket: &impl AsFd) -> io::Result<u32> {
    let credentials = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(credentials.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the limits are those of any process")]
    fn a_limit_that_this_machine_does_not_allow_is_told_by_name() {
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        assert!(take_limits_of(pid).is_ok(), "they are the same");
        let told = std::thread::spawn(move || {
            let own = limit_of(pid, 7).unwrap();
            let less = nix::libc::rlimit { rlim_cur: own.rlim_cur.min(own.rlim_max - 1), rlim_max: own.rlim_max - 1 };
            set_own_limit(7, &less).unwrap();
            drop_own_capabilities().unwrap();
            take_limits_of(pid).unwrap_err().to_string()
        });
        let told = told.join().unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(told.starts_with("the limit nofile cannot be ") && told.contains("no CAP_SYS_RESOURCE"), "{told}");
    }

    #[test]
    fn a_sealed_program_runs_and_has_nothing_for_debuggers() {
        let sealed = SealedProgram::of_this_program().unwrap();
        let whole = std::fs::metadata("/proc/self/exe").unwrap().len();
        let copied = sealed.0.metadata().unwrap().len();
        assert!(copied * 2 < whole, "{copied} of {whole} bytes");
        let log = tempfile::tempfile().unwrap();
        let arguments = vec!["--list".into()];
        let child =
            sealed.spawn(Launch { arguments, environment: Vec::new(), inherit: Vec::new(), log: &log }).unwrap();
        assert!(child.pidfd.has_ended(60_000).unwrap());
        assert_eq!(child.pidfd.reap().unwrap(), Some(ProcessEnd::Exited(0)));
        let mut said = String::new();
        (&log).rewind().unwrap();
        (&log).read_to_string(&mut said).unwrap();
        assert!(said.contains("a_sealed_program_runs"), "{said}");
    }

    #[test]
    fn the_rights_of_a_user_open_no_links_of_proc() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        // The root of our parent is the same as ours, but only its owner may go through that link.
        let path = format!("/proc/{}/root/etc", nix::unistd::getppid());
        let open = || std::fs::metadata(&path);
        assert!(with_file_rights(0, 0, &[], open).unwrap().is_ok());
        let refused = with_file_rights(4321, 4321, &[], open).unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(open().is_ok(), "this thread has kept its rights");
    }

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
