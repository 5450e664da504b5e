//! The file's shape and its defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::duration::GoDuration;

/// What `apiVersion` must say.
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// What `kind` must say.
const KIND: &str = "KubeProxyConfiguration";

/// `null` means the same as leaving a field out.
fn absent<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A struct of fields that may be left out or null; a default that is not the type's own stands
/// where the value is used.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                #[serde(default, deserialize_with = "absent")]
                pub $field: $kind,
            )*
        }
    };
}

section! {
    /// `clientConnection`.
    ClientConnection {
        kubeconfig: String,
        accept_content_types: String,
        content_type: String,
        qps: Option<f64>,
        burst: Option<i64>,
    }
}

section! {
    /// `logging`.
    Logging {
        format: String,
        flush_frequency: Value,
        verbosity: i64,
        vmodule: Vec<Value>,
        options: Value,
    }
}

section! {
    /// `iptables`.
    Iptables {
        masquerade_bit: Option<i64>,
        masquerade_all: bool,
        localhost_node_ports: Option<bool>,
        sync_period: Option<GoDuration>,
        min_sync_period: Option<GoDuration>,
    }
}

section! {
    /// `nftables`.
    Nftables {
        masquerade_bit: Option<i64>,
        masquerade_all: bool,
        sync_period: Option<GoDuration>,
        min_sync_period: Option<GoDuration>,
    }
}

/// `ipvs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipvs {
    /// Ignored: backends are drawn at random.
    #[serde(default, deserialize_with = "absent")]
    pub scheduler: String,
    /// Ignored: nothing here is IPVS.
    #[serde(default, deserialize_with = "absent", rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    /// Ignored: no address is added to an interface.
    #[serde(default, deserialize_with = "absent", rename = "strictARP")]
    pub strict_arp: bool,
    /// Ignored.
    #[serde(default)]
    pub tcp_timeout: Option<GoDuration>,
    /// Ignored.
    #[serde(default)]
    pub tcp_fin_timeout: Option<GoDuration>,
    /// Ignored.
    #[serde(default)]
    pub udp_timeout: Option<GoDuration>,
    /// As in `iptables`.
    #[serde(default)]
    pub sync_period: Option<GoDuration>,
    /// As in `iptables`.
    #[serde(default)]
    pub min_sync_period: Option<GoDuration>,
}

section! {
    /// `detectLocal`.
    DetectLocal {
        bridge_interface: String,
        interface_name_prefix: String,
    }
}

section! {
    /// `conntrack`.
    ConntrackSection {
        max_per_core: Option<i64>,
        min: Option<i64>,
        tcp_established_timeout: Option<GoDuration>,
        tcp_close_wait_timeout: Option<GoDuration>,
        tcp_be_liberal: bool,
        udp_timeout: Option<GoDuration>,
        udp_stream_timeout: Option<GoDuration>,
    }
}

/// The file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "named and documented by kube-proxy")]
pub struct KubeProxyConfiguration {
    pub api_version: String,
    pub kind: String,
    #[serde(default, deserialize_with = "absent")]
    pub feature_gates: BTreeMap<String, bool>,
    #[serde(default, deserialize_with = "absent")]
    pub client_connection: ClientConnection,
    #[serde(default, deserialize_with = "absent")]
    pub logging: Logging,
    #[serde(default, deserialize_with = "absent")]
    pub hostname_override: String,
    #[serde(default, deserialize_with = "absent")]
    pub bind_address: String,
    #[serde(default, deserialize_with = "absent")]
    pub healthz_bind_address: String,
    #[serde(default, deserialize_with = "absent")]
    pub metrics_bind_address: String,
    #[serde(default, deserialize_with = "absent")]
    pub bind_address_hard_fail: bool,
    #[serde(default, deserialize_with = "absent")]
    pub enable_profiling: bool,
    #[serde(default, deserialize_with = "absent")]
    pub show_hidden_metrics_for_version: String,
    #[serde(default, deserialize_with = "absent")]
    pub mode: String,
    #[serde(default, deserialize_with = "absent")]
    pub iptables: Iptables,
    #[serde(default, deserialize_with = "absent")]
    pub ipvs: Ipvs,
    #[serde(default, deserialize_with = "absent")]
    pub nftables: Nftables,
    #[serde(default)]
    pub winkernel: Value,
    #[serde(default, deserialize_with = "absent")]
    pub windows_run_as_service: bool,
    #[serde(default, deserialize_with = "absent")]
    pub detect_local_mode: String,
    #[serde(default, deserialize_with = "absent")]
    pub detect_local: DetectLocal,
    #[serde(default, deserialize_with = "absent", rename = "clusterCIDR")]
    pub cluster_cidr: String,
    #[serde(default, deserialize_with = "absent")]
    pub node_port_addresses: Vec<String>,
    #[serde(default)]
    pub oom_score_adj: Option<i64>,
    #[serde(default, deserialize_with = "absent")]
    pub conntrack: ConntrackSection,
    #[serde(default)]
    pub config_sync_period: Option<GoDuration>,
    #[serde(default, deserialize_with = "absent")]
    pub port_range: String,
}

/// Reads the text, and says what in it is not part of such a file.
pub fn parse(text: &str) -> Result<(KubeProxyConfiguration, Vec<String>), String> {
    let mut notes = Vec::new();
    let value: Value = match serde_saphyr::from_str(text) {
        Ok(value) => value,
        Err(strict) => {
            let options = serde_saphyr::options! {
                duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
            };
            // Still no YAML without the rule about keys: then the first complaint is the right one.
            let value = serde_saphyr::from_str_with_options(text, options)
                .map_err(|_| strict.to_string())?;
            // The first line says where; what follows is an excerpt and advice for programmers.
            let text = strict.to_string();
            let place = text.lines().next().unwrap_or_default();
            let place = place.split(", set ").next().unwrap_or_default();
            notes.push(format!("{place}; the last value counts"));
            value
        }
    };
    for (field, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = value.get(field).and_then(Value::as_str).unwrap_or_default();
        if found != want {
            return Err(format!("{field}: `{found}`, want `{want}`"));
        }
    }
    let mut unknown = Vec::new();
    let config = serde_ignored::deserialize(value, |path| {
        // A section may be null, which shows in the path as a `?` of its own.
        unknown.push(path.to_string().replace(".?", ""));
    })
    .map_err(|error| error.to_string())?;
    notes.extend(unknown.into_iter().map(|path| format!("{path}: unknown field, ignored")));
    Ok((config, notes))
}
