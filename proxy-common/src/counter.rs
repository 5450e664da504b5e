//! What the datapath counts: one per-CPU row of `COUNTERS` per meaning.

macro_rules! counters {
    ($( $(#[$meta:meta])* $variant:ident = $index:literal, $hook:literal, $verdict:literal, $reason:literal; )*) => {
        /// Index into `COUNTERS`. Numbers are part of the ABI and are not re-used once retired.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Counter { $( $(#[$meta])* $variant = $index, )* }

        impl Counter {
            /// All counters in index order.
            pub const ALL: &[Self] = &[ $( Self::$variant, )* ];

            /// Where it is counted: `tc`, `socket`, or `any` for both.
            pub const fn hook(self) -> &'static str {
                match self { $( Self::$variant => $hook, )* }
            }

            /// What became of the packet: `translate`, `reply`, `pass`, `refuse` or `drop`; for what is
            /// counted beside that, which kind of count: `front-end` or `affinity`.
            pub const fn verdict(self) -> &'static str {
                match self { $( Self::$variant => $verdict, )* }
            }

            /// Why, as a metric label.
            pub const fn reason(self) -> &'static str {
                match self { $( Self::$variant => $reason, )* }
            }
        }
    };
}

counters! {
    /// Packet of a known flow, client to backend.
    Forward = 0, "tc", "translate", "known-flow";
    /// First packet of a flow: a backend was chosen.
    NewFlow = 1, "tc", "translate", "new-flow";
    /// Packet of a known flow, backend to client.
    Reply = 2, "tc", "reply", "known-flow";
    /// Ours by address, but a local socket owns the tuple: reply of the host's own connection.
    PassLocalSocket = 3, "tc", "pass", "local-socket";
    /// Our address, but no front end there: ordinary host traffic or a foreign port.
    PassNoService = 4, "tc", "pass", "no-service";
    /// A fragment of none of our flows.
    PassFragment = 5, "tc", "pass", "fragment";
    /// A protocol that is not translated.
    PassProtocol = 6, "tc", "pass", "protocol";
    /// A header that could not be read.
    PassMalformed = 7, "tc", "pass", "malformed";
    /// Already translated on a device below this one.
    PassTranslated = 8, "tc", "pass", "translated";
    /// Addressed to another host on the link.
    PassOtherHost = 9, "tc", "pass", "other-host";
    /// ICMP error about a translated packet: what it quotes is put back.
    IcmpError = 10, "tc", "translate", "icmp-error";
    /// TCP segment to a front end of no known flow, while connections of another proxy go on.
    PassNoFlow = 11, "tc", "pass", "unknown-flow";
    /// Refused: the service has no endpoint.
    RefuseNoEndpoint = 16, "tc", "refuse", "no-endpoint";
    /// Refused: the ClusterIP does not offer this port.
    RefuseNoPort = 17, "tc", "refuse", "no-port";
    /// Refused: TCP segment of no known flow.
    RefuseNoFlow = 18, "tc", "refuse", "no-flow";
    /// Sent back an ICMP error because the packet does not fit the way to the backend.
    RefuseTooBig = 19, "tc", "refuse", "too-big";
    /// Refused: a protocol that the ClusterIP does not offer.
    RefuseProtocol = 20, "tc", "refuse", "protocol";
    /// Answered an echo request to a ClusterIP.
    AnswerEcho = 21, "tc", "reply", "echo";
    /// Dropped: the flow table is full.
    DropTableFull = 32, "tc", "drop", "table-full";
    /// Dropped: no free port for source NAT.
    DropNoPort = 33, "tc", "drop", "no-snat-port";
    /// Dropped: no address for source NAT on the egress device.
    DropNoAddress = 34, "tc", "drop", "no-snat-address";
    /// Dropped: no route to the backend or the client.
    DropNoRoute = 35, "tc", "drop", "no-route";
    /// Dropped: time to live exceeded.
    DropTtl = 36, "tc", "drop", "ttl";
    /// Dropped: the packet could not be rewritten.
    DropRewrite = 37, "tc", "drop", "rewrite";
    /// Dropped: a refusal must not be answered (RST, error, broadcast source).
    DropSilent = 38, "tc", "drop", "silent";
    /// Dropped: the backend changed under our hands twice in a row.
    DropStale = 39, "tc", "drop", "stale-backend";
    /// Dropped: no endpoint on this node, and the policy wants one here.
    DropNoLocalEndpoint = 40, "tc", "drop", "no-local-endpoint";
    /// Dropped: the source is not in the front end's source ranges.
    DropSourceRange = 41, "tc", "drop", "source-range";
    /// Dropped: an address of a ServiceCIDR that no Service has.
    DropUnallocated = 42, "tc", "drop", "unallocated-cluster-ip";
    /// Dropped: refused too often in a short time, so this one is not answered.
    DropRateLimited = 43, "tc", "drop", "refusal-rate";
    /// Dropped: a fragment for a ClusterIP whose first fragment was not seen.
    DropFragment = 44, "tc", "drop", "early-fragment";
    /// A socket of the host was connected to a backend.
    SocketConnect = 48, "socket", "translate", "connect";
    /// A datagram of the host was sent to a backend.
    SocketSend = 49, "socket", "translate", "sendmsg";
    /// The source of a received datagram was put back.
    SocketReceive = 50, "socket", "reply", "recvmsg";
    /// A host socket was refused: the service has no endpoint.
    SocketNoEndpoint = 51, "socket", "refuse", "no-endpoint";
    /// A host socket was refused: the ClusterIP does not offer this port.
    SocketNoPort = 52, "socket", "refuse", "no-port";
    /// A row of `SOCKETS` could not be written.
    SocketTableFull = 53, "socket", "refuse", "table-full";
    /// Denied to a host socket: no endpoint on this node, and the policy wants one here.
    SocketNoLocalEndpoint = 54, "socket", "drop", "no-local-endpoint";
    /// Denied to a host socket: the node is not in the front end's source ranges.
    SocketSourceRange = 55, "socket", "drop", "source-range";
    /// Denied to a host socket: an address of a ServiceCIDR that no Service has.
    SocketUnallocated = 56, "socket", "drop", "unallocated-cluster-ip";
    /// Denied to a host socket: the backend changed under our hands time and again.
    SocketStale = 57, "socket", "drop", "stale-backend";
    /// A record of `AFFINITY` was made.
    AffinityNew = 96, "any", "affinity", "new-record";
    /// A record of `AFFINITY` chose the backend.
    AffinityHit = 97, "any", "affinity", "record-used";
}

