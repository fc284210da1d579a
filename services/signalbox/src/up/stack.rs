//! The servers below the services: NATS and Postgres, started here if the settings name none, and the demo agent if the settings
//! name no provider.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail};
use contracts::Root;
use devstack::{DemoAgent, Devstack, DevstackOptions, Durability, NatsUsers};
use messaging::{User, users};
use runtime::{Settings, SettingsError};
use tokio::time::sleep;

use super::secrets;

const BY: &str = "signalbox up";
/// Interval of checking our own servers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Stack {
    servers: Devstack,
    agent: Option<DemoAgent>,
    pub(super) own: Own,
}

/// The servers that `up` started; the others come from the settings.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) nats: bool,
    pub(super) postgres: bool,
    pub(super) agent: bool,
}

impl Stack {
    /// Locks the data directory for this process, starts missing servers, and writes their addresses into the settings.
    pub(super) async fn start(data_dir: &Path, settings: &mut Settings) -> anyhow::Result<Stack> {
        let own = Own {
            nats: !settings.is_set("nats.url"),
            postgres: !settings.is_set("database.url"),
            agent: !settings.is_set("providers.default.url"),
        };
        let nats_users = if own.nats {
            Some(nats_users(data_dir, settings)?)
        } else {
            None
        };
        let servers = Devstack::start(DevstackOptions {
            data_dir: data_dir.to_owned(),
            durability: Durability::Durable,
            nats_users,
            start_nats: own.nats,
            start_postgres: own.postgres,
        })
        .await?;
        if let Some(url) = servers.nats_url() {
            settings.set("nats.url", url, BY)?;
        }
        if let Some(url) = servers.database_url() {
            settings.set("database.url", url, BY)?;
        }
        let agent = if own.agent {
            let agent = DemoAgent::start(([127, 0, 0, 1], 0).into()).await;
            let agent = agent.context("the demo agent could not start")?;
            provider(settings, &agent.url())?;
            Some(agent)
        } else {
            provider_complete(settings)?;
            None
        };
        Ok(Stack { servers, agent, own })
    }

    /// NATS settings for this user: our own server has a password for each.
    pub(super) fn settings_of(&self, user: User, settings: &Settings) -> Result<Settings, SettingsError> {
        let mut settings = settings.clone();
        if let Some(url) = self.servers.nats_url_of(user.name()) {
            settings.set("nats.url", &url, BY)?;
            settings.set("nats.inbox_prefix", &users::inbox_prefix(user), BY)?;
        }
        Ok(settings)
    }

    /// The demo agent's address, if it runs.
    pub(super) fn agent_url(&self) -> Option<String> {
        self.agent.as_ref().map(DemoAgent::url)
    }

    /// Returns only when one of our own servers has ended by itself.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        loop {
            match self.look() {
                Ok(()) => sleep(LOOK_EVERY).await,
                Err(error) => return error,
            }
        }
    }

    fn look(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.servers.nats().map_or(Ok(None), |nats| nats.ended())? {
            bail!("nats-server has ended ({status}): its log is nats/nats-server.log in the data directory");
        }
        if let Some(status) = self.servers.postgres().map_or(Ok(None), |postgres| postgres.ended())? {
            bail!("Postgres has ended ({status}): its log is postgres/postgres.log in the data directory");
        }
        Ok(())
    }

    /// Stops our servers; all data is written.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        if let Some(agent) = self.agent {
            agent.stop().await;
        }
        self.servers.stop().await
    }
}

/// The users of our own server, and the keys of its callout, made if the settings have none.
fn nats_users(data_dir: &Path, settings: &mut Settings) -> anyhow::Result<NatsUsers> {
    const SEEDS: [&str; 2] = ["orchestrator.callout_issuer_seed", "orchestrator.callout_xkey_seed"];
    if !SEEDS.iter().any(|seed| settings.is_set(seed)) {
        let (issuer, xkey) = secrets::callout_seeds(data_dir)?;
        settings.set(SEEDS[0], &issuer, BY)?;
        settings.set(SEEDS[1], &xkey, BY)?;
    }
    let issuer = orchestrator::nats::issuer(&settings.section("orchestrator")?)?;
    let (issuer, xkey) = issuer.expect("the seeds were set").public_keys();
    let root = Root::parse(&settings.nats.root).expect("checked when the settings were read");
    let keys = format!(
        "{}: \"{issuer}\"\n{}: \"{xkey}\"\n",
        users::ISSUER_VARIABLE,
        users::XKEY_VARIABLE
    );
    Ok(NatsUsers {
        config: keys + &users::accounts(&root) + &users::callout(&root),
        account: Some(users::jetstream_account(&root)),
        names: User::ALL
            .map(|user| (user.name().to_owned(), users::password_variable(user)))
            .into(),
    })
}

/// Provider `default` is the demo agent. Its memory ends with this process.
fn provider(settings: &mut Settings, url: &str) -> Result<(), SettingsError> {
    settings.set("providers.default.kind", "openresponses", BY)?;
    settings.set("providers.default.url", url, BY)?;
    settings.set("providers.default.model", "demo", BY)?;
    settings.set("providers.default.thread", "process", BY)
}

/// Completes an entry that has only a URL.
fn provider_complete(settings: &mut Settings) -> Result<(), SettingsError> {
    let model = if settings.is_set("providers.default.gateway_agent") {
        "openclaw"
    } else {
        "default"
    };
    if !settings.is_set("providers.default.model") {
        settings.set("providers.default.model", model, BY)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use delivery::providers::{Continuation, ProviderKind, ProviderSettings};

    use super::*;

    #[test]
    fn a_url_is_enough_for_a_provider() {
        let completed = |variables: &[(&str, &str)]| -> Result<ProviderSettings, SettingsError> {
            let mut settings = Settings::load_from("", variables.iter().copied())?;
            provider_complete(&mut settings)?;
            let mut providers: BTreeMap<String, ProviderSettings> = settings.section("providers")?;
            Ok(providers.remove("default").expect("it was set"))
        };
        let url = ("SIGNALBOX__PROVIDERS__DEFAULT__URL", "http://127.0.0.1:9/v1/responses");
        let kind = ("SIGNALBOX__PROVIDERS__DEFAULT__KIND", "openclaw");
        let agent = ("SIGNALBOX__PROVIDERS__DEFAULT__GATEWAY_AGENT", "alpha");
        let bare = completed(&[url]).unwrap();
        assert_eq!(
            (bare.kind, bare.model.as_str()),
            (ProviderKind::OpenResponses, "default")
        );
        let named = completed(&[url, ("SIGNALBOX__PROVIDERS__DEFAULT__MODEL", "gpt-5")]).unwrap();
        assert_eq!(named.model, "gpt-5");
        assert_eq!(completed(&[url, kind, agent]).unwrap().kind, ProviderKind::OpenClaw);
        let server = completed(&[url, ("SIGNALBOX__PROVIDERS__DEFAULT__SERVER", "ollama")]).unwrap();
        assert_eq!(server.continuation, Continuation::Whole);
        let refused = completed(&[url, kind]).unwrap_err().to_string();
        assert!(refused.contains("name the gateway's agent"), "{refused}");
    }
}
