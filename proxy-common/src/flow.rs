//! Flows: two rows per connection, one for each direction, and the state machine both share.
//!
//! A row is keyed by the tuple *as it appears on the wire* where the packet is translated and
//! holds the tuple it must leave with. So one rewrite serves every case, and each half names its
//! mate: the reversed `(src, dst)` of the row. See [`FlowRow::mate`].

use crate::pod::row;

row! {
    /// Key of `FLOWS4/6` and `EMBRYOS4/6`. 16 bytes for IPv4.
    pub struct FlowKey<A> {
        /// Source on the wire.
        pub src: A,
        /// Destination on the wire.
        pub dst: A,
        /// Source port, host order.
        pub sport: u16,
        /// Destination port, host order.
        pub dport: u16,
        /// IANA protocol number.
        pub proto: u8,
        /// [`SIDE_INGRESS`] or [`SIDE_EGRESS`]: on which hook the row is looked up.
        pub side: u8,
        /// Zero, reserved.
        pub reserved: u16,
    }
}

/// Looked up where packets enter: client to front end, and replies to a masquerade address.
pub const SIDE_INGRESS: u8 = 0;
/// Looked up where packets leave: replies that the kernel routed to the client.
pub const SIDE_EGRESS: u8 = 1;

row! {
    /// Row of `FLOWS4/6` and `EMBRYOS4/6`: the tuple the packet leaves with, and whose it is.
    pub struct FlowRow<A> {
        /// Source after translation.
        pub src: A,
        /// Destination after translation.
        pub dst: A,
        /// Source port after translation.
        pub sport: u16,
        /// Destination port after translation.
        pub dport: u16,
        /// Backend id.
        pub backend: u32,
        /// Generation of the backend when it was chosen.
        pub generation: u32,
        /// Service port id.
        pub service: u32,
        /// Tick of the last packet in this direction (see [`crate::config`]); written only when
        /// it differs, so a busy flow dirties its line about once a second.
        pub last_seen: u32,
        /// One of [`STATE_NEW`] and its siblings; the same in both halves.
        pub state: u8,
        /// Combination of `FLOW_*` flags.
        pub flags: u8,
        /// Zero, reserved.
        pub reserved: u16,
    }
}

row! {
    /// Key of `FRAGMENTS4/6`: a datagram that comes in fragments.
    pub struct FragmentKey<A> {
        /// Source on the wire.
        pub src: A,
        /// Destination on the wire.
        pub dst: A,
        /// Identification; 16 bits for IPv4.
        pub id: u32,
        /// IANA protocol number.
        pub proto: u8,
        /// Where it is seen; see [`FlowKey::side`].
        pub side: u8,
        /// Zero, reserved.
        pub reserved: u16,
    }
}

row! {
    /// Row of `FRAGMENTS4/6`: the ports in the first fragment.
    pub struct FragmentRow {
        /// Source port, host order.
        pub sport: u16,
        /// Destination port, host order.
        pub dport: u16,
    }
}

/// This half carries packets from the backend to the client.
pub const FLOW_REVERSE: u8 = 1 << 0;
/// Both ends are rewritten and the packet is redirected past the node's routing, because one of
/// its new addresses is the node's own.
pub const FLOW_FULL_NAT: u8 = 1 << 1;
/// The client has sent a FIN.
pub const FLOW_FIN_FORWARD: u8 = 1 << 2;
/// The backend has sent a FIN.
pub const FLOW_FIN_REVERSE: u8 = 1 << 3;

impl<A: Copy> FlowRow<A> {
    /// Key of the other half: what this half translates to, seen from the other end.
    ///
    /// A forward row maps (client → front end) to (source → backend); the reply on the wire is
    /// (backend → source). A reverse row maps that to (front end → client); the request on the
    /// wire is (client → front end).
    #[inline(always)]
    pub fn mate(&self, proto: u8) -> FlowKey<A> {
        let side = if self.flags & (FLOW_REVERSE | FLOW_FULL_NAT) == 0 {
            // DNAT only: the reply is routed by the kernel and translated on its way out.
            SIDE_EGRESS
        } else {
            SIDE_INGRESS
        };
        FlowKey {
            src: self.dst,
            dst: self.src,
            sport: self.dport,
            dport: self.sport,
            proto,
            side,
            reserved: 0,
        }
    }
}

