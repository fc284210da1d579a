//! Every query on turns and their tool calls.

use std::collections::HashMap;

use api::turns::{Note, ToolCall, Turn};
use domain::{AccountId, TaskId, ToolCallState, TurnId, TurnState};
use prompt::{
    CalledTool, Manifest, PastTurn,
    manifest::{Layer, Part, PartKind, Source},
    note_parts, spawning,
};
use sea_orm::{ColumnTrait, EntityTrait, FromQueryResult, QueryFilter, TryGetableFromJson};
use serde::Deserialize;
use serde_json::Value;
use storage::{
    StorageError, Tx,
    entity::instruction_text,
    error::Attempt,
    session::items_join::{self, Notes},
};
use uuid::Uuid;

use super::sent::manifest_shown;
use crate::paging::{Column, Listing, Order};

/// The columns of a turn that are shown, from the table or the alias with this name. The journal is delivery's and is not shown, but for
/// calls in it ([`calls_of`]). The turn before is found by turn_number, whose order is requested.
macro_rules! turn_columns {
    ($turn:literal) => {
        concat!(
            "id, session_id, (select s.origin_id from session s where s.account_id = ",
            $turn,
            ".account_id and s.id = ",
            $turn,
            ".session_id and coalesce(s.kind = 'branch', false)) as branch_id,
            (select s.origin_id from session s where s.account_id = ",
            $turn,
            ".account_id and s.id = ",
            $turn,
            ".session_id and coalesce(s.kind = 'replay', false)) as replay_id, generation, number, state, notification_ids, profile_version, profile_hash, input,
            reply, usage, error, error_class, provider, response_id, attempt, task_history_called, no_reply, late,
            started_at, finished_at, context, rotated_because, manifest, manifest_packed, coalesce(notes, '[]') as notes,
            (select p.manifest_packed from turn p where p.account_id = ",
            $turn,
            ".account_id and p.session_id = ",
            $turn,
            ".session_id and p.number < ",
            $turn,
            ".number order by p.number desc limit 1) as previous_packed"
        )
    };
}
pub(crate) use turn_columns;

/// Bytes of a turn's own texts, to limit what is read. Texts of other rows count when the page is put together.
macro_rules! turn_bytes {
    () => {
        "octet_length(input) + coalesce(octet_length(reply), 0) + octet_length(manifest::text) + octet_length(notes::text)
            + 4 * coalesce(octet_length(manifest_packed), 0)"
    };
}
pub(crate) use turn_bytes;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select ",
            turn_columns!("turn"),
            " from turn where account_id = $1 and ",
            $rest
        )
    };
}

#[derive(FromQueryResult)]
pub struct TurnRow {
    #[sea_orm(nested)]
    turn: Turn,
    manifest_packed: Option<Vec<u8>>,
    /// Of the turn before in its session.
    previous_packed: Option<Vec<u8>>,
    notes: Notes,
}

impl TurnRow {
    /// Its generation and its number.
    pub fn place(&self) -> (i32, i64) {
        (self.turn.generation, self.turn.number)
    }

    /// With its notes and calls. Without parts if a later version has packed them.
    fn shown(self, calls: Calls) -> Turn {
        let mut turn = self.turn;
        let packed = |packed: Option<Vec<u8>>| packed.as_deref().and_then(Manifest::unpacked);
        let manifest = match self.manifest_packed {
            None => serde_json::from_value(turn.manifest.clone()).ok(),
            own => packed(own),
        };
        if let Some(manifest) = manifest {
            // Version 1 has parts of notes.
            let notes = self.notes.0.iter().filter(|_| manifest.version > 1);
            let notes = notes.flat_map(|note| note_parts(&note.text, &note.notification_ids));
            let later = notes.chain(calls.results).collect();
            turn.manifest = manifest_shown(manifest, later, packed(self.previous_packed).as_ref());
        }
        let note = |note: items_join::Note| Note {
            round: note.round,
            text: note.text,
            notifications: note.notification_ids,
        };
        turn.notes = self.notes.0.into_iter().map(note).collect();
        turn.tool_calls_left_out = calls.all.saturating_sub(calls.shown.len());
        turn.tool_calls = calls.shown;
        turn
    }
}

/// Relies on the primary key.
const FIND: &str = select!("id = $2");

/// Relies on turn_number.
pub const LIST: Listing = Listing {
    rows: select!("session_id = $2"),
    order: &[("number", Column::BigInt)],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: turn_bytes!(),
    names: ("", ""),
};

/// `bytes_max`: limit of its tool calls' bytes.
pub async fn turn_find(
    tx: &Tx,
    account: &AccountId,
    turn: TurnId,
    bytes_max: usize,
) -> Result<Option<Turn>, StorageError> {
    let found = tx.rows("find turn", FIND, [account.into(), turn.into()]).await?;
    Ok(whole(tx, account, found, bytes_max).await?.pop())
}

