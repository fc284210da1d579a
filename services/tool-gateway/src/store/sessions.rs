//! The rows that a call is checked against: its session and its turn, locked until the commit.

use domain::{AccountId, AgentId, SessionId, SessionKey, TaskId, TurnId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, session::sessions_close::task_sessions_lock};

use crate::call::{CallFacts, CallRequest};

/// A shared lock: calls of one session do not wait for each other, and the session cannot be closed or claimed
/// meanwhile.
const SESSION_LOCK: &str = "select id from session where account_id = $1 and id = $2 for share";

/// Locks the session until the end of the transaction.
pub(crate) async fn session_lock(tx: &Tx, asked: &CallRequest) -> Result<(), StorageError> {
    let values = [(&asked.account).into(), asked.session.into()];
    tx.execute("lock session", SESSION_LOCK, values).await.map(|_| ())
}

const TASK_LOCK: &str = "select id from task where account_id = $1 and id = $2 for no key update";

/// The locks of a call that moves a task and may close its sessions. With weaker locks first, two such calls would
/// deadlock. Locks the sessions that closing locks, in the same order, and the caller's own session.
pub(crate) async fn task_and_sessions_lock(tx: &Tx, asked: &CallRequest, task: &TaskId) -> Result<(), StorageError> {
    let values = [(&asked.account).into(), task.key().into()];
    tx.execute("lock task", TASK_LOCK, values).await?;
    task_sessions_lock(tx, &asked.account, task, asked.session).await
}

/// Relies on the primary keys, turn_number and tool_call_turn only. Tasks as their client spelled them, since subjects
/// and texts use that spelling. From the turn's journal: the call at the claimed place of the last answer, if it was
/// passed on, since the turn waits for it; and the earlier calls of the same answer. From the records: the turn's
/// earlier finished calls, since a record becomes visible with its result.
const FACTS: &str = concat!(
    "
    select s.key, s.generation, s.fence, s.closed_at is not null as is_closed, s.close_reason,
           st.display_id as session_task, a.id as agent_id, a.slug as agent_slug, a.name as agent_name,
           acc.coordinator_task, ",
    storage::coordinates!("acc", "a.id"),
    " as coordinates, t.id as turn_id, t.session_id as turn_session, t.state as turn_state,
           t.fence as turn_fence, tt.display_id as turn_task, t.hops as turn_hops,
           t.tools as turn_tools, t.waiting_since + t.tools_wait_ms * interval '1 millisecond' as turn_until,
           jsonb_path_query_first(t.journal, '$[last].calls[*] ? (@.ordinal == $place && !exists(@.answered))',
                                  jsonb_build_object('place', $4::integer)) as turn_call,
           array(select place::integer
                 from jsonb_path_query(t.journal, '$[last].calls[*] ? (@.ordinal < $place && !exists(@.answered)).ordinal',
                                       jsonb_build_object('place', $4::integer)) as earlier (place)) as turn_earlier,
           array(select c.ordinal from tool_call c
                 where c.account_id = s.account_id and c.turn_id = t.id and c.ordinal < $4) as turn_over,
           (select l.hops from turn l where l.account_id = s.account_id and l.session_id = s.id
            order by l.number desc limit 1) as newest_hops, clock_timestamp() as now
    from session s
    join account acc on acc.id = s.account_id
    join agent a on a.account_id = s.account_id and a.id = s.agent_id
    left join task st on st.account_id = s.account_id and st.id = s.task_id
    left join turn t on t.account_id = s.account_id and t.id = coalesce($3, s.active_turn_id)
    left join task tt on tt.account_id = s.account_id and tt.id = t.task_id
    where s.account_id = $1 and s.id = $2"
);

/// Reads the facts of the session, of the turn (the claimed one, else the active one), of the claimed call and of the
/// calls before it, and the database's time. A statement of its own after the lock: only a new snapshot shows the
/// changes that the lock waited for.
pub(crate) async fn facts(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    claimed: Option<(TurnId, i32)>,
) -> Result<Option<CallFacts>, StorageError> {
    let values = [
        account.into(),
        session.into(),
        claimed.map(|(turn, _)| turn).into(),
        claimed.map(|(_, place)| place).into(),
    ];
    let mut facts: Option<CallFacts> = tx.one("read session", FACTS, values).await?;
    if let (Some(facts), None) = (&mut facts, claimed) {
        // Over HTTP, a turn that has just ended does not count.
        facts.turn = facts.turn.take().filter(|turn| !turn.state.is_over());
    }
    Ok(facts)
}

#[derive(FromQueryResult)]
struct SessionRow {
    id: SessionId,
}

/// Relies on session_key_unique.
const SESSION_FIND: &str = "
    select id from session
    where account_id = $1 and key = $2 and agent_id is not null and ($3 is null or agent_id = $3) and emptied_at is null";

/// Finds the session of this key, open or closed, unless it was emptied: a call recorded after that would never be
/// deleted. `agent`: the agent that it must belong to.
pub(crate) async fn session_find(
    tx: &Tx,
    account: &AccountId,
    key: &SessionKey,
    agent: Option<AgentId>,
) -> Result<Option<SessionId>, StorageError> {
    let values = [account.into(), key.to_string().into(), agent.into()];
    let row: Option<SessionRow> = tx.one("find session", SESSION_FIND, values).await?;
    Ok(row.map(|row| row.id))
}
