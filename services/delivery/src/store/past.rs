//! Reads the past of turns whose prompts are assembled: the ended turns of their sessions, and of the generations that these were
//! rotated from, about the same task. Always by account and task (S9).

use std::collections::HashMap;

use domain::{AccountId, SessionId, TaskId, TurnId, TurnState};
use prompt::{CalledTool, Manifest, PastTurn, Subagent};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use storage::{
    StorageError, Tx,
    session::items_join::{Note, Notes},
    statement::column,
};
use uuid::Uuid;

use super::SessionName;

/// Turns of a generation that are looked at: in a session of all of an agent's work, most may be about other tasks.
const LOOKED_AT_MAX: i64 = 1_000;
/// Bytes of inputs and replies that are read for one prompt; the newest turn is read in any case. Entries are far shorter.
const READ_BYTES_MAX: i64 = 1_048_576;

/// A turn whose past is asked for.
#[derive(Clone, Debug)]
pub struct PastOf {
    pub session: SessionName,
    /// The generation before, which was rotated.
    pub continues: Option<SessionId>,
    pub task: Option<TaskId>,
    /// The turn's number.
    pub before: i64,
}

/// A past: its session, and the number of the turn that it is asked for.
pub type PastName = (SessionName, i64);

impl PastOf {
    pub fn name(&self) -> PastName {
        (self.session.clone(), self.before)
    }
}

/// The newest turns of a past, newest first, and how many there are.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub turns: Vec<PastTurn>,
    pub total: usize,
    /// The session's subagents at work on the task.
    pub subagents: Vec<Subagent>,
}

#[derive(FromQueryResult)]
struct PastRow {
    account_id: AccountId,
    session_id: SessionId,
    before: i64,
    subagents: Option<Subagents>,
    #[sea_orm(nested)]
    turn: Option<TurnRow>,
}

#[derive(Deserialize)]
struct Subagents(Vec<Subagent>);

impl TryGetableFromJson for Subagents {}

#[derive(FromQueryResult)]
struct TurnRow {
    id: TurnId,
    state: TurnState,
    input: String,
    /// Of the first versions, as JSON.
    manifest: serde_json::Value,
    manifest_packed: Option<Vec<u8>>,
    notes: Notes,
    called: Option<Called>,
    reply: Option<String>,
    total: i64,
}

#[derive(Deserialize)]
struct Called(Vec<CalledTool>);

impl TryGetableFromJson for Called {}

/// A row for each that is asked for, and one for each of its turns but the first. Relies on indexes turn_number, tool_call_turn and
/// branch_live, whose orders are requested, and on primary keys. Of calls, those that
/// began before their turn ended: what comes later changes no past.
pub const PAST_LOAD: &str = "
    select w.account_id, w.id as session_id, w.before, s.subagents, t.id, t.state, t.input, t.manifest, t.manifest_packed, coalesce(t.notes, '[]') as notes,
           t.reply, n.total, c.called
    from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[]) as w (account_id, id, continues, task_id, before)
    cross join lateral (
        select json_agg(json_build_object('id', b.id, 'label', b.label, 'agent', a.slug) order by b.id) as subagents
        from (select * from branch b where b.account_id = w.account_id and b.parent_session_id = w.id and b.state = 'live'
              order by b.account_id, b.parent_session_id offset 0) b
        cross join lateral (select a.slug from agent a where a.account_id = b.account_id and a.id = b.agent_id offset 0) a
        where b.task_id = w.task_id) s
    left join lateral (
        select n.id, n.total, n.place from (
            select n.id, count(*) over () as total, row_number() over (order by n.age, n.number desc) as place,
                   sum(n.bytes) over (order by n.age, n.number desc) as bytes
            from (
                select 0 as age, t.id, t.number, t.task_id, t.finished_at, octet_length(t.input) + coalesce(octet_length(t.reply), 0) as bytes
                from (select * from turn t
                      where t.account_id = w.account_id and t.session_id = w.id and t.number < w.before
                      order by t.account_id, t.session_id, t.number desc limit $6) t
                union all
                select 1, t.id, t.number, t.task_id, t.finished_at, octet_length(t.input) + coalesce(octet_length(t.reply), 0)
                from (select * from turn t
                      where t.account_id = w.account_id and t.session_id = w.continues
                      order by t.account_id, t.session_id, t.number desc limit $6) t) n
            where n.finished_at is not null and coalesce(n.task_id, '') = w.task_id) n
        where n.place <= $7 and (n.bytes <= $8 or n.place = 1)) n on true
    left join lateral (select * from turn t where t.account_id = w.account_id and t.id = n.id offset 0) t on true
    left join lateral (
        select json_agg(json_build_object('name', c.name, 'calls', c.calls, 'failed', c.failed) order by c.first, c.name) as called
        from (select c.name, count(*) as calls, min(c.started_at) as first,
                     count(*) filter (where c.state in ('failed', 'refused', 'unknown') and c.finished_at <= t.finished_at) as failed
              from (select * from tool_call c where c.account_id = t.account_id and c.turn_id = t.id order by c.ordinal) c
              where c.started_at <= t.finished_at group by c.name) c) c on true
    order by w.account_id, w.id, w.before, n.place";

/// One statement for all. `entries_max`: turns that are read for each.
pub async fn pasts_load(tx: &Tx, of: &[PastOf], entries_max: i64) -> Result<HashMap<PastName, Loaded>, StorageError> {
    let mut loaded: HashMap<PastName, Loaded> = HashMap::new();
    if of.is_empty() {
        return Ok(loaded);
    }
    let values = [
        column(of, |one| one.session.0.clone()),
        column(of, |one| one.session.1),
        column(of, |one| one.continues.map_or(Uuid::nil(), SessionId::uuid)),
        column(of, |one| {
            one.task.as_ref().map_or_else(String::new, |task| task.key().into())
        }),
        column(of, |one| one.before),
        LOOKED_AT_MAX.into(),
        entries_max.into(),
        READ_BYTES_MAX.into(),
    ];
    let rows: Vec<PastRow> = tx.rows("load the past of turns", PAST_LOAD, values).await?;
    for row in rows {
        let past = loaded
            .entry(((row.account_id, row.session_id), row.before))
            .or_default();
        past.subagents = row.subagents.map_or_else(Vec::new, |subagents| subagents.0);
        if let Some(turn) = row.turn {
            past.total = usize::try_from(turn.total).unwrap_or_default();
            past.turns.push(turn.past());
        }
    }
    Ok(loaded)
}

impl TurnRow {
    fn past(self) -> PastTurn {
        let manifest = match &self.manifest_packed {
            Some(packed) => Manifest::unpacked(packed),
            None => serde_json::from_value(self.manifest).ok(),
        };
        let text = |note: Note| note.text;
        PastTurn {
            id: self.id,
            state: self.state,
            input: self.input,
            manifest,
            notes: self.notes.0.into_iter().map(text).collect(),
            called: self.called.map_or_else(Vec::new, |called| called.0),
            reply: self.reply,
        }
    }
}
