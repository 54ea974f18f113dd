#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "raw system calls, in children made by fork"
)]

use std::collections::BTreeMap;
use std::ffi::c_long;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};
use std::ptr::null_mut;

use nix::libc;
use seccompiler::TargetArch;

use super::list::{self, Verdict};
use super::simulation::Call;
use super::{Filter, SeccompError, compile, compile_for};

const ARCHES: [(TargetArch, u32); 2] = [(TargetArch::x86_64, 0xC000_003E), (TargetArch::aarch64, 0xC000_00B7)];
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

// ---- The list and the programs, on both architectures.

/// Every number, not only those that we list: what a filter should do follows from the list alone.
#[test]
fn programs_do_what_the_list_says_for_every_number() {
    for (arch, audit_arch) in ARCHES {
        let filter = compile_for(arch).unwrap();
        let (conditional, listed): (Vec<_>, Vec<_>) =
            list::parse(list::DEFAULT, arch).unwrap().into_iter().partition(|entry| !entry.rules.is_empty());
        for number in (0..2000_u32).filter(|number| conditional.iter().all(|entry| entry.number != i64::from(*number)))
        {
            let entry = listed.iter().find(|entry| entry.number == i64::from(number));
            let wanted = match entry.map(|entry| entry.verdict) {
                Some(Verdict::Allow) => ALLOW,
                Some(Verdict::Deny) => EPERM,
                Some(Verdict::Absent) | None => ENOSYS,
            };
            assert_eq!(filter.decide(Call { audit_arch, number, arg0: 0 }), wanted, "{arch:?} {number} {entry:?}");
        }
    }
}

#[test]
fn conditions_hold_on_both_architectures() {
    for (arch, audit_arch) in ARCHES {
        let filter = compile_for(arch).unwrap();
        let numbers: BTreeMap<_, _> =
            list::parse(list::DEFAULT, arch).unwrap().into_iter().map(|e| (e.name, e.number)).collect();
        for (name, arg0, wanted) in [
            ("socket", 0, ALLOW),
            ("socket", 2, ALLOW),
            ("socket", 37, ALLOW),
            ("socket", 38, EPERM),
            ("socket", 39, ALLOW),
            ("socket", 40, EPERM),
            ("socket", 0x1_0000_0028, EPERM),
            ("socket", 41, ALLOW),
            ("clone", 0x3d_0f00, ALLOW),
            ("clone", 17, ALLOW),
            ("clone", 0x0200_0000, EPERM),
            ("clone", 0x4000_0011, EPERM),
            ("clone", 0x7e02_0000, EPERM),
            ("clone", 0x0002_0000, EPERM),
            ("clone", 0x0400_0000, EPERM),
            ("personality", 0, ALLOW),
            ("personality", 8, ALLOW),
            ("personality", 0x20000, ALLOW),
            ("personality", 0x20008, ALLOW),
            ("personality", 0xffff_ffff, ALLOW),
            ("personality", 0x40000, EPERM),
            ("personality", 0x1_0004_0000, EPERM),
            ("personality", 1, EPERM),
            ("move_pages", 0, ALLOW),
            ("move_pages", 1, EPERM),
        ] {
            let number = u32::try_from(numbers[name]).unwrap();
            assert_eq!(filter.decide(Call { audit_arch, number, arg0 }), wanted, "{arch:?} {name} {arg0:#x}");
        }
    }
}

#[test]
fn other_conventions_do_not_run() {
    for (arch, audit_arch) in ARCHES {
        let filter = compile_for(arch).unwrap();
        let i386 = filter.decide(Call { audit_arch: 0x4000_0003, number: 1, arg0: 0 });
        assert_eq!(i386, libc::SECCOMP_RET_KILL_PROCESS);
        let x32 = filter.decide(Call { audit_arch, number: 0x4000_0000 | 39, arg0: 0 });
        assert_eq!(x32, ENOSYS);
    }
}

/// A wrong number would allow or deny some other call.
#[test]
fn numbers_are_those_of_seccompiler() {
    for (arch, _) in ARCHES {
        let entries = list::parse(list::DEFAULT, arch).unwrap();
        let mut compared = 0;
        for entry in &entries {
            // The newest calls are in our list only.
            if let Some(number) = number_in_seccompiler(&entry.name, arch) {
                assert_eq!(number, entry.number, "{arch:?} {}", entry.name);
                compared += 1;
            }
        }
        assert!(compared > entries.len() * 9 / 10, "{arch:?}: {compared} of {}", entries.len());
    }
}

