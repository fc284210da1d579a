//! Which agents a posted message wakes, and the notifications that wake them. Pure.

use api::agents::AgentName;
use contracts::{Outgoing, Root, Timestamp, notification::NotificationMessage, outgoing::Origin};
use domain::{AccountId, Actor, MessageId, NotificationId, TaskId};
use serde_json::Map;
use storage::outbox::Owned;

use crate::SOURCE;

/// `type` of a notification that a message causes.
const KIND: &str = "message";

/// A posted message.
#[derive(Debug)]
pub struct Posted<'a> {
    pub account: &'a AccountId,
    /// The task's display id.
    pub task: &'a TaskId,
    pub id: MessageId,
    pub author: &'a Actor,
    pub body: &'a str,
    pub at: Timestamp,
}

/// The task's assignees without the author.
pub fn woken(assignees: Vec<AgentName>, author: &Actor) -> Vec<AgentName> {
    assignees
        .into_iter()
        .filter(|agent| agent.id.to_string() != author.id)
        .collect()
}

/// One notification an agent, for the outbox. Its id follows from message and agent, so that the same message wakes an agent once.
pub fn notifications(root: &Root, posted: &Posted<'_>, agents: &[AgentName], origin: &Origin) -> Vec<Owned> {
    agents
        .iter()
        .map(|agent| notification(root, posted, agent, origin))
        .collect()
}

fn notification(root: &Root, posted: &Posted<'_>, agent: &AgentName, origin: &Origin) -> Owned {
    let id = format!("message:{}:{}", posted.id, agent.id);
    let message = NotificationMessage {
        id: Some(NotificationId::parse(&id).expect("two UUIDs and a word are printable and short")),
        kind: Some(KIND.to_owned()),
        agent: Some(agent.id.to_string()),
        agents: Vec::new(),
        session: None,
        title: None,
        body: posted.body.to_owned(),
        message_id: Some(posted.id),
        sender: Some(posted.author.clone()),
        queue_mode: None,
        metadata: Map::new(),
    };
    let origin = Origin {
        cause: Some(posted.id.to_string()),
        ..origin.clone()
    };
    let outgoing = Outgoing::new(
        root.subject::<NotificationMessage>(posted.account, Some(posted.task)),
        &id,
        SOURCE,
        (Some(posted.account), Some(posted.task)),
        &origin,
        posted.at,
        &message,
    );
    (Some(posted.account.clone()), outgoing)
}

#[cfg(test)]
mod tests {
    use contracts::header;
    use domain::ActorKind;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn agent(number: u128, slug: &str) -> AgentName {
        AgentName {
            id: Uuid::from_u128(number),
            slug: slug.to_owned(),
        }
    }

    #[test]
    fn nobody_is_woken_by_their_own_words() {
        let author = Actor {
            kind: ActorKind::Agent,
            id: Uuid::from_u128(1).to_string(),
            name: "coder".to_owned(),
            via: None,
        };
        let woken = woken(vec![agent(1, "coder"), agent(2, "tester")], &author);
        assert_eq!(woken, [agent(2, "tester")]);
    }

    #[test]
    fn each_agent_gets_one_notification_that_the_resolver_can_read() {
        let (account, task) = (AccountId::parse("acme").unwrap(), TaskId::parse("PROJ-7").unwrap());
        let author = Actor {
            kind: ActorKind::User,
            id: "k".to_owned(),
            name: "Ann".to_owned(),
            via: None,
        };
        let posted = Posted {
            account: &account,
            task: &task,
            id: MessageId(Uuid::from_u128(9)),
            author: &author,
            body: "Please look",
            at: OffsetDateTime::UNIX_EPOCH.into(),
        };
        let agents = [agent(1, "coder"), agent(2, "tester")];
        let made = notifications(&Root::default(), &posted, &agents, &Origin::default());
        assert_eq!(made.len(), 2);
        for ((owner, outgoing), agent) in made.iter().zip(&agents) {
            assert_eq!(owner.as_ref(), Some(&account));
            assert_eq!(outgoing.subject, "signalbox.notification.acme.PROJ-7");
            assert_eq!(
                outgoing.headers.get(header::CAUSE),
                Some(posted.id.to_string().as_str())
            );
            assert_eq!(outgoing.headers.hops(), 0);
            let read = contracts::notification::read(&outgoing.headers, &outgoing.payload).unwrap();
            assert_eq!(read.id.unwrap().as_str(), format!("message:{}:{}", posted.id, agent.id));
            assert_eq!((read.kind.as_str(), read.body.as_str()), ("message", "Please look"));
            assert_eq!((read.message_id, &read.sender), (Some(posted.id), &author));
        }
        assert_eq!(
            made,
            notifications(&Root::default(), &posted, &agents, &Origin::default())
        );
    }
}
