//! Takes the lease of a turn in progress from its holder, on request of an admin: for a replica that lives and gets no further.
//! Fences go up, so that what the holder still writes has no effect; the turn is due at once, for any replica. The caller holds
//! the session's lock.

use contracts::{
    event::{Event, SessionLeaseReleased},
    session::SessionResolved,
};
use domain::{Actor, Fence, SessionEvent, TaskId};
use sea_orm::FromQueryResult;
use serde_json::json;

use super::sessions_lock::LockedSession;
use crate::{Setting, StorageError, Tx, activity::activity_insert, outbox::Owned};

/// Relies on the primary keys.
pub const SESSION_RELEASE: &str = "
    with freed as (
        update session s set phase = $3, lease_owner = null, fence = s.fence + 1, wake_at = now()
        where s.account_id = $1 and s.id = $2
        returning s.account_id, s.task_id, s.active_turn_id, s.fence
    ), fenced as (
        update turn t set fence = f.fence from freed f where t.account_id = any (array[f.account_id]) and t.id = f.active_turn_id
    )
    select f.fence, (select k.display_id from task k where k.account_id = f.account_id and k.id = f.task_id) as task from freed f";

#[derive(FromQueryResult)]
struct Released {
    fence: Fence,
    task: Option<TaskId>,
}

/// Returns messages for the outbox; none: no replica holds a lease of the session.
pub async fn session_release(
    tx: &Tx,
    session: &LockedSession,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Option<Vec<Owned>>, StorageError> {
    const ATTEMPT: &str = "release a lease";
    let Ok(state) = session.facts.state().on(SessionEvent::LeaseReleased) else {
        return Ok(None);
    };
    let values = [(&session.account).into(), session.id.into(), state.phase.into()];
    let released: Option<Released> = tx.one(ATTEMPT, SESSION_RELEASE, values).await?;
    let Released { fence, task } = released.ok_or_else(|| StorageError::unreadable(ATTEMPT, "the session is gone"))?;
    if let Some(task) = &task {
        let detail = json!({"session_id": session.id, "turn_id": session.active_turn, "holder": session.lease_owner,
            "fence": fence});
        activity_insert(
            tx,
            (&session.account, task),
            "session.lease_released",
            by,
            detail,
            setting.now,
        )
        .await?;
    }
    let event = Event::SessionLeaseReleased(SessionLeaseReleased {
        session_id: session.id,
        session_key: session.key.clone(),
        generation: session.generation,
        agent_id: session.agent_id,
        turn_id: session.active_turn,
        holder: session.lease_owner,
        fence,
        by: by.clone(),
    });
    let wake_up = SessionResolved {
        account: session.account.clone(),
        task: task.clone(),
        session_id: session.id,
        session_key: session.key.clone(),
        generation: session.generation,
        agent_id: session.agent_id,
        position: session.queue_tail,
    };
    let event_id = format!("{}:{fence}", session.id);
    // The broker knows the id of the wake-up that announced the newest item.
    let wake_id = format!("{}:fence:{fence}", wake_up.message_id());
    Ok(Some(vec![
        setting.event(&session.account, task.as_ref(), &event_id, event),
        setting.message(&wake_id, &wake_up),
    ]))
}
