//! Checks the machine, loads the programs, adopts or makes the pinned maps.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use aya::{Ebpf, EbpfLoader, VerifierLogLevel, programs::Program};
use proxy_common::ABI_VERSION;

use super::{
    layout::{self, Sizes},
    pins::{self, PinError, PinPaths, Pins},
    sys,
};

/// The kernel programs, as built with this agent.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("WEIR_BPF_OBJECT"));

/// How long another holder of the lock on the pins is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// What cannot be loaded, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not a bpf file system.
    #[error(
        "{path} is not a bpf file system; mount one (`mount -t bpf bpf {path}`) or name another \
         with --bpffs"
    )]
    NoBpffs {
        /// The path.
        path: String,
    },
    /// Not a cgroup v2 directory.
    #[error(
        "{path} is not in a cgroup v2 hierarchy; mount one (`mount -t cgroup2 none {path}`) or \
         name another with --cgroup"
    )]
    NoCgroup {
        /// The path.
        path: String,
    },
    /// A path cannot be used at all.
    #[error("use {}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another agent runs on the same pins.
    #[error(
        "{} is in use by another weir; stop it first, or give this one a bpf file system of its \
         own with --bpffs", .0.display()
    )]
    Locked(PathBuf),
    /// Pinned maps cannot be used.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The object was refused.
    #[error("load the kernel programs{}", hint(.0))]
    Object(#[source] Box<aya::EbpfError>),
    /// A program was refused.
    #[error("load program {program}{}", permission(source))]
    Program {
        /// Its name.
        program: String,
        /// Why.
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    /// The object does not hold what the agent expects.
    #[error("program {0} is missing from the embedded object: this build of weir is broken")]
    Missing(String),
}

const CAPABILITIES: &str = "; weir needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";

fn hint(error: &aya::EbpfError) -> &'static str {
    match error {
        aya::EbpfError::MapError(aya::maps::MapError::CreateError { io_error, .. })
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            CAPABILITIES
        }
        _ => "",
    }
}

fn permission(error: &aya::programs::ProgramError) -> &'static str {
    match error {
        aya::programs::ProgramError::LoadError { io_error, .. }
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            CAPABILITIES
        }
        _ => "",
    }
}

/// The programs, loaded and not yet attached.
pub struct Loaded {
    /// Programs and their maps.
    pub ebpf: Ebpf,
    /// Pins.
    pub paths: PinPaths,
    /// The pinned maps.
    pub pins: Pins,
    /// The maps were there before: flows and ids are kept.
    pub adopted: bool,
    /// Held while the agent runs.
    lock: File,
}

impl Loaded {
    /// Descriptor of a loaded program.
    pub fn program(&self, name: &str) -> Result<OwnedFd, LoadError> {
        let missing = || LoadError::Missing(name.to_owned());
        let fd = match self.ebpf.program(name).ok_or_else(missing)? {
            Program::SchedClassifier(program) => program.fd(),
            Program::CgroupSockAddr(program) => program.fd(),
            _ => return Err(missing()),
        };
        let error =
            |source| LoadError::Program { program: name.to_owned(), source: Box::new(source) };
        let fd = fd.map_err(error)?;
        fd.as_fd().try_clone_to_owned().map_err(|e| error(e.into()))
    }

    /// Takes it apart; the file is the lock.
    pub fn into_parts(self) -> (Ebpf, PinPaths, Pins, File) {
        (self.ebpf, self.paths, self.pins, self.lock)
    }
}

fn path_error(path: &Path) -> impl FnOnce(io::Error) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::Path { path, source }
}

/// Checks that both mounts are what they must be.
pub fn check_mounts(bpffs: &Path, cgroup: &Path) -> Result<(), LoadError> {
    if sys::file_system(bpffs).map_err(path_error(bpffs))? != sys::BPF_FS_MAGIC {
        return Err(LoadError::NoBpffs { path: bpffs.display().to_string() });
    }
    if sys::file_system(cgroup).map_err(path_error(cgroup))? != sys::CGROUP2_SUPER_MAGIC {
        return Err(LoadError::NoCgroup { path: cgroup.display().to_string() });
    }
    Ok(())
}

