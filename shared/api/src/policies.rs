//! Tool policies: which tools agents see, and which calls run, wait for a person or are refused.

use domain::{Actor, PolicyScope, PolicyVerdict, Timestamp, ToolPolicyId};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

use crate::{number::Whole, questions::Audience, text::Text};

/// A rule about tools. The narrowest rule decides, a scope before a name: `account`, `agent`, `task`, `session`; then the longer
/// name. `deny` decides wherever it stands.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToolPolicy {
    pub scope: PolicyScopeName,
    pub tool: ToolNames,
    /// Whether agents are offered the tool, from their next turn on. If absent, a wider rule decides.
    pub visible: Option<bool>,
    /// What becomes of a call: it runs, it waits until a person has approved it, or it is refused. If absent, a wider rule
    /// decides.
    pub verdict: Option<PolicyVerdict>,
    /// With `ask`: who approves calls, of `user:{id}`, `role:member` and `role:admin`. `role:member` if absent.
    pub audience: Option<Audience>,
}

/// What a rule says from now on. What is absent is no longer said.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolPolicyChange {
    /// The rule's, as last read.
    pub revision: Whole<0>,
    pub visible: Option<bool>,
    pub verdict: Option<PolicyVerdict>,
    pub audience: Option<Audience>,
}

/// Where a rule holds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyScopeName {
    /// `task_agent` is made by an approval that is remembered, and cannot be asked for.
    pub kind: PolicyScope,
    /// The id of the account, agent, task or session; for an agent also its slug.
    pub id: Text<1, 128>,
}

/// A tool's name, `*` for every tool, or the beginning of names and `*`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, !try_from)]
pub struct ToolNames(#[schemars(regex(pattern = r"^([A-Za-z0-9_.:/-]{1,127}\*?|\*)$"))] String);

impl ToolNames {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ToolNames {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let beginning = text.strip_suffix('*').unwrap_or(&text);
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b);
        match !text.is_empty() && beginning.len() <= 127 && beginning.bytes().all(is_plain) {
            true => Ok(ToolNames(text)),
            false => Err("not the name of a tool, `*`, or the beginning of names and `*`".to_owned()),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct ToolPolicy {
    pub id: ToolPolicyId,
    #[sea_orm(nested(prefix = "scope_"))]
    pub scope: PolicyScopeShown,
    pub tool: String,
    /// Null: a wider rule decides.
    pub visible: Option<bool>,
    /// Null: a wider rule decides.
    #[schemars(with = "Option<PolicyVerdict>")]
    pub verdict: Option<String>,
    /// Who approves calls. Null: `role:member`.
    pub audience: Option<Vec<String>>,
    /// It holds only while the tool's schema is the one that was approved.
    pub of_schema: bool,
    pub revision: i32,
    /// Who made it or changed it last.
    #[sea_orm(nested(prefix = "by_"))]
    pub by: Actor,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct PolicyScopeShown {
    #[schemars(with = "PolicyScope")]
    pub kind: String,
    /// As it is compared: tasks in lower case; of `task_agent` the task, a slash and the agent.
    pub id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_names_tools() {
        let check = |text: &str, expected: bool| {
            let read = serde_json::from_value::<ToolNames>(text.into());
            assert_eq!(read.is_ok(), expected, "{text}");
        };
        check("*", true);
        check("task_*", true);
        check("task_status", true);
        check("mcp/github.create-issue", true);
        check(&"x".repeat(127), true);
        check(&format!("{}*", "x".repeat(127)), true);
        check(&"x".repeat(128), false);
        check("", false);
        check("**", false);
        check("task_*us", false);
        check("task status", false);
        check("tâche", false);
    }
}
