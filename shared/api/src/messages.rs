//! Messages of a task's thread.

use contracts::notification::BODY_BYTES_MAX;
use domain::{Actor, ActorKind, QuestionId, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{agents::AgentName, text::Text};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    pub body: Text<1, BODY_BYTES_MAX>,
    /// The actor for whom a service's key posts, which is recorded. Without it the key is the author; a person's key
    /// always is.
    pub author: Option<NewAuthor>,
    /// An open question of the task that this message answers too, with its body as the text. Only who is asked may answer.
    pub answers: Option<QuestionId>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAuthor {
    /// `user` or `service`: agents post by tool.
    pub kind: ActorKind,
    pub id: Text<1, 128>,
    pub name: Option<Text<0, 128>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Message {
    pub id: Uuid,
    #[sea_orm(nested(prefix = "author_"))]
    pub author: Actor,
    pub body: String,
    /// The turn of this reply, or of the tool call that posted it.
    pub turn_id: Option<Uuid>,
    pub created_at: Timestamp,
}

/// A new message.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PostedMessage {
    #[serde(flatten)]
    pub message: Message,
    /// The agents that it wakes.
    pub notified: Vec<AgentName>,
}
