//! What an item says, as its row has it now, as the message of its publisher. An edited item's hash and the dead letter of a
//! failed one are made of the same message, so that the letter can be redriven.

use contracts::{
    Headers,
    content::ContentHash,
    notification::{self, NotificationMessage},
};
use domain::{Actor, AgentId, MessageId, NotificationId, QueueMode, TaskId};
use sea_orm::FromQueryResult;
use serde_json::Value;

#[derive(Clone, Debug, FromQueryResult)]
pub struct ItemContent {
    pub id: NotificationId,
    /// As its client spelled it.
    pub task: Option<TaskId>,
    pub agent_id: Option<AgentId>,
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
        NotificationMessage {
            id: Some(self.id.clone()),
            kind: Some(self.kind.clone()),
            agent: self.agent_id.map(|id| id.to_string()),
            agents: Vec::new(),
            title: self.title.clone(),
            body: self.body.clone(),
            message_id: self.message_id,
            sender: Some(self.sender.clone()),
            queue_mode: Some(self.queue_mode),
            metadata: self.metadata.as_object().cloned().unwrap_or_default(),
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
