//! A Node that comes late or never. Time is paused: waiting costs none.

use clap::Parser as _;
use tokio::time::Instant;

use super::*;
use crate::{
    cli::{Cli, Command},
    model::Prefix,
};

fn config(flags: &[&str]) -> Config {
    let flags = ["weir", "run", "--node-name=a"].iter().chain(flags);
    let Command::Run(run) = Cli::parse_from(flags).command else { unreachable!("run") };
    Config::new(*run).unwrap().0
}

fn node(addresses: &[&str], pod_cidrs: &[&str]) -> Option<Node> {
    Some(Node {
        name: "a".to_owned(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        zone: None,
        pod_cidrs: pod_cidrs.iter().map(|cidr| Prefix::parse(cidr).unwrap()).collect(),
        deleting: false,
        to_be_deleted: false,
    })
}

#[tokio::test(start_paused = true)]
async fn conformance_173_a_node_that_never_has_pod_cidrs_is_fatal_after_a_while() {
    let config = config(&["--detect-local-mode=NodeCIDR"]);
    let (sender, receiver) = watch::channel(node(&["10.0.0.1"], &[]));
    let start = Instant::now();
    let error = watch_node(&config, receiver, true).await.unwrap_err().to_string();
    assert!(error.contains("Node a has no spec.podCIDRs"), "{error}");
    assert_eq!(start.elapsed().as_secs(), 300);
    drop(sender);
}

#[tokio::test(start_paused = true)]
async fn conformance_173_pod_cidrs_that_come_late_are_waited_for() {
    for late in [node(&["10.0.0.1"], &["10.1.0.0/24"]), node(&["10.0.0.1"], &["fd00::/64"])] {
        let fits = late.as_ref().is_some_and(|node| node.pod_cidrs[0].is_ipv4());
        let config = config(&["--detect-local-mode=NodeCIDR"]);
        // Not even the Node is there at first: an API server that is away is nobody's fault.
        let (sender, receiver) = watch::channel(None);
        let task = tokio::spawn(async move { watch_node(&config, receiver, true).await });
        tokio::time::sleep(POD_CIDR_WAIT * 2).await;
        sender.send_replace(node(&["10.0.0.1"], &[]));
        tokio::time::sleep(POD_CIDR_WAIT - Duration::from_secs(1)).await;
        assert!(!task.is_finished());
        sender.send_replace(late);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(task.is_finished(), !fits);
        drop(sender);
        match task.await.unwrap() {
            Ok(Gone) => assert!(fits),
            Err(error) => assert!(!fits && error.to_string().contains("podCIDRs"), "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn conformance_174_a_node_that_changes_or_goes_ends_nothing() {
    let config = config(&["--detect-local-mode=NodeCIDR"]);
    let (sender, receiver) = watch::channel(node(&["10.0.0.1"], &["10.1.0.0/24"]));
    let task = tokio::spawn(async move { watch_node(&config, receiver, true).await });
    for new in [
        node(&["10.0.0.2"], &["10.1.0.0/24"]),
        None,
        node(&["10.0.0.2"], &["10.2.0.0/24"]),
        // Fatal at the start, and said now.
        node(&["fd00::1"], &["10.2.0.0/24"]),
    ] {
        sender.send_replace(new);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!task.is_finished());
    }
    drop(sender);
    assert!(task.await.unwrap().is_ok());
}
