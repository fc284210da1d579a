//! The rows that a call is checked against: its session and its turn, locked until the commit.

use std::collections::HashSet;

use domain::{AccountId, AgentId, BranchId, QuestionId, QuestionKind, SessionId, TaskId, ThreadName, TurnId};
use sea_orm::FromQueryResult;
use storage::{
    StorageError, Tx,
    lifecycle::{
        dependencies::graph_lock,
        plan::{task_lock, tasks_lock_with},
    },
    question::question_find,
    session::{
        SessionName,
        branch_end::{LiveBranch, branches_lock},
        sessions_close::task_sessions_lock,
    },
    statement::column,
    tool_policy::Policies,
};
use uuid::Uuid;

use super::each;
use crate::call::{CallFacts, CallRequest, Origin, Record};

/// A shared lock: calls of one session do not wait for each other, and the session cannot be closed or claimed
/// meanwhile.
const SESSION_LOCK: &str = "select id from session where account_id = $1 and id = $2 for share";

/// Locks the session until the end of the transaction.
pub(crate) async fn session_lock(tx: &Tx, call: &CallRequest) -> Result<(), StorageError> {
    let values = [(&call.account).into(), call.session.into()];
    tx.execute("lock session", SESSION_LOCK, values).await.map(|_| ())
}

/// The same locks of many sessions, without those that another transaction has locked: all calls would wait for them.
/// Relies on the primary key.
pub const SESSIONS_LOCK_FREE: &str = "
    select s.account_id, s.id from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
    order by w.account_id, w.id for share of s skip locked";

#[derive(FromQueryResult)]
struct LockedRow {
    account_id: AccountId,
    id: SessionId,
}

/// Locks the calls' sessions until the end of the transaction; returns those that are not locked, or do not exist.
pub(crate) async fn sessions_lock_free(tx: &Tx, calls: &[CallRequest]) -> Result<HashSet<SessionName>, StorageError> {
    let values = [
        column(calls, |call| call.account.clone()),
        column(calls, |call| call.session),
    ];
    let locked: Vec<LockedRow> = tx.rows("lock sessions", SESSIONS_LOCK_FREE, values).await?;
    let mut left: HashSet<SessionName> = calls.iter().map(|call| (call.account.clone(), call.session)).collect();
    for row in locked {
        left.remove(&(row.account_id, row.id));
    }
    Ok(left)
}

/// The locks of a call that moves a task and may close its sessions. With weaker locks first, two such calls would
/// deadlock. Locks the sessions that closing locks, in the same order, and the caller's own session. `blockers`: what the task is to wait
/// for from now on.
pub(crate) async fn task_and_sessions_lock(
    tx: &Tx,
    asked: &CallRequest,
    task: &TaskId,
    blockers: Option<&[TaskId]>,
) -> Result<(), StorageError> {
    if blockers.is_some() {
        graph_lock(tx, &asked.account).await?;
    }
    tasks_lock_with(tx, &asked.account, task, blockers.unwrap_or_default()).await?;
    task_sessions_lock(tx, &asked.account, std::slice::from_ref(task), Some(asked.session)).await
}

/// The locks of a call that makes a task which waits for others.
pub(crate) async fn board_lock(tx: &Tx, asked: &CallRequest, blockers: &[TaskId]) -> Result<(), StorageError> {
    graph_lock(tx, &asked.account).await?;
    if let Some(first) = blockers.first() {
        tasks_lock_with(tx, &asked.account, first, blockers).await?;
    }
    session_lock(tx, asked).await
}

/// Relies on the primary keys.
pub const SESSIONS_OF_QUESTION: &str = "
    select s.id from (
        select $1::text as account_id, $2::uuid as id
        union select q.account_id, q.session_id from question q where q.account_id = $1 and q.id = $3 and q.session_id is not null) f
    join session s on s.account_id = any (array[f.account_id]) and s.id = f.id
    order by s.id for no key update of s";

