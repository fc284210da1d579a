//! What a service stands on: its settings, its pool, its bus, its relay, and the way to stop. One for each service,
//! also where several share a process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use contracts::Root;
use domain::planted::{self, Bug, is_planted};
use messaging::{Bus, BusError, BusOptions, Keyring, Topology, TopologyError, User};
use secrecy::ExposeSecret;
use storage::{
    Database, DatabaseOptions, Role, StorageError,
    fitness::{self, Fault},
    migrations,
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::{
    Outbox, Replica, Settings, SettingsError, Shutdown,
    dead::DeadLetters,
    http::{self, Health, HttpError},
    replica,
    settings::{DatabaseSettings, NatsSettings, Provision},
    telemetry::TelemetryError,
};

/// Between two tries to reach Postgres at start.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// How often a start that waits says so.
const WAITING_LINE_EVERY: Duration = Duration::from_secs(1);

/// Why a process did not start. One line with its causes.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("telemetry could not be set up")]
    Telemetry(#[from] TelemetryError),
    #[error("Postgres could not be used within {waited_s} s")]
    Database { waited_s: u64, source: StorageError },
    #[error("the database is not fit for use: {faults}")]
    Unfit { faults: String },
    #[error("the database's schema could not be brought up to date")]
    Migrate { source: StorageError },
    #[error("the database lacks {steps}: run `signalbox migrate`, or set database.migrate = true")]
    Schema { steps: String },
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error("this process could not be entered as a replica")]
    Replica { source: StorageError },
    #[error(transparent)]
    Http(#[from] HttpError),
}

impl StartError {
    /// Whether the settings must change before another start can be of use.
    pub fn is_refused_setting(&self) -> bool {
        match self {
            Self::Settings(_)
            | Self::Telemetry(
                TelemetryError::Filter { .. } | TelemetryError::Exporter { .. } | TelemetryError::LogFile { .. },
            )
            | Self::Bus(BusError::Url { .. }) => true,
            Self::Telemetry(TelemetryError::Metrics { .. } | TelemetryError::Subscriber { .. })
            | Self::Database { .. }
            | Self::Unfit { .. }
            | Self::Migrate { .. }
            | Self::Schema { .. }
            | Self::Bus(_)
            | Self::Topology(_)
            | Self::Replica { .. }
            | Self::Http(_) => false,
        }
    }
}

/// Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Context {
    pub settings: Arc<Settings>,
    /// Runs as the service's role.
    pub database: Database,
    pub bus: Bus,
    /// What the broker should hold; consumers make theirs again from it.
    pub topology: Topology,
    pub outbox: Outbox,
    pub shutdown: Shutdown,
}

impl Context {
    /// Connects to Postgres and NATS, waiting for them up to `process.dependencies_timeout_ms`; checks the schema,
    /// makes or verifies the streams, and starts the relay.
    pub async fn connect(role: Role, settings: Arc<Settings>, shutdown: Shutdown) -> Result<Context, StartError> {
        let deadline = Instant::now() + settings.process.dependencies_timeout_ms.duration();
        for bug in planted::chosen() {
            warn!(%bug, "this process has a bug on purpose");
        }
        // What is missing is said before anything is waited for.
        settings.database.url()?;
        settings.nats.url()?;
        let keys = settings.envelope.keyring()?;
        Box::pin(schema_check(&settings, deadline)).await?;
        let options = database_options(&settings.database);
        let database = database_connect(role, &settings, &options, deadline).await?;
        Box::pin(check_fitness(&database, &settings, deadline)).await?;
        let topology = topology(user(role), &settings.nats);
        let bus = bus_connect(role.service(), &settings, keys, deadline).await?;
        topology_ensure(&topology, &bus, deadline).await?;
        let outbox = Outbox::start(&database, &bus, &settings.outbox, &shutdown);
        Ok(Context {
            settings,
            database,
            bus,
            topology,
            outbox,
            shutdown,
        })
    }

