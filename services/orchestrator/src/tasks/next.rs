//! What moves tasks next: reads the facts that `domain::next` decides by.

use std::collections::HashMap;

use domain::{
    AccountId, AgentId, Liveness, RecoveryCause, RecoveryId, RecoveryState, SessionScope, TaskId, TaskStatus, TimerId,
    Timestamp,
    next::{AskedNow, BranchesNow, SessionOfTask, TaskNow},
};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

/// Sessions with work that are read of a task: the first decides.
const SESSIONS_MAX: i64 = 8;
/// Open questions, and timers, of which the first of a task is chosen: more than a task has.
const WAITS_MAX: i64 = 200;

/// The facts of tasks. Relies on the primary keys, session_generation, session_active_task, turn_number, recovery_facts,
/// question_of_task, timer_of_task and branch_live. What a task waits for is followed to its end.
pub const TASKS_NOW: &str = concat!(
    "select k.id as task, k.display_id, k.status, k.blocked_owner, k.blocked_action, a.liveness, a.session_scope,
        (select g.agent_id from task_assignee g
         cross join lateral (select w.removed_at from agent w where w.account_id = g.account_id and w.id = g.agent_id offset 0) w
         where g.account_id = k.account_id and g.task_id = k.id and w.removed_at is null order by g.agent_id limit 1) as assignee,
        worked.agent_id as worked, greatest(k.updated_at, last.finished_at) as since,
        r.id as recovery, r.state as recovery_state, r.cause as recovery_cause,
        q.id as question_id, q.kind as question_kind, q.title as question_title, q.created_at as question_since, q.lapse_at as question_until,
        w.id as timer, w.due_at as timer_due,
        leaf.display_id as blocker, leaf.status as blocker_status,
        b.count as branches_count, b.id as branches_id, b.since as branches_since, b.until as branches_until
     from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
     cross join lateral (select * from task k where k.account_id = f.account_id and k.id = f.id offset 0) k
     join account a on a.id = any (array[k.account_id])
     left join lateral (
        select s.agent_id from (
            select * from session s
            where s.account_id = k.account_id and s.kind = 'task' and s.task_id = k.id
            order by s.account_id, s.kind, s.task_id, s.agent_id offset 0) s
        where s.turn_count > 0 limit 1) worked on true
     cross join lateral (
        select max(t.finished_at) as finished_at from ",
    storage::sessions_on!(),
    " o cross join lateral (
            select t.finished_at from (
                select * from turn t where t.account_id = o.account_id and t.session_id = o.id
                order by t.account_id, t.session_id, t.number desc limit 200) t
            where t.task_id = k.id order by t.number desc limit 1) t) last
     left join lateral (
        select r.id, r.state, r.cause from (
            select * from recovery r
            where r.account_id = k.account_id and r.task_id = k.id and coalesce(r.state <> 'closed', false)
            order by r.account_id, r.task_id, r.agent_id, r.cause offset 0) r
        order by r.state = 'person', r.created_at limit 1) r on true
     left join lateral (
        select q.id, q.kind, q.title, q.created_at, q.lapse_at from (
            select * from question q where q.account_id = k.account_id and q.task_id = k.id and q.state = 'open'
            order by q.account_id, q.task_id limit $3) q
        order by q.created_at limit 1) q on true
     left join lateral (
        select w.id, w.due_at from (
            select * from timer w
            where w.account_id = k.account_id and w.task_id = k.id and w.state = 'waiting' and w.kind = 'check_later'
            order by w.account_id, w.task_id limit $3) w
        order by w.due_at limit 1) w on true
     left join lateral (
        with recursive chain (id, depth) as (
            (select d.blocked_by_task_id, 1 from task_dependency d
             where d.account_id = k.account_id and d.task_id = k.id and d.satisfied_at is null
             order by d.blocked_by_task_id limit 1)
            union all
            select (select d.blocked_by_task_id from task_dependency d
                    where d.account_id = k.account_id and d.task_id = c.id and d.satisfied_at is null
                    order by d.blocked_by_task_id limit 1), c.depth + 1
            from chain c where c.id is not null and c.depth < 20)
        select b.display_id, b.status from chain c
        cross join lateral (select * from task b where b.account_id = k.account_id and b.id = c.id offset 0) b
        order by c.depth desc limit 1) leaf on true
     left join lateral (
        select count(*) over () as count, b.id, b.created_at as since, b.deadline_at as until from (
            select * from branch b where b.account_id = k.account_id and b.state = 'live'
            order by b.account_id, b.parent_session_id offset 0) b
        where b.task_id = k.id order by b.deadline_at, b.id limit 1) b on true"
);

