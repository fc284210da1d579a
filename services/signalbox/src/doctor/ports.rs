//! Ports: free for the services to listen on, or taken by Signalbox itself.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use runtime::Settings;
use tokio::net::TcpListener;

use super::{Check, Finding};
use crate::{endpoints::Endpoints, ports::listen_settings};

const TIMEOUT: Duration = Duration::from_secs(2);
/// A service is briefly not ready when its database is slow. Only a lasting state is a finding.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn examine(settings: &Settings, up: Option<&Endpoints>) -> Vec<Finding> {
    if let Some(up) = up {
        let mut findings = Vec::new();
        for (service, url) in [
            ("orchestrator", Some(&up.http_url)),
            ("tool-gateway", Some(&up.tool_gateway_url)),
            ("resolver", up.resolver_url.as_ref()),
            ("delivery", up.delivery_url.as_ref()),
        ] {
            let Some(url) = url else { continue };
            findings.push(running(service, url, is_ready(url).await));
        }
        return findings;
    }
    let wanted = match listen_settings(settings) {
        Ok(wanted) => wanted,
        Err(error) => return vec![Finding::failed(Check::Ports, error, "correct this setting")],
    };
    let mut findings = Vec::new();
    for (service, address) in wanted {
        findings.push(judge(service, address, look(address).await));
    }
    findings
}

async fn is_ready(url: &str) -> bool {
    for _ in 1..TRIES {
        if ask(url, "readyz").await {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    ask(url, "readyz").await
}

/// Whether a page answers with success.
async fn ask(url: &str, page: &str) -> bool {
    let Ok(client) = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build() else {
        return false;
    };
    let answer = client.get(format!("{}/{page}", url.trim_end_matches('/'))).send().await;
    answer.is_ok_and(|response| response.status().is_success())
}

fn running(service: &str, url: &str, is_ready: bool) -> Finding {
    if is_ready {
        return Finding::ok(Check::Running, format!("{service} is ready at {url}"));
    }
    Finding::problem(
        Check::Running,
        format!("{service} is not ready at {url}"),
        "is `signalbox up` still running? Its log is signalbox.log in the data directory",
    )
}

enum Port {
    Free,
    /// A server answers there like a health page.
    Ours,
    Taken,
    Unusable(std::io::Error),
}

async fn look(address: SocketAddr) -> Port {
    match TcpListener::bind(address).await {
        Ok(_) => Port::Free,
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if ask(&format!("http://{address}"), "healthz").await {
                Port::Ours
            } else {
                Port::Taken
            }
        }
        Err(error) => Port::Unusable(error),
    }
}

fn judge(service: &'static str, address: SocketAddr, port: Port) -> Finding {
    let fix = format!("set {}.listen to another address", service.replace('-', "_"));
    match port {
        Port::Free => Finding::ok(Check::Ports, format!("{address} is free for {service}")),
        Port::Ours => Finding::ok(
            Check::Ports,
            format!("{address} is in use by a service that is alive, for {service}"),
        ),
        Port::Taken => Finding::problem(
            Check::Ports,
            format!("{address} for {service} is taken by another program"),
            fix,
        ),
        Port::Unusable(error) => {
            let error = anyhow::Error::new(error).context(format!("{service} cannot listen on {address}"));
            Finding::failed(Check::Ports, error, fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tells_a_free_port_from_a_taken_one() {
        testkit::install_tls_provider();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The program at this port closes every connection.
        let other = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        assert!(judge("tool-gateway", address, look(address).await).is_problem());
        other.abort();
        let _ = other.await;
        assert!(!judge("tool-gateway", address, look(address).await).is_problem());
    }

    #[test]
    fn a_port_in_our_own_hands_is_no_problem() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8081));
        assert!(!judge("tool-gateway", address, Port::Ours).is_problem());
        let taken = serde_json::to_value(judge("tool-gateway", address, Port::Taken)).unwrap();
        assert_eq!(taken["fix"], "set tool_gateway.listen to another address");
    }
}
