//! Installs what is missing on a Debian machine; elsewhere says what is needed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

use crate::toolchain::{self, Core, Toolchain};

/// Version of the linker that the programs are tested with.
const BPF_LINKER: &str = "0.13.0";
/// LLVM that the linker is built against: not older than the one in the BPF compiler.
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";
/// What to do where Debian's compiler for the BPF target is not to be had.
const WITHOUT_DEBIAN: &str = "with rustup, `rustup toolchain install nightly --component rust-src` \
                              brings a compiler for the kernel programs, and `cargo install \
                              bpf-linker` the linker";

/// What the machine is to be made ready for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Building alone.
    Build,
    /// Building and testing.
    Use,
    /// That, and the lints.
    Develop,
}

/// How to tell that a package is there.
#[derive(Clone, Copy)]
enum Sign {
    /// This file.
    File(&'static str),
    /// A module of Python.
    Python(&'static str),
    /// A program of this name on `PATH` or where system tools lie.
    Tool(&'static str),
}

impl Sign {
    fn seen(self) -> bool {
        match self {
            Self::File(path) => Path::new(path).exists(),
            Self::Python(module) => Command::new("python3")
                .args(["-c", &format!("import {module}")])
                .stderr(std::process::Stdio::null())
                .status()
                .is_ok_and(|status| status.success()),
            Self::Tool(name) => {
                let dirs = std::env::var_os("PATH").unwrap_or_default();
                std::env::split_paths(&dirs)
                    .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
                    .any(|dir| dir.join(name).exists())
            }
        }
    }
}

/// A Debian package, how to tell that it is there, and why it is needed.
struct Package {
    name: &'static str,
    sign: Sign,
    why: &'static str,
}

const fn package(name: &'static str, sign: Sign, why: &'static str) -> Package {
    Package { name, sign, why }
}

/// What tests and demo call.
const TOOLS: &[Package] = &[
    package("bpftool", Sign::Tool("bpftool"), "tests read maps with it"),
    package("iproute2", Sign::Tool("ip"), "network namespaces of tests and demo"),
    package("iputils-ping", Sign::Tool("ping"), "tests send echo requests"),
    package(
        "python3-venv",
        Sign::Python("ensurepip"),
        "Helm's engine for the chart comes as a package",
    ),
    package("nftables", Sign::Tool("nft"), "a gateway of the tests answers by its rules"),
    package("ethtool", Sign::Tool("ethtool"), "tests switch offloads"),
];

/// What building the linker takes.
const LINKER: &[Package] = &[
    package(
        "llvm-22-dev",
        Sign::File("/usr/lib/llvm-22/bin/llvm-config"),
        "bpf-linker is built against it",
    ),
    package(
        "libpolly-22-dev",
        Sign::File("/usr/lib/llvm-22/lib/libPolly.a"),
        "llvm-config asks for it",
    ),
    package("libzstd-dev", Sign::File("/usr/include/zstd.h"), "LLVM is linked with it"),
    package("zlib1g-dev", Sign::File("/usr/include/zlib.h"), "LLVM is linked with it"),
    package("g++", Sign::Tool("g++"), "bpf-linker is built with it"),
];

/// A compiler for the BPF target. Named by its file, since rustup's `rustc` is not it.
const COMPILER: &[Package] = &[
    package("rustc-web", Sign::File("/usr/bin/rustc"), "compiles the kernel programs"),
    package(
        "libstd-rust-web-dev-bpf",
        Sign::File("/usr/lib/rustlib/bpfel-unknown-none"),
        "`core` for the kernel programs",
    ),
];

/// Its lints.
const CLIPPY: &[Package] = &[package(
    "rust-web-clippy",
    Sign::File("/usr/bin/clippy-driver"),
    "lints the kernel programs for their target",
)];

/// What is missing: packages, and whether the linker is.
fn missing(purpose: Purpose) -> (Vec<&'static Package>, bool) {
    let mut wanted: Vec<&Package> = Vec::new();
    if purpose != Purpose::Build {
        wanted.extend(TOOLS);
    }
    let linker = toolchain::linker().is_err();
    if linker {
        wanted.extend(LINKER);
    }
    let compiler = toolchain::compiler();
    if compiler.is_err() {
        wanted.extend(COMPILER);
    }
    // Another compiler than Debian's brings its own lints, or none.
    let debian = match &compiler {
        Ok(Core::Shipped(rustc)) => rustc == Path::new(toolchain::DEBIAN_RUSTC),
        Ok(Core::Built(_)) => false,
        Err(_) => true,
    };
    if debian && purpose == Purpose::Develop {
        wanted.extend(CLIPPY);
    }
    wanted.retain(|package| !package.sign.seen());
    (wanted, linker)
}

/// Installs what is missing, after saying what that is.
pub fn run(purpose: Purpose) -> Result<()> {
    let (packages, linker) = missing(purpose);
    if !packages.is_empty() || linker {
        println!("setup: these are missing and will be installed:");
        for Package { name, why, .. } in &packages {
            println!("  apt-get install {name:24} # {why}");
        }
        if linker {
            println!(
                "  cargo install bpf-linker@{BPF_LINKER:14} # links the kernel programs; builds for some minutes"
            );
        }
        if !packages.is_empty() {
            install_packages(&packages)?;
        }
        if linker {
            install_linker()?;
        }
    }
    let toolchain = Toolchain::find()?;
    println!("setup: kernel programs are built by {}", toolchain.describe());
    Ok(())
}

fn install_packages(packages: &[&Package]) -> Result<()> {
    let names: Vec<_> = packages.iter().map(|package| package.name).collect();
    let list = names.join(" ");
    if !Sign::Tool("apt-get").seen() {
        bail!(
            "this is not a Debian machine: install what these packages bring, and run this again: \
             {list}; {WITHOUT_DEBIAN}"
        );
    }
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        bail!("installing packages needs root: run `apt-get install {list}` and this again");
    }
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    };
    crate::run(apt().args(["-q", "update"]))?;
    // Debian's `rustup` and `rustc` packages conflict with `rustc-web`: never trade them silently.
    let installed = crate::run(
        apt().args(["-q", "install", "-y", "--no-install-recommends", "--no-remove"]).args(&names),
    );
    if let Err(error) = installed {
        bail!("{error:#}; {WITHOUT_DEBIAN}");
    }
    Ok(())
}

fn install_linker() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "bpf-linker", "--locked", "--version", BPF_LINKER]).stdin(Stdio::null());
    if Path::new(LLVM_PREFIX).exists() {
        cargo.env("LLVM_PREFIX", LLVM_PREFIX);
    }
    crate::run(&mut cargo)
}
