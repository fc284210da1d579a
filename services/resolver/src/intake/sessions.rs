//! Locks the sessions of a batch, and opens the missing ones.
//!
//! Order of locks: sessions by account and id, then agents without waiting, then inserted rows. Closing sessions uses
//! the same order (storage::session), so the later transaction sees the result of the earlier one: the item is in the
//! queue when the session is closed, or the item finds its session closed and opens the next generation.

use std::collections::{BTreeMap, BTreeSet};

use contracts::notification::Refusal;
use domain::{Conversation, SessionId};
use storage::{StorageError, Tx};
use uuid::Uuid;

use super::resolve::{Finding, Found, ResolvedSession, resolve};
use storage::session::{
    sessions_lock::conversations_lock,
    sessions_open::{NewSession, sessions_newest, sessions_open},
};

#[derive(Debug, Default)]
pub struct AssignedSessions {
    pub sessions: BTreeMap<Conversation, ResolvedSession>,
    pub refused: BTreeMap<Conversation, Refusal>,
}

/// Finds the session of each conversation, or decides which generation to open. Locks the sessions found, and the agents
/// of the others.
pub async fn sessions_find(tx: &Tx, conversations: BTreeSet<Conversation>) -> Result<AssignedSessions, StorageError> {
    let conversations: Vec<Conversation> = conversations.into_iter().collect();
    let all: Vec<&Conversation> = conversations.iter().collect();
    let active = conversations_lock(tx, &all).await?;
    let missing: Vec<usize> = (0..all.len()).filter(|n| !active.contains_key(n)).collect();
    let mut found: Vec<Found> = (0..all.len())
        .map(|n| active.get(&n).map_or(Found::Removed, |session| Found::Active(*session)))
        .collect();
    if !missing.is_empty() {
        let without: Vec<&Conversation> = missing.iter().map(|&n| all[n]).collect();
        for (place, newest) in sessions_newest(tx, &without).await? {
            found[missing[place]] = Found::Closed(newest);
        }
    }

    Ok(assign(all.iter().copied().zip(found), || SessionId(Uuid::now_v7())))
}

/// Opens the sessions that do not exist yet. `false`: another resolver opened one of them meanwhile; a retry of the
/// batch will find it.
pub async fn missing_open(tx: &Tx, sessions: &BTreeMap<Conversation, ResolvedSession>) -> Result<bool, StorageError> {
    let new: Vec<NewSession<'_>> = sessions
        .iter()
        .filter(|(_, resolved)| resolved.finding != Finding::Reused)
        .map(|(conversation, resolved)| NewSession {
            id: resolved.session.id,
            conversation,
            generation: resolved.session.generation,
            parent: None,
        })
        .collect();
    Ok(new.is_empty() || sessions_open(tx, &new).await? == new.len() as u64)
}

/// Applies [`resolve`] to each conversation; `fresh` makes the ids of sessions to open. Pure.
pub fn assign<'a>(
    found: impl IntoIterator<Item = (&'a Conversation, Found)>,
    mut fresh: impl FnMut() -> SessionId,
) -> AssignedSessions {
    let mut assigned = AssignedSessions::default();
    for (conversation, found) in found {
        match resolve(conversation.kind(), found, fresh()) {
            Ok(resolved) => drop(assigned.sessions.insert(conversation.clone(), resolved)),
            Err(refusal) => drop(assigned.refused.insert(conversation.clone(), refusal)),
        }
    }
    assigned
}
