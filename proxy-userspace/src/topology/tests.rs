//! Numbers are those of the conformance scenarios.

use super::*;
use crate::model::{ObjectKey, Protocol, SlicePort};

const T: bool = true;
const F: bool = false;

/// (ready, serving, terminating)
type Conditions = (bool, bool, bool);
const READY: Conditions = (T, T, F);
const FALLBACK: Conditions = (F, T, T);
const UNREADY: Conditions = (F, F, F);

/// An endpoint: last octet, node, conditions, zone hints, node hints.
fn endpoint(host: u8, node: &str, c: Conditions, zones: &[&str], nodes: &[&str]) -> Endpoint {
    let list = |l: &[&str]| l.iter().map(ToString::to_string).collect();
    Endpoint {
        addr: [10, 0, 0, host].into(),
        ready: c.0,
        serving: c.1,
        terminating: c.2,
        node: (!node.is_empty()).then(|| node.to_owned()),
        for_zones: list(zones),
        for_nodes: list(nodes),
    }
}

fn slice(name: &str, port: u16, endpoints: Vec<Endpoint>) -> Slice {
    let key = |name: &str| ObjectKey { namespace: "ns".into(), name: name.into() };
    let ports = vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port }];
    Slice { key: key(name), service: key("svc"), ports, endpoints }
}

fn port(name: &str, protocol: Protocol) -> ServicePort {
    ServicePort { name: name.into(), protocol, port: 80, node_port: None }
}

const BOTH: Wanted = Wanted { cluster: true, local: true };

fn at(zone: Option<&str>) -> Place<'_> {
    Place { node: "n1", zone }
}

fn chosen(slices: &[Slice], zone: Option<&str>) -> Targets {
    select(&port("http", Protocol::Tcp), slices.iter(), true, at(zone), BOTH)
}

fn hosts(list: &[Target]) -> Vec<u8> {
    list.iter()
        .map(|t| match t.addr {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        })
        .collect()
}

#[test]
fn conformance_33_to_38_conditions() {
    // (conditions, in the cluster pool alone, beside a ready one)
    for (conditions, alone, beside) in [
        ((T, T, F), true, true),
        ((T, F, F), true, true),
        ((T, F, T), true, true),
        ((T, T, T), true, true),
        ((F, T, T), true, false),
        ((F, T, F), false, false),
        ((F, F, T), false, false),
        ((F, F, F), false, false),
    ] {
        let it = || endpoint(1, "n1", conditions, &[], &[]);
        let targets = chosen(&[slice("a", 80, vec![it()])], None);
        assert_eq!(!targets.cluster.is_empty(), alone, "{conditions:?}");
        assert_eq!(!targets.local.is_empty(), alone, "{conditions:?}");
        assert_eq!(targets.any, alone, "{conditions:?}");
        let other = endpoint(2, "n1", READY, &[], &[]);
        let targets = chosen(&[slice("a", 80, vec![it(), other])], None);
        assert_eq!(hosts(&targets.cluster).contains(&1), beside, "{conditions:?}");
        // 143: who serves keeps its flows.
        let keeps = !beside && conditions.1;
        assert_eq!(hosts(&targets.draining).contains(&1), keeps, "{conditions:?}");
    }
}

#[test]
fn conformance_39_each_pool_falls_back_by_itself() {
    let slices = [slice(
        "a",
        80,
        vec![
            endpoint(1, "n2", READY, &[], &[]),
            endpoint(2, "n1", UNREADY, &[], &[]),
            endpoint(3, "n1", FALLBACK, &[], &[]),
        ],
    )];
    let targets = chosen(&slices, None);
    assert_eq!((hosts(&targets.cluster), hosts(&targets.local)), (vec![1], vec![3]));
}

