//! Enters an item into a conversation's queue, for callers that know the conversation: an answer, a timer, a message
//! between sessions, a branch's result.
//!
//! | the conversation | what happens |
//! |---|---|
//! | has an open generation | the item is appended to it in the caller's transaction, so act and item commit together |
//! | has none | an awaited notification is sent to it; the resolver opens the next generation and places the item |
//! | is that of a branch that has ended | the item is on record, cancelled |
//!
//! Both ways write the same id and the same content hash: the second finds the first's item.

use std::collections::HashMap;

use contracts::{
    Headers, Outgoing, Timestamp,
    content::ContentHash,
    notification::{self, Notification, NotificationMessage, Refusal, message_id},
    session::SessionResolved,
};
use domain::{
    AgentId, BRANCH_ENDED, Conversation, Generation, NotificationId, NotificationState, QueueLimits, QueueMode,
    SessionId, SessionKind, TaskId, session,
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

/// An item of Signalbox's own. Its id is fresh, so nobody has used it.
#[derive(Clone, Debug)]
pub struct OwnEntry<'a> {
    pub conversation: &'a Conversation,
    pub item: NewEntry<'a>,
    /// Its cause and hops.
    pub setting: Setting<'a>,
}

/// Enters many items of Signalbox's own at once, in their order: as [`item_enter`] does, with as many statements as for one.
/// Locks the open sessions of all conversations, in the lock order.
pub async fn items_enter(
    tx: &Tx,
    entries: &[OwnEntry<'_>],
    limits: &QueueLimits,
) -> Result<(Vec<Entered>, Vec<Owned>), StorageError> {
    let conversations: Vec<&Conversation> = entries.iter().map(|entry| entry.conversation).collect();
    let found = conversations_lock(tx, &conversations).await?;
    items_enter_found(tx, entries, &found, limits).await
}

/// The same, for a caller that has locked the open sessions: `found`, by the places of their entries.
pub(super) async fn items_enter_found(
    tx: &Tx,
    entries: &[OwnEntry<'_>],
    found: &HashMap<usize, ActiveSession>,
    limits: &QueueLimits,
) -> Result<(Vec<Entered>, Vec<Owned>), StorageError> {
    const ATTEMPT: &str = "enter own items";
    let written: Vec<(NotificationMessage, Result<Notification, Refusal>)> = entries
        .iter()
        .map(|entry| parsed(entry.conversation, &entry.item))
        .collect();
    // As they are after the items before.
    let mut sessions: HashMap<SessionId, ActiveSession> =
        found.values().map(|session| (session.id, *session)).collect();
    let (mut outcomes, mut messages, mut rows, mut arrived) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let content = |n: usize| written[n].1.as_ref().expect("a refused item is not entered");
    let entering = |n: usize| {
        let OwnEntry {
            conversation,
            item,
            setting,
        } = &entries[n];
        let hash = ContentHash::of(item.task, content(n));
        Entering {
            conversation,
            id: item.id,
            task: item.task,
            hash,
            content: content(n),
            setting,
        }
    };
    let all: Vec<Option<Entering<'_>>> = (0..entries.len())
        .map(|n| written[n].1.is_ok().then(|| entering(n)))
        .collect();
    for (n, entering) in all.iter().enumerate() {
        let Some(entering) = entering else {
            outcomes.push(Entered::Refused(written[n].1.clone().expect_err("it was refused")));
            continue;
        };
        let open = found.get(&n).map(|session| session.id);
        let session = open.and_then(|id| sessions.get_mut(&id));
        let origin = &entering.setting.origin;
        let waiting = session.as_ref().map_or(0, |session| session.queued.unsigned_abs());
        if let Err(why) = session::admission(origin.hops, &entering.content.sender, waiting, limits) {
            let refusal = Refusal::inadmissible(why, origin.cause.as_deref());
            rows.push(NewItem {
                reason: Some(refusal.to_string()),
                ..entering.row()
            });
            outcomes.push(Entered::Refused(refusal));
            continue;
        }
        let Some(session) = session else {
            if entering.is_late() {
                rows.push(entering.late());
                outcomes.push(Entered::Known(NotificationState::Cancelled));
                continue;
            }
            messages.extend(entering.send(tx, &written[n].0).await?.1);
            outcomes.push(Entered::Sent);
            continue;
        };
        let (row, item) = entering.placed(*session);
        outcomes.push(Entered::Placed {
            session: session.id,
            position: session.queue_tail + 1,
        });
        session.queue_tail += 1;
        session.queued += 1;
        session.rests = false;
        session.gate = session.gate.filter(|_| !item.opens());
        rows.push(row);
        arrived.push((entering, item));
    }
    if items_append(tx, &rows).await? != arrived.len() as u64 {
        return Err(StorageError::unreadable(ATTEMPT, "an id of ours is used"));
    }
    let items: Vec<Arrived<'_>> = arrived.iter().map(|(_, item)| *item).collect();
    let effects = arrivals_apply(tx, &items).await?;
    for (entering, item) in &arrived {
        let wakes = item.session.rests || item.opens() || item.goes_first();
        messages.extend(wakes.then(|| entering.wake(item.session, item.session.queue_tail + 1)));
        messages.extend(item.released(entering.setting));
    }
    debug_assert!(effects.stops.is_empty(), "an item of ours steers nothing");
    Ok((outcomes, messages))
}

/// The message as it is sent, and as it is read: by the same code as every notification, so that both ways apply the same size
/// limits and compute the same hash.
pub(super) fn parsed(
    conversation: &Conversation,
    item: &NewEntry<'_>,
) -> (NotificationMessage, Result<Notification, Refusal>) {
    // All orchestrators of an account have one agent.
    let address = matches!(conversation.kind(), SessionKind::Orchestrator | SessionKind::Guest)
        .then(|| conversation.key(Generation::FIRST).to_string());
    let message = NotificationMessage {
        id: Some(item.id.clone()),
        agent: address.is_none().then(|| conversation.agent.to_string()),
        agents: Vec::new(),
        session: address,
        ..item.message.clone()
    };
    let payload = serde_json::to_vec(&message).expect("wire types have string keys and no failing serializer");
    let content = notification::read(&Headers::default(), &payload).map_err(|unreadable| unreadable.refusal);
    (message, content)
}

/// Enters an item; returns the messages for the outbox. Locks the conversation's open session: a caller that locks
/// further sessions follows the lock order of [`super`].
pub async fn item_enter(
    tx: &Tx,
    conversation: &Conversation,
    item: NewEntry<'_>,
    limits: &QueueLimits,
    setting: &Setting<'_>,
) -> Result<(Entered, Vec<Owned>), StorageError> {
    let (message, content) = parsed(conversation, &item);
    let content = match content {
        Ok(content) => content,
        Err(refusal) => return Ok((Entered::Refused(refusal), Vec::new())),
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
        None if entering.is_late() => {
            items_append(tx, &[entering.late()]).await?;
            Ok((Entered::Known(NotificationState::Cancelled), Vec::new()))
        }
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

    /// Whoever enters an item into a live branch's queue has its session ([`items_enter_found`]): the branch has ended, and there is no
    /// other session for the item.
    fn is_late(&self) -> bool {
        self.conversation.branch().is_some()
    }

    /// On record, for nobody.
    fn late(&self) -> NewItem<'_> {
        NewItem {
            reason: Some(BRANCH_ENDED.to_owned()),
            ..self.row()
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

    /// Its row at the end of the session's queue, and what it does besides.
    fn placed(&self, session: ActiveSession) -> (NewItem<'_>, Arrived<'_>) {
        let mode = self.content.mode();
        let row = NewItem {
            queued: Some((session.id, session.queue_tail + 1)),
            joins: mode == QueueMode::Collect && !session.rests,
            ..self.row()
        };
        let arrived = Arrived {
            conversation: self.conversation,
            session,
            mode,
            sender: &self.content.sender,
            task: self.task,
        };
        (row, arrived)
    }

    async fn append(&self, tx: &Tx, session: ActiveSession) -> Result<(Entered, Vec<Owned>), StorageError> {
        let position = session.queue_tail + 1;
        let (row, arrived) = self.placed(session);
        if items_append(tx, &[row]).await? == 0 {
            // Another session's transaction wrote the id after the first lookup.
            let known = self.known(tx).await?;
            return Ok((known.unwrap_or_else(|| self.conflict()), Vec::new()));
        }
        let entered = Entered::Placed {
            session: session.id,
            position,
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
