//! Locks sessions until the end of the transaction, by id or by conversation, in the order of account and id, so that
//! two transactions that lock several sessions do not deadlock.

use std::collections::HashMap;

use domain::{
    AccountId, AgentId, BranchId, Conversation, ConversationOf, Fence, Gate, Generation, ImpossibleStep,
    PersonaVersionId, ReplayId, ResetRequest, SessionEvent, SessionId, SessionKind, SessionPhase, SessionState,
    StopKind, StopThen, TaskId, TurnId, TurnRef, UserId, context::Told, progress::Streak,
};
use sea_orm::{DbErr, FromQueryResult, QueryResult, TryGetableFromJson, Value};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use super::SessionName;
use crate::{StorageError, Tx, statement::pairs};

/// The fields of a session that a decision depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct SessionFacts {
    pub phase: SessionPhase,
    pub closed: bool,
    pub queued: i32,
    /// `wake_at` is set and has passed.
    pub due: bool,
    /// The position of the tool call that was requested last.
    pub asked: i32,
    /// Its turn in progress is to end.
    pub stopping: bool,
    /// The lease has an owner that is not alive.
    #[sea_orm(skip)]
    pub lease_dead: bool,
}

impl SessionFacts {
    pub fn state(self) -> SessionState {
        SessionState {
            phase: self.phase,
            closed: self.closed,
        }
    }

    /// The state after a replica has taken the lease.
    pub fn claimed(self) -> Result<SessionState, ImpossibleStep> {
        self.state().on(match self.phase {
            SessionPhase::Running => SessionEvent::LeaseLost,
            SessionPhase::Idle | SessionPhase::Waiting | SessionPhase::Backoff => SessionEvent::Claimed,
        })
    }
}

/// A request to stop the turn in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    pub kind: StopKind,
    /// The name of who asked.
    pub by: String,
    pub then: StopThen,
}

/// What a session knows of the threads of its generation, and what its rules of rotation count. Its column is JSON.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionThread {
    /// The newest, from 1; 0: no turn has begun.
    pub number: i32,
    /// The provider has answered in it, and the next turn can go on from there.
    pub live: bool,
    /// Turns in a row that found their thread gone.
    pub lost: i32,
    /// The provider ran another session than the key's.
    #[serde(skip)]
    pub elsewhere: bool,
    /// The response from which it goes on, where the provider finds a thread by it. Has a column of its own: closing clears it.
    #[serde(skip)]
    pub at: Option<String>,
    pub told: Told,
    /// Of the generation's ended turns.
    pub tokens: i64,
    /// Ended turns in a row that failed by themselves.
    pub failures: i32,
}

impl FromQueryResult for SessionThread {
    fn from_query_result(row: &QueryResult, prefix: &str) -> Result<SessionThread, DbErr> {
        let kept: SessionThread = row.try_get(prefix, "kept")?;
        Ok(SessionThread {
            elsewhere: row.try_get(prefix, "elsewhere")?,
            at: row.try_get(prefix, "at")?,
            ..kept
        })
    }
}

impl TryGetableFromJson for SessionThread {}

/// A session, locked until the end of the transaction.
#[derive(Clone, Debug, FromQueryResult)]
pub struct LockedSession {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: SessionId,
    pub kind: SessionKind,
    /// The branch that it runs.
    #[sea_orm(from_alias = "branch_id")]
    pub branch: Option<BranchId>,
    /// The replay that it runs.
    #[sea_orm(from_alias = "replay_id")]
    pub replay: Option<ReplayId>,
    /// The session that spawned the branch.
    #[sea_orm(from_alias = "parent_session_id")]
    pub parent: Option<SessionId>,
    pub key: String,
    pub agent_id: Option<AgentId>,
    /// The person whose orchestrator's it is.
    #[sea_orm(from_alias = "user_id")]
    pub owner: Option<UserId>,
    pub generation: Generation,
    pub fence: Fence,
    #[sea_orm(from_alias = "active_turn_id")]
    pub active_turn: Option<TurnId>,
    pub turn_count: i64,
    pub interrupted: bool,
    /// A text: a newer version may write more than [`domain::CloseReason`] has.
    pub close_reason: Option<String>,
    pub lease_owner: Option<Uuid>,
    /// The newest request to stop a turn; it stands until the next one.
    pub stop_kind: Option<StopKind>,
    pub stop_by: Option<String>,
    pub stop_at: Option<OffsetDateTime>,
    pub stop_then: Option<StopThen>,
    /// A reset that is carried out when the turn in progress has ended.
    #[sea_orm(from_alias = "reset_request")]
    pub reset: Option<ResetRequest>,
    /// A turn that was stopped; the next turn's agent is told.
    #[sea_orm(from_alias = "stopped_turn_id")]
    pub stopped_turn: Option<TurnId>,
    /// What keeps its queue from starting.
    pub gate: Option<Gate>,
    /// A hold, a question, a provider or a recovery that says when the gate opens.
    pub gate_ref: Option<Uuid>,
    /// The number of items that were ever queued.
    pub queue_tail: i64,
    /// How often its waiting items were edited.
    pub queue_edits: i64,
    #[sea_orm(nested(prefix = "streak_"))]
    pub streak: Streak,
    pub opened_at: OffsetDateTime,
    /// The generation before, which was rotated.
    #[sea_orm(from_alias = "continues_id")]
    pub continues: Option<SessionId>,
    #[sea_orm(nested(prefix = "thread_"))]
    pub thread: SessionThread,
    /// The persona of its agent, as its generation has it.
    #[sea_orm(from_alias = "persona_version_id")]
    pub persona: Option<PersonaVersionId>,
    #[sea_orm(nested)]
    pub facts: SessionFacts,
    /// The account's own limit of concurrent turns.
    pub turns_in_flight_max: Option<i32>,
    /// The number of the account's tool policies.
    pub tool_policies: i32,
}

