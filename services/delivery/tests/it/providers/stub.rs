//! A scripted server: each request gets the next script, byte for byte. Raw TCP, because most tests need behaviour that
//! a proper HTTP server does not have.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The actions after a request was read. When a script ends, the connection takes the next request.
pub(super) type Script = Vec<Act>;

#[derive(Debug, Clone)]
pub(super) enum Act {
    Send(Vec<u8>),
    /// Sends these bytes repeatedly, as fast as possible, until the client disconnects.
    Flood(Vec<u8>),
    /// Sends these bytes repeatedly, slowly, until the client disconnects.
    Drip(Vec<u8>),
    /// Sends nothing until the client disconnects.
    Hold,
    Close,
}

/// A request as received.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) line: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Counters to wait for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) connections: usize,
    pub(super) requests: usize,
    /// Clients that disconnected before their script ended.
    pub(super) left: usize,
}

struct Shared {
    scripts: Mutex<VecDeque<Script>>,
    seen: Mutex<Vec<Seen>>,
    counts: watch::Sender<Counts>,
}

pub(super) struct Stub {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

impl Stub {
    pub(super) async fn start(scripts: impl IntoIterator<Item = Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            scripts: Mutex::new(scripts.into_iter().collect()),
            seen: Mutex::default(),
            counts: watch::Sender::default(),
        });
        let server = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self {
            address,
            shared,
            server,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What further requests get.
    pub(super) fn then(&self, scripts: impl IntoIterator<Item = Script>) {
        self.shared.scripts.lock().unwrap().extend(scripts);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(super) fn counts(&self) -> Counts {
        *self.shared.counts.borrow()
    }

    /// Waits until the counters match.
    pub(super) async fn until(&self, wanted: impl FnMut(&Counts) -> bool) {
        let mut counts = self.shared.counts.subscribe();
        let waited = tokio::time::timeout(super::LIMIT, counts.wait_for(wanted));
        waited.await.expect("the stub should see it").expect("the stub lives");
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        shared.counts.send_modify(|counts| counts.connections += 1);
        connections.spawn(serve(stream, shared.clone()));
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    while let Some(request) = read_request(&mut stream).await {
        shared.seen.lock().unwrap().push(request);
        shared.counts.send_modify(|counts| counts.requests += 1);
        let script = shared.scripts.lock().unwrap().pop_front();
        for act in script.unwrap_or_else(|| vec![Act::Close]) {
            let stays = match act {
                Act::Send(bytes) => stream.write_all(&bytes).await.is_ok(),
                Act::Flood(bytes) => {
                    while stream.write_all(&bytes).await.is_ok() {}
                    false
                }
                Act::Drip(bytes) => {
                    let mut ticks = tokio::time::interval(Duration::from_millis(5));
                    while stream.write_all(&bytes).await.is_ok() {
                        ticks.tick().await;
                    }
                    false
                }
                Act::Hold => {
                    while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
                    false
                }
                Act::Close => return,
            };
            if !stays {
                shared.counts.send_modify(|counts| counts.left += 1);
                return;
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let seen = Seen {
        line,
        headers,
        body: bytes[head_end + 4..].to_vec(),
    };
    let length: usize = seen
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut seen = seen;
    while seen.body.len() < length {
        if stream.read_buf(&mut seen.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(seen)
}

/// A response with a body of known length.
pub(super) fn whole(status: &str, content_type: &str, extra_headers: &str, body: &str) -> Act {
    let length = body.len();
    Act::Send(
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{extra_headers}\r\n{body}"
        )
        .into_bytes(),
    )
}

/// The head of a streamed response.
pub(super) fn stream_head() -> Act {
    Act::Send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec())
}

/// A piece of a streamed body.
pub(super) fn chunk(bytes: &[u8]) -> Act {
    Act::Send([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
}

/// The end of a streamed body.
pub(super) fn stream_end() -> Act {
    Act::Send(b"0\r\n\r\n".to_vec())
}

/// A whole stream of events.
pub(super) fn stream(events: &[Value]) -> Script {
    let mut script = vec![stream_head()];
    script.extend(
        events
            .iter()
            .map(|event| chunk(format!("data: {event}\n\n").as_bytes())),
    );
    script.push(stream_end());
    script
}
