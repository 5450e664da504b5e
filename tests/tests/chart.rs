//! The chart as Helm renders it, for each of its value sets: every object is one that Kubernetes
//! knows, and they fit each other. `cargo xtask chart` renders.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Container, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule},
};
use proxy_userspace::kubeproxy::{self, Given};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const SETS: [&str; 5] = ["default", "dual-stack", "kube-proxy-import", "monitoring", "no-rbac"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Objects of a value set, by kind and name.
fn objects(set: &str) -> BTreeMap<(String, String), Value> {
    let dir = root().join("target/chart").join(set);
    let entries = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}; run `cargo xtask chart`", dir.display()));
    let mut objects = BTreeMap::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for document in text.split("\n---\n").filter(|d| !d.trim().is_empty()) {
            let object: Value = serde_saphyr::from_str(document)
                .unwrap_or_else(|e| panic!("{}: {e}\n{document}", path.display()));
            if object.is_null() {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (text(&object["kind"]), text(&object["metadata"]["name"]));
            assert!(objects.insert(key.clone(), object).is_none(), "{key:?} is there twice");
        }
    }
    objects
}

/// Whether everything in `want` is in `got`; defaults may be added.
fn lost(want: &Value, got: &Value, at: &str, lost_at: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            for (key, want) in want {
                match got.get(key) {
                    Some(got) => lost(want, got, &format!("{at}.{key}"), lost_at),
                    // Empty lists and maps need not be written.
                    None if want.as_array().is_some_and(Vec::is_empty)
                        || want.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    None => lost_at.push(format!("{at}.{key}")),
                }
            }
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            for (i, (want, got)) in want.iter().zip(got).enumerate() {
                lost(want, got, &format!("{at}[{i}]"), lost_at);
            }
        }
        _ if want == got => {}
        _ => lost_at.push(at.to_owned()),
    }
}

/// The object as its type; every field of it must be one of the type.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> T {
    let parsed: T =
        serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{e}: {object:#}"));
    let mut unknown = Vec::new();
    lost(object, &serde_json::to_value(&parsed).unwrap(), "", &mut unknown);
    assert!(unknown.is_empty(), "{} has no {unknown:?}", object["kind"]);
    parsed
}

fn only<T: DeserializeOwned + Serialize>(set: &str, kind: &str) -> T {
    let objects = objects(set);
    let of: Vec<_> = objects.iter().filter(|((k, _), _)| k == kind).collect();
    assert_eq!(of.len(), 1, "{set} has one {kind}");
    typed(of[0].1)
}

fn container(daemon_set: &DaemonSet) -> Container {
    let pod = daemon_set.spec.template.spec.clone().unwrap();
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(pod.containers.len(), 1);
    pod.containers[0].clone()
}

#[test]
fn every_object_of_every_value_set_is_one_of_kubernetes() {
    let mut kinds = BTreeSet::new();
    for set in SETS {
        for ((kind, name), object) in objects(set) {
            match kind.as_str() {
                "DaemonSet" => drop(typed::<DaemonSet>(&object)),
                "ConfigMap" => drop(typed::<ConfigMap>(&object)),
                "Service" => drop(typed::<Service>(&object)),
                "ServiceAccount" => drop(typed::<ServiceAccount>(&object)),
                "ClusterRole" => drop(typed::<ClusterRole>(&object)),
                "ClusterRoleBinding" => drop(typed::<ClusterRoleBinding>(&object)),
                "ServiceMonitor" | "PrometheusRule" => {
                    assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1");
                    assert!(object["spec"].is_object(), "{name}");
                }
                other => panic!("{set}: what is a {other}?"),
            }
            kinds.insert(kind);
        }
    }
    assert_eq!(kinds.len(), 8, "all kinds are rendered by some set: {kinds:?}");
}

