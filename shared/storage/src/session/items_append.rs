//! Writes items and updates the counters of their sessions, whose locks the caller holds. An item is a notification; a
//! refused one has no session.

use contracts::{
    TraceContext,
    content::ContentHash,
    notification::{KIND_DEFAULT, Notification},
};
use domain::{AccountId, Actor, ActorKind, AgentId, MessageId, NotificationId, QueueMode, SessionId, TaskId, UserId};
use sea_orm::{FromQueryResult, Value};
use uuid::Uuid;

use crate::{StorageError, Tx, statement::column};

/// A row of table `notification`, accepted or refused. Borrows: bodies are large and copied once, into the statement.
#[derive(Clone, Debug)]
pub struct NewItem<'a> {
    pub account: &'a AccountId,
    pub id: &'a NotificationId,
    /// Only if the task exists.
    pub task: Option<&'a TaskId>,
    pub agent: Option<AgentId>,
    /// The person whose orchestrator it is for.
    pub owner: Option<UserId>,
    /// Its session and its number among the items of that session, from 1; none: it was refused.
    pub queued: Option<(SessionId, i64)>,
    pub kind: &'a str,
    pub title: &'a str,
    pub body: &'a str,
    pub message_id: Option<MessageId>,
    /// None: it could not be parsed.
    pub sender: Option<&'a Actor>,
    pub queue_mode: QueueMode,
    /// With mode `collect`: its session was busy, so it may be answered together with others.
    pub joins: bool,
    /// A JSON object.
    pub metadata: String,
    /// SHA-256 of the content.
    pub hash: [u8; 32],
    /// Why it was refused; [`TASK_CLOSED`](domain::TASK_CLOSED) or [`BRANCH_ENDED`](domain::BRANCH_ENDED): it is cancelled.
    pub reason: Option<String>,
    pub cause: Option<&'a str>,
    pub hops: u16,
    pub trace: &'a TraceContext,
}

impl<'a> NewItem<'a> {
    /// A received notification that is not queued. Without content it could not be parsed. It carries its cause, its
    /// number of wake-ups of agents by agents, and its trace.
    pub fn of(
        account: &'a AccountId,
        id: &'a NotificationId,
        content: Option<&'a Notification>,
        hash: ContentHash,
        (cause, hops, trace): (Option<&'a str>, u16, &'a TraceContext),
    ) -> NewItem<'a> {
        NewItem {
            account,
            id,
            task: None,
            agent: None,
            owner: content.and_then(|content| content.recipients.user()),
            queued: None,
            kind: content.map_or(KIND_DEFAULT, |content| &content.kind),
            title: content.and_then(|content| content.title.as_deref()).unwrap_or_default(),
            body: content.map_or("", |content| &content.body),
            message_id: content.and_then(|content| content.message_id),
            sender: content.map(|content| &content.sender),
            queue_mode: content.map_or(QueueMode::Followup, Notification::mode),
            joins: false,
            metadata: content.map_or_else(|| "{}".to_owned(), metadata),
            hash: hash.bytes(),
            reason: None,
            cause,
            hops,
            trace,
        }
    }
}

/// The name in an item's metadata of the mode that was asked for, where the item has another.
pub(super) const QUEUE_MODE_ASKED: &str = "queue_mode_asked";

/// With the mode that was asked for, where the item has another.
pub(super) fn metadata(content: &Notification) -> String {
    let asked = content.queue_mode.filter(|asked| *asked != content.mode());
    let written = match asked {
        None => serde_json::to_string(&content.metadata),
        Some(asked) => {
            let mut metadata = content.metadata.clone();
            metadata.insert(QUEUE_MODE_ASKED.to_owned(), asked.as_str().into());
            serde_json::to_string(&metadata)
        }
    };
    written.expect("parsed JSON can be serialized")
}

