//! Opens the next generation of conversations.

use std::collections::HashMap;

use domain::{Conversation, Generation, SessionId, TaskId, UserId};
use sea_orm::FromQueryResult;

use super::sessions_lock::{by_kind, index};
use crate::{StorageError, Tx, statement::column};

#[derive(FromQueryResult)]
struct NewestRow {
    n: i64,
    #[sea_orm(nested)]
    newest: Newest,
}

/// The newest generation of a conversation without an active one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Newest {
    /// None: it never had one.
    pub generation: Option<Generation>,
    /// Its task's end closed it, or its task has ended.
    pub ended: bool,
}

/// The agents are locked until the end of the transaction, so that none is removed while a session is opened for it
/// (S11). The lock cannot deadlock: the remover of an agent waits for its sessions, which this transaction holds.
/// Relies on session_generation, and orders by its columns, null columns included; and on primary keys.
pub const SESSIONS_NEWEST_OF_TASKS: &str = "
    select w.n, s.generation,
           coalesce(s.close_reason in ('task_done', 'task_cancelled', 'task_archived'), false)
               or coalesce(t.status in ('done', 'cancelled', 'archived'), false) as ended
    from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) as w (account_id, agent_id, n, task_id)
    left join lateral (
        select s.generation, s.close_reason from session s
        where s.account_id = w.account_id and s.kind = 'task' and s.task_id = w.task_id
          and s.agent_id = w.agent_id and s.user_id is null
        order by s.user_id desc, s.generation desc limit 1) s on true
    left join lateral (select t.status from task t where t.account_id = w.account_id and t.id = w.task_id offset 0) t on true
    cross join lateral (
        select a.removed_at from agent a where a.account_id = w.account_id and a.id = w.agent_id
        offset 0 for share nowait) as a
    where a.removed_at is null";
pub const SESSIONS_NEWEST_OF_AGENTS: &str = "
    select w.n, (select s.generation from session s
                 where s.account_id = w.account_id and s.kind = 'system' and s.task_id is null
                   and s.agent_id = w.agent_id and s.user_id is null
                 order by s.task_id desc, s.user_id desc, s.generation desc limit 1) as generation, false as ended
    from unnest($1::text[], $2::uuid[], $3::bigint[]) as w (account_id, agent_id, n)
    cross join lateral (
        select a.removed_at from agent a where a.account_id = w.account_id and a.id = w.agent_id
        offset 0 for share nowait) as a
    where a.removed_at is null";
/// The person is locked instead of the agent, which is never removed: none is removed while a session is opened for them.
pub const SESSIONS_NEWEST_OF_ORCHESTRATORS: &str = "
    select w.n, (select s.generation from (
                     (select s.generation from session s
                      where s.account_id = w.account_id and s.kind = 'orchestrator' and s.task_id is null
                        and s.agent_id = w.agent_id and s.user_id = w.user_id
                      order by s.task_id desc, s.generation desc limit 1)
                     union all
                     (select s.generation from session s
                      where w.user_id = '' and s.account_id = w.account_id and s.kind = 'orchestrator' and s.task_id is null
                        and s.agent_id = w.agent_id and s.user_id is null
                      order by s.task_id desc, s.user_id desc, s.generation desc limit 1)) s) as generation, false as ended
    from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) as w (account_id, agent_id, n, user_id)
    left join lateral (
        select m.user_id, m.removed_at from member m where m.account_id = w.account_id and m.user_id = w.user_id
        offset 0 for share nowait) as m on true
    where w.user_id = '' or m.user_id is not null and m.removed_at is null";
/// Owner and guest are locked, as by whoever removes one or ends the owner's reach: none of it happens while a session is opened. Relies on
/// session_of_guest, whose order is requested, and on primary keys.
pub const SESSIONS_NEWEST_OF_GUESTS: &str = "
    select w.n, (select s.generation from session s
                 where s.account_id = w.account_id and s.user_id = w.user_id and s.guest_user_id = w.guest_id and s.kind = 'guest'
                 order by s.generation desc limit 1) as generation, false as ended
    from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[], $5::text[]) as w (account_id, agent_id, n, user_id, guest_id)
    cross join lateral (
        select m.removed_at from member m where m.account_id = w.account_id and m.user_id = w.user_id offset 0 for share nowait) as m
    cross join lateral (
        select g.removed_at from member g where g.account_id = w.account_id and g.user_id = w.guest_id offset 0 for share nowait) as g
    cross join lateral (
        select i.reachable from orchestrator_identity i where i.account_id = w.account_id and i.owner = w.user_id offset 0) as i
    where m.removed_at is null and g.removed_at is null and i.reachable <> 'off'";

