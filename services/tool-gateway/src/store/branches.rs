//! Branches, for the tools of their parents; and what a branch is shown of its task: what its parent could know.

use domain::{AccountId, AgentSlug, BranchContext, BranchId, BranchState, SessionId, TaskId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, lifecycle::TaskContext, session::branch_spawn::Base, statement::column};
use time::OffsetDateTime;

use super::{ActivityRow, MessageRow, each};

/// A branch, for its parent.
#[derive(Debug, FromQueryResult)]
pub(crate) struct BranchRow {
    pub id: BranchId,
    pub session_id: SessionId,
    pub agent_slug: AgentSlug,
    pub label: Option<String>,
    pub context: BranchContext,
    pub state: BranchState,
    pub detail: Option<String>,
    pub created_at: OffsetDateTime,
    pub deadline_at: OffsetDateTime,
    pub ended_at: Option<OffsetDateTime>,
}

macro_rules! branch_columns {
    () => {
        "b.id, b.session_id, a.slug as agent_slug, b.label, b.context, b.state, b.detail, b.created_at, b.deadline_at, b.ended_at"
    };
}

/// The newest branches of a session. Relies on branch_of_parent, whose order is requested, and on agent_pkey.
pub const BRANCHES_OF_SESSION: &str = concat!(
    "select ",
    branch_columns!(),
    " from (select * from branch b where b.account_id = $1 and b.parent_session_id = $2
            order by b.created_at desc, b.id desc limit $3) b
      join agent a on a.account_id = any (array[b.account_id]) and a.id = b.agent_id
      order by b.created_at desc, b.id desc"
);

pub(crate) async fn branches_of_session(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    limit: i64,
) -> Result<Vec<BranchRow>, StorageError> {
    let values = [account.into(), session.into(), limit.into()];
    tx.rows("list branches of a session", BRANCHES_OF_SESSION, values).await
}

/// Relies on the primary keys.
pub const BRANCH_OF_SESSION: &str = concat!(
    "select ",
    branch_columns!(),
    " from (select * from branch b where b.account_id = $1 and b.id = $3 offset 0) b
      join agent a on a.account_id = any (array[b.account_id]) and a.id = b.agent_id
      where b.parent_session_id = $2"
);

/// A branch of the session; none: there is no such branch, or it is another session's.
pub(crate) async fn branch_of_session(
    tx: &Tx,
    account: &AccountId,
    (session, branch): (SessionId, BranchId),
) -> Result<Option<BranchRow>, StorageError> {
    let values = [account.into(), session.into(), branch.into()];
    tx.one("find branch of a session", BRANCH_OF_SESSION, values).await
}

/// What a branch asks of its base.
#[derive(Clone, Debug)]
pub(crate) struct BaseAsked {
    pub account: AccountId,
    pub branch: BranchId,
    pub messages: i64,
    pub activities: i64,
}

/// What a branch's parent knew of the task.
#[derive(Debug)]
pub(crate) struct BaseRows {
    /// As its client spelled it.
    pub task: TaskId,
    pub created_at: OffsetDateTime,
    pub base: Base,
    /// Newest first.
    pub messages: Vec<MessageRow>,
    pub activities: Vec<ActivityRow>,
}

#[derive(Debug, FromQueryResult)]
struct BaseRow {
    #[sea_orm(from_alias = "display_id")]
    task: TaskId,
    created_at: OffsetDateTime,
    base: Base,
}

/// Relies on the primary keys.
pub const BASES_FIND: &str = "
    select w.place, k.display_id, k.created_at, b.base
    from unnest($1::text[], $2::uuid[]) with ordinality as w (account_id, id, place)
    cross join lateral (select * from branch b where b.account_id = w.account_id and b.id = w.id offset 0) b
    cross join lateral (select * from task k where k.account_id = b.account_id and k.id = b.task_id offset 0) k";

