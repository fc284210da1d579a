//! Hands an agent's part of a task to another agent: its session closes, its turn in progress is asked to stop, and what people,
//! services and other agents sent moves to the other agent's session, in its order and with its authors. Signalbox's own items
//! were about the first agent's work: they are cancelled, and so is what the other agent itself has sent. If the first agent
//! may have begun on the work, the other agent is told: its next turn may otherwise repeat an effect.
//!
//! An agent with one session for all of its tasks keeps it; the items of this task leave it. Branches of the first agent's work on the
//! task end.
//!
//! Lock order: the caller holds the task, then the sessions of both agents are locked by id, then items. A claim and an arriving
//! item take the same session's lock: the second transaction finds the session closed.

use std::{collections::HashSet, slice};

use contracts::{
    event::{Event, SessionOpened},
    session::{SessionResolved, SessionStopRequested},
};
use domain::{
    AccountId, AgentId, CloseReason, Conversation, Generation, HANDED_OVER, SessionId, SessionKind, StopKind, StopThen,
    TaskId, queue::is_own_kind,
};
use sea_orm::{FromQueryResult, Value};

use super::{
    branch_end::{Ending, Ends, LiveBranch, branch_end, branches_below, branches_live},
    sessions_close::{
        CLOSE, ItemRow, LOCK, LOCK_ITEMS, LOCK_TRIED, SessionRow, ended_messages, items_cancel, items_move,
        items_uncount,
    },
    sessions_lock::{ActiveSession, conversations_lock},
    sessions_open::{NewSession, sessions_newest, sessions_open},
    sessions_park::sessions_look,
    turn_stop::{StopRequest, turn_stop},
};
use crate::{Setting, StorageError, Tx, outbox::Owned, setting::fresh_id, statement::column};

/// Whose work goes to whom.
#[derive(Clone, Debug)]
pub(crate) struct Handing<'a> {
    pub account: &'a AccountId,
    /// As its client spelled it.
    pub task: &'a TaskId,
    pub from: AgentId,
    /// Where the other agent works on the task.
    pub to: &'a Conversation,
    /// The name of who asks.
    pub by: &'a str,
}

#[derive(Default)]
pub(crate) struct Handed {
    pub closed: usize,
    /// Turns that were asked to stop.
    pub stopping: usize,
    pub moved: usize,
    pub cancelled: usize,
    pub messages: Vec<Owned>,
}

/// The open sessions in which the agents work on the task, without the known ones. Relies on session_active_task and
/// session_active_system.
pub const OF_AGENTS: &str = "
    select o.id from unnest($3::uuid[]) as a (id) cross join lateral (
        select o.id from session o
        where o.account_id = $1 and o.task_id = $2 and o.agent_id = a.id and o.kind = 'task' and o.closed_at is null
        union all
        select o.id from session o
        where o.account_id = $1 and o.agent_id = a.id and o.kind = 'system' and o.closed_at is null) o
    where not o.id = any($4::uuid[])";

#[derive(FromQueryResult)]
struct Found {
    id: SessionId,
}

/// As when sessions close: repeats until it finds no unlocked session. Gives the sessions, and the branches that end.
async fn lock(tx: &Tx, handing: &Handing<'_>) -> Result<(Vec<SessionRow>, Vec<LiveBranch>), StorageError> {
    let (mut known, mut locked): (Vec<SessionId>, Vec<SessionRow>) = Default::default();
    loop {
        let from: Vec<SessionId> = locked
            .iter()
            .filter(|row| row.session.agent_id == Some(handing.from) && row.session.kind != SessionKind::Branch)
            .map(SessionRow::id)
            .collect();
        let live = branches_live(tx, handing.account).await?;
        let branches = branches_below(&live, &[], |branch| {
            branch.task_id == handing.task.key() && from.contains(&branch.parent_session_id)
        });
        let agents = vec![handing.from, handing.to.agent];
        let values: [Value; 4] = [
            handing.account.into(),
            handing.task.key().into(),
            agents.into(),
            known.clone().into(),
        ];
        let found: Vec<Found> = tx.rows("find sessions to hand over", OF_AGENTS, values).await?;
        let mut ids: Vec<SessionId> = found.into_iter().map(|found| found.id).collect();
        ids.extend(
            branches
                .iter()
                .map(|branch| branch.session_id)
                .filter(|id| !known.contains(id)),
        );
        if ids.is_empty() {
            return Ok((locked, branches));
        }
        let values = [handing.account.into(), ids.clone().into()];
        locked.extend(tx.rows("lock sessions to hand over", LOCK, values).await?);
        known.extend(ids);
    }
}

