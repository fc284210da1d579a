//! Personas: files that say how an agent is to be.

use domain::{AgentRef, PersonaFiles, PersonaId, PersonaSlug, PersonaVersionId, PersonaVisibility, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{accounts::nullable, number::Whole, text::Text};

pub type PersonaName = Text<1, 128>;
pub type PersonaDescription = Text<0, 1024>;
pub type PersonaIcon = Text<1, 64>;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPersona {
    /// Unique among the account's personas.
    pub slug: PersonaSlug,
    pub name: PersonaName,
    /// What it is for: agents that choose one read it.
    pub description: Option<PersonaDescription>,
    pub icon: Option<PersonaIcon>,
    /// `private`: for its maker and the admins. Default.
    pub visibility: Option<PersonaVisibility>,
    /// Whether sessions have it for which nobody names one: a shared persona, one in an account. Admins say so.
    #[serde(alias = "isDefault")]
    pub is_default: Option<bool>,
    /// Whether sessions with it have a memory.
    #[serde(alias = "memoryEnabled")]
    pub memory_enabled: Option<bool>,
    /// The agent that works with it, where nobody names an agent.
    pub agent: Option<AgentRef>,
    pub files: PersonaFiles,
}

/// The requested changes; absent fields stay. Files have a route of their own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonaChange {
    pub slug: Option<PersonaSlug>,
    pub name: Option<PersonaName>,
    pub description: Option<PersonaDescription>,
    /// Null for none.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PersonaIcon>")]
    pub icon: Option<Option<PersonaIcon>>,
    pub visibility: Option<PersonaVisibility>,
    #[serde(alias = "isDefault")]
    pub is_default: Option<bool>,
    #[serde(alias = "memoryEnabled")]
    pub memory_enabled: Option<bool>,
    /// Null for none.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AgentRef>")]
    pub agent: Option<Option<AgentRef>>,
}

/// All files of the next version: a file that is absent is not in it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPersonaFiles {
    pub files: PersonaFiles,
    /// The number of the version that was changed. If it is not the newest one, nothing is written.
    #[serde(alias = "baseVersion")]
    pub base_version: Option<Whole<1>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Persona {
    pub id: PersonaId,
    pub slug: String,
    pub name: String,
    pub description: String,
    pub icon: Option<String>,
    #[schemars(with = "PersonaVisibility")]
    pub visibility: String,
    pub is_default: bool,
    pub memory_enabled: bool,
    /// The slug of an agent.
    pub agent: Option<String>,
    pub version: PersonaVersionName,
    /// The newest version's, in their order. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ShownPersonaFile>>")]
    pub files: Option<Value>,
    /// The id of the member or key that made it.
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A file, as it is written: a place is always there.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ShownPersonaFile {
    pub filename: String,
    pub sort_order: u8,
    pub content: String,
}

/// A version, without its files.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PersonaVersionName {
    pub id: PersonaVersionId,
    /// 1 for the first.
    pub number: i32,
    /// SHA-256 of the files, in hexadecimal.
    pub hash: String,
}

/// A version. Its files never change.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PersonaVersion {
    #[serde(flatten)]
    pub version: PersonaVersionName,
    /// Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ShownPersonaFile>>")]
    pub files: Option<Value>,
    /// The id of the member or key that wrote it.
    pub created_by: String,
    pub created_at: Timestamp,
}
