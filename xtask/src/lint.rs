//! Format, lints, documentation, dependencies.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{
    cargo, root, run,
    toolchain::{Core, Toolchain, target},
};

/// Runs all checks, and stops at the first that fails.
pub fn check() -> Result<()> {
    println!("lint: format");
    run(cargo().args(["fmt", "--all", "--check"]))?;
    println!("lint: clippy on all members");
    run(cargo().args(["clippy", "--quiet", "--all-targets", "--", "-D", "warnings"]))?;
    println!("lint: clippy on the kernel programs' library and its tests");
    run(cargo()
        .args(["clippy", "--quiet", "--package", "proxy-ebpf", "--lib", "--tests"])
        .args(["--", "-D", "warnings"]))?;
    kernel_programs()?;
    println!("lint: documentation");
    for what in
        [&["--workspace", "--exclude", "proxy-ebpf"][..], &["--package", "proxy-ebpf", "--lib"]]
    {
        // It is for people who work on the code, so it shows private items and may link to them.
        run(cargo()
            .args(["doc", "--quiet", "--no-deps", "--document-private-items"])
            .args(what)
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))?;
    }
    dependencies()
}

/// The kernel programs as the kernel gets them: clippy of the compiler that builds them, or if it
/// has none, that compiler with its warnings denied.
fn kernel_programs() -> Result<()> {
    let toolchain = Toolchain::find()?;
    let mut command = match &toolchain.core {
        Core::Shipped(rustc) => {
            let driver = rustc.with_file_name("clippy-driver");
            let mut command = toolchain.cargo(&root(), "check", &["-Dwarnings"]);
            if driver.exists() {
                println!("lint: clippy on the kernel programs for {}", target());
                // What `cargo clippy` does, for a compiler that is not cargo's own.
                command.env("RUSTC_WORKSPACE_WRAPPER", driver);
            } else {
                println!("lint: kernel programs for {}, warnings denied (no clippy)", target());
            }
            command
        }
        Core::Built(name) => {
            let has_clippy = Command::new("rustup")
                .args(["run", name, "cargo-clippy", "--version"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
            if has_clippy {
                println!("lint: clippy on the kernel programs for {}", target());
                toolchain.cargo(&root(), "clippy", &["-Dwarnings"])
            } else {
                println!("lint: kernel programs for {}, warnings denied (no clippy)", target());
                toolchain.cargo(&root(), "check", &["-Dwarnings"])
            }
        }
    };
    run(command.arg("--quiet").arg("--target-dir").arg(root().join("target/bpf-lint")))
}

/// Licences, bans and sources of dependencies. cargo-deny takes minutes to install, so it is used
/// where it is there already.
fn dependencies() -> Result<()> {
    let installed = cargo()
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !installed {
        println!("lint: dependencies not checked: `cargo install cargo-deny` brings what does");
        return Ok(());
    }
    println!("lint: dependencies");
    run(cargo().args(["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))
}
