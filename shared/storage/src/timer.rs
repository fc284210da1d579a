//! Timers: sets, clears and fires them. A timer fires once: in the transaction that marks it, what it is for happens, or nothing.
//!
//! | kind | when it is due |
//! |---|---|
//! | `check_later` | an item of type `timer` enters the queue of the agent that set it |
//! | `question_lapse` | the question ends without an answer |
//!
//! Lock order: sessions, items, questions, then timers. So [`timers_fire`] locks the sessions of due timers first and marks the timers last;
//! if one of them was cleared meanwhile, the caller rolls back. Of several sweepers, one fires an account's timers at a time; the
//! others do not wait.

use contracts::{
    Timestamp,
    event::{Event, TimerChanged},
    notification::NotificationMessage,
};
use domain::{
    AccountId, Actor, AgentId, Conversation, NotificationId, QuestionId, QueueLimits, SessionId, TaskId, TimerId,
    TimerKind, TimerState,
};
use sea_orm::{FromQueryResult, Value};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use time::OffsetDateTime;

use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    question::{Ending, NotEnded, question_end},
    session::item_enter::{Entered, NewEntry, OwnEntry, items_enter},
    setting::fresh_id,
    statement::column,
};

/// The type of the item that a timer becomes.
pub const TIMER_ITEM: &str = "timer";

/// The hops were checked when the turn began that set the timer, and no agent is woken by another one.
const LIMITS: QueueLimits = QueueLimits {
    hops_max: u16::MAX,
    items_max: u32::MAX,
};

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
    Keys(TimerKind, &'a [String]),
    One(TimerId),
}

