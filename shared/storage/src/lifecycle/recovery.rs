//! Recovery: what is done about a task that does not move on. A row a cause and set of facts: the same facts again are the same
//! row, so its attempts go on counting over restarts, and a person is told once. Assignee and status are never changed.

use contracts::{
    Timestamp,
    event::{Event, RecoveryChanged, TaskRecovery},
};
use domain::{
    AccountId, AgentId, Audience, Gate, MailWhy, MessageType, NotificationId, RecoveryCause, RecoveryId, RecoveryState,
    SessionId, TaskId,
};
use sea_orm::{FromQueryResult, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    child_mail::child_gave_up,
    people_told::{Told, people_told},
};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        SessionName,
        sessions_lock::{SESSIONS_LOCK, sessions_lock},
        sessions_park::sessions_open,
    },
    setting::fresh_id,
};

/// Sessions of an agent on a task: more than there can be.
const SESSIONS_OPENED_MAX: i64 = 10;

/// A task that does not move on.
#[derive(Clone, Copy, Debug)]
pub struct Stuck<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub agent: Option<AgentId>,
    pub cause: RecoveryCause,
    /// In a few words, for a person.
    pub detail: &'a str,
    pub since: OffsetDateTime,
    /// The items that failed. One of a recovery is an attempt of its row and begins no other.
    pub items: &'a [String],
}

/// SQL of the open sessions in which a task `k` is worked on: its own, and with one session an agent for all tasks those of its
/// assignees. Relies on session_active_task and session_active_system.
#[macro_export]
macro_rules! sessions_on {
    () => {
        "(select o.account_id, o.id, o.agent_id from (
              select s.account_id, s.id, s.agent_id from session s
              where s.account_id = k.account_id and s.task_id = k.id and s.kind = 'task' and s.closed_at is null
              order by s.agent_id limit 64) o
          union all
          select s.account_id, s.id, s.agent_id
          from task_assignee a cross join lateral (
              select s.account_id, s.id, s.agent_id from session s
              where s.account_id = a.account_id and s.agent_id = a.agent_id and s.kind = 'system' and s.closed_at is null
              offset 0) s
          where a.account_id = k.account_id and a.task_id = k.id)"
    };
}

/// SQL of the facts that would have to change for a task `k` to have moved on, as a hash. Texts are not among them. A turn that a
/// recovery began is none, and neither is one that failed. An agent that goes round is moved on by no other agent's turn. Relies on
/// turn_number and question_of_task.
macro_rules! fingerprint {
    ($agent:literal, $cause:literal) => {
        concat!(
            "sha256(convert_to(concat_ws('|', k.status,
                (select string_agg(a.agent_id::text, ',' order by a.agent_id) from task_assignee a
                 where a.account_id = k.account_id and a.task_id = k.id),
                (select string_agg(t.id::text, ',' order by e.agent_id) from ",
            $crate::sessions_on!(),
            " e cross join lateral (
                    select t.id from (
                        select * from turn t where t.account_id = e.account_id and t.session_id = e.id
                        order by t.account_id, t.session_id, t.number desc limit 200) t
                    where t.state = 'finished' and t.task_id = k.id and coalesce(t.wake_key, '') not like 'recovery %'
                    order by t.number desc limit 1) t
                 where ",
            $cause,
            " <> 'no_progress' or e.agent_id = ",
            $agent,
            "),
                (select string_agg(q.id::text, ',' order by q.id) from (
                    select q.id from question q where q.account_id = k.account_id and q.task_id = k.id and q.state = 'open'
                    order by q.account_id, q.task_id limit 200) q)), 'UTF8'))"
        )
    };
}

/// `$9`: a repetition counts although a person is told already. A row whose agent was told goes to a person when the same facts
/// are met again after the agent's item has ended. A closed row is a person's again when its facts have changed and are back; of what
/// has happened again, at once. Relies on recovery_facts, and on the primary keys.
pub const RECOVERY_NOTE: &str = concat!(
    "insert into recovery as r (account_id, id, task_id, agent_id, cause, fingerprint, state, detail, notification_id, since)
     select k.account_id, $3::uuid, k.id, $4, $5, ",
    fingerprint!("$4", "$5"),
    ", $6, $7, case when $6 = 'open' then $3::uuid::text end, $8
     from (select $1::text as account_id, $2::text as id offset 0) w
     join task k on k.account_id = any (array[w.account_id]) and k.id = w.id and k.status not in ('done', 'cancelled', 'archived')
     where (select count(*) from unnest($10::text[]) as i (id)
            cross join lateral (select n.kind from notification n where n.account_id = k.account_id and n.id = i.id offset 0) n
            where n.kind = 'recovery') = 0
     on conflict (account_id, task_id, agent_id, cause, fingerprint) do update set
         attempts = r.attempts + 1, state = 'person', ended_at = null, reason = null,
         since = case r.state when 'closed' then excluded.since else r.since end
     where r.state = 'person' and $9 or r.state = 'closed' and ($9 or r.reason = 'superseded' or r.ended_at < excluded.since)
        or r.state = 'open' and (
         select count(*) from (select n.state from notification n
                               where n.account_id = r.account_id and n.id = r.notification_id offset 0) n
         where n.state not in ('queued', 'running')) > 0
     returning id, task_id, agent_id, cause, state, attempts, detail, reason, since, notification_id,
         r.xmax::text = '0' or $9 and r.since = $8 as is_new"
);

