//! What cannot be.

use axum::http::Uri;

use super::{DetectLocalMode, WeirConfiguration};
use crate::{
    cli::LogFormat,
    config::{HEALTHZ, METRICS, device_fault, node_name_fault},
    kubeproxy::{self, address, cluster_cidrs},
    settings::NodePortAddresses,
    takeover,
    telemetry::Log,
};

impl WeirConfiguration {
    /// All that is wrong. `name` says what the operator calls a field.
    pub fn faults(&self, name: impl Fn(&'static str) -> String) -> Vec<String> {
        let mut faults = Vec::new();
        let mut add = |field, fault: String| faults.push(format!("{}: {fault}", name(field)));
        if let Some(fault) = self.node_name.as_deref().and_then(node_name_fault) {
            add("nodeName", fault);
        }
        if let Some(dir) = self.manifests.as_ref().filter(|dir| !dir.is_dir()) {
            add("manifests", format!("`{}` is not a directory", dir.display()));
        }
        if let Some(file) = self.kubeconfig.as_ref().filter(|file| !file.is_file()) {
            add("kubeconfig", format!("`{}` is not a file", file.display()));
        }
        if self.kubeconfig.is_some() && self.manifests.is_some() {
            add("manifests", "cannot be where kubeconfig is: objects have one source".to_owned());
        }
        if let Some(text) = &self.api_server
            && text.parse::<Uri>().ok().and_then(|uri| uri.host().map(drop)).is_none()
        {
            add("apiServer", format!("`{text}`, want an address like https://10.0.0.1:6443"));
        }
        for fault in self.devices.iter().flatten().filter_map(|text| device_fault(text)) {
            add("devices", fault);
        }
        for text in self.node_port_addresses.iter().flatten() {
            if let Err(fault) = NodePortAddresses::parse(&[text]) {
                add("nodePortAddresses", fault);
            }
        }
        if let Some(text) = &self.takeover {
            let longest = takeover::MAX.as_secs_f64();
            if kubeproxy::duration(text).is_none_or(|d| !(0.0..=longest).contains(&d.seconds)) {
                add("takeover", format!("`{text}`, want a duration like 1h30m up to 168h, or 0"));
            }
        }
        for (field, text, default) in [
            ("healthzBindAddress", &self.healthz_bind_address, HEALTHZ),
            ("metricsBindAddress", &self.metrics_bind_address, METRICS),
        ] {
            let Some(text) = text.as_deref().filter(|text| !text.is_empty()) else { continue };
            if address(text, default.port()).is_none_or(|address| address.port() == 0) {
                add(field, format!("`{text}`, want address:port with a port in 1..65535"));
            }
        }
        if let Some(Err(error)) =
            self.log_level.as_ref().map(|level| Log::new(LogFormat::Text, level))
        {
            add("logLevel", error.to_string());
        }
        for (field, fault) in self.detector_faults() {
            add(field, fault);
        }
        faults
    }

    /// A mode has its field, and no field is without its mode.
    fn detector_faults(&self) -> Vec<(&'static str, String)> {
        let mode = self.detect_local_mode.unwrap_or_default();
        let mut faults = Vec::new();
        for (field, value, of, of_name) in [
            ("clusterCIDR", &self.cluster_cidr, DetectLocalMode::ClusterCidr, "ClusterCIDR"),
            (
                "bridgeInterface",
                &self.bridge_interface,
                DetectLocalMode::BridgeInterface,
                "BridgeInterface",
            ),
            (
                "interfaceNamePrefix",
                &self.interface_name_prefix,
                DetectLocalMode::InterfaceNamePrefix,
                "InterfaceNamePrefix",
            ),
        ] {
            let set = value.as_ref().is_some_and(|text| !text.is_empty());
            if set != (mode == of) {
                let verb = if set { "counts only with" } else { "is needed by" };
                faults.push((field, format!("{verb} detectLocalMode {of_name}")));
            }
        }
        if let Some(text) = self.cluster_cidr.as_deref().filter(|text| !text.is_empty())
            && cluster_cidrs(text).is_none()
        {
            let want = "want a network, or one of each family separated by a comma";
            faults.push(("clusterCIDR", format!("`{text}`, {want}")));
        }
        faults
    }
}
