//! What an item says, as its row has it now, as the message of its publisher. An edited item's hash and the dead letter of a
//! failed one are made of the same message, so that the letter can be redriven.

use contracts::{
    Headers,
    content::ContentHash,
    notification::{self, NotificationMessage},
};
use domain::{Actor, ActorKind, AgentId, MessageId, NotificationId, QueueMode, TaskId};
use sea_orm::FromQueryResult;
use serde_json::Value;

use super::items_append::QUEUE_MODE_ASKED;

#[derive(Clone, Debug, FromQueryResult)]
pub struct ItemContent {
    pub id: NotificationId,
    /// As its client spelled it.
    pub task: Option<TaskId>,
    pub agent_id: Option<AgentId>,
    /// The key of the orchestrator's or guest's session that it is in.
    pub orchestrator: Option<String>,
    pub kind: String,
    pub title: Option<String>,
    pub body: String,
    pub message_id: Option<MessageId>,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub queue_mode: QueueMode,
    /// An object.
    pub metadata: Value,
}

impl ItemContent {
    pub fn message(&self) -> NotificationMessage {
        let mut metadata = self.metadata.as_object().cloned().unwrap_or_default();
        // An agent asked for another mode than its item got.
        let asked = metadata
            .get(QUEUE_MODE_ASKED)
            .and_then(Value::as_str)
            .and_then(QueueMode::parse);
        let asked = asked.filter(|mode| mode.of_agent() == self.queue_mode && self.sender.kind == ActorKind::Agent);
        if asked.is_some() {
            metadata.remove(QUEUE_MODE_ASKED);
        }
        NotificationMessage {
            id: Some(self.id.clone()),
            kind: Some(self.kind.clone()),
            agent: self
                .agent_id
                .filter(|_| self.orchestrator.is_none())
                .map(|id| id.to_string()),
            agents: Vec::new(),
            session: self.orchestrator.clone(),
            title: self.title.clone(),
            body: self.body.clone(),
            message_id: self.message_id,
            sender: Some(self.sender.clone()),
            queue_mode: asked.or(Some(self.queue_mode)),
            metadata,
        }
    }

    /// The hash of the message, as the resolver computes it; none: the resolver would not take the message.
    pub fn hash(&self) -> Option<ContentHash> {
        let payload =
            serde_json::to_vec(&self.message()).expect("wire types have string keys and no failing serializer");
        let read = notification::read(&Headers::default(), &payload).ok()?;
        Some(ContentHash::of(self.task.as_ref(), &read))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::session::items_append::metadata;

    /// Also one that an agent sent as a steer, which is queued as a follow-up.
    #[test]
    fn an_item_has_the_hash_of_its_publication() {
        let agent = AgentId(Uuid::from_u128(7));
        for (mode, kind) in [
            ("steer", "agent"),
            ("inject", "agent"),
            ("steer", "user"),
            ("collect", "agent"),
        ] {
            let published = json!({"id": "n-1", "type": "message", "agent": agent.to_string(), "body": "b", "queue_mode": mode,
                "sender": {"kind": kind, "id": "s", "name": "S"}, "metadata": {"a": 1}});
            let content = notification::read(&Headers::default(), published.to_string().as_bytes()).unwrap();
            let item = ItemContent {
                id: NotificationId::parse("n-1").unwrap(),
                task: None,
                agent_id: Some(agent),
                orchestrator: None,
                kind: content.kind.clone(),
                title: None,
                body: content.body.clone(),
                message_id: None,
                sender: content.sender.clone(),
                queue_mode: content.mode(),
                metadata: serde_json::from_str(&metadata(&content)).unwrap(),
            };
            let published = ContentHash::of(None, &content);
            assert_eq!(
                item.hash().map(ContentHash::bytes),
                Some(published.bytes()),
                "{mode} {kind}"
            );
        }
    }
}
