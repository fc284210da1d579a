//! Closing sessions and giving every waiting item its outcome. The rule is `verdict.rs`, pure; the writes follow it.
//!
//! Locks: the closer holds its task or agent row, then takes the session rows by id, then the waiting items. Those of a
//! task may wait in a session that stays open (`session_scope = agent`): that one is taken with the rest, since whoever
//! takes an item off a queue takes the session first. The resolver takes session rows and then inserts items, so whoever
//! comes second sees what the first one did: an item is either here to be judged, or finds its session closed and opens
//! the next generation. None falls between.

use std::collections::{BTreeMap, HashMap, HashSet};

use contracts::{
    Outgoing, Timestamp,
    event::{Event, NotificationEnded, SessionEnded, SessionOpened},
    session::{SessionClosed, SessionResolved},
};
use domain::{
    AccountId, AgentId, CloseReason, Generation, NotificationId, SessionId, SessionKey, SessionKind, TaskId, TurnId,
    planted::{Bug, is_planted},
};
use sea_orm::{ConnectionTrait, FromQueryResult, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    Setting, fresh_id,
    verdict::{Closing, Judged, Waiting, judge},
};
use crate::{
    StorageError, Tx,
    error::Attempt,
    outbox::{Owned, outbox_insert},
    statement,
};

/// The reason on a notification that was cancelled because its task closed.
pub const TASK_CLOSED: &str = "task closed";
/// The same for an agent that was removed.
pub const AGENT_REMOVED: &str = "agent removed";

#[derive(Clone, Debug)]
pub struct ClosedSession {
    pub session_id: SessionId,
    pub key: String,
    pub generation: Generation,
    pub kind: SessionKind,
    pub agent_id: Option<AgentId>,
    /// A turn was in flight: it may run to its end, and changes nothing.
    pub active_turn: Option<TurnId>,
}

/// Which sessions and items.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope<'a> {
    Task(&'a TaskId),
    Agent(AgentId),
}

impl Scope<'_> {
    fn task(&self) -> Option<TaskId> {
        match self {
            Self::Task(task) => Some((*task).clone()),
            Self::Agent(_) => None,
        }
    }
}

pub(super) struct Closed {
    pub sessions: Vec<ClosedSession>,
    pub cancelled: Vec<NotificationId>,
    pub carried: Vec<NotificationId>,
    pub messages: Vec<Owned>,
}

#[derive(FromQueryResult)]
struct SessionRow {
    id: Uuid,
    task_id: Option<String>,
    /// As its client spelled it: subjects carry the task that way.
    display_id: Option<String>,
    agent_id: Option<Uuid>,
    kind: String,
    key: String,
    generation: i32,
    active_turn_id: Option<Uuid>,
    interrupted: bool,
}

/// The open sessions of a task, and of agents with one session for all of their work those where items of the task wait; but for
/// those that are known. Relies on session_active_task, session_active_system and notification_queue.
pub const OF_TASK: &str = "
    select o.id from session o
    where o.account_id = $1 and o.task_id = $2 and o.kind = 'task' and o.closed_at is null and not o.id = any($3::uuid[])
    union all
    select o.id from session o cross join lateral (
        select from notification n
        where n.account_id = any (array[o.account_id]) and n.session_id = o.id and n.state = 'queued' and n.task_id = $2
        limit 1) w
    where o.account_id = $1 and o.kind = 'system' and o.closed_at is null and o.queued > 0 and not o.id = any($3::uuid[])";

/// The open sessions of an agent, but for those that are known. Relies on session_active_task and session_active_system.
pub const OF_AGENT: &str = "
    select o.id from session o
    where o.account_id = $1 and o.agent_id = $2 and o.kind = 'task' and o.closed_at is null and not o.id = any($3::uuid[])
    union all
    select o.id from session o
    where o.account_id = $1 and o.agent_id = $2 and o.kind = 'system' and o.closed_at is null and not o.id = any($3::uuid[])";

