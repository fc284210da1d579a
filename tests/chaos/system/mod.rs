//! The system under test: four services in two processes each, a nats-server, a Postgres and the stub provider, all on loopback and
//! all children of this process. A proxy is between every service process and each of its servers.

mod disk;
mod process;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use contracts::Root;
use devstack::{Durability, NatsOptions, NatsServer, PostgresOptions, PostgresServer};
use messaging::{Bus, BusOptions, Provision, Topology, TopologyLimits, User};
use runtime::context;
use sqlx::{PgPool, postgres::PgPoolOptions};
use storage::{Database, DatabaseOptions, Role};
use testkit::proxy::Proxy;
use time::OffsetDateTime;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use disk::{Disk, enter};
use process::Surroundings;
pub(crate) use process::{Service, aborted, family, signal, stopped_within};

use crate::{
    plan::{Link, Process},
    records::Sample,
};

pub(crate) const OPERATOR_TOKEN: &str = "operator-token-2b1f64c09d7e";
pub(crate) const PROVIDER_KEY: &str = "provider-key-9f0c51ab44e2";

const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Of runs, as the settings have them.
pub(crate) const COLLECT_ITEMS_MAX: usize = 4;
pub(crate) const COLLECT_DEBOUNCE: time::Duration = time::Duration::milliseconds(400);
/// How long one turn has the probe of a breaker, as the settings have it.
pub(crate) const BREAKER_PROBE_MAX: time::Duration = time::Duration::seconds(5);
pub(crate) const COLLECT_WAIT_MAX: time::Duration = time::Duration::milliseconds(1_500);

/// Short intervals, so that waits are short. The lease is that of an installation, since a busy machine loses a shorter one without
/// a fault.
pub(crate) const SETTINGS: &str = r#"
[database]
connections_max = 8
acquire_timeout_ms = 3000
statement_timeout_ms = 5000
lock_timeout_ms = 3000
[nats]
publish_timeout_ms = 1000
request_timeout_ms = 2000
ping_interval_ms = 500
[nats.limits]
ack_wait_ms = 3000
[outbox]
sweep_interval_ms = 200
sweep_age_ms = 1000
claim_timeout_ms = 3000
[replica]
lease_ms = 4000
renew_ms = 500
[process]
stop_grace_ms = 3000
dependencies_timeout_ms = 60000
[resolver]
claim_interval_ms = 300
retry_delay_ms_max = 500
[delivery]
tools_again_ms = 3000
sweep_interval_ms = 200
retry_delay_ms = 50
retry_delay_ms_max = 400
pause_delay_ms = 200
breaker_open_ms = 200
breaker_open_ms_max = 2000
breaker_probe_ms_max = 5000
look_up_delay_ms = 100
drain_ms = 500
attempts_max = 8
collect_debounce_ms = 400
collect_wait_ms_max = 1500
collect_items_max = 4
[tool_gateway]
retry_delay_ms = 100
postpone_delay_ms = 300
[orchestrator]
replies_retry_ms = 200
[providers.default]
kind = "openresponses"
model = "stub"
connect_timeout_ms = 1000
first_byte_timeout_ms = 5000
idle_timeout_ms = 2500
call_timeout_ms_max = 12000
"#;

pub(crate) struct System {
    pub(crate) services: Vec<Service>,
    pub(crate) nats: Mutex<NatsServer>,
    /// Its store's, where there can be one.
    pub(crate) nats_disk: Option<Disk>,
    /// The operator's.
    pub(crate) nats_url: String,
    pub(crate) postgres: Mutex<PostgresServer>,
    /// The superuser's, and not through a proxy.
    pub(crate) database_url: String,
    /// Connection of the checks; survives restarts.
    pub(crate) observer: PgPool,
    /// Passwords in the URLs of both servers: owner → password.
    pub(crate) passwords: BTreeMap<String, String>,
    /// Logs of the servers: name → file.
    pub(crate) server_logs: BTreeMap<String, PathBuf>,
    _operator: AbortOnDropHandle<()>,
}