/// Its table is private: read off a program that looks for one call.
fn number_in_seccompiler(name: &str, arch: TargetArch) -> Option<i64> {
    let json = format!(
        r#"{{"one": {{"mismatch_action": "allow", "match_action": "trap", "filter": [{{"syscall": "{name}"}}]}}}}"#
    );
    let program = seccompiler::compile_from_json(json.as_bytes(), arch).ok()?.remove("one")?;
    Some(program[4].k.into())
}

#[test]
fn malformed_lists_are_refused() {
    for text in [
        "read 0 63",
        "[allow]\nread 0",
        "[allow]\nread zero 63",
        "[allow]\nread 0 63 if arg0 in 1",
        "[deny]\nread 0 63 if",
        "[deny]\nread 0 63 if arg0",
        "[deny]\nread 0 63 if arg0 in",
        "[deny]\nread 0 63 if arg0 in x",
        "[deny]\nread 0 63 if arg0 has 1 2",
        "[deny]\nread 0 63 if arg6 in 1",
        "[deny]\nread 0 63 if arg0 != 1",
        "[other]",
    ] {
        let error = list::parse(text, TargetArch::x86_64).unwrap_err();
        assert!(matches!(error, SeccompError::Malformed { .. }), "{text}: {error}");
    }
    for text in [
        "[allow]\nread 0 63\nread 0 63",
        "[allow]\nread 0 63\n[deny]\nread 0 63",
        "[deny]\nread 0 63 if arg0 in 1",
        "[allow]\nread 0 63\n[absent]\nread 0 63",
    ] {
        let error = list::parse(text, TargetArch::x86_64).unwrap_err();
        assert!(matches!(error, SeccompError::Repeated { .. }), "{text}: {error}");
    }
}

// ---- The kernel, in children.

fn no_new_privs() {
    // SAFETY: prctl with numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
}

/// What `inside` writes to the descriptor that it is given, in a child of its own, and how the child ended.
fn in_child(inside: impl FnOnce(&mut dyn FnMut(i32))) -> (Vec<i32>, libc::c_int) {
    let (mut reader, writer) = io::pipe().unwrap();
    // SAFETY: the child makes system calls and ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&writer);
        inside(&mut |number| {
            // SAFETY: the four bytes are there, and the pipe is open.
            assert_eq!(unsafe { libc::write(fd, (&raw const number).cast(), 4) }, 4);
        });
        // SAFETY: ends this child, without what the parent has registered for its own end.
        unsafe { libc::_exit(0) }
    }
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    (bytes.chunks_exact(4).map(|word| i32::from_ne_bytes(word.try_into().unwrap())).collect(), status)
}

fn under(filter: &Filter, inside: impl FnOnce(&mut dyn FnMut(i32))) -> Vec<i32> {
    let (numbers, status) = in_child(|send| {
        no_new_privs();
        filter.apply().unwrap();
        inside(send);
    });
    assert_eq!(status, 0, "the child ended with {status:#x} after {numbers:?}");
    numbers
}

/// The error of a raw call, 0 when there is none.
fn errno_of(number: c_long, args: [c_long; 5]) -> i32 {
    // SAFETY: the callers pass numbers, null or invalid addresses, which the kernel refuses.
    let rc = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4]) };
    if rc == 0 && number == libc::SYS_clone {
        // SAFETY: the child of a clone that was let through.
        unsafe { libc::_exit(0) }
    }
    if rc < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
}

/// Arguments that the kernel refuses by another error than EPERM, so that EPERM is the filter's answer.
const BAD: [c_long; 5] = [-1; 5];

const fn first(arg0: c_long) -> [c_long; 5] {
    [arg0, 0, 0, 0, 0]
}

const fn clone_into(namespace: libc::c_int) -> [c_long; 5] {
    first((namespace | libc::SIGCHLD) as c_long)
}