/// One order for all closers, so that none waits for another that waits for it. Relies on the primary keys.
pub const LOCK: &str = "
    select s.id, s.task_id, t.display_id, s.agent_id, s.kind, s.key, s.generation, s.active_turn_id, s.interrupted
    from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    join session s on s.account_id = any (array[f.account_id]) and s.id = f.id and s.closed_at is null
    left join task t on t.account_id = any (array[s.account_id]) and t.id = s.task_id
    order by s.id for no key update of s";

#[derive(FromQueryResult)]
struct Found {
    id: Uuid,
}

/// Relies on the primary key.
pub const LOCK_WITH_OWN: &str = "
    select s.id from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    join session s on s.account_id = any (array[f.account_id]) and s.id = f.id
    order by s.id for no key update of s";

/// Locks what a closer of the task would lock, and with it one session more, in the closers' order: for who may close the task
/// later in the transaction, and needs that session as it is.
pub async fn task_sessions_lock(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    own: SessionId,
) -> Result<(), StorageError> {
    let mut ids = find(tx, account, OF_TASK, String::from(task.key()).into(), Vec::new()).await?;
    ids.push(own.0);
    tx.execute_raw(statement(LOCK_WITH_OWN, [account.as_str().into(), ids.into()]))
        .await
        .attempt("lock sessions of a task")?;
    Ok(())
}

async fn find(
    tx: &Tx,
    account: &AccountId,
    sql: &'static str,
    of: Value,
    known: Vec<Uuid>,
) -> Result<Vec<Uuid>, StorageError> {
    let found = Found::find_by_statement(statement(sql, [account.as_str().into(), of, known.into()])).all(&**tx);
    let found = found.await.attempt("find sessions to close")?;
    Ok(found.into_iter().map(|found| found.id).collect())
}

/// Locks what is to be closed, and what only loses items. Another closer that we waited for may have opened the next
/// generation of what it closed, and only a statement that begins afterwards sees that: so this goes on until one sees
/// nothing that is not locked.
async fn lock(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
) -> Result<(Vec<SessionRow>, Vec<SessionRow>), StorageError> {
    let (sql, of) = match scope {
        Scope::Task(task) => (OF_TASK, Value::from(String::from(task.key()))),
        Scope::Agent(agent) => (OF_AGENT, Value::from(agent.uuid())),
    };
    let (mut known, mut locked): (Vec<Uuid>, Vec<SessionRow>) = Default::default();
    loop {
        let ids = find(tx, account, sql, of.clone(), known.clone()).await?;
        if ids.is_empty() {
            break;
        }
        let values = [account.as_str().into(), ids.clone().into()];
        let more = SessionRow::find_by_statement(statement(LOCK, values)).all(&**tx);
        locked.extend(more.await.attempt("lock sessions to close")?);
        known.extend(ids);
    }
    let (closing, open) = locked.into_iter().partition(|row| match scope {
        Scope::Task(task) => row.task_id.as_deref() == Some(task.key().as_str()),
        Scope::Agent(_) => true,
    });
    Ok((closing, open))
}

/// A turn that waits for its next attempt is woken, to be ended: nothing will be sent for it any more.
pub const CLOSE: &str = "
    update session s set closed_at = $3, close_reason = $4,
        wake_at = case when s.phase = 'backoff' then now() else s.wake_at end
    from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    where s.account_id = any (array[f.account_id]) and s.id = f.id";

#[derive(FromQueryResult)]
struct ItemRow {
    id: String,
    session_id: Uuid,
    agent_id: Uuid,
    sender_kind: String,
    reopens: bool,
    created_at: OffsetDateTime,
}

/// Items of the closed sessions, and of this task in sessions that stay open; all of them are locked. Relies on
/// notification_queue.
pub const LOCK_ITEMS: &str = "
    select n.id, n.session_id, n.agent_id, n.sender_kind, n.created_at,
           coalesce(n.metadata -> 'reopen' = 'true'::jsonb, false) as reopens
    from (select $1::text as account_id, f.id, f.closes
          from (select unnest($2::uuid[]) as id, true as closes union all select unnest($4::uuid[]), false) f
          order by f.id offset 0) f
    cross join lateral (
        select * from notification n
        where n.account_id = f.account_id and n.session_id = f.id and n.state = 'queued' and (f.closes or n.task_id = $3)
        order by n.position offset 0 for no key update) n
    order by n.session_id, n.position";

