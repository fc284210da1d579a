//! Orchestrators: one of each person's own, and one of the account's. Their identities say how they are called and how they speak.

use domain::{
    ActorKind, Deliver, Handle, QuestionState, Reachable, Style, Timestamp, ToolCallState, TurnState, UserId,
};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{accounts::nullable, text::Text};

pub type IdentityName = Text<1, 64>;
pub type Instructions = Text<0, 16_384>;

/// The requested changes; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityChange {
    pub name: Option<IdentityName>,
    /// How it is addressed, after an `@`. Unique among the account's orchestrators, and no agent's slug.
    pub handle: Option<Handle>,
    /// One emoji; null for none.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Avatar>")]
    pub avatar: Option<Option<Avatar>>,
    /// How it speaks. `custom`: as its instructions say.
    pub style: Option<Style>,
    /// What it is told beside that. The next turn has it.
    #[serde(alias = "customInstructions")]
    pub custom_instructions: Option<Instructions>,
    /// Of a person's: what colleagues may ask of it: nothing, answers, or work that its person pays for.
    pub reachable: Option<Reachable>,
    /// Of the account's: whether it gets what nobody owns.
    pub enabled: Option<bool>,
}

/// One emoji.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Avatar(#[schemars(length(min = 1, max = 32))] String);

impl TryFrom<String> for Avatar {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        match emojis::get(&text) {
            Some(_) => Ok(Avatar(text)),
            None => Err("not one emoji"),
        }
    }
}

impl From<Avatar> for String {
    fn from(avatar: Avatar) -> String {
        avatar.0
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Identity {
    /// Whose orchestrator it is; null: the account's.
    #[schemars(with = "Option<UserId>")]
    pub user_id: Option<String>,
    pub name: String,
    #[schemars(with = "Handle")]
    pub handle: String,
    pub avatar: Option<String>,
    #[schemars(with = "Style")]
    pub style: String,
    pub custom_instructions: String,
    /// Of a person's: what colleagues may ask of it.
    #[schemars(with = "Reachable")]
    pub reachable: String,
    /// Of the account's: whether it gets what nobody owns.
    pub enabled: bool,
    /// Counts the changes that its prompts show.
    pub revision: i32,
}

/// An orchestrator, as it is now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Orchestrator {
    /// Of its open generation; null: it has none, until it is woken or somebody writes to it.
    pub session_id: Option<Uuid>,
    /// Of its open generation, or the short form, which always holds.
    pub session_key: String,
    /// `absent`: it has no open session. `running`: it works, or has something to work on. `idle`. `hibernated`: it has been at rest for
    /// `orchestrator.orchestrator_idle_min`.
    pub state: String,
    pub identity: Identity,
    /// How many items wait.
    pub queued: i32,
}

/// Nothing is asked beside the waking.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wake {}

/// What a person writes to an agent.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPrompt {
    /// At most 64 KiB.
    pub content: Text<1, 65_536>,
    /// When the agent gets it. `turn`: in a turn of its own, with others of the same author. `tool`: after the next tool of the turn in
    /// progress. `interrupt`: at once, which ends the turn in progress. Default `turn`.
    pub deliver: Option<Deliver>,
}

/// A prompt that was accepted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Prompted {
    /// By which its state is asked for.
    pub notification_id: String,
}

/// What was said in a conversation with an orchestrator, and what it did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ChatItem {
    /// Somebody wrote to it.
    Said {
        at: Timestamp,
        notification_id: String,
        from: String,
        #[schemars(with = "ActorKind")]
        from_kind: String,
        /// Who says that it is theirs: a key, or `publisher` for whoever publishes on NATS. Null: they wrote it themselves.
        #[serde(default)]
        via: Option<String>,
        /// The first 4,096 characters: the notification has the whole text.
        text: String,
        cut: bool,
    },
    /// It called a tool.
    Step {
        at: Timestamp,
        turn_id: Uuid,
        tool: String,
        #[schemars(with = "ToolCallState")]
        state: String,
    },
    Question(ChatQuestion),
    /// It has answered, or its turn has ended without an answer.
    Reply {
        at: Timestamp,
        turn_id: Uuid,
        #[schemars(with = "TurnState")]
        state: String,
        text: Option<String>,
        error: Option<String>,
        begun_at: Timestamp,
    },
}

/// It has asked somebody: `GET /api/orgs/{account}/questions/{question}` has the question, which is answered there.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChatQuestion {
    pub at: Timestamp,
    pub turn_id: Uuid,
    pub question_id: Uuid,
    pub title: String,
    #[schemars(with = "QuestionState")]
    pub state: String,
}
