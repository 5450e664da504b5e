//! kube-proxy's own configuration file: `KubeProxyConfiguration` of
//! `kubeproxy.config.k8s.io/v1alpha1`, as kubeadm keeps it in the ConfigMap `kube-proxy`.
//!
//! Every field is taken. What has a meaning here acts; what has none is said when it differs from
//! its default; what cannot be is refused, all of it in one report.

mod apply;
mod document;
mod duration;
mod fields;
mod file;
mod flags;
mod given;
mod validate;

use serde_json::Value;

pub use self::{
    apply::{Conntrack, Effective, Host, address, cluster_cidrs},
    duration::parse as duration,
    file::KubeProxyConfiguration,
    given::Given,
};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
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

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means.
    pub effective: Effective,
    /// What it says, with all defaults: to be written down or compared.
    pub document: Value,
}

/// Checks and translates a file's text with those flags that count beside it.
pub fn of_file(name: &str, text: &str, given: Given) -> Result<Loaded, ConfigFileError> {
    let file = file::read(text)
        .map_err(|fault| ConfigFileError::Shape { path: name.to_owned(), fault })?;
    let (given, ignored) = given.split(|flag| flag.beside);
    let mut loaded = translate(file.value, &given).map_err(|faults| {
        let path = name.to_owned();
        ConfigFileError::Values { path, faults }
    })?;
    let ignored = ignored.iter().map(|flag| format!("--{flag} is ignored: --config decides"));
    loaded.effective.warnings.splice(0..0, file.notes.into_iter().chain(ignored));
    Ok(loaded)
}

/// The same of flags alone. What is wrong names the flag.
pub fn of_flags(given: &Given) -> Result<Loaded, Vec<String>> {
    let (mut given, mut warnings) = (given.clone(), Vec::new());
    let mut faults = ports(&mut given, &mut warnings);
    match translate(file::empty(), &given) {
        Ok(mut loaded) if faults.is_empty() => {
            loaded.effective.warnings.splice(0..0, warnings);
            Ok(loaded)
        }
        Ok(_) => Err(faults),
        Err(more) => {
            faults.extend(more);
            Err(faults)
        }
    }
}

/// What holds if nothing is said.
pub fn nothing() -> Loaded {
    of_flags(&Given::default()).expect("the table's defaults are valid, as a test shows")
}

/// The deprecated flags for ports, which complete an address without one.
fn ports(given: &mut Given, warnings: &mut Vec<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (flag, whole) in
        [("healthz-port", "healthz-bind-address"), ("metrics-port", "metrics-bind-address")]
    {
        let Some(text) = given.get(flag) else { continue };
        let Ok(port) = text.parse::<u16>() else {
            faults.push(format!("--{flag} `{text}`: want a port, or 0 for no such server"));
            continue;
        };
        let said = given.get(whole).map(str::to_owned);
        // A bare address takes any default, so two defaults tell it from one with a port.
        let bare = said.as_deref().filter(|text| address(text, 1) != address(text, 2));
        let completed = match bare.and_then(|text| address(text, port)) {
            _ if port == 0 => Some(String::new()),
            completed => completed.map(|address| address.to_string()),
        };
        let effect = if completed.is_some() { "" } else { " and changes nothing here" };
        warnings.push(format!("--{flag} is deprecated{effect}: give --{whole} with a port"));
        if let Some(completed) = completed {
            given.replace(whole, completed);
        }
    }
    faults
}

/// Completes, checks and translates what a file and the flags say.
fn translate(mut document: Value, given: &Given) -> Result<Loaded, Vec<String>> {
    let mut faults = given.overlay(&mut document);
    document::complete(&mut document);
    // Again, for flags that say zero where a file's zero means the default. Faults are known.
    given.overlay(&mut document);
    let config: KubeProxyConfiguration = match serde_json::from_value(document.clone()) {
        Ok(config) => config,
        Err(error) => {
            faults.push(error.to_string());
            return Err(faults);
        }
    };
    for fault in validate::faults(&config) {
        // The path of the field, or the flag that has set it.
        let flag = fault
            .split_once(": ")
            .and_then(|(path, text)| given.setter(path).map(|flag| format!("--{flag}: {text}")));
        let fault = flag.unwrap_or(fault);
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let effective = apply::effective(&config, &document);
    Ok(Loaded { effective, document })
}

#[cfg(test)]
mod tests;
