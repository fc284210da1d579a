//! The dependencies of a service: settings, pool, bus, relay and shutdown. One context for each service, also where
//! several services share a process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use contracts::Root;
use messaging::{Bus, BusError, BusOptions, Keyring, Topology, TopologyError, User};
use secrecy::ExposeSecret;
use storage::{
    Database, DatabaseOptions, Role, StorageError,
    fitness::{self, Fault},
    migrations,
};

use crate::{
    Outbox, Replica, Settings, SettingsError, Shutdown,
    dead::DeadLetters,
    gauges::{self, Gauges},
    http::{self, Health, HttpError},
    patience::{NATS, POSTGRES, Patience, log_while_waiting},
    replica::{self, EndsWith},
    settings::{DatabaseSettings, NatsSettings, Provision},
    telemetry::TelemetryError,
};

/// The pool for looking up keys. Each lookup is short.
const CALLERS_CONNECTIONS: u32 = 4;

/// Why a process did not start. One line with its causes.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("telemetry could not be set up")]
    Telemetry(#[from] TelemetryError),
    /// A dependency stayed unavailable for the whole time that the start may take.
    #[error("{what} was not available within {waited_s} s")]
    GaveUp {
        what: &'static str,
        waited_s: u64,
        source: Box<StartError>,
    },
    #[error(transparent)]
    Database(#[from] StorageError),
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
    #[error("could not register this process as a replica")]
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
            | Self::GaveUp { .. }
            | Self::Database(_)
            | Self::Unfit { .. }
            | Self::Migrate { .. }
            | Self::Schema { .. }
            | Self::Bus(_)
            | Self::Topology(_)
            | Self::Replica { .. }
            | Self::Http(_) => false,
        }
    }

    /// Whether another attempt may succeed soon: the server is away, is starting, or is overloaded.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Database(source) | Self::Migrate { source } | Self::Replica { source } => source.is_retryable(),
            // The operator may be about to create it.
            Self::Topology(
                TopologyError::Lookup { .. } | TopologyError::Create { .. } | TopologyError::Missing { .. },
            ) => true,
            // The bus has retried already.
            Self::Bus(_)
            | Self::Topology(_)
            | Self::Settings(_)
            | Self::Telemetry(_)
            | Self::GaveUp { .. }
            | Self::Unfit { .. }
            | Self::Schema { .. }
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
    /// The streams and consumers that the broker should hold.
    pub topology: Topology,
    pub outbox: Outbox,
    pub shutdown: Shutdown,
    /// The rest of the start's time, for the service's own first steps.
    patience: Patience,
}

impl Context {
    /// Connects to Postgres and NATS, checks the schema and the streams, and starts the relay. Waits for unavailable
    /// dependencies, up to `process.dependencies_timeout_ms` for the whole start.
    pub async fn connect(role: Role, settings: Arc<Settings>, shutdown: Shutdown) -> Result<Context, StartError> {
        let patience = Patience::new(settings.process.dependencies_timeout_ms.duration());
        // Missing settings are reported before any dependency is waited for.
        settings.database.url()?;
        settings.nats.url()?;
        let keys = settings.envelope.keyring()?;
        // Boxed: large futures that are used once.
        let database = patience.until_done(POSTGRES, || Box::pin(database_open(role, &settings)));
        let database = database.await?;
        let topology = topology(user(role), &settings.nats);
        let bus = bus_connect(role.service(), &settings, keys, patience.left()).await?;
        let ensured = patience.until_done(NATS, async || Ok(topology.ensure(&bus).await?));
        Box::pin(ensured).await?;
        let outbox = Outbox::start(&database, &bus, &settings.outbox, &shutdown);
        let gauges = Gauges {
            database: database.clone(),
            bus: bus.clone(),
            user: user(role),
            interval: settings.telemetry.metrics_interval_ms.duration(),
            meters: gauges::Metrics::new(role.service()),
        };
        shutdown.spawn_support("gauges", gauges.run(shutdown.support_token()));
        Ok(Context {
            settings,
            database,
            bus,
            topology,
            outbox,
            shutdown,
            patience,
        })
    }

