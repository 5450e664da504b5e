//! From kube-proxy to Weir on a node that serves.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use weir_tests::{
    manifest::{FrontEnd, Service},
    world::{World, weir_binary},
};

/// Rules as kube-proxy makes them, in nftables and by an iptables that writes there, beside
/// kubelet's chain and somebody else's table.
fn rules(to: &str, backend: &str) -> String {
    let (ip, port) = to.split_once(':').unwrap();
    let translate = format!("ip daddr {ip} tcp dport {port} dnat to {backend}");
    format!(
        "table ip kube-proxy {{\n\
           chain nat-prerouting {{ type nat hook prerouting priority -100; {translate}; }}\n\
           chain nat-output {{ type nat hook output priority -100; {translate}; }}\n\
         }}\n\
         table ip6 kube-proxy {{ chain services {{ }}\n }}\n\
         table ip nat {{\n\
           chain KUBE-SVC-A {{ {translate}; }}\n\
           chain KUBE-SERVICES {{ jump KUBE-SVC-A; }}\n\
           chain KUBE-KUBELET-CANARY {{ }}\n\
           chain PREROUTING {{ type nat hook prerouting priority -99; jump KUBE-SERVICES; counter; }}\n\
         }}\n\
         table ip somebody {{ chain KUBERNETES {{ counter; }}\n }}\n"
    )
}

fn nft(world: &World, arguments: &[&str], input: &str) -> String {
    let netns = &world.place("node1").netns;
    let mut child = netns
        .command("nft", None)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn conformance_182_kube_proxy_s_rules_go_under_load_and_no_new_connection_fails() {
    let world = World::new().unwrap();
    let service = Service::new("go", 1).with(&[world.place("p1b").endpoint()]);
    let to = service.address(FrontEnd::ClusterIp, false, "");
    let backend = format!("{}:8080", world.place("p1b").v4);
    nft(&world, &["-f", "-"], &rules(&to, &backend));
    let before = world.place("p1a").ask(&to, &["--count", "5"]).unwrap();
    assert_eq!(before.answered(), 5, "kube-proxy serves: {before:?}");

    let fresh = ["p1a", "p1c", "client"]
        .map(|place| world.place(place).load(&to, 8.0, &["--pause-ms", "5"]).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut agent = world.start("node1", &service.objects()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let said = agent.weir(&["cleanup", "--kube-proxy"]).unwrap();
    assert!(said.contains("2 tables and 2 chains removed from nftables"), "{said}");
    let said = agent.weir(&["cleanup", "--kube-proxy"]).unwrap();
    assert!(said.contains("nothing of kube-proxy's"), "{said}");
    for load in fresh {
        let outcome = load.finish().unwrap();
        assert_eq!(outcome.failed(), 0, "{outcome:?}");
        assert!(outcome.answered() > 50, "{outcome:?}");
    }

    let left = nft(&world, &["list", "ruleset"], "");
    for (part, there) in [
        ("table ip kube-proxy", false),
        ("table ip6 kube-proxy", false),
        ("KUBE-SERVICES", false),
        ("KUBE-SVC-A", false),
        ("KUBE-KUBELET-CANARY", true),
        ("chain PREROUTING", true),
        ("counter", true),
        ("table ip somebody", true),
    ] {
        assert_eq!(left.contains(part), there, "{part}: {left}");
    }
    // As kube-proxy's flag: all of both.
    agent.stop().unwrap();
    nft(&world, &["-f", "-"], "table ip kube-proxy { chain services { }\n }\n");
    agent.weir(&["run", "--cleanup"]).unwrap();
    agent.weir(&["run", "--cleanup"]).unwrap();
    assert!(!agent.bpffs.join("weir").exists());
    assert!(!nft(&world, &["list", "ruleset"], "").contains("kube-proxy"));
}

#[test]
fn without_the_tool_nothing_is_taken_for_done() {
    let output = Command::new(weir_binary())
        .args(["cleanup", "--kube-proxy"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("`nft` is not installed; install nftables"), "{error}");
}
