//! The installation: its containers, their addresses, and operations on them.

use std::{collections::BTreeMap, time::Duration};

use futures::future::try_join_all;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, core::IntoContainerPort, runners::AsyncRunner};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    Client, Error, Service,
    error::Doing,
    requests::{self, Installation, NATS_PORT, NATS_USERS},
    secrets::Secrets,
};

const READY_LIMIT: Duration = Duration::from_secs(240);
const MIGRATED_LIMIT: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(50);
/// Interval of asking the engine whether a container has ended.
const LOOK: Duration = Duration::from_millis(500);
/// A service stops within 8 s (`process.stop_grace_ms`).
const STOP_LIMIT_S: i32 = 20;
const LOG_LINES: usize = 40;

type Container = ContainerAsync<GenericImage>;

struct Replica {
    name: String,
    container: Container,
    /// Its address on this machine.
    url: String,
}

/// A running Signalbox; removed when dropped.
pub struct Signalbox {
    installation: Installation,
    image: String,
    replicas: BTreeMap<Service, Vec<Replica>>,
    /// The number of containers created so far, for unique names.
    made: usize,
    _demo_agent: Option<Container>,
    nats: Container,
    nats_address: String,
    postgres: Container,
}

/// What to run; the defaults are those of `docker-compose.yml`, and the same variables override them.
#[derive(Clone)]
pub struct Builder {
    installation: Installation,
    image: String,
}

impl Builder {
    /// The image of the services, `name:tag`.
    #[must_use]
    pub fn image(mut self, image: &str) -> Builder {
        image.clone_into(&mut self.image);
        self
    }

    /// The provider's URL, with kind `openresponses`, at an address that containers can reach; then no demo agent runs.
    #[must_use]
    pub fn provider_url(mut self, url: &str) -> Builder {
        self.installation.provider_url = Some(url.to_owned());
        self
    }

    /// Users of the NATS server, instead of those of `schemas/nats-users.conf`; for example of another version.
    #[must_use]
    pub fn nats_users(mut self, users: &str) -> Builder {
        users.clone_into(&mut self.installation.nats_users);
        self
    }

    /// A setting of all services, as a variable: `SIGNALBOX__SECTION__KEY`.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Builder {
        self.installation.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts everything in its order, one of each service, and returns when all are ready.
    pub async fn start(self) -> Result<Signalbox, Error> {
        let Builder { installation, image } = self;
        let (postgres, nats) = tokio::try_join!(
            begin(installation.postgres(), "postgres"),
            begin(installation.nats(), "nats")
        )?;
        let demo_agent = match installation.provider_url {
            Some(_) => None,
            None => Some(begin(installation.demo_agent(&image), "demo-agent").await?),
        };
        let mut signalbox = Signalbox {
            nats_address: address(&nats, "nats", NATS_PORT).await?,
            installation,
            image: image.clone(),
            replicas: BTreeMap::new(),
            made: 0,
            _demo_agent: demo_agent,
            nats,
            postgres,
        };
        signalbox.migrate(&image).await?;
        let wanted = Service::ALL.map(|service| (service, signalbox.next_name(service)));
        let started = wanted
            .iter()
            .map(|(service, name)| signalbox.replica(&image, *service, name.clone()));
        for (replica, service) in try_join_all(started).await?.into_iter().zip(Service::ALL) {
            signalbox.replicas.insert(service, vec![replica]);
        }
        Ok(signalbox)
    }
}

impl Signalbox {
    /// One of each service, from the images of `make images` or those that `SIGNALBOX_IMAGE`, `POSTGRES_IMAGE` and
    /// `NATS_IMAGE` name.
    pub async fn start() -> Result<Signalbox, Error> {
        Signalbox::builder().start().await
    }

