//! An API server for tests: lists, pages, watches, streamed initial lists, bookmarks, expiry, and
//! faults on demand. HTTP/1.1 by hand, since a test wants to cut a stream in the middle of a line.

mod events;
mod http;
mod store;

use std::{
    collections::BTreeMap,
    io::{self, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use self::{
    events::Events,
    http::{Chunks, Request},
    store::{Selection, Store, kind_of},
};

/// How the server is to fail.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Answer requests whose path contains this with this code.
    pub status: BTreeMap<String, u16>,
    /// Refuse `sendInitialEvents`, as servers without WatchList do.
    pub no_watch_list: bool,
    /// Say nothing on watches, but keep them open.
    pub silent: bool,
    /// Answer watches with these raw lines instead of the store's events.
    pub replay: BTreeMap<String, Vec<String>>,
}

#[derive(Default)]
struct Shared {
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    changed: Condvar,
    requests: Mutex<Vec<String>>,
    events: Mutex<Events>,
    /// Watches of an older generation break off.
    generation: Mutex<(u64, bool)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub struct ApiServer {
    shared: Arc<Shared>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl ApiServer {
    /// Listens on a free port of loopback.
    pub fn start() -> Result<Self> {
        Self::on(TcpListener::bind("127.0.0.1:0")?)
    }

    /// Serves on a socket, which may be in any network namespace.
    pub fn on(listener: TcpListener) -> Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let server = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&server);
                // A client that breaks off is its own affair.
                thread::spawn(move || drop(serve(&shared, stream)));
            }
        });
        Ok(Self { shared, address })
    }

    /// A kubeconfig for it.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {}}],
        })
        .to_string()
    }

    /// Creates or replaces an object.
    pub fn apply(&self, object: Value) {
        lock(&self.shared.store).apply(object);
        self.shared.changed.notify_all();
    }

    /// Deletes an object, if it is there.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        lock(&self.shared.store).delete(kind, namespace, name);
        self.shared.changed.notify_all();
    }

    /// Forgets the history: watches and pages from before expire.
    pub fn compact(&self) {
        lock(&self.shared.store).compact();
    }

    /// Breaks all watches off; with `mid_line` inside an event.
    pub fn drop_watches(&self, mid_line: bool) {
        let mut generation = lock(&self.shared.generation);
        generation.0 += 1;
        generation.1 = mid_line;
        drop(generation);
        self.shared.changed.notify_all();
    }

    /// Changes how it fails.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut lock(&self.shared.faults));
        self.shared.changed.notify_all();
    }

    /// Events there are, in the order they were made.
    pub fn events(&self) -> Vec<Value> {
        lock(&self.shared.events).all()
    }

    /// Forgets the Events, as a server does with old ones.
    pub fn forget_events(&self) {
        *lock(&self.shared.events) = Events::default();
    }

    /// Paths asked so far, with queries.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.requests).clone()
    }
}

fn serve(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = http::read(&mut reader)? {
        lock(&shared.requests).push(request.target.clone());
        if !answer(shared, &request, &mut stream)? {
            return Ok(());
        }
    }
    Ok(())
}

/// A `Status` object.
fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "AlreadyExists",
        410 => "Expired",
        422 => "Invalid",
        504 => "Timeout",
        _ => "InternalError",
    }
}

/// Answers one request; `false` ends the connection.
fn answer(shared: &Shared, request: &Request, stream: &mut TcpStream) -> io::Result<bool> {
    let faults = lock(&shared.faults).clone();
    if let Some(code) =
        faults.status.iter().find(|(part, _)| request.path.contains(*part)).map(|(_, code)| *code)
    {
        let message = format!("{} is refused by the test", request.path);
        http::json(stream, code, &failure(code, reason(code), &message))?;
        return Ok(true);
    }
    if let Some(answer) = lock(&shared.events).answer(request) {
        let (code, body) =
            answer.unwrap_or_else(|(code, message)| (code, failure(code, reason(code), &message)));
        http::json(stream, code, &body)?;
        return Ok(true);
    }
    let Some(kind) = kind_of(&request.path) else {
        http::json(
            stream,
            404,
            &failure(404, "NotFound", "the server could not find the requested resource"),
        )?;
        return Ok(true);
    };
    let selection = Selection::new(kind, request);
    if request.flag("watch") {
        if request.flag("sendInitialEvents") && faults.no_watch_list {
            let message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            http::json(stream, 422, &failure(422, "Invalid", message))?;
            return Ok(true);
        }
        return watch(shared, request, &selection, &faults, stream);
    }
    let answer = lock(&shared.store).list(&selection, request);
    match answer {
        Ok(list) => http::json(stream, 200, &list)?,
        Err((code, message)) => http::json(stream, code, &failure(code, reason(code), &message))?,
    }
    Ok(true)
}

fn watch(
    shared: &Shared,
    request: &Request,
    selection: &Selection,
    faults: &Faults,
    stream: &mut TcpStream,
) -> io::Result<bool> {
    let mut chunks = Chunks::begin(stream)?;
    if let Some(lines) =
        faults.replay.iter().find(|(part, _)| request.path.contains(*part)).map(|(_, lines)| lines)
    {
        for line in lines {
            chunks.send(line.as_bytes())?;
        }
        // The recording is over: stay silent until the test is.
        thread::sleep(Duration::from_secs(30));
        return Ok(false);
    }
    let generation = lock(&shared.generation).0;
    let seconds = request.number("timeoutSeconds").unwrap_or(300);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut store = lock(&shared.store);
    let (mut version, initial) = match store.start_watch(selection, request) {
        Ok(start) => start,
        Err(message) => {
            drop(store);
            chunks.event("ERROR", &failure(410, "Expired", &message))?;
            chunks.end()?;
            return Ok(true);
        }
    };
    for (kind, object) in initial {
        chunks.event(kind, &object)?;
    }
    loop {
        if !lock(&shared.faults).silent {
            for (kind, object) in store.events_after(selection, version) {
                chunks.event(kind, &object)?;
            }
            version = store.version();
        }
        let now = *lock(&shared.generation);
        if now.0 != generation {
            if now.1 {
                chunks.cut_inside(&json!({"type": "ADDED", "object": {"kind": selection.kind}}))?;
            }
            return Ok(false);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            if request.flag("allowWatchBookmarks") && !lock(&shared.faults).silent {
                chunks.event("BOOKMARK", &store.bookmark(selection, false))?;
            }
            chunks.end()?;
            return Ok(true);
        }
        store = shared
            .changed
            .wait_timeout(store, left.min(Duration::from_millis(50)))
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}