impl LockedSession {
    pub fn name(&self) -> SessionName {
        (self.account.clone(), self.id)
    }

    /// As a new item finds it.
    pub fn active(&self) -> ActiveSession {
        ActiveSession {
            id: self.id,
            generation: self.generation,
            queue_tail: self.queue_tail,
            queued: self.facts.queued,
            rests: self.facts.phase == SessionPhase::Idle && self.facts.queued == 0,
            gate: self.gate,
            active_turn: self.active_turn,
            will_hold: self.stop().is_some_and(|stop| stop.then == StopThen::Hold),
        }
    }

    /// The revision of its queue: another one after each entry, turn and edit.
    pub fn revision(&self) -> String {
        queue_revision(self.queue_tail, self.turn_count, self.queue_edits)
    }

    /// Why its turn in progress is to end, and who asked.
    pub fn stop(&self) -> Option<Stop> {
        let kind = self.stop_kind.filter(|_| self.facts.stopping)?;
        Some(Stop {
            kind,
            by: self.stop_by.clone().unwrap_or_default(),
            then: self.stop_then.unwrap_or(StopThen::Continue),
        })
    }

    /// A turn of the session, under its lease.
    pub fn turn(&self, id: TurnId, task: Option<TaskId>) -> TurnRef {
        TurnRef {
            account: self.account.clone(),
            task,
            session: self.id,
            key: self.key.clone(),
            generation: self.generation,
            id,
            fence: self.fence,
        }
    }

    /// The same under the lease of the next claim.
    pub fn turn_claimed(&self, id: TurnId, task: Option<TaskId>) -> TurnRef {
        TurnRef {
            fence: self.fence.next(),
            ..self.turn(id, task)
        }
    }
}

/// The revision of a queue, from the columns of its session.
pub fn queue_revision(tail: i64, turns: i64, edits: i64) -> String {
    format!("{tail}.{turns}.{edits}")
}

macro_rules! sessions_lock {
    ($wait:literal) => {
        concat!(
            "
    select s.account_id, s.id, s.kind, case s.kind when 'branch' then s.origin_id end as branch_id,
           case s.kind when 'replay' then s.origin_id end as replay_id, case s.kind when 'branch' then s.parent_session_id end as parent_session_id, s.key, s.agent_id, s.user_id, s.generation, s.phase, s.fence, s.active_turn_id, s.queued, s.turn_count,
           s.interrupted, s.closed_at is not null as closed, s.close_reason, coalesce(s.wake_at <= now(), false) as due,
           s.asked, s.lease_owner, coalesce(s.stop_turn_id = s.active_turn_id, false) as stopping, s.stop_kind, s.stop_by, s.stop_at,
           s.stop_then, s.reset_request, s.stopped_turn_id, s.gate, s.gate_ref, s.queue_tail, s.queue_edits, s.streak as streak_turns, s.streak_key, s.streak_since,
           s.opened_at, s.continues_id, s.thread as thread_kept, s.mismatch is not null as thread_elsewhere, s.provider_thread as thread_at, s.persona_version_id,
           (select a.turns_in_flight_max from account a where a.id = s.account_id) as turns_in_flight_max,
           coalesce((select a.tool_policies from account a where a.id = s.account_id), 0) as tool_policies
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
    order by w.account_id, w.id for no key update of s",
            $wait
        )
    };
}

