//! Links: attach, pin, adopt, replace, forget.
//!
//! Each link is pinned, so that packets are translated whether or not the agent runs. An agent
//! that starts finds the pins of the last one and replaces the programs behind them in one step.
//!
//! Our ingress program runs first and our egress program last: every other program on a device,
//! like the kernel itself, sees client ↔ backend and never a half-translated packet.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        Program, ProgramError, SchedClassifier, TcAttachType,
        tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions},
    },
};

use super::{
    clsact,
    loader::{LoadError, Loaded},
    pins::PinPaths,
    sys,
};

/// Socket-address programs and their attach types (enum bpf_attach_type).
const SOCKET_PROGRAMS: [(&str, u32); 8] = [
    ("sock4_connect", 10),
    ("sock6_connect", 11),
    ("sock4_sendmsg", 14),
    ("sock6_sendmsg", 15),
    ("sock4_recvmsg", 19),
    ("sock6_recvmsg", 20),
    ("sock4_getpeer", 29),
    ("sock6_getpeer", 30),
];

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcMode {
    /// TCX links, kernel 6.6 and later.
    Tcx,
    /// clsact filters. They outlive the agent too, but cannot be pinned.
    Clsact,
}

/// A program cannot be attached.
#[derive(Debug, thiserror::Error)]
#[error("attach {program} to {target}")]
pub struct AttachError {
    program: String,
    target: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// A device to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// Packets there begin with the IP header.
    pub layer3: bool,
}

/// Attaches the loaded programs.
pub struct Attacher {
    ebpf: Ebpf,
    pub(super) paths: PinPaths,
    pub(super) programs: BTreeMap<&'static str, OwnedFd>,
    mode: TcMode,
    /// By the name of the link's pin; filters, which have none, by the name that it would have.
    pub(super) attached: BTreeMap<String, Attached>,
    /// Of directories that had to be made anew.
    pub(super) locks: Vec<fs::File>,
}

/// A program where we have put it.
pub(super) struct Attached {
    /// Program.
    pub program: &'static str,
    /// Where.
    pub place: Place,
    /// Kept open, so that the loss of its pin alone detaches nothing. Filters have none.
    pub link: Option<OwnedFd>,
}

/// Where a program is attached.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A device, and the attach type of a link.
    Device(Target, u32),
    /// A cgroup directory, by path and inode number, and the attach type.
    Cgroup(PathBuf, u64, u32),
}

impl Place {
    /// Whether this link is (still) there.
    pub(super) fn has(&self, info: &sys::LinkInfo) -> bool {
        match self {
            // Zero once the link was detached or the device has gone.
            Self::Device(target, attach_type) => {
                info.low == target.ifindex && info.high == *attach_type
            }
            Self::Cgroup(_, inode, attach_type) => {
                info.cgroup_id() == *inode && info.attach_type == *attach_type
            }
        }
    }
}

/// Whether the kernel knows TCX (6.6).
pub fn kernel_mode() -> TcMode {
    let version = aya::util::KernelVersion::current().ok();
    match version {
        Some(version) if version >= aya::util::KernelVersion::new(6, 6, 0) => TcMode::Tcx,
        _ => TcMode::Clsact,
    }
}

impl Attacher {
    /// Takes the loaded programs over.
    pub fn new(
        loaded: Loaded,
        mode: TcMode,
    ) -> Result<(Self, super::pins::Pins, LockGuard), LoadError> {
        let mut programs = BTreeMap::new();
        for name in ["tc_ingress", "tc_egress", "tc_ingress_l3", "tc_egress_l3"]
            .into_iter()
            .chain(SOCKET_PROGRAMS.map(|(name, _)| name))
        {
            programs.insert(name, loaded.program(name)?);
        }
        let (ebpf, paths, pins, lock) = loaded.into_parts();
        pin_program(&paths, PROBED, programs[PROBED].as_fd())?;
        let attacher =
            Self { ebpf, paths, programs, mode, attached: BTreeMap::new(), locks: Vec::new() };
        Ok((attacher, pins, LockGuard { _lock: lock }))
    }

    /// Attaches the socket programs to the cgroup directory, or replaces those that are there.
    pub fn attach_cgroup(&mut self, cgroup: &Path) -> Result<(), AttachError> {
        let error = |program: &str, source: io::Error| AttachError {
            program: program.to_owned(),
            target: cgroup.display().to_string(),
            source: source.into(),
        };
        let dir = fs::File::open(cgroup).map_err(|e| error("socket programs", e))?;
        let inode = {
            use std::os::unix::fs::MetadataExt as _;
            dir.metadata().map_err(|e| error("socket programs", e))?.ino()
        };
        for (name, attach_type) in SOCKET_PROGRAMS {
            let fd = dir.as_fd().as_raw_fd() as u32;
            let place = Place::Cgroup(cgroup.to_owned(), inode, attach_type);
            self.link(name, name, place, fd, attach_type, 0).map_err(|e| error(name, e))?;
        }
        Ok(())
    }

