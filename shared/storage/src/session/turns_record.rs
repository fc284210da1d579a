//! Records the results of provider calls: turns, their sessions, their notifications and their replies in one
//! statement, guarded by the fence that the caller checked under the sessions' locks.

use std::collections::{HashMap, HashSet};

use domain::{AccountId, Fence, Gate, MessageId, SessionId, SessionPhase, TurnContext, TurnId, TurnState};
use sea_orm::FromQueryResult;
use serde::Serialize;
use time::OffsetDateTime;

use super::{TurnName, sessions_lock::SessionThread};
use crate::{
    StorageError, Tx,
    outbox::{OutboxRow, messages_insert, outbox_values},
};

/// All changes of one report.
#[derive(Clone, Copy, Debug)]
pub struct TurnRecord<'a> {
    pub turn: &'a TurnChange,
    pub session: &'a SessionChange,
    pub items: &'a [ItemChange],
}

/// The turn and its session, as the statement reads them.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    turn: &'a TurnChange,
    #[serde(flatten)]
    session: &'a SessionChange,
    /// None: the session's next turn writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a SessionThread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_at: Option<&'a str>,
}

/// One notification of a turn, as the statement reads it.
#[derive(Serialize)]
struct ItemRow<'a> {
    account_id: &'a AccountId,
    id: &'a str,
    turn_id: TurnId,
    state: domain::NotificationState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    attempts_more: i32,
}

impl ItemChange {
    fn rows(&self) -> impl Iterator<Item = ItemRow<'_>> {
        self.notification_ids.iter().map(|id| ItemRow {
            account_id: &self.account_id,
            id,
            turn_id: self.turn_id,
            state: self.state,
            reason: self.reason.as_deref(),
            attempts_more: self.attempts_more,
        })
    }
}

/// The new state of a turn. Absent fields stay as they are, except `error`, which is set or cleared.
#[derive(Clone, Debug, Serialize)]
pub struct TurnChange {
    pub account_id: AccountId,
    pub id: TurnId,
    pub fence: Fence,
    pub state: TurnState,
    /// The states from which it may move.
    pub sources: Vec<TurnState>,
    pub over: bool,
    /// One round to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<serde_json::Value>,
    pub attempt: i32,
    pub failures: i32,
    pub calls_requested: i32,
    pub waits: bool,
    pub lost: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// The message of the reply. It enters the thread unless the agent called `no_reply`; none: it stays in the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posted_as: Option<MessageId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// The epoch of its provider's breaker in which its last call was sent, if that call failed by its provider's fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_epoch: Option<i64>,
    pub late: bool,
    /// Where its context comes from, if that has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<TurnContext>,
}