/// The newest generation of each conversation, if it ever had one; a conversation whose agent or person was
/// removed is missing in the result.
pub async fn sessions_newest(tx: &Tx, conversations: &[&Conversation]) -> Result<HashMap<usize, Newest>, StorageError> {
    let mut found = HashMap::new();
    let statements = [
        SESSIONS_NEWEST_OF_TASKS,
        SESSIONS_NEWEST_OF_AGENTS,
        SESSIONS_NEWEST_OF_ORCHESTRATORS,
        SESSIONS_NEWEST_OF_GUESTS,
    ];
    for (columns, sql) in by_kind(conversations, statements) {
        let rows: Vec<NewestRow> = tx.rows("find newest generations", sql, columns.values()).await?;
        found.extend(rows.into_iter().map(|row| (index(row.n), row.newest)));
    }
    Ok(found)
}

#[derive(Clone, Debug)]
pub struct NewSession<'a> {
    pub id: SessionId,
    pub conversation: &'a Conversation,
    pub generation: Generation,
    /// The orchestrator's session that it is created for.
    pub parent: Option<SessionId>,
}

/// The persona of a generation that opens in this account on this task, as a lateral table of `version_id` and `why`; none: no row.
/// A person named one for the task that is shared or their own, or the account has a default one. One that was removed is none, which is
/// compared in a form that no partial index has. Relies on primary keys and on persona_default.
macro_rules! persona_of {
    ($account:literal, $task:literal) => {
        concat!(
            "(select p.version_id, c.why from (
                select k.persona_id as id, coalesce(k.persona_from, 'user') as why, case k.persona_from when 'inferred' then 3 else 1 end as place,
                       k.persona_by as maker from task k where k.account_id = ",
            $account,
            " and k.id = ",
            $task,
            " and k.persona_id is not null
                union all
                select d.id, 'account', 4, null from persona d where d.account_id = ",
            $account,
            " and d.is_default and d.removed_at is null) c
              cross join lateral (select p.version_id from persona p where p.account_id = ",
            $account,
            " and p.id = c.id and coalesce(p.removed_at, 'infinity') = 'infinity'
                and (p.visibility = 'shared' or p.created_by = c.maker) offset 0) p
              order by c.place limit 1)"
        )
    };
}
pub(super) use persona_of;

/// The first transaction wins: session_active_task, session_active_system,
/// session_active_orchestrator, session_active_guest and session_generation refuse every other.
pub const SESSIONS_OPEN: &str = concat!(
    "
    insert into session (account_id, id, kind, task_id, agent_id, user_id, guest_user_id, generation, key, parent_session_id, persona_version_id,
                         persona_why)
    select w.account_id, w.id, w.kind, nullif(w.task_id, ''), w.agent_id, nullif(w.user_id, ''), nullif(w.guest_id, ''), w.generation, w.key,
           nullif(w.parent, '')::uuid, p.version_id, p.why
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::integer[], $7::text[], $8::text[], $9::text[],
                $10::text[]) as w (account_id, id, kind, task_id, agent_id, generation, key, user_id, guest_id, parent)
    left join lateral ",
    persona_of!("w.account_id", "w.task_id"),
    " p on w.kind not in ('orchestrator', 'guest')
    on conflict do nothing"
);

/// Opens sessions; returns how many. Fewer than asked: another transaction opened one of them.
pub async fn sessions_open(tx: &Tx, sessions: &[NewSession<'_>]) -> Result<u64, StorageError> {
    let text = |task: Option<&TaskId>| task.cloned().map_or_else(String::new, String::from);
    let user = |user: Option<&UserId>| user.map_or_else(String::new, ToString::to_string);
    let values = [
        column(sessions, |new| new.conversation.account.clone()),
        column(sessions, |new| new.id),
        column(sessions, |new| new.conversation.kind()),
        column(sessions, |new| text(new.conversation.task())),
        column(sessions, |new| new.conversation.agent),
        column(sessions, |new| new.generation),
        column(sessions, |new| new.conversation.key(new.generation).to_string()),
        column(sessions, |new| user(new.conversation.person())),
        column(sessions, |new| user(new.conversation.guest())),
        column(sessions, |new| {
            new.parent.map_or_else(String::new, |parent| parent.to_string())
        }),
    ];
    tx.execute("open sessions", SESSIONS_OPEN, values).await
}