/// Takes the lock on the pins. An agent that is ending has it until its last write is done, and
/// `weir status` for a moment.
pub(super) fn lock(root: &Path) -> Result<File, LoadError> {
    let lock = File::open(root).map_err(path_error(root))?;
    let end = Instant::now() + LOCK_WAIT;
    while !sys::try_lock(lock.as_fd()).map_err(path_error(root))? {
        if Instant::now() >= end {
            return Err(LoadError::Locked(root.to_owned()));
        }
        thread::sleep(LOCK_WAIT / 40);
    }
    Ok(lock)
}

/// Loads everything. Nothing that runs is disturbed: programs of an earlier agent stay attached
/// until [`super::attach`] replaces them.
pub fn load(bpffs: &Path, sizes: &Sizes) -> Result<Loaded, LoadError> {
    let paths = PinPaths::new(bpffs);
    for dir in [paths.maps(), paths.links()] {
        fs::create_dir_all(&dir).map_err(path_error(&dir))?;
    }
    let lock = lock(&paths.root)?;
    let specs = layout::maps(sizes);
    let adopted = check_pins(&paths, &specs)?;

    let mut loader = EbpfLoader::new();
    // The log is kept for errors only; verbose logs of large programs take seconds.
    loader.verifier_log_level(VerifierLogLevel::STATS);
    for spec in &specs {
        loader.map_max_entries(spec.name, spec.max_entries);
        loader.map_pin_path(spec.name, paths.map(spec.name));
    }
    let mut ebpf = loader.load(OBJECT).map_err(|e| LoadError::Object(Box::new(e)))?;
    for (name, program) in ebpf.programs_mut() {
        let result = match program {
            Program::SchedClassifier(program) => program.load(),
            Program::CgroupSockAddr(program) => program.load(),
            _ => return Err(LoadError::Missing(name.to_owned())),
        };
        result.map_err(|source| LoadError::Program {
            program: name.to_owned(),
            source: Box::new(source),
        })?;
    }
    let pins = Pins::open(bpffs)?;
    Ok(Loaded { ebpf, paths, pins, adopted, lock })
}

/// Compares what lies under the pins with what we need. `Ok(true)`: all maps are there and right.
fn check_pins(paths: &PinPaths, specs: &[layout::MapSpec]) -> Result<bool, LoadError> {
    let mut found = 0;
    for spec in specs {
        let path = paths.map(spec.name);
        let fd = match sys::obj_get(&path) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(PinError::Open { path, source }.into()),
        };
        let info = match sys::map_info(fd.as_fd()) {
            Ok(info) => info,
            Err(source) => return Err(PinError::Open { path, source }.into()),
        };
        if let Err(what) = pins::check(&info, spec) {
            return Err(PinError::Foreign { path, what }.into());
        }
        if info.max_entries != spec.max_entries {
            // A table of another size still has all flows; a new one would lose them.
            tracing::warn!(
                map = spec.name,
                rows = info.max_entries,
                wanted = spec.max_entries,
                "pinned table keeps its size; `weir cleanup` makes room for another"
            );
        }
        if spec.name == "CONFIG" {
            let config: Option<proxy_common::config::NodeConfig> =
                sys::lookup(fd.as_fd(), &0u32).map_err(path_error(&path))?;
            let abi = config.map_or(0, |config| config.abi);
            // Zero: an agent died before its first write; there is nothing to misread then.
            if abi != 0 && abi != ABI_VERSION {
                let what = format!("layout version is {abi}, must be {ABI_VERSION}");
                return Err(PinError::Foreign { path, what }.into());
            }
        }
        found += 1;
    }
    Ok(found == specs.len())
}
