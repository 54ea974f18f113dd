//! What the kernel does by numbers of descriptors and threads: the only unsafe code of this crate.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use fuser::{BackingId, ReplyOpen};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Interrupts a thread that reads.
const WAKE: Signal = Signal::SIGUSR1;

/// Which signal tells what becomes of a descriptor (`asm-generic/fcntl.h`); neither nix nor libc has it.
const F_SETSIG: libc::c_int = 10;

/// An inherited descriptor, known by number from whoever executed this program. Each is taken once.
#[expect(unsafe_code, reason = "a number is all that exec carries over")]
pub(crate) fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an inherited descriptor"));
    }
    // SAFETY: the program that executed this one left it open for us and names it once; fcntl below proves that it is open.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    match nix::fcntl::fcntl(&owned, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)) {
        Ok(_) => Ok(owned),
        Err(errno) => {
            // It is nobody's: to close it would be an error.
            let _ = owned.into_raw_fd();
            Err(errno.into())
        }
    }
}

/// Makes `number` lead to what `to` is. The caller sees to it that its owner keeps it open meanwhile.
#[expect(unsafe_code, reason = "the descriptor belongs to fuser, which lends no owner of it")]
pub(crate) fn redirect(number: RawFd, to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: needed to put another file below a session of fuser; the call takes numbers, and `number` stays its owner's.
    Errno::result(unsafe { libc::dup3(to.as_raw_fd(), number, libc::O_CLOEXEC) })?;
    Ok(())
}

/// Lets [`interrupt`] do nothing but that.
#[expect(unsafe_code, reason = "handlers of signals are unsafe in general")]
pub(crate) fn prepare_to_interrupt() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // Without SA_RESTART, so that a read that waits returns.
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: needed since a signal that is ignored interrupts nothing; the handler does nothing at all.
    unsafe { sigaction(WAKE, &action) }?;
    Ok(())
}

/// Has threads of this process whose names begin so return from what they wait for in the kernel.
pub(crate) fn interrupt(prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        // It may have ended meanwhile.
        let is_meant = fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.starts_with(prefix));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(thread) = number.filter(|_| is_meant) {
            wake(thread);
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "nix signals threads by handles only, which fuser does not give")]
fn wake(thread: libc::pid_t) {
    let group = nix::unistd::getpid().as_raw();
    // SAFETY: needed to end a read that nothing else ends; the call takes integers, and our own group makes sure that it is
    // no other process's thread. One that has ended is not found, which is as well.
    unsafe { libc::syscall(libc::SYS_tgkill, group, thread, WAKE as libc::c_int) };
}

/// A backing number that this connection has already; it is closed when it is dropped.
#[expect(unsafe_code, reason = "fuser trusts the caller that the number is one of the connection's")]
pub(crate) fn known_backing(reply: &ReplyOpen, number: u32) -> BackingId {
    // SAFETY: needed to go on with numbers of an earlier process; each was made on this connection, is taken from what was
    // kept, and is wrapped once.
    unsafe { reply.wrap_backing(number) }
}

/// Whether somebody has the file open, or mapped, to be written; an error where its file system cannot tell.
#[expect(unsafe_code, reason = "nix does not wrap leases")]
pub(crate) fn has_writer(file: &File) -> io::Result<bool> {
    let number = file.as_raw_fd();
    // Whoever opens it in that moment waits for us to let go, of which we are told by a signal. The usual one ends a process.
    // SAFETY: needed to ask for a lease without that; the call takes integers, and the descriptor is the file's.
    Errno::result(unsafe { libc::fcntl(number, F_SETSIG, libc::SIGURG) })?;
    // SAFETY: needed since nothing else tells who writes: a lease to read is refused while there is a writer. As above.
    let lease = |kind: libc::c_int| Errno::result(unsafe { libc::fcntl(number, libc::F_SETLEASE, kind) });
    match lease(libc::F_RDLCK) {
        Err(Errno::EAGAIN) => Ok(true),
        Err(errno) => Err(errno.into()),
        Ok(_) => lease(libc::F_UNLCK).map(|_| false).map_err(Into::into),
    }
}

/// Hands free memory of the heap back to the machine.
#[expect(unsafe_code, reason = "glibc's own call")]
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: needed since what the kernel has forgotten by the million stays ours otherwise; the call takes a number and
    // touches only free memory.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_reads_is_interrupted() {
        prepare_to_interrupt().unwrap();
        let (mut reader, _writer) = io::pipe().unwrap();
        let (sender, ended) = channel();
        let name = "interrupted".to_owned();
        let read = move || sender.send(reader.read(&mut [0]).map_err(|error| error.kind()));
        std::thread::Builder::new().name(name).spawn(read).unwrap();
        let told = std::iter::repeat_with(|| {
            interrupt("interr").unwrap();
            ended.recv_timeout(Duration::from_millis(10))
        });
        let told = told.take(1000).find_map(Result::ok);
        assert_eq!(told, Some(Err(io::ErrorKind::Interrupted)));
    }

    #[test]
    fn who_writes_is_told_of_and_whoever_opens_meanwhile_ends_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, b"text").unwrap();
        let file = File::open(&path).unwrap();
        assert!(!has_writer(&file).unwrap());
        let writer = File::options().write(true).open(&path).unwrap();
        assert!(has_writer(&file).unwrap() && has_writer(&writer).unwrap());
        drop(writer);
        assert!(!has_writer(&file).unwrap());
        std::thread::scope(|scope| {
            let opening =
                scope.spawn(|| (0..2000).for_each(|_| drop(File::options().write(true).open(&path).unwrap())));
            while !opening.is_finished() {
                has_writer(&file).unwrap();
            }
        });
    }

    #[test]
    fn what_is_not_open_is_not_taken() {
        assert!(take_inherited(1).is_err());
        assert!(take_inherited(9_999).is_err());
    }
}
