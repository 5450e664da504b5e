//! Service → front ends. Pure. Which Service keeps an address that several claim is decided in
//! [`Claims`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use proxy_common::service::{
    SERVICE_CLUSTER_IP, SERVICE_EXTERNAL_IP, SERVICE_INSIDE_LOCAL, SERVICE_LOAD_BALANCER,
    SERVICE_NODE_PORT, SERVICE_OUTSIDE_LOCAL,
};

use crate::{
    model::{ObjectKey, Protocol, Service, ServicePort},
    topology::Wanted,
};

/// What a packet must be addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontKey {
    /// IPv4 or IPv6.
    pub ipv4: bool,
    /// `None`: any NodePort address of the node.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: Protocol,
}

impl std::fmt::Display for FrontKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.addr {
            Some(addr) => {
                write!(f, "{}/{}", std::net::SocketAddr::new(addr, self.port), self.protocol)
            }
            None => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}

/// A front end of one service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Its key.
    pub key: FrontKey,
    /// `SERVICE_*` flags of its row: what it is and which pools it draws from.
    pub flags: u32,
}

/// The front ends of `port`: in each family where the Service has a ClusterIP, and nowhere else.
/// An address in several roles is one front end with the flags of all.
pub fn fronts(service: &Service, port: &ServicePort, external_ips: bool) -> Vec<Front> {
    let mut fronts: BTreeMap<FrontKey, u32> = BTreeMap::new();
    let mut add = |ipv4, addr, number, flag| {
        let key = FrontKey { ipv4, addr, port: number, protocol: port.protocol };
        *fronts.entry(key).or_default() |= flag;
    };
    for ip in &service.cluster_ips {
        add(ip.is_ipv4(), Some(*ip), port.port, SERVICE_CLUSTER_IP);
        if let Some(node_port) = port.node_port {
            add(ip.is_ipv4(), None, node_port, SERVICE_NODE_PORT);
        }
    }
    for ip in &service.load_balancer_ips {
        add(ip.is_ipv4(), Some(*ip), port.port, SERVICE_LOAD_BALANCER);
    }
    for ip in service.external_ips.iter().filter(|_| external_ips) {
        add(ip.is_ipv4(), Some(*ip), port.port, SERVICE_EXTERNAL_IP);
    }
    fronts
        .into_iter()
        .map(|(key, roles)| Front { key, flags: roles | pools(service, roles) })
        .collect()
}

/// Which pools a front end draws from. The policy goes with the destination: the internal one
/// holds for ClusterIPs, whoever asks. The external one holds for everything else, and there only
/// for clients who are not on this node: pods and processes of the node reach the endpoints as
/// if they had gone through the load balancer.
fn pools(service: &Service, roles: u32) -> u32 {
    if roles & SERVICE_CLUSTER_IP != 0 {
        if service.internal_local { SERVICE_INSIDE_LOCAL | SERVICE_OUTSIDE_LOCAL } else { 0 }
    } else if service.external_local {
        SERVICE_OUTSIDE_LOCAL
    } else {
        0
    }
}

/// The pools that these front ends of one family draw from.
pub fn wanted(fronts: &[Front]) -> Wanted {
    let both = SERVICE_INSIDE_LOCAL | SERVICE_OUTSIDE_LOCAL;
    Wanted {
        cluster: fronts.iter().any(|front| front.flags & both != both),
        local: fronts.iter().any(|front| front.flags & both != 0),
    }
}

/// One Service's claim; the least wins: a ClusterIP over any other role, since the API server
/// gives each to one Service only, then the oldest Service, then by name.
type Claim = (bool, i64, ObjectKey);

/// Who claims which front end.
#[derive(Debug, Default)]
pub struct Claims {
    by_key: BTreeMap<FrontKey, BTreeSet<Claim>>,
    by_service: BTreeMap<ObjectKey, BTreeMap<FrontKey, Claim>>,
}

impl Claims {
    /// Replaces the claims of one Service; returns the other Services that win or lose a front
    /// end by it.
    pub fn replace(
        &mut self,
        key: &ObjectKey,
        service: Option<&Service>,
        external_ips: bool,
    ) -> BTreeSet<ObjectKey> {
        let mut new = BTreeMap::new();
        if let Some(service) = service {
            for front in service.ports.iter().flat_map(|port| fronts(service, port, external_ips)) {
                let weaker = front.flags & SERVICE_CLUSTER_IP == 0;
                new.insert(front.key, (weaker, service.created, key.clone()));
            }
        }
        let old = self.by_service.remove(key).unwrap_or_default();
        let mut affected = BTreeSet::new();
        for (front, claim) in &old {
            if new.get(front) == Some(claim) {
                continue;
            }
            if let Some(claims) = self.by_key.get_mut(front) {
                claims.remove(claim);
                affected.extend(claims.first().map(|c| c.2.clone()));
                if claims.is_empty() {
                    self.by_key.remove(front);
                }
            }
        }
        for (front, claim) in &new {
            if old.get(front) == Some(claim) {
                continue;
            }
            let claims = self.by_key.entry(*front).or_default();
            affected.extend(claims.first().map(|c| c.2.clone()));
            claims.insert(claim.clone());
        }
        if !new.is_empty() {
            self.by_service.insert(key.clone(), new);
        }
        affected.remove(key);
        affected
    }

