//! Closes sessions and gives every waiting item its outcome. The rule is in `verdict.rs`, pure; the writes are here.
//!
//! Lock order: the closer holds its task or agent row, then locks the session rows by id, then the waiting items. Items
//! of a task may wait in a session that stays open (`session_scope = agent`): that session is locked too, since a
//! caller must lock the session before it takes an item off its queue. The resolver locks session rows and then inserts
//! items, so the second of the two sees the first one's writes: an item is either judged here, or finds its session
//! closed and opens the next generation. No item is lost between.

use std::collections::{BTreeMap, HashMap, HashSet};

use contracts::{
    event::{Event, NotificationEnded, SessionEnded, SessionOpened},
    session::{SessionClosed, SessionResolved, SessionStopRequested},
};
use domain::{
    AccountId, AgentId, CloseReason, Gate, Generation, NotificationId, SessionId, SessionKey, SessionKind,
    SessionPhase, StopKind, StopThen, TASK_CLOSED, TaskId, TurnId, UserId,
    context::{Rotated, Told},
};
use sea_orm::{FromQueryResult, Value};
use time::OffsetDateTime;

use super::{
    branch_end::{Ending, Ends, LiveBranch, branch_end, branches_below, branches_live},
    sessions_lock::SessionThread,
    sessions_open::persona_of,
    turn_stop::{StopRequest, turn_stop},
    verdict::{Closing, Judged, Waiting, judge},
};
use crate::{
    Setting, StorageError, Tx,
    outbox::{Owned, outbox_insert},
    setting::fresh_id,
    statement::column,
};

/// Who ends branches where nobody is named.
const SIGNALBOX: &str = "Signalbox";

/// The reason for an agent that was removed.
pub const AGENT_REMOVED: &str = "agent removed";
/// The reason for the orchestrator of a person who was removed.
pub const MEMBER_REMOVED: &str = "member removed";
/// The reason for guests of an orchestrator that nobody may ask any more.
pub const UNREACHABLE: &str = "not reachable any more";

#[derive(Clone, Debug, FromQueryResult)]
pub struct ClosedSession {
    #[sea_orm(from_alias = "id")]
    pub session_id: SessionId,
    pub key: String,
    pub generation: Generation,
    pub kind: SessionKind,
    pub agent_id: Option<AgentId>,
    /// The turn in flight: it may run to its end, and its outcome changes nothing; or it is [`Cut`] off.
    #[sea_orm(from_alias = "active_turn_id")]
    pub active_turn: Option<TurnId>,
    /// The provider's name of its thread, which the close forgets.
    pub provider_thread: Option<String>,
}

/// The sessions and items to close.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    Task(&'a TaskId),
    Agent(AgentId),
    /// A person's orchestrator, its guests, and the person as a guest.
    User(&'a UserId),
    /// The guests of a person's orchestrator.
    Guests(&'a UserId),
}

impl Scope<'_> {
    /// Branches end by themselves, and their sessions with them.
    fn closes(&self, row: &SessionRow) -> bool {
        row.session.kind != SessionKind::Branch
            && match self {
                Self::Task(task) => row.task_id.as_ref() == Some(&task.key()),
                Self::Agent(agent) => row.session.agent_id == Some(*agent),
                Self::User(user) => [&row.user_id, &row.guest_user_id].contains(&&Some((*user).clone())),
                Self::Guests(user) => row.session.kind == SessionKind::Guest && row.user_id.as_ref() == Some(user),
            }
    }

    fn task(&self) -> Option<TaskId> {
        match self {
            Self::Task(task) => Some((*task).clone()),
            Self::Agent(_) | Self::User(_) | Self::Guests(_) => None,
        }
    }
}

/// Turns in progress on the task do not run out: they are asked to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut<'a> {
    /// The name of who closes.
    pub by: &'a str,
    /// The turn that closes its own task: it runs out.
    pub spares: Option<TurnId>,
}

pub(crate) struct Closed {
    pub sessions: Vec<ClosedSession>,
    /// Turns that were asked to stop.
    pub stopping: usize,
    pub cancelled: Vec<NotificationId>,
    pub carried: Vec<NotificationId>,
    pub messages: Vec<Owned>,
}

