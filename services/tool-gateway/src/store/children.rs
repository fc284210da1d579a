//! The sessions on an orchestrator's board, for its tools: its children (O7). Whose a session is follows from the board of its task.

use domain::{
    AccountId, AgentId, AgentSlug, Owner, PersonaId, SessionId, SessionPhase, TaskId, TaskStatus, UserId,
    next::SessionNow,
};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

/// A child, by its newest session.
#[derive(Debug, FromQueryResult)]
pub(crate) struct ChildRow {
    pub session_id: SessionId,
    pub session_key: String,
    #[sea_orm(from_alias = "display_id")]
    pub task: TaskId,
    pub title: String,
    pub task_status: TaskStatus,
    pub agent_id: AgentId,
    pub agent_slug: AgentSlug,
    pub persona: Option<String>,
    pub persona_version: Option<i32>,
    pub persona_why: Option<String>,
    pub is_closed: bool,
    pub phase: SessionPhase,
    pub queued: i32,
    pub last_activity: OffsetDateTime,
    /// The beginning of its newest turn's reply.
    pub summary: Option<String>,
}

/// Of tasks `t`, each with an agent or null for any: their open sessions, else the newest one. Where an account has one session for all of
/// an agent's work, that of the task's agents.
macro_rules! child {
    ($tasks:expr) => {
        concat!(
            "select s.id as session_id, s.key as session_key, t.display_id, t.title, t.status as task_status, s.agent_id, g.slug as agent_slug,
                    v.slug as persona, v.number as persona_version, s.persona_why, s.closed_at is not null as is_closed, s.phase, s.queued,
                    greatest(s.opened_at, u.started_at, u.finished_at) as last_activity, left(u.reply, 300) as summary
             from (",
            $tasks,
            ") t
             cross join lateral (
                (select s.* from session s
                 where s.account_id = t.account_id and s.task_id = t.id and s.kind = 'task' and s.closed_at is null
                   and s.agent_id = coalesce(t.agent_id, s.agent_id)
                 order by s.agent_id limit 8)
                union all
                (select s.* from session s
                 where s.account_id = t.account_id and s.kind = 'task' and s.task_id = t.id
                   and s.agent_id = coalesce(t.agent_id, s.agent_id)
                   and not exists (
                     select from session o
                     where o.account_id = t.account_id and o.task_id = t.id and o.kind = 'task' and o.closed_at is null
                       and o.agent_id = coalesce(t.agent_id, o.agent_id) offset 0)
                 order by s.agent_id desc, s.user_id desc, s.generation desc limit 1)
                union all
                (select s.* from task_assignee ta
                 cross join lateral (
                    select * from session s
                    where s.account_id = ta.account_id and s.agent_id = ta.agent_id and s.kind = 'system' and s.closed_at is null
                    offset 0) s
                 where ta.account_id = t.account_id and ta.task_id = t.id and ta.agent_id = coalesce(t.agent_id, ta.agent_id)
                   and (select a.session_scope = 'agent' from account a where a.id = t.account_id)
                 limit 8)) s
             cross join lateral (select * from agent g where g.account_id = s.account_id and g.id = s.agent_id offset 0) g
             left join lateral (
                select v.slug, v.number from persona_version v
                where v.account_id = s.account_id and v.id = s.persona_version_id offset 0) v on true
             left join lateral (
                select u.started_at, u.finished_at, u.reply from (
                    select * from turn u where u.account_id = s.account_id and u.session_id = s.id
                    order by u.number desc limit 50) u
                where u.task_id = t.id limit 1) u on true"
        )
    };
}

/// Relies on task_board, whose order is requested, on session_active_task, session_generation, session_active_system, turn_number, and on
/// primary keys.
pub const CHILDREN_LIST: &str = concat!(
    child!(
        "select t.*, null::uuid as agent_id from unnest($3::text[], $4::bigint[]) as w (status, most)
         cross join lateral (
            select * from task t where t.account_id = $1 and t.board = $2 and t.status = w.status
            order by t.created_at desc limit w.most) t"
    ),
    " order by last_activity desc limit $5"
);

/// Statuses of tasks, and how many of each are looked at; and how many children there are at most.
pub(crate) async fn children_list(
    tx: &Tx,
    account: &AccountId,
    owner: &Owner,
    of: &[(TaskStatus, i64)],
    limit: i64,
) -> Result<Vec<ChildRow>, StorageError> {
    let values = [
        account.into(),
        owner.to_string().into(),
        of.iter()
            .map(|(status, _)| status.to_string())
            .collect::<Vec<_>>()
            .into(),
        of.iter().map(|(_, most)| *most).collect::<Vec<_>>().into(),
        limit.into(),
    ];
    tx.rows("list children", CHILDREN_LIST, values).await
}

/// A session in which an orchestrator answers somebody else. What is said there is not for its owner's own session.
#[derive(Debug, FromQueryResult)]
pub(crate) struct GuestRow {
    pub session_id: SessionId,
    pub session_key: String,
    #[sea_orm(from_alias = "guest_user_id")]
    pub guest: UserId,
    pub phase: SessionPhase,
    pub queued: i32,
    pub last_activity: OffsetDateTime,
}

/// Relies on session_active_guest and turn_number, whose orders are requested.
pub const GUESTS_LIST: &str = "
    select s.id as session_id, s.key as session_key, s.guest_user_id, s.phase, s.queued,
           greatest(s.opened_at, (
               select coalesce(u.finished_at, u.started_at) from turn u where u.account_id = s.account_id and u.session_id = s.id
               order by u.number desc limit 1)) as last_activity
    from session s
    where s.account_id = $1 and s.user_id = $2 and s.kind = 'guest' and s.closed_at is null
    order by s.guest_user_id limit $3";

/// The open ones.
pub(crate) async fn guests_list(
    tx: &Tx,
    account: &AccountId,
    owner: &UserId,
    limit: i64,
) -> Result<Vec<GuestRow>, StorageError> {
    let values = [account.into(), owner.into(), limit.into()];
    tx.rows("list guests", GUESTS_LIST, values).await
}

/// Relies on primary keys, and on what [`CHILDREN_LIST`] does.
pub const CHILD_FIND: &str = concat!(
    child!(
        "select t.*, w.agent_id from (
            select s.task_id as id, s.agent_id from session s where s.account_id = $1 and s.id = $3 and s.kind = 'task'
            union all select $4::text, $5::uuid where $4::text is not null) w
         cross join lateral (select * from task t where t.account_id = $1 and t.id = w.id offset 0) t
         where t.board = $2 offset 0"
    ),
    " limit 1"
);