    pub fn builder() -> Builder {
        let named = |variable: &str, default: &str| {
            let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
            value.unwrap_or_else(|| default.to_owned())
        };
        Builder {
            installation: Installation {
                prefix: format!("signalbox-{}", &Uuid::new_v4().simple().to_string()[..8]),
                secrets: Secrets::random(),
                postgres_image: named(
                    "POSTGRES_IMAGE",
                    "postgres:15-bookworm@sha256:539ceaaae49b3a7c8a04467cf00cc6788d8e3f1675df41860d86eebc4c40524f",
                ),
                nats_image: named("NATS_IMAGE", "nats:2.15.1-alpine"),
                nats_users: NATS_USERS.to_owned(),
                provider_url: None,
                environment: Vec::new(),
            },
            image: named("SIGNALBOX_IMAGE", concat!("signalbox:", env!("CARGO_PKG_VERSION"))),
        }
    }

    // ---- addresses and clients ------------------------------------------------------------------------------------

    /// A client of the API, as the operator, who has all rights in every account.
    pub fn client(&self) -> Client {
        Client::new(self.url(Service::Orchestrator), self.operator_token())
    }

    pub fn operator_token(&self) -> &str {
        &self.installation.secrets.operator_token
    }

    /// `nats://user:password@host:port` of user `publisher`, who publishes notifications of every account, and hears events
    /// and dead letters; replies arrive on `_I.publisher`. Some clients, such as async-nats, take user and password separately.
    pub fn nats_url(&self) -> String {
        let password = &self.installation.secrets.password;
        format!("nats://publisher:{password}@{}", self.nats_address)
    }

    /// The URL of the first replica: `/healthz`, `/readyz`, `/metrics`, and the API or the agents' tools.
    pub fn url(&self, service: Service) -> &str {
        let replicas = self.replicas.get(&service).map(Vec::as_slice).unwrap_or_default();
        &replicas.first().expect("one replica at least, or scale() first").url
    }

    pub fn replicas(&self, service: Service) -> usize {
        self.replicas.get(&service).map_or(0, Vec::len)
    }

    // ---- operations -----------------------------------------------------------------------------------

    /// Migrates the schema and the streams to an image's version.
    pub async fn migrate(&mut self, image: &str) -> Result<(), Error> {
        self.made += 1;
        let name = self.installation.container(&format!("migrate-{}", self.made));
        let request = self.installation.migrate(image, &format!("migrate-{}", self.made));
        let container = begin(request, &name).await?;
        let deadline = tokio::time::Instant::now() + MIGRATED_LIMIT;
        let code = loop {
            match container
                .exit_code()
                .await
                .doing(&name, "looking whether it has ended")?
            {
                Some(code) => break Some(code),
                None if tokio::time::Instant::now() >= deadline => break None,
                None => sleep(POLL).await,
            }
        };
        if code != Some(0) {
            let problem = code.map_or("did not end".to_owned(), |code| format!("ended with {code}"));
            return Err(unfit(&name, &container, problem).await);
        }
        container.rm().await.doing(&name, "removing it")
    }

    /// The image of further replicas.
    pub fn use_image(&mut self, image: &str) {
        image.clone_into(&mut self.image);
    }

    /// Sets the number of a service's replicas: starts new ones and waits until they are ready, or stops the newest in order.
    pub async fn scale(&mut self, service: Service, replicas: usize) -> Result<(), Error> {
        let there = self.replicas(service);
        let names: Vec<String> = (there..replicas).map(|_| self.next_name(service)).collect();
        let image = self.image.clone();
        let started = names.into_iter().map(|name| self.replica(&image, service, name));
        let started = try_join_all(started).await?;
        let all = self.replicas.entry(service).or_default();
        all.extend(started);
        let too_many = all.split_off(replicas.min(all.len()));
        try_join_all(too_many.into_iter().map(stop)).await.map(drop)
    }

    /// Kills the first replica of a service with SIGKILL: it finishes no work and notifies no other process.
    pub async fn kill(&mut self, service: Service) -> Result<(), Error> {
        let all = self.replicas.entry(service).or_default();
        if all.is_empty() {
            return Ok(());
        }
        let Replica { name, container, .. } = all.remove(0);
        // A removal by force sends SIGKILL.
        container.rm().await.doing(&name, "killing it")
    }