#[derive(FromQueryResult)]
pub(super) struct SessionRow {
    #[sea_orm(nested)]
    pub session: ClosedSession,
    task_id: Option<TaskId>,
    /// Whose orchestrator it is.
    user_id: Option<UserId>,
    /// Whom it answers.
    guest_user_id: Option<UserId>,
    /// As its client spelled it: subjects carry this spelling.
    display_id: Option<String>,
    /// A turn in it ended before its work was done.
    pub interrupted: bool,
}

macro_rules! of_task {
    () => {
        "
    select o.id from session o
    where o.account_id = $1 and o.task_id = $2 and o.kind = 'task' and o.closed_at is null and not o.id = any($3::uuid[])
    union all
    select o.id from session o cross join lateral (
        select from notification n
        where n.account_id = any (array[o.account_id]) and n.session_id = o.id and n.state = 'queued' and n.task_id = $2
        limit 1) w
    where o.account_id = $1 and o.kind = 'system' and o.closed_at is null and o.queued > 0 and not o.id = any($3::uuid[])"
    };
}

/// The open sessions of a task, and the open sessions of scope `agent` in which items of the task wait, without the
/// known ones. Relies on session_active_task, session_active_system and notification_queue.
pub const OF_TASK: &str = of_task!();

/// And the open sessions of scope `agent` whose turn in progress is on the task. Relies on turn_pkey too.
pub const OF_TASK_WITH_TURNS: &str = concat!(
    of_task!(),
    "
    union
    select o.id from session o cross join lateral (
        select from turn t
        where t.account_id = any (array[o.account_id]) and t.id = o.active_turn_id and t.task_id = $2
        limit 1) w
    where o.account_id = $1 and o.kind = 'system' and o.closed_at is null and o.active_turn_id is not null
      and not o.id = any($3::uuid[])"
);

/// The open sessions of an agent, without the known ones. Relies on session_of_agent.
pub const OF_AGENT: &str = "
    select o.id from session o
    where o.account_id = $1 and o.agent_id = $2 and coalesce(o.closed_at, 'infinity') = 'infinity'
      and not o.id = any($3::uuid[])";

/// The open session of a person's orchestrator, unless it is known, and those in which it answers others, or other people's answer the
/// person. Relies on session_active_orchestrator, session_active_guest, and session_guest, whose order is requested.
pub const OF_USER: &str = "
    select o.id from session o
    where o.account_id = $1 and o.user_id = $2 and o.kind = 'orchestrator' and o.closed_at is null and not o.id = any($3::uuid[])
    union all
    select o.id from session o
    where o.account_id = $1 and o.user_id = $2 and o.kind = 'guest' and o.closed_at is null and not o.id = any($3::uuid[])
    union all
    (select o.id from session o
     where o.account_id = $1 and o.guest_user_id >= $2 and o.guest_user_id <= $2 and o.kind = 'guest' and o.closed_at is null
       and not o.id = any($3::uuid[])
     order by o.guest_user_id)";

/// The open sessions in which a person's orchestrator answers others, but for those that are known. Relies on session_active_guest.
pub const OF_GUESTS: &str = "
    select o.id from session o
    where o.account_id = $1 and o.user_id = $2 and o.kind = 'guest' and o.closed_at is null and not o.id = any($3::uuid[])";

/// One order for all closers, so that they do not deadlock. Relies on the primary keys.
pub const LOCK: &str = "
    select s.id, s.task_id, s.user_id, s.guest_user_id, t.display_id, s.agent_id, s.kind, s.key, s.generation, s.active_turn_id, s.provider_thread,
           s.interrupted or s.stopped_turn_id is not null as interrupted
    from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    join session s on s.account_id = any (array[f.account_id]) and s.id = f.id and s.closed_at is null
    left join task t on t.account_id = any (array[s.account_id]) and t.id = s.task_id
    order by s.id for no key update of s";

#[derive(FromQueryResult)]
struct Found {
    id: SessionId,
}

/// Relies on the primary key.
pub const LOCK_WITH_OWN: &str = "
    select s.id from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    join session s on s.account_id = any (array[f.account_id]) and s.id = f.id
    order by s.id for no key update of s";

