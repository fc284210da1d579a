//! The pool and the transaction.
//!
//! Two guards live here. *Cancelled transactions*: sqlx 0.9 can return a connection to the pool inside an open
//! transaction when a `begin()` is dropped half-way; the next borrower's autocommit write is then acknowledged and
//! lost, and a tenant setting survives into another tenant's query. Every connection is therefore rolled back on its
//! way into the pool (tests/it/cancelled_begin.rs fails without it), unless its transaction is known to have ended
//! ([`crate::connection`]). *Accounts*: a transaction begins by declaring which accounts it works for, in the same round
//! trip; row-level security does the rest. A statement that runs alone declares none, and sees what belongs to none.

use std::{ops::Deref, str::FromStr, time::Duration};

use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, FromQueryResult, SqlxPostgresConnector, Value};
use sqlx::{
    ConnectOptions, Connection, Executor, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::timeout;

use crate::{
    Accounts, StorageError,
    connection::{Connection as Borrowed, LastLoss, PreparedPool},
    error::Attempt,
    statement,
};

/// Which service is asking; the name of the Postgres role that the pool runs as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
    /// The login itself: migrations and the operator's checks. Never for serving.
    Owner,
}

impl Role {
    /// The service's name, as in `outbox.service` and in metrics.
    pub fn service(self) -> &'static str {
        match self {
            Self::Resolver => "resolver",
            Self::Delivery => "delivery",
            Self::ToolGateway => "tool-gateway",
            Self::Orchestrator => "orchestrator",
            Self::Owner => "owner",
        }
    }

    fn database_role(self) -> Option<&'static str> {
        match self {
            Self::Resolver => Some("signalbox_resolver"),
            Self::Delivery => Some("signalbox_delivery"),
            Self::ToolGateway => Some("signalbox_tool_gateway"),
            Self::Orchestrator => Some("signalbox_orchestrator"),
            Self::Owner => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct DatabaseOptions {
    pub connections_max: u32,
    pub acquire_timeout_ms: u64,
    /// No statement of ours is meant to take longer; the server ends it.
    pub statement_timeout_ms: u64,
    pub lock_timeout_ms: u64,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self {
            connections_max: 16,
            acquire_timeout_ms: 5_000,
            statement_timeout_ms: 20_000,
            lock_timeout_ms: 10_000,
        }
    }
}

/// Of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    pub open: u32,
    /// Of those, how many nobody uses.
    pub idle: u32,
    pub max: u32,
}

/// A pool that runs as one service's role. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    connection: DatabaseConnection,
    shelf: PreparedPool,
    role: Role,
    plans_once: bool,
    statement_max: Duration,
    is_hurried: bool,
}

/// Of a statement's time, what is given to one that is hurried; no less than a second.
const HURRIED_PART: u32 = 10;
const HURRIED_MIN: Duration = Duration::from_secs(1);