/// The rows of a statement, as `r`, and the nil UUID, which stands for none.
#[macro_export]
macro_rules! item_rows {
    ($($more:literal, $column:literal)?) => {
        concat!(
            "unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::bigint[], $7::text[], $8::text[], $9::text[],
                $10::uuid[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bytea[], $17::text[],
                $18::text[], $19::integer[], $20::text[], $21::text[], $22::text[], $23::boolean[]" $(, ", ", $more)?,
            ")
             as r (account_id, id, task_id, agent_id, session_id, position, kind, title, body, message_id, sender_kind,
                   sender_id, sender_name, queue_mode, metadata, content_hash, reason, cause, hops, traceparent, tracestate,
                   sender_via, joins" $(, ", ", $column)?,
            "),
         (values ('00000000-0000-0000-0000-000000000000'::uuid)) as none (id)"
        )
    };
}

/// Inserts the rows `r`. Position and `joins` are SQL over them, and what one more column gets.
#[macro_export]
macro_rules! items_insert {
    ($position:literal, $joins:literal $(, $name:literal, $value:literal)?) => {
        concat!(
            "insert into notification (account_id, id, task_id, agent_id, session_id, position, kind, title, body, message_id,
            sender_kind, sender_id, sender_name, queue_mode, metadata, content_hash, state, reason, cause, hops,
            traceparent, tracestate, sender_via, joins", $($name, )? ")
        select r.account_id, r.id, nullif(r.task_id, ''), nullif(r.agent_id, none.id), nullif(r.session_id, none.id), ",
            $position,
            ", r.kind, nullif(r.title, ''), r.body, nullif(r.message_id, none.id), r.sender_kind,
               r.sender_id, r.sender_name, r.queue_mode, r.metadata::jsonb, r.content_hash,
               case r.reason when '' then 'queued' when 'task closed' then 'cancelled' when 'branch ended' then 'cancelled' else 'refused' end, nullif(r.reason, ''), nullif(r.cause, ''),
               r.hops, nullif(r.traceparent, ''), nullif(r.tracestate, ''), nullif(r.sender_via, ''), ",
            $joins,
            $($value, )?
            "
        from "
        )
    };
}

/// Adds the rows of `entered` to the counters of their sessions, which are locked, and returns how many rows are now
/// queued. The tail counts the items that were ever queued.
macro_rules! counted {
    () => {
        "counted as (
            select account_id, session_id, count(*)::integer as items
            from entered where session_id is not null group by account_id, session_id
        ), enqueued as (
            update session s set queued = s.queued + c.items, queue_tail = s.queue_tail + c.items
            from counted c where s.account_id = any (array[c.account_id]) and s.id = c.session_id
        )
        select coalesce(sum(items), 0)::bigint as queued from counted"
    };
}

/// Relies on the primary keys.
pub const ITEMS_APPEND: &str = concat!(
    "with entered as (
        ",
    items_insert!(
        "nullif(r.position, 0)",
        "r.joins",
        ", user_id",
        ", nullif(r.user_id, '')"
    ),
    item_rows!("$24::text[]", "user_id"),
    "
        on conflict do nothing
        returning account_id, session_id
    ), ",
    counted!()
);

/// Refused and failed rows start over, with the present content; an edited one that comes as it was edited keeps the hash of its
/// publisher. Relies on the primary keys. The state is compared in a form
/// without selectivity statistics: the planner would otherwise expect few such rows and read all of them first.
pub const ITEMS_REQUEUE: &str = concat!(
    "with entered as (
        update notification n set task_id = nullif(r.task_id, ''), agent_id = nullif(r.agent_id, none.id),
            session_id = nullif(r.session_id, none.id), position = nullif(r.position, 0), kind = r.kind,
            title = nullif(r.title, ''), body = r.body, message_id = nullif(r.message_id, none.id),
            sender_kind = r.sender_kind, sender_id = r.sender_id, sender_name = r.sender_name,
            sender_via = nullif(r.sender_via, ''), queue_mode = r.queue_mode, joins = r.joins,
            metadata = r.metadata::jsonb, revision = n.revision + 1,
            content_hash = case when n.edited_hash = r.content_hash then n.content_hash else r.content_hash end,
            edited_hash = case when n.edited_hash = r.content_hash then n.edited_hash end,
            state = case r.reason when 'task closed' then 'cancelled' else 'queued' end, reason = nullif(r.reason, ''),
            cause = nullif(r.cause, ''), hops = r.hops, traceparent = nullif(r.traceparent, ''),
            tracestate = nullif(r.tracestate, ''), turn_id = null, attempts = 0, created_at = now(), user_id = nullif(r.user_id, '')
        from ",
    item_rows!("$24::text[]", "user_id"),
    "
        where n.account_id = any (array[r.account_id]) and n.id = r.id and coalesce(n.state in ('refused', 'failed'), false)
        returning n.account_id, n.session_id
    ), ",
    counted!()
);

