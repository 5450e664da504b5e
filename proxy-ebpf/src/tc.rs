//! The packet walk on the TC hooks; the picture is in the crate's documentation.

mod decision;
mod known;

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use proxy_common::{
    IPPROTO_UDP,
    config::{
        CONFIG_MASQUERADE_ALL, CONFIG_PODS_BY_DEVICE, CONFIG_PODS_BY_SOURCE, CONFIG_TAKEOVER,
        NodeConfig,
    },
    counter::Counter,
    device::{DEVICE_PODS, DEVICE_STACKED, ROLE_UPLINK},
    flow::{FLOW_REVERSE, FlowKey, SIDE_EGRESS, SIDE_INGRESS},
    service::{
        ADDRESS_CLUSTER_IP, ADDRESS_MASQUERADE, ADDRESS_NODE, ADDRESS_RETIRED, BACKEND_HOST,
        BACKEND_LOCAL, SERVICE_CLUSTER_IP,
    },
};

pub use self::{
    decision::{Decision, pack},
    known::toward,
};
use self::{
    decision::{conclude, refuse, settle},
    known::{known, rewrite_known},
};
use crate::{
    clock,
    conntrack::{self, Table},
    family::{Family, V4, V6},
    fragment, icmp,
    lb::{self, Choice, NoBackend},
    maps::{CONFIG, DEVICES, Scratch},
    nat, owner,
    packet::{Skb, Unwritable},
    parse::{ETH_P_IP_BE, ETH_P_IPV6_BE, Parsed, Part, Unparsed},
    refuse::{self, Refusal},
    route,
};

/// `PACKET_HOST` of the kernel's if_packet.h: addressed to us on the link.
pub const PACKET_HOST: u32 = 0;
/// What must be linear before parsing: the longest IPv4 header and a TCP header.
const LINEAR: u32 = 60 + 20;

/// What the entry points return when the packet is none of ours, or is translated and goes on.
pub const NEXT: i32 = TC_ACT_UNSPEC;

/// Program body for `tc_ingress`; `l3` is the length of the link-layer header.
#[inline(always)]
pub fn ingress(skb: &mut Skb, l3: usize) -> i32 {
    // A tagged frame belongs to the VLAN device above, which has programs of its own.
    if skb.vlan_present() != 0 {
        return NEXT;
    }
    let protocol = skb.protocol();
    if protocol == ETH_P_IP_BE {
        ingress_family::<V4>(skb, l3)
    } else if protocol == ETH_P_IPV6_BE {
        ingress_family::<V6>(skb, l3)
    } else {
        NEXT
    }
}

/// Program body for `tc_egress`.
#[inline(always)]
pub fn egress(skb: &mut Skb, l3: usize) -> i32 {
    if skb.vlan_present() != 0 {
        return NEXT;
    }
    let protocol = skb.protocol();
    if protocol == ETH_P_IP_BE {
        egress_family::<V4>(skb, l3)
    } else if protocol == ETH_P_IPV6_BE {
        egress_family::<V6>(skb, l3)
    } else {
        NEXT
    }
}

/// Makes headers linear if they are not, and parses.
#[inline(always)]
fn parse<F: Family>(
    skb: &mut Skb,
    l3: usize,
    key: &mut FlowKey<F::Addr>,
) -> Result<Parsed, Unparsed> {
    match F::parse(skb, l3, key) {
        Err(Unparsed::Malformed) => {}
        parsed => return parsed,
    }
    let want = l3 as u32 + LINEAR;
    let len = skb.length();
    if skb.pull(if len < want { len } else { want }).is_err() {
        return Err(Unparsed::Malformed);
    }
    F::parse(skb, l3, key)
}

/// The flags of the packet's destination if it is one of ours.
#[inline(always)]
fn lookup_destination<F: Family>(skb: &mut Skb, l3: usize) -> Option<u32> {
    if let Some(dst) = F::destination(skb, l3) {
        return lb::lookup_address::<F>(dst);
    }
    skb.pull(l3 as u32 + F::HEADER as u32).ok()?;
    lb::lookup_address::<F>(F::destination(skb, l3)?)
}

