//! What tasks wait for, and what is below what (O10). A blocker that is done frees whoever waits for it in the transaction of its move; one
//! that ends otherwise frees nobody, and whoever waits is told once.
//!
//! Order of locks: the account's graph ([`graph_lock`]), for what changes the graph; then all tasks of a change at once
//! ([`super::task_status::tasks_lock`]): the task, those that wait for it, and those that it is to wait for. Whoever is freed is counted by
//! a statement after the locks.

use contracts::{
    event::{Event, TaskPart, TaskStatusChanged, TaskUnblocked},
    notification::NotificationMessage,
};
use domain::{
    AccountId, Actor, AgentId, NotificationId, Owner, TaskId, TaskStatus,
    board::{BLOCKERS_MAX, PARENTS_MAX, ring},
};
use sea_orm::FromQueryResult;
use uuid::Uuid;

use super::{
    child_mail::orchestrator_told,
    stage::changed,
    task_context::CONTEXT_COPY,
    task_status::{STATUS_CHANGED, Written, status_write, tasks_lock},
};
use crate::{Setting, StorageError, Tx, activity::activities_insert, outbox::Owned, setting::fresh_id};

/// The types of items that tell of it.
const UNBLOCKED: &str = "task_unblocked";
const ENDED: &str = "dependency_ended";
const ADDED: &str = "dependency_added";
const ASSIGNED: &str = "task_assigned";

/// Why a task was not placed so. The caller undoes its transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotPlaced {
    /// There is no such task, or it is on another board.
    NotThere(TaskId),
    /// Too many tasks would block it.
    TooMany,
    /// It would wait for itself: the way, `A → B → A`.
    Cycle(String),
    /// Too many tasks would wait for this one.
    Crowded(TaskId),
    /// It would wait for too many tasks, one through the other.
    TooFar,
    /// Too many tasks would be above one.
    TooDeep,
    /// The board has as many open tasks as it may.
    Full,
}

impl NotPlaced {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotThere(_) => "task_not_found",
            Self::TooMany => "too_many_blockers",
            Self::Cycle(_) => "dependency_cycle",
            Self::Crowded(_) => "too_many_waiting",
            Self::TooFar => "too_many_dependencies",
            Self::TooDeep => "too_deep",
            Self::Full => "board_limit",
        }
    }

    /// What is wrong, and what to do.
    pub fn message(&self) -> String {
        match self {
            Self::NotThere(task) => format!("there is no task {task} here: leave it out, or name another one"),
            Self::TooMany => {
                format!(
                    "a task waits for at most {BLOCKERS_MAX} others: put some of them below one task, and wait for that"
                )
            }
            Self::Cycle(way) => format!("the task would wait for itself: {way}. Leave one of these out"),
            Self::Crowded(task) => format!(
                "{WAITING_MAX} tasks wait for task {task} already: put some of them below one task, and let that wait"
            ),
            Self::TooFar => format!(
                "the task would wait for {REACHED_MAX} dependencies, one through the other: end some of the tasks, or leave one out"
            ),
            Self::TooDeep => format!("at most {PARENTS_MAX} tasks are above one: put it higher up"),
            Self::Full => format!(
                "{} tasks of the board are open: end some first",
                domain::board::OPEN_MAX
            ),
        }
    }
}

/// Tasks that wait for one: what frees them is one transaction.
const WAITING_MAX: i64 = 1_000;
/// Dependencies that are followed to find a ring.
const REACHED_MAX: usize = 10_000;

const GRAPH_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('graph of ' || $1, 0))::text as locked";

/// Changes of an account's graph go one after the other. Before any lock of a task.
pub async fn graph_lock(tx: &Tx, account: &AccountId) -> Result<(), StorageError> {
    tx.execute("lock graph of tasks", GRAPH_LOCK, [account.into()])
        .await
        .map(drop)
}