    pub fn service(&self) -> &'static str {
        self.database.role().service()
    }

    pub fn root(&self) -> &Root {
        self.bus.root()
    }

    /// Enters this process as a holder of leases. For services that hold some, once each.
    pub async fn start_replica(&self) -> Result<Replica, StartError> {
        let options = DatabaseOptions {
            connections_max: replica::CONNECTIONS,
            acquire_timeout_ms: self.settings.replica.lease_ms.get(),
            statement_timeout_ms: self.settings.replica.lease_ms.get(),
            lock_timeout_ms: self.settings.replica.lease_ms.get(),
        };
        let deadline = Instant::now() + self.settings.process.dependencies_timeout_ms.duration();
        let database = database_connect(self.database.role(), &self.settings, &options, deadline).await?;
        let enter = async || Replica::start(database.clone(), &self.settings.replica, &self.shutdown).await;
        patiently(deadline, enter)
            .await
            .map_err(|source| StartError::Replica { source })
    }

    /// What a service does to the database before it is up: as long as its start waits for the database, tried again.
    pub async fn begin_with<T>(
        &self,
        attempt: impl AsyncFnMut() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let deadline = Instant::now() + self.settings.process.dependencies_timeout_ms.duration();
        patiently(deadline, attempt).await
    }

    /// What a consumer gives its dead messages to.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.database.clone(), self.outbox.clone(), self.root().clone())
    }

    /// Ready when Postgres and NATS answer; a service adds what else it cannot do without.
    pub fn health(&self) -> Health {
        let (database, bus) = (self.database.clone(), self.bus.clone());
        Health::new(&self.settings.http, &self.shutdown)
            .check("database", move || {
                let database = database.clone();
                // The cause may hold an address; the log of the pool has it.
                async move { database.ping().await.map_err(|_| "does not answer") }
            })
            .check("bus", move || {
                let connected = bus.is_connected();
                async move { connected.then_some(()).ok_or("not connected") }
            })
    }

    /// Serves routes and health pages at an address, as a worker. Gives the address in use: port 0 picks a free one.
    pub async fn serve(&self, address: SocketAddr, routes: Router, health: Health) -> Result<SocketAddr, StartError> {
        let listener = http::listen(address).await?;
        let bound = listener.local_addr().unwrap_or(address);
        let settings = self.settings.http.clone();
        let router = http::router(routes, health, &settings);
        self.shutdown
            .spawn("http", http::serve(listener, router, settings, self.shutdown.clone()));
        Ok(bound)
    }
}

/// The NATS user of whoever runs as a role.
pub fn user(role: Role) -> User {
    match role {
        Role::Resolver => User::Resolver,
        Role::Delivery => User::Delivery,
        Role::ToolGateway => User::ToolGateway,
        Role::Orchestrator => User::Orchestrator,
        Role::Owner => User::Operator,
    }
}

/// As the settings want it, for the streams and consumers of a user.
pub fn topology(scope: User, settings: &NatsSettings) -> Topology {
    Topology {
        scope,
        limits: settings.limits.clone(),
        provision: match settings.provision {
            Provision::Create => messaging::Provision::Create,
            Provision::Verify => messaging::Provision::VerifyOnly,
        },
    }
}

/// As the settings want it.
pub fn database_options(settings: &DatabaseSettings) -> DatabaseOptions {
    DatabaseOptions {
        connections_max: settings.connections_max.get(),
        acquire_timeout_ms: settings.acquire_timeout_ms.get(),
        statement_timeout_ms: settings.statement_timeout_ms.get(),
        lock_timeout_ms: settings.lock_timeout_ms.get(),
    }
}

/// Migrates when asked to; else refuses to start on a schema that is older than this version.
async fn schema_check(settings: &Settings, deadline: Instant) -> Result<(), StartError> {
    let options = DatabaseOptions {
        // Migrating holds a lock on one connection and works on another.
        connections_max: 2,
        ..database_options(&settings.database)
    };
    let owner = database_connect(Role::Owner, settings, &options, deadline).await?;
    if settings.database.migrate {
        // A server that is too old fails in the middle of a step.
        check_version(&owner, settings, deadline).await?;
    }
    let checked = if settings.database.migrate {
        let migrated = patiently(deadline, async || migrations::migrate(owner.connection()).await).await;
        migrated.map_err(|source| StartError::Migrate { source })
    } else {
        match patiently(deadline, async || migrations::pending(owner.connection()).await).await {
            Ok(steps) if steps.is_empty() => Ok(()),
            Ok(steps) => Err(StartError::Schema {
                steps: steps.join(", "),
            }),
            // A login that may only take the services' roles cannot look; the first query will tell.
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                warn!(error, "cannot tell whether the database's schema is up to date");
                Ok(())
            }
        }
    };
    owner.close().await;
    checked
}

/// How the settings want the database used.
pub async fn fitness_setting(settings: &DatabaseSettings) -> Result<fitness::Setting, SettingsError> {
    Ok(fitness::Setting {
        is_local: fitness::is_local(settings.url()?.expose_secret()).await,
        migrates: settings.migrate,
    })
}

/// Refuses a database that does not keep accounts apart, or what was committed.
async fn check_fitness(database: &Database, settings: &Settings, deadline: Instant) -> Result<(), StartError> {
    let faults = faults(database, settings, deadline).await?;
    refuse(faults)
}

async fn check_version(database: &Database, settings: &Settings, deadline: Instant) -> Result<(), StartError> {
    let mut faults = faults(database, settings, deadline).await?;
    faults.retain(|fault| matches!(fault, Fault::TooOld(_)));
    refuse(faults)
}

