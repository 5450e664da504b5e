//! Format, lints and documentation.
//!
//! clippy for the BPF target would have to come from the compiler that has `core` for it, and
//! Debian ships none. So the kernel programs are linted for the host, which compiles the same
//! code, and compiled for the BPF target with warnings denied.

use anyhow::Result;

use crate::{cargo, root, run, toolchain::Toolchain};

/// Runs all checks.
pub fn check() -> Result<()> {
    println!("lint: format");
    run(cargo().args(["fmt", "--all", "--check"]))?;
    println!("lint: clippy on all members");
    run(cargo().args(["clippy", "--quiet", "--all-targets", "--", "-D", "warnings"]))?;
    println!("lint: clippy on the kernel programs");
    run(cargo()
        .args(["clippy", "--quiet", "--package", "proxy-ebpf", "--lib", "--tests"])
        .args(["--", "-D", "warnings"]))?;
    println!("lint: kernel programs for {}, warnings denied", crate::toolchain::target());
    let toolchain = Toolchain::find()?;
    let mut check = toolchain.cargo(&root(), "check", &["-Dwarnings"]);
    run(check.arg("--quiet").arg("--target-dir").arg(root().join("target/bpf-lint")))?;
    println!("lint: documentation");
    run(cargo()
        .args(["doc", "--quiet", "--no-deps", "--workspace", "--exclude", "proxy-ebpf"])
        .env("RUSTDOCFLAGS", "-D warnings"))?;
    run(cargo()
        .args(["doc", "--quiet", "--no-deps", "--package", "proxy-ebpf", "--lib"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}
