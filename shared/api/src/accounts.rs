//! Accounts: the tenants, and their settings that change the pipeline's behaviour (S6, S14).

use domain::{
    AccountId, AgentId, AgentRef, ContextPolicy, InstructionLayout, Liveness, Rotation, SessionScope, TaskContextLayer,
    TaskId, Timestamp,
};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    agents::ProviderName,
    number::Whole,
    questions::{PlanGate, StoredPlanGate},
    text::{Name, Text},
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAccount {
    /// Never changes. `org` is reserved.
    pub id: AccountId,
    pub name: Name,
}

/// The requested changes; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccountChange {
    pub name: Option<Name>,
    /// `task`: a session for each task of an agent. `agent`: one session for all of an agent's work.
    pub session_scope: Option<SessionScope>,
    /// `inline` puts the instructions in front of the input, for providers without a field for them.
    pub instruction_layout: Option<InstructionLayout>,
    /// Whether a notification for an unknown task creates it.
    pub auto_create_tasks: Option<bool>,
    /// The task whose thread is the coordinator's chat; null for none.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TaskId>")]
    pub coordinator_task: Option<Option<TaskId>>,
    /// What the coordinator is told about the account in every turn.
    pub briefing: Option<Text<0, { 64 * 1024 }>>,
    /// Concurrent turns of this account; null for the operator's limit.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Whole<1>>")]
    pub turns_in_flight_max: Option<Option<Whole<1>>>,
    /// What is done about a task that an agent has and that nothing moves on. `watch`: a person is told. `recover`: its agent is
    /// told once, then a person.
    pub liveness: Option<Liveness>,
    /// Whether the work on a task begins with a plan that somebody approves, where the task says nothing else.
    pub plan_gate: Option<PlanGate>,
    /// Where the context of turns comes from, where the agent says nothing else: `continue` the provider's thread while it has one, or
    /// `assembled` from the record in every turn.
    pub context_policy: Option<ContextPolicy>,
    /// When a generation of a session is closed and the next one opened, where the agent says nothing else. It replaces the limits
    /// before it.
    pub rotation: Option<NewRotation>,
    /// In which turns the context of a task is part of the instructions: those of `branches`, or `always`.
    pub task_context_layer: Option<TaskContextLayer>,
    /// The agent of sessions that orchestrators create without naming one; null: the only one, if there is one.
    #[serde(
        default,
        alias = "defaultAgent",
        deserialize_with = "nullable",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<AgentRef>")]
    pub default_agent: Option<Option<AgentRef>>,
    /// The provider of the account's orchestrators, from their next turns on; null: the default one.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ProviderName>")]
    pub orchestrator_provider: Option<Option<ProviderName>>,
    /// Whether admins see what people and their orchestrators say to each other. Default `true`.
    #[serde(alias = "orchestratorsVisibleToAdmins")]
    pub orchestrators_visible_to_admins: Option<bool>,
}

/// Limits of a generation. An absent limit has its default; null: none.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewRotation {
    /// So many turns in a row failed, or have an unknown outcome. Default 3.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Whole<1>>")]
    pub failures_max: Option<Option<Whole<1>>>,
    /// Tokens of its turns, as the provider counts. Default 1,000,000.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Whole<1>>")]
    pub tokens_max: Option<Option<Whole<1>>>,
    /// Hours since it was opened. Default: none.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Whole<1>>")]
    pub age_hours_max: Option<Option<Whole<1>>>,
    /// Whether other instructions than those of its last turn end it. Default `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_changed: Option<bool>,
}

impl NewRotation {
    /// As it is stored: the limits that were named.
    pub fn stored(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("numbers serialise")
    }
}

/// For a field whose null differs from its absence.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// An account with its settings.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Account {
    pub id: String,
    pub name: String,
    #[schemars(with = "SessionScope")]
    pub session_scope: String,
    #[schemars(with = "InstructionLayout")]
    pub instruction_layout: String,
    pub auto_create_tasks: bool,
    pub coordinator_task: Option<String>,
    pub briefing: String,
    pub turns_in_flight_max: Option<i32>,
    #[schemars(with = "Liveness")]
    pub liveness: String,
    #[sea_orm(nested(prefix = "plan_"))]
    pub plan_gate: StoredPlanGate,
    #[schemars(with = "ContextPolicy")]
    pub context_policy: String,
    #[schemars(with = "TaskContextLayer")]
    pub task_context_layer: String,
    #[serde(default)]
    pub rotation: Rotation,
    /// The id of an agent.
    pub default_agent: Option<AgentId>,
    pub orchestrator_provider: Option<String>,
    pub orchestrators_visible_to_admins: bool,
    pub created_at: Timestamp,
}

/// An account in the operator's list, which spans accounts and so has only these fields.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct AccountEntry {
    pub id: String,
    pub name: String,
    pub created_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_limits() {
        let check = |json: &str, good: bool| {
            assert_eq!(serde_json::from_str::<AccountChange>(json).is_ok(), good, "{json}");
        };
        check("{}", true);
        check(r#"{"coordinator_task": null, "turns_in_flight_max": null}"#, true);
        check(r#"{"coordinator_task": "HQ", "turns_in_flight_max": 1}"#, true);
        check(r#"{"turns_in_flight_max": 3.0}"#, true);
        check(r#"{"turns_in_flight_max": 3.5}"#, false);
        check(r#"{"turns_in_flight_max": 2147483648}"#, false);
        check(r#"{"turns_in_flight_max": 0}"#, false);
        check(r#"{"session_scope": "team"}"#, false);
        check(r#"{"name": " "}"#, false);
        check(r#"{"coordinator_task": "no task"}"#, false);
        check(
            r#"{"rotation": {"failures_max": null, "tokens_max": 1, "profile_changed": true}}"#,
            true,
        );
        for bad in ["0", "-1", "2.5", "\"3\"", "1e300"] {
            check(&format!(r#"{{"rotation": {{"failures_max": {bad}}}}}"#), false);
        }
        check(r#"{"rotation": {"tokens": 5}}"#, false);
    }

    #[test]
    fn a_stored_rotation_has_what_was_named() {
        let check = |json: &str, stored: &str, read: Rotation| {
            let change: AccountChange = serde_json::from_str(json).unwrap();
            let kept = change.rotation.unwrap().stored();
            assert_eq!(kept.to_string(), stored);
            assert_eq!(serde_json::from_value::<Rotation>(kept).unwrap(), read);
        };
        check(r#"{"rotation": {}}"#, "{}", Rotation::default());
        let named = Rotation {
            failures_max: None,
            tokens_max: Some(5),
            ..Rotation::default()
        };
        let json = r#"{"rotation": {"failures_max": null, "tokens_max": 5.0}}"#;
        check(json, r#"{"failures_max":null,"tokens_max":5}"#, named);
    }

    #[test]
    fn null_and_absent_differ_where_it_matters() {
        let read = |json: &str| serde_json::from_str::<AccountChange>(json).unwrap();
        assert_eq!(read("{}").turns_in_flight_max, None);
        assert_eq!(read(r#"{"turns_in_flight_max": null}"#).turns_in_flight_max, Some(None));
        let one = Whole::try_from(1.0).unwrap();
        let change = read(r#"{"turns_in_flight_max": 1}"#);
        assert_eq!(change.turns_in_flight_max, Some(Some(one)));
        // A body that a client writes is read back unchanged.
        let written = serde_json::to_string(&change).unwrap();
        assert_eq!(read(&written).turns_in_flight_max, Some(Some(one)));
        assert_eq!(read(&written).coordinator_task, None);
    }
}
