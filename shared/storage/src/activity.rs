//! An activity: what happened to a task, written in the transaction of the change.

use domain::{AccountId, Actor, TaskId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{StorageError, Tx, setting::fresh_id};

const ACTIVITY_INSERT: &str = "
    insert into activity (account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// Writes an activity of a task; returns its id.
pub async fn activity_insert(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    kind: &str,
    by: &Actor,
    detail: serde_json::Value,
    now: OffsetDateTime,
) -> Result<Uuid, StorageError> {
    let id = fresh_id();
    let values = [
        account.into(),
        id.into(),
        task.key().into(),
        kind.into(),
        by.kind.into(),
        by.id.as_str().into(),
        by.name.as_str().into(),
        detail.into(),
        now.into(),
    ];
    tx.execute("write activity", ACTIVITY_INSERT, values).await?;
    Ok(id)
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
