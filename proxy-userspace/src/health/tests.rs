//! Every state of the proxy and the node against all three answers.

use super::*;
use crate::model::Node;

/// A moment with a wall clock that tests can write down, long after the machine has started.
fn now() -> Now {
    Now {
        monotonic: Instant::now() + Duration::from_secs(3_600),
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        timeout: TIMEOUT,
    }
}

const NOW: &str = "2027-01-15T08:00:00Z";

fn ago(now: Now, seconds: u64) -> Option<Instant> {
    now.monotonic.checked_sub(Duration::from_secs(seconds))
}

fn node(deleting: bool, to_be_deleted: bool) -> Option<Node> {
    Some(Node { deleting, to_be_deleted, ..Node::default() })
}

#[test]
fn conformance_154_156_157_livez_follows_the_proxy_and_healthz_the_node_too() {
    let now = now();
    let staying = node(false, false);
    for (what, pending, node, manifests, live, healthy) in [
        ("an idle proxy is healthy for ever", None, staying.clone(), false, true, true),
        ("a change that waits is no fault", Some(59), staying.clone(), false, true, true),
        ("exactly at the timeout it is late", Some(60), staying.clone(), false, false, false),
        ("a node that is being deleted leaves", None, node(true, false), false, true, false),
        ("a node with the autoscaler's taint leaves", None, node(false, true), false, true, false),
        ("a leaving node's proxy can be late too", Some(61), node(true, true), false, false, false),
        ("a cluster's node must be known", None, None, false, true, false),
        ("a directory need not have a Node", None, None, true, true, true),
        ("a directory's Node counts if it is there", None, node(false, true), true, true, false),
    ] {
        let status = Status {
            oldest_pending: pending.and_then(|seconds| ago(now, seconds)),
            node,
            ..Status::default()
        };
        assert_eq!(livez(&status, &[], now).0, live, "/livez: {what}");
        assert_eq!(healthz(&status, &[], manifests, now).0, healthy, "/healthz: {what}");
    }
}

#[test]
fn conformance_158_bodies_are_those_of_kube_proxy() {
    let now = now();
    let family = |healthy| json!({"lastUpdated": "2027-01-15T07:58:20Z", "healthy": healthy});
    let mut status =
        Status { last_success: ago(now, 100), node: node(false, false), ..Status::default() };
    // Well: the time of the answer, for those who look at nothing else.
    assert_eq!(
        healthz(&status, &[], false, now),
        (
            true,
            json!({
                "lastUpdated": NOW, "currentTime": NOW, "nodeEligible": true, "healthy": true,
                "status": {"IPv4": family(true), "IPv6": family(true)},
                "dataplane": {"healthy": true, "losses": []},
            })
        )
    );
    // A leaving node: the proxy itself is healthy, and /livez says nothing of the node.
    status.node = node(true, false);
    let leaving = healthz(&status, &[], false, now).1;
    assert_eq!(leaving["nodeEligible"], false);
    assert_eq!(leaving["healthy"], true);
    assert_eq!(leaving["lastUpdated"], "2027-01-15T07:58:20Z");
    assert!(livez(&status, &[], now).1.get("nodeEligible").is_none());
    // Late: the last time that all was well.
    status.oldest_pending = ago(now, 61);
    assert_eq!(
        livez(&status, &[], now),
        (
            false,
            json!({
                "lastUpdated": "2027-01-15T07:58:20Z", "currentTime": NOW, "healthy": false,
                "status": {"IPv4": family(false), "IPv6": family(false)},
                "dataplane": {"healthy": true, "losses": []},
            })
        )
    );
}

#[test]
fn before_the_first_sync_there_is_no_family_and_no_time() {
    let body = healthz(&Status::default(), &[], false, now()).1;
    assert_eq!(body["status"], json!({}));
    assert_eq!(body["lastUpdated"], "0001-01-01T00:00:00Z");
    assert_eq!(body["healthy"], true);
}

#[test]
fn conformance_181_a_loss_in_the_kernel_is_no_health_and_is_named() {
    let (now, losses) = (now(), ["link tc_ingress-4 is detached".to_owned()]);
    let status = Status { node: node(false, false), ..Status::default() };
    for (ok, body) in [livez(&status, &losses, now), healthz(&status, &losses, false, now)] {
        assert!(!ok);
        assert_eq!(body["healthy"], false);
        assert_eq!(body["dataplane"], json!({"healthy": false, "losses": losses}));
    }
}

#[test]
fn readyz_names_every_reason() {
    let synced = Status { synced: true, ..Status::default() };
    let failed = Status { last_error: Some("SERVICES4 is full".to_owned()), ..synced.clone() };
    let kinds = |kinds: &[&str]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>();
    let nothing = Surroundings::default();
    let stale = Surroundings { stale: kinds(&["Services"]), ..nothing.clone() };
    let unlisted = Surroundings { unlisted: kinds(&["Nodes"]), ..nothing.clone() };
    let unserved = Surroundings { unserved_devices: 2, ..nothing.clone() };
    for (what, status, around, reasons) in [
        ("all is well", &synced, &nothing, &[][..]),
        (
            "the first sync waits for a kind",
            &Status::default(),
            &unlisted,
            &["the first sync is not done", "Nodes are not listed yet"][..],
        ),
        ("maps refuse", &failed, &nothing, &["the last write failed: SERVICES4 is full"]),
        ("a stream is silent", &synced, &stale, &["Services are stale"]),
        ("devices are left out", &synced, &unserved, &["2 devices are not served"]),
    ] {
        let (ok, body) = readyz(status, around);
        assert_eq!(body["reasons"], json!(reasons), "{what}");
        assert_eq!(ok, reasons.is_empty(), "{what}");
        assert_eq!(body["ready"], ok, "{what}");
    }
}

#[test]
fn a_broken_manifest_is_told_and_does_not_take_the_rest_down() {
    let synced = Status { synced: true, ..Status::default() };
    let broken = ("a.yaml".to_owned(), "line 3: no such field".to_owned());
    let around = Surroundings { broken_manifests: vec![broken], ..Surroundings::default() };
    let (ok, body) = readyz(&synced, &around);
    assert!(ok);
    assert_eq!(body["brokenManifests"], json!({"a.yaml": "line 3: no such field"}));
}