/// Turns with their rows in other tables: instructions, which many turns share, and tool calls, whose bytes are limited for all
/// turns together. A turn whose calls were cut is the last one; the first turn is cut if it is too long alone.
pub async fn whole(
    tx: &Tx,
    account: &AccountId,
    found: Vec<TurnRow>,
    bytes_max: usize,
) -> Result<Vec<Turn>, StorageError> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let mut hashes: Vec<String> = found.iter().map(|row| row.turn.profile.hash.clone()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    let texts = instruction_text::Entity::find()
        .filter(instruction_text::Column::AccountId.eq(account.as_str()))
        .filter(instruction_text::Column::Hash.is_in(hashes))
        .all(&**tx)
        .await
        .attempt("read instructions")?;
    let texts: HashMap<String, String> = texts.into_iter().map(|text| (text.hash, text.body)).collect();
    let mut calls = tool_calls_of(tx, account, found.iter().map(|row| row.turn.id).collect(), bytes_max).await?;
    let mut turns = Vec::with_capacity(found.len());
    for row in found {
        let calls = calls.remove(&row.turn.id).unwrap_or_default();
        let mut turn = row.shown(calls);
        let is_cut = turn.tool_calls_left_out > 0;
        if is_cut && !turns.is_empty() {
            break;
        }
        turn.instructions = texts.get(&turn.profile.hash).cloned();
        turns.push(turn);
        if is_cut {
            break;
        }
    }
    Ok(turns)
}

/// The calls of a turn in the order of the provider's requests, those over HTTP first: the recorded ones, and those that delivery
/// answered itself, as it does to every call of a replay. No tool ran for these, and only the turn's journal has them: each stands
/// `behind` the recorded call that was passed on before it. They have no state. Relies on tool_call_turn, whose order is
/// requested, and on the turn's primary key.
macro_rules! calls_of {
    ($turn:literal) => {
        concat!(
            "select c.id, c.turn_id, c.ordinal, 0::bigint as behind, c.call_id, c.name, c.arguments, c.state, c.result
             from (select * from tool_call c where c.account_id = $1 and c.turn_id = ",
            $turn,
            " order by c.ordinal) c
             union all
             select t.id, t.id, a.ordinal, a.behind, a.call ->> 'call_id', a.call ->> 'name', a.call ->> 'arguments', null, a.call ->> 'answered'
             from turn t cross join lateral (
                 select c.call, max((c.call ->> 'ordinal')::integer) over journal as ordinal, row_number() over journal as behind
                 from jsonb_array_elements(t.journal) with ordinality as r (round, n)
                 cross join lateral jsonb_array_elements(r.round -> 'calls') with ordinality as c (call, n)
                 window journal as (order by r.n, c.n)) a
             where t.account_id = $1 and t.id = ",
            $turn,
            " and a.call ->> 'answered' is not null"
        )
    };
}

#[derive(FromQueryResult)]
pub struct CallRow {
    pub id: Uuid,
    pub turn_id: Uuid,
    pub ordinal: i32,
    pub call_id: String,
    pub name: String,
    pub arguments: Option<String>,
    /// None: delivery answered it.
    pub state: Option<String>,
    pub result: Option<String>,
    pub behind: i64,
}

impl From<CallRow> for ToolCall {
    fn from(row: CallRow) -> Self {
        let result = row.result.map(as_json);
        ToolCall {
            call_id: row.call_id,
            name: row.name,
            arguments: as_json(row.arguments.unwrap_or_default()),
            state: row.state.unwrap_or_else(|| answered(result.as_ref()).to_owned()),
            result,
        }
    }
}

/// The state of a call that was answered in its tool's place.
fn answered(result: Option<&Value>) -> &'static str {
    let is_error = result.is_some_and(|result| result.get("error").is_some());
    let state = match is_error {
        true => ToolCallState::Refused,
        false => ToolCallState::Finished,
    };
    state.as_str()
}

/// The part of a call's result, under the name that an audit gives it.
fn result_part(row: &CallRow) -> Option<Part> {
    let source = Source::named(format!("tool_call/{}/{}", row.name, row.call_id));
    let result = row.result.as_deref()?;
    Some(Part::of(Layer::Input, PartKind::ToolResult, source, result))
}

