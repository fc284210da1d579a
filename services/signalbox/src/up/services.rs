//! The four services in one process. Each has its role's pool, its own connection to the bus and its own relay, as in a process of
//! its own. They share the shutdown.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use runtime::{Context, Settings, Shutdown, http::local_url};
use storage::Role;
use tokio::time::{Instant, sleep};

const READY_LIMIT: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The bound addresses.
pub(super) struct Services {
    pub(super) orchestrator: SocketAddr,
    pub(super) tool_gateway: SocketAddr,
    pub(super) resolver: SocketAddr,
    pub(super) delivery: SocketAddr,
}

impl Services {
    /// Starts the services and waits until each is ready.
    pub(super) async fn start(
        settings_of: impl Fn(Role) -> Arc<Settings>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Services> {
        let context = async |role: Role| Context::connect(role, settings_of(role), shutdown.clone()).await;
        let failed = |role: Role| format!("{} could not start", role.service());
        // The service that clients call first starts last.
        let tool_gateway = tool_gateway::start(context(Role::ToolGateway).await?).await;
        let delivery = delivery::start(context(Role::Delivery).await?).await;
        let resolver = resolver::start(context(Role::Resolver).await?).await;
        let orchestrator = orchestrator::start(context(Role::Orchestrator).await?).await;
        let services = Services {
            tool_gateway: tool_gateway.with_context(|| failed(Role::ToolGateway))?,
            delivery: delivery.with_context(|| failed(Role::Delivery))?,
            resolver: resolver.with_context(|| failed(Role::Resolver))?,
            orchestrator: orchestrator.with_context(|| failed(Role::Orchestrator))?,
        };
        services.wait_until_ready().await?;
        Ok(services)
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let client = reqwest::Client::builder().no_proxy().timeout(ANSWER_LIMIT).build()?;
        let deadline = Instant::now() + READY_LIMIT;
        for (service, address) in [
            ("tool-gateway", self.tool_gateway),
            ("delivery", self.delivery),
            ("resolver", self.resolver),
            ("orchestrator", self.orchestrator),
        ] {
            let url = format!("{}/readyz", local_url(address));
            loop {
                let answer = client.get(&url).send().await;
                if answer.is_ok_and(|response| response.status().is_success()) {
                    break;
                }
                if Instant::now() > deadline {
                    bail!("{service} was not ready within {} s", READY_LIMIT.as_secs());
                }
                sleep(ASK_EVERY).await;
            }
        }
        Ok(())
    }
}
