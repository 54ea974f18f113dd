//! Runs the two programs as the kernel would, so that tests can ask about every number, and about the architecture that
//! they do not run on.

use nix::libc;
use seccompiler::sock_filter;

use super::Filter;

#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) audit_arch: u32,
    pub(super) number: u32,
    pub(super) arg0: u64,
}

impl Filter {
    /// The action that the kernel takes, with the number of the error in its low half.
    pub(super) fn decide(&self, call: Call) -> u32 {
        let newest_first = [&self.denied, &self.allowed];
        // As the kernel does: actions are compared as signed numbers, and the first of equals stays.
        newest_first
            .map(|program| run(program, call))
            .into_iter()
            .min_by_key(|action| action_only(*action))
            .unwrap_or_default()
    }
}

fn action_only(action: u32) -> i32 {
    (action & libc::SECCOMP_RET_ACTION_FULL).cast_signed()
}

fn run(program: &[sock_filter], call: Call) -> u32 {
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let step = &program[at];
        at += 1;
        let jump = |condition: bool| usize::from(if condition { step.jt } else { step.jf });
        match u32::from(step.code) {
            0x20 => accumulator = load(call, step.k),
            0x54 => accumulator &= step.k,
            0x05 => at += step.k as usize,
            0x15 => at += jump(accumulator == step.k),
            0x25 => at += jump(accumulator > step.k),
            0x35 => at += jump(accumulator >= step.k),
            0x06 => return step.k,
            code => panic!("instruction {code:#x} is not simulated"),
        }
    }
}

/// A word of `struct seccomp_data`.
fn load(call: Call, offset: u32) -> u32 {
    match offset {
        0 => call.number,
        4 => call.audit_arch,
        16 => call.arg0 as u32,
        20 => (call.arg0 >> 32) as u32,
        offset => panic!("offset {offset} is not simulated"),
    }
}
