//! The environment of one test: a database, a broker, and services that run as in production, each with its own pool,
//! connection and shutdown, so that a test can stop or abort one while the others run.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream;
use bytes::Bytes;
use contracts::{Headers, Outgoing, Root, notification::NotificationMessage};
use devstack::{NatsServer, NatsUsers};
use domain::{AccountId, TaskId};
use messaging::{Bus, BusOptions, Provision, Topology, User, users};
use runtime::{Context, Settings, Shutdown, context};
use storage::Role;
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{ENVELOPE, Fixture, StubProvider, TestDatabase, install_tls_provider, keyring};

/// Short times, so that tests do not wait; every limit can be overridden.
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
breaker_open_ms = 100
breaker_open_ms_max = 400
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
    /// Services that reach the database by another URL.
    ways: Vec<(Role, String)>,
    operator: OnceCell<AbortOnDropHandle<()>>,
}

/// The users of a deployment, for a test's server.
pub fn nats_users() -> NatsUsers {
    NatsUsers {
        config: users::accounts(&Root::default()),
        account: Some(users::jetstream_account(&Root::default())),
        names: User::ALL
            .map(|user| (user.name().to_owned(), users::password_variable(user)))
            .into(),
    }
}

/// A service that runs in this process.
pub struct Running<T> {
    pub started: T,
    shutdown: Shutdown,
}

impl<T> Running<T> {
    /// An orderly stop: work in progress is finished.
    pub async fn stop(self) {
        self.shutdown.stop(Duration::from_secs(10)).await;
    }

    /// As if the process had died: no work is finished, released or logged.
    pub fn cut_off(self) {
        self.shutdown.abort();
    }

    /// Aborts the service at a crash point, the `nth` time from now on that it is reached.
    pub fn crash_at(&self, point: &'static str, nth: usize) {
        self.shutdown.crash_at(point, nth);
    }

    /// Completes when the service was aborted there.
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
        let (database, nats) = tokio::join!(TestDatabase::fresh(), NatsServer::start_temporary_with(nats_users()));
        World {
            database,
            nats: nats.expect("a nats-server of the test's own"),
            overrides: Vec::new(),
            ways: Vec::new(),
            operator: OnceCell::new(),
        }
    }

    /// Sets a setting of all services that are started from now on, by its path: `delivery.attempts_max`.
    pub fn set(&mut self, setting: &str, value: impl ToString) {
        self.overrides.retain(|(name, _)| name != setting);
        self.overrides.push((setting.to_owned(), value.to_string()));
    }

    /// Gives a service that is started from now on another URL of the database: a proxy's, say.
    pub fn lead(&mut self, role: Role, url: String) {
        self.ways.push((role, url));
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

    /// Settings of a service: it connects to the broker as the user of its role.
    pub fn settings(&self, role: Role) -> Arc<Settings> {
        let way = self.ways.iter().rev().find(|(led, _)| *led == role);
        let database_url = way.map_or(&self.database.url, |(_, url)| url).clone();
        let mut variables = vec![
            ("DATABASE_URL".to_owned(), database_url),
            ("NATS_URL".to_owned(), self.nats.url_of(context::user(role).name())),
            (ENVELOPE.0.to_owned(), ENVELOPE.1.to_owned()),
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
        self.operator.get_or_init(|| self.provision()).await;
        let shutdown = Shutdown::new();
        let context = Context::connect(role, self.settings(role), shutdown.clone())
            .await
            .expect("a context of a service");
        let started = start(context).await.expect("a started service");
        Running { started, shutdown }
    }

    /// Creates the streams, and recreates them when the broker has lost them, as `signalbox up` does.
    async fn provision(&self) -> AbortOnDropHandle<()> {
        let settings = self.settings(Role::Owner);
        let topology = Topology {
            provision: Provision::Update,
            ..context::topology(User::Operator, &settings.nats)
        };
        let bus = self.bus().await;
        topology.ensure(&bus).await.expect("streams and consumers");
        AbortOnDropHandle::new(tokio::spawn(async move {
            topology.keep(&bus, CancellationToken::new()).await;
        }))
    }

    /// A plain NATS client with a publisher's rights.
    pub async fn client(&self) -> async_nats::Client {
        self.client_of(User::Publisher).await
    }

    /// A plain NATS client that may do everything.
    pub async fn operator(&self) -> async_nats::Client {
        self.client_of(User::Operator).await
    }

    /// A plain NATS client with a user's rights.
    pub async fn client_of(&self, user: User) -> async_nats::Client {
        let address: async_nats::ServerAddr = self.nats.url_of(user.name()).parse().expect("the test's server");
        let user = address.username().unwrap_or_default().to_owned();
        let password = address.password().unwrap_or_default().to_owned();
        let inbox = format!("_I.{user}");
        async_nats::ConnectOptions::with_user_and_password(user, password)
            .custom_inbox_prefix(inbox)
            .connect(address)
            .await
            .expect("a connection")
    }

    /// A bus that may do everything, and signs its messages as services do.
    pub async fn bus(&self) -> Bus {
        self.bus_at(self.nats.url().to_owned()).await
    }

    async fn bus_at(&self, url: String) -> Bus {
        let options = BusOptions {
            keys: keyring(),
            ..BusOptions::new(url, Root::default(), "test")
        };
        Bus::connect(options).await.expect("a bus")
    }

    /// Publishes a notification as an outside publisher would, and waits until the stream has it.
    pub async fn publish(&self, account: &AccountId, task: Option<&TaskId>, payload: &serde_json::Value) {
        let subject = Root::default().subject::<NotificationMessage>(account, task);
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

    /// Publishes as a service does: signed, on any subject.
    pub async fn publish_as_service(&self, subject: String, payload: Vec<u8>) {
        World::publish_by(&self.bus().await, subject, payload).await;
    }

    /// The same in the NATS account of one service: what others hear on core NATS, they hear there.
    pub async fn publish_as_resolver(&self, subject: String, payload: Vec<u8>) {
        let bus = self.bus_at(self.nats.url_of(User::Resolver.name())).await;
        World::publish_by(&bus, subject, payload).await;
    }

    async fn publish_by(bus: &Bus, subject: String, payload: Vec<u8>) {
        let message = Outgoing {
            subject,
            headers: Headers::default(),
            payload,
        };
        let answers = bus.publish_all(&[message]).await;
        for answer in answers {
            answer.expect("stored");
        }
    }
}
