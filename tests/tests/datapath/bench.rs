//! The real programs on single packets (BPF_PROG_TEST_RUN), in a namespace with routes and
//! neighbours, and with map rows that the test writes.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    process::Command,
    time::Duration,
};

use crate::raw;
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData},
    programs::Program,
};
use proxy_common::{
    ABI_VERSION, Row,
    config::{CONFIG_PODS_BY_DEVICE, NodeConfig},
    counter::Counter,
    device::{DEVICE_PODS, DEVICE_STACKED, DeviceRow, ROLE_UPLINK, ROLE_WORKLOAD},
    flow::Timeouts,
    service::{
        ADDRESS_CLUSTER_IP, ADDRESS_MASQUERADE, ADDRESS_NODE, ADDRESS_VIP, AddressRow,
        BACKEND_ACTIVE, BACKEND_LOCAL, BackendRow, Network, Pool, SERVICE_CLUSTER_IP,
        SERVICE_NODE_PORT, ServiceKey, ServiceRow,
    },
};
pub use proxy_userspace::datapath::sys::Ran;
use proxy_userspace::datapath::{loader, sys};
use weir_tests::netns::{Netns, run, unique_prefix};

/// Device that packets enter by.
const DEVICE: &str = "eth0";

/// TCX_NEXT, TC_ACT_UNSPEC.
pub const NEXT: i32 = -1;
/// TC_ACT_SHOT.
pub const DROP: i32 = 2;
/// TC_ACT_REDIRECT.
pub const REDIRECT: i32 = 7;

/// Loaded programs with their own maps.
pub struct Bench {
    pub ebpf: Ebpf,
    ifindex: u32,
}

fn data(map: &Map) -> &MapData {
    match map {
        Map::HashMap(d)
        | Map::LruHashMap(d)
        | Map::Array(d)
        | Map::PerCpuArray(d)
        | Map::LpmTrie(d) => d,
        _ => panic!("a kind of map the programs do not have"),
    }
}

/// Runs a test inside a namespace of its own: device `eth0` with 10.9.0.1 and fd00:10:9::1, a
/// neighbour 10.9.0.2 through which the pod networks 10.1 and fd00:10:1 are reached, and 10.3 and
/// fd00:10:3 by a path with an MTU of 1,300. 10.4 and fd00:10:4 are behind a neighbour of unknown
/// address. Everything else has no route; forwarding is on.
pub fn with_bench(test: impl FnOnce(&Bench) + Send + 'static) {
    with_tables(&[], test);
}

/// The same with other capacities for some maps.
pub fn with_tables(
    sizes: &'static [(&'static str, u32)],
    test: impl FnOnce(&Bench) + Send + 'static,
) {
    let netns = Netns::new(&unique_prefix(), "bench").unwrap();
    netns
        .ip("link add eth0 address 02:00:00:00:00:01 type veth peer name peer0\n\
             link set eth0 up\nlink set peer0 up\n\
             addr add 10.9.0.1/24 dev eth0\naddr add fd00:10:9::1/64 dev eth0 nodad\n\
             neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0\n\
             neigh add fd00:10:9::2 lladdr 02:00:00:00:00:02 dev eth0\n\
             route add 10.1.0.0/16 via 10.9.0.2\nroute add fd00:10:1::/48 via fd00:10:9::2\n\
             neigh add 10.9.0.100 lladdr 02:00:00:00:00:64 dev eth0\n\
             neigh add fd00:10:9::100 lladdr 02:00:00:00:00:64 dev eth0\n\
             route add 10.3.0.0/16 via 10.9.0.2 mtu lock 1300\n\
             route add fd00:10:3::/48 via fd00:10:9::2 mtu lock 1300\n\
             route add 10.4.0.0/16 via 10.9.0.4\nroute add fd00:10:4::/48 via fd00:10:9::4")
        .unwrap();
    netns.sysctl(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]).unwrap();
    netns
        .enter(move || {
            let bench = Bench::load(sizes);
            test(&bench);
        })
        .unwrap();
}

