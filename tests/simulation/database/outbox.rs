//! Outbox rows of a transaction, and messages between services.

use bytes::Bytes;
use contracts::{
    Headers, header,
    session::{SessionClosed, SessionResolved, SessionStopRequested},
    tool::{ToolApproved, ToolFinished, ToolRequested},
};
use domain::TurnId;
use uuid::Uuid;

use super::{Database, Millis};

/// The service of a row, process or message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Service {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
}

/// A message, with the id of its contract.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    SessionResolved(SessionResolved),
    SessionClosed(SessionClosed),
    SessionStopRequested(SessionStopRequested),
    ToolRequested(ToolRequested),
    ToolFinished(ToolFinished),
    ToolApproved(ToolApproved),
    Notification(Published),
    /// The id of an event of a turn. No service reads events.
    Event(String),
}

/// A notification on its subject.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) subject: String,
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
}

impl Message {
    pub(crate) fn started(turn: TurnId) -> Message {
        Message::Event(format!("turn.started:{turn}"))
    }

    pub(crate) fn finished(turn: TurnId) -> Message {
        Message::Event(format!("turn.finished:{turn}"))
    }

    pub(crate) fn replayed(turn: TurnId) -> Message {
        Message::Event(format!("turn.replayed:{turn}"))
    }

    pub(crate) fn id(&self) -> String {
        match self {
            Self::SessionResolved(message) => message.message_id(),
            Self::SessionClosed(message) => message.message_id(),
            Self::SessionStopRequested(message) => message.message_id(),
            Self::ToolRequested(message) => message.message_id(),
            Self::ToolFinished(message) => message.message_id(),
            Self::ToolApproved(message) => message.message_id(),
            Self::Event(id) => id.clone(),
            // Not deduplicated by the broker (topology.rs).
            Self::Notification(_) => String::new(),
        }
    }

    /// As `contracts::Awaited`: its row stays until the message was read.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self, Self::Notification(_))
    }

    /// The row that waits for the message to be read.
    pub(crate) fn receipt(&self) -> Option<Uuid> {
        match self {
            Self::Notification(published) => receipt(&published.headers),
            _ => None,
        }
    }

    fn with_receipt(mut self, id: Uuid) -> Message {
        if let Self::Notification(published) = &mut self {
            published.headers.set(header::RECEIPT, id.to_string());
        }
        self
    }
}

/// The content of a message.
pub(crate) fn receipt(headers: &Headers) -> Option<Uuid> {
    headers.get(header::RECEIPT).and_then(|id| Uuid::try_parse(id).ok())
}

#[derive(Clone, Debug)]
pub(crate) struct OutboxRow {
    pub(crate) service: Service,
    pub(crate) messages: Vec<Message>,
    pub(crate) created_at: Millis,
    pub(crate) claimed_at: Option<Millis>,
    /// Stored by the broker and not read yet: since when, and the time of the next check.
    pub(crate) stored: Option<(Millis, Millis)>,
}

impl OutboxRow {
    pub(crate) fn is_awaited(&self) -> bool {
        self.messages.iter().any(Message::is_awaited)
    }
}

/// As in `[outbox]`: `sweep_age_ms`, `claim_timeout_ms`, `unread_look_ms`. The last one republishes after a while, whatever the
/// broker answers: sooner than `unread_again_ms`, so that it happens.
pub(crate) const SWEEP_AGE: Millis = 5_000;
pub(crate) const CLAIM_TIMEOUT: Millis = 15_000;
pub(crate) const UNREAD_LOOK: Millis = 10_000;
pub(crate) const UNREAD_AGAIN: Millis = 300_000;

