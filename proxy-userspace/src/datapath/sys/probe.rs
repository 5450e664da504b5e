//! What `weir explain` asks of the kernel: one run of a program, and connections without packets.

use std::{
    fmt, io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

use super::{bpf, raw};

/// Of enum bpf_cmd, uapi/linux/bpf.h.
const BPF_PROG_TEST_RUN: u32 = 10;

/// Start of union bpf_attr for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
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

/// Length of `struct __sk_buff` up to what we set and what follows it; the kernel takes a shorter
/// one than its own.
const CONTEXT: usize = 192;
/// Offset of `ifindex` in it.
const IFINDEX: usize = 40;
/// By how much a program may lengthen a frame.
const ROOM: usize = 256;

/// What a program made of a frame.
pub struct Ran {
    /// Return code; -1 is "next".
    pub code: i32,
    /// The frame after it.
    pub frame: Vec<u8>,
    /// Time of one run.
    pub duration: Duration,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verdict {}, frame ", self.code)?;
        self.frame.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// Runs a program on a frame that came in by a device, `repeat` times. `flags` are those of
/// BPF_PROG_TEST_RUN.
pub fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ifindex: u32,
    repeat: u32,
    flags: u32,
) -> io::Result<Ran> {
    let mut out = vec![0u8; frame.len() + ROOM];
    let mut context = [0u8; CONTEXT];
    context[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
    let mut attr = TestRunAttr {
        prog_fd: raw(program),
        data_size_in: frame.len() as u32,
        data_size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat,
        ctx_size_in: context.len() as u32,
        ctx_in: context.as_ptr() as u64,
        flags,
        ..Default::default()
    };
    bpf(BPF_PROG_TEST_RUN, &mut attr)?;
    out.truncate(attr.data_size_out as usize);
    Ok(Ran {
        code: attr.retval as i32,
        frame: out,
        duration: Duration::from_nanos(u64::from(attr.duration)),
    })
}

/// Keeps this thread on the CPU it runs on, and says which that is.
pub fn stay_on_cpu() -> io::Result<usize> {
    // SAFETY: a call without arguments.
    let cpu =
        usize::try_from(unsafe { libc::sched_getcpu() }).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: a set of bits, for which all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is one the kernel has named; a set has room for 1,024.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: this thread and a set of the stated size.
    let ret = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if ret == 0 { Ok(cpu) } else { Err(io::Error::last_os_error()) }
}

/// Puts a TCP socket in repair mode: it connects and closes without a packet (tcp(7) has no word
/// of it; CRIU's documentation has). Needs CAP_NET_ADMIN.
pub fn repair(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: a live descriptor and an option of the stated size.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            std::ptr::from_ref(&on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kernel's cookie of a socket, by which programs know it.
pub fn socket_cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut cookie = MaybeUninit::<u64>::uninit();
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: a live descriptor and room for the answer.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            cookie.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if ret != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written by the call that succeeded.
    Ok(unsafe { cookie.assume_init() })
}
