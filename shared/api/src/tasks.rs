//! Tasks. Ids are compared without case and shown as their client spelled them.

use contracts::notification::{AGENTS_MAX, TITLE_BYTES_MAX};
use domain::{AgentRef, ContextNeed, PersonaRef, QuestionId, TaskId, TaskStatus, Timestamp, board::BLOCKERS_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    accounts::nullable,
    agents::AgentName,
    next::Next,
    questions::{PlanGate, StoredPlanGate},
    text::Text,
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// A UUID when absent. Case is kept and does not tell tasks apart.
    pub id: Option<TaskId>,
    pub title: Title,
    pub description: Option<Description>,
    pub assignees: Option<Assignees>,
    /// Whether calls that hand its work on need its context: `required` when absent.
    pub task_context: Option<ContextNeed>,
    /// What sessions have that are opened for it. One that the caller may use.
    #[serde(alias = "personaSlug")]
    pub persona: Option<PersonaRef>,
    /// The task that it is a part of.
    #[serde(alias = "parentTask", alias = "parent_task_id", alias = "parentTaskId")]
    pub parent_task: Option<TaskId>,
    /// The tasks that have to be done first.
    #[serde(alias = "blockedBy")]
    pub blocked_by: Option<Blockers>,
}

/// Tasks that have to be done before another one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<TaskId>")]
#[schemars(inline, !try_from)]
pub struct Blockers(#[schemars(length(max = BLOCKERS_MAX))] pub Vec<TaskId>);

impl TryFrom<Vec<TaskId>> for Blockers {
    type Error = String;
    fn try_from(tasks: Vec<TaskId>) -> Result<Self, String> {
        if tasks.len() > BLOCKERS_MAX {
            Err(format!("at most {BLOCKERS_MAX}"))
        } else {
            Ok(Blockers(tasks))
        }
    }
}

/// A task for an orchestrator's board.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBoardTask {
    pub title: Title,
    pub description: Option<Description>,
    /// The session that works on it: one of the board's. It is told.
    #[serde(alias = "sessionId")]
    pub session_id: Option<SessionName>,
    /// The task of the board that it is a part of; the session's when absent.
    #[serde(alias = "parentTaskId", alias = "parent_task", alias = "parentTask")]
    pub parent_task_id: Option<TaskId>,
    /// The tasks of the board that have to be done first.
    #[serde(alias = "blockedBy")]
    pub blocked_by: Option<Blockers>,
    /// `required`: the work begins with a plan that somebody approves.
    #[serde(alias = "planGate")]
    pub plan_gate: Option<RequiredPlan>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequiredPlan {
    Required,
}

/// Changes of a task on a board; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BoardTaskChange {
    /// A task that waits for others is moved to `blocked`, `cancelled` and `archived` alone.
    pub status: Option<TaskStatus>,
    /// With status `blocked`: who moves it on, and how.
    #[serde(alias = "blockedOn")]
    pub blocked_on: Option<Blocked>,
    /// What came of it.
    pub result: Option<TaskResult>,
    /// All tasks of the board that have to be done first.
    #[serde(alias = "blockedBy")]
    pub blocked_by: Option<Blockers>,
    /// The session that works on it; null for none.
    #[serde(
        default,
        alias = "sessionId",
        deserialize_with = "nullable",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<SessionName>")]
    pub session_id: Option<Option<SessionName>>,
}

/// The id of a session, or the key of any of its generations.
pub type SessionName = Text<1, 384>;
pub type TaskResult = Text<0, { 16 * 1024 }>;

/// The requested changes; absent fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskChange {
    /// `done`, `cancelled` and `archived` close the task's sessions. `completed` is read as `done`.
    pub status: Option<TaskStatus>,
    /// With status `blocked`: who moves it on, and how. If absent, the caller, unless something else moves it on.
    pub blocked_on: Option<Blocked>,
    pub title: Option<Title>,
    pub description: Option<Description>,
    /// The complete list of assignees.
    pub assignees: Option<Assignees>,
    /// Whether the work begins with a plan that somebody approves; null: as the account says.
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PlanGate>")]
    pub plan_gate: Option<Option<PlanGate>>,
    /// Whether calls that hand its work on need its context.
    pub task_context: Option<ContextNeed>,
    /// For sessions that are opened from now on; null for none.
    #[serde(
        default,
        alias = "personaSlug",
        deserialize_with = "nullable",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<PersonaRef>")]
    pub persona: Option<Option<PersonaRef>>,
    /// The task that it is a part of; null for none.
    #[serde(
        default,
        alias = "parentTask",
        alias = "parent_task_id",
        alias = "parentTaskId",
        deserialize_with = "nullable",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<TaskId>")]
    pub parent_task: Option<Option<TaskId>>,
    /// All tasks that have to be done first. It is `blocked` until they are, if nobody works on it yet; and goes on by itself then.
    #[serde(alias = "blockedBy")]
    pub blocked_by: Option<Blockers>,
    /// With `done`: pass over the review stages that are not passed. Admins only; it is on record.
    #[serde(rename = "override")]
    pub overrides: Option<bool>,
    /// Only say what would follow: the answer has the changed task and the effect of the status, and nothing is changed.
    pub dry_run: Option<bool>,
}