/// Providers and our tools send JSON. Anything else is shown as received.
pub fn as_json(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// In the order of the turns, and within a turn as [`calls_of`] has them. A call over the limit comes without its texts, to be counted.
pub const CALLS: &str = concat!(
    "select id, turn_id, ordinal, behind, call_id, name, state, case when bytes_before <= $3 then arguments end as arguments,
        case when bytes_before <= $3 then result end as result
    from (
        select c.*, sum(c.bytes) over (order by c.turn, c.ordinal, c.behind, c.id) - c.bytes as bytes_before
        from (
            select w.turn, c.*, octet_length(c.arguments) + coalesce(octet_length(c.result), 0) as bytes
            from unnest($2::uuid[]) with ordinality as w (id, turn)
            cross join lateral (",
    calls_of!("w.id"),
    ") c
        ) c
    ) c
    order by turn, ordinal, behind, id"
);

/// The calls of a turn that fit, the parts of their results, and the number of all calls.
#[derive(Default)]
struct Calls {
    shown: Vec<ToolCall>,
    results: Vec<Part>,
    all: usize,
}

async fn tool_calls_of(
    tx: &Tx,
    account: &AccountId,
    turns: Vec<Uuid>,
    bytes_max: usize,
) -> Result<HashMap<Uuid, Calls>, StorageError> {
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let values = [account.into(), turns.into(), bytes_max.into()];
    let rows: Vec<CallRow> = tx.rows("read tool calls", CALLS, values).await?;
    let mut of_turn: HashMap<Uuid, Calls> = HashMap::new();
    for row in rows {
        let calls = of_turn.entry(row.turn_id).or_default();
        calls.all += 1;
        if row.arguments.is_some() {
            calls.results.extend(result_part(&row));
            calls.shown.push(row.into());
        }
    }
    Ok(of_turn)
}

/// An earlier turn, as a source of the prompts of later ones.
#[derive(Clone, Debug)]
pub struct PastSource {
    pub session: Uuid,
    pub task: Option<TaskId>,
    pub profile_version: String,
    pub turn: PastTurn,
    /// False: it is too long to be read together with those before it, and has no texts.
    pub is_whole: bool,
}

pub type Pasts = HashMap<Uuid, PastSource>;

#[derive(FromQueryResult)]
struct PastRow {
    id: TurnId,
    session_id: Uuid,
    task_id: Option<TaskId>,
    profile_version: String,
    state: TurnState,
    input: String,
    manifest: Value,
    manifest_packed: Option<Vec<u8>>,
    notes: Notes,
    called: Option<Called>,
    reply: Option<String>,
    is_whole: bool,
}

#[derive(Deserialize)]
struct Called(Vec<CalledTool>);

impl TryGetableFromJson for Called {}

/// Of calls, those that began before their turn ended, as delivery reads them. Relies on the primary key and on tool_call_turn, whose
/// order is requested.
pub const PASTS: &str = "
    select p.id, p.session_id, p.task_id, p.profile_version, p.state, p.is_whole, case when p.is_whole then p.input else '' end as input,
           case when p.is_whole then p.reply end as reply, p.manifest, p.manifest_packed,
           case when p.is_whole then coalesce(p.notes, '[]') else '[]' end as notes, c.called
    from (
        select p.*, sum(p.bytes) over (order by p.place) - p.bytes < $3 as is_whole
        from (
            select w.place, t.*, octet_length(t.input) + coalesce(octet_length(t.reply), 0) + coalesce(octet_length(t.notes::text), 0) as bytes
            from unnest($2::uuid[]) with ordinality as w (id, place)
            cross join lateral (select * from turn t where t.account_id = $1 and t.id = w.id offset 0) t) p) p
    left join lateral (
        select json_agg(json_build_object('name', c.name, 'calls', c.calls, 'failed', c.failed) order by c.first, c.name) as called
        from (select c.name, count(*) as calls, min(c.started_at) as first,
                     count(*) filter (where c.state in ('failed', 'refused', 'unknown') and c.finished_at <= p.finished_at) as failed
              from (select * from tool_call c where c.account_id = p.account_id and c.turn_id = p.id order by c.ordinal) c
              where c.started_at <= p.finished_at group by c.name) c) c on true";

/// Turns that prompts were assembled from, in the order in which they are needed: of very long ones, the first are whole.
pub async fn pasts_of(tx: &Tx, account: &AccountId, turns: Vec<Uuid>, bytes_max: usize) -> Result<Pasts, StorageError> {
    if turns.is_empty() {
        return Ok(Pasts::new());
    }
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let values = [account.into(), turns.into(), bytes_max.into()];
    let rows: Vec<PastRow> = tx.rows("read earlier turns", PASTS, values).await?;
    Ok(rows.into_iter().map(|row| (row.id.uuid(), row.source())).collect())
}

impl PastRow {
    fn source(self) -> PastSource {
        let manifest = match &self.manifest_packed {
            Some(packed) => Manifest::unpacked(packed),
            None => serde_json::from_value(self.manifest).ok(),
        };
        PastSource {
            session: self.session_id,
            task: self.task_id,
            profile_version: self.profile_version,
            turn: PastTurn {
                id: self.id,
                state: self.state,
                input: self.input,
                manifest,
                notes: self.notes.0.into_iter().map(|note| note.text).collect(),
                called: self.called.map_or_else(Vec::new, |called| called.0),
                reply: self.reply,
            },
            is_whole: self.is_whole,
        }
    }
}

/// The turn that made a branch, as the branch knows it.
#[derive(Clone, Debug)]
pub struct SpawningTurn {
    pub id: Uuid,
    /// Notes that the turn had by then.
    notes: usize,
    /// What the turn had said by then.
    said: Vec<String>,
    /// False: `said` was not read, since those before it are too long.
    pub is_whole: bool,
}

impl SpawningTurn {
    /// The turn as the branch knows it, from the turn's row. None: what the turn had said was not read.
    pub fn known(&self, turn: &PastTurn) -> Option<PastTurn> {
        self.is_whole.then(|| spawning(turn.clone(), &self.said, self.notes))
    }
}

#[derive(FromQueryResult)]
struct SpawningRow {
    branch: Uuid,
    id: Uuid,
    notes: i32,
    said: Option<Said>,
    is_whole: bool,
}

#[derive(Deserialize)]
struct Said(Vec<String>);

impl TryGetableFromJson for Said {}

/// Of each branch, how much the spawning turn had when it made the branch, and the texts of the answers among that. Relies on the
/// primary keys.
pub const SPAWNING: &str = "
    select x.branch, x.id, x.notes, case when x.is_whole then x.said end as said, x.is_whole
    from (
        select x.*, sum(x.bytes) over (order by x.place) - x.bytes < $3 as is_whole
        from (
            select w.place, b.id as branch, b.parent_turn_id as id, t.said,
                   case when b.base ->> 'notes' ~ '^[0-9]{1,9}$' then (b.base ->> 'notes')::integer else 0 end as notes,
                   coalesce(octet_length(t.said::text), 0) as bytes
            from unnest($2::uuid[]) with ordinality as w (id, place)
            cross join lateral (select * from branch b where b.account_id = $1 and b.id = w.id offset 0) b
            left join lateral (
                select (select json_agg(coalesce(r.round ->> 'text', '') order by r.place)
                        from jsonb_array_elements(case jsonb_typeof(t.journal) when 'array' then t.journal else '[]' end)
                            with ordinality as r (round, place)
                        where r.place <= case when b.base ->> 'rounds' ~ '^[0-9]{1,9}$' then (b.base ->> 'rounds')::integer end) as said
                from turn t where t.account_id = b.account_id and t.id = b.parent_turn_id offset 0) t on true) x) x";

/// The spawning turns of branches, by branch. Without a branch there is no statement.
pub async fn spawning_turns(
    tx: &Tx,
    account: &AccountId,
    branches: Vec<Uuid>,
    bytes_max: usize,
) -> Result<HashMap<Uuid, SpawningTurn>, StorageError> {
    if branches.is_empty() {
        return Ok(HashMap::new());
    }
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    let values = [account.into(), branches.into(), bytes_max.into()];
    let rows: Vec<SpawningRow> = tx.rows("read what spawning turns had said", SPAWNING, values).await?;
    let turn = |row: SpawningRow| SpawningTurn {
        id: row.id,
        notes: usize::try_from(row.notes).unwrap_or_default(),
        said: row.said.map_or_else(Vec::new, |said| said.0),
        is_whole: row.is_whole,
    };
    Ok(rows.into_iter().map(|row| (row.branch, turn(row))).collect())
}

/// The calls of a turn are limited: they are sorted.
pub const CALL_LIST: Listing = Listing {
    rows: concat!("select c.* from (", calls_of!("$2"), ") c where true"),
    order: &[
        ("ordinal", Column::Integer),
        ("behind", Column::BigInt),
        ("id", Column::Uuid),
    ],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(arguments) + coalesce(octet_length(result), 0)",
    names: ("", ""),
};

/// Relies on the primary key.
const EXISTS: &str = "select id from turn where account_id = $1 and id = $2";

pub async fn turn_exists(tx: &Tx, account: &AccountId, turn: TurnId) -> Result<bool, StorageError> {
    tx.exists("find turn", EXISTS, [account.into(), turn.into()]).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_json_when_they_can_be() {
        assert_eq!(as_json(r#"{"a": 1}"#.to_owned()), json!({"a": 1}));
        assert_eq!(as_json("{broken".to_owned()), json!("{broken"));
        assert_eq!(as_json(String::new()), json!(""));
    }
}
