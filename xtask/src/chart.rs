//! Lints and renders the Helm chart with Helm's own engine, which comes as a Python package.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{root, run};

/// Where the rendered chart is: a directory per value set.
fn rendered() -> PathBuf {
    root().join("target/chart")
}

/// `cargo xtask chart`.
pub fn render() -> Result<()> {
    let venv = root().join("target/helm");
    if !venv.join("bin/pip").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    let requirements = root().join("charts/requirements.txt");
    run(Command::new(venv.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(requirements))?;
    if rendered().exists() {
        // What a value set no longer makes must not be found.
        std::fs::remove_dir_all(rendered())?;
    }
    run(Command::new(venv.join("bin/python"))
        .arg(root().join("charts/render.py"))
        .arg(root().join("charts/weir"))
        .arg(rendered()))
}