impl System {
    /// Starts the servers and prepares the services, without starting them.
    pub(crate) async fn prepare(directory: &Path, provider: SocketAddr, settings: &str) -> anyhow::Result<System> {
        let program = program()?;
        let postgres_options = PostgresOptions {
            directory: directory.join("postgres"),
            durability: Durability::Fast,
        };
        let nats_disk = Disk::mount(&directory.join("nats").join("jetstream"))?;
        let nats_options = NatsOptions {
            directory: directory.join("nats"),
            durability: Durability::Fast,
            users: Some(testkit::nats_users_and_keys()),
        };
        let (postgres, nats) =
            tokio::try_join!(PostgresServer::start(postgres_options), NatsServer::start(nats_options))?;
        let database_url = postgres.database_url().to_owned();
        migrate(&database_url).await?;
        let operator = operator(nats.url()).await?;
        let observer = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(20))
            .connect(&database_url)
            .await
            .context("could not connect to look at the database")?;
        let config = directory.join("signalbox.toml");
        fs::write(&config, settings).context("could not write the services' settings")?;
        let nats_url = nats.url().to_owned();
        let mut urls = vec![("password of Postgres".to_owned(), database_url.clone())];
        urls.extend(User::ALL.map(|user| {
            let name = user.name();
            (format!("password of {name} at NATS"), nats.url_of(name))
        }));
        let passwords = urls
            .into_iter()
            .filter_map(|(whose, url)| Some((whose, password_of(&url)?)));
        let server_logs = [
            ("nats", directory.join("nats/nats-server.log")),
            ("postgres", directory.join("postgres/postgres.log")),
        ];
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut services = Vec::new();
        for process in Process::all() {
            let to_nats = Proxy::start(address(nats.port())).await;
            let to_postgres = Proxy::postgres(address(postgres.port())).await;
            let to_provider = Proxy::start(provider).await;
            let own = |name: &str, value: String| (name.to_owned(), value);
            let mut environment = vec![
                own("SIGNALBOX_CONFIG", config.to_string_lossy().into_owned()),
                own("DATABASE_URL", to_postgres.url(&database_url)),
                own(
                    "NATS_URL",
                    to_nats.url(&nats.url_of(context::user(process.role()).name())),
                ),
                own(testkit::ENVELOPE.0, testkit::ENVELOPE.1.to_owned()),
                own("SIGNALBOX_OPERATOR_TOKEN", OPERATOR_TOKEN.to_owned()),
                own("SIGNALBOX__PROVIDERS__DEFAULT__API_KEY", PROVIDER_KEY.to_owned()),
                // The stub identifies callers by the path.
                own(
                    "SIGNALBOX__PROVIDERS__DEFAULT__URL",
                    format!("http://{}/{}/v1/responses", to_provider.address(), process.name()),
                ),
            ];
            environment.extend(testkit::CALLOUT.map(|(name, value)| own(name, value.to_owned())));
            let surroundings = Surroundings {
                nats: to_nats,
                postgres: to_postgres,
                provider: to_provider,
                environment,
            };
            services.push(Service::new(process, directory, &program, free_port()?, surroundings)?);
        }
        Ok(System {
            services,
            nats: Mutex::new(nats),
            nats_disk,
            nats_url,
            postgres: Mutex::new(postgres),
            database_url,
            observer,
            passwords: passwords.collect(),
            server_logs: server_logs.map(|(name, path)| (name.to_owned(), path)).into(),
            _operator: operator,
        })
    }

    /// Starts every service and waits until each is ready.
    pub(crate) async fn start(&self) -> anyhow::Result<()> {
        for service in &self.services {
            service.start(&mut *service.life().await)?;
        }
        for service in &self.services {
            self.ready(service).await?;
        }
        Ok(())
    }

    /// Waits until a service answers that it is ready.
    pub(crate) async fn ready(&self, service: &Service) -> anyhow::Result<()> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(2))
            .build()?;
        let (url, deadline) = (format!("{}/readyz", service.url()), Instant::now() + READY_LIMIT);
        while Instant::now() < deadline {
            if client
                .get(&url)
                .send()
                .await
                .is_ok_and(|answer| answer.status().is_success())
            {
                return Ok(());
            }
            sleep(POLL).await;
        }
        bail!(
            "{} was not ready within {READY_LIMIT:?}; its log is {}",
            service.process.name(),
            service.log.display()
        )
    }

    pub(crate) fn service(&self, process: Process) -> &Service {
        &self.services[process.0]
    }

    pub(crate) fn of_role(&self, role: Role) -> impl Iterator<Item = &Service> {
        self.services
            .iter()
            .filter(move |service| service.process.role() == role)
    }

    /// Restarts processes that ended by themselves, as a supervisor does, until it is dropped.
    pub(crate) async fn supervise(self: Arc<Self>) -> anyhow::Result<()> {
        loop {
            for service in &self.services {
                if let Some(mut life) = service.try_life() {
                    service.revive(&mut life)?;
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Heals every fault: all processes run and no proxy interferes.
    pub(crate) async fn heal(&self) -> anyhow::Result<()> {
        for service in &self.services {
            service.heal();
            service.ensure(&mut *service.life().await)?;
        }
        for service in &self.services {
            self.ready(service).await?;
        }
        Ok(())
    }

    /// Memory and files of each process that runs without a fault.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let at = OffsetDateTime::now_utc();
        let running = self.services.iter().filter_map(|service| {
            let pid = service.try_life()?.pid()?;
            let (memory_kib, files) = process::held(pid)?;
            Some(Sample {
                at,
                process: service.process.name(),
                memory_kib,
                files,
            })
        });
        running.collect()
    }

    /// Ends without a scheduled fault.
    pub(crate) async fn surprises(&self) -> Vec<String> {
        let mut all = Vec::new();
        for service in &self.services {
            all.extend(service.life().await.surprises.clone());
        }
        all
    }

    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        for service in &self.services {
            service.life().await.kill().await?;
        }
        self.observer.close().await;
        self.nats.lock().await.kill().await?;
        self.postgres.lock().await.crash().await
    }
}

impl Service {
    pub(crate) fn link(&self, link: Link) -> &Proxy {
        match link {
            Link::Nats => &self.nats,
            Link::Postgres => &self.postgres,
            Link::Provider => &self.provider,
        }
    }
}

fn password_of(url: &str) -> Option<String> {
    let (user, _) = url.split_once("://")?.1.rsplit_once('@')?;
    Some(user.split_once(':')?.1.to_owned())
}

async fn migrate(database_url: &str) -> anyhow::Result<()> {
    let options = DatabaseOptions {
        connections_max: 2,
        ..DatabaseOptions::default()
    };
    let database = Database::connect(database_url, Role::Owner, &options).await?;
    storage::migrations::migrate(database.connection()).await?;
    database.close().await;
    Ok(())
}

/// Creates the streams, and creates them again after a loss: services do not.
async fn operator(nats_url: &str) -> anyhow::Result<AbortOnDropHandle<()>> {
    let topology = Topology {
        limits: TopologyLimits::default(),
        provision: Provision::Update,
        scope: User::Operator,
    };
    let bus = Bus::connect(BusOptions::new(nats_url, Root::default(), "operator")).await?;
    topology.ensure(&bus).await?;
    let keeping = tokio::spawn(async move { topology.keep(&bus, CancellationToken::new()).await });
    Ok(AbortOnDropHandle::new(keeping))
}

/// The program `signalbox` in this program's folder.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program has no path")?;
    let program = own.with_file_name("signalbox");
    if !program.is_file() {
        bail!("{} is missing: build the workspace's programs first", program.display());
    }
    Ok(program)
}

/// A free port below the kernel's ephemeral range: a service keeps its port over restarts, and no other connection may get it while
/// the service is down.
fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % 11_000).expect("less than it was divided by");
    (0..1_000)
        .map(|_| 20_000 + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no free port from 20000 to 32000")
}
