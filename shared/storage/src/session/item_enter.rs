//! Enters an item into a conversation's queue, for callers that know the conversation: an answer, a timer, a message
//! between sessions, a branch's result.
//!
//! | the conversation | what happens |
//! |---|---|
//! | has an open generation | the item is appended to it in the caller's transaction, so act and item commit together |
//! | has none | an awaited notification is sent to it; the resolver opens the next generation and places the item |
//!
//! Both ways write the same id and the same content hash: the second finds the first's item.

use contracts::{
    Headers, Outgoing, Timestamp,
    content::ContentHash,
    notification::{self, Notification, NotificationMessage, Refusal, message_id},
    session::SessionResolved,
};
use domain::{
    AgentId, Conversation, NotificationId, NotificationState, QueueLimits, QueueMode, SessionId, TaskId, session,
};
use sea_orm::FromQueryResult;

use super::{
    arrivals::{Arrived, arrivals_apply},
    items_append::{NewItem, items_append},
    sessions_lock::{ActiveSession, conversations_lock},
};
use crate::{
    Setting, StorageError, Tx,
    accepted::{NewAccepted, notification_accept},
    outbox::Owned,
};

#[derive(Clone, Debug)]
pub struct NewEntry<'a> {
    /// Unique in the account, and derived from the item's subject: the same act gives the same id.
    pub id: &'a NotificationId,
    /// As its client spelled it. The task exists. A conversation of scope `agent` has none.
    pub task: Option<&'a TaskId>,
    /// Its `id`, `agent` and `agents` are filled in here.
    pub message: NotificationMessage,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Entered {
    Placed {
        session: SessionId,
        position: i64,
    },
    /// An item of this id and content exists already.
    Known(NotificationState),
    /// Sent to the resolver, which may still refuse it.
    Sent,
    Refused(Refusal),
}

#[derive(FromQueryResult)]
struct KnownRow {
    content_hash: Vec<u8>,
    edited_hash: Option<Vec<u8>>,
    agent_id: Option<AgentId>,
    state: NotificationState,
}

/// Relies on the primary key.
pub const ITEM_KNOWN: &str =
    "select content_hash, edited_hash, agent_id, state from notification where account_id = $1 and id = $2";

/// Enters an item; returns the messages for the outbox. Locks the conversation's open session: a caller that locks
/// further sessions follows the lock order of [`super`].
pub async fn item_enter(
    tx: &Tx,
    conversation: &Conversation,
    item: NewEntry<'_>,
    limits: &QueueLimits,
    setting: &Setting<'_>,
) -> Result<(Entered, Vec<Owned>), StorageError> {
    let message = NotificationMessage {
        id: Some(item.id.clone()),
        agent: Some(conversation.agent.to_string()),
        agents: Vec::new(),
        ..item.message
    };
    // Parsed by the same code as every notification: both ways apply the same size limits and compute the same hash.
    let payload = serde_json::to_vec(&message).expect("wire types have string keys and no failing serializer");
    let content = match notification::read(&Headers::default(), &payload) {
        Ok(content) => content,
        Err(unreadable) => return Ok((Entered::Refused(unreadable.refusal), Vec::new())),
    };
    let entering = Entering {
        conversation,
        id: item.id,
        task: item.task,
        hash: ContentHash::of(item.task, &content),
        content: &content,
        setting,
    };

    let open = conversations_lock(tx, &[conversation]).await?.remove(&0);
    if let Some(known) = entering.known(tx).await? {
        return Ok((known, Vec::new()));
    }
    let waiting = open.map_or(0, |session| session.queued.unsigned_abs());
    let origin = &setting.origin;
    if let Err(why) = session::admission(origin.hops, &content.sender, waiting, limits) {
        let refusal = Refusal::inadmissible(why, origin.cause.as_deref());
        let refused = NewItem {
            reason: Some(refusal.to_string()),
            ..entering.row()
        };
        items_append(tx, &[refused]).await?;
        return Ok((Entered::Refused(refusal), Vec::new()));
    }
    match open {
        Some(session) => entering.append(tx, session).await,
        None => entering.send(tx, &message).await,
    }
}

