//! Tasks: made, assigned and moved by people and services here, moved by agents through the tool-gateway. Ids compare
//! without case and are shown as their client spelled them.

pub mod http;
pub mod store;

use contracts::Timestamp;
use domain::{AgentRef, TaskId, TaskStatus};
use runtime::http::Problem;
use serde::{Deserialize, Serialize};
use storage::entity;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    body::{length_check, text_check},
    error::invalid_field,
    wire::{AgentName, moment, task_status},
};

const TITLE_BYTES_MAX: usize = contracts::notification::TITLE_BYTES_MAX;
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;
const ASSIGNEES_MAX: usize = contracts::notification::AGENTS_MAX;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`; a UUID when absent. Case is kept and does not tell tasks apart.
    pub id: Option<String>,
    pub title: String,
    pub description: Option<String>,
    /// Agents by id or slug.
    pub assignees: Option<Vec<String>>,
}

/// What is asked to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TaskChange {
    /// `completed` is read as `done`. `done`, `cancelled` and `archived` close the task's sessions.
    #[schema(schema_with = task_status)]
    pub status: Option<TaskStatus>,
    pub title: Option<String>,
    pub description: Option<String>,
    /// All of them, by id or slug.
    pub assignees: Option<Vec<String>>,
}

/// What a new task needs, checked.
#[derive(Debug)]
pub struct Checked {
    pub task: TaskId,
    pub status: TaskStatus,
    pub assignees: Vec<AgentRef>,
}

impl NewTask {
    /// `generated` is the id of a task that names none.
    pub fn check(&self, generated: Uuid) -> Result<Checked, Problem> {
        let id = self.id.clone().unwrap_or_else(|| generated.to_string());
        let task = TaskId::parse(&id).map_err(|error| invalid_field("id", error))?;
        text_check("title", &self.title, TITLE_BYTES_MAX)?;
        length_check(
            "description",
            self.description.as_deref().unwrap_or_default(),
            DESCRIPTION_BYTES_MAX,
        )?;
        let assignees = assignees_read(self.assignees.as_deref().unwrap_or_default())?;
        let status = if assignees.is_empty() {
            TaskStatus::Inbox
        } else {
            TaskStatus::Assigned
        };
        Ok(Checked {
            task,
            status,
            assignees,
        })
    }
}

impl TaskChange {
    /// The assignees, when they shall change.
    pub fn check(&self) -> Result<Option<Vec<AgentRef>>, Problem> {
        if let Some(title) = &self.title {
            text_check("title", title, TITLE_BYTES_MAX)?;
        }
        length_check(
            "description",
            self.description.as_deref().unwrap_or_default(),
            DESCRIPTION_BYTES_MAX,
        )?;
        self.assignees.as_deref().map(assignees_read).transpose()
    }
}

fn assignees_read(assignees: &[String]) -> Result<Vec<AgentRef>, Problem> {
    if assignees.len() > ASSIGNEES_MAX {
        return Err(invalid_field("assignees", format_args!("at most {ASSIGNEES_MAX}")));
    }
    assignees
        .iter()
        .map(|agent| AgentRef::parse(agent).map_err(|error| invalid_field("assignees", error)))
        .collect()
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Task {
    /// As its client spelled it.
    pub id: String,
    pub title: String,
    pub description: String,
    #[schema(schema_with = task_status)]
    pub status: String,
    pub assignees: Vec<AgentName>,
    #[schema(schema_with = moment)]
    pub created_at: Timestamp,
    #[schema(schema_with = moment)]
    pub updated_at: Timestamp,
}

impl Task {
    pub fn new(row: entity::task::Model, assignees: Vec<AgentName>) -> Task {
        Task {
            id: row.display_id,
            title: row.title,
            description: row.description,
            status: row.status,
            assignees,
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_task(json: &str) -> Result<Checked, Problem> {
        crate::body::parse::<NewTask>(json.as_bytes()).and_then(|new| new.check(Uuid::nil()))
    }

    #[test]
    fn a_task_without_an_id_gets_one() {
        assert_eq!(
            new_task(r#"{"title": "t"}"#).unwrap().task.as_str(),
            Uuid::nil().to_string()
        );
        assert_eq!(
            new_task(r#"{"title": "t", "id": "PROJ-7"}"#).unwrap().task.as_str(),
            "PROJ-7"
        );
    }

    #[test]
    fn a_task_begins_assigned_when_it_is() {
        assert_eq!(new_task(r#"{"title": "t"}"#).unwrap().status, TaskStatus::Inbox);
        assert_eq!(
            new_task(r#"{"title": "t", "assignees": ["a"]}"#).unwrap().status,
            TaskStatus::Assigned
        );
    }

    #[test]
    fn a_task_has_limits() {
        for bad in [
            r#"{"title": ""}"#.to_owned(),
            r#"{"title": "t", "id": "a b"}"#.to_owned(),
            r#"{"title": "t", "id": "-"}"#.to_owned(),
            r#"{"title": "t", "status": "done"}"#.to_owned(),
            r#"{"title": "t", "assignees": ["No Body"]}"#.to_owned(),
            format!(r#"{{"title": "{}"}}"#, "t".repeat(1025)),
            format!(r#"{{"title": "t", "assignees": [{}"a"]}}"#, "\"a\",".repeat(64)),
        ] {
            assert!(new_task(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn completed_is_read_as_done() {
        let read = |json: &str| crate::body::parse::<TaskChange>(json.as_bytes());
        assert_eq!(
            read(r#"{"status": "completed"}"#).unwrap().status,
            Some(TaskStatus::Done)
        );
        assert!(read(r#"{"status": "finished"}"#).is_err());
    }
}
