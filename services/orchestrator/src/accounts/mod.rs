//! Accounts: the tenants, and their choices that change what the pipeline does (S6, S14). Made by the operator.

pub mod http;
pub mod store;

use contracts::Timestamp;
use domain::{InstructionLayout, SessionScope, TaskId};
use runtime::http::Problem;
use serde::{Deserialize, Serialize};
use storage::entity;
use utoipa::ToSchema;

use crate::{
    body::{length_check, nullable, text_check},
    error::invalid_field,
    wire::{instruction_layout, moment, session_scope},
};

pub const NAME_BYTES_MAX: usize = 128;
/// Part of the coordinator's every prompt.
const BRIEFING_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAccount {
    /// `^[a-z0-9][a-z0-9-]{0,62}$`; never changes.
    pub id: String,
    pub name: String,
}

/// What is asked to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccountChange {
    pub name: Option<String>,
    /// `task`: a session for each task of an agent. `agent`: one session for all of an agent's work.
    #[schema(schema_with = session_scope)]
    pub session_scope: Option<SessionScope>,
    /// `inline` puts the instructions in front of the input, for providers without a field for them.
    #[schema(schema_with = instruction_layout)]
    pub instruction_layout: Option<InstructionLayout>,
    /// Whether a notification for a task that is not there makes it.
    pub auto_create_tasks: Option<bool>,
    /// The task whose thread is the coordinator's chat; null for none.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub coordinator_task: Option<Option<TaskId>>,
    /// What the coordinator is told of the account in every turn.
    pub briefing: Option<String>,
    /// Turns of this account at one time; null for the operator's limit.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<i32>, minimum = 1)]
    pub turns_in_flight_max: Option<Option<i32>>,
}

impl AccountChange {
    pub fn check(&self) -> Result<(), Problem> {
        if let Some(name) = &self.name {
            text_check("name", name, NAME_BYTES_MAX)?;
        }
        if let Some(briefing) = &self.briefing {
            length_check("briefing", briefing, BRIEFING_BYTES_MAX)?;
        }
        match self.turns_in_flight_max {
            Some(Some(..=0)) => Err(invalid_field("turns_in_flight_max", "at least 1, or null")),
            Some(Some(_) | None) | None => Ok(()),
        }
    }
}

/// An account with its choices.
#[derive(Debug, Serialize, ToSchema)]
pub struct Account {
    pub id: String,
    pub name: String,
    #[schema(schema_with = session_scope)]
    pub session_scope: String,
    #[schema(schema_with = instruction_layout)]
    pub instruction_layout: String,
    pub auto_create_tasks: bool,
    #[schema(required)]
    pub coordinator_task: Option<String>,
    pub briefing: String,
    #[schema(required)]
    pub turns_in_flight_max: Option<i32>,
    #[schema(schema_with = moment)]
    pub created_at: Timestamp,
}

impl From<entity::account::Model> for Account {
    fn from(row: entity::account::Model) -> Self {
        Account {
            id: row.id,
            name: row.name,
            session_scope: row.session_scope,
            instruction_layout: row.instruction_layout,
            auto_create_tasks: row.auto_create_tasks,
            coordinator_task: row.coordinator_task,
            briefing: row.briefing,
            turns_in_flight_max: row.turns_in_flight_max,
            created_at: row.created_at.into(),
        }
    }
}

/// An account in the operator's list, which crosses accounts and so has no more than this.
#[derive(Debug, Serialize, ToSchema)]
pub struct AccountEntry {
    pub id: String,
    pub name: String,
    #[schema(schema_with = moment)]
    pub created_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_limits() {
        let check = |json: &str, good: bool| {
            let read = crate::body::parse::<AccountChange>(json.as_bytes()).and_then(|change| change.check());
            assert_eq!(read.is_ok(), good, "{json}");
        };
        check("{}", true);
        check(r#"{"coordinator_task": null, "turns_in_flight_max": null}"#, true);
        check(r#"{"coordinator_task": "HQ", "turns_in_flight_max": 1}"#, true);
        check(r#"{"turns_in_flight_max": 0}"#, false);
        check(r#"{"session_scope": "team"}"#, false);
        check(r#"{"name": " "}"#, false);
        check(r#"{"coordinator_task": "no task"}"#, false);
    }
}
