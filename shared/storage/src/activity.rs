//! An activity: what happened to a task, written in the transaction of the change.

use domain::{AccountId, Actor, TaskId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{StorageError, Tx, setting::fresh_id};

const ACTIVITIES_INSERT: &str = "
    insert into activity (account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at)
    select $1, a.id, a.task_id, $4, $5, $6, $7, $8, $9 from unnest($2::uuid[], $3::text[]) as a (id, task_id)";

/// Writes an activity of a task; returns its id.
pub async fn activity_insert(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    kind: &str,
    by: &Actor,
    detail: serde_json::Value,
    now: OffsetDateTime,
) -> Result<Uuid, StorageError> {
    let ids = activities_insert(tx, (account, vec![task.key()]), kind, by, detail, now).await?;
    Ok(ids[0])
}

/// The same for several tasks, by their keys, to which the same happens.
pub(crate) async fn activities_insert(
    tx: &Tx,
    (account, tasks): (&AccountId, Vec<TaskId>),
    kind: &str,
    by: &Actor,
    detail: serde_json::Value,
    now: OffsetDateTime,
) -> Result<Vec<Uuid>, StorageError> {
    let ids: Vec<Uuid> = tasks.iter().map(|_| fresh_id()).collect();
    let values = [
        account.into(),
        ids.clone().into(),
        tasks.into(),
        kind.into(),
        by.kind.into(),
        by.id.as_str().into(),
        by.name.as_str().into(),
        detail.into(),
        now.into(),
    ];
    tx.execute("write activities", ACTIVITIES_INSERT, values).await?;
    Ok(ids)
}

/// SQL of the activities of tasks, `from … where …`, to be continued with `and`: those written, and one for each message. A
/// message's activity is not written since step 26, and older versions wrote it beside the message. Relies on activity_change
/// and message_thread. The condition stands outside of the union: inside, the planner sorts all rows of a task.
#[macro_export]
macro_rules! activities {
    () => {
        " from (select account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at, false as is_message
          from activity
          union all
          select account_id, id, task_id, 'message.posted', author_kind, author_id, author_name,
                 jsonb_strip_nulls(jsonb_build_object('message_id', id, 'via', author_via)), created_at, true
          from message) a where (is_message or kind <> 'message.posted')"
    };
}
