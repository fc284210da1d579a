//! A TCP proxy on loopback that injects network faults: it holds, delays and throttles bytes, resets connections,
//! closes one direction, refuses connections. For Postgres it can also lose the answer to a commit. It counts the
//! effect of every fault, since a test of a fault that never fired proves nothing.
//!
//! Memory is bounded: a connection has one buffer for each direction, and further bytes stay with their sender. Bytes
//! are never altered or reordered: TCP does not do that either.

mod connection;
mod postgres;

pub use postgres::Counts;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// The direction that a fault applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the client to the server behind the proxy.
    ToServer,
    ToClient,
}

impl Way {
    pub const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];
}

/// The effects of faults on a connection, for counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkFault {
    /// Bytes arrived and were held.
    Stall,
    /// Bytes were forwarded late.
    Delay,
    /// Bytes were forwarded slowly.
    Throttle,
    /// A connection was reset.
    Cut,
    /// A connection was reset after a number of bytes.
    CutAfter,
    /// One direction of a connection was closed.
    HalfClose,
    /// A new connection was reset at once.
    Refuse,
    /// A commit was done, and its answer was lost.
    LostCommit,
}

/// The index of every effect in the counts.
const FAULTS: usize = NetworkFault::LostCommit as usize + 1;

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// The rules for all connections of a proxy.
struct Shared {
    rules: watch::Sender<Rules>,
    hits: [AtomicU64; FAULTS],
    /// How many more bytes may pass, by direction, until one connection is reset.
    budgets: Mutex<[Option<u64>; 2]>,
    /// How many answers of commits are still to be lost.
    commits_to_lose: Mutex<u64>,
    counts: Mutex<Counts>,
    open: AtomicUsize,
    speaks_postgres: bool,
}

/// The active rules. Cuts and half-closes are counters: a connection compares them with their values at its start.
#[derive(Clone, Debug)]
struct Rules {
    upstream: SocketAddr,
    refuses: bool,
    stalled: [bool; 2],
    delays: [Duration; 2],
    bytes_per_second: [Option<u64>; 2],
    cuts: u64,
    half_closes: [u64; 2],
}

impl Proxy {
    /// On a free loopback port, in front of the server at `upstream`.
    pub async fn start(upstream: SocketAddr) -> Proxy {
        Proxy::listen(upstream, false).await
    }

    /// In front of a Postgres, whose answers it parses to find those of commits. Without TLS.
    pub async fn postgres(upstream: SocketAddr) -> Proxy {
        Proxy::listen(upstream, true).await
    }