/// Locks the sessions that closers of the tasks would lock, and the caller's own, in the closers' order: for a caller that may close
/// several tasks in its transaction, or a task later, and needs its own session locked now.
pub async fn task_sessions_lock(
    tx: &Tx,
    account: &AccountId,
    tasks: &[TaskId],
    own: Option<SessionId>,
) -> Result<(), StorageError> {
    let live = branches_live(tx, account).await?;
    let mut all: Vec<SessionId> = own.into_iter().collect();
    for task in tasks {
        let of_task = find(tx, account, OF_TASK_WITH_TURNS, task.key().into(), Vec::new()).await?;
        let branches = branches_below(&live, &of_task, |branch| branch.task_id == task.key());
        all.extend(branches.iter().flat_map(sessions_of));
        all.extend(of_task);
    }
    let values = [account.into(), all.into()];
    tx.execute("lock sessions of tasks", LOCK_WITH_OWN, values).await?;
    Ok(())
}

async fn find(
    tx: &Tx,
    account: &AccountId,
    sql: &'static str,
    of: Value,
    known: Vec<SessionId>,
) -> Result<Vec<SessionId>, StorageError> {
    let values = [account.into(), of, known.into()];
    let found: Vec<Found> = tx.rows("find sessions to close", sql, values).await?;
    Ok(found.into_iter().map(|found| found.id).collect())
}

/// The session of a branch, and that of its parent.
fn sessions_of(branch: &LiveBranch) -> [SessionId; 2] {
    [branch.parent_session_id, branch.session_id]
}

/// What closes, locked.
struct InScope {
    closing: Vec<SessionRow>,
    /// Sessions that only lose items.
    open: Vec<SessionRow>,
    /// Branches that end.
    branches: Vec<LiveBranch>,
}

/// Locks the sessions to close, those that only lose items, and those of branches that end, with their parents. A closer that held the
/// locks before may have opened the next generation of its sessions, a spawn branches of them, and only a later statement sees that.
/// So this repeats until it finds no unlocked session.
async fn lock(tx: &Tx, account: &AccountId, scope: Scope<'_>, cuts: bool) -> Result<InScope, StorageError> {
    let (sql, of) = match scope {
        Scope::Task(task) if cuts => (OF_TASK_WITH_TURNS, Value::from(task.key())),
        Scope::Task(task) => (OF_TASK, Value::from(task.key())),
        Scope::Agent(agent) => (OF_AGENT, Value::from(agent)),
        Scope::User(user) => (OF_USER, Value::from(user)),
        Scope::Guests(user) => (OF_GUESTS, Value::from(user)),
    };
    let is_chosen = |branch: &LiveBranch| match scope {
        Scope::Task(task) => branch.task_id == task.key(),
        Scope::Agent(agent) => branch.agent_id == agent,
        Scope::User(_) | Scope::Guests(_) => false,
    };
    let (mut known, mut locked): (Vec<SessionId>, Vec<SessionRow>) = Default::default();
    let branches = loop {
        let mut ids = find(tx, account, sql, of.clone(), known.clone()).await?;
        let above: Vec<SessionId> = locked
            .iter()
            .filter(|row| scope.closes(row))
            .map(SessionRow::id)
            .chain(ids.iter().copied())
            .collect();
        let live = branches_live(tx, account).await?;
        let branches = branches_below(&live, &above, is_chosen);
        ids.extend(branches.iter().flat_map(sessions_of).filter(|id| !known.contains(id)));
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            break branches;
        }
        let values = [account.into(), ids.clone().into()];
        locked.extend(tx.rows("lock sessions to close", LOCK, values).await?);
        known.extend(ids);
    };
    let (closing, rest): (Vec<SessionRow>, Vec<SessionRow>) = locked.into_iter().partition(|row| scope.closes(row));
    let open = rest.into_iter().filter(|row| row.session.kind == SessionKind::System);
    Ok(InScope {
        open: match scope {
            Scope::Task(_) => open.collect(),
            Scope::Agent(_) | Scope::User(_) | Scope::Guests(_) => Vec::new(),
        },
        closing,
        branches,
    })
}

/// A turn that waits for its next attempt is woken and ends: it makes no further call.
pub const CLOSE: &str = "
    update session s set closed_at = $3, close_reason = $4, close_detail = $5, reset_request = null, provider_thread = null, gate = null,
        gate_ref = null, gated_since = null,
        wake_at = case when s.phase = 'backoff' then now() else s.wake_at end
    from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    where s.account_id = any (array[f.account_id]) and s.id = f.id";

#[derive(FromQueryResult)]
pub(super) struct ItemRow {
    pub id: String,
    pub session_id: SessionId,
    agent_id: AgentId,
    pub kind: String,
    sender_kind: String,
    pub sender_id: String,
    reopen: Option<serde_json::Value>,
    pub created_at: OffsetDateTime,
}