/// The locks of a call that opens or ends a question: for a plan or a review its task, then the caller's session and that of whoever asked.
pub(crate) async fn question_lock(tx: &Tx, asked: &CallRequest, question: QuestionId) -> Result<(), StorageError> {
    let found = question_find(tx, &asked.account, question).await?;
    if let Some(task) = found
        .filter(|row| matches!(row.kind, QuestionKind::Plan | QuestionKind::Review))
        .and_then(|row| row.task)
    {
        task_lock(tx, &asked.account, &task).await?;
    }
    let values = [(&asked.account).into(), asked.session.into(), question.into()];
    tx.execute("lock sessions of a question", SESSIONS_OF_QUESTION, values)
        .await
        .map(|_| ())
}

/// Relies on the primary keys.
pub const TASK_OF_CALL: &str = "
    select k.id from (
        select s.account_id, coalesce(t.task_id, s.task_id) as task_id
        from (select s.account_id, s.task_id, coalesce($3, s.active_turn_id) as turn_id from session s
              where s.account_id = $1 and s.id = $2 offset 0) s
        left join turn t on t.account_id = any (array[s.account_id]) and t.id = s.turn_id
        offset 0) f
    join task k on k.account_id = any (array[f.account_id]) and k.id = f.task_id
    for share of k";

/// The locks of a call that spawns branches: its task, which closes under another lock, and its session.
pub(crate) async fn spawn_lock(tx: &Tx, asked: &CallRequest) -> Result<(), StorageError> {
    let turn = match &asked.origin {
        Origin::Turn(claims) => Some(claims.turn),
        Origin::Http => None,
    };
    let values = [(&asked.account).into(), asked.session.into(), turn.into()];
    tx.execute("lock the task of a call", TASK_OF_CALL, values).await?;
    session_lock(tx, asked).await
}

/// The locks of a call that ends a branch of its session: the sessions that end, and the caller's.
pub(crate) async fn branch_lock(tx: &Tx, asked: &CallRequest, branch: Option<BranchId>) -> Result<(), StorageError> {
    let own = |live: &LiveBranch| Some(live.id) == branch && live.parent_session_id == asked.session;
    branches_lock(tx, &asked.account, own).await?;
    session_lock(tx, asked).await
}

/// Relies on the primary key.
pub const AGENTS_SHARE: &str = "
    select a.id from (select $1::text as account_id, f.id from unnest($2::uuid[]) as f (id) offset 0) f
    join agent a on a.account_id = any (array[f.account_id]) and a.id = f.id
    where coalesce(a.removed_at is null, false) order by a.id for share of a nowait";

#[derive(FromQueryResult)]
struct SharedAgent {
    id: AgentId,
}

/// Locks agents that are to get sessions, so that none is removed meanwhile; gives those that are there. The caller holds its session:
/// a remover waits for that, and this waits for no remover.
pub(crate) async fn agents_share(
    tx: &Tx,
    account: &AccountId,
    agents: Vec<AgentId>,
) -> Result<Vec<AgentId>, StorageError> {
    let values = [account.into(), agents.into()];
    let found: Vec<SharedAgent> = tx.rows("lock agents", AGENTS_SHARE, values).await?;
    Ok(found.into_iter().map(|agent| agent.id).collect())
}