/// Relies on the primary key. Enqueuing takes the same lock, so no wake-up is lost between; the order prevents
/// deadlocks.
pub const SESSIONS_LOCK: &str = sessions_lock!("");
/// Without sessions that another transaction has locked: the rest of the batch would wait for them. The claimer retries
/// locked sessions ([`sessions_there`]), because the holder of a lock may publish nothing after its commit.
pub const SESSIONS_LOCK_FREE: &str = sessions_lock!(" skip locked");

/// Locks by [`SESSIONS_LOCK`] or [`SESSIONS_LOCK_FREE`].
pub async fn sessions_lock(
    tx: &Tx,
    sql: &'static str,
    names: &[SessionName],
) -> Result<Vec<LockedSession>, StorageError> {
    let (accounts, ids) = pairs(names);
    tx.rows("lock sessions", sql, [accounts.into(), ids.into()]).await
}

#[derive(FromQueryResult)]
struct ThereRow {
    account_id: AccountId,
    id: SessionId,
}

/// Relies on the primary key.
pub const SESSIONS_THERE: &str = "
    select s.account_id, s.id from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from session s where s.account_id = w.account_id and s.id = w.id limit 1) s";

/// The sessions among `names` that were not removed.
pub async fn sessions_there(tx: &Tx, names: &[SessionName]) -> Result<Vec<SessionName>, StorageError> {
    let (accounts, ids) = pairs(names);
    let values = [accounts.into(), ids.into()];
    let rows: Vec<ThereRow> = tx.rows("find locked sessions", SESSIONS_THERE, values).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.id)).collect())
}

/// An active session, locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct ActiveSession {
    pub id: SessionId,
    pub generation: Generation,
    /// The position of the newest item that was ever queued.
    pub queue_tail: i64,
    /// The number of queued items.
    pub queued: i32,
    /// The session is idle: nothing is queued and no turn is in progress. Delivery must be woken for a new item. In any
    /// other state, delivery finds the item under the session's lock.
    pub rests: bool,
    /// What keeps its queue from starting.
    pub gate: Option<Gate>,
    #[sea_orm(from_alias = "active_turn_id")]
    pub active_turn: Option<TurnId>,
    /// Its turn in progress is to end, and what waits is to be held then.
    pub will_hold: bool,
}

#[derive(FromQueryResult)]
struct LockedRow {
    n: i64,
    #[sea_orm(nested)]
    session: ActiveSession,
}

macro_rules! conversations_lock {
    ($more:literal) => {
        concat!(
            "
    with found as materialized (
        select w.n, t.account_id, t.id
        from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) as w (account_id, agent_id, n, task_id)
        cross join lateral (
            select t.account_id, t.id from session t
            where t.account_id = w.account_id and t.task_id = w.task_id and t.agent_id = w.agent_id
              and t.closed_at is null and t.kind = 'task'
            offset 0) as t
        union all
        select w.n, t.account_id, t.id
        from unnest($5::text[], $6::uuid[], $7::bigint[]) as w (account_id, agent_id, n)
        cross join lateral (
            select t.account_id, t.id from session t
            where t.account_id = w.account_id and t.agent_id = w.agent_id
              and t.closed_at is null and t.kind = 'system'
            offset 0) as t",
            $more,
            "
    )
    select f.n, s.id, s.generation, s.queue_tail, s.queued, s.phase = 'idle' and s.queued = 0 as rests, s.gate, s.active_turn_id,
           coalesce(s.stop_turn_id = s.active_turn_id and s.stop_then = 'hold', false) as will_hold
    from found f join session s on s.account_id = any (array[f.account_id]) and s.id = f.id
    where coalesce(s.closed_at is null, false)
    order by f.account_id, f.id for no key update of s"
        )
    };
}

