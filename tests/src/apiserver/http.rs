//! As much of HTTP/1.1 as a Kubernetes client needs.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

/// A request.
#[derive(Debug)]
pub struct Request {
    /// `GET`.
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Path.
    pub path: String,
    query: BTreeMap<String, String>,
    /// JSON, or null without a body.
    pub body: Value,
}

impl Request {
    /// A query parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a parameter is `1` or `true`.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "true"))
    }

    /// A parameter that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'+' => bytes.push(b' '),
            b'%' if tail.len() >= 2 => {
                let hex = std::str::from_utf8(&tail[..2]).unwrap_or("3f");
                bytes.push(u8::from_str_radix(hex, 16).unwrap_or(b'?'));
                rest = &tail[2..];
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads a request; `None` at the end of the connection.
pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_else(|| "/".to_owned());
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(("content-length", value)) = line.to_lowercase().split_once(':') {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? };
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect();
    Ok(Some(Request { method, path: path.to_owned(), query, target, body }))
}

/// A whole answer.
pub fn json(stream: &mut TcpStream, code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {code} Test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A chunked answer.
pub struct Chunks<'a>(&'a mut TcpStream);

impl<'a> Chunks<'a> {
    /// Sends the head.
    pub fn begin(stream: &'a mut TcpStream) -> io::Result<Self> {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        Ok(Self(stream))
    }

    /// Sends a chunk.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        write!(self.0, "{:x}\r\n", bytes.len())?;
        self.0.write_all(bytes)?;
        self.0.write_all(b"\r\n")?;
        self.0.flush()
    }

    /// Sends a watch event.
    pub fn event(&mut self, kind: &str, object: &Value) -> io::Result<()> {
        self.send(format!("{}\n", json!({"type": kind, "object": object})).as_bytes())
    }

    /// Sends the first half of an event, as a connection that breaks would.
    pub fn cut_inside(&mut self, event: &Value) -> io::Result<()> {
        let text = event.to_string();
        self.send(&text.as_bytes()[..text.len() / 2])
    }

    /// Ends the answer as it should be.
    pub fn end(&mut self) -> io::Result<()> {
        self.0.write_all(b"0\r\n\r\n")
    }
}
