//! One connection to NATS, shared by the whole process through a cheap handle. Checks the server at the first connect,
//! and reconnects without a limit afterwards.

use domain::error_chain;
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr,
    connection::State,
    jetstream::{self, context::ContextBuilder},
};
use contracts::{Headers, Outgoing, Root, User};
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use crate::{
    delay,
    envelope::Keyring,
    error::{BusError, Cause},
    meters::Metrics,
    prefix,
    publish::wire_headers,
    url::{UrlCredentials, parse_url, shown},
};

/// The connection's address and limits.
#[derive(Clone)]
pub struct BusOptions {
    /// `nats://user:password@host:port`, several separated by commas; `nats://token@host` for a token, `tls://` for TLS.
    pub url: String,
    pub root: Root,
    /// The name in the server's monitoring: service and replica.
    pub name: String,
    /// A half-open connection is detected after about three of these.
    pub ping_interval_ms: u64,
    /// How long the first connection may take, all attempts together.
    pub connect_timeout_ms: u64,
    /// For calls of the JetStream API.
    pub request_timeout_ms: u64,
    /// After this the result of a publish is unknown: the message may be stored.
    pub publish_ack_timeout_ms: u64,
    /// Messages published and not yet acknowledged, in the whole process.
    pub publish_in_flight_max: usize,
    /// The prefix of reply subjects, so that the server's permissions can keep other users from reading them. None:
    /// `_I.{user}`.
    pub inbox_prefix: Option<String>,
    /// Signs published messages and verifies consumed ones.
    pub keys: Keyring,
}

impl BusOptions {
    pub fn new(url: impl Into<String>, root: Root, name: impl Into<String>) -> BusOptions {
        BusOptions {
            url: url.into(),
            root,
            name: name.into(),
            ping_interval_ms: 3_000,
            connect_timeout_ms: 10_000,
            request_timeout_ms: 5_000,
            publish_ack_timeout_ms: 5_000,
            publish_in_flight_max: 512,
            inbox_prefix: None,
            keys: Keyring::empty(),
        }
    }
}

impl fmt::Debug for BusOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusOptions")
            .field("url", &"(hidden)")
            .field("root", &self.root)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Major and minor version, on which features depend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServerVersion {
    pub major: u32,
    pub minor: u32,
}

impl ServerVersion {
    pub const OLDEST: ServerVersion = ServerVersion { major: 2, minor: 12 };

    fn parse(text: &str) -> Option<ServerVersion> {
        let mut parts = text.trim_start_matches('v').split('.');
        Some(ServerVersion {
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
        })
    }
}

const ANONYMOUS_WAIT: Duration = Duration::from_secs(2);
/// How soon a request that was lost with its connection is detected.
const CONNECTION_CHECK: Duration = Duration::from_millis(250);
const LIVE_WAIT: Duration = Duration::from_millis(100);

/// The handle. Clones share the connection; it closes when the last clone is dropped.
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    client: Client,
    jetstream: jetstream::Context,
    /// A context of its own, since publishing has limits of its own.
    publisher: jetstream::Context,
    root: Root,
    keys: Keyring,
    meters: Arc<Metrics>,
    addresses: Vec<ServerAddr>,
    /// The user's name at the server.
    user: Option<String>,
    api_prefix: &'static str,
}