/// Updates turns, and for each updated turn its session, its notifications and its reply's message. Relies on primary keys and on index
/// tool_call_turn, in whose order the rows are read: without the order, another index costs the same on an empty table.
/// The states are compared in a form without selectivity statistics: the planner would otherwise expect few turns in
/// progress and read all of them first. The called tools are read from the record of the calls, since an agent may also
/// call tools over HTTP. A turn that another replica has taken over has a newer fence and is not updated. The updated
/// rows are not joined, since the planner would compare each with each: a session's row is carried along, and
/// notifications are compared with an array, in a form that does not become a join. One row a notification: for nested
/// lists the planner would expect so many rows that reading the whole table looks cheaper.
pub const TURNS_RECORD: &str = concat!(
    "
    with changed as (
        update turn t set
            state = r.state, attempt = r.attempt, failures = r.failures, calls_requested = r.calls_requested,
            journal = case when r.round is null then t.journal else t.journal || r.round end,
            rounds = t.rounds + (r.round is not null)::integer,
            waiting_since = case when r.waits then now() end,
            lost_at = case when r.lost then coalesce(t.lost_at, now()) end,
            response_id = coalesce(r.response_id, t.response_id), reply = coalesce(r.reply, t.reply), usage = coalesce(r.usage, t.usage),
            error = r.error, error_class = r.error_class, failed_epoch = r.failed_epoch,
            task_history_called = r.over and coalesce(used.history, false), no_reply = r.reply is not null and coalesce(used.silence, false),
            late = r.late,
            context = coalesce(r.context, t.context), thread = coalesce((r.context ->> 'thread')::integer, t.thread),
            finished_at = case when r.over then now() end
        from json_to_recordset($1::text::json) as r (
            account_id text, id uuid, fence bigint, state text, sources text[], over boolean, round jsonb, attempt integer, failures integer,
            calls_requested integer, waits boolean, lost boolean, response_id text, reply text, posted_as uuid, usage jsonb, error text,
            error_class text, failed_epoch bigint, late boolean, session_id uuid, phase text, keeps_turn boolean, wake_ms bigint, asked integer, queued integer,
            interrupted boolean, mismatch text, goes_on boolean, stopped uuid, gate text, streak integer, streak_key text,
            streak_since timestamptz, beats boolean, context jsonb, thread jsonb, thread_at text)
        cross join lateral (
            select bool_or(c.name in ('task_history', 'task_load')) as history, bool_or(c.name = 'no_reply') as silence,
                   bool_or(c.name = any ($9::text[])) as progress
            from (select * from tool_call c where c.account_id = r.account_id and c.turn_id = r.id order by c.ordinal) c
            where c.state = 'finished' and (r.over or r.reply is not null or r.streak is not null)) used
        where t.account_id = any (array[r.account_id]) and t.id = r.id and t.fence = r.fence and coalesce(t.state = any (r.sources), false)
        returning t.account_id, t.id, t.task_id, t.agent_id, t.reply, t.task_history_called, t.no_reply, r.posted_as, r.session_id, r.phase, r.keeps_turn, r.wake_ms,
                  r.asked, r.queued, r.interrupted, r.mismatch, r.goes_on, r.stopped, r.gate, r.streak, r.streak_key, r.streak_since, r.beats, r.thread as session_thread, r.thread_at,
                  r.streak is not null and coalesce(used.progress, false) as progressed
    ), freed as (
        update session s set
            phase = c.phase, lease_owner = null,
            active_turn_id = case when c.keeps_turn then s.active_turn_id end,
            wake_at = now() + c.wake_ms * interval '1 millisecond', asked = coalesce(c.asked, s.asked),
            queued = s.queued + c.queued, interrupted = s.interrupted or c.interrupted,
            mismatch = coalesce(c.mismatch, s.mismatch),
            stop_turn_id = case when c.keeps_turn then s.stop_turn_id end,
            stopped_turn_id = coalesce(c.stopped, s.stopped_turn_id),
            gate = c.gate, gate_ref = null, gated_since = case when c.gate is not null then now() end,
            streak = case when c.streak is null or c.beats and c.no_reply and not c.progressed then s.streak
                          when c.progressed then 0 else c.streak end,
            streak_key = case when c.streak is null or c.beats and c.no_reply and not c.progressed then s.streak_key
                              when not c.progressed then c.streak_key end,
            streak_since = case when c.streak is null or c.beats and c.no_reply and not c.progressed then s.streak_since
                                when not c.progressed then c.streak_since end,
            thread = c.session_thread, provider_thread = c.thread_at
        from changed c where s.account_id = any (array[c.account_id]) and s.id = c.session_id and not c.goes_on
    ), ended as (
        update notification n set state = i.state, reason = i.reason, attempts = n.attempts + i.attempts_more
        from json_to_recordset($2::text::json) as i (
            account_id text, id text, turn_id uuid, state text, reason text, attempts_more integer)
        where n.account_id = any (array[i.account_id]) and n.id = i.id and n.turn_id = i.turn_id
          and coalesce(n.state = 'running', false)
          and coalesce((i.account_id, i.turn_id) in (select c.account_id, c.id from changed c), false)
        returning n.account_id, i.turn_id, n.id
    ), posted as (
        insert into message (account_id, id, task_id, author_kind, author_id, author_name, body, turn_id, created_at)
        select c.account_id, c.posted_as, c.task_id, 'agent', g.id::text, g.name, c.reply, c.id, now()
        from changed c join agent g on g.account_id = any (array[c.account_id]) and g.id = c.agent_id
        where c.posted_as is not null and not c.no_reply and c.task_id is not null
        on conflict do nothing
        returning account_id, turn_id, author_name
    ), said as (",
    messages_insert!("$3", "$4", "$5", "$6", "$7", "$8"),
    "
    )
    select account_id, id as turn_id, null as notification_id, task_history_called, no_reply, progressed, null as author_name from changed
    union all
    select account_id, turn_id, id, false, false, false, null from ended
    union all
    select account_id, turn_id, null, false, false, false, author_name from posted"
);

#[derive(FromQueryResult)]
struct RecordedRow {
    account_id: AccountId,
    turn_id: TurnId,
    /// Set in rows of notifications that got their outcome.
    notification_id: Option<String>,
    /// Set in rows of posted replies; the other rows are changed turns.
    author_name: Option<String>,
    task_history_called: bool,
    no_reply: bool,
    progressed: bool,
}

