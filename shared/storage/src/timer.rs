//! Timers: set and cleared. A timer fires once: in the transaction that marks it, what it is for happens, or nothing
//! ([`crate::lifecycle::timers_fire`]).
//!
//! Lock order: sessions, items, questions, then timers.

use contracts::event::{Event, TimerChanged};
use domain::{AccountId, AgentId, Owner, SessionId, TaskId, TimerId, TimerKind, TimerState};
use sea_orm::{FromQueryResult, Value};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{Setting, StorageError, Tx, outbox::Owned, setting::fresh_id};

/// A timer to set.
#[derive(Clone, Debug)]
pub struct NewTimer<'a> {
    pub account: &'a AccountId,
    pub kind: TimerKind,
    /// What it is of. While a timer of this kind and key waits, it is that timer.
    pub key: &'a str,
    pub due_at: OffsetDateTime,
    /// It is cleared with these.
    pub task: Option<&'a TaskId>,
    pub session: Option<SessionId>,
    pub agent: Option<AgentId>,
    pub note: &'a str,
    /// An object, as the kind says.
    pub payload: serde_json::Value,
    pub chain: i32,
}

/// The payload of `check_later`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckLater {
    pub agent: AgentId,
    /// Of the turn that set it.
    pub hops: u16,
    /// The conversation is the task's; else the agent's, with all of its work.
    pub of_task: bool,
}

/// The timers to clear.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    Task(&'a TaskId),
    /// Those of the agent on the task.
    AgentOn(AgentId, &'a TaskId),
    Agent(AgentId),
    Orchestrator(&'a Owner),
    Keys(TimerKind, &'a [String]),
    One(TimerId),
}

#[derive(FromQueryResult)]
pub(crate) struct TimerRow {
    pub id: TimerId,
    pub kind: TimerKind,
    pub due_at: OffsetDateTime,
    pub session_id: Option<SessionId>,
    pub agent_id: Option<AgentId>,
    /// As its client spelled it.
    pub task: Option<TaskId>,
    /// It was there before.
    pub was_known: bool,
}

macro_rules! returning {
    ($was_known:literal) => {
        concat!(
            " returning t.id, t.kind, t.due_at, t.session_id, t.agent_id, ",
            $was_known,
            " as was_known, (select k.display_id from task k where k.account_id = t.account_id and k.id = t.task_id) as task"
        )
    };
}

/// Whose orchestrator's a session is; null: it is of no orchestrator. Relies on the primary key.
#[macro_export]
macro_rules! orchestrator_of {
    ($account:literal, $session:literal) => {
        concat!(
            "(select case when s.kind in ('orchestrator', 'guest') then coalesce('user:' || s.user_id, 'account') end
              from session s where s.account_id = ",
            $account,
            " and s.id = ",
            $session,
            ")"
        )
    };
}

/// Relies on timer_key and session_pkey.
pub const TIMER_SET: &str = concat!(
    "insert into timer as t (account_id, id, kind, key, due_at, task_id, session_id, agent_id, note, payload, chain, orchestrator)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, ",
    orchestrator_of!("$1", "$7"),
    ")
     on conflict (account_id, kind, key) where state = 'waiting' do update set state = 'waiting'",
    returning!("t.id <> $2")
);

/// Sets a timer, or finds the one that waits.
pub async fn timer_set(
    tx: &Tx,
    new: &NewTimer<'_>,
    setting: &Setting<'_>,
) -> Result<(TimerId, Vec<Owned>), StorageError> {
    const ATTEMPT: &str = "set timer";
    let values: [Value; 11] = [
        new.account.into(),
        TimerId(fresh_id()).into(),
        new.kind.into(),
        new.key.into(),
        new.due_at.into(),
        new.task.map(TaskId::key).into(),
        new.session.into(),
        new.agent.into(),
        new.note.into(),
        new.payload.clone().into(),
        new.chain.into(),
    ];
    let row: Option<TimerRow> = tx.one(ATTEMPT, TIMER_SET, values).await?;
    let row = row.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))?;
    let set = (!row.was_known).then(|| changed(new.account, &row, TimerState::Waiting, None, setting));
    Ok((row.id, set.into_iter().flatten().collect()))
}