const DENIED: &[(&str, c_long, [c_long; 5])] = &[
    ("mount", libc::SYS_mount, BAD),
    ("umount2", libc::SYS_umount2, BAD),
    ("pivot_root", libc::SYS_pivot_root, BAD),
    ("open_tree", libc::SYS_open_tree, BAD),
    ("move_mount", libc::SYS_move_mount, BAD),
    ("fsopen", libc::SYS_fsopen, BAD),
    ("fsconfig", libc::SYS_fsconfig, BAD),
    ("fsmount", libc::SYS_fsmount, BAD),
    ("fspick", libc::SYS_fspick, BAD),
    ("mount_setattr", libc::SYS_mount_setattr, BAD),
    ("unshare(NEWUSER)", libc::SYS_unshare, first(libc::CLONE_NEWUSER as c_long)),
    ("unshare(NEWNS)", libc::SYS_unshare, first(libc::CLONE_NEWNS as c_long)),
    ("setns", libc::SYS_setns, BAD),
    ("clone(NEWNS)", libc::SYS_clone, clone_into(libc::CLONE_NEWNS)),
    ("clone(NEWUSER)", libc::SYS_clone, clone_into(libc::CLONE_NEWUSER)),
    ("clone(NEWPID)", libc::SYS_clone, clone_into(libc::CLONE_NEWPID)),
    ("clone(NEWNET)", libc::SYS_clone, clone_into(libc::CLONE_NEWNET)),
    ("clone(NEWIPC)", libc::SYS_clone, clone_into(libc::CLONE_NEWIPC)),
    ("clone(NEWUTS)", libc::SYS_clone, clone_into(libc::CLONE_NEWUTS)),
    ("clone(NEWCGROUP)", libc::SYS_clone, clone_into(libc::CLONE_NEWCGROUP)),
    ("bpf", libc::SYS_bpf, BAD),
    ("perf_event_open", libc::SYS_perf_event_open, BAD),
    ("fanotify_init", libc::SYS_fanotify_init, BAD),
    ("syslog", libc::SYS_syslog, BAD),
    ("acct", libc::SYS_acct, BAD),
    ("keyctl", libc::SYS_keyctl, BAD),
    ("add_key", libc::SYS_add_key, BAD),
    ("request_key", libc::SYS_request_key, BAD),
    ("kexec_load", libc::SYS_kexec_load, BAD),
    ("kexec_file_load", libc::SYS_kexec_file_load, BAD),
    ("init_module", libc::SYS_init_module, BAD),
    ("finit_module", libc::SYS_finit_module, BAD),
    ("delete_module", libc::SYS_delete_module, BAD),
    ("reboot", libc::SYS_reboot, BAD),
    ("swapon", libc::SYS_swapon, BAD),
    ("swapoff", libc::SYS_swapoff, BAD),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, BAD),
    ("userfaultfd", libc::SYS_userfaultfd, BAD),
    ("quotactl", libc::SYS_quotactl, BAD),
    ("quotactl_fd", libc::SYS_quotactl_fd, BAD),
    ("settimeofday", libc::SYS_settimeofday, BAD),
    ("clock_settime", libc::SYS_clock_settime, BAD),
    ("sethostname", libc::SYS_sethostname, BAD),
    ("setdomainname", libc::SYS_setdomainname, BAD),
    #[cfg(target_arch = "x86_64")]
    ("iopl", libc::SYS_iopl, BAD),
    #[cfg(target_arch = "x86_64")]
    ("ioperm", libc::SYS_ioperm, BAD),
    ("kcmp", libc::SYS_kcmp, BAD),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, BAD),
    ("process_madvise", libc::SYS_process_madvise, BAD),
    ("migrate_pages", libc::SYS_migrate_pages, BAD),
    ("move_pages of pid 1", libc::SYS_move_pages, first(1)),
    ("io_uring_setup", libc::SYS_io_uring_setup, BAD),
    ("io_uring_enter", libc::SYS_io_uring_enter, BAD),
    ("io_uring_register", libc::SYS_io_uring_register, BAD),
    ("socket(AF_VSOCK)", libc::SYS_socket, [libc::AF_VSOCK as c_long, libc::SOCK_STREAM as c_long, 0, 0, 0]),
    ("socket(AF_ALG)", libc::SYS_socket, [libc::AF_ALG as c_long, libc::SOCK_SEQPACKET as c_long, 0, 0, 0]),
    ("personality(ADDR_NO_RANDOMIZE)", libc::SYS_personality, first(0x40000)),
];

#[test]
fn denied_calls_give_eperm() {
    let got = under(&compile().unwrap(), |send| {
        DENIED.iter().for_each(|(_, number, args)| send(errno_of(*number, *args)));
    });
    assert_eq!(got.len(), DENIED.len());
    for ((name, ..), errno) in DENIED.iter().zip(got) {
        assert_eq!(errno, libc::EPERM, "{name}");
    }
}