#[derive(Clone, Debug, FromQueryResult)]
pub struct RecoveryRow {
    pub id: RecoveryId,
    pub task_id: TaskId,
    pub agent_id: Option<AgentId>,
    pub cause: RecoveryCause,
    pub state: RecoveryState,
    pub attempts: i32,
    pub detail: String,
    pub reason: Option<String>,
    pub since: OffsetDateTime,
    /// The id of the item that its agent gets, for a new row in state `open`.
    pub notification_id: Option<NotificationId>,
    /// Made now, or opened again.
    pub is_new: bool,
}

impl RecoveryRow {
    fn changed(&self, account: &AccountId, task: &TaskId, setting: &Setting<'_>) -> Owned {
        let changed = RecoveryChanged {
            recovery_id: self.id,
            agent_id: self.agent_id,
            cause: self.cause,
            state: self.state,
            attempts: self.attempts,
            reason: self.reason.clone(),
        };
        let id = format!("{}:{}:{}", self.id, self.state, self.attempts);
        setting.event(account, Some(task), &id, Event::RecoveryChanged(changed))
    }

    fn told(
        &self,
        account: &AccountId,
        task: &TaskId,
        event: fn(TaskRecovery) -> Event,
        setting: &Setting<'_>,
    ) -> Owned {
        let recovery = TaskRecovery {
            recovery_id: self.id,
            agent_id: self.agent_id,
            cause: self.cause,
            since: Timestamp::from(self.since),
            detail: self.detail.clone(),
        };
        setting.event(account, Some(task), &self.id.to_string(), event(recovery))
    }
}

/// Notes that a task does not move on. `state`: of a new row; `open` if its agent is to be told by the caller, with the item's id
/// that the row has. None: the same was noted before, and nothing follows now.
pub async fn recovery_note(
    tx: &Tx,
    stuck: &Stuck<'_>,
    state: RecoveryState,
    setting: &Setting<'_>,
) -> Result<(Option<RecoveryRow>, Vec<Owned>), StorageError> {
    let tried = matches!(stuck.cause, RecoveryCause::Stranded | RecoveryCause::ReviewUndecided);
    let values: [Value; 10] = [
        stuck.account.into(),
        stuck.task.key().into(),
        fresh_id().into(),
        stuck.agent.into(),
        stuck.cause.into(),
        state.into(),
        stuck.detail.into(),
        stuck.since.into(),
        (!tried).into(),
        stuck.items.to_vec().into(),
    ];
    let Some(row) = tx.one::<RecoveryRow>("note recovery", RECOVERY_NOTE, values).await? else {
        return Ok((None, Vec::new()));
    };
    let (account, task) = (stuck.account, stuck.task);
    let mut messages = vec![row.changed(account, task, setting)];
    if row.is_new && stuck.cause == RecoveryCause::Stranded {
        messages.push(row.told(account, task, Event::TaskStalled, setting));
    }
    // A repetition that only counts tells nobody again.
    if row.state == RecoveryState::Person && (row.is_new || tried) {
        messages.push(row.told(account, task, Event::TaskNeedsPerson, setting));
        let told = Told {
            account,
            task: Some(task),
            audience: &[Audience::Members],
            from: None,
            content: &format!("Task {task} does not move on by itself.\n\n{}", row.detail),
            kind: MessageType::Escalation,
            why: MailWhy::Escalation,
            question: None,
            seed: Uuid::new_v5(&row.id.uuid(), &row.attempts.to_be_bytes()),
        };
        messages.extend(people_told(tx, &told, setting).await?);
        let said = (&*row.detail, told.seed);
        messages.extend(child_gave_up(tx, (account, task), said, setting).await?);
    }
    Ok((Some(row), messages))
}

macro_rules! closed {
    ($where:literal) => {
        concat!(
            "update recovery r set state = 'closed', reason = $3, ended_at = now() ",
            $where,
            " returning r.id, (select k.display_id from task k where k.account_id = r.account_id and k.id = r.task_id) as task_id,
                r.agent_id, r.cause, r.state, r.attempts, r.detail, r.reason, r.since, r.notification_id, false as is_new"
        )
    };
}

