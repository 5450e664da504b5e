//! The text of a file → what it says.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive};

use clap::ValueEnum;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

use super::{API_VERSION, KIND, WeirConfiguration};
use crate::cli::{MAX_ROWS, MAX_SERVICES};

/// The fields of a file in its order, double ones included.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("fields and their values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Takes fields, and notes those that are not what they must be.
struct Reader {
    values: BTreeMap<String, Value>,
    faults: Vec<String>,
}

impl Reader {
    fn new(pairs: Pairs) -> Self {
        let mut reader = Self { values: BTreeMap::new(), faults: Vec::new() };
        for (name, value) in pairs.0 {
            if reader.values.insert(name.clone(), value).is_some() {
                reader.faults.push(format!("{name}: given twice"));
            }
        }
        reader
    }

    fn take<T>(
        &mut self,
        name: &str,
        want: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.values.remove(name).filter(|value| !value.is_null())?;
        let read = read(&value);
        if read.is_none() {
            self.faults.push(format!("{name}: `{}`, want {want}", shown(&value)));
        }
        read
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.take(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    fn path(&mut self, name: &str) -> Option<std::path::PathBuf> {
        self.text(name).map(Into::into)
    }

    /// As it is written, or a bare zero; what is in it is not looked at here.
    fn duration(&mut self, name: &str) -> Option<String> {
        self.take(name, "a duration like 1h30m, or 0", |value| match value.as_str() {
            Some(text) => Some(text.to_owned()),
            None => (value.as_u64() == Some(0)).then(|| "0".to_owned()),
        })
    }

    fn switch(&mut self, name: &str) -> Option<bool> {
        self.take(name, "true or false", Value::as_bool)
    }

    fn rows(&mut self, name: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let want = format!("a whole number in {}..{}", range.start(), range.end());
        self.take(name, &want, |value| {
            u32::try_from(value.as_u64()?).ok().filter(|rows| range.contains(rows))
        })
    }

    fn choice<T: ValueEnum>(&mut self, name: &str) -> Option<T> {
        let names: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|v| Some(v.to_possible_value()?.get_name().to_owned()))
            .collect();
        self.take(name, &format!("one of {}", names.join(", ")), |value| {
            T::from_str(value.as_str()?, false).ok()
        })
    }

    fn list(&mut self, name: &str) -> Option<Vec<String>> {
        let values = self.take(name, "a list of texts", |value| value.as_array().cloned())?;
        let mut list = Vec::new();
        for (i, value) in values.iter().enumerate() {
            match value.as_str() {
                Some(text) => list.push(text.to_owned()),
                None => {
                    self.faults.push(format!("{name}[{i}]: `{}`, want a text", shown(value)));
                }
            }
        }
        Some(list)
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Reads the text; all that is wrong with its fields is returned beside what can be read.
pub fn read(text: &str) -> Result<(WeirConfiguration, Vec<String>), String> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
    };
    let pairs: Pairs = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
    let mut reader = Reader::new(pairs);
    for (name, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = reader.text(name).unwrap_or_default();
        if found != want {
            reader.faults.push(format!("{name}: `{found}`, want `{want}`"));
        }
    }
    let file = WeirConfiguration {
        manifests: reader.path("manifests"),
        kubeconfig: reader.path("kubeconfig"),
        api_server: reader.text("apiServer"),
        node_name: reader.text("nodeName"),
        bpffs: reader.path("bpffs"),
        cgroup: reader.path("cgroup"),
        devices: reader.list("devices"),
        tc: reader.choice("tc"),
        localhost_node_ports: reader.switch("localhostNodePorts"),
        node_port_addresses: reader.list("nodePortAddresses"),
        masquerade_all: reader.switch("masqueradeAll"),
        answer_echo: reader.switch("answerEcho"),
        detect_local_mode: reader.choice("detectLocalMode"),
        cluster_cidr: reader.text("clusterCIDR"),
        bridge_interface: reader.text("bridgeInterface"),
        interface_name_prefix: reader.text("interfaceNamePrefix"),
        takeover: reader.duration("takeover"),
        healthz_bind_address: reader.text("healthzBindAddress"),
        metrics_bind_address: reader.text("metricsBindAddress"),
        max_services: reader.rows("maxServices", MAX_SERVICES),
        max_slots: reader.rows("maxSlots", MAX_ROWS),
        max_flows: reader.rows("maxFlows", MAX_ROWS),
        log_format: reader.choice("logFormat"),
        log_level: reader.text("logLevel"),
    };
    let unknown = reader.values.into_keys().map(|name| format!("{name}: unknown field"));
    reader.faults.extend(unknown);
    Ok((file, reader.faults))
}
