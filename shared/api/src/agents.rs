//! Agents: the named workers of an account. The id never changes and is part of every key; the slug may change (S11).

use derive_more::Into;
use domain::{AgentRef, AgentSlug, ContextPolicy, Handle, Rotation, Timestamp, UserId};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use sea_orm::{DbErr, FromQueryResult, QueryResult};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    accounts::{NewRotation, nullable},
    text::{ActorName, Text},
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAgent {
    /// Not a UUID: input names agents by id or by slug.
    pub slug: NewSlug,
    /// The author's name of the agent's messages. A name that resembles Signalbox's own is refused.
    pub name: ActorName,
    /// What the agent is for: part of its instructions in every turn.
    pub role: Option<AgentRole>,
    /// One of the providers in the operator's settings; `default` when absent.
    pub provider: Option<ProviderName>,
    /// Where the context of its turns comes from; the account's policy when absent.
    pub context_policy: Option<ContextPolicy>,
    /// When a generation of its sessions is closed and the next one opened; the account's limits when absent.
    pub rotation: Option<NewRotation>,
}

/// The requested changes; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentChange {
    pub slug: Option<NewSlug>,
    pub name: Option<ActorName>,
    pub role: Option<AgentRole>,
    pub provider: Option<ProviderName>,
    /// Null for the account's policy.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ContextPolicy>")]
    pub context_policy: Option<Option<ContextPolicy>>,
    /// Null for the account's limits. It replaces the limits before it.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NewRotation>")]
    pub rotation: Option<Option<NewRotation>>,
}

pub type AgentRole = Text<0, { 16 * 1024 }>;

/// A slug that does not have the form of an id: otherwise it could be taken for another agent's id.
#[derive(Clone, Debug, Into, Serialize, Deserialize)]
#[into(String)]
#[serde(try_from = "AgentSlug")]
pub struct NewSlug(AgentSlug);

impl TryFrom<AgentSlug> for NewSlug {
    type Error = &'static str;
    fn try_from(slug: AgentSlug) -> Result<Self, Self::Error> {
        match AgentRef::parse(slug.as_str()) {
            Ok(AgentRef::Id(_)) => Err("a UUID is the form of an agent's id"),
            Ok(AgentRef::Slug(_)) | Err(_) => Ok(NewSlug(slug)),
        }
    }
}

impl JsonSchema for NewSlug {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NewSlug".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "allOf": [generator.subschema_for::<AgentSlug>()],
            "not": {"pattern": "^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$"},
        })
    }
}

/// A name in the operator's settings. Only delivery knows whether the provider exists.
#[derive(Clone, Debug, Into, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, !try_from)]
pub struct ProviderName(#[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,63}$"))] String);

impl TryFrom<String> for ProviderName {
    type Error = &'static str;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if (1..=63).contains(&name.len()) && name.bytes().all(is_name) {
            Ok(ProviderName(name))
        } else {
            Err("1-63 characters of A-Z, a-z, 0-9, - and _")
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Agent {
    pub id: Uuid,
    pub slug: String,
    pub name: String,
    pub role: String,
    pub provider: String,
    /// Null: the account's.
    #[schemars(with = "Option<ContextPolicy>")]
    pub context_policy: Option<String>,
    /// Null: the account's.
    #[serde(default)]
    pub rotation: Option<Rotation>,
    pub created_at: Timestamp,
}

/// Whom an account's list of agents has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Listed {
    /// A named worker. Its handle is its slug.
    Worker {
        #[serde(flatten)]
        agent: Agent,
        #[schemars(with = "AgentSlug")]
        handle: String,
    },
    /// An orchestrator that one may write to: one's own, one that answers others, or the account's.
    Orchestrator {
        name: String,
        #[schemars(with = "Handle")]
        handle: String,
        avatar: Option<String>,
        /// Whose it is; null: the account's.
        #[schemars(with = "Option<UserId>")]
        user_id: Option<String>,
    },
}

impl FromQueryResult for Listed {
    fn from_query_result(row: &QueryResult, prefix: &str) -> Result<Self, DbErr> {
        let handle = row.try_get(prefix, "handle")?;
        Ok(match row.try_get::<Option<Uuid>>(prefix, "id")? {
            Some(_) => Listed::Worker {
                agent: Agent::from_query_result(row, prefix)?,
                handle,
            },
            None => Listed::Orchestrator {
                name: row.try_get(prefix, "name")?,
                handle,
                avatar: row.try_get(prefix, "avatar")?,
                user_id: row.try_get(prefix, "user_id")?,
            },
        })
    }
}

/// An agent as other objects refer to it: by its permanent id and its current slug.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct AgentName {
    pub id: Uuid,
    pub slug: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(field: &str, value: &str) -> Result<AgentChange, serde_json::Error> {
        serde_json::from_value(serde_json::json!({ field: value }))
    }

    #[test]
    fn a_slug_is_never_an_id() {
        assert!(change("slug", "coder-2").is_ok());
        for bad in [
            "0190b5a8-0000-7000-8000-000000000001",
            "0190b5a8000070008000000000000001",
            "Coder",
            "",
            "-a",
            "a b",
        ] {
            assert!(change("slug", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_provider_is_a_name_in_the_settings() {
        for good in ["default", "gpt-5", "open_claw"] {
            assert!(change("provider", good).is_ok(), "{good}");
        }
        for bad in ["", "a.b", "http://x", &"a".repeat(64)] {
            assert!(change("provider", bad).is_err(), "{bad}");
        }
    }
}
