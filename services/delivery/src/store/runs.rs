//! Reads the items behind the heads of queues, for runs; the items that may be given to turns in progress; and what the agent of a stopped turn's successor is told.

use std::collections::HashSet;

use domain::{AccountId, Actor, NotificationId, QueueMode, SessionId, TaskId, TurnId};
use prompt::{Further, Injected};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, statement::column};

use super::SessionName;

/// An item behind the head of a queue.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Behind {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub session_id: SessionId,
    pub id: NotificationId,
    pub kind: String,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub task_id: Option<String>,
    pub queue_mode: QueueMode,
    pub joins: bool,
    pub waited_ms: i64,
    pub debounce_ms: Option<serde_json::Value>,
    pub attempts: i32,
    pub hops: i32,
    pub title: Option<String>,
    pub body_bytes: i64,
    /// None: a run that reaches this item has too many bytes.
    pub body: Option<String>,
}

impl Behind {
    pub fn name(&self) -> SessionName {
        (self.account.clone(), self.session_id)
    }

    pub fn further(self) -> Further {
        Further {
            notification: self.id,
            title: self.title,
            body: self.body.unwrap_or_default(),
        }
    }
}

/// The items behind these heads. Bodies are read as far as a run may have bytes, the head's included. The callers hold the
/// sessions' locks. Relies on index notification_queue.
pub const QUEUE_BEHIND: &str = "
    select n.account_id, n.session_id, n.id, n.kind, n.sender_kind, n.sender_id, n.sender_name, n.sender_via, n.task_id, n.queue_mode, n.joins,
           (extract(epoch from now() - n.created_at) * 1000)::bigint as waited_ms, n.metadata -> 'collect_debounce_ms' as debounce_ms,
           n.attempts, n.hops, n.title, octet_length(n.body)::bigint as body_bytes,
           case when n.bytes <= $5 then n.body end as body
    from unnest($1::text[], $2::uuid[], $3::bigint[], $4::bigint[]) as w (account_id, id, position, bytes)
    cross join lateral (
        select n.*, w.bytes + sum(octet_length(n.body)) over (order by n.position) as bytes from (
            select * from notification n
            where n.account_id = w.account_id and n.session_id = w.id and n.state = 'queued' and n.position > w.position
            order by n.position limit $6) n) n
    order by n.account_id, n.session_id, n.position";

/// `heads`: each with its position and the bytes of its body.
pub async fn queue_behind(
    tx: &Tx,
    heads: &[(SessionName, i64, i64)],
    bytes_max: i64,
    items_max: i64,
) -> Result<Vec<Behind>, StorageError> {
    if heads.is_empty() {
        return Ok(Vec::new());
    }
    let values = [
        column(heads, |((account, _), _, _)| account.clone()),
        column(heads, |((_, session), _, _)| *session),
        column(heads, |(_, position, _)| *position),
        column(heads, |(_, _, bytes)| *bytes),
        bytes_max.into(),
        items_max.into(),
    ];
    tx.rows("read runs of queues", QUEUE_BEHIND, values).await
}

/// Relies on index notification_queue, whose order is requested.
pub const PERSONS_WAIT: &str = "
    select w.account_id, w.id as session_id from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (
        select from (select n.sender_kind from notification n
                     where n.account_id = w.account_id and n.session_id = w.id and n.state = 'queued'
                     order by n.account_id, n.session_id, n.position offset 0) n
        where n.sender_kind = 'user' limit 1) n";

#[derive(FromQueryResult)]
struct Awaited {
    account_id: AccountId,
    session_id: SessionId,
}

/// Those of these sessions in which an item from a person waits. The caller holds their locks.
pub async fn persons_wait(tx: &Tx, sessions: &[SessionName]) -> Result<HashSet<SessionName>, StorageError> {
    if sessions.is_empty() {
        return Ok(HashSet::new());
    }
    let values = [
        column(sessions, |(account, _)| account.clone()),
        column(sessions, |(_, session)| *session),
    ];
    let rows: Vec<Awaited> = tx.rows("find items from persons", PERSONS_WAIT, values).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.session_id)).collect())
}

/// An item that may be given to its session's turn in progress.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Injectable {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub session_id: SessionId,
    #[sea_orm(nested)]
    pub item: Injected,
    pub hops: i32,
}

/// The next items with mode `inject` of the turn's task. Signalbox's own items are never among them, and none with an attempt:
/// what made a provider refuse one turn must not make it refuse the next. The callers hold the
/// sessions' locks. Relies on notification_inject.
pub const INJECTS_LOAD: &str = "
    select n.account_id, n.session_id, n.id, n.sender_kind, n.sender_id, n.sender_name, n.sender_via, n.title, n.body, n.hops
    from unnest($1::text[], $2::uuid[], $3::text[]) as w (account_id, session_id, task_id)
    cross join lateral (
        select n.*, sum(octet_length(n.body)) over (order by n.position) as bytes from (
            select * from notification n
            where n.account_id = w.account_id and n.session_id = w.session_id and n.state = 'queued' and n.queue_mode = 'inject'
              and n.attempts = 0 and octet_length(n.body) <= $6 and coalesce(n.task_id, '') = w.task_id and n.kind <> all ($4::text[])
            order by n.account_id, n.session_id, n.position limit $5) n) n
    where n.bytes <= $6
    order by n.account_id, n.session_id, n.position";

pub async fn injects_load(
    tx: &Tx,
    turns: &[(SessionName, Option<TaskId>)],
    own_kinds: &[&str],
    items_max: i64,
    bytes_max: i64,
) -> Result<Vec<Injectable>, StorageError> {
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let own_kinds: Vec<String> = own_kinds.iter().map(|kind| (*kind).to_owned()).collect();
    let values = [
        column(turns, |((account, _), _)| account.clone()),
        column(turns, |((_, session), _)| *session),
        column(turns, |(_, task)| {
            task.as_ref().map_or_else(String::new, |task| task.key().into())
        }),
        own_kinds.into(),
        items_max.into(),
        bytes_max.into(),
    ];
    tx.rows("read items for turns in progress", INJECTS_LOAD, values).await
}

/// What a stopped turn was about: the beginning of its first item.
#[derive(Clone, Debug, FromQueryResult)]
pub struct StoppedTurn {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: TurnId,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub about: String,
}

/// Relies on the primary keys.
pub const STOPPED_LOAD: &str = "
    select t.account_id, t.id, n.sender_kind, n.sender_id, n.sender_name, n.sender_via, left(n.body, 400) as about
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from turn t where t.account_id = w.account_id and t.id = w.id limit 1) t
    cross join lateral (select * from notification n where n.account_id = t.account_id and n.id = t.notification_ids[1] offset 0) n";

pub async fn stopped_load(tx: &Tx, turns: &[(AccountId, TurnId)]) -> Result<Vec<StoppedTurn>, StorageError> {
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let values = [
        column(turns, |(account, _)| account.clone()),
        column(turns, |(_, turn)| *turn),
    ];
    tx.rows("load stopped turns", STOPPED_LOAD, values).await
}
