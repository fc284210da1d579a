//! Replicas: live processes, by the database's clock. A lease names its holder's replica and is void when that row has
//! expired, so that renewing one row twice a second renews every lease of a process.

use sea_orm::{DbErr, FromQueryResult, RuntimeErr};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Accounts, Database, StorageError, error::Attempt};

/// A connection that shows other replicas that this process is alive: it holds an advisory lock, which the server
/// releases when the connection ends. Then the process's leases may be taken over at once.
#[derive(Debug)]
pub struct Presence {
    key: i64,
    _connection: PgConnection,
}

impl Presence {
    /// Opens the connection. If an earlier connection of the process still holds the lock, that does as well.
    pub async fn show(database: &Database, id: Uuid) -> Result<Presence, StorageError> {
        const ATTEMPT: &str = "take presence lock";
        let failed = |error| DbErr::Conn(RuntimeErr::SqlxError(std::sync::Arc::new(error)));
        let pool = database.connection().get_postgres_connection_pool();
        let mut connection = pool.acquire().await.map_err(failed).attempt(ATTEMPT)?.detach();
        let (_, key) = id.as_u64_pair();
        let key = key.cast_signed();
        sqlx::query(PRESENCE_SHOW)
            .bind(key)
            .execute(&mut connection)
            .await
            .map_err(failed)
            .attempt(ATTEMPT)?;
        Ok(Presence {
            key,
            _connection: connection,
        })
    }
}

const PRESENCE_SHOW: &str = "select pg_try_advisory_lock($1)";

/// SQL: whether the presence lock of a row of `replica` is held. A replica without one is judged by its expiry alone,
/// and so is every replica for a while after a start of the server, which ends every connection.
#[macro_export]
macro_rules! replica_present {
    ($replica:literal) => {
        concat!(
            "(",
            $replica,
            ".presence is null or pg_postmaster_start_time() > now() - interval '5 seconds' or exists (
                select from pg_locks l
                where l.locktype = 'advisory' and l.objsubid = 1
                  and (l.classid::bigint << 32) | l.objid::bigint = ",
            $replica,
            ".presence))"
        )
    };
}

/// Registers a new replica that is alive for `lease_ms`, and, with a presence lock, only while the lock is held.
pub async fn replica_register(
    database: &Database,
    id: Uuid,
    lease_ms: i64,
    presence: Option<&Presence>,
) -> Result<(), StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    // Dead rows are unused once their leases were taken over; a day is far longer than that takes.
    tx.execute("remove dead replicas", REPLICA_REMOVE_DEAD, []).await?;
    let values = [
        id.into(),
        database.role().service().into(),
        lease_ms.into(),
        presence.map(|presence| presence.key).into(),
    ];
    tx.execute("register replica", REPLICA_INSERT, values).await?;
    tx.commit().await
}

const REPLICA_REMOVE_DEAD: &str = "delete from replica where lease_until < now() - interval '1 day'";
const REPLICA_INSERT: &str = "insert into replica (id, service, lease_until, presence) values ($1, $2, now() + $3 * interval '1 millisecond', $4)";

/// The result of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Renewed {
    /// In how many milliseconds the next of the service's other replicas expires, unless it is renewed. Not positive:
    /// it has expired. None: there are no others.
    pub others_left_ms: Option<i64>,
    /// Whether the server holds the replica's presence lock, if it has one.
    pub is_present: bool,
}

/// Renews the replica. None: it had expired, and its leases may be another replica's by now. Other replicas count if
/// they expired at most `since_ms` ago, so that a process that renews more often than that learns of each.
pub async fn replica_renew(
    database: &Database,
    id: Uuid,
    lease_ms: i64,
    since_ms: i64,
) -> Result<Option<Renewed>, StorageError> {
    let values = [id.into(), lease_ms.into(), since_ms.into()];
    let renewed = database.query_alone("renew replica", REPLICA_RENEW, values).await?;
    Ok(renewed.into_iter().next())
}

/// Replicas are few, including those that died within a day.
const REPLICA_RENEW: &str = concat!(
    "
    update replica r set lease_until = now() + $2 * interval '1 millisecond' where r.id = $1 and r.lease_until > now()
    returning (select ceil(extract(epoch from min(o.lease_until) - now()) * 1000)::bigint from replica o
               where o.service = r.service and o.id <> r.id
                 and o.lease_until > now() - $3 * interval '1 millisecond') as others_left_ms,
        ",
    crate::replica_present!("r"),
    " as is_present"
);

/// Ends the replica: its leases are free at once. For an orderly stop.
pub async fn replica_end(database: &Database, id: Uuid) -> Result<(), StorageError> {
    let sql = "update replica set lease_until = now() where id = $1";
    let ended = database.execute_alone("end replica", sql, [id.into()]).await;
    ended.map(|_| ())
}