/// Items of the closed sessions, and items of this task in sessions that stay open; all these sessions are locked.
/// Relies on notification_queue.
pub const LOCK_ITEMS: &str = "
    select n.id, n.session_id, n.agent_id, n.kind, n.sender_kind, n.sender_id, n.created_at,
           n.metadata -> 'reopen' as reopen
    from (select $1::text as account_id, f.id, f.closes
          from (select unnest($2::uuid[]) as id, true as closes union all select unnest($4::uuid[]), false) f
          order by f.id offset 0) f
    cross join lateral (
        select * from notification n
        where n.account_id = f.account_id and n.session_id = f.id and n.state = 'queued' and (f.closes or n.task_id = $3)
        order by n.position offset 0 for no key update) n
    order by n.session_id, n.position";

/// Items whose turn waits for its next attempt. No call is in flight, so they count as waiting, at the head of their
/// queue. Their turn ends as aborted when it is woken, and does not change them. Relies on the primary keys.
pub const LOCK_TRIED: &str = "
    select n.id, n.session_id, n.agent_id, n.kind, n.sender_kind, n.sender_id, n.created_at,
           n.metadata -> 'reopen' as reopen
    from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) order by f.id offset 0) f
    cross join lateral (
        select s.active_turn_id from session s
        where s.account_id = f.account_id and s.id = f.id and s.phase = 'backoff' offset 0) s
    cross join lateral (
        select t.id, i.id as item from turn t cross join unnest(t.notification_ids) as i (id)
        where t.account_id = f.account_id and t.id = s.active_turn_id and t.state = 'started'
          and ($3::text is null or t.task_id = $3) offset 0) t
    cross join lateral (
        select * from notification n
        where n.account_id = f.account_id and n.id = t.item and n.state = 'running' and n.turn_id = t.id
        offset 0 for no key update) n
    order by n.session_id, n.position";

pub const CANCEL: &str = "
    update notification n set state = 'cancelled', reason = $3
    from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
    where n.account_id = any (array[f.account_id]) and n.id = f.id";

/// Updates the counters of every session that lost items. A hold or a plan may have kept these items only.
pub const UNCOUNT: &str = "
    update session s set queued = s.queued - f.items, wake_at = case when s.gate in ('pause', 'approval') then now() else s.wake_at end
    from (select $1::text as account_id, f.* from unnest($2::uuid[], $3::integer[]) as f (id, items) offset 0) f
    where s.account_id = any (array[f.account_id]) and s.id = f.id";

macro_rules! items_move {
    ($agent:literal) => {
        concat!(
            "
    update notification n set session_id = $2, ",
            $agent,
            "state = 'queued', turn_id = null,
        position = $4 + f.number - case when n.position < 0 then 1099511627776 else 0 end
    from (select $1::text as account_id, f.* from unnest($3::text[]) with ordinality as f (id, number) offset 0) f
    where n.account_id = any (array[f.account_id]) and n.id = f.id"
        )
    };
}

/// Items change their session; their numbers follow those of the session's own items, and steers stay before others. Relies on
/// the primary key.
pub const MOVE: &str = items_move!("");
/// They change their agent, too, which only the orchestrator may do.
pub const HAND_ON: &str = items_move!("agent_id = $5, ");

/// A queue may hold a hundred thousand items, and all of them are judged in one transaction (S3). Items are written in
/// batches of this size, so that no statement comes near its timeout.
pub(super) const ITEMS_MAX: usize = 5_000;
/// The number of cancelled items whose events are returned. Further events are written here and left to the outbox's
/// sweep, so that the messages of a long queue are not held in memory.
pub(super) const EVENTS_MAX: usize = 1_000;

/// What the next generation takes over from the closed one, besides items and the note of an interruption: the items may be the
/// ones that were interrupted.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Carried<'a> {
    /// A turn that waited for its next attempt was interrupted too.
    pub interrupted: bool,
    /// Its rule. The next generation knows what the closed one knew, and went round without progress as often.
    pub rotated: Option<&'a Rotated>,
    /// The note of a stopped turn.
    pub stopped: bool,
    pub gate: Option<Gate>,
}