/// Relies on the primary keys, turn_number and tool_call_turn only. Tasks as their client spelled them, since subjects
/// and texts use that spelling. From the turn's journal: the call at the claimed place of the last answer, if it was
/// passed on, since the turn waits for it; and the earlier calls of the same answer. From the records: the turn's
/// earlier finished calls, and the call itself: with its result, or while somebody is asked about it. Time in which somebody was asked
/// does not count as waiting. A call over HTTP is found
/// by its key when it is recorded.
pub const FACTS: &str = concat!(
    "
    select w.place, s.key, s.kind as session_kind,
           case s.kind when 'guest' then (
               select i.reachable from orchestrator_identity i where i.account_id = s.account_id and i.owner = s.user_id offset 0) end as reachable,
           s.generation, s.fence, s.closed_at is not null as is_closed, s.close_reason,
           coalesce(s.stop_turn_id = s.active_turn_id, s.stopped_turn_id is not null and s.active_turn_id is null) as turn_stopped,
           st.display_id as session_task, a.id as agent_id, a.slug as agent_slug, a.name as agent_name,
           acc.coordinator_task, ",
    storage::coordinates!("acc", "a.id"),
    " as coordinates, acc.tool_policies, acc.mail_enabled,
           coalesce(case when tt.id is not null then (tt.plan_submitted or coalesce(tt.plan_gate, acc.plan_gate) = 'required') and not tt.plan_approved
                         else (st.plan_submitted or coalesce(st.plan_gate, acc.plan_gate) = 'required') and not st.plan_approved end,
                    false) as needs_plan,
           t.id as turn_id, t.session_id as turn_session, t.state as turn_state, t.notification_ids[1] as turn_first_item,
           t.fence as turn_fence, tt.display_id as turn_task, t.hops as turn_hops,
           t.tools as turn_tools, b.id as branch_id, b.depth as branch_depth,
           t.waiting_since + t.tools_wait_ms * interval '1 millisecond'
               + (select coalesce(sum(coalesce(c.finished_at, now()) - c.started_at), interval '0') from (
                      select * from tool_call c where c.account_id = s.account_id and c.turn_id = t.id order by c.ordinal) c
                  where c.ordinal > 0 and c.started_at >= t.waiting_since and c.runner is null) as turn_until,
           jsonb_path_query_first(t.journal, '$[last].calls[*] ? (@.ordinal == $place && !exists(@.answered))',
                                  jsonb_build_object('place', w.ordinal)) as turn_call,
           array(select place::integer
                 from jsonb_path_query(t.journal, '$[last].calls[*] ? (@.ordinal < $place && !exists(@.answered)).ordinal',
                                       jsonb_build_object('place', w.ordinal)) as earlier (place)) as turn_earlier,
           array(select tool #>> '{}'
                 from jsonb_path_query(t.journal, '$[last].calls[*] ? (@.ordinal < $place && !exists(@.answered)).name',
                                       jsonb_build_object('place', w.ordinal)) as earlier (tool)) as turn_earlier_tools,
           array(select c.ordinal from (
                     select * from tool_call c where c.account_id = s.account_id and c.turn_id = t.id order by c.ordinal) c
                 where c.ordinal < w.ordinal and c.finished_at is not null) as turn_over,
           (select l.hops from turn l where l.account_id = s.account_id and l.session_id = s.id
            order by l.number desc limit 1) as newest_hops, clock_timestamp() as now,
           r.name as record_name, r.arguments as record_arguments, r.state as record_state, r.late as record_late,
           coalesce(r.result, '') as record_result, coalesce(r.finished_at, r.started_at) as record_finished_at
    from unnest($1::text[], $2::uuid[], $3::uuid[], $4::integer[], $5::uuid[]) with ordinality
        as w (account_id, session_id, turn_id, ordinal, id, place)
    cross join lateral (select * from session s where s.account_id = w.account_id and s.id = w.session_id offset 0) s
    cross join lateral (select * from account acc where acc.id = s.account_id offset 0) acc
    cross join lateral (select * from agent a where a.account_id = s.account_id and a.id = s.agent_id offset 0) a
    cross join lateral (select case s.kind when 'branch' then s.origin_id end as id offset 0) o
    left join lateral (select * from branch b where b.account_id = s.account_id and b.id = o.id offset 0) b on true
    left join lateral (select * from task st where st.account_id = s.account_id and st.id = s.task_id offset 0) st on true
    cross join lateral (select coalesce(nullif(w.turn_id, '00000000-0000-0000-0000-000000000000'), s.active_turn_id) as id offset 0) c
    left join lateral (select * from turn t where t.account_id = s.account_id and t.id = c.id offset 0) t on true
    left join lateral (select * from task tt where tt.account_id = s.account_id and tt.id = t.task_id offset 0) tt on true
    left join lateral (
        select * from (
            select * from tool_call r where r.account_id = s.account_id and r.turn_id = t.id order by r.ordinal) r
        where r.ordinal = w.ordinal and r.id = w.id) r on w.ordinal > 0"
);

/// The facts of one call.
#[derive(Debug, FromQueryResult)]
pub(crate) struct FactsRow {
    #[sea_orm(nested)]
    pub facts: CallFacts,
    /// Set if the call has ended already.
    #[sea_orm(nested(prefix = "record_"))]
    pub record: Option<Record>,
}

