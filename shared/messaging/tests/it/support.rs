//! A broker, a bus, messages, and waiting for conditions.

use std::{future::Future, time::Duration};

use async_nats::jetstream;
use contracts::{Headers, Outgoing, Root, header};
use devstack::NatsServer;
use messaging::{
    Bus, BusOptions, Incoming, Keyring, PartitionReader, Provision, ReadError, Stream, Topology, TopologyLimits, User,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Far longer than any step of these tests; a test that reaches it has failed.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Broker {
    pub(crate) server: NatsServer,
    pub(crate) bus: Bus,
}

/// A server without streams.
pub(crate) async fn bare_broker() -> Broker {
    let server = NatsServer::start_temporary().await.unwrap();
    let bus = Bus::connect(options(&server)).await.unwrap();
    Broker { server, bus }
}

/// A server with the topology of these limits.
pub(crate) async fn broker_with(limits: TopologyLimits) -> Broker {
    let broker = bare_broker().await;
    updating(limits).ensure(&broker.bus).await.unwrap();
    broker
}

pub(crate) async fn broker() -> Broker {
    broker_with(TopologyLimits::default()).await
}

pub(crate) fn options(server: &NatsServer) -> BusOptions {
    BusOptions {
        ping_interval_ms: 200,
        request_timeout_ms: 2_000,
        keys: keyring(),
        ..BusOptions::new(server.url(), Root::default(), "test")
    }
}

pub(crate) fn keyring() -> Keyring {
    Keyring::new([("test", [7; 32])], "test").unwrap()
}

pub(crate) fn updating(limits: TopologyLimits) -> Topology {
    with(limits, Provision::Update)
}

pub(crate) fn verifying(limits: TopologyLimits) -> Topology {
    with(limits, Provision::Verify)
}

fn with(limits: TopologyLimits, provision: Provision) -> Topology {
    Topology {
        limits,
        provision,
        scope: User::Operator,
    }
}

/// The client library's own view of the server.
pub(crate) fn raw(bus: &Bus) -> jetstream::Context {
    jetstream::new(bus.client().clone())
}

pub(crate) async fn stream_info(bus: &Bus, stream: Stream) -> jetstream::stream::Info {
    let stream = raw(bus).get_stream(stream.name(bus.root())).await.unwrap();
    stream.cached_info().clone()
}

pub(crate) fn message(subject: &str, id: &str, payload: impl Into<Vec<u8>>) -> Outgoing {
    let mut headers = Headers::default();
    headers.set(header::MESSAGE_ID, id);
    Outgoing {
        subject: subject.to_owned(),
        headers,
        payload: payload.into(),
    }
}

/// Publishes, and fails unless all messages were stored.
pub(crate) async fn publish(bus: &Bus, messages: &[Outgoing]) {
    for result in bus.publish_all(messages).await {
        result.unwrap();
    }
}

/// As no client library would: with headers of its own up to a last one, `X-Own: kept`.
pub(crate) async fn publish_raw(broker: &Broker, subject: &str, lines: &[u8]) {
    let url: async_nats::ServerAddr = broker.server.url().parse().unwrap();
    let mut socket = tokio::net::TcpStream::connect((url.host(), url.port())).await.unwrap();
    let login = serde_json::json!({
        "user": url.username(), "pass": url.password(), "headers": true, "verbose": false, "lang": "test", "version": "1",
    });
    let head = [lines, b"\r\nX-Own: kept\r\n\r\n"].concat();
    let command = format!(
        "CONNECT {login}\r\nHPUB {subject} {} {}\r\n",
        head.len(),
        head.len() + 1
    );
    let sent = [command.as_bytes(), &head, b"x\r\nPING\r\n"].concat();
    socket.write_all(&sent).await.unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("PONG") {
        assert!(
            socket.read_buf(&mut said).await.unwrap() > 0,
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}

/// Waits until the condition gives a value.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(what, waiting).await
}

/// Fails if it takes longer than any step of these tests should.
pub(crate) async fn within<T>(what: &str, waiting: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, waiting).await {
        Ok(value) => value,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}

/// The messages that a reader gets within a time; none if there are none.
pub(crate) async fn next_batch(
    reader: &mut PartitionReader,
    max: usize,
    wait: Duration,
) -> Result<Vec<Incoming>, ReadError> {
    reader.ready(wait).await;
    reader.next_batch(max).await
}
