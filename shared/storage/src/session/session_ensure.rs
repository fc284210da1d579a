//! Opens a conversation's session without an item, if none is open.

use contracts::event::{Event, SessionOpened};
use domain::{Conversation, Generation, SessionId};

use super::{
    sessions_lock::{ActiveSession, conversations_lock},
    sessions_open::{NewSession, sessions_newest, sessions_open},
};
use crate::{Setting, StorageError, Tx, outbox::Owned, setting::fresh_id};

/// The session, locked, and the messages for the outbox if it was opened, with this parent. None: the conversation's agent or person was
/// removed.
pub async fn session_ensure(
    tx: &Tx,
    conversation: &Conversation,
    parent: Option<SessionId>,
    setting: &Setting<'_>,
) -> Result<Option<(ActiveSession, Option<Owned>)>, StorageError> {
    let mut opened = None;
    // Twice: whoever is the loser of the insert finds the winner's.
    for _ in 0..2 {
        if let Some(session) = conversations_lock(tx, &[conversation]).await?.remove(&0) {
            return Ok(Some((session, opened)));
        }
        let Some(newest) = sessions_newest(tx, &[conversation]).await?.remove(&0) else {
            return Ok(None);
        };
        let generation = newest.generation.map_or(Generation::FIRST, Generation::next);
        let id = SessionId(fresh_id());
        let new = NewSession {
            id,
            conversation,
            generation,
            parent,
        };
        if sessions_open(tx, &[new]).await? == 1 {
            let event = Event::SessionOpened(SessionOpened {
                session_id: id,
                session_key: conversation.key(generation).to_string(),
                kind: conversation.kind(),
                generation,
                agent_id: Some(conversation.agent),
            });
            opened = Some(setting.event(&conversation.account, conversation.task(), &id.to_string(), event));
        }
    }
    let session = conversations_lock(tx, &[conversation]).await?.remove(&0);
    Ok(session.map(|session| (session, opened)))
}