/// One statement for all kinds, in the order of account and id: every transaction that locks several sessions uses
/// that order (delivery's claims and records, the closers of sessions), so that two of them do not deadlock. A session
/// that closes during the wait for its lock is not returned: the conversation then has no active session. Relies on
/// session_active_task, session_active_system and the primary key; `offset 0`, and comparisons without selectivity
/// statistics, keep the planner from reading all active sessions.
pub const CONVERSATIONS_LOCK: &str = conversations_lock!("");
/// The same with those of orchestrators and guests. Relies on session_active_orchestrator, too, whose order is requested for accounts' own,
/// and on session_active_guest.
pub const CONVERSATIONS_LOCK_ALL: &str = conversations_lock!(
    "
        union all
        select w.n, t.account_id, t.id
        from unnest($8::text[], $9::uuid[], $10::bigint[], $11::text[]) as w (account_id, agent_id, n, user_id)
        cross join lateral (
            select t.account_id, t.id from session t
            where t.account_id = w.account_id and t.user_id = w.user_id and t.closed_at is null and t.kind = 'orchestrator'
            offset 0) as t
        union all
        select w.n, t.account_id, t.id
        from unnest($8::text[], $9::uuid[], $10::bigint[], $11::text[]) as w (account_id, agent_id, n, user_id)
        cross join lateral (
            select t.account_id, t.id from session t
            where w.user_id = '' and t.account_id = w.account_id and t.user_id is null and t.closed_at is null and t.kind = 'orchestrator'
            order by t.user_id limit 1) as t
        union all
        select w.n, t.account_id, t.id
        from unnest($12::text[], $13::uuid[], $14::bigint[], $15::text[], $16::text[]) as w (account_id, agent_id, n, user_id, guest_id)
        cross join lateral (
            select t.account_id, t.id from session t
            where t.account_id = w.account_id and t.user_id = w.user_id and t.guest_user_id = w.guest_id
              and t.closed_at is null and t.kind = 'guest'
            offset 0) as t"
);

/// Locks the active sessions of these conversations; a conversation without one is missing in the result.
pub async fn conversations_lock(
    tx: &Tx,
    conversations: &[&Conversation],
) -> Result<HashMap<usize, ActiveSession>, StorageError> {
    let [tasks, agents, orchestrators, guests] = columns(conversations);
    let own = [orchestrators, guests];
    let (sql, own) = match own.iter().all(|columns| columns.places.is_empty()) {
        true => (CONVERSATIONS_LOCK, None),
        false => (CONVERSATIONS_LOCK_ALL, Some(own)),
    };
    let all = [tasks, agents].into_iter().chain(own.into_iter().flatten());
    let values = all.flat_map(ConversationColumns::values);
    let rows: Vec<LockedRow> = tx.rows("lock sessions of conversations", sql, values).await?;
    Ok(rows.into_iter().map(|row| (index(row.n), row.session)).collect())
}

/// Conversations of one kind, as arrays, with their positions among all.
#[derive(Default)]
pub(super) struct ConversationColumns {
    accounts: Vec<AccountId>,
    agents: Vec<AgentId>,
    places: Vec<i64>,
    /// The task, or the person; and the guest.
    names: Vec<Vec<String>>,
}

impl ConversationColumns {
    pub(super) fn values(self) -> Vec<Value> {
        let mut values = vec![self.accounts.into(), self.agents.into(), self.places.into()];
        values.extend(self.names.into_iter().map(Value::from));
        values
    }
}

/// Conversations of tasks, those of agents alone, those of orchestrators, and those of guests: partial indexes need the kind as a literal.
fn columns(conversations: &[&Conversation]) -> [ConversationColumns; 4] {
    let mut columns = [1, 0, 1, 2].map(|names| ConversationColumns {
        names: vec![Vec::new(); names],
        ..ConversationColumns::default()
    });
    for (n, conversation) in (0..).zip(conversations) {
        let (place, named) = match &conversation.of {
            ConversationOf::Task(task) => (0, vec![task.to_string()]),
            ConversationOf::Agent => (1, Vec::new()),
            ConversationOf::Orchestrator(owner) => {
                (2, vec![owner.user().map_or_else(String::new, ToString::to_string)])
            }
            ConversationOf::Guest { owner, guest } => (3, vec![owner.to_string(), guest.to_string()]),
            // What enters a branch's queue does so with its session: its request as it is made, and results of its own branches.
            ConversationOf::Branch(_) => continue,
        };
        let columns = &mut columns[place];
        columns.accounts.push(conversation.account.clone());
        columns.agents.push(conversation.agent);
        columns.places.push(n);
        for (names, name) in columns.names.iter_mut().zip(named) {
            names.push(name);
        }
    }
    columns
}

/// One of the statements for each kind that occurs: of tasks, of agents, of orchestrators, of guests.
pub(super) fn by_kind(
    conversations: &[&Conversation],
    statements: [&'static str; 4],
) -> Vec<(ConversationColumns, &'static str)> {
    let columns = columns(conversations).into_iter().zip(statements);
    columns.filter(|(columns, _)| !columns.places.is_empty()).collect()
}

pub(super) fn index(n: i64) -> usize {
    usize::try_from(n).expect("a place that we sent")
}
