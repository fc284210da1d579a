//! Rebuilds a notification's message from its row. It is the payload of a failed turn's dead letter, so that the letter
//! is complete and can be redriven under the same id. An edited notification's letter has the text that the agent was given.

use contracts::{Headers, Outgoing, Root, header, notification::NotificationMessage};
use domain::AccountId;
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, session::item_content::ItemContent};

#[derive(FromQueryResult)]
struct Row {
    #[sea_orm(nested)]
    content: ItemContent,
    cause: Option<String>,
    hops: i32,
    traceparent: Option<String>,
}

const LOAD: &str = "
    select n.id, k.display_id as task, n.agent_id, n.kind, n.title, n.body, n.message_id, n.sender_kind, n.sender_id, n.sender_name,
           n.sender_via, n.queue_mode, n.metadata, n.cause, n.hops, n.traceparent,
           (select case when o.kind in ('orchestrator', 'guest') then o.key end from session o
            where o.account_id = n.account_id and o.id = n.session_id offset 0) as orchestrator
    from notification n left join task k on k.account_id = n.account_id and k.id = n.task_id
    where n.account_id = $1 and n.id = any($2::text[])";

/// The messages; the id of each is the notification's.
pub async fn notifications_load(
    tx: &Tx,
    root: &Root,
    account: &AccountId,
    ids: &[String],
) -> Result<Vec<Outgoing>, StorageError> {
    let rows: Vec<Row> = tx
        .rows("read failed notifications", LOAD, [account.into(), ids.to_vec().into()])
        .await?;
    Ok(rows.into_iter().map(|row| message(row, root, account)).collect())
}

fn message(row: Row, root: &Root, account: &AccountId) -> Outgoing {
    let mut headers = Headers::default();
    headers.set(header::MESSAGE_ID, row.content.id.as_str());
    headers.set(header::HOPS, row.hops.to_string());
    headers.set(header::CAUSE, row.cause.unwrap_or_default());
    headers.set(header::TRACEPARENT, row.traceparent.unwrap_or_default());
    // The row's sender is as the resolver stored it.
    headers.set(header::VOUCHED, "1");
    let payload =
        serde_json::to_vec(&row.content.message()).expect("wire types have string keys and no failing serializer");
    Outgoing {
        subject: root.subject::<NotificationMessage>(account, row.content.task.as_ref()),
        headers,
        payload,
    }
}