impl Database {
    /// `OUTBOX_INSERT`: one row for all messages, and one for each awaited message. Gives the ids for the relay.
    pub(crate) fn outbox_insert(&mut self, service: Service, messages: Vec<Message>) -> Vec<Uuid> {
        let (awaited, others): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(Message::is_awaited);
        let alone = awaited.into_iter().map(|message| vec![message]);
        let mut ids = Vec::new();
        for messages in alone.chain((!others.is_empty()).then_some(others)) {
            let id = self.fresh_id();
            let row = OutboxRow {
                service,
                messages: messages.into_iter().map(|message| message.with_receipt(id)).collect(),
                created_at: self.now,
                claimed_at: None,
                stored: None,
            };
            self.outbox.insert(id, row);
            ids.push(id);
        }
        ids
    }

    /// Rows that `OUTBOX_CLAIM` would take. `after`: for a planted bug, which polls by id.
    pub(crate) fn outbox_due(&self, service: Service, after: Option<Uuid>) -> Vec<Uuid> {
        self.outbox
            .iter()
            .filter(|(id, row)| {
                row.service == service
                    && row.stored.is_none()
                    && row.created_at < self.now - SWEEP_AGE
                    && row.claimed_at.is_none_or(|at| at < self.now - CLAIM_TIMEOUT)
                    && after.is_none_or(|after| **id > after)
            })
            .map(|(id, _)| *id)
            .collect()
    }

    /// The time when one of these rows is due for publication or for a check.
    pub(crate) fn outbox_next_due(&self) -> Option<Millis> {
        self.outbox
            .values()
            .map(|row| match row.stored {
                Some((_, look_at)) => look_at + 1,
                None => {
                    let claimed = row.claimed_at.map_or(0, |at| at + CLAIM_TIMEOUT);
                    (row.created_at + SWEEP_AGE).max(claimed) + 1
                }
            })
            .filter(|at| *at > self.now)
            .min()
    }

    /// `OUTBOX_STORED`: rows that were not read meanwhile.
    pub(crate) fn outbox_stored(&mut self, ids: &[Uuid]) {
        let now = self.now;
        for id in ids {
            if let Some(row) = self.outbox.get_mut(id) {
                row.stored = Some((now, now + UNREAD_LOOK));
            }
        }
        self.version += 1;
    }

    /// Rows that `OUTBOX_LOOK` would take.
    pub(crate) fn outbox_unread(&self, service: Service) -> Vec<Uuid> {
        let due = |row: &OutboxRow| row.stored.is_some_and(|(_, look_at)| look_at < self.now);
        self.outbox
            .iter()
            .filter(|(_, row)| row.service == service && due(row))
            .map(|(id, _)| *id)
            .collect()
    }

    /// `OUTBOX_LOOK`. Gives each row, and whether to republish it whatever the broker answers.
    pub(crate) fn outbox_look(&mut self, ids: &[Uuid]) -> Vec<(Uuid, bool)> {
        let now = self.now;
        let mut looked = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(row) = self.outbox.get_mut(id)
                && let Some((since, look_at)) = &mut row.stored
            {
                *look_at = now + (now - *since).clamp(UNREAD_LOOK, 6 * UNREAD_LOOK);
                looked.push((*id, *since < now - UNREAD_AGAIN));
            }
        }
        self.version += 1;
        looked
    }

    /// `OUTBOX_DELETE` by a reader, in the transaction that processes the messages.
    pub(crate) fn outbox_receive(&mut self, receipts: impl IntoIterator<Item = Uuid>) {
        for receipt in receipts {
            self.outbox.remove(&receipt);
        }
    }

    /// `OUTBOX_CLAIM`.
    pub(crate) fn outbox_claim(&mut self, ids: &[Uuid]) {
        for id in ids {
            if let Some(row) = self.outbox.get_mut(id) {
                row.claimed_at = Some(self.now);
            }
        }
        self.version += 1;
    }

    /// `OUTBOX_DELETE`.
    pub(crate) fn outbox_delete(&mut self, ids: &[Uuid]) {
        for id in ids {
            self.outbox.remove(id);
        }
        self.version += 1;
    }
}
