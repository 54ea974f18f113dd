//! How programs are started: our own from a sealed copy, and tools of the machine.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{EndedOnDrop, PidFd, ProcessEnd};

/// Begins this program anew in this process, with its arguments and environment; returns only if that fails.
pub fn begin_anew() -> io::Error {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "trainyard".into());
    let mut command = new_command("/proc/self/exe");
    if let Ok(directory) = std::env::current_dir() {
        command.current_dir(directory);
    }
    command.arg0(name).args(arguments).envs(std::env::vars_os()).exec()
}

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
        // Nobody maps it yet, so that this seal holds as much as F_SEAL_WRITE. That one fails (EBUSY) as long as the kernel has
        // one of its pages in hand, as it may when memory is short.
        let seals = nix::fcntl::SealFlag::F_SEAL_SHRINK
            | nix::fcntl::SealFlag::F_SEAL_GROW
            | nix::fcntl::SealFlag::F_SEAL_FUTURE_WRITE
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
        let mut command = new_command(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
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
fn new_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
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

/// As [`run_tool`] without input, in a process group of its own: when the tool has ended, all that is left of the group is killed.
/// `begun` is given the tool, for whoever is to end it before.
pub fn run_tool_in_group(
    program: &str,
    arguments: &[&str],
    begun: &dyn Fn(std::sync::Arc<PidFd>),
) -> io::Result<Output> {
    use nix::sys::signal::{Signal, killpg};
    let mut child = new_command(program)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(arguments)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let (ended, said) = std::thread::scope(|scope| {
        let said = scope.spawn(move || all_of(stderr.as_mut()));
        let told = scope.spawn(move || all_of(stdout.as_mut()));
        let ended = PidFd::open(pid).and_then(|tool| {
            let tool = std::sync::Arc::new(tool);
            begun(tool.clone());
            while !tool.has_ended(u16::MAX)? {}
            Ok(())
        });
        // It is not reaped yet, so the number is its own; what has ended needs no signal.
        let _ = killpg(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
        (ended, (told.join(), said.join()))
    });
    let status = child.wait()?;
    ended?;
    match said {
        (Ok(stdout), Ok(stderr)) => Ok(Output { status, stdout: stdout?, stderr: stderr? }),
        _ => Err(io::Error::other("what it says cannot be read")),
    }
}

fn all_of(pipe: Option<&mut impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map(|pipe| pipe.read_to_end(&mut bytes)).transpose()?;
    Ok(bytes)
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
    companion(std::path::Path::new("/proc/self/exe"), arguments).spawn()
}

fn companion(program: &std::path::Path, arguments: Vec<OsString>) -> Command {
    let mut command = new_command(program);
    command.arg0("trainyard").args(arguments).envs(crate::sys::service::journal()).stdin(Stdio::piped());
    in_own_session(&mut command, Vec::new());
    command
}

/// As [`start_companion`], of this program, with this in its environment as well; what it writes to its standard output is read by
/// a pipe.
pub fn start_companion_that_tells(
    program: &std::path::Path,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
) -> io::Result<std::process::Child> {
    let mut command = companion(program, arguments);
    command.envs(environment).stdout(Stdio::piped());
    command.spawn()
}

/// Starts this very program with `arguments`, in a session of its own, its standard output `file` and nothing else open.
pub fn start_to_write(arguments: Vec<OsString>, file: File) -> io::Result<PidFd> {
    let mut command = new_command("/proc/self/exe");
    command.arg0("trainyard").args(arguments).stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
    Ok(SealedProgram::start(command, &[])?.pidfd)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_sealed_program_can_be_changed_by_nobody() {
        use nix::libc;
        let sealed = SealedProgram::of_this_program().unwrap();
        let path = format!("/proc/self/fd/{}", sealed.0.as_raw_fd());
        let denied = Some(nix::errno::Errno::EPERM as i32);
        for file in [sealed.0.try_clone().unwrap(), File::options().read(true).write(true).open(path).unwrap()] {
            let length = file.metadata().unwrap().len();
            assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), denied);
            assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), denied);
            assert_eq!(file.set_len(length + 1).unwrap_err().raw_os_error(), denied);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            #[expect(unsafe_code, reason = "nobody maps files so but the tests")]
            // SAFETY: it is mapped where nothing is, if at all.
            let mapped =
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_eq!((mapped, nix::errno::Errno::last()), (libc::MAP_FAILED, nix::errno::Errno::EPERM));
        }
    }

    #[test]
    fn a_tool_that_is_ended_takes_its_group_along_and_one_that_ends_leaves_nobody() {
        // Both that go on hold the pipes open that are read to their ends.
        let run = |script: &str, begun: &dyn Fn(std::sync::Arc<PidFd>)| {
            run_tool_in_group("sh", &["-c", script], begun).unwrap()
        };
        let output = run("sleep 1000 & echo a; echo b >&2; exit 3", &|_| {});
        assert_eq!((output.status.code(), output.stdout, output.stderr), (Some(3), b"a\n".to_vec(), b"b\n".to_vec()));
        let kill = |tool: std::sync::Arc<PidFd>| tool.signal(nix::sys::signal::Signal::SIGKILL).unwrap();
        let output = run("sleep 1000 & sleep 1000", &kill);
        assert_eq!(output.status.code(), None);
    }
}
