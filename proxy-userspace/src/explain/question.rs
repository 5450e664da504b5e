//! `SRC DST:PORT/PROTO`.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use crate::model::Protocol;

/// Where to: `10.96.0.10:80/TCP`, `[fd00::a]:53/udp`; TCP if nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Front end.
    pub socket: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (socket, protocol) = text.rsplit_once('/').unwrap_or((text, "TCP"));
        let protocol = match protocol.to_ascii_uppercase().as_str() {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            "SCTP" => return Err("SCTP is not carried yet; want TCP or UDP".to_owned()),
            _ => return Err(format!("`{protocol}` is no protocol; want TCP or UDP")),
        };
        let socket: SocketAddr = socket.parse().map_err(|_| {
            format!("`{socket}` is no address with a port; want 10.96.0.10:80 or [fd00::a]:80")
        })?;
        if socket.port() == 0 {
            return Err("port 0 is no port of a Service".to_owned());
        }
        Ok(Self { socket: SocketAddr::new(socket.ip().to_canonical(), socket.port()), protocol })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket, self.protocol)
    }
}

/// Both ends must be of one family.
pub fn same_family(source: IpAddr, destination: &Destination) -> Result<(), String> {
    if source.to_canonical().is_ipv4() == destination.socket.is_ipv4() {
        return Ok(());
    }
    Err(format!("{source} and {destination} are of different IP families"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Destination>().map(|d| d.to_string());
        assert_eq!(read("10.96.0.10:80").unwrap(), "10.96.0.10:80/TCP");
        assert_eq!(read("[fd00::a]:53/udp").unwrap(), "[fd00::a]:53/UDP");
        assert_eq!(read("[::ffff:10.96.0.10]:80/tcp").unwrap(), "10.96.0.10:80/TCP");
        assert!(read("10.96.0.10").unwrap_err().contains("no address with a port"));
        assert!(read("10.96.0.10:80/ICMP").unwrap_err().contains("want TCP or UDP"));
        assert!(read("10.96.0.10:80/sctp").unwrap_err().contains("not carried yet"));
        assert!(read("10.96.0.10:0").unwrap_err().contains("port 0"));
    }

    #[test]
    fn families_do_not_mix() {
        let to: Destination = "[fd00::a]:53/udp".parse().unwrap();
        assert!(same_family("fd00::1".parse().unwrap(), &to).is_ok());
        assert!(same_family("10.0.0.1".parse().unwrap(), &to).is_err());
    }
}
