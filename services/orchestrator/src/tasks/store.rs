//! Every query on tasks and their assignees. `storage::lifecycle` moves tasks, since a move may close sessions.

use std::collections::HashMap;

use api::{agents::AgentName, questions::PlanGate};
use domain::{AccountId, AgentId, Audience, ContextNeed, PersonaId, TaskId};
use sea_orm::{EntityTrait, FromQueryResult, QuerySelect, sea_query::LockType};
use storage::{
    StorageError, Tx,
    entity::task::{Entity, Model},
    error::Attempt,
};
use time::OffsetDateTime;

use crate::paging::{Column, Listing, Order};

pub async fn task_find(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<Model>, StorageError> {
    Entity::find_by_id((account.to_string(), String::from(task.key())))
        .one(&**tx)
        .await
        .attempt("find task")
}

/// The task, locked until the transaction ends. `for no key update`: rows that refer to the task can be inserted meanwhile.
pub async fn task_lock(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<Model>, StorageError> {
    Entity::find_by_id((account.to_string(), String::from(task.key())))
        .lock(LockType::NoKeyUpdate)
        .one(&**tx)
        .await
        .attempt("lock task")
}

/// Relies on task_newest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, display_id, title, description, status, blocked_owner, blocked_action, created_at, updated_at,
            plan_gate, plan_audience, task_context, persona_id, persona_by, board, result
        from task where account_id = $1",
    order: &[("created_at", Column::Time), ("id", Column::Text)],
    begins: Order::NewestFirst,
    wanted: Some("$2::text is null or status = $2"),
    bytes: BYTES,
    names: ("", ""),
};

const BYTES: &str = "octet_length(title) + octet_length(description) + coalesce(octet_length(blocked_action), 0) + coalesce(octet_length(result), 0)";

/// A board's. Relies on task_board_newest.
pub const ON_BOARD: Listing = Listing {
    rows: "select account_id, id, display_id, title, description, status, blocked_owner, blocked_action, created_at, updated_at,
            plan_gate, plan_audience, task_context, persona_id, persona_by, board, result
        from task where account_id = $1 and board = $2",
    wanted: Some("$3::text is null or status = $3"),
    ..LIST
};

/// Those of a session: its own, and those that it was given. Relies on the primary key and task_worker.
pub const OF_SESSION: Listing = Listing {
    rows: "select account_id, id, display_id, title, description, status, blocked_owner, blocked_action, created_at, updated_at,
            plan_gate, plan_audience, task_context, persona_id, persona_by, board, result
        from (
            select * from task where account_id = $1 and id = $2
            union all
            select * from task where account_id = $1 and worker_task_id = $2 and worker_agent_id = $3) task
        where account_id = $1",
    wanted: Some("$4::text is null or status = $4"),
    ..LIST
};

/// Where a task stands among others.
#[derive(Debug, FromQueryResult)]
pub struct PlaceRow {
    pub task_id: String,
    pub parent_task: Option<String>,
    pub worker_task: Option<TaskId>,
    pub worker_agent: Option<AgentId>,
    pub blocked_by: serde_json::Value,
}

/// Relies on primary keys.
pub const PLACES: &str = concat!(
    "select t.id as task_id, p.display_id as parent_task, w.display_id as worker_task, t.worker_agent_id as worker_agent, ",
    storage::blocked_by!(),
    " as blocked_by
     from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
     cross join lateral (select * from task t where t.account_id = f.account_id and t.id = f.id offset 0) t
     left join lateral (select * from task p where p.account_id = t.account_id and p.id = t.parent_task_id offset 0) p on true
     left join lateral (select * from task w where w.account_id = t.account_id and w.id = t.worker_task_id offset 0) w on true"
);

/// By task key.
pub async fn places_of(
    tx: &Tx,
    account: &AccountId,
    tasks: Vec<String>,
) -> Result<HashMap<String, PlaceRow>, StorageError> {
    let rows: Vec<PlaceRow> = tx
        .rows("read places of tasks", PLACES, [account.into(), tasks.into()])
        .await?;
    Ok(rows.into_iter().map(|row| (row.task_id.clone(), row)).collect())
}

#[derive(FromQueryResult)]
struct AssigneeRow {
    task_id: String,
    #[sea_orm(nested)]
    agent: AgentName,
}

/// Removed agents are not listed as assignees.
const ASSIGNEES: &str = "
    select t.task_id, a.id, a.slug
    from task_assignee t join agent a on a.account_id = t.account_id and a.id = t.agent_id
    where t.account_id = $1 and t.task_id = any($2::text[]) and a.removed_at is null
    order by a.slug";

/// Live assignees of these tasks, by task key.
pub async fn assignees_of(
    tx: &Tx,
    account: &AccountId,
    tasks: Vec<String>,
) -> Result<HashMap<String, Vec<AgentName>>, StorageError> {
    let rows: Vec<AssigneeRow> = tx
        .rows("read assignees", ASSIGNEES, [account.into(), tasks.into()])
        .await?;
    let mut of_task: HashMap<String, Vec<AgentName>> = HashMap::new();
    for row in rows {
        of_task.entry(row.task_id).or_default().push(row.agent);
    }
    Ok(of_task)
}

const TASK_CHANGE: &str = "
    update task set title = coalesce($3, title), description = coalesce($4, description), updated_at = $5
    where account_id = $1 and id = $2";

/// Changes the given fields, and the time of the last change.
pub async fn task_change(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    (title, description): (Option<String>, Option<String>),
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let values = [
        account.into(),
        task.key().into(),
        title.into(),
        description.into(),
        now.into(),
    ];
    tx.execute("change task", TASK_CHANGE, values).await.map(|_| ())
}

const CONTEXT_NEED: &str = "update task set task_context = $3 where account_id = $1 and id = $2";

/// The caller changes the task's time.
pub async fn context_need_set(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    need: ContextNeed,
) -> Result<(), StorageError> {
    let values = [account.into(), task.key().into(), need.into()];
    tx.execute("set context need", CONTEXT_NEED, values).await.map(|_| ())
}

const PERSONA: &str =
    "update task set persona_id = $3, persona_by = $4, persona_from = null where account_id = $1 and id = $2";

/// For the generations that open from now on. The caller changes the task's time.
pub async fn persona_set(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    (persona, by): (Option<PersonaId>, &str),
) -> Result<(), StorageError> {
    let values = [account.into(), task.key().into(), persona.into(), by.into()];
    tx.execute("set the persona of a task", PERSONA, values).await.map(drop)
}

/// Relies on primary keys.
const PLAN_REQUIRED: &str = "
    select coalesce(case when t.plan_gate is null then a.plan_audience else t.plan_audience end, $3) as audience
    from task t join account a on a.id = t.account_id
    where t.account_id = $1 and t.id = $2 and coalesce(t.plan_gate, a.plan_gate) = 'required'";

#[derive(FromQueryResult)]
struct Required {
    audience: Vec<String>,
}

/// Who decides on the plan that the task requires; none: it requires none.
pub async fn plan_required_of(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
) -> Result<Option<Vec<String>>, StorageError> {
    let values = [
        account.into(),
        task.key().into(),
        vec![Audience::DEFAULT.to_string()].into(),
    ];
    let found: Option<Required> = tx.one("read plan gate", PLAN_REQUIRED, values).await?;
    Ok(found.map(|required| required.audience))
}

/// Whoever turns the gate off opens the tools, whatever became of a plan.
const PLAN_GATE: &str = "
    update task set plan_gate = $3, plan_audience = $4, updated_at = $5,
        plan_submitted = plan_submitted and coalesce($3, 'required') <> 'off' where account_id = $1 and id = $2";

/// None: as the account says.
pub async fn plan_gate_set(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    gate: Option<&PlanGate>,
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let audience = gate
        .and_then(|gate| gate.audience.as_ref())
        .map(|audience| audience.0.clone());
    let values = [
        account.into(),
        task.key().into(),
        gate.map(|gate| gate.mode.as_str().to_owned()).into(),
        audience.into(),
        now.into(),
    ];
    tx.execute("set plan gate", PLAN_GATE, values).await.map(|_| ())
}

const UNASSIGN: &str = "
    delete from task_assignee where account_id = $1 and task_id = $2 and not agent_id = any($3::uuid[])";
const ASSIGN: &str = "
    insert into task_assignee (account_id, task_id, agent_id)
    select $1, $2, agents.id from unnest($3::uuid[]) as agents (id) on conflict do nothing";

/// Replaces the task's assignees.
pub async fn assignees_replace(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    agents: &[AgentId],
) -> Result<(), StorageError> {
    for sql in [UNASSIGN, ASSIGN] {
        let values = [account.into(), task.key().into(), agents.to_vec().into()];
        tx.execute("assign task", sql, values).await?;
    }
    Ok(())
}
