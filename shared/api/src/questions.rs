//! Questions: what people, agents and rules are asked and answer once. Plans that await approval are questions.

use contracts::tools::BODY_BYTES_MAX;
use domain::{Actor, QuestionKind, QuestionState, Timestamp, Verdict, question};
use schemars::JsonSchema;
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::text::Text;

/// Options of one answer.
const CHOSEN_MAX: usize = 20;

/// An answer: a verdict on a plan or a tool call, or options and text for a question.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAnswer {
    /// For kind `plan`: `approved`, `changes` with what to change in `text`, or `denied`. For kind `tool`: `approved` or `denied`. For kind
    /// `review`: `approved`, or `changes` with what to change in `text`. Not for kind `question`.
    pub verdict: Option<Verdict>,
    /// Ids of options.
    pub options: Option<Chosen>,
    pub text: Option<AnswerText>,
    /// To approve a tool call: the `arguments_hash` of the question, as read. So what is approved is what was shown.
    pub arguments_hash: Option<Text<1, 64>>,
    /// For kind `review`: also if the agent went on working after the review was opened.
    pub accept_stale: Option<bool>,
    /// With an approved tool call: later calls of this tool by this agent on this task run without a question, while the tool has the
    /// same schema.
    pub remember: Option<bool>,
}

pub type AnswerText = Text<0, BODY_BYTES_MAX>;

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>")]
#[schemars(inline, !try_from)]
pub struct Chosen(#[schemars(length(max = CHOSEN_MAX))] pub Vec<String>);

impl TryFrom<Vec<String>> for Chosen {
    type Error = String;
    fn try_from(options: Vec<String>) -> Result<Self, String> {
        if options.len() > CHOSEN_MAX {
            return Err(format!("at most {CHOSEN_MAX}"));
        }
        Ok(Chosen(options))
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Withdrawal {
    /// For whoever asked.
    pub reason: Option<Text<0, 1024>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    pub id: String,
    pub label: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Choices(pub Vec<Choice>);

impl TryGetableFromJson for Choices {}

/// What was answered besides the verdict.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Answered {
    #[serde(default)]
    pub options: Vec<String>,
    #[serde(default)]
    pub text: Option<String>,
}

impl TryGetableFromJson for Answered {}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Question {
    pub id: Uuid,
    #[schemars(with = "QuestionKind")]
    pub kind: String,
    #[schemars(with = "QuestionState")]
    pub state: String,
    /// As its client spelled it.
    pub task: Option<String>,
    pub session_id: Option<Uuid>,
    /// The agent that asks, or whose work is asked about.
    pub agent_id: Option<Uuid>,
    /// The slug of that agent.
    pub agent: Option<String>,
    pub turn_id: Option<Uuid>,
    pub title: String,
    pub body: String,
    pub options: Choices,
    /// More than one option may be chosen.
    pub multiple: bool,
    /// A text may be given instead of an option, or beside it.
    pub free_text: bool,
    /// Who is asked: `role:member`, `role:admin`, `user:{id}`, `agent:{id}`, `orchestrator:{user}`, `orchestrator:org`,
    /// `rule:{id}`. Admins may always answer.
    pub audience: Vec<String>,
    /// For kind `tool`: the tool, the arguments of its call, and the SHA-256 of both with a line feed between, in hexadecimal.
    pub tool: Option<String>,
    pub arguments: Option<String>,
    pub arguments_hash: Option<String>,
    /// For kind `review`: the stage.
    pub stage: Option<String>,
    /// For kind `plan`: the number of the task's plan, from 1.
    pub plan_revision: Option<i32>,
    pub created_at: Timestamp,
    /// When it ends without an answer.
    pub lapse_at: Option<Timestamp>,
    #[schemars(with = "Option<Verdict>")]
    pub verdict: Option<String>,
    pub answer: Option<Answered>,
    /// Who answered or withdrew it.
    #[sea_orm(nested(prefix = "ended_by_"))]
    pub ended_by: Option<Actor>,
    pub ended_at: Option<Timestamp>,
    pub reason: Option<String>,
    /// The notification that told the asker.
    pub notification_id: Option<String>,
    /// Sessions that start no turn until it is answered, at most 1,000.
    pub held_up: i64,
    /// The caller may answer it.
    #[sea_orm(skip)]
    #[serde(default)]
    pub may_answer: bool,
}

/// Whether the work on a task begins with a plan that somebody approves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanGate {
    pub mode: PlanMode,
    /// Who approves plans: as in a question. `role:member` if absent.
    pub audience: Option<Audience>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanMode {
    Off,
    /// Until a plan is approved, tools that write are refused.
    Required,
}

impl PlanMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Required => "required",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>")]
#[schemars(inline, !try_from)]
pub struct Audience(
    #[schemars(length(min = 1, max = question::AUDIENCES_MAX), inner(regex(pattern = domain::Audience::PATTERN)))]
    pub  Vec<String>,
);

impl TryFrom<Vec<String>> for Audience {
    type Error = String;
    fn try_from(named: Vec<String>) -> Result<Self, String> {
        if named.is_empty() || named.len() > question::AUDIENCES_MAX {
            return Err(format!("1 to {} entries", question::AUDIENCES_MAX));
        }
        for one in &named {
            one.parse::<domain::Audience>()
                .map_err(|error| format!("an entry {error}"))?;
        }
        Ok(Audience(named))
    }
}

/// A plan gate, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct StoredPlanGate {
    #[schemars(with = "PlanMode")]
    #[sea_orm(from_alias = "gate")]
    pub mode: String,
    /// Null: `role:member`.
    pub audience: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_gate_names_who_approves() {
        let check = |json: &str, good: bool| {
            assert_eq!(serde_json::from_str::<PlanGate>(json).is_ok(), good, "{json}");
        };
        check(r#"{"mode": "off"}"#, true);
        check(r#"{"mode": "required", "audience": ["role:admin", "user:ann"]}"#, true);
        check(r#"{"mode": "required", "audience": []}"#, false);
        check(r#"{"mode": "required", "audience": ["ann"]}"#, false);
        check(r#"{"mode": "maybe"}"#, false);
    }
}
