//! Removes an agent: all of its sessions close and its queued items are cancelled, in the same transaction (S11). The
//! row stays, since sessions, turns and messages refer to it; its slug is free again.

use contracts::event::{AgentRemoved, Event};
use domain::{AccountId, AgentId, CloseReason, NotificationId};
use sea_orm::FromQueryResult;

use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        Closing,
        sessions_close::{ClosedSession, Scope, close},
    },
};

#[derive(Debug)]
pub struct AgentRemoval {
    pub closed: Vec<ClosedSession>,
    pub cancelled: Vec<NotificationId>,
    /// For the outbox of the same transaction.
    pub messages: Vec<Owned>,
}

#[derive(FromQueryResult)]
struct Removed {
    slug: String,
}

const AGENT_REMOVE: &str = "
    update agent set removed_at = $3 where account_id = $1 and id = $2 and removed_at is null returning slug";

/// Removes the agent; `None` if it does not exist or was removed already.
pub async fn agent_remove(
    tx: &Tx,
    account: &AccountId,
    agent: AgentId,
    setting: &Setting<'_>,
) -> Result<Option<AgentRemoval>, StorageError> {
    let values = [account.into(), agent.into(), setting.now.into()];
    let Some(Removed { slug }) = tx.one("remove agent", AGENT_REMOVE, values).await? else {
        return Ok(None);
    };
    let closed = close(
        tx,
        account,
        Scope::Agent(agent),
        CloseReason::AgentRemoved,
        (Closing::Ended, None),
        setting,
    )
    .await?;
    let mut messages = closed.messages;
    let event = Event::AgentRemoved(AgentRemoved { agent_id: agent, slug });
    messages.push(setting.event(account, None, &agent.to_string(), event));
    Ok(Some(AgentRemoval {
        closed: closed.sessions,
        cancelled: closed.cancelled,
        messages,
    }))
}