    pub fn service(&self) -> &'static str {
        self.database.role().service()
    }

    pub fn root(&self) -> &Root {
        self.bus.root()
    }

    /// Registers this process as a holder of leases. Services that hold leases call it once.
    pub async fn start_replica(&self, ends_with: EndsWith) -> Result<Replica, StartError> {
        let options = DatabaseOptions {
            connections_max: replica::CONNECTIONS,
            acquire_timeout_ms: self.settings.replica.lease_ms.get(),
            statement_timeout_ms: self.settings.replica.lease_ms.get(),
            lock_timeout_ms: self.settings.replica.lease_ms.get(),
        };
        let (role, settings) = (self.database.role(), &self.settings);
        let database = self
            .patience
            .until_done(POSTGRES, || database_connect(role, settings, &options))
            .await?;
        let enter = || async {
            let entered = Replica::start(database.clone(), ends_with, &settings.replica, &self.shutdown).await;
            entered.map_err(|source| StartError::Replica { source })
        };
        self.patience.until_done(POSTGRES, enter).await
    }

    /// A small pool for authenticating callers: requests that use up the service's own pool do not delay
    /// authentication.
    pub async fn connect_callers(&self) -> Result<Database, StartError> {
        let options = DatabaseOptions {
            connections_max: CALLERS_CONNECTIONS,
            ..database_options(&self.settings.database)
        };
        let (role, settings) = (self.database.role(), &self.settings);
        let connect = || database_connect(role, settings, &options);
        self.patience.until_done(POSTGRES, connect).await
    }

    /// Runs a first step of the service's own in the database. The step must be idempotent; it is retried like the rest
    /// of the start.
    pub async fn at_start<T>(&self, mut step: impl AsyncFnMut() -> Result<T, StorageError>) -> Result<T, StartError> {
        self.patience.until_done(POSTGRES, async || Ok(step().await?)).await
    }

    /// The dead letter writer for a consumer.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.database.clone(), self.outbox.clone(), self.root().clone())
    }

    /// Ready when Postgres and NATS answer and the streams exist. A service adds its own checks.
    pub fn health(&self) -> Health {
        let (database, bus, topology) = (self.database.clone(), self.bus.clone(), self.topology.clone());
        Health::new(&self.settings.http, &self.shutdown)
            .check("database", move || {
                let database = database.clone();
                // The cause may hold an address. The pool logs it.
                async move { database.ping().await.map_err(|_| "does not answer") }
            })
            .check("bus", move || {
                let (bus, topology) = (bus.clone(), topology.clone());
                async move {
                    if !bus.is_connected() {
                        return Err("not connected".to_owned());
                    }
                    topology.find_missing(&bus).await.map_err(|error| error.to_string())
                }
            })
    }

    /// Serves routes and health pages at an address, as a worker. Returns the address in use: port 0 picks a free one.
    pub async fn serve(
        &self,
        address: SocketAddr,
        routes: impl Into<http::Routes>,
        health: Health,
    ) -> Result<SocketAddr, StartError> {
        let listener = http::listen(address).await?;
        let bound = listener.local_addr().unwrap_or(address);
        let settings = self.settings.http.clone().with_pool(&self.settings.database);
        let router = http::router(routes, health, &settings, self.shutdown.clone());
        self.shutdown
            .spawn("http", http::serve(listener, router, settings, self.shutdown.clone()));
        Ok(bound)
    }
}

/// The NATS user of a role.
pub fn user(role: Role) -> User {
    match role {
        Role::Resolver => User::Resolver,
        Role::Delivery => User::Delivery,
        Role::ToolGateway => User::ToolGateway,
        Role::Orchestrator => User::Orchestrator,
        Role::Owner => User::Operator,
    }
}

/// The topology by the settings, for the streams and consumers of a user. Services only verify them.
pub fn topology(scope: User, settings: &NatsSettings) -> Topology {
    Topology {
        scope,
        limits: settings.limits.clone(),
        provision: match settings.provision {
            Provision::Verify => messaging::Provision::Verify,
        },
    }
}

