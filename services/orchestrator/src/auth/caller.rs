//! The caller, as handlers see one.

use axum::{extract::FromRequestParts, http::request::Parts};
use domain::{AccountId, Actor, ActorKind, KeyRole};
use runtime::http::Problem;
use storage::api_key::KeyHolder;

/// Who sent the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Caller {
    Operator,
    Key(KeyHolder),
}

impl Caller {
    /// As whom they act: a service's key is a service, any other is a person. The key's id and name stand for them.
    pub fn actor(&self) -> Actor {
        match self {
            Self::Operator => Actor {
                kind: ActorKind::User,
                id: "operator".to_owned(),
                name: "Operator".to_owned(),
            },
            Self::Key(holder) => Actor {
                kind: match holder.role {
                    KeyRole::Admin | KeyRole::Member => ActorKind::User,
                    KeyRole::Service | KeyRole::Gateway => ActorKind::Service,
                },
                id: holder.id.to_string(),
                name: holder.name.clone(),
            },
        }
    }

    /// Whether they may speak for others, as a service does that carries people's words here from elsewhere.
    pub fn may_speak_for_others(&self) -> bool {
        match self {
            Self::Operator => true,
            Self::Key(holder) => match holder.role {
                KeyRole::Admin | KeyRole::Service => true,
                KeyRole::Member | KeyRole::Gateway => false,
            },
        }
    }
}

/// A caller in an account that is theirs to see, permitted to do what the route does. Only the guard makes one.
#[derive(Clone, Debug)]
pub struct Access {
    pub account: AccountId,
    pub caller: Caller,
}

/// The operator, on a route across accounts. Only the guard makes one.
#[derive(Clone, Copy, Debug)]
pub struct OperatorAccess;

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Access>().cloned().ok_or_else(not_in_the_table)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OperatorAccess {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parts
            .extensions
            .get::<OperatorAccess>()
            .copied()
            .ok_or_else(not_in_the_table)
    }
}

/// A route that the table does not have is closed.
fn not_in_the_table() -> Problem {
    Problem::forbidden("nobody may do this")
}

#[cfg(test)]
mod tests {
    use domain::KeyId;

    use super::*;

    #[test]
    fn a_key_acts_as_a_person_or_a_service() {
        let check = |role, kind, for_others| {
            let caller = Caller::Key(KeyHolder {
                account: AccountId::parse("acme").unwrap(),
                id: KeyId::parse("0011223344556677").unwrap(),
                name: "Ann".to_owned(),
                role,
                agent: None,
            });
            let actor = caller.actor();
            assert_eq!(
                (actor.kind, actor.id.as_str(), actor.name.as_str()),
                (kind, "0011223344556677", "Ann")
            );
            assert_eq!(caller.may_speak_for_others(), for_others, "{role}");
        };
        check(KeyRole::Admin, ActorKind::User, true);
        check(KeyRole::Member, ActorKind::User, false);
        check(KeyRole::Service, ActorKind::Service, true);
        assert!(Caller::Operator.actor().is_person());
    }
}
