//! Review stages: a task that its agent calls done passes each of them before it is done. A move to `done` with a stage not passed
//! is caught: the task is in review, and the first such stage asks.
//!
//! | the review ends with | then |
//! |---|---|
//! | `approved` | the stage is passed; the next one asks, or after the last the task is done, and its sessions close |
//! | `changes` | `in_progress`, and the agents that work on the task are told; the next `done` opens the same stage |
//! | a withdrawal | nothing: the next `done` opens the same stage |
//!
//! A task that has ended and is opened again passes all of them again.
//!
//! Lock order: task, sessions, the question. `task.stages` counts the stages: a task without any has no statement when it is done.

use contracts::{
    event::{Event, TaskChanged, TaskPart},
    notification::NotificationMessage,
};
use domain::{
    AccountId, Actor, AgentId, Audience, Conversation, QuestionId, QueueLimits, SessionScope, TaskId, TaskStatus,
    Verdict,
};
use sea_orm::{FromQueryResult, Value};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    dependencies::unless_blocked,
    task_status::{TaskMove, TaskNotMoved, status_write, task_lock_row, task_status_set},
};
use crate::{
    Setting, StorageError, Tx,
    activity::activity_insert,
    outbox::Owned,
    question::{About, Choices, Ending, NewQuestion, QuestionRow, question_open},
    session::{
        item_enter::{NewEntry, item_enter},
        sessions_lock::conversations_lock,
    },
    setting::fresh_id,
    statement::column,
};

/// The type of items about reviews.
pub(super) const REVIEW: &str = "review";
/// Stages of a task.
pub const STAGES_MAX: usize = 8;

/// What a review sends back reaches its agents, whatever else waits.
const LIMITS: QueueLimits = QueueLimits {
    hops_max: u16::MAX,
    items_max: u32::MAX,
};

/// A stage, in the order of its ordinal.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct StageRow {
    pub name: String,
    pub audience: Vec<String>,
    pub passed_at: Option<OffsetDateTime>,
    /// The review that passed it, or that is open.
    pub question: Option<Uuid>,
}

/// A stage that asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caught {
    pub stage: String,
    pub question: QuestionId,
}

/// Why stages were not set.
#[derive(Debug)]
pub enum StagesNotSet {
    NotThere,
    /// A stage asks.
    Open(Caught),
}

/// Relies on the primary key.
pub const STAGES_OF: &str = "
    select name, audience, passed_at, question from task_stage where account_id = $1 and task_id = $2
    order by account_id, task_id, ordinal";

/// The stages of a task, in their order.
pub async fn stages_of(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Vec<StageRow>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.rows("read stages", STAGES_OF, values).await
}

#[derive(FromQueryResult)]
struct OpenRow {
    id: QuestionId,
    stage: Option<String>,
}

/// Relies on question_of_task: the kind is compared in a form that question_decision does not serve.
pub const REVIEW_OPEN: &str = "
    select id, stage from question where account_id = $1 and task_id = $2 and state = 'open' and coalesce(kind = 'review', false)";