/// As of a thread, of the messages that the base names. Relies on the primary keys.
pub const BASE_MESSAGES: &str = "
    select w.place, m.*
    from unnest($1::text[], $2::uuid[], $3::bigint[]) with ordinality as w (account_id, id, limit_rows, place)
    cross join lateral (select * from branch b where b.account_id = w.account_id and b.id = w.id offset 0) b
    cross join lateral (
        select id, author_kind, author_id, author_name, author_via, left(body, $4) as body, octet_length(body) as body_bytes,
            created_at, asked_rows
        from (
            select m.*, count(*) over () as asked_rows,
                sum(least(octet_length(m.body), $4)) over (rows unbounded preceding) - least(octet_length(m.body), $4)
                    as bytes_before
            from (
                select m.id, m.author_kind, m.author_id, m.author_name, m.author_via, m.body, m.created_at
                from unnest(b.base_messages) as i (id)
                cross join lateral (select * from message m where m.account_id = b.account_id and m.id = i.id offset 0) m
                where m.task_id = b.task_id
                order by m.created_at desc, m.id desc limit w.limit_rows
            ) m
        ) m
        where bytes_before <= $5) m
    order by w.place, m.created_at desc, m.id desc";

/// Relies on the primary keys.
pub const BASE_ACTIVITIES: &str = "
    select w.place, a.*
    from unnest($1::text[], $2::uuid[], $3::bigint[]) with ordinality as w (account_id, id, limit_rows, place)
    cross join lateral (select * from branch b where b.account_id = w.account_id and b.id = w.id offset 0) b
    cross join lateral (
        select a.id, a.kind, a.actor_kind, a.actor_id, a.actor_name, a.detail, a.created_at
        from unnest(b.base_activities) as i (id)
        cross join lateral (
            (select id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at from activity
             where account_id = b.account_id and id = i.id offset 0)
            union all
            (select id, task_id, 'message.posted', author_kind, author_id, author_name,
                    jsonb_strip_nulls(jsonb_build_object('message_id', id, 'via', author_via)), created_at
             from message where account_id = b.account_id and id = i.id offset 0)) a
        where a.task_id = b.task_id
        order by a.created_at desc, a.id desc limit w.limit_rows) a
    order by w.place, a.created_at desc, a.id desc";

/// None: the branch is gone.
pub(crate) async fn bases_read(
    tx: &Tx,
    asked: &[BaseAsked],
    body_characters_max: i32,
    bytes_max: i64,
) -> Result<Vec<Option<BaseRows>>, StorageError> {
    let named = || {
        [
            column(asked, |one| one.account.clone()),
            column(asked, |one| one.branch),
        ]
    };
    let bases = each::<BaseRow>(tx, "read bases of branches", BASES_FIND, asked.len(), named()).await?;
    let limited = [body_characters_max.into(), bytes_max.into()];
    let values = named()
        .into_iter()
        .chain([column(asked, |one| one.messages)])
        .chain(limited);
    let messages = each(tx, "read messages of bases", BASE_MESSAGES, asked.len(), values).await?;
    let values = named().into_iter().chain([column(asked, |one| one.activities)]);
    let activities = each(tx, "read activities of bases", BASE_ACTIVITIES, asked.len(), values).await?;
    let all = bases.into_iter().zip(messages).zip(activities);
    let rows = all.map(|((base, messages), activities)| {
        let base = base.into_iter().next()?;
        Some(BaseRows {
            task: base.task,
            created_at: base.created_at,
            base: base.base,
            messages,
            activities,
        })
    });
    Ok(rows.collect())
}

/// Relies on the primary keys.
pub const CONTEXT_OF_BRANCH: &str = "
    select c.version, c.body, c.characters, c.cut_characters, c.author_kind, c.author_id, c.author_name, null::text as author_via,
           c.turn_id, c.created_at
    from (select * from branch b where b.account_id = $1 and b.id = $2 offset 0) b
    cross join lateral (
        select * from task_context c
        where c.account_id = b.account_id and c.task_id = b.task_id and c.version = (b.base ->> 'context_version')::integer offset 0) c";

/// The version of its task's context that a branch knows.
pub(crate) async fn context_of_branch(
    tx: &Tx,
    account: &AccountId,
    branch: BranchId,
) -> Result<Option<TaskContext>, StorageError> {
    let values = [account.into(), branch.into()];
    tx.one("read task context of a branch", CONTEXT_OF_BRANCH, values).await
}
