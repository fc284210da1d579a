//! The listen addresses of the four services under `up`. The API has its documented port by default, and a taken port refuses the
//! start with a line that names the fix. The others use their default port if it is free, else any free port.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

use anyhow::{Context, bail};
use delivery::settings::DeliverySettings;
use orchestrator::OrchestratorSettings;
use resolver::settings::ResolverSettings;
use runtime::{Settings, SettingsError};
use tool_gateway::ToolGatewaySettings;

const ANY_FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const BY: &str = "signalbox up";

/// The listen address of each service by the settings.
pub(crate) fn listen_settings(settings: &Settings) -> Result<Vec<(&'static str, SocketAddr)>, SettingsError> {
    Ok(vec![
        (
            "orchestrator",
            settings.section::<OrchestratorSettings>("orchestrator")?.listen,
        ),
        (
            "tool-gateway",
            settings.section::<ToolGatewaySettings>("tool_gateway")?.listen,
        ),
        ("resolver", settings.section::<ResolverSettings>("resolver")?.listen),
        ("delivery", settings.section::<DeliverySettings>("delivery")?.listen),
    ])
}

/// Chooses the addresses that the settings leave open, and checks before any start that the API's port is free. With port 0 for the
/// API other instances are expected, so its neighbours take any free port too.
pub(crate) fn choose(settings: &mut Settings, http: Option<SocketAddr>) -> anyhow::Result<()> {
    if let Some(http) = http {
        settings.set("orchestrator.listen", &http.to_string(), BY)?;
    }
    let addresses = listen_settings(settings)?;
    let api = addresses[0].1;
    refuse_taken(api)?;
    for (service, documented) in &addresses[1..] {
        let setting = format!("{}.listen", service.replace('-', "_"));
        if settings.is_set(&setting) {
            continue;
        }
        // The tool-gateway's port is documented; those of resolver and delivery are not.
        let keeps = *service == "tool-gateway" && api.port() != 0 && TcpListener::bind(documented).is_ok();
        if !keeps {
            settings.set(&setting, &ANY_FREE.to_string(), BY)?;
        }
    }
    Ok(())
}

fn refuse_taken(api: SocketAddr) -> anyhow::Result<()> {
    match TcpListener::bind(api) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!(
                "{api} is taken by another program: choose another with --http ADDR, or any free one with --http 127.0.0.1:0"
            )
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {api}: choose another with --http ADDR")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes, network policies and other services' URLs name these ports.
    #[test]
    fn pods_listen_where_they_are_looked_for() {
        let toml = include_str!("../../../deploy/k8s/base/signalbox.toml");
        let settings = Settings::load_from(toml, [("SIGNALBOX__NATS__LIMITS__REPLICAS", "3")]).unwrap();
        let expected = [
            ("orchestrator", 8080),
            ("tool-gateway", 8081),
            ("resolver", 8082),
            ("delivery", 8083),
        ];
        let expected = expected.map(|(service, port)| (service, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))));
        assert_eq!(listen_settings(&settings).unwrap(), expected);
    }

    fn chosen(toml: &str, http: Option<&str>) -> anyhow::Result<Vec<(&'static str, SocketAddr)>> {
        let none: [(&str, &str); 0] = [];
        let mut settings = Settings::load_from(toml, none).unwrap();
        choose(&mut settings, http.map(|http| http.parse().unwrap()))?;
        Ok(listen_settings(&settings)?)
    }

    #[test]
    fn a_port_that_was_set_stays() {
        let toml = "[tool_gateway]\nlisten = \"127.0.0.1:19081\"\n[resolver]\nlisten = \"127.0.0.1:19082\"\n";
        let ports: Vec<u16> = chosen(toml, Some("127.0.0.1:0"))
            .unwrap()
            .iter()
            .map(|(_, at)| at.port())
            .collect();
        assert_eq!(ports, [0, 19_081, 19_082, 0]);
    }

    #[test]
    fn a_taken_port_is_refused_with_what_to_do() {
        let taken = TcpListener::bind(ANY_FREE).unwrap();
        let address = taken.local_addr().unwrap();
        let refused = chosen("", Some(&address.to_string())).unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!("{address} is taken by another program")),
            "{refused}"
        );
        assert!(refused.contains("--http 127.0.0.1:0"), "{refused}");
    }
}