/// The event; questions and branches have events of their own.
pub(crate) fn changed(
    account: &AccountId,
    row: &TimerRow,
    state: TimerState,
    reason: Option<&str>,
    setting: &Setting<'_>,
) -> Option<Owned> {
    match row.kind {
        TimerKind::CheckLater => {}
        TimerKind::QuestionLapse | TimerKind::BranchDeadline | TimerKind::Later => return None,
    }
    let data = TimerChanged {
        timer_id: row.id,
        kind: row.kind,
        state,
        agent_id: row.agent_id,
        session_id: row.session_id,
        due_at: row.due_at.into(),
        reason: reason.map(str::to_owned),
    };
    let id = format!("{}:{state}", row.id);
    Some(setting.event(account, row.task.as_ref(), &id, Event::TimerChanged(data)))
}

macro_rules! clear {
    ($scope:literal) => {
        concat!(
            "update timer t set state = 'cleared', ended_at = now(), reason = $2
             where t.account_id = $1 and t.state = 'waiting' and ",
            $scope,
            returning!("true")
        )
    };
}

/// Each relies on the index of its scope: timer_of_task, timer_of_agent, timer_of_orchestrator, timer_key, timer_pkey.
pub const CLEAR_OF_TASK: &str = clear!("t.task_id = $3");
pub const CLEAR_OF_ORCHESTRATOR: &str = clear!("t.orchestrator = $3");
pub const CLEAR_OF_AGENT_ON: &str = clear!("t.task_id = $3 and coalesce(t.agent_id = $4, false)");
/// So many at once; the others are cleared when they are due, since their agent is gone.
pub const CLEAR_OF_AGENT: &str = concat!(
    "update timer t set state = 'cleared', ended_at = now(), reason = $2
     from (select w.account_id, w.id from timer w where w.account_id = $1 and w.agent_id = $3 and w.state = 'waiting'
           order by w.account_id, w.agent_id limit 1000) w
     where t.account_id = any (array[w.account_id]) and t.id = w.id and coalesce(t.state = 'waiting', false)",
    returning!("true")
);
pub const CLEAR_OF_KEYS: &str = concat!(
    "update timer t set state = 'cleared', ended_at = now(), reason = $2
     from (select $1::text as account_id, w.key from unnest($4::text[]) as w (key) offset 0) w
     where t.account_id = any (array[w.account_id]) and t.state = 'waiting' and t.kind = $3 and t.key = w.key",
    returning!("true")
);
pub const CLEAR_ONE: &str = clear!("t.id = $3");

/// Clears what waits.
pub async fn timers_clear(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
    reason: &str,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let (sql, of): (_, Vec<Value>) = match scope {
        Scope::Task(task) => (CLEAR_OF_TASK, vec![task.key().into()]),
        Scope::AgentOn(agent, task) => (CLEAR_OF_AGENT_ON, vec![task.key().into(), agent.into()]),
        Scope::Agent(agent) => (CLEAR_OF_AGENT, vec![agent.into()]),
        Scope::Orchestrator(owner) => (CLEAR_OF_ORCHESTRATOR, vec![owner.to_string().into()]),
        Scope::Keys(kind, keys) => (CLEAR_OF_KEYS, vec![kind.into(), keys.to_vec().into()]),
        Scope::One(timer) => (CLEAR_ONE, vec![timer.into()]),
    };
    let values = [account.into(), reason.into()].into_iter().chain(of);
    let cleared: Vec<TimerRow> = tx.rows("clear timers", sql, values).await?;
    let told = cleared
        .iter()
        .filter_map(|row| changed(account, row, TimerState::Cleared, Some(reason), setting));
    Ok(told.collect())
}