#[test]
fn pods_mount_what_there_is_and_are_probed_where_the_agent_answers() {
    for set in SETS {
        let daemon_set: DaemonSet = only(set, "DaemonSet");
        let spec = daemon_set.spec.clone();
        let labels = spec.template.metadata.clone().unwrap().labels.unwrap();
        let selector = spec.selector.match_labels.unwrap();
        assert!(selector.iter().all(|(k, v)| labels.get(k) == Some(v)), "{set}");
        let volumes: BTreeSet<String> =
            spec.template.spec.unwrap().volumes.unwrap().into_iter().map(|v| v.name).collect();
        let container = container(&daemon_set);
        let mounts = container.volume_mounts.clone().unwrap();
        assert_eq!(mounts.iter().map(|m| m.name.clone()).collect::<BTreeSet<_>>(), volumes);
        let ports: BTreeMap<String, i32> = container
            .ports
            .iter()
            .flatten()
            .map(|port| (port.name.clone().unwrap(), port.container_port))
            .collect();
        let expected = [("healthz".to_owned(), 10256), ("metrics".to_owned(), 10249)];
        assert_eq!(ports, BTreeMap::from(expected), "{set}");
        for (probe, path) in [
            (container.liveness_probe, "/livez"),
            (container.readiness_probe, "/readyz"),
            (container.startup_probe, "/livez"),
        ] {
            assert_eq!(probe.unwrap().http_get.unwrap().path.as_deref(), Some(path), "{set}");
        }
        let security = container.security_context.unwrap();
        assert_eq!(security.privileged, Some(false));
        assert_eq!(security.allow_privilege_escalation, Some(false));
        assert_eq!(security.read_only_root_filesystem, Some(true));
        let capabilities = security.capabilities.unwrap();
        assert_eq!(capabilities.drop.unwrap(), ["ALL"]);
        assert_eq!(capabilities.add.unwrap(), ["BPF", "NET_ADMIN", "PERFMON"]);
    }
}

#[test]
fn rights_are_those_of_kube_proxy_and_bound_to_the_account_that_pods_have() {
    let role: ClusterRole = only("default", "ClusterRole");
    let rights: BTreeSet<String> = role
        .rules
        .unwrap()
        .into_iter()
        .flat_map(|PolicyRule { api_groups, resources, verbs, .. }| {
            let (groups, resources) = (api_groups.unwrap(), resources.unwrap());
            groups
                .into_iter()
                .flat_map(|g| resources.iter().map(|r| format!("{g}/{r}")).collect::<Vec<_>>())
                .flat_map(|r| verbs.iter().map(|v| format!("{r} {v}")).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        })
        .collect();
    let expected = "/events create,/events patch,/events update,/nodes get,/nodes list,/nodes watch,\
        /services list,/services watch,discovery.k8s.io/endpointslices list,\
        discovery.k8s.io/endpointslices watch,events.k8s.io/events create,\
        events.k8s.io/events patch,events.k8s.io/events update,\
        networking.k8s.io/servicecidrs list,networking.k8s.io/servicecidrs watch";
    assert_eq!(rights, expected.split(',').map(str::to_owned).collect());
    let binding: ClusterRoleBinding = only("default", "ClusterRoleBinding");
    assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());
    let subject = &binding.subjects.unwrap()[0];
    let daemon_set: DaemonSet = only("default", "DaemonSet");
    let account = daemon_set.spec.template.spec.unwrap().service_account_name;
    assert_eq!(account.as_deref(), Some(subject.name.as_str()));
    let made: ServiceAccount = only("default", "ServiceAccount");
    assert_eq!(made.metadata.name, account);
    let kinds: BTreeSet<String> = objects("no-rbac").into_keys().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["ConfigMap", "DaemonSet"].map(str::to_owned).into());
}

