//! Takes everything of ours off a node.

use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::output;
use crate::{
    cli::{Bpffs, Cleanup},
    datapath::{clsact, pins::PinPaths, sys},
    remains,
};

/// `weir cleanup`. Can be repeated, also after it was interrupted.
pub fn cleanup(flags: &Cleanup) -> Result<()> {
    if flags.kube_proxy {
        return others();
    }
    own(&flags.bpffs.bpffs)?;
    remains::release()
}

/// `weir run --cleanup`: both. A part that fails does not keep the other from being tried.
pub fn cleanup_all(bpffs: &Bpffs) -> Result<()> {
    match (own(&bpffs.bpffs), others().and_then(|()| remains::release())) {
        (Err(own), Err(others)) => bail!("{own:#}; {others:#}"),
        (own, others) => own.and(others),
    }
}

fn others() -> Result<()> {
    let done = remains::remove()?;
    if done.is_empty() {
        return output::print("nothing of kube-proxy's on this node\n");
    }
    done.iter().try_for_each(|line| output::print(&format!("kube-proxy: {line}\n")))
}

fn own(bpffs: &Path) -> Result<()> {
    // Below another file system, a directory of our name holds somebody's files.
    let kind = sys::file_system(bpffs).with_context(|| format!("use {}", bpffs.display()))?;
    if kind != sys::BPF_FS_MAGIC {
        bail!("{} is not a bpf file system: name the one weir uses with --bpffs", bpffs.display());
    }
    let paths = PinPaths::new(bpffs);
    let Some(lock) = open(&paths.root)? else {
        clsact::remove();
        return output::print(&format!("nothing of weir's under {}\n", bpffs.display()));
    };
    // Held to the end, so that no agent starts on what is being removed.
    if !sys::try_lock(lock.as_fd()).context("see whether an agent runs")? {
        bail!("{} is in use: stop weir first", paths.root.display());
    }
    clsact::remove();
    // Links first: a program without its maps' pins still works, maps without programs do not.
    let mut removed = 0;
    for directory in [paths.links(), paths.programs(), paths.maps()] {
        removed += remove_pins(&directory)?;
    }
    fs::remove_dir(&paths.root).with_context(|| format!("remove {}", paths.root.display()))?;
    output::print(&format!("{removed} pins removed under {}\n", paths.root.display()))
}

/// The directory, if it is there.
fn open(directory: &PathBuf) -> Result<Option<fs::File>> {
    match fs::File::open(directory) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("open {}", directory.display())),
    }
}

fn remove_pins(directory: &Path) -> Result<usize> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.with_context(|| format!("read {}", directory.display()))?,
    };
    let mut removed = 0;
    for entry in entries {
        let path = entry.with_context(|| format!("read {}", directory.display()))?.path();
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        removed += 1;
    }
    fs::remove_dir(directory).with_context(|| format!("remove {}", directory.display()))?;
    Ok(removed)
}
