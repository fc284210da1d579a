//! Closes a generation and opens the next one with its queue: at a rotation, by rule, and at a reset, on request of a person. The
//! caller holds the session's lock, has found it open, and no turn is in progress in it, or the caller's transaction has ended it. A
//! claim and an arriving item take the same lock: they find the session closed, and then the next generation.
//!
//! | | the next generation |
//! |---|---|
//! | rotated | knows what the closed one knew (`continues_id`), with its notes of what was interrupted and stopped |
//! | reset | knows nothing of it, but that a turn was interrupted: its agent may still be at work, or have done a part |
//! | reset that puts the stopped turn's items back | and that this turn was stopped: its effects must not be repeated |
//!
//! A rotation finds no live branch of the generation; a reset ends them, and the next generation is told nothing of them. Open
//! questions and timers stay: they belong to the conversation. What people have set for the session, a pause or a rule for its
//! tools, holds for the next generation: no rule of rotation lifts it.

use contracts::event::{Event, SessionGated, SessionReset};
use domain::{AccountId, CloseReason, Gate, ResetQueue, ResetRequest, SESSION_RESET, SessionId, context::Rotated};
use sea_orm::Value;

use super::{
    SessionName,
    branch_end::{Ending, Ends, branch_end, branches_lock},
    sessions_close::{
        CLOSE, Carried, ItemRow, LOCK, LOCK_ITEMS, SessionRow, ended_messages, items_cancel, items_uncount, open_next,
    },
};
use crate::{Setting, StorageError, Tx, outbox::Owned};

/// Why one generation follows another.
#[derive(Clone, Copy, Debug)]
pub enum Succession<'a> {
    Rotated(&'a Rotated),
    Reset {
        request: &'a ResetRequest,
        /// The items of the turn that the reset has ended, where they wait again.
        put_back: &'a [String],
        /// A person who asked for a stop after the reset holds what waits.
        gate: Option<Gate>,
    },
}

#[derive(Debug)]
pub struct Succeeded {
    pub next: SessionId,
    pub moved: usize,
    pub cancelled: usize,
    /// For the outbox of the same transaction.
    pub messages: Vec<Owned>,
}

impl Succession<'_> {
    pub fn reason(&self) -> CloseReason {
        match self {
            Succession::Rotated(_) => CloseReason::Rotated,
            Succession::Reset { .. } => CloseReason::Reset,
        }
    }

    fn detail(&self) -> String {
        match self {
            Succession::Rotated(rotated) => rotated.because.clone(),
            Succession::Reset { request, .. } => request.detail(),
        }
    }

    /// Whether a waiting item moves to the next generation. A reset cancels what waited when it was asked for.
    fn moves(&self, item: &ItemRow) -> bool {
        match self {
            Succession::Rotated(_) => true,
            Succession::Reset { request, put_back, .. } => match request.queue {
                ResetQueue::Keep => true,
                ResetQueue::Cancel => item.created_at > request.at.0 || put_back.contains(&item.id),
            },
        }
    }

    fn carried(&self) -> Carried<'_> {
        match *self {
            Succession::Rotated(rotated) => Carried {
                rotated: Some(rotated),
                stopped: true,
                ..Carried::default()
            },
            Succession::Reset { put_back, gate, .. } => Carried {
                stopped: !put_back.is_empty(),
                gate,
                ..Carried::default()
            },
        }
    }
}

/// Relies on hold_active and tool_policy_scope.
pub const SESSION_SCOPES: &str = "
    with held as (
        update hold h set scope_id = $3
        where h.account_id = $1 and h.scope_kind = 'session' and h.scope_id = $2 and h.released_at is null)
    update tool_policy p set scope_id = $3 where p.account_id = $1 and p.scope_kind = 'session' and p.scope_id = $2";

