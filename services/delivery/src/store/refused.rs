//! A notification as its publisher could have sent it, read back from its row: what a dead letter of a failed turn
//! holds, so that it explains itself and can be redriven under the same id.

use contracts::{Headers, Root, header, notification::NotificationMessage};
use domain::{AccountId, Actor, ActorKind, MessageId, NotificationId, QueueMode, TaskId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, error::Attempt, statement};
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct Refused {
    pub id: String,
    pub subject: String,
    pub headers: Headers,
    pub payload: Vec<u8>,
}

#[derive(FromQueryResult)]
struct Row {
    id: String,
    display_id: Option<String>,
    agent_id: Option<Uuid>,
    kind: String,
    title: Option<String>,
    body: String,
    message_id: Option<Uuid>,
    sender_kind: String,
    sender_id: String,
    sender_name: String,
    sender_via: Option<String>,
    queue_mode: String,
    metadata: serde_json::Value,
    cause: Option<String>,
    hops: i32,
    traceparent: Option<String>,
}

const LOAD: &str = "
    select n.id, k.display_id, n.agent_id, n.kind, n.title, n.body, n.message_id, n.sender_kind, n.sender_id, n.sender_name,
           n.sender_via, n.queue_mode, n.metadata, n.cause, n.hops, n.traceparent
    from notification n left join task k on k.account_id = n.account_id and k.id = n.task_id
    where n.account_id = $1 and n.id = any($2::text[])";

pub async fn notifications_load(
    tx: &Tx,
    root: &Root,
    account: &AccountId,
    ids: &[String],
) -> Result<Vec<Refused>, StorageError> {
    const ATTEMPT: &str = "read notifications back";
    let values = [account.as_str().into(), ids.to_vec().into()];
    let rows = Row::find_by_statement(statement(LOAD, values))
        .all(&**tx)
        .await
        .attempt(ATTEMPT)?;
    rows.into_iter()
        .map(|row| message(row, root, account).map_err(|what| StorageError::unreadable(ATTEMPT, what)))
        .collect()
}

fn message(row: Row, root: &Root, account: &AccountId) -> Result<Refused, String> {
    let task = row
        .display_id
        .map(|id| TaskId::parse(&id))
        .transpose()
        .map_err(|error| error.to_string())?;
    let id = NotificationId::parse(&row.id).map_err(|error| error.to_string())?;
    let message = NotificationMessage {
        id: Some(id.clone()),
        kind: Some(row.kind),
        agent: row.agent_id.map(|id| id.to_string()),
        agents: Vec::new(),
        title: row.title,
        body: row.body,
        message_id: row.message_id.map(MessageId),
        sender: Some(Actor {
            kind: ActorKind::parse(&row.sender_kind).ok_or("sender kind")?,
            id: row.sender_id,
            name: row.sender_name,
            via: row.sender_via,
        }),
        queue_mode: Some(QueueMode::parse(&row.queue_mode).ok_or("queue mode")?),
        metadata: row.metadata.as_object().cloned().unwrap_or_default(),
    };
    let mut headers = Headers::default();
    headers.set(header::MESSAGE_ID, id.as_str());
    headers.set(header::HOPS, row.hops.to_string());
    headers.set(header::CAUSE, row.cause.unwrap_or_default());
    headers.set(header::TRACEPARENT, row.traceparent.unwrap_or_default());
    // The row's sender is as the resolver took it.
    headers.set(header::VOUCHED, "1");
    let payload = serde_json::to_vec(&message).expect("wire types have string keys and no failing serializer");
    Ok(Refused {
        id: id.into(),
        subject: root.notification(account, task.as_ref()),
        headers,
        payload,
    })
}