    /// The Service that has `front`.
    pub fn winner(&self, front: &FrontKey) -> Option<&ObjectKey> {
        self.by_key.get(front)?.first().map(|claim| &claim.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "ns".into(), name: name.into() }
    }

    fn service(name: &str, created: i64, ip: &str) -> Service {
        Service {
            key: key(name),
            created,
            cluster_ips: vec![ip.parse().unwrap()],
            external_ips: vec!["10.8.0.1".parse().unwrap()],
            load_balancer_ips: vec![],
            internal_local: false,
            external_local: false,
            health_check_port: None,
            affinity: None,
            sources: crate::model::Sources::Any,
            ports: vec![ServicePort {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: Some(30_080),
            }],
        }
    }

    #[test]
    fn each_role_is_a_front_end() {
        let s = service("a", 1, "10.96.0.1");
        let list: Vec<_> =
            fronts(&s, &s.ports[0], true).iter().map(|f| f.key.to_string()).collect();
        assert_eq!(list, ["node port 30080/TCP", "10.8.0.1:80/TCP", "10.96.0.1:80/TCP"]);
    }

    #[test]
    fn conformance_110_external_ips_can_be_switched_off() {
        let s = service("a", 1, "10.96.0.1");
        let list: Vec<_> =
            fronts(&s, &s.ports[0], false).iter().map(|f| f.key.to_string()).collect();
        assert_eq!(list, ["node port 30080/TCP", "10.96.0.1:80/TCP"]);
    }

    #[test]
    fn the_policy_goes_with_the_destination() {
        let (inside, outside) = (SERVICE_INSIDE_LOCAL, SERVICE_OUTSIDE_LOCAL);
        for (internal, external, cluster_ip, node_port, wants) in [
            (false, false, 0, 0, (true, false)),
            (false, true, 0, outside, (true, true)),
            (true, false, inside | outside, 0, (true, true)),
            (true, true, inside | outside, outside, (true, true)),
        ] {
            let mut s = service("a", 1, "10.96.0.1");
            (s.internal_local, s.external_local) = (internal, external);
            let fronts = fronts(&s, &s.ports[0], true);
            for front in &fronts {
                let roles = SERVICE_CLUSTER_IP | SERVICE_NODE_PORT | SERVICE_EXTERNAL_IP;
                let want =
                    if front.flags & SERVICE_CLUSTER_IP != 0 { cluster_ip } else { node_port };
                assert_eq!(front.flags & !roles, want, "{} {internal} {external}", front.key);
            }
            let wanted = wanted(&fronts);
            assert_eq!((wanted.cluster, wanted.local), wants);
        }
        // 41: nothing external, so nobody asks for the pool of the cluster.
        let mut s = service("a", 1, "10.96.0.1");
        s.internal_local = true;
        s.external_ips.clear();
        s.ports[0].node_port = None;
        let wanted = wanted(&fronts(&s, &s.ports[0], true));
        assert_eq!((wanted.cluster, wanted.local), (false, true));
    }

    #[test]
    fn conformance_109_the_oldest_service_keeps_a_shared_external_ip() {
        let shared = FrontKey {
            ipv4: true,
            addr: Some("10.8.0.1".parse().unwrap()),
            port: 80,
            protocol: Protocol::Tcp,
        };
        let mut claims = Claims::default();
        let mut young = service("young", 2, "10.96.0.1");
        let mut old = service("old", 1, "10.96.0.2");
        young.ports[0].node_port = None;
        old.ports[0].node_port = None;
        assert!(claims.replace(&young.key, Some(&young), true).is_empty());
        assert_eq!(claims.winner(&shared), Some(&young.key));
        assert_eq!(claims.replace(&old.key, Some(&old), true), BTreeSet::from([key("young")]));
        assert_eq!(claims.winner(&shared), Some(&old.key));
        assert!(claims.replace(&old.key, Some(&old), true).is_empty());
        assert_eq!(claims.replace(&old.key, None, true), BTreeSet::from([key("young")]));
        assert_eq!(claims.winner(&shared), Some(&young.key));
    }
}
