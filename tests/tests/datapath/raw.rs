//! What aya does not offer: a program of two instructions, and a flag of test runs.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

/// Gives the packet a complete checksum, as some NICs do, and fails the run with EBADMSG if what
/// the program leaves does not fit the packet any more. Kernel 6.16 (BPF_F_TEST_SKB_CHECKSUM_COMPLETE).
pub const CHECKSUM_COMPLETE: u32 = 1 << 2;

/// The start of union bpf_attr for BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a prefix of union bpf_attr for this command, and what it points to is
    // alive in the callers below.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A program that returns "next" and nothing else: what any program on the hook costs at least.
pub fn bare_program() -> io::Result<OwnedFd> {
    // struct bpf_insn: opcode, registers, offset, immediate; `r0 = -1; exit`.
    let insns: [(u8, u8, i16, i32); 2] = [(0xb7, 0, 0, -1), (0x95, 0, 0, 0)];
    let insns = insns.map(|(code, registers, off, imm)| {
        u64::from_ne_bytes({
            let (off, imm) = (off.to_ne_bytes(), imm.to_ne_bytes());
            [code, registers, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
        })
    });
    let fd = bpf(
        BPF_PROG_LOAD,
        &mut Load {
            prog_type: BPF_PROG_TYPE_SCHED_CLS,
            insn_cnt: insns.len() as u32,
            insns: insns.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            ..Load::default()
        },
    )?;
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