/// A function of its own, so that the families do not share one stack frame.
#[inline(never)]
fn ingress_family<F: Family>(skb: &mut Skb, l3: usize) -> i32 {
    let Some(flags) = lookup_destination::<F>(skb, l3) else {
        return stranger::<F>(skb, l3);
    };
    let (Some(config), Some(scratch)) = (CONFIG.get(0), F::scratch()) else {
        return NEXT;
    };
    // SAFETY: working memory of this CPU, ours until we return; what we call gets it from us or
    // asks for it after we are done with it.
    let s = unsafe { &mut *scratch };
    s.key.side = SIDE_INGRESS;
    let parsed = match parse::<F>(skb, l3, &mut s.key) {
        Ok(parsed) => parsed,
        Err(Unparsed::Malformed) => return conclude(pack(Ok((NEXT, Counter::PassMalformed)))),
        Err(Unparsed::Fragment) => return conclude(pack(Ok((NEXT, Counter::PassFragment)))),
        Err(Unparsed::Protocol { proto, l4 }) => {
            let proto = proto as u8;
            if icmp::is_icmp::<F>(proto) {
                let packed = icmp::error::<F>(skb, l3, l4, SIDE_INGRESS);
                if packed != icmp::NOT_OURS {
                    return conclude(packed);
                }
            }
            if flags & ADDRESS_CLUSTER_IP == 0 || flags & ADDRESS_RETIRED != 0 {
                return conclude(pack(Ok((NEXT, Counter::PassProtocol))));
            }
            let parsed = Parsed { l3, l4, tcp_flags: 0, proto, part: Part::Whole };
            let packed = refuse::foreign_protocol::<F>(skb, &parsed, &s.key, config);
            return conclude(packed);
        }
    };
    let now = clock::ticks(config);
    if parsed.part == Part::Later && !fragment::recall::<F>(skb, s, &parsed) {
        return conclude(pack(unknown_fragment(&parsed, flags, config)));
    }
    if let Some(table) = conntrack::lookup::<F>(s, now) {
        let forward_embryo = table == Table::Embryos && s.row.flags & FLOW_REVERSE == 0;
        if conntrack::valid::<F>(&parsed, &s.row, config, now)
            && (!forward_embryo || !parsed.opens() || conntrack::mend::<F>())
        {
            let packed = known::<F>(skb, s, &parsed, table, now);
            fragment::remember::<F>(skb, s, &parsed);
            return settle::<F>(skb, &parsed, &s.key, packed);
        }
        conntrack::forget::<F>(s, table);
    }
    if parsed.part == Part::Later {
        return conclude(pack(unknown_fragment(&parsed, flags, config)));
    }
    let packed = unknown_out_of_line::<F>(skb, &parsed, flags, config, now);
    if (packed >> 32) as u32 == Counter::NewFlow as u32 {
        fragment::remember::<F>(skb, s, &parsed);
    }
    settle::<F>(skb, &parsed, &s.key, packed)
}

/// Whether a packet of no known flow may be part of a connection that another proxy has
/// translated: what began before Weir did, for as long as the agent says so.
#[inline(always)]
fn taken_over(parsed: &Parsed, config: &NodeConfig) -> bool {
    config.flags & CONFIG_TAKEOVER != 0 && !parsed.opens()
}

/// A later fragment of no known flow, to an address with these flags; see [`fragment`].
#[inline(always)]
fn unknown_fragment(parsed: &Parsed, flags: u32, config: &NodeConfig) -> Decision {
    if taken_over(parsed, config) {
        return Ok((NEXT, Counter::PassFragment));
    }
    if flags & ADDRESS_CLUSTER_IP != 0 && flags & ADDRESS_RETIRED == 0 {
        Err(Counter::DropFragment)
    } else {
        Ok((NEXT, Counter::PassFragment))
    }
}

/// A packet to an address that is none of ours. One that ClusterIPs are taken from and no Service
/// has leads nowhere, and must not leave the node by its default route.
#[inline(always)]
fn stranger<F: Family>(skb: &Skb, l3: usize) -> i32 {
    let unallocated = F::destination(skb, l3).is_some_and(lb::in_service_cidr::<F>);
    if unallocated && for_this_node(skb) {
        return conclude(pack(Err(Counter::DropUnallocated)));
    }
    NEXT
}

/// Whether a packet that an uplink carries is for this node, by its link-layer address. Behind
/// other devices are pods, whose packets a bridge may still have to look at.
#[inline(always)]
fn for_this_node(skb: &Skb) -> bool {
    device(skb).0 != ROLE_UPLINK || skb.pkt_type() == PACKET_HOST
}

