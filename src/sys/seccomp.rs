//! The default seccomp filter of a container: `seccomp/default.list`, made into BPF and installed.
//!
//! Our pid 1 of a container, and `exec`, compile it before they enter and apply it as the last thing before execve.
//! Nothing here reads a profile of a user's.
//!
//! A filter of seccompiler's knows two outcomes, we want three (made, EPERM, ENOSYS), hence two programs. The kernel
//! runs both for each call and takes the sternest outcome; of two errors that of the program that was installed last:
//!
//! | the call                        | `allowed`, first | `denied`, last | outcome |
//! |---------------------------------|------------------|----------------|---------|
//! | in `[allow]`                    | allow            | allow          | made    |
//! | in both, the condition holds    | allow            | EPERM          | EPERM   |
//! | in `[deny]`                     | ENOSYS           | EPERM          | EPERM   |
//! | in `[absent]`, or unlisted      | ENOSYS           | allow          | ENOSYS  |
//!
//! A call by another architecture's convention (i386's `int 0x80`, 32-bit programs) kills the process with SIGSYS: each
//! program starts with that check, since the same number means another call there. Docker lets 32-bit programs run; we
//! do not. Calls of x32 are numbers beyond 0x40000000, unlisted, hence ENOSYS.
//!
//! What the filter allows for all arguments costs a lookup in a bitmap and no BPF (Linux 5.11 and later).

mod list;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use list::{Entry, Verdict};
use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, sock_filter};

/// In the order of installation, which decides between two errors.
pub struct Filter {
    allowed: BpfProgram,
    denied: BpfProgram,
}

/// What is wrong with the list that we ship: never a matter of the machine, except for [`SeccompError::Build`] on an
/// architecture that the list has no numbers of.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("line {line} of the list of system calls is malformed: {text:?}")]
    Malformed { line: usize, text: String },
    #[error("{name} stands in the list of system calls in a place that an earlier line of it excludes")]
    Repeated { name: String },
    #[error("cannot build the seccomp filter")]
    Build(#[from] seccompiler::BackendError),
}

/// The filter for this machine's architecture. Touches no file and asks nothing of the kernel.
pub fn compile() -> Result<Filter, SeccompError> {
    compile_for(TargetArch::try_from(ARCH)?)
}

impl Filter {
    /// Puts the calling thread, and all that it will start, under the filter for good. Allocates nothing.
    ///
    /// EACCES without no_new_privs and without CAP_SYS_ADMIN in the caller's user namespace. After any error the thread
    /// may be left with a part of the filter: it must not go on to execve.
    pub fn apply(&self) -> io::Result<()> {
        install(&self.allowed)?;
        install(&self.denied)
    }
}

fn compile_for(arch: TargetArch) -> Result<Filter, SeccompError> {
    let entries = list::parse(list::DEFAULT, arch)?;
    let [eperm, enosys] = [libc::EPERM, libc::ENOSYS].map(|errno| SeccompAction::Errno(errno.unsigned_abs()));
    let program = |verdict, otherwise, matched| -> Result<BpfProgram, SeccompError> {
        Ok(SeccompFilter::new(rules(&entries, verdict), otherwise, matched, arch)?.try_into()?)
    };
    Ok(Filter {
        allowed: program(Verdict::Allow, enosys, SeccompAction::Allow)?,
        denied: program(Verdict::Deny, SeccompAction::Allow, eperm)?,
    })
}

/// By number. A call without rules matches whatever its arguments are.
fn rules(entries: &[Entry], verdict: Verdict) -> BTreeMap<i64, Vec<SeccompRule>> {
    let of_verdict = entries.iter().filter(|entry| entry.verdict == verdict);
    of_verdict.map(|entry| (entry.number, entry.rules.clone())).collect()
}

/// Without it, kernels before 5.16 slow down all code under a filter, against Spectre v4. runc passes it too.
const FLAGS: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;

const _: () = assert!(size_of::<sock_filter>() == size_of::<libc::sock_filter>());

fn install(program: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    // The kernel only reads it, though the type says `*mut`.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: no safe wrapper exists. The structure and the instructions outlive the call, which copies them; both
    // `sock_filter`s are the kernel's structure (`repr(C)`, same fields).
    #[expect(unsafe_code, reason = "no crate wraps seccomp(2) without setting no_new_privs as well")]
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
