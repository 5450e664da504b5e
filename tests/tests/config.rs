//! Agents that a file configures.

use std::{fs, net::TcpListener, path::PathBuf, time::Duration};

use proxy_userspace::datapath::pins::Pins;
use serde_json::{Value, json};
use weir_tests::{
    apiserver::ApiServer,
    manifest::{self, FrontEnd, Service},
    world::{Agent, World},
};

/// Starts an agent on node1 with a configuration file beside its manifests.
fn start(world: &World, text: &str) -> (Agent, PathBuf) {
    let path = world.dir.join("config.conf");
    fs::write(&path, text).unwrap();
    let objects = Service::new("go", 1).with(&[world.place("p1a").endpoint()]).objects();
    let agent = world.start_with("node1", &objects, &["--config", path.to_str().unwrap()]).unwrap();
    (agent, path)
}

fn served(world: &World) {
    let to = Service::new("go", 1).address(FrontEnd::ClusterIp, false, "");
    let outcome = world.place("p1b").ask(&to, &["--count", "5"]).unwrap();
    assert_eq!(outcome.answered(), 5, "{outcome:?}");
}

#[test]
fn conformance_165_kubeadm_s_file_starts_an_agent_and_a_new_meaning_ends_it() {
    let world = World::new().unwrap();
    let kubeadm = include_str!("../fixtures/kubeadm-kube-proxy.conf");
    // With manifests, nobody looks for the kubeconfig that it names.
    let (mut agent, path) = start(&world, kubeadm);
    let log = agent.log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains(" WARN ")).collect();
    // A namespace of a test does not have all settings of a host.
    let said = warnings.iter().filter(|line| !line.contains("setting not made")).count();
    assert_eq!(said, 1, "{warnings:#?}");
    assert!(log.contains("nodePortAddresses is not set"), "{log}");
    served(&world);
    // Half a file, and the same in other words.
    fs::write(&path, &kubeadm[..kubeadm.len() / 2]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    fs::write(&path, format!("# the same\n{kubeadm}")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(agent.get(10256, "/healthz").unwrap().0, 200, "{}", agent.log());
    fs::write(&path, kubeadm.replace("oomScoreAdj: null", "oomScoreAdj: -5")).unwrap();
    let log = agent.wait_end().unwrap();
    assert!(log.contains("has changed (oomScoreAdj)"), "{log}");
    served(&world);
    agent.launch().unwrap();
    served(&world);
}

#[test]
fn a_configuration_of_weir_s_own_acts() {
    let world = World::new().unwrap();
    let text = "apiVersion: weir.dev/v1alpha1\nkind: WeirConfiguration\n\
                healthzBindAddress: 127.0.0.1:10256\nmetricsBindAddress: ''\nmaxFlows: 1024\n\
                nodePortAddresses: [192.0.2.0/24]\n";
    let (mut agent, path) = start(&world, text);
    served(&world);
    assert!(agent.get(10249, "/metrics").is_err(), "there is no such server");
    assert!(agent.get_at("10.9.0.1", 10256, "/healthz").is_err());
    let to = Service::new("go", 1).address(FrontEnd::NodePort, false, "10.9.0.1");
    let outcome = world.place("client").ask(&to, &["--count", "1", "--timeout-ms", "300"]).unwrap();
    assert_eq!(outcome.answered(), 0, "{outcome:?}");
    fs::write(&path, format!("{text}answerEcho: true\n")).unwrap();
    let log = agent.wait_end().unwrap();
    assert!(log.contains("has changed (answerEcho)"), "{log}");
}

#[test]
fn flags_of_kube_proxy_s_act_as_its_file_does() {
    let world = World::new().unwrap();
    let objects = Service::new("go", 1).with(&[world.place("p1a").endpoint()]).objects();
    let flags = [
        "--proxy-mode=nftables",
        "--nodeport_addresses=primary",
        "--masquerade-all",
        "--oom-score-adj",
        "123",
        "--healthz-bind-address=127.0.0.1",
        "--metrics-port=0",
        "--ipvs-scheduler=rr",
        "-v",
        "4",
    ];
    let agent = world.start_with("node1", &objects, &flags).unwrap();
    let score = format!("/proc/{}/oom_score_adj", agent.pid().unwrap());
    assert_eq!(fs::read_to_string(score).unwrap().trim(), "123");
    assert!(agent.get(10249, "/metrics").is_err(), "port 0 is no server");
    let log = agent.log();
    assert!(log.contains("ipvs.scheduler: backends are drawn at random; ignored"), "{log}");
    assert!(log.contains("--metrics-port is deprecated"), "{log}");
    let to = Service::new("go", 1).address(FrontEnd::ClusterIp, false, "");
    let outcome = world.place("p1b").ask(&to, &["--count", "5"]).unwrap();
    assert_eq!(outcome.answered(), 5, "{outcome:?}");
    let own = &world.place("p1b").v4;
    assert!(!outcome.sources.contains_key(own), "everything has source NAT: {outcome:?}");
}

#[test]
fn init_only_prepares_the_node_and_a_run_adopts_it() {
    let world = World::new().unwrap();
    let path = world.dir.join("config.conf");
    let kubeadm = include_str!("../fixtures/kubeadm-kube-proxy.conf");
    fs::write(&path, kubeadm).unwrap();
    let flags = ["--config", path.to_str().unwrap(), "--init-only"];
    let objects = Service::new("go", 1).with(&[world.place("p1a").endpoint()]).objects();
    let mut agent = world.prepare_with("node1", &objects, &flags).unwrap();
    agent.launch_unready().unwrap();
    let log = agent.wait_end().unwrap();
    assert!(log.contains("node prepared"), "{log}");
    assert!(agent.bpffs.join("weir/maps/CONFIG").exists());
    let mut agent = world.prepare_with("node1", &objects, &flags[..2]).unwrap();
    agent.launch().unwrap();
    assert!(agent.log().contains("datapath adopted from pins"), "{}", agent.log());
    served(&world);
}

/// The agent's network of IPv4 pods, as the programs have it.
fn pods4(agent: &Agent) -> ([u8; 4], [u8; 4]) {
    let network = Pins::open(&agent.bpffs).unwrap().config().unwrap().pods4;
    (network.addr, network.mask)
}

#[test]
fn conformance_173_174_a_node_that_goes_or_comes_back_otherwise_is_followed() {
    let world = World::new().unwrap();
    let node = world.place("node1");
    let listener = node.netns.enter(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let server = ApiServer::on(listener).unwrap();
    let own = |cidr: &str, v4: &str| -> Value {
        let mut object = manifest::node("node1", &[v4, &node.v6]);
        object["spec"] = json!({"podCIDR": cidr, "podCIDRs": [cidr]});
        object
    };
    server.apply(own("10.1.1.0/24", &node.v4));
    for object in Service::new("go", 1).with(&[world.place("p1a").endpoint()]).objects() {
        server.apply(object);
    }
    let kubeconfig = world.dir.join("kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    let path = world.dir.join("config.conf");
    let text = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "detectLocalMode": "NodeCIDR",
        "nodePortAddresses": ["primary"],
    });
    fs::write(&path, text.to_string()).unwrap();
    let mut agent = world.prepare_with_config("node1", &path.display().to_string()).unwrap();
    agent.launch().unwrap();
    let mask = [255, 255, 255, 0];
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let came = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            done()
        });
        assert!(came, "{what}:\n{}", agent.log());
    };
    until("podCIDRs", &|| pods4(&agent) == ([10, 1, 1, 0], mask));
    let pid = agent.pid();
    server.delete("Node", "", "node1");
    until("it is said", &|| agent.log().contains("the Node is gone"));
    assert_eq!(pods4(&agent), ([10, 1, 1, 0], mask), "its last words hold");
    served(&world);
    // It comes back while nobody watches.
    server.drop_watches(false);
    server.apply(own("10.1.3.0/24", &node.v4));
    until("other podCIDRs", &|| pods4(&agent) == ([10, 1, 3, 0], mask));
    // NodePorts answer at the Node's address, wherever that is.
    let asked = |address: &str| {
        let to = Service::new("go", 1).address(FrontEnd::NodePort, false, address);
        let flags = ["--count", "1", "--timeout-ms", "300"];
        world.place("client").ask(&to, &flags).unwrap().answered() == 1
    };
    assert!(asked("10.9.0.1"));
    node.netns.ip("addr add 10.9.0.77/24 dev eth0").unwrap();
    server.apply(own("10.1.3.0/24", "10.9.0.77"));
    until("the new address", &|| asked("10.9.0.77"));
    assert!(!asked("10.9.0.1"));
    assert_eq!(agent.pid(), pid);
    assert_eq!(agent.get(10256, "/livez").unwrap().0, 200);
}

#[test]
fn conformance_170_a_configuration_for_the_other_family_ends_the_agent() {
    let world = World::new().unwrap();
    let sysctls = [("net/ipv6/conf/all/disable_ipv6", "1")];
    world.place("node1").netns.sysctl(&sysctls).unwrap();
    let path = world.dir.join("config.conf");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                clusterCIDR: fd00:10:1::/48\n";
    fs::write(&path, text).unwrap();
    let flags = ["--config", path.to_str().unwrap()];
    let mut agent = world.prepare_with("node1", &[], &flags).unwrap();
    agent.launch_unready().unwrap();
    let log = agent.wait_end().unwrap();
    assert!(log.contains("clusterCIDR fd00:10:1::/48 has no IPv4 network"), "{log}");
}
