//! A task's thread. What a person or a service says here wakes the task's agents; what agents say enters by tool or as
//! the reply of a turn, and wakes nobody.

pub mod fan_out;
pub mod http;
pub mod store;

use contracts::notification::BODY_BYTES_MAX;
use domain::{Actor, ActorKind};
use runtime::http::Problem;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    auth::Caller,
    body::{length_check, text_check},
    wire::{AgentName, Author, actor_kind, moment},
};

const NAME_BYTES_MAX: usize = 128;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    /// At most 256 KiB.
    pub body: String,
    /// For whom a key for services speaks, which is said; else the key speaks for itself, as a person's always does.
    pub author: Option<NewAuthor>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAuthor {
    /// `user` or `service`: agents post by tool.
    #[schema(schema_with = actor_kind)]
    pub kind: ActorKind,
    pub id: String,
    pub name: Option<String>,
}

impl NewMessage {
    /// Who is the author of this.
    pub fn check(&self, caller: &Caller) -> Result<Actor, Problem> {
        text_check("body", &self.body, BODY_BYTES_MAX)?;
        let Some(author) = &self.author else {
            return Ok(caller.actor());
        };
        text_check("author.id", &author.id, NAME_BYTES_MAX)?;
        let name = author.name.as_deref().unwrap_or(&author.id);
        length_check("author.name", name, NAME_BYTES_MAX)?;
        let named = Actor {
            kind: author.kind,
            id: author.id.clone(),
            name: name.to_owned(),
            via: None,
        };
        caller.speaks_as("author", &named)
    }
}

#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Message {
    pub id: Uuid,
    #[sea_orm(nested(prefix = "author_"))]
    pub author: Author,
    pub body: String,
    /// The turn whose reply it is, or whose tool call posted it.
    #[schema(required)]
    pub turn_id: Option<Uuid>,
    #[serde(with = "rfc3339")]
    #[schema(schema_with = moment)]
    pub created_at: OffsetDateTime,
}

/// A message that was just posted.
#[derive(Debug, Serialize, ToSchema)]
pub struct PostedMessage {
    #[serde(flatten)]
    pub message: Message,
    /// The agents that it wakes.
    pub notified: Vec<AgentName>,
}

#[cfg(test)]
mod tests {
    use domain::{AccountId, KeyId, KeyRole};
    use storage::api_key::KeyHolder;

    use super::*;

    fn check(role: KeyRole, json: &str) -> Result<Actor, u16> {
        let caller = Caller::Key(KeyHolder {
            account: AccountId::parse("acme").unwrap(),
            id: KeyId::parse("0011223344556677").unwrap(),
            name: "Ann".to_owned(),
            role,
            agent: None,
        });
        let new: NewMessage = crate::body::parse(json.as_bytes()).map_err(|problem| problem.status().as_u16())?;
        new.check(&caller).map_err(|problem| problem.status().as_u16())
    }

    #[test]
    fn the_author_follows_from_the_key() {
        let author = check(KeyRole::Member, r#"{"body": "b"}"#).unwrap();
        assert_eq!((author.kind, author.name.as_str()), (ActorKind::User, "Ann"));
        assert_eq!(
            check(KeyRole::Service, r#"{"body": "b"}"#).unwrap().kind,
            ActorKind::Service
        );
    }

    #[test]
    fn a_service_speaks_for_people_and_for_no_agent() {
        let ann = r#"{"body": "b", "author": {"kind": "user", "id": "ann"}}"#;
        let author = check(KeyRole::Service, ann).unwrap();
        assert_eq!(
            (
                author.kind,
                author.id.as_str(),
                author.name.as_str(),
                author.via.as_deref()
            ),
            (ActorKind::User, "ann", "ann", Some("Ann"))
        );
        assert_eq!(check(KeyRole::Member, ann), Err(403));
        assert_eq!(check(KeyRole::Admin, ann), Err(403));
        let agent = r#"{"body": "b", "author": {"kind": "agent", "id": "coder"}}"#;
        assert_eq!(check(KeyRole::Service, agent), Err(400));
        assert_eq!(check(KeyRole::Admin, agent), Err(403));
        let operator = r#"{"body": "b", "author": {"kind": "user", "id": "operator"}}"#;
        assert_eq!(check(KeyRole::Service, operator), Err(400));
    }

    #[test]
    fn a_message_says_something_within_limits() {
        assert_eq!(check(KeyRole::Admin, r#"{"body": " "}"#), Err(400));
        assert_eq!(check(KeyRole::Admin, r#"{}"#), Err(400));
        assert_eq!(
            check(
                KeyRole::Admin,
                &format!(r#"{{"body": "{}"}}"#, "x".repeat(BODY_BYTES_MAX + 1))
            ),
            Err(400)
        );
    }
}
