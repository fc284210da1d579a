//! The few writes that span two owners in one transaction, each a single function. Everything else is written by the
//! one service that owns the table (ARCHITECTURE.md, "Who owns what").
//!
//! | function | spans | because |
//! |---|---|---|
//! | [`task_status_set`] | task, its sessions, their queues | done closes in the same transaction, whoever moves the task (S3) |
//! | [`task_create`], [`tasks_create`] | task, activity | the resolver creates unknown tasks, the API creates the rest |
//! | [`message_post`], [`replies_post`] | thread, activity | people post by API, agents by tool, delivery's replies by event |
//! | [`agent_remove`] | agent, its sessions, their queues | removing an agent closes its sessions (S11) |

mod activity;
mod agent_remove;
mod message_post;
mod replies_post;
mod task_create;
mod task_status;

pub use activity::activity_insert;
pub use agent_remove::{AgentRemoval, agent_remove};
pub use message_post::{NewMessage, message_post};
pub use replies_post::{Reply, replies_post, reply_message_id};
pub use task_create::{NewTask, task_create, tasks_create};
pub use task_status::{TaskMove, TaskMoved, close_reason, task_status_set};

use contracts::{
    Outgoing, Root, Timestamp,
    event::{Event, EventMessage},
    message::Addressed,
    outgoing::Origin,
};
use domain::{AccountId, TaskId};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::outbox::Owned;

/// Where and why something happens: what every event that follows from it carries.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    pub root: &'a Root,
    /// The service that acts.
    pub source: &'a str,
    pub origin: Origin,
    pub now: OffsetDateTime,
}

impl Setting<'_> {
    /// An event for the outbox. `id` follows from what happened, and has to be unique in the account only: publishers choose
    /// ids of tasks and notifications, and the broker would take one account's event for the repetition of another's.
    pub fn event(&self, account: &AccountId, task: Option<&TaskId>, id: &str, event: Event) -> Owned {
        let kind = event.kind();
        let message = EventMessage {
            account: account.clone(),
            task: task.cloned(),
            at: Timestamp::from(self.now),
            event,
        };
        self.message(&format!("{kind}:{account}:{id}"), &message)
    }

    /// A message for the outbox. The same input gives the same id.
    pub fn message<M: Addressed>(&self, id: &str, message: &M) -> Owned {
        let at = Timestamp::from(self.now);
        let outgoing = Outgoing::of(self.root, id, self.source, &self.origin, at, message);
        (Some(message.about().0.clone()), outgoing)
    }
}

/// An id for a row that follows from an event of now.
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
