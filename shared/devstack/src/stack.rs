//! Both private servers below one data directory, and the lock that gives this process exclusive use.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use futures::FutureExt;
use futures::future::OptionFuture;

use crate::credentials::Credentials;
use crate::{Durability, NatsOptions, NatsServer, NatsUsers, PostgresOptions, PostgresServer};

/// The servers to start, and their directory.
#[derive(Clone, Debug)]
pub struct DevstackOptions {
    /// Created if missing. A restart in it finds the same data; only one process can use it at a time.
    pub data_dir: PathBuf,
    pub durability: Durability,
    /// Users of the NATS server; none: one user who may do everything.
    pub nats_users: Option<NatsUsers>,
    /// False if an external server is used.
    pub start_nats: bool,
    /// False if an external server is used.
    pub start_postgres: bool,
}

/// The running servers. [`Devstack::stop`] ends them in order. Dropping the value ends them too, and so does any end of
/// this process.
pub struct Devstack {
    nats: Option<NatsServer>,
    postgres: Option<PostgresServer>,
    /// Held until both servers are gone.
    _lock: File,
}

impl Devstack {
    pub async fn start(options: DevstackOptions) -> anyhow::Result<Devstack> {
        let data_dir = data_dir_open(&options.data_dir)?;
        let lock = data_dir_lock(&data_dir)?;
        let credentials = Credentials::load_or_create(&data_dir)?;
        let durability = options.durability;

        let nats = NatsOptions {
            directory: data_dir.join("nats"),
            durability,
            users: options.nats_users,
        };
        let postgres = PostgresOptions {
            directory: data_dir.join("postgres"),
            durability,
        };
        let nats = NatsServer::start_with_password(nats, credentials.nats_password);
        let postgres = PostgresServer::start_with_password(postgres, credentials.postgres_password);
        let nats = OptionFuture::from(options.start_nats.then_some(nats));
        let postgres = OptionFuture::from(options.start_postgres.then_some(postgres));
        let (nats, postgres) = tokio::try_join!(nats.map(Option::transpose), postgres.map(Option::transpose))?;
        Ok(Devstack {
            nats,
            postgres,
            _lock: lock,
        })
    }

    /// With the credentials; `None` if it was not started.
    pub fn nats_url(&self) -> Option<&str> {
        self.nats.as_ref().map(NatsServer::url)
    }

    /// The same for one of its users.
    pub fn nats_url_of(&self, user: &str) -> Option<String> {
        self.nats.as_ref().map(|nats| nats.url_of(user))
    }

    /// The database `signalbox` as its superuser; `None` if it was not started.
    pub fn database_url(&self) -> Option<&str> {
        self.postgres.as_ref().map(PostgresServer::database_url)
    }

    /// For faults and supervision; `None` if it was not started.
    pub fn nats(&mut self) -> Option<&mut NatsServer> {
        self.nats.as_mut()
    }

    /// For faults and supervision; `None` if it was not started.
    pub fn postgres(&mut self) -> Option<&mut PostgresServer> {
        self.postgres.as_mut()
    }

    /// Ends both servers in order: all data is written, no process is left.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let nats = OptionFuture::from(self.nats.as_mut().map(NatsServer::stop));
        let postgres = OptionFuture::from(self.postgres.as_mut().map(PostgresServer::stop));
        let (nats, postgres) = tokio::join!(nats, postgres);
        nats.unwrap_or(Ok(())).and(postgres.unwrap_or(Ok(())))
    }
}

/// Makes the data directory if it is missing. Returns its absolute path: the servers have another working directory.
pub fn data_dir_open(data_dir: &Path) -> anyhow::Result<PathBuf> {
    if !data_dir.exists() {
        // Other users may pass through to their own files (Postgres' user is not root), and list or read nothing.
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(data_dir)
            .with_context(|| format!("could not create the data directory {}", data_dir.display()))?;
    }
    fs::canonicalize(data_dir).with_context(|| format!("could not open the data directory {}", data_dir.display()))
}

fn data_dir_lock(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join("lock");
    let lock = File::create(&path).with_context(|| format!("could not create {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!("another process uses the data directory {}", data_dir.display()),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("could not lock {}", path.display())),
    }
}
