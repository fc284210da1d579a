//! A database and a broker for one test, and a context connected to both.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::consumer::{DeliverPolicy, pull::OrderedConfig};
use contracts::{Headers, Outgoing, header};
use devstack::NatsServer;
use domain::AccountId;
use futures::StreamExt;
use messaging::{Bus, Provision, Stream, Topology, User};
use runtime::{Context, Settings, Shutdown, context};
use storage::{
    Accounts, Role,
    outbox::{
        OutboxRow, outbox_insert,
        unread::{Receipt, outbox_receive},
    },
};
use testkit::{ENVELOPE, Fixture, TestDatabase, eventually};

/// Longer than any step of these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub nats: NatsServer,
    pub database: TestDatabase,
    pub shutdown: Shutdown,
    pub account: AccountId,
}

impl World {
    pub(crate) async fn new() -> World {
        let database = TestDatabase::fresh().await;
        let account = Fixture(&database).account("acme").await;
        World {
            nats: NatsServer::start_temporary().await.expect("a broker"),
            database,
            shutdown: Shutdown::new(),
            account,
        }
    }

    /// Settings of this world, with additional TOML.
    pub(crate) fn settings(&self, toml: &str) -> Settings {
        let urls = [
            ("DATABASE_URL", self.database.url.as_str()),
            ("NATS_URL", self.nats.url()),
            ENVELOPE,
        ];
        Settings::load_from(toml, urls).expect("settings")
    }

    /// As `signalbox migrate` does: a service creates no streams.
    pub(crate) async fn migrate_streams(&self, toml: &str) {
        let nats = self.settings(toml).nats;
        let options = context::bus_options("test", &nats).expect("a URL");
        let bus = Bus::connect(options).await.expect("a broker");
        let topology = Topology {
            provision: Provision::Update,
            ..context::topology(User::Operator, &nats)
        };
        topology.ensure(&bus).await.expect("streams");
    }

    pub(crate) async fn context(&self, toml: &str) -> Context {
        self.migrate_streams(toml).await;
        let settings = Arc::new(self.settings(toml));
        Context::connect(Role::Orchestrator, settings, self.shutdown.clone())
            .await
            .expect("both answer")
    }

    /// An event of the account, as services publish them.
    pub(crate) fn event(&self, id: &str, payload: &[u8]) -> Outgoing {
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, id);
        Outgoing {
            subject: format!("signalbox.event.{}.-.task.created", self.account),
            headers,
            payload: payload.to_vec(),
        }
    }

    /// An awaited notification of the account.
    pub(crate) fn notification(&self, id: &str) -> Outgoing {
        Outgoing {
            subject: format!("signalbox.notification.{}.-", self.account),
            ..self.event(id, b"{}")
        }
    }

    /// Reads messages as their consumer does: deletes the rows of their receipts.
    pub(crate) async fn read(&self, headers: impl IntoIterator<Item = Headers>) {
        let receipts = headers
            .into_iter()
            .flat_map(|headers| Receipt::of(Some(&self.account), &headers))
            .collect();
        let database = self.database.connect(Role::Resolver).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.expect("begin");
        outbox_receive(&tx, receipts).await.expect("receive");
        tx.commit().await.expect("commit");
    }

    /// Makes the rows due, and waits until a sweep has checked them.
    pub(crate) async fn look(&self) {
        let due = "update outbox set look_at = now() - interval '1 second' where stored_at is not null";
        sqlx::query(due).execute(&self.database.owner).await.expect("an update");
        eventually("a sweep has checked every row", async || {
            (self
                .database
                .count("select count(*) from outbox where look_at < now()")
                .await
                == 0)
                .then_some(())
        })
        .await;
    }

    /// Waits until this many unread messages are marked as stored.
    pub(crate) async fn unread(&self, count: i64) {
        eventually("the broker has what is unread", async || {
            let (stored, all) = (
                self.database
                    .count("select count(*) from outbox where stored_at is not null")
                    .await,
                self.database.count("select count(*) from outbox").await,
            );
            (stored == count && all == count).then_some(())
        })
        .await;
    }

    /// Commits messages and returns the rows for the relay.
    pub(crate) async fn commit(&self, context: &Context, messages: Vec<Outgoing>) -> Vec<OutboxRow> {
        let tx = context
            .database
            .begin(&Accounts::one(&self.account))
            .await
            .expect("begin");
        let owned = messages
            .into_iter()
            .map(|message| (Some(self.account.clone()), message));
        let rows = outbox_insert(&tx, owned.collect()).await.expect("insert");
        tx.commit().await.expect("commit");
        rows
    }

    pub(crate) async fn outbox_is_empty(&self) {
        eventually("the outbox is empty", async || {
            (self.database.count("select count(*) from outbox").await == 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn stop(&self) {
        assert!(self.shutdown.stop(LIMIT).await.is_empty(), "all workers end in time");
        assert_eq!(self.shutdown.failure(), None);
    }
}

/// The first `count` messages of a stream: subject, id, payload.
pub(crate) async fn stored(context: &Context, stream: Stream, count: usize) -> Vec<(String, String, Vec<u8>)> {
    let jetstream = async_nats::jetstream::new(context.bus.client().clone());
    let stream = jetstream
        .get_stream(stream.name(context.root()))
        .await
        .expect("a stream");
    let consumer = stream
        .create_consumer(OrderedConfig {
            deliver_policy: DeliverPolicy::All,
            ..OrderedConfig::default()
        })
        .await
        .expect("a consumer");
    let messages = consumer.messages().await.expect("messages").take(count);
    let read = messages.map(|message| {
        let message = message.expect("a message");
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get(header::MESSAGE_ID));
        let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
        (message.subject.to_string(), id, message.payload.to_vec())
    });
    tokio::time::timeout(LIMIT, read.collect())
        .await
        .expect("as many messages")
}