/// Items whose turn waits for its next attempt: no call is in flight, so they wait as well, at the head of their queue.
/// Their turn ends as aborted when it is woken, and touches them no more. Relies on the primary keys.
pub const LOCK_TRIED: &str = "
    select n.id, n.session_id, n.agent_id, n.sender_kind, n.created_at,
           coalesce(n.metadata -> 'reopen' = 'true'::jsonb, false) as reopens
    from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) order by f.id offset 0) f
    cross join lateral (
        select s.active_turn_id from session s
        where s.account_id = f.account_id and s.id = f.id and s.phase = 'backoff' offset 0) s
    cross join lateral (
        select t.id, i.id as item from turn t cross join unnest(t.notification_ids) as i (id)
        where t.account_id = f.account_id and t.id = s.active_turn_id and t.state = 'started' offset 0) t
    cross join lateral (
        select * from notification n
        where n.account_id = f.account_id and n.id = t.item and n.state = 'running' and n.turn_id = t.id
        offset 0 for no key update) n
    order by n.session_id, n.position";

pub const CANCEL: &str = "
    update notification n set state = 'cancelled', reason = $3
    from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
    where n.account_id = any (array[f.account_id]) and n.id = f.id";

/// The counters of every session that lost items.
pub const UNCOUNT: &str = "
    update session s set queued = s.queued - f.items
    from (select $1::text as account_id, f.* from unnest($2::uuid[], $3::integer[]) as f (id, items) offset 0) f
    where s.account_id = any (array[f.account_id]) and s.id = f.id";

pub const CARRY: &str = "
    update notification n set session_id = $2, position = $4 + f.position, state = 'queued', turn_id = null
    from (select $1::text as account_id, f.* from unnest($3::text[]) with ordinality as f (id, position) offset 0) f
    where n.account_id = any (array[f.account_id]) and n.id = f.id";

/// A queue may be a hundred thousand long, and all of it is judged in one transaction (S3): items are written so many at a
/// time, so that no statement comes near its time limit.
const ITEMS_MAX: usize = 5_000;
/// As many events of cancelled items are told at once. Those of the rest are written here and left to the outbox's sweep, so
/// that a long queue is not in memory as messages.
const TOLD_MAX: usize = 1_000;

/// That the last turn was interrupted goes on as well: what is carried may be what it was about.
const OPEN_NEXT: &str = "
    insert into session (account_id, id, kind, task_id, agent_id, generation, key, opened_at, queued, queue_tail, interrupted)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10)";

