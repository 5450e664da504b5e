use proxy_common::device::{ROLE_UPLINK, ROLE_WORKLOAD};

use super::*;
use proxy_common::service::Network;
use serde_json::json;

fn status() -> Status {
    let row = DeviceRow {
        role: ROLE_UPLINK,
        flags: DEVICE_STACKED,
        masquerade4: [10, 9, 0, 1],
        masquerade6: [0; 16],
    };
    let link = |name: &str, ifindex| {
        let mut info = sys::LinkInfo::default();
        (info.id, info.prog_id, info.low) = (12, 40, ifindex);
        PinnedLink { path: name.into(), name: name.to_owned(), info }
    };
    let links = [
        link("tc_egress-2", 2),
        link("tc_ingress-2", 2),
        link("tc_ingress-3", 3),
        link("sock4_connect", 0),
    ];
    let workload = DeviceRow { role: ROLE_WORKLOAD, flags: 0, masquerade4: [0; 4], ..row };
    let filters = Filters::from([((5, "tc_ingress"), 40)]);
    Status {
        agent_running: false,
        node: node(&NodeConfig {
            host_netns: 1,
            tick_shift: 10,
            flags: CONFIG_LOCALHOST_NODE_PORTS4,
            abi: 4,
            hz: 1000,
            snat_first: 1024,
            snat_last: 29_999,
            masquerade4: [10, 9, 0, 1],
            masquerade6: [0; 16],
            pods4: Network::NONE,
            pods6: Network::NONE,
            timeouts: proxy_common::flow::Timeouts::SECONDS,
        }),
        devices: vec![
            device(2, "bond0".to_owned(), &row, &links, &filters),
            device(5, "veth5".to_owned(), &workload, &links, &filters),
            device(6, "veth6".to_owned(), &workload, &links, &filters),
        ],
        links: vec![super::link(&links[3])],
        tables: vec![TableUse { table: "FLOWS4".to_owned(), rows: 212_000, capacity: 262_144 }],
        counters: [("new-flow", 7), ("known-flow", 0)]
            .map(|(reason, count)| Count { hook: "tc", verdict: "translate", reason, count })
            .into(),
    }
}

#[test]
fn status_is_readable() {
    let expected = "\
Agent: not running; the datapath goes on with what it has
Layout: version 4
Source NAT: ports 1024 to 29999, from 10.9.0.1 where a device has no address
NodePorts on loopback addresses: 127.0.0.0/8
Socket programs: sock4_connect

DEVICE   INDEX   ROLE       STACKED   HOOKS                  ATTACHED   SOURCE NAT ADDRESSES
bond0    2       uplink     yes       tc_egress,tc_ingress   tcx        10.9.0.1
veth5    5       workload   no        tc_ingress             clsact     <none>
veth6    6       workload   no        <none>                 nothing    <none>

TABLE    ROWS     CAPACITY   USED
FLOWS4   212000   262144     81%

HOOK   VERDICT     REASON     COUNT
tc     translate   new-flow   7
";
    assert_eq!(render(&status()), expected);
}

#[test]
fn status_is_json() {
    let mut status = status();
    status.devices.truncate(1);
    assert_eq!(
        serde_json::to_value(status).unwrap(),
        json!({
            "agentRunning": false,
            "node": {
                "abi": 4,
                "localhostNodePorts": ["127.0.0.0/8"],
                "sourceNatPorts": [1024, 29999],
                "masquerade": ["10.9.0.1"],
            },
            "devices": [{
                "name": "bond0",
                "ifindex": 2,
                "role": "uplink",
                "stacked": true,
                "hooks": ["tc_egress", "tc_ingress"],
                "attached": "tcx",
                "masquerade": ["10.9.0.1"],
            }],
            "links": [{"name": "sock4_connect", "id": 12, "program": 40}],
            "tables": [{"table": "FLOWS4", "rows": 212_000, "capacity": 262_144}],
            "counters": [
                {"hook": "tc", "verdict": "translate", "reason": "new-flow", "count": 7},
                {"hook": "tc", "verdict": "translate", "reason": "known-flow", "count": 0},
            ],
        })
    );
}
