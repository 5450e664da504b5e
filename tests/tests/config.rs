//! Agents that a file configures.

use std::{fs, path::PathBuf};

use weir_tests::{
    manifest::{FrontEnd, Service},
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
    std::thread::sleep(std::time::Duration::from_millis(500));
    fs::write(&path, format!("# the same\n{kubeadm}")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
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