struct Entering<'a> {
    conversation: &'a Conversation,
    id: &'a NotificationId,
    task: Option<&'a TaskId>,
    content: &'a Notification,
    hash: ContentHash,
    setting: &'a Setting<'a>,
}

impl Entering<'_> {
    /// The item's row with the conversation's agent; not queued yet.
    fn row(&self) -> NewItem<'_> {
        let origin = &self.setting.origin;
        let lineage = (origin.cause.as_deref(), origin.hops, &origin.trace);
        NewItem {
            task: self.task,
            agent: Some(self.conversation.agent),
            ..NewItem::of(
                &self.conversation.account,
                self.id,
                Some(self.content),
                self.hash,
                lineage,
            )
        }
    }

    async fn known(&self, tx: &Tx) -> Result<Option<Entered>, StorageError> {
        let values = [(&self.conversation.account).into(), self.id.into()];
        let row: Option<KnownRow> = tx.one("find item", ITEM_KNOWN, values).await?;
        Ok(row.map(|row| {
            let hashes = [Some(row.content_hash), row.edited_hash];
            let is_same =
                hashes.contains(&Some(self.hash.bytes().to_vec())) && row.agent_id == Some(self.conversation.agent);
            match is_same {
                true => Entered::Known(row.state),
                false => Entered::Refused(Refusal::id_conflict(self.id)),
            }
        }))
    }

    async fn append(&self, tx: &Tx, session: ActiveSession) -> Result<(Entered, Vec<Owned>), StorageError> {
        let position = session.queue_tail + 1;
        let mode = self.content.mode();
        let row = NewItem {
            queued: Some((session.id, position)),
            joins: mode == QueueMode::Collect && !session.rests,
            ..self.row()
        };
        if items_append(tx, &[row]).await? == 0 {
            // Another session's transaction wrote the id after the first lookup.
            let known = self.known(tx).await?;
            return Ok((known.unwrap_or_else(|| self.conflict()), Vec::new()));
        }
        let entered = Entered::Placed {
            session: session.id,
            position,
        };
        let arrived = Arrived {
            conversation: self.conversation,
            session,
            mode,
            sender: &self.content.sender,
            task: self.task,
        };
        let effects = arrivals_apply(tx, &[arrived]).await?;
        let wakes = session.rests || !effects.released.is_empty();
        let stops = effects
            .stops
            .iter()
            .map(|stop| self.setting.message(&stop.message_id(), stop));
        let mut messages: Vec<Owned> = stops.collect();
        messages.extend(wakes.then(|| self.wake(session, position)));
        messages.extend(arrived.released(self.setting));
        Ok((entered, messages))
    }

    fn conflict(&self) -> Entered {
        Entered::Refused(Refusal::id_conflict(self.id))
    }

    fn wake(&self, session: ActiveSession, position: i64) -> Owned {
        let place = (session.id, session.generation);
        let message = SessionResolved::new(self.conversation, place, self.task, position);
        self.setting.message(&message.message_id(), &message)
    }

    async fn send(&self, tx: &Tx, message: &NotificationMessage) -> Result<(Entered, Vec<Owned>), StorageError> {
        let account = &self.conversation.account;
        let accepted = NewAccepted {
            account,
            id: self.id,
            task: self.task,
            agent: message.agent.as_deref(),
            kind: &self.content.kind,
            content_hash: self.hash.bytes().to_vec(),
            publisher: None,
            at: self.setting.now,
        };
        if !notification_accept(tx, &accepted).await? {
            return Ok((self.conflict(), Vec::new()));
        }
        let outgoing = Outgoing::new(
            self.setting.root.subject::<NotificationMessage>(account, self.task),
            &message_id(account, self.id),
            self.setting.source,
            (Some(account), self.task),
            &self.setting.origin,
            Timestamp::from(self.setting.now),
            message,
        );
        Ok((Entered::Sent, vec![(Some(account.clone()), outgoing)]))
    }
}