/// The pool's options by the settings.
pub fn database_options(settings: &DatabaseSettings) -> DatabaseOptions {
    DatabaseOptions {
        connections_max: settings.connections_max.get(),
        acquire_timeout_ms: settings.acquire_timeout_ms.get(),
        statement_timeout_ms: settings.statement_timeout_ms.get(),
        lock_timeout_ms: settings.lock_timeout_ms.get(),
    }
}

/// Opens the service's pool, on a database that is up to date and fit for use.
async fn database_open(role: Role, settings: &Settings) -> Result<Database, StartError> {
    schema_check(role, settings).await?;
    let database = database_connect(role, settings, &database_options(&settings.database)).await?;
    refuse_unfit(&database, settings, |_| true).await?;
    Ok(database)
}

/// Migrates if `database.migrate` is set. Otherwise refuses to start on a schema that is older than this version.
async fn schema_check(role: Role, settings: &Settings) -> Result<(), StartError> {
    let options = DatabaseOptions {
        // A migration holds a lock on one connection and works on another.
        connections_max: 2,
        ..database_options(&settings.database)
    };
    let owner = database_connect(Role::Owner, settings, &options).await?;
    if settings.database.migrate {
        // A server that is too old would fail in the middle of a step.
        refuse_unfit(&owner, settings, |fault| fault.kind == &fitness::TOO_OLD).await?;
    }
    let checked = if settings.database.migrate {
        let migrated = migrations::migrate(owner.connection()).await;
        migrated.map_err(|source| StartError::Migrate { source })
    } else {
        match lacking(&owner, role, settings, &options).await {
            Ok(steps) if steps.is_empty() => Ok(()),
            Ok(steps) => Err(StartError::Schema {
                steps: steps.join(", "),
            }),
            Err(error) => Err(error.into()),
        }
    };
    owner.close().await;
    checked
}

/// The steps that the schema lacks. A login without rights of its own reads them as its role. If the role cannot be
/// taken, no step was run yet, or the role was not granted to the login.
async fn lacking(
    login: &Database,
    role: Role,
    settings: &Settings,
    options: &DatabaseOptions,
) -> Result<Vec<String>, StorageError> {
    let steps = migrations::pending(login.connection()).await?;
    if steps.is_empty() {
        return Ok(steps);
    }
    let url = settings.database.url().expect("the login has connected with it");
    let Ok(database) = Database::connect(url.expose_secret(), role, options).await else {
        return Ok(steps);
    };
    let steps = migrations::pending(database.connection()).await;
    database.close().await;
    steps
}

/// Where and how the settings use the database.
pub async fn fitness_setting(settings: &DatabaseSettings) -> Result<fitness::Setting, SettingsError> {
    Ok(fitness::Setting {
        is_local: fitness::is_local(settings.url()?.expose_secret()).await,
        migrates: settings.migrate,
    })
}

/// Refuses a database with faults that matter: it does not keep accounts apart, say, or may lose committed data.
async fn refuse_unfit(
    database: &Database,
    settings: &Settings,
    matters: impl Fn(&Fault) -> bool,
) -> Result<(), StartError> {
    let mut faults = fitness::look(database)
        .await?
        .faults(fitness_setting(&settings.database).await?);
    faults.retain(matters);
    if faults.is_empty() {
        return Ok(());
    }
    let faults = faults.iter().map(|fault| format!("{fault} ({})", fault.fix()));
    Err(StartError::Unfit {
        faults: faults.collect::<Vec<String>>().join("; "),
    })
}

async fn database_connect(role: Role, settings: &Settings, options: &DatabaseOptions) -> Result<Database, StartError> {
    let url = settings.database.url()?.expose_secret();
    Ok(Database::connect(url, role, options).await?)
}

/// The options by the settings, for a connection that the server's monitoring shows as `signalbox-{name}`.
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

async fn bus_connect(service: &str, settings: &Settings, keys: Keyring, left: Duration) -> Result<Bus, StartError> {
    let options = BusOptions {
        connect_timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        keys,
        ..bus_options(service, &settings.nats)?
    };
    // Boxed: large futures.
    Ok(log_while_waiting(NATS, Box::pin(Bus::connect(options))).await?)
}