#[test]
fn conformance_40_41_42_pools_that_are_not_wanted_are_not_computed() {
    let slices = [slice("a", 80, vec![endpoint(1, "n2", FALLBACK, &[], &[])])];
    let targets = chosen(&slices, None);
    assert_eq!((hosts(&targets.cluster), targets.local.len(), targets.any), (vec![1], 0, true));
    let local = Wanted { cluster: false, local: true };
    let targets = select(&port("http", Protocol::Tcp), slices.iter(), true, at(None), local);
    assert!(targets.cluster.is_empty() && targets.local.is_empty() && targets.any);
    let cluster = Wanted { cluster: true, local: false };
    let slices = [slice("a", 80, vec![endpoint(1, "n1", READY, &[], &[])])];
    let targets = select(&port("http", Protocol::Tcp), slices.iter(), true, at(None), cluster);
    assert_eq!((targets.cluster.len(), targets.local.len()), (1, 0));
}

#[test]
fn conformance_22_one_port_name_with_several_numbers_makes_one_pool() {
    let slices = [
        slice("a", 80, vec![endpoint(1, "", READY, &[], &[])]),
        slice("b", 8080, vec![endpoint(2, "", READY, &[], &[])]),
    ];
    let ports: Vec<u16> = chosen(&slices, None).cluster.iter().map(|t| t.port).collect();
    assert_eq!(ports, [80, 8080]);
}

#[test]
fn conformance_23_24_slices_are_joined_without_duplicates() {
    let one = || endpoint(1, "", READY, &[], &[]);
    let a = slice("a", 80, vec![one(), endpoint(2, "", READY, &[], &[])]);
    let b = slice("b", 80, vec![one(), endpoint(3, "", READY, &[], &[])]);
    assert_eq!(hosts(&chosen(&[a.clone(), b.clone()], None).cluster), [1, 2, 3]);
    assert_eq!(hosts(&chosen(&[b], None).cluster), [1, 3], "without the other it stays");
    assert_eq!(hosts(&chosen(&[a], None).cluster), [1, 2]);
}

#[test]
fn conformance_25_a_running_pod_wins_over_the_terminating_one_that_had_its_address() {
    let old = slice("a", 80, vec![endpoint(1, "", (F, F, T), &[], &[])]);
    let new = slice("b", 80, vec![endpoint(1, "", READY, &[], &[])]);
    let older = slice("c", 80, vec![endpoint(1, "", FALLBACK, &[], &[])]);
    for order in [[&old, &new, &older], [&new, &older, &old], [&older, &old, &new]] {
        let slices = order.map(Clone::clone);
        let targets = chosen(&slices, None);
        assert_eq!((hosts(&targets.cluster), targets.draining.len()), (vec![1], 0));
    }
}

#[test]
fn conformance_21_name_and_protocol_must_both_match() {
    let slices = [slice("a", 80, vec![endpoint(1, "", READY, &[], &[])])];
    let none = Targets::default();
    let with = |port: &ServicePort, ipv4| select(port, slices.iter(), ipv4, at(None), BOTH);
    assert_eq!(with(&port("http", Protocol::Udp), true), none);
    assert_eq!(with(&port("", Protocol::Tcp), true), none);
    assert_eq!(with(&port("http", Protocol::Tcp), false), none, "17: families do not mix");
}

#[test]
fn conformance_30_an_endpoint_without_a_node_is_never_local() {
    let targets = chosen(&[slice("a", 80, vec![endpoint(1, "", READY, &[], &[])])], None);
    assert_eq!((targets.cluster.len(), targets.local.len()), (1, 0));
    assert!(!targets.cluster[0].local);
}

