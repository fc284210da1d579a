//! The people of an account, and what a person sees of themselves.

use domain::{Email, MemberRole, Timestamp, UserId};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

use crate::{accounts::nullable, keys::CreatedKey, number::Whole, text::ActorName};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// Identifies the person in the account for ever. Default: what the e-mail address begins with.
    pub user_id: Option<NewUserId>,
    /// A removed member returns by it.
    pub email: Option<Email>,
    /// The author's name of what the person does. A name that resembles Signalbox's own is refused.
    pub name: ActorName,
    /// `admin`: everything in the account. `member`: reads, tasks, messages, notifications, answers.
    pub role: MemberRole,
    /// Whether the answer has a sign-in link, which is good for seven days. Default `false`.
    pub invite: Option<bool>,
}

/// The requested changes; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    pub name: Option<ActorName>,
    /// The last admin stays one.
    pub role: Option<MemberRole>,
    /// Null for none.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Email>")]
    pub email: Option<Option<Email>>,
}

/// What a person changes of themselves; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeChange {
    pub name: Option<ActorName>,
    /// A name of the IANA time zone database, as in `Europe/Berlin`.
    pub time_zone: Option<TimeZone>,
}

pub type TimeZone = crate::Text<1, 64>;

/// An id that is neither Signalbox's own nor the id of a key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "UserId")]
#[schemars(inline)]
pub struct NewUserId(UserId);

impl TryFrom<UserId> for NewUserId {
    type Error = &'static str;
    fn try_from(id: UserId) -> Result<Self, Self::Error> {
        if id.is_reserved() {
            Err("this id is reserved: it resembles Signalbox's own, or is the id of a key")
        } else {
            Ok(NewUserId(id))
        }
    }
}

impl From<NewUserId> for UserId {
    fn from(id: NewUserId) -> UserId {
        id.0
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Member {
    pub user_id: String,
    pub name: String,
    /// For admins; null for others, and without an address.
    pub email: Option<String>,
    #[schemars(with = "MemberRole")]
    pub role: String,
    pub time_zone: String,
    /// Whether the person has signed in.
    pub signed_in: bool,
    pub created_at: Timestamp,
}

/// A new member.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CreatedMember {
    #[serde(flatten)]
    pub member: Member,
    /// Null without `invite`, and for a person who returns and has signed in before: the operator makes a link for them.
    pub link: Option<SignInLink>,
}

/// A link that signs a person in, once. A new one ends the one before.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SignInLink {
    /// Returned once; null when the response is repeated for an `Idempotency-Key`.
    pub sign_in_link: Option<String>,
    pub expires_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSignInLink {
    pub account: domain::AccountId,
    pub user_id: UserId,
    /// For how long the link is good: at most 10,080, which is seven days. Default 15.
    pub minutes: Option<Whole<1>>,
    /// The member leaves the login that they have: whoever opens the link has the member in the login of their browser, or in a new one.
    /// Default `false`: a member who has a login keeps that login.
    pub another_login: Option<bool>,
}

/// Nothing is said of an invitation.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Invite {}

/// The caller, in the account of its key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Me {
    pub account: String,
    #[serde(flatten)]
    pub member: Member,
    /// What the key may do: the needs of routes.
    pub may: Vec<String>,
    /// Whom one is in each account that one signs in to alike.
    pub accounts: Vec<MyAccount>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MyAccount {
    pub account: String,
    pub user_id: String,
}

/// A browser that is signed in.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct SignIn {
    pub id: uuid::Uuid,
    /// `link`, `key`, or `oidc:` and the provider's name.
    pub method: String,
    pub created_at: Timestamp,
    /// To ten minutes.
    pub seen_at: Timestamp,
    /// When it ends, if it is not used before.
    pub ends_at: Timestamp,
}

/// Where a browser that is signed in adds an identity to its login.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddIdentity {
    pub url: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOwnKey {
    /// What the key is for, as in `laptop`: shown in the list of keys.
    pub name: ActorName,
    /// What it may do, and never more than its person at that time. Default: what the key that asks may.
    pub role: Option<MemberRole>,
    /// When the key expires; a time in the future. Default: when the key that asks expires, or never. A removed person's keys are
    /// revoked.
    pub expires_at: Option<Timestamp>,
}

/// What a sign-in link gives.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SignedIn {
    pub account: String,
    pub user_id: String,
    pub name: String,
    /// A key of the person's own.
    pub key: CreatedKey,
}