/// Else the test above would pass without a filter.
#[test]
fn without_the_filter_the_same_calls_do_not_give_eperm() {
    if skipped_unless_root("the unfiltered calls") {
        return;
    }
    let own = rustix::thread::capabilities(None).unwrap().effective;
    let may_load_modules = own.contains(rustix::thread::CapabilitySet::SYS_MODULE);
    for (name, number, args) in DENIED {
        // Where even root may not load modules, these say so by themselves.
        if name.ends_with("_module") && !may_load_modules {
            continue;
        }
        // Each in a child of its own: unshare succeeds, which changes what the next call gives.
        let (got, status) = in_child(|send| send(errno_of(*number, *args)));
        assert_eq!((got.len(), status), (1, 0), "{name}");
        assert_ne!(got, [libc::EPERM], "{name}");
    }
}

#[test]
fn absent_and_unknown_calls_give_enosys() {
    let numbers = [libc::SYS_clone3, 1000, 600, 0xffff];
    let got = under(&compile().unwrap(), |send| numbers.iter().for_each(|number| send(errno_of(*number, BAD))));
    assert_eq!(got, [libc::ENOSYS; 4]);
    // The kernel has clone3: the answer above is the filter's.
    let (got, _) = in_child(|send| send(errno_of(libc::SYS_clone3, BAD)));
    assert_ne!(got, [libc::ENOSYS]);
}

/// Each returns what the kernel returned, negative for an error.
type Attempt = (&'static str, fn() -> c_long);

const ALLOWED: &[Attempt] = &[
    // All: numbers, constant strings, null where the kernel allows null, or room that lives through the call.
    ("open", || unsafe { libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY).into() }),
    ("mmap", || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        unsafe { libc::mmap(null_mut(), 4096, libc::PROT_READ, flags, -1, 0) as c_long }
    }),
    ("fork", || fork_and_wait(0)),
    ("vfork's flags", || fork_and_wait(libc::CLONE_VM | libc::CLONE_VFORK)),
    ("thread", || std::thread::spawn(|| 7).join().unwrap_or(-1)),
    ("socket(AF_INET)", || unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0).into() }),
    ("socket(AF_UNIX)", || unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).into() }),
    ("socket(AF_NETLINK)", || unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0).into() }),
    ("memfd_create", || unsafe { libc::memfd_create(c"test".as_ptr(), 0).into() }),
    ("prctl", || unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0).into() }),
    ("futex", || {
        let word = 0_u32;
        unsafe { libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAKE, 1) }
    }),
    ("sched_setaffinity", || unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set).into()
    }),
    ("get_mempolicy", || {
        let mut mode = 0_i32;
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, 0, 0, 0, 0) }
    }),
    ("set_mempolicy", || unsafe { libc::syscall(libc::SYS_set_mempolicy, 0, 0, 0) }),
    ("move_pages of oneself", || unsafe { libc::syscall(libc::SYS_move_pages, 0, 0, 0, 0, 0, 0) }),
    ("personality", || unsafe { libc::personality(0xffff_ffff).into() }),
    ("ptrace", || unsafe { libc::ptrace(libc::PTRACE_TRACEME) }),
    ("seccomp", || unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &libc::SECCOMP_RET_ALLOW)
    }),
];

fn fork_and_wait(flags: libc::c_int) -> c_long {
    extern "C" fn ends_at_once(_: *mut libc::c_void) -> libc::c_int {
        0
    }
    // Of its own also where the memory is shared: what the child put on ours would be found there by whoever returns to it.
    let mut stack = vec![0_u128; 4096];
    // SAFETY: the stack outlives the child, which is waited for; it grows down from its end, which is aligned.
    unsafe {
        let end = stack.as_mut_ptr_range().end.cast();
        let pid = libc::clone(ends_at_once, end, flags | libc::SIGCHLD, null_mut());
        if pid < 0 { pid.into() } else { libc::waitpid(pid, null_mut(), 0).into() }
    }
}

#[test]
fn allowed_calls_work() {
    let got = under(&compile().unwrap(), |send| {
        ALLOWED.iter().for_each(|(_, attempt)| {
            send(if attempt() < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 })
        });
    });
    assert_eq!(got.len(), ALLOWED.len());
    for ((name, _), errno) in ALLOWED.iter().zip(got) {
        assert_eq!(errno, 0, "{name}");
    }
}

