//! Finds what compiles the kernel programs, and compiles them.
//!
//! The agent's build script includes this file, so that the programs are built in one place. It
//! needs nothing but the standard library.
//!
//! `core` for the BPF target comes from, in this order:
//!
//! 1. `WEIR_BPF_RUSTC`: a `rustc` that has it;
//! 2. a rustup nightly with `rust-src`, which builds it (`-Z build-std=core`);
//! 3. Debian's `rustc-web` with `libstd-rust-web-dev-bpf`, which ships it.
//!
//! `bpf-linker` comes from `WEIR_BPF_LINKER`, `PATH`, or cargo's bin directory.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

/// Debian's compiler; rustup's own is found first on `PATH`, so it is named in full.
pub const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Separates arguments in `CARGO_ENCODED_RUSTFLAGS`.
const UNIT_SEPARATOR: &str = "\x1f";

/// Variables that an outer cargo or rustup sets and that would steer the inner build.
const FOREIGN: &[&str] = &[
    "CARGO",
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
];

/// Something needed for the kernel programs is not there.
#[derive(Debug)]
pub struct Missing {
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl std::error::Error for Missing {}

fn missing(what: impl Into<String>) -> Missing {
    Missing { what: what.into(), remedy: "`cargo xtask setup` installs what is missing" }
}

/// What the environment names is not usable.
fn misnamed(variable: &str, path: &Path, fault: &str) -> Missing {
    Missing {
        what: format!("{variable}={} {fault}", path.display()),
        remedy: "correct the variable, or unset it to have the usual places searched",
    }
}

/// Where `core` comes from.
#[derive(Clone, Debug)]
pub enum Core {
    /// This compiler has it.
    Shipped(PathBuf),
    /// This rustup toolchain builds it.
    Built(String),
}

/// A complete toolchain for the BPF target.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// Where `core` comes from, and with it the compiler.
    pub core: Core,
    linker: PathBuf,
}

/// The BPF target of the machine we build on.
pub fn target() -> &'static str {
    if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" }
}

impl Toolchain {
    /// Finds a toolchain, or says what is missing.
    pub fn find() -> Result<Self, Missing> {
        let core = compiler()?;
        let linker = linker()?;
        Ok(Self { core, linker })
    }

    /// One line on what was found.
    pub fn describe(&self) -> String {
        match &self.core {
            Core::Shipped(rustc) => {
                format!("{} with {}", rustc.display(), self.linker.display())
            }
            Core::Built(name) => format!("rustup toolchain {name} with {}", self.linker.display()),
        }
    }

    /// A cargo command on the kernel programs: `build`, `check` or such, with everything set that
    /// the target needs. `flags` are further compiler flags.
    pub fn cargo(&self, root: &Path, subcommand: &str, flags: &[&str]) -> Command {
        let mut cargo = match &self.core {
            Core::Shipped(_) => Command::new("cargo"),
            Core::Built(_) => Command::new("rustup"),
        };
        for name in FOREIGN {
            cargo.env_remove(name);
        }
        match &self.core {
            Core::Shipped(rustc) => {
                // Stable compilers gate the inline assembly of the BPF target.
                cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1").arg(subcommand);
            }
            Core::Built(name) => {
                cargo.args(["run", name, "cargo", subcommand, "-Zbuild-std=core"]);
            }
        }
        cargo
            .current_dir(root)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(flags))
            .args(["--package", "proxy-ebpf", "--bin", "weir-bpf"])
            .args(["--target", target(), "--profile", "bpf"]);
        cargo
    }

    /// Compiler flags.
    fn flags(&self, more: &[&str]) -> String {
        let arch = env::consts::ARCH;
        let mut flags = vec![
            "-Cdebuginfo=2".to_owned(),
            "-Clink-arg=--btf".to_owned(),
            format!("-Clinker={}", self.linker.display()),
            // 32-bit operations and jumps; kernel 5.1 and later.
            "-Ctarget-cpu=v3".to_owned(),
            // Packet headers are rarely aligned, and the kernels of the architectures we support
            // read them at any address. Without this each field is assembled from bytes.
            "-Clink-arg=--cpu-features=+allows-misaligned-mem-access".to_owned(),
            // The linker's default leaves small memory fills to a function call that a program
            // cannot make.
            "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
            "--cfg".to_owned(),
            format!("bpf_target_arch=\"{arch}\""),
        ];
        flags.extend(more.iter().map(ToString::to_string));
        flags.join(UNIT_SEPARATOR)
    }
}

/// Finds `core` for the BPF target.
pub fn compiler() -> Result<Core, Missing> {
    if let Some(rustc) = env::var_os("WEIR_BPF_RUSTC") {
        let rustc = PathBuf::from(rustc);
        if has_core(&rustc) {
            return Ok(Core::Shipped(rustc));
        }
        let fault = format!("has no `core` for {}", target());
        return Err(misnamed("WEIR_BPF_RUSTC", &rustc, &fault));
    }
    if let Some(name) = nightly_with_source() {
        return Ok(Core::Built(name));
    }
    let debian = PathBuf::from(DEBIAN_RUSTC);
    if has_core(&debian) {
        return Ok(Core::Shipped(debian));
    }
    Err(missing(format!(
        "no compiler for {}: neither a rustup nightly with rust-src nor Debian's rustc-web with \
         libstd-rust-web-dev-bpf",
        target()
    )))
}

fn output(command: &mut Command) -> Option<String> {
    for name in FOREIGN {
        command.env_remove(name);
    }
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether `rustc` ships `core` for the BPF target.
fn has_core(rustc: &Path) -> bool {
    let Some(sysroot) = output(Command::new(rustc).args(["--print", "sysroot"])) else {
        return false;
    };
    let lib = Path::new(&sysroot).join("lib/rustlib").join(target()).join("lib");
    let Ok(entries) = std::fs::read_dir(lib) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
}

/// A rustup nightly that has its own source.
fn nightly_with_source() -> Option<String> {
    let list = output(Command::new("rustup").args(["toolchain", "list"]))?;
    list.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with("nightly"))
        .find(|name| {
            let sysroot =
                output(Command::new("rustc").arg(format!("+{name}")).args(["--print", "sysroot"]));
            sysroot.is_some_and(|sysroot| {
                Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").is_dir()
            })
        })
        .map(str::to_owned)
}

/// Finds bpf-linker.
pub fn linker() -> Result<PathBuf, Missing> {
    if let Some(linker) = env::var_os("WEIR_BPF_LINKER") {
        let linker = PathBuf::from(linker);
        if linker.is_file() {
            return Ok(linker);
        }
        return Err(misnamed("WEIR_BPF_LINKER", &linker, "is not a file"));
    }
    let mut places: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home: OsString = env::var_os("HOME")?;
        Some(Path::new(&home).join(".cargo"))
    });
    places.extend(cargo_home.map(|home| home.join("bin")));
    places
        .into_iter()
        .map(|place| place.join("bpf-linker"))
        .find(|path| path.is_file())
        .ok_or_else(|| missing("no bpf-linker on PATH or in cargo's bin directory"))
}
