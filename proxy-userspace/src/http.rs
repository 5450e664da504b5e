//! The agent's two small HTTP servers: how they listen and how they answer.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio::net::{TcpListener, TcpSocket};

use crate::events::Reporter;

/// Between attempts to bind, as kube-proxy does it.
const RETRY: Duration = Duration::from_secs(5);

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

/// Where and how a server listens.
pub struct Listen {
    /// For logs.
    pub what: &'static str,
    /// Where.
    pub address: SocketAddr,
    /// A port that is taken is an error; else it is tried again and again.
    pub hard_fail: bool,
    /// Reason of the Event about the Node that tells of a port that is taken.
    pub reason: &'static str,
    /// Tells it.
    pub events: Reporter,
}

/// Serves for ever.
pub async fn serve(on: Listen, router: Router) -> Result<()> {
    let listener = on.bind_at_last().await.with_context(|| format!("listen on {}", on.address))?;
    let router = router.fallback(async || not_found());
    axum::serve(listener, router).await.with_context(|| format!("serve on {}", on.address))
}

impl Listen {
    async fn bind_at_last(&self) -> io::Result<TcpListener> {
        let Self { what, address, .. } = self;
        let mut told = false;
        loop {
            match listen(*address) {
                Ok(listener) => {
                    if told {
                        tracing::info!(%address, "{what} listens at last");
                    }
                    return Ok(listener);
                }
                Err(error) if !told => {
                    told = true;
                    self.events.node(self.reason, &format!("{what} on {address}: {error}"));
                    if self.hard_fail {
                        // The agent ends with this error, and the Event is its last word.
                        self.events.flush().await;
                        return Err(error);
                    }
                    tracing::warn!(
                        %address, %error,
                        "{what} cannot listen, will retry every {} s", RETRY.as_secs()
                    );
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// What every other path gets; the same text as from kube-proxy.
fn not_found() -> Response {
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n").into_response()
}

/// A listening socket. A wildcard address of either family means both, as kube-proxy's does; a
/// kernel without IPv6 gives IPv4.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind(address, true);
    }
    match bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()), false) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()), true)
        }
        bound => bound,
    }
}

/// A listening socket on this address alone, or with `only_v6` unset on `[::]`, of both families.
pub fn bind(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = match address.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            // Whatever the host's net.ipv6.bindv6only says.
            socket2::SockRef::from(&socket).set_only_v6(only_v6)?;
            socket
        }
    };
    // An agent that starts again must not wait for the connections of the last one to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// JSON with the code that says whether all is well, and with kube-proxy's headers.
pub fn json(ok: bool, body: &serde_json::Value) -> Response {
    let code = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, [(header::CONTENT_TYPE, "application/json"), NOSNIFF], body.to_string()).into_response()
}

/// Plain text.
pub fn text(body: &'static str) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8"), NOSNIFF], body).into_response()
}

/// Browsers are to believe the content type.
const NOSNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn conformance_158_a_wildcard_of_either_family_answers_on_both() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let listener = listen(wildcard.parse().unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();
            for client in ["127.0.0.1", "::1"] {
                let address = SocketAddr::new(client.parse().unwrap(), port);
                assert!(TcpStream::connect(address).await.is_ok(), "{wildcard} at {address}");
            }
        }
    }

    #[tokio::test]
    async fn conformance_159_a_port_that_is_taken_is_an_error_and_not_half_a_server() {
        let taken = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = taken.local_addr().unwrap().port();
        for address in [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}")] {
            let error = listen(address.parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{address}");
        }
    }
}
