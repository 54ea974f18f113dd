//! Which device nodes the processes of a control group may open: an allow-list, everything else is refused.
//!
//! On v1 the devices controller takes the list; on v2 a BPF program is asked at each open. libcgroups has both, but its
//! list always lets tun and mknod through, its BPF part needs libelf and zlib of the machine that builds, and it lowers
//! the memlock limit of everything that is started after; the program here is a screenful.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::libc;

use super::cgroup::{Layout, layout, v1_directory, v2_directory};

/// A character device that may be opened to read and to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    /// Every one of that major number when absent.
    pub minor: Option<u32>,
}

impl Device {
    /// The one that a node stands for.
    pub fn of(node: &Path) -> io::Result<Self> {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let found = fs::symlink_metadata(node)?;
        if !found.file_type().is_char_device() {
            return Err(io::Error::other(format!("{} is no character device", node.display())));
        }
        let number = |number: u64| u32::try_from(number).map_err(io::Error::other);
        let (major, minor) = (nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev()));
        Ok(Self { major: number(major)?, minor: Some(number(minor)?) })
    }
}

const fn device(major: u32, minor: u32) -> Device {
    Device { major, minor: Some(minor) }
}

/// null, zero, full, random, urandom, tty, ptmx, and the terminals behind it.
pub const STANDARD: [Device; 8] = [
    device(1, 3),
    device(1, 5),
    device(1, 7),
    device(1, 8),
    device(1, 9),
    device(5, 0),
    device(5, 2),
    Device { major: 136, minor: None },
];

/// Lets processes of `group` open `devices` and no other, nor make any.
pub fn allow_only(group: &str, devices: &[Device]) -> io::Result<()> {
    match layout() {
        Layout::V1 => allow_v1(&v1_directory("devices", group), devices),
        Layout::V2 => attach(&v2_directory(group), &program(devices)),
    }
}

fn allow_v1(directory: &Path, devices: &[Device]) -> io::Result<()> {
    fs::write(directory.join("devices.deny"), "a")?;
    for device in devices {
        let minor = device.minor.map_or("*".to_owned(), |minor| minor.to_string());
        fs::write(directory.join("devices.allow"), format!("c {}:{minor} rw", device.major))?;
    }
    Ok(())
}

/// An eBPF instruction as the kernel takes it (`struct bpf_insn`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Target register in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Registers: what is asked for, split up at the start. r1 is given: the context, and is not needed after that.
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const RESULT: u8 = 0;

// Offsets in `struct bpf_cgroup_dev_ctx`.
const ACCESS_TYPE_AT: i16 = 0;
const MAJOR_AT: i16 = 4;
const MINOR_AT: i16 = 8;

const LOAD_WORD: u8 = 0x61;
const COPY: u8 = 0xbf;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const SET: u8 = 0xb7;
const JUMP_IF_NOT_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;
const CHARACTER_DEVICE: i32 = 2;
const MAKE_NODE: i32 = 1;

const fn instruction(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: target | (source << 4), offset, immediate }
}

