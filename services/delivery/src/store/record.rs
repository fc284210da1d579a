//! Writing how provider calls went: one row a turn in each of three statements, guarded by the fence that the caller
//! checked under the sessions' locks.

use std::collections::{HashMap, HashSet};

use domain::{AccountId, SessionPhase, TurnId, TurnState};
use sea_orm::{ConnectionTrait, FromQueryResult};
use serde::Serialize;
use storage::{StorageError, Tx, error::Attempt, statement};
use uuid::Uuid;

use super::TurnName;

/// What a turn becomes. Absent fields stay as they are, but for `error`, which is said or unsaid.
#[derive(Clone, Debug, Serialize)]
pub struct TurnChange {
    pub account_id: AccountId,
    pub id: TurnId,
    pub fence: i64,
    pub state: TurnState,
    /// One entry to append.
    pub round: Option<serde_json::Value>,
    pub attempt: i32,
    pub failures: i32,
    pub calls_requested: i32,
    pub waits: bool,
    pub lost: bool,
    pub response_id: Option<String>,
    pub reply: Option<String>,
    pub usage: Option<serde_json::Value>,
    pub error: Option<String>,
    pub error_class: Option<String>,
    pub late: bool,
}

/// Relies on the primary key and on index tool_call_turn, whose order is asked for: without it an empty table's other
/// index costs the same. The states are read where the planner does not count on them: it would expect so few turns in
/// progress that it looks at all of them first. Which tools were called is read from the record of the calls,
/// since an agent may also call them over HTTP. A turn that somebody newer carries on has a newer fence and is not touched.
pub const TURNS_CHANGE: &str = "
    update turn t set
        state = r.state, attempt = r.attempt, failures = r.failures, calls_requested = r.calls_requested,
        journal = case when r.round is null then t.journal else t.journal || r.round end,
        rounds = t.rounds + (r.round is not null)::integer,
        waiting_since = case when r.waits then now() end,
        lost_at = case when r.lost then coalesce(t.lost_at, now()) end,
        response_id = coalesce(r.response_id, t.response_id), reply = coalesce(r.reply, t.reply), usage = coalesce(r.usage, t.usage),
        error = r.error, error_class = r.error_class,
        task_history_called = r.state in ('finished', 'failed', 'aborted', 'unknown') and coalesce((
            select bool_or(c.name in ('task_history', 'task_load')) from (
                select * from tool_call c where c.account_id = t.account_id and c.turn_id = t.id order by c.ordinal) c
            where c.state = 'finished'), false),
        no_reply = r.state = 'finished' and coalesce((
            select bool_or(c.name = 'no_reply') from (
                select * from tool_call c where c.account_id = t.account_id and c.turn_id = t.id order by c.ordinal) c
            where c.state = 'finished'), false),
        late = r.late,
        finished_at = case when r.state in ('finished', 'failed', 'aborted', 'unknown') then now() end
    from jsonb_to_recordset($1) as r (
        account_id text, id uuid, fence bigint, state text, round jsonb, attempt integer, failures integer,
        calls_requested integer, waits boolean, lost boolean, response_id text, reply text, usage jsonb, error text,
        error_class text, late boolean)
    where t.account_id = any (array[r.account_id]) and t.id = r.id and t.fence = r.fence and coalesce(t.state = 'calling', false)
    returning t.account_id, t.id, t.task_history_called, t.no_reply";

#[derive(FromQueryResult)]
struct ChangedTurn {
    account_id: String,
    id: Uuid,
    task_history_called: bool,
    no_reply: bool,
}

/// What the record of a turn's calls says.
#[derive(Clone, Copy, Debug)]
pub struct Changed {
    pub task_history_called: bool,
    pub no_reply: bool,
}

/// Gives the turns that were changed; the rest was somebody newer's.
pub async fn turns_change(tx: &Tx, changes: &[TurnChange]) -> Result<HashMap<TurnName, Changed>, StorageError> {
    const ATTEMPT: &str = "change turns";
    let rows = serde_json::to_value(changes).expect("rows are texts, numbers and JSON");
    let changed = ChangedTurn::find_by_statement(statement(TURNS_CHANGE, [rows.into()]))
        .all(&**tx)
        .await
        .attempt(ATTEMPT)?;
    changed
        .into_iter()
        .map(|row| {
            let changed = Changed {
                task_history_called: row.task_history_called,
                no_reply: row.no_reply,
            };
            Ok((name(ATTEMPT, &row.account_id, row.id)?, changed))
        })
        .collect()
}

