//! Reads what branches start from, for their prompts; and whether a branch has anything left to do.

use std::collections::HashMap;

use domain::{AccountId, BranchContext, BranchId, ContextSize, SessionId, TaskId, TurnId, TurnState, branch::Rest};
use prompt::{Manifest, PastTurn, spawning};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use storage::{
    StorageError, Tx,
    session::{
        branch_spawn::Base,
        items_join::{Note, Notes},
    },
    statement::pairs,
};

use super::{SessionName, context::Candidates};

/// A branch, for the turns of its session.
#[derive(Clone, Debug, FromQueryResult)]
pub struct BranchStart {
    account_id: AccountId,
    session_id: SessionId,
    #[sea_orm(from_alias = "branch_id")]
    pub id: BranchId,
    /// The key of its task.
    pub task_id: TaskId,
    pub depth: i32,
    pub context: BranchContext,
    pub base: Base,
    /// The session whose turns before the spawning one it knows, and the generation that it was rotated from.
    pub parent_session_id: SessionId,
    pub continues_id: Option<SessionId>,
    #[sea_orm(nested(prefix = "turn_"))]
    turn: Option<SpawningTurn>,
    /// The version of the task's context that it knows.
    #[sea_orm(nested(prefix = "context_"))]
    pub task_context: Option<ContextRow>,
    /// The newest few messages of its base.
    pub thread: Option<Candidates>,
    /// The messages of its base.
    pub thread_total: i64,
}

/// A version of a task's context.
#[derive(Clone, Debug, FromQueryResult)]
pub struct ContextRow {
    pub version: i32,
    pub body: String,
    #[sea_orm(nested)]
    pub size: ContextSize,
}

#[derive(Clone, Debug, FromQueryResult)]
struct SpawningTurn {
    id: TurnId,
    state: TurnState,
    input: String,
    /// Packed.
    manifest: Option<Vec<u8>>,
    notes: Notes,
    said: Option<Said>,
}

/// The texts of a turn's answers.
#[derive(Clone, Debug, Deserialize)]
struct Said(Vec<String>);

impl TryGetableFromJson for Said {}

impl BranchStart {
    fn name(&self) -> SessionName {
        (self.account_id.clone(), self.session_id)
    }

    /// The manifest of the spawning turn.
    pub fn spawned_with(&self) -> Option<Manifest> {
        Manifest::unpacked(self.turn.as_ref()?.manifest.as_deref()?)
    }

    /// The spawning turn as its agent had it when it made the branch. None: it is gone.
    pub fn spawned_by(&self) -> Option<PastTurn> {
        let turn = self.turn.as_ref()?;
        let said = turn.said.as_ref().map_or(&[][..], |said| &said.0);
        let notes = usize::try_from(self.base.notes).unwrap_or_default();
        let past = PastTurn {
            id: turn.id,
            state: turn.state,
            input: turn.input.clone(),
            manifest: turn.manifest.as_deref().and_then(Manifest::unpacked),
            notes: turn.notes.0.iter().map(|note: &Note| note.text.clone()).collect(),
            called: Vec::new(),
            reply: None,
        };
        Some(spawning(past, said, notes))
    }
}

