//! A task's thread. A message by a person or a service wakes the task's agents. A message by an agent enters by tool or as the
//! reply of a turn, and wakes no agent.

pub mod fan_out;
pub mod http;
pub mod store;

use api::messages::NewMessage;
use domain::Actor;
use runtime::http::Problem;

use crate::auth::Caller;

/// The author of a message that the caller posts.
pub fn author_of(new: &NewMessage, caller: &Caller) -> Result<Actor, Problem> {
    let Some(author) = &new.author else {
        return Ok(caller.actor());
    };
    let named = Actor {
        kind: author.kind,
        id: author.id.to_string(),
        name: author.name.as_deref().unwrap_or(&author.id).to_owned(),
        via: None,
    };
    caller.speaks_as("author", &named)
}

#[cfg(test)]
mod tests {
    use contracts::notification::BODY_BYTES_MAX;
    use domain::{AccountId, ActorKind, KeyId, KeyRole};
    use storage::api_key::KeyHolder;

    use super::*;

    fn check(role: KeyRole, json: &str) -> Result<Actor, u16> {
        let caller = Caller::Key(KeyHolder {
            sees_everybody: false,
            account: AccountId::parse("acme").unwrap(),
            id: KeyId::parse("0011223344556677").unwrap(),
            name: "Ann".to_owned(),
            role,
            person: None,
            agent: None,
        });
        let new: NewMessage = crate::body::parse(json.as_bytes()).map_err(|problem| problem.status().as_u16())?;
        author_of(&new, &caller).map_err(|problem| problem.status().as_u16())
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
