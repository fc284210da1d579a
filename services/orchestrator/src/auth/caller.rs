//! The authenticated caller, as handlers see it.

use axum::{extract::FromRequestParts, http::request::Parts};
use domain::{AccountId, Actor, ActorKind, KeyRole, NotTheirs, Owner, UserId};
use runtime::http::{Problem, openapi::Operation};
use storage::{
    Accounts, StorageError, Tx,
    accounts::OPERATOR,
    api_key::{KeyHolder, Person},
};

use crate::{
    app::App,
    error::invalid_field,
    permission::{Need, may},
    route::Described,
};

/// Ids of keys are hexadecimal.
const OPERATOR_PRINCIPAL: &str = "operator";

/// Sender of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Caller {
    Operator,
    Key(KeyHolder),
}

impl Caller {
    /// The actor of the caller's writes: a member, for a key of their own; else the key, by its id and name, as a service or a person
    /// according to its role.
    pub fn actor(&self) -> Actor {
        match self {
            Self::Operator => Actor {
                kind: ActorKind::User,
                id: "operator".to_owned(),
                name: "Operator".to_owned(),
                via: None,
            },
            Self::Key(KeyHolder {
                person: Some(person), ..
            }) => person.actor(),
            Self::Key(holder) => Actor {
                kind: if holder.role.is_for_services() {
                    ActorKind::Service
                } else {
                    ActorKind::User
                },
                id: holder.id.to_string(),
                name: holder.name.clone(),
                via: None,
            },
        }
    }

    /// The sender shown for the caller's notifications: the caller, or, for a service, the name in `field`.
    pub fn speaks_as(&self, field: &str, named: &Actor) -> Result<Actor, Problem> {
        self.actor().speaks_as(named).map_err(|error| match error {
            NotTheirs::Another => Problem::forbidden(format!("{field}: {error}")),
            NotTheirs::Agent | NotTheirs::Reserved => invalid_field(field, error),
        })
    }

    /// The principal that owns Idempotency-Keys and notifications: a key, or the operator for none.
    pub fn principal(&self) -> &str {
        match self {
            Self::Operator => OPERATOR_PRINCIPAL,
            Self::Key(holder) => holder.id.as_str(),
        }
    }

    /// The member whose own key the caller has.
    pub fn person(&self) -> Option<&Person> {
        match self {
            Self::Operator => None,
            Self::Key(holder) => holder.person.as_ref(),
        }
    }

    /// The id of [`Caller::actor`].
    pub fn author_id(&self) -> &str {
        self.person()
            .map_or_else(|| self.principal(), |person| person.id.as_str())
    }

    /// Whether the caller covers the need, in the account of the path.
    pub fn may(&self, need: Need) -> bool {
        match self {
            Self::Operator => need != Need::Person,
            Self::Key(holder) => may(holder, need),
        }
    }

    /// Whether the caller administers the account of the path.
    pub fn is_admin(&self) -> bool {
        self.may(Need::Administer)
    }

    /// Whether the caller writes to this orchestrator otherwise than by mail. A person's: the person, and a service, which is a person's front
    /// door. The account's: admins.
    pub fn may_prompt(&self, owner: &Owner) -> bool {
        match (self, owner) {
            (Self::Operator, _) => true,
            (Self::Key(_), Owner::Account) => self.is_admin(),
            (
                Self::Key(KeyHolder {
                    person: Some(person), ..
                }),
                Owner::User(user),
            ) => person.id == *user,
            (Self::Key(holder), Owner::User(_)) => match holder.role {
                KeyRole::Admin | KeyRole::Service => true,
                KeyRole::Member | KeyRole::Publisher | KeyRole::Gateway => false,
            },
        }
    }

    /// Whether the caller sees the state of its own notifications only.
    pub fn sees_own_alone(&self) -> bool {
        match self {
            Self::Operator => false,
            Self::Key(holder) => match holder.role {
                KeyRole::Publisher => true,
                KeyRole::Admin | KeyRole::Member | KeyRole::Service | KeyRole::Gateway => false,
            },
        }
    }
}

/// A caller with the account of the path and permission for the route. Only the guard creates one.
#[derive(Clone, Debug)]
pub struct Access {
    pub account: AccountId,
    pub caller: Caller,
    /// The request changes nothing.
    pub reads: bool,
}

/// The operator, on a route across accounts. Only the guard creates one.
#[derive(Clone, Copy, Debug)]
pub struct OperatorAccess;