/// One rule after another; the first that fits allows, the end refuses.
fn program(devices: &[Device]) -> Vec<Instruction> {
    let refuse = [instruction(SET, RESULT, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)];
    let mut out = vec![
        instruction(LOAD_WORD, KIND, CONTEXT, ACCESS_TYPE_AT, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, MAJOR_AT, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, MINOR_AT, 0),
        // No node is made, and only character devices are opened.
        instruction(AND, ACCESS, 0, 0, MAKE_NODE),
        instruction(JUMP_IF_NOT_EQUAL, ACCESS, 0, 1, 0),
        instruction(0x15, KIND, 0, 2, CHARACTER_DEVICE),
    ];
    out.extend(refuse);
    for device in devices {
        let number = |number: u32| i32::from_ne_bytes(number.to_ne_bytes());
        let allow = [instruction(SET, RESULT, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)];
        match device.minor {
            Some(minor) => out.extend([
                instruction(JUMP_IF_NOT_EQUAL, MAJOR, 0, 3, number(device.major)),
                instruction(JUMP_IF_NOT_EQUAL, MINOR, 0, 2, number(minor)),
            ]),
            None => out.push(instruction(JUMP_IF_NOT_EQUAL, MAJOR, 0, 2, number(device.major))),
        }
        out.extend(allow);
    }
    out.extend(refuse);
    out
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
/// Beside what is attached further up, which is asked as well.
const BPF_F_ALLOW_MULTI: u32 = 2;

/// The start of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The start of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

fn attach(directory: &Path, program: &[Instruction]) -> io::Result<()> {
    let group = fs::File::open(directory)?;
    let loaded = load(program)?;
    let descriptor = |fd: i32| u32::try_from(fd).map_err(io::Error::other);
    let attributes = Attach {
        target: descriptor(group.as_raw_fd())?,
        program: descriptor(loaded.as_raw_fd())?,
        kind: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    bpf(BPF_PROG_ATTACH, &attributes).map(drop)
}

#[expect(unsafe_code, reason = "a descriptor that only the system call returns")]
fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = Load {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr().addr() as u64,
        license: c"Apache-2.0".as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    let fd = bpf(BPF_PROG_LOAD, &attributes)?;
    // SAFETY: the kernel just returned this descriptor to us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[expect(unsafe_code, reason = "nothing wraps bpf(2)")]
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: needed to load and attach the program. The structure is the start of `union bpf_attr`, its true size is
    // passed, and it and what its addresses name (instructions, a C string) live through the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    i32::try_from(nix::errno::Errno::result(result)?).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would; only what it uses.
    fn decide(program: &[Instruction], kind: u32, access: u32, major: u32, minor: u32) -> bool {
        let mut registers = [0u64; 11];
        let mut at = 0usize;
        loop {
            let Instruction { code, registers: pair, offset, immediate } = program[at];
            let (target, source) = (usize::from(pair & 15), usize::from(pair >> 4));
            let number = u64::from(immediate as u32);
            let mut next = at + 1;
            match code {
                LOAD_WORD => {
                    registers[target] = u64::from(match offset {
                        ACCESS_TYPE_AT => kind | (access << 16),
                        MAJOR_AT => major,
                        _ => minor,
                    })
                }
                COPY => registers[target] = registers[source],
                AND => registers[target] &= number,
                SHIFT_RIGHT => registers[target] >>= number,
                SET => registers[target] = number,
                JUMP_IF_NOT_EQUAL if registers[target] != number => next += offset as usize,
                0x15 if registers[target] == number => next += offset as usize,
                JUMP_IF_NOT_EQUAL | 0x15 => {}
                EXIT => return registers[0] == 1,
                other => panic!("unknown instruction {other:#x}"),
            }
            at = next;
        }
    }

    #[test]
    fn only_what_is_listed_is_opened_and_nothing_is_made() {
        let program = program(&STANDARD);
        const READ_WRITE: u32 = 6;
        assert!(decide(&program, 2, READ_WRITE, 1, 3), "null");
        assert!(decide(&program, 2, 2, 136, 4711), "a terminal");
        for (kind, access, major, minor) in [
            (2, READ_WRITE, 1, 1),    // mem
            (2, READ_WRITE, 10, 200), // tun
            (1, READ_WRITE, 1, 3),    // a block device of that number
            (2, 1, 1, 3),             // making a node
            (2, 7, 1, 3),
            (2, READ_WRITE, 195, 0), // a card
        ] {
            assert!(!decide(&program, kind, access, major, minor), "{kind} {access} {major}:{minor}");
        }
        let card = super::program(&[device(195, 0)]);
        assert!(decide(&card, 2, READ_WRITE, 195, 0) && !decide(&card, 2, READ_WRITE, 195, 1));
    }
}