/// The open sessions with work of tasks, and those of agents that do all of their work in one session, while the work is on
/// the task. Relies on session_active_task, session_active_system, notification_queue and turn_pkey.
pub const SESSIONS_NOW: &str = "
    select f.id as task, s.phase, s.active_turn_id as active_turn, coalesce(s.stop_turn_id = s.active_turn_id, false) as stopping,
           s.gate, s.gate_ref, s.gated_since, s.wake_at, coalesce(s.wake_at <= now(), false) as due, s.queued,
           coalesce(s.gated_since, s.opened_at) as opened_at
    from (select $1::text as account_id, f.id from unnest($2::text[]) as f (id) offset 0) f
    cross join lateral (
        (select s.* from session s
         where s.account_id = f.account_id and s.task_id = f.id and s.kind = 'task' and s.closed_at is null
           and (s.phase <> 'idle' or s.queued > 0)
         order by s.agent_id limit $3)
        union all
        (select s.* from task_assignee g
         cross join lateral (
            select * from session s
            where s.account_id = g.account_id and s.agent_id = g.agent_id and s.kind = 'system' and s.closed_at is null offset 0) s
         cross join lateral (
            select count(*) as works from (
                select from turn t where t.account_id = s.account_id and t.id = s.active_turn_id and t.task_id = f.id
                union all
                (select from notification n
                 where n.account_id = s.account_id and n.session_id = s.id and n.state = 'queued' and n.task_id = f.id limit 1)) w) w
         where g.account_id = f.account_id and g.task_id = f.id and w.works > 0
         order by s.agent_id limit $3)) s";

#[derive(FromQueryResult)]
struct TaskRow {
    task: String,
    display_id: TaskId,
    status: TaskStatus,
    blocked_owner: Option<String>,
    blocked_action: Option<String>,
    liveness: Liveness,
    session_scope: SessionScope,
    assignee: Option<AgentId>,
    worked: Option<AgentId>,
    since: Timestamp,
    recovery: Option<RecoveryId>,
    recovery_state: Option<RecoveryState>,
    recovery_cause: Option<RecoveryCause>,
    #[sea_orm(nested(prefix = "question_"))]
    question: Option<AskedNow>,
    timer: Option<TimerId>,
    timer_due: Option<Timestamp>,
    blocker: Option<TaskId>,
    blocker_status: Option<TaskStatus>,
    #[sea_orm(nested(prefix = "branches_"))]
    branches: Option<BranchesNow>,
}

#[derive(FromQueryResult)]
struct SessionRow {
    task: String,
    #[sea_orm(nested)]
    session: SessionOfTask,
}

/// A task with its facts.
#[derive(Debug)]
pub struct Facts {
    /// As its client spelled it.
    pub task: TaskId,
    pub now: TaskNow,
    /// The agent that would have to move it on.
    pub agent: Option<AgentId>,
    pub liveness: Liveness,
    pub scope: SessionScope,
}

/// The facts of these tasks, by key.
pub async fn tasks_now(
    tx: &Tx,
    account: &AccountId,
    keys: Vec<String>,
) -> Result<HashMap<String, Facts>, StorageError> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let values = [account.into(), keys.clone().into(), SESSIONS_MAX.into()];
    let mut sessions: HashMap<String, Vec<SessionOfTask>> = HashMap::new();
    for row in tx
        .rows::<SessionRow>("read sessions of tasks", SESSIONS_NOW, values)
        .await?
    {
        sessions.entry(row.task).or_default().push(row.session);
    }
    let values = [account.into(), keys.into(), WAITS_MAX.into()];
    let rows: Vec<TaskRow> = tx.rows("read what moves tasks", TASKS_NOW, values).await?;
    let facts = rows.into_iter().map(|row| {
        let now = TaskNow {
            status: row.status,
            is_assigned: row.assignee.is_some(),
            has_worked: row.worked.is_some(),
            since: row.since,
            blocked_on: row.blocked_owner.zip(row.blocked_action),
            sessions: sessions.remove(&row.task).unwrap_or_default(),
            question: row.question,
            branches: row.branches,
            timer: row.timer.zip(row.timer_due),
            blocker: row.blocker.zip(row.blocker_status),
            recovery: row
                .recovery
                .zip(row.recovery_state)
                .zip(row.recovery_cause)
                .map(|((id, state), cause)| (id, state, cause)),
        };
        let facts = Facts {
            task: row.display_id,
            now,
            agent: row.assignee.or(row.worked),
            liveness: row.liveness,
            scope: row.session_scope,
        };
        (row.task, facts)
    });
    Ok(facts.collect())
}
