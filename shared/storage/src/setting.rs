//! What the messages of one change have in common: the root, the acting service, the cause, the time.

use contracts::{
    Outgoing, Root, Timestamp,
    event::{Event, EventMessage},
    message::Addressed,
    notification::{NotificationMessage, message_id},
    outgoing::Origin,
    subject::NO_ACCOUNT,
};
use domain::{AccountId, AgentId, NotificationId, TaskId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::outbox::Owned;

/// The common fields of all events that follow from one change.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    pub root: &'a Root,
    /// The service that acts.
    pub source: &'a str,
    pub origin: Origin,
    pub now: OffsetDateTime,
}

impl Setting<'_> {
    /// An event for the outbox. `id` is derived from the change, and must be unique in its account only: publishers
    /// choose ids of tasks and notifications, and without the account in the message id the broker would take one
    /// account's event for a duplicate of another's.
    pub fn event(&self, account: &AccountId, task: Option<&TaskId>, id: &str, event: Event) -> Owned {
        let message = self.event_message(Some(account), task, event);
        self.message(&format!("{}:{account}:{id}", message.event.kind()), &message)
    }

    /// An event of no account. The transaction must have declared the operator's rows.
    pub fn event_of_all(&self, id: &str, event: Event) -> Owned {
        let message = self.event_message(None, None, event);
        self.message(&format!("{}:{NO_ACCOUNT}:{id}", message.event.kind()), &message)
    }

    /// A notification that tells an agent, with an id that follows from its cause; the resolver queues it. It counts as a wake-up of an
    /// agent by an agent, so that agents who wake each other in a circle end.
    pub fn agent_told(
        &self,
        (account, task): (&AccountId, Option<&TaskId>),
        (agent, id): (AgentId, &NotificationId),
        message: NotificationMessage,
    ) -> Owned {
        let message = NotificationMessage {
            agent: Some(agent.to_string()),
            ..message
        };
        self.session_told((account, task), id, message)
    }

    /// The same for a message that names its recipient.
    pub fn session_told(
        &self,
        (account, task): (&AccountId, Option<&TaskId>),
        id: &NotificationId,
        message: NotificationMessage,
    ) -> Owned {
        let message = NotificationMessage {
            id: Some(id.clone()),
            ..message
        };
        let origin = Origin {
            hops: self.origin.hops.saturating_add(1),
            ..self.origin.clone()
        };
        let outgoing = Outgoing::new(
            self.root.subject::<NotificationMessage>(account, task),
            &message_id(account, id),
            self.source,
            (Some(account), task),
            &origin,
            Timestamp::from(self.now),
            &message,
        );
        (Some(account.clone()), outgoing)
    }

    fn event_message(&self, account: Option<&AccountId>, task: Option<&TaskId>, event: Event) -> EventMessage {
        EventMessage {
            account: account.cloned(),
            task: task.cloned(),
            at: Timestamp::from(self.now),
            event,
        }
    }

    /// A message for the outbox. The same input gives the same id.
    pub fn message<M: Addressed>(&self, id: &str, message: &M) -> Owned {
        let at = Timestamp::from(self.now);
        let outgoing = Outgoing::of(self.root, id, self.source, &self.origin, at, message);
        (message.about().0.cloned(), outgoing)
    }
}

/// A random id for a row of an event that happens now.
pub(crate) fn fresh_id() -> Uuid {
    Uuid::now_v7()
}

#[cfg(test)]
mod tests {
    use contracts::event::TaskCreated;
    use domain::{Actor, TaskStatus};

    use super::*;

    #[test]
    fn the_same_fact_in_two_accounts_is_two_events() {
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/test",
            origin: Origin::default(),
            now: OffsetDateTime::UNIX_EPOCH,
        };
        let task = TaskId::parse("PROJ-7").unwrap();
        let id_in = |account: &str| {
            let created = TaskCreated {
                title: "Seven".to_owned(),
                status: TaskStatus::Inbox,
                by: Actor::system(),
            };
            let account = AccountId::parse(account).unwrap();
            let (_, outgoing) = setting.event(&account, Some(&task), "proj-7", Event::TaskCreated(created));
            outgoing.id().to_owned()
        };
        assert_ne!(id_in("acme"), id_in("globex"), "the broker would drop the second");
        assert_eq!(id_in("acme"), id_in("acme"), "a crash repeats it under its id");
    }
}
