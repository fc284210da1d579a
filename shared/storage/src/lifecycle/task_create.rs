//! Creates tasks: by API, or because notifications named them (account setting `auto_create_tasks`). A batch of
//! notifications may name hundreds, so one statement creates all.

use std::collections::HashSet;

use contracts::event::{Event, TaskCreated};
use domain::{AccountId, Actor, TaskId, TaskStatus};
use sea_orm::FromQueryResult;

use crate::{Setting, StorageError, Tx, outbox::Owned, setting::fresh_id, statement::column};

#[derive(Clone, Debug)]
pub struct NewTask<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub title: &'a str,
    pub description: &'a str,
    pub status: TaskStatus,
    /// Its work begins with a plan that somebody approves, whatever the account says.
    pub is_planned: bool,
    pub by: &'a Actor,
}

/// Creates the task; `None` if it exists already, whatever its spelling. Returns the messages for the outbox.
pub async fn task_create(
    tx: &Tx,
    new: &NewTask<'_>,
    setting: &Setting<'_>,
) -> Result<Option<Vec<Owned>>, StorageError> {
    let messages = tasks_create(tx, &[(new.clone(), setting.clone())]).await?;
    Ok(if messages.is_empty() { None } else { Some(messages) })
}

/// Creates the tasks that do not exist yet, whatever their spelling; no task may be named twice. Returns the messages
/// for the outbox. Each task has its own setting, since each follows from a message of its own.
pub async fn tasks_create(tx: &Tx, news: &[(NewTask<'_>, Setting<'_>)]) -> Result<Vec<Owned>, StorageError> {
    // In one order, so that two writers of the same tasks do not deadlock.
    let mut sorted: Vec<_> = news.iter().collect();
    sorted.sort_by_key(|(new, _)| (new.account, new.task.key()));
    let inserted = insert(tx, &sorted).await?;
    let created: Vec<_> = sorted
        .into_iter()
        .filter(|(new, _)| inserted.contains(&(new.account.clone(), new.task.key())))
        .collect();
    if created.is_empty() {
        return Ok(Vec::new());
    }
    activities(tx, &created).await?;
    Ok(created.into_iter().map(|(new, setting)| event(new, setting)).collect())
}

#[derive(FromQueryResult)]
struct Inserted {
    account_id: AccountId,
    id: TaskId,
}

macro_rules! task_insert {
    ($column:literal, $value:literal) => {
        concat!(
            "insert into task (account_id, id, display_id, title, description, status, created_at, updated_at",
            $column,
            ")
             select r.account_id, r.id, r.display_id, r.title, r.description, r.status, r.now, r.now",
            $value,
            " from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[])
                  as r (account_id, id, display_id, title, description, status, now)
             on conflict do nothing
             returning account_id, id"
        )
    };
}
const TASK_INSERT: &str = task_insert!("", "");
/// Apart: not every service may write the column.
const TASK_INSERT_PLANNED: &str = task_insert!(", plan_gate", ", 'required'");

async fn insert(tx: &Tx, news: &[&(NewTask<'_>, Setting<'_>)]) -> Result<HashSet<(AccountId, TaskId)>, StorageError> {
    let values = [
        column(news, |(new, _)| new.account.clone()),
        column(news, |(new, _)| new.task.key()),
        column(news, |(new, _)| new.task.clone()),
        column(news, |(new, _)| new.title.to_owned()),
        column(news, |(new, _)| new.description.to_owned()),
        column(news, |(new, _)| new.status),
        column(news, |(_, setting)| setting.now),
    ];
    // Of one call of a tool: those of a batch are not planned.
    let sql = match news.iter().all(|(new, _)| new.is_planned) {
        true => TASK_INSERT_PLANNED,
        false => TASK_INSERT,
    };
    let rows: Vec<Inserted> = tx.rows("create tasks", sql, values).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.id)).collect())
}

const ACTIVITY_INSERT: &str = "
    insert into activity (account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at)
    select r.account_id, r.id, r.task_id, 'task.created', r.actor_kind, r.actor_id, r.actor_name, r.detail::jsonb, r.now
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[])
         as r (account_id, id, task_id, actor_kind, actor_id, actor_name, detail, now)";

async fn activities(tx: &Tx, created: &[&(NewTask<'_>, Setting<'_>)]) -> Result<(), StorageError> {
    let values = [
        column(created, |(new, _)| new.account.clone()),
        column(created, |_| fresh_id()),
        column(created, |(new, _)| new.task.key()),
        column(created, |(new, _)| new.by.kind),
        column(created, |(new, _)| new.by.id.clone()),
        column(created, |(new, _)| new.by.name.clone()),
        column(created, |(new, _)| {
            serde_json::json!({"title": new.title, "status": new.status}).to_string()
        }),
        column(created, |(_, setting)| setting.now),
    ];
    tx.execute("write activities", ACTIVITY_INSERT, values)
        .await
        .map(|_| ())
}

fn event(new: &NewTask<'_>, setting: &Setting<'_>) -> Owned {
    let created = TaskCreated {
        title: new.title.to_owned(),
        status: new.status,
        by: new.by.clone(),
    };
    setting.event(
        new.account,
        Some(new.task),
        new.task.key().as_str(),
        Event::TaskCreated(created),
    )
}