impl Bus {
    /// Connects, retrying until the timeout, and verifies that the server can do what Signalbox needs.
    pub async fn connect(options: BusOptions) -> Result<Bus, BusError> {
        let (addresses, credentials) = parse_url(&options.url)?;
        let user = match &credentials {
            Some(UrlCredentials::Password { user, .. }) => Some(user.clone()),
            Some(UrlCredentials::Token(_)) | None => None,
        };
        let servers = shown(&addresses);
        let meters = Arc::new(Metrics::new());
        let waited = Duration::from_millis(options.connect_timeout_ms);
        let client_options = client_options(&options, credentials, Arc::clone(&meters));
        let client = connect_within(waited, &client_options, &addresses, &servers).await?;
        if is_open_to_others(is_loopback(&addresses).await, || lets_anyone_in(&addresses)).await {
            return Err(BusError::Open { servers });
        }
        let info = client.server_info();
        match ServerVersion::parse(&info.version) {
            Some(version) if version >= ServerVersion::OLDEST => {}
            _ => return Err(BusError::ServerTooOld { found: info.version }),
        }
        if !info.jetstream {
            return Err(BusError::NoJetStream { servers });
        }
        let api_prefix = prefix::api_prefix(user.as_deref().and_then(User::named));
        let jetstream = ContextBuilder::new()
            .api_prefix(api_prefix)
            .timeout(Duration::from_millis(options.request_timeout_ms))
            .build(client.clone());
        let publisher = ContextBuilder::new()
            .timeout(Duration::from_millis(options.publish_ack_timeout_ms))
            .max_ack_inflight(options.publish_in_flight_max)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Bus(Arc::new(Inner {
            client,
            jetstream,
            publisher,
            root: options.root,
            keys: options.keys,
            meters,
            addresses,
            user,
            api_prefix,
        })))
    }

    /// The client library's own handle, for features that are not wrapped here (core subscriptions, say).
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    pub fn root(&self) -> &Root {
        &self.0.root
    }

    /// The user in the URL.
    pub fn user(&self) -> Option<&str> {
        self.0.user.as_deref()
    }

    /// Whether the server takes a connection without credentials: it has no users, or a `no_auth_user`.
    pub async fn lets_anyone_in(&self) -> bool {
        lets_anyone_in(&self.0.addresses).await
    }

    /// Whether there is a connection now: for readiness.
    pub fn is_connected(&self) -> bool {
        self.0.client.connection_state() == State::Connected
    }

    /// The version of the server now connected to: it changes when the server is upgraded under a running process.
    pub fn server_version(&self) -> ServerVersion {
        ServerVersion::parse(&self.0.client.server_info().version).unwrap_or(ServerVersion::OLDEST)
    }

    /// Publishes without storage and without an acknowledgement: live text for pages, lost if no page listens or the
    /// broker is unavailable. Waits only briefly: a turn must not be delayed by pages.
    pub async fn publish_live(&self, message: Outgoing) {
        if !self.is_connected() {
            return;
        }
        let headers = match wire_headers(&message, None) {
            Ok(headers) => headers,
            Err(error) => return tracing::debug!(error = error_chain(&error), "live text was not sent"),
        };
        let client = &self.0.client;
        let sending = client.publish_with_headers(message.subject, headers, message.payload.into());
        // Only a congested connection makes this wait.
        match timeout(LIVE_WAIT, sending).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "live text was not sent"),
            Err(_) => tracing::debug!("live text was not sent: the connection is congested"),
        }
    }

    /// Waits until the server has received all sent data, acknowledgements included. Call it before the process ends.
    pub async fn flush(&self, limit: Duration) -> Result<(), BusError> {
        match timeout(limit, self.0.client.flush()).await {
            Ok(result) => result.map_err(|error| BusError::Flush(error.into())),
            Err(elapsed) => Err(BusError::Flush(elapsed.into())),
        }
    }

    pub(crate) fn jetstream(&self) -> &jetstream::Context {
        &self.0.jetstream
    }

    pub(crate) fn publisher(&self) -> &jetstream::Context {
        &self.0.publisher
    }

    /// Whether a service of this installation published the message on this subject. Consumers check it themselves;
    /// this is for messages that any user may publish.
    pub fn is_signed(&self, subject: &str, headers: &Headers, payload: &[u8]) -> bool {
        self.keys().verify(subject, headers, payload).is_ok()
    }

    pub(crate) fn keys(&self) -> &Keyring {
        &self.0.keys
    }

    pub(crate) fn meters(&self) -> &Metrics {
        &self.0.meters
    }

    /// The number of connections made. After it changes, replies may have been lost, and the server may be another one,
    /// or have lost its store.
    pub fn connections_made(&self) -> u64 {
        self.0.client.statistics().connects.load(Ordering::Relaxed)
    }

    /// Waits until more connections than these were made.
    pub(crate) async fn reconnected(&self, connections: u64) {
        let mut check = interval(CONNECTION_CHECK);
        while self.connections_made() == connections {
            check.tick().await;
        }
    }

    /// The prefix of this user's requests to JetStream.
    pub(crate) fn api_prefix(&self) -> &'static str {
        self.0.api_prefix
    }
}

/// A server on this machine may run without users: a local attacker could read the services' memory as well.
async fn is_open_to_others<F: Future<Output = bool>>(is_loopback: bool, lets_anyone_in: impl FnOnce() -> F) -> bool {
    !is_loopback && lets_anyone_in().await
}

/// Whether a server accepts clients without credentials: it has no users, or a `no_auth_user`. Found out by connecting,
/// since a server does not report it. A server that does not answer in time counts as closed.
async fn lets_anyone_in(addresses: &[ServerAddr]) -> bool {
    let anonymous = ConnectOptions::new()
        .connection_timeout(ANONYMOUS_WAIT)
        .connect(addresses.to_vec());
    matches!(timeout(ANONYMOUS_WAIT, anonymous).await, Ok(Ok(_)))
}

