//! Standard output of commands that print once and end.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

/// Prints. A reader that has seen enough (`weir flows | head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("write to standard output")
        }
        _ => Ok(()),
    }
}
