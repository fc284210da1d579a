//! Connections: accepted up to a global limit and a limit for each address, each with limits on its headers, ended
//! gracefully when the process stops.
//!
//! axum's own `serve` has neither a time nor a size limit for headers, so this file has its own accept loop.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Router, http::Request};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, info, warn};

use super::{
    address::{Connections, Peer},
    pace::{Pace, Patience},
};
use crate::{settings::HttpSettings, shutdown::Shutdown};

/// hyper refuses less than this for its read buffer.
const BUFFER_BYTES_MIN: usize = 8 * 1024;
/// The socket's send buffer. The system's default is megabytes, which would count as sent before the client has them.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
/// Connections that wait to be accepted; the system may have a smaller limit.
const BACKLOG: u32 = 1024;
/// A failed accept means that file descriptors have run out: an immediate retry would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
}

/// The URL of a listener from this machine: a listener on all addresses is reached on loopback.
pub fn local_url(mut listens: SocketAddr) -> String {
    if listens.ip().is_unspecified() {
        listens.set_ip(match listens {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{listens}")
}

/// Binds the address. Port 0 picks a free port, which the listener knows.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, HttpError> {
    bind(address).map_err(|source| HttpError::Listen { address, source })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    // Its connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until the process stops; then accepts no more connections and lets requests in progress end. Bounded by the
/// process's grace period: dropping this ends all connections.
pub async fn serve(listener: TcpListener, router: Router, settings: HttpSettings, shutdown: Shutdown) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "listening on {address}");
    }
    let builder = Arc::new(builder(&settings));
    let room = Arc::new(Semaphore::new(settings.connections_max.usize()));
    let of_addresses = Connections::new(&settings);
    let stop = shutdown.token();
    let mut connections = JoinSet::new();
    loop {
        // Acquires a permit first: without one, connections wait in the system's queue. Both waits are cancel-safe.
        let place = tokio::select! {
            () = stop.cancelled() => break,
            place = Arc::clone(&room).acquire_owned() => place.expect("the semaphore is never closed"),
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            // Reaps ended connections; their permits are released already.
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                // A connection over the address limit is closed unread: a response would be work for an attacker.
                let Some(held) = of_addresses.hold(peer) else { continue };
                let (builder, router, stop) = (Arc::clone(&builder), router.clone(), stop.clone());
                // Responses are small and complete: waiting to fill a packet only delays them.
                let _ = stream.set_nodelay(true);
                let stream = Patience::new(stream, Pace::of(&settings));
                connections.spawn(async move {
                    connection(&builder, (stream, peer), router, stop).await;
                    drop((place, held));
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// HTTP/1 alone: detecting HTTP/2 without TLS means waiting for a first byte, and that wait has no limit.
fn builder(settings: &HttpSettings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout_ms.duration())
        .max_buf_size(settings.header_bytes_max.usize().max(BUFFER_BYTES_MIN));
    builder
}

async fn connection(
    builder: &Builder<TokioExecutor>,
    (stream, peer): (Patience<TcpStream>, SocketAddr),
    router: Router,
    stop: CancellationToken,
) {
    let service = router.map_request(move |mut request: Request<_>| {
        request.extensions_mut().insert(Peer(peer));
        request
    });
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut serving = std::pin::pin!(serving);
    // The connection is pinned outside and polled again below; dropping the first wait loses nothing.
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}
