//! Restricts the addresses of outgoing connections whose URL a user configured. A provider with `private_addresses =
//! false` is only ever connected to at a public address. The client's own resolver looks names up, so that the vetted
//! address is the connected one and DNS rebinding has no effect. Hosts that are addresses, in whatever form, never
//! reach a resolver and are vetted with the settings. Redirects are never followed. [`credential`] removes the credential from the
//! answers.

pub mod credential;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Url};

/// A client that follows no redirect, retries nothing by itself and, without `private_addresses`, connects to public
/// addresses only.
pub fn client(private_addresses: bool) -> ClientBuilder {
    let builder = Client::builder()
        .user_agent(concat!("signalbox/", env!("CARGO_PKG_VERSION")))
        // A redirect would carry the credential and the prompt to an address that is not configured.
        .redirect(reqwest::redirect::Policy::none())
        // The caller decides about retries.
        .retry(reqwest::retry::never());
    if private_addresses {
        return builder;
    }
    // A proxy of the environment would look names up itself, without vetting them.
    builder.dns_resolver(Arc::new(PublicOnly(look_up))).no_proxy()
}

/// Returns the public addresses of a name.
struct PublicOnly<L>(L);

/// Looks a name up as the system does. The client adds the port.
async fn look_up(name: Name) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.collect())
}

impl<L, F> Resolve for PublicOnly<L>
where
    L: Fn(Name) -> F + Send + Sync,
    F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
{
    fn resolve(&self, name: Name) -> Resolving {
        let found = (self.0)(name);
        Box::pin(async move {
            let public = public_among(found.await?)?;
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

fn public_among(mut found: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    found.retain(|address| is_public(address.ip()));
    if found.is_empty() {
        let why = "the name has no public address, and private_addresses is false";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(found)
}

/// False for a host that is a non-public address, or one of the names that always stand for this machine. The URL's parser has normalised the address, whether it was written
/// in octal, as one number, with a trailing dot or in wide digits.
pub fn host_may_be_public(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = bare.trim_end_matches('.');
    let is_local = name == "localhost" || name.ends_with(".localhost");
    !is_local && bare.parse().map_or(true, is_public)
}

/// Whether the address belongs to the public internet. An address that embeds another address does not: its destination
/// depends on machines in between.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let within = |network: [u8; 4], bits: u32| {
        let mask = u32::MAX << (32 - bits);
        u32::from(ip) & mask == u32::from(Ipv4Addr::from(network))
    };
    let reserved = within([0, 0, 0, 0], 8) // this network
        || within([10, 0, 0, 0], 8) // private
        || within([100, 64, 0, 0], 10) // behind a carrier's NAT
        || within([127, 0, 0, 0], 8) // loopback
        || within([169, 254, 0, 0], 16) // link-local, and what clouds tell their machines
        || within([172, 16, 0, 0], 12) // private
        || within([192, 0, 0, 0], 24) // protocols
        || within([192, 0, 2, 0], 24) // documentation
        || within([192, 88, 99, 0], 24) // relays of 6to4
        || within([192, 168, 0, 0], 16) // private
        || within([198, 18, 0, 0], 15) // measurements
        || within([198, 51, 100, 0], 24) // documentation
        || within([203, 0, 113, 0], 24) // documentation
        || within([224, 0, 0, 0], 3); // multicast, reserved, broadcast
    !reserved
}

/// Only the range that is allocated for public use, without the parts that embed IPv4 or are for documentation. All
/// other ranges, such as ::/8 (loopback, mapped and compatible IPv4), 64:ff9b::/96 (NAT64), fc00::/7, fe80::/10 and
/// ff00::/8, lie outside of it.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let within = |network: u128, bits: u32| u128::from(ip) >> (128 - bits) == network >> (128 - bits);
    within(0x2000 << 112, 3)
        && !within(0x2001 << 112, 23) // protocols, Teredo among them
        && !within(0x2001_0db8 << 96, 32) // documentation
        && !within(0x2002 << 112, 16) // 6to4
        && !within(0x3fff << 112, 20) // documentation
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use reqwest::Client;

    use super::*;

    fn check(ip: &str, public: bool) {
        assert_eq!(is_public(ip.parse().unwrap()), public, "{ip}");
    }

    #[test]
    fn the_edges_of_every_range() {
        for ip in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::",
            "2001:200::",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700::1111",
            "3fff:1000::",
            "3ffe::1",
        ] {
            check(ip, true);
        }
        for ip in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.169.254",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.0",
            "192.88.99.255",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.0",
            "203.0.113.255",
            "224.0.0.0",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "1fff:ffff::",
            "2001::1",
            "2001:1ff:ffff::",
            "2001:db8::1",
            "2002:808:808::1",
            "3fff::1",
            "3fff:fff:ffff::",
            "4000::",
            "5f00::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "ffff::1",
        ] {
            check(ip, false);
        }
    }

    /// A name whose addresses change is vetted at each lookup, and of mixed addresses the public ones are taken.
    #[test]
    fn of_what_a_name_says_only_the_public_is_taken() {
        let among = |found: &[&str]| public_among(found.iter().map(|text| text.parse().unwrap()).collect());
        assert_eq!(
            among(&["10.0.0.1:0", "8.8.8.8:0", "[::1]:0"]).unwrap(),
            ["8.8.8.8:0".parse().unwrap()]
        );
        for private in [
            &["127.0.0.1:0"][..],
            &["10.0.0.1:0", "[fe80::1]:0"],
            &["[::ffff:127.0.0.1]:0"],
            &[],
        ] {
            assert_eq!(among(private).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }

    /// DNS rebinding: a name that is public at the first lookup, and local from then on. Every connection looks it up
    /// again, and gets a vetted address.
    #[tokio::test]
    async fn dns_rebinding_reaches_no_private_address() {
        testkit::install_tls_provider();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let ours = listener.local_addr().unwrap();
        // Public, and not assigned.
        let unassigned: SocketAddr = "[2000::1]:0".parse().unwrap();
        let looks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&looks);
        let rebinding = move |_: Name| {
            let look = count.fetch_add(1, Ordering::Relaxed);
            async move { Ok(if look == 0 { vec![ours, unassigned] } else { vec![ours] }) }
        };
        let client = |resolver: Arc<dyn Resolve>| {
            let client = Client::builder().no_proxy().dns_resolver(resolver);
            client.connect_timeout(Duration::from_millis(200)).build().unwrap()
        };
        let url = format!("http://rebound.example:{}/", ours.port());
        let vetted = client(Arc::new(PublicOnly(rebinding)));
        for _ in 0..3 {
            assert!(vetted.get(&url).send().await.unwrap_err().is_connect());
        }
        assert_eq!(looks.load(Ordering::Relaxed), 3);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);

        // The listener would have seen a connection.
        struct Unvetted(SocketAddr);
        impl Resolve for Unvetted {
            fn resolve(&self, _: Name) -> Resolving {
                let found = vec![self.0];
                Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
            }
        }
        let unvetted = client(Arc::new(Unvetted(ours)));
        let waiting = unvetted.get(&url).timeout(Duration::from_millis(200)).send();
        assert!(waiting.await.unwrap_err().is_timeout());
        listener.accept().expect("it was connected to");
    }
}