/// Whether all servers are on this machine. A name that cannot be resolved may be anywhere.
async fn is_loopback(addresses: &[ServerAddr]) -> bool {
    for address in addresses {
        let is_ours = match address.socket_addrs().await {
            Ok(mut sockets) => sockets.all(|socket| socket.ip().is_loopback()),
            Err(_) => false,
        };
        if !is_ours {
            return false;
        }
    }
    true
}

/// Retries until the time is up: in a new installation the server may still be starting. `servers` are the addresses for
/// messages.
async fn connect_within(
    waited: Duration,
    options: &ConnectOptions,
    addresses: &[ServerAddr],
    servers: &str,
) -> Result<Client, BusError> {
    let deadline = Instant::now() + waited;
    let mut last: Option<Cause> = None;
    for attempt in 1.. {
        match timeout_at(deadline, options.clone().connect(addresses.to_vec())).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    return Err(BusError::Refused {
                        servers: servers.to_owned(),
                        source: error.into(),
                    });
                }
                ConnectErrorKind::ServerParse
                | ConnectErrorKind::Dns
                | ConnectErrorKind::TimedOut
                | ConnectErrorKind::Tls
                | ConnectErrorKind::Io
                | ConnectErrorKind::MaxReconnects => last = Some(error.into()),
            },
            Err(_) => break,
        }
        let pause = delay::backoff(attempt, Duration::from_millis(50), Duration::from_secs(1));
        if timeout_at(deadline, sleep(pause)).await.is_err() {
            break;
        }
    }
    Err(BusError::Unreachable {
        servers: servers.to_owned(),
        waited,
        source: last,
    })
}

fn client_options(options: &BusOptions, credentials: Option<UrlCredentials>, meters: Arc<Metrics>) -> ConnectOptions {
    let mut client = ConnectOptions::new()
        .name(&options.name)
        .ping_interval(Duration::from_millis(options.ping_interval_ms))
        .request_timeout(Some(Duration::from_millis(options.request_timeout_ms)))
        // The library's own delays have no jitter: a thousand clients would reconnect in the same millisecond.
        .reconnect_delay_callback(|attempt| {
            let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
            delay::backoff(attempt, Duration::from_millis(10), Duration::from_secs(4))
        })
        .event_callback(move |event| {
            let meters = Arc::clone(&meters);
            async move { note_event(&event, &meters) }
        });
    // The configured prefix, else the user's own, which the permissions of [`crate::users`] allow.
    let mut inboxes = options.inbox_prefix.clone();
    client = match credentials {
        Some(UrlCredentials::Password { user, password }) => {
            inboxes = inboxes.or_else(|| is_token(&user).then(|| prefix::inbox_prefix(&user)));
            client.user_and_password(user, password)
        }
        Some(UrlCredentials::Token(token)) => client.token(token),
        None => client,
    };
    match inboxes {
        Some(prefix) => client.custom_inbox_prefix(prefix),
        None => client,
    }
}

/// Whether a user's name fits into a subject as one token.
fn is_token(user: &str) -> bool {
    user.bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// The library logs every event itself; these are the ones that mean loss or need an operator.
fn note_event(event: &Event, meters: &Metrics) {
    match event {
        Event::SlowConsumer(_) => {
            meters.slow_consumer();
            tracing::warn!("the NATS client dropped messages of a subscription that was not read in time");
        }
        Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
        Event::Connected
        | Event::Disconnected
        | Event::LameDuckMode
        | Event::Draining
        | Event::Closed
        | Event::ClientError(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_without_users_is_refused_unless_it_is_local() {
        let check = async |url: &str, lets_anyone_in: bool, refused: bool| {
            let (addresses, _) = parse_url(url).unwrap();
            let is_open = is_open_to_others(is_loopback(&addresses).await, async || lets_anyone_in);
            assert_eq!(is_open.await, refused, "{url}");
        };
        check("nats://127.0.0.1:4222", true, false).await;
        check("nats://[::1]:4222", true, false).await;
        check("nats://localhost:4222", true, false).await;
        check("nats://192.0.2.7:4222", true, true).await;
        check("nats://192.0.2.7:4222", false, false).await;
        check("nats://127.0.0.1:4222,nats://192.0.2.7:4222", true, true).await;
        // The name cannot be resolved.
        check("nats://nats.invalid:4222", true, true).await;
    }

    #[test]
    fn versions_compare_as_numbers() {
        let check = |text: &str, expected: bool| {
            let version = ServerVersion::parse(text);
            assert_eq!(
                version.is_some_and(|version| version >= ServerVersion::OLDEST),
                expected,
                "{text}"
            );
        };
        check("2.9.10", false);
        check("2.11.12", false);
        check("2.12.0", true);
        check("v2.15.1", true);
        check("2.14.0-RC.1", true);
        check("3.0.0", true);
        check("", false);
        check("nonsense", false);
    }
}