/// A child, as it is named.
#[derive(Clone, Debug)]
pub(crate) enum ChildName {
    Session(SessionId),
    OfAgent(TaskId, AgentId),
}

/// The newest session of the agent on the task, which is on the owner's board.
pub(crate) async fn child_find(
    tx: &Tx,
    account: &AccountId,
    owner: &Owner,
    name: &ChildName,
) -> Result<Option<ChildRow>, StorageError> {
    let (session, task, agent) = match name {
        ChildName::Session(session) => (Some(*session), None, None),
        ChildName::OfAgent(task, agent) => (None, Some(task.key()), Some(*agent)),
    };
    let values = [
        account.into(),
        owner.to_string().into(),
        session.into(),
        task.into(),
        agent.into(),
    ];
    tx.one("find child", CHILD_FIND, values).await
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct ChildTurnRow {
    pub number: i64,
    pub state: String,
    pub reply: Option<String>,
    pub started_at: OffsetDateTime,
    pub finished_at: Option<OffsetDateTime>,
}

/// Of a session of all of an agent's work, the newest turns are looked at. Relies on turn_number, whose order is requested.
pub const CHILD_TURNS: &str = "
    select number, state, left(reply, $4) as reply, started_at, finished_at from (
        select * from turn where account_id = $1 and session_id = $2 order by number desc limit 200) u
    where u.task_id = $5 limit $3";

/// Those of its task, the newest first.
pub(crate) async fn child_turns(
    tx: &Tx,
    account: &AccountId,
    child: &ChildRow,
    (limit, characters_max): (i64, i32),
) -> Result<Vec<ChildTurnRow>, StorageError> {
    let values = [
        account.into(),
        child.session_id.into(),
        limit.into(),
        characters_max.into(),
        child.task.key().into(),
    ];
    tx.rows("read turns of a child", CHILD_TURNS, values).await
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct WaitingRow {
    pub sender_name: String,
    pub kind: String,
    pub created_at: OffsetDateTime,
    /// In the whole queue, from 1.
    pub place: i64,
    #[sea_orm(nested)]
    pub session: SessionNow,
}

/// Relies on notification_queue, whose order is requested, and on session_pkey.
pub const CHILD_QUEUE: &str = "
    select n.sender_name, n.kind, n.created_at,
           (select count(*) from notification q where q.account_id = n.account_id and q.session_id = n.session_id and q.state = 'queued'
              and q.position <= n.position) as place,
           s.phase, s.active_turn_id as active_turn, coalesce(s.stop_turn_id = s.active_turn_id, false) as stopping, s.gate, s.gate_ref,
           s.gated_since, s.wake_at, coalesce(s.wake_at <= now(), false) as due
    from (select * from notification
          where account_id = $1 and session_id = $2 and state = 'queued' and task_id = $4 order by position limit $3) n
    cross join lateral (select * from session s where s.account_id = n.account_id and s.id = n.session_id offset 0) s
    order by n.position";

pub(crate) async fn child_queue(
    tx: &Tx,
    account: &AccountId,
    child: &ChildRow,
    limit: i64,
) -> Result<Vec<WaitingRow>, StorageError> {
    let values = [
        account.into(),
        child.session_id.into(),
        limit.into(),
        child.task.key().into(),
    ];
    tx.rows("read queue of a child", CHILD_QUEUE, values).await
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct RoomRow {
    /// Tasks with an open session; where agents have one session for all of their work, those that have not ended.
    pub open: i64,
    /// Those that the turn has made.
    pub of_turn: i64,
}

/// Relies on task_board, session_active_task and tool_call_turn.
pub const CHILDREN_ROOM: &str = "
    select (select count(*) from unnest($3::text[]) as w (status)
            cross join lateral (
                select t.account_id, t.id from task t where t.account_id = $1 and t.board = $2 and t.status = w.status
                order by t.created_at desc limit $4) t
            where exists (
                select from session s
                where s.account_id = t.account_id and s.task_id = t.id and s.kind = 'task' and s.closed_at is null offset 0)
               or (select a.session_scope = 'agent' from account a where a.id = t.account_id)) as open,
           (select count(*) from (
                select c.name, c.state from tool_call c where c.account_id = $1 and c.turn_id = $5 order by c.ordinal offset 0) c
            where c.name = $6 and c.state = 'finished') as of_turn";

pub(crate) async fn children_room(
    tx: &Tx,
    account: &AccountId,
    owner: &Owner,
    (open, most): (&[TaskStatus], i64),
    (turn, tool): (Uuid, &str),
) -> Result<RoomRow, StorageError> {
    const ATTEMPT: &str = "count children";
    let values = [
        account.into(),
        owner.to_string().into(),
        open.iter().map(TaskStatus::to_string).collect::<Vec<_>>().into(),
        most.into(),
        turn.into(),
        tool.into(),
    ];
    let found = tx.one(ATTEMPT, CHILDREN_ROOM, values).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

/// A persona that a child may be given.
#[derive(Debug, FromQueryResult)]
pub(crate) struct PersonaRow {
    pub id: PersonaId,
    pub slug: String,
    pub name: String,
    pub description: String,
    pub visibility: String,
    pub is_default: bool,
    pub agent_id: Option<AgentId>,
}

/// Relies on persona_slug, whose order is requested. `$2`: a person, who sees their own, too.
pub const PERSONAS_FOR: &str = "
    select p.id, p.slug, p.name, p.description, p.visibility, p.is_default, p.agent_id from persona p
    where p.account_id = $1 and p.removed_at is null and (p.visibility = 'shared' or p.created_by = $2)
    order by p.slug limit $3";

pub(crate) async fn personas_for(
    tx: &Tx,
    account: &AccountId,
    owner: &Owner,
    limit: i64,
) -> Result<Vec<PersonaRow>, StorageError> {
    let person = owner.user().map_or_else(String::new, ToString::to_string);
    let values = [account.into(), person.into(), limit.into()];
    tx.rows("list personas", PERSONAS_FOR, values).await
}

/// Relies on persona_slug and the primary key.
pub const PERSONA_FOR: &str = "
    select p.id, p.slug, p.name, p.description, p.visibility, p.is_default, p.agent_id from (
        (select p.id from persona p where p.account_id = $1 and p.slug = $3 and p.removed_at is null offset 0)
        union all
        select $4::uuid) w
    cross join lateral (
        select p.id, p.slug, p.name, p.description, p.visibility, p.is_default, p.agent_id, p.created_by, p.removed_at from persona p
        where p.account_id = $1 and p.id = w.id offset 0) p
    where p.removed_at is null and (p.visibility = 'shared' or p.created_by = $2) limit 1";

/// By slug or id.
pub(crate) async fn persona_for(
    tx: &Tx,
    account: &AccountId,
    owner: &Owner,
    named: &str,
) -> Result<Option<PersonaRow>, StorageError> {
    let person = owner.user().map_or_else(String::new, ToString::to_string);
    let id = Uuid::parse_str(named).ok();
    let values = [account.into(), person.into(), named.into(), id.into()];
    tx.one("find persona", PERSONA_FOR, values).await
}

#[derive(FromQueryResult)]
struct BoardRow {
    board: Option<Owner>,
}

/// Relies on the primary key.
const BOARD_OF: &str = "select board from task where account_id = $1 and id = $2";

/// Whose board a task is on.
pub(crate) async fn board_of(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<Owner>, StorageError> {
    let found: Option<BoardRow> = tx
        .one("find board of task", BOARD_OF, [account.into(), task.key().into()])
        .await?;
    Ok(found.and_then(|row| row.board))
}
