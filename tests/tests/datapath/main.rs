//! Single packets through the real programs (BPF_PROG_TEST_RUN): verdict, packet out, counters,
//! flow rows.

mod bench;
mod errors;
mod figures;
mod flows;
mod fragments;
mod nat;
mod policies;
mod raw;
mod refusals;
mod strangers;
mod wholeness;

use bench::{Bench, NEXT, Ran};
use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    flow::{FlowKey, FlowRow},
};
use weir_tests::packet::{Packet, Proto, Read, difference, read};

/// A row of a flow table with its key.
type Half = (FlowKey<[u8; 4]>, FlowRow<[u8; 4]>);

/// A family's addresses in these tests.
struct Family {
    client: &'static str,
    vip: &'static str,
    backend: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { client: "10.1.1.10:40000", vip: "10.96.0.1:80", backend: "10.1.2.11:8080" },
    Family {
        client: "[fd00:10:1:1::10]:40000",
        vip: "[fd00:10:96::1]:80",
        backend: "[fd00:10:1:2::11]:8080",
    },
];

const PROTOS: [(Proto, u8); 2] = [(Proto::Tcp, IPPROTO_TCP), (Proto::Udp, IPPROTO_UDP)];

/// Reads what came out; it must be whole.
fn parsed(ran: &Ran) -> Read {
    read(&ran.frame).unwrap_or_else(|e| panic!("{e} in {ran:?}"))
}

/// What a packet that is none of ours must look like after the program.
fn assert_untouched(bench: &Bench, program: &str, frame: &[u8]) {
    let ran = bench.run(program, frame);
    assert_eq!(ran.code, NEXT);
    assert_eq!(ran.frame, frame, "{program} changed a packet");
}

/// The packet came out exactly like this one, octet by octet.
fn assert_is(ran: &Ran, code: i32, expected: &Packet) {
    if let Some(text) = difference(&expected.build(), &ran.frame) {
        panic!("expected {expected:?}, which differs from what came out:\n{text}");
    }
    assert_eq!(ran.code, code, "{expected:?}");
}
