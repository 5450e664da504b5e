//! What a valid configuration means.

use std::net::SocketAddr;

use proxy_common::flow::Timeouts;

use super::{DetectLocalMode, WeirConfiguration};
use crate::{
    config::{HEALTHZ, METRICS},
    families::Named,
    health,
    kubeproxy::{Effective, address, cluster_cidrs},
    settings::{Behaviour, Detector, NodePortAddresses, Settings},
};

impl WeirConfiguration {
    fn detector(&self) -> Detector {
        match self.detect_local_mode.unwrap_or_default() {
            DetectLocalMode::Devices => Detector::Devices,
            DetectLocalMode::ClusterCidr => {
                let prefixes = self.cluster_cidr.as_deref().and_then(cluster_cidrs);
                Detector::ClusterCidr(prefixes.unwrap_or_default())
            }
            DetectLocalMode::NodeCidr => Detector::NodeCidr,
            DetectLocalMode::BridgeInterface => {
                Detector::Bridge(self.bridge_interface.clone().unwrap_or_default())
            }
            DetectLocalMode::InterfaceNamePrefix => {
                Detector::InterfacePrefix(self.interface_name_prefix.clone().unwrap_or_default())
            }
        }
    }

    /// Translates it. Of `neutral`, which is what kube-proxy's neutral flags say, logs stay.
    pub fn effective(&self, neutral: Effective) -> Effective {
        let server = |text: &Option<String>, default: SocketAddr| match text {
            Some(text) => address(text, default.port()),
            None => Some(default),
        };
        let addresses = self.node_port_addresses.clone().unwrap_or_default();
        Effective {
            node_name: self.node_name.clone(),
            kubeconfig: self.kubeconfig.clone(),
            healthz: server(&self.healthz_bind_address, HEALTHZ),
            metrics: server(&self.metrics_bind_address, METRICS),
            hard_fail: false,
            late_after: health::TIMEOUT,
            log_format: neutral.log_format,
            log_level: neutral.log_level,
            settings: Settings {
                node_ports: NodePortAddresses::parse(&addresses).unwrap_or_default(),
                ..Settings::default()
            },
            behaviour: Behaviour {
                detector: self.detector(),
                loopback: [self.localhost_node_ports.unwrap_or(true); 2],
                masquerade_all: self.masquerade_all.unwrap_or(false),
                answer_echo: self.answer_echo.unwrap_or(false),
            },
            timeouts: Timeouts::SECONDS,
            named: Named {
                cluster_cidrs: self
                    .cluster_cidr
                    .as_deref()
                    .and_then(cluster_cidrs)
                    .unwrap_or_default(),
                ..Named::default()
            },
            host: None,
            warnings: Vec::new(),
            notes: neutral.notes.into_iter().filter(|n| n.starts_with("logging.")).collect(),
        }
    }
}