    async fn listen(upstream: SocketAddr, speaks_postgres: bool) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (rules, _) = watch::channel(Rules {
            upstream,
            refuses: false,
            stalled: [false; 2],
            delays: [Duration::ZERO; 2],
            bytes_per_second: [None; 2],
            cuts: 0,
            half_closes: [0; 2],
        });
        let shared = Arc::new(Shared {
            rules,
            hits: Default::default(),
            budgets: Mutex::default(),
            commits_to_lose: Mutex::default(),
            counts: Mutex::default(),
            open: AtomicUsize::new(0),
            speaks_postgres,
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Proxy {
            address,
            shared,
            server,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same URL through the proxy: the user, the password and the path stay.
    pub fn url(&self, behind: &str) -> String {
        let (scheme, rest) = behind.split_once("://").expect("a URL has a scheme");
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let user = authority.rsplit_once('@').map(|(user, _)| format!("{user}@"));
        format!("{scheme}://{}{}{path}", user.unwrap_or_default(), self.address)
    }

    /// Where new connections go from now on: a restarted server may have another port.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.change(|rules| rules.upstream = upstream);
    }

    /// Ends every lasting fault, and disarms those that have not fired. Held bytes are forwarded.
    pub fn heal(&self) {
        *self.shared.budgets() = [None; 2];
        *self.shared.commits_to_lose() = 0;
        self.change(|rules| {
            rules.refuses = false;
            rules.stalled = [false; 2];
            rules.delays = [Duration::ZERO; 2];
            rules.bytes_per_second = [None; 2];
        });
    }

    /// Holds all bytes until healed. The connection stays open, and the sender only sees a full buffer.
    pub fn stall(&self, ways: &[Way]) {
        self.change(|rules| ways.iter().for_each(|way| rules.stalled[*way as usize] = true));
    }

    /// Delays every piece of up to 16 KiB by this time, one after the other.
    pub fn delay(&self, ways: &[Way], by: Duration) {
        self.change(|rules| ways.iter().for_each(|way| rules.delays[*way as usize] = by));
    }

    pub fn throttle(&self, ways: &[Way], bytes_per_second: u64) {
        assert!(bytes_per_second > 0, "a way that lets nothing through is stalled");
        self.change(|rules| {
            ways.iter()
                .for_each(|way| rules.bytes_per_second[*way as usize] = Some(bytes_per_second));
        });
    }

    /// Resets all open connections. New ones are accepted.
    pub fn cut(&self) {
        self.change(|rules| rules.cuts += 1);
    }

    /// Resets one connection, once: the one that carries the last of so many bytes from now on.
    pub fn cut_after(&self, way: Way, bytes: u64) {
        self.shared.budgets()[way as usize] = Some(bytes);
    }

    /// Closes this direction of all open connections; bytes that are still sent in it are dropped. The other direction
    /// stays open.
    pub fn half_close(&self, way: Way) {
        self.change(|rules| rules.half_closes[way as usize] += 1);
    }

    /// Resets new connections at once, until healed. The port stays bound, so that no other process gets it.
    pub fn refuse(&self) {
        self.change(|rules| rules.refuses = true);
    }

    /// The server does the next so many commits, and their connections are reset before the answer.
    pub fn lose_commits(&self, count: u64) {
        assert!(self.shared.speaks_postgres, "only a proxy of Postgres knows a commit");
        *self.shared.commits_to_lose() = count;
    }

    /// How often the fault took effect: pieces that were held, delayed or slowed down; connections that were broken.
    pub fn hits(&self, fault: NetworkFault) -> u64 {
        self.shared.hits[fault as usize].load(Ordering::Relaxed)
    }

    /// The requests to a Postgres so far, over all connections.
    pub fn counts(&self) -> Counts {
        assert!(self.shared.speaks_postgres, "only a proxy of Postgres counts");
        *self.shared.counts()
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        self.shared.rules.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
        // Connections run on their own.
        self.cut();
    }
}

impl Shared {
    fn hit(&self, fault: NetworkFault) {
        self.hits[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn budgets(&self) -> std::sync::MutexGuard<'_, [Option<u64>; 2]> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commits_to_lose(&self) -> std::sync::MutexGuard<'_, u64> {
        self.commits_to_lose.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, more: Counts) {
        let mut counts = self.counts();
        counts.round_trips += more.round_trips;
        counts.commits += more.commits;
    }

    /// How many of these bytes may pass; if fewer than all, the connection ends after them.
    fn spend(&self, way: Way, bytes: usize) -> usize {
        let mut budgets = self.budgets();
        let Some(left) = budgets[way as usize] else {
            return bytes;
        };
        let passing = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
        if passing < bytes {
            budgets[way as usize] = None;
        } else {
            budgets[way as usize] = Some(left - bytes as u64);
        }
        passing
    }

    /// Whether the answer to the last parsed commit is to be lost.
    fn loses_commit(&self) -> bool {
        let mut left = self.commits_to_lose();
        let loses = *left > 0;
        *left = left.saturating_sub(1);
        loses
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of file descriptors for a moment: clients wait in the backlog.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let rules = shared.rules.subscribe();
        if rules.borrow().refuses {
            shared.hit(NetworkFault::Refuse);
            reset(&client);
            continue;
        }
        tokio::spawn(connection::carry(client, rules, Arc::clone(&shared)));
    }
}

/// Makes the peer see a reset, and not an orderly end, when the stream is dropped.
fn reset(stream: &TcpStream) {
    // Fails if the connection is closed already.
    let _ = stream.set_zero_linger();
}
