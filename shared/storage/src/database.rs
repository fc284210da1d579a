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

/// The service, and the Postgres role that its pool runs as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
    /// The login itself, for migrations and the operator's checks. Never for serving.
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
    /// The server ends a statement that takes longer.
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

/// The connections of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    pub open: u32,
    /// Idle connections among them.
    pub idle: u32,
    pub max: u32,
}

/// A pool that runs as one service's role. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    connection: DatabaseConnection,
    prepared: PreparedPool,
    role: Role,
    plans_once: bool,
    statement_max: Duration,
    /// Settings of its transactions, as statements that follow their begin.
    limits: String,
}

/// The divisor of the statement timeout in a hurried transaction; the result is at least a second.
const HURRIED_PART: u32 = 10;
const HURRIED_MIN: Duration = Duration::from_secs(1);

impl Database {
    /// Connects, and verifies with one query that the role may be taken.
    pub async fn connect(url: &str, role: Role, options: &DatabaseOptions) -> Result<Database, StorageError> {
        let last_loss = LastLoss::default();
        let pool = pool(url, role, options, &last_loss).await?;
        Ok(Self {
            connection: SqlxPostgresConnector::from_sqlx_postgres_pool(pool.clone()),
            prepared: PreparedPool::new(pool, last_loss),
            role,
            plans_once: false,
            statement_max: Duration::from_millis(options.statement_timeout_ms),
            limits: String::new(),
        })
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// The same pool for statements that take batches, where not all of the role's statements are planned once
    /// ([`PLANNED_ONCE`]).
    #[must_use]
    pub fn for_batches(&self) -> Database {
        Database {
            plans_once: !is_planned_once(self.role),
            ..self.clone()
        }
    }

    /// The same pool for a search for the slow part of a batch ([`crate::Parts`]) while others wait: a transaction's
    /// statements have a tenth of their time.
    #[must_use]
    pub fn hurried(&self) -> Database {
        let max = (self.statement_max / HURRIED_PART)
            .max(HURRIED_MIN)
            .min(self.statement_max);
        self.limited(&limit("statement_timeout", max))
    }

    /// The same pool for a transaction that others wait for: its statements wait this long for a lock.
    #[must_use]
    pub fn with_lock_timeout(&self, max: Duration) -> Database {
        self.limited(&limit("lock_timeout", max))
    }

    fn limited(&self, limit: &str) -> Database {
        Database {
            limits: format!("{}{limit}", self.limits),
            ..self.clone()
        }
    }

    /// A transaction for these accounts and no others. If it fails to begin, no statement has run; on a connection that
    /// had ended, it begins on another one.
    pub async fn begin(&self, accounts: &Accounts) -> Result<Tx, StorageError> {
        self.begin_as(begin(accounts, self.plans_once) + &self.limits).await
    }

    /// The same for reading a list: no statement takes longer than this, and rows are read in the order of an index.
    /// Without statistics, a plan that gathers all rows and sorts them may look cheaper.
    pub async fn begin_list(&self, accounts: &Accounts, statement_max: Duration) -> Result<Tx, StorageError> {
        let begin = begin(accounts, self.plans_once) + &limit("statement_timeout", statement_max) + IN_ORDER;
        self.begin_as(begin).await
    }

    async fn begin_as(&self, begin: String) -> Result<Tx, StorageError> {
        let mut is_again = false;
        loop {
            let connection = self.prepared.take().await.attempt("begin")?;
            match connection.run(begin.clone()).await {
                Ok(()) => {
                    return Ok(Tx {
                        connection,
                        prepared: self.prepared.clone(),
                        role: self.role,
                    });
                }
                // From now on, no connection that is older than this loss is used, prepared or pooled.
                Err(error) if self.prepared.failed(&error) && !is_again => is_again = true,
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
        let connection = self.prepared.take().await.attempt(attempt)?;
        let rows = T::find_by_statement(statement(sql, values)).all(&connection).await;
        self.after_one(connection, rows).attempt(attempt)
    }

    /// Executes such a statement; returns the number of rows it touched.
    pub async fn execute_alone(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<u64, StorageError> {
        let connection = self.prepared.take().await.attempt(attempt)?;
        let executed = connection.execute_raw(statement(sql, values)).await;
        self.after_one(connection, executed)
            .attempt(attempt)
            .map(|done| done.rows_affected())
    }

    /// After a successful answer, a statement without a transaction leaves no transaction open. If the connection
    /// ended, the statement may have been executed: its caller decides about a retry.
    fn after_one<T>(&self, connection: Borrowed, done: Result<T, DbErr>) -> Result<T, DbErr> {
        match &done {
            Ok(_) => self.prepared.put(connection),
            Err(error) => {
                self.prepared.failed(error);
            }
        }
        done
    }

    /// For readiness: one round trip. An error of a stale connection is no answer: the ping is repeated on another one.
    pub async fn ping(&self) -> Result<(), StorageError> {
        let ping = async || self.connection.execute_unprepared("select 1").await;
        let answer = match ping().await {
            Err(error) if self.prepared.failed(&error) => ping().await,
            answer => answer,
        };
        answer.attempt("ping").map(|_| ())
    }

    /// The pool itself, for migrations and the operator's checks.
    pub fn connection(&self) -> &DatabaseConnection {
        &self.connection
    }

    /// The current number of connections, for gauges.
    pub fn connections(&self) -> Connections {
        let pool = self.connection.get_postgres_connection_pool();
        let (open, idle) = (pool.size(), pool.num_idle() + self.prepared.len());
        Connections {
            idle: u32::try_from(idle).unwrap_or(u32::MAX).min(open),
            open,
            max: pool.options().get_max_connections(),
        }
    }

    pub async fn close(&self) {
        let closing = self.connection.get_postgres_connection_pool().close();
        // No connection is prepared from here on.
        self.prepared.clear();
        closing.await;
    }
}

/// Begins and declares the accounts, in one text: a statement with parameters takes a round trip of its own. It is the
/// only statement that is built at run time, from the names of accounts and of a person, which have no character that could end a text.
fn begin(accounts: &Accounts, plans_once: bool) -> String {
    let (names, person) = (accounts.names(), accounts.person());
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-,_.*".contains(c);
    assert!(
        names.chars().chain(person.chars()).all(is_name),
        "a name is made of letters, digits, points and lines"
    );
    let person = match person {
        "" => String::new(),
        person => format!(", set_config('signalbox.person', '{person}', true)"),
    };
    let plans = if plans_once {
        format!("; set local {} = {}", PLANNED_ONCE.0, PLANNED_ONCE.1)
    } else {
        String::new()
    };
    format!("begin; select set_config('signalbox.accounts', '{names}', true){person}{plans}")
}

fn limit(setting: &str, max: Duration) -> String {
    format!("; set local {setting} = {}", max.as_millis())
}

/// A service looks rows up by their keys, a batch at a time, and prepares that statement once. Its plan must not depend
/// on whether the tables were small, or had no statistics yet, when it was made. So only one way to join and to find a
/// row is enabled, and JIT compilation is off. Of several indexes, the planner takes the one with the fewest entries to
/// read, each of which costs as much as a page: by the server's default prices, reading all entries of an account in a
/// small table costs the same as reading one.
const PLANS: [(&str, &str); 5] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("cpu_index_tuple_cost", "4"),
    ("jit", "off"),
];

/// For lists, added to [`PLANS`].
const IN_ORDER: &str = "; set local enable_bitmapscan = off; set local enable_sort = off";

/// A plan is made once for a connection. By default the server plans each execution of a statement that takes a batch:
/// it expects a short batch to be cheaper than the generic one, and ignores the cost of planning, which is several
/// times that of a short batch.
const PLANNED_ONCE: (&str, &str) = ("plan_cache_mode", "force_generic_plan");

/// The orchestrator's lists have optional filters, and no generic plan suits all of them.
fn is_planned_once(role: Role) -> bool {
    match role {
        Role::Resolver | Role::Delivery | Role::ToolGateway => true,
        Role::Orchestrator | Role::Owner => false,
    }
}

/// The schemas of unqualified names: temporary objects come last. By default they come first.
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
            // an abandoned transaction must not hold locks for ever
            ("idle_in_transaction_session_timeout", "30000".to_owned()),
            // the guard's ROLLBACK outside a transaction raises a harmless warning
            ("client_min_messages", "error".to_owned()),
            ("tcp_keepalives_idle", "10".to_owned()),
            ("tcp_keepalives_interval", "5".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
            ("search_path", SEARCH_PATH.to_owned()),
        ]);
    // Statements contain ids, and the database logs slow ones itself.
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
        // a broken connection fails at its first statement; a test before each use costs a round trip
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
    // Connects once outside of the pool first: the pool would retry silently and then only report a timeout, whatever
    // the server's error was.
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
    prepared: PreparedPool,
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

    /// Whether a statement returns a row.
    pub async fn exists(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<bool, StorageError> {
        let row = self.connection.query_one_raw(statement(sql, values)).await;
        row.attempt(attempt).map(|row| row.is_some())
    }

    /// Executes a statement; returns the number of rows it touched.
    pub async fn execute(
        &self,
        attempt: &'static str,
        sql: &'static str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<u64, StorageError> {
        let done = self.connection.execute_raw(statement(sql, values)).await;
        done.attempt(attempt).map(|done| done.rows_affected())
    }

    /// An error here does not say whether the commit happened: the caller's next steps must be idempotent.
    pub async fn commit(self) -> Result<(), StorageError> {
        self.end("commit").await
    }

    /// Commits, or rolls back at once, so that its locks are free for a retry.
    pub async fn commit_or_rollback<T>(self, done: Result<T, StorageError>) -> Result<T, StorageError> {
        match done {
            Ok(value) => self.commit().await.map(|()| value),
            Err(error) => {
                // If the rollback fails, the connection is gone and the locks with it.
                let _ = self.rollback().await;
                Err(error)
            }
        }
    }

    /// Rolls back now, rather than when the connection is next used.
    pub async fn rollback(self) -> Result<(), StorageError> {
        self.end("rollback").await
    }

    async fn end(self, how: &'static str) -> Result<(), StorageError> {
        self.connection.run(how.to_owned()).await.attempt(how)?;
        self.prepared.put(self.connection);
        Ok(())
    }
}

impl Deref for Tx {
    type Target = Borrowed;
    fn deref(&self) -> &Borrowed {
        &self.connection
    }
}
