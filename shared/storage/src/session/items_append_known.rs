//! Appends items to sessions that the caller knows from before, without reading anything first. The caller is not
//! believed: the statement takes the sessions' locks, and appends all items or none.

use domain::{AccountId, AgentId, AgentSlug, Generation, SessionScope, TaskId};
use sea_orm::{FromQueryResult, Value};

use super::{
    SessionName,
    items_append::{NewItem, item_columns},
};
use crate::{StorageError, Tx, statement::column};

/// What the caller believes about an item's way to its session.
#[derive(Clone, Debug)]
pub struct Believed<'a> {
    pub account: &'a AccountId,
    pub agent: AgentId,
    /// The agent's, if the item names it by slug.
    pub slug: Option<&'a AgentSlug>,
    pub scope: SessionScope,
    /// The item's task.
    pub task: Option<&'a TaskId>,
}

/// A session, and how many items it gets. Its items' positions count from 1.
pub type Getting = (SessionName, i32);

/// An item, and which session it goes to: the place in the list, from 1.
pub type Going<'a> = (NewItem<'a>, i32);

/// SQL: the part of a statement that follows a table `moved`; nothing is appended unless `moved` has a row. Its
/// parameters are the first 33. No item is a steer: it would need the turn in progress.
///
/// A session is locked as in [`CONVERSATIONS_LOCK`](super::sessions_lock::CONVERSATIONS_LOCK), in the same order; its row
/// is that of after the wait. It falls out when it has closed, as it does when its agent is removed, when its queue
/// would be too long, or when an item may open its gate. What the caller believes is compared with the rows: the agent's
/// slug, the account's scope, the task, and who is reached in the coordinator's chat (S6). Relies on the primary keys. The positions of the sessions are an
/// array, since the planner would compare each item with each session.
#[macro_export]
macro_rules! items_append_known {
    () => {
        concat!(
            "locked as materialized (
        select w.n, s.generation, s.queue_tail, s.phase = 'idle' and s.queued = 0 as rests
        from moved, unnest($25::text[], $26::uuid[], $27::integer[]) with ordinality as w (account_id, id, items, n)
        join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
        where coalesce(s.closed_at is null, false) and coalesce(s.queued + w.items <= $28, false)
          and coalesce(s.gate, 'collect') = 'collect' and s.stop_turn_id is null
        order by w.account_id, w.id for no key update of s
    ), held as (
        select from unnest($29::text[], $30::uuid[], $31::text[], $32::text[], $33::text[])
            as b (account_id, agent_id, slug, scope, task_id)
        cross join lateral (select * from account a where a.id = b.account_id offset 0) a
        cross join lateral (select * from agent g where g.account_id = b.account_id and g.id = b.agent_id offset 0) g
        left join lateral (select * from task t where t.account_id = b.account_id and t.id = b.task_id offset 0) t on true
        where a.session_scope = b.scope and (b.slug = '' or g.slug = b.slug) and g.removed_at is null
          and (b.task_id = '' or t.id is not null)
          and (b.task_id is distinct from a.coordinator_task or ",
            $crate::coordinates!("a", "b.agent_id"),
            ")
    ), ready as materialized (
        select array_agg(l.queue_tail order by l.n) as tails, array_agg(l.rests order by l.n) as rests from locked l
        having count(*) = cardinality($25) and (select count(*) from held) = cardinality($29)
    ), entered as (
        ",
            $crate::items_insert!(
                "t.tails[r.n] + r.position",
                "r.queue_mode = 'collect' and not (t.rests[r.n] and r.position = 1)"
            ),
            "ready t, ",
            $crate::item_rows!("$24::integer[]", "n"),
            "
        on conflict do nothing
        returning 1
    ), enqueued as (
        update session s set queued = s.queued + w.items, queue_tail = s.queue_tail + w.items
        from ready, unnest($25::text[], $26::uuid[], $27::integer[]) as w (account_id, id, items)
        where s.account_id = any (array[w.account_id]) and s.id = w.id
    )
    select l.n, l.generation, l.queue_tail, l.rests, (select count(*) from entered) as entered from locked l order by l.n"
        )
    };
}

#[derive(FromQueryResult)]
struct Row {
    generation: Generation,
    queue_tail: i64,
    rests: bool,
    entered: i64,
}

/// A session, as it was before its items.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub generation: Generation,
    pub queue_tail: i64,
    pub rests: bool,
}

/// Executes a statement that ends with `items_append_known!`. None: not all items were appended, and the caller rolls
/// back.
pub async fn items_append_known(
    tx: &Tx,
    sql: &'static str,
    items: &[Going<'_>],
    sessions: &[Getting],
    believed: &[Believed<'_>],
    waiting_max: i64,
    more: impl IntoIterator<Item = Value>,
) -> Result<Option<Vec<Known>>, StorageError> {
    let mut items: Vec<&Going<'_>> = items.iter().collect();
    // In one order, so that two writers of the same ids do not deadlock.
    items.sort_unstable_by(|(a, _), (b, _)| (a.account, a.id).cmp(&(b.account, b.id)));
    let rows: Vec<&NewItem<'_>> = items.iter().map(|(row, _)| row).collect();
    let text = |text: Option<String>| text.unwrap_or_default();
    let values = item_columns(&rows).into_iter().chain([
        column(&items, |(_, session)| *session),
        column(sessions, |((account, _), _)| account.clone()),
        column(sessions, |((_, id), _)| *id),
        column(sessions, |(_, items)| *items),
        waiting_max.into(),
        column(believed, |one| one.account.clone()),
        column(believed, |one| one.agent),
        column(believed, |one| text(one.slug.map(ToString::to_string))),
        column(believed, |one| one.scope),
        column(believed, |one| text(one.task.map(|task| task.key().into()))),
    ]);
    let found: Vec<Row> = tx.rows("enter notifications", sql, values.chain(more)).await?;
    let all = found.len() == sessions.len() && found.iter().all(|row| usize::try_from(row.entered) == Ok(items.len()));
    let known = found.into_iter().map(|row| Known {
        generation: row.generation,
        queue_tail: row.queue_tail,
        rests: row.rests,
    });
    Ok(all.then(|| known.collect()))
}
