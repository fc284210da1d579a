//! Reads the generations of a conversation, a page of their turns in order, and the branches of these.

use api::log::LogBranch;
use contracts::tools;
use domain::{AccountId, SessionId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

use super::segments::Branches;
use crate::turns::store::{TurnRow, turn_bytes, turn_columns};

/// A generation.
#[derive(Clone, Debug, FromQueryResult)]
pub struct GenerationRow {
    pub id: SessionId,
    pub generation: i32,
    pub opened_at: OffsetDateTime,
    pub close_reason: Option<String>,
    pub close_detail: Option<String>,
}

/// The generations of a session's conversation in their order, from the one before `$3` on: it says why that one was opened. A branch for
/// each kind, which compares and orders by its own columns, so that it uses session_generation.
pub const GENERATIONS: &str = "
    with own as materialized (select * from session where account_id = $1 and id = $2)
    (select s.id, s.generation, s.opened_at, s.close_reason, s.close_detail from own o
     cross join lateral (
         select * from session s
         where s.account_id = o.account_id and s.kind = 'task' and o.kind = 'task' and s.task_id = o.task_id and s.agent_id = o.agent_id
           and s.user_id is null and s.generation >= $3 - 1
         order by s.user_id, s.generation limit $4) s)
    union all
    (select s.id, s.generation, s.opened_at, s.close_reason, s.close_detail from own o
     cross join lateral (
         select * from session s
         where s.account_id = o.account_id and s.kind = 'system' and o.kind = 'system' and s.task_id is null and s.agent_id = o.agent_id
           and s.user_id is null and s.generation >= $3 - 1
         order by s.task_id, s.user_id, s.generation limit $4) s)
    union all
    (select o.id, o.generation, o.opened_at, o.close_reason, o.close_detail from own o where o.kind not in ('task', 'system'))
    order by generation";

/// None: the session is not there.
pub async fn generations(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    (from, limit): (i32, i64),
) -> Result<Vec<GenerationRow>, StorageError> {
    let values = [account.into(), session.into(), from.into(), limit.into()];
    tx.rows("read generations", GENERATIONS, values).await
}

/// A turn, and how many the page has.
#[derive(FromQueryResult)]
pub struct LogRow {
    #[sea_orm(nested)]
    pub turn: TurnRow,
    pub page_rows: i64,
}

/// The turns of sessions in their order, of the first one those after a number. Relies on turn_number, whose order is requested. The
/// first turn is read in any case, and others as long as their bytes fit.
pub const TURNS: &str = concat!(
    "select page.* from (
        select page.*, count(*) over () as page_rows, sum(coalesce(page.bytes, 0)) over (order by page.place, page.number) - coalesce(page.bytes, 0) as bytes_before
        from (
            select ",
    turn_columns!("t"),
    ", w.place, ",
    turn_bytes!(),
    " as bytes
            from unnest($2::uuid[], $3::bigint[]) with ordinality as w (session, after, place)
            cross join lateral (
                select * from turn t where t.account_id = $1 and t.session_id = w.session and t.number > w.after
                order by t.number limit $4) t
            order by w.place, t.number limit $4) page
    ) page where page.bytes_before < $5 order by page.place, page.number"
);

/// `sessions`: with the number of the turn before the first that is wanted.
pub async fn turns(
    tx: &Tx,
    account: &AccountId,
    sessions: &[(SessionId, i64)],
    (limit, bytes_max): (i64, i64),
) -> Result<Vec<LogRow>, StorageError> {
    let ids: Vec<SessionId> = sessions.iter().map(|(id, _)| *id).collect();
    let after: Vec<i64> = sessions.iter().map(|(_, after)| *after).collect();
    let values = [account.into(), ids.into(), after.into(), limit.into(), bytes_max.into()];
    tx.rows("read a log", TURNS, values).await
}

#[derive(FromQueryResult)]
struct BranchRow {
    parent_turn_id: Uuid,
    #[sea_orm(nested)]
    branch: LogBranch,
}

/// The branches that turns spawned, in the order of the calls: a group has the id of its call, and ten branches at most. Relies on
/// tool_call_turn and branch_group.
pub const BRANCHES: &str = "
    select b.parent_turn_id, b.id, b.label, b.state, b.session_id, b.joined_item,
           (select a.slug from agent a where a.account_id = b.account_id and a.id = b.agent_id) as agent
    from unnest($2::uuid[]) as w (turn)
    cross join lateral (
        select c.* from tool_call c where c.account_id = $1 and c.turn_id = w.turn and c.name = $3 order by c.ordinal) c
    cross join lateral (
        select * from branch b where b.account_id = $1 and b.group_id = c.id and b.parent_turn_id = w.turn order by b.ordinal limit 10) b
    order by c.ordinal, b.ordinal";

pub async fn branches(tx: &Tx, account: &AccountId, turns: Vec<Uuid>) -> Result<Branches, StorageError> {
    let values = [account.into(), turns.into(), tools::subagent_spawn::NAME.into()];
    let rows: Vec<BranchRow> = tx.rows("read the branches of turns", BRANCHES, values).await?;
    let mut of_turn = Branches::new();
    for row in rows {
        of_turn.entry(row.parent_turn_id).or_default().push(row.branch);
    }
    Ok(of_turn)
}
