//! Networks: an address and how many of its bits count.

use std::{fmt, net::IpAddr};

use super::convert::parse_ip;

/// A network in CIDR notation (RFC 4632), without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// So many ones from the left; a shift by all bits is none.
fn mask4(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// See [`mask4`].
fn mask6(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl Prefix {
    /// The network of this length that `addr` is in; `None` if no address has so many bits.
    pub fn new(addr: IpAddr, len: u8) -> Option<Self> {
        let addr = match addr {
            IpAddr::V4(ip) if len <= 32 => IpAddr::V4((u32::from(ip) & mask4(len)).into()),
            IpAddr::V6(ip) if len <= 128 => IpAddr::V6((u128::from(ip) & mask6(len)).into()),
            _ => return None,
        };
        Some(Self { addr, len })
    }

    /// The network that is one address.
    pub fn host(addr: IpAddr) -> Self {
        Self { addr, len: if addr.is_ipv4() { 32 } else { 128 } }
    }

    /// Reads CIDR notation. Host bits are cleared, and leading zeros of IPv4 octets are decimal:
    /// such values were stored before API servers refused them.
    pub fn parse(text: &str) -> Option<Self> {
        let (addr, len) = text.split_once('/')?;
        let digits = !len.is_empty() && len.bytes().all(|b| b.is_ascii_digit());
        // Leading zeros again: `/025`.
        let len = digits
            .then(|| len.trim_start_matches('0'))
            .map(|d| if d.is_empty() { "0" } else { d })?;
        Self::new(parse_ip(addr)?, len.parse().ok()?)
    }

    /// First address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Bits that count.
    #[expect(clippy::len_without_is_empty, reason = "a length in bits, not of a container")]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Of which family.
    pub fn is_ipv4(&self) -> bool {
        self.addr.is_ipv4()
    }

    /// Whether an address is in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.is_ipv4()
            && Self::new(ip, self.len).is_some_and(|p| p.addr == self.addr)
    }

    /// Its mask as an address.
    pub fn mask(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(_) => IpAddr::V4(mask4(self.len).into()),
            IpAddr::V6(_) => IpAddr::V6(mask6(self.len).into()),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_api_server_once_took_them() {
        for (text, want) in [
            ("10.1.0.0/16", Some("10.1.0.0/16")),
            ("203.0.113.000/025", Some("203.0.113.0/25")),
            ("10.1.2.3/16", Some("10.1.0.0/16")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::1/64", Some("fd00::/64")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("fd00::/129", None),
            ("10.0.0.0", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/-1", None),
            ("10.0.0.0/+8", None),
            ("x/8", None),
        ] {
            assert_eq!(Prefix::parse(text).map(|p| p.to_string()).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn families_do_not_mix() {
        let all = Prefix::parse("0.0.0.0/0").unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        assert!(!all.contains("fd00::1".parse().unwrap()));
        let half = Prefix::parse("128.0.0.0/1").unwrap();
        assert!(half.contains("203.0.113.1".parse().unwrap()));
        assert!(!half.contains("10.0.0.1".parse().unwrap()));
        assert_eq!(half.mask(), "128.0.0.0".parse::<IpAddr>().unwrap());
    }
}
