//! Accounts: the tenants, and their settings that change the pipeline's behaviour (S6, S14).

use domain::{AccountId, ContextPolicy, InstructionLayout, Liveness, SessionScope, TaskId, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
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