/// Writes new rows; returns how many of them are now queued. Fewer than asked: another transaction wrote one of the
/// ids.
pub async fn items_append(tx: &Tx, rows: &[NewItem<'_>]) -> Result<u64, StorageError> {
    write(tx, ITEMS_APPEND, "enter notifications", rows).await
}

/// Queues refused or failed rows again; returns how many. Fewer than asked: one is neither any more.
pub async fn items_requeue(tx: &Tx, rows: &[NewItem<'_>]) -> Result<u64, StorageError> {
    write(tx, ITEMS_REQUEUE, "queue notifications again", rows).await
}

#[derive(FromQueryResult)]
struct Written {
    queued: i64,
}

async fn write(tx: &Tx, sql: &'static str, attempt: &'static str, rows: &[NewItem<'_>]) -> Result<u64, StorageError> {
    if rows.is_empty() {
        return Ok(0);
    }
    // In one order, so that two writers of the same ids do not deadlock.
    let mut rows: Vec<&NewItem<'_>> = rows.iter().collect();
    rows.sort_unstable_by(|a, b| (a.account, a.id).cmp(&(b.account, b.id)));
    let owner = |row: &&NewItem<'_>| row.owner.as_ref().map_or_else(String::new, ToString::to_string);
    let values = item_columns(&rows).into_iter().chain([column(&rows, owner)]);
    let written: Option<Written> = tx.one(attempt, sql, values).await?;
    Ok(written.map_or(0, |written| written.queued.unsigned_abs()))
}

/// The columns of `item_rows!` without further ones.
pub(super) fn item_columns(rows: &[&NewItem<'_>]) -> [Value; 23] {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    [
        column(rows, |row| row.account.clone()),
        column(rows, |row| row.id.clone()),
        column(rows, |row| row.task.map_or_else(String::new, |task| task.key().into())),
        column(rows, |row| row.agent.map_or(Uuid::nil(), AgentId::uuid)),
        column(rows, |row| {
            row.queued.map_or(Uuid::nil(), |(session, _)| session.uuid())
        }),
        column(rows, |row| {
            row.queued.map_or(0, |(_, number)| row.queue_mode.position(number))
        }),
        column(rows, |row| row.kind.to_owned()),
        column(rows, |row| row.title.to_owned()),
        column(rows, |row| row.body.to_owned()),
        column(rows, |row| row.message_id.map_or(Uuid::nil(), MessageId::uuid)),
        column(rows, |row| row.sender.map_or(ActorKind::Service, |sender| sender.kind)),
        column(rows, |row| text(row.sender.map(|sender| sender.id.as_str()))),
        column(rows, |row| text(row.sender.map(|sender| sender.name.as_str()))),
        column(rows, |row| row.queue_mode),
        column(rows, |row| row.metadata.clone()),
        column(rows, |row| row.hash.to_vec()),
        column(rows, |row| text(row.reason.as_deref())),
        column(rows, |row| text(row.cause)),
        column(rows, |row| i32::from(row.hops)),
        column(rows, |row| text(row.trace.traceparent.as_deref())),
        column(rows, |row| text(row.trace.tracestate.as_deref())),
        column(rows, |row| text(row.sender.and_then(|sender| sender.via.as_deref()))),
        column(rows, |row| row.joins),
    ]
}
