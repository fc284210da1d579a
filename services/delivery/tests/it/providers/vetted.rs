//! A provider that must have a public address is connected to no other one, however its host is written. A listener
//! counts the connections; with the operator's permission the same forms reach it.

use std::net::{Ipv4Addr, Ipv6Addr};

use delivery::providers::{Driver, FailureClass, ProviderSettings, Sent};
use serde_json::json;

use super::stub::{Stub, whole};
use super::{called, message};

/// One address of each non-public range.
const PRIVATE: [Ipv4Addr; 24] = [
    Ipv4Addr::new(0, 0, 0, 0),
    Ipv4Addr::new(0, 1, 2, 3),
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 255, 255, 254),
    Ipv4Addr::new(100, 64, 0, 1),
    Ipv4Addr::new(100, 127, 255, 254),
    Ipv4Addr::new(127, 0, 0, 1),
    Ipv4Addr::new(127, 1, 2, 3),
    Ipv4Addr::new(127, 255, 255, 254),
    Ipv4Addr::new(169, 254, 1, 1),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(172, 16, 0, 1),
    Ipv4Addr::new(172, 31, 255, 254),
    Ipv4Addr::new(192, 0, 0, 8),
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 88, 99, 1),
    Ipv4Addr::new(192, 168, 0, 1),
    Ipv4Addr::new(198, 18, 0, 1),
    Ipv4Addr::new(198, 51, 100, 1),
    Ipv4Addr::new(203, 0, 113, 1),
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::new(239, 255, 255, 250),
    Ipv4Addr::new(240, 0, 0, 1),
    Ipv4Addr::new(255, 255, 255, 255),
];

const PRIVATE_V6: [&str; 14] = [
    "::",
    "::1",
    "100::1",
    "64:ff9b:1::1",
    "2001::1",
    "2001:10::1",
    "2001:db8::1",
    "3fff::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "0:0:0:0:0:0:0:1",
];

