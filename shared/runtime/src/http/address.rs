//! The limits of one client address: its connections and its request rate. They apply before authentication, so that
//! guessing keys does not cost a database lookup for each guess.
//!
//! Loopback is not limited: its requests come from this machine, or from a proxy whose clients all share its address.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    Problem,
    buckets::{Buckets, Rate},
    share::{Held, Shared},
};
use crate::settings::HttpSettings;

/// The number of buckets; 24 bytes each.
const ADDRESSES_MAX: usize = 65_536;

/// The peer address of a request's connection. Set on every request of a real connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// The unit of the limits: an IPv4 address, or the IPv6 network that one household or machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source(IpAddr);

impl Source {
    fn of(peer: SocketAddr) -> Option<Source> {
        match peer.ip().to_canonical() {
            ip if ip.is_loopback() => None,
            IpAddr::V4(ip) => Some(Source(IpAddr::V4(ip))),
            IpAddr::V6(ip) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                Some(Source(IpAddr::V6(Ipv6Addr::from(network))))
            }
        }
    }
}

/// The divisor for requests with unknown keys: each costs a lookup in the database, on the few connections that all
/// callers share.
const UNKNOWN_KEYS_PART: u32 = 10;

/// The request rate of an address.
#[derive(Debug)]
pub(super) struct Pace(Buckets);

impl Pace {
    pub(super) fn new(settings: &HttpSettings) -> Pace {
        Pace::part(settings, 1)
    }

    /// The request rate of an address with unknown keys.
    pub(super) fn of_unknown_keys(settings: &HttpSettings) -> Pace {
        Pace::part(settings, UNKNOWN_KEYS_PART)
    }

    fn part(settings: &HttpSettings, part: u32) -> Pace {
        let rate = Rate {
            per_second: settings.address_requests_per_second.get().div_ceil(part),
            burst: settings.address_requests_burst.get().div_ceil(part),
        };
        Pace(Buckets::new(rate, ADDRESSES_MAX, Instant::now()))
    }

    pub(super) fn admit(&self, peer: SocketAddr, now: Instant) -> Result<(), Problem> {
        let Some(source) = Source::of(peer) else { return Ok(()) };
        self.0.take(&source, now).map_err(|wait| {
            super::refused("address");
            Problem::too_many_requests(wait).detail("too many requests from this address")
        })
    }
}

pub(super) async fn in_pace(State(pace): State<Arc<Pace>>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    match peer.map_or(Ok(()), |Peer(peer)| pace.admit(peer, Instant::now())) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The connections of each address, those of loopback included.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Shared<Option<Source>>>);

impl Connections {
    pub(super) fn new(settings: &HttpSettings) -> Connections {
        let each_max = settings.address_connections_max.usize();
        Connections(Shared::new(settings.connections_max.usize(), each_max, |_| ()))
    }

    /// None when the address holds as many connections as it may. The more the others hold, the fewer it may have.
    pub(super) fn hold(&self, peer: SocketAddr) -> Option<Held<Option<Source>>> {
        let source = Source::of(peer);
        if source.is_none() {
            return Some(self.0.take_anyway(&source, 1));
        }
        let held = self.0.take(&source, 1);
        if held.is_none() {
            super::refused("connections");
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Count;

    fn settings() -> HttpSettings {
        HttpSettings {
            address_requests_per_second: Count::new(1),
            address_requests_burst: Count::new(2),
            address_connections_max: Count::new(2),
            ..HttpSettings::default()
        }
    }

    fn peer(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_refused_for_a_while_and_others_are_not() {
        let (pace, now) = (Pace::new(&settings()), Instant::now());
        let admitted = |text: &str, seconds: u64| pace.admit(peer(text), now + Duration::from_secs(seconds)).is_ok();
        assert!(admitted("203.0.113.9:1000", 0) && admitted("203.0.113.9:1001", 0));
        assert!(!admitted("203.0.113.9:1002", 0));
        assert!(
            !admitted("[::ffff:203.0.113.9]:1", 0),
            "the same address in another form"
        );
        assert!(admitted("203.0.113.10:1000", 0));
        assert!(admitted("203.0.113.9:1003", 1) && !admitted("203.0.113.9:1004", 1));
        assert!(admitted("[2001:db8:1:2::1]:1", 0) && admitted("[2001:db8:1:2::2]:1", 0));
        assert!(!admitted("[2001:db8:1:2:ffff::3]:1", 0), "one network is one");
        assert!(admitted("[2001:db8:1:3::1]:1", 0));
        for _ in 0..100 {
            assert!(admitted("127.0.0.1:1", 0) && admitted("[::1]:1", 0), "loopback");
        }
    }

    #[test]
    fn an_address_holds_so_many_connections_and_no_more() {
        let connections = Connections::new(&settings());
        let hold = |text: &str| connections.hold(peer(text));
        let (first, second) = (hold("203.0.113.9:1"), hold("203.0.113.9:2"));
        assert!(first.is_some() && second.is_some() && hold("203.0.113.9:3").is_none());
        assert!(hold("203.0.113.10:1").is_some());
        drop(first);
        assert!(hold("203.0.113.9:4").is_some(), "a place that was given back");
        drop(second);
        assert_eq!(connections.0.all(), 0);
    }

    /// Four addresses that hold as many connections as they may, one after the other.
    #[test]
    fn a_few_addresses_do_not_hold_all_connections() {
        let settings = HttpSettings {
            connections_max: Count::new(1024),
            address_connections_max: Count::new(256),
            ..HttpSettings::default()
        };
        let connections = Connections::new(&settings);
        let held: Vec<Vec<_>> = (1..=4)
            .map(|n| std::iter::from_fn(|| connections.hold(peer(&format!("203.0.113.{n}:1")))).collect())
            .collect();
        let each: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(each, [256, 192, 144, 108]);
        assert!(connections.hold(peer("203.0.113.5:1")).is_some());
        assert!(connections.hold(peer("127.0.0.1:1")).is_some());
        drop(held);
        assert_eq!(connections.0.all(), 0);
    }
}
