//! Fires timers. What a timer is for happens in the transaction that marks it.
//!
//! | kind | when it is due |
//! |---|---|
//! | `check_later` | an item of type `timer` enters the queue of the agent that set it |
//! | `question_lapse` | the question ends without an answer |
//! | `branch_deadline` | the branches of a call that are still live end |
//!
//! Lock order: the sessions of due timers are locked first, and the timers are marked last; if one of them was cleared meanwhile,
//! the caller rolls back. Of several sweepers, one fires an account's timers at a time; the others do not wait.

use contracts::{Timestamp, notification::NotificationMessage};
use domain::{
    AccountId, Actor, AgentId, Conversation, NotificationId, Owner, QuestionId, QueueLimits, SessionId, SessionScope,
    TaskId, TaskStatus, TimerId, TimerKind, TimerState,
};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;
use uuid::Uuid;

use super::question::{self, Lapse, NotEnded, question_end};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        branch_end::{Ending, Ends, branch_end, branches_lock},
        item_enter::{Entered, NewEntry, OwnEntry, items_enter},
    },
    setting::fresh_id,
    statement::column,
    timer::{CheckLater, TimerRow, changed},
};

/// Questions, or groups of branches, that end in one transaction.
const LAPSES_MAX: usize = 25;

/// The type of the item that a timer becomes.
pub const TIMER_ITEM: &str = "timer";

/// The hops were checked when the turn began that set the timer, and no agent is woken by another one.
const LIMITS: QueueLimits = QueueLimits {
    hops_max: u16::MAX,
    items_max: u32::MAX,
};

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
    /// Whose orchestrator has set it.
    orchestrator: Option<Owner>,
    /// As its client spelled it.
    task: Option<TaskId>,
    task_status: Option<TaskStatus>,
    note: String,
    payload: serde_json::Value,
}

/// Whether this transaction is the only one that fires the account's timers.
pub const FIRES_ALONE: &str = "select true from (select pg_try_advisory_xact_lock(hashtextextended('timers ' || $1, 0)) as alone offset 0) l where l.alone";

/// The oldest due timers of an account, of the kinds that this version fires. Relies on timer_due_of_account, whose order is
/// requested, and on the primary key of tasks.
pub const TIMERS_DUE: &str = "
    select t.id, t.kind, t.key, t.due_at, t.created_at, t.session_id, t.agent_id, t.orchestrator,
           k.display_id as task, k.status as task_status, t.note, t.payload
    from (select * from timer t where t.account_id = $1 and t.state = 'waiting' and t.due_at < 'infinity' and t.due_at <= now() and t.kind in ('check_later', 'question_lapse', 'branch_deadline')
          order by t.account_id, t.due_at, t.id limit $2) t
    left join task k on k.account_id = any (array[t.account_id]) and k.id = t.task_id";

/// The due timers of an account, the oldest first, for [`timers_fire`] in the same transaction; none if another one fires them.
pub async fn timers_due(tx: &Tx, account: &AccountId, timers_max: i64) -> Result<Vec<DueTimer>, StorageError> {
    if !tx.exists("lock firing", FIRES_ALONE, [account.into()]).await? {
        return Ok(Vec::new());
    }
    let values = [account.into(), timers_max.into()];
    let mut due: Vec<DueTimer> = tx.rows("find due timers", TIMERS_DUE, values).await?;
    // The ends of questions and branches lock their sessions one after the other: few at once, in the order in which others lock
    // sessions.
    if let Some(first) = due.first().map(|timer| timer.kind) {
        let together = due.iter().take_while(|timer| timer.kind == first).count();
        let together = match first {
            TimerKind::QuestionLapse | TimerKind::BranchDeadline => together.min(LAPSES_MAX),
            TimerKind::CheckLater | TimerKind::Later => together,
        };
        due.truncate(together);
        if first != TimerKind::CheckLater {
            due.sort_by_key(|timer| timer.session_id);
        }
    }
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
            // It was set while the task ended.
            TimerKind::CheckLater if timer.task_status.is_some_and(TaskStatus::is_terminal) => {
                mark.state = TimerState::Cleared;
                mark.reason = Some("the task has ended".to_owned());
            }
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
                let lapse = serde_json::from_value(timer.payload.clone());
                let lapse: Lapse = lapse.map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
                let mut setting = setting.clone();
                setting.origin.cause = Some(timer.id.to_string());
                setting.origin.hops = lapse.hops;
                match question_end(tx, account, question, &question::Ending::Lapsed, &setting).await? {
                    Ok((_, item, told)) => {
                        mark.item = item;
                        messages.extend(told);
                    }
                    Err(NotEnded::Missing | NotEnded::Already(_)) => {
                        mark.state = TimerState::Cleared;
                        mark.reason = Some("the question has ended".to_owned());
                    }
                    Err(NotEnded::Refused(refusal)) => return Err(StorageError::unreadable(ATTEMPT, refusal)),
                }
            }
            TimerKind::BranchDeadline => {
                let group = Uuid::parse_str(&timer.key).map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
                let branches = branches_lock(tx, account, |branch| branch.group_id == group).await?;
                let of_group = branches.iter().filter(|branch| branch.group_id == group);
                let ends = Ends {
                    ends: of_group.map(|branch| (branch.id, Ending::Expired)).collect(),
                    closing: &[],
                    tells: true,
                };
                if ends.ends.is_empty() {
                    mark.state = TimerState::Cleared;
                    mark.reason = Some("the branches have ended".to_owned());
                }
                messages.extend(branch_end(tx, account, &ends, setting).await?.messages);
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
        let task = self.task.as_ref().filter(|_| asked.of_task);
        let conversation = match &self.orchestrator {
            Some(owner) => Conversation::of_orchestrator(account, owner.clone(), asked.agent),
            None => Conversation::of(account, SessionScope::Task, task, asked.agent),
        };
        let title = "The time that you set has come".to_owned();
        let body = later(self.created_at, self.due_at, &self.note);
        let message = NotificationMessage::new(TIMER_ITEM, Actor::system(), title, body)
            .with("reopen", false)
            .with("timer_id", self.id.to_string());
        (conversation, fresh_id().into(), message)
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