#[test]
fn the_configuration_of_the_values_is_one_that_the_agent_takes() {
    let objects = objects("dual-stack");
    let map: ConfigMap = typed(&objects[&("ConfigMap".to_owned(), "weir-kube-proxy".to_owned())]);
    let text = &map.data.unwrap()["config.conf"];
    let effective = kubeproxy::of_file("config.conf", text, Given::default()).unwrap().effective;
    assert!(effective.warnings.is_empty(), "{:?}", effective.warnings);
    let daemon_set: DaemonSet = only("dual-stack", "DaemonSet");
    let container = container(&daemon_set);
    assert!(container.args.unwrap().contains(&"--config=/etc/weir/config.conf".to_owned()));
    let env: BTreeMap<String, String> =
        container.env.unwrap().into_iter().filter_map(|var| Some((var.name, var.value?))).collect();
    assert_eq!(env["KUBERNETES_SERVICE_HOST"], "api.cluster.test");
    assert_eq!(env["KUBERNETES_SERVICE_PORT"], "6443");
}

#[test]
fn an_existing_configuration_is_mounted_where_its_kubeconfig_is_looked_for() {
    let daemon_set: DaemonSet = only("kube-proxy-import", "DaemonSet");
    assert_eq!(daemon_set.metadata.namespace.as_deref(), Some("kube-system"));
    let container = container(&daemon_set);
    let config = "--config=/var/lib/kube-proxy/config.conf".to_owned();
    assert!(container.args.unwrap().contains(&config));
    let volumes = daemon_set.spec.template.spec.unwrap().volumes.unwrap();
    let map = volumes.into_iter().find_map(|v| v.config_map).unwrap();
    assert_eq!(map.name, "kube-proxy");
}

#[test]
fn variables_of_the_settings_are_those_that_the_agent_reads() {
    let help = std::process::Command::new(weir_tests::world::weir_binary())
        .args(["run", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for set in SETS {
        let objects = objects(set);
        let map: ConfigMap = typed(&objects[&("ConfigMap".to_owned(), "weir".to_owned())]);
        for name in map.data.unwrap().into_keys().filter(|n| n.starts_with("WEIR_")) {
            assert!(
                help.contains(&format!("[env: {name}=")),
                "{name} is no variable of `weir run`"
            );
        }
    }
}

#[test]
fn the_dashboard_and_alerts_ask_for_metrics_that_there_are() {
    let known = fs::read_to_string(root().join("proxy-userspace/src/metrics/tests.rs")).unwrap();
    let objects = objects("monitoring");
    let dashboard: ConfigMap =
        typed(&objects[&("ConfigMap".to_owned(), "weir-dashboard".to_owned())]);
    let dashboard: Value = serde_json::from_str(&dashboard.data.unwrap()["weir.json"]).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
    let rule = &objects[&("PrometheusRule".to_owned(), "weir".to_owned())];
    let text = format!("{dashboard}{}", json!(rule["spec"]));
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics: BTreeSet<&str> =
        words.filter(|w| w.starts_with("weir_") || w.starts_with("kubeproxy_")).collect();
    assert!(metrics.len() > 8, "{metrics:?}");
    for metric in metrics {
        let name = metric.trim_end_matches("_bucket");
        assert!(known.contains(&format!(" {name} ")), "{metric} is not served");
    }
}

#[test]
fn the_readme_of_the_chart_lists_every_value() {
    let values: Value = serde_saphyr::from_str(
        &fs::read_to_string(root().join("charts/weir/values.yaml")).unwrap(),
    )
    .unwrap();
    let readme = fs::read_to_string(root().join("charts/weir/README.md")).unwrap();
    let mut paths = Vec::new();
    leaves(&values, "", &mut paths);
    for path in paths {
        assert!(readme.contains(&format!("| `{path}` |")), "no line for {path}");
    }
}

/// Paths of values that are not maps of named values.
fn leaves(value: &Value, at: &str, paths: &mut Vec<String>) {
    const FREE: [&str; 6] =
        ["nodeSelector", "updateStrategy", "requests", "limits", "labels", "config"];
    match value {
        Value::Object(map) if !map.is_empty() && !FREE.iter().any(|f| at.ends_with(f)) => {
            for (key, value) in map {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                leaves(value, &path, paths);
            }
        }
        _ => paths.push(at.to_owned()),
    }
}
