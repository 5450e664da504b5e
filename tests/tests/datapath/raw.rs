//! bpf(2) calls that aya does not offer: a program of two instructions, and test runs with flags.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    time::Duration,
};

use crate::bench::Ran;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
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

/// The same for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    reserved: u32,
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

/// Runs a program on a frame that came in by a device.
pub fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ifindex: u32,
    repeat: u32,
    flags: u32,
) -> io::Result<Ran> {
    let mut out = vec![0u8; frame.len() + 256];
    // struct __sk_buff: only `ifindex`, the eleventh word, is set.
    let mut context = [0u8; 192];
    context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
    let mut attr = TestRun {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat,
        ctx_size_in: context.len() as u32,
        ctx_in: context.as_ptr() as u64,
        flags,
        ..TestRun::default()
    };
    bpf(BPF_PROG_TEST_RUN, &mut attr)?;
    out.truncate(attr.data_size_out as usize);
    Ok(Ran {
        code: attr.retval as i32,
        frame: out,
        duration: Duration::from_nanos(u64::from(attr.duration)),
    })
}
