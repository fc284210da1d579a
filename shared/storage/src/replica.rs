//! Replicas: processes that are alive, by the database's clock. A lease names its holder's replica and is void when
//! that row's time is over, so that one row renewed a second carries every lease of a process.

use sea_orm::ConnectionTrait;
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

/// Renews it. `false`: its time was over; whatever it held may be another's by now.
pub async fn replica_renew(database: &Database, id: Uuid, lease_ms: i64) -> Result<bool, StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    let renewed = tx
        .execute_raw(statement(REPLICA_RENEW, [id.into(), lease_ms.into()]))
        .await
        .attempt("renew replica")?;
    tx.commit().await?;
    Ok(renewed.rows_affected() == 1)
}

const REPLICA_RENEW: &str = "
    update replica set lease_until = now() + $2 * interval '1 millisecond' where id = $1 and lease_until > now()";

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
