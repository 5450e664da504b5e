//! Asks the agent what no map holds.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{debug, source::ObjectKey, topology::reasons::ServiceReasons};

/// An agent on this node answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why the endpoints of a Service are used or not; `None`: the agent knows no such Service.
pub fn reasons(agent: SocketAddr, service: &ObjectKey) -> Result<Option<ServiceReasons>> {
    // HTTP/1.0: one question, one answer, and the end of the connection is the end of it.
    let mut stream = TcpStream::connect_timeout(&agent, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {} HTTP/1.0\r\nHost: {agent}\r\n\r\n", debug::path(service))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("it does not speak HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(Some(serde_json::from_str(body).context("it answers something else")?)),
        Some("404") => Ok(None),
        status => bail!("it answers {}", status.unwrap_or("nothing")),
    }
}