impl Database {
    /// Connects, and proves with one query that the role may be taken.
    pub async fn connect(url: &str, role: Role, options: &DatabaseOptions) -> Result<Database, StorageError> {
        let last_loss = LastLoss::default();
        let pool = pool(url, role, options, &last_loss).await?;
        Ok(Self {
            connection: SqlxPostgresConnector::from_sqlx_postgres_pool(pool.clone()),
            shelf: PreparedPool::new(pool, last_loss),
            role,
            plans_once: false,
            statement_max: Duration::from_millis(options.statement_timeout_ms),
            is_hurried: false,
        })
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// The same, for statements that take batches, where not all of the role's are planned once ([`PLANNED_ONCE`]).
    #[must_use]
    pub fn for_batches(&self) -> Database {
        Database {
            plans_once: !is_planned_once(self.role),
            ..self.clone()
        }
    }

    /// The same, for who looks for what is too slow in a batch ([`crate::Parts`]) while others wait: a transaction's
    /// statements have a tenth of their time.
    #[must_use]
    pub fn hurried(&self) -> Database {
        Database {
            is_hurried: true,
            ..self.clone()
        }
    }

    /// A transaction for these accounts and no others. Nothing was done where it could not begin: on a connection that had
    /// ended, it begins on another one.
    pub async fn begin(&self, accounts: &Accounts) -> Result<Tx, StorageError> {
        let begin = begin(accounts, self.plans_once);
        if self.is_hurried {
            let max = (self.statement_max / HURRIED_PART)
                .max(HURRIED_MIN)
                .min(self.statement_max);
            return self.begin_as(begin + &statement_limit(max)).await;
        }
        self.begin_as(begin).await
    }

    /// The same for reading a list: no statement takes longer than this, and rows come in the order of an index. A plan
    /// that gathers all rows and sorts them may look cheaper, as long as nobody has counted them.
    pub async fn begin_list(&self, accounts: &Accounts, statement_max: Duration) -> Result<Tx, StorageError> {
        let begin = begin(accounts, self.plans_once) + &statement_limit(statement_max) + IN_ORDER;
        self.begin_as(begin).await
    }

    async fn begin_as(&self, begin: String) -> Result<Tx, StorageError> {
        let mut is_again = false;
        loop {
            let connection = self.shelf.take().await.attempt("begin")?;
            match connection.run(begin.clone()).await {
                Ok(()) => {
                    return Ok(Tx {
                        connection,
                        shelf: self.shelf.clone(),
                        role: self.role,
                    });
                }
                // From now on, no connection that is older than this loss comes from the shelf or the pool.
                Err(error) if self.shelf.failed(&error) && !is_again => is_again = true,
                Err(error) => return Err(error).attempt("begin"),
            }
        }
    }

    /// Rows of a statement that works for no account and is a transaction of its own: one round trip instead of three.
    pub async fn query_alone<T: FromQueryResult>(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Vec<T>, StorageError> {
        let connection = self.shelf.take().await.attempt(attempt)?;
        let rows = T::find_by_statement(statement(sql, values)).all(&connection).await;
        self.after_one(connection, rows).attempt(attempt)
    }

    /// Runs such a statement; gives how many rows it touched.
    pub async fn execute_alone(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<u64, StorageError> {
        let connection = self.shelf.take().await.attempt(attempt)?;
        let executed = connection.execute_raw(statement(sql, values)).await;
        self.after_one(connection, executed)
            .attempt(attempt)
            .map(|done| done.rows_affected())
    }

    /// Answered, a statement without a transaction has left none. One whose connection ended may have been executed: it is its
    /// caller's to try again.
    fn after_one<T>(&self, connection: Borrowed, done: Result<T, DbErr>) -> Result<T, DbErr> {
        match &done {
            Ok(_) => self.shelf.put(connection),
            Err(error) => {
                self.shelf.failed(error);
            }
        }
        done
    }

    /// For readiness: one round trip. What an old connection says of the server is not the answer.
    pub async fn ping(&self) -> Result<(), StorageError> {
        let ping = async || self.connection.execute_unprepared("select 1").await;
        let answer = match ping().await {
            Err(error) if self.shelf.failed(&error) => ping().await,
            answer => answer,
        };
        answer.attempt("ping").map(|_| ())
    }

    /// The pool itself, for migrations and the operator's checks.
    pub fn connection(&self) -> &DatabaseConnection {
        &self.connection
    }

    /// How many connections there are now, for gauges.
    pub fn connections(&self) -> Connections {
        let pool = self.connection.get_postgres_connection_pool();
        let (open, idle) = (pool.size(), pool.num_idle() + self.shelf.len());
        Connections {
            idle: u32::try_from(idle).unwrap_or(u32::MAX).min(open),
            open,
            max: pool.options().get_max_connections(),
        }
    }

    pub async fn close(&self) {
        let closing = self.connection.get_postgres_connection_pool().close();
        // From here on nothing is put there.
        self.shelf.clear();
        closing.await;
    }
}

/// Begins and declares, in one text: what takes parameters takes a round trip of its own. It is the one statement that
/// is put together, from the names of accounts, which have no character that could end a text.
fn begin(accounts: &Accounts, plans_once: bool) -> String {
    let names = accounts.setting();
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == ',';
    assert!(
        names.chars().all(is_name),
        "an account's name is made of letters, digits and hyphens"
    );
    let plans = if plans_once {
        format!("; set local {} = {}", PLANNED_ONCE.0, PLANNED_ONCE.1)
    } else {
        String::new()
    };
    format!("begin; select set_config('signalbox.accounts', '{names}', true){plans}")
}

fn statement_limit(max: Duration) -> String {
    format!("; set local statement_timeout = {}", max.as_millis())
}

/// A service looks rows up by their keys, a batch at a time, and prepares that once. A plan must not depend on whether
/// the tables were small, or not counted yet, when it was made: so there is one way left to join and to find a row, and
/// no compiling of plans that pretend to be expensive. Of several indexes, it is the one that needs the fewest entries read,
/// each of which counts like a page: by the server's own prices, all entries of an account in a table that looks small
/// cost what one does.
const PLANS: [(&str, &str); 5] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("cpu_index_tuple_cost", "4"),
    ("jit", "off"),
];

/// For lists, beside [`PLANS`].
const IN_ORDER: &str = "; set local enable_bitmapscan = off; set local enable_sort = off";

/// A plan is made once for a connection. Left to itself the server makes one for each execution of a statement that takes
/// a batch: knowing that this one is short, it expects less of it than of any batch, and never compares that with what the
/// planning costs, which is several times as much as a short batch.
const PLANNED_ONCE: (&str, &str) = ("plan_cache_mode", "force_generic_plan");

/// The orchestrator's lists have filters that are there or not, and the plan for all of them serves none.
fn is_planned_once(role: Role) -> bool {
    match role {
        Role::Resolver | Role::Delivery | Role::ToolGateway => true,
        Role::Orchestrator | Role::Owner => false,
    }
}

/// Where a statement finds what it names: never first among temporary objects, as where nothing is said.
const SEARCH_PATH: &str = "public,pg_temp";

async fn pool(
    url: &str,
    role: Role,
    options: &DatabaseOptions,
    last_loss: &LastLoss,
) -> Result<sqlx::PgPool, StorageError> {
    let last_loss = last_loss.clone();
    let mut connect = PgConnectOptions::from_str(url)
        .map_err(|source| StorageError::Connect { source })?
        .application_name(&format!("signalbox-{}", role.service()))
        .options([
            ("statement_timeout", options.statement_timeout_ms.to_string()),
            ("lock_timeout", options.lock_timeout_ms.to_string()),
            // a transaction that its holder forgot must not hold locks for ever
            ("idle_in_transaction_session_timeout", "30000".to_owned()),
            // the guard's ROLLBACK outside a transaction is a warning, and means that all is well
            ("client_min_messages", "error".to_owned()),
            ("tcp_keepalives_idle", "10".to_owned()),
            ("tcp_keepalives_interval", "5".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
            ("search_path", SEARCH_PATH.to_owned()),
        ]);
    // Statements hold ids, and slow ones are the database's own to report.
    connect = connect.disable_statement_logging();
    if let Some(name) = role.database_role() {
        connect = connect.options([("role", name)]).options(PLANS);
        if is_planned_once(role) {
            connect = connect.options([PLANNED_ONCE]);
        }
    }
    let pool = PgPoolOptions::new()
        .max_connections(options.connections_max)
        .acquire_timeout(Duration::from_millis(options.acquire_timeout_ms))
        // a connection that broke shows itself at its first statement; asking before each use costs a round trip
        .test_before_acquire(false)
        .before_acquire(move |_, connection| {
            let is_good = !last_loss.is_after(connection.age);
            Box::pin(async move { Ok(is_good) })
        })
        .after_release(|connection, _| {
            Box::pin(async move {
                connection.execute("ROLLBACK").await?;
                Ok(true)
            })
        });
    // One connection outside of the pool first: the pool would try again in silence and then say no more than that its
    // time was over, whatever the server had answered.
    let limit = Duration::from_millis(options.acquire_timeout_ms);
    timeout(limit, PgConnection::connect_with(&connect))
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(|source| StorageError::Connect { source })?
        .close()
        .await
        .ok();
    Ok(pool.connect_lazy_with(connect))
}

/// A transaction that declared its accounts. Dropped without [`Tx::commit`], it is rolled back.
#[derive(Debug)]
pub struct Tx {
    connection: Borrowed,
    shelf: PreparedPool,
    role: Role,
}

impl Tx {
    pub fn role(&self) -> Role {
        self.role
    }

    /// The rows of a statement.
    pub async fn rows<T: FromQueryResult>(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Vec<T>, StorageError> {
        let rows = T::find_by_statement(statement(sql, values)).all(&self.connection).await;
        rows.attempt(attempt)
    }

    /// The first row of a statement, if there is one.
    pub async fn one<T: FromQueryResult>(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Option<T>, StorageError> {
        let row = T::find_by_statement(statement(sql, values)).one(&self.connection).await;
        row.attempt(attempt)
    }

    /// Whether a statement gives a row.
    pub async fn exists(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<bool, StorageError> {
        let row = self.connection.query_one_raw(statement(sql, values)).await;
        row.attempt(attempt).map(|row| row.is_some())
    }

    /// Runs a statement; gives how many rows it touched.
    pub async fn execute(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<u64, StorageError> {
        let done = self.connection.execute_raw(statement(sql, values)).await;
        done.attempt(attempt).map(|done| done.rows_affected())
    }

    /// An error here does not say whether the commit happened: what follows must be safe to do again.
    pub async fn commit(self) -> Result<(), StorageError> {
        self.end("commit").await
    }

    /// Commits what was done, or takes it back at once: its locks are free for who tries again.
    pub async fn commit_or_rollback<T>(self, done: Result<T, StorageError>) -> Result<T, StorageError> {
        match done {
            Ok(value) => self.commit().await.map(|()| value),
            Err(error) => {
                // Where that fails, the connection is gone and the locks with it.
                let _ = self.rollback().await;
                Err(error)
            }
        }
    }

    /// Undoes everything now, rather than whenever the connection is next used.
    pub async fn rollback(self) -> Result<(), StorageError> {
        self.end("rollback").await
    }

    async fn end(self, how: &'static str) -> Result<(), StorageError> {
        self.connection.run(how.to_owned()).await.attempt(how)?;
        self.shelf.put(self.connection);
        Ok(())
    }
}

impl Deref for Tx {
    type Target = Borrowed;
    fn deref(&self) -> &Borrowed {
        &self.connection
    }
}