/// Closes the active sessions in scope and judges what waits. The caller holds the row that makes it the only closer.
pub(super) async fn close(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
    reason: CloseReason,
    closing: Closing,
    setting: &Setting<'_>,
) -> Result<Closed, StorageError> {
    let (sessions, open) = lock(tx, account, scope).await?;
    let ids: Vec<Uuid> = sessions.iter().map(|session| session.id).collect();
    let values = [
        account.as_str().into(),
        ids.clone().into(),
        setting.now.into(),
        reason.as_str().into(),
    ];
    tx.execute_raw(statement(CLOSE, values))
        .await
        .attempt("close sessions")?;

    let task: Option<String> = match scope {
        Scope::Task(task) => Some(task.key().into()),
        Scope::Agent(_) => None,
    };
    let mut items = ItemRow::find_by_statement(statement(LOCK_TRIED, [account.as_str().into(), ids.clone().into()]))
        .all(&**tx)
        .await
        .attempt("lock items that were tried")?;
    let queued = ItemRow::find_by_statement(statement(
        LOCK_ITEMS,
        [
            account.as_str().into(),
            ids.clone().into(),
            task.into(),
            open.iter().map(|session| session.id).collect::<Vec<Uuid>>().into(),
        ],
    ))
    .all(&**tx)
    .await
    .attempt("lock waiting items")?;
    // Counted are those that are queued; a claim has taken the others off.
    let counted: HashSet<String> = queued.iter().map(|item| item.id.clone()).collect();
    items.extend(queued);
    let by_id: HashMap<Uuid, &SessionRow> = sessions.iter().map(|session| (session.id, session)).collect();
    let judged = judge(
        closing,
        items,
        |item| by_id.contains_key(&item.session_id),
        ItemRow::waiting,
    );
    let Judged { cancelled, moving, .. } = &judged;

    let cancelled_ids: Vec<String> = cancelled
        .iter()
        .filter(|_| !is_planted(Bug::QueueLost))
        .map(|item| item.id.clone())
        .collect();
    for ids in cancelled_ids.chunks(ITEMS_MAX) {
        let values = [
            account.as_str().into(),
            ids.to_vec().into(),
            cancel_reason(scope).into(),
        ];
        tx.execute_raw(statement(CANCEL, values))
            .await
            .attempt("cancel waiting items")?;
    }
    let mut left: BTreeMap<Uuid, i32> = BTreeMap::new();
    for item in cancelled.iter().chain(moving).filter(|item| counted.contains(&item.id)) {
        *left.entry(item.session_id).or_default() += 1;
    }
    let (left, items): (Vec<Uuid>, Vec<i32>) = left.into_iter().unzip();
    tx.execute_raw(statement(UNCOUNT, [account.as_str().into(), left.into(), items.into()]))
        .await
        .attempt("count the queues")?;

    let mut messages = Vec::new();
    for session in &sessions {
        messages.extend(ended_messages(account, session, reason, setting)?);
    }
    for (n, items) in cancelled.chunks(TOLD_MAX).enumerate() {
        let told = items.iter().map(|item| {
            let session = by_id.get(&item.session_id);
            let task = session.and_then(|session| session.task()).or_else(|| scope.task());
            cancelled_message(account, task.as_ref(), item, scope, setting)
        });
        if n == 0 {
            messages.extend(told);
        } else {
            outbox_insert(tx, told.collect()).await?;
        }
    }
    let mut moved: HashMap<Uuid, Vec<String>> = HashMap::new();
    for item in moving {
        moved.entry(item.session_id).or_default().push(item.id.clone());
    }
    for session in &sessions {
        if let Some(moved) = moved.remove(&session.id) {
            messages.extend(open_next(tx, account, session, moved, setting).await?);
        }
    }
    let parse = |item: &ItemRow| NotificationId::parse(&item.id).ok();
    Ok(Closed {
        cancelled: cancelled.iter().filter_map(parse).collect(),
        carried: moving.iter().chain(&judged.staying).filter_map(parse).collect(),
        sessions: sessions.iter().map(closed_session).collect::<Result<_, _>>()?,
        messages,
    })
}