/// SQL of the tasks that a task (alias `t`) waits for, or has waited for, as JSON. Relies on primary keys.
#[macro_export]
macro_rules! blocked_by {
    () => {
        "(select coalesce(jsonb_agg(jsonb_build_object('id', b.display_id, 'status', b.status, 'satisfied', d.satisfied_at is not null)
                                    order by b.id), '[]')
          from (select * from task_dependency d where d.account_id = t.account_id and d.task_id = t.id offset 0) d
          cross join lateral (select * from task b where b.account_id = d.account_id and b.id = d.blocked_by_task_id offset 0) b)"
    };
}

#[derive(Debug, FromQueryResult)]
struct BlockerRow {
    display_id: TaskId,
}

/// Relies on primary keys.
pub const BLOCKERS_OPEN: &str = "
    select b.display_id from (
        select * from task_dependency d where d.account_id = $1 and d.task_id = $2 and d.satisfied_at is null offset 0) d
    cross join lateral (select * from task b where b.account_id = d.account_id and b.id = d.blocked_by_task_id offset 0) b
    order by b.id";

/// What the task waits for. The caller holds the task's lock, without which no edge is added.
pub(super) async fn blockers_open(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Vec<TaskId>, StorageError> {
    let values = [account.into(), task.key().into()];
    let rows: Vec<BlockerRow> = tx.rows("read blockers", BLOCKERS_OPEN, values).await?;
    Ok(rows.into_iter().map(|row| row.display_id).collect())
}

/// Where a task goes on whose plan or review is decided: not into work while it waits for another one.
pub(super) async fn unless_blocked(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    to: TaskStatus,
) -> Result<TaskStatus, StorageError> {
    let waits = !to.is_free_of_blockers() && !blockers_open(tx, account, task).await?.is_empty();
    Ok(if waits { TaskStatus::Blocked } else { to })
}

/// Sets a column of what waits for a blocker. Relies on task_dependency_blocker, whose order is requested with the blocker as a range: a
/// single value is no order. Nobody else changes these edges: who does holds the blocker's lock.
macro_rules! waiting_set {
    ($column:literal) => {
        concat!(
            "update task_dependency d set ",
            $column,
            " = $3
             from (
                select o.ctid as place from task_dependency o
                where o.account_id = $1 and o.blocked_by_task_id >= $2 and o.blocked_by_task_id <= $2 and o.satisfied_at is null and o.",
            $column,
            " is null
                order by o.blocked_by_task_id offset 0) w
             where d.ctid = w.place
             returning d.task_id"
        )
    };
}
pub const SATISFY: &str = waiting_set!("satisfied_at");
pub const END: &str = waiting_set!("ended_at");

#[derive(FromQueryResult)]
struct WaitingRow {
    task_id: TaskId,
}

/// A task that waits for others, and whom it concerns.
#[derive(Debug, FromQueryResult)]
struct Dependent {
    display_id: TaskId,
    title: String,
    status: TaskStatus,
    board: Option<Owner>,
    /// The conversation that works on it, unless its own task has ended.
    worker_task: Option<TaskId>,
    worker_agent: Option<AgentId>,
    assignees: Vec<AgentId>,
    /// For another task.
    waits: bool,
    /// Blocked by hand, or by a question or a timer.
    is_held: bool,
}

/// Relies on primary keys, question_of_task and timer_of_task.
pub const DEPENDENTS: &str = "
    select t.display_id, t.title, t.status, t.board, w.display_id as worker_task, t.worker_agent_id as worker_agent,
           array(select ta.agent_id from task_assignee ta where ta.account_id = t.account_id and ta.task_id = t.id order by ta.agent_id) as assignees,
           exists (select from task_dependency d where d.account_id = t.account_id and d.task_id = t.id and d.satisfied_at is null offset 0) as waits,
           t.blocked_owner is not null
               or exists (select from question q where q.account_id = t.account_id and q.task_id = t.id and q.state = 'open' offset 0)
               or exists (select from timer r where r.account_id = t.account_id and r.task_id = t.id and r.state = 'waiting' offset 0) as is_held
    from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
    cross join lateral (select * from task t where t.account_id = f.account_id and t.id = f.id offset 0) t
    left join lateral (select * from task w where w.account_id = t.account_id and w.id = t.worker_task_id offset 0) w
        on w.status not in ('done', 'cancelled', 'archived')
    order by t.id";

/// What follows for those that wait for the task, which has just come to this status. The caller holds the task's lock.
pub(super) async fn dependents_follow(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    to: TaskStatus,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Written, StorageError> {
    let mut written = Written::default();
    let sql = match to {
        TaskStatus::Done => SATISFY,
        to if to.is_dead_end() => END,
        _ => return Ok(written),
    };
    let values = [account.into(), task.key().into(), setting.now.into()];
    let waiting: Vec<WaitingRow> = tx.rows("end dependencies", sql, values).await?;
    if waiting.is_empty() {
        return Ok(written);
    }
    let ids: Vec<TaskId> = waiting.into_iter().map(|row| row.task_id).collect();
    // Held already, but for an edge that was made while the caller waited for its lock.
    tasks_lock(tx, account, task, &ids).await?;
    let waiting = dependents(tx, account, ids).await?;
    if to == TaskStatus::Done {
        free(tx, account, (&waiting, Some(task)), by, (setting, &mut written)).await?;
        return Ok(written);
    }
    for dependent in waiting.iter().filter(|waiting| !waiting.status.is_terminal()) {
        let told = ended(tx, account, (dependent, task, to), by, setting).await?;
        written.messages.extend(told);
    }
    Ok(written)
}

async fn dependents(tx: &Tx, account: &AccountId, ids: Vec<TaskId>) -> Result<Vec<Dependent>, StorageError> {
    tx.rows("read dependents", DEPENDENTS, [account.into(), ids.into()])
        .await
}

/// Relies on the primary key.
pub const TASKS_FREE: &str = "
    update task t set status = 'pending', updated_at = $3, blocked_owner = null, blocked_action = null
    from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
    where t.account_id = any (array[f.account_id]) and t.id = f.id";

/// Moves those of the tasks on, all at once, that wait for no other any more and that nothing else holds. The caller holds their locks.
async fn free(
    tx: &Tx,
    account: &AccountId,
    (waiting, blocker): (&[Dependent], Option<&TaskId>),
    by: &Actor,
    (setting, written): (&Setting<'_>, &mut Written),
) -> Result<(), StorageError> {
    let (from, to) = (TaskStatus::Blocked, TaskStatus::Pending);
    let is_free = |task: &&Dependent| task.status == from && !task.waits && !task.is_held;
    let freed: Vec<&Dependent> = waiting.iter().filter(is_free).collect();
    if freed.is_empty() {
        return Ok(());
    }
    let keys: Vec<TaskId> = freed.iter().map(|task| task.display_id.key()).collect();
    let values = [account.into(), keys.clone().into(), setting.now.into()];
    tx.execute("free tasks", TASKS_FREE, values).await?;
    let detail = serde_json::json!({"from": from, "to": to});
    let named = (account, keys);
    let activities = activities_insert(tx, named, STATUS_CHANGED, by, detail, setting.now).await?;
    let because = blocker.map_or_else(
        || "What it waited for was taken away.".to_owned(),
        |blocker| format!("Task {blocker} is done."),
    );
    for (task, activity) in freed.into_iter().zip(activities) {
        let id = &task.display_id;
        let happened = [
            Event::TaskStatusChanged(TaskStatusChanged {
                from,
                to,
                by: by.clone(),
            }),
            Event::TaskUnblocked(TaskUnblocked {
                by: by.clone(),
                blocker: blocker.cloned(),
            }),
        ];
        let happened = happened.map(|event| setting.event(account, Some(id), &activity.to_string(), event));
        written.messages.extend(happened);
        let text = format!("Task {id} ({}) waits for no other task any more. {because}", task.title);
        let title = format!("{id} can begin");
        let said = (UNBLOCKED, &*title, &*text);
        written
            .messages
            .extend(told(tx, account, task, said, (by, activity), setting).await?);
        written.freed.push(id.clone());
    }
    Ok(())
}

/// Tells that a blocker will not be done.
async fn ended(
    tx: &Tx,
    account: &AccountId,
    (task, blocker, to): (&Dependent, &TaskId, TaskStatus),
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let id = &task.display_id;
    let title = format!("{blocker} is {to}, and {id} waits for it");
    let text = format!(
        "Task {id} ({}) waits for task {blocker}, which is {to} now. Let {id} wait for it no longer, name another task in its place, or \
         cancel {id}.",
        task.title
    );
    told(tx, account, task, (ENDED, &title, &text), (by, fresh_id()), setting).await
}

/// Tells the worker of a task, else its agents, else whose board it is on. `seed`: ids of the items follow from it.
async fn told(
    tx: &Tx,
    account: &AccountId,
    task: &Dependent,
    (kind, title, text): (&'static str, &str, &str),
    (by, seed): (&Actor, Uuid),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let id = &task.display_id;
    // No hop: a chain of tasks is as long as it is, and has no ring. What gives new work away counts.
    let mut origin = setting.origin.clone();
    if kind == UNBLOCKED {
        origin.hops = origin.hops.saturating_sub(1);
    }
    let setting = &Setting {
        origin,
        ..setting.clone()
    };
    let item = |on: &TaskId, agent: AgentId| {
        let item = NotificationId::from(Uuid::new_v5(&seed, agent.uuid().as_bytes()));
        let message = NotificationMessage::new(kind, Actor::system(), title.to_owned(), text.to_owned());
        let message = message.with("reopen", false).with("task_id", id.to_string());
        setting.agent_told((account, Some(on)), (agent, &item), message)
    };
    if let (Some(on), Some(agent)) = (&task.worker_task, task.worker_agent) {
        return Ok(vec![item(on, agent)]);
    }
    let to_agents = || task.assignees.iter().map(|agent| item(id, *agent)).collect::<Vec<_>>();
    match &task.board {
        // Of what will not be done, whoever gave the work away decides.
        Some(board) if kind == ENDED || task.assignees.is_empty() => {
            orchestrator_told(tx, account, (board, id), (text, by, seed), setting).await
        }
        _ => Ok(to_agents()),
    }
}

const DEPENDENCIES_DROP: &str = "
    delete from task_dependency where account_id = $1 and task_id = $2 and not blocked_by_task_id = any ($3::text[])";
/// A blocker that is done is satisfied from the first. Relies on primary keys.
pub const DEPENDENCIES_ADD: &str = "
    insert into task_dependency (account_id, task_id, blocked_by_task_id, created_at, satisfied_at, ended_at)
    select t.account_id, $2, t.id, $4::timestamptz, case when t.status = 'done' then $4::timestamptz end,
           case when t.status in ('failed', 'cancelled', 'archived') then $4::timestamptz end
    from (select $1::text as account_id, f.id from unnest($3::text[]) as f (id) offset 0) f
    cross join lateral (select * from task t where t.account_id = f.account_id and t.id = f.id offset 0) t
    on conflict do nothing";

#[derive(FromQueryResult)]
struct EdgeRow {
    task_id: TaskId,
    blocked_by_task_id: TaskId,
}

/// What the task waits for, directly and through others. Relies on the primary key.
pub const WAITS_FOR: &str = "
    with recursive reached (task_id, blocked_by_task_id) as (
        select d.task_id, d.blocked_by_task_id from task_dependency d
        where d.account_id = $1 and d.task_id = $2 and d.satisfied_at is null
        union
        select d.task_id, d.blocked_by_task_id from reached r
        cross join lateral (
            select * from task_dependency d
            where d.account_id = $1 and d.task_id = r.blocked_by_task_id and d.satisfied_at is null offset 0) d)
    select task_id, blocked_by_task_id from reached limit $3";

/// Of these tasks, one for which too many wait. Relies on task_dependency_blocker, whose order is requested, and on the primary key.
pub const CROWDED: &str = "
    select t.display_id from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
    cross join lateral (select * from task t where t.account_id = f.account_id and t.id = f.id offset 0) t
    where (select count(*) from (
        select from task_dependency d
        where d.account_id = t.account_id and d.blocked_by_task_id >= t.id and d.blocked_by_task_id <= t.id and d.satisfied_at is null
        order by d.blocked_by_task_id limit $3 + 1) d) > $3
    limit 1";

/// What a task is to wait for, in place of what it waits for.
#[derive(Clone, Debug)]
pub struct Waits<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub blockers: &'a [TaskId],
    /// Those of this board only.
    pub board: Option<&'a Owner>,
    pub by: &'a Actor,
}

/// Replaces what a task waits for. The caller holds the account's graph, and took the locks of the tasks after it.
pub async fn dependencies_set(
    tx: &Tx,
    asked: &Waits<'_>,
    setting: &Setting<'_>,
) -> Result<Result<Written, NotPlaced>, StorageError> {
    let (account, by) = (asked.account, asked.by);
    let key = asked.task.key();
    let mut blockers: Vec<TaskId> = asked.blockers.iter().map(TaskId::key).collect();
    blockers.sort_unstable();
    blockers.dedup();
    if blockers.len() > BLOCKERS_MAX {
        return Ok(Err(NotPlaced::TooMany));
    }
    let rows = tasks_lock(tx, account, asked.task, &blockers).await?;
    let find = |id: &TaskId| rows.iter().find(|row| row.id == *id);
    let Some(task) = find(&key) else {
        return Ok(Err(NotPlaced::NotThere(asked.task.clone())));
    };
    let is_known =
        |id: &&TaskId| find(id).is_some_and(|row| asked.board.is_none_or(|board| row.board.as_ref() == Some(board)));
    if let Some(unknown) = blockers.iter().find(|id| !is_known(id)) {
        return Ok(Err(NotPlaced::NotThere(unknown.clone())));
    }
    let above = above(tx, account, &key).await?;
    if let Some(parent) = above.iter().find(|row| blockers.contains(&row.id)) {
        let way = match parent.id == key {
            true => format!("{key} → {key}"),
            false => format!("{key} → {} → {key}", parent.id),
        };
        return Ok(Err(NotPlaced::Cycle(way)));
    }
    let values = || [account.into(), key.clone().into(), blockers.clone().into()];
    let dropped = tx.execute("drop dependencies", DEPENDENCIES_DROP, values()).await?;
    let more = values().into_iter().chain([setting.now.into()]);
    let added = tx.execute("add dependencies", DEPENDENCIES_ADD, more).await?;
    let mut written = Written::default();
    if dropped == 0 && added == 0 {
        return Ok(Ok(written));
    }
    let edges: Vec<EdgeRow> = tx
        .rows(
            "read what tasks wait for",
            WAITS_FOR,
            [account.into(), key.clone().into(), (REACHED_MAX as i64).into()],
        )
        .await?;
    if edges.len() == REACHED_MAX {
        return Ok(Err(NotPlaced::TooFar));
    }
    let values = [account.into(), blockers.clone().into(), WAITING_MAX.into()];
    let crowded: Option<BlockerRow> = tx.one("find crowded task", CROWDED, values).await?;
    if let Some(crowded) = crowded {
        return Ok(Err(NotPlaced::Crowded(crowded.display_id)));
    }
    let edges: Vec<(TaskId, TaskId)> = edges
        .into_iter()
        .map(|edge| (edge.task_id, edge.blocked_by_task_id))
        .collect();
    if let Some(way) = ring(&key, &edges) {
        return Ok(Err(NotPlaced::Cycle(way)));
    }
    let named: Vec<String> = blockers
        .iter()
        .filter_map(|id| Some(find(id)?.display_id.to_string()))
        .collect();
    let detail = match named.is_empty() {
        true => "waits for no other task".to_owned(),
        false => format!("waits for {}", named.join(", ")),
    };
    let id = &task.display_id;
    let event = changed(tx, (account, id), TaskPart::Dependencies, by, detail.clone(), setting).await?;
    written.messages.push(event);
    let waits = edges.iter().any(|(from, _)| *from == key);
    match task.status {
        from if waits && from.is_before_work() => {
            let to = (from, TaskStatus::Blocked);
            let moved = status_write(tx, (account, id), to, (by, Some(&detail)), setting).await?;
            written.messages.extend(moved);
        }
        from if waits && added > 0 && !from.is_terminal() && from != TaskStatus::Blocked => {
            for task in dependents(tx, account, vec![key]).await? {
                let title = format!("{id} waits for other tasks now");
                let text = format!(
                    "Task {id} ({}) {detail}. It cannot be moved on before they are done.",
                    task.title
                );
                let told = told(tx, account, &task, (ADDED, &title, &text), (by, fresh_id()), setting).await?;
                written.messages.extend(told);
            }
        }
        TaskStatus::Blocked if !waits => {
            let waiting = dependents(tx, account, vec![key]).await?;
            free(tx, account, (&waiting, None), by, (setting, &mut written)).await?;
        }
        _ => {}
    }
    Ok(Ok(written))
}

#[derive(FromQueryResult)]
struct AboveRow {
    id: TaskId,
    display_id: TaskId,
    board: Option<Owner>,
}

/// A task and those above it, upwards. Relies on the primary key.
pub const ABOVE: &str = "
    with recursive above (id, display_id, board, parent_task_id, depth) as (
        select t.id, t.display_id, t.board, t.parent_task_id, 0 from task t where t.account_id = $1 and t.id = $2
        union all
        select p.id, p.display_id, p.board, p.parent_task_id, a.depth + 1 from above a
        cross join lateral (select * from task p where p.account_id = $1 and p.id = a.parent_task_id offset 0) p
        where a.depth < 20)
    select id, display_id, board from above order by depth";

async fn above(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Vec<AboveRow>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.rows("read tasks above", ABOVE, values).await
}

#[derive(Debug, FromQueryResult)]
pub struct BelowRow {
    #[sea_orm(from_alias = "display_id")]
    pub task: TaskId,
    pub depth: i32,
    pub status: TaskStatus,
}

/// A task and those below it, downwards. Relies on the primary key and task_parent.
pub const BELOW: &str = "
    with recursive below (id, display_id, status, depth) as (
        select t.id, t.display_id, t.status, 0 from task t where t.account_id = $1 and t.id = $2
        union all
        select c.id, c.display_id, c.status, b.depth + 1 from below b
        cross join lateral (select * from task c where c.account_id = $1 and c.parent_task_id = b.id offset 0) c
        where b.depth < 20)
    select display_id, status, depth from below order by depth, id";

pub async fn tasks_below(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Vec<BelowRow>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.rows("read tasks below", BELOW, values).await
}

/// Which of the first wait for which of the second. Relies on the primary key.
pub const EDGES_BETWEEN: &str = "
    select d.task_id, d.blocked_by_task_id
    from (select $1::text as account_id, f.id, b.id as blocked_by from unnest($2::text[]) as f (id), unnest($3::text[]) as b (id) offset 0) f
    cross join lateral (
        select * from task_dependency d
        where d.account_id = f.account_id and d.task_id = f.id and d.blocked_by_task_id = f.blocked_by offset 0) d
    where d.satisfied_at is null limit 1";

const PARENT: &str = "update task set parent_task_id = $3, updated_at = $4 where account_id = $1 and id = $2";

/// Puts a task below another one, or below none. The caller holds the account's graph and the task's lock.
pub async fn parent_set(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    parent: Option<(&TaskId, Option<&Owner>)>,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, NotPlaced>, StorageError> {
    let mut detail = "is below no other task".to_owned();
    let mut key = None;
    if let Some((parent, board)) = parent {
        let chain = above(tx, account, parent).await?;
        let is_there = |row: &&AboveRow| board.is_none_or(|board| row.board.as_ref() == Some(board));
        let Some(first) = chain.first().filter(is_there) else {
            return Ok(Err(NotPlaced::NotThere(parent.clone())));
        };
        if chain.iter().any(|row| row.id == task.key()) {
            return Ok(Err(NotPlaced::Cycle(format!("{task} → {} → {task}", first.display_id))));
        }
        let below = tasks_below(tx, account, task).await?;
        let height = below.iter().map(|row| row.depth.unsigned_abs() as usize).max();
        if chain.len() + height.unwrap_or_default() > PARENTS_MAX {
            return Ok(Err(NotPlaced::TooDeep));
        }
        let of = |ids: Vec<TaskId>| ids.into();
        let values = [
            account.into(),
            of(below.iter().map(|row| row.task.key()).collect()),
            of(chain.iter().map(|row| row.id.clone()).collect()),
        ];
        let crossing: Option<EdgeRow> = tx.one("find who waits for a task above", EDGES_BETWEEN, values).await?;
        if let Some(edge) = crossing {
            let (from, to) = (edge.task_id, edge.blocked_by_task_id);
            return Ok(Err(NotPlaced::Cycle(format!("{from} → {to} → {from}"))));
        }
        detail = format!("is below {}", first.display_id);
        key = Some(first.id.clone());
    }
    let values = [
        account.into(),
        task.key().into(),
        key.clone().into(),
        setting.now.into(),
    ];
    tx.execute("put a task below another", PARENT, values).await?;
    if let Some(parent) = key {
        let values = [account.into(), task.key().into(), parent.into(), setting.now.into()];
        tx.execute("copy the context of the task above", CONTEXT_COPY, values)
            .await?;
    }
    let told = changed(tx, (account, task), TaskPart::Parent, by, detail, setting).await?;
    Ok(Ok(vec![told]))
}

#[derive(FromQueryResult)]
struct GivenRow {
    title: String,
    description: String,
}

const WORKER: &str = "
    update task set worker_task_id = $3, worker_agent_id = $4, updated_at = $5
    where account_id = $1 and id = $2 and (worker_task_id, worker_agent_id) is distinct from ($3, $4::uuid)
    returning title, left(description, 4000) as description";

/// Gives a task to a conversation, or takes it from one: an agent's, on a task of its own. It gets an item.
pub async fn worker_set(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    worker: Option<(&TaskId, AgentId)>,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [
        account.into(),
        task.key().into(),
        worker.map(|(on, _)| on.key()).into(),
        worker.map(|(_, agent)| agent).into(),
        setting.now.into(),
    ];
    let given: Option<GivenRow> = tx.one("give a task to a session", WORKER, values).await?;
    let Some(given) = given else { return Ok(Vec::new()) };
    let detail = worker.map_or_else(
        || "no session works on it".to_owned(),
        |(on, _)| format!("the session on {on} works on it"),
    );
    let mut messages = vec![changed(tx, (account, task), TaskPart::Worker, by, detail, setting).await?];
    if let Some((on, agent)) = worker {
        let title = format!("{task} is yours: {}", given.title);
        let text = format!("Task {task} was given to you: {}\n\n{}", given.title, given.description);
        let message = NotificationMessage::new(ASSIGNED, Actor::system(), title, text);
        let message = message.with("reopen", false).with("task_id", task.to_string());
        messages.push(setting.agent_told((account, Some(on)), (agent, &fresh_id().into()), message));
    }
    Ok(messages)
}

const RESULT: &str = "update task set result = $3, updated_at = $4 where account_id = $1 and id = $2";

/// Writes down what came of a task.
pub async fn result_set(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    result: &str,
    setting: &Setting<'_>,
) -> Result<(), StorageError> {
    let values = [account.into(), task.key().into(), result.into(), setting.now.into()];
    tx.execute("write result of a task", RESULT, values).await.map(drop)
}
