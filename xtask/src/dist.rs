//! One static binary, which is all that the container image and a host without it need.

use std::{env::consts::ARCH, fs, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, root, run};

/// Builds `target/dist/weir`: for release, linked with the C library, and shows that it is.
pub fn build() -> Result<()> {
    // Named, because flags would otherwise hold for build scripts and procedural macros too, and
    // these cannot be static.
    let target = format!("{ARCH}-unknown-linux-gnu");
    run(cargo()
        .args(["build", "--release", "--locked", "--target", &target])
        .args(["--package", "proxy-userspace", "--bin", "weir"])
        .env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let built = root().join("target").join(&target).join("release/weir");
    let weir = root().join("target/dist/weir");
    let directory = root().join("target/dist");
    fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    fs::copy(&built, &weir).with_context(|| format!("copy {}", built.display()))?;
    // The loader has nothing to do for it, so it runs where there is no library.
    let version = Command::new(&weir)
        .arg("--version")
        .output()
        .with_context(|| format!("run {}", weir.display()))?;
    if !version.status.success() {
        bail!("{} does not run: {}", weir.display(), version.status);
    }
    let size = fs::metadata(&weir)?.len();
    print!("{}: {size} bytes, {}", weir.display(), String::from_utf8_lossy(&version.stdout));
    Ok(())
}