fn cancel_reason(scope: Scope<'_>) -> &'static str {
    match scope {
        Scope::Task(_) => TASK_CLOSED,
        Scope::Agent(_) => AGENT_REMOVED,
    }
}

impl ItemRow {
    fn waiting(&self) -> Waiting {
        Waiting {
            from_person: self.sender_kind == "user",
            accepted_at: self.created_at,
            reopens: self.reopens,
        }
    }
}

impl SessionRow {
    fn task(&self) -> Option<TaskId> {
        TaskId::parse(self.display_id.as_deref()?).ok()
    }
}

fn closed_session(row: &SessionRow) -> Result<ClosedSession, StorageError> {
    Ok(ClosedSession {
        session_id: SessionId(row.id),
        key: row.key.clone(),
        generation: Generation(row.generation),
        kind: SessionKind::parse(&row.kind).ok_or_else(|| StorageError::unreadable("close sessions", &row.kind))?,
        agent_id: row.agent_id.map(AgentId),
        active_turn: row.active_turn_id.map(TurnId),
    })
}

fn cancelled_message(
    account: &AccountId,
    task: Option<&TaskId>,
    item: &ItemRow,
    scope: Scope<'_>,
    setting: &Setting<'_>,
) -> Owned {
    let ended = NotificationEnded {
        id: NotificationId::parse(&item.id).ok(),
        agent: Some(item.agent_id.to_string()),
        reason: "cancelled".to_owned(),
        detail: cancel_reason(scope).to_owned(),
        dead_letter_id: None,
    };
    setting.event(account, task, &item.id, Event::NotificationCancelled(ended))
}

fn ended_messages(
    account: &AccountId,
    row: &SessionRow,
    reason: CloseReason,
    setting: &Setting<'_>,
) -> Result<[Owned; 2], StorageError> {
    let task = row.task();
    let closed = closed_session(row)?;
    let message = SessionClosed {
        account: account.clone(),
        task: task.clone(),
        session_id: closed.session_id,
        session_key: closed.key.clone(),
        generation: closed.generation,
        agent_id: closed.agent_id,
        reason,
    };
    let outgoing = Outgoing::new(
        setting.root.session_closed(account, task.as_ref()),
        &message.message_id(),
        setting.source,
        (account, task.as_ref()),
        &setting.origin,
        Timestamp::from(setting.now),
        &message,
    );
    let ended = SessionEnded {
        session_id: closed.session_id,
        session_key: closed.key,
        generation: closed.generation,
        agent_id: closed.agent_id,
        reason,
    };
    let event = setting.event(
        account,
        task.as_ref(),
        &closed.session_id.to_string(),
        Event::SessionEnded(ended),
    );
    Ok([(Some(account.clone()), outgoing), event])
}

/// Opens the generation after `row` with what is carried into it. The closed row is locked by us and was the active
/// one, so its number is the highest.
async fn open_next(
    tx: &Tx,
    account: &AccountId,
    row: &SessionRow,
    items: Vec<String>,
    setting: &Setting<'_>,
) -> Result<[Owned; 2], StorageError> {
    let generation = Generation(row.generation).next();
    let key = SessionKey::parse(&row.key)
        .map_err(|error| StorageError::unreadable("open the next generation", error))?
        .with_generation(generation);
    let id = SessionId(fresh_id());
    let count = i64::try_from(items.len()).expect("a queue is shorter than 2^63");
    let values: [Value; 10] = [
        account.as_str().into(),
        id.uuid().into(),
        row.kind.as_str().into(),
        row.task_id.clone().into(),
        row.agent_id.into(),
        generation.0.into(),
        key.to_string().into(),
        setting.now.into(),
        count.into(),
        row.interrupted.into(),
    ];
    tx.execute_raw(statement(OPEN_NEXT, values))
        .await
        .attempt("open the next generation")?;
    for (first, items) in (0_i64..).step_by(ITEMS_MAX).zip(items.chunks(ITEMS_MAX)) {
        let values = [
            account.as_str().into(),
            id.uuid().into(),
            items.to_vec().into(),
            first.into(),
        ];
        tx.execute_raw(statement(CARRY, values))
            .await
            .attempt("carry waiting items")?;
    }

    let task = row.task();
    let resolved = SessionResolved {
        account: account.clone(),
        task: task.clone(),
        session_id: id,
        session_key: key.to_string(),
        generation,
        agent_id: row.agent_id.map(AgentId),
        position: count,
    };
    let wake = Outgoing::new(
        setting.root.session_resolved(account, task.as_ref()),
        &resolved.message_id(),
        setting.source,
        (account, task.as_ref()),
        &setting.origin,
        Timestamp::from(setting.now),
        &resolved,
    );
    let opened = SessionOpened {
        session_id: id,
        session_key: key.to_string(),
        kind: SessionKind::parse(&row.kind)
            .ok_or_else(|| StorageError::unreadable("open the next generation", &row.kind))?,
        generation,
        agent_id: row.agent_id.map(AgentId),
    };
    let event = setting.event(account, task.as_ref(), &id.to_string(), Event::SessionOpened(opened));
    Ok([(Some(account.clone()), wake), event])
}