pub async fn session_succeed(
    tx: &Tx,
    (account, session): &SessionName,
    succession: Succession<'_>,
    setting: &Setting<'_>,
) -> Result<Succeeded, StorageError> {
    const ATTEMPT: &str = "lock the generation to succeed";
    let ids = vec![*session];
    let locked: Option<SessionRow> = tx.one(ATTEMPT, LOCK, [account.into(), ids.clone().into()]).await?;
    let row = locked.ok_or_else(|| StorageError::unreadable(ATTEMPT, "it is closed"))?;
    let mut messages = match succession {
        Succession::Rotated(_) => Vec::new(),
        Succession::Reset { request, .. } => branches_reset(tx, account, *session, request, setting).await?,
    };
    let (reason, detail) = (succession.reason(), succession.detail());
    let values: [Value; 5] = [
        account.into(),
        ids.clone().into(),
        setting.now.into(),
        reason.into(),
        detail.as_str().into(),
    ];
    tx.execute("close sessions", CLOSE, values).await?;
    let values: [Value; 4] = [
        account.into(),
        ids.into(),
        None::<String>.into(),
        Vec::<SessionId>::new().into(),
    ];
    let items: Vec<ItemRow> = tx.rows("lock waiting items", LOCK_ITEMS, values).await?;
    items_uncount(tx, account, items.iter().map(|item| item.session_id)).await?;
    let (moving, cancelled): (Vec<ItemRow>, Vec<ItemRow>) = items.into_iter().partition(|item| succession.moves(item));

    messages.extend(ended_messages(account, &row, (reason, Some(&detail)), setting));
    let task = |_: &ItemRow| row.task();
    messages.extend(items_cancel(tx, account, (&cancelled, SESSION_RESET), task, setting).await?);
    let ids: Vec<String> = moving.iter().map(|item| item.id.clone()).collect();
    let (next, key, opened) = open_next(tx, account, &row, (ids, succession.carried()), setting).await?;
    messages.extend(opened);
    let values = [account.into(), session.to_string().into(), next.to_string().into()];
    tx.execute("hand pauses and tool policies on", SESSION_SCOPES, values)
        .await?;
    if let Succession::Reset { request, gate, .. } = succession {
        let reset = Event::SessionReset(reset(&row, next, request));
        messages.push(setting.event(account, row.task().as_ref(), &session.to_string(), reset));
        let parked = gate.map(|gate| Event::SessionParked(parked(&row, (next, &key), (gate, moving.len()))));
        messages.extend(parked.map(|event| setting.event(account, row.task().as_ref(), &next.to_string(), event)));
    }
    Ok(Succeeded {
        next,
        moved: moving.len(),
        cancelled: cancelled.len(),
        messages,
    })
}

/// Ends the branches of a generation that knows nothing to tell the next one. Their sessions come after it in the order of locks.
async fn branches_reset(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    request: &ResetRequest,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let branches = branches_lock(tx, account, |branch| branch.parent_session_id == session).await?;
    let because = Ending::Cancelled {
        by: &request.by.name,
        reason: Some(SESSION_RESET),
    };
    let ends = Ends {
        ends: branches.iter().map(|branch| (branch.id, because)).collect(),
        closing: &[session],
        tells: false,
    };
    Ok(branch_end(tx, account, &ends, setting).await?.messages)
}

fn reset(row: &SessionRow, next: SessionId, request: &ResetRequest) -> SessionReset {
    SessionReset {
        session_id: row.session.session_id,
        session_key: row.session.key.clone(),
        generation: row.session.generation,
        agent_id: row.session.agent_id,
        next_session_id: next,
        by: request.by.clone(),
        reason: request.reason.clone(),
    }
}

/// The next generation's.
fn parked(row: &SessionRow, (next, key): (SessionId, &str), (gate, queued): (Gate, usize)) -> SessionGated {
    SessionGated {
        session_id: next,
        session_key: key.to_owned(),
        generation: row.session.generation.next(),
        agent_id: row.session.agent_id,
        gate,
        queued: u32::try_from(queued).unwrap_or(u32::MAX),
    }
}