async fn faults(database: &Database, settings: &Settings, deadline: Instant) -> Result<Vec<Fault>, StartError> {
    let looked = patiently(deadline, async || fitness::look(database).await).await;
    let facts = looked.map_err(|source| unusable(settings, source))?;
    Ok(facts.faults(fitness_setting(&settings.database).await?))
}

fn refuse(faults: Vec<Fault>) -> Result<(), StartError> {
    if faults.is_empty() {
        return Ok(());
    }
    let faults: Vec<String> = faults
        .iter()
        .map(|fault| format!("{fault} ({})", fault.mend()))
        .collect();
    Err(StartError::Unfit {
        faults: faults.join("; "),
    })
}

async fn database_connect(
    role: Role,
    settings: &Settings,
    options: &DatabaseOptions,
    deadline: Instant,
) -> Result<Database, StartError> {
    let url = settings.database.url()?.expose_secret();
    if is_planted(Bug::SecretLogged) {
        info!(url, "connecting");
    }
    let connecting = patiently(deadline, async || Database::connect(url, role, options).await);
    let connected = saying_so("Postgres", connecting).await;
    connected.map_err(|source| unusable(settings, source))
}

fn unusable(settings: &Settings, source: StorageError) -> StartError {
    StartError::Database {
        waited_s: settings.process.dependencies_timeout_ms.duration().as_secs(),
        source,
    }
}

/// A broker that let us in may be away, or without its disk, the next moment.
async fn topology_ensure(topology: &Topology, bus: &Bus, deadline: Instant) -> Result<(), TopologyError> {
    loop {
        match topology.ensure(bus).await {
            Err(error @ (TopologyError::Create { .. } | TopologyError::Lookup { .. }))
                if Instant::now() + RETRY_PAUSE < deadline =>
            {
                let error = format!("{:#}", anyhow::Error::new(error));
                warn!(error, "the broker's streams cannot be made sure of; trying again");
                sleep(RETRY_PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// Tries again until the deadline what may go well then: a database that answered a moment ago may be gone the next.
async fn patiently<T>(
    deadline: Instant,
    mut attempt: impl AsyncFnMut() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    loop {
        match attempt().await {
            Err(error) if error.may_retry() && Instant::now() + RETRY_PAUSE < deadline => sleep(RETRY_PAUSE).await,
            ended => return ended,
        }
    }
}

/// As the settings want it, for a connection that the server's monitoring shows as `signalbox-{name}`.
pub fn bus_options(name: &str, nats: &NatsSettings) -> Result<BusOptions, SettingsError> {
    let root = Root::parse(&nats.root).expect("checked when the settings were read");
    Ok(BusOptions {
        ping_interval_ms: nats.ping_interval_ms.get(),
        request_timeout_ms: nats.request_timeout_ms.get(),
        publish_ack_timeout_ms: nats.publish_timeout_ms.get(),
        publish_in_flight_max: nats.publish_in_flight_max.usize(),
        inbox_prefix: nats.inbox_prefix.clone(),
        ..BusOptions::new(nats.url()?.expose_secret(), root, format!("signalbox-{name}"))
    })
}

async fn bus_connect(service: &str, settings: &Settings, keys: Keyring, deadline: Instant) -> Result<Bus, StartError> {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    let options = BusOptions {
        connect_timeout_ms: u64::try_from(left).unwrap_or(u64::MAX),
        keys,
        ..bus_options(service, &settings.nats)?
    };
    // Boxed: a connection that is made, and one that is tried without a password, are large futures.
    Ok(saying_so("NATS", Box::pin(Bus::connect(options))).await?)
}

/// Waits for a dependency, with one line a second that says for which.
async fn saying_so<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut lines = interval(WAITING_LINE_EVERY);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    lines.tick().await;
    loop {
        tokio::select! {
            // Pinned outside and polled again: a line drops nothing.
            done = &mut work => return done,
            _ = lines.tick() => info!("waiting for {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> StorageError {
        StorageError::Connect {
            source: sqlx::Error::PoolTimedOut,
        }
    }

    /// How often it was tried, and what came of it, when the first two tries fail like this.
    async fn tried(fails: fn() -> StorageError, within: Duration) -> (usize, Result<(), StorageError>) {
        let mut tries = 0;
        let ended = patiently(Instant::now() + within, async || {
            tries += 1;
            if tries < 3 { Err(fails()) } else { Ok(()) }
        })
        .await;
        (tries, ended)
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_is_lost_during_the_start_is_waited_for() {
        assert!(matches!(tried(lost, Duration::from_secs(60)).await, (3, Ok(()))));
        assert!(
            matches!(tried(lost, RETRY_PAUSE / 2).await, (1, Err(_))),
            "until the deadline"
        );
        let strange = || StorageError::unreadable("look", "a word");
        assert!(
            matches!(tried(strange, Duration::from_secs(60)).await, (1, Err(_))),
            "of no use"
        );
    }
}
