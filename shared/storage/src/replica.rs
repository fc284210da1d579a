//! Replicas: processes that are alive, by the database's clock. A lease names its holder's replica and is void when
//! that row's time is over, so that one row renewed a second carries every lease of a process.

use sea_orm::{DbErr, FromQueryResult, RuntimeErr};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Accounts, Database, StorageError, error::Attempt};

/// A connection by which others see that the process behind a replica is there: it holds a lock that the server drops with
/// it, and with it whatever may be taken over at once.
#[derive(Debug)]
pub struct Presence {
    key: i64,
    _connection: PgConnection,
}

impl Presence {
    /// Opens the connection. Where one before it is not known to be gone, the lock is still that one's, which does as well.
    pub async fn show(database: &Database, id: Uuid) -> Result<Presence, StorageError> {
        const ATTEMPT: &str = "show that this process is there";
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

/// SQL: whether the connection is there by which the process behind a row of `replica` shows itself. One that shows none is
/// judged by its time alone, and so are all for a while after a start of the server, which ends every connection.
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

/// Enters a new replica that is alive for `lease_ms`, and only as long as it is present, if it shows itself.
pub async fn replica_register(
    database: &Database,
    id: Uuid,
    lease_ms: i64,
    presence: Option<&Presence>,
) -> Result<(), StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    // Dead rows are nobody's once their leases were taken over; a day is far beyond that.
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

/// What a renewal shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Renewed {
    /// In how many milliseconds the time of the next of the others of the service is over, unless it is renewed. Not
    /// positive: it is over. None: there are no others.
    pub others_left_ms: Option<i64>,
    /// Whether the others see its connection, if it shows itself by one.
    pub is_present: bool,
}

/// Renews it. None: its time was over; whatever it held may be another's by now. Peers count as long as their time was
/// not over before `since_ms` ago, so that whoever renews more often than that hears of each.
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

/// Replicas are few, those that died within a day included.
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

/// Ends it: its leases are free at once. For an orderly stop.
pub async fn replica_end(database: &Database, id: Uuid) -> Result<(), StorageError> {
    let sql = "update replica set lease_until = now() where id = $1";
    let ended = database.execute_alone("end replica", sql, [id.into()]).await;
    ended.map(|_| ())
}