/// Cancels a task: its sessions close, all notifications that wait are cancelled, and its turns in progress are ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// And the tasks below it that have not ended.
    pub tree: Option<bool>,
    pub reason: Option<Reason>,
    /// Only say what would follow; nothing is changed.
    pub dry_run: Option<bool>,
}

pub type Reason = Text<0, 1024>;

/// Gives a task from one agent to another, with all that waits for the first: its session closes and its turn in progress is ended.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Handover {
    /// The agent that has the task, by id or slug.
    pub from: AgentRef,
    /// The agent that gets it.
    pub to: AgentRef,
    /// Only say what would follow; nothing is changed.
    pub dry_run: Option<bool>,
}

/// The effect of a status or a handover on the task's sessions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StatusEffect {
    /// Turns in progress that are ended.
    pub turns: usize,
    /// Notifications that waited, by their outcome.
    pub items: Outcomes,
    /// Sessions that close.
    pub sessions: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Outcomes {
    pub cancelled: usize,
    /// They wait in the next generation, or stay where they are; after a handover they wait for the other agent.
    pub carried: usize,
}

pub type Title = Text<1, TITLE_BYTES_MAX>;
pub type Description = Text<0, { 64 * 1024 }>;

/// Agents by id or slug.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<AgentRef>")]
#[schemars(inline, !try_from)]
pub struct Assignees(#[schemars(length(max = AGENTS_MAX))] pub Vec<AgentRef>);

impl TryFrom<Vec<AgentRef>> for Assignees {
    type Error = String;
    fn try_from(agents: Vec<AgentRef>) -> Result<Self, String> {
        if agents.len() > AGENTS_MAX {
            Err(format!("at most {AGENTS_MAX}"))
        } else {
            Ok(Assignees(agents))
        }
    }
}

/// Who moves a task on while it is blocked, and what that person or agent has to do.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Blocked {
    /// `user:ID`, `agent:SLUG`, `role:member` or `role:admin`.
    pub owner: Text<1, 140>,
    pub action: Text<1, 1024>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// As its client spelled it.
    pub id: String,
    pub title: String,
    pub description: String,
    #[schemars(with = "TaskStatus")]
    pub status: String,
    pub assignees: Vec<AgentName>,
    /// Null: as the account says.
    #[serde(default)]
    pub plan_gate: Option<StoredPlanGate>,
    /// Whether calls that hand its work on need its context, and are refused while it has none.
    #[serde(default)]
    #[schemars(with = "ContextNeed")]
    pub task_context: String,
    /// The slug of the persona that a person named for it.
    #[serde(default)]
    pub persona: Option<String>,
    /// On whose orchestrator's board it is: `user:{user}`, or `account`. Null: on none.
    #[serde(default)]
    pub board: Option<String>,
    /// The task that it is a part of.
    #[serde(default)]
    pub parent_task: Option<String>,
    /// The tasks that have to be done first.
    #[serde(default)]
    pub blocked_by: Vec<BlockedBy>,
    /// The session that it was given to, as the key of its first generation. Null: it has none but its own.
    #[serde(default)]
    pub worker_session: Option<String>,
    /// What came of it.
    #[serde(default)]
    pub result: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// What moves it next. Absent from answers to changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Next>,
    /// Who moves it on while it is blocked.
    #[serde(default)]
    pub blocked: Option<Blocked>,
    /// Only in answers to a cancel, to a handover and to a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affected: Option<StatusEffect>,
    /// Only in the answer to a change to `done`: a review stage asks first, and the task is in review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caught: Option<CaughtBy>,
}

/// A task that has to be done before another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BlockedBy {
    pub id: String,
    #[schemars(with = "TaskStatus")]
    pub status: String,
    /// It was done: what becomes of it later changes nothing.
    pub satisfied: bool,
}

/// The review stage that asks before a task is done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CaughtBy {
    pub stage: String,
    pub question_id: QuestionId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_limits() {
        let read = |json: &str| serde_json::from_str::<NewTask>(json);
        assert_eq!(
            read(r#"{"title": "t", "id": "PROJ-7"}"#).unwrap().id.unwrap().as_str(),
            "PROJ-7"
        );
        for bad in [
            r#"{"title": ""}"#.to_owned(),
            r#"{"title": "t", "id": "a b"}"#.to_owned(),
            r#"{"title": "t", "id": "-"}"#.to_owned(),
            r#"{"title": "t", "status": "done"}"#.to_owned(),
            r#"{"title": "t", "assignees": ["No Body"]}"#.to_owned(),
            format!(r#"{{"title": "{}"}}"#, "t".repeat(1025)),
            format!(r#"{{"title": "t", "assignees": [{}"a"]}}"#, "\"a\",".repeat(64)),
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn completed_is_read_as_done() {
        let read = |json: &str| serde_json::from_str::<TaskChange>(json);
        assert_eq!(
            read(r#"{"status": "completed"}"#).unwrap().status,
            Some(TaskStatus::Done)
        );
        assert!(read(r#"{"status": "finished"}"#).is_err());
    }
}
