//! A connection of the pool in use by a transaction, as sea-orm's statements expect it; and the prepared pool, which
//! keeps connections whose last transaction is known to have ended.
//!
//! The pool makes two round trips for each returned connection (the guard's `ROLLBACK`, and a liveness check), because
//! it cannot know the connection's state. After the server's answer to a `COMMIT` the state is known: such a connection
//! goes to the prepared pool and to the next transaction unchanged. After any other end of a transaction (an error, a
//! dropped future, a missing answer) the connection goes to the pool and its guard.

use std::{
    sync::{Arc, Mutex as Lock, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sea_orm::{
    ConnectionTrait, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr, Statement,
    prelude::async_trait::async_trait,
};
use sea_query_sqlx::SqlxValues;
use sqlx::{AssertSqlSafe, Executor, PgPool, Postgres, pool::PoolConnection, query::Query};
use tokio::sync::Mutex;

use crate::error::is_connection_lost;

/// The maximum number of prepared connections. More are rarely in use at once, and the pool closes its surplus.
const PREPARED_MAX: usize = 8;
/// A connection that has been borrowed for longer returns to the pool, which replaces old ones.
const PREPARED_FOR: Duration = Duration::from_secs(20 * 60);

/// Runs statements one after the other.
#[derive(Debug)]
pub struct Connection {
    inner: Mutex<PoolConnection<Postgres>>,
    borrowed: Instant,
}

impl Connection {
    /// Runs one or several statements without parameters, in one round trip.
    pub(crate) async fn run(&self, sql: String) -> Result<(), DbErr> {
        let mut inner = self.inner.lock().await;
        let run = Executor::execute(&mut **inner, AssertSqlSafe(sql));
        run.await.map(|_| ()).map_err(exec_error)
    }
}

/// The statement with its values moved, not copied: bodies are large.
fn query(statement: Statement) -> Query<'static, Postgres, SqlxValues> {
    let values = statement.values.unwrap_or(sea_orm::Values(Vec::new()));
    sqlx::query_with(AssertSqlSafe(statement.sql), SqlxValues(values))
}

fn exec_error(error: sqlx::Error) -> DbErr {
    DbErr::Exec(RuntimeErr::SqlxError(Arc::new(error)))
}

fn query_error(error: sqlx::Error) -> DbErr {
    DbErr::Query(RuntimeErr::SqlxError(Arc::new(error)))
}

#[async_trait]
impl ConnectionTrait for Connection {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        let mut inner = self.inner.lock().await;
        let executed = query(statement).execute(&mut **inner).await;
        executed.map(ExecResult::from).map_err(exec_error)
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let mut inner = self.inner.lock().await;
        let executed = Executor::execute(&mut **inner, AssertSqlSafe(sql.to_owned())).await;
        executed.map(ExecResult::from).map_err(exec_error)
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        let mut inner = self.inner.lock().await;
        let row = query(statement).fetch_optional(&mut **inner).await;
        row.map(|row| row.map(QueryResult::from)).map_err(query_error)
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        let mut inner = self.inner.lock().await;
        let rows = query(statement).fetch_all(&mut **inner).await;
        rows.map(|rows| rows.into_iter().map(QueryResult::from).collect())
            .map_err(query_error)
    }
}

/// When a connection was last found to be ended by the server. A server that stops ends all connections, and the client
/// notices only when it uses one. So older connections are not used again, which needs no round trip.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastLoss(Arc<Lock<Option<Instant>>>);

impl LastLoss {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection of this age was made before the loss.
    pub(crate) fn is_after(&self, age: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() <= age)
    }
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PreparedPool {
    pool: PgPool,
    last_loss: LastLoss,
    state: Arc<Lock<State>>,
}

#[derive(Debug)]
struct State {
    ready: Vec<Connection>,
    /// The maximum number of prepared connections. At least one connection stays with the pool.
    ready_max: usize,
    /// The number of callers that wait for the pool. The pool cannot see prepared connections, so none is added
    /// meanwhile.
    waiting: usize,
}

impl PreparedPool {
    pub(crate) fn new(pool: PgPool, last_loss: LastLoss) -> PreparedPool {
        let connections = pool.options().get_max_connections();
        let spare = usize::try_from(connections).unwrap_or(usize::MAX).saturating_sub(1);
        let state = State {
            ready: Vec::new(),
            ready_max: spare.min(PREPARED_MAX),
            waiting: 0,
        };
        PreparedPool {
            pool,
            last_loss,
            state: Arc::new(Lock::new(state)),
        }
    }

    /// A connection without a transaction: the most recently prepared one, or one of the pool's.
    pub(crate) async fn take(&self) -> Result<Connection, DbErr> {
        let waiting = {
            let mut state = self.state();
            if let Some(connection) = state.ready.pop() {
                return Ok(connection);
            }
            state.waiting += 1;
            Waiting(self)
        };
        // Boxed: a large future on a rare path, which would enlarge every transaction's future.
        let acquired = Box::pin(self.pool.acquire()).await;
        drop(waiting);
        let inner = acquired.map_err(|error| DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error))))?;
        Ok(Connection {
            inner: Mutex::new(inner),
            borrowed: Instant::now(),
        })
    }

    /// Takes back a connection whose transaction is known to have ended.
    pub(crate) fn put(&self, connection: Connection) {
        let mut state = self.state();
        let has_room = state.waiting == 0 && state.ready.len() < state.ready_max;
        if has_room && connection.borrowed.elapsed() < PREPARED_FOR && !self.pool.is_closed() {
            state.ready.push(connection);
        }
    }

    /// The number of prepared connections.
    pub(crate) fn len(&self) -> usize {
        self.state().ready.len()
    }

    /// Checks an error of a connection's first statement: whether the server had ended the connection.
    pub(crate) fn failed(&self, error: &DbErr) -> bool {
        let is_lost = is_connection_lost(error);
        if is_lost {
            self.last_loss.note();
        }
        self.clear();
        is_lost
    }

    /// Returns all connections to the pool: one of them turned out to be broken, or the pool is closing.
    pub(crate) fn clear(&self) {
        let ready = std::mem::take(&mut self.state().ready);
        drop(ready);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a caller that waits for the pool, until dropped.
struct Waiting<'a>(&'a PreparedPool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl Drop for State {
    /// Connections return to the pool in a task. Without a runtime to run it, the process is ending, and the server
    /// closes the connections itself.
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_err() {
            std::mem::forget(std::mem::take(&mut self.ready));
        }
    }
}
