//! kube-proxy's own configuration file: `KubeProxyConfiguration` of
//! `kubeproxy.config.k8s.io/v1alpha1`, as kubeadm keeps it in the ConfigMap `kube-proxy`.
//!
//! Every field is taken. What has a meaning here acts; what has none is said when it differs from
//! its default; what cannot be is refused, all of it in one report.

mod apply;
mod duration;
mod file;
mod validate;

use std::path::Path;

pub use self::{
    apply::{Conntrack, Effective, Host},
    file::KubeProxyConfiguration,
};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// Not readable.
    #[error("read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not such a configuration.
    #[error("{path}: {fault}")]
    Shape {
        /// The file.
        path: String,
        /// What is wrong.
        fault: String,
    },
    /// Values that cannot be.
    #[error("{path}: {}", .faults.join("; "))]
    Values {
        /// The file.
        path: String,
        /// Each with the path of its field.
        faults: Vec<String>,
    },
}

/// Reads, checks and translates a file.
pub fn load(path: &Path) -> Result<Effective, ConfigFileError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigFileError::Read { path: name.clone(), source })?;
    from_text(&name, &text)
}

fn from_text(name: &str, text: &str) -> Result<Effective, ConfigFileError> {
    let (config, notes) = file::parse(text)
        .map_err(|fault| ConfigFileError::Shape { path: name.to_owned(), fault })?;
    let faults = validate::faults(&config);
    if !faults.is_empty() {
        return Err(ConfigFileError::Values { path: name.to_owned(), faults });
    }
    let mut effective = apply::effective(&config);
    effective.warnings.splice(0..0, notes);
    Ok(effective)
}

#[cfg(test)]
mod tests;
