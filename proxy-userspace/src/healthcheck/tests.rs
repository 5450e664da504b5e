//! Listeners by what is wanted, and the answers octet by octet.

use super::*;
use crate::settings::NodePortAddresses;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "ns".into(), name: name.into() }
}

fn health(late: bool) -> Health {
    let mut status = crate::reconcile::Status::default();
    if late {
        let long_ago = std::time::Instant::now().checked_sub(crate::health::TIMEOUT);
        status.oldest_pending = Some(long_ago.expect("the machine has been up for a minute"));
    }
    let status = crate::reconcile::SharedStatus::new(status.into());
    Health::new(status, Default::default(), Default::default(), true).unwrap()
}

fn checks(port: u16, local: [Option<usize>; 2]) -> Checks {
    BTreeMap::from([(key("svc"), HealthCheck { port, local })])
}

#[test]
fn conformance_149_body_is_kube_proxy_s() {
    let expected = "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"svc\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
    assert_eq!(body(&key("svc"), 2, true), expected);
}

#[test]
fn conformance_153_sockets_are_where_node_ports_answer_in_the_families_of_the_service() {
    let local: BTreeSet<IpAddr> =
        ["10.9.0.1", "192.168.0.7", "fd00:9::1"].iter().map(|ip| ip.parse().unwrap()).collect();
    let node = ["10.9.0.1".parse().unwrap()];
    let listen = |values: &[&str], local_counts| -> Vec<String> {
        let node_ports = NodePortAddresses::parse(values).unwrap();
        let settings = Settings { node_ports, ..Settings::default() };
        sockets(&checks(32_000, local_counts), &settings, &local, &node)
            .into_iter()
            .map(|s| s.address.to_string())
            .collect()
    };
    assert_eq!(listen(&[], [Some(0), Some(1)]), ["0.0.0.0:32000", "[::]:32000"]);
    assert_eq!(listen(&[], [None, Some(1)]), ["[::]:32000"]);
    assert_eq!(listen(&["primary"], [Some(0), Some(1)]), ["10.9.0.1:32000"]);
    let named = ["192.168.0.0/16", "fd00:9::/64"];
    assert_eq!(listen(&named, [Some(0), Some(1)]), ["192.168.0.7:32000", "[fd00:9::1]:32000"]);
}

/// Head and body of the answer to `request`; `None` if nobody listens.
async fn ask(address: SocketAddr, request: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Some((head.to_lowercase(), body.to_owned()))
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn socket(port: u16) -> BTreeSet<Socket> {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    [Socket { service: key("svc"), address }].into()
}

#[tokio::test]
async fn conformance_149_154_answers_follow_the_endpoints_and_the_proxy() {
    for (local, late, code) in [(2, false, "200"), (0, false, "503"), (2, true, "503")] {
        let port = free_port();
        let checks = checks(port, [Some(local), Some(7)]);
        let mut listeners = Listeners::new(health(late), watch::channel(checks).1);
        listeners.set(&socket(port)).await;
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        for request in ["GET /", "HEAD /x", "POST /any/path?a=b"] {
            let (head, body) = ask(address, request).await.unwrap();
            assert!(head.starts_with(&format!("http/1.1 {code} ")), "{head}");
            for line in [
                "content-type: application/json".to_owned(),
                "x-content-type-options: nosniff".to_owned(),
                format!("x-load-balancing-endpoint-weight: {local}"),
            ] {
                assert!(head.lines().any(|l| l == line), "{line}: {head}");
            }
            if request != "HEAD /x" {
                assert_eq!(body, super::body(&key("svc"), local, !late));
            }
        }
    }
}

#[tokio::test]
async fn conformance_151_a_port_that_goes_is_refused_and_can_come_back_at_once() {
    let port = free_port();
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let mut listeners = Listeners::new(health(false), watch::channel(Checks::new()).1);
    for _ in 0..5 {
        listeners.set(&socket(port)).await;
        assert!(ask(address, "GET /").await.is_some());
        listeners.set(&BTreeSet::new()).await;
        assert!(ask(address, "GET /").await.is_none());
    }
    assert!(listeners.findings().is_empty());
}

#[tokio::test]
async fn conformance_152_a_service_that_cannot_get_all_its_sockets_gets_none_until_it_can() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (busy, free) = (taken.local_addr().unwrap().port(), free_port());
    let wanted: BTreeSet<Socket> = [socket(free), socket(busy)].into_iter().flatten().collect();
    let mut listeners = Listeners::new(health(false), watch::channel(Checks::new()).1);
    listeners.set(&wanted).await;
    assert!(listeners.open.is_empty());
    let findings = listeners.findings();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].reason, "FailedToStartServiceHealthcheck");
    assert!(findings[0].message.contains(&busy.to_string()), "{}", findings[0]);
    drop(taken);
    listeners.set(&wanted).await;
    assert_eq!((listeners.open.len(), listeners.findings().len()), (2, 0));
}
