//! Every query on sessions. The verbs of `storage::session` change them.

use api::sessions::Session;
use domain::{AccountId, AgentRef, Owner, PersonaSlug, SessionAddress, SessionId, TaskId};
use sea_orm::{FromQueryResult, Value};
use storage::{StorageError, Tx};

use crate::{
    agents::store::agent_columns,
    paging::{Column, Listing, Order},
};

/// SQL: what is shown of a session's thread.
macro_rules! thread_columns {
    () => {
        "coalesce((thread ->> 'number')::integer, 0) as thread_number, coalesce((thread ->> 'live')::boolean, false) as thread_live,
         coalesce((thread ->> 'tokens')::bigint, 0) as tokens_used"
    };
}

/// A session with the names of its agent and task. Relies on the primary key.
const FIND: &str = concat!(
    "
    select s.id, s.kind, coalesce(t.display_id, s.task_id) as task, case s.kind when 'branch' then s.origin_id end as branch_id,
           s.parent_session_id, s.agent_id, a.slug as agent_slug, s.generation, s.key,
           s.phase, s.opened_at, s.closed_at, s.close_reason, s.close_detail, s.queued, s.queue_tail, s.turn_count, s.active_turn_id, s.mismatch,
           coalesce(s.stop_turn_id = s.active_turn_id, false) as stopping, s.gate, s.gated_since,
           s.closed_at is null as can_steer, s.reset_request, s.continues_id, ",
    thread_columns!(),
    ", t.board as owner, v.slug as persona_slug, v.number as persona_version, case when v.id is not null then s.persona_why end as persona_why,
           s.active_turn_id is not null and s.closed_at is null and s.stop_turn_id is distinct from s.active_turn_id as can_inject
    from session s
    left join task t on t.account_id = s.account_id and t.id = s.task_id
    left join agent a on a.account_id = s.account_id and a.id = s.agent_id
    left join persona_version v on v.account_id = s.account_id and v.id = s.persona_version_id
    where s.account_id = $1 and s.id = $2"
);

/// Sessions, and what is shown of them.
macro_rules! rows {
    ($of:literal) => {
        concat!(
            "select account_id, id, kind, task_id, case kind when 'branch' then origin_id end as branch_id, parent_session_id, agent_id, generation, key, phase, opened_at, closed_at, close_reason,
            close_detail, queued, turn_count, active_turn_id, mismatch, coalesce(stop_turn_id = active_turn_id, false) as stopping, gate,
            gated_since, closed_at is null as can_steer, reset_request, continues_id, ",
            thread_columns!(),
            ", persona_version_id, persona_why,
            active_turn_id is not null and closed_at is null and stop_turn_id is distinct from active_turn_id as can_inject
        from session where account_id = $1",
            $of
        )
    };
}