/// The spellings of one IPv4 address as the host of a URL.
fn spellings(ip: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = ip.octets();
    let whole = u32::from(ip);
    let wide: String = ip
        .to_string()
        .chars()
        .map(|c| {
            if c == '.' {
                '\u{3002}'
            } else {
                char::from_u32(u32::from(c) - 48 + 0xff10).unwrap()
            }
        })
        .collect();
    let v6 = |network: u128| format!("[{}]", Ipv6Addr::from(network));
    let last = u128::from(whole);
    vec![
        ip.to_string(),
        format!("{ip}."),
        format!("{whole}"),
        format!("{whole}."),
        format!("0x{whole:x}"),
        format!("0X{whole:X}"),
        format!("0{whole:o}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("{a}.0x{b:X}.0{c:o}.{d}"),
        format!("{a}.{}", whole & 0xff_ffff),
        format!("{a}.{b}.{}", whole & 0xffff),
        format!("000{a:o}.{b}.{c}.{d}"),
        ip.to_string().replacen('.', "%2E", 1),
        format!("%3{}{}", a.to_string().chars().next().unwrap(), &ip.to_string()[1..]),
        wide,
        ip.to_string().replace('.', "\u{ff0e}"),
        ip.to_string().replace('.', "\u{ff61}"),
        v6(0xffff << 32 | last),                                       // mapped
        v6(last | 1 << 33),                                            // translated
        v6(last),                                                      // compatible
        v6(0x0064_ff9b << 96 | last),                                  // NAT64
        v6(0x2002 << 112 | last << 80),                                // 6to4
        v6(0x2001 << 112 | 0x0808_0808 << 64 | (!last & 0xffff_ffff)), // Teredo
        format!("[::ffff:{ip}]"),
        format!("[::{ip}]"),
        format!("[::FFFF:{:X}:{:X}]", whole >> 16, whole & 0xffff),
    ]
}

fn settings(scheme: &str, host: &str, port: u16, private: bool) -> Result<ProviderSettings, String> {
    let settings = json!({"kind": "openresponses", "url": format!("{scheme}://{host}:{port}/v1/responses"), "model": "m",
        "private_addresses": private, "connect_timeout_ms": 2000, "api_key": "k-1"});
    serde_json::from_value(settings).map_err(|error| error.to_string())
}

#[tokio::test]
async fn no_form_of_a_host_reaches_an_address_that_is_not_public() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let stub = Stub::start([]).await;
    let port = stub.address().port();
    let mut forms: Vec<String> = PRIVATE.iter().flat_map(|ip| spellings(*ip)).collect();
    forms.extend(PRIVATE_V6.iter().map(|ip| format!("[{ip}]")));
    forms.extend(["[::1%25lo]", "[fe80::1%25eth0]", "[0000:0000::0001]", "[::0:1]"].map(str::to_owned));
    // Names, whose addresses only the resolver knows.
    let names = [
        "localhost",
        "LOCALHOST",
        "LocalHost",
        "localhost.",
        "l\u{1d0f}calhost",
        "%6cocalhost",
        "ip6-localhost",
        "ｌocalhost",
    ];
    forms.extend(names.map(str::to_owned));
    // Hosts hidden behind a user name, credentials in the URL, and unsupported schemes.
    let hidden = [
        "8.8.8.8@127.0.0.1",
        "a:b@127.0.0.1",
        "8.8.8.8%40127.0.0.1",
        "a:b@8.8.8.8",
    ];
    forms.extend(hidden.map(str::to_owned));
    assert!(forms.len() >= 300, "{}", forms.len());

    let (mut refused_in_settings, mut refused_at_the_call) = (0, 0);
    for form in &forms {
        for scheme in ["http", "https"] {
            let Ok(settings) = settings(scheme, form, port, false) else {
                refused_in_settings += 1;
                continue;
            };
            let host = settings.url.host_str().unwrap();
            assert!(
                host.parse::<std::net::IpAddr>().is_err(),
                "{form}: an address was not refused"
            );
            let driver = Driver::new(&settings).unwrap();
            let error = called(&driver, &message("m")).await.0.expect_err(form);
            assert_eq!(
                (error.class, error.sent),
                (FailureClass::Refused, Sent::No),
                "{form}: {error}"
            );
            refused_at_the_call += 1;
        }
    }
    // A backslash ends the host, both for the check and for the connection: they share one parser.
    let backslash = settings("http", "8.8.8.8\\@127.0.0.1", port, false).unwrap();
    assert_eq!(backslash.url.host_str(), Some("8.8.8.8"));
    for scheme in ["ftp", "file", "gopher", "ws", "unix", "javascript", "data"] {
        assert!(settings(scheme, "8.8.8.8", port, false).is_err(), "{scheme}");
    }
    assert_eq!(stub.counts().connections, 0);
    assert!(
        refused_in_settings >= 600 && refused_at_the_call >= 4,
        "{refused_in_settings} {refused_at_the_call}"
    );
    println!(
        "{} forms: {refused_in_settings} refused in settings, {refused_at_the_call} at the call",
        forms.len()
    );

    // The listener would have counted it.
    let mut seen = 0;
    for form in spellings(Ipv4Addr::LOCALHOST)
        .iter()
        .take(18)
        .map(String::as_str)
        .chain(["localhost", "LOCALHOST"])
    {
        let Ok(settings) = settings("http", form, port, true) else {
            continue;
        };
        let _ = called(&Driver::new(&settings).unwrap(), &message("m")).await;
        seen += 1;
        stub.until(|counts| counts.connections >= seen).await;
    }
    assert!(seen >= 15, "{seen}");
}

/// No address in an answer is followed, and no other server gets the credential, with or without the address check.
#[tokio::test]
async fn no_redirect_is_followed() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let elsewhere = Stub::start([]).await;
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let location = format!("Location: http://{}/v1/responses\r\n", elsewhere.address());
        let stub = Stub::start([vec![whole(status, "text/plain", &location, "")]]).await;
        let settings = settings("http", "127.0.0.1", stub.address().port(), true).unwrap();
        let error = called(&Driver::new(&settings).unwrap(), &message("m")).await.0;
        assert_eq!(error.expect_err(status).class, FailureClass::BadRequest, "{status}");
        assert_eq!(stub.counts().connections, 1);
        assert_eq!(stub.seen()[0].header("authorization"), Some("Bearer k-1"), "{status}");
    }
    assert_eq!(elsewhere.counts().connections, 0);
}
