//! Typed ids. Two plain strings side by side are easily swapped, so every noun has its own type. A value of the type is
//! checked: it needs no escaping in a NATS subject or in a key.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    api_key::{self, is_hex},
    columns::column,
};

/// Why a text is not an id. The text itself is left out: it may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("an account id is 1-63 characters of a-z, 0-9 and -, and begins with a letter or digit")]
    Account,
    #[error("a task id is 1-64 characters of A-Z, a-z, 0-9, _ and -, and begins with a letter or digit")]
    Task,
    #[error("an agent slug is 1-63 characters of a-z, 0-9 and -, and begins with a letter or digit")]
    AgentSlug,
    #[error("a notification id is 1-128 printable characters")]
    Notification,
    #[error("a user id is 1-128 characters of a-z, 0-9, _, . and -, and begins with a letter or digit")]
    User,
    #[error("a persona slug is 1-63 characters of a-z, 0-9 and -, begins with a letter or digit, and is no UUID")]
    PersonaSlug,
    #[error("a handle is 1-63 characters of a-z, 0-9 and -, and begins with a letter or digit")]
    Handle,
    #[error("the name of an event consumer is 1-32 characters of a-z, 0-9 and -, and begins with a letter or digit")]
    EventConsumer,
    #[error("a key id is 16 characters of 0-9 and a-f")]
    Key,
    #[error("not a UUID")]
    Uuid,
}

/// A text id: checked when parsed, compared and stored as written.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $error:ident, $pattern:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(#[schemars(regex(pattern = $pattern))] String);

        impl $name {
            pub fn parse(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(IdError::$error) }
            }
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
        column!($name: text);
    };
}

/// A UUID id, made with version 7 so that keys arrive in time order.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let uuid = Uuid::deserialize(deserializer);
                uuid.map(Self).map_err(|_| serde::de::Error::custom(IdError::Uuid))
            }
        }

        impl $name {
            pub fn parse(text: &str) -> Result<Self, IdError> {
                Uuid::try_parse(text).map(Self).map_err(|_| IdError::Uuid)
            }
            pub fn uuid(self) -> Uuid {
                self.0
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }
        impl From<$name> for Uuid {
            fn from(id: $name) -> Uuid {
                id.0
            }
        }
        column!($name: plain Uuid);
    };
}

fn slug_like(text: &str, length_max: usize, extra: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= length_max
        && bytes[0].is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|&b| b.is_ascii_alphanumeric() || b == b'-' || extra(b))
}

fn lower(text: &str) -> bool {
    !text.bytes().any(|b| b.is_ascii_uppercase())
}

/// A printable character of any script. Invisible characters, and those that reverse others, would make two ids look
/// alike.
fn is_printable(c: char) -> bool {
    !c.is_control() && (c == ' ' || !c.is_whitespace()) && !INVISIBLE.iter().any(|range| range.contains(&c))
}

const INVISIBLE: [RangeInclusive<char>; 6] = [
    '\u{ad}'..='\u{ad}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
];