/// Role and flags of the device the packet is on.
#[inline(always)]
fn device(skb: &Skb) -> (u32, u32) {
    // SAFETY: the fields are copied before any other map operation.
    match unsafe { DEVICES.get(skb.ifindex()) } {
        Some(device) => (device.role, device.flags),
        None => (ROLE_UPLINK, 0),
    }
}

/// Whether the client is a pod of this node, as far as the node can tell.
#[inline(always)]
fn from_pod<F: Family>(config: &NodeConfig, role: u32, device_flags: u32, src: &F::Addr) -> bool {
    if config.flags & CONFIG_PODS_BY_DEVICE != 0 {
        device_flags & DEVICE_PODS != 0
    } else {
        // A pod of another node has such an address too, but comes in by an uplink.
        config.flags & CONFIG_PODS_BY_SOURCE != 0
            && role != ROLE_UPLINK
            && F::within(src, F::pods(config))
    }
}

/// See [`ingress_family`].
#[inline(never)]
fn egress_family<F: Family>(skb: &mut Skb, l3: usize) -> i32 {
    let (Some(config), Some(scratch)) = (CONFIG.get(0), F::scratch()) else {
        return NEXT;
    };
    // SAFETY: as in `ingress_family`.
    let s = unsafe { &mut *scratch };
    s.key.side = SIDE_EGRESS;
    let parsed = match parse::<F>(skb, l3, &mut s.key) {
        Ok(parsed) => parsed,
        Err(Unparsed::Protocol { proto, l4 }) if icmp::is_icmp::<F>(proto as u8) => {
            return match icmp::error::<F>(skb, l3, l4, SIDE_EGRESS) {
                icmp::NOT_OURS => NEXT,
                packed => conclude(packed),
            };
        }
        Err(_) => return NEXT,
    };
    if parsed.part == Part::Later && !fragment::recall::<F>(skb, s, &parsed) {
        return NEXT;
    }
    let now = clock::ticks(config);
    match conntrack::lookup::<F>(s, now) {
        Some(table) => {
            conntrack::refresh::<F>(s, &parsed, table, now);
            fragment::remember::<F>(skb, s, &parsed);
            // Replies of flows with source NAT are never routed: they are redirected at ingress.
            conclude(rewrite_known::<F>(skb, s, &parsed))
        }
        None => NEXT,
    }
}

/// A packet of no known flow. A function of its own for its stack frame; the result is packed
/// because a subprogram returns one register.
#[inline(never)]
fn unknown_out_of_line<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    flags: u32,
    config: &NodeConfig,
    now: u32,
) -> u64 {
    pack(unknown::<F>(skb, parsed, flags, config, now))
}

