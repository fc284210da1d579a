//! Agents: the named workers of an account. The id never changes and stands in every key; the slug may change (S11).

pub mod http;
pub mod store;

use contracts::Timestamp;
use domain::{AgentRef, AgentSlug, NotTheirs, is_reserved};
use runtime::http::Problem;
use serde::{Deserialize, Serialize};
use storage::entity;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    accounts::NAME_BYTES_MAX,
    body::{length_check, text_check},
    error::invalid_field,
    wire::moment,
};

/// Part of the agent's instructions in every turn.
const ROLE_BYTES_MAX: usize = 16 * 1024;
pub const PROVIDER_DEFAULT: &str = "default";

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAgent {
    /// `^[a-z0-9][a-z0-9-]{0,62}$`, and not a UUID: input names agents by id or by slug.
    pub slug: String,
    pub name: String,
    /// What the agent is for: part of its instructions.
    pub role: Option<String>,
    /// One of the providers in the operator's settings; `default` when absent.
    pub provider: Option<String>,
}

/// What is asked to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentChange {
    pub slug: Option<String>,
    pub name: Option<String>,
    pub role: Option<String>,
    pub provider: Option<String>,
}

impl NewAgent {
    pub fn check(&self) -> Result<AgentSlug, Problem> {
        name_check(&self.name)?;
        role_check(self.role.as_deref())?;
        provider_check(self.provider.as_deref())?;
        slug_read(&self.slug)
    }
}

impl AgentChange {
    pub fn check(&self) -> Result<Option<AgentSlug>, Problem> {
        if let Some(name) = &self.name {
            name_check(name)?;
        }
        role_check(self.role.as_deref())?;
        provider_check(self.provider.as_deref())?;
        self.slug.as_deref().map(slug_read).transpose()
    }
}

/// It stands as the author of what the agent says, to people and to other agents.
fn name_check(name: &str) -> Result<(), Problem> {
    text_check("name", name, NAME_BYTES_MAX)?;
    if is_reserved(name) {
        return Err(invalid_field("name", NotTheirs::Reserved));
    }
    Ok(())
}

/// A slug that reads as an id would name another agent than it seems to.
fn slug_read(text: &str) -> Result<AgentSlug, Problem> {
    match AgentRef::parse(text) {
        Ok(AgentRef::Slug(slug)) => Ok(slug),
        Ok(AgentRef::Id(_)) => Err(invalid_field("slug", "a UUID is the form of an agent's id")),
        Err(error) => Err(invalid_field("slug", error)),
    }
}

fn role_check(role: Option<&str>) -> Result<(), Problem> {
    role.map_or(Ok(()), |role| length_check("role", role, ROLE_BYTES_MAX))
}

/// The names of the operator's settings. Whether there is such a provider, delivery knows.
fn provider_check(provider: Option<&str>) -> Result<(), Problem> {
    let fits = |name: &str| {
        (1..=63).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    match provider {
        Some(name) if !fits(name) => Err(invalid_field("provider", "1-63 characters of A-Z, a-z, 0-9, - and _")),
        Some(_) | None => Ok(()),
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Agent {
    pub id: Uuid,
    pub slug: String,
    pub name: String,
    pub role: String,
    pub provider: String,
    #[schema(schema_with = moment)]
    pub created_at: Timestamp,
}

impl From<entity::agent::Model> for Agent {
    fn from(row: entity::agent::Model) -> Self {
        Agent {
            id: row.id,
            slug: row.slug,
            name: row.name,
            role: row.role,
            provider: row.provider,
            created_at: row.created_at.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_no_name_that_looks_like_ours() {
        let change = |name: &str| AgentChange {
            name: Some(name.to_owned()),
            ..AgentChange::default()
        };
        assert!(change("Coder").check().is_ok());
        assert_eq!(change("\u{41e}perator").check().unwrap_err().code(), "invalid_field");
    }

    #[test]
    fn a_slug_is_never_an_id() {
        assert!(slug_read("coder-2").is_ok());
        for bad in [
            "0190b5a8-0000-7000-8000-000000000001",
            "0190b5a8000070008000000000000001",
            "Coder",
            "",
            "-a",
            "a b",
        ] {
            assert!(slug_read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_provider_is_a_name_in_the_settings() {
        for good in ["default", "gpt-5", "open_claw"] {
            assert!(provider_check(Some(good)).is_ok(), "{good}");
        }
        for bad in ["", "a.b", "http://x", &"a".repeat(64)] {
            assert!(provider_check(Some(bad)).is_err(), "{bad}");
        }
    }
}
