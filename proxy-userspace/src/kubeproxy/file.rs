//! The file's shape and its defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{document, duration::GoDuration};

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

/// A struct of fields that may be left out or null. kube-proxy names and documents them; defaults
/// are in [`super::fields`].
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                #[allow(missing_docs, reason = "named and documented by kube-proxy")]
                #[serde(default, deserialize_with = "absent")]
                $(#[$of_field])*
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

section! {
    /// `ipvs`.
    Ipvs {
        scheduler: String,
        #[serde(rename = "excludeCIDRs")]
        exclude_cidrs: Vec<String>,
        #[serde(rename = "strictARP")]
        strict_arp: bool,
        tcp_timeout: Option<GoDuration>,
        tcp_fin_timeout: Option<GoDuration>,
        udp_timeout: Option<GoDuration>,
        sync_period: Option<GoDuration>,
        min_sync_period: Option<GoDuration>,
    }
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

section! {
    /// The file.
    KubeProxyConfiguration {
        api_version: String,
        kind: String,
        feature_gates: BTreeMap<String, bool>,
        client_connection: ClientConnection,
        logging: Logging,
        hostname_override: String,
        bind_address: String,
        healthz_bind_address: String,
        metrics_bind_address: String,
        bind_address_hard_fail: bool,
        enable_profiling: bool,
        show_hidden_metrics_for_version: String,
        mode: String,
        iptables: Iptables,
        ipvs: Ipvs,
        nftables: Nftables,
        winkernel: Value,
        windows_run_as_service: bool,
        detect_local_mode: String,
        detect_local: DetectLocal,
        #[serde(rename = "clusterCIDR")]
        cluster_cidr: String,
        node_port_addresses: Vec<String>,
        oom_score_adj: Option<i64>,
        conntrack: ConntrackSection,
        config_sync_period: Option<GoDuration>,
        port_range: String,
    }
}

/// A file as it was read.
#[derive(Debug)]
pub struct Read {
    /// Its fields.
    pub value: Value,
    /// What in it is no part of such a file.
    pub notes: Vec<String>,
}

/// Reads the text, and says what in it is not part of such a file.
pub fn read(text: &str) -> Result<Read, String> {
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
    let unknown = document::unknown(&value);
    notes.extend(unknown.into_iter().map(|path| format!("{path}: unknown field, ignored")));
    Ok(Read { value, notes })
}

/// A file that says nothing.
pub fn empty() -> Value {
    serde_json::json!({"apiVersion": API_VERSION, "kind": KIND})
}
