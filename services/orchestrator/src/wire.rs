//! Shapes that several nouns share, and how words and moments stand in the OpenAPI document.

use domain::{Actor, ActorKind, AgentId, AgentRef, AgentSlug};
use sea_orm::FromQueryResult;
use serde::Serialize;
use utoipa::{
    ToSchema,
    openapi::schema::{Object, ObjectBuilder, Type},
};
use uuid::Uuid;

/// An agent, as others refer to it: by the id that never changes and the slug it has now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema, FromQueryResult)]
pub struct AgentName {
    pub id: Uuid,
    pub slug: String,
}

/// A named agent as a statement takes one: by slug, or by id.
pub fn agent_columns(agent: Option<&AgentRef>) -> (Option<AgentSlug>, Option<AgentId>) {
    match agent {
        None => (None, None),
        Some(AgentRef::Slug(slug)) => (Some(slug.clone()), None),
        Some(AgentRef::Id(id)) => (None, Some(*id)),
    }
}

/// Who did something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Author {
    #[schema(schema_with = actor_kind)]
    pub kind: String,
    pub id: String,
    pub name: String,
    /// The service whose word it is that they said it: it names another service, or speaks on behalf of a person. Absent
    /// where they speak for themselves; replaced where it is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub via: Option<String>,
}

impl From<Actor> for Author {
    fn from(actor: Actor) -> Self {
        Author {
            kind: actor.kind.to_string(),
            id: actor.id,
            name: actor.name,
            via: actor.via,
        }
    }
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(words.into_iter().map(str::to_owned).collect::<Vec<_>>()))
        .build()
}

/// One function a kind of word, each made of the enum that the code itself uses.
macro_rules! word_schemas {
    ($($function:ident $words:ty;)*) => {
        $(pub fn $function() -> Object {
            words(<$words>::ALL.iter().map(|word| word.as_str()))
        })*
    };
}

word_schemas! {
    actor_kind ActorKind;
    task_status domain::TaskStatus;
    key_role domain::KeyRole;
    session_scope domain::SessionScope;
    instruction_layout domain::InstructionLayout;
    notification_state domain::NotificationState;
    queue_mode domain::QueueMode;
    session_kind domain::SessionKind;
    turn_state domain::TurnState;
    tool_call_state domain::ToolCallState;
}

/// RFC 3339, UTC.
pub fn moment() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(
            utoipa::openapi::KnownFormat::DateTime,
        )))
        .build()
}
