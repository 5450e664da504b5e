//! The bpf(2) calls that aya 0.14 has no function for, and a few others. All of the agent's
//! unsafe code is here.
//!
//! Batched map calls and replacing a cgroup link's program are the gaps; creating links is here
//! too, because links are pinned and aya's own would have to be taken apart for that.
#![expect(unsafe_code, reason = "the one file of the agent that talks to the kernel by hand")]

mod batch;
mod probe;

pub use batch::{delete_batch, for_each_chunk, update_batch};
pub use probe::{Ran, repair, socket_cookie, stay_on_cpu, test_run};

use std::{
    ffi::CString,
    io,
    mem::{MaybeUninit, size_of},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use proxy_common::Row;

// Commands of enum bpf_cmd, uapi/linux/bpf.h.
const BPF_MAP_LOOKUP_ELEM: u32 = 1;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_MAP_DELETE_ELEM: u32 = 3;
const BPF_OBJ_PIN: u32 = 6;
const BPF_OBJ_GET: u32 = 7;
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;
const BPF_LINK_CREATE: u32 = 28;
const BPF_LINK_UPDATE: u32 = 29;

/// Attach type of TCX ingress.
pub const BPF_TCX_INGRESS: u32 = 46;
/// Attach type of TCX egress.
pub const BPF_TCX_EGRESS: u32 = 47;
/// Before the program named, or before all.
pub const BPF_F_BEFORE: u32 = 1 << 3;
/// After the program named, or after all.
pub const BPF_F_AFTER: u32 = 1 << 4;

/// `f_type` of a bpf file system (uapi/linux/magic.h).
pub const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// `f_type` of a cgroup v2 hierarchy (uapi/linux/magic.h).
pub const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

/// SO_NETNS_COOKIE of asm-generic/socket.h, kernel 5.14.
const SO_NETNS_COOKIE: i32 = 71;

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreateAttr {
    prog_fd: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    pad: u32,
    expected_revision: u64,
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdateAttr {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapInfo {
    /// enum bpf_map_type.
    pub map_type: u32,
    /// Kernel-wide id.
    pub id: u32,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// Capacity.
    pub max_entries: u32,
    /// Creation flags.
    pub map_flags: u32,
}

/// Start of `struct bpf_link_info`, with the union as for TCX and cgroup links.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// enum bpf_link_type.
    pub link_type: u32,
    /// Kernel-wide id.
    pub id: u32,
    /// Program that runs.
    pub prog_id: u32,
    pad: u32,
    /// TCX: interface index, zero once the device is gone. cgroup: lower half of its id.
    pub low: u32,
    /// TCX: attach type. cgroup: upper half of its id.
    pub high: u32,
    /// cgroup: attach type.
    pub attach_type: u32,
    tail: u32,
}

impl LinkInfo {
    /// Id of the cgroup of a cgroup link: the inode number of its directory.
    pub fn cgroup_id(&self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

fn bpf<T>(command: u32, attr: &mut T) -> io::Result<i64> {
    // SAFETY: `attr` is a prefix of union bpf_attr with the layout of `command`; the kernel takes
    // what is beyond its length as zero. Addresses in it outlive the call (callers hold them).
    let ret =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: a descriptor the kernel has just made for us.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

fn path_cstring(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// Opens a pinned object.
pub fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    let path = path_cstring(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, ..Default::default() };
    bpf(BPF_OBJ_GET, &mut attr).map(owned)
}

/// Pins an object.
pub fn obj_pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_cstring(path)?;
    let mut attr =
        ObjAttr { pathname: path.as_ptr() as u64, bpf_fd: raw(fd), ..Default::default() };
    bpf(BPF_OBJ_PIN, &mut attr).map(drop)
}

/// Removes a pin, if it is there.
pub fn remove_pin(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Pins an object in place of another.
pub fn replace_pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    remove_pin(path)?;
    obj_pin(fd, path)
}

fn info<T: Default>(fd: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let mut attr = InfoAttr {
        bpf_fd: raw(fd),
        info_len: size_of::<T>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

/// Facts of a map.
pub fn map_info(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    info(fd)
}

/// Start of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    program_type: u32,
    id: u32,
}

/// Kernel-wide id of a program.
pub fn program_id(fd: BorrowedFd<'_>) -> io::Result<u32> {
    info::<ProgramInfo>(fd).map(|info| info.id)
}

/// Facts of a link.
pub fn link_info(fd: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    info(fd)
}

/// Attaches a program to a device (`target`: interface index) or cgroup (`target`: descriptor).
pub fn link_create(
    program: BorrowedFd<'_>,
    target: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr =
        LinkCreateAttr { prog_fd: raw(program), target, attach_type, flags, ..Default::default() };
    bpf(BPF_LINK_CREATE, &mut attr).map(owned)
}

/// Replaces the program of a link in one step.
///
/// aya 0.16 can do this for socket-address links.
pub fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr =
        LinkUpdateAttr { link_fd: raw(link), new_prog_fd: raw(program), ..Default::default() };
    bpf(BPF_LINK_UPDATE, &mut attr).map(drop)
}

/// Writes one row.
pub fn update<K: Row, V: Row>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    let mut attr = ElemAttr {
        map_fd: raw(map),
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_ref(value) as u64,
        ..Default::default()
    };
    bpf(BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Deletes one row. `Ok(false)`: it was not there.
pub fn delete<K: Row>(map: BorrowedFd<'_>, key: &K) -> io::Result<bool> {
    let mut attr =
        ElemAttr { map_fd: raw(map), key: std::ptr::from_ref(key) as u64, ..Default::default() };
    match bpf(BPF_MAP_DELETE_ELEM, &mut attr) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads one row.
pub fn lookup<K: Row, V: Row>(map: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    let mut value = MaybeUninit::<V>::uninit();
    let mut attr = ElemAttr {
        map_fd: raw(map),
        key: std::ptr::from_ref(key) as u64,
        value: value.as_mut_ptr() as u64,
        ..Default::default()
    };
    match bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) {
        // SAFETY: the kernel has written value_size bytes, which the opener of the map has checked
        // to be the size of `V`; every bit pattern of a row is valid.
        Ok(_) => Ok(Some(unsafe { value.assume_init() })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads all CPUs' values of one row of a per-CPU map of `u64`.
pub fn lookup_per_cpu(map: BorrowedFd<'_>, key: u32, cpus: usize) -> io::Result<Vec<u64>> {
    let mut values = vec![0u64; cpus];
    let mut attr = ElemAttr {
        map_fd: raw(map),
        key: std::ptr::from_ref(&key) as u64,
        value: values.as_mut_ptr() as u64,
        ..Default::default()
    };
    bpf(BPF_MAP_LOOKUP_ELEM, &mut attr)?;
    Ok(values)
}

/// Type of the file system at `path`.
pub fn file_system(path: &Path) -> io::Result<i64> {
    let path = path_cstring(path)?;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a valid path and room for the answer.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written by the call that succeeded.
    Ok(unsafe { stat.assume_init() }.f_type)
}

/// Cookie of the network namespace this process is in.
pub fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)))?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: a live socket and room for the answer.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut len,
        )
    };
    if ret == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Takes an exclusive lock on an open file or directory; `false`: somebody has it.
pub fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: a live descriptor.
    if unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Lets this process have as many open files as it may: links and maps are held open, and the usual
/// soft limit of 1024 is less than a node with 500 devices needs.
pub fn raise_open_files() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a limit that the kernel has just given.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: room for the answer; this clock exists on every Linux.
    let ret = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr()) };
    assert_eq!(ret, 0, "CLOCK_MONOTONIC can be read");
    // SAFETY: written by the call that succeeded.
    let time = unsafe { time.assume_init() };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Name of an interface of the current network namespace.
pub fn interface_name(ifindex: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name.
    let ret = unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr().cast()) };
    if ret.is_null() {
        return None;
    }
    let end = name.iter().position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&name[..end]).into_owned())
}