#[test]
fn chroot_is_left_to_the_kernel() {
    if skipped_unless_root("chroot") {
        return;
    }
    // SAFETY: a constant path, in a child.
    let chroot = || unsafe { libc::chroot(c"/usr".as_ptr()) };
    assert_eq!(under(&compile().unwrap(), |send| send(chroot())), [0]);
}

#[test]
fn it_needs_no_new_privs_or_the_capability() {
    if skipped_unless_root("dropping to another user") {
        return;
    }
    let filter = compile().unwrap();
    let errno = |result: io::Result<()>| result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0);
    let (got, _) = in_child(|send| {
        // SAFETY: numbers only.
        unsafe { libc::setresuid(65534, 65534, 65534) };
        send(errno(filter.apply()));
        no_new_privs();
        send(errno(filter.apply()));
    });
    assert_eq!(got, [libc::EACCES, 0]);
}

/// The capability is enough, so that setuid programs keep working where the caller wants them to.
#[test]
fn it_does_not_set_no_new_privs_by_itself() {
    if skipped_unless_root("applying without no_new_privs") {
        return;
    }
    let filter = compile().unwrap();
    let (got, _) = in_child(|send| {
        filter.apply().unwrap();
        // SAFETY: numbers only.
        send(unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) });
    });
    assert_eq!(got, [0]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_call_by_i386_convention_kills() {
    fn getpid_of_i386() -> i32 {
        let mut eax = 20;
        // SAFETY: getpid touches no memory.
        unsafe { std::arch::asm!("int 0x80", inout("eax") eax, out("r8") _, out("r9") _, out("r10") _, out("r11") _) };
        eax
    }
    let (got, status) = in_child(|send| send(getpid_of_i386()));
    if status != 0 || got.first().is_none_or(|pid| *pid <= 0) {
        eprintln!("skipped: this kernel runs no i386 calls");
        return;
    }
    let filter = compile().unwrap();
    let (got, status) = in_child(|send| {
        no_new_privs();
        filter.apply().unwrap();
        send(getpid_of_i386());
    });
    assert!(got.is_empty(), "{got:?}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSYS);
}

/// Runs a program under the filter.
fn run(program: &str, args: &[&str]) -> Output {
    let filter = compile().unwrap();
    let mut command = Command::new(program);
    // SAFETY: two system calls between fork and exec, nothing allocated.
    unsafe {
        command.args(args).pre_exec(move || {
            no_new_privs();
            filter.apply()
        })
    };
    command.output().unwrap()
}

#[test]
fn programs_inherit_it() {
    assert!(run("/bin/true", &[]).status.success());
    let status = run("/bin/sh", &["-c", "cat /proc/self/status"]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(text.contains("Seccomp:\t2\n") && text.contains("Seccomp_filters:\t2\n"), "{text}");
    if skipped_unless_root("umount as root") {
        return;
    }
    let umount = run("/bin/sh", &["-c", "umount /proc/nothing/here; unshare --mount true"]);
    assert_eq!(umount.status.signal(), None);
    let text = String::from_utf8(umount.stderr).unwrap();
    assert!(text.contains("unshare failed: Operation not permitted"), "{text}");
}

const PYTHON: &str = "
import asyncio, ctypes, errno, multiprocessing, os, socket, subprocess, threading
from multiprocessing import shared_memory

def square(x):
    return x * x

async def hello():
    process = await asyncio.create_subprocess_exec('/bin/echo', 'hello', stdout=subprocess.PIPE)
    return (await process.communicate())[0]

if __name__ == '__main__':
    assert subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout == b'x\\n'
    assert subprocess.run('exit 3', shell=True, start_new_session=True).returncode == 3
    done = []
    threads = [threading.Thread(target=done.append, args=(n,)) for n in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert sorted(done) == list(range(8))
    for method in ['fork', 'forkserver']:
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(10)) == [x * x for x in range(10)]
    shared = shared_memory.SharedMemory(create=True, size=4096)
    shared.close(); shared.unlink()
    assert asyncio.run(hello()) == b'hello\\n'
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == errno.EPERM
    print('all well')
";

#[test]
fn python_works() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: no python3");
        return;
    }
    // A file, since a forkserver's children import the main module.
    let path = std::env::temp_dir().join(format!("seccomp-test-{}.py", std::process::id()));
    std::fs::write(&path, PYTHON).unwrap();
    let output = run("python3", &[path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"all well\n", "{:?} {text}", output.status);
}

fn skipped_unless_root(what: &str) -> bool {
    // SAFETY: reads a number.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: {what} takes root");
    }
    !root
}
