//! Rebuilds a notification's message from its row. It is the payload of a failed turn's dead letter, so that the letter
//! is complete and can be redriven under the same id.

use contracts::{Headers, Outgoing, Root, header, notification::NotificationMessage};
use domain::{AccountId, Actor, AgentId, MessageId, NotificationId, QueueMode, TaskId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

#[derive(FromQueryResult)]
struct Row {
    id: NotificationId,
    task: Option<TaskId>,
    agent_id: Option<AgentId>,
    kind: String,
    title: Option<String>,
    body: String,
    message_id: Option<MessageId>,
    #[sea_orm(nested(prefix = "sender_"))]
    sender: Actor,
    queue_mode: QueueMode,
    metadata: serde_json::Value,
    cause: Option<String>,
    hops: i32,
    traceparent: Option<String>,
}

const LOAD: &str = "
    select n.id, k.display_id as task, n.agent_id, n.kind, n.title, n.body, n.message_id, n.sender_kind, n.sender_id, n.sender_name,
           n.sender_via, n.queue_mode, n.metadata, n.cause, n.hops, n.traceparent
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
    let message = NotificationMessage {
        id: Some(row.id.clone()),
        kind: Some(row.kind),
        agent: row.agent_id.map(|id| id.to_string()),
        agents: Vec::new(),
        title: row.title,
        body: row.body,
        message_id: row.message_id,
        sender: Some(row.sender),
        queue_mode: Some(row.queue_mode),
        metadata: row.metadata.as_object().cloned().unwrap_or_default(),
    };
    let mut headers = Headers::default();
    headers.set(header::MESSAGE_ID, row.id.as_str());
    headers.set(header::HOPS, row.hops.to_string());
    headers.set(header::CAUSE, row.cause.unwrap_or_default());
    headers.set(header::TRACEPARENT, row.traceparent.unwrap_or_default());
    // The row's sender is as the resolver stored it.
    headers.set(header::VOUCHED, "1");
    let payload = serde_json::to_vec(&message).expect("wire types have string keys and no failing serializer");
    Outgoing {
        subject: root.subject::<NotificationMessage>(account, row.task.as_ref()),
        headers,
        payload,
    }
}
