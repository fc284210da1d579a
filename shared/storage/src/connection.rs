//! One connection of the pool in the hands of a transaction, as sea-orm's statements expect it; and the shelf, where
//! connections lie ready whose last transaction is known to have ended.
//!
//! The pool asks the server twice about each connection that comes back (the guard's `ROLLBACK`, and whether it is still
//! there), because it cannot know how it was left. Who has the server's answer to a `COMMIT` knows: such a connection
//! goes onto the shelf and to the next transaction as it is. Whatever else ends a transaction (an error, a future that
//! was dropped, an answer that never came) hands its connection to the pool and its guard.

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

/// Connections that lie ready; more are rarely in use at once, and the pool closes what it has too many of.
const SHELVED_MAX: usize = 8;
/// A connection that has been in use for longer goes back to the pool, which replaces old ones.
const SHELVED_FOR: Duration = Duration::from_secs(20 * 60);

/// Runs one statement after the other.
#[derive(Debug)]
pub struct Connection {
    inner: Mutex<PoolConnection<Postgres>>,
    borrowed: Instant,
}

impl Connection {
    /// A statement, or several, without parameters, in one round trip.
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

/// When it was last found that the server had ended a connection. A server that ends has ended them all, and none of them
/// says so before it is used: those that are older are not used again, which costs nobody a question.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastLoss(Arc<Lock<Option<Instant>>>);

impl LastLoss {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection of this age was made before it.
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
    /// How many may lie ready. At least one of the pool's stays the pool's own.
    ready_max: usize,
    /// Who waits for the pool, which knows nothing of the shelf: nothing is put there meanwhile.
    waiting: usize,
}

impl PreparedPool {
    pub(crate) fn new(pool: PgPool, last_loss: LastLoss) -> PreparedPool {
        let connections = pool.options().get_max_connections();
        let spare = usize::try_from(connections).unwrap_or(usize::MAX).saturating_sub(1);
        let state = State {
            ready: Vec::new(),
            ready_max: spare.min(SHELVED_MAX),
            waiting: 0,
        };
        PreparedPool {
            pool,
            last_loss,
            state: Arc::new(Lock::new(state)),
        }
    }

    /// A connection without a transaction: the one that was used last, or one of the pool's.
    pub(crate) async fn take(&self) -> Result<Connection, DbErr> {
        let waiting = {
            let mut state = self.state();
            if let Some(connection) = state.ready.pop() {
                return Ok(connection);
            }
            state.waiting += 1;
            Waiting(self)
        };
        // Boxed: rarely taken, and large for every transaction that is not.
        let acquired = Box::pin(self.pool.acquire()).await;
        drop(waiting);
        let inner = acquired.map_err(|error| DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error))))?;
        Ok(Connection {
            inner: Mutex::new(inner),
            borrowed: Instant::now(),
        })
    }

    /// For a connection whose transaction is known to have ended.
    pub(crate) fn put(&self, connection: Connection) {
        let mut state = self.state();
        let has_room = state.waiting == 0 && state.ready.len() < state.ready_max;
        if has_room && connection.borrowed.elapsed() < SHELVED_FOR && !self.pool.is_closed() {
            state.ready.push(connection);
        }
    }

    /// How many lie ready.
    pub(crate) fn len(&self) -> usize {
        self.state().ready.len()
    }

    /// After an error of a connection's first statement: whether the server had ended the connection.
    pub(crate) fn failed(&self, error: &DbErr) -> bool {
        let is_lost = is_connection_lost(error);
        if is_lost {
            self.last_loss.note();
        }
        self.clear();
        is_lost
    }

    /// Gives all to the pool: one of them turned out to be broken, or the pool is to be closed.
    pub(crate) fn clear(&self) {
        let ready = std::mem::take(&mut self.state().ready);
        drop(ready);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody waits for the pool, until dropped.
struct Waiting<'a>(&'a PreparedPool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

impl Drop for State {
    /// Connections go back to the pool by a task. Where no runtime is left to run it, the process is ending, and the
    /// server sees that by itself.
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_err() {
            std::mem::forget(std::mem::take(&mut self.ready));
        }
    }
}