/// First row of `COUNTERS` that counts new flows by front end; see [`new_flows`].
pub const NEW_FLOWS: u32 = 64;

/// What a new flow was addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FrontEnd {
    /// ClusterIP.
    ClusterIp = 0,
    /// NodePort.
    NodePort = 1,
    /// LoadBalancer ingress address.
    LoadBalancer = 2,
    /// External IP.
    ExternalIp = 3,
    /// NodePort on a loopback address.
    Loopback = 4,
}

impl FrontEnd {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::ClusterIp, Self::NodePort, Self::LoadBalancer, Self::ExternalIp, Self::Loopback];

    /// As a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::ClusterIp => "clusterip",
            Self::NodePort => "nodeport",
            Self::LoadBalancer => "loadbalancer",
            Self::ExternalIp => "externalip",
            Self::Loopback => "loopback",
        }
    }
}

/// The row of `COUNTERS` for new flows of a kind: four per front end, by family and protocol.
#[inline(always)]
pub const fn new_flows(front: FrontEnd, ipv6: bool, udp: bool) -> u32 {
    NEW_FLOWS + front as u32 * 4 + ipv6 as u32 * 2 + udp as u32
}

/// Rows of `COUNTERS`; room for those to come.
pub const COUNTERS: usize = 128;

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn indices_and_labels_are_unique_and_in_range() {
        let mut labels = HashSet::new();
        for pair in Counter::ALL.windows(2) {
            assert!((pair[0] as u32) < pair[1] as u32);
        }
        for &c in Counter::ALL {
            assert!((c as usize) < COUNTERS);
            let flows = NEW_FLOWS..=new_flows(FrontEnd::Loopback, true, true);
            assert!(!flows.contains(&(c as u32)), "{c:?} shares its row");
            assert!(labels.insert((c.hook(), c.verdict(), c.reason())), "{c:?} shares its labels");
        }
    }
}