/// Relies on the primary key.
pub const OPEN_NEXT: &str = concat!(
    "
    insert into session (account_id, id, kind, task_id, agent_id, user_id, guest_user_id, generation, key, opened_at, queued, queue_tail, interrupted,
                         continues_id, thread, streak, streak_key, streak_since, stopped_turn_id, stop_kind, stop_by, stop_at,
                         phase, gate, gated_since, parent_session_id, persona_version_id, persona_why)
    select s.account_id, $3, s.kind, s.task_id, s.agent_id, s.user_id, s.guest_user_id, s.generation + 1, $4, $5::timestamptz, $6::bigint, $6::bigint,
           s.interrupted or $7,
           case when $8 then s.id end, $9::text::jsonb, case when $8 then s.streak else 0 end,
           case when $8 then s.streak_key end, case when $8 then s.streak_since end,
           case when $10 then s.stopped_turn_id end, case when $10 then s.stop_kind end, case when $10 then s.stop_by end,
           case when $10 then s.stop_at end, $11, $12::text, case when $12::text is not null then $5::timestamptz end,
           s.parent_session_id, p.version_id, p.why
    from session s
    left join lateral ",
    persona_of!("s.account_id", "s.task_id"),
    " p on s.kind not in ('orchestrator', 'guest')
    where s.account_id = $1 and s.id = $2"
);