/// Relies on session_newest, and on agent_pkey for the agents that have or had the slug; of very many, the youngest. Task and persona of a
/// row are found by their primary keys.
pub const LIST: Listing = Listing {
    rows: rows!(""),
    order: &[("opened_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some(
        "($2::text is null or task_id = $2)
         and ($3::text is null or agent_id in (
             select a.id from (select n.id, n.slug from agent n where n.account_id = $1 order by n.id desc limit 20000) a
             where a.slug = $3))
         and ($4::uuid is null or agent_id = $4)
         and ($5::boolean is null or (closed_at is null) = $5)
         and ($6::uuid is null or parent_session_id = $6)
         and ($7::text is null or (select t.board from task t where t.account_id = looked_at.account_id and t.id = task_id) = $7)
         and ($8::text is null
              or (select v.slug from persona_version v where v.account_id = looked_at.account_id and v.id = persona_version_id) = $8)",
    ),
    bytes: "coalesce(octet_length(mismatch), 0) + coalesce(octet_length(close_detail), 0) + coalesce(octet_length(reset_request::text), 0)",
    names: (
        ", coalesce(t.display_id, page.task_id) as task, a.slug as agent_slug, t.board as owner, v.slug as persona_slug, v.number as persona_version",
        "left join persona_version v on v.account_id = page.account_id and v.id = page.persona_version_id
         left join task t on t.account_id = page.account_id and t.id = page.task_id
         left join agent a on a.account_id = page.account_id and a.id = page.agent_id",
    ),
};

/// What a session has made. Relies on session_of_parent.
pub const OF_PARENT: Listing = Listing {
    rows: rows!(" and parent_session_id = $6"),
    ..LIST
};

pub async fn session_find(tx: &Tx, account: &AccountId, session: SessionId) -> Result<Option<Session>, StorageError> {
    tx.one("find session", FIND, [account.into(), session.into()]).await
}

/// Relies on session_key_unique, whose order is requested with the key as a range: a single value is no order.
pub const OF_KEY: &str = "
    select s.id from session s where s.account_id = $1 and s.key >= $2 and s.key <= $2 order by s.key limit 1";

/// The generation of this key.
pub async fn session_of_key(
    tx: &Tx,
    account: &AccountId,
    key: &SessionAddress,
) -> Result<Option<SessionId>, StorageError> {
    let values = [account.into(), key.to_string().into()];
    let row: Option<IdRow> = tx.one("find session by key", OF_KEY, values).await?;
    Ok(row.map(|row| row.id))
}

/// The fields of messages about a session.
#[derive(Debug, FromQueryResult)]
pub struct AboutSession {
    /// As its client spelled it.
    pub task: Option<TaskId>,
    /// The position of the newest item that was ever queued.
    pub queue_tail: i64,
}

/// The fields of messages about a session that exists: the caller holds its lock.
pub async fn session_about(tx: &Tx, account: &AccountId, session: SessionId) -> Result<AboutSession, StorageError> {
    const ATTEMPT: &str = "read locked session";
    let found = tx.one(ATTEMPT, FIND, [account.into(), session.into()]).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "it is gone"))
}

/// The open generation of a session's agent on its task, of its agent, of its orchestrator, or of its guest. Relies on the primary key,
/// session_active_task, session_active_system, session_active_orchestrator and session_active_guest.
pub const OPEN_OF: &str = "
    select o.id from session s cross join lateral (
        select o.id from session o
        where o.account_id = s.account_id and o.task_id = s.task_id and o.agent_id = s.agent_id and o.kind = 'task' and o.closed_at is null
        union all
        select o.id from session o
        where o.account_id = s.account_id and s.task_id is null and o.agent_id = s.agent_id and s.kind = 'system' and o.kind = 'system'
          and o.closed_at is null
        union all
        select o.id from session o
        where o.account_id = s.account_id and s.kind = 'orchestrator' and o.user_id = s.user_id and o.kind = 'orchestrator'
          and o.closed_at is null
        union all
        (select o.id from session o
         where o.account_id = s.account_id and s.kind = 'orchestrator' and s.user_id is null and o.user_id is null
           and o.kind = 'orchestrator' and o.closed_at is null order by o.user_id offset 0)
        union all
        select o.id from session o
        where o.account_id = s.account_id and s.kind = 'guest' and o.user_id = s.user_id and o.guest_user_id = s.guest_user_id
          and o.kind = 'guest' and o.closed_at is null) o
    where s.account_id = $1 and s.id = $2";

#[derive(FromQueryResult)]
struct IdRow {
    id: SessionId,
}

pub async fn session_open_of(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
) -> Result<Option<SessionId>, StorageError> {
    let row: Option<IdRow> = tx
        .one("find open generation", OPEN_OF, [account.into(), session.into()])
        .await?;
    Ok(row.map(|row| row.id))
}

/// The filters of a list.
#[derive(Debug, Default)]
pub struct Filter {
    pub task: Option<TaskId>,
    pub agent: Option<AgentRef>,
    pub active: Option<bool>,
    /// The session that made them.
    pub parent: Option<SessionId>,
    /// On whose orchestrator's board their tasks are.
    pub owner: Option<Owner>,
    pub persona: Option<PersonaSlug>,
}

impl Filter {
    pub fn listing(&self) -> &'static Listing {
        match self.parent {
            Some(_) => &OF_PARENT,
            None => &LIST,
        }
    }

    /// As the listing's parameters.
    pub fn values(&self) -> [Value; 7] {
        let (slug, agent_id) = agent_columns(self.agent.as_ref());
        let task = self.task.as_ref().map(TaskId::key);
        [
            task.into(),
            slug.into(),
            agent_id.into(),
            self.active.into(),
            self.parent.into(),
            self.owner.clone().into(),
            self.persona.clone().into(),
        ]
    }
}