/// Messages of the spawning turn, and of a turn before it, are told by those turns; where the branch's past is no text, the messages of those
/// that have ended without an answer are not.
/// Relies on primary keys.
pub const BRANCHES_LOAD: &str = "
    select b.account_id, b.session_id, b.id as branch_id, b.task_id, b.depth, b.context, b.base, b.parent_session_id, p.continues_id,
           t.id as turn_id, t.state as turn_state, t.input as turn_input, t.manifest_packed as turn_manifest,
           coalesce(t.notes, '[]') as turn_notes,
           (select json_agg(coalesce(r.round ->> 'text', '') order by r.place)
            from jsonb_array_elements(t.journal) with ordinality as r (round, place)
            where r.place <= (b.base ->> 'rounds')::integer) as turn_said,
           c.version as context_version, c.body as context_body, c.characters as context_characters,
           c.cut_characters as context_cut_characters,
           least(cardinality(b.base_messages), $4)::bigint as thread_total, m.newest as thread
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from branch b where b.account_id = w.account_id and b.id = w.id offset 0) b
    cross join lateral (select * from session p where p.account_id = b.account_id and p.id = b.parent_session_id offset 0) p
    left join lateral (select * from turn t where t.account_id = b.account_id and t.id = b.parent_turn_id offset 0) t on true
    left join lateral (
        select * from task_context c
        where c.account_id = b.account_id and c.task_id = b.task_id and c.version = (b.base ->> 'context_version')::integer offset 0) c on true
    cross join lateral (
        select json_agg(json_build_object('id', m.id, 'author', json_build_object('kind', m.author_kind, 'id', m.author_id,
                                          'name', m.author_name, 'via', m.author_via),
                                          'body', case when m.is_told and not m.was_tried or m.is_past then '' else left(m.body, 4000) end,
                                          'at', m.created_at, 'wakes', m.is_told and not m.was_tried, 'was_tried', m.was_tried,
                                          'is_past', m.is_past)
                        order by m.place) as newest
        from (select m.*, i.place,
                     coalesce(o.is_told, false) as is_told, coalesce(o.is_told and o.was_tried, false) as was_tried,
                     case when m.turn_id is null then false
                          else coalesce((
                              select u.session_id in (b.parent_session_id, p.continues_id) from turn u
                              where u.account_id = m.account_id and u.id = m.turn_id offset 0), false)
                     end as is_past
              from unnest(b.base_messages) with ordinality as i (id, place)
              cross join lateral (select * from message m where m.account_id = b.account_id and m.id = i.id offset 0) m
              left join lateral (
                  select u.session_id in (b.parent_session_id, p.continues_id)
                         and (u.session_id <> b.parent_session_id or u.number <= (b.base ->> 'number')::bigint) as is_told,
                         u.id <> b.parent_turn_id and o.state not in ('queued', 'running', 'delivered') as was_tried
                  from notification o
                  cross join lateral (select * from turn u where u.account_id = o.account_id and u.id = o.turn_id offset 0) u
                  where m.turn_id is null and o.account_id = m.account_id and o.id = 'message:' || m.id || ':' || p.agent_id offset 0) o on true
              where i.place <= $3 and m.task_id = b.task_id) m) m";

/// The branches of these sessions. `counted_max`: messages that are counted.
pub async fn branches_load(
    tx: &Tx,
    branches: &[(AccountId, BranchId)],
    messages_max: i64,
    counted_max: i64,
) -> Result<HashMap<SessionName, BranchStart>, StorageError> {
    if branches.is_empty() {
        return Ok(HashMap::new());
    }
    let (accounts, ids) = pairs(branches);
    let values = [accounts.into(), ids.into(), messages_max.into(), counted_max.into()];
    let rows: Vec<BranchStart> = tx.rows("load what branches start from", BRANCHES_LOAD, values).await?;
    Ok(rows.into_iter().map(|row| (row.name(), row)).collect())
}

#[derive(FromQueryResult)]
struct RestRow {
    account_id: AccountId,
    session_id: SessionId,
    #[sea_orm(nested)]
    rest: Rest,
}

/// Relies on the primary keys, branch_live, question_of_session and timer_of_session.
pub const RESTS_LOAD: &str = "
    select s.account_id, s.id as session_id, s.queued > 0 as queued,
           (select count(*) from (select from branch b where b.account_id = s.account_id and b.parent_session_id = s.id and b.state = 'live'
                                  order by b.account_id, b.parent_session_id limit 1) b) > 0 as branches,
           (select count(*) from (select from question q where q.account_id = s.account_id and q.session_id = s.id and q.state = 'open'
                                  order by q.account_id, q.session_id limit 1) q) > 0 as questions,
           (select count(*) from (select t.kind from timer t
                                  where t.account_id = s.account_id and t.session_id = s.id and t.state = 'waiting'
                                  order by t.account_id, t.session_id offset 0) t where t.kind = 'check_later') > 0 as timers
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from session s where s.account_id = w.account_id and s.id = w.id offset 0) s";

/// What is left to do in these sessions, whose locks the caller holds.
pub async fn rests_load(tx: &Tx, sessions: &[SessionName]) -> Result<HashMap<SessionName, Rest>, StorageError> {
    if sessions.is_empty() {
        return Ok(HashMap::new());
    }
    let (accounts, ids) = pairs(sessions);
    let rows: Vec<RestRow> = tx
        .rows(
            "read what branches have left to do",
            RESTS_LOAD,
            [accounts.into(), ids.into()],
        )
        .await?;
    Ok(rows
        .into_iter()
        .map(|row| ((row.account_id, row.session_id), row.rest))
        .collect())
}
