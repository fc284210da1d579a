//! Every query on branches, and on the turns of a task. `storage::session::branch_end` ends branches.

use api::branches::Branch;
use domain::{AccountId, BranchId, SessionId, TaskId, TurnId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, session::items_join::Notes};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::paging::{Column, Listing, Order};

macro_rules! columns {
    () => {
        "b.account_id, b.id, b.group_id, b.ordinal, b.task_id, b.parent_session_id, b.parent_turn_id, b.session_id, b.agent_id, b.depth,
         b.label, b.request, b.context, b.join_mode as join, b.base ->> 'title' as base_title, b.base ->> 'status' as base_status,
         (b.base ->> 'context_version')::integer as base_context_version, (b.base ->> 'last_turn')::uuid as base_last_turn,
         cardinality(b.base_messages) as base_messages, cardinality(b.base_activities) as base_activities,
         b.base_messages[1] as base_newest_message, coalesce(b.base ->> 'sha256', '') as base_sha256, b.deadline_at, b.state, b.detail,
         b.result, b.result_cut_bytes, b.joined_item, b.created_at, b.ended_at"
    };
}

/// Relies on branch_of_task.
pub const LIST: Listing = Listing {
    rows: concat!(
        "select ",
        columns!(),
        " from branch b where b.account_id = $1 and b.task_id = $2"
    ),
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some("$3::text is null or state = $3"),
    bytes: "octet_length(request) + coalesce(octet_length(result), 0) + coalesce(octet_length(detail), 0)",
    names: (
        ", coalesce(k.display_id, page.task_id) as task, a.slug as agent_slug",
        "left join task k on k.account_id = page.account_id and k.id = page.task_id
         join agent a on a.account_id = page.account_id and a.id = page.agent_id",
    ),
};

/// Relies on the primary keys.
const FIND: &str = concat!(
    "select ",
    columns!(),
    ", k.display_id as task, a.slug as agent_slug
     from branch b join task k on k.account_id = b.account_id and k.id = b.task_id
     join agent a on a.account_id = b.account_id and a.id = b.agent_id
     where b.account_id = $1 and b.id = $2"
);

pub async fn branch_find(tx: &Tx, account: &AccountId, branch: BranchId) -> Result<Option<Branch>, StorageError> {
    tx.one("find branch", FIND, [account.into(), branch.into()]).await
}

/// A turn on a task; or, without one, the last lane that was looked at.
#[derive(Debug, FromQueryResult)]
pub struct GraphRow {
    /// 0: a session of the task, by its id; 1: a branch, by its time and id.
    pub rank: i32,
    /// Of a session, the epoch.
    pub begun_at: OffsetDateTime,
    pub lane: Uuid,
    /// Of the lane, among those that were looked at: from 1 to [`LANES_MAX`].
    pub place: i64,
    pub turn_id: Option<TurnId>,
    pub session_id: SessionId,
    pub branch_id: Option<BranchId>,
    /// Without a turn, that of the last one which was shown.
    pub number: i64,
    pub manifest_packed: Option<Vec<u8>>,
    pub notes: Notes,
    pub previous: Option<TurnId>,
    /// The turn that made its branch, where it is the branch's first.
    pub spawned_by: Option<TurnId>,
    /// The last turns of the branches whose results it got.
    pub folded: Vec<TurnId>,
}

/// Lanes at which a page of a graph looks. A lane may have no turn yet, or never get one: it takes no place on a page, but that the last
/// one which was looked at is returned all the same, and the next page continues with it. So there have to be two at least.
pub const LANES_MAX: i64 = 1_000;

/// The turns of a task's own sessions, and of its branches, each session's in their order; from the turn after a place on. Relies on
/// session_generation, branch_of_task, branch_item and turn_number, whose orders are requested, and on primary keys.
pub const GRAPH: &str = "
    with lanes as materialized (
        (select 0 as rank, 'epoch'::timestamptz as begun_at, s.id as lane, s.id as session_id, null::uuid as branch_id,
                null::uuid as parent_turn_id
         from (select * from session s where s.account_id = $1 and s.kind = 'task' and s.task_id = $2
               order by s.account_id, s.kind, s.task_id, s.agent_id offset 0) s
         where $3 = 0 and s.id >= $5 order by s.id limit $8)
        union all
        (select 1, b.created_at, b.id, b.session_id, b.id, b.parent_turn_id from branch b
         where b.account_id = $1 and b.task_id = $2
           and (b.created_at, b.id) >= (case when $3 = 1 then $4 else '-infinity'::timestamptz end,
                                        case when $3 = 1 then $5 else '00000000-0000-0000-0000-000000000000'::uuid end)
         order by b.created_at, b.id limit $8)
    ), looked_at as materialized (
        select l.*, row_number() over (order by rank, begun_at, lane) as place from lanes l order by rank, begun_at, lane limit $8
    )
    select l.rank, l.begun_at, l.lane, l.place, t.id as turn_id, l.session_id, l.branch_id,
           coalesce(t.number, case when l.rank = $3 and l.lane = $5 then $6 else 0 end) as number, t.manifest_packed,
           coalesce(t.notes, '[]') as notes,
           (select p.id from turn p where p.account_id = t.account_id and p.session_id = t.session_id and p.number < t.number
            order by p.account_id desc, p.session_id desc, p.number desc limit 1) as previous,
           case when t.number = 1 then l.parent_turn_id end as spawned_by,
           array(select f.id from unnest(t.notification_ids) as n (id)
                 cross join lateral (
                     select b.account_id, b.session_id from branch b where b.account_id = t.account_id and b.joined_item = n.id
                     order by b.account_id, b.joined_item limit 100) b
                 cross join lateral (
                     select f.id from turn f where f.account_id = b.account_id and f.session_id = b.session_id
                     order by f.account_id desc, f.session_id desc, f.number desc limit 1) f) as folded
    from (select * from looked_at order by rank, begun_at, lane) l
    left join lateral (
        select * from turn t
        where t.account_id = $1 and t.session_id = l.session_id
          and t.number > case when l.rank = $3 and l.lane = $5 then $6 else 0 end
        order by t.account_id, t.session_id, t.number limit $7) t on true
    where t.id is not null or l.place = $8
    order by l.rank, l.begun_at, l.lane, t.number limit $7";

/// Where a page of a graph begins: after this turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphPlace {
    pub rank: i32,
    pub begun_at: OffsetDateTime,
    pub lane: Uuid,
    pub number: i64,
}

impl GraphPlace {
    /// Before the first turn.
    pub const START: GraphPlace = GraphPlace {
        rank: 0,
        begun_at: OffsetDateTime::UNIX_EPOCH,
        lane: Uuid::nil(),
        number: 0,
    };
}

pub async fn graph_read(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    after: GraphPlace,
    limit: i64,
) -> Result<Vec<GraphRow>, StorageError> {
    let values = [
        account.into(),
        task.key().into(),
        after.rank.into(),
        after.begun_at.into(),
        after.lane.into(),
        after.number.into(),
        limit.into(),
        LANES_MAX.into(),
    ];
    tx.rows("read the turns of a task", GRAPH, values).await
}