/// Unset: a zeroed row.
pub const STATE_UNSET: u8 = 0;
/// Seen from the client only.
pub const STATE_NEW: u8 = 1;
/// Seen from both ends.
pub const STATE_ESTABLISHED: u8 = 2;
/// TCP: one end has sent its FIN.
pub const STATE_CLOSING: u8 = 3;
/// TCP: both ends have sent a FIN, or one a RST. A SYN starts a new flow here.
pub const STATE_CLOSED: u8 = 4;

/// What a packet means to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Any packet that changes nothing: data, ACK, UDP.
    Data,
    /// TCP segment with FIN.
    Fin,
    /// TCP segment with RST.
    Rst,
}

/// The state after `event` from one end; `reverse` when it came from the backend. Returns the new
/// state and flags.
///
/// A RST closes at once for a client that re-uses its port, but only shortens the timeout: later
/// data of a flow whose RST was forged is still translated.
#[inline(always)]
pub fn step(state: u8, flags: u8, event: Event, reverse: bool) -> (u8, u8) {
    match event {
        Event::Data if state == STATE_NEW && reverse => (STATE_ESTABLISHED, flags),
        Event::Data => (state, flags),
        Event::Rst => (STATE_CLOSED, flags),
        Event::Fin => {
            let flags = flags | if reverse { FLOW_FIN_REVERSE } else { FLOW_FIN_FORWARD };
            let both = FLOW_FIN_FORWARD | FLOW_FIN_REVERSE;
            if state == STATE_CLOSED || flags & both == both {
                (STATE_CLOSED, flags)
            } else {
                (STATE_CLOSING, flags)
            }
        }
    }
}

row! {
    /// Idle times after which a flow is forgotten, in ticks (see [`crate::config`]).
    pub struct Timeouts {
        /// TCP, SYN seen only. 60 s, as conntrack's `nf_conntrack_tcp_timeout_syn_recv`.
        pub tcp_new: u32,
        /// TCP established. 24 h, kube-proxy's `conntrack.tcpEstablishedTimeout`.
        pub tcp_established: u32,
        /// TCP half closed. 1 h, kube-proxy's `conntrack.tcpCloseWaitTimeout`.
        pub tcp_closing: u32,
        /// TCP closed. 10 s: late FIN and ACK retransmissions; conntrack keeps CLOSE as long.
        pub tcp_closed: u32,
        /// UDP without a reply. 30 s, conntrack's `nf_conntrack_udp_timeout`.
        pub udp_new: u32,
        /// UDP with replies. 120 s, conntrack's `nf_conntrack_udp_timeout_stream`.
        pub udp_established: u32,
    }
}

impl Timeouts {
    /// The defaults named on each field, in seconds.
    pub const SECONDS: Self = Self {
        tcp_new: 60,
        tcp_established: 86_400,
        tcp_closing: 3_600,
        tcp_closed: 10,
        udp_new: 30,
        udp_established: 120,
    };

    /// Idle time allowed to a flow of this protocol in this state.
    #[inline(always)]
    pub fn allowed(&self, proto: u8, state: u8) -> u32 {
        match (proto, state) {
            (crate::IPPROTO_UDP, STATE_NEW) => self.udp_new,
            (crate::IPPROTO_UDP, _) => self.udp_established,
            (_, STATE_NEW) => self.tcp_new,
            (_, STATE_ESTABLISHED) => self.tcp_established,
            (_, STATE_CLOSING) => self.tcp_closing,
            _ => self.tcp_closed,
        }
    }

