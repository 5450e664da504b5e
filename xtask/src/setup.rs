//! Installs what is missing on a Debian machine; elsewhere says what is needed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

use crate::toolchain::{self, Toolchain};

/// Version of the linker that the programs are tested with.
const BPF_LINKER: &str = "0.13.0";
/// LLVM that the linker is built against: not older than the one in the BPF compiler.
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

/// A file that a package brings, the package, and why it is needed.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("/usr/sbin/bpftool", "bpftool", "tests read maps with it"),
    ("/usr/sbin/ip", "iproute2", "network namespaces of tests and demo"),
    ("/usr/bin/ping", "iputils-ping", "tests send echo requests"),
    ("/usr/sbin/ethtool", "ethtool", "tests switch offloads"),
];

/// Packages for building the linker.
const LINKER_PACKAGES: &[(&str, &str, &str)] = &[
    ("/usr/lib/llvm-22/bin/llvm-config", "llvm-22-dev", "bpf-linker is built against it"),
    ("/usr/lib/llvm-22/lib/libPolly.a", "libpolly-22-dev", "bpf-linker is built against it"),
    ("/usr/include/zstd.h", "libzstd-dev", "bpf-linker is built against it"),
    ("/usr/include/zlib.h", "zlib1g-dev", "bpf-linker is built against it"),
    ("/usr/bin/g++", "g++", "bpf-linker is built with it"),
];

/// Packages that bring a compiler for the BPF target.
const COMPILER_PACKAGES: &[(&str, &str, &str)] = &[
    ("/usr/bin/rustc", "rustc-web", "compiles the kernel programs"),
    (
        "/usr/lib/rustlib/bpfel-unknown-none",
        "libstd-rust-web-dev-bpf",
        "`core` for the kernel programs",
    ),
];

/// Whether some directory of `PATH`, or one of the usual ones, has the file's name.
fn present(file: &str) -> bool {
    let path = Path::new(file);
    if path.exists() {
        return true;
    }
    let Some(name) = path.file_name() else { return false };
    if !file.contains("bin/") {
        return false;
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    // Debian's rustc must be its own: rustup's has no `core` for the BPF target.
    file != "/usr/bin/rustc"
        && std::env::split_paths(&dirs)
            .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
            .any(|dir| dir.join(name).exists())
}

fn has_linker() -> bool {
    toolchain::linker().is_ok()
}

/// What is missing: packages with reasons, and whether the linker is.
fn missing() -> (Vec<(&'static str, &'static str)>, bool) {
    let mut wanted: Vec<_> = PACKAGES.to_vec();
    let linker = !has_linker();
    if linker {
        wanted.extend(LINKER_PACKAGES);
    }
    if toolchain::compiler().is_err() {
        wanted.extend(COMPILER_PACKAGES);
    }
    let packages = wanted
        .into_iter()
        .filter(|(file, _, _)| !present(file))
        .map(|(_, package, why)| (package, why))
        .collect();
    (packages, linker)
}

/// Installs what is missing.
pub fn run() -> Result<()> {
    let (packages, linker) = missing();
    if !packages.is_empty() || linker {
        println!("setup: these are missing and will be installed:");
        for (package, why) in &packages {
            println!("  apt-get install {package:24} # {why}");
        }
        if linker {
            println!("  cargo install bpf-linker@{BPF_LINKER:14} # links the kernel programs");
        }
        install(&packages, linker)?;
    }
    let toolchain = Toolchain::find()?;
    println!("setup: kernel programs are built by {}", toolchain.describe());
    Ok(())
}

fn install(packages: &[(&str, &str)], linker: bool) -> Result<()> {
    if !packages.is_empty() {
        let apt = Command::new("apt-get").arg("--version").stdout(Stdio::null()).status().is_ok();
        // SAFETY: reads a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        if !apt || !is_root {
            let names: Vec<_> = packages.iter().map(|(package, _)| *package).collect();
            bail!(
                "{}; install {} (Debian's names) and run this again",
                if apt { "installing packages needs root" } else { "this is not a Debian machine" },
                names.join(" ")
            );
        }
        let apt = || {
            let mut command = Command::new("apt-get");
            command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
            command
        };
        crate::run(apt().args(["-q", "update"]))?;
        crate::run(
            apt()
                .args(["-q", "install", "-y", "--no-install-recommends"])
                .args(packages.iter().map(|(package, _)| package)),
        )?;
    }
    if linker {
        crate::run(
            Command::new("cargo")
                .args(["install", "bpf-linker", "--locked", "--version", BPF_LINKER])
                .env("LLVM_PREFIX", LLVM_PREFIX)
                .stdin(Stdio::null()),
        )?;
    }
    Ok(())
}
