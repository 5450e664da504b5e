//! Ports that processes of this node listen on, in its network namespace.

use std::{collections::BTreeMap, fs, io};

use anyhow::{Context as _, Result};

use crate::model::Protocol;

/// TCP_LISTEN of the kernel's tcp_states.h.
const LISTEN: &str = "0A";
/// TCP_CLOSE: what a UDP socket without a peer is in.
const UNCONNECTED: &str = "07";

/// Ports, with an address that is listened on.
pub type Listeners = BTreeMap<(Protocol, u16), String>;

/// Reads them from procfs (proc(5), `/proc/net/tcp`).
pub fn read() -> Result<Listeners> {
    let mut all = Listeners::new();
    for (file, protocol) in [
        ("tcp", Protocol::Tcp),
        ("tcp6", Protocol::Tcp),
        ("udp", Protocol::Udp),
        ("udp6", Protocol::Udp),
    ] {
        let path = format!("/proc/net/{file}");
        match fs::read_to_string(&path) {
            Ok(text) => all.extend(parse(&text, file, protocol)),
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("read {path}")),
        }
    }
    Ok(all)
}

fn parse(text: &str, file: &str, protocol: Protocol) -> Listeners {
    let state = if protocol == Protocol::Tcp { LISTEN } else { UNCONNECTED };
    let mut ports = Listeners::new();
    for line in text.lines().skip(1) {
        let mut words = line.split_whitespace().skip(1);
        let (Some(local), Some(_), Some(found)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Some((_, port)) = local.rsplit_once(':') else { continue };
        if let (Ok(port), true) = (u16::from_str_radix(port, 16), found == state) {
            ports.insert((protocol, port), format!("/proc/net/{file}"));
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_told_from_connections() {
        let text = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:7531 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2
";
        let tcp = parse(text, "tcp", Protocol::Tcp);
        assert_eq!(tcp.keys().copied().collect::<Vec<_>>(), [(Protocol::Tcp, 30_000)]);
        assert!(parse(text, "udp", Protocol::Udp).is_empty());
    }
}
