//! Every query on recoveries. `storage::recovery` changes them.

use std::collections::HashSet;

use api::recoveries::Recovery;
use domain::{AccountId, QuestionId, RecoveryId, TaskId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " r.id, coalesce(k.display_id, r.task_id) as task, r.agent_id, r.cause, r.state, r.attempts, r.detail, r.reason,
              r.notification_id, r.since, r.created_at, r.ended_at
              from recovery r left join task k on k.account_id = r.account_id and k.id = r.task_id ",
            $after
        )
    };
}

/// Relies on recovery_newest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, agent_id, cause, state, attempts, detail, reason, notification_id, since, created_at, ended_at
        from recovery where account_id = $1",
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some("($2::text is null or state = $2) and ($3::text is null or task_id = $3)"),
    bytes: "octet_length(detail)",
    names: (
        ", coalesce(t.display_id, page.task_id) as task",
        "left join task t on t.account_id = page.account_id and t.id = page.task_id",
    ),
};

/// Relies on the primary keys.
const FIND: &str = columns!("select", "where r.account_id = $1 and r.id = $2");

pub async fn recovery_find(
    tx: &Tx,
    account: &AccountId,
    recovery: RecoveryId,
) -> Result<Option<Recovery>, StorageError> {
    tx.one("find recovery", FIND, [account.into(), recovery.into()]).await
}

/// A review that waits for its verdict.
#[derive(FromQueryResult)]
pub struct ReviewRow {
    pub id: QuestionId,
    /// As its client spelled it.
    pub task: TaskId,
    pub title: String,
    pub audience: Vec<String>,
}

/// Relies on the primary keys.
pub const REVIEWS_READ: &str = "
    select q.id, k.display_id as task, q.title, q.audience
    from unnest($2::uuid[]) as f (id)
    cross join lateral (select * from question q where q.account_id = $1 and q.id = f.id offset 0) q
    cross join lateral (select k.display_id from task k where k.account_id = q.account_id and k.id = q.task_id offset 0) k
    where q.state = 'open' order by q.task_id";

/// Those of these reviews that are open.
pub async fn reviews_read(
    tx: &Tx,
    account: &AccountId,
    reviews: &[QuestionId],
) -> Result<Vec<ReviewRow>, StorageError> {
    let values = [account.into(), reviews.to_vec().into()];
    tx.rows("read reviews", REVIEWS_READ, values).await
}

#[derive(FromQueryResult)]
struct EndedItem {
    id: String,
}

/// Relies on the primary key.
pub const ITEMS_ENDED: &str = "
    select n.id from unnest($2::text[]) as f (id)
    cross join lateral (select n.id, n.state from notification n where n.account_id = $1 and n.id = f.id offset 0) n
    where n.state not in ('queued', 'running')";

/// Those of these notifications that wait for no turn, and are in none.
pub async fn items_ended(tx: &Tx, account: &AccountId, ids: Vec<String>) -> Result<HashSet<String>, StorageError> {
    let values = [account.into(), ids.into()];
    let rows: Vec<EndedItem> = tx.rows("find ended notifications", ITEMS_ENDED, values).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}
