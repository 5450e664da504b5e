//! Builds the kernel programs and tells the agent where the object is, to embed it.

use std::{
    env,
    path::{Path, PathBuf},
    process::exit,
};

#[path = "../xtask/src/toolchain.rs"]
mod toolchain;

fn main() {
    println!("cargo::rerun-if-env-changed=WEIR_BPF_OBJECT");
    println!("cargo::rerun-if-env-changed=WEIR_BPF_RUSTC");
    println!("cargo::rerun-if-env-changed=WEIR_BPF_LINKER");
    if let Some(object) = env::var_os("WEIR_BPF_OBJECT") {
        let object = PathBuf::from(object);
        println!("cargo::rerun-if-changed={}", object.display());
        println!("cargo::rustc-env=WEIR_BPF_OBJECT={}", object.display());
        return;
    }
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let root = manifest.parent().expect("a workspace member lies below its root");
    for input in [
        "proxy-ebpf/src",
        "proxy-ebpf/Cargo.toml",
        "proxy-common/src",
        "proxy-common/Cargo.toml",
        "Cargo.toml",
        "Cargo.lock",
        "xtask/src/toolchain.rs",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    let target_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("bpf");
    match build(root, &target_dir) {
        Ok(object) => println!("cargo::rustc-env=WEIR_BPF_OBJECT={}", object.display()),
        Err(error) => {
            println!("cargo::error=build the kernel programs: {error}");
            exit(1);
        }
    }
}

/// Builds the object and says where it is. The directory must not be that of the cargo that runs
/// this script: it holds a lock on it.
fn build(root: &Path, target_dir: &Path) -> Result<PathBuf, String> {
    let toolchain = toolchain::Toolchain::find().map_err(|error| error.to_string())?;
    let mut cargo = toolchain.cargo(root, "build", &[]);
    let output = cargo
        .arg("--target-dir")
        .arg(target_dir)
        .output()
        .map_err(|error| format!("run cargo: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} ended with {}:\n{errors}", toolchain.describe(), output.status));
    }
    Ok(target_dir.join(toolchain::target()).join("bpf").join("weir-bpf"))
}
