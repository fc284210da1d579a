//! A TCP proxy on loopback between any two, which does to their bytes what a bad network does: holds them, delays them,
//! sends them slowly, breaks the connection, closes half of it, lets nobody in. For Postgres it can also lose the answer
//! of a commit. What each fault really hit is counted, since a fault that never fired has shown nothing.
//!
//! Memory is bounded: a connection holds one buffer a way, and what does not fit stays with its sender. Bytes are never
//! altered or reordered: TCP does not do that either.

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

/// Which bytes a fault is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From whoever connected to the server behind the proxy.
    ToServer,
    ToClient,
}

impl Way {
    pub const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];
}

/// What the proxy can do to a connection, for counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkFault {
    /// Bytes arrived and were held.
    Stall,
    /// Bytes were sent on later.
    Delay,
    /// Bytes were sent on slowly.
    Throttle,
    /// A connection was reset.
    Cut,
    /// A connection was reset after a number of bytes.
    CutAfter,
    /// One way of a connection was closed.
    HalfClose,
    /// A new connection was reset at once.
    Refuse,
    /// A commit was done, and nobody was told.
    LostCommit,
}

/// The place of every fault in the counts.
const FAULTS: usize = NetworkFault::LostCommit as usize + 1;

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// What all connections of a proxy follow.
struct Shared {
    rules: watch::Sender<Rules>,
    hits: [AtomicU64; FAULTS],
    /// How many more bytes may pass, by way, until one connection is cut.
    budgets: Mutex<[Option<u64>; 2]>,
    /// How many answers of commits are still to be lost.
    commits_to_lose: Mutex<u64>,
    counts: Mutex<Counts>,
    open: AtomicUsize,
    speaks_postgres: bool,
}

/// What holds now. Cuts and half-closes are counted up: a connection compares with what it began with.
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

    /// In front of a Postgres, whose answers it reads, to find those of commits. Without TLS.
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

    /// The same URL by way of the proxy: the user, the password and the path stay.
    pub fn url(&self, behind: &str) -> String {
        let (scheme, rest) = behind.split_once("://").expect("a URL has a scheme");
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let user = authority.rsplit_once('@').map(|(user, _)| format!("{user}@"));
        format!("{scheme}://{}{}{path}", user.unwrap_or_default(), self.address)
    }

    /// Where new connections go from now on: a server that was started again may have another port.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.change(|rules| rules.upstream = upstream);
    }

    /// Ends every fault that lasts, and disarms what has not hit yet. What was held goes on.
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

    /// Holds what comes, until healed. The connection stays open, and whoever sends sees no more than a full buffer.
    pub fn stall(&self, ways: &[Way]) {
        self.change(|rules| ways.iter().for_each(|way| rules.stalled[*way as usize] = true));
    }

    /// Every piece of up to 16 KiB waits so long, one after the other.
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

    /// Resets all connections that are open now. New ones are let in.
    pub fn cut(&self) {
        self.change(|rules| rules.cuts += 1);
    }

    /// Resets a connection, once: the one that carries the last of so many bytes from now on.
    pub fn cut_after(&self, way: Way, bytes: u64) {
        self.shared.budgets()[way as usize] = Some(bytes);
    }

    /// Says to the end of that way that no more comes, on all connections that are open now; what is still sent that way
    /// is dropped. The other way stays open.
    pub fn half_close(&self, way: Way) {
        self.change(|rules| rules.half_closes[way as usize] += 1);
    }

    /// Resets new connections at once, until healed. The port stays taken: nobody else may get it meanwhile.
    pub fn refuse(&self) {
        self.change(|rules| rules.refuses = true);
    }

    /// The next so many commits are done by the server, and their connections are reset before anybody is told.
    pub fn lose_commits(&self, count: u64) {
        assert!(self.shared.speaks_postgres, "only a proxy of Postgres knows a commit");
        *self.shared.commits_to_lose() = count;
    }

    /// How often the fault really hit: pieces that were held, delayed or slowed down; connections that were broken.
    pub fn hits(&self, fault: NetworkFault) -> u64 {
        self.shared.hits[fault as usize].load(Ordering::Relaxed)
    }

    /// What was asked of a Postgres so far, over all connections.
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
        // Connections have lives of their own.
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

    /// How many of these bytes may pass; fewer than there are means that the connection ends behind them.
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

    /// Whether the answer of the commit that was just read is to be lost.
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
            // Out of files, for a moment: whoever connects waits in the backlog.
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

/// Lets the other end see a broken connection, and not an orderly end, when the stream is dropped.
fn reset(stream: &TcpStream) {
    // An error means that the connection is gone already.
    let _ = stream.set_zero_linger();
}
