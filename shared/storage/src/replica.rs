//! Replicas: processes that are alive, by the database's clock. A lease names its holder's replica and is void when
//! that row's time is over, so that one row renewed a second carries every lease of a process.

use sea_orm::{ConnectionTrait, FromQueryResult};
use uuid::Uuid;

use crate::{Accounts, Database, StorageError, error::Attempt, statement};

/// Enters a new replica that is alive for `lease_ms`.
pub async fn replica_register(database: &Database, id: Uuid, lease_ms: i64) -> Result<(), StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    // Dead rows are nobody's once their leases were taken over; a day is far beyond that.
    tx.execute_raw(statement(REPLICA_REMOVE_DEAD, []))
        .await
        .attempt("remove dead replicas")?;
    tx.execute_raw(statement(
        REPLICA_INSERT,
        [id.into(), database.role().service().into(), lease_ms.into()],
    ))
    .await
    .attempt("register replica")?;
    tx.commit().await
}

const REPLICA_REMOVE_DEAD: &str = "delete from replica where lease_until < now() - interval '1 day'";
const REPLICA_INSERT: &str =
    "insert into replica (id, service, lease_until) values ($1, $2, now() + $3 * interval '1 millisecond')";

/// What a renewal shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Renewed {
    /// In how many milliseconds the time of the next of the others of the service is over, unless it is renewed. Not
    /// positive: it is over. None: there are no others.
    pub others_left_ms: Option<i64>,
}

/// Renews it. None: its time was over; whatever it held may be another's by now. Others count as long as their time was
/// not over before `since_ms` ago, so that whoever renews more often than that hears of each.
pub async fn replica_renew(
    database: &Database,
    id: Uuid,
    lease_ms: i64,
    since_ms: i64,
) -> Result<Option<Renewed>, StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    let values = [id.into(), lease_ms.into(), since_ms.into()];
    let renewed = Renewed::find_by_statement(statement(REPLICA_RENEW, values))
        .one(&*tx)
        .await
        .attempt("renew replica")?;
    tx.commit().await?;
    Ok(renewed)
}

/// Replicas are few, those that died within a day included.
const REPLICA_RENEW: &str = "
    update replica r set lease_until = now() + $2 * interval '1 millisecond' where r.id = $1 and r.lease_until > now()
    returning (select ceil(extract(epoch from min(o.lease_until) - now()) * 1000)::bigint from replica o
               where o.service = r.service and o.id <> r.id
                 and o.lease_until > now() - $3 * interval '1 millisecond') as others_left_ms";

/// Ends it: its leases are free at once. For an orderly stop.
pub async fn replica_end(database: &Database, id: Uuid) -> Result<(), StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    tx.execute_raw(statement(
        "update replica set lease_until = now() where id = $1",
        [id.into()],
    ))
    .await
    .attempt("end replica")?;
    tx.commit().await
}