    /// Replaces every replica of a service by one of another image, one after the other: the new one is ready before the old
    /// one is stopped.
    pub async fn roll(&mut self, service: Service, image: &str) -> Result<(), Error> {
        for _ in 0..self.replicas(service) {
            let name = self.next_name(service);
            let new = self.replica(image, service, name).await?;
            let all = self.replicas.entry(service).or_default();
            let old = all.remove(0);
            all.push(new);
            stop(old).await?;
        }
        Ok(())
    }

    /// Kills the broker, and starts it again with its store.
    pub async fn restart_nats(&mut self) -> Result<(), Error> {
        restart(&self.nats, "nats").await?;
        self.nats_address = address(&self.nats, "nats", NATS_PORT).await?;
        Ok(())
    }

    /// Stops the broker in order and starts it with these users and its store, at the same address.
    pub async fn replace_nats_users(&mut self, users: &str) -> Result<(), Error> {
        let replaced = self.nats.exec(requests::replace_nats_users(users)).await;
        replaced.map(drop).doing("nats", "replacing its users")
    }

    /// Kills the database, and starts it again with its data.
    pub async fn restart_postgres(&mut self) -> Result<(), Error> {
        restart(&self.postgres, "postgres").await
    }

    /// The log of each replica of a service, for a test that failed.
    pub async fn logs(&self, service: Service) -> String {
        let mut logs = String::new();
        for replica in self.replicas.get(&service).into_iter().flatten() {
            logs.push_str(&format!("== {}\n{}\n", replica.name, log(&replica.container).await));
        }
        logs
    }

    fn next_name(&mut self, service: Service) -> String {
        self.made += 1;
        format!("{}-{}", service.name(), self.made)
    }

    async fn replica(&self, image: &str, service: Service, name: String) -> Result<Replica, Error> {
        let container = begin(self.installation.service(image, service, &name), &name).await?;
        let Ok(address) = address(&container, &name, service.port()).await else {
            // An ended container has no ports.
            return Err(unfit(&name, &container, "ended at once".to_owned()).await);
        };
        let url = format!("http://{address}");
        let client = Client::new(&url, "");
        // Both branches only read, so dropping either is safe.
        let problem = tokio::select! {
            is_ready = client.until_ready("/readyz", READY_LIMIT) => (!is_ready).then(|| "is not ready".to_owned()),
            code = ended(&container) => Some(format!("ended with {code}")),
        };
        if let Some(problem) = problem {
            return Err(unfit(&name, &container, problem).await);
        }
        Ok(Replica { name, container, url })
    }
}

async fn begin(request: ContainerRequest<GenericImage>, name: &str) -> Result<Container, Error> {
    request.start().await.doing(name, "starting it")
}

/// The exit code of a container, once it has ended.
async fn ended(container: &Container) -> i64 {
    loop {
        if let Ok(Some(code)) = container.exit_code().await {
            return code;
        }
        sleep(LOOK).await;
    }
}

/// Stops a container in order: its process finishes or aborts its work.
async fn stop(replica: Replica) -> Result<(), Error> {
    let Replica { name, container, .. } = replica;
    let stopped = container.stop_with_timeout(Some(STOP_LIMIT_S)).await;
    stopped.doing(&name, "stopping it")?;
    container.rm().await.doing(&name, "removing it")
}

async fn restart(container: &Container, name: &str) -> Result<(), Error> {
    let stopped = container.stop_with_timeout(Some(0)).await;
    stopped.doing(name, "stopping it")?;
    container.start().await.doing(name, "starting it again")
}

async fn address(container: &Container, name: &str, port: u16) -> Result<String, Error> {
    let host = container.get_host().await.doing(name, "asking for its address")?;
    let port = container.get_host_port_ipv4(port.tcp()).await;
    Ok(format!("{host}:{}", port.doing(name, "asking for its port")?))
}

async fn unfit(name: &str, container: &Container, problem: String) -> Error {
    Error::Unfit {
        container: name.to_owned(),
        problem,
        log: log(container).await,
    }
}

/// The last lines of its log, if they can be read.
async fn log(container: &Container) -> String {
    let mut bytes = container.stdout_to_vec().await.unwrap_or_default();
    bytes.extend(container.stderr_to_vec().await.unwrap_or_default());
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