#[derive(FromQueryResult)]
struct TimerRow {
    id: TimerId,
    kind: TimerKind,
    due_at: OffsetDateTime,
    session_id: Option<SessionId>,
    agent_id: Option<AgentId>,
    /// As its client spelled it.
    task: Option<TaskId>,
    /// It was there before.
    was_known: bool,
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

/// Relies on timer_key.
pub const TIMER_SET: &str = concat!(
    "insert into timer as t (account_id, id, kind, key, due_at, task_id, session_id, agent_id, note, payload, chain)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
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

/// The event; a question has events of its own.
fn changed(
    account: &AccountId,
    row: &TimerRow,
    state: TimerState,
    reason: Option<&str>,
    setting: &Setting<'_>,
) -> Option<Owned> {
    match row.kind {
        TimerKind::CheckLater => {}
        TimerKind::QuestionLapse | TimerKind::Later => return None,
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

/// Each relies on the index of its scope: timer_of_task, timer_of_agent, timer_key, timer_pkey.
pub const CLEAR_OF_TASK: &str = clear!("t.task_id = $3");
pub const CLEAR_OF_AGENT_ON: &str = clear!("t.task_id = $3 and t.agent_id = $4");
pub const CLEAR_OF_AGENT: &str = clear!("t.agent_id = $3");
pub const CLEAR_OF_KEYS: &str = clear!("t.kind = $3 and t.key = any ($4)");
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

/// A due timer.
#[derive(Clone, Debug, FromQueryResult)]
pub struct DueTimer {
    pub id: TimerId,
    kind: TimerKind,
    key: String,
    due_at: OffsetDateTime,
    created_at: OffsetDateTime,
    session_id: Option<SessionId>,
    agent_id: Option<AgentId>,
    /// As its client spelled it.
    task: Option<TaskId>,
    note: String,
    payload: serde_json::Value,
}

/// Whether this transaction is the only one that fires the account's timers.
pub const FIRES_ALONE: &str = "select true from (select pg_try_advisory_xact_lock(hashtextextended('timers ' || $1, 0)) as alone offset 0) l where l.alone";

/// The oldest due timers of an account, of the kinds that this version fires. Relies on timer_due_of_account, whose order is
/// requested, and on the primary key of tasks.
pub const TIMERS_DUE: &str = "
    select t.id, t.kind, t.key, t.due_at, t.created_at, t.session_id, t.agent_id, k.display_id as task, t.note, t.payload
    from (select * from timer t where t.account_id = $1 and t.state = 'waiting' and t.due_at <= now() and t.kind in ('check_later', 'question_lapse')
          order by t.account_id, t.due_at, t.id limit $2) t
    left join task k on k.account_id = any (array[t.account_id]) and k.id = t.task_id";

/// The due timers of an account, the oldest first, for [`timers_fire`] in the same transaction; none if another one fires them.
pub async fn timers_due(tx: &Tx, account: &AccountId, timers_max: i64) -> Result<Vec<DueTimer>, StorageError> {
    if !tx.exists("lock firing", FIRES_ALONE, [account.into()]).await? {
        return Ok(Vec::new());
    }
    let values = [account.into(), timers_max.into()];
    let mut due: Vec<DueTimer> = tx.rows("find due timers", TIMERS_DUE, values).await?;
    // A question locks what is its own, so its end has a transaction alone.
    let together = due
        .iter()
        .take_while(|timer| timer.kind == TimerKind::CheckLater)
        .count();
    due.truncate(together.max(1));
    Ok(due)
}

/// Relies on the primary key.
pub const TIMERS_MARK: &str = "
    update timer t set state = f.state, ended_at = now(), reason = nullif(f.reason, ''), notification_id = nullif(f.item, '')
    from (select $1::text as account_id, f.* from unnest($2::uuid[], $3::text[], $4::text[], $5::text[]) as f (id, state, reason, item)
          offset 0) f
    where t.account_id = any (array[f.account_id]) and t.id = f.id and coalesce(t.state = 'waiting', false)";

/// What became of a timer.
struct Mark {
    state: TimerState,
    reason: Option<String>,
    item: Option<NotificationId>,
}

impl Mark {
    fn of(entered: &Entered, item: &NotificationId) -> Mark {
        match entered {
            Entered::Placed { .. } | Entered::Sent | Entered::Known(_) => Mark {
                state: TimerState::Fired,
                reason: None,
                item: Some(item.clone()),
            },
            Entered::Refused(refusal) => Mark {
                state: TimerState::Cleared,
                reason: Some(format!("refused: {refusal}")),
                item: Some(item.clone()),
            },
        }
    }
}

/// Fires timers. Gives none if one of them was cleared meanwhile: the caller rolls back.
pub async fn timers_fire(
    tx: &Tx,
    account: &AccountId,
    due: &[DueTimer],
    setting: &Setting<'_>,
) -> Result<Option<Vec<Owned>>, StorageError> {
    const ATTEMPT: &str = "fire timers";
    let mut entries: Vec<(usize, Conversation, NotificationId, NotificationMessage, Setting<'_>)> = Vec::new();
    let (mut marks, mut messages): (Vec<Mark>, Vec<Owned>) = Default::default();
    for (n, timer) in due.iter().enumerate() {
        let mut mark = Mark {
            state: TimerState::Fired,
            reason: None,
            item: None,
        };
        match timer.kind {
            TimerKind::CheckLater => {
                let asked = serde_json::from_value(timer.payload.clone());
                let asked: CheckLater = asked.map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
                let (conversation, id, message) = timer.item(account, asked);
                let mut setting = setting.clone();
                setting.origin.cause = Some(timer.id.to_string());
                setting.origin.hops = asked.hops;
                entries.push((n, conversation, id, message, setting));
            }
            TimerKind::QuestionLapse => {
                let question =
                    QuestionId::parse(&timer.key).map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
                match question_end(tx, account, question, &Ending::Lapsed, setting).await? {
                    Ok((_, told)) => messages.extend(told),
                    Err(NotEnded::Missing | NotEnded::Already(_)) => {
                        mark.state = TimerState::Cleared;
                        mark.reason = Some("the question has ended".to_owned());
                    }
                    Err(NotEnded::Refused(refusal)) => return Err(StorageError::unreadable(ATTEMPT, refusal)),
                }
            }
            // It is not read.
            TimerKind::Later => {}
        }
        marks.push(mark);
    }
    let items: Vec<OwnEntry<'_>> = entries
        .iter()
        .map(|(n, conversation, id, message, setting)| OwnEntry {
            conversation,
            item: NewEntry {
                id,
                task: due[*n].task.as_ref(),
                message: message.clone(),
            },
            setting: setting.clone(),
        })
        .collect();
    let (entered, entering) = items_enter(tx, &items, &LIMITS).await?;
    messages.extend(entering);
    for ((n, _, id, ..), entered) in entries.iter().zip(&entered) {
        marks[*n] = Mark::of(entered, id);
    }
    let values = [
        account.into(),
        column(due, |timer| timer.id),
        column(&marks, |mark| mark.state),
        column(&marks, |mark| mark.reason.clone().unwrap_or_default()),
        column(&marks, |mark| {
            mark.item.as_ref().map(ToString::to_string).unwrap_or_default()
        }),
    ];
    let marked = tx.execute("mark timers", TIMERS_MARK, values).await?;
    if marked != due.len() as u64 {
        return Ok(None);
    }
    let told = due.iter().zip(&marks).filter_map(|(timer, mark)| {
        let row = timer.row();
        changed(account, &row, mark.state, mark.reason.as_deref(), setting)
    });
    messages.extend(told);
    Ok(Some(messages))
}

/// A timer that cannot be fired does not stay first in its account.
pub const TIMER_POSTPONE: &str = "
    update timer set due_at = now() + $3 * interval '1 second', reason = $4 where account_id = $1 and id = $2 and state = 'waiting'";

/// Tries a timer again later, and says why.
pub async fn timer_postpone(
    tx: &Tx,
    account: &AccountId,
    timer: TimerId,
    (seconds, reason): (f64, &str),
) -> Result<(), StorageError> {
    let values = [account.into(), timer.into(), seconds.into(), reason.into()];
    tx.execute("postpone timer", TIMER_POSTPONE, values).await.map(|_| ())
}

impl DueTimer {
    fn row(&self) -> TimerRow {
        TimerRow {
            id: self.id,
            kind: self.kind,
            due_at: self.due_at,
            session_id: self.session_id,
            agent_id: self.agent_id,
            task: self.task.clone(),
            was_known: true,
        }
    }

    /// The item of a `check_later`, for the conversation that set it, whichever generation of it is open.
    fn item(&self, account: &AccountId, asked: CheckLater) -> (Conversation, NotificationId, NotificationMessage) {
        let conversation = Conversation {
            account: account.clone(),
            task: self.task.as_ref().filter(|_| asked.of_task).map(TaskId::key),
            agent: asked.agent,
        };
        let id = NotificationId::parse(&fresh_id().to_string()).expect("a UUID is printable and short");
        let metadata = [("reopen", json!(false)), ("timer_id", json!(self.id))];
        let message = NotificationMessage {
            id: None,
            kind: Some(TIMER_ITEM.to_owned()),
            agent: None,
            agents: Vec::new(),
            title: Some("The time that you set has come".to_owned()),
            body: later(self.created_at, self.due_at, &self.note),
            message_id: None,
            sender: Some(Actor::system()),
            queue_mode: None,
            metadata: metadata
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<Map<_, _>>(),
        };
        (conversation, id, message)
    }
}

/// What the agent is told. Pure.
fn later(set_at: OffsetDateTime, due_at: OffsetDateTime, note: &str) -> String {
    let shown = |at: OffsetDateTime| Timestamp::from(at.replace_nanosecond(0).expect("0 is in range"));
    format!(
        "At {} you asked to look again at {}. Your note:\n\n{note}",
        shown(set_at),
        shown(due_at)
    )
}