/// The tool calls of a turn, as recorded.
#[derive(Clone, Copy, Default, Debug)]
pub struct Changed {
    pub task_history_called: bool,
    pub no_reply: bool,
    /// One of the tools that count as progress; known of a turn that changes its session's streak.
    pub progressed: bool,
}

/// The rows that were written.
#[derive(Debug, Default)]
pub struct Written {
    /// The turns that were changed. The others have a newer fence.
    pub turns: HashMap<TurnName, Changed>,
    /// Notifications that were changed, each with its turn. The others left the turn: the closer of its session has
    /// given them their outcome.
    pub items: HashSet<(TurnName, String)>,
    /// The turns whose replies are in their threads now, with the names of their authors.
    pub posted: HashMap<TurnName, String>,
}

impl Written {
    /// Whether this gives the same messages. None has the called tools in it.
    pub fn says_the_same(&self, other: &Written) -> bool {
        let same = |(turn, changed): (&TurnName, &Changed)| {
            other
                .turns
                .get(turn)
                .is_some_and(|other| other.no_reply == changed.no_reply)
        };
        self.turns.len() == other.turns.len()
            && self.turns.iter().all(same)
            && self.items == other.items
            && self.posted == other.posted
    }
}

/// `messages` are rows of the outbox, written whatever the statement finds. `progress`: the tools whose calls are progress.
pub async fn turns_record(
    tx: &Tx,
    records: &[TurnRecord<'_>],
    messages: &[OutboxRow],
    progress: Vec<String>,
) -> Result<Written, StorageError> {
    let mut written = Written::default();
    if records.is_empty() {
        return Ok(written);
    }
    let turns: Vec<Row<'_>> = records
        .iter()
        .map(|record| Row {
            turn: record.turn,
            session: record.session,
            thread: (!record.session.goes_on).then_some(&record.session.thread),
            thread_at: record.session.thread.at.as_deref(),
        })
        .collect();
    let items: Vec<ItemRow<'_>> = records
        .iter()
        .flat_map(|record| record.items)
        .flat_map(ItemChange::rows)
        .collect();
    let turns = serde_json::to_string(&turns).expect("rows are texts, numbers and JSON");
    let items = serde_json::to_string(&items).expect("rows are texts and numbers");
    let values = [turns.into(), items.into()];
    let values = values
        .into_iter()
        .chain(outbox_values(tx, messages))
        .chain([progress.into()]);
    let rows: Vec<RecordedRow> = tx.rows("record turns", TURNS_RECORD, values).await?;
    for row in rows {
        let turn = (row.account_id, row.turn_id);
        match (row.notification_id, row.author_name) {
            (Some(notification), _) => drop(written.items.insert((turn, notification))),
            (None, Some(author)) => drop(written.posted.insert(turn, author)),
            (None, None) => {
                let changed = Changed {
                    task_history_called: row.task_history_called,
                    no_reply: row.no_reply,
                    progressed: row.progressed,
                };
                written.turns.insert(turn, changed);
            }
        }
    }
    Ok(written)
}

/// The session's next state. The lease is released in every case.
#[derive(Clone, Debug, Serialize)]
pub struct SessionChange {
    #[serde(skip)]
    pub account_id: AccountId,
    #[serde(rename = "session_id")]
    pub id: SessionId,
    pub phase: SessionPhase,
    /// The session's turn stays in progress.
    pub keeps_turn: bool,
    /// For `backoff` and `waiting`: when to wake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_ms: Option<i64>,
    /// The position of the requested tool call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<i32>,
    /// The number of items that were put back.
    pub queued: i32,
    pub interrupted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
    /// A turn that was stopped, this one or one before it: the next turn's agent is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<TurnId>,
    /// The items that wait are parked behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// Its turns without progress from now on, if this turn made none. None: the turn has not finished, and changes nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streak: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streak_key: Option<String>,
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub streak_since: Option<OffsetDateTime>,
    /// A heartbeat: if there was nothing to do, the streak stays as it is.
    pub beats: bool,
    /// Its thread from now on.
    #[serde(skip)]
    pub thread: SessionThread,
    /// The session's next turn begins in this transaction, and writes the session's row: this record leaves it.
    pub goes_on: bool,
}

/// The outcome of a turn's notifications.
#[derive(Clone, Debug)]
pub struct ItemChange {
    pub account_id: AccountId,
    pub turn_id: TurnId,
    pub notification_ids: Vec<String>,
    pub state: domain::NotificationState,
    pub reason: Option<String>,
    pub attempts_more: i32,
}