/// Relies on the primary key.
pub const COUNT: &str = "
    update session set queued = queued + $3, queue_tail = queue_tail + $3, interrupted = interrupted or $4
    where account_id = $1 and id = $2";

/// The caller holds the task's lock, and that of the other agent.
pub(crate) async fn session_handover(
    tx: &Tx,
    handing: &Handing<'_>,
    setting: &Setting<'_>,
) -> Result<Handed, StorageError> {
    let account = handing.account;
    let (sessions, branches) = lock(tx, handing).await?;
    let of_from =
        |row: &&SessionRow| row.session.agent_id == Some(handing.from) && row.session.kind != SessionKind::Branch;
    let theirs = sessions.iter().filter(of_from);
    let (closing, open): (Vec<&SessionRow>, Vec<&SessionRow>) =
        theirs.partition(|row| row.session.kind == SessionKind::Task);
    let ids = |rows: &[&SessionRow]| column(rows, |row| row.session.session_id);

    let because = Ending::Cancelled {
        by: handing.by,
        reason: Some(HANDED_OVER),
    };
    let ends = Ends {
        ends: branches.iter().map(|branch| (branch.id, because)).collect(),
        closing: &[],
        // The work that they were a part of is another agent's.
        tells: false,
    };
    let mut messages = branch_end(tx, account, &ends, setting).await?.messages;

    let reason = CloseReason::HandedOver;
    let values = [
        account.into(),
        ids(&closing),
        setting.now.into(),
        reason.into(),
        None::<String>.into(),
    ];
    tx.execute("close sessions", CLOSE, values).await?;
    let stops = turns_stop(tx, handing, closing.iter().chain(&open)).await?;

    let ours: Vec<&SessionRow> = closing.iter().chain(&open).copied().collect();
    let values = [account.into(), ids(&ours), handing.task.key().into()];
    let mut items: Vec<ItemRow> = tx.rows("lock items of waiting turns", LOCK_TRIED, values).await?;
    let values = [account.into(), ids(&closing), handing.task.key().into(), ids(&open)];
    let queued: Vec<ItemRow> = tx.rows("lock waiting items", LOCK_ITEMS, values).await?;
    let counted: HashSet<String> = queued.iter().map(|item| item.id.clone()).collect();
    items.extend(queued);
    let left = items.iter().filter(|item| counted.contains(&item.id));
    items_uncount(tx, account, left.map(|item| item.session_id)).await?;

    let to = handing.to.agent.to_string();
    let (moving, cancelled): (Vec<ItemRow>, Vec<ItemRow>) = items
        .into_iter()
        .partition(|item| !is_own_kind(&item.kind) && item.sender_id != to);
    let told = closing
        .iter()
        .flat_map(|row| ended_messages(account, row, (reason, None), setting));
    messages.extend(told);
    messages.extend(stops.iter().map(|stop| setting.message(&stop.message_id(), stop)));
    let task = |_: &ItemRow| Some(handing.task.clone());
    messages.extend(items_cancel(tx, account, (&cancelled, HANDED_OVER), task, setting).await?);
    // A session of all of an agent's work may have been interrupted on another task.
    let may_be = |rows: &[&SessionRow]| rows.iter().any(|row| row.interrupted);
    let interrupted = !stops.is_empty() || may_be(&closing) || !moving.is_empty() && may_be(&open);
    if interrupted || !moving.is_empty() {
        let (target, opened) = target(tx, handing, setting).await?;
        messages.extend(opened);
        messages.extend(moved(tx, handing, (target, &moving, interrupted), setting).await?);
    }
    Ok(Handed {
        closed: closing.len(),
        stopping: stops.len(),
        moved: moving.len(),
        cancelled: cancelled.len(),
        messages,
    })
}