text_id! {
    /// The tenant. Chosen when the account is made, never changes, and begins every key.
    AccountId, Account, r"^[a-z0-9][a-z0-9-]{0,62}$", |t| slug_like(t, 63, |_| false) && lower(t)
}
impl AccountId {
    /// Not for a new account: an orchestrator's session key has this word where others have the account. An existing
    /// account of this name keeps working.
    pub fn is_reserved(&self) -> bool {
        self.as_str() == "org"
    }
}
text_id! {
    /// A task as its client spelled it. Case is kept for display and ignored in comparison: compare and store
    /// [`TaskId::key`], show the id itself.
    TaskId, Task, r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", |t| slug_like(t, 64, |b| b == b'_')
}
text_id! {
    /// An agent's name, which may change. Keys carry [`AgentId`] instead.
    AgentSlug, AgentSlug, r"^[a-z0-9][a-z0-9-]{0,62}$", |t| slug_like(t, 63, |_| false) && lower(t)
}
text_id! {
    /// A persona's name in requests, which may change. A persona that was removed leaves it free.
    PersonaSlug, PersonaSlug, r"^[a-z0-9][a-z0-9-]{0,62}$",
    |t| slug_like(t, 63, |_| false) && lower(t) && Uuid::try_parse(t).is_err()
}
text_id! {
    /// The publisher's idempotency key, unique in its account.
    NotificationId, Notification,
    r"^[^\x00-\x1f\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb]{1,128}$",
    |t| (1..=128).contains(&t.chars().count()) && t.chars().all(is_printable)
}
impl From<Uuid> for NotificationId {
    fn from(id: Uuid) -> NotificationId {
        NotificationId::parse(&id.to_string()).expect("a UUID is printable and short")
    }
}
text_id! {
    /// A person, as the account's own system names them.
    UserId, User, r"^[a-z0-9][a-z0-9_.-]{0,127}$", |t| slug_like(t, 128, |b| b == b'_' || b == b'.') && lower(t)
}
text_id! {
    /// How an orchestrator is addressed: `@` and this.
    Handle, Handle, r"^[a-z0-9][a-z0-9-]{0,62}$", |t| slug_like(t, Handle::CHARS_MAX, |_| false) && lower(t)
}
impl Handle {
    pub const CHARS_MAX: usize = 63;
}
text_id! {
    /// What an account calls one of its event consumers.
    EventConsumerName, EventConsumer, r"^[a-z0-9][a-z0-9-]{0,31}$", |t| slug_like(t, 32, |_| false) && lower(t)
}
text_id! {
    /// The public part of an API key: identifies it in lists, in logs and as an author.
    KeyId, Key, r"^[0-9a-f]{16}$", |t| is_hex(t, api_key::ID_BYTES)
}
uuid_id! {
    /// An agent; never changes.
    AgentId
}
uuid_id! {
    /// A persona; never changes.
    PersonaId
}
uuid_id! {
    /// A persona's files, as they were once.
    PersonaVersionId
}
uuid_id! {
    /// Mail.
    MailId
}
uuid_id! {
    /// A memory.
    MemoryId
}
uuid_id! {
    /// One generation of one session.
    SessionId
}
uuid_id! {
    /// One run of an agent in a session.
    TurnId
}
uuid_id! {
    /// A hold: what pauses sessions.
    HoldId
}
uuid_id! {
    /// A question, or an approval that is asked for.
    QuestionId
}
uuid_id! {
    /// A timer.
    TimerId
}
uuid_id! {
    /// What is done about work that does not move on.
    RecoveryId
}
uuid_id! {
    /// A rule about tools.
    ToolPolicyId
}
uuid_id! {
    /// A file of a task.
    ArtifactId
}
uuid_id! {
    /// A part of a turn's work that another session does.
    BranchId
}
uuid_id! {
    /// A turn that is run again without effects.
    ReplayId
}
uuid_id! {
    /// A message of a task's thread.
    MessageId
}

impl TaskId {
    /// The form that is compared and stored.
    pub fn key(&self) -> TaskId {
        TaskId(self.0.to_ascii_lowercase())
    }
}

/// How input names a thing: by id or by slug.
macro_rules! reference {
    ($name:ident, $id:ident, $slug:ident) => {
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
        #[serde(untagged)]
        pub enum $name {
            Id($id),
            Slug($slug),
        }

        impl $name {
            /// A text that is a UUID is an id. No slug can be taken for one, since a slug of that form is refused.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                match Uuid::try_parse(text) {
                    Ok(uuid) => Ok(Self::Id($id(uuid))),
                    Err(_) => $slug::parse(text).map(Self::Slug),
                }
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Id(id) => id.fmt(f),
                    Self::Slug(slug) => slug.fmt(f),
                }
            }
        }
    };
}
reference! { AgentRef, AgentId, AgentSlug }
reference! { PersonaRef, PersonaId, PersonaSlug }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses_by_the_published_forms() {
        for good in ["a", "acme", "a-1", "0x", &"a".repeat(63)] {
            assert!(AccountId::parse(good).is_ok(), "{good}");
            assert!(AgentSlug::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a_b", "a.b", "a*", ">", " ", "é", &"a".repeat(64)] {
            assert!(AccountId::parse(bad).is_err(), "{bad}");
            assert!(AgentSlug::parse(bad).is_err(), "{bad}");
        }
        for good in ["PROJ-7", "a_b", "7", &"T".repeat(64)] {
            assert!(TaskId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-", "_a", "a.b", "a b", "a>", &"T".repeat(65)] {
            assert!(TaskId::parse(bad).is_err(), "{bad}");
        }
        for good in [
            "ci-4711",
            "a b",
            "~",
            "a/b?c#d%",
            "Lauf-ü",
            "実行-7",
            &"x".repeat(128),
            &"é".repeat(128),
        ] {
            assert!(NotificationId::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a\n",
            "a\0b",
            "a\u{85}",
            "a\u{202e}b",
            "a\u{200b}",
            "a\u{2028}",
            &"é".repeat(129),
        ] {
            assert!(NotificationId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tasks_compare_without_case() {
        let (upper, lower) = (TaskId::parse("PROJ-7").unwrap(), TaskId::parse("proj-7").unwrap());
        assert_eq!(upper.key(), lower.key());
        assert_eq!(upper.as_str(), "PROJ-7");
    }

    #[test]
    fn an_agent_is_named_by_id_or_slug() {
        assert!(matches!(AgentRef::parse("coder"), Ok(AgentRef::Slug(_))));
        assert!(matches!(
            AgentRef::parse("0190b5a8-0000-7000-8000-000000000001"),
            Ok(AgentRef::Id(_))
        ));
        assert!(AgentRef::parse("No Body").is_err());
    }
}