async fn review_find(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<Caught>, StorageError> {
    let values = [account.into(), task.key().into()];
    let row: Option<OpenRow> = tx.one("find open review", REVIEW_OPEN, values).await?;
    Ok(row.map(|row| Caught {
        stage: row.stage.unwrap_or_default(),
        question: row.id,
    }))
}

const STAGES_DELETE: &str = "delete from task_stage where account_id = $1 and task_id = $2";
const STAGES_INSERT: &str = "
    insert into task_stage (account_id, task_id, ordinal, name, audience, passed_at, question)
    select $1, $2, s.ordinal, s.name, string_to_array(s.audience, ' '), nullif(s.passed_at, 'epoch'::timestamptz), nullif(s.question, '00000000-0000-0000-0000-000000000000')
    from unnest($3::integer[], $4::text[], $5::text[], $6::timestamptz[], $7::uuid[]) as s (ordinal, name, audience, passed_at, question)";
const STAGES_COUNT: &str = "update task set stages = $3 where account_id = $1 and id = $2";
/// Relies on the primary key.
const STAGES_AGAIN: &str = "
    update task_stage set passed_at = null, question = null where account_id = $1 and task_id = $2 and passed_at is not null";

/// A task is opened again: no stage is passed. The caller holds the task's lock.
pub(super) async fn stages_again(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<(), StorageError> {
    let values = [account.into(), task.key().into()];
    tx.execute("open stages again", STAGES_AGAIN, values).await.map(|_| ())
}

/// Gives a task these stages, in this order. A stage that was passed stays passed, if its name and its audience stay.
pub async fn stages_set(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    stages: &[(String, Vec<Audience>)],
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, StagesNotSet>, StorageError> {
    let Some(row) = task_lock_row(tx, account, task).await? else {
        return Ok(Err(StagesNotSet::NotThere));
    };
    if let Some(open) = review_find(tx, account, task).await? {
        return Ok(Err(StagesNotSet::Open(open)));
    }
    let before = stages_of(tx, account, task).await?;
    let values = || [Value::from(account), task.key().into()];
    tx.execute("replace stages", STAGES_DELETE, values()).await?;
    // An audience has no spaces.
    let audience = |asked: &[Audience]| asked.iter().map(Audience::to_string).collect::<Vec<_>>().join(" ");
    let was = |(name, asked): &(String, Vec<Audience>)| {
        let stays = |stage: &&StageRow| stage.name == *name && stage.audience.join(" ") == audience(asked);
        before.iter().find(stays)
    };
    let rows: Vec<(i32, &(String, Vec<Audience>))> = (1..).zip(stages).collect();
    let more = [
        column(&rows, |(ordinal, _)| *ordinal),
        column(&rows, |(_, stage)| stage.0.clone()),
        column(&rows, |(_, stage)| audience(&stage.1)),
        column(&rows, |(_, stage)| {
            was(stage)
                .and_then(|was| was.passed_at)
                .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        }),
        column(&rows, |(_, stage)| {
            was(stage).and_then(|was| was.question).unwrap_or_default()
        }),
    ];
    tx.execute("replace stages", STAGES_INSERT, values().into_iter().chain(more))
        .await?;
    let count = i32::try_from(stages.len()).expect("a task has few stages");
    tx.execute("count stages", STAGES_COUNT, values().into_iter().chain([count.into()]))
        .await?;
    let names: Vec<&str> = stages.iter().map(|stage| stage.0.as_str()).collect();
    let detail = match names.is_empty() {
        true => "no stages".to_owned(),
        false => names.join(", "),
    };
    let told = changed(tx, (account, &row.display_id), TaskPart::Stages, by, detail, setting).await?;
    Ok(Ok(vec![told]))
}

pub(super) async fn changed(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    what: TaskPart,
    by: &Actor,
    detail: String,
    setting: &Setting<'_>,
) -> Result<Owned, StorageError> {
    let activity = json!({"what": what, "detail": detail});
    let id = activity_insert(tx, (account, task), "task.changed", by, activity, setting.now).await?;
    let data = TaskChanged {
        what,
        by: by.clone(),
        detail,
    };
    Ok(setting.event(account, Some(task), &id.to_string(), Event::TaskChanged(data)))
}

const REVIEW_RENEW: &str = "update question set work_until = $3 where account_id = $1 and id = $2 and state = 'open'";

/// The first stage that is not passed asks, or is asking already. The caller holds the task's lock.
pub(super) async fn stage_open(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Option<(Caught, Vec<Owned>)>, StorageError> {
    if let Some(open) = review_find(tx, account, task).await? {
        // What is called done again is what is reviewed from now on.
        let values = [account.into(), open.question.into(), setting.now.into()];
        tx.execute("renew review", REVIEW_RENEW, values).await?;
        return Ok(Some((open, Vec::new())));
    }
    let stages = stages_of(tx, account, task).await?;
    let Some(stage) = stages.into_iter().find(|stage| stage.passed_at.is_none()) else {
        return Ok(None);
    };
    let mut audience: Vec<Audience> = stage.audience.iter().filter_map(|text| text.parse().ok()).collect();
    if audience.is_empty() {
        audience.push(Audience::DEFAULT);
    }
    let title = format!("Review of {task}: {}", stage.name);
    let question = NewQuestion {
        account,
        about: About::Review {
            stage: &stage.name,
            work_until: setting.now,
        },
        task: Some(task),
        asker: None,
        from: by,
        title: &title,
        body: "The work on the task is called done. Approve it, or say what to change.",
        options: Choices::default(),
        multiple: false,
        free_text: true,
        audience,
        lapse_at: None,
        chain: 0,
    };
    let (question, messages) = question_open(tx, &question, setting).await?;
    let caught = Caught {
        stage: stage.name,
        question,
    };
    Ok(Some((caught, messages)))
}

/// Whether a turn of an assignee on the task has begun since, and ended: among the newest turns of the sessions in which the task is
/// worked on. Relies on the primary keys, turn_number and the indexes of `sessions_on`.
pub const WORKED_SINCE: &str = concat!(
    "select true from task k cross join lateral ",
    crate::sessions_on!(),
    " e cross join lateral (
        select t.task_id, t.started_at, t.finished_at from turn t where t.account_id = e.account_id and t.session_id = e.id
        order by t.number desc limit 200) t
     cross join lateral (
        select from task_assignee a where a.account_id = k.account_id and a.task_id = k.id and a.agent_id = e.agent_id offset 0) a
     where k.account_id = $1 and k.id = $2 and t.task_id = k.id and t.started_at > $3 and t.finished_at is not null limit 1"
);

/// Whether the work has gone on since its review was opened: a newer turn has ended.
pub async fn review_is_stale(tx: &Tx, account: &AccountId, row: &QuestionRow) -> Result<bool, StorageError> {
    let (Some(task), Some(until)) = (&row.task, row.work_until) else {
        return Ok(false);
    };
    let values = [account.into(), task.key().into(), until.into()];
    tx.exists("look for newer turns", WORKED_SINCE, values).await
}

const STAGE_PASS: &str = "
    update task_stage set passed_at = $4, question = $5 where account_id = $1 and task_id = $2 and name = $3 and passed_at is null";

#[derive(FromQueryResult)]
struct AssigneeRow {
    agent_id: AgentId,
}

const ASSIGNEES: &str = "
    select ta.agent_id from task_assignee ta where ta.account_id = $1 and ta.task_id = $2 order by ta.agent_id";

/// What the end of a review does. The caller holds the task's lock.
pub(crate) async fn stage_end(
    tx: &Tx,
    account: &AccountId,
    row: &QuestionRow,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let (Some(task), Some(stage), Ending::Answered { by, verdict, answer }) = (&row.task, &row.stage, ending) else {
        return Ok(Vec::new());
    };
    let Some(now) = task_lock_row(tx, account, task).await? else {
        return Ok(Vec::new());
    };
    let mut messages = Vec::new();
    if *verdict != Some(Verdict::Approved) {
        let detail = format!("{stage}: changes");
        messages.push(changed(tx, (account, task), TaskPart::Stage, by, detail, setting).await?);
        let to = unless_blocked(tx, (account, task), TaskStatus::InProgress).await?;
        let to = (now.status, to);
        messages.extend(status_write(tx, (account, task), to, (by, None), setting).await?);
        let text = answer.text.as_deref().unwrap_or_default();
        messages.extend(send_back(tx, account, (row, task, stage), (by, text), setting).await?);
        return Ok(messages);
    }
    let key = || [Value::from(account), task.key().into()];
    let more: [Value; 3] = [stage.as_str().into(), setting.now.into(), row.id.into()];
    tx.execute("pass stage", STAGE_PASS, key().into_iter().chain(more))
        .await?;
    let detail = format!("{stage}: approved");
    messages.push(changed(tx, (account, task), TaskPart::Stage, by, detail, setting).await?);
    // The next stage asks, or the task is done.
    let asked = TaskMove {
        account,
        task,
        to: TaskStatus::Done,
        by,
        reason: None,
        turn: None,
        passes_stages: false,
    };
    match Box::pin(task_status_set(tx, &asked, setting)).await? {
        Ok(moved) => messages.extend(moved.messages),
        Err(TaskNotMoved::NotThere | TaskNotMoved::AwaitsAnswer(_)) => {}
        // Whoever frees it is told, and calls it done again.
        Err(TaskNotMoved::BlockedBy(_)) => {
            let to = (now.status, TaskStatus::Blocked);
            messages.extend(status_write(tx, (account, task), to, (by, None), setting).await?);
        }
    }
    Ok(messages)
}

/// Tells the assignees what to change.
async fn send_back(
    tx: &Tx,
    account: &AccountId,
    (row, task, stage): (&QuestionRow, &TaskId, &str),
    (by, text): (&Actor, &str),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [account.into(), task.key().into()];
    let agents: Vec<AssigneeRow> = tx.rows("read assignees", ASSIGNEES, values).await?;
    let conversations: Vec<Conversation> = agents
        .iter()
        .map(|row| Conversation::of(account, SessionScope::Task, Some(task), row.agent_id))
        .collect();
    conversations_lock(tx, &conversations.iter().collect::<Vec<_>>()).await?;
    let mut messages = Vec::new();
    for conversation in &conversations {
        let id = fresh_id().into();
        let title = format!("Changes are wanted: {stage}");
        let body = format!("{} reviewed the work and wants changes:\n{text}\n", by.called());
        let message = NotificationMessage::new(REVIEW, by.clone(), title, body)
            .with("reopen", false)
            .with("question_id", row.id.to_string());
        let entry = NewEntry {
            id: &id,
            task: Some(task),
            message,
        };
        let (_, more) = item_enter(tx, conversation, entry, &LIMITS, setting).await?;
        messages.extend(more);
    }
    Ok(messages)
}