/// Reads for each call the facts of its session, of the turn (the claimed one, else the active one), of the claimed call
/// and of the calls before it, its record, and the database's time; none: the session does not exist. A statement of its
/// own after the locks: only a new snapshot shows the changes that the locks waited for.
/// `depth_max`: of branches.
pub(crate) async fn facts(
    tx: &Tx,
    calls: &[CallRequest],
    depth_max: i32,
) -> Result<Vec<Option<FactsRow>>, StorageError> {
    let claimed = |call: &CallRequest| match &call.origin {
        Origin::Turn(claims) => Some(claims.turn),
        Origin::Http => None,
    };
    let values = [
        column(calls, |call| call.account.clone()),
        column(calls, |call| call.session),
        column(calls, |call| claimed(call).map(TurnId::uuid).unwrap_or_default()),
        column(calls, |call| call.ordinal),
        column(calls, |call| call.id),
    ];
    let mut rows = each::<FactsRow>(tx, "read sessions of calls", FACTS, calls.len(), values).await?;
    let found = calls
        .iter()
        .zip(&rows)
        .filter_map(|(call, rows)| Some((&call.account, rows.first()?)));
    let policies = policies_read(tx, found).await?;
    for (call, row) in calls
        .iter()
        .zip(&mut rows)
        .filter_map(|(call, rows)| Some((call, rows.first_mut()?)))
    {
        row.facts.policies = policies.of(&call.account).into();
        row.facts.branch_depth_max = depth_max;
    }
    let of = |(call, rows): (&CallRequest, Vec<FactsRow>)| {
        let row = rows.into_iter().next()?;
        Some(match claimed(call) {
            Some(_) => row,
            None => row.outside(),
        })
    };
    Ok(calls.iter().zip(rows).map(of).collect())
}

/// The facts of a session, for a caller over HTTP.
pub(crate) async fn session_facts(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    depth_max: i32,
) -> Result<Option<CallFacts>, StorageError> {
    let values = [
        vec![account.clone()].into(),
        vec![session].into(),
        vec![Uuid::nil()].into(),
        vec![0].into(),
        vec![Uuid::nil()].into(),
    ];
    let row: Option<FactsRow> = tx.one("read session", FACTS, values).await?;
    let Some(mut row) = row else { return Ok(None) };
    row.facts.policies = policies_read(tx, [(account, &row)].into_iter())
        .await?
        .of(account)
        .into();
    row.facts.branch_depth_max = depth_max;
    Ok(Some(row.outside().facts))
}

/// The policies of the accounts that have any.
async fn policies_read(tx: &Tx, rows: impl Iterator<Item = (&AccountId, &FactsRow)>) -> Result<Policies, StorageError> {
    let mut policies = Policies::default();
    let counted = rows.map(|(account, row)| (account, row.facts.tool_policies));
    policies.read(tx, counted).await?;
    Ok(policies)
}

impl FactsRow {
    /// Over HTTP, a turn that has just ended does not count.
    fn outside(mut self) -> FactsRow {
        self.facts.turn = self.facts.turn.take().filter(|turn| !turn.state.is_over());
        self
    }
}

#[derive(FromQueryResult)]
struct SessionRow {
    id: SessionId,
}

/// An orchestrator's session is a person's own, and its key can be guessed: its calls come with its turns alone. Relies on
/// session_key_unique.
const SESSION_FIND: &str = "
    select id from session
    where account_id = $1 and key = $2 and kind not in ('orchestrator', 'guest') and agent_id is not null and ($3 is null or agent_id = $3) and emptied_at is null
      and greatest((thread ->> 'number')::integer, 1) >= $4";

/// Finds the session of this thread, open or closed, unless it was emptied: a call recorded after that would never be
/// deleted; and unless it has not come to that thread. `agent`: the agent that it must belong to.
pub(crate) async fn session_find(
    tx: &Tx,
    account: &AccountId,
    name: &ThreadName,
    agent: Option<AgentId>,
) -> Result<Option<SessionId>, StorageError> {
    let values = [
        account.into(),
        name.key.to_string().into(),
        agent.into(),
        name.thread.into(),
    ];
    let row: Option<SessionRow> = tx.one("find session", SESSION_FIND, values).await?;
    Ok(row.map(|row| row.id))
}