#[inline(always)]
fn unknown<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    flags: u32,
    config: &NodeConfig,
    now: u32,
) -> Decision {
    let Some(scratch) = F::scratch() else {
        return Ok((NEXT, Counter::PassNoService));
    };
    // SAFETY: working memory of this CPU, handed over by the caller with the packet's tuple in it.
    let s = unsafe { &mut *scratch };
    s.front.addr = s.key.dst;
    s.front.port = s.key.dport;
    s.front.proto = s.key.proto;
    s.front.reserved = 0;
    if !lb::lookup_service::<F>(&mut s.front, flags, &mut s.service) {
        if flags & ADDRESS_CLUSTER_IP != 0 && taken_over(parsed, config) {
            return Ok((NEXT, Counter::PassNoFlow));
        }
        if flags & ADDRESS_RETIRED != 0 {
            let unallocated = lb::in_service_cidr::<F>(&s.key.dst) && for_this_node(skb);
            return if unallocated {
                Err(Counter::DropUnallocated)
            } else {
                Ok((NEXT, Counter::PassNoService))
            };
        }
        if flags & ADDRESS_CLUSTER_IP != 0 {
            return refuse(Refusal::Unreachable, Counter::RefuseNoPort);
        }
        return Ok((NEXT, Counter::PassNoService));
    }
    let (role, device_flags) = device(skb);
    if role == ROLE_UPLINK && skb.pkt_type() != PACKET_HOST {
        return Ok((NEXT, Counter::PassOtherHost));
    }
    if device_flags & DEVICE_STACKED != 0 && translated::<F>(s) {
        return Ok((NEXT, Counter::PassTranslated));
    }
    let own = flags & (ADDRESS_NODE | ADDRESS_MASQUERADE) != 0;
    if own && owner::owned::<F>(skb, &s.key) {
        return Ok((NEXT, Counter::PassLocalSocket));
    }
    if taken_over(parsed, config) {
        return Ok((NEXT, Counter::PassNoFlow));
    }
    if !parsed.opens() {
        return refuse(Refusal::Unreachable, Counter::RefuseNoFlow);
    }
    if !lb::source_allowed::<F>(&s.service, &s.key.src, &mut s.source) {
        return Err(Counter::DropSourceRange);
    }
    let inside = from_pod::<F>(config, role, device_flags, &s.key.src);
    let choice = match choose::<F>(inside, config) {
        CHOICE_NOWHERE => return refuse(Refusal::Unreachable, Counter::RefuseNoEndpoint),
        CHOICE_ELSEWHERE => return Err(Counter::DropNoLocalEndpoint),
        CHOICE_STALE => return Err(Counter::DropStale),
        id => Choice { id: id as u32, service: s.service.service },
    };
    lb::count_new_flow::<F>(&s.service, false, parsed.proto == IPPROTO_UDP);
    let local = s.backend.flags & BACKEND_LOCAL != 0;
    let hairpin = s.backend.addr == s.key.src;
    // A client behind an uplink and a backend elsewhere: the reply would not come back here.
    let away = role == ROLE_UPLINK && !local;
    let forced = config.flags & CONFIG_MASQUERADE_ALL != 0
        && s.service.flags & SERVICE_CLUSTER_IP != 0
        && s.backend.flags & BACKEND_HOST == 0;
    if !hairpin && !away && !forced {
        if !conntrack::create_dnat::<F>(s, choice, now)? {
            conntrack::create_source_nat::<F>(s, choice, None, config, now, |_| false)?;
        }
        nat::rewrite::<F, _>(skb, parsed, &s.key, &s.forward, false)
            .map_err(|Unwritable| Counter::DropRewrite)?;
        return Ok((NEXT, Counter::NewFlow));
    }
    if let Err(no_way) = toward::<F>(skb, &mut s.fib, parsed, &s.backend.addr) {
        return no_way.decide();
    }
    // SAFETY: the address is copied before any other map operation.
    let egress = unsafe { DEVICES.get(s.fib.ifindex) };
    let masquerade = F::masquerade(egress, config).ok_or(Counter::DropNoAddress)?;
    conntrack::create_source_nat::<F>(s, choice, Some(masquerade), config, now, |key| {
        owner::owned::<F>(skb, key)
    })?;
    nat::rewrite::<F, _>(skb, parsed, &s.key, &s.forward, true)
        .map_err(|Unwritable| Counter::DropRewrite)?;
    Ok((route::redirect(&s.fib, &mut s.hop), Counter::NewFlow))
}

/// [`NoBackend`] as what [`choose`] returns; ids of backends are smaller.
const CHOICE_NOWHERE: u64 = (NoBackend::Nowhere as u64) << 32;
const CHOICE_ELSEWHERE: u64 = (NoBackend::Elsewhere as u64) << 32;
const CHOICE_STALE: u64 = (NoBackend::Stale as u64) << 32;

/// Chooses a backend for the packet in working memory: its id, or one of the constants above. A
/// function of its own for its stack frame.
#[inline(never)]
fn choose<F: Family>(inside: bool, config: &NodeConfig) -> u64 {
    let Some(scratch) = F::scratch() else {
        return CHOICE_STALE;
    };
    // SAFETY: working memory of this CPU; the caller has handed it over.
    let s = unsafe { &mut *scratch };
    s.affinity.client = s.key.src;
    match lb::select::<F>(&mut s.service, &s.front, inside, &mut s.affinity, config, &mut s.backend)
    {
        Ok(choice) => u64::from(choice.id),
        Err(no_backend) => (no_backend as u64) << 32,
    }
}

/// Whether this packet was translated on a device below this one: the reply to it is known here.
#[inline(always)]
fn translated<F: Family>(s: &mut Scratch<F::Addr>) -> bool {
    s.mate.src = s.key.dst;
    s.mate.dst = s.key.src;
    s.mate.sport = s.key.dport;
    s.mate.dport = s.key.sport;
    s.mate.proto = s.key.proto;
    s.mate.side = SIDE_EGRESS;
    s.mate.reserved = 0;
    F::flows().get_ptr(&s.mate).is_some() || F::embryos().get_ptr(&s.mate).is_some()
}