    /// Whether a row last seen at `last_seen` has outlived its time at tick `now`. Ticks wrap;
    /// a `last_seen` ahead of `now` (written by another CPU meanwhile) is not expired.
    #[inline(always)]
    pub fn expired(&self, proto: u8, state: u8, last_seen: u32, now: u32) -> bool {
        let idle = now.wrapping_sub(last_seen);
        idle < u32::MAX / 2 && idle > self.allowed(proto, state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_event() {
        let (ff, fr) = (FLOW_FIN_FORWARD, FLOW_FIN_REVERSE);
        #[rustfmt::skip]
        let table = [
            (STATE_NEW,         0,  Event::Data, false, STATE_NEW,         0),
            (STATE_NEW,         0,  Event::Data, true,  STATE_ESTABLISHED, 0),
            (STATE_NEW,         0,  Event::Rst,  true,  STATE_CLOSED,      0),
            (STATE_NEW,         0,  Event::Fin,  false, STATE_CLOSING,     ff),
            (STATE_ESTABLISHED, 0,  Event::Data, false, STATE_ESTABLISHED, 0),
            (STATE_ESTABLISHED, 0,  Event::Data, true,  STATE_ESTABLISHED, 0),
            (STATE_ESTABLISHED, 0,  Event::Fin,  false, STATE_CLOSING,     ff),
            (STATE_ESTABLISHED, 0,  Event::Fin,  true,  STATE_CLOSING,     fr),
            (STATE_ESTABLISHED, 0,  Event::Rst,  false, STATE_CLOSED,      0),
            (STATE_CLOSING,     ff, Event::Data, true,  STATE_CLOSING,     ff),
            (STATE_CLOSING,     ff, Event::Fin,  false, STATE_CLOSING,     ff),
            (STATE_CLOSING,     ff, Event::Fin,  true,  STATE_CLOSED,      ff | fr),
            (STATE_CLOSING,     fr, Event::Fin,  false, STATE_CLOSED,      ff | fr),
            (STATE_CLOSING,     ff, Event::Rst,  true,  STATE_CLOSED,      ff),
            (STATE_CLOSED,      0,  Event::Data, true,  STATE_CLOSED,      0),
            (STATE_CLOSED,      0,  Event::Fin,  true,  STATE_CLOSED,      fr),
            (STATE_CLOSED,      0,  Event::Rst,  true,  STATE_CLOSED,      0),
        ];
        for (state, flags, event, reverse, want_state, want_flags) in table {
            assert_eq!(
                step(state, flags, event, reverse),
                (want_state, want_flags),
                "{state} {flags} {event:?} reverse={reverse}"
            );
        }
    }

    fn row(flags: u8) -> FlowRow<[u8; 4]> {
        FlowRow {
            src: [10, 1, 1, 10],
            dst: [10, 1, 2, 11],
            sport: 40_000,
            dport: 8080,
            backend: 1,
            generation: 1,
            service: 1,
            last_seen: 0,
            state: STATE_NEW,
            flags,
            reserved: 0,
        }
    }

    #[test]
    fn mate_of_a_forward_row_is_the_reply_on_the_wire() {
        let key = row(0).mate(crate::IPPROTO_TCP);
        assert_eq!((key.src, key.dst), ([10, 1, 2, 11], [10, 1, 1, 10]));
        assert_eq!((key.sport, key.dport, key.side), (8080, 40_000, SIDE_EGRESS));
        assert_eq!(row(FLOW_FULL_NAT).mate(crate::IPPROTO_TCP).side, SIDE_INGRESS);
    }

    #[test]
    fn mate_of_a_reverse_row_is_looked_up_at_ingress() {
        assert_eq!(row(FLOW_REVERSE).mate(crate::IPPROTO_TCP).side, SIDE_INGRESS);
        assert_eq!(row(FLOW_REVERSE | FLOW_FULL_NAT).mate(crate::IPPROTO_TCP).side, SIDE_INGRESS);
    }

    #[test]
    fn ticks_wrap_and_may_run_ahead() {
        let t = Timeouts::SECONDS;
        assert!(!t.expired(17, STATE_NEW, 100, 130));
        assert!(t.expired(17, STATE_NEW, 100, 131));
        assert!(!t.expired(17, STATE_NEW, 100, 99));
        assert!(t.expired(17, STATE_NEW, u32::MAX - 5, 30));
    }
}