/// Closes the active sessions in scope and judges the waiting items. The caller holds the row lock that makes it the
/// only closer.
pub(crate) async fn close(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
    reason: CloseReason,
    (closing, cut): (Closing, Option<Cut<'_>>),
    setting: &Setting<'_>,
) -> Result<Closed, StorageError> {
    let InScope {
        closing: mut sessions,
        open,
        branches,
    } = lock(tx, account, scope, cut.is_some()).await?;
    let closed: Vec<SessionId> = sessions.iter().map(SessionRow::id).collect();
    let because = Ending::Cancelled {
        by: cut.map_or(SIGNALBOX, |cut| cut.by),
        reason: Some(cancel_reason(scope)),
    };
    let ends = Ends {
        ends: branches.iter().map(|branch| (branch.id, because)).collect(),
        closing: &closed,
        // What is about a task that has ended reaches nobody.
        tells: matches!(scope, Scope::Agent(_)),
    };
    let mut messages = branch_end(tx, account, &ends, setting).await?.messages;
    let ids: Value = closed.into();
    let values = [
        account.into(),
        ids.clone(),
        setting.now.into(),
        reason.into(),
        None::<String>.into(),
    ];
    tx.execute("close sessions", CLOSE, values).await?;
    let stops = turns_cut(tx, account, scope, cut, sessions.iter().chain(&open)).await?;

    let values = [account.into(), ids.clone(), None::<String>.into()];
    let mut items: Vec<ItemRow> = tx.rows("lock items of waiting turns", LOCK_TRIED, values).await?;
    let task = scope.task().map(|task| task.key());
    let open = column(&open, |row| row.session.session_id);
    let values = [account.into(), ids, task.into(), open];
    let queued: Vec<ItemRow> = tx.rows("lock waiting items", LOCK_ITEMS, values).await?;
    // The counters include queued items only; a claim has taken the others off.
    let counted: HashSet<String> = queued.iter().map(|item| item.id.clone()).collect();
    items.extend(queued);
    let by_id: HashMap<SessionId, &SessionRow> = sessions.iter().map(|row| (row.session.session_id, row)).collect();
    let judged = judge(
        closing,
        items,
        |item| by_id.contains_key(&item.session_id),
        ItemRow::waiting,
    );
    let Judged { cancelled, moving, .. } = &judged;

    let left = cancelled.iter().chain(moving).filter(|item| counted.contains(&item.id));
    items_uncount(tx, account, left.map(|item| item.session_id)).await?;

    let ended = |row| ended_messages(account, row, (reason, None), setting);
    messages.extend(sessions.iter().flat_map(ended));
    messages.extend(stops.iter().map(|stop| setting.message(&stop.message_id(), stop)));
    let task = |item: &ItemRow| {
        let session = by_id.get(&item.session_id);
        session.and_then(|session| session.task()).or_else(|| scope.task())
    };
    messages.extend(items_cancel(tx, account, (cancelled, cancel_reason(scope)), task, setting).await?);
    let mut moved: HashMap<SessionId, Vec<String>> = HashMap::new();
    for item in moving {
        moved.entry(item.session_id).or_default().push(item.id.clone());
    }
    let tried = cancelled
        .iter()
        .chain(moving)
        .filter(|item| !counted.contains(&item.id));
    let tried: HashSet<SessionId> = tried.map(|item| item.session_id).collect();
    for row in &mut sessions {
        row.interrupted |= tried.contains(&row.session.session_id);
        if let Some(moved) = moved.remove(&row.session.session_id) {
            let carried = Carried {
                interrupted: row.interrupted,
                ..Carried::default()
            };
            messages.extend(open_next(tx, account, row, (moved, carried), setting).await?.2);
        }
    }
    let parse = |item: &ItemRow| NotificationId::parse(&item.id).ok();
    Ok(Closed {
        cancelled: cancelled.iter().filter_map(parse).collect(),
        carried: moving.iter().chain(&judged.staying).filter_map(parse).collect(),
        sessions: sessions.into_iter().map(|row| row.session).collect(),
        stopping: stops.len(),
        messages,
    })
}

/// Asks the turns in progress on the task to stop.
async fn turns_cut(
    tx: &Tx,
    account: &AccountId,
    scope: Scope<'_>,
    cut: Option<Cut<'_>>,
    rows: impl Iterator<Item = &SessionRow>,
) -> Result<Vec<SessionStopRequested>, StorageError> {
    let (Some(cut), Scope::Task(task)) = (cut, scope) else {
        return Ok(Vec::new());
    };
    let turns = rows.filter_map(|row| Some((row.session.session_id, row.session.active_turn?)));
    let asked: Vec<StopRequest<'_>> = turns
        .filter(|(_, turn)| cut.spares != Some(*turn))
        .map(|(session, turn)| StopRequest {
            session: (account.clone(), session),
            turn: Some(turn),
            kind: StopKind::Cancelled,
            by: cut.by,
            then: StopThen::Continue,
            task: Some(task),
        })
        .collect();
    turn_stop(tx, &asked).await
}

fn cancel_reason(scope: Scope<'_>) -> &'static str {
    match scope {
        Scope::Task(_) => TASK_CLOSED,
        Scope::Agent(_) => AGENT_REMOVED,
        Scope::User(_) => MEMBER_REMOVED,
        Scope::Guests(_) => UNREACHABLE,
    }
}

impl ItemRow {
    fn waiting(&self) -> Waiting {
        Waiting {
            from_person: self.sender_kind == "user",
            accepted_at: self.created_at,
            reopens: self.reopen.as_ref().and_then(serde_json::Value::as_bool),
        }
    }
}

impl SessionRow {
    pub(super) fn id(&self) -> SessionId {
        self.session.session_id
    }

    pub(super) fn task(&self) -> Option<TaskId> {
        TaskId::parse(self.display_id.as_deref()?).ok()
    }
}

/// Takes items off the counters of their sessions.
pub(super) async fn items_uncount(
    tx: &Tx,
    account: &AccountId,
    sessions: impl Iterator<Item = SessionId>,
) -> Result<(), StorageError> {
    let mut left: BTreeMap<SessionId, i32> = BTreeMap::new();
    for session in sessions {
        *left.entry(session).or_default() += 1;
    }
    let (left, items): (Vec<SessionId>, Vec<i32>) = left.into_iter().unzip();
    let values = [account.into(), left.into(), items.into()];
    tx.execute("update queue counters", UNCOUNT, values).await.map(|_| ())
}

/// Cancels items; gives their events, as many as are sent at once.
pub(super) async fn items_cancel(
    tx: &Tx,
    account: &AccountId,
    (items, reason): (&[ItemRow], &str),
    task: impl Fn(&ItemRow) -> Option<TaskId>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let mut messages = Vec::new();
    for (n, items) in items.chunks(EVENTS_MAX.min(ITEMS_MAX)).enumerate() {
        let values = [account.into(), column(items, |item| item.id.clone()), reason.into()];
        tx.execute("cancel waiting items", CANCEL, values).await?;
        let told = items
            .iter()
            .map(|item| cancelled_message((account, task(item).as_ref()), item, reason, setting));
        match n {
            0 => messages.extend(told),
            _ => drop(outbox_insert(tx, told.collect()).await?),
        }
    }
    Ok(messages)
}

/// Moves items behind those of a session, in their order; those of `agent`, if it is named. The caller counts them.
pub(super) async fn items_move(
    tx: &Tx,
    account: &AccountId,
    items: &[String],
    (session, tail): (SessionId, i64),
    agent: Option<AgentId>,
) -> Result<(), StorageError> {
    for (first, items) in (tail..).step_by(ITEMS_MAX).zip(items.chunks(ITEMS_MAX)) {
        let mut values: Vec<Value> = vec![account.into(), session.into(), items.to_vec().into(), first.into()];
        let sql = match agent {
            None => MOVE,
            Some(agent) => {
                values.push(agent.into());
                HAND_ON
            }
        };
        tx.execute("move waiting items", sql, values).await?;
    }
    Ok(())
}

fn cancelled_message(
    (account, task): (&AccountId, Option<&TaskId>),
    item: &ItemRow,
    reason: &str,
    setting: &Setting<'_>,
) -> Owned {
    let ended = NotificationEnded {
        id: NotificationId::parse(&item.id).ok(),
        agent: Some(item.agent_id.to_string()),
        reason: "cancelled".to_owned(),
        detail: reason.to_owned(),
        dead_letter_id: None,
    };
    setting.event(account, task, &item.id, Event::NotificationCancelled(ended))
}

pub(super) fn ended_messages(
    account: &AccountId,
    row: &SessionRow,
    (reason, detail): (CloseReason, Option<&str>),
    setting: &Setting<'_>,
) -> [Owned; 2] {
    let (task, closed) = (row.task(), &row.session);
    let message = SessionClosed {
        account: account.clone(),
        task: task.clone(),
        session_id: closed.session_id,
        session_key: closed.key.clone(),
        generation: closed.generation,
        agent_id: closed.agent_id,
        reason,
    };
    let closing = setting.message(&message.message_id(), &message);
    let ended = SessionEnded {
        session_id: closed.session_id,
        session_key: closed.key.clone(),
        generation: closed.generation,
        agent_id: closed.agent_id,
        reason,
        // A person's own words.
        detail: detail.filter(|_| row.user_id.is_none()).map(str::to_owned),
        provider_thread: closed.provider_thread.clone(),
    };
    let event = setting.event(
        account,
        task.as_ref(),
        &closed.session_id.to_string(),
        Event::SessionEnded(ended),
    );
    [closing, event]
}

/// Opens the generation after `row` with the items, in their order; gives its id and its key. Delivery is woken if any may start. The closed row is locked by
/// this transaction and was the active one, so its number is the highest.
pub(super) async fn open_next(
    tx: &Tx,
    account: &AccountId,
    row: &SessionRow,
    (items, carried): (Vec<String>, Carried<'_>),
    setting: &Setting<'_>,
) -> Result<(SessionId, String, Vec<Owned>), StorageError> {
    const ATTEMPT: &str = "open the next generation";
    let session = &row.session;
    let generation = session.generation.next();
    let key = SessionKey::parse(&session.key).map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
    let key = SessionKey { generation, ..key }.to_string();
    let id = SessionId(fresh_id());
    let count = i64::try_from(items.len()).expect("a queue is shorter than 2^63");
    let thread = SessionThread {
        told: Told {
            rotated: carried.rotated.cloned(),
            ..Told::default()
        },
        ..SessionThread::default()
    };
    let phase = match carried.gate {
        Some(_) => SessionPhase::Backoff,
        None => SessionPhase::Idle,
    };
    let values: [Value; 12] = [
        account.into(),
        session.session_id.into(),
        id.into(),
        key.as_str().into(),
        setting.now.into(),
        count.into(),
        carried.interrupted.into(),
        carried.rotated.is_some().into(),
        serde_json::to_string(&thread)
            .expect("words and texts serialise")
            .into(),
        carried.stopped.into(),
        phase.into(),
        carried.gate.into(),
    ];
    tx.execute(ATTEMPT, OPEN_NEXT, values).await?;
    items_move(tx, account, &items, (id, 0), None).await?;

    let task = row.task();
    let opened = SessionOpened {
        session_id: id,
        session_key: key.clone(),
        kind: session.kind,
        generation,
        agent_id: session.agent_id,
    };
    let mut messages = vec![setting.event(account, task.as_ref(), &id.to_string(), Event::SessionOpened(opened))];
    if count > 0 && carried.gate.is_none() {
        let resolved = SessionResolved {
            account: account.clone(),
            task,
            session_id: id,
            session_key: key.clone(),
            generation,
            agent_id: session.agent_id,
            position: count,
        };
        messages.push(setting.message(&resolved.message_id(), &resolved));
    }
    Ok((id, key, messages))
}
