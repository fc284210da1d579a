//! A task comes to be: by API, or because a notification named it (account setting `auto_create_tasks`).

use contracts::event::{Event, TaskCreated};
use domain::{AccountId, Actor, TaskId, TaskStatus};
use sea_orm::ConnectionTrait;

use super::{Setting, task_status::activity};
use crate::{StorageError, Tx, error::Attempt, outbox::Owned, statement};

#[derive(Clone, Debug)]
pub struct NewTask<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub title: &'a str,
    pub description: &'a str,
    pub status: TaskStatus,
    pub by: &'a Actor,
}

const TASK_INSERT: &str = "
    insert into task (account_id, id, display_id, title, description, status, created_at, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $7) on conflict do nothing";

/// Creates the task; `None` when it is there already, whatever its spelling. Gives the messages for the outbox.
pub async fn task_create(
    tx: &Tx,
    new: &NewTask<'_>,
    setting: &Setting<'_>,
) -> Result<Option<Vec<Owned>>, StorageError> {
    let values = [
        new.account.as_str().into(),
        new.task.key().as_str().into(),
        new.task.as_str().into(),
        new.title.into(),
        new.description.into(),
        new.status.as_str().into(),
        setting.now.into(),
    ];
    let inserted = tx
        .execute_raw(statement(TASK_INSERT, values))
        .await
        .attempt("create task")?;
    if inserted.rows_affected() == 0 {
        return Ok(None);
    }
    let detail = serde_json::json!({"title": new.title, "status": new.status});
    activity(tx, new.account, new.task, "task.created", new.by, detail, setting.now).await?;
    let created = TaskCreated {
        title: new.title.to_owned(),
        status: new.status,
        by: new.by.clone(),
    };
    Ok(Some(vec![setting.event(
        new.account,
        Some(new.task),
        new.task.key().as_str(),
        Event::TaskCreated(created),
    )]))
}
