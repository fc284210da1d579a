//! A world of one test: a database, a broker, and services that run against them as they do in production, each with
//! its own pool, connection and life, so that one can be stopped or cut off while the others go on.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream;
use bytes::Bytes;
use devstack::NatsServer;
use domain::{AccountId, TaskId};
use runtime::{Context, Settings, Shutdown};
use storage::Role;

use crate::{Fixture, StubProvider, TestDatabase, install_tls_provider};

/// Short times, so that what waits is not waited for; every limit can be set over it.
const SETTINGS: &str = r#"
[nats]
publish_timeout_ms = 1000
[nats.limits]
ack_wait_ms = 3000
[outbox]
sweep_interval_ms = 200
sweep_age_ms = 1000
unread_look_ms = 3000
[replica]
lease_ms = 2000
renew_ms = 400
[resolver]
listen = "127.0.0.1:0"
[delivery]
listen = "127.0.0.1:0"
tools_again_ms = 3000
sweep_interval_ms = 100
retry_delay_ms = 50
retry_delay_ms_max = 400
pause_delay_ms = 100
look_up_delay_ms = 100
drain_ms = 500
[tool_gateway]
listen = "127.0.0.1:0"
[orchestrator]
listen = "127.0.0.1:0"
operator_token = "operator-token-of-a-test"
"#;

/// The operator's token in every world.
pub const OPERATOR_TOKEN: &str = "operator-token-of-a-test";

pub struct World {
    pub database: TestDatabase,
    pub nats: NatsServer,
    overrides: Vec<(String, String)>,
}

/// A service that runs in this process.
pub struct Running<T> {
    pub started: T,
    shutdown: Shutdown,
}

impl<T> Running<T> {
    /// An orderly stop: what is in hand is finished.
    pub async fn stop(self) {
        self.shutdown.stop(Duration::from_secs(10)).await;
    }

    /// As if the process had died: nothing is finished, given back or said.
    pub fn cut_off(self) {
        self.shutdown.abort();
    }

    /// Cuts the service off at a crash point, the `nth` time from now on that it is reached.
    pub fn crash_at(&self, point: &'static str, nth: usize) {
        self.shutdown.crash_at(point, nth);
    }

    /// Ends when the service was cut off there.
    pub async fn crashed(&self) {
        self.shutdown.crashed().await;
    }

    pub fn failure(&self) -> Option<String> {
        self.shutdown.failure()
    }
}

impl World {
    pub async fn start() -> World {
        install_tls_provider();
        let (database, nats) = tokio::join!(TestDatabase::fresh(), NatsServer::start_temporary());
        World {
            database,
            nats: nats.expect("a nats-server of the test's own"),
            overrides: Vec::new(),
        }
    }

    /// Sets a setting of all services that are started from now on, by its path: `delivery.attempts_max`.
    pub fn set(&mut self, setting: &str, value: impl ToString) {
        self.overrides.retain(|(name, _)| name != setting);
        self.overrides.push((setting.to_owned(), value.to_string()));
    }

    /// Points the provider `default` at a stub.
    pub fn provider(&mut self, stub: &StubProvider) {
        self.set("providers.default.kind", "openresponses");
        self.set("providers.default.url", stub.url());
        self.set("providers.default.model", "stub");
    }

    pub fn fixture(&self) -> Fixture<'_> {
        Fixture(&self.database)
    }

    pub fn settings(&self) -> Arc<Settings> {
        let mut variables = vec![
            ("DATABASE_URL".to_owned(), self.database.url.clone()),
            ("NATS_URL".to_owned(), self.nats.url().to_owned()),
        ];
        variables.extend(self.overrides.iter().map(|(setting, value)| {
            (
                format!("SIGNALBOX__{}", setting.to_uppercase().replace('.', "__")),
                value.clone(),
            )
        }));
        Arc::new(Settings::load_from(SETTINGS, variables).expect("settings of a test"))
    }

    /// Starts a service as its binary would.
    pub async fn run<T, F, W>(&self, role: Role, start: F) -> Running<T>
    where
        F: FnOnce(Context) -> W,
        W: Future<Output = anyhow::Result<T>>,
    {
        let shutdown = Shutdown::new();
        let context = Context::connect(role, self.settings(), shutdown.clone())
            .await
            .expect("a context of a service");
        let started = start(context).await.expect("a started service");
        Running { started, shutdown }
    }

    /// A plain NATS client, as a publisher outside has it.
    pub async fn client(&self) -> async_nats::Client {
        let address: async_nats::ServerAddr = self.nats.url().parse().expect("the URL of the test's server");
        let user = address.username().unwrap_or_default().to_owned();
        let password = address.password().unwrap_or_default().to_owned();
        async_nats::ConnectOptions::with_user_and_password(user, password)
            .connect(address)
            .await
            .expect("a connection")
    }

    /// Publishes a notification as a stranger would, and waits until the stream has it.
    pub async fn publish(&self, account: &AccountId, task: Option<&TaskId>, payload: &serde_json::Value) {
        let subject = contracts::Root::default().notification(account, task);
        self.publish_raw(subject, payload.to_string().into()).await;
    }

    pub async fn publish_raw(&self, subject: String, payload: Bytes) {
        let jetstream = jetstream::new(self.client().await);
        jetstream
            .publish(subject, payload)
            .await
            .expect("a publish")
            .await
            .expect("an acknowledgement");
    }
}