async fn turns_stop<'a>(
    tx: &Tx,
    handing: &Handing<'_>,
    rows: impl Iterator<Item = &'a &'a SessionRow>,
) -> Result<Vec<SessionStopRequested>, StorageError> {
    let turns = rows.filter_map(|row| Some((row.session.session_id, row.session.active_turn?)));
    let asked: Vec<StopRequest<'_>> = turns
        .map(|(session, turn)| StopRequest {
            session: (handing.account.clone(), session),
            turn: Some(turn),
            kind: StopKind::HandedOver,
            by: handing.by,
            then: StopThen::Continue,
            task: Some(handing.task),
        })
        .collect();
    turn_stop(tx, &asked).await
}

/// The other agent's open session, or its next generation.
async fn target(
    tx: &Tx,
    handing: &Handing<'_>,
    setting: &Setting<'_>,
) -> Result<(ActiveSession, Option<Owned>), StorageError> {
    const ATTEMPT: &str = "open the session of a handover";
    let conversation = handing.to;
    if let Some(session) = conversations_lock(tx, &[conversation]).await?.remove(&0) {
        return Ok((session, None));
    }
    let newest = sessions_newest(tx, &[conversation]).await?.remove(&0);
    let newest = newest.ok_or_else(|| StorageError::unreadable(ATTEMPT, "the agent was removed"))?;
    let generation = newest.generation.map_or(Generation::FIRST, Generation::next);
    let new = NewSession {
        id: SessionId(fresh_id()),
        conversation,
        generation,
        parent: None,
    };
    // If another transaction opens it at the same time, its session is found.
    let opened = sessions_open(tx, slice::from_ref(&new)).await? == 1;
    let session = conversations_lock(tx, &[conversation]).await?.remove(&0);
    let session = session.ok_or_else(|| StorageError::unreadable(ATTEMPT, "it closed again"))?;
    let event = SessionOpened {
        session_id: session.id,
        session_key: conversation.key(session.generation).to_string(),
        kind: conversation.kind(),
        generation: session.generation,
        agent_id: Some(conversation.agent),
    };
    let event = opened.then(|| {
        let id = session.id.to_string();
        setting.event(handing.account, Some(handing.task), &id, Event::SessionOpened(event))
    });
    Ok((session, event))
}

/// Moves the items behind those of the session. `interrupted`: its agent is told so. Gives the wake-up for delivery.
async fn moved(
    tx: &Tx,
    handing: &Handing<'_>,
    (target, items, interrupted): (ActiveSession, &[ItemRow], bool),
    setting: &Setting<'_>,
) -> Result<Option<Owned>, StorageError> {
    let account = handing.account;
    let ids: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
    let place = (target.id, target.queue_tail);
    items_move(tx, account, &ids, place, Some(handing.to.agent)).await?;
    let count = i32::try_from(items.len()).expect("a queue is shorter than 2^31");
    let values = [
        handing.account.into(),
        target.id.into(),
        count.into(),
        interrupted.into(),
    ];
    tx.execute("count moved items", COUNT, values).await?;
    // Another item may be first.
    sessions_look(tx, &[(handing.account.clone(), target.id)]).await?;
    let place = (target.id, target.generation);
    let tail = target.queue_tail + i64::from(count);
    let wake = SessionResolved::new(handing.to, place, Some(handing.task), tail);
    let waits = !items.is_empty() && (target.rests || target.gate.is_some());
    Ok(waits.then(|| setting.message(&wake.message_id(), &wake)))
}