impl Bench {
    fn load(sizes: &[(&'static str, u32)]) -> Self {
        let mut loader = EbpfLoader::new();
        for (map, size) in sizes {
            loader.map_max_entries(map, *size);
        }
        let mut ebpf = loader.load(loader::OBJECT).unwrap();
        for (name, program) in ebpf.programs_mut() {
            match program {
                Program::SchedClassifier(p) => p.load().unwrap_or_else(|e| panic!("{name}: {e:?}")),
                Program::CgroupSockAddr(p) => p.load().unwrap_or_else(|e| panic!("{name}: {e:?}")),
                _ => panic!("{name} is of another kind"),
            }
        }
        let shown = run(Command::new("ip").args(["-o", "link", "show", DEVICE])).unwrap();
        let ifindex = shown.split(':').next().unwrap().parse().unwrap();
        let bench = Self { ebpf, ifindex };
        bench.put(
            "CONFIG",
            &0u32,
            &NodeConfig {
                host_netns: 1,
                tick_shift: 10,
                flags: CONFIG_PODS_BY_DEVICE,
                abi: ABI_VERSION,
                hz: 1_000,
                snat_first: 20_000,
                snat_last: 20_999,
                masquerade4: [10, 9, 0, 1],
                masquerade6: "fd00:10:9::1".parse::<std::net::Ipv6Addr>().unwrap().octets(),
                pods4: Network::NONE,
                pods6: Network::NONE,
                timeouts: Timeouts::SECONDS,
            },
        );
        bench.set_role(ROLE_WORKLOAD);
        let own = AddressRow { flags: ADDRESS_NODE | ADDRESS_MASQUERADE };
        bench.put("ADDRESSES4", &[10u8, 9, 0, 1], &own);
        bench.put("ADDRESSES6", &v6("fd00:10:9::1"), &own);
        bench
    }

    fn set_role(&self, role: u32) {
        let flags = if role == ROLE_UPLINK { 0 } else { DEVICE_PODS };
        let row = DeviceRow { role, flags, masquerade4: [0; 4], masquerade6: [0; 16] };
        self.put("DEVICES", &self.ifindex, &row);
    }

    /// Makes the device one on top of others that carry our programs.
    pub fn set_stacked(&self) {
        let row = DeviceRow {
            role: ROLE_WORKLOAD,
            flags: DEVICE_STACKED | DEVICE_PODS,
            masquerade4: [0; 4],
            masquerade6: [0; 16],
        };
        self.put("DEVICES", &self.ifindex, &row);
    }

    /// Makes the device an uplink: clients behind it are outside.
    pub fn outside(&self) {
        self.set_role(ROLE_UPLINK);
    }

    fn fd(&self, map: &str) -> BorrowedFd<'_> {
        data(self.ebpf.map(map).unwrap_or_else(|| panic!("no map {map}"))).fd().as_fd()
    }

    /// Writes a row.
    pub fn put<K: Row, V: Row>(&self, map: &str, key: &K, value: &V) {
        sys::update(self.fd(map), key, value).unwrap_or_else(|e| panic!("{map}: {e}"));
    }

    /// Reads a row.
    pub fn get<K: Row, V: Row>(&self, map: &str, key: &K) -> Option<V> {
        sys::lookup(self.fd(map), key).unwrap()
    }

    /// Removes a row.
    pub fn remove<K: Row>(&self, map: &str, key: &K) {
        assert!(sys::delete(self.fd(map), key).unwrap(), "{map} has no such row");
    }

    /// Rows of a map.
    pub fn rows<K: Row, V: Row>(&self, map: &str) -> Vec<(K, V)> {
        let mut all = Vec::new();
        sys::for_each_chunk(self.fd(map), 1_024, |rows| all.extend_from_slice(rows)).unwrap();
        all
    }

    /// A counter's value.
    pub fn count(&self, counter: Counter) -> u64 {
        let cpus = aya::util::nr_cpus().unwrap();
        sys::lookup_per_cpu(self.fd("COUNTERS"), counter as u32, cpus).unwrap().iter().sum()
    }

    /// Puts a backend in place.
    pub fn backend(
        &self,
        id: u32,
        to: &str,
        service: u32,
        state: u8,
        generation: u32,
        local: bool,
    ) {
        let flags = if local { BACKEND_LOCAL } else { 0 };
        match to.parse().unwrap() {
            SocketAddr::V4(a) => {
                let (addr, port) = (a.ip().octets(), a.port());
                let row = BackendRow { addr, port, state, flags, service, generation };
                self.put("BACKENDS4", &id, &row);
            }
            SocketAddr::V6(a) => {
                let (addr, port) = (a.ip().octets(), a.port());
                let row = BackendRow { addr, port, state, flags, service, generation };
                self.put("BACKENDS6", &id, &row);
            }
        }
    }

    /// Makes a ClusterIP front end whose pool are these backends (ids from `first` on).
    pub fn service(
        &self,
        at: &str,
        proto: u8,
        service: u32,
        first: u32,
        backends: &[&str],
        local: bool,
    ) {
        let at: SocketAddr = at.parse().unwrap();
        let family = if at.is_ipv4() { 4 } else { 6 };
        for (i, backend) in backends.iter().enumerate() {
            let id = first + i as u32;
            self.backend(id, backend, service, BACKEND_ACTIVE, 1, local);
            self.put(&format!("SLOTS{family}"), &id, &id);
        }
        let pool = Pool { first, count: backends.len() as u32 };
        let flags = SERVICE_CLUSTER_IP;
        let row = ServiceRow { service, flags, inside: pool, outside: pool, affinity: 0 };
        self.front(at, proto, &row);
    }

    /// Writes the row of a front end, and that of its address as a ClusterIP's.
    pub fn front(&self, at: SocketAddr, proto: u8, row: &ServiceRow) {
        let address = AddressRow { flags: ADDRESS_VIP | ADDRESS_CLUSTER_IP };
        match at {
            SocketAddr::V4(a) => {
                let addr = a.ip().octets();
                self.put(
                    "SERVICES4",
                    &ServiceKey { addr, port: a.port(), proto, reserved: 0 },
                    row,
                );
                self.put("ADDRESSES4", &addr, &address);
            }
            SocketAddr::V6(a) => {
                let addr = a.ip().octets();
                self.put(
                    "SERVICES6",
                    &ServiceKey { addr, port: a.port(), proto, reserved: 0 },
                    row,
                );
                self.put("ADDRESSES6", &addr, &address);
            }
        }
    }

    /// Makes an IPv4 NodePort whose pool is one backend.
    pub fn node_port(&self, port: u16, proto: u8, id: u32, backend: &str) {
        self.backend(id, backend, id, BACKEND_ACTIVE, 1, false);
        self.put("SLOTS4", &id, &id);
        let pool = Pool { first: id, count: 1 };
        let flags = SERVICE_NODE_PORT;
        let row = ServiceRow { service: id, flags, inside: pool, outside: pool, affinity: 0 };
        self.put("SERVICES4", &ServiceKey { addr: [0u8; 4], port, proto, reserved: 0 }, &row);
    }

    /// Runs a program on a frame.
    pub fn run(&self, program: &str, frame: &[u8]) -> Ran {
        self.repeat(program, frame, 1)
    }

    /// Runs it many times, each time on what the time before has left.
    pub fn repeat(&self, program: &str, frame: &[u8], repeat: u32) -> Ran {
        sys::test_run(self.program(program), frame, self.ifindex, repeat, 0)
            .unwrap_or_else(|e| panic!("{program}: {e}"))
    }

    /// Runs a program on a frame that a NIC has summed up; fails if the sum does not fit
    /// afterwards. A kernel that cannot check that runs it as any other.
    pub fn run_summed(&self, program: &str, frame: &[u8]) -> Ran {
        let (fd, index) = (self.program(program), self.ifindex);
        match sys::test_run(fd, frame, index, 1, raw::CHECKSUM_COMPLETE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.run(program, frame),
            result => result.unwrap_or_else(|e| panic!("{program} on {frame:02x?}: {e}")),
        }
    }

    fn program(&self, name: &str) -> BorrowedFd<'_> {
        match self.ebpf.program(name) {
            Some(Program::SchedClassifier(program)) => program.fd().unwrap().as_fd(),
            _ => panic!("no program {name}"),
        }
    }

    /// Nanoseconds per run of a program that does nothing.
    pub fn bare(&self, frame: &[u8], repeat: u32) -> Duration {
        let program = raw::bare_program().unwrap();
        sys::test_run(program.as_fd(), frame, self.ifindex, repeat, 0).unwrap().duration
    }
}

/// Octets of an IPv6 address.
pub fn v6(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv6Addr>().unwrap().octets()
}