/// Zone hints by endpoint, the node's zone, and who is expected.
#[test]
fn conformance_46_to_53_55_hints() {
    type Case<'a> =
        (&'a str, &'a [(&'a [&'a str], &'a [&'a str], Conditions)], Option<&'a str>, &'a [u8]);
    let (a, b, none): (&[&str], &[&str], &[&str]) = (&["zone-a"], &["zone-b"], &[]);
    let (n1, n2): (&[&str], &[&str]) = (&["n1"], &["n2"]);
    let cases: [Case<'_>; 13] = [
        (
            "46 all hinted",
            &[(a, none, READY), (b, none, READY), (a, none, READY)],
            Some("zone-a"),
            &[1, 3],
        ),
        ("47 no zone label", &[(a, none, READY), (b, none, READY)], None, &[1, 2]),
        ("48 nobody for my zone", &[(b, none, READY), (b, none, READY)], Some("zone-a"), &[1, 2]),
        (
            "49 one without a hint",
            &[(a, none, READY), (none, none, READY)],
            Some("zone-a"),
            &[1, 2],
        ),
        (
            "50 unready ones have no say",
            &[(a, none, READY), (none, none, UNREADY), (b, none, READY)],
            Some("zone-a"),
            &[1],
        ),
        ("51 mine are unready", &[(a, none, UNREADY), (b, none, READY)], Some("zone-a"), &[2]),
        (
            "52 several zones",
            &[(&["zone-b", "zone-a"], none, READY), (b, none, READY)],
            Some("zone-a"),
            &[1],
        ),
        ("53 node hints", &[(a, n1, READY), (a, n2, READY)], Some("zone-a"), &[1]),
        ("53 nobody for my node", &[(a, n2, READY), (b, n2, READY)], Some("zone-a"), &[1]),
        (
            "53 one without a node hint",
            &[(a, n1, READY), (a, none, READY), (b, n2, READY)],
            Some("zone-a"),
            &[1, 2],
        ),
        ("53 node hints without a zone", &[(a, n1, READY), (b, n2, READY)], None, &[1]),
        (
            "55 the fallback ignores hints",
            &[(b, n2, FALLBACK), (b, n2, FALLBACK)],
            Some("zone-a"),
            &[1, 2],
        ),
        ("36 nobody", &[(a, none, UNREADY)], Some("zone-a"), &[]),
    ];
    for (name, endpoints, zone, expected) in cases {
        let list = (1..)
            .zip(endpoints)
            .map(|(host, (zones, nodes, conditions))| {
                endpoint(host, "n2", *conditions, zones, nodes)
            })
            .collect();
        assert_eq!(hosts(&chosen(&[slice("s", 80, list)], zone).cluster), expected, "{name}");
    }
}

#[test]
fn conformance_54_hints_do_not_touch_the_local_pool() {
    let slices = [slice(
        "a",
        80,
        vec![
            endpoint(1, "n1", READY, &["zone-b"], &[]),
            endpoint(2, "n2", READY, &["zone-a"], &[]),
        ],
    )];
    let targets = chosen(&slices, Some("zone-a"));
    assert_eq!((hosts(&targets.cluster), hosts(&targets.local)), (vec![2], vec![1]));
    assert!(targets.draining.is_empty());
}

#[test]
fn hints_that_are_not_followed_are_told_with_the_reason() {
    let of =
        |endpoints: Vec<Endpoint>, zone| chosen(&[slice("a", 80, endpoints)], zone).hints_ignored;
    let a = |host| endpoint(host, "", READY, &["zone-a"], &[]);
    assert_eq!(of(vec![a(1)], Some("zone-a")), None);
    assert!(of(vec![a(1)], None).unwrap().contains("no zone label"));
    assert!(of(vec![a(1)], Some("zone-b")).unwrap().contains("this node's zone"));
    let bare = endpoint(2, "", READY, &[], &[]);
    assert!(of(vec![a(1), bare.clone()], Some("zone-a")).unwrap().contains("not every"));
    assert_eq!(of(vec![bare], Some("zone-a")), None, "there are none to ignore");
}

#[test]
fn conformance_150_ready_pods_of_this_node_count_once() {
    let two_ports = {
        let mut s = slice(
            "a",
            80,
            vec![
                endpoint(1, "n1", READY, &[], &[]),
                endpoint(2, "n1", FALLBACK, &[], &[]),
                endpoint(3, "n2", READY, &[], &[]),
                endpoint(4, "n1", UNREADY, &[], &[]),
            ],
        );
        s.ports.push(SlicePort { name: "more".into(), protocol: Protocol::Tcp, port: 81 });
        [s]
    };
    let ports = [port("http", Protocol::Tcp), port("more", Protocol::Tcp)];
    let count = |ipv4| local_ready(&ports, || two_ports.iter(), ipv4, at(None));
    assert_eq!((count(true), count(false)), (1, 0));
}
