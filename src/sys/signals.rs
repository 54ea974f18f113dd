//! Signals as descriptors, timers as descriptors: what a single-threaded loop polls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Blocks `signals` and delivers them through a descriptor.
#[derive(Debug)]
pub struct SignalQueue(SignalFd);

impl SignalQueue {
    pub fn open(signals: &[Signal]) -> io::Result<Self> {
        block(signals)?;
        let set: SigSet = signals.iter().copied().collect();
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Waits for a signal, or for urgent news of `other`, at most so long.
    pub fn wait_beside(&self, other: impl AsFd, longest: Option<Duration>) -> io::Result<Option<Signal>> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        // Rounded up, so that what is due then is.
        let longest = longest.map(|longest| longest + Duration::from_millis(1));
        let timeout = longest.map_or(PollTimeout::NONE, |longest| longest.try_into().unwrap_or(PollTimeout::MAX));
        let mut all = [PollFd::new(self.as_fd(), PollFlags::POLLIN), PollFd::new(other.as_fd(), PollFlags::POLLPRI)];
        match poll(&mut all, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => self.next(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next waiting signal.
    pub fn next(&self) -> io::Result<Option<Signal>> {
        match self.0.read_signal()? {
            Some(info) => Ok(i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok())),
            None => Ok(None),
        }
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Gives a program about to be executed what it expects: no signal blocked, SIGPIPE ending it.
#[expect(unsafe_code, reason = "changing a signal's disposition is unsafe in general")]
pub fn restore_for_exec() -> io::Result<()> {
    // SAFETY: needed since Rust's start-up ignores SIGPIPE; the default disposition runs no code of ours.
    unsafe { nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigDfl) }?;
    // SAFETY: as above; the daemon ignores it and its children inherit that.
    unsafe { nix::sys::signal::signal(Signal::SIGIO, nix::sys::signal::SigHandler::SigDfl) }?;
    Ok(SigSet::empty().thread_set_mask()?)
}

/// A lease that is broken by a writer sends SIGIO, which would end the process.
#[expect(unsafe_code, reason = "changing a signal's disposition is unsafe in general")]
pub fn ignore_lease_breaks() -> io::Result<()> {
    // SAFETY: needed before `file::is_being_written`; ignoring runs no code of ours.
    unsafe { nix::sys::signal::signal(Signal::SIGIO, nix::sys::signal::SigHandler::SigIgn) }?;
    Ok(())
}

/// Blocks `signals` and waits for one of them.
pub fn wait_for(signals: &[Signal]) -> io::Result<Signal> {
    let set: SigSet = signals.iter().copied().collect();
    Ok(set.wait()?)
}

/// Blocks `signals` until they are waited for.
pub fn block(signals: &[Signal]) -> io::Result<()> {
    let set: SigSet = signals.iter().copied().collect();
    Ok(set.thread_block()?)
}

/// Whether the first thread of the process `pid` has blocked the signal, and so takes it by a [`SignalQueue`] or will: another one
/// might end of it.
pub fn is_blocked_in(pid: i32, signal: Signal) -> io::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(mask >> (signal as i32 - 1) & 1 == 1)
}

/// Sends a signal by its number, which may be one that has no name, to a process group.
#[expect(unsafe_code, reason = "nix knows no real-time signals")]
pub fn send_to_group(group: i32, signal: i32) -> io::Result<()> {
    // SAFETY: needed for images whose stop signal is a real-time one; the call takes two integers.
    nix::errno::Errno::result(unsafe { nix::libc::kill(-group, signal) })?;
    Ok(())
}

/// One deadline on the monotonic clock.
#[derive(Debug)]
pub struct Deadline(TimerFd);

impl Deadline {
    pub fn unset() -> io::Result<Self> {
        Ok(Self(TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?))
    }

    pub fn set(&self, after: Duration) -> io::Result<()> {
        // Zero would disarm the timer.
        let after = after.max(Duration::from_nanos(1));
        Ok(self.0.set(Expiration::OneShot(after.into()), TimerSetTimeFlags::empty())?)
    }

    /// Takes note that the deadline has passed.
    pub fn clear(&self) -> io::Result<()> {
        Ok(self.0.unset()?)
    }
}

impl AsFd for Deadline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_seen_from_outside() {
        let own = std::process::id().cast_signed();
        let thread = nix::unistd::gettid().as_raw();
        // While it makes a thread, this one, the first thread has blocked all.
        while is_blocked_in(own, Signal::SIGUSR2).unwrap() {
            std::thread::yield_now();
        }
        let queue = SignalQueue::open(&[Signal::SIGUSR2]).unwrap();
        // The first thread of the process is not this one.
        assert!(is_blocked_in(thread, Signal::SIGUSR2).unwrap());
        assert!(!is_blocked_in(thread, Signal::SIGUSR1).unwrap());
        let (quiet, _writer) = io::pipe().unwrap();
        assert_eq!(queue.wait_beside(&quiet, Some(Duration::from_millis(1))).unwrap(), None);
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        assert_eq!(queue.wait_beside(&quiet, None).unwrap(), Some(Signal::SIGUSR2));
    }

    #[test]
    fn a_deadline_becomes_readable() {
        let deadline = Deadline::unset().unwrap();
        deadline.set(Duration::ZERO).unwrap();
        let mut poll = [nix::poll::PollFd::new(deadline.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut poll, 5_000u16).unwrap(), 1);
    }
}