    /// Attaches both TC programs to a device, or replaces those that are there.
    pub fn attach_device(&mut self, device: &Target) -> Result<(), AttachError> {
        for (pin, ingress) in [("tc_ingress", true), ("tc_egress", false)] {
            let program = match (ingress, device.layer3) {
                (true, false) => "tc_ingress",
                (false, false) => "tc_egress",
                (true, true) => "tc_ingress_l3",
                (false, true) => "tc_egress_l3",
            };
            let result = match self.mode {
                TcMode::Tcx => {
                    let (attach_type, order) = if ingress {
                        (sys::BPF_TCX_INGRESS, sys::BPF_F_BEFORE)
                    } else {
                        (sys::BPF_TCX_EGRESS, sys::BPF_F_AFTER)
                    };
                    let pin = format!("{pin}-{}", device.ifindex);
                    let place = Place::Device(device.clone(), attach_type);
                    self.link(&pin, program, place, device.ifindex, attach_type, order)
                        .map_err(Into::into)
                }
                TcMode::Clsact => self.clsact(program, device, ingress),
            };
            result.map_err(|source| AttachError {
                program: program.to_owned(),
                target: device.name.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Adopts the link pinned as `pin` if it is in its place, else pins the one that we hold, else
    /// makes and pins a new one.
    fn link(
        &mut self,
        pin: &str,
        program: &'static str,
        place: Place,
        target: u32,
        attach_type: u32,
        flags: u32,
    ) -> io::Result<()> {
        let path = self.paths.links().join(pin);
        let held = self.attached.get(pin).and_then(|attached| attached.link.as_ref());
        let code = self.programs.get(program).ok_or(io::ErrorKind::NotFound)?.as_fd();
        let mut link = None;
        match sys::obj_get(&path) {
            Ok(pinned) => {
                if place.has(&sys::link_info(pinned.as_fd())?) {
                    // The pin stays as it is: it names the link, not the program.
                    sys::link_update(pinned.as_fd(), code)?;
                    link = Some(pinned);
                } else {
                    // Its device is gone, and another has the index now; or it was detached.
                    fs::remove_file(&path)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if link.is_none() {
            let kept = match held {
                Some(held) if place.has(&sys::link_info(held.as_fd())?) => {
                    sys::link_update(held.as_fd(), code)?;
                    held.try_clone()?
                }
                _ => sys::link_create(code, target, attach_type, flags)?,
            };
            // If this fails a new link goes with its descriptor, and nothing is left half done.
            sys::obj_pin(kept.as_fd(), &path)?;
            link = Some(kept);
        }
        self.attached.insert(pin.to_owned(), Attached { program, place, link });
        Ok(())
    }

    fn clsact(
        &mut self,
        program: &'static str,
        device: &Target,
        ingress: bool,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match tc::qdisc_add_clsact(&device.name) {
            Ok(()) => {}
            Err(tc::TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {
            }
            Err(tc::TcError::IoError(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                if !error.to_string().contains("exists") {
                    return Err(error.into());
                }
            }
        }
        let classifier: &mut SchedClassifier = match self.ebpf.program_mut(program) {
            Some(Program::SchedClassifier(classifier)) => classifier,
            _ => return Err(LoadError::Missing(program.to_owned()).into()),
        };
        let attach_type = if ingress { TcAttachType::Ingress } else { TcAttachType::Egress };
        let options = NlOptions {
            priority: clsact::PRIORITY,
            handle: clsact::HANDLE,
            ..NlOptions::default()
        };
        let attached = classifier.attach_with_options(
            &device.name,
            attach_type,
            TcAttachOptions::Netlink(options),
        );
        let id = match attached {
            Ok(id) => id,
            // Ours from before: replace it.
            Err(ProgramError::TcError(tc::TcError::NetlinkError(_))) => {
                let old = SchedClassifierLink::attached(
                    &device.name,
                    attach_type,
                    clsact::PRIORITY,
                    clsact::HANDLE,
                    None,
                )?;
                classifier.attach_to_link(old)?
            }
            Err(error) => return Err(error.into()),
        };
        // Dropping the link would detach the filter, which must outlive the agent.
        std::mem::forget(classifier.take_link(id)?);
        let name =
            format!("{}-{}", if ingress { "tc_ingress" } else { "tc_egress" }, device.ifindex);
        let place = Place::Device(device.clone(), 0);
        self.attached.insert(name, Attached { program, place, link: None });
        Ok(())
    }

    /// Removes the pins of a device that is gone.
    pub fn forget_device(&mut self, ifindex: u32) -> io::Result<()> {
        for hook in ["tc_ingress", "tc_egress"] {
            let name = format!("{hook}-{ifindex}");
            self.attached.remove(&name);
            sys::remove_pin(&self.paths.links().join(name))?;
        }
        Ok(())
    }

    /// Removes pins of links whose device is gone, left by an agent that was not there to see it.
    pub fn forget_dead_links(&self) -> io::Result<()> {
        for link in links(&self.paths)? {
            if link.is_tc() && link.info.low == 0 {
                fs::remove_file(&link.path)?;
            }
        }
        Ok(())
    }
}

/// The program that `weir explain` runs. It needs a pin: to open a program by its number takes
/// CAP_SYS_ADMIN, which the agent and people in its container do not have.
pub const PROBED: &str = "tc_ingress";

/// Pins a program in place of the one of an earlier agent.
fn pin_program(paths: &PinPaths, name: &str, program: BorrowedFd<'_>) -> Result<(), LoadError> {
    let error = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Path { path, source }
    };
    let directory = paths.programs();
    fs::create_dir_all(&directory).map_err(error(&directory))?;
    let path = directory.join(name);
    sys::replace_pin(program, &path).map_err(error(&path))
}

/// Keeps other agents away while it lives.
pub struct LockGuard {
    _lock: fs::File,
}

/// A pinned link.
#[derive(Clone, Debug)]
pub struct PinnedLink {
    /// Pin.
    pub path: PathBuf,
    /// `tc_ingress-4`, `sock4_connect`.
    pub name: String,
    /// What the kernel says.
    pub info: sys::LinkInfo,
}

impl PinnedLink {
    /// Whether it is on a device.
    pub fn is_tc(&self) -> bool {
        self.name.starts_with("tc_")
    }
}

/// All pinned links, by name.
pub fn links(paths: &PinPaths) -> io::Result<Vec<PinnedLink>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(paths.links())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let link = sys::obj_get(&path)?;
        let info = sys::link_info(link.as_fd())?;
        found.push(PinnedLink { path, name, info });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}