/// A person, on a route for what is their own. Only the guard lets one through.
#[derive(Clone, Debug)]
pub struct PersonAccess {
    pub access: Access,
    pub user: UserId,
}

impl Access {
    /// A transaction of the request: in its account, with what its caller may see.
    pub async fn begin(&self, app: &App) -> Result<Tx, StorageError> {
        app.database.begin(&self.accounts()).await
    }

    /// The account, with the persons whose orchestrators' rows the request may reach: a person's own, and the operator's everybody's. An
    /// admin reads everybody's, if the account says so, and changes none but their own.
    pub fn accounts(&self) -> Accounts {
        let account = Accounts::one(&self.account);
        match &self.caller {
            Caller::Operator => account.with_everybody(),
            Caller::Key(holder) if holder.sees_everybody && self.reads => account.with_everybody(),
            Caller::Key(KeyHolder {
                person: Some(person), ..
            }) => account.with_person(&person.id),
            Caller::Key(_) => account,
        }
    }

    /// Whether the caller sees everybody's orchestrators.
    pub fn sees_all(&self) -> bool {
        match &self.caller {
            Caller::Operator => true,
            Caller::Key(holder) => holder.sees_everybody,
        }
    }

    /// Whether the caller sees what is this person's own.
    pub fn sees(&self, user: &UserId) -> bool {
        self.sees_all() || self.caller.person().is_some_and(|person| person.id == *user)
    }

    /// The principal of a POST.
    pub fn party(&self) -> Party<'_> {
        Party {
            owner: self.account.as_str(),
            principal: self.caller.principal(),
            accounts: self.accounts(),
        }
    }
}

/// Owner of a POST's effect and of its stored answer: an account, or the operator.
#[derive(Debug)]
pub struct Party<'a> {
    pub owner: &'a str,
    pub principal: &'a str,
    pub accounts: Accounts,
}

impl Party<'_> {
    /// On a route across accounts; `account` is the account that the request touches.
    pub fn operator(account: Option<&AccountId>) -> Party<'static> {
        Party {
            owner: OPERATOR,
            principal: OPERATOR_PRINCIPAL,
            accounts: Accounts::many(account).with_operator().with_everybody(),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Access>().cloned().ok_or_else(not_declared)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OperatorAccess {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parts
            .extensions
            .get::<OperatorAccess>()
            .copied()
            .ok_or_else(not_declared)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PersonAccess {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let access = Access::from_request_parts(parts, state).await?;
        let user = access.caller.person().map(|person| person.id.clone());
        user.map(|user| PersonAccess { access, user }).ok_or_else(not_declared)
    }
}

impl Described for PersonAccess {
    fn describe(_: &mut Operation<'_>) {}
}

impl Described for Access {
    fn describe(operation: &mut Operation<'_>) {
        operation.path_parameter::<AccountId>("account");
        operation.refuses(&[404]);
    }
}

impl Described for OperatorAccess {
    fn describe(_: &mut Operation<'_>) {}
}

/// A route that the guard does not know is closed.
fn not_declared() -> Problem {
    Problem::forbidden("this route permits no caller")
}

#[cfg(test)]
mod tests {
    use domain::KeyId;

    use super::*;

    #[test]
    fn a_key_acts_as_its_person_or_as_itself() {
        let holder = |role| KeyHolder {
            sees_everybody: false,
            account: AccountId::parse("acme").unwrap(),
            id: KeyId::parse("0011223344556677").unwrap(),
            name: "laptop".to_owned(),
            role,
            person: None,
            agent: None,
        };
        let check = |role, kind| {
            let actor = Caller::Key(holder(role)).actor();
            assert_eq!(
                (actor.kind, actor.id.as_str(), actor.name.as_str()),
                (kind, "0011223344556677", "laptop")
            );
            let person = Some(Person {
                id: UserId::parse("ann").unwrap(),
                name: "Ann".to_owned(),
            });
            let actor = Caller::Key(KeyHolder { person, ..holder(role) }).actor();
            assert_eq!(
                (actor.kind, actor.id.as_str(), actor.name.as_str()),
                (ActorKind::User, "ann", "Ann")
            );
        };
        check(KeyRole::Admin, ActorKind::User);
        check(KeyRole::Member, ActorKind::User);
        check(KeyRole::Service, ActorKind::Service);
        check(KeyRole::Publisher, ActorKind::Service);
        assert_eq!(Caller::Operator.actor().kind, ActorKind::User);
    }
}
