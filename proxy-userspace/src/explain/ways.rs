//! Where the kernel routes: who is behind which device, and where an endpoint is.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt as _;
use netlink_packet_route::{
    link::LinkAttribute,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};
use rtnetlink::{Handle, RouteMessageBuilder};

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// It is the node's own.
    pub local: bool,
    /// Device towards it.
    pub ifindex: u32,
    /// Next hop, if it is not the address itself.
    pub gateway: Option<IpAddr>,
}

/// A device and its link-layer address, which packets must have to be for this node.
#[derive(Clone, Debug)]
pub struct Link {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Empty where there is none.
    pub mac: Vec<u8>,
}

/// Asks the kernel over netlink.
pub struct Ways {
    handle: Handle,
}

impl Ways {
    /// Opens a socket in the current network namespace; needs a tokio runtime.
    pub fn open() -> Result<Self> {
        let (connection, handle, _) =
            rtnetlink::new_connection().context("open a netlink socket")?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// The way to an address; `None`: there is none.
    pub async fn to(&self, address: IpAddr) -> Result<Option<Way>> {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(address, length)
            .context("ask for a route")?
            .build();
        let mut routes = Box::pin(self.handle.route().get(message).execute());
        match routes.try_next().await {
            Ok(Some(route)) => Ok(read(&route)),
            Ok(None) => Ok(None),
            Err(rtnetlink::Error::NetlinkError(error)) => match -error.raw_code() {
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL => Ok(None),
                _ => Err(error.to_io()).with_context(|| format!("look up the route to {address}")),
            },
            Err(error) => Err(error).with_context(|| format!("look up the route to {address}")),
        }
    }

    /// A device, by its name or number.
    pub async fn link(&self, name: Option<&str>, ifindex: u32) -> Result<Link> {
        let request = self.handle.link().get();
        let request = match name {
            Some(name) => request.match_name(name.to_owned()),
            None => request.match_index(ifindex),
        };
        let shown = || name.map_or_else(|| format!("#{ifindex}"), str::to_owned);
        let found = Box::pin(request.execute()).try_next().await;
        let Some(message) = found.with_context(|| format!("look up device {}", shown()))? else {
            bail!("there is no device {}", shown());
        };
        let mut link = Link { ifindex: message.header.index, name: String::new(), mac: Vec::new() };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(mac) => link.mac = mac,
                _ => {}
            }
        }
        Ok(link)
    }
}

fn read(route: &RouteMessage) -> Option<Way> {
    let local = route.header.kind == RouteType::Local;
    if !local && route.header.kind != RouteType::Unicast {
        return None;
    }
    let mut way = Way { local, ifindex: 0, gateway: None };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(ifindex) => way.ifindex = *ifindex,
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => way.gateway = Some((*ip).into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => way.gateway = Some((*ip).into()),
            _ => {}
        }
    }
    Some(way)
}
