//! Builds the kernel programs and tells the agent where the object is, to embed it.

use std::{env, path::PathBuf, process::exit};

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
    let built =
        toolchain::Toolchain::find().and_then(|toolchain| toolchain.build(root, &target_dir));
    match built {
        Ok(object) => println!("cargo::rustc-env=WEIR_BPF_OBJECT={}", object.display()),
        Err(error) => {
            println!("cargo::error=build the kernel programs: {error}");
            exit(1);
        }
    }
}
