//! The state that every route uses: the connection pools, the relay, the limits.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use axum::http::StatusCode;
use contracts::{Root, event::Event, outgoing::Origin};
use derive_more::Deref;
use domain::AccountId;
use messaging::Bus;
use runtime::{
    Shares, Shutdown,
    http::{Problem, local_url},
    settings::Models,
    shares::NoRoom,
};
use sea_orm::FromQueryResult;
use storage::{
    Accounts, Database, Setting, StorageError, Tx,
    outbox::{OutboxRow, Owned, outbox_insert},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    SOURCE,
    error::ApiError,
    metrics::Metrics,
    oidc::provider::Provider,
    settings::{OrchestratorSettings, Providers, SignInSettings},
};

/// `Retry-After` of a request that was refused because the account's share of the outbox is full.
const AGAIN_S: u32 = 5;

/// Hands committed outbox rows to the relay. A function, so that a test can leave them in the table and read them.
pub type PublishSoon = Arc<dyn Fn(Vec<OutboxRow>) + Send + Sync>;

/// Cheap to clone; clones share everything.
#[derive(Clone, Deref)]
#[deref(forward)]
pub struct App(Arc<Parts>);

pub struct Parts {
    pub database: Database,
    /// For authenticating the caller.
    pub callers: Database,
    pub root: Root,
    pub settings: OrchestratorSettings,
    pub models: Models,
    pub providers: Providers,
    pub sign_in: SignInSettings,
    /// By which people sign in.
    pub oidc: Vec<Provider>,
    pub meters: Metrics,
    pub shares: Shares,
    publish_soon: PublishSoon,
    /// For crash points.
    pub shutdown: Shutdown,
    /// The address of the API, once it listens.
    listens: OnceLock<SocketAddr>,
    /// The broker, where the service runs with one.
    bus: OnceLock<Bus>,
    /// How much e-mail of an account waits at most, where the service sends any.
    emails_max: OnceLock<i64>,
}

impl App {
    pub fn new(
        (database, callers): (Database, Database),
        root: Root,
        (settings, models, providers, sign_in): (OrchestratorSettings, Models, Providers, SignInSettings),
        publish_soon: PublishSoon,
        shutdown: Shutdown,
    ) -> App {
        let oidc = sign_in
            .oidc
            .iter()
            .map(|(name, settings)| Provider::new(name, settings))
            .collect();
        App(Arc::new(Parts {
            database,
            callers,
            root,
            settings,
            models,
            providers,
            sign_in,
            oidc,
            meters: Metrics::default(),
            shares: Shares::default(),
            publish_soon,
            shutdown,
            listens: OnceLock::new(),
            bus: OnceLock::new(),
            emails_max: OnceLock::new(),
        }))
    }

    /// Notes the address that the API listens at, which the settings leave open where the port is 0.
    pub fn listens_at(&self, address: SocketAddr) {
        // It listens once.
        let _ = self.listens.set(address);
    }

    pub fn connects_to(&self, bus: Bus) {
        // Once, at the start.
        let _ = self.bus.set(bus);
    }

    /// The broker, for the few requests that ask it directly.
    pub fn bus(&self) -> Result<&Bus, Problem> {
        self.bus.get().ok_or_else(Problem::unavailable)
    }

    /// E-mail is sent here, and so much of an account waits at most.
    pub fn emails_max_set(&self, most: i64) {
        // Once, at the start.
        let _ = self.emails_max.set(most);
    }

    /// How much e-mail of an account waits at most. None: no e-mail is sent here.
    pub fn emails_max(&self) -> Option<i64> {
        self.emails_max.get().copied()
    }

    /// What links begin with.
    pub fn base_url(&self) -> String {
        let public = self.settings.public_url.as_ref().map(|url| url.as_str().to_owned());
        public.unwrap_or_else(|| local_url(*self.listens.get().unwrap_or(&self.settings.listen)))
    }

    /// A transaction of a sweep in one account, which is for everybody in it.
    pub async fn begin_sweep(&self, account: &AccountId) -> Result<Tx, StorageError> {
        self.database.begin(&Accounts::one(account).with_everybody()).await
    }

    /// A transaction that reads a list.
    pub async fn begin_list(&self, accounts: &Accounts) -> Result<Tx, StorageError> {
        let statement_max = self.settings.list_timeout_ms.duration();
        self.database.begin_list(accounts, statement_max).await
    }

    /// Commits with the outbox rows of the request and hands them to the relay. Every outbox row of a request is written here and is
    /// counted against the account's share.
    pub async fn commit(&self, tx: Tx, messages: Vec<Owned>) -> Result<(), ApiError> {
        self.shares.charge(&messages).map_err(|full| self.no_room(full))?;
        self.commit_free(tx, messages).await?;
        Ok(())
    }

    /// The same for messages of a sweep. Its notifications are few: an agent sets few timers.
    pub async fn commit_free(&self, tx: Tx, messages: Vec<Owned>) -> Result<(), StorageError> {
        let rows = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("orchestrator.change_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("orchestrator.change_committed").await;
        (self.publish_soon)(rows);
        Ok(())
    }

    /// Refuses a request that would publish another notification when the account's share of the outbox is full, before any other
    /// work.
    pub fn has_room(&self, account: &AccountId) -> Result<(), Problem> {
        self.shares.check(account).map_err(|full| self.no_room(full))
    }

    fn no_room(&self, full: NoRoom) -> Problem {
        self.meters.refused("unread_share");
        let detail =
            format!("{full}: try again when the resolver has read some of them; accepted notifications are kept");
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_much_unread");
        problem.detail(detail).retry_after_s(AGAIN_S)
    }

    /// An event of the account, of no task. Each is another one.
    pub fn event(&self, account: &AccountId, now: OffsetDateTime, event: Event) -> Owned {
        self.setting(None, now)
            .event(account, None, &Uuid::now_v7().to_string(), event)
    }

    /// Setting of the messages that a request publishes. `cause` is the id of the object that the request created.
    pub fn setting(&self, cause: Option<String>, now: OffsetDateTime) -> Setting<'_> {
        Setting {
            root: &self.root,
            source: SOURCE,
            origin: Origin {
                cause,
                hops: 0,
                trace: messaging::trace::current_trace(),
            },
            now,
        }
    }
}

#[derive(FromQueryResult)]
struct Now {
    now: OffsetDateTime,
}

/// The transaction's timestamp. Services use the database's clock and never their own.
pub async fn database_now(tx: &Tx) -> Result<OffsetDateTime, StorageError> {
    let now: Option<Now> = tx.one("ask for the time", "select now() as now", []).await?;
    now.map(|row| row.now)
        .ok_or_else(|| StorageError::unreadable("ask for the time", "no answer"))
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("root", &self.root).finish_non_exhaustive()
    }
}