/// Relies on the primary key.
pub const RECOVERY_CLOSE: &str =
    closed!("where r.account_id = $1 and r.id = $2 and coalesce(r.state <> 'closed', false)");

/// Relies on recovery_facts, whose order is requested.
pub const RECOVERIES_OF_TASK: &str = closed!(
    "from (select o.account_id, o.id from recovery o
           where o.account_id = $1 and o.task_id = $2 and coalesce(o.state <> 'closed', false)
           order by o.account_id, o.task_id, o.agent_id, o.cause offset 0) o
     where r.account_id = any (array[o.account_id]) and r.id = o.id"
);

/// Those whose facts have changed. Relies on the primary keys.
pub const RECOVERIES_SUPERSEDED: &str = concat!(
    "update recovery r set state = 'closed', reason = $3, ended_at = now()
     from (select o.account_id, o.id, k.display_id, k.status, ",
    fingerprint!("o.agent_id", "o.cause"),
    " as fingerprint
           from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) order by f.id offset 0) f
           cross join lateral (select * from recovery r where r.account_id = f.account_id and r.id = f.id offset 0 for update skip locked) o
           cross join lateral (select * from task k where k.account_id = o.account_id and k.id = o.task_id offset 0) k offset 0) f
     where r.account_id = any (array[f.account_id]) and r.id = f.id and coalesce(r.state <> 'closed', false)
       and (r.fingerprint <> f.fingerprint or f.status in ('done', 'cancelled', 'archived'))
     returning r.id, f.display_id as task_id, r.agent_id, r.cause, r.state, r.attempts, r.detail, r.reason, r.since, r.notification_id,
         false as is_new"
);

/// Closes those that the statement chooses, and opens the queues that they kept.
async fn rows_close(
    tx: &Tx,
    account: &AccountId,
    (sql, of): (&'static str, Value),
    reason: &str,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [account.into(), of, reason.into()];
    let closed: Vec<RecoveryRow> = tx.rows("close recoveries", sql, values).await?;
    let mut messages: Vec<Owned> = closed
        .iter()
        .map(|row| row.changed(account, &row.task_id, setting))
        .collect();
    for row in closed.iter().filter(|row| row.cause == RecoveryCause::NoProgress) {
        let gate = (Gate::NoProgress, row.id.uuid());
        let (_, told) = sessions_open(tx, account, gate, SESSIONS_OPENED_MAX, setting).await?;
        messages.extend(told);
    }
    Ok(messages)
}

/// The same of some recoveries, with the sessions locked that they keep.
async fn close_and_open(
    tx: &Tx,
    account: &AccountId,
    recoveries: &[RecoveryId],
    close: (&'static str, Value),
    reason: &str,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [account.into(), recoveries.to_vec().into()];
    let parked: Vec<ParkedRow> = tx.rows("find parked sessions", PARKED_BY_RECOVERIES, values).await?;
    let parked: Vec<SessionName> = parked.into_iter().map(|row| (row.account_id, row.id)).collect();
    // As who parks a session locks: the session, then its recovery.
    sessions_lock(tx, SESSIONS_LOCK, &parked).await?;
    rows_close(tx, account, close, reason, setting).await
}

/// A person has seen to it.
pub async fn recovery_dismiss(
    tx: &Tx,
    account: &AccountId,
    recovery: RecoveryId,
    reason: &str,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let close = (RECOVERY_CLOSE, recovery.into());
    close_and_open(tx, account, &[recovery], close, reason, setting).await
}

/// Its task has ended. The caller holds the locks of the sessions that work on the task: that of an agent with one session for all of its
/// work stays open, and goes on.
pub async fn recoveries_close(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    reason: &str,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let close = (RECOVERIES_OF_TASK, task.key().into());
    rows_close(tx, account, close, reason, setting).await
}

/// The sessions that these keep from going round. Relies on index session_gated.
pub const PARKED_BY_RECOVERIES: &str = "
    select s.account_id, s.id from unnest($2::uuid[]) as r (id)
    cross join lateral (
        select s.account_id, s.id from session s where s.account_id = $1 and s.gate_ref = r.id
        order by s.gate_ref, s.account_id, s.id limit 10) s";

#[derive(FromQueryResult)]
struct ParkedRow {
    account_id: AccountId,
    id: SessionId,
}

/// Closes those of these whose facts have changed since, and opens the queues that they kept.
pub async fn recoveries_supersede(
    tx: &Tx,
    account: &AccountId,
    recoveries: Vec<RecoveryId>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let close = (RECOVERIES_SUPERSEDED, recoveries.clone().into());
    close_and_open(tx, account, &recoveries, close, "superseded", setting).await
}