fn name(attempt: &'static str, account: &str, turn: Uuid) -> Result<TurnName, StorageError> {
    let account = AccountId::parse(account).map_err(|error| StorageError::unreadable(attempt, error))?;
    Ok((account, TurnId(turn)))
}

/// What a session does next. The lease is given back in every case.
#[derive(Clone, Debug, Serialize)]
pub struct SessionChange {
    pub account_id: AccountId,
    pub id: Uuid,
    pub phase: SessionPhase,
    /// Keeps its turn in progress.
    pub keeps_turn: bool,
    /// `backoff` and `waiting`: when to look again.
    pub wake_ms: Option<i64>,
    /// Items that were put back.
    pub queued: i32,
    pub interrupted: bool,
    pub mismatch: Option<String>,
}

pub const SESSIONS_CHANGE: &str = "
    update session s set
        phase = r.phase, lease_owner = null,
        active_turn_id = case when r.keeps_turn then s.active_turn_id end,
        wake_at = now() + r.wake_ms * interval '1 millisecond',
        queued = s.queued + r.queued, interrupted = s.interrupted or r.interrupted,
        mismatch = coalesce(r.mismatch, s.mismatch)
    from jsonb_to_recordset($1) as r (
        account_id text, id uuid, phase text, keeps_turn boolean, wake_ms bigint, queued integer, interrupted boolean, mismatch text)
    where s.account_id = any (array[r.account_id]) and s.id = r.id";

pub async fn sessions_change(tx: &Tx, changes: &[SessionChange]) -> Result<(), StorageError> {
    let rows = serde_json::to_value(changes).expect("rows are texts and numbers");
    tx.execute_raw(statement(SESSIONS_CHANGE, [rows.into()]))
        .await
        .attempt("change sessions")
        .map(|_| ())
}

/// What becomes of the notifications of a turn.
#[derive(Clone, Debug)]
pub struct ItemChange {
    pub account_id: AccountId,
    pub turn_id: TurnId,
    pub notification_ids: Vec<String>,
    pub state: domain::NotificationState,
    pub reason: Option<String>,
    pub attempts_more: i32,
}

/// Of one notification, as the statement reads it.
#[derive(Serialize)]
struct ItemChangeRow<'a> {
    account_id: &'a AccountId,
    id: &'a str,
    turn_id: TurnId,
    state: domain::NotificationState,
    reason: Option<&'a str>,
    attempts_more: i32,
}

/// Relies on the primary key. One row a notification: for lists in rows as many would be expected as make reading the
/// whole table cheaper.
pub const ITEMS_CHANGE: &str = "
    update notification n set state = r.state, reason = r.reason, attempts = n.attempts + r.attempts_more
    from jsonb_to_recordset($1) as r (
        account_id text, id text, turn_id uuid, state text, reason text, attempts_more integer)
    where n.account_id = any (array[r.account_id]) and n.id = r.id and n.turn_id = r.turn_id
      and coalesce(n.state = 'running', false)
    returning n.account_id, n.id, r.turn_id";

#[derive(FromQueryResult)]
struct ChangedItem {
    account_id: String,
    id: String,
    turn_id: Uuid,
}

/// Gives those that were changed, each with its turn. The rest is the turn's no more: whoever closed its session has given
/// it its outcome.
pub async fn items_change(tx: &Tx, changes: &[ItemChange]) -> Result<HashSet<(TurnName, String)>, StorageError> {
    const ATTEMPT: &str = "change notifications";
    if changes.is_empty() {
        return Ok(HashSet::new());
    }
    let rows: Vec<ItemChangeRow> = changes
        .iter()
        .flat_map(|change| change.notification_ids.iter().map(move |id| (change, id)))
        .map(|(change, id)| ItemChangeRow {
            account_id: &change.account_id,
            id,
            turn_id: change.turn_id,
            state: change.state,
            reason: change.reason.as_deref(),
            attempts_more: change.attempts_more,
        })
        .collect();
    let rows = serde_json::to_value(rows).expect("rows are texts and numbers");
    let changed = ChangedItem::find_by_statement(statement(ITEMS_CHANGE, [rows.into()]))
        .all(&**tx)
        .await
        .attempt(ATTEMPT)?;
    changed
        .into_iter()
        .map(|item| Ok((name(ATTEMPT, &item.account_id, item.turn_id)?, item.id)))
        .collect()
}
